"""Policies from files: out of an algorithm's checkpoint, and out of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import policy_cases as cases
import pytest

from jaxrl_stack.checkpoints import needed_code
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.policy import Policy
from jaxrl_stack.utils import schedules

LOGITS = Columns.ACTION_DIST_INPUTS


def assert_act_alike(policy: Policy, other: Policy, num_steps: int = 5) -> None:
    """Same outputs over the steps of two environments."""
    low, high = (np.clip(bound, -2, 2) for bound in (policy.observation_space.low, policy.observation_space.high))
    rows = np.random.default_rng(2).uniform(low, high, (num_steps, 2, *low.shape)).astype(np.float32)
    states = [None, None]
    for t in range(num_steps):
        outputs = []
        for i, one in enumerate((policy, other)):
            actions, states[i], columns = one.compute_actions(rows[t], states[i], prev_rewards=[t, -t])
            outputs.append((actions, columns[LOGITS]))
        np.testing.assert_array_equal(outputs[0][0], outputs[1][0])
        np.testing.assert_array_equal(outputs[0][1], outputs[1][1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    algo = cases.config(cases.RecordedEnv, {"id": "CartPole-v1"}).build_algo()
    algo.train()
    yield algo.save_to_path(tmp_path_factory.mktemp("trained") / "checkpoint"), algo.get_policy()
    algo.stop()


def test_a_policy_out_of_an_algorithms_checkpoint(trained):
    path, policy = trained
    loaded = Policy.from_checkpoint(path)
    assert repr(loaded) == repr(policy) and loaded.observation_space == policy.observation_space
    statistics = loaded.get_state()["env_to_module_connector"]["MeanStdFilter"]["default_policy"]
    assert sum(part["obs"]["count"][1] for part in statistics.values()) == 64
    assert_act_alike(policy, loaded)


def test_serving_a_checkpoint_needs_neither_ray_nor_the_environment(trained):
    code = f"""
import sys
import numpy as np
from jaxrl_stack.policy import Policy
policy = Policy.from_checkpoint({trained[0]!r})
print(policy.compute_single_action(np.zeros(4, np.float32))[0], file=sys.stderr)
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert set(run.stdout.split()) & {"ray", "gymnax", "policy_cases"} == set()
    expected = trained[1].compute_single_action(np.zeros(4, np.float32))[0]
    assert int(run.stderr.strip().splitlines()[-1]) == expected


class Explorer(cases.Net):
    """Explores with a setting, as DQN's module does."""

    exploration_settings = ("epsilon",)


def test_exploring_without_its_settings_is_refused_by_name():
    policy = cases.policy(Explorer)
    rows = cases.observations(1, 2)[0]
    policy.compute_actions(rows)
    fix = r"Use explore=False, or .*settings=\{'default_policy': \{'epsilon': 0.1\}\}"
    with pytest.raises(ValueError, match=rf"Explorer needs the settings \['epsilon'\].*\n{fix}"):
        policy.compute_actions(rows, explore=True)


def test_a_policy_saves_itself(tmp_path):
    settings = {"default_policy": {"lr": schedules.encode([[0, 1.0], [100, 0.0]]), "gamma": 0.5}}
    policy = cases.policy(settings=settings, timesteps=50, seed=4)
    path = policy.save_to_path(tmp_path / "policy")
    assert {p.name for p in (tmp_path / "policy").iterdir() if p.is_dir()} == {
        "rl_module", "env_to_module_connector", "module_to_env_connector",
    }  # fmt: skip
    loaded = Policy.from_checkpoint(path, allow=[cases.Net])
    rows = cases.observations(1, 8)[0]
    np.testing.assert_array_equal(
        policy.compute_actions(rows, explore=True)[0], loaded.compute_actions(rows, explore=True)[0]
    )
    assert_act_alike(policy, loaded)
    assert loaded.get_state("settings")["settings"] == {"default_policy": {"lr": np.float32(0.5)}}
    assert loaded.get_ctor_args_and_kwargs() == policy.get_ctor_args_and_kwargs()

    other = cases.policy(settings=settings)
    other.set_weights({name: leaf * 0 for name, leaf in policy.get_weights().items()})
    other.restore_from_path(path, component="rl_module")
    assert_act_alike(policy, other)


def test_host_connectors_keep_their_states(tmp_path):
    policy = cases.policy(connectors=[cases.CountingHostConnector(), MeanStdFilter()])
    for _ in range(3):
        policy.compute_single_action(np.zeros(3))
    path = policy.save_to_path(tmp_path / "policy")
    loaded = Policy.from_checkpoint(path, allow=[cases.Net, cases.CountingHostConnector])
    state = loaded.get_state("env_to_module_connector")["env_to_module_connector"]
    assert state["CountingHostConnector"] == {"calls": 3}


def test_checkpoints_that_are_none_of_a_policy(trained, tmp_path, monkeypatch):
    path = trained[0]
    with pytest.raises(ValueError, match="no module 'other': pass module_id="):
        Policy.from_checkpoint(path, "other")
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        Policy.from_checkpoint(tmp_path / "nothing")
    with pytest.raises(ValueError, match="was saved by LearnerGroup, not by Policy"):
        Policy.from_checkpoint(f"{path}/learner_group")
    own = tmp_path / "own"
    cases.policy().save_to_path(own)
    assert Policy.from_checkpoint(own), "what this process has written, it may read"
    monkeypatch.setattr(needed_code, "_written_here", {})
    with pytest.raises(ValueError, match=r"policy_cases:Net'.*\n.*: import policy_cases; .*allow=\[policy_cases.Net"):
        Policy.from_checkpoint(own)
    file = own / "class_and_ctor_args.json"
    original = file.read_text()
    for name, value, message in [
        ("module_id", 3, "does not fit a Policy"),
        ("nothing", 3, "does not fit a Policy"),
        ("timesteps", "many", "does not fit a Policy"),
        ("settings", {"default_policy": 3}, "is damaged: its settings"),
    ]:
        content = json.loads(original)
        content["ctor_args_and_kwargs"]["kwargs"][name] = value
        file.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=message):
            Policy.from_checkpoint(own, allow=[cases.Net])
