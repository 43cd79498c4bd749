"""Train batches that contain a fixed share of recorded steps, next to sampled steps from a replay buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
from flax import struct

from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.device_ring import DeviceRing
from jaxrl_stack.execution.host_replay import HostReplay
from jaxrl_stack.execution.sources import Drawn, Replay
from jaxrl_stack.execution.training_step import Kept, KeptPart, TrainState
from jaxrl_stack.utils.seeds import generator_state, set_generator_state

if TYPE_CHECKING:
    import numpy as np

    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.replay.draw_forms import DrawForm
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer


@struct.dataclass
class MixedKept:
    """State of a `Mixture`, which draws train batches from a replay buffer and from recorded steps.

    Attributes:
        sampled: State of the replay buffer.
        recorded: State of the source of recorded steps.
    """

    sampled: Any
    recorded: Any


class Mixture:
    """Draws train batches from a replay buffer of sampled steps and from recorded steps, in fixed proportions.

    Recorded steps are drawn uniformly and never evicted; only sampled steps have priorities (Ball et al., 2023,
    "Efficient Online Reinforcement Learning with Offline Data", draws half of each). Metrics in
    results, steps in checkpoints and written-back values concern only the replay buffer.

    Args:
        replay: The replay buffer of sampled steps.
        source: Source of recorded steps, which is only read.
        num_sampled: Rows per batch from the replay buffer; on the device, per device.
        xp: Array namespace: `numpy`, or `jax.numpy` in the compiled program.
    """

    def __init__(self, replay: Replay, source: Replay, num_sampled: int, xp: Any):
        self.replay, self.source = replay, source
        self._num_sampled, self._xp = num_sampled, xp
        self.draws = {**replay.draws, **source.draws}
        self.estimate = replay.estimate
        self.capacity, self.writes = replay.capacity, replay.writes

    def change_settings(self, config: OffPolicyConfig) -> None:
        self.replay.change_settings(config)
        self.source.change_settings(config)

    def reset(self, config: OffPolicyConfig) -> None:
        self.replay.reset(config)
        self.source.reset(config)

    def init(self) -> MixedKept:
        return MixedKept(sampled=self.replay.init(), recorded=self.source.init())

    def add(self, kept: MixedKept, experience: Experience) -> MixedKept:
        return dataclasses.replace(kept, sampled=self.replay.add(kept.sampled, experience))

    def can_draw(self, kept: MixedKept) -> bool:
        """Whether the replay buffer contains a sampled step that can be drawn."""
        return self.replay.can_draw(kept.sampled)

    def draw(self, kept: MixedKept, state: TrainState, place: Any) -> tuple[MixedKept, TrainState, dict[str, Drawn]]:
        """Draws each module's train batch: sampled rows from the replay buffer, followed by recorded rows.

        `Drawn.items` has the indices of the sampled rows only, because nothing is written back to recorded rows.
        """
        sampled, state, first = self.replay.draw(kept.sampled, state, place)
        recorded, state, second = self.source.draw(kept.recorded, state, place)
        batch = {mid: Drawn(self._joined(own.columns, second[mid].columns), own.items) for mid, own in first.items()}
        return MixedKept(sampled, recorded), state, batch

    def _joined(self, sampled: Mapping[str, Any], recorded: Mapping[str, Any]) -> dict[str, Any]:
        def of_leaf(own: Any, other: Any) -> Any:
            return self._xp.concatenate([own, self._xp.asarray(other, own.dtype)])

        return {name: jax.tree.map(of_leaf, own, recorded[name]) for name, own in sampled.items()}

    def write_back(
        self, kept: MixedKept, drawn: Mapping[str, Drawn], logged: Mapping[str, Mapping[str, Any]]
    ) -> MixedKept:
        of_sampled = {
            mid: {name: values[: self._num_sampled] for name, values in own.items()} for mid, own in logged.items()
        }
        return dataclasses.replace(kept, sampled=self.replay.write_back(kept.sampled, drawn, of_sampled))

    def cut(self, kept: MixedKept) -> MixedKept:
        return dataclasses.replace(kept, sampled=self.replay.cut(kept.sampled))

    def look_at(self, kept: MixedKept, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        return self.replay.look_at(kept.sampled, what, number, seed)

    def not_finite(self, kept: MixedKept) -> dict[str, dict[str, np.ndarray]]:
        return self.replay.not_finite(kept.sampled)

    def component(self, kept: Kept) -> Checkpointable:
        def put(whole: MixedKept, sampled: Any) -> MixedKept:
            return dataclasses.replace(whole, sampled=sampled)

        return self.replay.component(KeptPart(kept, lambda whole: whole.sampled, put))

    def results(self, kept: MixedKept, num_env_steps: int) -> dict[str, Any]:
        return self.replay.results(kept.sampled, num_env_steps)

    def get_state(self, kept: MixedKept) -> dict[str, Any]:
        return {**self.replay.get_state(kept.sampled), **self.source.get_state(kept.recorded)}

    def set_state(self, kept: MixedKept, state: Mapping[str, Any]) -> MixedKept:
        sampled = self.replay.set_state(kept.sampled, state)
        return MixedKept(sampled, self.source.set_state(kept.recorded, state))


class RecordedRows(HostReplay):
    """Read-only buffer of recorded steps; only its random generator changes."""

    def get_state(self, kept: EpisodeReplayBuffer) -> dict[str, Any]:
        return {"recorded_replay": generator_state(kept.rng)}

    def set_state(self, kept: EpisodeReplayBuffer, state: Mapping[str, Any]) -> EpisodeReplayBuffer:
        # A run may have begun without a share of recorded steps.
        if "recorded_replay" in state:
            set_generator_state(kept.rng, state["recorded_replay"])
        return kept


class RecordedRing(DeviceRing):
    """Read-only ring buffers of recorded steps, on the devices."""

    def init(self) -> Any:
        return self.filled()
