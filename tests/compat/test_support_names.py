"""Environments, spaces and small functions that RLlib's example files import."""

from __future__ import annotations

import random
import sys
import types

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.utils.env_checker import check_env

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.wrappers.dm_control_wrapper import ActionClip, DMCEnv
from jaxrl_stack.env.wrappers.dm_env_wrapper import DMEnv
from jaxrl_stack.examples.envs.classes.random_env import RandomEnv
from jaxrl_stack.models.utils import get_activation_fn, get_initializer_fn
from jaxrl_stack.utils.debug import deterministic
from jaxrl_stack.utils.spaces.repeated import Repeated

# ------------------------------------------------------------------------------------------------------- environments


class Spec(types.SimpleNamespace):
    """An array spec as dm_env has it."""


class TimeStep(types.SimpleNamespace):
    def last(self):
        return self.ends


class Suite:
    """An environment of dm_env: a position that the action moves; three steps, or a position above 9, end it."""

    def __init__(self, end_discount=1.0):
        self.task = types.SimpleNamespace(random=np.random.RandomState(0))
        self.physics = self
        self.end_discount = end_discount

    def action_spec(self):
        return Spec(shape=(2,), dtype=np.float64, minimum=np.array([0.0, -4.0]), maximum=4.0)

    def observation_spec(self):
        return {"position": Spec(shape=(2,), dtype=np.float64), "height": Spec(shape=(), dtype=np.float64)}

    def get_state(self):
        return self.position

    def render(self, height, width, camera_id):
        return np.full((height, width, 3), 51 * camera_id, np.uint8)

    def _time_step(self, reward):
        ends = self.t >= 3
        discount = self.end_discount if ends else 1.0
        seen = {"position": self.position.copy(), "height": np.float64(self.t)}
        return TimeStep(observation=seen, reward=reward, discount=discount, ends=ends)

    def reset(self):
        self.t, self.position = 0, self.task.random.uniform(size=2)
        return self._time_step(None)

    def step(self, action):
        self.t += 1
        self.position = self.position + action
        return self._time_step(float(self.t))


@pytest.fixture
def suite(monkeypatch):
    """A module `dm_control` whose suite keeps what it was asked for."""
    asked, fake = [], types.ModuleType("dm_control")
    fake.suite = types.SimpleNamespace(load=lambda **settings: asked.append(settings) or Suite())
    monkeypatch.setitem(sys.modules, "dm_control", fake)
    return asked


def test_tasks_of_the_control_suite_have_flat_states_and_scaled_actions(suite):
    env = DMCEnv("cartpole", "swingup", task_kwargs={"random": 1}, frame_skip=2)
    assert suite == [
        {"domain_name": "cartpole", "task_name": "swingup", "task_kwargs": {"random": 1}, "visualize_reward": False}
        | {"environment_kwargs": None}
    ]
    assert env.action_space == Box(-1.0, 1.0, (2,), np.float32) and env.observation_space.shape == (3,)
    first, infos = env.reset(seed=5)
    start = np.random.RandomState(5).uniform(size=2)
    np.testing.assert_allclose(first, [*start, 0.0], rtol=1e-6)
    assert first.dtype == np.float32 and infos == {}
    obs, reward, terminated, truncated, infos = env.step(np.array([0.0, 0.5], np.float32))
    # In the task's units the action is (2, 2), taken twice.
    np.testing.assert_allclose(obs, [*(start + 4.0), 2.0], rtol=1e-6)
    assert (reward, terminated, truncated, infos["discount"]) == (3.0, False, False, 1.0)
    np.testing.assert_array_equal(infos["internal_state"], start)
    assert env.step(np.zeros(2, np.float32))[1:4] == (3.0, False, True)
    np.testing.assert_array_equal(env.current_state, env.state_space.dtype.type(env.current_state))
    assert env.end_discount == 1.0 and not hasattr(env, "nothing")
    with pytest.raises(ValueError, match="not in Box"):
        env.step(np.array([2.0, 0.0], np.float32))


@pytest.mark.parametrize(
    ("channels_first", "preprocess", "space"),
    [
        (True, True, Box(-0.5, 0.5, (3, 4, 6), np.float32)),
        (False, True, Box(-0.5, 0.5, (4, 6, 3), np.float32)),
        (True, False, Box(0, 255, (3, 4, 6), np.uint8)),
    ],
)
def test_tasks_of_the_control_suite_show_images(suite, channels_first, preprocess, space):
    images = {"channels_first": channels_first, "preprocess": preprocess, "height": 4, "width": 6, "camera_id": 1}
    env = DMCEnv("cartpole", "swingup", from_pixels=True, **images)
    obs, _ = env.reset()
    assert env.observation_space == space and env.observation_space.contains(obs)
    np.testing.assert_allclose(obs.ravel(), 51 / 255 - 0.5 if preprocess else 51)
    assert env.render(camera_id=0, height=2).shape == (2, 6, 3) and not env.render(camera_id=0).any()
    with pytest.raises(ValueError, match="rgb_array"):
        env.render("human")


@pytest.mark.filterwarnings("ignore:.*A Box observation space")
def test_a_task_of_the_control_suite_is_a_gymnasium_environment_that_trains(suite):
    check_env(DMCEnv("cartpole", "swingup"), skip_render_check=True)
    config = PPOConfig().environment(DMCTask).env_runners(num_env_runners=0)
    config.training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
    algorithm = config.rl_module(model_config={"fcnet_hiddens": [4]}).build_algo()
    assert algorithm.train()["env_runners"]["num_env_steps_sampled"] == 8
    algorithm.stop()


