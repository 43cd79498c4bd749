"""DQN and SAC: this project, hand-written loops and other libraries with the same settings, measured in turns.

    python -m bench.off_policy_throughput --rejax-python PATH --sbx-python PATH --sb3-python PATH --rllib-python PATH
    python -m bench.off_policy_throughput --only host-dqn,host-sac --rllib-python PATH --json out.json

Comparisons: ``device-dqn`` and ``device-sac`` train on gymnax environments with the settings of public single-file
scripts, one update per step of all environments; ``host-dqn`` and ``host-sac`` train on gymnasium environments with
the settings of RLlib's own examples, whose natural ratio is one update per `rollout_fragment_length` env steps.
Every contender is a process of its own (`bench.peers`), in a virtual environment of its own where one is given; the
others wait while one is measured. rejax needs a gymnax before 1.0 beside it.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from bench import harness
from bench.host_throughput import OURS, RLLIB, SB3, Comparison, Row, compare

LOOP, REJAX, SBX = "loop", "rejax", "sbx"
STEPS = 1000
"""Environment steps that the parts of a row are given for."""


@dataclasses.dataclass(frozen=True)
class Job:
    """Comparison of contenders with the same settings.

    Args:
        title: Of its table.
        contenders: What takes part beside this project, if there is an interpreter for them.
        bar: The least ratio of this project's rate to each of theirs.
        settings: What all of them are told (`bench.peers.off_policy`).
    """

    title: str
    contenders: tuple[str, ...]
    bar: float
    settings: Mapping[str, Any]


DEVICE_DQN = {
    "algorithm": "DQN",
    "env": "gymnax/CartPole-v1",
    "env_runners": {"num_envs_per_env_runner": 10, "rollout_fragment_length": 1},
    "training": {
        "train_batch_size_per_learner": 128,
        "lr": 2.5e-4,
        "gamma": 0.99,
        "n_step": 1,
        "double_q": False,
        "dueling": False,
        "td_error_loss_fn": "mse",
        "grad_clip": None,
        "tau": 1.0,
        "target_network_update_freq": 500,
        "epsilon": [[0, 1.0], [250_000, 0.05]],
        "num_steps_sampled_before_learning_starts": 10_000,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 10_000},
    },
    "reporting": {"min_sample_timesteps_per_iteration": 20_000, "min_time_s_per_iteration": 0},
    "model": {"fcnet_hiddens": [120, 84], "fcnet_activation": "relu", "head_fcnet_hiddens": []},
}
MEMBERS_DQN = {
    **DEVICE_DQN,
    "members": 64,
    "reporting": {"min_sample_timesteps_per_iteration": 5_000, "min_time_s_per_iteration": 0},
}
DEVICE_SAC = {
    "algorithm": "SAC",
    "env": "gymnax/Pendulum-v1",
    "env_runners": {"num_envs_per_env_runner": 1, "rollout_fragment_length": 1},
    "training": {
        "train_batch_size_per_learner": 256,
        "lr": None,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "alpha_lr": 3e-4,
        "gamma": 0.99,
        "n_step": 1,
        "tau": 0.005,
        "target_network_update_freq": 0,
        "num_steps_sampled_before_learning_starts": 300,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
    },
    "reporting": {"min_sample_timesteps_per_iteration": 200, "min_time_s_per_iteration": 0},
    # Without a fusion net a critic is one MLP over observation and action, as everywhere but in RLlib.
    "model": {
        "fcnet_hiddens": [256, 256],
        "fcnet_activation": "relu",
        "head_fcnet_hiddens": [],
        "fusionnet_hiddens": None,
    },
}
# RLlib's example of DQN on CartPole-v1.
HOST_DQN = {
    "algorithm": "DQN",
    "env": "CartPole-v1",
    "env_runners": {},
    "training": {
        "train_batch_size_per_learner": 32,
        "lr": 5e-4,
        "n_step": [2, 5],
        "double_q": True,
        "dueling": True,
        "epsilon": [[0, 1.0], [10_000, 0.02]],
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 50_000,
            "alpha": 0.6,
            "beta": 0.4,
        },
    },
    "reporting": {"min_sample_timesteps_per_iteration": 1000, "min_time_s_per_iteration": 0},
    "model": {
        "fcnet_hiddens": [256],
        "fcnet_activation": "tanh",
        "fcnet_bias_initializer": "zeros_",
        "head_fcnet_hiddens": [256],
        "head_fcnet_bias_initializer": "zeros_",
    },
}
# RLlib's example of SAC on Pendulum-v1.
HOST_SAC = {
    "algorithm": "SAC",
    "env": "Pendulum-v1",
    "env_runners": {},
    "training": {
        "train_batch_size_per_learner": 256,
        "lr": None,
        "actor_lr": 2e-4,
        "critic_lr": 8e-4,
        "alpha_lr": 9e-4,
        "initial_alpha": 1.001,
        "target_entropy": "auto",
        "n_step": [2, 5],
        "tau": 0.005,
        "target_network_update_freq": 1,
        "num_steps_sampled_before_learning_starts": 256,
        "replay_buffer_config": {
            "type": "PrioritizedEpisodeReplayBuffer",
            "capacity": 100_000,
            "alpha": 1.0,
            "beta": 0.0,
        },
    },
    "reporting": {
        "min_sample_timesteps_per_iteration": 250,
        "min_time_s_per_iteration": 0,
        "metrics_num_episodes_for_smoothing": 5,
    },
    "model": {
        "fcnet_hiddens": [256, 256],
        "fcnet_activation": "relu",
        "fcnet_kernel_initializer": "xavier_uniform_",
        "head_fcnet_hiddens": [],
        "head_fcnet_activation": None,
        "head_fcnet_kernel_initializer": "orthogonal_",
        "head_fcnet_kernel_initializer_kwargs": {"gain": 0.01},
        "fusionnet_hiddens": [256, 256, 256],
        "fusionnet_activation": "relu",
    },
}
JOBS = {
    "device-dqn": Job(
        "DQN, gymnax CartPole-v1, 10 envs, one update of 128 per 10 env steps", (LOOP, REJAX), 1.5, DEVICE_DQN
    ),
    "device-sac": Job(
        "SAC, gymnax Pendulum-v1, one update of 256 per env step, 256x256", (LOOP, REJAX, SBX, SB3), 1.5, DEVICE_SAC
    ),
    "members-dqn": Job("64 members of DQN, each as device-dqn", (REJAX,), 1.5, MEMBERS_DQN),
    "host-dqn": Job("DQN, gymnasium CartPole-v1, RLlib's example settings", (RLLIB,), 20.0, HOST_DQN),
    "host-sac": Job("SAC, gymnasium Pendulum-v1, RLlib's example settings", (RLLIB,), 20.0, HOST_SAC),
}


def settings_of(job: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a comparison's contenders; with shorter iterations (``--steps``) the first update is
    earlier.
    """
    settings = copy.deepcopy(dict(JOBS[job].settings))
    settings |= {"job": job, "seed": 0, "warmup": args.warmup, "torch_threads": args.torch_threads}
    settings["env_runners"]["num_env_runners"] = 0
    settings["learners"] = {}
    if job in ("device-dqn", "members-dqn") and args.devices > 1:
        settings["learners"]["num_cpus_per_learner"] = args.devices
    if args.steps:
        settings["reporting"]["min_sample_timesteps_per_iteration"] = args.steps
        settings["training"]["num_steps_sampled_before_learning_starts"] = args.steps
    return settings


