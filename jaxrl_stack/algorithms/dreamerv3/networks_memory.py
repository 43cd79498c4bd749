"""Estimated memory of the networks and of one update, before anything is allocated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.utils.memory import MemoryEstimate, available_memory, require_memory

if TYPE_CHECKING:
    from jaxrl_stack.utils.devices import Device

_LEAST_TO_CHECK = 1024
"""GRU units from which on it is checked: smaller networks take less than the libraries that run them."""


def networks_memory(config: Any, module: Any) -> MemoryEstimate:
    """Estimates the bytes that networks and updates need: parameters, gradients, optimizer states, and the recorded and
    imagined states stored for the gradient. Layer activations are not included.

    Args:
        config: The algorithm's config.
        module: The module, or the shapes that ``nnx.eval_shape`` returned for it.
    """
    parameters = jax.tree.leaves(nnx.state(module, nnx.Param))
    number = sum(math.prod(leaf.shape) for leaf in parameters)
    size = MODEL_SIZES[config.model_size]
    features = size.gru_units + size.num_categoricals * size.num_classes
    num_states = (config.horizon_H + 1) * config.items_per_update // max(1, config.num_learners)
    # Adam and LaProp keep two moments of each parameter.
    columns = {"parameters": 4 * number, "gradients": 4 * number, "optimizers": 4 * 2 * number}
    columns["imagined states"] = 4 * num_states * features
    return MemoryEstimate(f"networks of model_size={config.model_size!r}", {"parameters": number}, columns, False)


def require_networks_fit(config: Any, spec: Any, devices: Sequence[Device]) -> None:
    """Raises before allocation if the networks do not fit on a device.

    Args:
        config: The algorithm's config.
        spec: Complete spec of the module.
        devices: Devices, each of which holds all networks.

    Raises:
        ValueError: If they do not fit; names the sizes and the remedy.
    """
    if MODEL_SIZES[config.model_size].gru_units < _LEAST_TO_CHECK:
        return
    estimate = networks_memory(config, nnx.eval_shape(lambda: spec.build(seed=0)))
    for device in devices:
        require_memory(
            estimate,
            available_memory(device),
            where=f"are free on {device}",
            remedy=f"Use a smaller one than training(model_size={config.model_size!r}), or lower batch_size_B="
            f"{config.batch_size_B}, batch_length_T={config.batch_length_T} or horizon_H={config.horizon_H}.",
        )
