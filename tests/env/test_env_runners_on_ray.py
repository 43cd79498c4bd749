"""EnvRunners in Ray's actors whose processes are killed, or fail: what their group and training do then."""

from __future__ import annotations

import os
import signal
import sys
import time

import jax
import numpy as np
import pytest

from envs.faulty import CrashingEnv, FaultyEnvError
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.env_errors import EnvRunnersRestartingError
from jaxrl_stack.env.env_runner import ConsecutiveFailuresError
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.execution.rollout_ops import synchronous_parallel_sample
from jaxrl_stack.utils import waiting
from jaxrl_stack.utils.counters import to_int
from jaxrl_stack.utils.seeds import derived_seed
from tests import toy_runners
from tests.pickled_by_value import pickled_by_value
from tests.toy_runners import (
    change,
    check_dropped_if_ignored,
    check_restored,
    failing_group,
    reset_and_send,
    sample_blocks,
    toy_config,
)


@pytest.fixture(scope="module", autouse=True)
def by_value(ray_session):
    """These modules travel to actors, which cannot import them."""
    with pickled_by_value(ray_session, sys.modules[__name__], toy_runners):
        yield


def over_and_over(function):
    """Give what happened meanwhile the time to be noticed."""
    for _ in range(600):
        function()
        time.sleep(0.05)


def own_handle(runner):
    import ray

    return ray.get_runtime_context().current_actor


def lose_all(group):
    for pid in group.foreach_env_runner(lambda runner: os.getpid(), local_env_runner=False):
        os.kill(pid, signal.SIGKILL)
    while group.num_healthy_remote_env_runners():
        group.foreach_env_runner("ping", local_env_runner=False)


@pytest.fixture(scope="module")
def group(ray_session):
    recreated = []
    # Actors without the real config need not import what it consists of.
    group = EnvRunnerGroup(
        config=toy_config(max_num_env_runner_restarts=1),
        env_runner_kwargs={"config": None},
        on_env_runners_recreated=lambda group, ids: recreated.append(ids),
    )
    group.recreated = recreated
    yield group
    group.stop()


def test_a_restarted_runner_gets_weights_and_connector_states_again_and_a_dead_one_is_an_error(group, ray_session):
    reset_and_send(group)
    pid = group.foreach_env_runner("pid", local_env_runner=False)[1]
    os.kill(pid, signal.SIGKILL)
    # Whatever was asked of it is asked of the others.
    assert len(sample_blocks(group, 4, num_steps=1, timeout_seconds=60.0)) == 4
    group.probe_unhealthy_env_runners(timeout_seconds=60.0)
    assert group.sampling_ids() == [1, 2]
    assert group.healthy_env_runner_ids() == [1, 2] and group.num_remote_worker_restarts() == 1
    assert group.recreated == [[2]]
    assert group.foreach_env_runner("pid", local_env_runner=False)[1] != pid
    check_restored(group, 2)
    # max_num_env_runner_restarts=1 are used up.
    os.kill(group.foreach_env_runner("pid", local_env_runner=False)[1], signal.SIGKILL)
    with pytest.raises(ray_session.exceptions.ActorDiedError) as caught:
        over_and_over(lambda: group.foreach_env_runner("ping"))
    assert "max_num_env_runner_restarts=1" in caught.value.__notes__[-1]
    check_dropped_if_ignored(group)


def test_an_actor_that_cannot_be_built_is_an_error_with_its_traceback(ray_session):
    with pytest.raises(ray_session.exceptions.ActorDiedError, match="LookupError: no such environment") as caught:
        EnvRunnerGroup(
            config=toy_config(),
            local_env_runner=False,
            num_env_runners=1,
            env_runner_kwargs={"config": None, "broken": 1},
        )
    closing = "EnvRunner actor 1 could not be built, or is not healthy: LookupError: no such environment"
    assert caught.value.__notes__[-1] == closing


def test_an_actor_that_is_lost_and_back_before_it_is_asked_is_noticed_when_it_samples(ray_session):
    group = failing_group(1, {})
    try:
        group.sync_weights(weights={"params": {}, "rest": {}}, weights_seq_no=7)
        sample_blocks(group, 1)
        (pid,) = group.foreach_env_runner(lambda runner: os.getpid())
        (actor,) = group.foreach_env_runner(own_handle)
        os.kill(pid, signal.SIGKILL)
        new = pid
        while new == pid:
            try:
                new = ray_session.get(actor.apply.remote(lambda runner: os.getpid()))
            except ray_session.exceptions.ActorUnavailableError:
                time.sleep(0.05)
        assert group.healthy_env_runner_ids() == [1] and group.num_remote_worker_restarts() == 0
        assert sample_blocks(group, 1) == [1] and group.num_remote_worker_restarts() == 1
        assert group.foreach_env_runner(lambda runner: runner.calls) == [[("state", 7), ("restarted", 1)]]
    finally:
        group.stop()


