"""Re-exports the class `BatchIndividualItems` under its RLlib import path."""

from jaxrl_stack.connectors.markers import BatchIndividualItems

__all__ = ["BatchIndividualItems"]
