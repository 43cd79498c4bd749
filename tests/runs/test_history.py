"""The table of a run's iterations."""

from __future__ import annotations

import json
import math
import zlib

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.checkpoints.plain_data import Decoder, Encoder
from jaxrl_stack.runs.history import History, numbers_of
from jaxrl_stack.runs.packed_rows import BLOCK_ROWS
from jaxrl_stack.runs.writers import ResultWriter
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.results import empty_result
from tests.interrupted import at_every_line

RETURN = "env_runners/episode_return_mean"


def result(iteration: int, **env_runners: float) -> dict:
    return {
        "env_runners": env_runners,
        "training_iteration": iteration,
        "num_env_steps_sampled_lifetime": 100 * iteration,
        "never": math.nan,
        "done": False,
        "date": "2026-01-01",
        "config": {"lr": 0.1},
    }


@pytest.fixture
def history() -> History:
    """Three iterations; the second one has no return, and only the last one an extra number."""
    history = History()
    history.append(result(1, episode_return_mean=10.5))
    history.append(result(2, episode_return_mean=math.nan))
    history.append(result(3, episode_return_mean=30.0, extra=7))
    return history


def test_columns_are_the_numbers_that_were_reported_at_least_once(history):
    assert history.columns == [RETURN, "training_iteration", "num_env_steps_sampled_lifetime", "env_runners/extra"]
    assert list(history) == history.columns and "never" not in history and "config/lr" not in history
    assert len(history) == 3
    np.testing.assert_array_equal(history[RETURN], [10.5, math.nan, 30.0])
    np.testing.assert_array_equal(history["env_runners/extra"], [math.nan, math.nan, 7.0])
    assert history[RETURN].dtype == np.float64
    assert history.last == {
        RETURN: 30.0,
        "training_iteration": 3.0,
        "num_env_steps_sampled_lifetime": 300.0,
        "env_runners/extra": 7.0,
    }


def test_a_column_is_a_copy(history):
    history[RETURN][:] = 0.0
    assert history[RETURN][0] == 10.5


def test_a_name_that_is_none_of_the_columns_is_refused_with_those_that_are_near(history):
    with pytest.raises(KeyError, match="'env_runners/episode_return_mean'"):
        history["env_runners/episode_return_man"]
    with pytest.raises(KeyError, match="'env_runners/episode_return_mean'"):
        history["episode_reward_mean"]
    with pytest.raises(KeyError, match="no number 'never'"):
        history["never"]
    with pytest.raises(KeyError):
        History()["training_iteration"]


def test_numbers_are_those_of_python_and_arrays_without_axes():
    values = {
        "int": 2,
        "float": 0.5,
        "numpy": np.float32(0.25),
        "array": np.array(3),
        "jax": jnp.float32(1.5),
        "truth": True,
        "numpy truth": np.True_,
        "vector": np.zeros(2),
        "text": "1.0",
        "none": None,
        "below": {"more": {"deep": 4}},
    }
    assert numbers_of(values) == {"int": 2, "float": 0.5, "numpy": 0.25, "array": 3, "jax": 1.5, "below/more/deep": 4}


def test_before_the_first_iteration_the_table_is_empty(tmp_path):
    history = History()
    assert (len(history), history.columns, history.last) == (0, [], {})
    assert history.to_pandas().shape == (0, 0)
    again = History()
    again.set_state(history.get_state())
    assert len(again) == 0
    again.append(result(1))
    assert len(again) == 1


def test_a_data_frame_has_a_row_for_each_iteration(history):
    frame = history.to_pandas()
    assert list(frame.columns) == history.columns and frame.shape == (3, 4)
    assert frame["training_iteration"].tolist() == [1.0, 2.0, 3.0]


def test_a_csv_file_is_read_as_it_was_written(history, tmp_path):
    path = tmp_path / "table.csv"
    history.to_csv(path)
    assert path.read_text().splitlines()[2] == ",2,200,"
    again = History.read(path)
    assert again.columns == history.columns
    np.testing.assert_array_equal(again.to_pandas(), history.to_pandas())


def test_a_checkpoint_holds_all_of_it_and_it_goes_on_from_there(history):
    encoder = Encoder()
    node = encoder.encode(history.get_state(), "history")
    restored = History()
    restored.set_state(Decoder(ClassLoader(), arrays=encoder.arrays.__getitem__).decode(json.loads(json.dumps(node))))
    for one in (history, restored):
        one.append(result(4, episode_return_mean=40.0))
    assert restored.columns == history.columns
    np.testing.assert_array_equal(restored.to_pandas(), history.to_pandas())


