"""A saved `RunnerState` on another number of devices, or of environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from jaxrl_stack.acting.device_rollout import DeviceRollout, RunnerState
from jaxrl_stack.acting.episode_window import redistributed
from jaxrl_stack.env.connector_states import histories, per_env_leaves, with_statistics
from jaxrl_stack.utils.named_leaves import from_named_leaves
from jaxrl_stack.utils.notices import notice_once


def restored_runner_state(
    stored: Mapping[str, Any],
    rollout: DeviceRollout,
    *,
    num_devices: int,
    num_envs: int,
    fresh: Callable[[jax.Array, int, Any], RunnerState],
) -> RunnerState:
    """A saved state of a runner, for this layout.

    On as many devices, with as many environments, it is bit for bit what was stored. On other devices the environments
    are dealt out anew in their order; random numbers follow from the stored keys. With another number of environments
    these start anew; statistics of connectors and of episodes stay.

    Args:
        stored: The named leaves.
        rollout: The static parts of sampling.
        num_devices: ``D`` here.
        num_envs: Environments here, over all devices.
        fresh: ``(key, environments, state of the env-to-module pipeline) -> RunnerState`` of fresh environments on one
            device.

    Returns:
        Leaves ``[D, ...]``.

    Raises:
        ValueError: If it is of another environment or other connectors.
    """
    if "reset" not in stored or np.ndim(stored["reset"]) != 2:
        raise ValueError("The state of the environments does not fit: it is not that of a runner on devices.")
    saved_devices, saved_each = np.shape(stored["reset"])
    per_device = num_envs // num_devices
    window_size = np.shape(stored["window/returns"])[-1]
    saved_rollout = dataclasses.replace(rollout, window_size=window_size)
    shapes = _shapes(saved_rollout, saved_each, saved_devices)
    saved: RunnerState = from_named_leaves(shapes, stored, "the environments")
    is_same_layout = (saved_devices, saved_each) == (num_devices, per_device)
    if is_same_layout and window_size == rollout.window_size:
        return saved
    window = redistributed(jax.tree.map(np.asarray, saved.window), num_devices, rollout.window_size)
    keys = saved.key
    if not is_same_layout:
        keys = jax.random.split(jax.random.fold_in(saved.key[0], num_devices), num_devices)
    if saved_devices * saved_each == num_envs:
        is_per_env = per_env_leaves(lambda n: rollout.init(jax.random.key(0), n))
        dealt = jax.tree.map(
            lambda leaf, is_per_env: _dealt_out(leaf, num_devices, is_per_env),
            *(dataclasses.replace(tree, window=None, key=None) for tree in (saved, is_per_env)),
        )
        return dataclasses.replace(dealt, window=window, key=keys)
    notice_once(
        f"The checkpoint is of {saved_devices * saved_each} environments, and here are {num_envs}: all of them start "
        f"anew. Statistics and everything that was learned are kept."
    )
    connectors = jax.tree.map(lambda leaf: leaf[0], saved.env_to_module)
    shards = [fresh(key, per_device, connectors) for key in keys]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *(dataclasses.replace(s, key=None) for s in shards))
    return dataclasses.replace(stacked, window=window, key=keys)


def with_connector_states(state: RunnerState, rollout: DeviceRollout, env_to_module: Any) -> RunnerState:
    """A runner's state with the statistics, but not the histories, of another state of the env-to-module pipeline.

    Args:
        state: Leaves ``[D, ...]``.
        rollout: The static parts of sampling.
        env_to_module: State of the pipeline of any number of environments, without device axis.
    """
    merged = with_statistics(state.env_to_module, env_to_module, histories(rollout.env_to_module))
    return dataclasses.replace(state, env_to_module=merged)


def _shapes(rollout: DeviceRollout, num_envs: int, num_devices: int) -> RunnerState:
    """Shapes of a runner's state, with a leading device axis."""
    shapes = jax.eval_shape(lambda key: rollout.init(key, num_envs), jax.random.key(0))
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_devices, *leaf.shape), leaf.dtype), shapes)


def _dealt_out(leaf: Any, num_devices: int, is_per_env: bool) -> np.ndarray:
    if is_per_env:
        return np.reshape(leaf, (num_devices, -1, *np.shape(leaf)[2:]))
    # Merged over the devices after every rollout, so the same on all of them.
    return np.broadcast_to(leaf[0], (num_devices, *np.shape(leaf)[1:]))
