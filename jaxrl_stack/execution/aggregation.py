"""Aggregation of samples: actors concatenate them into train batches in the order of arrival."""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.experience import Experience, LostExperienceError, Part, joined
from jaxrl_stack.execution.learner_queue import Batch, Ledger
from jaxrl_stack.utils.actor_backend import RAY, Backend, start_actors
from jaxrl_stack.utils.actor_manager import PROBE_INTERVAL_S, FaultAwareApply, FaultTolerantActorManager, is_lost_object
from jaxrl_stack.utils.actor_recovery import ActorRecovery
from jaxrl_stack.utils.actor_setup import set_up_actor
from jaxrl_stack.utils.call_results import CallResult
from jaxrl_stack.utils.loss_policy import LossPolicy
from jaxrl_stack.utils.resources import AGGREGATOR_CPUS
from jaxrl_stack.utils.waiting import WaitingReport

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

logger = logging.getLogger(__name__)

_BATCHES = "train batches"
_POLICY = LossPolicy("aggregator", resources={"CPU": AGGREGATOR_CPUS})
"""Aggregators keep nothing: each is restarted whenever it dies, and loses the batches that it worked on."""


class Packer:
    """Collects samples until they fill a train batch.

    Args:
        num_samples: Number of samples in a batch. All have the same shape, and so have batches.
    """

    def __init__(self, num_samples: int):
        self.num_samples = num_samples
        self.parts: list[Part] = []

    def add(self, experience: Experience) -> list[Batch]:
        """Appends samples to the batch that is being filled; returns the batches that became full, maybe none."""
        self.parts += experience.parts
        batches = []
        while len(self.parts) >= self.num_samples:
            own, self.parts = self.parts[: self.num_samples], self.parts[self.num_samples :]
            batches.append(batch_of(own))
        return batches


def batch_of(parts: Sequence[Part]) -> Batch:
    """Creates the train batch of one update from samples (`parts`). The batch's number of env steps is the sum over the
    samples.
    """
    experience = Experience(tuple(parts))
    return Batch(experience, experience.num_env_steps)


class AggregatorActor(FaultAwareApply):
    """Fetches and concatenates the samples of a batch in a separate process."""

    def __init__(self) -> None:
        set_up_actor(num_cpus=1, num_gpus=0)

    def get_batch(self, number: int, parts: Sequence[Part]) -> tuple[tuple[int, Part], Any]:
        """Concatenates the samples `parts` into the train batch with the id `number`.

        Returns ``((number, batch), columns)``: `columns` are the concatenated columns, and `batch` is the rest of the
        train batch, without columns. Callers set ``num_returns=2``: then the columns stay in Ray's object store, and
        callers get a reference to the columns.

        Raises:
            LostExperienceError: If columns of a part are lost.
        """
        whole = joined([part.fetched() for part in parts])
        return (number, whole.kept_at(None)), whole.modules


