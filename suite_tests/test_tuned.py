"""Tuned settings for the suites' environments, most of them published and not run: algorithms are built from them."""

from __future__ import annotations

import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.registry import ALGORITHMS, tuned_evidence
from jaxrl_stack.env.suites import all_suites


def of_suites(name: str) -> list[str]:
    return [env for env in tuned_evidence(name) if env.partition("/")[0] in all_suites()]


# One of each suite: settings of the others are made by the same function.
@pytest.mark.parametrize("env", {env.partition("/")[0]: env for env in of_suites("PPO")}.values())
def test_an_algorithm_is_built_from_tuned_settings(env):
    config = PPOConfig.tuned(env).env_runners(num_envs_per_env_runner=2)
    algo = config.training(train_batch_size_per_learner=64, minibatch_size=32).build_algo()
    try:
        assert algo.config.env == env and algo.get_module().action_space is not None
    finally:
        algo.stop()


def test_no_other_algorithm_has_settings_that_are_not_tested_here():
    assert not [env for name in ALGORITHMS if name != "PPO" for env in of_suites(name)]
