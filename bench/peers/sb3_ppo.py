"""Stable-Baselines3's PPO as a contender; runs in an environment with ``stable-baselines3`` and torch."""

# pyright: reportMissingImports=false

from __future__ import annotations

import time
from typing import Any

from bench.peers.protocol import Iteration, Work, serve


def make(settings: dict[str, Any]) -> Work:
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(settings["torch_threads"])
    parts = {"sample": 0.0, "update": 0.0}

    class TimedPPO(PPO):
        def collect_rollouts(self, *args: Any, **kwargs: Any) -> bool:
            started = time.perf_counter()
            going_on = super().collect_rollouts(*args, **kwargs)
            parts["sample"] = time.perf_counter() - started
            return going_on

        def train(self) -> None:
            started = time.perf_counter()
            super().train()
            parts["update"] = time.perf_counter() - started

    training, model = settings["training"], settings["model"]
    num_envs = settings["env_runners"]["num_envs_per_env_runner"]
    num_steps = training["train_batch_size_per_learner"] // num_envs
    activation = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[model["fcnet_activation"]]
    algo = TimedPPO(
        "MlpPolicy",
        make_vec_env(settings["env"], n_envs=num_envs, seed=settings["seed"]),
        learning_rate=training["lr"],
        n_steps=num_steps,
        batch_size=training["minibatch_size"],
        n_epochs=training["num_epochs"],
        policy_kwargs={"net_arch": model["fcnet_hiddens"], "activation_fn": activation},
        seed=settings["seed"],
        device="cpu",
    )

    def iterate() -> Iteration:
        algo.learn(num_steps * num_envs, reset_num_timesteps=False)
        return Iteration(num_steps * num_envs, dict(parts))

    return Work(iterate, close=algo.env.close)


if __name__ == "__main__":
    serve(make, ["stable-baselines3", "torch", "gymnasium", "numpy"])
