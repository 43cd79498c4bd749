"""The hooks of a Learner's loss and gradients, called while its update is traced."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner_base import LearnerBase, ModuleID
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.optimizers import ParamDict, clip_gradients
from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM, MetricKey, TracedMetrics
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.ops import reductions, running_statistics
from jaxrl_stack.ops.running_statistics import RunningStatistics
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.signatures import call_problem
from jaxrl_stack.utils.traced_config import TracedConfigView, explain_traced_branches


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


class LossHooks(LearnerBase):
    """From a minibatch to the parameters after it: losses, gradients, clipping, the optimizers' steps.

    These methods are there to be overridden. They are called while the update is traced and must be pure JAX.
    """

    loss_is_linear_in_means = False
    """Whether every loss is a sum of constants times `masked_means` of the batch, and every metric, too, unless it is
    logged with ``reduce="min"``, ``"max"`` or ``"sum"``.

    A class that says so lets the update add up gradients over microbatches that fit the cache, which gives
    the same gradients in less time, and average everything over devices at once. A subclass that overrides the loss
    has to say it again.
    """

    @property
    def extra(self) -> dict[str, Any]:
        """While a hook is traced: the algorithm's own arrays (`initial_extra_state`), as of this update."""
        if self._tracing.trace is not None:
            return self._tracing.trace.extra
        return jax.device_get(host_view(self.state.extra))

    def may_be_masked(self, batch: Mapping[str, Any]) -> bool:
        """Whether rows of `batch`, the module's minibatch, may be masked; False where it is known that all count."""
        trace = self._tracing.trace
        return trace is None or not any(batch[Columns.LOSS_MASK] is known for known in trace.full_masks)

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
        trace = self._tracing.trace
        if trace is None:
            return reductions.masked_means(values, mask)
        full = not self.may_be_masked(batch)
        if trace.row_counts is None:
            return reductions.masked_means(values, None if full else mask, trace.axis_name)
        # This microbatch's share of the means: shares add up over microbatches here, and average over devices later.
        count = next(trace.row_counts[mid] for mid, known in trace.masks.items() if known is mask)
        return {name: jnp.sum(x if full else jnp.where(mask, x, 0.0)) / count for name, x in values.items()}

    def masked_statistics(self, x: jax.Array, batch: Mapping[str, Any]) -> RunningStatistics:
        """Mean and variance of the rows of this batch that count, on this device: for `TracedMetrics.log_statistics`.

        In two passes: a difference of two means loses all digits when the mean is large against the spread.

        Args:
            x: float32 ``[N, ...]``, of sequences ``[N, L, ...]``; no gradient flows into it.
            batch: As for `masked_mean`.
        """
        mask = batch[Columns.LOSS_MASK]
        full = not self.may_be_masked(batch)
        rows = jax.lax.stop_gradient(x).reshape(-1, *x.shape[mask.ndim :])
        return running_statistics.of_batch(rows, None if full else mask.reshape(-1))

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        """The loss of one module. Override this.

        Args:
            module_id: The module.
            config: Its config; settings that are traced (lr, clip_param, ...) read as the current arrays.
            batch: Its minibatch, ``{column: [N, ...]}``; of a module with a recurrent state ``{column: [N, L, ...]}``
                and ``STATE_IN`` ``[N, ...]``; if `loss_needs_time`, ``{column: [N, L, ...]}`` of every module.
            fwd_out: What its ``forward_train`` returned.

        Returns:
            A float32 scalar; or ``{optimizer_name: scalar}``, each differentiated for the parameters of that optimizer
            alone; as the built-in learners do, so that ``super().compute_loss_for_module(...) + term`` is a loss, too.
            Or a pair of that and ``{metric: value}``, in place of logging into `metrics`. Take means with
            `masked_mean`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement compute_loss_for_module(*, module_id, config, batch, fwd_out)."
        )

    def compute_losses(self, *, fwd_out: dict[ModuleID, Any], batch: dict[ModuleID, Any]) -> dict[ModuleID, Any]:
        """The losses of all modules in the batch, ``{module_id: scalar or {optimizer_name: scalar}}``."""
        trace = self._running_trace("compute_losses")
        losses = {}
        for module_id in fwd_out:
            config = trace.configs[module_id]
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
                    arguments = {"config": config, "batch": batch[module_id], "fwd_out": fwd_out[module_id]}
                    problem = call_problem(self.compute_loss_for_module, module_id=module_id, **arguments)
                    if problem is not None:
                        raise TypeError(
                            f"{type(self).__name__}.compute_loss_for_module() cannot be called ({problem}). "
                            "Write def compute_loss_for_module(self, *, module_id, config, batch, fwd_out)."
                        )
                    loss = self.compute_loss_for_module(module_id=module_id, **arguments)
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
        trace = self._running_trace("compute_gradients")
        if trace.losses is None:
            raise RuntimeError(
                "compute_gradients() was called before compute_losses() returned. The update calls one after the "
                "other: a loss that needs gradients takes jax.grad of what it is made of."
            )
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
        return reductions.pmean_flat(self.gradients_of(trace.losses, trace.linearized), trace.axis_name)

    def gradients_of(self, losses: dict[ModuleID, Any], linearized: LinearizedLosses) -> ParamDict:
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
                refs = [ref for ref in self.optimizers[module_id][name].refs if ref in linearized.params]
                own = linearized.gradients(lambda found, mid=module_id, name=name: found[mid][name], refs)
                for ref, gradient in own.items():
                    gradients[ref] = gradients[ref] + gradient if scalars else gradient
        return gradients

    def postprocess_gradients(self, gradients_dict: ParamDict) -> ParamDict:
        """Clip (and log) gradients; by default module by module, see `postprocess_gradients_for_module`."""
        out = dict(gradients_dict)
        for module_id in self.optimizers:
            refs = [ref for opt in self.optimizers[module_id].values() for ref in opt.refs]
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
            self.metrics.log_value((module_id, f"gradients_{name}_{GLOBAL_NORM}"), norm, window=1)
        return out

    def _get_clip_function(self) -> Callable[..., tuple[ParamDict, jax.Array]]:
        """``(gradients, grad_clip, grad_clip_by) -> (clipped gradients, global norm before clipping)``."""
        return clip_gradients

    def apply_gradients(self, gradients_dict: ParamDict) -> None:
        """Let every optimizer take one step. Non-finite gradient entries become finite numbers first (RLlib's way);
        with ``torch_skip_nan_gradients=True`` a step with any of them is skipped instead."""
        trace = self._running_trace("apply_gradients")
        skip = self.config.torch_skip_nan_gradients
        for module_id, by_name in self.optimizers.items():
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
                trace.optimizers = {**trace.optimizers, module_id: {**trace.optimizers[module_id], name: new_state}}

    def pre_update(self, state: LearnerState, batch: dict[ModuleID, Any]) -> LearnerState:
        """Pure hook before the minibatch loop: the state to start from. Runs inside the compiled update."""
        return state

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[ModuleID, dict[str, Any]]
    ) -> LearnerState:
        """Pure hook after the minibatch loop. Runs inside the compiled update.

        Args:
            state: State after the last gradient step. Modules without a valid row are as they were before; what a
                hook keeps for each module has to ask `has_rows`.
            metrics: ``{(module_id, name): value}`` of the last minibatch.
            settings: ``{module_id: {name: current value}}`` of the traced settings.

        Returns:
            The state of the next update, e.g. with target networks or the KL coefficient moved on.
        """
        return state

    def has_rows(self, module_id: ModuleID) -> Any:
        """While `post_update` is traced: whether the running update has valid rows of a module.

        Returns:
            False for a module that it leaves out; of one whose rows may be masked a bool scalar; else True.
        """
        has_rows = self._tracing.has_rows
        return True if has_rows is None else has_rows.get(module_id, False)

    def _running_trace(self, hook: str) -> Trace:
        """The trace that a hook was called in.

        Raises:
            RuntimeError: If there is none.
        """
        if self._tracing.trace is None:
            raise RuntimeError(
                f"{type(self).__name__}.{hook}() is a part of the compiled update and was called outside of it: call "
                f"update(batch=...), which calls it. To see its values, override it and log them with "
                f"self.metrics.log_value(...)."
            )
        return self._tracing.trace

    def _config_view(self, module_id: ModuleID) -> Any:
        """The config of a module, with current values while an update is traced."""
        if self._tracing.trace is None:
            return self.config_for(module_id if module_id in self.template else next(iter(self.template)))
        if module_id in self._tracing.trace.configs:
            return self._tracing.trace.configs[module_id]
        return next(iter(self._tracing.trace.configs.values()))

    @contextlib.contextmanager
    def tracing(self, trace: Trace) -> Iterator[None]:
        """Let hooks that are called within see this trace."""
        outer, self._tracing.trace = self._tracing.trace, trace
        try:
            yield
        finally:
            self._tracing.trace = outer

    @contextlib.contextmanager
    def in_pure_hook(self, name: str, has_rows: Mapping[ModuleID, Any] | None = None) -> Iterator[None]:
        """Let what the learner holds be read by no hook that is called within.

        Args:
            name: Of the hook.
            has_rows: What `has_rows` returns in it, for the modules of the batch.
        """
        self._tracing.pure_hook, self._tracing.has_rows = name, has_rows
        try:
            yield
        finally:
            self._tracing.pure_hook = self._tracing.has_rows = None
