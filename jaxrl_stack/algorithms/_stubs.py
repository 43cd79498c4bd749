"""Writes the type stubs of the config modules: ``python -m jaxrl_stack.algorithms._stubs``.

The fluent methods and the settings exist at run time only, made from the declarations; editors and type
checkers read them from the ``.pyi`` files beside the modules. Everything else in a stub is the module's own
source without bodies.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pathlib
import sys
import textwrap
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from jaxrl_stack.algorithms.fluent_methods import signature
from jaxrl_stack.algorithms.settings import Declarations

MODULES = (
    "jaxrl_stack.algorithms.algorithm_config",
    "jaxrl_stack.algorithms.off_policy",
    "jaxrl_stack.algorithms.appo.appo",
    "jaxrl_stack.algorithms.bc.bc",
    "jaxrl_stack.algorithms.cql.cql",
    "jaxrl_stack.algorithms.dqn.dqn",
    "jaxrl_stack.algorithms.dreamerv3.dreamerv3",
    "jaxrl_stack.algorithms.impala.impala",
    "jaxrl_stack.algorithms.iql.iql",
    "jaxrl_stack.algorithms.marwil.marwil",
    "jaxrl_stack.algorithms.ppo.ppo",
    "jaxrl_stack.algorithms.pqn.pqn",
    "jaxrl_stack.algorithms.sac.sac",
    "jaxrl_stack.algorithms.td3.td3",
    "jaxrl_stack.algorithms.tqc.tqc",
)

HEADER = """\
# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
"""
# What the annotations of settings name.
IMPORTS = """\
import os
from collections.abc import Callable, Collection
from typing import Any, Literal, Never, TypeVar
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec
_Config = TypeVar("_Config")
"""

# Configs of algorithms have the settings that their stubs list; code for any algorithm reads an `AlgorithmConfig`.
NO_OTHER_NAMES = """\
def __getattr__(self, name: Never) -> Never: ...  # type: ignore
def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore"""


def path_of(module: ModuleType) -> pathlib.Path:
    """Path of a module's stub file (.pyi)."""
    return pathlib.Path(inspect.getsourcefile(module) or "").with_suffix(".pyi")


def render(module: ModuleType) -> str:
    """Renders the type stub (the text of the .pyi file) of a config module."""
    blocks = [HEADER + IMPORTS]
    for node in _flat(ast.parse(inspect.getsource(module)).body):
        blocks.append(_class(node, getattr(module, node.name)) if isinstance(node, ast.ClassDef) else _member(node))
    return "\n".join(block for block in blocks if block) + "\n"


def _flat(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Returns the top-level statements of a Python file, with each ``if TYPE_CHECKING:`` block replaced by its body."""
    flat: list[ast.stmt] = []
    for node in nodes:
        is_guard = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        flat += node.body if is_guard and isinstance(node, ast.If) else [node]
    return flat


def _member(node: ast.stmt) -> str:
    match node:
        case ast.ImportFrom(module="__future__"):
            return ""
        case ast.Import() | ast.ImportFrom():
            return ast.unparse(node)
        case ast.FunctionDef():
            node.body = [ast.Expr(ast.Constant(...))]
            return ast.unparse(node)
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return ast.unparse(node)
        case ast.Assign(targets=[ast.Name(id="__getattr__")]):
            return ""  # It would let every misspelt name pass.
        case ast.Assign(targets=[ast.Name(id=name)]):
            return f"{name}: Any"
        case ast.AnnAssign():
            return f"{ast.unparse(node.target)}: {ast.unparse(node.annotation)}"
        case _:
            return ""


def _class(node: ast.ClassDef, cls: type) -> str:
    members = []
    declarations = getattr(cls, "_declarations", None)
    if declarations is not None:
        own = vars(cls).get("_sections", ())
        for setting in (setting for section in own for setting in section.settings):
            # A method or a property of that name stays what it is.
            names = dict.fromkeys((setting.attribute, setting.name))
            members += [f"{name}: {setting.type}" for name in names if not hasattr(cls, name)]
        members += [_fluent(declarations, section.name) for section in own]
        if cls().algo_class is not None:
            members.append(NO_OTHER_NAMES)
    members += _defaults(vars(cls))
    for child in _flat(node.body):
        members.append(_member(child))
        name = getattr(child, "name", "")
        setting = None if declarations is None else declarations.by_name.get(name)
        # Settings that are read through a property are set like all others.
        if setting is not None and isinstance(getattr(cls, name), property):
            members.append(f"@{name}.setter\ndef {name}(self, value: {setting.type}) -> None: ...")
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    head = f"class {node.name}({bases}):" if bases else f"class {node.name}:"
    return head + "\n" + textwrap.indent("\n".join(member for member in members if member), "    ")


def _defaults(own: Mapping[str, Any]) -> list[str]:
    """Stub lines of `get_default_rl_module_spec` and `get_default_config`, with narrower return types than in the base
    class.

    Leaves out the first method if the class itself sets no default module, and the second one if the class itself sets
    no default config.
    """
    members = []
    if own.get("_default_module_class") is not None:
        members.append("def get_default_rl_module_spec(self) -> RLModuleSpec: ...")
    if "_default_config_class" in own:
        config_class = own["_default_config_class"].__name__
        members.append(f"@classmethod\ndef get_default_config(cls) -> {config_class}: ...")
    return members


def _fluent(declarations: Declarations, section: str) -> str:
    settings = declarations.in_section(section)
    # Not `Self`: editors that ask jedi would lose the names of subclasses after the first call of a chain.
    parameters = ["self: _Config"]
    for parameter in list(signature(settings).parameters.values())[1:]:
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        parameters.append(f"{parameter.name}: {parameter.annotation} | type[NotProvided] = ...")
    return f"def {section}(\n    " + ",\n    ".join(parameters) + ",\n) -> _Config: ..."


def main() -> None:
    """Writes the type stubs (.pyi files) of all config modules."""
    for name in MODULES:
        module = importlib.import_module(name)
        path_of(module).write_text(render(module))
        sys.stdout.write(f"wrote {path_of(module).name}\n")


if __name__ == "__main__":
    main()
