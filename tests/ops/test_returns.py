import jax
import numpy as np
import pytest

from jaxrl_stack.ops.returns import gae


def by_definition(rewards, values, terminateds, truncateds, truncation_values, bootstrap, gamma, lambda_, mask):
    """The sum over k of (gamma lambda)^k delta_{t+k}, row by row: a second formulation, without recursion."""
    num_steps, num_envs = rewards.shape
    advantages = np.zeros_like(rewards)
    for b in range(num_envs):
        rows = [t for t in range(num_steps) if mask[t, b]]
        deltas = []
        for i, t in enumerate(rows):
            following = values[rows[i + 1], b] if i + 1 < len(rows) else bootstrap[b]
            if truncateds[t, b]:
                following = truncation_values[t, b]
            if terminateds[t, b]:
                following = 0.0
            deltas.append(rewards[t, b] + gamma * following - values[t, b])
        for i, t in enumerate(rows):
            total, weight = 0.0, 1.0
            for k in range(i, len(rows)):
                total += weight * deltas[k]
                if terminateds[rows[k], b] or truncateds[rows[k], b]:
                    break
                weight *= gamma * lambda_
            advantages[t, b] = total
    return advantages


def block(seed, num_steps=17, num_envs=5, masked=False):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    return {
        "rewards": rng.normal(size=shape).astype(np.float32),
        "values": rng.normal(size=shape).astype(np.float32),
        "terminateds": rng.random(shape) < 0.15,
        "truncateds": rng.random(shape) < 0.15,
        "truncation_values": rng.normal(size=shape).astype(np.float32),
        "bootstrap_value": rng.normal(size=num_envs).astype(np.float32),
        "mask": rng.random(shape) < 0.7 if masked else np.ones(shape, bool),
    }


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("gamma", "lambda_"), [(0.99, 0.95), (0.9, 1.0), (1.0, 0.0)])
def test_gae_equals_its_definition(gamma, lambda_, masked):
    data = block(0, masked=masked)
    advantages, targets = jax.jit(gae)(gamma=gamma, lambda_=lambda_, **data)
    expected = by_definition(
        data["rewards"],
        data["values"],
        data["terminateds"],
        data["truncateds"],
        data["truncation_values"],
        data["bootstrap_value"],
        gamma,
        lambda_,
        data["mask"],
    )
    np.testing.assert_allclose(advantages, expected, atol=2e-5)
    np.testing.assert_allclose(targets, np.where(data["mask"], expected + data["values"], 0.0), atol=2e-5)


def test_gae_by_hand():
    column = lambda *x: np.array(x, np.float32)[:, None]  # noqa: E731
    flags = lambda *x: np.array(x, bool)[:, None]  # noqa: E731
    advantages, targets = gae(
        rewards=column(1, 2, 3, 4),
        values=column(0.5, 0.5, 0.5, 0.5),
        terminateds=flags(0, 1, 0, 0),
        truncateds=flags(0, 0, 1, 0),
        truncation_values=column(9, 9, 10, 9),
        bootstrap_value=np.array([20], np.float32),
        gamma=0.5,
        lambda_=0.5,
    )
    # t=3: 4 + .5*20 - .5 = 13.5; t=2 (truncated): 3 + .5*10 - .5 = 7.5; t=1 (terminated): 2 - .5 = 1.5;
    # t=0: 1 + .5*.5 - .5 + .25*1.5 = 1.125
    np.testing.assert_allclose(advantages[:, 0], [1.125, 1.5, 7.5, 13.5])
    np.testing.assert_allclose(targets[:, 0], [1.625, 2.0, 8.0, 14.0])


def test_gae_of_a_step_that_terminates_and_is_truncated_does_not_bootstrap():
    one = np.ones((1, 1), np.float32)
    flag = np.ones((1, 1), bool)
    advantages, _ = gae(
        rewards=one,
        values=0 * one,
        terminateds=flag,
        truncateds=flag,
        truncation_values=100 * one,
        bootstrap_value=100 * one[0],
        gamma=0.9,
        lambda_=0.9,
    )
    assert advantages[0, 0] == 1.0


def test_gae_agrees_with_rlax():
    rlax = pytest.importorskip("rlax")
    data = block(3)
    data["truncateds"][:] = False
    advantages, _ = gae(gamma=0.97, lambda_=0.9, **data)
    for b in range(data["rewards"].shape[1]):
        discounts = 0.97 * (1.0 - data["terminateds"][:, b].astype(np.float32))
        values = np.append(data["values"][:, b], data["bootstrap_value"][b])
        expected = rlax.truncated_generalized_advantage_estimation(data["rewards"][:, b], discounts, 0.9, values)
        np.testing.assert_allclose(advantages[:, b], expected, atol=2e-5)
