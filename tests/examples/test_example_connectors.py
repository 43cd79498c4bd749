"""Connectors and callbacks that example scripts import do what their docstrings say."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from envs.gymnasium_versions import GymnasiumCounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.examples.connectors.classes.count_based_curiosity import CountBasedCuriosity
from jaxrl_stack.examples.connectors.classes.euclidian_distance_based_curiosity import EuclidianDistanceBasedCuriosity
from jaxrl_stack.examples.connectors.classes.protobuf_cartpole_observation_decoder import (
    ProtobufCartPoleObservationDecoder,
)
from jaxrl_stack.examples.envs.classes.cartpole_with_protobuf_observation_space import (
    CartPoleWithProtobufObservationSpace,
)
from jaxrl_stack.examples.envs.env_rendering_and_recording import HEIGHT, WIDTH, EnvRenderCallback


def episode(*numbers, rewards):
    observations = [np.array([number], np.float32) for number in numbers]
    columns = {"observations": observations, "actions": [0] * len(rewards), "rewards": list(rewards)}
    return SingleAgentEpisode(**columns, len_lookback_buffer=0)


def run(connector, episodes):
    assert connector(rl_module=None, batch={}, episodes=episodes) == {}
    return [np.asarray(own.get_rewards()).tolist() for own in episodes]


@pytest.mark.parametrize("is_numpy", [False, True])
def test_observations_that_were_seen_seldom_are_rewarded(is_numpy):
    episodes = [episode(3, 4, 3, 4, rewards=(1.0, 1.0, 1.0)), episode(4, 9, rewards=(0.0,))]
    if is_numpy:
        episodes = [own.to_numpy() for own in episodes]
    connector = CountBasedCuriosity(intrinsic_reward_coeff=2.0)
    assert run(connector, episodes) == [[3.0, 3.0, 2.0], [1.0]]
    assert run(connector, [episode(9, 3, rewards=(0.0,))]) == [[2.0]]


def test_observations_far_from_those_before_are_rewarded():
    connector = EuclidianDistanceBasedCuriosity(intrinsic_reward_coeff=0.5, max_buffer_size=2)
    first = run(connector, [episode(1, 2, 3, rewards=(1.0, 1.0)), episode(2, 5, 7, rewards=(0.0, 0.0))])
    # Nothing is known at first; then 1, and of the second episode 5.
    assert first == [[1.0, 1.0], [0.5, 2.0]] and [own.tolist() for own in connector.obs_buffer] == [[1.0], [5.0]]
    assert run(connector, [episode(11, 0, rewards=(0.0,))]) == [[3.0]]
    assert [own.tolist() for own in connector.obs_buffer] == [[5.0], [11.0]]


def test_bytes_become_the_observations_that_they_stand_for():
    env, plain = CartPoleWithProtobufObservationSpace(), CartPoleEnv()
    algo = (
        PPOConfig()
        .environment(CartPoleWithProtobufObservationSpace)
        .env_runners(
            num_env_runners=0, env_to_module_connector=lambda env, spaces, device: ProtobufCartPoleObservationDecoder()
        )
        .training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .build_algo()
    )
    assert algo.get_module().observation_space == gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    (sampled,) = algo.env_runner.sample(num_timesteps=1)
    assert sampled.get_observations(-1).shape == (4,)
    algo.stop()

    decoder = ProtobufCartPoleObservationDecoder(env.observation_space, env.action_space)
    for obs, expected in ((env.reset(seed=3)[0], plain.reset(seed=3)[0]), (env.step(1)[0], plain.step(1)[0])):
        assert env.observation_space.contains(obs)
        own = SingleAgentEpisode(observations=[obs], observation_space=env.observation_space)
        decoder(rl_module=None, batch={}, episodes=[own])
        np.testing.assert_array_equal(own.get_observations(-1), expected)
    with pytest.raises(ValueError, match="reads bytes"):
        ProtobufCartPoleObservationDecoder(plain.observation_space, plain.action_space).observation_space  # noqa: B018


class Shown(GymnasiumCounterEnv):
    def render(self):
        return np.full((2 * HEIGHT, WIDTH, 3), self.steps, np.uint8)

    def reset(self, **kwargs):
        self.steps = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        return super().step(action)


def test_the_best_and_the_worst_episode_are_videos():
    algo = (
        PPOConfig()
        .environment(Shown, env_config={"terminate_at": 4, "random_start": True})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=20, minibatch_size=20, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .callbacks(EnvRenderCallback)
        .build_algo()
    )
    results = algo.train()["env_runners"]
    (best,), (worst,) = results["episode_videos_best"], results["episode_videos_worst"]
    returns = [sum(range(5 - video.shape[1], 5)) for video in (best, worst)]
    assert returns == [results["episode_return_max"], results["episode_return_min"]]
    assert best.shape == (1, best.shape[1], 3, HEIGHT, WIDTH) and best.dtype == np.uint8
    assert best[0, :, 0, 0, 0].tolist() == list(range(1, best.shape[1] + 1))
    algo.stop()
