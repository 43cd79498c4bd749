"""Checkpoints that a run stores in its folder."""

from __future__ import annotations

import itertools
import json
import logging
import pathlib
import time
import types

import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO
from jaxrl_stack.checkpoints import folder_replacement
from jaxrl_stack.checkpoints.newest import checkpoints_in, newest_checkpoint
from jaxrl_stack.checkpoints.saves import saves
from jaxrl_stack.runs import stored_checkpoints
from jaxrl_stack.runs.stored_checkpoints import StoredCheckpoints, least_needed, sparse
from jaxrl_stack.utils.memory import parse_bytes
from tests import programs


def stored_in(folder, *, num_bytes=10, seconds=0.0, **limits):
    """A run's checkpoints, each a file of `num_bytes` that takes `seconds` to write, and a function of iterations.

    An iteration that does not follow the last one follows a restore.
    """
    done = [0]

    def save(path):
        def write():
            time.sleep(seconds)
            pathlib.Path(path).mkdir(exist_ok=True)
            # Complete with this file.
            pathlib.Path(path, "rllib_checkpoint.json").write_bytes(b"x" * num_bytes)

        saves.run(str(pathlib.Path(path).resolve()), write, blocking=False)

    stored = StoredCheckpoints(save, **limits)

    def run(*iterations):
        for iteration in iterations:
            if iteration != done[0] + 1:
                stored.restored(iteration - 1)
            stored.after_iteration(folder, iteration)
            done[0] = iteration
        stored.close()
        assert stored.paths == checkpoints_in(folder)
        return list(stored.paths)

    return stored, run


def test_every_kth_iteration_is_stored(tmp_path):
    stored, run = stored_in(tmp_path, frequency=3)
    assert run(*range(1, 11)) == [3, 6, 9]
    assert stored.save_last(tmp_path, 10) == tmp_path / "checkpoint_000010"
    assert run() == [3, 6, 9, 10]
    written = (tmp_path / "checkpoint_000010" / "rllib_checkpoint.json").stat().st_mtime_ns
    assert stored.save_last(tmp_path, 10) == tmp_path / "checkpoint_000010"  # which is there
    assert (tmp_path / "checkpoint_000010" / "rllib_checkpoint.json").stat().st_mtime_ns == written
    assert run(11, 12, 13) == [3, 6, 9, 10, 12]


def test_the_newest_are_kept(tmp_path):
    (tmp_path / "checkpoint_000001").mkdir()  # not of this run
    _, run = stored_in(tmp_path, frequency=1, num_to_keep=2)
    assert run(1, 2, 3) == [2, 3] and run(4) == [3, 4]


def test_sparse_distances_double():
    assert sorted(sparse({number: 10 * number for number in range(1, 101)})) == [640, 800, 880, 960, 980, 990, 1000]
    kept = {}
    for newest in range(1, 2000):
        kept[newest] = newest
        kept = {number: number for number in sparse(kept)}
        assert len(kept) <= 2 + newest.bit_length()
        # The distance to an iteration from the nearest one before it is shorter than twice its age.
        places = [0, *sorted(kept)]
        assert all(after - before <= 1 + 2 * (newest - after) for before, after in itertools.pairwise(places))


def test_sparse_saves_wait_for_their_share_of_time(tmp_path):
    stored, run = stored_in(tmp_path, frequency=1, num_to_keep="sparse", seconds=0.05)
    started = time.perf_counter()
    assert run(*range(1, 30)) == [1]
    iteration = 30
    while len(run(iteration)) == 1:
        iteration += 1
        time.sleep(0.01)
    assert time.perf_counter() - started >= 0.05 * 50
    last = iteration + 1
    run(last)
    stored.save_last(tmp_path, last)  # does not wait
    assert [*stored.paths] == [1, iteration, last][-len(stored.paths) :] and last in stored.paths


def test_sparse_saves_wait_from_the_end_of_the_last_one(tmp_path, monkeypatch):
    now = time.perf_counter()
    monkeypatch.setattr(stored_checkpoints, "time", types.SimpleNamespace(perf_counter=lambda: now))
    stored, run = stored_in(tmp_path, frequency=1, num_to_keep="sparse", seconds=0.01)
    stored.after_iteration(tmp_path, 1)
    saves.wait()
    finished = saves.finished(str(tmp_path.resolve() / "checkpoint_000001"))
    assert finished is not None
    # This object notices the end of the save later.
    now = finished.at + 51 * finished.seconds
    assert run(2) == [1, 2]


def test_sizes_are_limited(tmp_path, caplog):
    _, run = stored_in(tmp_path, frequency=10, num_bytes=100, max_bytes=350)
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        assert run(*range(1, 31)) == [10, 20, 30] and not caplog.records
        assert run(*range(31, 61)) == [40, 50, 60]
    (record,) = caplog.records
    assert record.getMessage() == (
        "reporting(checkpoint_max_bytes='350 B') keeps 3 checkpoints of 100 B: after iteration 40, a rewind repeats up "
        "to 19 iterations. To keep more: checkpoint_max_bytes='1.37 KiB'."
    )


def test_the_newest_is_kept_in_spite_of_its_size(tmp_path):
    _, run = stored_in(tmp_path, frequency=1, num_bytes=100, max_bytes=50, num_to_keep="sparse")
    assert run(1) == [1]


def test_sizes_of_sparse_checkpoints_are_limited_where_they_are_dense():
    # Gaps without it, by its age: 20 / 20 without 10; of 70 / 60, 40 / 30 and 30 / 20 the first; 2 / 8, 2 / 1.
    assert least_needed([10, 20, 30]) == 10
    assert least_needed([40, 70, 80, 100]) == 40
    assert least_needed([1010, 1020, 1030], base=1000) == 1010
    assert least_needed([1, 2, 8, 9]) == 1 and least_needed([64, 65, 66, 96]) == 65


