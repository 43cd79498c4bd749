"""Markers in place of RLlib's connectors that convert episodes to batches: named positions in a pipeline, without
effect.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext


class Marker(ConnectorV2):
    """Named position in a pipeline where RLlib has a connector, for ``insert_before`` and ``insert_after``. It has no
    effect.

    Default pipelines have RLlib's markers in RLlib's order: after the user's connectors, before the algorithm's.
    Markers are not members of a pipeline: they are not in its `names`, and have no state and no compiled code.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        as_learner_connector: Has no effect, like the arguments after it.
        multi_agent: See ConnectorV2.
        pin_memory: Has no effect.
        device: Has no effect.

    Attributes:
        ends_episodes: Whether connectors after it get arrays in place of episodes. Connectors with ``__call__`` must
            precede it, except in pipelines that compile them there.
    """

    ends_episodes = False

    def __init__(self, *args, as_learner_connector: bool = False, pin_memory: bool = False, device=None, **kwargs):
        super().__init__(*args, **kwargs)

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Returns the batch unchanged."""
        return state, batch


class _PlaceOfArrays(Marker):
    ends_episodes = True


class AddObservationsFromEpisodesToBatch(_PlaceOfArrays):
    """Marks the position at which RLlib batches observations; EnvRunners already pass arrays ``[B, ...]``."""


class AddColumnsFromEpisodesToTrainBatch(_PlaceOfArrays):
    """Marks the position at which RLlib adds actions, rewards and module outputs; EnvRunners already record them."""


class AddTimeDimToBatchAndZeroPad(_PlaceOfArrays):
    """Marks the position at which RLlib adds a time axis; sampled steps already have one, ``[T, B, ...]``."""


class AddStatesFromEpisodesToBatch(_PlaceOfArrays):
    """Marks the position at which RLlib adds recurrent states to a batch; EnvRunners already record them."""


class BatchIndividualItems(_PlaceOfArrays):
    """Marks the position at which RLlib stacks lists of items into arrays; in this package, batches contain arrays from
    the start.
    """


class NumpyToTensor(_PlaceOfArrays):
    """Marks the position at which RLlib moves a batch to the module's device; this package moves batches outside of
    pipelines.
    """


class TensorToNumpy(Marker):
    """Marks the position at which RLlib copies actions from the device; this package copies them outside pipelines."""


class UnBatchToIndividualItems(Marker):
    """Marks the position at which RLlib splits arrays into lists of items; this package keeps arrays."""


class RemoveSingleTsTimeRankFromBatch(Marker):
    """Marks the position at which RLlib removes a time axis of length 1; single env steps have no time axis in this
    package.
    """


class ListifyDataForVectorEnv(Marker):
    """Marks the position at which RLlib converts actions to lists; environments receive arrays in this package."""


class AddOneTsToEpisodesAndTruncate(Marker):
    """Marks the position at which RLlib adds a bootstrap step; batches contain FINAL_OBS instead, so no default
    pipeline has this marker.
    """


ENV_TO_MODULE = (
    AddObservationsFromEpisodesToBatch,
    AddTimeDimToBatchAndZeroPad,
    AddStatesFromEpisodesToBatch,
    BatchIndividualItems,
    NumpyToTensor,
)
LEARNER = (ENV_TO_MODULE[0], AddColumnsFromEpisodesToTrainBatch, *ENV_TO_MODULE[1:])
AFTER_ACTIONS_ARE_CHOSEN = (TensorToNumpy, UnBatchToIndividualItems, RemoveSingleTsTimeRankFromBatch)
