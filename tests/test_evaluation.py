"""Evaluation on both kinds of environments: fresh episodes in every call, and settings of its own."""

from __future__ import annotations

import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig

BOTH = pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])


def config(env, **evaluation_config):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=32, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .evaluation(evaluation_duration=20, evaluation_config=evaluation_config or None)
        .debugging(seed=2)
    )


def statistics(result):
    return {name: value for name, value in result["env_runners"].items() if name.startswith("episode_len")}


# -------------------------------------------------------------------------------------------------------------- seeds


@BOTH
def test_every_evaluation_has_other_episodes_also_within_an_iteration(env, tmp_path):
    algo, other = config(env).build_algo(), config(env).build_algo()
    first = statistics(algo.evaluate())
    algo.save_to_path(tmp_path / "saved")
    second = statistics(algo.evaluate())
    assert first != second
    # Their number is a part of the state, and an algorithm that starts anew starts with the first ones.
    assert statistics(other.evaluate()) == first
    algo.restore_from_path(tmp_path / "saved")
    assert statistics(algo.evaluate()) == second
    # It counts from the last iteration: what was evaluated before makes no difference later.
    algo.train()
    other.train()
    assert statistics(algo.evaluate()) == statistics(other.evaluate())
    algo.stop()
    other.stop()
