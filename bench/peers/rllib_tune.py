"""Trials of PPO by Tune with RLlib as one iteration; runs in an environment with ``ray[rllib]`` and torch.

Settings: ``env``, ``env_runners``, ``training`` (its ``lr`` a list, a trial for each), ``model``, ``seed``, ``steps``
of each trial, and ``num_cpus``, of which each trial takes one.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import tempfile
import warnings
from typing import Any

from bench.peers import protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    warnings.simplefilter("ignore")
    import ray
    from ray import tune
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    ray.init(num_cpus=settings["num_cpus"], include_dashboard=False, log_to_driver=False, configure_logging=False)
    rates = settings["training"]["lr"]
    config: Any = (
        PPOConfig()
        .environment(settings["env"])
        .env_runners(num_env_runners=0, **settings["env_runners"])
        .training(**{**settings["training"], "lr": tune.grid_search(rates)})
        .rl_module(model_config=DefaultModelConfig(**settings["model"]))
        .debugging(seed=settings["seed"])
    )
    folder = tempfile.TemporaryDirectory()

    def iterate() -> protocol.Iteration:
        stop = {"num_env_steps_sampled_lifetime": settings["steps"]}
        run = tune.RunConfig(stop=stop, storage_path=folder.name, verbose=0)
        results: Any = tune.Tuner(config.algo_class, param_space=config, run_config=run).fit()
        if results.errors:
            raise results.errors[0]
        seconds = [result.metrics["time_total_s"] for result in results]
        steps = [int(result.metrics["num_env_steps_sampled_lifetime"]) for result in results]
        return protocol.Iteration(sum(steps), {}, {"time_total_s": seconds, "steps": steps})

    def close() -> None:
        ray.shutdown()
        folder.cleanup()

    return protocol.Work(iterate, close=close)


if __name__ == "__main__":
    protocol.serve(make, ["ray", "torch", "gymnasium", "numpy"])
