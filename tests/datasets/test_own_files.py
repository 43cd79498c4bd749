"""The package's own Parquet files: written once, in order, whole or not at all, and read as they were recorded."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.step_writer import ROW_GROUP_ROWS, StepWriter, cut_to
from jaxrl_stack.datasets.steps import Steps
from tests.datasets.recorded import ACTION_SPACE, INFO, OBS_SPACE, assert_same, recorded


def write(folder, *parts, name="run-000000", **kwargs):
    with StepWriter(folder, name, about=INFO, **kwargs) as writer:
        for part in parts:
            writer.add(part)
    return writer.files


def read(*inputs, **options):
    return open_dataset(list(inputs), options=ReadOptions(**options)).read_all()


def test_what_is_read_is_what_was_recorded(tmp_path):
    parts = [recorded([5, 1, 30], first=3 * i, seed=i) for i in range(4)]
    write(tmp_path / "new", *parts)
    data = open_dataset(str(tmp_path), options=ReadOptions())
    assert_same(data.read_all(), Steps.concatenated(parts))
    assert (data.num_rows, data.num_steps) == (4 * 39, 4 * 36)
    assert (data.info.env_id, data.info.seed, data.info.module_id) == ("Toy-v0", 7, "default_policy")
    assert (data.info.observation_space, data.info.action_space) == (OBS_SPACE, ACTION_SPACE)
    assert data.info.versions["jaxrl-stack"] == INFO.versions["jaxrl-stack"]


def test_pieces_are_row_groups_and_together_all_rows(tmp_path):
    whole = recorded([400] * 50)
    write(tmp_path, whole)
    data = open_dataset(tmp_path, options=ReadOptions())
    parts = [data.read(piece) for piece in data.pieces]
    assert len(parts) == 3 and all(part.is_final[-1] for part in parts)
    assert [part.num_rows for part in parts] == [piece.num_rows for piece in data.pieces]
    assert max(part.num_rows for part in parts) <= ROW_GROUP_ROWS
    assert_same(Steps.concatenated(parts), whole)


def test_files_have_so_many_rows_and_no_row_twice(tmp_path):
    parts = [recorded([7] * 9, first=9 * i, seed=i) for i in range(10)]
    files = write(tmp_path, *parts, max_rows_per_file=100)
    rows = [pq.read_metadata(file).num_rows for file in files]
    assert len(rows) == 8 and max(rows) <= 100 and sum(rows) == 10 * 9 * 8
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"run-000000-{i:05d}.parquet" for i in range(8)]
    assert_same(read(tmp_path), Steps.concatenated(parts))


def test_other_programs_read_the_columns(tmp_path):
    steps = recorded([3])
    [file] = write(tmp_path, steps)
    table = pq.read_table(file)
    assert table.column("eps_id").to_pylist() == ["e0"] * 4 and table.column("t").to_pylist() == [0, 1, 2, 3]
    assert table.column("is_final").to_pylist() == [False] * 3 + [True]
    assert table.column("module_id").to_pylist() == ["default_policy"] * 4
    assert table.column("agent_id").to_pylist() == [None] * 4
    np.testing.assert_array_equal(table.column("obs/position").to_pylist(), steps.columns["obs"]["position"])
    assert table.column("actions").to_pylist() == steps.columns["actions"].tolist()


def test_long_pieces_are_cut_with_a_final_row_each():
    whole = recorded([9, 2])
    cut = cut_to(whole, 4)
    np.testing.assert_array_equal(np.diff(cut.piece_starts()), [4, 4, 4, 3])
    assert cut.t.tolist() == [0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 0, 1, 2] and cut.num_steps == whole.num_steps
    np.testing.assert_array_equal(cut.columns["obs"]["position"][3], cut.columns["obs"]["position"][4])
    kept = ~cut.is_final
    for name in (Columns.REWARDS, Columns.ACTIONS, Columns.TERMINATEDS):
        np.testing.assert_array_equal(cut.columns[name][kept], whole.columns[name][~whole.is_final])
        assert not cut.columns[name][cut.is_final].any()
    assert cut_to(whole, 10) is whole


@pytest.mark.parametrize("max_rows", range(2, 14))
def test_cutting_keeps_every_step_and_what_follows_it(max_rows):
    whole = recorded([9, 1, 2, 12])
    cut = cut_to(whole, max_rows)
    assert np.diff(cut.piece_starts()).max() <= max_rows
    obs = whole.columns["obs"]["position"]
    found = cut.columns["obs"]["position"]
    np.testing.assert_array_equal(found[np.flatnonzero(~cut.is_final) + 1], obs[np.flatnonzero(~whole.is_final) + 1])


def test_infos_are_read_when_they_are_asked_for(tmp_path):
    steps = recorded([2])
    infos = np.array([{"x": np.float32(1.5)}, {}, {"y": [np.int64(1), "a"]}], object)
    write(tmp_path, Steps({**steps.columns, "infos": infos}, steps.is_final, steps.episode, steps.t, steps.episode_ids))
    assert "infos" not in read(tmp_path).columns
    found = read(tmp_path, columns=["infos"])
    assert list(found.columns["infos"]) == [{"x": 1.5}, {}, {"y": [1, "a"]}]
    assert "action_dist_inputs" not in found.columns and "obs" in found.columns


def test_files_of_before_stay(tmp_path):
    [first] = write(tmp_path, recorded([1]))
    [second] = write(tmp_path, recorded([2]))
    assert first.endswith("-00000.parquet") and second.endswith("-00001.parquet")
    assert read(tmp_path).num_steps == 3


def test_half_a_file_has_another_name_until_it_is_whole(tmp_path):
    writer = StepWriter(tmp_path, "run", about=INFO, max_rows_per_file=50)
    writer.add(recorded([20] * 2))
    assert (writer.num_buffered_rows, list(tmp_path.iterdir())) == (42, [])
    writer.add(recorded([20], first=2))
    assert writer.num_buffered_rows == 21
    assert [p.name for p in tmp_path.iterdir()] == [".run-00000.parquet.writing"]
    with pytest.raises(BadDataError, match="no files"):
        read(tmp_path)
    writer.close()
    writer.close()
    assert [p.name for p in sorted(tmp_path.iterdir())] == ["run-00000.parquet", "run-00001.parquet"]
    assert read(tmp_path).num_steps == 60


def test_an_error_while_writing_is_raised_and_leaves_no_file(tmp_path):
    writer = StepWriter(tmp_path, "run", about=INFO)
    writer.add(recorded([3]))
    tmp_path.rmdir()
    with pytest.raises(OSError, match="run-00000"):
        writer.close()
    assert not tmp_path.exists()


def test_steps_of_other_columns_are_refused(tmp_path):
    writer = StepWriter(tmp_path, "run", about=INFO)
    writer.add(recorded([3]))
    other = recorded([3]).map_columns(lambda name, own: own.astype(np.int64) if name == "actions" else own)
    with pytest.raises(ValueError, match="int64"):
        writer.add(other)
    steps = recorded([3])
    infos = np.array([{} for _ in range(steps.num_rows)], object)
    with pytest.raises(ValueError, match="These steps have infos, but earlier steps have no infos"):
        writer.add(dataclasses.replace(steps, columns={**steps.columns, Columns.INFOS: infos}))
    with pytest.raises(ValueError, match="max_rows_per_file=1 "):
        StepWriter(tmp_path, "run", about=INFO, max_rows_per_file=1)
    texts = recorded([3]).map_columns(lambda name, own: np.array(["a"] * 4) if name == "rewards" else own)
    with pytest.raises(TypeError, match="rewards has dtype str"):
        writer.add(texts)


def test_a_description_is_the_same_again():
    info = DatasetInfo(OBS_SPACE, gym.spaces.Box(-2, 2, (1,)), "E", 3, more={"policy": "expert"})
    assert DatasetInfo.from_json(info.to_json()) == info
    for damaged in ([], {"env_id": 3}, {"action_space": {"type": "Box"}}, {"action_space": {"type": "Nothing"}}):
        with pytest.raises(ValueError, match=r"."):
            DatasetInfo.from_json(damaged)
    with pytest.raises(ValueError, match="more than"):
        DatasetInfo.from_json({"observation_space": {"type": "MultiBinary", "n": 1 << 40}})


def test_other_spaces_than_the_configs_are_refused(tmp_path):
    write(tmp_path, recorded([3]))
    with pytest.raises(BadDataError, match="00000.parquet: The config's action_space differs from this file's"):
        read(tmp_path, action_space=gym.spaces.Discrete(4))


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("rewards", np.nan, "row 6: The column rewards has numbers that are not finite"),
        ("actions", 3, r"row 6: The action 3 is not in Discrete\(3\)"),
    ],
)
def test_bad_numbers_are_named_with_their_row(tmp_path, column, value, message):
    steps = recorded([4, 5])
    array = steps.columns[column].copy()
    array[6] = value
    write(tmp_path, steps.map_columns(lambda name, own: array if name == column else own))
    with pytest.raises(BadDataError, match=message) as raised:
        read(tmp_path)
    assert raised.value.row == 6 and str(raised.value.path).endswith("00000.parquet")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert read(tmp_path, check=False).num_steps == 9


def test_weights_are_shares(tmp_path):
    write(tmp_path / "a", recorded([2]))
    write(tmp_path / "b", recorded([3]))
    data = open_dataset({str(tmp_path / "a"): 1.0, str(tmp_path / "b"): 3.0}, options=ReadOptions())
    assert data.weights == [0.25, 0.75] and [piece.input for piece in data.pieces] == [0, 1]
    assert [data.read_all(i).num_steps for i in range(2)] == [2, 3]
    with pytest.raises(ValueError, match="weight above 0"):
        open_dataset({str(tmp_path / "a"): 0.0}, options=ReadOptions())
    assert open_dataset([tmp_path], options=ReadOptions()).weights is None


def test_a_file_that_is_cut_off_is_named(tmp_path):
    [file] = write(tmp_path, recorded([30]))
    content = Path(file).read_bytes()
    for part in (content[:-9], content[:200], b"", content[:4] + bytes(len(content))):
        Path(file).write_bytes(part)
        with pytest.raises(BadDataError, match="run-000000-00000.parquet: The file cannot be read"):
            read(tmp_path)


def test_rows_that_were_changed_are_found(tmp_path):
    [file] = write(tmp_path, recorded([3, 4]))
    table = pq.read_table(file)
    metadata = pq.read_metadata(file).metadata
    metadata = {name: own for name, own in metadata.items() if name.startswith(b"jaxrl_stack")}

    def rewritten(changed):
        pq.write_table(changed.replace_schema_metadata(metadata), file)
        with pytest.raises(BadDataError) as raised:
            read(file)
        return str(raised.value)

    at = table.schema.get_field_index("eps_id")
    assert "row 1: An episode begins here" in rewritten(table.set_column(at, "eps_id", pa.array(list("abcdefghi"))))
    assert "rewards has type double" in rewritten(
        table.set_column(table.schema.get_field_index("rewards"), "rewards", pa.array([0.0] * 9))
    )
    assert "actions is missing" in rewritten(table.drop_columns(["actions"]))
    assert "row counts" in rewritten(table.slice(0, 4))


def test_a_bit_that_changed_is_found(tmp_path):
    [file] = map(Path, write(tmp_path, recorded(np.arange(40) % 12 + 3)))
    content = file.read_bytes()
    expected = read(file)
    rng, num_errors = np.random.default_rng(0), 0
    for _ in range(150):
        data = bytearray(content)
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
        file.write_bytes(data)
        try:
            found = open_dataset(file)
            steps = found.read_all()
        except BadDataError:
            num_errors += 1
            continue
        assert found.info == INFO
        assert_same(steps, expected)
    assert num_errors > 100
