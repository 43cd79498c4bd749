"""Reports of runs as one HTML file: curves, video, findings, settings, versions. They need no server and no network."""

from __future__ import annotations

import html
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxrl_stack.runs.agent_returns import EVALUATED_RETURN, columns_of_agents
from jaxrl_stack.runs.curves import RETURN, SECONDS, STEPS, axis_label, key_label
from jaxrl_stack.runs.diagnoses import Finding, diagnoses
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.html_pages import html_page, html_section, write_text
from jaxrl_stack.runs.plots import bands_by_agent, bands_of
from jaxrl_stack.runs.run import Run, Runs, as_runs, grouped, settings_that_differ
from jaxrl_stack.runs.statistics import counted
from jaxrl_stack.runs.terminal import number_text
from jaxrl_stack.videos.video import player

_STEPS_PER_SECOND = "num_env_steps_sampled_lifetime_throughput"
_CURVES = (EVALUATED_RETURN, "env_runners/episode_len_mean", _STEPS_PER_SECOND)
_MODULE_CURVES = (
    *(
        "vf_explained_var",
        "entropy",
        "policy_std",
        "mean_kl_loss",
        "approx_kl",
        "clip_fraction",
        "policy_loss",
        "vf_loss",
    ),
    *("qf_loss", "qf_mean", "alpha_value", "td_error_mean", "total_loss", "gradients_default_optimizer_global_norm"),
    *("advantage_std", "value_target_mean", "default_optimizer_learning_rate"),
)
"""Metrics of each module that are drawn if they are there, after the return and `_CURVES`."""
_PHASES = {
    "compile_s": ("compiling", "#CC79A7"),
    "device_s": ("on the device", "#0072B2"),
    "host_s": ("on the host", "#E69F00"),
}
_VIDEOS = (".mp4", ".webm", ".gif")
_MAX_VIDEO_BYTES = 16 << 20
_KINDS = {"problem": "Problem", "hint": "Hint"}


def write_report(
    runs: Runs,
    path: str | os.PathLike[str],
    *,
    defaults: Mapping[str, Any] | None = None,
    title: str | None = None,
    x: str = STEPS,
    aggregate: str = "iqm",
) -> Path:
    """Writes the report of one run or several runs as one HTML file.

    Args:
        runs: Folder or table of the run, several of them (see `find_runs`), or `Run` objects. Seeds are drawn together
            with a band; videos, settings and numbers without a band are of the first run.
        path: File such as ``report.html``. Missing folders are created, an existing file is replaced.
        defaults: Default settings of the algorithm, as plain values; None shows no differences.
        title: Title of the report; None for the names of algorithm and environment.
        x: The x axis of the curves, see `x_axis`.
        aggregate: Aggregate of several seeds: "iqm", "mean" or "median".

    Returns:
        The path of the file.

    Raises:
        ImportError: Without matplotlib: ``pip install 'jaxrl-stack[plots]'``.
        FileNotFoundError: If there is no run at one of the paths.
        ValueError: If a file is damaged, or `path` does not end in ``.html``.
    """
    target = Path(path)
    if target.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"The file name {target} must end in .html.")
    write_text(report_html(as_runs(runs), defaults=defaults, title=title, x=x, aggregate=aggregate), target)
    return target


def report_html(
    runs: Sequence[Run],
    *,
    defaults: Mapping[str, Any] | None = None,
    title: str | None = None,
    x: str = STEPS,
    aggregate: str = "iqm",
) -> str:
    """Builds the HTML text of a report of one run or several runs. For the arguments, see `write_report`."""
    if not runs:
        raise ValueError("A report needs at least one run. Pass folders of runs.")
    first = runs[0]
    heading = title or first.title
    sections = [
        _summary(runs, x, aggregate),
        html_section("Learning", _main_figure(runs, x, aggregate)),
        html_section("Findings", _findings(runs)),
        html_section("Video", _video(first.folder)),
        html_section("Measured while training", _small_figures(runs, x, aggregate)),
        html_section("Where the time went", _phases(first.history)),
        html_section("Settings", _settings(first, defaults)),
        html_section("Repeat it", _origin(first)),
    ]
    return html_page(heading, "\n".join(filter(None, sections)))


# ------------------------------------------------------------------------------------------------------------- parts


