"""DQN with an LSTM, sequences from replay and burn-in, on both drivers."""

from __future__ import annotations

import numpy as np
import pytest

from envs.gymnasium_versions import GymnasiumRepeatFirst
from envs.memory import RepeatFirst
from jaxrl_stack.algorithms.dqn import DQNConfig

LENGTH = 3


def config_of(env, **training):
    return (
        DQNConfig()
        .environment(env, env_config={"length": LENGTH})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=8)
        .training(
            **{
                "burn_in_len": 1,
                "train_batch_size_per_learner": 64,
                "num_steps_sampled_before_learning_starts": 64,
                "target_network_update_freq": 100,
                "epsilon": [(0, 1.0), (2000, 0.05)],
                "lr": 0.01,
                **training,
            }
        )
        .rl_module(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4})
        .reporting(min_sample_timesteps_per_iteration=8000, min_time_s_per_iteration=0)
        .debugging(seed=0)
    )


def test_the_first_observation_is_remembered_on_the_device():
    algo = config_of(RepeatFirst).build_algo()
    returns = [algo.train()["env_runners"]["episode_return_mean"] for _ in range(2)]
    # Nothing without memory has more than 0.5.
    assert returns[-1] > 0.85
    algo.stop()


@pytest.mark.parametrize("zero_init_states", [False, True])
def test_sequences_of_the_host_start_from_stored_or_from_initial_states(zero_init_states):
    config = config_of(
        GymnasiumRepeatFirst, replay_buffer_config={"zero_init_states": zero_init_states}, n_step=2
    ).reporting(min_sample_timesteps_per_iteration=160)
    algo = config.build_algo()
    learned = algo.train()["learners"]["default_policy"]
    assert np.isfinite(learned["qf_loss"]) and learned["td_error_mean"] > 0
    buffer = algo.local_replay_buffer
    if zero_init_states:
        with pytest.raises(ValueError, match="no extra column 'state_in'"):
            buffer.sample_sequences(4, batch_length_T=2, state_column="state_in")
    else:
        batch = buffer.sample_sequences(200, batch_length_T=LENGTH, state_column="state_in")
        is_first = batch["obs"][:, 0, -1] == 0
        moved = np.abs(batch["state_in"]["h"]).sum((1, 2)) > 0
        np.testing.assert_array_equal(moved, ~is_first)
    algo.stop()


def test_sequences_must_be_longer_than_their_burn_in():
    with pytest.raises(ValueError, match=r"burn_in_len=4.*max_seq_len': 4.*Lower burn_in_len"):
        config_of(RepeatFirst, burn_in_len=4).build_algo()