class DMCTask(DMCEnv):
    def __init__(self, config=None):
        super().__init__("cartpole", "swingup", frame_skip=1)


def test_without_the_control_suite_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "dm_control", None)
    with pytest.raises(ImportError, match=r"DMCEnv\('cartpole', 'swingup'\) needs dm_control"):
        DMCEnv("cartpole", "swingup")


def test_environments_of_dm_env_terminate_where_the_discount_is_0():
    env = DMEnv(Suite(end_discount=0.0))
    assert env.observation_space == Dict(
        {"position": Box(-np.inf, np.inf, (2,), np.float64), "height": Box(-np.inf, np.inf, (), np.float64)}
    )
    np.testing.assert_array_equal(env.action_space.low, [0.0, -4.0])
    np.testing.assert_array_equal(env.action_space.high, [4.0, 4.0])
    assert env.reset()[0]["height"] == 0.0
    steps = [env.step(np.zeros(2))[1:] for _ in range(3)]
    assert steps == [
        (1.0, False, False, {"discount": 1.0}),
        (2.0, False, False, {"discount": 1.0}),
        (3.0, True, False, {"discount": 0.0}),
    ]
    env._env.reward_spec = lambda: Spec(shape=(), dtype=np.float64, minimum=0.0)
    assert env.reward_range == (0.0, np.inf)
    discrete = Suite()
    discrete.action_spec = lambda: Spec(shape=(), dtype=np.int32, num_values=3, minimum=0, maximum=2)
    assert DMEnv(discrete).action_space == Discrete(3)


def test_actions_are_clipped_to_the_unit_interval():
    class Echo(gym.Env):
        action_space, observation_space = Box(-5.0, 5.0, (2,)), Box(-5.0, 5.0, (2,))

        def step(self, action):
            return action, 0.0, False, False, {}

    env = ActionClip(Echo())
    assert env.action_space == Box(-1.0, 1.0, (2,), np.float32)
    np.testing.assert_array_equal(env.step(np.array([3.0, 0.5]))[0], [1.0, 0.5])


# ------------------------------------------------------------------------------------------------------------- spaces


def test_lists_of_varying_length_are_a_space():
    space = Repeated(Dict({"a": Box(0.0, 1.0, (2,)), "b": Discrete(3)}), max_len=4)
    space.seed(1)
    drawn = [space.sample() for _ in range(50)]
    assert {len(sample) for sample in drawn} == {1, 2, 3, 4} and all(map(space.contains, drawn))
    space.seed(1)
    for sample in drawn:
        np.testing.assert_equal(space.sample(), sample)
    assert [] in space and drawn[0] * 5 not in space and [{"a": 1}] not in space and 3 not in space
    assert space == Repeated(Dict({"a": Box(0.0, 1.0, (2,)), "b": Discrete(3)}), 4)
    assert space != Repeated(space.child_space, 5) and space != Repeated(Discrete(3), 4) and space != Discrete(2)
    assert np.zeros((3, 2), np.float32) in Repeated(Box(0.0, 1.0, (2,)), 3)
    with pytest.raises(ValueError, match="max_len=0"):
        Repeated(Discrete(2), 0)


def test_what_is_no_array_of_a_fixed_shape_says_so():
    space = Dict({"items": Repeated(Discrete(3), max_len=2)})
    assert not space.is_np_flattenable
    with pytest.raises(NotImplementedError, match=r"Repeated\(Discrete\(3\), 2\)"):
        gym.spaces.flatten(space["items"], [1])
    config = PPOConfig().environment(RandomEnv, env_config={"observation_space": space}).env_runners(num_env_runners=0)
    with pytest.raises(TypeError, match=r"\['items'\] is Repeated\(Discrete\(3\), 2\), which has no fixed shape"):
        config.build_algo()


# ---------------------------------------------------------------------------------------------------------- functions


def test_activations_and_initializers_by_name():
    assert get_activation_fn("relu") is jax.nn.relu and get_activation_fn("ReLU", framework="torch") is jax.nn.relu
    assert get_activation_fn("swish") is get_activation_fn("silu") is jax.nn.silu
    assert get_activation_fn("linear") is get_activation_fn(None) is get_initializer_fn(None) is None
    assert get_activation_fn(np.tanh) is np.tanh
    for name in ("orthogonal", "orthogonal_"):
        kernel = get_initializer_fn(name)(jax.random.key(0), (3, 3))
        np.testing.assert_allclose(kernel @ kernel.T, np.eye(3), atol=1e-5)
    for function, kind in ((get_activation_fn, "activation"), (get_initializer_fn, "initializer")):
        with pytest.raises(ValueError, match=f"(?i){kind}"):
            function("rellu")
        with pytest.raises(ValueError, match=rf"{function.__name__}\(framework='tf2'\): the only framework"):
            function("relu", "tf2")


def test_global_generators_are_seeded():
    kept = random.getstate(), np.random.get_state()
    drawn = []
    for seed in (3, 3, None):
        deterministic.update_global_seed_if_necessary("torch", seed)
        drawn.append((random.random(), np.random.uniform()))
    assert drawn[0] == drawn[1] != drawn[2]
    with pytest.raises(ValueError, match="the only framework"):
        deterministic.update_global_seed_if_necessary("tf2", 3)
    random.setstate(kept[0])
    np.random.set_state(kept[1])
