"""The pipeline in front of a learner's loss."""

from __future__ import annotations

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2


class LearnerConnectorPipeline(ConnectorPipelineV2):
    """From a recorded block of steps to the columns that a loss reads.

    Columns are ``[T, B, ...]``: OBS (the module's inputs, as recorded behind the env-to-module pipeline),
    ACTIONS, REWARDS, TERMINATEDS, TRUNCATEDS, LOSS_MASK, the module's outputs, and FINAL_OBS (the module's
    input made from the observation before the reset; meaningful where truncated and in the last row).
    """

    env_axis = 1
