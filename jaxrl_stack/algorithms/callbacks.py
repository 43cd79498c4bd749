"""Old place of the callback classes; see `jaxrl_stack.callbacks.callbacks`."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.callbacks.callbacks import MemoryTrackingCallbacks, RLlibCallback
from jaxrl_stack.utils.renamed import absent_or_renamed

__all__ = ["MemoryTrackingCallbacks", "RLlibCallback"]


def __getattr__(name: str) -> Any:
    return absent_or_renamed(__name__, name, renamed={"DefaultCallbacks": RLlibCallback})
