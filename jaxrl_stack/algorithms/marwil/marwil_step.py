"""MARWIL's training step: minibatches of recorded steps, with value targets computed from whole episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import batched_state
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.core.rl_module.row_independence import handles_resets
from jaxrl_stack.core.rl_module.sequences import step_by_step
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.ops import returns

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.training_step import TrainingStep

ROWS_PER_PASS = 8192
"""Number of rows that the value function processes at a time."""
STEPS_PER_COLUMN = 1024
"""Number of consecutive rows in each sequence that a recurrent value function processes; sequences run in parallel."""


class MARWILStep(OfflineStep):
    """MARWIL's training step on recorded data. At the start of every pass over the data, it computes new value targets
    (GAE) with the current value function.

    At the end of a cut or truncated piece of an episode, the value of its last observation is the bootstrap value.
    """

    prepared_from = (Columns.OBS, Columns.REWARDS, Columns.TERMINATEDS)

    @classmethod
    def for_config(cls, config: AlgorithmConfig) -> type[TrainingStep]:
        """Returns the class of the training step: this class (`MARWILStep`), or `OfflineStep` (behaviour cloning) if
        ``beta`` is 0 for all modules.

        `OfflineStep` reads no rewards and computes no values.
        """
        betas = [config.get_config_for_module(mid).beta for mid in config._policy_ids()]
        return cls if any(betas) else OfflineStep

    def prepare(
        self, module: RLModule, columns: dict[str, Any], is_final: jax.Array, values: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        of_rows = _values_of_sequences if module.is_stateful() else _values_of_rows
        targets = returns.value_targets_of_rows(
            rewards=returns.clipped_rewards(columns[Columns.REWARDS].astype(jnp.float32), self.config.clip_rewards),
            terminateds=columns[Columns.TERMINATEDS],
            values=of_rows(module, columns[Columns.OBS], is_final),
            is_final=is_final,
            gamma=values["gamma"],
            lambda_=values["lambda_"],
        )
        return {Columns.VALUE_TARGETS: targets}


def _values_of_rows(module: Any, obs: Any, is_final: jax.Array) -> jax.Array:
    """Computes the state values float32 ``[R]`` of R rows of observations ``[R, ...]``."""
    definition, *state = ModuleDefinition.of(module)

    def some(rows: Any) -> jax.Array:
        # Anew in every loop: a module that draws random numbers counts them.
        return definition.merge(*state).compute_values({Columns.OBS: rows}).astype(jnp.float32)

    num_rows = len(is_final)
    size = min(ROWS_PER_PASS, num_rows)
    whole = num_rows // size * size
    split = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), obs)
    values = jax.lax.map(some, split).reshape(-1)
    if whole == num_rows:
        return values
    return jnp.concatenate([values, some(jax.tree.map(lambda x: x[whole:], obs))])


def _values_of_sequences(module: Any, obs: Any, is_final: jax.Array) -> jax.Array:
    """Computes the state values float32 ``[R]`` of R rows of recorded observations, with a recurrent module.

    The recurrent state is reset at the start of every recorded piece of an episode (a whole episode or a part).

    Rows are processed in sequences of `STEPS_PER_COLUMN` steps, which start from the initial state. The state is
    therefore also reset in the few pieces that continue in the next sequence.
    """
    num_rows = len(is_final)
    length = min(STEPS_PER_COLUMN, num_rows)
    number = -(-num_rows // length)

    def in_columns(x: jax.Array) -> jax.Array:
        filled = jnp.concatenate([x, jnp.zeros((number * length - num_rows, *x.shape[1:]), x.dtype)])
        return filled.reshape(number, length, *x.shape[1:])

    starts = jnp.concatenate([jnp.ones(1, bool), is_final[:-1]])
    batch = {
        Columns.OBS: jax.tree.map(in_columns, obs),
        Columns.RESETS: in_columns(starts),
        Columns.STATE_IN: batched_state(module.get_initial_state(), number),
    }
    if not handles_resets(module):
        batch, _ = step_by_step(module, batch)
    return module.compute_values(batch).astype(jnp.float32).reshape(-1)[:num_rows]
