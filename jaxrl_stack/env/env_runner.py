"""What every env runner can do."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.utils.spaces import validate_batch

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode


class EnvRunner(abc.ABC):
    """Steps environments with a module and hands out episodes.

    Attributes:
        config: The algorithm's frozen config.
        worker_index: 0 for the runner in the algorithm's own process.
    """

    def __init__(self, *, config: AlgorithmConfig, worker_index: int = 0):
        self.config = config
        self.worker_index = worker_index

    @abc.abstractmethod
    def sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool | None = None,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[SingleAgentEpisode]:
        """Step the environments and return the episodes, or pieces of episodes, that came out."""

    @abc.abstractmethod
    def make_env(self) -> None:
        """Make the environments, in place of those that there are."""

    @abc.abstractmethod
    def make_module(self) -> None:
        """Make the module that acts."""

    def sample_get_state_and_metrics(self, **kwargs: Any) -> tuple[list[SingleAgentEpisode], dict[str, Any], Any]:
        """``sample(**kwargs)``, the connectors' states and the metrics, in one call.

        Returns:
            ``(episodes, connector states, metrics)``.
        """
        episodes = self.sample(**kwargs)
        state = self.get_state(not_components=["rl_module", "weights_seq_no", "num_env_steps_sampled_lifetime"])
        return episodes, state, self.get_metrics()

    @abc.abstractmethod
    def get_metrics(self) -> dict[str, Any]:
        """Statistics of the episodes sampled since the last call."""

    @abc.abstractmethod
    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """``{"__env__": ..., "__env_single__": ..., module_id: (observation space, action space)}``."""

    @abc.abstractmethod
    def get_state(self, components: Any = None, *, not_components: Any = None) -> dict[str, Any]:
        """State as nested dicts of NumPy arrays."""

    @abc.abstractmethod
    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""

    def assert_healthy(self) -> None:  # noqa: B027 - a hook: most runners have nothing to do here
        """Raise if the runner cannot sample."""

    def ping(self) -> str:
        """Answer, to show that the runner lives."""
        return "pong"

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``func(self, *args, **kwargs)``."""
        return func(self, *args, **kwargs)

    def stop(self) -> None:  # noqa: B027 - a hook: most runners have nothing to do here
        """Release what the runner holds."""


def check_amounts(num_timesteps: int | None, num_episodes: int | None) -> None:
    """Raise a ValueError unless at most one of ``sample()``'s amounts is given, and at least 1."""
    if num_timesteps is not None and num_episodes is not None:
        raise ValueError(
            f"sample(num_timesteps={num_timesteps}, num_episodes={num_episodes}): pass one of them, not both."
        )
    for name, amount in (("num_timesteps", num_timesteps), ("num_episodes", num_episodes)):
        if amount is not None and amount < 1:
            raise ValueError(f"sample({name}={amount}): must be at least 1.")


def checked_observation(space: gym.Space, observation: Any) -> Any:
    """One observation as arrays ``[1, ...]``, a list of numbers included.

    Raises:
        ValueError: If it does not fit the space.
    """
    if isinstance(observation, list | tuple) and not isinstance(space, gym.spaces.Tuple):
        observation = np.asarray(observation, space.dtype)
    validate_batch(space, observation, batch_dims=0, name="observation")
    return jax.tree.map(lambda x: np.asarray(x)[None], observation)


def episode_quota(num_episodes: int, num_envs: int) -> list[int]:
    """How many of n episodes each of B environments contributes: ``n // B + (i < n % B)``."""
    return [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]
