from __future__ import annotations

import inspect
import json
import math
import pathlib
import pickle
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.utils import metrics as metric_names
from jaxrl_stack.utils.metrics import stats as stats_module
from jaxrl_stack.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP, MetricsLogger
from jaxrl_stack.utils.metrics.stats import MeanStats, SeriesStats, StatsBase

API = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "rllib_api.json").read_text())


def logged(values, key="x", root=False, **kwargs):
    logger = MetricsLogger(root=root)
    for value in values:
        logger.log_value(key, value, **kwargs)
    return logger


def test_names_are_rllibs():
    for name, value in API["constants"]["utils.metrics"].items():
        assert getattr(metric_names, name) == value.strip("'")


def parameters_of(function):
    parameters = list(inspect.signature(function).parameters.values())
    return [p.name for p in parameters if p.name != "self"]


def names_in(signature):
    return [entry.split("=")[0].lstrip("*") for entry in signature if entry != "*"]


def test_surface_is_rllibs():
    facts = API["classes"]["metrics"]["MetricsLogger"]
    for name, signature in facts["methods"].items():
        assert parameters_of(getattr(MetricsLogger, name)) == names_in(signature)
    for name, facts in API["classes"]["metrics_stats"].items():
        cls = getattr(stats_module, name)
        for method, signature in facts.get("methods", {}).items():
            assert parameters_of(getattr(cls, method)) == names_in(signature), (name, method)
        assert set(facts.get("properties", {})) <= set(dir(cls))
        identifier = facts.get("class_attributes", {}).get("stats_cls_identifier")
        assert identifier is None or str(cls.stats_cls_identifier) == identifier.strip("'")


def test_importing_it_does_not_import_jax():
    code = "import sys, jaxrl_stack.utils.metrics.metrics_logger; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=pathlib.Path(__file__).parents[2])


@pytest.mark.parametrize(
    ("kwargs", "expected", "after_reduce"),
    [
        ({"reduce": "mean"}, 3.0, math.nan),
        ({"reduce": "min"}, 1, math.nan),
        ({"reduce": "max"}, 6, math.nan),
        ({"reduce": "sum"}, 12, 0),
        ({"reduce": "lifetime_sum"}, 12, 12),
        ({"reduce": "item"}, 3, 3),
        ({"reduce": "item_series"}, [1, 6, 2, 3], []),
        ({"reduce": "mean", "window": 2}, 2.5, 2.5),
        ({"window": 2}, 2.5, 2.5),
        ({"window": 1}, 3, 3),
        ({"window": float("inf")}, 3.0, math.nan),
        ({"reduce": "min", "window": 3}, 2, 2),
        ({"reduce": "max", "window": 2}, 3, 3),
        ({"reduce": "sum", "window": 2}, 5, 5),
        ({"reduce": "item_series", "window": 2}, [2, 3], [2, 3]),
        ({"reduce": "percentiles", "percentiles": [0, 50], "window": 3}, {0: 2, 50: 3}, {0: 2, 50: 3}),
        ({"reduce": "ema", "ema_coeff": 0.5}, 2.875, 2.875),
        ({"ema_coeff": 0.5}, 2.875, 2.875),
    ],
)
def test_each_reduction_before_and_after_an_interval_ends(kwargs, expected, after_reduce):
    logger = logged([1, 6, 2, 3], **kwargs)
    assert logger.peek("x") == expected
    assert logger.reduce(compile=True) == {"x": expected}
    np.testing.assert_equal(logger.peek("x"), after_reduce)


def test_defaults():
    assert logged([1.0, 2.0]).peek("x") == pytest.approx(1.01)
    logger = MetricsLogger()
    logger.log_dict({"a": 1, "b": {"c": 2}}, key="z")
    logger.log_dict({"a": 3, "b": {"c": 4}}, key=("z",))
    assert logger.peek() == {"z": {"a": 2, "b": {"c": 3}}}
    assert logger.peek(("z", "b")) == {"c": 3}
    percentiles = logged(range(5), reduce="percentiles", percentiles=True).peek("x")
    assert percentiles == pytest.approx({0: 0, 50: 2, 75: 3, 90: 3.6, 95: 3.8, 99: 3.96, 100: 4})


def test_a_window_slides_over_intervals():
    logger = logged([10.0, 20.0], window=3)
    logger.reduce()
    logger.log_value("x", 60.0)
    assert logger.peek("x") == 30.0
    logger.log_value("x", 100.0)
    assert logger.reduce(compile=True) == {"x": 60.0}
    assert logger.peek("x", compile=False) == [20.0, 60.0, 100.0]


