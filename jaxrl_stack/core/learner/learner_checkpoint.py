"""Conversion of a Learner's state to named arrays and back, for checkpoints."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Parts, selected
from jaxrl_stack.core.learner.learner_state import STATE_COMPONENTS
from jaxrl_stack.core.learner.steps_trained import StepsTrained
from jaxrl_stack.utils.devices import host_view
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner

_FIELDS = {"optimizer": "optimizers", "extra": "extra", "connector": "connector"}
"""Components of a checkpoint and the fields of `LearnerState` that they contain, each a dict of pytrees."""


class LearnerCheckpoint:
    """Reads and replaces the state of a Learner as nested dicts of named arrays.

    Args:
        learner: The learner.
    """

    def __init__(self, learner: Learner):
        self._learner = learner

    def get_state(self, components: Parts = None, *, not_components: Parts = None) -> dict[str, Any]:
        """Returns the state of the learner, ``{component: state}``; see `Learner.get_state`."""
        learner = self._learner
        state = learner.state
        make = {
            "rl_module": lambda: learner.module.get_state(),
            "optimizer": lambda: _by_name(state.optimizers),
            "extra": lambda: _by_name(state.extra),
            "connector": lambda: _by_name(state.connector),
            "host_connector": lambda: {name: own.get_state() for name, own in learner.host_connectors.items()},
            "counters": lambda: {
                "timesteps": np.asarray(host_view(state.timesteps)),
                "num_updates": np.asarray(host_view(state.num_updates)),
                "key": np.asarray(jax.random.key_data(host_view(state.key))),
                "steps_trained": learner.steps_trained.get_state(learner.template),
            },
            "metrics_logger": lambda: learner.metrics_logger.get_state(),
        }
        return {name: make[name]() for name in selected(STATE_COMPONENTS, components, not_components, "a Learner")}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Sets the learner's state to a result of `get_state`; if a component does not match, the learner stays
        unchanged.

        Raises:
            ValueError: See `Learner.set_state`.
        """
        learner = self._learner
        unknown = [name for name in state if name not in STATE_COMPONENTS]
        if unknown:
            raise ValueError(
                f"Unknown components {unknown} in Learner.set_state(state). Valid keys of `state` are "
                f"{list(STATE_COMPONENTS)}."
            )
        current = jax.device_get(host_view(learner.state))
        if "rl_module" in state:
            params, rest = self._with_module_states(state["rl_module"])
            current = current.replace(params=params, rest=rest)
        for part, field in _FIELDS.items():
            if part in state:
                current = current.replace(**{field: _from_names(getattr(current, field), state[part], part)})
        trained = learner.steps_trained
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
        owners: list[tuple[Any, Any]] = []
        if "host_connector" in state:
            connectors = learner.host_connectors
            owners = [(connectors[name], own) for name, own in state["host_connector"].items()]
        if "metrics_logger" in state:
            owners.append((learner.metrics_logger, state["metrics_logger"]))
        _set_all(owners)
        learner.steps_trained = trained
        learner.place(current)

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Replaces weights of some of the learner's modules, see `Learner.set_weights`."""
        learner = self._learner
        if weights and all(ref in learner.pure.params for ref in weights):
            nested: dict[ModuleID, dict[str, Any]] = {}
            for ref, value in weights.items():
                module_id, _, name = ref.partition("/")
                nested.setdefault(module_id, {})[name] = value
            weights = nested
        params, rest = self._with_module_states(weights)
        learner.place(jax.device_get(host_view(learner.state)).replace(params=params, rest=rest))

    def _with_module_states(self, states: Mapping[ModuleID, Mapping[str, Any]]) -> tuple[Any, Any]:
        """Returns the parameters and the other arrays of all modules, with the states of some modules replaced.

        `states`, ``{module_id: state}``, contains the new states of these modules. The result has two values: the
        parameters, and the other arrays. Does not change the learner's state.
        """
        learner = self._learner
        unknown = [module_id for module_id in states if module_id not in learner.template]
        if unknown:
            raise KeyError(f"No module {unknown[0]!r} in this learner. Use one of {list(learner.template)}.")
        module = learner.scratch_module()
        for module_id, state in states.items():
            module[module_id].set_state(state)
        return learner.pure.unbind(module)


def _set_all(given: Sequence[tuple[Any, Any]]) -> None:
    """Sets the states of several objects, given as ``(object, state)``; if one raises an error, restores the earlier
    states of all.
    """
    before: list[tuple[Any, Any]] = []
    try:
        for owner, state in given:
            # A connector without a state raises here: it has nothing to restore.
            with contextlib.suppress(Exception):
                before.append((owner, copy.deepcopy(owner.get_state())))
            owner.set_state(state)
    except BaseException as error:
        for owner, state in before:
            try:
                owner.set_state(state)
            except Exception as refused:
                error.add_note(f"The earlier state of {type(owner).__name__} could not be restored: {refused!r}")
        raise


def _by_name(tree: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: named_leaves(part) for name, part in jax.device_get(host_view(dict(tree))).items()}


def _from_names(present: Mapping[str, Any], given: Mapping[str, Mapping[str, Any]], what: str) -> dict[str, Any]:
    if set(present) != set(given):
        raise ValueError(
            f"The state of a Learner's {what} has entries for {sorted(given)}, but this learner needs entries for "
            f"{sorted(present)}. Load the state into a learner with the same modules, optimizers and connectors."
        )
    return {n: from_named_leaves(part, given[n], f"a Learner's {what} {n!r}") for n, part in present.items()}
