"""RLlib's PPO with several agents as a contender; runs in an environment with ``ray[rllib]`` and torch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

from bench.peers import multi_agent, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.examples.envs.classes.multi_agent import MultiAgentCartPole

    torch.set_num_threads(1)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    model = DefaultModelConfig(**settings["model"])
    return multi_agent.make_work(PPOConfig(), MultiAgentCartPole, model, settings, ray.shutdown)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
