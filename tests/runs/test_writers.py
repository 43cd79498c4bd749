"""The files of a run."""

from __future__ import annotations

import csv
import itertools
import json
import math
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.runs.output import new_directory
from jaxrl_stack.runs.writers import ResultWriter, as_json
from tests.interrupted import at_every_line


def row_of(i, **extra):
    return {
        "env_runners": {"episode_return_mean": [float("nan"), 20.5, 30.5][i], "episode_len_max": np.int64(7)},
        "num_env_steps_sampled_lifetime": 100 * (i + 1),
        "done": False,
        "date": "today",
        "loss": jnp.float32(0.5),
        "config": {"lr": 1.0},
        **extra,
    }


def lines_of(directory):
    lines = (directory / "result.json").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def rows_of(directory):
    with (directory / "progress.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_files(tmp_path):
    config = {"lr": [[0, 0.1]], "env": ResultWriter, "f": as_json, "nan": float("inf"), "x": {1: {2}}}
    directory = tmp_path / "run"
    with ResultWriter(directory, config, tensorboard=False) as writer:
        writer.write(row_of(0))
        # Complete after every iteration, with the files still open.
        assert len(lines_of(directory)) == len(rows_of(directory)) == 1
        writer.write(row_of(1, late=1.0))
        writer.write(row_of(2, late=2.0))
    params = json.loads((directory / "params.json").read_text(), parse_constant=pytest.fail)
    assert params == {
        "lr": [[0, 0.1]],
        "env": "jaxrl_stack.runs.writers.ResultWriter",
        "f": "jaxrl_stack.runs.writers.as_json",
        "nan": None,
        "x": {"1": "{2}"},
    }
    lines = lines_of(directory)
    assert [line["env_runners"].get("episode_return_mean", "absent") for line in lines] == ["absent", 20.5, 30.5]
    assert lines[2] == {
        "env_runners": {"episode_return_mean": 30.5, "episode_len_max": 7},
        "num_env_steps_sampled_lifetime": 300,
        "done": False,
        "date": "today",
        "loss": 0.5,
        "late": 2.0,
    }
    rows = rows_of(directory)
    assert list(rows[0]) == [
        "env_runners/episode_len_max",
        "num_env_steps_sampled_lifetime",
        "loss",
        "env_runners/episode_return_mean",
        "late",
    ]
    assert [row["env_runners/episode_return_mean"] for row in rows] == ["", "20.5", "30.5"]
    assert [row["late"] for row in rows] == ["", "1.0", "2.0"]


def test_what_is_never_known_is_nowhere_and_what_is_lost_shows(tmp_path):
    with ResultWriter(tmp_path, {}, tensorboard=False) as writer:
        for loss in (0.5, math.nan):
            never = {"timers": {"env_step_timer": math.nan}, "never": math.nan, "empty": {}}
            writer.write({"num_env_steps_sampled_lifetime": 1, "learners": {"loss": loss}, **never})
    assert lines_of(tmp_path) == [
        {"num_env_steps_sampled_lifetime": 1, "learners": {"loss": loss}, "empty": {}} for loss in (0.5, None)
    ]
    assert [row["learners/loss"] for row in rows_of(tmp_path)] == ["0.5", "nan"]
    assert list(rows_of(tmp_path)[0]) == ["num_env_steps_sampled_lifetime", "learners/loss"]


def test_a_run_is_never_mixed_with_another(tmp_path):
    with ResultWriter(tmp_path, {"run": 1}, tensorboard=False) as writer:
        writer.write(row_of(0))
    with pytest.raises(FileExistsError):
        ResultWriter(tmp_path, {"run": 2}, tensorboard=False)
    assert json.loads((tmp_path / "params.json").read_text()) == {"run": 1}
    assert len(lines_of(tmp_path)) == len(rows_of(tmp_path)) == 1


def test_tensorboard_events(tmp_path):
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    writer = ResultWriter(tmp_path, {})
    writer.write(row_of(0))
    writer.write(row_of(1))
    (path,) = tmp_path.glob("events.out.tfevents.*")
    scalars = []
    # The file is complete before it is closed. A record is: length, its checksum, the event, its checksum.
    data = path.read_bytes()
    while data:
        length = int.from_bytes(data[:8], "little")
        body = data[12 : 12 + length]
        assert int.from_bytes(data[8:12], "little") == masked_crc32c(data[:8])
        assert int.from_bytes(data[12 + length : 16 + length], "little") == masked_crc32c(body)
        event = Event.FromString(body)
        scalars += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
        data = data[16 + length :]
    writer.close()
    assert set(scalars) == {
        ("env_runners/episode_len_max", 100, 7.0),
        ("env_runners/episode_len_max", 200, 7.0),
        ("env_runners/episode_return_mean", 200, 20.5),
        ("num_env_steps_sampled_lifetime", 100, 100.0),
        ("num_env_steps_sampled_lifetime", 200, 200.0),
        ("loss", 100, 0.5),
        ("loss", 200, 0.5),
    }


def test_ctrl_c_leaves_files_that_are_written_on(tmp_path):
    folders = (tmp_path / str(number) for number in itertools.count())

    def begun():
        writer = ResultWriter(next(folders), {}, tensorboard=False)
        writer.write(row_of(0))
        return writer

    for writer in at_every_line(begun, lambda own: own.write(row_of(1, late=1.0)), "runs/writers.py"):
        writer.write(row_of(2, late=2.0))
        writer.close()
        lines, rows = lines_of(writer.directory), rows_of(writer.directory)
        assert len(lines) == len(rows) and rows[-1]["late"] == "2.0" and lines[-1]["late"] == 2.0


def test_new_directories_of_a_relative_path_are_absolute_and_numbered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [new_directory(Path("runs", "population")) for _ in range(3)]
    assert made == [tmp_path / "runs" / name for name in ("population", "population_2", "population_3")]
