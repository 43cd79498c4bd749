"""Settings of `offline_data()` that say how and from where data is read, and where it is written to."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.env.step_output import make_step_output
from jaxrl_stack.offline.offline_data import OfflineData

TESTS = Path(__file__).parents[1]
OBS, ACTIONS = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), gym.spaces.Discrete(2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Eight steps of two episodes, in rows."""
    path = tmp_path_factory.mktemp("rows")
    number = np.arange(8)
    rows = {
        "eps_id": number // 4,
        "obs": [[float(i), 0.5] for i in number],
        "new_obs": [[float(i + 1), 0.5] for i in number],
        "actions": number % 2,
        "rewards": np.ones(8),
        "terminateds": number % 4 == 3,
        "truncateds": np.zeros(8, bool),
    }
    pq.write_table(pa.table(rows), path / "rows.parquet")
    return path


def config(input_, **data):
    return (
        BCConfig()
        .environment(observation_space=OBS, action_space=ACTIONS)
        .offline_data(input_=input_, **data)
        .training(train_batch_size_per_learner=4)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )


def test_errors_about_several_inputs_name_all_of_them(folder):
    file = str(folder / "rows.parquet")
    for input_, named in (
        ([file, str(folder)], f"{file}, {folder} has"),
        ({str(folder): 1.0, file: 1.0}, f"{folder} has"),
    ):
        with pytest.raises(ValueError, match=rf"^{re.escape(named)} the columns.*needs \['vf_preds'\]"):
            OfflineData(config(input_)).steps(("obs", "vf_preds"), (OBS, ACTIONS))


def test_files_are_read_from_the_file_system_that_is_set(folder):
    own = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    assert OfflineData(config(["rows.parquet"], input_filesystem=own)).num_steps in (8, None)
    with pytest.raises(BadDataError, match="no files"):
        OfflineData(config(["rows.parquet"]))


def test_arguments_go_to_the_store_that_is_named():
    arguments = {"no_such_argument": 1}
    with pytest.raises(TypeError, match="no_such_argument"):
        OfflineData(config("rows", input_filesystem="s3", input_filesystem_kwargs=arguments))
    writing = config("rows", output="rows", output_filesystem="s3", output_filesystem_kwargs=arguments)
    output = make_step_output(writing, 0, {"default_policy": EnvToModulePipeline(OBS, ACTIONS)})
    with pytest.raises(TypeError, match="no_such_argument"):
        output.add_block(block())


def block():
    """A step of one environment, as a rollout records it."""
    return {
        "obs": np.zeros((1, 1, 2), np.float32),
        "final_obs": np.zeros((1, 1, 2), np.float32),
        "actions": np.zeros((1, 1), np.int32),
        "rewards": np.zeros((1, 1), np.float32),
        "terminateds": np.ones((1, 1), bool),
        "truncateds": np.zeros((1, 1), bool),
    }


def test_rewards_are_scaled_if_asked_for(folder):
    plain, scaled = (OfflineData(config(str(folder), normalize_rewards=asked)) for asked in (False, True))
    for data in (plain, scaled):
        data.normalize((OBS, ACTIONS))
    (own,), _ = plain.steps(("rewards", "obs"), (OBS, ACTIONS))
    (divided,), _ = scaled.steps(("rewards", "obs"), (OBS, ACTIONS))
    returns = np.array([sum(0.99**k for k in range(t + 1)) for t in range(4)] * 2)
    np.testing.assert_allclose(divided.columns["rewards"], own.columns["rewards"] / returns.std(), rtol=1e-4)


def test_packed_episodes_are_asked_for(folder):
    with pytest.raises(BadDataError, match="episodes"):
        OfflineData(config(str(folder), input_read_episodes=True)).steps(("obs",), (OBS, ACTIONS))


def test_arguments_of_ray_data_have_no_effect_on_files_and_it_is_said(folder, caplog):
    OfflineData(config(str(folder), map_batches_kwargs={"concurrency": 2}))
    assert "map_batches_kwargs={'concurrency': 2}) has no effect" in caplog.text


def test_columns_that_are_not_said_to_be_compressed_are_not_unpacked(tmp_path):
    rows = {"eps_id": [0], "obs": ["AAAA"], "new_obs": ["AAAA"], "actions": [0], "rewards": [1.0]}
    pq.write_table(pa.table({**rows, "terminateds": [True], "truncateds": [False]}), tmp_path / "rows.parquet")
    data = OfflineData(config(str(tmp_path), input_compress_columns=[]))
    with pytest.raises(BadDataError, match="add '(new_)?obs' to input_compress_columns"):
        data.steps(("obs",), (OBS, ACTIONS))


def test_recorded_states_are_asked_of_the_data(folder):
    recurrent = config(str(folder), prelearner_use_recorded_module_states=True)
    recurrent.rl_module(model_config={"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 2})
    with pytest.raises(ValueError, match="state_in"):
        recurrent.build_algo()


def test_there_is_one_way_to_write(folder):
    with pytest.raises(ValueError, match="output_write_method"):
        config(str(folder), output_write_method="write_json").validate()


@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")  # Ray reads its own old settings
def test_other_readers_are_those_of_ray_data(folder, ray_session):
    del ray_session
    asked = []

    def read(paths, **kwargs):
        import ray.data

        asked.append((paths, kwargs))
        return ray.data.from_items(pq.read_table(folder / "rows.parquet").to_pylist())

    data = OfflineData(
        config(
            [str(folder)],
            input_read_method=read,
            input_read_method_kwargs={"anything": 3},
            iter_batches_kwargs={"batch_size": 4},
        )
    )
    (steps,), weights = data.steps(("obs", "actions"), (OBS, ACTIONS))
    assert asked == [([str(folder)], {"anything": 3})] and weights == [1.0]
    assert steps.num_steps == 8 and sorted(steps.columns["obs"][~steps.is_final][:, 0]) == list(range(8))


def test_every_setting_of_recorded_data_is_tried():
    settings = AlgorithmConfig._declarations.by_name.values()
    section_of = AlgorithmConfig._declarations.section_of
    code = "\n".join(
        path.read_text() for folder in ("offline", "datasets", "execution") for path in (TESTS / folder).glob("*.py")
    )
    names = [setting.name for setting in settings if section_of[setting.name] == "offline_data"]
    assert len(names) == 36
    assert [name for name in names if not re.search(rf"\b{name}\b", code)] == []
