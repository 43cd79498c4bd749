"""Modules that RLlib's example scripts import, trained and served."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple

from envs.settings import ConfiguredEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.examples.rl_modules.classes.autoregressive_actions_rlm import AutoregressiveActionsRLM
from jaxrl_stack.policy import load_exported
from jaxrl_stack.utils.compile_clock import CompileClock

OBS, ACTIONS, LOGP, INPUTS = Columns.OBS, Columns.ACTIONS, Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS

# ------------------------------------------------------------------------------------------ actions drawn part by part


class Tied(ConfiguredEnv):
    """One step: sees ``[x]``, takes ``(first, [second])``, pays ``-|second - x (first - 1)|``."""

    @property
    def observation_space(self):
        return Box(-1.0, 1.0, (1,), np.float32)

    @property
    def action_space(self):
        return Tuple((Discrete(3), Box(-1.0, 1.0, (1,), np.float32)))

    def reset_env(self, key, params):
        x = jax.random.uniform(key, (1,), jnp.float32, -1.0, 1.0)
        return x, x

    def step_env(self, key, state, action, params):
        first, second = action
        error = jnp.abs(second - state * (first - 1).astype(jnp.float32))
        return state, state, -error[0], True, False, {}


class TiedOnHost(GymnasiumFromJax):
    def __init__(self, config):
        super().__init__(Tied)


def tied(env):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=64, minibatch_size=64, num_epochs=1, lr=0.01)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=AutoregressiveActionsRLM, model_config={"width": 8}))
        .learners(num_cpus_per_learner=1)
    )


@pytest.mark.parametrize("env", [Tied, TiedOnHost], ids=["device", "host"])
def test_training_sees_the_actions_that_were_taken_one_after_the_other(env):
    algo = tied(env).build_algo()
    before = algo.get_weights()["default_policy"]
    results = [algo.train()["learners"]["default_policy"] for _ in range(2)]
    clock = CompileClock()
    results.append(algo.train()["learners"]["default_policy"])
    assert clock.compiles == 0
    # One gradient step on all rows: before it, the policy of the loss is the one that acted.
    for result in results:
        assert abs(result["mean_kl_loss"]) < 1e-6 and abs(result["policy_loss"]) < 1e-5
    after = algo.get_weights()["default_policy"]
    assert {ref for ref in after if np.abs(after[ref] - before[ref]).max() > 1e-4} == set(after)
    assert not any("stream" in ref for ref in after)
    algo.stop()


@pytest.fixture(scope="module")
def policy():
    algo = tied(Tied).build_algo()
    yield algo.get_policy()
    algo.stop()


def conditionals(policy, obs, first):
    """By hand: log-probabilities of first actions ``[N, 3]``; mean and log std of the second ones given these."""
    weights = policy.get_weights()

    def network(name, x):
        hidden = np.tanh(x @ weights[f"{name}/dense_0/kernel"] + weights[f"{name}/dense_0/bias"])
        return hidden @ weights[f"{name}/dense_1/kernel"] + weights[f"{name}/dense_1/bias"]

    logits = network("first", obs)
    second = network("second", np.concatenate([obs, np.eye(3, dtype=np.float32)[first]], axis=-1))
    return logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True), second[:, 0], second[:, 1]


def test_the_second_part_is_drawn_given_the_first(policy):
    num_rows = 4096
    obs = np.full((num_rows, 1), 0.7, np.float32)
    _, _, outputs = policy.compute_actions(obs, explore=True, key=jax.random.key(0))
    first, second = (np.asarray(part) for part in outputs[ACTIONS])
    log_p, mean, log_std = conditionals(policy, obs, first)
    assert len(set(mean.tolist())) == 3

    # Shares and normalised draws within five standard errors; the second part's noise knows nothing of the first's.
    p = np.exp(log_p[0])
    assert (np.abs(np.bincount(first, minlength=3) / num_rows - p) < 5 * np.sqrt(p * (1 - p) / num_rows)).all()
    noise = (second[:, 0] - mean) / np.exp(log_std)
    for choice in range(3):
        own = noise[first == choice]
        assert abs(own.mean()) < 5 / np.sqrt(len(own)) and abs(own.std() - 1) < 5 / np.sqrt(len(own))

    logp = log_p[np.arange(num_rows), first] - 0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(outputs[LOGP], logp, atol=1e-4)


def test_greedy_actions_are_greedy_part_by_part_wherever_they_are_served(policy, tmp_path):
    obs = np.linspace(-1.0, 1.0, 5, dtype=np.float32)[:, None]
    first, second = policy.compute_actions(obs)[0]
    log_p, _, _ = conditionals(policy, obs, np.zeros(5, int))
    np.testing.assert_array_equal(first, log_p.argmax(-1))
    _, mean, _ = conditionals(policy, obs, np.asarray(first))
    np.testing.assert_allclose(np.asarray(second)[:, 0], np.clip(mean, -1.0, 1.0), atol=1e-5)

    exported = load_exported(policy.export(tmp_path / "policy", explore=True, platforms=["cpu"]))
    key = jax.random.key(1)
    served, own = exported.compute_actions(obs, key=key)[0], policy.compute_actions(obs, explore=True, key=key)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), served, own)


def test_another_space_of_actions_is_named():
    spec = RLModuleSpec(AutoregressiveActionsRLM, Box(-1.0, 1.0, (1,)), gym.spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"AutoregressiveActionsRLM is for.*Tuple\(Discrete.*not for Discrete\(2\)"):
        spec.build(seed=0)
