"""Folders of checkpoints: whole or not there, in order, on this machine and elsewhere; and everything that has one."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
from flax import nnx
from gymnasium import spaces

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.checkpoints import files as checkpoint_files
from jaxrl_stack.checkpoints import folder_replacement, remote, saves
from jaxrl_stack.checkpoints.files import MAX_DEPTH, Component, Stored, opened, write
from jaxrl_stack.checkpoints.names import ARRAYS_FILE
from jaxrl_stack.checkpoints.saves import wait_for_saves
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FrameStackingEnvToModule, MeanStdFilter
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.utils.checkpoints import Checkpointable
from jaxrl_stack.utils.class_paths import ClassLoader

THING = Component(class_path="some:Thing", ctor={"args": [], "kwargs": {}})
OBS, ACTION = spaces.Box(-1, 1, (4,)), spaces.Discrete(2)


def holds(path: Any, filesystem: Any = None) -> Any:
    with opened(path, filesystem) as stored:
        return stored.state(ClassLoader())


def number(path: Any, filesystem: Any = None) -> int:
    """What `of` wrote, the same everywhere."""
    state = holds(path, filesystem)
    numbers = {int(n) for n in (*state["array"], *state["part"]["array"], state["plain"])}
    assert len(numbers) == 1
    return numbers.pop()


def of(n: int) -> dict[str, Any]:
    return {"array": np.full(5, n), "plain": n, "part": {"array": np.full(3, n)}}


WITH_PART = dataclasses.replace(THING, parts={"part": THING})


def save(path: Any, n: int, **kwargs: Any) -> str:
    return write(path, WITH_PART, of(n), **kwargs)


@pytest.fixture(params=["exchange", "steps"])
def way(request, monkeypatch):
    """Both ways to put a new folder in the place of an old one."""
    if request.param == "steps":
        monkeypatch.setattr(folder_replacement, "_exchange", lambda one, other: False)
    return request.param


# ----------------------------------------------------------------------------------------------------- what is written


def test_arrays_go_through_files_bit_for_bit(tmp_path):
    rng = np.random.default_rng(0)
    names = ["a", "a/b", "a.b", "__metadata__", "ä b", "%2F", "..", "c/../d", "'", '"', "\\", "{}", "x" * 300]
    state: dict[str, Any] = {name: rng.normal(size=3) for name in names}
    state["kinds"] = {
        name: rng.integers(0, 256, 16, np.uint8).view(jnp.dtype(name))
        for name in ("int8", "uint64", "float16", "bfloat16", "float32", "float64", "complex64", "complex128")
    }
    state["single"] = {"bfloat16": np.array(-0.0, jnp.bfloat16), "nan": np.array(-np.nan, np.float32)}
    state["empty"] = np.zeros((0, 3), np.int16)
    state["large"] = rng.normal(size=(300, 1000))
    state["keys"] = jax.random.split(jax.random.key(1, impl="rbg"), 3)
    write(tmp_path / "it", THING, state)
    back = holds(tmp_path / "it")

    def bits(leaf):
        leaf = np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        return leaf.dtype, leaf.shape, leaf.tobytes()

    assert jax.tree.map(bits, back) == jax.tree.map(bits, state)
    # Other programs read the file, too.
    with safetensors.safe_open(tmp_path / "it" / ARRAYS_FILE, "np") as file:
        assert set(file.keys()) >= {name for name in names if name != "__metadata__"}
        assert (file.get_tensor("large") == state["large"]).all()
        assert file.get_slice("kinds/bfloat16").get_dtype() == "BF16"


def test_large_arrays_are_in_memory_once(tmp_path):
    """While they are written, and while they are read."""
    script = """
import pathlib, sys
import numpy as np
from jaxrl_stack.checkpoints.files import Component, opened, write
from jaxrl_stack.utils.class_paths import ClassLoader

def mib(mark):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(mark)).split()[1]) / 1024

thing = Component(class_path="some:Thing", ctor={"args": [], "kwargs": {}})
before = mib("VmRSS:")
write(sys.argv[1], thing, {"a": np.ones(1 << 25, np.float32), "b": np.ones((1 << 25, 4), np.uint8)})
with opened(sys.argv[1]) as stored:
    state = stored.state(ClassLoader())
