"""Several agents: learning runs of PPO, APPO and DQN, and steps of agents per second of PPO.

    python -m bench.multi_agent --learn cart_poles,rock_paper_scissors,stateless --json bench/multi_agent.jsonl
    python -m bench.multi_agent --learn cart_poles --seeds 2
    python -m bench.multi_agent --learn tic_tac_toe --seeds 3
    python -m bench.multi_agent --speed --rounds 7

A seed passes if the mean return of the last 100 episodes reaches the target within so many env steps, for each trained
policy. Two CartPoles and two policies: 450 within 400,000, of at least 4 of 5 seeds, on the device and on the host;
with APPO 400 within 1,000,000. Rock-paper-scissors against an opponent that repeats its first move, of 10 moves: 7. Two
CartPoles without velocities, with LSTMs: 350 within 600,000, of at least 3 of 5 seeds. Tic-tac-toe by DQN against
itself, one policy for both players: every 10,000 env steps it plays 500 games against an opponent that takes a free
field at random; it passes if it wins or draws 0.9 of the games, and wins 0.8, within 200,000. With ``--json FILE``
every run is appended to FILE with its commit; runs that stand there are not run again.

The speed is that of rows that are recorded, those of agents that wait included: 512 environments of two CartPoles with
a policy for both, and with one for each, beside one agent in 1,024 environments, in turns in one process.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.journal import Journal
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.examples.envs.classes.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.envs.classes.multi_agent.tic_tac_toe import TicTacToe
from jaxrl_stack.examples.rl_modules.classes.rock_paper_scissors_heuristic_rlm import AlwaysSameHeuristicRLM

SINGLE = "gymnax/CartPole-v1"
ENVS = "jaxrl_stack.examples.envs.multi_agent"
POLICIES = ("p0", "p1")


def own_policy(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Maps the first agent to the policy "p0", the second one to "p1"."""
    return POLICIES[agent_id in (1, "player2")]


def shared_policy(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Maps all agents to the policy "p0"."""
    return "p0"


def cart_poles() -> PPOConfig:
    """Config of PPO for two CartPoles with two policies, with the tuned settings of a single agent."""
    config = PPOConfig.tuned(SINGLE).environment(f"{ENVS}:MultiAgentCartPole")
    return config.multi_agent(policies={*POLICIES}, policy_mapping_fn=own_policy)


def cart_poles_on_host() -> PPOConfig:
    """Config of PPO for two of gymnasium's CartPoles with two policies."""
    config = PPOConfig.tuned("CartPole-v1").environment(MultiAgentCartPole, env_config={"num_agents": 2})
    return config.multi_agent(policies={*POLICIES}, policy_mapping_fn=own_policy)


def appo_cart_poles() -> APPOConfig:
    """Config of APPO for two CartPoles with two policies, with the tuned settings of a single agent."""
    config = APPOConfig.tuned(SINGLE).environment(f"{ENVS}:MultiAgentCartPole")
    return config.multi_agent(policies={*POLICIES}, policy_mapping_fn=own_policy)


def stateless() -> PPOConfig:
    """Config of PPO for two CartPoles without velocities, with two LSTM policies and the tuned settings of a single
    agent.
    """
    config = PPOConfig.tuned("jaxrl_stack.examples.envs.memory:StatelessCartPole")
    config.environment(f"{ENVS}:MultiAgentStatelessCartPole")
    return config.multi_agent(policies={*POLICIES}, policy_mapping_fn=own_policy)


def rock_paper_scissors() -> PPOConfig:
    """Config of PPO for rock-paper-scissors, against a policy that repeats its first move."""
    opponent = RLModuleSpec(module_class=AlwaysSameHeuristicRLM)
    spec = MultiRLModuleSpec(rl_module_specs={"p0": RLModuleSpec(), "p1": opponent})
    config = PPOConfig.tuned(SINGLE).environment(f"{ENVS}:RockPaperScissors").training(lr=1e-3)
    config.rl_module(rl_module_spec=spec)
    return config.multi_agent(policies={*POLICIES}, policy_mapping_fn=own_policy, policies_to_train=["p0"])


def tic_tac_toe() -> DQNConfig:
    """Config of DQN with one policy that plays tic-tac-toe against itself."""
    return (
        DQNConfig()
        .environment(TicTacToe)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=16, rollout_fragment_length=4)
        .multi_agent(policies={"p0"}, policy_mapping_fn=shared_policy)
        .training(
            lr=1e-3,
            train_batch_size_per_learner=128,
            training_intensity=4,
            gamma=0.95,
            epsilon=[[0, 1.0], [50_000, 0.1]],
            target_network_update_freq=2_000,
            replay_buffer_config={"type": "MultiAgentEpisodeReplayBuffer", "capacity": 50_000},
        )
        .reporting(min_sample_timesteps_per_iteration=10_000, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [128, 128], "fcnet_activation": "relu"})
    )


