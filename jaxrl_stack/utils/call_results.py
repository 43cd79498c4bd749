"""Results and errors of calls to Ray actors, as values."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any


@dataclasses.dataclass(frozen=True)
class ResultOrError:
    """Outcome of a call to an actor: its result, or the error that it raised.

    Attributes:
        result: Return value.
        error: Exception of the call, or the reason for no answer; None if it succeeded.
    """

    result: Any = None
    error: Exception | None = None

    @classmethod
    def of(cls, call: Callable[..., Any], *args: Any) -> ResultOrError:
        """Calls ``call(*args)`` in this process and returns its result or error as an outcome."""
        try:
            return cls(result=call(*args))
        except Exception as error:
            return cls(error=error)

    @property
    def ok(self) -> bool:
        """Whether the call returned a result instead of raising an error."""
        return self.error is None

    @property
    def is_ray_error(self) -> bool:
        """Whether a call failed because the actor, its node or the connection failed. False if the actor's code raised
        the error, or if the call succeeded.
        """
        if self.error is None:
            return False
        from ray.exceptions import RayError, RayTaskError

        return isinstance(self.error, RayError) and not isinstance(self.error, RayTaskError)

    def get(self) -> Any:
        """Returns the result of the call, or its exception without raising it."""
        return self.result if self.error is None else self.error


@dataclasses.dataclass(frozen=True)
class CallResult(ResultOrError):
    """Result or error of a call to one actor, with the actor's id.

    Attributes:
        actor_id: The actor.
        tag: Tag of the request.
    """

    actor_id: int = 0
    tag: str | None = None

    @property
    def result_or_error(self) -> ResultOrError:
        """Outcome of the call: this object itself (`self`), so that code written for RLlib can read
        ``call.result_or_error``.
        """
        return self


class RemoteCallResults(list[CallResult]):
    """Results and errors of calls to several actors, in the order of the calls; calls that did not finish in time are
    missing.
    """

    @property
    def result_or_errors(self) -> list[CallResult]:
        """List of the calls' outcomes: this object itself (`self`), so that code written for RLlib can read
        ``results.result_or_errors``.
        """
        return self

    def add_result(self, actor_id: int, result_or_error: ResultOrError, tag: str | None = None) -> None:
        """Appends the result or error of one call to the list."""
        self.append(CallResult(result_or_error.result, result_or_error.error, actor_id, tag))

    def ignore_errors(self) -> Iterator[CallResult]:
        """Yields only the outcomes of calls that returned a result, not of failed calls."""
        return (call for call in self if call.ok)

    def ignore_ray_errors(self) -> Iterator[CallResult]:
        """Yields the outcomes of all calls except those that failed because their actor is dead or unreachable."""
        return (call for call in self if not call.is_ray_error)
