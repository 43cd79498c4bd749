"""Storage of the connector pipelines of several modules as one component of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2


class PipelinesByModule(Checkpointable):
    """Pipelines of one kind (such as env-to-module), ``{module_id: pipeline}``.

    A checkpoint stores each pipeline in a separate folder, so that the policy of one module can be loaded without the
    others.

    Args:
        of: ``{module_id: pipeline}``.
    """

    def __init__(self, of: Mapping[str, ConnectorPipelineV2] | None = None):
        self._of = dict(of or {})

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the states of the pipelines, ``{module_id: state}``.

        Args:
            components: Ids of the modules to give; None gives all.
            not_components: Ids of modules to leave out.
            **kwargs: Handed to the pipelines.
        """
        wanted = selected(self._of, components, not_components, type(self).__name__)
        return {mid: own.get_state(**kwargs) for mid, own in self._of.items() if mid in wanted}

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the states of the pipelines to a result of `get_state`.

        Raises:
            ValueError: For an unknown module.
        """
        selected(self._of, state, None, type(self).__name__)
        for mid, own in state.items():
            self._of[mid].set_state(own)

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns ``(module_id, pipeline)`` of all pipelines."""
        return list(self._of.items())
