"""Rewards and observations that are NaN or infinite: the first iteration with one says where it is."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from envs.faulty import NanEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.jax_env import AutoResetJaxEnv

NUM_ENVS, NUM_STEPS = 2, 8


class Counts(AutoResetJaxEnv):
    """Counts steps; what is called `where` becomes `value` at count `at`."""

    action_space = gym.spaces.Discrete(2)
    observation_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, config=None):
        self._where, self._at, self._value, self._length = "", -1, np.nan, 1000
        for name, setting in dict(config or {}).items():
            setattr(self, f"_{name}", setting)

    def reset_env(self, key, params):
        return jnp.zeros(1), jnp.int32(0)

    def step_env(self, key, state, action, params):
        count = state + 1
        value = jnp.where(count == self._at, self._value, 0.5)
        reward = value if self._where == "reward" else 1.0
        obs = value[None] if self._where == "obs" else jnp.full(1, 0.5)
        return obs, count, reward, False, count % self._length == 0, {}


def ppo(where, at, value=np.nan, length=1000, **debugging):
    return (
        PPOConfig()
        .environment(Counts, env_config={"where": where, "at": at, "value": value, "length": length})
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, num_epochs=1, minibatch_size=NUM_ENVS * NUM_STEPS)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .debugging(**debugging)
    )


@pytest.mark.parametrize(
    ("where", "at", "value", "length", "said"),
    [
        ("obs", 21, -np.inf, 1000, "an observation that is not finite, in step 4 of the 8 that iteration 3 "),
        # Reset before anything acts on it.
        ("obs", 5, np.nan, 5, "a final observation that is not finite, in step 4 of the 8 that iteration 1 "),
    ],
)
def test_the_first_iteration_names_column_environment_and_step(where, at, value, length, said):
    algo = ppo(where, at, value, length).build_algo()
    for _ in range((at - 1) // NUM_STEPS):
        algo.train()
    with pytest.raises(ValueError, match=rf"Environment 0 of 2 \(Counts\) returned {said}.*check_nans=False"):
        algo.train()
    algo.stop()


def test_a_run_goes_on_if_asked_to_and_says_it_once(caplog):
    algo = ppo("reward", 3, check_nans=False).build_algo()
    for _ in range(2):
        algo.train()

    def said():
        return [record.message for record in caplog.records if "is not finite" in record.message]

    assert len(said()) == 1 and "a reward (nan)" in said()[0] and "in step 2 of the 8" in said()[0]
    # Another run with the same programs.
    assert algo.reset(algo.config)
    algo.train()
    assert len(said()) == 2 and said()[1] == said()[0]
    algo.stop()


def test_numbers_that_are_finite_say_nothing(caplog):
    algo = ppo("reward", 3, value=2.0).build_algo()
    algo.train()
    assert not [record for record in caplog.records if "finite" in record.message]
    algo.stop()


def test_a_replay_memory_knows_which_step_it_was():
    algo = (
        DQNConfig()
        .environment(Counts, env_config={"where": "reward", "at": 12})
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=1)
        .training(
            train_batch_size_per_learner=4,
            num_steps_sampled_before_learning_starts=1000,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 64},
        )
        .reporting(min_sample_timesteps_per_iteration=NUM_ENVS * NUM_STEPS)
        .rl_module(model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .build_algo()
    )
    algo.train()
    said = r"returned a reward that is not finite, in step 3 of the 8 that iteration 2"
    with pytest.raises(ValueError, match=rf"Environment 0 of 2 \(Counts\) {said}"):
        algo.train()
    algo.stop()


def test_host_environments_go_on_if_asked_to(caplog):
    config = (
        PPOConfig()
        .environment(NanEnv, env_config={"after": 3, "where": "reward", "length": 100})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .training(train_batch_size_per_learner=8, num_epochs=1, minibatch_size=8)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
    )
    algo = config.copy().debugging(check_nans=False).build_algo()
    for _ in range(2):
        algo.train()
    said = [record.message for record in caplog.records if "is not finite" in record.message]
    assert len(said) == 1 and "a reward (nan)" in said[0]
    algo.stop()


class Choices(AutoResetJaxEnv):
    """Observes the steps of its episode as a choice of three, in one of several spaces and dtypes."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.observation_space, self._length, self._dtype = config["space"], config["length"], config["dtype"]

    def obs(self, time):
        return jnp.full(self.observation_space.shape, time, self._dtype)

    def reset_env(self, key, params):
        return self.obs(jnp.int32(0)), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return self.obs(state + 1), state + 1, 1.0, state + 1 == self._length, False, {}


THREE = gym.spaces.Discrete(3)


def choices(space, length=3, dtype="int32"):
    config = ppo("", -1).environment(Choices, env_config={"space": space, "length": length, "dtype": dtype})
    return config.env_runners(num_envs_per_env_runner=NUM_ENVS)


@pytest.mark.parametrize("space", [THREE, gym.spaces.MultiDiscrete([9, 3])], ids=["one", "several"])
def test_choices_that_do_not_exist_end_the_iteration(space):
    algo = choices(space, length=11).build_algo()
    with pytest.raises(
        ValueError, match=r"Choices\) returned .* a choice that its observation space .*\b3\b.* does not"
    ):
        algo.train()
    algo.stop()


@pytest.mark.parametrize(
    ("space", "dtype", "problem"),
    [
        (THREE, "float32", r"dtype float32, but its space Discrete\(3\) has dtype int64: fractions would be lost"),
        (gym.spaces.Box(0, 255, (2,), np.uint8), "int32", r"dtype int32, .* has dtype uint8: numbers .* would wrap"),
    ],
)
def test_observations_that_another_dtype_would_change_are_refused(space, dtype, problem):
    with pytest.raises(ValueError, match=f"Choices's observation has {problem}. Return obs.astype"):
        choices(space, dtype=dtype).build_algo()
