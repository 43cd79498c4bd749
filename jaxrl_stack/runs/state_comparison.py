"""Comparison of training states, leaf by leaf and bit by bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

COMPARED = ("learner_group", "env_runner", "driver", "replay_buffer")
"""Parts of an algorithm's state that determine the rest of a run."""

_NOT_COMPARED = ("metrics_logger", "episode_metrics", "runner_metrics", "running_episodes", "durations")
"""Parts at any depth with times of the clock, and copies of episodes for callbacks."""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Leaf of a pytree that differs between two training states.

    Attributes:
        leaf: Path of the leaf, such as ``"learner_group/learner/rl_module/default_policy/..."``.
        largest: Largest absolute difference of elements; None if the leaves have no numbers of one shape.
        num_elements: Number of elements whose bits differ.
        text: Description of the difference.
    """

    leaf: str
    largest: float | None
    num_elements: int
    text: str

    def __str__(self) -> str:
        return f"{self.leaf}: {self.text}"


def leaves_of(state: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a training state by path, in the order of the tree; arrays are NumPy arrays.

    Args:
        state: Nested dicts and lists.
        path: Path of the state.
    """
    if path.rpartition("/")[2] in _NOT_COMPARED:
        return {}
    if isinstance(state, Mapping):
        items = list(state.items())
    elif isinstance(state, list | tuple):
        items = list(enumerate(state))
    elif isinstance(state, jax.Array) and jnp.issubdtype(state.dtype, jax.dtypes.prng_key):
        return {path: np.asarray(jax.random.key_data(state))}
    elif isinstance(state, jax.Array | np.ndarray | np.generic):
        return {path: np.asarray(state)}
    else:
        return {path: state}
    found: dict[str, Any] = {}
    for name, item in items:
        found |= leaves_of(item, f"{path}/{name}" if path else str(name))
    return found


def compared_leaves(state: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the leaves of an algorithm's state that determine the rest of the run, to compare two states.

    Other leaves, such as metrics and durations, are left out. Returns ``{path: leaf}``.

    Args:
        state: Result of `Algorithm.get_state`.
    """
    return leaves_of({name: state[name] for name in COMPARED if name in state})


def differences(state: Mapping[str, Any], other: Mapping[str, Any]) -> list[Difference]:
    """Leaves that differ between two states of algorithms, in the order of the tree.

    Args:
        state, other: Results of `Algorithm.get_state`.
    """
    one, two = compared_leaves(state), compared_leaves(other)
    found = []
    for path in {**one, **two}:
        if path not in one or path not in two:
            found.append(Difference(path, None, 0, f"is only in the {'first' if path in one else 'second'} state"))
        elif (own := _difference(path, one[path], two[path])) is not None:
            found.append(own)
    return found


def _difference(path: str, one: Any, two: Any) -> Difference | None:
    if not isinstance(one, np.ndarray) or not isinstance(two, np.ndarray):
        if isinstance(one, np.ndarray) or isinstance(two, np.ndarray):
            one, two = (own.tolist() if isinstance(own, np.ndarray) else own for own in (one, two))
        if one == two or (one != one and two != two):
            return None
        return Difference(path, None, 1, f"{one!r} and {two!r}")
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        kinds = [f"{own.dtype.name}{list(own.shape)}" for own in (one, two)]
        return Difference(path, None, 0, f"{kinds[0]} and {kinds[1]}")
    if one.size == 0:
        return None
    rows = [np.ascontiguousarray(own).reshape(-1).view(np.uint8).reshape(one.size, -1) for own in (one, two)]
    changed = (rows[0] != rows[1]).any(axis=1)
    number = int(changed.sum())
    if not number:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        values = [own.reshape(-1)[changed].astype(np.float64) for own in (one, two)]
        largest = float(np.max(np.abs(values[0] - values[1])))
    return Difference(path, largest, number, f"{number} of {one.size} elements differ, by at most {largest:.3g}")
