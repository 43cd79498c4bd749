"""Connector states of all modules in an env runner that steps environments in Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxrl_stack.core.module_map import ByModule, ModuleMap
from jaxrl_stack.env.agent_mapping import AgentSpaces
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.connector_states import ConnectorStates
from jaxrl_stack.env.module_pipelines import ModulePipelines, pure_pipelines


def module_map_of(runner: Any) -> ModuleMap:
    """Returns the map of agents to modules of a multi-agent runner."""
    return runner.module_map


def pipeline_for_merging(config: Any, spaces: Mapping[str, Any], module_map: Callable[[], ModuleMap]) -> Any:
    """Builds the object whose `merge_states` merges the env-to-module states of several runners: one pipeline, or with
    several agents a `MergingByModule`.

    Args:
        config: Config of the runners.
        spaces: Result of the runners' `get_spaces`.
        module_map: Returns the map of agents to modules; called only with several agents.
    """
    if not config.is_multi_agent:
        return config.build_env_to_module_connector(spaces=spaces)
    preprocessing = agent_preprocessing(config, AgentSpaces(*spaces["__env_single__"]))
    return MergingByModule(pure_pipelines(config, None, module_map(), preprocessing))


class MergingByModule:
    """Merges the env-to-module connector states of several env runners, for each module separately.

    Args:
        pipelines: Pipelines like the runners', by module.
    """

    def __init__(self, pipelines: ModulePipelines):
        self._pipelines = pipelines

    def merge_states(
        self, states: Sequence[Mapping[str, Any]], *, known: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Merges the states that several env runners have of the env-to-module pipelines, for each module separately.

        The items of `states` and the result have the form ``{module_id: {connector name: connector state}}``.

        See `ConnectorPipelineV2.merge_states` for `known`.
        """
        merged = {}
        for mid, own in self._pipelines.items():
            given = [state[mid] for state in states if state.get(mid)]
            of_module = own.env_to_module.merge_states(given, known=(known or {}).get(mid)) if given else {}
            merged[mid] = {name: state for name, state in of_module.items() if jax.tree.leaves(state)}
        return merged


class ModuleConnectors(ByModule[ConnectorStates]):
    """Connector states of all modules in an env runner that steps environments in Python, ``{module_id:
    ConnectorStates}``; each method acts on all modules.

    States that these methods take and return have the form of checkpoints, see `ModuleMap.unwrapped`.

    Args:
        pipelines: Pipelines of the modules.
        num_envs: ``B``; a module has a row for each of its agents in each environment.
    """

    def __init__(self, pipelines: ModulePipelines, num_envs: int):
        self.pipelines = pipelines
        self._module_map = pipelines.module_map
        num_slots = self._module_map.num_slots
        super().__init__({mid: ConnectorStates(*own, num_envs * num_slots[mid]) for mid, own in pipelines.items()})

    @property
    def value(self) -> dict[str, tuple[Any, Any]]:
        """Current connector states: ``{module_id: (env-to-module state, module-to-env state)}``."""
        return {mid: own.value for mid, own in self.items()}

    @value.setter
    def value(self, value: Mapping[str, tuple[Any, Any]]) -> None:
        for mid, own in value.items():
            self[mid].value = own

    def compiled_state(self) -> dict[str, Any] | None:
        """Returns the states of compiled env-to-module connectors in the form that checkpoints store.

        The form is ``{module_id: {connector name: state}}``, or ``{connector name: state}`` for one agent. Returns None
        if no connector has a state.
        """
        states = {mid: state for mid, own in self.items() if (state := own.compiled_state())}
        return self._module_map.unwrapped(states) if jax.tree.leaves(states) else None

    def get_env_to_module(self) -> dict[str, Any]:
        """Returns the states of the env-to-module pipelines of all modules, including the states of connectors that run
        in Python, outside jit.
        """
        return self._module_map.unwrapped({mid: own.get_env_to_module() for mid, own in self.items()})

    def get_module_to_env(self) -> dict[str, Any]:
        """Returns the states of the module-to-env pipelines of all modules."""
        return self._module_map.unwrapped({mid: own.get_module_to_env() for mid, own in self.items()})

    def set_env_to_module(self, state: Mapping[str, Any], **how: Any) -> None:
        """Loads states of the env-to-module pipelines of all modules; see `ConnectorStates.set_env_to_module`."""
        for mid, own in self._module_map.by_module(state).items():
            if mid in self:
                self[mid].set_env_to_module(own, **how)

    def set_module_to_env(self, state: Mapping[str, Any]) -> None:
        """Loads states of the module-to-env pipelines of all modules."""
        for mid, own in self._module_map.by_module(state).items():
            if mid in self:
                self[mid].set_module_to_env(own)

    def merge_deltas(self) -> None:
        """Updates the running totals of each module's env-to-module pipeline: merges the statistics that the pipeline
        has collected since the previous merge.
        """
        for own in self.values():
            own.merge_deltas()
