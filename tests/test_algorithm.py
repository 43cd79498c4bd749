"""Algorithm and its driver: results, determinism, evaluation, sampling, exact batches, checkpoints."""

from __future__ import annotations

import hashlib
import itertools
import re
import signal
import subprocess
import sys
import types
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from envs.counter import CounterEnv
from envs.fixed_length import FixedLengthEnv
from envs.gymnasium_versions import GymnasiumCounterEnv
from envs.nested import NestedActionEnv
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.checkpoints import needed_code
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FrameStackingEnvToModule, MeanStdFilter, ReturnsSoFar
from jaxrl_stack.connectors.learner import NormalizeRewards
from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.update import Update
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.results import flatten_result
from tests import programs

NUM_ENVS, FRAGMENT = 4, 8
BATCH = NUM_ENVS * FRAGMENT


def tiny(env=CounterEnv, env_config=None, algo_class=None, seed=0, **training):
    if env is CounterEnv:
        env_config = {"terminate_at": 5, "random_start": True, **(env_config or {})}
    return (
        PPOConfig(algo_class=algo_class)
        .environment(env, env_config=env_config or {})
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(
            **{
                "train_batch_size_per_learner": BATCH,
                "minibatch_size": 16,
                "num_epochs": 2,
                "lr": 0.01,
                "grad_clip": 0.5,
                "lambda_": 0.9,
            }
            | training
        )
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .debugging(seed=seed)
    )


def flat(result):
    return flatten_result({key: value for key, value in result.items() if key != "config"})


def learned(result):
    """What must be the same in equal runs: numbers that are known, without times and names."""
    of_the_clock = re.compile(r"^timers/|^perf/|^time|_since_restore$|^pid$|throughput|duration_sec|/sample$|timer$")
    return {
        key: value
        for key, value in flat(result).items()
        if isinstance(value, int | float) and not np.isnan(value) and not of_the_clock.search(key)
    }


