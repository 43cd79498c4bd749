"""RLlib's connectors that have no job here, and why."""

from __future__ import annotations

from collections.abc import Callable

_ARRAYS = "Batches are arrays with a leading environment axis from the start"
_COLUMNS = "The runner records this column itself, step by step"

REASONS = {
    "AddObservationsFromEpisodesToBatch": f"{_ARRAYS}: the runner hands over the observations, not episodes.",
    "AddStatesFromEpisodesToBatch": f"{_COLUMNS} (STATE_IN at the start of every chunk).",
    "AddTimeDimToBatchAndZeroPad": "Rollouts are time-major [T, B, ...] already; chunks are cut later.",
    "AgentToModuleMapping": "Batches are keyed by module id from the start: {module_id: {column: arrays}}.",
    "BatchIndividualItems": f"{_ARRAYS}; there are no lists of items to stack.",
    "ModuleToAgentUnmapping": "Batches are keyed by module id; the runner hands actions to the agents.",
    "NumpyToTensor": "JAX takes NumPy arrays as they are; placing data on a device is the driver's work.",
    "TensorToNumpy": "JAX arrays convert with np.asarray; reading data from a device is the driver's work.",
    "ListifyDataForVectorEnv": "Environments take arrays [B, ...]; there is nothing to turn into a list.",
    "RemoveSingleTsTimeRankFromBatch": "Steps next to the environment never get a time axis of length 1.",
    "UnBatchToIndividualItems": f"{_ARRAYS} and stay so up to the environments.",
    "WriteObservationsToEpisodes": "Rollouts record the module's inputs; nothing goes back to episodes.",
    "MultiAgentObservationPreprocessor": (
        "Batches are keyed by module id, and a preprocessor sees one module's observation at a time: "
        "subclass SingleAgentObservationPreprocessor with multi_agent=True."
    ),
    "AddColumnsFromEpisodesToTrainBatch": f"{_COLUMNS} (actions, rewards, module outputs, …).",
    "AddInfosFromEpisodesToTrainBatch": "Infos are Python objects and stay outside of compiled batches.",
    "AddNextObservationsFromEpisodesToTrainBatch": f"{_COLUMNS} (NEXT_OBS) where an algorithm needs it.",
    "AddOneTsToEpisodesAndTruncate": (
        "Bootstrapping needs no phantom step: the batch holds FINAL_OBS, the observation before the reset."
    ),
    "AddIsFirstsToBatch": f"{_COLUMNS} where an algorithm needs it.",
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
