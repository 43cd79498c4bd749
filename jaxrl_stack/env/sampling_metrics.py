"""Step counts and episode metrics of an env runner."""

from __future__ import annotations

import collections
import copy
import math
import time
from collections.abc import Hashable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxrl_stack.acting.recording import NO_STEP_TIMES, EndedEpisodes, StepTimes
from jaxrl_stack.utils.metrics import CONNECTOR_PIPELINE_TIMER
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

COMPILED_PIPELINES = {
    name: {CONNECTOR_PIPELINE_TIMER: 0.0} for name in ("env_to_module_connector", "module_to_env_connector")
}
"""Results of pipelines without connectors in Python: their work is a part of `rlmodule_inference_timer`."""


class EndedEpisode(NamedTuple):
    """Return, length and duration of an ended episode.

    Attributes:
        env_index: Index of its environment.
        episode_return: Sum of unclipped rewards.
        length: Steps.
        duration: Seconds from its reset to its end.
        agent_returns: Returns by agent, for the agents that took part; {} with one agent.
        module_returns: Returns by module, summed over its agents.
    """

    env_index: int
    episode_return: float
    length: int
    duration: float
    agent_returns: Mapping[Any, float] = MappingProxyType({})
    module_returns: Mapping[str, float] = MappingProxyType({})