def assert_equal_trees(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for (path, x), y in zip(jax.tree.leaves_with_path(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))


@pytest.fixture(scope="module")
def undisturbed():
    """An algorithm of which nothing but training was asked, and what three iterations of it gave."""
    algo = tiny().build_algo()
    results, bits = [], []
    for _ in range(3):
        results.append(learned(algo.train()))
        bits.append(fingerprint(algo))
    yield types.SimpleNamespace(algo=algo, results=results, bits=bits)
    algo.stop()


@pytest.fixture
def algo(undisturbed):
    """For tests that only look, or do not mind in which iteration it is."""
    return undisturbed.algo


# ------------------------------------------------------------------------------------------------------------ results


def test_building_compiles_a_program_for_a_network_not_one_for_each_of_its_arrays():
    clock = CompileClock()
    algo = (
        tiny()
        .rl_module(model_config={"fcnet_hiddens": [5, 6, 7, 9]})
        .env_runners(num_envs_per_env_runner=2)
        .build_algo()
    )
    algo.stop()
    # Parameters alone are 20 arrays of 13 shapes here.
    assert clock.compiles <= 12


def test_results_of_three_iterations():
    algo = tiny(entropy_coeff=[[0, 1.0], [2 * BATCH, 0.0]]).evaluation(evaluation_interval=2).build_algo()
    clock = CompileClock()
    results = [algo.train() for _ in range(2)]
    clock.reset()
    results += [algo.train() for _ in range(2)]
    assert clock.compiles == 0, "nothing compiles once training and evaluation have run"

    first, second = flat(results[0]), flat(results[1])
    assert all(flat(result).keys() == second.keys() for result in results[1:])
    assert second.keys() - first.keys() == {name for name in second if name.startswith("evaluation/")}
    assert first.keys() < second.keys()
    for path in (
        "env_runners/episode_return_mean",
        "env_runners/episode_len_max",
        "env_runners/num_episodes_lifetime",
        "learners/default_policy/policy_loss",
        "learners/default_policy/vf_loss",
        "learners/default_policy/entropy",
        "learners/default_policy/mean_kl_loss",
        "learners/default_policy/curr_kl_coeff",
        "learners/default_policy/total_loss",
        "learners/default_policy/gradients_default_optimizer_global_norm",
        "learners/default_policy/default_optimizer_learning_rate",
        "timers/compile_s",
        "timers/device_s",
        "timers/host_s",
        "time_total_s",
    ):
        assert np.isfinite(first[path]), path

    for i, result in enumerate(results, start=1):
        values = flat(result)
        assert values["training_iteration"] == result["iterations_since_restore"] == i
        assert values["num_env_steps_sampled_lifetime"] == i * BATCH
        assert values["env_runners/num_env_steps_sampled"] == BATCH
        assert values["env_runners/num_module_steps_sampled_lifetime/default_policy"] == i * BATCH
        assert values["num_training_step_calls_per_iteration"] == 1
        # Two epochs of 32 rows.
        assert values["learners/default_policy/num_module_steps_trained"] == 2 * BATCH
        assert values["learners/__all_modules__/num_env_steps_trained_lifetime"] == i * 2 * BATCH
        assert values["learners/default_policy/weights_seq_no"] == values["env_runners/weights_seq_no"] == i
        # The first update takes the value at 0 steps.
        coefficient = max(0.0, 1.0 - (i - 1) / 2.0)
        assert values["learners/default_policy/curr_entropy_coeff"] == pytest.approx(coefficient, abs=1e-6)
        parts = values["timers/compile_s"] + values["timers/device_s"] + values["timers/host_s"]
        assert parts == pytest.approx(values["time_this_iter_s"], rel=1e-6)
        assert i == 1 or np.isfinite(values["evaluation/env_runners/episode_return_mean"])
    evaluations = [result.get("evaluation") for result in results]
    assert evaluations[2] == evaluations[1] != evaluations[3]
    assert flat(results[0])["timers/compile_s"] > 0.0 and flat(results[3])["timers/compile_s"] < 0.1
    assert results[3]["time_total_s"] >= sum(r["time_this_iter_s"] for r in results) * 0.99
    algo.stop()
    with pytest.raises(RuntimeError, match="was stopped"):
        algo.train()


class RecordsEpisodes(RLlibCallback):
    def __init__(self):
        self.ended, self.samples = [], []

    def on_episode_end(self, *, episode, **kwargs):
        self.ended.append((float(np.sum(episode.get_rewards())), len(episode)))

    def on_sample_end(self, *, samples, **kwargs):
        self.samples.append(samples)


@pytest.mark.parametrize("num_devices", [1, 2])
def test_statistics_are_a_recount_of_the_sampled_episodes(num_devices):
    window = 7
    algo = (
        tiny()
        .callbacks(RecordsEpisodes)
        .learners(num_cpus_per_learner=num_devices)
        .reporting(metrics_num_episodes_for_smoothing=window)
        .build_algo()
    )
    (recorder,) = algo.callbacks.callbacks
    so_far = 0
    for _ in range(3):
        result = algo.train()["env_runners"]
        assert result["num_episodes"] == len(recorder.ended) - so_far
        so_far = len(recorder.ended)
        assert result["num_episodes_lifetime"] == so_far
        # Rewards t + 1 ... 5 of an episode that starts at t: the return follows from the length.
        assert all(g == sum(range(6 - n, 6)) for g, n in recorder.ended)
        returns, lengths = np.array(recorder.ended).T
        in_window = sorted(returns[-window:]), sorted(lengths[-window:])
        for name, values in (("return", in_window[0]), ("len", in_window[1])):
            # Episodes that end in the same vector step have no order: the edge of the window may fall among them.
            assert result[f"episode_{name}_min"] in values and result[f"episode_{name}_max"] in values
        if num_devices == 1:
            assert result["episode_return_mean"] == pytest.approx(np.mean(in_window[0]))
            assert result["episode_len_mean"] == pytest.approx(np.mean(in_window[1]))
            assert result["episode_return_min"] == in_window[0][0]
            assert result["episode_len_max"] == in_window[1][-1]
    algo.stop()


def test_min_sample_timesteps_and_training_step():
    class Twice(PPO):
        def training_step(self):
            super().training_step()
            super().training_step()
            self.metrics.log_value("twice", 2.0, window=1)

    algo = tiny(algo_class=Twice).reporting(min_sample_timesteps_per_iteration=5 * BATCH).build_algo()
    result = algo.train()
    assert result["num_training_step_calls_per_iteration"] == 3
    assert result["num_env_steps_sampled_lifetime"] == 6 * BATCH and result["training_iteration"] == 1
    assert result["twice"] == 2.0
    assert result["learners"][DEFAULT_MODULE_ID]["weights_seq_no"] == 6
    assert result["learners"][DEFAULT_MODULE_ID]["num_module_steps_trained"] == 6 * 2 * BATCH
    algo.stop()

    # Likewise with environments on the host.
    config = programs.ppo("CartPole-v1")
    batch = config.train_batch_size_per_learner
    algo = config.reporting(min_sample_timesteps_per_iteration=3 * batch).build_algo()
    for iteration in (1, 2):
        learners = algo.train()["learners"]
        for counts in (learners[DEFAULT_MODULE_ID], learners[ALL_MODULES]):
            steps = config.num_epochs * batch
            assert counts["num_module_steps_trained"] == 3 * steps
            assert counts["num_module_steps_trained_lifetime"] == 3 * iteration * steps
    # An iteration without an update has trained no steps.
    algo.driver.start_iteration()
    assert algo.driver.learner_results(0)[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 0
    algo.stop()

    class Returns(PPO):
        def training_step(self):
            super().training_step()
            return {"loss": 1.0}

    with pytest.raises(ValueError, match=r"Returns.training_step\(\) must return None, but returned dict"):
        tiny(algo_class=Returns).build_algo().train()


class HostHooks(PPOLearner):
    def before_gradient_based_update(self, *, timesteps):
        self.metrics.log_value("before", timesteps["num_env_steps_sampled_lifetime"], window=1)

    def after_gradient_based_update(self, *, timesteps):
        weights = self.module[DEFAULT_MODULE_ID].get_state()
        self.metrics.log_value((DEFAULT_MODULE_ID, "size"), sum(np.abs(w).sum() for w in weights.values()), window=1)


def test_host_hooks_of_the_learner_reach_the_result():
    algo = tiny().learners(learner_class=HostHooks).build_algo()
    for i in (1, 2):
        result = algo.train()["learners"]
        assert result["before"] == i * BATCH
        weights = algo.get_weights()[DEFAULT_MODULE_ID]
        assert result[DEFAULT_MODULE_ID]["size"] == pytest.approx(sum(np.abs(w).sum() for w in weights.values()))
    algo.stop()


# -------------------------------------------------------------------------------------------------------- determinism


def fingerprint(algo):
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(algo.learner.get_state()):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()


def two_iterations(algo):
    results = [algo.train() for _ in range(2)]
    return learned(results[-1]), fingerprint(algo)


def test_equal_seeds_give_equal_bits_in_this_process_and_in_another(undisturbed):
    bits = undisturbed.bits[1]
    algo = tiny().build_algo()
    assert two_iterations(algo) == (undisturbed.results[1], bits)
    assert algo.reset(tiny(seed=1))
    _, other_bits = two_iterations(algo)
    assert bits != other_bits
    algo.stop()
    code = "from tests.test_algorithm import tiny, two_iterations; print(two_iterations(tiny().build_algo())[1])"
    root = Path(__file__).parents[1]
    process = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == bits


def test_looking_leaves_no_trace_in_training(undisturbed):
    watched = undisturbed.algo
    assert watched.reset(tiny())
    observation = np.array([1.0], np.float32)
    for i, expected in enumerate(undisturbed.results):
        assert learned(watched.train()) == expected, i
        watched.evaluate()
        watched.env_runner.sample(num_episodes=2)
        watched.compute_single_action(observation)
        watched.get_module().forward_inference({"obs": observation[None]})
        watched.save_to_path()
    assert fingerprint(watched) == undisturbed.bits[-1]


# --------------------------------------------------------------------------------------------------------- evaluation


def test_evaluation_does_not_favour_short_episodes():
    config = tiny(FixedLengthEnv, {"short_length": 1, "long_length": 100}).env_runners(num_envs_per_env_runner=64)
    config.training(train_batch_size_per_learner=64, minibatch_size=None).evaluation(evaluation_duration=400)
    algo = config.build_algo()
    result = algo.evaluate()["env_runners"]
    assert result["num_episodes"] == 400
    # Half of them have the length 1 and the return 0, half 100 and 1: 0.5 with a standard deviation of 0.025.
    assert abs(result["episode_return_mean"] - 0.5) < 0.1
    # Not by chance, but because the long ones count as often as they start.
    assert result["episode_len_mean"] == pytest.approx(1 + 99 * result["episode_return_mean"])
    assert (result["episode_len_min"], result["episode_len_max"]) == (1, 100)
    assert result["num_env_steps_sampled"] == pytest.approx(400 * result["episode_len_mean"])
    # Every evaluation has other episodes.
    algo.train()
    assert algo.evaluate()["env_runners"]["num_env_steps_sampled"] != result["num_env_steps_sampled"]
    algo.stop()


def test_evaluation_in_timesteps_with_a_config_of_its_own():
    algo = (
        tiny()
        .evaluation(
            evaluation_duration=30,
            evaluation_duration_unit="timesteps",
            evaluation_interval=2,
            evaluation_config={
                "env_config": {"terminate_at": 3, "random_start": False},
                "explore": False,
                "num_envs_per_env_runner": 2,
            },
        )
        .build_algo()
    )
    assert algo.config.env_config["terminate_at"] == 5
    result = algo.evaluate()["env_runners"]
    # 15 steps of 2 environments; every episode is 3 steps long and pays 1 + 2 + 3.
    assert result["num_env_steps_sampled"] == 30 and result["num_episodes"] == 10
    assert result["episode_len_mean"] == 3.0 and result["episode_return_mean"] == 6.0
    algo.stop()


# ----------------------------------------------------------------------------------------------------- interruptions


class RaisesOnce(RLlibCallback):
    raised = False

    def on_train_result(self, *, result, **kwargs):
        if result["training_iteration"] == 2 and not self.raised:
            self.raised = True
            raise KeyboardInterrupt


def test_an_interrupted_algorithm_goes_on_where_it_was(undisturbed):
    algo = tiny().callbacks(RaisesOnce).build_algo()
    algo.train()
    with pytest.raises(KeyboardInterrupt):
        algo.train()
    assert algo.iteration == 2
    assert learned(algo.train()) == undisturbed.results[-1]
    assert fingerprint(algo) == undisturbed.bits[-1]

    # Ctrl-C at any moment: the step is done or it is not, and the algorithm stays usable.
    rng = np.random.default_rng(0)
    alarm = signal.signal(signal.SIGALRM, lambda *args: signal.raise_signal(signal.SIGINT))
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    num_interrupts = 0
    try:
        for _ in range(40):
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, 4e-3))
                for _ in range(20):
                    algo.train()
            except KeyboardInterrupt:
                num_interrupts += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
    finally:
        signal.signal(signal.SIGALRM, alarm)
        signal.signal(signal.SIGINT, interrupt)
    assert num_interrupts > 20
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == BATCH * result["learners"][DEFAULT_MODULE_ID]["weights_seq_no"]
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(algo.get_weights()))
    algo.stop()


