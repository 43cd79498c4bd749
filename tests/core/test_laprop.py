"""LaProp and adaptive clipping by hand and against their definitions in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_stack.core.learner.laprop import clip_adaptively, laprop, scale_by_laprop


def run(optimizer, params, gradients):
    """The updates of some gradients one after the other."""
    update, state, out = jax.jit(optimizer.update), optimizer.init(params), []
    for gradient in gradients:
        change, state = update(gradient, state, params)
        out.append(change)
    return out


def test_laprop_is_its_definition():
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(6, 3)).astype(np.float32) * np.array([1e-6, 1.0, 1e6], np.float32)
    b1, b2, n, m = 0.9, 0.99, 0.0, 0.0
    updates = run(scale_by_laprop(b1, b2), {"w": np.zeros(3, np.float32)}, [{"w": g} for g in gradients])
    for t, (g, update) in enumerate(zip(gradients.astype(np.float64), updates, strict=True), start=1):
        n = b2 * n + (1 - b2) * g**2
        m = b1 * m + (1 - b1) * g / np.sqrt(n / (1 - b2**t))
        np.testing.assert_allclose(update["w"], m / (1 - b1**t), rtol=1e-4)


def test_the_first_step_of_laprop_is_the_sign_of_the_gradient_whatever_its_size():
    (update,) = run(scale_by_laprop(), np.zeros(4, np.float32), [np.array([3.0, -1e-9, 1e9, 0.0], np.float32)])
    np.testing.assert_allclose(update, [1.0, -1.0, 1.0, 0.0], rtol=1e-4)


def test_laprop_forgets_no_direction_when_gradients_shrink_at_once():
    """Adam's momentum of large gradients over the root of small squares is not what moves here."""
    gradients = [np.array([g], np.float32) for g in [1.0] * 20 + [1e-3]]
    adam = run(optax.scale_by_adam(b1=0.9, b2=0.1), np.zeros(1, np.float32), gradients)[-1]
    ours = run(scale_by_laprop(b1=0.9, b2=0.1), np.zeros(1, np.float32), gradients)[-1]
    assert float(adam[0]) > 2.0
    np.testing.assert_allclose(ours, 0.9, atol=0.02)


@pytest.mark.parametrize(
    ("gradient", "param", "expected"),
    [
        ([0.3, 0.4], [3.0, 4.0], [0.3, 0.4]),  # 0.5 is below 0.3 * 5.
        ([30.0, 40.0], [3.0, 4.0], [0.9, 1.2]),
        ([30.0, 40.0], [0.0, 0.0], [0.3e-3 * 0.6, 0.3e-3 * 0.8]),
        ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]),
    ],
)
def test_gradients_are_clipped_by_the_norm_of_what_they_change(gradient, param, expected):
    clip = clip_adaptively(0.3)
    gradient, param = np.array(gradient, np.float32), np.array(param, np.float32)
    (update,) = run(clip, {"w": param, "b": np.ones(2, np.float32)}, [{"w": gradient, "b": np.zeros(2, np.float32)}])
    np.testing.assert_allclose(update["w"], expected, rtol=1e-5)


def test_clipping_needs_parameters():
    with pytest.raises(ValueError, match="params"):
        clip_adaptively().update({"w": jnp.ones(2)}, optax.EmptyState())


def test_laprop_moves_a_parabola_to_its_least():
    optimizer = laprop(0.05)
    step = jax.jit(lambda w, state: optimizer.update(2.0 * (w - 1.0), state, w))
    w, state = jnp.full(3, 4.0), optimizer.init(jnp.full(3, 4.0))
    for _ in range(200):
        change, state = step(w, state)
        w = optax.apply_updates(w, change)
    np.testing.assert_allclose(w, 1.0, atol=0.1)


def test_laprop_takes_a_clip_of_none():
    gradient, param = np.array([1e3], np.float32), np.array([1e-3], np.float32)
    make = functools.partial(laprop, 1.0)
    (clipped,), (free,) = (run(make(clip=clip), param, [gradient]) for clip in (0.3, None))
    # The first step is a sign, clipped or not.
    np.testing.assert_allclose([clipped, free], -1.0, rtol=1e-4)
    assert len(make(clip=0.3).init(param)) == len(make(clip=None).init(param)) + 1
