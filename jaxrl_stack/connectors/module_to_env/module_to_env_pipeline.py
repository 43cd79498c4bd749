"""The pipeline between module and environment."""

from __future__ import annotations

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import PURE_SIGNATURE, ConnectorV2


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """From a module's outputs to the actions for the environments.

    Columns have the leading axis B. After the last connector the batch holds ACTIONS (as the module gave them),
    ACTIONS_FOR_ENV, and ACTION_LOGP when exploring.
    """

    def checked_host_connectors(self) -> list[tuple[str, ConnectorV2]]:
        """Empty: here every connector is compiled.

        Raises:
            TypeError: There is a host connector.
        """
        names = [*([type(self).__name__] if self.is_host_connector else []), *self.host_connectors]
        if names:
            raise TypeError(
                f"Connector(s) {', '.join(map(repr, names))} override `__call__`, which only the env-to-module and "
                "the learner pipeline take. Between module and environment write a pure function, which is compiled "
                f"together with the module:\n{PURE_SIGNATURE}"
            )
        return []
