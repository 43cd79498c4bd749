"""Roles of self-play: `SelfPlayEnv` seats a hero and its rivals, and changes nothing else of a game."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.jax_env import GymnaxEnv, check_jax_env
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.self_play_env import SelfPlayEnv, SelfPlayState
from jaxrl_stack.examples.envs.multi_agent import TicTacToe


class Numbers(MultiAgentJaxEnv):
    """Players choose a number; seat ``s`` observes ``[s, its last number]`` and gets its number times ``10**s``.

    The last seat is cut off in the second step, and the game ends with the third.
    """

    def __init__(self, config=None):
        super().__init__()
        self.possible_agents = tuple(range((config or {}).get("num_players", 3)))
        self.observation_spaces = {seat: Box(0.0, 10.0, (2,), np.float32) for seat in self.possible_agents}
        self.action_spaces = {seat: Discrete(5) for seat in self.possible_agents}

    def reset_env(self, key, params):
        return {seat: jnp.array([seat, 0.0]) for seat in self.possible_agents}, jnp.int32(0)

    def step_env(self, key, state, action, params):
        numbers = {seat: jnp.float32(action[seat]) for seat in self.possible_agents}
        obs = {seat: jnp.stack([jnp.float32(seat), number]) for seat, number in numbers.items()}
        rewards = {seat: 10.0**seat * number for seat, number in numbers.items()}
        last = self.possible_agents[-1]
        return obs, state + 1, rewards, {"__all__": state + 1 >= 3}, {last: state + 1 == 2, "__all__": False}, {}


class Uneven(Numbers):
    """Two players with different numbers of choices."""

    def __init__(self, config=None):
        super().__init__({"num_players": 2})
        self.action_spaces = {0: Discrete(5), 1: Discrete(4)}


@pytest.mark.parametrize("num_players", [2, 3])
@pytest.mark.parametrize("seat", [0, 1])
def test_a_role_sees_acts_and_is_paid_at_its_seat(num_players, seat):
    env = SelfPlayEnv(Numbers({"num_players": num_players}))
    roles = ("hero", "rival") if num_players == 2 else ("hero", "rival_1", "rival_2")
    assert env.possible_agents == roles
    state = SelfPlayState(jnp.int32(1), jnp.int32(seat))
    actions = {role: jnp.int32(i + 1) for i, role in enumerate(roles)}
    step = jax.device_get(env.step(jax.random.key(0), state, actions, None))
    for i, role in enumerate(roles):
        own = (seat + i) % num_players
        np.testing.assert_array_equal(step.obs[role], [own, i + 1])
        assert step.reward[role] == 10.0**own * (i + 1)
        assert step.truncateds[role] == (own == num_players - 1) and not step.terminateds[role]
    assert step.state.seat == seat and step.state.env == 2


def test_seats_are_drawn_uniformly_for_each_game_and_leave_the_game_s_draws_alone():
    game = TicTacToe()
    keys = jax.random.split(jax.random.key(0), 400)
    _, state = jax.vmap(SelfPlayEnv(game).reset, (0, None))(keys, None)
    assert 160 < int(state.seat.sum()) < 240
    _, expected = jax.vmap(game.reset, (0, None))(keys, None)
    np.testing.assert_array_equal(state.env.player, expected.player)
    # Who begins and who sits where are independent.
    assert 60 < int((state.seat == state.env.player).sum()) - 100 < 140


def test_players_that_take_turns_act_in_their_roles():
    env = SelfPlayEnv(TicTacToe())
    state = env.reset(jax.random.key(3), None)[1]
    for seat in (0, 1):
        for player in (0, 1):
            now = SelfPlayState(state.env._replace(player=jnp.int32(player)), jnp.int32(seat))
            acts = env.who_acts(now)
            assert (bool(acts["hero"]), bool(acts["rival"])) == (player == seat, player != seat)
    assert not env.everybody_acts


def test_the_contract_of_environments_is_kept():
    check_jax_env(SelfPlayEnv(Numbers()), num_steps=0)
    check_jax_env(SelfPlayEnv(TicTacToe()), num_steps=0)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (
            lambda: Uneven(),
            r"action_spaces of the game's agents 0 and 1 are Discrete\(5\) and Discrete\(4\).*equal spaces",
        ),
        (lambda: Numbers({"num_players": 1}), "has one agent"),
        (lambda: GymnaxEnv("CartPole-v1"), "is no game of several agents. Pass a MultiAgentJaxEnv"),
    ],
)
def test_games_without_equal_seats_are_refused(game, message):
    with pytest.raises(ValueError, match=message):
        SelfPlayEnv(game())
