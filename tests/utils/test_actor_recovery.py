"""Losses of actors of any role: restarts, drops, returns, and the same messages for all."""

from __future__ import annotations

import logging
import pathlib

import pytest
from ray.exceptions import ActorDiedError

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.utils.actor_backend import start_actors
from jaxrl_stack.utils.actor_manager import FaultAwareApply, FaultTolerantActorManager
from jaxrl_stack.utils.actor_recovery import ActorRecovery, Restarts
from jaxrl_stack.utils.consecutive_failures import ConsecutiveFailuresError
from jaxrl_stack.utils.loss_policy import LossPolicy
from tests import remote_scorer
from tests.fake_actors import FakeActors, work
from tests.remote_scorer import Scorers


class Actor(FaultAwareApply):
    """Has a state, and fails when told to."""

    def __init__(self, broken=False):
        if broken:
            raise LookupError("no such data")
        self.state = None

    def set_state(self, state):
        self.state = state

    def fail(self):
        raise KeyError("told to")

    def stop(self):
        work(1.0)


def pool_of(policy, number=2, **arguments):
    """A pool, what recovers its actors, and their backend."""
    fake = FakeActors()
    restarts = policy.restarts_of_each
    handles = start_actors(Actor, [arguments] * number, options={}, max_restarts=restarts, backend=fake)
    pool = FaultTolerantActorManager(handles, init_id=1, backend=fake)
    return pool, ActorRecovery(pool, lambda: policy), fake


def lose(pool, fake, actor_id=1):
    """The outcome of a call of an actor that was lost."""
    fake.lose(pool.actors()[actor_id])
    return pool.foreach_actor("ping", remote_actor_ids=[actor_id])


def test_policies_are_read_from_the_settings_of_their_role():
    config = BCConfig().fault_tolerance(
        restart_failed_env_runners=False,
        ignore_env_runner_failures=True,
        delay_between_env_runner_restarts_s=3.0,
        num_consecutive_env_runner_failures_tolerance=5,
        env_runner_health_probe_timeout_s=7.0,
    )
    config.evaluation(max_num_offline_eval_runner_restarts=4, offline_eval_runner_restore_timeout_s=2.0)
    of_runners = LossPolicy.of(config, "EnvRunner")
    assert of_runners == LossPolicy("EnvRunner", False, 1000, 3.0, True, 5, 7.0, 1800.0, {"CPU": 1.0})
    assert of_runners.restarts_of_each == 0
    offline = LossPolicy.of(config, "offline evaluation")
    assert offline == LossPolicy(
        "offline evaluation", True, 4, probe_timeout_s=30.0, restore_timeout_s=2.0, resources={"CPU": 1.0}
    )
    assert offline.restarts_of_each == 4


@pytest.mark.parametrize(
    ("role", "name", "method", "restarts", "ignores", "limit"),
    [
        (
            "EnvRunner",
            "EnvRunner actor 1",
            "fault_tolerance",
            "restart_failed_env_runners",
            "ignore_env_runner_failures",
            "max_num_env_runner_restarts",
        ),
        (
            "evaluation EnvRunner",
            "Evaluation EnvRunner actor 1",
            "fault_tolerance",
            "restart_failed_env_runners",
            "ignore_env_runner_failures",
            "max_num_env_runner_restarts",
        ),
        (
            "offline evaluation",
            "Offline evaluation actor 1",
            "evaluation",
            "restart_failed_offline_eval_runners",
            "ignore_offline_eval_runner_failures",
            "max_num_offline_eval_runner_restarts",
        ),
    ],
)
def test_a_loss_that_is_an_error_names_the_settings_of_its_role(role, name, method, restarts, ignores, limit):
    pool, recovery, fake = pool_of(LossPolicy(role, max_restarts=1))
    assert recovery.answers(lose(pool, fake)) == []
    fake.sleep(fake.restart_s)
    assert recovery.take_back() == [1]
    with pytest.raises(ActorDiedError) as caught:
        recovery.answers(lose(pool, fake))
    assert caught.value.__notes__[-1] == (
        f"{name} is lost for good: it died more often than {limit}=1, or could not be built again. Set "
        f"{method}({ignores}=True) to go on without it."
    )
    pool, recovery, fake = pool_of(LossPolicy(role, restarts=False))
    with pytest.raises(ActorDiedError) as caught:
        recovery.answers(lose(pool, fake))
    assert caught.value.__notes__[-1] == (
        f"{name} is lost. Set {method}({restarts}=True) to start it again, or {ignores}=True to go on without it."
    )


def test_a_role_without_settings_has_messages_without_them():
    pool, recovery, fake = pool_of(LossPolicy("aggregator", max_restarts=0, tolerance=1))
    with pytest.raises(ActorDiedError) as caught:
        recovery.answers(lose(pool, fake))
    note = "Aggregator actor 1 is lost for good: it died more often than max_restarts=0, or could not be built again."
    assert caught.value.__notes__[-1] == note
    recovery.count_failure(KeyError("x"))
    with pytest.raises(ConsecutiveFailuresError, match=r"More than tolerance=1 are not tolerated\.$"):
        recovery.count_failure(KeyError("y"))


