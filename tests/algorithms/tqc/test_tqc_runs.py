"""TQC on both kinds of environments: the same update, runs that go on exactly, policies that serve."""

from __future__ import annotations

import types

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.tqc import TQCConfig, TQCLearner
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.policy import Policy, load_exported
from tests.drawn_rows import RecordsRows, assert_same_updates_on_the_host, learned, recorded_iteration

PENDULUM, ON_THE_HOST = "gymnax/Pendulum-v1", "pendulum_on_the_host"


@pytest.fixture(autouse=True)
def pendulum_on_the_host():
    register_env(ON_THE_HOST, lambda context: GymnasiumFromJax(PENDULUM, {"max_steps_in_episode": 10}))


def config(env, learner_class=TQCLearner):
    """Priorities, windows of random length."""
    asked = (
        TQCConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(
            train_batch_size_per_learner=8,
            num_steps_sampled_before_learning_starts=20,
            n_step=(1, 3),
            n_quantiles=4,
            top_quantiles_to_drop_per_net=1,
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 200},
        )
        .reporting(min_sample_timesteps_per_iteration=36, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [4], "fusionnet_hiddens": None})
        .learners(num_cpus_per_learner=1, learner_class=learner_class)
        .debugging(seed=2)
    )
    return asked.environment(env_config={"max_steps_in_episode": 10}) if env == PENDULUM else asked


class LearnerThatRecordsRows(TQCLearner):
    update_class = RecordsRows


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two iterations, the first of them with its batches, their checkpoint, and two more."""
    algo = config(PENDULUM, LearnerThatRecordsRows).build_algo()
    first = recorded_iteration(algo)
    algo.train()
    path = algo.save_to_path(tmp_path_factory.mktemp("tqc") / "checkpoint")
    saved = algo.learner.get_state()
    results = [learned(algo.train()) for _ in range(2)]
    yield types.SimpleNamespace(
        algo=algo, first=first, path=path, saved=saved, results=results, state=algo.learner.get_state()
    )
    algo.stop()


def test_what_the_device_draws_makes_the_same_update_on_the_host(run):
    assert len(run.first.drawn) == run.first.result["learners"][DEFAULT_MODULE_ID]["num_target_updates"] > 1
    names = ("qf_loss", "policy_loss", "alpha_loss", "td_error_mean")
    assert_same_updates_on_the_host(config(ON_THE_HOST).build_algo(), run.first, names)


def test_a_run_goes_on_exactly(run):
    restored = run.algo
    assert restored.reset(restored.config)
    restored.restore_from_path(run.path)
    jax.tree.map(np.testing.assert_array_equal, run.saved, restored.learner.get_state())
    # The environments, too, are where they were: all that follows is the same.
    assert all("qf_loss" in each for each in run.results)
    assert [learned(restored.train()) for _ in range(2)] == run.results
    jax.tree.map(np.testing.assert_array_equal, run.state, restored.learner.get_state())


def test_a_policy_serves_and_is_exported(run, tmp_path):
    algo = run.algo
    observations = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    policy = algo.get_policy()
    actions, _, outputs = policy.compute_actions(observations)
    means = outputs["action_dist_inputs"][:, :1]
    np.testing.assert_allclose(actions, 2.0 * np.tanh(means), rtol=1e-4, atol=1e-5)
    single = [algo.compute_single_action(obs, explore=False) for obs in observations]
    np.testing.assert_allclose(actions, single, rtol=1e-4, atol=1e-5)
    exported = load_exported(policy.export(tmp_path / "policy", platforms=["cpu"]))
    np.testing.assert_allclose(exported.compute_actions(observations)[0], actions, atol=1e-6)
    served = Policy.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))
    np.testing.assert_array_equal(served.compute_actions(observations)[0], actions)