assert all(array.all() for array in state.values())
print(mib("VmHWM:") - before)
"""
    peak = float(run_script(script, str(tmp_path / "it")).stdout)
    assert 256 <= peak <= 1.2 * 256


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(checkpoint_files.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_layout(tmp_path):
    save(tmp_path / "it", 3)
    files = {str(file.relative_to(tmp_path / "it")) for file in (tmp_path / "it").rglob("*.*")}
    own = {"metadata.json", "class_and_ctor_args.json", "state.json", "arrays.safetensors"}
    assert files == own | {f"part/{name}" for name in own}
    metadata = json.loads((tmp_path / "it" / "metadata.json").read_text())
    assert metadata["checkpoint_version"] == "3.0"
    assert metadata["components"] == ["part"]
    assert {"jaxrl_stack_version", "jax_version", "state_file"} <= set(metadata)
    assert os.stat(tmp_path / "it").st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_metadata_of_a_class_cannot_replace_the_formats_own(tmp_path):
    write(tmp_path / "it", dataclasses.replace(THING, metadata={"components": ["x"], "mine": 1}), {"a": 1})
    assert holds(tmp_path / "it") == {"a": 1}
    assert json.loads((tmp_path / "it" / "metadata.json").read_text())["mine"] == 1


@pytest.mark.parametrize(
    "name", ["../x", "a/b", ".hidden", "", "x.safetensors", "x.json", "x.pkl", "a\0b", "CON:", "\ud800"]
)
def test_names_that_no_folder_can_have(tmp_path, name):
    component = dataclasses.replace(THING, parts={name: THING})
    with pytest.raises(ValueError, match="cannot be called"):
        write(tmp_path / "it", component, {name: {"a": 1}})
    assert os.listdir(tmp_path) == []


def test_what_could_not_be_read_is_not_written(tmp_path):
    deep: list = []
    for _ in range(MAX_DEPTH + 1):
        deep = [deep]
    itself: list = []
    itself.append(itself)
    for state, words in [
        ({"a": deep}, "deeper"),
        ({"a": itself}, "contains itself"),
        ({"a": ["x" * (1 << 20)] * 65}, "NumPy arrays"),
        ({"a": lambda: None}, "a is a lambda"),
        ({"part": 5}, "must be a dict"),
    ]:
        with pytest.raises((ValueError, TypeError), match=words):
            write(tmp_path / "it", WITH_PART, state)
    assert os.listdir(tmp_path) == []


def test_parts_without_state_have_no_folder(tmp_path):
    parts = {"one": THING, "two": dataclasses.replace(THING, is_optional=True), "three": THING}
    write(tmp_path / "it", dataclasses.replace(THING, parts=parts), {"one": {}, "two": {}})
    with opened(tmp_path / "it") as stored:
        assert stored.parts == ("one",)
        assert "one" in stored and "two" not in stored
        with pytest.raises(ValueError, match=r"no component 'two'; it has \['one'\]"):
            stored.part("two")


# ------------------------------------------------------------------------------------------------------- where it goes


def test_saving_over_a_checkpoint_of_an_earlier_version(tmp_path):
    """They are not read, and had a folder of arrays."""
    save(tmp_path / "it", 1)
    metadata = json.loads((tmp_path / "it" / "metadata.json").read_text())
    (tmp_path / "it" / "metadata.json").write_text(json.dumps({**metadata, "checkpoint_version": "2.0"}))
    (tmp_path / "it" / ARRAYS_FILE).unlink()
    (tmp_path / "it" / "arrays").mkdir()
    with pytest.raises(ValueError, match=r"has version '2.0', but this release reads '3.0'. Load it with the release"):
        holds(tmp_path / "it")
    save(tmp_path / "it", 2)
    assert number(tmp_path / "it") == 2


def test_saving_over_a_checkpoint(tmp_path, way):
    path = tmp_path / "new" / "folder" / "it"
    for n in range(3):
        assert save(path, n) == str(path)
        assert number(path) == n
        assert os.listdir(path.parent) == ["it"]


def test_an_empty_folder_is_taken(tmp_path, way):
    (tmp_path / "it").mkdir()
    save(tmp_path / "it", 1)
    assert number(tmp_path / "it") == 1
    assert os.listdir(tmp_path) == ["it"]


def test_paths_are_relative_to_where_the_process_is_at_the_call(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert save("it", 1, blocking=False) == str(tmp_path / "it")
    monkeypatch.chdir("/")
    wait_for_saves()
    assert number(tmp_path / "it") == 1


def _a_file(path: Path) -> None:
    path.write_text("mine")


def _a_folder(path: Path) -> None:
    path.mkdir()
    (path / "mine.txt").write_text("mine")


def _metadata_of_others(path: Path) -> None:
    path.mkdir()
    (path / "metadata.json").write_text('{"name": "my project"}')


def _a_checkpoint_with_more(path: Path) -> None:
    save(path, 0)
    (path / "mine.txt").write_text("mine")


@pytest.mark.parametrize("make", [_a_file, _a_folder, _metadata_of_others, _a_checkpoint_with_more])
def test_what_is_no_checkpoint_stays(tmp_path, make):
    path = tmp_path / "it"
    make(path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match="choose another path"):
        save(path, 1)
    assert sorted(tmp_path.rglob("*")) == before


def test_what_is_put_there_meanwhile_stays(tmp_path, monkeypatch):
    path = tmp_path / "it"
    write_arrays = checkpoint_files.write_arrays

    def slow(*args: Any) -> None:
        write_arrays(*args)
        path.mkdir(exist_ok=True)
        (path / "mine.txt").write_text("mine")

    monkeypatch.setattr(checkpoint_files, "write_arrays", slow)
    save(path, 1, blocking=False)
    with pytest.raises(ValueError, match="no checkpoint"):
        wait_for_saves()
    assert os.listdir(path) == ["mine.txt"]
    assert os.listdir(tmp_path) == ["it"]


def test_hidden_files_of_tuners_do_not_matter(tmp_path):
    save(tmp_path / "it", 1)
    (tmp_path / "it" / ".metadata.json").write_text("{}")
    save(tmp_path / "it", 2)
    assert number(tmp_path / "it") == 2


def test_links(tmp_path, way):
    """A link stays one, and the checkpoint that it points to is replaced."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "latest"
    link.symlink_to(tmp_path / "disk" / "it")
    for n in range(2):
        assert save(link, n) == str(link)
        assert link.is_symlink()
        assert number(link) == number(tmp_path / "disk" / "it") == n
    assert os.listdir(tmp_path / "disk") == ["it"]