# -------------------------------------------------------------------------------------------------- actions, weights


class BoxActionEnv(ConfiguredEnv):
    """Actions of unequal bounds; one step."""

    @property
    def observation_space(self):
        return gym.spaces.Box(-1.0, 1.0, (2,), np.float32)

    @property
    def action_space(self):
        return gym.spaces.Box(np.float32([-2.0, 0.0]), np.float32([4.0, 1.0]))

    def reset_env(self, key, params):
        return jax.random.uniform(key, (2,), minval=-1.0), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return jnp.zeros(2), state, action.sum(), True, False, {}


def test_single_actions_for_discrete_spaces(algo):
    observation = np.array([2.0], np.float32)
    logits = algo.get_module().forward_inference({"obs": observation[None]})["action_dist_inputs"][0]
    greedy = algo.compute_single_action(observation, explore=False)
    assert greedy == np.argmax(logits) and algo.driver.rollout.env.action_space.contains(greedy)
    action, state, outputs = algo.compute_single_action(observation, full_fetch=True)
    assert state == {} and action in (0, 1)
    np.testing.assert_allclose(outputs["action_dist_inputs"], logits, rtol=1e-5, atol=1e-6)
    logp = np.asarray(jax.nn.log_softmax(logits))[action]
    assert outputs["action_logp"] == pytest.approx(logp, abs=1e-5)
    assert {int(algo.compute_single_action(observation)) for _ in range(40)} == {0, 1}
    assert set(algo.compute_actions({"x": observation, "y": observation}, explore=False)) == {"x", "y"}
    with pytest.raises(ValueError, match="observation"):
        algo.compute_single_action(np.zeros(2, np.float32))
    with pytest.raises(KeyError, match="No module 'other'"):
        algo.compute_single_action(observation, policy_id="other")


