"""Arrays that are lent out for reading, and known to be lent for as long as they may be read."""

from __future__ import annotations

import numpy as np


class LentArray:
    """An array that a state may read: all views of `rows` hold the loan, and nothing else does.

    A view of a view refers to the array at its end, and would not keep the one in between. It goes no further than to
    what is no array: that is what this is for.

    Args:
        array: The array.

    Attributes:
        array: The array.
        __array_interface__: Memory location, for NumPy; read-only.
    """

    def __init__(self, array: np.ndarray):
        self.array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], True)}

    def rows(self) -> np.ndarray:
        """A read-only view of the array."""
        # The interface has no names of dtypes such as bfloat16.
        return np.asarray(self).view(self.array.dtype)
