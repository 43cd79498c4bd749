"""Iterations of populations that are recomputed from a folder: all members, bit for bit."""

from __future__ import annotations

import csv
import dataclasses
import shutil
import types
from pathlib import Path

import numpy as np
import pytest

from jaxrl_stack.algorithms.member_runs import Ended
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.checkpoints.names import METADATA_FILE
from jaxrl_stack.checkpoints.newest import checkpoints_in
from jaxrl_stack.cli import main
from jaxrl_stack.rewind.population_timeline import PopulationTimeline, _iterations, _Row, is_population
from jaxrl_stack.rewind.populations import population_at
from jaxrl_stack.rewind.replay import rewind_population
from jaxrl_stack.rewind.verification import verify, verify_population
from jaxrl_stack.runs.commands import COMMANDS_FILE, CommandLog
from jaxrl_stack.runs.history import TABLE_FILE
from jaxrl_stack.runs.member_history import MEMBERS_FILE
from jaxrl_stack.runs.origin import ORIGIN_FILE, add_to_origin, read_origin
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.state_comparison import compared_leaves, differences
from jaxrl_stack.runs.timeline import NotRecomputableError
from tests import programs

LAST = 7


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Seven iterations of three members with three commands, and checkpoints of iterations 3, 6 and 7."""
    folder = tmp_path_factory.mktemp("rewind")
    population = programs.ppo().reporting(results_dir=folder, checkpoint_frequency=3).build_population(seeds=3)
    states = {0: population.get_state("driver")}
    for iteration in range(1, LAST):
        population.train()
        states[iteration] = population.get_state("driver")
        if iteration == 2:
            population.copy([0], [2])
        if iteration == 4:
            population.change_settings({1: {"lr": 3e-3}})
        if iteration == 5:
            population.keep([0, 2])
    population.learn(1, progress=False)
    states[LAST] = population.get_state("driver")
    population.stop()
    return types.SimpleNamespace(folder=folder, states=states)


@pytest.fixture
def folder(trained, tmp_path) -> Path:
    """A copy of the population's folder, to change."""
    shutil.copytree(trained.folder, tmp_path / "run")
    return tmp_path / "run" / "population"


@pytest.mark.parametrize("iteration", [2, 5])
def test_recomputed_members_have_the_bits_of_the_population(trained, iteration):
    population = population_at(trained.folder / "population", iteration)
    assert population.iteration == iteration
    assert len(compared_leaves(population.get_state("driver"))) > 30
    assert differences(trained.states[iteration], population.get_state("driver")) == []
    population.learn(1, progress=False)
    population.stop()
    # It writes nothing.
    assert [*checkpoints_in(trained.folder / "population", metadata_file=METADATA_FILE)] == [3, 6, 7]
    assert not (trained.folder / "population_2").exists()


def test_the_commands_of_the_shell(folder, capsys):
    assert main(["verify", str(folder)]) == 0
    assert capsys.readouterr().out == "Equal: iterations 1 to 7 of population have the recorded bits (7 recomputed).\n"
    assert main(["rewind", str(folder), "--to", "5"]) == 0
    out = capsys.readouterr().out
    assert f"Checkpoint: {folder}/checkpoint_000005\nIterations: 2 recomputed" in out
    assert f"Population.from_checkpoint('{folder}/checkpoint_000005')" in out
    # Later iterations begin with it: it contains the commands before it, and fingerprints.
    assert main(["verify", str(folder), "--from", "6"]) == 0
    again = population_at(folder, 5)
    assert again.config.checkpoint_frequency is None and np.isfinite(again.history["fingerprint/low"]).all()
    again.stop()
    assert main(["rewind", str(folder), "--to", "99"]) == 2
    assert (
        "iteration 99 is not recorded. Recorded since the start or last restore: iterations 1 to 7."
        in capsys.readouterr().err
    )
    member = folder.parent / "seed_1"
    assert (member / TABLE_FILE).exists() and main(["rewind", str(member), "--to", "3"]) == 2
    assert "jaxrl rewind " in (error := capsys.readouterr().err) and "/population --to N" in error


class Counted(float):
    """Number that counts comparisons with it."""

    comparisons = 0

    def __le__(self, other):
        Counted.comparisons += 1
        return super().__le__(other)


