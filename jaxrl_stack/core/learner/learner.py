"""The Learner: a thin shell with RLlib's hooks around one compiled, buffer-donating update."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import socket
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.episodes_to_batch import episodes_to_batch
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.minibatches import (
    PackedRows,
    WholeRows,
    columns_that_matter,
    epoch_keys,
    minibatch_index,
    num_minibatches,
    shard_rows,
)
from jaxrl_stack.core.learner.traced_metrics import TracedMetrics
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.checks import check_module_outputs
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.ops import permutation, reductions
from jaxrl_stack.utils import counters, schedules
from jaxrl_stack.utils.devices import (
    Device,
    host_view,
    learner_devices,
    map_over_devices,
    place_replicated,
    place_sharded,
)
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.traced_config import TracedConfigView, explain_traced_branches

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

ParamDict = dict[str, jax.Array]
"""``{ref: array}``; ``ref`` is what `Learner.get_param_ref` returns."""
ModuleID = str
MetricKey = tuple[str, ...]

DEFAULT_OPTIMIZER = "default_optimizer"
ELEMENTWISE_OPTIMIZERS = (optax.adam, optax.sgd, optax.rmsprop, optax.adagrad, optax.adamax, optax.nadam, optax.radam)
"""Factories whose steps treat every entry by itself, whatever the shapes of the parameters: one step on a vector of
all of them is the same, and a dozen times fewer operations for a network of a dozen leaves."""
AXIS_NAME = "devices"
"""Name of the mapped axis of every learner program."""


@dataclasses.dataclass(frozen=True, eq=False)
class RegisteredOptimizer:
    """One optimizer of one module: how to make it, and which parameters it owns.

    Attributes:
        module_id: The module it belongs to.
        name: Its name within the module.
        factory: ``lr -> optax.GradientTransformation``; applied to the current learning rate inside the update.
        refs: Refs of the parameters that it updates.
        lr: A number or ``[[timestep, value], ...]``; None if `factory` ignores it.
        is_flat: Whether it works on all its parameters laid end to end in one vector. Its state is then of that
            shape, too.
    """

    module_id: ModuleID
    name: str
    factory: Callable[[Any], optax.GradientTransformation]
    refs: tuple[str, ...]
    lr: Any
    is_flat: bool

    def init(self, params: ParamDict) -> Any:
        """Its initial state."""
        own: Any = {ref: params[ref] for ref in self.refs}
        return self.factory(jnp.float32(0.0)).init(reductions.ravel(own)[0] if self.is_flat else own)

    def step(self, lr: Any, gradients: ParamDict, state: Any, params: ParamDict) -> tuple[ParamDict, Any]:
        """One step: ``(new parameters, new state)``. Non-finite gradient entries count as finite numbers."""
        transformation = self.factory(lr)
        if not self.is_flat:
            updates, state = transformation.update(jax.tree.map(jnp.nan_to_num, gradients), state, params)
            return cast(ParamDict, optax.apply_updates(params, updates)), state
        gradient, _ = reductions.ravel(gradients)
        vector, unravel = reductions.ravel(params)
        updates, state = transformation.update(jnp.nan_to_num(gradient), state, vector)
        return unravel(vector + cast(jax.Array, updates)), state


@dataclasses.dataclass
class _Trace:
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
    pullback: Callable[[Any], tuple[ParamDict]] | None = None
    losses: dict[ModuleID, Any] | None = None
    gradients: ParamDict | None = None


@dataclasses.dataclass(frozen=True)
class UpdatePlan:
    """The static numbers of an update: each combination is a program of its own.

    Attributes:
        num_epochs: Passes over the batch.
        minibatch_size: Rows per gradient step over all devices, or None for the whole batch.
        shuffle: Whether each of several epochs has its own random order.
        num_total_minibatches: Number of gradient steps; 0 for as many as the epochs make.
        num_shards: Shuffle shards over all devices.
        num_devices: Devices of the learner.
    """

    num_epochs: int
    minibatch_size: int | None
    shuffle: bool
    num_total_minibatches: int
    num_shards: int
    num_devices: int


class Learner:
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

    framework = "jax"

    loss_is_linear_in_means = False
    """Whether every loss and metric is a sum of constants times `masked_means` of the batch.

    A class that says so lets the update add up gradients over pieces of a minibatch that fit the cache, which gives
    the same gradients in less time. Whoever overrides the loss below such a class has to say it again.
    """

    columns_from_forward_train: tuple[str, ...] = ()
    """Columns that the loss needs from every module's ``forward_train``; checked when the learner is built."""

    def __init__(
        self,
        *,
        config: AlgorithmConfig,
        module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        module: RLModule | None = None,
    ):
        if module_spec is not None and module is not None:
            raise ValueError("Learner(module_spec=..., module=...): pass one of them, not both.")
        config = config.copy(copy_frozen=False)
        config.freeze()
        self.config = config
        self._module_spec = module_spec
        self._module_given = module
        self._module_overrides: dict[ModuleID, dict[str, Any]] = {}
        self._should_update: Any = config.policies_to_train
        self.metrics_logger = MetricsLogger()
        self._trace: _Trace | None = None
        self._pure_hook: str | None = None
        self._is_built = False
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        self._optimizers: dict[ModuleID, dict[str, RegisteredOptimizer]] = {}
        self._state: LearnerState | None = None
        self._settings_on_device: Any = None
        self._counted: tuple[LearnerState | None, int] = (None, 0)

    # ------------------------------------------------------------------------------------------------ building

    def build(self) -> None:
        """Make the module, its optimizers, the connector pipeline and the initial state. Idempotent.

        Raises:
            ValueError: If the module lacks an API that this learner needs, or a spec cannot be built.
        """
        if self._is_built:
            return
        self.devices = self.devices_of(self.config)
        module = self._make_module()
        self._set_module(module)
        first = module[next(iter(module))]
        self._learner_connector = self.config.build_learner_connector(first.observation_space, first.action_space)
        self._is_built = True
        self._optimizers = {}
        self.configure_optimizers()
        self._check_every_module_has_an_optimizer()
        self.place(self._initial_state())

    @classmethod
    def devices_of(cls, config: AlgorithmConfig) -> list[Device]:
        """The local devices that a learner of this config uses; see `learner_devices`."""
        return learner_devices(config)

    def _make_module(self) -> MultiRLModule:
        """The MultiRLModule that this learner updates, freshly built or as given."""
        if self._module_given is not None:
            module = self._module_given
        else:
            spec = self._module_spec or self.config.get_multi_rl_module_spec()
            module = spec.build(seed=self._seed)
        return module if isinstance(module, MultiRLModule) else module.as_multi_rl_module()

    def _set_module(self, module: MultiRLModule) -> None:
        for module_id in module:
            self._check_module(module_id, module[module_id])
        self._template = module
        self._pure = PureModule(module)

    def _check_module(self, module_id: ModuleID, module: RLModule) -> None:
        if not self.rl_module_is_compatible(module):
            needed = [api.__name__ for api in self.rl_module_required_apis()]
            raise ValueError(
                f"{type(self).__name__} needs modules that implement {needed}; module {module_id!r} is a "
                f"{type(module).__name__} and does not. Derive it from these classes and implement their methods."
            )
        if module.observation_space is not None:
            check_module_outputs(module, module_id=module_id, train_keys=self.columns_from_forward_train)

    @property
    def _seed(self) -> int:
        return 0 if self.config.seed is None else int(self.config.seed)

    def _initial_state(self) -> LearnerState:
        params, rest = self._pure.params, self._pure.rest
        optimizers = {
            module_id: {
                name: opt.init(params)
                for name, opt in by_name.items()
            }
            for module_id, by_name in self._optimizers.items()
        }
        return LearnerState(
            params=params,
            rest=rest,
            optimizers=optimizers,
            extra=self.initial_extra_state(),
            connector=self._learner_connector.init(1),
            timesteps=counters.zero(),
            num_updates=jnp.uint32(0),
            key=jax.random.fold_in(jax.random.key(self._seed), 1),
        )

    def initial_extra_state(self) -> dict[str, Any]:
        """Arrays that this algorithm keeps beside its networks. Override; ``{}`` by default."""
        return {}

    def place(self, state: LearnerState) -> None:
        """Put a state on all devices of this learner, as buffers that nothing else refers to."""
        self._state = place_replicated(state, self.devices)
        self._synced_updates: int | None = None

    # -------------------------------------------------------------------------------------------------- access

    @property
    def module(self) -> MultiRLModule:
        """The module: while a hook is traced, the traced one; otherwise a copy with the current weights."""
        if self._trace is not None:
            return self._trace.module
        self._check_is_built()
        # While `build` registers optimizers there is no state yet: these are the initial weights.
        return self._template if self._state is None else self._synced_module()

    def _synced_module(self) -> MultiRLModule:
        state = self.state
        updates = int(jax.device_get(host_view(state.num_updates)))
        if self._synced_updates != updates:
            params, rest = jax.device_get(host_view((state.params, state.rest)))
            self._pure.write_to(self._template, params, rest)
            self._synced_updates = updates
        return self._template

    @property
    def metrics(self) -> MetricsLogger | TracedMetrics:
        """While a hook is traced, a collector whose values leave the program; otherwise the host's MetricsLogger."""
        if self._trace is not None:
            return self._trace.metrics
        self._check_not_in_pure_hook("metrics")
        return self.metrics_logger

    @property
    def state(self) -> LearnerState:
        """The current state. Its buffers are donated by the next update: copy what you keep."""
        self._check_is_built()
        self._check_not_in_pure_hook("state")
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, value: LearnerState) -> None:
        self._state = value

    @property
    def axis_name(self) -> str | None:
        """Name of the device axis in this learner's programs; None with ``disable_jit``, which maps nothing."""
        return None if self.config.disable_jit else AXIS_NAME

    @property
    def module_ids(self) -> tuple[str, ...]:
        """Ids of the modules, in the order in which they were added."""
        return self._pure.module_ids

    @property
    def pure(self) -> PureModule:
        """The modules taken apart: what compiled programs close over."""
        return self._pure

    @property
    def distributed(self) -> bool:
        """Whether several learners share one update."""
        return self.config.num_learners > 1

    @property
    def node(self) -> str:
        """Host name of this learner."""
        return socket.gethostname()

    @property
    def device(self) -> Device:
        """The first device of this learner."""
        return self.devices[0]

    def _check_is_built(self) -> None:
        if not self._is_built:
            raise ValueError(f"{type(self).__name__}.build() must be called before this method.")

    def _check_not_in_pure_hook(self, what: str) -> None:
        """What the learner holds is not what the running update works on: it would be a constant of the program."""
        if self._pure_hook is not None:
            raise RuntimeError(
                f"{self._pure_hook}() is traced into the update and cannot read the learner's own {what} (nor its "
                f"module or extra): use its arguments, and return the changed state."
            )

    def rl_module_required_apis(self) -> list[type]:
        """Module APIs (classes of ``core.rl_module.apis``) that this learner calls."""
        return []

    def rl_module_is_compatible(self, module: RLModule) -> bool:
        """Whether `module` implements `rl_module_required_apis`."""
        return all(isinstance(module, api) for api in self.rl_module_required_apis())

    # ---------------------------------------------------------------------------------------------- optimizers

    def configure_optimizers(self) -> None:
        """Register the optimizers of all modules."""
        for module_id in self._template:
            self.configure_optimizers_for_module(module_id, self._config_for(module_id))

    def configure_optimizers_for_module(self, module_id: ModuleID, config: AlgorithmConfig | None = None) -> None:
        """Register the optimizer(s) of one module; by default one Adam over all its parameters.

        Args:
            module_id: The module.
            config: The config with that module's overrides applied.
        """
        config = config or self._config_for(module_id)
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.adam,
            params=self.get_parameters(self._template[module_id]),
            lr_or_lr_schedule=config.lr,
        )

    def register_optimizer(
        self,
        *,
        module_id: ModuleID = ALL_MODULES,
        optimizer_name: str = DEFAULT_OPTIMIZER,
        optimizer: Callable[[Any], optax.GradientTransformation] | optax.GradientTransformation,
        params: Sequence[Any],
        lr_or_lr_schedule: float | list | None = None,
    ) -> None:
        """Declare an optimizer. Call it from `configure_optimizers_for_module`.

        Args:
            module_id: The module that owns it; ``ALL_MODULES`` for one over several modules.
            optimizer_name: Its name within the module; shows up in the metrics.
            optimizer: ``lr -> optax.GradientTransformation``, such as ``optax.adam`` or
                ``lambda lr: optax.adamw(lr, weight_decay=1e-4)``. The current learning rate is an argument of the
                compiled program, so schedules and changed rates do not recompile. A finished
                ``GradientTransformation`` works, too, with ``lr_or_lr_schedule=None``.
            params: What it updates: parameters from `get_parameters`, submodules, or refs.
            lr_or_lr_schedule: A number or ``[[timestep, value], ...]``.

        Raises:
            ValueError: If a parameter belongs to two optimizers, the module has one of that name already, or learning
                rate and optimizer do not fit.
        """
        if optimizer_name in self._optimizers.get(module_id, {}):
            raise ValueError(
                f"Module {module_id!r} has an optimizer {optimizer_name!r} already. Give the second one a name of its "
                f"own: register_optimizer(optimizer_name=...)."
            )
        if isinstance(optimizer, optax.GradientTransformation):
            if lr_or_lr_schedule is not None:
                raise ValueError(
                    f"register_optimizer({optimizer_name!r}): lr_or_lr_schedule={lr_or_lr_schedule!r} has no effect "
                    f"on a finished optax transformation. Pass a function of the learning rate, such as optax.adam, "
                    f"or lr_or_lr_schedule=None."
                )
            transformation = optimizer
            factory: Callable[[Any], optax.GradientTransformation] = lambda lr: transformation  # noqa: E731
        else:
            if lr_or_lr_schedule is None:
                raise ValueError(
                    f"register_optimizer({optimizer_name!r}) of module {module_id!r} needs lr_or_lr_schedule: a "
                    f"number or [[timestep, value], ...]. Set it with config.training(lr=...)."
                )
            factory = optimizer
        refs: list[str] = []
        for param in params:
            refs.extend([param] if isinstance(param, str) else self._pure.refs_of(param))
        taken = {ref: opt for by_name in self._optimizers.values() for opt in by_name.values() for ref in opt.refs}
        for ref in refs:
            if ref in taken:
                raise ValueError(
                    f"Parameter {ref!r} belongs to optimizer {taken[ref].name!r} of module "
                    f"{taken[ref].module_id!r} already and cannot join {optimizer_name!r} of {module_id!r}."
                )
        self._optimizers.setdefault(module_id, {})[optimizer_name] = RegisteredOptimizer(
            module_id=module_id,
            name=optimizer_name,
            factory=factory,
            refs=tuple(dict.fromkeys(refs)),
            lr=lr_or_lr_schedule,
            is_flat=optimizer in ELEMENTWISE_OPTIMIZERS
            and all(self._pure.params[ref].dtype == jnp.float32 for ref in refs),
        )

    def _check_every_module_has_an_optimizer(self) -> None:
        for module_id in self._template:
            if ALL_MODULES not in self._optimizers and module_id not in self._optimizers:
                raise ValueError(
                    f"{type(self).__name__}.configure_optimizers_for_module({module_id!r}) registered no optimizer. "
                    f"Call self.register_optimizer(module_id=..., optimizer=optax.adam, params=..., "
                    f"lr_or_lr_schedule=...) in it."
                )

    def _check_registered_optimizer(self, module_id: ModuleID, optimizer_name: str) -> None:
        if optimizer_name not in self._optimizers.get(module_id, {}):
            known = {m: list(names) for m, names in self._optimizers.items()}
            raise KeyError(f"Module {module_id!r} has no optimizer {optimizer_name!r}; registered are {known}.")

    def get_optimizer(
        self, module_id: ModuleID = DEFAULT_MODULE_ID, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> RegisteredOptimizer:
        """The registered optimizer of that name."""
        self._check_registered_optimizer(module_id, optimizer_name)
        return self._optimizers[module_id][optimizer_name]

    def get_optimizers_for_module(self, module_id: ModuleID = ALL_MODULES) -> list[tuple[str, RegisteredOptimizer]]:
        """``[(name, optimizer)]`` of one module; of all modules for ``ALL_MODULES``."""
        ids = list(self._optimizers) if module_id == ALL_MODULES else [module_id]
        return [item for mid in ids for item in self._optimizers.get(mid, {}).items()]

    def get_parameters(self, module: Any) -> list[Any]:
        """The trainable parameters (``nnx.Param`` variables) of a module or submodule of this learner."""
        return self._pure.parameters_of(module)

    def get_param_ref(self, param: Any) -> str:
        """The key of a parameter in a `ParamDict`."""
        return self._pure.refs_of(param)[0]

    def filter_param_dict_for_optimizer(self, param_dict: ParamDict, optimizer: RegisteredOptimizer) -> ParamDict:
        """The entries of `param_dict` that `optimizer` updates."""
        return {ref: param_dict[ref] for ref in optimizer.refs if ref in param_dict}

    # ----------------------------------------------------------------------------------------- hooks, all traced

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
        """Several means at once: the same as `masked_mean` of each, with one reduction over the devices."""
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
        assert trace.pullback is not None
        return reductions.pmean_flat(self._pull_back(trace.losses, trace.pullback), trace.axis_name)

    def _pull_back(self, losses: dict[ModuleID, Any], pullback: Callable[[Any], tuple[ParamDict]]) -> ParamDict:
        """Gradients of the sum of all scalar losses, and of each optimizer's own loss for its parameters."""
        zeros = jax.tree.map(jnp.zeros_like, losses)
        shared = {mid: zeros[mid] if isinstance(loss, dict) else jnp.ones_like(loss) for mid, loss in losses.items()}
        (gradients,) = pullback(shared)
        gradients = dict(gradients)
        for module_id, loss in losses.items():
            if not isinstance(loss, dict):
                continue
            for name in loss:
                self._check_registered_optimizer(module_id, name)
                seed = {**zeros, module_id: {**zeros[module_id], name: jnp.ones_like(loss[name])}}
                (own,) = pullback(seed)
                for ref in self._optimizers[module_id][name].refs:
                    gradients[ref] = gradients[ref] + own[ref]
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
            if config.log_gradients or (config.grad_clip is not None and config.grad_clip_by == "global_norm"):
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

    # ---------------------------------------------------------------------------------------------- host hooks

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

    # --------------------------------------------------------------------------------------------- pure update

    def _config_for(self, module_id: ModuleID) -> AlgorithmConfig:
        config = self.config.get_config_for_module(module_id)
        overrides = self._module_overrides.get(module_id)
        if overrides:
            config = config.copy(copy_frozen=False).update_from_dict(overrides)
            config.freeze()
        return config

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

    def current_values(self, settings: dict[str, Any], timesteps: jax.Array | np.ndarray) -> dict[str, Any]:
        """`settings` with every schedule replaced by its value at `timesteps` (uint32[2]).

        Settings that ``_static_settings`` takes out of the program's arguments are there as Python numbers.
        """
        values = jax.tree.map(
            lambda s: schedules.value_at(s, timesteps) if isinstance(s, schedules.ScheduleArrays) else s,
            settings,
            is_leaf=lambda s: isinstance(s, schedules.ScheduleArrays),
        )
        for module_id, own in values["modules"].items():
            config = self._config_for(module_id)
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
        """One whole update as a pure function: connector pipeline, then `pure_fit`.

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
        state, batch = self.pure_connect(state, batch, settings, timesteps, axis_name=axis_name)
        return self.pure_fit(state, batch, settings, timesteps, plan=plan, axis_name=axis_name)

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
        context = self._learner_connector.make_context(
            params=state.params,
            rest=state.rest,
            key=self._device_key(state, 1, axis_name),
            settings=self.current_values(settings, state.timesteps)["modules"],
            step=timesteps,
            pure=self._pure,
            explore=False,
            axis_name=axis_name,
        )
        connector, batch = self._learner_connector.apply(state.connector, batch, context)
        return dataclasses.replace(state, connector=self._learner_connector.merge(connector, axis_name)), batch

    def pure_fit(
        self,
        state: LearnerState,
        batch: dict[ModuleID, dict[str, Any]],
        settings: dict[str, Any],
        timesteps: jax.Array,
        *,
        plan: UpdatePlan,
        axis_name: str | None,
    ) -> tuple[LearnerState, dict[MetricKey, jax.Array]]:
        """The minibatch loop over a batch that is ready for the loss; arguments as in `pure_update`."""
        values = self.current_values(settings, state.timesteps)
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
        local_shards = plan.num_shards // plan.num_devices
        size = None if plan.minibatch_size is None else plan.minibatch_size // plan.num_shards
        hooks = functools.partial(
            _Trace,
            module=self._template,
            configs=views,
            learning_rates=values["lr"],
            extra=state.extra,
            axis_name=axis_name,
            trained_refs=self._trained_refs(trained, batch),
        )
        read = self._columns_that_are_read(hooks, state, rest, batch)
        rows = {mid: PackedRows(shard_rows(columns, local_shards), read[mid]) for mid, columns in batch.items()}
        sizes = {mid: size or packed.num_rows for mid, packed in rows.items()}
        steps = plan.num_total_minibatches or max(
            num_minibatches(r.num_rows, size, plan.num_epochs) for r in rows.values()
        )
        keys: dict[ModuleID, Any] = dict.fromkeys(rows)
        if plan.shuffle and size is not None and (plan.num_epochs > 1 or plan.num_total_minibatches):
            seed = permutation.round_keys(self._update_key(state, 3))
            first = jnp.uint32(0) if axis_name is None else jax.lax.axis_index(axis_name).astype(jnp.uint32)
            shards = first * jnp.uint32(local_shards) + jnp.arange(local_shards, dtype=jnp.uint32)
            keys = {mid: epoch_keys(seed, -(-steps * size // r.num_rows), shards) for mid, r in rows.items()}
        pieces = self._pieces_per_minibatch(sizes, local_shards)

        # One vector instead of a dozen leaves through the loop: XLA then works on it as a whole.
        pack, unpack = _packing(state.params)

        def body(carry, step):
            params, rest, optimizers = carry
            index = {}
            for mid, packed in rows.items():
                own = minibatch_index(step, sizes[mid], packed.num_rows, keys[mid])
                own = jnp.broadcast_to(own, (local_shards, sizes[mid]))
                index[mid] = jnp.moveaxis(own.reshape(local_shards, pieces, -1), 1, 0)
            params, rest, optimizers, metrics = self._minibatch_step(
                hooks, unpack(params), rest, optimizers, rows, index
            )
            vector, back = reductions.ravel(metrics)
            unravel.append(back)
            return (pack(params), rest, optimizers), vector

        unravel: list[Callable[[jax.Array], Any]] = []
        (params, rest, optimizers), history = jax.lax.scan(
            body, (pack(state.params), rest, state.optimizers), jnp.arange(steps, dtype=jnp.uint32)
        )
        params = unpack(params)
        history = jax.vmap(unravel[-1])(history)
        metrics = TracedMetrics.reduce_history(history, axis_name)
        for mid, by_name in values["lr"].items():
            for name, lr in by_name.items():
                metrics[(mid, f"{name}_learning_rate")] = lr
        floats = {
            ref: leaf
            for ref, leaf in rest.items()
            if ref not in self._pure.stream_refs and jnp.issubdtype(leaf.dtype, jnp.floating)
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
            state = self.post_update(state, metrics=metrics, settings=values["modules"])
        return state, metrics

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
        if target is None or not self._loss_is_linear() or self._rows_depend_on_each_other():
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

    def _rows_depend_on_each_other(self) -> bool:
        """Whether a layer looks at statistics of its batch, so that a piece of it has another output."""
        return any(issubclass(kind, nnx.BatchStat) for kind in self._pure.definition.variable_types.values())

    def _minibatch_step(self, hooks, params, rest, optimizers, rows, index):
        """One gradient step.

        Args:
            hooks: ``(metrics, params, optimizers) -> _Trace``.
            params: Parameters before the step.
            rest: Other state of the modules.
            optimizers: Optimizer states.
            rows: ``{module_id: PackedRows}``.
            index: ``{module_id: uint32 [pieces, S, m / pieces]}``, the rows of this minibatch.

        Returns:
            ``(params, rest, optimizers, metrics)`` after the step.
        """
        trace = hooks(metrics=TracedMetrics(), params=params, optimizers=optimizers)
        pieces = next(iter(index.values())).shape[0]
        with self._tracing(trace):
            if self._loss_is_linear():
                trace.row_counts = self._row_counts(rows, index, trace.axis_name)

                unravel: list[Callable[[jax.Array], Any]] = []

                def one_piece(rest, piece):
                    losses, pullback, (rest, metrics) = self._losses_and_pullback(trace, params, rest, rows, piece)
                    gradients = self._pull_back(losses, pullback)
                    vector, back = reductions.ravel((losses, gradients, metrics))
                    unravel.append(back)
                    return rest, vector

                if pieces == 1:
                    rest, total = one_piece(rest, {mid: i[0] for mid, i in index.items()})
                else:
                    first = {mid: i[0] for mid, i in index.items()}
                    size = jax.eval_shape(one_piece, rest, first)[1].shape

                    def add(carry, piece):
                        rest, total = carry
                        rest, vector = one_piece(rest, piece)
                        return (rest, total + vector), None

                    (rest, total), _ = jax.lax.scan(add, (rest, jnp.zeros(size, jnp.float32)), index)
                losses, trace.gradients, metrics = unravel[-1](reductions.pmean(total, trace.axis_name))
            else:
                piece = {mid: i[0] for mid, i in index.items()}
                losses, trace.pullback, (rest, metrics) = self._losses_and_pullback(trace, params, rest, rows, piece)
            trace.losses = losses
            trace.metrics = TracedMetrics.of(metrics)
            # The module that the losses saw belongs to their differentiation and must not be read behind it.
            trace.module = self._pure.bind(params, rest)
            for mid, loss in losses.items():
                total = sum(loss.values()) if isinstance(loss, dict) else loss
                trace.metrics.log_value((mid, "total_loss"), total, window=1)
            gradients = self.compute_gradients(losses)
            if self.config.check_nans:
                self._log_finiteness(losses, gradients)
            self.apply_gradients(self.postprocess_gradients(gradients))
            return trace.params, rest, trace.optimizers, trace.metrics.collect()

    def _losses_and_pullback(self, trace, params, rest, rows, index):
        """Losses of the rows at `index`, how gradients flow back from them, and ``(rest, metrics)``."""
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
            fwd_out = {mid: trace.module[mid].forward_train(batch[mid]) for mid in batch}
            losses = self.compute_losses(fwd_out=fwd_out, batch=batch)
            for mid, loss in losses.items():
                for scalar in jax.tree.leaves(loss):
                    if jnp.shape(scalar):
                        raise ValueError(
                            f"The loss of module {mid!r} in {type(self).__name__} has the shape {jnp.shape(scalar)}: "
                            f"return a scalar. Take means over the batch with self.masked_mean(x, batch)."
                        )
            _, new_rest = self._pure.unbind(trace.module)
            return losses, (new_rest, trace.metrics.collect())

        return jax.vjp(losses_of, {ref: params[ref] for ref in trace.trained_refs}, has_aux=True)

    def _row_counts(self, rows, index, axis_name) -> dict[ModuleID, jax.Array]:
        """Valid rows of the minibatch per device, on average over the devices."""
        counts = {}
        for mid, packed in rows.items():
            if Columns.LOSS_MASK in packed.columns:
                own = jnp.moveaxis(index[mid], 0, 1).reshape(index[mid].shape[1], -1)
                mask = packed.take_column(Columns.LOSS_MASK, own)
                count = reductions.pmean_flat(jnp.sum(mask).astype(jnp.float32), axis_name)
                # No valid row anywhere: the sums are 0, and so are the means.
                counts[mid] = jnp.where(count > 0.0, count, 1.0)
            else:
                counts[mid] = jnp.float32(index[mid].size)
        return counts

    @contextlib.contextmanager
    def _tracing(self, trace: _Trace) -> Iterator[None]:
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

    def _columns_that_are_read(self, hooks, state, rest, batch) -> dict[ModuleID, frozenset[str]]:
        """Which columns the forward passes and losses depend on; the others are not carried through the shuffle."""

        def losses(batch):
            trace = hooks(metrics=TracedMetrics(), params=state.params, optimizers=state.optimizers)
            rows = {mid: WholeRows(columns) for mid, columns in batch.items()}
            with self._tracing(trace):
                losses, _, aux = self._losses_and_pullback(trace, state.params, rest, rows, dict.fromkeys(rows))
                return losses, aux

        return columns_that_matter(
            losses, jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[2:]), x.dtype), batch)
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

    # ---------------------------------------------------------------------------------------------- host update

    def plan(
        self,
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        num_total_minibatches: int = 0,
    ) -> UpdatePlan:
        """The static part of an update on this learner's devices.

        Raises:
            ValueError: If the minibatch does not divide by the shuffle shards, or these by the devices.
        """
        num_devices = len(self.devices)
        num_shards = self.config.num_shuffle_shards or num_devices
        if num_shards % num_devices:
            raise ValueError(
                f"num_shuffle_shards={num_shards} must be a multiple of the number of devices, {num_devices}."
            )
        if minibatch_size is not None and minibatch_size % num_shards:
            below = max(minibatch_size // num_shards, 1) * num_shards
            raise ValueError(
                f"minibatch_size={minibatch_size} does not divide by the {num_shards} shuffle shards (one per device "
                f"unless num_shuffle_shards is set). Use minibatch_size={below}, for example."
            )
        return UpdatePlan(
            num_epochs, minibatch_size, shuffle_batch_per_epoch, num_total_minibatches, num_shards, num_devices
        )

    def update(
        self,
        batch: dict[str, Any] | None = None,
        batches: Sequence[dict[str, Any]] | None = None,
        batch_refs: Sequence[Any] | None = None,
        episodes: Sequence[SingleAgentEpisode] | None = None,
        episodes_refs: Sequence[Any] | None = None,
        data_iterators: Sequence[Any] | None = None,
        training_data: Any = None,
        *,
        timesteps: dict[str, Any] | int | None = None,
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
            episodes: Episodes; they pass through the learner connector pipeline.
            episodes_refs: Ray references of lists of episodes.
            data_iterators: Iterators over such batches, one batch per update.
            training_data: An object with (some of) the attributes above.
            timesteps: Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``; schedules move to it
                behind the update.
            num_total_minibatches: Number of gradient steps instead of what the epochs make, if above 0.
            num_epochs: Passes over the batch.
            minibatch_size: Rows per gradient step over all devices of this learner; None for the whole batch.
            shuffle_batch_per_epoch: Whether each of several epochs has its own random order.

        Returns:
            ``{module_id: {metric: float}}``, of the last minibatch, with what the host hooks logged into `metrics`.

        Raises:
            ValueError: If not exactly one data argument is given, or sizes do not fit.
        """
        self._check_is_built()
        data = {
            "batch": batch,
            "batches": batches,
            "batch_refs": batch_refs,
            "episodes": episodes,
            "episodes_refs": episodes_refs,
            "data_iterators": data_iterators,
            "training_data": training_data,
        }
        given = {name: value for name, value in data.items() if value is not None}
        if len(given) != 1:
            raise ValueError(
                f"Learner.update() takes exactly one data argument out of {list(data)}; got {list(given) or 'none'}."
            )
        (name, value), *_ = given.items()
        if name == "training_data":
            inner = {k: v for k in data if k != name and (v := getattr(value, k, None)) is not None}
            return self.update(
                **inner,
                timesteps=timesteps,
                num_total_minibatches=num_total_minibatches,
                num_epochs=num_epochs,
                minibatch_size=minibatch_size,
                shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            )
        counter = self._timesteps_counter(timesteps)
        self.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})
        if name in ("episodes", "episodes_refs"):
            rows = self._rows_of_episodes(_resolve(value) if name == "episodes_refs" else value, counter)
        else:
            if name == "data_iterators":
                value = [next(iter(iterator)) for iterator in value]
            parts: Any = [value] if name == "batch" else _resolve(value) if name == "batch_refs" else value
            rows = _concatenate([self._as_multi_module_batch(b) for b in parts])
        plan = self.plan(
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            num_total_minibatches=num_total_minibatches,
        )
        rows = place_sharded(_as_blocks(rows, plan), self.devices)
        fit = self._program(
            ("fit", plan),
            lambda: functools.partial(self.pure_fit, plan=plan, axis_name=self.axis_name),
            in_axes=(None, 0, None, None),
            out_axes=(None, None),
        )
        settings = self.placed_settings()
        with deferred_interrupt():
            self._state, metrics = fit(self.state, rows, settings, counter)
        results = jax.device_get(host_view(metrics))
        self.raise_if_not_finite(results, iteration=int(jax.device_get(host_view(self.state.num_updates))))
        self.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})
        out = nest_metrics(results)
        merge_nested(out, self.metrics_logger.compile())
        return out

    def update_from_batch(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Old name of ``update(batch=...)``."""
        warnings.warn("update_from_batch(batch) is now update(batch=batch).", DeprecationWarning, stacklevel=2)
        return self.update(batch=batch, **kwargs)

    def update_from_episodes(self, episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Old name of ``update(episodes=...)``."""
        warnings.warn(
            "update_from_episodes(episodes) is now update(episodes=episodes).", DeprecationWarning, stacklevel=2
        )
        return self.update(episodes=episodes, **kwargs)

    def _program(self, key: Hashable, make: Callable[[], Callable], in_axes: Any, out_axes: Any) -> Callable:
        """A compiled program over this learner's devices that donates the learner state; made once per key."""
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                make(),
                self.devices,
                axis_name=self.axis_name,
                in_axes=in_axes,
                out_axes=out_axes,
                donate_argnums=(0,),
            )
        return self._compiled[key]

    def placed_settings(self) -> Any:
        """`settings` on this learner's devices; placed once."""
        if self._settings_on_device is None:
            self._settings_on_device = place_replicated(self.settings(), self.devices)
        return self._settings_on_device

    def _timesteps_counter(self, timesteps: dict[str, Any] | int | None) -> np.ndarray:
        steps = timesteps.get("num_env_steps_sampled_lifetime", 0) if isinstance(timesteps, Mapping) else timesteps
        return counters.from_int(int(steps or 0))

    def _as_multi_module_batch(self, batch: Any) -> dict[ModuleID, dict[str, Any]]:
        batch = getattr(batch, "policy_batches", batch)
        if any(key in self._template for key in batch):
            unknown = [key for key in batch if key not in self._template]
            if unknown:
                raise ValueError(f"The batch has modules {unknown} that this learner does not: {list(self._template)}.")
            return {mid: dict(columns) for mid, columns in batch.items()}
        if len(self._template) > 1:
            raise ValueError(f"A learner of {list(self._template)} needs batches of the form {{module_id: columns}}.")
        return {next(iter(self._template)): dict(batch)}

    def _rows_of_episodes(self, episodes: Sequence[Any], counter: np.ndarray) -> dict[ModuleID, dict[str, Any]]:
        """Episodes through the learner connector pipeline, then row by row, without padding."""
        block, rows = episodes_to_batch(episodes, self._template)
        state = self.state

        def connect(params, rest, connector, num_updates, key, at, settings, block):
            local = dataclasses.replace(
                state, params=params, rest=rest, connector=connector, num_updates=num_updates, key=key, timesteps=at
            )
            new, batch = self.pure_connect(local, block, settings, counter, axis_name=None)
            return new.connector, batch

        if "connect" not in self._compiled:
            self._compiled["connect"] = jax.jit(connect)
        view = host_view(state)
        connector, batch = self._compiled["connect"](
            view.params,
            view.rest,
            view.connector,
            view.num_updates,
            view.key,
            view.timesteps,
            host_view(self.placed_settings()),
            block,
        )
        self._state = dataclasses.replace(state, connector=place_replicated(connector, self.devices))
        out = {}
        for mid, columns in batch.items():
            columns = {c: v for c, v in columns.items() if c != Columns.LOSS_MASK}
            out[mid] = jax.tree.map(lambda x, i=rows[mid]: x.reshape(-1, *x.shape[2:])[i], columns)
        return out

    # ------------------------------------------------------------------------------------------ modules and state

    def should_module_be_updated(self, module_id: ModuleID, multi_agent_batch: Any = None) -> bool:
        """Whether ``policies_to_train`` names the module."""
        wanted = self._should_update
        if wanted is None:
            return True
        return bool(wanted(module_id, multi_agent_batch)) if callable(wanted) else module_id in wanted

    def add_module(
        self,
        *,
        module_id: ModuleID,
        module_spec: RLModuleSpec,
        config_overrides: dict[str, Any] | None = None,
        new_should_module_be_updated: Any = None,
    ) -> MultiRLModuleSpec:
        """Add a module; the others keep their weights and optimizer states. The next update compiles anew.

        Returns:
            The spec of the grown MultiRLModule.
        """
        self._check_is_built()
        if module_id in self._template:
            raise ValueError(f"Module {module_id!r} exists already; remove_module({module_id!r}) first.")
        module = self._synced_module()
        new = module_spec.build(seed=self._seed + len(module))
        self._check_module(module_id, new)
        module.add_module(module_id, new)
        return self._regroup(module, config_overrides and {module_id: config_overrides}, new_should_module_be_updated)

    def remove_module(self, module_id: ModuleID, *, new_should_module_be_updated: Any = None) -> MultiRLModuleSpec:
        """Remove a module with its optimizers. The next update compiles anew.

        Returns:
            The spec of what is left.
        """
        self._check_is_built()
        if module_id not in self._template:
            raise ValueError(f"There is no module {module_id!r}; there are {list(self._template)}.")
        module = self._synced_module()
        module.remove_module(module_id)
        self._module_overrides.pop(module_id, None)
        return self._regroup(module, None, new_should_module_be_updated)

    def _regroup(self, module: MultiRLModule, overrides: dict | None, should_update: Any) -> MultiRLModuleSpec:
        old = jax.device_get(host_view(self.state))
        self._module_overrides |= overrides or {}
        if should_update is not None:
            self._should_update = should_update
        self._set_module(module)
        self._compiled.clear()
        self._settings_on_device = None
        self._optimizers = {}
        self.configure_optimizers()
        self._check_every_module_has_an_optimizer()
        new = self._initial_state()
        kept = {
            mid: {name: _kept_or_fresh(old.optimizers.get(mid, {}).get(name), fresh) for name, fresh in by_name.items()}
            for mid, by_name in new.optimizers.items()
        }
        extra = {
            name: {mid: old.extra.get(name, {}).get(mid, leaf) for mid, leaf in by_module.items()}
            for name, by_module in new.extra.items()
        }
        self.place(
            old.replace(params=new.params, rest=new.rest, optimizers=kept, extra=extra, connector=new.connector)
        )
        return MultiRLModuleSpec.from_module(module)

    def get_state(
        self,
        components: str | Sequence[str] | None = None,
        *,
        not_components: str | Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The state as nested dicts of NumPy arrays.

        Args:
            components: Only these of ``rl_module, optimizer, extra, connector, counters``; None for all.
            not_components: Leave these out.
        """
        state = host_view(self.state)
        streams = self._pure.stream_refs
        state = jax.device_get(
            state.replace(
                key=jax.random.key_data(state.key),
                # Random streams are re-seeded from the key in every update: they are not state.
                rest={ref: leaf for ref, leaf in state.rest.items() if ref not in streams},
            )
        )
        parts = {
            "rl_module": {"params": state.params, "rest": state.rest},
            "optimizer": state.optimizers,
            "extra": state.extra,
            "connector": state.connector,
            "counters": {"timesteps": state.timesteps, "num_updates": state.num_updates, "key": state.key},
        }
        only = {components} if isinstance(components, str) else set(components or parts)
        without = {not_components} if isinstance(not_components, str) else set(not_components or ())
        unknown = (only | without) - set(STATE_COMPONENTS)
        if unknown:
            raise ValueError(f"Unknown components {sorted(unknown)} of a Learner; it has {list(STATE_COMPONENTS)}.")
        return {name: part for name, part in parts.items() if name in only - without}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; components that are missing stay as they are.

        Raises:
            ValueError: If names or shapes do not fit this learner's modules; nothing is changed then.
        """
        unknown = [name for name in state if name not in STATE_COMPONENTS]
        if unknown:
            raise ValueError(f"Unknown components {unknown} of a Learner; it has {list(STATE_COMPONENTS)}.")
        current = jax.device_get(host_view(self.state))
        if "rl_module" in state:
            given = state["rl_module"]
            current = current.replace(
                params=_same_leaves(given["params"], current.params, "rl_module/params"),
                rest={
                    **current.rest,
                    **_same_leaves(
                        given["rest"],
                        {r: leaf for r, leaf in current.rest.items() if r not in self._pure.stream_refs},
                        "rl_module/rest",
                    ),
                },
            )
        for part, field in (("optimizer", "optimizers"), ("extra", "extra"), ("connector", "connector")):
            if part in state:
                current = current.replace(**{field: _same_leaves(state[part], getattr(current, field), part)})
        if "counters" in state:
            counted = state["counters"]
            current = current.replace(
                timesteps=counted["timesteps"],
                num_updates=counted["num_updates"],
                key=jax.random.wrap_key_data(jnp.asarray(counted["key"])),
            )
        self.place(current)

    def get_weights(self) -> dict[str, np.ndarray]:
        """A copy of the trained parameters, ``{ref: array}``."""
        return jax.device_get(host_view(self.state.params))

    def set_weights(self, weights: dict[ModuleID, dict[str, Any]]) -> None:
        """Replace weights of some modules.

        Args:
            weights: ``{module_id: {name: array}}`` as `RLModule.get_state` gives it, or ``{ref: array}`` as
                `get_weights` gives it; what is left out stays.

        Raises:
            KeyError: For a module that is not here.
            ValueError: For names or shapes that a module does not have.
        """
        if weights and all(ref in self._pure.params for ref in weights):
            nested: dict[ModuleID, dict[str, Any]] = {}
            for ref, value in weights.items():
                module_id, _, name = ref.partition("/")
                nested.setdefault(module_id, {})[name] = value
            weights = nested
        unknown = [module_id for module_id in weights if module_id not in self._template]
        if unknown:
            raise KeyError(f"No module {unknown[0]!r}; there are {list(self._template)}.")
        module = self._synced_module()
        # Whatever goes wrong half-way: the next reader of `module` gets the weights of the state again.
        self._synced_updates = None
        for module_id, state in weights.items():
            module[module_id].set_state(state)
        params, rest = self._pure.unbind(module)
        self.place(jax.device_get(host_view(self.state)).replace(params=params, rest=rest))

    def check_connector_is_pure(self) -> None:
        """Refuse connector pieces that only run on the host, by name."""
        self._learner_connector.check_pure()

    @property
    def num_updates(self) -> int:
        """Updates done so far: the ``weights_seq_no`` of the current weights."""
        state = self.state
        if self._counted[0] is not state:
            self._counted = (state, int(np.asarray(host_view(state.num_updates))))
        return self._counted[1]

    def training_counts(self, plan: UpdatePlan, num_env_steps: int, num_updates: int) -> dict[str, Any]:
        """Counters for the result of one iteration.

        Args:
            plan: What every update was made with.
            num_env_steps: Rows of a train batch.
            num_updates: Updates in this iteration.

        Returns:
            ``{module_id or "__all_modules__": {name: number}}``. Steps trained are rows used in gradient steps: 138
            rows in two epochs of minibatches of 64 rows are 5 gradient steps and 320 rows.
        """
        total = self.num_updates
        size = plan.minibatch_size or num_env_steps
        rows = size * (plan.num_total_minibatches or num_minibatches(num_env_steps, size, plan.num_epochs))
        steps, lifetime = rows * num_updates, rows * total
        own = {
            mid: {
                "num_module_steps_trained": steps,
                "num_module_steps_trained_lifetime": lifetime,
                "module_train_batch_size_mean": num_env_steps,
                "num_trainable_parameters": sum(self._pure.params[r].size for r in self._pure.module_refs(mid)),
                "num_non_trainable_parameters": sum(
                    leaf.size for ref, leaf in self._pure.rest.items() if ref.startswith(f"{mid}/")
                ),
                "weights_seq_no": total,
                "diff_num_grad_updates_vs_sampler_policy": 0.0,
            }
            for mid in self._template
            if self.should_module_be_updated(mid)
        }
        return own | {
            ALL_MODULES: {
                "num_env_steps_trained": steps,
                "num_env_steps_trained_lifetime": lifetime,
                "num_module_steps_trained": steps,
                "num_module_steps_trained_lifetime": lifetime,
                "num_trainable_parameters": sum(p.size for p in self._pure.params.values()),
                "num_non_trainable_parameters": sum(r.size for r in self._pure.rest.values()),
            }
        }

    def shutdown(self) -> None:
        """Drop compiled programs and device buffers."""
        self._compiled.clear()
        self._state = None
        self._is_built = False


def gradient_rows_per_piece(devices: Sequence[Device]) -> int | None:
    """How many rows of a minibatch to differentiate at a time: what fits a CPU core's cache.

    Measured on 2 cores with 64x64 networks: gradients of 16,384 rows at once take 1.25 times, of 65,536 rows 1.75
    times as long as added up over pieces. One CPU device spreads a matrix product over all cores and needs larger
    pieces than one device per core. Accelerators take the whole minibatch.
    """
    if devices[0].platform != "cpu":
        return None
    return 4096 if len(devices) == 1 else 1024


STATE_COMPONENTS = ("rl_module", "optimizer", "extra", "connector", "counters")
"""Parts of what `Learner.get_state` returns."""

NOT_FINITE = "not_finite/"
"""Prefix of the flags that ``check_nans`` adds to the metrics of an update."""


def nest_metrics(flat: Mapping[MetricKey, Any]) -> dict[str, Any]:
    """``{(module_id, name): value}`` as ``{module_id: {name: float}}``, without the flags of ``check_nans``."""
    out: dict[str, Any] = {}
    for path, value in flat.items():
        if path[-1].startswith(NOT_FINITE):
            continue
        level = out
        for part in path[:-1]:
            level = level.setdefault(part, {})
        level[path[-1]] = float(value)
    return out


def merge_nested(into: dict[str, Any], new: Mapping[str, Any]) -> None:
    """Merge nested dicts in place; values of `new` win."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge_nested(into[key], value)
        else:
            into[key] = value


def clip_gradients(
    gradients: ParamDict, grad_clip: Any, grad_clip_by: str
) -> tuple[ParamDict, jax.Array]:
    """Clip gradients as RLlib does.

    Args:
        gradients: ``{ref: gradient}`` of one optimizer.
        grad_clip: Threshold; None or the Python number 0 switch clipping off.
        grad_clip_by: ``"value"`` clips every entry to ``[-c, c]``; ``"norm"`` scales each tensor to an L2 norm of at
            most ``c``; ``"global_norm"`` scales all of them together.

    Returns:
        ``(clipped gradients, global L2 norm before clipping)``.
    """
    vector, unravel = reductions.ravel(gradients)
    norm = jnp.sqrt(jnp.sum(jnp.square(vector)))
    if grad_clip is None or (isinstance(grad_clip, int | float) and grad_clip == 0):
        return gradients, norm
    if grad_clip_by == "value":
        return unravel(jnp.clip(vector, -grad_clip, grad_clip)), norm
    if grad_clip_by == "norm":
        scales = jax.tree.map(lambda g: grad_clip / jnp.maximum(optax.tree.norm(g), grad_clip), gradients)
        return jax.tree.map(jnp.multiply, gradients, scales), norm
    return unravel(vector * (grad_clip / jnp.maximum(norm + 1e-6, grad_clip))), norm


def _packing(params: ParamDict) -> tuple[Callable[[ParamDict], Any], Callable[[Any], ParamDict]]:
    """How to carry parameters through a loop: as one vector if all are float32, else as they are."""
    if not params or any(leaf.dtype != jnp.float32 for leaf in params.values()):
        return lambda params: params, lambda params: params
    _, unravel = reductions.ravel(params)
    return lambda params: reductions.ravel(params)[0], unravel


def _kept_or_fresh(kept: Any, fresh: Any) -> Any:
    """An optimizer state from before; a fresh one if there is none, or if it is for other parameters."""
    fits = jax.tree.structure(kept) == jax.tree.structure(fresh) and all(
        np.shape(a) == np.shape(b) for a, b in zip(jax.tree.leaves(kept), jax.tree.leaves(fresh), strict=True)
    )
    return kept if fits else fresh


def _same_leaves(given: Any, current: Any, name: str) -> Any:
    """`given`, checked to have the structure and shapes of `current`.

    Raises:
        ValueError: Naming the first difference.
    """
    if jax.tree.structure(given) != jax.tree.structure(current):
        raise ValueError(
            f"State {name!r} has the structure {jax.tree.structure(given)}; this learner needs "
            f"{jax.tree.structure(current)}. Load it into a learner of the same modules and optimizers."
        )
    for (path, leaf), want in zip(jax.tree.leaves_with_path(given), jax.tree.leaves(current), strict=True):
        if np.shape(leaf) != np.shape(want):
            raise ValueError(
                f"State {name}{jax.tree_util.keystr(path)} has shape {np.shape(leaf)}; this learner needs "
                f"{np.shape(want)}. Load it into a learner of the same modules and optimizers."
            )
    return given


def _resolve(refs: Sequence[Any]) -> list[Any]:
    """The objects behind Ray references, lists among them laid end to end."""
    # Ray is imported only where it runs, and a checkout can be checked without it.
    import ray  # pyright: ignore[reportMissingImports]

    objects = ray.get(list(refs))
    return [item for obj in objects for item in (obj if isinstance(obj, list) else [obj])]


def _concatenate(batches: Sequence[dict[ModuleID, dict[str, Any]]]) -> dict[ModuleID, dict[str, Any]]:
    if len(batches) == 1:
        return batches[0]
    return {
        mid: jax.tree.map(lambda *leaves: np.concatenate(leaves), *[b[mid] for b in batches if mid in b])
        for mid in dict.fromkeys(m for b in batches for m in b)
    }


def _as_blocks(rows: dict[ModuleID, dict[str, Any]], plan: UpdatePlan) -> dict[ModuleID, dict[str, Any]]:
    """Rows ``[N, ...]`` as blocks ``[D, 1, N / D, ...]``, filled up with masked rows where shards would be uneven."""
    out = {}
    for mid, columns in rows.items():
        num_rows = jax.tree.leaves(columns)[0].shape[0]
        missing = -num_rows % plan.num_shards
        if missing:
            columns = jax.tree.map(
                lambda x, n=missing: np.concatenate([x, np.repeat(x[-1:], n, axis=0)]), columns
            )
            mask = columns.get(Columns.LOSS_MASK, np.ones(num_rows + missing, bool)).copy()
            mask[num_rows:] = False
            columns = {**columns, Columns.LOSS_MASK: mask}
        shape = (plan.num_devices, 1, (num_rows + missing) // plan.num_devices)
        out[mid] = jax.tree.map(lambda x, s=shape: jnp.reshape(x, (*s, *x.shape[1:])), columns)
    return out
