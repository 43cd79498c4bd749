"""Training against snapshots: what is learned from, what compiles, what a resumed league continues."""

from __future__ import annotations

import itertools

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces import Dict as DictSpace

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.games import GameTable, LoadedPlayer
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.pqn import PQNConfig
from jaxrl_stack.algorithms.tournament import run_tournament
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.connectors.env_to_module import MeanStdFilter, MultiAgentObservationPreprocessor
from jaxrl_stack.core.opponents import Snapshots
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors, TicTacToe
from jaxrl_stack.utils import snapshots as copies
from tests import programs

NUM_ENVS, NUM_STEPS = 8, 16


def first(records, key):
    """Always the first snapshot of the stack."""
    return 0


def config_of(env=RockPaperScissors, config=PPOConfig, *, model=None, training=None, **opponents):
    """8 environments: 4 of self-play, and two blocks of two."""
    own = {"of": "main", "size": 2, "add_when_win_rate": None, **opponents}
    return (
        config()
        .environment(env)
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .learners(num_cpus_per_learner=1)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, lr=1e-2, **(training or {}))
        .rl_module(model_config={"fcnet_hiddens": [programs.WIDTH], **(model or {})})
        .reporting(min_time_s_per_iteration=None)
        .multi_agent(policies={"main"}, policies_to_train=["main"], opponents=Snapshots(**own))
    )


class Mine(RockPaperScissors):
    """An environment of the user."""


PPO_SIZES = {"minibatch_size": 32, "num_epochs": 2}
LSTM = {"use_lstm": True, "lstm_cell_size": 3, "max_seq_len": 4}


def weights(algo):
    return algo.get_weights(["main"])["main"]


