"""Copies of training states, to continue after a failed call of a compiled program.

The program donates the original state (reuses the memory of the state), so the original is lost if the call fails.
"""

from __future__ import annotations

import time
import weakref
from typing import Any, NoReturn

import jax
import jax.numpy as jnp

from jaxrl_stack.utils.devices import num_joined_processes

LARGEST_SHARE = 0.005
"""Largest fraction of time for copies. An update of a small network takes hardly longer than a copy of its state."""


class Snapshots:
    """Takes snapshots of a state, and keeps the last one.

    A snapshot is a copy of the state on the same devices. Call `before_call` before each call of the compiled program
    that donates the state (reuses the memory of the state): `before_call` takes a snapshot if one is due.

    A program may fail while it runs, because a host callback raises or an accelerator's memory is full. The arrays that
    were donated to it are then lost, and training can only continue from the last snapshot.

    Args:
        interval: Minimum number of calls between two copies, unless other code replaces the state. The number of calls
            is larger if copies would otherwise take more than `LARGEST_SHARE` of the time.

    Attributes:
        state: The copied arguments of `before_call`; None before the first call and after `forget`.
        num_calls: Number of successful calls since the copy.
        changes: ``(number of calls, change)`` of changes between calls since the copy, to repeat with the calls.
    """

    def __init__(self, interval: int):
        self.state: tuple[Any, ...] | None = None
        self.num_calls = 0
        self.changes: list[tuple[int, Any]] = []
        self._interval = interval
        self._newest: tuple[weakref.ref[Any], ...] = ()
        self._next_at = 0.0
        self._is_compiled = False

    def before_call(self, *state: Any) -> bool:
        """Copies the state that the next call of the compiled program donates, if a copy is due.

        A copy is due before the first call, after at least `interval` calls since the last copy, and after other code
        has replaced the state. Never copies if several JAX processes are joined: after a failure, the processes would
        continue from different calls, so all of them restart from a checkpoint.

        Args:
            *state: Dataclasses of arrays. A replaced part is recognised by its identity.

        Returns:
            Whether it has copied the state.
        """
        if num_joined_processes() > 1:
            return False
        is_newest = len(state) == len(self._newest) and all(
            ref() is part for ref, part in zip(self._newest, state, strict=True)
        )
        if is_newest and (self.num_calls < self._interval or time.perf_counter() < self._next_at):
            return False
        self.forget()  # Never two copies at a time.
        if not self._is_compiled:  # What that takes is no measure of a copy.
            _copied(state)
            self._is_compiled = True
        started = time.perf_counter()
        self.state = jax.block_until_ready(_copied(state))
        ended = time.perf_counter()
        self._next_at = ended + (ended - started) / LARGEST_SHARE
        self._newest = tuple(map(weakref.ref, state))
        return True

    def after_call(self, *state: Any) -> None:
        """Counts a successful call of the compiled program.

        Records `state`, which the call returned, as the newest state, so that `before_call` notices if other code
        replaces this state.
        """
        self.num_calls += 1
        self._newest = tuple(map(weakref.ref, state))

    def renamed(self, old: Any, new: Any) -> None:
        """Records that `new` has replaced `old`, a part of the newest state.

        Without this record, the next call of `before_call` would take a new snapshot because of the replacement.
        """
        self._newest = tuple(weakref.ref(new) if ref() is old else ref for ref in self._newest)

    def changed(self, old: Any, new: Any, change: Any) -> None:
        """Records that a function has replaced a part of the state between two calls of the compiled program.

        The function `change` has replaced the part `old` by `new`. The replacement does not cause a new snapshot. If a
        snapshot exists, stores `change` in the list `changes`: code that repeats the program's calls since this
        snapshot also repeats `change`.

        Args:
            old, new: Parts of the state.
            change: The change, for `changes`.
        """
        self.renamed(old, new)
        if self.state is not None:
            self.changes.append((self.num_calls, change))

    def forget(self) -> None:
        """Deletes the snapshot (copy of the state) to free its memory. The next `before_call` takes a new snapshot."""
        self.state, self.num_calls, self.changes, self._newest = None, 0, [], ()


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)


def is_lost(*state: Any) -> bool:
    """Whether arrays of a state are no longer readable, because a program failed. Waits for the programs that compute
    these arrays.

    The arrays were donated to a program that failed, or are results of such a program.
    """
    try:
        jax.block_until_ready(state)
    except Exception:
        return True
    return False


def reraise(error: BaseException, message: str) -> NoReturn:
    """Raises a RuntimeError from `error`, with `message` and the text of `error`.

    `message` describes the state that a failed program has lost. If `error` is an interruption such as
    KeyboardInterrupt, raises `error` itself again, with `message` as a note.

    Raises:
        RuntimeError: From `error`, if that is an `Exception`; else `error` itself is raised, with a note.
    """
    if isinstance(error, Exception):
        raise RuntimeError(f"{message} The error was: {type(error).__name__}: {error}") from error
    error.add_note(message)
    raise error
