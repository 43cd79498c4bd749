"""This project's DreamerV3 as a contender, through its public API."""

from __future__ import annotations

from typing import Any

from bench.peers import dreamer, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    import jaxrl_stack

    # Before the first JAX operation.
    jaxrl_stack.use_cpu_devices(settings["learners"].get("num_cpus_per_learner", 1))
    from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config

    return dreamer.make_work(DreamerV3Config, settings, lambda: None)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "gymnasium", "gymnax", "numpy"])
