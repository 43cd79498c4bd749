"""Where a file of the repository stands on the site, and links between pages rewritten for it."""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FENCE = re.compile(r"^( *)(`{3,}|~{3,}).*?^\1\2 *$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"(\]\(|src=\"|href=\")([^)\"\s]+)")


@functools.cache
def pages() -> dict[str, str]:
    """``{path in the repository: path on the site}`` of all pages that people have written."""
    found = {path.relative_to(ROOT / "docs").as_posix(): path for path in sorted((ROOT / "docs").rglob("*.md"))}
    table = {path.relative_to(ROOT).as_posix(): name for name, path in found.items()}
    for path in sorted((ROOT / "jaxrl_stack/algorithms").glob("*/README.md")):
        table[path.relative_to(ROOT).as_posix()] = f"algorithms/{path.parent.name}.md"
    for path in sorted((ROOT / "jaxrl_stack").rglob("README.md")):
        room = path.parent.relative_to(ROOT / "jaxrl_stack").as_posix()
        table.setdefault(path.relative_to(ROOT).as_posix(), f"rooms/{room.replace('/', '_')}.md")
    return table | {
        "jaxrl_stack/README.md": "map.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
    }


def place_of(path: str) -> str:
    """The page on the site for a path in the repository; of files and folders without one, a page that shows them."""
    known = pages()
    if path == "README.md":
        return "index.md"
    if path in known:
        return known[path]
    if f"{path}/README.md" in known:
        return known[f"{path}/README.md"]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """The text with what stands outside of code blocks and code marks changed."""

    def prose(part: str) -> str:
        return "".join(change(piece) if is_prose else piece for is_prose, piece in _split(part, CODE))

    return "".join(prose(piece) if is_prose else piece for is_prose, piece in _split(text, FENCE))


def _split(text: str, code: re.Pattern[str]) -> Iterator[tuple[bool, str]]:
    at = 0
    for match in code.finditer(text):
        yield True, text[at : match.start()]
        yield False, match[0]
        at = match.end()
    yield True, text[at:]


def targets(text: str) -> Iterator[str]:
    """Links of a page to other files, with their anchors."""
    found: list[str] = []
    outside_of_code(text, lambda part: found.extend(target for _, target in LINK.findall(part)) or part)
    return (target for target in found if not re.match(r"[a-z]+:|#", target))


def rewritten(text: str, source: str, shown: set[str]) -> str:
    """A page's text with links that hold on the site.

    Args:
        text: Markdown with links relative to the page's place in the repository.
        source: That place.
        shown: Paths of the repository that need a page of their own; those that the text links to are added.
    """
    here = posixpath.dirname(place_of(source))

    def link(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), target.replace("\\_", "_")))
        if not (ROOT / target).exists():
            raise FileNotFoundError(f"{source} links to {match[2]}, which is not there")
        place = place_of(target)
        if place.startswith("source/"):
            shown.add(target)
            mark = anchor = ""
        return f"{match[1]}{os.path.relpath(place, here or '.')}{mark}{anchor}"

    return outside_of_code(text, lambda part: LINK.sub(link, part))
