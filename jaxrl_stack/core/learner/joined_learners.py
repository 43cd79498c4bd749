"""Learners in N Ray actors that update jointly; a `LearnerGroup` starts, calls and restarts them together."""

from __future__ import annotations

import collections
import dataclasses
import logging
import operator
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.learner.learner_actor import Answer, LearnerActor, UpdateData
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from jaxrl_stack.utils.call_results import RemoteCallResults, ResultOrError
from jaxrl_stack.utils.resources import actor_options, bundle_resources, in_bundle, in_last_bundles
from jaxrl_stack.utils.waiting import LINE_S, WaitingReport

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

logger = logging.getLogger(__name__)

GET_STATE = operator.methodcaller("get_state")
STATE_AFTER_UPDATE = "_rl_module_state_after_update"
"""Key of the weights in the first learner's result of ``update(return_state=True)``."""
OTHERS_TIMEOUT_S = 10.0
"""Longest wait for the other learners' answers after one has failed, in seconds. The same call fails in all learners,
unless the others wait for the one that failed."""
CONSEQUENCES_TIMEOUT_S = 1.0
"""Longest wait for the errors of the other learners after one has died, in seconds."""
JOIN_ATTEMPTS = 3
"""Number of attempts to start and join the learners."""
LEAVE_TIMEOUT_S = 5.0
"""Longest time for learners to leave the group before they are killed, in seconds."""


class _LostLearnersError(Exception):
    """Raised if the learners must be restarted after a failure.

    Possible failures: a process died, learners do not answer after another one has failed, or a compiled program
    failed. ``__cause__`` is the first error.
    """


@dataclasses.dataclass
class _Pending:
    """Update that was sent to the learner actors and whose results have not been fetched yet.

    Attributes:
        refs: Ray references of the answers, one per learner.
        return_state: Whether the first answer contains the weights.
        number: Number of updates that were sent, this one included.
    """

    refs: list[Any]
    return_state: bool
    number: int


