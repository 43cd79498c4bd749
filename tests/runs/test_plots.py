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

from jaxrl_stack.runs.curves import RETURN, STEPS, Curve, aggregated
from jaxrl_stack.runs.figures import draw, draw_heat_map
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.plots import bands_of, compare, comparison_text, plot_runs, runs_as_text
from jaxrl_stack.runs.run import Run, common_title, find_runs, grouped
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
    assert list(groups) == ["lr=0.1", "lr=0.2"]
    assert [len(runs) for runs in groups.values()] == [3, 3]
    assert common_title(find_runs([folder])) == f"PPO on {ENV}"


def test_labels_say_what_differs_and_nothing_else(tmp_path):
    write_run(tmp_path / "a" / "PPO_gymnax-CartPole-v1_a", lr=0.1, seed=1)
    assert list(grouped(find_runs([tmp_path / "a"]))) == [f"PPO on {ENV}"]
    # Settings are named only where runs of an algorithm and environment differ.
    write_run(tmp_path / "a" / "SAC_gymnax-CartPole-v1_a", lr=0.2, seed=1)
    (tmp_path / "a" / "SAC_gymnax-CartPole-v1_a" / "run.json").write_text(json.dumps({"algorithm": "TQC"}))
    assert list(grouped(find_runs([tmp_path / "a"]))) == ["PPO", "TQC"]
    assert common_title(find_runs([tmp_path / "a"])) is None
    write_run(tmp_path / "a" / "PPO_gymnax-CartPole-v1_b", lr=0.2, seed=1)
    assert set(grouped(find_runs([tmp_path / "a"]))) == {"PPO, lr=0.1", "PPO, lr=0.2", "TQC"}
    for env in ("CartPole-v1", "Acrobot-v1"):
        write_run(tmp_path / "b" / f"PPO_{env}_a", env=env, seed=1)
    assert set(grouped(find_runs([tmp_path / "b"]))) == {"CartPole-v1", "Acrobot-v1"}
    write_run(tmp_path / "b" / "SAC_Acrobot-v1_a", env="Acrobot-v1", seed=1)
    assert "SAC on Acrobot-v1" in grouped(find_runs([tmp_path / "b"]))


def test_a_fork_is_apart_from_its_parent(tmp_path):
    for name in ("run", "fork_a", "fork_b"):
        folder = write_run(tmp_path / f"PPO_gymnax-CartPole-v1_{name}", lr=0.1, seed=len(name))
        if name != "run":
            origin = {"algorithm": "PPO", "parent": {"folder": str(tmp_path), "iteration": 3}}
            (folder / "run.json").write_text(json.dumps(origin))
    groups = grouped(find_runs([tmp_path]))
    assert {label: len(runs) for label, runs in groups.items()} == {f"PPO on {ENV}": 1, "from iteration 3": 2}


def test_of_nested_settings_the_entries_that_differ_are_named(tmp_path):
    for width in (8, 32):
        model = {"fcnet_hiddens": [width], "fcnet_activation": "tanh"}
        write_run(tmp_path / f"PPO_gymnax-CartPole-v1_{width}", model_config=model, env_config={"length": width})
    labels = [f"length={width} fcnet_hiddens=[{width}]" for width in (32, 8)]
    assert list(grouped(find_runs([tmp_path]))) == labels
    write_run(tmp_path / "PPO_gymnax-CartPole-v1_9", model_config={"length": 9}, env_config={"length": 8})
    assert "env_config.length=8 model_config.length=9" in grouped(find_runs([tmp_path]))


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
    with pytest.raises(
        FileNotFoundError, match="contains no run. Pass a folder that contains progress.csv or result.json"
    ):
        find_runs([tmp_path])
    (write_run(tmp_path / "run", lr=1) / "params.json").write_text("{")
    with pytest.raises(ValueError, match="params.json is not JSON"):
        find_runs([tmp_path])


# ------------------------------------------------------------------------------------------------------------ figures


def test_a_figure_has_a_line_for_each_group_and_a_band_for_its_seeds(folder, tmp_path):
    out = tmp_path / "made" / "figure.png"
    figure = plot_runs([folder], out=out, title="Two learning rates")
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == [f"lr={lr} (3 seeds)" for lr in (0.1, 0.2)]
    assert len(axes.collections) == 2 and axes.get_title(loc="left") == "Two learning rates"
    assert plot_runs([folder]).axes[0].get_title(loc="left") == f"PPO on {ENV}"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("environment steps", "mean episode return")
    assert out.read_bytes().startswith(b"\x89PNG")
    assert figure._repr_png_().startswith(b"\x89PNG")


def test_a_member_that_diverged_counts_with_its_last_value_and_does_not_cut_the_others():
    def run(returns, **origin):
        history = History()
        for i, value in enumerate(returns):
            history.append({RETURN: value, STEPS: 100 * (i + 1)})
        return Run("run", history, {"env": "E"}, {"algorithm": "PPO", **origin})

    ill = {"stopped": {"reason": "diverged: a loss is not finite", "is_goal": False}}
    (band,) = bands_of([run([0.0, 4.0, 8.0]), run([2.0], **ill), run([math.nan], **ill)], aggregate="mean")
    assert band.label == "PPO on E (3 seeds, 2 diverged)" and len(band.curves) == 2
    assert (band.x[0], band.x[-1], band.middle[-1]) == (100.0, 300.0, 5.0)
    (cut,) = bands_of([run([0.0, 4.0, 8.0]), run([2.0])], aggregate="mean")
    assert cut.x[-1] == 100.0


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
    with pytest.raises(ValueError, match="The file name .*curve.bmp must end in .png or .svg or .pdf"):
        history.plot(path=tmp_path / "curve.bmp")


