"""Checkpoints that are damaged, or made to do harm: each one is refused, with a reason, and without an effect."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.checkpoints.array_file import write_arrays
from jaxrl_stack.checkpoints.files import FORMAT_VERSION
from jaxrl_stack.checkpoints.plain_data import checksum
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.utils.checkpoints import register_class
from jaxrl_stack.utils.memory import available_host_bytes

ARRAYS = "arrays.safetensors"
MAX_SECONDS = 10.0
"""Of processor time, so that waiting for other processes does not count. A refusal takes 0.1 s of a quiet core and was
seen to take 2.7 s of a shared one; the attacks, where nothing refuses them, take minutes."""
MAX_BYTES = 400 << 20
"""What a process may grow by while it looks at a checkpoint."""


@register_class
def filtered(env, spaces, device):
    return MeanStdFilter()


# ------------------------------------------------------------------------------------------------------ the good ones


@pytest.fixture(scope="module")
def algorithm():
    """A small algorithm whose state is compared before and after."""
    config = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=4, env_to_module_connector=filtered)
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .learners(num_cpus_per_learner=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .evaluation(evaluation_config={"explore": False})
        .debugging(seed=3)
    )
    algo = config.build_algo()
    yield algo
    algo.stop()


@pytest.fixture(scope="module")
def good_run(algorithm, tmp_path_factory):
    """A checkpoint of a whole algorithm."""
    path = tmp_path_factory.mktemp("good") / "run"
    algorithm.save_to_path(path)
    # All modules that loading needs are imported from here on, and with Ray those that it looks names up with.
    with pytest.raises(ValueError, match="unknown environment"):
        resolve_env("NoSuchEnv-v0")
    with contextlib.closing(_Closing(PPO.from_checkpoint(path))) as loaded:
        assert not _differences(loaded.algorithm.get_state(), algorithm.get_state())
    return path


class _Closing:
    def __init__(self, algorithm: PPO):
        self.algorithm = algorithm

    def close(self) -> None:
        self.algorithm.stop()


@pytest.fixture
def run(good_run, tmp_path):
    """A copy of it to do harm to."""
    return Path(shutil.copytree(good_run, tmp_path / "it" / "run"))


@pytest.fixture
def module(run):
    """A copy of a module's checkpoint alone."""
    return Path(
        shutil.copytree(run / "learner_group" / "learner" / "rl_module" / "default_policy", run.parent / "module")
    )


# ------------------------------------------------------------------------------------------------- what must not happen

_HARMFUL_EVENTS = {"os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class"}
_events: list[str] | None = None


def _watch(event: str, arguments: Any) -> None:
    if _events is not None and (event in _HARMFUL_EVENTS or (event == "import" and arguments[0] == "evil")):
        _events.append(event)


@pytest.fixture(scope="module", autouse=True)
def _audit():
    # Such hooks stay until the process ends, and do nothing outside of `refused`.
    sys.addaudithook(_watch)


@pytest.fixture(autouse=True)
def evil(tmp_path, monkeypatch):
    """A module that can be imported, and shows that it was."""
    place = tmp_path / "evil_place"
    place.mkdir()
    (place / "evil.py").write_text(
        "import pathlib, gymnasium\npathlib.Path(__file__).with_name('canary').touch()\n"
        "class Env(gymnasium.Env): pass\n"
    )
    monkeypatch.syspath_prepend(place)
    return place


class _Peak:
    """The most memory that this process had, looked at every few milliseconds."""

    def __init__(self) -> None:
        self.first = self.most = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _now(self) -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            self.most = max(self.most, self._now())

    def __enter__(self) -> _Peak:
        self._thread.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stop.set()
        self._thread.join()


@contextlib.contextmanager
def refused(*words: str, evil: Path):
    """Nothing but an error comes out of this block: with these words, soon, and without anything being run."""
    global _events
    packages = {name.partition(".")[0] for name in sys.modules}
    _events, start = [], time.process_time()
    try:
        with _Peak() as peak, pytest.raises((ValueError, FileNotFoundError)) as raised:
            yield
    finally:
        events, _events = _events, None
    seconds = time.process_time() - start
    message = str(raised.value)
    assert all(word in message for word in words), message
    assert "checkpoint" in message.lower(), message
    assert events == []
    assert not (evil / "canary").exists()
    assert {name.partition(".")[0] for name in sys.modules} == packages
    assert seconds < MAX_SECONDS
    assert peak.most - peak.first < MAX_BYTES


def _differences(state: Any, other: Any) -> list[str]:
    """Names of leaves that are not the same bit for bit."""
    names, others = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)} for tree in (state, other)
    )
    if set(names) != set(others):
        return sorted(set(names) ^ set(others))
    return [name for name, leaf in names.items() if _bits(leaf) != _bits(others[name])]