def test_a_table_of_before_cells_were_packed_is_taken_over(history):
    restored = History()
    restored.set_state({"columns": history.columns, "cells": history.to_pandas().to_numpy()})
    assert restored.columns == history.columns
    np.testing.assert_array_equal(restored.to_pandas(), history.to_pandas())


def test_a_state_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"a table of shape \(iterations, columns\) = \(3, 1\) has 2 column names"):
        History().set_state({"columns": ["a", "b"], "cells": np.zeros((3, 1))})


def long_history(num_rows: int) -> History:
    """With numbers of all kinds, and a column that comes late."""
    rng, history = np.random.default_rng(0), History()
    for i in range(num_rows):
        found = {"nan": math.nan if i % 3 else i / 7, "loss": float(np.float32(rng.normal())), "time": rng.random()}
        if i >= BLOCK_ROWS + 5:
            found["late"] = math.inf if i % 2 else -0.0
        history.append({"training_iteration": i, **found})
    return history


@pytest.mark.parametrize("num_rows", [BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS + 7])
def test_every_bit_of_a_long_run_comes_back(num_rows):
    history = long_history(num_rows)
    restored = History()
    restored.set_state(history.get_state())
    assert restored.columns == history.columns and len(restored) == num_rows
    for name in history:
        assert restored[name].tobytes() == history[name].tobytes()


def test_blocks_of_rows_are_packed_once():
    history = long_history(BLOCK_ROWS + 3)
    first = history.get_state()
    restored = History()
    restored.set_state(first)
    for one in (history, restored):
        for i in range(2 * BLOCK_ROWS):
            one.append({"training_iteration": i, "new": 1.0})
        state = one.get_state()
        assert [block is old for block, old in zip(state["blocks"], first["blocks"], strict=False)] == [True, False]
        again = History()
        again.set_state(state)
        assert len(again) == 3 * BLOCK_ROWS + 3
        assert again["training_iteration"].tobytes() == one["training_iteration"].tobytes()
        assert np.isnan(again["new"][: BLOCK_ROWS + 3]).all() and (again["new"][BLOCK_ROWS + 3 :] == 1.0).all()


def test_a_packed_history_is_a_fifth_of_its_size():
    rng, history = np.random.default_rng(0), History()
    for i in range(2 * BLOCK_ROWS):
        losses = {f"loss_{j}": float(np.float32(rng.normal())) for j in range(20)}
        counts = {f"count_{j}": 32 * i for j in range(20)}
        history.append(losses | counts | {f"episode_{j}": 100.0 + i % 7 for j in range(40)})
    size = sum(block.nbytes for block in history.get_state()["blocks"])
    assert size < 8 * len(history) * len(history.columns) / 5


def test_ctrl_c_in_an_iteration_leaves_a_table_that_checkpoints_hold():
    def begun():
        history = History()
        history.append({"a": 1.0, "b": 2.0})
        return history

    for history in at_every_line(begun, lambda own: own.append({"b": 3.0, "c": 4.0}), "runs/history.py"):
        history.append({"c": 5.0})
        restored = History()
        restored.set_state(history.get_state())
        assert len(restored) in (2, 3) and restored["c"][-1] == 5.0 and restored["b"][0] == 2.0


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_rows": 10**15}, "rows need 976562500000 blocks .* has 2 blocks"),
        ({"num_rows": BLOCK_ROWS + 4}, r"numbers of the shape \(columns, rows\) = \(4, 4\)"),
        ({"widths": [4]}, "rows need 2 blocks .* it has 2 blocks and 1 widths"),
        ({"widths": [4, 10**12]}, "1000000000000 columns, but the whole table has 4"),
        ({"widths": [3, 4]}, r"numbers of the shape \(columns, rows\) = \(3, 1024\)"),
        ({"columns": ["a"] * 4}, "has 4 column names, but needs a distinct name"),
        ({"columns": ["a"]}, "has 4 columns, but the whole table has 1"),
        ({"blocks": [np.zeros(100, np.uint8)] * 2}, "damaged"),
        ({"blocks": [np.frombuffer(zlib.compress(bytes(10**8)), np.uint8)] * 2}, "damaged"),
    ],
)
def test_damaged_blocks_are_refused(changed, message):
    state = long_history(BLOCK_ROWS + 3).get_state()
    with pytest.raises(ValueError, match=message):
        History().set_state({**state, **changed})


