"""RLlib's connectors that have no job here, and why."""

from __future__ import annotations

from collections.abc import Callable

REASONS = {
    "AgentToModuleMapping": "Batches are keyed by module id from the start: {module_id: {column: arrays}}.",
    "ModuleToAgentUnmapping": "Batches are keyed by module id; the runner hands actions to the agents.",
    "WriteObservationsToEpisodes": "Rollouts record the module's inputs; nothing goes back to episodes.",
    "AddInfosFromEpisodesToTrainBatch": "Infos are Python objects and stay outside of compiled batches.",
    "AddIsFirstsToBatch": "The runner records this column itself, where an algorithm needs it.",
}


def absent(module_name: str) -> Callable[[str], object]:
    """A module ``__getattr__`` that tells why one of RLlib's connectors is not here.

    Args:
        module_name: ``__name__`` of the module that it is for.
    """

    def __getattr__(name: str) -> object:
        if name in REASONS:
            raise ImportError(f"{name} of RLlib has no counterpart in {module_name}. {REASONS[name]}")
        raise AttributeError(f"module {module_name!r} has no attribute {name!r}")

    return __getattr__
