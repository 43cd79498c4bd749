"""FaultTolerantActorManager: calls to a set of actors, some of which may be slow, dead or restarting."""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from jaxrl_stack.utils.actor_backend import RAY, Backend
from jaxrl_stack.utils.call_results import CallResult, RemoteCallResults, ResultOrError

logger = logging.getLogger(__name__)

Func: TypeAlias = "Callable[..., Any] | str | Sequence[Callable[..., Any] | str]"
"""``func(actor's object, **kwargs)``, the name of a method, or one of these per actor."""

Kwargs: TypeAlias = "dict[str, Any] | Sequence[dict[str, Any]] | None"
"""Keyword arguments of all calls, or one dict per actor."""

PROBE_INTERVAL_S = 0.1
"""Seconds between a failed ping of a restarting actor and the next ping of this actor."""


class FaultAwareApply:
    """Mixin for actor classes: the methods that a `FaultTolerantActorManager` calls on its actors."""

    def ping(self) -> str:
        """Returns a text, which shows that the actor is alive."""
        return "pong"

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls a function with this actor as its first argument: returns ``func(self, *args, **kwargs)``."""
        return func(self, *args, **kwargs)


@dataclasses.dataclass(slots=True)
class _ActorState:
    actor: Any
    is_healthy: bool = True
    is_lost_for_good: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Request:
    actor_id: int
    tag: str | None
    more_refs: tuple[Any, ...] = ()


class FaultTolerantActorManager:
    """Calls functions on many actors in parallel, and tracks which actors are healthy.

    An actor that dies or cannot be reached is marked as unhealthy and left out of further calls. Ray restarts it if its
    ``max_restarts`` allow it; `probe_unhealthy_actors` finds out which are back. An actor whose code raises stays
    healthy: the exception is one of the results.

    Args:
        actors: Handles of actors with ``ping`` and ``apply`` (see `FaultAwareApply`).
        max_remote_requests_in_flight_per_actor: Unfinished asynchronous requests per actor and tag; more are not sent.
        init_id: Id of the first actor; the others count up.
        backend: Backend of the actors: Ray, or a fake for tests.

    Attributes:
        backend: The constructor argument.

    Raises:
        ValueError: If the number of requests is below 1.
    """

    def __init__(
        self,
        actors: Sequence[Any] | None = None,
        max_remote_requests_in_flight_per_actor: int = 2,
        init_id: int = 0,
        *,
        backend: Backend = RAY,
    ):
        if max_remote_requests_in_flight_per_actor < 1:
            raise ValueError(
                f"max_remote_requests_in_flight_per_actor={max_remote_requests_in_flight_per_actor}: must be at least "
                f"1, because actors would otherwise get no asynchronous calls."
            )
        self.backend = backend
        self._max_in_flight = max_remote_requests_in_flight_per_actor
        self._next_id = init_id
        self._states: dict[int, _ActorState] = {}
        self._requests: dict[Any, _Request] = {}
        self._not_awaited: dict[Any, int] = {}
        self._pings: dict[Any, int] = {}
        self._num_restarts = 0
        self._unreported = RemoteCallResults()
        self.add_actors(actors or ())

    # -------------------------------------------------------------------------------------------------------- actors

    def actors(self) -> dict[int, Any]:
        """``{id: handle}`` of all actors of the manager."""
        return {actor_id: state.actor for actor_id, state in self._states.items()}

    def actor_ids(self) -> list[int]:
        """Ids of all actors of the manager."""
        return list(self._states)

    def healthy_actor_ids(self) -> list[int]:
        """Ids of the manager's actors that are not known to be dead or unreachable."""
        return [actor_id for actor_id, state in self._states.items() if state.is_healthy]

    def recoverable_actor_ids(self) -> list[int]:
        """Ids of the unhealthy actors that can become healthy again, because they are not lost for good."""
        return [i for i, state in self._states.items() if not state.is_healthy and not state.is_lost_for_good]

    def num_actors(self) -> int:
        """Number of the manager's actors, healthy or not."""
        return len(self._states)

    def num_healthy_actors(self) -> int:
        """Number of the manager's healthy actors."""
        return len(self.healthy_actor_ids())

    def total_num_restarts(self) -> int:
        """Total number of completed restarts of the manager's actors."""
        return self._num_restarts

    def num_outstanding_async_reqs(self, tag: str | None = None) -> int:
        """Number of asynchronous calls whose results were not fetched yet. If `tag` (the caller's label for calls) is
        given, only calls with this tag count.
        """
        return sum(tag is None or request.tag == tag for request in self._requests.values())

    def async_request_refs(self, tag: str) -> list[Any]:
        """Ray references to the results of the asynchronous calls with a tag (the caller's label for calls). Results
        that were already fetched are not included.
        """
        return [ref for ref, request in self._requests.items() if request.tag == tag]

    def actor_ids_with_room(self, tag: str) -> list[int]:
        """Ids of the healthy actors with fewer than the maximum of pending asynchronous calls of a tag (the caller's
        label for calls).
        """
        in_flight = Counter(request.actor_id for request in self._requests.values() if request.tag == tag)
        return [i for i in self.healthy_actor_ids() if in_flight[i] < self._max_in_flight]

    def is_actor_healthy(self, actor_id: int) -> bool:
        """Whether the manager counts an actor as healthy (alive and reachable).

        Raises:
            ValueError: If there is no such actor.
        """
        return self._state_of(actor_id).is_healthy

    def set_actor_state(self, actor_id: int, healthy: bool) -> None:
        """Marks an actor as healthy or not. The manager drops the results of an unhealthy actor's unfinished calls.

        Raises:
            ValueError: If there is no such actor.
        """
        state = self._state_of(actor_id)
        if healthy and not state.is_healthy:
            self._num_restarts += 1
            logger.info("Actor %d is back.", actor_id)
        elif not healthy:
            self._forget_requests(actor_id)
        state.is_healthy = healthy

    def add_actors(self, actors: Sequence[Any]) -> list[int]:
        """Adds actors to the manager and returns their ids. Later calls, such as `foreach_actor`, include the new
        actors.

        Returns:
            Their ids; ids of removed actors are not given again.
        """
        new = list(range(self._next_id, self._next_id + len(actors)))
        self._next_id += len(actors)
        self._states |= {actor_id: _ActorState(actor) for actor_id, actor in zip(new, actors, strict=True)}
        return new

    def remove_actor(self, actor_id: int) -> Any:
        """Removes an actor and its unfinished calls from the manager, without stopping the actor.

        Returns:
            Its handle; the actor itself is not ended.

        Raises:
            ValueError: If there is no such actor.
        """
        actor = self._state_of(actor_id).actor
        self._forget_requests(actor_id)
        del self._states[actor_id]
        return actor

    def restart_actor(self, actor_id: int) -> None:
        """Kills an actor, so that Ray restarts it. This counts towards its ``max_restarts``. The actor is unhealthy
        until it answers again.

        Raises:
            ValueError: If there is no such actor.
        """
        actor = self._state_of(actor_id).actor
        self.set_actor_state(actor_id, healthy=False)
        self.backend.kill(actor, restart=True)

    def take_losses(self) -> list[CallResult]:
        """Returns the calls that failed because their actor is lost. Each call is returned only once.

        The list contains only calls whose outcome no other method returns: pings of this manager, and calls that did
        not wait for results (``timeout_seconds=0``).
        """
        losses, self._unreported = self._unreported, RemoteCallResults()
        return losses

    def clear(self) -> None:
        """Kills all actors of the manager, including restarting ones, and removes them from the manager."""
        for actor_id in self.actor_ids():
            self.backend.kill(self.remove_actor(actor_id))

    def stop(self, timeout_seconds: float) -> None:
        """Calls ``stop()`` on the healthy actors, then kills all actors and removes them from the manager.

        Args:
            timeout_seconds: Longest wait for the calls.
        """
        if self._states and self.backend.is_running:
            asked = [self._states[i].actor.stop.remote() for i in self.healthy_actor_ids()]
            self.backend.wait(asked, len(asked), timeout_seconds)
        self.clear()

    def check_ids(self, actor_ids: Iterable[int]) -> None:
        """Raises a ValueError if one of `actor_ids` is not the id of an actor of this manager."""
        for actor_id in actor_ids:
            self._state_of(actor_id)

    def _state_of(self, actor_id: int) -> _ActorState:
        if actor_id not in self._states:
            raise ValueError(f"There is no actor with the id {actor_id!r}. Choose from {self.actor_ids()}.")
        return self._states[actor_id]

    def forget_requests(self, tag: str) -> None:
        """Drops the results of all asynchronous calls with a tag (the caller's label for calls). The actors still
        complete these calls.
        """
        self._requests = {ref: request for ref, request in self._requests.items() if request.tag != tag}

    def _forget_requests(self, actor_id: int) -> None:
        self._requests = {ref: r for ref, r in self._requests.items() if r.actor_id != actor_id}
        self._not_awaited = {ref: i for ref, i in self._not_awaited.items() if i != actor_id}
        self._pings = {ref: i for ref, i in self._pings.items() if i != actor_id}

    # --------------------------------------------------------------------------------------------- synchronous calls

    def foreach_actor(
        self,
        func: Func,
        *,
        kwargs: Kwargs = None,
        healthy_only: bool = True,
        remote_actor_ids: Sequence[int] | None = None,
        timeout_seconds: float | None = None,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        num_returns: int = 1,
    ) -> RemoteCallResults:
        """Calls a function or method on the manager's actors and waits.

        Returns the outcome (result or error) of each call that finishes in time. Skips unhealthy actors by default.

        Args:
            func: ``func(object, **kwargs)``, the name of a method, or a list with one of these per actor.
            kwargs: Keyword arguments, or a list with one dict per actor. Put large ones into the object store once
                (``ray.put``) and pass the reference as a value of the dict.
            healthy_only: Leave unhealthy actors out.
            remote_actor_ids: Ids of the actors to call; None calls all.
            timeout_seconds: Longest wait; None waits for all. 0 does not wait and returns no results: if such a
                call raises, a later call of this manager raises its exception.
            return_obj_refs: Return references to results instead of results. Fetching a result raises its error.
            mark_healthy: Mark unhealthy actors that answer as healthy.
            num_returns: With n above 1 the function returns n values, of which only the first is fetched: a result is
                ``(value, reference, ...)``. Values behind the references belong to this process and outlive the actor.

        Returns:
            The outcomes in the order of the actors. Outcomes that are not available in time are left out, and dropped
            when they arrive.

        Raises:
            ValueError: If an id is unknown, or lists differ in length.
        """
        self._check_not_awaited()
        calls = self._send(func, kwargs, healthy_only, remote_actor_ids, num_returns=num_returns)
        if timeout_seconds == 0.0:
            self._not_awaited |= {ref: request.actor_id for ref, request in calls.items()}
            return RemoteCallResults()
        return self._wait(
            calls, timeout_seconds=timeout_seconds, return_obj_refs=return_obj_refs, mark_healthy=mark_healthy
        )[1]

    # -------------------------------------------------------------------------------------------- asynchronous calls

    def foreach_actor_async(
        self,
        func: Func,
        tag: str | None = None,
        *,
        kwargs: Kwargs = None,
        healthy_only: bool = True,
        remote_actor_ids: Sequence[int] | None = None,
        num_returns: int = 1,
    ) -> int:
        """Calls a function or method on the manager's actors without waiting; `fetch_ready_async_reqs` returns the
        outcomes (results or errors) later. Skips unhealthy actors by default.

        Args:
            func: See `foreach_actor`.
            tag: Name under which results can be fetched apart from others.
            kwargs: See `foreach_actor`.
            healthy_only: Leave unhealthy actors out.
            remote_actor_ids: Ids of the actors to call; an id that occurs n times gets n calls. None calls all.
            num_returns: See `foreach_actor`.

        Returns:
            Number of calls that were sent; an actor with a full queue for this tag gets none.
        """
        self._check_not_awaited()
        calls = self._send(
            func, kwargs, healthy_only, remote_actor_ids, tag=tag, keeps_limit=True, num_returns=num_returns
        )
        self._requests |= calls
        return len(calls)

    def fetch_ready_async_reqs(
        self,
        *,
        tags: str | Sequence[str | None] | None = (),
        timeout_seconds: float | None = 0.0,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
    ) -> RemoteCallResults:
        """Returns the outcomes (results or errors) of finished asynchronous calls, each outcome only once.

        Args:
            tags: One tag or several; empty for all.
            timeout_seconds: Longest wait for all calls; 0 does not wait, None waits for all.
            return_obj_refs: See `foreach_actor`.
            mark_healthy: See `foreach_actor`.
        """
        return self._fetch(
            tags, timeout_seconds=timeout_seconds, return_obj_refs=return_obj_refs, mark_healthy=mark_healthy
        )

    def fetch_first_async_reqs(
        self, tag: str, *, timeout_seconds: float | None, also: Sequence[Any] = ()
    ) -> RemoteCallResults:
        """Waits until one of the asynchronous calls with a tag (the caller's label for calls) has succeeded or failed.

        Returns the outcomes of all calls with this tag that have finished by then.

        Args:
            tag: Tag of the calls.
            timeout_seconds: Longest wait for the first call; 0 does not wait, None has no limit.
            also: Further Ray references; the wait also ends when one of these is ready.

        Returns:
            The outcomes. If no call with the tag is pending, the result is empty, and the method does not wait.
        """
        return self._fetch(tag, timeout_seconds=timeout_seconds, waits_for_all=False, also=also)

    def _fetch(self, tags: str | Sequence[str | None] | None, **how: Any) -> RemoteCallResults:
        """Waits for asynchronous calls, and returns the outcomes (results or errors) of the finished calls.

        Removes these calls from the manager. Only calls with one of `tags` count; if `tags` is empty, all calls count.
        `how` contains keyword arguments of `_wait`, such as ``timeout_seconds``.
        """
        self._check_not_awaited()
        wanted = (tags,) if isinstance(tags, str) else tuple(tags or ())
        requests = {ref: r for ref, r in self._requests.items() if not wanted or r.tag in wanted}
        fetched, results = self._wait(requests, **how)
        for ref in fetched:
            self._requests.pop(ref, None)  # An actor that was lost has no requests any more.
        return results

    def foreach_actor_async_fetch_ready(
        self,
        func: Func,
        tag: str | None = None,
        *,
        kwargs: Kwargs = None,
        timeout_seconds: float | None = 0.0,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        healthy_only: bool = True,
        remote_actor_ids: Sequence[int] | None = None,
        ignore_ray_errors: bool = True,
        return_actor_ids: bool = False,
    ) -> list[Any]:
        """Sends a new call to each actor that is not busy, then returns the results of the finished calls.

        An actor is busy if it has the maximum number of pending calls with this tag (the caller's label for calls). The
        new calls and the finished calls have this tag. Skips unhealthy actors by default.

        Args:
            func: See `foreach_actor`.
            tag: Tag of the finished and of the new calls.
            kwargs: See `foreach_actor`.
            timeout_seconds: See `fetch_ready_async_reqs`.
            return_obj_refs: See `foreach_actor`.
            mark_healthy: See `foreach_actor`.
            healthy_only: Leave unhealthy actors out.
            remote_actor_ids: Ids of the actors to call; None calls all.
            ignore_ray_errors: Only log that an actor was lost.
            return_actor_ids: Return ``(id, result)`` instead of results.

        Returns:
            The results of calls that have finished in time, earlier and new ones.

        Raises:
            Exception: Error of an actor's code, or its loss, unless that is ignored.
        """
        self.foreach_actor_async(
            func, tag=tag, kwargs=kwargs, healthy_only=healthy_only, remote_actor_ids=remote_actor_ids
        )
        results = self.fetch_ready_async_reqs(
            tags=[tag], timeout_seconds=timeout_seconds, return_obj_refs=return_obj_refs, mark_healthy=mark_healthy
        )
        self.handle_remote_call_result_errors(results, ignore_ray_errors=ignore_ray_errors)
        return [(call.actor_id, call.get()) if return_actor_ids else call.get() for call in results.ignore_errors()]

    # --------------------------------------------------------------------------------------------------------- health

    def probe_unhealthy_actors(
        self, timeout_seconds: float | None = None, mark_healthy: bool = False, actor_ids: Sequence[int] | None = None
    ) -> list[int]:
        """Pings the manager's unhealthy actors; returns the ids of the actors that answer.

        Args:
            timeout_seconds: Longest wait for actors that Ray is restarting; None waits until all of them answer, 0
                does not wait.
            mark_healthy: Mark actors that answer as healthy.
            actor_ids: Ids of the actors to ping; None pings all.

        Returns:
            Ids of the actors that answer. An actor that is lost for good does not answer, and is not waited for. An
            actor whose ``ping`` raises has not answered: it waits for its restart, and is pinged again until it
            answers or the time is over.
        """
        now = self.backend.now
        deadline = None if timeout_seconds is None else now() + timeout_seconds
        waiting = [i for i in self.recoverable_actor_ids() if actor_ids is None or i in actor_ids]
        back: list[int] = []
        while waiting:
            # A question stays open until it is answered: asking without waiting costs nothing, however often.
            asked = set(self._pings.values())
            self._pings |= {self._states[i].actor.ping.remote(): i for i in waiting if i not in asked}
            refs = [ref for ref, actor_id in self._pings.items() if actor_id in waiting]
            left = None if deadline is None else max(deadline - now(), 0.0)
            answered, _ = self.backend.wait(refs, len(refs), left)
            for ref in answered:
                actor_id = self._pings.pop(ref)
                outcome = self._outcome(ref, actor_id)
                if outcome.ok:
                    back.append(actor_id)
                    if mark_healthy:
                        self.set_actor_state(actor_id, healthy=True)
                if outcome.error is not None and _is_final(outcome.error):
                    self._unreported.add_result(actor_id, outcome)
                if outcome.error is None or _is_final(outcome.error):
                    waiting.remove(actor_id)
            if not waiting or (deadline is not None and now() + PROBE_INTERVAL_S >= deadline):
                break
            self.backend.sleep(PROBE_INTERVAL_S)
        return sorted(back)

    @staticmethod
    def is_lost_for_good(call: CallResult) -> bool:
        """Whether a call failed because its actor is dead and Ray does not restart it."""
        return not call.ok and _is_final(call.get())

    @staticmethod
    def handle_remote_call_result_errors(results: RemoteCallResults, *, ignore_ray_errors: bool) -> None:
        """Raises the first error among the results of calls to actors.

        Args:
            results: Outcomes of calls.
            ignore_ray_errors: Only log the loss of an actor. Errors of an actor's code are raised in any case.

        Raises:
            Exception: The actor's exception, with its traceback in the message.
        """
        for call in results:
            if call.ok:
                continue
            if ignore_ray_errors and call.is_ray_error:
                logger.warning("Actor %d did not answer: %s", call.actor_id, call.get())
            else:
                raise call.get()

    # -------------------------------------------------------------------------------------------------------- helpers

    def _send(
        self,
        func: Func,
        kwargs: Kwargs,
        healthy_only: bool,
        actor_ids: Sequence[int] | None,
        *,
        tag: str | None = None,
        keeps_limit: bool = False,
        num_returns: int = 1,
    ) -> dict[Any, _Request]:
        """Sends a call to each actor in `actor_ids` (None: all actors), without waiting for the result.

        If `healthy_only`, skips unhealthy actors. If `keeps_limit`, skips actors with the maximum number of pending
        calls with this tag. Returns ``{reference to the first result: _Request}``. The `_Request` contains the actor's
        id, the tag, and references to the call's other results.
        """
        ids = self.actor_ids() if actor_ids is None else list(actor_ids)
        funcs = [func] * len(ids) if callable(func) or isinstance(func, str) else list(func)
        all_kwargs = [kwargs or {}] * len(ids) if kwargs is None or isinstance(kwargs, dict) else list(kwargs)
        for name, values in (("func", funcs), ("kwargs", all_kwargs)):
            if len(values) != len(ids):
                raise ValueError(
                    f"{name} has length {len(values)}, but there are {len(ids)} actors ({ids}). Give one entry for "
                    f"each actor."
                )
        calls: dict[Any, _Request] = {}
        in_flight = Counter((request.actor_id, request.tag) for request in self._requests.values())
        for actor_id, one_func, one_kwargs in zip(ids, funcs, all_kwargs, strict=True):
            state = self._state_of(actor_id)
            if healthy_only and not state.is_healthy:
                continue
            if keeps_limit and in_flight[actor_id, tag] >= self._max_in_flight:
                continue
            in_flight[actor_id, tag] += 1
            name, args = (one_func, ()) if isinstance(one_func, str) else ("apply", (one_func,))
            method = getattr(state.actor, name)
            if num_returns == 1:
                calls[method.remote(*args, **one_kwargs)] = _Request(actor_id, tag)
            else:
                ref, *more = method.options(num_returns=num_returns).remote(*args, **one_kwargs)
                calls[ref] = _Request(actor_id, tag, tuple(more))
        return calls

    def _wait(
        self,
        requests: dict[Any, _Request],
        *,
        timeout_seconds: float | None,
        return_obj_refs: bool = False,
        mark_healthy: bool = False,
        waits_for_all: bool = True,
        also: Sequence[Any] = (),
    ) -> tuple[list[Any], RemoteCallResults]:
        """Waits until all calls in `requests` have finished, or `timeout_seconds` have passed (None: no limit).

        If `waits_for_all` is False, the wait also ends when one of these calls or of the Ray references `also` is
        ready. Returns the references of the finished calls, and their outcomes (results or errors), both in the order
        of `requests`.
        """
        results = RemoteCallResults()
        if not requests:
            return [], results
        refs = list(requests)
        if not waits_for_all:
            self.backend.wait([*refs, *also], 1, timeout_seconds, fetch=not return_obj_refs)
            timeout_seconds = 0.0  # Whatever else is there by now.
        ready, _ = self.backend.wait(refs, len(refs), timeout_seconds, fetch=not return_obj_refs)
        is_ready = set(ready)
        fetched = [ref for ref in refs if ref in is_ready]
        for ref in fetched:
            actor_id, tag = requests[ref].actor_id, requests[ref].tag
            outcome = ResultOrError(ref) if return_obj_refs else self._outcome(ref, actor_id)
            if requests[ref].more_refs and outcome.ok:
                outcome = ResultOrError((outcome.result, *requests[ref].more_refs))
            if outcome.ok and mark_healthy and not return_obj_refs and not self.is_actor_healthy(actor_id):
                self.set_actor_state(actor_id, healthy=True)
            results.add_result(actor_id, outcome, tag)
        return fetched, results

    def _outcome(self, ref: Any, actor_id: int) -> ResultOrError:
        outcome = ResultOrError.of(self.backend.get, ref)
        error = outcome.error
        if error is not None:
            error.add_note(f"In actor {actor_id}.")
            if outcome.is_ray_error and not is_lost_object(error) and actor_id in self._states:
                if self.is_actor_healthy(actor_id):
                    logger.warning("Lost actor %d: %s", actor_id, error)
                self.set_actor_state(actor_id, healthy=False)
                self._states[actor_id].is_lost_for_good = _is_final(error)
        return outcome

    def _check_not_awaited(self) -> None:
        """Checks the finished calls of ``foreach_actor(..., timeout_seconds=0)``, which does not return their outcomes.

        Raises the first error of an actor's code, with notes about the other errors. Records the calls that failed
        because their actor is lost; `take_losses` returns these calls later.
        """
        if not self._not_awaited:
            return
        refs = list(self._not_awaited)
        ready, _ = self.backend.wait(refs, len(refs), 0.0, fetch=False)
        first: Exception | None = None
        for ref in ready:
            if ref not in self._not_awaited:
                continue
            actor_id = self._not_awaited.pop(ref)
            outcome = self._outcome(ref, actor_id)
            if outcome.is_ray_error:
                self._unreported.append(CallResult(error=outcome.error, actor_id=actor_id))
            elif first is None:
                first = outcome.error
            elif outcome.error is not None:
                first.add_note(f"Also raised in actor {actor_id}: {original_error(outcome.error)!r}")
        if first is not None:
            raise first


def original_error(error: BaseException) -> BaseException:
    """Exception that an actor's code raised, without Ray's wrapping and without the actor's traceback."""
    from ray.exceptions import RayTaskError

    return error.cause if isinstance(error, RayTaskError) else error


def is_lost_object(error: BaseException) -> bool:
    """Whether the result of a call was lost together with the node that stored it; the actor may still be alive."""
    from ray.exceptions import ObjectLostError

    return isinstance(error, ObjectLostError)


def _is_final(error: Exception) -> bool:
    from ray.exceptions import ActorDiedError

    return isinstance(error, ActorDiedError)
