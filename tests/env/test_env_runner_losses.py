"""EnvRunnerGroup: actors that fail, die, come back or do not, with the state, the counts and the messages of each."""

from __future__ import annotations

import logging

import pytest
from ray.exceptions import ActorDiedError

from envs.faulty import FaultyEnvError
from jaxrl_stack.env.env_errors import EnvRunnersRestartingError, NoHealthyEnvRunnerError
from jaxrl_stack.env.env_runner import ConsecutiveFailuresError
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.execution.rollout_ops import synchronous_parallel_sample
from jaxrl_stack.utils.waiting import LINE_S, waiting_lines
from tests.fake_actors import FakeActors
from tests.toy_runners import (
    change,
    check_dropped_if_ignored,
    check_restored,
    failing_group,
    reset_and_send,
    sample_blocks,
    toy_config,
)

NO_WEIGHTS = {"params": {}, "rest": {}}


@pytest.fixture
def fake():
    return FakeActors()


# ------------------------------------------------------------------------------------------------- failures of code


def test_a_failed_actor_is_restarted_at_once_the_first_time_then_after_the_delay_and_not_too_often(fake, caplog):
    plan = {(2, False): (2,), (2, True): (2,)}
    limits = {"delay_between_env_runner_restarts_s": 2.0, "max_num_env_runner_restarts": 2}
    group = failing_group(2, plan, backend=fake, **limits)
    group.sync_weights(weights=NO_WEIGHTS, weights_seq_no=7)
    assert sample_blocks(group, 2) == [1, 2]
    with caplog.at_level(logging.ERROR):
        assert sample_blocks(group, 4) == [1, 1, 1, 2]
    assert "EnvRunner actor 2 failed and is restarted now" in caplog.text
    assert "FaultyEnvError: sample 2 of runner 2" in caplog.text and "in sample_block" in caplog.text
    # Training goes on with the other one.
    assert group.healthy_env_runner_ids() == [1] and sample_blocks(group, 2) == [1, 1]
    assert group.probe_unhealthy_env_runners(timeout_seconds=60.0) == [2]
    calls = group.foreach_env_runner(lambda runner: runner.calls, remote_worker_ids=[2])
    assert calls == [[("state", 7), ("restarted", 1)]]
    back = fake.now()
    sample_blocks(group, 2)
    caplog.clear()
    assert sample_blocks(group, 2) == [1, 1]
    assert "EnvRunner actor 2 failed and is restarted in 2.0 s (delay_between_env_runner_restarts_s)" in caplog.text
    assert group.probe_unhealthy_env_runners(timeout_seconds=60.0) == []
    assert fake.now() == back, "waited for an actor that is not due"
    while group.num_healthy_remote_env_runners() < 2:
        assert sample_blocks(group, 2) in ([1, 1], [1, 2])
        fake.sleep(0.05)
    assert back + 2.0 < fake.now() < back + 2.0 + fake.restart_s + 1.0 and group.num_remote_worker_restarts() == 2
    calls = group.foreach_env_runner(lambda runner: runner.calls, remote_worker_ids=[2])
    assert calls == [[("state", 7), ("restarted", 2)]]
    # Two restarts are all there are.
    change(group, delay_between_env_runner_restarts_s=0.0)
    with pytest.raises(ActorDiedError) as caught:
        sample_blocks(group, 1, ids=[2])
    assert "max_num_env_runner_restarts=2" in caught.value.__notes__[-1]
    assert isinstance(caught.value.__cause__, FaultyEnvError)


@pytest.mark.parametrize(
    ("is_evaluation", "owner"), [(False, "EnvRunner actors"), (True, "Evaluation EnvRunner actors")]
)
def test_failures_in_a_row_are_counted_and_the_first_one_is_not_tolerated_at_all(fake, is_evaluation, owner):
    plan = {(1, False): (1, 3), (1, True): "all"}
    asked = {"num_consecutive_env_runner_failures_tolerance": 1, "backend": fake, "is_evaluation": is_evaluation}
    group = failing_group(1, plan, **asked)
    change(group).evaluation(evaluation_unhealthy_workers_timeout_s=30.0)
    with pytest.raises(FaultyEnvError, match="sample 1 of runner 1") as mistake:
        sample_blocks(group, 1)
    assert "(restart_failed_env_runners=True) does not apply to the first reset()" in mistake.value.__notes__[-1]
    assert group.num_healthy_remote_env_runners() == 1
    assert sample_blocks(group, 1) == [1]
    # Fails, is restarted and waited for, as there is no other, and fails again.
    with pytest.raises(ConsecutiveFailuresError, match=f"^{owner}: 2 failures in a row") as caught:
        sample_blocks(group, 1)
    assert "num_consecutive_env_runner_failures_tolerance=1" in str(caught.value)
    assert "sample 1 of runner 1" in str(caught.value) and group.num_remote_worker_restarts() == 1
    assert isinstance(caught.value.__cause__, FaultyEnvError) and "in sample_block" in str(caught.value.__cause__)


