"""Marks of the tests, set from what each of them uses: its fixtures, and the names in its code and in its helpers'."""

from __future__ import annotations

import functools
import inspect
import pathlib
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

ROOT = str(pathlib.Path(__file__).parent)
PLAIN = (str, bytes, int, float, bool, type(None))
"""Types of what holds no functions: most of what parameters are."""
OURS = (ROOT, str(pathlib.Path(ROOT).parent / "bench"))
"""Folders whose functions are looked into: the tests', and the benchmarks', which make contenders for them."""

FIXTURES = {"ray": {"ray_session"}}
"""Mark → fixtures, of which a test with this mark uses one."""
NAMES = {
    "process": {"subprocess", "multiprocessing", "nbclient"},
    "trains": {"build_algo", "build_learner", "build_learner_group", "train", "evaluate", "Tuner"}
    | {"SingleAgentEnvRunner", "MultiAgentEnvRunner", "EnvRunnerGroup", "RLModuleSpec", "MultiRLModuleSpec"}
    | {"DefaultPPORLModule", "DefaultDQNRLModule", "DefaultSACRLModule", "GymnaxEnv"}
    | {"LearnerGroup", "reset_config", "make_loop", "learn", "run_seeds", "run_sweep"}
    | {"make_rollout", "run_rllib_example_script_experiment"}
    | {"check_steps", "check_random_steps", "reset_env", "step_env"}  # of suites' environments
    | {"check_jax_env", "GymnasiumFromJax"}  # an environment of which every call is compiled
    | {"exec"},  # examples of pages
    "soak": {"growth"},
}
"""Mark → names, of which a test with this mark has one in its code, its fixtures', its parameters' or its helpers'."""
FILES = {
    "hostile": {"checkpoints/test_hostile.py", "checkpoints/test_kills.py", "datasets/test_hostile_data.py"},
    "trains": {
        "env/test_small_suites.py",  # suites compile what their environments are asked
        "algorithms/dreamerv3/test_golden.py",  # networks of more than one kind, with their gradients
        "algorithms/dreamerv3/test_imagined_video.py",
        "algorithms/dreamerv3/test_module.py",
        "algorithms/dreamerv3/test_true_dynamics.py",
        "algorithms/dreamerv3/test_world_model_learns.py",
        "algorithms/marwil/test_marwil_golden.py",
        "algorithms/test_cql_iql.py",
    },
}
"""Mark → files whose tests all have it."""


def marks_of(path: str, fixtures: Iterable[str], code: Iterable[Any]) -> set[str]:
    """Marks of a test; "fast" if it has no other.

    Args:
        path: Its file, relative to this folder.
        fixtures: Names of all fixtures that it uses.
        code: Its function, those of its fixtures, and its parameters.
    """
    fixtures = set(fixtures)
    names = set().union(*map(names_below, reachable(code)))
    marks = {mark for mark, files in FILES.items() if path in files}
    marks |= {mark for mark, wanted in FIXTURES.items() if wanted & fixtures}
    marks |= {mark for mark, wanted in NAMES.items() if wanted & names}
    return marks or {"fast"}


def reachable(things: Iterable[Any]) -> list[types.FunctionType]:
    """Functions that these things are or hold; what those mention is looked for by `names_below`."""
    waiting, seen, functions = list(things), set(), []
    while waiting:
        thing = waiting.pop()
        if type(thing) in PLAIN or id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            if _is_ours(thing):
                functions.append(thing)
        else:
            waiting += _children(thing)
    return functions


@functools.cache
def names_below(function: types.FunctionType) -> frozenset[str]:
    """Names in a function's code and in that of all functions that it mentions, directly or not."""
    waiting, seen = [function], {function}
    while waiting:
        found = _mentioned(waiting.pop()) - seen
        seen |= found
        waiting += found
    return frozenset().union(*map(names_in, seen))


@functools.cache
def names_in(function: types.FunctionType) -> frozenset[str]:
    """Names of globals, modules and attributes in a function's code."""
    names, waiting = set(), [function.__code__]
    while waiting:
        code = waiting.pop()
        names.update(code.co_names)
        waiting += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    return frozenset(names)


def _children(thing: Any) -> Iterator[Any]:
    if isinstance(thing, list | tuple | set | frozenset):
        yield from thing
    elif isinstance(thing, dict):
        yield from thing.values()
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, staticmethod | classmethod | types.MethodType):
        yield thing.__func__
    elif isinstance(thing, property):
        yield thing.fget
    elif isinstance(thing, type):
        if _is_ours(thing):
            yield from vars(thing).values()
            yield from thing.__bases__
    elif hasattr(thing, "__wrapped__"):  # functools.cache, fixtures
        yield inspect.unwrap(thing)


@functools.cache
def _mentioned(function: types.FunctionType) -> frozenset[types.FunctionType]:
    """Functions that one mentions, itself or by what holds them; looked for once, however many tests use it."""
    own = function.__globals__
    spaces = [own, *(vars(own[name]) for name in _modules_of_ours(function.__module__))]
    mentioned = [space[name] for name in names_in(function) for space in spaces if name in space]
    mentioned += [cell.cell_contents for cell in function.__closure__ or () if cell != types.CellType()]
    mentioned += [*(function.__defaults__ or ()), getattr(function, "__wrapped__", None)]
    return frozenset(reachable(mentioned))


@functools.cache
def _modules_of_ours(module: str) -> list[str]:
    """Names by which a module knows other ones of ours."""
    names = vars(sys.modules[module]).items()
    return [name for name, thing in names if isinstance(thing, types.ModuleType) and _is_ours(thing)]


def _is_ours(thing: Any) -> bool:
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    else:
        module = thing if isinstance(thing, types.ModuleType) else sys.modules.get(thing.__module__)
        file = getattr(module, "__file__", None) or ""
    return file.startswith(OURS)
