"""PPO training throughput on gymnax environments: the public API beside two hand-written loops, measured in turns.

    python -m bench.throughput --contenders sorting,tight,api --envs 4,64,512,2048 --devices 1,2 --json out.json
    python -m bench.throughput --env Breakout-MinAtar --contenders sorting,api --envs 64,512 --devices 1
    python -m bench.throughput --contenders unmasked,masked --envs 64 --devices 1

All contenders train with the same settings: 128 steps, 4 epochs, 4 minibatches; on CartPole a 64x64 tanh actor and
critic, on MinAtar one convolution (16 channels, 3x3) and a dense layer of 128 for each, with relu. One process serves
all device counts: a loop on one device is as fast beside a second, idle CPU device as without it.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import harness

NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES = 128, 4, 4
TOGETHER = 16
"""Training steps per call of the contenders "together" and "sorting_together"."""
STAGES = ("rollout", "advantages", "update")
BASELINE, TIGHTEST, UNMASKED = "sorting", "tight", "unmasked"


@dataclasses.dataclass(frozen=True)
class Task:
    """Task of the contenders: environment and networks.

    Args:
        env: gymnax's name of the environment.
        hiddens: Widths of the dense layers of actor and critic.
        filters: Of the convolutions before these: (channels, kernel, stride) of each.
        max_seq_len: Steps of a chunk, with an LSTM as wide as the last layer after the dense ones, which policy and
            value share; None for networks without a memory.
    """

    env: str
    hiddens: tuple[int, ...]
    filters: tuple[tuple[int, int, int], ...] = ()
    max_seq_len: int | None = None

    @property
    def model_config(self) -> dict[str, Any]:
        """Returns the model config of the same networks."""
        if not self.filters:
            dense = {"fcnet_hiddens": list(self.hiddens), "fcnet_activation": "tanh"}
            if self.max_seq_len is None:
                return {**dense, "vf_share_layers": False}
            memory = {"use_lstm": True, "lstm_cell_size": self.hiddens[-1], "max_seq_len": self.max_seq_len}
            return {**dense, "vf_share_layers": True, **memory}
        return {
            "conv_filters": [list(each) for each in self.filters],
            "conv_activation": "relu",
            "head_fcnet_hiddens": list(self.hiddens),
            "head_fcnet_activation": "relu",
            "vf_share_layers": False,
        }


TASKS = {
    task.env: task for task in (Task("CartPole-v1", (64, 64)), Task("Breakout-MinAtar", (128,), filters=((16, 3, 1),)))
}


@dataclasses.dataclass(frozen=True)
class Entry:
    """Contender that the command line can select by name.

    Args:
        make: (task, num_envs, num_devices, until) -> a compiled loop with `step`, `steps_per_iteration`, `compile_s`.
        multi_device: Whether it runs on more than one device.
        has_images: Whether it trains on images.
    """

    make: Callable[[Task, int, int, str], Any]
    multi_device: bool
    has_images: bool = True


@dataclasses.dataclass(frozen=True)
class ApiLoop:
    """An Algorithm as a contender; `compile_s` is the first `train()`, which compiles."""

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int
    compile_s: float


def make_sorting(task: Task, num_envs: int, num_devices: int, until: str, num_iterations: int = 1) -> Any:
    from bench.baselines.sorting_loop import gymnax_environments, make_loop

    sizes = (num_envs, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES, task.hiddens, num_devices)
    environments = gymnax_environments(task.env, num_envs)
    return make_loop(
        *sizes, environments=environments, filters=task.filters, until=until, num_iterations=num_iterations
    )


def make_tight(task: Task, num_envs: int, num_devices: int, until: str) -> Any:
    from bench.baselines.tight_loop import make_loop

    return make_loop(num_envs, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES, task.hiddens, num_devices, until=until)


def make_masked(task: Task, num_envs: int, num_devices: int, until: str, *, has_mask: bool) -> ApiLoop:
    """Creates the contender that uses the public API, with or without an action mask in the observations."""
    from bench.masked_env import MaskedEnv

    environment = {"env": MaskedEnv, "env_config": {"env": task.env, "has_mask": has_mask}}
    return make_api(task, num_envs, num_devices, until, environment=environment)


def make_api(
    task: Task,
    num_envs: int,
    num_devices: int,
    until: str,
    *,
    num_training_steps: int = 1,
    environment: Mapping[str, Any] | None = None,
) -> ApiLoop:
    """Creates the contender that uses the public API, with the default settings of the hand-written loops.

    Several training steps per `train()` are what the public loops do, which have all of theirs in one scan.
    """
    config = config_of(task, num_envs, num_devices, num_training_steps=num_training_steps, environment=environment)
    algo = config.build_algo()
    step = algo.train if until == STAGES[-1] else first_stages(algo, until)
    started = time.perf_counter()
    step()
    return ApiLoop(step, num_training_steps * num_envs * NUM_STEPS, time.perf_counter() - started)


def config_of(
    task: Task,
    num_envs: int,
    num_devices: int,
    *,
    num_training_steps: int = 1,
    environment: Mapping[str, Any] | None = None,
) -> Any:
    """Returns the config with the default settings of the hand-written loops."""
    import jax

    from jaxrl_stack.algorithms.ppo import PPOConfig

    on_cpu = jax.devices()[0].platform == "cpu"
    batch_size = num_envs * NUM_STEPS
    return (
        PPOConfig()
        .environment(**(environment or {"env": f"gymnax/{task.env}"}))
        .env_runners(num_envs_per_env_runner=num_envs)
        .learners(num_cpus_per_learner=num_devices if on_cpu else 1, num_gpus_per_learner=0 if on_cpu else num_devices)
        .training(
            train_batch_size_per_learner=batch_size,
            minibatch_size=batch_size // NUM_MINIBATCHES,
            num_epochs=NUM_EPOCHS,
            lr=2.5e-4,
            gamma=0.99,
            lambda_=0.95,
            clip_param=0.2,
            vf_clip_param=0.2,
            vf_loss_coeff=0.5,
            entropy_coeff=0.01,
            use_kl_loss=False,
            grad_clip=0.5,
            grad_clip_by="global_norm",
        )
        .rl_module(model_config=task.model_config)
        .reporting(min_sample_timesteps_per_iteration=num_training_steps * batch_size)
        .debugging(seed=0)
    )


def first_stages(algo: Any, until: str) -> Callable[[], Mapping[str, Any]]:
    """Compiles the sampling part of an iteration, with the learner connectors if `until` is "advantages"."""
    import jax
    import jax.numpy as jnp

    from jaxrl_stack.core.learner.update_program import AXIS_NAME
    from jaxrl_stack.execution.training_step import TrainState

    learner = algo.learner
    plan = algo.driver.plan_samples(NUM_STEPS)

    def program(state: Any, runner: Any, timesteps: Any, settings: Any) -> tuple[Any, Any]:
        place = dataclasses.replace(algo.driver.program, settings=settings)
        whole = TrainState(state, place.started(runner, state), None, timesteps)
        whole, experience = place.sample(whole, plan)
        runner, _ = place.ended(whole.runner)
        batch = experience.modules
        if until == "advantages":
            _, batch = learner.pure_update.connect(
                state, batch, settings, timesteps, axis_name=AXIS_NAME, layouts=plan.layouts
            )
        # A sum over what was computed keeps XLA from dropping it.
        total = sum(jnp.sum(leaf.astype(jnp.float32)) for leaf in jax.tree.leaves(batch))
        return runner, jax.lax.psum(total, AXIS_NAME)

    mapped = jax.pmap(
        program,
        axis_name=AXIS_NAME,
        in_axes=(None, 0, None, None),
        out_axes=(0, None),
        devices=learner.devices,
        donate_argnums=(1,),
    )

    def step() -> Mapping[str, Any]:
        shards = algo.driver.shards
        shards.state, total = mapped(learner.state, shards.state, algo.driver.timesteps, learner.placed_settings())
        return {"total": float(total)}

    return step


ENTRIES = {
    "sorting": Entry(make_sorting, multi_device=False),
    "tight": Entry(make_tight, multi_device=True, has_images=False),
    "api": Entry(make_api, multi_device=True),
    "sorting_together": Entry(functools.partial(make_sorting, num_iterations=TOGETHER), multi_device=False),
    "together": Entry(functools.partial(make_api, num_training_steps=TOGETHER), multi_device=True),
    "unmasked": Entry(functools.partial(make_masked, has_mask=False), multi_device=True),
    "masked": Entry(functools.partial(make_masked, has_mask=True), multi_device=True),
}


@dataclasses.dataclass
class Row:
    """Measured numbers of one contender at one size."""

    contender: str
    num_envs: int
    num_devices: int
    compile_s: float
    peak_mb: float | None = None
    steps_per_s: float = 0.0
    steps_per_s_min: float = 0.0
    steps_per_s_max: float = 0.0
    cores: float = 0.0
    ratio_to_sorting: float | None = None
    ratio_to_tight: float | None = None
    ratio_to_unmasked: float | None = None
    steps_per_cpu_s: float = 0.0
    stages_ms: dict[str, float] | None = None


def measure(names: list[str], num_envs: int, device_counts: list[int], args: argparse.Namespace) -> list[Row]:
    """Builds every contender for one number of environments, then measures all of them in turns."""
    task = TASKS[args.env]
    loops: dict[tuple[str, int, str], Any] = {}
    rows: dict[tuple[str, int], Row] = {}
    for name in names:
        entry = ENTRIES[name]
        for num_devices in device_counts if entry.multi_device else [1]:
            loop = entry.make(task, num_envs, num_devices, STAGES[-1])
            loops[name, num_devices, STAGES[-1]] = loop
            rows[name, num_devices] = Row(name, num_envs, num_devices, loop.compile_s)
            if args.stages:
                for until in STAGES[:-1]:
                    loops[name, num_devices, until] = entry.make(task, num_envs, num_devices, until)

    timings = harness.interleave(loops, args.rounds, args.seconds, args.warmup)
    for (name, num_devices), row in rows.items():
        timing = timings[name, num_devices, STAGES[-1]]
        row.steps_per_s, row.cores = timing.rate, sorted(timing.cores)[len(timing.cores) // 2]
        row.steps_per_s_min, row.steps_per_s_max = min(timing.rates), max(timing.rates)
        row.steps_per_cpu_s = timing.rate_per_core
        if (BASELINE, 1) in rows:
            row.ratio_to_sorting = timing.ratio_to(timings[BASELINE, 1, STAGES[-1]])
        if (TIGHTEST, num_devices) in rows:
            row.ratio_to_tight = timing.ratio_to(timings[TIGHTEST, num_devices, STAGES[-1]])
        if (UNMASKED, num_devices) in rows:
            row.ratio_to_unmasked = timing.ratio_to(timings[UNMASKED, num_devices, STAGES[-1]])
        if args.stages:
            until = [timings[name, num_devices, stage].seconds_per_iteration * 1e3 for stage in STAGES]
            row.stages_ms = {
                stage: end - start for stage, start, end in zip(STAGES, [0.0, *until[:-1]], until, strict=True)
            }
    if args.memory:
        for (name, num_devices), row in rows.items():
            row.peak_mb = peak_mb(args.env, name, num_envs, num_devices)
    return list(rows.values())


def peak_mb(env: str, name: str, num_envs: int, num_devices: int) -> float:
    """Peak memory of a process that runs one contender: of the accelerator if there is one, else of the host."""
    arguments = ["--env", env, "--contenders", name, "--envs", str(num_envs), "--devices", str(num_devices)]
    arguments += ["--rounds", "1", "--seconds", "0", "--no-stages"]
    report = harness.report_of("bench.throughput", *arguments)
    return (report["device_peak_bytes"] or report["host_peak_bytes"]) / 2**20


def print_rows(rows: list[Row], args: argparse.Namespace) -> None:
    harness.print_table(
        f"PPO training, gymnax {args.env}, {NUM_STEPS} steps, {NUM_EPOCHS} epochs, {NUM_MINIBATCHES} minibatches",
        [
            "contender",
            "envs",
            "devices",
            "steps/s",
            "min",
            "max",
            "÷ sorting",
            "÷ tight",
            "÷ unmasked",
            "steps/CPU s",
            "cores used",
            "compile s",
            "peak MB",
            *(f"{stage} ms" for stage in STAGES),
        ],
        [
            [
                row.contender,
                row.num_envs,
                row.num_devices,
                row.steps_per_s,
                row.steps_per_s_min,
                row.steps_per_s_max,
                row.ratio_to_sorting,
                row.ratio_to_tight,
                row.ratio_to_unmasked,
                row.steps_per_cpu_s,
                row.cores,
                row.compile_s,
                row.peak_mb,
                *(row.stages_ms[stage] if row.stages_ms else None for stage in STAGES),
            ]
            for row in rows
        ],
        caption=f"medians of {args.rounds} interleaved rounds; "
        "sorting runs on one device; peak MB is of a process that runs this contender alone (--memory)",
    )


def integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--contenders", default="sorting,tight,api", help="comma-separated: " + ", ".join(ENTRIES))
    parser.add_argument("--env", choices=list(TASKS), default="CartPole-v1", help="gymnax's name")
    parser.add_argument("--envs", type=integers, default=[4, 64, 512, 2048], help="numbers of environments")
    parser.add_argument("--devices", type=integers, default=[1, 2], help="numbers of devices")
    parser.add_argument("--rounds", type=int, default=5, help="turns of every contender")
    parser.add_argument("--seconds", type=float, default=0.5, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=2, help="iterations of every contender before the first turn")
    parser.add_argument("--stages", action=argparse.BooleanOptionalAction, default=True, help="time the stages too")
    parser.add_argument("--memory", action="store_true", help="measure peak memory, each contender in its own process")
    parser.add_argument("--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the table)')
    args = parser.parse_args(arguments)
    names = args.contenders.split(",")
    if unknown := [name for name in names if name not in ENTRIES]:
        parser.error(f"unknown contender {unknown[0]!r}; choose from {', '.join(ENTRIES)}")

    if TASKS[args.env].filters and (blind := [name for name in names if not ENTRIES[name].has_images]):
        parser.error(f"--env {args.env}: {blind[0]!r} does not train on images; leave it out of --contenders")

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
    harness.write_json(
        args.json,
        {
            "machine": harness.machine(),
            "host_peak_bytes": harness.peak_resident_bytes(),
            "device_peak_bytes": harness.device_peak_bytes(),
            "results": [dataclasses.asdict(row) for row in rows],
        },
    )


if __name__ == "__main__":
    main()
