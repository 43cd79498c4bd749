"""Curves of runs, drawn as figures or as text, and tables of final performance.

The runs are read from folders that this package, RLlib or Ray Tune wrote.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np

from jaxrl_stack.runs.agent_returns import SUM, columns_of_agents
from jaxrl_stack.runs.axes import AxisOptions
from jaxrl_stack.runs.curves import (
    RETURN,
    STEPS,
    Band,
    Curve,
    aggregated,
    axis_label,
    bootstrap_interval,
    key_label,
    statistic_of,
)
from jaxrl_stack.runs.forks import curve_from_parent
from jaxrl_stack.runs.run import Run, Runs, as_runs, common_title, grouped
from jaxrl_stack.runs.tables import formatted_table
from jaxrl_stack.runs.terminal import number_text, text_plot


def bands_of(
    runs: Sequence[Run], key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95
) -> list[Band]:
    """Aggregates runs to bands (curves with intervals), one for each group of runs that differ only in their seed.

    Args:
        runs: From `find_runs`, or of seeds.
        key: Number to draw.
        x: The x axis; see `x_axis`.
        aggregate: Aggregate of several seeds: ``"iqm"``, ``"mean"`` or ``"median"``.
        band: Confidence of the band.

    Returns:
        One band for each group of `grouped`; with several seeds, the label has their number.

    Raises:
        KeyError: If none of the runs has such a number.
        ValueError: If no numbers can be drawn, or `aggregate` is unknown.
    """
    statistic_of(aggregate)
    bands, problem = [], None
    for label, members in grouped(runs).items():
        try:
            curves = _curves(members, key, x)
        except KeyError as error:
            # Runs of other algorithms may have it.
            problem = error
            continue
        num_diverged = sum(run.has_diverged for run in members)
        ill = f", {num_diverged} diverged" if num_diverged else ""
        several = f" ({len(members)} seeds{ill})" if len(members) > 1 else ""
        bands.append(aggregated(curves, f"{label}{several}", aggregate=aggregate, confidence=band))
    if not bands:
        assert problem is not None
        raise problem
    return bands


def bands_by_agent(
    runs: Sequence[Run], key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95
) -> list[Band]:
    """Aggregates runs to bands (curves with intervals), one for each group of runs that differ only in their seed.

    If all runs form one group with several agents, the mean return of each agent (of each policy, if there are more
    than 8 agents) gets a band, and the sum of all agents' returns gets a thin band.

    Args:
        runs, key, x, aggregate, band: See `bands_of`, also for errors. Keys other than a mean return have one band for
            each group.
    """
    how: Any = {"aggregate": aggregate, "band": band}
    bands = bands_of(runs, key, x, **how)
    shared = [column for column in runs[0].history.columns if all(column in run.history for run in runs)]
    parts = columns_of_agents(shared, key) if len(bands) == 1 else {}
    if not parts:
        return bands
    own = [dataclasses.replace(bands_of(runs, column, x, **how)[0], label=name) for name, column in parts.items()]
    return [*own, dataclasses.replace(bands[0], label=SUM, is_thin=True)]


def _curves(runs: Sequence[Run], key: str, x: str) -> list[Curve]:
    """Creates the curve of each run.

    The curve of a diverged run is extended with its last value to the end of the longest run. The curve of a fork (a
    run that continues another run, its parent) begins with the parent's point at the iteration after which the fork
    begins.

    Raises:
        KeyError: If a run has no such number, unless it diverged before it had one.
    """
    having = [run for run in runs if not run.has_diverged or key in run.history] or runs
    curves = [curve_from_parent(run, key, x) for run in having]
    last = max((curve.x[-1] for curve in curves if len(curve.x)), default=0.0)
    return [
        dataclasses.replace(curve, x=np.append(curve.x, last), y=np.append(curve.y, curve.y[-1]))
        if run.has_diverged and len(curve.x) and curve.x[-1] < last
        else curve
        for run, curve in zip(having, curves, strict=True)
    ]


def plot_runs(
    runs: Runs,
    key: str = RETURN,
    x: str = STEPS,
    out: str | os.PathLike[str] | None = None,
    *,
    aggregate: str = "iqm",
    band: float = 0.95,
    title: str | None = None,
    **options: Unpack[AxisOptions],
) -> Any:
    """Draws one line for each run, or one line with a band for each group of seeds.

    The mean return of a single group with several agents has a line for each agent, or for each policy if there are
    more than 8 agents, and a thin line for the sum.

    Args:
        runs: Folders of one or many runs, tables (see `find_runs`), or `Run` objects.
        key, x, aggregate, band: See `bands_of`.
        out: File to write, a ``.png``, ``.svg`` or ``.pdf``; None writes none.
        title: Title of the figure; None for the common part of several groups' labels.
        **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

    Returns:
        A `RunFigure`, which notebooks display.

    Raises:
        ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
        FileNotFoundError: If there is no run at one of the paths.
        KeyError: If none of the runs has such a number.
        TypeError: If there is no such option.
        ValueError: If a file is damaged, no numbers can be drawn, an option is invalid, or `out` has another ending.
    """
    from jaxrl_stack.runs.figures import checked_figure_path, draw

    if out is not None:
        checked_figure_path(out)
    known = as_runs(runs)
    bands = bands_by_agent(known, key, x, aggregate=aggregate, band=band)
    above = common_title(known) if title is None else title
    if above is None and any(one.is_thin for one in bands):
        above = next(iter(grouped(known)))  # Lines have the names of agents.
    return draw(bands, x_label=axis_label(x), y_label=key_label(key), title=above, path=out, **options)


def runs_as_text(
    runs: Runs, key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", width: int = 72, height: int = 12
) -> str:
    """Draws the curves of runs in characters, one curve below the other. The text can be printed in terminals, and
    needs no matplotlib.

    Args:
        runs, key, x, aggregate: See `plot_runs`, also for errors.
        width: Number of characters.
        height: Lines per curve.
    """
    bands = bands_by_agent(as_runs(runs), key, x, aggregate=aggregate)
    return "\n\n".join(text_plot(band, x_label=axis_label(x), width=width, height=height) for band in bands)


@dataclasses.dataclass(frozen=True)
class Ending:
    """Final performance of a group of runs.

    Attributes:
        last: Aggregate over runs of the mean over the last tenth of each curve.
        low, high: Interval of `last`; `last` itself for one run.
        area: Aggregate of the mean over the whole curve, higher for faster learning.
        x: End of the shortest run.
    """

    last: float
    low: float
    high: float
    area: float
    x: float

    def cells(self, num_runs: int) -> list[str]:
        """Formats this final performance of `num_runs` runs as the cells of a table row. `ending_header` returns the
        names of the columns.
        """
        interval = f"{number_text(self.low)} … {number_text(self.high)}" if num_runs > 1 else "–"
        return [str(num_runs), number_text(self.last), interval, number_text(self.area), number_text(self.x)]


def ending_header(x: str) -> list[str]:
    """Column names of the table of final performances. The last column has the name of the curves' x axis, `x`."""
    return ["seeds", "last 10 %", "95 % interval", "whole curve", axis_label(x)]


