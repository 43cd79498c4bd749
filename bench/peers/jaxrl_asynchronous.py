"""This project's IMPALA or APPO as a contender, through its public API."""

from __future__ import annotations

from typing import Any

from bench.peers import asynchronous, protocol
from bench.peers.jaxrl_ppo import start_ray


def make(settings: dict[str, Any]) -> protocol.Work:
    from jaxrl_stack.algorithms.appo import APPOConfig
    from jaxrl_stack.algorithms.impala import IMPALAConfig
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    config = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}[settings["algorithm"]]()
    close = start_ray(settings["num_cpus"])
    return asynchronous.make_work(config, DefaultModelConfig, settings, close)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "gymnasium", "numpy", "ray"])