def test_kinds_of_numbers():
    for value in (2, 2.0, np.float32(2), np.int64(2), np.asarray([2.0]), jnp.float32(2), jnp.bfloat16(2)):
        assert logged([value, value], reduce="mean").peek("x") == 2.0
    total = logged([np.int64(2**53), 1, True], reduce="lifetime_sum").peek("x")
    assert total == 2**53 + 2
    assert type(total) is int
    for value in ([1.0, 2.0], np.zeros((2,)), "1", None, object()):
        with pytest.raises(TypeError, match="'x'"):
            logged([value], reduce="mean")


def test_nan_counts_for_nothing_unless_it_is_alone():
    nan = float("nan")
    for reduce, expected in (("mean", 2.0), ("min", 1), ("max", 3), ("sum", 4), ("lifetime_sum", 4), ("ema", 1.02)):
        assert logged([1, nan, 3], reduce=reduce).peek("x") == pytest.approx(expected)
    assert logged([1, nan, 3], window=3).peek("x") == 2.0
    # The newest value only: a loss that became NaN is not hidden by the one before.
    assert math.isnan(logged([1, nan], window=1).peek("x"))


def test_several_loggers_merge_by_count():
    loggers = [logged([value] * n, reduce="mean") for n, value in ((1, 10.0), (2, 100.0), (3, 1000.0))]
    for logger, n, value in zip(loggers, (1, 2, 3), (10.0, 100.0, 1000.0), strict=True):
        for _ in range(n):
            logger.log_value("windowed", value, window=100)
            logger.log_value("ema", value)
            logger.log_value("low", value, reduce="min")
            logger.log_value("steps", 1, reduce="lifetime_sum")
            logger.log_value("quantiles", value, reduce="percentiles", percentiles=[50])
            logger.log_value("last", value, reduce="item")
    root = MetricsLogger(root=True)
    root.aggregate([logger.reduce() for logger in loggers], key="all")
    expected = (10 + 200 + 3000) / 6
    assert root.peek("all") == {
        "x": pytest.approx(expected),
        "windowed": pytest.approx(expected),
        "ema": pytest.approx(expected),
        "low": 10.0,
        "steps": 6,
        "quantiles": {50: 550.0},
        "last": 1000.0,
    }


def test_nothing_is_counted_twice_over_intervals():
    leaf, root = MetricsLogger(), MetricsLogger(root=True)
    for interval in range(3):
        for value in range(interval * 2, interval * 2 + 2):
            leaf.log_value("window", value, window=4)
            leaf.log_value("lifetime", value, reduce="lifetime_sum")
            leaf.log_value("sum", value, reduce="sum")
        root.aggregate([leaf.reduce()])
        if interval < 2:
            root.reduce()
    assert root.peek("window", compile=False) == leaf.peek("window", compile=False) == [2, 3, 4, 5]
    assert root.peek("lifetime") == leaf.peek("lifetime") == 15
    assert root.peek("sum") == 9
    # An interval without news changes nothing that lasts.
    root.aggregate([leaf.reduce()])
    assert (root.peek("window"), root.peek("lifetime")) == (3.5, 15)


def test_a_window_over_loggers_holds_the_newest_of_each():
    loggers = [logged(values, window=4) for values in ([1, 2, 3, 4], [11, 12, 13, 14])]
    root = MetricsLogger(root=True)
    root.aggregate([logger.reduce() for logger in loggers])
    assert root.peek("x", compile=False) == [3, 13, 4, 14]


def test_three_levels_of_loggers():
    leaves = [logged([v] * n, reduce="mean") for n, v in ((1, 1.0), (3, 5.0))]
    middle, root = MetricsLogger(), MetricsLogger(root=True)
    for leaf in leaves:
        leaf.log_value("n", 2, reduce="lifetime_sum")
    middle.aggregate([leaf.reduce() for leaf in leaves])
    for _ in range(2):
        root.aggregate([middle.reduce()])
    assert root.peek() == {"x": 4.0, "n": 4}


def test_latest_merged_only():
    root = MetricsLogger(root=True)
    root.log_value("own", 1.0)
    root.aggregate([logged([1.0, 3.0], window=10).reduce()])
    root.aggregate([logged([8.0], window=10).reduce()])
    assert root.peek("x") == 4.0
    assert root.peek("x", latest_merged_only=True) == 8.0
    assert root.peek(latest_merged_only=True) == {"x": 8.0}
    with pytest.raises(ValueError, match="latest_merged_only"):
        root.peek("own", latest_merged_only=True)


