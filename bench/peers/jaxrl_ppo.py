"""This project's PPO as a contender, through its public API."""

from __future__ import annotations

from typing import Any

from bench.peers import new_stack, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.connectors.env_to_module import MeanStdFilter
    from jaxrl_stack.core.experience import Experience
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

    def update_rows(learner: Any, rows: Any, kwargs: dict[str, Any]) -> None:
        learner.update(batch={"default_policy": rows}, **kwargs)

    def update_trajectories(learner: Any, columns: Any, kwargs: dict[str, Any]) -> None:
        learner.update_block(Experience.of_steps({"default_policy": columns}), **kwargs)

    num_env_runners = settings["env_runners"]["num_env_runners"]
    close = start_ray(num_env_runners + 2) if num_env_runners else lambda: None
    updates = (update_rows, update_trajectories)
    api = new_stack.Api(PPOConfig, DefaultModelConfig, SingleAgentEpisode, *updates, close, MeanStdFilter)
    return new_stack.make_work(api, settings)


def start_ray(num_cpus: int) -> Any:
    """Starts Ray; returns the function that shuts it down."""
    import ray

    ray.init(num_cpus=num_cpus, include_dashboard=False, log_to_driver=False, configure_logging=False)
    return ray.shutdown


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "gymnasium", "numpy"])
