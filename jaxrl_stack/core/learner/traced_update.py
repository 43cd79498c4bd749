"""The compiled part of a Learner: hooks of the loss and the optimizers, and the pure functions that call them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    columns_that_matter,
    epoch_keys,
    minibatch_index,
    minibatch_index_within,
    shard_rows,
)
from jaxrl_stack.core.learner.optimizers import ParamDict, RegisteredOptimizer, as_vector, clip_gradients
from jaxrl_stack.core.learner.traced_metrics import (
    REMAINDER,
    RunningReduction,
    TracedMetrics,
    before_any,
    combined,
    split_by_reduction,
)
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.core.rl_module.row_independence import can_be_split
from jaxrl_stack.ops import permutation, reductions, running_statistics
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.ops.running_statistics import RunningStatistics
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.devices import Device, host_view
from jaxrl_stack.utils.traced_config import TracedConfigView, explain_traced_branches

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

ModuleID = str
MetricKey = tuple[str, ...]

NOT_FINITE = "not_finite/"
"""Prefix of the flags that ``check_nans`` adds to the metrics of an update."""


@dataclasses.dataclass
class Trace:
    """What the hooks may touch while one minibatch step is traced."""

    module: MultiRLModule
    configs: dict[ModuleID, TracedConfigView]
    learning_rates: dict[ModuleID, dict[str, jax.Array]]
    extra: dict[str, Any]
    metrics: TracedMetrics
    axis_name: str | None
    params: ParamDict
    optimizers: dict[ModuleID, dict[str, Any]]
    trained_refs: tuple[str, ...] = ()
    full_masks: list[jax.Array] = dataclasses.field(default_factory=list)
    row_counts: dict[ModuleID, jax.Array] | None = None
    masks: dict[ModuleID, jax.Array] = dataclasses.field(default_factory=dict)
    linearized: LinearizedLosses | None = None
    losses: dict[ModuleID, Any] | None = None
    gradients: ParamDict | None = None


@dataclasses.dataclass(frozen=True)
class LinearizedLosses:
    """How the losses of a minibatch change with the parameters: one trace, from which every gradient follows.

    Attributes:
        function: ``{ref: tangent} -> {module_id: tangent of the loss, or {optimizer: tangent}}``; linear.
        params: The parameters that the losses were differentiated for.
    """

    function: Callable[[ParamDict], dict[ModuleID, Any]]
    params: ParamDict

    def gradients(self, of: Callable[[dict[ModuleID, Any]], Any], refs: Iterable[str]) -> ParamDict:
        """Gradients of one number made of the losses, for some parameters alone.

        What leads to other losses is not computed; nor is, in a compiled program, what leads to other parameters.

        Args:
            of: Picks (or adds up) from the losses; linear.
            refs: Those parameters.
        """
        transposed = jax.linear_transpose(lambda tangents: of(self.function(tangents)), self.params)
        (gradients,) = transposed(jnp.float32(1.0))
        return {ref: gradients[ref] for ref in refs}


class TracedUpdate:
    """What of a `Learner` runs inside its compiled programs.

    `pure_update` is the computation of one update, the same on both drivers: a sampled block through the learner
    connector pipeline (`pure_connect`), then gradient steps on minibatches (`pure_fit`). The hooks in front of it are
    called while it is traced: they are there to be overridden, and must be pure JAX.
    """

    loss_is_linear_in_means = False
    """Whether every loss is a sum of constants times `masked_means` of the batch, and every metric, too, unless it is
    logged with ``reduce="min"``, ``"max"`` or ``"sum"``.

    A class that says so lets the update add up gradients over pieces of a minibatch that fit the cache, which gives
    the same gradients in less time, and average everything over devices at once. Whoever overrides the loss below such
    a class has to say it again.
    """

    # What a Learner brings along.
    config: AlgorithmConfig
    devices: list[Device]
    _template: MultiRLModule
    _pure: PureModule
    _pure_connector: Any
    _optimizers: dict[ModuleID, dict[str, RegisteredOptimizer]]
    _trace: Trace | None
    _pure_hook: str | None
    _should_update: Any

    if TYPE_CHECKING:

        @property
        def module(self) -> MultiRLModule: ...

        @property
        def metrics(self) -> MetricsLogger | TracedMetrics: ...

        @property
        def state(self) -> LearnerState: ...

        def _config_for(self, module_id: ModuleID) -> AlgorithmConfig: ...

        def _check_registered_optimizer(self, module_id: ModuleID, optimizer_name: str) -> None: ...

        def get_optimizers_for_module(self, module_id: ModuleID = ...) -> list[tuple[str, RegisteredOptimizer]]: ...

        def filter_param_dict_for_optimizer(
            self, param_dict: ParamDict, optimizer: RegisteredOptimizer
        ) -> ParamDict: ...

        def should_module_be_updated(self, module_id: ModuleID, multi_agent_batch: Any = None) -> bool: ...

    # ---------------------------------------------------------------------------------------------------------- hooks

    @property
    def extra(self) -> dict[str, Any]:
        """While a hook is traced: the algorithm's own arrays (`initial_extra_state`), as of this update."""
        if self._trace is not None:
            return self._trace.extra
        return jax.device_get(host_view(self.state.extra))

    def masked_mean(self, x: jax.Array, batch: Mapping[str, Any]) -> jax.Array:
        """Mean over the rows of `batch` that count, over all devices. The mean to use in losses.

        Args:
            x: float32 ``[N, ...]``, one value per row.
            batch: The module's minibatch; its ``LOSS_MASK`` says which rows count.
        """
        return self.masked_means({"x": x}, batch)["x"]

    def masked_means(self, values: Mapping[str, jax.Array], batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Several means at once: the same as `masked_mean` of each, with one reduction over the devices.

        For losses of different optimizers call `masked_mean` for each: what shares a reduction is differentiated
        together, also where an optimizer wants no part of it.
        """
        mask = batch[Columns.LOSS_MASK]
        trace = self._trace
        if trace is None:
            return reductions.masked_means(values, mask)
        full = any(mask is known for known in trace.full_masks)
        if trace.row_counts is None:
            return reductions.masked_means(values, None if full else mask, trace.axis_name)
        # This piece's share of the means: shares add up over pieces here, and average over devices later.
        count = next(trace.row_counts[mid] for mid, known in trace.masks.items() if known is mask)
        return {name: jnp.sum(x if full else jnp.where(mask, x, 0.0)) / count for name, x in values.items()}

    def masked_statistics(self, x: jax.Array, batch: Mapping[str, Any]) -> RunningStatistics:
        """Mean and variance of the rows of this batch that count, on this device: for `TracedMetrics.log_statistics`.

        In two passes: a difference of two means loses all digits when the mean is large against the spread.

        Args:
            x: float32 ``[N, ...]``; no gradient flows into it.
            batch: As for `masked_mean`.
        """
        mask = batch[Columns.LOSS_MASK]
        full = self._trace is not None and any(mask is known for known in self._trace.full_masks)
        return running_statistics.of_batch(jax.lax.stop_gradient(x), None if full else mask)

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        """The loss of one module. Override this.

        Args:
            module_id: The module.
            config: Its config; settings that are traced (lr, clip_param, ...) read as the current arrays.
            batch: Its minibatch, ``{column: [N, ...]}``.
            fwd_out: What its ``forward_train`` returned.

        Returns:
            A float32 scalar; or ``(scalar, {metric: value})``; or ``{optimizer_name: scalar}``, each differentiated
            for the parameters of that optimizer alone. Take means with `masked_mean`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement compute_loss_for_module(*, module_id, config, batch, fwd_out)."
        )

    def compute_losses(self, *, fwd_out: dict[ModuleID, Any], batch: dict[ModuleID, Any]) -> dict[ModuleID, Any]:
        """The losses of all modules in the batch, ``{module_id: scalar or {optimizer_name: scalar}}``."""
        assert self._trace is not None
        losses = {}
        for module_id in fwd_out:
            config = self._trace.configs[module_id]
            module = self.module[module_id]
            with explain_traced_branches(config):
                if isinstance(module, SelfSupervisedLossAPI):
                    loss = module.compute_self_supervised_loss(
                        learner=self,
                        module_id=module_id,
                        config=config,
                        batch=batch[module_id],
                        fwd_out=fwd_out[module_id],
                    )
                else:
                    loss = self.compute_loss_for_module(
                        module_id=module_id, config=config, batch=batch[module_id], fwd_out=fwd_out[module_id]
                    )
            if isinstance(loss, tuple):
                if len(loss) != 2 or not isinstance(loss[1], Mapping):
                    raise ValueError(
                        f"The loss of module {module_id!r} in {type(self).__name__} is a tuple of {len(loss)}: return "
                        f"the loss, or the pair (loss, {{metric: value}})."
                    )
                loss, metrics = loss
                self.metrics.log_dict(metrics, key=module_id, window=1)
            losses[module_id] = loss
        return losses

    def compute_gradients(self, loss_per_module: dict[ModuleID, Any], **kwargs: Any) -> ParamDict:
        """Gradients of the losses, averaged over the devices.

        Args:
            loss_per_module: What `compute_losses` returned, unchanged: gradients are pulled back through that
                computation. To change the losses, override `compute_losses`.

        Returns:
            ``{ref: gradient}`` of the sum of all scalar losses; of its own loss for each optimizer that has one.
        """
        trace = self._trace
        assert trace is not None and trace.losses is not None
        same = jax.tree.structure(loss_per_module) == jax.tree.structure(trace.losses) and all(
            a is b for a, b in zip(jax.tree.leaves(loss_per_module), jax.tree.leaves(trace.losses), strict=True)
        )
        if not same:
            raise ValueError(
                "compute_gradients() got other losses than compute_losses() returned. Override compute_losses() (and "
                "call super) to change, scale or add losses."
            )
        if trace.gradients is not None:
            return dict(trace.gradients)
        assert trace.linearized is not None
        return reductions.pmean_flat(self._gradients_of(trace.losses, trace.linearized), trace.axis_name)

    def _gradients_of(self, losses: dict[ModuleID, Any], linearized: LinearizedLosses) -> ParamDict:
        """Gradients of the sum of all scalar losses, and of each optimizer's own loss for its parameters."""
        scalars = [mid for mid, loss in losses.items() if not isinstance(loss, dict)]
        if scalars:
            gradients = linearized.gradients(lambda found: sum(found[mid] for mid in scalars), linearized.params)
        else:
            gradients = {ref: jnp.zeros_like(leaf) for ref, leaf in linearized.params.items()}
        for module_id, loss in losses.items():
            if not isinstance(loss, dict):
                continue
            for name in loss:
                self._check_registered_optimizer(module_id, name)
                refs = [ref for ref in self._optimizers[module_id][name].refs if ref in linearized.params]
                own = linearized.gradients(lambda found, mid=module_id, name=name: found[mid][name], refs)
                for ref, gradient in own.items():
                    gradients[ref] = gradients[ref] + gradient if scalars else gradient
        return gradients

    def postprocess_gradients(self, gradients_dict: ParamDict) -> ParamDict:
        """Clip (and log) gradients; by default module by module, see `postprocess_gradients_for_module`."""
        out = dict(gradients_dict)
        for module_id in self._optimizers:
            refs = [ref for opt in self._optimizers[module_id].values() for ref in opt.refs]
            own = {ref: gradients_dict[ref] for ref in refs if ref in gradients_dict}
            if own:
                config = self._config_view(module_id)
                with explain_traced_branches(config):
                    out |= self.postprocess_gradients_for_module(
                        module_id=module_id, config=config, module_gradients_dict=own
                    )
        return out

    def postprocess_gradients_for_module(
        self, *, module_id: ModuleID, config: Any = None, module_gradients_dict: ParamDict
    ) -> ParamDict:
        """Clip the gradients of one module, optimizer by optimizer, by the config's ``grad_clip(_by)``.

        Args:
            module_id: The module.
            config: Its config view.
            module_gradients_dict: ``{ref: gradient}`` of that module.

        Returns:
            The gradients to apply, same keys.
        """
        config = config or self._config_view(module_id)
        out = dict(module_gradients_dict)
        for name, optimizer in self.get_optimizers_for_module(module_id):
            gradients = self.filter_param_dict_for_optimizer(module_gradients_dict, optimizer)
            clipped, norm = self._get_clip_function()(gradients, config.grad_clip, config.grad_clip_by)
            out |= clipped
            self.metrics.log_value((module_id, f"gradients_{name}_global_norm"), norm, window=1)
        return out

    def _get_clip_function(self) -> Callable[..., tuple[ParamDict, jax.Array]]:
        """``(gradients, grad_clip, grad_clip_by) -> (clipped gradients, global norm before clipping)``."""
        return clip_gradients

    def apply_gradients(self, gradients_dict: ParamDict) -> None:
        """Let every optimizer take one step. Non-finite gradient entries become finite numbers first (RLlib's way);
        with ``torch_skip_nan_gradients=True`` a step with any of them is skipped instead."""
        trace = self._trace
        assert trace is not None
        skip = self.config.torch_skip_nan_gradients
        for module_id, by_name in self._optimizers.items():
            for name, optimizer in by_name.items():
                gradients = self.filter_param_dict_for_optimizer(gradients_dict, optimizer)
                if not gradients:
                    continue
                finite = jnp.bool_(True)
                if skip:
                    finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(g)) for g in gradients.values()]))
                params = {ref: trace.params[ref] for ref in gradients}
                old_state = trace.optimizers[module_id][name]
                lr = trace.learning_rates[module_id].get(name)
                new_params, new_state = optimizer.step(lr, gradients, old_state, params)
                if skip:
                    new_params = jax.tree.map(lambda n, o, ok=finite: jnp.where(ok, n, o), new_params, params)
                    new_state = jax.tree.map(lambda n, o, ok=finite: jnp.where(ok, n, o), new_state, old_state)
                trace.params = {**trace.params, **new_params}
                trace.optimizers = {
                    **trace.optimizers,
                    module_id: {**trace.optimizers[module_id], name: new_state},
                }

    def pre_update(self, state: LearnerState, batch: dict[ModuleID, Any]) -> LearnerState:
        """Pure hook before the minibatch loop: the state to start from. Runs inside the compiled update."""
        return state

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[ModuleID, dict[str, Any]]
    ) -> LearnerState:
        """Pure hook behind the minibatch loop. Runs inside the compiled update.

        Args:
            state: State after the last gradient step.
            metrics: ``{(module_id, name): value}`` of the last minibatch.
            settings: ``{module_id: {name: current value}}`` of the traced settings.

        Returns:
            The state of the next update, e.g. with target networks or the KL coefficient moved on.
        """
        return state

    # ---------------------------------------------------------------------------------------------------- pure update

    def _config_view(self, module_id: ModuleID) -> TracedConfigView:
        assert self._trace is not None
        if module_id in self._trace.configs:
            return self._trace.configs[module_id]
        return next(iter(self._trace.configs.values()))

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

        Rows that were drawn from replay have sums of rewards: whoever drew them has clipped each of these.
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
        """Send a sampled batch through the learner connector pipeline (advantages, custom pieces)."""
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
        values = self.current_values(settings, state.timesteps)
        state, rest, batch, hooks = self._started(state, batch, values, axis_name)
        local_shards, size = plan.num_shards // plan.num_devices, plan.rows_per_shard_and_step
        shards_of = {mid: shard_rows(columns, local_shards) for mid, columns in batch.items()}
        sizes = {mid: size or jax.tree.leaves(columns)[0].shape[1] for mid, columns in shards_of.items()}
        pieces = self._pieces_per_minibatch(sizes, local_shards)
        rows_of_loss = {mid: local_shards * own // pieces for mid, own in sizes.items()}
        read = self._columns_that_are_read(hooks, state, rest, batch, rows_of_loss)
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
                index[mid] = jnp.moveaxis(own.reshape(local_shards, pieces, -1), 1, 0)
            params, rest, optimizers, logged = self._gradient_step(hooks, unpack(params), rest, optimizers, rows, index)
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
        values = self.current_values(settings, state.timesteps)
        state, rest, batch, hooks = self._started(state, batch, values, axis_name)
        whole = {mid: WholeRows(columns) for mid, columns in batch.items()}
        params, rest, optimizers, logged = self._gradient_step(
            hooks, state.params, rest, state.optimizers, whole, dict.fromkeys(whole)
        )
        history = jax.tree.map(lambda x: x[None], logged.collect())
        metrics = TracedMetrics.reduce_history(history, axis_name, are_averaged=self._loss_is_linear())
        state = self._ended(state, (params, rest, optimizers), metrics, values, timesteps, axis_name)
        return state, metrics, logged.rows

    def _started(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        values: dict[str, Any],
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[str, jax.Array], dict[ModuleID, dict[str, Any]], Callable[..., Trace]]:
        """What comes in front of the gradient steps of an update.

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
        """The state behind an update.

        Args:
            state: What `_started` returned.
            changed: ``(params, rest, optimizer states)`` behind the last gradient step.
            metrics: Learning rates and what `post_update` adds are put into it.
            values: What `current_values` returned.
            timesteps: uint32[2], lifetime env steps.
            axis_name: Name of the device axis, or None.
        """
        params, rest, optimizers = changed
        for mid, by_name in values["lr"].items():
            for name, lr in by_name.items():
                metrics[(mid, f"{name}_learning_rate")] = lr
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

    def _pieces_per_minibatch(self, sizes: dict[ModuleID, int], local_shards: int) -> int:
        """Over how many equal pieces of each minibatch the gradients are added up."""
        target = gradient_rows_per_piece(self.devices)
        if target is None or not self._loss_is_linear() or not all(can_be_split(self._template[mid]) for mid in sizes):
            return 1
        wanted = max(-(-size * local_shards // target) for size in sizes.values())
        for pieces in range(wanted, 2 * wanted + 1):
            if all(size % pieces == 0 for size in sizes.values()):
                return pieces
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

    def _gradient_step(self, hooks, params, rest, optimizers, rows, index):
        """One gradient step.

        Args:
            hooks: ``(metrics, params, optimizers) -> Trace``.
            params: Parameters before the step.
            rest: Other state of the modules.
            optimizers: Optimizer states.
            rows: ``{module_id: PackedRows}``, or ``{module_id: WholeRows}``.
            index: ``{module_id: uint32 [pieces, S, m / pieces]}``, the rows of this minibatch; None for all rows, at
                once.

        Returns:
            ``(params, rest, optimizers, TracedMetrics)`` after the step.
        """
        trace = hooks(metrics=TracedMetrics(), params=params, optimizers=optimizers)
        whole = next(iter(index.values())) is None
        pieces = 1 if whole else next(iter(index.values())).shape[0]
        with self._tracing(trace):
            if self._loss_is_linear():
                trace.row_counts = self._row_counts(rows, index, trace.axis_name)

                unravel: list[Callable[[jax.Array], Any]] = []

                def one_piece(rest, piece):
                    losses, linearized, (rest, metrics, per_row) = self._linearized_losses(
                        trace, params, rest, rows, piece
                    )
                    averaged, others = split_by_reduction(metrics)
                    return rest, (losses, self._gradients_of(losses, linearized), averaged), others, per_row

                def one_sum(rest, piece):
                    rest, (losses, gradients, averaged), others, _ = one_piece(rest, piece)
                    vector, back = reductions.ravel((losses, averaged))
                    unravel.append(back)
                    return rest, (as_vector(gradients)[0], vector), others

                first = {mid: None if whole else i[0] for mid, i in index.items()}
                if pieces == 1:
                    rest, total, others, per_row = one_piece(rest, first)
                else:
                    _, sums, others = jax.eval_shape(one_sum, rest, first)

                    def add(carry, piece):
                        rest, total, others = carry
                        rest, sums, own = one_sum(rest, piece)
                        return (rest, jax.tree.map(jnp.add, total, sums), combined(others, own)), None

                    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sums)
                    (rest, (gradients, vector), others), _ = jax.lax.scan(add, (rest, zeros, before_any(others)), index)
                    (losses, averaged), per_row = unravel[-1](vector), {}
                    _, unpack = as_vector({ref: params[ref] for ref in trace.trained_refs})
                    total = losses, unpack(gradients), averaged
                losses, trace.gradients, averaged = reductions.pmean_flat(total, trace.axis_name)
                metrics = {**averaged, **others}
            else:
                piece = {mid: None if whole else i[0] for mid, i in index.items()}
                losses, trace.linearized, (rest, metrics, per_row) = self._linearized_losses(
                    trace, params, rest, rows, piece
                )
            trace.losses = losses
            trace.metrics = TracedMetrics.of(metrics, per_row)
            # The module that the losses saw belongs to their differentiation and must not be read behind it.
            trace.module = self._pure.bind(params, rest)
            for mid, loss in losses.items():
                total = sum(loss.values()) if isinstance(loss, dict) else loss
                trace.metrics.log_value((mid, "total_loss"), total, window=1)
            gradients = self.compute_gradients(losses)
            if self.config.check_nans:
                self._log_finiteness(losses, gradients)
            self.apply_gradients(self.postprocess_gradients(gradients))
            return trace.params, rest, trace.optimizers, trace.metrics

    def _linearized_losses(self, trace, params, rest, rows, index):
        """Losses of the rows at `index`, how they change with the parameters, and ``(rest, metrics, metrics per
        row)``."""
        trace.full_masks, trace.masks = [], {}
        batch = {}
        for mid, packed in rows.items():
            columns = packed.take(index[mid])
            if Columns.LOSS_MASK not in columns:
                num_rows = jax.tree.leaves(columns)[0].shape[0]
                columns = {**columns, Columns.LOSS_MASK: jnp.ones((num_rows,), bool)}
                trace.full_masks.append(columns[Columns.LOSS_MASK])
            trace.masks[mid] = columns[Columns.LOSS_MASK]
            batch[mid] = columns

        def losses_of(trained):
            trace.metrics = TracedMetrics()
            trace.module = self._pure.bind({**params, **trained}, rest)
            fwd_out: dict[ModuleID, Any] = {}
            try:
                for mid in batch:
                    fwd_out[mid] = trace.module[mid].forward_train(batch[mid])
                losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
            except KeyError as error:
                columns, outputs = ({mid: sorted(own) for mid, own in x.items()} for x in (batch, fwd_out))
                raise ValueError(
                    f"The loss of {type(self).__name__}, or a forward_train(), looks up {error}, which is not there: "
                    f"the batch has the columns {columns}, and forward_train() returned {outputs}. Add a learner "
                    f"connector that makes it, or look up one of these."
                ) from error
            self._check_losses(losses)
            _, new_rest = self._pure.unbind(trace.module)
            return losses, (new_rest, trace.metrics.collect(), trace.metrics.rows)

        trained = {ref: params[ref] for ref in trace.trained_refs}
        losses, function, aux = jax.linearize(losses_of, trained, has_aux=True)
        return losses, LinearizedLosses(function, trained), aux

    def _check_losses(self, losses: Any) -> None:
        """Raises a ValueError if `compute_losses` returned anything but scalars by module id."""
        if not isinstance(losses, Mapping):
            raise ValueError(
                f"{type(self).__name__}.compute_losses() returned a {type(losses).__name__}: return a dict "
                f"{{module_id: loss}}."
            )
        for mid, loss in losses.items():
            name = f"The loss of module {mid!r} in {type(self).__name__}"
            for scalar in jax.tree.leaves(loss, is_leaf=lambda leaf: leaf is None):
                if not isinstance(scalar, jax.Array | np.ndarray | np.generic | float | int):
                    raise ValueError(f"{name} is {scalar!r}: return a float32 scalar.")
                if jnp.shape(scalar):
                    raise ValueError(
                        f"{name} has the shape {jnp.shape(scalar)}: return a scalar. Take means over the batch with "
                        f"self.masked_mean(x, batch)."
                    )
                if not jnp.issubdtype(jnp.result_type(scalar), jnp.floating):
                    raise ValueError(
                        f"{name} has the dtype {jnp.result_type(scalar)}, which has no gradient: return a float32 "
                        f"scalar."
                    )

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

    @contextlib.contextmanager
    def _tracing(self, trace: Trace) -> Iterator[None]:
        outer, self._trace = self._trace, trace
        try:
            yield
        finally:
            self._trace = outer

    @contextlib.contextmanager
    def _in_pure_hook(self, name: str) -> Iterator[None]:
        self._pure_hook = name
        try:
            yield
        finally:
            self._pure_hook = None

    def _columns_that_are_read(self, hooks, state, rest, batch, num_rows) -> dict[ModuleID, frozenset[str]]:
        """Which columns the forward passes and losses depend on; the others are not carried through the shuffle.

        A loss may use its number of rows, so that it is traced with the one that it gets: `num_rows` of each module.
        """

        def losses(batch):
            trace = hooks(metrics=TracedMetrics(), params=state.params, optimizers=state.optimizers)
            rows = {mid: WholeRows(columns) for mid, columns in batch.items()}
            with self._tracing(trace):
                losses, _, aux = self._linearized_losses(trace, state.params, rest, rows, dict.fromkeys(rows))
                return losses, aux

        def minibatch(x, n):
            return jax.ShapeDtypeStruct((n, *x.shape[2:]), x.dtype)

        return columns_that_matter(
            losses, {mid: jax.tree.map(lambda x, n=num_rows[mid]: minibatch(x, n), own) for mid, own in batch.items()}
        )

    def _log_finiteness(self, losses: dict[ModuleID, Any], gradients: ParamDict) -> None:
        """Flags for ``config.debugging(check_nans=True)``; read by `raise_if_not_finite`."""
        for mid, loss in losses.items():
            flags = {f"{NOT_FINITE}loss": jax.tree.reduce(jnp.logical_and, jax.tree.map(jnp.isfinite, loss))}
            for ref, gradient in gradients.items():
                if ref in self._pure.module_refs(mid):
                    flags[f"{NOT_FINITE}gradient of {ref}"] = jnp.all(jnp.isfinite(gradient))
            for name, is_finite in flags.items():
                self.metrics.log_value((mid, name), 1.0 - is_finite.astype(jnp.float32), reduce="max")

    def raise_if_not_finite(self, metrics: Mapping[MetricKey, Any], iteration: int | str) -> None:
        """Raise for the first tensor that was not finite, if ``check_nans`` is on.

        Raises:
            FloatingPointError: Naming the iteration, the module and the tensor.
        """
        found = [path for path, flag in metrics.items() if path[-1].startswith(NOT_FINITE) and flag > 0]
        if not found:
            return
        # A loss that is not finite spoils every gradient: it comes first.
        module_id, name = min(found, key=lambda path: path[-1] != f"{NOT_FINITE}loss")
        raise FloatingPointError(
            f"Non-finite {name.removeprefix(NOT_FINITE)} in module {module_id!r}, iteration {iteration}. Look at the "
            f"rewards and observations of the env, lower lr, or set grad_clip; debugging(disable_jit=True) runs the "
            f"same code step by step."
        )


def gradient_rows_per_piece(devices: Sequence[Device]) -> int | None:
    """How many rows of a minibatch to differentiate at a time: what fits a CPU core's cache.

    Measured on 2 cores with 64x64 networks: gradients of 16,384 rows at once take 1.25 times, of 65,536 rows 1.75
    times as long as added up over pieces. One CPU device spreads a matrix product over all cores and needs larger
    pieces than one device per core. Accelerators take the whole minibatch.
    """
    if devices[0].platform != "cpu":
        return None
    return 4096 if len(devices) == 1 else 1024


def nest_metrics(flat: Mapping[MetricKey, Any]) -> dict[str, Any]:
    """``{(module_id, name): value}`` as ``{module_id: {name: float}}``.

    Without the flags of ``check_nans``, and with remainders added to what they belong to.
    """
    out: dict[str, Any] = {}
    for path, value in flat.items():
        if path[-1].startswith(NOT_FINITE):
            continue
        level = out
        for part in path[:-1]:
            level = level.setdefault(part, {})
        name = path[-1].removeprefix(REMAINDER)
        level[name] = level.get(name, 0.0) + float(value)
    return out


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
