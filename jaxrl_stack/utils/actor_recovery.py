"""ActorRecovery: restarts or removes the lost actors of a pool, according to a `LossPolicy`, and marks restarted actors
as healthy again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxrl_stack.utils.actor_backend import RAY, Backend
from jaxrl_stack.utils.actor_manager import FaultTolerantActorManager, Func, original_error
from jaxrl_stack.utils.call_results import CallResult, RemoteCallResults
from jaxrl_stack.utils.consecutive_failures import ConsecutiveFailuresError
from jaxrl_stack.utils.loss_policy import LossPolicy
from jaxrl_stack.utils.waiting import WaitingReport

logger = logging.getLogger(__name__)


class Restarts:
    """Counts the restarts of each actor, and schedules its next restart after a delay.

    Args:
        backend: Backend whose clock is used.
    """

    def __init__(self, backend: Backend = RAY) -> None:
        self._now = backend.now
        self._num: dict[int, int] = {}
        self._last: dict[int, float] = {}
        self._due: dict[int, float] = {}

    def schedule(self, actor_id: int, delay: float) -> float:
        """Schedules a restart of an actor. The first restart is due immediately; each later restart is due when
        `delay` seconds have passed since the actor's last restart.

        Returns:
            Seconds until the restart is due.
        """
        now = self._now()
        self._due[actor_id] = max(now, self._last[actor_id] + delay) if actor_id in self._last else now
        return self._due[actor_id] - now

    def take_due(self) -> list[int]:
        """Returns the ids of the actors whose scheduled restart is due, and removes these restarts from the
        schedule.
        """
        now = self._now()
        ids = [actor_id for actor_id, due in self._due.items() if due <= now]
        for actor_id in ids:
            del self._due[actor_id]
        return ids

    def is_pending(self, actor_id: int) -> bool:
        """Whether a restart of this actor is scheduled."""
        return actor_id in self._due

    def first_due(self) -> float:
        """Time of the earliest scheduled restart of any actor, in seconds of the actor backend's clock (`Backend.now`);
        the present time if no restart is scheduled.
        """
        return min(self._due.values(), default=self._now())

    def note(self, actor_id: int) -> None:
        """Counts a completed restart of an actor, and stores the present time as the time of its last restart."""
        self._num[actor_id] = self.num_of(actor_id) + 1
        self._last[actor_id] = self._now()

    def num_of(self, actor_id: int) -> int:
        """Number of completed restarts of an actor."""
        return self._num.get(actor_id, 0)


class ActorRecovery:
    """Recovery of a pool of actors: restarts or removes lost actors, and marks restarted actors as healthy again.

    If `LossPolicy.restarts`, Ray starts a lost actor again; `take_back` finds it and restores its state. If an actor is
    lost for good, it is removed from the pool if `LossPolicy.ignores`; else an error is raised.

    Args:
        pool: The actors.
        policy: Returns the policy, which may change with a config.
        group: Ray placement group of the actors, or None.

    Attributes:
        num_dropped: Actors that were lost and not replaced.
    """

    def __init__(self, pool: FaultTolerantActorManager, policy: Callable[[], LossPolicy], *, group: Any = None):
        self._policy = policy
        self._group = group
        self.num_dropped = 0
        self._waiting: WaitingReport | None = None
        self._num_failures_in_a_row = 0
        self._last_errors: dict[int, BaseException] = {}
        self.watch(pool)

    def watch(self, pool: FaultTolerantActorManager) -> None:
        """Sets the actor pool: from now on, this object restarts or removes lost actors of `pool`. Resets all restart
        counts to 0. Starts and stops no actor.
        """
        self.stop()
        self._pool = pool
        self.restarts = Restarts(pool.backend)
        policy = self.policy
        self._waiting = WaitingReport(policy.role, lambda: self.policy.resources, pool.backend, group=self._group)

    def stop(self) -> None:
        """Stops the log message that is repeated while actors of the pool are lost.

        The message names the Ray resources that these actors need. Called when nothing waits for these actors any more.
        """
        if self._waiting is not None:
            self._waiting.end()

    @property
    def policy(self) -> LossPolicy:
        """Current reaction to lost actors: restart, ignore or raise."""
        return self._policy()

    # -------------------------------------------------------------------------------------------------------- answers

    def constructed(self, func: Func, actor_ids: Sequence[int] | None = None) -> list[Any]:
        """Calls `func` on each new actor and returns the results as a list. Raises the first error of a call or of an
        actor's constructor.

        Raises:
            Exception: Error of a call or of an actor's constructor.
        """
        results = self._pool.foreach_actor(func, remote_actor_ids=actor_ids)
        for call in results:
            if not call.ok:
                error = call.get()
                name, why = self.policy.name(call.actor_id), _last_error(str(error))
                error.add_note(f"{name} could not be built, or is not healthy{why}")
                raise error
        return [call.get() for call in results]

    def answers(self, results: RemoteCallResults) -> list[tuple[int, Any]]:
        """Returns ``(id, result)`` of the successful calls to actors, and handles failed calls according to the loss
        policy (restart, ignore or raise).

        Raises:
            Exception: Error of an actor's code, or the loss of an actor, unless the policy ignores it.
        """
        self.note_losses()
        for call in first_failures(results):
            if call.is_ray_error:
                self.note_loss(call)
            elif self.policy.ignores:
                logger.warning("%s failed: %s", self.policy.name(call.actor_id), call.get())
            else:
                raise call.get()
        return [(call.actor_id, call.get()) for call in results.ignore_errors()]

    # ------------------------------------------------------------------------------------------- losses and failures

    def note_losses(self) -> None:
        """Calls `note_loss` for calls that failed because their actor is lost.

        Skips calls of actors that are no longer in the pool. `FaultTolerantActorManager.take_losses` returns these
        calls: pings, and calls that did not wait for their results (``timeout_seconds=0``).
        """
        for call in self._pool.take_losses():
            if call.actor_id in self._pool.actor_ids():
                self.note_loss(call)

    def note_loss(self, call: CallResult) -> None:
        """Handles a `call` that failed because its actor is lost.

        If Ray restarts the actor, or if the loss policy ignores losses (`LossPolicy.ignores`), counts the failure;
        otherwise raises the call's error. If the loss policy ignores losses and the actor cannot return, also removes
        the actor from the pool.

        Raises:
            Exception: Error of the call, if the actor does not come back and the policy does not ignore the loss.
        """
        policy, error = self.policy, call.get()
        is_final = self._pool.is_lost_for_good(call)
        if policy.restarts and not is_final:
            self.count_failure(error)
            return  # Ray is starting it again, and the pool has logged why.
        if not policy.ignores:
            error.add_note(policy.note_of_loss(call.actor_id))
            raise error from self._last_errors.get(call.actor_id)
        self.count_failure(error)
        if is_final and call.actor_id in self._pool.actor_ids():
            logger.warning("%s is lost; continuing without it.", policy.name(call.actor_id))
            self.drop(call.actor_id)

    def note_failure(self, actor_id: int, error: Exception) -> None:
        """Handles an error in an actor's code: counts the failure, then restarts the actor.

        The actor is restarted at the earliest `LossPolicy.delay_s` seconds after its last restart. If the loss policy
        allows no restarts (`LossPolicy.restarts` is False), removes the actor from the pool instead.
        """
        policy = self.policy
        self.count_failure(error)
        if not policy.restarts:
            logger.error("%s failed; continuing without it.\n%s", policy.name(actor_id), error)
            self.drop(actor_id)
        elif self._pool.is_actor_healthy(actor_id):
            self._last_errors[actor_id] = error
            delay = self.restarts.schedule(actor_id, policy.delay_s)
            self._pool.set_actor_state(actor_id, healthy=False)
            when = f"in {delay:.1f} s ({policy.setting_of('delay_s') or 'delay_s'})" if delay else "now"
            logger.error("%s failed and is restarted %s.\n%s", policy.name(actor_id), when, error)
            self._restart_due()

    def count_failure(self, error: Exception) -> None:
        """Counts a failure of an actor, and raises an error if too many failures occurred in a row.

        Failures occur in a row if no actor of the pool succeeds in between. The loss policy allows at most
        `LossPolicy.tolerance` failures in a row.

        Raises:
            ConsecutiveFailuresError: If the policy does not tolerate as many.
        """
        self._num_failures_in_a_row += 1
        policy = self.policy
        if self._num_failures_in_a_row > policy.tolerance:
            number, last = self._num_failures_in_a_row, original_error(error)
            setting = policy.setting_of("tolerance")
            failure = ConsecutiveFailuresError.of(policy.plural, number, policy.tolerance, last, setting=setting)
            failure.__cause__ = error  # With the traceback of the actor.
            raise failure

    def count_success(self) -> None:
        """Resets the number of consecutive failures, counted over all actors of the pool together, to 0."""
        self._num_failures_in_a_row = 0

    def drop(self, actor_id: int) -> None:
        """Removes an actor from the pool, and kills it if it is alive."""
        if actor_id in self._pool.actor_ids():
            self._pool.backend.kill(self._pool.remove_actor(actor_id))
            self.num_dropped += 1

    def _restart_due(self) -> None:
        """Restarts failed actors whose delay before the restart has passed."""
        for actor_id in self.restarts.take_due():
            if actor_id in self._pool.actor_ids():
                self._pool.restart_actor(actor_id)

    # --------------------------------------------------------------------------------------------------------- return

    def take_back(
        self, timeout_s: float | None = None, restore: Callable[[list[int]], list[int]] | None = None
    ) -> list[int]:
        """Marks lost actors that are alive again as healthy.

        The function `restore`, if given, is called first and restores the actors' state. Actors whose state `restore`
        did not restore stay unhealthy.

        Args:
            timeout_s: Longest wait; None for the policy's ``probe_timeout_s``, 0 does not wait. Actors whose restart
                is not due yet are not waited for.
            restore: Function that restores the state of the actors with the given ids. It returns the ids of the
                actors that have it.

        Returns:
            Ids of the actors that are back.

        Raises:
            Exception: The loss of an actor that does not come back, unless the policy ignores it.
        """
        try:
            return self._take_back(timeout_s, restore)
        except BaseException:
            self.stop()
            raise

    def _take_back(self, timeout_s: float | None, restore: Callable[[list[int]], list[int]] | None) -> list[int]:
        self.note_losses()
        pool = self._pool
        if pool.num_healthy_actors() == pool.num_actors():
            self.stop()
            return []
        self._restart_due()
        awaited = [i for i in pool.recoverable_actor_ids() if not self.restarts.is_pending(i)]
        timeout_s = self.policy.probe_timeout_s if timeout_s is None else timeout_s
        back = pool.probe_unhealthy_actors(timeout_seconds=timeout_s, actor_ids=awaited)
        self.note_losses()
        if restore is not None and back:
            back = restore(back)
        for actor_id in back:
            self.restarts.note(actor_id)
            pool.set_actor_state(actor_id, healthy=True)
        assert self._waiting is not None
        self._waiting.note(sum(not self.restarts.is_pending(i) for i in pool.recoverable_actor_ids()))
        return back


def first_failures(results: RemoteCallResults) -> list[CallResult]:
    """Returns the first failed call of each actor; an actor's further calls fail for the same reason."""
    failed: dict[int, CallResult] = {}
    for call in results:
        if not call.ok:
            failed.setdefault(call.actor_id, call)
    return list(failed.values())


def _last_error(text: str) -> str:
    """Extracts the last line of the last traceback from the text of an actor's error.

    Returns ``": ExceptionClass: its message"``, or ``"."`` if the text contains no traceback; callers append the result
    to an error message.
    """
    found = re.findall(r"^(?:\w+\.)*[A-Z]\w*(?:Error|Exception|NotInstalled): .+", text, flags=re.MULTILINE)
    return f": {found[-1]}" if found else "."
