"""Pages for those who come from other packages: their scripts run, and their settings are valid."""

from __future__ import annotations

import math
import pathlib
import re

import pytest

DOCS = pathlib.Path(__file__).parents[1] / "docs"


def run(page, shorter):
    """Run the Python blocks of a page, with some of their text replaced by less work; their names."""
    text = (DOCS / page).read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE))
    for long, short in shorter.items():
        assert long in code, long
        code = code.replace(long, short)
    names: dict = {"__name__": page}
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


SMALL = "train_batch_size_per_learner=64, minibatch_size=32"


def test_the_script_for_users_of_rllib_trains():
    smaller = {
        "train_batch_size_per_learner=2048, minibatch_size=256": SMALL,
        "range(10)": "range(1)",
        "num_envs_per_env_runner=8": "num_envs_per_env_runner=2",
    }
    names = run("coming_from_rllib.md", smaller)
    assert names["algo"].history["learners/default_policy/total_loss"].shape == (1,)


def test_the_script_for_users_of_stable_baselines3_trains_saves_and_acts():
    smaller = {
        "train_batch_size_per_learner=2048, minibatch_size=256, num_epochs=4": f"{SMALL}, num_epochs=1",
        "100_000})": "64})",
        "evaluation_duration=10": "evaluation_duration=1",
        "num_envs_per_env_runner=8": "num_envs_per_env_runner=2",
    }
    names = run("coming_from_sb3.md", smaller)
    assert int(names["action"]) in (0, 1) and names["config"].evaluation_duration == 1


def test_the_script_for_users_of_purejaxrl_is_valid():
    smaller = {
        "population = config.build_population(seeds=8)": "population = None",
        'population.learn({"num_env_steps_sampled_lifetime": 500_000})': "config.validate()",
        'returns = population.history["env_runners/episode_return_mean"]': "",
        'population.plot("seeds.png")': "",
        "population.stop()": "",
    }
    config = run("coming_from_purejaxrl.md", smaller)["config"]
    assert config.can_be_members(config.copy().debugging(seed=1))


def test_the_script_for_users_of_cleanrl_has_the_settings_of_its_command():
    leave_out = {
        "algo = config.build_algo()": "config.validate()",
        'algo.learn({"num_env_steps_sampled_lifetime": 500_000})': "",
        "algo.stop()": "",
    }
    config = run("coming_from_cleanrl.md", leave_out)["config"]
    page = (DOCS / "coming_from_cleanrl.md").read_text()
    (command,) = re.findall(r"^jaxrl train PPO(.*?)\n```", page, flags=re.DOTALL | re.MULTILINE)
    typed = dict(re.findall(r"--set '?(\w+)=([^\s']+)", command))
    assert typed.pop("lr") == "[[0,2.5e-4],[500000,0.0]]" and config.lr == [[0, 2.5e-4], [500_000, 0.0]]
    assert typed.pop("use_kl_loss") == "false" and config.use_kl_loss is False
    assert typed.pop("vf_clip_param") == "1e9" and config.vf_clip_param == math.inf
    assert {name: float(value) for name, value in typed.items()} == {name: getattr(config, name) for name in typed}


def test_the_script_for_users_of_gymnax_is_valid():
    leave_out = {
        "algo = config.build_algo()": "config.validate()",
        'algo.learn({"env_runners/episode_return_mean": 190})': "",
        'algo.record("cartpole.gif", episodes=1)': "",
        "algo.stop()": "",
    }
    names = run("coming_from_gymnax.md", leave_out)
    assert names["config"].env_config == {"max_steps_in_episode": 200}