def games_against_random(algo: Any, num_games: int = 500) -> dict[str, float]:
    """Shares of tic-tac-toe games that ``p0`` wins, and does not lose, against an opponent that takes a free field at
    random."""
    policy, env, rng, outcomes = algo.get_policy("p0"), TicTacToe(), np.random.default_rng(0), []
    for game in range(num_games):
        (obs, _), is_over, rewards = env.reset(seed=game), False, {}
        while not is_over:
            ((player, seen),) = obs.items()
            is_own = player == "player1"
            own = (
                policy.compute_single_action(seen, explore=False)[0]
                if is_own
                else rng.choice(np.flatnonzero(seen == 0))
            )
            obs, rewards, terminateds, truncateds, _ = env.step({player: int(own)})
            is_over = terminateds["__all__"] or truncateds["__all__"]
        # A game that ends without a row is a draw.
        outcomes.append(rewards["player1"] if rewards["player2"] in (-1.0, 1.0) else 0.0)
    return {"wins": float(np.mean(np.array(outcomes) == 1.0)), "no_loss": float(np.mean(np.array(outcomes) != -1.0))}


def score_against_random(algo: Any) -> float:
    """Share of games without loss; the share of wins in its place while that is below 0.8."""
    shares = games_against_random(algo)
    print(shares, flush=True)
    return shares["no_loss"] if shares["wins"] >= 0.8 else min(shares["wins"], shares["no_loss"])


@dataclasses.dataclass(frozen=True)
class Task:
    """Learning task: config and goal.

    Args:
        config: Makes the settings.
        target: Mean return of each trained policy.
        within: Env steps.
        misses: How many of five seeds may miss it.
        score: Measures the policies after each iteration; None: mean return of the worse trained policy.
    """

    config: Callable[[], AlgorithmConfig]
    target: float
    within: int
    misses: int
    score: Callable[[Any], float] | None = None


TASKS = {
    "cart_poles": Task(cart_poles, 450.0, 400_000, 1),
    "cart_poles_on_host": Task(cart_poles_on_host, 450.0, 400_000, 1),
    "appo_cart_poles": Task(appo_cart_poles, 400.0, 1_000_000, 1),
    "rock_paper_scissors": Task(rock_paper_scissors, 7.0, 400_000, 1),
    "stateless": Task(stateless, 350.0, 600_000, 2),
    "tic_tac_toe": Task(tic_tac_toe, 0.9, 200_000, 1, score_against_random),
}


