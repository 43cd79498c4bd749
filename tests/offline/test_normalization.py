"""Recorded steps normalised by their own statistics, and policies that act with these."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.offline.normalization import DataNormalization
from jaxrl_stack.policy.policy import Policy

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1000.0, 1000.0, (2,), np.float32), gym.spaces.Discrete(2)
GAMMA = 0.9


class Plain(AutoResetJaxEnv):
    """Observations like the recorded ones."""

    observation_space, action_space = OBSERVATIONS, ACTIONS

    def reset_env(self, key, params):
        return jnp.array([100.0, -3.0]), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.array([100.0, -3.0]), state + 1, 1.0, state >= 3, False, {}


def recorded(num_episodes=60, length=7, seed=0):
    """Steps with observations around (100, -3), and rewards of around 5."""
    generator = np.random.default_rng(seed)
    number = num_episodes * (length + 1)
    is_final = np.arange(number) % (length + 1) == length
    rewards = np.where(is_final, 0.0, generator.normal(5.0, 2.0, number)).astype(np.float32)
    columns = {
        Columns.OBS: generator.normal([100.0, -3.0], [20.0, 0.5], (number, 2)).astype(np.float32),
        Columns.ACTIONS: generator.integers(2, size=number).astype(np.int32),
        Columns.REWARDS: rewards,
        Columns.TERMINATEDS: np.roll(is_final, -1) & ~is_final,
        Columns.TRUNCATEDS: np.zeros(number, bool),
    }
    episode = (np.arange(number) // (length + 1)).astype(np.int32)
    t = (np.arange(number) % (length + 1)).astype(np.int32)
    return Steps(columns, is_final, episode, t, [str(i) for i in range(num_episodes)])


def returns_so_far(steps):
    """By a plain loop."""
    returns, now = [], 0.0
    for reward, is_final in zip(steps.columns[Columns.REWARDS], steps.is_final, strict=True):
        now = 0.0 if is_final else GAMMA * now + float(reward)
        returns += [] if is_final else [now]
    return np.array(returns)


def test_statistics_are_those_of_all_rows():
    steps = recorded(num_episodes=1200)  # more rows than a call takes
    parts = [steps.rows(0, 4000), steps.rows(4000, steps.num_rows)]
    normalization = DataNormalization(parts, (OBSERVATIONS, ACTIONS), observations=True, gamma=GAMMA)
    made = normalization.apply(steps)
    obs = steps.columns[Columns.OBS].astype(np.float64)
    expected = (obs - obs.mean(0)) / obs.std(0, ddof=1)
    np.testing.assert_allclose(made.columns[Columns.OBS], expected.clip(-10, 10), atol=2e-4)
    assert made.columns[Columns.OBS].dtype == np.float32
    assert normalization.reward_scale == pytest.approx(returns_so_far(steps).std(), rel=1e-4)
    scaled = steps.columns[Columns.REWARDS] / returns_so_far(steps).std()
    np.testing.assert_allclose(made.columns[Columns.REWARDS], scaled, rtol=1e-4)


def test_only_what_is_asked_for_changes():
    steps = recorded()
    made = DataNormalization([steps], (OBSERVATIONS, ACTIONS), observations=False, gamma=GAMMA).apply(steps)
    assert made.columns[Columns.OBS] is steps.columns[Columns.OBS]
    normalization = DataNormalization([steps], (OBSERVATIONS, ACTIONS), observations=True, gamma=None)
    assert normalization.apply(steps).columns[Columns.REWARDS] is steps.columns[Columns.REWARDS]
    assert normalization.reward_scale == 1.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded")
    info = DatasetInfo(observation_space=OBSERVATIONS, action_space=ACTIONS)
    with StepWriter(path, "steps", about=info) as writer:
        writer.add(recorded())
    return str(path)


def config_of(folder, **data):
    return (
        BCConfig()
        .environment(Plain)
        .offline_data(input_=[folder], dataset_num_iters_per_learner=2, **data)
        .training(train_batch_size_per_learner=64)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .evaluation(evaluation_duration=2, evaluation_config={"explore": False})
    )


@pytest.mark.parametrize("keep_resident", [True, False])
def test_policies_act_with_the_statistics_of_the_data(folder, keep_resident, tmp_path):
    algo = config_of(folder, normalize_observations=True, keep_resident=keep_resident).build_algo()
    algo.train()
    assert algo.evaluate()["env_runners"]["num_episodes"] == 2
    mean = recorded().columns[Columns.OBS].mean(0)
    weights, network = algo.get_policy().get_weights(), algo.get_module()
    at_mean = network.forward_inference({Columns.OBS: np.zeros((1, 2), np.float32)})[Columns.ACTION_DIST_INPUTS]
    path = algo.save_to_path(tmp_path / "checkpoint")
    for policy in (algo.get_policy(), Policy.from_checkpoint(path)):
        _, _, outputs = policy.compute_actions(mean[None])
        np.testing.assert_allclose(outputs[Columns.ACTION_DIST_INPUTS], at_mean, atol=1e-3)
    assert weights.keys() == policy.get_weights().keys()
    algo.stop()


def test_members_of_a_population_act_with_them(folder):
    population = config_of(folder, normalize_observations=True).build_population(seeds=2)
    population.train()
    (mean,) = population.driver.template.env_to_module_state().values()
    np.testing.assert_allclose(mean["default_policy"]["base"]["obs"]["mean"], [100.0, -3.0], atol=5.0)
    assert population.evaluate().column("env_runners/num_episodes").tolist() == [2, 2]
    population.stop()


def test_it_is_for_recorded_steps_alone():
    with pytest.raises(ValueError, match="normalize_observations=True.*MeanStdFilter"):
        PPOConfig().environment(Plain).offline_data(normalize_observations=True).validate()


def test_images_are_refused():
    steps = recorded().map_columns(lambda name, x: x.astype(np.uint8) if name == Columns.OBS else x)
    with pytest.raises(ValueError, match="uint8"):
        DataNormalization([steps], (OBSERVATIONS, ACTIONS), observations=True, gamma=None)
