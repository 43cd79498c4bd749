"""RLlib's CQL and IQL as contenders; runs in an environment with ``ray[rllib]`` and torch, and nothing of ours."""

# pyright: reportMissingImports=false

from __future__ import annotations

import os
import warnings
from typing import Any

from bench.peers import protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    """Creates the contender: CQL or IQL with RLlib's settings on a table of Pendulum steps.

    Args:
        settings: ``algorithm``, ``data``, ``batch_size``, ``num_iters``.
    """
    warnings.simplefilter("ignore")
    import gymnasium as gym
    import ray
    from ray.rllib.algorithms.cql import CQLConfig
    from ray.rllib.algorithms.iql import IQLConfig

    ray.init(num_cpus=os.cpu_count(), include_dashboard=False, log_to_driver=False, configure_logging=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    # IQL asks for spaces where nothing is evaluated, and CQL for an environment.
    with gym.make("Pendulum-v1") as env:
        observations, actions = env.observation_space, env.action_space
    config = {"CQL": CQLConfig, "IQL": IQLConfig}[settings["algorithm"]]()
    algo = (
        config.environment("Pendulum-v1", observation_space=observations, action_space=actions)
        .offline_data(
            input_=[f"local://{settings['data']}"],
            input_compress_columns=[],
            dataset_num_iters_per_learner=settings["num_iters"],
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
        )
        # CQL's own default of lr fails its own check.
        .training(train_batch_size_per_learner=settings["batch_size"], lr=None)
        .reporting(min_time_s_per_iteration=None, min_train_timesteps_per_iteration=0)
        .build_algo()
    )

    def iterate() -> protocol.Iteration:
        algo.train()
        return protocol.Iteration(settings["num_iters"], {})

    return protocol.Work(iterate, close=ray.shutdown)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
