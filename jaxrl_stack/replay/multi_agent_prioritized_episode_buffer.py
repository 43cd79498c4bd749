"""MultiAgentPrioritizedEpisodeReplayBuffer: multi-agent replay in which each module samples the steps of its agents in
proportion to priorities.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer, _OfModule
from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer, checked_weight

if TYPE_CHECKING:
    from jaxrl_stack.core.experience import AgentTimes


class PrioritizedModuleReplayBuffer(_OfModule, PrioritizedEpisodeReplayBuffer):
    """Prioritised replay buffer for the steps of one module in a `MultiAgentPrioritizedEpisodeReplayBuffer`."""


class MultiAgentPrioritizedEpisodeReplayBuffer(MultiAgentEpisodeReplayBuffer):
    """Multi-agent replay buffer in which each module samples items in proportion to ``priority ** alpha``.

    Each module has priorities and a largest priority of its own; see `PrioritizedEpisodeReplayBuffer`. In
    "synchronized" mode env steps are drawn equally often, and weights are the items' importance weights.

    Args:
        capacity: Env steps.
        alpha: Exponent of priorities, >= 0; 0 draws all items equally often.
        **more: All others, as in `MultiAgentEpisodeReplayBuffer`.

    Raises:
        ValueError: If an argument is out of range.
    """

    _of_module = PrioritizedModuleReplayBuffer

    def __init__(self, capacity: int = 10000, *, alpha: float = 1.0, **more: Any):
        self._alpha = alpha
        self._weights: float | Mapping[str, float] | None = None
        super().__init__(capacity, **more)

    def _new_part(self, module_id: str, **more: Any) -> Any:
        return super()._new_part(module_id, alpha=self._alpha, **more)

    def add(
        self,
        episodes: Sequence[MultiAgentEpisode] | MultiAgentEpisode,
        weight: float | Mapping[str, float] | None = None,
    ) -> None:
        """Copies episodes, or chunks of episodes, into the buffer, but not the steps in their lookback buffers.
        `weight` is the priority of the copied steps.

        Args:
            episodes: As in `MultiAgentEpisodeReplayBuffer.add`.
            weight: Priority of the episodes' steps, > 0, or ``{module_id: priority}``. None, or a module without entry:
                the largest priority that `update_priorities` has set for the module, at least 1.

        Raises:
            ValueError: As there, and if `weight` is out of range.
        """
        for own in weight.values() if isinstance(weight, Mapping) else [weight]:
            checked_weight(own)
        self._weights = weight
        super().add(episodes)

    def add_block(self, modules: Mapping[str, Mapping[str, Any]], times: AgentTimes, **more: Any) -> None:
        """Adds a block (T steps of the agents of B environments) to the replay buffer.

        See `MultiAgentEpisodeReplayBuffer.add_block`. The block's steps get the largest priority (at least 1) that
        `update_priorities` has set so far for their module.
        """
        self._weights = None
        super().add_block(modules, times, **more)

    def _prepare(self, part: Any) -> None:
        weight = self._weights
        part._new_priority = weight.get(part._module_id) if isinstance(weight, Mapping) else weight

    def update_priorities(self, priorities: Any, module_id: str | None = None, *, indices: Any = None) -> None:
        """Sets the priorities of sampled items, either of the module `module_id` or of several modules.

        Args:
            priorities: ``[N]``, TD errors for example; without `module_id`, ``{module id: [N]}``.
            module_id: The module.
            indices: "batch_indexes" of the sample, int64 ``[N]``, by module likewise; None: items of the last sample.

        Raises:
            ValueError: If a module is unknown, and as in `PrioritizedEpisodeReplayBuffer.update_priorities`.
        """
        if module_id is not None:
            priorities, indices = {module_id: priorities}, None if indices is None else {module_id: indices}
        elif not isinstance(priorities, Mapping):
            raise ValueError(
                f"update_priorities(priorities) needs a module: pass module_id, one of {self.get_module_ids()}, or "
                "{module_id: priorities}."
            )
        for name, values in priorities.items():
            if name not in self._parts:
                raise ValueError(
                    f"update_priorities() got module {name!r}, but the replay buffer contains only steps of the "
                    f"modules {self.get_module_ids()}. Use one of these module ids."
                )
            self._parts[name].update_priorities(values, indices=None if indices is None else indices[name])

    # ----------------------------------------------------------------------------------------------------------- state

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        args, kwargs = super().get_ctor_args_and_kwargs()
        return args, kwargs | {"alpha": self._alpha}
