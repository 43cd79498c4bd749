"""Re-exports the class `CircularBuffer` under its RLlib import path."""

from __future__ import annotations

from jaxrl_stack.replay.circular_buffer import CircularBuffer

__all__ = ["CircularBuffer"]
