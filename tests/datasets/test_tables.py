"""Tables of steps that others wrote: RLlib's three forms, other names, other types, and what cannot be learned from."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import pickle
from pathlib import Path

import gymnasium as gym
import lz4.frame
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.packed_columns import loaded, packed
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.rllib_episodes import packed_state, state_of_piece, steps_of_state, unpacked_state
from tests.datasets.recorded import INFO, assert_same, recorded

RLLIB = Path(__file__).parents[1] / "reference" / "rllib_data"
EXPECTED = json.loads((RLLIB / "expected.json").read_text())


def read(*inputs, **options):
    return open_dataset([str(own) for own in inputs], options=ReadOptions(**options)).read_all()


def table(lengths, *, with_next=True, **changes):
    """Rows of terminated episodes, whose observations count."""
    number = itertools.count()
    rows = []
    for episode, length in enumerate(lengths):
        obs = [[float(next(number)), 0.5] for _ in range(length + 1)]
        for t in range(length):
            row = {"eps_id": episode, "obs": obs[t], "actions": t % 2, "rewards": 1.0, "terminateds": t + 1 == length}
            rows.append({**row, "truncateds": False, **({"new_obs": obs[t + 1]} if with_next else {})})
    columns = {name: [row[name] for row in rows] for name in rows[0]} | changes
    return pa.table({name: own for name, own in columns.items() if own is not None})


def written(tmp_path, content, name="rows.parquet", **kwargs):
    pq.write_table(content, tmp_path / name, **kwargs)
    return tmp_path / name


@pytest.mark.parametrize("form", EXPECTED)
def test_what_rllib_records_is_read_as_it_was_sampled(form):
    steps = read(RLLIB / form)
    assert sorted(steps.episode_ids) == sorted(EXPECTED[form])
    for number, id_ in enumerate(steps.episode_ids):
        expected, own = EXPECTED[form][id_], steps.episode == number
        is_step = own & ~steps.is_final
        np.testing.assert_array_equal(steps.columns["obs"][own], np.float32(expected["observations"]))
        for name in ("actions", "rewards", "action_logp"):
            np.testing.assert_array_equal(steps.columns[name][is_step], np.asarray(expected[name], np.float32))
        assert steps.columns["terminateds"][is_step].tolist()[-2:] == [False, expected["terminated"]]
        assert steps.columns["truncateds"][is_step][-1] == expected["truncated"]
        assert steps.t[own].tolist() == list(range(len(expected["observations"])))


def test_rows_of_an_episode_are_joined_over_files_and_row_groups(tmp_path):
    rows = table([5, 3, 4])
    pieces = np.split(np.arange(12), [1, 4, 5, 11])
    for i, piece in enumerate(pieces):
        written(tmp_path, rows.take(pa.array(piece)), f"part_{i + 8}.parquet")
    steps = read(tmp_path)
    assert steps.num_pieces == 3 and steps.episode_ids == ["0", "1", "2"]
    assert steps.columns["obs"][:, 0].tolist() == list(range(15)) and steps.t.tolist() == [
        *range(6),
        *range(4),
        *range(5),
    ]
    file = written(tmp_path, rows, "groups", row_group_size=5)
    data = open_dataset(str(file), options=ReadOptions())
    found = [data.read(piece) for piece in data.pieces]
    assert [own.num_steps for own in found] == [5, 5, 2] and data.num_steps == 12 and data.num_rows is None
    assert data.read_all().num_pieces == 3


def test_rows_that_do_not_go_on_are_pieces_of_their_own(tmp_path):
    rows = table([4]).take(pa.array([0, 1, 3]))
    steps = read(written(tmp_path, rows))
    assert steps.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 4]
    assert steps.is_final.tolist() == [False, False, True, False, True]
    assert steps.episode_ids == ["0"] and steps.columns["terminateds"].tolist() == [False, False, False, True, False]
    counted = read(written(tmp_path, table([4], t=[0, 1, 5, 6])))
    assert counted.t.tolist() == [0, 1, 2, 5, 6, 7] and counted.num_pieces == 2


def test_without_ids_episodes_end_where_they_end(tmp_path):
    steps = read(written(tmp_path, table([2, 3], eps_id=None)))
    assert steps.num_pieces == 2 and len(set(steps.episode_ids)) == 2


def test_without_next_observations_next_rows_have_them_or_last_ones_are_zeros(tmp_path):
    file = written(tmp_path, table([2, 1], with_next=False))
    # Nothing is computed from what comes after a terminal step.
    assert read(file).columns["obs"].tolist() == [[0, 0.5], [1, 0.5], [1, 0.5], [3, 0.5], [3, 0.5]]
    steps = read(file, ignore_final_observation=True)
    assert steps.columns["obs"].tolist() == [[0, 0.5], [1, 0.5], [0, 0], [3, 0.5], [0, 0]]


def test_columns_have_other_names(tmp_path):
    file = written(tmp_path, table([3]).rename_columns(["id", "o", "a", "r", "end", "truncateds", "o2"]))
    with pytest.raises(BadDataError, match=r"\['obs', 'actions'\] are missing.*input_read_schema=\{'obs': \.\.\.\}"):
        read(file)
    schema = {"eps_id": "id", "obs": "o", "actions": "a", "rewards": "r", "terminateds": "end", "new_obs": "o2"}
    steps = read(file, schema=schema)
    assert steps.num_steps == 3 and set(steps.columns) == {"obs", "actions", "rewards", "terminateds", "truncateds"}
    with pytest.raises(ValueError, match="input_read_schema names"):
        read(file, schema={"observation": "o"})


def test_dones_alone_are_terminal_and_it_is_said_once(tmp_path, caplog):
    dones = [False, True]
    file = written(tmp_path, table([2], terminateds=None, truncateds=None, dones=dones))
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        for _ in range(2):
            steps = read(file)
    assert steps.columns["terminateds"].tolist() == [False, True, False] and not steps.columns["truncateds"].any()
    assert [record.message.count("'dones'") for record in caplog.records] == [1]


@pytest.mark.parametrize("kind", ["list", "fixed", "struct", "nested"])
def test_arrays_are_of_any_kind(tmp_path, kind):
    def made(numbers):
        if kind == "struct":
            return pa.array([{"x": own, "y": {"z": [own, own]}} for own in numbers])
        if kind == "fixed":
            return pa.array([[own, own] for own in numbers], pa.list_(pa.float64(), 2))
        return pa.array([[[own, own]] if kind == "nested" else [own, own] for own in numbers])

    rows = table([3], obs=made([0.0, 1.0, 2.0]), new_obs=made([1.0, 2.0, 3.0]))
    obs = read(written(tmp_path, rows)).columns["obs"]
    leaf = obs["y"]["z"] if kind == "struct" else obs
    assert leaf.shape == {"nested": (4, 1, 2)}.get(kind, (4, 2)) and leaf.dtype == np.float32
    assert leaf.reshape(4, 2)[:, 1].tolist() == [0, 1, 2, 3]


def test_observations_are_of_the_spaces_dtype_and_shape(tmp_path):
    file = written(tmp_path, table([3]))
    spaces = {"observation_space": gym.spaces.Box(0, 99, (2,), np.float32), "action_space": gym.spaces.Discrete(2)}
    assert read(file, **spaces).columns["actions"].dtype == np.int32
    with pytest.raises(BadDataError, match=r"rows.parquet: obs has .*Set observation_space"):
        read(file, **{**spaces, "observation_space": gym.spaces.Box(0, 99, (3,))})
    with pytest.raises(BadDataError, match="row 1: The action 1 is not in Discrete"):
        read(file, **{**spaces, "action_space": gym.spaces.Discrete(1)})
    with pytest.raises(BadDataError, match="actions has batch shape|actions has shape|actions"):
        read(file, **{**spaces, "action_space": gym.spaces.Box(-1, 1, (2,))})
    wide = table([1], actions=[0.5])
    assert read(written(tmp_path, wide), action_space=gym.spaces.Box(-1, 1, (1,))).columns["actions"].shape == (2, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs": [[1.0, 2.0], [np.nan, 2.0]]}, "row 1: The column obs has numbers that are not finite"),
        ({"obs": [[1.0, 2.0], None]}, "row 1: The column obs cannot be read: the row has no value"),
        ({"obs": [[1.0, 2.0], [1.0]]}, "row 1: The column obs cannot be read: a list of this column has 1 entries"),
        ({"new_obs": [[1.0], [2.0]]}, "new_obs has the shapes"),
        ({"rewards": ["a", "b"]}, "The column rewards holds texts"),
        ({"rewards": [[1.0, 3.0], [2.0, 3.0]]}, "rewards has lists .2 entries.*input_read_sample_batches=True"),
        ({"terminateds": [0.5, 1.0]}, "The column terminateds has the value 0.5, which is no flag"),
        ({"eps_id": [1, None]}, "row 1: The row has no value in the column eps_id"),
        ({"agent_id": ["a", "b"]}, "steps of several agents"),
        ({"agent_index": [0, 1]}, "steps of several agents"),
        ({"obs": ["a", "b"], "new_obs": ["a", "b"]}, "row 0: The column obs holds no packed array"),
    ],
)
def test_bad_rows_are_named(tmp_path, changes, message):
    with pytest.raises(BadDataError, match=message) as raised:
        read(written(tmp_path, table([2], **changes)))
    assert "rows.parquet" in str(raised.value)


def test_an_empty_table_is_refused(tmp_path):
    with pytest.raises(BadDataError, match="the files are empty"):
        read(written(tmp_path, table([2]).slice(0, 0)))
    with pytest.raises(BadDataError, match="where there are no files"):
        read(tmp_path / "nothing")


def test_columns_that_nothing_asks_for_may_be_odd(tmp_path):
    file = written(tmp_path, table([2], notes=["a", "b"], ragged=[[1], [1, 2]], value=[1, 1 << 40]))
    steps = read(file)
    assert set(steps.columns) >= {"value"} and not {"notes", "ragged"} & set(steps.columns)
    assert steps.columns["value"].tolist() == [1, 1 << 40, 0]
    with pytest.raises(BadDataError, match="ragged"):
        read(file, columns=["ragged"])
    with pytest.raises(BadDataError, match=r"\['other'\] are missing"):
        read(file, columns=["other"])
    assert "value" not in read(file, columns=[]).columns


# ------------------------------------------------------------------------------------------------------ packed columns


def as_text(content: bytes) -> str:
    return base64.b64encode(lz4.frame.compress(content)).decode()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    "value", [np.arange(4, dtype="<f4"), np.ones((2, 3), ">i2"), np.zeros((300, 2)), np.array([True])]
)
def test_packed_arrays_are_what_numpy_packed(value, protocol):
    content = pickle.dumps(value, protocol)
    if protocol < 5:
        with pytest.raises(ValueError, match="_reconstruct, which is not allowed"):
            loaded(content)
        return
    np.testing.assert_array_equal(loaded(content), value)
    tree = loaded(pickle.dumps({"a": [value], "b": (value, 3)}, protocol))
    np.testing.assert_array_equal(tree["a"][0], value)
    np.testing.assert_array_equal(tree["b"][1], 3)


def test_packed_columns_are_read(tmp_path):
    arrays = [np.full((40, 2), i, np.float32) for i in range(4)]
    rows = table([3], obs=[packed(own) for own in arrays[:3]], new_obs=[packed(own) for own in arrays[1:]])
    obs = read(written(tmp_path, rows)).columns["obs"]
    np.testing.assert_array_equal(obs, np.stack(arrays))
    with pytest.raises(BadDataError, match="add '(new_)?obs' to input_compress_columns"):
        read(written(tmp_path, rows), compress_columns=[])
    large = written(tmp_path, table([1], obs=[packed(np.zeros(9999))], new_obs=[packed(np.zeros(9999))]))
    with pytest.raises(BadDataError, match="has more than 4,104 bytes"):
        read(large, observation_space=gym.spaces.Box(-1, 1, (1,)))


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_is_refused(tmp_path, protocol):
    mark = tmp_path / "was_here"
    for content in (Harm(mark), [Harm(mark)], {"a": Harm(mark)}, np.array([Harm(mark)], object)):
        text = as_text(pickle.dumps(content, protocol))
        with pytest.raises(BadDataError, match="row 0: The column obs holds no packed array"):
            read(written(tmp_path, table([1], obs=[text], new_obs=[text])))
    assert not mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",  # an array of a tebibyte
        b"\x80\x05Nr\xff\xff\xff\x7f.",  # a memo of 2^31 entries
        b"\x80\x05]" + b"\x94h\x00\x86" * 40 + b".",  # pairs of pairs
        b"\x80\x05" + b"(" * 100_000 + b".",
        b"\x80\x05\x82\x01.",  # an extension
        b"\x80\x05cnumpy\ndtype\n(X\x02\x00\x00\x00O8\x89\x88tR.",
        b"",
    ],
)
def test_damaged_pickles_take_no_memory(content):
    with pytest.raises(Exception):  # noqa: B017, PT011 # whichever: `unpacked` makes one of all
        loaded(content)


# --------------------------------------------------------------------------------------------------- packed episodes


def piece():
    steps = recorded([4])
    return steps.map_columns(lambda name, own: own[0] if name == "mask" else own)


def test_an_episode_is_the_same_again():
    steps = piece()
    content = packed_state(state_of_piece(steps, (INFO.observation_space, INFO.action_space)))
    found = steps_of_state(unpacked_state(content))
    assert_same(found, steps)


def test_look_back_is_left_out():
    state = unpacked_state(packed_state(state_of_piece(piece())))
    for name in ("observations", "actions", "rewards"):
        state[name]["lookback"] = 1
    for name in state["extra_model_outputs"]:
        state["extra_model_outputs"][name]["lookback"] = 1
    found = steps_of_state(state)
    np.testing.assert_array_equal(found.columns["rewards"][:-1], piece().columns["rewards"][1:-1])


def changed(**changes):
    return {**state_of_piece(piece()), **changes}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (changed(agent_episodes={}), r"several agents.* to files. Remove this episode"),
        (changed(rewards={"data": [], "lookback": 0}), "empty list"),
        (changed(rewards={"data": ["a"] * 4, "lookback": 0}), "contain numbers"),
        (changed(rewards={"data": [1.0] * 3, "lookback": 0}), "but 3 steps need"),
        (changed(actions={"data": [1.0] * 4, "lookback": -1}), "invalid lookback"),
        (changed(observations=[1, 2]), "of the episode is not a column"),
        ({"id_": "a"}, "are missing"),
        ([], r"not a packed \(serialized\) episode"),
        (changed(actions={b"nd": True, b"type": "|O", b"kind": b"O", b"shape": [1], b"data": b"x"}), "Python objects"),
        (
            changed(actions={b"nd": True, b"type": "<f4", b"kind": b"", b"shape": [3], b"data": b"x"}),
            "has 1 bytes instead of 12",
        ),
        (
            changed(actions={b"nd": True, b"type": "<M8", b"kind": b"", b"shape": [1], b"data": b"12345678"}),
            "array of numbers",
        ),
        (changed(infos=[{}] * 100_000), "many times as large in memory"),
    ],
)
def test_other_states_are_refused(tmp_path, state, message):
    import msgpack

    from jaxrl_stack.datasets.rllib_episodes import _described

    content = msgpack.packb(state, default=_described)
    with pytest.raises(BadDataError, match=message) as raised:
        read(written(tmp_path, pa.table({"item": pa.array([content], pa.binary())})))
    assert raised.value.row == 0


def test_episodes_are_asked_for(tmp_path):
    assert read(RLLIB / "episodes", episodes=True).num_pieces == 2
    with pytest.raises(BadDataError, match="no column 'item'"):
        read(RLLIB / "rows", episodes=True)


# ----------------------------------------------------------------------------------------------------- sample batches


def batches(**changes):
    """An episode of three steps in one row, the first two steps of another in the next."""
    made = {
        "eps_id": [[5, 5, 5], [6, 6]],
        "obs": [[[0.0], [1.0], [2.0]], [[4.0], [5.0]]],
        "new_obs": [[[1.0], [2.0], [3.0]], [[5.0], [6.0]]],
        "actions": [[0, 1, 0], [1, 1]],
        "rewards": [[1.0, 1.0, 1.0], [2.0, 2.0]],
        "terminateds": [[False, False, True], [False, False]],
        "truncateds": [[False] * 3, [False] * 2],
        "vf_preds": [[0.5] * 3, [0.25] * 2],
    } | changes
    return pa.table({name: own for name, own in made.items() if own is not None})


def test_sample_batches_are_read(tmp_path):
    steps = read(written(tmp_path, batches()), sample_batches=True)
    assert steps.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6] and steps.episode_ids == ["5", "6"]
    assert steps.columns["terminateds"].tolist() == [False, False, True] + [False] * 4
    assert steps.columns["vf_preds"].tolist() == [0.5] * 3 + [0] + [0.25] * 2 + [0]
    plain = {"terminateds": None, "truncateds": None, "eps_id": None, "new_obs": None}
    steps = read(written(tmp_path, batches(**plain)), sample_batches=True)
    assert steps.columns["obs"][:, 0].tolist() == [0, 1, 2, 2, 4, 5, 5]
    assert steps.columns["terminateds"].tolist() == [False, False, True, False, False, True, False]
    done = read(written(tmp_path, batches(**plain, done=[[False] * 3, [False, True]])), sample_batches=True)
    assert done.columns["terminateds"].tolist() == [False] * 5 + [True, False]


@pytest.mark.parametrize("whole", [True, False])
def test_sample_batches_are_unpacked(tmp_path, whole):
    arrays = [np.array([[0.0], [1.0], [2.0]], np.float32), np.array([[4.0], [5.0]], np.float32)]
    obs = [packed(own) if whole else [packed(row) for row in own] for own in arrays]
    after = [packed(own + 1) if whole else [packed(row + 1) for row in own] for own in arrays]
    steps = read(written(tmp_path, batches(obs=obs, new_obs=after)), sample_batches=True)
    assert steps.columns["obs"][:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_bad_batches_are_named(tmp_path):
    with pytest.raises(BadDataError, match="row 1: The column actions must have one entry"):
        read(written(tmp_path, batches(actions=[[0, 1, 0], [1]])), sample_batches=True)
    assert "rewards" not in read(written(tmp_path, batches(rewards=None)), sample_batches=True).columns
