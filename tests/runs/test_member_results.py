"""Results and tables of the members of a population."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jaxrl_stack.runs.curves import RETURN
from jaxrl_stack.runs.member_history import MemberHistory
from jaxrl_stack.runs.member_results import MemberResults, population_numbers
from jaxrl_stack.runs.stop import StopCriteria


def numbers(returns, iteration=1):
    return {"env_runners": {"episode_return_mean": np.array(returns, float)}, "training_iteration": iteration}


def test_results_are_made_of_what_is_shared_and_of_what_is_each_ones_own():
    members = MemberResults(numbers([1.0, 2.0]), 2, [{"seed": 0}, {"seed": 1}])
    assert members[1] == {"env_runners": {"episode_return_mean": 2.0}, "training_iteration": 1, "config": {"seed": 1}}
    assert len(members) == 2 and members[-1] == members[1] and members[:1] == [members[0]]
    np.testing.assert_array_equal(members.column("training_iteration"), [1, 1])
    with pytest.raises(IndexError, match="The population has no member 2. Use an index from 0 to 1"):
        members[2]
    with pytest.raises(KeyError, match="env_runners/episode_return_mean"):
        members.column("env_runners/episode_reward_mean")


def test_criteria_read_only_their_paths():
    members, criteria = MemberResults(numbers([1.0, 2.0]), 2), StopCriteria({RETURN: 2, "evaluation/" + RETURN: 1})
    assert members.only(criteria.paths)[0] == {"env_runners": {"episode_return_mean": 1.0}}
    assert [bool(criteria.reached(one)) for one in members.only(criteria.paths)] == [False, True]
    assert StopCriteria(lambda result: True).paths is None
    with pytest.raises(ValueError, match="time_total_s"):
        StopCriteria({"time_total_s": 1}).reached(members.only(["time_total_s"])[0])


def test_all_members_together_are_those_that_are_live_and_known():
    members = MemberResults(numbers([1.0, 5.0, math.nan, 9.0]), 4)
    together = population_numbers(members, np.array([True, True, True, False]))
    assert (together["num_members"], together["num_live_members"], together["best_member"]) == (4, 3, 1)
    assert (together["episode_return_mean_best"], together["episode_return_mean_worst"]) == (5.0, 1.0)
    assert together["episode_return_mean_median"] == 3.0
    unknown = population_numbers(MemberResults(numbers([math.nan]), 1), np.array([True]))
    assert unknown["best_member"] is None and math.isnan(unknown["episode_return_mean_iqm"])


def test_a_history_ends_where_its_member_does(tmp_path):
    history = MemberHistory([{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0}])
    with pytest.raises(KeyError, match="the first train"):
        history[RETURN]
    history.append(numbers([1.0, 2.0], 1), counts=np.array([True, True]))
    history.append(numbers([3.0, 4.0], 2) | {"late": 7}, counts=np.array([True, False]))
    np.testing.assert_array_equal(history[RETURN], [[1.0, 2.0], [3.0, math.nan]])
    assert list(history.of_member(1)[RETURN]) == [2.0] and list(history.of_member(0)["late"])[1:] == [7]
    np.testing.assert_array_equal(history.last[RETURN], [3.0, 2.0])
    frame = history.to_pandas()
    assert frame["lr"].tolist() == [0.1, 0.1, 0.2] and frame[RETURN].tolist() == [1.0, 3.0, 2.0]
    history.to_csv(tmp_path / "table.csv")
    lines = (tmp_path / "table.csv").read_text().splitlines()
    assert lines[0].startswith("member,lr,seed,") and len(lines) == 4 and lines[1].endswith(",")
    other = MemberHistory([{"lr": 0.1, "seed": 0}, {"lr": 0.2, "seed": 0}])
    other.set_state(history.get_state())
    np.testing.assert_array_equal(other[RETURN], history[RETURN])
    with pytest.raises(ValueError, match="has 2 members, but the population has 1"):
        MemberHistory([{"seed": 0}]).set_state(history.get_state())
