"""The dict that `train` and `evaluate` return, and how it shows itself."""

from __future__ import annotations

import copy
import math
import pickle

import jax
import pytest

from jaxrl_stack.runs.result import MAX_LINES, Result, ResultPart
from jaxrl_stack.utils.results import empty_result


@pytest.fixture
def result() -> Result:
    result = Result(empty_result(loss_keys=("policy_loss", "entropy", "total_loss"), evaluation=True))
    result["env_runners"] |= {"episode_return_mean": 21.5, "episode_return_min": 9.0, "episode_return_max": 1234.5}
    result["learners"]["default_policy"] |= {"entropy": 0.6931, "total_loss": 8.0, "weights_seq_no": 3}
    return Result(result | {"training_iteration": 12, "num_env_steps_sampled_lifetime": 48_000, "config": {"lr": 0.1}})


def test_it_is_a_nested_dict_in_every_respect(result):
    plain = dict(result)
    assert isinstance(result, dict) and result == plain and result["env_runners"]["episode_return_mean"] == 21.5
    for other in (pickle.loads(pickle.dumps(result)), copy.deepcopy(result)):
        assert type(other) is Result and repr(other) == repr(result) and list(other) == list(result)
        assert other["env_runners"] is not result["env_runners"]


def test_it_shows_its_main_numbers(result):
    title, *lines = repr(result).splitlines()
    assert title == "Result with 8 numbers:"
    assert [line.split() for line in lines] == [
        ["training_iteration", "12"],
        ["num_env_steps_sampled_lifetime", "48,000"],
        ["env_runners/episode_return_mean", "21.5", "9", "to", "1,234.5"],
        ["evaluation/env_runners/episode_return_mean", "unknown", "no", "episode", "has", "ended", "yet"],
        ["learners/default_policy/entropy", "0.6931"],
        ["learners/default_policy/total_loss", "8"],
    ]
    assert "nan" not in repr(result) and "<td>0.6931</td>" in result._repr_html_()


def test_its_lines_are_few_whatever_is_in_it(result):
    result["learners"] = {f"module_{i}": {"policy_loss": 0.5, "a<b": float(i)} for i in range(20)}
    result |= {f"own_{i}": i for i in range(20)}
    assert len(repr(result).splitlines()) == 1 + MAX_LINES
    assert "learners/module_4/policy_loss" in repr(result) and "own_0" in repr(result)
    # An evaluation function of the user's own may return anything.
    assert repr(Result({"mine": {"score": 3}})).splitlines()[1].split() == ["mine/score", "3"]
    assert repr(Result()) == "Result with 0 numbers:"
    assert "<code>mine/a&lt;b</code>" in Result({"mine": {"a<b": math.pi}})._repr_html_()


def test_its_parts_are_trees_of_numbers_to_jax():
    part = ResultPart("learners")
    part |= {"b": {"loss": 2.0}, "a": 1.0}
    assert jax.tree.leaves(part) == [1.0, 2.0]
    assert jax.tree.map(lambda x: 2 * x, part) == {"b": {"loss": 4.0}, "a": 2.0}
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path({"learners": part})]
    assert paths == ["['learners']['a']", "['learners']['b']['loss']"]
