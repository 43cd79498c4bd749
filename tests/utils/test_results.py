from __future__ import annotations

import json
import math
import pathlib

import pytest

from jaxrl_stack.algorithms.ppo import PPOLearner
from jaxrl_stack.utils.results import empty_result, flatten_result, get_nested, merge_nested

API = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "rllib_api.json").read_text())


def is_for_ppo_with_one_agent(name, condition):
    if condition not in ("all", "single-agent", "") and not condition.startswith(("all with", "log_gradients")):
        return False
    # Timers of single connectors depend on the pipeline, which is one compiled program here.
    return "<snake_case_class>" not in name


# Written by evaluation, other algorithms, or drivers that this one is not.
NOT_IN_PPO = {
    "timers": {
        "synch_eval_env_connectors",
        "restore_eval_env_runners",
        "restore_offline_eval_runners",
        "evaluation_iteration",
        "offline_evaluation_iteration_timer",
        "offline_sampling_timer",
        "replay_buffer_add_data_timer",
        "replay_buffer_sampling_timer",
        "replay_buffer_update_prios_timer",
        "sample",
        "learn",
    },
    "learners/<module_id>": {"num_module_steps_trained_throughput"},
}


def test_every_key_of_rllibs_ppo_is_there_from_the_start():
    result = empty_result(["default_policy"], loss_keys=PPOLearner.all_result_names())
    groups = {
        "top_level": "",
        "env_runners": "env_runners/",
        "learners/<module_id>": "learners/default_policy/",
        "learners/__all_modules__": "learners/__all_modules__/",
        "timers": "timers/",
        "fault_tolerance": "fault_tolerance/",
        "env_runner_group": "env_runner_group/",
    }
    ids = {"<agent_id>": "default_agent", "<module_id>": "default_policy", "<optimizer>": "default_optimizer"}
    for group, prefix in groups.items():
        for name, facts in API["result_keys"][group].items():
            condition = facts[0]
            if name == "config" or name in NOT_IN_PPO.get(group, ()):
                continue
            if not is_for_ppo_with_one_agent(name, condition) and name != "perf":
                continue
            for slot, member in ids.items():
                name = name.replace(slot, member)
            get_nested(result, prefix + name)
    for name in API["loss_metric_keys"]["PPO"]:
        assert math.isnan(get_nested(result, ("learners", "default_policy", name)))
    numbers = [v for k, v in flatten_result(result).items() if "/" in k]
    assert all(math.isnan(v) for v in numbers)
    assert result["done"] is False


def test_templates_do_not_share_dicts():
    first = empty_result()
    first["env_runners"]["episode_return_mean"] = 1.0
    assert math.isnan(empty_result()["env_runners"]["episode_return_mean"])


def test_template_for_other_modules_and_evaluation():
    result = empty_result(["a", "b"], agent_ids=["x"], loss_keys=["total_loss"], evaluation=True)
    assert set(result["learners"]) == {"a", "b", "__all_modules__"}
    assert "policy_loss" not in result["learners"]["a"]
    assert set(result["env_runners"]["num_agent_steps_sampled"]) == {"x"}
    assert set(result["evaluation"]["env_runners"]["num_module_steps_sampled"]) == {"a", "b"}
    assert math.isnan(get_nested(result, "evaluation/env_runners/episode_return_mean"))
    assert "evaluation" not in empty_result()


def test_flatten_and_get():
    nested = {"a": {"b": {"c": 1}, "e": {}}, "d": [2], "p": {50: 0.5}}
    assert flatten_result(nested) == {"a/b/c": 1, "d": [2], "p/50": 0.5}
    assert flatten_result(nested, sep=".")["a.b.c"] == 1
    assert get_nested(nested, "a/b/c") == get_nested(nested, ("a", "b", "c")) == 1
    assert get_nested(nested, "a/b") == {"c": 1}
    with pytest.raises(KeyError, match="'a/x/c'.*'a/b/c'"):
        get_nested(nested, "a/x/c")
    with pytest.raises(KeyError, match="d/0"):
        get_nested(nested, "d/0")


def test_merging_nested_dicts():
    new = {"a": {"x": 3, "deep": {"z": 4}}, "b": {"y": 5}}
    into = {"a": {"x": 1, "kept": 2}, "b": 0}
    merge_nested(into, new)
    assert into == {"a": {"x": 3, "kept": 2, "deep": {"z": 4}}, "b": {"y": 5}}
    # The dicts of the other one are not shared.
    into["a"]["deep"]["z"] = into["b"]["y"] = 0
    assert new == {"a": {"x": 3, "deep": {"z": 4}}, "b": {"y": 5}}