def test_a_failure_after_the_first_step_is_tolerated_although_nothing_was_sampled(fake):
    group = failing_group(2, {(1, False): (1,), (2, False): (1,)}, backend=fake, ignore_env_runner_failures=True)
    group.foreach_env_runner(lambda runner: setattr(runner, "has_stepped", True))
    assert set(sample_blocks(group, 2)) <= {1, 2} and group.num_remote_worker_restarts() > 0


def test_without_restarts_a_failure_is_raised_or_the_actor_is_dropped(fake, caplog):
    group = failing_group(2, {(2, False): (2, 3)}, backend=fake, restart_failed_env_runners=False)
    assert sample_blocks(group, 2) == [1, 2]
    with pytest.raises(FaultyEnvError, match="sample 2 of runner 2"):
        sample_blocks(group, 2)
    assert group.healthy_env_runner_ids() == [1, 2]
    change(group, ignore_env_runner_failures=True)
    assert sample_blocks(group, 2) == [1, 1]
    assert group.num_env_runners_dropped_lifetime() == 1 and group.num_remote_env_runners() == 1
    assert "EnvRunner actor 2 failed; continuing without it" in caplog.text
    with pytest.raises(ActorDiedError):
        fake.get(fake.handles[1].ping.remote())
    # A loss that only calls without an answer could show is an error, too.
    change(group, ignore_env_runner_failures=False)
    fake.lose(fake.handles[0])
    group.sync_weights(weights=NO_WEIGHTS, weights_seq_no=1)
    with pytest.raises(ActorDiedError) as caught:
        group.sync_weights(weights=NO_WEIGHTS, weights_seq_no=1)
    assert "restart_failed_env_runners=True" in caught.value.__notes__[-1]


# ------------------------------------------------------------------------------------------------------------ losses


def test_a_sample_that_is_lost_with_a_node_is_sampled_anew(fake, caplog):
    group = failing_group(2, {}, backend=fake, restart_failed_env_runners=False)
    assert sample_blocks(group, 2) == [1, 2]
    fake.lose_results(fake.handles[0])
    assert sample_blocks(group, 2) == [1, 2]
    assert "Samples of EnvRunner actor 1 are lost" in caplog.text
    assert group.num_healthy_remote_env_runners() == 2


def test_an_actor_that_is_lost_and_back_before_it_is_asked_is_noticed_when_it_samples(fake, caplog):
    group = failing_group(1, {}, backend=fake)
    group.sync_weights(weights=NO_WEIGHTS, weights_seq_no=7)
    sample_blocks(group, 1)
    fake.lose(fake.handles[0])
    fake.sleep(fake.restart_s)
    assert group.healthy_env_runner_ids() == [1] and group.num_remote_worker_restarts() == 0
    assert sample_blocks(group, 1) == [1] and group.num_remote_worker_restarts() == 1
    assert "EnvRunner actor 1 was lost and restarted between two calls." in caplog.text
    assert group.foreach_env_runner(lambda runner: runner.calls) == [[("state", 7), ("restarted", 1)]]


