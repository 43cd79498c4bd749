"""Background updates during sampling, in a thread of this process or in learner actors."""

from __future__ import annotations

import abc
import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.experience import LostExperienceError
from jaxrl_stack.core.learner.joined_learners import STATE_AFTER_UPDATE
from jaxrl_stack.execution.learner_queue import Batch, Ledger
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils.actor_backend import RAY

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.execution.learner_queue import LearnerQueue
    from jaxrl_stack.execution.plans import SampledUpdate
    from jaxrl_stack.execution.training_step import AsynchronousPlace

logger = logging.getLogger(__name__)

MAX_WAIT_S = 1.0
"""Maximum seconds that a training step waits for samples, train batches or updates; then it ends without them. For
samples, the setting `timeout_s_sampler_manager` replaces this number, unless it is 0.
"""


@dataclasses.dataclass
class Learned:
    """Results of the updates since the last `take_learned` call: number, timings, policy lags, and new weights for the
    EnvRunners.

    Attributes:
        num_updates: Number of updates.
        lags: Policy lag of each update, the age of the sampling weights in updates: ``(mean, largest)``.
        weights: ``{"rl_module": ..., "weights_seq_no": ...}`` to send to runners; None if none are due.
        wait_seconds: Time in which learners had no batch.
        update_seconds: Time in which learners updated.
    """

    num_updates: int = 0
    lags: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    weights: dict[str, Any] | None = None
    wait_seconds: float = 0.0
    update_seconds: float = 0.0


class LearnerFeed(abc.ABC):
    """Makes updates from the train batches of a queue, in the background.

    It makes updates between `resume` and `pause`; in a pause, only direct calls change the learners.

    Args:
        place: Makes updates, and records those of learner actors.
        learner_group: The learners.
        queue: Queue of their batches.
        ledger: Records trained and lost steps.
        plan: Sizes of an update.
        broadcast_interval: Updates between two states for the runners.
    """

    def __init__(
        self,
        place: AsynchronousPlace,
        learner_group: LearnerGroup,
        queue: LearnerQueue,
        ledger: Ledger,
        plan: SampledUpdate[Mapping[str, Any]],
        broadcast_interval: int,
    ):
        self.queue = queue
        self._place = place
        self._group = learner_group
        self._ledger = ledger
        self._plan = plan
        self._interval = broadcast_interval
        self._num_updates_at_broadcast = learner_group.num_updates
        self._learned = Learned()

    @property
    def has_room(self) -> bool:
        """Whether the queue of train batches has room for another one; see `LearnerQueue.has_room`."""
        return self.queue.has_room

    @abc.abstractmethod
    def put(self, batch: Batch) -> None:
        """Adds a train batch to the queue. If the queue drops an older batch to make room, that batch's steps count as
        dropped.
        """

    @abc.abstractmethod
    def take_learned(self) -> Learned:
        """Returns the results of the updates made since the last call: number, timings, policy lags and new weights for
        the EnvRunners.

        Raises:
            Exception: The error of an update; lost batches are only counted.
        """

    @abc.abstractmethod
    def wait_for_room(self, timeout_seconds: float) -> None:
        """Waits until the queue of train batches has room for another one, or until the timeout."""

    def awaited(self) -> list[Any]:
        """Ray references of running updates; when one is ready, the results of its update can be read."""
        return []

    @abc.abstractmethod
    def resume(self) -> None:
        """Starts the background updates, or continues them after `pause`."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Waits for the running updates, and starts no more until `resume`. Batches stay in the queue."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Drops all waiting train batches, and ends the background updates."""

    @abc.abstractmethod
    def on_their_way(self) -> Iterator[Batch]:
        """Yields the train batches whose updates are not finished: waiting batches, and batches of running updates."""

    def _put(self, batch: Batch) -> None:
        dropped = self.queue.put(batch)
        if dropped is not None:
            self._ledger.settle(dropped, "dropped")

    def _note(self, batch: Batch, num_updates_before: int) -> None:
        """Counts an update and the steps of its batch, and stores the policy lag.

        The policy lag is the number of updates between the weights that sampled the batch and the weights from which
        the update started.
        """
        self._ledger.settle(batch, "trained")
        self._learned.num_updates += 1
        versions = batch.experience.versions
        mean_lag = num_updates_before - (int(versions.lowest) + int(versions.highest)) / 2
        self._learned.lags.append((mean_lag, num_updates_before - int(versions.lowest)))
        self._place.note_lag(mean_lag)


