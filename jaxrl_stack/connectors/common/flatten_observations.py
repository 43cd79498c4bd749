"""Connector that flattens nested observations to one vector."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.spaces import flatten_observation, flatten_space


class FlattenObservations(ConnectorV2):
    """Flattens each observation to one float32 vector; Discrete values become one-hot vectors.

    Args:
        input_observation_space: Any observation space, nested or not.
        input_action_space: See ConnectorV2.
        agent_ids: Flatten for these agents only, with ``multi_agent=True``: in a config for modules all of whose agents
            are among them, on its own for the batch's ids among them. None for all.
        as_learner_connector: The connector stands in a learner pipeline: columns are ``[T, B, ...]``, FINAL_OBS
            and NEXT_OBS are flattened, too, and vectors that the env-to-module pipeline has flattened already
            pass through.
        keys_to_remove: Keys of a Dict space that are dropped instead of flattened.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``agent_ids`` is given without ``multi_agent=True`` or in a learner pipeline, or a key to remove is
            not in the space.
    """

    sees_action_mask = False

    def __init__(
        self,
        *args,
        agent_ids: Collection[Any] | None = None,
        as_learner_connector: bool = False,
        keys_to_remove: list[str] | None = None,
        **kwargs,
    ):
        super().__init__(*args, **kwargs)
        if agent_ids is not None and (as_learner_connector or not self._multi_agent):
            raise ValueError(
                f"FlattenObservations(agent_ids={agent_ids!r}): only multi-agent env-to-module pipelines know agent "
                "ids. In an env-to-module pipeline, set multi_agent=True; in a learner pipeline, leave `agent_ids` out."
            )
        self._agent_ids = None if agent_ids is None else list(agent_ids)
        self._as_learner_connector = as_learner_connector
        self._keys_to_remove = list(keys_to_remove or ())

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        """Returns the space of the flat observations, a one-dimensional float32 Box.

        In a multi-agent pipeline, returns a Dict of one space per module. If ``agent_ids`` is given, only the spaces
        with keys in ``agent_ids`` are flattened.
        """
        flat: Any = self._map_spaces(lambda space: flatten_space(self._kept(space)), input_observation_space)
        if not self._multi_agent or self._agent_ids is None:
            return flat
        spaces: Any = input_observation_space
        return gym.spaces.Dict({mid: flat[mid] if mid in self._agent_ids else own for mid, own in spaces.items()})

    def acts_for(self, agents: Collection[Any] | None, known: Collection[Any]) -> bool:
        """Returns True if this connector belongs in the env-to-module pipeline of a module that acts for `agents`.

        The connector belongs there if it has no ``agent_ids`` (argument of the constructor), or if ``agent_ids``
        contains all of `agents`.

        Raises:
            ValueError: ``agent_ids`` contains only some of the module's agents, or an agent that is not in `known`; or
                `agents` is None.
        """
        if self._agent_ids is None:
            return True
        called = f"FlattenObservations(agent_ids={self._agent_ids!r})"
        unknown = [agent for agent in self._agent_ids if agent not in known]
        if agents is None or unknown:
            raise ValueError(
                f"{called}: the environment's agents are {list(known)}. Choose from them, or leave `agent_ids` out."
            )
        listed = [agent for agent in agents if agent in self._agent_ids]
        if listed and len(listed) < len(agents):
            raise ValueError(
                f"{called}: the agents {list(agents)} share one module and its pipeline, but `agent_ids` has only some "
                "of them. List all or none, or map them to different modules with multi_agent(policy_mapping_fn=...)."
            )
        return bool(listed)

    def _kept(self, space):
        if not self._keys_to_remove:
            return space
        if masks := [key for key in self._keys_to_remove if key in self.mask_keys]:
            raise ValueError(
                f"FlattenObservations(keys_to_remove={self._keys_to_remove}) would remove the action mask "
                f"{masks[0]!r}. Take it out of `keys_to_remove`, or set environment(action_mask_key='none') if all "
                "actions are allowed."
            )
        if not isinstance(space, gym.spaces.Dict):
            raise ValueError(
                f"FlattenObservations(keys_to_remove={self._keys_to_remove}) needs a Dict space, got {space}. Leave "
                "`keys_to_remove` out."
            )
        missing = [key for key in self._keys_to_remove if key not in space.spaces]
        if missing:
            raise ValueError(
                f"FlattenObservations(keys_to_remove={self._keys_to_remove}): the observation space has no keys "
                f"{missing}. Choose from {list(space.spaces)}."
            )
        return gym.spaces.Dict({key: sub for key, sub in space.items() if key not in self._keys_to_remove})

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Replaces OBS by float32 ``[B, D]`` (in a learner pipeline ``[T, B, D]``), where D is the length of the flat
        vector.
        """
        spaces = self._observation_spaces()
        names = [Columns.OBS, *([Columns.FINAL_OBS, Columns.NEXT_OBS] if self._as_learner_connector else [])]

        def flat(module_id: str, columns: dict[str, Any]) -> dict[str, Any]:
            if self._multi_agent and self._agent_ids is not None and module_id not in self._agent_ids:
                return {}
            space = self._space_of(spaces, module_id)
            return {name: self._flatten(space, columns[name]) for name in names if name in columns}

        return state, self._with_columns(batch, flat)

    def _flatten(self, space, observation: Any) -> Any:
        kept = self._kept(space)
        num_leading = 2 if self._as_learner_connector else 1
        is_array = not isinstance(observation, dict | tuple | list)
        shape = np.shape(observation)[num_leading:] if is_array else None
        if self._as_learner_connector and shape == flatten_space(kept).shape:
            return observation
        if kept is not space:
            observation = {key: observation[key] for key in kept.spaces}
        return flatten_observation(kept, observation, batch_dims=num_leading)
