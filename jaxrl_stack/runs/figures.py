"""Figures of curves, drawn with matplotlib's objects: no window, no state of pyplot."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_stack.runs.curves import Band
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_matplotlib = optional_import("matplotlib", purpose="A figure", install="jaxrl-stack[plots]")
_figure = optional_import("matplotlib.figure", purpose="A figure", install="jaxrl-stack[plots]")
_ticker = optional_import("matplotlib.ticker", purpose="A figure", install="jaxrl-stack[plots]")

# Told apart by those who see fewer colours, too (Okabe and Ito).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
_STYLES = ("-", "--", ":", "-.")
_FORMATS = (".png", ".svg", ".pdf")
# Text stays text, and the same curves are the same file.
_SVG_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "jaxrl_stack"}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_MAX_FAINT_CURVES = 30


class RunFigure(_figure.Figure):
    """A matplotlib figure that notebooks show, whatever their settings are, and that saves itself."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the figure to a file.

        Args:
            path: Ends in ``.png``, ``.svg`` or ``.pdf``; folders are made.

        Raises:
            ValueError: If it ends in something else.
        """
        _save(self, checked_figure_path(path))

    def to_svg(self) -> str:
        """The figure as an ``<svg>`` element, as wide as where it is put."""
        text = _svg_of(self, transparent=True)
        return text[text.index("<svg") :]

    def _repr_png_(self) -> bytes:
        stream = io.BytesIO()
        self.savefig(stream, format="png", dpi=120)
        return stream.getvalue()


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix.lower() == ".svg":
        path.write_text(_svg_of(figure), encoding="utf-8")
    else:
        figure.savefig(path, dpi=200)


def _svg_of(figure: Any, *, transparent: bool = False) -> str:
    stream = io.StringIO()
    with _matplotlib.rc_context(_SVG_SETTINGS):
        figure.savefig(stream, format="svg", metadata=_NO_METADATA, transparent=transparent)
    # Coordinates in points, with six decimals: half of the file, and no more than the first can be seen.
    return re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d)\d+", r"\1", path[0]), stream.getvalue())


def checked_figure_path(path: str | os.PathLike[str]) -> Path:
    """A path that a figure can be written to.

    Raises:
        ValueError: If its end is none of a figure.
    """
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise ValueError(f"{target}: the name of a figure ends in {' or '.join(_FORMATS)}.")
    return target


def draw(
    bands: Sequence[Band],
    *,
    x_label: str,
    y_label: str,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
    ax: Any = None,
    has_legend: bool = True,
    width: float = 6.4,
    height: float = 3.8,
) -> Any:
    """A figure of some bands, each in a colour of its own.

    Args:
        bands: What is drawn: the middle as a line, the interval as a shade, and the runs themselves as faint lines if
            there is no other band.
        x_label: Below the x axis.
        y_label: At the y axis.
        title: Above all; None for none.
        path: Where to write it, a ``.png``, ``.svg`` or ``.pdf``; None for nowhere.
        ax: matplotlib axes to draw into, such as those of a figure with several panels, with colours that go on from
            the curves that are there; None for a figure of its own.
        has_legend: Whether the bands are named below a `RunFigure`.
        width, height: Of that, in inches.

    Returns:
        The `RunFigure`; the figure of `ax` if that is given.

    Raises:
        ValueError: If `path` has another end.
    """
    target = None if path is None else checked_figure_path(path)
    figure = ax.figure if ax is not None else RunFigure(figsize=(width, height), layout="constrained")
    axes: Axes = ax if ax is not None else figure.subplots()
    num_before = sum(not str(line.get_label()).startswith("_") for line in axes.lines)
    for place, band in enumerate(bands, num_before):
        color, style = _COLORS[place % len(_COLORS)], _STYLES[place // len(_COLORS) % len(_STYLES)]
        if len(bands) == 1 and 1 < len(band.curves) <= _MAX_FAINT_CURVES:
            for curve in band.curves:
                axes.plot(curve.x, curve.y, color=color, linewidth=0.6, alpha=0.3)
        marker = "o" if len(band.x) == 1 else None
        axes.plot(band.x, band.middle, color=color, linestyle=style, marker=marker, label=band.label, linewidth=1.8)
        if len(band.curves) > 1:
            axes.fill_between(band.x, band.low, band.high, color=color, alpha=0.2, linewidth=0)
    _dress(axes, x_label, y_label, title)
    if has_legend and isinstance(figure, RunFigure):
        # Below the axes: it never hides a curve, however many there are.
        labels = [str(line.get_label()) for line in axes.lines if not str(line.get_label()).startswith("_")]
        longest = max(map(len, labels), default=0)
        columns = max(1, min(len(labels), 72 // (longest + 6)))
        figure.legends.clear()
        figure.legend(loc="outside lower center", frameon=False, fontsize=9.5, ncols=columns)
    if target is not None:
        _save(figure, target)
    return figure


def _dress(axes: Axes, x_label: str, y_label: str, title: str | None) -> None:
    axes.set_xlabel(x_label, fontsize=11)
    axes.set_ylabel(y_label, fontsize=11)
    if title is not None:
        axes.set_title(title, fontsize=11.5, loc="left", fontweight="bold")
    axes.tick_params(labelsize=10, length=3, color="#888888")
    axes.xaxis.set_major_formatter(_ticker.FuncFormatter(lambda value, place: number_text(value)))
    axes.xaxis.set_major_locator(_ticker.MaxNLocator(6))
    axes.yaxis.set_major_locator(_ticker.MaxNLocator(6))
    axes.yaxis.set_major_formatter(_ticker.FuncFormatter(lambda value, place: number_text(value)))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
    axes.margins(x=0.01)
