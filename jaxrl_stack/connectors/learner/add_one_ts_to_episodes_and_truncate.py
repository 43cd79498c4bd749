"""Re-exports the class `AddOneTsToEpisodesAndTruncate` under its RLlib import path."""

from jaxrl_stack.connectors.markers import AddOneTsToEpisodesAndTruncate

__all__ = ["AddOneTsToEpisodesAndTruncate"]
