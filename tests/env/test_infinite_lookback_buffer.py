"""Index rules and storage of the episode columns."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl_stack.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.utils.nested import batch, tree_leaves, tree_map

BOUNDS = [None, *range(-9, 9)]
SPACE = spaces.Dict(
    {"d": spaces.Discrete(3, start=1), "t": spaces.Tuple((spaces.MultiDiscrete([2, 3]), spaces.Box(-1.0, 1.0, (2,))))}
)


def make_buffer(size: int, lookback: int, finalized: bool) -> InfiniteLookbackBuffer:
    """Items are 100, 101, ...: none of them looks like an index, or like the fill value -7."""
    buffer = InfiniteLookbackBuffer(list(range(100, 100 + size)), lookback)
    if finalized:
        buffer.finalize()
    return buffer


def by_time(size: int, lookback: int) -> dict[int, int]:
    """The naive model: an item per time step, negative steps in the look-back."""
    return {position - lookback: 100 + position for position in range(size)}


def time_of(index: int, size: int, lookback: int, neg_index_as_lookback: bool) -> int:
    return index if index >= 0 or neg_index_as_lookback else size - lookback + index


def assert_same(actual, expected):
    assert all(tree_leaves(tree_map(np.array_equal, expected, actual))), (actual, expected)


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize(("size", "lookback"), [(0, 0), (1, 0), (1, 1), (5, 0), (6, 2), (4, 4)])
def test_get_agrees_with_a_dict_of_time_steps(size, lookback, finalized):
    buffer, items = make_buffer(size, lookback, finalized), by_time(size, lookback)
    assert len(buffer) == size - lookback and buffer.len_incl_lookback() == size
    assert list(buffer) == list(buffer.get()) == [items[time] for time in range(size - lookback)]
    for neg in (False, True):
        for index in range(-9, 9):
            time = time_of(index, size, lookback, neg)
            filled = buffer.get(index, neg_index_as_lookback=neg, fill=-7)
            assert filled == items.get(time, -7)
            if time in items:
                assert buffer.get(index, neg_index_as_lookback=neg) == items[time]
                assert list(buffer.get([index, index], neg_index_as_lookback=neg)) == [items[time]] * 2
            else:
                with pytest.raises(IndexError, match=f"index {index} is out of range"):
                    buffer.get(index, neg_index_as_lookback=neg)
        indices = list(range(-9, 9))
        expected = [items.get(time_of(index, size, lookback, neg), -7) for index in indices]
        assert list(buffer.get(indices, neg_index_as_lookback=neg, fill=-7)) == expected


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize(("size", "lookback"), [(0, 0), (5, 0), (6, 2), (3, 3)])
@pytest.mark.parametrize("neg", [False, True])
def test_slices_agree_with_a_dict_of_time_steps(size, lookback, finalized, neg):
    buffer, items = make_buffer(size, lookback, finalized), by_time(size, lookback)
    own = size - lookback
    for start, stop, step in itertools.product(BOUNDS, BOUNDS, [None, 1, 2, 3, -1, -2]):
        forward = step is None or step > 0
        first = (0 if forward else own - 1) if start is None else time_of(start, size, lookback, neg)
        last = (own if forward else -1) if stop is None else time_of(stop, size, lookback, neg)
        times = range(first, last, step or 1)
        filled = buffer.get(slice(start, stop, step), neg_index_as_lookback=neg, fill=-7)
        assert list(filled) == [items.get(time, -7) for time in times], (start, stop, step)
        if step in (None, 1):
            bare = buffer.get(slice(start, stop, step), neg_index_as_lookback=neg)
            assert list(bare) == [items[time] for time in times if time in items], (start, stop)


@pytest.mark.parametrize("finalized", [False, True])
def test_without_lookback_slices_are_list_slices(finalized):
    buffer = make_buffer(5, 0, finalized)
    items = list(range(100, 105))
    for start, stop, step in itertools.product(BOUNDS, BOUNDS, [None, 1, 2, 3, -1, -2, -3]):
        assert list(buffer[start:stop:step]) == items[start:stop:step]


def test_index_types():
    buffer = make_buffer(4, 1, True)
    assert buffer.get(np.int32(0)) == 101
    assert list(buffer.get(np.array([0, 2]))) == [101, 103]
    assert buffer.get([]).shape == (0,)
    for indices in ("0", 0.5, [0.5], np.array([[0]]), (0, 1)):
        with pytest.raises(TypeError, match="indices must be"):
            buffer.get(indices)
    with pytest.raises(ValueError, match="step"):
        buffer.get(slice(0, 1, 0))


@pytest.mark.parametrize("finalized", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_set_agrees_with_list_assignment(seed, finalized):
    rng = np.random.default_rng(seed)
    size, lookback = 7, int(rng.integers(0, 8))
    buffer, model = make_buffer(size, lookback, finalized), list(range(100, 107))
    for value in range(40):
        neg = bool(rng.integers(2))
        index = int(rng.integers(-9, 9))
        position = lookback + index if index >= 0 or neg else size + index
        if 0 <= position < size:
            buffer.set(value, at_indices=index, neg_index_as_lookback=neg)
            model[position] = value
        else:
            with pytest.raises(IndexError, match="out of range"):
                buffer.set(value, at_indices=index, neg_index_as_lookback=neg)
            with pytest.raises(IndexError, match="out of range"):
                buffer.set([1, 2], at_indices=[0, index], neg_index_as_lookback=neg)
        start, stop = sorted(rng.integers(0, size + 1, 2) - lookback)
        new = list(rng.integers(0, 99, stop - start))
        new_data = np.array(new, np.int64) if rng.integers(2) else new
        buffer.set(new_data, at_indices=slice(start, stop), neg_index_as_lookback=True)
        model[start + lookback : stop + lookback] = new
        assert list(buffer.data) == model
    if lookback < size:
        buffer.set([-1], at_indices=[-1])
        buffer.set(np.arange(size - lookback))
        assert list(buffer.data) == model[:lookback] + list(range(size - lookback))


@pytest.mark.parametrize("finalized", [False, True])
def test_assigning_to_an_index_sets_it(finalized):
    buffer, other = make_buffer(6, 2, finalized), make_buffer(6, 2, finalized)
    for key, value in [(0, 7), (-1, 8), (slice(1, 3), [9, 10])]:
        buffer[key] = value
        other.set(value, at_indices=key)
        assert_same(buffer.get(), other.get())
    assert_same(list(buffer), [7, 9, 10, 8])


@pytest.mark.parametrize("finalized", [False, True])
def test_set_refuses_another_number_of_items_and_writes_nothing(finalized):
    buffer = make_buffer(5, 1, finalized)
    for new_data, indices in [([1, 2], slice(0, 3)), ([1, 2, 3], [0, 1]), ([1] * 5, None), ([1], slice(9, 11))]:
        with pytest.raises(IndexError, match=f"new_data has {len(new_data)}"):
            buffer.set(new_data, at_indices=indices)
    assert list(buffer.data) == [100, 101, 102, 103, 104]


def test_set_on_arrays_checks_shape_dtype_and_structure():
    data = {"a": np.zeros((4, 2), np.float32), "b": np.zeros(4, np.uint8)}
    buffer = InfiniteLookbackBuffer(data, 1)
    buffer.set({"a": np.array([0.1, 0.2]), "b": 255}, at_indices=0)
    assert buffer.data["a"].dtype == np.float32 and buffer.data["b"][1] == 255
    assert not data["b"].any(), "arrays that were passed in are copied before the first write"
    for new, message in [
        ({"a": np.zeros(3), "b": 0}, r"shape \(3,\), but the items to replace have shape \(2,\)"),
        ({"a": np.ones(2), "b": 256}, "uint8 cannot"),
        ({"a": np.ones(2), "b": 0.5}, "uint8 cannot"),
        ({"a": np.ones(2)}, "keys"),
    ]:
        with pytest.raises(ValueError, match=message):
            buffer.set(new, at_indices=1)
    assert not buffer.data["a"][2].any()
    with pytest.raises(ValueError, match=r"shape \(1, 1\), but the items to replace have shape \(1, 2\)"):
        buffer.set({"a": np.ones((1, 1)), "b": np.ones(1)}, at_indices=[0])


def test_set_may_change_shape_and_dtype_of_the_whole_column():
    buffer = InfiniteLookbackBuffer(np.arange(4), 1)
    buffer.set(np.full((4, 2), 0.5), at_indices=slice(-1, None), neg_index_as_lookback=True)
    assert buffer.data.shape == (4, 2) and buffer.lookback == 1
    new_data = np.ones((4, 1), np.int8)
    buffer.set(new_data, at_indices=slice(-4, None))
    buffer.set(np.array([5]), at_indices=0)
    assert new_data.max() == 1, "the new arrays are copied before the next write"
    with pytest.raises(ValueError, match="int8 cannot"):
        buffer.set(np.array([300]), at_indices=0)
    with pytest.raises(ValueError, match="shape"):
        buffer.set(np.full((3, 2), 1))


def test_fill_and_one_hot_of_nested_items():
    SPACE.seed(1)
    items = [SPACE.sample() for _ in range(4)]
    collected, finalized = (InfiniteLookbackBuffer(list(items), 1, SPACE) for _ in range(2))
    finalized.finalize()
    for indices, kwargs in itertools.product(
        [0, 9, slice(-6, 9), slice(8, 10), slice(1, 2), [0, 7, -4], slice(None, None, -1)],
        [{"fill": 0.0}, {"fill": 0, "one_hot_discrete": True}, {"fill": -1.5}],
    ):
        result, expected = finalized.get(indices, **kwargs), collected.get(indices, **kwargs)
        if not isinstance(indices, int):
            expected = batch(expected)
        assert_same(result, expected)
    encoded = finalized.get(slice(-6, 1), fill=0, one_hot_discrete=True)
    assert encoded["d"].shape == (4, 3) and encoded["t"][0].shape == (4, 5)
    assert encoded["d"].dtype == encoded["t"][1].dtype == np.float32
    np.testing.assert_array_equal(encoded["d"].sum(-1), [0, 0, 1, 1])
    np.testing.assert_array_equal(encoded["t"][0].sum(-1), [0, 0, 2, 2])
    with pytest.raises(ValueError, match="needs the space"):
        InfiniteLookbackBuffer([1]).get(0, one_hot_discrete=True)


def test_fill_may_be_an_item_of_its_own():
    infos = InfiniteLookbackBuffer([{"a": "x"}, {}])
    assert infos.get(slice(1, 4), fill={"pad": True}) == [{}, {"pad": True}, {"pad": True}]
    arrays = InfiniteLookbackBuffer({"a": np.zeros((2, 2))})
    filled = arrays.get(slice(1, 3), fill={"a": np.array([1.0, 2.0])})
    np.testing.assert_array_equal(filled["a"], [[0, 0], [1, 2]])


def test_filling_an_empty_buffer_uses_the_space():
    box = spaces.Box(-1.0, 1.0, (2,))
    assert_same(InfiniteLookbackBuffer(space=box).get(slice(-2, 0), fill=0.5), [np.full(2, 0.5)] * 2)
    empty = InfiniteLookbackBuffer(space=box)
    empty.finalize()
    assert empty.get().shape == (0, 2)
    filled = empty.get([0, 0, 0], fill=0)
    assert filled.shape == (3, 2) and filled.dtype == np.float32
    assert InfiniteLookbackBuffer().get(slice(-2, 0), fill=3) == [3, 3]
    unknown = InfiniteLookbackBuffer()
    unknown.finalize()
    np.testing.assert_array_equal(unknown.get(slice(-2, 0), fill={"a": 1})["a"], [1, 1])


def test_append_extend_pop_and_finalize():
    buffer = InfiniteLookbackBuffer([0, 1, 2], lookback=1)
    buffer.append(3)
    buffer.extend([4, 5])
    assert buffer.get() == [1, 2, 3, 4, 5]
    buffer.pop()
    buffer.pop(0)
    assert buffer.data == [0, 2, 3, 4] and buffer.lookback == 1
    buffer.pop(-4)
    assert buffer.data == [2, 3, 4] and buffer.lookback == 0
    with pytest.raises(IndexError, match="out of range"):
        buffer.pop(3)
    buffer.finalize()
    buffer.finalize()
    assert buffer.finalized and buffer.data.dtype == np.int64
    for change in (lambda: buffer.append(1), lambda: buffer.extend([1]), buffer.pop):
        with pytest.raises(RuntimeError, match="finalized"):
            change()
    buffer.unfinalize()
    buffer.append(9)
    assert buffer.data == [2, 3, 4, 9]


def test_finalize_refuses_ragged_items():
    buffer = InfiniteLookbackBuffer([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match="shape"):
        buffer.finalize()
    assert not buffer.finalized and len(buffer) == 2


@pytest.mark.parametrize(("left", "right"), list(itertools.product([False, True], repeat=2)))
def test_concat_appends_own_items_and_keeps_the_form(left, right):
    buffer, other = make_buffer(3, 1, left), make_buffer(4, 2, right)
    total = buffer + other
    assert total.finalized == left and list(total.data) == [100, 101, 102, 102, 103] and total.lookback == 1
    assert list(buffer.data) == [100, 101, 102]
    buffer.concat(other)
    assert list(buffer.data) == list(total.data)
    seven = InfiniteLookbackBuffer([7])
    assert list((buffer + seven.data).data) == list((buffer + seven).data) == [*total.data, 7]
    assert list((buffer + 1).data) == [item + 1 for item in total.data]
    with pytest.raises(TypeError):
        buffer + "x"


def test_concat_to_an_empty_finalized_buffer_takes_the_structure_of_the_other():
    empty = InfiniteLookbackBuffer()
    empty.finalize()
    empty.concat(InfiniteLookbackBuffer([{"a": 1.0}, {"a": 2.0}]))
    np.testing.assert_array_equal(empty.data["a"], [1.0, 2.0])


@pytest.mark.parametrize("finalized", [False, True])
def test_sub_buffers_do_not_share_writes(finalized):
    buffer = make_buffer(6, 2, finalized)
    part = buffer.sub_buffer(1, 3, 9)
    assert list(part.data) == [100, 101, 102, 103, 104] and part.lookback == 3
    buffer.set(1, at_indices=-6)
    part.set(0, at_indices=0)
    assert list(part.data) == [100, 101, 102, 0, 104]
    assert list(buffer.data) == [1, 101, 102, 103, 104, 105]
    assert buffer.sub_buffer(4, 4, 1).lookback == 1


@pytest.mark.parametrize("finalized", [False, True])
def test_state_round_trip(finalized):
    SPACE.seed(2)
    buffer = InfiniteLookbackBuffer([SPACE.sample() for _ in range(3)], 1, SPACE)
    if finalized:
        buffer.finalize()
    state = buffer.get_state()
    before = copy.deepcopy(buffer.get())
    buffer.set(SPACE.sample(), at_indices=0)
    restored = InfiniteLookbackBuffer.from_state(state)
    assert restored.finalized == finalized and restored.lookback == 1 and restored.space == SPACE
    assert restored.space_struct["t"][0] == SPACE["t"][0]
    assert_same(restored.get(), before)
    with pytest.raises(ValueError, match="finalized"):
        InfiniteLookbackBuffer.from_state({**state, "finalized": not finalized})


def test_constructor_checks_its_arguments():
    assert InfiniteLookbackBuffer([1, 2], lookback=5).lookback == 2
    with pytest.raises(ValueError, match="lookback=-1 must be 0 or positive"):
        InfiniteLookbackBuffer([1], lookback=-1)
    with pytest.raises(ValueError, match="leading axis"):
        InfiniteLookbackBuffer({"a": np.zeros(2), "b": np.zeros(3)})
    given = [1, 2]
    InfiniteLookbackBuffer(given).append(3)
    assert given == [1, 2]
    assert repr(InfiniteLookbackBuffer([1, 2], 1)) == "InfiniteLookbackBuffer([1, 2], lookback=1)"


def test_buffers_of_the_same_items_and_look_back_are_equal():
    one = InfiniteLookbackBuffer([1, 2, 3], lookback=1)
    assert one == InfiniteLookbackBuffer([1, 2, 3], lookback=1)
    others = [[1, 2], [1, 2, 4], np.array([1, 2, 3])]
    assert all(one != InfiniteLookbackBuffer(data, lookback=1) for data in others)
    assert one != InfiniteLookbackBuffer([1, 2, 3]) and one != [1, 2, 3]
    assert one != InfiniteLookbackBuffer([1, 2, 3], lookback=1, space=spaces.Discrete(4))
    arrays = [InfiniteLookbackBuffer({"a": np.arange(3), "b": np.array([0.0, np.nan, 2.0])}) for _ in range(2)]
    assert arrays[0] == arrays[1] and arrays[0] != InfiniteLookbackBuffer({"a": np.arange(3)})
    assert InfiniteLookbackBuffer([{}]) != InfiniteLookbackBuffer([{"a": 1}])
