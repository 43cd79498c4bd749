"""The site's sources: every setting and name has its place, and examples of the reference run.

The built pages, their links and their looks are checked by ``.ci/site``, which has the tools for them.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from website import assemble, links, reference_pages, settings_pages
from website.__main__ import navigation

ROOT = Path(__file__).parents[1]
REFERENCE = sorted((ROOT / "docs/reference").glob("*.md"))
TERMS = (
    "hyperparameter",
    "vectorized",
    "reproducible",
    "early stopping",
    "lr schedule",
    "frame stack",
    "resume",
    "onnx",
)


def examples(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE))


def test_every_setting_stands_once_on_the_page_of_all_algorithms():
    page = settings_pages.pages()["settings/all.md"]
    assert sorted(re.findall(r"\{ #(\w+) \}", page)) == sorted(settings_pages.shared().by_name)


def test_settings_of_an_algorithm_are_those_that_it_adds_or_changes():
    page = settings_pages.pages()["settings/ppo.md"]
    row = next(line for line in page.splitlines() if line.startswith("| `clip_param`"))
    assert row.endswith("| `0.3` <br> traced |") and "{ #evaluation_interval }" not in page


def test_the_meaning_of_a_setting_stands_under_its_name():
    page = settings_pages.pages()["settings/all.md"]
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert len(rows) == len(settings_pages.shared().by_name) and all(line.count(" | ") == 1 for line in rows)
    (row,) = (line for line in rows if line.startswith("| `num_envs_per_env_runner`"))
    assert row.startswith("| `num_envs_per_env_runner`{ #num_envs_per_env_runner } <br> ")


def test_every_name_of_the_reference_has_an_example_and_exists():
    entries = {}
    for page in REFERENCE:
        entries |= {name: body for name, body in reference_pages.HEADING.findall(page.read_text())}
    names = reference_pages.names()
    assert len(names) >= 60 and entries.keys() == names.keys()
    for name, path in names.items():
        assert "```python" in entries[name], name
        assert getattr(import_module(path.rpartition(".")[0]), name).__doc__, path


def test_every_page_has_its_place_in_the_navigation():
    pages = {*links.pages().values(), *settings_pages.pages()}
    assert sorted(navigation()) == sorted(pages), "name the page in mkdocs.yml"


def test_links_out_of_docs_lead_to_pages_of_the_site():
    shown: set[str] = set()
    sac = "../jaxrl_stack/algorithms/sac/README.md#settings"
    text = f"[map](../jaxrl_stack/README.md), [SAC]({sac}), `[no](link.md)`, [e](../envs/)"
    there = links.rewritten(text, "docs/guide.md", shown)
    assert there == "[map](map.md), [SAC](algorithms/sac.md#settings), `[no](link.md)`, [e](source/envs/index.md)"
    assert shown == {"envs"}
    with pytest.raises(FileNotFoundError, match="gone"):
        links.rewritten("[x](gone.md)", "docs/guide.md", shown)


def test_blocks_between_marks_become_tabs():
    tabs = "<!-- tab: JAX -->\n```python\nx = 1\n```\n\n<!-- tab: gymnasium -->\nText.\n<!-- end of tabs -->\n"
    page = f"Before.\n\n{tabs}\nAfter.\n"
    assert assemble.with_tabs(page) == (
        'Before.\n\n=== "JAX"\n\n    ```python\n    x = 1\n    ```\n\n=== "gymnasium"\n\n    Text.\n\n\nAfter.\n'
    )


def test_newcomers_words_are_on_the_pages():
    text = "\n".join(page.read_text() for page in (ROOT / "docs").glob("*.md")).lower()
    assert [term for term in TERMS if term not in text] == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_begins_with_what_its_reader_can_do(page):
    first = page.read_text().split("\n\n")[1]
    assert re.match(r"[A-Z][a-z]+[ ,]", first) and not re.match("What |How |This page ", first), first


@pytest.mark.parametrize("page", ["environments", "modules"])
def test_examples_of_the_reference_run(page, tmp_path, monkeypatch):
    """Those that compile whole algorithms run in ``site_tests/``."""
    monkeypatch.chdir(tmp_path)
    code = examples(ROOT / f"docs/reference/{page}.md")
    exec(compile(code, f"{page}.md", "exec"), {"__name__": page})
