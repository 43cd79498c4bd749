"""Normalised scores of D4RL: a random policy has 0, an expert 100."""

from __future__ import annotations

import re
from typing import NamedTuple


class Reference(NamedTuple):
    """Reference values of D4RL's normalised score: the returns of a random and of an expert policy.

    Attributes:
        random: Return of a policy with random actions.
        expert: Return of D4RL's expert policy.
    """

    random: float
    expert: float


D4RL_REFERENCES = {
    "halfcheetah": Reference(-280.178953, 12135.0),
    "hopper": Reference(-20.272305, 3234.3),
    "walker2d": Reference(1.629008, 4592.3),
    "ant": Reference(-325.6, 3879.7),
    "antmaze": Reference(0.0, 1.0),
}
"""As D4RL publishes them (github.com/Farama-Foundation/D4RL, ``d4rl/infos.py``, ``REF_MIN_SCORE`` and
``REF_MAX_SCORE`` at commit 0ace16d), the same for all data sets of an environment: `random`, `medium`, `medium-replay`,
`full-replay`, `medium-expert` and `expert` of the first four in versions 0 to 2, all mazes of the last."""

_GYMNASIUM = {"HalfCheetah": "halfcheetah", "Hopper": "hopper", "Walker2d": "walker2d", "Ant": "ant"}
_DATA_SETS = {
    **dict.fromkeys(
        ("halfcheetah", "hopper", "walker2d", "ant"), r"random|medium|expert|medium-replay|full-replay|medium-expert"
    ),
    "antmaze": r"umaze|umaze-diverse|(?:medium|large)-(?:play|diverse)",
}


def normalized_score(env: str, episode_return: float) -> float:
    """Computes D4RL's normalised score ``100 (return - random) / (expert - random)`` (Fu et al., 2020, "D4RL", section
    5).

    Args:
        env: A data set of D4RL's, "hopper-medium-replay-v2" or "antmaze-large-play-v2"; an environment alone, "hopper",
            or as gymnasium calls it, "Hopper-v5".
        episode_return: Undiscounted return, such as ``result["env_runners"]["episode_return_mean"]``.

    Raises:
        ValueError: D4RL has no references for `env`.
    """
    name = _GYMNASIUM.get(re.sub(r"-v\d+$", "", env), env)
    family = name if name in D4RL_REFERENCES else name.split("-")[0]
    known = _DATA_SETS.get(family)
    if known is None or (name != family and not re.fullmatch(rf"{family}-(?:{known})-v[0-2]", name)):
        raise ValueError(
            f"normalized_score(env={env!r}) needs one of D4RL's environments {sorted(D4RL_REFERENCES)}, or a data set "
            "of one, such as 'hopper-medium-v2'. For other environments, compare the returns themselves."
        )
    random, expert = D4RL_REFERENCES[family]
    return 100.0 * (episode_return - random) / (expert - random)
