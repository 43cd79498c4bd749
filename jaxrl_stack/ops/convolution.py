"""Convolutions with gradients that are also fast on CPU in compiled loops (such as `jax.lax.scan`), where JAX's
gradients take up to 25 times as long.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

LAYOUT = ("NHWC", "HWIO", "NHWC")

Margins = tuple[tuple[int, int], tuple[int, int]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def convolve(images: jax.Array, kernel: jax.Array, stride: tuple[int, int], margins: Margins) -> jax.Array:
    """Convolution with reverse-mode derivatives of any order, for example ``jax.jacrev(jax.jacrev(...))``.

    Forward derivatives are refused by JAX with a TypeError: ``jax.jvp``, ``jax.jacfwd``, ``jax.hessian``. They would
    need a derivative that is transposed into fast gradients, and JAX has none that it can batch.

    Args:
        images: ``[N, H, W, C]``.
        kernel: ``[height, width, C, channels]``, of the images' dtype.
        stride: Pixels from one window to the next, in both directions.
        margins: Zeros around the images: (above, below), (left, right); negative ones cut them.

    Returns:
        ``[N, h, w, channels]``.

    Raises:
        ValueError: The kernel is larger than the images with their margins.
    """
    padded = [n + sum(around) for n, around in zip(images.shape[1:3], margins, strict=True)]
    if any(k > n for k, n in zip(kernel.shape[:2], padded, strict=True)):
        raise ValueError(
            f"convolve: a kernel of {list(kernel.shape[:2])} pixels does not fit into images of "
            f"{list(images.shape[1:3])} pixels, which have {padded} pixels with margins={margins}. Use a smaller "
            "kernel or wider margins."
        )
    return _plain(images, kernel, stride, margins)


def _plain(images: jax.Array, kernel: jax.Array, stride: tuple[int, int], margins: Margins) -> jax.Array:
    return jax.lax.conv_general_dilated(images, kernel, stride, margins, dimension_numbers=LAYOUT)


def _forward(images: jax.Array, kernel: jax.Array, stride: tuple[int, int], margins: Margins):
    return convolve(images, kernel, stride, margins), (images, kernel)


def _backward(stride: tuple[int, int], margins: Margins, inputs: tuple[jax.Array, jax.Array], cotangent: jax.Array):
    # XLA's compiler for CPUs brings convolutions into the order of axes that its fast kernels take, those in loops
    # excepted: the gradients that JAX derives take 25 times as long there.
    def derived(which: int, images: jax.Array, kernel: jax.Array, cotangent: jax.Array) -> jax.Array:
        plain = functools.partial(_plain, stride=stride, margins=margins)
        return jax.vjp(plain, images, kernel)[1](cotangent)[which]

    # Each by itself: of images that have none, it is left out.
    return tuple(
        jax.lax.platform_dependent(
            *inputs,
            cotangent,
            cpu=functools.partial(own, stride=stride, margins=margins),
            default=functools.partial(derived, which),
        )
        for which, own in enumerate((_of_images, _of_kernel))
    )


def _of_images(images, kernel, cotangent, *, stride: tuple[int, int], margins: Margins) -> jax.Array:
    """Gradient of a convolution with respect to its images: a transposed convolution with the flipped kernel."""
    sizes = zip(margins, stride, kernel.shape[:2], images.shape[1:3], cotangent.shape[1:3], strict=True)
    around = [(k - 1 - low, n + low - 1 - (out - 1) * step) for (low, _), step, k, n, out in sizes]
    turned = jnp.swapaxes(jnp.flip(kernel, (0, 1)), 2, 3)
    return jax.lax.conv_general_dilated(
        cotangent, turned, (1, 1), around, lhs_dilation=stride, dimension_numbers=LAYOUT
    )


def _of_kernel(images, kernel, cotangent, *, stride: tuple[int, int], margins: Margins) -> jax.Array:
    """Gradient of a convolution with respect to the convolution's kernel, ``[height, width, C, channels]``.

    The gradient is itself a convolution: the images are the input, the outputs' cotangents are the kernel, and the sum
    is over the images of the batch instead of over channels.
    """
    sizes = zip(margins, stride, kernel.shape[:2], images.shape[1:3], cotangent.shape[1:3], strict=True)
    around = [(low, k + (out - 1) * step - n - low) for (low, _), step, k, n, out in sizes]
    # What no window reaches is cut off; that is the whole image where windows lie beside it.
    (rows, vertical), (columns, horizontal) = map(_reached, images.shape[1:3], around)
    by_channel = jnp.transpose(images[:, rows, columns], (3, 1, 2, 0))
    shares = jnp.transpose(cotangent, (1, 2, 0, 3))
    out = jax.lax.conv_general_dilated(
        by_channel, shares, (1, 1), (vertical, horizontal), rhs_dilation=stride, dimension_numbers=LAYOUT
    )
    return jnp.transpose(out, (1, 2, 0, 3))


def _reached(size: int, around: tuple[int, int]) -> tuple[slice, tuple[int, int]]:
    """Converts the padding of one image axis to a slice of the pixels to keep, and the numbers of zeros to add.

    The padding is ``(before, after)``. The zeros are added before and after the kept pixels. Negative padding cuts
    pixels off.
    """
    first, end = -around[0], size + around[1]
    zeros = max(0, min(end, 0) - first), max(0, end - max(first, size))
    return slice(max(0, first), max(0, min(end, size))), zeros


convolve.defvjp(_forward, _backward)


def halve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Convolution with stride 2 and padding 1, which halves height and width.

    On CPU it is a product of the windows, each four cells of 2 x 2 pixels: with the gradient, in a loop, an eighth of
    the time of XLA's convolutions for few channels. Elsewhere it is one of these.

    Args:
        images: ``[N, H, W, C]``, H and W even.
        kernel: ``[4, 4, C, channels]``, of the images' dtype.

    Returns:
        ``[N, H / 2, W / 2, channels]``.
    """
    by_convolution = functools.partial(_plain, stride=(2, 2), margins=((1, 1), (1, 1)))
    return jax.lax.platform_dependent(images, kernel, cpu=_halve_by_product, default=by_convolution)


