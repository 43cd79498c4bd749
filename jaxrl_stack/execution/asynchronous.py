"""Sampling and learning at the same time: IMPALA, APPO and their relatives on EnvRunner actors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.aggregation import Aggregation, Packer, batch_of
from jaxrl_stack.execution.learner_feed import MAX_WAIT_S, Learned, LearnerCalls, LearnerFeed, LearnerThread
from jaxrl_stack.execution.learner_queue import Batch, Ledger
from jaxrl_stack.execution.plans import Plan
from jaxrl_stack.execution.training_step import AsynchronousPlace, TrainingStep, TrainState
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics import ALL_MODULES
from jaxrl_stack.utils.results import NAN

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.facts import Facts
    from jaxrl_stack.execution.local_driver import LocalDriver


class AsynchronousStep(TrainingStep):
    """Training step that collects finished samples from EnvRunners while learners make updates in the background.

    Requests further samples from EnvRunners that are below their limit of unfinished requests.

    Nothing waits for the slowest runner. If learners are too slow and their queue is full, no samples are collected,
    and runners wait. One call ends when samples have arrived, or after a second.

    The times of samples, and therefore results, depend on the machine. Between iterations, learners do not update:
    samples wait for the next iteration, and are not part of checkpoints.

    Its config has ``make_learner_queue()``, ``broadcast_interval`` and ``timeout_s_sampler_manager``. To measure the
    bottleneck, ``_env_runners_only`` drops samples, and ``_skip_learners`` drops aggregated batches.

    Attributes:
        ledger: Fates of the sampled env steps.
        aggregation: Builds train batches from samples; None before the first call.
    """

    def __init__(self, config: Any, **kwargs: Any):
        super().__init__(config, **kwargs)
        self.ledger = Ledger()
        self._feed: LearnerFeed | None = None
        self.aggregation: Aggregation | None = None
        self._num_calls = self._num_broadcasts = self._num_calls_since_broadcast = 0
        self._results = _IterationResults()
        self._packer = Packer(1)

    # ----------------------------------------------------------------------------------------------------------- sizes

    def plan(self, facts: Facts) -> Plan:
        config = self.config
        length, num_envs = config.get_rollout_fragment_length(), int(config.num_envs_per_env_runner)
        self.num_env_steps = length * num_envs
        num_samples = math.ceil(config.total_train_batch_size / self.num_env_steps)
        self.rows_per_update = num_samples * self.num_env_steps
        self._samples = facts.plan_samples(length, in_frames=True, may_stay_remote=True)
        self._plan = facts.plan_update(
            dataclasses.replace(self._samples, num_shares=num_samples),
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        self._packer = Packer(num_samples)
        assert facts.env_runner_group is not None, "EnvRunners sample, and no program"
        self._learner_group: LearnerGroup = facts.learner_group
        self._env_runner_group: EnvRunnerGroup = facts.env_runner_group
        return Plan.of(self, [self._samples], self._plan)

    # ------------------------------------------------------------------------------------------------------------ call

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride] - no program has learners that are waited for
        self, state: TrainState, place: AsynchronousPlace
    ) -> tuple[TrainState, Any]:
        with deferred_interrupt():  # Between two queues, Ctrl-C would lose env steps from the accounting.
            return self._take_turns(state, place), None

    def _take_turns(self, state: TrainState, place: AsynchronousPlace) -> TrainState:
        feed, aggregation = self._started(place)
        self._num_calls += 1
        self._num_calls_since_broadcast += 1
        state = place.request(state, self._samples)
        self._fill(feed, aggregation)
        if not feed.has_room:
            feed.wait_for_room(MAX_WAIT_S)
        elif aggregation.has_room:
            also = [*feed.awaited(), *aggregation.awaited()]
            timeout = self.config.timeout_s_sampler_manager or MAX_WAIT_S
            state, new = place.collect(state, self._samples, timeout_seconds=timeout, also=also)
            self._results.num_samples.append(len(new.parts))
            if self.config._env_runners_only:
                self._drop(batch_of(new.parts))
            else:
                aggregation.add(self._packer.add(new))
            self._fill(feed, aggregation)
        else:
            aggregation.wait(MAX_WAIT_S)
            aggregation.add([])
        self._take_learned(place, feed.take_learned())
        # Those that have answered sample again, with the newest weights.
        return place.request(state, self._samples)

    def _started(self, place: AsynchronousPlace) -> tuple[LearnerFeed, Aggregation]:
        if self._feed is None or self.aggregation is None:
            feed_class = LearnerCalls if self._learner_group.is_remote else LearnerThread
            queue, interval = self.config.make_learner_queue(), int(self.config.broadcast_interval)
            self._feed = feed_class(place, self._learner_group, queue, self.ledger, self._plan, interval)
            number = int(self.config.num_aggregator_actors_per_learner)
            group, strategies = self._learner_group, self._learner_group.strategies_of_neighbours(number)
            placed = group.group_of_neighbours if any(strategies) else None
            self.aggregation = Aggregation(self.config, self.ledger, strategies=strategies, group=placed)
        self._feed.resume()
        return self._feed, self.aggregation

    def _fill(self, feed: LearnerFeed, aggregation: Aggregation) -> None:
        """Moves finished train batches to the queue of the `LearnerFeed` until the queue is full. The feed makes
        updates from them.
        """
        while aggregation.ready and feed.has_room:
            give_away = self._drop if self.config._skip_learners else feed.put
            give_away(aggregation.ready.popleft())

    def _drop(self, batch: Batch) -> None:
        self.ledger.settle(batch, "dropped")

    def _take_learned(self, place: AsynchronousPlace, learned: Learned) -> None:
        self._results.add(learned)
        if learned.weights is not None:
            place.publish_weights(learned.weights)
            self._num_broadcasts += 1
            self._results.calls_between_broadcasts.append(self._num_calls_since_broadcast)
            self._num_calls_since_broadcast = 0

    # ------------------------------------------------------------------------------------------------- life and state

    def pause(self) -> None:
        if self._feed is not None:
            self._feed.pause()
            self._env_runner_group.sync_local_env_runner()

    def stop(self) -> None:
        self._forget()
        if self.aggregation is not None:
            self.aggregation.stop()
        self._feed = self.aggregation = None

    def _forget(self) -> None:
        """Drops all samples and batches that no update has used, and stops the background updates."""
        if self._feed is not None:
            self._feed.stop()
            self._feed = None
        if self.aggregation is not None:
            self.aggregation.clear()
        self._packer.parts.clear()

    def reset(self, config: Any) -> None:
        super().reset(config)
        self.stop()
        self.ledger = Ledger()
        self._num_calls = self._num_broadcasts = self._num_calls_since_broadcast = 0
        self._results = _IterationResults()

    def num_env_steps_on_their_way(self) -> int:
        """Number of sampled env steps that wait for an update, or that a running update uses."""
        batches = {id(batch): batch for batch in self._on_their_way() if batch.fate is None}
        packed = sum(batch.num_env_steps for batch in batches.values())
        return packed + sum(part.num_env_steps for part in self._packer.parts)

    def _on_their_way(self) -> Iterator[Batch]:
        for holder in (self._feed, self.aggregation):
            if holder is not None:
                yield from holder.on_their_way()

    def get_state(self) -> dict[str, Any]:
        # Of what is on its way nothing is stored.
        lost = self.ledger.num_env_steps["lost"] + self.num_env_steps_on_their_way()
        return {"num_env_steps_by_fate": {**self.ledger.num_env_steps, "lost": lost}}

    def set_state(self, state: dict[str, Any]) -> None:
        self._forget()
        stored = state.get("num_env_steps_by_fate", {})
        self.ledger = Ledger()
        self.ledger.num_env_steps |= {fate: int(number) for fate, number in stored.items()}
        if self.aggregation is not None:
            self.aggregation.stop()
            self.aggregation = None

    # --------------------------------------------------------------------------------------------------------- results

    def num_env_steps_trained(self, driver: LocalDriver) -> int:
        return self.ledger.num_env_steps["trained"]

    def results(self, driver: Driver) -> dict[str, Any]:
        results, self._results = self._results, _IterationResults()
        steps, lags, stats = self.ledger.num_env_steps, results.lags, driver.learner_group.get_stats()
        own: dict[str, Any] = {
            "mean_num_learner_group_update_called": _mean(results.num_updates),
            "mean_num_training_step_calls_since_last_synch_worker_weights": _mean(results.calls_between_broadcasts),
            "num_weight_broadcasts": self._num_broadcasts,
            "num_env_steps_used_lifetime": steps["trained"],
            "num_env_steps_dropped_lifetime": steps["dropped"],
            "num_env_steps_lost_lifetime": steps["lost"],
            "num_env_steps_in_flight": self.num_env_steps_on_their_way(),
            "env_runners": {"mean_num_episode_lists_received": _mean(results.num_samples)},
            "learner_group": {
                "learner_group_ts_dropped_lifetime": steps["dropped"],
                "mean_num_learner_results_received": _mean(results.num_updates),
                "actor_manager_num_outstanding_async_reqs": stats["actor_manager_num_outstanding_async_reqs"],
            },
            "learners": {
                ALL_MODULES: {
                    "learner_thread_out_queue_size": 0 if self._feed is None else len(self._feed.queue),
                    "learner_thread_in_queue_wait_timer": results.wait_seconds / max(1, len(lags)),
                    "learner_thread_update_timer": results.update_seconds / max(1, len(lags)),
                    "sampler_policy_lag_mean": _mean([mean for mean, _ in lags]),
                    "sampler_policy_lag_max": max((largest for _, largest in lags), default=NAN),
                }
            },
        }
        aggregation = self.aggregation
        if aggregation is not None and aggregation.has_actors:
            own["aggregator_actors"] = {
                "mean_num_input_packages": aggregation.num_batches_in / max(1, self._num_calls),
                "mean_num_output_batches": aggregation.num_batches_out / max(1, self._num_calls),
                "num_env_steps_aggregated_lifetime": aggregation.num_env_steps_out,
                "num_env_steps_dropped_lifetime": 0,
            }
        return own


@dataclasses.dataclass
class _IterationResults:
    """Counters and timings of the present iteration: collected samples, updates, broadcasts of weights, and policy
    lags.

    Attributes:
        num_samples: Number of collected samples, by call.
        num_updates: Number of updates, by call.
        calls_between_broadcasts: For each broadcast, the calls since the previous one.
        lags: See `Learned`, also for the other attributes.
    """

    num_samples: list[int] = dataclasses.field(default_factory=list)
    num_updates: list[int] = dataclasses.field(default_factory=list)
    calls_between_broadcasts: list[int] = dataclasses.field(default_factory=list)
    lags: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    wait_seconds: float = 0.0
    update_seconds: float = 0.0

    def add(self, learned: Learned) -> None:
        """Adds the counters and timings of finished updates to the iteration's counters and timings."""
        self.num_updates.append(learned.num_updates)
        self.lags += learned.lags
        self.wait_seconds += learned.wait_seconds
        self.update_seconds += learned.update_seconds


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else NAN
