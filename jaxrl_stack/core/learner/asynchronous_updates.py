"""Asynchronous updates of Learners in Ray actors: the caller does not wait for the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.learner.training_data import TrainingData
from jaxrl_stack.episodes.multi_agent_episode import episodes_of_agents

if TYPE_CHECKING:
    from jaxrl_stack.core.experience import Experience
    from jaxrl_stack.core.learner.joined_learners import JoinedLearners


class AsynchronousUpdates:
    """Sends data for updates to learner actors without waiting for results, and returns the results of finished updates
    later.

    Args:
        actors: The learner actors.
    """

    def __init__(self, actors: JoinedLearners):
        self._actors = actors

    def send(self, experience: Experience, arguments: Mapping[str, Any], *, return_state: bool) -> bool:
        """Sends the data of one update to all learner actors, without waiting for results. The actors process updates
        in the order of these calls.

        Args:
            experience: Steps, split as by `LearnerGroup.update_block`, or whole episodes.
            arguments: Keyword arguments of `Learner.update_block`, or of `Learner.update` for episodes.
            return_state: Whether the first learner's result contains the weights after this update.

        Returns:
            False if ``max_requests_in_flight_per_learner`` updates are unfinished; then this update is dropped.

        Raises:
            ValueError: If columns cannot be split evenly.
            RuntimeError: If learners are lost again after a restart.
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
        """Returns the results of the sent updates that have finished since the last call, oldest first.

        Returns:
            For each update one dict of metrics per learner, or the exception that it raised. Updates that were lost
            with a learner are missing.

        Raises:
            RuntimeError: See `send`.
        """
        return self._actors.finished_updates()

    def pending_refs(self) -> list[Any]:
        """Returns one Ray reference (to the first learner's result) for each sent update whose results `finished` has
        not fetched yet, oldest update first.
        """
        return [pending.refs[0] for pending in self._actors.pending]
