"""Figures of curves, drawn with matplotlib's objects instead of pyplot: no window opens, and the state of pyplot does
not change.
"""

from __future__ import annotations

import io
import os
import re
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from jaxrl_stack.runs.axes import AxisOptions, check_axis_options, robust_limits
from jaxrl_stack.runs.curves import Band
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.utils.optional_packages import optional_import

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from jaxrl_stack.runs.lineage import Lineage
    from jaxrl_stack.runs.ratings import GameResults

_matplotlib = optional_import("matplotlib", purpose="A figure", install="jaxrl-stack[plots]")
_figure = optional_import("matplotlib.figure", purpose="A figure", install="jaxrl-stack[plots]")
_ticker = optional_import("matplotlib.ticker", purpose="A figure", install="jaxrl-stack[plots]")

# Told apart by those who see fewer colours, too (Okabe and Ito).
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6B6B6B", "#000000")
_THIN_COLOR = "#8A8A8A"
_STYLES = ("-", "--", ":", "-.")
_FORMATS = (".png", ".svg", ".pdf")
# Text stays text, and the same curves are the same file.
_SVG_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "jaxrl_stack"}
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_MAX_FAINT_CURVES = 30
_OUTSIDE = "values outside"
"""What marks the note about values that the limits leave out."""
_curves_in: weakref.WeakKeyDictionary[Any, list[np.ndarray]] = weakref.WeakKeyDictionary()
"""Axes -> the values of the runs that were drawn into them."""


class RunFigure(_figure.Figure):
    """Matplotlib figure that notebooks display with any backend, and that has a `save` method."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the figure to a ``.png``, ``.svg`` or ``.pdf`` file.

        Args:
            path: File that ends in ``.png``, ``.svg`` or ``.pdf``; missing folders are created.

        Raises:
            ValueError: If it has another ending.
        """
        _save(self, checked_figure_path(path))

    def to_svg(self) -> str:
        """The figure as an ``<svg>`` element with the width of its container."""
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
    """Checks that the file extension of a figure's path is supported; returns the path.

    Raises:
        ValueError: If its ending is not a figure's.
    """
    target = Path(path)
    if target.suffix.lower() not in _FORMATS:
        raise ValueError(f"The file name {target} must end in {' or '.join(_FORMATS)}.")
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
    **options: Unpack[AxisOptions],
) -> Any:
    """Draws bands (curves with intervals) in a figure, each in a different colour.

    Args:
        bands: Bands to draw: the middle as a line, the interval as a shaded area, and the runs as faint lines if there
            is only one band.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        title: Title of the figure, or None.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
        ax: matplotlib axes to draw into, for example of one of several panels; colours continue after its present
            curves. None for a new figure.
        has_legend: Whether a `RunFigure` has a legend below it.
        width, height: Size of a new figure, in inches.
        **options: Limits and scales of the axes. Without ``ylim``, the y axis leaves out single outliers, and a note
            shows their number.

    Returns:
        The `RunFigure`, or the figure of `ax`.

    Raises:
        TypeError: If there is no such option.
        ValueError: If `path` has another end, or an option cannot be.
    """
    target = None if path is None else checked_figure_path(path)
    check_axis_options(options)
    figure = ax.figure if ax is not None else RunFigure(figsize=(width, height), layout="constrained")
    axes: Axes = ax if ax is not None else figure.subplots()
    _draw_bands(axes, bands)
    _dress(axes, x_label, y_label, title, options)
    limits = options.get("ylim")
    if limits is not None:
        axes.set_ylim(*limits)
    elif axes.get_yscale() == "linear":
        _limit_to_curves(axes, bands)
    if has_legend and isinstance(figure, RunFigure):
        _add_legend(figure, axes)
    if target is not None:
        _save(figure, target)
    return figure


