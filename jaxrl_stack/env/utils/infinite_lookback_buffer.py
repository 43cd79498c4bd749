"""InfiniteLookbackBuffer under RLlib's import path."""

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["InfiniteLookbackBuffer"]
