"""Learners that live and die as one: barriers, snapshots, restarts, and updates that nobody waits for."""

from __future__ import annotations

import operator

import jax
import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.learner.joined_learners import OTHERS_TIMEOUT_S, STATE_AFTER_UPDATE, JoinedLearners
from jaxrl_stack.core.learner.learner_actor import Answer
from jaxrl_stack.core.learner.training_data import TrainingData
from tests.fake_actors import FakeActors, work

NEVER = float("inf")


class ToyLearner:
    """Adds up the numbers that it gets. One that fails leaves the others waiting at the barrier."""

    joins = 0
    """Joins so far of all."""
    failing_joins = 0

    def __init__(self, *, config, num_cpus, num_gpus):
        self.config, self.total, self.num_updates, self.is_built = config, 0.0, 0, False

    def free_address(self):
        return "host:1"

    def join(self, address, num_learners, index):
        assert (address, num_learners, self.is_built) == ("host:1", 2, False)
        type(self).joins += 1
        if type(self).joins <= self.failing_joins:
            raise jax.errors.JaxRuntimeError("the port is taken")

    def leave(self):
        work(0.5)

    def build(self):
        self.is_built = True
        return {"module_ids": ("default_policy",), "num_updates": 0}

    def ping(self):
        return "pong"

    def apply(self, func, kwargs):
        return func(self, **kwargs)

    def call(self, method, value):
        return getattr(self, method)(value)

    def get_state(self):
        return {"total": self.total, "counters": {"num_updates": np.uint32(self.num_updates)}}

    def set_state(self, state):
        self.total, self.num_updates = state["total"], int(state["counters"]["num_updates"])

    def update(self, data, arguments, *, wants_state=False, wants_weights=False):
        work(1.0)
        (number,) = data.batch["number"]
        if isinstance(number, Exception):
            raise number
        if number == NEVER:
            work(NEVER)
        self.total += number
        self.num_updates += 1
        return Answer(
            metrics={"total": self.total},
            num_updates=self.num_updates,
            state=self.get_state() if wants_state else None,
            weights={"total": self.total} if wants_weights else None,
        )


class ToyLearners(JoinedLearners):
    actor_class = ToyLearner


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(ToyLearner, "joins", 0)
    return FakeActors()


def learners_of(fake, **settings):
    return ToyLearners(PPOConfig().learners(num_learners=2, **settings), None, backend=fake)


def shares(*numbers):
    return [TrainingData(batch={"number": np.array([number], object)}) for number in numbers]


def update(learners, *numbers):
    return [own["total"] for own in learners.update(shares(*numbers), {}, False, False)]


def total_of(learners):
    return learners.first(operator.attrgetter("total"))


def test_all_are_joined_before_one_is_built_and_none_is_restarted_by_itself(fake):
    learners = learners_of(fake)
    assert ToyLearner.joins == 2 and [options["max_restarts"] for _, options in fake.started] == [0, 0]
    assert learners.info["module_ids"] == ("default_policy",) and len(fake.puts) == 1
    assert update(learners, 1.0, 2.0) == [1.0, 2.0] and learners.call("ping") == ["pong"] * 2
    learners.shutdown()
    assert fake.now() == 1.5
    for handle in fake.handles:
        with pytest.raises(ActorDiedError):
            fake.get(handle.ping.remote())
    with pytest.raises(ValueError, match="was shut down"):
        learners.call("ping")


def test_learners_wait_for_a_node_and_start_again_if_their_node_is_lost_before_they_start(fake, caplog):
    learners = learners_of(fake)
    fake.lose(fake.handles[0])
    fake.start_s, fake.free = 25.0, {"CPU": 1.0}
    wait = fake.wait

    def lose_new_node(*args, **kwargs):
        # Ray has placed the new learners on the node that was lost, and notices it after two seconds.
        if len(fake.handles) == 4 and fake.now() > 2.0:
            fake.lose(fake.handles[2])
        return wait(*args, **kwargs)

    fake.wait = lose_new_node
    assert learners.call("ping") == ["pong"] * 2
    assert learners.num_restarts == 1 and len(fake.handles) == 6
    lines = [line for line in caplog.messages if line.startswith("Waiting")]
    has = "the cluster has the resources, and the processes start."
    assert lines[-2:] == [f"Waiting for 2 Learner actors for {seconds} s: {has}" for seconds in (10, 20)]


