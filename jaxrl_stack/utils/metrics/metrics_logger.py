"""MetricsLogger: a tree of named statistics (mean, sum, maximum, ...) of logged values."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics import stats as built_in
from jaxrl_stack.utils.metrics.reduced_metrics import ReducedMetrics
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import merge_nested, nested_leaves

Key = str | tuple[str, ...]

DEFAULT_STATS_CLS_LOOKUP: dict[str, type[StatsBase]] = {
    cls.stats_cls_identifier: cls
    for cls in (getattr(built_in, name) for name in built_in.__all__)
    if cls.stats_cls_identifier is not None
}
"""The reductions that `MetricsLogger.log_value` knows: "mean", "sum" and so on."""

_GOES_WITH = {
    "window": "reduce='mean', 'min', 'max', 'sum', 'percentiles' or 'item_series'",
    "ema_coeff": "reduce='ema'",
    "percentiles": "reduce='percentiles'",
    "with_throughput": "reduce='sum' or 'lifetime_sum'",
}


_LOG_VALUE = "Use log_value(name, value)."
FOREIGN_MEMBERS = dict.fromkeys(("log", "log_metric", "log_scalar", "add_scalar", "record", "logkv"), _LOG_VALUE)
"""Methods of other packages' loggers: ``{name: advice for this logger}``."""


