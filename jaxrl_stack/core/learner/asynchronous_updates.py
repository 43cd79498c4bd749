"""Updates of learners that are actors which nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.episodes.multi_agent_episode import episodes_of_agents

if TYPE_CHECKING:
    from jaxrl_stack.core.experience import Experience
    from jaxrl_stack.core.learner.joined_learners import JoinedLearners


class AsynchronousUpdates:
    """Sends learners what to update from, and has what became of it.

    Args:
        actors: The learners.
    """

    def __init__(self, actors: JoinedLearners):
        self._actors = actors

    def send(self, experience: Experience, arguments: Mapping[str, Any], *, return_state: bool) -> bool:
        """Have all learners update when they are done with what was sent before.

        Args:
            experience: Steps, dealt out as by `LearnerGroup.update_block`, or whole episodes.
            arguments: Of `Learner.update_block`, or of `Learner.update`.
            return_state: Whether the first learner's result holds the weights after this update.

        Returns:
            False if ``max_requests_in_flight_per_learner`` updates are unfinished: then this one is left out.

        Raises:
            ValueError: If columns cannot be dealt out evenly.
            RuntimeError: If learners are lost as soon as they have started anew.
        """
        shares: Sequence[Any]
        if experience.has_episodes:
            lookback = self._actors.config.episode_lookback_horizon
            data = TrainingData(episodes=episodes_of_agents(experience.episodes))
            shares = data.shard(self._actors.num_learners, len_lookback_buffer=lookback)
        else:
            shares = experience.deal_out(self._actors.num_learners)
        return self._actors.send_update(shares, dict(arguments), return_state)

    def finished(self) -> list[list[dict[str, Any]] | Exception]:
        """Of each update that is finished and was not returned here yet, oldest first, one dict per learner.

        In the place of an update that failed stands what it raised. Those that were lost with a learner are left out.

        Raises:
            RuntimeError: As of `send`.
        """
        return self._actors.finished_updates()

    def pending_refs(self) -> list[Any]:
        """A Ray reference of each update that was sent and is not in `finished` yet, oldest first."""
        return [pending.refs[0] for pending in self._actors.pending]
