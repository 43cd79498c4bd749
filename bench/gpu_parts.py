"""Parts of `bench.gpu`: one training run each, with its plain loop and its sizes.

Environments come from `bench.baselines.environments`, so most parts need neither gymnax, flashbax nor Ray.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import hashlib
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.device_busy import measure_busy

Size = Mapping[str, Any]
"""Sizes of a case, such as ``{"num_envs": 1024}``."""
CARTPOLE, PENDULUM, CATCH = "plain/CartPole", "plain/Pendulum", "plain/Catch"
ROUNDS = 3
MAX_WARMUP = 200
"""Maximum number of iterations before the first update."""
STEPS_PER_CALL = 2**21
"""Env steps of one call: small training steps are combined up to this number."""
ITERATIONS = 3
"""Iterations with updates after which two runs are compared."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Training run of this project as a contender of `harness.interleave`.

    Args:
        step: One iteration.
        steps_per_iteration: Env steps of an iteration, or agent steps, or rows.
        num_trained: Function of a result: number of trained rows so far; None if each iteration trains.
        estimate: Parts of the estimated memory, in bytes.
        state: Function that returns the arrays that training has changed.
        close: Function that stops the run.
        extra: More numbers for the line.
    """

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int
    num_trained: Callable[[Mapping[str, Any]], float] | None
    estimate: Mapping[str, int]
    state: Callable[[], Any]
    close: Callable[[], None]
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)


Loops = Mapping[str, Callable[[], Any]]
"""Name of a plain loop -> function that compiles it."""


@dataclasses.dataclass(frozen=True)
class Part:
    """Part of the benchmark: a training run, its plain loops and its sizes.

    Args:
        title: Description in tables.
        unit: Name of the counted steps.
        sizes: Sizes on an accelerator; each is a process and a line.
        toy_sizes: Sizes that run on a CPU in seconds.
        make: Function of a size that builds the training run.
        loops: Function of a size that returns the plain loops.
        needs: Packages beyond those that the project requires.
        measure: Replaces `measure_training`: function of (part, size, seconds, toy).
        repeats: Name of the part whose training run is repeated; see `determinism`.
    """

    title: str
    unit: str
    sizes: tuple[Size, ...]
    toy_sizes: tuple[Size, ...]
    make: Callable[[Size], Run]
    loops: Callable[[Size], Loops]
    needs: tuple[str, ...] = ()
    measure: Callable[[Part, Size, float, bool], dict[str, Any]] | None = None
    repeats: str | None = None


# ---------------------------------------------------------------------------------------------------- measurement


def measure(part: Part, size: Size, seconds: float, toy: bool) -> dict[str, Any]:
    """Numbers of one case.

    Args:
        part: The part.
        size: One of its sizes.
        seconds: Time for the timed turns of all contenders together.
        toy: True for sizes that show only that the kit works.
    """
    started = time.perf_counter()
    measured = (part.measure or measure_training)(part, size, seconds, toy)
    return {"unit": part.unit, **measured, "wall_s": time.perf_counter() - started}


def shortened(error: str) -> str:
    """First 500 and last 1,500 characters of an error: the cause is at the start or at the end."""
    return error if len(error) <= 2000 else f"{error[:500]}\n[...]\n{error[-1500:]}"


def measure_training(part: Part, size: Size, seconds: float, toy: bool) -> dict[str, Any]:
    """Speed of a training run and of its plain loops in turns, compile time, busy share and memory."""
    run, numbers = measured_run(part, size)
    loops, problems = _compiled_loops(part.loops(size))
    contenders: dict[str, Any] = {"jaxrl": run, **loops}
    timings = harness.interleave(contenders, 1 if toy else ROUNDS, seconds / len(contenders) / ROUNDS, warmup=0)
    ours = timings["jaxrl"]
    run.close()
    return {
        "steps_per_s": ours.rate,
        "steps_per_s_min": min(ours.rates),
        "steps_per_s_max": max(ours.rates),
        "cores": statistics.median(ours.cores),
        "loops": {
            **{
                name: {"steps_per_s": timings[name].rate, "ratio": ours.ratio_to(timings[name]), "compile_s": own}
                for name, own in ((name, loop.compile_s) for name, loop in loops.items())
            },
            **{name: {"error": problem} for name, problem in problems.items()},
        },
        "steps_per_iteration": run.steps_per_iteration,
        **numbers,
    }


def measured_run(part: Part, size: Size) -> tuple[Run, dict[str, Any]]:
    """Training run that has made its first updates, and its compile time, busy share, memory and `Run.extra`."""
    before = _bytes_in_use()
    run, compile_s = started_run(part, size)
    memory = _memory(before, run.estimate)
    busy = measure_busy(run.step)
    numbers = {
        "compile_s": compile_s,
        "busy_share": busy.share,
        "busy_source": busy.source,
        **({"busy_problem": busy.problem} if busy.problem else {}),
        "memory": memory,
    }
    return run, {**numbers, **run.extra}


def started_run(part: Part, size: Size) -> tuple[Run, float | None]:
    """Training run that has compiled and made its first updates, and its compile seconds.

    Raises:
        RuntimeError: The run makes no update within `MAX_WARMUP` iterations.
    """
    run = part.make(size)
    result = run.step()
    compile_s = float(result["timers"]["compile_s"]) if "timers" in result else None
    for _ in range(MAX_WARMUP):
        result = run.step()
        if run.num_trained is None or run.num_trained(result) > 0:
            return run, compile_s
    raise RuntimeError(f"{part.title}: no update in {MAX_WARMUP} iterations.")


def _compiled_loops(loops: Loops) -> tuple[dict[str, Any], dict[str, str]]:
    """Loops that run, and the errors of the others: a loop may need more memory than the device has."""
    found, problems = {}, {}
    for name, make in loops.items():
        try:
            loop = make()
            loop.step()
            found[name] = loop
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {error}"[:300]
    return found, problems


def _bytes_in_use() -> int:
    """Bytes of the device's allocator; of the arrays that are alive, where the backend does not count."""
    import jax

    stats = jax.devices()[0].memory_stats()
    if stats:
        return int(stats["bytes_in_use"])
    # Arrays of the part before may be in cycles.
    gc.collect()
    return sum(array.nbytes for array in jax.live_arrays())


