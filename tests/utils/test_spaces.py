"""Flattening equals gymnasium's, draws lie in their space, descriptions round-trip, checks name the place."""

from __future__ import annotations

import dataclasses
import functools
import json
from typing import NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple

from jaxrl_stack.utils import spaces

LEAVES = {
    "box": Box(-1.0, 2.0, (3,)),
    "scalar box": Box(0.0, 1.0, ()),
    "matrix box": Box(np.float32([[-1, -np.inf], [0, -np.inf]]), np.float32([[1, np.inf], [np.inf, 3]])),
    "image": Box(0, 255, (4, 4, 2), np.uint8),
    "float64 box": Box(-5.0, 5.0, (2,), np.float64),
    "int box": Box(np.array([-3, -(2**31)]), np.array([7, 2**31 - 1]), dtype=np.int32),
    "unbounded int box": Box(-np.inf, np.inf, (2,), np.int32),
    "bool box": Box(0, 1, (5,), bool),
    "discrete": Discrete(4),
    "shifted discrete": Discrete(5, start=-2),
    "multi discrete": MultiDiscrete([3, 1, 4]),
    "matrix multi discrete": MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [-5, 2]]),
    "multi binary": MultiBinary(3),
    "matrix multi binary": MultiBinary([2, 2]),
}
NESTED = {
    "dict": Dict({"zebra": Discrete(3), "ant": Box(-1.0, 1.0, (2, 2)), "mule": MultiBinary(2)}),
    "ordered dict": Dict([("b", Discrete(2)), ("a", Box(0.0, 1.0, (1,)))]),
    "tuple": Tuple([Discrete(3, start=1), MultiDiscrete([2, 2]), Box(0, 255, (2,), np.uint8)]),
    "deep": Dict(
        {
            "inner": Dict({"x": Box(-1.0, 1.0, ()), "y": Tuple([Discrete(2), Dict({"z": MultiBinary(3)})])}),
            "mask": Box(0, 1, (3,), bool),
        }
    ),
}
ALL = LEAVES | NESTED


def stacked(space: gym.Space, shape: tuple[int, ...]):
    """A batch of gymnasium's own samples, and the list of them."""
    space.seed(0)
    samples = [space.sample() for _ in range(int(np.prod(shape)))]
    batch = jax.tree.map(lambda *xs: np.stack(xs).reshape((*shape, *np.shape(xs[0]))), *samples)
    return batch, samples


@functools.cache
def flattened(batch_shape: tuple[int, ...]):
    """Batches of all spaces, in one program."""
    batches = {name: stacked(space, batch_shape)[0] for name, space in ALL.items()}

    @jax.jit
    def flatten(batches):
        return {n: spaces.flatten_observation(ALL[n], x, batch_dims=len(batch_shape)) for n, x in batches.items()}

    return flatten(batches)


@functools.cache
def samples_of_all():
    """``[5, 4]`` draws of every space, in one program."""
    draw_all = jax.jit(lambda key: {name: spaces.sample(key, space, (5, 4)) for name, space in ALL.items()})
    return jax.device_get(draw_all(jax.random.key(1)))


@pytest.mark.parametrize("batch_shape", [(), (2, 1, 2)])
@pytest.mark.parametrize("name", ALL)
def test_flatten_equals_gymnasium(name, batch_shape):
    space = ALL[name]
    _, samples = stacked(space, batch_shape)
    expected = np.stack([gym.spaces.utils.flatten(space, s) for s in samples]).astype(np.float32)
    flat = flattened(batch_shape)[name]
    assert flat.dtype == jnp.float32
    np.testing.assert_array_equal(flat, expected.reshape((*batch_shape, -1)))
    box = spaces.flatten_space(space)
    assert box.shape == flat.shape[len(batch_shape) :] == (spaces.flatdim(space),)
    assert box.dtype == np.float32
    assert np.all((flat >= box.low) & (flat <= box.high))


def test_flat_space_has_gymnasiums_bounds():
    for space in ALL.values():
        expected, box = gym.spaces.utils.flatten_space(space), spaces.flatten_space(space)
        np.testing.assert_array_equal(box.low, expected.low.astype(np.float32))
        np.testing.assert_array_equal(box.high, expected.high.astype(np.float32))


def test_flatten_takes_scalars_images_and_other_integer_types():
    np.testing.assert_array_equal(spaces.flatten_observation(Discrete(3), 2), [0, 0, 1])
    np.testing.assert_array_equal(
        spaces.flatten_observation(Discrete(3, start=5), np.uint8([5, 7]), 1), [[1, 0, 0], [0, 0, 1]]
    )
    # An index outside the space selects nothing, rather than a neighbour.
    np.testing.assert_array_equal(spaces.flatten_observation(MultiDiscrete([2, 2]), np.array([2, 1])), [0, 0, 0, 1])
    assert spaces.flatten_observation(LEAVES["image"], jnp.full((4, 4, 2), 255, jnp.uint8)).max() == 255.0


