"""IMPALA's training throughput on gymnax environments: the public API beside a hand-written V-trace loop, and PPO's.

    python -m bench.vtrace_throughput --envs 512 --devices 1,2 --json out.json

IMPALA, APPO and the loop train with the same networks (a 64x64 tanh actor and critic each) on the same batches, 50
steps of every environment: IMPALA and the loop in one gradient step on all of it, APPO (the contender "appo") in two.
PPO (the contender "ppo") makes 4 epochs of 4 minibatches of it. The algorithms make 8 training steps per ``train()``;
the contender "impala_single" makes one, of which a tenth goes into results. Contenders take turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import harness

NUM_STEPS, HIDDENS = 50, (64, 64)
TIGHT, PPO = "vtrace", "ppo"
CONTENDERS = (TIGHT, "impala", "impala_single", "appo", PPO)
TOGETHER = 8
"""Training steps per ``train()``."""


@dataclasses.dataclass(frozen=True)
class ApiLoop:
    """An Algorithm as a contender; `compile_s` is the first `train()`, which compiles."""

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int
    compile_s: float


def make_tight(num_envs: int, num_devices: int) -> Any:
    from bench.baselines.vtrace_loop import make_loop

    return make_loop(num_envs, NUM_STEPS, HIDDENS, num_devices)


def make_api(name: str, num_envs: int, num_devices: int) -> ApiLoop:
    """Creates the contender: an algorithm with the default settings of the hand-written loop."""
    name, _, single = name.partition("_")
    num_training_steps = 1 if single else TOGETHER
    algo = config_of(name, num_envs, num_devices, num_training_steps).build_algo()
    started = time.perf_counter()
    algo.train()
    return ApiLoop(algo.train, num_training_steps * num_envs * NUM_STEPS, time.perf_counter() - started)


def config_of(
    name: str, num_envs: int, num_devices: int, num_training_steps: int, env: Any = "gymnax/CartPole-v1"
) -> Any:
    """Returns the config with the default settings of the hand-written loop.

    Args:
        name: "impala", "appo" or "ppo".
        num_envs: Environments over all devices.
        num_devices: Devices of the learner.
        num_training_steps: Training steps per ``train()``.
        env: Environment of the config.
    """
    import jax

    from jaxrl_stack.algorithms.registry import get_algorithm_config_class

    on_cpu, batch_size = jax.devices()[0].platform == "cpu", num_envs * NUM_STEPS
    config: Any = get_algorithm_config_class(name.upper())()
    return (
        config.environment(env)
        .env_runners(num_envs_per_env_runner=num_envs, rollout_fragment_length=NUM_STEPS)
        .learners(num_cpus_per_learner=num_devices if on_cpu else 1, num_gpus_per_learner=0 if on_cpu else num_devices)
        .training(
            train_batch_size_per_learner=batch_size,
            lr=5e-4,
            gamma=0.99,
            vf_loss_coeff=0.5,
            entropy_coeff=0.01,
            grad_clip=40.0,
            **({"minibatch_size": batch_size // 4, "num_epochs": 4, "use_kl_loss": False} if name == PPO else {}),
        )
        .rl_module(model_config={"fcnet_hiddens": list(HIDDENS), "fcnet_activation": "tanh", "vf_share_layers": False})
        .reporting(min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=num_training_steps * batch_size)
        .debugging(seed=0)
    )


@dataclasses.dataclass
class Row:
    """Measured numbers of one contender at one size."""

    contender: str
    num_envs: int
    num_devices: int
    compile_s: float
    steps_per_s: float = 0.0
    cores: float = 0.0
    steps_per_cpu_s: float = 0.0
    ratio_to_vtrace: float | None = None
    ratio_to_ppo: float | None = None


def measure(names: list[str], num_envs: int, device_counts: list[int], args: argparse.Namespace) -> list[Row]:
    """Builds every contender for one number of environments, then measures all of them in turns."""
    loops: dict[tuple[str, int], Any] = {}
    for name in names:
        for num_devices in device_counts:
            make = make_tight(num_envs, num_devices) if name == TIGHT else make_api(name, num_envs, num_devices)
            loops[name, num_devices] = make
    timings = harness.interleave(loops, args.rounds, args.seconds, args.warmup)
    rows = []
    for (name, num_devices), timing in timings.items():
        row = Row(name, num_envs, num_devices, loops[name, num_devices].compile_s, timing.rate)
        row.cores = sorted(timing.cores)[len(timing.cores) // 2]
        row.steps_per_cpu_s = timing.rate_per_core
        # On several devices, too, that of one: what more devices are good for.
        if (TIGHT, 1) in timings:
            row.ratio_to_vtrace = timing.ratio_to(timings[TIGHT, 1])
        if (PPO, num_devices) in timings:
            row.ratio_to_ppo = timing.ratio_to(timings[PPO, num_devices])
        rows.append(row)
    return rows


def print_rows(rows: list[Row], args: argparse.Namespace) -> None:
    harness.print_table(
        f"V-trace training, gymnax CartPole-v1, {NUM_STEPS} steps",
        ["contender", "envs", "devices", "steps/s", "÷ vtrace on 1", "÷ ppo", "cores used", "steps/CPU s", "compile s"],
        [
            [
                row.contender,
                row.num_envs,
                row.num_devices,
                row.steps_per_s,
                row.ratio_to_vtrace,
                row.ratio_to_ppo,
                row.cores,
                row.steps_per_cpu_s,
                row.compile_s,
            ]
            for row in rows
        ],
        caption=f"medians of {args.rounds} interleaved rounds",
    )


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(arguments: Sequence[str] | None = None) -> None:
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m bench.vtrace_throughput", description=summary)
    parser.add_argument("--contenders", default=",".join(CONTENDERS), help="comma-separated: " + ", ".join(CONTENDERS))
    parser.add_argument("--envs", type=integers, default=[512], help="numbers of environments")
    parser.add_argument("--devices", type=integers, default=[1, 2], help="numbers of devices")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=2, help="iterations of every contender before the first turn")
    parser.add_argument("--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the table)')
    args = parser.parse_args(arguments)
    names = args.contenders.split(",")
    if unknown := [name for name in names if name not in CONTENDERS]:
        parser.error(f"unknown contender {unknown[0]!r}; choose from {', '.join(CONTENDERS)}")

    import jax

    # The backend starts with the first array, and importing gymnax makes one.
    jax.config.update("jax_num_cpu_devices", max(args.devices))
    if len(jax.devices()) < max(args.devices):
        parser.error(f"--devices {max(args.devices)}: the backend has {len(jax.devices())}")

    rows = []
    for num_envs in args.envs:
        rows += measure(names, num_envs, args.devices, args)
        jax.clear_caches()
    if args.json != "-":
        print_rows(rows, args)
    harness.write_json(args.json, {"machine": harness.machine(), "results": [dataclasses.asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
