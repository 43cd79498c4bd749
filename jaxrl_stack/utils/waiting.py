"""Reports about actors that wait for resources of the Ray cluster, for the log and for progress displays."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from jaxrl_stack.utils.actor_backend import RAY, Backend

logger = logging.getLogger(__name__)

LINE_S = 10.0
"""Seconds between two lines of the log about the same actors."""

_current: dict[int, str] = {}


def waiting_lines() -> list[str]:
    """Latest report of each group of actors that still waits for Ray resources, for progress displays."""
    return list(_current.values())


class WaitingReport:
    """Logs every ten seconds which Ray resources are needed by the missing actors of one role: actors that have not
    started, or not restarted.

    Args:
        role: Name of the actors in messages, such as "EnvRunner".
        resources: Returns the Ray resources of one actor, ``{"CPU": ..., "GPU": ..., custom: ...}``.
        backend: Backend of the actors.
        group: Ray placement group of the actors. If it has its resources, only processes have to start.
    """

    def __init__(
        self, role: str, resources: Callable[[], Mapping[str, float]], backend: Backend = RAY, *, group: Any = None
    ):
        self._role = role
        self._group = group
        self._resources = resources
        self._backend = backend
        self._since: float | None = None
        self._num_lines = 0

    def note(self, number: int) -> None:
        """Notes the number of missing actors; logs a report about them if the last one is ten seconds old.

        Args:
            number: Number of missing actors; 0 ends the wait.
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
        line = waiting_text(self._role, number, seconds, needed, *self._backend.resources())
        _current[id(self)] = line
        logger.warning("%s", line)

    def end(self) -> None:
        """Ends the reports about this wait: the actors have started, or nobody waits for them any longer."""
        self._since = None
        _current.pop(id(self), None)


def waiting_text(
    role: str,
    number: int,
    seconds: float,
    resources: Mapping[str, float],
    free: Mapping[str, float],
    total: Mapping[str, float],
) -> str:
    """Formats a report about actors that have not started, with the resources that they need and the cluster lacks.

    Args:
        role: Name of the actors.
        number: Number of missing actors.
        seconds: Duration of the wait so far, in seconds.
        resources: Resources of one actor that are not reserved.
        free: Free resources of the cluster.
        total: All resources of the cluster.
    """
    many = number > 1
    actors = f"Waiting for {number} {role} actor{'s' * many} for {seconds:.0f} s"
    missing = [name for name, amount in resources.items() if free.get(name, 0) < amount]
    if not missing:
        return f"{actors}: the cluster has the resources, and the process{'es start' if many else ' starts'}."
    need = ", ".join(f"{name}: {amount:g}" for name, amount in resources.items())
    has = ", ".join(f"{free.get(name, 0):g} of {total.get(name, 0):g} {name}" for name in missing)
    return f"{actors}: {'they need' if many else 'it needs'} {need}{' each' * many}; the cluster has {has} free."
