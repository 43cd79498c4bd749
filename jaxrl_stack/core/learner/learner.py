"""The Learner: a thin shell with RLlib's hooks around one compiled, buffer-donating update."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import check_has_masks
from jaxrl_stack.core.experience import Experience, num_rows_of
from jaxrl_stack.core.layouts import Layout, Layouts, layout_of, layouts_of_batch, layouts_of_block
from jaxrl_stack.core.learner import row_blocks, steps_trained
from jaxrl_stack.core.learner.episodes_to_batch import episodes_to_batch
from jaxrl_stack.core.learner.learner_base import ENTROPY_KEY, POLICY_LOSS_KEY, VF_LOSS_KEY, Batch, ModuleID, Timesteps
from jaxrl_stack.core.learner.optimizers import DEFAULT_OPTIMIZER
from jaxrl_stack.core.learner.steps_trained import Amount, TrainedOn, amount_of_block, trained_in_each, trained_on
from jaxrl_stack.core.learner.stored_learner import StoredLearner
from jaxrl_stack.core.learner.traced_metrics import LR_KEY, MetricKey, nest_metrics, raise_if_not_finite
from jaxrl_stack.core.learner.trained_modules import check_any_is_trained
from jaxrl_stack.core.learner.training_data import OldUpdates, TrainingData
from jaxrl_stack.core.learner.update import Update
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.learner.update_program import UpdateProgram, as_arrays, fetched, signature
from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.core.rl_module.row_independence import rows_are_independent
from jaxrl_stack.core.rl_module.sequences import as_chunks
from jaxrl_stack.ops import permutation
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import copy_on_one_device, gathered, map_over_devices, own_shards, place_replicated
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics import CONNECTOR_PIPELINE_TIMER
from jaxrl_stack.utils.metrics.reduced_metrics import ReducedMetrics
from jaxrl_stack.utils.named_leaves import is_key
from jaxrl_stack.utils.results import NUM_STEPS_EVALUATED, merge_nested
from jaxrl_stack.utils.snapshots import is_lost, reraise

__all__ = ["DEFAULT_OPTIMIZER", "ENTROPY_KEY", "LR_KEY", "POLICY_LOSS_KEY", "VF_LOSS_KEY", "Learner"]


class Learner(OldUpdates, StoredLearner):
    """Updates the RLModules of a config from train batches.

    Subclass it and override the hooks; all of them run while the update is traced, so they must be pure JAX:
    `compute_loss_for_module`, `compute_losses`, `compute_gradients`, `postprocess_gradients(_for_module)`,
    `apply_gradients`, `pre_update`, `post_update`. `configure_optimizers_for_module` runs once, in `build`.
    `before_gradient_based_update` and `after_gradient_based_update` run on the host around each update.

    Args:
        config: The algorithm's config. A frozen copy is kept.
        module_spec: Spec of the module(s); None takes the config's own.
        module: A built module to use instead of a spec.

    Raises:
        ValueError: If both `module_spec` and `module` are given.
    """

    update_class = Update

    # ------------------------------------------------------------------------------------------------------- host hooks

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Host hook before each update. Overriding it makes every iteration return to the host; see `pre_update`."""

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Host hook after each update. Overriding it makes every iteration return to the host; see `post_update`."""

    @property
    def has_host_hooks(self) -> bool:
        """Whether a subclass overrides one of the two host hooks."""
        return (
            type(self).before_gradient_based_update is not Learner.before_gradient_based_update
            or type(self).after_gradient_based_update is not Learner.after_gradient_based_update
        )

    # ----------------------------------------------------------------------------------------------------------- blocks

    def plan(
        self,
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        num_total_minibatches: int = 0,
        num_steps: int | None = None,
        num_frames: int = 1,
        is_masked: bool = False,
    ) -> UpdatePlan:
        """The static part of an update on this learner's devices.

        Args:
            num_epochs, minibatch_size, shuffle_batch_per_epoch, num_total_minibatches: See `update`.
            num_steps: ``T`` of the blocks ``[T, B, ...]`` that it will take; None if the layouts are not known yet.
            num_frames, is_masked: Of these blocks, see `Layout`.

        Raises:
            ValueError: If the minibatch does not divide by the shuffle shards, or these by the devices; for numbers
                that are too small.
        """
        num_learners, num_devices = self.num_joined_learners, self.num_devices
        num_shards = self.config.num_shuffle_shards or num_devices
        if num_shards % num_devices:
            joined = f", over {num_learners} learners" if num_learners > 1 else ""
            raise ValueError(
                f"num_shuffle_shards={num_shards} must be a multiple of the number of devices, {num_devices}{joined}."
            )
        numbers = (("num_epochs", num_epochs, 1), ("num_total_minibatches", num_total_minibatches, 0))
        for name, value, least in (*numbers, ("num_steps", num_steps, 1)):
            if value is not None and value < least:
                raise ValueError(f"{name}={value} must be at least {least}.")
        layouts = {}
        if num_steps is not None:
            of_block = {"needs_time": self.loss_needs_time, "num_frames": num_frames, "is_masked": is_masked}
            layouts = {mid: layout_of(module, num_steps, **of_block) for mid, module in self.template.items()}
        sizes = (num_epochs, minibatch_size, shuffle_batch_per_epoch, num_total_minibatches)
        plan = UpdatePlan(*sizes, num_shards, num_devices, num_learners, Layouts(layouts))
        if minibatch_size is not None and (minibatch_size < 1 or minibatch_size % plan.local_shards):
            below = max(minibatch_size // plan.local_shards, 1) * plan.local_shards
            raise ValueError(
                f"minibatch_size={minibatch_size} does not divide by the {plan.local_shards} shuffle shards (one per "
                f"device unless num_shuffle_shards is set). Use minibatch_size={below}, for example."
            )
        return plan

    def update_block(self, experience: Experience, *, timesteps: Timesteps = None, **sizes: Any) -> dict[str, Any]:
        """Update from steps as they were sampled: connector pipeline and minibatch loop in one compiled program.

        It is the computation of an iteration on the device; each shape of block is compiled once.

        Args:
            experience: Columns ``[T, B, ...]``, NumPy; device ``d`` of this learner's D takes the columns
                ``d * B/D ... (d+1) * B/D - 1``. The arrays are only read, and not kept.
            timesteps: As for `update`.
            **sizes: ``num_epochs``, ``minibatch_size``, ``shuffle_batch_per_epoch`` and ``num_total_minibatches``, as
                for `update`.

        Returns:
            The result of `update`.

        Raises:
            ValueError: If columns differ in ``[T, B]``, B does not divide by devices and shuffle shards, or the
                learner pipeline has host connectors, which work on episodes.
        """
        self._check_is_built()
        if self.has_host_connectors:
            raise ValueError(
                f"update_block() is compiled from end to end, and the learner pipeline's {self.host_connector_names} "
                f"run on the host, on episodes: use update(episodes=...), or write them as pure functions."
            )
        plan, block = self.plan(**sizes), Experience.check(experience, is_rows=False).modules
        planned = experience.layouts
        shapes = row_blocks.check_block(block, self.template, plan, planned)
        num_steps = {mid: steps for mid, (steps, _) in shapes.items()}
        layouts = layouts_of_block(self.template, block, num_steps, planned=planned, needs_time=self.loss_needs_time)
        layouts.check(block)
        plan = plan.with_layouts(layouts)
        if self._leaves_all_out({}, block):
            return self._result_without_update()
        counter = self._before_update(timesteps)
        dealt = {mid: row_blocks.deal_out_columns(columns, plan.local_devices) for mid, columns in block.items()}
        program = self._program("block", self.pure_update, plan, dealt)
        amounts = {mid: amount_of_block(plan.layouts[mid], *shape) for mid, shape in shapes.items()}
        settings, counts = self.placed_settings(), self._trained_on(plan, amounts, block)
        with self._updating(counter, counts):
            self._state, metrics, _ = program(self.state, dealt, settings, counter)
            if any(layout.is_masked for layout in layouts.values()):
                counts |= steps_trained.counted_by_program(fetched(metrics))
            self._last = (metrics, counts)
        return self._result()

    # --------------------------------------------------------------------------------------------- batches and episodes

    def update(
        self,
        batch: dict[str, Any] | None = None,
        batches: Sequence[dict[str, Any]] | None = None,
        batch_refs: Sequence[Any] | None = None,
        episodes: Sequence[Any] | None = None,
        episodes_refs: Sequence[Any] | None = None,
        data_iterators: Sequence[Any] | None = None,
        training_data: Any = None,
        *,
        timesteps: Timesteps = None,
        num_total_minibatches: int = 0,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
    ) -> dict[str, Any]:
        """Update the modules from exactly one of the data arguments.

        Args:
            batch: ``{module_id: {column: [N, ...]}}`` (or ``{column: [N, ...]}`` for a single module), ready for the
                loss; the connector pipeline is not run.
            batches: Several such batches, laid end to end.
            batch_refs: Ray references of such batches.
            episodes: Of one agent or of several; they pass through the learner pipeline, which may change them.
            episodes_refs: Ray references of lists of episodes.
            data_iterators: Iterators over such batches, one batch per update.
            training_data: An object with (some of) the attributes above.
            timesteps: Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``; schedules move to it
                after the update.
            num_total_minibatches: Number of gradient steps instead of what the epochs make, if above 0.
            num_epochs: Passes over the batch.
            minibatch_size: Rows per gradient step over all devices of this learner; None for the whole batch.
            shuffle_batch_per_epoch: Whether each of several epochs has its own random order.

        Returns:
            ``{module_id: {metric: float}}``, of the last minibatch, with what the host hooks logged into `metrics`,
            and with the counters of `training_counts`.

        Raises:
            ValueError: If not exactly one data argument is given, sizes do not fit, or nothing in it is trained.
        """
        self._check_is_built()
        data = TrainingData.of(training_data, batch, batches, batch_refs, episodes, episodes_refs, data_iterators)
        plan = self.plan(
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            num_total_minibatches=num_total_minibatches,
        )
        counter = self._before_update(timesteps)
        data.solve_refs()
        if data.episodes is not None:
            rows, layouts = self._rows_of_episodes(data.episodes, counter)
        else:
            batches = [data.batch] if data.batches is None else data.batches
            if data.data_iterators is not None:
                batches = [next(iter(iterator)) for iterator in data.data_iterators]
            rows = row_blocks.concatenate([self._as_multi_module_batch(batch) for batch in batches])
            layouts = layouts_of_batch(self.template, rows, needs_time=self.loss_needs_time)
        return self._fit_rows(rows, counter, plan.with_layouts(layouts))

    def _rows_of_episodes(self, episodes: Sequence[Any], counter: np.ndarray) -> tuple[Batch, Layouts]:
        """Episodes through the learner connector pipeline: ``{module_id: {column: [N, ...]}}`` on the host, step by
        step and episode by episode, and how the columns lie."""
        columns = None
        if self.has_host_connectors:
            prefix = (ALL_MODULES, "learner_connector")
            with self.metrics_logger.log_time((*prefix, CONNECTOR_PIPELINE_TIMER)):
                columns = self._learner_connector.columns_from_host_connectors(
                    episodes, rl_module=self._synced_module(), metrics=self.metrics_logger, metrics_prefix_key=prefix
                )
        block, rows, num_steps = episodes_to_batch(
            episodes,
            self.template,
            columns=columns,
            num_devices=len(self.devices),
            common_sizes=self._largest_of_all_learners,
        )
        check_has_masks(block, self.template, connectors=self.host_connector_names)
        layouts = layouts_of_block(self.template, block, num_steps, needs_time=self.loss_needs_time)
        key = ("connect", self._num_connector_changes, layouts, *signature(block))
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                functools.partial(self._connect_program, layouts=layouts),
                self.devices,
                axis_name=self.axis_name,
                in_axes=(None, 0, None, None),
                out_axes=(None, 0),
                donate_argnums=(),
            )
        # Optimizers have no part in it.
        state = dataclasses.replace(self.state, optimizers={})
        block = as_arrays(block, self.axis_name is None)
        connector, batch = self._compiled[key](state, block, self.placed_settings(), counter)
        batch = own_shards(batch)  # Waits, and raises if the program has failed.
        old, self._state = self.state, dataclasses.replace(self.state, connector=connector)
        self._snapshots.renamed(old, self._state)
        # A module that a connector has added has the rows that it was made of.
        row_of = dict.fromkeys(batch, next(iter(rows.values()))) | rows
        layouts = layouts.masked_as(batch)
        layouts.check(batch)
        return {mid: self._taken(columns, layouts[mid], row_of[mid]) for mid, columns in batch.items()}, layouts

    def _taken(self, columns: dict[str, Any], layout: Layout, rows: np.ndarray) -> dict[str, Any]:
        """Valid rows ``[N, ...]`` of ``[D, T, B / D, ...]``; the chunks ``[N, L, ...]`` that have any, if the layout
        has chunks."""
        if layout.has_chunks:
            parts = [as_chunks(jax.tree.map(lambda x, d=d: x[d], columns), layout) for d in range(len(self.devices))]
            columns = jax.tree.map(lambda *each: np.stack(each), *(part.columns for part in parts))
            rows = np.flatnonzero(columns[Columns.LOSS_MASK].any(axis=-1))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:])[rows], columns)

    def _connect_program(self, state, block, settings, counter, *, layouts: Layouts):
        update = self.pure_update
        block = update.with_clipped_rewards(block)
        state, batch = update.connect(state, block, settings, counter, axis_name=self.reduction_axis, layouts=layouts)
        return state.connector, batch

    def _as_multi_module_batch(self, batch: Any) -> Batch:
        batch = getattr(batch, "policy_batches", batch)
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"A batch is a dict {{column: [N, ...]}} or {{module_id: {{column: [N, ...]}}}}, got a "
                f"{type(batch).__name__}. Several batches are update(batches=[...])."
            )
        if any(key in self.template for key in batch):
            unknown = [key for key in batch if key not in self.template]
            if unknown:
                raise ValueError(f"The batch has modules {unknown} that this learner does not: {list(self.template)}.")
            columns_of = {mid: dict(columns) for mid, columns in batch.items()}
        else:
            columns_of = {single_agent(self.template).module_id: dict(batch)}
        for mid, columns in columns_of.items():
            row_blocks.check_columns(mid, columns, self.template[mid])
        return columns_of

    def _fit_rows(self, rows: Batch, counter: np.ndarray, plan: UpdatePlan) -> dict[str, Any]:
        """The minibatch loop over rows on the host, ``{module_id: {column: [N, ...]}}``."""
        num_rows = {mid: row_blocks.num_rows_of(mid, columns) for mid, columns in rows.items()}
        per_shard = {mid: row_blocks.rows_per_shard(n, plan.local_shards) for mid, n in num_rows.items()}
        if self._leaves_all_out(per_shard, rows):
            return self._result_without_update()
        of_all_learners = self._sizes_of_all_learners(per_shard, rows)
        in_minibatches = plan.minibatch_size is not None
        # What fills up is never in a minibatch of one shard. Where a batch is taken whole, the loss leaves it out; a
        # module that looks across rows cannot, so that every number of rows is a program of its own.
        is_padded = in_minibatches or all(rows_are_independent(self.template[mid]) for mid in rows)
        shows_padding = is_padded and not in_minibatches
        is_masked = shows_padding or plan.num_shards > 1 or type(self).pre_update is not Learner.pre_update
        blocks = {}
        for mid, columns in rows.items():
            largest = int(of_all_learners[mid].max())
            blocks[mid] = row_blocks.lay_out_rows(
                columns,
                plan.layouts[mid],
                num_devices=plan.local_devices,
                num_shards=plan.local_shards,
                size=row_blocks.padded_size(largest) if is_padded else largest,
                mask=is_masked,
            )
        amounts = {mid: Amount(n * plan.layouts[mid].length, n) for mid, n in num_rows.items()}
        counts = self._trained_on(plan, amounts, rows)
        plan = plan.with_layouts(plan.layouts.masked_as(blocks))
        row_counts: tuple[RowCounts, ...] = ()
        if in_minibatches:
            # All learners make as many steps as if the rows were dealt out evenly.
            trained = {mid: n for mid, n in of_all_learners.items() if self.should_module_be_updated(mid, rows)}
            check_any_is_trained(self.policies_to_train, trained, rows)
            steps = max(
                plan.num_steps(-(-int(n.sum()) // len(n)), plan.layouts[mid].length) for mid, n in trained.items()
            )
            # Other learners may have other numbers of rows: one entry per device.
            domains = {mid: np.array(permutation.domain(n), np.uint32) for mid, n in per_shard.items()}
            own = RowCounts(domains, np.array(steps, np.uint32))
            row_counts = (jax.tree.map(lambda x: np.repeat(x[None], plan.local_devices, axis=0), own),)
            # The number of gradient steps is an argument: another one is the same program.
            plan = dataclasses.replace(plan, num_total_minibatches=int(plan.num_total_minibatches > 0))
        program = self._program(
            "batch", functools.partial(self.pure_update, is_sampled=False), plan, blocks, *row_counts
        )
        settings = self.placed_settings()
        with self._updating(counter, counts):
            self._state, metrics, _ = program(self.state, blocks, settings, counter, *row_counts)
            self._last = (metrics, counts)
        return self._result()

    def _leaves_all_out(self, sizes: dict[str, int], batch: Any) -> bool:
        """Tell if this learner trains nothing, once joined learners, which would wait for it, agree; see
        `_sizes_of_all_learners`."""
        if not self.pure_update.trains_nothing:
            return False
        self._sizes_of_all_learners(sizes, batch)
        return True

    def _largest_of_all_learners(self, sizes: dict[str, int]) -> dict[str, int]:
        """Joined learners run one program, and so need the same shapes."""
        return {name: int(everyone.max()) for name, everyone in self._sizes_of_all_learners(sizes).items()}

    def _sizes_of_all_learners(self, sizes: dict[str, int], batch: Any = None) -> dict[str, np.ndarray]:
        """Each size in every joined learner; all of them call this with the same names.

        Args:
            sizes: Of this learner.
            batch: If it is given, the learners have to agree on the modules that they update from it, too.

        Raises:
            ValueError: In all learners, if they do not: they would run different programs, and wait for each other
                forever.
        """
        if self.num_joined_learners == 1:
            return {name: np.array([n]) for name, n in sizes.items()}
        module_ids = [] if batch is None else list(self.template)
        is_updated = [int(self.should_module_be_updated(mid, batch)) for mid in module_ids]
        everyone = gathered(np.array([*sizes.values(), *is_updated], np.int32)).T
        for mid, of_all in zip(module_ids, everyone[len(sizes) :], strict=True):
            if of_all.min() != of_all.max():
                raise ValueError(
                    f"should_module_be_updated({mid!r}) is True in {int(of_all.sum())} of {len(of_all)} learners, "
                    f"which make one update together: it has to be the same in all of them. Let "
                    f"multi_agent(policies_to_train=...), or what overrides that method, depend on nothing that "
                    f"differs between the learners, such as the rows of their batches."
                )
        return dict(zip(sizes, everyone[: len(sizes)], strict=True))

    # ------------------------------------------------------------------------------------------------- rows from replay

    def update_rows(self, experience: Experience, *, timesteps: Timesteps = None) -> dict[MetricKey, np.ndarray]:
        """One gradient step on all rows of a batch, as it was drawn from replay.

        The hot path of off-policy algorithms: rows are not looked at, and metrics stay on the devices until
        `row_results` asks for the metrics of the last update. The learner pipeline sees the rows as one time step.

        Args:
            experience: Rows ``[N, ...]``, or sequences ``[N, J, ...]``, NumPy; each of this learner's D devices takes
                N / D of them. The arrays are only read, and not kept.
            timesteps: As for `update`.

        Returns:
            ``{(module_id, name): float32 [N, ...]}``: what the loss logged with ``reduce="item_series"``, row by row.

        Raises:
            ValueError: If N does not divide by D, or the learner pipeline has host connectors, which work on episodes.
            FloatingPointError: With ``check_nans``, for a loss or gradient that is not finite.
        """
        self._check_is_built()
        batch = Experience.check(experience, is_rows=True).modules
        num_rows = {mid: num_rows_of(columns) for mid, columns in batch.items()}
        if num_rows != self._rows_trained_on[0]:
            self._check_rows(num_rows, batch)
            steps = {
                mid: num_rows[mid] * own.length
                for mid, own in layouts_of_batch(self.template, batch, needs_time=self.loss_needs_time).items()
            }
            trained = {mid: TrainedOn(n, n) for mid, n in steps.items() if self.should_module_be_updated(mid)}
            self._rows_trained_on = (num_rows, trained)
        if self.pure_update.trains_nothing:
            return {}
        counter = self._before_update(timesteps)
        key = ("rows", self._num_connector_changes)
        if key not in self._compiled:
            step = functools.partial(self.pure_update.step, axis_name=self.reduction_axis)
            self._compiled[key] = self._compile(step)
        program, settings, counts = self._compiled[key], self.placed_settings(), self._rows_trained_on[1]
        masks = {mid: batch[mid][Columns.LOSS_MASK] for mid in counts if Columns.LOSS_MASK in batch[mid]}
        # An update leaves these as they are.
        counts = counts | {mid: TrainedOn(0, 0) for mid, mask in masks.items() if not np.any(mask)}
        with self._updating(counter, counts):
            self._state, metrics, rows = program(self.state, batch, settings, counter, is_dealt=False)
            self._last = (metrics, counts)
        return rows

    def evaluate_rows(self, experience: Experience, *, seed: int = 0, timesteps: Timesteps = None) -> dict[str, Any]:
        """The losses of rows and what these log, without an update: nothing of this learner changes.

        They pass through learner pipeline and loss as in `update_rows`; what connectors learn of them is forgotten.

        Args:
            experience: As for `update_rows`.
            seed: Seed that random layers and connectors draw from.
            timesteps: As for `update`.

        Returns:
            ``{module_id: {"total_eval_loss": float, metric: float, "num_module_steps_sampled": int}}``.

        Raises:
            ValueError: As for `update_rows`.
        """
        self._check_is_built()
        batch = Experience.check(experience, is_rows=True).modules
        self._check_rows({mid: num_rows_of(columns) for mid, columns in batch.items()}, batch)
        key = ("evaluation", self._num_connector_changes)
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                functools.partial(self.pure_update.evaluate, axis_name=self.reduction_axis),
                self.devices,
                axis_name=self.axis_name,
                in_axes=(None, 0, None, None, None),
                out_axes=(None,),
                donate_argnums=(),
            )
        dealt = jax.tree.map(lambda x: x.reshape(len(self.devices), -1, *x.shape[1:]), batch)
        counter = counters.from_int(steps_trained.lifetime_env_steps(timesteps))
        (metrics,) = self._compiled[key](self.state, dealt, self.placed_settings(), counter, np.uint32(seed))
        results = nest_metrics(fetched(metrics))
        for mid, own in layouts_of_batch(self.template, batch, needs_time=self.loss_needs_time).items():
            if mid in results:  # policies_to_train may leave it out
                results[mid][NUM_STEPS_EVALUATED] = num_rows_of(batch[mid]) * own.length
        return results

    def _check_rows(self, num_rows: Mapping[ModuleID, int], batch: Batch) -> None:
        """Raises a ValueError for rows that `update_rows` cannot learn from."""
        if self.has_host_connectors:
            raise ValueError(
                f"update_rows() takes rows from replay, and the learner pipeline's {self.host_connector_names} run on "
                f"the host, on episodes: write them as pure functions, apply(self, state, batch, ctx)."
            )
        if any(n % len(self.devices) for n in num_rows.values()):
            raise ValueError(
                f"A batch of {num_rows} rows cannot be dealt out to the {len(self.devices)} devices of a learner "
                f"(num_cpus_per_learner or num_gpus_per_learner): make train_batch_size_per_learner a multiple."
            )
        self._sizes_of_all_learners({}, batch)

    def row_results(self, num_updates: int = 1) -> dict[str, Any]:
        """The result of the last update, in the form of `update`.

        Args:
            num_updates: Updates that the counters "trained" are over.

        Returns:
            ``{module_id: {metric: float}}``; empty before the first update.
        """
        return {} if self._last is None else self._result(num_updates)

    # --------------------------------------------------------------------------------------------------------- programs

    def _before_update(self, timesteps: Timesteps) -> np.ndarray:
        """What comes before each update; gives lifetime env steps, uint32[2]."""
        if self.num_devices > len(self.devices) * self.num_joined_learners:
            raise ValueError(
                f"This learner runs on {self.num_devices} devices of several processes, inside the program of a JAX "
                f"environment, and takes no data from one of them. To update from data, leave distributed.initialize() "
                f"out and let Ray start the processes: learners(num_learners=...)."
            )
        steps = steps_trained.lifetime_env_steps(timesteps)
        if self.has_host_hooks:
            self.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": steps})
        return counters.from_int(steps)

    def _program(self, name: str, function: Callable[..., Any], plan: UpdatePlan, *mapped: Any) -> UpdateProgram:
        """The compiled program of an update, for a batch and further arguments of these shapes."""
        key = (name, plan, self._num_connector_changes, *signature(mapped))
        if key not in self._compiled:
            self._sizes_of_all_learners({}, mapped[0])
            function = functools.partial(function, plan=plan, axis_name=self.reduction_axis)
            self._compiled[key] = self._compile(function, num_mapped=len(mapped) - 1)
        return self._compiled[key]

    def _compile(self, function: Callable[..., Any], **sizes: int) -> UpdateProgram:
        keys = [ref for ref, leaf in self.pure.rest.items() if is_key(leaf)]
        return UpdateProgram(function, self.devices, self.axis_name, key_refs=keys, **sizes)

    @contextlib.contextmanager
    def _updating(self, counter: np.ndarray, counts: Mapping[ModuleID, TrainedOn]) -> Iterator[None]:
        """Around the call of a program that makes an update, and the assignment of what it returns: what follows an
        update, and what is done if it fails.

        Args:
            counter: Lifetime env steps.
            counts: What is trained on.
        """
        num_updates = self.num_updates + 1
        with deferred_interrupt(), self._recovering(num_updates - 1):
            # Eager runs donate nothing, and actors start again from what their group has copied.
            if self.axis_name is not None and not self.config.num_learners:
                self._snapshots.before_call(self.state)
            yield
            self._snapshots.after_call(self._state)
            self._counted = (self._state, num_updates)
            self._steps_trained.count(counts, num_updates)
        if self.config.check_nans:
            assert self._last is not None
            raise_if_not_finite(fetched(self._last[0]), iteration=num_updates)
        if self.has_host_hooks:
            self.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})

    def _result(self, num_updates: int = 1) -> dict[str, Any]:
        """The result of the last update, with counters over so many of them."""
        assert self._last is not None
        metrics, counts = self._last
        out = nest_metrics(fetched(metrics))
        merge_nested(out, self._counters_of_result(counts, num_updates, {}))
        merge_nested(out, self.metrics_logger.compile())
        return ReducedMetrics(out)

    def _result_without_update(self) -> dict[str, Any]:
        """The result where ``policies_to_train`` leaves all modules out: counters alone."""
        return ReducedMetrics(self._counters_of_result({}, 0, {}))

    def placed_settings(self) -> Any:
        """`settings` on this learner's devices; placed once."""
        if self._settings_on_device is None:
            self._settings_on_device = place_replicated(self.settings(), self.devices)
        return self._settings_on_device

    @contextlib.contextmanager
    def _recovering(self, num_updates: int) -> Iterator[None]:
        """Around a program that donates the state: if it fails while it runs, go on from the last snapshot.

        Updates that are lost stay counted, so that ``weights_seq_no`` never goes back.

        Args:
            num_updates: Updates so far.

        Raises:
            RuntimeError: In place of the program's error, if the state was lost.
        """
        try:
            yield
        except BaseException as error:
            if self._snapshots.state is None or not is_lost(self._state):
                raise
            lost = self._snapshots.num_calls
            (state,) = self._snapshots.state
            # What the last update logged may have been lost as well.
            self._forget_updates()
            self.place(dataclasses.replace(state, num_updates=np.uint32(num_updates)))
            reraise(
                error,
                f"An update failed while it ran, and took the learner's state with it. The learner goes on from its "
                f"last snapshot; lost: this update and {lost} before it "
                f"(learner_snapshot_interval={self.config.learner_snapshot_interval}).",
            )

    def weights_in_place(
        self, params: Collection[str], rest: Collection[str], sharding: jax.sharding.NamedSharding
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Weights that a policy in this process acts with, parameters without a copy where they are on its device.

        Nothing changes these arrays: updates make new parameters.

        Args:
            params: Refs of the parameters.
            rest: Refs of the modules' other state.
            sharding: Place where the policy runs, one device.

        Returns:
            ``(params, rest)``, ``{ref: array}`` of that sharding.
        """
        # The other state is donated by the next update.
        others = {ref: self.state.rest[ref] for ref in rest}
        own = {ref: self.state.params[ref] for ref in params}
        if any(leaf.sharding != sharding for leaf in own.values()):
            return copy_on_one_device((own, others), sharding)
        return own, copy_on_one_device(others, sharding)

    # --------------------------------------------------------------------------------------------------------- counters

    def training_counts(
        self,
        plan: UpdatePlan,
        num_steps: int,
        num_updates: int,
        num_columns: Mapping[ModuleID, int] | None = None,
        learned: Mapping[MetricKey, Any] = MappingProxyType({}),
        steps: Mapping[ModuleID, int] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Counters for the result of updates that were made from outside: an iteration on the device.

        Args:
            plan: Plan of every update.
            num_steps: Steps of each column of a train batch.
            num_updates: Updates in this iteration.
            num_columns: Columns of the modules' batches; None for one of each.
            learned: Result of the last one: where rows are masked, the sizes of its batches.
            steps: Results of `count_updates`, added up over the iteration; {} where no rows are masked.

        Returns:
            ``{module_id or "__all_modules__": {name: number}}``. Steps trained are rows used in gradient steps: 138
            rows in two epochs of minibatches of 64 rows are 5 gradient steps and 320 rows.
        """
        each = trained_in_each(self.template, plan, num_steps, num_columns, self.should_module_be_updated)
        return self._counters_of_result(each | steps_trained.counted_by_program(learned), num_updates, steps)

    def count_updates(
        self,
        plan: UpdatePlan,
        num_steps: int,
        num_updates: int,
        num_columns: Mapping[ModuleID, int] | None,
        learned: Mapping[MetricKey, Any],
    ) -> dict[ModuleID, int]:
        """Steps that updates on the device, which are as in `training_counts`, have trained modules on.

        {} where no rows are masked: then sizes say it. Else the program says it in `learned`, and it is taken note of.
        """
        counted = steps_trained.counted_by_program(learned)
        if not counted:
            return {}
        each = trained_in_each(self.template, plan, num_steps, num_columns, self.should_module_be_updated)
        steps = {mid: own.num_steps * num_updates for mid, own in each.items()}
        steps |= {mid: own.num_steps for mid, own in counted.items()}
        self._steps_trained.add(steps, self.num_updates)
        return steps

    def _trained_on(
        self, plan: UpdatePlan, amounts: Mapping[ModuleID, Amount], batch: Batch
    ) -> dict[ModuleID, TrainedOn]:
        return trained_on(self.template, plan, amounts, batch, self.should_module_be_updated)

    def _counters_of_result(
        self, counts: Mapping[ModuleID, TrainedOn], num_updates: int, steps: Mapping[ModuleID, int]
    ) -> dict[str, Any]:
        numbers = self._steps_trained.results(counts, num_updates, steps, self.num_updates, self._parameter_counts())
        # Compiled connectors are a part of the update. Those in Python log their seconds.
        numbers[ALL_MODULES]["learner_connector"] = {CONNECTOR_PIPELINE_TIMER: 0.0}
        return numbers

    def _parameter_counts(self) -> dict[str, dict[str, int]]:
        """Numbers of parameters of every module, and of all of them together."""
        if self._num_parameters is None:
            self._num_parameters = self.pure.parameter_counts()
        return self._num_parameters

    # ------------------------------------------------------------------------------------------------------------ other

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``func(self, *args, **kwargs)``; for a learner that is an actor made by hand."""
        return func(self, *args, **kwargs)

    def shutdown(self) -> None:
        """Drop compiled programs and device buffers."""
        self._compiled.clear()
        self._forget_updates()
        self._state = None
        self._snapshots.forget()
        self._is_built = False
