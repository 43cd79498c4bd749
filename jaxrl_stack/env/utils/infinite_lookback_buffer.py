"""Re-exports the class `InfiniteLookbackBuffer` of `jaxrl_stack.episodes` under its RLlib import path."""

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["InfiniteLookbackBuffer"]
