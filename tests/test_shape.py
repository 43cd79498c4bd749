"""Functions, files and classes stay of a size that can be read; what is larger today stands by name, and shrinks only.

`python tests/test_shape.py` takes shrunken sizes over into reference/shape.json; it never raises one.
"""

from __future__ import annotations

import ast
import functools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("jaxrl_stack", "envs", "bench")
EXCEPTIONS = Path(__file__).parent / "reference" / "shape.json"
LIMITS = {"lines of a function": 60, "lines of a file": 600, "methods of a class": 40}


def sizes_of(tree: ast.AST, path: str, num_lines: int) -> Iterator[tuple[str, str, int]]:
    """``(kind, name, size)`` of a file, and of its functions and classes, which are named by where they stand."""
    yield "lines of a file", path, num_lines

    def visit(node: ast.AST, prefix: str) -> Iterator[tuple[str, str, int]]:
        for child in ast.iter_child_nodes(node):
            name = f"{prefix}.{child.name}" if hasattr(child, "name") and isinstance(child, ast.stmt) else prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield "lines of a function", f"{path}:{name[1:]}", (child.end_lineno or 0) - child.lineno + 1
            if isinstance(child, ast.ClassDef):
                methods = [own for own in child.body if isinstance(own, ast.FunctionDef | ast.AsyncFunctionDef)]
                yield "methods of a class", f"{path}:{name[1:]}", len(methods)
            yield from visit(child, name)

    yield from visit(tree, "")


@functools.cache
def too_large() -> dict[str, dict[str, int]]:
    """What is above the limits, ``{kind: {name: size}}``."""
    found: dict[str, dict[str, int]] = {kind: {} for kind in LIMITS}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text()
            for kind, name, size in sizes_of(ast.parse(text), path.relative_to(ROOT).as_posix(), text.count("\n")):
                if size > LIMITS[kind]:
                    # Overloads and setters have one name: the largest counts.
                    found[kind][name] = max(size, found[kind].get(name, 0))
    return found


def exceptions() -> dict[str, dict[str, int]]:
    """The sizes that were too large already, ``{kind: {name: size}}``."""
    return json.loads(EXCEPTIONS.read_text())


@pytest.mark.parametrize("kind", LIMITS)
def test_what_is_new_is_small_and_what_is_large_only_shrinks(kind):
    found, known = too_large()[kind], exceptions()[kind]
    grown = {name: size for name, size in found.items() if size > known.get(name, LIMITS[kind])}
    assert not grown, f"More than {LIMITS[kind]} {kind}, or more than before: split what does two jobs. {grown}"
    shrunk = {name: (size, found.get(name)) for name, size in known.items() if found.get(name) != size}
    assert not shrunk, f"Smaller than before: run python {Path(__file__).name}, and it stays so. {shrunk}"


def test_sizes_are_found_where_they_are():
    source = "class A:\n    def f(self):\n        def g():\n            pass\n\n    async def h(self): ...\n"
    assert set(sizes_of(ast.parse(source), "a.py", 7)) == {
        ("lines of a file", "a.py", 7),
        ("methods of a class", "a.py:A", 2),
        ("lines of a function", "a.py:A.f", 3),
        ("lines of a function", "a.py:A.f.g", 2),
        ("lines of a function", "a.py:A.h", 1),
    }


def main() -> None:
    """Lower the exceptions to what is found, and leave out those that are none any more."""
    found, known = too_large(), exceptions()
    lowered = {
        kind: {name: min(size, found[kind][name]) for name, size in known[kind].items() if name in found[kind]}
        for kind in LIMITS
    }
    EXCEPTIONS.write_text(json.dumps(lowered, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
