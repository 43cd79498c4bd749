"""Metrics that hooks log inside a compiled update, and that the program returns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.ops import masks, reductions, running_statistics
from jaxrl_stack.ops.running_statistics import RunningStatistics
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.metrics.metrics_logger import Key

MetricKey = tuple[str, ...]
"""``(module_id, name)``; longer for nested names."""
How = str | Callable[[Any], Any]
"""Reduction of a metric: one of `_REDUCTIONS`, or a function of the statistics of its rows."""

_REDUCTIONS = ("last", "mean", "sum", "min", "max")
_AVERAGED = ("last", "mean")
"""Reductions over minibatches for metrics that are means over the rows of a minibatch. Shares of the minibatch's parts
are summed, and devices are averaged."""
NOT_FINITE = "not_finite"
"""First part of the paths of flags that ``check_nans`` logs, ``(NOT_FINITE, module_id, tensor)``; not in results."""
TOTAL_EVAL_LOSS_KEY = "total_eval_loss"
"""Name of a module's loss on held-out data."""
LR_KEY = "learning_rate"
"""Suffix of the name of a metric: ``f"{optimizer_name}_{LR_KEY}"``."""
GLOBAL_NORM = "global_norm"
"""Suffix of the name of a metric: ``f"gradients_{optimizer_name}_{GLOBAL_NORM}"``."""
_START = {"min": jnp.inf, "max": -jnp.inf}


class TracedMetrics:
    """Collector for metrics inside a compiled update, with the logging methods of MetricsLogger.

    Arguments of a call determine the reduction over the minibatches of an update: ``window=1`` (and no ``reduce``)
    keeps the last value, ``reduce="mean" | "sum" | "min" | "max"`` reduces over all values.

    Over the devices of all learners, ``"sum"`` adds the values, ``"min"`` and ``"max"`` take the minimum and maximum,
    and all other reductions average. So log a local count (``jnp.sum(mask)``) with ``reduce="sum"``, and a value that
    is equal on all devices, such as a ``masked_mean``, with any other reduction.

    ``reduce="item_series"`` logs one value, or array, per row of the batch. Updates with a single gradient step return
    these to their caller; updates in minibatches drop them.

    Args:
        collected, rows: Metrics and `rows` of another collector, to continue from.

    Attributes:
        rows: ``{path: float32 [N, ...]}``, values that were logged per row.
    """

    def __init__(self, collected: Metrics | None = None, rows: Mapping[MetricKey, jax.Array] | None = None):
        self._values: dict[MetricKey, tuple[How, Any]] = {} if collected is None else collected.logged()
        self.rows: dict[MetricKey, jax.Array] = dict(rows or {})

    def log_value(
        self, key: Key, value: Any, *, reduce: str | None = None, window: int | None = None, **kwargs: Any
    ) -> None:
        """Logs a scalar under a name, or under a path of names such as ``(module_id, "my_loss")``.

        Args:
            key: Name, or path such as ``(module_id, "my_loss")``.
            value: Scalar array or number; ``[N, ...]`` for ``"item_series"``.
            reduce: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"`` over the minibatches of an update; None keeps the
                last value; ``"item_series"`` logs a value per row.
            window: 1 keeps the last value; the host's logger applies other windows over iterations.

        Raises:
            ValueError: If the reduction is unknown, the value is not a scalar, or a value per row has no axis of rows.
            TypeError: If the key is not a name or path.
        """
        if not isinstance(key, str | tuple | list):
            raise TypeError(f"log_value({key!r}, {value!r}): the name comes first. Use log_value(name, value).")
        path = (key,) if isinstance(key, str) else tuple(key)
        how = "last" if window == 1 or reduce is None else reduce
        if how not in _REDUCTIONS and reduce != "item_series":
            raise ValueError(
                f"log_value({path!r}, reduce={reduce!r}): inside a compiled update use reduce=None, 'mean', 'sum', "
                f"'min', 'max' or 'item_series', and log other statistics from a callback."
            )
        if kwargs:
            raise ValueError(
                f"log_value({path!r}): the arguments {sorted(kwargs)} cannot be used inside a compiled update. Leave "
                "them out, and log statistics that need them from a callback."
            )
        if reduce == "item_series":
            value = jnp.asarray(value, jnp.float32)
            if not value.ndim:
                raise ValueError(
                    f"log_value({path!r}, reduce='item_series'): the value has shape {value.shape}. Log one value per "
                    f"row, [N] or [N, ...]."
                )
            self.rows[path] = value
            return
        value = jnp.asarray(value, jnp.float32)
        if value.ndim:
            raise ValueError(
                f"log_value({path!r}): the value has shape {value.shape}, but must be a scalar. Log its mean, or one "
                f"value per row with log_value({path!r}, value, reduce='item_series')."
            )
        self._values[path] = (how, value)

    def log_dict(self, stats_dict: Mapping[str, Any], *, key: Key | None = None, **kwargs: Any) -> None:
        """Logs every entry of a dict as in `log_value`, under the path `key` plus the entry's name; nested dicts become
        longer paths.
        """
        prefix = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        for name, value in stats_dict.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*prefix, name), **kwargs)
            else:
                self.log_value((*prefix, name), value, **kwargs)

    def peek(self, key: Key, default: Any = None) -> Any:
        """Returns the value that was logged under a name or path in this minibatch, an array through which gradients
        flow.

        Raises:
            KeyError: If nothing was logged under the path and `default` is None.
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        if path not in self._values and default is None:
            raise KeyError(
                f"No metric {path!r} was logged in this update, only {sorted(self._values)}. Log it before, or pass a "
                f"default: peek({path!r}, default=0.0)."
            )
        return self._values[path][1] if path in self._values else default

    def log_statistics(
        self,
        key: Key,
        function: Callable[[RunningStatistics], jax.Array | dict[str, jax.Array]],
        statistics: RunningStatistics,
    ) -> None:
        """Logs a metric that is computed from statistics of a minibatch, ``function(statistics)``.

        The statistics are the mean and variance of a quantity over the rows of a minibatch. An update reports the
        metric of its last minibatch. The statistics of all parts of a minibatch and of all devices are merged first.

        Args:
            key: Name or path.
            function: Pure function that returns a scalar, or ``{name: scalar}`` for paths below `key`. It must be the
                same object in every trace.
            statistics: Statistics of this minibatch, from `Learner.masked_statistics`.
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        self._values[path] = (function, statistics)

    def collect(self) -> Metrics:
        """Returns the metrics logged so far as a pytree, which traced functions can return."""
        return Metrics.of(self._values)


