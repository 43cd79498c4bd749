"""Whether what sampling and updates take is there: on the host, and on the devices of a learner."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import sequence_length
from jaxrl_stack.env.registry import get_env_creator, resolve_env
from jaxrl_stack.utils.devices import joined_devices
from jaxrl_stack.utils.memory import (
    HOST_ENV_BYTES,
    MemoryEstimate,
    available_host_bytes,
    available_memory,
    bytes_of_shapes,
    host_memory,
    require_memory,
)
from jaxrl_stack.utils.resources import is_one_machine

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.utils.devices import Device


def recurrent_bytes(
    module: RLModule | None, num_steps: int | None = None, *, keeps_state_out: bool = False
) -> dict[str, int]:
    """What a module's recurrent state adds to the columns of a block ``[T, B]``, ``{column: bytes per row}``.

    Args:
        module: The module that acts; None if there is none yet. {} for it, and for one without recurrent state.
        num_steps: T of a block that has the states at chunk starts; None: it has those of all steps.
        keeps_state_out: Whether it has the states after the steps, too.
    """
    if module is None or not module.is_stateful():
        return {}
    state = state_bytes(module)
    starts = 1.0 if num_steps is None else -(-num_steps // sequence_length(module, num_steps)) / num_steps
    after = {Columns.STATE_OUT: state} if keeps_state_out else {}
    return {Columns.RESETS: 1, Columns.STATE_IN: math.ceil(state * starts), **after}


def state_bytes(module: RLModule) -> int:
    """Bytes of a module's recurrent state of one environment."""
    return bytes_of_shapes(jax.eval_shape(module.get_initial_state))


def batch_remedy(config: AlgorithmConfig) -> str:
    """What to do where a rollout or a train batch does not fit; names the settings."""
    names = ("num_envs_per_env_runner", "rollout_fragment_length", "train_batch_size_per_learner")
    given = [f"{name}={getattr(config, name)!r}" for name in names]
    return (
        f"Lower {given[0]}, {given[1]} or {given[2]}, or make observations smaller (fewer or smaller frames, "
        f"uint8 instead of float32)."
    )


def require_host_memory(config: AlgorithmConfig, rollout: MemoryEstimate, train_batch: MemoryEstimate) -> None:
    """Refuse what no machine that is known can hold.

    Args:
        config: The algorithm's config.
        rollout: What one EnvRunner records at a time.
        train_batch: The batch of one update.

    Raises:
        ValueError: With the settings to change.
    """
    free, on_actors = (available_host_bytes(), "are free on this machine"), (None, "")
    if (config.num_sampling_actors or config.num_learners) and is_one_machine():
        host = host_memory()
        on_actors = (None if host is None else host.total, "are all that this machine has")

    def require(estimate: MemoryEstimate, num_actors: Any, remedy: str) -> None:
        # Other machines of a cluster may have more than this one: what never comes here is not judged.
        limit, where = on_actors if num_actors else free
        require_memory(estimate, limit, where=where, remedy=remedy)

    require(train_batch, config.num_learners, batch_remedy(config))
    if rollout.num_bytes > train_batch.num_bytes:
        require(rollout, config.num_sampling_actors, batch_remedy(config))
    if not _makes_env_objects(config):
        return
    num_envs, num_runners = int(config.num_envs_per_env_runner), config.num_sampling_actors
    environments = MemoryEstimate(
        "environments",
        {"env runner(s)": max(1, num_runners), "envs": num_envs},
        {"Python object": HOST_ENV_BYTES},
        is_complete=False,
    )
    fewer_runners = f" or num_env_runners={num_runners}" if num_runners else ""
    require(environments, num_runners, f"Lower num_envs_per_env_runner={num_envs}{fewer_runners}.")


def _makes_env_objects(config: AlgorithmConfig) -> bool:
    """Whether every environment is known to be a Python object of its own."""
    if gym.VectorizeMode(config.gym_env_vectorize_mode) is gym.VectorizeMode.VECTOR_ENTRY_POINT:
        return False
    # What a registered creator makes is seen only when it is called.
    is_registered = isinstance(config.env, str) and get_env_creator(config.env) is not None
    return not is_registered and not resolve_env(config.env, config.env_config).is_vector


def require_device_memory(devices: Sequence[Device], whole: MemoryEstimate, remedy: str) -> None:
    """Refuse what the devices of a learner cannot hold.

    Args:
        devices: Of this process. CPU devices share the machine's memory, accelerators have their own, and equal parts
            in it.
        whole: What they hold together with those of all joined processes; its first count is what they divide.
        remedy: What to do where it does not fit; names the settings.

    Raises:
        ValueError: With the settings to change.
    """
    (divided, number), *others = whole.counts.items()
    num_devices = len(joined_devices([*devices]))

    def part_of(where: str, num_parts: int) -> MemoryEstimate:
        counts = dict([(divided, -(-number * num_parts // num_devices)), *others])
        return dataclasses.replace(whole, what=f"part of the {whole.what} {where}", counts=counts)

    if devices[0].platform == "cpu":
        own = whole if num_devices == len(devices) else part_of("of this process", len(devices))
        require_memory(own, available_memory(devices[0]), where="are free on this machine", remedy=remedy)
        return
    for device in devices:
        part = part_of(f"on {device}", 1)
        require_memory(part, available_memory(device), where="are free there", remedy=remedy)


def free_device_memory(devices: Sequence[Device]) -> int | None:
    """Bytes that are free for what the devices hold together, those of other joined processes like these, in equal
    parts; None if that is not known."""
    places = devices[:1] if devices[0].platform == "cpu" else devices
    sizes = [size for size in map(available_memory, places) if size is not None]
    num_processes = len(joined_devices([*devices])) // len(devices)
    return min(sizes) * len(places) * num_processes if sizes else None
