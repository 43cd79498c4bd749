"""Temporary checkouts of commits of this repository, which benchmarks compare."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]


@contextlib.contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Context manager with a folder that contains the files of a commit; the end of the block removes the folder.

    Args:
        commit: Anything that git takes for one; "." for the files as they are now, changes included.

    Raises:
        ValueError: git knows no such commit.
    """
    if commit == ".":
        yield ROOT
        return
    with tempfile.TemporaryDirectory(prefix="jaxrl-") as parent:
        folder = Path(parent) / "checkout"
        done = _git("worktree", "add", "--detach", str(folder), commit)
        if done.returncode:
            raise ValueError(f"--old {commit!r}: git cannot check it out: {done.stderr.strip()}")
        try:
            yield folder
        finally:
            _git("worktree", "remove", "--force", str(folder))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
