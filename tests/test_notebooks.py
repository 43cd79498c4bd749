"""The notebooks run from top to bottom, at toy size, and show what they promise."""

from __future__ import annotations

import os
import pathlib

import nbclient
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[1]


NOTEBOOKS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """What kernels alone find in their environment: toy size, nothing written outside of the test's folders."""
    return {
        "JAXRL_NOTEBOOK_TOY": "1",
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
        "TMPDIR": str(tmp_path_factory.mktemp("temporary")),
    }


def executed(name, environment):
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, kernel_name="python3").execute(env=os.environ | environment)
    return notebook


@pytest.fixture(scope="module")
def quickstart(environment):
    return executed("01_quickstart.ipynb", environment)


@pytest.fixture(scope="module")
def gymnasium_and_tune(environment, ray_session):
    address = ray_session.get_runtime_context().gcs_address
    return executed("02_gymnasium_and_tune.ipynb", environment | {"RAY_ADDRESS": address})


@pytest.fixture(scope="module")
def pixels_and_memory(environment):
    return executed("03_pixels_and_memory.ipynb", environment)


@pytest.fixture(scope="module")
def seeds_and_sweeps(environment):
    return executed("04_seeds_and_sweeps.ipynb", environment)


@pytest.fixture(scope="module")
def recorded_steps(environment):
    return executed("05_recorded_steps.ipynb", environment)


@pytest.fixture(scope="module")
def worth(environment):
    return executed("06_what_a_policy_is_worth.ipynb", environment)


@pytest.fixture(scope="module")
def two_policies(environment):
    return executed("07_two_policies.ipynb", environment)


@pytest.fixture(scope="module")
def population_based_training(environment):
    return executed("08_population_based_training.ipynb", environment)


@pytest.fixture(scope="module")
def collapse(environment):
    return executed("09_find_a_collapse.ipynb", environment)


@pytest.fixture(scope="module")
def connect_four(environment):
    return executed("10_connect_four.ipynb", environment)


def outputs(notebook, cell_id):
    cell = next(cell for cell in notebook.cells if cell.id == cell_id)
    return cell.outputs


def data(notebook, cell_id, mime):
    return [out.data[mime] for out in outputs(notebook, cell_id) if mime in out.get("data", {})]


def text(notebook, cell_id):
    return "".join(out.text for out in outputs(notebook, cell_id) if out.get("name") == "stdout")


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_it_is_stored_as_it_ran(name):
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {out.output_type for cell in code for out in cell.outputs}
    assert "error" not in kinds and kinds & {"execute_result", "display_data"}
    assert (ROOT / "notebooks" / name).stat().st_size < 2_000_000


def test_the_config_is_shown_as_a_table(quickstart):
    (html,) = data(quickstart, "config", "text/html")
    assert "<table>" in html
    assert "gymnax/CartPole-v1" in html


def test_the_curve_is_one_display_that_is_updated(quickstart):
    # Not one display per iteration: updates replace it. The last line of the cell is the result.
    (live, result) = data(quickstart, "train", "text/html")
    assert "<svg" in live and "iteration 3" in live
    assert "training_iteration" in result


def test_evaluation_history_and_video(quickstart):
    assert text(quickstart, "evaluate").startswith("10 episodes, mean return ")
    (table,) = data(quickstart, "evaluate", "text/html")
    assert "env_runners/episode_return_mean" in table
    (video,) = data(quickstart, "render", "text/html")
    assert 'src="data:video/mp4;base64,' in video
    assert len(video) < 2_000_000


def test_the_custom_module_trains_too(quickstart):
    shown = text(quickstart, "custom")
    assert "Residual" in shown
    assert "hidden/kernel" in shown
    assert len(data(quickstart, "compare", "image/png")) == 1


def test_gymnasium_trains_evaluates_and_calls_back(gymnasium_and_tune):
    (live, _) = data(gymnasium_and_tune, "train", "text/html")
    assert "iteration 2" in live
    (first, second) = text(gymnasium_and_tune, "callback").splitlines()
    assert first.startswith("iteration 1: return ") and second.startswith("iteration 2: return ")
    assert "10 episodes in a stronger current" in second and "nan" not in second
    for cell in ("curve", "act"):
        assert len(data(gymnasium_and_tune, cell, "image/png")) == 1


def test_tune_finds_the_best_trial(gymnasium_and_tune):
    shown = text(gymnasium_and_tune, "tune")
    assert "lr 0.001: " in shown
    assert "PPO(env='CartPole-v1', iteration=2" in shown


