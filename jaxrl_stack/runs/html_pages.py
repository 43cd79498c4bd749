"""HTML pages of reports, inspections and tournaments. They need no server and no network."""

from __future__ import annotations

import html
import os
from pathlib import Path


def html_page(heading: str, body: str) -> str:
    """Formats an HTML page in the style of reports, with a heading.

    Args:
        heading: Heading and title, as text.
        body: HTML below the heading; see `html_section`.
    """
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(heading)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{html.escape(heading)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def html_section(name: str, content: str) -> str:
    """Formats a section of an HTML page, with a heading; "" if `content` is empty."""
    return f"<section>\n<h2>{name}</h2>\n{content}\n</section>" if content else ""


def write_text(text: str, path: str | os.PathLike[str] | None) -> str:
    """Writes a text to a file, unless `path` is None; returns the text. Missing folders are created."""
    if path is not None:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return text


_STYLE = """
:root { color-scheme: light; --line: #dcdfe4; --soft: #5b6470; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f7f9; color: #1c2127; font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 1.2rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .3rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .8rem; }
section, .tiles { background: #fff; border: 1px solid var(--line); border-radius: 10px; padding: 1rem; margin: 1rem 0; }
.when { color: var(--soft); margin: 0; overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(125px, 1fr)); gap: .8rem; }
.tiles b { display: block; font-size: 1.35rem; }
.tiles span { color: var(--soft); font-size: .82rem; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 300px), 1fr)); gap: .8rem; }
figure { margin: 0; }
figure.main { max-width: 760px; margin: 0 auto; }
figure > svg { display: block; width: 100%; height: auto; }
.video img, .video video { display: block; max-width: 100%; height: auto; margin: 0 auto; border-radius: 6px; }
.findings { list-style: none; margin: 0; padding: 0; }
.findings li { border-left: 4px solid; padding: .2rem 0 .2rem .8rem; margin: .6rem 0; overflow-wrap: anywhere; }
.findings .problem { border-color: #d55e00; }
.findings .hint { border-color: #e69f00; }
.bar { display: flex; height: 1.4rem; border-radius: 6px; overflow: hidden; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.2rem; padding: 0; margin: .6rem 0; }
.legend i { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .6rem .3rem 0; border-top: 1px solid var(--line); }
td { min-width: 4.5rem; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: .84rem; }
td:first-child { min-width: 8.5rem; }
pre { background: #f0f2f5; border-radius: 6px; padding: .7rem; margin: .4rem 0; font-size: .84rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
summary { cursor: pointer; }
"""
