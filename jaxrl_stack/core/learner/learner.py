"""`Learner` class, which trains the RLModules of a config by updates on train batches. Subclasses override hooks of the
Learner; most hooks are compiled into the update.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import socket
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts
from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.core import ALL_MODULES, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns, declared_columns
from jaxrl_stack.core.default_observations import check_has_masks
from jaxrl_stack.core.experience import Experience, num_rows_of
from jaxrl_stack.core.layouts import layout_of
from jaxrl_stack.core.learner import row_blocks, steps_trained
from jaxrl_stack.core.learner.episodes_to_batch import episodes_to_batch
from jaxrl_stack.core.learner.items import ChunkForm, Form, form_of_block, forms_of_batch
from jaxrl_stack.core.learner.learner_checkpoint import LearnerCheckpoint
from jaxrl_stack.core.learner.learner_state import LearnerState, kept_where_it_fits
from jaxrl_stack.core.learner.minibatches import Batch
from jaxrl_stack.core.learner.optimizers import (
    DEFAULT_OPTIMIZER,
    Optimizers,
    ParamDict,
    RegisteredOptimizer,
    check_gradients,
    clip_gradients,
    is_another_value,
    problem_with_rates,
)
from jaxrl_stack.core.learner.post_update import UpdatedState, UpdateResult, accepts_both_forms
from jaxrl_stack.core.learner.steps_trained import (
    Amount,
    StepsTrained,
    Timesteps,
    TrainedOn,
    amount_of_block,
    trained_in_each,
    trained_on,
)
from jaxrl_stack.core.learner.traced_metrics import (
    GLOBAL_NORM,
    LR_KEY,
    MetricKey,
    TracedMetrics,
    nest_metrics,
    raise_if_not_finite,
)
from jaxrl_stack.core.learner.tracing import LinearizedLosses, Trace, Tracing
from jaxrl_stack.core.learner.trained_modules import is_trained
from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.core.learner.update import Update, with_common_grouping
from jaxrl_stack.core.learner.update_plan import UpdatePlan
from jaxrl_stack.core.learner.update_program import AXIS_NAME, fetched
from jaxrl_stack.core.learner.update_programs import UpdatePrograms
from jaxrl_stack.core.module_map import single_agent
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.checks import check_module_outputs
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import AnyRLModuleSpec, RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.ops import reductions, running_statistics
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.ops.running_statistics import RunningStatistics
from jaxrl_stack.utils import counters, devices
from jaxrl_stack.utils.action_masks import NO_VALID_ACTION_SHARE
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.metrics import CONNECTOR_PIPELINE_TIMER
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.metrics.reduced_metrics import ReducedMetrics
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import NUM_STEPS_EVALUATED, merge_nested
from jaxrl_stack.utils.seeds import derived_seed
from jaxrl_stack.utils.signatures import call_problem
from jaxrl_stack.utils.streams import Stream, stream_key
from jaxrl_stack.utils.traced_config import current_values, explain_traced_branches
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.connector_v2 import ConnectorV2
    from jaxrl_stack.connectors.pure_pipeline import PurePipeline

__all__ = ["DEFAULT_OPTIMIZER", "ENTROPY_KEY", "LR_KEY", "POLICY_LOSS_KEY", "VF_LOSS_KEY", "Learner"]

POLICY_LOSS_KEY = "policy_loss"
VF_LOSS_KEY = "vf_loss"
ENTROPY_KEY = "entropy"
"""Names of metrics."""
_OF_ACTIONS = frozenset({Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS, Columns.ACTION_PROB})
"""Columns that describe an action: a module that chooses actions itself must return those that the loss reads."""
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
"""Members of RLlib's earlier Learners, and their replacements."""


