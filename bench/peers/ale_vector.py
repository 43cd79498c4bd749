"""ale-py's vector environment with random actions: the upper bound of frames per second for training."""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any

import numpy as np

from bench.peers import protocol

NUM_STEPS = 256


def make(settings: dict[str, Any]) -> protocol.Work:
    from ale_py.vector_env import AtariVectorEnv

    num_envs = settings["env_runners"]["num_envs_per_env_runner"]
    env = AtariVectorEnv("pong", num_envs, num_threads=min(num_envs, settings["torch_threads"]), noop_max=30)
    env.reset(seed=settings["seed"])
    actions = np.random.default_rng(settings["seed"]).integers(0, 6, (NUM_STEPS, num_envs))

    def iterate() -> protocol.Iteration:
        for chosen in actions:
            env.step(chosen)
        return protocol.Iteration(actions.size, {})

    return protocol.Work(iterate, close=env.close)


if __name__ == "__main__":
    protocol.serve(make, ["ale-py", "numpy"])