class MetricsLogger:
    """Logger that stores values by name or path, reduces each metric in its own way, and merges statistics of other
    loggers.

    A key is a name, or a path such as ``("learners", "default_policy", "my_loss")``. The first call that
    logs a key fixes its reduction; later calls may leave it out, but not contradict it.

    * A window holds the last N values, also across `reduce` calls.
    * `reduce` reports only values since the last call, so `aggregate` can add reports up; means,
      windows and percentiles of several loggers weight every value equally.

    Args:
        root: Whether this is the top logger, which reports to no other one.
        stats_cls_lookup: Reduction name -> class, for other statistics than the built-in ones.
        reserved: ``path -> whether it is a number of the results that callbacks cannot replace``.

    Attributes:
        stats: Nested dict of the statistics.
        reported: ``() -> nested values`` that are reported in addition to logged ones; `peek` finds them, too.
    """

    if not TYPE_CHECKING:
        __getattr__ = old_members({}, FOREIGN_MEMBERS)

    def __init__(
        self,
        root: bool = False,
        stats_cls_lookup: Mapping[str, type[StatsBase]] | None = None,
        *,
        reserved: Callable[[tuple[str, ...]], bool] | None = None,
    ):
        self.stats: dict[str, Any] = {}
        self.reported: Callable[[], Mapping[str, Any]] = dict
        self.stats_cls_lookup = dict(DEFAULT_STATS_CLS_LOOKUP if stats_cls_lookup is None else stats_cls_lookup)
        self._is_root = bool(root)
        self._is_reserved = reserved
        self._callback: str | None = None

    @contextlib.contextmanager
    def used_by(self, callback: str) -> Iterator[None]:
        """Context manager around the call of a callback, which may log values to this logger.

        If the callback uses a name that is reserved for results, the logger ignores the value and warns, once for each
        callback and name.

        Args:
            callback: Name of the callback, for the notice.
        """
        before, self._callback = self._callback, callback
        try:
            yield
        finally:
            self._callback = before

    def __contains__(self, key: Key) -> bool:
        return _find(self.stats, _path(key)) is not None

    # ------------------------------------------------------------------------------------------------ logging

    def log_value(
        self,
        key: Key,
        value: Any,
        *,
        reduce: str | None = None,
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: list[int] | bool | None = None,
        clear_on_reduce: Any = NotProvided,
        with_throughput: bool | None = None,
        throughput_ema_coeff: Any = NotProvided,
        reduce_per_index_on_aggregate: Any = NotProvided,
        **kwargs: Any,
    ) -> None:
        """Logs one value of a metric. The argument `reduce` selects the metric's statistic, such as the mean of the
        logged values.

        Args:
            key: Name or path.
            value: A number or scalar array; anything for ``"item"`` and ``"item_series"``.
            reduce: ``"mean"``, ``"min"``, ``"max"``, ``"sum"`` (over the window or, without one, the values
                since the last `reduce`), ``"ema"``, ``"lifetime_sum"``, ``"percentiles"``, ``"item"`` (the
                last one), ``"item_series"`` (the values themselves). None: ``"mean"`` if a window is given,
                else ``"ema"``.
            window: Number of values to look back.
            ema_coeff: Weight of a new value in an ``"ema"``; 0.01 by default.
            percentiles: Percentiles for ``"percentiles"``, in [0, 100].
            clear_on_reduce: Without effect.
            with_throughput: Also measure the rate of a ``"sum"`` or ``"lifetime_sum"`` per second.
            throughput_ema_coeff: Without effect.
            reduce_per_index_on_aggregate: Without effect.
            **kwargs: Further constructor arguments of a class in `stats_cls_lookup`.

        Raises:
            ValueError: If the reduction is unknown, a setting does not fit to it, or the key was logged
                differently before.
            TypeError: If the value is no number, but the reduction needs one.
        """
        _warn_of_old_arguments(clear_on_reduce, throughput_ema_coeff, reduce_per_index_on_aggregate)
        stats = self._stats_of(
            key,
            reduce,
            window=window,
            ema_coeff=ema_coeff,
            percentiles=percentiles,
            with_throughput=with_throughput,
            **kwargs,
        )
        try:
            stats.push(value)
        except TypeError as error:
            raise TypeError(
                f"log_value({key!r}): {error}. Log one number, such as the mean, or use reduce='item' or 'item_series'."
            ) from error

    def log_dict(
        self,
        value_dict: Mapping[str, Any],
        *,
        key: Key | None = None,
        reduce: str | None = "mean",
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: list[int] | bool | None = None,
        clear_on_reduce: Any = NotProvided,
        with_throughput: bool | None = None,
        throughput_ema_coeff: Any = NotProvided,
        reduce_per_index_on_aggregate: Any = NotProvided,
    ) -> None:
        """Logs every value of a nested dict as a value of the metric with the same path.

        Args:
            value_dict: Names, and values or dicts of the same kind.
            key: Name or path to put them below.
            reduce: See `log_value`, as for the other arguments.
            window: Number of values to look back.
            ema_coeff: Weight of a new value in an ``"ema"``.
            percentiles: Percentiles for ``"percentiles"``, in [0, 100].
            clear_on_reduce: Without effect.
            with_throughput: Also measure the rate of a ``"sum"`` or ``"lifetime_sum"``.
            throughput_ema_coeff: Without effect.
            reduce_per_index_on_aggregate: Without effect.
        """
        _warn_of_old_arguments(clear_on_reduce, throughput_ema_coeff, reduce_per_index_on_aggregate)
        for path, value in nested_leaves(value_dict, () if key is None else _path(key)):
            self.log_value(
                path,
                value,
                reduce=reduce,
                window=window,
                ema_coeff=ema_coeff,
                percentiles=percentiles,
                with_throughput=with_throughput,
            )

    def log_time(
        self,
        key: Key,
        *,
        reduce: str = "ema",
        window: float | None = None,
        ema_coeff: float | None = None,
        percentiles: list[int] | bool | None = None,
        clear_on_reduce: Any = NotProvided,
        with_throughput: bool | None = None,
        throughput_ema_coeff: Any = NotProvided,
        reduce_per_index_on_aggregate: Any = NotProvided,
    ) -> StatsBase:
        """Logs the duration of a block in seconds: ``with logger.log_time("sample"): ...``.

        Args:
            key: Name or path.
            reduce: See `log_value`, as for the other arguments.
            window: Number of values to look back; needs another `reduce` than ``"ema"``.
            ema_coeff: Weight of a new value.
            percentiles: Percentiles for ``"percentiles"``, in [0, 100].
            clear_on_reduce: Without effect.
            with_throughput: Also measure the rate of a ``"sum"`` or ``"lifetime_sum"``.
            throughput_ema_coeff: Without effect.
            reduce_per_index_on_aggregate: Without effect.
        """
        _warn_of_old_arguments(clear_on_reduce, throughput_ema_coeff, reduce_per_index_on_aggregate)
        return self._stats_of(
            key, reduce, window=window, ema_coeff=ema_coeff, percentiles=percentiles, with_throughput=with_throughput
        )

    def _stats_of(self, key: Key, reduce: str | None, **settings: Any) -> StatsBase:
        """Returns the statistic of a metric; creates the statistic if the metric is new.

        If the metric is not new, checks that `reduce` and `settings` agree with the existing statistic. For a reserved
        name (see `used_by`), logs a warning and returns a statistic that is not stored in the logger.
        """
        path = _path(key)
        given = {name: value for name, value in settings.items() if value is not None}
        if self._callback is not None and self._is_reserved is not None and self._is_reserved(path):
            notice_once(
                f"{self._callback} logs {key!r}, which is a reserved name of results: the value is left out. Log it "
                f"under another name, such as {'my_' + path[-1]!r}."
            )
            return self._make(self._class_of(reduce or ("mean" if "window" in given else "ema")), key, given)
        found = _find(self.stats, path)
        if isinstance(found, dict):
            raise ValueError(
                f"The key {key!r} already contains the metrics {sorted(found)}, so no value can be logged under this "
                "key itself. Use another key."
            )
        if found is None:
            cls = self._class_of(reduce or ("mean" if "window" in given else "ema"))
            found = self._make(cls, key, {"is_root": self._is_root, **given})
            _put(self.stats, path, found)
            return found
        cls = type(found) if reduce is None else self._class_of(reduce)
        if cls is not type(found):
            raise ValueError(
                f"The metric {key!r} was first logged with {type(found).__name__}, which does not fit "
                f"reduce={reduce!r}. Use another key, or call delete(key) first."
            )
        if not given.items() <= found.settings.items():
            # Spelled differently, maybe (window=5.0, percentiles=True): the constructor decides.
            new = self._make(cls, key, {**found.settings, **given}).settings
            if new != found.settings:
                differing = {name: value for name, value in found.settings.items() if new[name] != value}
                raise ValueError(
                    f"The metric {key!r} was first logged with the settings {differing}, and now with {given}. Use "
                    "another key, or call delete(key) first."
                )
        return found

    def _class_of(self, reduce: str) -> type[StatsBase]:
        if reduce not in self.stats_cls_lookup:
            raise ValueError(
                f"reduce={reduce!r} is unknown; use one of {sorted(self.stats_cls_lookup)}, or add a class "
                f"to stats_cls_lookup (config.reporting(custom_stats_cls_lookup=...))."
            )
        return self.stats_cls_lookup[reduce]

    def _make(self, cls: type[StatsBase], key: Key, settings: dict[str, Any]) -> StatsBase:
        try:
            return cls(**settings)
        except TypeError as error:
            hints = [f" {name} goes with {where}." for name, where in _GOES_WITH.items() if f"'{name}'" in str(error)]
            raise ValueError(f"{key!r}: {error}.{''.join(hints)}") from error
        except ValueError as error:
            raise ValueError(f"{key!r}: {error}") from error

    # ------------------------------------------------------------------------------------------------ merging

    def aggregate(self, stats_dicts: Sequence[Mapping[str, Any]], *, key: Key | None = None) -> None:
        """Merges the reports of other loggers (results of their ``reduce()``) into this logger.

        Args:
            stats_dicts: One result of ``reduce()`` of each logger, or `ReducedMetrics` of learners. The results need
                not have the same keys.
            key: Name or path below which this logger stores the metrics.

        Raises:
            TypeError: If a result of ``reduce()`` contains plain numbers instead of `StatsBase` objects.
            ValueError: If a metric has another `StatsBase` class in this logger than in a result, or is a group of
                metrics in this logger.
        """
        prefix = () if key is None else _path(key)
        reports: dict[tuple[str, ...], list[StatsBase]] = {}
        for tree in stats_dicts:
            for path, report in tree.statistics() if isinstance(tree, ReducedMetrics) else nested_leaves(tree):
                path = (*prefix, *path)
                if not isinstance(report, StatsBase):
                    raise TypeError(
                        f"aggregate(): the metric {'/'.join(path)} has the type {type(report).__name__}, but must be a "
                        f"Stats object. Pass a result of reduce(compile=False), or log the number with log_value()."
                    )
                reports.setdefault(path, []).append(report)
        for path, incoming in reports.items():
            stats = _find(self.stats, path)
            if isinstance(stats, dict):
                raise ValueError(
                    f"aggregate(): {'/'.join(path)} is a metric in stats_dicts, but in this logger it is a group that "
                    f"contains the metrics {sorted(stats)}. Rename the metric or the group."
                )
            if stats is None:
                stats = incoming[0].clone({"is_root": self._is_root, "is_leaf": False})
                _put(self.stats, path, stats)
            try:
                stats.merge(incoming)
            except ValueError as error:
                raise ValueError(f"aggregate(): {'/'.join(path)}: {error}") from error

    def merge_and_log_n_dicts(self, stats_dicts: Sequence[Mapping[str, Any]], *, key: Key | None = None) -> None:
        """Deprecated name of `aggregate`."""
        warnings.warn("`merge_and_log_n_dicts` is now called `aggregate`.", DeprecationWarning, stacklevel=2)
        self.aggregate(stats_dicts, key=key)

    # ------------------------------------------------------------------------------------------------ reading

    def peek(
        self,
        key: Key | None = None,
        default: Any = None,
        compile: bool = True,
        throughput: bool = False,
        latest_merged_only: bool = False,
    ) -> Any:
        """Returns the current value of one metric, or of a subtree of metrics, without clearing it.

        Values that are logged here come before values that are `reported` under the same name.

        Args:
            key: Name or path; None: everything.
            default: Returned if there is no such key; None raises.
            compile: False returns the list of values of each metric, True its result, such as a mean.
            throughput: Return rates per second instead: of a part of the tree ``{"<name>_throughput": ...}``
                for the metrics that measure them.
            latest_merged_only: Return only values of the last `aggregate`; of a part of the tree, only the merged
                metrics.

        Raises:
            KeyError: If there is no such key, and no default.
            ValueError: If the metric measures no throughput, or was never merged.
        """
        found = self.stats if key is None else _find(self.stats, _path(key))
        if not isinstance(found, StatsBase) and compile and not throughput and not latest_merged_only:
            beside = self.reported() if key is None else _find(self.reported(), _path(key))
            if isinstance(beside, Mapping):
                values = _map(beside, lambda value: value)
                merge_nested(values, {} if found is None else _map(found, lambda stats: stats.peek()))
                return values
            if found is None and beside is not None:
                return beside
        if found is None:
            if default is not None:
                return default
            raise KeyError(
                f"No metric {key!r} was logged. The keys at the top level are {sorted(self.stats)}. Pass one of these "
                "keys or a path that begins with one of these, or call peek(key, default=...)."
            )
        if isinstance(found, StatsBase):
            if not throughput:
                return found.peek(compile=compile, latest_merged_only=latest_merged_only)
            if not found.has_throughputs:
                raise ValueError(
                    f"The metric {key!r} measures no throughput. From the first value on, log it with "
                    "log_value(key, value, reduce='sum' or 'lifetime_sum', with_throughput=True)."
                )
            return found.throughputs  # pyright: ignore[reportAttributeAccessIssue] - those that measure have it
        if throughput:
            return _throughput_tree(found)
        return _map(
            found,
            lambda stats: stats.peek(compile=compile, latest_merged_only=latest_merged_only),
            keep=lambda stats: not (latest_merged_only and stats.is_leaf),
        )

    @staticmethod
    def peek_results(results: Any, compile: bool = True) -> Any:
        """Converts a result of ``reduce()`` to values: replaces each `StatsBase` object in the nested dict by the value
        that its `peek` returns.

        Args:
            results: A nested dict of `StatsBase` objects, or one such object.
            compile: False returns the list of values of each metric, True its result, such as a mean.
        """
        if isinstance(results, StatsBase):
            return results.peek(compile=compile)
        return _map(results, lambda stats: stats.peek(compile=compile))

    def reduce(self, compile: bool = False) -> dict[str, Any]:
        """Ends the interval since the last ``reduce()``, and returns a nested dict with one entry per metric.

        The entry is a `StatsBase` object, which another logger can merge. With ``compile=True``, the entry is the
        metric's result, such as a mean.

        Args:
            compile: False returns `StatsBase` objects for `aggregate` of another logger. They contain the values since
                the last `reduce`; if this is a root logger, they contain all values. True returns the values that
                `peek` returns.
        """
        return _map(self.stats, lambda stats: stats.reduce(compile=compile))

    def compile(self) -> dict[str, Any]:
        """Ends the interval since the last ``reduce()`` and returns all values, with ``"<name>_throughput"`` for
        metrics that measure throughput.
        """
        throughputs = _throughput_tree(self.stats)
        values = self.reduce(compile=True)
        merge_nested(values, throughputs)
        return values

    # ------------------------------------------------------------------------------------------ house-keeping

    def delete(self, *key: Any, key_error: bool = True) -> None:
        """Deletes a metric, or all metrics below a path, from the logger.

        Args:
            *key: The parts of the path.
            key_error: Whether a path that does not exist raises.

        Raises:
            KeyError: If there is no such path.
        """
        path = _path(key[0] if len(key) == 1 else key)
        if _find(self.stats, path) is None:
            if key_error:
                raise KeyError(
                    f"delete(): no metric {path!r} was logged. Pass the key of a logged metric, or call "
                    "delete(key, key_error=False), which ignores missing metrics."
                )
            return
        kept = [(own, stats) for own, stats in nested_leaves(self.stats) if own[: len(path)] != path]
        self.reset()
        for own, stats in kept:
            _put(self.stats, own, stats)

    def reset(self) -> None:
        """Deletes all metrics from the logger."""
        self.stats = {}

    def get_state(self) -> dict[str, Any]:
        """State of the logger: all statistics with their settings and values."""
        return {"stats": [{"key": list(path), **stats.get_state()} for path, stats in nested_leaves(self.stats)]}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replaces all metrics of the logger by the metrics in `state`, a result of `get_state`.

        Raises:
            ValueError: If a class is missing in `stats_cls_lookup`.
        """
        classes = {cls.stats_cls_identifier: cls for cls in self.stats_cls_lookup.values()}
        stats: dict[str, Any] = {}
        for entry in state["stats"]:
            identifier = entry["stats_cls_identifier"]
            if identifier not in classes:
                raise ValueError(
                    f"The state of the metric {'/'.join(entry['key'])} needs a Stats class with "
                    f"stats_cls_identifier={identifier!r}, but stats_cls_lookup only has classes "
                    f"with the identifiers {sorted(map(str, classes))}. Add the class to stats_cls_lookup "
                    "(config.reporting(custom_stats_cls_lookup=...))."
                )
            _put(stats, tuple(entry["key"]), classes[identifier].from_state(entry))
        self.stats = stats

    def set_value(self, *args: Any, **kwargs: Any) -> None:
        """Removed: raises an error that names the replacement.

        Raises:
            ValueError: Always; names the replacement.
        """
        raise ValueError("`set_value` was removed. Use `log_value`; to replace earlier values, call delete(key) first.")

    def activate_tensor_mode(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing; exists for code written for RLlib."""
        message = "There is no tensor mode: compiled code returns its metrics, this logger only sees numbers."
        warnings.warn(message, DeprecationWarning, stacklevel=2)

    deactivate_tensor_mode = activate_tensor_mode


