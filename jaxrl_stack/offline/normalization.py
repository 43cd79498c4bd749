"""Normalisation of recorded steps with the statistics of the whole data set."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module.mean_std_filter import MeanStdFilter, RecordedMeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.ops import running_statistics
from jaxrl_stack.utils.action_masks import ACTION_MASK

if TYPE_CHECKING:
    import gymnasium as gym

_ROWS = 8192
"""Rows that a call of a compiled function takes: data sets of any length are one program."""
_EPSILON = 1e-8


class DataNormalization:
    """Normalises observations to mean 0 and standard deviation 1, and divides rewards by the standard deviation of
    returns.

    The statistics are of the whole data set. Those of observations are the state of a connector,
    `RecordedMeanStdFilter`, through which acting passes its observations as training does the recorded ones. Rewards
    are divided by ``sqrt(variance + 1e-8)`` of ``G_t = gamma * G_{t-1} + r_t`` over all steps, as `NormalizeRewards`
    does; G starts at 0 with every piece of an episode.

    Args:
        parts: All recorded steps, some at a time; read once.
        spaces: The module's observation and action space; structures and shapes count.
        observations: Whether observations are normalised.
        gamma: Discount of the returns; None leaves rewards as they are.

    Attributes:
        reward_scale: Divisor of rewards, above 0; 1.0 if they stay as they are.

    Raises:
        ValueError: If observations are bytes.
    """

    def __init__(
        self, parts: Iterable[Steps], spaces: tuple[gym.Space, gym.Space], *, observations: bool, gamma: float | None
    ):
        self._filter = None
        counting = MeanStdFilter(*spaces)
        counting.mask_keys = (ACTION_MASK,)
        state, returns, before = counting.init(1), running_statistics.init(()), jnp.zeros(())
        count = jax.jit(lambda state, rows: counting.apply(state, rows, ConnectorContext())[0])
        for steps in parts:
            if observations:
                _check_numbers(steps.columns[Columns.OBS])
                for rows in _batches(steps):
                    state = count(state, rows)
            if gamma is not None:
                returns, before = _count_returns(returns, before, steps, gamma)
        self.reward_scale = 1.0 if gamma is None else float(jnp.sqrt(returns.variance + _EPSILON))
        if observations:
            self._filter = RecordedMeanStdFilter(*spaces)
            self._filter.state = counting.merge(state, None)

    @functools.cached_property
    def _normalize(self) -> Any:
        """Jitted function that normalises a batch: ``(connector state, batch) -> batch``."""
        frozen = self._filter
        assert frozen is not None
        return jax.jit(lambda state, rows: frozen.apply(state, rows, ConnectorContext())[1])

    def __getstate__(self) -> dict[str, Any]:
        # Compiled functions stay in their process.
        return {name: value for name, value in vars(self).items() if name != "_normalize"}

    def env_to_module_state(self) -> dict[str, Any]:
        """Returns the state of the connector that normalises observations, ``{connector name: state}``; {} if
        observations are not normalised.
        """
        return {} if self._filter is None else {type(self._filter).__name__: self._filter.get_state()}

    def apply(self, steps: Steps) -> Steps:
        """Normalises observations and rewards of recorded steps, as the config asks; normalised columns are float32."""
        steps = self.apply_to_observations(steps)
        if self.reward_scale == 1.0 or Columns.REWARDS not in steps.columns:
            return steps
        rewards = (steps.columns[Columns.REWARDS] / self.reward_scale).astype(np.float32)
        return dataclasses.replace(steps, columns={**steps.columns, Columns.REWARDS: rewards})

    def apply_to_observations(self, steps: Steps) -> Steps:
        """Normalises the observations of recorded steps; rewards do not change."""
        columns = dict(steps.columns)
        if self._filter is not None:
            made = [
                jax.device_get(self._normalize(self._filter.state, rows))[DEFAULT_MODULE_ID][Columns.OBS]
                for rows in _batches(steps)
            ]
            columns[Columns.OBS] = jax.tree.map(lambda *xs: np.concatenate(xs)[: steps.num_rows], *made)
        return dataclasses.replace(steps, columns=columns)


def _check_numbers(obs: Any) -> None:
    if any(leaf.dtype == np.uint8 for leaf in jax.tree.leaves(obs)):
        raise ValueError(
            "offline_data(normalize_observations=True) does not support uint8 images, which convolutional nets scale "
            "by themselves. Leave normalize_observations out."
        )


def _batches(steps: Steps) -> Iterator[dict[str, Any]]:
    """Yields the observations of recorded steps in batches of `_ROWS` rows, as input for connectors.

    A batch is ``{module_id: {column: [_ROWS, ...]}}``. The last batch is padded; the column `loss_mask` is False for
    padding rows.
    """
    for start in range(0, steps.num_rows, _ROWS):
        number = min(_ROWS, steps.num_rows - start)
        obs = jax.tree.map(lambda x: _filled(x[start : start + number]), steps.columns[Columns.OBS])  # noqa: B023
        yield {DEFAULT_MODULE_ID: {Columns.OBS: obs, Columns.LOSS_MASK: np.arange(_ROWS) < number}}


def _count_returns(
    statistics: running_statistics.RunningStatistics, before: jax.Array, steps: Steps, gamma: float
) -> tuple[running_statistics.RunningStatistics, jax.Array]:
    """Updates running statistics with the discounted running return of every recorded step.

    Returns the statistics, and the running return after the last row, with which the next call continues.
    """
    rewards, is_final = steps.columns[Columns.REWARDS], steps.is_final
    for start in range(0, steps.num_rows, _ROWS):
        part = slice(start, start + _ROWS)
        before, statistics = _count_some_returns(
            statistics, before, _filled(rewards[part]), _filled(is_final[part], True), gamma
        )
    return statistics, before


@jax.jit
def _count_some_returns(
    statistics: running_statistics.RunningStatistics,
    before: jax.Array,
    rewards: jax.Array,
    is_final: jax.Array,
    gamma: jax.Array,
) -> tuple[jax.Array, running_statistics.RunningStatistics]:
    def step(before: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, ends = row
        now = jnp.where(ends, 0.0, gamma * before + reward)
        return now, now

    before, returns = jax.lax.scan(step, before, (rewards.astype(jnp.float32), is_final))
    return before, running_statistics.update(statistics, returns, ~is_final)


def _filled(x: np.ndarray, value: Any = 0) -> np.ndarray:
    """Appends rows filled with `value` to an array, until the array has `_ROWS` rows."""
    return np.concatenate([x, np.full((_ROWS - len(x), *x.shape[1:]), value, x.dtype)]) if len(x) < _ROWS else x
