"""RLlib's import path of the class `InfiniteLookbackBuffer`, which is defined in `jaxrl_stack.episodes`."""

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer

__all__ = ["InfiniteLookbackBuffer"]
