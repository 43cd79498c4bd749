"""DreamerV3 on both kinds of environments: the same update, runs that go on exactly, policies that remember."""

from __future__ import annotations

import types

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config, DreamerV3Learner, actor_critic, world_model
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.policy import Policy, load_exported
from jaxrl_stack.utils import counters
from tests.drawn_rows import RecordsRows, learned, recorded_iteration

ON_THE_DEVICE, ON_THE_HOST = "gymnax/CartPole-v1", "counts_to_three"
ROUND = 12
"""Env steps of an iteration, a multiple of the length of episodes on the host: they begin anew with each."""


class CountsToThree(gym.Env):
    """Its observations follow from its actions alone, so that a run with a new episode is the same run."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._step = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        self._step += 1
        return np.array([self._step, action, 0, 1], np.float32), float(action), self._step == 3, False, {}


def config(env, learner_class=DreamerV3Learner):
    return (
        DreamerV3Config()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(
            model_size="nano",
            batch_size_B=2,
            batch_length_T=4,
            horizon_H=2,
            training_ratio=4,
            replay_latents=True,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 100},
        )
        .reporting(min_sample_timesteps_per_iteration=ROUND, min_time_s_per_iteration=0)
        .learners(num_cpus_per_learner=1, learner_class=learner_class)
        .debugging(seed=2)
    )


class LearnerThatRecordsRows(DreamerV3Learner):
    update_class = RecordsRows


@pytest.fixture(scope="module")
def on_device(tmp_path_factory):
    """Two iterations, the first of them with its batches; a checkpoint between them, and the second result."""
    algo = config(ON_THE_DEVICE, LearnerThatRecordsRows).build_algo()
    first = recorded_iteration(algo)
    path = algo.save_to_path(tmp_path_factory.mktemp("dreamerv3") / "checkpoint")
    yield types.SimpleNamespace(algo=algo, first=first, path=path, second=algo.train())
    algo.stop()


@pytest.fixture(scope="module")
def on_host():
    register_env(ON_THE_HOST, lambda context: CountsToThree())
    algo = config(ON_THE_HOST).build_algo()
    yield algo
    algo.stop()


def test_what_the_device_draws_makes_the_same_update_on_the_host(on_device, on_host):
    iteration = on_device.first
    # Rounds of 2 steps are worth an update each, from the one on that brings the 8 random steps.
    assert len(iteration.drawn) == iteration.result["learners"][DEFAULT_MODULE_ID]["num_target_updates"] == 3
    learner = on_host.learner
    before = iteration.weights[0]
    jax.tree.map(np.testing.assert_array_equal, before, learner.get_weights())
    state = learner.get_state()
    for batch, steps in iteration.drawn:
        learner.update_rows(Experience.of_rows(batch), timesteps=counters.to_int(steps))
    result = learner.row_results(len(iteration.drawn))[DEFAULT_MODULE_ID]
    for ref, value in learner.get_weights().items():
        np.testing.assert_allclose(value, iteration.weights[1][ref], atol=1e-6, err_msg=ref)
    for name, value in learned(iteration.result).items():
        if name.startswith(("WORLD_MODEL", "ACTOR", "CRITIC")):
            np.testing.assert_allclose(result[name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    learner.set_state(state)


def test_windows_go_on_from_the_states_that_replay_has_of_them(on_device):
    """Random steps begin with the state of no observation, and later ones in an episode with one of acting's."""
    fresh = np.concatenate([batch["default_policy"]["state_in"]["fresh"] for batch, _ in on_device.first.drawn])
    first = np.concatenate([batch["default_policy"]["is_first"][:, 0] for batch, _ in on_device.first.drawn])
    h = np.concatenate([batch["default_policy"]["state_in"]["h"] for batch, _ in on_device.first.drawn])
    assert (~first).any() and (h[~first & ~fresh] != 0).any(axis=1).all()
    assert not (fresh & ~first).any()


