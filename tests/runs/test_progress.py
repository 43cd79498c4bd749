"""What a run shows while it goes on."""

from __future__ import annotations

import pytest

from jaxrl_stack.runs.progress import PlainLines, eta_text
from jaxrl_stack.runs.statistics import RunStatistics, duration
from jaxrl_stack.runs.stop import Plateau, StopCriteria, StopError
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
    assert eta_text(StopCriteria(steps), result, statistics) == "ETA 8.0 s"
    assert eta_text(StopCriteria(steps | goal), result, statistics) == "ETA 8.0 s at most"
    assert eta_text(StopCriteria(steps, plateau={"patience": 9}), result, statistics) == "ETA 8.0 s at most"
    assert eta_text(StopCriteria(goal), result, statistics) == ""
    assert StopCriteria(steps).fraction(result) == 0.2 and StopCriteria(goal).fraction(result) is None


def test_a_line_has_an_eta_where_the_goal_has_one(capsys):
    statistics = RunStatistics()
    result = result_after(2, seconds=1.0, compile_s=0.0)
    statistics.update(result)
    for criteria, end in (({"training_iteration": 4}, "compile 0.0 s  ETA 1.0 s"), ({}, "compile 0.0 s")):
        PlainLines(StopCriteria(criteria)).iteration(result, statistics, is_last=True)
        assert capsys.readouterr().out.rstrip("\n").endswith(end)


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


def test_a_reason_knows_whether_it_is_a_goal():
    goal, bound = {"env_runners/episode_return_mean": 470.5}, {"training_iteration": 10}
    assert StopCriteria(goal).reached(RESULT).is_goal and not StopCriteria(bound).reached(RESULT).is_goal
    assert StopCriteria(lambda result: True).reached(RESULT).is_goal


def reason_after(returns, *, until=None, **plateau):
    """``(number of the result that ended the run, why)``; None if none did."""
    criteria = StopCriteria(until, plateau=plateau)
    for number, value in enumerate(returns, start=1):
        result = empty_result() | {"training_iteration": number, "num_env_steps_sampled_lifetime": 1000 * number}
        result["env_runners"]["episode_return_mean"] = value
        reason = criteria.reached(result)
        if reason is not None:
            return number, reason
    return None


def test_a_plateau_ends_a_run():
    nan = float("nan")
    assert reason_after([1, 2, 3, 4, 5], patience=1000) is None
    number, reason = reason_after([1, 2, 3, 3, 2.5, 2.9], patience=2000)
    assert number == 5 and not reason.is_goal
    assert reason == "env_runners/episode_return_mean has not improved over 2,000 environment steps, since 3"
    # Small steps are none, and what they add up to is.
    assert reason_after([1, 2, 3, 4, 5], patience=3, min_delta=3, x="iterations") is None
    assert reason_after([1, 2, 3, 4, 5], patience=2, min_delta=3, x="iterations")[0] == 3
    assert reason_after([3, 2, 1, 1, 1], patience=2, mode="min", x="iterations")[0] == 5
    # It counts from the first number that is known.
    assert reason_after([nan, nan, nan, nan, 1, 1], patience=2, x="training_iteration") is None
    # Of a goal and a plateau the goal is said.
    until = {"training_iteration": 3}
    assert reason_after([1, 1, 1], until=until, patience=2, x="iterations")[1].startswith("training_iteration = 3")
    assert reason_after([1, 1, 1], until=lambda result: False, patience=2, x="iterations")[0] == 3
    assert str(StopCriteria(until, plateau=Plateau(1e5, min_delta=2.5))) == (
        "training_iteration reaches 3 or env_runners/episode_return_mean has not improved by 2.5 over 100,000 "
        "environment steps"
    )


@pytest.mark.parametrize(
    ("plateau", "message"),
    [
        (5, "plateau=5: must be a Plateau, or a dict with patience"),
        ({"min_delta": 1}, "a dict with patience"),
        ({"patience": 1, "delta": 1}, "must be a Plateau, or a dict with patience"),
        ({"patience": 0}, "plateau: patience=0 must be a number above 0"),
        ({"patience": 1, "min_delta": -1}, "min_delta=-1 must be a number of at least 0"),
        ({"patience": 1, "mode": "up"}, "mode='up' must be 'max' or 'min'"),
        ({"patience": 1, "metric": "episode_reward_mean"}, "Near matches: 'env_runners/episode_return_mean'"),
        ({"patience": 1, "x": "step"}, "'step'"),
        ({"patience": 1, "metric": "evaluation/env_runners/episode_return_mean"}, "needs evaluations"),
    ],
)
def test_a_plateau_that_cannot_be_is_refused(plateau, message):
    def checked():
        criteria = StopCriteria(None, plateau=plateau)
        criteria.check_evaluation(None)
        criteria.check_names(RESULT)

    with pytest.raises(StopError, match=message):
        checked()
