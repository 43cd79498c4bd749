"""CartPole with a nested observation space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from jaxrl_stack.examples.envs.classes.utils.other_observations import OtherObservations


class CartPoleWithDictObservationSpace(OtherObservations, CartPoleEnv):
    """CartPole with a nested observation space: a `Dict` with a `Box`, a `Dict` and a `Tuple`. One value in the
    observation is random and irrelevant.

    ``{"x-pos": [x], "angular-pos": {"value": angle, "some_random_stuff": 0, 1 or 2}, "velocs": ([x'], angle')}``

    Args:
        config: Has no settings.
    """

    def __init__(self, config: Mapping[str, Any] | None = None):
        super().__init__()
        full = self.observation_space
        assert isinstance(full, Box)

        def part(index: int, shape: tuple[int, ...]) -> Box:
            return Box(full.low[index], full.high[index], shape, np.float32)

        self.observation_space: Any = Dict(
            {
                "x-pos": part(0, (1,)),
                "angular-pos": Dict({"value": part(2, ()), "some_random_stuff": Discrete(3)}),
                "velocs": Tuple((part(1, (1,)), part(3, ()))),
            }
        )

    def _shown(self, obs: np.ndarray) -> dict[str, Any]:
        return {
            "x-pos": obs[[0]],
            "angular-pos": {"value": np.array(obs[2]), "some_random_stuff": self.np_random.integers(3)},
            "velocs": (obs[[1]], np.array(obs[3])),
        }
