"""Options for reading recorded data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.datasets.checks import ModuleInputs, RecordedSpaces

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.datasets.dataset_info import DatasetInfo


SETTINGS: Mapping[str, str] = {
    "input_read_schema": "schema",
    "input_read_episodes": "episodes",
    "input_read_sample_batches": "sample_batches",
    "input_compress_columns": "compress_columns",
    "ignore_final_observation": "ignore_final_observation",
    "input_filesystem": "filesystem",
    "input_filesystem_kwargs": "filesystem_kwargs",
}
"""Fields of `ReadOptions`, by the settings of `offline_data` that they are."""


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """Options for reading recorded data: the `input_*` settings of `offline_data()`, and the spaces that the data must
    fit.

    Attributes:
        schema: ``{column: its name in the files}`` for tables of steps (`input_read_schema`); "" leaves a column
            unread.
        episodes: Every file must hold packed episodes (`input_read_episodes`); they are also read without it.
        sample_batches: A row is an old SampleBatch (`input_read_sample_batches`).
        compress_columns: Columns whose texts are packed arrays (`input_compress_columns`).
        ignore_final_observation: Next observations are not read from tables; final rows are zeros.
        filesystem, filesystem_kwargs: `input_filesystem`, `input_filesystem_kwargs`.
        observation_space, action_space: What the environment's are, or None; rows are checked against them and get
            their dtypes. Files that say their own need none.
        inputs: How the environment's observations become a module's, for files that do not say which of them they have;
            None: observations stay as they are.
        columns: Columns to read beside observations, actions, rewards and the two flags; None for all that are there,
            but infos.
        normalize_actions: Modules act in [-1, 1] where a Box has bounds. Actions of files that hold the environment's
            (Minari's, D4RL's) are mapped there; those of other files are there, or refused.
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
    inputs: ModuleInputs | None = None
    columns: Sequence[str] | None = None
    normalize_actions: bool = True
    check: bool = True

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], *, known_only: bool = False, **more: Any) -> ReadOptions:
        """Creates the options for reading recorded data from `input_*` settings of `offline_data`.

        Args:
            settings: ``{setting: value}``; those that are no options of reading are left alone, or refused.
            known_only: Whether they are refused.
            **more: Fields.

        Raises:
            ValueError: If `known_only`, for another setting.
        """
        unknown = settings.keys() - SETTINGS.keys() if known_only else ()
        if unknown:
            raise ValueError(f"data_options has the unknown names {sorted(unknown)}. Valid are {list(SETTINGS)}.")
        found = {field: settings[name] for name, field in SETTINGS.items() if settings.get(name) is not None}
        return cls(**{**found, **more})

    def spaces_of(self, info: DatasetInfo, *, has_bounds: bool = False) -> RecordedSpaces:
        """Returns the spaces that the steps of a file must fit.

        Takes each space (observations, actions) from these options or, if the option is None, from the file's
        description (`info`).

        Args:
            info: Origin of the steps, from the file's metadata.
            has_bounds: See `RecordedSpaces`.
        """
        return RecordedSpaces(
            info.observation_space if self.observation_space is None else self.observation_space,
            self.inputs,
            info.action_space if self.action_space is None else self.action_space,
            is_scaled=self.normalize_actions,
            has_bounds=has_bounds,
        )
