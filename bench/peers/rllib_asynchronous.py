"""RLlib's IMPALA or APPO as a contender; runs in an environment with ``ray[rllib]`` and torch, and nothing of this
project's."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

from bench.peers import asynchronous, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.appo import APPOConfig
    from ray.rllib.algorithms.impala import IMPALAConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    torch.set_num_threads(1)
    ray.init(num_cpus=settings["num_cpus"], include_dashboard=False, log_to_driver=False, configure_logging=False)
    config = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}[settings["algorithm"]]()
    return asynchronous.make_work(config, DefaultModelConfig, settings, ray.shutdown)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
