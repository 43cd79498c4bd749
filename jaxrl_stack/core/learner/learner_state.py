"""State of a Learner: all arrays that change during training, as one pytree."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import numpy as np
from flax import struct

STATE_COMPONENTS = ("rl_module", "optimizer", "extra", "connector", "host_connector", "counters", "metrics_logger")
"""Components of the result of `Learner.get_state`."""


@struct.dataclass
class LearnerState:
    """State of a Learner, such as parameters, optimizer states and counters, replicated over devices.

    The state contains parameters and other module state, states of optimizers, algorithm and connectors, counters and
    PRNG key. Every update donates buffers of the old state.

    Attributes:
        params: Trained parameters, ``{ref: array}`` with ``ref = "module_id/path/to/leaf"``.
        rest: State of the modules that is not trained (batch statistics, PRNG streams), ``{ref: array}``.
        optimizers: ``{module_id: {optimizer_name: optax state}}``.
        extra: State of the algorithm besides networks, for example ``{"curr_kl_coeff": {module_id: float32}}``.
        connector: State of the learner connector pipeline.
        timesteps: uint32[2] (hi, lo), lifetime env steps at the end of the last update. Schedules are evaluated there,
            so that the first update uses their values at 0.
        num_updates: uint32, number of updates so far; the ``weights_seq_no`` of the parameters.
        key: PRNG key; the keys of shuffles and stochastic modules are derived from it and ``num_updates``.
    """

    params: dict[str, jax.Array]
    rest: dict[str, jax.Array]
    optimizers: dict[str, dict[str, Any]]
    extra: dict[str, Any]
    connector: Any
    timesteps: jax.Array | np.ndarray
    num_updates: jax.Array
    key: jax.Array
    shared_by_members: ClassVar[tuple[str, ...]] = ("timesteps", "num_updates")


def kept_where_it_fits(kept: Any, fresh: Any) -> Any:
    """Merges an earlier state, `kept`, into a new state, `fresh`, and returns the result.

    The result has the value of `kept` where both have a value with the same key, structure and array shapes, else the
    value of `fresh`. Dicts are compared entry by entry.

    For example, an earlier optimizer state is kept, unless it is missing or belongs to other parameters.
    """
    if isinstance(fresh, dict) and isinstance(kept, dict):
        return {key: kept_where_it_fits(kept.get(key), value) for key, value in fresh.items()}
    fits = jax.tree.structure(kept) == jax.tree.structure(fresh) and all(
        np.shape(a) == np.shape(b) for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(fresh), strict=True)
    )
    return kept if fits else fresh
