"""What CONTRIBUTING.md asks of tests, where a program can see it."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).parent
FILES = sorted(path for path in HERE.rglob("*.py") if path != pathlib.Path(__file__))
REPLACING = {"setattr", "delattr", "object"}
"""Last names of functions that replace an attribute: `monkeypatch.setattr`, `mock.patch.object`."""


def path_of(node: ast.AST) -> list[str]:
    """``a.b(0)[1].c`` → ``["a", "b", "c"]``."""
    names: list[str] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.Call):
            node = node.func
        else:
            return names[::-1]
    return [node.id, *names[::-1]]


def below_driver(node: ast.AST) -> list[str] | None:
    """Attributes on the way from a driver to this; None if it is none's."""
    path = path_of(node)
    at = next((i for i, name in enumerate(path) if name.endswith("driver")), None)
    return None if at is None else path[at + 1 :]


def breaches(tree: ast.AST) -> Iterator[str]:
    """Expressions that read what is private to a driver, or that replace something in it."""
    for node in ast.walk(tree):
        names, is_target = below_driver(node) or [], isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        if names and (is_target or any(name.startswith("_") for name in names)):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and path_of(node.func)[-1:] and path_of(node.func)[-1] in REPLACING:
            target = node.args[0] if node.args else node
            named = isinstance(target, ast.Constant) and "_driver." in str(target.value)
            if named or below_driver(target) is not None:
                yield ast.unparse(node)
        if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("driver"):
            yield from (alias.name for alias in node.names if alias.name.startswith("_"))


def test_modules_of_tests_in_folders_have_names_of_their_own():
    """Folders are no packages: pytest imports their modules by the file's name alone and refuses a second one."""
    names = [path.name for path in FILES if path.parent != HERE]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(HERE).as_posix())
def test_drivers_are_seen_from_outside(path):
    assert not list(breaches(ast.parse(path.read_text())))


@pytest.mark.parametrize(
    ("code", "is_breach"),
    [
        ("algo.driver.num_updates", False),
        ("algo._driver", False),
        ("driver.learner.state.params['x']", False),
        ("from jaxrl_stack.execution.device_driver import DeviceDriver", False),
        ("monkeypatch.setattr(algo.metrics, 'set_state', f)", False),
        ("driver = algo.driver", False),
        ("algo.driver._program", True),
        ("algo.driver.replay_buffer._store[0]", True),
        ("make().driver.parts()[0]._x()", True),
        ("algo.driver.num_env_steps = 3", True),
        ("driver.num_env_steps += 3", True),
        ("del driver.kept", True),
        ("monkeypatch.setattr(algo.driver, 'train', f)", True),
        ("monkeypatch.setattr(algo.driver.step.replays['p'], 'get_state', None)", True),
        ("monkeypatch.setattr('jaxrl_stack.execution.device_driver.x', f)", True),
        ("mock.patch.object(driver, 'train')", True),
        ("from jaxrl_stack.execution.device_driver import _program", True),
    ],
)
def test_what_a_breach_is(code, is_breach):
    assert bool(list(breaches(ast.parse(code)))) == is_breach
