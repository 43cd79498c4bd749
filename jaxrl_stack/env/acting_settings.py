"""Settings for choosing actions in env runners: the device that runs the policies, and the config values that RLModules
read while they act.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def policy_device(config: AlgorithmConfig) -> Any:
    """Returns the JAX device for the policies of an env runner that steps its environments in Python.

    The device is the runner's first GPU if ``num_gpus_per_env_runner`` > 0, else a CPU.
    """
    gpus = [d for d in jax.local_devices() if d.platform != "cpu"] if config.num_gpus_per_env_runner else []
    return gpus[0] if gpus else jax.local_devices(backend="cpu")[0]


def traced_settings(config: AlgorithmConfig, module_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the modules' config settings that are arguments of compiled programs, so that new values need no
    compilation: ``{module_id: {name: value or schedule}}``.
    """
    return {mid: config.get_config_for_module(mid).traced_values() for mid in module_ids}


def static_settings(config: AlgorithmConfig, module_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the modules' config settings that are constants in compiled programs, ``{module_id: {name: number}}``."""
    return {
        mid: {name: config.get_config_for_module(mid).static_value(name) for name in config._static_settings}
        for mid in module_ids
    }
