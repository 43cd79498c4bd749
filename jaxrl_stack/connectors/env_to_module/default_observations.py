"""Connector that converts observations to the inputs of default modules: vectors, images and an action mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym

from jaxrl_stack.connectors.common.flatten_observations import FlattenObservations
from jaxrl_stack.core.default_observations import flatten_beside_images, flatten_space_beside_images, has_action_mask
from jaxrl_stack.utils.action_masks import ACTION_MASK, OBSERVATIONS


class DefaultObservations(FlattenObservations):
    """Variant of `FlattenObservations` that leaves images ``[H, W, C]`` and the action mask unchanged.

    With a mask, observations become ``{"action_mask": mask, "observations": rest}``. Without a mask, they become
    ``rest``: a float32 vector, an image, or, if images are mixed with other parts, a dict with a vector or an image for
    each key. With `keys`, ``rest`` is a dict of these keys, with a vector or an image for each.

    Args:
        input_observation_space: Any observation space, nested or not.
        input_action_space: See ConnectorV2.
        action_mask_key: Name of the mask in Dict observations.
        keys: Keys of Dict observations that stay separate; all other keys are dropped. None: no key is dropped.
        **kwargs: See ConnectorV2.

    Raises:
        ValueError: The space has a mask and keys other than "observations", or an image without a channel axis; or
            `keys` contains a key that the space lacks.
    """

    sees_action_mask = True

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        action_mask_key: str = ACTION_MASK,
        keys: Sequence[str] | None = None,
        **kwargs,
    ):
        self._action_mask_key = action_mask_key
        self._keys = None if keys is None else list(keys)
        super().__init__(input_observation_space, input_action_space, **kwargs)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        """Returns the observation space after the connector: all parts except images and the action mask are flattened.

        Images and the action mask keep their spaces. The other parts of the observation become one-dimensional float32
        Boxes. A Discrete with many values may instead become a Discrete that starts at 0; see
        `flatten_space_beside_images`.
        """
        return self._map_spaces(self._prepared_space, input_observation_space)

    def _prepared_space(self, space: Any) -> gym.Space:
        if not has_action_mask(space, self._action_mask_key):
            return self._space_without_mask(space)
        return gym.spaces.Dict(
            {ACTION_MASK: space[self._action_mask_key], OBSERVATIONS: self._space_without_mask(space[OBSERVATIONS])}
        )

    def _space_without_mask(self, space: Any) -> gym.Space:
        if self._keys is None:
            return flatten_space_beside_images(space)
        missing = set(self._keys) - set(space.spaces if isinstance(space, gym.spaces.Dict) else ())
        if missing:
            raise ValueError(
                f"DefaultObservations(keys={self._keys}): the observation space {space} has no keys {sorted(missing)}. "
                "Remove these from `keys`."
            )
        return gym.spaces.Dict({key: flatten_space_beside_images(space[key]) for key in self._keys})

    def _flatten(self, space: Any, observation: Any) -> Any:
        if not has_action_mask(space, self._action_mask_key):
            return self._without_mask(space, observation)
        return {
            ACTION_MASK: observation[self._action_mask_key],
            OBSERVATIONS: self._without_mask(space[OBSERVATIONS], observation[OBSERVATIONS]),
        }

    def _without_mask(self, space: Any, observation: Any) -> Any:
        if self._keys is None:
            return flatten_beside_images(space, observation, batch_dims=1)
        return {key: flatten_beside_images(space[key], observation[key], batch_dims=1) for key in self._keys}
