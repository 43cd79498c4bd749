"""Base class of the statistics of a MetricsLogger."""

from __future__ import annotations

import copy
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np


class StatsBase(ABC):
    """Base class of a metric's statistic (mean, maximum, ...): collects logged values, returns the result, and reports
    to a parent logger.

    A subclass with its own statistic defines the abstract methods and is registered under a name in
    ``MetricsLogger(stats_cls_lookup={...})``. With constructor arguments of its own it also extends
    `get_state`, `set_state` and `clone`.

    Args:
        is_root: Whether it belongs to the logger at the top, which hands its statistics to no other one.
        is_leaf: Whether values are pushed into it; False once it merges other loggers' statistics.
    """

    stats_cls_identifier: str | None = None
    """Name of the class in checkpoints."""
    setting_names: tuple[str, ...] = ("is_root", "is_leaf")
    """The constructor's arguments, each an attribute of the same name."""
    with_throughput = False

    def __init__(self, is_root: bool = False, is_leaf: bool = True):
        self.is_root = is_root
        self.is_leaf = is_leaf
        # Start times of the running `with` blocks of every thread; the innermost block ends first.
        self._started: dict[int, list[float]] = {}

    @abstractmethod
    def __len__(self) -> int:
        """Number of values from which `peek` computes the statistic."""

    @abstractmethod
    def __repr__(self) -> str: ...

    @abstractmethod
    def push(self, value: Any) -> None:
        """Adds a logged value to the statistic."""

    @abstractmethod
    def merge(self, incoming_stats: list[Any]) -> None:
        """Merges reports of the same metric from other loggers into this statistic."""

    @abstractmethod
    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        """Returns the current value of the statistic without clearing it.

        Args:
            compile: False returns the list of its values.
            latest_merged_only: Use only values of the last `merge`.
        """

    @abstractmethod
    def reduce(self, compile: bool = True) -> Any:
        """Ends the interval since the last `reduce`: returns the metric's result and starts the next interval.

        Args:
            compile: True returns the value that `peek` returns, such as a mean. False returns a `StatsBase`
                object that another logger can merge.
        """

    @property
    def has_throughputs(self) -> bool:
        """Whether the statistic is a sum that also measures its throughput, the amount added per second."""
        return self.with_throughput

    def initialize_throughput_reference_time(self, time: float) -> None:  # noqa: B027 (most measure none)
        """Starts the measurement of throughput at `time` (seconds of ``time.perf_counter()``), if the statistic
        measures throughput.
        """

    def __add__(self, other: Any) -> Any:
        return self.peek() + (other.peek() if isinstance(other, StatsBase) else other)

    def __enter__(self) -> StatsBase:
        self._started.setdefault(threading.get_ident(), []).append(time.perf_counter())
        return self

    def __exit__(self, exc_type: Any, exc_value: Any, tb: Any) -> None:
        thread = threading.get_ident()
        starts = self._started[thread]
        self.push(time.perf_counter() - starts.pop())
        if not starts:
            del self._started[thread]

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments of the statistic, ``{name: value}``."""
        return {name: getattr(self, name) for name in self.setting_names}

    def clone(self, init_overrides: dict[str, Any] | None = None) -> StatsBase:
        """Creates a statistic with the same settings and without values.

        Args:
            init_overrides: Constructor arguments to replace.
        """
        return type(self)(**{**self.settings, **(init_overrides or {})})

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> StatsBase:
        """Creates a statistic from a state that `get_state` returned."""
        stats = cls(**{name: state[name] for name in cls.setting_names})
        stats.set_state(state)
        return stats

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the statistic: its class, settings and values."""
        return {"stats_cls_identifier": self.stats_cls_identifier, **self.settings}

    def set_state(self, state: dict[str, Any]) -> None:
        """Loads a state that `get_state` of a statistic of the same class returned."""
        self.is_root = state["is_root"]
        self.is_leaf = state["is_leaf"]


