"""The host connectors of an env-to-module pipeline, run on the running episodes of a vector of environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import Mode
from jaxrl_stack.connectors.host_connectors import run_host_connectors
from jaxrl_stack.env.vector.interface import VectorStep
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger


class HostConnectors:
    """What the host connectors make of each environment's last observation, every observation once.

    Args:
        pipeline: The whole env-to-module pipeline.
        module: ``() -> RLModule`` that acts, handed to the connectors.
        metrics: Gets their durations, and what they log.

    Attributes:
        batch: ``{column: arrays [B, ...]}`` to act on next.
    """

    def __init__(self, pipeline: Any, module: Callable[[], Any], metrics: MetricsLogger):
        self._pipeline = pipeline
        self._module = module
        self._metrics = metrics
        self.batch: dict[str, Any] = {}

    def run(self, episodes: list[SingleAgentEpisode], mode: Mode) -> dict[str, Any]:
        """What the connectors make of the episodes' last observations, ``{column: [n, ...]}``."""
        return run_host_connectors(
            self._pipeline,
            episodes=episodes,
            rl_module=self._module(),
            explore=mode == "explore",
            metrics=self._metrics,
        )

    def start(self, episodes: list[SingleAgentEpisode], mode: Mode) -> None:
        """Begin with new episodes everywhere."""
        self.batch = self.run(episodes, mode)

    def after_step(self, step: VectorStep, episodes: list[SingleAgentEpisode], mode: Mode) -> dict[str, Any]:
        """The batch after a step, before any reset. Where a step only reset, connectors have seen the observation."""
        if step.valid is None:
            self.batch = self.run(episodes, mode)
        else:
            self._update_rows(step.valid, episodes, mode)
        return self.batch

    def after_reset(self, step: VectorStep, episodes: list[SingleAgentEpisode], mode: Mode) -> None:
        """Take in the first observations of the episodes that began."""
        self._update_rows(step.resets, episodes, mode)

    def _update_rows(self, where: np.ndarray, episodes: list[SingleAgentEpisode], mode: Mode) -> None:
        rows = np.flatnonzero(where)
        if not len(rows):
            return

        def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
            leaf = leaf.copy()
            leaf[rows] = new
            return leaf

        self.batch = jax.tree.map(replaced, self.batch, self.run([episodes[row] for row in rows], mode))
