"""RLlib's connectors that turn episodes into batches: here they mark places in a pipeline."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext


class Marker(ConnectorV2):
    """A place in a pipeline, for ``insert_before`` and ``insert_after``; what RLlib does there needs no step here.

    Default pipelines have the markers that RLlib's have, in its order: after the user's connectors and before the
    algorithm's own. They are no members: neither names nor states, and nothing of them is compiled.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        as_learner_connector: Without effect, like all that follow.
        multi_agent: See ConnectorV2.
        pin_memory: See above.
        device: See above.

    Attributes:
        ends_episodes: Whether connectors after it get arrays in place of episodes, and so are no host connectors.
    """

    ends_episodes = False

    def __init__(self, *args, as_learner_connector: bool = False, pin_memory: bool = False, device=None, **kwargs):
        super().__init__(*args, **kwargs)

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Changes nothing."""
        return state, batch


class _PlaceOfArrays(Marker):
    ends_episodes = True


class AddObservationsFromEpisodesToBatch(_PlaceOfArrays):
    """Where observations become a batch: runners hand over arrays ``[B, ...]``."""


class AddColumnsFromEpisodesToTrainBatch(_PlaceOfArrays):
    """Where actions, rewards and the module's outputs join a train batch: runners record them."""


class AddTimeDimToBatchAndZeroPad(_PlaceOfArrays):
    """Where batches get a time axis: recorded ones have it, ``[T, B, ...]``."""


class AddStatesFromEpisodesToBatch(_PlaceOfArrays):
    """Where recurrent states join a batch: runners record them."""


class BatchIndividualItems(_PlaceOfArrays):
    """Where lists of items become arrays: batches are made of arrays from the start."""


class NumpyToTensor(_PlaceOfArrays):
    """Where a batch goes to the module's device: that is the drivers' affair."""


class TensorToNumpy(Marker):
    """Where actions come from the device: that is the drivers' affair."""


class UnBatchToIndividualItems(Marker):
    """Where arrays become lists of items: they stay arrays."""


class RemoveSingleTsTimeRankFromBatch(Marker):
    """Where a time axis of length 1 goes: steps next to the environment have none."""


class ListifyDataForVectorEnv(Marker):
    """Where actions become lists: environments take arrays."""


class AddOneTsToEpisodesAndTruncate(Marker):
    """Where RLlib adds a step to bootstrap from: batches hold FINAL_OBS, and no default pipeline has this marker."""


ENV_TO_MODULE = (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AddStatesFromEpisodesToBatch,
    BatchIndividualItems,
    NumpyToTensor,
)
LEARNER = (ENV_TO_MODULE[0], AddColumnsFromEpisodesToTrainBatch, *ENV_TO_MODULE[1:])
AFTER_ACTIONS_ARE_CHOSEN = (TensorToNumpy, UnBatchToIndividualItems, RemoveSingleTsTimeRankFromBatch)