_OLD_ARGUMENTS = {
    "clear_on_reduce": (
        "reduce='lifetime_sum' is a sum that reduce() does not clear; an 'ema' and windows are never "
        "cleared, the others always are"
    ),
    "throughput_ema_coeff": "throughputs are plain rates",
    "reduce_per_index_on_aggregate": "aggregate() weights every value equally",
}


def _warn_of_old_arguments(*values: Any) -> None:
    """Warns about deprecated arguments that were passed but have no effect. `values` are the values of these arguments,
    in the order of `_OLD_ARGUMENTS`.
    """
    for (name, reason), value in zip(_OLD_ARGUMENTS.items(), values, strict=True):
        if value is not NotProvided:
            warnings.warn(f"`{name}` has no effect any more: {reason}.", DeprecationWarning, stacklevel=3)


def _path(key: Any) -> tuple[str, ...]:
    """Converts a key to a path; parts that are no strings, such as agent ids, become strings."""
    path = tuple(map(str, key)) if isinstance(key, (tuple, list)) else (str(key),)
    if not path:
        raise ValueError("The key of a metric is empty. Give a name or a path, such as 'my_loss'.")
    return path


def _find(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Looks up a path in a nested dict of metrics; returns a metric, a dict of metrics, or None if the path is
    missing.
    """
    found: Any = tree
    for name in path:
        if not isinstance(found, Mapping) or name not in found:
            return None
        found = found[name]
    return found


def _put(tree: dict[str, Any], path: tuple[str, ...], stats: Any) -> None:
    for depth, name in enumerate(path[:-1], start=1):
        tree = tree.setdefault(name, {})
        if not isinstance(tree, dict):
            raise ValueError(
                f"{path[:depth]!r} is a metric already, so it cannot be a group that contains {path!r}. Use another "
                "name."
            )
    tree[path[-1]] = stats


def _map(
    tree: Mapping[str, Any], function: Callable[[Any], Any], keep: Callable[[Any], bool] = lambda stats: True
) -> dict[str, Any]:
    """Applies `function` to the leaves of a nested dict, such as statistics, and returns a nested dict of the results.

    Leaves for which ``keep(leaf)`` is False are left out.
    """
    out: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            out[name] = _map(value, function, keep)
        elif keep(value):
            out[name] = function(value)
    return out


def _throughput_tree(tree: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path, stats in nested_leaves(tree):
        if stats.has_throughputs:
            _put(out, (*path[:-1], f"{path[-1]}_throughput"), stats.throughputs)
    return out
