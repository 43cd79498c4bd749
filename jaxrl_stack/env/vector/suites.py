"""Suites with vector environments: envpool, and the Arcade Learning Environment (ale-py)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from jaxrl_stack.env.host_packages import import_package

ENVPOOL_PREFIX = "envpool/"
ALE_PREFIX = "ALE/"


def make_envpool(name: str, env_config: Mapping[str, Any], num_envs: int, seed: int) -> gym.vector.VectorEnv:
    """Creates envpool's vector environment, which resets in the step after the end of an episode.

    Args:
        name: "envpool/<task id>".
        env_config: Arguments of ``envpool.make``: num_threads (by default the number of cores for this process, but at
            most `num_envs`), max_episode_steps, stack_num, ...
        num_envs: Number of copies.
        seed: Seed of the whole pool, int32.

    Raises:
        ImportError: envpool is not installed.
        ValueError: It has no such task.
    """
    envpool = import_package(name, "envpool")
    task = name.removeprefix(ENVPOOL_PREFIX)
    if task not in envpool.list_all_envs():
        raise ValueError(f"environment({name!r}): envpool has no task {task!r}. envpool.list_all_envs() lists them.")
    arguments = {"seed": seed, "num_threads": min(num_envs, available_cores()), **env_config}
    return channels_last(envpool.make(task, env_type="gymnasium", num_envs=num_envs, **arguments))


def make_atari(spec: Any, env_config: Mapping[str, Any], num_envs: int) -> gym.vector.VectorEnv:
    """Creates ALE's vector environment, with the usual preprocessing in C++.

    84 × 84 gray images, four frames per action (the maximum of the last two), the last four stacked: uint8
    ``[84, 84, 4]``. Up to 30 no-ops after a reset, then FIRE if the game waits for it; the environment id
    determines whether actions are sticky. Rewards are not clipped; ``environment(clip_rewards=True)`` clips them for
    the learner.

    Args:
        spec: ``gymnasium.spec("ALE/<Game>-v5")``.
        env_config: Arguments of ``ale_py.vector_env.AtariVectorEnv``: img_height, img_width, grayscale, stack_num,
            frameskip, repeat_action_probability, episodic_life, num_threads, ...
        num_envs: Number of copies.
    """
    arguments = {
        "reward_clipping": False,
        "num_threads": min(num_envs, available_cores()),
        "autoreset_mode": AutoresetMode.SAME_STEP,
        **env_config,
    }
    return channels_last(gym.make_vec(spec, num_envs=num_envs, vectorization_mode="vector_entry_point", **arguments))


def available_cores() -> int:
    """Returns how many cores this process should use: ``NPROC`` if set, else the cores that it may run on."""
    if "NPROC" in os.environ:
        return int(os.environ["NPROC"])
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def channels_last(env: gym.vector.VectorEnv) -> gym.vector.VectorEnv:
    """Wraps `env` so that image observations have the axes ``[H, W, C]``, as Flax's convolutions expect.

    Returns `env` itself if images have these axes already, or if observations are not images.

    Images are uint8 boxes ``[C, H, W]`` or ``[S, H, W, C]`` (a stack of S images) whose first axis is the shortest.
    """
    space = env.single_observation_space
    if not (isinstance(space, Box) and space.dtype == np.uint8 and len(space.shape) in (3, 4)):
        return env
    return ChannelsLast(env) if space.shape[0] < min(space.shape[1:3]) else env


class ChannelsLast(gym.vector.VectorWrapper):
    """Moves the first axis of image observations to the end.

    Images ``[C, H, W]`` become ``[H, W, C]``, and stacks of S images ``[S, H, W, C]`` become ``[H, W, S * C]``.

    Args:
        env: Vector environment with a Box ``[C, H, W]`` or ``[S, H, W, C]`` as single observation space.
    """

    def __init__(self, env: gym.vector.VectorEnv):
        super().__init__(env)
        space = env.single_observation_space
        assert isinstance(space, Box)
        self.single_observation_space = Box(
            self._move(space.low[None])[0], self._move(space.high[None])[0], dtype=space.dtype.type
        )
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        # envpool warns of every seed given here, and None is no seed.
        arguments = {} if seed is None else {"seed": seed}
        obs, infos = self.env.reset(options=options, **arguments)
        return self._move(obs), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, rewards, terminateds, truncateds, infos = self.env.step(actions)
        if "final_obs" in infos:
            infos = {**infos, "final_obs": self._move(infos["final_obs"])}
        return self._move(obs), rewards, terminateds, truncateds, infos

    def _move(self, images: np.ndarray) -> np.ndarray:
        if images.ndim == 4:
            return np.moveaxis(images, 1, -1)
        moved = np.moveaxis(images, 1, -2)
        return moved.reshape(*moved.shape[:-2], -1)