def peer_commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Returns ``{contender: command of its process}`` for the contenders whose interpreter is given."""
    pythons = {
        OURS: args.python,
        LOOP: args.python,
        REJAX: args.rejax_python,
        SBX: args.sbx_python,
        SB3: args.sb3_python,
        RLLIB: args.rllib_python,
    }
    return {name: [python, "-m", f"bench.peers.{name}_off_policy"] for name, python in pythons.items() if python}


def measure(peers: Mapping[str, Sequence[str]], args: argparse.Namespace) -> list[Row]:
    """Measures all rows of the table that the command line selects."""
    rows = []
    for name in args.only:
        job = JOBS[name]
        here = {peer: peers[peer] for peer in peers if peer in (OURS, *job.contenders)}
        comparison = Comparison(name, STEPS, lambda peer, size, job=job: None if peer == OURS else job.bar)
        settings = settings_of(name, args)
        rows += compare(here, settings, settings["env"], comparison, args.rounds, args.seconds)
    return rows


def updates_per_step(row: Row) -> float:
    """Returns the number of gradient steps per env step."""
    return sum(each["updates"] for each in row.results) / sum(each["steps"] for each in row.results)


def print_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints a table of each comparison, and whether it reaches its bar."""
    for name in dict.fromkeys(row.table for row in rows):
        mine = [row for row in rows if row.table == name]
        parts = list(dict.fromkeys(part for row in mine for part in row.parts))
        harness.print_table(
            f"{name}: {JOBS[name].title}",
            [
                "contender",
                "steps/s",
                "min",
                "max",
                "updates/s",
                "cores",
                "÷ per core",
                "jaxrl ÷",
                "bar",
                "bar is",
                *parts,
            ],
            [
                [
                    row.contender,
                    row.rate,
                    row.rate_min,
                    row.rate_max,
                    row.rate * updates_per_step(row),
                    row.cores,
                    row.ratio_per_core,
                    row.ratio,
                    row.bar,
                    {True: "met", False: "missed", None: None}[row.met],
                    *(row.parts.get(part) for part in parts),
                ]
                for row in mine
            ],
            caption=f"medians of {args.rounds} interleaved rounds; parts: seconds per {STEPS} env steps",
        )


