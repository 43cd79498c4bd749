"""Reports about actors that wait for resources of the Ray cluster, for the log and for progress displays."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_stack.utils.actor_backend import RAY, Backend

logger = logging.getLogger(__name__)

LINE_S = 10.0
"""Seconds between two lines of the log about the same actors."""

_reports: weakref.WeakSet[WaitingReport] = weakref.WeakSet()
_lock = threading.Lock()
"""Held while reports are added or listed: displays draw in other threads."""
listeners: list[Callable[[str], None]] = []
"""Called with each new line: displays, which otherwise would not be redrawn during a wait."""


def waiting_lines() -> list[str]:
    """Sorted lines of text for progress displays: the latest log line of each `WaitingReport` whose wait for actors has
    not ended.
    """
    with _lock:
        lines = [report.line for report in _reports]
    return sorted(line for line in lines if line is not None)


class WaitingReport:
    """Logs every ten seconds which Ray resources the missing actors of one role need.

    An actor is missing if it has not started, or has not restarted after a failure.

    Args:
        role: Name of the actors in messages, such as "EnvRunner".
        resources: Returns the Ray resources of one actor, or of all with `together`: ``{"CPU": ..., "GPU": ...,
            custom: ...}``.
        backend: Backend of the actors.
        group: Ray placement group of the actors. If it has its resources, only processes have to start.
        together: Whether the actors get their resources all at once or not at all.

    Attributes:
        line: The last line; None without one, or after the wait.
    """

    def __init__(
        self,
        role: str,
        resources: Callable[[], Mapping[str, float]],
        backend: Backend = RAY,
        *,
        group: Any = None,
        together: bool = False,
    ):
        self._role = role
        self._group = group
        self._resources = resources
        self._backend = backend
        self._since: float | None = None
        self._together = together
        self._num_lines = 0
        self.line: str | None = None
        with _lock:
            _reports.add(self)

    def note(self, number: int, obstacle: Callable[[], str | None] = lambda: None) -> None:
        """Updates the report during a wait for actors, and logs a line about these actors every ten seconds.

        Call this method repeatedly, with the number of actors that have not started, or have not restarted after a
        failure.

        Args:
            number: Number of missing actors; 0 ends the wait.
            obstacle: Returns the sentence of the line if the wait has another reason than missing resources.
        """
        if not number:
            self.end()
            return
        now = self._backend.now()
        if self._since is None:
            self._since, self._num_lines = now, 0
        seconds = now - self._since
        if seconds < LINE_S * (self._num_lines + 1):
            return
        self._num_lines = int(seconds // LINE_S)
        needed = {} if self._backend.is_reserved(self._group) else self._resources()
        free, total = self._backend.resources()
        reason = obstacle()
        self.line = waiting_text(self._role, number, seconds, needed, free, total, self._together, reason)
        logger.warning("%s", self.line)
        for listener in list(listeners):
            listener(self.line)

    def end(self) -> None:
        """Ends the reports about the current wait for actors.

        Called when the actors have started, or when the program no longer waits for them. The next call of `note`
        with missing actors starts a new wait.
        """
        self._since = self.line = None


def waiting_text(
    role: str,
    number: int,
    seconds: float,
    resources: Mapping[str, float],
    free: Mapping[str, float],
    total: Mapping[str, float],
    together: bool = False,
    obstacle: str | None = None,
) -> str:
    """Formats a log line about a wait for actors that have not started.

    The line names the Ray resources that the actors need, and the free and total amounts of the resources that the
    cluster lacks. If the wait has another reason (`obstacle`, or processes that still start), the line gives this
    reason instead.

    Args:
        role: Name of the actors.
        number: Number of missing actors.
        seconds: Duration of the wait so far, in seconds.
        resources: Resources of one actor that are not reserved, or of all with `together`.
        free: Free resources of the cluster.
        total: All resources of the cluster.
        together: Whether the actors get their resources all at once or not at all.
        obstacle: Sentence about another reason than missing resources.
    """
    many = number > 1
    actors = f"Waiting for {number} {role} actor{'s' * many} for {seconds:.0f} s"
    if obstacle is not None:
        return f"{actors}: {obstacle}"
    missing = [name for name, amount in resources.items() if free.get(name, 0) < amount]
    if not missing and not together:
        return f"{actors}: the cluster has the resources, and the process{'es start' if many else ' starts'}."
    need = ", ".join(f"{name}: {amount:g}" for name, amount in resources.items())
    has = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in missing or resources)
    scope = (" together" if together else " each") * many
    nodes = "" if missing else ", but not on nodes that can hold them" if many else ", but not on one node"
    return f"{actors}: {'they need' if many else 'it needs'} {need}{scope}; the cluster has {has} free{nodes}."
