"""Games between policies: seats, waiting players, repetition, errors, and both commands."""

import argparse
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack import cli
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.games import GameTable, LoadedPlayer, game_config, load_player
from jaxrl_stack.algorithms.tournament import names_of_paths, run_tournament
from jaxrl_stack.cli import play as command
from jaxrl_stack.cli.common import CliError
from jaxrl_stack.cli.experiment import config_of_checkpoint
from jaxrl_stack.cli.play import _play_alone, board_text
from jaxrl_stack.cli.play import run as play
from jaxrl_stack.connectors.env_to_module import PrevActionsPrevRewards
from jaxrl_stack.env import registry
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.self_play_env import SelfPlayEnv
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors
from jaxrl_stack.policy.policy import Policy
from tests import programs

GAME = "pgx_multi/tic_tac_toe"


@pytest.fixture(scope="module")
def player(tmp_path_factory):
    """An untrained policy, and its checkpoint."""
    config = programs.ppo(GAME)
    config.multi_agent(policies={"main"}, policy_mapping_fn=lambda agent, episode, **kwargs: "main")
    algo = config.build_algo()
    path = algo.save_to_path(str(tmp_path_factory.mktemp("games") / "checkpoint_000000"))
    policy = algo.get_policy("main")
    algo.stop()
    return policy, path


class FirstFree:
    """Takes the first free cell; records in how many games it was asked to move."""

    def __init__(self, policy):
        self._policy, self.observation_space, self.action_space = policy, policy.observation_space, policy.action_space
        self.moves = 0

    def initial_state(self, num_envs):
        return np.zeros(num_envs, int)

    def compute_actions(self, observations, state, *, prev_rewards, explore, key):
        return np.argmax(observations["action_mask"], axis=-1), state + 1, {}

    def where_rows(self, acts, after, before):
        self.moves += int(np.sum(acts))
        return np.where(acts, after, before)


def test_counts_wins_of_both_seats(player):
    """Whoever begins wins by taking the cells 0, 2, 4, 6: cells 2, 4, 6 are a line. All games end after seven moves."""
    players = [FirstFree(player[0]), FirstFree(player[0])]
    results = run_tournament({"a": players[0], "b": players[1]}, GAME, games=40)
    assert results.draws.sum() == 0 and results.wins.sum() == 40
    assert 8 <= results.wins[0, 1] <= 32, "who begins is drawn for every game, and seats are changed"
    assert players[0].moves + players[1].moves == 40 * 7, "a player acts on its turns only"


def test_the_same_seed_plays_the_same_games(player):
    first, again, other = (run_tournament({"p": player[0], "r": "random"}, GAME, games=20, seed=s) for s in (0, 0, 1))
    assert np.array_equal(first.wins, again.wins) and np.array_equal(first.draws, again.draws)
    assert not (np.array_equal(first.wins, other.wins) and np.array_equal(first.draws, other.draws))


def test_a_game_without_end_is_a_draw(player):
    env = SelfPlayEnv(resolve_env(GAME).make())
    assert GameTable(env, 4, max_steps=3, explore=True).play(None, None, jax.random.key(0)) == (0, 0)


def test_a_game_keeps_the_settings_of_its_algorithm(monkeypatch):
    """A name of the same class keeps them; another environment has none."""
    monkeypatch.setattr(registry, "_creators", {})
    registry.register_env("rps", RockPaperScissors)
    name = f"{RockPaperScissors.__module__}:{RockPaperScissors.__name__}"
    imported = f"{__name__}:{RockPaperScissors.__name__}"
    for env in (RockPaperScissors, name, imported, "rps"):
        config = programs.ppo(env).environment(env_config={"rounds": 3})
        for other in (None, RockPaperScissors, name, imported, "rps"):
            assert game_config(other, None, [None, config]).env_config == {"rounds": 3}, (env, other)
    assert game_config(GAME, None, [config]).env_config == {}
    assert game_config(name, {"sets": 5}, [config]).env_config == {"sets": 5}
    assert config.env_config == {"rounds": 3} and game_config(None, None, [None]) is None
    assert game_config(None, None, [programs.ppo(None), config]).env == "rps"
    assert game_config(None, None, [programs.ppo(None)]) is None, "a run on data names no game"


