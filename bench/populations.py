"""Populations beside a hand-written loop under vmap, and one member beside its run alone: PPO on CartPole, in turns.

    python -m bench.populations --members 16,64 --rounds 5 --json out.json
    python -m bench.populations --members 64 --at-once 4,8,16,32 --rounds 3
    python -m bench.populations --rates 64 --steps 200000
    python -m bench.populations --rates 64 --steps 200000 --rllib-python ENV/bin/python

The loop is that of `bench.baselines.sorting_loop` over the same seeds: ``jit(vmap(...))`` on one device, as public
single-file trainers do it. Settings are those of `bench.throughput`, 4 environments for each member.
``--rates`` times `run_sweep` over so many learning rates, compilation included: one program on two devices, and one
run after the other on one device, which is what each of them uses. With ``--rllib-python`` the other side is Tune with
RLlib in that environment instead: it trains 4 of the learning rates with the same settings on gymnasium's CartPole, a
trial on each CPU, and the time of all is extrapolated from these.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from bench import harness
from bench.peers.protocol import Peer
from bench.throughput import NUM_EPOCHS, NUM_MINIBATCHES, NUM_STEPS, TASKS, config_of, integers

NUM_ENVS = 4


@dataclasses.dataclass(frozen=True)
class Run:
    """Contender of `harness.interleave`; `compile_s` is the time until the end of the first iteration."""

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int
    compile_s: float


def make_loop(num_members: int) -> Run:
    """Creates the contender with the hand-written loop under vmap."""
    from bench.baselines.sorting_loop import make_loop

    started = time.perf_counter()
    loop = make_loop(NUM_ENVS, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES, num_members=num_members)
    return Run(loop.step, loop.steps_per_iteration, time.perf_counter() - started)


def make_population(num_members: int, num_devices: int, at_once: int | None = None) -> Run:
    """Creates the contender that uses the public API."""
    started = time.perf_counter()
    config = config_of(TASKS["CartPole-v1"], NUM_ENVS, num_devices)
    population = config.build_population(seeds=num_members, members_at_once=at_once)
    population.train()
    num_env_steps = num_members * NUM_ENVS * NUM_STEPS
    return Run(population.train, num_env_steps, time.perf_counter() - started)


def make_solo() -> Run:
    """Creates the contender with a single run."""
    started = time.perf_counter()
    algo = config_of(TASKS["CartPole-v1"], NUM_ENVS, 1).build_algo()
    algo.train()
    return Run(algo.train, NUM_ENVS * NUM_STEPS, time.perf_counter() - started)


def contenders(members: int, sizes: list[int]) -> dict[str, Run]:
    """Creates the contenders by name; the others are compared with the first one."""
    if members == 1:
        return {"alone": make_solo(), "1 device": make_population(1, 1)}
    runs = {"loop": make_loop(members), "1 device": make_population(members, 1)}
    for at_once in sizes or [None]:
        name = "2 devices" if at_once is None else f"2 devices, {at_once} at once"
        runs[name] = make_population(members, 2, at_once)
    return runs


def _rates(number: int) -> list[float]:
    """Returns learning rates from 1e-4 on, each 5 % higher than the one before."""
    return [1e-4 * 1.05**i for i in range(number)]


def time_rates(number: int, num_steps: int) -> dict[str, float]:
    """Measures the seconds of a sweep over learning rates, as one program and as single runs in sequence, and their
    ratio.
    """
    seconds = {}
    for name in ("one_program", "one_after_the_other"):
        seconds[f"{name}_s"] = _seconds_of_sweep(_rates(number), num_steps, one_program=name == "one_program")
        print(f"{name}: {seconds[f'{name}_s']:.1f} s", flush=True)
    return {**seconds, "ratio": seconds["one_program_s"] / seconds["one_after_the_other_s"]}


def _seconds_of_sweep(rates: list[float], num_steps: int, *, one_program: bool) -> float:
    """Measures a sweep as one program on two devices, or as single runs in sequence on one device."""
    from jaxrl_stack.runs.sweep import run_sweep

    config = config_of(TASKS["CartPole-v1"], NUM_ENVS, 2 if one_program else 1)
    until = {"num_env_steps_sampled_lifetime": num_steps}
    started = time.perf_counter()
    run_sweep(config, {"lr": rates}, until=until, one_program=one_program, progress=False)
    return time.perf_counter() - started


def time_tune(number: int, num_steps: int, python: str, num_trials: int = 4) -> dict[str, Any]:
    """Measures the sweep by Tune with RLlib, extrapolated from a few trials, and this project's time relative to it.

    Ray is running already; its processes, what Tune writes, and the trials' own start count.
    """
    rates = _rates(number)
    ours = _seconds_of_sweep(rates, num_steps, one_program=True)
    print(f"one program: {ours:.1f} s", flush=True)
    batch_size = NUM_ENVS * NUM_STEPS
    settings = {
        "env": "CartPole-v1",
        "env_runners": {"num_envs_per_env_runner": NUM_ENVS, "rollout_fragment_length": NUM_STEPS},
        "training": {
            "train_batch_size_per_learner": batch_size,
            "minibatch_size": batch_size // NUM_MINIBATCHES,
            "num_epochs": NUM_EPOCHS,
            "lr": rates[:: number // num_trials][:num_trials],
            "gamma": 0.99,
            "lambda_": 0.95,
            "clip_param": 0.2,
            "vf_clip_param": 0.2,
            "vf_loss_coeff": 0.5,
            "entropy_coeff": 0.01,
            "use_kl_loss": False,
            "grad_clip": 0.5,
            "grad_clip_by": "global_norm",
        },
        "model": TASKS["CartPole-v1"].model_config,
        "seed": 0,
        "steps": num_steps,
        "num_cpus": os.cpu_count() or 1,
        "warmup": 0,
    }
    with Peer([python, "-m", "bench.peers.rllib_tune"], settings, patience=7200.0) as peer:
        (trials,) = peer.measure(0.0)
        versions = peer.versions
    tune_s = trials["seconds"] / num_trials * number
    print(f"{num_trials} trials of Tune: {trials['seconds']:.1f} s, {tune_s:.0f} s for {number}", flush=True)
    return {"one_program_s": ours, "trials": trials, "versions": versions, "tune_s": tune_s, "ratio": ours / tune_s}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=integers, default=[1, 16, 64], help="numbers of members")
    parser.add_argument("--at-once", type=integers, default=[], help="members that a device trains at once")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of a turn, at least")
    parser.add_argument("--rates", type=int, default=0, help="time a sweep over so many learning rates instead")
    parser.add_argument("--steps", type=int, default=200_000, help="env steps of each of its runs")
    parser.add_argument("--rllib-python", help="with --rates: interpreter of an environment with ray[rllib] and torch")
    parser.add_argument("--json", help="file to write")
    args = parser.parse_args()
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    if args.rates:
        python = args.rllib_python
        found = time_tune(args.rates, args.steps, python) if python else time_rates(args.rates, args.steps)
        print(f"one program takes {found['ratio']:.2f} of the time")
        harness.write_json(args.json, {"rates": args.rates, "steps": args.steps, **found})
        return
    rows = []
    for members in args.members:
        runs = contenders(members, args.at_once)
        timings = harness.interleave(runs, args.rounds, args.seconds)
        first = next(iter(runs))
        for name, timing in timings.items():
            rows.append(
                {
                    "members": members,
                    "contender": name,
                    "steps_per_s": timing.rate,
                    "cores": sum(timing.cores) / len(timing.cores),
                    f"ratio_to_{'alone' if members == 1 else 'loop'}": timing.ratio_to(timings[first]),
                    "ratio_per_core": timing.rate_per_core / timings[first].rate_per_core,
                    "compile_s": runs[name].compile_s,
                }
            )
            shown = {key: round(value, 3) if isinstance(value, float) else value for key, value in rows[-1].items()}
            print("  ".join(f"{key} {value}" for key, value in shown.items()), flush=True)
    harness.write_json(args.json, {"populations": rows})


if __name__ == "__main__":
    main()
