"""Recorded steps for tests: small, of every kind of column."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.steps import Steps

OBS_SPACE = gym.spaces.Dict(
    {"pixels": gym.spaces.Box(0, 255, (3, 2), np.uint8), "position": gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)}
)
ACTION_SPACE = gym.spaces.Discrete(3)
INFO = DatasetInfo(OBS_SPACE, ACTION_SPACE, env_id="Toy-v0", seed=7, module_id="default_policy")


def recorded(lengths, first=0, seed=0) -> Steps:
    """Terminated episodes of so many steps, with random numbers in the steps and zeros in final rows."""
    rng = np.random.default_rng(seed)
    sizes = np.asarray(lengths) + 1
    rows = int(sizes.sum())
    is_final = np.zeros(rows, bool)
    is_final[np.cumsum(sizes) - 1] = True

    def of_steps(array):
        array[is_final] = 0
        return array

    columns = {
        Columns.OBS: {
            "pixels": rng.integers(0, 255, (rows, 3, 2), dtype=np.uint8),
            "position": rng.normal(size=(rows, 4)).astype(np.float32),
        },
        Columns.ACTIONS: of_steps(rng.integers(0, 3, rows).astype(np.int32)),
        Columns.REWARDS: of_steps(rng.normal(size=rows).astype(np.float32)),
        Columns.TERMINATEDS: np.roll(is_final, -1),
        Columns.TRUNCATEDS: np.zeros(rows, bool),
        Columns.ACTION_DIST_INPUTS: of_steps(rng.normal(size=(rows, 3)).astype(np.float32)),
        "mask": (of_steps(rng.integers(0, 2, (rows, 2)).astype(bool)), of_steps(np.zeros((rows, 0), np.int64))),
    }
    episode = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    t = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return Steps(columns, is_final, episode, t, [f"e{first + i}" for i in range(len(sizes))])


def assert_same(found: Steps, expected: Steps) -> None:
    """Equal to the last bit, dtypes included."""
    assert _flat(found.columns).keys() == _flat(expected.columns).keys()
    for name, array in _flat(expected.columns).items():
        own = _flat(found.columns)[name]
        assert own.dtype == array.dtype, name
        np.testing.assert_array_equal(own, array, err_msg=name)
    for name in ("is_final", "episode", "t"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert list(found.episode_ids) == list(expected.episode_ids)


def _flat(value, name="") -> dict[str, np.ndarray]:
    if isinstance(value, dict | tuple | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {key: own for part, child in items for key, own in _flat(child, f"{name}/{part}").items()}
    return {name: value}
