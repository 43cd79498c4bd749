"""Evaluations of an Algorithm: at regular iterations (during or after the iteration's training), and on request."""

from __future__ import annotations

import abc
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax

from jaxrl_stack.algorithms.background_evaluation import BackgroundEvaluation
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.execution.evaluation import LIFETIME_COUNTS, add_lifetime_counts
from jaxrl_stack.execution.offline_evaluation import OfflineEvaluation
from jaxrl_stack.runs.result import Result
from jaxrl_stack.utils.signatures import call_users

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.offline.offline_evaluation_runner_group import OfflineEvaluationRunnerGroup


class EvaluationCounts:
    """Numbers of episodes, steps and batches in all evaluations of a run, in environments and on recorded data.

    Attributes:
        num_calls: Number of evaluations in environments since the last iteration.
    """

    def __init__(self) -> None:
        self.set_state({})

    def add(self, found: dict[str, Any]) -> None:
        """Adds one evaluation's numbers of episodes, steps and batches to the totals of the training run, and writes
        these totals into the evaluation's results.
        """
        add_lifetime_counts(found, self._sums)

    def get_state(self) -> dict[str, int]:
        """State for checkpoints, ``{name: number}``: counts of the run's evaluations.

        The state contains the total numbers of episodes, steps and batches in all evaluations of the run, and the
        number of evaluations in environments since the last iteration. The seeds of the next evaluation depend on this
        last number.
        """
        return {**self._sums, "num_calls_since_iteration": self.num_calls}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores the numbers of episodes, steps, batches and evaluations from a result of `get_state`; missing
        numbers become 0.
        """
        sums = {name: 0 for name in LIFETIME_COUNTS} | {name: int(number) for name, number in state.items()}
        self.num_calls = sums.pop("num_calls_since_iteration", 0)
        self._sums: dict[str, int] = sums


class Evaluations(abc.ABC):
    """Base class of the evaluations in environments and on recorded data: decides when they run, and stores their last
    results.

    Args:
        algorithm: Algorithm with the weights and the callbacks.
        counts: Sums over all kinds of evaluations of the algorithm.

    Attributes:
        last: Results of the last evaluation; None before the first one of this run.
    """

    name: ClassVar[str]
    """Name of the thread that evaluates during training."""

    def __init__(self, algorithm: Algorithm, counts: EvaluationCounts):
        self._algorithm, self._counts = algorithm, counts
        self.last: Result | None = None
        self._concurrent: BackgroundEvaluation | None = None

    @property
    @abc.abstractmethod
    def interval(self) -> int | None:
        """Number of iterations between two evaluations; None or 0 without evaluations."""

    @property
    @abc.abstractmethod
    def runs_concurrently(self) -> bool:
        """Whether a due evaluation runs in another thread while its iteration trains."""

    @abc.abstractmethod
    def _begin(self) -> None:
        """Begins an evaluation: calls the callbacks for its start.

        An evaluation in environments also increments the count of evaluations, because the seeds of the evaluation
        depend on this count.
        """

    @abc.abstractmethod
    def _hand_over(self) -> None:
        """Sends the current weights to the evaluation runners, before concurrent training changes them."""

    @abc.abstractmethod
    def _evaluate(self, is_training: Callable[[], bool] | None) -> dict[str, Any]:
        """Runs an evaluation, and returns its results.

        Args:
            is_training: Returns whether concurrent training still runs; None without concurrent training.
        """

    @abc.abstractmethod
    def _end(self, found: dict[str, Any]) -> Result:
        """Ends an evaluation: calls the callbacks for its end, stores its results in the attribute `last`, and returns
        the results.
        """

    def run(self, is_training: Callable[[], bool] | None = None) -> Result:
        """Evaluates the current weights. Stores the results in the attribute `last`, and returns the results.

        Args:
            is_training: Returns whether the caller's concurrent training still runs.
        """
        self._begin()
        return self._end(self._evaluate(is_training))

    def is_due(self, iteration: int) -> bool:
        """Whether the iteration with the number `iteration` (the first is 1) has an evaluation: True for multiples of
        `interval`, always False if `interval` is None or 0.
        """
        interval = self.interval
        return iteration % interval == 0 if interval else False

    def concurrent_with(self, iteration: int) -> contextlib.AbstractContextManager[None]:
        """Context manager for an iteration's training. If a concurrent evaluation is due, it runs while the body of the
        ``with`` statement trains.
        """
        self._concurrent = None
        if not (self.is_due(iteration) and self.runs_concurrently):
            return contextlib.nullcontext()

        def begin() -> None:
            self._begin()
            self._hand_over()

        self._concurrent = BackgroundEvaluation(begin, self._evaluate, self.name)
        return self._concurrent

    def end_concurrent(self) -> bool:
        """Completes a concurrent evaluation: calls the callbacks for its end, and stores its results in the attribute
        `last`.

        Returns False if no evaluation ran during training, otherwise True.
        """
        if self._concurrent is None:
            return False
        concurrent, self._concurrent = self._concurrent, None
        self._end(concurrent.outcome())
        return True

    def wait(self) -> None:
        """Waits until a concurrent evaluation has ended.

        If the iteration's training failed, the evaluation may still be running. If training succeeded, the evaluation
        has already ended, and `wait` returns at once.
        """
        if self._concurrent is not None:
            self._concurrent.join()

    @property
    def results(self) -> dict[str, Any]:
        """Results of the last evaluation, to add to an iteration's result; {} before the first evaluation, or if the
        config has no evaluation interval.
        """
        return (self.last or {}) if self.interval else {}


class EnvEvaluations(Evaluations):
    """Evaluations in environments, and on recorded steps that the training step excludes from training.

    If the training step excludes some recorded steps (`TrainingStep.held_out_rows`), an evaluation also computes the
    loss on these steps. If the config has no environment, an evaluation computes only this loss.

    Attributes:
        seconds: Duration of the last evaluation; None before the first one of this run.
    """

    name = "evaluation"
    seconds: float | None = None
    _place = (0, 0)
    """Iterations before the running evaluation, and evaluations since the last of them: its seeds follow from both."""

    @property
    def interval(self) -> int | None:
        return self._algorithm.config.evaluation_interval

    @property
    def runs_concurrently(self) -> bool:
        algorithm = self._algorithm
        return bool(algorithm.config.evaluation_parallel_to_training) and (
            algorithm.driver.evaluation.runs_concurrently
        )

    def _begin(self) -> None:
        algorithm = self._algorithm
        algorithm.callbacks.on_evaluate_start(algorithm=algorithm, metrics_logger=algorithm.metrics)
        self._place = algorithm.iteration, self._counts.num_calls
        self._counts.num_calls += 1

    def _hand_over(self) -> None:
        self._algorithm.driver.sync_evaluation(*self._place)

    def _evaluate(self, is_training: Callable[[], bool] | None) -> dict[str, Any]:
        algorithm = self._algorithm
        function = algorithm.config.custom_evaluation_function
        if function is not None:
            called = f"evaluation(custom_evaluation_function={short(function)})"
            outcome = call_users(function, called, algorithm, algorithm.eval_env_runner_group)
            if not isinstance(outcome, tuple) or len(outcome) != 3 or not isinstance(outcome[0], dict):
                raise ValueError(
                    f"{called} returned {short(outcome)}. It must return a tuple (dict of results, env steps, agent "
                    f"steps)."
                )
            metrics, num_steps, _ = outcome
            return {"env_runners": {**metrics, "num_env_steps_sampled": num_steps}}
        started = time.perf_counter()
        with jax.disable_jit(bool(algorithm.config.disable_jit)):
            metrics = algorithm.driver.evaluate(*self._place, is_training)
        self.seconds = time.perf_counter() - started
        self._counts.add(metrics)
        return metrics

    def _end(self, found: dict[str, Any]) -> Result:
        algorithm, results = self._algorithm, Result(found)
        algorithm.callbacks.on_evaluate_end(
            algorithm=algorithm, metrics_logger=algorithm.metrics, evaluation_metrics=results
        )
        self.last = results
        videos, folder = algorithm.config.evaluation_video_interval, algorithm.config.video_dir
        if videos and folder and algorithm.iteration % videos == 0:
            algorithm.record(os.path.join(folder, f"iteration_{algorithm.iteration:06d}.mp4"))
        return results


class OfflineEvaluations(Evaluations):
    """Evaluations on recorded data, configured by ``evaluation(offline_...)``. The runners are separate from the
    runners of evaluations in environments.
    """

    name = "offline evaluation"
    _runs: OfflineEvaluation

    @property
    def interval(self) -> int | None:
        return self._algorithm.config.offline_evaluation_interval

    @property
    def runs_concurrently(self) -> bool:
        return bool(self._algorithm.config.offline_evaluation_parallel_to_training)

    def start(self) -> None:
        """Prepares evaluations for the algorithm's present modules and config; creates runners if evaluations are
        configured.
        """
        self._runs = OfflineEvaluation(self._algorithm.driver, self._algorithm.config, self._on_recreated)
        self._runs.start()

    @property
    def group(self) -> OfflineEvaluationRunnerGroup:
        """Runners of the offline evaluations, as one group."""
        return self._runs.group

    def use_config(self, config: AlgorithmConfig) -> None:
        """Replaces the config of the evaluations.

        The new config may differ only in settings that compiled programs take as arguments (traced settings), such as
        ``lr``. After `Algorithm.reset`, the seed may differ, too.
        """
        self._runs.use_config(config)

    def stop(self) -> None:
        """Stops the runners of the offline evaluations."""
        self._runs.stop()

    def _begin(self) -> None:
        algorithm = self._algorithm
        algorithm.callbacks.on_evaluate_offline_start(algorithm=algorithm, metrics_logger=algorithm.metrics)

    def _hand_over(self) -> None:
        self._runs.sync()

    def _evaluate(self, is_training: Callable[[], bool] | None) -> dict[str, Any]:
        return self._runs.evaluate(is_training)

    def _end(self, found: dict[str, Any]) -> Result:
        if found["offline_eval_runners"]:
            self._counts.add(found)
        algorithm, results = self._algorithm, Result(found)
        algorithm.callbacks.on_evaluate_offline_end(
            algorithm=algorithm, metrics_logger=algorithm.metrics, evaluation_metrics=results
        )
        self.last = results
        return results

    def _on_recreated(self, group: OfflineEvaluationRunnerGroup, ids: list[int]) -> None:
        self._algorithm.callbacks.on_offline_eval_runners_recreated(
            algorithm=self._algorithm, offline_eval_runner_group=group, offline_eval_runner_indices=ids
        )