class ReportingStats(StatsBase):
    """Base class of the built-in statistics.

    The class stores the values from which `peek` computes the result, and tracks which values were not yet reported to
    a parent logger.

    `reduce(compile=False)` reports only the values since the last `reduce`, so that a parent logger can add up reports
    without counting a value twice. A window keeps its values. The report of a root logger is a copy of everything,
    because it is not merged.
    """

    value_names: tuple[str, ...] = ()
    """Names of the values in a state and a report, in addition to the settings; value ``x`` is in attribute ``_x``."""
    _latest_merged: ReportingStats | None = None

    def __len__(self) -> int:
        return 1

    @abstractmethod
    def _absorb(self, reports: list[Any]) -> None:
        """Adds the reports of other loggers' statistics to this statistic."""

    @abstractmethod
    def _show(self, compile: bool) -> Any:
        """Computes the value that `peek` returns."""

    def _report(self) -> Any:
        """Returns a report of the values since the last `reduce`: a statistic of the same class, which a parent logger
        can merge.
        """
        report = self.clone()
        for name in self.value_names:
            setattr(report, f"_{name}", getattr(self, f"_{name}"))
        return report

    @abstractmethod
    def _start_interval(self) -> None:
        """Starts a new interval (the time between two calls of `reduce`).

        The next report does not contain values that were logged before this call. Some statistics, such as an EMA or a
        mean with a window, keep these values for `peek`; other statistics delete them.
        """

    def merge(self, incoming_stats: list[Any]) -> None:
        for other in incoming_stats:
            if type(other) is not type(self):
                raise ValueError(
                    f"Cannot merge {type(other).__name__} into {type(self).__name__}: log the metric with "
                    f"the same `reduce` everywhere."
                )
        self.is_leaf = False
        latest: Any = self.clone()
        latest._absorb(incoming_stats)
        self._latest_merged = latest
        self._absorb(incoming_stats)

    def peek(self, compile: bool = True, latest_merged_only: bool = False) -> Any:
        if not latest_merged_only:
            return self._show(compile)
        if self._latest_merged is None:
            raise ValueError(
                "peek(latest_merged_only=True): no values of other loggers were merged into this metric yet. Call "
                "aggregate() first, or leave out latest_merged_only."
            )
        return self._latest_merged._show(compile)

    def reduce(self, compile: bool = True) -> Any:
        if compile:
            result = self._show(True)
        elif self.is_root:
            result = copy.deepcopy(self)
        else:
            result = self._report()
        self._start_interval()
        return result

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), **{name: getattr(self, f"_{name}") for name in self.value_names}}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for name in self.value_names:
            setattr(self, f"_{name}", state[name])

    def __repr__(self) -> str:
        settings = [f"{k}={v!r}" for k, v in self.settings.items() if k not in ("is_root", "is_leaf")]
        return f"{type(self).__name__}({', '.join([repr(self.peek()), *settings])})"


def as_window(window: float | None) -> int | None:
    """Converts `window`, the number of newest values that a statistic uses, to int. Returns None, for no limit, if
    `window` is None or infinite.

    Raises:
        ValueError: If it is not a whole number of at least 1.
    """
    if window is None or window == float("inf"):
        return None
    if window != window or window < 1 or int(window) != window:
        raise ValueError(f"window={window!r} must be a whole number of at least 1, or None.")
    return int(window)


def interleave(series: Sequence[Sequence[Any]]) -> list[Any]:
    """Merges lists of values from several loggers into one list, in the estimated order of time.

    The loggers logged the values in the same interval. The times are not known, so each logger's values are treated as
    evenly spread over the interval.

    So a window over the result holds every logger's newest values, in proportion to how many each has.
    """
    at = [((i + 1) / len(values), value) for values in series for i, value in enumerate(values)]
    return [value for _, value in sorted(at, key=lambda entry: entry[0])]


def as_number(value: Any) -> int | float:
    """Converts a scalar of any kind (Python, NumPy, JAX) to int or float.

    Raises:
        TypeError: If it is something else.
    """
    if type(value) is float or type(value) is int:
        return value
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind in "OSUMm":
        raise TypeError(f"the value must be one number, not {type(value).__name__} of shape {array.shape}")
    scalar = array.reshape(())
    return int(scalar) if array.dtype.kind in "iub" else float(scalar)
