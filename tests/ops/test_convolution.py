"""Gradients of convolutions: as JAX derives them, in the form that is fast in loops on CPUs."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.ops.convolution import LAYOUT, convolve, double, halve

SAME, VALID, CUT = ((1, 2), (2, 1)), ((0, 0), (0, 0)), ((-1, 0), (-1, -1))
ONE_SIDE = [
    ((3, 1), (3, 3), (5, 1), ((1, -1), (3, -1))),  # windows that lie in zeros alone
    ((2, 6), (2, 3), (5, 4), ((4, -4), (-4, 4))),
    ((6, 9), (4, 2), (3, 3), ((3, 4), (2, -4))),
    ((5, 4), (1, 2), (6, 4), ((2, -2), (-1, 3))),
]
"""Image, kernel, stride, and margins of which one side is cut and the other is padded."""


def plain(images, kernel, stride, margins):
    return jax.lax.conv_general_dilated(images, kernel, stride, margins, dimension_numbers=LAYOUT)


@pytest.mark.parametrize(
    ("stride", "margins"), [((2, 3), SAME), ((3, 2), VALID), ((5, 6), CUT)], ids=["same", "valid", "cut"]
)
def test_gradients_are_those_that_jax_derives(stride, margins):
    images, kernel, weights = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(5, 11, 12, 3), (4, 5, 3, 2), (2,)])
    )

    @jax.jit
    def of(images, kernel):
        losses = [lambda x, k, f=f: jnp.sum(jnp.sin(f(x, k, stride, margins)) @ weights) for f in (convolve, plain)]
        return [jax.value_and_grad(loss, argnums=(0, 1))(images, kernel) for loss in losses]

    own, derived = of(images, kernel)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own, derived)


def test_gradients_where_one_side_is_cut_and_the_other_padded():
    shapes = [((2, *size, 2), (*kernel, 2, 3), stride, margins) for size, kernel, stride, margins in ONE_SIDE]

    @jax.jit
    def of(key):
        found = []
        for image, kernel, stride, margins in shapes:
            arrays = [jax.random.normal(jax.random.fold_in(key, i), shape) for i, shape in enumerate((image, kernel))]
            losses = [lambda x, k, f=f: jnp.sum(jnp.sin(f(x, k, stride, margins))) for f in (convolve, plain)]  # noqa: B023
            found.append([jax.grad(loss, argnums=(0, 1))(*arrays) for loss in losses])
        return found

    for own, derived in of(jax.random.key(0)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), own, derived)


def test_a_kernel_that_does_not_fit_is_refused():
    images, kernel = jnp.zeros((1, 4, 5, 1)), jnp.zeros((3, 3, 1, 1))
    with pytest.raises(
        ValueError,
        match=r"kernel of \[3, 3\] .* images of \[4, 5\] pixels, .* \[2, 6\] pixels with margins=.* smaller kernel",
    ):
        jax.eval_shape(lambda x: convolve(x, kernel, (1, 1), ((-2, 0), (1, 0))), images)


def test_second_derivatives_come_in_reverse():
    images, kernel = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(2, 5, 4, 2), (3, 2, 2, 1)])
    )
    losses = [lambda k, f=f: jnp.sum(jnp.sin(f(images, k, (2, 1), ((1, 0), (0, 1))))) for f in (convolve, plain)]
    own = jax.jit(jax.jacrev(jax.jacrev(losses[0])))(kernel)
    np.testing.assert_allclose(own, jax.jit(jax.hessian(losses[1]))(kernel), rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.eval_shape(jax.jacfwd(losses[0]), kernel)


def test_in_a_loop_all_of_them_have_the_order_of_axes_that_fast_kernels_take():
    def step(kernel, images):
        return kernel - jax.grad(lambda k: jnp.sum(jnp.sin(convolve(images, k, (2, 2), VALID))))(kernel), None

    def loop(kernel, batches):
        return jax.lax.scan(step, kernel, batches)[0]

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in [(4, 4, 3, 8), (3, 16, 20, 20, 3)]]
    text = jax.jit(loop).lower(*shapes).compile().as_text()
    orders = set(re.findall(r"dim_labels=([\w>-]+)", text))
    assert orders == ({"b01f_01io->b01f"} if jax.default_backend() == "cpu" else orders)
    # The gradient of images is not needed: two convolutions are there, of which one is the gradient of the kernel.
    assert text.count("dim_labels=") == 2


@pytest.mark.parametrize("size", [(8, 6), (2, 2)])
@pytest.mark.parametrize(
    ("function", "by_jax"), [(halve, jax.lax.conv_general_dilated), (double, jax.lax.conv_transpose)]
)
def test_halving_and_doubling_are_convolutions_with_their_gradients(function, by_jax, size):
    images, kernel = (
        jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate([(3, *size, 3), (4, 4, 3, 5)])
    )

    def expected(images, kernel):
        return by_jax(images, kernel, (2, 2), "SAME", dimension_numbers=LAYOUT)

    @jax.jit
    def of(images, kernel):
        losses = [lambda x, k, f=f: (jnp.sum(jnp.sin(f(x, k))), f(x, k)) for f in (function, expected)]
        return [jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(images, kernel) for loss in losses]

    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, rtol=1e-4, atol=1e-4), *of(images, kernel))