@struct.dataclass
class Metrics:
    """Metrics of a microbatch, minibatch or update. They can be merged over microbatches, minibatches and devices.

    ==========  ====================  =====================  ================
    reduction   parts of a minibatch  minibatches            devices
    ==========  ====================  =====================  ================
    last        sum of shares         last value             mean
    mean        sum of shares         mean                   mean
    sum         sum                   sum                    sum
    min, max    min, max              min, max               min, max
    a function  merged statistics     last statistics        merged statistics
    ==========  ====================  =====================  ================

    Attributes:
        numbers: ``{reduction: (float32, ...)}``, in the order of `entries`.
        statistics: Arguments of the functions, in the order of `entries`.
        entries: ``((path, reduction), ...)``, in the order of logging.
    """

    numbers: dict[str, tuple[jax.Array, ...]]
    statistics: tuple[RunningStatistics, ...]
    entries: tuple[tuple[MetricKey, How], ...] = struct.field(pytree_node=False)

    @classmethod
    def of(cls, logged: Mapping[MetricKey, tuple[How, Any]]) -> Metrics:
        """Creates `Metrics` from logged values, ``{path: (reduction, value)}``.

        A value is a scalar or, if the reduction is a function, the mean and variance of a quantity over rows
        (`RunningStatistics`).
        """
        by_how: dict[str, list[Any]] = {}
        for how, value in logged.values():
            if isinstance(how, str):
                by_how.setdefault(how, []).append(value)
        statistics = tuple(value for how, value in logged.values() if callable(how))
        numbers = {how: tuple(values) for how, values in by_how.items()}
        return cls(numbers, statistics, tuple((path, how) for path, (how, _) in logged.items()))

    def logged(self) -> dict[MetricKey, tuple[How, Any]]:
        """Returns these metrics as logged values, ``{path: (reduction, value)}``, in the order of logging.

        A value is a scalar or, if the reduction is a function, the mean and variance of a quantity over rows
        (`RunningStatistics`).
        """
        numbers = {how: iter(values) for how, values in self.numbers.items()}
        statistics = iter(self.statistics)
        return {path: (how, next(numbers[how] if isinstance(how, str) else statistics)) for path, how in self.entries}

    def _with(self, numbers: Mapping[str, Any], statistics: Any = None) -> Metrics:
        """Returns a copy of these metrics with some values replaced.

        `numbers`, ``{reduction: arrays}``, replaces the values of all metrics that have one of these reductions.
        `statistics`, if not None, replaces all statistics.
        """
        statistics = self.statistics if statistics is None else statistics
        return dataclasses.replace(self, numbers={**self.numbers, **numbers}, statistics=statistics)

    # ----------------------------------------------------------------------------------------- parts of a minibatch

    def nothing(self) -> Metrics:
        """Returns the identity element of `with_part` (merging with it changes nothing), in the structure of these
        metrics: zeros, and ±inf for minima and maxima.
        """
        numbers = {
            how: tuple(jnp.full(x.shape, _START.get(how, 0.0), x.dtype) for x in own)
            for how, own in self.numbers.items()
        }
        return self._with(numbers, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.statistics))

    def with_part(self, part: Metrics) -> Metrics:
        """Merges these metrics with the metrics of another microbatch of the same minibatch."""
        merges = {"min": jnp.minimum, "max": jnp.maximum}
        numbers = {
            how: tuple(map(merges.get(how, jnp.add), own, part.numbers[how])) for how, own in self.numbers.items()
        }
        pairs = zip(self.statistics, part.statistics, strict=True)
        return self._with(numbers, tuple(running_statistics.merge(a, b) for a, b in pairs))

    @property
    def averages(self) -> dict[str, tuple[jax.Array, ...]]:
        """This device's values of all metrics that are averaged over devices, ``{reduction: arrays}``.

        These are the metrics with the reductions "last" and "mean". One all-reduce can average these values together
        with the gradients.
        """
        return {how: x for how, x in self.numbers.items() if how in _AVERAGED}

    def statistics_in_slots(self, axis_name: str | None) -> tuple[RunningStatistics, ...]:
        """Returns the statistics of logged values with an additional leading axis for D devices, ``[D, ...]``.

        The statistics are mean and variance. The entry at the index of this device contains this device's values, and
        all other entries contain zeros. A sum over devices then contains the values of all devices.

        The sum can join an existing all-reduce. A separate all-reduce takes tens of microseconds, even if it is small.
        """
        if axis_name is None:
            return self.statistics
        own = jnp.arange(jax.lax.axis_size(axis_name)) == jax.lax.axis_index(axis_name)
        return jax.tree.map(
            lambda x: jnp.where(masks.expand(own, x[None]), x[None], jnp.zeros_like(x)), self.statistics
        )

    def exchanged(self, averages: Mapping[str, Any], slots: tuple[RunningStatistics, ...]) -> Metrics:
        """Returns a copy of these metrics with results of an all-reduce over devices.

        `averages` (means over devices of the property `averages`) replaces the metrics with the reductions "last" and
        "mean". `slots` (sums over devices of `statistics_in_slots()`) replaces the statistics. Sums, minima and maxima
        remain the values of this device.
        """
        return self._with(averages, slots)

    # -------------------------------------------------------------------------------------------------- minibatches

    def over_minibatches(self) -> Metrics:
        """Reduces metrics of all minibatches, values ``[num_minibatches, ...]``, to metrics of the update."""
        reducers = {"last": lambda x: x[-1], "mean": jnp.mean, "sum": jnp.sum, "min": jnp.min, "max": jnp.max}
        numbers = {how: tuple(map(reducers[how], own)) for how, own in self.numbers.items()}
        return self._with(numbers, jax.tree.map(lambda x: x[-1], self.statistics))

    def before_minibatches(self) -> tuple[Metrics, dict[str, tuple[jax.Array, ...]]]:
        """Returns the initial carry of a loop that reduces metrics over minibatches.

        The carry consists of empty metrics (see `nothing`), and the rounding errors of the metrics' sums, which are
        initially 0.
        """
        start = self.nothing()
        return start, {how: own for how, own in start.numbers.items() if how in ("mean", "sum")}

    @staticmethod
    def with_minibatch(reduced: tuple[Metrics, dict[str, Any]], latest: Metrics) -> tuple[Metrics, dict[str, Any]]:
        """Merges the metrics of one minibatch into the carry of the loop over minibatches, and returns the new carry.

        `reduced` is the carry (see `before_minibatches`), `latest` are the metrics of the minibatch. Sums are
        compensated for rounding errors (see `reductions.compensated_add`).
        """
        so_far, errors = reduced[0].numbers, dict(reduced[1])
        numbers: dict[str, Any] = dict(latest.numbers)
        for how, merge in (("min", jnp.minimum), ("max", jnp.maximum)):
            if how in numbers:
                numbers[how] = tuple(map(merge, so_far[how], numbers[how]))
        for how, error in errors.items():
            sums = list(map(reductions.compensated_add, so_far[how], error, numbers[how]))
            numbers[how], errors[how] = (tuple(column) for column in zip(*sums, strict=True))
        return latest._with(numbers), errors

    @staticmethod
    def after_minibatches(reduced: tuple[Metrics, dict[str, Any]], num_minibatches: jax.Array) -> Metrics:
        """Returns the metrics of the update from the final carry of the loop over minibatches: divides sums of metrics
        with the reduction "mean" by `num_minibatches` (a scalar).
        """
        metrics, _ = reduced
        number = num_minibatches.astype(jnp.float32)
        return metrics._with(
            {how: tuple(x / number for x in own) for how, own in metrics.numbers.items() if how == "mean"}
        )

    # ------------------------------------------------------------------------------------------------------ devices

    def values(self, axis_name: str | None = None, *, are_exchanged: bool = False) -> dict[MetricKey, jax.Array]:
        """Returns the final value of each metric of an update, ``{path: float32}``, merged over devices if `axis_name`
        is given.

        Args:
            axis_name: Device axis, to merge the metrics of all devices; None returns this device's metrics.
            are_exchanged: Whether these are `exchanged` already.
        """
        numbers, statistics = dict(self.numbers), self.statistics
        nothing = jax.tree.map(jnp.zeros_like, statistics)
        if axis_name is not None:
            if not are_exchanged:
                numbers |= reductions.pmean_flat(self.averages, axis_name)
            if "sum" in numbers:
                numbers["sum"] = tuple(jax.lax.psum(jnp.stack(numbers["sum"]), axis_name))
            # Minima as maxima of negated values: one reduction instead of two, since each costs the same at any size.
            extremes = [*numbers.get("max", ()), *(-x for x in numbers.get("min", ()))]
            if extremes:
                found = list(jax.lax.pmax(jnp.stack(extremes), axis_name))
                num_max = len(numbers.get("max", ()))
                numbers["max"], numbers["min"] = tuple(found[:num_max]), tuple(-x for x in found[num_max:])
        if axis_name is not None and are_exchanged:
            nothing = jax.tree.map(lambda x: x[0], nothing)
            merged = [running_statistics.merge_all(a, b) for a, b in zip(nothing, statistics, strict=True)]
        else:
            pairs = zip(nothing, statistics, strict=True)
            merged = [running_statistics.merge_over_axis(a, b, axis_name) for a, b in pairs]
        found = self._with(numbers, tuple(merged)).logged()
        values: dict[MetricKey, jax.Array] = {}
        for path, (how, value) in found.items():
            value = how(value) if callable(how) else value
            values |= {(*path, name): own for name, own in value.items()} if isinstance(value, dict) else {path: value}
        return values


