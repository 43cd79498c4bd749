"""Common code of the contenders of this project and of RLlib with several agents: PPO on two CartPoles with two
policies.
"""

from __future__ import annotations

from typing import Any

from bench.peers import protocol


def make_work(config: Any, env: Any, model_config: Any, settings: dict[str, Any], close: Any) -> protocol.Work:
    """PPO with the same settings through the same API; an iteration is one `train`.

    Args:
        config: A PPOConfig.
        env: MultiAgentCartPole of its package.
        model_config: For both policies.
        settings: ``num_envs, training``.
        close: Called at the end.
    """
    algo = (
        config.environment(env, env_config={"num_agents": 2})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=settings["num_envs"])
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id % 2}")
        .training(**settings["training"])
        .rl_module(model_config=model_config)
        .build_algo()
    )
    num_sampled = 0

    def iterate() -> protocol.Iteration:
        nonlocal num_sampled
        sampled = int(algo.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        steps, num_sampled = sampled - num_sampled, sampled
        return protocol.Iteration(steps, {})

    def stop() -> None:
        algo.stop()
        close()

    return protocol.Work(iterate, close=stop)
