"""Groups that evaluate on recorded data: calls, states, and actors that are lost, restarted or left out."""

from __future__ import annotations

import pytest
from ray.exceptions import ActorDiedError

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.offline.offline_evaluation_runner_group import STOP_TIMEOUT_S, OfflineEvaluationRunnerGroup
from tests.fake_actors import FakeActors, work


class ToyRunner(OfflineEvaluationRunner):
    """Remembers the states that it got; its runs have numbers."""

    def __init__(self, config, *, worker_index, num_workers, broken=0, **kwargs):
        if worker_index == broken:
            raise LookupError("no such data")
        self.worker_index, self.num_workers = worker_index, num_workers
        self.state, self.num_runs = {}, 0

    def run(self):
        self.num_runs += 1
        return self.worker_index, self.num_runs

    def assert_healthy(self):
        pass

    def set_state(self, state):
        if state.get("bad") == self.worker_index:
            raise ValueError("unknown part 'bad'")
        self.state = dict(state)

    def stop(self):
        work(100.0)


@pytest.fixture
def fake():
    return FakeActors()


def group_of(fake, *, broken=0, on_recreated=None, **evaluation):
    config = BCConfig().evaluation(offline_eval_runner_class=ToyRunner, num_offline_eval_runners=2, **evaluation)
    return OfflineEvaluationRunnerGroup(
        config, backend=fake, runner_kwargs={"broken": broken}, on_recreated=on_recreated
    )


def state_of(group):
    return group.foreach_runner(lambda runner: runner.state)


def test_runs_are_asked_of_those_with_room_and_come_as_they_are_done(fake):
    group = group_of(fake)
    assert [options["max_restarts"] for _, options in fake.started] == [1000, 1000]
    fake.delay(fake.handles[0], 2.0)
    assert group.request_runs(1) == 1 and group.request_runs(5) == 1 and group.request_runs(5) == 0
    assert group.fetch_runs(1.0) == [(2, 1)] and group.num_in_flight_async_reqs == 1
    assert group.fetch_runs(1.0) == [] and group.fetch_runs(5.0) == [(1, 1)] and fake.now() == 2.0
    group.request_runs(2)
    group.forget_runs()
    assert group.num_in_flight_async_reqs == 0 and group.fetch_runs(5.0) == []


def test_a_lost_actor_comes_back_with_the_newest_state_and_its_runs_are_gone(fake):
    back = []
    group = group_of(fake, on_recreated=lambda group, ids: back.append(ids))
    group.set_state({"weights_seq_no": 1})
    group.set_state({"weights_seq_no": 2})
    assert group.request_runs(2) == 2
    fake.lose(fake.handles[0])
    # It has answered: with its loss.
    assert group.fetch_runs(5.0) == [(2, 1)] and group.num_in_flight_async_reqs == 0
    assert group.healthy_runner_ids == [2] and group.request_runs(5) == 1
    assert group.probe_unhealthy_runners(timeout_seconds=0.0) == [] and back == []
    assert group.probe_unhealthy_runners() == [1] and back == [[1]]
    assert group.num_remote_runner_restarts == 1 and group.num_healthy_remote_runners == 2
    assert state_of(group) == [{"weights_seq_no": 2}] * 2


def test_an_actor_that_is_back_and_cannot_take_the_state_over_is_an_error(fake):
    group = group_of(fake)
    group.set_state({"weights_seq_no": 1})
    fake.lose(fake.handles[1])
    assert group.foreach_runner("ping") == ["pong"]
    group.set_state({"bad": 2})
    with pytest.raises(ValueError, match="unknown part 'bad'"):
        group.probe_unhealthy_runners(timeout_seconds=5.0)
    assert group.healthy_runner_ids == [1]


def test_without_restarts_a_loss_is_an_error_or_the_others_go_on(fake, caplog):
    group = group_of(fake, restart_failed_offline_eval_runners=False)
    assert [options["max_restarts"] for _, options in fake.started] == [0, 0]
    fake.lose(fake.handles[0])
    with pytest.raises(ActorDiedError) as caught:
        group.foreach_runner("ping")
    assert caught.value.__notes__[-1] == (
        "Offline evaluation actor 1 is lost. Set evaluation(restart_failed_offline_eval_runners=True) to start it "
        "again, or ignore_offline_eval_runner_failures=True to go on without it."
    )
    group.config.evaluation(ignore_offline_eval_runner_failures=True)
    assert group.foreach_runner("ping", remote_runner_ids=[2]) == ["pong"]
    fake.lose(fake.handles[1])
    assert group.foreach_runner("ping") == [] and group.num_dropped == 1 and group.num_runners == 1
    assert "Offline evaluation actor 2 is lost; continuing without it." in caplog.messages


def test_what_a_runner_raises_is_raised_or_logged(fake, caplog):
    group = group_of(fake)
    with pytest.raises(ValueError, match="unknown part 'bad'"):
        group.set_state({"bad": 1})
    group.config.evaluation(ignore_offline_eval_runner_failures=True)
    group.set_state({"bad": 1})
    assert caplog.messages[-1].startswith("Offline evaluation actor 1 failed: ")
    assert state_of(group) == [{}, {"bad": 1}] and group.num_healthy_remote_runners == 2


def test_an_actor_that_cannot_be_built_is_an_error_with_its_traceback(fake):
    with pytest.raises(ActorDiedError, match="LookupError: no such data") as caught:
        group_of(fake, broken=2)
    note = "Offline evaluation actor 2 could not be built, or is not healthy: LookupError: no such data"
    assert caught.value.__notes__[-1] == note


def test_actors_that_do_not_stop_are_ended(fake):
    group = group_of(fake)
    group.stop()
    group.stop()
    assert fake.now() == STOP_TIMEOUT_S and group.num_runners == 0
    with pytest.raises(ActorDiedError):
        fake.get(fake.handles[0].ping.remote())
