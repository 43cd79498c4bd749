"""This project's PPO with several agents as a contender."""

from __future__ import annotations

from typing import Any

from bench.peers import multi_agent, protocol


def make(settings: dict[str, Any]) -> protocol.Work:
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole

    return multi_agent.make_work(PPOConfig(), MultiAgentCartPole, settings["model"], settings, lambda: None)


if __name__ == "__main__":
    protocol.serve(make, ["jax", "jaxlib", "gymnasium", "numpy"])