def test_flatten_compiles_and_vmaps_under_strict_promotion():
    space = Dict({**NESTED["deep"].spaces, "m": LEAVES["matrix multi discrete"], "d": LEAVES["shifted discrete"]})
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        drawn = jax.jit(lambda key: spaces.sample(key, space, (4,)))(jax.random.key(0))
        once = jax.jit(lambda x: spaces.flatten_observation(space, x, 1))(drawn)
        each = jax.jit(jax.vmap(lambda x: spaces.flatten_observation(space, x)))(drawn)
    np.testing.assert_array_equal(once, each)


@pytest.mark.parametrize("name", ALL)
def test_samples_lie_in_the_space(name):
    space = ALL[name]
    draws = samples_of_all()[name]
    assert spaces.validate_batch(space, draws) == (5, 4)
    assert jax.tree.map(lambda x: x.dtype, draws) == spaces.dtype_of(space)
    for i in range(5):
        for j in range(4):
            leaves = zip(
                jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x[i, j]), draws)),  # noqa: B023
                jax.tree.leaves(
                    spaces.map_leaves(lambda leaf: leaf, space), is_leaf=lambda x: isinstance(x, gym.Space)
                ),
                strict=True,
            )
            for value, leaf in leaves:
                value = value.astype(leaf.dtype)
                assert leaf.contains(value[()] if isinstance(leaf, Discrete) else value)


def draw(space: gym.Space, shape: tuple[int, ...] = ()):
    """In one program; one by one, the operations of a draw are a program each."""
    return jax.jit(lambda key: spaces.sample(key, space, shape))(jax.random.key(0))


def test_samples_cover_the_space_and_differ():
    samples = {
        "discrete": (Discrete(5, start=-2), 200),
        "grid": (MultiDiscrete([[2, 3]]), 200),
        "few": (Box(3, 5, (1,), np.int32), 200),
        "bytes": (Box(0, 255, (1,), np.uint8), 8000),
        "wide": (Box(-(2**31), 2**31 - 1, (1,), np.int32), 1000),
        "uniform": (Box(-1.0, 3.0, (1,)), 4000),
        "huge": (Box(-3e38, 3e38, (1,)), 100),
        "normal": (Box(-np.inf, np.inf, (1,)), 4000),
    }

    @jax.jit
    def drawn(key):
        return {name: spaces.sample(key, space, (size,)) for name, (space, size) in samples.items()}

    found = jax.device_get(drawn(jax.random.key(0)))
    assert set(np.unique(found["discrete"])) == {-2, -1, 0, 1, 2}
    assert [set(np.unique(found["grid"][:, 0, i])) for i in range(2)] == [{0, 1}, {0, 1, 2}]
    assert set(np.unique(found["few"])) == {3, 4, 5} and set(np.unique(found["bytes"])) == set(range(256))
    assert found["wide"].min() < -(2**30) and found["wide"].max() > 2**30
    uniform, huge = found["uniform"], found["huge"]
    assert abs(uniform.mean() - 1.0) < 0.1 and uniform.min() < -0.95 and uniform.max() > 2.95
    assert np.isfinite(huge).all() and huge.astype(np.float64).std() > 1e38
    assert abs(found["normal"].std() - 1.0) < 0.1
    pair = draw(Tuple([Box(0.0, 1.0, (8,)), Box(0.0, 1.0, (8,))]))
    assert not np.any(pair[0] == pair[1])


@pytest.mark.parametrize("name", ALL)
def test_json_description_round_trips(name):
    space = ALL[name]
    text = json.dumps(spaces.space_to_dict(space), allow_nan=False)
    again = spaces.space_from_dict(json.loads(text))
    assert again == space
    for leaf, back in zip(
        jax.tree.leaves(spaces.map_leaves(lambda x: x, space), is_leaf=lambda x: isinstance(x, gym.Space)),
        jax.tree.leaves(spaces.map_leaves(lambda x: x, again), is_leaf=lambda x: isinstance(x, gym.Space)),
        strict=True,
    ):
        assert leaf.dtype == back.dtype
        if isinstance(leaf, Box):
            np.testing.assert_array_equal(leaf.bounded_below, back.bounded_below)
            np.testing.assert_array_equal(leaf.bounded_above, back.bounded_above)
    if isinstance(space, Dict):
        assert list(space.spaces) == list(again.spaces)


def test_a_description_tells_the_number_of_entries():
    of_several = Dict({"a": Box(0.0, 1.0, (3, 4)), "b": Tuple([MultiDiscrete([2, 3]), Discrete(7)])})
    for space, number in ((of_several, 14), (MultiDiscrete([[2, 3, 4], [5, 6, 7]]), 6), (MultiBinary((2, 3)), 6)):
        assert spaces.num_described_entries(spaces.space_to_dict(space)) == number


def test_description_of_constant_bounds_is_short():
    assert len(json.dumps(spaces.space_to_dict(Box(0, 255, (210, 160, 3), np.uint8)))) < 200
    with pytest.raises(ValueError, match="'Blob'"):
        spaces.space_from_dict({"type": "Blob"})


