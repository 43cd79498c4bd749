"""Tables as text, Markdown, HTML and LaTeX."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from jaxrl_stack.runs.terminal import number_text, table_text
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    import pandas

TABLE_FORMATS = ("text", "md", "html", "latex", "json")
"""Names of formats; who has a table makes its JSON."""

_MAX_LINES = 20
_MAX_SHOWN = 4
"""Numbers of an array that a cell shows."""

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
    """Formats a table as text, Markdown, HTML or LaTeX, and adds `notes` as lines below the table.

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


class Table(Sequence[Mapping[str, Any]]):
    """Sequence of rows as dicts ``{column: value}``. ``print(table)`` shows its first rows.

    Args:
        rows: The rows. A row may lack columns.
        empty: Text of a table without rows.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], empty: str = "No rows."):
        self._rows, self._empty = list(rows), empty

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Table: ...
    def __getitem__(self, index: int | slice) -> Any:
        return Table(self._rows[index], self._empty) if isinstance(index, slice) else self._rows[index]

    @property
    def columns(self) -> list[str]:
        """Names of the columns of the table."""
        return list(dict.fromkeys(name for row in self._rows for name in row))

    def to_pandas(self) -> pandas.DataFrame:
        """Converts the table to a pandas DataFrame, with a line for each row.

        Raises:
            ImportError: Without pandas.
        """
        pandas = optional_import("pandas", purpose="to_pandas()", install="pandas")
        return pandas.DataFrame(self._rows, columns=self.columns)

    def with_columns(self, names: Sequence[str]) -> Table:
        """Returns a table with only the columns whose names are in `names`."""
        return Table([{name: row[name] for name in names if name in row} for row in self._rows], self._empty)

    def formatted(self, format: str = "text", max_lines: int | None = _MAX_LINES) -> str:
        """Returns the table as "text", "md", "html" or "latex", with at most `max_lines` rows (None: all)."""
        if not self._rows:
            return f"<p>{html.escape(self._empty)}</p>" if format == "html" else self._empty
        shown = self._rows if max_lines is None else self._rows[:max_lines]
        columns = self.columns
        cells = [[cell_text(row.get(name)) for name in columns] for row in shown]
        left_out = len(self._rows) - len(shown)
        notes = [f"{left_out} more rows. Use .to_pandas(), or index the table."] if left_out else []
        return formatted_table(columns, cells, format, notes)

    def __repr__(self) -> str:
        return self.formatted()

    def _repr_html_(self) -> str:
        return self.formatted("html")


def cell_text(value: Any) -> str:
    """Formats a value for a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, np.ndarray) and value.ndim:
        shown = [cell_text(one) for one in value.reshape(-1)[:_MAX_SHOWN]]
        return f"[{', '.join([*shown, '…'] if value.size > _MAX_SHOWN else shown)}]"
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if isinstance(value, int | np.integer | str):
        return str(value)
    return number_text(float(value)) if math.isfinite(value) else str(float(value))


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
