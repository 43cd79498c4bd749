from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.wrappers.utils import RunningMeanStd

from envs.counter import CounterEnv
from envs.gymnasium_versions import GymnasiumCounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import ReturnsSoFar
from jaxrl_stack.connectors.learner import NormalizeRewards, ScaleRewards
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout, Layouts
from jaxrl_stack.utils.counters import to_int

SPACES = (gym.spaces.Box(-1.0, 1.0, (2,), np.float32), gym.spaces.Discrete(2))
GAMMA = 0.9


def nested(**columns):
    return {DEFAULT_MODULE_ID: columns}


@functools.cache
def compiled(connector):
    return jax.jit(connector.apply)


def normalized(connector, state, so_far, rewards, **more):
    batch = nested(**{Columns.RETURNS_SO_FAR: so_far, Columns.REWARDS: rewards, **more})
    state, out = compiled(connector)(state, batch, ConnectorContext())
    return state, np.asarray(out[DEFAULT_MODULE_ID][Columns.REWARDS])


def stream(num_steps=60, num_envs=3):
    """Rewards ``[T, B]`` and whether an episode ended with each of them."""
    rng = np.random.default_rng(1)
    return rng.normal(2.0, 3.0, (num_steps, num_envs)).astype(np.float32), rng.random((num_steps, num_envs)) < 0.1


def returns_so_far(rewards, ended):
    """The column of `ReturnsSoFar`, as it comes from stepping environments."""
    connector = ReturnsSoFar(*SPACES, gamma=GAMMA)
    state, rows = connector.init(rewards.shape[1]), []
    reset, prev = np.ones(rewards.shape[1], bool), np.zeros(rewards.shape[1], np.float32)
    apply = jax.jit(connector.apply)
    for reward, end in zip(rewards, ended, strict=True):
        ctx = ConnectorContext(reset=reset, prev_rewards={DEFAULT_MODULE_ID: prev})
        state, out = apply(state, nested(obs=np.zeros((len(reward), 2), np.float32)), ctx)
        rows.append(np.asarray(out[DEFAULT_MODULE_ID][Columns.RETURNS_SO_FAR]))
        reset, prev = end, np.where(end, np.float32(0.0), reward)
    return np.stack(rows)


def test_vector_environments_of_gymnasium_and_baselines_are_normalised_alike():
    """`VecNormalize`: a return per environment, forgotten at episode ends; the step is counted, then divided."""
    rewards, ended = stream()
    so_far = returns_so_far(rewards, ended)
    connector, known = NormalizeRewards(*SPACES, clip_by_value=3.0), RunningMeanStd(shape=())
    state, running = connector.init(3), np.zeros(3)
    for t in range(len(rewards)):
        running = GAMMA * running + rewards[t]
        np.testing.assert_allclose(so_far[t] + rewards[t], running, rtol=1e-5)
        known.update(running)
        state, out = normalized(connector, state, so_far[t][None], rewards[t][None])
        if t > 20:  # gymnasium's statistics start from a row of variance 1 that counts 1e-4 times
            np.testing.assert_allclose(out[0], np.clip(rewards[t] / np.sqrt(known.var + 1e-8), -3.0, 3.0), rtol=1e-4)
        running[ended[t]] = 0.0
    assert to_int(state[DEFAULT_MODULE_ID].count) == rewards.size


def test_one_environment_without_end_is_normalised_as_by_gymnasium():
    class Paying(gym.Env):
        observation_space, action_space = SPACES

        def step(self, action):
            return np.zeros(2, np.float32), float(action), False, False, {}

    rewards = stream()[0][:, :1]
    env = gym.wrappers.NormalizeReward(Paying(), gamma=GAMMA)
    connector = NormalizeRewards(*SPACES, clip_by_value=None)
    state, so_far = connector.init(1), returns_so_far(rewards, np.zeros_like(rewards, bool))
    for t in range(len(rewards)):
        state, out = normalized(connector, state, so_far[t][None], rewards[t][None])
        expected = env.step(rewards[t, 0])[1]
        if t > 20:
            np.testing.assert_allclose(out, [np.reshape(expected, (1,))], rtol=1e-3)


