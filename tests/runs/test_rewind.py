"""Iterations that are recomputed from a run's folder: bit for bit, and refused where that is impossible."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import gc
import json
import shutil
import types
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms import algorithm
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPO
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints.checkpointable import opened
from jaxrl_stack.checkpoints.checksums import changed_files
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.cli import main
from jaxrl_stack.cli.rewind import resolve_iterations
from jaxrl_stack.examples.envs.multi_agent import RockPaperScissors
from jaxrl_stack.policy.policy import Policy
from jaxrl_stack.rewind.replay import Replay, rewind
from jaxrl_stack.rewind.verification import diff, verify
from jaxrl_stack.runs.commands import ADD_MODULE, COMMANDS_FILE, CommandLog, read_commands
from jaxrl_stack.runs.forks import curve_from_parent
from jaxrl_stack.runs.history import TABLE_FILE, History
from jaxrl_stack.runs.origin import ORIGIN_FILE
from jaxrl_stack.runs.run import Run
from jaxrl_stack.runs.state_comparison import compared_leaves, differences
from jaxrl_stack.runs.timeline import CALLS, NotRecomputableError, Timeline
from tests import programs

LAST = 9


def train(folder: Path, *, lr: float = 1e-2) -> dict[int, dict[str, Any]]:
    """Trains nine iterations with two commands and two checkpoints; returns the states after each."""
    config = programs.ppo().evaluation(evaluation_interval=100)
    algo = config.reporting(results_dir=folder, checkpoint_frequency=100, num_to_keep=5).build_algo()
    states = {0: algo.get_state()}
    for iteration in range(1, LAST + 1):
        algo.train()
        states[iteration] = algo.get_state()
        if iteration in (3, 8):
            algo.save_to_path(folder / f"checkpoint_{iteration:06d}")
        if iteration == 4:
            algo.change_settings(lr=lr)
        if iteration == 5:
            weights = algo.get_weights()
            algo.set_weights({mid: {name: leaf * 2 for name, leaf in own.items()} for mid, own in weights.items()})
    algo.stop()
    return states


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rewind") / "run"
    return types.SimpleNamespace(folder=folder, states=train(folder))


@pytest.fixture
def run(trained, tmp_path):
    """A copy of the run's folder, to change."""
    shutil.copytree(trained.folder, tmp_path / "run")
    return Run.read(tmp_path / "run")


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*")}


# ------------------------------------------------------------------------------------------------------- recomputing


def test_evaluations_that_can_change_the_run_are_repeated(trained):
    replay = Replay(Run.read(trained.folder))
    config = programs.ppo().evaluation(evaluation_interval=1)
    assert replay._replaced(config)[0]["evaluation_interval"] is None
    config.evaluation(custom_evaluation_function=lambda algorithm, group: ({}, 0, 0))
    assert "evaluation_interval" not in replay._replaced(config)[0]


def test_the_output_folder_of_a_replay_is_removed_with_the_algorithm(trained):
    class Recomputed:
        _commands = types.SimpleNamespace(count=0)

    algorithm: Any = Recomputed()
    replay = Replay(Run.read(trained.folder))
    replay._trained = algorithm
    settings, original = replay._replaced(programs.ppo().offline_data(output="episodes"))
    replay._use(original, 0)
    folder = Path(settings["output"])
    del replay
    gc.collect()
    assert folder.is_dir()
    del algorithm
    gc.collect()
    assert not folder.exists()


@pytest.mark.parametrize("iteration", [0, 2, 5, 6, 9])
def test_a_recomputed_iteration_has_the_bits_of_the_run(trained, iteration):
    before = files_of(trained.folder)
    algo = Run.read(trained.folder).at(iteration)
    assert algo.iteration == iteration
    assert len(compared_leaves(algo.get_state())) > 30
    assert differences(trained.states[iteration], algo.get_state()) == []
    algo.stop()
    assert files_of(trained.folder) == before


def test_a_comparison_finds_one_bit(trained):
    state = trained.states[2]
    other = copy.deepcopy(state)
    weights = other["learner_group"]["learner"]["rl_module"]["default_policy"]
    name = next(name for name in weights if name.endswith("dense_0/bias"))
    weights[name] = changed = np.array(weights[name])
    changed.view(np.uint32)[1] ^= 1
    (found,) = differences(state, other)
    assert (found.leaf, found.num_elements) == (f"learner_group/learner/rl_module/default_policy/{name}", 1)


