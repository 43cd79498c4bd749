"""Connector pipelines as RLlib's scripts use them: called by hand, extended by RLlib's class names, for curiosity."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode


class Counting(gym.Env):
    """Shows how many steps there have been; an episode ends after three."""

    observation_space = gym.spaces.Box(0.0, 10.0, (2,), np.float32)

    def __init__(self, config=None):
        is_box = (config or {}).get("box_actions", False)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,)) if is_box else gym.spaces.Discrete(3)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0, 1.0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), repr(action)
        self.t += 1
        return np.array([self.t, 1.0], np.float32), 1.0, self.t == 3, False, {}


def small_ppo(**env_config):
    return (
        PPOConfig()
        .environment(Counting, env_config=env_config)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=12, minibatch_size=12, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )


@pytest.mark.parametrize("explore", [False, True])
@pytest.mark.parametrize("box_actions", [False, True])
def test_the_inference_loop_steps_a_gymnasium_environment(box_actions, explore):
    env = Counting({"box_actions": box_actions})
    config = small_ppo().env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    env_to_module = config.build_env_to_module_connector(env=env)
    module_to_env = config.build_module_to_env_connector(env=env)
    module = config.get_rl_module_spec(env=env).build()

    obs, _ = env.reset()
    episode = SingleAgentEpisode(
        observations=[obs], observation_space=env.observation_space, action_space=env.action_space
    )
    while not episode.is_done:
        shared_data = {}
        given = {"episodes": [episode], "rl_module": module, "explore": explore, "shared_data": shared_data}
        batch = env_to_module(**given)
        assert type(batch[Columns.OBS]) is np.ndarray
        to_env = module_to_env(
            batch=(module.forward_exploration if explore else module.forward_inference)(batch), **given
        )
        action = to_env.pop(Columns.ACTIONS)[0]
        for_env = to_env.pop(Columns.ACTIONS_FOR_ENV)[0]
        assert all(type(column) is np.ndarray and column.flags.writeable for column in to_env.values())
        obs, reward, terminated, truncated, _ = env.step(for_env)
        extra = {name: column[0] for name, column in to_env.items()}
        episode.add_env_step(obs, action, reward, terminated=terminated, truncated=truncated, extra_model_outputs=extra)
    assert len(episode) == 3 and (Columns.ACTION_LOGP in episode.extra_model_outputs) is explore