def test_a_policys_checkpoint_is_loaded_with_the_code_of_the_config(player, tmp_path, monkeypatch):
    path, allowed = player[0].save_to_path(str(tmp_path / "policy")), []
    monkeypatch.setattr(Policy, "from_checkpoint", lambda path, allow: allowed.extend(allow) or player[0])
    config = programs.ppo(Recalls)
    assert load_player("p", path, config=config, module_id="main") == (player[0], config)
    assert Recalls in allowed
    with pytest.raises(ValueError, match="p has the module 'main', not 'other'. Choose 'main': --module main"):
        load_player("p", path, module_id="other", choice="--module {}")


def test_waiting_rows_keep_their_state(player):
    policy = player[0]
    before = policy.initial_state(2)
    obs = {name: np.ones((2, *space.shape), space.dtype) for name, space in policy.observation_space.spaces.items()}
    _, after, _ = policy.compute_actions(obs, before)
    kept = policy.where_rows([True, False], after, before)
    assert np.asarray(kept.reset).tolist() == [bool(after.reset[0]), True]


@pytest.mark.parametrize(
    ("players", "more", "what"),
    [
        ({"a": "random"}, {}, "at least two players"),
        ({"a": "random", "b": "random"}, {}, "no player is an algorithm"),
        ({"a": "random", "b": "random"}, {"env": GAME, "games": 3}, "even number"),
        ({"a": "random", "b": "random"}, {"env": "gymnax/CartPole-v1"}, "2 agents"),
        ({"a": "random", "b": "random"}, {"env": GAME, "max_steps": 0}, "positive integer"),
    ],
)
def test_refuses(players, more, what):
    with pytest.raises(ValueError, match=what):
        run_tournament(players, **more)


def test_refuses_a_policy_of_another_game(player):
    with pytest.raises(ValueError, match="player 'p' has the spaces"):
        run_tournament({"p": player[0], "r": "random"}, "pgx_multi/connect_four")


def test_refuses_what_is_no_player():
    with pytest.raises(TypeError, match="player 'p' must be the path of a checkpoint, a Policy.* not 3"):
        run_tournament({"p": 3, "r": "random"}, GAME)


def test_names_are_the_differing_ends_of_paths():
    assert list(names_of_paths(["runs/a/checkpoint_000001", "runs/b/checkpoint_000001", "random"])) == [
        "a/checkpoint_000001",
        "b/checkpoint_000001",
        "random",
    ]
    with pytest.raises(ValueError, match="two players have the same path"):
        names_of_paths(["runs/a", "runs/a"])


def test_command_tournament_prints_a_table_and_writes_a_page(player, tmp_path, capsys):
    page = tmp_path / "elo.html"
    assert cli.main(["tournament", player[1], "random", "--games", "4", "--out", str(page)]) == 0
    assert "vs random" in capsys.readouterr().out and "<svg" in page.read_text()


def test_checkpoints_of_policies_play(player, tmp_path, capsys):
    """Such as a snapshot of a league; the game is named then."""
    path = player[0].save_to_path(str(tmp_path / "snapshot_3"))
    results = [run_tournament({"p": own, "r": "random"}, GAME, games=20) for own in (path, player[0])]
    assert np.array_equal(results[0].wins, results[1].wins) and np.array_equal(results[0].draws, results[1].draws)
    assert cli.main(["tournament", path, "random", "--games", "4"]) == 2
    assert "Add it: --env pgx_multi/connect_four" in capsys.readouterr().err
    assert cli.main(["tournament", path, "random", "--games", "4", "--env", GAME]) == 0
    arguments = argparse.Namespace(
        checkpoint=path, config_file=None, env=GAME, module=None, seat=None, seed=0, explore=False
    )
    assert play(arguments, lambda text: "q") == 130


def test_a_checkpoint_plays_without_the_devices_of_its_learner(player, monkeypatch):
    """Such as one of several CPU devices, where this process has one: a policy needs none of them."""
    monkeypatch.setattr(Algorithm, "__init__", None)
    results = [run_tournament({"p": own, "r": "random"}, GAME, games=20) for own in (player[1], player[0])]
    assert np.array_equal(results[0].wins, results[1].wins) and np.array_equal(results[0].draws, results[1].draws)


