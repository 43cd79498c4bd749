"""Conversion of values to JSON and arrays, and back, for checkpoints. Checkpoints contain data only, no code."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.checkpoints.array_file import DTYPE_NAMES, bytes_of
from jaxrl_stack.utils.class_paths import ClassLoader, path_of
from jaxrl_stack.utils.spaces import MAX_SPACE_ELEMENTS, num_described_entries, space_from_dict, space_to_dict

KIND = "__kind__"
_DTYPES = frozenset({*DTYPE_NAMES, "complex64", "complex128"})
_NO_FLOATS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_JSON_TYPES = {"b": bool, "i": int, "u": int, "f": float}
NOT_STORED = "not_stored"
"""Key in the metadata of dataclass fields that are no part of checkpoints, such as paths to other files."""
DAMAGES = (
    *(KeyError, TypeError, AttributeError, IndexError, AssertionError),
    *(OverflowError, ZeroDivisionError, MemoryError, RecursionError),
)
"""What code raises that gets values of a wrong kind out of a damaged checkpoint."""


EXPECTED_BASES: dict[str, tuple[str, ...]] = {
    "algo_class": ("jaxrl_stack.algorithms.algorithm:Algorithm",),
    "callbacks_class": ("jaxrl_stack.callbacks.callbacks:RLlibCallback",),
    "catalog_class": ("jaxrl_stack.core.models.catalog:Catalog",),
    "connector_class": ("jaxrl_stack.connectors.connector_v2:ConnectorV2",),
    "env": ("gymnasium.core:Env", "gymnasium.vector.vector_env:VectorEnv", "jaxrl_stack.env.jax_env:JaxEnv"),
    "env_runner_cls": ("jaxrl_stack.env.env_runner:EnvRunner",),
    "learner_class": ("jaxrl_stack.core.learner.learner:Learner",),
    "module_class": ("jaxrl_stack.core.rl_module.rl_module:RLModule",),
    "multi_rl_module_class": ("jaxrl_stack.core.rl_module.rl_module:MultiRLModule",),
    "type": (
        "jaxrl_stack.replay.episode_replay_buffer:EpisodeReplayBuffer",
        "jaxrl_stack.replay.multi_agent_episode_buffer:MultiAgentEpisodeReplayBuffer",
    ),
}
"""What a class extends that stands under a name, as text: such classes of the running script need not be named by who
loads a checkpoint."""


class NotDataError(TypeError):
    """Error for a value that a checkpoint cannot store, such as code."""


class Plain:
    """Base class of objects that convert themselves to data that a checkpoint can store, and back."""

    def to_plain(self) -> dict[str, Any]:
        """Returns the data of this object, ``{name: value}``, from which `from_plain` builds the object. Each value
        must have a type that `Encoder` supports.
        """
        raise NotImplementedError

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Any:
        """Builds the object from data that `to_plain` returned.

        Args:
            data: Data that `to_plain` returned.
            loader: Class loader with the trusted code, for values that name code in their own form.
        """
        raise NotImplementedError


class Constructible:
    """Base class of objects that a checkpoint stores as their constructor arguments."""

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments ``(args, kwargs)`` that describe this object."""
        raise NotImplementedError


