"""What a replay buffer counts, under RLlib's names."""

from __future__ import annotations

import collections
from typing import Any

from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

# The ids that the layers above use where there is one agent; RLlib's.
_AGENT, _MODULE = "default_agent", "default_policy"

_PER_AGENT_AND_MODULE = {
    names.NUM_EPISODES_ADDED: (names.NUM_AGENT_EPISODES_ADDED, names.NUM_MODULE_EPISODES_ADDED),
    names.NUM_EPISODES_EVICTED: (names.NUM_AGENT_EPISODES_EVICTED, names.NUM_MODULE_EPISODES_EVICTED),
    names.NUM_ENV_STEPS_ADDED: (names.NUM_AGENT_STEPS_ADDED, names.NUM_MODULE_STEPS_ADDED),
    names.NUM_ENV_STEPS_EVICTED: (names.NUM_AGENT_STEPS_EVICTED, names.NUM_MODULE_STEPS_EVICTED),
    names.NUM_ENV_STEPS_SAMPLED: (names.NUM_AGENT_STEPS_SAMPLED, names.NUM_MODULE_STEPS_SAMPLED),
    names.NUM_ENV_STEPS_PER_SAMPLE: (names.NUM_AGENT_STEPS_PER_SAMPLE, names.NUM_MODULE_STEPS_PER_SAMPLE),
    names.NUM_EPISODES_PER_SAMPLE: (
        names.NUM_AGENT_EPISODES_PER_SAMPLE,
        names.NUM_MODULE_EPISODES_PER_SAMPLE,
    ),
    names.NUM_RESAMPLES: (names.NUM_AGENT_RESAMPLES, names.NUM_MODULE_RESAMPLES),
    names.ENV_STEP_UTILIZATION: (names.AGENT_STEP_UTILIZATION, names.MODULE_STEP_UTILIZATION),
    names.ACTUAL_N_STEP: (names.AGENT_ACTUAL_N_STEP, names.MODULE_ACTUAL_N_STEP),
}
"""With one agent and one module they have the same numbers as the environment."""
_NO_LIFETIME = {names.NUM_EPISODES_PER_SAMPLE, names.NUM_RESAMPLES}


class ReplayMetrics:
    """Takes counts by the call and logs them when they are asked for: a call of `sample` takes less time than logging.

    Args:
        window: Calls over which means are taken.
    """

    def __init__(self, window: int):
        self._window = window
        self._logger = MetricsLogger()
        self._sums: collections.Counter[str] = collections.Counter()
        self._means: dict[str, collections.deque[float]] = {}

    def added(
        self,
        *,
        num_episodes: int,
        num_steps: int,
        num_episodes_evicted: int,
        num_steps_evicted: int,
        num_episodes_stored: int,
        num_steps_stored: int,
    ) -> None:
        """Note what a call of `add` changed, and what there is behind it."""
        self._sums[names.NUM_EPISODES_ADDED] += num_episodes
        self._sums[names.NUM_EPISODES_EVICTED] += num_episodes_evicted
        self._sums[names.NUM_ENV_STEPS_ADDED] += num_steps
        self._sums[names.NUM_ENV_STEPS_EVICTED] += num_steps_evicted
        self._mean(names.NUM_EPISODES_STORED, num_episodes_stored)
        self._mean(names.NUM_ENV_STEPS_STORED, num_steps_stored)

    def sampled(
        self,
        *,
        num_steps: int,
        num_unique_steps: int,
        num_unique_episodes: int,
        num_resamples: int,
        n_step: float | None,
    ) -> None:
        """Note what a call of `sample` returned.

        Args:
            num_steps: Steps in it.
            num_unique_steps: Different ones among the items that were drawn.
            num_unique_episodes: Different episodes.
            num_resamples: Items that were drawn and did not fit.
            n_step: Mean length of the windows; None if there are none.
        """
        self._sums[names.NUM_ENV_STEPS_SAMPLED] += num_steps
        self._sums[names.NUM_ENV_STEPS_PER_SAMPLE] += num_unique_steps
        self._sums[names.NUM_EPISODES_PER_SAMPLE] += num_unique_episodes
        self._sums[names.NUM_RESAMPLES] += num_resamples
        self._mean(names.ENV_STEP_UTILIZATION, num_unique_steps / num_steps)
        if n_step is not None:
            self._mean(names.ACTUAL_N_STEP, n_step)

    def reduce(self) -> dict[str, Any]:
        """The metrics since the last time, for `MetricsLogger.aggregate`."""
        log = self._logger.log_value
        for name, number in self._sums.items():
            of_agent, of_module = _PER_AGENT_AND_MODULE[name]
            for key in (name, (of_agent, _AGENT), (of_module, _MODULE)):
                log(key, number, reduce="sum")
            if name not in _NO_LIFETIME:
                for key in (
                    f"{name}_lifetime",
                    (f"{of_agent}_lifetime", _AGENT),
                    (f"{of_module}_lifetime", _MODULE),
                ):
                    log(key, number, reduce="lifetime_sum")
        for name, numbers in self._means.items():
            keys: list[str | tuple[str, ...]] = [name]
            if name in _PER_AGENT_AND_MODULE:
                keys += zip(_PER_AGENT_AND_MODULE[name], (_AGENT, _MODULE), strict=True)
            for key in keys:
                for number in numbers:
                    log(key, number, reduce="mean", window=self._window)
        self._sums.clear()
        self._means.clear()
        return self._logger.reduce()

    def _mean(self, name: str, number: float) -> None:
        if name not in self._means:
            self._means[name] = collections.deque(maxlen=self._window)
        self._means[name].append(number)
