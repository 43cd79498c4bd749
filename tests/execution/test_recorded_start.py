"""Replay memories that begin with recorded steps, on both drivers."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.blocks import blocks_of
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.replay.draw_forms import Transitions

LENGTHS, ENDED = (3, 6, 4, 7), (True, False, True, True)
"""Steps of the recorded pieces, and which of them end with a termination; the others are cut."""


def recorded() -> Steps:
    """Pieces whose observations count rows, with rewards that tell which step a row is."""
    sizes = np.asarray(LENGTHS) + 1
    ends = np.cumsum(sizes) - 1
    is_final = np.zeros(sizes.sum(), bool)
    is_final[ends] = True
    number = np.arange(len(is_final), dtype=np.float32)
    terminateds = np.zeros(len(is_final), bool)
    terminateds[ends - 1] = ENDED
    columns = {
        Columns.OBS: np.stack([number / 100] * 4, axis=1),
        Columns.ACTIONS: np.where(is_final, 0, number.astype(np.int64) % 2),
        Columns.REWARDS: np.where(is_final, 0, number),
        Columns.TERMINATEDS: terminateds,
        Columns.TRUNCATEDS: np.zeros(len(is_final), bool),
    }
    episode = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
    t = np.concatenate([np.arange(size, dtype=np.int32) for size in sizes])
    return Steps(columns, is_final, episode, t, [f"e{i}" for i in range(len(sizes))])


def test_blocks_have_every_step_once_and_end_where_pieces_do():
    steps = recorded()
    blocks = list(blocks_of(steps, 2, longest=4))
    assert [block[Columns.REWARDS].shape for block in blocks] == [(3, 2)] * 3  # 20 steps, less one of each column
    rewards = np.concatenate([block[Columns.REWARDS] for block in blocks])
    kept = steps.columns[Columns.REWARDS][~steps.is_final]
    np.testing.assert_array_equal(rewards.T.ravel(), np.concatenate([kept[:9], kept[10:19]]))
    for block in blocks:
        # The observation after a step is that of the next row.
        np.testing.assert_allclose(block[Columns.FINAL_OBS][..., 0], (block[Columns.REWARDS] + 1) / 100, rtol=1e-6)
    truncated = rewards[np.concatenate([block[Columns.TRUNCATEDS] for block in blocks])]
    # The second piece was cut behind its last step, the row of 9; and each column ends somewhere.
    assert sorted(truncated) == sorted({9.0, rewards[-1, 0], rewards[-1, 1]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    info = DatasetInfo(gym.spaces.Box(-np.inf, np.inf, (4,)), gym.spaces.Discrete(2), env_id="CartPole-v1")
    with StepWriter(path, "steps", about=info) as writer:
        writer.add(recorded())
    return path


def config(env, folder, **replay):
    own = {"type": "EpisodeReplayBuffer", "capacity": 64, **replay}
    return (
        DQNConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=1)
        .training(train_batch_size_per_learner=4, replay_buffer_config=own, num_steps_sampled_before_learning_starts=0)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .reporting(min_sample_timesteps_per_iteration=2)
        .offline_data(input_=[str(folder)])
        .debugging(seed=0)
    )


def drawn(algo) -> dict[str, np.ndarray]:
    """Many rows out of a memory."""
    if not algo.driver.is_on_device:
        return algo.local_replay_buffer.sample_batch(256, n_step=1, gamma=0.9)
    ring = algo.driver.step.replays[DEFAULT_MODULE_ID].ring
    numbers = jax.vmap(ring.random_numbers)(jax.random.split(jax.random.key(0), 64))
    kept = jax.tree.map(lambda x: x[0], algo.driver.kept[DEFAULT_MODULE_ID])
    draw = lambda own: ring.sample(kept, own, beta=0.0, gamma=0.9, axis_name=None)[0]  # noqa: E731
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), jax.jit(jax.vmap(draw))(numbers))


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_a_memory_begins_with_them_and_training_goes_on(env, folder, tmp_path):
    algo = config(env, folder).build_algo()
    rows = drawn(algo)
    steps = recorded()
    assert set(rows[Columns.REWARDS]) == set(steps.columns[Columns.REWARDS][~steps.is_final])
    np.testing.assert_allclose(rows[Columns.OBS][:, 0], rows[Columns.REWARDS] / 100, rtol=1e-6)
    goes_on = ~rows[Columns.TERMINATEDS].astype(bool)
    np.testing.assert_allclose(
        rows[Columns.NEXT_OBS][goes_on, 0], (rows[Columns.REWARDS][goes_on] + 1) / 100, rtol=1e-6
    )
    assert set(rows[Columns.REWARDS][~goes_on]) == {2.0, 14.0, 22.0}

    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 2 and algo.driver.num_updates == 1
    path = algo.save_to_path(tmp_path / "saved")
    other = config(env, folder).build_algo()
    other.restore_from_path(path)
    jax.tree.map(np.testing.assert_array_equal, other.get_weights(), algo.get_weights())
    np.testing.assert_array_equal(np.sort(drawn(other)[Columns.REWARDS]), np.sort(drawn(algo)[Columns.REWARDS]))
    algo.stop()
    other.stop()


class OneDevice:
    """What a memory asks of a place, on one device."""

    axis_name = None

    def __init__(self, draws):
        self._draws = draws

    def draw(self, state, stream):
        return state, self._draws[stream].make(jax.random.key(len(stream)))

    def values(self, state):
        return {"default_policy": {"gamma": 0.9}}


@pytest.mark.parametrize("kind", ["EpisodeReplayBuffer", "PrioritizedEpisodeReplayBuffer"])
@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_every_train_batch_has_a_share_of_them(env, kind, folder, tmp_path):
    own = config(env, folder, type=kind).training(recorded_share=0.25, train_batch_size_per_learner=8)
    algo = own.build_algo()
    algo.train()
    step: Any = algo.driver.step
    replay, kept = step.replays[DEFAULT_MODULE_ID], step.kept.value[DEFAULT_MODULE_ID]
    if algo.driver.is_on_device:
        kept = jax.tree.map(lambda x: x[0], kept)
    rows = replay.draw(kept, TrainState(), OneDevice(replay.draws))[-1][DEFAULT_MODULE_ID].columns
    np.testing.assert_array_equal(rows[Columns.REWARDS][:6], 1.0)  # CartPole's
    np.testing.assert_allclose(rows[Columns.OBS][6:, 0], rows[Columns.REWARDS][6:] / 100, rtol=1e-6)
    assert set(np.asarray(rows[Columns.REWARDS][6:])) <= set(recorded().columns[Columns.REWARDS])
    assert all(np.shape(leaf)[0] == 8 for leaf in jax.tree.leaves(rows))
    seen = [replay.look_at(step.kept.value[DEFAULT_MODULE_ID], Transitions(), 5, seed=0) for _ in range(2)]
    jax.tree.map(np.testing.assert_array_equal, *seen)
    assert seen[0][Columns.REWARDS].tolist() == [1.0] * 5
    algo.stop()


def test_a_run_with_a_share_of_them_goes_on_exactly(folder, tmp_path):
    own = config("gymnax/CartPole-v1", folder, type="PrioritizedEpisodeReplayBuffer")
    own.training(recorded_share=0.25, train_batch_size_per_learner=8)
    algo, other = (own.build_algo() for _ in range(2))
    algo.train()
    other.restore_from_path(algo.save_to_path(tmp_path / "saved"))
    for own in (algo, other):
        own.train()
    jax.tree.map(np.testing.assert_array_equal, other.get_weights(), algo.get_weights())
    algo.stop()
    other.stop()


def test_after_a_reset_a_share_of_them_is_drawn_as_from_the_beginning(folder):
    algo, fresh = (config("CartPole-v1", folder).training(recorded_share=0.5).build_algo() for _ in range(2))
    algo.train()
    assert algo.reset(config("CartPole-v1", folder).training(recorded_share=0.5))
    for own in (algo, fresh):
        own.train()
        assert own.local_replay_buffer.get_num_timesteps() == 2
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), fresh.get_weights())
    algo.stop()
    fresh.stop()


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"recorded_share": 0.01}, "gives 0 recorded rows of 4"), ({"recorded_share": 1.0}, "gives 4 recorded rows of 4")],
)
def test_no_part_of_a_batch_is_empty(settings, message, folder):
    with pytest.raises(ValueError, match=message):
        config("CartPole-v1", folder).training(**settings).build_algo()


def test_a_share_needs_recorded_steps(folder):
    with pytest.raises(ValueError, match=r"recorded_share=0.5.*needs recorded steps"):
        config("CartPole-v1", folder).training(recorded_share=0.5).offline_data(input_="sampler").validate()


def test_what_it_cannot_begin_with(folder):
    with pytest.raises(ValueError, match=r"20 steps, but .* at least one step for each of its 24 environments"):
        config("gymnax/CartPole-v1", folder).env_runners(num_envs_per_env_runner=24).build_algo()
    recurrent = config("gymnax/CartPole-v1", folder).rl_module(model_config={"use_lstm": True, "max_seq_len": 2})
    with pytest.raises(ValueError, match=r"recorded steps have no recurrent states.*'zero_init_states': True"):
        recurrent.build_algo()
