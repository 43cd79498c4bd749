"""Context manager that delays Ctrl-C until the end of a block."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Context manager that delays a first Ctrl-C to the end of the block; a second one interrupts immediately.

    For calls of programs that donate their arguments, together with the assignment of their results: the call itself
    cannot be interrupted, so Python raises KeyboardInterrupt after it, when the old state is gone and the new one has
    no name yet.

    If the block raises, KeyboardInterrupt is raised with that error as its context: a stop that was
    asked for has to happen.

    Outside of the main thread, which alone gets signals, the block runs as it is.
    """
    handler = signal.getsignal(signal.SIGINT)
    # Not callable: ignored, or handled outside of Python.
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    waiting: list[tuple[Any, ...]] = []

    def defer(*args: Any) -> None:
        if waiting:
            handler(*args)
        waiting.append(args)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if waiting:
            handler(*waiting[0])
