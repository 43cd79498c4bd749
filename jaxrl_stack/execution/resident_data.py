"""Recorded steps on the devices of a learner: shuffled and drawn inside of the compiled program."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.ops import permutation
from jaxrl_stack.utils.devices import all_shards, device_numbers, place_sharded, place_shards
from jaxrl_stack.utils.memory import MemoryEstimate
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.datasets.item_form import ItemForm
    from jaxrl_stack.execution.training_step import Draws, TrainState
    from jaxrl_stack.utils.devices import Device


@struct.dataclass
class Resident:
    """Recorded steps stored on one device, with the read position in each of K inputs (separate data sets).

    Attributes:
        columns: ``{column: pytree [R, ...]}``, all inputs concatenated.
        is_final: bool ``[R]``, True for final rows.
        items: int32 ``[N]`` or ``[N, 3]``, items of the steps from `ItemForm.of`.
        sizes: uint32 ``[K]``, items of each input.
        starts: uint32 ``[K]``, the first item of each input.
        keys: uint32 ``[NUM_ROUNDS]``, round keys, from which the round keys of every pass are derived.
        position: uint32 ``[K]``, drawn items in the present pass over each input.
        passes: uint32 ``[K]``, whole passes so far.
        num_draws: uint32, minibatches so far.
        until_pass: int32, items until the prepared columns are outdated by a new pass.
        prepared: ``{column: [R, ...]}``, columns that the algorithm prepared at the start of the pass.
    """

    columns: dict[str, Any]
    is_final: Any
    items: Any
    sizes: Any
    starts: Any
    keys: Any
    position: Any
    passes: Any
    num_draws: Any
    until_pass: Any
    prepared: dict[str, Any]

    fixed_fields: ClassVar[tuple[str, ...]] = ("columns", "is_final", "items", "sizes", "starts")
    shared_by_members: ClassVar[tuple[str, ...]] = (*fixed_fields, "position", "passes", "num_draws", "until_pass")

    @property
    def where(self) -> dict[str, Any]:
        """Values that `ResidentData.draw` changes, ``{field name: value}``: read positions, counters, and the columns
        that the algorithm computed at the start of the pass, such as value targets.
        """
        return {name: getattr(self, name) for name in ("position", "passes", "num_draws", "until_pass", "prepared")}


class ResidentData:
    """Source of train batches: recorded steps that are stored on the devices. The source's state is a `Resident`, which
    contains the steps and the read positions.

    Every device has all data, or a separate part of the pieces (`is_divided`), from which it draws its part of every
    minibatch.

    Args:
        inputs: Steps of each input.
        weights: Average share of each input in minibatches.
        items: Form of the items of minibatches.
        batch_size: Items of a minibatch, over all devices.
        devices: Devices of the learner in this process.
        num_devices: Number of devices in all processes.
        is_divided: Whether every device has only a part of the data.
        seed: Seed of the order.
        read: Function that reads the inputs again, for another start.
        prepare: ``(kept, state, place) -> {column: [R, ...]}``, called at the start of each pass, or None.
        shapes_of_prepared: ``shapes of the data -> shapes of the prepared columns``.

    Attributes:
        estimate: Memory of the data on all devices.

    Raises:
        ValueError: If there are fewer items than devices.
    """

    draws: Mapping[str, Draws] = {}

    def __init__(
        self,
        inputs: Sequence[Steps],
        weights: Sequence[float],
        items: ItemForm,
        batch_size: int,
        devices: Sequence[Device],
        num_devices: int,
        *,
        is_divided: bool,
        seed: int,
        read: Callable[[], Sequence[Steps]],
        prepare: Callable[[Resident, TrainState, Any], dict[str, Any]] | None = None,
        shapes_of_prepared: Callable[[dict[str, Any]], dict[str, Any]] = lambda shapes: {},
    ):
        self._inputs: Sequence[Steps] | None = inputs
        self._read, self._prepare = read, prepare
        self.items = items
        self.is_divided = is_divided
        self._devices, self._num_devices = list(devices), num_devices
        self._own = batch_size // num_devices
        self._batch = self._own if is_divided else batch_size
        self._bounds = np.cumsum(np.asarray(weights, np.float64) / np.sum(weights))[:-1]
        self.seed = seed
        self._num_bytes = sum(steps.num_bytes for steps in inputs)
        sizes = [len(items.of(steps)) for steps in inputs]
        self.num_items = sum(sizes)
        self.num_steps = sum(steps.num_steps for steps in inputs)
        self._static_sizes = None if is_divided else sizes
        if is_divided and min(steps.num_pieces for steps in inputs) < num_devices:
            raise ValueError(
                f"The data has {min(steps.num_pieces for steps in inputs)} episodes or parts of episodes, too few "
                f"for {num_devices} devices, and a full copy does not fit on each device. Use fewer devices, or set "
                f"offline_data(keep_resident=False)."
            )
        parts = self._parts(inputs, range(num_devices))
        self._num_rows = max(sum(own.num_rows for own in part) for part in parts)
        self._room = max(sum(len(items.of(own)) for own in part) for part in parts)
        columns = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((self._num_rows, *x.shape[1:]), x.dtype), own)
            for name, own in inputs[0].columns.items()
        }
        shapes = {"columns": columns, "is_final": jax.ShapeDtypeStruct((self._num_rows,), np.bool_)}
        self._prepared = shapes_of_prepared(shapes)
        self.estimate = self._memory_estimate(shapes)

    def _memory_estimate(self, shapes: Mapping[str, Any]) -> MemoryEstimate:
        columns = {**shapes["columns"], "is_final": shapes["is_final"], **self._prepared}
        whole = MemoryEstimate.of_shapes("data set", {"rows": self._num_rows}, columns)
        return whole.part("data set", self._num_devices, 1)

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Does nothing: the order of the data depends on the seed only, not on hyperparameters that can change during
        training.
        """

    def reset(self, config: AlgorithmConfig) -> None:
        self.seed = config.root_seed

    def _parts(self, inputs: Sequence[Steps], numbers: range) -> list[list[Steps]]:
        """Returns the recorded steps to store on the devices `numbers` (indices), one list per device.

        Each list has one `Steps` object per data set. If the data is divided among the devices of all processes, this
        object has the device's part of the data set; otherwise, it has all steps of the data set.
        """
        if not self.is_divided:
            return [list(inputs)] * len(numbers)
        return [[_part(steps, i, self._num_devices) for steps in inputs] for i in numbers]

    def init(self) -> Resident:
        """Copies all data to the devices; the read position is the start of the first pass."""
        # The host's copy is needed once.
        inputs, self._inputs = self._inputs, None
        if inputs is None:
            inputs = self._read()
        numbers = device_numbers(self._devices)
        made: dict[int, Resident] = {}
        shards = []
        for number, part in zip(numbers, self._parts(inputs, numbers), strict=True):
            which = number if self.is_divided else 0
            if which not in made:
                made = {which: self._resident(part, which)}
            shards.append(jax.tree.map(lambda x: np.asarray(x)[None], made[which]))
        return place_shards(shards, self._devices)

    def _resident(self, inputs: Sequence[Steps], number: int) -> Resident:
        steps = inputs[0] if len(inputs) == 1 else Steps.concatenated(inputs)
        first_rows = np.cumsum([0, *(own.num_rows for own in inputs)])
        of_inputs = [self.items.of(own) for own in inputs]
        shift = (lambda x, by: x + by) if self.items.length is None else (lambda x, by: x + np.array([by, 0, 0]))
        items = np.concatenate([shift(own, by) for own, by in zip(of_inputs, first_rows, strict=False)])
        sizes = np.array([len(own) for own in of_inputs], np.uint32)
        at_start = np.zeros(len(inputs), np.uint32)
        return Resident(
            columns={
                name: jax.tree.map(lambda x: filled(x, self._num_rows), own) for name, own in steps.columns.items()
            },
            is_final=filled(steps.is_final, self._num_rows, True),
            items=filled(items.astype(np.int32), self._room),
            sizes=sizes,
            starts=(np.cumsum(sizes) - sizes).astype(np.uint32),
            keys=order_keys(self.seed, number),
            position=at_start,
            passes=at_start,
            num_draws=np.uint32(0),
            until_pass=np.int32(0),
            prepared={name: np.zeros(x.shape, x.dtype) for name, x in self._prepared.items()},
        )

    # -------------------------------------------------------------------------------------------- the compiled part

    def _with_prepared(self, kept: Resident, prepare: Callable[[], dict[str, Any]]) -> Resident:
        """Computes additional columns, such as value targets, if a pass over the data begins.

        The function `prepare` computes the columns. Returns the state `kept` with these columns; if no pass begins,
        returns `kept` unchanged.
        """
        is_start = kept.until_pass <= 0
        prepared = jax.lax.cond(is_start, lambda _: prepare(), lambda before: before, kept.prepared)
        until = jnp.where(is_start, jnp.int32(self.num_items), kept.until_pass)
        return dataclasses.replace(kept, prepared=prepared, until_pass=until)

    def draw(self, kept: Resident, state: TrainState, place: Any) -> tuple[Resident, TrainState, Drawn]:
        """Draws this device's part of the next minibatch; see `Source.draw`. A pass over a data set visits every item
        (step or sequence) once.
        """
        if self._prepare is not None:
            kept = self._with_prepared(kept, functools.partial(self._prepare, kept, state, place))
        kept, columns = self._minibatch(kept, place.axis_name)
        return kept, state, Drawn(columns)

    def _minibatch(self, kept: Resident, axis_name: str | None) -> tuple[Resident, dict[str, Any]]:
        number = jnp.arange(self._own, dtype=jnp.uint32)
        if not self.is_divided and axis_name is not None and self._num_devices > 1:
            number += jax.lax.axis_index(axis_name).astype(jnp.uint32) * jnp.uint32(self._own)
        if len(kept.sizes) == 1:
            kept, item = self._next(kept, number)
        else:
            kept, item = self._next_by_weight(kept, number)
        until = kept.until_pass - self._own * self._num_devices
        kept = dataclasses.replace(kept, num_draws=kept.num_draws + 1, until_pass=until)
        items = kept.items.at[item].get(mode="promise_in_bounds")
        return kept, self.items.take(kept.columns, kept.prepared, items)

    def _next(self, kept: Resident, number: jax.Array) -> tuple[Resident, jax.Array]:
        """Selects this device's items (steps or sequences) of the next minibatch from a single data set.

        `number`, uint32 ``[n]``, contains the items' offsets from the read position. Returns the data source's state
        `kept` with the read position after the minibatch, and the items' indices, uint32 ``[n]``.
        """
        # Divisions by a number that the compiler knows take a fraction of the time.
        size = kept.sizes[0] if self._static_sizes is None else np.uint32(self._static_sizes[0])
        position = kept.position[0] + number
        keys = permutation.derive_keys(kept.keys, (kept.passes[0] + position // size)[:, None])
        if self._static_sizes is None:
            item = permutation.permute_within(position % size, permutation.domain_of(kept.sizes[0]), keys)
        else:
            item = permutation.permute(position % size, self._static_sizes[0], keys)
        after = kept.position[0] + jnp.uint32(self._batch)
        passes = kept.passes + after // size
        return dataclasses.replace(kept, position=(after % size)[None], passes=passes), item

    def _next_by_weight(self, kept: Resident, number: jax.Array) -> tuple[Resident, jax.Array]:
        """Selects this device's items (steps or sequences) of the next minibatch from several data sets.

        For each item, draws a data set with a probability proportional to the data set's weight, and takes the next
        item of this data set. Returns the data source's state `kept` with the read positions after the minibatch, and
        the items' indices, uint32 ``[n]``.

        Args:
            kept: State before the draw.
            number: uint32 ``[n]``, positions of this device's items in the minibatch.
        """
        every = jnp.arange(self._batch, dtype=jnp.uint32)
        bits = permutation.derive_keys(kept.keys[:1], kept.num_draws, every[:, None])[:, 0]
        bounds = jnp.asarray(np.floor(self._bounds * 2.0**32).clip(0, 2**32 - 1).astype(np.uint32))
        chosen = (bits[:, None] >= bounds).sum(-1)
        is_of = chosen[:, None] == jnp.arange(len(kept.sizes))
        before = jnp.cumsum(is_of, axis=0, dtype=jnp.uint32) - is_of
        own = chosen[number] if not self.is_divided else chosen
        rank = jnp.take_along_axis(before, chosen[:, None], axis=1)[:, 0]
        rank = rank[number] if not self.is_divided else rank
        size = kept.sizes[own]
        position = kept.position[own] + rank
        passes = kept.passes[own] + position // size
        keys = permutation.derive_keys(kept.keys, passes[:, None], own.astype(jnp.uint32)[:, None])
        domain = jax.vmap(permutation.domain_of)(kept.sizes)[own].T
        item = kept.starts[own] + permutation.permute_within(position % size, domain, keys)
        after = kept.position + is_of.sum(0, dtype=jnp.uint32)
        kept = dataclasses.replace(kept, position=after % kept.sizes, passes=kept.passes + after // kept.sizes)
        return kept, item

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def get_state(self, kept: Resident) -> dict[str, Any]:
        """Returns the state of D devices: read positions, counters and computed columns.

        The leaves of this state are ``[D, ...]``. The algorithm computed the columns, such as value targets, at the
        start of the pass. Also returns the number of items (steps or sequences) in the data, and whether the data is
        divided among the devices.
        """
        return {"is_divided": self.is_divided, "num_items": self.num_items, **jax.device_get(all_shards(kept.where))}

    def set_state(self, kept: Resident, state: Mapping[str, Any]) -> Resident:
        """Restores the read position in the data from a result of `get_state`.

        Raises:
            ValueError: If it is a position in other data, or on another number of devices with divided data.
        """
        if int(state["num_items"]) != self.num_items:
            raise ValueError(
                f"The saved state is from a run on other data: {int(state['num_items'])} steps (or sequences), but "
                f"offline_data(input_=...) has {self.num_items}. Use the data of that run, or restore only the "
                f"learners: restore_from_path(path, component='learner_group')."
            )
        saved = {name: state[name] for name in kept.where}
        num_saved = len(saved["until_pass"])
        was_divided = bool(state["is_divided"])
        if was_divided != self.is_divided or (self.is_divided and num_saved != self._num_devices):
            raise ValueError(
                f"The saved state is from a run with its data {_layout(num_saved, is_divided=was_divided)}, but here "
                f"the data is {_layout(self._num_devices, is_divided=self.is_divided)}. "
                f"{self._remedy(num_saved, is_divided=was_divided)}, or restore only the learners: "
                "restore_from_path(path, component='learner_group')."
            )
        if num_saved != self._num_devices:
            saved = jax.tree.map(lambda x: np.broadcast_to(x[:1], (self._num_devices, *x.shape[1:])), saved)
        return dataclasses.replace(kept, **place_sharded(saved, self._devices))

    def _remedy(self, num_devices: int, *, is_divided: bool) -> str:
        """Returns the fix for the error message about a saved state that was made with another distribution of the
        data.

        If `is_divided`, the fix divides the data among `num_devices` devices; otherwise, the fix copies all data to
        each device.

        The data is divided if one copy exceeds `max_resident_bytes`. On CPU devices, which share memory, it is divided
        if the copies for all devices together exceed this limit.
        """
        if is_divided and self.is_divided:
            return f"Use {num_devices} devices"
        if is_divided:
            how = f"offline_data(keep_resident=True, max_resident_bytes={max(0, self._num_bytes - 1)}) to divide it"
            return f"Set {how}" if num_devices == self._num_devices else f"Use {num_devices} devices and {how}"
        num_copies = self._num_devices if self._devices[0].platform == "cpu" else 1
        return f"Set offline_data(max_resident_bytes={self._num_bytes * num_copies}) to copy it"


def _layout(num_devices: int, *, is_divided: bool) -> str:
    """Describes how data is distributed over devices, for error messages."""
    devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
    return f"{'divided among' if is_divided else 'copied as a whole to'} {devices}"


def order_keys(seed: int, number: int = 0) -> np.ndarray:
    """Random keys that shuffle the items (steps or sequences) of a device, uint32 ``[NUM_ROUNDS]``.

    Each round of the permutation algorithm has one key. The keys of every pass are derived from these keys.
    """
    generator = np.random.default_rng(derived_seed("order of the data", seed, number))
    return generator.integers(2**32, size=permutation.NUM_ROUNDS, dtype=np.uint32)


def filled(x: np.ndarray, length: int, value: Any = 0) -> np.ndarray:
    """Pads an array with rows of `value` to `length` rows."""
    if len(x) == length:
        return x
    return np.concatenate([x, np.full((length - len(x), *x.shape[1:]), value, x.dtype)])


def _part(steps: Steps, number: int, of: int) -> Steps:
    """Returns part `number`, counted from 0, of a data set that is divided into `of` parts.

    Each part consists of one or more whole pieces (episodes or their fragments). All parts have nearly equal numbers of
    rows.
    """
    starts = steps.piece_starts()
    wanted = np.searchsorted(starts, np.arange(of + 1) * steps.num_rows / of)
    bounds = [0]
    for i in range(1, of + 1):
        bounds.append(int(np.clip(wanted[i], bounds[-1] + 1, len(starts) - 1 - (of - i))))
    return steps.rows(int(starts[bounds[number]]), int(starts[bounds[number + 1]]))
