"""Base of environments that replace the observations of another environment."""

from __future__ import annotations

import abc
from typing import Any

import gymnasium as gym


class OtherObservations(gym.Env, abc.ABC):
    """Stands before an environment among the bases of a class, and passes its observations through `_shown`."""

    @abc.abstractmethod
    def _shown(self, obs: Any) -> Any:
        """The observation in place of the other base's."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return self._shown(obs), info

    def step(self, action: Any):
        obs, *rest = super().step(action)
        return self._shown(obs), *rest