def learned(task: Task, seed: int) -> dict[str, Any]:
    """Trains one seed until it reaches the target or the step limit.

    Returns:
        ``solved_at``: env steps, or None; ``best``: the highest mean return of the worse policy; ``seconds``.
    """
    config = task.config().debugging(seed=seed)
    named: Any = config.policies_to_train
    trained: Sequence[str] = named or POLICIES
    algo, started, best = config.build_algo(), time.perf_counter(), float("-inf")
    solved_at, steps = None, 0
    while solved_at is None and steps < task.within:
        result = algo.train()
        steps = result["num_env_steps_sampled_lifetime"]
        if task.score is not None:
            worse = task.score(algo)
        else:
            returns = result["env_runners"]["module_episode_returns_mean"]
            worse = min(returns[policy] for policy in trained)
        best = max(best, worse)
        if worse >= task.target and steps <= task.within:
            solved_at = steps
    algo.stop()
    return {"solved_at": solved_at, "best": round(best, 2), "seconds": round(time.perf_counter() - started, 1)}


def learn(names: Sequence[str], num_seeds: int, journal: Journal) -> bool:
    """Trains all seeds of some tasks; returns whether all tasks pass."""
    rows, all_pass = [], True
    for name in names:
        task = TASKS[name]
        runs = []
        for seed in range(num_seeds):
            run = {"task": name, "seed": seed, "target": task.target, "within": task.within}
            runs.append(journal.once(run, lambda task=task, seed=seed: learned(task, seed)))
            print(runs[-1], flush=True)
        solved = [run["solved_at"] for run in runs if run["solved_at"]]
        all_pass &= len(solved) >= len(runs) - task.misses * len(runs) // 5
        rows.append([name, f"{len(solved)} of {len(runs)}", ", ".join(f"{steps:,}" for steps in sorted(solved))])
    harness.print_table("Learned by each policy", ["task", "seeds", "env steps"], rows)
    return all_pass


@dataclasses.dataclass(frozen=True)
class Loop:
    """Training loop of a config; its steps are rows of agents.

    Args:
        algo: The algorithm.
        rows_per_step: Rows of a step of an environment.
    """

    algo: Any
    rows_per_step: int = 1

    @property
    def step(self) -> Callable[[], Mapping[str, Any]]:
        return self.algo.train

    @property
    def steps_per_iteration(self) -> int:
        return self.algo.config.train_batch_size_per_learner * self.rows_per_step


def speed(rounds: int, seconds: float, num_steps: int = 128) -> None:
    """Measures rows per second of two agents, and of one agent in twice as many environments."""

    def loop(env: str, num_envs: int, rows: int, mapping: Any = None, policies: Sequence[str] = ()) -> Loop:
        sizes = {"train_batch_size_per_learner": num_steps * num_envs, "lr": 2.5e-4, "grad_clip": 0.5}
        # As many minibatches, and rows in each of them, as with one agent.
        minibatch = num_steps * 1024 // 4 // max(1, len(policies))
        config = PPOConfig.tuned(SINGLE).training(**sizes, minibatch_size=minibatch).environment(env)
        config.env_runners(num_envs_per_env_runner=num_envs)
        if mapping is not None:
            config.multi_agent(policies={*policies}, policy_mapping_fn=mapping)
        return Loop(config.build_algo(), rows)

    both = f"{ENVS}:MultiAgentCartPole"
    contenders = {
        "one agent, 1,024 envs": loop(SINGLE, 1024, 1),
        "two agents, a policy": loop(both, 512, 2, shared_policy, POLICIES[:1]),
        "two agents, two policies": loop(both, 512, 2, own_policy, POLICIES),
    }
    timings = harness.interleave(contenders, rounds, seconds)
    first = timings["one agent, 1,024 envs"]
    rows = [[name, f"{own.rate:,.0f}", f"{own.ratio_to(first):.3f}"] for name, own in timings.items()]
    harness.print_table("Rows per second, 128 steps, 4 epochs, 4 minibatches", ["", "rows/s", "ratio"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--learn", metavar="TASKS", help=f"comma-separated, of {', '.join(TASKS)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4.0)
    args = parser.parse_args(arguments)
    passes = not args.learn or learn(args.learn.split(","), args.seeds, Journal(args.json, harness.commit()))
    if args.speed:
        speed(args.rounds, args.seconds)
    return 0 if passes else 1


if __name__ == "__main__":
    raise SystemExit(main())
