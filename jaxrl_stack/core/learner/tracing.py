"""Which update a learner's hooks are called in, while it is traced."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.loss_hooks import Trace


class Tracing(threading.local):
    """What hooks see of the update that is traced in this thread; other threads may use the learner meanwhile.

    Attributes:
        trace: The trace; None outside of one.
        pure_hook: Name of the hook that runs and must not read the learner; None without one.
        has_rows: What `LossHooks.has_rows` returns in it; None: all modules have rows.
    """

    trace: Trace | None = None
    pure_hook: str | None = None
    has_rows: Mapping[str, Any] | None = None

    def __reduce__(self) -> tuple[type[Tracing], tuple[()]]:
        """Copies of a learner are not being traced."""
        return Tracing, ()
