"""Parsing of the setting ``conv_filters``: kernels, strides, padding and output sizes of convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

SAME, VALID = "same", "valid"

_DEFAULT_FILTERS: dict[int, list[list[Any]]] = {
    10: [[16, [5, 5], 2], [32, [5, 5], 2]],
    42: [[16, [4, 4], 2], [32, [4, 4], 2], [256, [11, 11], 1]],
    64: [[16, [4, 4], 2], [32, [4, 4], 2], [64, [4, 4], 2], [128, [4, 4], 2]],
    84: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 1]],
    96: [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 2]],
}
"""RLlib's filters of square images, by height."""
_DENSE = 2
"""Images of at most this height and width get a dense layer."""
_LARGEST_BOARD = 20
"""Images of at most this height and width count as boards, of which every field matters: convolutions keep their
size."""
_SMALLEST_HALVED = 6
"""Sides with more pixels are halved."""
_MOST_CHANNELS_FIRST = 4
"""A first axis of at most this length seems to be channels if both other axes are longer than `_LARGEST_BOARD`."""


@dataclasses.dataclass(frozen=True)
class Filter:
    """Channels, kernel, stride and padding of one convolution or transposed convolution.

    Attributes:
        channels: Number of output channels.
        kernel: Height and width.
        stride: Vertical and horizontal stride.
        padding: ``"same"``: height and width are divided by the stride and rounded up (transposed: multiplied).
            ``"valid"``: no padding.
    """

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: str = SAME

    def margins(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the padding ``((above, below), (left, right))`` that the convolution adds to an image of a given size
        (height and width); negative values crop the image.
        """
        if self.padding == VALID:
            return (0, 0), (0, 0)
        totals = [
            (out - 1) * stride + kernel - given
            for out, stride, kernel, given in zip(self.output_size(size), self.stride, self.kernel, size, strict=True)
        ]
        above, left = (total // 2 for total in totals)
        return (above, totals[0] - above), (left, totals[1] - left)

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns height and width of the convolution's output for an image of a given size; below 1 if the kernel does
        not fit into the image.
        """
        height, width = (
            -(-(given - (kernel - 1) * (self.padding == VALID)) // stride)
            for given, kernel, stride in zip(size, self.kernel, self.stride, strict=True)
        )
        return height, width

    def transposed_margins(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Returns the padding ``((above, below), (left, right))`` of a transposed convolution's input.

        Zeros are already inserted into this input for the stride. If the total padding of an axis is odd, above (or
        left) gets one more.
        """
        totals = [kernel - 1 + stride - 1 for kernel, stride in zip(self.kernel, self.stride, strict=True)]
        (above, below), (left, right) = ((total - total // 2, total // 2) for total in totals)
        return (above, below), (left, right)

    def transposed_output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Returns height and width of a transposed convolution's output for an image of a given size."""
        return size[0] * self.stride[0], size[1] * self.stride[1]


def parse_filters(specifiers: Any, setting: str, *, transposed: bool = False) -> list[Filter]:
    """Converts a list of convolution filters, such as ``[[16, 4, 2], [32, 4, 2]]`` (channels, kernel, stride), to a
    list of `Filter`.

    Args:
        specifiers: ``[[channels, kernel, stride], ...]`` or ``[[channels, kernel, stride, padding], ...]``; kernel and
            stride an integer or ``[height, width]``, padding "same" (the default) or "valid".
        setting: Name of the setting, for error messages.
        transposed: Whether the filters are transposed convolutions, for which padding cannot be chosen.

    Raises:
        ValueError: If a filter is invalid; the message names the setting, the filter and the expected form.
    """
    if not isinstance(specifiers, Sequence) or isinstance(specifiers, str) or not specifiers:
        raise ValueError(f"{setting}={specifiers!r} must be a list of filters, such as [[16, 4, 2], [32, 4, 2]].")
    return [_parse_filter(specifier, setting, transposed) for specifier in specifiers]


def _parse_filter(specifier: Any, setting: str, transposed: bool) -> Filter:
    lengths = (3,) if transposed else (3, 4)
    try:
        if isinstance(specifier, str) or len(specifier) not in lengths:
            raise ValueError
        channels, kernel, stride, *padding = specifier
        parsed = Filter(_positive(channels), _pair(kernel), _pair(stride), *padding)
        if parsed.padding not in (SAME, VALID):
            raise ValueError
    except (TypeError, ValueError):
        form = "[channels, kernel, stride]" + (
            "" if transposed else ' or [channels, kernel, stride, "same" or "valid"]'
        )
        raise ValueError(
            f"{setting} has the filter {specifier!r}: expected {form}, with integers of at least 1; kernel and stride "
            "may be [height, width]."
        ) from None
    return parsed


def _positive(value: Any) -> int:
    if isinstance(value, bool) or int(value) != value or value < 1:
        raise ValueError
    return int(value)


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, Sequence) else (value, value)
    return _positive(first), _positive(second)


def default_filters(shape: Sequence[int]) -> list[list[Any]]:
    """Returns the default filters for images of a given size, as listed in `docs/networks.md`.

    Square images with sides of 10, 42, 64, 84 and 96 pixels get RLlib's filters. For other images, the longer side
    determines the filters. Up to 2 pixels: a dense layer, written as a convolution whose kernel covers the image. Up to
    20 pixels: two convolutions of 3 x 3 that keep the size. More: convolutions that halve each side until the side has
    at most 6 pixels.

    Args:
        shape: ``[height, width, channels]``.

    Returns:
        Value of the setting `conv_filters`.

    Raises:
        ValueError: If the shape is not an image's, or the channels seem to come first.
    """
    shape = tuple(int(n) for n in shape)
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"No default filters fit images of the shape {list(shape)}. Images need three axes, [height, width, "
            "channels]: change the shape with a wrapper of the environment."
        )
    *size, _ = height, width, channels = shape
    if height <= _MOST_CHANNELS_FIRST and min(width, channels) > _LARGEST_BOARD:
        raise ValueError(
            f"No default filters fit images of the shape {list(shape)}: the channels seem to come first. Wrap the "
            f"environment so that the channels come last, {[width, channels, height]}; or, if they are last already, "
            "set rl_module(model_config={'conv_filters': ...})."
        )
    if height == width and height in _DEFAULT_FILTERS:
        return [list(specifier) for specifier in _DEFAULT_FILTERS[height]]
    if max(size) <= _DENSE:
        return [[256, size, 1, VALID]]
    if max(size) <= _LARGEST_BOARD:
        return [[channels, [min(3, side) for side in size], 1] for channels in (16, 32)]
    return _halving_filters(size)


def _halving_filters(size: list[int]) -> list[list[Any]]:
    """Returns filters that halve each side of an image until the side has at most 6 pixels, and double the channels
    each time, up to 256.
    """
    filters, channels = [], 16
    while max(size) > _SMALLEST_HALVED:
        halved = [side > _SMALLEST_HALVED for side in size]
        kernel = [4 if is_halved else min(3, side) for is_halved, side in zip(halved, size, strict=True)]
        filters.append([channels, kernel, [1 + is_halved for is_halved in halved]])
        channels = min(2 * channels, 256)
        size = [-(-side // 2) if is_halved else side for is_halved, side in zip(halved, size, strict=True)]
    return filters
