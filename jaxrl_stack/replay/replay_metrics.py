"""Metrics of a replay buffer, under RLlib's names."""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

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
"""Metric of added or evicted episodes or steps -> field of `Counts`."""
_STORED = {names.NUM_EPISODES_STORED, names.NUM_ENV_STEPS_STORED}
"""Metrics that are logged only for the environment, not for agents and modules."""
_NO_LIFETIME = {names.NUM_EPISODES_PER_SAMPLE, names.NUM_RESAMPLES}


class Scope(NamedTuple):
    """Selects the steps that a replay buffer's metrics count.

    The selected steps are env steps, steps of an agent, steps of a module, or several of these. The metrics of env
    steps, agent steps and module steps have different names.

    Attributes:
        of_env: Whether there are metrics of env steps.
        agent_id: Agent that has metrics of agent steps; None: no agent.
        module_id: Module that has metrics of module steps; None: no module.
    """

    of_env: bool = False
    agent_id: str | None = None
    module_id: str | None = None


SINGLE_AGENT = Scope(True, _AGENT, _MODULE)


class ReplayMetrics:
    """Metrics of a replay buffer, collected as counts.

    The counts are written to a metrics logger only when `log` or `reduce` is called, because logging would slow down
    every `sample` call.

    Args:
        window: Number of calls over which means are computed.
        counts: Counts of the buffer, which continue.
        scope: Owner of the counted steps; see `Scope`.
        logger: Logger for the metrics; None: a new one.
    """

    def __init__(self, window: int, counts: Counts, scope: Scope = SINGLE_AGENT, logger: MetricsLogger | None = None):
        self._window, self._scope = window, scope
        self._logger = MetricsLogger() if logger is None else logger
        self._sums: collections.Counter[str] = collections.Counter()
        self._means: dict[str, collections.deque[float]] = {}
        self._counts, self._seen = counts, dataclasses.asdict(counts)

    def added(self, *, num_episodes_stored: int, num_steps_stored: int) -> None:
        """Adds the present numbers of episodes and steps in the replay buffer to the buffer's metrics.

        The numbers are added as values of moving means. Called after episodes or blocks were added to the buffer.
        """
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
        """Adds the counts of one call of a sampling method to the metrics of the replay buffer.

        Args:
            num_steps: Number of steps in the sample.
            num_unique_steps: Number of different steps among the drawn items.
            num_unique_episodes: Number of different episodes among the drawn items.
            num_resamples: Number of drawn items that did not fit and were drawn again.
            n_step: Mean length of the n-step windows; None without windows.
        """
        self._sums[names.NUM_ENV_STEPS_SAMPLED] += num_steps
        self._sums[names.NUM_ENV_STEPS_PER_SAMPLE] += num_unique_steps
        self._sums[names.NUM_EPISODES_PER_SAMPLE] += num_unique_episodes
        self._sums[names.NUM_RESAMPLES] += num_resamples
        self._mean(names.ENV_STEP_UTILIZATION, num_unique_steps / num_steps)
        if n_step is not None:
            self._mean(names.ACTUAL_N_STEP, n_step)

    def reduce(self) -> dict[str, Any]:
        """Returns the metrics since the previous call, for `MetricsLogger.aggregate`."""
        self.log()
        return self._logger.reduce()

    def log(self) -> None:
        """Writes the replay buffer's counts since the previous `log` call to the metrics logger."""
        log = self._logger.log_value
        if names.NUM_EPISODES_STORED in self._means:
            before, self._seen = self._seen, dataclasses.asdict(self._counts)
            self._sums.update({name: self._seen[field] - before[field] for name, field in _ADDED.items()})
        for name, number in self._sums.items():
            for key in _keys(name, self._scope):
                log(key, number, reduce="sum")
            if name not in _NO_LIFETIME:
                for key in _keys(name, self._scope, "_lifetime"):
                    log(key, number, reduce="lifetime_sum")
        for name, numbers in self._means.items():
            scope = Scope(self._scope.of_env) if name in _STORED else self._scope
            for key in _keys(name, scope):
                for number in numbers:
                    log(key, number, reduce="mean", window=self._window)
        self._sums.clear()
        self._means.clear()

    def _mean(self, name: str, number: float) -> None:
        if name not in self._means:
            self._means[name] = collections.deque(maxlen=self._window)
        self._means[name].append(number)


def _keys(name: str, scope: Scope, suffix: str = "") -> list[str | tuple[str, str]]:
    """Returns the names under which the metric `name` is logged, one for each kind of steps that `scope` selects.

    The name is a string for env steps, and a tuple ``(string, id)`` for the steps of an agent or of a module.
    """
    num = "num_" if name.startswith("num_") else ""
    rest = f"{name.removeprefix('num_').replace('env_', '')}{suffix}"
    keys: list[str | tuple[str, str]] = [f"{name}{suffix}"] if scope.of_env else []
    if scope.agent_id is not None:
        keys.append((f"{num}agent_{rest}", scope.agent_id))
    if scope.module_id is not None:
        keys.append((f"{num}module_{rest}", scope.module_id))
    return keys
