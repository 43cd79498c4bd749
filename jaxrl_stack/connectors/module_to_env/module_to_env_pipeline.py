"""Pipeline of connectors between module and environment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import PURE_SIGNATURE, ConnectorV2
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import of_steps
from jaxrl_stack.utils.nested import unbatch


class ModuleToEnvPipeline(ConnectorPipelineV2):
    """Pipeline that converts outputs of the module to actions for the environments.

    Columns have the leading axis B. After the last connector the batch holds ACTIONS (as the module gave them),
    ACTIONS_FOR_ENV, and ACTION_LOGP when exploring.

    Called by hand with ``{column: arrays}``, ``column[i]`` of what comes back is environment i's part: nested columns
    (recurrent states, actions of Dict and Tuple spaces) are lists. With ``STATE_OUT`` the module's outputs are
    sequences of one step ``[B, 1, ...]``, and lose that axis.
    """

    setting = "module_to_env_connector"

    def _given(self, batch: Any) -> Any:
        return of_steps(batch, lambda x: x[:, 0]) if batch and Columns.STATE_OUT in batch else batch

    def _handed_over(self, columns: dict[str, Any], rl_module: Any, episodes: Sequence[Any]) -> dict[str, Any]:
        if Columns.ACTIONS not in columns:
            return columns
        is_nested = {name: isinstance(column, dict | list | tuple) for name, column in columns.items()}
        return {name: unbatch(column) if is_nested[name] else column for name, column in columns.items()}

    def _leading_host_connectors(self) -> list[tuple[str, ConnectorV2]]:
        """Returns []: all connectors of this pipeline must be pure, because they are compiled.

        Raises:
            TypeError: There is a host connector.
        """
        if names := list(self.host_connectors):
            raise TypeError(
                f"Connector(s) {', '.join(map(repr, names))} override `__call__`, which only the env-to-module and "
                "the learner pipeline support. In the module-to-env pipeline, override `apply` with a pure function, "
                f"which is compiled together with the module:\n{PURE_SIGNATURE}"
            )
        return []