def test_rewind_stores_a_checkpoint_with_the_settings_of_the_run(run):
    path, number = rewind(run, 7)
    assert number == 4 and path.name == "checkpoint_000007"
    assert rewind(run.folder, 7) == (path, 0)
    algo = Algorithm.from_checkpoint(path)
    assert (algo.config.evaluation_interval, algo.config.lr, algo.iteration) == (100, 1e-2, 7)
    algo.stop()
    # The commands before it are in it, so that later iterations begin with it.
    assert verify(run, 8, 9).exit_code == 0


class Counts(RLlibCallback):
    """Changes a setting after four results, counted by an attribute."""

    seen = 0

    def on_train_result(self, *, algorithm, **kwargs):
        self.seen += 1
        if self.seen == 4:
            algorithm.change_settings(lr=1e-2)


class Curriculum(RLlibCallback):
    """Changes a setting after four results, counted in the algorithm."""

    def on_algorithm_init(self, *, algorithm, **kwargs):
        algorithm._counters["task"] = 0

    def on_train_result(self, *, algorithm, **kwargs):
        algorithm._counters["task"] += 1
        if algorithm._counters["task"] == 4:
            algorithm.change_settings(lr=1e-2)


@pytest.mark.parametrize("callback", [Counts, Curriculum])
def test_callbacks_that_count_are_repeated_from_the_beginning(tmp_path, callback):
    algo = programs.ppo().reporting(results_dir=tmp_path / "run").callbacks(callback).build_algo()
    for _ in range(3):
        algo.train()
    algo.save_to_path(tmp_path / "run" / "checkpoint_000003")
    algo.train()
    algo.train()
    again = Run.read(tmp_path / "run").at(5)
    assert differences(algo.get_state(), again.get_state()) == []
    assert again.config.lr == 1e-2 and not (tmp_path / "run" / COMMANDS_FILE).exists()
    algo.stop()
    again.stop()


class FailsOnce(RLlibCallback):
    """Raises an error while iteration 2 samples, at the first time."""

    def on_sample_end(self, **kwargs):
        if self.failures:
            raise self.failures.pop()

    failures: ClassVar[list[Exception]] = []


def test_an_iteration_after_a_failed_one_is_refused(tmp_path):
    """The failed one has changed environments and streams, and is not in the table."""
    algo = programs.ppo().reporting(results_dir=tmp_path / "run").callbacks(FailsOnce).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "run" / "checkpoint_000001")
    FailsOnce.failures.append(RuntimeError())
    with pytest.raises(RuntimeError):
        algo.train()
    algo.train()
    algo.stop()
    with pytest.raises(
        NotRecomputableError, match=r"train\(\) at iteration 1 .* because iteration 2 raised RuntimeError"
    ):
        Run.read(tmp_path / "run").at(2, allow=[FailsOnce])


class Warm(RLlibCallback):
    """Changes a setting when a checkpoint is loaded."""

    def on_checkpoint_loaded(self, *, algorithm, **kwargs):
        algorithm.change_settings(lr=5e-2)


def test_a_replay_does_not_call_on_checkpoint_loaded(tmp_path):
    """The run did not load the checkpoint that the replay begins with; a restore of the user does call it."""
    algo = programs.ppo().reporting(results_dir=tmp_path / "run").callbacks(Warm).build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "run" / "checkpoint_000001")
    algo.train()
    again = Run.read(tmp_path / "run").at(2, allow=[Warm])
    assert differences(algo.get_state(), again.get_state()) == []
    algo.restore_from_path(tmp_path / "run" / "checkpoint_000001")
    assert (again.config.lr, algo.config.lr) == (programs.ppo().lr, 5e-2)
    again.stop()
    algo.train()
    again = Run.read(tmp_path / "run").at(2, allow=[Warm])
    assert again.config.lr == 5e-2 and differences(algo.get_state(), again.get_state()) == []
    algo.stop()
    again.stop()