def _bits(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    return array.dtype, array.shape, array.tobytes()


# ---------------------------------------------------------------------------------------------------------- the tools


def edit(file: Path, change) -> None:
    """Change a JSON file: `change` gets its content, and returns another or changes it."""
    content = json.loads(file.read_text())
    changed = change(content)
    file.write_text(json.dumps(content if changed is None else changed))


def at(content: Any, *names: Any) -> Any:
    for name in names:
        content = content[name]
    return content


def put(file: str, *names: Any, value: Any):
    """A change of one value in a JSON file of a checkpoint."""

    def change(path: Path) -> None:
        def replace(content: Any) -> Any:
            if not names:
                return value
            at(content, *names[:-1])[names[-1]] = value

        edit(path / file, replace)

    return change


def drop(file: str, *names: Any):
    """A value in a JSON file of a checkpoint is missing."""

    def remove(content: Any) -> None:
        del at(content, *names[:-1])[names[-1]]

    def change(path: Path) -> None:
        edit(path / file, remove)

    return change


def store(folder: Path, state_file: str, changes) -> None:
    """Write the arrays of a component anew, with all that the JSON says of them: as an attack would.

    Args:
        folder: The component.
        state_file: Its state.
        changes: Gets ``{name: array}`` and changes it.
    """
    arrays = {name: np.array(array) for name, array in load_file(folder / ARRAYS).items()}
    changes(arrays)
    (folder / ARRAYS).unlink()
    write_arrays(folder / ARRAYS, arrays)

    def describe(node: Any) -> None:
        if isinstance(node, dict) and node.get("__kind__") == "array" and node.get("name") in arrays:
            array = arrays[node["name"]]
            node |= {"dtype": array.dtype.name, "shape": list(array.shape), "crc32": checksum(array)}
        for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            describe(item)

    edit(folder / state_file, describe)


def stored(folder: str, state_file: str, changes):
    return lambda path: store(path / folder, state_file, changes)


def meant(change):
    """A change after which every file of arrays holds what the JSON beside it names, and no more."""

    def changed(path: Path) -> None:
        change(path)
        for file in path.rglob(ARRAYS):
            text = "".join(beside.read_text() for beside in file.parent.glob("*.json"))
            arrays = {name: a for name, a in load_file(file).items() if f'"name": {json.dumps(name)}' in text}
            file.unlink()
            write_arrays(file, arrays)

    return changed


def without_one(names: tuple[str, ...]):
    """A change of a JSON file, where a dict lacks one of its items."""

    def change(content: Any) -> None:
        at(content, *names).popitem()

    return change


def nan_in_optimizer(arrays: dict[str, np.ndarray]) -> None:
    for name, array in arrays.items():
        if name.startswith("optimizer"):
            array[:1] = np.nan


def is_per_env(name: str, array: np.ndarray) -> bool:
    return name.startswith("rollout") and array.ndim >= 2 and array.shape[1] == 4


class Pickled:
    def __reduce__(self):
        return os.system, ("touch canary",)


def pickled(name: str):
    def change(path: Path) -> None:
        (path / name).write_bytes(pickle.dumps(Pickled()))

    return change


def linked(name: str, target: str = "elsewhere"):
    """A file or folder of a checkpoint is a link to the same thing elsewhere."""

    def change(path: Path) -> None:
        moved = path.parent / target
        os.rename(path / name, moved)
        (path / name).symlink_to(moved)

    return change


def missing(name: str):
    def change(path: Path) -> None:
        gone = path / name
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()

    return change


def written(file: str, content: bytes | str):
    def change(path: Path) -> None:
        (path / file).write_bytes(content.encode() if isinstance(content, str) else content)

    return change


def fifo(name: str):
    def change(path: Path) -> None:
        (path / name).unlink()
        os.mkfifo(path / name)

    return change


def npz_for_arrays(path: Path) -> None:
    with open(path / ARRAYS, "wb") as file:
        np.savez(file, a=np.array([Pickled()], object))


def folder_for_arrays(path: Path) -> None:
    (path / ARRAYS).unlink()
    (path / ARRAYS).mkdir()


def header(change):
    """Another header before the arrays: `change` gets its JSON, and returns another or changes it."""

    def changed(path: Path) -> None:
        content = (path / ARRAYS).read_bytes()
        end = 8 + int.from_bytes(content[:8], "little")
        entries = json.loads(content[8:end])
        text = change(entries)
        text = json.dumps(entries if text is None else text, separators=(",", ":")).encode()
        (path / ARRAYS).write_bytes(len(text).to_bytes(8, "little") + text + content[end:])

    return changed


def header_length(length: int):
    def changed(path: Path) -> None:
        content = (path / ARRAYS).read_bytes()
        (path / ARRAYS).write_bytes(length.to_bytes(8, "little") + content[8:])

    return changed


# ---------------------------------------------------------------------------------------------------- modules alone

META, CTOR, STATE = "metadata.json", "class_and_ctor_args.json", "module_state.json"
BIAS, KERNEL = "encoder/actor/dense_0/bias", "encoder/actor/dense_0/kernel"
KWARGS = ("ctor_args_and_kwargs", "kwargs")
RL_MODULE = "jaxrl_stack.core.rl_module.rl_module"


def kwarg(name: str, value: Any):
    return put(CTOR, *KWARGS, name, value=value)


def space(**description: Any) -> dict[str, Any]:
    return {"__kind__": "space", "value": description}


def box(shape: Any) -> dict[str, Any]:
    bounds = {"low": -1.0, "high": 1.0, "bounded_below": True, "bounded_above": True}
    return {"type": "Box", "shape": shape, "dtype": "float32", **bounds}


def nested_dict_space(depth: int) -> dict[str, Any]:
    description = box([1])
    for _ in range(depth):
        description = {"type": "Dict", "spaces": [["a", description]]}
    return space(**description)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


LAYOUT = [
    pytest.param(put(META, "components", value=["../module2"]), ["components", "../module2"], id="component-up"),
    pytest.param(put(META, "components", value=[".."]), ["components"], id="component-dots"),
    pytest.param(put(META, "components", value=["/etc"]), ["components", "/etc"], id="component-absolute"),
    pytest.param(put(META, "components", value=["a/../../b"]), ["components"], id="component-through"),
    pytest.param(put(META, "components", value=[ARRAYS]), ["components"], id="component-arrays"),
    pytest.param(put(META, "components", value=["\ud800"]), ["components"], id="component-surrogate"),
    pytest.param(put(META, "components", value="learner"), ["components"], id="components-text"),
    pytest.param(put(META, "components", value=[5]), ["components"], id="components-number"),
    pytest.param(put(META, "components", value=["gone"]), ["No checkpoint at", "gone"], id="component-missing"),
    pytest.param(put(META, "state_file", value="../module/module_state"), ["leads out"], id="state-file-up"),
    pytest.param(put(META, "state_file", value="/etc/passwd"), ["leads out"], id="state-file-absolute"),
    pytest.param(put(META, "state_file", value=".hidden"), ["leads out"], id="state-file-hidden"),
    pytest.param(put(META, "state_file", value="x\0y"), ["leads out"], id="state-file-zero-byte"),
    pytest.param(put(META, "state_file", value=["a"]), ["state_file"], id="state-file-list"),
    pytest.param(drop(META, "state_file"), ["state_file"], id="state-file-not-named"),
    pytest.param(put(META, "state_file", value="other"), ["other.json"], id="state-file-missing"),
    pytest.param(put(META, "state_file", value=CTOR[:-5]), ["does not fit"], id="state-file-is-another"),
    pytest.param(put(META, "checkpoint_version", value="99.0"), ["version '99.0'", "release"], id="version-newer"),
    pytest.param(put(META, "checkpoint_version", value=[[]]), ["version [[]]"], id="version-list"),
    pytest.param(drop(META, "checkpoint_version"), ["version None"], id="version-missing"),
    pytest.param(linked(META), ["leads out"], id="link-metadata"),
    pytest.param(linked(CTOR), ["leads out"], id="link-class"),
    pytest.param(linked(STATE), ["leads out"], id="link-state"),
    pytest.param(linked(ARRAYS), ["leads out", ARRAYS], id="link-arrays"),
    pytest.param(fifo(STATE), ["is not a file"], id="fifo-state"),
    pytest.param(fifo(ARRAYS), [ARRAYS, "is not a file"], id="fifo-arrays"),
    pytest.param(folder_for_arrays, [ARRAYS, "is not a file"], id="folder-arrays"),
    pytest.param(missing(META), ["No checkpoint at"], id="missing-metadata"),
    pytest.param(missing(CTOR), [CTOR], id="missing-class"),
    pytest.param(missing(STATE), [STATE], id="missing-state"),
    pytest.param(missing(ARRAYS), [ARRAYS], id="missing-arrays"),
    pytest.param(put(META, "checkpoint_version", value="2.0"), ["version '2.0'", "release"], id="version-older"),
    pytest.param(pickled("state.pkl"), ["state.pkl", "pickled", "Do not use"], id="pickle-state"),
    pytest.param(pickled("class_and_ctor_args.PKL"), ["PKL", "pickled"], id="pickle-class"),
    pytest.param(pickled("weights.pt"), ["weights.pt", "pickled"], id="pickle-weights"),
    pytest.param(pickled("a.npy"), ["a.npy", "pickled"], id="pickle-of-numpy"),
    pytest.param(pickled(STATE), [STATE, "cannot be read"], id="pickle-as-state"),
    pytest.param(pickled(ARRAYS), [ARRAYS, "damaged"], id="pickle-as-arrays"),
    pytest.param(npz_for_arrays, [ARRAYS, "damaged"], id="npz-of-objects"),
]

CLASSES = [
    pytest.param(put(CTOR, "class", value=path), words, id=f"class-{name}")
    for name, path, words in [
        ("os-system", "os:system", ["os:system", "allow=[os.system]"]),
        ("popen", "subprocess:Popen", ["subprocess:Popen", "allow=[subprocess.Popen]"]),
        ("eval", "builtins:eval", ["builtins:eval"]),
        ("evil", "evil:Env", ["evil:Env", "allow=[evil.Env]"]),
        ("cli", "jaxrl_stack.cli:main", ["no class of jaxrl_stack"]),
        ("imported", "jaxrl_stack.checkpoints.checkpointable:os", ["no class of jaxrl_stack"]),
        ("imported-class", "jaxrl_stack.checkpoints.files:Path", ["no class of jaxrl_stack"]),
        ("script", "__main__:pytest", ["needs code outside of", "allow=[pytest]"]),
        ("main", "jaxrl_stack.__main__:y", ["needs code outside of"]),
        ("inner-main", "jaxrl_stack.x.__main__:y", ["needs code outside of"]),
        ("not-there", "jaxrl_stack.evil:Evil", ["does not have"]),
        ("function", "jaxrl_stack.utils.class_paths:path_of", ["no class of jaxrl_stack"]),
        ("dunder", f"{RL_MODULE}:RLModule.__class__", ["does not have"]),
        ("globals", f"{RL_MODULE}:RLModule.setup.__globals__", ["does not have"]),
        ("metaclass", f"{RL_MODULE}:_RLModuleMeta", ["not by RLModule"]),
        ("base", "jaxrl_stack.algorithms.ppo.ppo:PPOConfig", ["PPOConfig, not by RLModule"]),
        ("prefix", "jaxrl_stackevil:Evil", ["needs code outside of"]),
        ("dots", "jaxrl_stack..evil:Evil", ["'module:Name'"]),
        ("relative", "..evil:Evil", ["'module:Name'"]),
        ("newline", "evil:Env\n", ["'module:Name'"]),
        ("slash", "jaxrl_stack/../evil:Env", ["'module:Name'"]),
        ("deep", "jaxrl_stack" + ".a" * 500 + ":A", ["'module:Name'"]),
        ("long", "jaxrl_stack." + "a" * 10_000_000 + ":A", ["'module:Name'"]),
        ("number", 5, ["'module:Name'"]),
        ("dict", {"__kind__": "class", "value": "evil:Env"}, ["'module:Name'"]),
        ("null", None, ["RLModule"]),
    ]
]

ARGUMENTS = [
    pytest.param(kwarg("catalog_class", value), words, id=f"argument-{name}")
    for name, value, words in [
        ("class", {"__kind__": "class", "value": "evil:Env"}, ["evil:Env"]),
        ("class-of-function", {"__kind__": "class", "value": "test_hostile:filtered"}, ["filtered"]),
        ("function", {"__kind__": "function", "value": "os:system"}, ["os:system"]),
        ("plain", {"__kind__": "plain", "class": "evil:Env", "value": {}}, ["evil:Env"]),
        (
            "plain-of-no-data",
            {"__kind__": "plain", "class": f"{RL_MODULE}:RLModule", "value": {}},
            ["in a form that this package never writes"],
        ),
        (
            "object",
            {"__kind__": "object", "class": "subprocess:Popen", "args": ["touch canary"], "kwargs": {}},
            ["subprocess:Popen"],
        ),
        (
            "object-of-no-data",
            {"__kind__": "object", "class": "jaxrl_stack.algorithms.ppo.ppo:PPO", "args": [], "kwargs": {}},
            ["in a form that this package never writes"],
        ),
        (
            "other-checkpoint",
            {
                "__kind__": "object",
                "class": f"{RL_MODULE}:RLModuleSpec",
                "args": [],
                "kwargs": {"load_state_path": "/x"},
            },
            ["load_state_path"],
        ),
        ("array", {"__kind__": "array", "dtype": "float32", "shape": [3], "name": BIAS}, ["array"]),
        ("no-content", {"__kind__": "array", "dtype": "float32", "shape": [10**12]}, ["without content"]),
        (
            "missing",
            {"__kind__": "missing", "where": "catalog_class", "value": "a lambda"},
            ["a lambda", "Pass this argument"],
        ),
        ("unknown-kind", {"__kind__": "pickle", "value": "gASV"}, ["unknown kind 'pickle'"]),
        ("list-kind", {"__kind__": ["class"], "value": "evil:Env"}, ["unknown kind"]),
        ("no-value", {"__kind__": "class"}, ["damaged"]),
        ("float", {"__kind__": "float", "value": "evil"}, ["damaged", "float"]),
        ("keys", {"__kind__": "dict", "value": [[[1], 2]]}, ["damaged", "dict"]),
        ("odd-pairs", {"__kind__": "dict", "value": [[1, 2, 3]]}, ["damaged", "dict"]),
        ("hex", {"__kind__": "array", "dtype": "float32", "shape": [], "hex": "zz"}, ["damaged", "array"]),
        ("short-hex", {"__kind__": "array", "dtype": "float32", "shape": [], "hex": "00"}, ["damaged", "array"]),
        ("range", {"__kind__": "array", "dtype": "uint8", "shape": [], "value": 256}, ["damaged"]),
        ("inexact", {"__kind__": "array", "dtype": "float32", "shape": [], "value": 1e300}, ["damaged"]),
        ("text-number", {"__kind__": "array", "dtype": "int32", "shape": [], "value": "5"}, ["damaged"]),
        ("key", {"__kind__": "key", "impl": "evil", "value": {"__kind__": "tuple", "value": [1]}}, ["damaged"]),
    ]
] + [
    pytest.param(put(CTOR, *KWARGS, value=[]), ["incomplete"], id="arguments-list"),
    pytest.param(drop(CTOR, "ctor_args_and_kwargs"), ["incomplete"], id="arguments-missing"),
    pytest.param(put(CTOR, "left_out", value=[]), ["incomplete"], id="left-out-list"),
    pytest.param(put(CTOR, "ctor_args_and_kwargs", "args", value=[1, 2]), ["does not fit"], id="arguments-more"),
    pytest.param(kwarg("evil", 1), ["does not fit", "evil"], id="argument-unknown"),
]

SIZES = (
    [
        pytest.param(kwarg("observation_space", value), words, id=f"size-{name}")
        for name, value, words in [
            ("box", space(**box([10**12])), ["entries"]),
            ("boxes", space(type="Tuple", spaces=[box([10**7])] * 100), ["entries"]),
            ("box-product", space(**box([10**6] * 40)), ["entries"]),
            ("box-negative", space(**box([-4])), ["damaged"]),
            ("box-fraction", space(**box([4.5])), ["damaged"]),
            ("box-other", space(**box([5])), ["does not fit"]),
            ("box-of-objects", space(**(box([4]) | {"dtype": "object"})), ["checkpoint"]),
            ("box-bounds", space(**(box([4]) | {"low": [1, 2]})), ["damaged"]),
            ("discrete", space(type="Discrete", n=10**15, start=0, dtype="int64"), ["does not fit"]),
            ("discrete-zero", space(type="Discrete", n=0, start=0, dtype="int64"), ["damaged"]),
            ("discrete-text", space(type="Discrete", n="many", start=0, dtype="int64"), ["damaged"]),
            ("bits", space(type="MultiBinary", n=10**12), ["entries"]),
            ("choices", space(type="MultiDiscrete", nvec=[10**15], start=[0], dtype="int64"), ["does not fit"]),
            ("deep", nested_dict_space(25), ["does not fit"]),
            ("too-deep", nested_dict_space(45), ["nested too deeply"]),
            ("unknown", space(type="Evil"), ["Evil"]),
            ("number", 5, ["does not fit"]),
            ("null", None, ["does not fit"]),
        ]
    ]
    + [
        pytest.param(
            kwarg("action_space", space(type="Discrete", n=10**15, start=0, dtype="int64")), ["fit"], id="size-head"
        ),
        pytest.param(kwarg("model_config", {"fcnet_hiddens": [10**12]}), ["does not fit"], id="size-layer"),
        pytest.param(kwarg("model_config", {"fcnet_hiddens": [10**40]}), ["does not fit"], id="size-layer-overflow"),
        pytest.param(kwarg("model_config", {"fcnet_hiddens": [-4]}), ["does not fit"], id="size-layer-negative"),
        pytest.param(kwarg("model_config", {"fcnet_hiddens": ["4"]}), ["does not fit"], id="size-layer-text"),
        pytest.param(kwarg("model_config", {"fcnet_hiddens": [4] * 50}), ["does not fit"], id="size-layers"),
        pytest.param(kwarg("model_config", {"fcnet_activation": "os.system"}), ["does not fit"], id="activation"),
        pytest.param(put(STATE, BIAS, "shape", value=[10**12]), ["memory"], id="array-of-terabytes"),
        pytest.param(put(STATE, BIAS, "shape", value=[10**30]), ["memory"], id="array-overflow"),
    ]
    + [
        pytest.param(header(change), [ARRAYS, "the file's arrays differ"], id=f"header-{name}")
        for name, change in [
            ("empty", lambda entries: {}),
            ("list", lambda entries: [1]),
            ("deep", lambda entries: {"a": json.loads(nested(900))}),
            ("missing", lambda entries: {k: v for k, v in entries.items() if k != BIAS}),
            ("more", lambda entries: {**entries, "evil": entries[BIAS]}),
            ("metadata", lambda entries: {"__metadata__": {"format": "pt"}, **entries}),
            ("shape", lambda entries: entries[BIAS].update(shape=[10**12])),
            ("dtype", lambda entries: entries[BIAS].update(dtype="I32")),
            ("overlap", lambda entries: entries[BIAS].update(data_offsets=entries[KERNEL]["data_offsets"])),
            ("beyond", lambda entries: entries[BIAS].update(data_offsets=[0, 10**12])),
            ("negative", lambda entries: entries[BIAS].update(data_offsets=[-16, 0])),
            ("order", lambda entries: dict(reversed(entries.items()))),
        ]
    ]
    + [
        pytest.param(header_length(length), [ARRAYS, "the file's arrays differ"], id=f"header-length-{length}")
        for length in (0, 1, 1 << 40, (1 << 64) - 1)
    ]
)

CONTENT = [
    pytest.param(written(STATE, '{"a": '), ["module_state.json", "cannot be read"], id="json-truncated"),
    pytest.param(written(STATE, ""), ["cannot be read"], id="json-empty"),
    pytest.param(written(STATE, b"\xff\xfe\x00"), ["cannot be read"], id="json-no-text"),
    pytest.param(written(STATE, nested(100_000)), ["cannot be read"], id="json-deep"),
    pytest.param(written(STATE, f'{{"a": {nested(200)}}}'), ["nested too deeply"], id="json-rather-deep"),
    pytest.param(written(STATE, "[]"), ["no JSON object"], id="json-list"),
    pytest.param(written(META, "[]"), ["no JSON object"], id="json-list-metadata"),
    pytest.param(written(STATE, '{"a": 1, "a": 2}'), ["'a' occurs twice"], id="json-twice"),
    pytest.param(written(STATE, '{"a": NaN}'), ["NaN"], id="json-nan"),
    pytest.param(written(STATE, '{"a": 1e999}'), ["not finite as a 64-bit float"], id="json-range"),
    pytest.param(written(STATE, '{"a": ' + "9" * 100_000 + "}"), ["cannot be read"], id="json-long-number"),
    pytest.param(written(STATE, b" " * (70 << 20)), ["JSON files are together larger"], id="json-large"),
    pytest.param(put(STATE, value={"__kind__": "tuple", "value": []}), ["not a dict"], id="state-tuple"),
    pytest.param(put(STATE, value={"__kind__": "dict", "value": [[1, 2]]}), ["not a dict"], id="state-numbers"),
    pytest.param(meant(put(STATE, BIAS, value=5)), [BIAS], id="array-is-number"),
    pytest.param(meant(put(STATE, BIAS, value={"a": 1})), [BIAS], id="array-is-dict"),
    pytest.param(meant(put(STATE, BIAS, value=None)), [BIAS], id="array-is-null"),
    pytest.param(put(STATE, BIAS, "name", value="../../x"), [ARRAYS, "the file's arrays differ"], id="array-name-up"),
    pytest.param(put(STATE, BIAS, "name", value=[1]), ["not a string, or two descriptions"], id="array-name-list"),
    pytest.param(put(STATE, BIAS, "name", value=KERNEL), ["not a string, or two descriptions"], id="array-name-twice"),
    pytest.param(put(STATE, BIAS, "shape", value=[5]), [ARRAYS, "the file's arrays differ"], id="array-shape"),
    pytest.param(put(STATE, BIAS, "shape", value=[-4]), ["shape [-4]"], id="array-shape-negative"),
    pytest.param(put(STATE, BIAS, "shape", value=[True]), ["shape [True]"], id="array-shape-bool"),
    pytest.param(put(STATE, BIAS, "shape", value="4"), ["shape '4'"], id="array-shape-text"),
    pytest.param(put(STATE, BIAS, "dtype", value="float64"), [ARRAYS, "the file's arrays differ"], id="array-dtype"),
    pytest.param(
        put(STATE, BIAS, "dtype", value="int32"), [ARRAYS, "the file's arrays differ"], id="array-dtype-as-wide"
    ),
    pytest.param(put(STATE, BIAS, "dtype", value="object"), ["dtype 'object'"], id="array-dtype-object"),
    pytest.param(put(STATE, BIAS, "dtype", value=["float32"]), ["dtype ['float32']"], id="array-dtype-list"),
    pytest.param(put(STATE, BIAS, "crc32", value=1), [BIAS, "differs from the checksum"], id="array-checksum"),
    pytest.param(drop(STATE, BIAS, "crc32"), [BIAS, "differs from the checksum"], id="array-no-checksum"),
    pytest.param(meant(drop(STATE, BIAS, "name")), ["without content"], id="array-no-content"),
    pytest.param(meant(drop(STATE, BIAS)), ["lacks", BIAS], id="weights-missing"),
    pytest.param(
        lambda path: edit(path / STATE, lambda state: state.update({"evil/kernel": state[BIAS]})),
        ["evil/kernel"],
        id="weights-more",
    ),
    pytest.param(
        stored("", STATE, lambda a: a.update({BIAS: a[BIAS].astype(np.float64)})), ["float64"], id="weights-float64"
    ),
    pytest.param(
        stored("", STATE, lambda a: a.update({BIAS: a[BIAS].astype(np.int32)})), ["int32"], id="weights-int32"
    ),
    pytest.param(
        stored("", STATE, lambda a: a.update({BIAS: np.zeros(7, np.float32)})), ["(7,)", BIAS], id="weights-shape"
    ),
    pytest.param(
        stored("", STATE, lambda a: a[BIAS].__setitem__(1, np.nan)), ["NaN", BIAS, "earlier"], id="weights-nan"
    ),
]


@pytest.mark.parametrize(("change", "words"), LAYOUT + CLASSES + ARGUMENTS + SIZES + CONTENT)
def test_hostile_module(module, change, words, evil):
    change(module)
    with refused(*words, evil=evil):
        RLModule.from_checkpoint(module)


def test_good_module(module, algorithm):
    loaded = RLModule.from_checkpoint(module)
    assert not _differences(loaded.get_state(), algorithm.get_module().get_state())


def test_link_to_a_checkpoint_is_the_users_own(module):
    link = module.parent / "latest"
    link.symlink_to(module)
    assert RLModule.from_checkpoint(link).get_state()


@pytest.mark.parametrize("how", ["cut", "half", "longer", "first", "header", "middle", "last", "zeros"])
def test_damaged_arrays(module, how, evil):
    content = (module / ARRAYS).read_bytes()
    position = {"first": 0, "header": 30, "middle": len(content) // 2, "last": len(content) - 1}.get(how)
    if position is not None:
        damaged = content[:position] + bytes([content[position] ^ 0x10]) + content[position + 1 :]
    else:
        half = content[: len(content) // 2]
        damaged = {"cut": b"", "half": half, "longer": content + b"\0", "zeros": bytes(len(content))}[how]
    (module / ARRAYS).write_bytes(damaged)
    with refused(ARRAYS, "damaged", evil=evil):
        RLModule.from_checkpoint(module)


# -------------------------------------------------------------------------------------------------- whole algorithms

RUN_META, RUN_STATE = "rllib_checkpoint.json", "algorithm_state.json"
LEARNER, RUNNER = "learner_group/learner", "env_runner"
DEFAULT_POLICY = f"{LEARNER}/rl_module/default_policy"
CONFIG = (*KWARGS, "config")


def setting(name: str, value: Any):
    return put(CTOR, *CONFIG, "value", name, value=value)


def plain_config(**settings: Any) -> dict[str, Any]:
    return {"__kind__": "plain", "class": "jaxrl_stack.algorithms.ppo.ppo:PPOConfig", "value": settings}


MEAN_STD_FILTER = "jaxrl_stack.connectors.env_to_module.mean_std_filter:MeanStdFilter"
FRAME_STACKING = "jaxrl_stack.connectors.common.frame_stacking:FrameStacking"


def stored_connectors(connectors: Any) -> dict[str, Any]:
    """A connector setting as a checkpoint holds it where the function was a lambda."""
    kind = "jaxrl_stack.connectors.stored_connectors:StoredConnectors"
    return {"__kind__": "plain", "class": kind, "value": {"connectors": connectors}}


def connectors(connector_class: Any, **kwargs: Any) -> dict[str, Any]:
    named = {"__kind__": "class", "value": connector_class}
    return stored_connectors([{"connector_class": named, "args": [], "kwargs": kwargs}])


BUILDS = [
    pytest.param(setting(name, value), words, id=f"config-{id_}")
    for id_, name, value, words in [
        ("env-class", "env", "evil:Env", ["'evil:Env'", "allow=['evil:Env']"]),
        ("env-id", "env", "evil:Env-v0", ["'evil:Env-v0'", "allow=['evil:Env-v0']"]),
        ("env-evaluation", "evaluation_config", {"env": "evil:Env"}, ["'evil:Env'"]),
        ("env-evaluation-object", "evaluation_config", plain_config(env="evil:Env"), ["'evil:Env'"]),
        (
            "env-override",
            "algorithm_config_overrides_per_module",
            {"default_policy": {"env": "evil:Env-v0"}},
            ["'evil:Env-v0'"],
        ),
        ("env-pairs", "evaluation_config", {"__kind__": "dict", "value": [["env", "evil:Env"]]}, ["'evil:Env'"]),
        ("env-wrapped", "env_config", {"env_id": "evil:Env-v0"}, ["'evil:Env-v0'"]),
        ("env-type", "env", {"__kind__": "class", "value": "evil:Env"}, ["evil:Env"]),
        ("env-unknown", "env", "NoSuchEnv-v0", ["NoSuchEnv-v0"]),
        ("executables", "compilation_cache_dir", "/tmp/evil", ["compilation_cache_dir"]),
        ("executables-evaluation", "evaluation_config", {"compilation_cache_dir": "/x"}, ["compilation_cache_dir"]),
        ("callbacks", "callbacks_class", {"__kind__": "class", "value": "evil:Env"}, ["evil:Env"]),
        ("function", "env_to_module_connector", {"__kind__": "function", "value": "os:system"}, ["os:system"]),
        ("connector", "env_to_module_connector", connectors("evil:Env"), ["evil:Env", "allow=[evil.Env]"]),
        ("connector-no-class", "learner_connector", connectors(5), ["learner_connector", "damaged"]),
        ("connector-function", "learner_connector", connectors("os:system"), ["os:system"]),
        (
            "connector-other",
            "module_to_env_connector",
            connectors(f"{RL_MODULE}:RLModule"),
            ["not a ConnectorV2 class"],
        ),
        (
            "connector-argument",
            "env_to_module_connector",
            connectors(MEAN_STD_FILTER, clip={"__kind__": "function", "value": "evil:Env"}),
            ["evil:Env", "allow=[evil.Env]"],
        ),
        ("connector-unknown-argument", "env_to_module_connector", connectors(MEAN_STD_FILTER, evil=1), ["evil"]),
        (
            "connector-size",
            "env_to_module_connector",
            connectors(FRAME_STACKING, num_frames=10**12),
            ["cannot be built"],
        ),
        ("connectors-text", "env_to_module_connector", stored_connectors("evil"), ["damaged"]),
        ("unknown", "evil_setting", 1, ["evil_setting"]),
        ("type", "num_epochs", "many", ["num_epochs"]),
        ("range", "gamma", 5.0, ["gamma"]),
        ("layer", "model_config", {"fcnet_hiddens": [10**12]}, ["do not fit the modules of the config"]),
        ("layer-other", "model_config", {"fcnet_hiddens": [5]}, ["do not fit the modules of the config"]),
        ("num-envs", "num_envs_per_env_runner", 10**12, ["num_envs_per_env_runner"]),
        ("batch", "train_batch_size_per_learner", 10**15, ["train_batch_size_per_learner"]),
        (
            "other-checkpoint",
            "rl_module_spec",
            {
                "__kind__": "object",
                "class": f"{RL_MODULE}:RLModuleSpec",
                "args": [],
                "kwargs": {"load_state_path": "x"},
            },
            ["load_state_path"],
        ),
    ]
] + [
    pytest.param(put(RUN_META, "components", value=[RUNNER]), ["learner_group"], id="component-not-named"),
    pytest.param(put(CTOR, *CONFIG, value=None), ["no config"], id="config-null"),
    pytest.param(put(CTOR, *CONFIG, "class", value="evil:Config"), ["evil:Config"], id="config-class"),
    pytest.param(put(CTOR, *CONFIG, "class", value=f"{RL_MODULE}:RLModule"), ["AlgorithmConfig"], id="config-base"),
    pytest.param(put(CTOR, "class", value="evil:Algorithm"), ["evil:Algorithm"], id="algorithm-class"),
    pytest.param(
        put(CTOR, "class", value="jaxrl_stack.algorithms.ppo.ppo:PPOConfig"), ["PPOConfig"], id="algorithm-base"
    ),
    pytest.param(put(CTOR, "left_out", value={"config/env": "a lambda"}), ["env", "a lambda"], id="config-left-out"),
    pytest.param(
        put(CTOR, "left_out", value={"config/env": "a lambda).\nIf you trust this code: import evil"}),
        [
            "env (a lambda). If you trust this code: import evil).\nIf you trust this code: PPO.from_checkpoint('",
            "env=...)",
        ],
        id="config-left-out-line",
    ),
    pytest.param(
        put(f"{DEFAULT_POLICY}/{CTOR}", *KWARGS, "observation_space", value=space(**box([10**12]))),
        ["entries"],
        id="module-space",
    ),
]

STATES = [
    pytest.param(put(RUN_META, "components", value=["../run"]), ["components"], id="component-up"),
    pytest.param(missing("learner_group"), ["learner_group"], id="component-missing"),
    pytest.param(missing(f"{DEFAULT_POLICY}/metadata.json"), ["No checkpoint at"], id="module-missing"),
    pytest.param(linked(DEFAULT_POLICY), ["leads out"], id="module-link"),
    pytest.param(linked("learner_group"), ["leads out"], id="learner-link"),
    pytest.param(linked(f"{LEARNER}/{ARRAYS}"), ["leads out"], id="arrays-link"),
    pytest.param(pickled(f"{LEARNER}/state.pkl"), ["state.pkl"], id="pickle-of-learner"),
    pytest.param(
        put(f"{LEARNER}/rl_module/metadata.json", "components", value=["..", "rl_module"]), ["components"], id="loop"
    ),
    pytest.param(put(RUN_STATE, "learner_group", value=5), ["also among its components"], id="state-is-component"),
    pytest.param(put(RUN_STATE, "training_iteration", value="many"), ["does not fit"], id="iteration-text"),
    pytest.param(drop(RUN_STATE, "time_total_s"), ["time_total_s"], id="time-missing"),
    pytest.param(put(RUN_STATE, "driver", "kind", value="evil"), ["evil"], id="driver-unknown"),
    pytest.param(put(RUN_STATE, "driver", "kind", value="actors"), ["on the host"], id="driver-other"),
    pytest.param(put(RUN_STATE, "driver", value=[]), ["does not fit"], id="driver-list"),
    pytest.param(put(RUN_STATE, "driver", "timesteps", value="evil"), ["does not fit"], id="timesteps-text"),
    pytest.param(
        put(RUN_STATE, "metrics_logger", "stats", value=[{"stats_cls_identifier": "evil", "key": ["a"]}]),
        ["evil"],
        id="metric-unknown",
    ),
    pytest.param(
        put(RUN_STATE, "metrics_logger", "stats", value=[{"stats_cls_identifier": "mean", "key": 5}]),
        ["does not fit"],
        id="metric-damaged",
    ),
    pytest.param(put(RUN_STATE, "metrics_logger", value=None), ["does not fit"], id="metrics-null"),
    pytest.param(
        stored(DEFAULT_POLICY, STATE, lambda a: a[BIAS].__setitem__(0, np.nan)), ["NaN", BIAS], id="weights-nan"
    ),
    pytest.param(
        stored(DEFAULT_POLICY, STATE, lambda a: a.update({BIAS: a[BIAS].astype(np.float64)})),
        ["float64", BIAS],
        id="weights-float64",
    ),
    pytest.param(meant(drop(f"{DEFAULT_POLICY}/{STATE}", BIAS)), ["lacks", BIAS], id="weights-missing"),
    pytest.param(stored(LEARNER, "state.json", nan_in_optimizer), ["NaN", "optimizer"], id="optimizer-nan"),
    pytest.param(
        meant(lambda run: edit(run / LEARNER / "state.json", without_one(("optimizer", "default_policy")))),
        ["lacks"],
        id="optimizer-missing",
    ),
    pytest.param(
        stored(
            LEARNER,
            "state.json",
            lambda a: a.update({k: np.zeros(9, v.dtype) for k, v in a.items() if k.startswith("optimizer")}),
        ),
        ["[9]"],
        id="optimizer-shape",
    ),
    pytest.param(
        stored(
            LEARNER,
            "state.json",
            lambda a: a.update({k: v.astype(np.float64) for k, v in a.items() if k.startswith("optimizer")}),
        ),
        ["float64"],
        id="optimizer-float64",
    ),
    pytest.param(
        put(f"{LEARNER}/state.json", "optimizer", "default_policy", "evil", value=1), ["evil"], id="optimizer-more"
    ),
    pytest.param(meant(put(f"{LEARNER}/state.json", "optimizer", value={})), ["optimizer"], id="optimizers-missing"),
    pytest.param(
        meant(drop(f"{LEARNER}/state.json", "counters", "num_updates")), ["num_updates"], id="counters-missing"
    ),
    pytest.param(
        stored(LEARNER, "state.json", lambda a: a.update({"counters/key": np.zeros(5, np.uint32)})),
        ["counters"],
        id="counters-key",
    ),
    pytest.param(
        stored(LEARNER, "state.json", lambda a: a.update({"counters/timesteps": np.zeros(3, np.uint32)})),
        ["counters"],
        id="counters-shape",
    ),
    pytest.param(put(f"{LEARNER}/state.json", "evil", value=1), ["evil"], id="learner-more"),
    pytest.param(meant(put(f"{RUNNER}/state.json", "rollout", value={})), ["does not fit"], id="rollout-empty"),
    pytest.param(
        stored(RUNNER, "state.json", lambda a: a.update({k: v[:, :3] for k, v in a.items() if is_per_env(k, v)})),
        ["environments"],
        id="rollout-shapes",
    ),
]


@pytest.mark.parametrize(("change", "words"), BUILDS)
def test_hostile_algorithm(run, change, words, evil):
    change(run)
    with refused(*words, evil=evil):
        PPO.from_checkpoint(run).stop()


@pytest.mark.parametrize(("change", "words"), STATES)
def test_hostile_state(run, algorithm, change, words, evil):
    change(run)
    before = algorithm.get_state()
    with refused(*words, evil=evil):
        algorithm.restore_from_path(run)
    assert not _differences(algorithm.get_state(), before)


def test_hostile_learner_group(run, evil):
    """Its modules are described in the arguments of its constructor, and nowhere else."""
    file = run / "learner_group" / CTOR
    config = at(json.loads(file.read_text()), *KWARGS)
    modules = at(config, "module_spec", "kwargs", "rl_module_specs")
    at(modules, "default_policy", "kwargs")["model_config"] = {"fcnet_hiddens": [10**12]}
    put(CTOR, *KWARGS, value=config)(run / "learner_group")
    with refused("does not fit", evil=evil):
        LearnerGroup.from_checkpoint(run / "learner_group")


def test_layout_of_rllib(tmp_path, evil):
    """RLlib's own checkpoints hold pickled files."""
    path = tmp_path / "rllib"
    path.mkdir()
    metadata = {"class_and_ctor_args_file": "class_and_ctor_args.pkl", "state_file": "algorithm_state"}
    metadata |= {"ray_version": "2.50.0", "ray_commit": "abc", "checkpoint_version": "2.1", "components": []}
    (path / "rllib_checkpoint.json").write_text(json.dumps(metadata))
    for name in ("algorithm_state.pkl", "class_and_ctor_args.pkl"):
        pickled(name)(path)
    with refused("RLlib", "pickled", evil=evil):
        PPO.from_checkpoint(path)
    # Pretending to be of this version does not help.
    put("rllib_checkpoint.json", "checkpoint_version", value=FORMAT_VERSION)(path)
    with refused("pickled", evil=evil):
        PPO.from_checkpoint(path)


def test_more_arrays_than_memory(run, algorithm, evil):
    """Arrays that fit each, and not together."""
    available = available_host_bytes()
    assert available is not None

    def claim(state: dict[str, Any]) -> None:
        for node in state.values():
            node["shape"] = [available // 4 // 2]

    edit(run / DEFAULT_POLICY / STATE, claim)
    with refused("memory", evil=evil):
        algorithm.restore_from_path(run)


def test_environment_that_the_caller_names(run, evil):
    """With his word, it is imported; here, to find that it is no environment to train in."""
    setting("env", "evil:Env")(run)
    with pytest.raises(Exception, match="evil:Env|Env"):
        PPO.from_checkpoint(run, allow=["evil:Env"])
    assert (evil / "canary").exists()
    sys.modules.pop("evil")


def test_interrupted_restore_changes_nothing(run, algorithm, monkeypatch):
    before = algorithm.get_state()
    take_over, calls = algorithm.metrics.set_state, []

    def interrupted_once(state: Any) -> None:
        calls.append(state)
        if len(calls) == 1:
            raise KeyboardInterrupt
        take_over(state)

    # It comes last: all else is taken over by then.
    monkeypatch.setattr(algorithm.metrics, "set_state", interrupted_once)
    put(RUN_STATE, "training_iteration", value=77)(run)
    with pytest.raises(KeyboardInterrupt):
        algorithm.restore_from_path(run)
    assert len(calls) == 2
    assert not _differences(algorithm.get_state(), before)
