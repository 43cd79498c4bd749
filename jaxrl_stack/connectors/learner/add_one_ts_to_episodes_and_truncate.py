"""AddOneTsToEpisodesAndTruncate under RLlib's import path."""

from jaxrl_stack.connectors.markers import AddOneTsToEpisodesAndTruncate

__all__ = ["AddOneTsToEpisodesAndTruncate"]
