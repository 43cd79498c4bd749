"""Values as JSON and arrays, and back, bit for bit; and what cannot be written so."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import importlib
import itertools
import json
import math
import sys
import weakref
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from gymnasium import spaces

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.checkpoints.plain_data import (
    EXPECTED_BASES,
    KIND,
    MAX_SPACE_ELEMENTS,
    NOT_STORED,
    Decoder,
    Encoder,
    NotDataError,
    Plain,
    array_nodes,
    checksum,
    code_named_by,
)
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.utils.class_paths import ClassLoader, path_of, register_class


def there_and_back(value, *, allow=()):
    """A value through the text of its JSON."""
    encoder = Encoder()
    text = json.dumps(encoder.encode(value, "it"), allow_nan=False)
    return Decoder(ClassLoader(allow), arrays=encoder.arrays.__getitem__).decode(json.loads(text))


def assert_same_bits(one, other):
    assert isinstance(one, np.ndarray)
    other = np.asarray(other)
    assert (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


# --------------------------------------------------------------------------------------------------------- no arrays


class Level(enum.IntEnum):
    LOW = 3


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -(10**30), 2**64, 0.1, 1e-320, 1.7976931348623157e308, math.inf, -math.inf),
        *("", "ü \U0001f642 \0 \ud800", [], [[], {}], {}, {"": {"": None}}),
        (1, (2, [3])),
        {1, 2},
        pytest.param({"a", ("b", 3)}, id="a set of strings and tuples"),  # whose order differs from process to process
        {1: "int", "1": "text", None: "none", (1, "a"): "tuple", 2.5: "float"},
        {"__kind__": "class", "value": "os:system"},
        {"a/b": {"c": [1, {"__kind__": 5}]}},
    ],
    ids=repr,
)
def test_plain_values(value):
    back = there_and_back(value)
    assert back == value
    assert type(back) is type(value)


def test_order_of_dicts_stays():
    assert list(there_and_back({"b": 1, "a": 2})) == ["b", "a"]
    assert list(there_and_back({2: 1, 1: 2})) == [2, 1]


def test_nan_and_negative_zero():
    assert math.isnan(there_and_back(math.nan))
    assert math.copysign(1, there_and_back(-0.0)) == -1


def test_kinds_that_become_simpler():
    """Lists of keys, numbers with names and the like come back as what they are made of."""
    assert there_and_back(Level.LOW) == 3
    assert there_and_back(collections.OrderedDict(a=1)) == {"a": 1}
    assert there_and_back(frozenset([1])) == {1}
    assert there_and_back(collections.namedtuple("P", "x y")(1, 2)) == (1, 2)


# ------------------------------------------------------------------------------------------------------------ arrays

FLOATS = [0.0, -0.0, 1.1, math.nan, -math.nan, math.inf, -math.inf]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]


@pytest.mark.parametrize("name", DTYPES)
def test_arrays(name):
    dtype = jnp.dtype(name)
    bits = np.random.default_rng(0).integers(0, 256, 48 * dtype.itemsize, np.uint8)
    # Any bits at all: denormals, and NaN with whatever in it.
    values = (bits % 2).astype(bool)[:48] if name == "bool" else bits.view(dtype)
    for shape in [(48,), (6, 8), (1, 1, 48), (48, 1)]:
        assert_same_bits(there_and_back(values.reshape(shape)), values.reshape(shape))
    for shape in [(0,), (3, 0, 2)]:
        assert_same_bits(there_and_back(np.zeros(shape, dtype)), np.zeros(shape, dtype))
    for value in values:
        assert_same_bits(there_and_back(np.array(value, dtype)), np.array(value, dtype))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_single_floats(dtype):
    dtype = jnp.dtype(dtype)
    limits = ml_dtypes.finfo(dtype)
    for value in [*FLOATS, limits.max, limits.tiny, limits.smallest_subnormal, limits.eps]:
        assert_same_bits(there_and_back(np.array(value, dtype)), np.array(value, dtype))


@pytest.mark.parametrize("dtype", [d for d in DTYPES if "int" in d])
def test_single_integers(dtype):
    limits = np.iinfo(dtype)
    for value in (limits.min, limits.max):
        assert_same_bits(there_and_back(np.array(value, dtype)), np.array(value, dtype))


def test_other_orders_in_memory():
    array = np.arange(12.0).reshape(3, 4)
    for other in (np.asfortranarray(array), array[::-1, ::2], array.T):
        assert_same_bits(there_and_back(other), np.ascontiguousarray(other))
    # The byte order of another machine.
    assert_same_bits(there_and_back(np.arange(3, dtype=">f4")), np.arange(3, dtype=np.float32))
    assert_same_bits(there_and_back(np.array(5, dtype=">i8")), np.array(5))


def test_jax_arrays_and_numpy_scalars():
    assert_same_bits(there_and_back(jnp.arange(3.0)), np.arange(3, dtype=np.float32))
    assert_same_bits(there_and_back(jnp.bfloat16(1.5)), np.array(1.5, jnp.bfloat16))
    assert_same_bits(there_and_back(np.float64(0.1)), np.array(0.1))
    assert_same_bits(there_and_back(np.bool_(True)), np.array(True))


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 2)])
def test_keys(impl, shape):
    keys = jax.random.split(jax.random.key(7, impl=impl), shape) if shape else jax.random.key(7, impl=impl)
    back = there_and_back({"k": keys})["k"]
    assert back.dtype == keys.dtype
    assert_same_bits(np.asarray(jax.random.key_data(back)), jax.random.key_data(keys))


def test_names_of_arrays():
    """They follow their place, and are never the same."""
    value = {"a": {"b": np.arange(2)}, "a/b": np.arange(3), "": np.arange(4), "l": [np.arange(5), (np.arange(6),)]}
    encoder = Encoder()
    content = encoder.encode(value)
    assert sorted(map(len, encoder.arrays.values())) == [2, 3, 4, 5, 6]
    assert {"a/b", "l/0", "l/1/0"} < set(encoder.arrays)
    assert set(array_nodes(content, "it")) == set(encoder.arrays)
    back = Decoder(ClassLoader(), arrays=encoder.arrays.__getitem__).decode(content)
    assert [len(back["a"]["b"]), len(back["a/b"]), len(back[""])] == [2, 3, 4]


def test_checksum_is_of_bytes():
    array = np.arange(6.0).reshape(2, 3)
    assert checksum(array) == checksum(np.asfortranarray(array)) == checksum(array.reshape(6))
    changed = array.copy()
    changed[1, 2] = np.nextafter(5.0, 6.0)
    assert checksum(changed) != checksum(array)
    assert checksum(np.zeros(2, jnp.bfloat16)) == checksum(np.zeros(4, np.uint8))


@pytest.mark.parametrize(
    "array",
    [np.array(["a"]), np.array([object()]), np.array(["2020-01-01"], "M8[D]"), np.zeros(2, [("a", int)])],
    ids=["text", "objects", "dates", "records"],
)
def test_arrays_of_other_things_are_refused(array):
    with pytest.raises(NotDataError, match="it is an array of dtype"):
        Encoder().encode(array, "it")


# ------------------------------------------------------------------------------------------------------------ spaces


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1, 1, (2, 3)),
        spaces.Box(np.array([-1, -np.inf], np.float32), np.array([np.inf, 0.1], np.float32)),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-np.inf, np.inf, (), np.float64),
        spaces.Discrete(5, start=-2),
        spaces.Discrete(10**15),
        spaces.MultiDiscrete([2, 5]),
        spaces.MultiDiscrete(np.array([[2, 5], [3, 4]])),
        spaces.MultiBinary([2, 3]),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Tuple([spaces.Box(0, 1), spaces.MultiBinary(3)])}),
    ],
    ids=str,
)
def test_spaces(space):
    back = there_and_back({"s": space})["s"]
    assert back == space
    assert str(back) == str(space)


def test_large_spaces_are_refused():
    half = spaces.MultiBinary(MAX_SPACE_ELEMENTS // 2 + 1)
    assert there_and_back(half) == half
    with pytest.raises(NotDataError, match="too large"):
        there_and_back([half, half])


def test_other_spaces_are_refused():
    with pytest.raises(TypeError, match="Sequence"):
        Encoder().encode(spaces.Sequence(spaces.Discrete(2)), "it")


# ------------------------------------------------------------------------------------------ objects, classes, functions


@dataclasses.dataclass
class Point:
    x: int
    y: tuple = ()
    origin: str | None = dataclasses.field(default=None, metadata={NOT_STORED: True})
    norm: float = dataclasses.field(default=0.0, init=False)


class Celsius(Plain):
    def __init__(self, degrees):
        self.degrees = degrees

    def to_plain(self):
        return {"degrees": self.degrees}

    @classmethod
    def from_plain(cls, data, loader):
        return cls(**data)


class NoData:
    pass


def a_function():
    pass


def test_dataclasses():
    back = there_and_back(Point(1, (2, np.arange(3)), "a path"), allow=[Point])
    assert (back.x, back.y[0], back.origin) == (1, 2, None)
    assert_same_bits(back.y[1], np.arange(3))
    with pytest.raises(ValueError, match=r"allow=\[Point\]"):
        there_and_back(Point(1))


def test_dataclass_fields_that_are_no_part_of_checkpoints():
    node = {"__kind__": "object", "class": path_of(Point), "args": [], "kwargs": {"x": 1, "origin": "/secret"}}
    with pytest.raises(ValueError, match="origin"):
        Decoder(ClassLoader([Point])).decode(node)
    with pytest.raises(ValueError, match="was changed: it sets .* Use an unchanged copy"):
        Decoder(ClassLoader([Point])).decode(node | {"args": [1, [], "/secret"], "kwargs": {}})


def test_specs_forget_where_their_weights_were_from():
    spec = RLModuleSpec(module_class=RLModule, model_config={"a": 1}, load_state_path="/gone")
    back = there_and_back(spec)
    assert (back.load_state_path, back.module_class, back.model_config) == (None, RLModule, {"a": 1})


def test_objects_that_say_what_they_are_made_of():
    assert there_and_back(Celsius(20), allow=[Celsius]).degrees == 20
    config = there_and_back(DefaultModelConfig(fcnet_hiddens=[4]))
    assert config == DefaultModelConfig(fcnet_hiddens=[4])
    # Older checkpoints hold the fields that the user gave, which alone overrode an algorithm's.
    assert DefaultModelConfig.from_plain({"fcnet_hiddens": [4]}, ClassLoader()) == {"fcnet_hiddens": [4]}
    connectors = there_and_back([FrameStackingEnvToModule(num_frames=3), MeanStdFilter(clip_by_value=None)])
    assert [type(connector) for connector in connectors] == [FrameStackingEnvToModule, MeanStdFilter]
    assert connectors[0].num_frames == 3


def test_classes_and_functions():
    assert there_and_back(RLModule) is RLModule
    assert there_and_back(NoData, allow=[NoData]) is NoData
    assert there_and_back(a_function, allow=[a_function]) is a_function
    assert there_and_back(gym.Env, allow=[gym.Env]) is gym.Env
    for thing in (NoData, a_function, gym.Env, math.sqrt):
        with pytest.raises(ValueError, match="register"):
            there_and_back(thing)


def test_registered_things_are_found():
    @register_class
    class Local(Celsius):
        __qualname__ = "Registered"

    assert there_and_back(Local) is Local
    with pytest.raises(ValueError, match="inside a function"):
        register_class(lambda: None)


class Extension(MeanStdFilter):
    """As a script defines one."""


class ScriptsModule(RLModule):
    """As a script defines one."""


class ScriptsEnv(gym.Env):
    """As a script defines one."""


def test_of_the_running_script_only_what_extends_the_expected_class_is_found(monkeypatch):
    main, own = sys.modules["__main__"], (Extension, ScriptsModule, ScriptsEnv, NoData, a_function)
    for thing in (*own, math):
        monkeypatch.setattr(main, thing.__name__, thing, raising=False)
    # What it imported is not its own.
    for path in ("__main__:Extension", "__main__:math.sqrt", "__main__:MeanStdFilter"):
        with pytest.raises(ValueError, match="register"):
            ClassLoader().load(path, what="it", base=MeanStdFilter)
    for thing in own:
        monkeypatch.setattr(thing, "__module__", "__main__")
    assert type(there_and_back([Extension()])[0]) is Extension
    assert ClassLoader().load("__main__:Extension", what="it", base=MeanStdFilter) is Extension
    config = PPOConfig().environment(ScriptsEnv).rl_module(rl_module_spec=RLModuleSpec(module_class=ScriptsModule))
    loaded = there_and_back(config)
    assert (loaded.env, loaded.stored_value("rl_module_spec").module_class) == (ScriptsEnv, ScriptsModule)
    for value in (
        ScriptsModule,
        {"env": ScriptsModule},
        {"env": NoData},
        {"module_class": ScriptsEnv},
        {"env_to_module_connector": ScriptsEnv},
        {"env_to_module_connector": a_function},
        {"model_config": {"fcnet_activation": ScriptsModule}},
    ):
        with pytest.raises(ValueError, match="register"):
            there_and_back(value)
    for path in ("__main__:Extension.apply", "__main__:Absent", "__main__:ScriptsModule"):
        with pytest.raises(ValueError, match="register"):
            ClassLoader().load(path, what="it", base=MeanStdFilter)


def test_the_classes_that_are_expected_are_there():
    for text in itertools.chain(*EXPECTED_BASES.values()):
        module, _, name = text.partition(":")
        assert path_of(getattr(importlib.import_module(module), name)) == text


def test_what_the_caller_passes_names_what_may_be_named():
    config = PPOConfig().env_runners(env_to_module_connector=a_function, module_to_env_connector=lambda *args: None)
    loader = ClassLoader(named=code_named_by(config, {"env": NoData}))
    for thing in (PPOConfig, a_function, NoData):
        assert loader.load(path_of(thing), what="it") is thing
    with pytest.raises(ValueError, match="register"):
        loader.load(path_of(Celsius), what="it")


def test_an_environment_class_is_registered_with_its_name():
    class Local(gym.Env):
        __qualname__ = "RegisteredEnv"

        def __init__(self, config=None): ...

    register_env("an_own_env", Local)
    assert there_and_back(Local) is Local


def test_what_is_left_out_is_named():
    class Local:
        pass

    value = {"f": lambda: None, "deep": [{"c": Local}, NoData(), Local()], "x": 1}
    with pytest.raises(NotDataError, match="f is a lambda"):
        Encoder().encode(value)
    encoder = Encoder(leave_out=True)
    content = encoder.encode(value)
    assert encoder.left_out["f"].startswith("a lambda of test_plain_data.py:")
    name = "test_what_is_left_out_is_named.<locals>.Local"
    assert encoder.left_out["deep/0/c"] == f"the local class {name}"
    assert encoder.left_out["deep/1"] == "an object of NoData"
    assert encoder.left_out["deep/2"] == f"an object of the local class {name}"
    with pytest.raises(ValueError, match=r"does not contain the value of f: a lambda of .* Pass this arg.*f=\.\.\."):
        Decoder(ClassLoader()).decode(content)


def test_the_loader_imports_this_package_alone():
    loader = ClassLoader([Point, "my_module:MyEnv"])
    assert loader.load(path_of(RLModule), what="It") is RLModule
    assert loader.load(path_of(Point), what="It") is Point
    assert loader.allows_text("my_module:MyEnv")
    assert not loader.allows_text("my_module:Other")
    with pytest.raises(ValueError, match="not part of jaxrl_stack"):
        loader.load("my_module:MyEnv", what="It")
    with pytest.raises(ValueError, match="which is not a subclass of Point"):
        loader.load(path_of(RLModule), what="It", base=Point)
    with pytest.raises(ValueError, match="neither a class nor a function"):
        ClassLoader([5])
    one: Any = Point
    assert ClassLoader(one).load(path_of(Point), what="It") is Point


def test_a_decoder_is_let_go_of_with_its_last_name():
    """It knows arrays, which may be most of the memory: they do not wait for the garbage collector."""
    arrays = {"x": np.zeros(3)}
    decoder = Decoder(ClassLoader(), arrays=arrays.__getitem__)
    decoder.decode({KIND: "array", "dtype": "float64", "shape": [3], "name": "x"})
    reference = weakref.ref(decoder)
    gc.disable()
    try:
        del decoder
        assert reference() is None
    finally:
        gc.enable()
