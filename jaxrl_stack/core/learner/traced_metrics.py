"""Metrics that are logged while a program is traced: they become values that the program returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import masks, reductions, running_statistics
from jaxrl_stack.ops.running_statistics import RunningStatistics
from jaxrl_stack.utils import counters

_COMBINED: dict[Any, Callable[[Any, Any], Any]] = {"sum": jnp.add, "min": jnp.minimum, "max": jnp.maximum}
_REDUCTIONS = ("last", "mean", "sum", "min", "max")


REMAINDER = "remainder/"
"""Begins the name of a metric that is added to the one it names once both are on the host, in float64."""


def put_counter(metrics: dict[tuple[str, ...], Any], path: tuple[str, ...], counter: Any) -> None:
    """Report a counter exactly, which one float32 can only up to 2**24.

    Args:
        metrics: What leaves the program, float32 scalars.
        path: Of the metric.
        counter: ``uint32[2]``; see `counters`.
    """
    metrics[path], metrics[(*path[:-1], REMAINDER + path[-1])] = counters.as_floats(counter)


class TracedMetrics:
    """Collector with the logging calls of MetricsLogger, for values that are arrays of the running trace.

    How a value is reduced over the minibatches of one update follows the call: ``window=1`` (and no ``reduce``) keeps
    the last one, ``reduce="mean" | "sum" | "min" | "max"`` reduces over all.

    Over the devices of all learners, ``"sum"`` adds up what each of them logged, ``"min"`` and ``"max"`` compare it,
    and everything else averages it. So log a local count (``jnp.sum(mask)``) with ``reduce="sum"``, and what is the
    same on all devices already, such as a ``masked_mean``, in any other way.

    ``reduce="item_series"`` logs one value per row of the batch: what an update that makes a single gradient step hands
    back to its caller. Updates in minibatches leave it out.

    Attributes:
        rows: ``{path: float32 [N]}``, what was logged per row.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[str, ...], tuple[str | Callable[[Any], Any], Any]] = {}
        self.rows: dict[tuple[str, ...], jax.Array] = {}

    def log_value(
        self,
        key: str | tuple[str, ...],
        value: Any,
        *,
        reduce: str | None = None,
        window: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a scalar under a path.

        Args:
            key: Name, or path such as ``(module_id, "my_loss")``.
            value: Scalar array or number; ``[N]`` for ``"item_series"``.
            reduce: ``"mean"``, ``"sum"``, ``"min"`` or ``"max"`` over the minibatches of an update; None keeps the
                last one; ``"item_series"`` logs a value per row.
            window: 1 keeps the last one; other windows are taken over iterations by the host's logger.

        Raises:
            ValueError: If the reduction is unknown here, or the value is not a scalar (one per row).
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        if reduce == "item_series" and not kwargs:
            value = jnp.asarray(value, jnp.float32)
            if value.ndim != 1:
                raise ValueError(
                    f"log_value({path!r}, reduce='item_series'): the value has shape {value.shape}; log one number per "
                    f"row, [N]."
                )
            self.rows[path] = value
            return
        how = "last" if window == 1 or reduce is None else reduce
        if how not in _REDUCTIONS:
            raise ValueError(
                f"log_value({path!r}, reduce={reduce!r}): inside a compiled update use reduce=None, 'mean', 'sum', "
                f"'min', 'max' or 'item_series', and log other statistics from a callback."
            )
        if kwargs:
            raise ValueError(
                f"log_value({path!r}): {sorted(kwargs)} cannot be used inside a compiled update; log the value here "
                f"and its statistics from a callback."
            )
        value = jnp.asarray(value, jnp.float32)
        if value.ndim:
            raise ValueError(f"log_value({path!r}): the value has shape {value.shape}; log a scalar, such as its mean.")
        self._values[path] = (how, value)

    def log_dict(
        self, stats_dict: Mapping[str, Any], *, key: str | tuple[str, ...] | None = None, **kwargs: Any
    ) -> None:
        """Log every entry of a dict (nested ones become longer paths) below `key`; see `log_value`."""
        prefix = () if key is None else (key,) if isinstance(key, str) else tuple(key)
        for name, value in stats_dict.items():
            if isinstance(value, Mapping):
                self.log_dict(value, key=(*prefix, name), **kwargs)
            else:
                self.log_value((*prefix, name), value, **kwargs)

    def peek(self, key: str | tuple[str, ...], default: Any = None) -> Any:
        """What was logged under a path so far, of this minibatch alone: an array that gradients flow through.

        Raises:
            KeyError: If nothing was, and there is no `default`.
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        if path not in self._values and default is None:
            raise KeyError(f"No metric {path!r} was logged in this update; there are {sorted(self._values)}.")
        return self._values[path][1] if path in self._values else default

    def log_statistics(
        self,
        key: str | tuple[str, ...],
        function: Callable[[RunningStatistics], jax.Array],
        statistics: RunningStatistics,
    ) -> None:
        """Log a function of the statistics of the last minibatch's rows.

        The statistics of all parts of a minibatch and of all devices are merged first.

        Args:
            key: Name or path.
            function: Pure; gives a scalar. Must be the same object in every trace.
            statistics: Of this batch, from `Learner.masked_statistics`.
        """
        path = (key,) if isinstance(key, str) else tuple(key)
        self._values[path] = (function, statistics)

    def collect(self) -> dict[tuple[str, ...], MetricValue]:
        """What was logged, as a pytree that can leave the trace."""
        return {path: MetricValue(how, value) for path, (how, value) in self._values.items()}

    @classmethod
    def of(
        cls, collected: Mapping[tuple[str, ...], MetricValue], rows: Mapping[tuple[str, ...], jax.Array]
    ) -> TracedMetrics:
        """A collector that already holds what another one collected and its `rows`."""
        metrics = cls()
        metrics.rows = dict(rows)
        metrics._values = {path: (entry.how, entry.value) for path, entry in collected.items()}
        return metrics

    @staticmethod
    def reduce_history(
        history: Mapping[tuple[str, ...], MetricValue], axis_name: str | None = None, *, are_averaged: bool = False
    ) -> dict[tuple[str, ...], jax.Array]:
        """Reduce stacked values ``[num_minibatches]`` to scalars, each in its own way.

        Args:
            history: What `collect` returned in every minibatch.
            axis_name: Device axis: sums, minima and maxima are taken over the devices, too; the rest is averaged.
            are_averaged: Whether that rest is averaged over the devices already, and statistics are `in_slots`.
        """
        reducers = {"last": lambda v: v[-1], "mean": jnp.mean, "sum": jnp.sum, "min": jnp.min, "max": jnp.max}
        reduced: dict[tuple[str, ...], jax.Array] = {}
        values: dict[tuple[str, ...], jax.Array] = {}
        for path, entry in history.items():
            if callable(entry.how):
                last = jax.tree.map(lambda v: v[-1], entry.value)
                if are_averaged and axis_name is not None:
                    nothing = jax.tree.map(lambda x: jnp.zeros_like(x[0]), last)
                    reduced[path] = entry.how(running_statistics.merge_all(nothing, last))
                else:
                    nothing = jax.tree.map(jnp.zeros_like, last)
                    reduced[path] = entry.how(running_statistics.merge_over_axis(nothing, last, axis_name))
            else:
                values[path] = reducers[entry.how](entry.value)
        if axis_name is None:
            return {path: reduced[path] if path in reduced else values[path] for path in history}
        by_how = {how: [path for path, entry in history.items() if entry.how == how] for how in _COMBINED}
        if by_how["sum"]:
            sums = jax.lax.psum(jnp.stack([values[path] for path in by_how["sum"]]), axis_name)
            reduced |= dict(zip(by_how["sum"], sums, strict=True))
        # Minima as maxima: every reduction over devices costs the same, whatever its size.
        extremes = [(path, 1.0) for path in by_how["max"]] + [(path, -1.0) for path in by_how["min"]]
        if extremes:
            found = jax.lax.pmax(jnp.stack([sign * values[path] for path, sign in extremes]), axis_name)
            reduced |= {path: sign * value for (path, sign), value in zip(extremes, found, strict=True)}
        rest = {path: value for path, value in values.items() if path not in reduced}
        return (rest if are_averaged else reductions.pmean_flat(rest, axis_name)) | reduced


@jax.tree_util.register_pytree_node_class
class MetricValue:
    """A logged value and how to reduce it: the name of a reduction, or a function of the last one's statistics."""

    def __init__(self, how: str | Callable[[Any], Any], value: Any):
        self.how, self.value = how, value

    def tree_flatten(self):
        return (self.value,), self.how

    @classmethod
    def tree_unflatten(cls, how, children):
        return cls(how, *children)


def split_by_reduction(
    metrics: Mapping[tuple[str, ...], MetricValue],
) -> tuple[dict[tuple[str, ...], MetricValue], dict[tuple[str, ...], MetricValue]]:
    """What is to be averaged over the parts of a minibatch, and what is to be combined in another way."""
    others = {path: entry for path, entry in metrics.items() if entry.how in _COMBINED or callable(entry.how)}
    return {path: entry for path, entry in metrics.items() if path not in others}, others


def in_slots(
    metrics: Mapping[tuple[str, ...], MetricValue], axis_name: str | None
) -> dict[tuple[str, ...], MetricValue]:
    """The statistics among `metrics`, each leaf ``[D, ...]``: this device's in its slot, zeros in those of the others.

    Their sum over the devices holds what each device found, and joins an all-reduce that has to be made anyway: one of
    its own costs tens of microseconds, whatever its size.
    """
    statistics = {path: entry for path, entry in metrics.items() if callable(entry.how)}
    if axis_name is None:
        return statistics
    own = jnp.arange(jax.lax.axis_size(axis_name)) == jax.lax.axis_index(axis_name)
    return jax.tree.map(lambda x: jnp.where(masks.expand(own, x[None]), x[None], jnp.zeros_like(x)), statistics)


def before_any(metrics: Mapping[tuple[str, ...], MetricValue]) -> dict[tuple[str, ...], MetricValue]:
    """Values that change nothing in `combined`."""
    start = {"min": jnp.inf, "max": -jnp.inf}

    def one(entry: MetricValue) -> MetricValue:
        fill = 0.0 if callable(entry.how) else start.get(entry.how, 0.0)
        return MetricValue(entry.how, jax.tree.map(lambda x: jnp.full(x.shape, fill, x.dtype), entry.value))

    return {path: one(entry) for path, entry in metrics.items()}


def combined(
    a: Mapping[tuple[str, ...], MetricValue], b: Mapping[tuple[str, ...], MetricValue]
) -> dict[tuple[str, ...], MetricValue]:
    """Sums, minima, maxima and statistics of two parts of a minibatch together."""

    def one(a: MetricValue, b: MetricValue) -> MetricValue:
        combine = running_statistics.merge if callable(a.how) else _COMBINED[a.how]
        return MetricValue(a.how, combine(a.value, b.value))

    return {path: one(entry, b[path]) for path, entry in a.items()}


class RunningReduction:
    """Reduces the metrics of one minibatch after the other, where their number is only known when the program runs.

    Args:
        size: Length of the vector that holds what one minibatch logged.
        unravel: Makes what `TracedMetrics.collect` returned out of that vector.
    """

    def __init__(self, size: int, unravel: Callable[[Any], Any]):
        self._is = {how: np.zeros(size, bool) for how in ("mean", "sum", "min", "max")}
        # Each entry's own position, in the place of its value.
        for entry in unravel(np.arange(size)).values():
            if isinstance(entry.how, str) and entry.how in self._is:
                self._is[entry.how][np.asarray(entry.value, int)] = True

    def initial(self) -> jax.Array:
        """Before the first minibatch, float32 ``[2, size]``: what is reduced, and the rounding errors of its sums."""
        start = np.where(self._is["min"], np.inf, np.where(self._is["max"], -np.inf, 0.0))
        return jnp.asarray(np.stack([start, np.zeros(len(start))]), jnp.float32)

    def add(self, reduced: jax.Array, vector: jax.Array) -> jax.Array:
        """With one more minibatch's vector."""
        out, (so_far, error) = vector, reduced
        for combine, chosen in ((jnp.minimum, self._is["min"]), (jnp.maximum, self._is["max"])):
            if chosen.any():
                out = jnp.where(chosen, combine(so_far, vector), out)
        is_sum = self._is["mean"] | self._is["sum"]
        if is_sum.any():
            total, error = reductions.compensated_add(so_far, error, vector)
            out = jnp.where(is_sum, total, out)
        return jnp.stack([out, error])

    def result(self, reduced: jax.Array, num_steps: jax.Array) -> jax.Array:
        """The vector of a single minibatch that stands for all, float32 ``[size]``.

        Args:
            reduced: After the last minibatch.
            num_steps: Scalar, how many there were.
        """
        return jnp.where(self._is["mean"], reduced[0] / num_steps.astype(jnp.float32), reduced[0])
