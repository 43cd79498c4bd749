"""Load of the machine (CPU, memory), for results."""

from __future__ import annotations

import importlib
import time
from typing import Any

_READ_EVERY = 1.0


class SystemLoad:
    """CPU and memory in use, read at most once per second: on large machines a reading takes milliseconds.

    Needs psutil; without it, results have no load.
    """

    def __init__(self) -> None:
        try:
            self._psutil: Any = importlib.import_module("psutil")
        except ImportError:
            self._psutil = None
        else:
            self._psutil.cpu_percent(None)  # the mean since this call is what the next one returns
        self._read_at = time.monotonic()
        self._latest: dict[str, float] = {}

    def read(self) -> dict[str, float]:
        """``cpu_util_percent`` and ``ram_util_percent`` of the machine, 0 to 100; {} until known."""
        now = time.monotonic()
        if self._psutil is not None and now - self._read_at >= _READ_EVERY:
            self._read_at = now
            self._latest = {
                "cpu_util_percent": float(self._psutil.cpu_percent(None)),
                "ram_util_percent": float(self._psutil.virtual_memory().percent),
            }
        return self._latest
