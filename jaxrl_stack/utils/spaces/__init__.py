"""Gymnasium spaces for compiled code: flattening, zeros, random draws, checks, and a JSON description.

Every function takes the space as a static Python object and works on pytrees that mirror it: a leaf per
`Box`, `Discrete`, `MultiDiscrete` or `MultiBinary`, a dict (in the space's key order) per `Dict`, a tuple per
`Tuple`. Arrays have any number of leading batch axes before the leaf's own shape. dtypes are JAX's: with
64-bit types switched off, a space of int64 holds int32 arrays.

`Text`, `Sequence`, `Graph` and `OneOf` have no fixed shape and are refused with a TypeError that names the
place.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple
from gymnasium.spaces import flatdim as gymnasium_flatdim

from jaxrl_stack.utils.integers import choices_of

Leaf = Box | Discrete | MultiDiscrete | MultiBinary


def flatdim(space: Space) -> int:
    """Length of the vector that `flatten_observation` returns for one element of `space`.

    Raises:
        TypeError: `space` holds a space without a fixed shape.
    """
    _leaves(space, "space")  # gymnasium has lengths for texts, too
    return int(gymnasium_flatdim(space))


def flatten_space(space: Space) -> Box:
    """One-dimensional float32 `Box` of the vectors that `flatten_observation` returns.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`, `Tuple`.

    Returns:
        ``Box(low, high, (flatdim(space),), float32)``; one-hot entries and bits lie in [0, 1].

    Raises:
        TypeError: `space` holds a space without a fixed shape.
    """
    bounds = [_bounds(leaf) for _, leaf in _leaves(space, "space")]
    low, high = np.concatenate([np.zeros((2, 0), np.float32), *bounds], axis=1)
    return Box(low, high, low.shape, np.float32)


def flatten_observation(space: Space, observation: Any, batch_dims: int = 0) -> jax.Array:
    """Flattens observations to one float32 vector each: boxes raveled, discrete parts one-hot, concatenated.

    The entries and their order are those of ``gymnasium.spaces.utils.flatten``. An index outside a discrete
    space becomes all zeros. uint8 images are converted, not scaled.

    Args:
        space: The space of one observation.
        observation: Pytree that mirrors `space`; leaves ``[*batch, *leaf.shape]`` of any dtype.
        batch_dims: Number of leading batch axes.

    Returns:
        float32 ``[*batch, flatdim(space)]``.

    Raises:
        ValueError: Structure or trailing shape do not fit `space`.
        TypeError: `space` holds a space without a fixed shape.
    """
    parts = [
        _flatten_leaf(leaf, jnp.asarray(value), batch_dims, path)
        for path, leaf, value in _zip_leaves(space, observation, "observation")
    ]
    if not parts:
        raise ValueError(
            f"The observation space {space} is empty, so an observation cannot be flattened to a vector. Add a space "
            "that contains numbers, such as a Box."
        )
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def zeros(space: Space, batch_shape: tuple[int, ...] = ()) -> Any:
    """Arrays of zeros with the shapes and dtypes of a batch of `space`'s elements, even if `space` does not contain 0.

    Args:
        space: The space of one element.
        batch_shape: Leading axes.

    Returns:
        Pytree that mirrors `space`; leaves ``[*batch_shape, *leaf.shape]``.
    """
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape_dtype_struct(space, batch_shape))


def shape_dtype_struct(space: Space, batch_shape: tuple[int, ...] = ()) -> Any:
    """Shapes and dtypes of the arrays of `zeros`, as `jax.ShapeDtypeStruct`s: for `jax.eval_shape` and specs.

    Args:
        space: The space of one element.
        batch_shape: Leading axes.
    """
    return map_leaves(lambda leaf: jax.ShapeDtypeStruct((*batch_shape, *_shape(leaf)), _leaf_dtype(leaf)), space)


def dtype_of(space: Space) -> Any:
    """Dtype of `space` in JAX arrays; a pytree of dtypes for `Dict` and `Tuple`."""
    return map_leaves(_leaf_dtype, space)


def map_leaves(function: Callable[[Any], Any], space: Space) -> Any:
    """Applies ``function(part)`` to each elementary part (neither `Dict` nor `Tuple`) of a space.

    Returns a pytree with the structure of `space`.

    Raises:
        TypeError: If a part has no fixed shape.
    """
    _leaves(space, "space")
    return map_parts(function, space)


def map_parts(function: Callable[..., Any], space: Space, *values: Any) -> Any:
    """Calls ``function(part, *entries)`` for each elementary part (neither `Dict` nor `Tuple`) of a space.

    `entries` contains one entry of each pytree in `values`, at the same position as the part. Returns the results as a
    pytree with the structure of `space`.

    Args:
        function: Called with a part of the space, and with the entry of each of `values` at the same position.
        space: Any space.
        values: Dicts and tuples that mirror it.
    """
    match space:
        case Dict():
            return {
                key: map_parts(function, child, *(value[key] for value in values))
                for key, child in space.spaces.items()
            }
        case Tuple():
            children = zip(space.spaces, *values, strict=True)
            return tuple(map_parts(function, child, *parts) for child, *parts in children)
        case _:
            return function(space, *values)


def with_parts(function: Callable[[Any], Space], space: Space) -> Space:
    """Returns a copy of a space in which ``function(part)`` replaces each elementary part (neither `Dict` nor `Tuple`).
    For an elementary space, returns ``function(space)``.
    """
    match space:
        case Dict():
            return Dict({key: with_parts(function, child) for key, child in space.spaces.items()})
        case Tuple():
            return Tuple([with_parts(function, child) for child in space.spaces])
        case _:
            return function(space)


def from_zero(space: Space) -> Space:
    """Converts an environment's action space to the space of a module's actions, in which Discrete and MultiDiscrete
    parts count from 0, whatever their ``start``.
    """

    def counted(part):
        if isinstance(part, Discrete):
            return Discrete(int(part.n))
        return MultiDiscrete(part.nvec) if isinstance(part, MultiDiscrete) else part

    return with_parts(counted, space)


def from_start(space: Space, action: jax.Array) -> jax.Array:
    """Converts a module's actions, which count from 0 (see `from_zero`), to the environment's actions, which count from
    the space's ``start``.

    Args:
        space: Space of the environment: any but Dict and Tuple.
        action: ``[B, ...]``.

    Returns:
        ``action + start`` where the space has one; the array itself where there is nothing to add.
    """
    start = getattr(space, "start", 0)
    return action + jnp.asarray(start, action.dtype)[None] if np.any(start) else action


def sample(key: jax.Array, space: Space, batch_shape: tuple[int, ...] = ()) -> Any:
    """Draws independent random elements of `space`; pure and jittable.

    Drawn from the distributions that gymnasium documents for ``space.sample()``: uniform where bounded on
    both sides, exponential beyond a single bound, standard normal where unbounded (rounded down for integer
    boxes).

    Args:
        key: PRNG key.
        space: The space of one element.
        batch_shape: Leading axes.

    Returns:
        Pytree that mirrors `space`; leaves ``[*batch_shape, *leaf.shape]``.
    """
    leaves = len(jax.tree.leaves(dtype_of(space)))
    keys = iter(jax.random.split(key, max(leaves, 1)))
    return map_leaves(lambda leaf: _sample_leaf(next(keys), leaf, tuple(batch_shape)), space)


def validate_batch(space: Space, batch: Any, batch_dims: int | None = None, name: str = "batch") -> tuple[int, ...]:
    """Checks structure, shapes and dtype kinds of a batch of `space`'s elements; does not check the values.

    Args:
        space: The space of one element.
        batch: Pytree that mirrors `space`; leaves ``[*batch, *leaf.shape]``, arrays or Python numbers.
        batch_dims: Number of leading batch axes; None to take it from the first leaf.
        name: Name of `batch` in errors.

    Returns:
        The batch shape that all leaves share.

    Raises:
        ValueError: Names the leaf, what it is and what it should be.
        TypeError: `space` holds a space without a fixed shape.
    """
    batch_shape, first = None, ""
    for path, leaf, value in _zip_leaves(space, batch, name):
        array = value if isinstance(value, jax.Array | jax.ShapeDtypeStruct) else np.asarray(value)
        shape, dtype = array.shape, array.dtype
        if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)):
            shown = " ".join(repr(value).split())
            raise ValueError(
                f"{path} is {shown if len(shown) <= 60 else shown[:59] + '…'}, but its space {leaf} needs an "
                f"array of numbers. Pass an array of dtype {_leaf_dtype(leaf)}."
            )
        dtype = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
        if batch_dims is None:
            batch_dims = len(shape) - len(_shape(leaf))
        leading = _leading_shape(leaf, shape, batch_dims, path)
        if batch_shape is None:
            batch_shape, first = leading, path
        elif leading != batch_shape:
            raise ValueError(
                f"{path} has batch shape {leading}, but {first} has {batch_shape}. Pass arrays of equal batch shape."
            )
        target = _leaf_dtype(leaf)
        if not _casts(dtype, target):
            raise ValueError(
                f"{path} has dtype {dtype}, but {leaf} needs {target}: the conversion could change values. Convert "
                f"it to {target}, or change the dtype of the space."
            )
    return batch_shape or ()


def conform(space: Space, value: Any, name: str = "value", *, casts: bool = False) -> Any:
    """Converts an element of a space to plain dicts, tuples and arrays. The arrays have the dtypes of the space, and
    are not weakly typed.

    Args:
        space: The space.
        value: An element, with attributes (a dataclass or named tuple) allowed in place of a dict.
        name: Name of `value` in errors.
        casts: Convert to the space's dtype whatever the kind of a leaf is.

    Returns:
        Pytree that mirrors `space`; leaves of exactly the leaf's shape.

    Raises:
        ValueError: Structure, shape or kind of dtype do not fit; names the place.
    """
    leaves = iter(_zip_leaves(space, value, name))

    def convert(leaf: Space) -> jax.Array:
        path, _, part = next(leaves)
        part = jnp.asarray(part)
        _leading_shape(leaf, part.shape, 0, path)
        if not casts:
            _require_kind(leaf, part, path)
        return jax.lax.convert_element_type(part, _leaf_dtype(leaf))

    return map_leaves(convert, space)


def _require_kind(leaf: Any, part: jax.Array, path: str) -> None:
    """Raises ValueError if the dtype of the array `part` does not fit a space of integers.

    The dtype does not fit if the array contains floats, or if the space is a `Box` whose integer dtype is smaller than
    the array's, so that large numbers would wrap.
    """
    dtype = np.dtype(leaf.dtype)
    if dtype.kind not in "iu":
        return
    if jnp.issubdtype(part.dtype, jnp.inexact):
        raise ValueError(
            f"{path} has dtype {part.dtype}, but its space {leaf} has dtype {dtype}: fractions would be lost. Return "
            f"obs.astype(jnp.{_leaf_dtype(leaf)}), or give observation_space a float dtype."
        )
    if isinstance(leaf, Box) and dtype.itemsize < min(part.dtype.itemsize, 4) and not part.weak_type:
        raise ValueError(
            f"{path} has dtype {part.dtype}, but its space {leaf} has dtype {dtype}: numbers that do not fit {dtype} "
            f"would wrap. Return obs.astype(jnp.{dtype}) if all numbers fit, or give observation_space the dtype "
            f"{part.dtype}."
        )


def check_space(space: Any, name: str) -> None:
    """Raises an error if compiled code does not support a space.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`, `Tuple`.
        name: Name of the space in errors.

    Raises:
        TypeError: It is, or holds, something else.
        ValueError: It holds no numbers, numbers that are not real, or bounds that are NaN or the wrong way round.
    """
    leaves = _leaves(space, name)
    if not leaves:
        raise ValueError(
            f"{name} is {space!r}, which is empty: add at least one part that contains a number, such as a Box."
        )
    for path, leaf in leaves:
        if np.dtype(leaf.dtype).kind not in "biuf":
            raise ValueError(
                f"{path} is {leaf!r}, whose dtype {leaf.dtype} is not numeric: use float32, an integer type or bool."
            )
        attribute = "n" if isinstance(leaf, Discrete) else "nvec"
        count = getattr(leaf, attribute, 1)
        if isinstance(leaf, Discrete | MultiDiscrete) and np.min(count, initial=1) < 1:
            raise ValueError(
                f"{path} is {leaf!r}, with {attribute}={count}: set every number of choices to at least 1."
            )
        if isinstance(leaf, Discrete | MultiDiscrete):
            first, last = (
                int(function(bound)) for function, bound in zip((np.min, np.max), choices_of(leaf), strict=True)
            )
            if first < -(2**31) or last >= 2**31:
                raise ValueError(
                    f"{path} is {leaf!r}, with choices from {first} to {last}: compiled programs use int32, whose "
                    "range does not contain all choices. Use fewer choices, another start, or a Box of float32."
                )
        if 0 in _shape(leaf):
            raise ValueError(
                f"{path} is {leaf!r} of shape {_shape(leaf)}, which has no elements: remove this space, or use a shape "
                "in which no axis has the size 0."
            )
        if isinstance(leaf, Box):
            if np.isnan(leaf.low).any() or np.isnan(leaf.high).any():
                raise ValueError(f"{path} is {leaf!r}, with NaN among its bounds: use -inf and inf for no bound.")
            if leaf.dtype.kind == "f" and ((leaf.low > _LARGEST).any() or (leaf.high < -_LARGEST).any()):
                raise ValueError(
                    f"{path} is {leaf!r}: the bounds of an element allow only values outside the float32 range. Scale "
                    "the environment's values and the bounds of this space down."
                )
            if (leaf.low > leaf.high).any():
                raise ValueError(
                    f"{path} is {leaf!r}: an element has a lower bound above its upper bound. Exchange the two bounds."
                )


def _leaves(space: Any, path: str) -> list[tuple[str, Any]]:
    """Lists the elementary spaces of a space with their paths, ``[(path, space)]``. Raises TypeError for a space
    without a fixed shape.
    """
    return [(place, leaf) for place, leaf, _ in _zip_leaves(space, map_parts(lambda part: part, space), path)]


def difference(space: Space, other: Space) -> str | None:
    """Describes the first difference between two spaces. Ignores differences between bounds, and between dtypes of the
    same kind. Returns None if no other difference exists.

    Compares structure, types of the elementary spaces, shapes, kinds of dtype (bool, integer, float), and the choices
    of discrete parts (number and start), but not bounds.

    Args:
        space: A space.
        other: Another one.

    Returns:
        "at ['key'] Discrete(2) has another form than Discrete(3)", for example.
    """
    mine, others = (_leaves(s, "") for s in (space, other))
    nesting = [map_parts(lambda part: None, s) for s in (space, other)]
    if [path for path, _ in mine] != [path for path, _ in others] or nesting[0] != nesting[1]:
        return f"{space} has another structure than {other}"
    for (path, leaf), (_, that) in zip(mine, others, strict=True):
        if _form(leaf) != _form(that):
            return f"{f'at {path} ' if path else ''}{leaf} has another form than {that}"
    return None


def _form(leaf: Any) -> tuple[Any, ...]:
    kind = {"u": "i"}.get(np.dtype(leaf.dtype).kind, np.dtype(leaf.dtype).kind)
    match leaf:
        case Discrete():
            return "Discrete", int(leaf.n), int(leaf.start)
        case MultiDiscrete():
            return "MultiDiscrete", leaf.nvec.tolist(), leaf.start.tolist()
        case _:
            return type(leaf).__name__, _shape(leaf), kind


def space_to_dict(space: Space | None) -> Any:
    """Describes `space` with JSON types only: strict JSON (infinities as strings), no pickle. Returns None if `space`
    is None.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Text`, `Dict`, `Tuple`.

    Raises:
        TypeError: `space` holds another space.
    """
    match space:
        case None:
            return None
        case Dict():
            return {"type": "Dict", "spaces": [[key, space_to_dict(child)] for key, child in space.spaces.items()]}
        case Tuple():
            return {"type": "Tuple", "spaces": [space_to_dict(child) for child in space.spaces]}
    for kind, names in _DESCRIBED.items():
        if isinstance(space, kind):
            return {"type": kind.__name__, **{name: _described(space, name) for name in names}}
    raise _unsupported(space, "space")


_DESCRIBED: dict[type[Space], tuple[str, ...]] = {
    Box: ("low", "high", "shape", "dtype", "bounded_below", "bounded_above"),
    Discrete: ("n", "start", "dtype"),
    MultiDiscrete: ("nvec", "start", "dtype"),
    MultiBinary: ("n",),
    Text: ("min_length", "max_length", "charset"),
}
"""What makes a space of each type the same again."""


def _described(space: Any, name: str) -> Any:
    if name == "dtype":
        return np.dtype(space.dtype).name
    if name == "charset":
        return "".join(sorted(space.character_set))
    value = np.asarray(getattr(space, name))
    if isinstance(space, Box) and name != "shape" and value.size and (value == value.flat[0]).all():
        value = value.flat[0]
    return _numbers_to_json(value.tolist())


def space_from_dict(description: Mapping[str, Any] | None) -> Any:
    """Creates a space from a result of `space_to_dict`.

    Raises:
        ValueError: `description` names an unknown type of space.
    """
    if description is None:
        return None
    names = next((names for kind, names in _DESCRIBED.items() if kind.__name__ == description["type"]), ())
    own = {name: description[name] for name in names}
    dtype = np.dtype(own.pop("dtype", None))
    match description["type"]:
        case "Box":
            low, high, below, above = (
                _array_from_json(own[name], tuple(own["shape"]), np.dtype(kind))
                for name, kind in (("low", dtype), ("high", dtype), ("bounded_below", bool), ("bounded_above", bool))
            )
            box = Box(low, high, low.shape, dtype.type)
            # An integer box stores the dtype's limits in place of infinities, so the bounds alone do not
            # tell.
            box.bounded_below, box.bounded_above = below, above
            return box
        case "Discrete":
            # gymnasium 1.2 has no dtype argument; its Discrete is int64, as is the default of later versions.
            return Discrete(**own) if dtype == np.int64 else Discrete(**own, dtype=dtype.type)
        case "MultiDiscrete":
            nvec, start = (np.asarray(own[name], dtype) for name in ("nvec", "start"))
            return MultiDiscrete(nvec, dtype=dtype.type, start=start)
        case "MultiBinary":
            return MultiBinary(**own)
        case "Text":
            return Text(**own)
        case "Dict":
            return Dict([(key, space_from_dict(child)) for key, child in description["spaces"]])
        case "Tuple":
            return Tuple([space_from_dict(child) for child in description["spaces"]])
        case other:
            raise ValueError(
                f"A dict that describes a space has the unknown type {other!r}. Use Box, Discrete, MultiDiscrete, "
                "MultiBinary, Text, Dict or Tuple."
            )


MAX_SPACE_ELEMENTS = 1 << 24
"""Entries that all spaces which a file describes may have together; an image of 1024 x 1024 x 3 has a fifth of it."""


def num_described_entries(description: Any) -> int:
    """Number of array entries in one element of a space, such as 12 for a `Box` of shape ``[3, 4]``.

    Counts nested spaces, too; `Discrete` and `Text` count as 0 entries. `description` is a result of `space_to_dict`;
    the function does not create the space.

    Raises:
        ValueError: If a shape in the description is not valid.
    """
    total = 0
    waiting = [description]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            for name in ("shape", "n", "nvec"):
                # A count of choices, n of a Discrete, takes no memory.
                if name in item and item.get("type") != "Discrete":
                    total += _num_entries(item[name], is_shape=name != "nvec")
            waiting += [part for part in item.values() if isinstance(part, list | dict)]
    return total


def _num_entries(form: Any, *, is_shape: bool) -> int:
    if not is_shape:
        return sum(_num_entries(part, is_shape=False) for part in form) if isinstance(form, list) else 1
    sizes = form if isinstance(form, list) else [form]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(
            f"A dict that describes a space has the shape {form!r}. Use an integer or a list of integers of at least 0."
        )
    return math.prod(sizes)


def _unsupported(space: Any, path: str) -> TypeError:
    return TypeError(
        f"{path} is {space!r}, which has no fixed shape or is no gymnasium space. Supported are Box, "
        "Discrete, MultiDiscrete, MultiBinary and nested Dict and Tuple: let the environment offer one of "
        "these, or convert the observations in a connector."
    )


def _zip_leaves(space: Space, value: Any, path: str) -> list[tuple[str, Any, Any]]:
    """Lists ``(path, elementary space, value)`` for a space and a value of the same structure, in the order of the
    space. Raises ValueError if the structures differ.
    """
    match space:
        case Dict():
            children: Any = space.spaces.items()
            names, parts = list(space.spaces), _named_parts(value)
            if parts is None or set(parts) != set(names):
                shown = f"is a {type(value).__name__}" if parts is None else f"has {list(parts)}"
                raise ValueError(f"{path} must have exactly the keys {names} of its space, but {shown}.")
        case Tuple():
            children, parts = enumerate(space.spaces), value
            if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
                what = (
                    f"has {len(value)} entries" if isinstance(value, (tuple, list)) else f"is a {type(value).__name__}"
                )
                raise ValueError(f"{path} must be a tuple of {len(space.spaces)} entries, like its space, but {what}.")
        case _ if isinstance(space, Leaf):
            if isinstance(value, (Mapping, tuple)) or value is None:
                raise ValueError(
                    f"{path} is a {type(value).__name__}, but its space {space} needs an array. Pass a NumPy or JAX "
                    "array."
                )
            return [(path, space, value)]
        case _:
            raise _unsupported(space, path)
    return [leaf for key, child in children for leaf in _zip_leaves(child, parts[key], f"{path}[{key!r}]")]


def _named_parts(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and (names := getattr(value, "_fields", None)):  # a named tuple
        return dict(zip(names, value, strict=True))
    return None


def _shape(leaf: Space) -> tuple[int, ...]:
    return tuple(int(n) for n in leaf.shape or ())


def _leaf_dtype(leaf: Space) -> np.dtype:
    return np.dtype(jax.dtypes.canonicalize_dtype(leaf.dtype))


def _casts(dtype: Any, target: Any) -> bool:
    """Whether values of a dtype may be converted to a space's dtype `target`.

    Bools and integers may be converted to bool, integer and float dtypes; floats only to float dtypes. The sizes of the
    dtypes in bits do not matter.
    """
    rank = {"b": 0, "u": 1, "i": 1, "f": 2}

    def kind(dtype: Any) -> int:
        # bfloat16 and its like report kind "V".
        return 2 if jnp.issubdtype(dtype, jnp.floating) else rank.get(np.dtype(dtype).kind, 3)

    # Bits arrive as bool, int8 or from comparisons; a bool leaf takes integers too.
    return kind(dtype) <= max(kind(target), 1)


def _leading_shape(leaf: Space, shape: tuple[int, ...], batch_dims: int, path: str) -> tuple[int, ...]:
    own = _shape(leaf)
    split = len(shape) - len(own)
    if split != batch_dims or split < 0 or tuple(shape[split:]) != own:
        raise ValueError(
            f"{path} has shape {tuple(shape)}, but needs {max(batch_dims, 0)} batch axes, followed by the shape {own} "
            f"of its space {leaf}. Pass an array of that shape, or change the space."
        )
    return tuple(shape[:split])


def _flatten_leaf(leaf: Space, value: jax.Array, batch_dims: int, path: str) -> jax.Array:
    batch = _leading_shape(leaf, value.shape, batch_dims, path)
    if isinstance(leaf, (Discrete, MultiDiscrete)):
        value = value.astype(jnp.int32)
    match leaf:
        case Discrete():
            hot = value[..., None] == _aligned(np.arange(leaf.n) + leaf.start, value.ndim + 1)
        case MultiDiscrete():
            # Column j of the output asks: does entry owner[j] have its value[j]? One gather for any nvec.
            nvec = leaf.nvec.ravel()
            owner = np.repeat(np.arange(nvec.size), nvec)
            wanted = np.concatenate([np.arange(n) for n in nvec]) + leaf.start.ravel()[owner]
            hot = value.reshape(*batch, nvec.size)[..., owner] == _aligned(wanted, len(batch) + 1)
        case _:
            hot = value.reshape(*batch, flatdim(leaf))
    return hot.astype(jnp.float32)


def _aligned(array: np.ndarray, ndim: int) -> np.ndarray:
    """Converts a NumPy array to int32, and adds leading axes of size 1 until it has `ndim` axes.

    Operations with arrays of `ndim` axes then need no rank promotion.
    """
    return array.astype(np.int32).reshape((1,) * (ndim - array.ndim) + array.shape)


def _bounds(leaf: Space) -> np.ndarray:
    """Lower bounds (row 0) and upper bounds (row 1) of a flattened elementary space, float32 ``[2, n]``.

    The space has n entries. The bounds are 0 and 1 for all spaces except `Box`.
    """
    if not isinstance(leaf, Box):
        return np.repeat(np.array([[0], [1]], np.float32), flatdim(leaf), axis=1)
    with np.errstate(over="ignore"):  # a float64 bound that float32 cannot hold is no bound
        return np.stack([leaf.low.ravel(), leaf.high.ravel()]).astype(np.float32)


def _sample_leaf(key: jax.Array, leaf: Any, batch_shape: tuple[int, ...]) -> jax.Array:
    shape, dtype = (*batch_shape, *_shape(leaf)), _leaf_dtype(leaf)
    match leaf:
        case Discrete():
            draw = jax.random.randint(key, shape, 0, int(leaf.n)) + int(leaf.start)
        case MultiDiscrete():
            nvec, start = (np.broadcast_to(x, shape).astype(np.int32) for x in (leaf.nvec, leaf.start))
            draw = jax.random.randint(key, shape, 0, nvec) + start
        case MultiBinary():
            draw = jax.random.bernoulli(key, shape=shape)
        case Box() if dtype.kind == "b":
            low, high = np.broadcast_to(leaf.low, shape), np.broadcast_to(leaf.high, shape)
            draw = jax.random.bernoulli(key, shape=shape) & high | low
        case _:
            draw = _sample_box(key, leaf, shape, dtype)
    return draw.astype(dtype)


_LARGEST = np.finfo(np.float32).max


def _sample_box(key: jax.Array, box: Box, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    low, high, below, above = (
        np.broadcast_to(x, shape) for x in (box.low, box.high, box.bounded_below, box.bounded_above)
    )
    if not (integer := dtype.kind in "iu"):  # float64 bounds beyond float32 are none
        below, above = below & (low >= -_LARGEST), above & (high <= _LARGEST)
    both, neither = below & above, ~(below | above)
    keys = jax.random.split(key, 3)
    draw = jnp.zeros(shape, dtype)
    # Only the distributions that some entry needs are drawn; which ones is static.
    if both.any():
        uniform = _uniform_integers if integer else _uniform_floats
        draw = jnp.where(both, uniform(keys[0], np.where(both, low, 0), np.where(both, high, 0), dtype), draw)
    if (below ^ above).any():
        tail = jax.random.exponential(keys[1], shape)
        tail = (jnp.floor(tail) if integer else tail).astype(dtype)
        draw = jnp.where(below & ~above, np.where(below & ~above, low, 0).astype(dtype) + tail, draw)
        draw = jnp.where(above & ~below, np.where(above & ~below, high, 0).astype(dtype) - tail, draw)
    if neither.any():
        normal = jax.random.normal(keys[2], shape)
        draw = jnp.where(neither, (jnp.floor(normal) if integer else normal).astype(dtype), draw)
    return draw


def _uniform_floats(key: jax.Array, low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> jax.Array:
    # A convex combination: high - low may overflow.
    u = jax.random.uniform(key, low.shape)
    low, high = low.astype(np.float32), high.astype(np.float32)
    return jnp.clip((1 - u) * low + u * high, low, high).astype(dtype)


def _uniform_integers(key: jax.Array, low: np.ndarray, high: np.ndarray, dtype: np.dtype) -> jax.Array:
    # Modular arithmetic on 32 bits, so that ranges up to the whole dtype work; a span of 2**32 wraps to 0.
    limits = np.iinfo(dtype)
    low, high = (np.clip(bound.astype(object), limits.min, limits.max) for bound in (low, high))
    span = ((high - low + 1) % 2**32).astype(np.uint32)
    bits = jax.random.bits(key, low.shape, jnp.uint32)
    offset = jnp.where(span == 0, bits, bits % np.maximum(span, np.uint32(1)))
    return (offset + (low % 2**32).astype(np.uint32)).astype(dtype)


def _numbers_to_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_numbers_to_json(v) for v in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


def _array_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    array = np.asarray(value, object) if isinstance(value, list) else np.asarray(value)
    if dtype.kind == "f":
        array = array.astype(np.float64)  # also reads "inf" and "-inf"
    return np.broadcast_to(array.astype(dtype), shape).copy()
