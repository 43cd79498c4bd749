"""CartPole whose observation contains many irrelevant random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from jaxrl_stack.examples.envs.classes.utils.other_observations import OtherObservations

_NUM_PARTS = 100


class CartPoleWithLargeObservationSpace(OtherObservations, CartPoleEnv):
    """CartPole with its observation under the key "actually-useful-stuff", next to 100 random entries "0" to "99".

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        noise = {str(i): Tuple((Discrete(100), Box(0, 256, (30,), np.float32))) for i in range(_NUM_PARTS)}
        self.observation_space: Any = Dict({**noise, "actually-useful-stuff": self.observation_space})

    def _shown(self, obs: np.ndarray) -> dict[str, Any]:
        integers = self.np_random.integers(100, size=_NUM_PARTS)
        floats = self.np_random.uniform(0, 256, (_NUM_PARTS, 30)).astype(np.float32)
        noise = {str(i): (integers[i], floats[i]) for i in range(_NUM_PARTS)}
        return {**noise, "actually-useful-stuff": obs}
