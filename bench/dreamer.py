"""DreamerV3 from few env steps: greedy returns of several seeds over env steps, with wall times.

    python -m bench.dreamer --json bench/dreamer.jsonl --checkpoints /tmp/dreamer
    python -m bench.dreamer --env gymnax/CartPole-v1 --seeds 1 --size mini

Each seed trains with the size and the ratio that stand beside its environment in `BARS`, and is evaluated with 20
greedy episodes every 1,000 env steps. It passes if the mean return is once at the bar within its env steps; then it
stops. Every run is appended to the JSON file as a line, with its commit; runs that stand there already are not run
again. With ``--checkpoints DIR`` a run is kept in DIR while it lasts, and the same command continues it.
Exits with 1 unless all but one seed of each environment pass (one must).
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from bench import harness
from bench.learning import Journal, Unfinished
from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config
from jaxrl_stack.connectors.env_to_module import FlattenObservations, ObservationPreprocessor


class Bar(NamedTuple):
    """What a seed has to reach.

    Attributes:
        target: Mean of 20 greedy episodes.
        within: Env steps.
        ratio: Training ratio.
        size: Of the model.
        flattens: Whether observations of rank 2 are no images.
        draws: Whether observations of rank 2, of zeros and ones, are drawn as images of 64 x 64 x 1 pixels.
    """

    target: float
    within: int
    ratio: int = 512
    size: str = "micro"
    flattens: bool = False
    draws: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """What says in the JSON file which run it is."""
        settings = self._asdict()
        if not self.draws:
            del settings["draws"]  # as in the file before there were such runs
        return settings


BARS = {
    "gymnax/CartPole-v1": Bar(400.0, 40_000),
    "CartPole-v1": Bar(400.0, 40_000),
    "gymnax/Pendulum-v1": Bar(-250.0, 30_000),
    "gymnax/MemoryChain-bsuite": Bar(0.9, 20_000),
    "gymnax/Catch-bsuite": Bar(0.9, 20_000, flattens=True),
    "gymnax/Catch-bsuite, drawn": Bar(0.8, 20_000, ratio=64, size="nano", draws=True),
}
EPISODES, INTERVAL = 20, 1_000


def config_of(env: str, bar: Bar, seed: int) -> DreamerV3Config:
    """One copy of the environment, iterations of `INTERVAL` env steps, evaluations of `EPISODES` greedy episodes."""
    config = (
        DreamerV3Config()
        .environment(env.split(",")[0])
        .training(model_size=bar.size, training_ratio=bar.ratio)
        .reporting(min_sample_timesteps_per_iteration=INTERVAL, min_time_s_per_iteration=0)
        .evaluation(evaluation_duration=EPISODES, evaluation_config={"explore": False})
        .debugging(seed=seed)
    )
    if bar.flattens or bar.draws:
        config.env_runners(env_to_module_connector=_flattened if bar.flattens else _drawn)
    return config


def _flattened(env: Any, spaces: Any, device: Any) -> FlattenObservations:
    return FlattenObservations()


def _drawn(env: Any, spaces: Any, device: Any) -> Drawn:
    return Drawn()


class Drawn(ObservationPreprocessor):
    """Boards of zeros and ones ``[H, W]`` as black images with white fields, uint8 ``[64, 64, 1]``."""

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return gym.spaces.Box(0, 255, (64, 64, 1), np.uint8)

    def preprocess(self, observation: jax.Array) -> jax.Array:
        """The image; what is left beside the last fields is black."""
        height, width = (64 // size for size in observation.shape)
        fields = jnp.repeat(jnp.repeat(observation, height, axis=0), width, axis=1)
        missing = [(0, 64 - size) for size in fields.shape]
        return jnp.pad(255 * fields, missing).astype(jnp.uint8)[..., None]


def run_seed(run: Mapping[str, Any], bar: Bar, unfinished: Unfinished) -> dict[str, Any]:
    """Train one seed until it is at the bar, or has had its env steps.

    Args:
        run: Which one: its environment and seed among others.
        bar: See `BARS`.
        unfinished: Keeps it while it lasts.

    Returns:
        ``curve``: ``[env steps, mean greedy return, mean of training's episodes, seconds]``; ``reached``: env steps at
        the bar, or None; ``seconds`` of the whole run, evaluations included, and of the first iteration.
    """
    algo = config_of(run["env"], bar, run["seed"]).build_algo()
    progress = unfinished.resume(run, algo)
    curve = progress["curve"]
    while not curve or (curve[-1][0] < bar.within and curve[-1][1] < bar.target):
        started = time.perf_counter()
        result = algo.train()
        progress.setdefault("first", round(time.perf_counter() - started, 1))
        greedy = algo.evaluate()["env_runners"]["episode_return_mean"]
        progress["seconds"] += time.perf_counter() - started
        progress["steps"], progress["best"] = result["num_env_steps_sampled_lifetime"], max(progress["best"], greedy)
        trained = result["env_runners"]["episode_return_mean"]
        curve.append([progress["steps"], greedy, trained, round(progress["seconds"], 1)])
        print(run["env"], run["seed"], curve[-1], flush=True)
        unfinished.save(algo, progress)
    algo.stop()
    unfinished.remove(run)
    reached = int(curve[-1][0]) if curve[-1][1] >= bar.target else None
    return {"reached": reached, "seconds": round(progress["seconds"], 1), "first": progress["first"], "curve": curve}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(BARS), action="append", help="one of these; all by default")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--size", help="another model size")
    parser.add_argument("--ratio", type=int, help="another training ratio")
    parser.add_argument("--within", type=int, help="other env steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="keep runs in DIR while they last")
    args = parser.parse_args(arguments)
    journal, all_passed = Journal(args.json, harness.commit()), True
    for env in args.env or BARS:
        changed = {name: getattr(args, name) for name in ("size", "ratio", "within") if getattr(args, name) is not None}
        bar, reached = BARS[env]._replace(**changed), []
        for seed in range(args.seeds):
            run = {"algorithm": "DreamerV3", "env": env, "seed": seed, **bar.settings}
            measured = journal.once(run, functools.partial(run_seed, run, bar, Unfinished(args.checkpoints)))
            reached.append(measured["reached"])
            print(env, bar, "reached after", reached, flush=True)
        passed = sum(each is not None for each in reached)
        all_passed &= passed >= max(1, args.seeds - 1)
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
