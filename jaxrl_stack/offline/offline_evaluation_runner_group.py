"""OfflineEvaluationRunnerGroup: evaluation on recorded data by a runner in this process, or by Ray actors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from jaxrl_stack.core import COMPONENT_RL_MODULE
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.offline.offline_evaluation_runner import PARTS_OF_LEARNERS, OfflineEvaluationRunner
from jaxrl_stack.offline.offline_policy_evaluation_runner import OfflinePolicyEvaluationRunner
from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from jaxrl_stack.utils.actor_manager import FaultTolerantActorManager, Func, Kwargs, RemoteCallResults
from jaxrl_stack.utils.actor_recovery import ActorRecovery
from jaxrl_stack.utils.loss_policy import LossPolicy
from jaxrl_stack.utils.metrics import WEIGHTS_SEQ_NO
from jaxrl_stack.utils.resources import actor_options, scheduling_strategies

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner_group import LearnerGroup

STOP_TIMEOUT_S = 5.0
"""Longest wait for actors to end their threads."""
_RUNS = "offline evaluation"


class OfflineEvaluationRunnerGroup:
    """Runners of an evaluation on recorded data: one in this process, or N actors with the ids 1 to N, each for a part
    of the data.

    Ray restarts lost actors (``restart_failed_offline_eval_runners``, at most ``max_num_offline_eval_runner_restarts``
    times each). `probe_unhealthy_runners` takes restarted actors back into the group and sends them the last state;
    they read their data from the beginning. Without restarts, the loss of an actor is an error, but with
    ``ignore_offline_eval_runner_failures`` the other actors continue. Exceptions in an actor are raised here, or only
    logged with that setting.

    Args:
        config: The algorithm's config.
        local_runner: Whether the runner is in this process.
        module_state: Initial ``{module_id: state}``; None for new weights.
        module_spec: Spec of the modules; None for the config's.
        spaces: ``{module_id: (observation space, action space)}``; None for the config's.
        placement_group, pg_offset: See `EnvRunnerGroup`.
        on_recreated: Called after restarts, ``f(group, ids of the restarted actors)``.
        runner_kwargs: More arguments of the local runner.
        backend: Backend of the actors: Ray, or a fake for tests.
        **kwargs: Not used; RLlib passes more.

    Attributes:
        config: The constructor argument.

    Raises:
        ValueError: If there are a local runner and actors.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        local_runner: bool = False,
        *,
        module_state: Mapping[str, Any] | None = None,
        module_spec: Any = None,
        spaces: dict[str, Any] | None = None,
        placement_group: Any = None,
        pg_offset: int = 0,
        on_recreated: Callable[[OfflineEvaluationRunnerGroup, list[int]], Any] | None = None,
        runner_kwargs: Mapping[str, Any] | None = None,
        backend: Backend = RAY,
        **kwargs: Any,
    ):
        self.config: Any = config
        number = int(config.num_offline_eval_runners)
        if local_runner and number:
            raise ValueError(
                "OfflineEvaluationRunnerGroup(local_runner=True) conflicts with "
                f"evaluation(num_offline_eval_runners={number}): set num_offline_eval_runners=0, or leave "
                "local_runner out."
            )
        self._on_recreated = on_recreated
        self._backend = backend
        self._sent: dict[str, Any] = {}
        self._local: OfflineEvaluationRunner | None = None
        limit = config.max_requests_in_flight_per_offline_eval_runner
        self._manager = FaultTolerantActorManager((), limit, init_id=1, backend=backend)
        self._recovery = ActorRecovery(
            self._manager, lambda: LossPolicy.of(self.config, "offline evaluation"), group=placement_group
        )
        arguments = {"config": config, "module_spec": module_spec, "spaces": spaces, **(runner_kwargs or {})}
        try:
            if local_runner:
                self._local = self.runner_cls(**arguments)
            arguments.pop("learner", None)
            self._start_actors(number, arguments, placement_group, pg_offset)
            if module_state is not None:
                self.set_state({COMPONENT_RL_MODULE: dict(module_state)})
        except BaseException:
            self.stop()
            raise

    @property
    def runner_cls(self) -> type[OfflineEvaluationRunner]:
        """Class of the evaluation runners in this group."""
        if self.config.offline_eval_runner_class is not None:
            return self.config.offline_eval_runner_class
        evaluates_loss = self.config.offline_evaluation_type == "eval_loss"
        return OfflineEvaluationRunner if evaluates_loss else OfflinePolicyEvaluationRunner

    def _start_actors(self, number: int, arguments: Mapping[str, Any], placement_group: Any, pg_offset: int) -> None:
        if not number:
            return
        options = actor_options(self.config, "offline_eval_runner")
        handles = start_actors(
            self.runner_cls,
            [{**arguments, "worker_index": i + 1, "num_workers": number} for i in range(number)],
            options=options,
            max_restarts=self._recovery.policy.restarts_of_each,
            strategies=scheduling_strategies(placement_group, pg_offset, number, options),
            backend=self._backend,
        )
        self._manager.add_actors(handles)
        if self.config.validate_offline_eval_runners_after_construction:
            self._recovery.constructed("assert_healthy")

    # ------------------------------------------------------------------------------------------------------- members

    @property
    def local_runner(self) -> OfflineEvaluationRunner | None:
        """Runner in this process; None if all runners are actors."""
        return self._local

    @property
    def num_runners(self) -> int:
        """Number of evaluation runners that are Ray actors."""
        return self._manager.num_actors()

    num_remote_runners = num_runners

    @property
    def num_healthy_remote_runners(self) -> int:
        """Number of healthy evaluation runners that are Ray actors."""
        return self._manager.num_healthy_actors()

    @property
    def num_remote_runner_restarts(self) -> int:
        """Total number of restarts of evaluation runners that are Ray actors."""
        return self._manager.total_num_restarts()

    @property
    def runner_health_probe_timeout_s(self) -> float:
        """Maximum wait for an answer of lost actors, in seconds."""
        return float(self._recovery.policy.probe_timeout_s)

    @property
    def num_in_flight_async_reqs(self) -> int:
        """Number of requests to actors whose results have not been fetched yet."""
        return self._manager.num_outstanding_async_reqs()

    @property
    def healthy_runner_ids(self) -> list[int]:
        """Ids of the evaluation runners that are healthy Ray actors."""
        return self._manager.healthy_actor_ids()

    @functools.cached_property
    def offline_data(self) -> OfflineData:
        """Evaluation data, opened in this process; every runner also opens it."""
        config = self.config.get_evaluation_config_object() or self.config
        return (config.offline_data_class or OfflineData)(config)

    # --------------------------------------------------------------------------------------------------------- calls

    def foreach_runner(
        self,
        func: Func,
        *,
        kwargs: Kwargs = None,
        local_runner: bool = True,
        remote_runner_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Any]:
        """Calls a function with every runner, or a runner's method by name, and waits for the results.

        Args:
            func, kwargs, timeout_seconds: See `FaultTolerantActorManager.foreach_actor`.
            local_runner: Whether the local runner takes part.
            remote_runner_ids: Ids of the actors that take part; None for all.

        Raises:
            Exception: What a runner's code raised, or its loss; see the class about what is ignored.
        """
        found = []
        if local_runner and self._local is not None:
            own: Any = dict(kwargs or {}) if not isinstance(kwargs, Sequence) else kwargs[0]
            function: Any = func
            called = getattr(self._local, func) if isinstance(func, str) else functools.partial(function, self._local)
            found.append(called(**own))
        if self._manager.num_actors():
            results = self._manager.foreach_actor(
                func, kwargs=kwargs, remote_actor_ids=remote_runner_ids, timeout_seconds=timeout_seconds
            )
            found += self._results(results)
        return found

    def request_runs(self, number: int) -> int:
        """Requests up to `number` evaluation runs from healthy actors that have room for a request; returns the number
        of requests.
        """
        sent = 0
        for _ in range(number):
            with_room = self._manager.actor_ids_with_room(_RUNS)
            if not with_room:
                break
            sent += self._manager.foreach_actor_async("run", _RUNS, remote_actor_ids=with_room[: number - sent])
            if sent >= number:
                break
        return sent

    def fetch_runs(self, timeout_seconds: float) -> list[Any]:
        """Waits for at least one finished evaluation run and returns the results; returns [] after the timeout."""
        return self._results(self._manager.fetch_first_async_reqs(_RUNS, timeout_seconds=timeout_seconds))

    def forget_runs(self) -> None:
        """Ignores the results of evaluation runs in progress."""
        self._manager.forget_requests(_RUNS)

    # --------------------------------------------------------------------------------------------------------- states

    def sync_weights(self, from_worker_or_learner_group: LearnerGroup, num_env_steps: int = 0, **kwargs: Any) -> None:
        """Sends the Learners' current state to all runners, except a runner that shares the Learner's process.

        Args:
            from_worker_or_learner_group: The learners.
            num_env_steps: Lifetime env steps, at which schedules are evaluated.
            **kwargs: Not used; RLlib passes more.
        """
        learners = from_worker_or_learner_group
        state: dict[str, Any] = {WEIGHTS_SEQ_NO: learners.num_updates, "num_env_steps": num_env_steps}
        if self._manager.num_actors() or not self._shares_a_learner:
            state |= learners.get_state(PARTS_OF_LEARNERS)
        self.set_state(state)

    @property
    def _shares_a_learner(self) -> bool:
        return self._local is not None and getattr(self._local, "shares_a_learner", False)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets the state of all runners, and stores it for actors that restart later; see the runner's `set_state`."""
        if self._local is not None:
            self._local.set_state(dict(state))
        if self._manager.num_actors():
            self._sent = {"state": self._backend.put(jax.device_get(dict(state)))}
            # One that does not answer in time takes the state over before its next run.
            timeout = self.config.offline_evaluation_timeout_s
            self._results(self._manager.foreach_actor("set_state", kwargs=self._sent, timeout_seconds=timeout))

    def probe_unhealthy_runners(self, timeout_seconds: float | None = None) -> list[int]:
        """Takes actors that Ray has restarted back into the group.

        Sends the actors the state that was last sent to all runners, and marks the actors that loaded this state as
        healthy. Then calls `on_recreated`, if an actor is back.

        Args:
            timeout_seconds: Longest wait; None for ``offline_eval_runner_health_probe_timeout_s``.

        Returns:
            Ids of the actors that are back.
        """
        back = self._recovery.take_back(timeout_seconds, self._restore)
        if back and self._on_recreated is not None:
            self._on_recreated(self, back)
        return back

    def _restore(self, actor_ids: list[int]) -> list[int]:
        """Sends restarted actors the state that was last sent to all runners; returns the ids of the actors that have
        loaded it.
        """
        if not self._sent:
            return actor_ids
        results = self._manager.foreach_actor(
            "set_state",
            kwargs=self._sent,
            remote_actor_ids=actor_ids,
            healthy_only=False,
            timeout_seconds=self._recovery.policy.restore_timeout_s,
        )
        return [actor_id for actor_id, _ in self._recovery.answers(results)]

    def _results(self, calls: RemoteCallResults) -> list[Any]:
        return [result for _, result in self._recovery.answers(calls)]

    @property
    def num_dropped(self) -> int:
        """Total number of runner actors that were lost and not replaced."""
        return self._recovery.num_dropped

    def stop(self) -> None:
        """Stops all actors and the local runner's threads; a second call does nothing."""
        self._recovery.stop()
        if self._local is not None:
            self._local.stop()
        self._manager.stop(STOP_TIMEOUT_S)