def jobs(text: str) -> list[str]:
    """Parses comma-separated names of comparisons.

    Raises:
        argparse.ArgumentTypeError: One is unknown.
    """
    names = [part for part in text.split(",") if part]
    if unknown := [name for name in names if name not in JOBS]:
        raise argparse.ArgumentTypeError(f"unknown comparison {unknown[0]!r}; choose from {', '.join(JOBS)}")
    return names


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.off_policy_throughput", description=(__doc__ or "").split("\n\n")[0]
    )
    for name, has in (
        ("rllib", "ray[rllib] and torch"),
        ("sb3", "stable-baselines3"),
        ("sbx", "sbx-rl"),
        ("rejax", "rejax and gymnax<1"),
    ):
        parser.add_argument(f"--{name}-python", metavar="PATH", help=f"interpreter that has {has}")
    parser.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="interpreter for this project and the loops"
    )
    parser.add_argument(
        "--only", type=jobs, default=list(JOBS), metavar="NAMES", help=f"comma-separated: {', '.join(JOBS)}"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the first turn")
    parser.add_argument(
        "--devices", type=int, default=1, help="CPU devices that this project's learner uses for device-dqn"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="env steps of an iteration (default: by comparison)")
    parser.add_argument(
        "--torch-threads", type=int, default=1, help="of the peers; more wait for each other on a busy machine"
    )
    parser.add_argument(
        "--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the tables)'
    )
    args = parser.parse_args(arguments)
    for name in ("rounds", "warmup", "devices"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: at least 1")
    return args


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    args = parse()
    rows = measure(peer_commands(args), args)
    if args.json != "-":
        print_rows(rows, args)
    harness.write_json(
        args.json,
        {
            "machine": harness.machine(),
            "results": [
                {
                    **{
                        field.name: getattr(row, field.name)
                        for field in dataclasses.fields(row)
                        if field.name != "results"
                    },
                    "updates_per_step": updates_per_step(row),
                    "met": row.met,
                }
                for row in rows
            ],
        },
    )


if __name__ == "__main__":
    main()
