"""Test of fault tolerance: IMPALA and APPO train, and account for every step, while their actors are killed.

    python -m bench.soak_asynchronous --seconds 600
    python -m bench.soak_asynchronous --algorithm IMPALA --num-learners 0 --num-aggregators 0

Every ten seconds a random EnvRunner or aggregator of this run is sent SIGKILL, and every two minutes the learner. After
each iteration, sampled env steps have to be those used, dropped, lost and in flight, exactly. Exits with 1 if they are
not, if the mean return never reached the target, or if the memory of this process has grown by a tenth since the first
minute.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.soak import Killer, pid_of

ENV = "CartPole-v1"
WARMUP_S = 60.0
MAX_GROWTH = 1.1


def make_config(args: argparse.Namespace) -> Any:
    """CartPole with two EnvRunners of 16 environments."""
    from jaxrl_stack.algorithms.appo import APPOConfig
    from jaxrl_stack.algorithms.impala import IMPALAConfig

    config = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}[args.algorithm]()
    return (
        config.environment(ENV)
        .env_runners(num_env_runners=2, num_envs_per_env_runner=16, num_cpus_per_env_runner=1)
        .training(train_batch_size_per_learner=1600, lr=5e-4, vf_loss_coeff=0.05, entropy_coeff=0.01)
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "vf_share_layers": False})
        .learners(
            num_learners=args.num_learners,
            num_aggregator_actors_per_learner=args.num_aggregators,
            learner_snapshot_interval=10,
        )
        .fault_tolerance(restart_failed_env_runners=True, num_consecutive_env_runner_failures_tolerance=1000)
        .reporting(min_time_s_per_iteration=5)
        .debugging(seed=args.seed)
    )


def register(algo: Any, workers: Killer, learners: Killer) -> None:
    """Registers the present processes of all actors at the killers."""
    for actor_id, pid in algo.env_runner_group.foreach_env_runner(
        pid_of, local_env_runner=False, return_actor_ids=True, timeout_seconds=10.0
    ):
        workers.register(f"env runner {actor_id}", pid)
    aggregation = algo.driver.step.aggregation
    if aggregation is not None and aggregation.has_actors:
        import ray  # pyright: ignore[reportMissingImports]
        import ray.exceptions  # pyright: ignore[reportMissingImports]

        asked = {i: actor.apply.remote(pid_of) for i, actor in aggregation.actors().items()}
        ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=5.0)
        for i, ref in asked.items():
            with contextlib.suppress(ray.exceptions.RayError):
                if ref in ready:
                    workers.register(f"aggregator {i}", ray.get(ref))
    if algo.config.num_learners:
        for call in algo.learner_group.foreach_learner(pid_of):
            if call.ok:
                learners.register(f"learner {call.actor_id}", call.get())


def unaccounted(result: Any) -> int:
    """Sampled env steps that are neither used nor dropped, lost or in flight."""
    fates = ("used_lifetime", "dropped_lifetime", "lost_lifetime", "in_flight")
    return result["num_env_steps_sampled_lifetime"] - sum(result[f"num_env_steps_{fate}"] for fate in fates)


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    import psutil

    return psutil.Process().memory_info().rss


def train(args: argparse.Namespace) -> dict[str, Any]:
    """Trains for ``--seconds`` seconds while actors are killed; returns the numbers of the run."""
    algo = make_config(args).build_algo()
    started, best, before, result = time.monotonic(), -math.inf, None, None
    num_wrong = 0
    with Killer(args.kill_every, args.seed) as workers, Killer(args.kill_learner_every, args.seed) as learners:
        while time.monotonic() - started < args.seconds:
            register(algo, workers, learners)
            result = algo.train()
            mean = result["env_runners"]["episode_return_mean"]
            best = max(best, mean) if mean == mean else best
            num_wrong += unaccounted(result) != 0
            if before is None and time.monotonic() - started > WARMUP_S:
                before = resident_bytes()
    after = resident_bytes()
    tolerance = result["fault_tolerance"] if result is not None else {}
    numbers = {
        "best_return": round(best, 1),
        "kills": len(workers.killed),
        "kills_of_learners": len(learners.killed),
        "env_runner_restarts": tolerance.get("num_remote_worker_restarts"),
        "learner_restarts": algo.learner_group.get_stats()["num_learner_restarts"],
        "results_with_steps_unaccounted_for": num_wrong,
        "memory_growth": round(after / (before or after), 3),
        **{f"num_env_steps_{name}": result[f"num_env_steps_{name}"] for name in _STEPS if result is not None},
    }
    algo.stop()
    return numbers


_STEPS = ("sampled_lifetime", "used_lifetime", "dropped_lifetime", "lost_lifetime", "in_flight")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=["IMPALA", "APPO"], default="APPO")
    parser.add_argument("--num-learners", type=int, default=1)
    parser.add_argument("--num-aggregators", type=int, default=1)
    parser.add_argument("--kill-every", type=float, default=10.0)
    parser.add_argument("--kill-learner-every", type=float, default=120.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--target", type=float, default=450.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    import ray  # pyright: ignore[reportMissingImports]

    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:
        numbers = train(args)
    finally:
        ray.shutdown()
    print(numbers)
    has_passed = numbers["best_return"] >= args.target and numbers["memory_growth"] <= MAX_GROWTH
    return 0 if has_passed and not numbers["results_with_steps_unaccounted_for"] else 1


if __name__ == "__main__":
    sys.exit(main())
