"""Division of a number of episodes among environments."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def episode_quota(num_episodes: int, num_envs: int) -> list[int]:
    """Number of episodes that each of B environments contributes to n: ``n // B + (i < n % B)``."""
    return [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]


class EpisodeQuota:
    """The first episodes of every environment, so that short ones are not preferred.

    Args:
        num_episodes: Total number of episodes; see `episode_quota`.
        num_envs: ``B``.
    """

    def __init__(self, num_episodes: int, num_envs: int):
        self._sizes = episode_quota(num_episodes, num_envs)
        self._kept: list[list[Any]] = [[] for _ in self._sizes]

    def add(self, ended: Iterable[tuple[int, Any]]) -> EpisodeQuota:
        """Adds those of ``(environment, episode)`` that still count, in the order in which they ended."""
        for index, episode in ended:
            if len(self._kept[index]) < self._sizes[index]:
                self._kept[index].append(episode)
        return self

    def fill(self, sample: Callable[[], Iterable[tuple[int, Any]]]) -> list[Any]:
        """Call `sample` until no episode is missing, and return them, environment by environment."""
        while [len(kept) for kept in self._kept] != self._sizes:
            self.add(sample())
        return self.episodes

    @property
    def episodes(self) -> list[Any]:
        """Episodes so far, environment by environment."""
        return [episode for kept in self._kept for episode in kept]
