"""Memory checks of sampling and updates, on the host and on a learner's devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.env.registry import get_env_creator, resolve_env
from jaxrl_stack.utils.devices import joined_devices
from jaxrl_stack.utils.memory import (
    MemoryEstimate,
    available_host_bytes,
    available_memory,
    bytes_of_shapes,
    host_memory,
    require_memory,
)
from jaxrl_stack.utils.resources import is_one_machine
from jaxrl_stack.utils.spaces import shape_dtype_struct

if TYPE_CHECKING:
    from jaxrl_stack.acting.device_rollout import RunnerState
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.layouts import Layout
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.plans import Plan
    from jaxrl_stack.utils.devices import Device


HOST_ENV_BYTES = 1024
"""Minimum bytes of one Python environment: a `gymnasium.Env` with two tiny spaces and a generator has 2 KB."""
LEAST_PER_STEP = {
    Columns.REWARDS: np.dtype(np.float32).itemsize,
    **dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), np.dtype(np.bool_).itemsize),
}
"""Bytes of the columns that each recorded step has, whatever the spaces are: ``{column: bytes}``."""


# ------------------------------------------------------------------------------------------------------- estimates


def sampled_memory(facts: Facts, plan: Plan) -> MemoryEstimate:
    """Estimates the memory of the largest rollout that one EnvRunner samples in a training step. `plan` contains the
    rollouts' numbers of steps and array layouts.

    On the device, all environments sample all shares together, with single frames if the step supports these. A runner
    on the host records whole observations, and sends each share separately.
    """
    num_envs = int(facts.config.num_envs_per_env_runner)
    nothing = MemoryEstimate("rollout", {"envs": 0, "steps": 0}, {})
    if not facts.recorded:
        return nothing
    estimates = [nothing]
    for samples in plan.samples:
        estimates.append(_of_block("rollout", facts, num_envs, *facts.sampled_at_once(samples)))
    return max(estimates, key=lambda estimate: estimate.num_bytes)


def batch_memory(facts: Facts, plan: Plan) -> MemoryEstimate:
    """Estimates the memory of the train batch of one update.

    It is the plan's estimate, or everything sampled for `Plan.update`, or else rows of single steps, of which only
    observations and actions are known without environments.
    """
    if plan.batch_memory is not None:
        return plan.batch_memory
    if not facts.recorded or plan.update is None:
        rows = {"rows": plan.rows_per_update}
        of_modules = {}
        for mid, spaces in facts.module_spaces.items():
            named = zip((Columns.OBS, Columns.ACTIONS), spaces, strict=True)
            of_modules[mid] = {name: shape_dtype_struct(space, (plan.rows_per_update,)) for name, space in named}
        shapes = _by_column(of_modules)
        return MemoryEstimate.of_shapes("train batch", rows, shapes, is_complete=False)
    samples = plan.update.samples
    num_envs = int(facts.config.num_envs_per_env_runner) * samples.num_shares
    return _of_block("train batch", facts, num_envs, samples.num_steps, facts.train_layouts(samples))


def opponents_memory(runner: RunnerState, num_devices: int) -> MemoryEstimate:
    """Estimates the memory of the policy snapshots that play as opponents.

    A block needs the weights and connector states of its snapshot besides the stack, because several blocks can play
    one snapshot.

    Args:
        runner: Shapes of the state of one device.
        num_devices: Number of devices.
    """
    stack, playing = runner.opponents, runner.modules[OPPONENTS]
    weights = bytes_of_shapes((stack.params, stack.rest))
    columns = {
        "weights": weights,
        "env_to_module": bytes_of_shapes(stack.env_to_module),
        "weights_of_blocks": weights,
        "env_to_module_of_blocks": bytes_of_shapes(playing.env_to_module),
    }
    counts = {"devices": num_devices, "snapshots": stack.numbers.size}
    return MemoryEstimate("opponents", counts, {name: num_devices * size for name, size in columns.items()})


def _of_block(what: str, facts: Facts, num_envs: int, num_steps: int, layouts: Mapping[str, Layout]) -> MemoryEstimate:
    """Estimates the memory of the columns that `num_envs` environments record in `num_steps` steps.

    Modules without an entry in `layouts` have columns in the layout in which EnvRunners record them, ``[T, B, ...]``.
    """
    counts, recorded, rows = {"envs": num_envs, "steps": num_steps}, facts.recorded, facts.num_rows(num_envs)
    of_modules = {mid: own.block(num_steps, rows[mid], layouts.get(mid)) for mid, own in recorded.items()}
    is_complete = all(own.is_complete for own in recorded.values())
    return MemoryEstimate.of_shapes(what, counts, _by_column(of_modules), is_complete=is_complete)


def _by_column(of_modules: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the dicts ``{column: shapes}`` of all modules into one. With several modules, the keys of the result are
    ``module_id/column``.
    """
    if len(of_modules) == 1:
        return dict(*of_modules.values())
    return {f"{mid}/{name}": own for mid, columns in of_modules.items() for name, own in columns.items()}


# ---------------------------------------------------------------------------------------------------------- limits


def batch_remedy(config: AlgorithmConfig) -> str:
    """Returns advice for an error message if a rollout or a train batch does not fit into memory; names the settings to
    lower.
    """
    names = ("num_envs_per_env_runner", "rollout_fragment_length", "train_batch_size_per_learner")
    given = [f"{name}={getattr(config, name)!r}" for name in names]
    return (
        f"Lower {given[0]}, {given[1]} or {given[2]}, or make observations smaller (fewer or smaller frames, "
        f"uint8 instead of float32)."
    )


