"""Replay buffer on the host: stores, in the memory of the driver's process, the steps that EnvRunners sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Part, RecordingId
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.execution.training_step import Draws, Kept, TrainState
from jaxrl_stack.replay import items
from jaxrl_stack.replay.device_replay import REMEDY
from jaxrl_stack.replay.draw_forms import DrawForm
from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import available_host_bytes, bytes_of_shapes, require_memory
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.checkpoints.checkpointable import Checkpointable
    from jaxrl_stack.execution.recorded_start import RecordedStart
    from jaxrl_stack.utils.memory import MemoryEstimate


class HostReplay:
    """Replay buffer on the host that all EnvRunners fill.

    The buffer is an `EpisodeReplayBuffer` for one agent, a `MultiAgentEpisodeReplayBuffer` for several agents, or a
    user's subclass. Blocks of steps are copied from the runners' arrays into the buffer's, without episodes in between.
    It also accepts episodes, from runners that only return these (``batch_mode="complete_episodes"``, classes that
    override `sample`).

    Args:
        config: The algorithm's config.
        forms: ``{module_id: form of the drawn items}`` of the modules whose steps it stores.
        batch_sizes: ``{module_id: items of a draw}``.
        make_buffer: Creates an empty buffer for a config.
        capacity: Capacity of the buffer, in steps.
        start: Recorded steps that it starts with, or None.
        recorded: Shapes of the columns of a step, ``{module_id: {column: pytree [1, 1, ...]}}``, as far as they are
            known.

    Attributes:
        metrics: Metrics of the buffer.

    Raises:
        ValueError: If the buffer and its states do not fit into memory.
    """

    draws: Mapping[str, Draws] = {}

    def __init__(
        self,
        config: OffPolicyConfig,
        forms: Mapping[str, DrawForm],
        batch_sizes: Mapping[str, int],
        *,
        make_buffer: Callable[[OffPolicyConfig], Any],
        capacity: int,
        start: RecordedStart | None = None,
        recorded: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ):
        self._recorded = recorded
        self._forms, self._batch_sizes = dict(forms), dict(batch_sizes)
        self._make_buffer, self.capacity, self._start = make_buffer, capacity, start
        self.writes = next(iter(forms.values())).writes
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
        self._gammas = {mid: config.get_config_for_module(mid).gamma for mid in self._forms}
        self._beta = config.replay_beta

    def _estimate(self) -> MemoryEstimate | None:
        estimate = self._buffer.memory_estimate()
        starts = {mid: what.start for mid, what in self._forms.items() if what.start and what.start.extra_columns}
        # The buffer knows of the columns, and not how large they are.
        agents = self._buffer.num_agents if self._has_several else {}
        sizes: dict[str, int] = {}
        for mid, what in self._forms.items():
            shapes = {name: own for name, own in self._recorded.get(mid, {}).items() if name in what.declared}
            if mid in starts:
                shapes[Columns.STATE_IN] = starts[mid].shapes
            for name, own in shapes.items():
                sizes[name] = sizes.get(name, 0) + self.capacity * agents.get(mid, 1) * bytes_of_shapes(own)
        if estimate is None or not sizes:
            return estimate
        estimate = dataclasses.replace(estimate, columns={**estimate.columns, **sizes})
        where, remedies = "are free on this machine", [REMEDY, *[start.remedy for start in starts.values()][:1]]
        remedy = " ".join(remedies)
        require_memory(estimate, available_host_bytes(), where=where, remedy=remedy)
        return estimate

    @property
    def _has_several(self) -> bool:
        """Whether the buffer stores steps of several agents."""
        return isinstance(self._buffer, MultiAgentEpisodeReplayBuffer)

    # ---------------------------------------------------------------------------------------------------------- filling

    def init(self) -> Any:
        """Returns the replay buffer. If it is empty and the config names recorded steps to start with, first adds these
        steps to it.
        """
        if self._start is not None and not len(self._buffer):
            (mid,) = self._forms
            for number, columns in enumerate(self._start.blocks(1, self.capacity)):
                part = Part({mid: Block(columns)}, source=RecordingId("recorded", serial=number))
                self.add(self._buffer, Experience((part,)))
        return self._buffer

    def add(self, kept: Any, experience: Experience) -> Any:
        """Adds sampled steps to the replay buffer.

        If Ctrl-C is pressed once during the call, it takes effect after all steps are added, so that the buffer stays
        consistent.
        """
        with deferred_interrupt():
            # A runner that did another one's work has several parts.
            blocks = [part for part in experience.parts if part.episodes is None]
            for part in sorted(blocks, key=lambda part: part.source):
                own, starts = {}, part.starts
                for mid in self._forms:
                    own[mid] = cast("Block", part.blocks[mid]).whole_observations().columns
                where = {"stream": part.source.worker_index, "serial": part.source.serial}
                if self._has_several:
                    if part.times is None:
                        raise ValueError(
                            "The multi-agent samples lack the times at which each agent's steps began and ended "
                            "(Part.times), but the replay buffer needs these times. If your EnvRunner overrides "
                            "sample_block(), call super().sample_block(..., keeps_times=True) in the override."
                        )
                    kept.add_block(own, part.times, starts=starts, **where)
                else:
                    ((mid, columns),) = own.items()
                    kept.add_block(columns, starts=None if starts is None else starts[mid], **where)
            if experience.has_episodes:
                kept.add(experience.episodes)
        return kept

    def cut(self, kept: Any) -> Any:
        """Ends unfinished multi-agent episodes in the buffer, because restarted environments do not continue these
        episodes.

        With one agent, nothing changes: when the next steps are added, the buffer detects that episodes do not
        continue.
        """
        if self._has_several:
            kept.end_streams()
        return kept

    # ---------------------------------------------------------------------------------------------------------- drawing

    def can_draw(self, kept: Any) -> bool:
        return bool(self._drawable(kept))

    def _drawable(self, kept: Any) -> list[str]:
        """Returns the ids of modules with stored steps."""
        if not self._has_several:
            return list(self._forms) if len(kept) else []
        return [mid for mid in self._forms if kept.get_num_timesteps(mid)]

    def draw(self, kept: Any, state: TrainState, place: Any) -> tuple[Any, TrainState, dict[str, Drawn]]:
        drawn: dict[str, tuple[dict[str, Any], Any]] = {}
        for (what, number, gamma), modules in self._alike(self._drawable(kept)).items():
            if self._has_several:
                drawn |= what.draw_from_modules(kept, modules, number, gamma=gamma, beta=self._beta)
            else:
                drawn[modules[0]] = what.draw_from_buffer(kept, number, gamma=gamma, beta=self._beta)
        return kept, state, {mid: Drawn(*drawn[mid]) for mid in self._forms if mid in drawn}

    def _alike(self, modules: Iterable[str]) -> dict[tuple[Any, int, float], list[str]]:
        """Groups modules whose batches can be drawn in one call.

        These are modules with the same form of batches (transitions or sequences), batch size and gamma. Returns
        ``{(form, batch size, gamma): [module_id]}``.
        """
        groups: dict[tuple[Any, int, float], list[str]] = {}
        for mid in modules:
            groups.setdefault((self._forms[mid], self._batch_sizes[mid], self._gammas[mid]), []).append(mid)
        return groups

    def write_back(self, kept: Any, drawn: Mapping[str, Drawn], logged: Mapping[str, Mapping[str, Any]]) -> Any:
        with deferred_interrupt():
            for mid, own in logged.items():
                which = {"module_id": mid} if self._has_several else {}
                self._forms[mid].write_to_buffer(kept, drawn[mid].items, own, **which)
        return kept

    def look_at(self, kept: Any, what: DrawForm, number: int, seed: int) -> dict[str, Any]:
        return what.draw_from_buffer(items.unnoticed(kept, seed), number, gamma=1.0, beta=0.0)[0]

    # ---------------------------------------------------------------------------------------------------------- results

    def not_finite(self, kept: Any) -> dict[str, dict[str, np.ndarray]]:
        return {}

    def component(self, kept: Kept) -> Checkpointable:
        """Returns the replay buffer, for users of the ``Algorithm`` and for checkpoints."""
        return self._buffer

    def results(self, kept: Any, num_env_steps: int) -> dict[str, Any]:
        self.metrics.aggregate([kept.get_metrics()])
        return self.metrics.compile()

    def get_state(self, kept: Any) -> dict[str, Any]:
        return {"replay_metrics": self.metrics.get_state()}

    def set_state(self, kept: Any, state: Mapping[str, Any]) -> Any:
        self.metrics.set_state(state["replay_metrics"])
        return kept
