"""What callbacks see of JAX environments that are spread over devices."""

from __future__ import annotations

import collections

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.utils.devices import own_shards

NUM_DEVICES, NUM_ENVS = 4, 8


class Tagged(ConfiguredEnv):
    """An episode shows the number that it was born with, its time, and a mask that allows one action: (tag + t) % 3.

    It lasts for 2 to 6 steps.
    """

    @property
    def action_space(self):
        return gym.spaces.Discrete(3)

    @property
    def observation_space(self):
        mask = gym.spaces.Box(0, 1, (3,), np.int8)
        return gym.spaces.Dict(action_mask=mask, observations=gym.spaces.Box(0, 10_000, (2,), np.float32))

    def _obs(self, tag, t):
        mask = jnp.arange(3) == (tag + t) % 3
        return {"action_mask": mask.astype(jnp.int8), "observations": jnp.stack([tag, t]).astype(jnp.float32)}

    def reset_env(self, key, params):
        tag = jax.random.randint(key, (), 0, 10_000)
        return self._obs(tag, 0), (tag, jnp.int32(0))

    def step_env(self, key, state, action, params):
        tag, t = state[0], state[1] + 1
        return self._obs(tag, t), (tag, t), t * 1.0, t >= 2 + tag % 5, False, {}


class Keeps(RLlibCallback):
    def __init__(self):
        self.calls = collections.defaultdict(list)
        self.ended, self.running = [], {}

    def on_episode_start(self, *, episode, env_index, **kwargs):
        assert env_index not in self.running
        self.running[env_index] = episode

    def on_episode_step(self, *, episode, env_index, **kwargs):
        assert self.running[env_index] is episode
        self.calls[episode.id_].append(len(episode))

    def on_episode_end(self, *, episode, env_index, **kwargs):
        assert self.running.pop(env_index) is episode
        self.ended.append(episode)


def test_episodes_with_masks_on_four_devices_are_those_of_their_environments():
    algo = (
        PPOConfig()
        .environment(Tagged)
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=5)
        .training(train_batch_size_per_learner=NUM_ENVS * 5, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=NUM_DEVICES)
        .callbacks(Keeps)
        .build_algo()
    )
    seen = algo.callbacks[0]
    assert isinstance(seen, Keeps)
    num_ended = 0
    for _ in range(4):
        num_ended += algo.train()["env_runners"]["num_episodes"]
        assert len(seen.ended) == num_ended
        # Where the environments stand, in their order over the devices.
        now = np.asarray(own_shards(algo.driver.shards.state.obs)["observations"]).reshape(NUM_ENVS, 2)
        assert set(seen.running) == {i for i in range(NUM_ENVS) if now[i, 1]}
        for index, episode in seen.running.items():
            np.testing.assert_array_equal(_shown(episode)[-1], now[index])
    for episode in [*seen.ended, *seen.running.values()]:
        shown, length = _shown(episode), len(episode)
        tag = int(shown[0, 0])
        np.testing.assert_array_equal(shown, [[tag, t] for t in range(length + 1)])
        assert episode.is_done == (length == 2 + tag % 5) and seen.calls[episode.id_] == list(range(1, length + 1))
        masks = np.stack([obs["action_mask"] for obs in episode.get_observations(slice(0, length))])
        # The mask allows one action: it was chosen, and it is what the environment said.
        np.testing.assert_array_equal(masks.sum(axis=1), 1)
        np.testing.assert_array_equal(masks.argmax(axis=1), (tag + np.arange(length)) % 3)
        np.testing.assert_array_equal(episode.get_actions(), masks.argmax(axis=1))
        np.testing.assert_array_equal(episode.get_rewards(), np.arange(1, length + 1))
        logp = episode.get_extra_model_outputs(Columns.ACTION_LOGP)
        np.testing.assert_allclose(logp, 0.0, atol=1e-6)
    assert len(seen.ended) > NUM_ENVS
    algo.stop()


def _shown(episode):
    return np.stack([obs["observations"] for obs in episode.get_observations()])
