"""Interface to actor processes, and its implementation with Ray."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class Backend(Protocol):
    """Interface to a backend that starts actors, waits for results of their calls, and stops them.

    A handle from `start` calls methods as Ray's do: ``handle.method.remote(*args, **kwargs)`` returns a reference, and
    ``handle.method.options(num_returns=n).remote(...)`` returns n of them. Lost actors and objects are exceptions of
    ``ray.exceptions`` in every backend.
    """

    @property
    def is_running(self) -> bool:
        """Whether actors can be called: False after Ray was shut down."""
        ...

    def start(self, cls: type, options: Mapping[str, Any], /, **kwargs: Any) -> Any:
        """Starts an actor of a class and returns its handle.

        Args:
            cls: Class of the actor.
            options: Ray's options of an actor, such as ``num_cpus`` and ``max_restarts``.
            **kwargs: Arguments of the class.

        Returns:
            The handle of the actor, which may not have started yet.
        """
        ...

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        """Returns the result of a call to an actor from its reference, or a list of results for a list of references.

        Raises:
            Exception: Error of the call, or the loss of the actor.
        """
        ...

    def wait(
        self, refs: Sequence[Any], n: int = 1, timeout_s: float | None = None, *, fetch: bool = True
    ) -> tuple[list[Any], list[Any]]:
        """Waits until `n` calls of actors have finished, or `timeout_s` has passed; returns the references of the
        finished calls and of the other calls.

        Args:
            refs: References of their results.
            n: Number of results to wait for; at most this many are returned as ready.
            timeout_s: Longest wait; None waits forever.
            fetch: Bring the results to this node.

        Returns:
            ``(ready, not ready)``, both in the order of `refs`.
        """
        ...

    def put(self, value: Any) -> Any:
        """Stores a value that all actors can read, and returns a reference."""
        ...

    def kill(self, actor: Any, *, restart: bool = False) -> None:
        """Kills an actor; does nothing if the backend no longer runs.

        Args:
            actor: Handle of the actor.
            restart: Start it again, which is one of its ``max_restarts``.
        """
        ...

    def resources(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        """Ray resources of all nodes of the cluster, ``(free, total)``.

        Resources that placement groups have reserved are only in `total`. Ray's extra entries for each placement group
        (``CPU_group_...``) are left out.
        """
        ...

    def is_reserved(self, group: Any) -> bool:
        """Whether Ray has reserved the resources of all bundles of a placement group; False for other objects."""
        ...

    def now(self) -> float:
        """Time in seconds of a monotonic clock."""
        ...

    def sleep(self, seconds: float) -> None:
        """Waits for a number of seconds."""
        ...


class RayBackend:
    """Actors run by Ray, which is imported when the first actor starts."""

    @property
    def is_running(self) -> bool:
        # Ray is imported only where it runs, and a checkout can be checked without it.
        import ray  # pyright: ignore[reportMissingImports]

        return ray.is_initialized()

    def __init__(self) -> None:
        self._last: tuple[type | None, Any] = (None, None)

    def start(self, cls: type, options: Mapping[str, Any], /, **kwargs: Any) -> Any:
        import ray  # pyright: ignore[reportMissingImports]

        # All actors of a group have one remote class: Ray exports each remote class to the cluster once.
        if self._last[0] is not cls:
            self._last = (cls, ray.remote(cls))
        return self._last[1].options(**options).remote(**kwargs)

    def get(self, refs: Any, timeout_s: float | None = None) -> Any:
        import ray  # pyright: ignore[reportMissingImports]

        return ray.get(refs) if timeout_s is None else ray.get(refs, timeout=timeout_s)

    def wait(
        self, refs: Sequence[Any], n: int = 1, timeout_s: float | None = None, *, fetch: bool = True
    ) -> tuple[list[Any], list[Any]]:
        import ray  # pyright: ignore[reportMissingImports]

        return ray.wait(list(refs), num_returns=n, timeout=timeout_s, fetch_local=fetch) if refs else ([], [])

    def put(self, value: Any) -> Any:
        import ray  # pyright: ignore[reportMissingImports]

        return ray.put(value)

    def kill(self, actor: Any, *, restart: bool = False) -> None:
        import ray  # pyright: ignore[reportMissingImports]

        if ray.is_initialized():
            ray.kill(actor, no_restart=not restart)

    def resources(self) -> tuple[Mapping[str, float], Mapping[str, float]]:
        import ray  # pyright: ignore[reportMissingImports]

        both = ray.available_resources(), ray.cluster_resources()
        free, total = ({name: n for name, n in each.items() if "_group_" not in name} for each in both)
        return free, total

    def is_reserved(self, group: Any) -> bool:
        from ray.util.placement_group import PlacementGroup, placement_group_table

        return isinstance(group, PlacementGroup) and placement_group_table(group).get("state") == "CREATED"

    def now(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


RAY: Backend = RayBackend()
"""The backend of all actors, except in tests."""


def start_actors(
    cls: type,
    arguments: Sequence[Mapping[str, Any]],
    *,
    options: Mapping[str, Any],
    max_restarts: int,
    strategies: Sequence[Any] = (),
    backend: Backend = RAY,
) -> list[Any]:
    """Starts several actors of one class, and returns their handles.

    Args:
        cls: Class of the actors.
        arguments: Keyword arguments of each.
        options: Resources of each: ``num_cpus``, ``num_gpus``, ``resources``; see `resources.actor_options`.
        max_restarts: Number of times that an actor that died is started again; -1 for no limit.
        strategies: Ray's ``scheduling_strategy`` of each, or None; empty if Ray places all.
        backend: Backend of the actors: Ray, or a fake for tests.

    Returns:
        Their handles.
    """
    handles = []
    for i, own in enumerate(arguments):
        strategy = strategies[i] if strategies else None
        placed = {} if strategy is None else {"scheduling_strategy": strategy}
        handles.append(backend.start(cls, {**options, "max_restarts": max_restarts, **placed}, **own))
    return handles
