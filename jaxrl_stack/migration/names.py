"""Replacements of RLlib's names: the table in ``names.json``, a rule for PyTorch names, and checks of imports."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import json
import re
import warnings
from typing import Any, NamedTuple

PAGE = "docs/coming_from_rllib.md"


class Target(NamedTuple):
    """Replacement of an RLlib name in this package, or the reason why the name cannot be used.

    Attributes:
        module: Module to import it from; empty for a name that is a module itself.
        name: Name in that module.
        problem: Reason why it cannot be used; empty if it can.
        can_be_imported: Whether the import works, even if the use does not.
    """

    module: str
    name: str
    problem: str = ""
    can_be_imported: bool = True


@functools.cache
def table(section: str) -> dict[str, str]:
    """Reads a section of ``names.json`` in this folder. Returns ``{name of RLlib or PyTorch: replacement}``."""
    text = importlib.resources.files(__name__.rpartition(".")[0]).joinpath("names.json").read_text(encoding="utf-8")
    return json.loads(text)[section]


def is_rllibs(full: str) -> bool:
    """Whether a full name is in RLlib, or in another module of Ray for which this package has a replacement."""
    return any(full == module or full.startswith(f"{module}.") for module in table("modules"))


@functools.cache
def module_here(module: str) -> str:
    """Full name of the module of this package, such as ``jaxrl_stack.algorithms.ppo``, that corresponds to a module of
    RLlib. A module with this name may not exist.
    """
    known = [name for name in table("modules") if module == name or module.startswith(f"{name}.")]
    longest = max(known, key=len)
    return table("modules")[longest] + module.removeprefix(longest)


@functools.cache
def target_of(module: str, name: str) -> Target:
    """Returns the module and name to import from this package instead of RLlib's ``from module import name``.

    If the name cannot be used, the result also contains the reason.

    Args:
        module: A module of RLlib.
        name: A name in it, or a module in it.
    """
    listed = table("names").get(f"{module}.{name}")
    if listed is not None:
        place, _, today = listed.rpartition(".")
        return Target(place, today)
    here = module_here(module)
    # A path of PyTorch's classes: the same without the word.
    there = re.sub(r"\.torch(?=\.|$)", "", here)
    plain = re.sub(r"(?<=[._])torch_|_torch(?=_)", "", there)
    candidates = [(here, name), (here, _without_torch(name)), (plain, _without_torch(name))]
    problems = []
    for candidate in dict.fromkeys(candidates):
        problem = why_not(*candidate)
        if not problem:
            return Target(*candidate)
        problems.append(problem)
    if ".examples." in f"{here}." or ".tuned_examples." in f"{here}.":
        place = module.removeprefix("ray.").replace(".", "/")
        problems[0] = f"copy {place} of RLlib beside this script, migrate it, and import from there."
    return Target(here, name, problems[0], can_be_imported=_can_be_imported(here, name))


def _without_torch(name: str) -> str:
    return name.replace("Torch", "") or name


@functools.cache
def why_not(module: str, name: str = "") -> str:
    """Reason why a module or name of this package cannot be imported or used; "" if it can.

    Args:
        module: A module of this package.
        name: A name in it; empty for the module itself.
    """
    try:
        return _comes_later(module, name)
    except ImportError as error:
        return " ".join(str(error).split())


def _can_be_imported(module: str, name: str) -> bool:
    try:
        _comes_later(module, name)
    except ImportError:
        return False
    return True


def _comes_later(module: str, name: str) -> str:
    """Returns the error message that an unsupported class of this package raises when it is used; "" for supported
    names.

    Raises:
        ImportError: If the module or name does not exist.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value: Any = importlib.import_module(module)
        if name and name != "*":
            value = getattr(value, name) if hasattr(value, name) else importlib.import_module(f"{module}.{name}")
    return str(vars(value).get("comes_later", "")) if isinstance(value, type) else ""
