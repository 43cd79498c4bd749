"""Connector that divides rewards by the standard deviation of returns."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops import running_statistics


class NormalizeRewards(ConnectorV2):
    """Divides REWARDS in the train batch by the running standard deviation of discounted returns.

    The return of a step is the discounted sum of the episode's rewards up to and including this step.

    ``r / sqrt(variance + epsilon)``, where the variance is taken of ``G_t = gamma * G_{t-1} + r_t`` over all steps that
    were learned from, these included; ``G`` starts at 0 with every episode and is the column of `ReturnsSoFar`, which
    the env-to-module pipeline needs, plus the step's reward. The scale is one for a whole block. Episodes, callbacks
    and metrics keep the environment's rewards. Rows with LOSS_MASK False, or whose return is NaN or infinite, are not
    counted.

    The statistics are part of the learner's state: the devices and learners that make an update together count all of
    their rows, each once, and have the same bits.

    Source: the reward scaling of OpenAI baselines' `VecNormalize` and gymnasium's `NormalizeReward`; Engstrom et al.,
    2020, "Implementation Matters in Deep Policy Gradients", section 3.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        clip_by_value: Bound of the absolute value of what comes out; None switches clipping off.
        epsilon: Added to the variance; above 0.
        update_stats: False freezes the statistics.
        **kwargs: See ConnectorV2. With ``multi_agent`` each module has separate statistics.

    Raises:
        ValueError: ``clip_by_value`` or ``epsilon`` is not positive; or, when a batch comes, it lacks RETURNS_SO_FAR.
    """

    needs_sampled_steps = True

    def __init__(
        self,
        *args: Any,
        clip_by_value: float | None = 10.0,
        epsilon: float = 1e-8,
        update_stats: bool = True,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        is_positive = clip_by_value is None or clip_by_value > 0.0
        self._check_argument("clip_by_value", clip_by_value, is_positive, "give a positive number, or None for off")
        self._check_argument("epsilon", epsilon, epsilon > 0.0, "give a positive number")
        self.clip_by_value = clip_by_value
        self.epsilon = epsilon
        self.update_stats = update_stats

    def init(self, num_envs: int) -> Any:
        """Returns empty running statistics of discounted returns, ``{module_id: statistics}``."""
        return {key: running_statistics.init(()) for key in self._observation_spaces()}

    @property
    def takes_frames(self) -> bool:
        return type(self) is NormalizeRewards

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Updates the running statistics of returns, then divides REWARDS by the running standard deviation of returns.

        The update adds the returns of the sampled steps to the statistics. If ``update_stats`` or
        ``ctx.update_statistics`` is False, the statistics do not change. REWARDS are float32 ``[T, B]``. The results
        are clipped to ±``clip_by_value`` (None: no clipping).
        """
        state, batch = dict(state), dict(batch)
        for key, module_id in self._state_keys(batch):
            columns = batch[module_id]
            if Columns.RETURNS_SO_FAR not in columns:
                raise ValueError(
                    f"{type(self).__name__} needs the column {Columns.RETURNS_SO_FAR!r}, but module {module_id!r} "
                    f"has only the columns {sorted(columns)}. Add ReturnsSoFar() to the env-to-module pipeline: "
                    "env_runners(env_to_module_connector=lambda env, spaces, device: ReturnsSoFar())."
                )
            rewards = jnp.asarray(columns[Columns.REWARDS])
            if self.update_stats and ctx.update_statistics:
                mask = ctx.loss_mask(module_id, columns)
                seen = running_statistics.on_finite_rows(
                    running_statistics.of_batch,
                    jnp.reshape(columns[Columns.RETURNS_SO_FAR] + rewards, (-1,)),
                    None if mask is None else jnp.reshape(mask, (-1,)),
                )
                known = jax.tree.map(jnp.asarray, state[key])  # NumPy warns where a count's low word overflows
                state[key] = running_statistics.merge_over_axis(known, seen, ctx.axis_name)
            batch[module_id] = {**columns, Columns.REWARDS: self._normalized(rewards, state[key])}
        return state, batch

    def _normalized(self, rewards: jax.Array, statistics: running_statistics.RunningStatistics) -> jax.Array:
        variance = jnp.where(jnp.any(statistics.count), statistics.variance, 1.0)
        scaled = rewards / jnp.sqrt(variance + self.epsilon)
        return scaled if self.clip_by_value is None else jnp.clip(scaled, -self.clip_by_value, self.clip_by_value)
