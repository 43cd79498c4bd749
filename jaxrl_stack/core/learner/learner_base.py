"""What a Learner consists of: its modules, their optimizers, the learner pipeline, and the state of them all."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.optimizers import (
    DEFAULT_OPTIMIZER,
    ParamDict,
    RegisteredOptimizer,
    problem_with_rates,
    registered_optimizer,
)
from jaxrl_stack.core.learner.steps_trained import StepsTrained, TrainedOn
from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM, LR_KEY, TracedMetrics
from jaxrl_stack.core.learner.tracing import Tracing
from jaxrl_stack.core.learner.trained_modules import is_trained
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.checks import check_module_outputs
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.core.rl_module.rl_module import AnyRLModuleSpec, RLModule
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.utils import counters, devices, schedules
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.snapshots import Snapshots
from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.utils.traced_config import current_values

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.pure_pipeline import PurePipeline
    from jaxrl_stack.core.learner.update import Update

AXIS_NAME = "devices"
"""Name of the mapped axis of every learner program."""

POLICY_LOSS_KEY = "policy_loss"
VF_LOSS_KEY = "vf_loss"
ENTROPY_KEY = "entropy"
"""Names of metrics."""
_OPTIMIZER_STATE = "Use get_state(components='optimizer') and set_state(...)."
_MODULE_STATE = "Use get_weights() and set_weights(...), or get_state(components='rl_module') and set_state(...)."
_OLD_HOOKS = {
    "compute_loss": "Override compute_losses(*, fwd_out, batch) or compute_loss_for_module(...).",
    "configure_optimizer_for_module": "Override configure_optimizers_for_module(module_id, config).",
}
OLD_MEMBERS = _OLD_HOOKS | {
    "save_state": "Use save_to_path(path).",
    "load_state": "Use restore_from_path(path).",
    "_save_optimizers": "Use save_to_path(path), of which optimizers are a part.",
    "_load_optimizers": "Use restore_from_path(path), of which optimizers are a part.",
    "get_optimizer_state": _OPTIMIZER_STATE,
    "set_optimizer_state": _OPTIMIZER_STATE,
    "get_module_state": _MODULE_STATE,
    "set_module_state": _MODULE_STATE,
    "_is_module_compatible_with_learner": "Use rl_module_is_compatible(module).",
    "_get_metadata": "Use get_metadata().",
    "_set_optimizer_lr": "Use algorithm.change_settings(lr=...), which reaches all learners.",
    "_optimizer_lr_schedules": "Use algorithm.change_settings(lr=[[0, 1e-3], [100000, 1e-5]]).",
}
"""Members of earlier Learners of RLlib, and what to use instead."""

ModuleID = str
Batch = dict[ModuleID, dict[str, Any]]
"""Columns of every module."""
Timesteps = dict[str, Any] | int | None
"""Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``."""


class LearnerBase:
    """The parts that a `Learner` is built from, and its state on the devices."""

    framework = "jax"
    TOTAL_LOSS_KEY = "total_loss"
    result_names: tuple[str, ...] = ()
    """What the result of an iteration has of every module from the beginning on, NaN until it is known; of a class and
    all that it derives from."""
    optimizer_names: tuple[str, ...] = (DEFAULT_OPTIMIZER,)
    """Names of the optimizers that every module has; each reports its learning rate and the norm of its gradients."""

    learns_from_sequences = False
    """Whether the loss takes sequences, ``[N, L, ...]``: it can train modules with a recurrent state."""

    loss_needs_time = False
    """Whether the loss looks at steps in their order: then minibatches of modules without a recurrent state are chunks
    ``[N, L, ...]``, too, each all T steps of a column of the block; ``TERMINATEDS`` and ``TRUNCATEDS`` say where
    episodes end inside of them. ``minibatch_size`` counts steps, as for sequences: a minibatch has as many chunks as
    there is room for, or one. ``forward_train`` of such a module gets rows all the same, and the loss its outputs as
    ``[N, L, ...]``. ``update(batch=...)`` takes columns ``[N, L, ...]``."""

    update_class: type[Update]
    """What `pure_update` is: what programs trace."""

    columns_from_forward_train: tuple[str, ...] = ()
    """Columns that the loss needs from every module's ``forward_train``; checked when the learner is built."""

    @property
    def columns_from_acting(self) -> tuple[str, ...]:
        """Columns that the loss needs of how actions were chosen; a module that chooses them itself returns them."""
        return ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _OLD_HOOKS.keys() & vars(cls).keys():
            notice_once(f"{cls.__name__}.{name}() is never called: the hook is gone. {_OLD_HOOKS[name]}")

    if not TYPE_CHECKING:
        __getattr__ = old_members(OLD_MEMBERS)

    def __init__(
        self, *, config: AlgorithmConfig, module_spec: AnyRLModuleSpec | None = None, module: RLModule | None = None
    ):
        if module_spec is not None and module is not None:
            raise ValueError("Learner(module_spec=..., module=...): pass one of them, not both.")
        config = config.copy(copy_frozen=False)
        config.freeze()
        self.config = config
        self._module_spec = module_spec
        self._module_given = module
        self._module_overrides: dict[ModuleID, dict[str, Any]] = {}
        self.policies_to_train: Any = config.policies_to_train
        self.metrics_logger = MetricsLogger()
        self._tracing = Tracing()
        self._is_built = False
        self._has_changed_modules = False
        self._compiled: dict[Hashable, Any] = {}
        self.optimizers: dict[ModuleID, dict[str, RegisteredOptimizer]] = {}
        self._state: LearnerState | None = None
        self._settings_on_device: Any = None
        self._counted: tuple[LearnerState | None, int] = (None, 0)
        self._num_parameters: dict[str, dict[str, int]] | None = None
        self._steps_trained = StepsTrained()
        self._snapshots = Snapshots(config.learner_snapshot_interval)
        self._forget_updates()
        # It calls hooks, which subclasses of this class have.
        self.pure_update: Update = cast(Any, self.update_class)(self)

    # --------------------------------------------------------------------------------------------------------- building

    def build(self) -> None:
        """Make the module, its optimizers, the connector pipeline and the initial state. Idempotent.

        Raises:
            ValueError: If the module lacks an API that this learner needs, or a spec cannot be built.
        """
        if self._is_built:
            return
        self.devices = self.devices_of(self.config)
        if not self.config.num_learners:
            devices.check_processes_agree({**self.config.to_dict(), "devices of a process": len(self.devices)})
        module = self._make_module()
        self._set_module(module)
        self._make_connectors()
        self._is_built = True
        self._register_optimizers()
        self.place(self._initial_state())

    @classmethod
    def devices_of(cls, config: AlgorithmConfig) -> list[devices.Device]:
        """The local devices that a learner of this config uses; see `learner_devices`."""
        return devices.learner_devices(config)

    def _make_module(self) -> MultiRLModule:
        """The MultiRLModule that this learner updates, freshly built or as given."""
        if self._module_given is not None:
            module = self._module_given
        else:
            spec = self._module_spec or self.config.get_multi_rl_module_spec()
            module = spec.build(seed=self.config.root_seed)
        return module if isinstance(module, MultiRLModule) else module.as_multi_rl_module()

    def _set_module(self, module: MultiRLModule) -> None:
        for module_id in module:
            self._check_module(module_id, module[module_id])
        self.template = module
        self.pure = PureModule(module)
        self._num_parameters = None

    def _check_module(self, module_id: ModuleID, module: RLModule) -> None:
        if not is_trained(self.policies_to_train, module_id) or not self._has_loss_of_algorithm(module):
            return
        if not self.rl_module_is_compatible(module):
            needed = [api.__name__ for api in self.rl_module_required_apis()]
            raise ValueError(
                f"{type(self).__name__} needs modules that implement {needed}; module {module_id!r} is a "
                f"{type(module).__name__} and does not. Derive it from these classes and implement their methods."
            )
        if module.is_stateful() and not self.learns_from_sequences:
            raise NotImplementedError(
                f"Module {module_id!r}, a {type(module).__name__}, has a recurrent state (get_initial_state() is not "
                f"empty), and {type(self).__name__} does not say that it learns from sequences. If its loss takes "
                f"[N, L, ...], set learns_from_sequences = True in it; else derive it from the learner of PPO, DQN, "
                f"SAC or TQC, or use a module without a state."
            )
        if module.observation_space is not None:
            # Connectors of the user's may add what the module does not return.
            has_own = self.config._module_to_env_connector or self.config._learner_connector
            # What is no agent's policy is a part of others, as an encoder that they share.
            acts = not self.config.is_multi_agent or module_id in self.config._policy_ids()
            check_module_outputs(
                module,
                module_id=module_id,
                forwards=("inference", "exploration", "train") if acts else ("train",),
                train_keys=self.columns_from_forward_train if acts else (),
                exploration_keys=() if has_own else self.columns_from_acting,
            )

    def _make_connectors(self) -> None:
        first = self.template[next(iter(self.template))]
        self._learner_connector = self.config.build_learner_connector(first.observation_space, first.action_space)
        self._note_connectors()

    def _note_connectors(self) -> None:
        self._num_connector_changes = self._learner_connector.num_changes
        # The connectors after those that run on the host: what the compiled update consists of.
        self.pure_connector: PurePipeline = self._learner_connector.pure_part()

    def _forget_updates(self) -> None:
        """Forget what was last learned from: rows that need no checks, and metrics."""
        self._rows_trained_on: tuple[dict[ModuleID, int], dict[ModuleID, TrainedOn]] = ({}, {})
        self._last: tuple[Flat, Mapping[ModuleID, TrainedOn]] | None = None

    def _follow_connectors(self) -> None:
        """Give connectors that were added to the learner pipeline a state, and forget those of removed ones."""
        assert self._state is not None
        self._note_connectors()
        kept, fresh = self._state.connector, self.pure_connector.init(1)
        added = devices.place_replicated({name: own for name, own in fresh.items() if name not in kept}, self.devices)
        connector = {name: kept[name] if name in kept else added[name] for name in fresh}
        self._state = dataclasses.replace(self._state, connector=connector)
        self._forget_updates()

    def _initial_state(self) -> LearnerState:
        params, rest = self.pure.params, self.pure.rest
        optimizers = {
            module_id: {name: opt.init(params) for name, opt in by_name.items()}
            for module_id, by_name in self.optimizers.items()
        }
        return LearnerState(
            params=params,
            rest=rest,
            optimizers=optimizers,
            extra=self.initial_extra_state(),
            connector=self.pure_connector.init(1),
            timesteps=counters.zero(),
            num_updates=jnp.uint32(0),
            key=stream_key(self.config.root_seed, Stream.LEARNER),
        )

    shared_extra: tuple[str, ...] = ()
    """What of `initial_extra_state` is the same for all members of a population: counts that steer when something
    happens."""

    def initial_extra_state(self) -> dict[str, Any]:
        """Arrays that this algorithm keeps beside its networks. Override; ``{}`` by default."""
        return {}

    def place(self, state: LearnerState) -> None:
        """Put a state on all devices of this learner, as buffers that nothing else refers to."""
        self._state = devices.place_replicated(state, self.devices)
        self._synced_updates: int | None = None
        if self.num_updates < self._steps_trained.num_updates:
            # A state from before what was counted, which says nothing of it.
            self._steps_trained = StepsTrained()

    def reset(self, config: AlgorithmConfig) -> bool:
        """Start from the beginning, keeping the compiled programs.

        Args:
            config: Differs from the present one in traced settings and in its seed only.

        Returns:
            Whether the programs serve modules of that seed, and these are the modules that it was built with;
            otherwise nothing has changed.
        """
        self._check_is_built()
        if self._has_changed_modules:
            # Even where they are the same again: with which weights they began is not known any more.
            return False
        before = self.config
        self._use_settings(config)
        if config.root_seed != before.root_seed and not self._take_new_weights():
            self._use_settings(before)
            return False
        # Those that run on the host keep their state in attributes. Programs have been traced with pure ones of before,
        # which are the same functions.
        self._make_connectors()
        self._forget_updates()
        self._steps_trained = StepsTrained()
        self.metrics_logger.reset()
        self.place(self._initial_state())
        return True

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Continue with other values of traced settings, keeping state and programs.

        Args:
            config: Differs from the present one in traced settings only.

        Raises:
            ValueError: The optimizers do not read a learning rate that changes, or need another program for it;
                nothing has changed then.
        """
        self._check_is_built()
        before, rates = self.config, self.settings()["lr"]
        self._use_settings(config)
        traced = [(s.name, value) for s, value in config.stored_settings() if s.kind == "traced"]
        names = [name for name, value in traced if value != before.stored_value(name)]
        where = f"{type(self).__name__}.configure_optimizers_for_module()"
        problem = problem_with_rates(rates, self.settings()["lr"], names, where)
        if problem:
            self._use_settings(before)
            raise ValueError(problem)

    def _use_settings(self, config: AlgorithmConfig) -> None:
        self.config = config.copy(copy_frozen=True)
        self._settings_on_device = None
        self._register_optimizers()

    def _take_new_weights(self) -> bool:
        """Begin with the weights of the config's seed from now on, if nothing but those depends on it."""
        if self._module_given is not None:
            return True
        fresh = PureModule(self._make_module())
        if not fresh.definition.is_alike(self.pure.definition):
            # Programs hold constants that were made with the seed before.
            return False
        self.pure.params, self.pure.rest = fresh.params, fresh.rest
        return True

    # ----------------------------------------------------------------------------------------------------------- access

    @property
    def module(self) -> MultiRLModule:
        """The module: while a hook is traced, the traced one; otherwise a copy with the current weights."""
        if self._tracing.trace is not None:
            return self._tracing.trace.module
        self._check_is_built()
        # While `build` registers optimizers there is no state yet: these are the initial weights.
        return self.template if self._state is None else self._synced_module()

    _module = module  # as RLlib's losses call it

    def _synced_module(self) -> MultiRLModule:
        state = self.state
        updates = int(jax.device_get(devices.host_view(state.num_updates)))
        if self._synced_updates != updates:
            params, rest = jax.device_get(devices.host_view((state.params, state.rest)))
            self.pure.write_to(self.template, params, rest)
            self._synced_updates = updates
        return self.template

    @property
    def metrics(self) -> MetricsLogger | TracedMetrics:
        """While a hook is traced, a collector whose values leave the program; otherwise the host's MetricsLogger."""
        if self._tracing.trace is not None:
            return self._tracing.trace.metrics
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
    def num_updates(self) -> int:
        """Updates done so far: the ``weights_seq_no`` of the current weights."""
        state = self.state
        if self._counted[0] is not state:
            self._counted = (state, int(np.asarray(devices.host_view(state.num_updates))))
        return self._counted[1]

    @property
    def axis_name(self) -> str | None:
        """Name of the device axis in this learner's programs; None with ``disable_jit``, which maps nothing."""
        return None if self.config.disable_jit else AXIS_NAME

    @property
    def reduction_axis(self) -> str | None:
        """The axis that means over devices go over; None where there is one device in all, whose reductions over
        itself would take longer than a small update."""
        return self.axis_name if self.num_devices > 1 else None

    @property
    def num_devices(self) -> int:
        """Devices on the axis: those of all processes that ``jax.distributed`` joined, of which `devices` are here."""
        return len(self.devices) * self._num_processes

    @property
    def num_joined_learners(self) -> int:
        """Learners whose devices form one axis. Joined processes are as many learners if they are actors
        (``num_learners``), and one that they share if they were started by `distributed.initialize`."""
        return self._num_processes if self.config.num_learners else 1

    @property
    def _num_processes(self) -> int:
        return devices.num_joined_processes(self.devices[0].platform)

    @property
    def module_ids(self) -> tuple[str, ...]:
        """Ids of the modules, in the order in which they were added."""
        return self.pure.module_ids

    @property
    def distributed(self) -> bool:
        """Whether several learners share one update."""
        return self.config.num_learners > 1

    @property
    def node(self) -> str:
        """Host name of this learner."""
        return socket.gethostname()

    @property
    def device(self) -> devices.Device:
        """The first device of this learner."""
        return self.devices[0]

    @property
    def host_connector_names(self) -> list[str]:
        """Names of the learner pipeline's connectors that run on the host, on episodes."""
        return list(self._learner_connector.host_connectors)

    @property
    def has_host_connectors(self) -> bool:
        """Whether the learner pipeline has connectors that run on the host: then only episodes can be learned from."""
        return bool(self._learner_connector.host_connectors)

    @property
    def needs_all_final_obs(self) -> bool:
        """Whether the learner pipeline reads the observations after steps that terminated an episode, too."""
        return self._learner_connector.needs_all_final_obs

    def check_connector_is_pure(self) -> None:
        """Refuse connectors that only run on the host, by name."""
        self._learner_connector.check_pure()

    def _check_is_built(self) -> None:
        if not self._is_built:
            raise ValueError(f"{type(self).__name__}.build() must be called before this method.")
        if self._learner_connector.num_changes != self._num_connector_changes and self._state is not None:
            self._follow_connectors()

    def _check_not_in_pure_hook(self, what: str) -> None:
        """What the learner holds is not what the running update works on: it would be a constant of the program."""
        if self._tracing.pure_hook is not None:
            raise RuntimeError(
                f"{self._tracing.pure_hook}() is traced into the update and cannot read the learner's own {what} (nor "
                f"its module or extra): use its arguments, and return the changed state."
            )

    @staticmethod
    def _has_loss_of_algorithm(module: RLModule) -> bool:
        """Whether `compute_loss_for_module` is the module's: it has no loss of its own, and is not there for others."""
        return not (module.learner_only or isinstance(module, SelfSupervisedLossAPI))

    @property
    def _ids_with_loss_of_algorithm(self) -> list[ModuleID]:
        return [mid for mid, module in self.template.items() if self._has_loss_of_algorithm(module)]

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        """Module APIs (classes of ``core.rl_module.apis``) that this learner calls."""
        return []

    def rl_module_is_compatible(self, module: RLModule) -> bool:
        """Whether `module` implements `rl_module_required_apis`."""
        return all(isinstance(module, api) for api in self.rl_module_required_apis())

    def should_module_be_updated(self, module_id: ModuleID, multi_agent_batch: Any = None) -> bool:
        """Whether ``policies_to_train`` names the module; a function gets None for the batch, see `is_trained`."""
        return is_trained(self.policies_to_train, module_id)

    def config_for(self, module_id: ModuleID) -> AlgorithmConfig:
        config = self.config.get_config_for_module(module_id)
        overrides = self._module_overrides.get(module_id)
        if overrides:
            config = config.copy(copy_frozen=False).update_from_dict(overrides)
            config.freeze()
        return config

    def settings(self) -> dict[str, Any]:
        """The traced settings as arrays, an argument of every compiled update.

        Returns:
            ``{"modules": {module_id: {name: float32 or schedule}}, "lr": {module_id: {optimizer: schedule}}}``.
        """
        return {
            "modules": {mid: self.config_for(mid).traced_values() for mid in self.template},
            "lr": {
                mid: {name: schedules.encode(opt.lr) for name, opt in by_name.items() if opt.lr is not None}
                for mid, by_name in self.optimizers.items()
            },
        }

    def current_values(self, settings: dict[str, Any], timesteps: jax.Array | np.ndarray) -> dict[str, Any]:
        """`settings` with every schedule replaced by its value at `timesteps` (uint32[2]).

        Settings that ``_static_settings`` takes out of the program's arguments are there as Python numbers.
        """
        return current_values(settings, timesteps, self.config_for)

    @classmethod
    def all_result_names(cls) -> tuple[str, ...]:
        """What updates report of every module: losses, and what its optimizers do."""
        names = [name for base in reversed(cls.__mro__) for name in vars(base).get("result_names", ())]
        rates = [f"{name}_{LR_KEY}" for name in cls.optimizer_names]
        norms = [f"gradients_{name}_{GLOBAL_NORM}" for name in cls.optimizer_names]
        return tuple(dict.fromkeys([cls.TOTAL_LOSS_KEY, *names, *rates, *norms]))

    # ------------------------------------------------------------------------------------------------------- optimizers

    def configure_optimizers(self) -> None:
        """Register the optimizers of all modules that have parameters."""
        for module_id in self.pure.trainable_ids:
            self.configure_optimizers_for_module(module_id, self.config_for(module_id))

    def configure_optimizers_for_module(self, module_id: ModuleID, config: AlgorithmConfig | None = None) -> None:
        """Register the optimizer(s) of one module; by default one Adam over all its parameters.

        Args:
            module_id: The module.
            config: The config with that module's overrides applied.
        """
        config = config or self.config_for(module_id)
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.adam,
            params=self.get_parameters(self.template[module_id]),
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
        if optimizer_name in self.optimizers.get(module_id, {}):
            raise ValueError(
                f"Module {module_id!r} has an optimizer {optimizer_name!r} already. Give the second one a name of its "
                f"own: register_optimizer(optimizer_name=...)."
            )
        taken = [own for by_name in self.optimizers.values() for own in by_name.values()]
        self.optimizers.setdefault(module_id, {})[optimizer_name] = registered_optimizer(
            self.pure, taken, module_id, optimizer_name, optimizer, params, lr_or_lr_schedule
        )

    def _register_optimizers(self) -> None:
        self.optimizers = {}
        self.configure_optimizers()
        for module_id in self.pure.trainable_ids:
            if ALL_MODULES not in self.optimizers and module_id not in self.optimizers:
                raise ValueError(
                    f"{type(self).__name__}.configure_optimizers_for_module({module_id!r}) registered no optimizer. "
                    f"Call self.register_optimizer(module_id=..., optimizer=optax.adam, params=..., "
                    f"lr_or_lr_schedule=...) in it."
                )

    def _check_registered_optimizer(self, module_id: ModuleID, optimizer_name: str) -> None:
        if optimizer_name not in self.optimizers.get(module_id, {}):
            known = {m: list(names) for m, names in self.optimizers.items()}
            raise KeyError(
                f"Module {module_id!r} has no optimizer {optimizer_name!r}; registered are {known}. A loss is a "
                f"scalar, or a dict from names of optimizers to scalars; log others with self.metrics.log_value()."
            )

    def get_optimizer(
        self, module_id: ModuleID = DEFAULT_MODULE_ID, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> RegisteredOptimizer:
        """The registered optimizer of that name."""
        self._check_registered_optimizer(module_id, optimizer_name)
        return self.optimizers[module_id][optimizer_name]

    def get_optimizers_for_module(self, module_id: ModuleID = ALL_MODULES) -> list[tuple[str, RegisteredOptimizer]]:
        """``[(name, optimizer)]`` of one module; of all modules for ``ALL_MODULES``."""
        ids = list(self.optimizers) if module_id == ALL_MODULES else [module_id]
        return [item for mid in ids for item in self.optimizers.get(mid, {}).items()]

    def get_parameters(self, module: Any) -> list[Any]:
        """The trainable parameters (``nnx.Param`` variables) of a module or submodule of this learner."""
        return [leaf for _, leaf in nnx.to_flat_state(nnx.state(module, nnx.Param))]

    def get_param_ref(self, param: Any) -> str:
        """The key of a parameter in a `ParamDict`."""
        return self.pure.refs_of(param)[0]

    def filter_param_dict_for_optimizer(self, param_dict: ParamDict, optimizer: RegisteredOptimizer) -> ParamDict:
        """The entries of `param_dict` that `optimizer` updates."""
        return {ref: param_dict[ref] for ref in optimizer.refs if ref in param_dict}
