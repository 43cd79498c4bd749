"""Updates per second of DreamerV3: against RLlib's, against a plain loop, and against the machine's matrix product.

    python -m bench.dreamer_throughput --rllib-python ENV/bin/python --devices 2 --json out.json
    python -m bench.dreamer_throughput --tables loop,peak --sizes nano --toy

Tables: ``rllib`` (gymnasium's CartPole), ``loop`` (gymnax's CartPole in one program, `bench.dreamer_loop`
with the same networks), ``peak`` (floating-point operations of an update, as the program asks for them, per second of
it, over those of a large matrix product). There is one update of 16 x 64 items per env step, so that rates of env steps
are rates of updates. Contenders are processes that take turns. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from bench import harness
from bench.host_throughput import OURS, RLLIB, Comparison, Row, compare
from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config
from jaxrl_stack.utils import counters

LOOP = "loop"
ENVS = {RLLIB: "CartPole-v1", LOOP: "gymnax/CartPole-v1"}
BARS: dict[str, dict[str, float]] = {
    RLLIB: {"nano": 10.0, "mini": 5.0},
    LOOP: dict.fromkeys(("nano", "micro", "mini"), 0.97),
    "peak": {"XS": 0.5},
}
"""Table -> sizes, and the least ratio of this project's rate to the other one's."""


def settings_of(table: str, size: str, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of the contenders."""
    windows, length, horizon = (2, 8, 3) if args.toy else (16, 64, 15)
    return {
        "job": table,
        "env": ENVS[table],
        "seed": 0,
        "warmup": args.warmup,
        "torch_threads": args.torch_threads,
        "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 1},
        "learners": {},
        "training": {
            "model_size": size,
            "training_ratio": windows * length,
            "batch_size_B": windows,
            "batch_length_T": length,
            "horizon_H": horizon,
            "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 100_000},
        },
        "reporting": {"min_sample_timesteps_per_iteration": args.steps, "min_time_s_per_iteration": 0},
    }


def measure(table: str, size: str, args: argparse.Namespace) -> list[Row]:
    """Measures the rows of one table and model size."""
    python = args.rllib_python if table == RLLIB else args.python
    peers = {
        OURS: [args.python, "-m", "bench.peers.jaxrl_dreamer"],
        table: [python, "-m", f"bench.peers.{table}_dreamer"],
    }
    settings = dict.fromkeys(peers, settings_of(table, size, args))
    if table == RLLIB:
        settings[OURS] = {**settings[OURS], "learners": {"num_cpus_per_learner": args.devices}}
    comparison = Comparison(table, 1, lambda name, size: None if name == OURS else BARS[table].get(size))
    return compare(peers, settings, size, comparison, args.rounds, args.seconds)


# ------------------------------------------------------------------------------------------------------ matrix products


def operations(jaxpr: Any) -> float:
    """Counts floating-point operations of matrix products and convolutions in a jaxpr; a scan's are multiplied by its
    length.

    XLA's own analysis counts the body of a loop once. Of branches, the one of this platform counts; where an argument
    chooses, the largest.

    Raises:
        ValueError: For operations in a loop that ends by a condition: nothing says how often they run.
    """
    total = 0.0
    for eqn in jaxpr.eqns:
        shapes = [var.aval.shape for var in eqn.invars if hasattr(var.aval, "shape")]
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(shapes[0][axis] for axis in contracted)
        elif eqn.primitive.name == "conv_general_dilated":
            kernel, out_axis = shapes[1], eqn.params["dimension_numbers"].rhs_spec[0]
            total += 2.0 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) / kernel[out_axis]
        inner = [operations(program) for program in jaxprs_in_params(eqn.params)]
        if eqn.primitive.name == "scan":
            total += eqn.params["length"] * sum(inner)
        elif eqn.primitive.name == "cond":
            total += _of_branch(inner, eqn.params.get("branches_platforms"))
        elif eqn.primitive.name == "while" and any(inner):
            raise ValueError(
                f"{sum(inner):,.0f} operations are in a loop that ends by a condition, so their number is not known: "
                f"make it a scan, whose length is."
            )
        else:
            total += sum(inner)
    return total