class JoinedLearners:
    """Group of learner actors that update jointly, for a `LearnerGroup`. If one actor is lost, all are restarted with
    the last snapshot of their state.

    Args:
        config: The algorithm's config.
        placement_group: Ray placement group; its last bundles are for the learners.
        backend: Runtime of the actors.
        **actor_arguments: Further arguments of `actor_class`: ``module_spec``.
    """

    actor_class: type[LearnerActor] = LearnerActor

    def __init__(
        self, config: AlgorithmConfig, placement_group: Any, *, backend: Backend = RAY, **actor_arguments: Any
    ):
        self.config = config
        self.backend = backend
        self.num_learners = int(config.num_learners)
        self.num_updates = 0
        self.num_restarts = 0
        self.num_dropped_env_steps = 0
        self.pending: collections.deque[_Pending] = collections.deque()
        self._finished: list[list[dict[str, Any]] | Exception] = []
        self.info: dict[str, Any] = {}
        self._actor_arguments = actor_arguments
        self._placement_group = placement_group
        self._module_changes: list[operator.methodcaller] = []
        self._snapshot: dict[str, Any] = {}
        self._num_sent = 0
        self._num_answered = 0
        self._sent_at_snapshot = 0
        self._actors: list[Any] = []
        self._lost: _LostLearnersError | None = None
        self._is_shut_down = False
        try:
            self._start()
            self._remember(self._gather([self._actors[0].apply.remote(GET_STATE, {})])[0], num_sent=0)
        except _LostLearnersError as lost:
            self._kill()
            raise RuntimeError(
                f"A learner was lost while the group was started: {lost.__cause__}\nRepair this cause, and build the "
                "algorithm or LearnerGroup again."
            ) from lost.__cause__
        except BaseException:
            self._kill()
            raise

    # --------------------------------------------------------------------------------------------- start and shutdown

    def _start(self) -> None:
        for attempt in range(1, JOIN_ATTEMPTS + 1):
            self._make_actors()
            try:
                self._await_processes()
                self._join()
                break
            except _LostLearnersError as lost:
                if attempt == JOIN_ATTEMPTS:
                    raise
                # Between the choice of a port and its use, another process may have taken it.
                logger.warning("The learners could not be joined and are started again. %s", lost.__cause__)
                self._kill()
        self.info = self._gather([actor.build.remote() for actor in self._actors])[0]

    def _join(self) -> None:
        """Connects the processes of all learner actors with ``jax.distributed``, so that the devices of all processes
        form one axis.

        Raises:
            _LostLearnersError: If the coordinator's port is taken, or an actor died.
        """
        if self.num_learners > 1:
            (address,) = self._gather([self._actors[0].free_address.remote()])
            self._gather([a.join.remote(address, self.num_learners, i) for i, a in enumerate(self._actors)])

    def _make_actors(self) -> None:
        options = actor_options(self.config, "learner")
        amounts = {name: options[name] for name in ("num_cpus", "num_gpus")}
        arguments = {"config": self.backend.put(self.config), **self._actor_arguments, **amounts}
        self._actors = start_actors(
            self.actor_class,
            [arguments] * self.num_learners,
            options=options,
            max_restarts=0,  # A single learner cannot be restarted without the others.
            strategies=self._scheduling_strategies(),
            backend=self.backend,
        )

    def _await_processes(self) -> None:
        """Waits until the actors of all learners have started; while it waits, reports the resources that are missing.

        Raises:
            _LostLearnersError: If an actor died before it started. Ray places actors on a lost node for some seconds,
                until it has noticed the loss.
        """
        group, backend = self._placement_group, self.backend
        report = WaitingReport("Learner", lambda: bundle_resources(self.config, "learner"), backend, group=group)
        refs = [actor.ping.remote() for actor in self._actors]
        try:
            while waiting := self.backend.wait(refs, len(refs), LINE_S / 10)[1]:
                report.note(len(waiting))
        finally:
            report.end()
        for outcome in (ResultOrError.of(self.backend.get, ref) for ref in refs):
            # An error of the constructor would only occur again; the next call raises it.
            if outcome.is_ray_error and not getattr(outcome.error, "actor_init_failed", False):
                raise _LostLearnersError from outcome.error

    def strategies_of_neighbours(self, number: int) -> list[Any]:
        """Returns Ray ``scheduling_strategy`` values that place `number` additional actors next to each learner.

        The list has one value per additional actor. The values for the same learner are successive. All values are None
        if the learners have no placement group, or if a learner's bundle has too few CPUs for the learner and its
        additional actors.

        Args:
            number: Actors per learner, of one CPU each.
        """
        group = self._placement_group
        strategies = [strategy for strategy in self._scheduling_strategies() for _ in range(number)]
        if group is None or not number:
            return strategies
        needed = bundle_resources(self.config, "learner").get("CPU", 0.0)
        has_room = all(bundle.get("CPU", 0.0) >= needed for bundle in group.bundle_specs[-self.num_learners :])
        return strategies if has_room else [None] * len(strategies)

    def _scheduling_strategies(self) -> list[Any]:
        group = self._placement_group
        if group is not None and not bundle_resources(self.config, "learner"):
            return [in_bundle(group, -1)] * self.num_learners
        if group is not None and (num_bundles := len(group.bundle_specs)) < self.num_learners:
            raise ValueError(
                f"The placement group has {num_bundles} bundles, fewer than num_learners={self.num_learners}. Create "
                f"the group with the bundles of all other actors first, then {self.num_learners} bundles for the "
                "learners."
            )
        return in_last_bundles(group, self.num_learners)

    def _restart(self, lost: _LostLearnersError) -> None:
        """Restarts all learner actors and sets their state to the last snapshot."""
        logger.warning(
            "A learner was lost; all %d restart from the last snapshot, and %d update(s) after it are lost. %s",
            self.num_learners,
            self._num_sent - self._sent_at_snapshot,
            lost.__cause__,
        )
        # Runners may have received weights of updates whose answers were not fetched.
        self.num_updates += sum(update.number > self._num_answered for update in self.pending)
        self._kill()
        self.num_restarts += 1
        self._start()
        for change in self._module_changes:
            self._gather([actor.apply.remote(change, {}) for actor in self._actors])
        counted = {**self._snapshot["counters"], "num_updates": np.uint32(self.num_updates)}
        self._send_to_all("set_state", {**self._snapshot, "counters": counted})
        self._num_sent = self._num_answered = self._sent_at_snapshot

    def _kill(self) -> None:
        self.pending.clear()
        actors, self._actors = self._actors, []
        for actor in actors:
            self.backend.kill(actor)

    def shutdown(self) -> None:
        """Disconnects the learners from each other (``jax.distributed``), and ends their actors."""
        if self._actors and self.num_learners > 1 and self.backend.is_running:
            # If one ends without leaving first, the others fail, too, with a page of messages each.
            self.backend.wait([a.leave.remote() for a in self._actors], self.num_learners, LEAVE_TIMEOUT_S)
        self._kill()
        self._is_shut_down = True

    # ---------------------------------------------------------------------------------------------------------- calls

    def _with_restart(self, send: Callable[[], Any]) -> Any:
        """Calls `send`, a function that calls learner actors, and returns the result of `send`. If learners are lost,
        restarts all learners, and calls `send` a second time.

        Raises:
            ValueError: If the group was shut down.
            RuntimeError: If learners are lost again.
        """
        if self._is_shut_down:
            raise ValueError("This LearnerGroup was shut down. Build a new one: config.build_learner_group().")
        for _ in range(2):
            try:
                if self._lost is not None:
                    self._restart(self._lost)
                    self._lost = None
                return send()
            except _LostLearnersError as lost:
                self._lost = lost
        assert self._lost is not None
        reason = self._lost.__cause__
        raise RuntimeError(
            f"Learners were lost again after a restart: {reason}\nRepair this cause; the next call restarts the "
            "learners."
        ) from reason

    def _gather(self, refs: Sequence[Any]) -> list[Any]:
        """Waits for pending calls of several learner actors, given as Ray references, and returns the results of the
        calls.

        Raises:
            _LostLearnersError: If an actor died, or does not answer while another one has failed.
            Exception: The first error of the calls.
        """
        results = []
        for outcome in self._outcomes(refs, others_timeout_seconds=OTHERS_TIMEOUT_S):
            assert outcome is not None, "there is no deadline while nothing has failed"
            if outcome.error is not None:
                raise outcome.error
            results.append(outcome.result)
        return results

    def _outcomes(
        self, refs: Sequence[Any], *, timeout_seconds: float | None = None, others_timeout_seconds: float | None = None
    ) -> list[ResultOrError | None]:
        """Waits for pending calls of learner actors. Returns their results or exceptions in the order of `refs`; None
        for calls that did not finish in time.

        Args:
            refs: Ray references, one per actor.
            timeout_seconds: Longest wait; None waits without a limit.
            others_timeout_seconds: Longest wait for the other calls after one has failed; then the learners count as
                lost. None: a failed call does not affect the others.

        Raises:
            _LostLearnersError: See `_gather`.
        """
        backend = self.backend
        is_joint = others_timeout_seconds is not None
        outcomes: dict[Any, ResultOrError] = {}
        waiting = list(refs)
        deadline = None if timeout_seconds is None else backend.now() + timeout_seconds
        failure: Exception | None = None
        while waiting:
            left = None if deadline is None else max(0.0, deadline - backend.now())
            ready, waiting = backend.wait(waiting, 1, left)
            if not ready:
                break
            outcome = outcomes[ready[0]] = ResultOrError.of(backend.get, ready[0])
            if outcome.error is None:
                continue
            if outcome.is_ray_error:
                # The others fail because they cannot reach it. Ray prints these errors unless they are fetched.
                if waiting:
                    failed, _ = backend.wait(waiting, len(waiting), CONSEQUENCES_TIMEOUT_S)
                    for ref in failed:
                        ResultOrError.of(backend.get, ref)
                is_reason = failure is not None and not _is_broken_program(failure)
                raise _LostLearnersError from failure if is_reason else outcome.error
            if failure is None and is_joint:
                failure, deadline = outcome.error, backend.now() + others_timeout_seconds
        if failure is not None and (waiting or _is_broken_program(failure)):
            raise _LostLearnersError from failure
        return [outcomes.get(ref) for ref in refs]

    def call(self, method: str) -> list[Any]:
        """Calls a method of all learner actors and returns the results."""
        return self._with_restart(lambda: self._gather([getattr(a, method).remote() for a in self._actors]))

    def first(self, func: Callable[..., Any], **kwargs: Any) -> Any:
        """Calls ``func(learner, **kwargs)`` in the first learner actor, and returns the result; all learners have the
        same state.
        """
        return self._with_restart(lambda: self._gather([self._actors[0].apply.remote(func, kwargs)]))[0]

    def foreach(
        self,
        func: Callable[..., Any],
        kwargs: dict[str, Any],
        ids: Collection[int] | None,
        timeout_seconds: float | None,
        return_obj_refs: bool,
    ) -> RemoteCallResults:
        """Calls ``func(learner, **kwargs)`` in some or all learner actors; see `LearnerGroup.foreach_learner`.

        Args:
            func: The function.
            kwargs: Further arguments of `func`.
            ids: Indices of the learners; None for all.
            timeout_seconds: Longest wait; learners that do not answer in time are missing in the results.
            return_obj_refs: Whether to return Ray references to the results.

        Raises:
            ValueError: If a learner in `ids` does not exist.
        """
        chosen = list(range(self.num_learners)) if ids is None else list(ids)
        unknown = [i for i in chosen if i not in range(self.num_learners)]
        if unknown:
            raise ValueError(f"Learner {unknown[0]!r} does not exist. Use indices from 0 to {self.num_learners - 1}.")

        def send() -> list[ResultOrError | None]:
            refs = [self._actors[i].apply.remote(func, kwargs) for i in chosen]
            if return_obj_refs:
                return [ResultOrError(result=ref) for ref in refs]
            return self._outcomes(refs, timeout_seconds=timeout_seconds)

        results = RemoteCallResults()
        for i, outcome in zip(chosen, self._with_restart(send), strict=True):
            if outcome is not None:
                results.add_result(i, outcome)
        failed = next((call for call in results if not call.ok), None)
        if failed is not None:
            raise failed.get()
        return results

    def weights_ref(self) -> Any:
        """Returns a Ray reference of the weights for env runners, see `LearnerGroup.get_weights_ref`."""

        def send() -> Any:
            is_well, ref = self._actors[0].weights_for_runners.options(num_returns=2).remote()
            self._gather([is_well])
            return ref

        return self._with_restart(send)

    # --------------------------------------------------------------------------------------------- modules and state

    def _send_to_all(self, method: str, value: Any) -> None:
        ref = self.backend.put(value)
        self._gather([actor.call.remote(method, ref) for actor in self._actors])

    def change(self, method: str, value: Any) -> None:
        """Calls a method on all learners, and then takes a snapshot of their state.

        The method has the name `method` and gets the argument `value`. Because of the snapshot, a restart does not lose
        the change.
        """
        self._with_restart(lambda: self._send_to_all(method, value))
        self._take_snapshot()

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Calls `Learner.change_settings` on all learners, and stores the config for restarts of lost learners."""
        change = operator.methodcaller("change_settings", config)
        self._with_restart(lambda: self._gather([actor.apply.remote(change, {}) for actor in self._actors]))
        self.config = config

    def change_modules(self, change: operator.methodcaller) -> MultiRLModuleSpec:
        """Calls a method of all learners that changes their modules, such as `Learner.add_module`; returns the new spec
        of all modules.
        """
        specs = self._with_restart(lambda: self._gather([a.apply.remote(change, {}) for a in self._actors]))
        self._module_changes.append(change)
        self._take_snapshot()
        self.info["module_ids"] = tuple(specs[0].rl_module_specs)
        return specs[0]

    def _take_snapshot(self) -> None:
        self._remember(self.first(GET_STATE), self._num_sent)

    def _remember(self, state: dict[str, Any], num_sent: int) -> None:
        self._snapshot, self._sent_at_snapshot = state, num_sent
        self.num_updates = max(self.num_updates, int(state["counters"]["num_updates"]))

    # -------------------------------------------------------------------------------------------------------- updates

    def update(
        self, shares: Sequence[UpdateData], arguments: dict[str, Any], async_update: bool, return_state: bool
    ) -> list[dict[str, Any]]:
        """Updates all learners jointly, learner i with the data ``shares[i]``; see `LearnerGroup.update`."""
        if async_update:
            return self._update_async(shares, arguments, return_state)

        def send() -> list[Answer]:
            return self._gather(self._send_update(shares, arguments, return_state))

        return self._received(self._with_restart(send), return_state, self._num_sent)

    def update_rows(self, experience: Experience, arguments: dict[str, Any]) -> dict[Any, np.ndarray]:
        """Makes one gradient step on all rows of a batch, jointly in all learners; see `LearnerGroup.update_rows`."""
        shares = experience.split(self.num_learners)
        answers = self._with_restart(lambda: self._gather(self._send_update(shares, arguments, False)))
        self._received(answers, False, self._num_sent)
        rows = [answer.rows for answer in answers]
        return {key: np.concatenate([own[key] for own in rows]) for key in rows[0]}

    def evaluate_rows(self, experience: Experience, arguments: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns losses and metrics of a batch of rows without an update of the modules; see
        `LearnerGroup.evaluate_rows`.
        """
        shares = experience.split(self.num_learners)
        calls = [operator.methodcaller("evaluate_rows", share, **arguments) for share in shares]

        def send() -> list[dict[str, Any]]:
            return self._gather([a.apply.remote(call, {}) for a, call in zip(self._actors, calls, strict=True)])

        return self._with_restart(send)

    def _send_update(self, shares: Sequence[UpdateData], arguments: dict[str, Any], return_state: bool) -> list[Any]:
        self._num_sent += 1
        takes_snapshot = (self._num_sent - self._sent_at_snapshot) % self.config.learner_snapshot_interval == 0
        return [
            actor.update.remote(
                share, arguments, wants_state=takes_snapshot and i == 0, wants_weights=return_state and i == 0
            )
            for i, (actor, share) in enumerate(zip(self._actors, shares, strict=True))
        ]

    def _received(self, answers: Sequence[Answer], return_state: bool, number: int) -> list[dict[str, Any]]:
        """Returns the metrics in `answers`, the results of all learners for one update, as one dict per learner.

        `number` is the number of the update. Marks this update and all earlier updates as answered. If the first
        learner's answer contains the learner state, stores this state as the snapshot for restarts.
        """
        first = answers[0]
        self.num_updates = max(self.num_updates, first.num_updates)
        self._num_answered = max(self._num_answered, number)
        if first.state is not None:
            self._remember(first.state, number)
        metrics = [answer.metrics for answer in answers]
        if return_state:
            metrics[0][STATE_AFTER_UPDATE] = first.weights
        return metrics

    def _update_async(
        self, shares: Sequence[UpdateData], arguments: dict[str, Any], return_state: bool
    ) -> list[dict[str, Any]]:
        results: list[dict[str, Any]] = []
        for outcome in self.finished_updates():
            if isinstance(outcome, Exception):
                raise outcome
            results += outcome
        self.send_update(shares, arguments, return_state)
        return results

    def send_update(self, shares: Sequence[UpdateData], arguments: dict[str, Any], return_state: bool) -> bool:
        """Sends the data of one update to all learner actors, without waiting for results. The actors process updates
        in the order of these calls.

        `finished_updates` returns the results.

        Returns:
            False if ``max_requests_in_flight_per_learner`` updates are unfinished. Then this update is dropped, and its
            steps are added to `num_dropped_env_steps`.
        """
        if len(self.pending) >= self.config.max_requests_in_flight_per_learner:
            self.num_dropped_env_steps += sum(_num_env_steps(share, self.config) for share in shares)
            return False

        def send() -> None:
            refs = self._send_update(shares, arguments, return_state)
            self.pending.append(_Pending(refs, return_state, self._num_sent))

        self._with_restart(send)
        return True

    def finished_updates(self) -> list[list[dict[str, Any]] | Exception]:
        """Returns the results of the updates that `send_update` has sent and that have finished since the last call,
        oldest first.

        Returns:
            For each update one dict of metrics per learner, or the exception that it raised. Updates that were lost
            with a learner are missing.
        """
        self._with_restart(self._fetch_finished)
        finished, self._finished = self._finished, []
        return finished

    def _fetch_finished(self) -> None:
        while self.pending:
            oldest = self.pending[0]
            ready, waiting = self.backend.wait(oldest.refs, len(oldest.refs), 0.0)
            if waiting and all(ResultOrError.of(self.backend.get, ref).ok for ref in ready):
                return
            outcome = ResultOrError.of(self._gather, oldest.refs)
            if isinstance(outcome.error, _LostLearnersError):
                raise outcome.error
            self.pending.popleft()
            if outcome.error is not None:
                self._finished.append(outcome.error)
            else:
                self._finished.append(self._received(outcome.result, oldest.return_state, oldest.number))


def _is_broken_program(error: Exception) -> bool:
    """Whether an error means that a compiled program failed while running; the learner's state, which was donated to
    the program, is then lost.
    """
    cause = getattr(error, "cause", error)
    # Failed communication between processes on the CPU raises a ValueError.
    return isinstance(cause, jax.errors.JaxRuntimeError) or "Gloo" in str(cause)


def _num_env_steps(share: UpdateData, config: AlgorithmConfig) -> int:
    """Returns the number of steps in one learner's data for an update. For Ray references and data iterators, this
    number is unknown: returns ``train_batch_size_per_learner`` as an estimate.
    """
    known = share.num_steps if isinstance(share, TrainingData) else share.num_env_steps
    return config.train_batch_size_per_learner if known is None else known
