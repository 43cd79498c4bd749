"""The update of a Learner as pure functions: connector pipeline, loop over minibatches, gradient steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout, Layouts
from jaxrl_stack.core.learner.gradient_step import Carry, GradientStep, microbatches_per_minibatch
from jaxrl_stack.core.learner.items import Form, Items, PackedItems, WholeItems, forms_of_batch
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.losses import Losses, TracedLosses, loss_is_linear
from jaxrl_stack.core.learner.minibatch_records import NUM_MINIBATCHES, MinibatchRecords, Recorder
from jaxrl_stack.core.learner.minibatches import Batch, epoch_keys, in_parts, minibatch_index, minibatch_index_within
from jaxrl_stack.core.learner.optimizers import as_vector
from jaxrl_stack.core.learner.post_update import update_result
from jaxrl_stack.core.learner.traced_metrics import (
    LR_KEY,
    TOTAL_EVAL_LOSS_KEY,
    MetricKey,
    Metrics,
    TracedMetrics,
    put_counter,
    put_setting,
)
from jaxrl_stack.core.learner.tracing import Trace
from jaxrl_stack.core.learner.trained_modules import check_any_is_trained, trains_nothing
from jaxrl_stack.core.learner.unused_modules import restore_unused_modules
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.learner.valid_rows import CountedRows, counted_rows
from jaxrl_stack.core.learner.valid_rows import num_minibatches as num_valid_minibatches
from jaxrl_stack.ops import permutation, reductions
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.live_inputs import traced_once
from jaxrl_stack.utils.metrics import MODULE_TRAIN_BATCH_SIZE_MEAN, NUM_MODULE_STEPS_TRAINED
from jaxrl_stack.utils.profiling import LEARNER_CONNECTOR
from jaxrl_stack.utils.traced_config import TracedConfigView
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner


@dataclasses.dataclass(frozen=True)
class _Started:
    """Learner state, batch and current settings with which an update starts its gradient steps, after the update has
    called the hook `pre_update`.

    Attributes:
        state: State after `pre_update`.
        rest: Non-parameter state of the modules, with random streams of this update.
        batch: Columns of the modules that are updated.
        values: Current values of the traced settings.
        trace_of: See `GradientStep`.
    """

    state: LearnerState
    rest: dict[str, jax.Array]
    batch: Batch
    values: dict[str, Any]
    trace_of: Callable[..., Trace]


class RowsUpdate(NamedTuple):
    """Result of `Update.step`: state, metrics, and values that the loss logged per row.

    Attributes:
        state: State after the update.
        metrics: ``{(module_id, name): float32}``.
        rows: ``{(module_id, name): float32 [N, ...]}``, values that the loss logged with ``reduce="item_series"``.
    """

    state: LearnerState
    metrics: dict[MetricKey, jax.Array]
    rows: dict[MetricKey, jax.Array]


class RecordedUpdate(NamedTuple):
    """Result of `Update.recorded`: state, metrics and records of the minibatches.

    Attributes:
        state: State after the update.
        metrics: ``{(module_id, name): float32}``.
        record: `Record` with leaves ``[num_minibatches, ...]``. The entry ``NUM_MINIBATCHES`` has the number that was
            made, uint32 ``[1]``; records of further minibatches are zeros. () without a recorder.
    """

    state: LearnerState
    metrics: dict[MetricKey, jax.Array]
    record: Any


class Update:
    """Pure functions that make an update; Learners and on-device training loops trace them into their compiled
    programs.

    All methods are pure functions of a `LearnerState`. They call the learner's hooks, which are looked up during
    tracing. A call of the object makes a whole update.

    Args:
        learner: The learner, built.
    """

    def __init__(self, learner: Learner):
        self._learner = learner

    def __call__(
        self,
        state: LearnerState,
        data: Mapping[ModuleID, Block] | Mapping[ModuleID, Items],
        settings: dict[str, Any],
        timesteps: jax.Array,
        row_counts: RowCounts | None = None,
        *,
        plan: UpdatePlan,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array]]:
        """Makes a whole update: clips rewards, runs the learner connector pipeline, then makes gradient steps over
        minibatches.

        Args:
            state: State before the update.
            data: This device's part of the data, by module: sampled blocks, or items of a batch that is ready for the
                loss, which do not pass through connectors.
            settings: `Learner.settings`, as arrays.
            timesteps: uint32[2], lifetime env steps including this data.
            row_counts: Numbers of real items, if items are padded; None: all items are real.
            plan: Epochs, minibatches and shards.
            axis_name: Name of the device axis, or None.

        Returns:
            ``(new state, {(module_id, name): float32})``.

        Raises:
            ValueError: If columns do not match their layouts.
        """
        arguments = (state, data, settings, timesteps, row_counts)
        return self.recorded(*arguments, plan=plan, axis_name=axis_name, recorder=None)[:2]

    def recorded(
        self,
        state: LearnerState,
        data: Mapping[ModuleID, Block] | Mapping[ModuleID, Items],
        settings: dict[str, Any],
        timesteps: jax.Array,
        row_counts: RowCounts | None = None,
        *,
        plan: UpdatePlan,
        axis_name: str | None,
        recorder: Recorder | None,
    ) -> RecordedUpdate:
        """Makes a whole update (reward clipping, connector pipeline, gradient steps over minibatches), and records each
        minibatch for debugging; see `MinibatchRecords`.

        Args:
            state, data, settings, timesteps, row_counts, plan, axis_name: See `__call__`.
            recorder: Sizes of the records; None records nothing.
        """
        learner = self._learner
        blocks = {mid: own for mid, own in data.items() if isinstance(own, Block)}
        if blocks:
            blocks = self._as_connectors_take_them(self.with_clipped_rewards(blocks))
            state, data = self.connected(state, blocks, settings, timesteps, axis_name=axis_name)
            data = with_common_grouping(data, plan)
        started = self._started(state, {mid: own.batch for mid, own in data.items()}, settings, axis_name)
        items = {mid: self._items(mid, data[mid], plan) for mid in started.batch}
        minibatches = _Minibatches(learner, items, plan, axis_name, row_counts, recorder)
        losses = Losses(learner, started.trace_of, minibatches.forms)
        arguments = losses.arguments(started.state.params, started.rest, minibatches.shapes())
        traced = TracedLosses.of(losses, arguments, *jax.make_jaxpr(losses, return_shape=True)(*arguments))
        packed = {mid: PackedItems(own, traced.columns_read[mid]) for mid, own in items.items()}
        records = None
        if recorder is not None:
            # Connectors of several agents may return batches that are ready for the loss.
            num_columns = {mid: own.shape[1] for mid, own in data.items() if isinstance(own, Block)}
            records = MinibatchRecords(learner, recorder, started.trace_of, minibatches.forms, items, num_columns)
        step = GradientStep(
            learner, started.trace_of, traced.function, None if records is None else records.note_gradients
        )
        carry, metrics, record = _over_minibatches(step, started, packed, minibatches, records)
        counted = minibatches.counted()
        has_rows = {mid: own.has_rows for mid, own in counted.items()}
        return RecordedUpdate(
            *self._ended(started, carry, metrics, timesteps, axis_name, has_rows, counted), record=record
        )

    @property
    def trains_nothing(self) -> bool:
        """Whether ``policies_to_train`` excludes all modules, so that updates change nothing."""
        learner = self._learner
        trained = [mid for mid in learner.template if learner.should_module_be_updated(mid)]
        return trains_nothing(learner.policies_to_train, trained)

    def _items(self, module_id: ModuleID, data: Block | Items, plan: UpdatePlan) -> Items:
        """Converts a module's sampled steps (a `Block`) to `Items`, from which minibatches are drawn. If `data` is an
        `Items` already, returns it unchanged.
        """
        if isinstance(data, Items):
            return data
        data.check(module_id)  # connectors may have made other columns
        learner = self._learner
        return Items.of_block(
            learner.template[module_id], data, plan.shards_per_device, needs_time=learner.loss_needs_time
        )

    def _as_connectors_take_them(self, blocks: Mapping[ModuleID, Block]) -> dict[ModuleID, Block]:
        """Returns the sampled steps in a form that connectors, minibatches and the hook `Learner.pre_update` can read.

        Frame-stacked observations may be stored as single frames; if one of these readers needs the stacks, restores
        the stacks from the frames.

        Minibatches of single rows accept single frames, and connectors can accept them (`takes_frames`). The hook
        `Learner.pre_update`, losses that need steps in order, and recurrent modules do not accept single frames.

        Raises:
            ValueError: If columns do not match their layouts.
        """
        learner = self._learner
        blocks = {mid: own.of_module(learner.template[mid]) for mid, own in blocks.items()}
        for mid, own in blocks.items():
            own.check(mid)
        keeps_frames = learner.pure_connector.takes_frames and not (learner.has_pre_update or learner.loss_needs_time)
        return {
            mid: own if keeps_frames and own.chunk_length is None else own.whole_observations()
            for mid, own in blocks.items()
        }

    def with_clipped_rewards(self, blocks: Mapping[ModuleID, Block]) -> Mapping[ModuleID, Block]:
        """Returns the sampled steps with rewards clipped by the setting ``clip_rewards``.

        Rows from replay contain sums of rewards; these rewards were clipped when the rows were drawn.
        """
        bound = self._learner.config.clip_rewards
        if bound is None or bound is False:
            return blocks
        return {
            mid: own.with_columns(
                {**own.columns, Columns.REWARDS: clipped_rewards(own.columns[Columns.REWARDS], bound)}
            )
            for mid, own in blocks.items()
        }

    def connected(
        self,
        state: LearnerState,
        blocks: Mapping[ModuleID, Block],
        settings: dict[str, Any],
        timesteps: Any,
        *,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[ModuleID, Block]]:
        """Passes the sampled steps (blocks) of all modules through the learner connector pipeline.

        Returns the new learner state and the new blocks. Connectors may add blocks for modules without sampled steps.

        Args:
            state, blocks, settings, timesteps, axis_name: See `__call__`.
        """
        template, layouts = self._learner.template, Layouts({mid: own.known_layout for mid, own in blocks.items()})
        state, batch = self.connect(
            state,
            {mid: own.columns for mid, own in blocks.items()},
            settings,
            timesteps,
            axis_name=axis_name,
            layouts=layouts,
        )
        layouts = layouts.masked_as(batch)
        return state, {mid: Block(columns, layouts.get(mid)).of_module(template[mid]) for mid, columns in batch.items()}

    @jax.named_scope(LEARNER_CONNECTOR)
    def connect(
        self,
        state: LearnerState,
        batch: Batch,
        settings: dict[str, Any],
        timesteps: Any,
        *,
        axis_name: str | None,
        layouts: Layouts | None = None,
    ) -> tuple[LearnerState, Batch]:
        """Passes sampled columns through the learner connector pipeline, for example to compute advantages.

        Args:
            state, settings, timesteps, axis_name: See `__call__`.
            batch: ``{module_id: {column: [T, B, ...]}}``.
            layouts: Layouts of the columns; None infers them from the columns.

        Raises:
            ValueError: If connectors return entries that are not modules.
        """
        learner, pipeline, rest = self._learner, self._learner.pure_connector, state.rest
        if learner.pure.stream_refs:
            # Stochastic layers draw other numbers than in the last update, and than in the gradient steps.
            rest = learner.pure.reseed(rest, _device_key(state, 0, axis_name))
        context = pipeline.make_context(
            params=state.params,
            rest=rest,
            key=_device_key(state, 1, axis_name),
            settings=learner.current_values(settings, state.timesteps)["modules"],
            step=timesteps,
            pure=learner.pure,
            explore=False,
            axis_name=axis_name,
            layouts=layouts,
        )
        connector, batch = pipeline.apply(state.connector, batch, context)
        unknown = [mid for mid in batch if mid not in learner.template]
        if unknown:
            raise ValueError(
                f"The learner connectors returned {unknown}, which are not modules of this learner "
                f"({list(learner.template)}). Return only {{module_id: columns}}, and put other data into a column of "
                f"a module."
            )
        return dataclasses.replace(state, connector=pipeline.merge(connector, axis_name)), batch

    def step(
        self, state: LearnerState, batch: Batch, settings: dict[str, Any], timesteps: Any, *, axis_name: str | None
    ) -> RowsUpdate:
        """Makes an update with a single gradient step on all rows of a batch. Off-policy algorithms use this update for
        batches from a replay buffer.

        Args:
            state: State before the update.
            batch: ``{module_id: {column: [N, ...]}}``, this device's part. The learner connector pipeline receives it
                as one time step of N environments, ``[1, N, ...]``.
            settings: `Learner.settings`, as arrays.
            timesteps: uint32[2], lifetime env steps.
            axis_name: Name of the device axis, or None.
        """
        return self.recorded_step(state, batch, settings, timesteps, axis_name=axis_name, recorder=None)[0]

    def recorded_step(
        self,
        state: LearnerState,
        batch: Batch,
        settings: dict[str, Any],
        timesteps: Any,
        *,
        axis_name: str | None,
        recorder: Recorder | None,
    ) -> tuple[RowsUpdate, Any]:
        """Makes an update with a single gradient step on all rows of a batch, and records the step for debugging as one
        minibatch.

        Args:
            state, batch, settings, timesteps, axis_name: See `step`.
            recorder: Sizes of the record; None records nothing.

        Returns:
            ``(result of the update, record with leaves [1, ...])``; the record is () without a recorder.
        """
        learner = self._learner
        state, batch, forms = self._connected_rows(state, batch, settings, timesteps, axis_name)
        started = self._started(state, batch, settings, axis_name)
        whole = {mid: WholeItems(forms[mid], columns) for mid, columns in started.batch.items()}
        records = None
        if recorder is not None:
            records = MinibatchRecords(learner, recorder, started.trace_of, forms, whole, {})
        note_gradients = None if records is None else records.note_gradients
        step = GradientStep(learner, started.trace_of, Losses(learner, started.trace_of, forms), note_gradients)
        before, index = Carry(started.state.params, started.rest, started.state.optimizers), dict.fromkeys(whole)
        carry, logged = step(before, whole, index)
        record = () if records is None else records(before, carry, logged, whole, index)
        has_rows = _has_valid_rows(whole, axis_name)
        ended = self._ended(started, carry, logged.collect(), timesteps, axis_name, has_rows)
        return RowsUpdate(*ended, logged.rows), jax.tree.map(lambda x: x[None], record)

    def evaluate(
        self,
        state: LearnerState,
        batch: Batch,
        settings: dict[str, Any],
        timesteps: Any,
        seed: jax.Array,
        *,
        axis_name: str | None,
    ) -> tuple[Flat]:
        """Computes the losses and logged metrics of a batch of rows, without gradients and without an update. Before
        that, passes the batch through the learner connector pipeline.

        Args:
            state, batch, settings, timesteps, axis_name: See `step`.
            seed: uint32 scalar, seed of random layers and connectors, which use no stream of training.

        Returns:
            Tuple with one entry: ``{(module_id, name): float32}`` as one vector. Each module's loss is named
            `TOTAL_EVAL_LOSS_KEY`.
        """
        learner, state = self._learner, dataclasses.replace(state, key=jax.random.key(seed))
        state, batch, forms = self._connected_rows(state, batch, settings, timesteps, axis_name)
        started = self._started(state, batch, settings, axis_name)
        losses = Losses(learner, functools.partial(started.trace_of, num_updates=None), forms)
        values, outputs = losses(started.state.params, started.rest, started.batch, None, {})
        logged = TracedMetrics(outputs.metrics)
        for mid, loss in values.items():
            logged.log_value((mid, TOTAL_EVAL_LOSS_KEY), sum(loss.values()) if isinstance(loss, dict) else loss)
        return (Flat.of(logged.collect().values(axis_name)),)

    def _connected_rows(
        self, state: LearnerState, batch: Batch, settings: dict[str, Any], timesteps: Any, axis_name: str | None
    ) -> tuple[LearnerState, Batch, dict[ModuleID, Form]]:
        """Passes a batch of rows through the learner connector pipeline.

        Returns the learner state, the new batch and, for each module, a `Form`: a description of the shapes of the
        arrays with which loss functions are called.
        """
        template, needs_time = self._learner.template, self._learner.loss_needs_time
        forms = forms_of_batch(template, batch, needs_time=needs_time)
        if len(self._learner.pure_connector):
            layouts = Layouts({mid: Layout(is_masked=own.is_masked) for mid, own in forms.items()})
            rows = jax.tree.map(lambda x: x[None], batch)
            state, rows = self.connect(state, rows, settings, timesteps, axis_name=axis_name, layouts=layouts)
            batch = jax.tree.map(lambda x: x[0], rows)
            # Columns that connectors add may have any shape: the rows of a module keep their form.
            added = {mid: own for mid, own in batch.items() if mid not in forms}
            forms = {
                mid: dataclasses.replace(own, is_masked=Columns.LOSS_MASK in batch[mid])
                for mid, own in forms.items()
                if mid in batch
            }
            forms |= forms_of_batch(template, added, needs_time=needs_time)
        return state, batch, forms

    def _started(self, state: LearnerState, batch: Batch, settings: dict[str, Any], axis_name: str | None) -> _Started:
        """Prepares the gradient steps of an update: evaluates schedules, calls `pre_update`, and selects the trained
        modules.
        """
        learner = self._learner
        values = _with_lr_factors(learner, state, learner.current_values(settings, state.timesteps))
        with learner.in_pure_hook("pre_update"):
            state = learner.pre_update(state, batch)
        if not isinstance(state, LearnerState):
            raise ValueError(
                f"{type(learner).__name__}.pre_update() returned {type(state).__name__}. Return the LearnerState "
                f"with which the gradient steps start, for example state.replace(extra=...)."
            )
        trained = {mid for mid in learner.template if learner.should_module_be_updated(mid, batch)}
        check_any_is_trained(learner.policies_to_train, trained & batch.keys(), batch)
        batch = {mid: columns for mid, columns in batch.items() if mid in trained}
        views = {
            mid: TracedConfigView(learner.config_for(mid), own, values["modules"])
            for mid, own in values["modules"].items()
        }
        trace_of = functools.partial(
            Trace,
            module=learner.template,
            configs=views,
            learning_rates=values["lr"],
            extra=state.extra,
            axis_name=axis_name,
            trained_refs=_trained_refs(learner, trained, batch),
            num_updates=state.num_updates,
        )
        # Stochastic layers draw different numbers on every device and in every update; their streams in `state` stay.
        rest = learner.pure.reseed(state.rest, _device_key(state, 2, axis_name))
        return _Started(state, rest, batch, values, trace_of)

    def _ended(
        self,
        started: _Started,
        carry: Carry,
        metrics: Metrics,
        timesteps: jax.Array,
        axis_name: str | None,
        has_rows: Mapping[ModuleID, Any],
        counted: Mapping[ModuleID, CountedRows] = MappingProxyType({}),
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array]]:
        """Finishes an update after the last gradient step: calls `post_update`, and returns the new state and the
        metrics.

        Args:
            started: Result of `_started`.
            carry: Arrays after the last gradient step.
            metrics: Metrics of all gradient steps, on this device.
            timesteps: uint32[2], lifetime env steps.
            axis_name: Name of the device axis, or None.
            has_rows: bool scalars by module, whether any device has a valid row; modules without an entry have rows.
            counted: Counted rows of the modules, if any of them has masks; else {}.
        """
        learner, before = self._learner, started.state
        has_rows = {mid: has_rows.get(mid, True) for mid in started.batch}
        params, rest, optimizers = restore_unused_modules(learner, before, carry, has_rows)
        values = metrics.values(axis_name, are_exchanged=loss_is_linear(learner))
        rates = {(mid, f"{name}_{LR_KEY}"): lr for mid, own in started.values["lr"].items() for name, lr in own.items()}
        values |= rates
        # Target networks depend only on the parameters, and are equal on all devices.
        streams = learner.pure.stream_refs
        kept = streams | learner.pure.target_refs
        floats = {
            ref: leaf for ref, leaf in rest.items() if ref not in kept and jnp.issubdtype(leaf.dtype, jnp.floating)
        }
        rest = {**rest, **reductions.pmean_flat(floats, axis_name)}
        state = dataclasses.replace(
            before,
            params=params,
            rest={ref: before.rest[ref] if ref in streams else rest[ref] for ref in rest},
            optimizers=optimizers,
            timesteps=timesteps,
            num_updates=before.num_updates + jnp.uint32(1),
        )
        with learner.in_pure_hook("post_update", has_rows):
            given = dict(values)
            result = learner.post_update(state, metrics=given, settings=started.values["modules"])
            state, values = update_result(result, values, given, type(learner))
        for path, lr in rates.items():
            put_setting(values, path, lr)
        for mid, own in counted.items():
            values[mid, MODULE_TRAIN_BATCH_SIZE_MEAN] = own.batch_size
            put_counter(values, (mid, NUM_MODULE_STEPS_TRAINED), counters.add(counters.zero(), own.num_trained))
        return state, values


def with_common_grouping(blocks: Mapping[ModuleID, Block], plan: UpdatePlan) -> Mapping[ModuleID, Block]:
    """Converts the sampled steps (blocks) of all modules, if the block of any module requires that minibatches draw
    single rows.

    After the conversion, minibatches draw single rows of every module. If no block requires single rows, returns the
    blocks unchanged; minibatches may then draw whole env steps, each with the rows of all agents.

    A block requires single rows if it has a mask, or if the number of rows that a minibatch takes from each shuffle
    shard is not a multiple of the number of agents. Unchanged blocks may differ: minibatches may draw whole env steps
    of some modules, and single rows of others.
    """
    per_shard = plan.rows_per_shard_and_step() or 0
    if all(own.fits_minibatches(per_shard) and own.mask is None for own in blocks.values()):
        return blocks
    return {mid: own.with_rows_apart() for mid, own in blocks.items()}


def _with_lr_factors(learner: Learner, state: LearnerState, values: dict[str, Any]) -> dict[str, Any]:
    """Multiplies the learning rates in `values` (current values of the settings) by the config's optax schedules,
    evaluated at the number of updates. Returns the new values.
    """
    factors = learner.config._torch_lr_scheduler_classes
    if not factors:
        return values
    rates, num_updates = {}, state.num_updates.astype(jnp.int32)
    for module_id, by_name in values["lr"].items():
        own = factors.get(module_id, ()) if isinstance(factors, Mapping) else factors
        factor = functools.reduce(lambda product, schedule: product * schedule(num_updates), own, jnp.float32(1.0))
        rates[module_id] = {name: rate * factor for name, rate in by_name.items()}
    return {**values, "lr": rates}


def _trained_refs(learner: Learner, trained: set[ModuleID], batch: Batch) -> tuple[str, ...]:
    """Returns the names (refs) of the parameters that an update with this batch changes.

    These are the parameters of every optimizer that a module of the batch has or shares, without modules that
    ``policies_to_train`` leaves out. Zero gradients for the others are not enough: momentum and weight decay change
    parameters anyway.
    """
    reached = {ref for mid in batch for ref in learner.pure.refs_of(learner.template[mid])}
    return tuple(
        ref
        for mid, by_name in learner.optimizers.items()
        if mid == ALL_MODULES or mid in trained
        for optimizer in by_name.values()
        if reached.intersection(optimizer.refs)
        for ref in optimizer.refs
    )


def _update_key(state: LearnerState, purpose: int) -> jax.Array:
    """Returns the PRNG key of the current update for one use, equal on all devices.

    The number `purpose` (0 to 3) selects the use, for example 3 for shuffling rows.
    """
    return jax.random.fold_in(state.key, state.num_updates * jnp.uint32(4) + jnp.uint32(purpose))


def _device_key(state: LearnerState, purpose: int, axis_name: str | None) -> jax.Array:
    """Returns the PRNG key of the current update for one use on this device.

    The number `purpose` (0 to 3) selects the use, for example 1 for learner connectors. If `axis_name` (device axis) is
    None, returns the key of the first device.
    """
    device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
    return jax.random.fold_in(_update_key(state, purpose), device)


def _has_valid_rows(items: Mapping[ModuleID, WholeItems], axis_name: str | None) -> dict[ModuleID, jax.Array]:
    """Returns, for each module with a mask, whether its batch has a valid row (not masked) on any device, as a bool
    scalar.
    """
    numbers = {mid: jnp.sum(own.mask, dtype=jnp.uint32) for mid, own in items.items() if own.mask is not None}
    return {mid: own > 0 for mid, own in (reductions.psum(numbers, axis_name) if numbers else {}).items()}


class _Minibatches:
    """Number of an update's minibatches, and the indices of the items (steps, chunks or env steps) in each minibatch.

    Args:
        learner: The learner.
        items: Items by module.
        plan, axis_name, row_counts: See `Update.__call__`.
        recorder: See `Update.recorded`; None without records.

    Attributes:
        forms: Forms of the items, by module.
    """

    def __init__(
        self,
        learner: Learner,
        items: Mapping[ModuleID, Items],
        plan: UpdatePlan,
        axis_name: str | None,
        row_counts: RowCounts | None,
        recorder: Recorder | None = None,
    ):
        self._items, self._plan, self._axis_name, self._row_counts = items, plan, axis_name, row_counts
        self._recorder = recorder
        self.forms = {mid: own.form for mid, own in items.items()}
        # Items per minibatch and shard, and parts of a minibatch over which gradients are summed.
        self._sizes = {
            mid: plan.rows_per_shard_and_step(own.form.rows_per_item) or own.num_items for mid, own in items.items()
        }
        self._num_parts = microbatches_per_minibatch(learner, self._sizes, plan.shards_per_device, self.forms)

    def shapes(self) -> dict[ModuleID, Any]:
        """Returns, for each module, the shapes and dtypes (`jax.ShapeDtypeStruct`) of the columns of one microbatch, in
        the form in which loss functions get the columns.
        """
        shards = self._plan.shards_per_device
        return {mid: own.shapes(shards * self._sizes[mid] // self._num_parts) for mid, own in self._items.items()}

    @functools.cached_property
    def number(self) -> int | jax.Array:
        """Number of minibatches in the update: an int, or a uint32 scalar if it is computed in the compiled program."""
        items, plan = self._items, self._plan
        if self._row_counts is not None:
            return self._row_counts.num_steps
        valid = {mid: own.valid for mid, own in items.items() if own.valid is not None}
        if not valid or plan.minibatch_size is None or plan.num_total_minibatches:
            return max(plan.num_steps(own.num_items, own.form.rows_per_item) for own in items.values())
        of_others = [
            plan.num_steps(own.num_items, own.form.rows_per_item) for mid, own in items.items() if mid not in valid
        ]
        return num_valid_minibatches(valid, self._sizes, plan.num_epochs, max(of_others, default=1), self._axis_name)

    @property
    def most(self) -> int:
        """Upper bound of the number of minibatches in the update. The bound determines the size of the update's
        debugging record.
        """
        if self._recorder is not None and self._recorder.most_minibatches is not None:
            return self._recorder.most_minibatches
        return max(self._plan.num_steps(own.num_items, own.form.rows_per_item) for own in self._items.values())

    def indices(self, state: LearnerState) -> Callable[[jax.Array], dict[ModuleID, jax.Array]]:
        """Returns a function that maps the index of a minibatch (from 0) to the indices of the items in this minibatch.

        Items are steps, chunks (training sequences) or env steps.

        The results are ``{module_id: uint32 [parts, S, m / parts]}``.

        Args:
            state: State before the first minibatch, whose key seeds the shuffle.
        """
        number, items, plan, axis_name = self.number, self._items, self._plan, self._axis_name
        seed: Any = None
        is_divided = plan.minibatch_size is not None
        first = jnp.uint32(0) if axis_name is None else jax.lax.axis_index(axis_name).astype(jnp.uint32)
        shards = first * jnp.uint32(plan.shards_per_device) + jnp.arange(plan.shards_per_device, dtype=jnp.uint32)
        if plan.shuffle and is_divided and (plan.num_epochs > 1 or plan.num_total_minibatches > 0):
            seed = permutation.round_keys(_update_key(state, 3))
        keys: dict[ModuleID, Any] = dict.fromkeys(items)
        if seed is not None and isinstance(number, int):
            num_epochs = {mid: -(-number * self._sizes[mid] // own.num_items) for mid, own in items.items()}
            keys = {mid: epoch_keys(seed, own, shards) for mid, own in num_epochs.items()}

        def of_module(module_id: ModuleID, step: jax.Array) -> jax.Array:
            own, size = items[module_id], self._sizes[module_id]
            if own.valid is not None and is_divided:
                index = own.valid.minibatch(step, size, seed, shards)
            elif isinstance(number, int):
                index = minibatch_index(step, size, own.num_items, keys[module_id])
            else:
                if self._row_counts is None:
                    domain = jnp.array(permutation.domain(own.num_items), jnp.uint32)
                else:
                    domain = self._row_counts.domains[module_id]
                index = minibatch_index_within(step, size, domain, seed, shards)
            return in_parts(jnp.broadcast_to(index, (plan.shards_per_device, size)), self._num_parts)

        return lambda step: {mid: of_module(mid, step) for mid in items}

    def counted(self) -> dict[ModuleID, CountedRows]:
        """Returns statistics of each module's valid rows (not masked) in this update, see `CountedRows`. If no module's
        sampled block has masks, returns ``{}``.

        Without masks in sampled blocks, the host computes these numbers from batch sizes and masks in host memory.
        """
        items, plan = self._items, self._plan
        if all(own.valid is None for own in items.values()):
            return {}
        sizes = {mid: None if plan.minibatch_size is None else size for mid, size in self._sizes.items()}
        valid = {mid: own.counted() for mid, own in items.items()}
        counted = counted_rows(valid, sizes, self.number, num_learners=plan.num_learners, axis_name=self._axis_name)
        return {
            mid: own if items[mid].valid is not None else own._replace(has_rows=True) for mid, own in counted.items()
        }


def _over_minibatches(
    step: GradientStep,
    started: _Started,
    packed: Mapping[ModuleID, PackedItems],
    minibatches: _Minibatches,
    records: MinibatchRecords | None,
) -> tuple[Carry, Metrics, Any]:
    """Makes a gradient step on each minibatch of an update, in one compiled loop.

    Args:
        step: The gradient step.
        started: Inputs of the first step.
        packed: The items, by module.
        minibatches: Indices of the items of each minibatch.
        records: Function that records each step; None without records.

    Returns:
        ``(arrays after the last step, metrics of all steps, record of all steps or ())``.
    """
    number, index_of = minibatches.number, minibatches.indices(started.state)
    # A few parameters are carried through the loop as one vector, on which XLA works as a whole.
    vector, unpack = as_vector(started.state.params)

    def body(carry: Carry, number: jax.Array) -> tuple[Carry, Metrics, Any]:
        index = index_of(number)
        before = carry._replace(params=unpack(carry.params))
        carry, logged = step(before, packed, index)
        record = () if records is None else records(before, carry, logged, packed, index)
        return carry._replace(params=as_vector(carry.params)[0]), logged.collect(), record

    carry = Carry(vector, started.rest, started.state.optimizers)
    if isinstance(number, int):
        carry, metrics, record = _scan(body, carry, number)
    else:
        carry, metrics, record = _scan_while(body, carry, number, 0 if records is None else minibatches.most)
    if records is not None:
        record[(NUM_MINIBATCHES,)] = jnp.asarray(number, jnp.uint32)[None]
    return carry._replace(params=unpack(carry.params)), metrics, record


def _scan(
    body: Callable[[Any, jax.Array], tuple[Any, Metrics, Any]], carry: Any, num_steps: int
) -> tuple[Any, Metrics, Any]:
    """Makes a gradient step on each minibatch of an update with `lax.scan`; the number of minibatches is static.

    Args:
        body: ``(carry, index of the minibatch) -> (carry, metrics, record)``.
        carry: Arrays before the first minibatch.
        num_steps: Number of minibatches.

    Returns:
        ``(carry, metrics of all minibatches, records [num_steps, ...])``.
    """

    def one_step(carry, number):
        carry, metrics, record = body(carry, number)
        return carry, (Flat.of(metrics), record)

    carry, (history, record) = jax.lax.scan(one_step, carry, jnp.arange(num_steps, dtype=jnp.uint32))
    return carry, jax.vmap(Flat.tree)(history).over_minibatches(), record


def _scan_while(
    body: Callable[[Any, jax.Array], tuple[Any, Metrics, Any]], carry: Any, num_steps: jax.Array, most: int
) -> tuple[Any, Metrics, Any]:
    """Makes a gradient step on each minibatch of an update with `lax.while_loop`; the number of minibatches is a traced
    uint32 of at least 1.

    Records have leaves ``[most, ...]``, where `most` is an upper bound of the number.
    """
    once = traced_once(body, carry, jnp.uint32(0))

    def one_step(state):
        number, carry, reduced, records = state
        carry, metrics, record = once.call(carry, number)
        records = jax.tree.map(lambda all_of, own: all_of.at[number].set(own), records, record)
        return number + jnp.uint32(1), carry, Metrics.with_minibatch(reduced, metrics), records

    _, nothing, record = once.out
    records = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), record)
    _, carry, reduced, records = jax.lax.while_loop(
        lambda state: state[0] < num_steps, one_step, (jnp.uint32(0), carry, nothing.before_minibatches(), records)
    )
    return carry, Metrics.after_minibatches(reduced, num_steps), records
