"""What a replay buffer counts, under RLlib's names."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from jaxrl_stack.replay.episode_records import Counts

((_AGENT, _MODULE),) = single_agent().module_of.items()

_ADDED = {
    names.NUM_EPISODES_ADDED: "added_episodes",
    names.NUM_EPISODES_EVICTED: "evicted_episodes",
    names.NUM_ENV_STEPS_ADDED: "added_timesteps",
    names.NUM_ENV_STEPS_EVICTED: "evicted_timesteps",
}
"""What adding and evicting count, and where it is in `Counts`."""
_STORED = {names.NUM_EPISODES_STORED, names.NUM_ENV_STEPS_STORED}
"""They are not told apart by agent and module."""
_NO_LIFETIME = {names.NUM_EPISODES_PER_SAMPLE, names.NUM_RESAMPLES}


class ReplayMetrics:
    """Takes counts by the call and logs them when they are asked for: a call of `sample` takes less time than logging.

    Args:
        window: Calls over which means are taken.
        counts: Those of the buffer, from which is counted on.
    """

    def __init__(self, window: int, counts: Counts):
        self._window = window
        self._logger = MetricsLogger()
        self._sums: collections.Counter[str] = collections.Counter()
        self._means: dict[str, collections.deque[float]] = {}
        self._counts, self._seen = counts, dataclasses.asdict(counts)

    def added(self, *, num_episodes_stored: int, num_steps_stored: int) -> None:
        """Note what there is now."""
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
        if names.NUM_EPISODES_STORED in self._means:
            before, self._seen = self._seen, dataclasses.asdict(self._counts)
            self._sums.update({name: self._seen[field] - before[field] for name, field in _ADDED.items()})
        for name, number in self._sums.items():
            for key in _keys(name):
                log(key, number, reduce="sum")
            if name not in _NO_LIFETIME:
                for key in _keys(name, "_lifetime"):
                    log(key, number, reduce="lifetime_sum")
        for name, numbers in self._means.items():
            for key in [name] if name in _STORED else _keys(name):
                for number in numbers:
                    log(key, number, reduce="mean", window=self._window)
        self._sums.clear()
        self._means.clear()
        return self._logger.reduce()

    def _mean(self, name: str, number: float) -> None:
        if name not in self._means:
            self._means[name] = collections.deque(maxlen=self._window)
        self._means[name].append(number)


def _keys(name: str, suffix: str = "") -> list[str | tuple[str, str]]:
    """The names of a number for environments, agents and modules: with one agent and one module it is the same."""
    num = "num_" if name.startswith("num_") else ""
    rest = f"{name.removeprefix('num_').replace('env_', '')}{suffix}"
    return [f"{name}{suffix}", (f"{num}agent_{rest}", _AGENT), (f"{num}module_{rest}", _MODULE)]
