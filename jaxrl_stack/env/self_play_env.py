"""Wrapper for games of several players that names agents by roles, "hero" and "rival", instead of seats (player
positions).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.env.jax_env import JaxEnv
from jaxrl_stack.env.jax_env_wrapper import JaxEnvWrapper
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.utils.multi_agent import ALL
from jaxrl_stack.utils.spaces import difference
from jaxrl_stack.utils.streams import named

if TYPE_CHECKING:
    from jaxrl_stack.env.env_context import EnvContext
    from jaxrl_stack.env.registry import ResolvedEnv

HERO, RIVAL = "hero", "rival"
"""Roles of two players."""
SEAT_STREAM = "seat"
"""Random stream of the seats, under the key of a reset."""


class SelfPlayState(NamedTuple):
    """State of a `SelfPlayEnv`.

    Attributes:
        env: State of the game.
        seat: int32 scalar, seat of the hero: an index of the game's `possible_agents`.
    """

    env: Any
    seat: jax.Array


class SelfPlayEnv(JaxEnvWrapper[MultiAgentJaxEnv], MultiAgentJaxEnv):
    """Wrapper that names a game's agents by roles: "hero" and "rival".

    A game of more than two players has several rivals. The game's own agents are called seats (player positions). Every
    reset draws the hero's seat uniformly.

    If the hero has seat ``s`` of ``N``, rival ``i`` has seat ``(s + i) % N``. The game gets the keys of resets and
    steps unchanged.

    Args:
        env: The game. All of its agents need equal spaces.

    Attributes:
        unwrapped: The game.
        possible_agents: ``("hero", "rival")``; with N > 2 players ``("hero", "rival_1", ..., "rival_<N-1>")``.

    Raises:
        ValueError: If the game has one agent, or agents with different spaces.
    """

    def __init__(self, env: JaxEnv):
        if not isinstance(env, MultiAgentJaxEnv):
            raise ValueError(
                f"SelfPlayEnv({env.name}): the environment is no game of several agents. Pass a MultiAgentJaxEnv."
            )
        seats = env.possible_agents
        if len(seats) < 2:
            raise ValueError(
                f"SelfPlayEnv({env.name}): possible_agents={seats} has one agent, but self-play needs at least two. "
                "Pass a game of two or more agents."
            )
        first = seats[0]
        for kind in ("observation_spaces", "action_spaces"):
            of_seats = getattr(env, kind)
            for seat in seats[1:]:
                if difference(of_seats[seat], of_seats[first]) is not None or of_seats[seat] != of_seats[first]:
                    raise ValueError(
                        f"SelfPlayEnv({env.name}): {kind} of the game's agents {first!r} and {seat!r} are "
                        f"{of_seats[first]} and {of_seats[seat]}. Agent {HERO!r} plays as each of the game's agents, "
                        f"so all need equal spaces: set {kind} = dict.fromkeys(possible_agents, space)."
                    )
        super().__init__(env)
        rivals = (RIVAL,) if len(seats) == 2 else tuple(f"{RIVAL}_{i}" for i in range(1, len(seats)))
        self.possible_agents = (HERO, *rivals)
        self.observation_spaces = dict.fromkeys(self.possible_agents, env.observation_spaces[first])
        self.action_spaces = dict.fromkeys(self.possible_agents, env.action_spaces[first])
        self.has_own_bounds, self._casts_observations = env.has_own_bounds, env._casts_observations

    def render(self, state: SelfPlayState) -> Any:
        return self.unwrapped.render(state.env)

    def acts(self, state: SelfPlayState) -> Mapping[Any, Any]:
        return self._by_role(self.unwrapped.who_acts(state.env), state.seat)

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        seat = jax.random.randint(named(key, SEAT_STREAM), (), 0, len(self.possible_agents), jnp.int32)
        return self.reset_seated(key, params, seat)

    def reset_seated(self, key: jax.Array, params: Any, seat: jax.Array) -> tuple[Any, SelfPlayState]:
        """Starts an episode like `reset`, but with the given seat (player position) of the hero.

        Args:
            key, params: See `reset`.
            seat: int32 scalar, the hero's seat.
        """
        obs, state = self.unwrapped.reset(key, params)
        return self._by_role(obs, seat), SelfPlayState(state, seat)

    def step_env(self, key: jax.Array, state: SelfPlayState, action: Mapping[Any, Any], params: Any) -> Any:
        outcome = self.unwrapped._whole_step(key, state.env, self._by_seat(action, state.seat), params)
        obs, env_state, rewards, terminated, truncated, infos, terminateds, truncateds, _ = outcome
        obs = self.unwrapped._conformed(obs)
        obs, rewards, terminateds, truncateds = (
            self._by_role(own, state.seat) for own in (obs, rewards, terminateds, truncateds)
        )
        return (
            obs,
            SelfPlayState(env_state, state.seat),
            rewards,
            {**terminateds, ALL: terminated},
            {**truncateds, ALL: truncated},
            infos,
        )

    def _by_role(self, of_seats: Mapping[Any, Any], seat: jax.Array) -> dict[Any, Any]:
        """Converts values by seat (the game's agent ids) to values by role (hero, rivals)."""
        roles, seats = self.possible_agents, self.unwrapped.possible_agents
        return _rotated([of_seats[own] for own in seats], roles, seat)

    def _by_seat(self, of_roles: Mapping[Any, Any], seat: jax.Array) -> dict[Any, Any]:
        """Converts values by role (hero, rivals) to values by seat (the game's agent ids); inverts `_by_role`."""
        roles, seats = self.possible_agents, self.unwrapped.possible_agents
        return _rotated([of_roles[role] for role in roles], seats, len(seats) - seat)


def with_seats(resolved: ResolvedEnv) -> ResolvedEnv:
    """Wraps a JAX game in a `SelfPlayEnv`, whose agents are the roles hero and rival.

    Returns a `ResolvedEnv` that creates the wrapped game. Returns `resolved` unchanged if its environment is no JAX
    environment.
    """
    if not resolved.is_jax:
        return resolved

    def create(context: EnvContext) -> SelfPlayEnv:
        env = resolved.creator(context)
        return env if isinstance(env, SelfPlayEnv) else SelfPlayEnv(env)

    return dataclasses.replace(resolved, creator=create)


def _rotated(values: list[Any], names: tuple[Any, ...], by: jax.Array) -> dict[Any, Any]:
    """Assigns N values to N names after a cyclic shift by `by`: returns ``{names[i]: values[(i + by) % N]}``. Converts
    values between roles and seats.
    """
    index = (jnp.arange(len(values)) + by) % len(values)
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(own) for own in x])[index], *values)
    return {name: jax.tree.map(lambda x, i=i: x[i], stacked) for i, name in enumerate(names)}
