"""Noise on actions that lasts: its statistics, what it leaves in the batch, that both drivers do what they record."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.module_to_env import ColoredNoise, OrnsteinUhlenbeckNoise
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.replay import EpisodeReplayBuffer

SPACE = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))
UNBOUNDED = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
THETA, SIGMA, LENGTH = 0.1, 0.05, 20


def noise_of(connector, num_envs, num_steps, starts=()):
    """What a connector adds to actions of 0, ``[T, B, ...]``; episodes start at step 0 and at `starts`."""
    actions = jnp.zeros((num_envs, *connector.input_action_space.shape), jnp.float32)

    def step(state, given):
        key, start = given
        ctx = ConnectorContext(key=key, reset=jnp.full((num_envs,), start))
        state, batch = connector.apply(state, {DEFAULT_MODULE_ID: {"actions": actions}}, ctx)
        return state, batch[DEFAULT_MODULE_ID]["actions"]

    marks = np.isin(np.arange(num_steps), [0, *starts])
    run = jax.jit(lambda keys: jax.lax.scan(step, connector.init(num_envs), (keys, marks)))
    return np.asarray(run(jax.random.split(jax.random.key(0), num_steps))[1])


def test_ornstein_uhlenbeck_noise_follows_its_equation():
    connector = OrnsteinUhlenbeckNoise(None, UNBOUNDED, theta=THETA, sigma=SIGMA, mean=0.2, dt=0.5)
    noise = noise_of(connector, 2000, 40, starts=[30])
    before = np.concatenate([np.zeros_like(noise[:1]), noise[:-1]])
    before[30] = 0.0
    draws = (noise - before - THETA * (0.2 - before) * 0.5) / (SIGMA * np.sqrt(0.5))
    np.testing.assert_allclose(draws.mean(axis=(1, 2)), 0.0, atol=0.08)
    np.testing.assert_allclose(draws.std(axis=(1, 2)), 1.0, atol=0.08)
    assert abs(np.mean(draws[1:] * draws[:-1])) < 0.02 and abs(np.mean(draws[..., 0] * draws[..., 1])) < 0.02


@pytest.mark.parametrize("beta", [0.5, 1.5])
def test_colored_noise_has_its_spectrum_from_the_first_step_of_an_episode(beta):
    num_steps = 256
    connector = ColoredNoise(None, UNBOUNDED, beta=beta, scale=0.5, horizon=num_steps)
    noise = noise_of(connector, 1200, 2 * num_steps, starts=[num_steps])
    first, second = noise[:num_steps], noise[num_steps:]
    # Unit variance everywhere, after a start, too, across which nothing is remembered.
    np.testing.assert_allclose(noise.std(axis=(1, 2)), 0.5, atol=0.03)
    assert abs(np.corrcoef(first[-1].ravel(), second[0].ravel())[0, 1]) < 0.08
    # Without a window, low frequencies would leak into the high ones of a steep spectrum.
    window = np.hanning(num_steps)[:, None, None]
    power = (np.abs(np.fft.rfft(first * window, axis=0)) ** 2).mean(axis=(1, 2))
    frequencies = np.array([4, 6, 8, 11, 16, 23, 32, 45, 64])  # half an octave apart
    slope = np.polyfit(np.log(frequencies), np.log(power[frequencies]), 1)[0]
    assert abs(slope + beta) < 0.15


def test_actions_are_clipped_to_what_the_environment_takes():
    def applied(space, **arguments):
        connector = ColoredNoise(None, space, scale=100.0, **arguments)
        columns = {"actions": np.full((64, 2), 0.5, np.float32), "action_logp": np.zeros(64), "other": np.ones(64)}

        @jax.jit
        def run(key):
            ctx = ConnectorContext(key=key, reset=np.ones(64, bool))
            return connector.apply(connector.init(64), {"any_id": columns}, ctx)[1]["any_id"]

        out = jax.device_get(run(jax.random.key(0)))
        assert set(out) == {"actions", "other"}  # the log-probability is that of another action
        return out["actions"].min(axis=0), out["actions"].max(axis=0)

    np.testing.assert_array_equal(applied(SPACE), [[-1.0, -1.0], [1.0, 1.0]])
    np.testing.assert_array_equal(applied(SPACE, normalize_actions=False), [SPACE.low, SPACE.high])
    low, high = applied(UNBOUNDED)
    assert (low < -1.0).all() and (high > 1.0).all()


def test_greedy_actions_are_left_alone():
    connector = OrnsteinUhlenbeckNoise(None, SPACE)
    state, batch = connector.init(3), {DEFAULT_MODULE_ID: {"actions": np.zeros((3, 2), np.float32)}}
    assert connector.apply(state, batch, ConnectorContext(explore=False)) == (state, batch)


def test_each_module_has_a_noise_of_its_own():
    spaces = gym.spaces.Dict({"one": SPACE, "two": gym.spaces.Box(-1.0, 1.0, (3,))})
    connector = OrnsteinUhlenbeckNoise(None, spaces, multi_agent=True)
    batch = {"one": {"actions": np.zeros((4, 2), np.float32)}, "two": {"actions": np.zeros((4, 3), np.float32)}}

    @jax.jit
    def run(key):
        return connector.apply(connector.init(4), batch, ConnectorContext(key=key, reset=np.zeros(4, bool)))

    state, out = jax.device_get(run(jax.random.key(0)))
    assert state["two"].shape == (4, 3)
    assert np.abs(out["one"]["actions"] - out["two"]["actions"][:, :2]).min() > 1e-6


@pytest.mark.parametrize(
    ("connector", "arguments", "message"),
    [
        (OrnsteinUhlenbeckNoise, {"theta": 2.5}, r"theta=2.5.*theta \* dt below 2"),
        (OrnsteinUhlenbeckNoise, {"sigma": -1.0}, "sigma=-1.0.*sigma >= 0"),
        (ColoredNoise, {"beta": 2.0}, "beta=2.0.*above 0 and below 2"),
        (ColoredNoise, {"horizon": 2}, "horizon=2.*8 steps or more"),
    ],
)
def test_numbers_out_of_range_are_named(connector, arguments, message):
    with pytest.raises(ValueError, match=message):
        connector(**arguments)


def test_what_cannot_be_noisy_is_named():
    with pytest.raises(ValueError, match=r"needs a Box of floats, but the action space is Discrete\(2\)"):
        OrnsteinUhlenbeckNoise(None, gym.spaces.Discrete(2)).init(1)
    connector, batch = OrnsteinUhlenbeckNoise(None, SPACE), {DEFAULT_MODULE_ID: {"actions": np.zeros((1, 2))}}
    with pytest.raises(ValueError, match=r"ctx.key or ctx.reset is None.*ConnectorContext\(key="):
        connector.apply(connector.init(1), batch, ConnectorContext())


# ------------------------------------------------------------------------------------------------------ both drivers


class Echo(AutoResetJaxEnv):
    """Observations are the last action as the environment got it; episodes are cut after `LENGTH` steps."""

    observation_space = gym.spaces.Box(-10.0, 10.0, (2,), np.float32)
    action_space = SPACE

    def reset_env(self, key, params):
        return jnp.zeros(2), 0

    def step_env(self, key, state, action, params):
        return action, state + 1, 0.0, False, state + 1 >= LENGTH, {}


class EchoOnTheHost(GymnasiumFromJax):
    """The same as a gymnasium environment."""

    def __init__(self, config):
        super().__init__(Echo)


class Still(DefaultSACRLModule):
    """Acts with 0: what is explored is the noise alone."""

    def _forward_exploration(self, batch, **kwargs):
        return {"actions": jnp.zeros((*batch["obs"].shape[:-1], 2), jnp.float32)}


def sac(env, connector):
    return (
        SACConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, module_to_env_connector=connector)
        .training(
            train_batch_size_per_learner=8,
            num_steps_sampled_before_learning_starts=20,
            replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 200},
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=Still, model_config={"fcnet_hiddens": [8], "fusionnet_hiddens": None}
            )
        )
        .reporting(min_sample_timesteps_per_iteration=60, min_time_s_per_iteration=0)
    )


def replayed(algo, size):
    """``(actions, next observations)`` of rows drawn from replay."""
    if isinstance(algo.local_replay_buffer, EpisodeReplayBuffer):
        batch = algo.local_replay_buffer.sample_batch(size, n_step=1, gamma=0.99)
    else:
        replay = algo.driver.step.replays[DEFAULT_MODULE_ID].ring
        memory = jax.tree.map(lambda x: x[0], algo.driver.kept[DEFAULT_MODULE_ID])
        draw = jax.jit(lambda memory, key: replay.sample(memory, key, gamma=jnp.float32(0.99)))
        batch = draw(memory, jax.random.key(0))[0]
    return np.asarray(batch["actions"]), np.asarray(batch["new_obs"])


@pytest.mark.parametrize("env", [Echo, EchoOnTheHost])
def test_both_drivers_do_record_and_replay_the_noisy_actions(env):
    algo = sac(env, lambda env: OrnsteinUhlenbeckNoise(theta=THETA, sigma=SIGMA)).build_algo()
    result = algo.train()
    assert np.isfinite(result["learners"]["default_policy"]["qf_loss"])
    actions, observations = replayed(algo, 8)
    assert np.abs(actions).max() > 0
    np.testing.assert_allclose(observations, SPACE.low + (actions + 1) * 0.5 * (SPACE.high - SPACE.low), atol=1e-5)

    episodes = algo.env_runner.sample(num_episodes=200)
    noise = np.stack([episode.get_actions() for episode in episodes])
    seen = np.stack([episode.get_observations(slice(1, None)) for episode in episodes])
    np.testing.assert_allclose(seen, SPACE.low + (noise + 1) * 0.5 * (SPACE.high - SPACE.low), atol=1e-5)
    assert noise.shape == (200, LENGTH, 2) and "action_logp" not in episodes[0].extra_model_outputs
    # Every episode starts from 0 and goes on by theta.
    before = np.concatenate([np.zeros_like(noise[:, :1]), noise[:, :-1]], axis=1)
    draws = noise - (1 - THETA) * before
    np.testing.assert_allclose(draws.std(axis=(0, 2)), SIGMA, rtol=0.25)
    assert abs(np.corrcoef(draws[:, 1:].ravel(), draws[:, :-1].ravel())[0, 1]) < 0.05

    # A policy on its own explores as the runner does.
    policy, state, path = algo.get_policy(), None, []
    for _ in range(4):
        _, state, outputs = policy.compute_actions(np.zeros((200, 2), np.float32), state, explore=True)
        path.append(outputs["actions"])
    draws = path[3] - (1 - THETA) * path[2]
    np.testing.assert_allclose(draws.std(), SIGMA, rtol=0.25)
    algo.stop()


def test_settings_that_do_not_go_with_noise_are_refused():
    noisy = {"num_env_runners": 0, "module_to_env_connector": lambda env: [OrnsteinUhlenbeckNoise()]}
    with pytest.raises(ValueError, match="connector 'OrnsteinUhlenbeckNoise'.*log-probabilities.*entropy_coeff"):
        PPOConfig().environment(Echo).env_runners(**noisy).build_algo()
    config = SACConfig().environment(Echo, normalize_actions=False).env_runners(**noisy)
    with pytest.raises(ValueError, match="'OrnsteinUhlenbeckNoise'.*environment.normalize_actions=False"):
        config.build_algo()