def test_what_goes_wrong_leaves_the_one_before(tmp_path, way, monkeypatch):
    save(tmp_path / "it", 1)

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint_files, "write_arrays", full)
        with pytest.raises(OSError, match="No space"):
            save(tmp_path / "it", 2)
    assert number(tmp_path / "it") == 1
    assert os.listdir(tmp_path) == ["it"]


# --------------------------------------------------------------------------------------------------------- interrupted


class Killed(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A checkpoint whose replacement ended between the two renames: nothing is at its path."""
    path = tmp_path / "it"
    save(path, 1)
    rename = os.rename

    def first_alone(source: Any, target: Any) -> None:
        if Path(target) == path and not path.exists():
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(folder_replacement, "_exchange", lambda one, other: False)
        patch.setattr(os, "rename", first_alone)
        # A killed process does not clean up.
        patch.setattr(folder_replacement.shutil, "rmtree", lambda *args, **kwargs: None)
        with pytest.raises(Killed):
            save(path, 2)
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == 2
    return path


def test_loading_finds_the_one_before(interrupted):
    assert number(interrupted) == 1
    assert number(interrupted) == 1


def test_loading_a_part_finds_the_one_before(interrupted):
    assert holds(interrupted / "part")["array"].tolist() == [1, 1, 1]


def test_loading_through_a_link_finds_the_one_before(interrupted):
    link = interrupted.parent / "link"
    link.symlink_to(interrupted)
    assert number(link) == 1


def test_the_next_save_cleans_up(interrupted, way):
    save(interrupted, 3)
    assert number(interrupted) == 3
    assert os.listdir(interrupted.parent) == ["it"]


def test_a_failing_save_behind_it_keeps_the_one_before(interrupted, monkeypatch):
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint_files, "write_arrays", full)
    with pytest.raises(OSError, match="No space"):
        save(interrupted, 3)
    assert number(interrupted) == 1


def test_leftovers_of_others_stay(tmp_path):
    """Those of checkpoints with similar names, and what only looks like one."""
    names = [".it.5.x.new.77.0123abcd", ".it.5.x.old.77.0123abcd", ".it.notes", ".it.new.77", ".other.new.77.0123abcd"]
    for name in names:
        (tmp_path / name).mkdir()
    for name in (".it.new.77.0123abcd", ".it.old.77.0123abcd"):
        (tmp_path / name).mkdir()
    save(tmp_path / "it", 1)
    assert sorted(os.listdir(tmp_path)) == sorted([*names, "it"])


@pytest.mark.parametrize("has_locks", [True, False])
def test_a_folder_that_is_being_written_stays(tmp_path, monkeypatch, has_locks):
    """Another save to the same path does not take it for a leftover, of whatever process it is."""
    alive, gone = (tmp_path / f".it.new.{pid}.0123abcd" for pid in (os.getpid(), 1 << 30))
    alive.mkdir()
    gone.mkdir()
    if not has_locks:

        def no_locks(descriptor: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "no locks")

        monkeypatch.setattr(folder_replacement.fcntl, "flock", no_locks)
    with folder_replacement._locked(alive):
        save(tmp_path / "it", 1)
    assert sorted(os.listdir(tmp_path)) == [alive.name, "it"]


def test_a_checkpoint_that_is_put_back_meanwhile(tmp_path, monkeypatch):
    """Another process loads between the two renames of a save: it gets the one before, and the save is made."""
    path = tmp_path / "it"
    save(path, 1)
    rename, found = os.rename, []

    def slow(source: Any, target: Any) -> None:
        rename(source, target)
        if Path(source) == path and not found:
            found.append(number(path))

    monkeypatch.setattr(folder_replacement, "_exchange", lambda one, other: False)
    monkeypatch.setattr(os, "rename", slow)
    save(path, 2)
    assert (found, number(path)) == ([1], 2)
    assert os.listdir(tmp_path) == ["it"]


def test_saves_of_several_threads(tmp_path, way):
    errors = []

    def many(start: int) -> None:
        try:
            for n in range(start, start + 4):
                save(tmp_path / "it", n)
                assert number_or_replaced(tmp_path / "it")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=many, args=(start,)) for start in (0, 10, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert number(tmp_path / "it") % 10 == 3
    assert os.listdir(tmp_path) == ["it"]


def number_or_replaced(path: Path) -> bool:
    try:
        return number(path) >= 0
    except ValueError as error:
        return "was replaced while it was read" in str(error)
    except FileNotFoundError:
        # Between the two renames of another thread.
        return True


def test_a_checkpoint_that_is_replaced_while_it_is_read(tmp_path):
    save(tmp_path / "it", 1)
    stored = Stored(tmp_path / "it")
    save(tmp_path / "it", 2)
    with pytest.raises(ValueError, match="was replaced while it was read. Load it again"):
        stored.state(ClassLoader())


# --------------------------------------------------------------------------------------------------- in the background


@pytest.fixture
def gate(monkeypatch):
    """Saves wait for it."""
    opened_gate = threading.Event()
    write_local = checkpoint_files._write_local

    def waiting(*args: Any) -> None:
        assert opened_gate.wait(20)
        write_local(*args)

    monkeypatch.setattr(checkpoint_files, "_write_local", waiting)
    yield opened_gate
    opened_gate.set()
    wait_for_saves()


def test_saves_without_waiting_are_of_the_moment_and_in_order(tmp_path, gate):
    state = of(1)
    write(tmp_path / "it", WITH_PART, state, blocking=False)
    # The arrays are copied already.
    state["array"][:] = state["part"]["array"][:] = 77
    save(tmp_path / "it", 2, blocking=False)
    save(tmp_path / "other", 3, blocking=False)
    assert not (tmp_path / "it").exists()
    gate.set()
    # Loading waits for what is on its way there.
    assert number(tmp_path / "it") == 2
    assert holds(tmp_path / "other" / "part")["array"].tolist() == [3, 3, 3]
    save(tmp_path / "it", 4)
    assert number(tmp_path / "it") == 4


def test_a_save_without_waiting_does_not_wait_for_one_that_is_being_written(tmp_path, monkeypatch):
    is_writing, may_go_on = threading.Event(), threading.Event()
    write_arrays = checkpoint_files.write_arrays

    def waiting(*arguments: Any) -> None:
        is_writing.set()
        assert may_go_on.wait(30)
        write_arrays(*arguments)

    monkeypatch.setattr(checkpoint_files, "write_arrays", waiting)
    save(tmp_path / "it", 1, blocking=False)
    assert is_writing.wait(30)
    save(tmp_path / "other", 2, blocking=False)
    # The first one is still being written: only this thread lets it continue.
    assert not (tmp_path / "it").exists()
    may_go_on.set()
    wait_for_saves()
    assert number(tmp_path / "it") == 1 and number(tmp_path / "other") == 2


def test_a_save_waits_for_those_before_it(tmp_path, gate):
    for n in range(3):
        save(tmp_path / "it", n, blocking=False)
    threading.Timer(0.2, gate.set).start()
    save(tmp_path / "it", 3)
    wait_for_saves()
    assert number(tmp_path / "it") == 3


def test_who_saves_faster_than_the_disk_waits(tmp_path, gate):
    for n in range(saves._MAX_WAITING):
        save(tmp_path / str(n), n, blocking=False)
    start = time.monotonic()
    threading.Timer(0.3, gate.set).start()
    save(tmp_path / "more", 5, blocking=False)
    assert time.monotonic() - start > 0.2


def test_what_went_wrong_in_the_background_is_reported(tmp_path, monkeypatch):
    write_arrays = checkpoint_files.write_arrays

    def full(path: Path, arrays: Any) -> None:
        # Random hexadecimal digits in the names of temporary folders cannot spell it.
        if "unwritable" in str(path):
            raise OSError(28, "No space left on device")
        write_arrays(path, arrays)

    monkeypatch.setattr(checkpoint_files, "write_arrays", full)
    save(tmp_path / "unwritable", 1, blocking=False)
    save(tmp_path / "other", 2, blocking=False)
    with pytest.raises(OSError, match="No space") as raised:
        wait_for_saves()
    assert "unwritable" in raised.value.__notes__[0]
    wait_for_saves()
    assert number(tmp_path / "other") == 2
    # By the next save that finds it, too.
    save(tmp_path / "unwritable", 1, blocking=False)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path / "unwritable", 2)
    save(tmp_path / "other", 3, blocking=False)
    assert number(tmp_path / "other") == 3


def test_what_cannot_be_saved_is_said_at_once(tmp_path):
    with pytest.raises(TypeError, match="a is a lambda"):
        write(tmp_path / "it", THING, {"a": lambda: None}, blocking=False)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="no checkpoint"):
        save(tmp_path / "mine", 1, blocking=False)


def test_a_process_ends_when_all_is_saved(tmp_path):
    script = """
import sys
import numpy as np
from jaxrl_stack.checkpoints.files import Component, write
thing = Component(class_path="some:Thing", ctor={"args": [], "kwargs": {}})
for n in range(6):
    write(f"{sys.argv[1]}/{n % 2}", thing, {"a": np.full(100_000, n)}, blocking=False)
write(f"{sys.argv[1]}/no/such\\0name", thing, {"a": 1}, blocking=False) if len(sys.argv) > 2 else None
"""
    run_script(script, str(tmp_path))
    assert [holds(tmp_path / str(n))["a"][-1] for n in range(2)] == [4, 5]
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


# ------------------------------------------------------------------------------------------------------------ elsewhere


def test_local_file_systems_of_pyarrow(tmp_path):
    """They are written as folders of this machine are: in one moment."""
    from pyarrow import fs

    local = fs.LocalFileSystem()
    assert save(f"file://{tmp_path}/one", 1) == str(tmp_path / "one")
    assert save(str(tmp_path / "two"), 2, filesystem=local) == str(tmp_path / "two")
    below = fs.SubTreeFileSystem(str(tmp_path), local)
    assert save("three", 3, filesystem=below) == str(tmp_path / "three")
    assert number(f"file://{tmp_path}/one") == 1
    assert number(tmp_path / "two", local) == number(tmp_path / "two") == 2
    assert number("three", below) == 3
    with pytest.raises(ValueError, match="leads out"):
        save("../four", 4, filesystem=below)
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        number("five", below)


def test_other_file_systems(bucket, tmp_path):
    for n in range(3):
        assert save("runs/it", n, filesystem=bucket) == "runs/it"
        assert number("runs/it", bucket) == n
    assert holds("runs/it/part", bucket)["array"].tolist() == [2, 2, 2]
    assert os.listdir(tmp_path / "bucket" / "runs") == ["it"]
    save("runs/it", 5, filesystem=bucket, blocking=False)
    assert number("runs/it", bucket) == 5
    with pytest.raises(FileNotFoundError, match="No checkpoint at runs/other"):
        number("runs/other", bucket)
    (tmp_path / "bucket" / "mine").mkdir()
    (tmp_path / "bucket" / "mine" / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="not a checkpoint"):
        save("mine", 1, filesystem=bucket)


@pytest.fixture
def listing_of(bucket, tmp_path, monkeypatch):
    """The bucket with files that are not there: ``listing_of(name, size, content)`` adds one to every listing."""
    import io

    import pyarrow as pa
    from pyarrow import fs

    save("runs/it", 1, filesystem=bucket)
    # Far enough down that a way out ends in the folder of this test.
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "a" / "b" / "c"))

    def made(name, size, content=b"evil"):
        class Listing(type(bucket.handler)):
            def get_file_info_selector(self, selector):
                extra = fs.FileInfo(f"runs/it/{name}", type=fs.FileType.File, size=size)
                return [*super().get_file_info_selector(selector), extra]

            def open_input_stream(self, path):
                if path == f"runs/it/{name}":
                    return pa.PythonFile(io.BytesIO(content), mode="r")
                return super().open_input_stream(path)

        return fs.PyFileSystem(Listing(bucket.handler.fs))

    return made


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(
    "name",
    ["../x", "../../x", "part/../../../x", "part/./x", "part//x", "C:x", "C:\\x", "..\\x", "part/C:/x", "a\0b", "/x"],
)
def test_names_in_other_file_systems_stay_inside(listing_of, tmp_path, name):
    """A key of an object store is any text: nothing is written before all of them are names of files here."""
    filesystem = listing_of(name, 4)
    before = everything_in(tmp_path)
    with pytest.raises(ValueError, match="leads out of its folder"):
        number("runs/it", filesystem)
    assert everything_in(tmp_path) == before


def test_downloads_are_bounded(listing_of, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"has 1 EiB\. .* are free.*TMPDIR"):
        number("runs/it", listing_of("large", 1 << 60))
    for size in (3, 5):
        with pytest.raises(ValueError, match="changed during the copy"):
            number("runs/it", listing_of("part/grown", size))
    with pytest.raises(ValueError, match="is not a regular file"):
        number("runs/it", listing_of("unknown", None))
    assert number("runs/it", listing_of("part/.hidden", 4)) == 1
    monkeypatch.setattr(remote, "_MAX_FILES", 3)
    with pytest.raises(ValueError, match="files and folders"):
        number("runs/it", listing_of("x", 4))


@pytest.mark.parametrize("stop_at", range(12))
def test_other_file_systems_interrupted(bucket, tmp_path, monkeypatch, stop_at):
    """Whatever call is the last one: there is a whole checkpoint, and the next save finds its way."""
    import pyarrow.fs

    save("it", 1, filesystem=bucket)
    calls = []

    def counted(run):
        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(run)
            if len(calls) > stop_at:
                raise Killed
            return run(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(pyarrow.fs, "copy_files", counted(pyarrow.fs.copy_files))
        for name in ("_delete", "_is_there", "_check_target"):
            patch.setattr(remote.Remote, name, counted(getattr(remote.Remote, name)))
        with contextlib.suppress(Killed):
            save("it", 2, filesystem=bucket)
    assert number("it", bucket) in (1, 2)
    assert holds("it/part", bucket)["array"][0] in (1, 2)
    save("it", 3, filesystem=bucket)
    assert number("it", bucket) == 3
    assert os.listdir(tmp_path / "bucket") == ["it"]


# ------------------------------------------------------------------------------------- everything that has a checkpoint

DICT = spaces.Dict({"b": spaces.Box(-1, 1, (2,)), "a": spaces.Discrete(3)})


def module_spec(space: gym.Space = OBS, **kwargs: Any) -> RLModuleSpec:
    return RLModuleSpec(
        module_class=DefaultPPORLModule,
        observation_space=space,
        action_space=ACTION,
        catalog_class=PPOCatalog,
        model_config={"fcnet_hiddens": [4]},
        **kwargs,
    )


def assert_same(one: Any, other: Any) -> None:
    left, right = ({jax.tree_util.keystr(p): x for p, x in jax.tree.leaves_with_path(t)} for t in (one, other))
    assert set(left) == set(right)
    assert [n for n in left if np.asarray(left[n]).tobytes() != np.asarray(right[n]).tobytes()] == []


@pytest.fixture(scope="module")
def config():
    return (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=16, minibatch_size=8, num_epochs=1)
        .learners(num_cpus_per_learner=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .debugging(seed=3)
    )


@pytest.fixture(scope="module")
def learner(config):
    spec = config.get_multi_rl_module_spec(spaces={"default_policy": (OBS, ACTION)})
    built = PPOLearner(config=config, module_spec=spec)
    built.build()
    return built


def test_module_alone(tmp_path):
    module = module_spec(inference_only=False).build(seed=1)
    back = RLModule.from_checkpoint(module.save_to_path(tmp_path / "it"))
    assert type(back) is DefaultPPORLModule
    assert back.observation_space == OBS
    assert_same(back.get_state(), module.get_state())
    other = module_spec().build(seed=2)
    other.restore_from_path(tmp_path / "it")
    assert_same(other.get_state(), module.get_state())


class OfDicts(RLModule):
    def setup(self):
        self.bias = nnx.Param(jnp.arange(2.0))


def test_spaces_of_a_module_come_back_as_such(tmp_path):
    """A Dict space is a mapping, too."""
    module = OfDicts(observation_space=DICT, action_space=spaces.Tuple([DICT, ACTION]), rngs=0)
    back = OfDicts.from_checkpoint(module.save_to_path(tmp_path / "it"))
    assert isinstance(back.observation_space, spaces.Dict)
    assert (back.observation_space, back.action_space) == (DICT, module.action_space)
    assert_same(back.get_state(), module.get_state())


def test_modules_together_and_one_of_them(tmp_path):
    multi = MultiRLModuleSpec(rl_module_specs={"a": module_spec(), "b": module_spec()}).build(seed=1)
    assert isinstance(multi, MultiRLModule)
    path = Path(multi.save_to_path(tmp_path / "it"))
    assert_same(MultiRLModule.from_checkpoint(path).get_state(), multi.get_state())
    assert_same(RLModule.from_checkpoint(path / "b").get_state(), multi["b"].get_state())
    other = MultiRLModuleSpec(rl_module_specs={"a": module_spec(), "b": module_spec()}).build(seed=2)
    b = other.get_state()["b"]
    other.restore_from_path(path, component="a")
    assert_same(other.get_state(), {"a": multi.get_state()["a"], "b": b})
    with pytest.raises(ValueError, match=r"no component 'c'; it has \['a', 'b'\]"):
        other.restore_from_path(path, component="c")


def test_part_of_a_state(tmp_path):
    multi = MultiRLModuleSpec(rl_module_specs={"a": module_spec(), "b": module_spec()}).build(seed=1)
    multi.save_to_path(tmp_path / "it", state=multi.get_state(components="b"))
    other = MultiRLModuleSpec(rl_module_specs={"a": module_spec(), "b": module_spec()}).build(seed=2)
    a = other.get_state()["a"]
    other.restore_from_path(tmp_path / "it")
    assert_same(other.get_state(), {"a": a, "b": multi.get_state()["b"]})


def test_module_of_other_sizes_is_refused(tmp_path):
    module = module_spec().build(seed=1)
    module.save_to_path(tmp_path / "it")
    other = module_spec(spaces.Box(-1, 1, (5,))).build(seed=1)
    before = other.get_state()
    with pytest.raises(ValueError, match=r"does not fit.*\(4, 4\).*\(5, 4\)"):
        other.restore_from_path(tmp_path / "it")
    assert_same(other.get_state(), before)


def test_weights_of_half_precision_that_are_nan(tmp_path):
    class Half(Checkpointable):
        _state_is_weights = True
        state = {"w": np.array([1, np.nan], jnp.bfloat16)}

        def get_state(self, components=None, *, not_components=None, **kwargs):
            return self.state

        def set_state(self, state):
            self.state = state

    half = Half()
    half.save_to_path(tmp_path / "it")
    with pytest.raises(ValueError, match="contains NaN in w"):
        half.restore_from_path(tmp_path / "it")


def test_learner_and_group(learner, config, tmp_path):
    path = Path(learner.save_to_path(tmp_path / "learner"))
    assert {p.name for p in path.iterdir() if p.is_dir()} == {"rl_module"}
    back = PPOLearner.from_checkpoint(path)
    assert_same(back.get_state(), learner.get_state())
    group = LearnerGroup(config=config, learner=learner)
    path = Path(group.save_to_path(tmp_path / "group"))
    back = LearnerGroup.from_checkpoint(path)
    assert_same(back.get_state(), group.get_state())
    back.shutdown()
    module = RLModule.from_checkpoint(path / "learner" / "rl_module" / "default_policy")
    assert_same(module.get_state(), learner.get_state()["rl_module"]["default_policy"])


def test_connectors(tmp_path):
    connectors = [FrameStackingEnvToModule(num_frames=2), MeanStdFilter(), MeanStdFilter()]
    pipeline = EnvToModulePipeline(OBS, ACTION, connectors=connectors)
    state = jax.tree.map(lambda leaf: np.full_like(leaf, 3), pipeline.get_state())
    pipeline.set_state(state)
    path = Path(pipeline.save_to_path(tmp_path / "pipeline"))
    back = EnvToModulePipeline.from_checkpoint(path)
    assert back.names == pipeline.names
    assert_same(back.get_state(), state)
    name = pipeline.names[-1]
    connector = MeanStdFilter.from_checkpoint(path / name)
    assert_same(connector.get_state(), state[name])
    alone = MeanStdFilter.from_checkpoint(connector.save_to_path(tmp_path / "connector"))
    assert_same(alone.get_state(), state[name])
    with pytest.raises(ValueError, match="was saved by MeanStdFilter, not by FrameStacking"):
        FrameStackingEnvToModule.from_checkpoint(path / name)


def test_env_runner(config, tmp_path):
    runner = SingleAgentEnvRunner(config=config.copy(copy_frozen=False), worker_index=0)
    runner.sample(num_timesteps=6, random_actions=True)
    path = runner.save_to_path(tmp_path / "runner")
    back = SingleAgentEnvRunner.from_checkpoint(path)
    assert_same(back.get_state("rl_module"), runner.get_state("rl_module"))
    steps = "num_env_steps_sampled_lifetime"
    assert back.get_state(steps) == runner.get_state(steps) != {steps: 0}
    for one in (runner, back):
        one.stop()
