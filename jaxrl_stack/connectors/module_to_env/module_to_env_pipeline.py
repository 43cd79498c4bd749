"""The pipeline between module and environment."""

from __future__ import annotations

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """From a module's outputs to the actions for the environments.

    Columns have the leading axis B. Behind the last piece the batch holds ACTIONS (as the module gave them),
    ACTIONS_FOR_ENV, and ACTION_LOGP when exploring.
    """