def test_reports_can_be_read_and_travel():
    results = pickle.loads(pickle.dumps(logged([1.0, 2.0], key=("a", "b"), window=5).reduce()))
    assert MetricsLogger.peek_results(results) == {"a": {"b": 1.5}}
    assert MetricsLogger.peek_results(results["a"]["b"], compile=False) == [1.0, 2.0]
    assert results["a"]["b"] + 1 == 2.5
    # A root's report is everything it has.
    root = logged([1, 2], root=True, reduce="lifetime_sum")
    root.reduce()
    assert root.reduce()["x"].peek() == 3


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

    monkeypatch.setattr("time.perf_counter", lambda: Clock.now)
    return Clock


def test_throughput(clock):
    logger = MetricsLogger(root=True)
    logger.log_value("sum", 30, reduce="sum", with_throughput=True)
    logger.log_value(("g", "life"), 30, reduce="lifetime_sum", with_throughput=True)
    logger.log_value("plain", 1)
    clock.now += 2.0
    assert logger.peek("sum", throughput=True) == 15.0
    both = {"throughput_since_last_reduce": 15.0, "throughput_since_last_restore": 15.0}
    group = {"life": 30, "life_throughput": both}
    assert logger.compile() == {"sum": 30, "sum_throughput": 15.0, "g": group, "plain": 1}
    logger.aggregate([logged([10], key=("g", "life"), reduce="lifetime_sum", with_throughput=True).reduce()])
    clock.now += 2.0
    both = {"throughput_since_last_reduce": 5.0, "throughput_since_last_restore": 10.0}
    assert logger.peek(throughput=True) == {"sum_throughput": 0.0, "g": {"life_throughput": both}}

    restored = MetricsLogger()
    restored.set_state(logger.get_state())
    restored.log_value(("g", "life"), 8)
    clock.now += 1.0
    assert restored.peek(("g", "life")) == 48
    assert restored.peek(("g", "life"), throughput=True)["throughput_since_last_restore"] == 8.0
    with pytest.raises(ValueError, match="with_throughput=True"):
        logger.peek("plain", throughput=True)


def test_log_time(clock):
    logger = MetricsLogger()
    with logger.log_time("outer", reduce="sum") as timer:
        clock.now += 1.0
        with timer:
            clock.now += 2.0
    assert logger.peek("outer") == 5.0

    def fail():
        with logger.log_time("outer", reduce="sum"):
            clock.now += 4.0
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert logger.peek("outer") == 9.0
    with logger.log_time("ema"):
        clock.now += 3.0
    assert logger.peek("ema") == 3.0


def test_state_continues_where_it_was():
    kinds = [{"reduce": name} for name in DEFAULT_STATS_CLS_LOOKUP] + [
        {"reduce": name, "window": 3} for name in ("mean", "min", "max", "sum", "percentiles", "item_series")
    ]
    first, second = MetricsLogger(), MetricsLogger()
    for i, kind in enumerate(kinds):
        for value in (5, 1, 4):
            first.log_value(("k", str(i)), value, **kind)
        if i % 2:
            first.stats["k"][str(i)].reduce()
    # State is plain data: it survives a file format.
    second.set_state(json.loads(json.dumps(first.get_state())))
    for logger in (first, second):
        for i, _ in enumerate(kinds):
            logger.log_value(("k", str(i)), 2)
    roots = MetricsLogger(root=True), MetricsLogger(root=True)
    for root, logger in zip(roots, (first, second), strict=True):
        root.aggregate([logger.reduce()])
    np.testing.assert_equal(first.peek(), second.peek())
    np.testing.assert_equal(roots[0].peek(), roots[1].peek())


def test_contradictions_are_errors():
    logger = logged([1.0], reduce="mean", window=5)
    logger.log_value("x", 2.0)
    logger.log_value("x", 3.0, window=5.0)
    with pytest.raises(ValueError, match="MeanStats.*'sum'"):
        logger.log_value("x", 1.0, reduce="sum")
    with pytest.raises(ValueError, match=r"'window': 5.*'window': 6"):
        logger.log_value("x", 1.0, window=6)
    with pytest.raises(ValueError, match="is a metric already"):
        logger.log_value(("x", "y"), 1.0)
    logger.log_value(("group", "y"), 1.0)
    with pytest.raises(ValueError, match=r"contains the metrics \['y'\]"):
        logger.log_value("group", 1.0)
    with pytest.raises(ValueError, match="x: Cannot merge SumStats into MeanStats"):
        logger.aggregate([logged([1], reduce="sum").reduce()])
    assert logger.peek() == {"x": 2.0, "group": {"y": 1.0}}


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reduce": "median"}, "'median' is unknown.*'percentiles'"),
        ({"reduce": "ema", "window": 3}, "window goes with reduce='mean'"),
        ({"percentiles": [50]}, "percentiles goes with reduce='percentiles'"),
        ({"with_throughput": True}, "with_throughput goes with reduce='sum'"),
        ({"reduce": "mean", "ema_coeff": 0.1}, "ema_coeff goes with reduce='ema'"),
        ({"reduce": "mean", "windw": 3}, "windw"),
        ({"window": 0}, "window=0"),
        ({"window": 2.5}, "window=2.5"),
        ({"ema_coeff": 1.5}, "ema_coeff=1.5"),
        ({"reduce": "percentiles", "percentiles": [101]}, "101"),
    ],
)
def test_settings_that_do_not_fit(kwargs, message):
    logger = MetricsLogger()
    with pytest.raises(ValueError, match=message):
        logger.log_value("x", 1.0, **kwargs)
    assert logger.stats == {}


