"""Random environment in which only some actions are valid."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

from jaxrl_stack.examples.envs.classes.random_env import RandomEnv


class ActionMaskEnv(RandomEnv):
    """`RandomEnv` with an action mask in observations; raises ValueError for invalid actions.

    The observation is ``{"action_mask": [n] of 0.0 and 1.0, "observations": RandomEnv's}``. At least one action is
    valid.

    Settings: those of `RandomEnv`; the action space must be `Discrete`.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        if not isinstance(self.action_space, Discrete):
            raise ValueError(
                f"ActionMaskEnv: action masks need Discrete actions, not {self.action_space}. Set "
                "env_config={'action_space': Discrete(n)}."
            )
        self._num_actions = int(self.action_space.n)
        mask = Box(0.0, 1.0, (self._num_actions,), np.float32)
        self.observation_space = Dict({"action_mask": mask, "observations": self.observation_space})
        self.valid_actions: np.ndarray | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        obs, info = super().reset(seed=seed, options=options)
        return self._masked(obs), info

    def step(self, action: Any):
        if self.valid_actions is None or not self.valid_actions[action]:
            raise ValueError(
                f"The action {action} is not valid now: action_mask={self.valid_actions}. Call reset() "
                "before the first step, and choose an action with mask 1."
            )
        obs, *rest = super().step(action)
        return self._masked(obs), *rest

    def _draw(self) -> tuple[Any, Any]:
        if self.static_samples:
            # They were drawn before the mask was part of the space.
            mask = self.np_random.random(self._num_actions).astype(np.float32)
            observation, reward = super()._draw()
            return {"action_mask": mask, "observations": observation}, reward
        return super()._draw()

    def _masked(self, obs: dict[str, Any]) -> dict[str, Any]:
        mask = np.round(obs["action_mask"])
        if not mask.any():
            mask[self.np_random.integers(self._num_actions)] = 1.0
        self.valid_actions = mask
        return {**obs, "action_mask": mask}
