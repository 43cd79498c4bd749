"""Facts about a machine that affect the exact bits of a run's numbers, and a check whether the runs of a config are
reproducible bit for bit.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from jaxrl_stack.runs.origin import run_origin
from jaxrl_stack.utils.devices import num_joined_processes

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.devices import Device

_VERSIONS = ("jaxrl_stack", "jax", "jaxlib", "flax", "optax", "gymnax", "gymnasium", "numpy")
_JAX_FLAGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable")
_VECTOR_INSTRUCTIONS = re.compile(r"(sse4|avx|fma|f16c|amx|asimd|sve|neon)\w*")
_DETERMINISTIC = re.compile(r"--xla_gpu_(deterministic_ops|exclude_nondeterministic_ops)(=(true|1))?")


def machine_facts(devices: Sequence[Device]) -> dict[str, Any]:
    """Facts about the processor, the devices, and the flags of XLA and JAX, as JSON.

    Args:
        devices: The learner's devices of this process.

    Returns:
        ``processor`` (model), ``instructions`` (vector instructions of the processor), ``num_threads`` (processors that
        this process may use, which is the number of XLA's threads on CPUs), ``devices`` (``{kind: number}``),
        ``num_processes`` (joined processes), ``xla_flags`` (sorted) and ``jax_flags``.
    """
    kinds = [device.device_kind for device in devices]
    return {
        **_facts_without_devices(),
        "devices": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "num_processes": num_joined_processes(),
    }


def _facts_without_devices() -> dict[str, Any]:
    """Returns the facts about the machine that are known before JAX starts its devices: processor, vector instructions,
    number of threads, and flags of XLA and JAX.
    """
    cpu = _cpu_info()
    flags = shlex.split(os.environ.get("XLA_FLAGS", ""))
    return {
        "processor": cpu.get("model name") or platform.processor() or platform.machine(),
        "instructions": sorted(
            name for name in cpu.get("flags", cpu.get("Features", "")).split() if _VECTOR_INSTRUCTIONS.fullmatch(name)
        ),
        "num_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        # The number of CPU devices is a fact of its own.
        "xla_flags": sorted(flag for flag in flags if "host_platform_device_count" not in flag),
        "jax_flags": {name: getattr(jax.config, name) for name in _JAX_FLAGS if hasattr(jax.config, name)},
    }


def _cpu_info() -> dict[str, str]:
    """Fields of the first processor in ``/proc/cpuinfo``; {} on other systems than Linux."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def machine_differences(origin: Mapping[str, Any], devices: Sequence[Device] | None = None) -> list[str]:
    """Lists facts in which this machine differs from the machine of a run, such as ``"jaxlib 0.10.0 here, 0.9.1 in the
    run"``.

    Args:
        origin: Content of the run's ``run.json``; facts that it lacks are not compared.
        devices: Devices that would repeat the run: ``config.learner_class.devices_of(config)``. None does not compare
            devices and processes.
    """
    facts: dict[str, Any] = origin.get("machine") or {}
    now = _facts_without_devices() if devices is None else machine_facts(devices)
    then_versions, now_versions = origin.get("versions") or {}, run_origin([])["versions"]
    pairs = [(name, now_versions.get(name), then_versions[name]) for name in _VERSIONS if name in then_versions]
    pairs += [(name.replace("_", " "), here, facts[name]) for name, here in now.items() if name in facts]
    return [
        f"{name} {_text(here, there)} here, {_text(there, here)} in the run"
        for name, here, there in pairs
        if here != there
    ]


def _text(value: Any, other: Any) -> str:
    """Formats a fact about a machine as text.

    If the fact is a list or a dict, the text has only the items that differ from `other`, the same fact about another
    machine.
    """
    if isinstance(value, list):
        return " ".join(item for item in value if item not in other) or "fewer"
    if isinstance(value, dict):
        items = [f"{name}={own}" for name, own in value.items() if other.get(name) != own]
        return " ".join(items) or "none"
    return str(value)


def why_not_recomputable(config: AlgorithmConfig, devices: Sequence[Device] = ()) -> str | None:
    """Reason why two runs of a config can differ, with the remedy; None if all runs of the config are equal bit for
    bit.

    Runs on the same number of the same devices and with the same versions are compared; see `machine_differences`.

    Args:
        config: Config of the run.
        devices: Devices of the learner; () if they are unknown.
    """
    if config.num_sampling_actors:
        number = config.num_env_runners
        return f"num_env_runners={number} actors sample at their own pace. Use env_runners(num_env_runners=0)."
    if config.num_learners:
        return f"num_learners={config.num_learners} actors learn. Use learners(num_learners=0)."
    if config.is_asynchronous and config.env is not None and not config.samples_on_device:
        name = getattr(config.algo_class, "__name__", config.algo_class)
        return f"{name} learns in a thread next to gymnasium environments. Use a JAX environment, or PPO."
    is_gpu = any(device.platform in ("gpu", "cuda", "rocm") for device in devices)
    if is_gpu and not any(map(_DETERMINISTIC.fullmatch, shlex.split(os.environ.get("XLA_FLAGS", "")))):
        return "GPUs add in any order. Start the run with XLA_FLAGS=--xla_gpu_deterministic_ops=true."
    return None
