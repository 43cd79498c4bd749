"""Games of PettingZoo and OpenSpiel beside their own steps. `.ci/suites` installs them and runs this."""

from __future__ import annotations

import warnings

import numpy as np
import pyspiel
import pytest

from jaxrl_stack.env.utils import try_import_open_spiel, try_import_pyspiel
from jaxrl_stack.env.wrappers.open_spiel import OpenSpielEnv
from jaxrl_stack.env.wrappers.pettingzoo_env import ParallelPettingZooEnv, PettingZooEnv
from jaxrl_stack.examples.envs.classes.multi_agent.pettingzoo_chess import MultiAgentChess
from jaxrl_stack.examples.envs.classes.multi_agent.pettingzoo_connect4 import MultiAgentConnect4
from jaxrl_stack.utils.pre_checks.env import check_multiagent_environments

with warnings.catch_warnings():
    # Of making environments without its registry, which RLlib's examples do.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.classic import connect_four_v3, rps_v2, tictactoe_v3

NUM_STEPS = 1000
pytestmark = pytest.mark.filterwarnings("ignore")


def same(mine, other):
    for key in mine if isinstance(mine, dict) else ():
        np.testing.assert_array_equal(mine[key], other[key])
    if not isinstance(mine, dict):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("game", [connect_four_v3, tictactoe_v3])
def test_a_thousand_random_turns_are_those_of_pettingzoo(game):
    rng, own, env = np.random.default_rng(0), game.env(), PettingZooEnv(game.env())
    ends = 0
    over = True
    for t in range(NUM_STEPS):
        if over:
            own.reset(seed=t)
            obs, _ = env.reset(seed=t)
        agent = own.agent_selection
        assert list(obs) == [agent]
        same(obs[agent], own.observe(agent))
        action = int(rng.choice(np.flatnonzero(obs[agent]["action_mask"])))
        own.step(action)
        obs, rewards, terminateds, truncateds, _ = env.step({agent: action})
        over = terminateds["__all__"]
        ends += over
        seen = {}
        while own.agents:
            seen[own.agent_selection] = own.last()
            if not any(seen[own.agent_selection][2:4]):
                break
            own.step(None)
        assert list(obs) == list(seen) and over == (not own.agents) and not truncateds["__all__"]
        for agent, last in seen.items():
            same(obs[agent], last[0])
            assert (rewards[agent], terminateds[agent], truncateds[agent]) == last[1:4]
    assert ends > 20


def test_a_thousand_random_steps_are_those_of_a_parallel_environment():
    rng, own, env = np.random.default_rng(0), rps_v2.parallel_env(), ParallelPettingZooEnv(rps_v2.parallel_env())
    over, ends = True, 0
    for t in range(NUM_STEPS):
        if over:
            first, _ = own.reset(seed=t)
            assert env.reset(seed=t)[0] == first
        actions = {agent: int(rng.integers(3)) for agent in own.agents}
        theirs, mine = own.step(actions), env.step(actions)
        assert mine[:2] == theirs[:2]
        over = mine[3].pop("__all__")
        ends += over
        assert over == (not own.agents) and mine[3] == theirs[3] and not mine[2]["__all__"]
    assert ends > 20


@pytest.mark.parametrize("game", ["connect_four", "kuhn_poker", "leduc_poker", "matrix_rps"])
def test_a_thousand_random_moves_are_those_of_open_spiel(game):
    rng, own, env = np.random.default_rng(0), pyspiel.load_game(game), OpenSpielEnv(pyspiel.load_game(game))
    over, total = True, np.zeros(own.num_players())
    for t in range(NUM_STEPS):
        if over:
            obs, _ = env.reset(seed=t)
            state, total = own.new_initial_state(), np.zeros(own.num_players())
        # Of chance, the history tells.
        for action in env.state.history()[len(state.history()) :]:
            assert state.is_chance_node()
            state.apply_action(action)
        actions = {player: int(rng.choice(state.legal_actions(player))) for player in obs}
        for player in obs:
            np.testing.assert_array_equal(obs[player], np.float32(state.observation_tensor(player)))
        if state.is_simultaneous_node():
            state.apply_actions([actions[player] for player in range(own.num_players())])
        else:
            state.apply_action(actions[state.current_player()])
        obs, rewards, terminateds, *_ = env.step(actions)
        total += [rewards[player] for player in range(own.num_players())]
        over = terminateds["__all__"]
        assert over == env.state.is_terminal()
        if over:
            for action in env.state.history()[len(state.history()) :]:
                state.apply_action(action)
            np.testing.assert_array_equal(total, state.returns())


def test_an_illegal_action_is_replaced_and_costs_a_tenth():
    env = OpenSpielEnv(pyspiel.load_game("tic_tac_toe"))
    env.reset(seed=0)
    env.step({0: 4})
    _, rewards, *_ = env.step({1: 4})
    assert rewards == {0: 0.0, 1: -0.1} and len(env.state.history()) == 2 and env.state.history()[1] != 4


def test_modules_of_open_spiel_are_found():
    assert try_import_pyspiel(error=True) is pyspiel and try_import_open_spiel(error=True) is not None


@pytest.mark.parametrize("env_class", [MultiAgentChess, MultiAgentConnect4])
def test_classes_of_board_games(env_class):
    env = env_class()
    obs, _ = env.reset(seed=3)
    (agent,) = obs
    assert agent == "player_0" and obs[agent]["action_mask"].any()
    legal = int(np.flatnonzero(obs[agent]["action_mask"])[0])
    assert list(env.step({agent: legal})[0]) == ["player_1"]


def test_environments_of_pettingzoo_pass_the_check():
    check_multiagent_environments(ParallelPettingZooEnv(rps_v2.parallel_env()))