def _of_branch(operations: Sequence[float], platforms: Sequence[Sequence[str] | None] | None) -> float:
    """Returns the operations of the branch that runs on this platform; `platforms` has None for the default branch."""
    if platforms is None:
        return max(operations)
    own = [n for n, names in zip(operations, platforms, strict=True) if names and jax.default_backend() in names]
    return own[0] if own else operations[platforms.index(None)]


def share_of_peak(size: str, args: argparse.Namespace) -> dict[str, float]:
    """Measures an update on CartPole: its operations, their rate, and the rate relative to the machine's matrix
    product.
    """
    settings = settings_of(LOOP, size, args)
    config = DreamerV3Config().training(**settings["training"]).debugging(seed=0).learners(num_cpus_per_learner=1)
    spaces = (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(2))
    learner = config.environment(observation_space=spaces[0], action_space=spaces[1]).build_learner(
        spaces={"__env_single__": spaces}
    )
    learner.build()
    lead = (config.batch_size_B, config.batch_length_T)
    state = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (lead[0], *x.shape)), learner.module["default_policy"].get_initial_state()
    )
    flags = dict.fromkeys(("is_first", "is_last", "is_terminated", "is_truncated"), jnp.zeros(lead, bool))
    columns = {"obs": jnp.ones((*lead, 4)), "actions": jnp.zeros(lead, jnp.int32), "rewards": jnp.ones(lead)}
    batch = {"default_policy": {**columns, **flags, "state_in": state}}
    step = functools.partial(learner.pure_update.step, axis_name=None)
    given = (learner.state, batch, learner.settings(), counters.zero())
    number = operations(jax.make_jaxpr(step)(*given).jaxpr)
    seconds = harness.least_seconds(jax.jit(step), *given, tries=args.repeats)
    peak = harness.matrix_peak(256 if args.toy else 2048, args.repeats)
    rates = {"gflop": number / 1e9, "gflop_per_s": number / seconds / 1e9, "peak_gflop_per_s": peak / 1e9}
    return {"updates_per_s": 1 / seconds, **rates, "share": number / seconds / peak}


# --------------------------------------------------------------------------------------------------------------- report


def parser() -> argparse.ArgumentParser:
    """Creates the parser of the command line."""
    out = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    out.add_argument("--tables", default=",".join(BARS), help="some of rllib, loop, peak")
    out.add_argument("--sizes", help="model sizes; those with bars by default")
    out.add_argument("--python", default=sys.executable, metavar="PATH", help="interpreter of this project")
    out.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib], torch and Pillow")
    out.add_argument("--steps", type=int, default=32, help="env steps of an iteration")
    out.add_argument("--rounds", type=int, default=5)
    out.add_argument("--seconds", type=float, default=10.0, help="least length of a turn")
    out.add_argument("--warmup", type=int, default=2, help="iterations with updates before the first turn")
    out.add_argument("--repeats", type=int, default=5, help="timed calls for the peak")
    out.add_argument("--devices", type=int, default=1, help="CPU devices of this project's learner beside RLlib")
    out.add_argument("--torch-threads", type=int, default=2)
    out.add_argument("--toy", action="store_true", help="small batches, to try the script out")
    out.add_argument("--json", metavar="FILE")
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    args = parser().parse_args(arguments)
    rows, shares, met = [], {}, True
    for table in args.tables.split(","):
        for size in args.sizes.split(",") if args.sizes else BARS[table]:
            if table == "peak":
                shares[size] = share_of_peak(size, args)
                met &= shares[size]["share"] >= BARS[table].get(size, 0.0)
                print(size, {name: round(value, 3) for name, value in shares[size].items()}, flush=True)
            elif table != RLLIB or args.rllib_python:
                rows += measure(table, size, args)
    shown = [
        (row.table, row.size, row.contender, row.rate, row.rate_min, row.rate_max, row.ratio, row.bar) for row in rows
    ]
    columns = ("table", "size", "contender", "updates/s", "min", "max", "ours / it", "bar")
    harness.print_table("DreamerV3", columns, shown, "medians over rounds")
    harness.write_json(args.json, {"rows": [vars(row) for row in rows], "peak": shares})
    return 0 if met and all(row.met in (None, True) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