def _summary(runs: Sequence[Run], x: str, aggregate: str) -> str:
    history, origin = runs[0].history, runs[0].origin
    last = history.last
    steady = last.get(SECONDS, math.nan) - _total(history, "timers/compile_s")
    tiles = {
        **(_return_of_one(history) if len(runs) == 1 else _return_of_several(runs, x, aggregate)),
        "environment steps": number_text(last.get(STEPS, math.nan)),
        "iterations": f"{len(history):,}",
        "seconds": number_text(last.get(SECONDS, math.nan)),
        "steps/s after compiling": number_text(last.get(STEPS, math.nan) / steady) if steady > 0 else "–",
    }
    items = "".join(
        f"<div><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>" for name, value in tiles.items()
    )
    known = [str(origin[name]) for name in ("started", "hostname") if origin.get(name)]
    known += filter(None, [_form(runs)])
    if isinstance(origin.get("stopped"), Mapping):
        known.append(f"stopped: {origin['stopped'].get('reason')}")
    when = " · ".join(known)
    return f'<p class="when">{html.escape(when)}</p>\n<div class="tiles">{items}</div>'


def _form(runs: Sequence[Run]) -> str:
    """Sentence that says whether the runs were members of populations or were trained separately; empty for a single
    separate run.
    """
    together = [run for run in runs if run.origin.get("num_members")]
    if len(runs) == 1:
        return f"one of {runs[0].origin['num_members']} members of one program" if together else ""
    if not together:
        return "each run trained alone"
    alone = len(runs) - len(together)
    others = f"; {counted(alone, 'run')} trained alone" if alone else ""
    return f"{counted(len(together), 'run')} trained as members of populations, each of these one program{others}"


def _total(history: History, name: str) -> float:
    return float(np.nansum(history[name])) if name in history else 0.0


def _return_of_one(history: History) -> dict[str, str]:
    returns = history[RETURN][np.isfinite(history[RETURN])] if RETURN in history else np.array([math.nan])
    parts = columns_of_agents(history.columns)
    of_all = " of all agents" if parts else ""
    ends = {f"mean return{of_all} at the end": returns[-1], f"best mean return{of_all}": returns.max()}
    for name, column in parts.items():
        known = history[column][np.isfinite(history[column])]
        ends[f"mean return of {name} at the end"] = known[-1]
    return {name: number_text(value) for name, value in ends.items()}


def _return_of_several(runs: Sequence[Run], x: str, aggregate: str) -> dict[str, str]:
    try:
        band, *others = bands_of(runs, RETURN, x, aggregate=aggregate)
    except (KeyError, ValueError):
        return {"runs": str(len(runs))}
    if others:
        return {"runs, of several kinds": str(len(runs))}
    name = {"iqm": "interquartile mean"}.get(aggregate, aggregate)
    *of_agents, _ = bands_by_agent(runs, RETURN, x, aggregate=aggregate)
    return {
        f"return at the end, {name} of {len(band.curves)} seeds": number_text(band.middle[-1]),
        "its 95 % interval": f"{number_text(band.low[-1])} … {number_text(band.high[-1])}",
        **{f"return of {own.label} at the end, {name}": number_text(own.middle[-1]) for own in of_agents},
    }


def _main_figure(runs: Sequence[Run], x: str, aggregate: str) -> str:
    return _figure(runs, RETURN, x, aggregate, role="main", width=5.8, height=3.0)


def _small_figures(runs: Sequence[Run], x: str, aggregate: str) -> str:
    # Curves of several groups are not drawn together with those of their agents.
    agents = columns_of_agents(runs[0].history.columns) if len(grouped(runs)) > 1 else {}
    keys = [*agents.values(), *_keys(runs[0].history)]
    figures = [_figure(runs, key, x, aggregate, role="small", width=4.6, height=2.7) for key in keys]
    return f'<div class="grid">{"".join(figures)}</div>' if any(figures) else ""


def _keys(history: History) -> Iterator[str]:
    """Yields the names of the metrics that a report draws as small figures.

    These are metrics of the whole run, and metrics of each module, such as losses. Yields only metrics in the run's
    history.
    """
    yield from (key for key in _CURVES if key in history)
    names = [key.split("/") for key in history.columns if key.startswith("learners/")]
    for module in dict.fromkeys(parts[1] for parts in names):
        yield from (key for name in _MODULE_CURVES if (key := f"learners/{module}/{name}") in history)