def test_failures_in_a_row_are_counted_and_the_first_one_is_not_tolerated_at_all():
    group = failing_group(1, {(1, False): (1, 3), (1, True): "all"}, num_consecutive_env_runner_failures_tolerance=1)
    try:
        with pytest.raises(FaultyEnvError, match="sample 1 of runner 1") as mistake:
            sample_blocks(group, 1)
        assert "(restart_failed_env_runners=True) does not apply to the first reset()" in mistake.value.__notes__[-1]
        assert group.num_healthy_remote_env_runners() == 1
        assert sample_blocks(group, 1) == [1]
        # Fails, is restarted and waited for, as there is no other, and fails again.
        with pytest.raises(ConsecutiveFailuresError, match="2 failures in a row") as caught:
            sample_blocks(group, 1)
        assert "num_consecutive_env_runner_failures_tolerance=1" in str(caught.value)
        assert "sample 1 of runner 1" in str(caught.value) and group.num_remote_worker_restarts() == 1
        assert isinstance(caught.value.__cause__, FaultyEnvError) and "in sample_block" in str(caught.value.__cause__)
    finally:
        group.stop()


def test_a_killed_process_that_only_calls_without_an_answer_could_show_is_an_error(ray_session):
    group = failing_group(1, {}, restart_failed_env_runners=False)
    try:
        assert sample_blocks(group, 1) == [1]
        (pid,) = group.foreach_env_runner(lambda runner: os.getpid())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ray_session.exceptions.ActorDiedError) as caught:
            over_and_over(lambda: group.sync_weights(weights={"params": {}, "rest": {}}, weights_seq_no=1))
        assert "restart_failed_env_runners=True" in caught.value.__notes__[-1]
    finally:
        group.stop()


def test_a_slow_restart_is_waited_for_with_lines_in_the_log(ray_session, caplog, monkeypatch):
    monkeypatch.setattr(waiting, "LINE_S", 0.2)
    group = failing_group(1, {"restart_s": 3.0}, env_runner_health_probe_timeout_s=0.5)
    try:
        assert sample_blocks(group, 1) == [1]
        lose_all(group)
        caplog.clear()
        assert group.request("sample_block", {"num_steps": 1}) == 0
        assert group.collect("sample_block", {"num_steps": 1}, timeout_seconds=0.5) == []
        with pytest.raises(EnvRunnersRestartingError, match=r"env_runner_health_probe_timeout_s=0\.5"):
            sample_blocks(group, 1)
        assert synchronous_parallel_sample(worker_set=group) == []
        lines = [line for line in caplog.messages if line.startswith("Waiting for 1 EnvRunner actor")]
        assert 2 <= len(lines) <= 9 and lines[0].endswith("the cluster has the resources, and the process starts.")
        change(group, env_runner_health_probe_timeout_s=60.0)
        assert sample_blocks(group, 1) == [1] and group.num_remote_worker_restarts() == 1
    finally:
        group.stop()


def filter_count(runner):
    """Number of observations that the runner's filter has seen."""
    state = runner.get_state("env_to_module_connector")["env_to_module_connector"]["MeanStdFilter"]["default_policy"]
    return to_int(state["base"]["obs"]["count"]) + to_int(state["delta"]["obs"]["count"])


def test_training_goes_on_when_processes_die_and_counts_everything_once(ray_session):
    algo = (
        PPOConfig()
        .environment(CrashingEnv, env_config={"how": "kill", "after": 25, "worker_index": 2, "recreated": False})
        .env_runners(
            num_env_runners=2,
            num_cpus_per_env_runner=0.25,
            num_envs_per_env_runner=1,
            rollout_fragment_length=10,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=3)
        .build_algo()
    )
    group = algo.env_runner_group
    try:
        for iteration in range(1, 4):
            result = algo.train()
            assert result["num_env_steps_sampled_lifetime"] == 40 * iteration
            assert filter_count(algo.env_runner) == 40 * iteration
            assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
            assert result["env_runners"]["episode_len_mean"] == 10
        group.probe_unhealthy_env_runners(timeout_seconds=60.0)
        assert group.num_remote_worker_restarts() == 1
        algo.train()
        weights = group.foreach_env_runner("get_state", kwargs={"components": "rl_module"})
        assert len(weights) == 3
        for other in weights[1:]:
            jax.tree.map(np.testing.assert_array_equal, weights[0], other)
        seeds = group.foreach_env_runner(lambda runner: runner.env.envs[0].seeds, local_env_runner=False)
        assert seeds == [[derived_seed("environment", 3, 1, 0, 0, 0)], [derived_seed("environment", 3, 2, 1, 0, 0)]]
        # What was sampled outlives its runner, also where only learners are to see it.
        block = sample_blocks(group, 1, keep_remote=True)[0]
        assert isinstance(block.part.reference, ray_session.ObjectRef)
        lose_all(group)
        assert block.experience.modules[DEFAULT_MODULE_ID]["rewards"].shape == (block.num_env_steps, 1)
    finally:
        algo.stop()
