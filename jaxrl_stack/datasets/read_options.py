"""How recorded data is to be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import gymnasium as gym


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How recorded data is to be read; the settings `input_*` of `offline_data()`, and the spaces.

    Attributes:
        schema: ``{column: its name in the files}`` for tables of steps (`input_read_schema`).
        episodes: Every file must hold packed episodes (`input_read_episodes`); they are also read without it.
        sample_batches: A row is an old SampleBatch (`input_read_sample_batches`).
        compress_columns: Columns whose texts are packed arrays (`input_compress_columns`).
        ignore_final_observation: Tables need no next observations; last ones are zeros.
        filesystem, filesystem_kwargs: `input_filesystem`, `input_filesystem_kwargs`.
        observation_space, action_space: What the environment's are, or None; rows are checked against them and get
            their dtypes. Files that say their own need none.
        columns: Columns to read beside observations, actions, rewards and the two flags; None for all that are there,
            but infos.
        normalize_actions: Actions of files that hold the environment's (Minari's, D4RL's) are mapped from the bounds
            of their Box to [-1, 1], where modules act.
        check: Look for numbers that are not finite and for actions outside of the space.
    """

    schema: Mapping[str, str] = dataclasses.field(default_factory=dict)
    episodes: bool = False
    sample_batches: bool = False
    compress_columns: Sequence[str] = ("obs", "new_obs")
    ignore_final_observation: bool = False
    filesystem: Any = None
    filesystem_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    observation_space: gym.Space | None = None
    action_space: gym.Space | None = None
    columns: Sequence[str] | None = None
    normalize_actions: bool = True
    check: bool = True
