"""Images as NumPy arrays: functions that resize images and convert colours to grey values. Needs no OpenCV."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

import numpy as np

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.utils.optional_packages import optional_import

# ITU-R BT.601 luma.
LUMA = np.array([0.299, 0.587, 0.114], np.float32)


def resize(img: np.ndarray, height: int, width: int) -> np.ndarray:
    """Resizes an image; each new pixel is the average over an area of old pixels.

    Args:
        img: ``[H, W]`` or ``[H, W, C]`` of any number type.
        height: New H.
        width: New W.

    Returns:
        ``[height, width]`` or ``[height, width, C]`` of the same dtype; integers are rounded.
    """
    small = area_mean(area_mean(img.astype(np.float32), height, 0), width, 1)
    return (np.rint(small) if np.issubdtype(img.dtype, np.integer) else small).astype(img.dtype)


def rgb2gray(img: np.ndarray) -> np.ndarray:
    """Converts an RGB image ``[H, W, 3]`` to grey values (luma) ``[H, W]`` of the same dtype."""
    gray = img.astype(np.float32) @ LUMA
    return (np.rint(gray) if np.issubdtype(img.dtype, np.integer) else gray).astype(img.dtype)


def area_mean(pixels: np.ndarray, dim: int, axis: int) -> np.ndarray:
    """Resizes an axis of an image to `dim` pixels.

    Each new pixel is the mean over one of `dim` equal parts of the axis. If a part contains only a fraction of an old
    pixel, the pixel has this fraction as its weight in the mean.

    By differences of running sums, not by a product with a matrix of weights: for images this small, the threads of the
    linear algebra library cost more than they bring, and several runners on one machine would fight for the cores.

    Args:
        pixels: float32 array.
        dim: Number of parts.
        axis: Axis of length ``size``.

    Returns:
        The array with ``dim`` in place of ``size``; entry i is the mean over ``[i, i + 1) × size / dim``.
    """
    size = pixels.shape[axis]
    borders = np.arange(dim + 1) * (size / dim)
    whole = np.minimum(borders.astype(np.intp), size - 1)
    share = (borders - whole).astype(np.float32)
    share = share.reshape([-1 if k == axis else 1 for k in range(pixels.ndim)])
    at_border = pixels.take(whole, axis)
    # The sum of all that is before the border.
    sums = np.cumsum(pixels, axis).take(whole, axis) + (share - np.float32(1)) * at_border
    return np.diff(sums, axis=axis) * np.float32(dim / size)


def pillow() -> Any:
    """Imports PIL with its modules Image, ImageDraw and ImageFont.

    Raises:
        ImportError: It is not installed; says how to install it.
    """
    for name in ("PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"):
        optional_import(name, purpose="Drawing frames", install="jaxrl-stack[video]", package="Pillow")
    return importlib.import_module("PIL")


def is_package_installed(package_name: str) -> bool:
    """Whether a distribution such as "opencv-python" is installed."""
    try:
        importlib.metadata.version(package_name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


__getattr__ = absent_or_renamed(
    __name__, absent={"imread": "np.asarray(PIL.Image.open(file), np.float32), channels in the order RGB"}
)
