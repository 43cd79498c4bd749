"""Sampling of a given number of episodes: the number is divided over the environments, and each environment contributes
its first episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def episode_quota(num_episodes: int, num_envs: int) -> list[int]:
    """Returns how many episodes each of `num_envs` environments must complete: ``num_episodes // num_envs``, plus 1 for
    the first ``num_episodes % num_envs`` environments.
    """
    return [num_episodes // num_envs + (i < num_episodes % num_envs) for i in range(num_envs)]


class EpisodeQuota:
    """Collects the first episodes of every environment, the same number from each (numbers differ by 1 at most), so
    that short episodes are not over-represented.

    Args:
        num_episodes: Total number of episodes; see `episode_quota`.
        num_envs: ``B``.
    """

    def __init__(self, num_episodes: int, num_envs: int):
        self._sizes = episode_quota(num_episodes, num_envs)
        self._kept: list[list[Any]] = [[] for _ in self._sizes]

    def add(self, ended: Iterable[tuple[int, Any]]) -> EpisodeQuota:
        """Adds ended episodes, pairs ``(environment index, episode)`` in the order in which they ended.

        Ignores the episodes of environments that have already contributed the required number of episodes.
        """
        for index, episode in ended:
            if len(self._kept[index]) < self._sizes[index]:
                self._kept[index].append(episode)
        return self

    def fill(self, sample: Callable[[], Iterable[tuple[int, Any]]]) -> list[Any]:
        """Calls `sample`, which returns pairs ``(environment index, ended episode)``, until every environment has
        completed the required number of episodes. Returns these episodes, ordered by environment.
        """
        while [len(kept) for kept in self._kept] != self._sizes:
            self.add(sample())
        return self.episodes

    @property
    def episodes(self) -> list[Any]:
        """Collected episodes of all environments, ordered by environment."""
        return [episode for kept in self._kept for episode in kept]
