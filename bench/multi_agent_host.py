"""Steps of environments per second with several agents on the host, and of the bare environments in the same run.

    python -m bench.multi_agent_host

8 MultiAgentCartPoles of 2 agents: as dicts with random actions; and sampled with two policies, without any update.
Prints both, medians over rounds that alternate, and their ratio.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import jax
import numpy as np

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole

NUM_ENVS, NUM_AGENTS, NUM_STEPS, NUM_ROUNDS = 8, 2, 500, 9


def bare_rate(envs: list[Any]) -> float:
    """Steps per second of the environments alone, with actions that were drawn before."""
    actions = np.random.default_rng(0).integers(2, size=(NUM_STEPS, NUM_ENVS, NUM_AGENTS)).tolist()
    obs = [env.reset()[0] for env in envs]
    started = time.perf_counter()
    for of_envs in actions:
        for i, env in enumerate(envs):
            seen, _, terminateds, truncateds, _ = env.step({agent: of_envs[i][agent] for agent in obs[i]})
            if terminateds["__all__"] or truncateds["__all__"]:
                seen = env.reset()[0]
            else:
                seen = {agent: own for agent, own in seen.items() if not (terminateds[agent] or truncateds[agent])}
            obs[i] = seen
    return NUM_STEPS * NUM_ENVS / (time.perf_counter() - started)


def sampled_rate(runner: MultiAgentEnvRunner) -> float:
    """Steps per second of a runner."""
    started = time.perf_counter()
    runner.sample_block(num_steps=NUM_STEPS)
    return NUM_STEPS * NUM_ENVS / (time.perf_counter() - started)


def make_runner() -> MultiAgentEnvRunner:
    """A runner with two policies, each with PPO's default network for CartPole."""
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": NUM_AGENTS})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
    )
    return MultiAgentEnvRunner(config=config)


def main() -> None:
    """Measure and print."""
    # As training does where it can: calls of the policy stay in this thread.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    make: Any = MultiAgentCartPole
    envs = [make({"num_agents": NUM_AGENTS}) for _ in range(NUM_ENVS)]
    runner = make_runner()
    sampled_rate(runner)
    rates = [(bare_rate(envs), sampled_rate(runner)) for _ in range(NUM_ROUNDS)]
    bare, sampled = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(own / other for other, own in rates)
    print(f"bare environments {bare:,.0f} steps/s, sampled {sampled:,.0f} steps/s, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
