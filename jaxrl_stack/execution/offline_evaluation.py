"""Evaluation on separate recorded data, by runners in this process or in actors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxrl_stack.offline.estimators import estimators_of
from jaxrl_stack.offline.estimators.off_policy_estimator import results_of
from jaxrl_stack.offline.offline_evaluation_runner_group import OfflineEvaluationRunnerGroup
from jaxrl_stack.offline.offline_policy_evaluation_runner import recorded_steps
from jaxrl_stack.utils import resources
from jaxrl_stack.utils.actor_backend import RAY
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.datasets.steps import Steps
    from jaxrl_stack.execution.driver import Driver

logger = logging.getLogger(__name__)


class OfflineEvaluation:
    """Evaluates the trained modules on recorded data; implements `Algorithm.evaluate_offline`.

    `start` creates its runners if the config has evaluations; otherwise the first use creates them.

    Args:
        driver: Driver with the evaluated learners.
        config: The algorithm's config.
        on_recreated: ``f(group, ids of restarted actors)``.

    Attributes:
        config: The config.
    """

    def __init__(
        self,
        driver: Driver,
        config: AlgorithmConfig,
        on_recreated: Callable[[OfflineEvaluationRunnerGroup, list[int]], Any],
    ):
        self._driver = driver
        self.config: Any = config
        self._on_recreated = on_recreated
        self._group: OfflineEvaluationRunnerGroup | None = None
        self._steps: Steps | None = None

    @property
    def group(self) -> OfflineEvaluationRunnerGroup:
        """Group of the `OfflineEvaluationRunner` objects, which evaluate on recorded data."""
        if self._group is None:
            self._group = self._make_group()
        return self._group

    def _make_group(self) -> OfflineEvaluationRunnerGroup:
        driver, config = self._driver, self.config
        number = int(config.num_offline_eval_runners)
        if number:
            driver.reserve_actors()
        learner = driver.learner
        if learner is not None and learner.num_devices > len(learner.devices):
            learner = None  # A part of joined processes, which compute together.
        normalization = getattr(getattr(driver.step, "data", None), "normalization", None)
        return OfflineEvaluationRunnerGroup(
            config,
            local_runner=not number,
            spaces=dict(driver.module_spaces),
            placement_group=driver.placement.runners,
            pg_offset=resources.bundle_index(config, "offline_eval_runner"),
            on_recreated=self._on_recreated,
            runner_kwargs={"learner": learner, "normalization": normalization},
        )

    def start(self) -> None:
        """Creates the runners if `offline_evaluation_interval` or `num_offline_eval_runners` is set; otherwise the
        first use of `group` creates them.
        """
        if self.config.offline_evaluation_interval or self.config.num_offline_eval_runners:
            _ = self.group

    def sync(self) -> None:
        """Sends the learners' present state (weights, connectors, counters) to the evaluation's runners."""
        self.group.sync_weights(self._driver.learner_group, num_env_steps=self._driver.num_env_steps)

    def evaluate(self, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        """Runs one evaluation of the present modules on the recorded data, and returns the results.

        Args:
            is_training: Returns whether concurrent training still runs, for an evaluation next to training, after
                `sync`.

        Returns:
            ``{"offline_eval_runners": {...}, "num_healthy_offline_eval_runners": n, ...}``, and "off_policy_estimator"
            if ``off_policy_estimation_methods`` is set.
        """
        group = self.group
        group.probe_unhealthy_runners(timeout_seconds=0.0)
        if is_training is None:
            self.sync()
        merged = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup)
        reports = self._runs_here(group) if group.local_runner is not None else self._runs_in_actors(group, is_training)
        if not reports:
            logger.warning("The offline evaluation has no results: no actor answered in time.")
        merged.aggregate(reports)
        found: dict[str, Any] = {
            "offline_eval_runners": merged.compile(),
            "num_healthy_offline_eval_runners": group.num_healthy_remote_runners,
            "num_remote_offline_eval_runners_restarts": group.num_remote_runner_restarts,
        }
        if self.config.off_policy_estimation_methods:
            found["off_policy_estimator"] = self._estimates()
        return found

    def _runs_here(self, group: OfflineEvaluationRunnerGroup) -> list[Any]:
        assert group.local_runner is not None
        return [group.local_runner.run() for _ in range(int(self.config.offline_evaluation_duration))]

    def _runs_in_actors(self, group: OfflineEvaluationRunnerGroup, is_training: Callable[[], bool] | None) -> list[Any]:
        """Requests evaluations from the runner actors, and returns the actors' reports.

        The number of requested evaluations is ``offline_evaluation_duration`` times the number of runners. With
        ``offline_evaluation_duration="auto"``, requests evaluations until the concurrent training ends (`is_training`
        returns False).
        """
        timeout, duration = self.config.offline_evaluation_timeout_s, self.config.offline_evaluation_duration
        wanted = None if duration == "auto" else int(duration) * group.num_runners
        found: list[Any] = []
        asked, last = 0, RAY.now()
        while group.num_healthy_remote_runners and (wanted is None or len(found) < wanted):
            left = group.num_runners if wanted is None else wanted - asked
            asked += group.request_runs(left)
            answers = group.fetch_runs(min(1.0, timeout))
            found += answers
            under_way = group.num_in_flight_async_reqs
            # Those of actors that were lost meanwhile are asked of the others.
            asked = len(found) + under_way
            now = RAY.now()
            last = now if answers else last
            if wanted is None and is_training is not None and not is_training():
                break
            if now - last > timeout:
                logger.warning("An offline evaluation was stopped after %s s without an answer of its actors.", timeout)
                break
        group.forget_runs()
        return found

    def _estimates(self) -> dict[str, dict[str, float]]:
        """Estimates the present policy's return from all episodes of the recorded data, by each method in
        ``off_policy_estimation_methods``.
        """
        module_id = self._driver.module_map.module_id
        config = self.config.get_evaluation_config_object() or self.config
        if self._steps is None:
            normalization = getattr(getattr(self._driver.step, "data", None), "normalization", None)
            steps = recorded_steps(config, self._driver.module_spaces[module_id])
            self._steps = steps if normalization is None else normalization.apply_to_observations(steps)
        module = self._driver.modules()[module_id]
        found = {}
        for name, how in estimators_of(config.off_policy_estimation_methods).items():
            estimator = how.pop("type")(module, **{"gamma": float(config.gamma), **how})
            estimates = estimator.estimates(self._steps)
            found[name] = results_of(estimates[estimator.method], estimates)
        return found

    def use_config(self, config: AlgorithmConfig) -> None:
        """Replaces the evaluation's config by one that differs only in seed and traced settings (hyperparameters that
        are arguments of compiled programs); the next evaluation creates new runners.
        """
        self.config = config
        if self._group is not None:
            self._group.stop()
            self._group = None

    def stop(self) -> None:
        """Stops the runners; a second call does nothing."""
        if self._group is not None:
            self._group.stop()
