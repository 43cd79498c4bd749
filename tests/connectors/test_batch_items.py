"""The helpers with which host connectors work on a batch; expected values are what RLlib's give for the same calls."""

from __future__ import annotations

import inspect
import types

import numpy as np
import pytest

from jaxrl_stack.connectors.batch_items import BatchedNdArray, stack_items
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode


def episode(id_, num_steps=2):
    return SingleAgentEpisode(
        id_,
        observations=list(range(num_steps + 1)),
        actions=[0] * num_steps,
        rewards=[1.0] * num_steps,
        len_lookback_buffer=0,
    )


A, B = episode("a"), episode("b", 3)
OF_AGENT = SingleAgentEpisode("x", agent_id="agent", module_id="module", multi_agent_episode_id="all")


def test_signatures():
    parameters = {
        name: list(inspect.signature(getattr(ConnectorV2, name)).parameters.items())
        for name in ("single_agent_episode_iterator", "add_batch_item", "add_n_batch_items")
    }
    names = {name: [key for key, _ in items] for name, items in parameters.items()}
    assert names == {
        "single_agent_episode_iterator": ["episodes", "agents_that_stepped_only", "zip_with_batch_column"],
        "add_batch_item": ["batch", "column", "item_to_add", "single_agent_episode"],
        "add_n_batch_items": ["batch", "column", "items_to_add", "num_items", "single_agent_episode"],
    }
    assert [p.default for _, p in parameters["single_agent_episode_iterator"]][1:] == [True, None]


def test_the_iterator_goes_over_episodes_alone_or_with_a_column():
    iterate = ConnectorV2.single_agent_episode_iterator
    assert list(iterate([A, B], agents_that_stepped_only=False)) == [A, B]
    assert list(iterate([A, B], zip_with_batch_column=[7, 8])) == [(A, 7), (B, 8)]
    by_episode = {("b",): [8, 9], ("a",): [7]}
    assert list(iterate([A, B], zip_with_batch_column=by_episode)) == [(A, 7), (B, 8)]
    for column in ([7], {("a",): [7]}, []):
        with pytest.raises(ValueError, match=r"entries for 2 episodes"):
            list(iterate([A, B], zip_with_batch_column=column))
    with pytest.raises(ValueError, match=r"no items for the episode \('b',\)"):
        list(iterate([A, B], zip_with_batch_column={("a",): [7], ("c",): [8]}))
    with pytest.raises(TypeError, match="SimpleNamespace. Multi-agent episodes are not supported"):
        list(iterate([types.SimpleNamespace()]))


def test_items_are_added_per_episode_or_to_one_list():
    batch = {}
    for item, where in ((1, A), (2, A), (3, B), (4, OF_AGENT)):
        ConnectorV2.add_batch_item(batch, "c", item, where)
        ConnectorV2.add_batch_item(batch, "d", item)
    assert batch == {"c": {("a",): [1, 2], ("b",): [3], ("all", "agent", "module"): [4]}, "d": [1, 2, 3, 4]}
    with pytest.raises(ValueError, match="for column 'c' passed a single_agent_episode"):
        ConnectorV2.add_batch_item(batch, "c", 5)
    with pytest.raises(ValueError, match="for column 'd' passed no single_agent_episode"):
        ConnectorV2.add_batch_item(batch, "d", 5, A)


def test_several_items_at_once():
    batch = {}
    ConnectorV2.add_n_batch_items(batch, "listed", [1, 2], 2, A)
    ConnectorV2.add_n_batch_items(batch, "listed", [3], num_items=1, single_agent_episode=A)
    ConnectorV2.add_n_batch_items(batch, "array", np.arange(6).reshape(3, 2), 3, B)
    ConnectorV2.add_n_batch_items(batch, "nested", {"x": np.arange(3)}, 3, B)
    assert batch["listed"] == {("a",): [1, 2, 3]}
    (array,), (nested,) = batch["array"][("b",)], batch["nested"][("b",)]
    assert isinstance(array, BatchedNdArray) and isinstance(nested["x"], BatchedNdArray)
    np.testing.assert_array_equal(array, np.arange(6).reshape(3, 2))
    for items in ([1, 2], np.zeros((2, 1)), {"x": np.zeros(3), "y": np.zeros(2)}, np.float32(0)):
        with pytest.raises(ValueError, match="num_items=3"):
            ConnectorV2.add_n_batch_items({}, "c", items, 3, A)


def test_items_are_changed_in_place():
    calls = []

    def plus_10(item, *ids):
        calls.append((item, *ids))
        return tuple(x + 10 for x in item) if isinstance(item, tuple) else item + 10

    change = ConnectorV2.foreach_batch_item_change_in_place
    batch = {"c": {("a",): [1, 2]}, "d": {("a",): [5, 6]}, "e": [7], "f": {("all", "agent", "module"): [8]}}
    for column in ("c", ["c", "d"], ("d",), "e", "f"):
        change(batch, column, plus_10)
    assert batch == {
        "c": {("a",): [21, 22]},
        "d": {("a",): [25, 26]},
        "e": [17],
        "f": {("all", "agent", "module"): [18]},
    }
    assert calls == [
        (1, "a", None, None),
        (2, "a", None, None),
        ((11, 5), "a", None, None),
        ((12, 6), "a", None, None),
        ((15,), "a", None, None),
        ((16,), "a", None, None),
        (7, None, None, None),
        (8, "all", "agent", "module"),
    ]
    with pytest.raises(ValueError, match=r"the batch has no column \['z'\]"):
        change(batch, ["c", "z"], plus_10)
    with pytest.raises(ValueError, match=r"\[2, 1\] items for the episode \('a',\)"):
        change({"c": {("a",): [1, 2]}, "d": {("a",): [5]}}, ["c", "d"], plus_10)
    with pytest.raises(ValueError, match="one item for each of the 2 columns, got 1"):
        change(batch, ["c", "d"], lambda item, *ids: 1)


def test_columns_and_module_ids_change_places():
    switch = ConnectorV2.switch_batch_from_column_to_module_ids
    assert switch({"obs": {"m": 1, "n": 2}, "rewards": {"m": 3}}) == {"m": {"obs": 1, "rewards": 3}, "n": {"obs": 2}}
    assert switch({}) == {}
    with pytest.raises(ValueError, match="'obs' is keyed by episode. A single-agent batch has no module ids"):
        switch({"obs": {("a",): [1]}})


def test_items_become_arrays():
    items = [{"x": BatchedNdArray(np.zeros((2, 3)))}, {"x": np.ones(3)}]
    np.testing.assert_array_equal(stack_items(items, "c")["x"], [[0.0] * 3, [0.0] * 3, [1.0] * 3])
    assert type(stack_items(items, "c")["x"]) is np.ndarray
    assert stack_items([1, 2], "c").shape == (2,)
    for wrong in ([np.zeros(2), np.zeros(3)], [{"x": 1}, {"y": 1}], ["text"]):
        with pytest.raises(ValueError, match="The items of column 'c' cannot be stacked"):
            stack_items(wrong, "column 'c'")