def double(images: jax.Array, kernel: jax.Array) -> jax.Array:
    """Transposed convolution of stride 2, which doubles height and width, as ``jax.lax.conv_transpose`` with padding
    "SAME".

    On CPU each cell of 2 x 2 pixels is a product of the four pixels around it: with the gradient, in a loop, a seventh
    of the time of XLA's convolutions for few channels, a twentieth for 24 and more. Elsewhere it is one of these.

    Args:
        images: ``[N, H, W, C]``.
        kernel: ``[4, 4, C, channels]``, of the images' dtype.

    Returns:
        ``[N, 2 H, 2 W, channels]``.
    """
    by_convolution = functools.partial(jax.lax.conv_transpose, strides=(2, 2), padding="SAME", dimension_numbers=LAYOUT)
    return jax.lax.platform_dependent(images, kernel, cpu=_double_by_product, default=by_convolution)


def _halve_by_product(images: jax.Array, kernel: jax.Array) -> jax.Array:
    num, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    cells = padded.reshape(num, height // 2 + 1, 2, width // 2 + 1, 2, channels)
    cells = jnp.moveaxis(cells, 2, 3).reshape(num, height // 2 + 1, width // 2 + 1, 4 * channels)
    # [cell, in it, cell, in it, C, channels] -> [cell, cell, in it, in it, C, channels]
    own = jnp.moveaxis(kernel.reshape(2, 2, 2, 2, channels, -1), 1, 2)
    return _neighbours(cells) @ own.reshape(16 * channels, -1)


def _double_by_product(images: jax.Array, kernel: jax.Array) -> jax.Array:
    num, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    # [pixel, in the cell, pixel, in the cell, C, channels] -> [pixel, pixel, C, in the cell, in the cell, channels]
    own = jnp.flip(kernel.reshape(2, 2, 2, 2, channels, -1), (1, 3))
    own = jnp.transpose(own, (0, 2, 4, 1, 3, 5))
    cells = _neighbours(padded) @ own.reshape(4 * channels, -1)
    cells = jnp.moveaxis(cells.reshape(num, height + 1, width + 1, 2, 2, -1), 3, 2)
    # Of the cells that lie half outside, that half is cut off.
    return cells.reshape(num, 2 * height + 2, 2 * width + 2, -1)[:, 1:-1, 1:-1]


def _neighbours(x: jax.Array) -> jax.Array:
    """Concatenates the four pixels of every 2 x 2 window along the channels: ``[N, H, W, C]`` to ``[N, H - 1, W - 1, 4
    C]``.
    """
    return jnp.concatenate([x[:, :-1, :-1], x[:, :-1, 1:], x[:, 1:, :-1], x[:, 1:, 1:]], axis=-1)
