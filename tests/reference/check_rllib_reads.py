"""Let RLlib train BC on files that this project wrote in RLlib's form; ends with an error if it cannot.

Needs an environment of its own with `ray[rllib]==2.60.0`, torch (CPU), lz4, msgpack and msgpack-numpy; imports nothing
of this project:

    python tests/reference/check_rllib_reads.py FOLDER [--episodes]
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse

import gymnasium as gym
import numpy as np
import ray
from ray.rllib.algorithms.bc import BCConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--episodes", action="store_true")
    args = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False)
    env = gym.make("CartPole-v1")
    config = (
        BCConfig()
        .environment(observation_space=env.observation_space, action_space=env.action_space)
        .offline_data(
            input_=[args.folder],
            input_read_episodes=args.episodes,
            input_read_batch_size=4 if args.episodes else None,
            dataset_num_iters_per_learner=2,
            map_batches_kwargs={"concurrency": 1, "num_cpus": 1},
        )
        .training(train_batch_size_per_learner=64)
    )
    algo = config.build_algo()
    losses = [algo.train()["learners"]["default_policy"]["policy_loss"] for _ in range(2)]
    assert np.isfinite(losses).all()
    print("RLlib trained BC; policy_loss", [round(float(loss), 4) for loss in losses])
    algo.stop()
    ray.shutdown()


if __name__ == "__main__":
    main()