class Encoder:
    """Converts values to JSON, as checkpoints and command logs store them.

    The JSON contains scalar and empty arrays. It refers to other arrays by name, and the attribute `arrays` collects
    these other arrays.

    Args:
        leave_out: Record values that are not data in `left_out`, instead of raising.

    Attributes:
        arrays: ``{name: array}`` of the arrays.
        left_out: ``{path: description}`` of values that the JSON lacks.
        named: Classes and functions that the JSON names.
    """

    def __init__(self, *, leave_out: bool = False):
        self.arrays: dict[str, np.ndarray] = {}
        self.left_out: dict[str, str] = {}
        self.named: list[Any] = []
        self._leave_out = leave_out
        self._space_elements = 0

    def encode(self, value: Any, where: str = "") -> Any:
        """Converts a value to JSON.

        Args:
            value: None, numbers, strings, arrays, PRNG keys, spaces, classes, functions at the top level of a module,
                dataclasses, `Plain` and `Constructible` objects; lists, tuples, sets and dicts of these.
            where: Name of the value, for messages and names of arrays.

        Raises:
            NotDataError: For any other value, unless it is left out.
        """
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, np.ndarray | np.generic | jax.Array):
            return self._array(value, where)
        if isinstance(value, int):
            return int(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else {KIND: "float", "value": str(float(value))}
        # Before mappings, which spaces.Dict is one of.
        if isinstance(value, gym.Space):
            return {KIND: "space", "value": self._space(value, where)}
        if isinstance(value, Mapping):
            return self._mapping(value, where)
        if isinstance(value, list | tuple | set | frozenset):
            return self._sequence(value, where)
        if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
            try:
                path = self._path_of(value)
            except ValueError:
                kind = "local class" if isinstance(value, type) else "function"
                return self._no_data(value, where, f"the {kind} {value.__qualname__}")
            return {KIND: "class" if isinstance(value, type) else "function", "value": path}
        return self._object(value, where)

    def _path_of(self, thing: Any) -> str:
        path = path_of(thing)
        self.named.append(thing)
        return path

    def _array(self, value: Any, where: str) -> Any:
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = self._array(np.asarray(jax.random.key_data(value)), where)
            return {KIND: "key", "impl": str(jax.random.key_impl(value)), "value": data}
        array = np.asarray(value)
        if array.dtype.name not in _DTYPES:
            return self._no_data(value, where, f"an array of dtype {array.dtype}")
        if not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))
        node = {KIND: "array", "dtype": array.dtype.name, "shape": list(array.shape)}
        if array.ndim == 0:
            # Exact: every float32 and float16 is a float64, which JSON writes with all its digits.
            if array.dtype.kind in _JSON_TYPES and np.isfinite(array):
                return node | {"value": array.item()}
            return node | {"hex": array.tobytes().hex()}
        if array.size == 0:
            return node
        name = where or "value"
        while name in self.arrays or name == "__metadata__":  # the format of files keeps that one for itself
            name += "_"
        self.arrays[name] = array
        return node | {"name": name, "crc32": checksum(array)}

    def _space(self, space: gym.Space, where: str) -> dict[str, Any]:
        description = space_to_dict(space)
        self._space_elements += num_described_entries(description)
        if self._space_elements > MAX_SPACE_ELEMENTS:
            raise NotDataError(
                f"{where} is {space}, which is too large for a checkpoint: all spaces together may have at most "
                f"{MAX_SPACE_ELEMENTS:,} array entries (counted in one sample per space). Use spaces with smaller "
                "shapes."
            )
        return description

    def _mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        if all(isinstance(key, str) for key in value) and KIND not in value:
            return {key: self.encode(item, f"{where}/{key}" if where else key) for key, item in value.items()}
        pairs = [
            [self.encode(key, f"{where}/key{i}"), self.encode(item, f"{where}/{i}")]
            for i, (key, item) in enumerate(value.items())
        ]
        return {KIND: "dict", "value": pairs}

    def _sequence(self, value: Any, where: str) -> Any:
        members = value
        if isinstance(value, set | frozenset):
            members = sorted(value, key=lambda item: (str(type(item)), str(item)))
        items = [self.encode(item, f"{where}/{i}") for i, item in enumerate(members)]
        if isinstance(value, list):
            return items
        return {KIND: "tuple" if isinstance(value, tuple) else "set", "value": items}

    def _object(self, value: Any, where: str) -> Any:
        cls = type(value)
        try:
            path = self._path_of(cls)
        except ValueError:
            return self._no_data(value, where, f"an object of the local class {cls.__qualname__}")
        if isinstance(value, Plain):
            return {KIND: "plain", "class": path, "value": self._mapping(value.to_plain(), where)}
        if isinstance(value, Constructible):
            args, kwargs = value.get_ctor_args_and_kwargs()
            return {
                KIND: "object",
                "class": path,
                "args": self._sequence(list(args), where),
                "kwargs": self._mapping(kwargs, where),
            }
        if dataclasses.is_dataclass(value):
            stored = [f.name for f in dataclasses.fields(value) if f.init and not f.metadata.get(NOT_STORED)]
            fields = {name: getattr(value, name) for name in stored}
            return {KIND: "object", "class": path, "args": [], "kwargs": self._mapping(fields, where)}
        return self._no_data(value, where, f"an object of {cls.__qualname__}")

    def _no_data(self, value: Any, where: str, what: str) -> Any:
        if isinstance(value, types.FunctionType):
            code = value.__code__
            what = "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
            what += f" of {os.path.basename(code.co_filename)}:{code.co_firstlineno}"
        if not self._leave_out:
            raise NotDataError(
                f"{where} is {what}, which a checkpoint cannot store. Use numbers, text, arrays, or a function or "
                "class that a module defines at its top level."
            )
        self.left_out[where] = what
        return {KIND: "missing", "where": where, "value": what}


def code_named_by(*values: Any) -> list[Any]:
    """Returns the classes and functions in values that a caller passes to load a checkpoint, such as a config.

    Loading trusts this code as if ``allow`` listed it.

    Args:
        *values: Values that `Encoder` supports; lambdas and other objects that are not data are skipped.
    """
    encoder = Encoder(leave_out=True)
    encoder.encode(values)
    return encoder.named