class SamplingMetrics:
    """Collects the env steps, ended episodes and durations of one env runner, and logs them as metrics.

    Args:
        logger: Logger that `report` writes to.
        window: Number of last episodes for means, minima and maxima.
        steps_per_own_step: Assumed number of env steps of all runners together per env step of this runner. With 0, as
            in evaluation, steps of this runner do not change `timesteps`.

    Attributes:
        agents: Ids of the agents if there are several; () with one agent.
        modules_vary: Whether an agent's module may differ between episodes: then counts by module do not follow from
            counts by agent, and are logged here, even if counts by agent are taken.
        agent_steps: Completed steps by agent that were neither taken nor logged yet; empty with one agent.
        module_steps: The same steps by module.
        num_env_steps: Env steps of this runner since the last `note_lifetime`.
        ended: Episodes that ended and were not taken or reported yet.
    """

    def __init__(self, logger: MetricsLogger, window: int, steps_per_own_step: int):
        self._logger = logger
        self._window = window
        self.steps_per_own_step = steps_per_own_step
        self.agents: tuple[Hashable, ...] = ()
        self.modules_vary = False
        self.reset()

    def reset(self) -> None:
        """Sets all counts of steps and episodes to zero, and clears the logged metrics."""
        self._logger.reset()
        self.num_env_steps = self._others_env_steps = self._num_reported = 0
        self.ended: list[EndedEpisode] = []
        self.agent_steps: collections.Counter[Any] = collections.Counter()
        self.module_steps: collections.Counter[str] = collections.Counter()
        self._step_times = NO_STEP_TIMES
        self._last_sample: float | None = None
        self._means: dict[str, tuple[float, int]] = {}

    def snapshot(self, *, with_logged: bool) -> tuple[Any, ...]:
        """Returns data that `roll_back` restores: the current number of env steps and the list of ended episodes.

        If `with_logged` is True, the data also contain a copy of the logged metrics.
        """
        logged = copy.deepcopy(self._logger.get_state()) if with_logged else None
        return self.num_env_steps, list(self.ended), logged

    def roll_back(self, snapshot: tuple[Any, ...]) -> None:
        """Restores the counts of steps and episodes from a `snapshot`, and the logged metrics if the snapshot contains
        them; collected durations do not change.
        """
        self.num_env_steps, ended, logged = snapshot
        self.ended = list(ended)
        if logged is not None:
            self._logger.set_state(copy.deepcopy(logged))

    # --------------------------------------------------------------------------------------------------- env steps

    @property
    def lifetime_env_steps(self) -> int:
        """Number of env steps that all runners have sampled: the number that the last `note_lifetime` call set, plus
        the env steps of this runner since then.
        """
        return self._others_env_steps + self.num_env_steps

    @property
    def timesteps(self) -> int:
        """Estimated number of env steps that all runners have sampled; schedules compute their values from this number.

        The estimate starts from the number that the last `note_lifetime` call set. Each later env step of this runner
        adds `steps_per_own_step`, the assumed number of env steps that all runners together sample in the same time.
        """
        return self._others_env_steps + self.num_env_steps * self.steps_per_own_step

    def note_lifetime(self, num_env_steps: int) -> None:
        """Sets the number of env steps that all runners have sampled so far. `lifetime_env_steps` and
        `timesteps` start from this number and count this runner's later steps.
        """
        self._others_env_steps = num_env_steps
        self._num_reported -= self.num_env_steps
        self.num_env_steps = 0

    def add_recording(self, num_env_steps: int, acting: float, step_times: StepTimes, running_steps: int) -> None:
        """Adds the results of one rollout of this runner's environments to the collected metrics.

        The results are the number of env steps, the durations of policy calls and vector steps, and the number of steps
        of the unfinished episodes.

        Args:
            num_env_steps: Number of env steps of the rollout.
            acting: Mean duration of the policy calls of the rollout, in seconds.
            step_times: Total duration, in seconds, and number of the vector steps of the rollout.
            running_steps: Number of steps of the unfinished episodes after the rollout, summed over all environments.
        """
        self.num_env_steps += num_env_steps
        self._step_times = self._step_times.plus(step_times)
        if step_times.num_steps:
            self.add_number("env_step_timer", step_times.seconds / step_times.num_steps)
        self.add_number("rlmodule_inference_timer", acting)
        # No connector changes the number of an episode's steps.
        self.add_number("env_to_module_sum_episodes_length_in", running_steps)
        self.add_number("env_to_module_sum_episodes_length_out", running_steps)

    # ------------------------------------------------------------------------------------------- means of numbers

    def time_sample(self, started: float) -> None:
        """Logs the duration of a runner's sampling call that began at `started` (``time.perf_counter()``), and the time
        between the previous sampling call and this one.
        """
        if self._last_sample is not None:
            self.add_number("time_between_sampling", started - self._last_sample)
        self._last_sample = time.perf_counter()
        self.add_number("sample", self._last_sample - started)

    def add_number(self, name: str, value: float) -> None:
        """Adds a number, such as a duration, to the mean that `log_means` logs under `name`; logging every number would
        be too slow.
        """
        total, number = self._means.get(name, (0.0, 0))
        self._means[name] = (total + value, number + 1)

    def log_means(self) -> None:
        """Logs the mean of the numbers that `add_number` has collected under each metric name, and discards these
        numbers.
        """
        for name, (total, number) in self._means.items():
            self._logger.log_value(name, total / number)
        self._means = {}

    # ------------------------------------------------------------------------------------------------------ reports

    def take_ended(self) -> EndedEpisodes:
        """Returns the episodes that ended since the last call of `take_ended` or `report`."""
        ended, self.ended = self.ended, []
        if self.modules_vary:
            for own in ended:
                self._log_returns("module", own.module_returns)
        rows = [(*own[1:4], *(own.agent_returns.get(agent, math.nan) for agent in self.agents)) for own in ended]
        return EndedEpisodes.of(rows, self.agents)

    def take_agent_steps(self) -> dict[Any, int]:
        """Returns the number of steps that each agent has completed since the last call of `take_agent_steps`,
        `take_logged` or `report`; {} with one agent.
        """
        if not self.agents:
            return {}
        steps, self.agent_steps = self.agent_steps, collections.Counter()
        if not self.modules_vary:
            self.module_steps.clear()
        return dict(steps)

    def take_step_times(self) -> StepTimes:
        """Returns the number of vector steps since the last call of `take_step_times`, and their total duration in
        seconds, as `StepTimes`.
        """
        times, self._step_times = self._step_times, NO_STEP_TIMES
        return times

    def take_logged(self) -> dict[str, Any]:
        """Reduces and returns all metrics that were logged since the last call of `take_logged` or `report`.

        Before that, logs the means of the numbers that `add_number` collected, such as durations, and the counts in
        `agent_steps` and `module_steps`, which then start again at zero.
        """
        self.log_means()
        for kind, steps in (("agent", self.agent_steps), ("module", self.module_steps)):
            key = f"num_{kind}_steps_sampled"
            for member, number in steps.items():
                self._logger.log_value((key, str(member)), number, reduce="sum")
                self._logger.log_value((f"{key}_lifetime", str(member)), number, reduce="lifetime_sum")
            steps.clear()
        return self._logger.reduce()

    def report(self) -> dict[str, Any]:
        """Logs the ended episodes and the number of env steps since the last `report` call, and returns the metrics.

        Logs the episodes in `ended`, and clears `ended`. Then returns the result of `take_logged`: all metrics that
        were logged since the last call of `take_logged` or `report`.
        """
        for episode in self.ended:
            log_episode(self._logger, self._window, episode.episode_return, episode.length)
            self._log_returns("agent", episode.agent_returns)
            self._log_returns("module", episode.module_returns)
            duration = episode.duration
            self._logger.log_value("episode_duration_sec_mean", duration, reduce="mean", window=self._window)
        log_counts(self._logger, len(self.ended), self.num_env_steps - self._num_reported)
        self.ended, self._num_reported = [], self.num_env_steps
        return self.take_logged()

    def _log_returns(self, kind: str, returns: Mapping[Any, float]) -> None:
        """Logs the returns of one episode under RLlib's metric names: a return per agent if `kind` is "agent", a return
        per module if `kind` is "module".
        """
        for member, own in returns.items():
            key = (f"{kind}_episode_returns_mean", str(member))
            self._logger.log_value(key, own, reduce="mean", window=self._window)


def log_episode(logger: MetricsLogger, window: int, episode_return: float, length: int) -> None:
    """Logs the return and the length of an ended episode under RLlib's metric names."""
    for key, value in (("return", episode_return), ("len", length)):
        for how in ("mean", "min", "max"):
            logger.log_value(f"episode_{key}_{how}", value, reduce=how, window=window)


def log_counts(logger: MetricsLogger, num_episodes: int, num_env_steps: int) -> None:
    """Logs the numbers of ended episodes and of sampled steps under RLlib's metric names."""
    logger.log_value("num_episodes", num_episodes, reduce="sum")
    logger.log_value("num_episodes_lifetime", num_episodes, reduce="lifetime_sum")
    logger.log_value("num_env_steps_sampled", num_env_steps, reduce="sum")
    logger.log_value("num_env_steps_sampled_lifetime", num_env_steps, reduce="lifetime_sum")
