"""Discrete parts that do not start at 0, and bits, among the actions: the environment gets members of its space."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack import AutoResetJaxEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.vector.rows import batch_converter
from jaxrl_stack.utils.spaces.boxes import member_maker, scaled_from_bounds, scaled_to_bounds
from jaxrl_stack.utils.spaces.space_utils import normalize_action, unsquash_action

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


BOXES = gym.spaces.Dict(
    {
        "double": gym.spaces.Box(np.array([0.1, -0.7]), np.array([0.3, 0.1]), dtype=np.float64),
        "equal": gym.spaces.Box(0.1, 0.1, (1,), np.float64),
        "half": gym.spaces.Tuple([gym.spaces.Box(0.3, np.inf, (2,), np.float64)]),
        "mixed": gym.spaces.Box(np.array([-1, 0], np.float32), np.array([4, np.inf], np.float32)),
        "small": gym.spaces.Box(-0.1, 0.3, (), np.float16),
    }
)


class BoxesOnTheHost(OnTheHost):
    """Pays 1 for a member of an action space of boxes."""

    def __init__(self, config=None):
        self.observation_space, self.action_space = OBSERVATIONS, BOXES

    def step(self, action):
        self.time += 1
        return np.full(2, self.time, np.int32), float(BOXES.contains(action)), False, self.time == 4, {}


class BoxesOnTheDevice(AutoResetJaxEnv):
    """Pays 1 for a member of a box that is open on some sides, of which one dimension is scaled."""

    def __init__(self, config):
        self.observation_space, self.action_space = OBSERVATIONS, BOXES["mixed"]

    def reset_env(self, key, params):
        return jnp.zeros(2, jnp.int32), jnp.int32(0)

    def step_env(self, key, state, action, params):
        valid = (action[0] >= -1) & (action[0] <= 4) & (action[1] >= 0)
        return jnp.full(2, state + 1), state + 1, valid, False, state >= 3, {}


def test_actions_of_boxes_are_members_on_the_host_and_on_the_device():
    algo = ppo(BoxesOnTheHost)
    assert algo.train()["env_runners"]["episode_return_mean"] == 4.0
    episodes = algo.env_runner.sample(num_episodes=2, random_actions=True)
    assert [episode.get_return() for episode in episodes] == [4.0] * 2
    policy = algo.get_policy()
    for explore in (True, False):
        actions = algo.compute_single_action(np.zeros(2, np.int32), explore=explore)
        assert BOXES.contains(actions), actions
        actions, _, _ = policy.compute_single_action(np.zeros(2, np.int32), explore=explore)
        assert BOXES.contains(actions), actions
    algo.stop()
    algo = ppo(BoxesOnTheDevice)
    assert algo.train()["env_runners"]["episode_return_mean"] == 4.0
    algo.stop()


@pytest.mark.parametrize("space", BOXES.spaces.values())
def test_a_number_that_stands_for_a_bound_becomes_the_bound(space):
    if isinstance(space, gym.spaces.Tuple):
        (space,) = space
    maker = member_maker(space)
    for bound in (space.low, space.high):
        rounded = np.clip(bound, -9, 9).astype(np.float32)
        member = maker(rounded)
        assert space.contains(member)
        assert member.dtype == space.dtype
    np.testing.assert_array_equal(member[np.isfinite(space.high)], space.high[np.isfinite(space.high)])


def test_vectors_of_boxes_and_integers_beyond_their_dtype():
    space = gym.spaces.Dict({"a": gym.spaces.Box(0.1, 0.7, (2, 1), np.float64), "b": gym.spaces.Discrete(3)})
    batch = batch_converter(space)({"a": np.float32([[0.1], [0.7]]), "b": np.int32(2)})
    np.testing.assert_array_equal(batch["a"], [[0.1], [0.7]])
    np.testing.assert_array_equal(member_maker(gym.spaces.Box(0, 255, (2,), np.uint8))(np.int32([300, -1])), [255, 0])


def test_helpers_scale_the_dimensions_that_connectors_scale():
    box = BOXES["mixed"]
    action = np.float32([0.5, 3.0])
    np.testing.assert_allclose(unsquash_action(action, box), [2.75, 3.0])
    np.testing.assert_allclose(normalize_action(unsquash_action(action, box), box), action)
    np.testing.assert_allclose(scaled_from_bounds(box, scaled_to_bounds(box, jnp.asarray(action)[None]))[0], action)


def test_greedy_actions_of_nested_spaces_need_no_key():
    runner = SingleAgentEnvRunner(config=PPOConfig().environment(OnTheHost).env_runners(num_env_runners=0))
    assert runner.sample(num_episodes=1, explore=False)[0].get_return() == 4.0
    runner.stop()
