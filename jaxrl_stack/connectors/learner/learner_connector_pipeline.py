"""Pipeline of connectors that convert sampled steps to the columns that a learner's loss reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.host_connectors import columns_of_episodes, run_host_connectors_of_learner

if TYPE_CHECKING:
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """Pipeline that converts sampled steps ``[T, B, ...]`` to the columns that a loss reads.

    Columns are ``[T, B, ...]``: OBS (the module's inputs, as recorded after the env-to-module pipeline),
    ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, LOSS_MASK, the module's outputs, and FINAL_OBS (the module's
    input made from the observation before the reset; meaningful where truncated and in the last row, and where
    terminated if a connector says that it `needs_all_final_obs`).
    """

    setting = "learner_connector"
    env_axis = 1
    compiles_calls = True

    @property
    def needs_all_final_obs(self) -> bool:
        """Whether any connector of the pipeline reads the final observations (FINAL_OBS) of terminated episodes, in
        addition to the final observations of truncated episodes.
        """
        return any(connector.needs_all_final_obs for connector in self)

    def _run_host_connectors(self, *, batch: dict[str, Any], **arguments: Any) -> dict[str, Any]:
        columns = run_host_connectors_of_learner(self, **arguments)
        if columns:
            raise ValueError(
                f"Host connectors (they override `__call__`) of this {type(self).__name__} add the columns "
                f"{sorted(columns)}, with one item per step of an episode. These columns cannot be added to `batch`, "
                "because the episode and the step of its rows are unknown: call `Learner.update(episodes=...)` instead."
            )
        return batch

    def columns_from_host_connectors(
        self, episodes: Sequence[SingleAgentEpisode], **arguments: Any
    ) -> list[dict[str, Any]]:
        """Runs the host connectors, which may change the episodes, and returns the columns that they add to each
        episode.

        Args:
            episodes: Episodes or chunks of an update.
            **arguments: See `run_host_connectors`.

        Returns:
            Per episode ``{column: arrays [len(episode), ...]}``.
        """
        return columns_of_episodes(run_host_connectors_of_learner(self, episodes=episodes, **arguments), episodes)
