"""FakeActors: actors in this process, with a virtual clock, that can be lost, stalled and delayed on purpose.

It is a `jaxrl_stack.utils.actor_backend.Backend`, without processes, threads or sleeps of its own, so that the same
calls have the same outcomes in the same order. Arguments, results and exceptions are pickled as on their way to another
process. Failures are Ray's exceptions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import pytest
import ray.cloudpickle
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, OwnerDiedError, RayTaskError

from jaxrl_stack.utils import actor_setup, resources
from jaxrl_stack.utils.actor_backend import RAY, Backend

_BACKENDS: weakref.WeakValueDictionary[int, FakeActors] = weakref.WeakValueDictionary()
"""Backends by number: pickled handles and references find theirs here."""
_numbers = itertools.count()
_running: list[_Process] = []
"""Processes whose code runs now, the innermost last."""
_turn = threading.RLock()
"""Held by the thread that runs code of actors. Learners, and evaluations beside training, call actors in threads."""


def work(seconds: float) -> None:
    """Take virtual time, in code of an actor: its answer, and its next calls, come that much later."""
    _running[-1].worked += seconds


def _copied(value: Any) -> Any:
    return ray.cloudpickle.loads(ray.cloudpickle.dumps(value))


class _Known:
    """Something that is the same object after it was pickled."""

    def __init__(self, backend: FakeActors):
        self.backend, self.number = backend, next(_numbers)
        backend.known[self.number] = self

    def __reduce__(self) -> Any:
        return _known, (id(self.backend), self.number)


def _known(backend: int, number: int) -> Any:
    return _BACKENDS[backend].known[number]


class Ref(_Known):
    """Reference of a result, or of a value that was put.

    Attributes:
        ready_at: Virtual time at which the outcome is there; infinity before it is known.
        outcome: Returns the result, or raises.
    """

    def __init__(self, backend: FakeActors):
        super().__init__(backend)
        self.ready_at = math.inf
        self.outcome: Callable[[], Any] = lambda: None

    def settle(self, ready_at: float, outcome: Callable[[], Any]) -> None:
        self.ready_at, self.outcome = ready_at, outcome

    def hex(self) -> str:
        return f"{self.number:056x}"


class Handle(_Known):
    """Handle of an actor: ``handle.method.remote(...)``."""

    def __init__(self, backend: FakeActors, process: _Process):
        super().__init__(backend)
        self._process = process

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)


@dataclasses.dataclass(frozen=True)
class _Method:
    handle: Handle
    name: str
    num_returns: int = 1

    def options(self, *, num_returns: int) -> _Method:
        return dataclasses.replace(self, num_returns=num_returns)

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return self.handle.backend.submit(self, _copied((args, kwargs)))


@dataclasses.dataclass
class _Call:
    method: str
    arguments: tuple[tuple[Any, ...], dict[str, Any]]
    refs: list[Ref]
    sent_at: float


class _Process:
    """A process of an actor, and after a restart the next one.

    Attributes:
        instance: The actor's object; None before it is constructed.
        up_at: Time from which it takes calls.
        free_at: Time at which it is done with all calls that have run.
        worked: Time that the running call has taken.
        delays: Delays of its next answers.
        num_lost_results: Number of its next results that are lost.
        death: Error of calls of an actor that does not come back; None for one that lives or comes back.
    """

    def __init__(self, cls: type, options: Mapping[str, Any], kwargs: dict[str, Any], now: float):
        self.cls, self.options, self.kwargs = cls, dict(options), kwargs
        self.instance: Any = None
        self.num_restarts = 0
        self.up_at = self.free_at = now
        self.worked = 0.0
        self.queue: collections.deque[_Call] = collections.deque()
        self.unanswered: list[Ref] = []
        self.delays: collections.deque[float] = collections.deque()
        self.num_lost_results = 0
        self.death: Callable[[], Exception] | None = None

    @property
    def next_start(self) -> float:
        """Time at which the next call runs; infinity without one."""
        return max(self.queue[0].sent_at, self.up_at, self.free_at) if self.queue else math.inf

    def run(self, function: Callable[[], Any]) -> Any:
        _running.append(self)
        self.worked = 0.0
        try:
            # The code finds itself in an actor whose process is set up: it is this one.
            context = types.SimpleNamespace(was_current_actor_reconstructed=self.num_restarts > 0)
            with mock.patch.multiple(actor_setup, _context_of_actor=lambda: context, _is_set_up=True):
                return function()
        finally:
            _running.pop()


class FakeActors:
    """Backend whose actors are objects of this process.

    An actor runs one call after the other, in no time unless it takes some by `work`. The clock only moves while
    something is waited for. A wait that cannot end is an error.

    Args:
        restart_s: Virtual seconds from the loss of an actor until the next process takes calls.

    Attributes:
        start_s: Virtual seconds from the start of an actor until it takes calls.
        started: ``(class, options)`` of all actors, in the order of their starts.
        puts: Values that were put.
        handles: Handles of all actors, likewise.
        free, total: Resources of the cluster.
    """

    is_running = True

    def __init__(self, *, restart_s: float = 0.5):
        self.restart_s = restart_s
        self.start_s = 0.0
        self.known: dict[int, Any] = {}
        self.started: list[tuple[type, dict[str, Any]]] = []
        self.puts: list[Any] = []
        self.handles: list[Handle] = []
        self.free: dict[str, float] = {"CPU": 8.0}
        self.total: dict[str, float] = {"CPU": 8.0}
        self._now = 0.0
        self._processes: list[_Process] = []
        self._lost: set[Ref] = set()
        _BACKENDS[id(self)] = self

    # --------------------------------------------------------------------------------------------------------- backend

    def start(self, cls: type, options: Mapping[str, Any], /, **kwargs: Any) -> Handle:
        process = _Process(cls, options, _copied(kwargs), self._now + self.start_s)
        self._processes.append(process)
        self.started.append((cls, dict(options)))
        self.handles.append(Handle(self, process))
        return self.handles[-1]

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        if isinstance(refs, list | tuple):
            return [self.get(ref, timeout_s) for ref in refs]
        if not self.wait([refs], 1, timeout_s)[0]:
            raise GetTimeoutError(f"No result within {timeout_s} s.")
        if refs in self._lost:
            raise OwnerDiedError(refs.hex(), None, "")
        return refs.outcome()

    def wait(
        self, refs: Sequence[Any], n: int = 1, timeout_s: float | None = None, *, fetch: bool = True
    ) -> tuple[list[Any], list[Any]]:
        def ready() -> list[Ref]:
            return [ref for ref in refs if ref.ready_at <= self._now][:n]

        until = math.inf if timeout_s is None else self._now + timeout_s
        self._advance(until, lambda: len(ready()) >= min(n, len(refs)))
        found = ready()
        return found, [ref for ref in refs if ref not in found]

    def put(self, value: Any) -> Ref:
        self.puts.append(value)
        ref, pickled = Ref(self), ray.cloudpickle.dumps(value)
        ref.settle(self._now, lambda: ray.cloudpickle.loads(pickled))
        return ref

    def is_reference(self, value: Any) -> bool:
        return isinstance(value, Ref)

    def kill(self, actor: Handle, *, restart: bool = False) -> None:
        self._end(actor._process, restart=restart)

    def resources(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        return self.free, self.total

    def is_reserved(self, group: Any) -> bool:
        return group == "reserved"

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._advance(self._now + seconds, lambda: False)

    # ---------------------------------------------------------------------------------------------------------- faults

    def lose(self, actor: Handle) -> None:
        """End an actor's process now, as if it was killed: it is restarted if its ``max_restarts`` allow it."""
        self._end(actor._process, restart=True)

    def stall(self, actor: Handle, seconds: float) -> None:
        """Have an actor do nothing for that long, as if its process was stopped; then it continues."""
        process = actor._process
        process.free_at = max(process.free_at, self._now) + seconds

    def delay(self, actor: Handle, *seconds: float) -> None:
        """Deliver the next answers of an actor that much later; meanwhile it continues."""
        actor._process.delays.extend(seconds)

    def lose_results(self, actor: Handle, number: int = 1) -> None:
        """`lose_object` of the next results of an actor."""
        actor._process.num_lost_results += number

    def lose_object(self, ref: Ref) -> None:
        """Have a result be gone, as if its node was lost; the actor is well."""
        self._lost.add(ref)

    # ------------------------------------------------------------------------------------------------------- the clock

    def submit(self, method: _Method, arguments: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        """Take a call of an actor's method."""
        process = method.handle._process
        refs = [Ref(self) for _ in range(method.num_returns)]
        with _turn:
            if process.death is not None:
                _fail(refs, self._now, process.death)
            elif process.num_restarts and self._now < process.up_at:
                _fail(refs, self._now, _unavailable)
            else:
                process.queue.append(_Call(method.name, arguments, refs, self._now))
        return refs[0] if method.num_returns == 1 else refs

    def _advance(self, until: float, is_over: Callable[[], bool]) -> None:
        """Run calls in the order of their starts until a time, or until something is over."""
        with _turn:
            self._advance_in_turn(until, is_over)

    def _advance_in_turn(self, until: float, is_over: Callable[[], bool]) -> None:
        while not is_over():
            process = min(self._processes, key=lambda p: p.next_start, default=None)
            start = math.inf if process is None else process.next_start
            answers = [r.ready_at for p in self._processes for r in p.unanswered if r.ready_at > self._now]
            event = min(start, *answers) if answers else start
            if event > until:
                self._now = max(self._now, until)
                return
            if math.isinf(event):
                raise RuntimeError("A wait without a timeout for what no actor will answer.")
            self._now = max(self._now, event)
            if start <= self._now:
                assert process is not None
                self._run(process)

    def _run(self, process: _Process) -> None:
        call = process.queue.popleft()
        if process.instance is None:
            try:
                kwargs = {name: self._value(value) for name, value in _copied(process.kwargs).items()}
                process.instance = process.run(lambda: process.cls(**kwargs))
            except Exception as error:
                died = _task_error(f"{process.cls.__name__}.__init__", error)
                process.queue.appendleft(call)
                self._die(process, lambda: ActorDiedError.from_task_error(died))
                return
        args, kwargs = call.arguments
        args, kwargs = [self._value(each) for each in args], {name: self._value(each) for name, each in kwargs.items()}
        num_returns = len(call.refs)
        try:
            result = process.run(lambda: getattr(process.instance, call.method)(*args, **kwargs))
            results = [result] if num_returns == 1 else list(result)
            pickled = [ray.cloudpickle.dumps(each) for each in results]
            outcomes = [lambda each=each: ray.cloudpickle.loads(each) for each in pickled]
        except Exception as error:
            failed = _task_error(f"{process.cls.__name__}.{call.method}", error)
            outcomes = [lambda: _raise(failed.as_instanceof_cause())] * num_returns
        process.free_at = self._now + process.worked
        ready_at = process.free_at + (process.delays.popleft() if process.delays else 0.0)
        for ref, outcome in zip(call.refs, outcomes, strict=True):
            ref.settle(ready_at, outcome)
        if process.num_lost_results:
            process.num_lost_results -= 1
            self._lost.update(call.refs)
        process.unanswered = [r for r in process.unanswered if r.ready_at > self._now] + call.refs

    def _value(self, argument: Any) -> Any:
        if not isinstance(argument, Ref):
            return argument
        assert argument.ready_at <= self._now, "a result that is not there yet cannot be an argument"
        return argument.outcome()

    def _end(self, process: _Process, *, restart: bool) -> None:
        if process.death is not None:
            return
        limit = process.options.get("max_restarts", 0)
        if not restart or process.num_restarts == limit:
            self._die(process, ActorDiedError)
            return
        process.num_restarts += 1
        self._drop_calls(process, _unavailable)
        process.instance = None
        process.up_at = process.free_at = self._now + self.restart_s

    def _die(self, process: _Process, death: Callable[[], Exception]) -> None:
        process.death, process.instance = death, None
        self._drop_calls(process, death)

    def _drop_calls(self, process: _Process, error: Callable[[], Exception]) -> None:
        under_way = [ref for ref in process.unanswered if ref.ready_at > self._now]
        _fail([*under_way, *(ref for call in process.queue for ref in call.refs)], self._now, error)
        process.queue.clear()
        process.delays.clear()
        process.unanswered = []


@contextlib.contextmanager
def in_place_of_ray(*, restart_s: float = 0.5) -> Iterator[FakeActors]:
    """Have the library start all of its actors as `FakeActors` meanwhile, for whole algorithms without Ray.

    What asks Ray itself for resources, such as placement groups, is left out.
    """
    fake = FakeActors(restart_s=restart_s)
    with pytest.MonkeyPatch.context() as patch:
        for name in vars(Backend):
            if not name.startswith("_") and name != "is_running":
                patch.setattr(RAY, name, getattr(fake, name))
        patch.setattr(type(RAY), "is_running", fake.is_running)
        patch.setattr(resources, "start_ray_if_needed", lambda *args: resources.RayLease(None))
        patch.setattr(resources, "check_resources", lambda config: None)
        patch.setattr(resources, "create_placement", lambda config: resources.Placement())
        yield fake


def _fail(refs: Sequence[Ref], now: float, error: Callable[[], Exception]) -> None:
    for ref in refs:
        ref.settle(now, lambda: _raise(error()))


def _unavailable() -> Exception:
    return ActorUnavailableError("The actor is being restarted.", None)


def _task_error(name: str, error: Exception) -> RayTaskError:
    text = "".join(traceback.format_exception(error))
    return RayTaskError(name, text, _copied(error), proctitle="fake actor", pid=1, ip="127.0.0.1")


def _raise(error: Exception) -> Any:
    raise error