def assert_equal(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.fixture(scope="module")
def league_run():
    """An algorithm, the weights that it started with, the result of one iteration, and its table of games then."""
    algo = config_of(training=PPO_SIZES).build_algo()
    start = jax.tree.map(np.array, weights(algo))
    yield algo, start, algo.train(), algo.league.table()
    algo.stop()


def test_both_seats_of_self_play_are_learned_from_and_snapshots_never(league_run):
    """Trains on 16 steps of 8 heroes and 4 rivals of self-play, in two epochs. Snapshots keep their weights."""
    algo, start, result, _ = league_run
    assert result["learners"]["main"]["num_module_steps_trained"] == 2 * NUM_STEPS * (8 + 4)
    assert set(result["learners"]) == {"__all_modules__", "main"}
    sampled = result["env_runners"]
    assert sampled["num_agent_steps_sampled"] == {"hero": NUM_STEPS * 8, "rival": NUM_STEPS * 8}
    assert sampled["num_module_steps_sampled"] == {"main": NUM_STEPS * (8 + 4)}
    assert sampled["num_module_steps_sampled_lifetime"] == {"main": NUM_STEPS * (8 + 4)}
    # The game is zero-sum: the return of the policy is the return of the hero, not of both roles.
    returns = sampled["agent_episode_returns_mean"]
    assert sampled["module_episode_returns_mean"] == {"main": returns["hero"]} and returns["hero"] == -returns["rival"]
    assert any((start[name] != now).any() for name, now in weights(algo).items())
    assert_equal(algo.league.weights("snapshot_0"), start)


def test_every_game_of_the_blocks_is_counted(league_run):
    """A game has 10 moves: in 16 steps, each of 4 environments ends one."""
    _, _, result, (record,) = league_run
    assert record.snapshot == "snapshot_0" and record.is_active and record.games == 4
    assert [result["league"][f"num_{name}"] for name in ("wins", "draws", "losses")] == list(record[1:4])
    assert result["league"]["num_snapshots"] == 1


def test_the_memory_estimate_has_the_stack_and_its_blocks(league_run):
    """Bytes of two snapshots. Policy and value function have 3 x 4 + 4 weights each, and heads of 4 x 3 + 3 and 4 + 1
    weights.
    """
    estimate = league_run[0].memory_estimate()["opponents"]
    size = 2 * 4 * (2 * (3 * 4 + 4) + (4 * 3 + 3) + (4 + 1))
    connectors = {"env_to_module": 0, "env_to_module_of_blocks": 0}
    assert estimate["columns"] == {"weights": size, "weights_of_blocks": size, **connectors}
    assert estimate["num_bytes"] == 2 * size and estimate["counts"] == {"devices": 1, "snapshots": 2}


@pytest.mark.parametrize(
    ("games", "is_added"), [((65, 0, 35), True), ((64, 2, 34), True), ((64, 1, 35), False), ((90, 0, 0), False)]
)
def test_the_default_rate_is_65_percent_of_100_games_with_draws_as_half_wins(league_run, monkeypatch, games, is_added):
    league = league_run[0].league
    monkeypatch.setattr(league, "_settings", Snapshots(of="main", size=2))
    monkeypatch.setattr(league, "_recent", [np.array(games)])
    assert league._is_beaten() is is_added


def test_snapshots_are_added_by_win_rate_and_the_weakest_leaves():
    """The four environments end games after 10, 20, ... steps: 1, 2, 1 and 2 games in iterations of 16 steps."""
    algo = config_of(training=PPO_SIZES, add_when_win_rate=0.01, min_games=6, replace="weakest").build_algo()
    assert [algo.train()["league"]["num_snapshots"] for _ in range(4)] == [1, 2, 2, 3]
    games = algo.league.games()
    player, opponents = games.players.index("snapshot_2"), [0, 1]
    points = games.wins[player, opponents] + 0.5 * games.draws[player, opponents]
    weakest = np.argmax((points + 0.5) / (games.num_games[player, opponents] + 1))
    assert [own.is_active for own in algo.league.table()] == [weakest != 0, weakest != 1, True]
    algo.stop()


def test_games_are_those_of_snapshots_and_the_policy(league_run, monkeypatch):
    """A period's games belong to the snapshot that ended it, and the running period's to the policy."""
    league = league_run[0].league
    monkeypatch.setattr(league, "_num_added", 2)
    monkeypatch.setattr(league, "_games", {1: {0: np.array([3, 1, 2])}, 2: {0: np.array([4, 0, 1])}})
    games = league.games()
    assert games.players == ("snapshot_0", "snapshot_1", "main")
    assert games.wins.tolist() == [[0, 2, 1], [3, 0, 0], [4, 0, 0]]
    assert games.draws.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_changes_of_opponents_compile_nothing(league_run):
    """Snapshots that are added, leave a full stack and are drawn again, and training after it."""
    algo, *_ = league_run
    compiled = []

    def note(name, *args, **kwargs):
        if "backend_compile" in name:
            compiled.append(name)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        names = [algo.league.add() for _ in range(3)]
        algo.train()
        algo.train()
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    assert names == ["snapshot_1", "snapshot_2", "snapshot_3"] and not compiled
    assert [own.is_active for own in algo.league.table()] == [False, False, True, True]
    with pytest.raises(KeyError, match=r"The league stores no snapshot 'snapshot_0'.*'snapshot_2', 'snapshot_3'"):
        algo.league.weights("snapshot_0")


def test_a_resumed_league_continues_bit_for_bit(tmp_path):
    """Covers games with turns, LSTMs, statistics of connectors, and a new snapshot in each second iteration."""
    config = config_of(TicTacToe, model=LSTM, training=PPO_SIZES, every=2, draw="hard")
    config.env_runners(env_to_module_connector=lambda *args, **kwargs: MeanStdFilter())
    config.learners(num_cpus_per_learner=2)
    straight = config.build_algo()
    # A MeanStdFilter of 9 numbers has two counts, means and variances, on 2 devices with 2 snapshots.
    assert straight.memory_estimate()["opponents"]["columns"]["env_to_module"] == 2 * 2 * 2 * (8 + 9 * 4 + 9 * 4)
    # Rows of waiting agents are a part of the rollout: 16 steps of 8 heroes and 4 rivals.
    assert straight.memory_estimate()["rollout"]["columns"]["loss_mask"] == NUM_STEPS * (8 + 4)
    for _ in range(3):
        straight.train()
    path = straight.save_to_path(tmp_path)
    resumed = PPO.from_checkpoint(path, config=config)
    assert resumed.league.table() == straight.league.table()
    for algo in (straight, resumed):
        for _ in range(3):
            algo.train()
    assert resumed.league.table() == straight.league.table() and len(straight.league.table()) == 4
    assert resumed.league.games().to_dict() == straight.league.games().to_dict()
    assert_equal(weights(resumed), weights(straight))
    observation = np.array([1, 0, -1, 0, 0, 0, 0, 0, 0], np.float32)
    present, snapshot = straight.get_policy("main"), straight.league["snapshot_3"]
    assert_equal(snapshot.module.get_state(), straight.league.weights("snapshot_3"))
    # The last iteration added it: it acts as the policy does, with its statistics.
    assert_equal(*(policy.compute_single_action(observation) for policy in (present, snapshot)))
    for algo in (straight, resumed):
        algo.stop()


def test_restored_environments_without_the_league_keep_its_snapshots(league_run, tmp_path):
    """A partial restore has the stack: new snapshots continue its numbers, and games count from then."""
    algo, *_ = league_run
    algo.league.add()
    path = algo.save_to_path(tmp_path)
    other = config_of(training=PPO_SIZES).build_algo()
    other.train()
    other.restore_from_path(path, component="env_runner")
    snapshots = [own.snapshot for own in algo.league.table() if own.is_active]
    assert [own.snapshot for own in other.league.table() if own.is_active] == snapshots
    assert not any(own.games for own in other.league.table())
    for name in snapshots:
        assert_equal(other.league.weights(name), algo.league.weights(name))
    assert other.league.add() == f"snapshot_{len(algo.league.table())}"
    other.stop()


class Rock:
    """Player that counts its turns."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space, self.turns = observation_space, action_space, 0

    def initial_state(self, num_envs):
        return np.zeros(num_envs, int)

    def compute_actions(self, observations, state, **kwargs):
        self.turns += 1
        return np.zeros(len(state), int), state, {}

    def where_rows(self, acts, after, before):
        return before


def test_a_game_against_a_snapshot_is_recorded(league_run, tmp_path):
    """A rival is a snapshot by its name, or a player as in tournaments. Its return is minus that of the policy."""
    algo, *_ = league_run
    name = algo.league.add()
    by_name = algo.record(tmp_path / "a.gif", 2, against=name)
    assert by_name.lengths == (10, 10)
    assert all(own["hero"] == -own["rival"] for own in by_name.agent_returns)
    assert algo.record(tmp_path / "b.gif", 2, against=algo.league[name]).agent_returns == by_name.agent_returns
    policy = algo.get_policy("main")
    rock = Rock(policy.observation_space, policy.action_space)
    assert "hero: player2, rival: Rock" in algo.record(tmp_path / "c.gif", against=rock, seat="player2").note
    assert rock.turns == 10
    with pytest.raises(ValueError, match=rf"against='snapshot_99'\).*or one of the snapshots \[.*'{name}'\]"):
        algo.record(tmp_path / "d.gif", against="snapshot_99")
    with pytest.raises(TypeError, match="the rival must be the path of a checkpoint, a Policy, .* not 3"):
        algo.record(tmp_path / "d.gif", against=3)
    for seed in (-1, 2**40):
        with pytest.raises(ValueError, match=rf"record\(seed={seed}\): must be an integer from 0 to 2\*\*32 - 1"):
            algo.record(tmp_path / "d.gif", seed=seed)


def test_a_recorded_game_of_two_trained_policies_names_the_remedies(tmp_path):
    config = config_of(training=PPO_SIZES).multi_agent(
        policies={"main", "p1"},
        policies_to_train=["main", "p1"],
        policy_mapping_fn=lambda agent, episode, **kwargs: {"player1": "main", "player2": "p1"}[agent],
        opponents=None,
    )
    algo = config.build_algo()
    remedy = (
        r"multi_agent\(policies_to_train=\['(main|p1)'\]\), or run_tournament with algorithm.get_policy\('(main|p1)'\)"
    )
    with pytest.raises(ValueError, match=remedy):
        algo.record(tmp_path / "a.gif", against="random")
    algo.stop()


class Twice(MultiAgentObservationPreprocessor):
    """Each number twice."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        spaces = input_observation_space.spaces
        return DictSpace({agent: Box(-1.0, 1.0, (2 * own.shape[0],)) for agent, own in spaces.items()})

    def preprocess(self, observations, episode):
        return {agent: jnp.concatenate([own, own]) for agent, own in observations.items()}


@pytest.mark.parametrize("opponents", [None, Snapshots(of="main", size=2, add_when_win_rate=None)])
def test_players_of_games_see_preprocessed_observations(opponents):
    """In tournaments, on given and on drawn seats."""
    config = config_of(TicTacToe).multi_agent(opponents=opponents)
    config.env_runners(env_to_module_connector=lambda *args, **kwargs: Twice())
    table = GameTable.of("record()", config, 3, explore=True)
    for seats in (None, jnp.array([0, 1, 1])):
        first, second = itertools.islice(table.steps(None, None, jax.random.key(0), seats), 2)
        for obs in (first.obs, first.after.final_obs, second.obs):
            assert obs["hero"].shape == obs["rival"].shape == (3, 18)
            assert_equal(obs["hero"][:, :9], obs["hero"][:, 9:])
        if seats is not None:
            assert_equal(first.state.seat, seats)
    player = Rock(Box(-1.0, 1.0, (18,)), TicTacToe().action_spaces["player1"])
    assert run_tournament({"a": LoadedPlayer(player, config), "r": "random"}, games=2).num_games[0, 1] == 2
    assert player.turns


class Wrong(RockPaperScissors):
    """Its observations have another shape than their space."""

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return {agent: own[None] for agent, own in obs.items()}, state


def test_recorded_games_check_the_environment_unless_checks_are_disabled():
    with pytest.raises((TypeError, ValueError), match="observation"):
        GameTable.of("record()", config_of(Wrong), 1, explore=True)
    GameTable.of("record()", config_of(Wrong).environment(disable_env_checking=True), 1, explore=True)


@pytest.mark.parametrize("env", [Mine, f"{Mine.__module__}:Mine"], ids=["class", "name"])
def test_a_checkpoint_with_an_environment_of_yours_is_a_rival(tmp_path, monkeypatch, env):
    """In another process than its own: the algorithm, or the tournament, is given the class or its name."""
    algo = config_of(env, training=PPO_SIZES).build_algo()
    path = algo.save_to_path(tmp_path / "checkpoint")
    monkeypatch.setattr(Stored, "code_written_here", lambda self: {})
    with pytest.raises(ValueError, match="Mine"):
        run_tournament({"a": path, "r": "random"}, games=2)
    assert run_tournament({"a": path, "r": "random"}, env, games=2).num_games[0, 1] == 2
    assert "rival: checkpoint" in algo.record(tmp_path / "a.gif", against=path).note
    algo.stop()


def test_a_checkpoint_with_other_environments_is_refused(league_run, tmp_path):
    path = league_run[0].save_to_path(tmp_path)
    other = config_of(training=PPO_SIZES).env_runners(num_envs_per_env_runner=16, rollout_fragment_length=8)
    with pytest.raises(
        ValueError, match=r"has 8 environments on each of 1 device.*Use num_envs_per_env_runner=8 and 1"
    ):
        PPO.from_checkpoint(path, config=other)


def test_runs_continue_with_snapshots_and_without(league_run, tmp_path):
    """The agents have other names then: environments start new episodes, and weights and counts of steps continue."""
    algo, *_ = league_run
    plain = config_of(training=PPO_SIZES)
    plain.multi_agent(opponents=None, policy_mapping_fn=lambda agent_id, episode, **kwargs: "main")
    without = PPO.from_checkpoint(algo.save_to_path(tmp_path / "league"), config=plain)
    assert without.league is None
    assert_equal(weights(without), weights(algo))
    result = without.train()
    sampled = {agent: NUM_ENVS * NUM_STEPS for agent in ("player1", "player2")}
    assert result["env_runners"]["num_agent_steps_sampled"] == sampled
    again = PPO.from_checkpoint(without.save_to_path(tmp_path / "plain"), config=config_of(training=PPO_SIZES))
    assert [own.snapshot for own in again.league.table()] == ["snapshot_0"]
    assert_equal(again.league.weights("snapshot_0"), weights(without))
    # No game has ended yet in which they took part.
    assert np.isnan(
        list(again.driver.episode_statistics().mean_returns(again.driver.module_map)["agent"].values())
    ).all()
    for own in (without, again):
        own.stop()


def test_league_changes_take_no_snapshots_and_repeated_calls_repeat_them(monkeypatch):
    """Samples the last of three calls again, from the state before it and from the snapshot of the start."""
    monkeypatch.setattr(copies, "LARGEST_SHARE", float("inf"))
    copied, copy = [], copies._copied
    monkeypatch.setattr(copies, "_copied", lambda state: copied.append(1) or copy(state))
    algo = config_of(training=PPO_SIZES, every=1).build_algo()
    driver = algo.driver
    algo.train()
    algo.train()
    before = jax.tree.map(jnp.copy, (driver.learner.state, driver.shards.state))
    algo.train()
    assert len(copied) == 2, "one to compile, one before the first call"
    settings = driver.learner.placed_settings()
    assert_equal(*(driver.sampled_again(settings, own)["main"]["obs"] for own in (None, before)))
    algo.stop()


def test_a_league_continues_from_the_last_snapshot_after_a_failed_call(monkeypatch):
    monkeypatch.setattr(copies, "LARGEST_SHARE", float("inf"))
    fails = []

    def draw(records, key):
        for state in fails:
            for leaf in jax.tree.leaves(state()):
                leaf.delete()
            raise RuntimeError("out of memory")
        return len(records) - 1

    algo = config_of(training=PPO_SIZES, every=1, draw=draw).build_algo()

    def trained():
        for _ in range(2):
            algo.train()
        return algo.league.games().to_dict(), weights(algo)

    first_time = trained()
    fails.append(lambda: algo.driver.shards.state)
    with pytest.raises(RuntimeError, match=r"The run continues from its last snapshot"):
        algo.train()
    fails.clear()
    assert [own.games for own in algo.league.table()] == [0]
    again = trained()
    assert again[0] == first_time[0]
    assert_equal(again[1], first_time[1])
    algo.stop()


class Highest(MultiAgentJaxEnv):
    """Three players choose one of two numbers in each of 4 turns; all who choose 1 lose a point, the others lose three:
    every return is negative."""

    def __init__(self, config=None):
        super().__init__(config)
        self.possible_agents = ("a", "b", "c")
        self.observation_spaces = {agent: Box(0.0, 4.0, (1,), np.float32) for agent in self.possible_agents}
        self.action_spaces = {agent: Discrete(2) for agent in self.possible_agents}

    def reset_env(self, key, params):
        return dict.fromkeys(self.possible_agents, jnp.zeros(1)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        obs = dict.fromkeys(self.possible_agents, jnp.float32(state + 1)[None])
        rewards = {agent: 2.0 * action[agent] - 3.0 for agent in self.possible_agents}
        return obs, state + 1, rewards, {"__all__": state + 1 >= 4}, {"__all__": False}, {}


def test_one_hero_plays_against_two_rivals_that_share_a_snapshot():
    """Trains on 16 steps of 8 heroes and 8 rivals of self-play; 4 environments end 4 games each."""
    algo = config_of(Highest, training=PPO_SIZES).build_algo()
    result = algo.train()
    assert result["learners"]["main"]["num_module_steps_trained"] == 2 * NUM_STEPS * (8 + 2 * 4)
    assert set(result["env_runners"]["agent_episode_returns_mean"]) == {"hero", "rival_1", "rival_2"}
    (record,) = algo.league.table()
    assert record.games == 4 * 4 and record.wins and record.losses, "returns of the players are compared"
    algo.stop()


@pytest.mark.parametrize("config", [IMPALAConfig, APPOConfig, PQNConfig])
def test_other_algorithms_train_against_snapshots(config):
    sizes = {"minibatch_size": 32, "num_epochs": 1} if config is PQNConfig else {}
    algo = config_of(TicTacToe, config, training=sizes, every=1, draw=first).build_algo()
    result = [algo.train() for _ in range(3)][-1]
    assert result["league"]["num_snapshots"] == 4
    # In each step of a game one player acts: half of the heroes' steps, and all of self-play's.
    passes = 2 if config is APPOConfig else 1
    trained = result["learners"]["main"]["num_module_steps_trained"]
    assert passes * NUM_STEPS * (4 + 1) < trained < passes * NUM_STEPS * (4 + 3)
    algo.stop()


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(ValueError, match=r"size=3, share_of_self_play=0.5.*8 environments.*num_envs_per_env_runner=8"):
        config_of(size=3).build_algo()
    # No number of environments up to 100 times the size gives whole shares: none is proposed.
    with pytest.raises(ValueError, match=r"\nUse another size or share_of_self_play"):
        Snapshots(of="main", size=3, share_of_self_play=0.12345).sizes(8, 1)


def test_a_draw_outside_of_the_stack_is_refused():
    def beyond(records, key):
        return len(records)

    with pytest.raises(ValueError, match=r"draw=beyond\) returned the index 1, but the league has 1 snap"):
        config_of(draw=beyond, training=PPO_SIZES).build_algo()
