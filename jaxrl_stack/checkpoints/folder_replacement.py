"""Atomic replacement and removal of folders, even if the process is killed during the operation."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_writing = threading.Lock()


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Context manager that creates a new folder next to `target`, and yields its path. At the end of the block, the new
    folder replaces `target` atomically.

    The next process removes files that a killed process has left there. Threads of one process run in sequence.
    """
    with _writing:
        target.parent.mkdir(parents=True, exist_ok=True)
        put_back(target)
        for left in _beside(target, "new|old"):
            with contextlib.suppress(OSError), _locked(left) as is_left:
                if is_left:
                    shutil.rmtree(left, ignore_errors=True)
        token = f"{os.getpid()}.{secrets.token_hex(4)}"
        aside, old = (target.parent / f".{target.name}.{kind}.{token}" for kind in ("new", "old"))
        aside.mkdir()
        try:
            with _locked(aside):
                yield aside
                _put_in_place(aside, target, old)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def remove(target: Path) -> None:
    """Removes a folder, and also the remains that killed processes left next to it.

    The folder is renamed first, so that its path never contains a partly removed folder.
    """
    with _writing:
        gone = target.with_name(f".{target.name}.gone.{os.getpid()}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):
            os.rename(target, gone)
        for left in _beside(target, "gone", of_any_name=True):
            shutil.rmtree(left, ignore_errors=True)


def put_back(target: Path) -> None:
    """Undoes an interrupted replacement: moves the former folder back to the path `target`. Has no effect if `target`
    is a folder with content.
    """
    for old in _beside(target, "old"):
        # Fails if there is one again.
        with contextlib.suppress(OSError):
            os.rename(old, target)


def _beside(target: Path, kinds: str, *, of_any_name: bool = False) -> list[Path]:
    stem = ".+" if of_any_name else re.escape(target.name)
    name = re.compile(rf"\.{stem}\.({kinds})\.\d+\.[0-9a-f]{{8}}")
    return [path for path in target.parent.iterdir() if name.fullmatch(path.name)] if target.parent.is_dir() else []


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Context manager that locks a folder for this process, until the block or the process ends.

    Yields False if another process works on it.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield _is_free(descriptor, folder)
    finally:
        os.close(descriptor)


def _is_free(descriptor: int, folder: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        # Some network file systems have no locks: the process that the name names tells as much on one machine.
        return not Path("/proc", folder.name.split(".")[-2]).exists()
    return True


def _put_in_place(aside: Path, target: Path, old: Path) -> None:
    """Moves the new folder `aside` to the path `target`. If `target` already is a folder with content, that old folder
    is at the path `aside` afterwards.

    Other processes and threads may add or remove folders between any two of these calls.
    """
    with contextlib.ExitStack() as locks:
        while True:
            try:
                os.rename(aside, target)  # unless there is something
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    put_back(target)
                    raise
            if _exchange(aside, target):
                return
            # Where the system cannot do that, nothing is in its place for a moment; `put_back` finds it.
            shutil.rmtree(old, ignore_errors=True)
            with contextlib.suppress(FileNotFoundError):
                locks.enter_context(_locked(target))
                os.rename(target, old)
        with contextlib.suppress(FileNotFoundError):
            os.rename(old, aside)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges the folders at two paths atomically; returns False if the exchange failed or is not supported."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
