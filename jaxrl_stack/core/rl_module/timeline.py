"""Sequences from replay as a recurrent network runs over them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.ops.sequences import at_steps


class Timeline:
    """The observations of sequences and those after them in one row each, so that one pass of a network says what it
    makes of a step's observation and of the next one.

    Burn-in, the steps before those that count, only brings the recurrent state up to date, without a gradient: every
    network's own, the online ones' and the target networks' (Kapturowski et al., 2019, "Recurrent Experience Replay in
    Distributed Reinforcement Learning", section 3).

    Args:
        batch: `OBS` and `NEXT_OBS` `[N, J, ...]`, `STATE_IN` `[N, ...]` before their first step, and `LOSS_MASK` bool
            `[N, J]`: False in burn-in, of which each sequence has up to `burn_in` steps, and in the padding after it.
            No episode ends within a sequence.
        burn_in: Steps of burn-in, at most.

    Attributes:
        obs: `[N, M + 1, ...]`, ``M = J - burn_in``: the observations from the first step on that counts, and the one
            after the last.
    """

    def __init__(self, batch: dict[str, Any], burn_in: int = 0):
        mask = batch[Columns.LOSS_MASK]
        length = mask.shape[1]
        self.burn_in = burn_in
        self._state_in = batch[Columns.STATE_IN]
        # Steps that count are the last ones of their sequence.
        end = length - jnp.argmax(mask[:, ::-1], axis=1)
        is_inside = jnp.arange(length + 1) < end[:, None]

        def of_leaf(obs: jax.Array, new: jax.Array) -> jax.Array:
            obs = jnp.concatenate([obs, obs[:, -1:]], axis=1)
            return jnp.where(expand(is_inside, obs), obs, jnp.concatenate([obs[:, :1], new], axis=1))

        obs = jax.tree.map(of_leaf, batch[Columns.OBS], batch[Columns.NEXT_OBS])
        self.obs = obs
        if burn_in:
            self._num_before = jnp.argmax(mask, axis=1)
            self._before = jax.tree.map(lambda x: x[:, :burn_in], obs)
            self.obs = self.from_first(obs, length - burn_in + 1)
            steps = jnp.arange(length) - self._num_before[:, None]
            self._steps = jnp.clip(steps, 0, length - burn_in - 1)

    def from_first(self, values: Any, number: int) -> Any:
        """Of `[N, J or more, ...]`, `number` steps from the first one on that counts."""
        if not self.burn_in:
            return jax.tree.map(lambda x: x[:, :number], values)
        last = jax.tree.leaves(values)[0].shape[1] - 1
        return at_steps(values, jnp.minimum(self._num_before[:, None] + jnp.arange(number), last))

    def columns(self, state_after: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        """What a network takes: `OBS` `[N, M + 1, ...]` and `STATE_IN`, after its burn-in.

        Args:
            state_after: `{OBS: [N, 1, ...], STATE_IN: state}` -> the network's state after that step.
        """
        return {Columns.OBS: self.obs, Columns.STATE_IN: self._state_in_after_burn_in(state_after)}

    def _state_in_after_burn_in(self, state_after: Callable[[dict[str, Any]], Any]) -> Any:
        if not self.burn_in:
            return self._state_in

        def step(state: Any, inputs: tuple[jax.Array, Any]) -> tuple[Any, None]:
            time, obs = inputs
            new = state_after({Columns.OBS: jax.tree.map(lambda x: x[:, None], obs), Columns.STATE_IN: state})
            goes_on = time < self._num_before
            return jax.tree.map(lambda old, new: jnp.where(expand(goes_on, old), new, old), state, new), None

        before = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), self._before)
        state, _ = jax.lax.scan(step, self._state_in, (jnp.arange(self.burn_in), before))
        return jax.lax.stop_gradient(state)

    def now(self, outputs: Any) -> Any:
        """Of `[N, M + 1, ...]`, what belongs to the steps' own observations, `[N, J, ...]`; meaningless where the mask
        is False."""
        return self._placed(jax.tree.map(lambda x: x[:, :-1], outputs))

    def after(self, outputs: Any) -> Any:
        """Likewise, what belongs to the observations after the steps."""
        return self._placed(jax.tree.map(lambda x: x[:, 1:], outputs))

    def _placed(self, outputs: Any) -> Any:
        return at_steps(outputs, self._steps) if self.burn_in else outputs