def test_dollars_and_underscores_in_names_are_text(tmp_path):
    for name in ("_cost in $", "a $ b $", "$x_{$"):
        write_run(tmp_path / name)
    figure = plot_runs([tmp_path], title="to $ and $", out=tmp_path / "figure.svg")
    shown = "".join(ET.parse(tmp_path / "figure.svg").getroot().itertext())
    for text in ("_cost in $", "a $ b $", "$x_{$", "to $ and $"):
        assert text in shown
    assert len(figure.legends[0].get_texts()) == 3
    history = History.read(tmp_path / "a $ b $")
    assert history.plot(label="$a$ $", title="$b$ $", ax=Figure().subplots()).axes[0].get_title(loc="left") == "$b$ $"
    draw_heat_map(
        np.eye(2), rows=["$", "$a"], columns=["$", "$^"], row_label="$_", column_label="$_$", value_label="$"
    ).save(tmp_path / "map.svg")


def spiked(values, at=50, to=1e6):
    values = np.array(values, float)
    values[at] = to
    return Curve(np.arange(float(len(values))), values)


def test_single_values_far_away_do_not_squash_the_curve():
    rising = np.linspace(0.0, 100.0, 100)
    figure = draw([aggregated([spiked(rising)], "spiked")], x_label="x", y_label="y")
    (axes,) = figure.axes
    assert axes.get_ylim() == pytest.approx((-5.0, 105.0))
    assert [text.get_text() for text in axes.texts] == ["1 value outside, to 1M"]
    # Of the next curve in the same axes nothing is cut off, and the note counts anew.
    more = aggregated([spiked(rising + 100.0, at=0, to=-1e6)], "more")
    draw([more], x_label="x", y_label="y", ax=axes)
    assert axes.get_ylim() == pytest.approx((-10.0, 210.0))
    assert [text.get_text() for text in axes.texts] == ["2 values outside, to 1M"]
    # Of several seeds the band has it, too.
    (axes,) = draw([aggregated([spiked(rising), spiked(rising)], "two")], x_label="x", y_label="y").axes
    assert axes.get_ylim() == pytest.approx((-5.0, 105.0))


@pytest.mark.parametrize(
    "values",
    [
        np.linspace(0.0, 100.0, 100),
        # What was lost at the end, or learned at once, is no outlier, and neither is what a counter counts.
        [*np.linspace(0.0, 100.0, 90), *[-1e6] * 10],
        [*np.linspace(0.0, 100.0, 10), *[500.0] * 90],
        [*[0.0] * 50, 1.0, *[0.0] * 49],
        # Too short to tell.
        [0.0, 1.0, 2.0, 1e6, 4.0],
    ],
)
def test_curves_that_really_go_there_are_shown_whole(values):
    band = aggregated([Curve(np.arange(float(len(values))), np.asarray(values, float))], "curve")
    (axes,) = draw([band], x_label="x", y_label="y").axes
    low, high = axes.get_ylim()
    assert low <= min(values) and high >= max(values) and not axes.texts


def test_limits_and_scales_of_axes_are_the_users(folder):
    history = History.read(folder / "PPO_gymnax-CartPole-v1_0.1_0")
    (axes,) = history.plot(ylim=(None, 40.0), xscale="log", yscale="symlog").axes
    assert axes.get_ylim()[1] == 40.0 and (axes.get_xscale(), axes.get_yscale()) == ("log", "symlog")
    (axes,) = plot_runs([folder], ylim=(-5, 50), yscale="linear").axes
    assert axes.get_ylim() == (-5.0, 50.0)
    own = Figure().subplots()
    own.set_ylim(0.0, 7.0)
    draw([aggregated([spiked(np.linspace(0.0, 100.0, 100))], "a")], x_label="x", y_label="y", ax=own)
    assert own.get_ylim() == (0.0, 7.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ylim": (5, 1)}, r"ylim=\(5, 1\): must be \(low, high\) with low < high"),
        ({"ylim": 5}, "ylim=5: must be"),
        ({"ylim": (0, math.inf)}, "must be"),
        ({"xscale": "logarithmic"}, "xscale='logarithmic': must be one of 'linear', 'log', 'symlog'"),
        ({"zlim": 1}, "no option 'zlim'.*ylim, xscale, yscale"),
    ],
)
def test_an_axis_that_cannot_be_is_refused(folder, options, message):
    history = History.read(folder / "PPO_gymnax-CartPole-v1_0.1_0")
    with pytest.raises((TypeError, ValueError), match=message):
        history.plot(**options)


def test_a_logarithm_of_nothing_above_0_is_refused():
    negative = aggregated([Curve(np.arange(2.0), -np.ones(2))], "negative")
    with pytest.raises(
        ValueError, match="yscale='log' needs values above 0, but all values are 0 or less. Use yscale='symlog'"
    ):
        draw([negative], x_label="x", y_label="y", yscale="log")


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
    assert [row.label for row in rows] == [f"lr={lr} (3 seeds)" for lr in (0.2, 0.1)]
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
