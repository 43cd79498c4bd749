import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.acting.running_episodes import RunningEpisodes

extend = jax.jit(RunningEpisodes.extend)

REWARDS = [[1.0, 5.0], [2.0, 6.0], [4.0, 7.0], [8.0, 8.0]]
ENDED = [[False, False], [True, False], [True, False], [False, False]]


def test_returns_and_lengths_start_again_after_an_end():
    before = RunningEpisodes(jnp.array([10.0, 100.0]), jnp.zeros(2), jnp.array([3, 7], jnp.int32))
    after, steps = extend(before, jnp.array(REWARDS), jnp.array(ENDED))
    np.testing.assert_array_equal(steps.episode_return, [[11, 105], [13, 111], [4, 118], [8, 126]])
    np.testing.assert_array_equal(steps.episode_length, [[4, 8], [5, 9], [1, 10], [1, 11]])
    np.testing.assert_array_equal(after.episode_return, [8, 126])
    np.testing.assert_array_equal(after.episode_length, [1, 11])


@pytest.mark.parametrize("cuts", [[5, 5, 5, 5], [1] * 20, [13, 7]], ids=str)
def test_rollouts_of_any_length_say_the_same_as_one_long_one(cuts):
    rng = np.random.default_rng(0)
    rewards, ended = rng.integers(-9, 9, (20, 3)).astype(np.float32), rng.random((20, 3)) < 0.2
    expected, length, total = [], np.zeros(3, int), np.zeros(3)
    for t in range(20):
        total, length = total + rewards[t], length + 1
        expected.append((total, length))
        total, length = np.where(ended[t], 0, total), np.where(ended[t], 0, length)
    episodes, start, rows = RunningEpisodes.empty(3), 0, []
    for cut in cuts:
        episodes, steps = extend(episodes, rewards[start : start + cut], ended[start : start + cut])
        rows += zip(steps.episode_return, steps.episode_length, strict=True)
        start += cut
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(episodes.episode_return, total)
    np.testing.assert_array_equal(episodes.episode_length, length)


def test_the_return_of_a_long_episode_keeps_its_digits():
    ended = jnp.zeros((10, 1), bool)

    def rollout(episodes, _):
        return episodes.extend(jnp.full((10, 1), 0.1, jnp.float32), ended)[0], None

    episodes, _ = jax.lax.scan(rollout, RunningEpisodes.empty(1), length=100_000)
    np.testing.assert_allclose(episodes.episode_return, 1e5, rtol=1e-6)
    assert episodes.episode_length == 1_000_000


def test_an_infinite_return_ends_with_its_episode():
    rewards, ended = jnp.array([[jnp.inf], [1.0], [2.0]]), jnp.array([[False], [True], [False]])
    after, steps = extend(RunningEpisodes.empty(1), rewards, ended)
    assert steps.episode_return.tolist() == [[np.inf], [np.inf], [2.0]]
    assert after.episode_return == 2.0 and after.return_error == 0.0