def test_a_joined_process_that_writes_no_files_keeps_no_arguments(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(algorithm, "num_joined_processes", lambda: 2)
        patch.setattr(jax, "process_index", lambda: 1)
        assert not algorithm._writes_files()
    monkeypatch.setattr(algorithm, "_writes_files", lambda: False)
    algo = programs.ppo().reporting(results_dir=tmp_path).build_algo()
    algo.set_weights(algo.get_weights())
    assert algo._commands._waiting == []
    algo.stop()


# ---------------------------------------------------------------------------------------------------------- commands


def test_a_call_within_a_call_is_one_command(tmp_path):
    algo = types.SimpleNamespace(iteration=3)
    log = CommandLog(is_kept=True)
    with log.around(algo, "set_state", {"state": {"x": np.arange(3.0)}}), log.around(algo, "set_weights", {}):
        algo.iteration = 5
    with pytest.raises(KeyError), log.around(algo, "set_weights", {}):
        raise KeyError
    with log.repeated(), log.around(algo, "set_weights", {}):
        pass
    log.write_to(tmp_path)
    with log.around(algo, "add_module", {"mapping": lambda agent: "main"}):
        pass
    first, second = read_commands(tmp_path)
    assert (first.call, first.iteration, first.iteration_after, first.reason) == ("set_state", 3, 5, None)
    np.testing.assert_array_equal(first.check_arrays()["state/x"], np.arange(3.0))
    assert second.reason is not None and "a lambda" in second.reason


def p0_first(agent_id, episode=None, **kwargs):
    return "p0" if agent_id == "player1" else "p1"


def p1_first(agent_id, episode=None, **kwargs):
    return "p1" if agent_id == "player1" else "p0"


def test_a_change_of_the_mapping_is_repeated(tmp_path):
    config = programs.ppo(RockPaperScissors).multi_agent(
        policies={"p0", "p1"}, policy_mapping_fn=p0_first, policies_to_train=["p0"]
    )
    algo = config.reporting(results_dir=tmp_path / "run").build_algo()
    algo.train()
    algo.save_to_path(tmp_path / "run" / "checkpoint_000001")
    algo.change_mapping(p1_first, policies_to_train=["p1"])
    algo.train()
    again = Run.read(tmp_path / "run").at(2, allow=[p0_first, p1_first, RockPaperScissors])
    assert again.driver.module_map.agents_of == {"p0": ("player2",), "p1": ("player1",)}
    assert differences(algo.get_state(), again.get_state()) == []
    again.stop()
    algo.stop()


def test_a_passed_config_gets_the_changed_mapping_of_a_later_checkpoint(tmp_path):
    def config():
        return programs.ppo(RockPaperScissors).multi_agent(
            policies={"p0", "p1"}, policy_mapping_fn=p0_first, policies_to_train=["p0"]
        )

    algo = config().reporting(results_dir=tmp_path / "run").build_algo()
    algo.change_mapping(p1_first, policies_to_train=["p1"])
    algo.train()
    algo.save_to_path(tmp_path / "run" / "checkpoint_000001")
    algo.train()
    again = Run.read(tmp_path / "run").at(2, config=config())
    assert again.driver.module_map.agents_of == {"p0": ("player2",), "p1": ("player1",)}
    assert again.config.policies_to_train == ["p1"]
    assert differences(algo.get_state(), again.get_state()) == []
    again.stop()
    algo.stop()


def timeline_of(
    folder: Path, rows: list[int], commands: list[tuple[int, str, int]], stored: dict[int, int]
) -> Timeline:
    """Timeline of a folder.

    Args:
        folder: An empty folder.
        rows: Iterations in the table.
        commands: ``(iteration, call, iteration after it)``.
        stored: ``{iteration of a checkpoint: commands before it}``.
    """
    history = History()
    for row in rows:
        history.append({"training_iteration": row, CALLS: 1})
    log, algo = CommandLog(is_kept=True), types.SimpleNamespace()
    for before, call, after in commands:
        algo.iteration = before
        with log.around(algo, call, {}):
            algo.iteration = after
    log.write_to(folder)
    for iteration, num_commands in stored.items():
        (folder / f"checkpoint_{iteration:06d}").mkdir()
        metadata = {"training_iteration": iteration, "num_commands": num_commands}
        (folder / f"checkpoint_{iteration:06d}" / ALGORITHM_METADATA_FILE).write_text(json.dumps(metadata))
    return Timeline(folder, history)


def test_checkpoints_from_before_a_restore_are_not_taken_for_later_iterations(tmp_path):
    commands = [(6, "restore_from_path", 4), (4, "change_settings", 4)]
    timeline = timeline_of(tmp_path, [1, 2, 3, 4, 5, 6, 5, 6, 7], commands, {6: 0, 7: 2})
    assert list(timeline.iterations) == [5, 6, 7]
    assert list(timeline.checkpoints) == [7]


def test_commands_after_an_iteration_without_a_row_are_kept(tmp_path):
    """Iteration 3 raised an error, so that the table lacks it."""
    commands = [(3, "change_settings", 3), (5, "change_settings", 5)]
    timeline = timeline_of(tmp_path, [1, 2, 4, 5, 6], commands, {})
    assert [(number, own.num_commands) for number, own in timeline.iterations.items()] == [(4, 1), (5, 1), (6, 2)]


def test_a_line_that_a_killed_run_has_not_finished_is_left_out(tmp_path):
    timeline_of(tmp_path, [1], [(1, "change_settings", 1), (1, "set_weights", 1)], {})
    file = tmp_path / COMMANDS_FILE
    file.write_bytes(file.read_bytes()[:-20])
    assert [own.call for own in read_commands(tmp_path)] == ["change_settings"]


def test_a_command_that_fits_no_iteration_is_refused(tmp_path):
    commands = [(2, "change_settings", 2), (1, "set_weights", 1)]
    with pytest.raises(NotRecomputableError, match=r"line 2: the recorded call set_weights\(\) at iteration 1"):
        timeline_of(tmp_path, [1, 2, 3], commands, {})


# ------------------------------------------------------------------------------------------------------ verification


def flip_a_bit(folder: Path) -> str:
    file = folder / "checkpoint_000008" / "env_runner" / "arrays.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    return "checkpoint_000008"


def change_a_setting(folder: Path) -> str:
    file = folder / "params.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"gamma": 0.9}))
    return "gamma=0.9"


def change_a_stored_setting(folder: Path) -> str:
    file = folder / "checkpoint_000003" / "class_and_ctor_args.json"
    file.write_text(file.read_text().replace('"seed": 0', '"seed": 1'))
    assert changed_files(folder / "checkpoint_000003", ALGORITHM_METADATA_FILE) == [file.name]
    return "class_and_ctor_args.json"


def change_a_command(folder: Path) -> str:
    file = folder / COMMANDS_FILE
    file.write_text(file.read_text().replace("0.01", "0.02", 1))
    return f"{COMMANDS_FILE}, line 1"


def remove_a_command(folder: Path) -> str:
    file = folder / COMMANDS_FILE
    file.write_text(file.read_text().splitlines()[0] + "\n")
    return "commands.jsonl has 1"


FAULTS = (flip_a_bit, change_a_setting, change_a_stored_setting, change_a_command, remove_a_command)


def test_verify_agrees_with_an_unchanged_run(trained):
    found = verify(Run.read(trained.folder))
    assert (found.exit_code, found.num_recomputed) == (0, LAST)
    assert str(found) == "Equal: iterations 1 to 9 of run have the recorded bits (9 recomputed)."


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_verify_finds_a_changed_file(run, fault):
    expected = fault(run.folder)
    found = verify(Run.read(run.folder))
    assert found.exit_code == 1 and expected in str(found)


def test_verify_expects_other_modules_after_add_module(run):
    run = dataclasses.replace(run, settings={**run.settings, "policies": ["p0"], "gamma": 0.5})
    replay = Replay(run)
    assert [text.split()[1] for text in replay.changes(LAST)] == ["gamma=0.5,", "policies=['p0'],"]
    replay.timeline.commands[0] = dataclasses.replace(replay.timeline.commands[0], call=ADD_MODULE)
    replay.timeline.checkpoints[3].metadata["num_commands"] = 1
    assert [text.split()[1] for text in replay.changes(LAST)] == ["gamma=0.5,"]


def test_verify_names_the_iteration_and_leaf_that_differ(run):
    """Commands and checksums agree, but the run had another learning rate from iteration 5 on."""
    log = CommandLog(is_kept=True)
    with log.around(types.SimpleNamespace(iteration=4), "change_settings", {"lr": 0.02}):
        pass
    shutil.rmtree(run.folder / "commands")
    (run.folder / COMMANDS_FILE).unlink()
    log.write_to(run.folder)
    metadata = run.folder / "checkpoint_000008" / ALGORITHM_METADATA_FILE
    stored = json.loads(metadata.read_text())
    del stored["checksum"], stored["checksums"]
    metadata.write_text(json.dumps(stored | {"num_commands": 1}))
    found = verify(Run.read(run.folder))
    assert (found.exit_code, found.iteration, found.checkpoint) == (1, 5, 8)
    assert found.difference is not None and "rl_module/default_policy" in found.difference.leaf


def test_verify_begins_with_the_state_that_the_run_restored(tmp_path):
    """The checkpoint of iteration 2 in the folder, and after it a state of another run."""
    algo = programs.ppo().reporting(results_dir=tmp_path / "run", checkpoint_frequency=2).build_algo()
    for _ in range(3):
        algo.train()
    algo.change_settings(lr=1e-3)
    algo.restore_from_path(tmp_path / "run" / "checkpoint_000002")
    algo.change_settings(lr=1e-2)
    algo.train()
    found = verify(Run.read(tmp_path / "run"))
    assert (found.exit_code, found.first, found.last) == (0, 3, 3), found
    other = programs.ppo().reporting(results_dir=tmp_path / "other", checkpoint_frequency=2).build_algo()
    other.set_state(algo.get_state())
    other.train()
    algo.stop()
    other.stop()
    found = verify(Run.read(tmp_path / "other"))
    assert (found.exit_code, found.first, found.last) == (0, 4, 4), found


def test_verify_compares_something_or_refuses(run):
    table = (run.folder / TABLE_FILE).read_text()
    (run.folder / TABLE_FILE).write_text(table.replace("fingerprint/", "other/", 2))
    without = Run.read(run.folder)
    with pytest.raises(NotRecomputableError, match=r"iteration 9 has neither a fingerprint .* --to 8"):
        verify(without, 8)
    assert verify(without, 8, 8).exit_code == 0


def test_verify_does_not_judge_a_run_of_other_versions(run):
    origin = json.loads((run.folder / ORIGIN_FILE).read_text())
    origin["versions"]["jaxlib"] = "0.0.1"
    (run.folder / ORIGIN_FILE).write_text(json.dumps(origin))
    found = verify(Run.read(run.folder))
    assert found.exit_code == 3 and "0.0.1 in the run" in str(found)


def test_diff_names_the_first_iteration_and_leaf(trained, tmp_path):
    train(tmp_path / "other", lr=2e-2)
    runs = Run.read(trained.folder), Run.read(tmp_path / "other")
    found = diff(*runs)
    assert (found.exit_code, found.iteration) == (1, 5)
    assert found.difference is not None and found.difference.leaf.startswith("learner_group/learner/rl_module")
    assert diff(runs[0], runs[0]).exit_code == 0


# -------------------------------------------------------------------------------------------------------------- forks


def test_a_fork_continues_an_iteration_that_was_not_stored(run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"iteration 6 is not stored.*jaxrl rewind .* --to 6"):
        Policy.from_checkpoint(f"{run.folder}@6")
    fork = PPO.from_checkpoint(f"{run.folder}@6", results_dir=tmp_path / "fork", lr=1e-4)
    Policy.from_checkpoint(f"{run.folder}@6")  # stored by now
    assert fork.iteration == 6 and fork.config.lr == 1e-4
    fork.train()
    fork.change_settings(lr=2e-4)
    fork.train()
    fork.save_to_path(tmp_path / "fork" / "checkpoint_000008")
    own = Run.read(tmp_path / "fork")
    assert own.origin["parent"] == {"folder": str(run.folder), "iteration": 6}
    assert curve_from_parent(own, "num_training_step_calls_per_iteration", "iterations").x.tolist() == [6, 7, 8]
    assert verify(own).exit_code == 0
    fork.stop()


def test_several_seeds_continue_one_state(trained):
    """Weights, environments and counters are those of the checkpoint; streams differ, so that members part."""
    population = programs.ppo().build_population(seeds=2)
    population.continue_from(trained.folder / "checkpoint_000003")
    state = trained.states[3]
    assert (population.iteration, population.driver.num_env_steps) == (3, 3 * programs.BATCH)
    members = population.driver.states_of([0, 1])
    for member in members:
        for one, two in zip(*(jax.tree.leaves(own.runner.env_state) for own in (member, members[0])), strict=True):
            np.testing.assert_array_equal(one, two)
    modules = state["learner_group"]["learner"]["rl_module"]["default_policy"]
    before = [population.member(i).get_weights()["default_policy"] for i in range(2)]
    assert all(np.array_equal(own[name], modules[name]) for own in before for name in own)
    population.train()
    after = [population.member(i).get_weights()["default_policy"] for i in range(2)]
    assert any(not np.array_equal(after[0][name], after[1][name]) for name in after[0])
    population.stop()


def test_seeds_take_over_settings_that_the_run_changed(trained):
    """The run changed lr after iteration 4. A member that names lr keeps its value."""
    population = programs.ppo().build_population(seeds=2)
    population.continue_from(trained.folder / "checkpoint_000008")
    population.train()
    assert population.history["config/lr"].tolist() == [[1e-2, 1e-2]]
    assert population.member(1).config.lr == 1e-2
    first = programs.ppo().lr
    population.restart([{"seed": 0, "settings": {"lr": first}}, {"seed": 1, "settings": {"lr": 2e-3}}])
    population.continue_from(trained.folder / "checkpoint_000008")
    assert [population.member(i).config.lr for i in range(2)] == [first, 2e-3]
    population.stop()


# ---------------------------------------------------------------------------------------------------------- bad input


def test_what_cannot_be_recomputed_is_refused_by_name(trained, tmp_path):
    run = Run.read(trained.folder)
    with pytest.raises(NotRecomputableError, match=r"10 is not recorded. Recorded since .*: iterations 1 to 9"):
        run.at(10)
    shutil.copytree(trained.folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint_*"))
    with pytest.raises(NotRecomputableError, match=r"reporting\(checkpoint_frequency=10\)"):
        Run.read(tmp_path / "run").at(4)
    with pytest.raises(NotRecomputableError, match="has no folder"):
        Run("unknown", run.history).at(4)
    with pytest.raises(NotRecomputableError, match="is a member of a population"):
        dataclasses.replace(run, origin={**run.origin, "num_members": 8}).at(4)


def test_a_fork_of_a_missing_run_is_refused_by_its_path(tmp_path):
    path = f"{tmp_path}/missing@3"
    with pytest.raises(FileNotFoundError, match="missing@3"):
        PPO.from_checkpoint(path)
    remote = argparse.Namespace(checkpoint="s3://bucket/run@35")
    resolve_iterations(remote)
    assert remote.checkpoint == "s3://bucket/run@35"


def test_each_checkpoint_of_a_command_can_be_an_iteration(run, capsys):
    """A stored one, and one that is recomputed."""
    arguments = argparse.Namespace(checkpoints=[f"{run.folder}@3", f"{run.folder}@4", "random"])
    resolve_iterations(arguments)
    assert arguments.checkpoints == [*(f"{run.folder}/checkpoint_00000{i}" for i in (3, 4)), "random"]
    with opened(arguments.checkpoints[1]) as stored:
        assert stored.metadata["training_iteration"] == 4
    assert f"{run.folder}@4: recomputed 1 iterations" in capsys.readouterr().err


def test_another_config_is_refused_by_the_name_of_a_setting(trained):
    run, config = Run.read(trained.folder), programs.ppo().evaluation(evaluation_interval=100)
    with pytest.raises(NotRecomputableError, match=r"config has gamma=0\.5, and .* was trained with gamma=0\.99"):
        run.at(4, config=config.copy(copy_frozen=False).training(gamma=0.5))
    algo = run.at(4, config=config)
    assert differences(trained.states[4], algo.get_state()) == []
    algo.stop()


def test_a_call_that_cannot_be_repeated_is_refused(run):
    file = run.folder / COMMANDS_FILE
    file.unlink()
    log = CommandLog(is_kept=True)
    with log.around(types.SimpleNamespace(iteration=1), "set_weights", {}, reason="it was drawn by hand"):
        pass
    log.write_to(run.folder)
    with pytest.raises(NotRecomputableError, match=r"set_weights\(\) at iteration 1.* it was drawn by hand"):
        run.at(2)


def test_runs_whose_order_is_up_to_chance_are_refused(run):
    origin = {**run.origin, "why_not_recomputable": "num_learners=2 actors learn. Use learners(num_learners=0)."}
    with pytest.raises(NotRecomputableError, match=r"bit for bit, because num_learners=2 actors learn\. Use"):
        dataclasses.replace(run, origin=origin).at(2)


# -------------------------------------------------------------------------------------------------------- command line


def test_the_commands(run, capsys):
    folder = str(run.folder)
    assert main(["rewind", folder, "--to", "7"]) == 0
    assert f"Checkpoint: {folder}/checkpoint_000007" in capsys.readouterr().out
    with opened(run.folder / "checkpoint_000007") as stored:
        assert stored.metadata["training_iteration"] == 7
    assert main(["verify", folder, "--from", "8", "--to", "9"]) == 0
    assert main(["diff", folder, folder]) == 0
    assert main(["rewind", folder, "--to", "99"]) == 2
    change_a_command(run.folder)
    assert main(["verify", folder]) == 1
