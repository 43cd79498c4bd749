"""The state of a Learner as data: checkpoints, weights, and modules that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import jax
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, selected
from jaxrl_stack.core import COMPONENT_RL_MODULE
from jaxrl_stack.core.learner.learner_base import ModuleID
from jaxrl_stack.core.learner.learner_state import STATE_COMPONENTS, kept_where_it_fits
from jaxrl_stack.core.learner.loss_hooks import LossHooks
from jaxrl_stack.core.learner.steps_trained import StepsTrained
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule, MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.seeds import derived_seed


class StoredLearner(LossHooks, Checkpointable):
    """What of a `Learner` reads and replaces its state."""

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
        if module_id in self.template:
            raise ValueError(f"Module {module_id!r} exists already; remove_module({module_id!r}) first.")
        modules = dict(self._synced_module().items())
        new = module_spec.build(seed=derived_seed("module", self.config.root_seed, len(modules)))
        self._check_module(module_id, new)
        overrides = self._module_overrides | ({module_id: config_overrides} if config_overrides else {})
        return self._regroup(modules | {module_id: new}, overrides, new_should_module_be_updated)

    def remove_module(self, module_id: ModuleID, *, new_should_module_be_updated: Any = None) -> MultiRLModuleSpec:
        """Remove a module with its optimizers. The next update compiles anew.

        Returns:
            The spec of what is left.
        """
        self._check_is_built()
        if module_id not in self.template:
            raise ValueError(f"There is no module {module_id!r}; there are {list(self.template)}.")
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
        before, modules_before = dict(vars(self)), dict(self.template.items())
        try:
            _set_modules(self.template, modules)
            self._module_overrides = overrides
            if should_update is not None:
                self.policies_to_train = should_update
            self._set_module(self.template)
            self._compiled = {}
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
        except BaseException:
            _set_modules(self.template, modules_before)
            vars(self).update(before)
            raise
        self._has_changed_modules = True
        return MultiRLModuleSpec.from_module(self.template)

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
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
                n: connector.get_state() for n, connector in self._learner_connector.checked_host_connectors()
            },
            "counters": lambda: {
                "timesteps": np.asarray(host_view(state.timesteps)),
                "num_updates": np.asarray(host_view(state.num_updates)),
                "key": np.asarray(jax.random.key_data(host_view(state.key))),
                "steps_trained": self._steps_trained.get_state(self.template),
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
            connectors = dict(self._learner_connector.checked_host_connectors())
            for name, own in state["host_connector"].items():
                connectors[name].set_state(own)
        if "metrics_logger" in state:
            self.metrics_logger.set_state(state["metrics_logger"])
        self._steps_trained = trained
        self.place(current)

    def _with_module_states(self, states: Mapping[ModuleID, Mapping[str, Any]]) -> tuple[Any, Any]:
        """``(params, rest)`` with these states of modules in place of the present ones."""
        unknown = [module_id for module_id in states if module_id not in self.template]
        if unknown:
            raise KeyError(f"No module {unknown[0]!r}; there are {list(self.template)}.")
        module = self._synced_module()
        # Whatever goes wrong half-way: the next reader of `module` gets the weights of the state again.
        self._synced_updates = None
        for module_id, state in states.items():
            module[module_id].set_state(state)
        return self.pure.unbind(module)

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """``config`` and ``module_spec``."""
        config = self.config.for_checkpoints(self._learner_connector)
        return (), {"config": config, "module_spec": MultiRLModuleSpec.from_module(self.template)}

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
        left_out = self.pure.stream_refs | self.pure.target_refs
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
        if weights and all(ref in self.pure.params for ref in weights):
            nested: dict[ModuleID, dict[str, Any]] = {}
            for ref, value in weights.items():
                module_id, _, name = ref.partition("/")
                nested.setdefault(module_id, {})[name] = value
            weights = nested
        params, rest = self._with_module_states(weights)
        self.place(jax.device_get(host_view(self.state)).replace(params=params, rest=rest))


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
