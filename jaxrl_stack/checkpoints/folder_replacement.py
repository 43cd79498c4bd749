"""Folders that take the place of others in one moment, whichever process is killed on the way."""

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
    """A folder to write in, beside `target`, whose place it takes in one moment at the end of the block.

    What a process leaves there that is killed is removed by the next one. Threads of one process follow each other.
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


def put_back(target: Path) -> None:
    """Put a folder back whose replacement was interrupted between taking it away and putting the new one there."""
    for old in _beside(target, "old"):
        # Fails if there is one again.
        with contextlib.suppress(OSError):
            os.rename(old, target)


def _beside(target: Path, kinds: str) -> list[Path]:
    name = re.compile(rf"\.{re.escape(target.name)}\.({kinds})\.\d+\.[0-9a-f]{{8}}")
    return [path for path in target.parent.iterdir() if name.fullmatch(path.name)] if target.parent.is_dir() else []


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Show other processes that this folder is being worked on, for as long as this process lives.

    Gives False if another process does so.
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
    """Put `aside` in the place of `target`, which is at `aside` afterwards, if there was one.

    Other processes and threads may put theirs there, or take it away, between any two of these calls.
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
    """Exchange two paths in one moment; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    return rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0