def test_an_actor_that_is_lost_for_good_is_dropped_where_losses_are_ignored(caplog):
    pool, recovery, fake = pool_of(LossPolicy("EnvRunner", restarts=False, ignores=True))
    assert recovery.answers(lose(pool, fake)) == []
    assert pool.actor_ids() == [2] and recovery.num_dropped == 1
    assert caplog.messages[-1] == "EnvRunner actor 1 is lost; continuing without it."
    # Likewise if a call that was not waited for, or a probe, finds it out.
    fake.lose(pool.actors()[2])
    pool.foreach_actor("ping", timeout_seconds=0.0)
    assert recovery.answers(pool.foreach_actor("ping")) == [] and pool.actor_ids() == []


def test_an_actor_that_is_back_gets_the_state_of_the_lost_one_before_it_counts_as_healthy():
    pool, recovery, fake = pool_of(LossPolicy("EnvRunner", probe_timeout_s=5.0))

    def restore(ids):
        assert pool.healthy_actor_ids() == [2]
        calls = pool.foreach_actor(
            "set_state", kwargs={"state": "newest"}, remote_actor_ids=ids, healthy_only=False, timeout_seconds=1.0
        )
        return [actor_id for actor_id, _ in recovery.answers(calls)]

    assert recovery.take_back(restore=restore) == []
    lose(pool, fake)
    assert recovery.take_back(0.0, restore) == [] and pool.healthy_actor_ids() == [2]
    assert recovery.take_back(restore=restore) == [1] and fake.now() < 1.0
    assert [call.get() for call in pool.foreach_actor(lambda actor: actor.state)] == ["newest", None]
    assert pool.total_num_restarts() == 1
    # One that cannot take the state over in time is asked again later.
    lose(pool, fake)
    fake.sleep(fake.restart_s)
    fake.delay(pool.actors()[1], 0.0, 3.0)  # of the ping, of the state
    assert recovery.take_back(5.0, restore) == [] and recovery.take_back(5.0, restore) == [1]


def test_failing_code_is_raised_or_logged(caplog):
    pool, recovery, _ = pool_of(LossPolicy("offline evaluation"))
    with pytest.raises(KeyError, match="told to") as caught:
        recovery.answers(pool.foreach_actor(["ping", "fail"]))
    assert caught.value.__notes__ == ["In actor 2."]
    pool, recovery, _ = pool_of(LossPolicy("offline evaluation", ignores=True))
    assert recovery.answers(pool.foreach_actor(["ping", "fail"])) == [(1, "pong")]
    assert caplog.messages[-1].startswith("Offline evaluation actor 2 failed: ") and pool.num_healthy_actors() == 2


def test_an_actor_that_cannot_be_built_is_an_error_whatever_is_ignored():
    _, recovery, _ = pool_of(LossPolicy("offline evaluation", ignores=True), broken=True)
    with pytest.raises(ActorDiedError) as caught:
        recovery.constructed("ping")
    note = "Offline evaluation actor 1 could not be built, or is not healthy: LookupError: no such data"
    assert caught.value.__notes__[-1] == note


class Named:
    """Has arguments of names that those who start it use, too."""

    def __init__(self, cls, options):
        self.given = (cls, options)

    def get(self):
        return self.given


def test_arguments_of_an_actor_may_have_any_name():
    fake = FakeActors()
    (actor,) = start_actors(Named, [{"cls": "a", "options": "b"}], options={}, max_restarts=0, backend=fake)
    assert fake.get(actor.get.remote()) == ("a", "b")


def test_all_actors_are_ended_after_those_that_answer_have_stopped():
    pool, recovery, fake = pool_of(LossPolicy("EnvRunner"))
    recovery.answers(lose(pool, fake))
    handles = pool.actors()
    pool.stop(5.0)
    assert pool.num_actors() == 0 and fake.now() == 1.0
    for handle in handles.values():
        with pytest.raises(ActorDiedError):
            fake.get(handle.ping.remote())


def test_when_restarts_are_due():
    fake = FakeActors()
    fake.sleep(100.0)
    restarts = Restarts(fake)
    assert restarts.schedule(2, 60.0) == 0.0 and restarts.take_due() == [2] and not restarts.is_pending(2)
    restarts.note(2)
    fake.sleep(10.0)
    assert restarts.schedule(2, 60.0) == 50.0 and restarts.take_due() == []
    assert restarts.is_pending(2) and restarts.first_due() == 160.0
    fake.sleep(50.0)
    assert restarts.take_due() == [2] and restarts.num_of(2) == 1 and restarts.num_of(1) == 0
    assert restarts.schedule(1, 60.0) == 0.0


# ------------------------------------------------------------------------------------------- another kind of actor


def test_another_kind_of_actor_is_a_short_file(caplog):
    assert len(pathlib.Path(remote_scorer.__file__).read_text().splitlines()) <= 40
    fake = FakeActors(restart_s=0.2)
    scorers = Scorers(2, fake)
    texts = ["a", "bb", "ccc", "dddd", "eeeee"]
    expected = {text: len(text) for text in texts}
    assert scorers.scores(texts) == expected
    # What a lost one had is scored by the others, and by itself when it is back.
    fake.delay(fake.handles[0], 60.0)
    fake.stall(fake.handles[1], 2.0)
    with caplog.at_level(logging.WARNING):
        fake.lose(fake.handles[0])
        assert scorers.scores(texts) == expected
    assert fake.now() < 60.0 and "Lost actor 1" in caplog.text
    fake.lose(fake.handles[0])
    with pytest.raises(ActorDiedError) as caught:
        scorers.scores(texts)
    assert "Scorer actor 1 is lost for good: it died more often than max_restarts=1" in caught.value.__notes__[-1]
    scorers.stop()
