"""Configuration of JAX in Ray actors and in processes with a local EnvRunner: platform, CPU threads, CPU devices."""

from __future__ import annotations

import math
import os
import sys
import warnings
from typing import Any

import jax

from jaxrl_stack.utils.notices import notice_once, share_notices

_is_set_up = False


def set_up_actor(*, num_cpus: float, num_gpus: float, num_cpu_devices: int = 1) -> None:
    """Configures JAX for the resources that Ray granted to this actor. Call it first in the constructor, before any JAX
    operation.

    * The thread pool of the CPU backend gets one thread per granted core (``NPROC``). Processes are not bound to
      single cores: two of them, or the learner, could land on the same one while another is idle.
    * Unless the actor has a GPU, JAX uses the CPU only and reserves no memory on a GPU that others use.
    * Programs on the CPU run in the thread that calls them (``jax_cpu_enable_async_dispatch`` off). A vector step
      waits for its actions anyway; handing small programs to another thread and back doubles their time and keeps a
      second core busy.
    * Each notice is logged by only one of a run's actors on this node.

    Only the first call in a process has an effect: if the actor contains a whole algorithm, its call decides, and the
    call of the local EnvRunner inside has no effect. Outside of an actor, the function does nothing.

    Args:
        num_cpus: Cores of this actor in its config. If Ray assigned cores, their number is used instead.
        num_gpus: GPUs of this actor in its config.
        num_cpu_devices: Number of JAX devices into which the CPU is split. The number of the driver's process is not
            inherited.
    """
    global _is_set_up
    context = _context_of_actor()
    if _is_set_up or context is None:
        return
    _is_set_up = True
    share_notices(f"{context.get_node_id()} {context.get_job_id()}")
    assigned = context.get_assigned_resources()
    num_cores = max(1, math.ceil(assigned.get("CPU", num_cpus)))
    if is_backend_up():
        notice_once(
            "The JAX backend of this actor runs already, so it keeps its threads and devices: importing the actor's "
            "class or arguments ran a JAX operation. Move that into a function."
        )
        return
    os.environ["NPROC"] = str(num_cores)
    jax.config.update("jax_num_cpu_devices", num_cpu_devices)
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    if not num_gpus and not assigned.get("GPU"):
        jax.config.update("jax_platforms", "cpu")


def prepare_host_process() -> None:
    """Disables JAX's asynchronous dispatch on the CPU in a process with a local EnvRunner, so that small programs run
    in the calling thread.

    Without it a policy call takes about twice as long; results are the same. Too late once the backend is up: then
    there is one notice and nothing changes.
    """
    if not jax.config.values["jax_cpu_enable_async_dispatch"]:
        return
    if is_backend_up():
        notice_once(
            "The JAX backend runs already, so calls of the policy on the CPU use a second thread, which makes "
            "sampling slower. Call jax.config.update('jax_cpu_enable_async_dispatch', False) before the first JAX "
            "operation."
        )
        return
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def is_actor_process() -> bool:
    """Whether this process runs a Ray actor."""
    return _context_of_actor() is not None


def was_actor_restarted() -> bool:
    """Whether Ray restarted this actor after its death.

    A restarted actor's constructor receives the same arguments as the first time, so the arguments do not show the
    restart.
    """
    context = _context_of_actor()
    if context is None:
        return False
    with warnings.catch_warnings():
        # Ray's own property calls a deprecated one of Ray's.
        warnings.filterwarnings("ignore", message="This API is deprecated")
        return bool(context.was_current_actor_reconstructed)


def _context_of_actor() -> Any:
    """Ray's runtime context of the actor that this process runs; None outside of an actor."""
    # Does not import Ray: an actor's process has.
    ray = sys.modules.get("ray")
    # Asking for the context where Ray does not run would start it.
    if ray is None or not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return None if context.get_actor_id() is None else context


def is_backend_up() -> bool:
    """Whether JAX has started its backend, after which threads, devices and platform can no longer be changed."""
    # The number of CPU devices is the setting that JAX refuses to change from then on; there is no public question.
    num_devices = jax.config.values["jax_num_cpu_devices"]
    try:
        jax.config.update("jax_num_cpu_devices", num_devices + 1)
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", num_devices)
    return False
