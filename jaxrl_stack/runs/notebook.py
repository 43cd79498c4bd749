"""Live display of a run in a notebook: its numbers, and the growing curve of its return."""

from __future__ import annotations

import html
import importlib
import math
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.runs.agent_returns import columns_of_agents
from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.progress import Silence, eta_text, numbers_text
from jaxrl_stack.runs.statistics import RunStatistics, duration, return_text
from jaxrl_stack.runs.stop import StopCriteria
from jaxrl_stack.utils.waiting import waiting_lines

if TYPE_CHECKING:
    from jaxrl_stack.runs.history import History

_DRAW_EVERY = 0.25
_MAX_POINTS = 400
_WIDTH, _HEIGHT = 560, 150
_COLORS = ("#2a78d6", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b", "#000000")


class NotebookDisplay(Silence):
    """Live display in a notebook: HTML that is updated at most four times a second. Needs no server and no network.

    Args:
        criteria: Stop criteria, for the progress bar and the ETA.
    """

    def __init__(self, criteria: StopCriteria):
        self._criteria = criteria
        self._header: list[str] = []
        self._history: History | None = None
        self._started = time.monotonic()
        self._drawn_at = -math.inf
        self._is_stopping = False
        self._handle: Any = None
        self._latest: tuple[str, float | None] = ("", None)

    def header(self, line: str) -> None:
        self._header.append(line)

    def begin(self, history: History, task: str) -> None:
        self._history = history
        display = importlib.import_module("IPython.display")
        self._latest = (f"{task} …", None)
        self._handle = display.display(display.HTML(self._page(*self._latest)), display_id=True)

    def waiting(self, line: str) -> None:
        self._redraw()

    def stopping(self) -> None:
        # Called by a signal handler: the next drawing shows it.
        self._is_stopping, self._drawn_at = True, -math.inf

    def iteration(self, result: Mapping[str, Any], statistics: RunStatistics, is_last: bool) -> None:
        now = time.monotonic()
        if not is_last and now - self._drawn_at < _DRAW_EVERY:
            return
        self._drawn_at = now
        elapsed = duration(now - self._started)
        times = [elapsed, eta_text(self._criteria, result, statistics)]
        end = f"{elapsed} in all" if is_last else ", ".join(filter(None, times))
        if self._is_stopping and not is_last:
            end += ", stopping after this iteration"
        fraction = self._criteria.fraction(result, statistics.before)
        self._latest = (" · ".join([*numbers_text(statistics), end]), fraction)
        self._redraw(is_last=is_last)

    def _redraw(self, *, is_last: bool = False) -> None:
        if self._handle is not None:
            page = self._page(*self._latest, is_last=is_last)
            self._handle.update(importlib.import_module("IPython.display").HTML(page))

    def _page(self, text: str, fraction: float | None = None, *, is_last: bool = False) -> str:
        waiting = [] if is_last else waiting_lines()
        lines = "".join(f"<div>{html.escape(line)}</div>" for line in [*self._header, text, *waiting])
        bar = "" if fraction is None else f'<progress value="{fraction:.3f}" max="1" style="width:100%"></progress>'
        return f'<div style="max-width:{_WIDTH}px">{lines}{bar}{self._curve()}</div>'

    def _curve(self) -> str:
        history = self._history
        if history is None or RETURN not in history or STEPS not in history:
            return ""
        parts = {name: history[column] for name, column in columns_of_agents(history.columns).items()}
        return curve_svg(history[STEPS], history[RETURN], label="mean return over env steps", parts=parts)


def curve_svg(x: np.ndarray, y: np.ndarray, *, label: str, parts: Mapping[str, np.ndarray] | None = None) -> str:
    """Draws a curve as SVG, with labels at the ends of the axes. Returns an empty string for fewer than two
    finite points.

    Args:
        x: ``float64[n]``, ascending.
        y: ``float64[n]``; non-finite values are left out.
        label: Name of the number.
        parts: Summands of `y`, ``float64[n]`` by name, drawn in colours; `y` is then thin.
    """
    is_known = np.isfinite(x) & np.isfinite(y)
    x, y, parts = x[is_known], y[is_known], {name: own[is_known] for name, own in (parts or {}).items()}
    if len(x) < 2:
        return ""
    # All but the last point may be left out: that is the news.
    kept = np.unique(np.linspace(0, len(x) - 1, min(len(x), _MAX_POINTS)).astype(int))
    x, y, parts = x[kept], y[kept], {name: own[kept] for name, own in parts.items()}
    drawn = np.concatenate([y, *parts.values()])
    low, high = np.nanmin(drawn), np.nanmax(drawn)
    across = 4 + (x - x[0]) / max(x[-1] - x[0], 1e-9) * (_WIDTH - 8)

    def line(values: np.ndarray, color: str, width: float) -> str:
        down = _HEIGHT - 20 - (values - low) / max(high - low, 1e-9) * (_HEIGHT - 40)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True) if math.isfinite(b))
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'

    colors = [_COLORS[i % len(_COLORS)] for i in range(len(parts))]
    lines = [line(y, "#8a8a8a", 0.7)] if parts else [line(y, _COLORS[0], 1.5)]
    lines += [line(own, color, 1.5) for own, color in zip(parts.values(), colors, strict=True)]
    texts = [
        (4, 12, "start", f"{return_text(high)} highest"),
        (_WIDTH - 4, 12, "end", f"{return_text(y[-1])} now"),
        (4, _HEIGHT - 4, "start", f"{x[0]:,.0f}"),
        (_WIDTH / 2, _HEIGHT - 4, "middle", label),
        (_WIDTH - 4, _HEIGHT - 4, "end", f"{x[-1]:,.0f}"),
    ]
    written = "".join(
        f'<text x="{left}" y="{top}" text-anchor="{anchor}">{html.escape(text)}</text>'
        for left, top, anchor, text in texts
    )
    names = "".join(
        f'<tspan fill="{color}"> ■ {html.escape(name)} </tspan>' for name, color in zip(parts, colors, strict=True)
    )
    written += f'<text x="{_WIDTH / 2}" y="12" text-anchor="middle">{names}</text>' if names else ""
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="width:100%" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(lines)}"
        f'<g font-size="11" fill="currentColor">{written}</g></svg>'
    )
