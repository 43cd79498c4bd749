"""RLlib's import path of the class `AddOneTsToEpisodesAndTruncate`."""

from jaxrl_stack.connectors.markers import AddOneTsToEpisodesAndTruncate

__all__ = ["AddOneTsToEpisodesAndTruncate"]
