"""Replay on the host: an `EpisodeReplayBuffer` in this process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Part, Source
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.execution.training_step import Draws, Kept, TrainState
from jaxrl_stack.replay import items
from jaxrl_stack.replay.device_replay import REMEDY
from jaxrl_stack.replay.draw_forms import DrawForm
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import available_host_bytes, bytes_of_shapes, require_memory
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.execution.recorded_start import RecordedStart
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
    from jaxrl_stack.utils.memory import MemoryEstimate


class HostReplay:
    """An `EpisodeReplayBuffer`, or a subclass of the user's, that all EnvRunners fill; its state is the buffer itself.

    Blocks of steps go from the runners' arrays straight into the buffer's, without episodes in between. Episodes, of
    runners that only give those (``batch_mode="complete_episodes"``, classes with a `sample` of their own), work, too.

    Args:
        config: The algorithm's config.
        module_id: Whose steps it has.
        what: The form of what is drawn.
        batch_size: Items of a draw.
        make_buffer: Makes an empty buffer for a config.
        capacity: Steps that the buffer holds.
        start: Recorded steps that it begins with; None without any.

    Attributes:
        metrics: Counts of the buffer.

    Raises:
        ValueError: If memory cannot hold the buffer and the states in it.
    """

    draws: Mapping[str, Draws] = {}

    def __init__(
        self,
        config: OffPolicyConfig,
        module_id: str,
        what: DrawForm,
        batch_size: int,
        *,
        make_buffer: Callable[[OffPolicyConfig], EpisodeReplayBuffer],
        capacity: int,
        start: RecordedStart | None = None,
    ):
        self._module_id, self._what, self._batch_size = module_id, what, batch_size
        self._make_buffer, self.capacity, self._start = make_buffer, capacity, start
        self.writes = what.writes
        self._buffer = None
        self.reset(config)
        self.estimate = self._estimate()

    def reset(self, config: OffPolicyConfig) -> None:
        if self._buffer is not None:
            # Both together may not fit.
            self._buffer._forget()
        self._buffer: Any = self._make_buffer(config)
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        self.change_settings(config)

    def change_settings(self, config: OffPolicyConfig) -> None:
        # The module's gamma, with which its loss discounts the bootstrap value after the window.
        self._gamma = config.get_config_for_module(self._module_id).gamma
        self._beta = config.replay_beta

    def _estimate(self) -> MemoryEstimate | None:
        estimate, start = self._buffer.memory_estimate(), self._what.start
        if estimate is None or start is None or not start.extra_columns:
            return estimate
        # The buffer knows of the column, and not how large it is.
        states = estimate.num_rows * bytes_of_shapes(start.shapes)
        estimate = dataclasses.replace(estimate, columns={**estimate.columns, Columns.STATE_IN: states})
        where, remedy = "are free on this machine", f"{REMEDY} {start.remedy}"
        require_memory(estimate, available_host_bytes(), where=where, remedy=remedy)
        return estimate

    # ---------------------------------------------------------------------------------------------------------- filling

    def init(self) -> EpisodeReplayBuffer:
        """The buffer, with the recorded steps that it begins with."""
        if self._start is not None and not len(self._buffer):
            for number, columns in enumerate(self._start.blocks(1, self.capacity)):
                part = Part({self._module_id: columns}, source=Source("recorded", serial=number))
                self.add(self._buffer, Experience((part,)))
        return self._buffer

    def add(self, kept: EpisodeReplayBuffer, experience: Experience) -> EpisodeReplayBuffer:
        """Add what was sampled; Ctrl-C waits until the buffer is whole."""
        with deferred_interrupt():
            # A runner that did another one's work has several parts.
            blocks = [part for part in experience.parts if part.episodes is None]
            for part in sorted(blocks, key=lambda part: part.source):
                columns, source = part.modules[self._module_id], part.source
                if part.layouts and part.layouts[self._module_id].num_frames > 1:
                    columns = frames.stacked(columns)
                starts = None if part.starts is None else part.starts[self._module_id]
                kept.add_block(columns, stream=source.worker_index, serial=source.serial, starts=starts)
            if experience.has_episodes:
                kept.add(experience.episodes)
        return kept

    def cut(self, kept: EpisodeReplayBuffer) -> EpisodeReplayBuffer:
        """The buffer as it is: blocks and episodes say where they continue."""
        return kept

    # ---------------------------------------------------------------------------------------------------------- drawing

    def can_draw(self, kept: EpisodeReplayBuffer) -> bool:
        return len(kept) > 0

    def draw(
        self, kept: EpisodeReplayBuffer, state: TrainState, place: Any
    ) -> tuple[EpisodeReplayBuffer, TrainState, Drawn]:
        drawn = self._what.draw_from_buffer(kept, self._batch_size, gamma=self._gamma, beta=self._beta)
        return kept, state, Drawn(*drawn)

    def write_back(self, kept: EpisodeReplayBuffer, drawn: Drawn, logged: Mapping[str, Any]) -> EpisodeReplayBuffer:
        with deferred_interrupt():
            self._what.write_to_buffer(kept, drawn.items, logged)
        return kept

    def look_at(self, kept: EpisodeReplayBuffer, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        return what.draw_from_buffer(items.unnoticed(kept, seed), number, gamma=1.0, beta=0.0)[0]

    # ---------------------------------------------------------------------------------------------------------- results

    def not_finite(self, kept: EpisodeReplayBuffer) -> dict[str, np.ndarray]:
        return {}

    def component(self, kept: Kept) -> EpisodeReplayBuffer:
        """The buffer."""
        return self._buffer

    def results(self, kept: EpisodeReplayBuffer, num_env_steps: int) -> dict[str, Any]:
        self.metrics.aggregate([kept.get_metrics()])
        return self.metrics.compile()

    def get_state(self, kept: EpisodeReplayBuffer) -> dict[str, Any]:
        return {"replay_metrics": self.metrics.get_state()}

    def set_state(self, kept: EpisodeReplayBuffer, state: Mapping[str, Any]) -> EpisodeReplayBuffer:
        self.metrics.set_state(state["replay_metrics"])
        return kept