def _figure(runs: Sequence[Run], key: str, x: str, aggregate: str, *, role: str, width: float, height: float) -> str:
    from jaxrl_stack.runs.figures import draw

    try:
        bands = bands_by_agent(runs, key, x, aggregate=aggregate)
    except (KeyError, ValueError):
        return ""  # no numbers to draw
    title = key_label(key)
    module = key.split("/")[1] if key.startswith("learners/") else ""
    if module not in ("", "default_policy"):
        title = f"{title} ({module})"
    is_alone = len(bands) == 1
    figure = draw(
        bands, x_label=axis_label(x), y_label="", title=title, has_legend=not is_alone, width=width, height=height
    )
    return f'<figure class="{role}" role="img" aria-label="{html.escape(title)}">{figure.to_svg()}</figure>'


def _findings(runs: Sequence[Run]) -> str:
    """Formats the problems and hints that `diagnoses` finds in the runs as an HTML list.

    If several runs have the same finding, it appears once, with the text of the first run.
    """
    by_title: dict[str, list[Finding]] = {}
    for run in runs:
        for one in diagnoses(run.history, run.settings, has_reached_goal=run.has_reached_goal):
            by_title.setdefault(one.title, []).append(one)
    if not by_title:
        return "<p>None of the rules found anything to say.</p>"
    items = []
    for (first, *_), count in ((alike, len(alike)) for alike in by_title.values()):
        of = f" in {count} of {len(runs)} runs" if len(runs) > 1 else ""
        heading = html.escape(f"{_KINDS[first.kind]}{of}: {first.title}.")
        items.append(f'<li class="{first.kind}"><b>{heading}</b> {html.escape(first.text)}</li>')
    return f'<ul class="findings">{"".join(items)}</ul>'


def _video(folder: Path | None) -> str:
    """HTML of the newest video in a run's folder; empty if the folder contains no video."""
    if folder is None:
        return ""
    found = [path for path in folder.rglob("*") if path.suffix.lower() in _VIDEOS and path.is_file()]
    if not found:
        return ""
    newest = max(found, key=lambda path: (path.stat().st_mtime, path.name))
    name = html.escape(str(newest.relative_to(folder)))
    if newest.stat().st_size > _MAX_VIDEO_BYTES:
        return f"<p><code>{name}</code> has {newest.stat().st_size / 1e6:.0f} MB, too much to put it in here.</p>"
    return f'<figure class="video">{player(newest, str(newest.relative_to(folder)))}</figure>'


def _phases(history: History) -> str:
    seconds = {name: _total(history, f"timers/{name}") for name in _PHASES}
    total = sum(seconds.values())
    if not total > 0:
        return ""
    bar = "".join(
        f'<span style="width:{100 * seconds[name] / total:.2f}%;background:{color}"></span>'
        for name, (_, color) in _PHASES.items()
    )
    legend = "".join(
        f'<li><i style="background:{color}"></i>{label}: {number_text(seconds[name])} s '
        f"({seconds[name] / total:.0%})</li>"
        for name, (label, color) in _PHASES.items()
    )
    others = {
        name.removeprefix("timers/"): history.last[name]
        for name in history.last
        if name.startswith("timers/") and name.removeprefix("timers/") not in _PHASES
    }
    table = _table(("timer, last iteration", "seconds"), [(name, f"{value:.4g}") for name, value in others.items()])
    return f'<div class="bar">{bar}</div><ul class="legend">{legend}</ul>{table}'


def _settings(run: Run, defaults: Mapping[str, Any] | None) -> str:
    if not run.settings:
        return ""
    parts = []
    if defaults is not None:
        rows = [
            (name.removeprefix("_"), _json(run.settings.get(name)), _json(defaults.get(name)))
            for name in settings_that_differ([run.settings, defaults])
        ]
        header = ("setting", "here", "default")
        parts.append(_table(header, rows) if rows else "<p>All settings are the algorithm's defaults.</p>")
    everything = html.escape(json.dumps(run.settings, indent=1, sort_keys=True))
    parts.append(f"<details><summary>All settings</summary><pre>{everything}</pre></details>")
    return "".join(parts)


def _origin(run: Run) -> str:
    origin = run.origin
    parts = []
    if origin.get("command"):
        parts.append(f"<pre>{html.escape(str(origin['command']))}</pre>")
    rows = [("folder", str(run.folder.absolute()))] if run.folder is not None else []
    rows += [(name, str(origin[name])) for name in ("working_directory", "platform") if origin.get(name)]
    for name, state in (origin.get("git") or {}).items():
        if state:
            changed = ", with changes that are not committed" if state.get("dirty") else ""
            rows.append((f"git commit of {name}", f"{state.get('commit')}{changed}"))
    rows += [(name, str(version)) for name, version in (origin.get("versions") or {}).items()]
    parts.append(_table(("what", "value"), rows))
    return "".join(parts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
