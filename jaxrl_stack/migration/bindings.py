"""Resolves the names in a script to full names, such as ``nn`` to ``torch.nn``."""

from __future__ import annotations

import ast
from typing import Any


class Bindings:
    """Names that the imports of a script define, with their full names, such as ``nn`` with ``torch.nn``.

    Args:
        tree: The script.

    Attributes:
        full: Name in the script → full name, such as ``{"nn": "torch.nn"}``.
        assigned: Names to which the script assigns other values.
    """

    def __init__(self, tree: ast.Module):
        self.full: dict[str, str] = {}
        self.assigned: set[str] = set()
        for node in ast.walk(tree):
            self._look_at(node)
        self.assigned -= {name for name, full in self.full.items() if full in ("torch", "torch.nn")}

    def _look_at(self, node: ast.AST) -> None:
        match node:
            case ast.Import():
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    self.full[alias.asname or first] = alias.name if alias.asname else first
            case ast.ImportFrom(level=0, module=str(module)):
                for alias in node.names:
                    self.full[alias.asname or alias.name] = f"{module}.{alias.name}"
            case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Call(func=function)) if is_try_import(function):
                for name, full in zip(names, ("torch", "torch.nn"), strict=False):
                    if isinstance(name, ast.Name) and name.id != "_":
                        self.full[name.id] = full
            case ast.Name(ctx=ast.Store() | ast.Del(), id=name):
                self.assigned.add(name)
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                self.assigned.add(name)

    def resolve(self, node: Any) -> str:
        """Full name of a name or attribute chain in a script, such as ``torch.nn`` for ``nn``; "" for other
        expressions.
        """
        if isinstance(node, ast.Name):
            return self.full.get(node.id, "")
        if isinstance(node, ast.Attribute):
            before = self.resolve(node.value)
            return f"{before}.{node.attr}" if before else ""
        return ""


def is_try_import(function: ast.AST) -> bool:
    """Whether a function is RLlib's ``try_import_torch``."""
    return getattr(function, "id", getattr(function, "attr", "")) == "try_import_torch"


def root_of(node: Any) -> ast.Name | None:
    """First name of a chain of attributes, such as ``a`` in ``a.b.c``; None if another expression is first."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node if isinstance(node, ast.Name) else None
