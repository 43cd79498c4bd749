"""Interface through which an env runner steps a vector of environments in Python, outside jit."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium.vector.utils import batch_space


@dataclasses.dataclass(slots=True)
class VectorStep:
    """Result of one step of ``B`` environments, in the same form for every autoreset mode.

    Attributes:
        obs: Pytree ``[B, ...]``, the observations to act on next: the first of an episode where `resets` is True. The
            next step may write into the same arrays; copy them to keep them.
        rewards: float32 or float64 ``[B]``; 0 where not `valid`.
        terminateds: bool ``[B]``, whether the episode terminated; False where not `valid`.
        truncateds: bool ``[B]``, whether the episode was truncated; False where not `valid`.
        resets: bool ``[B]``, whether ``obs[i]`` is the first observation of an episode.
        valid: bool ``[B]``, False where this step only reset the environment and ignored the action (next-step
            autoreset), or the environment failed. None: all are valid.
        final_obs: Pytree ``[B, ...]``, the observation before the reset in the rows whose episode ended in this
            step; the other rows are undefined. Never shares memory with later steps. None: no episode ended.
        infos: Infos of the step (not of a reset), one dict per environment; empty where not `valid`. Do not change
            them: environments may share a dict.
        reset_infos: Infos of resets, one dict per environment; empty where `resets` is False. None: no reset.
        failed: Indices of environments that failed in this step. New environments replaced them and were reset; the
            interrupted episodes have no end.
    """

    obs: Any
    rewards: np.ndarray
    terminateds: np.ndarray
    truncateds: np.ndarray
    resets: np.ndarray
    valid: np.ndarray | None
    final_obs: Any | None
    infos: Sequence[dict[str, Any]]
    reset_infos: Sequence[dict[str, Any]] | None
    failed: Sequence[int] = ()


Recover: TypeAlias = "Callable[[int, Exception], tuple[Any, dict[str, Any]]]"
"""``(index of an environment, exception that it raised) -> (first observation, info)`` of its replacement."""


Seeds: TypeAlias = "int | Sequence[int] | None"
"""One seed for each environment; or one seed, which increases by 1 from environment to environment; or None."""

Started: TypeAlias = "tuple[Any, Sequence[dict[str, Any]]]"
"""The first observations ``[B, ...]`` of episodes, and one info per environment."""


class Replayed(NamedTuple):
    """Result of repeating recorded actions in one environment: last observation, return, number of steps, and whether
    the episode ended.

    Attributes:
        obs: The last observation.
        info: The info that came with it.
        episode_return: Sum of the rewards.
        num_steps: Number of replayed actions.
        has_ended: Whether the last step ended the episode.
    """

    obs: Any
    info: dict[str, Any]
    episode_return: float
    num_steps: int
    has_ended: bool


def one_per_env(seed: int | Sequence[int], num_envs: int) -> list[int]:
    """Returns one seed for each of ``B`` environments.

    If `seed` is a sequence, returns its seeds as a list; if `seed` is an integer, returns ``[seed, seed + 1, ...]``.
    """
    if isinstance(seed, Sequence):
        return [int(own) for own in seed]
    return [int(seed) + i for i in range(num_envs)]


class HostVectorEnv(abc.ABC):
    """Interface of ``B`` environments that are stepped in Python (host environments), all in one call.

    Args:
        env: The `gymnasium.vector.VectorEnv` that contains the environments.

    Attributes:
        env: The `gymnasium.vector.VectorEnv` that is stepped.
        num_envs: ``B``.
        single_observation_space: Space of one observation.
        single_action_space: Space of one action.
        observation_space: Space of ``B`` observations.
        action_space: Space of ``B`` actions.
        resets_in_next_step: Whether an ended episode is reset in the step after its last one; such a step is not
            `VectorStep.valid`.
        steps_in_turn: Whether environments are stepped one after the other in this process.
        can_replay: Whether `replay` and `seed_of_reset` are supported.
        seed_of_reset: Function ``index -> seed`` for resets without a seed argument; None: these resets are not seeded.
    """

    resets_in_next_step = False
    steps_in_turn = False
    can_replay = False
    seed_of_reset: Callable[[int], int] | None = None

    def __init__(self, env: gym.vector.VectorEnv):
        self.env: Any = env
        self.num_envs = env.num_envs
        self.single_action_space = env.single_action_space
        # Not the environment's own: envpool's are those of one copy.
        HostVectorEnv.observe_as(self, env.single_observation_space)
        self.action_space = batch_space(env.single_action_space, env.num_envs)
        self._no_infos: list[dict[str, Any]] = [{}] * env.num_envs

    def observe_as(self, space: gym.Space) -> None:
        """Makes later observations have the dtypes of another space with the same structure and shapes."""
        self.single_observation_space = space
        self.observation_space = batch_space(space, self.num_envs)

    @abc.abstractmethod
    def reset(self, *, seed: Seeds = None, options: dict[str, Any] | None = None) -> Started:
        """Starts new episodes in all environments.

        Args:
            seed: One seed per environment; vector environments that a user or a suite provides, except an
                `AsyncVectorEnv`, get only the first one, and usually count up from it. With a single int, environment i
                gets ``seed + i``. None: random number generators continue.
            options: Passed to every environment.

        Returns:
            ``(obs, infos)``: pytree ``[B, ...]``, and one dict per environment.

        Raises:
            ValueError: An observation does not have the shapes of its space.
        """

    @abc.abstractmethod
    def step(self, actions: Any, recover: Recover | None = None, holds_ended: bool = False) -> VectorStep:
        """Steps all environments.

        Args:
            actions: NumPy pytree ``[B, ...]`` that mirrors `single_action_space`.
            recover: Function that replaces an environment that raised (`renew`, `reset_one`), so that the others
                continue. If it is None, if it raises, or if it is unknown which environment raised, the exception is
                raised here.
            holds_ended: Do not reset environments whose episode ended, if they do not reset themselves: ``obs`` and
                ``reset_infos`` of these rows are undefined until `reset_ended`.
        """

    def reset_ended(self, step: VectorStep, recover: Recover | None = None) -> None:  # noqa: B027 - by default none is held
        """Resets the environments whose episodes ended in the last ``step(..., holds_ended=True)`` call.

        The argument `step` is the result of that call; writes the first observations and infos of the new episodes into
        it.
        """

    def renew(self, index: int | None = None) -> bool:
        """Replaces one environment by a new one, which must be reset afterwards.

        Args:
            index: Index of the environment; None for the one whose ``reset`` or ``step`` raised.

        Returns:
            Whether the environment was replaced. False if the failed one is unknown, or cannot be replaced
            separately: then all environments must be created again.

        Raises:
            Exception: Exception of the environment's creation.
        """
        return False

    def reset_one(self, index: int, seed: int) -> tuple[Any, dict[str, Any]]:
        """Starts a new episode in one environment. After `renew` has replaced a failed environment, the function
        `recover`, an argument of `step`, calls this method.

        Returns:
            ``(observation, info)``.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot reset a single environment. Reset all of them with reset(), or use a "
            "gymnasium.Env with env_runners(gym_env_vectorize_mode='sync')."
        )

    def replay(self, index: int, seed: int, actions: Any, num_steps: int) -> Replayed:
        """Restores an episode of one environment: resets the environment with a seed, and repeats recorded actions.

        Stops after the last action or at the episode's end. Returns a `Replayed`, which contains the last observation
        and info, the return, the number of steps, and whether the episode ended.

        Args:
            index: Index of the environment.
            seed: Seed of the reset.
            actions: NumPy pytree ``[num_steps, ...]`` that mirrors `single_action_space`; ignored without steps.
            num_steps: Number of actions.
        """
        raise NotImplementedError(
            f"{type(self).__name__} cannot replay the episode of a single environment, as "
            "env_runners(replayable_episodes=True) requires. Use a gymnasium.Env with "
            "env_runners(gym_env_vectorize_mode='sync')."
        )

    def discard(self) -> None:
        """Closes all environments after one of them has failed."""
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Closes all environments. Exceptions of their `close` methods are only logged. A second call does nothing."""
