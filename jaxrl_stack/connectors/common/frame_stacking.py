"""Connector that concatenates the last few observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns


class FrameStacking(ConnectorV2):
    """Concatenates the last ``num_frames`` observations along the last axis, the oldest first.

    Frames from before the start of the episode are zeros. ``[..., 1]`` becomes ``[..., num_frames]``; more
    channels, ``[..., C]``, become ``[..., num_frames * C]``.

    In a learner pipeline (``as_learner_connector=True``) there is nothing left to stack: rollouts record the
    module's inputs, which the env-to-module pipeline has stacked, and whose space is the learner pipeline's own. It
    then only checks that the last axis holds whole frames.

    Args:
        input_observation_space: A Box of rank 1 or more.
        input_action_space: See ConnectorV2.
        num_frames: Number of frames, 1 or more.
        as_learner_connector: The connector stands in a learner pipeline.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: ``num_frames`` < 1, an observation space without an axis to stack along, or, in a learner pipeline,
            one that nothing has stacked.
    """

    sees_action_mask = False

    def __init__(self, *args, num_frames: int = 1, as_learner_connector: bool = False, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(num_frames, bool) or not isinstance(num_frames, int) or num_frames < 1:
            raise ValueError(f"{type(self).__name__}(num_frames={num_frames!r}): give an int of 1 or more.")
        self.num_frames = num_frames
        self._as_learner_connector = as_learner_connector

    @property
    def num_stacked_frames(self) -> int:
        own = type(self).apply is FrameStacking.apply and not (self._as_learner_connector or self.is_host_connector)
        return self.num_frames if own else 1

    @property
    def takes_frames(self) -> bool:
        return type(self).apply is FrameStacking.apply and self._as_learner_connector

    def earlier_frames(self, state: Any) -> Any:
        (history,) = state.values()
        return history

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        """Returns a Box whose last axis is ``num_frames`` times as long as in the input space. In a learner pipeline,
        returns the input space unchanged.
        """
        own = self._checked_stacked if self._as_learner_connector else self._stacked_space
        return self._map_spaces(own, input_observation_space)

    def _checked_stacked(self, space):
        if space.shape and space.shape[-1] % self.num_frames == 0:
            return space
        raise ValueError(
            f"{type(self).__name__}(num_frames={self.num_frames}, as_learner_connector=True): the module's "
            f"observations {space} are not {self.num_frames} stacked frames. Add "
            f"FrameStackingEnvToModule(num_frames={self.num_frames}) to the env-to-module pipeline."
        )

    def _stacked_space(self, space):
        if not isinstance(space, gym.spaces.Box) or not space.shape:
            raise ValueError(
                f"{type(self).__name__} stacks along the last axis of a Box, but the observation space is "
                f"{space}. Put FlattenObservations (nested or discrete spaces) or an ObservationPreprocessor "
                "before it."
            )
        if self.num_frames == 1:
            return space
        # Frames from before the episode are 0, which the environment's own bounds may exclude.
        low, high = np.minimum(space.low, 0), np.maximum(space.high, 0)
        repeats = (*(1 for _ in space.shape[:-1]), self.num_frames)
        return gym.spaces.Box(np.tile(low, repeats), np.tile(high, repeats), dtype=space.dtype.type)

    def init(self, num_envs: int) -> Any:
        """Returns the initial state: zeros in place of each environment's earlier frames.

        The state is ``{module_id: [B, ..., (num_frames - 1) * C]}``, where C is the length of an observation's last
        axis.
        """
        if self._as_learner_connector or self.num_frames == 1:
            return ()
        history = {}
        for module_id, space in self._observation_spaces().items():
            *leading, stacked_width = self._stacked_space(space).shape
            width = stacked_width - stacked_width // self.num_frames
            history[module_id] = jnp.zeros((num_envs, *leading, width), space.dtype)
        return history

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Concatenates the earlier frames in `state` and the new frame OBS along the last axis, and replaces OBS by the
        result.

        OBS ``[B, ..., C]`` becomes ``[B, ..., num_frames * C]``, where C is the length of the last axis of OBS. Earlier
        frames are zeros where ``ctx.reset`` is True.
        """
        if self._as_learner_connector or self.num_frames == 1:
            return state, batch
        state, batch = dict(state), dict(batch)
        for key, module_id in self._state_keys(batch):
            observation = jnp.asarray(batch[module_id][Columns.OBS])
            reset = jnp.reshape(ctx.reset, (-1, *(1 for _ in observation.shape[1:])))
            history = jnp.where(reset, jnp.zeros_like(state[key]), state[key])
            frames = jnp.concatenate([history, observation], axis=-1)
            state[key] = frames[..., observation.shape[-1] :]
            batch[module_id] = {**batch[module_id], Columns.OBS: frames}
        return state, batch