class NotesTheModule(ConnectorV2):
    """Runs on the host and remembers which module it was for."""

    seen: list = []

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        self.seen.append(rl_module.is_stateful())
        return batch


@pytest.mark.parametrize("place", ["device", "host connectors"])
def test_a_single_action_is_that_of_the_module_that_is_asked_for(place):
    modules = {
        DEFAULT_MODULE_ID: RLModuleSpec(model_config={"fcnet_hiddens": [8]}),
        "other": RLModuleSpec(model_config={"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4}),
        "observer": RLModuleSpec(model_config={"fcnet_hiddens": [8]}, learner_only=True),
    }
    config = tiny(CounterEnv if place == "device" else GymnasiumCounterEnv)
    config.environment(env_config={"terminate_at": 5}).env_runners(num_env_runners=0)
    config.rl_module(model_config={}, rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules))
    if place == "host connectors":
        config.env_runners(env_to_module_connector=lambda env, spaces: NotesTheModule())
    algo = config.build_algo()
    observation = np.array([2.0], np.float32)
    _, state, outputs = algo.compute_single_action(observation, explore=False, policy_id="other", full_fetch=True)
    _, after, more = algo.compute_single_action(observation, state, explore=True, policy_id="other")
    _, own, _ = algo.compute_single_action(observation, explore=False, full_fetch=True)
    assert own == {} and NotesTheModule.seen[-3:] == ([True, True, False] if place == "host connectors" else [])
    module = algo.get_module("other")
    zeros = jax.tree.map(np.zeros_like, module.get_initial_state())
    for before, expected_state, acted in ((zeros, state, outputs), (state, after, more)):
        start = jax.tree.map(lambda x: x[None], before)
        expected = module.forward_inference({"obs": observation[None, None], "state_in": start})
        logits = expected["action_dist_inputs"][0, 0]
        np.testing.assert_allclose(acted["action_dist_inputs"], logits, rtol=1e-5, atol=1e-6)
        for given, wanted in zip(*map(jax.tree.leaves, (expected_state, expected["state_out"])), strict=True):
            np.testing.assert_allclose(given, wanted[0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"'observer' does not act: .*Use one of \['default_policy', 'other'\]"):
        algo.compute_single_action(observation, policy_id="observer")
    NotesTheModule.seen.clear()
    algo.stop()


@pytest.mark.parametrize("normalize", [True, False])
def test_single_actions_for_boxes(normalize):
    config = tiny(BoxActionEnv).environment(normalize_actions=normalize, clip_actions=True)
    algo = config.build_algo()
    space = algo.driver.rollout.env.action_space
    observation = np.array([0.5, -0.5], np.float32)
    mean = algo.get_module().forward_inference({"obs": observation[None]})["action_dist_inputs"][0, :2]
    scaled = space.low + (mean + 1.0) / 2.0 * (space.high - space.low) if normalize else mean
    greedy = algo.compute_single_action(observation, explore=False)
    np.testing.assert_allclose(greedy, np.clip(scaled, space.low, space.high), rtol=1e-5, atol=1e-6)
    actions = np.stack([algo.compute_single_action(observation) for _ in range(30)])
    assert actions.dtype == np.float32 and all(space.contains(action) for action in actions)
    assert (actions.std(0) > 0).all()
    algo.stop()


def test_single_actions_for_nested_spaces():
    algo = tiny(NestedActionEnv).build_algo()
    space = algo.driver.rollout.env.action_space
    actions = [algo.compute_single_action(np.array([0.25], np.float32)) for _ in range(10)]
    assert all(space.contains(action) for action in actions)
    assert len({action["move"].item() for action in actions}) > 1
    algo.stop()


def test_weights_move_between_algorithms(algo):
    other = tiny(seed=7).build_algo()
    observation = np.linspace(0, 5, 6, dtype=np.float32)[:, None]

    def logits(algorithm):
        return algorithm.get_module().forward_inference({"obs": observation})["action_dist_inputs"]

    weights = algo.get_weights()
    assert set(weights) == {DEFAULT_MODULE_ID}
    assert np.abs(logits(algo) - logits(other)).max() > 1e-3
    other.set_weights(weights)
    np.testing.assert_array_equal(logits(algo), logits(other))
    assert_equal_trees(other.get_weights(), weights)
    greedy = [a.compute_single_action(observation[3], explore=False) for a in (algo, other)]
    assert greedy[0] == greedy[1]
    assert set(algo.get_weights([])) == set()
    with pytest.raises(KeyError, match="No module 'other'"):
        other.get_module("other")
    other.stop()


# ----------------------------------------------------------------------------------------------------------- sampling


def test_sampling_episodes(algo):
    runner = algo.env_runner
    episodes = runner.sample(num_episodes=6)
    assert len(episodes) == 6 and all(e.is_terminated and not e.is_truncated for e in episodes)
    for episode in episodes:
        observations, rewards = episode.get_observations(), episode.get_rewards()
        assert len(observations) == len(episode) + 1 and observations[-1] == 5.0
        np.testing.assert_array_equal(np.diff(observations[:, 0]), 1.0)
        np.testing.assert_array_equal(rewards, observations[1:, 0])
        logp = episode.get_extra_model_outputs("action_logp")
        logits = episode.get_extra_model_outputs("action_dist_inputs")
        actions = episode.get_actions()
        expected = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), actions[:, None], axis=1)[:, 0]
        np.testing.assert_allclose(logp, expected, atol=1e-5)
    assert len({e.id_ for e in episodes}) == 6
    with pytest.raises(ValueError, match="pass one of them"):
        runner.sample(num_episodes=1, num_timesteps=1)