def test_a_long_table_is_read_in_one_pass():
    """The work of a row must not grow with the rows before it. At the end, iteration 3 is repeated with member 1 only:
    the rows of member 0, which has stopped, are of an abandoned course, too.
    """
    rows = [_Row(member, Counted(own), 1.0, own, 0.0) for member in range(2) for own in range(1, 1001)]
    found = _iterations([*rows, _Row(1, Counted(3), 2.0, 7.0, 0.0)])
    assert Counted.comparisons < 3 * len(rows)
    assert found[2].fingerprints == {0: (2, 0), 1: (2, 0)} and found[3] == (2, {1: (7, 0)})
    assert [*found] == [1, 2, 3]


def test_one_changed_bit_is_found_with_its_iteration_and_member(folder):
    table = folder / MEMBERS_FILE
    with table.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    (row,) = [row for row in rows if (row["member"], row["training_iteration"]) == ("1", "2.0")]
    row["fingerprint/high"] = str(float(int(float(row["fingerprint/high"])) ^ 1))
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row))
        writer.writeheader()
        writer.writerows(rows)
    found = verify(folder, last=3)
    assert (found.exit_code, found.iteration, found.member) == (1, 2, 1)
    assert "Iteration 2 of member 1 differs" in str(found)
    # In a checkpoint, which its checksums find before anything is repeated.
    (arrays, *_) = sorted((folder / "checkpoint_000003").rglob("*.safetensors"))
    content = bytearray(arrays.read_bytes())
    content[-1] ^= 1
    arrays.write_bytes(content)
    found = verify(folder)
    assert found.exit_code == 1 and "checkpoint_000003" in found.changed[0] and found.num_recomputed == 0


def test_verify_compares_something_or_refuses(folder):
    """Without fingerprints, only iterations with a stored checkpoint (3, 6 and 7) can be compared."""
    table = (folder / MEMBERS_FILE).read_text()
    with (folder / MEMBERS_FILE).open("w", newline="") as file:
        rows = [*csv.DictReader(table.splitlines())]
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "fingerprint/low": "", "fingerprint/high": ""} for row in rows)
    with pytest.raises(NotRecomputableError, match=r"iteration 5 has neither a fingerprint .* with a checkpoint"):
        verify(folder, 4, 5)


def test_another_state_in_a_checkpoint_is_found_with_the_member_that_differs(folder):
    """Its checksums are right: only the repeated iterations show it."""
    population = population_at(folder, 3)
    state = population.get_state()
    leaves = state["driver"]["members"]
    name = next(path for path in leaves if path.endswith("dense_0/bias"))
    leaves[name] = changed = np.array(leaves[name])
    changed.view(np.uint32)[1, 0] ^= 1 << 20
    population._replace_settings({})
    population._commands.count = 1
    population.save_to_path(folder / "checkpoint_000003", state=state)
    population.stop()
    found = verify(folder, first=4, last=4)
    assert (found.exit_code, found.iteration, found.member) == (1, 4, 1)
    found = verify(folder, last=3)
    assert (found.exit_code, found.iteration, found.member) == (1, 3, None)
    assert found.difference is not None and found.difference.num_elements == 1
    assert found.difference.leaf.endswith("dense_0/bias")


def test_iterations_behind_an_unrecorded_state_are_refused(folder):
    """No comparison with numbers that the recorded calls do not determine."""
    (folder / COMMANDS_FILE).unlink()
    log = CommandLog(is_kept=True)
    for iteration in (2, 4):
        with log.around(types.SimpleNamespace(iteration=iteration), "copy", {}, reason="it was called by hand"):
            pass
    log.write_to(folder)
    for iteration in (6, 7):
        shutil.rmtree(folder / f"checkpoint_{iteration:06d}")
    with pytest.raises(NotRecomputableError, match=r"copy\(\) at iteration 4 cannot be repeated.*by hand"):
        verify(folder, 4, 5)
    # A restored state: only iterations from the next checkpoint on.
    with log.around(types.SimpleNamespace(iteration=5), "set_state", {}, reason="the restored state is not recorded"):
        pass
    with pytest.raises(NotRecomputableError, match=r"4 is not recorded. .* since set_state\(\): iterations 6 to 7"):
        verify(folder, 4, 5)
    with pytest.raises(NotRecomputableError, match=r"the state that set_state\(\) loaded is not recorded"):
        population_at(folder, 6)
    add_to_origin(folder, {"why_not_recomputable": "restart() trains 2 members by a program for 3."})
    with pytest.raises(NotRecomputableError, match=r"bit for bit, because restart\(\) trains 2 members"):
        population_at(folder, 6)