def put_counter(metrics: dict[MetricKey, Any], path: MetricKey, counter: Any) -> None:
    """Adds a counter to the metrics as two float32 numbers whose float64 sum is the counter.

    The counter is uint32[2] (high and low word of the number). A single float32 is exact only up to 2**24.

    Args:
        metrics: Metrics that the program returns; changed in place.
        path: Path of the metric.
        counter: ``uint32[2]``; see `counters`.
    """
    metrics[path] = jnp.stack(counters.as_floats(counter))


def sum_of_counters(one: jax.Array, other: jax.Array) -> jax.Array:
    """Adds two counters, each stored by `put_counter` as float32 ``[2]``, without rounding.

    The rounding error of the sum of the first numbers is computed exactly (Knuth, The Art of Computer Programming,
    volume 2, 4.2.2), and added to the second numbers, which are small.
    """
    rounded = one[0] + other[0]
    of_other = rounded - one[0]
    lost = (one[0] - (rounded - of_other)) + (other[0] - of_other)
    return jnp.stack([rounded, one[1] + other[1] + lost])


def put_setting(metrics: dict[MetricKey, Any], path: MetricKey, value: jax.Array) -> None:
    """Adds a float32 setting, such as a learning rate, to the metrics as an array ``[1]``.

    Results show values of this shape as the shortest decimal: 0.0003, not 0.000300000014.

    Args:
        metrics: Metrics that the program returns; changed in place.
        path: Path of the metric.
        value: float32 scalar.
    """
    metrics[path] = value[None]


