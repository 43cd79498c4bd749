"""RLlib's import path of the class `UnBatchToIndividualItems`."""

from jaxrl_stack.connectors.markers import UnBatchToIndividualItems

__all__ = ["UnBatchToIndividualItems"]