@pytest.mark.parametrize("name", ["", "progress.csv", "result.json"])
def test_what_a_run_has_written_is_read(name, tmp_path):
    written = History()
    with ResultWriter(tmp_path, {}, tensorboard=False) as writer:
        for i in (1, 2, 3):
            one = result(i, episode_return_mean=i / 3)
            writer.write(one)
            written.append(one)
    read = History.read(tmp_path / name)
    assert set(read.columns) == set(written.columns)
    np.testing.assert_array_equal(read.to_pandas()[written.columns], written.to_pandas())


def test_of_the_config_what_has_changed_is_read(tmp_path):
    """Ours has the settings that were changed from then on; RLlib and Tune write the whole config in every row."""
    with ResultWriter(tmp_path / "ours", {}, tensorboard=False) as writer:
        for i in (1, 2, 3):
            writer.write(result(i, episode_return_mean=1.0), {"lr": 0.1 / i} if i > 1 else {})
    for name in ("progress.csv", "result.json"):
        history = History.read(tmp_path / "ours" / name)
        np.testing.assert_array_equal(history["config/lr"], [np.nan, 0.05, 0.1 / 3])
    rows = [
        {"training_iteration": i, "config": {"lr": 0.1 if i < 3 else 0.2, "gamma": 0.9, "env": "A"}} for i in (1, 2, 3)
    ]
    (tmp_path / "result.json").write_text("\n".join(json.dumps(row) for row in rows))
    history = History.read(tmp_path / "result.json")
    assert history.columns == ["training_iteration", "config/lr"] and history["config/lr"].tolist() == [0.1, 0.1, 0.2]


def test_a_setting_gets_a_column_for_the_iterations_so_far():
    history = History()
    for i in (1, 2):
        history.append({"num_env_steps_sampled_lifetime": 10 * i})
    history.get_state()
    history.add_setting("lr", lambda num_env_steps: 1.0 + num_env_steps)
    history.append({"num_env_steps_sampled_lifetime": 30}, {"lr": 5.0})
    restored = History()
    restored.set_state(history.get_state())
    assert restored["config/lr"].tolist() == [1.0, 11.0, 5.0]


def test_tables_of_rllib_and_tune_are_read(tmp_path):
    (tmp_path / "progress.csv").write_text(
        "env_runners/episode_return_mean,trial_id,done,date,training_iteration,config/lr,config/env,node_ip\n"
        "20.5,12e45_00000,False,2026-01-01_10-00-00,1,0.1,CartPole-v1,127.0.0.1\n"
        "nan,12e45_00000,True,2026-01-01_10-00-09,2,0.1,CartPole-v1,127.0.0.1\n"
    )
    history = History.read(tmp_path)
    assert history.columns == [RETURN, "training_iteration"]
    np.testing.assert_array_equal(history[RETURN], [20.5, math.nan])


def test_the_last_row_of_a_run_that_was_killed_does_not_count(tmp_path):
    csv_file, json_file = tmp_path / "progress.csv", tmp_path / "result.json"
    csv_file.write_text("a,b\n1,2\n3")
    json_file.write_text('{"a": 1, "b": 2}\n{"a": 3, ')
    for file in (csv_file, json_file):
        assert History.read(file).last == {"a": 1.0, "b": 2.0}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("result.json", '{"a": \n{"a": 1}\n', "result.json is not a file with the results of a run, or is damaged"),
        ("result.json", "[1]\n", "line 1 is not a JSON object"),
        ("progress.csv", "a,b\nx,y\n", "no column of the table contains numbers"),
        (
            "run.txt",
            "",
            "run.txt is not a file with the results of a run. Pass the folder of a run, or its progress.csv",
        ),
    ],
)
def test_other_files_are_refused(name, text, message, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        History.read(tmp_path / name)


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="neither progress.csv nor result.json"):
        History.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        History.read(tmp_path / "progress.csv")


def test_ten_thousand_iterations_are_less_than_fifty_megabytes():
    history = History()
    full = empty_result(evaluation=True)
    for i in range(10_000):
        full["training_iteration"] = i
        history.append(full)
    state = history.__dict__
    assert len(numbers_of(full)) > 100
    assert sum(value.nbytes for value in state.values() if isinstance(value, np.ndarray)) < 50e6
    assert history["training_iteration"][-1] == 9_999
