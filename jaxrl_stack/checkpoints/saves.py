"""Checkpoints that a thread writes in the background."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

_MAX_WAITING = 4


class Finished(NamedTuple):
    """Result of saving a checkpoint in the background, with or without an error.

    Attributes:
        seconds: Duration.
        at: Time of its end, of `time.perf_counter`.
        has_failed: Whether it ended with an error.
    """

    seconds: float
    at: float
    has_failed: bool


class Saves:
    """Queue of checkpoints that a thread writes one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._running: list[tuple[str, concurrent.futures.Future[None]]] = []
        self._finished: dict[str, Finished] = {}
        # Before the pools of this process close, at its end, which other file systems need; `atexit` is later.
        threading._register_atexit(self.wait)  # pyright: ignore[reportAttributeAccessIssue]

    def run(self, path: str, task: Callable[[], None], blocking: bool) -> None:
        """Runs a task that saves a checkpoint, in the calling thread or in the background thread.

        If `blocking` is True, the calling thread runs the task, otherwise the background thread. Tasks for the same
        path run in order.
        """
        if blocking:
            self.wait(path)
            task()
            return

        def timed() -> None:
            started, has_failed = time.perf_counter(), True
            try:
                task()
                has_failed = False
            finally:
                ended = time.perf_counter()
                self._finished[path] = Finished(ended - started, ended, has_failed)

        self._finished.pop(path, None)
        with self._lock:
            waiting = [future for _, future in self._running if not future.done()]
            self._running.append((path, self._pool.submit(timed)))
        # Each holds a copy of its state: saving faster than the disk takes it has to wait.
        concurrent.futures.wait(waiting[: 1 - _MAX_WAITING])

    def wait(self, path: str | None = None) -> None:
        """Waits for the saves to a path or to a folder that contains it; without a path, for all saves. Raises the
        errors of these saves.
        """
        self._collect(lambda key, future: path is None or f"{path}{os.sep}".startswith(f"{key}{os.sep}"))

    def finished(self, path: str) -> Finished | None:
        """Returns the result of the last background save to a path; None if that save has not ended, or
        there was none.
        """
        return self._finished.get(path)

    def raise_failed(self) -> None:
        """If background saves have ended with errors, raises the first of these errors. Does not wait for saves in
        progress.
        """
        self._collect(lambda key, future: future.done())

    def _collect(self, is_wanted: Callable[[str, concurrent.futures.Future[None]], bool]) -> None:
        with self._lock:
            wanted = [(key, future) for key, future in self._running if is_wanted(key, future)]
            self._running = [item for item in self._running if item not in wanted]
        errors = [(key, error) for key, future in wanted if (error := future.exception()) is not None]
        if errors:
            first = errors[0][1]
            for key, error in errors:
                first.add_note(f"While saving to {key} with blocking=False: {error!r}")
            raise first


saves = Saves()


def wait_for_saves() -> None:
    """Waits until all checkpoints that were saved with ``blocking=False`` are written.

    Raises:
        OSError: If a save has failed.
    """
    saves.wait()