def test_windows_reach_over_the_rollouts_that_replay_was_filled_with(on_device):
    """Rollouts have a step of each environment, and windows four items, of one episode or of several."""
    assert on_device.algo.driver.step.num_env_steps == 2
    last = np.concatenate([batch[DEFAULT_MODULE_ID]["is_last"] for batch, _ in on_device.first.drawn])
    obs = np.concatenate([batch[DEFAULT_MODULE_ID]["obs"] for batch, _ in on_device.first.drawn])
    whole = obs[~last[:, :-1].any(axis=1)]
    assert len(whole) and (np.abs(np.diff(whole, axis=1)).max(axis=2) > 0).all()


def test_windows_of_the_devices_memory_can_be_looked_at(on_device):
    columns = on_device.algo.driver.step.look_at(5, 3, seed=0)
    assert columns["obs"].shape == (5, 3, 4) and columns["state_in"]["h"].shape == (5, 16)


def test_all_three_networks_learn_and_the_slow_critic_follows(on_device):
    before, after = on_device.first.weights
    assert {ref.split("/")[1] for ref, value in after.items() if (value != before[ref]).any()} == {
        *("world_model", "actor", "critic")
    }
    # Both begin with zeros.
    module = on_device.algo.get_module()
    slow, critic = (np.abs(np.asarray(net.out.kernel[...])).max() for net in (module.slow_critic, module.critic))
    assert 0 < slow < critic


def test_a_run_on_the_device_goes_on_exactly(on_device):
    on_device.algo.restore_from_path(on_device.path)
    assert learned(on_device.algo.train()) == learned(on_device.second)


def test_a_run_on_the_host_goes_on_exactly_with_new_episodes(on_host, tmp_path):
    on_host.train()
    path, saved = on_host.save_to_path(tmp_path / "checkpoint"), on_host.learner.get_state()
    expected = [on_host.train() for _ in range(2)]
    assert on_host.reset(on_host.config)
    on_host.restore_from_path(path)
    jax.tree.map(np.testing.assert_array_equal, saved, on_host.learner.get_state())
    again = [on_host.train() for _ in range(2)]
    assert [learned(r) for r in again] == [learned(r) for r in expected]
    # An update for each 2 of 36 - 8 + 2 steps, of 8 items.
    assert expected[-1]["learners"][DEFAULT_MODULE_ID]["num_target_updates"] == 15
    assert expected[-1]["actual_training_ratio"] == again[-1]["actual_training_ratio"] == 15 * 8 / 36


def test_states_of_an_update_are_those_before_the_next_items(on_host):
    """Whatever an update makes of an item is what the item after it is remembered with, in an episode."""
    replay, buffer = on_host.driver.step.replays[DEFAULT_MODULE_ID], on_host.local_replay_buffer
    if not len(buffer):
        on_host.train()
    state = buffer.get_state()
    *_, drawn = replay.draw(buffer, None, None)
    columns, items = drawn[DEFAULT_MODULE_ID].columns, drawn[DEFAULT_MODULE_ID].items[0]
    number = np.arange(items.size, dtype=np.float32).reshape(items.shape)
    logged = {"h": np.broadcast_to(number[..., None], (*items.shape, 16)), "z": np.zeros((*items.shape, 4))}
    before = buffer._store.extra("state_in")["h"].copy()
    replay.write_back(buffer, drawn, {DEFAULT_MODULE_ID: logged})
    after = buffer._store.extra("state_in")["h"]
    expected = before.copy()
    for row in range(items.shape[0]):
        for t in range(1, items.shape[1]):
            if not (columns["is_first"][row, t] or columns["is_last"][row, t]):
                expected[items[row, t] & 0xFFFFFFFF] = number[row, t - 1]
    assert (expected != before).any()
    np.testing.assert_array_equal(after, expected)
    buffer.set_state(state)


