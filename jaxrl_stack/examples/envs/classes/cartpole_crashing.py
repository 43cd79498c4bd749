"""CartPole that fails or blocks at random, to test fault tolerance."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv

from jaxrl_stack.env.multi_agent_env import make_multi_agent
from jaxrl_stack.utils.error import EnvError


class CartPoleCrashing(CartPoleEnv):
    """CartPole that raises an `EnvError` or sleeps, at random or in a given step of each episode.

    Settings:
        p_crash (0.005), p_crash_reset (0.0): The chance to raise in a ``step()``, in a ``reset()``.
        crash_after_n_steps (None): The step of an episode that raises; ``(low, high)`` draws it from [low, high).
        crash_on_worker_indices (None): Only env runners with these indices raise; None: all.
        p_stall (0.0), p_stall_reset (0.0), stall_after_n_steps (None), stall_on_worker_indices (None): Likewise.
        stall_time_sec (None): Seconds to sleep; ``(low, high)`` draws it.
        init_time_s (0.0): Seconds that the constructor sleeps; ``(low, high)`` draws it.

    Crashes are not seeded: copies, and runners that are started again, should not crash in the same step.

    Args:
        config: The settings; an `EnvContext` says which environment this is.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        self.config = config or {}
        self._rng = np.random.default_rng()
        self._steps = 0
        self._due: dict[str, int | None] = {}
        time.sleep(self._drawn(self.config.get("init_time_s", 0.0)))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None):
        self._steps = 0
        self._due = {what: self._step_of_episode(what) for what in ("crash", "stall")}
        self._fault("_reset", "reset()")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any):
        self._steps += 1
        self._fault("", "step()")
        return super().step(action)

    def _fault(self, suffix: str, where: str) -> None:
        if self._happens("crash", suffix, 0.0 if suffix else 0.005):
            place = [getattr(self.config, name, 0) for name in ("worker_index", "vector_index")]
            raise EnvError(f"Crashed on purpose in {where} of environment {place[1]} of env runner {place[0]}.")
        if self._happens("stall", suffix, 0.0):
            time.sleep(self._drawn(self.config.get("stall_time_sec") or 0.0))

    def _happens(self, what: str, suffix: str, default: float) -> bool:
        indices = self.config.get(f"{what}_on_worker_indices")
        if indices and getattr(self.config, "worker_index", 0) not in indices:
            return False
        return self._rng.random() < self.config.get(f"p_{what}{suffix}", default) or self._due.get(what) == self._steps

    def _step_of_episode(self, what: str) -> int | None:
        step = self.config.get(f"{what}_after_n_steps")
        return int(self._rng.integers(*step)) if isinstance(step, tuple | list) else step

    def _drawn(self, seconds: Any) -> float:
        return self._rng.uniform(*seconds) if isinstance(seconds, tuple | list) else seconds


class MultiAgentCartPoleCrashing(make_multi_agent(CartPoleCrashing)):
    """Multi-agent CartPole in which each agent's environment may fail. Settings: `num_agents` (1), and the settings of
    `CartPoleCrashing`.
    """
