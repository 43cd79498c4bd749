"""Atari through ale-py: ids, its own vector environment, and the wrappers on a real game."""

from __future__ import annotations

import types

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import FrameStacking
from jaxrl_stack.env.recording import record_on_host
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.env.vector.host_vector_env import make_vector_env
from jaxrl_stack.env.wrappers.atari_wrappers import wrap_atari_for_new_api_stack


def vector(mode, **env_config):
    return make_vector_env(
        types.SimpleNamespace(
            env="ALE/Breakout-v5",
            env_config=env_config,
            num_envs_per_env_runner=2,
            gym_env_vectorize_mode=mode,
            disable_env_checking=False,
            seed=0,
        )
    )


def test_the_vector_version_has_the_usual_preprocessing():
    env = vector("vector_entry_point", max_num_frames_per_episode=16, noop_max=0)
    assert env.single_observation_space == Box(0, 255, (84, 84, 4), np.uint8)
    assert env.single_action_space == Discrete(4)
    first = env.reset(seed=1)[0].copy()
    assert first.shape == (2, 84, 84, 4) and first.dtype == np.uint8
    step = env.step(np.zeros(2, np.int32))
    # Four frames per action, the newest image last.
    assert step.infos[0]["episode_frame_number"] - 4 == 1
    np.testing.assert_array_equal(step.obs[..., :3], first[..., 1:])
    while not step.resets.any():
        before, step = step.obs.copy(), env.step(np.zeros(2, np.int32))
    assert step.truncateds.all() and not step.terminateds.any() and step.valid is None
    np.testing.assert_array_equal(step.final_obs[..., :3], before[..., 1:])
    assert step.reset_infos[1]["episode_frame_number"] == 1 and step.reset_infos[1]["lives"] == 5
    np.testing.assert_array_equal(env.reset(seed=1)[0], first)
    env.close()
    env.close()


def test_rewards_are_the_games():
    # The first dots of MsPacman pay 10 each.
    env = resolve_env("ALE/MsPacman-v5").make_vector(1)
    env.reset(seed=0)
    paid = {float(env.step(np.array([3]))[1][0]) for _ in range(120)}
    assert paid == {0.0, 10.0}
    env.close()


def test_ids_need_no_import_and_a_single_game_is_gymnasiums():
    resolved = resolve_env("ALE/Pong-v5", {"obs_type": "ram"})
    assert not resolved.is_jax and not resolved.is_vector and resolved.hint is None
    env = resolved.make()
    assert env.observation_space.shape == (128,)
    env.close()


def test_the_wrappers_on_a_real_game():
    resolve_env("ALE/Breakout-v5")
    env = wrap_atari_for_new_api_stack(gym.make("ALE/Breakout-v5", frameskip=1), dim=32, framestack=2)
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space and obs.shape == (32, 32, 2)
    lives = []
    while not lives:
        obs, _, terminated, _, info = env.step(0)
        if terminated:
            lives.append(info["lives"])
    assert lives == [4] and env.reset()[1]["lives"] == 4
    env.close()


def test_the_vector_version_is_recorded_as_the_policy_sees_it():
    config = (
        PPOConfig()
        .environment("ALE/Breakout-v5", env_config={"stack_num": 1, "max_num_frames_per_episode": 16, "noop_max": 0})
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=2,
            gym_env_vectorize_mode="vector_entry_point",
            env_to_module_connector=lambda env, spaces, device: FrameStacking(num_frames=2),
        )
        .rl_module(model_config={"conv_filters": [[1, 8, 8]]})
    )
    algo = config.build_algo()
    evaluation = algo.config.get_evaluation_config_object()
    (episode,), _ = record_on_host(evaluation, algo.driver.evaluation.send_to, seed=0, num_episodes=1)
    algo.stop()
    frames = np.stack(list(episode.frames))
    assert frames.shape == (len(episode.rewards) + 1, 168, 168, 3) and len(episode.rewards) > 1
    assert episode.note == "drawn from the observations" and frames.min() < frames.max()
