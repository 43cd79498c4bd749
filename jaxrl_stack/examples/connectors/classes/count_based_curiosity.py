"""Learner connector that adds a reward for rarely seen observations."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2


class CountBasedCuriosity(ConnectorV2):
    """Learner connector that adds an intrinsic reward to each step: more for observations that were seen less often.

    The added reward is ``intrinsic_reward_coeff / n``; n is the number of steps so far, including this one, that began
    with the same observation.

    For environments with few observations: ``learners(learner_connector=lambda *spaces: CountBasedCuriosity())``.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        intrinsic_reward_coeff: Weight of the added rewards.
    """

    def __init__(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        *,
        intrinsic_reward_coeff: float = 1.0,
        **kwargs: Any,
    ):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.intrinsic_reward_coeff = intrinsic_reward_coeff
        self._counts: Counter[bytes] = Counter()

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], episodes: list[Any], **kwargs: Any) -> dict[str, Any]:
        """Adds intrinsic rewards to the rewards of the episodes."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            bonuses = []
            for obs in episode.get_observations(slice(None, -1)):
                seen = np.asarray(obs).tobytes()
                self._counts[seen] += 1
                bonuses.append(self.intrinsic_reward_coeff / self._counts[seen])
            rewards = np.asarray(episode.get_rewards(), np.float32)
            episode.set_rewards(new_data=list(rewards + np.asarray(bonuses, np.float32)))
        return batch
