"""Data sets of `offline_data(input_=...)` for training."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import jax
import numpy as np

from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import SquashedDeterministic, SquashedGaussian
from jaxrl_stack.datasets.checks import MARGIN, RecordedSpaces, checked
from jaxrl_stack.datasets.item_form import ItemForm
from jaxrl_stack.datasets.opening import Dataset, has_json_batches, open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.recorded_keys import key_problem
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.offline.module_inputs import check_connectors_of, inputs_of, spaces_without_env
from jaxrl_stack.offline.normalization import DataNormalization
from jaxrl_stack.offline.offline_prelearner import SCHEMA, OfflinePreLearner, rows_of
from jaxrl_stack.offline.ray_data import RayData, is_ray_dataset, read_with_ray
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.spaces import map_parts

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.recorded_inputs import PipelineInputs

BASE_COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


class Piece(Protocol):
    """Interface of a part of a data set, such as a row group or a file, that is read as a whole.

    Attributes:
        num_rows: Number of rows, final rows included; None if it is not known without reading.
        num_steps: Number of rows that are steps; None likewise.
        input: Index of the entry of the setting `input_` to which the part belongs.
    """

    num_rows: int | None
    num_steps: int | None
    input: int


class StepsInPieces(Protocol):
    """Interface of a data set of recorded steps, in files or elsewhere, that is read part by part.

    A part is a row group or a file, for example.

    Attributes:
        pieces: All parts, in order.
        weights: Fraction of minibatches that comes from each input; None: all steps are drawn equally often.
    """

    @property
    def pieces(self) -> Sequence[Any]: ...
    @property
    def weights(self) -> Sequence[float] | None: ...
    def read(self, piece: Any) -> Steps: ...


class OfflineData:
    """Reads the recorded data that a config names, for the offline training step (`OfflineStep`).

    Args:
        config: The algorithm's config.

    Attributes:
        config: The constructor argument.
        data: The data set. A subclass may set another one in ``__init__``, or a Ray Dataset.
        path: `offline_data(input_=...)`.
        spaces: ``{module_id: (observation space, action space)}``, when the algorithm is built.
        normalization: Normalisation of rows that are read; see `normalize`.
        module_spec, learner_handles, locality_hints: RLlib's attributes, None here.
        batch_iterators: Iterators that `sample` continues with; None before it is called.
        is_squashed: Whether the module's actions are limited to [-1, 1]. Recorded actions are then clipped to this
            range, as they were when the recorded environment received them.
        data_is_mapped: Whether a user's `prelearner_class` maps the rows.
        map_batches_kwargs, iter_batches_kwargs: As set, over the defaults; for Ray Data.
    """

    data: Any
    spaces: dict[str, Any] | None = None
    normalization: DataNormalization | None = None
    data_is_mapped = False
    is_squashed = False
    _module_spaces: tuple[Any, Any] | None = None
    _selected: tuple[str, ...] | None = None
    _is_stale = False
    module_spec = learner_handles = locality_hints = batch_iterators = None

    def __init__(self, config: AlgorithmConfig):
        self.config: Any = config
        self.path = self.config.input_
        self.map_batches_kwargs = {**self.default_map_batches_kwargs, **self.config.map_batches_kwargs}
        self.iter_batches_kwargs = {**self.default_iter_batches_kwargs, **self.config.iter_batches_kwargs}
        self.data = self.open()
        self.data_is_mapped = self._maps_rows

    @property
    def default_map_batches_kwargs(self) -> dict[str, Any]:
        """Default arguments for Ray Data's ``map_batches``."""
        return {"concurrency": max(2, self.config.num_learners), "zero_copy_batch": True}

    @property
    def default_iter_batches_kwargs(self) -> dict[str, Any]:
        """Default arguments of Ray Data's ``iter_batches``."""
        return {"prefetch_batches": 2}

    @property
    def _maps_rows(self) -> bool:
        return self.config.prelearner_class is not None or is_ray_dataset(self.data)

    def open(self, columns: Sequence[str] | None = None) -> Any:
        """Opens the data set of `offline_data(input_=...)`.

        A subclass may return any object with the interface `StepsInPieces`: the parts of the data, sampling weights,
        and a method that reads one part.

        Args:
            columns: Columns to read, in addition to observations, actions, rewards and flags; None: all.

        Raises:
            ValueError: `input_` names no data.
        """
        config = self.config
        if config.input_ in ("sampler", None, [], {}):
            raise ValueError(
                f"{config.algo_class.__name__} trains on recorded data, but offline_data(input_={config.input_!r}) "
                "names no data. Set input_ to a path, a list of paths, or {path: weight}."
            )
        if config.input_read_method != "read_parquet" and not self._has_sample_batches():
            return read_with_ray(config)
        self._note_what_only_ray_reads()
        names = None if columns is None else tuple(name for name in columns if name not in BASE_COLUMNS)
        return open_dataset(config.input_, options=dataclasses.replace(self._options(), columns=names))

    def _options(self) -> ReadOptions:
        """Returns the options for reading files: the settings of `offline_data`, and the module's spaces if known."""
        config, inputs = self.config, self._inputs()
        # Observations of files may be the module's; before its space is known, nothing is read.
        return ReadOptions.from_settings(
            vars(config),
            observation_space=None if inputs is None else config.observation_space,
            action_space=config.action_space if self._module_spaces is None else self._module_spaces[1],
            inputs=inputs,
            normalize_actions=bool(config.normalize_actions),
        )

    def _inputs(self) -> PipelineInputs | None:
        config = self.config
        if config.prelearner_class is not None:
            return None  # It makes what modules take of whatever is there.
        if self._module_spaces is not None:
            return inputs_of(config, self._module_spaces[0])
        if config.env is None and None not in (config.observation_space, config.action_space):
            return inputs_of(config, spaces_without_env(config)[0])
        return None

    def _has_sample_batches(self) -> bool:
        """Whether `input_read_method` is "read_json", without `input_read_method_kwargs`, and all files of `input_` are
        RLlib's JSON files of sample batches. Such files are read without Ray Data.
        """
        config = self.config
        if config.input_read_method != "read_json" or config.input_read_method_kwargs:
            return False
        return has_json_batches(config.input_, self._options())

    def _note_what_only_ray_reads(self) -> None:
        for name in RAY_DATA_ONLY:
            if value := getattr(self.config, name):
                notice_once(
                    f"offline_data({name}={value!r}) has no effect: it is a setting of Ray Data, and files are read "
                    "without Ray Data. Leave it out."
                )

    def select(self, columns: Sequence[str]) -> None:
        """Restricts later reads of the data set to the given columns; has no effect with a `prelearner_class` or Ray
        Data, which may use other columns.
        """
        if isinstance(self.data, Dataset) and self.config.prelearner_class is None:
            self._selected = tuple(columns)
            self._is_stale = True

    def adapt(self, spaces: tuple[Any, Any]) -> None:
        """Sets the module's spaces; steps that are read later are converted to them.

        Args:
            spaces: The module's observation and action space.

        Raises:
            ValueError: The data has another space, or observations that connectors made which this config does not
                have.
        """
        if spaces == self._module_spaces or not isinstance(self.data, Dataset):
            return
        self._module_spaces = spaces
        self._is_stale = True
        if self.config.prelearner_class is None:
            check_connectors_of(self.data, self.config, self._inputs())

    # --------------------------------------------------------------------------------------------------------- reading

    def _pieces(self) -> Any:
        """Returns the opened data set, wrapped in `RayData` if it is a Ray Dataset.

        If `select` changed the columns or `adapt` changed the spaces since the last call, opens the data set again.
        """
        if self._is_stale:
            self._is_stale = False
            self._materialized.clear()
            self.data = self.open(self._selected)
        if is_ray_dataset(self.data):
            self.data = RayData(self.data, self.config)
        return self.data

    @property
    def num_steps(self) -> int | None:
        """Total number of recorded steps in the data set; None if it is unknown before reading."""
        counts = [piece.num_steps for piece in self._pieces().pieces]
        return None if self._maps_rows or None in counts else sum(counts)

    def num_bytes(self, columns: Sequence[str]) -> int | None:
        """Estimates the memory in bytes that the given columns of the whole data set will need. The estimate is
        computed from a part of the data.

        None: not known without reading all.
        """
        data = self._pieces()
        if isinstance(data, Dataset):
            return data.num_bytes(columns)
        counts = [piece.num_rows for piece in data.pieces]
        if len(counts) > 1 and None in counts:
            return None
        first = data.read(data.pieces[0])
        of_first = first.only(columns).num_bytes
        return of_first if len(counts) == 1 else round(of_first / max(1, first.num_rows) * sum(counts))

    def pieces_of_inputs(self) -> list[list[Any]]:
        """Returns the parts (row groups or files) of each weighted entry of the setting `input_`; without weights, one
        list of all parts.
        """
        data = self._pieces()
        found: list[list[Any]] = [[] for _ in data.weights or [1.0]]
        for piece in data.pieces:
            found[piece.input if data.weights else 0].append(piece)
        return found

    @property
    def weights(self) -> list[float]:
        """Fraction of minibatches to draw from each weighted entry of the setting `input_`; ``[1.0]``
        without weights.
        """
        return [float(weight) for weight in self._pieces().weights or [1.0]]

    def read(self, piece: Any, columns: Sequence[str], spaces: tuple[Any, Any]) -> Steps:
        """Reads the steps of one part of the data set, converted to the module's spaces.

        Args:
            piece: One of the data set.
            columns: Names of the columns; others are left out.
            spaces: The module's observation and action space.

        Raises:
            ValueError: If a column is missing, or has another shape than the space.
        """
        self.adapt(spaces)
        return self._normalized(self._as_taken(self._mapped(self._kept(piece), spaces), columns, spaces, piece))

    def _normalized(self, steps: Steps) -> Steps:
        return steps if self.normalization is None else self.normalization.apply(steps)

    def _as_taken(self, steps: Steps, columns: Sequence[str], spaces: tuple[Any, Any], piece: Any) -> Steps:
        """Selects columns of recorded steps and converts them to the module's spaces."""
        missing = [name for name in columns if name not in steps.columns]
        if missing:
            raise ValueError(
                f"{_name_of(piece)} has the columns {sorted(steps.columns)}, but training needs {missing}. If the data "
                f"has them under other names, set offline_data(input_read_schema={{{missing[0]!r}: 'name in the "
                "data'}); otherwise record these columns."
            )
        if not isinstance(self.data, Dataset) or self.config.prelearner_class is not None:
            own = RecordedSpaces(inputs=inputs_of(self.config, spaces[0]), action=spaces[1])
            steps = checked(steps, own, lambda row: (_name_of(piece), row))
        taken = {name: jax.tree.map(_with_32_bits, steps.columns[name]) for name in columns}
        if Columns.OBS in taken and (problem := key_problem(taken[Columns.OBS], spaces[0])):
            raise ValueError(f"{_name_of(piece)}: {problem}")
        for name, space in zip((Columns.OBS, Columns.ACTIONS), spaces, strict=True):
            if name in taken and (problem := _other_shape(taken[name], space)):
                raise ValueError(
                    f"{_name_of(piece)}: {name!r} has values of {problem}, but the module's space is {space}. Set the "
                    "spaces of the data: environment(observation_space=..., action_space=...)."
                )
        if self.is_squashed and Columns.ACTIONS in taken:
            taken[Columns.ACTIONS] = jax.tree.map(lambda x: self._clipped(x, piece), taken[Columns.ACTIONS])
        return Steps(taken, steps.is_final, steps.episode, steps.t, steps.episode_ids)

    def _clipped(self, actions: np.ndarray, piece: Any) -> np.ndarray:
        """Clips float actions to [-1, 1]. If any action is outside of this range by more than `MARGIN`, logs a notice;
        with ``environment(normalize_actions=False)``, raises ValueError instead.
        """
        if actions.dtype.kind != "f":
            return actions
        number = int(np.count_nonzero(np.abs(actions) > 1.0 + MARGIN))
        if number and not self.config.normalize_actions:
            raise ValueError(
                f"{_name_of(piece)} has {number:,} actions outside of [-1, 1], but {self.config.algo_class.__name__} "
                "needs actions in [-1, 1]. Convert the data, 2 * (actions - low) / (high - low) - 1, and set "
                "environment(normalize_actions=True)."
            )
        if number:
            notice_once(
                f"{_name_of(piece)} and files like it have actions outside of [-1, 1], the range of "
                f"{self.config.algo_class.__name__}: they are clipped, as in the environment."
            )
        return np.clip(actions, -1.0, 1.0)

    def columns_of(self, piece: Any) -> list[str]:
        """Returns the names of the recorded columns in one part of the data set."""
        return list(self._mapped(self._kept(piece), (None, None)).columns)

    def normalize(self, spaces: tuple[Any, Any]) -> None:
        """Computes normalisation statistics from all recorded steps, if the config sets normalisation. Later reads of
        the data are then normalised.

        Args:
            spaces: The module's observation and action space.

        Raises:
            ValueError: As `read`; or observations are uint8 images.
        """
        names = self._normalized_columns
        if names:
            self.normalization = None
            self._count((self.read(piece, names, spaces) for piece in self._pieces().pieces), spaces)

    @property
    def _normalized_columns(self) -> list[str]:
        return [name for name, asked in _NORMALIZED.items() if getattr(self.config, asked)]

    def _count(self, parts: Iterable[Steps], spaces: tuple[Any, Any]) -> None:
        config = self.config
        self.normalization = DataNormalization(
            parts,
            spaces,
            observations=config.normalize_observations,
            gamma=float(config.gamma) if config.normalize_rewards else None,
        )

    @functools.cached_property
    def _materialized(self) -> dict[Any, Steps]:
        return {}

    def _kept(self, piece: Any) -> Steps:
        """Reads one part of the data set without conversion; with `materialize_data`, keeps it in memory."""
        if not self.config.materialize_data:
            return self._pieces().read(piece)
        if piece not in self._materialized:
            self._materialized[piece] = self._pieces().read(piece)
        return self._materialized[piece]

    def _mapped(self, steps: Steps, spaces: tuple[Any, Any]) -> Steps:
        """Converts recorded steps with the config's `prelearner_class`, a user-defined class that converts rows to
        episodes.

        Returns `steps` unchanged if it contains no step, if no class is set, or if `RayData` has already converted the
        rows of a Ray Dataset.

        The class gets batches of complete episode chunks. Each batch except the last has at least
        `input_read_batch_size` rows; if this setting is None, one batch has all rows.
        """
        prelearner_class = self.config.prelearner_class
        if prelearner_class is None or isinstance(self.data, RayData) or not steps.num_steps:
            return steps
        if prelearner_class.__call__ is not OfflinePreLearner.__call__:
            raise ValueError(
                f"offline_data(prelearner_class={prelearner_class.__name__}) overrides __call__(), which "
                f"training does not call: every update runs the learner pipeline itself. Override _map_to_episodes()."
            )
        prelearner = prelearner_class(config=self.config, spaces=spaces)
        schema = SCHEMA | self.config.input_read_schema
        rows = self.config.input_read_batch_size or steps.num_rows
        return Steps.concatenated([prelearner.steps(rows_of(part, schema)) for part in _split(steps, rows)])

    def steps(self, columns: Sequence[str], spaces: tuple[Any, Any]) -> tuple[list[Steps], list[float]]:
        """Reads all recorded steps into memory.

        Returns two lists ``(steps, weights)`` with one item for each weighted entry of the setting `input_`: its steps,
        and the fraction of minibatches to draw from it. Without weights, each list has one item for all data. If the
        config sets normalisation, the steps are normalised with the statistics of all steps.

        Raises:
            ValueError: If an entry of `input_` has no steps; see also `read`.
        """
        self.adapt(spaces)
        names = tuple(dict.fromkeys((*columns, *self._normalized_columns)))
        inputs: list[list[Steps]] = []
        for number in range(len(self.weights)):
            inputs.append([self._as_taken(own, names, spaces, piece) for own, piece in self._parts(number, spaces)])
            if not sum(part.num_steps for part in inputs[-1]):
                raise ValueError(
                    f"Input {number} of offline_data(input_={self.config.input_!r}) has no steps. Remove this "
                    "input, or record steps for it."
                )
        if self._normalized_columns and self.normalization is None:
            self._count((part for parts in inputs for part in parts), spaces)
        whole = []
        while inputs:
            parts = [self._normalized(part).only(columns) for part in inputs.pop(0) if part.num_rows]
            whole.append(Steps.concatenated(parts))
        return whole, self.weights

    def recorded(self, columns: Sequence[str], optional: Sequence[str], spaces: tuple[Any, Any]) -> Steps:
        """Reads all steps of all entries of the setting `input_` into memory. Converts them to the module's spaces,
        without normalisation.

        Args:
            columns: See `read`.
            optional: More columns, which are left out where a part of the data does not have them.
            spaces: The module's observation and action space.

        Raises:
            ValueError: See `read`.
        """
        self.adapt(spaces)
        parts = []
        for number in range(len(self.weights)):
            for part, piece in self._parts(number, spaces):
                names = (*columns, *(name for name in optional if name in part.columns))
                parts.append(self._as_taken(part, names, spaces, piece))
        return Steps.concatenated([part for part in parts if part.num_rows])

    def _parts(self, number: int, spaces: tuple[Any, Any]) -> Iterator[tuple[Steps, Any]]:
        """Yields all steps of one weighted entry of the setting `input_`, in pairs ``(steps, source)``.

        Without weights, yields the steps of all data. Error messages name `source`, the origin of the steps.

        For a `Dataset` without a `prelearner_class`, the steps come from `Dataset.read_parts`, and `source` is the path
        of the entry (without weights, all paths). Otherwise, `source` is the part of the data set that contains the
        steps: a row group, a file, or a whole Ray Dataset.
        """
        data = self._pieces()
        if isinstance(data, Dataset) and self.config.prelearner_class is None:
            entry = number if data.weights else None
            for part in data.read_parts(entry):
                yield part, data.name_of(entry)
            return
        for piece in self.pieces_of_inputs()[number]:
            yield self._mapped(self._kept(piece), spaces), piece

    # -------------------------------------------------------------------------------------------------------- sampling

    def sample(
        self,
        num_samples: int,
        return_iterator: bool = False,
        num_shards: int = 1,
        module_state: dict[str, Any] | None = None,
    ) -> Any:
        """Returns the next rows of the recorded data, in the order of the data; after the last row, starts again with
        the first one.

        Training calls this method only if a subclass overrides it; every update then uses the returned rows.

        Args:
            num_samples: Rows of a batch.
            return_iterator: Whether to return iterators of batches.
            num_shards: Number of shards ``n``; each gets every n-th batch.
            module_state: Not used.

        Returns:
            ``{module_id: {column: [num_samples, ...]}}``, or a list of iterators over such dicts.
        """
        if return_iterator:
            shards = max(1, num_shards)
            return [itertools.islice(self._batches(num_samples), n, None, shards) for n in range(shards)]
        if self.batch_iterators is None:
            self.batch_iterators: Any = self._batches(num_samples)
        return next(self.batch_iterators)

    def _batches(self, num_samples: int) -> Iterator[dict[str, dict[str, Any]]]:
        left: list[dict[str, Any]] = []
        while True:
            for piece in self._pieces().pieces:
                steps = self._mapped(self._kept(piece), (None, None))
                items = ItemForm(tuple(name for name in steps.columns if name != Columns.INFOS))
                left.append(items.take(steps.columns, {}, items.of(steps), np))
                rows = left[0] if len(left) == 1 else jax.tree.map(lambda *xs: np.concatenate(xs), *left)
                num_rows = len(jax.tree.leaves(rows)[0])
                for start in range(0, num_rows - num_samples + 1, num_samples):
                    part = slice(start, start + num_samples)
                    yield {DEFAULT_MODULE_ID: jax.tree.map(lambda x: x[part], rows)}  # noqa: B023
                left = [jax.tree.map(lambda x: x[num_rows - num_rows % num_samples :], rows)]  # noqa: B023