def test_a_slow_restart_is_waited_for_with_lines_in_the_log(fake, caplog):
    group = failing_group(1, {}, backend=fake, env_runner_health_probe_timeout_s=12.0)
    assert sample_blocks(group, 1) == [1]
    fake.restart_s = 60.0
    fake.lose(fake.handles[0])
    lost = fake.now()
    group.foreach_env_runner("ping")
    caplog.clear()
    assert group.request("sample_block", {"num_steps": 1}) == 0
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=0.5) == []
    assert fake.now() == pytest.approx(lost + 0.5)
    with pytest.raises(EnvRunnersRestartingError, match=r"env_runner_health_probe_timeout_s=12\.0"):
        sample_blocks(group, 1)
    assert fake.now() == pytest.approx(lost + 12.5)
    assert synchronous_parallel_sample(worker_set=group) == []
    change(group, env_runner_health_probe_timeout_s=90.0)
    assert sample_blocks(group, 1) == [1] and group.num_remote_worker_restarts() == 1
    assert fake.now() == pytest.approx(lost + 60.0, abs=0.2)
    lines = [line for line in caplog.messages if line.startswith("Waiting for")]
    assert len(lines) == int(60.0 / LINE_S) - 1
    has_room = "the cluster has the resources, and the process starts."
    assert lines[0] == f"Waiting for 1 EnvRunner actor for 10 s: {has_room}" and waiting_lines() == []


def test_a_group_that_is_stopped_waits_for_nothing(fake):
    group = failing_group(1, {}, backend=fake, env_runner_health_probe_timeout_s=12.0)
    sample_blocks(group, 1)
    fake.restart_s = 60.0
    fake.lose(fake.handles[0])
    group.foreach_env_runner("ping")
    with pytest.raises(EnvRunnersRestartingError):
        sample_blocks(group, 1)
    assert len(waiting_lines()) == 1
    group.stop()
    assert waiting_lines() == []


def test_nothing_is_waited_for_when_all_are_lost_for_good(fake):
    group = failing_group(2, {}, backend=fake, restart_failed_env_runners=False, ignore_env_runner_failures=True)
    assert sample_blocks(group, 2) == [1, 2]
    for handle in fake.handles:
        fake.lose(handle)
    with pytest.raises(NoHealthyEnvRunnerError, match="2 were lost for good"):
        sample_blocks(group, 2)
    assert group.num_env_runners_dropped_lifetime() == 2 and fake.now() == 0.0


def test_what_a_lost_runner_was_asked_for_is_asked_of_the_others(fake):
    group = failing_group(2, {}, backend=fake)
    sample_blocks(group, 2)
    fake.delay(fake.handles[0], 9.0)
    assert group.request("sample_block", {"num_steps": 1}) == 2
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=1.0) == [2]
    fake.lose(fake.handles[0])
    # A lost one has answered, too, but gives no result.
    assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=None) == []
    assert group.healthy_env_runner_ids() == [2] and group.request("sample_block", {"num_steps": 1}) == 1
    assert fake.now() < 1.0


def test_a_restarted_runner_gets_weights_and_connector_states_again_and_a_dead_one_is_an_error(fake):
    recreated = []
    group = EnvRunnerGroup(
        config=toy_config(max_num_env_runner_restarts=1),
        env_runner_kwargs={"config": None},
        on_env_runners_recreated=lambda group, ids: recreated.append(ids),
        backend=fake,
    )
    reset_and_send(group)
    fake.lose(fake.handles[1])
    # Whatever was asked of it is asked of the others.
    assert sample_blocks(group, 4, num_steps=1)[0][0] == 1 and group.healthy_env_runner_ids() == [1]
    assert group.probe_unhealthy_env_runners(timeout_seconds=60.0) == [2]
    assert group.sampling_ids() == [1, 2] and group.num_remote_worker_restarts() == 1 and recreated == [[2]]
    check_restored(group, 2)
    # max_num_env_runner_restarts=1 are used up.
    fake.lose(fake.handles[1])
    with pytest.raises(ActorDiedError) as caught:
        group.foreach_env_runner("ping")
    assert "max_num_env_runner_restarts=1" in caught.value.__notes__[-1]
    check_dropped_if_ignored(group)


def test_an_actor_that_cannot_be_built_is_an_error_with_its_traceback(fake):
    with pytest.raises(ActorDiedError, match="LookupError: no such environment") as caught:
        EnvRunnerGroup(
            config=toy_config(),
            local_env_runner=False,
            num_env_runners=1,
            env_runner_kwargs={"config": None, "broken": 1},
            backend=fake,
        )
    closing = "EnvRunner actor 1 could not be built, or is not healthy: LookupError: no such environment"
    assert caught.value.__notes__[-1] == closing
