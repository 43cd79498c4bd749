"""Line in the terminal about a slow iteration of ``train()``, which states whether the iteration compiles or runs."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Iterator
from typing import NamedTuple

from jaxrl_stack.utils.actor_setup import is_actor_process
from jaxrl_stack.utils.devices import num_joined_processes

SECONDS = 5.0
"""What takes longer is long."""
_LOOKS = 5
"""How often the running iteration is looked at in that time."""

_WHERE_JAX_COMPILES = ("jax/_src/compiler.py", "jax/_src/interpreters/partial_eval.py", "jax/_src/interpreters/mlir.py")
"""Ends of the paths of the files in which a thread is while JAX compiles, traces or lowers a program."""


class _Running(NamedTuple):
    """A running iteration: its number, thread, and start in seconds of `time.monotonic`."""

    iteration: int
    thread: int
    began: float


class LongIterations:
    """Prints one line about the first slow compilation, and one about the first slow iteration.

    It prints only if stderr is a terminal, and not in actors and joined processes. One thread watches all iterations,
    because starting a thread for each would slow down small iterations. It ends when no iteration runs.

    Args:
        name: Name of the algorithm.
    """

    def __init__(self, name: str):
        self._name = name
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._is_watched = False

    @contextlib.contextmanager
    def around(self, iteration: int) -> Iterator[None]:
        """Context manager that prints a line to the terminal if the enclosed training iteration takes long.

        If the iteration takes at least `SECONDS`, a background thread prints that the iteration is compiling, or that
        it is running. Each of these two lines is printed only once.

        Args:
            iteration: Number of the iteration, from 1.
        """
        if len(self._said) == 2 or not _is_heard():
            yield
            return
        with self._lock:
            self._running = _Running(iteration, threading.get_ident(), time.monotonic())
            if not self._is_watched:
                self._is_watched = True
                threading.Thread(target=self._watch, name="long iterations", daemon=True).start()
        try:
            yield
        finally:
            self._running = None

    def _watch(self) -> None:
        told_of: _Running | None = None
        while True:
            time.sleep(SECONDS / _LOOKS)
            with self._lock:
                running = self._running
                if running is None or len(self._said) == 2:
                    self._is_watched = False
                    return
            if running is not told_of and time.monotonic() - running.began >= SECONDS:
                told_of = running
                self._say(running.iteration, running.thread)

    def _say(self, iteration: int, thread: int) -> None:
        what = "compiling" if _is_compiling(thread) else "running"
        if what in self._said:
            return
        self._said.add(what)
        more = "later ones only run" if what == "compiling" else "learn() shows progress"
        line = f"{self._name}: iteration {iteration} has been {what} for {SECONDS:.0f} s; {more}."
        print(line, file=sys.stderr, flush=True)


def _is_heard() -> bool:
    stream = sys.stderr
    return stream is not None and stream.isatty() and not is_actor_process() and num_joined_processes() == 1


def _is_compiling(thread: int) -> bool:
    """Whether a thread is compiling a program, according to its stack."""
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_WHERE_JAX_COMPILES):
            return True
        frame = frame.f_back
    return False