def raise_if_not_finite(metrics: Mapping[MetricKey, Any], iteration: int | str) -> None:
    """Raises an error for the first loss or gradient that is NaN or infinite, according to the flags that
    ``check_nans`` logs.

    Args:
        metrics: Metrics of an update, on the host.
        iteration: Iteration for the message.

    Raises:
        FloatingPointError: If a loss or gradient was not finite; it names iteration, module and tensor.
    """
    found = [path for path, flag in metrics.items() if path[0] == NOT_FINITE and flag > 0]
    if not found:
        return
    # A non-finite loss makes every gradient non-finite: report it first.
    _, module_id, tensor = min(found, key=lambda path: path[-1] != "loss")
    raise FloatingPointError(
        f"Non-finite {tensor} in module {module_id!r}, iteration {iteration}. Check rewards and observations of the "
        f"env, lower lr, or set grad_clip. To inspect values, run without compilation: debugging(disable_jit=True)."
    )


def nest_metrics(flat: Mapping[MetricKey, Any]) -> dict[str, Any]:
    """Converts metrics ``{(module_id, name): value}`` to the nested dict of results, ``{module_id: {name: float}}``.
    Leaves out the flags that ``check_nans`` logs: whether losses and gradients are finite.
    """
    readings = {(): float, (1,): _setting, (2,): _counter}
    return _nested({path: readings[np.shape(value)](value) for path, value in flat.items() if path[0] != NOT_FINITE})


