"""Pages and docstrings of the reference keep to the rule of words in CONTRIBUTING.md."""

from __future__ import annotations

import ast
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]
PAGES += sorted(ROOT.glob("jaxrl_stack/**/README.md"))
NAMES = [
    line for line in (ROOT / "docs/reference/names.txt").read_text().splitlines() if line and not line.startswith("#")
]
START = r"(?:\A|[.:!?]\s+|\|\s*|\n\s*\n|^\s*(?:[-*]|\d+\.|#+)\s+)\**"
"""Begins a sentence: of a text, after another one, in a cell, a paragraph, an item or a heading."""
REFUSED = re.compile(
    rf"(?i:\b(?:that\s+of|those\s+of|goes\s+on|so\s+many|whoever|somebody)\b)|{START}What\b(?![^.?]*\?)", re.MULTILINE
)


def refused(text: str) -> list[str]:
    """Refused words of a text, code left out, each with the words around it."""
    text = re.sub(r"^```.*?^```$|`[^`\n]+`|\]\([^)]*\)", "-", text, flags=re.DOTALL | re.MULTILINE)
    return [" ".join(text[max(0, m.start() - 40) : m.end() + 40].split()) for m in REFUSED.finditer(text)]


ROOMS = ("callbacks", "connectors", "policy", "runs", "tune", "videos")
ROOMS += ("acting", "core/distribution", "core/learner", "core/rl_module", "episodes")
"""Rooms whose public docstrings all keep to the rule: first those of which users read all modules."""


def of_rooms() -> Iterator[tuple[str, str]]:
    """Modules of these rooms with their public classes, functions and methods, with their docstrings."""
    for path in (path for room in ROOMS for path in sorted((ROOT / "jaxrl_stack" / room).rglob("*.py"))):
        yield from public(ast.parse(path.read_text()), path.relative_to(ROOT).as_posix())


def public(node: ast.Module | ast.ClassDef | ast.FunctionDef, name: str) -> Iterator[tuple[str, str]]:
    """A node and the public ones in it."""
    yield name, ast.get_docstring(node) or ""
    for each in node.body if not isinstance(node, ast.FunctionDef) else []:
        if isinstance(each, ast.ClassDef | ast.FunctionDef) and not each.name.startswith("_"):
            yield from public(each, f"{name}: {each.name}")


def documented(name: str) -> Iterator[tuple[str, str]]:
    """A name of the reference and its public methods, with their docstrings."""
    module, _, name = name.rpartition(".")
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            yield from public(node, name)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_avoid_refused_words(path):
    assert refused(path.read_text()) == []


READ_TWICE = (
    "a dict over all of", "says that this step was its last", "says who acts on the observations",
    "a step of an agent is one from its act", "Returns of an environment are checked", "leaves what it draws as it is",
    "observes what the environment returns, without", "an end of the environment's own", "is asked before there is",
    "The worth of a policy", "appear under their names", "stands a row with", "Of a deterministic expert",
    "have these in them", "asks for the other", "none sees another", "that one small network leaves idle",
    "makes a member for each", "has to have the bits", "say what each stage costs", "were behind those that learned",
    "is let go of", "takes the others' curves", "that it stands for would leave it", "forgets how poles fall",
    "what comes after what", "sees through them", "none is still there", "unless told otherwise",
    "accelerator waits for the environments",
    "Every key is there from the first", "its attributes, not in checkpoints", "is opaque but for",
    "without a trace", "said once, and learned from", "ask for the class", "shows a bit, and asks",
    "reach them where they are", "against the verbs of a", "is one alone",
    "would be evaluated on", "weights of then and", "by what it sampled",
    "go in as the environment gives them", "sets what is known to learn there", "what differs in those alone",
    "grows along", "is heeded by both drivers", "takes over what hangs", "counts with its last value to the end",
    "asks a world model alone", "Ways that no recorded episode", "held down where nothing was recorded",
    "moves by the KL of", "is more likely an end than not", "have no such column", "algorithms learn from data",
    "hand both over", "Nothing compiles", "of them without it",
)  # fmt: skip
"""Parts of sentences that readers had to read twice; pages say these things in another way."""


def test_pages_have_no_sentence_that_was_read_twice():
    texts = {path: " ".join(path.read_text().split()) for path in [*PAGES, ROOT / "jaxrl_stack/runs/diagnoses.py"]}
    found = [(path.name, part) for path, text in texts.items() for part in READ_TWICE if part in text]
    assert not found


def test_docstrings_of_the_reference_avoid_refused_words():
    docstrings = [found for name in NAMES for found in documented(name)]
    assert {name.partition(":")[0] for name, _ in docstrings} == {name.rpartition(".")[2] for name in NAMES}
    assert {name: refused(text) for name, text in docstrings if refused(text)} == {}


def test_docstrings_of_rooms_avoid_refused_words():
    docstrings = list(of_rooms())
    assert len(docstrings) > 1200
    assert {name: refused(text) for name, text in docstrings if refused(text)} == {}


@pytest.mark.parametrize(
    "text",
    ["The loss is\nthat of PPO.", "It ends. What is left stays.", "# What runs", "| **What** it is |", "It goes on."],
)
def test_refused_words_are_found(text):
    assert len(refused(text)) == 1


def test_questions_and_code_are_left_alone():
    assert refused("What is a policy? It acts on what it sees.\n`those of` stay.\n```\nIt goes on.\n```\n") == []
