"""Suppression of lines that packages print on import and that users cannot act on."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

WARP = ("Failed to import warp:", "Failed to import mujoco_warp:")
"""What MuJoCo's MJX prints without NVIDIA's Warp, an implementation of it that has to be asked for."""


@contextlib.contextmanager
def without_lines(*beginnings: str) -> Iterator[None]:
    """Context manager that suppresses printed lines (stdout) with the given beginnings. Other lines are printed when
    the block ends, even after an error.

    Args:
        *beginnings: Beginnings of the lines.
    """
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        kept = [line for line in printed.getvalue().splitlines(keepends=True) if not line.startswith(beginnings)]
        print("".join(kept), end="")


__all__ = ["WARP", "without_lines"]
