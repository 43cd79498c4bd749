"""What a run shows while it goes on."""

from __future__ import annotations

import pytest

from jaxrl_stack.runs.progress import eta_text
from jaxrl_stack.runs.statistics import RunStatistics, duration
from jaxrl_stack.runs.stop import StopCriteria, StopError
from jaxrl_stack.utils.results import empty_result


def result_after(iterations: int, *, seconds: float, compile_s: float) -> dict:
    return {
        "training_iteration": iterations,
        "num_env_steps_sampled_lifetime": 1000 * iterations,
        "time_total_s": seconds * iterations,
        "time_this_iter_s": seconds,
        "timers": {"compile_s": compile_s},
        "env_runners": {"episode_return_mean": 10.0},
    }


def test_speed_and_eta_leave_compilation_out():
    statistics = RunStatistics()
    statistics.update(result_after(1, seconds=5.0, compile_s=4.0))
    statistics.update(result_after(2, seconds=1.0, compile_s=0.0))
    assert statistics.steps_per_second == statistics.steps_per_second_overall == 1000.0
    assert (statistics.compile_seconds, statistics.steady_seconds) == (4.0, 2.0)
    result = result_after(2, seconds=1.0, compile_s=0.0)
    steps, goal = {"num_env_steps_sampled_lifetime": 10_000}, {"env_runners/episode_return_mean": 475}
    assert eta_text(StopCriteria(steps), result, statistics) == "8.0 s"
    assert eta_text(StopCriteria(steps | goal), result, statistics) == "8.0 s at most"
    assert eta_text(StopCriteria(goal), result, statistics) == "unknown"
    assert StopCriteria(steps).fraction(result) == 0.2 and StopCriteria(goal).fraction(result) is None


@pytest.mark.parametrize(("seconds", "text"), [(0.04, "0.0 s"), (59.94, "59.9 s"), (187, "3:07"), (3600, "1:00:00")])
def test_duration(seconds, text):
    assert duration(seconds) == text


RESULT = empty_result() | {"training_iteration": 10, "num_env_steps_sampled_lifetime": 2**40, "config": {"lr": 1.0}}
RESULT["env_runners"]["episode_return_mean"] = 470.5


@pytest.mark.parametrize(
    ("criteria", "reached"),
    [
        (None, None),
        ({}, None),
        ({"env_runners/episode_return_mean": 471}, None),
        ({"env_runners/episode_return_mean": 470.5}, "env_runners/episode_return_mean = 470.5 has reached 470.5"),
        ({("env_runners", "episode_return_mean"): 475, "training_iteration": 10}, "training_iteration = 10"),
        ({"num_env_steps_sampled_lifetime": 1e6}, "num_env_steps_sampled_lifetime"),
        # Not yet known.
        ({"env_runners/episode_len_mean": -1e9}, None),
    ],
)
def test_the_first_goal_that_is_reached_is_said(criteria, reached):
    reason = StopCriteria(criteria).reached(RESULT)
    assert reason is None if reached is None else reason.startswith(reached)


@pytest.mark.parametrize(
    ("criteria", "message"),
    [
        ({"env_runners/episode_return_maen": 475}, "'env_runners/episode_return_mean'"),
        ({"episode_return_mean": 475}, "'env_runners/episode_return_mean'"),
        ({"episode_reward_mean": 475}, "Near matches: 'env_runners/episode_return_mean'"),
        ({"timesteps_total": 475}, "'num_env_steps_sampled_lifetime'"),
        ({"training_iterations": 5}, "'training_iteration'"),
        ({"env_runners": 5}, "env_runners/episode_return_mean.*dict"),
        ({"date": 5}, "str"),
        ({"training_iteration": "10"}, "'training_iteration' has the bound '10', which must be a number"),
        ({"training_iteration": float("nan")}, "must be a number"),
        # A goal that is reached hides no mistake in the next one.
        ({"training_iteration": 1, "trainig_iteration": 1}, "'trainig_iteration'"),
    ],
)
def test_a_goal_that_results_do_not_hold_is_named_with_those_that_are_near(criteria, message):
    with pytest.raises(StopError, match=f"until: .*{message}"):
        StopCriteria(criteria).reached(RESULT)