class Aggregation:
    """Concatenates the samples of train batches in aggregator actors (separate processes).

    Without such actors, a batch is ready as soon as its samples are collected, and the learners concatenate these
    samples.

    Args:
        config: The algorithm's config.
        ledger: Records lost batches.
        backend: Backend of the actors.
        strategies: Ray's ``scheduling_strategy`` of each actor; empty leaves placing to Ray.
        group: Ray placement group with the actors' bundles, or None.

    Attributes:
        ready: Batches that are ready for learning.
        num_batches_in, num_batches_out, num_env_steps_out: Lifetime counters.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        ledger: Ledger,
        backend: Backend = RAY,
        *,
        strategies: Sequence[Any] = (),
        group: Any = None,
    ):
        self.ready: collections.deque[Batch] = collections.deque()
        self.num_batches_in = self.num_batches_out = self.num_env_steps_out = 0
        self._ledger = ledger
        self._num_sent = 0
        self._limit = int(config.max_requests_in_flight_per_aggregator_actor)
        self._backlog: collections.deque[Batch] = collections.deque()
        self._at_work: dict[int, dict[int, Batch]] = {}
        self._backend = backend
        self._manager = FaultTolerantActorManager([], self._limit, backend=backend)
        self._recovery = ActorRecovery(self._manager, lambda: _POLICY, group=group)
        number = config.num_aggregator_actors_per_learner * max(1, config.num_learners)
        handles = start_actors(
            AggregatorActor,
            [{}] * number,
            options={"num_cpus": AGGREGATOR_CPUS},
            max_restarts=_POLICY.restarts_of_each,
            strategies=strategies,
            backend=backend,
        )
        self._at_work = {i: {} for i in self._manager.add_actors(handles)}
        self._unheard = set(self._at_work)
        self._starts = WaitingReport(_POLICY.role, lambda: _POLICY.resources, backend, group=group)

    @property
    def has_actors(self) -> bool:
        """Whether aggregator actors concatenate the samples of each batch in separate processes."""
        return bool(self._at_work)

    def actors(self) -> dict[int, Any]:
        """Aggregator actors, which concatenate samples: ``{id: handle}``."""
        return self._manager.actors()

    @property
    def has_room(self) -> bool:
        """Whether more batches can be added: True if no batch waits for an aggregator actor or for an update."""
        return not self._backlog and not self.ready

    def add(self, batches: Sequence[Batch]) -> None:
        """Adds batches to the queue of the aggregator actors, which concatenate the samples of each batch.

        Also collects the batches that these actors have finished. Without actors, the batches are ready immediately.

        Raises:
            Exception: The error of an actor, unless its samples were lost; or the error of an actor that Ray does not
                restart.
        """
        self.num_batches_in += len(batches)
        if not self.has_actors:
            self._make_ready(batches)
            return
        self._backlog.extend(batches)
        self._recovery.take_back(timeout_s=0.0)
        self._fetch()
        if not self._manager.healthy_actor_ids() and not self._manager.recoverable_actor_ids():
            raise RuntimeError(
                "All aggregator actors are lost, and Ray does not restart them. Save a checkpoint and build the "
                "algorithm again, or let the learners aggregate: learners(num_aggregator_actors_per_learner=0)."
            )
        self._send()
        # Ray starts an actor when there is room for it, and takes calls before.
        self._starts.note(sum(bool(self._at_work[i]) for i in self._unheard))

    def _send(self) -> None:
        """Sends the samples of waiting batches to the aggregator actors, which concatenate them; each batch goes to the
        actor with the fewest batches.
        """
        while self._backlog:
            free = [i for i in self._manager.healthy_actor_ids() if len(self._at_work[i]) < self._limit]
            if not free:
                return
            chosen = min(free, key=lambda i: len(self._at_work[i]))
            batch = self._backlog.popleft()
            number = self._num_sent = self._num_sent + 1
            self._at_work[chosen][number] = batch
            self._manager.foreach_actor_async(
                "get_batch",
                _BATCHES,
                kwargs={"number": number, "parts": list(batch.experience.parts)},
                remote_actor_ids=[chosen],
                num_returns=2,
            )

    def _fetch(self) -> None:
        failed: list[tuple[CallResult, bool]] = []
        for call in self._manager.fetch_ready_async_reqs(tags=_BATCHES, timeout_seconds=0.0):
            self._unheard.discard(call.actor_id)
            batches = self._at_work[call.actor_id]
            if call.ok:
                (number, part), modules = call.get()
                batch = batches.pop(number)
                batch.experience = Experience((part.kept_at(modules),))
                self._make_ready([batch])
                continue
            # An actor that has died has lost all that it had, one that could not fetch its samples the oldest.
            has_died = not self._manager.is_actor_healthy(call.actor_id)
            for number in list(batches)[: None if has_died else 1]:
                self._ledger.settle(batches.pop(number), "lost")
            failed.append((call, has_died))
        # An error comes after everything that has arrived with it.
        for call, has_died in failed:
            error = call.get()
            if not (has_died or isinstance(error, LostExperienceError) or is_lost_object(error)):
                raise error
            logger.warning("%s lost train batches: %s", _POLICY.name(call.actor_id), error)
            if has_died:
                self._recovery.note_loss(call)

    def _make_ready(self, batches: Sequence[Batch]) -> None:
        self.ready.extend(batches)
        self.num_batches_out += len(batches)
        self.num_env_steps_out += sum(batch.num_env_steps for batch in batches)

    def awaited(self) -> list[Any]:
        """Ray references of the batches that the actors are building."""
        return self._manager.async_request_refs(_BATCHES)

    def wait(self, timeout_seconds: float) -> None:
        """Waits until an aggregator actor has built a batch, or until `timeout_seconds` have passed.

        If no actor is building a batch, for example because all actors are restarting, waits `PROBE_INTERVAL_S`
        seconds.
        """
        if refs := self.awaited():
            self._backend.wait(refs, timeout_s=timeout_seconds, fetch=False)
        else:
            self._backend.sleep(PROBE_INTERVAL_S)  # All of them are on their way back.

    def on_their_way(self) -> Iterator[Batch]:
        """Yields the batches that no learner has received: waiting for an actor, being built, or ready."""
        yield from self._backlog
        yield from self.ready
        for batches in self._at_work.values():
            yield from batches.values()

    def clear(self) -> None:
        """Drops all batches: waiting, being built by actors, or ready for an update."""
        self.ready.clear()
        self._backlog.clear()
        self._manager.forget_requests(_BATCHES)
        self._at_work = {i: {} for i in self._at_work}

    def stop(self) -> None:
        """Stops the aggregator actors, which concatenate samples into train batches."""
        self._starts.end()
        self._recovery.stop()
        if self.has_actors:
            self._manager.clear()
            self._at_work, self._unheard = {}, set()