@dataclasses.dataclass(frozen=True)
class Comparison(Ending):
    """Label and final performance of a group of runs: an entry of the list that `compare` returns.

    Attributes:
        label: Name of the group.
        num_runs: Number of seeds.
    """

    label: str
    num_runs: int


def compare(
    runs: Runs, key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95
) -> list[Comparison]:
    """Groups the runs that differ only in their seed, and compares the final performance of the groups. Returns one
    `Comparison` for each group, highest performance first.

    Args:
        runs, key, x, aggregate, band: See `plot_runs`, also for errors.
    """
    statistic = statistic_of(aggregate)
    rows = []
    for one in bands_of(as_runs(runs), key, x, aggregate=aggregate, band=band):
        curves = one.curves
        ends = np.array([[mean_of_end(curve), mean_of_end(curve, 1.0)] for curve in curves])
        last, area = statistic(ends, axis=0).tolist()
        low, high = bootstrap_interval(ends[:, :1], statistic, confidence=band) if len(curves) > 1 else (last, last)
        end = float(min(curve.x[-1] for curve in curves))
        bounds = float(np.max(low)), float(np.max(high))
        rows.append(Comparison(last, *bounds, area, end, label=one.label, num_runs=len(curves)))
    return sorted(rows, key=lambda row: -row.last)


def comparison_text(rows: Sequence[Comparison], x: str = STEPS, format: str = "text") -> str:
    """Formats the final performances of groups of runs, which `compare` returns, as a table.

    Args:
        rows: Result of `compare`.
        x: The x axis of the curves.
        format: "text", "md", "html" or "latex".
    """
    cells = [[row.label, *row.cells(row.num_runs)] for row in rows]
    return formatted_table(["run", *ending_header(x)], cells, format)


def mean_of_end(curve: Curve, share: float = 0.1) -> float:
    """Mean of a curve over the last part of its x axis, by default the last tenth.

    Args:
        curve: A curve with at least one point.
        share: Share of the axis.
    """
    start = curve.x[0] + (1.0 - share) * (curve.x[-1] - curve.x[0])
    return float(np.interp(np.linspace(start, curve.x[-1], 100), curve.x, curve.y).mean())