def test_command_play_ends_with_the_outcome(player, capsys):
    """The person takes the highest legal action; an illegal one is asked again."""
    arguments = argparse.Namespace(
        checkpoint=player[1], config_file=None, env=None, module=None, seat="second", seed=0, explore=False
    )
    asked = []

    def ask(text):
        asked.append(text)
        return "77" if len(asked) == 1 else text.partition("(")[2].partition(")")[0].split(", ")[-1]

    assert play(arguments, ask) == 0
    out = capsys.readouterr().out
    assert "'77' is not a legal action." in out
    assert out.rstrip().endswith(("You win.", "The policy wins.", "A draw."))
    assert play(arguments, lambda text: "q") == 130


class Paper:
    """Policy of rock-paper-scissors that always plays paper."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (3,))
    action_space = gym.spaces.Discrete(3)

    def initial_state(self, num_envs):
        return ()

    def compute_actions(self, observations, state, **kwargs):
        return np.ones(len(observations), int), state, {}

    def where_rows(self, acts, after, before):
        return after


@pytest.mark.parametrize("seat", ["first", "second"])
def test_the_person_acts_before_the_policys_simultaneous_action_is_shown(seat, monkeypatch, capsys):
    """The person takes scissors, and wins each of ten rounds against paper."""
    env, shown = RockPaperScissors(), []
    policy = Paper()
    policy.observation_space = env.observation_spaces["player1"]
    monkeypatch.setattr(
        command, "load_checkpoint_player", lambda *args: LoadedPlayer(policy, programs.ppo(RockPaperScissors))
    )
    arguments = argparse.Namespace(checkpoint="c", env=None, seat=seat, seed=0, explore=False)

    def ask(text):
        shown.append(capsys.readouterr().out.count("The policy plays 1."))
        return "2"

    assert play(arguments, ask) == 0
    assert shown == [0] + [1] * 9
    assert capsys.readouterr().out.endswith("You win.\n")


class Recalls(gym.Env):
    """Five steps; the class itself is the entry point, and it is rendered as text."""

    metadata = {"render_modes": ["ansi"], "render_fps": 1}
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3)

    def __init__(self, render_mode=None):
        self.render_mode, self.steps = render_mode, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        return f"step {self.steps}"


def test_the_class_of_an_environment_is_allowed_by_its_name(tmp_path):
    algo = programs.ppo(Recalls).build_algo()
    path = Path(algo.save_to_path(str(tmp_path / "checkpoint")))
    algo.stop()
    with pytest.raises(CliError, match="add --env module:Class"):
        config_of_checkpoint("CHECKPOINT", path)
    assert config_of_checkpoint("CHECKPOINT", path, f"{Recalls.__module__}:{Recalls.__name__}").env is Recalls


def test_a_policy_with_advice_sees_the_actions_of_the_person(monkeypatch, capsys):
    """PrevActionsPrevRewards gives the policy the action that the person took, not its own one."""
    config = programs.ppo(Recalls)
    config.env_runners(env_to_module_connector=lambda *args, **kwargs: PrevActionsPrevRewards())
    algo = config.build_algo()
    policy = algo.get_policy()
    algo.stop()
    seen, act = [], policy.compute_single_action

    def recorded(obs, state=None, **kwargs):
        seen.append(None if state is None else int(state.prev_actions[0]))
        return act(obs, state, **kwargs)

    monkeypatch.setattr(policy, "compute_single_action", recorded)
    gym.register("Recalls-v0", Recalls)
    try:
        answers = iter(["2", "\u00b2", "--1", "0", "1", "2", "0"])
        arguments = argparse.Namespace(seed=0, explore=False)
        assert _play_alone(policy, "Recalls-v0", None, arguments, lambda text: next(answers)) == 0
    finally:
        del gym.registry["Recalls-v0"]
    assert seen == [None, 2, 0, 1, 2]
    out = capsys.readouterr().out
    assert "step 4" in out and out.count("is not a legal action") == 2 and "return 5 in 5 steps" in out


def test_board_shows_marks_and_free_cells():
    board = np.zeros((3, 3, 2), bool)
    board[0, 0, 0] = board[1, 1, 1] = True
    actions = gym.spaces.Discrete
    assert board_text(board, [1, 8], actions(9)) == " X  1  .\n .  O  .\n .  .  8"
    assert board_text(board, [1, 9], actions(10)) == " X  1  .\n .  O  .\n .  .  ."
    assert board_text(board, [0, 1, 2], actions(3)) == " X  .  .\n .  O  .\n .  .  .", "an action is no cell"
    assert board_text(np.array([0.5, -1.0]), [0, 1], actions(2)) == "[ 0.5 -1. ]"
