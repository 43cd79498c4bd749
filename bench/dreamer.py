"""DreamerV3 from few env steps: greedy returns of several seeds over env steps, with wall times.

    python -m bench.dreamer --json bench/dreamer.jsonl --checkpoints /tmp/dreamer
    python -m bench.dreamer --env gymnax/CartPole-v1 --seeds 1 --size mini
    python -m bench.dreamer --env gymnax/CartPole-v1 --together

Each seed trains with the size and the ratio of its environment in `BARS`, and is evaluated with 20 greedy episodes
every 1,000 env steps. It passes if the mean return is at the bar within the env steps, once or in as many evaluations
in a row as `BARS` requires. With ``--hold`` a seed trains all its env steps, and the lowest mean return after the bar
was reached is reported, too.

Option ``--json FILE`` appends each finished run to FILE, with its commit; runs that FILE contains are not repeated.
Option ``--checkpoints DIR`` keeps the files of runs in DIR; the same command then continues after a kill. Exits with 1
if more than one seed of an environment fails, or if all fail.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np

from bench import harness
from bench.journal import Journal
from bench.learning import STEPS, numbers, run_folder, train_seeds
from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config
from jaxrl_stack.algorithms.dreamerv3.tuned import RECORDS
from jaxrl_stack.algorithms.tuned_records import Evaluated
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FlattenObservations, ObservationPreprocessor
from jaxrl_stack.runs.agent_returns import EVALUATED_RETURN
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.run import Run


class Bar(NamedTuple):
    """Goal of a seed, with the settings of its training.

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
        holds: Whether seeds continue to train after they have reached the target.
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
    holds: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Returns the settings that identify a run in the JSON file."""
        settings = {**self._asdict(), "training": dict(self.training)}
        # As in the file before there were such runs.
        absent = {"draws": False, "scale": 1.0, "training": {}, "evaluations": 1, "holds": False}
        return {name: value for name, value in settings.items() if name not in absent or value != absent[name]}


def tuned_bar(env: str) -> Bar:
    """Returns the goal of an environment whose tuned settings were measured by this benchmark."""
    evidence, training = RECORDS[env].evidence, dict(RECORDS[env].settings)
    assert isinstance(evidence, Evaluated)
    size, ratio = training.pop("model_size"), training.pop("training_ratio")
    return Bar(evidence.target, evidence.within, ratio, size, training=training)


_FASTER: dict[str, Any] = {"world_model_lr": 2e-3, "actor_lr": 3e-4, "critic_lr": 1e-3, "entropy_scale": 3e-3}
"""Steps that suit networks of 32 units; an actor that learns sooner than its world model does needs more entropy."""
_REMEMBERING: dict[str, Any] = {**_FASTER, "world_model_lr": 1e-3, "gru_blocks": 8}
"""A block of the recurrent state sees itself alone, and carries one bit through noise of the others."""

_STEADY: dict[str, Any] = {**_FASTER, "world_model_lr": 5e-4}
"""Learning rates with which the critic's values follow the returns; the default rates are too low for 32 units."""

BARS = {
    **{env: tuned_bar(env) for env, record in RECORDS.items() if isinstance(record.evidence, Evaluated)},
    "gymnax/CartPole-v1, held": Bar(400.0, 60_000, training=_STEADY, holds=True),
    "gymnax/MemoryChain-bsuite": Bar(0.9, 20_000, scale=30.0, training=_REMEMBERING, evaluations=2),
    "gymnax/Catch-bsuite": Bar(0.9, 20_000, flattens=True, scale=30.0, training=_FASTER),
    "gymnax/Catch-bsuite, drawn": Bar(0.8, 20_000, ratio=64, size="nano", draws=True),
}
EPISODES, INTERVAL = 20, 1_000


