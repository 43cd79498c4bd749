"""A JAX environment with learner actors: two of them, with a device each, against one process with two devices."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
import tempfile

import gymnasium as gym
import jax
import numpy as np
import pytest

import envs.counter
import tests.joined_processes
from jaxrl_stack import cli
from jaxrl_stack.algorithms.ppo import PPOConfig
from tests.joined_processes import NUM_ENVS, Watching, config_of, trained
from tests.pickled_by_value import pickled_by_value
from tests.test_joined_processes import assert_close, numbers_of

NUM_ACTORS = 2


@pytest.fixture(scope="module", autouse=True)
def own_modules(ray_session):
    """The actors cannot import the tests' modules: what is in them travels with its code."""
    with pickled_by_value(ray_session, sys.modules[__name__], tests.joined_processes, envs.counter):
        yield


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


MARKER = pathlib.Path(tempfile.gettempdir()) / f"jaxrl-stack-callback-raises-{os.getpid()}"
"""Whether the callback of the second actor raises; it is taken away by that."""


class RaisesOnce(Watching):
    num_calls = 0

    def on_episode_end(self, *, env_index, metrics_logger, **kwargs):
        super().on_episode_end(env_index=env_index, metrics_logger=metrics_logger, **kwargs)
        self.num_calls += 1
        metrics_logger.log_value("num_calls_of_object", self.num_calls, reduce="max")
        if env_index >= NUM_ENVS // 2 and MARKER.exists():
            MARKER.unlink()
            raise ZeroDivisionError("a callback")


def watched_config():
    return config_of_actors().callbacks(RaisesOnce).evaluation(evaluation_interval=2)


@pytest.fixture(scope="module")
def run(own_modules, tmp_path_factory):
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


def test_compiling_takes_time_in_the_actors(run):
    first, second = (result["timers"] for result in run[1])
    assert first["compile_s"] > 0.1 and first["device_s"] < first["training_iteration"] - first["compile_s"] + 1e-6
    # The evaluation's program.
    assert second["compile_s"] > 0.0


def test_what_was_learned_is_filmed(run, tmp_path):
    algo = run[0]
    video = algo.record(tmp_path / "x.gif", 3)
    assert len(video.returns) == 3 and set(video.returns) <= {15.0, 14.0, 12.0, 9.0, 5.0}
    # An episode of the evaluation: the same ones again.
    assert algo.record(tmp_path / "y.gif", 3).returns == video.returns


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
    sampled = algo.train()["env_runners"]
    assert_close(algo.get_weights(), alone["later"])
    # Episodes that were running are seen to their end, in all actors.
    assert sampled["seen"] == sampled["num_episodes"]
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
    sampled = result["env_runners"]
    assert sampled["num_env_steps_sampled_lifetime"] == 64
    # Callbacks are new objects.
    assert 0 < sampled["num_calls_of_object"] < sampled["num_episodes"] == sampled["seen"]
    assert algo.reset(watched_config())


def test_training_goes_on_after_a_callback_of_one_actor_has_raised(run):
    algo = run[0]
    before = algo.train()["env_runners"]
    MARKER.touch()
    with pytest.raises(ZeroDivisionError, match="a callback"):
        algo.train()
    assert not MARKER.exists()
    results = [algo.train()["env_runners"] for _ in range(3)]
    # What was sampled in between is in no iteration of its own, and not in the next one.
    assert [result["num_env_steps_sampled"] for result in results] == [64] * 3
    assert results[-1]["num_env_steps_sampled_lifetime"] == before["num_env_steps_sampled_lifetime"] + 4 * 64
    assert results[0]["seen"] < results[0]["num_episodes"] and results[2]["seen"] == results[2]["num_episodes"]


def test_a_run_with_learner_actors_is_evaluated_in_another_environment(own_modules, tmp_path, capsys):
    algo = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .training(train_batch_size_per_learner=32, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_learners=1)
        .build_algo()
    )
    path = algo.save_to_path(tmp_path / "checkpoint")
    algo.stop()
    assert cli.main(["evaluate", path, "--episodes", "2", "--json", "--env", "CartPole-v1"]) == 0
    assert json.loads(capsys.readouterr().out)["env_runners"]["num_episodes"] == 2


def test_replay_is_in_the_actors(own_modules, tmp_path):
    expected = trained("dqn", NUM_ACTORS, str(tmp_path / "alone"))
    algo = config_of_actors("dqn").build_algo()
    results = [algo.train() for _ in range(2)]
    assert_close(algo.get_weights(), expected["weights"])
    assert results[-1]["replay_buffer"] == expected["results"][-1]["replay_buffer"]
    path = algo.save_to_path(tmp_path / "checkpoint")
    for _ in range(2):
        algo.train()
    # What was stored and drawn since is gone.
    algo.restore_from_path(path)
    algo.train()
    assert_close(algo.get_weights(), expected["later"])
    algo.stop()


def test_a_lost_actor_ends_the_run(own_modules, tmp_path):
    algo = config_of_actors().build_algo()
    algo.train()
    pids = [call.get() for call in algo.learner_group.foreach_learner(lambda learner: os.getpid())]
    os.kill(pids[1], signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"learner actor was lost.*from_checkpoint\(path\).*Reason: "):
            algo.train()
    algo.stop()


def test_actors_refuse_what_one_process_refuses(own_modules):
    config = config_of_actors().env_runners(num_envs_per_env_runner=15)
    with pytest.raises(ValueError, match="num_envs_per_env_runner=15 must be a multiple of the learner's 2 devices"):
        config.build_algo()
