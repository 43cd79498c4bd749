"""The command line of example scripts, and the experiments that it runs."""

from __future__ import annotations

import argparse
import json

import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.examples.utils import add_rllib_example_script_args, run_rllib_example_script_experiment, should_stop
from jaxrl_stack.tune.registry import get_trainable_cls
from jaxrl_stack.utils import test_utils

RETURN = "env_runners/episode_return_mean"


def parsed(*options: str, **defaults):
    return add_rllib_example_script_args(**defaults).parse_args(options)


def tiny(env: str | None = "gymnax/CartPole-v1") -> PPOConfig:
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )


def train(config: PPOConfig, *options: str):
    return run_rllib_example_script_experiment(config, parsed("--no-tune", *options), keep_ray_up=True)


def test_options_have_rllibs_names_and_defaults():
    args = parsed(default_reward=450.0, default_iters=3, default_timesteps=10)
    assert (args.stop_reward, args.stop_iters, args.stop_timesteps, args.algo) == (450.0, 3, 10, "PPO")
    assert args.num_agents == 0 and args.num_env_runners is None and args.evaluation_duration == 10
    assert not args.as_test and args.checkpoint_freq == 0 and args.verbose == 2
    args = parsed("--algo=DQN", "--evaluation-duration=auto", "--no-tune", "--num-gpus-per-learner=0.5")
    assert (args.algo, args.evaluation_duration, args.no_tune, args.num_gpus_per_learner) == ("DQN", "auto", True, 0.5)
    parser = add_rllib_example_script_args(argparse.ArgumentParser(description="mine"))
    parser.set_defaults(env="CartPole-v1")
    assert parser.parse_args([]).env == "CartPole-v1"


def test_the_functions_are_at_their_old_place_too():
    for name in ("add_rllib_example_script_args", "run_rllib_example_script_experiment", "should_stop"):
        assert getattr(test_utils, name).__module__ == "jaxrl_stack.examples.utils"


def test_criteria_stop_at_their_values_and_not_at_what_is_no_number():
    results = {"training_iteration": 2, "env_runners": {"episode_return_mean": np.float32(5.0), "empty": float("nan")}}
    assert should_stop({RETURN: 5.0}, results, keep_ray_up=True)
    assert should_stop({"absent/key": 0, "training_iteration": 1}, results, keep_ray_up=True)
    for stop in ({RETURN: 6.0}, {"env_runners/empty": 0.0}, {"env_runners": 0}, {"absent/key": 0}):
        assert not should_stop(stop, results, keep_ray_up=True)


def test_a_loop_trains_with_the_options_until_a_criterion(capsys):
    config = tiny(env=None)
    stop = ("--stop-iters=3", "--stop-reward=1e9", "--stop-timesteps=128")
    results = train(config, "--env=gymnax/CartPole-v1", *stop, "--num-envs-per-env-runner=8")
    # 64 steps an iteration.
    assert results["training_iteration"] == 2 and config.num_envs_per_env_runner == 8 and config.framework_str == "jax"
    printed = capsys.readouterr().out
    assert "iter=1 R=" in printed and "num_env_steps_sampled_lifetime=128" in printed


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--num-gpus=1", "--num-gpus-per-learner"),
        ("--old-api-stack", "one API stack"),
        ("--enable-new-api-stack", "no other API stack"),
        ("--local-mode", "--num-env-runners=0"),
    ],
)
def test_options_that_are_not_possible_name_the_way(option, message):
    with pytest.raises(ValueError, match=f"^{option.partition('=')[0]}=.*{message}"):
        run_rllib_example_script_experiment(tiny(), parsed(option))


def test_a_test_needs_a_tuner():
    with pytest.raises(ValueError, match="--no-tune with --as-test"):
        run_rllib_example_script_experiment(tiny(), parsed("--no-tune", "--as-test"))


def test_a_tuner_trains_and_tells_whether_the_reward_was_reached(ray_session, tmp_path, monkeypatch, capsys):
    from ray import tune

    class Countdown(tune.Trainable):
        """A trial without an algorithm: a process that only counts."""

        def setup(self, config):
            self.lr = config["lr"]

        def step(self):
            return {"env_runners": {"episode_return_mean": 10.0 * self.iteration, "lr": self.lr}}

        def save_checkpoint(self, checkpoint_dir):
            pass

    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    monkeypatch.setenv("TEST_OUTPUT_JSON", str(tmp_path / "summary.json"))
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(tmp_path))
    config = tiny().training(lr=0.25)
    args = parsed(
        "--as-release-test", "--stop-iters=3", "--stop-reward=10", "--evaluation-interval=1", "--evaluation-duration=2",
    )  # fmt: skip
    results = run_rllib_example_script_experiment(config, args, trainable=Countdown, keep_ray_up=True)
    metrics = results[0].metrics
    assert metrics["env_runners"] == {"episode_return_mean": 10.0, "lr": 0.25} and metrics["training_iteration"] == 2
    assert "of 10.0 reached" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["passed"] and summary["stats"]["training_iteration"] == 2
    assert config.evaluation_interval == 1 and config.evaluation_duration == 2
    args.num_envs_per_env_runner, metric = 8, {RETURN: 100.0}
    with pytest.raises(ValueError, match="must reach 100.0"):
        run_rllib_example_script_experiment(
            config, args, trainable=Countdown, success_metric=metric, keep_config=True, keep_ray_up=True
        )
    assert config.num_envs_per_env_runner == 4


def test_names_give_algorithm_classes_with_default_configs():
    assert get_trainable_cls("PPO") is PPO
    assert isinstance(get_trainable_cls("PPO").get_default_config(), PPOConfig)
    with pytest.raises(ValueError, match="no algorithm 'PPPO'.*'PPO'"):
        get_trainable_cls("PPPO")
    import ray.tune.registry

    config = ray.tune.registry.get_trainable_cls("PPO").get_default_config()
    assert isinstance(config, PPOConfig) and config.environment("CartPole-v1").env == "CartPole-v1"
