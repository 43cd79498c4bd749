"""Discrete parts that do not start at 0, and bits, among the actions: the environment gets members of its space."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack import AutoResetJaxEnv
from jaxrl_stack.algorithms.ppo import PPOConfig

ACTIONS = gym.spaces.Dict(
    {
        "shifted": gym.spaces.Discrete(3, start=-2),
        "several": gym.spaces.MultiDiscrete([3, 2], start=[5, -1]),
        "bits": gym.spaces.MultiBinary(3),
    }
)
OBSERVATIONS = gym.spaces.Box(0, 5, (2,), np.int32)


class OnTheDevice(AutoResetJaxEnv):
    """Pays 1 for a member of its action space; episodes of 4 steps."""

    def __init__(self, config):
        self.observation_space, self.action_space = OBSERVATIONS, ACTIONS

    def reset_env(self, key, params):
        return jnp.zeros(2, jnp.int32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        low, high = jnp.array([5, -1]), jnp.array([7, 0])
        valid = (action["shifted"] >= -2) & (action["shifted"] <= 0)
        valid &= jnp.all((action["several"] >= low) & (action["several"] <= high))
        valid &= jnp.all((action["bits"] == 0) | (action["bits"] == 1)) & (action["bits"].shape == (3,))
        return jnp.full(2, state + 1), state + 1, valid, False, state >= 3, {}


class OnTheHost(gym.Env):
    """The same, judged by gymnasium."""

    def __init__(self, config=None):
        self.observation_space, self.action_space = OBSERVATIONS, ACTIONS

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros(2, np.int32), {}

    def step(self, action):
        self.time += 1
        return np.full(2, self.time, np.int32), float(ACTIONS.contains(action)), False, self.time == 4, {}


def ppo(env):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=8)
        .training(train_batch_size_per_learner=16, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .build_algo()
    )


def test_actions_are_members_of_their_space_on_the_device():
    algo = ppo(OnTheDevice)
    assert algo.train()["env_runners"]["episode_return_mean"] == 4.0
    algo.stop()


def test_actions_are_members_of_their_space_on_the_host_drawn_by_the_module_and_at_random():
    algo = ppo(OnTheHost)
    assert algo.train()["env_runners"]["episode_return_mean"] == 4.0
    episodes = algo.env_runner.sample(num_episodes=4, random_actions=True)
    algo.stop()
    assert [episode.get_return() for episode in episodes] == [4.0] * 4
    drawn = np.concatenate([episode.get_actions()["several"] for episode in episodes])
    assert drawn.min() == 0 and drawn[:, 0].max() == 2 and drawn[:, 1].max() == 1  # a module counts from 0
