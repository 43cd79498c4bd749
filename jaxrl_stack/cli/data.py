"""``jaxrl data``: prints a summary of recorded steps."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.cli.common import reading_options, wrong_input

if TYPE_CHECKING:
    from jaxrl_stack.datasets.opening import Dataset
    from jaxrl_stack.datasets.summary import Summary

_MOST_PANELS = 6


def run(arguments: argparse.Namespace) -> int:
    """Prints a summary of recorded steps as text or JSON.

    The summary contains numbers of files, steps and episodes, environment, spaces, returns, lengths and actions. With
    ``--out``, also draws a figure.

    Raises:
        CliError: If nothing can be read.
    """
    from jaxrl_stack.datasets.opening import open_dataset
    from jaxrl_stack.datasets.read_options import ReadOptions
    from jaxrl_stack.datasets.summary import summary_of
    from jaxrl_stack.runs.figures import checked_figure_path
    from jaxrl_stack.utils.memory import available_host_bytes

    with wrong_input():
        if arguments.out is not None:
            checked_figure_path(arguments.out)
        data = open_dataset(arguments.paths, options=ReadOptions.from_settings(reading_options(arguments)))
        free = available_host_bytes()
        found = summary_of(data.parts(None if free is None else free // 4), data.info.action_space)
    if arguments.json:
        print(json.dumps({**_described(data), **found.as_json()}, indent=2))
    else:
        _print(data, found)
    if arguments.out is not None:
        _draw(found, " ".join(arguments.paths), arguments.out)
        if not arguments.json:
            print(f"Figure: {arguments.out}")
    return 0


def _described(data: Dataset) -> dict[str, Any]:
    """Returns metadata of recorded data as a dict: number of files, environment, seed, observation space, action space
    and versions.
    """
    info = data.info
    return {
        "num_files": sum(reader.num_files for _, reader in data.readers),
        "env": info.env_id,
        "seed": info.seed,
        "observation_space": None if info.observation_space is None else str(info.observation_space),
        "action_space": None if info.action_space is None else str(info.action_space),
        "versions": dict(info.versions),
    }


def _print(data: Dataset, found: Summary) -> None:
    from jaxrl_stack.runs.terminal import number_text, sparkline, table_text

    about = _described(data)
    files = f"{about['num_files']:,} file{'s' * (about['num_files'] != 1)}"
    print(f"{files}: {found.num_steps:,} steps of {found.num_episodes:,} episodes")
    ends = f"{found.num_terminated:,} terminated, {found.num_truncated:,} truncated, {found.num_cut:,} not whole"
    rows = [("episodes", ends), ("environment", about["env"] or "not said")]
    rows += [(name.replace("_", " "), about[name] or "not said") for name in ("observation_space", "action_space")]
    rows += [("column", f"{name}: {kind}") for name, kind in found.columns.items()]
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        print(f"{name:<{width}}  {text}")
    table = []
    for name, values in (("return", found.returns), ("length", found.lengths)):
        if np.isnan(values).any():
            table.append([name, "not recorded", *[""] * 6])
            continue
        numbers = np.percentile(values, [0, 25, 50, 75, 100]).tolist()
        bars = sparkline(np.histogram(values, bins=20)[0])
        table.append([name, *map(number_text, [float(np.mean(values)), *numbers]), bars])
    print(table_text(["", "mean", "min", "25 %", "50 %", "75 %", "max", "how often"], table))
    for own, moments in zip(found.actions[:_MOST_PANELS], _by_component(found), strict=False):
        print(f"{own.name}: {_actions_as_text(own, moments)}")


def _by_component(found: Summary) -> list[Any]:
    """Returns the moments (mean, standard deviation, ...) that belong to each histogram in ``found.actions``.

    The result is a list in the order of the histograms. An item is None if the actions of its histogram are discrete,
    because only continuous actions have moments.
    """
    moments = iter(found.action_moments)
    return [None if own.edges is None else next(moments) for own in found.actions]


def _actions_as_text(own: Any, moments: Any) -> str:
    from jaxrl_stack.runs.terminal import number_text, sparkline

    if moments is not None:
        numbers = (moments.mean, moments.std, moments.min, moments.max)
        mean, std, low, high = map(number_text, numbers)
        return f"mean {mean}, standard deviation {std}, from {low} to {high}  {sparkline(own.counts)}"
    total = own.counts.sum()
    if len(own.labels) > 20:
        return f"{len(own.labels)} values  {sparkline(own.counts)}"
    return ", ".join(f"{value} {count / total:.1%}" for value, count in zip(own.labels, own.counts, strict=True))


def _draw(found: Summary, title: str, path: str) -> None:
    from jaxrl_stack.datasets.summary import histogram_of
    from jaxrl_stack.runs.figures import draw_histograms

    lengths = histogram_of("episode length", found.lengths.astype(np.float64))
    has_returns = not np.isnan(found.returns).any()
    returns = [histogram_of("episode return", found.returns)] if has_returns else []
    panels = [*returns, lengths, *found.actions[: _MOST_PANELS - 2]]
    with wrong_input("--out"):
        draw_histograms(
            {own.name: (own.counts, own.labels if own.edges is None else own.edges) for own in panels},
            title=title,
            path=path,
        )
