"""Environment that raises an exception in its second episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.spaces import Box


class TenStepErrorEnv(gym.Env):
    """Terminates the first episode at step 10, and raises an Exception at step 10 of the second.

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        self.step_count = 0
        self.last_eps_errored = False
        self.observation_space = Box(0, 1, (1,))
        self.action_space = Box(0, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        super().reset(seed=seed)
        self.step_count = 0
        return self.observation_space.sample(), {"last_eps_errored": self.last_eps_errored}

    def step(self, action: Any):
        self.step_count += 1
        ends = self.step_count == 10
        if ends and self.last_eps_errored:
            raise Exception("Test error: TenStepErrorEnv fails on purpose at step 10 of its second episode.")
        info = {"last_eps_errored": self.last_eps_errored}
        self.last_eps_errored = self.last_eps_errored or ends
        return self.observation_space.sample(), 0.0, ends, False, info
