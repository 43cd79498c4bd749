"""Sequences drawn from a replay buffer, prepared for one pass through recurrent networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import split_action_mask
from jaxrl_stack.ops.masks import expand
from jaxrl_stack.ops.sequences import at_steps

StateAfter = Callable[[dict[str, Any]], Any]


def states_of(encoder: Any) -> StateAfter:
    """Returns a function `columns -> state` that computes an encoder's recurrent state after the last step of a batch's
    columns.

    The function removes action masks from the observations before it applies the encoder.
    """
    return lambda columns: encoder(split_action_mask(columns)[0])[Columns.STATE_OUT]


class Timeline:
    """Sequences from a replay buffer, each extended by the observation after its last valid step.

    One pass of a recurrent network over an extended sequence evaluates observations and next observations.

    Burn-in, the steps before the valid ones, only updates the recurrent state of each network, online and target,
    without a gradient (Kapturowski et al., 2019, "Recurrent Experience Replay in Distributed Reinforcement Learning",
    section 3).

    Args:
        batch: `OBS` and `NEXT_OBS` `[N, J, ...]`, `STATE_IN` `[N, ...]` before their first step, and `LOSS_MASK` bool
            `[N, J]`: False in burn-in, of which each sequence has up to `burn_in` steps, and in the padding at its end.
            Without `LOSS_MASK` all steps are valid. No episode ends within a sequence.
        burn_in: Maximum number of steps of burn-in.

    Attributes:
        obs: `[N, M + 1, ...]`, ``M = J - burn_in``: the observations from the first valid step on, and the one after
            the last step.
    """

    def __init__(self, batch: dict[str, Any], burn_in: int = 0):
        length = jax.tree.leaves(batch[Columns.OBS])[0].shape[1]
        mask = batch.get(Columns.LOSS_MASK)
        # Without a mask, sequences of any length are whole, and have no burn-in.
        self.burn_in = burn_in = 0 if mask is None else burn_in
        self._state_in = batch[Columns.STATE_IN]
        # The index after the last valid step of each sequence.
        end = jnp.full((1,), length) if mask is None else length - jnp.argmax(mask[:, ::-1], axis=1)
        is_inside = jnp.arange(length + 1) < end[:, None]

        def of_leaf(obs: jax.Array, new: jax.Array) -> jax.Array:
            obs = jnp.concatenate([obs, obs[:, -1:]], axis=1)
            return jnp.where(expand(is_inside, obs), obs, jnp.concatenate([obs[:, :1], new], axis=1))

        obs = jax.tree.map(of_leaf, batch[Columns.OBS], batch[Columns.NEXT_OBS])
        self.obs = obs
        if burn_in:
            assert mask is not None
            self._num_before = jnp.argmax(mask, axis=1)
            before = {name: batch[name] for name in (Columns.ACTIONS,) if name in batch} | {Columns.OBS: obs}
            self._before = jax.tree.map(lambda x: x[:, :burn_in], before)
            self.obs = self._from_first(obs, length - burn_in + 1)
            steps = jnp.arange(length) - self._num_before[:, None]
            self._steps = jnp.clip(steps, 0, length - burn_in - 1)

    def _from_first(self, values: Any, number: int) -> Any:
        """Returns `number` consecutive steps of each sequence in `values`, beginning with the first valid step (after
        burn-in).

        `values` ``[N, K, ...]`` are N sequences of K steps. If a sequence has fewer steps left, its last step is
        repeated.
        """
        first = self._num_before[:, None] if self.burn_in else jnp.zeros((1, 1), jnp.int32)
        leaves = jax.tree.leaves(values)
        steps = jnp.minimum(first + jnp.arange(number), leaves[0].shape[1] - 1)
        return at_steps(values, jnp.broadcast_to(steps, (leaves[0].shape[0], number)))

    def steps(self, values: Any) -> Any:
        """Selects M + 1 steps of each sequence in columns ``[N, J, ...]``, beginning with the first valid step (after
        burn-in).

        The columns contain N sequences of J steps; ``M = J - burn_in``. The result ``[N, M + 1, ...]`` has one entry
        for each observation in `self.obs`. If a sequence has fewer steps left, its last step is repeated.
        """
        return self._from_first(values, jax.tree.leaves(self.obs)[0].shape[1])

    def columns(self, state_after: StateAfter) -> dict[str, Any]:
        """Returns the inputs of a recurrent network for one pass over N sequences.

        `OBS` `[N, M + 1, ...]` are the observations of M steps, beginning with the first valid step (after burn-in),
        and the observation after the last of these steps. `STATE_IN` is the network's recurrent state before the first
        valid step.

        Args:
            state_after: Function from `{OBS: [N, 1, ...], STATE_IN: state}`, with `ACTIONS` if the batch has them, to
                the network's state after that step.
        """
        return {Columns.OBS: self.obs, Columns.STATE_IN: self.state_in(state_after, self._state_in)}

    def state_in(self, state_after: StateAfter, state: Any) -> Any:
        """Returns a network's recurrent state before the first valid step, computed from the burn-in steps.

        Args:
            state_after: See `columns`.
            state: State before the first step of each sequence, `[N, ...]`.
        """
        if not self.burn_in:
            return state

        def step(state: Any, inputs: tuple[jax.Array, Any]) -> tuple[Any, None]:
            time, columns = inputs
            new = state_after({**jax.tree.map(lambda x: x[:, None], columns), Columns.STATE_IN: state})
            goes_on = time < self._num_before
            return jax.tree.map(lambda old, new: jnp.where(expand(goes_on, old), new, old), state, new), None

        before = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), self._before)
        state, _ = jax.lax.scan(step, state, (jnp.arange(self.burn_in), before))
        return jax.lax.stop_gradient(state)

    def now(self, outputs: Any) -> Any:
        """Converts a network's outputs for `self.obs` to one output per sampled step: the output for the step's
        observation.

        `self.obs` contains N sequences after burn-in, and the outputs are ``[N, M + 1, ...]``. The result is
        ``[N, J, ...]`` for J sampled steps, ``J = M + burn_in``. Outputs for masked steps (burn-in and padding) are
        meaningless.
        """
        return self._placed(jax.tree.map(lambda x: x[:, :-1], outputs))

    def after(self, outputs: Any) -> Any:
        """Converts a network's outputs for `self.obs` to one output per sampled step: the output for the step's next
        observation.

        `self.obs` contains N sequences after burn-in, and the outputs are ``[N, M + 1, ...]``. The result is
        ``[N, J, ...]`` for J sampled steps, ``J = M + burn_in``. Outputs for masked steps (burn-in and padding) are
        meaningless.
        """
        return self._placed(jax.tree.map(lambda x: x[:, 1:], outputs))

    def _placed(self, outputs: Any) -> Any:
        return at_steps(outputs, self._steps) if self.burn_in else outputs
