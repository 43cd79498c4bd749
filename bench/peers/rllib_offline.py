"""RLlib's BC as a contender; runs in an environment with ``ray[rllib]`` and torch, and nothing of ours."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import warnings
from typing import Any

from bench.peers import protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    """Creates the contender: BC on a table of steps; an iteration is one pass over the table.

    Args:
        settings: ``data``, ``batch_size``, ``num_iters``, ``lr``, ``hiddens``.
    """
    warnings.simplefilter("ignore")
    import gymnasium as gym
    import ray
    from ray.rllib.algorithms.bc import BCConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    # It asks for spaces where nothing is evaluated.
    with gym.make("CartPole-v1") as env:
        observations, actions = env.observation_space, env.action_space
    algo = (
        BCConfig()
        .environment("CartPole-v1", observation_space=observations, action_space=actions)
        .offline_data(
            input_=[f"local://{settings['data']}"],
            input_compress_columns=[],
            dataset_num_iters_per_learner=settings["num_iters"],
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
        )
        .training(train_batch_size_per_learner=settings["batch_size"], lr=settings["lr"])
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=settings["hiddens"]))
        .build_algo()
    )
    steps = settings["num_iters"] * settings["batch_size"]

    def iterate() -> protocol.Iteration:
        algo.train()
        return protocol.Iteration(steps, {})

    return protocol.Work(iterate, close=ray.shutdown)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
