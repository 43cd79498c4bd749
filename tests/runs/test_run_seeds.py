"""The same config with several seeds."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

from jaxrl_stack.runs.curves import RETURN, STEPS
from jaxrl_stack.runs.history import History
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.seeds import SeedRuns, run_seeds
from tests import programs

CONFIG = programs.run(seed=77)


@pytest.fixture(scope="module")
def seeds() -> SeedRuns:
    """Two seeds of three iterations."""
    return run_seeds(CONFIG, [5, 6], {"training_iteration": 3}, progress=False)


def test_seeds_differ_and_repeat_and_the_config_keeps_its_own(seeds):
    assert [run.name for run in seeds.runs] == ["seed 5", "seed 6"]
    assert [run.settings["seed"] for run in seeds.runs] == [5, 6]
    first, second = seeds.histories
    assert len(first) == len(second) == 3
    assert not np.array_equal(first[RETURN], second[RETURN])
    again = run_seeds(CONFIG, [6, 7], {"training_iteration": 3}, progress=False).histories[0]
    np.testing.assert_array_equal(again[RETURN], second[RETURN])
    assert CONFIG.seed == 77


def test_seeds_are_members_of_one_program(seeds, capsys):
    assert seeds.is_one_program
    first, second = (history["timers/compile_s"] for history in seeds.histories)
    assert first[0] > 0.0 and not first[1:].any()
    np.testing.assert_array_equal(first, second)
    loop = run_seeds(CONFIG, [5, 6], {"training_iteration": 1}, one_program=False, progress=False)
    assert not loop.is_one_program
    np.testing.assert_allclose(loop.histories[1][RETURN], seeds.histories[1][RETURN][:1], rtol=1e-6)


def test_their_curves_are_one_band_and_a_figure_is_a_line(seeds, tmp_path):
    band = seeds.band(aggregate="mean")
    assert (len(band.curves), band.label) == (2, "PPO on gymnax/CartPole-v1 (2 seeds)")
    ends = [history[RETURN][-1] for history in seeds.histories]
    np.testing.assert_allclose(band.middle[-1], np.mean(ends), rtol=1e-12)
    seeds.plot(tmp_path / "seeds.png")
    assert (tmp_path / "seeds.png").stat().st_size > 10_000
    text = seeds.report(tmp_path / "report.html").read_text()
    assert "minibatch_size" in text and "PPO on gymnax/CartPole-v1" in text


def test_printed_it_is_a_table_of_each_seed_and_of_all(seeds):
    header, *rows = str(seeds).splitlines()
    assert re.split("  +", header) == ["run", "seeds", "last 10 %", "95 % interval", "whole curve", "environment steps"]
    cells = [re.split("  +", row) for row in rows]
    assert [row[:2] for row in cells] == [["seed 5", "1"], ["seed 6", "1"], ["all", "2"]]
    last = [float(row[2]) for row in cells]
    assert last[2] == pytest.approx(np.mean(last[:2]), rel=1e-3)
    assert cells[2][3] == f"{cells[np.argmin(last)][2]} … {cells[np.argmax(last)][2]}"
    only = dataclasses.replace(seeds, runs=seeds.runs[:1])
    assert len(str(only).splitlines()) == 2
    assert "iterations" in seeds.table("timers/compile_s", "iterations")


def test_dashes_and_a_hint_take_the_place_of_a_return_that_is_unknown(seeds):
    unknown, without = History(), History()
    unknown.append({"env_runners": {"episode_return_mean": np.nan}, STEPS: 8.0})
    runs = (dataclasses.replace(seeds.runs[0], history=unknown), seeds.runs[1])
    rows = str(dataclasses.replace(seeds, runs=runs)).splitlines()
    assert rows[1].split() == ["seed", "5", "1", "–", "–", "–", "–"]
    assert rows[3].split() == ["all", *rows[2].split()[2:]]
    runs = (dataclasses.replace(seeds.runs[0], history=without),)
    assert "table(key)" in str(dataclasses.replace(seeds, runs=runs))


def test_a_line_tells_of_each_seed(capsys):
    run_seeds(CONFIG, [5], {"training_iteration": 1})
    assert capsys.readouterr().out.startswith("seed 5 (1 of 1): return ")


def test_what_cannot_be_is_refused_before_anything_is_built():
    with pytest.raises(ValueError, match=r"run_seeds\(seeds=0\): must be at least one"):
        run_seeds(CONFIG, 0, {"training_iteration": 1})
    with pytest.raises(ValueError, match=r"run_seeds\(until=None\): until is required. Set the end of a run"):
        run_seeds(CONFIG, 2, None)


def test_each_seed_of_one_program_writes_a_folder(tmp_path):
    config = CONFIG.copy().reporting(results_dir=tmp_path)
    done = run_seeds(config, [5, 6], {"training_iteration": 1}, progress=False)
    assert done.is_one_program and [run.folder for run in done.runs] == [tmp_path / "seed_5", tmp_path / "seed_6"]
    for run in done.runs:
        read = Run.read(run.folder)
        assert read.settings["seed"] == run.settings["seed"]
        np.testing.assert_array_equal(read.history[RETURN], run.history[RETURN])