class Learner(Checkpointable):
    """Updates the RLModules of a config from train batches.

    Subclass it and override hooks, which are listed here in the order in which an update calls them. Hooks are called
    while the update is traced, so they must be pure JAX: `pre_update`, `compute_losses`, `compute_loss_for_module`,
    `compute_gradients`, `postprocess_gradients(_for_module)`, `apply_gradients`, `post_update`.
    `configure_optimizers_for_module` runs once, in `build`. `before_gradient_based_update` and
    `after_gradient_based_update` run on the host around each update.

    Args:
        config: The algorithm's config; the learner stores a frozen copy.
        module_spec: Spec of the module(s); None takes the config's spec.
        module: A built module to use instead of a spec.

    Attributes:
        config: The frozen config.
        template: The modules for which programs are traced; `module` has the current weights.
        pure: The modules as pure functions and arrays.
        devices: Devices of this process that the learner runs on.
        optimizers: The optimizers of the modules.
        pure_update: The update as pure functions, an `update_class`.
        programs: The compiled programs that the methods ``update...()`` call.
        pure_connector: The compiled connectors of the learner pipeline.
        num_connector_changes: Number of changes of the learner pipeline; each one needs new programs.
        steps_trained: Lifetime counters of the steps on which modules were trained.
        metrics_logger: Metrics that are logged on the host.
        policies_to_train: The modules that are trained; see `should_module_be_updated`.

    Raises:
        ValueError: If both `module_spec` and `module` are given.
    """

    framework = "jax"
    TOTAL_LOSS_KEY = "total_loss"
    result_names: tuple[str, ...] = ()
    """Names of metrics that every iteration's result has for every module; NaN until they are known. Names of base
    classes are added."""
    optimizer_names: tuple[str, ...] = (DEFAULT_OPTIMIZER,)
    """Names of every module's optimizers; each one reports its learning rate and the norm of its gradients."""

    learns_from_sequences = False
    """Whether the loss takes sequences, ``[N, L, ...]``: it can train modules with a recurrent state."""

    loss_needs_time = False
    """Whether the loss needs steps in order. If so, minibatches of modules without a recurrent state are chunks
    ``[N, L, ...]``, too; a chunk contains all T steps at one index on axis B of the block. ``TERMINATEDS`` and
    ``TRUNCATEDS`` mark the ends of episodes inside of chunks. ``minibatch_size`` counts steps, as for sequences: a
    minibatch has the chunks that fit, but at least one. ``forward_train`` of such a module still receives rows, and the
    loss receives its outputs as ``[N, L, ...]``. ``update(batch=...)`` takes columns ``[N, L, ...]``."""

    loss_is_linear_in_means = False
    """Whether every loss, and every metric, is a sum of constants times `masked_means` of the batch. Metrics that are
    logged with ``reduce="min"``, ``"max"`` or ``"sum"`` are exempt.

    If True, the update sums gradients over microbatches that fit the cache, which gives the same gradients in less
    time, and averages all values over devices in one reduction. A subclass that overrides the loss must set it again.
    """

    update_class: type[Update] = Update
    """Class of `pure_update`, whose functions programs trace."""

    columns_from_forward_train: tuple[str, ...] = ()
    """Columns that the loss needs from every module's ``forward_train``; checked when the learner is built."""

    shared_extra: tuple[str, ...] = ()
    """Names in `initial_extra_state` of arrays that are equal in all members of a population: counters that decide when
    something happens."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in _OLD_HOOKS.keys() & vars(cls).keys():
            notice_once(f"{cls.__name__}.{name}() is never called: the hook is gone. {_OLD_HOOKS[name]}")
        if inspect.isfunction(vars(cls).get("post_update")):
            cls.post_update = accepts_both_forms(vars(cls)["post_update"], cls)

    if not TYPE_CHECKING:
        __getattr__ = old_members(OLD_MEMBERS)

    # ------------------------------------------------------------------------------------------- construction and build

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
        self._has_changed_modules = False
        self.policies_to_train: Any = config.policies_to_train
        self.metrics_logger = MetricsLogger()
        self.optimizers = Optimizers()
        self.programs = UpdatePrograms(self)
        self.steps_trained = StepsTrained()
        self._checkpoint = LearnerCheckpoint(self)
        self._tracing = Tracing()
        self._is_built = False
        self._state: LearnerState | None = None
        self._settings_on_device: Any = None
        self._counted: tuple[LearnerState | None, int] = (None, 0)
        self._num_parameters: dict[str, dict[str, int]] | None = None
        self._forget_updates()
        self.pure_update = self.update_class(self)

    def build(self) -> None:
        """Builds the modules, their optimizers, the connector pipeline and the initial state. Idempotent.

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
        """Returns the local devices that a learner of this config uses; see `learner_devices`."""
        return devices.learner_devices(config)

    def _make_module(self) -> MultiRLModule:
        """Returns the MultiRLModule that this learner updates: the one given to its constructor, or one built from the
        spec.
        """
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
            apis = [api for api in self.rl_module_required_apis() if not isinstance(module, api)]
            name, needed = type(module).__name__, ", ".join(api.__name__ for api in apis)
            if not apis:
                raise ValueError(
                    f"{type(self).__name__}.rl_module_is_compatible() is False for module {module_id!r}, a {name}. "
                    "Set rl_module(rl_module_spec=...) with a module class for which the method returns True."
                )
            methods = ", ".join(sorted(f"{method}()" for api in apis for method in api.__abstractmethods__))
            raise ValueError(
                f"{type(self).__name__} needs a module with the methods of {needed}, but module {module_id!r}, a "
                f"{name}, lacks them.\nWrite class {name}(RLModule, {needed}) with {methods}; "
                f"help({apis[0].__module__}.{apis[0].__name__}) describes them."
            )
        if module.is_stateful() and not self.learns_from_sequences:
            raise NotImplementedError(
                f"Module {module_id!r}, a {type(module).__name__}, has a recurrent state (get_initial_state() is not "
                f"empty), but {type(self).__name__} has learns_from_sequences = False. If the learner's loss takes "
                "sequences (columns [N, L, ...]: N sequences of L steps), set learns_from_sequences = True in the "
                "class; else derive the class from the learner of PPO, DQN, SAC, TD3 or TQC, or use a module without "
                "a state."
            )
        if module.observation_space is not None:
            # Connectors of the user may add columns that the module does not return.
            has_own = self.config._module_to_env_connector or self.config._learner_connector
            # A module that is no agent's policy is a part of others, such as a shared encoder.
            acts = not self.config.is_multi_agent or module_id in self.config._policy_ids()
            check_module_outputs(
                module,
                module_id=module_id,
                forwards=("inference", "exploration", "train") if acts else ("train",),
                train_keys=self.columns_from_forward_train if acts else (),
                exploration_keys=() if has_own else [own for own in declared_columns(self) if own in _OF_ACTIONS],
                declared=self._columns_declared_for(module),
            )

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        """Returns the module APIs (classes in ``core.rl_module.apis``) that this learner calls."""
        return []

    def rl_module_is_compatible(self, module: RLModule) -> bool:
        """Whether `module` implements all APIs (interfaces) of `rl_module_required_apis`."""
        return all(isinstance(module, api) for api in self.rl_module_required_apis())

    @property
    def columns_from_acting(self) -> tuple[str, ...]:
        """Names of the additional columns of sampled steps that the loss reads.

        Sampling stores these columns with every step, in addition to the standard columns. Override this property, or
        replace it by a class attribute.

        Example: ``columns_from_acting = ("confidence",)``. Each column is an output of ``forward_exploration``, or is
        added by an env-to-module connector. Replay buffers store these columns: a drawn transition has the values of
        its first step, a sequence the values of all steps. An `RLModule` and a `ConnectorV2` of the learner pipeline
        can declare columns in the same way.
        """
        return ()

    @property
    def declared_columns(self) -> dict[ModuleID, tuple[str, ...]]:
        """Names of the additional columns of sampled steps that training needs, ``{module_id: names}`` for the trained
        modules. Losses, modules and connectors declare them in `columns_from_acting`.
        """
        trained = {mid: own for mid, own in self.template.items() if is_trained(self.policies_to_train, mid)}
        of_connectors = [name for connector in self._learner_connector for name in declared_columns(connector)]
        return {
            mid: tuple(dict.fromkeys([*self._columns_declared_for(module), *of_connectors]))
            for mid, module in trained.items()
        }

    def _columns_declared_for(self, module: RLModule) -> tuple[str, ...]:
        """Returns the additional columns of sampled steps that the training of a module needs, as the module and
        its loss declare them in `columns_from_acting`.
        """
        of_loss = declared_columns(self) if self._has_loss_of_algorithm(module) else ()
        return (*of_loss, *declared_columns(module))

    @staticmethod
    def _has_loss_of_algorithm(module: RLModule) -> bool:
        """Returns True if the algorithm's `compute_loss_for_module` computes the loss of the module.

        Returns False for ``learner_only`` modules, which exist only on Learners, and for self-supervised modules, which
        define their own loss.
        """
        return not (module.learner_only or isinstance(module, SelfSupervisedLossAPI))

    @property
    def _ids_with_loss_of_algorithm(self) -> list[ModuleID]:
        return [mid for mid, module in self.template.items() if self._has_loss_of_algorithm(module)]

    def _make_connectors(self) -> None:
        first = self.template[next(iter(self.template))]
        self._learner_connector = self.config.build_learner_connector(first.observation_space, first.action_space)
        self._note_connectors()

    def _note_connectors(self) -> None:
        self.num_connector_changes = self._learner_connector.num_changes
        # The connectors after those that run on the host: the part that is compiled into the update.
        self.pure_connector: PurePipeline = self._learner_connector.pure_part()

    def _follow_connectors(self) -> None:
        """Updates the state of the learner connector pipeline after connectors were added or removed: adds states of
        new connectors, drops states of removed ones.
        """
        assert self._state is not None
        self._note_connectors()
        kept, fresh = self._state.connector, self.pure_connector.init(1)
        added = devices.place_replicated({name: own for name, own in fresh.items() if name not in kept}, self.devices)
        connector = {name: kept[name] if name in kept else added[name] for name in fresh}
        self._state = dataclasses.replace(self._state, connector=connector)
        self._forget_updates()

    def _forget_updates(self) -> None:
        """Discards the batch sizes and metrics of the learner's last update.

        The next call of `update_rows` then checks that the learner supports the batch, even if the batch sizes are the
        same as before.
        """
        self._rows_trained_on: tuple[dict[ModuleID, int], dict[ModuleID, TrainedOn]] = ({}, {})
        self._last: tuple[Flat, Mapping[ModuleID, TrainedOn]] | None = None

    def _initial_state(self) -> LearnerState:
        params, rest = self.pure.params, self.pure.rest
        return LearnerState(
            params=params,
            rest=rest,
            optimizers=self.optimizers.init(params),
            extra=self.initial_extra_state(),
            connector=self.pure_connector.init(1),
            timesteps=counters.zero(),
            num_updates=jnp.uint32(0),
            key=stream_key(self.config.root_seed, Stream.LEARNER),
        )

    def initial_extra_state(self) -> dict[str, Any]:
        """Returns the initial values of the algorithm's state besides networks, such as a KL coefficient, as arrays;
        ``{}`` by default. Override it.
        """
        return {}

    def place(self, state: LearnerState) -> None:
        """Copies `state` to new buffers on all devices of this learner, and makes it the learner's current state."""
        self._state = devices.place_replicated(state, self.devices)
        self._synced_updates: int | None = None
        if self.num_updates < self.steps_trained.num_updates:
            # The state is older than the counters, which no longer describe it.
            self.steps_trained = StepsTrained()

    def _check_is_built(self) -> None:
        if not self._is_built:
            raise ValueError(f"{type(self).__name__} is not built. Call build() first.")
        if self._learner_connector.num_changes != self.num_connector_changes and self._state is not None:
            self._follow_connectors()

    # ----------------------------------------------------------------------------------------------------------- access

    @property
    def module(self) -> MultiRLModule:
        """MultiRLModule of this learner: with traced arrays inside a hook that is compiled into the update, otherwise
        with a copy of the current weights.
        """
        if self._tracing.trace is not None:
            return self._tracing.trace.module
        self._check_is_built()
        # `build` registers optimizers before the state exists: the template has the initial weights.
        return self.template if self._state is None else self._synced_module()

    _module = module  # the name in RLlib's losses

    def _synced_module(self) -> MultiRLModule:
        state = self.state
        updates = int(jax.device_get(host_view(state.num_updates)))
        if self._synced_updates != updates:
            params, rest = jax.device_get(host_view((state.params, state.rest)))
            self.pure.write_to(self.template, params, rest)
            self._synced_updates = updates
        return self.template

    def scratch_module(self) -> MultiRLModule:
        """Returns the learner's module with the current weights. The caller may overwrite these weights: the next
        access to `module` writes the learner's weights to the module again.
        """
        module = self._synced_module()
        self._synced_updates = None
        return module

    @property
    def metrics(self) -> MetricsLogger | TracedMetrics:
        """Metrics logger of this learner: a collector of traced values inside a hook that is compiled into the update,
        otherwise the host's MetricsLogger.
        """
        if self._tracing.trace is not None:
            return self._tracing.trace.metrics
        self._check_not_in_pure_hook("metrics")
        return self.metrics_logger

    @property
    def state(self) -> LearnerState:
        """Current state of the learner. The next update donates its buffers, so copy arrays that you keep."""
        self._check_is_built()
        self._check_not_in_pure_hook("state")
        assert self._state is not None
        return self._state

    @state.setter
    def state(self, value: LearnerState) -> None:
        self._state = value

    @property
    def num_updates(self) -> int:
        """Number of updates so far, reported as ``weights_seq_no`` with the weights."""
        state = self.state
        if self._counted[0] is not state:
            self._counted = (state, int(np.asarray(host_view(state.num_updates))))
        return self._counted[1]

    @property
    def axis_name(self) -> str | None:
        """Name of the device axis in compiled updates; None if ``disable_jit`` runs updates without such an axis."""
        return None if self.config.disable_jit else AXIS_NAME

    @property
    def reduction_axis(self) -> str | None:
        """Name of the device axis for reductions, such as means of gradients, over the devices of all processes.

        None if ``disable_jit`` is set. Also None for a single device, because reductions would slow down small updates.
        """
        return self.axis_name if self.num_devices > 1 else None

    @property
    def num_devices(self) -> int:
        """Total number of devices of all processes that ``jax.distributed`` connects. `devices` lists only the local
        devices of this process.
        """
        return len(self.devices) * self._num_processes

    @property
    def num_joined_learners(self) -> int:
        """Number of learners that update jointly: the number of learner actors (``num_learners``), or 1 without learner
        actors, even if `distributed.initialize` connects several processes.
        """
        return self._num_processes if self.config.num_learners else 1

    @property
    def _num_processes(self) -> int:
        return devices.num_joined_processes(self.devices[0].platform)

    @property
    def module_ids(self) -> tuple[str, ...]:
        """Ids of the modules, in the order of their addition."""
        return self.pure.module_ids

    @property
    def distributed(self) -> bool:
        """Whether several learners make each update jointly."""
        return self.config.num_learners > 1

    @property
    def node(self) -> str:
        """Name of the host on which this learner runs."""
        return socket.gethostname()

    @property
    def device(self) -> devices.Device:
        """The first device of this learner."""
        return self.devices[0]

    @property
    def host_connector_names(self) -> list[str]:
        """Names of the connectors in the learner pipeline that run on the host, on episodes, not in the compiled
        update.
        """
        return list(self._learner_connector.host_connectors)

    @property
    def host_connectors(self) -> dict[str, ConnectorV2]:
        """Connectors of the learner pipeline that run on the host (not in the compiled update), by name.

        Raises:
            TypeError: If a host connector comes after a compiled connector.
        """
        return dict(self._learner_connector.checked_host_connectors())

    @property
    def has_host_connectors(self) -> bool:
        """Whether the learner pipeline has connectors that run on the host. If so, updates need episodes, which these
        connectors process.
        """
        return bool(self._learner_connector.host_connectors)

    @property
    def needs_all_final_obs(self) -> bool:
        """Whether connectors of the learner pipeline read the final observations of terminated episodes, in addition
        to the final observations of truncated episodes.
        """
        return self._learner_connector.needs_all_final_obs

    def check_connector_is_pure(self) -> None:
        """Raises a TypeError if the learner pipeline has connectors that run on the host, because on-device training
        compiles the pipeline. The error names the host connectors.
        """
        self._learner_connector.check_pure()

    def config_for(self, module_id: ModuleID) -> AlgorithmConfig:
        config = self.config.get_config_for_module(module_id)
        overrides = self._module_overrides.get(module_id)
        if overrides:
            config = config.copy(copy_frozen=False).update_from_dict(overrides)
            config.freeze()
        return config

    def settings(self) -> dict[str, Any]:
        """Returns the config settings that compiled updates take as arguments, such as ``lr``, as arrays.

        Returns:
            ``{"modules": {module_id: {name: float32 or schedule}}, "lr": {module_id: {optimizer: schedule}}}``.
        """
        return {
            "modules": {mid: self.config_for(mid).traced_values() for mid in self.template},
            "lr": self.optimizers.rates(),
        }

    def placed_settings(self) -> Any:
        """Returns the arrays of `settings` (such as ``lr``) on this learner's devices.

        The first call copies the arrays; later calls return the same copies until the settings change.
        """
        if self._settings_on_device is None:
            self._settings_on_device = devices.place_replicated(self.settings(), self.devices)
        return self._settings_on_device

    def current_values(self, settings: dict[str, Any], timesteps: jax.Array | np.ndarray) -> dict[str, Any]:
        """Returns `settings` with each schedule replaced by the value of the schedule at `timesteps`, the lifetime
        number of env steps as uint32[2] (high and low word).

        Settings in the config's ``_static_settings`` are constants of the program and are returned as Python numbers.
        """
        return current_values(settings, timesteps, self.config_for)

    @classmethod
    def all_result_names(cls) -> tuple[str, ...]:
        """Returns the names of metrics that updates report for every module: losses, learning rates, gradient norms."""
        names = [name for base in reversed(cls.__mro__) for name in vars(base).get("result_names", ())]
        rates = [f"{name}_{LR_KEY}" for name in cls.optimizer_names]
        norms = [f"gradients_{name}_{GLOBAL_NORM}" for name in cls.optimizer_names]
        return tuple(dict.fromkeys([cls.TOTAL_LOSS_KEY, *names, *rates, *norms]))

    # ------------------------------------------------------------------------------------------------------- optimizers

    def configure_optimizers(self) -> None:
        """Registers the optimizers of every module that has parameters."""
        for module_id in self.pure.trainable_ids:
            self.configure_optimizers_for_module(module_id, self.config_for(module_id))

    def configure_optimizers_for_module(self, module_id: ModuleID, config: AlgorithmConfig | None = None) -> None:
        """Registers the optimizer or optimizers of one module. By default, one Adam optimizer trains all parameters of
        the module.

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
        """Registers an optimizer. Call it from `configure_optimizers_for_module`.

        Args:
            module_id: Id of the module whose parameters the optimizer updates; ``ALL_MODULES`` for several modules.
            optimizer_name: Name within the module; part of the names of metrics.
            optimizer: ``lr -> optax.GradientTransformation``, such as ``optax.adam`` or
                ``lambda lr: optax.adamw(lr, weight_decay=1e-4)``. The current learning rate is an argument of the
                compiled program, so schedules and changed rates do not recompile. A finished
                ``GradientTransformation`` is possible with ``lr_or_lr_schedule=None``.
            params: Parameters that the optimizer updates: results of `get_parameters`, submodules, or refs.
            lr_or_lr_schedule: A number or ``[[timestep, value], ...]``.

        Raises:
            ValueError: If a parameter belongs to two optimizers, the module already has an optimizer of that name, or
                learning rate and optimizer do not match.
        """
        self.optimizers.register(self.pure, module_id, optimizer_name, optimizer, params, lr_or_lr_schedule)

    def _register_optimizers(self) -> None:
        self.optimizers = Optimizers()
        self.configure_optimizers()
        for module_id in self.pure.trainable_ids:
            if ALL_MODULES not in self.optimizers and module_id not in self.optimizers:
                raise ValueError(
                    f"{type(self).__name__}.configure_optimizers_for_module({module_id!r}) registered no optimizer. "
                    f"In this method, call self.register_optimizer(module_id=..., optimizer=optax.adam, params=..., "
                    f"lr_or_lr_schedule=...)."
                )

    def get_optimizer(
        self, module_id: ModuleID = DEFAULT_MODULE_ID, optimizer_name: str = DEFAULT_OPTIMIZER
    ) -> RegisteredOptimizer:
        """Returns a module's optimizer with the given name; raises a KeyError if there is none."""
        return self.optimizers.find(module_id, optimizer_name)

    def get_optimizers_for_module(self, module_id: ModuleID = ALL_MODULES) -> list[tuple[str, RegisteredOptimizer]]:
        """Returns ``[(name, optimizer)]``: the optimizers of the module `module_id`, or of all modules if `module_id`
        is ``ALL_MODULES``.
        """
        return self.optimizers.of_module(module_id)

    def get_parameters(self, module: Any) -> list[Any]:
        """Returns the trainable parameters (``nnx.Param`` variables) of a module or submodule that this learner
        updates.
        """
        return self.pure.parameters_of(module)

    def get_param_ref(self, param: Any) -> str:
        """Returns the name ("ref") of a parameter, ``"module_id/path/to/leaf"``, its key in a `ParamDict`."""
        return self.pure.refs_of(param)[0]

    def filter_param_dict_for_optimizer(self, param_dict: ParamDict, optimizer: RegisteredOptimizer) -> ParamDict:
        """Returns the entries of `param_dict`, a dict of parameters or gradients, that `optimizer` updates."""
        return {ref: param_dict[ref] for ref in optimizer.refs if ref in param_dict}

    # --------------------------------------------------------------------------------- hooks, in the order of an update

    def should_module_be_updated(self, module_id: ModuleID, multi_agent_batch: Any = None) -> bool:
        """Returns True if the setting ``policies_to_train`` selects the module for training.

        If the setting is a function of module id and batch, the learner passes None as the batch, because updates are
        compiled before a batch exists (see `is_trained`).
        """
        return is_trained(self.policies_to_train, module_id)

    def before_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Hook that runs on the host before each update.

        An override makes on-device training slow, because training then returns to the host after every training step;
        `pre_update` runs in the compiled program.

        Args:
            timesteps: ``{"num_env_steps_sampled_lifetime": n}``.
        """

    def pre_update(self, state: LearnerState, batch: dict[ModuleID, Any]) -> LearnerState:
        """Pure hook before the minibatch loop, compiled into the update. Returns the state with which the update
        starts.

        Args:
            state: State before the update.
            batch: ``{module_id: {column: pytree}}``, the train batch after the learner connectors.
        """
        return state

    def compute_losses(self, *, fwd_out: dict[ModuleID, Any], batch: dict[ModuleID, Any]) -> dict[ModuleID, Any]:
        """Returns the losses of all modules in the batch, ``{module_id: scalar or {optimizer_name: scalar}}``.

        Args:
            fwd_out: ``{module_id: outputs of forward_train}``.
            batch: ``{module_id: {column: [N, ...]}}``, the minibatch; see `compute_loss_for_module`.
        """
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
                        f"The loss of module {module_id!r} in {type(self).__name__} is a tuple of {len(loss)} entries. "
                        f"Return the loss, or the pair (loss, {{metric: value}})."
                    )
                loss, metrics = loss
                self.metrics.log_dict(metrics, key=module_id, window=1)
            losses[module_id] = loss
        return losses

    def compute_loss_for_module(
        self, *, module_id: ModuleID, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        """Returns the loss of one module on a minibatch: a scalar, ``{optimizer_name: scalar}``, or a pair
        ``(loss, {metric: value})``. Override this method.

        Args:
            module_id: The module.
            config: Config of the module; traced settings (lr, clip_param, ...) are the current values as arrays.
            batch: Minibatch of the module, ``{column: [N, ...]}``. If the module has a recurrent state, it is
                ``{column: [N, L, ...]}`` and ``STATE_IN`` ``[N, ...]``; if `loss_needs_time`, it is
                ``{column: [N, L, ...]}`` for every module.
            fwd_out: Outputs of the module's ``forward_train``.

        Returns:
            A float32 scalar, or ``{optimizer_name: scalar}``, where each scalar is differentiated only for the
            parameters of its optimizer. A term can be added to the result of every built-in learner, also to a dict:
            ``super().compute_loss_for_module(...) + term``. A pair of a loss and ``{metric: value}`` also logs metrics.
            Take means with `masked_mean`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must implement compute_loss_for_module(*, module_id, config, batch, fwd_out)."
        )

    def compute_gradients(self, loss_per_module: dict[ModuleID, Any], **kwargs: Any) -> ParamDict:
        """Returns the gradients of the losses with respect to the trained parameters, ``{ref: gradient}`` (ref: name of
        a parameter), averaged over the devices.

        Args:
            loss_per_module: The unchanged result of `compute_losses`, whose computation is differentiated. To change
                the losses, override `compute_losses`.

        Returns:
            ``{ref: gradient}`` of the sum of all scalar losses, plus, for the parameters of each optimizer with a
            separate loss, the gradient of that loss.

        Raises:
            RuntimeError: If `compute_losses` has not returned yet.
            ValueError: If the losses are not the result of `compute_losses`.
        """
        trace = self._running_trace("compute_gradients")
        if trace.losses is None:
            raise RuntimeError(
                "compute_gradients() was called before compute_losses() returned. To differentiate a term inside a "
                "loss, use jax.grad(function) with a function that computes the term."
            )
        same = jax.tree.structure(loss_per_module) == jax.tree.structure(trace.losses) and all(
            a is b for a, b in zip(jax.tree.leaves(loss_per_module), jax.tree.leaves(trace.losses), strict=True)
        )
        if not same:
            raise ValueError(
                "compute_gradients() received losses that compute_losses() did not return. To change, scale or add "
                "losses, override compute_losses() and call super()."
            )
        if trace.gradients is not None:
            return dict(trace.gradients)
        assert trace.linearized is not None
        return reductions.pmean_flat(self.gradients_of(trace.losses, trace.linearized), trace.axis_name)

    def postprocess_gradients(self, gradients_dict: ParamDict) -> ParamDict:
        """Clips the gradients of all modules and logs their norms; by default calls `postprocess_gradients_for_module`
        for each module.

        Args:
            gradients_dict: ``{ref: gradient}`` of all modules.

        Returns:
            The gradients to apply, with the same keys.
        """
        out = dict(gradients_dict)
        for module_id in self.optimizers:
            refs = [ref for opt in self.optimizers[module_id].values() for ref in opt.refs]
            own = {ref: gradients_dict[ref] for ref in refs if ref in gradients_dict}
            if own:
                config = self._config_view(module_id)
                with explain_traced_branches(config):
                    changed = self.postprocess_gradients_for_module(
                        module_id=module_id, config=config, module_gradients_dict=own
                    )
                check_gradients(changed, "postprocess_gradients_for_module", type(self).__name__)
                out |= changed
        return out

    def postprocess_gradients_for_module(
        self, *, module_id: ModuleID, config: Any = None, module_gradients_dict: ParamDict
    ) -> ParamDict:
        """Clips the gradients of one module, separately for each optimizer, by the settings ``grad_clip`` and
        ``grad_clip_by``.

        Args:
            module_id: The module.
            config: Config of the module.
            module_gradients_dict: ``{ref: gradient}`` of the module.

        Returns:
            The gradients to apply, with the same keys.
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
        """Returns the clipping function ``(gradients, grad_clip, grad_clip_by) -> (clipped gradients, global norm
        before clipping)``.
        """
        return clip_gradients

    def apply_gradients(self, gradients_dict: ParamDict) -> None:
        """Updates parameters and optimizer states: each optimizer makes one step, provided that `gradients_dict`
        contains gradients of its parameters, and that the optimizer is due (see `optimizer_is_due`).

        Non-finite gradient entries are first replaced by finite numbers, as in RLlib. If ``torch_skip_nan_gradients``
        is True, an optimizer with such entries skips the step instead.

        Args:
            gradients_dict: ``{ref: gradient}``; an optimizer without an entry makes no step.
        """
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
                due = self.optimizer_is_due(module_id, name)
                if due is True:
                    new_params, new_state = optimizer.step(lr, gradients, old_state, params)
                else:
                    step, keep = functools.partial(optimizer.step, lr, gradients), lambda state, params: (params, state)
                    new_params, new_state = jax.lax.cond(due, step, keep, old_state, params)
                if skip:
                    new_params = jax.tree.map(lambda n, o, ok=finite: jnp.where(ok, n, o), new_params, params)
                    new_state = jax.tree.map(lambda n, o, ok=finite: jnp.where(ok, n, o), new_state, old_state)
                trace.params = {**trace.params, **new_params}
                trace.optimizers = {**trace.optimizers, module_id: {**trace.optimizers[module_id], name: new_state}}

    def optimizer_is_due(self, module_id: ModuleID, optimizer_name: str) -> Any:
        """Whether an optimizer of the learner makes a step in the current update; by default every optimizer does.

        Without a step, the parameters and the optimizer's state do not change. A gradient of 0 has a different effect,
        because momentum still moves the parameters. The loss can skip its computation by `jax.lax.cond` with this
        scalar.

        Args:
            module_id: Module of the optimizer.
            optimizer_name: Name of the optimizer within the module.

        Returns:
            True, or a bool scalar of the traced update. Compute it from `updates_so_far` and static settings: then
            it is the same for all members of a population, and the program contains a branch for it.
        """
        return True

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[ModuleID, dict[str, Any]]
    ) -> UpdateResult:
        """Pure hook after the minibatch loop, compiled into the update. Returns the state for the next update, and the
        metrics of the update.

        Args:
            state: State after the last gradient step. Modules without a valid row are unchanged; a hook that changes
                state of a module must check `has_rows`.
            metrics: ``{(module_id, name): value}``, the metrics of the minibatches.
            settings: ``{module_id: {name: current value}}`` of the traced settings.

        Returns:
            ``(state, metrics)``: the state for the next update, for example with updated target networks, and the
            metrics that the update returns. Begin an override with ``state, metrics = super().post_update(state,
            metrics=metrics, settings=settings)`` and end it with ``return state, {**metrics, (module_id, "name"):
            value}``.
        """
        return UpdatedState.of(state, metrics)  # type: ignore[return-value]

    def after_gradient_based_update(self, *, timesteps: dict[str, Any]) -> None:
        """Hook that runs on the host after each update.

        An override makes on-device training slow, because training then returns to the host after every training step;
        `post_update` runs in the compiled program.

        Args:
            timesteps: ``{"num_env_steps_sampled_lifetime": n}``.
        """

    @property
    def has_host_hooks(self) -> bool:
        """Whether a subclass overrides `before_gradient_based_update` or `after_gradient_based_update`."""
        return (
            type(self).before_gradient_based_update is not Learner.before_gradient_based_update
            or type(self).after_gradient_based_update is not Learner.after_gradient_based_update
        )

    @property
    def has_pre_update(self) -> bool:
        """Whether a subclass overrides `pre_update`."""
        return type(self).pre_update is not Learner.pre_update

    # ------------------------------------------------------------------------------------- help for hooks, while traced

    def masked_mean(self, x: jax.Array, batch: Mapping[str, Any]) -> jax.Array:
        """Returns the mean of `x` over the valid rows (not masked) of the minibatch `batch` on all devices. Use it for
        means in losses.

        Args:
            x: float32 ``[N, ...]``, one value per row.
            batch: The module's minibatch; its ``LOSS_MASK`` is True for valid rows.
        """
        return self.masked_means({"x": x}, batch)["x"]

    def masked_means(self, values: Mapping[str, jax.Array], batch: Mapping[str, Any]) -> dict[str, jax.Array]:
        """Returns the mean of each array in `values` over the valid rows (not masked) of a minibatch on all devices.

        The result is ``{name: mean}``. All means together need only one reduction over the devices.

        For losses of different optimizers call `masked_mean` for each loss: means that share a reduction are
        differentiated together, even if an optimizer needs only one of them.

        Args:
            values: ``{name: float32 [N, ...]}``.
            batch: The module's minibatch; its ``LOSS_MASK`` is True for valid rows.
        """
        mask = batch[Columns.LOSS_MASK]
        trace = self._tracing.trace
        if trace is None:
            return reductions.masked_means(values, mask)
        full = not self.may_be_masked(batch)
        if trace.row_counts is None:
            return reductions.masked_means(values, None if full else mask, trace.axis_name)
        # This microbatch's share of the means: shares are summed over microbatches, and later averaged over devices.
        module_id = next(mid for mid, known in trace.masks.items() if known is mask)
        count = trace.row_counts[module_id]
        if trace.row_weights is not None:
            weights = trace.row_weights[module_id].reshape(mask.shape)
            values = {name: weights * x for name, x in values.items()}
        return {name: jnp.sum(x if full else jnp.where(mask, x, 0.0)) / count for name, x in values.items()}

    def _log_no_valid_action_share(self, module_id: ModuleID, means: dict[str, jax.Array]) -> None:
        """Logs the fraction of rows whose action mask allows no action, averaged over all minibatches.

        The metric has the name ``NO_VALID_ACTION_SHARE``, and is removed from `means`,
        ``{name: mean over the rows of a minibatch}``. A single row without an allowed action in the train batch is an
        error, whereas other metrics describe the last minibatch only.
        """
        if NO_VALID_ACTION_SHARE in means:
            share = means.pop(NO_VALID_ACTION_SHARE)
            self.metrics.log_value((module_id, NO_VALID_ACTION_SHARE), share, reduce="mean")

    def masked_statistics(self, x: jax.Array, batch: Mapping[str, Any]) -> RunningStatistics:
        """Returns mean and variance of `x` over the valid rows (not masked) of a minibatch on this device, for
        `TracedMetrics.log_statistics`.

        They are computed in two passes: the difference of two means is inaccurate if the mean is much larger than the
        standard deviation.

        Args:
            x: float32 ``[N, ...]``, or ``[N, L, ...]`` for sequences; its gradient is stopped.
            batch: The module's minibatch; its ``LOSS_MASK`` is True for valid rows.
        """
        mask = batch[Columns.LOSS_MASK]
        full = not self.may_be_masked(batch)
        rows = jax.lax.stop_gradient(x).reshape(-1, *x.shape[mask.ndim :])
        return running_statistics.of_batch(rows, None if full else mask.reshape(-1))

    def may_be_masked(self, batch: Mapping[str, Any]) -> bool:
        """Whether `batch`, the module's minibatch, may contain masked rows; False if all rows are certain to be
        valid.
        """
        trace = self._tracing.trace
        return trace is None or not any(batch[Columns.LOSS_MASK] is known for known in trace.full_masks)

    def gradients_of(self, losses: dict[ModuleID, Any], linearized: LinearizedLosses) -> ParamDict:
        """Returns the gradients of the losses with respect to the parameters.

        Scalar losses of modules are summed, and the sum is differentiated with respect to all parameters. If a module
        has one loss per optimizer, each of these losses is differentiated only with respect to the parameters of its
        optimizer.

        Args:
            losses: ``{module_id: scalar or {optimizer_name: scalar}}``.
            linearized: Linearization of the losses.
        """
        scalars = [mid for mid, loss in losses.items() if not isinstance(loss, dict)]
        if scalars:
            gradients = linearized.gradients(lambda found: sum(found[mid] for mid in scalars), linearized.params)
        else:
            gradients = {ref: jnp.zeros_like(leaf) for ref, leaf in linearized.params.items()}
        for module_id, loss in losses.items():
            if not isinstance(loss, dict):
                continue
            for name in loss:
                optimizer = self.optimizers.find(module_id, name)
                refs = [ref for ref in optimizer.refs if ref in linearized.params]
                own = linearized.gradients(lambda found, mid=module_id, name=name: found[mid][name], refs)
                for ref, gradient in own.items():
                    gradients[ref] = gradients[ref] + gradient if scalars else gradient
        return gradients

    @property
    def extra(self) -> dict[str, Any]:
        """Arrays of algorithm state (see `initial_extra_state`): traced arrays inside a compiled hook, otherwise NumPy
        copies.
        """
        if self._tracing.trace is not None:
            return self._tracing.trace.extra
        return jax.device_get(host_view(self.state.extra))

    @property
    def updates_so_far(self) -> jax.Array | None:
        """Number of updates before the current one, uint32 scalar, inside a compiled hook. None while `evaluate_rows`
        computes losses without an update.
        """
        return self._running_trace("updates_so_far").num_updates

    def has_rows(self, module_id: ModuleID) -> Any:
        """Whether the batch of the running update contains valid rows (not masked) of a module, for use in
        `post_update`.

        Returns:
            False for a module that the update leaves out, a traced bool scalar if its rows may be masked, else True.
        """
        has_rows = self._tracing.has_rows
        return True if has_rows is None else has_rows.get(module_id, False)

    def _running_trace(self, hook: str) -> Trace:
        """Returns the values that hooks may read while the update is traced (a `Trace`); raises an error outside of an
        update.

        Raises:
            RuntimeError: If the hook was called outside of an update.
        """
        if self._tracing.trace is None:
            raise RuntimeError(
                f"{type(self).__name__}.{hook}() is a part of the compiled update and works only inside it. Call "
                f"update(batch=...) instead. To see the values of a hook, override the hook, and log the values there: "
                f"self.metrics.log_value(...)."
            )
        return self._tracing.trace

    def _config_view(self, module_id: ModuleID) -> Any:
        """Returns the config of a module; inside a compiled update, settings such as ``lr`` have their current values
        as traced arrays.
        """
        if self._tracing.trace is None:
            return self.config_for(module_id if module_id in self.template else next(iter(self.template)))
        if module_id in self._tracing.trace.configs:
            return self._tracing.trace.configs[module_id]
        return next(iter(self._tracing.trace.configs.values()))

    @contextlib.contextmanager
    def tracing(self, trace: Trace) -> Iterator[None]:
        """Context manager around the calls of hooks while JAX traces an update. Inside, hooks read the parameters,
        config and metrics of `trace`, not of this learner.
        """
        outer, self._tracing.trace = self._tracing.trace, trace
        try:
            yield
        finally:
            self._tracing.trace = outer

    @contextlib.contextmanager
    def in_pure_hook(self, name: str, has_rows: Mapping[ModuleID, Any] | None = None) -> Iterator[None]:
        """Context manager around the call of a pure hook, inside which reading the learner's own state raises an error.

        Args:
            name: Name of the hook.
            has_rows: Results of `has_rows` in the hook, for the modules of the batch.
        """
        self._tracing.pure_hook, self._tracing.has_rows = name, has_rows
        try:
            yield
        finally:
            self._tracing.pure_hook = self._tracing.has_rows = None

    def _check_not_in_pure_hook(self, what: str) -> None:
        """Raises a RuntimeError if a pure hook (compiled into the update) reads the learner's attribute `what`.

        `what` is the name of the attribute. A pure hook must not read the attribute, because the value would become a
        constant of the compiled program.
        """
        if self._tracing.pure_hook is not None:
            raise RuntimeError(
                f"{self._tracing.pure_hook}() is compiled into the update and cannot read self.{what}, self.module or "
                "self.extra of the learner. Use the arguments of the hook, and return the changed state."
            )

    # -------------------------------------------------------------------------------------------- updates from the host

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
        """Updates the modules. Pass exactly one of the data arguments: a batch, batches, episodes, iterators or Ray
        references.

        Args:
            batch: ``{module_id: {column: [N, ...]}}`` (or ``{column: [N, ...]}`` for a single module), ready for the
                loss; the connector pipeline is not run.
            batches: Several such batches, which are concatenated.
            batch_refs: Ray references of such batches.
            episodes: Episodes of one or several agents; they pass through the learner pipeline, which may change them.
            episodes_refs: Ray references of lists of episodes.
            data_iterators: Iterators over such batches, one batch per update.
            training_data: An object with (some of) the attributes above.
            timesteps: Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``; the next update evaluates
                schedules at this number of env steps.
            num_total_minibatches: Number of gradient steps if above 0, instead of the number that the epochs need.
            num_epochs: Number of passes over the batch.
            minibatch_size: Rows per gradient step over all devices of this learner; None for the whole batch.
            shuffle_batch_per_epoch: Whether each of several epochs has its own random order.

        Returns:
            ``{module_id: {metric: float}}`` of the last minibatch, the metrics of host hooks, and the counters of
            `training_counts`.

        Raises:
            ValueError: If not exactly one data argument is given, sizes do not match, or no module of the data is
                trained.
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
            rows, forms = self._rows_of_episodes(data.episodes, counter)
        else:
            batches = [data.batch] if data.batches is None else data.batches
            if data.data_iterators is not None:
                batches = [next(iter(iterator)) for iterator in data.data_iterators]
            rows = row_blocks.concatenate([self._as_multi_module_batch(batch) for batch in batches])
            forms = forms_of_batch(self.template, rows, needs_time=self.loss_needs_time)
        return self._fit_rows(rows, forms, counter, plan)

    def update_from_batch(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        """Deprecated: use ``update(batch=batch)``."""
        warnings.warn("update_from_batch(batch) is now update(batch=batch).", DeprecationWarning, stacklevel=2)
        return self.update(batch=batch, **kwargs)

    def update_from_episodes(self, episodes: Sequence[Any], **kwargs: Any) -> dict[str, Any]:
        """Deprecated: use ``update(episodes=episodes)``."""
        message = "update_from_episodes(episodes) is now update(episodes=episodes)."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.update(episodes=episodes, **kwargs)

    def update_block(self, experience: Experience, *, timesteps: Timesteps = None, **sizes: Any) -> dict[str, Any]:
        """Updates the modules on sampled steps ``[T, B, ...]``; connector pipeline and minibatch loop run in one
        compiled program.

        An iteration on the device makes the same computation. Each shape of block is compiled once.

        Args:
            experience: Columns ``[T, B, ...]``, NumPy; device ``d`` of this learner's D devices takes the indices
                ``d * B/D ... (d+1) * B/D - 1`` on axis B. The arrays are only read, and not kept.
            timesteps: See `update`.
            **sizes: ``num_epochs``, ``minibatch_size``, ``shuffle_batch_per_epoch`` and ``num_total_minibatches``, see
                `update`.

        Returns:
            The result in the form of `update`.

        Raises:
            ValueError: If columns differ in ``[T, B]``, B is not a multiple of the number of devices and shuffle
                shards, or the learner pipeline has host connectors, which need episodes.
        """
        self._check_is_built()
        if self.has_host_connectors:
            raise ValueError(
                f"update_block() is one compiled program, but the learner connectors {self.host_connector_names} run "
                "on the host, on episodes. Use update(episodes=...), or write pure connectors, with a method "
                "apply(self, state, batch, ctx)."
            )
        plan, blocks = self.plan(**sizes), Experience.check(experience, is_rows=False).blocks
        blocks = {mid: row_blocks.checked_block(mid, own, self.template, plan) for mid, own in blocks.items()}
        blocks = with_common_grouping(blocks, plan)
        if self._leaves_all_out({}, {mid: own.columns for mid, own in blocks.items()}):
            return self._result_without_update()
        counter = self._before_update(timesteps)
        dealt = {mid: own.deal_out(plan.local_devices) for mid, own in blocks.items()}
        program = self.programs.of_blocks(plan, dealt)
        amounts = {mid: amount_of_block(self._form_of_block(mid, own), *own.shape) for mid, own in blocks.items()}
        masks = {mid: own.mask for mid, own in blocks.items() if own.mask is not None}
        settings, counts = self.placed_settings(), self._trained_on(plan, amounts, masks)
        with self._updating(counter, counts):
            self._state, metrics, _ = program(self.state, dealt, settings, counter)
            if masks:
                counts |= steps_trained.counted_by_program(fetched(metrics))
            self._last = (metrics, counts)
        return self._result()

    def update_rows(self, experience: Experience, *, timesteps: Timesteps = None) -> dict[MetricKey, np.ndarray]:
        """Makes one gradient step on all rows of a batch, for example one drawn from a replay buffer.

        This is the hot path of off-policy algorithms: values of rows are not checked, and metrics stay on the devices
        until `row_results` fetches the metrics of the last update. The learner pipeline receives the rows as one time
        step.

        Args:
            experience: Rows ``[N, ...]``, or sequences ``[N, J, ...]``, NumPy; each of this learner's D devices takes
                N / D of them. The arrays are only read, and not kept.
            timesteps: See `update`.

        Returns:
            ``{(module_id, name): float32 [N, ...]}``: the values per row that the loss logged with
            ``reduce="item_series"``.

        Raises:
            ValueError: If N is not a multiple of D, or the learner pipeline has host connectors, which need episodes.
            FloatingPointError: If ``check_nans`` is set and a loss or gradient is not finite.
        """
        self._check_is_built()
        batch = Experience.check(experience, is_rows=True).modules
        num_rows = {mid: num_rows_of(columns) for mid, columns in batch.items()}
        if num_rows != self._rows_trained_on[0]:
            self._check_rows(num_rows, batch)
            forms = forms_of_batch(self.template, batch, needs_time=self.loss_needs_time)
            steps = {mid: num_rows[mid] * own.rows_per_item for mid, own in forms.items()}
            trained = {mid: TrainedOn(n, n) for mid, n in steps.items() if self.should_module_be_updated(mid)}
            self._rows_trained_on = (num_rows, trained)
        if self.pure_update.trains_nothing:
            return {}
        counter = self._before_update(timesteps)
        program, settings, counts = self.programs.of_rows(), self.placed_settings(), self._rows_trained_on[1]
        masks = {mid: batch[mid][Columns.LOSS_MASK] for mid in counts if Columns.LOSS_MASK in batch[mid]}
        # An update does not change modules without valid rows.
        counts = counts | {mid: TrainedOn(0, 0) for mid, mask in masks.items() if not np.any(mask)}
        with self._updating(counter, counts):
            self._state, metrics, rows = program(self.state, batch, settings, counter, is_dealt=False)
            self._last = (metrics, counts)
        return rows

    def row_results(self, num_updates: int = 1) -> dict[str, Any]:
        """Returns metrics and counters of the learner's last update, in the form that `update` returns.

        Call this method after `update_rows`, which returns only values per row.

        Args:
            num_updates: Number of updates that the counters "trained" cover.

        Returns:
            ``{module_id: {metric: float}}``; empty before the first update.
        """
        return {} if self._last is None else self._result(num_updates)

    def evaluate_rows(self, experience: Experience, *, seed: int = 0, timesteps: Timesteps = None) -> dict[str, Any]:
        """Returns the losses and metrics of a batch of rows without an update; the state of this learner does not
        change.

        Rows pass through the learner pipeline and the loss as in `update_rows`; changes of connector states are
        discarded.

        Args:
            experience: See `update_rows`.
            seed: Seed of random layers and connectors.
            timesteps: See `update`.

        Returns:
            ``{module_id: {"total_eval_loss": float, metric: float, "num_module_steps_sampled": int}}``.

        Raises:
            ValueError: See `update_rows`.
        """
        self._check_is_built()
        batch = Experience.check(experience, is_rows=True).modules
        self._check_rows({mid: num_rows_of(columns) for mid, columns in batch.items()}, batch)
        counter = counters.from_int(steps_trained.lifetime_env_steps(timesteps))
        results = nest_metrics(self.programs.evaluate(batch, counter, seed))
        for mid, own in forms_of_batch(self.template, batch, needs_time=self.loss_needs_time).items():
            if mid in results:  # policies_to_train may leave it out
                results[mid][NUM_STEPS_EVALUATED] = num_rows_of(batch[mid]) * own.rows_per_item
        return results

    def plan(
        self,
        *,
        num_epochs: int = 1,
        minibatch_size: int | None = None,
        shuffle_batch_per_epoch: bool = False,
        num_total_minibatches: int = 0,
    ) -> UpdatePlan:
        """Returns the static sizes of an update on this learner's devices, such as the minibatch size.

        The sizes are the number of epochs, the minibatch size, and the number of shuffle shards (groups of rows that
        are shuffled separately).

        Args:
            num_epochs, minibatch_size, shuffle_batch_per_epoch, num_total_minibatches: See `update`.

        Raises:
            ValueError: If the minibatch size is not a multiple of the number of this learner's shuffle shards, the
                number of shuffle shards is not a multiple of the number of devices, or a number is too small.
        """
        num_learners, num_devices = self.num_joined_learners, self.num_devices
        num_shards = self.config.num_shuffle_shards or num_devices
        if num_shards % num_devices:
            joined = f" (in {num_learners} learners)" if num_learners > 1 else ""
            raise ValueError(
                f"num_shuffle_shards={num_shards} must be a multiple of the number of devices, {num_devices}{joined}. "
                f"Set learners(num_shuffle_shards={num_devices}), or leave it out."
            )
        numbers = (("num_epochs", num_epochs, 1), ("num_total_minibatches", num_total_minibatches, 0))
        for name, value, least in numbers:
            if value < least:
                raise ValueError(f"{name}={value} must be at least {least}. Pass {name}={least} or more.")
        sizes = (num_epochs, minibatch_size, shuffle_batch_per_epoch, num_total_minibatches)
        plan = UpdatePlan(*sizes, num_shards, num_devices, num_learners)
        if minibatch_size is not None and (minibatch_size < 1 or minibatch_size % plan.local_shards):
            below = max(minibatch_size // plan.local_shards, 1) * plan.local_shards
            raise ValueError(
                f"minibatch_size={minibatch_size} must be a positive multiple of {plan.local_shards}, the number of "
                f"shuffle shards per learner (one per device unless num_shuffle_shards is set). Use "
                f"minibatch_size={below}, for example."
            )
        return plan

    def _form_of_block(self, module_id: ModuleID, block: Block) -> Form:
        """Returns the array shapes of minibatches drawn from a module's sampled steps (a block); see
        `form_of_block`.
        """
        module, num_steps = self.template[module_id], block.shape[0]
        return form_of_block(module, block.known_layout, num_steps, needs_time=self.loss_needs_time)

    def forms_of_blocks(self, num_steps: int) -> dict[ModuleID, Form]:
        """Returns the forms (item and array shapes) of minibatches drawn from sampled steps, ``{module_id: form}``.

        The sampled steps are ``[T, B, ...]`` with T = `num_steps`, without a mask. Minibatches contain single steps,
        chunks (training sequences), or chunks with an initial recurrent state.
        """
        return {
            mid: form_of_block(module, layout_of(module, num_steps), num_steps, needs_time=self.loss_needs_time)
            for mid, module in self.template.items()
        }

    def _rows_of_episodes(self, episodes: Sequence[Any], counter: np.ndarray) -> tuple[Batch, dict[ModuleID, Form]]:
        """Passes episodes through the learner connector pipeline, and converts them to rows ``[N, ...]``.

        Returns:
            ``({module_id: {column: [N, ...]}}, forms by module)`` on the host, step by step and episode by episode.
        """
        columns = None
        if self.has_host_connectors:
            prefix = (ALL_MODULES, "learner_connector")
            with self.metrics_logger.log_time((*prefix, CONNECTOR_PIPELINE_TIMER)):
                columns = self._learner_connector.columns_from_host_connectors(
                    episodes, rl_module=self._synced_module(), metrics=self.metrics_logger, metrics_prefix_key=prefix
                )
        blocks, rows = episodes_to_batch(
            episodes,
            self.template,
            columns=columns,
            num_devices=len(self.devices),
            common_sizes=self.programs.largest_of_all_learners,
        )
        of_modules = {mid: own.columns for mid, own in blocks.items()}
        check_has_masks(of_modules, self.template, connectors=self.host_connector_names)
        connector, blocks = self.programs.connect(blocks, counter)
        old, self._state = self.state, dataclasses.replace(self.state, connector=connector)
        self.programs.follow(old, self._state)
        # A module that a connector has added has the rows of the first module, from which it was made.
        row_of = dict.fromkeys(blocks, next(iter(rows.values()))) | rows
        batch, forms = {}, {}
        for mid, block in blocks.items():
            block.check(mid)
            of_devices = block.of_devices()
            forms[mid] = self._form_of_block(mid, of_devices[0])
            batch[mid] = _taken(of_devices, forms[mid], row_of[mid])
        return batch, forms

    def _as_multi_module_batch(self, batch: Any) -> Batch:
        batch = getattr(batch, "policy_batches", batch)
        if not isinstance(batch, Mapping):
            raise TypeError(
                f"A batch is a dict {{column: [N, ...]}} or {{module_id: {{column: [N, ...]}}}}, got a "
                f"{type(batch).__name__}. For several batches use update(batches=[...])."
            )
        if any(key in self.template for key in batch):
            unknown = [key for key in batch if key not in self.template]
            if unknown:
                raise ValueError(
                    f"The batch has unknown modules {unknown}. Use only the modules of this learner, "
                    f"{list(self.template)}."
                )
            columns_of = {mid: dict(columns) for mid, columns in batch.items()}
        else:
            columns_of = {single_agent(self.template).module_id: dict(batch)}
        for mid, columns in columns_of.items():
            row_blocks.check_columns(mid, columns, self.template[mid])
        return columns_of

    def _fit_rows(
        self, rows: Batch, forms: Mapping[ModuleID, Form], counter: np.ndarray, plan: UpdatePlan
    ) -> dict[str, Any]:
        """Updates the modules in minibatches on a batch in host memory, ``{module_id: {column: [N, ...]}}``.

        Args:
            rows: Rows, or chunks, by module.
            forms: Forms of the rows, by module.
            counter: uint32[2], lifetime env steps.
            plan: Sizes of the update.
        """
        num_rows = {mid: row_blocks.num_rows_of(mid, columns) for mid, columns in rows.items()}
        per_shard = {mid: row_blocks.rows_per_shard(n, plan.local_shards) for mid, n in num_rows.items()}
        if self._leaves_all_out(per_shard, rows):
            return self._result_without_update()
        padded = self.programs.padded(rows, forms, per_shard, plan)
        lengths = {mid: own.rows_per_item for mid, own in forms.items()}
        amounts = {mid: Amount(n * lengths[mid], n, lengths[mid]) for mid, n in num_rows.items()}
        masks = {mid: rows[mid][Columns.LOSS_MASK] for mid, own in forms.items() if own.is_masked}
        program = self.programs.of_batch(padded)
        settings, counts = self.placed_settings(), self._trained_on(plan, amounts, masks)
        with self._updating(counter, counts):
            self._state, metrics, _ = program(self.state, padded.items, settings, counter, *padded.row_counts)
            self._last = (metrics, counts)
        return self._result()

    def _leaves_all_out(self, sizes: dict[str, int], batch: Any) -> bool:
        """Returns True if ``policies_to_train`` excludes all modules, so that this learner makes no update.

        In this case, raises a ValueError if another of the learners that update jointly trains a module (see
        `UpdatePrograms.sizes_of_all_learners`).
        """
        if not self.pure_update.trains_nothing:
            return False
        self.programs.sizes_of_all_learners(sizes, batch)
        return True

    def _check_rows(self, num_rows: Mapping[ModuleID, int], batch: Batch) -> None:
        """Raises a ValueError if `update_rows` or `evaluate_rows` cannot use a batch.

        Possible reasons: the learner has connectors that run on the host, the rows cannot be split evenly over the
        learner's devices, or learners that update jointly train different modules.
        """
        if self.has_host_connectors:
            raise ValueError(
                f"update_rows() gets batches without episodes, but the learner connectors {self.host_connector_names} "
                f"run on the host, on episodes. Write pure connectors, with a method apply(self, state, batch, ctx)."
            )
        if any(n % len(self.devices) for n in num_rows.values()):
            raise ValueError(
                f"A batch of {num_rows} rows cannot be split over the {len(self.devices)} devices of a learner "
                "(num_cpus_per_learner or num_gpus_per_learner). Make train_batch_size_per_learner a multiple of "
                f"{len(self.devices)}."
            )
        self.programs.sizes_of_all_learners({}, batch)

    def _before_update(self, timesteps: Timesteps) -> np.ndarray:
        """Prepares an update with data in host memory, and returns the lifetime env steps.

        Checks the learner's devices, and calls `before_gradient_based_update`. The lifetime env steps are uint32[2]
        (high and low word of the number).
        """
        if self.num_devices > len(self.devices) * self.num_joined_learners:
            raise ValueError(
                f"This learner runs on {self.num_devices} devices of several processes (distributed.initialize()) and "
                "cannot train on data in the memory of one process. Use a JAX environment, or remove "
                "distributed.initialize() and set learners(num_learners=...)."
            )
        steps = steps_trained.lifetime_env_steps(timesteps)
        if self.has_host_hooks:
            self.before_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": steps})
        return counters.from_int(steps)

    @contextlib.contextmanager
    def _updating(self, counter: np.ndarray, counts: Mapping[ModuleID, TrainedOn]) -> Iterator[None]:
        """Context manager around the call of an update program: recovers the state after a failure, counts the update,
        checks for NaNs and calls the host hook `after_gradient_based_update`.

        Args:
            counter: uint32[2], lifetime env steps.
            counts: Steps on which each module is trained.
        """
        num_updates = self.num_updates + 1
        with self.programs.guard(num_updates - 1, self._go_on_from):
            yield
            self._counted = (self._state, num_updates)
            self.steps_trained.count(counts, num_updates)
        if self.config.check_nans:
            assert self._last is not None
            raise_if_not_finite(fetched(self._last[0]), iteration=num_updates)
        if self.has_host_hooks:
            self.after_gradient_based_update(timesteps={"num_env_steps_sampled_lifetime": counters.to_int(counter)})

    def _go_on_from(self, state: LearnerState) -> None:
        """Sets the learner's state to an earlier state, after a failed update has destroyed the current arrays."""
        # The metrics of the last update may have been lost as well.
        self._forget_updates()
        self.place(state)

    def _result(self, num_updates: int = 1) -> dict[str, Any]:
        """Returns the result dict of an update: the last update's metrics, and counters of trained steps that cover the
        last `num_updates` updates.
        """
        assert self._last is not None
        metrics, counts = self._last
        out = nest_metrics(fetched(metrics))
        merge_nested(out, self._counters_of_result(counts, num_updates, {}))
        merge_nested(out, self.metrics_logger.compile())
        return ReducedMetrics(out)

    def _result_without_update(self) -> dict[str, Any]:
        """Returns the result of an update for which ``policies_to_train`` excludes all modules; it contains only
        counters.
        """
        return ReducedMetrics(self._counters_of_result({}, 0, {}))

    # --------------------------------------------------------------------------------------------------------- counters

    def training_counts(
        self,
        plan: UpdatePlan,
        num_steps: int,
        num_updates: int,
        num_columns: Mapping[ModuleID, int] | None = None,
        learned: Mapping[MetricKey, Any] = MappingProxyType({}),
        steps: Mapping[ModuleID, int] = MappingProxyType({}),
        forms: Mapping[ModuleID, Form] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Returns the counters of one training iteration, such as ``num_module_steps_trained``, by module. This method
        is for iterations whose updates run in an on-device program.

        Args:
            plan: Plan of every update.
            num_steps: ``T`` of a train batch ``[T, B, ...]``.
            num_updates: Number of updates in this iteration.
            num_columns: ``B`` of a train batch, by module; None for ``B = 1``.
            learned: Result of the last update; if rows are masked, it contains the sizes of the batches.
            steps: Sums of the results of `count_updates` over the iteration; {} if no rows are masked.
            forms: Forms of the updates' items, by module; modules without one draw single rows.

        Returns:
            ``{module_id or "__all_modules__": {name: number}}``. Steps trained are rows used in gradient steps: 138
            rows in two epochs of minibatches of 64 rows are 5 gradient steps and 320 rows.
        """
        each = trained_in_each(self.template, plan, num_steps, num_columns, forms, self.should_module_be_updated)
        return self._counters_of_result(each | steps_trained.counted_by_program(learned), num_updates, steps)

    def count_updates(
        self,
        plan: UpdatePlan,
        num_steps: int,
        num_updates: int,
        num_columns: Mapping[ModuleID, int] | None,
        learned: Mapping[MetricKey, Any],
        forms: Mapping[ModuleID, Form] = MappingProxyType({}),
    ) -> dict[ModuleID, int]:
        """Adds the number of steps on which an on-device program has trained each module to the module's lifetime
        counter.

        The program has made `num_updates` updates. If no rows are masked, does nothing, because these numbers then
        follow from the batch sizes. The arguments are the same as in `training_counts`.

        Returns:
            ``{module_id: number of steps}`` of these updates, also added to `steps_trained`. {} if no rows are masked:
            then the numbers follow from the sizes.
        """
        counted = steps_trained.counted_by_program(learned)
        if not counted:
            return {}
        each = trained_in_each(self.template, plan, num_steps, num_columns, forms, self.should_module_be_updated)
        steps = {mid: own.num_steps * num_updates for mid, own in each.items()}
        steps |= {mid: own.num_steps for mid, own in counted.items()}
        self.steps_trained.add(steps, self.num_updates)
        return steps

    def _trained_on(
        self, plan: UpdatePlan, amounts: Mapping[ModuleID, Amount], masks: Mapping[ModuleID, Any]
    ) -> dict[ModuleID, TrainedOn]:
        return trained_on(self.template, plan, amounts, masks, self.should_module_be_updated)

    def _counters_of_result(
        self, counts: Mapping[ModuleID, TrainedOn], num_updates: int, steps: Mapping[ModuleID, int]
    ) -> dict[str, Any]:
        numbers = self.steps_trained.results(counts, num_updates, steps, self.num_updates, self._parameter_counts())
        # Compiled connectors are a part of the update. Connectors in Python log their seconds.
        numbers[ALL_MODULES]["learner_connector"] = {CONNECTOR_PIPELINE_TIMER: 0.0}
        return numbers

    def _parameter_counts(self) -> dict[str, dict[str, int]]:
        """Returns the numbers of trainable and non-trainable parameters of every module,
        ``{module_id: {name: number}}``. The key ``ALL_MODULES`` has the numbers for all modules together.
        """
        if self._num_parameters is None:
            self._num_parameters = self.pure.parameter_counts()
        return self._num_parameters

    # ------------------------------------------------------------------------------------ other settings, other modules

    def reset(self, config: AlgorithmConfig) -> bool:
        """Resets the learner to its initial state, without recompiling.

        Args:
            config: New config; it differs from the current one only in traced settings and in its seed.

        Returns:
            False, without any change, if modules were added or removed, or if the programs contain constants that
            depend on the seed.
        """
        self._check_is_built()
        if self._has_changed_modules:
            # Even if the modules are the same again, their initial weights are not known any more.
            return False
        before = self.config
        self._use_settings(config)
        if config.root_seed != before.root_seed and not self._take_new_weights():
            self._use_settings(before)
            return False
        # New objects, since host connectors keep their state in attributes. The programs were traced with the earlier
        # pure connectors, which are the same functions.
        self._make_connectors()
        self._forget_updates()
        self.steps_trained = StepsTrained()
        self.metrics_logger.reset()
        self.place(self._initial_state())
        return True

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Changes settings that compiled updates take as arguments, such as ``lr``; the state and the compiled programs
        do not change.

        Args:
            config: New config; it differs from the current one only in traced settings.

        Raises:
            ValueError: If the optimizers do not read a changed learning rate, or need a different program for it;
                nothing is changed then.
        """
        self._check_is_built()
        before, rates = self.config, self.optimizers.rates()
        self._use_settings(config)
        traced = [(s.name, value) for s, value in config.stored_settings() if s.kind == "traced"]
        names = [name for name, value in traced if is_another_value(value, before.stored_value(name))]
        where = f"{type(self).__name__}.configure_optimizers_for_module()"
        problem = problem_with_rates(rates, self.optimizers.rates(), names, where)
        if problem:
            self._use_settings(before)
            raise ValueError(problem)

    def _use_settings(self, config: AlgorithmConfig) -> None:
        self.config = config.copy(copy_frozen=True)
        self._settings_on_device = None
        self._register_optimizers()

    def _take_new_weights(self) -> bool:
        """Draws new initial weights with the seed of the current config, unless compiled programs contain constants of
        the earlier seed.

        Returns True if new weights were drawn. If a module was given to the constructor, keeps the weights of this
        module, and also returns True. If the compiled programs contain constants that were drawn with the earlier seed,
        changes nothing, and returns False.
        """
        if self._module_given is not None:
            return True
        fresh = PureModule(self._make_module())
        if not fresh.definition.is_alike(self.pure.definition):
            # Programs hold constants that were made with the seed before.
            return False
        self.pure.params, self.pure.rest = fresh.params, fresh.rest
        return True

    def add_module(
        self,
        *,
        module_id: ModuleID,
        module_spec: RLModuleSpec,
        config_overrides: dict[str, Any] | None = None,
        new_should_module_be_updated: Any = None,
    ) -> MultiRLModuleSpec:
        """Adds a module. Weights and optimizer states of other modules do not change. The next update recompiles.

        Args:
            module_id: Id of the new module.
            module_spec: Spec of the new module.
            config_overrides: Settings of the new module, ``{name: value}``.
            new_should_module_be_updated: New value of `policies_to_train`; None keeps it.

        Returns:
            The spec of the MultiRLModule with the new module.

        Raises:
            ValueError: If the module exists already.
        """
        self._check_is_built()
        if module_id in self.template:
            raise ValueError(f"Module {module_id!r} exists already. Call remove_module({module_id!r}) first.")
        modules = dict(self._synced_module().items())
        new = module_spec.build(seed=derived_seed("module", self.config.root_seed, len(modules)))
        self._check_module(module_id, new)
        overrides = self._module_overrides | ({module_id: config_overrides} if config_overrides else {})
        return self._regroup(modules | {module_id: new}, overrides, new_should_module_be_updated)

    def remove_module(self, module_id: ModuleID, *, new_should_module_be_updated: Any = None) -> MultiRLModuleSpec:
        """Removes a module and its optimizers. The next update recompiles.

        Args:
            module_id: Id of the module.
            new_should_module_be_updated: New value of `policies_to_train`; None keeps it.

        Returns:
            The spec of the remaining MultiRLModule.

        Raises:
            ValueError: If the module does not exist, or is the only one.
        """
        self._check_is_built()
        if module_id not in self.template:
            raise ValueError(
                f"Module {module_id!r} does not exist. Use one of this learner's modules, {list(self.template)}."
            )
        modules = {mid: module for mid, module in self._synced_module().items() if mid != module_id}
        if not modules:
            raise ValueError(
                f"Module {module_id!r} is the learner's only module and cannot be removed. Call add_module(...) for "
                f"another one first."
            )
        overrides = {mid: own for mid, own in self._module_overrides.items() if mid != module_id}
        return self._regroup(modules, overrides, new_should_module_be_updated)

    def change_modules(
        self,
        *,
        added: Mapping[ModuleID, RLModuleSpec] | None = None,
        removed: Collection[ModuleID] = (),
        config_overrides: Mapping[ModuleID, dict[str, Any]] | None = None,
        new_should_module_be_updated: Any = None,
    ) -> MultiRLModuleSpec:
        """Adds some modules with `add_module`, and removes others with `remove_module`. If an error occurs, the learner
        stays unchanged.

        Args:
            added: Specs of the new modules, by id.
            removed: Ids of modules to remove.
            config_overrides: Settings of new modules, by id.
            new_should_module_be_updated: New value of `policies_to_train`; None keeps it.

        Returns:
            The spec of the MultiRLModule after all changes.
        """
        trained = {"new_should_module_be_updated": new_should_module_be_updated}
        with self._unchanged_on_failure():
            for module_id, spec in (added or {}).items():
                own = (config_overrides or {}).get(module_id)
                self.add_module(module_id=module_id, module_spec=spec, config_overrides=own, **trained)
            for module_id in removed:
                self.remove_module(module_id, **trained)
            if not added and not removed:
                modules = dict(self._synced_module().items())
                self._regroup(modules, self._module_overrides, new_should_module_be_updated)
        return MultiRLModuleSpec.from_module(self.template)

    @contextlib.contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        """Context manager that restores the learner's modules and state if the ``with`` block raises an error."""
        before, modules_before = dict(vars(self)), dict(self.template.items())
        try:
            yield
        except BaseException:
            _set_modules(self.template, modules_before)
            vars(self).update(before)
            raise

    def _regroup(
        self, modules: dict[ModuleID, RLModule], overrides: dict[ModuleID, dict[str, Any]], should_update: Any
    ) -> MultiRLModuleSpec:
        """Replaces the modules of this learner by `modules`.

        Modules that the learner already had keep their weights, optimizer states and other state. If an error occurs,
        the learner stays unchanged.
        """
        old = jax.device_get(host_view(self.state))
        with self._unchanged_on_failure():
            _set_modules(self.template, modules)
            self._module_overrides = overrides
            if should_update is not None:
                self.policies_to_train = should_update
            self._set_module(self.template)
            self.programs = UpdatePrograms(self)
            self._forget_updates()
            self._settings_on_device = None
            self._register_optimizers()
            fresh = self._initial_state()
            state = old.replace(
                params=fresh.params,
                rest=fresh.rest,
                optimizers=kept_where_it_fits(old.optimizers, fresh.optimizers),
                extra=kept_where_it_fits(old.extra, fresh.extra),
                connector=kept_where_it_fits(old.connector, fresh.connector),
            )
            self.place(state)
        self._has_changed_modules = True
        return MultiRLModuleSpec.from_module(self.template)

    # --------------------------------------------------------------------------------------------- weights, checkpoints

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the state of this learner (or some components) as nested dicts of NumPy arrays.

        Args:
            components: Components out of `STATE_COMPONENTS`; None for all.
            not_components: Components to leave out.
            **kwargs: Ignored.

        Returns:
            ``{component: state}``: ``rl_module`` is ``{module_id: RLModule.get_state()}``, ``optimizer`` is
            ``{module_id: {"path/to/leaf": array}}``, and ``extra`` and ``connector`` have the same form.
        """
        return self._checkpoint.get_state(components, not_components=not_components)

    def set_state(self, state: dict[str, Any]) -> None:
        """Sets the state of this learner to a result of `get_state`; missing components keep their state.

        Raises:
            ValueError: If names, shapes or dtypes do not match this learner's modules; nothing is changed then.
        """
        self._checkpoint.set_state(state)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments of this learner for checkpoints, ``config`` and ``module_spec``."""
        config = self.config.for_checkpoints(self._learner_connector)
        return (), {"config": config, "module_spec": MultiRLModuleSpec.from_module(self.template)}

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns the learner's MultiRLModule as the component ``"rl_module"``, which checkpoints save in a separate
        folder.
        """
        return [(COMPONENT_RL_MODULE, self.module)]

    @classmethod
    def _build_from_checkpoint(cls, args: list[Any], kwargs: dict[str, Any], state: dict[str, Any]) -> Self:
        if isinstance(kwargs.get("module_spec"), MultiRLModuleSpec):
            check_fits_specs(kwargs["module_spec"], state.get("rl_module", {}))
        learner = super()._build_from_checkpoint(args, kwargs, state)
        learner.build()
        return learner

    def get_weights(self) -> dict[str, np.ndarray]:
        """Returns a copy of the trained parameters, ``{ref: array}`` with ``ref = "module_id/path/to/leaf"``."""
        return jax.device_get(host_view(self.state.params))

    def set_weights(self, weights: dict[ModuleID, dict[str, Any]]) -> None:
        """Replaces the given weights of the learner's modules; all other weights keep their values.

        Args:
            weights: ``{module_id: {name: array}}`` in the form of `RLModule.get_state`, or ``{ref: array}`` in the form
                of `get_weights`; missing weights keep their values.

        Raises:
            KeyError: If the learner does not have a module.
            ValueError: If a module does not have weights of these names and shapes.
        """
        self._checkpoint.set_weights(weights)

    def weights_for_runners(self) -> dict[str, dict[str, np.ndarray]]:
        """Returns the weights for env runners as NumPy arrays.

        Parameters are under ``"params"`` and other module state is under ``"rest"``, each ``{ref: array}`` (ref: name
        of a parameter or other variable). The weights do not contain target networks, nor random streams, which every
        program seeds from its key.
        """
        left_out = self.pure.stream_refs | self.pure.target_refs
        params, rest = self.state.params, self.state.rest
        own = {ref: leaf for ref, leaf in rest.items() if ref not in left_out}
        return jax.device_get(host_view({"params": params, "rest": own}))

    def weights_in_place(
        self, params: Collection[str], rest: Collection[str], sharding: jax.sharding.NamedSharding
    ) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
        """Returns the current weights for a policy in the same process; parameters that are on the policy's device are
        not copied.

        The arrays never change: updates create new parameters.

        Args:
            params: Refs of the parameters.
            rest: Refs of the modules' other state.
            sharding: Sharding of the policy's arguments, one device.

        Returns:
            ``(params, rest)``, each ``{ref: array}`` with that sharding.
        """
        # The next update donates the other state.
        others = {ref: self.state.rest[ref] for ref in rest}
        own = {ref: self.state.params[ref] for ref in params}
        if any(leaf.sharding != sharding for leaf in own.values()):
            return devices.copy_on_one_device((own, others), sharding)
        return own, devices.copy_on_one_device(others, sharding)

    # ------------------------------------------------------------------------------------------------------------ other

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Returns ``func(self, *args, **kwargs)``; useful for Learners that users run as Ray actors."""
        return func(self, *args, **kwargs)

    def shutdown(self) -> None:
        """Frees compiled programs and device buffers."""
        self._forget_updates()
        self._state = None
        self.programs.forget()
        self._is_built = False


def _set_modules(multi_module: MultiRLModule, modules: dict[ModuleID, RLModule]) -> None:
    """Removes all modules of `multi_module`, a MultiRLModule, and adds `modules` in their order."""
    for module_id in list(multi_module):
        multi_module.remove_module(module_id)
    for module_id, module in modules.items():
        multi_module.add_module(module_id, module)


def _taken(of_devices: Sequence[Block], form: Form, rows: np.ndarray) -> dict[str, Any]:
    """Gathers the items of one module that contain a valid step (not masked) from the blocks of all devices.

    The items are single steps ``[N, ...]`` or chunks ``[N, L, ...]``.

    Args:
        of_devices: Blocks of one module, one per device.
        form: Form of the items: rows or chunks.
        rows: Indices of the valid rows in the flattened blocks ``[D * T * B / D]``.
    """
    parts = [block.chunks(form.length) if isinstance(form, ChunkForm) else block.columns for block in of_devices]
    columns = jax.tree.map(lambda *each: np.stack(each), *parts)
    if isinstance(form, ChunkForm):
        rows = np.flatnonzero(columns[Columns.LOSS_MASK].any(axis=-1))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:])[rows], columns)
