"""Text drawings of curves for terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jaxrl_stack.runs.curves import Band

_LEVELS = "▁▂▃▄▅▆▇█"
# The dots of a braille character, by row and column in it.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def sparkline(values: Sequence[float] | np.ndarray, width: int = 40) -> str:
    """Draws numbers as one line of bar characters, from ``▁`` for the lowest number to ``█`` for the highest.

    Args:
        values: One value per iteration; non-finite values are blanks.
        width: Maximum number of characters; with more values, each bar is the mean of its share.
    """
    parts = np.array_split(np.asarray(values, np.float64), min(width, len(values))) if len(values) else []
    means = np.array([part[np.isfinite(part)].mean() if np.isfinite(part).any() else math.nan for part in parts])
    if not np.isfinite(means).any():
        return " " * len(means)
    low, high = np.nanmin(means), np.nanmax(means)
    scaled = (means - low) / (high - low) if high > low else np.where(np.isnan(means), math.nan, 0.5)
    return "".join(" " if math.isnan(one) else _LEVELS[round(one * (len(_LEVELS) - 1))] for one in scaled)


def number_text(value: float) -> str:
    """Readable number: at most four significant digits, thousands as k and M."""
    if not math.isfinite(value):
        return "–"
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit * 10 or (abs(value) >= unit and unit > 1e3):
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"


def table_text(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Formats a table as text, with columns as wide as their content and the first column left-aligned."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for row in (header, *rows):
        others = (f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True))
        lines.append("  ".join([f"{row[0]:<{widths[0]}}", *others]))
    return "\n".join(lines)


def text_plot(band: Band, *, x_label: str, width: int = 72, height: int = 12) -> str:
    """Draws the middle curve of a `Band` (a curve with an interval) as text with braille dots, without the interval.
    Numbers label the ends of both axes.

    Args:
        band: The band to draw.
        x_label: Text below the axis.
        width: Number of characters, including the numbers at the left.
        height: Number of lines.
    """
    low, high = float(band.middle.min()), float(band.middle.max())
    ends = [number_text(high), number_text(low)]
    margin = max(map(len, ends))
    columns = max(8, width - margin - 2)
    places = np.linspace(band.x[0], band.x[-1], 2 * columns)
    values = np.interp(places, band.x, band.middle)
    share = (values - low) / (high - low) if high > low else np.full(len(values), 0.5)
    rows = np.round((1.0 - share) * (4 * height - 1)).astype(int)
    dots = np.zeros((4 * height, 2 * columns), bool)
    for column, (row, before) in enumerate(zip(rows, [rows[0], *rows[:-1]], strict=True)):
        dots[min(row, before) : max(row, before) + 1, column] = True
    lines = []
    for line in range(height):
        label = ends[0] if line == 0 else ends[1] if line == height - 1 else ""
        cells = dots[4 * line : 4 * line + 4].reshape(4, columns, 2)
        codes = (cells * np.array(_DOTS)[:, None, :]).sum(axis=(0, 2))
        lines.append(f"{label:>{margin}} │{''.join(chr(0x2800 + code) for code in codes)}".rstrip())
    first, last = number_text(band.x[0]), number_text(band.x[-1])
    below = f"{first} {x_label:^{max(0, columns - len(first) - len(last) - 2)}} {last}"
    return "\n".join([band.label, *lines, f"{'':>{margin}} └{'─' * columns}", f"{'':>{margin}}  {below}"])
