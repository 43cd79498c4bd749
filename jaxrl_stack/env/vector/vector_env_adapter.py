"""Adapter for vector environments that step all copies themselves: gymnasium's async vectors, vector entry points,
envpool, ALE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import jax
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.utils import create_empty_array

from jaxrl_stack.env.env_contract import VectorContract, check_spaces
from jaxrl_stack.env.vector.interface import HostVectorEnv, Recover, Seeds, Started, VectorStep, one_per_env
from jaxrl_stack.env.vector.rows import InfoRows, batch_converter, row_writer
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.spaces import map_parts


class VectorEnvAdapter(HostVectorEnv):
    """Adapter for a `gymnasium.vector.VectorEnv`, in the autoreset modes SAME_STEP and NEXT_STEP.

    Args:
        env: The vector environment. Its ``metadata["autoreset_mode"]`` is SAME_STEP (resets in the step that ends an
            episode, with final observations in ``infos["final_obs"]``) or NEXT_STEP (resets in the step after).
        name: Name of the environment in messages.
        num_envs: Expected number of copies.
        check: Whether to check that results of ``reset`` and ``step`` have the shapes and kinds of dtype of the space.
        worker_index: Index of the runner, for messages.
        rebuild: ``seed -> vector environment``, if seeds are arguments of the environment's constructor. None: its
            ``reset`` takes the seed.
        seed: Seed with which `env` was created; only with `rebuild`.

    Raises:
        ValueError: Another number of copies, or an unsupported autoreset mode.
        TypeError: A space without a fixed shape.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv,
        name: str,
        num_envs: int,
        check: bool = True,
        *,
        rebuild: Callable[[int], gym.vector.VectorEnv] | None = None,
        seed: int | None = None,
        worker_index: int = 0,
    ):
        self.env = env
        self._closed = False
        self._name = name
        self._rebuild = rebuild
        self._unused_seed = seed
        try:
            if env.num_envs != num_envs:
                raise ValueError(
                    f"environment({name!r}) made a vector environment of {env.num_envs} copies, but "
                    f"num_envs_per_env_runner={num_envs}. With "
                    "env_runners(gym_env_vectorize_mode='vector_entry_point'), create env_config['num_envs'] copies."
                )
            self.resets_in_next_step = not _resets_in_same_step(env, name)
            check_spaces(env, name)
        except BaseException:
            self.close()
            raise
        super().__init__(env)
        self._contract = VectorContract(self.single_observation_space, num_envs, name, worker_index) if check else None
        self._is_cast = False
        self._converted = batch_converter(self.action_space)
        self._ended = np.zeros(num_envs, np.bool_)

    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> Started:
        seeds = None if seed is None else one_per_env(seed, self.num_envs)
        if self._rebuild is not None:
            if seeds is not None and seeds[0] != self._unused_seed:
                close_env(self.env)
                self.env = self._rebuild(seeds[0])
            self._unused_seed = None
            outcome = self.env.reset(options=options)
        else:
            own: Any = seeds
            if seeds is not None and not isinstance(self.env, AsyncVectorEnv):
                own = seeds[0]
            outcome = self.env.reset(seed=own, options=options)
        if self._contract is not None:
            self._contract.check_reset(outcome)
        obs, infos = outcome
        self._ended = np.zeros(self.num_envs, np.bool_)
        return self._cast(obs), self._rows(infos)

    def observe_as(self, space: gym.Space) -> None:
        super().observe_as(space)
        self._is_cast = True

    def step(self, actions: Any, recover: Recover | None = None, holds_ended: bool = False) -> VectorStep:
        outcome = self.env.step(self._converted(actions))
        if self._contract is not None:
            self._contract.check_step(outcome)
        obs, rewards, terminateds, truncateds, infos = outcome
        obs, rewards = self._cast(obs), np.asarray(rewards)
        if rewards.dtype not in (np.float32, np.float64):
            rewards = rewards.astype(np.float64)
        terminateds, truncateds = np.asarray(terminateds, np.bool_), np.asarray(truncateds, np.bool_)
        valid: np.ndarray | None = None
        final_infos: dict[str, Any] = {}
        if self.resets_in_next_step:
            resets = self._ended
            if resets.any():
                valid = ~resets
                # Whatever the environment says of a step in which it only reset.
                rewards = np.where(valid, rewards, 0)
                terminateds, truncateds = terminateds & valid, truncateds & valid
            self._ended = terminateds | truncateds
            final_obs = jax.tree.map(np.array, obs) if self._ended.any() else None
        else:
            resets, final_obs = terminateds | truncateds, None
            if resets.any():
                infos, final_obs, final_infos = self._without_final(infos, resets)
        if resets.any():
            step_infos, reset_infos = self._rows(infos, ~resets, final_infos), self._rows(infos, resets)
        else:
            step_infos, reset_infos = self._rows(infos), None
        return VectorStep(obs, rewards, terminateds, truncateds, resets, valid, final_obs, step_infos, reset_infos)

    def discard(self) -> None:
        if isinstance(self.env, AsyncVectorEnv):
            # One of its processes may be gone, and closing waits for an answer of each.
            self._closed = True
            _kill(self.env)
        super().discard()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            close_env(self.env)
            if isinstance(self.env, AsyncVectorEnv) and not self.env.closed:
                _kill(self.env)

    def _without_final(self, infos: dict[str, Any], ended: np.ndarray) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """Splits the infos of a vector step in which environments were reset.

        Returns ``(other infos, final observations, final infos)``; final observations and infos are the last ones
        before the reset.
        """
        if "final_obs" not in infos:
            raise ValueError(
                f"environment({self._name!r}): metadata['autoreset_mode'] is SAME_STEP, but infos have only "
                f"{', '.join(sorted(infos)) or 'nothing'}. Return the observation before the reset as "
                "infos['final_obs']."
            )
        final = ("final_obs", "_final_obs", "final_info", "_final_info")
        others = {name: info for name, info in infos.items() if name not in final}
        if self._contract is not None:
            self._contract.check_final_obs(infos["final_obs"], ended)
        return others, self._final_obs(infos["final_obs"], ended), infos.get("final_info", {})

    def _rows(
        self, infos: dict[str, Any], rows: np.ndarray | None = None, otherwise: dict[str, Any] | None = None
    ) -> Sequence[dict[str, Any]]:
        if not infos and not otherwise:
            return self._no_infos
        return InfoRows(infos, self.num_envs, rows, otherwise or {})

    def _cast(self, obs: Any) -> Any:
        """Converts a batch of observations to NumPy arrays with the dtypes of `observation_space`, which `observe_as`
        can replace.

        Exception: if `observe_as` was not called and the batch consists of arrays already, the batch is returned
        unchanged.
        """
        arrays = (np.ndarray, jax.Array)
        if not self._is_cast and (isinstance(obs, arrays) or all(isinstance(x, arrays) for x in jax.tree.leaves(obs))):
            return obs
        return map_parts(lambda part, value: np.asarray(value, part.dtype), self.observation_space, obs)

    def _final_obs(self, given: Any, ended: np.ndarray) -> Any:
        """Converts the final observations of ended episodes to one batch of arrays; gymnasium's vector environments
        return them as an array of objects.
        """
        if not (isinstance(given, np.ndarray) and given.dtype == object):
            return jax.tree.map(np.array, self._cast(given))
        space = self.single_observation_space
        final_obs = create_empty_array(space, n=self.num_envs, fn=np.zeros)
        write = row_writer(space, final_obs)
        for i in np.flatnonzero(ended).tolist():
            write(i, given[i])
        return final_obs


def _kill(env: AsyncVectorEnv) -> None:
    """Kills the processes of an async vector after one of its environments failed, or if `close` did not end them."""
    for process in env.processes:
        process.kill()
    for process in env.processes:
        process.join()
    for pipe in env.parent_pipes:
        if pipe is not None:
            pipe.close()
    env.closed = True


def _resets_in_same_step(env: gym.vector.VectorEnv, name: str) -> bool:
    given = env.metadata.get("autoreset_mode")
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP):
        if given in (mode, mode.value):
            return mode is AutoresetMode.SAME_STEP
    raise ValueError(
        f"environment({name!r}): {type(env).__name__}.metadata['autoreset_mode'] is {given!r}. Set it to "
        "gymnasium.vector.AutoresetMode.SAME_STEP (copies reset in the step that ends an episode, with "
        "infos['final_obs']) or NEXT_STEP (in the step after)."
    )
