"""Pipeline of connectors between environment and module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import as_sequences
from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.utils.nested import batch as stack
from jaxrl_stack.utils.nested import tree_map
from jaxrl_stack.utils.spaces import zeros


class EnvToModulePipeline(ConnectorPipelineV2):
    """Pipeline that converts observations of the environments to inputs of the module.

    The batch that enters is ``{module_id: {OBS: observations}}`` with leaves ``[B, ...]``. Called with
    ``episodes`` and no batch (one running SingleAgentEpisode per environment), it starts from their last
    observations, actions and rewards; connectors with a history keep it from call to call. For a module with a
    recurrent state, the state after an episode's last step is read from its extra model outputs.
    """

    setting = "env_to_module_connector"

    def _handed_over(self, columns: dict[str, Any], rl_module: Any, episodes: Sequence[Any]) -> dict[str, Any]:
        """Converts the columns for a recurrent module to sequences of one step, and adds ``STATE_IN`` and ``RESETS``.

        The sequences are ``[B, 1, ...]``. For other modules, or without episodes, returns the columns unchanged.

        Raises:
            ValueError: An unfinished episode does not have the module's last ``STATE_OUT``.
        """
        is_multi = isinstance(rl_module, MultiRLModule)
        module = rl_module[single_agent(rl_module).module_id] if is_multi else rl_module
        if not episodes or module is None or not module.is_stateful():
            return columns
        states = _states_before(episodes, module.get_initial_state())
        at_reset = np.array([episode.t == 0 for episode in episodes], bool)
        return as_sequences({**columns, Columns.STATE_IN: states, Columns.RESETS: at_reset})

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


def _states_before(episodes: Sequence[Any], first: Any) -> Any:
    """Returns the recurrent states ``[B, ...]`` with which unfinished episodes continue.

    An episode continues with the state after its last step, or with the initial state `first` if it has no steps.
    """
    states = []
    for episode in episodes:
        if episode.t and Columns.STATE_OUT not in episode.extra_model_outputs:
            raise ValueError(
                f"An unfinished episode ({episode.t} steps) lacks the extra model output {Columns.STATE_OUT!r}, the "
                "state with which the recurrent module continues the episode. In each step of environment i, store row "
                "i of `to_env`, the result of the module-to-env pipeline: episode.add_env_step(..., "
                "extra_model_outputs={name: column[i] for name, column in to_env.items()})."
            )
        states.append(episode.get_extra_model_outputs(Columns.STATE_OUT, -1) if episode.t else first)
    return stack([tree_map(np.asarray, state) for state in states])
