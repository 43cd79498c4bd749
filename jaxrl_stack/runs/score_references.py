"""Reference scores of tasks, for statistics over several tasks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_stack.datasets.normalized_scores import D4RL_REFERENCES


class ScoreReference(NamedTuple):
    """Two reference scores of a task, which normalisation maps to 0 and 1, and their source.

    Attributes:
        low: Score that is normalised to 0.
        high: Score that is normalised to 1.
        source: Source of both scores.
    """

    low: float
    high: float
    source: str


def _d4rl(name: str) -> ScoreReference:
    source = "random policy and expert of D4RL (Fu et al., 2020), measured on v0 to v2 of the environment"
    return ScoreReference(*D4RL_REFERENCES[name], source)


_CARTPOLE = ScoreReference(0.0, 500.0, "lowest possible return, time limit of 500 steps")
_ACROBOT = ScoreReference(-500.0, -100.0, "time limit of 500 steps, reward_threshold of Gymnasium")
_MOUNTAIN_CAR = ScoreReference(-200.0, -110.0, "time limit of 200 steps, reward_threshold of Gymnasium")
_MOUNTAIN_CAR_CONTINUOUS = ScoreReference(0.0, 90.0, "return of no force, reward_threshold of Gymnasium")
_ENDS = "lowest and highest possible return"
# Means of random actions are lines of bench/random_scores.jsonl, with their standard errors.
_THRESHOLD = "random actions, reward_threshold of Gymnasium"
# Gymnasium has no threshold for Pendulum. TD3: benchmark.md of github.com/DLR-RM/rl-baselines3-zoo.
_PENDULUM = ScoreReference(-1232.0, -151.855, "random actions, TD3 of RL Zoo after 20k steps")
# Returns of the checkpoints in the table of environments of gymnax's README; steps: ppo.yaml of each game in
# github.com/RobertTLange/gymnax-blines. The table has no return for Seaquest.
_MINATAR = "random actions, PPO of gymnax-blines after 10M steps"

REFERENCES: dict[str, ScoreReference] = {
    "Acrobot-v1": _ACROBOT,
    "Ant-v5": _d4rl("ant"),
    "BipedalWalker-v3": ScoreReference(-101.0, 300.0, _THRESHOLD),
    "CartPole-v1": _CARTPOLE,
    "FrozenLake-v1": ScoreReference(0.0, 1.0, _ENDS),
    "HalfCheetah-v5": _d4rl("halfcheetah"),
    "Hopper-v5": _d4rl("hopper"),
    "InvertedDoublePendulum-v5": ScoreReference(49.4, 9_100.0, _THRESHOLD),
    "InvertedPendulum-v5": ScoreReference(5.2, 950.0, _THRESHOLD),
    "LunarLander-v3": ScoreReference(-179.0, 200.0, _THRESHOLD),
    "LunarLanderContinuous-v3": ScoreReference(-216.0, 200.0, _THRESHOLD),
    "MountainCar-v0": _MOUNTAIN_CAR,
    "MountainCarContinuous-v0": _MOUNTAIN_CAR_CONTINUOUS,
    "Pendulum-v1": _PENDULUM,
    "Reacher-v5": ScoreReference(-42.8, -3.75, _THRESHOLD),
    "Swimmer-v5": ScoreReference(0.6, 360.0, _THRESHOLD),
    "Walker2d-v5": _d4rl("walker2d"),
    "gymnax/Acrobot-v1": _ACROBOT,
    "gymnax/Asterix-MinAtar": ScoreReference(0.56, 15.0, _MINATAR),
    "gymnax/Breakout-MinAtar": ScoreReference(0.42, 28.0, _MINATAR),
    "gymnax/CartPole-v1": _CARTPOLE,
    "gymnax/Catch-bsuite": ScoreReference(-1.0, 1.0, _ENDS),
    "gymnax/Freeway-MinAtar": ScoreReference(0.40, 58.0, _MINATAR),
    "gymnax/MountainCar-v0": _MOUNTAIN_CAR,
    "gymnax/MountainCarContinuous-v0": _MOUNTAIN_CAR_CONTINUOUS,
    "gymnax/Pendulum-v1": _PENDULUM,
    "gymnax/SpaceInvaders-MinAtar": ScoreReference(4.2, 131.0, _MINATAR),
}
"""Task -> its references."""


def with_references(own: Mapping[str, tuple[float, float, str]] | None) -> dict[str, ScoreReference]:
    """Reference scores by task: the built-in `REFERENCES`, updated by the user's entries.

    Args:
        own: Task -> ``(low, high, source)``.

    Raises:
        ValueError: If an entry is not such a tuple.
    """
    found = dict(REFERENCES)
    for task, given in (own or {}).items():
        is_right = isinstance(given, tuple | list) and len(given) == 3
        if not (is_right and all(_is_finite(value) for value in given[:2]) and given[0] < given[1]):
            raise ValueError(
                f"references={{{task!r}: {given!r}}}: must be (low, high, source) with low < high, such as "
                f"(0.0, 500.0, 'time limit')."
            )
        found[task] = ScoreReference(float(given[0]), float(given[1]), str(given[2]))
    return found


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