class Decoder:
    """Converts JSON of a checkpoint or command log back to values; inverse of `Encoder`.

    Args:
        loader: Finds classes.
        arrays: Returns the array of a name.
        what: Description of the decoded value, for messages.
    """

    def __init__(
        self, loader: ClassLoader, *, arrays: Callable[[str], np.ndarray] | None = None, what: str = "The checkpoint"
    ):
        self.loader = loader
        self._arrays = arrays
        self._what = what
        self._space_elements = 0

    def decode(self, node: Any, name: str = "") -> Any:
        """Converts a JSON node of an `Encoder` back to a value.

        Args:
            node: JSON that `Encoder.encode` returned.
            name: Name of the value, which determines the base class of a class; see `EXPECTED_BASES`.

        Raises:
            ValueError: If the node is damaged, names a class that is not allowed, or describes a left-out value.
        """
        if isinstance(node, list):
            return [self.decode(item, name) for item in node]
        if not isinstance(node, dict):
            return node
        if KIND not in node:
            return self.decode_items(node)
        kind = node[KIND]
        if not isinstance(kind, str) or kind not in self._KINDS:
            raise ValueError(
                f"{self._what} has a value of the unknown kind {kind!r}: it is damaged, or from a newer release. Load "
                "it with the release that wrote it."
            )
        try:
            return self._KINDS[kind](self, node, name)
        except DAMAGES as error:
            raise ValueError(
                f"{self._what} is damaged, or from another release: a value with {KIND}={kind!r} cannot be decoded. "
                f"Use an undamaged copy, or the release that wrote it. Cause: {error!r}"
            ) from error
        except ValueError as error:
            if str(error).startswith(self._what):
                raise
            raise ValueError(
                f"{self._what} is damaged, or from another release: a value with {KIND}={kind!r} cannot be decoded. "
                f"Use an undamaged copy, or the release that wrote it. Cause: {error}"
            ) from error

    def decode_items(self, nodes: Mapping[str, Any]) -> dict[str, Any]:
        """Converts the JSON that `Encoder` made of a dict, ``{name: node}``, back to ``{name: value}``."""
        return {name: self.decode(node, name) for name, node in nodes.items()}

    def _array(self, node: dict[str, Any], name: str) -> np.ndarray:
        stored = StoredArray.of(node, self._what)
        shape, dtype = stored.shape, stored.dtype
        if "name" in node:
            if self._arrays is None:
                raise ValueError(
                    f"{self._what} is damaged: its constructor arguments refer to a stored array, but only states may "
                    "refer to stored arrays. Use an undamaged copy."
                )
            return self._arrays(node["name"])
        if shape == () and "hex" in node:
            return np.frombuffer(bytes.fromhex(node["hex"]), dtype).reshape(()).copy()
        if shape == () and "value" in node:
            value = node["value"]
            if type(value) is not _JSON_TYPES.get(dtype.kind):
                raise ValueError(
                    f"{self._what} is damaged: it declares the dtype {dtype} for {value!r}, which has another type. "
                    "Use an undamaged copy."
                )
            with np.errstate(over="ignore"):
                array = np.asarray(value, dtype)
            if array.item() != value:
                raise ValueError(
                    f"{self._what} is damaged: it declares the dtype {dtype} for {value!r}, which {dtype} cannot "
                    "represent. Use an undamaged copy."
                )
            return array
        if 0 not in shape:
            raise ValueError(
                f"{self._what} is damaged: it has an array of shape {list(shape)} without content. Use an undamaged "
                "copy."
            )
        return np.zeros(shape, dtype)

    def _key(self, node: dict[str, Any], name: str) -> jax.Array:
        bits: Any = np.asarray(self.decode(node["value"]))  # a JAX array would have to be compiled for
        return jax.random.wrap_key_data(bits, impl=node["impl"])

    def _space(self, node: dict[str, Any], name: str) -> gym.Space:
        description = node["value"]
        self._space_elements += num_described_entries(description)
        if self._space_elements > MAX_SPACE_ELEMENTS:
            raise ValueError(
                f"{self._what} is damaged: all its spaces together have {self._space_elements:,} array entries "
                f"(counted in one sample per space), more than the maximum of {MAX_SPACE_ELEMENTS:,}. Use an undamaged "
                f"copy."
            )
        return space_from_dict(description)

    def _class(self, node: dict[str, Any], name: str) -> type:
        found = self.loader.load(node["value"], what=self._what, expected=EXPECTED_BASES.get(name, ()))
        if not isinstance(found, type):
            raise ValueError(
                f"{self._what} is damaged: it refers to {node['value']!r}, which is not a class. Use an undamaged copy."
            )
        return found

    def _plain(self, node: dict[str, Any], name: str) -> Any:
        cls = self.loader.load(node["class"], what=self._what, expected=(path_of(Plain),))
        if not isinstance(cls, type) or not issubclass(cls, Plain):
            raise ValueError(
                f"{self._what} is damaged: it contains an object of {node['class']!r} in a form that this package "
                "never writes. Use an undamaged copy."
            )
        return cls.from_plain(self.decode_items(node["value"]), self.loader)

    def _object(self, node: dict[str, Any], name: str) -> Any:
        cls = self.loader.load(node["class"], what=self._what, expected=(path_of(Constructible),))
        if not isinstance(cls, type) or not (dataclasses.is_dataclass(cls) or issubclass(cls, Constructible)):
            raise ValueError(
                f"{self._what} is damaged: it contains an object of {node['class']!r} in a form that this package "
                "never writes. Use an undamaged copy."
            )
        args = [self.decode(item) for item in node["args"]]
        kwargs = self.decode_items(node["kwargs"])
        if dataclasses.is_dataclass(cls) and not issubclass(cls, Constructible):
            refused = [f.name for f in dataclasses.fields(cls) if f.metadata.get(NOT_STORED) and f.name in kwargs]
            if args or refused:
                raise ValueError(
                    f"{self._what} was changed: it sets {refused or args!r} of a {cls.__name__}, and this "
                    "package never stores such values. Use an unchanged copy."
                )
        try:
            return cls(*args, **kwargs)
        except DAMAGES as error:
            raise ValueError(
                f"{self._what} has a value that does not fit the class {cls.__name__}: {error!r}. Load it with the "
                "release that wrote it."
            ) from error

    def _missing(self, node: dict[str, Any], name: str) -> Any:
        where = str(node["where"])
        raise ValueError(
            f"{self._what} does not contain the value of {where}: {node['value']} cannot be saved. Pass this argument: "
            f"from_checkpoint(path, {where.split('/')[0].split('.')[-1]}=...)."
        )

    # Of the class: a table of an object's own methods would keep it, and its arrays, until garbage is collected.
    _KINDS: ClassVar[dict[str, Callable[[Decoder, dict[str, Any], str], Any]]] = {
        "float": lambda self, node, name: _NO_FLOATS[node["value"]],
        "array": _array,
        "key": _key,
        "dict": lambda self, node, name: {self.decode(key): self.decode(item) for key, item in node["value"]},
        "tuple": lambda self, node, name: tuple(self.decode(item, name) for item in node["value"]),
        "set": lambda self, node, name: {self.decode(item) for item in node["value"]},
        "space": _space,
        "class": _class,
        "function": lambda self, node, name: self.loader.load(node["value"], what=self._what),
        "plain": _plain,
        "object": _object,
        "missing": _missing,
    }


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """Description of a stored array: shape, dtype and checksum.

    Attributes:
        shape, dtype: Shape and dtype of the array.
        crc32: `checksum` of its bytes, unchecked from the JSON.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    crc32: Any

    @classmethod
    def of(cls, node: Mapping[str, Any], what: str) -> StoredArray:
        """Reads the description of the array to which a JSON node refers.

        Raises:
            ValueError: If the description is invalid.
        """
        shape, dtype = node.get("shape"), node.get("dtype")
        is_shape = isinstance(shape, list) and all(type(n) is int and n >= 0 for n in shape)
        if not is_shape or not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ValueError(
                f"{what} is damaged: it has an array of the invalid shape {shape!r} or dtype {dtype!r}. Use an "
                "undamaged copy."
            )
        assert shape is not None
        return cls(tuple(shape), jnp.dtype(dtype), node.get("crc32"))

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def checksum(array: np.ndarray) -> int:
    """CRC-32 of an array's bytes."""
    return zlib.crc32(bytes_of(array))


def array_nodes(node: Any, what: str) -> dict[str, StoredArray]:
    """Finds all arrays to which a JSON node of an `Encoder` refers, ``{name: description}``.

    Raises:
        ValueError: If one is invalid, or two with the same name differ.
    """
    found: dict[str, StoredArray] = {}
    waiting = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, list):
            waiting += item
        elif isinstance(item, dict):
            if item.get(KIND) == "array" and "name" in item:
                name, array = item["name"], StoredArray.of(item, what)
                if not isinstance(name, str) or found.setdefault(name, array) != array:
                    raise ValueError(
                        f"{what} is damaged: the array name {name!r} is not a string, or two descriptions of this "
                        f"array differ. Use an undamaged copy."
                    )
            waiting += item.values()
    return found
