"""Tables as text, Markdown, HTML and LaTeX."""

from __future__ import annotations

import html
from collections.abc import Sequence

from jaxrl_stack.runs.terminal import table_text

TABLE_FORMATS = ("text", "md", "html", "latex", "json")
"""Names of formats; who has a table makes its JSON."""

_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "…": r"\dots{}"}
_LATEX |= {character: rf"\{character}" for character in "&%$#_{}"}
_LATEX |= {"|": r"\textbar{}", "×": r"$\times$", ">": r"$>$", "<": r"$<$"}


def check_format(name: str) -> None:
    """Raises ValueError if `name` is not a supported table format, such as ``"html"``.

    Raises:
        ValueError: If `name` is not in `TABLE_FORMATS`.
    """
    if name not in TABLE_FORMATS:
        raise ValueError(f"format={name!r}: must be one of {', '.join(map(repr, TABLE_FORMATS))}.")


def formatted_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], format: str, notes: Sequence[str] = ()
) -> str:
    """Formats a table as text, Markdown, HTML or LaTeX, with notes below.

    Args:
        header: Names of the columns.
        rows: Cells of each row.
        format: "text", "md", "html" or "latex".
        notes: Lines below the table.
    """
    if format == "md":
        return "\n".join(["\n".join(_markdown(header, rows)), *(f"\n{_escaped_markdown(note)}" for note in notes)])
    if format == "html":
        lines = ["<table>", _html_row(header, "th"), *(_html_row(row, "td") for row in rows), "</table>"]
        return "\n".join([*lines, *(f"<p>{html.escape(note)}</p>" for note in notes)])
    if format == "latex":
        return "\n".join([*_latex(header, rows), *(f"\n{_escaped_latex(note)}" for note in notes)])
    return "\n".join([table_text(header, rows), *([""] if notes else []), *notes])


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return ["| " + " | ".join(map(_escaped_markdown, line)) + " |" for line in lines]


def _escaped_markdown(text: str) -> str:
    for character in "|*_<":
        text = text.replace(character, f"\\{character}")
    return text


def _html_row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _latex(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [" & ".join(map(_escaped_latex, row)) + r" \\" for row in (header, *rows)]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}"
    return [begin, r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]


def _escaped_latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)
