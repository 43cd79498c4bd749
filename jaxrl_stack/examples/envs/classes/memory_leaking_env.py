"""Environment with a memory leak, to check that leak tests detect it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.examples.envs.classes.random_env import RandomEnv


class MemoryLeakingEnv(RandomEnv):
    """`RandomEnv` that leaks memory: stores a few more bytes in the second step of every episode."""

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__(config)
        self._leak: list[str] = []

    def step(self, action: Any):
        if self.steps == 1:
            self._leak.append(f"episode {len(self._leak)}")
        return super().step(action)