def test_pixels_and_masks_are_shown(pixels_and_memory):
    (live, _) = data(pixels_and_memory, "pixels", "text/html")
    assert "Breakout-MinAtar" in live and "iteration 2" in live
    assert text(pixels_and_memory, "planes").startswith("action: ")
    assert "share of rows without a valid action: 0.0" in text(pixels_and_memory, "mask")
    assert text(pixels_and_memory, "moves") == "with one match: [1.0, 0.0, 0.0]\n"
    for cell in ("planes", "moves"):
        assert len(data(pixels_and_memory, cell, "image/png")) == 1


def test_a_network_with_memory_stands_beside_one_without_and_acts(pixels_and_memory):
    assert len(data(pixels_and_memory, "memory", "text/html")) == 2
    assert len(data(pixels_and_memory, "compare", "image/png")) == 1
    (kept, dropped) = text(pixels_and_memory, "act").splitlines()
    assert kept.startswith("the state goes from step to step: ") and dropped.startswith("every step starts anew: ")


def test_seeds_are_a_band_and_the_best_of_them_is_evaluated(seeds_and_sweeps):
    (live,) = data(seeds_and_sweeps, "seeds", "text/html")
    assert "4 x PPO" in live and "iteration 4" in live
    assert "Reached by: 4 of 4 members, 0 diverged" in text(seeds_and_sweeps, "seeds")
    assert text(seeds_and_sweeps, "table").startswith("4 iterations of 4 members\n")
    assert ": 10 episodes, mean return " in text(seeds_and_sweeps, "best")
    assert len(data(seeds_and_sweeps, "band", "image/png")) == 1


def test_a_sweep_is_a_table_and_a_map(seeds_and_sweeps):
    header, *rows = text(seeds_and_sweeps, "sweep").strip().splitlines()
    assert header.split()[:3] == ["lr", "entropy_coeff", "seeds"] and len(rows) == 6
    assert len(data(seeds_and_sweeps, "map", "image/png")) == 1


def test_what_was_recorded_is_shown_and_learned_from(recorded_steps):
    assert "beginner: " in text(recorded_steps, "look") and "steps of 4 episodes" in text(recorded_steps, "look")
    lines = text(recorded_steps, "compare").splitlines()
    assert [line.split(":")[0] for line in lines] == ["BC", "MARWIL"]
    assert len(data(recorded_steps, "figure", "image/png")) == 1
    assert "action" in text(recorded_steps, "serve")


def test_estimates_of_policies_stand_beside_the_truth(worth):
    shown = text(worth, "estimate")
    assert all(f"{name}\n5 episodes" in shown for name in ("BC", "CQL", "IQL")) and "effective episodes" in shown
    assert [line.split(":")[0] for line in text(worth, "truth").splitlines()] == ["BC", "CQL", "IQL"]
    assert len(data(worth, "figure", "image/png")) == 1


def test_two_policies_have_a_curve_and_games(two_policies):
    assert "'learned': " in text(two_policies, "train") and "'random': " in text(two_policies, "train")
    assert len(data(two_policies, "train", "image/png")) == 1
    assert text(two_policies, "evaluate").startswith("4 games: learned ")
    (video,) = data(two_policies, "evaluate", "text/html")
    assert 'src="data:video/mp4;base64,' in video
    assert text(two_policies, "policy").startswith("opens with field ")


def test_population_based_training_has_a_lineage_and_a_config(population_based_training):
    assert text(population_based_training, "pbt").splitlines()[0].split()[:2] == ["lr", "seeds"]
    assert len(data(population_based_training, "lineage", "image/png")) == 1
    assert text(population_based_training, "config").startswith("config.training(lr=")


def test_a_collapse_is_found_and_undone(collapse):
    assert text(collapse, "find") == "suspect: iteration 4\n"
    assert text(collapse, "verify").startswith("Equal: iterations 3 to 5 ")
    assert '"arguments": {"lr": 0.3}' in text(collapse, "commands")
    assert text(collapse, "commands").endswith("learning rate: 0.002 in iteration 3, 0.3 in iteration 4\n")
    assert text(collapse, "fork") == "after iteration 3: lr=0.002\n"
    for cell in ("look", "inspect", "compare"):
        assert len(data(collapse, cell, "image/png")) == 1


def test_connect_four_has_a_win_rate_ratings_and_a_game(connect_four):
    assert " snapshots after 512 steps" in text(connect_four, "train")
    for cell in ("train", "elo"):
        assert len(data(connect_four, cell, "image/png")) == 1
    (table,) = data(connect_four, "tournament", "text/html")
    assert "vs random" in table
    (game,) = data(connect_four, "record", "text/html")
    assert 'src="data:image/gif;base64,' in game
    assert text(connect_four, "play").startswith("jaxrl play ")