class LearnerThread(LearnerFeed):
    """Makes updates with this process's learner in a background thread. During a compiled update, other threads can
    run, because Python's global interpreter lock is free.
    """

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._changed = threading.Condition()
        self._runs = self._is_stopped = False
        self._current: Batch | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="learner", daemon=True)
        self._thread.start()

    def put(self, batch: Batch) -> None:
        with self._changed:
            self._put(batch)
            self._changed.notify_all()

    def take_learned(self) -> Learned:
        with self._changed:
            learned, self._learned = self._learned, Learned()
            error, self._error = self._error, None
        if error is not None:
            raise error
        return learned

    def wait_for_room(self, timeout_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.queue.has_room or self._error is not None, timeout_seconds)

    def resume(self) -> None:
        with self._changed:
            self._runs = True
            self._changed.notify_all()

    def pause(self) -> None:
        with self._changed:
            self._runs = False
            self._changed.wait_for(lambda: self._current is None)

    def stop(self) -> None:
        self.pause()
        with self._changed:
            self.queue.clear()
            self._is_stopped = True
            self._changed.notify_all()
        self._thread.join()

    def on_their_way(self) -> Iterator[Batch]:
        with self._changed:
            waiting = list(self.queue.waiting())
        yield from waiting
        if self._current is not None:
            yield self._current

    def _run(self) -> None:
        while (batch := self._next()) is not None:
            started, error = time.perf_counter(), None
            before = self._group.num_updates
            weights = None
            try:
                self._place.update(TrainState(), batch.experience, self._plan)
                weights = self._weights_if_due()
            except BaseException as raised:
                error = raised
            with self._changed:
                self._learned.update_seconds += time.perf_counter() - started
                self._current = None
                if error is None:
                    self._note(batch, before)
                    self._learned.weights = weights or self._learned.weights
                else:
                    self._ledger.settle(batch, "lost")
                    if isinstance(error, LostExperienceError):
                        logger.warning("A train batch is lost. %s", error)
                    else:
                        self._error, self._runs = error, False
                self._changed.notify_all()

    def _next(self) -> Batch | None:
        """Waits for a train batch in the queue and returns it; returns None after `stop`."""
        started = time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._is_stopped or (self._runs and len(self.queue)))
            self._learned.wait_seconds += time.perf_counter() - started
            if self._is_stopped:
                return None
            self._current = self.queue.take()
            self._changed.notify_all()
            return self._current

    def _weights_if_due(self) -> dict[str, Any] | None:
        num_updates = self._group.num_updates
        if num_updates - self._num_updates_at_broadcast < self._interval:
            return None
        self._num_updates_at_broadcast = num_updates
        # Copies: the next update takes some of these arrays over.
        return {"rl_module": self._group.weights_for_runners(), "weights_seq_no": num_updates}


class LearnerCalls(LearnerFeed):
    """Sends train batches to learner actors, which make the updates in sequence.

    Sends up to `max_pending` batches before their updates are finished, so that the actors need not wait for the next
    batch.

    Attributes:
        max_pending: Maximum of sent, unanswered updates: a running and a waiting one keep a learner busy, and more
            would increase the policy lag.
    """

    max_pending = 2

    def __init__(self, *args: Any):
        super().__init__(*args)
        self._updates = self._group.asynchronous_updates()
        self._sent: collections.deque[tuple[Batch, int]] = collections.deque()
        self._runs = False

    def put(self, batch: Batch) -> None:
        self._put(batch)
        self._send()

    def _send(self) -> None:
        """Sends waiting train batches to the learner actors, which make updates on these batches, until the limit of
        pending updates is reached.
        """
        limit = min(self.max_pending, int(self._group.config.max_requests_in_flight_per_learner))
        while self._runs and len(self._updates.pending_refs()) < limit:
            batch = self.queue.take()
            if batch is None:
                return
            before = self._group.num_updates + len(self._sent)
            due = before + 1 - self._num_updates_at_broadcast >= self._interval
            if due:
                self._num_updates_at_broadcast = before + 1
            self._sent.append((batch, before))
            arguments = {"timesteps": self._place.timesteps, **self._plan.sizes}
            self._updates.send(batch.experience, arguments, return_state=due)
            self._settle()

    def _settle(self) -> None:
        """Reads the results of finished updates, and counts the steps of their batches as trained.

        If an update failed or was lost with a dead learner actor, counts the steps of its batch as lost. Raises the
        error of a failed update, unless samples of its batch were lost.
        """
        outcomes = self._updates.finished()
        num_pending = len(self._updates.pending_refs())
        for outcome in outcomes:
            batch, before = self._sent.popleft()
            if isinstance(outcome, Exception):
                self._ledger.settle(batch, "lost")
                if not isinstance(outcome, LostExperienceError):
                    raise outcome
                logger.warning("A train batch is lost. %s", outcome)
                continue
            self._learned.weights = outcome[0].pop(STATE_AFTER_UPDATE, None) or self._learned.weights
            self._place.note_update(outcome)
            self._note(batch, before)
        while len(self._sent) > num_pending:
            # With the learners, which have started again from an earlier state.
            self._ledger.settle(self._sent.popleft()[0], "lost")
            self._num_updates_at_broadcast = min(self._num_updates_at_broadcast, self._group.num_updates)

    def take_learned(self) -> Learned:
        self._settle()
        self._send()
        learned, self._learned = self._learned, Learned()
        return learned

    def awaited(self) -> list[Any]:
        return self._updates.pending_refs()[:1]

    def wait_for_room(self, timeout_seconds: float) -> None:
        if refs := self.awaited():
            RAY.wait(refs, timeout_s=timeout_seconds, fetch=False)

    def resume(self) -> None:
        self._runs = True
        self._send()

    def pause(self) -> None:
        self._runs = False
        while self._sent:
            self.wait_for_room(MAX_WAIT_S)
            self._settle()

    def stop(self) -> None:
        self._runs = False
        self.queue.clear()
        self._sent.clear()

    def on_their_way(self) -> Iterator[Batch]:
        yield from self.queue.waiting()
        yield from (batch for batch, _ in self._sent)
