"""Aggregators: batches that they have, lose, or finish in another order; every env step has one fate."""

from __future__ import annotations

import types

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

from jaxrl_stack.core.block import Block
from jaxrl_stack.core.experience import Part
from jaxrl_stack.execution import aggregation
from jaxrl_stack.execution.aggregation import Aggregation, batch_of
from jaxrl_stack.execution.learner_queue import Ledger
from jaxrl_stack.utils.actor_manager import PROBE_INTERVAL_S
from jaxrl_stack.utils.waiting import waiting_lines
from tests.fake_actors import FakeActors


def batch(number):
    """A batch of two samples of 3 env steps each, with its number in its columns."""
    blocks = {"module": Block({"obs": np.full((3, 1), float(number))})}
    return batch_of([Part(blocks, num_agent_steps=3, num_env_steps=3)] * 2)


@pytest.fixture
def fake():
    return FakeActors()


def aggregation_of(fake, number=2, limit=2):
    config = types.SimpleNamespace(
        num_aggregator_actors_per_learner=number, num_learners=0, max_requests_in_flight_per_aggregator_actor=limit
    )
    return Aggregation(config, Ledger(), fake)


def numbers(fake, own):
    """Numbers of the batches that are ready, which are then taken."""
    found = []
    while own.ready:
        (part,) = own.ready.popleft().experience.parts
        modules = fake.get(part.reference)
        assert modules["module"]["obs"].shape == (3, 2) and part.num_env_steps == 6
        found.append(int(modules["module"]["obs"][0, 0]))
    return found


def test_batches_are_put_side_by_side_by_the_actor_with_the_least_to_do(fake):
    own = aggregation_of(fake)
    assert own.has_actors and [options for _, options in fake.started] == [{"num_cpus": 1, "max_restarts": -1}] * 2
    fake.delay(fake.handles[0], 5.0)
    own.add([batch(1), batch(2), batch(3)])
    own.wait(60.0)
    own.add([])
    # The first actor is late with the first one and has the third one, too.
    assert numbers(fake, own) == [2, 3] and fake.now() == 0.0
    own.wait(60.0)
    own.add([])
    assert numbers(fake, own) == [1] and fake.now() == 5.0
    assert own.num_batches_in == own.num_batches_out == 3 and own.num_env_steps_out == 18


def test_what_does_not_fit_waits_for_an_actor(fake):
    own = aggregation_of(fake, number=1, limit=1)
    own.add([batch(1), batch(2)])
    assert not own.has_room and len(list(own.on_their_way())) == 2
    own.wait(60.0)
    own.add([])
    own.wait(60.0)
    own.add([])
    assert numbers(fake, own) == [1, 2] and own.has_room


def test_a_lost_aggregator_loses_what_it_had_and_comes_back(fake, caplog):
    own = aggregation_of(fake)
    ledger = own._ledger
    fake.delay(fake.handles[0], 9.0, 9.0)
    own.add([batch(i) for i in range(4)])
    own.wait(60.0)
    fake.lose(fake.handles[0])
    own.add([batch(4)])
    assert numbers(fake, own) == [1, 3] and ledger.num_env_steps["lost"] == 12
    assert "Aggregator actor 0 lost train batches" in caplog.text
    # Meanwhile the other one works alone.
    own.add([batch(5)])
    own.wait(60.0)
    own.add([])
    assert numbers(fake, own) == [4, 5]
    # What is sent to a lost one before its loss is known is lost, too; what comes then waits until one is back.
    fake.lose(fake.handles[1])
    own.add([batch(6)])
    own.add([batch(7)])
    for _ in range(10):
        own.wait(60.0)
        own.add([])
    assert numbers(fake, own) == [7] and fake.now() < fake.restart_s + 10 * PROBE_INTERVAL_S
    assert ledger.num_env_steps == {"trained": 0, "dropped": 0, "lost": 18}


def test_an_aggregator_that_does_not_start_is_reported(fake, caplog):
    fake.start_s, fake.free = 35.0, {"CPU": 0.0}
    own = aggregation_of(fake, number=1)
    fake.sleep(20.0)
    own.add([])
    own.add([batch(1)])
    assert caplog.messages == []  # it has had nothing to do before
    for _ in range(4):
        own.wait(5.0)
        own.add([])
    (line,) = caplog.messages
    assert line == "Waiting for 1 aggregator actor for 10 s: it needs CPU: 1; the cluster has 0 of 8 CPU free."
    assert numbers(fake, own) == [1] and waiting_lines() == []


def test_a_sample_that_is_gone_loses_its_batch_only(fake):
    own = aggregation_of(fake, number=1)
    own.add([batch(1), batch(2)])
    fake.lose_results(fake.handles[0])
    own.wait(60.0)
    own.add([])
    assert numbers(fake, own) == [2] and own._ledger.num_env_steps["lost"] == 6
    own.add([batch_of([Part({"module": Block({})}), Part({"module": Block({"obs": np.zeros((1, 1))})})])])
    own.wait(60.0)
    with pytest.raises(Exception, match="obs"):
        own.add([])


def test_an_aggregator_that_cannot_be_started_again_is_an_error(fake, monkeypatch):
    own = aggregation_of(fake, number=1)
    own.add([batch(1)])
    monkeypatch.setattr(aggregation, "set_up_actor", lambda **kwargs: 1 / 0)
    fake.lose(fake.handles[0])
    own.add([])
    fake.sleep(fake.restart_s)
    with pytest.raises(ActorDiedError, match="ZeroDivisionError") as caught:
        own.add([])
    assert "Aggregator actor 0 is lost for good" in caught.value.__notes__[-1]
    # Whoever goes on is told again, and does not wait for it.
    with pytest.raises(RuntimeError, match=r"Ray does not restart them.*\n?.*num_aggregator_actors_per_learner=0"):
        own.add([batch(2)])


def test_without_actors_batches_are_ready_at_once_and_forgotten_batches_never_come(fake):
    alone = aggregation_of(fake, number=0)
    alone.add([batch(1)])
    assert not alone.has_actors and len(alone.ready) == 1 and fake.started == []
    own = aggregation_of(fake)
    own.add([batch(1), batch(2)])
    own.clear()
    assert list(own.on_their_way()) == [] and own.awaited() == []
    own.add([batch(3)])
    own.wait(60.0)
    own.add([])
    assert numbers(fake, own) == [3]
    own.stop()
    assert not own.has_actors and own.actors() == {}
    with pytest.raises(ActorDiedError):
        fake.get(fake.handles[0].ping.remote())