def test_sampling_timesteps_continues_running_episodes(algo):
    runner = algo.env_runner
    first = runner.sample(num_timesteps=3 * NUM_ENVS, force_reset=True)
    assert sum(len(e) for e in first) == 3 * NUM_ENVS
    running = {e.id_: e for e in first if not e.is_done}
    second = runner.sample(num_timesteps=3 * NUM_ENVS)
    assert sum(len(e) for e in second) == 3 * NUM_ENVS
    continued = [e for e in second if e.id_ in running]
    assert len(continued) == len(running) > 0
    for connector in continued:
        before = running[connector.id_]
        assert connector.t_started == before.t
        np.testing.assert_array_equal(connector.get_observations(0), before.get_observations(-1))
    # By default a fragment of every environment; a reset drops what runs.
    third = runner.sample(force_reset=True)
    assert sum(len(e) for e in third) == BATCH
    assert not {e.id_ for e in third} & {e.id_ for e in second}


def test_greedy_and_random_actions(algo):
    runner = algo.env_runner
    for episode in runner.sample(num_episodes=4, explore=False):
        logits = episode.get_extra_model_outputs("action_dist_inputs")
        np.testing.assert_array_equal(episode.get_actions(), np.argmax(logits, axis=-1))
    actions = np.concatenate([e.get_actions() for e in runner.sample(num_timesteps=400, random_actions=True)])
    # 400 coins: 0.5 with a standard deviation of 0.025.
    assert abs(actions.mean() - 0.5) < 0.12


class CounterOnTheHost(gym.Env):
    """What `CounterEnv` does, on the host."""

    observation_space = gym.spaces.Box(0.0, np.inf, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config):
        self.t = 0

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), self.t == 5, False, {}


CLIPPED: list = []


class RecordsRewards(Update):
    """Hands rewards and observations of every batch, as the learner pipeline gets them, to the host."""

    def connect(self, state, batch, *args, **kwargs):
        own = batch[DEFAULT_MODULE_ID]
        columns = own[Columns.REWARDS], own[Columns.OBS], own.get(Columns.LOSS_MASK, True)
        jax.debug.callback(lambda *x: CLIPPED.append([np.asarray(c) for c in x]), *columns)
        return super().connect(state, batch, *args, **kwargs)


class LearnerThatRecordsRewards(PPOLearner):
    update_class = RecordsRewards


