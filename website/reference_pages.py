"""The reference of names: examples are written in docs/reference/, signatures and docstrings come from the code."""

from __future__ import annotations

import re

from website.links import ROOT

NAMES = ROOT / "docs/reference/names.txt"
HEADING = re.compile(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)


def names() -> dict[str, str]:
    """``{name: dotted path}`` of what the reference has to hold."""
    paths = [line.strip() for line in NAMES.read_text().splitlines() if line.strip() and not line.startswith("#")]
    table = {path.rpartition(".")[2]: path for path in paths}
    if len(table) != len(paths):
        raise ValueError(f"{NAMES} has a name twice.")
    return table


def with_docstrings(text: str) -> str:
    """A page of the reference with signature and docstring after the example of each name."""
    paths = names()

    def entry(match: re.Match[str]) -> str:
        name, body = match[1], match[2].rstrip()
        return f"## `{name}`\n{body}\n\n::: {paths[name]}\n\n" if name in paths else match[0]

    return HEADING.sub(entry, text)
