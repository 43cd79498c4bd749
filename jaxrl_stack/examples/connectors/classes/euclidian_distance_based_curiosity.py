"""Learner connector that adds a reward for observations far from earlier ones."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2


class EuclidianDistanceBasedCuriosity(ConnectorV2):
    """Learner connector that adds the distance to the nearest remembered observation, times a weight, to rewards.

    Of every episode the observation that is farthest from the remembered ones joins them.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        intrinsic_reward_coeff: Weight of the added rewards.
        max_buffer_size: Number of observations that are remembered; the oldest ones are forgotten.
    """

    def __init__(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        *,
        intrinsic_reward_coeff: float = 1.0,
        max_buffer_size: int = 100,
        **kwargs: Any,
    ):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.intrinsic_reward_coeff = intrinsic_reward_coeff
        self.obs_buffer: deque[np.ndarray] = deque(maxlen=max_buffer_size)

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        """Adds intrinsic rewards to the rewards of the episodes."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            observations = np.asarray(episode.get_observations(slice(None, -1)), np.float32)
            if not len(observations):
                continue
            distances = np.zeros(len(observations), np.float32)
            if self.obs_buffer:
                flat, known = (part.reshape(len(part), 1, -1) for part in (observations, np.stack(self.obs_buffer)))
                distances = np.linalg.norm(flat - known[None, :, 0], axis=-1).min(axis=-1)
            rewards = np.asarray(episode.get_rewards(), np.float32)
            episode.set_rewards(new_data=list(rewards + self.intrinsic_reward_coeff * distances))
            self.obs_buffer.append(observations[int(distances.argmax())])
        return batch
