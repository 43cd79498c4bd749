"""The training loop of `Algorithm.train` and `Population.train`, with its counts, rates and times.

::

    iteration = iterations.begin()
    for _ in iteration.training_steps(driver, config):
        driver.training_step()
    iteration.end_training(driver)
    iteration.add_numbers(result, driver, ...)
    ...  # evaluation
    iteration.add_times(result, driver)
    iteration.add_rates(result)
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from jaxrl_stack.algorithms.iteration_numbers import (
    ONE_AGENT,
    Progress,
    TrainedRates,
    is_prefilled,
    root_numbers,
    sampling_numbers,
    time_numbers,
)
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.devices import of_first_process
from jaxrl_stack.utils.results import merge_nested

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.module_map import ModuleMap


class Counting(Protocol):
    """Interface to the counters (steps, updates, episodes) that the training loop reads.

    `Driver` implements the interface for one run; `PopulationDriver` for a population of runs, with episodes counted
    per member.
    """

    @property
    def num_env_steps(self) -> int: ...
    @property
    def num_agent_steps(self) -> Mapping[Any, int] | None: ...
    @property
    def num_opponent_steps(self) -> int: ...
    @property
    def num_env_steps_trained(self) -> int: ...
    @property
    def num_updates(self) -> int: ...
    @property
    def num_episodes(self) -> Any: ...
    @property
    def num_training_steps_per_call(self) -> int: ...
    @property
    def lacks_env_runners(self) -> bool: ...
    @property
    def module_map(self) -> ModuleMap: ...
    @property
    def device_seconds(self) -> float: ...
    @property
    def compile_seconds(self) -> float: ...
    def learner_results(self, num_updates: int) -> dict[str, Any]: ...


class Iterations:
    """Counts a run's iterations and their durations.

    Attributes:
        done: Number of iterations so far.
        seconds: Duration of all iterations.
        restored_at: Counters when the run began or was restored, for metrics since then.
        rates: Steps trained per second.
    """

    def __init__(self) -> None:
        self.done, self.seconds = 0, 0.0
        self.restored_at, self.rates = Progress(), TrainedRates()

    def progress(self, driver: Counting) -> Progress:
        """Current counters of the run."""
        counts = (driver.num_env_steps, driver.num_env_steps_trained, driver.num_updates, driver.num_episodes)
        return Progress(self.done, self.seconds, *counts, driver.num_agent_steps, driver.num_opponent_steps)

    def go_on(self, done: int, seconds: float, driver: Counting) -> None:
        """Restores the number of iterations and their total duration from a checkpoint.

        Counts and rates since the restore begin at zero. Call this method after `driver`, which counts steps and
        updates, has restored its counters.

        Args:
            done, seconds: Stored values.
            driver: Driver of the run.
        """
        self.done, self.seconds = done, seconds
        self.restored_at, self.rates = self.progress(driver), TrainedRates()

    def begin(self) -> Iteration:
        """Begins the next iteration, which is counted when its training ends."""
        return Iteration(self)


class Iteration:
    """The iteration in progress: determines when the iteration has enough training steps, and writes the iteration's
    metrics and durations into the result of `train`.

    Args:
        iterations: Iterations of the run.

    Attributes:
        before: Counters before the first training step.
        now: Counters after the last training step.
        num_training_steps: Number of training steps.
        seconds: Duration of the training steps.
    """

    before: Progress
    now: Progress

    def __init__(self, iterations: Iterations):
        self._iterations = iterations
        self._started, self._compiling = time.perf_counter(), CompileClock()
        self.num_training_steps, self.seconds, self._elapsed = 0, 0.0, 0.0

    def training_steps(self, driver: Counting, config: AlgorithmConfig, *, number: int | None = None) -> Iterator[None]:
        """Generator for the loop over an iteration's training steps.

        Ends when the iteration has the steps and the duration that ``reporting(min_..._per_iteration=...)`` requires,
        and updates can begin (see `is_prefilled`).

        Args:
            driver: Driver of the run.
            config: Config of the run.
            number: Number of training steps, to repeat a recorded iteration regardless of the config and the clock;
                None in all other iterations.

        Yields:
            None before each call of the driver's training step, at least once.
        """
        self.before = self._iterations.progress(driver)
        while not self.num_training_steps or not self._is_complete(driver, config, number):
            yield
            # One call of the driver may make several in one program.
            self.num_training_steps += driver.num_training_steps_per_call

    def _is_complete(self, driver: Counting, config: AlgorithmConfig, number: int | None) -> bool:
        if number is not None:
            return self.num_training_steps >= number
        return self._is_long_enough(driver, config)

    def _is_long_enough(self, driver: Counting, config: AlgorithmConfig) -> bool:
        before, min_seconds = self.before, config.min_time_s_per_iteration or 0.0
        if driver.lacks_env_runners:
            return self._has_lasted(min_seconds)
        # Without the number of updates: one that runs in a thread has taken over the arrays that hold it.
        now = Progress(num_env_steps=driver.num_env_steps, num_agent_steps=driver.num_agent_steps)
        sampled = now.num_counted(config.count_steps_by) - before.num_counted(config.count_steps_by)
        trained = driver.num_env_steps_trained - before.num_env_steps_trained
        return (
            (sampled >= (config.min_sample_timesteps_per_iteration or 0) or not config.is_online)
            and trained >= (config.min_train_timesteps_per_iteration or 0)
            and is_prefilled(config.num_prefilled_steps, now, before)
            and self._has_lasted(min_seconds)
        )

    def _has_lasted(self, seconds: float) -> bool:
        """Whether `seconds` have passed since the start of the iteration.

        If several JAX processes train together, all use the clock of JAX process 0, so that all processes get the same
        answer.
        """
        if not seconds:
            return True
        return of_first_process(lambda: "yes" * (time.perf_counter() - self._started >= seconds)) == "yes"

    def end_training(self, driver: Counting) -> None:
        """Counts the iteration as done, and stores its duration and counters. Call it after the last training step."""
        self.seconds = time.perf_counter() - self._started
        self._iterations.done += 1
        self.now = self._iterations.progress(driver)

    @property
    def num_env_steps(self) -> int:
        """Number of env steps sampled in the iteration."""
        return self.now.num_env_steps - self.before.num_env_steps

    def seconds_per_env_step(self, num_envs: int) -> float:
        """Wall time, in seconds, in which each environment takes one step.

        The time is the duration of the iteration's training, divided by the number of steps (at least 1) that each of
        `num_envs` environments has taken.

        Args:
            num_envs: Number of environments that an EnvRunner steps together.
        """
        return self.seconds / max(1, self.num_env_steps / num_envs)

    def add_numbers(
        self,
        result: dict[str, Any],
        driver: Counting,
        *,
        episodes: dict[str, Any],
        means: Mapping[str, Mapping[str, float]] = ONE_AGENT,
    ) -> None:
        """Writes the metrics of sampling and learning into the iteration's result: counts, rates, returns and learner
        results.

        Args:
            result: Changed in place.
            driver: Driver of the run.
            episodes, means: See `sampling_numbers`.
        """
        now, before, seconds = self.now, self.before, self.seconds
        more = {"episodes": episodes, "means": means, "module_map": driver.module_map}
        result["env_runners"] |= sampling_numbers(now, before, self._iterations.restored_at, seconds=seconds, **more)
        merge_nested(result["learners"], driver.learner_results(now.num_updates - before.num_updates))
        result |= root_numbers(now, before, calls=self.num_training_steps, seconds=seconds)

    def add_times(self, result: dict[str, Any], driver: Counting) -> None:
        """Adds the durations of the finished iteration, including evaluations, to its result.

        Args:
            result: Changed in place.
            driver: Driver of the run.
        """
        elapsed, iterations = time.perf_counter() - self._started, self._iterations
        self._elapsed = elapsed
        iterations.seconds += elapsed
        # Once more: a callback of an evaluation may have restored another state.
        now = iterations.progress(driver)
        compiling = self._compiling.seconds + driver.compile_seconds
        times = time_numbers(elapsed, compiling, driver.device_seconds, now=now, restored_at=iterations.restored_at)
        merge_nested(result, times)

    def add_rates(self, result: dict[str, Any]) -> None:
        """Writes trained steps per second into the iteration's result. Call it after `add_times`, when the result has
        all learner metrics.
        """
        iterations = self._iterations
        since_restore = iterations.seconds - self._elapsed + self.seconds - iterations.restored_at.time_total
        iterations.rates.add_to(result["learners"], seconds=self.seconds, since_restore=since_restore)