class Passes(ConnectorV2):
    """A learner connector that runs on the host, so that training takes episodes."""

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            assert episode.get_return() == pytest.approx(np.asarray(episode.get_observations())[1:].sum())
        return batch


@pytest.mark.parametrize(
    ("driver", "clip"), [("device", True), ("blocks", 2.5), ("complete_episodes", 2.5), ("host_connector", True)]
)
def test_rewards_are_clipped_where_the_learner_reads_them(driver, clip):
    expected = np.sign if clip is True else lambda rewards: np.clip(rewards, -clip, clip)
    asked = tiny(CounterEnv if driver == "device" else CounterOnTheHost)
    asked.environment(clip_rewards=clip).learners(learner_class=LearnerThatRecordsRewards)
    if driver != "blocks":
        asked.callbacks(RecordsEpisodes)
    if driver == "complete_episodes":
        asked.env_runners(batch_mode="complete_episodes")
    if driver == "host_connector":
        asked.learners(learner_connector=lambda obs_space, action_space: [Passes()])
    if driver != "device":
        asked.env_runners(num_env_runners=0)
    algo = asked.build_algo()
    CLIPPED.clear()
    result = algo.train()
    jax.effects_barrier()
    for rewards, obs, mask in CLIPPED:
        own = np.broadcast_to(mask, rewards.shape)
        np.testing.assert_array_equal(rewards[own], expected(obs[..., 0] + 1)[own])
    assert CLIPPED
    # Everything else sees the environment's own rewards.
    assert result["env_runners"]["episode_return_max"] == 15.0
    if driver != "blocks":
        runner = algo if driver == "device" else algo.env_runner
        (recorder,) = runner.callbacks.callbacks
        for episode in recorder.samples[0]:
            np.testing.assert_array_equal(episode.get_rewards(), np.asarray(episode.get_observations())[1:, 0])
        assert max(episode_return for episode_return, _ in recorder.ended) == 15.0
    algo.env_runner.metrics.reset()
    episodes = algo.env_runner.sample(num_episodes=4)
    for episode in episodes:
        assert episode.get_return() == np.asarray(episode.get_observations())[1:, 0].sum()
    returns = [episode.get_return() for episode in episodes]
    assert algo.env_runner.get_metrics()["episode_return_max"].peek() == max(returns) > 5.0
    algo.stop()


# ------------------------------------------------------------------------------------- the batch that the loss sees


class EndingsEnv(ConfiguredEnv):
    """Episodes of 1 to 6 steps, half of which terminate and half of which are truncated; shows ``[t, length]``."""

    @property
    def observation_space(self):
        return gym.spaces.Box(0.0, 10.0, (2,), np.float32)

    @property
    def action_space(self):
        return gym.spaces.Discrete(2)

    def reset_env(self, key, params):
        length_key, kind_key = jax.random.split(key)
        state = (jnp.int32(0), jax.random.randint(length_key, (), 1, 7), jax.random.bernoulli(kind_key))
        return self._observe(state), state

    def step_env(self, key, state, action, params):
        t, length, truncates = state
        state = (t + 1, length, truncates)
        ended = t + 1 >= length
        reward = 1.0 + 0.5 * t + 0.25 * action
        return self._observe(state), state, reward, ended & ~truncates, ended & truncates, {}

    def _observe(self, state):
        return jnp.stack([state[0], state[1]]).astype(jnp.float32)


class KeepRaw(ConnectorV2):
    """Keeps the environment's observation as a column."""

    def apply(self, state, batch, ctx):
        return state, {mid: {**columns, "raw": columns[Columns.OBS]} for mid, columns in batch.items()}


RECORDED: list = []


class RecordsBatches(Update):
    """Hands every batch to the host, with the weights of before the update."""

    def connect(self, state, batch, *args, **kwargs):
        new_state, out = super().connect(state, batch, *args, **kwargs)
        jax.debug.callback(lambda *x: RECORDED.append(x), state.params, out[DEFAULT_MODULE_ID])
        return new_state, out


class LearnerThatRecordsBatches(PPOLearner):
    update_class = RecordsBatches


def forward_values(params, observations):
    """The value function of one hidden layer, in NumPy."""
    p = {ref.removeprefix("default_policy/"): np.asarray(value, np.float64) for ref, value in params.items()}
    hidden = observations @ p["encoder/critic/dense_0/kernel"] + p["encoder/critic/dense_0/bias"]
    return (np.tanh(hidden) @ p["vf/dense_0/kernel"] + p["vf/dense_0/bias"])[..., 0]


class Filter:
    """Mean and standard deviation of all rows so far, in float64."""

    def __init__(self):
        self.rows = np.zeros((0, 4))

    def __call__(self, x, update):
        if update:
            self.rows = np.concatenate([self.rows, x])
        return np.clip((x - self.rows.mean(0)) / (self.rows.std(0, ddof=1) + 1e-8), -10.0, 10.0)


