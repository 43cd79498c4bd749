"""Environments stepped one after the other in this process, at little more than their own cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import create_empty_array

from jaxrl_stack.env.vector.interface import HostVectorEnv, VectorStep
from jaxrl_stack.env.vector.rows import copy_batch, row_splitter, row_writer
from jaxrl_stack.utils import spaces


class SyncHostVectorEnv(HostVectorEnv):
    """Steps the environments of a `gymnasium.vector.SyncVectorEnv` itself.

    gymnasium's own step costs as much again as the CartPole that it steps: it collects observations in a list, stacks
    and deep-copies them, and merges infos. Here observations go straight into one array, and infos stay apart.

    Args:
        makers: Make the environments.
        name: What to call the environment in messages.
        check: Look at the first observations: shapes and structure have to be those of the space.

    Raises:
        ValueError: The environments have different spaces.
        TypeError: A space without a fixed shape.
    """

    env: SyncVectorEnv

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], name: str, check: bool = True):
        envs: list[gym.Env] = []
        try:
            for make in makers:
                envs.append(make())
                _require_same_spaces(name, envs[0], envs[-1], len(envs) - 1)
            # Refuses spaces without a fixed shape.
            for space in (envs[0].observation_space, envs[0].action_space):
                spaces.dtype_of(space)
        except BaseException:
            for env in envs:
                env.close()
            raise
        # The environments exist already; gymnasium wants functions that make them.
        self.env = SyncVectorEnv(
            [lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP
        )
        self.num_envs = len(envs)
        self.single_observation_space = self.env.single_observation_space
        self.single_action_space = self.env.single_action_space
        self.observation_space = self.env.observation_space
        self.action_space = self.env.action_space
        self._name = name
        self._check = check
        self._obs = create_empty_array(self.single_observation_space, n=self.num_envs, fn=np.zeros)
        self._write = row_writer(self.single_observation_space, self._obs)
        self._split = row_splitter(self.single_action_space)
        self._no_infos: list[dict[str, Any]] = [{}] * self.num_envs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, Sequence[dict[str, Any]]]:
        infos = []
        for i, env in enumerate(self.env.envs):
            obs, info = env.reset(seed=None if seed is None else int(seed) + i, options=options)
            if self._check:
                spaces.validate_batch(
                    self.single_observation_space, obs, 0, f"environment({self._name!r}): the observation"
                )
            self._write(i, obs)
            infos.append(info)
        self._check = False
        return self._obs, infos

    def step(self, actions: Any, before_reset: Callable[[VectorStep], None] | None = None) -> VectorStep:
        rewards = np.empty(self.num_envs)
        terminateds = np.zeros(self.num_envs, np.bool_)
        truncateds = np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = self._no_infos
        reset_infos: list[dict[str, Any]] = []
        final_obs = write_final = None
        write = self._write
        for i, (env, action) in enumerate(zip(self.env.envs, self._split(actions), strict=True)):
            obs, rewards[i], terminated, truncated, info = env.step(action)
            if info:
                if infos is self._no_infos:
                    infos = [{}] * self.num_envs
                infos[i] = info
            if terminated or truncated:
                terminateds[i] = terminated
                truncateds[i] = truncated
                if write_final is None:
                    final_obs = copy_batch(self._obs)
                    write_final = row_writer(self.single_observation_space, final_obs)
                    reset_infos = [{}] * self.num_envs
                write_final(i, obs)
                if before_reset is None:
                    obs, reset_infos[i] = env.reset()
            write(i, obs)
        resets = terminateds | truncateds
        step = VectorStep(
            self._obs, rewards, terminateds, truncateds, resets, None, final_obs, infos, reset_infos or None
        )
        if before_reset is not None:
            before_reset(step)
            for i in np.flatnonzero(resets).tolist():
                obs, reset_infos[i] = self.env.envs[i].reset()
                write(i, obs)
        return step

    def close(self) -> None:
        self.env.close()


def _require_same_spaces(name: str, first: gym.Env, other: gym.Env, index: int) -> None:
    for attribute in ("observation_space", "action_space"):
        expected, given = getattr(first, attribute), getattr(other, attribute)
        if given != expected:
            raise ValueError(
                f"environment({name!r}): the copy with vector_index={index} has the {attribute} {given}, but "
                f"the one with vector_index=0 has {expected}. Environments that are stepped together need "
                "equal spaces: make them independent of the vector_index in env_config, or set "
                "env_runners(num_envs_per_env_runner=1)."
            )