def test_a_run_that_goes_back_replaces_what_it_had_stored_of_later_iterations(tmp_path):
    _, run = stored_in(tmp_path, frequency=2)
    assert run(*range(1, 9)) == [2, 4, 6, 8]
    # Until there is a newer one, the last state of the earlier course is the newest.
    assert run(5) == [2, 4, 6, 8] and run(6) == [2, 4, 6]
    # Also if a thread writes a checkpoint of the earlier course at that time, and with limits.
    for name, limits in {"sparse": {"num_to_keep": "sparse"}, "bytes": {"max_bytes": 10}}.items():
        folder = tmp_path / name
        folder.mkdir()
        stored, run = stored_in(folder, frequency=5, seconds=0.1, **limits)
        for iteration in range(1, 7):
            stored.after_iteration(folder, iteration)
        stored.restored(2)
        for iteration in (3, 4):
            stored.after_iteration(folder, iteration)
        stored.close()
        assert list(stored.paths) == [5] and stored.find(5) is None  # which is the only one
        assert stored.save_last(folder, 4) == folder / "checkpoint_000004" and list(stored.paths) == [4]
    # A run that was restored at iteration 21.
    _, run = stored_in(tmp_path / "other", frequency=10)
    (tmp_path / "other").mkdir()
    assert run(*range(22, 32)) == [30]


def test_a_removal_that_is_killed_leaves_no_part_of_a_checkpoint(tmp_path, monkeypatch):
    _, run = stored_in(tmp_path, frequency=1, num_to_keep=1)
    with monkeypatch.context() as patch:
        patch.setattr(folder_replacement.shutil, "rmtree", lambda *args, **kwargs: None)
        assert run(1, 2) == [2]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("checkpoint")] == ["checkpoint_000002"]
    # The next removal also removes its files.
    assert run(3) == [3] and [path.name for path in tmp_path.iterdir()] == ["checkpoint_000003"]


def test_a_run_that_restores_another_run_replaces_what_it_had_stored(tmp_path):
    history = {iteration: "own" for iteration in range(100)}
    stored, run = stored_in(tmp_path, frequency=2, mark=history.get)
    assert run(*range(1, 7)) == [2, 4, 6]
    history.update(dict.fromkeys(range(4, 7), "other"))  # another run, which began from iteration 3 of this one
    stored.restored(6)
    assert stored.find(2) is not None and stored.find(6) is None
    assert run(7) == [2, 4, 6] and run(8) == [2, 8]


def test_a_checkpoint_whose_error_another_call_has_raised_is_not_among_the_paths(tmp_path):
    stored, run = stored_in(tmp_path / "missing" / "folder", frequency=1)
    stored.after_iteration(tmp_path / "missing" / "folder", 1)
    with pytest.raises(FileNotFoundError):
        saves.wait()
    assert run() == []


def test_a_failed_save_is_an_error(tmp_path):
    stored, run = stored_in(tmp_path / "missing" / "folder", frequency=1)
    with pytest.raises(FileNotFoundError, match="checkpoint_000001"):
        run(1)
    assert stored.paths == {}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("20 GB", 20 * 10**9),
        ("1.5GiB", 3 * 2**29),
        (" 500 mib ", 500 * 2**20),
        ("7 B", 7),
        ("8 kB", 8000),
        *((text, None) for text in ("20", "GB", "20 GG", "-1 GB", "1 iB", "1e3 GB", "")),
    ],
)
def test_sizes_have_units(text, number):
    assert parse_bytes(text) == number


def test_learn_stores_checkpoints_and_the_last_state(tmp_path, capsys):
    folder = tmp_path / "run"
    config = programs.ppo().reporting(results_dir=folder, checkpoint_frequency=2, checkpoint_max_bytes="1 GB")
    assert config.checkpoint_max_bytes == 10**9
    algo = config.build_algo()
    algo.learn(3)
    assert list(checkpoints_in(folder)) == list(algo.stored_checkpoints.paths) == [2, 3]
    assert f"Checkpoint: {folder}/checkpoint_000003" in capsys.readouterr().out.splitlines()
    assert newest_checkpoint(str(folder)) == f"{folder}/checkpoint_000003"
    expected = [algo.train() for _ in range(2)]
    # Back to its own checkpoint, and to an iteration of another run.
    algo.restore_from_path(folder / "checkpoint_000003")
    assert [algo.stored_checkpoints.find(iteration) is not None for iteration in (2, 3, 4)] == [True, True, False]
    columns = algo.history.columns
    cells = np.stack([algo.history[name] + (name == "fingerprint/low") for name in columns], axis=1)
    algo.set_state({**algo.get_state(), "history": {"columns": columns, "cells": cells}})
    assert algo.stored_checkpoints.find(2) is None and algo.stored_checkpoints.find(3) is None
    algo.stop()
    # What another run goes on from, in another folder, with the same bits and numbers.
    again = PPO.from_checkpoint(folder / "checkpoint_000003", results_dir=folder, checkpoint_frequency=5)
    found = [again.train() for _ in range(2)]
    assert again.output.directory == tmp_path / "run_2"
    again.stop()
    assert [result["fingerprint"] for result in found] == [result["fingerprint"] for result in expected]
    assert list(checkpoints_in(tmp_path / "run_2")) == [5]
    restored = PPO.from_checkpoint(tmp_path / "run_2" / "checkpoint_000005")
    assert restored.config.checkpoint_frequency is None
    rows = restored.history["fingerprint/low"]
    assert np.isfinite(rows).all() and rows[-1] == found[-1]["fingerprint"]["low"]
    restored.stop()
    assert json.loads((folder / "params.json").read_text())["checkpoint_frequency"] == 2
