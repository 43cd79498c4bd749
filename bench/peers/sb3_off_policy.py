"""Stable-Baselines3's SAC as a contender; runs in an environment with ``stable-baselines3`` and torch."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.peers.protocol import Iteration, Work, serve


def make_work(sac: Callable[..., Any], settings: dict[str, Any]) -> Work:
    """Creates the contender from an SAC class with Stable-Baselines3's interface; an iteration is one call of `learn`.

    Raises:
        ValueError: Another algorithm than SAC.
    """
    if settings["algorithm"] != "SAC":
        raise ValueError(f"algorithm={settings['algorithm']!r}: this contender has SAC")
    training = settings["training"]
    num_steps = settings["reporting"]["min_sample_timesteps_per_iteration"]
    algo = sac(
        "MlpPolicy",
        settings["env"].removeprefix("gymnax/"),
        learning_rate=training["actor_lr"],
        buffer_size=training["replay_buffer_config"]["capacity"],
        learning_starts=training["num_steps_sampled_before_learning_starts"],
        batch_size=training["train_batch_size_per_learner"],
        tau=training["tau"],
        gamma=training["gamma"],
        train_freq=1,
        gradient_steps=1,
        policy_kwargs={"net_arch": settings["model"]["fcnet_hiddens"]},
        seed=settings["seed"],
        device="cpu",
    )

    def iterate() -> Iteration:
        algo.learn(num_steps, reset_num_timesteps=False, log_interval=10**9)
        return Iteration(num_steps, {}, {"steps": num_steps, "updates": num_steps})

    return Work(iterate, close=algo.env.close)


def make(settings: dict[str, Any]) -> Work:
    import torch
    from stable_baselines3 import SAC

    torch.set_num_threads(settings["torch_threads"])
    return make_work(SAC, settings)


if __name__ == "__main__":
    serve(make, ["stable-baselines3", "torch", "gymnasium", "numpy"])
