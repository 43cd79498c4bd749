"""RLlib's import path of the class `BatchIndividualItems`."""

from jaxrl_stack.connectors.markers import BatchIndividualItems

__all__ = ["BatchIndividualItems"]
