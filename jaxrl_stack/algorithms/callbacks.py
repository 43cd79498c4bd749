"""Old path of the callback classes; see `jaxrl_stack.callbacks.callbacks`."""

from __future__ import annotations

from jaxrl_stack.callbacks.callbacks import MemoryTrackingCallbacks, RLlibCallback
from jaxrl_stack.compat.renamed import absent_or_renamed

__all__ = ["MemoryTrackingCallbacks", "RLlibCallback"]


__getattr__ = absent_or_renamed(__name__, renamed={"DefaultCallbacks": RLlibCallback})
