"""RLlib's interface of several multi-agent environments that are stepped together."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv


class VectorMultiAgentEnv(abc.ABC):
    """Base class for a vector of ``B`` multi-agent environments that are stepped together.

    Actions, observations and other step results are lists with one dict, ``{agent: value}``, per environment.

    Attributes:
        envs: The environments.
        num_envs: ``B``.
        single_observation_spaces: Observation spaces of one environment, by agent; None where agents share one.
        single_action_spaces: Likewise.
        single_observation_space: The observation space that agents share, or a Dict of all; None where unknown.
        single_action_space: Likewise.
        render_mode: Render mode of the environments.
        closed: Whether `close` was called.
    """

    metadata: dict[str, Any] = {}
    spec: Any = None
    render_mode: str | None = None
    closed: bool = False
    envs: Sequence[MultiAgentEnv] = ()
    num_envs: int = 0
    single_observation_spaces: Any = None
    single_action_spaces: Any = None
    single_observation_space: Any = None
    single_action_space: Any = None
    observation_space: Any = None
    action_space: Any = None

    @abc.abstractmethod
    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts new episodes in all environments.

        Args:
            seed: One seed for each environment, or one seed, which increases by 1 from environment to environment.
            options: Passed to every environment.

        Returns:
            ``(observations, infos)``.
        """

    @abc.abstractmethod
    def step(self, actions: Sequence[dict[Any, Any]]) -> Any:
        """Steps all environments.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``.
        """

    @abc.abstractmethod
    def render(self) -> Any:
        """Returns the rendered frames, one for each environment."""

    def close(self, **kwargs: Any) -> None:
        """Closes all environments; a second call does nothing."""
        if not self.closed:
            self.close_extras(**kwargs)
            self.closed = True

    def close_extras(self, **kwargs: Any) -> None:  # noqa: B027 - by default there is nothing to release
        """Releases resources of a subclass; called by `close`."""

    @property
    def unwrapped(self) -> VectorMultiAgentEnv:
        """This object itself, because vectors of multi-agent environments have no wrappers."""
        return self


__all__ = ["VectorMultiAgentEnv"]
