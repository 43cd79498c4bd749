"""DreamerV3 from few env steps: greedy returns of several seeds over env steps, with wall times.

    python -m bench.dreamer --json bench/dreamer.jsonl --checkpoints /tmp/dreamer
    python -m bench.dreamer --env gymnax/CartPole-v1 --seeds 1 --size mini
    python -m bench.dreamer --env gymnax/CartPole-v1 --together

Each seed trains with the size and the ratio that stand beside its environment in `BARS`, and is evaluated with 20
greedy episodes every 1,000 env steps. It passes if the mean return is at the bar within its env steps, once or in as
many evaluations in a row as `BARS` asks for; then it stops. Every run is appended to the JSON file as a line, with its
commit; runs that stand there already are not run again. With ``--checkpoints DIR`` a run is kept in DIR while it lasts,
and the same command continues it.
Exits with 1 unless all but one seed of each environment pass (one must).
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from bench import harness
from bench.learning import Journal, Unfinished
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config
from jaxrl_stack.algorithms.dreamerv3.tuned import RECORDS
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.algorithms.tuned_records import Evaluated
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
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
        scale: Factor of observations: the world model keeps what saves more squared error than it costs in divergence,
            and 0 and 1 are too near to each other for that.
        training: Further settings of ``training()``.
        evaluations: How many in a row have to be at the target. Where one bit decides, the greedy actions of an
            untrained policy are right in all episodes by chance.
    """

    target: float
    within: int
    ratio: int = 512
    size: str = "micro"
    flattens: bool = False
    draws: bool = False
    scale: float = 1.0
    training: Mapping[str, Any] = MappingProxyType({})
    evaluations: int = 1

    @property
    def settings(self) -> dict[str, Any]:
        """What says in the JSON file which run it is."""
        settings = {**self._asdict(), "training": dict(self.training)}
        # As in the file before there were such runs.
        absent = {"draws": False, "scale": 1.0, "training": {}, "evaluations": 1}
        return {name: value for name, value in settings.items() if name not in absent or value != absent[name]}


def tuned_bar(env: str) -> Bar:
    """That of an environment whose tuned settings were measured here."""
    evidence, training = RECORDS[env].evidence, dict(RECORDS[env].settings)
    assert isinstance(evidence, Evaluated)
    size, ratio = training.pop("model_size"), training.pop("training_ratio")
    return Bar(evidence.target, evidence.within, ratio, size, training=training)


_FASTER: dict[str, Any] = {"world_model_lr": 2e-3, "actor_lr": 3e-4, "critic_lr": 1e-3, "entropy_scale": 3e-3}
"""Steps that suit networks of 32 units; an actor that learns sooner than its world model does needs more entropy."""
_REMEMBERING: dict[str, Any] = {**_FASTER, "world_model_lr": 1e-3, "gru_blocks": 8}
"""A block of the recurrent state sees itself alone, and carries one bit through noise of the others."""

BARS = {
    **{env: tuned_bar(env) for env, record in RECORDS.items() if isinstance(record.evidence, Evaluated)},
    "gymnax/MemoryChain-bsuite": Bar(0.9, 20_000, scale=30.0, training=_REMEMBERING, evaluations=2),
    "gymnax/Catch-bsuite": Bar(0.9, 20_000, flattens=True, scale=30.0, training=_FASTER),
    "gymnax/Catch-bsuite, drawn": Bar(0.8, 20_000, ratio=64, size="nano", draws=True),
}
EPISODES, INTERVAL = 20, 1_000


def config_of(env: str, bar: Bar, seed: int) -> DreamerV3Config:
    """One copy of the environment, iterations of `INTERVAL` env steps, evaluations of `EPISODES` greedy episodes.

    Replay has room for all steps of a run, as it has by default; less of it is zeros.
    """
    config = (
        DreamerV3Config()
        .environment(env.split(",")[0])
        .training(model_size=bar.size, training_ratio=bar.ratio, replay_buffer_config={"capacity": 50_000})
        .training(**bar.training)
        .reporting(min_sample_timesteps_per_iteration=INTERVAL, min_time_s_per_iteration=0)
        .evaluation(evaluation_duration=EPISODES, evaluation_config={"explore": False})
        .debugging(seed=seed)
    )
    if bar.flattens or bar.draws or bar.scale != 1.0:
        config.env_runners(env_to_module_connector=functools.partial(_connectors, bar=bar))
    return config


def _connectors(env: Any, spaces: Any, device: Any, bar: Bar) -> list[ConnectorV2]:
    chosen: list[ConnectorV2] = []
    if bar.flattens:
        chosen.append(FlattenObservations())
    if bar.draws:
        chosen.append(Drawn())
    if bar.scale != 1.0:
        chosen.append(Scaled(bar.scale))
    return chosen


class Scaled(ObservationPreprocessor):
    """Vectors ``[n]``, times a number."""

    def __init__(self, scale: float, **kwargs: Any):
        self.scale = scale
        super().__init__(**kwargs)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return gym.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float32)

    def preprocess(self, observation: jax.Array) -> jax.Array:
        """The vector, float32."""
        return self.scale * observation.astype(jnp.float32)


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


