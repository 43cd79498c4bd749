"""Reads recorded steps as the initial contents of a replay buffer."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.datasets.blocks import blocks_of
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.offline.offline_data import BASE_COLUMNS, OfflineData, is_squashed
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.replay.draw_forms import DrawForm

logger = logging.getLogger(__name__)

_LONGEST_BLOCK = 256
"""Maximum number of time steps of the blocks in which recorded steps are added to a replay buffer."""


class RecordedStart:
    """Reads the steps of `offline_data(input_=...)` as initial contents of a replay buffer.

    Args:
        config: The algorithm's config.
        spaces: ``(observation space, action space)`` of the module.
        module: The module; None if unknown.
        what: Form of the items drawn from the replay.

    Raises:
        ValueError: If sequences need states that the data lacks.
    """

    def __init__(self, config: Any, spaces: tuple[gym.Space, gym.Space], module: RLModule | None, what: DrawForm):
        if what.declared:
            raise ValueError(
                f"columns_from_acting of the Learner, RLModule or a learner connector declares {list(what.declared)}, "
                "but the recorded steps of offline_data(input_=...) are added to the replay buffer without these "
                "columns. Leave input_ out; or remove the columns from columns_from_acting, and compute them from "
                "observations in a learner connector."
            )
        if what.extra_columns:
            raise ValueError(
                "offline_data(input_=...): recorded steps have no recurrent states for the replay buffer. Start "
                "sequences from the initial state: training(replay_buffer_config={'zero_init_states': True, ...})."
            )
        self._spaces = spaces
        self._data: OfflineData = (config.offline_data_class or OfflineData)(config)
        self._data.is_squashed = is_squashed(module)

    @functools.cached_property
    def num_steps(self) -> int:
        """Number of recorded steps in the data that `offline_data(input_=...)` names."""
        inputs, _ = self._data.steps(BASE_COLUMNS, self._spaces)
        return sum(steps.num_steps for steps in inputs)

    def blocks(self, num_columns: int, capacity: int) -> Iterator[dict[str, Any]]:
        """Yields the initial contents of a replay buffer: the last `capacity` recorded steps.

        The steps are arranged in blocks ``[T, num_columns, ...]``, as if `num_columns` environments had recorded them;
        see `blocks_of`. The buffer has room for `capacity` steps.

        Raises:
            ValueError: If the data has fewer steps than columns.
        """
        inputs, weights = self._data.steps(BASE_COLUMNS, self._spaces)
        if len(weights) > 1:
            notice_once(
                "offline_data(input_={path: weight}): weights have no effect on data in a replay buffer, which "
                "draws all steps equally often."
            )
        steps = _last(Steps.concatenated(inputs), capacity)
        if steps.num_steps < num_columns:
            raise ValueError(
                f"offline_data(input_={self._data.path!r}) has {steps.num_steps} steps, but the replay buffer "
                f"needs at least one step for each of its {num_columns} environments. Use more data, or lower "
                "num_envs_per_env_runner."
            )
        logger.info("The replay buffer starts with %d recorded steps.", steps.num_steps // num_columns * num_columns)
        return blocks_of(steps, num_columns, longest=min(_LONGEST_BLOCK, max(1, capacity // num_columns)))


def _last(steps: Steps, capacity: int) -> Steps:
    """Returns the last `capacity` of the recorded steps; all if there are fewer."""
    excess = steps.num_steps - capacity
    if excess <= 0:
        return steps
    first = int(np.flatnonzero(~steps.is_final)[excess])
    columns = {name: jax.tree.map(lambda x: x[first:], column) for name, column in steps.columns.items()}
    return Steps(columns, steps.is_final[first:], steps.episode[first:], steps.t[first:], steps.episode_ids)
