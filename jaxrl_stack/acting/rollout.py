"""Interfaces of the sampling loops of host EnvRunners, and of their recordings.

A runner steps its environments with a `Rollout`, which records each call in a `RolloutRecording`. Each has two
implementations, since access to a number takes less time in a list than in an array, and access to a row of an array
less than to a dict:

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
    """Interface of a recording: arrays that store up to ``T`` steps of ``B`` environments. Each call of
    `Rollout.record` fills one recording.

    Attributes:
        num_steps: Vector steps so far.
        num_failures: Number of failures of environments so far.
    """

    num_steps: int
    num_failures: int

    @property
    def num_env_steps(self) -> int:
        """Number of valid recorded environment steps, without resets and steps that were discarded after a failure."""
        ...

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with valid recorded steps; steps of resets and of failed episodes are invalid."""
        ...

    @property
    def resets(self) -> np.ndarray | None:
        """Mask of the steps that begin an episode, bool ``[T + 1, B]``; None with several agents.

        The mask covers the recorded steps and the step after them. With several agents, the result is None because
        the rows of a recording then belong to agents instead of environments.
        """
        ...

    def columns(self) -> dict[str, dict[str, Any]]:
        """Returns the recorded columns of each module, ``{module_id: {column: pytree [T, R, ...]}}``.

        T is the number of steps. Each of the R rows is an environment, or one agent in an environment. The column
        LOSS_MASK is False for invalid steps.
        """
        ...

    def starts(self) -> dict[str, np.ndarray]:
        """Returns ``{module_id: bool [R]}``: whether each row's first recorded step begins an episode. A row is an
        environment, or one agent in an environment.

        R is the number of the module's rows. See `Part.starts`.
        """
        ...

    def times(self) -> AgentTimes | None:
        """Returns the vector steps (steps of all environments) in which agent steps began and ended, as `AgentTimes`.

        Returns None if these times were not recorded, or if agents never skip steps.
        """
        ...

    def num_module_steps(self) -> dict[str, int]:
        """Returns the number of steps that each module has completed in this recording, ``{module_id: number}``."""
        ...

    def num_agent_steps(self) -> dict[Any, int]:
        """Returns the number of steps that each agent has completed in this recording, ``{agent: number}``; {} for a
        single agent.
        """
        ...

    def not_usable(self) -> list[NotUsable]:
        """Returns the invalid values in the recorded steps, in the order of steps: NaN or infinite observations and
        rewards, and action masks that allow no action.
        """
        ...

    def drop_running(self, index: int) -> None:
        """Discards the recorded steps of an environment's unfinished episode, because the environment failed in the
        last step.
        """
        ...


class Rollout(Protocol):
    """Interface of the loop that steps host environments and records the steps; between recordings it stores the
    environments' state and unfinished episodes.

    Attributes:
        live: Unfinished episodes as objects, from the first `reset` on; None where they are not needed.
        num_recordings: Index of the next recording.
    """

    live: Any
    num_recordings: int

    @property
    def has_episodes(self) -> bool:
        """Whether `EnvRunner.sample` can return episode objects without resetting the environments first."""
        ...

    def reset(self, mode: Mode, *, wants_episodes: bool) -> None:
        """Starts new episodes in all environments.

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
        """Makes `num_steps` steps of all environments, and returns the recording of these steps.

        Args:
            num_steps: Number of vector steps.
            mode: How actions are chosen.
            learns: Whether running statistics of connectors learn from the observations.
            weights_seq_no: Number of updates of the acting weights.
            wants_episodes: Whether to record also the final observations of terminated agents, and infos, which
                episodes contain.
            keeps_times: Whether the recording has `RolloutRecording.times`.
        """
        ...

    def take_ended(self, recording: Any, weights_seq_no: int) -> list[tuple[int, Any]]:
        """Returns the episodes that ended in `recording`, a result of ``record(..., wants_episodes=True)``, as pairs
        ``(environment index, episode)``.
        """
        ...

    def cut(self) -> list[Any]:
        """Cuts the unfinished episodes: returns their steps so far as chunks. Each episode continues in a new chunk."""
        ...

    def forget_episodes(self) -> None:
        """Discards the objects of unfinished episodes, so that `EnvRunner.sample` does not continue them. Does not
        discard objects that callbacks, Python connectors or preprocessors of agents also read.
        """
        ...