@pytest.mark.parametrize("name", ALL)
def test_zeros_have_the_shapes_and_dtypes_of_a_batch(name):
    space = ALL[name]
    zero = spaces.zeros(space, (2, 3))
    assert spaces.validate_batch(space, zero, batch_dims=2) == (2, 3)
    assert all(not leaf.any() for leaf in jax.tree.leaves(zero))
    assert jax.tree.map(lambda x: (x.shape, x.dtype), zero) == jax.tree.map(
        lambda x: (x.shape, x.dtype), spaces.shape_dtype_struct(space, (2, 3))
    )


def test_dtypes_are_jaxs():
    assert spaces.dtype_of(Discrete(3)) == jnp.int32
    assert spaces.dtype_of(Box(0.0, 1.0, (2,), np.float64)) == jnp.float32
    assert spaces.dtype_of(Dict({"a": MultiBinary(2), "b": Tuple([Box(0, 255, (1,), np.uint8)])})) == {
        "a": jnp.int8,
        "b": (jnp.uint8,),
    }


@pytest.mark.parametrize(
    ("space", "batch", "words"),
    [
        (Box(0.0, 1.0, (3,)), np.zeros((2, 4), np.float32), ["batch", "(2, 4)", "Box"]),
        (NESTED["tuple"], (np.zeros(2, int), np.zeros((2, 2), int)), ["tuple of 3", "2 entries"]),
        (NESTED["dict"], {"zebra": np.zeros(2, int)}, ["['ant', 'mule', 'zebra']", "['zebra']"]),
        (
            Dict({"a": Box(0.0, 1.0, ()), "b": Box(0.0, 1.0, ())}),
            {"a": np.zeros(3, np.float32), "b": np.zeros(2, np.float32)},
            ["batch['b']", "(2,)", "batch['a']", "(3,)"],
        ),
        (Tuple([Discrete(2)]), (np.zeros(3, np.float32),), ["batch[0]", "float32", "int32"]),
        (Box(0.0, 1.0, (3,)), {"obs": np.zeros(3)}, ["needs an array", "dict"]),
    ],
)
def test_a_wrong_batch_is_named(space, batch, words):
    with pytest.raises(ValueError, match="batch") as error:
        spaces.validate_batch(space, batch)
    for word in words:
        assert word in str(error.value)


def test_batch_dims_are_checked():
    space = Box(0.0, 1.0, (3,))
    with pytest.raises(ValueError, match=r"shape \(2, 3\)"):
        spaces.validate_batch(space, np.zeros((2, 3), np.float32), batch_dims=2)
    with pytest.raises(ValueError, match=r"observation has shape \(2, 3\)"):
        spaces.flatten_observation(space, np.zeros((2, 3), np.float32))


def test_spaces_without_a_fixed_shape_are_refused():
    for space in (Text(3), Dict({"words": Sequence(Discrete(3))})):
        for use in (spaces.flatten_space, spaces.zeros, spaces.dtype_of):
            with pytest.raises(TypeError, match="no fixed shape"):
                use(space)
    with pytest.raises(TypeError, match="no fixed shape"):
        spaces.space_to_dict(Dict({"words": Sequence(Discrete(3))}))


def test_what_an_episode_may_hold_besides_has_a_json_description():
    for space in (Text(5, min_length=2, charset="abc"), None):
        assert spaces.space_from_dict(json.loads(json.dumps(spaces.space_to_dict(space)))) == space


def test_parts_of_a_space_and_of_what_mirrors_it():
    space = Dict({"words": Sequence(Discrete(3)), "pair": Tuple([Discrete(3, start=1), Box(0.0, 1.0, (2,))])})
    values = {"words": "a", "pair": ("b", "c")}
    named = spaces.map_parts(lambda part, value: (type(part).__name__, value), space, values)
    assert named == {"words": ("Sequence", "a"), "pair": (("Discrete", "b"), ("Box", "c"))}
    with pytest.raises(ValueError, match="shorter"):
        spaces.map_parts(lambda part, value: value, space["pair"], ("b",))
    counted = spaces.with_parts(lambda part: Discrete(3) if isinstance(part, Discrete) else part, space)
    assert counted == Dict({"words": space["words"], "pair": Tuple([Discrete(3), space["pair"][1]])})


class Pair(NamedTuple):
    a: int
    b: int


@dataclasses.dataclass
class Record:
    a: int
    b: int


def test_conform_makes_plain_strongly_typed_pytrees():
    space = Dict({"a": Discrete(3), "b": Box(0.0, 5.0, ())})
    for value in (Pair(1, 2), Record(1, 2), {"b": 2, "a": 1}):
        plain = spaces.conform(space, value)
        assert type(plain) is dict and list(plain) == ["a", "b"]
        assert (plain["a"].dtype, plain["b"].dtype) == (jnp.int32, jnp.float32)
        assert not plain["a"].weak_type and not plain["b"].weak_type
    with pytest.raises(ValueError, match=r"obs\['b'\] has shape \(1,\)"):
        spaces.conform(space, {"a": 1, "b": np.zeros(1)}, "obs")
