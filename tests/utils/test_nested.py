"""Nested NumPy data and space descriptions."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl_stack.utils.nested import (
    batch,
    batch_size,
    blank_item,
    full_like_item,
    one_hot,
    space_struct,
    take,
    tree_leaves,
    tree_map,
    unbatch,
)

Point = namedtuple("Point", ["x", "y"])

SPACES = [
    spaces.Box(-1.0, 1.0, (84, 84)),
    spaces.Box(np.array([-np.inf, 0.1], np.float32), np.array([np.inf, 0.3], np.float32)),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Box(-np.inf, np.inf, (), np.float64),
    spaces.Discrete(4, start=-2),
    spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, 3]]),
    spaces.MultiBinary(3),
    spaces.MultiBinary([2, 3]),
    spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple((spaces.Box(0, 1, (1,)), spaces.Discrete(3)))}),
    spaces.Dict(OrderedDict(z=spaces.Discrete(2), y=spaces.Discrete(3))),
]


def test_tree_map_keeps_every_kind_of_container():
    tree = {"d": {"k": 1}, "t": (2, None), "l": [3], "n": Point(4, 5)}
    doubled = tree_map(lambda leaf, other: (leaf or 0) + (other or 0), tree, tree)
    assert doubled == {"d": {"k": 2}, "t": (4, 0), "l": [6], "n": Point(8, 10)}
    assert isinstance(doubled["n"], Point)
    assert tree_leaves(tree) == [1, 3, 4, 5, 2, None]


def test_items_of_several_kinds_of_containers_are_of_one_structure():
    rows = batch([OrderedDict(b=1, a=[2, 3]), {"a": (4, 5), "b": 6}])
    assert rows["b"].tolist() == [1, 6] and [leaf.tolist() for leaf in rows["a"]] == [[2, 4], [3, 5]]


@pytest.mark.parametrize(
    ("tree", "other"), [({"a": 1}, {"b": 1}), ({"a": 1}, {"a": 1, "b": 2}), ((1, 2), (1,)), ((1, 2), 3), ({"a": 1}, 1)]
)
def test_tree_map_refuses_other_structures(tree, other):
    with pytest.raises(ValueError, match="structure|mismatch|Expected"):
        tree_map(lambda *leaves: leaves, tree, other)


def test_batch_and_unbatch_are_inverse():
    items = [{"a": np.full((2, 3), i, np.float32), "b": (i, Point(i > 1, 0.5))} for i in range(4)]
    rows = batch(items)
    assert rows["a"].shape == (4, 2, 3) and rows["a"].dtype == np.float32
    assert rows["b"][1].x.dtype == bool
    assert batch_size(rows) == 4
    for item, restored in zip(items, unbatch(rows), strict=True):
        assert all(tree_leaves(tree_map(np.array_equal, item, restored)))
    np.testing.assert_array_equal(take(rows, slice(1, 3))["b"][0], [1, 2])


def test_batch_size_names_the_shapes_that_disagree():
    with pytest.raises(ValueError, match=r"\(2, 3\), \(3,\)"):
        batch_size({"a": np.zeros((2, 3)), "b": np.zeros(3)})
    with pytest.raises(ValueError, match="leading axis"):
        batch_size(np.float32(1.0))
    with pytest.raises(ValueError, match="empty list"):
        batch([])


def test_full_like_item_keeps_dtypes_that_can_hold_the_value():
    item = {"i": np.int64(3), "u": np.zeros(2, np.uint8), "f": np.zeros((1, 2), np.float32), "p": 7}
    zeros = full_like_item(item, 0.0)
    assert zeros["i"].dtype == np.int64 and zeros["u"].dtype == np.uint8 and zeros["f"].shape == (1, 2)
    assert type(zeros["p"]) is int and zeros["p"] == 0
    negative = full_like_item(item, -1)
    assert negative["u"].dtype.kind == "i" and (negative["u"] == -1).all()
    assert np.isnan(full_like_item(item, np.nan)["i"])
    assert full_like_item({"name": "x"}, 0) == 0


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_blank_items_and_samples_fit_and_encode(space: gym.Space):
    struct = space_struct(space)
    blank = blank_item(struct)
    # Box(-inf, 0.1 .. 0.3) has no zero; all other spaces contain their placeholder.
    assert space.contains(blank) or isinstance(space, spaces.Box)
    space.seed(0)
    samples = [space.sample() for _ in range(5)]
    one_by_one = batch([one_hot(sample, struct) for sample in samples])
    at_once = one_hot(batch(samples), struct)
    assert all(tree_leaves(tree_map(np.array_equal, one_by_one, at_once)))


def test_one_hot_values():
    np.testing.assert_array_equal(one_hot(-2, spaces.Discrete(4, start=-2)), [1, 0, 0, 0])
    np.testing.assert_array_equal(
        one_hot(np.array([[0, 2], [1, 0]]), spaces.MultiDiscrete([2, 3])), [[1, 0, 0, 0, 1], [0, 1, 1, 0, 0]]
    )
    np.testing.assert_array_equal(one_hot(np.array([[1], [0]]), spaces.MultiDiscrete([[2], [2]])), [0, 1, 1, 0])
    assert one_hot(np.array([1, 0], np.uint8), spaces.Discrete(2)).dtype == np.float32


@pytest.mark.parametrize("value", [3, -1, 1.0])
def test_one_hot_refuses_values_outside_the_space(value):
    with pytest.raises(ValueError, match=r"in the space Discrete\(3\)"):
        one_hot(value, spaces.Discrete(3))


def test_spaces_without_a_shape_have_no_blank_item():
    with pytest.raises(ValueError, match="no fixed shape"):
        blank_item(spaces.Sequence(spaces.Discrete(2)))
