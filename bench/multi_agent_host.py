"""Steps of environments per second with several agents on the host, and of the bare environments in the same run.

    python -m bench.multi_agent_host
    python -m bench.multi_agent_host --rllib-python ENV/bin/python

8 MultiAgentCartPoles of 2 agents: as dicts with random actions; and sampled with two policies, without any update.
Prints both, medians over rounds that alternate, and their ratio. With RLlib's interpreter also PPO's training with two
policies, of this project and of RLlib with the same settings, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from bench.peers.protocol import Peer
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole

TRAINING = {"train_batch_size_per_learner": 4000, "minibatch_size": 128, "num_epochs": 4, "lr": 3e-4}
MODEL = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
NUM_ENVS, NUM_AGENTS, NUM_STEPS, NUM_ROUNDS = 8, 2, 500, 9


def bare_rate(envs: list[Any]) -> float:
    """Measures steps per second of bare environments, with actions that were drawn before."""
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
    """Measures steps per second of a runner."""
    started = time.perf_counter()
    runner.sample_block(num_steps=NUM_STEPS)
    return NUM_STEPS * NUM_ENVS / (time.perf_counter() - started)


def make_runner() -> MultiAgentEnvRunner:
    """Creates a runner with two policies, each with PPO's default network for CartPole."""
    config = (
        PPOConfig()
        .environment(MultiAgentCartPole, env_config={"num_agents": NUM_AGENTS})
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: f"p{agent_id}")
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS)
    )
    return MultiAgentEnvRunner(config=config)


def settings() -> dict[str, Any]:
    """Returns the settings of the contenders that train."""
    return {"num_envs": NUM_ENVS, "training": TRAINING, "model": MODEL, "warmup": 2}


def against_rllib(rllib_python: str, rounds: int) -> None:
    """Trains this project and RLlib in turns, and prints env steps per second."""
    commands = {
        "jaxrl": [sys.executable, "-m", "bench.peers.jaxrl_multi_agent"],
        "rllib": [rllib_python, "-m", "bench.peers.rllib_multi_agent"],
    }
    rates: dict[str, list[float]] = {name: [] for name in commands}
    with contextlib.ExitStack() as stack:
        peers = {name: stack.enter_context(Peer(command, settings())) for name, command in commands.items()}
        for _ in range(rounds):
            for name, peer in peers.items():
                rates[name].append(statistics.median(each["steps"] / each["seconds"] for each in peer.measure(3.0)))
    ours, theirs = (statistics.median(rates[name]) for name in commands)
    ratio = statistics.median(own / other for own, other in zip(*rates.values(), strict=True))
    print(f"PPO, 2 policies: {ours:,.0f} env steps/s, RLlib {theirs:,.0f}, ratio {ratio:.1f}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    args = parser.parse_args(arguments)
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
    if args.rllib_python:
        against_rllib(args.rllib_python, rounds=3)


if __name__ == "__main__":
    main()
