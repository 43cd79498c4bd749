"""RLlib's connectors that this package does not need, with reasons."""

from __future__ import annotations

import functools

from jaxrl_stack.compat.renamed import absent_or_renamed

_REASONS = {
    "AgentToModuleMapping": "Batches are keyed by module id from the start: {module_id: {column: arrays}}.",
    "ModuleToAgentUnmapping": "Batches are keyed by module id; the runner hands actions to the agents.",
    "WriteObservationsToEpisodes": "Rollouts record the module's inputs; nothing goes back to episodes.",
    "AddInfosFromEpisodesToTrainBatch": "Infos are Python objects and stay outside of compiled batches.",
    "AddIsFirstsToBatch": "The runner records this column itself, where an algorithm needs it.",
}

absent = functools.partial(absent_or_renamed, gone=_REASONS)
"""Returns a module's ``__getattr__`` that gives the reason, from the module's ``__name__``."""