def iteration_of(trained: Algorithm | Population) -> tuple[int, list[float], list[float]]:
    """One iteration and evaluation.

    Returns:
        Env steps so far; of each seed the mean return of the greedy episodes, and of training's.
    """
    result: Any = trained.train()
    evaluated: Any = trained.evaluate()
    of_each = (evaluated, result["members"]) if isinstance(trained, Population) else ([evaluated], [result])
    greedy, sampled = ([float(own["env_runners"]["episode_return_mean"]) for own in found] for found in of_each)
    return result["num_env_steps_sampled_lifetime"], greedy, sampled


def build(env: str, bar: Bar, seeds: Sequence[int]) -> Algorithm | Population:
    """An algorithm for one seed, a population for several."""
    config = config_of(env, bar, seeds[0])
    return config.build_algo() if len(seeds) == 1 else config.build_population(seeds=list(seeds))


def end_of(curve: Sequence[Sequence[Any]], seed: int, bar: Bar) -> int | None:
    """Index of the point at which a seed is at its bar, or None.

    Args:
        curve: ``[env steps, greedy returns of the seeds, ...]``.
        seed: Its place among them.
        bar: See `BARS`.
    """
    in_a_row = 0
    for i, (_, greedy, *_) in enumerate(curve):
        in_a_row = in_a_row + 1 if greedy[seed] >= bar.target else 0
        if in_a_row == bar.evaluations:
            return i
    return None


def run_seeds(runs: Sequence[Mapping[str, Any]], bar: Bar, unfinished: Unfinished) -> list[dict[str, Any]]:
    """Train seeds of an environment until all are at the bar, or have had their env steps.

    Args:
        runs: Which ones, at least one: their environment and seed among others.
        bar: See `BARS`.
        unfinished: Keeps them while they last.

    Returns:
        Of each: ``curve``: ``[env steps, mean greedy return, mean of training's episodes, seconds]``; ``reached``: env
        steps at the bar, where its curve ends, or None; ``seconds`` of the run until then, evaluations included, and of
        the first iteration; ``together`` seeds in one program, if there were several.
    """
    seeds, together = [own["seed"] for own in runs], len(runs)
    trained = build(runs[0]["env"], bar, seeds)
    run = {**runs[0], "seed": "-".join(map(str, seeds))} if together > 1 else runs[0]
    progress = unfinished.resume(run, trained)
    curve = progress["curve"]

    def ends() -> list[int | None]:
        return [end_of(curve, i, bar) for i in range(together)]

    while not curve or (curve[-1][0] < bar.within and None in ends()):
        started = time.perf_counter()
        progress["steps"], greedy, sampled = iteration_of(trained)
        progress["seconds"] += time.perf_counter() - started
        progress.setdefault("first", round(progress["seconds"], 1))
        progress["best"] = max(progress["best"], *greedy)
        curve.append([progress["steps"], greedy, sampled, round(progress["seconds"], 1)])
        print(run["env"], run["seed"], curve[-1], flush=True)
        unfinished.save(trained, progress)
    trained.stop()
    unfinished.remove(run)
    measured = []
    for i, end in enumerate(ends()):
        points = curve if end is None else curve[: end + 1]
        own = [[steps, greedy[i], sampled[i], seconds] for steps, greedy, sampled, seconds in points]
        of_all = {"together": together} if together > 1 else {}
        of_seed = {"reached": None if end is None else own[-1][0], "seconds": own[-1][3], "first": progress["first"]}
        measured.append({**of_seed, **of_all, "curve": own})
    return measured


def seeds_that_reach(
    env: str, bar: Bar, seeds: Sequence[int], together: bool, journal: Journal, unfinished: Unfinished
) -> int:
    """How many seeds of an environment are at the bar in time; runs that are not in the journal are made."""
    runs = {seed: {"algorithm": "DreamerV3", "env": env, "seed": seed, **bar.settings} for seed in seeds}
    measured = {seed: journal.find(run) for seed, run in runs.items()}
    missing = [seed for seed in seeds if measured[seed] is None]
    for group in [missing] if missing and together else [[seed] for seed in missing]:
        made = run_seeds([runs[seed] for seed in group], bar, unfinished)
        measured |= {seed: journal.append(runs[seed], own) for seed, own in zip(group, made, strict=True)}
    reached = [own["reached"] for own in measured.values() if own is not None]
    print(env, bar, "reached after", reached, flush=True)
    return sum(each is not None for each in reached)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(BARS), action="append", help="one of these; all by default")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0, help="of several processes side by side")
    parser.add_argument("--size", help="another model size")
    parser.add_argument("--ratio", type=int, help="another training ratio")
    parser.add_argument("--within", type=int, help="other env steps")
    parser.add_argument(
        "--together", action="store_true", help="all seeds of a JAX environment in one program, for GPUs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it holds")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="keep runs in DIR while they last")
    args = parser.parse_args(arguments)
    journal, unfinished, all_passed = Journal(args.json, harness.commit()), Unfinished(args.checkpoints), True
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for env in args.env or BARS:
        changed = {name: getattr(args, name) for name in ("size", "ratio", "within") if getattr(args, name) is not None}
        together = args.together and env.startswith("gymnax/")
        passed = seeds_that_reach(env, BARS[env]._replace(**changed), seeds, together, journal, unfinished)
        all_passed &= passed >= max(1, args.seeds - 1)
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