def test_masked_rows_are_not_counted_and_frozen_statistics_stay():
    rewards, so_far = np.full((2, 2), 4.0, np.float32), np.array([[0.0, 1.0], [np.nan, 3.0]], np.float32)
    mask = np.array([[True, True], [False, True]])
    connector = NormalizeRewards(*SPACES)
    state, out = normalized(connector, connector.init(2), so_far, rewards, loss_mask=mask)
    deviation = np.std([4.0, 5.0, 7.0])
    np.testing.assert_allclose(out, 4.0 / deviation, rtol=1e-5)
    for is_masked, count in ((True, 3), (False, 4)):  # as planned: a column of that name alone masks nothing
        context = ConnectorContext(layouts=Layouts({DEFAULT_MODULE_ID: Layout(is_masked=is_masked)}))
        columns = {Columns.REWARDS: rewards, Columns.RETURNS_SO_FAR: rewards, Columns.LOSS_MASK: mask}
        planned, _ = compiled(connector)(connector.init(2), nested(**columns), context)
        assert to_int(planned[DEFAULT_MODULE_ID].count) == count
    frozen = NormalizeRewards(*SPACES, update_stats=False)
    after, out = normalized(frozen, state, so_far, 2 * rewards)
    np.testing.assert_allclose(out, 8.0 / deviation, rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    np.testing.assert_allclose(normalized(frozen, frozen.init(2), so_far, rewards)[1], 4.0, rtol=1e-5)


def test_returns_that_are_not_finite_are_not_counted():
    connector = NormalizeRewards(*SPACES)
    rewards = np.array([[1.0, np.nan], [2.0, -4.0]], np.float32)
    batch = {DEFAULT_MODULE_ID: {Columns.REWARDS: rewards, Columns.RETURNS_SO_FAR: np.zeros_like(rewards)}}
    state, batch = jax.jit(connector.apply)(connector.init(2), batch, ConnectorContext())
    assert to_int(state[DEFAULT_MODULE_ID].count) == 3
    np.testing.assert_allclose(state[DEFAULT_MODULE_ID].variance, np.var([1.0, 2.0, -4.0]), rtol=1e-6)
    assert np.isfinite(batch[DEFAULT_MODULE_ID][Columns.REWARDS][1]).all()


def test_devices_count_every_row_once_and_agree_bit_for_bit():
    num_devices = jax.local_device_count()
    assert num_devices > 1
    rng = np.random.default_rng(2)
    rewards, so_far = rng.normal(size=(2, 5, 2 * num_devices)).astype(np.float32)
    connector = NormalizeRewards(*SPACES)
    alone, expected = normalized(connector, connector.init(2), so_far, rewards)

    def on_a_device(state, so_far, rewards):
        batch = nested(**{Columns.RETURNS_SO_FAR: so_far, Columns.REWARDS: rewards})
        return connector.apply(state, batch, ConnectorContext(axis_name="devices"))

    state = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_devices), connector.init(2))
    dealt = (np.stack(np.split(column, num_devices, axis=1)) for column in (so_far, rewards))
    state, out = jax.pmap(on_a_device, axis_name="devices")(state, *dealt)
    np.testing.assert_allclose(
        np.concatenate(list(out[DEFAULT_MODULE_ID][Columns.REWARDS]), axis=1), expected, rtol=1e-5
    )
    for leaf, one in zip(jax.tree.leaves(jax.device_get(state)), jax.tree.leaves(alone), strict=True):
        np.testing.assert_array_equal(leaf, np.broadcast_to(leaf[:1], leaf.shape))
        np.testing.assert_allclose(leaf[0], one, rtol=1e-5)


def test_a_constant_multiplies_sums_of_rewards_too():
    batch = nested(rewards=np.array([[3.0, -1.0]], np.float32), obs=np.zeros((1, 2, 2)))
    out = ScaleRewards(factor=0.5).apply((), batch, ConnectorContext())[1][DEFAULT_MODULE_ID]
    np.testing.assert_array_equal(out["rewards"], [[1.5, -0.5]])
    assert out["obs"] is batch[DEFAULT_MODULE_ID]["obs"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReturnsSoFar(gamma=1.5), r"gamma=1.5.*number in \[0, 1\]"),
        (lambda: NormalizeRewards(clip_by_value=0.0), "clip_by_value=0.0.*None for off"),
        (lambda: NormalizeRewards(epsilon=0.0), "epsilon=0.0.*positive"),
        (lambda: ScaleRewards(factor=0.0), "factor=0.0.*above 0"),
        (lambda: ScaleRewards(factor=float("nan")), "factor=nan.*above 0"),
    ],
)
def test_values_outside_their_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ------------------------------------------------------------------------------------------------------- both drivers


def ppo(env, **connectors):
    connectors = {"env_to_module_connector": lambda env, spaces, device: ReturnsSoFar()} | connectors
    return (
        PPOConfig()
        .environment(env, env_config={"terminate_at": None, "truncate_at": 7})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, rollout_fragment_length=5, **connectors)
        .training(train_batch_size_per_learner=10, minibatch_size=None, num_epochs=1, gamma=GAMMA)
        .learners(learner_connector=lambda observation_space, action_space: NormalizeRewards())
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )


@pytest.mark.parametrize("env", [CounterEnv, GymnasiumCounterEnv])
def test_returns_go_on_over_blocks_and_episodes_keep_their_rewards(env):
    """Episodes of 7 steps in blocks of 5: step t pays t."""
    algo = ppo(env).build_algo()
    results = [algo.train() for _ in range(3)]
    returns, running = [], 0.0
    for step in range(15):
        reward = step % 7 + 1.0
        running = reward if reward == 1.0 else GAMMA * running + reward
        returns.append(running)
    state = algo.learner_group.get_state()["learner"]["connector"]["NormalizeRewards"]
    count, mean, variance = (state[f"{DEFAULT_MODULE_ID}/{name}"] for name in ("count", "mean", "variance"))
    assert to_int(count) == 2 * 15
    np.testing.assert_allclose(mean, np.mean(returns), rtol=1e-5)
    np.testing.assert_allclose(variance, np.var(returns), rtol=1e-5)
    assert results[-1]["env_runners"]["episode_return_mean"] == 28.0
    # A policy acts without rewards and without the learner's scale.
    assert algo.get_policy().compute_single_action(np.zeros(1, np.float32))[0] in (0, 1)
    algo.stop()


def test_what_does_not_fit_is_refused_with_what_does():
    observing = {"env_to_module_connector": lambda env, spaces, device: []}
    algo = ppo(CounterEnv, **observing)
    with pytest.raises(ValueError, match=r"'returns_so_far'.*Add ReturnsSoFar\(\) to the env-to-module"):
        algo.build_algo().train()
    with pytest.raises(ValueError, match=r"clip_rewards=True.*\['NormalizeRewards'\].*clip_by_value"):
        ppo(CounterEnv).environment(clip_rewards=True).build_algo()
    dqn = DQNConfig().environment(CounterEnv).learners(learner_connector=lambda *spaces: NormalizeRewards())
    with pytest.raises(ValueError, match=r"\['NormalizeRewards'\].*DQN learns from random steps.*ScaleRewards.*PPO"):
        dqn.build_algo()