def test_learners_that_cannot_be_joined_are_started_again_but_not_forever(fake, monkeypatch, caplog):
    monkeypatch.setattr(ToyLearner, "failing_joins", 1)
    learners = learners_of(fake)
    assert "could not be joined and are started again" in caplog.text
    assert len(fake.started) == 4 and learners.num_restarts == 0 and learners.call("ping") == ["pong"] * 2
    monkeypatch.setattr(ToyLearner, "failing_joins", NEVER)
    with pytest.raises(RuntimeError, match="(?s)while the group was started: .*the port is taken"):
        learners_of(fake)
    for handle in fake.handles[4:]:
        with pytest.raises(ActorDiedError):
            fake.get(handle.ping.remote())


@pytest.mark.parametrize("lost", [0, 1])
def test_when_one_is_lost_all_start_again_from_the_last_snapshot(fake, caplog, lost):
    learners = learners_of(fake, learner_snapshot_interval=2)
    for number in (1.0, 2.0, 4.0):
        update(learners, number, number)
    fake.lose(fake.handles[lost])
    assert update(learners, 8.0, 8.0) == [11.0, 11.0]
    assert "all 2 restart from the last snapshot, and 2 update(s) after it are lost" in caplog.text
    assert learners.num_restarts == 1 and len(fake.started) == 4
    # The other one was ended, too: what is left of a program that was cut off cannot be joined again.
    with pytest.raises(ActorDiedError):
        fake.get(fake.handles[1 - lost].ping.remote())
    # Updates that were lost stay counted.
    assert learners.num_updates == 4 and learners.first(operator.attrgetter("num_updates")) == 4
    assert update(learners, 1.0, 1.0) == [12.0, 12.0]


def test_a_change_of_state_is_a_snapshot(fake):
    learners = learners_of(fake, learner_snapshot_interval=100)
    learners.change("set_state", {"total": 100.0, "counters": {"num_updates": np.uint32(7)}})
    fake.lose(fake.handles[0])
    assert total_of(learners) == 100.0 and learners.num_restarts == 1 and learners.num_updates == 7


def test_what_all_raise_is_raised_and_nothing_starts_again(fake):
    learners = learners_of(fake)
    with pytest.raises(KeyError, match="a mistake"):
        update(learners, KeyError("a mistake"), KeyError("a mistake"))
    assert learners.num_restarts == 0 and update(learners, 1.0, 1.0) == [1.0, 1.0]


def test_one_that_fails_while_the_others_wait_for_it_takes_all_down(fake):
    learners = learners_of(fake)
    before = fake.now()
    with pytest.raises(RuntimeError, match="(?s)lost again after a restart: .*a mistake") as caught:
        update(learners, KeyError("a mistake"), NEVER)
    assert isinstance(caught.value.__cause__, KeyError)
    assert fake.now() == before + 2 * (1.0 + OTHERS_TIMEOUT_S)
    # The next call starts them once more.
    assert total_of(learners) == 0.0 and learners.num_restarts == 2


def test_updates_that_nobody_waits_for_come_in_their_order_and_are_left_out_for_want_of_room(fake):
    learners = learners_of(fake, max_requests_in_flight_per_learner=2)
    fake.delay(fake.handles[1], 3.0, 0.0)
    assert learners.send_update(shares(1.0, 1.0), {}, True) and learners.send_update(shares(2.0, 2.0), {}, False)
    assert not learners.send_update(shares(4.0, 4.0), {}, False)
    assert learners.num_dropped_env_steps == 2 and learners.finished_updates() == []
    fake.sleep(2.0)
    # Both have finished the second one, but the answer of one of them to the first is late.
    assert learners.finished_updates() == []
    fake.sleep(3.0)
    first, second = learners.finished_updates()
    assert [own["total"] for own in first] == [1.0, 1.0] and [own["total"] for own in second] == [3.0, 3.0]
    assert first[0][STATE_AFTER_UPDATE] == {"total": 1.0} and STATE_AFTER_UPDATE not in second[0]
    assert learners.finished_updates() == []


def test_updates_that_are_under_way_are_lost_with_a_learner_and_stay_counted(fake):
    learners = learners_of(fake, max_requests_in_flight_per_learner=3, learner_snapshot_interval=1)
    learners.send_update(shares(1.0, 1.0), {}, False)
    learners.send_update(shares(2.0, 2.0), {}, False)
    fake.sleep(1.5)
    fake.lose(fake.handles[0])
    (first,) = learners.finished_updates()
    assert [own["total"] for own in first] == [1.0, 1.0] and list(learners.pending) == []
    assert total_of(learners) == 1.0 and learners.num_updates == 2 and learners.num_restarts == 1
    # What an update raises takes its place.
    learners.send_update(shares(KeyError("a"), KeyError("a")), {}, False)
    learners.send_update(shares(2.0, 2.0), {}, False)
    fake.sleep(5.0)
    failed, done = learners.finished_updates()
    assert isinstance(failed, KeyError) and [own["total"] for own in done] == [3.0, 3.0]