def test_an_update_on_two_devices_is_that_of_one(on_device, monkeypatch):
    """With the likeliest of everything: devices draw with numbers of their own."""
    for owner in (world_model, actor_critic):
        monkeypatch.setattr(owner, "drawn", lambda noise, probs: world_model.mode(probs))
    batches = [batch[DEFAULT_MODULE_ID] for batch, _ in on_device.first.drawn[:2]]
    batch = {DEFAULT_MODULE_ID: jax.tree.map(lambda *x: np.concatenate(x), *batches)}
    weights, results = [], []
    for num_devices in (1, 2):
        made = config(ON_THE_DEVICE).learners(num_cpus_per_learner=num_devices)
        learner = made.build_learner(
            spaces={"__env_single__": (CountsToThree.observation_space, gym.spaces.Discrete(2))}
        )
        learner.build()
        assert len(learner.devices) == num_devices
        rows = learner.update_rows(Experience.of_rows(batch), timesteps=0)
        assert rows[DEFAULT_MODULE_ID, "h"].shape == (4, 4, 16)
        weights.append(learner.get_weights())
        results.append(learner.row_results(1)[DEFAULT_MODULE_ID] | {"h": rows[DEFAULT_MODULE_ID, "h"]})
    for name, value in results[0].items():
        if name.startswith(("h", "WORLD_MODEL", "ACTOR", "CRITIC")):
            np.testing.assert_allclose(results[1][name], value, rtol=1e-4, atol=1e-5, err_msg=name)
    for ref, value in weights[0].items():
        np.testing.assert_allclose(weights[1][ref], value, atol=1e-6, err_msg=ref)


def test_it_trains_on_two_devices_from_the_first_iteration_on():
    made = config(ON_THE_DEVICE).reporting(min_sample_timesteps_per_iteration=0)
    algo = made.learners(num_cpus_per_learner=2).build_algo()
    results = [algo.train() for _ in range(2)]
    ring = algo.driver.step.replays[DEFAULT_MODULE_ID].ring
    assert ring.num_envs == ring.batch_size == 1
    # The 8 random steps, and then a round of 2 steps, which are worth an update.
    assert [r["num_env_steps_sampled_lifetime"] for r in results] == [8, 10]
    assert [r["num_grad_updates_lifetime"] for r in results] == [1, 2]
    assert learned(results[0])["WORLD_MODEL_L_total"] > 0 and results[0]["num_grad_updates_behind"] == 0
    assert results[-1]["actual_training_ratio"] == 2 * 8 / 10
    for leaf in jax.tree.leaves(algo.learner.state.params):
        first, second = (np.asarray(shard.data) for shard in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)
    algo.stop()


def test_a_film_of_what_is_imagined_changes_nothing(on_host, tmp_path):
    if not on_host.driver.num_env_steps:
        on_host.train()
    before = on_host.driver.replay_buffer.get_state()
    # Episodes of 3 steps have 4 observations.
    video = on_host.imagine_video(tmp_path / "film.gif", given=2, imagined=5, windows=2)
    assert video.path.exists() and video.lengths == (4, 4)
    jax.tree.map(np.testing.assert_array_equal, on_host.driver.replay_buffer.get_state(), before)
    with pytest.raises(ValueError, match="given=0"):
        on_host.imagine_video(tmp_path / "film.gif", given=0)


def actions_of(act, observations):
    """What ``(observation, state) -> (action, state)`` does one after the other."""
    actions, state = [], None
    for obs in observations:
        action, state = act(obs, state)
        actions.append(int(action))
    return actions


def test_policies_remember(on_device, tmp_path):
    algo = on_device.algo
    observations = 3 * np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)

    def of_policy(policy):
        def act(obs, state):
            actions, state, _ = policy.compute_actions(obs[None], state)
            return actions[0], state

        return actions_of(act, observations)

    def single(obs, state):
        return algo.compute_single_action(obs, state, explore=False, full_fetch=True)[:2]

    expected = actions_of(single, observations)
    policy = algo.get_policy()
    (_, first), second = single(observations[0], None), observations[1]
    remembered, forgotten = (single(second, state)[1]["h"] for state in (first, None))
    assert np.abs(np.asarray(remembered) - np.asarray(forgotten)).max() > 1e-4
    assert of_policy(policy) == expected
    assert of_policy(Policy.from_checkpoint(algo.save_to_path(tmp_path / "checkpoint"))) == expected
    assert of_policy(load_exported(policy.export(tmp_path / "policy", platforms=["cpu"]))) == expected
