"""UnBatchToIndividualItems under RLlib's import path."""

from jaxrl_stack.connectors.markers import UnBatchToIndividualItems

__all__ = ["UnBatchToIndividualItems"]
