"""Environments of several agents: their rules, and that those for the device and those for the host are the same."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from envs import multi_agent_host
from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.env.vector.sync_host_multi_agent_env import SyncHostMultiAgentEnv
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe

CART_POLES = {"num_agents": 3, "max_episode_steps": 15}


def set_poles(env, state):
    for copy, pole in zip(env.envs, state.poles, strict=True):
        copy.unwrapped.state = np.array(pole, np.float64)


def set_board(env, state):
    env.board, env.timestep = np.array(state.board), int(state.t)
    env.current_player = env.agents[int(state.player)]


def set_visits(env, state):
    env.t = int(state.t)
    env.visits = {a: (int(c), int(g)) for a, c, g in zip(env.agents, state.arrivals, state.departures, strict=True)}


TWINS: dict[str, Any] = {
    "cart_poles": (
        multi_agent.MultiAgentCartPole({"num_agents": 3, "max_steps": 15}),
        lambda: MultiAgentCartPole(CART_POLES),
        set_poles,
    ),
    "rock_paper_scissors": (multi_agent.RockPaperScissors(), RockPaperScissors, lambda env, state: None),
    "tic_tac_toe": (multi_agent.TicTacToe(), TicTacToe, set_board),
    "come_and_go": (
        multi_agent.ComeAndGo({"num_agents": 4}),
        lambda: multi_agent_host.ComeAndGo({"num_agents": 4}),
        set_visits,
    ),
}
TERMINATED, TRUNCATED = (True, False), (False, True)
ENDS = {
    "cart_poles": {TERMINATED, TRUNCATED},
    "rock_paper_scissors": {TERMINATED},
    "tic_tac_toe": {TERMINATED, TRUNCATED},
    "come_and_go": {TERMINATED},
}
HOST_ENVS = {name: twin[1] for name, twin in TWINS.items()}


def observing(*flags):
    return {agent for own in flags for agent, flag in own.items() if flag}


def assert_same_obs(obs, seen, expected):
    assert set(seen) == expected
    for agent in expected:
        np.testing.assert_allclose(obs[agent], seen[agent], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", TWINS)
def test_device_and_host_do_the_same_step_by_step(name):
    env, make_host, set_state = TWINS[name]
    # Keys are split as `step` does, whose resets are left out.
    reset, step = jax.jit(env.reset_env), jax.jit(lambda *args: env._stepped(env._step(*args)))
    rng, ends = np.random.default_rng(0), set()
    for episode in range(6):
        _, state = reset(jax.random.key(episode), env.params)
        host = make_host()
        host.reset(seed=0)
        set_state(host, state)
        acts, there, over, t = env.who_acts(state), set(), False, 0
        while not over:
            # In every other episode all do the same all the time: a board that is never full, poles that all fall.
            sizes = {agent: 1 if episode % 2 else space.n for agent, space in env.action_spaces.items()}
            actions = {agent: int(rng.integers(size)) for agent, size in sizes.items()}
            result = step(jax.random.key(t), state, actions, env.params)
            state = result.state
            seen, rewards, terminateds, truncateds, _ = host.step({a: actions[a] for a, flag in acts.items() if flag})
            goes_on = result.acts if not result.terminated | result.truncated else {}
            there |= {agent for agent, flag in acts.items() if flag}
            ended = [{a: flags[a] for a in there} for flags in (result.terminateds, result.truncateds)]
            assert_same_obs(result.obs, seen, observing(goes_on, *ended))
            for agent in env.possible_agents:
                assert result.reward[agent] == rewards.get(agent, 0.0), (agent, t)
                if agent in there:
                    for ours, flags in ((result.terminateds, terminateds), (result.truncateds, truncateds)):
                        assert ours[agent] == bool(flags.get(agent) or flags.get("__all__"))
            assert (result.terminated, result.truncated) == (terminateds["__all__"], truncateds["__all__"])
            assert jax.tree.map(bool, env.who_acts(state)) == jax.tree.map(bool, result.acts)
            there -= {agent for flags in ended for agent, flag in flags.items() if flag}
            acts, over, t = result.acts, bool(result.terminated | result.truncated), t + 1
        assert env.everybody_acts or not any(acts.values())
        ends.add((bool(result.terminated), bool(result.truncated)))
    assert ends == ENDS[name]


@pytest.mark.parametrize("name", TWINS)
def test_what_is_observed_is_in_the_spaces_and_typed_the_same_in_every_step(name):
    env, make_host, _ = TWINS[name]
    host = make_host()
    assert list(host.possible_agents) == list(env.possible_agents)
    for agent in env.possible_agents:
        assert host.get_observation_space(agent) == env.observation_spaces[agent]
        assert host.get_action_space(agent) == env.action_spaces[agent]
    check_jax_env(env)


@pytest.mark.parametrize("name", HOST_ENVS)
def test_host_environments_keep_the_contract_over_whole_episodes(name):
    vector, rng = SyncHostMultiAgentEnv([HOST_ENVS[name]] * 2, name), np.random.default_rng(1)
    spaces = TWINS[name][0].action_spaces
    obs, _ = vector.reset(seed=3)
    episodes = [MultiAgentEpisode() for _ in obs]
    for episode, first in zip(episodes, obs, strict=True):
        episode.add_env_reset(observations=first)
    ended = 0
    for _ in range(60):
        actions = [
            {agent: int(rng.integers(spaces[agent].n)) for agent in sorted(episode.get_agents_to_act())}
            for episode in episodes
        ]
        step = vector.step(actions)
        for i, episode in enumerate(episodes):
            seen: Any = step.obs[i] if step.final_obs[i] is None else step.final_obs[i]
            flags = {"terminateds": step.terminateds[i], "truncateds": step.truncateds[i]}
            episode.add_env_step(seen, actions[i], step.rewards[i], step.infos[i], **flags)
            episode.validate()
            assert episode.is_done == step.resets[i]
            if episode.is_done:
                ended += 1
                episodes[i] = MultiAgentEpisode()
                episodes[i].add_env_reset(observations=step.obs[i])
    assert ended >= 2
    vector.close()


def test_rock_paper_scissors_is_fair_and_has_two_more_moves_on_request():
    env: Any = RockPaperScissors({"sheldon_cooper_mode": True})
    usual: Any = RockPaperScissors().get_action_space("player1")
    assert env.get_action_space("player1").n == 5 and usual.n == 3
    wins = {}
    for first in range(5):
        for second in range(5):
            env.reset()
            obs, rewards, terminateds, _, _ = env.step({"player1": first, "player2": second})
            assert obs == {"player1": second, "player2": first} and sum(rewards.values()) == 0.0
            assert not terminateds["__all__"]
            wins[first, second] = rewards["player1"]
    assert all(wins[a, b] == -wins[b, a] and (wins[a, b] == 0.0) == (a == b) for a, b in wins)
    assert wins[env.PAPER, env.ROCK] == wins[env.LIZARD, env.SPOCK] == wins[env.SPOCK, env.SCISSORS] == 1.0
    env.reset()
    ends = [env.step({"player1": 0, "player2": 0})[2]["__all__"] for _ in range(10)]
    assert ends == [False] * 9 + [True]


def play(moves):
    env = TicTacToe()
    env.reset(seed=0)
    outcomes = []
    for field in moves:
        player = env.current_player
        outcomes.append((player, env.step({player: field})))
    return outcomes


def test_tic_tac_toe_ends_with_a_row_a_full_board_or_after_30_turns():
    (player, (obs, rewards, terminateds, _, _)) = play([0, 3, 1, 4, 2])[-1]
    loser = {"player1": "player2", "player2": "player1"}[player]
    assert rewards == {player: 1.0, loser: -1.0} and terminateds["__all__"]
    assert obs[player].tolist() == [1, 1, 1, -1, -1, 0, 0, 0, 0] and (obs[loser] == -obs[player]).all()
    _, (obs, rewards, terminateds, _, _) = play([4, 0, 8, 2, 6, 3, 5, 7, 1])[-1]
    assert rewards == {"player1": 0.0, "player2": 0.0} and terminateds["__all__"] and set(obs) == set(rewards)
    outcomes = play([0] * 30)
    player, (obs, rewards, _, _, _) = outcomes[1]
    assert rewards == {player: -0.5} and set(obs) == {outcomes[2][0]} != {player}
    assert [one[1][3]["__all__"] for one in outcomes] == [False] * 29 + [True]
    assert set(outcomes[-1][1][0]) == {"player1", "player2"}


def test_who_begins_is_drawn_from_the_seed():
    env = TicTacToe()
    firsts = [next(iter(env.reset(seed=seed)[0])) for seed in range(12)]
    assert set(firsts) == {"player1", "player2"}
    assert firsts == [next(iter(env.reset(seed=seed)[0])) for seed in range(12)]