def test_advantages_are_exact_through_stateful_connectors_terminations_and_time_limits():
    """Every number of the batch from the environment's raw observations, by another way: episode by episode."""
    num_rounds = 2
    gamma, lambda_ = 0.9, 0.7
    config = tiny(EndingsEnv, gamma=gamma, lambda_=lambda_).learners(learner_class=LearnerThatRecordsBatches)
    config.rl_module(model_config={"fcnet_hiddens": [8], "fcnet_activation": "tanh"})
    config.env_runners(
        env_to_module_connector=lambda env, spaces, device: [
            KeepRaw(),
            FrameStackingEnvToModule(num_frames=2),
            MeanStdFilter(),
        ]
    )
    config.env_runners(rollout_fragment_length=FRAGMENT // num_rounds)
    algo = config.build_algo()
    RECORDED.clear()
    for _ in range(2):
        algo.train()
    jax.effects_barrier()
    algo.stop()
    assert len(RECORDED) == 2

    filtered, kinds = Filter(), set()
    history, last_ended = np.zeros((NUM_ENVS, 2)), np.ones(NUM_ENVS, bool)
    for params, columns in RECORDED:
        # [T, R * B] side by side, back to the order of time: [R * T, B].
        columns = {
            name: np.asarray(x).reshape(-1, num_rounds, NUM_ENVS, *x.shape[2:]).swapaxes(0, 1)
            for name, x in columns.items()
        }
        columns = {name: x.reshape(-1, NUM_ENVS, *x.shape[3:]) for name, x in columns.items()}
        raw, num_steps = columns["raw"].astype(np.float64), FRAGMENT
        terminated, truncated = columns["terminateds"], columns["truncateds"]
        assert raw.shape == (num_steps, NUM_ENVS, 2) and not (terminated & truncated).any()
        np.testing.assert_array_equal(terminated | truncated, raw[..., 0] + 1 >= raw[..., 1])
        np.testing.assert_array_equal(columns["rewards"], 1.0 + 0.5 * raw[..., 0] + 0.25 * columns["actions"])

        values, next_values = np.zeros((2, num_steps, NUM_ENVS))
        for t in range(num_steps):
            history = np.where(last_ended[:, None], 0.0, history)
            obs = filtered(np.concatenate([history, raw[t]], axis=-1), update=True)
            np.testing.assert_allclose(columns["obs"][t], obs, rtol=1e-4, atol=1e-4)
            values[t] = forward_values(params, obs)
            # What the step led to, before any reset: one step further in the same episode.
            final = np.concatenate([raw[t], raw[t] + [1.0, 0.0]], axis=-1)
            next_values[t] = forward_values(params, filtered(final, update=False))
            history, last_ended = raw[t], terminated[t] | truncated[t]

        advantages = np.zeros((num_steps, NUM_ENVS))
        for env in range(NUM_ENVS):
            start = 0
            for t in range(num_steps):
                # A connector ends with its episode, or with its fragment.
                is_cut = (t + 1) % (num_steps // num_rounds) == 0
                if not (terminated[t, env] or truncated[t, env] or is_cut):
                    continue
                kinds.add("terminated" if terminated[t, env] else "truncated" if truncated[t, env] else "cut")
                next_value = 0.0 if terminated[t, env] else next_values[t, env]
                connector = range(start, t + 1)
                following = [*values[start + 1 : t + 1, env], next_value]
                deltas = [
                    columns["rewards"][i, env] + gamma * v - values[i, env]
                    for i, v in zip(connector, following, strict=True)
                ]
                for i in connector:
                    weights = (gamma * lambda_) ** np.arange(t + 1 - i)
                    advantages[i, env] = np.dot(weights, deltas[i - start :])
                start = t + 1
        np.testing.assert_allclose(columns["value_targets"], advantages + values, rtol=1e-4, atol=1e-4)
        standardized = (advantages - advantages.mean()) / advantages.std()
        np.testing.assert_allclose(columns["advantages"], standardized, rtol=1e-3, atol=1e-3)
    assert kinds == {"terminated", "truncated", "cut"}


def assert_eager_run_equals_compiled_one(config):
    def run(disable_jit):
        algo = config.copy().debugging(disable_jit=disable_jit).build_algo()
        before = algo.get_weights()
        algo.train()
        state = algo.learner.get_state("rl_module")
        assert any((x != y).any() for x, y in zip(*map(jax.tree.leaves, (before, algo.get_weights())), strict=True))
        algo.stop()
        return state

    for (path, x), y in zip(jax.tree.leaves_with_path(run(False)), jax.tree.leaves(run(True)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5, err_msg=jax.tree_util.keystr(path))


def test_eager_runs_equal_compiled_ones():
    config = tiny(EndingsEnv, train_batch_size_per_learner=4, minibatch_size=2, num_epochs=1, grad_clip=None)
    # Every operation is compiled once for each shape: all sizes are 2.
    config.rl_module(model_config={"fcnet_hiddens": [2]}).env_runners(num_envs_per_env_runner=2)
    assert_eager_run_equals_compiled_one(config)


class OneLayer(RLModule):
    """Logits of both actions from the observation."""

    def setup(self):
        self.logits = nnx.Linear(1, 2, use_bias=False, rngs=self.rngs)  # each shape has programs of its own

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.logits(batch[Columns.OBS])}


class PrefersWhatItDid(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        chosen = jnp.where(batch[Columns.ACTIONS][..., None] == jnp.arange(2), fwd_out[Columns.ACTION_DIST_INPUTS], 0.0)
        return -jnp.sum(chosen)


def test_eager_runs_of_a_small_learner_equal_compiled_ones():
    """The drivers' part of an eager run: every operation of it is compiled alone, so the loss has few."""
    config = tiny(train_batch_size_per_learner=2, minibatch_size=None, num_epochs=1, grad_clip=None)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=OneLayer)).env_runners(num_envs_per_env_runner=1)
    config.learners(learner_class=PrefersWhatItDid, add_default_connectors_to_learner_pipeline=False)
    config.experimental(_static_settings=sorted(config.traced_values()))
    assert_eager_run_equals_compiled_one(config)


class DivergesLater(PPOLearner):
    def compute_loss_for_module(self, **kwargs):
        loss = super().compute_loss_for_module(**kwargs)
        return loss / jnp.where(kwargs["config"].entropy_coeff < 0.5, 0.0, 1.0)


def test_check_nans_names_the_iteration():
    algo = (
        tiny(entropy_coeff=[[0, 1.0], [2 * BATCH, 0.0]], minibatch_size=None, num_epochs=1)
        .learners(learner_class=DivergesLater)
        .debugging(check_nans=True)
        .build_algo()
    )
    algo.train()
    algo.train()
    with pytest.raises(FloatingPointError, match="Non-finite loss in module 'default_policy', iteration 3"):
        algo.train()
    algo.stop()


# -------------------------------------------------------------------------------------------------------- checkpoints


def test_a_restored_run_goes_on_bit_for_bit(tmp_path, algo):
    config = (
        tiny(EndingsEnv)
        .env_runners(env_to_module_connector=lambda env, spaces, device: [ReturnsSoFar(), MeanStdFilter()])
        .learners(learner_connector=lambda observation_space, action_space: NormalizeRewards())
    )
    original = config.build_algo()
    original.train()
    path = original.save_to_path(tmp_path / "checkpoint")
    expected = [learned(original.train()) for _ in range(2)]

    restored = config.build_algo()
    restored.train()
    restored.restore_from_path(path)
    assert restored.iteration == 1
    results = [restored.train() for _ in range(2)]
    for result, wanted in zip(results, expected, strict=True):
        assert learned(result) == wanted
    assert [result["iterations_since_restore"] for result in results] == [1, 2]
    assert results[1]["time_since_restore"] < results[1]["time_total_s"]
    assert fingerprint(restored) == fingerprint(original)

    # What does not fit is left as it was.
    before = fingerprint(algo)
    with pytest.raises(ValueError, match="does not fit"):
        algo.restore_from_path(path)
    assert fingerprint(algo) == before
    with pytest.raises(FileNotFoundError, match="No checkpoint"):
        algo.restore_from_path(tmp_path / "nothing")
    original.stop()
    restored.stop()


def test_an_algorithm_from_its_checkpoint(tmp_path, algo, monkeypatch):
    path = algo.save_to_path(tmp_path / "checkpoint")
    monkeypatch.setattr(needed_code, "_written_here", {})  # as in another process
    with pytest.raises(
        ValueError, match=r"(?s)needs code outside of.*'envs.counter:CounterEnv'.*allow=\[envs.counter.CounterEnv\]"
    ):
        PPO.from_checkpoint(path)
    copy = PPO.from_checkpoint(path, config=tiny())
    assert copy.config.env_config == algo.config.env_config and copy.iteration == algo.iteration
    assert fingerprint(copy) == fingerprint(algo)
    assert learned(copy.train()) == learned(algo.train())
    assert fingerprint(copy) == fingerprint(algo)
    copy.stop()


# -------------------------------------------------------------------------------------------------- wrong arguments


def test_wrong_arguments():
    with pytest.raises(TypeError, match="unknown arguments \\['logger'\\]"):
        PPO(tiny(), logger=None)
    assert PPO(tiny(EndingsEnv), env=FixedLengthEnv).config.env is FixedLengthEnv


def test_kept_weights_and_modules_stay_what_they_were():
    algo = tiny().build_algo()
    algo.train()
    weights = algo.get_weights()
    state = algo.learner.get_state()
    copies = jax.tree.map(np.array, (weights, state))
    module = algo.get_module()
    observation = np.array([[1.0]], np.float32)
    for _ in itertools.repeat(None, 3):
        algo.train()
        assert np.isfinite(module.forward_inference({"obs": observation})["action_dist_inputs"]).all()
    assert_equal_trees((weights, state), copies)
    newest = algo.get_module().forward_inference({"obs": observation})["action_dist_inputs"]
    assert np.isfinite(newest).all()
    assert (jax.tree.leaves(algo.get_weights())[0] != jax.tree.leaves(weights)[0]).any()
    algo.stop()
    # Even after stop().
    module.forward_inference({"obs": observation})