def least_memory(config: AlgorithmConfig) -> MemoryEstimate:
    """Returns a lower bound of the memory that training with a config needs.

    The bound is the memory of the rollout or of the train batch, whichever is larger. The bound holds for all spaces
    and modules, because only numbers of environments, steps and rows determine it.

    This check of counts refuses excessive sizes before environments and actors are created. The actual memory is
    estimated after the training step's plan.
    """
    envs = {"envs": int(config.num_envs_per_env_runner), "steps": config.get_rollout_fragment_length(1)}
    rows = {"rows": int(config.total_train_batch_size)}
    rollout, batch = (
        MemoryEstimate.of_rows(what, counts, LEAST_PER_STEP, is_complete=False)
        for what, counts in (("rollout", envs), ("train batch", rows))
    )
    return batch if batch.num_bytes > rollout.num_bytes else rollout


def require_host_memory(config: AlgorithmConfig, estimate: MemoryEstimate, num_actors: Any, remedy: str = "") -> None:
    """Raises ValueError if `estimate`, for example the estimated memory of a train batch, exceeds the memory of this
    machine.

    The limit is the free memory. If actors need the memory, the limit is the installed memory instead, and the check is
    made only if the cluster has no other machine and cannot grow.

    Args:
        config: The algorithm's config.
        estimate: Required memory.
        num_actors: Number of actors that each need it; 0 for this process.
        remedy: Remedy for the message; `batch_remedy` by default.

    Raises:
        ValueError: If it does not fit; names the settings.
    """
    limit, where = available_host_bytes(), "are free on this machine"
    if num_actors:
        # Other machines of a cluster may have more than this one: what never comes here is not judged.
        host = host_memory() if is_one_machine() else None
        limit, where = None if host is None else host.total, "are all that this machine has"
    require_memory(estimate, limit, where=where, remedy=remedy or batch_remedy(config))


def require_counts_on_host(config: AlgorithmConfig) -> None:
    """Raises ValueError if the config's numbers of environments, rollout steps or train batch rows need more memory
    than the machine has.

    Computes lower bounds of the memory; creates no environments or arrays.

    Args:
        config: The algorithm's config.

    Raises:
        ValueError: If it does not fit; names the settings.
    """
    num_envs, num_runners = int(config.num_envs_per_env_runner), config.num_sampling_actors
    least = least_memory(config)
    require_host_memory(config, least, config.num_learners if "rows" in least.counts else num_runners)
    if not _makes_env_objects(config):
        return
    counts = {"env runner(s)": max(1, num_runners), "envs": num_envs}
    environments = MemoryEstimate.of_rows("environments", counts, {"Python object": HOST_ENV_BYTES}, is_complete=False)
    fewer_runners = f" or num_env_runners={num_runners}" if num_runners else ""
    remedy = f"Lower num_envs_per_env_runner={num_envs}{fewer_runners}."
    require_host_memory(config, environments, num_runners, remedy)


def _makes_env_objects(config: AlgorithmConfig) -> bool:
    """Whether training certainly creates one Python object per environment.

    The answer is needed before training creates environments. It is False for an environment registered with
    `register_env`: whether one object contains several environments is known only after a call of the registered
    creator.
    """
    if not config.is_online:
        return False
    if gym.VectorizeMode(config.gym_env_vectorize_mode) is gym.VectorizeMode.VECTOR_ENTRY_POINT:
        return False
    # What a registered creator makes is seen only when it is called.
    is_registered = isinstance(config.env, str) and get_env_creator(config.env) is not None
    return not is_registered and not resolve_env(config.env, config.env_config).is_vector


def require_device_memory(devices: Sequence[Device], whole: MemoryEstimate, remedy: str) -> None:
    """Raises ValueError if the estimated memory of arrays exceeds the free memory of the learner's devices.

    Args:
        devices: Devices of this process. CPU devices share the machine's memory; accelerators have their own, with
            equal parts.
        whole: Memory of the devices of all joined processes together; its first count is divided between devices.
        remedy: Remedy for the message; names the settings.

    Raises:
        ValueError: If it does not fit; names the settings.
    """
    num_devices = len(joined_devices([*devices]))
    if devices[0].platform == "cpu":
        own = whole
        if num_devices > len(devices):
            own = whole.part(f"part of the {whole.what} of this process", len(devices), num_devices)
        require_memory(own, available_memory(devices[0]), where="are free on this machine", remedy=remedy)
        return
    for device in devices:
        part = whole.part(f"part of the {whole.what} on {device}", 1, num_devices)
        require_memory(part, available_memory(device), where="are free there", remedy=remedy)


def free_device_memory(devices: Sequence[Device]) -> int | None:
    """Returns the free device memory in bytes for arrays that are divided equally over all devices.

    This is the least free memory of a device, times the number of devices. All CPU devices of a process count as one
    device, because they share the host's memory. Other processes are assumed to have as much free memory as this one.
    Returns None if the free memory is unknown.
    """
    places = devices[:1] if devices[0].platform == "cpu" else devices
    sizes = [size for size in map(available_memory, places) if size is not None]
    num_processes = len(joined_devices([*devices])) // len(devices)
    return min(sizes) * len(places) * num_processes if sizes else None
