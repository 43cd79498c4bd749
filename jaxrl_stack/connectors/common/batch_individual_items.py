"""BatchIndividualItems under RLlib's import path."""

from jaxrl_stack.connectors.markers import BatchIndividualItems

__all__ = ["BatchIndividualItems"]
