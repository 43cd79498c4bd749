"""Figures of runs in folders, how runs are grouped, and drawings for terminals."""

from __future__ import annotations

import csv
import json
import math
import pathlib
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from matplotlib.figure import Figure

from jaxrl_stack.runs.curves import RETURN, Curve, aggregated
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.plots import compare, comparison_text, plot_runs, runs_as_text
from jaxrl_stack.runs.run import find_runs, grouped
from jaxrl_stack.runs.terminal import number_text, sparkline, text_plot

ENV = "gymnax/CartPole-v1"


def write_run(folder: pathlib.Path, *, top: float = 100.0, num_rows: int = 20, **settings) -> pathlib.Path:
    """A run whose return grows from 0 to a top, in a folder; without settings it has no params.json."""
    folder.mkdir(parents=True)
    if settings:
        (folder / "params.json").write_text(json.dumps({"env": ENV, **settings}))
    with (folder / "progress.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([RETURN, "num_env_steps_sampled_lifetime", "time_total_s", "training_iteration"])
        for i in range(num_rows):
            writer.writerow([top * i / (num_rows - 1), 1000 * (i + 1), 0.5 * (i + 1), i + 1])
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    """Two learning rates with three seeds each."""
    root = tmp_path_factory.mktemp("runs")
    for lr in (0.1, 0.2):
        for seed in range(3):
            write_run(root / f"PPO_gymnax-CartPole-v1_{lr}_{seed}", top=1000 * lr + seed, lr=lr, seed=seed)
    return root


# ------------------------------------------------------------------------------------------------------------- groups


def test_runs_that_differ_only_in_their_seed_are_one_group(folder):
    groups = grouped(find_runs([folder]))
    assert list(groups) == [f"PPO on {ENV}, lr=0.1", f"PPO on {ENV}, lr=0.2"]
    assert [len(runs) for runs in groups.values()] == [3, 3]


def test_settings_are_named_only_where_runs_of_an_algorithm_and_environment_differ(tmp_path):
    write_run(tmp_path / "PPO_gymnax-CartPole-v1_a", lr=0.1, seed=1)
    write_run(tmp_path / "SAC_gymnax-CartPole-v1_a", lr=0.2, seed=1)
    (tmp_path / "SAC_gymnax-CartPole-v1_a" / "run.json").write_text(json.dumps({"algorithm": "TQC"}))
    assert list(grouped(find_runs([tmp_path]))) == [f"PPO on {ENV}", f"TQC on {ENV}"]


def test_runs_of_unknown_settings_are_groups_of_their_own(tmp_path):
    write_run(tmp_path / "first")
    write_run(tmp_path / "second")
    write_run(tmp_path / "deep" / "first")
    assert set(grouped(find_runs([tmp_path]))) == {"first", "second", "first (2)"}


def test_a_table_can_be_named_itself_and_every_run_counts_once(tmp_path):
    run = write_run(tmp_path / "run")
    (tmp_path / "other.csv").write_text((run / "progress.csv").read_text())
    found = find_runs([run, tmp_path, tmp_path / "other.csv"])
    assert [one.name for one in found] == ["run", "other"]


def test_a_place_without_runs_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run is there. A run has a progress.csv or a result.json"):
        find_runs([tmp_path])
    (write_run(tmp_path / "run", lr=1) / "params.json").write_text("{")
    with pytest.raises(ValueError, match="params.json is no JSON"):
        find_runs([tmp_path])


# ------------------------------------------------------------------------------------------------------------ figures


def test_a_figure_has_a_line_for_each_group_and_a_band_for_its_seeds(folder, tmp_path):
    out = tmp_path / "made" / "figure.png"
    figure = plot_runs([folder], out=out, title="Two learning rates")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [f"PPO on {ENV}, lr={lr} (3 seeds)" for lr in (0.1, 0.2)]
    assert len(axes.collections) == 2
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "mean episode return")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_group_alone_shows_its_seeds_as_well(folder):
    (axes,) = plot_runs([f"{folder}/PPO_gymnax-CartPole-v1_0.1_{seed}" for seed in range(3)], x="time").axes
    assert len(axes.lines) == 4 and axes.get_xlabel() == "seconds"
    np.testing.assert_allclose(axes.lines[3].get_ydata()[-1], np.mean([100.0, 101.0, 102.0]))