def is_squashed(module: Any) -> bool:
    """Whether a module's action distribution is squashed, so that actions are in [-1, 1]; False if `module` is None."""
    if module is None:
        return False
    distribution = module.get_exploration_action_dist_cls()
    return isinstance(distribution, type) and issubclass(distribution, SquashedGaussian | SquashedDeterministic)


_NORMALIZED = {Columns.OBS: "normalize_observations", Columns.REWARDS: "normalize_rewards"}
"""Columns that are normalised, by the setting that asks for it."""
RAY_DATA_ONLY = ("map_batches_kwargs", "iter_batches_kwargs", "input_read_method_kwargs")
"""Settings that change how Ray Data reads, and have no effect where files are read without it."""


def _split(steps: Steps, num_rows: int) -> Iterator[Steps]:
    """Splits recorded steps into groups of complete episode chunks (consecutive steps of one episode). Each group
    except the last has at least `num_rows` rows.
    """
    starts, first = steps.piece_starts(), 0
    while first < steps.num_rows:
        last = int(starts[min(np.searchsorted(starts, first + num_rows), len(starts) - 1)])
        yield steps.rows(first, last)
        first = last


def _name_of(piece: Any) -> str:
    return str(getattr(piece, "path", piece))


def _other_shape(column: Any, space: Any) -> str:
    """Returns the shapes of a recorded column for an error message, such as "shape (4,)", if they differ from the
    shapes of the space; otherwise returns "".
    """
    try:
        expected = [tuple(leaf.shape) for leaf in jax.tree.leaves(map_parts(lambda part: part, space))]
    except (AttributeError, TypeError):
        return ""
    found = [x.shape[1:] for x in jax.tree.leaves(column)]
    return "" if found == expected else f"shape {found[0] if len(found) == 1 else found}"


def _with_32_bits(x: np.ndarray) -> np.ndarray:
    """Converts an array of 64-bit numbers to JAX's 32-bit dtypes."""
    narrow = {"float64": np.float32, "int64": np.int32, "uint64": np.uint32}.get(x.dtype.name)
    return x if narrow is None else x.astype(narrow)
