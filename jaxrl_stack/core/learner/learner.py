"""The Learner: a thin shell with RLlib's hooks around one compiled, buffer-donating update."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import socket
import warnings
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, selected
from jaxrl_stack.core import ALL_MODULES, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.episodes_to_batch import episodes_to_batch
from jaxrl_stack.core.learner.learner_state import (
    STATE_COMPONENTS,
    LearnerState,
    kept_or_fresh,
    kept_where_it_fits,
)
from jaxrl_stack.core.learner.optimizers import (
    DEFAULT_OPTIMIZER,
    ParamDict,
    RegisteredOptimizer,
    clip_gradients,
    is_elementwise,
)
from jaxrl_stack.core.learner.row_blocks import (
    check_columns,
    concatenate,
    deal_out_columns,
    lay_out_rows,
    num_rows_of,
    padded_size,
    rows_per_shard,
)
from jaxrl_stack.core.learner.row_updates import RowUpdates
from jaxrl_stack.core.learner.steps_trained import StepsTrained, TrainedOn, env_steps
from jaxrl_stack.core.learner.traced_metrics import TracedMetrics
from jaxrl_stack.core.learner.traced_update import MetricKey, ModuleID, Trace, TracedUpdate, nest_metrics
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.learner.update_plan import RowCounts, UpdatePlan
from jaxrl_stack.core.learner.update_program import UpdateProgram, as_arrays, signature
from jaxrl_stack.core.rl_module.checks import check_module_outputs
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.core.rl_module.row_independence import rows_are_independent
from jaxrl_stack.ops import permutation, reductions
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import (
    Device,
    all_shards,
    host_view,
    learner_devices,
    map_over_devices,
    place_replicated,
)
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.schedules import validate_schedule
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.snapshots import Snapshots, is_lost, reraise
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

__all__ = [
    "AXIS_NAME",
    "DEFAULT_OPTIMIZER",
    "STATE_COMPONENTS",
    "Learner",
    "LearnerState",
    "MetricKey",
    "ModuleID",
    "ParamDict",
    "RegisteredOptimizer",
    "UpdatePlan",
    "clip_gradients",
    "nest_metrics",
]

AXIS_NAME = "devices"
"""Name of the mapped axis of every learner program."""


class Learner(TracedUpdate, Checkpointable):
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

    result_names: tuple[str, ...] = ()
    """What the result of an iteration has of every module from the beginning on, NaN until it is known; of a class and
    all that it derives from."""
    optimizer_names: tuple[str, ...] = (DEFAULT_OPTIMIZER,)
    """Names of the optimizers that every module has; each reports its learning rate and the norm of its gradients."""

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
        self._trace: Trace | None = None
        self._pure_hook: str | None = None
        self._is_built = False
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        self._optimizers: dict[ModuleID, dict[str, RegisteredOptimizer]] = {}
        self._state: LearnerState | None = None
        self._settings_on_device: Any = None
        self._counted: tuple[LearnerState | None, int] = (None, 0)
        self._num_parameters: dict[str, dict[str, int]] | None = None
        self._steps_trained = StepsTrained()
        self._snapshots = Snapshots(config.learner_snapshot_interval)

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
        # The pieces behind those that run on the host: what the compiled update consists of.
        self._pure_connector = self._learner_connector.pure_part()
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
        self._num_parameters = None

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
        return self.config.root_seed

    def _initial_state(self) -> LearnerState:
        params, rest = self._pure.params, self._pure.rest
        optimizers = {
            module_id: {name: opt.init(params) for name, opt in by_name.items()}
            for module_id, by_name in self._optimizers.items()
        }
        return LearnerState(
            params=params,
            rest=rest,
            optimizers=optimizers,
            extra=self.initial_extra_state(),
            connector=self._pure_connector.init(1),
            timesteps=counters.zero(),
            num_updates=jnp.uint32(0),
            key=stream_key(self._seed, Stream.LEARNER),
        )

    def initial_extra_state(self) -> dict[str, Any]:
        """Arrays that this algorithm keeps beside its networks. Override; ``{}`` by default."""
        return {}

    def place(self, state: LearnerState) -> None:
        """Put a state on all devices of this learner, as buffers that nothing else refers to."""
        self._state = place_replicated(state, self.devices)
        self._params_are_shared = False
        self._synced_updates: int | None = None
        if self.num_updates < self._steps_trained.num_updates:
            # A state from before what was counted, which says nothing of it.
            self._steps_trained = StepsTrained()

    def reset(self, config: AlgorithmConfig) -> None:
        """Start from the beginning with a config that differs in traced settings only; compiled programs are kept."""
        self._check_is_built()
        self.config = config.copy(copy_frozen=True)
        self._settings_on_device = None
        self._optimizers = {}
        self.configure_optimizers()
        self._check_every_module_has_an_optimizer()
        self._steps_trained = StepsTrained()
        self.metrics_logger.reset()
        self.place(self._initial_state())

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
    def reduction_axis(self) -> str | None:
        """The axis that means over devices go over; None where there is one device in all, whose reductions over
        itself would take longer than a small update."""
        return self.axis_name if len(self.devices) * self.num_joined_learners > 1 else None

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
            if not callable(optimizer):
                raise TypeError(
                    f"register_optimizer({optimizer_name!r}): optimizer={optimizer!r} must be a function of the "
                    f"learning rate that returns an optax.GradientTransformation, such as optax.adam."
                )
            validate_schedule(lr_or_lr_schedule, "lr_or_lr_schedule")
            made = optimizer(jnp.float32(0.0))
            if not isinstance(made, optax.GradientTransformation):
                raise TypeError(
                    f"register_optimizer({optimizer_name!r}): optimizer={optimizer!r} returned {made!r}. It must "
                    f"return an optax.GradientTransformation, as optax.adam does."
                )
            factory = optimizer
        refs = self._refs_to_optimize(optimizer_name, params)
        taken = {ref: opt for by_name in self._optimizers.values() for opt in by_name.values() for ref in opt.refs}
        for ref in refs:
            if ref in taken:
                raise ValueError(
                    f"Parameter {ref!r} belongs to optimizer {taken[ref].name!r} of module "
                    f"{taken[ref].module_id!r} already and cannot join {optimizer_name!r} of {module_id!r}."
                )
        params_of = [self._pure.params[ref] for ref in dict.fromkeys(refs)]
        self._optimizers.setdefault(module_id, {})[optimizer_name] = RegisteredOptimizer(
            module_id=module_id,
            name=optimizer_name,
            factory=factory,
            refs=tuple(dict.fromkeys(refs)),
            lr=lr_or_lr_schedule,
            is_flat=is_elementwise(optimizer)
            and all(own.dtype == jnp.float32 for own in params_of)
            and reductions.num_elements(params_of) <= reductions.LARGEST_VECTOR,
        )

    def _refs_to_optimize(self, optimizer_name: str, params: Any) -> list[str]:
        """The refs of `register_optimizer`'s `params`."""
        remedy = "Give self.get_parameters(self.module[module_id]), or submodules or refs of it."
        call = f"register_optimizer({optimizer_name!r}, params=...)"
        params = list(params) if isinstance(params, Iterable) and not isinstance(params, str) else params
        if not isinstance(params, list) or not params:
            raise ValueError(f"{call}: got {params!r} where a list of parameters belongs. {remedy}")
        refs: list[str] = []
        for param in params:
            if not isinstance(param, str | nnx.Variable | nnx.Pytree):
                raise TypeError(f"{call}: {param!r} is no parameter, submodule or ref. {remedy}")
            refs.extend([param] if isinstance(param, str) else self._pure.refs_of(param))
        unknown = [ref for ref in refs if ref not in self._pure.params]
        if unknown:
            close = difflib.get_close_matches(unknown[0], self._pure.params, n=3) or list(self._pure.params)[:6]
            raise ValueError(f"{call}: there is no parameter {unknown[0]!r}, but for example {close}. {remedy}")
        return refs

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

    # ---------------------------------------------------------------------------------------------- host update
    def _config_for(self, module_id: ModuleID) -> AlgorithmConfig:
        config = self.config.get_config_for_module(module_id)
        overrides = self._module_overrides.get(module_id)
        if overrides:
            config = config.copy(copy_frozen=False).update_from_dict(overrides)
            config.freeze()
        return config

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
        num_learners = self.num_joined_learners
        num_devices = len(self.devices) * num_learners
        num_shards = self.config.num_shuffle_shards or num_devices
        if num_shards % num_devices:
            joined = f", over {num_learners} learners" if num_learners > 1 else ""
            raise ValueError(
                f"num_shuffle_shards={num_shards} must be a multiple of the number of devices, {num_devices}{joined}."
            )
        for name, value, least in (
            ("num_epochs", num_epochs, 1),
            ("num_total_minibatches", num_total_minibatches, 0),
        ):
            if value < least:
                raise ValueError(f"{name}={value} must be at least {least}.")
        plan = UpdatePlan(
            num_epochs,
            minibatch_size,
            shuffle_batch_per_epoch,
            num_total_minibatches,
            num_shards,
            num_devices,
            num_learners,
        )
        if minibatch_size is not None and (minibatch_size < 1 or minibatch_size % plan.local_shards):
            below = max(minibatch_size // plan.local_shards, 1) * plan.local_shards
            raise ValueError(
                f"minibatch_size={minibatch_size} does not divide by the {plan.local_shards} shuffle shards (one per "
                f"device unless num_shuffle_shards is set). Use minibatch_size={below}, for example."
            )
        return plan

    def update_block(
        self,
        block: dict[ModuleID, dict[str, Any]],
        *,
        timesteps: dict[str, Any] | int | None = None,
        **sizes: Any,
    ) -> dict[str, Any]:
        """Update from steps as they were sampled: connector pipeline and minibatch loop in one compiled program.

        It is the computation of an iteration on the device; each shape of block is compiled once.

        Args:
            block: ``{module_id: {column: [T, B, ...]}}``, NumPy; device ``d`` of this learner's D takes the columns
                ``d * B/D ... (d+1) * B/D - 1``. The arrays are only read, and not kept.
            timesteps: As for `update`.
            **sizes: ``num_epochs``, ``minibatch_size``, ``shuffle_batch_per_epoch`` and ``num_total_minibatches``, as
                for `update`.

        Returns:
            What `update` returns.

        Raises:
            ValueError: If columns differ in ``[T, B]``, B does not divide by devices and shuffle shards, or the
                learner pipeline has host pieces, which work on episodes.
        """
        self._check_is_built()
        if self.has_host_pieces:
            raise ValueError(
                f"update_block() is compiled from end to end, and the learner pipeline's {self.host_piece_names} run "
                f"on the host, on episodes: use update(episodes=...), or write them as pure functions."
            )
        plan = self.plan(**sizes)
        num_rows = {mid: self._check_block(mid, columns, plan) for mid, columns in block.items()}
        counter = self._timesteps_counter(timesteps)
        self._before_update(counter)
        dealt = {mid: deal_out_columns(columns, plan.local_devices) for mid, columns in block.items()}
        return self._update_with(
            "update_block",
            lambda: functools.partial(self.pure_update, plan=plan, axis_name=self.reduction_axis),
            dealt,
            counter=counter,
            plan=plan,
            counts=self._training_of(plan, num_rows, block),
        )

    def _check_block(self, module_id: ModuleID, columns: dict[str, Any], plan: UpdatePlan) -> int:
        """The rows of one module's block.

        Raises:
            ValueError: If it cannot be dealt out to devices and shards.
        """
        if module_id not in self._template:
            raise ValueError(f"The block has a module {module_id!r}; this learner has {list(self._template)}.")
        shapes = {np.shape(leaf)[:2] for leaf in jax.tree.leaves(columns)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 2 or 0 in next(iter(shapes)):
            found = {name: [np.shape(leaf) for leaf in jax.tree.leaves(column)] for name, column in columns.items()}
            raise ValueError(
                f"All columns of a block must be [T, B, ...] with the same T and B above 0; module {module_id!r} has "
                f"{found}."
            )
        num_steps, num_columns = next(iter(shapes))
        if num_columns % plan.local_shards:
            more = -(-num_columns // plan.local_shards) * plan.local_shards
            if plan.num_shards == plan.num_devices:
                what = f"{plan.local_shards} devices of a learner (num_cpus_per_learner or num_gpus_per_learner)"
            else:
                what = f"{plan.local_shards} shuffle shards of a learner (num_shuffle_shards={plan.num_shards})"
            raise ValueError(
                f"A block of B={num_columns} columns, one per environment, cannot be dealt out to the {what}: their "
                f"number must divide B. Use {more} environments, or as many as divide {num_columns} of the other."
            )
        return num_steps * num_columns

    @property
    def num_joined_learners(self) -> int:
        """Learners whose devices form one axis: the processes that ``jax.distributed`` joined, 1 without it."""
        return jax.process_count(self.devices[0].platform)

    @property
    def host_piece_names(self) -> list[str]:
        """Names of the learner pipeline's pieces that run on the host, on episodes."""
        return list(self._learner_connector.host_connectors)

    @property
    def has_host_pieces(self) -> bool:
        """Whether the learner pipeline has pieces that run on the host: then only episodes can be learned from."""
        return bool(self._learner_connector.host_connectors)

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
            episodes: Episodes; they pass through the learner connector pipeline, whose host pieces may change them.
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
            ``{module_id: {metric: float}}``, of the last minibatch, with what the host hooks logged into `metrics`,
            and with the counters of `training_counts`.

        Raises:
            ValueError: If not exactly one data argument is given, or sizes do not fit.
        """
        self._check_is_built()
        data = TrainingData.of(
            training_data,
            batch=batch,
            batches=batches,
            batch_refs=batch_refs,
            episodes=episodes,
            episodes_refs=episodes_refs,
            data_iterators=data_iterators,
        )
        plan = self.plan(
            num_epochs=num_epochs,
            minibatch_size=minibatch_size,
            shuffle_batch_per_epoch=shuffle_batch_per_epoch,
            num_total_minibatches=num_total_minibatches,
        )
        counter = self._timesteps_counter(timesteps)
        self._before_update(counter)
        data.solve_refs()
        if data.episodes is not None:
            rows = self._rows_of_episodes(data.episodes, counter)
        else:
            batches = [data.batch] if data.batches is None else data.batches
            if data.data_iterators is not None:
                batches = [next(iter(iterator)) for iterator in data.data_iterators]
            rows = concatenate([self._as_multi_module_batch(batch) for batch in batches])
        return self._fit_rows(rows, counter, plan)

    def _fit_rows(self, rows: dict[ModuleID, dict[str, Any]], counter: np.ndarray, plan: UpdatePlan) -> dict[str, Any]:
        """The minibatch loop over rows on the host, ``{module_id: {column: [N, ...]}}``."""
        num_rows = {mid: num_rows_of(mid, columns) for mid, columns in rows.items()}
        per_shard = {mid: rows_per_shard(n, plan.local_shards) for mid, n in num_rows.items()}
        of_all_learners = self._sizes_of_all_learners(per_shard, rows)
        in_minibatches = plan.minibatch_size is not None
        # What fills up is never in a minibatch of one shard. Where a batch is taken whole, the loss leaves it out; a
        # module that looks across rows cannot, so that every number of rows is a program of its own.
        is_padded = in_minibatches or all(rows_are_independent(self._template[mid]) for mid in rows)
        shows_padding = is_padded and not in_minibatches
        is_masked = shows_padding or plan.num_shards > 1 or type(self).pre_update is not Learner.pre_update
        blocks = {}
        for mid, columns in rows.items():
            largest = int(of_all_learners[mid].max())
            blocks[mid] = lay_out_rows(
                columns,
                num_devices=plan.local_devices,
                num_shards=plan.local_shards,
                size=padded_size(largest) if is_padded else largest,
                mask=is_masked,
            )
        counts = self._training_of(plan, num_rows, rows)
        if not in_minibatches:
            fit = functools.partial(self.pure_fit, plan=plan, axis_name=self.reduction_axis)
            return self._update_with("fit", lambda: fit, blocks, counter=counter, plan=plan, counts=counts)

        # All learners make as many steps as if the rows were dealt out evenly.
        steps = max(
            plan.num_steps(-(-int(n.sum()) // len(n)))
            for mid, n in of_all_learners.items()
            if self.should_module_be_updated(mid, rows)
        )
        # The number of gradient steps is an argument: another one is the same program.
        plan = dataclasses.replace(plan, num_total_minibatches=int(plan.num_total_minibatches > 0))

        def fit_counted(state, batch, settings, timesteps, row_counts):
            return self.pure_fit(
                state, batch, settings, timesteps, plan=plan, axis_name=self.reduction_axis, row_counts=row_counts
            )

        # Other learners may have other numbers of rows: one entry per device.
        domains = {mid: np.array(permutation.domain(n), np.uint32) for mid, n in per_shard.items()}
        row_counts = RowCounts(domains, np.array(steps, np.uint32))
        row_counts = jax.tree.map(lambda x: np.repeat(x[None], plan.local_devices, axis=0), row_counts)
        return self._update_with(
            "fit in minibatches", lambda: fit_counted, blocks, row_counts, counter=counter, plan=plan, counts=counts
        )

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
        module_ids = [] if batch is None else list(self._template)
        is_updated = [int(self.should_module_be_updated(mid, batch)) for mid in module_ids]
        everyone = self._gathered([*sizes.values(), *is_updated])
        for mid, of_all in zip(module_ids, everyone[len(sizes) :], strict=True):
            if of_all.min() != of_all.max():
                raise ValueError(
                    f"should_module_be_updated({mid!r}) is True in {int(of_all.sum())} of {len(of_all)} learners, "
                    f"which make one update together: it has to be the same in all of them. Let "
                    f"multi_agent(policies_to_train=...), or what overrides that method, depend on nothing that "
                    f"differs between the learners, such as the rows of their batches."
                )
        return dict(zip(sizes, everyone[: len(sizes)], strict=True))

    def _gathered(self, numbers: Sequence[int]) -> np.ndarray:
        """``[len(numbers), L]``: the numbers of all L joined learners."""
        key = ("gathered", len(numbers))
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                lambda own: (jax.lax.all_gather(own, AXIS_NAME),),
                self.devices,
                axis_name=AXIS_NAME,
                in_axes=(0,),
                out_axes=(None,),
                donate_argnums=(),
            )
        own = np.array(numbers, np.int32)
        (everyone,) = self._compiled[key](np.tile(own, (len(self.devices), 1)))
        # One entry per device of all learners, each with as many.
        return np.asarray(host_view(everyone))[:: len(self.devices)].T

    def _before_update(self, counter: np.ndarray) -> None:
        self.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})

    def _update_with(
        self,
        name: str,
        make: Callable[[], Callable[..., Any]],
        batch: Any,
        *mapped: Any,
        counter: np.ndarray,
        plan: UpdatePlan,
        counts: Mapping[ModuleID, TrainedOn],
    ) -> dict[str, Any]:
        """Run one update's program and everything that comes behind it.

        Args:
            name: Of the program.
            make: Makes the pure function ``(state, batch, settings, counter, *mapped) -> (state, metrics)``.
            batch: NumPy leaves ``[D, ...]``.
            *mapped: Further arguments of that kind.
            counter: Lifetime env steps.
            plan: Of the update, part of the program.
            counts: What is trained on.

        Returns:
            The result of the update.
        """
        key = (name, plan, *signature((batch, mapped)))
        if key not in self._compiled:
            self._sizes_of_all_learners({}, batch)
            self._compiled[key] = UpdateProgram(make(), self.devices, self.axis_name, num_mapped=len(mapped))
        program = self._compiled[key]
        num_updates = self.num_updates
        settings = self.placed_settings()
        with deferred_interrupt(), self._recovering(num_updates):
            self._before_donation()
            self._state, vector = program(self._unshared_state(), batch, settings, counter, *mapped)
            # Behind this nothing reads the caller's arrays any more, on any device.
            vector.block_until_ready()
            self._snapshots.after_call(self._state)
            self._counted = (self._state, num_updates + 1)
            self._steps_trained.count(counts, num_updates + 1)
        results = program.unravel(np.asarray(host_view(vector)))
        self.raise_if_not_finite(results, iteration=num_updates + 1)
        self.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})
        out = nest_metrics(results)
        merge_nested(out, self._counters_of_result(counts, num_updates=1))
        merge_nested(out, self.metrics_logger.compile())
        return out

    def update_rows(
        self, batch: Mapping[ModuleID, Mapping[str, Any]], *, timesteps: dict[str, Any] | int | None = None
    ) -> dict[MetricKey, np.ndarray]:
        """One gradient step on all rows of a batch, as it was drawn from replay.

        The hot path of off-policy algorithms: rows are not looked at, and metrics stay on the devices until
        `row_results` asks for those of the last update. The learner pipeline sees the rows as one time step.

        Args:
            batch: ``{module_id: {column: [N, ...]}}``, NumPy; each of this learner's D devices takes N / D rows. The
                arrays are only read, and not kept.
            timesteps: As for `update`.

        Returns:
            ``{(module_id, name): float32 [N]}``: what the loss logged with ``reduce="item_series"``, row by row.

        Raises:
            ValueError: If N does not divide by D, or the learner pipeline has host pieces, which work on episodes.
            FloatingPointError: With ``check_nans``, for a loss or gradient that is not finite.
        """
        num_rows = {mid: len(next(iter(columns.values()))) for mid, columns in batch.items()}
        program = self._row_updates = self._row_updates or self._make_row_updates(batch)
        if any(n % len(self.devices) for n in num_rows.values()):
            raise ValueError(
                f"A batch of {num_rows} rows cannot be dealt out to the {len(self.devices)} devices of a learner "
                f"(num_cpus_per_learner or num_gpus_per_learner): make train_batch_size_per_learner a multiple."
            )
        counter = self._timesteps_counter(timesteps)
        hooks = self.has_host_hooks
        if hooks:
            self._before_update(counter)
        num_updates = self.num_updates + 1
        settings = self.placed_settings()
        with deferred_interrupt(), self._recovering(num_updates - 1):
            self._before_donation()
            self._state, table = program(self.state, batch, settings, counter)
            # Reading them waits: behind this nothing uses the caller's arrays any more.
            rows = program.rows(table)
            self._snapshots.after_call(self._state)
            self._counted = (self._state, num_updates)
            if num_rows != self._rows_trained_on[0]:
                trained = {mid: TrainedOn(n, n) for mid, n in num_rows.items() if self.should_module_be_updated(mid)}
                self._rows_trained_on = (num_rows, trained)
            self._steps_trained.count(self._rows_trained_on[1], num_updates)
        if self.config.check_nans:
            self.raise_if_not_finite(program.metrics(), iteration=num_updates)
        if hooks:
            self.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})
        return rows

    def _before_donation(self) -> None:
        # Eager runs donate nothing, and actors start again from what their group has copied.
        if self.axis_name is not None and not self.config.num_learners:
            self._snapshots.before_call(self.state)

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
            self._row_updates = None
            self.place(dataclasses.replace(state, num_updates=np.uint32(num_updates)))
            reraise(
                error,
                f"An update failed while it ran, and took the learner's state with it. The learner goes on from its "
                f"last snapshot; lost: this update and {lost} before it "
                f"(learner_snapshot_interval={self.config.learner_snapshot_interval}).",
            )

    def _make_row_updates(self, batch: Mapping[ModuleID, Mapping[str, Any]]) -> RowUpdates:
        self._check_is_built()
        if self.has_host_pieces:
            raise ValueError(
                f"update_rows() takes rows from replay, and the learner pipeline's {self.host_piece_names} run on the "
                f"host, on episodes: write them as pure functions, apply(self, state, batch, ctx)."
            )
        self._sizes_of_all_learners({}, batch)
        self._rows_trained_on = ({}, {})
        return RowUpdates(self.pure_step, self.devices, self.axis_name)

    def row_results(self, num_updates: int = 1) -> dict[str, Any]:
        """The result of the last `update_rows`, in the form of `update`.

        Args:
            num_updates: Updates that the counters "trained" are over.

        Returns:
            ``{module_id: {metric: float}}``; empty before the first `update_rows`.
        """
        out = {} if self._row_updates is None else nest_metrics(self._row_updates.metrics())
        if out:
            merge_nested(out, self._counters_of_result(self._rows_trained_on[1], num_updates))
            merge_nested(out, self.metrics_logger.compile())
        return out

    _row_updates: RowUpdates | None = None
    _rows_trained_on: tuple[dict[ModuleID, int], dict[ModuleID, TrainedOn]] = ({}, {})
    _params_are_shared = False

    def weights_in_place(
        self, params: Collection[str], rest: Collection[str], sharding: jax.sharding.NamedSharding
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """What a policy in this process acts with, parameters without a copy where they are on its device.

        Nothing changes these arrays: `update_rows` makes new parameters, and other updates copy them first.

        Args:
            params: Refs of the parameters.
            rest: Refs of the modules' other state.
            sharding: What the policy runs with, one device.

        Returns:
            ``(params, rest)``, ``{ref: array}`` of that sharding.
        """
        state = self.state
        # The other state is donated by the next update.
        others = {ref: jax.device_put(np.array(host_view(state.rest[ref])), sharding) for ref in rest}
        own = {ref: state.params[ref] for ref in params}
        if any(leaf.sharding != sharding for leaf in own.values()):
            return jax.device_put(host_view(own), sharding), others
        self._params_are_shared = True
        return own, others

    def _unshared_state(self) -> LearnerState:
        """The state for a program that donates it: nobody acts with its arrays."""
        if self._params_are_shared:
            self._replace_in_state(params=place_replicated(self.state.params, self.devices))
            self._params_are_shared = False
        return self.state

    def _replace_in_state(self, **parts: Any) -> None:
        """Change parts of the state as a step of an update."""
        old, self._state = self.state, dataclasses.replace(self.state, **parts)
        self._snapshots.renamed(old, self._state)

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

    def placed_settings(self) -> Any:
        """`settings` on this learner's devices; placed once."""
        if self._settings_on_device is None:
            self._settings_on_device = place_replicated(self.settings(), self.devices)
        return self._settings_on_device

    def _timesteps_counter(self, timesteps: dict[str, Any] | int | None) -> np.ndarray:
        steps = timesteps.get("num_env_steps_sampled_lifetime", 0) if isinstance(timesteps, Mapping) else timesteps
        if not (steps is None or isinstance(steps, int | np.integer)):
            raise TypeError(
                f"timesteps={timesteps!r} must be a number of env steps, or "
                f"{{'num_env_steps_sampled_lifetime': number}}."
            )
        return counters.from_int(int(steps or 0))

    def _as_multi_module_batch(self, batch: Any) -> dict[ModuleID, dict[str, Any]]:
        batch = getattr(batch, "policy_batches", batch)
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"A batch is a dict {{column: [N, ...]}} or {{module_id: {{column: [N, ...]}}}}, got a "
                f"{type(batch).__name__}. Several batches are update(batches=[...])."
            )
        if any(key in self._template for key in batch):
            unknown = [key for key in batch if key not in self._template]
            if unknown:
                raise ValueError(f"The batch has modules {unknown} that this learner does not: {list(self._template)}.")
            columns_of = {mid: dict(columns) for mid, columns in batch.items()}
        elif len(self._template) > 1:
            raise ValueError(f"A learner of {list(self._template)} needs batches of the form {{module_id: columns}}.")
        else:
            columns_of = {next(iter(self._template)): dict(batch)}
        for mid, columns in columns_of.items():
            check_columns(mid, columns, self._template[mid])
        return columns_of

    def _rows_of_episodes(self, episodes: Sequence[Any], counter: np.ndarray) -> dict[ModuleID, dict[str, Any]]:
        """Episodes through the learner connector pipeline: ``{module_id: {column: [N, ...]}}`` on the host, step by
        step and episode by episode."""
        columns = None
        if self.has_host_pieces:
            columns = self._learner_connector.columns_from_host_connectors(
                episodes,
                rl_module=self._synced_module(),
                metrics=self.metrics_logger,
                metrics_prefix_key=(ALL_MODULES, "learner_connector"),
            )
        block, rows = episodes_to_batch(
            episodes,
            self._template,
            columns=columns,
            num_devices=len(self.devices),
            common_sizes=self._largest_of_all_learners,
        )
        key = ("connect", *signature(block))
        if key not in self._compiled:
            self._compiled[key] = map_over_devices(
                self._connect_program,
                self.devices,
                axis_name=self.axis_name,
                in_axes=(None, 0, None, None),
                out_axes=(None, 0),
                donate_argnums=(),
            )
        # Optimizers have no part in it.
        state = dataclasses.replace(self.state, optimizers={})
        connector, batch = self._compiled[key](state, as_arrays(block, self.axis_name), self.placed_settings(), counter)
        batch = all_shards(batch)  # Waits, and raises if the program has failed.
        self._replace_in_state(connector=connector)
        return {
            mid: jax.tree.map(lambda x, i=rows[mid]: x.reshape(-1, *x.shape[3:])[i], columns)
            for mid, columns in batch.items()
        }

    def _connect_program(self, state, block, settings, counter):
        block = self.with_clipped_rewards(block)
        state, batch = self.pure_connect(state, block, settings, counter, axis_name=self.reduction_axis)
        return state.connector, batch

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
        modules = dict(self._synced_module().items())
        new = module_spec.build(seed=derived_seed("module", self._seed, len(modules)))
        self._check_module(module_id, new)
        overrides = self._module_overrides | ({module_id: config_overrides} if config_overrides else {})
        return self._regroup(modules | {module_id: new}, overrides, new_should_module_be_updated)

    def remove_module(self, module_id: ModuleID, *, new_should_module_be_updated: Any = None) -> MultiRLModuleSpec:
        """Remove a module with its optimizers. The next update compiles anew.

        Returns:
            The spec of what is left.
        """
        self._check_is_built()
        if module_id not in self._template:
            raise ValueError(f"There is no module {module_id!r}; there are {list(self._template)}.")
        modules = {mid: module for mid, module in self._synced_module().items() if mid != module_id}
        if not modules:
            raise ValueError(f"Module {module_id!r} is this learner's only one; add_module(...) the next one first.")
        overrides = {mid: own for mid, own in self._module_overrides.items() if mid != module_id}
        return self._regroup(modules, overrides, new_should_module_be_updated)

    def _regroup(
        self, modules: dict[ModuleID, RLModule], overrides: dict[ModuleID, dict[str, Any]], should_update: Any
    ) -> MultiRLModuleSpec:
        """Go on with these modules. Whatever raises on the way, the learner stays as it was."""
        old = jax.device_get(host_view(self.state))
        before, modules_before = dict(vars(self)), dict(self._template.items())
        try:
            _set_modules(self._template, modules)
            self._module_overrides = overrides
            if should_update is not None:
                self._should_update = should_update
            self._set_module(self._template)
            self._compiled = {}
            self._row_updates = None
            self._settings_on_device = None
            self._optimizers = {}
            self.configure_optimizers()
            self._check_every_module_has_an_optimizer()
            fresh = self._initial_state()
            state = old.replace(
                params=fresh.params,
                rest=fresh.rest,
                optimizers={
                    mid: {name: kept_or_fresh(old.optimizers.get(mid, {}).get(name), opt) for name, opt in own.items()}
                    for mid, own in fresh.optimizers.items()
                },
                extra={
                    name: {mid: old.extra.get(name, {}).get(mid, leaf) for mid, leaf in by_module.items()}
                    for name, by_module in fresh.extra.items()
                },
                connector=kept_where_it_fits(old.connector, fresh.connector),
            )
            self.place(state)
        except BaseException:
            _set_modules(self._template, modules_before)
            vars(self).update(before)
            raise
        return MultiRLModuleSpec.from_module(self._template)

    def get_state(
        self,
        components: str | Collection[str] | None = None,
        *,
        not_components: str | Collection[str] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The state as nested dicts of NumPy arrays.

        Args:
            components: Only these of `STATE_COMPONENTS`; None for all.
            not_components: Leave these out.
            **kwargs: None.

        Returns:
            ``rl_module`` is ``{module_id: RLModule.get_state()}``; ``optimizer`` is ``{module_id: {"path/to/leaf":
            array}}``, and ``extra`` and ``connector`` are the same for their parts.
        """
        state = self.state
        make = {
            "rl_module": lambda: self.module.get_state(),
            "optimizer": lambda: _by_name(state.optimizers),
            "extra": lambda: _by_name(state.extra),
            "connector": lambda: _by_name(state.connector),
            "host_connector": lambda: {
                n: piece.get_state() for n, piece in self._learner_connector.checked_host_connectors()
            },
            "counters": lambda: {
                "timesteps": np.asarray(host_view(state.timesteps)),
                "num_updates": np.asarray(host_view(state.num_updates)),
                "key": np.asarray(jax.random.key_data(host_view(state.key))),
                "steps_trained": self._steps_trained.get_state(self._template),
            },
            "metrics_logger": lambda: self.metrics_logger.get_state(),
        }
        return {name: make[name]() for name in selected(STATE_COMPONENTS, components, not_components, "a Learner")}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; components that are missing stay as they are.

        Raises:
            ValueError: If names, shapes or dtypes do not fit this learner's modules; nothing is changed then.
        """
        unknown = [name for name in state if name not in STATE_COMPONENTS]
        if unknown:
            raise ValueError(f"Unknown components {unknown} of a Learner; it has {list(STATE_COMPONENTS)}.")
        current = jax.device_get(host_view(self.state))
        if "rl_module" in state:
            params, rest = self._with_module_states(state["rl_module"])
            current = current.replace(params=params, rest=rest)
        for part, field in (("optimizer", "optimizers"), ("extra", "extra"), ("connector", "connector")):
            if part in state:
                current = current.replace(**{field: _from_names(getattr(current, field), state[part], part)})
        trained = self._steps_trained
        if "counters" in state:
            counted = state["counters"]
            present = {
                "timesteps": current.timesteps,
                "num_updates": current.num_updates,
                "key": jax.random.key_data(current.key),
            }
            given = {name: value for name, value in counted.items() if name != "steps_trained"}
            given = from_named_leaves(present, given, "a Learner's counters")
            key: Any = np.asarray(given["key"])
            current = current.replace(**given | {"key": jax.random.wrap_key_data(key)})
            trained = StepsTrained.from_state(counted["steps_trained"])
        if "host_connector" in state:
            pieces = dict(self._learner_connector.checked_host_connectors())
            for name, piece_state in state["host_connector"].items():
                pieces[name].set_state(piece_state)
        if "metrics_logger" in state:
            self.metrics_logger.set_state(state["metrics_logger"])
        self._steps_trained = trained
        self.place(current)

    def _with_module_states(self, states: Mapping[ModuleID, Mapping[str, Any]]) -> tuple[Any, Any]:
        """``(params, rest)`` with these states of modules in place of the present ones."""
        unknown = [module_id for module_id in states if module_id not in self._template]
        if unknown:
            raise KeyError(f"No module {unknown[0]!r}; there are {list(self._template)}.")
        module = self._synced_module()
        # Whatever goes wrong half-way: the next reader of `module` gets the weights of the state again.
        self._synced_updates = None
        for module_id, state in states.items():
            module[module_id].set_state(state)
        return self._pure.unbind(module)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """``config`` and ``module_spec``."""
        return (), {"config": self.config, "module_spec": MultiRLModuleSpec.from_module(self._template)}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """The MultiRLModule, ``"rl_module"``."""
        return [(COMPONENT_RL_MODULE, self.module)]

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        if isinstance(kwargs.get("module_spec"), MultiRLModuleSpec):
            check_fits_specs(kwargs["module_spec"], state.get("rl_module", {}))
        learner = super()._build_from_checkpoint(args, kwargs, state)
        learner.build()
        return learner

    def weights_for_runners(self) -> dict[str, dict[str, np.ndarray]]:
        """``{"params": {ref: array}, "rest": {ref: array}}``: what env runners act with.

        Random streams are not among it: every program seeds them anew from its key. Nor are target networks.
        """
        left_out = self._pure.stream_refs | self._pure.target_refs
        params, rest = self.state.params, self.state.rest
        own = {ref: leaf for ref, leaf in rest.items() if ref not in left_out}
        return jax.device_get(host_view({"params": params, "rest": own}))

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
        params, rest = self._with_module_states(weights)
        self.place(jax.device_get(host_view(self.state)).replace(params=params, rest=rest))

    def check_connector_is_pure(self) -> None:
        """Refuse connector pieces that only run on the host, by name."""
        self._learner_connector.check_pure()

    @classmethod
    def all_result_names(cls) -> tuple[str, ...]:
        """What updates report of every module: losses, and what its optimizers do."""
        names = [name for base in reversed(cls.__mro__) for name in vars(base).get("result_names", ())]
        rates = [f"{name}_learning_rate" for name in cls.optimizer_names]
        norms = [f"gradients_{name}_global_norm" for name in cls.optimizer_names]
        return tuple(dict.fromkeys(["total_loss", *names, *rates, *norms]))

    @property
    def num_updates(self) -> int:
        """Updates done so far: the ``weights_seq_no`` of the current weights."""
        state = self.state
        if self._counted[0] is not state:
            self._counted = (state, int(np.asarray(host_view(state.num_updates))))
        return self._counted[1]

    def training_counts(self, plan: UpdatePlan, num_env_steps: int, num_updates: int) -> dict[str, Any]:
        """Counters for the result of updates that were made from outside: an iteration on the device.

        Args:
            plan: What every update was made with.
            num_env_steps: Rows of a train batch.
            num_updates: Updates in this iteration.

        Returns:
            ``{module_id or "__all_modules__": {name: number}}``. Steps trained are rows used in gradient steps: 138
            rows in two epochs of minibatches of 64 rows are 5 gradient steps and 320 rows.
        """
        rows = dict.fromkeys(self._template, num_env_steps)
        return self._counters_of_result(self._training_of(plan, rows, {}), num_updates)

    def _training_of(
        self, plan: UpdatePlan, num_rows: Mapping[ModuleID, int], batch: Mapping[ModuleID, Mapping[str, Any]]
    ) -> dict[ModuleID, TrainedOn]:
        """What one update from that many rows trains on, of which the batch may mask some."""
        steps = max(plan.num_steps(rows_per_shard(n, plan.local_shards)) for n in num_rows.values())
        out = {}
        for mid, rows in num_rows.items():
            if self.should_module_be_updated(mid):
                mask = batch.get(mid, {}).get(Columns.LOSS_MASK)
                valid = rows if mask is None else int(np.count_nonzero(mask))
                # Epochs cover every row equally often: of the valid ones, as large a share as of all.
                out[mid] = TrainedOn(valid, round(steps * (plan.minibatch_size or rows) * valid / rows))
        return out

    def _counters_of_result(self, counts: Mapping[ModuleID, TrainedOn], num_updates: int) -> dict[str, Any]:
        total = self.num_updates
        sizes = self._parameter_counts()
        own = {
            mid: {
                "num_module_steps_trained": count.num_steps * num_updates,
                "num_module_steps_trained_lifetime": self._steps_trained.lifetime(mid, count.num_steps, total),
                "module_train_batch_size_mean": count.batch_size,
                **sizes[mid],
                "weights_seq_no": total,
                "diff_num_grad_updates_vs_sampler_policy": 0.0,
            }
            for mid, count in counts.items()
        }
        steps = env_steps(counts)
        return own | {
            ALL_MODULES: {
                "num_env_steps_trained": steps * num_updates,
                "num_env_steps_trained_lifetime": self._steps_trained.lifetime(ALL_MODULES, steps, total),
                "num_module_steps_trained": sum(m["num_module_steps_trained"] for m in own.values()),
                "num_module_steps_trained_lifetime": sum(m["num_module_steps_trained_lifetime"] for m in own.values()),
                **sizes[ALL_MODULES],
            }
        }

    def _parameter_counts(self) -> dict[str, dict[str, int]]:
        """Numbers of parameters of every module, and of all of them together."""
        if self._num_parameters is None:

            def count(params: Any, rest: Any) -> dict[str, int]:
                return {
                    "num_trainable_parameters": sum(p.size for p in params),
                    "num_non_trainable_parameters": sum(r.size for r in rest),
                }

            pure = self._pure
            self._num_parameters = {
                mid: count(
                    [pure.params[ref] for ref in pure.module_refs(mid)],
                    [leaf for ref, leaf in pure.rest.items() if ref.startswith(f"{mid}/")],
                )
                for mid in self._template
            } | {ALL_MODULES: count(pure.params.values(), pure.rest.values())}
        return self._num_parameters

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call ``func(self, *args, **kwargs)``; for a learner that is an actor made by hand."""
        return func(self, *args, **kwargs)

    def shutdown(self) -> None:
        """Drop compiled programs and device buffers."""
        self._compiled.clear()
        self._row_updates = None
        self._state = None
        self._snapshots.forget()
        self._is_built = False


def _by_name(tree: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: named_leaves(part) for name, part in jax.device_get(host_view(dict(tree))).items()}


def _from_names(present: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, Any]:
    if set(present) != set(given):
        raise ValueError(
            f"The state of a Learner's {what} is of {sorted(given)}; this learner has {sorted(present)}. Load it into "
            f"a learner of the same modules, optimizers and connectors."
        )
    return {n: from_named_leaves(part, given[n], f"a Learner's {what} {n!r}") for n, part in present.items()}


def _set_modules(multi_module: MultiRLModule, modules: dict[ModuleID, RLModule]) -> None:
    """Make `modules`, in their order, the modules of a MultiRLModule."""
    for module_id in list(multi_module):
        multi_module.remove_module(module_id)
    for module_id, module in modules.items():
        multi_module.add_module(module_id, module)
