"""The update of a Learner as pure functions: connector pipeline, minibatch loop, gradient step."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.minibatches import (
    PackedRows,
    WholeRows,
    epoch_keys,
    minibatch_index,
    minibatch_index_within,
    shard_rows,
)
from jaxrl_stack.core.learner.optimizers import ParamDict, as_vector
from jaxrl_stack.core.learner.traced_metrics import (
    RunningReduction,
    TracedMetrics,
    before_any,
    combined,
    in_slots,
    split_by_reduction,
)
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.row_independence import can_be_split
from jaxrl_stack.ops import permutation, reductions
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.devices import Device
from jaxrl_stack.utils.live_inputs import traced_once
from jaxrl_stack.utils.traced_config import TracedConfigView

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

from jaxrl_stack.core.learner.learner_base import LR_KEY, MetricKey, ModuleID
from jaxrl_stack.core.learner.loss_hooks import LinearizedLosses, LossHooks, Trace


class TracedUpdate(LossHooks):
    """What of a `Learner` runs inside its compiled programs.

    `pure_update` is the computation of one update, the same on both drivers: a sampled block through the learner
    connector pipeline (`pure_connect`), then gradient steps on minibatches (`pure_fit`), which call the hooks.
    """

    def settings(self) -> dict[str, Any]:
        """The traced settings as arrays, an argument of every compiled update.

        Returns:
            ``{"modules": {module_id: {name: float32 or schedule}}, "lr": {module_id: {optimizer: schedule}}}``.
        """
        return {
            "modules": {mid: self._config_for(mid).traced_values() for mid in self._template},
            "lr": {
                mid: {name: schedules.encode(opt.lr) for name, opt in by_name.items() if opt.lr is not None}
                for mid, by_name in self._optimizers.items()
            },
        }

    def current_values(
        self,
        settings: dict[str, Any],
        timesteps: jax.Array | np.ndarray,
        config_for: Callable[[ModuleID], AlgorithmConfig] | None = None,
    ) -> dict[str, Any]:
        """`settings` with every schedule replaced by its value at `timesteps` (uint32[2]).

        Settings that ``_static_settings`` takes out of the program's arguments are there as Python numbers; of the
        learner's config, unless there is a `config_for` the module.
        """
        values = schedules.values_at(settings, timesteps)
        for module_id, own in values["modules"].items():
            config = (config_for or self._config_for)(module_id)
            own |= {name: config.static_value(name) for name in config._static_settings}
        return values

    def _values_of_update(self, state: LearnerState, settings: dict[str, Any]) -> dict[str, Any]:
        """`current_values`, with learning rates times what the config's optax schedules make of the updates so far."""
        values = self.current_values(settings, state.timesteps)
        factors = self.config._torch_lr_scheduler_classes
        if not factors:
            return values
        rates, num_updates = {}, state.num_updates.astype(jnp.int32)
        for module_id, by_name in values["lr"].items():
            own = factors.get(module_id, ()) if isinstance(factors, Mapping) else factors
            factor = functools.reduce(lambda product, schedule: product * schedule(num_updates), own, jnp.float32(1.0))
            rates[module_id] = {name: rate * factor for name, rate in by_name.items()}
        return {**values, "lr": rates}

    def pure_update(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        settings: dict[str, Any],
        timesteps: jax.Array,
        *,
        plan: UpdatePlan,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array]]:
        """One whole update as a pure function: clipped rewards, connector pipeline, then `pure_fit`.

        Args:
            state: State before the update.
            batch: ``{module_id: {column: [T, B, ...]}}``, this device's part, as sampled.
            settings: From `settings`, as arrays.
            timesteps: uint32[2], lifetime env steps including this batch.
            plan: Epochs, minibatches, shards.
            axis_name: Name of the device axis, or None.

        Returns:
            ``(new state, {(module_id, name): float32})``.
        """
        batch = self.with_clipped_rewards(batch)
        state, batch = self.pure_connect(state, batch, settings, timesteps, axis_name=axis_name)
        return self.pure_fit(state, batch, settings, timesteps, plan=plan, axis_name=axis_name)

    def with_clipped_rewards(self, batch: dict[ModuleID, dict[str, Any]]) -> dict[ModuleID, dict[str, Any]]:
        """A sampled batch with the rewards that ``clip_rewards`` leaves of the environment's.

        Rows that were drawn from replay have sums of rewards: each of these was clipped when they were drawn.
        """
        bound = self.config.clip_rewards
        if bound is None or bound is False:
            return batch
        return {
            mid: {**columns, Columns.REWARDS: clipped_rewards(columns[Columns.REWARDS], bound)}
            for mid, columns in batch.items()
        }

    def pure_connect(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        settings: dict[str, Any],
        timesteps: jax.Array | np.ndarray,
        *,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[ModuleID, dict[str, Any]]]:
        """Send a sampled batch through the learner connector pipeline (advantages, custom connectors)."""
        rest = state.rest
        if self._pure.stream_refs:
            # Stochastic layers draw other numbers than in the last update, and than in the gradient steps.
            rest = self._pure.reseed(rest, self._device_key(state, 0, axis_name))
        context = self._pure_connector.make_context(
            params=state.params,
            rest=rest,
            key=self._device_key(state, 1, axis_name),
            settings=self.current_values(settings, state.timesteps)["modules"],
            step=timesteps,
            pure=self._pure,
            explore=False,
            axis_name=axis_name,
        )
        connector, batch = self._pure_connector.apply(state.connector, batch, context)
        return dataclasses.replace(state, connector=self._pure_connector.merge(connector, axis_name)), batch

    def pure_fit(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        settings: dict[str, Any],
        timesteps: jax.Array,
        *,
        plan: UpdatePlan,
        axis_name: str | None,
        row_counts: RowCounts | None = None,
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array]]:
        """The minibatch loop over a batch that is ready for the loss; arguments as in `pure_update`.

        Args:
            row_counts: How many rows there really are, for a batch that is padded. None: all of them are real.
        """
        values = self._values_of_update(state, settings)
        state, rest, batch, hooks = self._started(state, batch, values, axis_name)
        local_shards, size = plan.num_shards // plan.num_devices, plan.rows_per_shard_and_step
        shards_of = {mid: shard_rows(columns, local_shards) for mid, columns in batch.items()}
        sizes = {mid: size or jax.tree.leaves(columns)[0].shape[1] for mid, columns in shards_of.items()}
        microbatches = self._microbatches_per_minibatch(sizes, local_shards)
        rows_of_loss = {mid: local_shards * own // microbatches for mid, own in sizes.items()}
        losses_of, read = self._losses_traced_once(hooks, state, rest, batch, rows_of_loss)
        rows = {mid: PackedRows(columns, read[mid]) for mid, columns in shards_of.items()}
        shuffles = plan.shuffle and size is not None and (plan.num_epochs > 1 or plan.num_total_minibatches > 0)
        seed: Any = None
        shards: Any = None
        if shuffles:
            seed = permutation.round_keys(self._update_key(state, 3))
            first = jnp.uint32(0) if axis_name is None else jax.lax.axis_index(axis_name).astype(jnp.uint32)
            shards = first * jnp.uint32(local_shards) + jnp.arange(local_shards, dtype=jnp.uint32)
        if row_counts is None:
            steps = max(plan.num_steps(r.num_rows) for r in rows.values())
            keys: dict[ModuleID, Any] = dict.fromkeys(rows)
            if shuffles:
                keys = {mid: epoch_keys(seed, -(-steps * sizes[mid] // r.num_rows), shards) for mid, r in rows.items()}

        # A few parameters go through the loop as one vector: XLA then works on it as a whole.
        start, unpack = as_vector(state.params)

        def rows_of_step(mid, step):
            if row_counts is None:
                return minibatch_index(step, sizes[mid], rows[mid].num_rows, keys[mid])
            return minibatch_index_within(step, sizes[mid], row_counts.domains[mid], seed, shards)

        def body(carry, step):
            params, rest, optimizers = carry
            index = {}
            for mid in rows:
                own = jnp.broadcast_to(rows_of_step(mid, step), (local_shards, sizes[mid]))
                index[mid] = jnp.moveaxis(own.reshape(local_shards, microbatches, -1), 1, 0)
            params, rest, optimizers, logged = self._gradient_step(
                hooks, losses_of, unpack(params), rest, optimizers, rows, index
            )
            vector, back = reductions.ravel(logged.collect())
            unravel.append(back)
            return (as_vector(params)[0], rest, optimizers), vector

        unravel: list[Callable[[jax.Array], Any]] = []
        carry = (start, rest, state.optimizers)
        if row_counts is None:
            carry, history = jax.lax.scan(body, carry, jnp.arange(steps, dtype=jnp.uint32))
        else:
            carry, history = _scan_while(body, carry, row_counts.num_steps, unravel)
        params, rest, optimizers = carry
        params = unpack(params)
        history = jax.vmap(unravel[-1])(history)
        metrics = TracedMetrics.reduce_history(history, axis_name, are_averaged=self._loss_is_linear())
        state = self._ended(state, (params, rest, optimizers), metrics, values, timesteps, axis_name)
        return state, metrics

    def pure_step(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        settings: dict[str, Any],
        timesteps: jax.Array,
        *,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array], dict[MetricKey, jax.Array]]:
        """An update that is a single gradient step on all rows: what off-policy algorithms make of a drawn batch.

        Args:
            state: State before the update.
            batch: ``{module_id: {column: [N, ...]}}``, this device's part. The learner connector pipeline sees it as
                one time step of N environments, ``[1, N, ...]``.
            settings: From `settings`, as arrays.
            timesteps: uint32[2], lifetime env steps.
            axis_name: Name of the device axis, or None.

        Returns:
            ``(new state, {(module_id, name): float32}, {(module_id, name): float32 [N]})``; the last one is what the
            loss logged with ``reduce="item_series"``.
        """
        if len(self._pure_connector):
            rows = jax.tree.map(lambda x: x[None], batch)
            state, rows = self.pure_connect(state, rows, settings, timesteps, axis_name=axis_name)
            batch = jax.tree.map(lambda x: x[0], rows)
        values = self._values_of_update(state, settings)
        state, rest, batch, hooks = self._started(state, batch, values, axis_name)
        whole = {mid: WholeRows(columns) for mid, columns in batch.items()}
        params, rest, optimizers, logged = self._gradient_step(
            hooks, self._losses_of(hooks), state.params, rest, state.optimizers, whole, dict.fromkeys(whole)
        )
        history = jax.tree.map(lambda x: x[None], logged.collect())
        metrics = TracedMetrics.reduce_history(history, axis_name, are_averaged=self._loss_is_linear())
        state = self._ended(state, (params, rest, optimizers), metrics, values, timesteps, axis_name)
        return state, metrics, logged.rows

    def _started(
        self, state: LearnerState, batch: dict[ModuleID, dict[str, Any]], values: dict[str, Any], axis_name: str | None
    ) -> tuple[LearnerState, dict[str, jax.Array], dict[ModuleID, dict[str, Any]], Callable[..., Trace]]:
        """What comes before the gradient steps of an update.

        Args:
            state: State before the update.
            batch: ``{module_id: columns}``.
            values: What `current_values` returned.
            axis_name: Name of the device axis, or None.

        Returns:
            ``(state, other state of the modules, batch of the modules to update, hooks)``; ``hooks(metrics, params,
            optimizers)`` makes the `Trace` of a step.
        """
        with self._in_pure_hook("pre_update"):
            state = self.pre_update(state, batch)
        trained = {mid for mid in self._template if self.should_module_be_updated(mid, batch)}
        batch = {mid: columns for mid, columns in batch.items() if mid in trained}
        if not batch:
            raise ValueError(
                f"policies_to_train={self._should_update!r} leaves no module of this batch to update. Name at least "
                f"one of {list(self._template)}."
            )
        views = {
            mid: TracedConfigView(self._config_for(mid), own, values["modules"])
            for mid, own in values["modules"].items()
        }
        # Stochastic layers draw other numbers on every device and in every update; their streams in `state` stay.
        rest = self._pure.reseed(state.rest, self._device_key(state, 2, axis_name))
        hooks = functools.partial(
            Trace,
            module=self._template,
            configs=views,
            learning_rates=values["lr"],
            extra=state.extra,
            axis_name=axis_name,
            trained_refs=self._trained_refs(trained, batch),
        )
        return state, rest, batch, hooks

    def _ended(
        self,
        state: LearnerState,
        changed: tuple[ParamDict, dict[str, jax.Array], Any],
        metrics: dict[MetricKey, jax.Array],
        values: dict[str, Any],
        timesteps: jax.Array,
        axis_name: str | None,
    ) -> LearnerState:
        """The state after an update.

        Args:
            state: What `_started` returned.
            changed: ``(params, rest, optimizer states)`` after the last gradient step.
            metrics: Learning rates and what `post_update` adds are put into it.
            values: What `current_values` returned.
            timesteps: uint32[2], lifetime env steps.
            axis_name: Name of the device axis, or None.
        """
        params, rest, optimizers = changed
        for mid, by_name in values["lr"].items():
            for name, lr in by_name.items():
                metrics[(mid, f"{name}_{LR_KEY}")] = lr
        # What follows the parameters alone is the same on all devices.
        kept = self._pure.stream_refs | self._pure.target_refs
        floats = {
            ref: leaf for ref, leaf in rest.items() if ref not in kept and jnp.issubdtype(leaf.dtype, jnp.floating)
        }
        rest = {**rest, **reductions.pmean_flat(floats, axis_name)}
        state = dataclasses.replace(
            state,
            params=params,
            rest={ref: state.rest[ref] if ref in self._pure.stream_refs else rest[ref] for ref in rest},
            optimizers=optimizers,
            timesteps=timesteps,
            num_updates=state.num_updates + jnp.uint32(1),
        )
        with self._in_pure_hook("post_update"):
            return self.post_update(state, metrics=metrics, settings=values["modules"])

    def _trained_refs(self, trained: set[ModuleID], batch: Mapping[ModuleID, Any]) -> tuple[str, ...]:
        """The parameters that an update from this batch changes: those of every optimizer that a module of the batch
        has or shares, without modules that ``policies_to_train`` leaves out. A gradient of 0 would not do for the
        others: momentum and weight decay move them all the same."""
        reached = {ref for mid in batch for ref in self._pure.refs_of(self._template[mid])}
        return tuple(
            ref
            for mid, by_name in self._optimizers.items()
            if mid == ALL_MODULES or mid in trained
            for optimizer in by_name.values()
            if reached.intersection(optimizer.refs)
            for ref in optimizer.refs
        )

    def _update_key(self, state: LearnerState, purpose: int) -> jax.Array:
        """Key of one purpose within one update, the same on all devices."""
        return jax.random.fold_in(state.key, state.num_updates * jnp.uint32(4) + jnp.uint32(purpose))

    def _device_key(self, state: LearnerState, purpose: int, axis_name: str | None) -> jax.Array:
        """Key of one purpose within one update on one device; without an axis that of the first one."""
        device = 0 if axis_name is None else jax.lax.axis_index(axis_name)
        return jax.random.fold_in(self._update_key(state, purpose), device)

    def _microbatches_per_minibatch(self, sizes: dict[ModuleID, int], local_shards: int) -> int:
        """Over how many microbatches of each minibatch the gradients are added up."""
        target = gradient_rows_per_microbatch(self.devices)
        if target is None or not self._loss_is_linear() or not all(can_be_split(self._template[mid]) for mid in sizes):
            return 1
        wanted = max(-(-size * local_shards // target) for size in sizes.values())
        for microbatches in range(wanted, 2 * wanted + 1):
            if all(size % microbatches == 0 for size in sizes.values()):
                return microbatches
        return 1

    def _loss_is_linear(self) -> bool:
        """Whether the class that says so is also the last one to touch the losses."""
        if any(isinstance(module, SelfSupervisedLossAPI) for module in self._template.values()):
            return False
        for cls in type(self).__mro__:
            if "loss_is_linear_in_means" in vars(cls):
                return cls.loss_is_linear_in_means
            if "compute_loss_for_module" in vars(cls) or "compute_losses" in vars(cls):
                return False
        return False

    def _gradient_step(self, hooks, losses_of, params, rest, optimizers, rows, index):
        """One gradient step.

        Args:
            hooks: ``(metrics, params, optimizers) -> Trace``.
            losses_of: What `_losses_of` returned, or its replay.
            params: Parameters before the step.
            rest: Other state of the modules.
            optimizers: Optimizer states.
            rows: ``{module_id: PackedRows}``, or ``{module_id: WholeRows}``.
            index: ``{module_id: uint32 [microbatches, S, m / microbatches]}``, the rows of this minibatch; None for
                all rows, at once.

        Returns:
            ``(params, rest, optimizers, TracedMetrics)`` after the step.
        """
        trace = hooks(metrics=TracedMetrics(), params=params, optimizers=optimizers)
        whole = next(iter(index.values())) is None
        microbatches = 1 if whole else next(iter(index.values())).shape[0]
        with self._tracing(trace):
            if self._loss_is_linear():
                trace.row_counts = self._row_counts(rows, index, trace.axis_name)

                unravel: list[Callable[[jax.Array], Any]] = []

                def one_microbatch(rest, microbatch):
                    losses, linearized, (rest, metrics, per_row) = _linearized_losses(
                        losses_of, trace, rest, rows, microbatch
                    )
                    averaged, others = split_by_reduction(metrics)
                    return rest, (losses, self._gradients_of(losses, linearized), averaged), others, per_row

                def one_sum(rest, microbatch):
                    rest, (losses, gradients, averaged), others, _ = one_microbatch(rest, microbatch)
                    vector, back = reductions.ravel((losses, averaged))
                    unravel.append(back)
                    return rest, (as_vector(gradients)[0], vector), others

                first = {mid: None if whole else i[0] for mid, i in index.items()}
                if microbatches == 1:
                    rest, total, others, per_row = one_microbatch(rest, first)
                else:
                    _, sums, others = jax.eval_shape(one_sum, rest, first)

                    def add(carry, microbatch):
                        rest, total, others = carry
                        rest, sums, own = one_sum(rest, microbatch)
                        return (rest, jax.tree.map(jnp.add, total, sums), combined(others, own)), None

                    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sums)
                    (rest, (gradients, vector), others), _ = jax.lax.scan(add, (rest, zeros, before_any(others)), index)
                    (losses, averaged), per_row = unravel[-1](vector), {}
                    _, unpack = as_vector({ref: params[ref] for ref in trace.trained_refs})
                    total = losses, unpack(gradients), averaged
                (losses, trace.gradients, averaged), statistics = reductions.means_and_sums(
                    total, in_slots(others, trace.axis_name), trace.axis_name
                )
                metrics = {**averaged, **others, **statistics}
            else:
                microbatch = {mid: None if whole else i[0] for mid, i in index.items()}
                losses, trace.linearized, (rest, metrics, per_row) = _linearized_losses(
                    losses_of, trace, rest, rows, microbatch
                )
            trace.losses = losses
            trace.metrics = TracedMetrics.of(metrics, per_row)
            # The module that the losses saw belongs to their differentiation and must not be read after it.
            trace.module = self._pure.bind(params, rest)
            for mid, loss in losses.items():
                total = sum(loss.values()) if isinstance(loss, dict) else loss
                trace.metrics.log_value((mid, self.TOTAL_LOSS_KEY), total, window=1)
            gradients = self.compute_gradients(losses)
            if self.config.check_nans:
                self._log_finiteness(losses, gradients)
            self.apply_gradients(self.postprocess_gradients(gradients))
            return trace.params, rest, trace.optimizers, trace.metrics

    def _losses_of(self, hooks: Callable[..., Trace]) -> Callable[..., Any]:
        """``(trained, params, rest, batch, row_counts) -> (losses, (rest, metrics, metrics per row) after them)``.

        Of ``batch``, ``{module_id: {column: [m, ...]}}``; ``trained`` are those of the ``params`` that change.
        """

        def losses_of(trained, params, rest, batch, row_counts):
            trace = hooks(metrics=TracedMetrics(), params=params, optimizers={})
            trace.row_counts = row_counts
            for mid, columns in batch.items():
                if Columns.LOSS_MASK not in columns:
                    num_rows = jax.tree.leaves(columns)[0].shape[0]
                    batch = {**batch, mid: {**columns, Columns.LOSS_MASK: jnp.ones((num_rows,), bool)}}
                    trace.full_masks.append(batch[mid][Columns.LOSS_MASK])
                trace.masks[mid] = batch[mid][Columns.LOSS_MASK]
            trace.module = self._pure.bind({**params, **trained}, rest)
            fwd_out: dict[ModuleID, Any] = {}
            with self._tracing(trace):
                try:
                    for mid in batch:
                        fwd_out[mid] = trace.module[mid].forward_train(batch[mid])
                    losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
                except KeyError as error:
                    columns, outputs = ({mid: sorted(own) for mid, own in x.items()} for x in (batch, fwd_out))
                    raise ValueError(
                        f"The loss of {type(self).__name__}, or a forward_train(), looks up {error}, which is not "
                        f"there: the batch has the columns {columns}, and forward_train() returned {outputs}. Add a "
                        f"learner connector that makes it, or look up one of these."
                    ) from error
            self._check_losses(losses)
            _, rest = self._pure.unbind(trace.module)
            return losses, (rest, trace.metrics.collect(), trace.metrics.rows)

        return losses_of

    def _losses_traced_once(
        self,
        hooks: Callable[..., Trace],
        state: LearnerState,
        rest: dict[str, jax.Array],
        batch: dict[ModuleID, dict[str, Any]],
        num_rows: dict[ModuleID, int],
    ) -> tuple[Callable[..., Any], dict[ModuleID, frozenset[str]]]:
        """`_losses_of`, traced with `num_rows` of each module's ``[T, B, ...]``, and the columns that it depends on;
        the others are not carried through the shuffle."""
        losses_of = self._losses_of(hooks)

        def minibatch(x, n):
            return jax.ShapeDtypeStruct((n, *x.shape[2:]), x.dtype)

        rows = {mid: jax.tree.map(lambda x, n=num_rows[mid]: minibatch(x, n), own) for mid, own in batch.items()}
        trace = hooks(metrics=TracedMetrics(), params=state.params, optimizers={})
        trained = {ref: state.params[ref] for ref in trace.trained_refs}
        counts = dict.fromkeys(rows, jnp.float32(0.0)) if self._loss_is_linear() else None
        again, (_, _, _, matters, _) = traced_once(losses_of, trained, state.params, rest, rows, counts)
        read = {
            mid: frozenset(c for c, own in columns.items() if any(jax.tree.leaves(own)))
            for mid, columns in matters.items()
        }
        # Run one operation after the other, what the hooks look at has values.
        return (losses_of if self.config.disable_jit else again), read

    def _row_counts(self, rows, index, axis_name) -> dict[ModuleID, jax.Array]:
        """Valid rows of the minibatch per device, on average over the devices."""
        counts = {}
        for mid, packed in rows.items():
            own = index[mid]
            size = jax.tree.leaves(packed.columns)[0].shape[0] if own is None else own.size
            if Columns.LOSS_MASK in packed.columns:
                if own is not None:
                    own = jnp.moveaxis(own, 0, 1).reshape(own.shape[1], -1)
                mask = packed.take_column(Columns.LOSS_MASK, own)
                count = reductions.pmean_flat(jnp.sum(mask).astype(jnp.float32), axis_name)
                # No valid row anywhere: the sums are 0, and so are the means.
                counts[mid] = jnp.where(count > 0.0, count, 1.0)
            else:
                counts[mid] = jnp.float32(size)
        return counts


def _linearized_losses(losses_of, trace, rest, rows, index):
    """Losses of the rows at `index`, how they change with the parameters, and what `losses_of` returns with them."""
    batch = {mid: packed.take(index[mid]) for mid, packed in rows.items()}
    trained = {ref: trace.params[ref] for ref in trace.trained_refs}

    def losses(trained):
        return losses_of(trained, trace.params, rest, batch, trace.row_counts)

    values, function, aux = jax.linearize(losses, trained, has_aux=True)
    return values, LinearizedLosses(function, trained), aux


def gradient_rows_per_microbatch(devices: Sequence[Device]) -> int | None:
    """How many rows of a minibatch to differentiate at a time: what fits a CPU core's cache.

    Measured on 2 cores with 64x64 networks: gradients of 16,384 rows at once take 1.25 times, of 65,536 rows 1.75
    times as long as added up over microbatches. One CPU device spreads a matrix product over all cores and needs larger
    microbatches than one device per core. Accelerators take the whole minibatch.
    """
    if devices[0].platform != "cpu":
        return None
    return 4096 if len(devices) == 1 else 1024


def _scan_while(
    body: Callable[[Any, jax.Array], tuple[Any, jax.Array]],
    carry: Any,
    num_steps: jax.Array,
    unravel: Sequence[Callable[[Any], Any]],
) -> tuple[Any, Any]:
    """``lax.scan`` over minibatches whose number is only known when the program runs.

    Args:
        body: ``(carry, step) -> (carry, vector of metrics)``; appends to `unravel` when it is traced.
        carry: Before the first minibatch.
        num_steps: uint32 scalar, at least 1.
        unravel: Its last element makes the metrics out of their vector.

    Returns:
        ``(carry, history [1, n])``: the vector of a single minibatch that stands for all of them.
    """
    vector = jax.eval_shape(body, carry, jnp.uint32(0))[1]
    reduction = RunningReduction(vector.shape[0], unravel[-1])

    def one_step(state):
        step, carry, reduced = state
        carry, vector = body(carry, step)
        return step + jnp.uint32(1), carry, reduction.add(reduced, vector)

    _, carry, reduced = jax.lax.while_loop(
        lambda state: state[0] < num_steps, one_step, (jnp.uint32(0), carry, reduction.initial())
    )
    return carry, reduction.result(reduced, num_steps)[None]
