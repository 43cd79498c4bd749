"""The pipeline between environment and module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.nested import batch as stack
from jaxrl_stack.utils.spaces import zeros


class EnvToModulePipeline(ConnectorPipelineV2):
    """From the environments' observations to the module's inputs.

    The batch that enters is ``{module_id: {OBS: observations}}`` with leaves ``[B, ...]``. Called with
    ``episodes`` and no batch (one running SingleAgentEpisode per environment), it starts from their last
    observations, actions and rewards; connectors with a history keep it from call to call.
    """

    def _columns_of(self, episodes: Sequence[Any]) -> dict[str, Any]:
        observations = [] if self._multi_agent else [episode.get_observations(-1) for episode in episodes]
        return {Columns.OBS: stack(observations)} if observations else {}

    def _fields_from_episodes(self, episodes: Sequence[Any], module_ids: Iterable[str]) -> dict[str, Any]:
        at_reset = np.array([episode.t == 0 for episode in episodes], bool)
        rewards = [0.0 if first else episode.get_rewards(-1) for episode, first in zip(episodes, at_reset, strict=True)]
        fields: dict[str, Any] = {
            "reset": at_reset,
            "prev_rewards": dict.fromkeys(module_ids, np.array(rewards, np.float32)),
        }
        if self._input_action_space is not None:
            no_action = zeros(self._input_action_space)
            actions = [
                no_action if first else episode.get_actions(-1)
                for episode, first in zip(episodes, at_reset, strict=True)
            ]
            fields["prev_actions"] = dict.fromkeys(module_ids, stack(actions))
        return fields
