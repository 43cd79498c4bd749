"""Schedulers of sweeps against training without them, with equal or fewer steps.

    python -m bench.tuning pbt --seeds 5 --json tuning.jsonl
    python -m bench.tuning halving --json tuning.jsonl

``pbt``: population-based training of 32 members against 32 fixed learning rates, at equal steps, on `FarTarget`, whose
learning rate must fall. For each seed, the last returns of both best members. ``halving``: 64 combinations of PPO on
gymnax CartPole to the end, and by successive halving; the best combination of each is confirmed on three fresh seeds.
Each result is a JSON line.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

NUM_MEMBERS = 32
FIRST_FRESH_SEED = 1000


def far_target_config(num_envs: int = 32) -> Any:
    """PPO on `FarTarget`: one update of one minibatch per iteration."""
    from envs.far_target import FarTarget
    from jaxrl_stack import PPOConfig

    return (
        PPOConfig()
        .environment(FarTarget)
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=4)
        .learners(num_cpus_per_learner=1)
        .training(train_batch_size_per_learner=4 * num_envs, minibatch_size=4 * num_envs, num_epochs=1, grad_clip=None)
        .training(vf_loss_coeff=0.0, use_kl_loss=False, entropy_coeff=0.0)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .reporting(min_time_s_per_iteration=None)
    )


def pbt(seed: int, iterations: int) -> dict[str, Any]:
    """Compares a sweep of fixed learning rates with population-based training, with one seed."""
    from ray import tune
    from ray.tune.schedulers import PopulationBasedTraining

    from jaxrl_stack.runs import run_sweep

    config, until = far_target_config(), {"training_iteration": iterations}
    # Seeds of the members of one population are consecutive.
    seeds = [seed * NUM_MEMBERS]
    rates = np.geomspace(1e-4, 1.0, NUM_MEMBERS).tolist()
    started = time.perf_counter()
    fixed = run_sweep(config, {"lr": rates}, seeds=seeds, until=until, progress=False)
    seconds = [time.perf_counter() - started]
    space: dict[str, Any] = {"lr": tune.loguniform(1e-4, 1.0)}
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=10, hyperparam_mutations=space
    )
    # The members begin with the fixed rates.
    swept = run_sweep(config, {"lr": rates}, seeds=seeds, until=until, scheduler=scheduler, progress=False)
    seconds.append(time.perf_counter() - started - seconds[0])
    assert swept.lineage is not None
    schedule = swept.lineage.schedule(swept.best_member(), "lr")
    return {
        "bench": "pbt",
        "seed": seed,
        "iterations": iterations,
        "fixed": fixed.best().last,
        "fixed_lr": fixed.best().settings["lr"],
        "pbt": swept.best().last,
        "lr_at_quarters": [
            [lr for start, lr in schedule if start <= iteration][-1]
            for iteration in (1, iterations // 4, iterations // 2, iterations)
        ],
        "seconds": seconds,
    }


def halving(iterations: int) -> dict[str, Any]:
    """Compares a full sweep with a sweep by ASHA; trains the best settings of both with new seeds."""
    from ray.tune.schedulers import ASHAScheduler

    from jaxrl_stack import PPOConfig
    from jaxrl_stack.runs import run_sweep

    config = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=8)
        .learners(num_cpus_per_learner=1)
        .training(train_batch_size_per_learner=1024, minibatch_size=256, num_epochs=4)
        .rl_module(model_config={"fcnet_hiddens": [32, 32]})
        .reporting(min_time_s_per_iteration=None)
    )
    space = {"lr": np.geomspace(1e-5, 1e-2, 8).tolist(), "entropy_coeff": [0.0, 0.003, 0.01, 0.1], "gamma": [0.9, 0.99]}
    until = {"training_iteration": iterations}
    found: dict[str, Any] = {"bench": "halving", "iterations": iterations}
    scheduler = ASHAScheduler(grace_period=max(1, iterations // 16), max_t=iterations)
    for name, chosen in (("grid", None), ("halving", scheduler)):
        started = time.perf_counter()
        sweep = run_sweep(config, space, until=until, progress=False, scheduler=chosen)
        best = sweep.best()
        steps = sum(int(history["num_env_steps_sampled_lifetime"][-1]) for history in sweep.histories)
        found[name] = {
            "settings": dict(best.settings),
            "steps": steps,
            "last": best.last,
            "seconds": time.perf_counter() - started,
        }
    for name in ("grid", "halving"):
        fresh = range(FIRST_FRESH_SEED, FIRST_FRESH_SEED + 3)
        space_of_one = {setting: [value] for setting, value in found[name]["settings"].items()}
        confirmed = run_sweep(config, space_of_one, seeds=fresh, until=until, progress=False)
        found[name]["confirmed"] = float(np.mean([history[RETURN][-1] for history in confirmed.histories]))
    found["share_of_steps"] = found["halving"]["steps"] / found["grid"]["steps"]
    found["share_of_return"] = found["halving"]["confirmed"] / found["grid"]["confirmed"]
    return found


RETURN = "env_runners/episode_return_mean"


def _print(result: dict[str, Any], path: str | None) -> None:
    line = json.dumps(result)
    print(line, flush=True)
    if path is not None:
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("pbt", "halving"))
    parser.add_argument("--seeds", type=int, default=5, help="seeds of pbt (default: 5)")
    parser.add_argument("--iterations", type=int, help="iterations of each run (default: 200 for pbt, 160 for halving)")
    parser.add_argument("--json", metavar="PATH", help="file to which results are added")
    arguments = parser.parse_args()
    if arguments.what == "pbt":
        for seed in range(arguments.seeds):
            _print(pbt(seed, arguments.iterations or 200), arguments.json)
    else:
        _print(halving(arguments.iterations or 160), arguments.json)


if __name__ == "__main__":
    main()
