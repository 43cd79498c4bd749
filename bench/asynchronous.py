"""IMPALA and APPO on EnvRunner actors: against RLlib, against what the cores allow, and on slow environments.

    python -m bench.asynchronous --rllib-python ENV/bin/python --json out.json
    python -m bench.asynchronous --tables bound,slow

Two EnvRunners of 16 environments, one learner; every contender is a process of its own (`bench.peers`), and the others
wait while one is measured.

* ``rllib``: env steps/s with the same settings, RLlib's defaults.
* ``bound``: the same as a share of ``cores / (CPU seconds per env step of a runner alone + of the learner alone)``.
* ``slow``: environments that sleep, or compute, for a millisecond in each step: env steps/s as a share of what the two
  runners make without a learner, and what the driver's process takes meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from bench import harness
from bench.peers.protocol import Peer

NUM_RUNNERS, NUM_ENVS, LENGTH = 2, 16, 50
MODEL = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
RLLIB_BAR, BOUND_BAR = 10.0, 0.75
SLOW_BARS = {"sleeps": 0.95, "computes": 0.85}
DRIVER_BAR = 0.1
MILLISECOND = 1e-3


class Slow(gym.Wrapper):
    """CartPole-v1 with steps that take a millisecond longer: they sleep or compute.

    Args:
        config: ``{"how": "sleeps" | "computes"}``.
    """

    def __init__(self, config: Mapping[str, Any]):
        super().__init__(gym.make("CartPole-v1"))
        self.sleeps = config["how"] == "sleeps"

    def step(self, action: Any) -> Any:
        if self.sleeps:
            time.sleep(MILLISECOND)
        else:
            until = time.perf_counter() + MILLISECOND
            while time.perf_counter() < until:
                pass
        return self.env.step(action)


@dataclasses.dataclass
class Row:
    """One row of the tables: a measured rate and its bar.

    Args:
        table: "rllib", "bound" or "slow".
        what: Algorithm, or environment.
        contender: Its name.
        rate: Env steps/s, median over turns.
        ratio: This project's rate over this one; of "bound" and "slow", the share of what is possible.
        bar: What the ratio has to be at least.
        driver_cores: CPU seconds per second of the driver's process.
        more: What the ratio was worked out from.
    """

    table: str
    what: str
    contender: str
    rate: float
    ratio: float | None
    bar: float | None
    driver_cores: float
    more: dict[str, float] = dataclasses.field(default_factory=dict)


def settings_of(algorithm: str, num_learners: int, seconds: float) -> dict[str, Any]:
    """Returns the settings of a contender; its iterations take at least `seconds`."""
    return {
        "algorithm": algorithm,
        "env": "CartPole-v1",
        "env_runners": {"num_env_runners": NUM_RUNNERS, "num_envs_per_env_runner": NUM_ENVS},
        "training": {},
        "learners": {"num_learners": num_learners},
        "model": MODEL,
        "seconds": seconds,
        "warmup": 2,
        "num_cpus": NUM_RUNNERS + 4,
    }


def against_rllib(algorithm: str, args: argparse.Namespace) -> list[Row]:
    """Measures this project with the learner in a thread, this project with a learner actor, and RLlib, in turns."""
    ours = [args.python, "-m", "bench.peers.jaxrl_asynchronous"]
    rllib = [args.rllib_python, "-m", "bench.peers.rllib_asynchronous"]
    peers = {"jaxrl, learner actor": (ours, 1), "jaxrl, thread": (ours, 0), "rllib, learner actor": (rllib, 1)}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in peers}
    with contextlib.ExitStack() as stack:
        running = {
            name: stack.enter_context(Peer(command, settings_of(algorithm, number, args.seconds)))
            for name, (command, number) in peers.items()
        }
        for _ in range(args.rounds):
            for name, peer in running.items():
                turns[name] += peer.measure(0.0)
    rates = {
        name: statistics.median(each["steps"] / each["seconds"] for each in iterations)
        for name, iterations in turns.items()
    }
    return [
        Row(
            "rllib",
            algorithm,
            name,
            rate,
            rate / rates["rllib, learner actor"],
            RLLIB_BAR if name == "jaxrl, learner actor" else None,
            statistics.median(each["cores"] for each in turns[name]),
        )
        for name, rate in rates.items()
    ]


def asynchronous_config(algorithm: str, env: Any, **env_config: Any) -> Any:
    """Returns the IMPALA or APPO config of this project for the measurements."""
    from jaxrl_stack.algorithms.appo import APPOConfig
    from jaxrl_stack.algorithms.impala import IMPALAConfig

    config = {"IMPALA": IMPALAConfig, "APPO": APPOConfig}[algorithm]()
    return (
        config.environment(env, env_config=env_config)
        .env_runners(num_env_runners=NUM_RUNNERS, num_envs_per_env_runner=NUM_ENVS)
        .rl_module(model_config=dict(MODEL))
    )


def cpu_seconds_alone(config: Any) -> tuple[float, float, float]:
    """Measures a runner and a learner separately: returns CPU and wall seconds per env step of the runner, and CPU
    seconds per env step of the learner.
    """
    from jaxrl_stack.core.experience import Experience

    algo = config.copy(copy_frozen=False).env_runners(num_env_runners=0).build_algo()
    runner, learner = algo.env_runner, algo.learner
    blocks = [runner.sample_block(num_steps=LENGTH) for _ in range(5)]
    num_steps, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < 3.0:
        num_steps += runner.sample_block(num_steps=LENGTH).num_env_steps
    of_runner = (time.process_time() - cpu) / num_steps, (time.perf_counter() - wall) / num_steps
    experience = Experience((blocks[-1].part,))
    learner.update_block(experience)
    num_steps, cpu, started = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - started < 3.0:
        learner.update_block(experience)
        num_steps += experience.num_env_steps
    of_learner = (time.process_time() - cpu) / num_steps
    algo.stop()
    return *of_runner, of_learner


def trained_rates(config: Any, args: argparse.Namespace) -> tuple[float, float, float]:
    """``(env steps/s, trained env steps per sampled one, cores of this process)``, medians of iterations."""
    algo = config.reporting(min_time_s_per_iteration=args.seconds).build_algo()
    rates, shares, cores = [], [], []
    for index in range(args.rounds + 2):
        before, updates = algo.num_env_steps_sampled_lifetime, algo.driver.num_updates
        cpu, started = time.process_time(), time.perf_counter()
        algo.train()
        seconds = time.perf_counter() - started
        if index < 2:
            continue
        steps = algo.num_env_steps_sampled_lifetime - before
        rates.append(steps / seconds)
        shares.append((algo.driver.num_updates - updates) * algo.driver.step.rows_per_update / max(steps, 1))
        cores.append((time.process_time() - cpu) / seconds)
    algo.stop()
    return statistics.median(rates), statistics.median(shares), statistics.median(cores)


def against_bound(algorithm: str, args: argparse.Namespace) -> Row:
    """Measures env steps per second relative to the bound that the CPU seconds per env step and the number of cores
    set.
    """
    config = asynchronous_config(algorithm, "CartPole-v1")
    of_runner, _, of_learner = cpu_seconds_alone(config)
    rate, share, cores = trained_rates(config, args)
    num_cores = len(os.sched_getaffinity(0))
    bound = num_cores / (of_runner + of_learner * share)
    more = {"bound": bound, "runner_us": of_runner * 1e6, "learner_us": of_learner * 1e6, "updates_per_step": share}
    return Row("bound", algorithm, "jaxrl, thread", rate, rate / bound, BOUND_BAR, cores, more)


def on_slow(how: str, args: argparse.Namespace) -> Row:
    """Measures env steps per second on slow environments, relative to the rate of runners without a learner."""
    config = asynchronous_config("IMPALA", Slow, how=how)
    _, seconds_per_step, _ = cpu_seconds_alone(config)
    rate, _, cores = trained_rates(config, args)
    limit = NUM_RUNNERS / seconds_per_step
    return Row("slow", how, "jaxrl, thread", rate, rate / limit, SLOW_BARS[how], cores, {"limit": limit})


def measure(args: argparse.Namespace) -> list[Row]:
    """Measures all rows of the table that the command line selects."""
    rows: list[Row] = []
    if "rllib" in args.tables and args.rllib_python:
        for algorithm in args.algorithms:
            rows += against_rllib(algorithm, args)
    if {"bound", "slow"} & set(args.tables):
        import ray

        ray.init(num_cpus=NUM_RUNNERS + 4, include_dashboard=False, log_to_driver=False, configure_logging=False)
        if "bound" in args.tables:
            rows += [against_bound(algorithm, args) for algorithm in args.algorithms]
        if "slow" in args.tables:
            rows += [on_slow(how, args) for how in SLOW_BARS]
        ray.shutdown()
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.asynchronous", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="interpreter for this project")
    parser.add_argument("--tables", type=lambda text: text.split(","), default=["rllib", "bound", "slow"])
    parser.add_argument("--algorithms", type=lambda text: text.split(","), default=["IMPALA", "APPO"])
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=5.0, help="least length of an iteration")
    parser.add_argument("--json", metavar="PATH", help='where to write the report ("-": stdout)')
    args = parser.parse_args(arguments)
    rows = measure(args)
    harness.print_table(
        f"{NUM_RUNNERS} EnvRunners of {NUM_ENVS} environments, one learner: env steps/s",
        ["table", "what", "contender", "per s", "ratio", "bar", "driver's cores"],
        [[row.table, row.what, row.contender, row.rate, row.ratio, row.bar, row.driver_cores] for row in rows],
        caption=f"medians; {args.rounds} rounds; the driver's bar on environments that sleep is {DRIVER_BAR} cores",
    )
    harness.write_json(args.json, {"machine": harness.machine(), "results": [dataclasses.asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
