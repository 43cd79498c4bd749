"""The shared environments do exactly what their docstrings say."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.counter import CounterEnv
from envs.fixed_length import FixedLengthEnv
from envs.nested import NestedActionEnv, NestedObservationEnv
from envs.probes import (
    PROBES,
    ActionRewardProbe,
    ConstantValueProbe,
    DiscountingProbe,
    ObservationProbe,
    TruncationBootstrapProbe,
)
from jaxrl_stack.env.jax_env import check_jax_env
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.utils import spaces

GAMMA = 0.9


def unroll(env, num_steps, num_envs=2, action=None):
    """``(first obs, steps, actions)`` as NumPy, ``[T, B, ...]``, of random actions or of ``action(obs)``."""

    @jax.jit
    def run(key):
        key, reset_key = jax.random.split(key)
        first, state = jax.vmap(env.reset, in_axes=(0, None))(jax.random.split(reset_key, num_envs), env.params)

        def body(carry, key):
            obs, state = carry
            action_key, step_key = jax.random.split(key)
            actions = (
                spaces.sample(action_key, env.action_space, (num_envs,)) if action is None else jax.vmap(action)(obs)
            )
            after = jax.vmap(env.step, in_axes=(0, 0, 0, None))(
                jax.random.split(step_key, num_envs), state, actions, env.params
            )
            return (after.obs, after.state), (after, actions)

        _, (steps, actions) = jax.lax.scan(body, (first, state), jax.random.split(key, num_steps))
        return first, steps, actions

    return jax.device_get(run(jax.random.key(0)))


def discounted_values(first, steps, gamma, bootstrap):
    """``(obs, value)`` of every visited observation; `bootstrap`: value after truncated and last steps."""
    obs = np.concatenate([first[None], steps.obs[:-1]])
    values, value = [], np.full(steps.reward.shape[1], bootstrap)
    for reward, terminated, truncated in zip(
        steps.reward[::-1], steps.terminated[::-1], steps.truncated[::-1], strict=True
    ):
        after = np.where(terminated, 0.0, np.where(truncated, bootstrap, value))
        value = reward + gamma * after
        values.append(value)
    return obs, np.stack(values[::-1])


@pytest.mark.parametrize("probe", PROBES)
def test_probes_have_the_values_they_promise(probe):
    env = probe()
    check_jax_env(env)
    expected_obs, expected = env.expected_values(GAMMA)
    best = env.optimal_actions()
    first, steps, _ = unroll(env, 40, action=None if best is None else lambda obs: jnp.int32(best[0]))
    assert set(steps.obs[..., 0].ravel()) <= set(expected_obs[:, 0])
    obs, values = discounted_values(first, steps, GAMMA, bootstrap=1.0 / (1.0 - GAMMA))
    for seen, value in zip(expected_obs, expected, strict=True):
        rows = (obs == seen).all(-1)
        rows[-1] = False  # an episode may be under way at the end
        assert rows.any()
        np.testing.assert_allclose(values[rows], value, rtol=1e-5)


def test_probes_episodes():
    _, steps, _ = unroll(ConstantValueProbe(reward=-3.0), 3)
    assert (steps.reward == -3.0).all() and steps.terminated.all() and not steps.truncated.any()
    assert ConstantValueProbe(reward=-3.0).expected_values(0.5)[1] == [-3.0]

    _, steps, _ = unroll(DiscountingProbe(), 4)
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, True] * 2)
    np.testing.assert_array_equal(steps.reward[:, 0], [0.0, 1.0] * 2)
    np.testing.assert_array_equal(steps.obs[:, 0, 0], [1.0, 0.0] * 2)

    _, steps, actions = unroll(ActionRewardProbe(), 20)
    np.testing.assert_array_equal(steps.reward, np.where(actions == 1, 1.0, -1.0))
    assert steps.terminated.all()

    first, steps, _ = unroll(ObservationProbe(), 40)
    np.testing.assert_array_equal(steps.reward, np.concatenate([first[None], steps.obs[:-1]])[..., 0])
    assert steps.terminated.all() and set(steps.reward.ravel()) == {-1.0, 1.0}


def episode_lengths(steps):
    """Lengths of all finished episodes."""
    ended = steps.terminated | steps.truncated
    return np.concatenate([np.diff(np.flatnonzero(column), prepend=-1) for column in ended.T])


def test_truncation_probe_truncates_after_every_length():
    _, steps, _ = unroll(TruncationBootstrapProbe({"max_length": 3}), 60)
    assert not steps.terminated.any() and (steps.reward == 1.0).all()
    assert set(episode_lengths(steps)) == {1, 2, 3}
    _, steps, _ = unroll(TruncationBootstrapProbe(max_length=1), 3)
    assert steps.truncated.all()


@pytest.mark.parametrize(
    ("settings", "terminated", "truncated"),
    [
        ({"terminate_at": 3}, True, False),
        ({"terminate_at": None, "truncate_at": 3}, False, True),
        ({"terminate_at": 3, "truncate_at": 3}, True, True),
        ({"terminate_at": 7, "truncate_at": 3}, False, True),
    ],
)
def test_counter_counts(settings, terminated, truncated):
    env = CounterEnv(settings)
    check_jax_env(env)
    first, steps, _ = unroll(env, 6)
    assert not first.any()
    for column in range(2):
        np.testing.assert_array_equal(steps.reward[:, column], [1, 2, 3, 1, 2, 3])
        np.testing.assert_array_equal(steps.final_obs[:, column, 0], [1, 2, 3, 1, 2, 3])
        np.testing.assert_array_equal(steps.obs[:, column, 0], [1, 2, 0, 1, 2, 0])
        ends = np.array([False, False, True] * 2)
        np.testing.assert_array_equal(steps.terminated[:, column], ends & terminated)
        np.testing.assert_array_equal(steps.truncated[:, column], ends & truncated)


def test_counter_without_end_and_with_random_start():
    _, steps, _ = unroll(CounterEnv(terminate_at=None), 12)
    assert not (steps.terminated | steps.truncated).any() and (steps.reward[-1] == 12).all()
    _, steps, _ = unroll(CounterEnv(terminate_at=4, random_start=True), 60)
    assert set(episode_lengths(steps)) == {1, 2, 3, 4}
    np.testing.assert_array_equal(steps.final_obs[..., 0], steps.reward)


def test_fixed_length_episodes():
    env = FixedLengthEnv(long_length=10)
    check_jax_env(env)
    first, steps, _ = unroll(env, 400, num_envs=8)
    assert not steps.truncated.any() and steps.terminated.any()
    lengths, returns, long = [], [], []
    for column in range(8):
        ends = np.flatnonzero(steps.terminated[:, column])
        starts = np.concatenate([[0], ends[:-1] + 1])
        for start, end in zip(starts, ends, strict=True):
            lengths.append(end - start + 1)
            returns.append(steps.reward[start : end + 1, column].sum())
            long.append((first[column] if start == 0 else steps.obs[start - 1, column])[1])
            assert steps.final_obs[end, column, 0] == pytest.approx(lengths[-1] / 10)
    assert set(zip(lengths, returns, long, strict=True)) == {(1, 0.0, 0.0), (10, 1.0, 1.0)}
    assert len(returns) > 400 and abs(np.mean(returns) - 0.5) < 0.1


def test_nested_observations_pay_for_the_mode():
    env = NestedObservationEnv(length=4)
    check_jax_env(env)
    first, steps, actions = unroll(env, 16, num_envs=4)
    assert spaces.validate_batch(env.observation_space, steps.obs) == (16, 4)
    mode = np.concatenate([first["mode"][None], steps.obs["mode"][:-1]])
    np.testing.assert_array_equal(steps.reward, actions == mode + 1)
    assert set(mode.ravel()) == {-1, 0, 1}
    np.testing.assert_array_equal(steps.truncated[:, 0], [False, False, False, True] * 4)
    # Independent draws: neither the next step nor the reset repeats an observation.
    positions = np.concatenate([steps.obs["body"]["position"], steps.final_obs["body"]["position"][3::4]]).reshape(
        -1, 2
    )
    assert len(np.unique(positions, axis=0)) == len(positions)


def test_nested_actions_pay_for_every_part():
    env = NestedActionEnv(length=5)
    check_jax_env(env)
    x = jnp.float32(-0.5)
    best = {"move": 0, "arms": (jnp.stack([x, -x]), jnp.array([1, 2]))}
    _, steps, actions = unroll(env, 20)
    assert spaces.validate_batch(env.action_space, actions) == (20, 2)
    assert (steps.reward < 1.0).all() and (steps.reward > -1.0).all()
    np.testing.assert_array_equal(steps.truncated[:, 0], (np.arange(20) + 1) % 5 == 0)
    for action, reward in [
        (best, 1.0),
        ({**best, "move": 2}, 1 - 1 / 3),
        ({**best, "arms": (best["arms"][0], jnp.array([0, 2]))}, 1 - 1 / 6),
        ({**best, "arms": (best["arms"][0] + 0.5, best["arms"][1])}, 1 - 0.25 / 3),
    ]:
        np.testing.assert_allclose(env.reward(x[None], action), reward, rtol=1e-6)
    np.testing.assert_allclose(env.reward(-x[None], {"move": 2, "arms": (-best["arms"][0], best["arms"][1])}), 1.0)


def test_settings_are_checked_and_reach_a_resolved_class():
    with pytest.raises(ValueError, match="no setting 'terminate'.*Did you mean 'terminate_at'"):
        CounterEnv(terminate=3)
    for wrong in (
        lambda: CounterEnv(truncate_at=0),
        lambda: CounterEnv(terminate_at=None, random_start=True),
        lambda: FixedLengthEnv(short_length=5, long_length=5),
        lambda: TruncationBootstrapProbe(max_length=0),
        lambda: NestedObservationEnv(length=0),
    ):
        with pytest.raises(ValueError, match="must be"):
            wrong()
    made = resolve_env("envs.counter:CounterEnv", {"terminate_at": 5}).make()
    assert made.settings == {"terminate_at": 5, "truncate_at": None, "random_start": False}
