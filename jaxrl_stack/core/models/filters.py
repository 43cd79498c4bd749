"""What a list of convolution filters means: kernels, strides, padding, the size of what comes out."""

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


@dataclasses.dataclass(frozen=True)
class Filter:
    """One convolution, or one transposed one.

    Attributes:
        channels: Number of its outputs at each place.
        kernel: Height and width.
        stride: Down and to the right.
        padding: ``"same"``: the image shrinks by the stride alone (transposed: grows). ``"valid"``: nothing is padded.
    """

    channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: str = SAME

    def margins(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros ``((above, below), (left, right))`` around an image of a size; negative ones cut it."""
        if self.padding == VALID:
            return (0, 0), (0, 0)
        totals = [
            (out - 1) * stride + kernel - given
            for out, stride, kernel, given in zip(self.output_size(size), self.stride, self.kernel, size, strict=True)
        ]
        above, left = (total // 2 for total in totals)
        return (above, totals[0] - above), (left, totals[1] - left)

    def output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of what comes out of an image of a size; below 1 where the kernel does not fit into it."""
        height, width = (
            -(-(given - (kernel - 1) * (self.padding == VALID)) // stride)
            for given, kernel, stride in zip(size, self.kernel, self.stride, strict=True)
        )
        return height, width

    def transposed_margins(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Zeros around an image between whose pixels the stride's zeros lie already: the odd one above and left."""
        totals = [kernel - 1 + stride - 1 for kernel, stride in zip(self.kernel, self.stride, strict=True)]
        (above, below), (left, right) = ((total - total // 2, total // 2) for total in totals)
        return (above, below), (left, right)

    def transposed_output_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Height and width of what a transposed convolution makes of an image of a size."""
        return size[0] * self.stride[0], size[1] * self.stride[1]


def parse_filters(specifiers: Any, setting: str, *, transposed: bool = False) -> list[Filter]:
    """The filters of a setting.

    Args:
        specifiers: ``[[channels, kernel, stride], ...]`` or ``[[channels, kernel, stride, padding], ...]``; kernel and
            stride an integer or ``[height, width]``, padding "same" (the default) or "valid".
        setting: Its name, for messages.
        transposed: Transposed convolutions, which have no padding to choose.

    Raises:
        ValueError: Names the setting, the entry, and what it should be.
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
    """The filters for square images of 10, 42, 64, 84 or 96 pixels, which are RLlib's.

    Args:
        shape: ``[height, width, channels]``.

    Returns:
        What `conv_filters` of a model config takes.

    Raises:
        ValueError: For another size, with filters that would do.
    """
    shape = tuple(int(n) for n in shape)
    if len(shape) == 3 and shape[0] == shape[1] and shape[0] in _DEFAULT_FILTERS:
        return [list(specifier) for specifier in _DEFAULT_FILTERS[shape[0]]]
    sizes = ", ".join(str(size) for size in _DEFAULT_FILTERS)
    raise ValueError(
        f"There are no default filters for images of the shape {list(shape)}; there are for square ones of {sizes} "
        f"pixels, [height, width, channels]. {_suggestion(shape)}"
    )


def _suggestion(shape: tuple[int, ...]) -> str:
    if len(shape) == 3 and shape[0] < min(shape[1:]) and shape[0] <= 4:
        return (
            f"The channels seem to come first: give the environment a wrapper that moves them to the end, "
            f"{[*shape[1:], shape[0]]}."
        )
    if shape == (210, 160, 3):
        return (
            "For Atari, wrap the environment: jaxrl_stack.env.wrappers.atari_wrappers.wrap_atari_for_new_api_stack()."
        )
    if len(shape) != 3:
        return "Give them one axis of channels, the last one."
    return (
        f"Set rl_module(model_config={{'conv_filters': {suggested_filters(shape)}}}), resize the images, or, if they "
        "are none, flatten them with the env-to-module connector FlattenObservations."
    )


def suggested_filters(shape: Sequence[int]) -> list[list[int]]:
    """Filters that halve images until their shorter side has at most 6 pixels."""
    filters, channels, side = [], 16, min(shape[:2])
    while side > 6 and len(filters) < 6:
        filters.append([min(channels, 256), 4, 2])
        channels, side = 2 * channels, -(-side // 2)
    return filters or [[16, min(3, side), 1]]
