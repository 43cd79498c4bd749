"""Distributions against SciPy, numerical integration and their own samples."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy

from jaxrl_stack.core.distribution import (
    Categorical,
    Deterministic,
    DiagGaussian,
    MultiCategorical,
    MultiDistribution,
    SquashedGaussian,
    get_action_dist_cls_for_space,
)

KEY = jax.random.key(3)
LOGITS = np.array([[0.3, -1.0, 2.0, 0.0], [0.0, 0.0, 0.0, 0.0], [5.0, -5.0, 1.0, 4.9]], np.float32)
LOWEST = float(np.finfo(np.float32).min)


def softmax(logits):
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def assert_frequencies(draws, probs):
    """Chi-square test of integer draws [S] against probabilities [n], at a level that never trips by chance."""
    probs = np.asarray(probs, np.float64) / np.sum(probs, dtype=np.float64)
    counts = np.bincount(np.asarray(draws), minlength=len(probs))
    possible = probs > 0
    assert counts[~possible].sum() == 0
    assert scipy.stats.chisquare(counts[possible], probs[possible] * len(draws)).pvalue > 1e-6


def test_categorical_formulas():
    p, q = softmax(LOGITS), softmax(LOGITS[::-1])
    actions = np.array([2, 0, 3])

    @jax.jit
    def terms(logits, others, probs):
        dist, other = Categorical.from_logits(logits), Categorical.from_logits(others)
        greedy = dist.to_deterministic()
        draw = greedy.sample(key=KEY)
        logp = dist.logp(actions), Categorical(probs=probs).logp(actions)
        return logp, dist.entropy(), dist.kl(other), draw, greedy.logp(draw)

    (logp, logp_of_probs), entropy, kl, draw, greedy_logp = terms(LOGITS, LOGITS[::-1], p)
    np.testing.assert_allclose(logp, np.log(p[np.arange(3), actions]), rtol=1e-5)
    np.testing.assert_allclose(entropy, scipy.stats.entropy(p, axis=-1), rtol=1e-5)
    np.testing.assert_allclose(kl, scipy.stats.entropy(p, q, axis=-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(logp_of_probs, logp, rtol=1e-5)
    np.testing.assert_array_equal(draw, [2, 0, 0])
    assert greedy_logp.shape == (3,)
    with pytest.raises(ValueError, match="exactly one of the two"):
        Categorical()


# 6 actions take the unrolled path, 40 the prefix sum.
@pytest.mark.parametrize("n", [6, 40])
def test_categorical_draws_have_the_right_frequencies(n):
    logits = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    logits[0, [0, 2, n - 1]] = [-np.inf, LOWEST, -np.inf]
    draws = jax.jit(lambda key: Categorical(logits).sample(key=key, sample_shape=(20_000,)))(KEY)
    assert draws.shape == (20_000, 2) and draws.dtype == jnp.int32
    for row in range(2):
        assert_frequencies(draws[:, row], softmax(logits[row].astype(np.float64)))


@pytest.mark.parametrize("n", [5, 40])
def test_no_uniform_number_draws_a_masked_action(n):
    """The extreme uniform numbers, with masks at both ends and in runs, on logits of every scale."""
    from jaxrl_stack.core.distribution.jax_distribution import _inverse_cdf

    rng = np.random.default_rng(1)
    logits = (rng.normal(size=(2000, n)) * rng.choice([0.1, 1.0, 30.0], size=(2000, 1))).astype(np.float32)
    masked = rng.random((2000, n)) < 0.6
    masked[:, rng.integers(n)] = False
    masked[0], masked[1] = np.arange(n) != 0, np.arange(n) != n - 1
    logits = np.where(masked, LOWEST / 2, logits)
    inverse_cdf = jax.jit(_inverse_cdf)
    for uniform in [0.0, 1e-7, 0.5, 1.0 - 2.0**-23, 1.0 - 2.0**-24]:
        index = np.asarray(inverse_cdf(logits, np.full(2000, uniform, np.float32)))
        assert index.min() >= 0 and index.max() < n
        assert not masked[np.arange(2000), index].any()


@pytest.mark.parametrize("mask", [-np.inf, LOWEST, -1e9])
def test_masked_logits_stay_finite_with_their_gradients(mask):
    base = jnp.array([[0.5, 0.0, -0.3, 1.0]])
    masked = jnp.array([[False, True, False, True]])
    action = jnp.array([0])

    def total(logits):
        dist = Categorical(jnp.where(masked, mask, logits))
        old = Categorical(jnp.where(masked, mask, jnp.array([[0.1, 0.2, 0.3, 0.4]])))
        return jnp.sum(dist.logp(action) + dist.entropy() + dist.kl(old) + old.kl(dist))

    value, gradient = jax.jit(jax.value_and_grad(total))(base)
    assert np.isfinite(value) and np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[masked], 0.0)

    @jax.jit
    def terms(logits):
        dist = Categorical(logits)
        ratio = dist.logp(jnp.array([1])) - Categorical(logits + 0).logp(jnp.array([1]))
        return dist.entropy(), dist.logp(action), ratio

    entropy, logp, ratio = terms(jnp.where(masked, mask, base))
    np.testing.assert_allclose(entropy, scipy.stats.entropy(softmax(np.array([0.5, -0.3]))), rtol=1e-5)
    np.testing.assert_allclose(logp, np.log(softmax(np.array([0.5, -0.3])))[:1], rtol=1e-5)
    # A masked action that was taken all the same gives a ratio, not a NaN.
    assert np.isfinite(ratio).all()


def test_a_nan_logit_shows():
    assert np.isnan(Categorical(jnp.array([0.0, jnp.nan])).entropy())


def test_categorical_rsample_is_one_hot_with_the_gradient_of_the_probabilities():
    def expected_index(logits):
        return jnp.sum(Categorical(logits).rsample(key=KEY) * jnp.arange(4.0))

    sample = jax.jit(lambda: Categorical(LOGITS[0]).rsample(key=KEY))()
    assert sorted(np.asarray(sample).tolist()) == [0, 0, 0, 1]
    by_probs = jax.jit(jax.grad(lambda logits: jnp.sum(jax.nn.softmax(logits) * jnp.arange(4.0))))(LOGITS[0])
    np.testing.assert_allclose(jax.jit(jax.grad(expected_index))(LOGITS[0]), by_probs, rtol=1e-5)


def test_diag_gaussian_formulas():
    rng = np.random.default_rng(0)
    inputs, others = rng.normal(size=(2, 5, 6)).astype(np.float32)
    value = rng.normal(size=(5, 3)).astype(np.float32)
    dist, other = DiagGaussian.from_logits(inputs), DiagGaussian.from_logits(others)
    mean, std = inputs[:, :3], np.exp(inputs[:, 3:])
    mean2, std2 = others[:, :3], np.exp(others[:, 3:])
    np.testing.assert_allclose(dist.logp(value), scipy.stats.norm(mean, std).logpdf(value).sum(-1), rtol=1e-4)
    np.testing.assert_allclose(dist.entropy(), scipy.stats.norm(mean, std).entropy().sum(-1), rtol=1e-5)
    kl = np.log(std2 / std) + (std**2 + (mean - mean2) ** 2) / (2 * std2**2) - 0.5
    np.testing.assert_allclose(dist.kl(other), kl.sum(-1), rtol=1e-4)
    np.testing.assert_allclose(dist.kl(dist), 0.0, atol=1e-6)
    np.testing.assert_array_equal(dist.to_deterministic().sample(), mean)
    assert DiagGaussian(mean, 0.5).entropy().shape == (5,)


def test_diag_gaussian_samples():
    @jax.jit
    def run(scale):
        dist = DiagGaussian(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
        drawn = [
            jax.grad(lambda s, draw=draw: draw(DiagGaussian(jnp.zeros(2), s)).sum())(scale)
            for draw in (lambda dist: dist.rsample(key=KEY), lambda dist: dist.sample(key=KEY))
        ]
        return dist.sample(key=KEY, sample_shape=(20_000,)), drawn, jax.random.normal(KEY, (2,))

    draws, (scale_gradient, no_gradient), noise = run(np.ones(2, np.float32))
    for i, (mean, std) in enumerate([(1.0, 0.5), (-2.0, 3.0)]):
        assert scipy.stats.kstest(np.asarray(draws[:, i]), scipy.stats.norm(mean, std).cdf).pvalue > 1e-6
    np.testing.assert_allclose(scale_gradient, noise, rtol=1e-6)
    assert not np.asarray(no_gradient).any()


def test_squashed_gaussian_density_integrates_to_one_and_matches_its_samples():
    dist = SquashedGaussian.from_logits(jnp.array([0.4, -0.3]), low=-2.0, high=3.0)
    grid = np.linspace(-2, 3, 20_001, dtype=np.float32)[1:-1, None]
    log_density = jax.jit(dist.logp)
    density = np.exp(np.asarray(log_density(grid)))
    assert abs(density.sum() * (5 / 20_000) - 1) < 1e-3
    draws, logp = jax.jit(lambda: dist.sample_and_logp(key=KEY, sample_shape=(5_000,)))()
    assert draws.min() > -2 and draws.max() < 3
    np.testing.assert_allclose(logp, log_density(draws), atol=2e-2)
    cdf = np.cumsum(density) * (5 / 20_000)
    assert scipy.stats.kstest(np.asarray(draws[:, 0]), lambda x: np.interp(x, grid[:, 0], cdf)).pvalue > 1e-6


def test_squashed_gaussian_greedy_action_is_the_squashed_mean_and_clamps():
    @jax.jit
    def run(logits, loc):
        dist = SquashedGaussian.from_logits(logits, low=-2.0, high=2.0)
        at_bounds = [dist.logp(jnp.full(1, bound)) for bound in (2.0, -2.0)]
        far = SquashedGaussian(loc, jnp.full(1, 0.1)).rsample_and_logp(key=KEY)
        gradient = jax.grad(lambda m: SquashedGaussian(m, 0.1).rsample_and_logp(key=KEY)[1].sum())(loc)
        return dist.to_deterministic().sample(), dist.normal.scale, at_bounds, far, gradient

    logits = np.array([0.7, 9.0], np.float32)
    greedy, scale, at_bounds, (value, logp), gradient = run(logits, np.array([30.0], np.float32))
    np.testing.assert_allclose(greedy, [2 * np.tanh(0.7)], rtol=1e-6)
    np.testing.assert_allclose(scale, np.exp(2.0), rtol=1e-6)
    # At the bounds themselves, and far out in the tails.
    assert np.isfinite(at_bounds).all()
    assert value == 1.0 and np.isfinite(logp) and np.isfinite(gradient)
    dist = SquashedGaussian.from_logits(logits, low=-2.0, high=2.0)
    with pytest.raises(ValueError, match="no closed-form entropy"):
        dist.entropy()
    with pytest.raises(ValueError, match="no closed-form KL"):
        dist.kl(dist)


def test_multi_categorical_is_a_product():
    space = gym.spaces.MultiDiscrete([2, 3])
    cls = get_action_dist_cls_for_space(space)
    assert cls.required_input_dim(space) == 5 and issubclass(cls, MultiCategorical)
    inputs, others = np.random.default_rng(0).normal(size=(2, 4, 5)).astype(np.float32)
    value = np.array([[0, 2], [1, 0], [1, 1], [0, 0]])

    @jax.jit
    def terms(inputs, others):
        dist, other = cls.from_logits(inputs), cls.from_logits(others)
        parts = [Categorical(inputs[:, :2]), Categorical(inputs[:, 2:])]
        other_parts = [Categorical(others[:, :2]), Categorical(others[:, 2:])]
        pairs = {
            "logp": (dist.logp(value), sum(p.logp(value[:, i]) for i, p in enumerate(parts))),
            "entropy": (dist.entropy(), sum(p.entropy() for p in parts)),
            "kl": (dist.kl(other), sum(p.kl(o) for p, o in zip(parts, other_parts, strict=True))),
        }
        draws = dist.sample(key=KEY, sample_shape=(10_000,))
        return pairs, draws, dist.rsample(key=KEY), dist.to_deterministic().sample()

    pairs, draws, one_hot, greedy = terms(inputs, others)
    for ours, expected in pairs.values():
        np.testing.assert_allclose(ours, expected, rtol=1e-4)
    assert draws.shape == (10_000, 4, 2)
    joint = np.outer(softmax(inputs[0, :2]), softmax(inputs[0, 2:])).ravel()
    assert_frequencies(draws[:, 0, 0] * 3 + draws[:, 0, 1], joint)
    assert one_hot.shape == (4, 5)
    np.testing.assert_array_equal(greedy[:, 1], inputs[:, 2:].argmax(-1))
    hot = MultiCategorical.from_logits(inputs, [2, 3], temperatures=[1.0, 0.01])
    assert hot.categoricals[1].entropy().max() < 0.1
    with pytest.raises(ValueError, match="width 4.*add up to 5"):
        cls.from_logits(inputs[:, :4])


def test_multi_distribution_follows_the_action_space():
    space = gym.spaces.Dict(
        {
            "z": gym.spaces.Discrete(3),
            "a": gym.spaces.Tuple([gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiDiscrete([2, 2])]),
        }
    )
    cls = get_action_dist_cls_for_space(space)
    assert issubclass(cls, MultiDistribution)
    assert cls.required_input_dim(space) == 3 + 4 + 4
    assert cls.required_input_dim(space, as_list=True) == [4, 4, 3]
    inputs = jnp.asarray(np.random.default_rng(0).normal(size=(5, 11)), jnp.float32)

    @jax.jit
    def terms(inputs):
        dist = cls.from_logits(inputs)
        value, logp = dist.sample_and_logp(key=KEY)
        # Dict entries in sorted order: "a" before "z".
        expected = (
            DiagGaussian.from_logits(inputs[:, :4]).logp(value["a"][0])
            + MultiCategorical.from_logits(inputs[:, 4:8], [2, 2]).logp(value["a"][1])
            + Categorical(inputs[:, 8:]).logp(value["z"])
        )
        deterministic = dist.to_deterministic()
        greedy = deterministic.sample(key=KEY)
        log_probs = (expected, logp, dist.logp(value))
        return value, log_probs, dist.entropy(), dist.kl(dist), greedy, deterministic.logp(greedy), dist.sample(key=KEY)

    value, (expected, logp, logp_of_value), entropy, kl, greedy, logp_of_greedy, draw = terms(inputs)
    assert jax.tree.map(jnp.shape, value) == {"a": ((5, 2), (5, 2)), "z": (5,)}
    np.testing.assert_allclose(logp, expected, rtol=1e-5)
    np.testing.assert_allclose(logp_of_value, expected, rtol=1e-5)
    assert entropy.shape == (5,)
    np.testing.assert_allclose(kl, 0.0, atol=1e-6)
    np.testing.assert_array_equal(greedy["z"], inputs[:, 8:].argmax(-1))
    assert logp_of_greedy.shape == (5,)
    assert space["z"].contains(np.int64(draw["z"][0]))
    with pytest.raises(ValueError, match="with the sum 11, and inputs of width 10"):
        cls.from_logits(inputs[:, :10])


def test_parts_of_an_action_are_drawn_independently():
    parts = MultiDistribution({name: Categorical(jnp.zeros((2000, 2))) for name in "ab"})
    a, b = parts.sample(key=KEY).values()
    assert_frequencies(2 * a + b, np.ones(4))
    hot = MultiCategorical(parts.children).rsample(key=KEY)
    assert_frequencies(2 * np.argmax(hot[:, :2], 1) + np.argmax(hot[:, 2:], 1), np.ones(4))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (gym.spaces.Box(-1, 1, (2, 2)), r"rank 2.*shape \(4,\)"),
        (gym.spaces.Box(0, 5, (2,), dtype=np.int32), "Box of integers"),
        (gym.spaces.MultiDiscrete([[2, 3], [4, 2]]), r"rank 2.*MultiDiscrete\(\[2, 3, 4, 2\]\)"),
        (gym.spaces.MultiBinary((2, 2)), r"rank 2.*MultiDiscrete\(\[2, 2, 2, 2\]\)"),
    ],
)
def test_spaces_without_a_distribution_are_refused_with_a_way_out(space, message):
    with pytest.raises(ValueError, match=message):
        get_action_dist_cls_for_space(space)


def test_deterministic():
    dist = Deterministic.from_logits(jnp.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(dist.sample(sample_shape=(4,))[2], dist.loc)
    assert dist.logp(dist.sample()).shape == (3,)
    assert Deterministic.required_input_dim(gym.spaces.Box(-1, 1, (2,))) == 2
    with pytest.raises(ValueError, match="no entropy"):
        dist.entropy()


def test_partial_classes_can_be_overridden_at_the_call():
    cls = SquashedGaussian.get_partial_dist_cls(low=-3.0, high=3.0)
    inputs = jnp.array([5.0, 0.0])
    assert cls.__name__ == "SquashedGaussianPartial"
    assert cls.from_logits(inputs).to_deterministic().sample() > 2.9
    assert cls.from_logits(inputs, high=1.0).to_deterministic().sample() < 1.0


def test_torch_names_say_what_to_use():
    with pytest.raises(ImportError, match="distribution.Categorical"):
        from jaxrl_stack.core.distribution import TorchCategorical  # noqa: F401
    with pytest.raises(ImportError):
        from jaxrl_stack.core.distribution import Nonsense  # noqa: F401
