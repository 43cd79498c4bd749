"""Protocols of the hot loops of host runners.

A runner steps its environments with a `Rollout`, which writes each call down in a `RolloutRecording`. There are two of
each, since a number in a list costs less than one in an array, and a row of an array less than a dict:

* `env.host_rollout.HostRollout` and `acting.recording.Recording`: one agent, which acts in every step. Dense arrays.
* `env.multi_agent_rollout.MultiAgentRollout` and `acting.agent_recording.AgentRecordings`: agents that may come, wait
  and leave. Dicts and lists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jaxrl_stack.acting.host_policy import Mode

if TYPE_CHECKING:
    from jaxrl_stack.acting.recording import NotUsable
    from jaxrl_stack.core.experience import AgentTimes


class RolloutRecording(Protocol):
    """Steps of ``B`` environments, recorded in one call, up to ``T`` of each.

    Attributes:
        num_steps: Vector steps so far.
        num_failures: Environments that failed in them.
    """

    num_steps: int
    num_failures: int

    @property
    def num_env_steps(self) -> int:
        """Steps of environments that count."""
        ...

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with steps that count."""
        ...

    @property
    def resets(self) -> np.ndarray | None:
        """bool ``[T + 1, B]``, rows that are the first of an episode; None if modules have rows of agents."""
        ...

    def columns(self) -> dict[str, dict[str, Any]]:
        """``{module_id: {column: pytree [T, R, ...]}}``; rows that do not count are False in LOSS_MASK."""
        ...

    def starts(self) -> dict[str, np.ndarray]:
        """bool ``[R]`` by module, see `Part.starts`."""
        ...

    def times(self) -> AgentTimes | None:
        """Times of the steps in the environments; None if they were not asked for, or the agent never waits."""
        ...

    def num_module_steps(self) -> dict[str, int]:
        """Completed steps by module."""
        ...

    def num_agent_steps(self) -> dict[Any, int]:
        """Completed steps by agent; {} if there is one."""
        ...

    def not_usable(self) -> list[NotUsable]:
        """Observations and rewards that are NaN or infinite, and masks that allow no action, the first one first."""
        ...

    def drop_running(self, index: int) -> None:
        """Leave out the running episode of an environment that failed in the last step."""
        ...


class Rollout(Protocol):
    """Environments between two recordings, and the loop that steps them.

    Attributes:
        live: Running episodes as objects, from the first `reset` on; None where they are not needed.
        num_recordings: Number of the next recording.
    """

    live: Any
    num_recordings: int

    @property
    def has_episodes(self) -> bool:
        """Whether episodes can be made of the next recording without a `reset`."""
        ...

    def reset(self, mode: Mode, *, wants_episodes: bool) -> None:
        """Start new episodes everywhere.

        Args:
            mode: How actions will be chosen.
            wants_episodes: Whether `take_ended` and `cut` will be called.
        """
        ...

    def record(
        self,
        num_steps: int,
        mode: Mode,
        *,
        learns: bool,
        weights_seq_no: int,
        wants_episodes: bool = False,
        keeps_times: bool = False,
    ) -> RolloutRecording:
        """`num_steps` vector steps.

        Args:
            num_steps: Number of vector steps.
            mode: How to choose actions.
            learns: Whether running statistics of connectors learn from the observations.
            weights_seq_no: Updates that the acting weights have seen.
            wants_episodes: Whether everything is recorded that episodes consist of: final observations where an agent
                was terminated, and infos.
            keeps_times: Whether the recording has `RolloutRecording.times`.
        """
        ...

    def take_ended(self, recording: Any, weights_seq_no: int) -> list[tuple[int, Any]]:
        """``(environment, episode)`` of the episodes that ended in a recording, which was made for episodes."""
        ...

    def cut(self) -> list[Any]:
        """Hand the running episodes out as chunks, and continue with their successors."""
        ...

    def forget_episodes(self) -> None:
        """Drop running episodes that only `sample` needs."""
        ...
