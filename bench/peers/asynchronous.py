"""Common code of the asynchronous contenders of this project and of RLlib: the same settings through the same API."""

from __future__ import annotations

from typing import Any

from bench.peers import protocol


def make_work(config: Any, model_config_class: Any, settings: dict[str, Any], close: Any) -> protocol.Work:
    """Creates the contender that trains a config; an iteration is one call of `train`.

    Args:
        config: An IMPALAConfig or APPOConfig.
        model_config_class: DefaultModelConfig of its package.
        settings: ``env, env_runners, training, learners, model``, and ``seconds`` of an iteration.
        close: Called at the end.
    """
    algo = (
        config.environment(settings["env"])
        .env_runners(**settings["env_runners"])
        .training(**settings["training"])
        .learners(**settings["learners"])
        .rl_module(model_config=model_config_class(**settings["model"]))
        .reporting(min_time_s_per_iteration=settings["seconds"])
        .build_algo()
    )
    num_sampled = 0

    def iterate() -> protocol.Iteration:
        nonlocal num_sampled
        result = algo.train()
        # RLlib's first results have no numbers of sampling.
        sampled = int(result.get("env_runners", {}).get("num_env_steps_sampled_lifetime", num_sampled))
        steps, num_sampled = sampled - num_sampled, sampled
        return protocol.Iteration(steps, {})

    def stop() -> None:
        algo.stop()
        close()

    return protocol.Work(iterate, close=stop)
