"""RLlib's PPO as a contender; runs in an environment with ``ray[rllib]`` and torch, and nothing of this project's."""

# pyright: reportMissingImports=false

from __future__ import annotations

import warnings
from typing import Any

from bench.peers import new_stack, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    import torch
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.connectors.env_to_module import MeanStdFilter
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

    def update_rows(learner: Any, rows: Any, kwargs: dict[str, Any]) -> None:
        batch = MultiAgentBatch({"default_policy": SampleBatch(rows)}, env_steps=new_stack.NUM_ROWS)
        learner.update(batch=batch, **kwargs)

    torch.set_num_threads(settings["torch_threads"])
    # RLlib uses Ray in one process, too; room for the actors, whatever the number of cores.
    ray.init(
        num_cpus=settings["env_runners"]["num_env_runners"] + 2,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
    )
    api = new_stack.Api(
        PPOConfig, DefaultModelConfig, SingleAgentEpisode, update_rows, None, ray.shutdown, MeanStdFilter
    )
    return new_stack.make_work(api, settings)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
