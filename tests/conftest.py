"""Settings for the whole test session; they must stand before JAX starts."""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import math
import os
import pathlib
import resource
import shutil
import sys
import tempfile
import time
import warnings
import zlib
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import costs
from tests.marks import ROOT, is_slow, marks_of

# Eight CPU devices stand for a machine with several accelerators.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

# One compilation cache per session, empty at its start: tests that build the same program load it instead of compiling
# it again, and nothing outside of the session has a say. Subprocesses and xdist's workers inherit it. A program that is
# loaded counts as compiled in `CompileClock`, so a test that counts programs sees the same numbers without it.
_OWN_CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _OWN_CACHE = tempfile.mkdtemp(prefix="jaxrl_stack_tests_xla_")
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _OWN_CACHE
# Workers, actors and the processes of tests would compile the same files again and again, and pytest would rewrite
# every assertion in each. In a folder of its own bytecode would cost as much once more: Python would look for that of
# installed packages there, too.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
# LLVM's optimisations take a third of the time that a small program needs to compile, and XLA's newer emitters of fused
# loops a third of what is left; neither is what is tested. Code that is cut into parts, for several threads, takes each
# of them a start, and the other worker a core.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
_XLA_FLAGS = {"--xla_cpu_parallel_codegen_split_count": "1"}
_IS_JAXLIB_0_10 = importlib.metadata.version("jaxlib").startswith("0.10.")
if _IS_JAXLIB_0_10:  # later ones end at this flag, which they do not know
    _XLA_FLAGS["--xla_cpu_use_fusion_emitters"] = "false"
for _flag, _value in _XLA_FLAGS.items():
    if _flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_flag}={_value}".lstrip()

import jax  # noqa: E402 - reads the environment

_LOADED: dict[tuple[Any, ...], Any] = {}
"""Programs that this process has compiled or loaded, by cache key and devices. To load one from its file again takes a
tenth of the time in which it was compiled, and a quarter of what a toy algorithm takes that was built before."""


def _load_programs_once() -> None:
    """Let the compilation cache give out again what it has loaded or stored in this process."""
    from jax._src import compilation_cache

    load, store = compilation_cache.get_executable_and_time, compilation_cache.put_executable_and_time

    def load_once(cache_key: str, compile_options: Any, backend: Any, executable_devices: Any) -> tuple[Any, Any]:
        key = (jax.config.values["jax_compilation_cache_dir"], cache_key, *(device.id for device in executable_devices))
        if key not in _LOADED:
            found = load(cache_key, compile_options, backend, executable_devices)
            if found[0] is None:
                return found
            _LOADED[key] = found
        return _LOADED[key]

    def store_once(cache_key: str, module_name: str, executable: Any, backend: Any, compile_time: int) -> None:
        devices = (device.id for device in executable.local_devices())
        _LOADED[jax.config.values["jax_compilation_cache_dir"], cache_key, *devices] = executable, compile_time
        store(cache_key, module_name, executable, backend, compile_time)

    compilation_cache.get_executable_and_time = load_once
    compilation_cache.put_executable_and_time = store_once
    if not (compilation_cache.zstd or compilation_cache.zstandard):
        # The default level takes 4.5 ms of each program, as long as serialising it; this one takes 1.4.
        compilation_cache.compress_executable = functools.partial(zlib.compress, level=1)


if _IS_JAXLIB_0_10:  # the functions are JAX's own, and may be others later
    _load_programs_once()


def pytest_unconfigure() -> None:
    if _OWN_CACHE is not None:
        shutil.rmtree(_OWN_CACHE, ignore_errors=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every-file", action="store_true", help="with -m fast: import files in which no test was fast lately, too"
    )


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Leave files without fast tests alone where those are all that is asked for. The table of costs knows them."""
    if config.option.markexpr != "fast" or config.option.every_file or collection_path in _named_files(config):
        return None
    return _name_of(collection_path) in _files_without_fast_tests() or None


COLLECTED = pytest.StashKey[list[str]]()
"""Names of all tests that were collected, as `marks.SLOW` writes them."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = names = [f"{_file_of(item)}::{item.nodeid.partition('::')[2]}" for item in items]
    for item, name in zip(items, names, strict=True):
        fixtures = [definitions[-1].func for definitions in item._fixtureinfo.name2fixturedefs.values()]
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        marks = marks_of(name, item.fixturenames, [item.function, *fixtures, parameters])
        for mark in sorted(marks | {"slow"} - {"fast"} if is_slow(name) else marks):
            item.add_marker(mark)
    leave_slow_ones_out(config, items)
    # Files that take longest come first, so that no worker waits for another one at the end. Files with actors, which
    # one worker runs, come before them. A file that is not in the table may be long.
    seconds = costs.wall_seconds(costs.PAGE.read_text())
    items.sort(key=lambda item: (not _uses_ray(item.path), -seconds.get(_file_of(item), math.inf)))


