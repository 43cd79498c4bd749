"""JAX environments with gymnasium's interface: the same dynamics, the same keys, the same trajectory."""

from __future__ import annotations

import types

import gymnasium as gym
import jax
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from gymnasium.utils.env_checker import check_env

from envs.counter import CounterEnv
from envs.fixed_length import FixedLengthEnv
from envs.gymnasium_versions import (
    GYMNASIUM_VERSIONS,
    GymnasiumCounterEnv,
    GymnasiumFixedLengthEnv,
    GymnasiumNestedActionEnv,
    GymnasiumNestedObservationEnv,
    GymnasiumStatelessPendulum,
    GymnasiumTMaze,
)
from envs.nested import NestedObservationEnv
from envs.probes import PROBES
from jaxrl_stack.env import registry
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env, resolve_env
from jaxrl_stack.env.vector.host_vector_env import make_vector_env
from jaxrl_stack.examples.envs.memory import MEMORY_PROBES, StatelessCartPole, StatelessPendulum


class NoiseEnv(AutoResetJaxEnv):
    """Every key is seen: noise in resets and steps; ends at random, either way."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Discrete(2)

    def reset_env(self, key, params):
        obs = jax.random.normal(key, (2,))
        return obs, obs

    def step_env(self, key, state, action, params):
        obs = 0.5 * state + action + jax.random.normal(key, (2,))
        return obs, obs, obs[0], obs[0] > 1.5, obs[1] > 1.5, {"noise": obs[1]}


def test_an_episode_ends_with_its_final_observation():
    env = GymnasiumFromJax(CounterEnv, {"terminate_at": 3, "truncate_at": 4})
    assert isinstance(env, gym.Env) and env.observation_space == CounterEnv().observation_space
    obs, info = env.reset(seed=0)
    assert obs.tolist() == [0] and obs.dtype == np.float32 and info == {}
    for t in (1, 2, 3):
        obs, reward, terminated, truncated, info = env.step(np.int64(0))
        assert (obs.tolist(), reward, terminated, truncated) == ([t], t, t == 3, False) and info == {}
        assert type(reward) is float and type(terminated) is bool and type(truncated) is bool
    assert env.reset()[0].tolist() == [0]
    # In the middle of an episode, too.
    env.step(1)
    assert env.reset()[0].tolist() == [0]
    truncating = GymnasiumCounterEnv({"terminate_at": None, "truncate_at": 1})
    truncating.reset(seed=0)
    assert truncating.step(0)[2:4] == (False, True)


def test_every_version_of_this_package_keeps_gymnasiums_contract():
    hiding = {StatelessCartPole, StatelessPendulum}
    assert len(GYMNASIUM_VERSIONS) == 6 + len(PROBES) + len(MEMORY_PROBES)
    wrapped = {version.jax_class for version in GYMNASIUM_VERSIONS}
    assert wrapped >= {CounterEnv, FixedLengthEnv, *PROBES, *MEMORY_PROBES, *hiding}
    assert GymnasiumNestedObservationEnv.jax_class is NestedObservationEnv
    for version in (GymnasiumNestedActionEnv, GymnasiumFixedLengthEnv, GymnasiumTMaze, GymnasiumStatelessPendulum):
        assert version.__name__ == "Gymnasium" + version.jax_class.__name__
        env = gym.wrappers.PassiveEnvChecker(version())
        env.reset(seed=1)
        env.action_space.seed(1)
        for _ in range(4):
            obs, *_, terminated, truncated, _ = env.step(env.action_space.sample())
            assert obs in env.observation_space
            if terminated or truncated:
                env.reset()


def test_gymnasiums_own_check_of_seeds_and_spaces():
    # It wants to be made with a spec, to make another one.
    gym.register("FromJaxForCheck-v0", entry_point=lambda: GymnasiumFixedLengthEnv({"long_length": 3}))
    try:
        check_env(gym.make("FromJaxForCheck-v0").unwrapped, skip_render_check=True)
    finally:
        del gym.registry["FromJaxForCheck-v0"]


def test_seeds():
    env = GymnasiumNestedObservationEnv({"length": 2})

    def trajectory(seed):
        obs = [env.reset(seed=seed)[0]]
        for _ in range(3):
            after = env.step(0)
            assert after[0] in env.observation_space
            obs.append(after[0])
            if after[3]:
                obs.append(env.reset()[0])
        obs.append(env.reset()[0])
        return np.stack([np.concatenate([o["body"]["position"], o["image"].ravel()]) for o in obs])

    np.testing.assert_array_equal(trajectory(3), trajectory(3))
    assert not np.array_equal(trajectory(3), trajectory(4))
    # Every reset shows something else.
    assert len(np.unique(trajectory(3), axis=0)) == 6
    # Without any seed, gymnasium's own generator decides.
    first, second = (GymnasiumNestedObservationEnv({"length": 2}) for _ in range(2))
    for other in (first, second):
        other.np_random = np.random.default_rng(5)
    np.testing.assert_array_equal(first.reset()[0]["image"], second.reset()[0]["image"])


@pytest.mark.parametrize(
    "jax_env",
    [
        CounterEnv(terminate_at=4, truncate_at=7, random_start=True),
        FixedLengthEnv(long_length=4),
        NoiseEnv(),
        GymnaxEnv("CartPole-v1", {"max_steps_in_episode": 8}),
    ],
    ids=lambda env: env.name,
)
def test_a_device_rollout_is_repeated_step_by_step(jax_env):
    """Keys as the on-device driver uses them: one per environment and step, resets inside of the step."""
    num_steps, num_envs = 25, 2
    reset_keys = jax.random.split(jax.random.key(1), num_envs)
    keys = jax.random.split(jax.random.key(2), (num_steps, num_envs))
    actions = np.random.default_rng(0).integers(0, 2, (num_steps, num_envs))

    @jax.jit
    def rollout():
        first, state = jax.vmap(jax_env.reset, in_axes=(0, None))(reset_keys, jax_env.params)

        def body(state, inputs):
            step = jax_env.step_batch(inputs[0], state, inputs[1], jax_env.params)
            return step.state, step._replace(state=None)

        return first, jax.lax.scan(body, state, (keys, jax.numpy.asarray(actions, jax.numpy.int32)))[1]

    first, steps = jax.device_get(rollout())
    ends = 0
    for i in range(num_envs):
        env = GymnasiumFromJax(jax_env)
        env.replay(reset_keys[i], keys[:, i])
        _assert_close(env.reset()[0], jax.tree.map(lambda x: x[i], first))  # noqa: B023
        for t in range(num_steps):
            obs, reward, terminated, truncated, _ = env.step(actions[t, i])
            expected = jax.tree.map(lambda x: x[t, i], steps)  # noqa: B023
            _assert_close(obs, expected.final_obs)
            np.testing.assert_allclose(reward, expected.reward, rtol=1e-6)
            assert (terminated, truncated) == (expected.terminated, expected.truncated)
            if terminated or truncated:
                ends += 1
                _assert_close(env.reset()[0], expected.obs)
        with pytest.raises(RuntimeError, match="fewer step_keys"):
            env.step(0)
        env.reset(seed=0)
        env.step(0)
    assert ends >= 2


def _assert_close(given, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), given, expected)


def test_it_stays_on_the_cpu_and_copies_share_their_programs(monkeypatch):
    monkeypatch.setattr(registry, "_creators", {})
    one, other = GymnasiumCounterEnv({"terminate_at": 5}), GymnasiumCounterEnv({"terminate_at": 5})
    assert one.jax_env is other.jax_env
    assert GymnasiumCounterEnv({"terminate_at": 6}).jax_env is not one.jax_env
    # Equal to Python, not to a program: 5 and 5.0.
    assert GymnasiumCounterEnv({"terminate_at": 5.0}).jax_env is not one.jax_env
    one.reset(seed=0)
    assert one._state.devices() == {jax.local_devices(backend="cpu")[0]}
    # A name may come to mean something else.
    register_env("mine", lambda config: CounterEnv(terminate_at=2))
    first = GymnasiumFromJax("mine")
    register_env("mine", lambda config: CounterEnv(terminate_at=3))
    assert GymnasiumFromJax("mine").jax_env is not first.jax_env
    # A config that cannot be a key.
    env = GymnasiumFromJax("mine", {"list": [1]})
    env.reset(seed=0)
    assert env.step(0)[1] == 1


def test_in_a_host_vector():
    config = types.SimpleNamespace(
        env="envs.gymnasium_versions:GymnasiumCounterEnv",
        env_config={"terminate_at": 2},
        num_envs_per_env_runner=3,
        is_multi_agent=False,
        gym_env_vectorize_mode="sync",
        disable_env_checking=False,
        seed=0,
    )
    assert not resolve_env(config.env).is_jax
    vector = make_vector_env(config)
    vector.reset(seed=1)
    assert vector.step(np.zeros(3, np.int32)).obs.tolist() == [[1], [1], [1]]
    step = vector.step(np.zeros(3, np.int32))
    assert step.final_obs.tolist() == [[2], [2], [2]] and step.obs.tolist() == [[0], [0], [0]]
    assert step.terminateds.all() and step.rewards.tolist() == [2, 2, 2]


def test_what_is_no_jax_environment_is_refused():
    with pytest.raises(ValueError, match="GymnasiumFromJax\\('CartPole-v1'\\).*host environment already"):
        GymnasiumFromJax("CartPole-v1")
    with pytest.raises(ValueError, match="terminat_at"):
        GymnasiumCounterEnv({"terminat_at": 3})