def draw_panels(
    panels: Mapping[str, Sequence[Band]],
    *,
    x_label: str,
    y_label: str,
    path: str | os.PathLike[str] | None = None,
    **options: Unpack[AxisOptions],
) -> RunFigure:
    """Draws a figure with several panels and a common legend.

    All panels contain bands (curves with intervals) with the same labels, and a label has the same colour in all
    panels.

    Args:
        panels: Title of each panel -> its bands, with the same labels in the same order. Bands without points are not
            drawn.
        x_label: Label of the x axes.
        y_label: Label of the y axes.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
        **options: Limits and scales of all axes.

    Raises:
        TypeError: If there is no such option.
        ValueError: If `path` has another end, or an option cannot be.
    """
    target = None if path is None else checked_figure_path(path)
    num_columns = min(len(panels), 3)
    num_rows = -(-len(panels) // num_columns)
    figure = RunFigure(figsize=(max(6.4, 4.2 * num_columns), 3.2 * num_rows + 0.6), layout="constrained")
    for number, (title, bands) in enumerate(panels.items()):
        axes = figure.add_subplot(num_rows, num_columns, number + 1)
        draw(bands, x_label=x_label, y_label=y_label, title=title, ax=axes, has_legend=False, **options)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", frameon=False, fontsize=9.5, ncols=min(len(labels), 6)
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    if target is not None:
        _save(figure, target)
    return figure


def _draw_bands(axes: Axes, bands: Sequence[Band]) -> None:
    place = len(_labels(axes))
    for band in bands:
        color, style = _COLORS[place % len(_COLORS)], _STYLES[place // len(_COLORS) % len(_STYLES)]
        width, shade = 1.8, 0.2
        if band.is_thin:
            color, style, width, shade = _THIN_COLOR, "-", 0.8, 0.1
        else:
            place += 1
        if len(bands) == 1 and 1 < len(band.curves) <= _MAX_FAINT_CURVES:
            for curve in band.curves:
                axes.plot(curve.x, curve.y, color=color, linewidth=0.6, alpha=0.3)
        marker = "o" if len(band.x) == 1 else None
        # matplotlib leaves out labels that begin with "_".
        label = f" {band.label}" if band.label.startswith("_") else band.label
        axes.plot(band.x, band.middle, color=color, linestyle=style, marker=marker, label=label, linewidth=width)
        if len(band.curves) > 1:
            axes.fill_between(band.x, band.low, band.high, color=color, alpha=shade, linewidth=0)


def _labels(axes: Axes) -> list[str]:
    labels = (str(line.get_label()) for line in axes.lines)
    return [label for label in labels if not label.startswith("_")]


def _add_legend(figure: RunFigure, axes: Axes) -> None:
    """Adds a legend below the axes, where it hides no curve."""
    labels = _labels(axes)
    columns = max(1, min(len(labels), 72 // (max(map(len, labels), default=0) + 6)))
    figure.legends.clear()
    legend = figure.legend(loc="outside lower center", frameon=False, fontsize=9.5, ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _dress(axes: Axes, x_label: str, y_label: str, title: str | None, options: AxisOptions) -> None:
    # Names of runs and numbers are text: "$" begins no formula.
    axes.set_xlabel(x_label, fontsize=11, parse_math=False)
    axes.set_ylabel(y_label, fontsize=11, parse_math=False)
    if title is not None:
        axes.set_title(title, fontsize=11.5, loc="left", fontweight="bold", parse_math=False)
    axes.tick_params(labelsize=10, length=3, color="#888888")
    for axis, name, place in ((axes.xaxis, "xscale", 0), (axes.yaxis, "yscale", 1)):
        scale = options.get(name)
        if scale == "log" and not any((np.asarray(line.get_xydata())[:, place] > 0.0).any() for line in axes.lines):
            raise ValueError(f"{name}='log' needs values above 0, but all values are 0 or less. Use {name}='symlog'.")
        if scale is not None:
            (axes.set_xscale if name == "xscale" else axes.set_yscale)(scale)
        if axis.get_scale() == "linear":
            axis.set_major_locator(_ticker.MaxNLocator(6))
        axis.set_major_formatter(_ticker.FuncFormatter(lambda value, place: number_text(value)))
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#888888")
    axes.margins(x=0.01)


def _limit_to_curves(axes: Axes, bands: Sequence[Band]) -> None:
    """Limits a figure's axes so that single outliers do not flatten the curves.

    A note in the figure mentions the outliers. Limits that the user set do not change.
    """
    curves = _curves_in.setdefault(axes, [])
    curves += [curve.y for band in bands for curve in band.curves]
    for note in [text for text in axes.texts if text.get_gid() == _OUTSIDE]:
        # Of the curves that were there before.
        note.remove()
        axes.set_autoscaley_on(True)
    limits = robust_limits(curves) if axes.get_autoscaley_on() else None
    if limits is None:
        return
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, limits.low), min(high, limits.high))
    num_outside, far = len(limits.outside), limits.outside[np.argmax(np.abs(limits.outside))]
    text = f"{num_outside} value{'s' * (num_outside > 1)} outside, to {number_text(float(far))}"
    place = {"xy": (1.0, 1.0), "xycoords": "axes fraction", "ha": "right", "va": "bottom"}
    axes.annotate(text, **place, fontsize=8, color="#666666", gid=_OUTSIDE)


def draw_histograms(
    panels: Mapping[str, tuple[np.ndarray, np.ndarray | Sequence[str]]],
    *,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> RunFigure:
    """Draws a figure with one histogram for each entry of `panels`, side by side.

    Args:
        panels: ``{title: (counts [n], ends of the bins [n + 1], or their names [n])}``.
        title: Title of the figure.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.

    Raises:
        ValueError: If `path` has another end.
    """
    target = None if path is None else checked_figure_path(path)
    figure = RunFigure(figsize=(3.4 * len(panels), 3.0), layout="constrained")
    if title is not None:
        figure.suptitle(title, fontsize=11.5, fontweight="bold", parse_math=False)
    for number, (label, (counts, ends)) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), number + 1)
        _dress(axes, label, "", None, {})
        if len(ends) == len(counts) + 1:
            axes.stairs(counts, np.asarray(ends, np.float64), fill=True, color=_COLORS[0])
        else:
            axes.bar(range(len(counts)), counts, color=_COLORS[0])
            axes.set_xticks(range(len(counts)), [str(name) for name in ends], parse_math=False)
    if target is not None:
        _save(figure, target)
    return figure


def draw_heat_map(
    values: np.ndarray,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    row_label: str,
    column_label: str,
    value_label: str,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> RunFigure:
    """Draws a table of numbers as colours, with the numbers in the cells.

    Args:
        values: ``float64[rows, columns]``; NaN stays white.
        rows, columns: Names of the rows and columns.
        row_label, column_label: Labels of the y axis and the x axis.
        value_label: Name of the numbers.
        title: Title of the figure.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.

    Raises:
        ValueError: If `path` has another end.
    """
    target = None if path is None else checked_figure_path(path)
    size = (max(4.0, 1.9 + 0.8 * len(columns)), max(2.6, 1.4 + 0.5 * len(rows)))
    figure = RunFigure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(values, cmap="viridis", aspect="auto", origin="lower")
    axes.set_xticks(range(len(columns)), columns, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xlabel(column_label, fontsize=11, parse_math=False)
    axes.set_ylabel(row_label, fontsize=11, parse_math=False)
    if title is not None:
        axes.set_title(title, fontsize=11.5, loc="left", fontweight="bold", parse_math=False)
    axes.tick_params(labelsize=10, length=0)
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            # White on the dark half of the colours.
            color = "white" if float(image.norm(value)) < 0.6 else "black"
            axes.text(column, row, number_text(float(value)), ha="center", va="center", color=color, fontsize=10)
    bar = figure.colorbar(image, ax=axes, format=_ticker.FuncFormatter(lambda value, place: number_text(value)))
    bar.set_label(value_label, fontsize=10, parse_math=False)
    if target is not None:
        _save(figure, target)
    return figure


def draw_lineage(
    lineage: Lineage,
    num_iterations: int,
    best: int,
    *,
    title: str | None = None,
    path: str | os.PathLike[str] | None = None,
) -> RunFigure:
    """Draws the settings of a population over its iterations, a panel for each setting.

    Members are faint lines, copies are points at the new value, and the values that led to one member are a thick line.

    Args:
        lineage: The lineage.
        num_iterations: Number of iterations.
        best: Index of the emphasized member.
        title: Title of the figure.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.

    Raises:
        ValueError: If `path` has another ending.
    """
    target = None if path is None else checked_figure_path(path)
    names = lineage.names
    figure = RunFigure(figsize=(6.4, 0.6 + 2.6 * len(names)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(len(names), sharex=True))
    iterations = np.arange(1, num_iterations + 1)
    ancestors = lineage.ancestors(best)
    # The ancestor in each iteration.
    starts = np.array([start for start, _ in ancestors])
    place = np.array([place for _, place in ancestors])[np.searchsorted(starts, iterations, side="right") - 1]
    for axes, name in zip(panels, names, strict=True):
        values = lineage.values(name, num_iterations)
        axes.step(iterations, values, where="mid", color=_THIN_COLOR, linewidth=0.7, alpha=0.6)
        copies = [one for one in lineage.copies if one.iteration < num_iterations]
        axes.plot(
            [one.iteration + 1 for one in copies],
            [float(one.new[name]) for one in copies],
            linestyle="none",
            marker=".",
            markersize=4,
            color=_THIN_COLOR,
        )
        of_best = values[iterations - 1, place]
        label = f"lineage of member {best}"
        axes.step(iterations, of_best, where="mid", color=_COLORS[0], linewidth=2.2, label=label)
        if (values > 0).all() and values.max() > 20 * values.min():
            axes.set_yscale("log")
        axes.set_ylabel(name, fontsize=11, parse_math=False)
        axes.tick_params(labelsize=10)
        axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    panels[-1].set_xlabel("iterations", fontsize=11)
    panels[0].legend(fontsize=9, frameon=False)
    if title is not None:
        panels[0].set_title(title, fontsize=11.5, loc="left", fontweight="bold", parse_math=False)
    if target is not None:
        _save(figure, target)
    return figure


def draw_ratings(
    results: GameResults, *, title: str | None = None, path: str | os.PathLike[str] | None = None
) -> RunFigure:
    """Draws each player's Elo rating with a confidence interval, and the matrix of win rates between the players.

    Args:
        results: Results of games.
        title: Title of the figure.
        path: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.

    Raises:
        ValueError: If `path` has another ending.
    """
    target = None if path is None else checked_figure_path(path)
    ratings, (low, high), rates = results.elo(), results.elo_intervals(), results.win_rates()
    order = np.argsort(-ratings, kind="stable")
    names, places = [results.players[i] for i in order], np.arange(len(order))
    size = 1.6 + 0.45 * len(order)
    figure = RunFigure(figsize=(5.2 + size, max(2.6, size)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(4, size))
    left.errorbar(
        ratings[order],
        places,
        xerr=np.clip([ratings[order] - low[order], high[order] - ratings[order]], 0.0, None),
        fmt="o",
        color=_COLORS[0],
        capsize=3,
    )
    left.set_yticks(places, names, fontsize=10, parse_math=False)
    left.invert_yaxis()
    left.set_xlabel("Elo, 95 % interval", fontsize=11)
    left.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    shown = rates[np.ix_(order, order)]
    right.imshow(np.ma.masked_invalid(shown), cmap="RdBu", vmin=0.0, vmax=1.0)
    for i, j in np.argwhere(np.isfinite(shown)):
        is_dark = abs(shown[i, j] - 0.5) > 0.3
        right.text(j, i, f"{shown[i, j]:.0%}", ha="center", va="center", fontsize=8, color="w" if is_dark else "k")
    right.set_xticks(places, names, fontsize=9, rotation=45, ha="right", parse_math=False)
    right.set_yticks(places, names, fontsize=9, parse_math=False)
    right.set_title("points per game of the row against the column", fontsize=9)
    if title is not None:
        figure.suptitle(title, fontsize=11.5, fontweight="bold", parse_math=False)
    if target is not None:
        _save(figure, target)
    return figure
