"""Episodes step by step out of recorded blocks, for those who want to watch them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

NOT_MODEL_OUTPUTS = frozenset(
    {
        Columns.OBS,
        Columns.FINAL_OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.TERMINATEDS,
        Columns.TRUNCATEDS,
        Columns.LOSS_MASK,
    }
)
"""Columns of a rollout that an episode keeps under names of their own."""


class EpisodeReplay:
    """Feeds the per-episode callback hooks of an algorithm whose environments run inside a compiled program.

    Args:
        call: ``(hook name, env index, episode)``; called for ``on_episode_created``, ``on_episode_start``,
            ``on_episode_step`` and ``on_episode_end``, in the order in which a host runner would.
        observation_space: Of the module's inputs.
        action_space: Of the module's actions.
    """

    def __init__(self, call: Callable[[str, int, SingleAgentEpisode], None], observation_space: Any, action_space: Any):
        self._call = call
        self._spaces = {"observation_space": observation_space, "action_space": action_space}
        self._running: dict[int, SingleAgentEpisode] = {}

    def replay(self, columns: dict[str, Any]) -> list[SingleAgentEpisode]:
        """Go through a block step by step.

        Args:
            columns: NumPy arrays ``[T, B, ...]`` of one rollout.

        Returns:
            The episodes that ended in it, then what was sampled so far of those that go on.
        """
        num_steps, num_envs = columns[Columns.REWARDS].shape
        ended: list[SingleAgentEpisode] = []
        for t in range(num_steps):
            row = jax.tree.map(lambda x, t=t: x[t], columns)
            for index in range(num_envs):
                step = jax.tree.map(lambda x, i=index: x[i], row)
                if index not in self._running:
                    episode = self._running[index] = SingleAgentEpisode(**self._spaces)
                    self._call("on_episode_created", index, episode)
                    episode.add_env_reset(step[Columns.OBS])
                    self._call("on_episode_start", index, episode)
                episode = self._running[index]
                episode.add_env_step(
                    step[Columns.FINAL_OBS],
                    step[Columns.ACTIONS],
                    float(step[Columns.REWARDS]),
                    terminated=bool(step[Columns.TERMINATEDS]),
                    truncated=bool(step[Columns.TRUNCATEDS]),
                    extra_model_outputs={k: v for k, v in step.items() if k not in NOT_MODEL_OUTPUTS},
                )
                self._call("on_episode_step", index, episode)
                if episode.is_done:
                    self._call("on_episode_end", index, episode)
                    ended.append(self._running.pop(index))
        return [*ended, *self._running.values()]


def in_time_order(columns: Any, num_devices: int, num_rounds: int) -> Any:
    """Blocks ``[D, T, R * B, ...]`` of all devices as one block ``[R * T, D * B, ...]`` of all environments."""

    def one(x: np.ndarray) -> np.ndarray:
        num_steps = x.shape[1]
        x = x.reshape(num_devices, num_steps, num_rounds, -1, *x.shape[3:])
        x = np.moveaxis(x, 0, 2)  # [T, R, D, B, ...]
        x = np.moveaxis(x, 1, 0)  # [R, T, D, B, ...]
        return x.reshape(num_rounds * num_steps, -1, *x.shape[4:])

    return jax.tree.map(one, columns)
