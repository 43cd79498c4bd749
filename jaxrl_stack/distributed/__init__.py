"""Programs that run on several processes: a launcher starts copies of one script, and `initialize` connects them.

Every process builds the same algorithm and calls the same methods in the same order. The learner's devices are those of
all processes, and each process steps the JAX environments of its own ones. Without processes of one's own, Ray starts
them: ``learners(num_learners=...)``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import jax

from jaxrl_stack.utils.actor_setup import is_backend_up

__all__ = ["initialize"]

_VARIABLES = {
    "coordinator_address": ("JAX_COORDINATOR_ADDRESS",),
    "num_processes": ("JAX_NUM_PROCESSES",),
    # Kubernetes numbers the pods of an indexed Job with the second one.
    "process_id": ("JAX_PROCESS_ID", "JOB_COMPLETION_INDEX"),
}
"""Argument of `initialize` → variables of the environment that stand for it, the first one that is set."""


def initialize(
    coordinator_address: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    *,
    local_device_ids: Sequence[int] | None = None,
    cluster_detection_method: str | None = None,
    initialization_timeout: int = 300,
) -> None:
    """Connects this process with the other processes of a distributed run, which all run the same script. Call it
    first, before any JAX operation.

    If one of the first three arguments is None, it is read from ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` or
    ``JAX_PROCESS_ID`` (in a pod of an indexed Kubernetes Job, ``JOB_COMPLETION_INDEX``). Without the variable, JAX
    detects the value under SLURM, Open MPI, Cloud TPU or, with the package kubernetes, Kubernetes. The call returns
    when all processes have made it. Processes end together: if one dies, the others are ended, too.

    Args:
        coordinator_address: ``"host:port"``, a free port of process 0's machine.
        num_processes: Number of processes.
        process_id: Index of this process, from 0.
        local_device_ids: The accelerators of this machine that this process uses. None: all of them; but under SLURM
            and Open MPI, which may start several processes on a machine, the one with the index of this process there.
        cluster_detection_method: "slurm", "ompi" or "mpi4py" to ask only that one; "deactivate" to ask none.
        initialization_timeout: Seconds to wait for the others.

    Raises:
        RuntimeError: If this process is already connected, or the JAX backend runs already.
        ValueError: If an argument is neither given nor found, or an environment variable is no integer.
    """
    if jax.distributed.is_initialized():
        raise RuntimeError(
            "distributed.initialize(): this process is connected with others already. Call initialize() only once, at "
            "the start of the script."
        )
    if is_backend_up():
        raise RuntimeError(
            "distributed.initialize(): the JAX backend runs already, and processes can only be connected before it "
            "starts. Call initialize() before the first JAX operation (importing gymnax runs some)."
        )
    coordinator_address = coordinator_address or _from_environment("coordinator_address")
    num_processes = _number("num_processes", num_processes)
    process_id = _number("process_id", process_id)
    if cluster_detection_method is None and None not in (coordinator_address, num_processes, process_id):
        # All is known. Who started the processes matters only where it says which accelerator is whose.
        is_numbered = {"SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"} & os.environ.keys()
        cluster_detection_method = None if is_numbered else "deactivate"
    try:
        jax.distributed.initialize(
            coordinator_address,
            num_processes=num_processes,
            process_id=process_id,
            local_device_ids=local_device_ids,
            cluster_detection_method=cluster_detection_method,
            initialization_timeout=initialization_timeout,
        )
    except ValueError as error:
        given = {"coordinator_address": coordinator_address, "num_processes": num_processes, "process_id": process_id}
        if None not in given.values():  # JAX refuses one of these or of the other arguments
            raise
        known = ", ".join(f"{name}={value!r}" for name, value in given.items())
        variables = ", ".join(names[0] for names in _VARIABLES.values())
        raise ValueError(
            f"distributed.initialize() cannot find the other processes: {error} The arguments are {known}. Pass all "
            f"three, set the environment variables {variables}, or start the script with a launcher (srun or mpirun). "
            "If the script runs in only one process, remove this call."
        ) from error


def _from_environment(name: str) -> str | None:
    return next((os.environ[variable] for variable in _VARIABLES[name] if os.environ.get(variable)), None)


def _number(name: str, given: int | None) -> int | None:
    text = None if given is not None else _from_environment(name)
    if text is None:
        return given
    try:
        return int(text)
    except ValueError:
        raise ValueError(
            f"distributed.initialize(): {' or '.join(_VARIABLES[name])}={text!r} must be an integer. Correct "
            f"the environment variable, or pass initialize({name}=...)."
        ) from None