def _memory(before: int, estimate: Mapping[str, int]) -> dict[str, Any]:
    """Measured and estimated bytes of a run that has trained.

    The peak of the allocator includes buffers that XLA allocates while it compiles, to select the fastest kernels.
    Backends without memory counters show the arrays that are alive between two iterations, without the temporary
    arrays of a program.
    """
    peak = harness.device_peak_bytes()
    return {
        "measured_bytes": (_bytes_in_use() if peak is None else peak) - before,
        "source": "live arrays" if peak is None else "device peak",
        "estimated_bytes": sum(estimate.values()),
        "estimated_parts": dict(estimate),
    }


# ------------------------------------------------------------------------------------------------------- training runs


def on_device(config: Any) -> Any:
    """Config with one accelerator if there is one, else with one CPU device."""
    import jax

    on_cpu = jax.devices()[0].platform == "cpu"
    return config.learners(num_cpus_per_learner=1, num_gpus_per_learner=0 if on_cpu else 1)


def run_of(config: Any, *, rows_per_step: int = 1, trains_at_once: bool = True, **extra: Any) -> Run:
    """Run of a config.

    Args:
        config: The config; its `min_sample_timesteps_per_iteration` are the env steps of an iteration.
        rows_per_step: Agents of an environment; all of them act in each step.
        trains_at_once: False if the first updates come after some iterations.
        extra: More numbers for the line.
    """
    algo = config.build_algo()
    return Run(
        step=algo.train,
        steps_per_iteration=config.min_sample_timesteps_per_iteration * rows_per_step,
        num_trained=None if trains_at_once else num_trained_rows,
        estimate=estimated_parts(algo.memory_estimate()),
        state=lambda: algo.learner.state,
        close=algo.stop,
        extra=extra,
    )


def num_trained_rows(result: Mapping[str, Any]) -> float:
    """Rows trained so far; 0 before the first update."""
    number = result.get("learners", {}).get("__all_modules__", {}).get("num_env_steps_trained_lifetime", 0.0)
    return 0.0 if math.isnan(number) else float(number)


