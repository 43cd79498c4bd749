"""A JAX environment with learner actors: two of them, with a device each, against one process with two devices."""

from __future__ import annotations

import os
import signal
import sys

import gymnasium as gym
import jax
import numpy as np
import pytest

import envs.counter
import tests.joined_processes
from tests.joined_processes import NUM_ENVS, Watching, config_of, trained
from tests.test_joined_processes import assert_close, numbers_of

NUM_ACTORS = 2


@pytest.fixture(scope="module", autouse=True)
def pickled_by_value(ray_session):
    """The actors cannot import the tests' modules: what is in them travels with its code."""
    modules = [sys.modules[__name__], tests.joined_processes, envs.counter, sys.modules["envs.settings"]]
    for module in modules:
        ray_session.cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        ray_session.cloudpickle.unregister_pickle_by_value(module)


def config_of_actors(algorithm="ppo"):
    """The run of `config_of`, whose sizes are those of all learners together."""
    whole = config_of(algorithm, 1)
    config = whole.learners(num_learners=NUM_ACTORS)
    config.training(train_batch_size_per_learner=whole.train_batch_size_per_learner // NUM_ACTORS)
    if whole.minibatch_size is not None:
        config.training(minibatch_size=whole.minibatch_size // NUM_ACTORS)
    return config


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return trained("ppo", NUM_ACTORS, str(tmp_path_factory.mktemp("alone") / "checkpoint"))


def watched_config():
    return config_of_actors().callbacks(Watching).evaluation(evaluation_interval=2)


@pytest.fixture(scope="module")
def run(pickled_by_value, tmp_path_factory):
    """An algorithm with actors, and what two iterations of it have left."""
    algo = watched_config().build_algo()
    results = [algo.train() for _ in range(2)]
    path = algo.save_to_path(tmp_path_factory.mktemp("run") / "checkpoint")
    yield algo, results, algo.get_weights(), path
    algo.stop()


def test_two_actors_train_as_two_devices_of_one_process(run, alone):
    algo, results, weights, _ = run
    assert_close(weights, alone["weights"])
    for ours, expected in zip(results, alone["results"], strict=True):
        numbers, others = numbers_of(ours), numbers_of(expected)
        for name, number in others.items():
            np.testing.assert_allclose(numbers[name], number, rtol=1e-4, atol=1e-6, err_msg=name)
    assert algo.learner is None and algo.env_runner is None
    assert algo.learner_group.get_stats()["num_devices"] == 2
    assert "2 cpu device(s) of 2 learner actor(s)" in repr(algo)
    assert algo.memory_estimate()["train_batch"]["num_rows"] == 64


def test_the_actors_evaluate(run, alone):
    _, results, _, _ = run
    numbers = numbers_of(results[-1]["evaluation"])
    expected = numbers_of(alone["evaluation"])
    assert {name: numbers[name] for name in expected} == expected


def test_callbacks_in_all_actors_are_reported_together(run):
    for result in run[1]:
        sampled = result["env_runners"]
        assert sampled["seen"] == sampled["num_episodes"] > 0
        assert sampled["min_env_index"] < NUM_ENVS // 2 <= sampled["max_env_index"]


def test_what_was_learned_acts_in_this_process(run):
    algo = run[0]
    observation = np.array([2.0], np.float32)
    policy = algo.get_policy()
    assert algo.compute_single_action(observation, explore=False) in (0, 1)
    state = algo.get_module().get_state()
    for name, leaf in algo.get_weights()["default_policy"].items():
        np.testing.assert_array_equal(state[name], leaf, err_msg=name)
    assert policy.observation_space == gym.spaces.Box(0.0, np.inf, (1,), np.float32)


def test_checkpoints_go_on_here_and_there(run, alone):
    algo, _, weights, path = run
    # Those of one process, in the actors.
    algo.restore_from_path(alone["path"])
    assert algo.num_env_steps_sampled_lifetime == 128
    algo.train()
    assert_close(algo.get_weights(), alone["later"])
    # Their own, again.
    algo.restore_from_path(path)
    assert_close(algo.get_weights(), weights, tolerance=0.0)
    algo.train()
    assert_close(algo.get_weights(), alone["later"])
    # Their own, in one process.
    other = config_of("ppo", NUM_ACTORS).build_algo()
    other.restore_from_path(path)
    other.train()
    assert_close(other.get_weights(), alone["later"])
    other.stop()


def test_weights_and_settings_reach_all_actors(run):
    algo = run[0]
    weights = jax.tree.map(lambda leaf: leaf + 0.5, algo.get_weights())
    algo.set_weights(weights)
    for call in algo.learner_group.foreach_learner(lambda learner: learner.get_state("rl_module")["rl_module"]):
        assert_close(call.get(), weights, tolerance=0.0)
    assert algo.reset(watched_config().training(lr=0.02))
    assert algo.num_env_steps_sampled_lifetime == 0
    result = algo.train()
    assert result["learners"]["default_policy"]["default_optimizer_learning_rate"] == pytest.approx(0.02)
    assert result["env_runners"]["num_env_steps_sampled_lifetime"] == 64
    assert algo.reset(watched_config())


def test_replay_is_in_the_actors(pickled_by_value, tmp_path):
    expected = trained("dqn", NUM_ACTORS, str(tmp_path / "alone"))
    algo = config_of_actors("dqn").build_algo()
    results = [algo.train() for _ in range(2)]
    assert_close(algo.get_weights(), expected["weights"])
    assert results[-1]["replay_buffer"] == expected["results"][-1]["replay_buffer"]
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    algo = type(algo).from_checkpoint(
        path, env_to_module_connector=tests.joined_processes.filtered, allow=[envs.counter.CounterEnv]
    )
    algo.train()
    assert_close(algo.get_weights(), expected["later"])
    algo.stop()


def test_a_lost_actor_ends_the_run(pickled_by_value, tmp_path):
    algo = config_of_actors().build_algo()
    algo.train()
    pids = [call.get() for call in algo.learner_group.foreach_learner(lambda learner: os.getpid())]
    os.kill(pids[1], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"learner actor was lost.*from_checkpoint\(path\).*The reason was"):
            algo.train()
    algo.stop()


def test_actors_refuse_what_one_process_refuses(pickled_by_value):
    config = config_of_actors().env_runners(num_envs_per_env_runner=15)
    with pytest.raises(ValueError, match="num_envs_per_env_runner=15 must divide by the 2 devices"):
        config.build_algo()
