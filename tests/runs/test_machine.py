"""Facts of the machine in a run's ``run.json``, and runs that cannot be recomputed bit for bit."""

from __future__ import annotations

import os
import types

import jax
import pytest

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.runs.machine import machine_differences, machine_facts, why_not_recomputable
from jaxrl_stack.runs.origin import read_origin, run_origin
from tests import programs

GPU = types.SimpleNamespace(platform="gpu", device_kind="NVIDIA H100")


def test_a_run_records_the_facts_on_which_its_bits_depend(tmp_path):
    algo = programs.ppo().reporting(results_dir=tmp_path / "run").build_algo()
    algo.train()
    algo.stop()
    origin = read_origin(tmp_path / "run")
    facts = origin["machine"]
    assert facts == machine_facts(jax.devices("cpu")[:1])
    assert facts["devices"] == {"cpu": 1} and facts["num_processes"] == 1 and facts["processor"]
    assert facts["num_threads"] == len(os.sched_getaffinity(0))
    assert facts["jax_flags"]["jax_enable_x64"] is False
    assert origin["why_not_recomputable"] is None and origin["versions"]["jaxlib"]
    assert machine_differences(origin) == machine_differences(origin, jax.devices("cpu")[:1]) == []


def test_what_differs_from_another_machine_is_named(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2 --xla_b=1 --xla_a=2")
    facts = machine_facts([GPU, GPU])
    assert facts["devices"] == {"NVIDIA H100": 2} and facts["xla_flags"] == ["--xla_a=2", "--xla_b=1"]
    origin = {"machine": facts, **run_origin([])}
    assert machine_differences(origin) == []
    flags = {**facts["jax_flags"], "jax_enable_x64": True}
    changed = {"processor": "Z80", "num_threads": 999, "xla_flags": ["--xla_b=1"], "jax_flags": flags}
    there = {"versions": {**origin["versions"], "jaxlib": "0.1"}, "machine": {**facts, **changed}}
    assert machine_differences(there, [GPU]) == [
        f"jaxlib {origin['versions']['jaxlib']} here, 0.1 in the run",
        f"processor {facts['processor']} here, Z80 in the run",
        f"num threads {facts['num_threads']} here, 999 in the run",
        "xla flags --xla_a=2 here, fewer in the run",
        "jax flags jax_enable_x64=False here, jax_enable_x64=True in the run",
        "devices NVIDIA H100=1 here, NVIDIA H100=2 in the run",
    ]
    assert machine_differences({}) == []  # of an earlier version


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (programs.ppo("CartPole-v1").env_runners(num_env_runners=2), "num_env_runners=2 actors sample"),
        (programs.ppo().learners(num_learners=2), "num_learners=2 actors learn"),
        (
            IMPALAConfig().environment("CartPole-v1").env_runners(num_env_runners=0),
            "IMPALA learns in a thread next to gymnasium environments",
        ),
        (IMPALAConfig().environment(programs.CARTPOLE), None),
        (programs.ppo("CartPole-v1"), None),
        (programs.dqn(), None),
        (BCConfig(), None),
    ],
)
def test_runs_that_depend_on_timing_cannot_be_recomputed(config, reason):
    found = why_not_recomputable(config)
    assert found is None if reason is None else reason in found and found.endswith(".")


def test_gpus_are_exact_with_a_flag(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_autotune_level=0")
    assert "XLA_FLAGS=--xla_gpu_deterministic_ops=true" in why_not_recomputable(programs.ppo(), [GPU])
    for flag in ("--xla_gpu_deterministic_ops=true", "--xla_a=1 --xla_gpu_exclude_nondeterministic_ops"):
        monkeypatch.setenv("XLA_FLAGS", flag)
        assert why_not_recomputable(programs.ppo(), [GPU]) is None
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_deterministic_ops=false")
    assert why_not_recomputable(programs.ppo(), [GPU]) is not None
