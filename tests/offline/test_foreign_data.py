"""Recorded data of others, as a module takes it: spaces, actions, connectors, sizes."""

from __future__ import annotations

import json
import logging

import gymnasium as gym
import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.cql import CQLConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.connectors.env_to_module import (
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    PrevActionsPrevRewards,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.datasets.opening import Dataset
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.env.step_output import CONNECTORS, described_connectors
from jaxrl_stack.execution.streamed_data import StreamedInput
from jaxrl_stack.offline.module_inputs import spaces_without_env
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.offline.offline_prelearner import OfflinePreLearner

BOX, TWO = gym.spaces.Box(-10, 10, (2,)), gym.spaces.Discrete(2)
N = 12


class Env(gym.Env):
    """Has the spaces that it is asked for."""

    def __init__(self, config):
        self.observation_space, self.action_space = config["spaces"]

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


def config(path, spaces=(BOX, TWO), *, with_env=True, algorithm=BCConfig, **data):
    own = {"env": Env, "env_config": {"spaces": spaces}} if with_env else {}
    named = {} if with_env else {"observation_space": spaces[0], "action_space": spaces[1]}
    return algorithm().environment(**own, **named).offline_data(input_=[str(path)], **data)


def table(folder, obs, actions=None, **kwargs):
    """Two terminated episodes of six steps, of which the observations are these."""
    columns = {"eps_id": [i // 6 for i in range(N)], "t": [i % 6 for i in range(N)], "obs": obs}
    columns |= {"actions": [i % 2 for i in range(N)] if actions is None else actions, "rewards": [1.0] * N}
    columns |= {"terminateds": [i % 6 == 5 for i in range(N)], "truncateds": [False] * N}
    pq.write_table(pa.table(columns), folder / "rows.parquet", **kwargs)
    return folder


def steps_of(asked, columns=(Columns.OBS, Columns.ACTIONS)):
    [steps], _ = OfflineData(asked).steps(columns, spaces_without_env(asked))
    return steps


PLAIN = [[float(i), 0.5] for i in range(N)]
DICT = gym.spaces.Dict(a=BOX, b=gym.spaces.Discrete(3))
STRUCTS = [{"a": own, "b": i % 3} for i, own in enumerate(PLAIN)]


@pytest.mark.parametrize("with_env", [True, False], ids=["environment", "spaces"])
@pytest.mark.parametrize(
    ("space", "obs", "width"),
    [
        (gym.spaces.Discrete(16), list(range(N)), 16),
        (gym.spaces.Discrete(16, start=3), [i + 3 for i in range(N)], 16),
        (DICT, STRUCTS, 5),
        (gym.spaces.MultiDiscrete([3, 4]), [[i % 3, i % 4] for i in range(N)], 7),
        (gym.spaces.MultiBinary(3), [[i % 2, 0, 1] for i in range(N)], 3),
        (BOX, PLAIN, 2),
    ],
    ids=lambda own: str(own)[:20] if isinstance(own, gym.Space) else "",
)
def test_observations_of_the_environment_pass_the_default_connectors(tmp_path, with_env, space, obs, width):
    asked = config(table(tmp_path, obs), (space, TWO), with_env=with_env)
    taken = steps_of(asked).columns[Columns.OBS]
    assert taken.shape == (N + 2, width) and taken.dtype == np.float32
    flat = [gym.spaces.flatten(space, space.from_jsonable([own])[0]) for own in obs] if space is not DICT else None
    if flat is None:
        flat = [gym.spaces.flatten(space, {"a": np.float32(own["a"]), "b": own["b"]}) for own in obs]
    np.testing.assert_allclose(taken[[*range(6), *range(7, 13)]], flat)


def test_observations_of_the_module_stay_as_they_are(tmp_path):
    taken = steps_of(
        config(table(tmp_path, [np.eye(4)[i % 4].tolist() for i in range(N)]), (gym.spaces.Discrete(4), TWO))
    )
    np.testing.assert_array_equal(taken.columns[Columns.OBS][:6], np.eye(4)[[0, 1, 2, 3, 0, 1]])


@pytest.mark.parametrize("normalized", [False, True])
def test_connectors_of_the_config_make_the_modules_observations(tmp_path, normalized):
    asked = config(table(tmp_path, STRUCTS), (DICT, TWO), normalize_observations=normalized).env_runners(
        env_to_module_connector=lambda env, spaces, device: FlattenObservations(keys_to_remove=["b"])
    )
    taken = steps_of(asked).columns[Columns.OBS]
    assert taken.shape[1] == 2 and (np.abs(taken[:6, 0].mean()) > 2) != normalized


@pytest.mark.parametrize("connector", [FrameStacking(num_frames=2), PrevActionsPrevRewards()])
def test_connectors_that_need_earlier_steps_do_not_convert_observations(tmp_path, connector):
    asked = config(table(tmp_path, PLAIN)).env_runners(env_to_module_connector=lambda env, spaces, device: connector)
    name = type(connector).__name__
    with pytest.raises(ValueError, match=rf"connectors \['{name}'\] need several steps for each input of the module"):
        steps_of(asked)


@pytest.mark.parametrize("algorithm", [BCConfig, DQNConfig])
@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ([7] * N, r"rows.parquet, row 0: The action 7 is not in Discrete\(2\)"),
        ([-1] * N, "The action -1 is not in"),
        ([0.5] * N, "The column actions has the value 0.5, but .* whole numbers"),
    ],
)
def test_actions_outside_of_the_environments_space_are_refused(tmp_path, algorithm, actions, message):
    with pytest.raises(BadDataError, match=message):
        steps_of(config(table(tmp_path, PLAIN, actions), algorithm=algorithm))


WIDE = (BOX, gym.spaces.Box(-2, 2, (1,)))


def test_actions_of_the_environment_are_scaled_by_its_space(tmp_path):
    actions = np.linspace(-2, 2, N, dtype=np.float32)[:, None]
    with h5py.File(tmp_path / "d4rl.hdf5", "w") as file:
        file["observations"], file["actions"], file["rewards"] = np.float32(PLAIN), actions, np.ones(N)
        file["terminals"], file["timeouts"] = np.arange(N) % 6 == 5, np.zeros(N, bool)
    taken = steps_of(config(tmp_path, WIDE)).columns[Columns.ACTIONS]
    np.testing.assert_allclose(taken[:6], actions[:6] / 2, rtol=1e-6)
    as_they_are = config(tmp_path, WIDE).environment(normalize_actions=False)
    np.testing.assert_allclose(steps_of(as_they_are).columns[Columns.ACTIONS][:6], actions[:6], rtol=1e-6)


def test_actions_that_a_module_cannot_put_out_are_clipped(tmp_path, caplog):
    asked = config(table(tmp_path, PLAIN, [[own] for own in np.linspace(-3, 3, N)]), WIDE, algorithm=CQLConfig)
    with pytest.raises(BadDataError, match="or clip the actions"):
        steps_of(asked)
    rows = pq.read_table(tmp_path / "rows.parquet").append_column("action_logp", pa.array([0.0] * N))
    pq.write_table(rows, tmp_path / "rows.parquet")
    data = OfflineData(asked)
    data.is_squashed = True
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        [steps], _ = data.steps((Columns.OBS, Columns.ACTIONS), spaces_without_env(asked))
    assert np.abs(steps.columns[Columns.ACTIONS]).max() == 1 and "clipped" in caplog.text
    assert np.abs(steps_of(asked).columns[Columns.ACTIONS]).max() == 3, "a Gaussian may have drawn them"


# ------------------------------------------------------------------------------------------------------- connectors


def recorded(folder, connectors):
    """A file of this package's, with observations that these connectors have made."""
    is_final = np.arange(N) % 6 == 5
    columns = {
        Columns.OBS: np.float32(PLAIN),
        Columns.ACTIONS: np.zeros(N, np.int32),
        Columns.REWARDS: np.zeros(N, np.float32),
        Columns.TERMINATEDS: np.roll(is_final, -1),
        Columns.TRUNCATEDS: np.zeros(N, bool),
    }
    about = DatasetInfo(BOX, TWO, more={CONNECTORS: connectors})
    steps = Steps(
        columns, is_final, np.repeat([0, 1], 6).astype(np.int32), np.tile(np.arange(6), 2).astype(np.int32), "ab"
    )
    with StepWriter(folder, "run", about=about) as writer:
        writer.add(steps)
    return folder


FILTER, FLAT = (
    {"names": [name], "statistics": own} for name, own in (("MeanStdFilter", ["MeanStdFilter"]), ("Scale", []))
)


def test_data_behind_a_filter_is_refused_where_an_environment_is_acted_in(tmp_path):
    recorded(tmp_path, FILTER)
    with pytest.raises(
        BadDataError, match=r"normalised by the connectors \['MeanStdFilter'\].*normalize_observations=True"
    ):
        steps_of(config(tmp_path))
    filtering = config(tmp_path).env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    with pytest.raises(BadDataError, match="whose statistics are not in the data"):
        steps_of(filtering)
    assert steps_of(config(tmp_path, with_env=False)).num_steps == N - 2


def test_data_behind_other_connectors_is_refused(tmp_path):
    recorded(tmp_path, FLAT)
    with pytest.raises(
        BadDataError, match=r"made by the env-to-module connectors \['Scale'\], but the config has \[\]"
    ):
        steps_of(config(tmp_path))
    flattening = config(tmp_path).env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    with pytest.raises(BadDataError, match=r"but the config has \['FlattenObservations'\]"):
        steps_of(flattening)
    own = tmp_path / "own"
    recorded(own, {"names": ["FlattenObservations"], "statistics": []})
    assert steps_of(flattening.copy(copy_frozen=False).offline_data(input_=[str(own)])).num_steps == N - 2


def test_connectors_are_described_by_their_names_and_statistics():
    asked = config("nowhere").env_runners(
        env_to_module_connector=lambda env, spaces, device: [FlattenObservations(), MeanStdFilter()]
    )
    found = described_connectors(asked.build_env_to_module_connector(spaces={"__env_single__": (BOX, TWO)}))
    assert found == {"names": ["FlattenObservations", "MeanStdFilter"], "statistics": ["MeanStdFilter"]}


# ------------------------------------------------------------------------------------------------------------ sizes


def test_small_data_is_kept_on_the_devices_whatever_its_files_are(tmp_path):
    folders = {name: tmp_path / name for name in ("row groups", "files", "episodes")}
    for folder in folders.values():
        folder.mkdir()
    table(folders["row groups"], PLAIN, row_group_size=2)
    for i in range(4):
        table(folders["files"], PLAIN)
        (folders["files"] / "rows.parquet").rename(folders["files"] / f"{i}.parquet")
        np.savez(folders["episodes"] / f"{i}.npz", obs=np.float32(PLAIN), actions=np.zeros(N, int))
    for folder in folders.values():
        for budget, streams in ((None, False), (10, True)):
            asked = config(folder, max_resident_bytes=budget)
            assert asked.algo_class.training_step_class(asked).reads_on_host is streams


class Reading:
    """Counts what is read of some pieces."""

    def __init__(self, number):
        self.number = 0
        columns = {Columns.OBS: np.zeros((6, 2), np.float32)}
        is_final = np.arange(6) == 5
        self.parts = [
            Steps(
                {**columns, "x": np.full(6, i)}, is_final, np.zeros(6, np.int32), np.arange(6, dtype=np.int32), [str(i)]
            )
            for i in range(number)
        ]

    def __call__(self, piece):
        self.number += 1
        return self.parts[piece]


def test_pieces_that_fit_into_a_window_are_read_once():
    found = {}
    for window, keeps in ((10**6, True), (10**6, False), (1, True)):
        read = Reading(3)
        streamed = StreamedInput(range(3), read, ItemForm(("x",)), window, 0, 0, keeps_pieces=keeps)
        drawn = [own["x"] for _ in range(9) for own in streamed.draw(5, lambda steps: {})]
        streamed.stop()
        found[window, keeps] = np.concatenate(drawn).tolist()
        assert read.number == 3 if (keeps and window > 1) else read.number >= 9
    assert found[10**6, True] == found[10**6, False], "in the same order"


# ------------------------------------------------------------------------------------------------------------- files


def test_rllibs_json_files_are_read_without_ray(tmp_path):
    lines = [
        {"type": "SampleBatch", "eps_id": [i] * 6, "obs": PLAIN[:6], "new_obs": PLAIN[1:7], "actions": [0] * 6}
        | {"rewards": [1.0] * 6, "dones": [False] * 5 + [True], "infos": [{}] * 6}
        for i in range(2)
    ]
    (tmp_path / "out.json").write_text("\n".join(map(json.dumps, lines)))
    for method in ({}, {"input_read_method": "read_json", "input_read_sample_batches": True}):
        asked = config(tmp_path / "out.json", **method)
        assert isinstance(OfflineData(asked).data, Dataset) and steps_of(asked).num_steps == 12


def test_a_folder_that_is_being_recorded_into_says_so(tmp_path, caplog):
    with pytest.raises(
        BadDataError,
        match=r"the folder is empty\. If a run records into it.*algo\.save_to_path\(\.\.\.\) or algo\.stop\(\)",
    ):
        OfflineData(config(tmp_path))
    (tmp_path / ".run-00000.parquet.writing").touch()
    with pytest.raises(BadDataError, match=r"and 1 that a run is writing.*output_max_rows_per_file"):
        OfflineData(config(tmp_path))
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        assert OfflineData(config(table(tmp_path, PLAIN))).num_steps == N
    assert "1 files are not complete" in caplog.text


def test_a_prelearner_gets_all_episodes_of_files_with_the_same_ids(tmp_path):
    for number in range(2):
        table(tmp_path, [[number, float(i)] for i in range(N)])
        (tmp_path / "rows.parquet").rename(tmp_path / f"{number}.parquet")
    assert steps_of(config(tmp_path, prelearner_class=OfflinePreLearner)).num_steps == 2 * N
    prelearner = OfflinePreLearner(config=config(tmp_path), spaces=(BOX, TWO))
    rows = {"eps_id": ["a"] * 2, "obs": np.zeros((2, 2)), "actions": np.zeros(2, int), "rewards": np.ones(2)}
    again = {name: np.concatenate([own, own]) for name, own in rows.items()}
    again["terminateds"] = np.array([False, True] * 2)
    assert prelearner.steps({**again, "new_obs": np.zeros((4, 2))}).num_pieces == 1, "what is there twice is left out"
