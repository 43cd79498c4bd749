"""Space of lists with varying length."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np


class Repeated(gym.Space):
    """Space of lists with up to `max_len` elements of another space.

    Networks need a fixed shape: a connector, or the environment itself, has to turn the lists into such
    (a `gymnasium.spaces.Box` of `max_len` rows and a mask). Without one, building an algorithm raises a TypeError that
    names the space.

    Args:
        child_space: The space of each element.
        max_len: The largest number of elements, at least 1.

    Raises:
        ValueError: `max_len` is below 1.
    """

    def __init__(self, child_space: gym.Space, max_len: int):
        if max_len < 1:
            raise ValueError(f"Repeated(max_len={max_len!r}): use at least 1.")
        super().__init__()
        self.child_space = child_space
        self.max_len = max_len

    @property
    def is_np_flattenable(self) -> bool:
        """False, because lists of varying length cannot be flattened to an array of a fixed shape."""
        return False

    def seed(self, seed: Any = None) -> Any:
        """Seeds the generator of the lists' random lengths with `seed`, and the space of the elements with a seed
        derived from `seed`.
        """
        seeds = super().seed(seed)
        self.child_space.seed(None if seed is None else int(self.np_random.integers(2**31)))
        return seeds

    def sample(self, mask: Any = None, probability: Any = None) -> list[Any]:
        """Draws a list of 1 to `max_len` random elements of `child_space`.

        Args:
            mask: Of the elements: see `gymnasium.Space.sample` of `child_space`.
            probability: Likewise.
        """
        length = self.np_random.integers(1, self.max_len + 1)
        given = {"mask": mask, "probability": probability}
        return [
            self.child_space.sample(**{name: value for name, value in given.items() if value is not None})
            for _ in range(length)
        ]

    def contains(self, x: Any) -> bool:
        """Whether `x` is a list, a tuple or an array of at most `max_len` elements of `child_space`."""
        fits = isinstance(x, list | tuple | np.ndarray) and len(x) <= self.max_len
        return fits and all(self.child_space.contains(element) for element in x)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Repeated)
            and self.max_len == other.max_len
            and bool(self.child_space == other.child_space)
        )

    def __repr__(self) -> str:
        return f"Repeated({self.child_space}, {self.max_len})"
