"""What the numbers of a run say, rule by rule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxrl_stack.runs import diagnoses as rules
from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.diagnoses import RULES, Numbers, diagnoses
from jaxrl_stack.runs.history import History

COUNT = 20
RISING = [10.0 * i for i in range(COUNT)]
LEARNED = [*RISING[:15], *[150.0] * 5]
FLAT = [20.0 + (-1.0) ** i for i in range(COUNT)]
MODULE = "learners/default_policy"
NORM = "gradients_default_optimizer_global_norm"


def history(**columns: object) -> History:
    """A run with a column for each name: a number for all iterations, or a list. Others are as of a run that learns."""
    healthy = {"vf_explained_var": 0.9, "entropy": 0.5, "mean_kl_loss": 0.01, "vf_loss": 1.0, "total_loss": 1.0}
    learner = {**healthy, **{name: value for name, value in columns.items() if name not in ("returns", "timers")}}
    returns = columns.get("returns", LEARNED)
    table = History()
    for i in range(COUNT):
        at = {name: value[i] if isinstance(value, list) else value for name, value in learner.items()}
        table.append(
            {
                "env_runners": {} if returns is None else {"episode_return_mean": returns[i]},
                "learners": {"__all_modules__": {"steps": 1}, "default_policy": at},
                "num_env_steps_sampled_lifetime": 1000 * (i + 1),
                "time_this_iter_s": 1.0,
                "timers": columns.get("timers", {"compile_s": 0.0, "host_s": 0.1}),
            }
        )
    return table


def late(value: float, first: float) -> list[float]:
    """A column that changes in the middle of the run."""
    return [first] * (COUNT // 2) + [value] * (COUNT - COUNT // 2)


def test_a_run_that_learns_has_no_findings():
    assert diagnoses(history(), {"vf_clip_param": 10.0, "kl_target": 0.01, "grad_clip": None}) == []


SPIKES = [1.0] * (COUNT - 1) + [50.0]
COLLAPSE = [*RISING[:10], *[10.0] * 10]
CASES = {
    "not_finite": (history(total_loss=late(math.nan, 1.0)), {}, ["iteration 10 of 20", "check_nans=True"]),
    "no_episode": (history(returns=None), {}, ["18.5k steps", "terminated or truncated"]),
    "collapsed": (history(returns=COLLAPSE), {}, ["90 at its best", "is 10 at the end"]),
    "not_learning": (history(returns=FLAT), {}, ["20"]),
    "still_rising": (history(returns=RISING), {}, ["190", "Train longer"]),
    "clipped_value_loss": (
        history(vf_loss=9.9, vf_loss_unclipped=3000.0),
        {"vf_clip_param": 10.0},
        ["3000", "vf_clip_param=10 ", "above 6000"],
    ),
    "blind_critic": (
        history(returns=RISING, vf_explained_var=0.01, value_target_std=300.0),
        {},
        ["0.01", "300", "vf_share_layers=False"],
    ),
    "kl_too_large": (history(mean_kl_loss=0.3), {"kl_target": 0.01}, ["0.3", "Lower lr"]),
    "policy_hardly_moves": (history(returns=FLAT, mean_kl_loss=1e-6), {}, ["1e-06", "Raise lr"]),
    "much_is_clipped": (history(clip_fraction=0.5), {"clip_param": 0.2}, ["50%", "clip_param=0.2"]),
    "entropy_collapsed": (
        history(returns=COLLAPSE, entropy=late(0.001, 0.7)),
        {},
        ["from 0.7 to 0.001", "entropy_coeff", "is 10, below its best of 90"],
    ),
    "gradient_spikes": (history(**{NORM: SPIKES}), {"grad_clip": None}, ["50", "median 1", "grad_clip=3."]),
    "always_clipped": (history(**{NORM: 100.0}), {"grad_clip": 0.5}, ["100", "grad_clip=0.5"]),
    "values_run_away": (history(qf_mean=-1e6), {}, ["1M", "150"]),
    "mostly_compiling": (history(timers={"compile_s": 0.9}), {}, ["18.0 of 20.0 s"]),
    "host_bound": (history(timers={"compile_s": 0.1, "host_s": 0.8}), {}, ["89%", "num_env_runners"]),
}


@pytest.mark.parametrize("rule", [rule.__name__ for rule in RULES])
def test_a_rule_says_what_was_measured_and_what_to_do(rule):
    table, settings, words = CASES[rule]
    found = getattr(rules, rule)(Numbers(table, settings, "default_policy"))
    assert found is not None and found in diagnoses(table, settings)
    for word in words:
        assert word in found.text, found.text
    assert found.columns and set(found.columns) <= {*table.columns, RETURN}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_says_nothing_of_what_is_not_known_and_of_a_run_that_learns(rule):
    assert rule(Numbers(History(), {}, "default_policy")) is None
    short = History()
    short.append({"num_env_steps_sampled_lifetime": 1})
    assert rule(Numbers(short, {}, "default_policy")) is None
    assert rule(Numbers(history(), {}, "default_policy")) is None


@pytest.mark.parametrize(
    ("rule", "columns", "settings"),
    [
        # What it cuts off is what it is for.
        ("gradient_spikes", {NORM: SPIKES}, {"grad_clip": 1.0}),
        # A KL target of the user's own.
        ("kl_too_large", {"mean_kl_loss": 0.3}, {"kl_target": 0.1}),
        # Exploration is over, and the return is where it was at its best.
        ("entropy_collapsed", {"entropy": late(0.001, 0.7)}, {}),
        # A negative entropy of a continuous policy that still explores.
        ("entropy_collapsed", {"returns": COLLAPSE, "entropy": late(-2.0, 1.0), "policy_std": 0.3}, {}),
        # A small loss that is below the limit.
        ("clipped_value_loss", {"vf_loss": 0.5, "vf_loss_unclipped": 2.0}, {"vf_clip_param": 10.0}),
        # All returns are the same by now.
        ("blind_critic", {"vf_explained_var": 0.0}, {}),
        # The value loss is cut off: that is the reason, and said by a rule of its own.
        (
            "blind_critic",
            {"returns": RISING, "vf_explained_var": 0.0, "vf_loss": 9.0, "vf_loss_unclipped": 99.0},
            {"vf_clip_param": 10.0},
        ),
        ("values_run_away", {"qf_mean": 150.0}, {}),
    ],
)
def test_a_rule_knows_when_all_is_well(rule, columns, settings):
    assert getattr(rules, rule)(Numbers(history(**columns), settings, "default_policy")) is None


def test_a_run_that_stopped_at_its_goal_need_not_train_longer():
    assert [one.title for one in diagnoses(history(returns=RISING))] == ["The return is still rising"]
    assert diagnoses(history(returns=RISING), has_reached_goal=True) == []


def test_what_was_lost_again_has_moved():
    # It came back to where it was, within its noise.
    returns = [20.0, 80.0] * 2 + [150.0] * 4 + [50.0] * 8 + [80.0, 20.0] * 2
    titles = [one.title for one in diagnoses(history(returns=returns, mean_kl_loss=1e-6))]
    assert titles == ["It learned and lost it again"]


def test_a_small_policy_deviation_is_the_end_of_exploration_in_continuous_spaces():
    found = rules.entropy_collapsed(Numbers(history(returns=COLLAPSE, policy_std=0.01), {}, "default_policy"))
    assert found is not None and "standard deviation is 0.01" in found.text


def test_a_finding_of_one_of_several_modules_names_it():
    table = History()
    for _ in range(COUNT):
        table.append(
            {"learners": {"__all_modules__": {"a": 1}, "left": {"clip_fraction": 0.1}, "right": {"clip_fraction": 0.9}}}
        )
    _, found = diagnoses(table)  # and that no episode has ended
    assert found.title == "Much of every batch is clipped (right)"
    assert found.columns == ("learners/right/clip_fraction",)


def test_returns_that_were_not_known_at_first_do_not_count():
    returns = [math.nan, math.nan, *RISING[2:]]
    numbers = Numbers(history(returns=returns), {}, "default_policy")
    assert len(numbers.known(RETURN)) == COUNT - 2
    np.testing.assert_allclose((numbers.early(RETURN), numbers.late(RETURN)), (35.0, 175.0))
