"""Re-exports the class `UnBatchToIndividualItems` under its RLlib import path."""

from jaxrl_stack.connectors.markers import UnBatchToIndividualItems

__all__ = ["UnBatchToIndividualItems"]
