"""Load of the machine (CPU, memory), for results."""

from __future__ import annotations

import importlib
import time
from typing import Any

_READ_EVERY = 1.0


class SystemLoad:
    """CPU and memory load of the machine, read at most once per second, because a reading takes milliseconds on large
    machines.

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
        """Dict of the percentages ``cpu_util_percent`` and ``ram_util_percent`` of the machine, 0 to 100; empty before
        the first measurement and without psutil.
        """
        now = time.monotonic()
        if self._psutil is not None and now - self._read_at >= _READ_EVERY:
            self._read_at = now
            self._latest = {
                "cpu_util_percent": float(self._psutil.cpu_percent(None)),
                "ram_util_percent": float(self._psutil.virtual_memory().percent),
            }
        return self._latest