def config_of(env: str, bar: Bar) -> DreamerV3Config:
    """Returns the config: one environment, and iterations of `INTERVAL` env steps, each with `EPISODES` greedy
    episodes.

    Replay has room for all steps of a run, as it has by default; less of it is zeros.
    """
    config = (
        DreamerV3Config()
        .environment(env.split(",")[0])
        .training(model_size=bar.size, training_ratio=bar.ratio, replay_buffer_config={"capacity": 50_000})
        .training(**bar.training)
        .reporting(min_sample_timesteps_per_iteration=INTERVAL, min_time_s_per_iteration=0)
        .evaluation(evaluation_interval=1, evaluation_duration=EPISODES, evaluation_config={"explore": False})
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
    """Connector that multiplies vector observations ``[n]`` by a number."""

    def __init__(self, scale: float, **kwargs: Any):
        self.scale = scale
        super().__init__(**kwargs)

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return gym.spaces.Box(-np.inf, np.inf, input_observation_space.shape, np.float32)

    def preprocess(self, observation: jax.Array) -> jax.Array:
        """Returns the scaled vector, float32."""
        return self.scale * observation.astype(jnp.float32)


class Drawn(ObservationPreprocessor):
    """Connector that draws boards of zeros and ones ``[H, W]`` as black images with white fields, uint8 ``[64, 64,
    1]``.
    """

    def recompute_output_observation_space(self, input_observation_space: Any, input_action_space: Any) -> gym.Space:
        return gym.spaces.Box(0, 255, (64, 64, 1), np.uint8)

    def preprocess(self, observation: jax.Array) -> jax.Array:
        """Returns the image; pixels after the last fields are black."""
        height, width = (64 // size for size in observation.shape)
        fields = jnp.repeat(jnp.repeat(observation, height, axis=0), width, axis=1)
        missing = [(0, 64 - size) for size in fields.shape]
        return jnp.pad(255 * fields, missing).astype(jnp.uint8)[..., None]


def end_of(greedy: Sequence[float], bar: Bar) -> int | None:
    """Index of the evaluation in which a seed reaches its goal; None if it does not.

    Args:
        greedy: Mean return of each evaluation.
        bar: See `BARS`.
    """
    in_a_row = 0
    for i, mean in enumerate(greedy):
        in_a_row = in_a_row + 1 if mean >= bar.target else 0
        if in_a_row == bar.evaluations:
            return i
    return None


def measured(run: Run, bar: Bar, together: int) -> dict[str, Any]:
    """Returns the numbers of a run until it reaches the goal, or of the whole run if the bar says that it holds.

    Args:
        run: The run.
        bar: See `BARS`.
        together: Number of runs that are one program.

    Returns:
        ``curve``: ``[env steps, mean greedy return, mean return in training, seconds]`` of each iteration; ``reached``:
        env steps at the bar, or None; ``seconds`` until then with evaluations, and of the ``first`` iteration;
        ``together`` if there are several; ``lowest`` if the bar says that it holds: the lowest mean greedy return from
        ``reached`` to the end.
    """
    steps, greedy, sampled, seconds = (numbers(run, name) for name in (STEPS, EVALUATED_RETURN, RETURN, "time_total_s"))
    end = end_of(greedy.tolist(), bar)
    points = zip(steps.astype(int).tolist(), greedy.tolist(), sampled.tolist(), seconds.round(1).tolist(), strict=True)
    curve = [list(point) for point in points]
    reached = None if end is None else curve[end][0]
    of_all: dict[str, Any] = {"together": together} if together > 1 else {}
    if bar.holds:
        of_all["lowest"] = None if end is None else float(greedy[end:].min())
    elif end is not None:
        curve = curve[: end + 1]
    return {"reached": reached, "seconds": curve[-1][3], "first": curve[0][3], **of_all, "curve": curve}


def num_seeds_that_reach(
    env: str, bar: Bar, seeds: Sequence[int], together: bool, journal: Journal, checkpoints: Path | None
) -> int:
    """Trains the seeds of an environment that the journal does not contain.

    Args:
        env: Its name in `BARS`.
        bar: The bar.
        seeds: The seeds.
        together: Whether all missing seeds are one program.
        journal: Journal of the runs.
        checkpoints: Folder of all runs. None keeps no files.

    Returns:
        Number of seeds that are at the bar in time.
    """
    # Evaluations in a row are no stop criterion: these runs train all their env steps.
    stops = bar.evaluations == 1 and not bar.holds
    until = {STEPS: bar.within} | ({EVALUATED_RETURN: bar.target} if stops else {})

    def measure(chosen: list[int]) -> list[dict[str, Any]]:
        own = [seeds[i] for i in chosen]
        path = run_folder(checkpoints, "DreamerV3", env, seeds=own)
        return [measured(run, bar, len(own)) for run in train_seeds(config_of(env, bar), own, until, path)]

    runs = [{"algorithm": "DreamerV3", "env": env, "seed": seed, **bar.settings} for seed in seeds]
    reached = [line["reached"] for line in journal.once_each(runs, measure, together=together)]
    print(env, bar, "reached after", reached, flush=True)
    return sum(each is not None for each in reached)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", choices=sorted(BARS), action="append", help="one of these; all by default")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0, help="of several processes side by side")
    parser.add_argument("--size", help="another model size")
    parser.add_argument("--ratio", type=int, help="another training ratio")
    parser.add_argument("--within", type=int, help="other env steps")
    parser.add_argument("--hold", action="store_true", help="train all env steps, and report the lowest return")
    parser.add_argument(
        "--together", action="store_true", help="all seeds of a JAX environment in one program, for GPUs"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="append each run to FILE; skip runs that it has")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="keep files of runs in DIR")
    args = parser.parse_args(arguments)
    journal, all_passed = Journal(args.json, harness.commit()), True
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    for env in args.env or BARS:
        changed = {name: getattr(args, name) for name in ("size", "ratio", "within") if getattr(args, name) is not None}
        together = args.together and env.startswith("gymnax/")
        bar = BARS[env]._replace(**changed)
        bar = bar._replace(holds=bar.holds or args.hold)
        passed = num_seeds_that_reach(env, bar, seeds, together, journal, args.checkpoints)
        all_passed &= passed >= max(1, args.seeds - 1)
    return 0 if all_passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