def test_an_svg_holds_its_text_and_is_the_same_file_again(folder, tmp_path):
    paths = [tmp_path / "a.svg", tmp_path / "b.svg"]
    for path in paths:
        plot_runs([folder], out=path)
    assert "mean episode return" in "".join(ET.parse(paths[0]).getroot().itertext())
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_history_draws_itself_into_a_figure_of_its_own_or_of_the_users(folder, tmp_path):
    history = History.read(folder / "PPO_gymnax-CartPole-v1_0.1_0")
    figure = history.plot(path=tmp_path / "curve.svg", x="iterations")
    assert len(figure.axes[0].lines) == 1 and (tmp_path / "curve.svg").is_file()
    own = Figure()
    left, right = own.subplots(1, 2)
    assert history.plot(ax=left) is own
    assert len(left.lines) == 1 and len(right.lines) == 0
    assert history.plot(ax=figure.axes[0], label="once more") is figure
    assert len({line.get_color() for line in figure.axes[0].lines}) == 2
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["env_runners/episode_return_mean", "once more"]
    with pytest.raises(KeyError, match="'env_runners/episode_return_mean'"):
        history.plot("episode_return_mean")
    with pytest.raises(ValueError, match="curve.bmp: the name of a figure ends in .png or .svg or .pdf"):
        history.plot(path=tmp_path / "curve.bmp")


def test_a_number_that_some_runs_do_not_have_is_drawn_of_the_others(folder, tmp_path):
    other = write_run(tmp_path / "other")
    (other / "progress.csv").write_text("num_env_steps_sampled_lifetime\n1\n")
    assert len(plot_runs([folder, other]).axes[0].lines) == 2
    with pytest.raises(KeyError, match="no number 'env_runners/episode_return_mean'"):
        plot_runs([other])


def test_without_matplotlib_the_error_names_what_to_install(folder, monkeypatch):
    monkeypatch.delitem(sys.modules, "jaxrl_stack.runs.figures", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"A figure needs matplotlib .*: pip install 'jaxrl-stack\[plots\]'"):
        plot_runs([folder])
    assert "lr=0.1 (3 seeds)" in runs_as_text([folder])


# ----------------------------------------------------------------------------------------------------------- in words


def test_a_comparison_says_who_ended_higher_and_how_sure_that_is(folder):
    rows = compare([folder])
    assert [row.label for row in rows] == [f"PPO on {ENV}, lr={lr} (3 seeds)" for lr in (0.2, 0.1)]
    # The mean of a line over its last tenth is at 95 % of it.
    np.testing.assert_allclose([row.last for row in rows], [0.95 * 201.0, 0.95 * 101.0])
    np.testing.assert_allclose([row.area for row in rows], [0.5 * 201.0, 0.5 * 101.0])
    # All of three draws are the lowest run in one of 27 resamples, which is more than 2.5 %.
    np.testing.assert_allclose((rows[0].low, rows[0].high), (0.95 * 200.0, 0.95 * 202.0))
    assert [row.x for row in rows] == [20_000.0, 20_000.0]
    header, first, _ = comparison_text(rows).splitlines()
    assert "95 % interval" in header and "190 … 191.9" in first and "20k" in first


def test_a_sparkline_rises_with_its_numbers():
    assert sparkline(range(8)) == "▁▂▃▄▅▆▇█"
    assert sparkline([0.0, math.nan, 7.0]) == "▁ █"
    assert sparkline([5.0, 5.0]) == "▅▅"
    assert len(sparkline(np.arange(1000.0), 30)) == 30
    assert (sparkline([]), sparkline([math.nan])) == ("", " ")


def test_a_drawing_for_terminals_rises_and_names_the_ends_of_its_axes():
    x = np.linspace(0.0, 250_000.0, 50)
    text = text_plot(aggregated([Curve(x, x / 500.0)], "PPO"), x_label="environment steps", width=40, height=5)
    title, *drawn, axis, below = text.splitlines()
    assert title == "PPO" and len(drawn) == 5 and max(map(len, drawn)) <= 40
    assert drawn[0].startswith("500 │") and drawn[-1].startswith("  0 │")
    # Blanks before what is drawn: less of them in each line further down.
    blanks = [len(line.split("│")[1]) - len(line.split("│")[1].lstrip("\u2800")) for line in drawn]
    assert blanks == sorted(blanks, reverse=True) and blanks[-1] == 0
    assert axis.startswith("    └─") and "0 " in below and below.endswith("250k") and "environment steps" in below


def test_a_flat_curve_and_one_of_a_single_point_can_be_drawn():
    for count in (1, 3):
        band = aggregated([Curve(np.arange(count, dtype=float), np.ones(count))], "flat")
        assert len(text_plot(band, x_label="x", height=4).splitlines()) == 7


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.0, "1234"),
        (12_345.0, "12.35k"),
        (1.5e6, "1.5M"),
        (2e9, "2G"),
        (-2e4, "-20k"),
        (1e-4, "0.0001"),
    ],
)
def test_numbers_are_short(value, text):
    assert number_text(value) == text