def nest_metrics_of_members(flat: Mapping[MetricKey, Any]) -> dict[str, Any]:
    """Converts metrics of a population of M runs, values ``[..., M]``, to a nested dict ``{module_id: {name:
    float64[M]}}``; see `nest_metrics`.
    """
    readings = {(): np.float64, (1,): _settings, (2,): _counters}
    values = {path: value for path, value in flat.items() if path[0] != NOT_FINITE}
    return _nested({path: readings[np.shape(value)[:-1]](value) for path, value in values.items()})


def _nested(flat: Mapping[MetricKey, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for path, value in flat.items():
        level = out
        for part in path[:-1]:
            level = level.setdefault(part, {})
        level[path[-1]] = value
    return out


def _setting(value: np.ndarray) -> float:
    """Converts a setting, such as a learning rate, from its form in metrics, float32 ``[1]`` (see `put_setting`), to a
    Python float.
    """
    return float(str(value[0]))


def _counter(value: np.ndarray) -> float:
    """Converts a counter from its form in metrics, float32 ``[2]`` (see `put_counter`), to a Python float."""
    return float(value[0]) + float(value[1])


def _settings(values: np.ndarray) -> np.ndarray:
    """Converts a setting of the M runs of a population from its form in metrics, float32 ``[1, M]`` (see
    `put_setting`), to float64 ``[M]``.
    """
    return np.array([_setting(value[None]) for value in values[0]], np.float64)


def _counters(values: np.ndarray) -> np.ndarray:
    """Converts a counter of the M runs of a population from its form in metrics, float32 ``[2, M]`` (see
    `put_counter`), to float64 ``[M]``.
    """
    return values[0].astype(np.float64) + values[1].astype(np.float64)