def test_a_population_records_restored_states_and_restarts(trained, tmp_path):
    config = programs.ppo().reporting(results_dir=tmp_path, checkpoint_frequency=1)
    population = Population.from_checkpoint(trained.folder / "population" / "checkpoint_000003", config=config)
    for _ in range(2):
        population.train()
    population.stored_checkpoints.close()
    found = verify(tmp_path / "population")
    assert (found.exit_code, found.first, found.last) == (0, 5, 5)
    population.restart([{"seed": 5}, {"seed": 6}])
    population.train()
    population.stop()
    origin = read_origin(tmp_path / "population_2")
    assert "restart() trains 2 members by a program for 3" in origin["why_not_recomputable"]
    assert Run.read(trained.folder / "seed_0").origin["population"] == str(trained.folder / "population")


@pytest.fixture(scope="module")
def forked(tmp_path_factory):
    """Four iterations of three members, of which one stops and one diverges, then a state of iteration 1 of a single
    run.
    """
    folder = tmp_path_factory.mktemp("forked")
    algo = programs.ppo().build_algo()
    algo.train()
    path = algo.save_to_path(folder / "single")
    population = programs.ppo().reporting(results_dir=folder, checkpoint_frequency=1).build_population(seeds=3)
    population.learn(4, progress=False)
    shutil.copy(folder / "population" / MEMBERS_FILE, folder / "old.csv")
    population.keep([2, 0])
    states = population.driver.states()
    population.driver.set_states(dataclasses.replace(states, is_live=population.driver.running == 0))
    population.diverged[2] = Ended(4, "diverged", is_goal=False)
    sampled = population.driver.num_env_steps_of_all
    population.continue_from(path)
    return types.SimpleNamespace(folder=folder, algo=algo, population=population, sampled=sampled)


def test_running_members_continue_from_a_run_and_stopped_ones_do_not(forked):
    population, driver = forked.population, forked.population.driver
    assert population.iteration == 1 and sorted(driver.running) == [0, 2] and [*population.stopped] == [1]
    weights = forked.algo.get_weights()["default_policy"]
    for member in (0, 2):
        own = population.member(member).get_weights()["default_policy"]
        assert all(np.array_equal(own[name], weights[name]) for name in weights)
    assert driver.num_env_steps_of_all == 2 * programs.BATCH + forked.sampled // 3
    assert driver.is_live.tolist() == [True, False, True] and not population.diverged
    with pytest.raises(ValueError, match=r"keep\(\) has stopped this member"):
        population.member(1)


def test_iterations_that_a_restore_abandoned_are_not_recorded(forked):
    """Whether the process was killed before the table was written again, an earlier version left the old table, or
    `learn` has ended.
    """
    for _ in range(2):
        forked.population.train()
    forked.population.stored_checkpoints.close()
    folder = forked.population.directory
    for old in (None, forked.folder / "old.csv"):
        assert not (folder / MEMBERS_FILE).exists()
        if old is not None:
            shutil.copy(old, folder / MEMBERS_FILE)
        timeline = PopulationTimeline(folder)
        assert {number: sorted(own.fingerprints) for number, own in timeline.iterations.items()} == {
            2: [0, 2],
            3: [0, 2],
        }
        found = verify_population(directory=folder)
        assert (found.exit_code, found.first, found.last, found.num_recomputed) == (0, 3, 3, 1)
    with pytest.raises(NotRecomputableError, match=r"4 is not recorded. .* since continue_from\(\): iterations 2 to 3"):
        population_at(folder, 4)
    forked.population.learn(1, progress=False)
    forked.population.stop()
    found = verify(folder)
    assert (found.exit_code, found.last, found.num_recomputed) == (0, 4, 2)
    assert PopulationTimeline(folder).iterations[4].fingerprints.keys() == {0, 2}


def test_a_population_without_run_json_is_recomputed(folder):
    (folder / ORIGIN_FILE).unlink()
    assert rewind_population(directory=folder, iteration=4) == (folder / "checkpoint_000004", 1)
    (folder / MEMBERS_FILE).unlink()
    assert is_population(folder) and not is_population(folder.parent / "seed_0")
