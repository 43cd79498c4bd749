"""Offline evaluation by Ray actors that stall, or die for good."""

from __future__ import annotations

import os
import signal
import time

import pytest
from offline_cases import evaluated_by_two_actors, recorded, write

from jaxrl_stack.core import ALL_MODULES


@pytest.fixture
def build(ray_session, tmp_path):
    """Algorithms with two actors; ``build(**evaluation)``."""
    built = []

    def make(**evaluation):
        folder = write(tmp_path / "data", recorded(0))
        algo = evaluated_by_two_actors(folder, **evaluation).build_algo()
        built.append(algo)
        return algo

    yield make
    for algo in built:
        algo.stop()


def process_ids(algo):
    return algo.offline_eval_runner_group.foreach_runner(lambda runner: os.getpid())


def raised_within(seconds, function):
    """What a function raises that is called until it does."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            function()
        except Exception as error:
            return error
    pytest.fail(f"nothing was raised within {seconds} s")


def num_runs(result):
    return result["offline_eval_runners"][ALL_MODULES]["dataset_num_iters_evaluated"]


def test_one_that_stalls_is_not_waited_for_and_one_that_dies_is_left_out(build, caplog):
    algo = build(
        offline_evaluation_timeout_s=4.0,
        restart_failed_offline_eval_runners=False,
        ignore_offline_eval_runner_failures=True,
    )
    assert num_runs(algo.evaluate_offline()) == 2
    stalled = process_ids(algo)[0]
    os.kill(stalled, signal.SIGSTOP)
    try:
        assert num_runs(algo.evaluate_offline()) == 1
    finally:
        os.kill(stalled, signal.SIGCONT)
    assert "was stopped after 4.0 s without an answer of its actors" in caplog.text
    os.kill(stalled, signal.SIGKILL)
    until = time.monotonic() + 60
    while (result := algo.evaluate_offline())["num_healthy_offline_eval_runners"] == 2:
        assert time.monotonic() < until
    assert "Offline evaluation actor 1 is lost; continuing without it." in caplog.text
    assert algo.offline_eval_runner_group.num_runners == 1 and num_runs(algo.evaluate_offline()) == 1
    assert result["num_remote_offline_eval_runners_restarts"] == 0


def test_one_that_died_too_often_is_an_error_that_names_the_settings(build):
    algo = build(max_num_offline_eval_runner_restarts=0)
    os.kill(process_ids(algo)[0], signal.SIGKILL)
    note = "; ".join(raised_within(60.0, algo.evaluate_offline).__notes__)
    assert (
        "Offline evaluation actor 1 is lost for good: it died more often than max_num_offline_eval_runner_restarts=0"
        in note
    )
    assert note.count("Set evaluation(ignore_offline_eval_runner_failures=True) to go on without it.") == 1
