"""The part of an Algorithm that evaluates on recorded data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.acting_algorithm import ActingAlgorithm
from jaxrl_stack.algorithms.beside import Beside
from jaxrl_stack.execution.evaluation import add_lifetime_counts
from jaxrl_stack.execution.offline_evaluation import OfflineEvaluation
from jaxrl_stack.runs.result import Result

if TYPE_CHECKING:
    from jaxrl_stack.callbacks.utils import CallbackList
    from jaxrl_stack.offline.offline_evaluation_runner_group import OfflineEvaluationRunnerGroup
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger


class OfflineEvaluated(ActingAlgorithm):
    """Evaluates on the data that `evaluation()` names, beside evaluations in environments."""

    callbacks: CallbackList
    metrics: MetricsLogger
    _evaluated: dict[str, Any]
    _iteration: int
    _offline_evaluation: OfflineEvaluation
    _beside: Beside | None
    _offline_beside: Beside | None = None
    _offline_metrics: dict[str, Any] | None = None

    def _start_offline_evaluation(self) -> None:
        self._offline_evaluation = OfflineEvaluation(self.driver, self.config, self._on_offline_eval_runners_recreated)
        self._offline_evaluation.start()

    @property
    def offline_eval_runner_group(self) -> OfflineEvaluationRunnerGroup:
        """The runners that evaluate on recorded data; made when they are asked for first."""
        return self._offline_evaluation.group

    def evaluate_offline(self) -> Result:
        """Evaluate the current weights on recorded data, as ``evaluation(offline_...)`` says; nothing is trained.

        Returns:
            What ``result["evaluation"]`` holds of it: ``{"offline_eval_runners": {...}}``, with how many runners are
            healthy and were restarted, and "off_policy_estimator".

        Raises:
            ValueError: If there is no data, or it does not fit.
        """
        self._check_is_running()
        self._join_offline_evaluation()
        self._tell_offline_start()
        return self._finish_offline_evaluation(self._offline_evaluation.evaluate())

    def restore_offline_eval_runners(self, runner_group: OfflineEvaluationRunnerGroup) -> list[int]:
        """Take actors of the group back in that Ray has restarted; every evaluation does so by itself.

        Returns:
            Their ids.
        """
        return runner_group.probe_unhealthy_runners()

    def _evaluates_offline_after(self, iteration: int) -> bool:
        interval = self.config.offline_evaluation_interval
        return bool(interval) and iteration % interval == 0

    def _offline_evaluation_beside(self) -> contextlib.AbstractContextManager[None]:
        """That of the running iteration, if it is to run beside training."""
        self._join_offline_evaluation()
        self._offline_beside = None
        is_due = self._evaluates_offline_after(self._iteration + 1)
        if not (self.config.offline_evaluation_parallel_to_training and is_due):
            return contextlib.nullcontext()

        def begin() -> None:
            self._tell_offline_start()
            self._offline_evaluation.sync()

        def evaluate(is_training: Callable[[], bool]) -> dict[str, Any]:
            return self._offline_evaluation.evaluate(is_training)

        self._offline_beside = Beside(begin, evaluate, "offline evaluation")
        return self._offline_beside

    def _offline_results(self) -> dict[str, Any]:
        """What a result says of offline evaluations, after the iteration's one if there is to be one."""
        if self._offline_beside is not None:
            self._finish_offline_evaluation(self._offline_beside.outcome())
        elif self._evaluates_offline_after(self._iteration):
            self.evaluate_offline()
        return self._offline_metrics or {} if self.config.offline_evaluation_interval else {}

    def _wait_for_evaluation(self) -> None:
        """Until the runners that evaluate are free: beside a training step that has raised they may still run."""
        self._join_offline_evaluation()
        if self._beside is not None:
            self._beside.join()

    def _join_offline_evaluation(self) -> None:
        if self._offline_beside is not None:
            self._offline_beside.join()

    def _tell_offline_start(self) -> None:
        self.callbacks.on_evaluate_offline_start(algorithm=self, metrics_logger=self.metrics)

    def _finish_offline_evaluation(self, found: dict[str, Any]) -> Result:
        if found["offline_eval_runners"]:
            add_lifetime_counts(found, self._evaluated)
        results = Result(found)
        self.callbacks.on_evaluate_offline_end(algorithm=self, metrics_logger=self.metrics, evaluation_metrics=results)
        self._offline_metrics = results
        return results

    def _on_offline_eval_runners_recreated(self, group: OfflineEvaluationRunnerGroup, ids: list[int]) -> None:
        self.callbacks.on_offline_eval_runners_recreated(
            algorithm=self, offline_eval_runner_group=group, offline_eval_runner_indices=ids
        )
