"""The pages of the site, assembled below ``build/pages`` from docs/, the READMEs of the package, and the code."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from pathlib import Path

from website import links, parity_tables, reference_pages, search, settings_pages
from website.links import ROOT

PAGES = ROOT / "build/pages"
MARKS = re.compile(r"^<!-- (?:run|excerpt)\b.*?-->\n", re.MULTILINE)
TABS = re.compile(r"^<!-- tab: .*?^<!-- end of tabs -->\n", re.DOTALL | re.MULTILINE)
MATHS = re.compile(r"\$\$(.+?)\$\$|\$(?=\S)(.+?)(?<=\S)\$", re.DOTALL)


def with_formulas(text: str) -> str:
    """TeX between dollar signs as MathML, which browsers draw without a script or a font of anybody's."""
    if "$" not in text:
        return text
    from latex2mathml.converter import convert

    def formula(match: re.Match[str]) -> str:
        source = " ".join((match[1] or match[2]).split())
        source = re.sub(r"\\(?:[bB]ig+[lr]?)(?![a-zA-Z])", "", source).replace(r"\text{clip}", r"\operatorname{clip}")
        made = convert(source, display="block" if match[1] else "inline")
        return f'<div class="formula">{made}</div>' if match[1] else made

    return links.outside_of_code(text, lambda part: MATHS.sub(formula, part))


def with_tabs(text: str) -> str:
    """Parts between ``<!-- tab: NAME -->`` and ``<!-- end of tabs -->`` as tabs; on GitHub one is below the other."""

    def tabs(match: re.Match[str]) -> str:
        _, *parts = re.split(r"^<!-- (?:tab: (.*?)|end of tabs) -->\n", match[0], flags=re.MULTILINE)[:-2]
        return "".join(
            f'=== "{name}"\n\n{textwrap.indent(body.strip(), " " * 4)}\n\n'
            for name, body in zip(parts[::2], parts[1::2], strict=True)
        )

    return TABS.sub(tabs, text)


def source_page(path: str) -> str:
    """A page that shows a file, or names the modules of a folder."""
    file = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if file.is_dir():
        readme = file / "README.md"
        if readme.exists():
            body = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", readme.read_text())
            return head + re.sub(r"^# .*\n", "", body, count=1)
        lines = [f"`{path}/` in the repository:\n"]
        for module in sorted(file.glob("*.py")):
            doc = (ast.get_docstring(ast.parse(module.read_text())) or "").split("\n")[0]
            lines.append(f"* `{module.name}`{': ' if doc else ''}{doc}")
        lines += [f"* `{other.name}`" for other in sorted(file.glob("*.ipynb"))]
        return head + "\n".join(lines) + "\n"
    language = {".py": "python", ".toml": "toml", ".sh": "bash"}.get(file.suffix, "text")
    return f"{head}````{language}\n{file.read_text().rstrip()}\n````\n"


def assemble(target: Path = PAGES) -> dict[str, str]:
    """Write all pages and what they show.

    Returns:
        ``{path on the site: text}`` of the pages, in the order of `links.pages`.
    """
    shutil.rmtree(target, ignore_errors=True)
    shown: set[str] = set()
    texts: dict[str, str] = {}
    for source, place in links.pages().items():
        text = links.rewritten((ROOT / source).read_text(), source, shown)
        text = parity_tables.with_tables(with_tabs(MARKS.sub("", text)))
        if place.startswith("reference/"):
            text = reference_pages.with_docstrings(text)
        texts[place] = text
    texts |= settings_pages.pages()
    written = {place: search.with_boost(place, with_formulas(text)) for place, text in texts.items()}
    written |= {links.place_of(path): source_page(path) for path in sorted(shown)}
    for place, text in written.items():
        (target / place).parent.mkdir(parents=True, exist_ok=True)
        (target / place).write_text(text)
    for path in sorted((ROOT / "docs").rglob("*")):
        if path.is_file() and path.suffix != ".md":
            copy = target / path.relative_to(ROOT / "docs")
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
    return texts
