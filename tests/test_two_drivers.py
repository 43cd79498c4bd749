"""One definition, two drivers: what the device samples, repeated on the host, makes the same update."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig, DQNLearner
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view
from tests.drawn_rows import RecordsRows, recorded_iteration

NUM_ENVS, NUM_STEPS, TIME_LIMIT = 4, 32, 11
ENV, ENV_CONFIG = "gymnax/CartPole-v1", {"max_steps_in_episode": TIME_LIMIT}


def config(env=ENV, env_config=None, **networks):
    return (
        PPOConfig()
        .environment(env, env_config=ENV_CONFIG if env_config is None else env_config)
        .env_runners(num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .training(
            train_batch_size_per_learner=NUM_ENVS * NUM_STEPS,
            minibatch_size=None,
            num_epochs=3,
            lr=[[0, 0.01], [1000, 0.001]],
            gamma=0.97,
            lambda_=0.9,
        )
        .rl_module(model_config={"fcnet_hiddens": [8], "fcnet_activation": "tanh", **networks})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=5)
    )


def sampled_block(algo):
    """The train batch of the first iteration, ``{column: [T, B, ...]}``, and the keys that the environments used."""
    learner = algo.learner
    place = dataclasses.replace(algo.driver.program, settings=learner.settings())
    runner = jax.tree.map(lambda x: x[0], host_view(algo.driver.shards.state))
    state = host_view(learner.state)

    def sample(learner, runner):
        whole = TrainState(learner, place.started(runner, learner), timesteps=counters.zero())
        return place.sample(whole, algo.driver.plan_samples(NUM_STEPS))[1].modules

    columns = jax.jit(sample)(state, runner)[DEFAULT_MODULE_ID]
    _, key = jax.random.split(runner.key)
    step_keys = jax.random.split(key, (NUM_STEPS, 1 + NUM_ENVS))[:, 1:]
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(5), 2), 0)
    reset_keys = jax.random.split(jax.random.split(key)[1], NUM_ENVS)
    return jax.device_get(columns), reset_keys, step_keys


def replayed_episodes(columns, reset_keys, step_keys):
    """The same trajectories, stepped in gymnasium environments with the recorded actions."""
    episodes = []
    for index in range(NUM_ENVS):
        env = GymnasiumFromJax(ENV, ENV_CONFIG)
        env.replay(reset_keys[index], step_keys[:, index])
        episode = SingleAgentEpisode()
        episode.add_env_reset(env.reset()[0])
        for t in range(NUM_STEPS):
            row = {name: column[t, index] for name, column in columns.items() if name != Columns.STATE_IN}
            obs, reward, terminated, truncated, info = env.step(row[Columns.ACTIONS])
            np.testing.assert_allclose(episode.get_observations(-1), row[Columns.OBS], atol=1e-6)
            assert (reward, terminated, truncated) == (
                row[Columns.REWARDS],
                row[Columns.TERMINATEDS],
                row[Columns.TRUNCATEDS],
            )
            episode.add_env_step(
                obs,
                row[Columns.ACTIONS],
                reward,
                info,
                terminated=terminated,
                truncated=truncated,
                extra_model_outputs={name: row[name] for name in (Columns.ACTION_LOGP, Columns.ACTION_DIST_INPUTS)},
            )
            if episode.is_done:
                episodes.append(episode)
                episode = SingleAgentEpisode()
                episode.add_env_reset(env.reset()[0])
        episodes.append(episode)
    return episodes


# Episodes are cut into chunks from their starts: those of a recurrent network are whole where nothing is cut.
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": NUM_STEPS, "vf_share_layers": True}


def test_a_rollout_of_the_device_repeated_on_the_host_makes_the_same_update():
    algo = config(**LSTM).build_algo()
    fused_result = algo.train()["learners"]["default_policy"]
    expected = algo.learner.get_weights()
    assert algo.reset(config(**LSTM))
    columns, *keys = sampled_block(algo)
    # An end of both kinds is inside, and not only in the last row.
    assert columns[Columns.TERMINATEDS][:-1].any() and columns[Columns.TRUNCATEDS][:-1].any()
    episodes = replayed_episodes(columns, *keys)
    assert {len(e) for e in episodes if e.is_truncated} == {TIME_LIMIT}

    before = algo.learner.get_weights()
    result = algo.learner.update(
        episodes=episodes,
        timesteps={"num_env_steps_sampled_lifetime": NUM_ENVS * NUM_STEPS},
        num_epochs=3,
        minibatch_size=None,
    )["default_policy"]
    after = algo.learner.get_weights()
    for ref, value in expected.items():
        assert np.abs(value - before[ref]).max() > 1e-3
        np.testing.assert_allclose(after[ref], value, atol=1e-6, err_msg=ref)
    for name in ("policy_loss", "vf_loss", "entropy", "mean_kl_loss", "curr_kl_coeff"):
        np.testing.assert_allclose(result[name], fused_result[name], atol=1e-5, err_msg=name)

    # The arrays of a host runner go the same way without becoming episodes.
    assert algo.reset(config(**LSTM))
    algo.learner.update_block(
        Experience.of_steps({"default_policy": columns}),
        timesteps={"num_env_steps_sampled_lifetime": NUM_ENVS * NUM_STEPS},
        num_epochs=3,
        minibatch_size=None,
        shuffle_batch_per_epoch=True,
    )
    for ref, value in expected.items():
        np.testing.assert_allclose(algo.learner.get_weights()[ref], value, atol=1e-6, err_msg=ref)
    algo.stop()


class LearnerThatRecordsRows(DQNLearner):
    update_class = RecordsRows


@pytest.mark.parametrize(("driver", "clip"), [("device", 2.5), ("host", 2.5), ("host_episodes", True)])
def test_replay_holds_the_rewards_of_the_environment_and_draws_clipped_ones(driver, clip):
    register_env("counter_on_the_host", lambda context: GymnasiumFromJax(CounterEnv, {"terminate_at": 7}))
    asked = (
        DQNConfig()
        .environment("counter_on_the_host", clip_rewards=clip)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=5)
        .training(
            replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 200},
            train_batch_size_per_learner=32,
            num_steps_sampled_before_learning_starts=20,
            n_step=3,
            gamma=0.9,
        )
        .reporting(min_sample_timesteps_per_iteration=40)
        .rl_module(
            model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []},
            # The module's own discount, in windows as in the loss.
            algorithm_config_overrides_per_module={DEFAULT_MODULE_ID: DQNConfig.overrides(gamma=0.5)},
        )
        .learners(num_cpus_per_learner=1, learner_class=LearnerThatRecordsRows)
        .debugging(seed=1)
    )
    if driver == "device":
        asked.environment(CounterEnv, env_config={"terminate_at": 7})
    if driver == "host_episodes":
        asked.env_runners(batch_mode="complete_episodes")
    algo = asked.build_algo()
    iteration = recorded_iteration(algo)
    assert iteration.drawn and iteration.result["env_runners"]["episode_return_mean"] == 28.0
    for batch in (batches[DEFAULT_MODULE_ID] for batches, _ in iteration.drawn):
        paid = batch[Columns.OBS] + np.array([1, 2, 3])  # in the steps of a window of 3
        rewards = np.sign(paid) if clip is True else np.clip(paid, -clip, clip)
        discounts = np.where(np.arange(3) < batch["n_step"][:, None], 0.5 ** np.arange(3), 0.0)
        np.testing.assert_allclose(batch[Columns.REWARDS], (rewards * discounts).sum(1), rtol=1e-6)
    if driver == "device":
        replay = dataclasses.replace(algo.driver.step.replays[DEFAULT_MODULE_ID].ring, clip_rewards=None, n_step=1)
        held = jax.tree.map(lambda x: x[0], host_view(algo.driver.kept[DEFAULT_MODULE_ID]))
        row, _ = jax.jit(replay.sample)(held, jax.random.key(0))
        np.testing.assert_array_equal(row[Columns.REWARDS], row[Columns.OBS][:, 0] + 1)
    else:
        for episode in algo.driver.replay_buffer.episodes:
            np.testing.assert_array_equal(episode.get_rewards(), np.asarray(episode.get_observations())[:-1, 0] + 1)
    algo.stop()


@pytest.mark.parametrize(("env", "env_config"), [(ENV, ENV_CONFIG), ("CartPole-v1", {})])
def test_divergence_and_norm_are_reported_without_kl_loss_and_clipping(env, env_config):
    algo = (
        config(env, env_config)
        .env_runners(num_env_runners=0)
        .training(use_kl_loss=False, grad_clip=None, lr=0.01)
        .build_algo()
    )
    results = algo.train()["learners"]["default_policy"]
    algo.stop()
    assert results["mean_kl_loss"] > 0.0 and results["gradients_default_optimizer_global_norm"] > 0.0
