"""Adapter for pgx's board and card games, with pgx's ids, such as "pgx/2048"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import pgx
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env import drawings
from jaxrl_stack.env.suites.suite_env import StepOutcome, SuiteEnv, masked_space

PLAYER = 0
"""The agent's number; pgx draws for every game whose turn is first."""


class PgxEnv(SuiteEnv):
    """Game of pgx for one learning agent; the step also makes the moves of the other players.

    Observations are ``{"action_mask": ..., "observations": ...}``. An illegal action ends the game with pgx's penalty.

    Settings, in games of several players: `opponent`, "random" (legal moves, all as likely) or a function
    ``(key, observation, legal_action_mask) -> action`` of JAX arrays, which chooses the actions of all
    other players.
    """

    prefix = "pgx"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return list(pgx.available_envs())

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        self.env: Any = pgx.make(cast(Any, env_id))
        self.refuse_unknown(config, ["opponent"] if self.env.num_players > 1 else [])
        self.opponent = config.get("opponent", "random")
        if self.opponent == "random":
            self.opponent = _random_move
        elif not callable(self.opponent):
            raise ValueError(
                f"env_config['opponent']={self.opponent!r}: {self.name} takes 'random' or a function "
                "(key, observation, legal_action_mask) -> action."
            )
        first = jax.eval_shape(self.env.init, jax.eval_shape(lambda: jax.random.PRNGKey(0)))
        self._seen = observation_box(first.observation)
        self.observation_space = masked_space(self._seen, first.legal_action_mask.shape)
        self.action_space = Discrete(first.legal_action_mask.shape[0])

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        key, others = jax.random.split(key)
        state, _ = self._others_move(self.env.init(jax.random.key_data(key)), others)
        return observed(state), state

    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> StepOutcome:
        key, others = jax.random.split(key)
        state = self.env.step(state, action, jax.random.key_data(key))
        state, rewards = self._others_move(state, others)
        return observed(state), state, rewards[PLAYER], state.terminated, state.truncated, {}

    def render(self, state: Any) -> np.ndarray:
        """Draws the board as the agent observes it, with one colour per kind of object."""
        return drawings.observation(np.asarray(state.observation), self._seen)

    def _others_move(self, state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
        """Plays the other players' moves until it is the agent's turn or the game ends.

        Returns the new state, and the rewards of all players ``[players]``: the rewards in `state` plus the rewards of
        these moves.
        """
        if self.env.num_players == 1:
            return state, state.rewards

        def move(carry: tuple[Any, jax.Array, jax.Array]) -> tuple[Any, jax.Array, jax.Array]:
            state, rewards, key = carry
            key, choice, chance = jax.random.split(key, 3)
            action = self.opponent(choice, state.observation, state.legal_action_mask)
            state = self.env.step(state, action, jax.random.key_data(chance))
            return state, rewards + state.rewards, key

        def others_turn(carry: tuple[Any, jax.Array, jax.Array]) -> jax.Array:
            state = carry[0]
            return (state.current_player != PLAYER) & ~state.terminated & ~state.truncated

        state, rewards, _ = jax.lax.while_loop(others_turn, move, (state, state.rewards, key))
        return state, rewards


def observation_box(observation: Any) -> Box:
    """Creates the Box space of a pgx observation array; the mask of legal actions is not part of it."""
    low, high = (0, 1) if observation.dtype == np.bool_ else (-np.inf, np.inf)
    return Box(low, high, observation.shape, np.dtype(observation.dtype).type)


def observed(state: Any) -> dict[str, Any]:
    """Returns the observation and action mask of the player whose turn it is, as a dict with RLlib's keys
    "observations" and "action_mask".
    """
    return {"action_mask": state.legal_action_mask, "observations": state.observation}


def _random_move(key: jax.Array, observation: Any, legal_action_mask: jax.Array) -> jax.Array:
    return jax.random.categorical(key, jnp.where(legal_action_mask, 0.0, -jnp.inf))


__all__ = ["PgxEnv"]
