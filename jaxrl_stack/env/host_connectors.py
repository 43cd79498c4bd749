"""Env-to-module connectors that run in Python, outside jit, and read unfinished episodes of several environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import Mode
from jaxrl_stack.connectors.host_connectors import run_host_connectors
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.metrics import CONNECTOR_PIPELINE_TIMER
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

_PIPELINE = "env_to_module_connector"


@dataclasses.dataclass(eq=False)
class HostConnectors:
    """Runs the connectors that are plain Python (host connectors) on the newest observation of each environment, once
    per observation.

    Attributes:
        pipeline: The whole env-to-module pipeline.
        module: ``() -> RLModule`` that acts, handed to the connectors.
        metrics: Logger for the connectors' durations and for metrics that connectors log.
        batch: Module inputs of the next action, ``{column: arrays [B, ...]}``.
        makes_obs: Whether OBS is a column that a connector added, not the episodes' last observations.
    """

    pipeline: Any
    module: Callable[[], Any]
    metrics: MetricsLogger
    batch: dict[str, Any] = dataclasses.field(default_factory=dict, init=False)
    makes_obs: bool = dataclasses.field(default=False, init=False)

    def run(self, episodes: list[SingleAgentEpisode], mode: Mode, module: Any = None) -> dict[str, Any]:
        """Runs the Python connectors on the last observation of each of n episodes; returns the resulting module
        inputs, ``{column: [n, ...]}``.

        Connectors get `module`; None for the module of all episodes.
        """
        made: set[str] = set()
        with self.metrics.log_time((_PIPELINE, CONNECTOR_PIPELINE_TIMER)):
            batch = run_host_connectors(
                self.pipeline,
                episodes=episodes,
                made=made,
                rl_module=self.module() if module is None else module,
                explore=mode == "explore",
                metrics=self.metrics,
                metrics_prefix_key=(_PIPELINE,),
            )
        self.makes_obs = Columns.OBS in made
        return batch

    def update(self, episodes: list[SingleAgentEpisode], mode: Mode, where: np.ndarray | None = None) -> dict[str, Any]:
        """Runs the Python connectors for the selected environments, and returns the module inputs of all environments,
        ``{column: [B, ...]}``.

        The mask `where` selects environments (bool ``[B]``; None: all). Their results are stored at their indices in
        `batch`, which is returned.
        """

        def replaced(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
            leaf = leaf.copy()
            leaf[where] = new
            return leaf

        if where is None:
            self.batch = self.run(episodes, mode)
        elif where.any():
            new = self.run([episodes[row] for row in np.flatnonzero(where)], mode)
            self.batch = jax.tree.map(replaced, self.batch, new)
        return self.batch
