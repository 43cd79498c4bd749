"""Ctrl-C at a chosen line, for tests of what it must leave whole."""

from __future__ import annotations

import contextlib
import functools
import itertools
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any


def interrupted(function: Callable[[], Any], path: str, number: int) -> bool:
    """Call a function, and press Ctrl-C before a line of it.

    Args:
        function: What is called, in the main thread.
        path: Only lines of source files count whose path ends like this.
        number: The line, counted from 0 as they are run.

    Returns:
        Whether so many lines were run. The function must raise KeyboardInterrupt then.
    """
    lines = itertools.count()
    came = False

    def local(frame: Any, event: str, arg: Any) -> Any:
        nonlocal came
        if event == "line" and next(lines) == number:
            came = True
            signal.raise_signal(signal.SIGINT)
        return local

    with _traced(lambda frame, event, arg: local if frame.f_code.co_filename.endswith(path) else None):
        try:
            function()
        except KeyboardInterrupt:
            assert came
            return True
    assert not came, f"nobody has noticed Ctrl-C at line {number}"
    return False


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function in which no lines count: tracing makes compilations three times as expensive."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        trace = sys.gettrace()
        sys.settrace(None)
        try:
            return function(*args, **kwargs)
        finally:
            sys.settrace(trace)

    return call


@contextlib.contextmanager
def _traced(tracer: Any) -> Iterator[None]:
    trace, handler = sys.gettrace(), signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.settrace(tracer)
    try:
        yield
    finally:
        sys.settrace(trace)
        signal.signal(signal.SIGINT, handler)


def at_every_line(make: Callable[[], Any], function: Callable[[Any], Any], path: str) -> Iterator[Any]:
    """New objects, each after `function` of it was interrupted at another line; of the last one it was not."""
    came, numbers = True, itertools.count()
    while came:
        made = make()
        came = interrupted(lambda made=made: function(made), path, next(numbers))
        yield made
