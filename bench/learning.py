"""Does it learn? Runs several seeds of an environment with its tuned settings until the mean return reaches a target.

    python -m bench.learning --env gymnax/CartPole-v1 --target 475 --within 300000 --seeds 5
    python -m bench.learning --env gymnax/Pendulum-v1 --target -300 --within 400000 --seeds 5

A seed passes if ``env_runners/episode_return_mean`` (the last 100 finished episodes) reaches the target within that
many env steps. Exits with 1 unless all but one seed pass.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any


def run_seed(env: str, seed: int, target: float, within: int) -> dict[str, Any]:
    """Train one seed until the target or the limit, whichever comes first."""
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.algorithms.ppo.tuned import tuned_settings

    settings = tuned_settings(env)
    if settings is None:
        raise SystemExit(f"--env {env}: there are no tuned settings for it in algorithms/ppo/tuned.py.")
    algo = PPOConfig().environment(env).debugging(seed=seed).update_from_dict(settings).build_algo()
    started, best, result = time.perf_counter(), float("-inf"), {}
    while True:
        result = algo.train()
        mean = result["env_runners"]["episode_return_mean"]
        best = max(best, mean) if mean == mean else best
        steps = result["num_env_steps_sampled_lifetime"]
        if best >= target or steps >= within:
            break
    algo.stop()
    return {
        "seed": seed,
        "reached": best >= target and steps <= within,
        "best_return": round(best, 2),
        "env_steps": steps,
        "seconds": round(time.perf_counter() - started, 2),
    }


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="gymnax/CartPole-v1")
    parser.add_argument("--target", type=float, default=475.0)
    parser.add_argument("--within", type=int, default=300_000, help="env steps")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", help="also write the results here")
    args = parser.parse_args()
    results = []
    for seed in range(args.seeds):
        results.append(run_seed(args.env, seed, args.target, args.within))
        print(results[-1], flush=True)
    passed = sum(result["reached"] for result in results)
    print(f"{args.env}: {passed} of {args.seeds} seeds reach {args.target:g} within {args.within:,} steps")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({**vars(args), "results": results}, file, indent=2)
    return 0 if passed >= args.seeds - 1 else 1


if __name__ == "__main__":
    raise SystemExit(main())