def leave_slow_ones_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unless ``-m`` speaks of them, or their file or they themselves are named on the command line."""
    if "slow" in config.option.markexpr:
        return
    named = _named_files(config)
    left_out = [item for item in items if item.get_closest_marker("slow") and item.path not in named]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def _named_files(config: pytest.Config) -> set[pathlib.Path]:
    """Files that the command line names, alone or before ``::``."""
    named = {config.invocation_params.dir / argument.partition("::")[0] for argument in config.args}
    return {path.resolve() for path in named if path.is_file()}


@functools.cache
def _files_without_fast_tests() -> frozenset[str]:
    return frozenset(file for file, fast in costs.column(costs.PAGE.read_text(), "fast").items() if fast == 0)


@functools.cache
def _uses_ray(file: pathlib.Path) -> bool:
    return ray_session.__name__ in file.read_text()


class WholeFiles(LoadScopeScheduling):
    """All tests of a file in one of xdist's workers, so that what they share is made once.

    All files with actors are one worker's, too, which starts the only Ray.
    """

    def __init__(self, config: pytest.Config, log: Any):
        config.option.loadscopereorder = False  # the order that the tests have
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "actors" if _uses_ray(self.config.rootpath / file) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles | None:
    return WholeFiles(config, log) if config.option.dist == "loadfile" else None


def _file_of(item: pytest.Item) -> str:
    return _name_of(item.path)


def _name_of(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collection creates millions of objects that stay: searching them for garbage takes a fifth of its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Collecting garbage takes a tenth of the time of tests that trace programs; what is there now stays anyway."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 20)


_OF_RAY: list[float] = []
"""CPU seconds of Ray's own processes, which are waited for when it ends: after whatever test is a worker's last."""


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime - sum(_OF_RAY)


_STARTED = pytest.StashKey[float]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    item.stash[_STARTED] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo) -> None:
    """What `tests/costs.py` reads from ``--junitxml``."""
    if call.when == "teardown":
        item.user_properties.append(("cpu_s", round(_cpu_seconds() - item.stash[_STARTED], 3)))
        item.user_properties.append(("marks", " ".join(sorted(mark.name for mark in item.own_markers))))


_MAX_MEMORY_MAPS = 20_000
"""Of 65,530 that Linux gives to a process. Every compiled program takes some, and JAX keeps programs whose function is
gone: without this, a worker that has run a thousand tests would be aborted in the middle of the next compilation."""


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs():
    """After a file of tests, drop compiled programs if there are too many."""
    yield
    maps = pathlib.Path("/proc/self/maps")
    if maps.is_file() and maps.read_text().count("\n") > _MAX_MEMORY_MAPS:
        _LOADED.clear()
        jax.clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def ray_session():
    """Ray, once for all tests that ask for it; the module itself. CPUs are only counted, so there are some to spare."""
    import ray

    # By default actors give way to all other processes: tests would wait for theirs as long as other workers compute.
    os.environ.setdefault("RAY_worker_niceness", "0")
    with warnings.catch_warnings():
        # Ray forks and runs another program at once: JAX's threads do not matter to it.
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    before = _cpu_seconds()
    ray.shutdown()
    _OF_RAY.append(_cpu_seconds() - before)


@pytest.fixture
def forget_loaded_programs():
    """Function that drops the compiled programs which the tests keep for those that build them again."""
    return _LOADED.clear


@pytest.fixture
def fake_ray():
    """`tests.fake_actors.FakeActors`, as which all actors that the library starts meanwhile run."""
    from tests.fake_actors import in_place_of_ray

    with in_place_of_ray() as fake:
        yield fake
