"""The whole of a training run as one pytree."""

from __future__ import annotations

from typing import Any

import jax
from flax import struct

from jaxrl_stack.core.learner.learner_state import LearnerState


@struct.dataclass
class TrainState:
    """Everything that changes during training.

    Attributes:
        learner: Replicated over the devices.
        runner: Sharded: leaves ``[D, ...]`` outside of the mapped program. None on the actor driver, whose runners
            keep their own.
        replay: Sharded replay state, or None for an on-policy algorithm.
        timesteps: uint32[2] (hi, lo), lifetime env steps sampled; replicated.
    """

    learner: LearnerState
    runner: Any
    replay: Any
    timesteps: jax.Array