def test_peek_of_what_is_not_there():
    logger = logged([1.0])
    with pytest.raises(KeyError, match=r"'y'.*\['x'\]"):
        logger.peek("y")
    assert logger.peek(("x", "y"), default=7) == 7
    assert "x" in logger
    assert ("x", "y") not in logger


def test_delete_and_reset():
    logger = logged([1.0], key=("a", "b", "c"))
    logger.log_value(("a", "d"), 1.0)
    logger.delete("a", "b", "c")
    assert logger.peek() == {"a": {"d": 1.0}}
    with pytest.raises(KeyError, match="'b'"):
        logger.delete("a", "b")
    logger.delete("a", "b", key_error=False)
    logger.delete("a")
    assert logger.stats == {}
    logger.log_value("x", 1.0)
    logger.reset()
    assert logger.stats == {}


def test_old_names():
    logger = MetricsLogger()
    with pytest.warns(DeprecationWarning, match="aggregate"):
        logger.merge_and_log_n_dicts([logged([1.0, 3.0], reduce="mean").reduce()], key="old")
    assert logger.peek("old") == {"x": 2.0}
    with pytest.raises(ValueError, match="log_value"):
        logger.set_value("x", 1)
    with pytest.warns(DeprecationWarning, match="lifetime_sum"):
        logger.log_value("y", 1, reduce="sum", clear_on_reduce=False)
    with pytest.raises(TypeError, match=r"reduce\(compile=False\)"):
        logger.aggregate([{"x": 1.0}])


class RangeStats(SeriesStats):
    """Largest minus smallest value, times a factor."""

    stats_cls_identifier = "range"

    def __init__(self, factor=1, **kwargs):
        super().__init__(**kwargs)
        self.factor = factor

    def reduce_values(self, values):
        return self.factor * (max(values) - min(values))

    @property
    def settings(self):
        return {**super().settings, "factor": self.factor}

    def set_state(self, state):
        super().set_state(state)
        self.factor = state["factor"]


class LastTwo(StatsBase):
    """The abstract methods and nothing else."""

    stats_cls_identifier = "last_two"

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.values = []

    def __len__(self):
        return len(self.values)

    def __repr__(self):
        return f"LastTwo({self.values})"

    def push(self, value):
        self.values = [*self.values, value][-2:]

    def merge(self, incoming_stats):
        for stats in incoming_stats:
            self.values = [*self.values, *stats.values][-2:]

    def peek(self, compile=True, latest_merged_only=False):
        return self.values

    def reduce(self, compile=True):
        return self.values if compile else self


def test_statistics_of_ones_own():
    lookup = {**DEFAULT_STATS_CLS_LOOKUP, "range": RangeStats, "last_two": LastTwo}
    logger, root = MetricsLogger(stats_cls_lookup=lookup), MetricsLogger(root=True, stats_cls_lookup=lookup)
    for value in (3, 9, 5):
        logger.log_value("range", value, reduce="range", window=2, factor=10)
        logger.log_value("two", value, reduce="last_two")
    assert logger.peek() == {"range": 40, "two": [9, 5]}
    restored = MetricsLogger(stats_cls_lookup=lookup)
    restored.set_state(logger.get_state())
    assert restored.peek("range") == 40
    root.aggregate([logger.reduce()])
    assert root.peek() == {"range": 40, "two": [9, 5]}
    with pytest.raises(ValueError, match="range.*stats_cls_lookup"):
        MetricsLogger().set_state(logger.get_state())


def test_long_means_stay_exact():
    stats = MeanStats()
    for _ in range(10_000):
        stats.push(0.1)
    assert stats.peek() == pytest.approx(0.1, abs=1e-15)
    assert len(stats) == 10_000
