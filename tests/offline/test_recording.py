"""What runs record: every sampled step once, in files of each runner's own, on both drivers."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.offline.offline_env_runner import OfflineSingleAgentEnvRunner

LENGTH = 7


class Counter(CounterEnv):
    defaults = CounterEnv.defaults | {"terminate_at": LENGTH}


class HostCounter(GymnasiumFromJax):
    """Shows its observations in its infos, too."""

    def __init__(self, config=None):
        super().__init__(Counter)

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return obs, {**info, "shown": float(obs[0])}

    def step(self, action):
        obs, *rest, info = super().step(action)
        return obs, *rest, {**info, "shown": float(obs[0])}


ENVS = {"host": HostCounter, "device": Counter}


def small(env=HostCounter, **settings):
    """Blocks of 5 steps of 3 environments, which end in the middle of episodes."""
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=3, rollout_fragment_length=5)
        .training(train_batch_size_per_learner=15, minibatch_size=15, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .offline_data(**settings)
    )


def steps_in(folder):
    return open_dataset(folder, options=ReadOptions()).read_all()


def assert_pieces_count(steps):
    """Each piece of an episode holds what the counter showed and paid, in order, and what it showed last."""
    starts = steps.piece_starts()
    for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        obs, t = steps.columns["obs"][start:stop, 0], steps.t[start:stop]
        np.testing.assert_array_equal(t, np.arange(t[0], t[0] + stop - start))
        np.testing.assert_array_equal(obs, t)
        np.testing.assert_array_equal(steps.columns["rewards"][start : stop - 1], t[1:])
        ended = t[-1] == LENGTH
        assert steps.columns["terminateds"][stop - 2] == ended
        assert not steps.columns["terminateds"][start : stop - 2].any()
    assert not steps.columns["truncateds"].any()


@pytest.fixture(scope="module", params=ENVS)
def recorded(request, tmp_path_factory):
    """``(folder of training, of evaluation, rows when a checkpoint was saved, results)`` of a run of both."""
    folder = tmp_path_factory.mktemp("recorded")
    config = small(ENVS[request.param], output=folder / "training")
    own = {"output": str(folder / "evaluation"), "explore": False}
    config.evaluation(evaluation_interval=2, evaluation_duration=4, evaluation_config=own)
    algo = config.build_algo()
    results = [algo.train() for _ in range(2)]
    algo.save_to_path(folder / "checkpoint")
    at_checkpoint = steps_in(folder / "training")
    results += [algo.train() for _ in range(2)]
    algo.record(folder / "video.gif", 1)
    algo.stop()
    return folder, at_checkpoint, results


def test_every_sampled_step_is_recorded_once(recorded):
    folder, _, results = recorded
    steps = steps_in(folder / "training")
    assert steps.num_steps == results[-1]["env_runners"]["num_env_steps_sampled_lifetime"] == 60
    assert_pieces_count(steps)
    # 20 steps of each environment are two episodes and six steps.
    assert len(steps.episode_ids) == len(set(steps.episode_ids)) == 9
    assert {"action_logp", "action_dist_inputs"} <= steps.columns.keys()
    assert set(np.unique(steps.columns["actions"])) <= {0, 1}


def test_evaluations_record_their_episodes_alone(recorded):
    folder, _, results = recorded
    steps = steps_in(folder / "evaluation")
    evaluated = [result["evaluation"]["env_runners"] for result in results[1::2]]
    assert steps.num_pieces == sum(own["num_episodes"] for own in evaluated) == 8
    assert_pieces_count(steps)
    assert steps.num_steps == 8 * LENGTH


def test_checkpoints_complete_files_with_the_episodes_that_are_over(recorded):
    folder, at_checkpoint, _ = recorded
    assert at_checkpoint.num_pieces == 3 and at_checkpoint.num_steps == 3 * LENGTH
    files = sorted(path.name for path in (folder / "training").iterdir())
    assert len(files) == 2 and all(name.startswith("run-000000-") for name in files)


def test_files_say_what_they_are_of(recorded):
    info = open_dataset(recorded[0] / "training", options=ReadOptions()).info
    assert info.observation_space == CounterEnv().observation_space and info.action_space == gym.spaces.Discrete(2)
    assert info.module_id == "default_policy" and info.seed == 0 and info.env_id in ("HostCounter", "Counter")
    assert info.more == {"connectors": {"names": [], "statistics": []}}


@pytest.fixture
def runner_of(tmp_path):
    """A runner of host environments with some settings; stopped at the end."""
    made = []

    def make(**settings):
        config = small(**{"output": tmp_path, **settings})
        config.validate()
        made.append(OfflineSingleAgentEnvRunner(config=config))
        return made[-1]

    yield make
    for runner in made:
        runner.stop()


def test_what_sample_returns_is_recorded(runner_of, tmp_path):
    runner = runner_of()
    chunks = runner.sample(num_timesteps=12) + runner.sample(num_timesteps=12)
    whole = runner.sample(num_episodes=3)
    assert runner.get_metrics()["recording_buffer_size"].peek() > 0
    runner.stop()
    steps = steps_in(tmp_path)
    assert steps.num_steps == sum(map(len, chunks + whole)) and steps.num_pieces == 9
    assert_pieces_count(steps)
    assert set(steps.episode_ids) == {episode.id_ for episode in chunks + whole}


def test_running_episodes_can_be_left_out_at_the_end(runner_of, tmp_path):
    runner = runner_of(output_write_remaining_data=False)
    runner.sample_block()
    runner.sample_block()
    runner.stop()
    assert steps_in(tmp_path).num_steps == 3 * LENGTH


def test_infos_are_recorded_where_they_are_asked_for(runner_of, tmp_path):
    runner = runner_of(output_write_infos=True)
    runner.sample_block()
    runner.sample_block()
    runner.stop()
    (file,) = tmp_path.iterdir()
    table = pq.read_table(file)
    shown = [json.loads(text)["shown"] for text in table["infos"].to_pylist()]
    assert shown == [obs[0] for obs in table["obs"].to_pylist()]


def test_files_have_as_many_rows_and_are_as_compressed_as_asked_for(runner_of, tmp_path):
    runner = runner_of(output_max_rows_per_file=17, output_compress_columns=["obs"])
    runner.sample_block(num_steps=3 * LENGTH)
    runner.stop()
    files = sorted(tmp_path.iterdir())
    # Two episodes, 7 steps and their final row each, fit into a file.
    assert [pq.read_metadata(file).num_rows for file in files] == [16, 16, 16, 16, 8]
    columns = pq.read_metadata(files[0]).row_group(0)
    compression = {columns.column(i).path_in_schema: columns.column(i).compression for i in range(columns.num_columns)}
    assert compression["obs.list.element"] == "LZ4" and compression["rewards"] == "UNCOMPRESSED"


def test_files_go_where_and_how_a_file_system_and_a_writer_say(runner_of, tmp_path):
    settings = {
        "output": "data/here",
        "output_filesystem": fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()),
        "output_write_method_kwargs": {"compression": "gzip"},
    }
    runner = runner_of(**settings)
    runner.sample_block(num_steps=LENGTH)
    runner.stop()
    (file,) = (tmp_path / "data" / "here").iterdir()
    assert pq.read_metadata(file).row_group(0).column(0).compression == "GZIP"


@pytest.mark.parametrize("settings", [{"output_format": "rllib"}, {"output_write_episodes": False}], ids=str)
def test_other_forms_hold_the_same_steps(runner_of, tmp_path, settings):
    runner = runner_of(output_max_rows_per_file=30, **settings)
    runner.sample_block(num_steps=2 * LENGTH + 3)
    runner.stop()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    names = pq.read_schema(files[0]).names
    assert names == ["item"] if "output_format" in settings else "new_obs" in names
    steps = steps_in(tmp_path)
    assert steps.num_steps == 3 * (2 * LENGTH + 3) and steps.num_pieces == 9
    assert_pieces_count(steps)


@pytest.mark.parametrize("settings", [{}, {"output_format": "rllib"}, {"output_write_episodes": False}], ids=str)
def test_files_say_which_connectors_made_their_observations(tmp_path, settings):
    config = small(output=tmp_path, **settings).env_runners(
        env_to_module_connector=lambda env, spaces, device: MeanStdFilter()
    )
    runner = OfflineSingleAgentEnvRunner(config=config)
    runner.sample_block(num_steps=LENGTH)
    runner.stop()
    [(_, reader)] = open_dataset(tmp_path).readers
    assert reader.info.more["connectors"] == {"names": ["MeanStdFilter"], "statistics": ["MeanStdFilter"]}


def test_errors_of_writing_are_raised(runner_of, tmp_path):
    (tmp_path / "file").write_text("no folder")
    runner = runner_of(output=tmp_path / "file")
    with pytest.raises(OSError, match="file"):
        runner.sample_block(num_steps=LENGTH)
    (tmp_path / "file").unlink()


@pytest.mark.parametrize(
    ("env", "settings", "reason"),
    [
        (HostCounter, {"env_runner_cls": SingleAgentEnvRunner}, "Derive it from OfflineSingleAgentEnvRunner"),
        (Counter, {"num_learners": 2}, "num_learners=2.*several processes"),
    ],
)
def test_what_cannot_record_is_refused(env, settings, reason):
    with pytest.raises(ValueError, match=reason):
        small(env, output="data").update_from_dict(settings).validate()


def test_a_runner_that_records_needs_a_folder():
    with pytest.raises(ValueError, match="offline_data"):
        OfflineSingleAgentEnvRunner(config=small())
