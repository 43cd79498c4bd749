"""Training steps and the drivers that run them.

A training step samples or reads data, then makes updates; each kind of training step has its own file. A driver is an
object that runs training steps on the device or with actors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxrl_stack.utils.lazy_names import lazy_names

if TYPE_CHECKING:
    from jaxrl_stack.execution.rollout_ops import synchronous_parallel_sample

__all__ = ["synchronous_parallel_sample"]

__getattr__, __dir__ = lazy_names(__name__, {"rollout_ops": ("synchronous_parallel_sample",)})
