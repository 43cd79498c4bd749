"""RLlib's import path of the circular buffer."""

from __future__ import annotations

from jaxrl_stack.replay.circular_buffer import CircularBuffer

__all__ = ["CircularBuffer"]
