"""RLlib's import path of the class `InfiniteLookbackBuffer`."""

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["InfiniteLookbackBuffer"]
