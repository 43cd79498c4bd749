"""Assertions for scripts and tests."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.utils.metrics import (
    ALL_MODULES,
    ENV_RUNNER_RESULTS,
    EPISODE_RETURN_MEAN,
    EVALUATION_RESULTS,
    FAULT_TOLERANCE_STATS,
    LEARNER_RESULTS,
    TIMERS,
)
from jaxrl_stack.utils.numpy import convert_to_numpy

if TYPE_CHECKING:
    from ray.tune import ResultGrid


def check(
    x: Any, y: Any, decimals: int = 5, atol: float | None = None, rtol: float | None = None, false: bool = False
) -> None:
    """Asserts that two structs contain equal numbers, up to a tolerance.

    Args:
        x: Dicts, tuples and lists of arrays (NumPy, JAX, PyTorch), numbers, bools, texts, None, or metrics' `Stats`.
        y: Expected value; a list may replace a tuple or an array.
        decimals: Places that agree: ``|x - y| < 1.5 × 10^-decimals``.
        atol: Absolute tolerance; given one of the two, `decimals` does not count.
        rtol: Relative tolerance; 1e-7 if only `atol` is given.
        false: Assert that every leaf differs instead.

    Raises:
        AssertionError: Names the place, and what differs there.
    """
    tolerances = {"atol": atol or 0.0, "rtol": 1e-7 if rtol is None else rtol}
    if atol is None and rtol is None:
        tolerances = {"atol": 1.5 * 10.0**-decimals, "rtol": 0.0}
    _check(x, y, "x", tolerances, false)


def check_learning_achieved(
    tune_results: ResultGrid,
    min_value: float,
    evaluation: bool | None = None,
    metric: str = f"{ENV_RUNNER_RESULTS}/{EPISODE_RETURN_MEAN}",
) -> None:
    """Checks that the best trial of a Ray Tune experiment has reached a minimum value of a metric in its last result.

    Args:
        tune_results: Result of ``Tuner.fit()``.
        min_value: The value.
        evaluation: Look at evaluation's results; None: where there are some.
        metric: Key of the number, with "/" between its parts.

    Raises:
        ValueError: No trial has.
    """
    in_evaluation = f"{EVALUATION_RESULTS}/{metric}"
    values = []
    for _, row in tune_results.get_dataframe().iterrows():
        key = in_evaluation if evaluation or (evaluation is None and in_evaluation in row) else metric
        values.append(row[key])
    best = max(values, default=float("nan"))
    if not best >= min_value:
        raise ValueError(
            f"`{metric}` must reach {min_value}, but the best of {len(values)} trials has {best}. Train longer, or "
            "tune the settings."
        )
    print(f"`{metric}` of {min_value} reached: {best}.")


def check_train_results_new_api_stack(train_results: Mapping[str, Any]) -> Mapping[str, Any]:
    """Asserts that a result of ``Algorithm.train()`` has all standard groups, such as ``env_runners`` and ``learners``.

    Returns:
        `train_results`.

    Raises:
        AssertionError: Names what is missing, or of another kind than it should be.
    """
    for key in (ENV_RUNNER_RESULTS, FAULT_TOLERANCE_STATS, LEARNER_RESULTS, TIMERS, "training_iteration", "config"):
        assert key in train_results, f"{key!r} is not in the results, which have {sorted(train_results)}."
    config = train_results["config"]
    assert isinstance(config, dict), f"results['config'] should be a dict, and is a {type(config).__name__}."
    for module_id, metrics in train_results[LEARNER_RESULTS].items():
        if module_id == ALL_MODULES:
            continue
        for key, value in metrics.items():
            if key.endswith(("_min", "_max")):
                assert np.ndim(value) == 0, (
                    f"{LEARNER_RESULTS}/{module_id}/{key} should be one number, and is {value!r}."
                )
    return train_results


def _equal(x: Any, y: Any, tolerances: dict[str, float]) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    if not (x.dtype.kind in "biufc" and y.dtype.kind in "biufc"):
        return np.array_equal(x, y)
    # One number stands for an array of it.
    return (x.shape == y.shape or 0 in (x.ndim, y.ndim)) and np.allclose(x, y, equal_nan=True, **tolerances)


def _check(x: Any, y: Any, place: str, tolerances: dict[str, float], false: bool) -> None:
    x, y = (value.peek() if hasattr(value, "peek") else value for value in (x, y))
    differs = f"{place} is {x!r}, and the other side is {y!r}."
    if isinstance(x, Mapping):
        assert isinstance(y, Mapping), differs
        assert x.keys() == y.keys(), f"{place} has the keys {list(x)}, but the other side has {list(y)}."
        for key in x:
            _check(x[key], y[key], f"{place}[{key!r}]", tolerances, false)
    elif isinstance(x, tuple | list):
        assert isinstance(y, tuple | list) or np.ndim(y), differs
        assert len(x) == len(y), f"{place} has {len(x)} items, but the other side has {len(y)}."
        for i, (mine, other) in enumerate(zip(x, y, strict=True)):
            _check(mine, other, f"{place}[{i}]", tolerances, false)
    elif x is None or y is None or isinstance(x, str | bytes):
        assert (x == y) is not false, differs
    else:
        x, y = convert_to_numpy(x, reduce_type=False), convert_to_numpy(y, reduce_type=False)
        assert _equal(x, y, tolerances) is not false, differs


_MOVED = ("add_rllib_example_script_args", "run_rllib_example_script_experiment", "should_stop")


_not_here = absent_or_renamed(
    __name__,
    absent={
        "check_train_results": "check_train_results_new_api_stack",
        "check_compute_single_action": "Algorithm.compute_single_action, or jaxrl_stack.policy.Policy",
        "check_inference_w_connectors": "jaxrl_stack.policy.Policy, which acts with module and connectors",
        "check_same_batch": "check",
        "check_reproducibilty": "check for what two algorithms with the same debugging(seed=...) return",
    },
)


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        # Where RLlib had them before; that module needs all of the package.
        return getattr(importlib.import_module("jaxrl_stack.examples.utils"), name)
    return _not_here(name)
