"""Off-policy estimators against sums that are written out, and against values by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops import off_policy_evaluation as ope

GAMMA = 0.9


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    shape, lengths = (6, 5), np.array([5, 3, 1, 4, 5, 2])
    return {
        "log_ratios": rng.normal(scale=0.5, size=shape).astype(np.float32),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "q": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "final": rng.normal(size=6).astype(np.float32),
        "mask": np.arange(5) < lengths[:, None],
    }


def episodes(data):
    for i, length in enumerate(data["mask"].sum(axis=1)):
        yield i, [(np.exp(data["log_ratios"][i, t]), data["rewards"][i, t]) for t in range(length)]


def test_importance_sampling_is_the_product_of_ratios_and_the_discounted_return(data):
    log_weights, returns = jax.jit(ope.importance_sampling)(data["log_ratios"], data["rewards"], data["mask"], GAMMA)
    for i, steps in episodes(data):
        assert np.isclose(np.exp(log_weights[i]), np.prod([ratio for ratio, _ in steps]), rtol=1e-5)
        assert np.isclose(returns[i], sum(GAMMA**t * reward for t, (_, reward) in enumerate(steps)), rtol=1e-5)


def test_per_decision_weights_have_the_ratios_up_to_their_step(data):
    found = jax.jit(ope.per_decision_importance_sampling)(data["log_ratios"], data["rewards"], data["mask"], GAMMA)
    for i, steps in episodes(data):
        total, product = 0.0, 1.0
        for t, (ratio, reward) in enumerate(steps):
            product *= ratio
            total += GAMMA**t * product * reward
        assert np.isclose(found[i], total, rtol=1e-5)


def test_doubly_robust_is_per_decision_sampling_of_what_q_leaves(data):
    """``V(s_0) + sum_t gamma^t rho_{0:t} (r_t + gamma V(s_{t+1}) - Q(s_t, a_t))``: a second formulation."""
    found = jax.jit(ope.doubly_robust)(
        *(data[n] for n in ("log_ratios", "rewards", "q", "values", "final", "mask")), 0.9
    )
    for i, steps in episodes(data):
        total, product = data["values"][i, 0], 1.0
        for t, (ratio, reward) in enumerate(steps):
            following = data["values"][i, t + 1] if t + 1 < len(steps) else data["final"][i]
            product *= ratio
            total += GAMMA**t * product * (reward + GAMMA * following - data["q"][i, t])
        assert np.isclose(found[i], total, rtol=1e-4)


def test_by_hand():
    log_ratios, rewards = np.log([[2.0, 0.5], [0.5, 1.0]]).astype(np.float32), np.array([[1.0, 4.0], [2.0, 0.0]])
    mask = np.array([[True, True], [True, False]])
    log_weights, returns = jax.jit(ope.importance_sampling)(log_ratios, rewards, mask, 0.5)
    np.testing.assert_allclose(np.exp(log_weights), [1.0, 0.5], rtol=1e-6)
    np.testing.assert_allclose(returns, [3.0, 2.0])
    np.testing.assert_allclose(
        jax.jit(ope.per_decision_importance_sampling)(log_ratios, rewards, mask, 0.5), [4.0, 1.0], rtol=1e-6
    )
    above, below = jax.jit(ope.weighted)(log_weights, returns)
    assert np.isclose(above.sum() / below.sum(), (1.0 * 3 + 0.5 * 2) / 1.5)
    assert np.isclose(jax.jit(ope.effective_sample_size)(log_weights), 1.5**2 / 1.25)


def test_weights_that_no_number_holds_still_weigh():
    above, below = jax.jit(ope.weighted)(jnp.array([1000.0, 1000.0, -1000.0]), jnp.array([1.0, 3.0, 9.0]))
    assert above.sum() / below.sum() == 2.0
    assert jax.jit(ope.effective_sample_size)(jnp.array([1000.0, 1000.0, -1000.0])) == 2.0


def test_bootstraps_spread_as_standard_errors_do():
    rng = np.random.default_rng(1)
    values = rng.normal(size=(400, 2)).astype(np.float32) * np.array([1.0, 3.0], np.float32)
    drawn = jax.jit(ope.bootstrap_ratios, static_argnames="num_resamples")(
        jax.random.key(0), values, np.ones_like(values), num_resamples=500
    )
    np.testing.assert_allclose(drawn.mean(axis=0), values.mean(axis=0), atol=0.02)
    np.testing.assert_allclose(drawn.std(axis=0), values.std(axis=0) / 20, rtol=0.15)
