"""Vector of environments stepped one after the other in this process, with little overhead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import create_empty_array

from jaxrl_stack.env.env_contract import EnvContract, check_spaces
from jaxrl_stack.env.vector.interface import HostVectorEnv, Recover, Replayed, Seeds, Started, VectorStep, one_per_env
from jaxrl_stack.env.vector.rows import row_splitter, row_writer
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.nested import owned, row


class SyncHostVectorEnv(HostVectorEnv):
    """Steps the environments of a `gymnasium.vector.SyncVectorEnv` directly, which is faster than gymnasium's ``step``.

    gymnasium's own step costs as much again as the CartPole that it steps: it collects observations in a list, stacks
    and deep-copies them, and merges infos. Here observations go straight into one array, and infos stay apart.

    Args:
        makers: Functions that create the environments, one each.
        name: Name of the environment in messages.
        check: Whether to check that results of ``reset`` and ``step`` have gymnasium's form, and the form of the
            observation space.
        worker_index: Index of the runner, for messages.

    Raises:
        ValueError: The environments have different spaces.
        TypeError: A space is missing, or has no fixed shape.
    """

    steps_in_turn = True
    can_replay = True

    def __init__(self, makers: Sequence[Callable[[], gym.Env]], name: str, check: bool = True, worker_index: int = 0):
        envs: list[gym.Env] = []
        try:
            for make in makers:
                envs.append(make())
                check_spaces(envs[-1], name)
                _require_same_spaces(name, envs[0], envs[-1], len(envs) - 1)
        except BaseException:
            for env in envs:
                close_env(env)
            raise
        # The environments exist already; gymnasium wants functions that make them.
        super().__init__(SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP))
        self._name = name
        self._contract = None
        if check:
            self._contract = EnvContract(self.single_observation_space, name, worker_index, range(self.num_envs))
        self._split = row_splitter(self.single_action_space)
        self.observe_as(self.single_observation_space)
        self._makers = list(makers)
        # The environment that is being stepped or reset: the one that failed, if it raises.
        self._running: int | None = None

    def observe_as(self, space: gym.Space) -> None:
        super().observe_as(space)
        self._obs = create_empty_array(space, n=self.num_envs, fn=np.zeros)
        self._write = row_writer(space, self._obs)

    def renew(self, index: int | None = None) -> bool:
        index = self._running if index is None else index
        if index is None:
            return False
        old = self.env.envs[index]
        close_env(old)
        new = self._makers[index]()
        _require_same_spaces(self._name, old, new, index)
        self.env.envs[index] = new
        return True

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> Started:
        infos = []
        seeds = [None] * self.num_envs if seed is None else one_per_env(seed, self.num_envs)
        for i, env in enumerate(self.env.envs):
            self._running = i
            obs, info = self._checked_reset(i, env.reset(seed=seeds[i], options=options))
            self._write(i, obs)
            infos.append(info)
        self._running = None
        return self._obs, infos

    def step(self, actions: Any, recover: Recover | None = None, holds_ended: bool = False) -> VectorStep:
        rewards = np.empty(self.num_envs)
        terminateds = np.zeros(self.num_envs, np.bool_)
        truncateds = np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = self._no_infos
        # Of the environments that were reset, or are to be.
        reset_infos: dict[int, dict[str, Any]] = {}
        failed: list[int] = []
        final_obs = write_final = None
        write, contract = self._write, self._contract
        if contract is not None:
            contract.begin_step()
        for i, (env, action) in enumerate(zip(self.env.envs, self._split(actions), strict=True)):
            self._running = i
            try:
                outcome = env.step(action)
                if contract is not None:
                    contract.check_step(outcome, i)
                obs, rewards[i], terminated, truncated, info = outcome
            except Exception as error:
                obs, reset_infos[i] = self._recovered(i, error, recover)
                rewards[i], terminated, truncated, info = 0.0, False, False, None
                failed.append(i)
            if info:
                if infos is self._no_infos:
                    infos = [{}] * self.num_envs
                infos[i] = info
            if terminated or truncated:
                terminateds[i] = terminated
                truncateds[i] = truncated
                if write_final is None:
                    final_obs = jax.tree.map(np.array, self._obs)
                    write_final = row_writer(self.single_observation_space, final_obs)
                write_final(i, obs)
                reset_infos[i] = {}
                if not holds_ended:
                    if info:  # the reset may fill it again
                        infos[i] = owned(info)
                    obs, reset_infos[i] = self._reset_again(i, recover)
            write(i, obs)
        self._running = None
        ended = terminateds | truncateds
        step = VectorStep(self._obs, rewards, terminateds, truncateds, ended, None, final_obs, infos, None)
        if failed:
            step.failed, step.valid = failed, np.ones(self.num_envs, np.bool_)
            step.valid[failed], step.resets[failed] = False, True
        if reset_infos:
            step.reset_infos = [reset_infos.get(i, {}) for i in range(self.num_envs)]
        return step

    def reset_ended(self, step: VectorStep, recover: Recover | None = None) -> None:
        infos: Any = step.reset_infos
        for i in np.flatnonzero(step.terminateds | step.truncateds).tolist():
            obs, infos[i] = self._reset_again(i, recover)
            self._write(i, obs)

    def _reset_again(self, index: int, recover: Recover | None) -> tuple[Any, dict[str, Any]]:
        """Resets one environment after its episode ended; returns ``(first observation, info)``."""
        seeded = {} if self.seed_of_reset is None else {"seed": self.seed_of_reset(index)}
        try:
            return self._checked_reset(index, self.env.envs[index].reset(**seeded))
        except Exception as error:
            return self._recovered(index, error, recover)

    def _recovered(self, index: int, error: Exception, recover: Recover | None) -> tuple[Any, dict[str, Any]]:
        self._running = index
        if recover is None:
            raise error
        return recover(index, error)

    def reset_one(self, index: int, seed: int) -> tuple[Any, dict[str, Any]]:
        return self._checked_reset(index, self.env.envs[index].reset(seed=seed))

    @property
    def obs(self) -> Any:
        """Last observations of all environments, ``[B, ...]``; the next step writes into these arrays."""
        return self._obs

    def replay(self, index: int, seed: int, actions: Any, num_steps: int) -> Replayed:
        obs, info = self.reset_one(index, seed)
        rewards, episode_return, has_ended = np.zeros(1), np.float64(0.0), False
        replayed = 0
        for action in self._split(actions) if num_steps else ():
            obs, rewards[0], terminated, truncated, info = self.env.envs[index].step(action)
            episode_return += rewards[0]
            replayed += 1
            has_ended = bool(terminated or truncated)
            if has_ended:
                break
        self._write(index, obs)
        return Replayed(row(self._obs, index), info, float(episode_return), replayed, has_ended)

    def _checked_reset(self, index: int, outcome: Any) -> tuple[Any, dict[str, Any]]:
        """Returns the ``(observation, info)`` of an environment's ``reset`` unchanged; first checks both with the
        `EnvContract`, unless checks are disabled.
        """
        if self._contract is not None:
            self._contract.check_reset(outcome, index)
        return outcome

    def close(self) -> None:
        if not self.env.closed:
            for env in self.env.envs:
                close_env(env)
            self.env.closed = True


def _require_same_spaces(name: str, first: gym.Env, other: gym.Env, index: int) -> None:
    for attribute in ("observation_space", "action_space"):
        expected, given = getattr(first, attribute), getattr(other, attribute)
        if given != expected:
            raise ValueError(
                f"environment({name!r}): the copy with vector_index={index} has the {attribute} {given}, but the one "
                f"with vector_index=0 has {expected}. Make spaces independent of the vector_index in env_config, or "
                "set env_runners(num_envs_per_env_runner=1)."
            )
