"""Images through a whole algorithm: bytes stay bytes, both drivers, replay, resuming; examples of docs/networks.md."""

from __future__ import annotations

import re
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.examples.envs.settings import ConfiguredEnv

PAGE = Path(__file__).parents[1] / "docs" / "networks.md"
MODEL = {"conv_filters": [[2, 3, 3]], "fcnet_hiddens": [4], "head_fcnet_hiddens": [4], "fusionnet_hiddens": [4]}


class Blinking(ConfiguredEnv):
    """An image of one brightness, drawn anew in every step; action 1 pays where it is bright. Episodes have 8 steps."""

    defaults = {"continuous": False, "size": 6, "counts_to": 0}

    @property
    def observation_space(self):
        image = gym.spaces.Box(0, 255, (self.settings["size"], self.settings["size"], 1), np.uint8)
        number = gym.spaces.Discrete(max(self.settings["counts_to"], 1), start=5)
        return gym.spaces.Dict(image=image, step=number) if self.settings["counts_to"] else image

    @property
    def action_space(self):
        return gym.spaces.Box(-1, 1, (1,)) if self.settings["continuous"] else gym.spaces.Discrete(2)

    def _obs(self, bright, t=0):
        size = self.settings["size"]
        image = jnp.full((size, size, 1), jnp.where(bright, 230, 20), jnp.uint8)
        return {"image": image, "step": jnp.int32(5 + t)} if self.settings["counts_to"] else image

    def reset_env(self, key, params):
        bright = jax.random.bernoulli(key)
        return self._obs(bright), (jnp.int32(0), bright)

    def step_env(self, key, state, action, params):
        t, bright = state
        chosen = action[0] > 0 if self.settings["continuous"] else action == 1
        now = jax.random.bernoulli(key)
        return self._obs(now, t + 1), (t + 1, now), (chosen == bright).astype(jnp.float32), False, t + 1 >= 8, {}


register_env("blinking", Blinking)
register_env("blinking-host", lambda config: GymnasiumFromJax(Blinking(dict(config))))


def config_of(config_class, env, **env_config):
    config = config_class().environment(env, env_config=env_config).rl_module(model_config=MODEL)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=4).debugging(seed=1)
    if config_class is PPOConfig:
        return config.training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
    config.training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=16)
    return config.reporting(min_sample_timesteps_per_iteration=32, min_time_s_per_iteration=0)


def bytes_in(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if getattr(leaf, "shape", ())[-3:] == (6, 6, 1)]


@pytest.mark.parametrize(
    ("config_class", "env", "continuous"),
    [
        (PPOConfig, "blinking", False),
        (PPOConfig, "blinking-host", False),
        (DQNConfig, "blinking", False),
        (DQNConfig, "blinking-host", False),
        (SACConfig, "blinking-host", True),
    ],
)
def test_bytes_are_kept_as_bytes_and_large_numbers_beside_them_as_numbers(config_class, env, continuous):
    algo = config_of(config_class, env, continuous=continuous, counts_to=4000).build_algo()
    before = algo.get_weights()[DEFAULT_MODULE_ID]
    algo.train()
    after = algo.get_weights()[DEFAULT_MODULE_ID]
    trained = [name for name in after if "target" not in name]
    kernels = [name for name in trained if name.endswith("conv_0/kernel")]
    assert kernels
    for name in kernels:
        assert np.isfinite(after[name]).all() and (after[name] != before[name]).any()
    name = next(name for name in trained if name.endswith("dense_0/kernel") and after[name].shape[0] == 4000)
    changed = np.flatnonzero((after[name] != before[name]).any(axis=1))
    # Of the rows of the kernel those of the numbers that were seen, counted from 0; episodes have 8 steps.
    assert len(changed) and changed.max() <= 8

    for episode in algo.env_runner.sample(num_timesteps=16):
        assert episode.get_observations()["image"].dtype == np.uint8
    stored = bytes_in(algo.get_state())
    if config_class is not PPOConfig:
        assert stored
    assert all(leaf.dtype == np.uint8 for leaf in stored)

    observations = {"image": np.zeros((2, 6, 6, 1), np.uint8), "step": np.array([5, 4004])}
    actions, *_ = algo.get_policy().compute_actions(observations)
    assert len(actions) == 2
    algo.stop()


@pytest.fixture(scope="module")
def learned():
    """An algorithm after 4096 steps, and the result of these."""
    config = config_of(PPOConfig, "blinking").training(lr=0.01, num_epochs=4)
    algo = config.reporting(min_sample_timesteps_per_iteration=4096).build_algo()
    yield algo, algo.train()
    algo.stop()


def test_memory_estimates_count_a_byte_for_a_value_of_a_pixel(learned):
    assert learned[0].memory_estimate()["train_batch"]["columns"]["obs"] == 64 * 6 * 6
    config = config_of(DQNConfig, "blinking")
    dqn = config.training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 1000}).build_algo()
    assert dqn.memory_estimate()["replay"]["columns"]["obs"] == 1000 * 6 * 6
    dqn.stop()


def test_a_checkpoint_continues_bit_for_bit(learned, tmp_path):
    whole, _ = learned
    whole.save_to_path(tmp_path / "checkpoint")
    rest = Algorithm.from_checkpoint(tmp_path / "checkpoint", allow=[Blinking])
    for algo in (whole, rest):
        algo.train()
    for name, value in whole.get_weights()[DEFAULT_MODULE_ID].items():
        np.testing.assert_array_equal(value, rest.get_weights()[DEFAULT_MODULE_ID][name], err_msg=name)
    rest.stop()


def test_ppo_learns_what_is_in_an_image(learned):
    assert learned[1]["env_runners"]["episode_return_mean"] > 7


def test_images_of_other_sizes_are_trained_on_with_filters_that_fit():
    algo_config = config_of(PPOConfig, "blinking", size=5).rl_module(model_config={"conv_filters": None})
    algo = algo_config.build_algo()
    try:
        before, _ = algo.get_weights(), algo.train()
        after = algo.get_weights()
        assert any(map(np.any, jax.tree.leaves(jax.tree.map(np.not_equal, before, after))))
    finally:
        algo.stop()


def test_gray_images_without_an_axis_of_channels_are_refused():
    gray = gym.spaces.Box(0, 255, (84, 84), np.uint8)
    with pytest.raises(ValueError, match=r"without an axis of channels.*ReshapeObservation\(env, \(84, 84, 1\)\)"):
        PPOConfig().build_env_to_module_connector(spaces={"__env_single__": (gray, gym.spaces.Discrete(2))})


@pytest.mark.parametrize("number", range(4))
def test_the_examples_of_the_page_run(number, capsys):
    examples = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(examples) == 4
    example = examples[number].replace("num_envs_per_env_runner=64", "num_envs_per_env_runner=8")
    example = example.replace("train_batch_size_per_learner=2048", "train_batch_size_per_learner=256")
    example = example.replace("minibatch_size=256", "minibatch_size=256, num_epochs=1")
    names = {"__name__": "example"}
    exec(compile(example, PAGE.name, "exec"), names)
    if "algo" in names:
        names["algo"].stop()
    printed = capsys.readouterr().out.split("\n")[-2]
    expected = re.search(r"print\(.*\)  # (.*)", example)
    assert printed == expected[1] if expected else float(printed) >= 0
