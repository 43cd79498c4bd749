"""File output of a runner's recorded steps, as in ``offline_data(output=...)``."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.acting.steps_builder import StepsBuilder
from jaxrl_stack.acting.steps_of_episodes import ChunkJoiner
from jaxrl_stack.connectors.states import per_env_leaves
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.locations import filesystem_of
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.table_writer import TableWriter

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.datasets.steps import Steps


CONNECTORS = "connectors"
"""Key of `DatasetInfo.more` for the names of the connectors that computed the observations."""
NO_CONNECTORS: Mapping[str, Any] = {"names": [], "statistics": []}


def described_connectors(pipeline: Any) -> dict[str, list[str]]:
    """Returns the class names of the connectors that the user's config added to a pipeline.

    The result, for the metadata of a data file, is ``{"names": [...], "statistics": [...]}``. "names" lists all of
    these connectors; "statistics" lists only connectors whose state contains arrays that all environments share, such
    as running means.

    Args:
        pipeline: An env-to-module pipeline.
    """
    own = [(type(connector).__name__, connector) for connector in pipeline.of_setting]
    has_shared_state = [name for name, connector in own if _has_shared_state(connector)]
    return {"names": [name for name, _ in own], "statistics": has_shared_state}


def _has_shared_state(connector: Any) -> bool:
    """Whether a connector's state contains arrays that all environments share, such as running means."""
    if connector.is_host_connector:
        return False
    return not all(jax.tree.leaves(per_env_leaves(connector.init)))


class NoOutput:
    """Output of a runner that writes no files: all methods do nothing. Their docstrings describe the methods of the
    subclass `StepOutput`.
    """

    is_on = False
    num_buffered_rows = 0

    def add_block(self, columns: Any, counts: np.ndarray | None = None) -> None:
        """Adds a block (arrays of sampled steps) to the output files; see `StepsBuilder.add`."""

    def add_episodes(self, episodes: Sequence[Any]) -> None:
        """Adds the episodes that one `sample` call returned to the output files; see `ChunkJoiner.add`."""

    def restart(self, lengths: np.ndarray | None = None) -> None:
        """Writes the stored steps of unfinished episodes to the output files.

        Steps that are added later get new episode ids, even if the environments continue these episodes; see
        `StepsBuilder.restart`.
        """

    def flush(self, *, is_last: bool = False) -> None:
        """Completes the output file that is being written, if any.

        Writes the file's buffered steps and closes the file. Steps of unfinished episodes stay stored, unless `is_last`
        is True.

        Args:
            is_last: Whether no more steps follow: then unfinished episodes are cut and written, unless
                ``output_write_remaining_data=False``.
        """


NO_OUTPUT = NoOutput()


class StepOutput(NoOutput):
    """Writes a runner's sampled steps to output files, each step once.

    A `StepsBuilder` (for arrays of steps) and a `ChunkJoiner` (for episode objects) store steps until their episode
    ends, so that the steps of an episode are adjacent in a file. Two kinds of episodes are written in several parts:
    episodes with `output_max_rows_per_file` rows or more, and all unfinished episodes if the steps in the
    `StepsBuilder` take too much memory.

    Args:
        config: The runner's config, with `output` set.
        worker_index: Index of the runner.
        module_id: The module that acts.
        spaces: ``(observation space, action space)`` of the module.
        connectors: Names of the connectors that computed its observations, see `described_connectors`.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        *,
        worker_index: int,
        module_id: str,
        spaces: tuple[gym.Space, gym.Space],
        connectors: Mapping[str, Any] = NO_CONNECTORS,
    ):
        self._config: Any = config
        observation_space, action_space = spaces
        self._about = DatasetInfo(
            observation_space=observation_space,
            action_space=action_space,
            env_id=config.env if isinstance(config.env, str) else getattr(config.env, "__name__", str(config.env)),
            seed=config.root_seed,
            module_id=module_id,
            more={CONNECTORS: dict(connectors)},
        )
        kind = "evaluation" if config.in_evaluation else "run"
        # No other runner, and no restart of this one, writes under the same name.
        self._name = f"{kind}-{worker_index:06d}-{uuid.uuid4().hex[:8]}"
        self._writer: StepWriter | TableWriter | None = None
        most = max(2, int(config.output_max_rows_per_file))
        self._blocks = StepsBuilder(self._name, most)
        self._chunks = ChunkJoiner(most, has_infos=config.output_write_infos)

    is_on = True

    @property
    def num_buffered_rows(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Number of rows (steps and final observations) that are not in a file yet."""
        waiting = 0 if self._writer is None else self._writer.num_buffered_rows
        return self._blocks.num_held + self._chunks.num_held + waiting

    def add_block(self, columns: Any, counts: np.ndarray | None = None) -> None:
        self._write(self._blocks.add(columns, counts))

    def add_episodes(self, episodes: Sequence[Any]) -> None:
        self._write(self._chunks.add(episodes))

    def restart(self, lengths: np.ndarray | None = None) -> None:
        self._write(self._blocks.restart(lengths))

    def flush(self, *, is_last: bool = False) -> None:
        if is_last and self._config.output_write_remaining_data:
            self._write(self._blocks.cut())
            self._write(self._chunks.cut())
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _write(self, steps: Steps | None) -> None:
        if steps is None:
            return
        if self._writer is None:
            self._writer = self._new_writer()
        self._writer.add(steps)

    def _new_writer(self) -> StepWriter | TableWriter:
        config = self._config
        place: Any = {
            "about": self._about,
            "max_rows_per_file": config.output_max_rows_per_file,
            "parquet_options": config.output_write_method_kwargs,
            "filesystem": filesystem_of(
                config.output_filesystem, config.output_filesystem_kwargs, setting="output_filesystem"
            ),
        }
        if config.output_format == "parquet" and config.output_write_episodes:
            compression = dict.fromkeys(config.output_compress_columns, "lz4")
            return StepWriter(config.output, self._name, compression=compression, **place)
        return TableWriter(config.output, self._name, packs_episodes=config.output_write_episodes, **place)


def make_step_output(
    config: AlgorithmConfig, worker_index: int, env_to_module: Mapping[str, EnvToModulePipeline]
) -> NoOutput:
    """Creates the object that writes a runner's steps to files: a `StepOutput`, or a `NoOutput` if the config sets no
    output.

    Args:
        config, worker_index: Config and index of the runner.
        env_to_module: Env-to-module pipeline of its only module, ``{module_id: pipeline}``.
    """
    if not config.output:
        return NO_OUTPUT
    module_id = config.module_map.module_id
    pipeline: Any = env_to_module[module_id]
    return StepOutput(
        config,
        worker_index=worker_index,
        module_id=module_id,
        spaces=(pipeline.observation_space, pipeline.action_space),
        connectors=described_connectors(pipeline),
    )
