"""Curves of runs in folders, this package's, RLlib's and Tune's: as figures, in characters, as a table."""

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
from jaxrl_stack.runs.run import Run, Runs, as_runs, common_title, grouped
from jaxrl_stack.runs.tables import formatted_table
from jaxrl_stack.runs.terminal import number_text, text_plot


def bands_of(
    runs: Sequence[Run], key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95
) -> list[Band]:
    """The curves of runs, those that differ only in their seed together.

    Args:
        runs: From `find_runs`, or of seeds.
        key: The number that is looked at.
        x: The axis; see `x_axis`.
        aggregate: ``"iqm"``, ``"mean"`` or ``"median"`` of several seeds.
        band: Confidence of the band around them.

    Returns:
        One band for each group of `grouped`, its label with the number of seeds if there are several.

    Raises:
        KeyError: If none of the runs has such a number.
        ValueError: If no numbers can be drawn, or a name of `aggregate` is none.
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
    """The bands of `bands_of`; of runs of one group, the return of each of several agents, and their sum as a thin one.

    Args:
        runs, key, x, aggregate, band: As of `bands_of`, which also says what is raised. Keys other than a mean return
            have one band for each group.
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
    """The curve of each run; those of runs that have diverged stay where they ended as long as others go on.

    Raises:
        KeyError: If a run has no such number; one that has diverged may have diverged before it had.
    """
    having = [run for run in runs if not run.has_diverged or key in run.history] or runs
    curves = [run.history.curve(key, x) for run in having]
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
    """A figure of runs: a line for each, or for each group of seeds with a band around it.

    The mean return of runs of one group with several agents has a line for each agent, or for each policy of more than
    8 agents, and a thin one for the sum.

    Args:
        runs: Folders of runs or of many, and tables (see `find_runs`); or what has been read.
        key, x, aggregate, band: As of `bands_of`.
        out: Where to write it, a ``.png``, ``.svg`` or ``.pdf``; None for nowhere.
        title: Above it; None for what all groups have in common, where there are several.
        **options: ``ylim=(low, high)``, ``xscale``, ``yscale``: see `AxisOptions`.

    Returns:
        A `RunFigure`, which notebooks show.

    Raises:
        ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
        FileNotFoundError: If there is no run at one of the paths.
        KeyError: If none of the runs has such a number.
        TypeError: If there is no such option.
        ValueError: If a file is damaged, no numbers can be drawn, an option cannot be, or `out` ends in something else.
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
    """The same curves drawn in characters, below each other, for terminals and without matplotlib.

    Args:
        runs, key, x, aggregate: As of `plot_runs`, which also says what is raised.
        width: Characters.
        height: Lines for each.
    """
    bands = bands_by_agent(as_runs(runs), key, x, aggregate=aggregate)
    return "\n\n".join(text_plot(band, x_label=axis_label(x), width=width, height=height) for band in bands)


@dataclasses.dataclass(frozen=True)
class Ending:
    """Where a group of runs ended.

    Attributes:
        last: Aggregate over runs of the mean over the last tenth of each curve.
        low, high: Its interval; `last` itself for one run.
        area: Aggregate of the mean over the whole curve: who learned sooner has more.
        x: Where the shortest of them ended.
    """

    last: float
    low: float
    high: float
    area: float
    x: float

    def cells(self, num_runs: int) -> list[str]:
        """The cells of `ending_header` for a group of this many runs."""
        interval = f"{number_text(self.low)} … {number_text(self.high)}" if num_runs > 1 else "–"
        return [str(num_runs), number_text(self.last), interval, number_text(self.area), number_text(self.x)]


def ending_header(x: str) -> list[str]:
    """Names of `Ending.cells` in tables, of curves over this axis."""
    return ["seeds", "last 10 %", "95 % interval", "whole curve", axis_label(x)]


@dataclasses.dataclass(frozen=True)
class Comparison(Ending):
    """Where one of several groups of runs ended.

    Attributes:
        label: Their name.
        num_runs: Seeds.
    """

    label: str
    num_runs: int


def compare(
    runs: Runs, key: str = RETURN, x: str = STEPS, *, aggregate: str = "iqm", band: float = 0.95
) -> list[Comparison]:
    """Groups of runs by how they ended, the highest first.

    Args:
        runs, key, x, aggregate, band: As of `plot_runs`, which also says what is raised.
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
    """The result of `compare` as a table.

    Args:
        rows: The result.
        x: Axis of its curves.
        format: "text", "md", "html" or "latex".
    """
    cells = [[row.label, *row.cells(row.num_runs)] for row in rows]
    return formatted_table(["run", *ending_header(x)], cells, format)


def mean_of_end(curve: Curve, share: float = 0.1) -> float:
    """The mean of the last part of a curve, weighted by x.

    Args:
        curve: With at least one point.
        share: Of its axis.
    """
    start = curve.x[0] + (1.0 - share) * (curve.x[-1] - curve.x[0])
    return float(np.interp(np.linspace(start, curve.x[-1], 100), curve.x, curve.y).mean())