def estimated_parts(estimate: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of each part of `Algorithm.memory_estimate`."""
    return {name: int(part["num_bytes"]) for name, part in estimate.items() if isinstance(part, Mapping)}


def training_steps_of(size: Size, num_steps: int) -> int:
    """Training steps of one call."""
    steps = size["num_envs"] * num_steps
    return size.get("training_steps") or max(1, min(16, STEPS_PER_CALL // steps))


def ppo_task(kind: str) -> Any:
    """Networks of PPO: "mlp", "cnn" or "lstm"."""
    from bench.throughput import NUM_STEPS, Task

    if kind == "cnn":
        return Task(CATCH, (128,), filters=((16, 3, 1),))
    return Task(CARTPOLE, (64,), max_seq_len=NUM_STEPS) if kind == "lstm" else Task(CARTPOLE, (64, 64))


def num_minibatches_of(kind: str, num_envs: int) -> int:
    """Number of minibatches of PPO: as in `bench.throughput`, or more if a minibatch had an array of 2^31 elements.

    The largest array of the convolution contains its outputs: 16 channels of 10 x 10.
    """
    from bench.throughput import NUM_MINIBATCHES, NUM_STEPS

    elements = num_envs * NUM_STEPS * (16 * 10 * 10 if kind == "cnn" else 1)
    number = NUM_MINIBATCHES
    while elements // number >= 2**31:
        number *= 2
    return number


def make_ppo(kind: str, size: Size) -> Run:
    """PPO with the settings of `bench.throughput`, except the number of minibatches."""
    from bench.jax_envs import jax_env_class
    from bench.throughput import NUM_STEPS, config_of

    task, together = ppo_task(kind), training_steps_of(size, NUM_STEPS)
    num_envs, minibatches = size["num_envs"], num_minibatches_of(kind, size["num_envs"])
    environment = {"env": jax_env_class(task.env)}
    config = config_of(task, num_envs, 1, num_training_steps=together, environment=environment)
    config.training(minibatch_size=num_envs * NUM_STEPS // minibatches)
    return run_of(config, training_steps=together, minibatches=minibatches)


def ppo_loops(kind: str, size: Size) -> Loops:
    """The sorting loop and the tight loop; the recurrent loop for LSTMs."""
    from bench.throughput import NUM_EPOCHS, NUM_STEPS

    task, num_envs = ppo_task(kind), size["num_envs"]
    sizes = (num_envs, NUM_STEPS, NUM_EPOCHS, num_minibatches_of(kind, num_envs))
    together = training_steps_of(size, NUM_STEPS)

    def sorting() -> Any:
        from bench.baselines.sorting_loop import gymnax_environments, make_loop

        environments = gymnax_environments(task.env, num_envs)
        images = {"filters": task.filters}
        return make_loop(*sizes, task.hiddens, environments=environments, num_iterations=together, **images)

    def tight() -> Any:
        from bench.baselines.tight_loop import make_loop

        return make_loop(*sizes, task.hiddens, env_name=task.env, num_iterations=together)

    def recurrent() -> Any:
        from bench.baselines.recurrent_loop import make_loop

        return make_loop(*sizes, task.hiddens[-1], env_name=task.env, num_iterations=together)

    loops = {"mlp": {"sorting": sorting, "tight": tight}, "cnn": {"sorting": sorting}, "lstm": {"recurrent": recurrent}}
    return loops[kind]


UPDATES = {"impala": 1, "appo": 2}
"""Gradient steps of an algorithm on each batch."""


def vtrace_config(name: str, size: Size) -> Any:
    """Config of IMPALA or APPO with the settings of `bench.vtrace_throughput`."""
    from bench.jax_envs import jax_env_class
    from bench.vtrace_throughput import NUM_STEPS, config_of

    return config_of(name, size["num_envs"], 1, training_steps_of(size, NUM_STEPS), jax_env_class(CARTPOLE))


def make_vtrace(name: str, size: Size) -> Run:
    """IMPALA or APPO."""
    from bench.vtrace_throughput import NUM_STEPS

    config = vtrace_config(name, size)
    return run_of(config, trains_at_once=False, training_steps=training_steps_of(size, NUM_STEPS))


def vtrace_loops(name: str, size: Size) -> Loops:
    """The V-trace loop with the gradient steps per batch of the algorithm, see `UPDATES`."""
    from bench.vtrace_throughput import HIDDENS, NUM_STEPS

    counts = {"num_updates": UPDATES[name], "num_iterations": training_steps_of(size, NUM_STEPS)}

    def vtrace() -> Any:
        from bench.baselines.vtrace_loop import make_loop

        return make_loop(size["num_envs"], NUM_STEPS, HIDDENS, env_name=CARTPOLE, **counts)

    return {"vtrace": vtrace}


def off_policy_settings(name: str, size: Size) -> dict[str, Any]:
    """Settings of `bench.off_policy_throughput` at another size."""
    from bench.jax_envs import jax_env_class
    from bench.off_policy_throughput import DEVICE_DQN, DEVICE_SAC

    settings = DEVICE_DQN if name == "DQN" else DEVICE_SAC
    num_envs, steps = size["num_envs"], size["steps"]
    training = {
        **settings["training"],
        "train_batch_size_per_learner": size["rows"],
        "num_steps_sampled_before_learning_starts": min(steps, 10_000),
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": size["capacity"]},
    }
    return {
        **settings,
        "env": jax_env_class(CARTPOLE if name == "DQN" else PENDULUM),
        "env_runners": {"num_envs_per_env_runner": num_envs, "rollout_fragment_length": 1},
        "training": training,
        "learners": {},
        "reporting": {"min_sample_timesteps_per_iteration": steps, "min_time_s_per_iteration": 0},
        "seed": 0,
    }


def make_off_policy(name: str, size: Size) -> Run:
    """DQN or SAC: one update for each step of all environments."""
    from bench.peers import off_policy
    from jaxrl_stack.algorithms.registry import get_algorithm_config_class
    from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig

    configs: dict[str, Any] = {name: get_algorithm_config_class(name)}
    api = off_policy.Api(configs, DefaultModelConfig, lambda: None, lambda _: lambda _: {})
    config = off_policy.config_of(api, off_policy_settings(name, size))
    return run_of(on_device(config), trains_at_once=False, rows=size["rows"])


def off_policy_loops(name: str, size: Size) -> Loops:
    """The hand-written DQN or SAC, with `item_ring` in place of flashbax."""

    def loop() -> Any:
        from bench.baselines import dqn_loop, sac_loop
        from bench.baselines.item_ring import make_item_ring

        settings = off_policy_settings(name, size)
        training = settings["training"]
        common = {
            "num_envs": size["num_envs"],
            "num_steps": size["steps"],
            "hiddens": tuple(settings["model"]["fcnet_hiddens"]),
            "env_name": CARTPOLE if name == "DQN" else PENDULUM,
            "batch_size": size["rows"],
            "capacity": size["capacity"],
            "learning_starts": training["num_steps_sampled_before_learning_starts"] - 1,
            "make_buffer": make_item_ring,
        }
        return dqn_loop.make_loop(**common) if name == "DQN" else sac_loop.make_loop(**common)

    return {name.lower(): loop}


def make_pqn(size: Size) -> Run:
    """PQN: 32 steps, 2 epochs, 4 minibatches."""
    from bench.jax_envs import jax_env_class
    from jaxrl_stack.algorithms.pqn import PQNConfig

    together, batch_size = training_steps_of(size, 32), 32 * size["num_envs"]
    config = (
        PQNConfig()
        .environment(jax_env_class(CARTPOLE))
        .env_runners(num_envs_per_env_runner=size["num_envs"])
        .training(
            train_batch_size_per_learner=batch_size,
            minibatch_size=batch_size // 4,
            num_epochs=2,
            lambda_=0.65,
            epsilon=0.05,
        )
        .rl_module(model_config={"fcnet_hiddens": [64, 64], "fcnet_activation": "relu", "head_fcnet_hiddens": []})
        .reporting(min_sample_timesteps_per_iteration=together * batch_size)
        .debugging(seed=0)
    )
    return run_of(on_device(config), training_steps=together)


def pqn_loops(size: Size) -> Loops:
    """The hand-written PQN."""

    def loop() -> Any:
        from bench.baselines.pqn_loop import make_loop

        return make_loop(size["num_envs"], 32, env_name=CARTPOLE, num_iterations=training_steps_of(size, 32))

    return {"pqn": loop}


def own_policy(agent_id: Any, episode: Any, **kwargs: Any) -> str:
    """Policy of an agent: "p0" or "p1"."""
    return f"p{agent_id}"


def make_two_agents(size: Size) -> Run:
    """PPO with two agents that have a policy each, and act in each step."""
    from bench.jax_envs import CartPoles
    from bench.throughput import NUM_MINIBATCHES, NUM_STEPS, config_of

    num_envs, together = size["num_envs"], training_steps_of(size, 2 * NUM_STEPS)
    environment = {"env": CartPoles}
    config = config_of(ppo_task("mlp"), num_envs, 1, num_training_steps=together, environment=environment)
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=own_policy)
    config.training(minibatch_size=num_envs * NUM_STEPS // NUM_MINIBATCHES)
    return run_of(config, rows_per_step=2, training_steps=together)


def two_agents_loops(size: Size) -> Loops:
    """The sorting loop of two seeds under vmap: two networks, each with its own environments."""
    return {"sorting": functools.partial(_members_loop, 2, size["num_envs"], training_steps_of(size, 256))}


def _members_loop(num_members: int, num_envs: int, num_iterations: int = 1) -> Any:
    from bench.baselines.sorting_loop import gymnax_environments, make_loop
    from bench.throughput import NUM_EPOCHS, NUM_MINIBATCHES, NUM_STEPS

    sizes = (num_envs, NUM_STEPS, NUM_EPOCHS, NUM_MINIBATCHES)
    environments = gymnax_environments(CARTPOLE, num_envs)
    return make_loop(*sizes, environments=environments, num_members=num_members, num_iterations=num_iterations)


def make_population(size: Size) -> Run:
    """Population of PPO with 4 environments per member, as in `bench.populations`."""
    from bench.jax_envs import jax_env_class
    from bench.populations import NUM_ENVS
    from bench.throughput import NUM_STEPS, config_of

    config = config_of(ppo_task("mlp"), NUM_ENVS, 1, environment={"env": jax_env_class(CARTPOLE)})
    population = config.build_population(seeds=size["members"])
    needed = population.memory_estimate()
    return Run(
        step=population.train,
        steps_per_iteration=size["members"] * NUM_ENVS * NUM_STEPS,
        num_trained=None,
        estimate={name: needed[name] for name in ("members", "at_once")},
        state=dict,
        close=population.stop,
    )


def population_loops(size: Size) -> Loops:
    """The sorting loop of as many seeds under vmap."""
    from bench.populations import NUM_ENVS

    return {"sorting": functools.partial(_members_loop, size["members"], NUM_ENVS)}


def dreamer_sizes(size: Size) -> tuple[int, int, int, int]:
    """``(B, T, horizon, env steps per call)``."""
    return (2, 8, 3, 8) if size.get("toy") else (16, 64, 15, 64)


def make_dreamer(size: Size) -> Run:
    """DreamerV3 with one environment and one update per env step."""
    from bench.jax_envs import jax_env_class
    from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config

    windows, length, horizon, steps = dreamer_sizes(size)
    config = (
        DreamerV3Config()
        .environment(jax_env_class(CARTPOLE))
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1)
        .training(
            model_size=size["model_size"],
            training_ratio=windows * length,
            batch_size_B=windows,
            batch_length_T=length,
            horizon_H=horizon,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 100_000},
        )
        .reporting(min_sample_timesteps_per_iteration=steps, min_time_s_per_iteration=0)
        .debugging(seed=0)
    )
    return run_of(on_device(config), trains_at_once=False)


def dreamer_loops(size: Size) -> Loops:
    """The hand-written loop with the same networks."""
    windows, length, horizon, steps = dreamer_sizes(size)

    def loop() -> Any:
        from bench.dreamer_loop import make_loop

        batch = (windows, length)
        return make_loop(steps, size["model_size"], env_name=CARTPOLE, batch=batch, horizon=horizon)

    return {"dreamer": loop}


def cloned_columns(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Made-up observations float32 ``[N, 4]``, and actions int32 ``[N]`` that depend on them."""
    obs = np.random.default_rng(0).normal(size=(num_rows, 4)).astype(np.float32)
    return obs, (obs.sum(axis=1) > 0).astype(np.int32)


def make_bc(size: Size) -> Run:
    """Behaviour cloning of recorded steps that the device keeps."""
    import gymnasium as gym
    import pyarrow as pa
    import pyarrow.parquet as pq

    from jaxrl_stack.algorithms.bc import BCConfig

    obs, actions = cloned_columns(size["num_rows"])
    last = np.arange(len(obs)) % 100 == 99
    columns = {
        "eps_id": [str(i // 100) for i in range(len(obs))],
        "obs": list(obs),
        "new_obs": list(np.roll(obs, -1, axis=0)),
        "actions": actions,
        "rewards": np.ones(len(obs), np.float32),
        "terminateds": last,
        "truncateds": np.zeros(len(obs), bool),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.parquet"
        pq.write_table(pa.table(columns), path)
        config = (
            BCConfig()
            .environment(
                observation_space=gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), action_space=gym.spaces.Discrete(2)
            )
            .offline_data(input_=[str(path)], dataset_num_iters_per_learner=size["updates"])
            .training(train_batch_size_per_learner=size["rows"], lr=1e-3)
            .rl_module(model_config={"fcnet_hiddens": [64, 64]})
            .debugging(seed=0)
        )
        algo = on_device(config).build_algo()
        # The first iteration reads the file, and compiles.
        compile_s = float(algo.train()["timers"]["compile_s"])
    estimate = estimated_parts(algo.memory_estimate())
    num_rows = size["updates"] * size["rows"]
    return Run(algo.train, num_rows, None, estimate, lambda: algo.learner.state, algo.stop, {"compile_s": compile_s})


def bc_loops(size: Size) -> Loops:
    """The hand-written behaviour cloning."""

    def loop() -> Any:
        import jax.numpy as jnp

        from bench.baselines.bc_loop import make_loop

        obs, actions = cloned_columns(size["num_rows"])
        return make_loop(jnp.asarray(obs), jnp.asarray(actions), batch_size=size["rows"], num_updates=size["updates"])

    return {"bc": loop}


# ------------------------------------------------------------------------------------------------------------ the host


@dataclasses.dataclass(frozen=True)
class AleLoop:
    """ale-py's vector environment with random actions.

    Args:
        step: 64 steps of all environments.
        steps_per_iteration: Their number.
        compile_s: 0; nothing is compiled.
    """

    step: Callable[[], Mapping[str, Any]]
    steps_per_iteration: int
    compile_s: float = 0.0


def num_atari_envs(size: Size) -> int:
    """Environments: 8 for each core, 128 at most."""
    return size.get("num_envs") or min(128, 8 * (os.cpu_count() or 1))


def make_atari(size: Size) -> Run:
    """PPO on Pong, with all cores for ale-py and an accelerator for the policy, if there is one."""
    import jax

    from bench.pong import MODEL, TRAINING
    from jaxrl_stack.algorithms.ppo import PPOConfig
    from jaxrl_stack.env.registry import resolve_env

    resolve_env("ALE/Pong-v5")  # registers gymnasium's ids
    num_envs, toy = num_atari_envs(size), "num_envs" in size
    batch_size = num_envs * (8 if toy else 128)
    model = {**MODEL, "conv_filters": [[2, 8, 8]], "head_fcnet_hiddens": [4]} if toy else MODEL
    config = (
        PPOConfig()
        .environment("ALE/Pong-v5", env_config={"repeat_action_probability": 0.0})
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=num_envs,
            gym_env_vectorize_mode="vector_entry_point",
            num_gpus_per_env_runner=0 if jax.devices()[0].platform == "cpu" else 1,
        )
        .training(**TRAINING, train_batch_size_per_learner=batch_size, minibatch_size=batch_size // 4)
        .rl_module(model_config=model)
        .reporting(min_sample_timesteps_per_iteration=batch_size)
        .debugging(seed=0)
    )
    return run_of(on_device(config), num_envs=num_envs)


def measure_atari(part: Part, size: Size, seconds: float, toy: bool) -> dict[str, Any]:
    """Trains until a mean return of 18 or until the time is over, then steps ale-py without a policy."""
    run, numbers = measured_run(part, size)
    returns: list[float] = []
    started, num_iterations = time.perf_counter(), 0
    while not num_iterations or (time.perf_counter() - started < seconds * 0.8 and returns[-1:] < [18.0]):
        result = run.step()
        num_iterations += 1
        mean = float(result["env_runners"].get("episode_return_mean", math.nan))
        returns += [] if math.isnan(mean) else [mean]
    rate = num_iterations * run.steps_per_iteration / (time.perf_counter() - started)
    run.close()
    loop = _ale_loop(num_atari_envs(size))
    own = harness.interleave({"ale": loop}, 1 if toy else ROUNDS, seconds * 0.2 / ROUNDS, warmup=0)["ale"].rate
    return {
        "steps_per_s": rate,
        "loops": {"ale-py": {"steps_per_s": own, "ratio": rate / own, "compile_s": 0.0}},
        "return": returns[-1] if returns else None,
        "reached": returns[-1:] >= [18.0],
        **numbers,
    }


def _ale_loop(num_envs: int) -> AleLoop:
    from ale_py.vector_env import AtariVectorEnv  # pyright: ignore[reportMissingImports]

    env = AtariVectorEnv("pong", num_envs, num_threads=min(num_envs, os.cpu_count() or 1), noop_max=30)
    env.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 6, (64, num_envs))

    def step() -> Mapping[str, Any]:
        for chosen in actions:
            env.step(chosen)
        return {}

    return AleLoop(step, actions.size)


# --------------------------------------------------------------------------------------------------------- determinism


FLAG = "--xla_gpu_deterministic_ops"
OTHER_FLAG = "--xla_gpu_exclude_nondeterministic_ops"
"""A flag with a part of the effect of `FLAG`."""


def xla_flags(inherited: str, *, deterministic: bool) -> str:
    """Value of ``XLA_FLAGS`` with an explicit `FLAG`.

    Args:
        inherited: Value in the environment of this process; its flags of determinism are left out.
        deterministic: Value of the flag.
    """
    kept = [flag for flag in inherited.split() if flag.split("=")[0] not in (FLAG, OTHER_FLAG)]
    return " ".join([*kept, f"{FLAG}={str(deterministic).lower()}"])


def determinism(repeats: Callable[[bool], Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Equality of the bits of equal runs, with and without `FLAG`, and the cost of the flag.

    If the runs of one setting fail, its entry is ``{"error": ...}``, and there is no cost.

    Args:
        repeats: Function of the flag that returns the results of `repeat` in several processes: XLA reads the flag when
            the backend starts, and selects kernels once per process.

    Raises:
        RuntimeError: The runs of both settings fail.
    """
    found: dict[str, dict[str, Any]] = {}
    rates: dict[str, float | None] = {}
    for name, flag in (("without_flag", False), ("with_flag", True)):
        rates[name] = None
        try:
            own = repeats(flag)
        except Exception as error:
            found[name] = {"error": shortened(f"{type(error).__name__}: {error}")}
            continue
        rates[name] = statistics.median(each["steps_per_s"] for each in own)
        found[name] = {
            "equal_in_process": all(len(set(each["digests"])) == 1 for each in own),
            "equal_in_all": len({digest for each in own for digest in each["digests"]}) == 1,
            "num_processes": len(own),
            "compile_s": statistics.median(each["compile_s"] for each in own),
        }
    if all("error" in own for own in found.values()):
        raise RuntimeError(found["without_flag"]["error"])
    plain, slow = rates["without_flag"], rates["with_flag"]
    return {
        "steps_per_s": plain,
        "steps_per_s_with_flag": slow,
        "cost_of_flag": None if plain is None or slow is None else 1.0 - slow / plain,
        **found,
    }


def repeat(part: Part, size: Size, seconds: float) -> dict[str, Any]:
    """Trains twice from the same seed in this process.

    Args:
        part: Part with the training run.
        size: One of its sizes.
        seconds: Time for measuring the speed.

    Returns:
        ``digests`` of the learner's state of both runs after `ITERATIONS` iterations with updates; ``steps_per_s``;
        ``compile_s``.
    """
    digests, rate, compile_seconds = [], 0.0, 0.0
    for index in range(2):
        run, compile_s = started_run(part, size)
        for _ in range(ITERATIONS):
            run.step()
        digests.append(digest(run.state()))
        if index == 0:
            compile_seconds = compile_s or 0.0
            rate = harness.interleave({"jaxrl": run}, 1, seconds, warmup=0)["jaxrl"].rate
        run.close()
    return {"digests": digests, "steps_per_s": rate, "compile_s": compile_seconds}


def digest(state: Any) -> str:
    """Hash of the bits of all arrays of a pytree."""
    import jax

    found = hashlib.sha256()
    for leaf in jax.tree.leaves(state):
        if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        found.update(np.asarray(leaf).tobytes())
    return found.hexdigest()[:16]


# --------------------------------------------------------------------------------------------------------------- parts


def _envs(*numbers: int) -> tuple[Size, ...]:
    return tuple({"num_envs": number} for number in numbers)


_TOY: tuple[Size, ...] = ({"num_envs": 4, "training_steps": 1},)
_LARGE: Size = {"num_envs": 2**14}
"""Larger size at which PPO is repeated."""
_POWERS = _envs(2**10, 2**11, 2**12, 2**13, 2**14, 2**15, 2**16)


def _dqn(num_envs: int, rows: int, steps: int, capacity: int) -> Size:
    return {"num_envs": num_envs, "rows": rows, "steps": steps, "capacity": capacity}


def _training_parts() -> Iterator[tuple[str, Part]]:
    for kind, title in (("mlp", "PPO"), ("cnn", "PPO, convolution"), ("lstm", "PPO, LSTM")):
        make, loops = functools.partial(make_ppo, kind), functools.partial(ppo_loops, kind)
        yield f"ppo_{kind}", Part(title, "env steps", _POWERS, _TOY, make, loops)
    for name in ("impala", "appo"):
        make, loops = functools.partial(make_vtrace, name), functools.partial(vtrace_loops, name)
        yield name, Part(name.upper(), "env steps", _envs(2**11, 2**14), _TOY, make, loops)
    sizes = {
        "DQN": (_dqn(10, 128, 20_000, 10_000), _dqn(1024, 8192, 204_800, 2**20)),
        "SAC": (_dqn(1, 256, 200, 100_000), _dqn(256, 8192, 25_600, 2**19)),
    }
    for name, own in sizes.items():
        make, loops = functools.partial(make_off_policy, name), functools.partial(off_policy_loops, name)
        yield name.lower(), Part(name, "env steps", own, (_dqn(4, 8, 64, 64),), make, loops)
    yield "pqn", Part("PQN", "env steps", _envs(2**10, 2**14), _TOY, make_pqn, pqn_loops)
    title = "PPO, two agents with a policy each"
    yield "two_agents", Part(title, "agent steps", _envs(2**10, 2**13), _TOY, make_two_agents, two_agents_loops)
    members = ({"members": 64}, {"members": 1024})
    toy_members = ({"members": 2},)
    yield "population", Part("PPO, members", "env steps", members, toy_members, make_population, population_loops)
    models = tuple({"model_size": name} for name in ("nano", "micro", "mini", "XXS", "XS"))
    toy_models = ({"model_size": "nano", "toy": True},)
    yield "dreamer", Part("DreamerV3", "env steps", models, toy_models, make_dreamer, dreamer_loops)
    batches = tuple(
        {"rows": rows, "num_rows": 2**17, "updates": updates} for rows, updates in ((1024, 512), (65536, 64))
    )
    toy_batches = ({"rows": 64, "num_rows": 256, "updates": 8},)
    yield "bc", Part("Behaviour cloning", "rows", batches, toy_batches, make_bc, bc_loops, ("pyarrow",))


def _no_loops(size: Size) -> Loops:
    return {}


def _all_parts() -> Iterator[tuple[str, Part]]:
    training = dict(_training_parts())
    yield from training.items()
    atari_sizes, toy = ({},), ({"num_envs": 2},)
    title = "PPO on Pong, ale-py's vector environment"
    yield (
        "atari",
        Part(title, "env steps", atari_sizes, toy, make_atari, _no_loops, ("ale_py", "gymnasium"), measure_atari),
    )
    for name, part in training.items():
        if name == "population":
            continue
        large = _LARGE if name.startswith("ppo_") else part.sizes[-1]
        sizes = tuple({"part": name, **size} for size in (part.sizes[0], large))
        toy = ({"part": name, **part.toy_sizes[0]},) if name == "ppo_mlp" else ()
        own = Part(part.title, part.unit, sizes, toy, part.make, _no_loops, part.needs, repeats=name)
        yield f"determinism_{name}", own


PARTS: dict[str, Part] = dict(_all_parts())
"""Name -> part, in the order in which they run."""


def cases_of(names: Sequence[str], *, toy: bool) -> list[tuple[str, Size]]:
    """``(part, size)`` of some parts."""
    return [(name, size) for name in names for size in (PARTS[name].toy_sizes if toy else PARTS[name].sizes)]
