"""Read-only views of arrays; an array counts as in use until its last view is deleted."""

from __future__ import annotations

import numpy as np


class LentArray:
    """Array that `get_state` lends as read-only views. Only views from `rows` keep this object alive, so a weak
    reference tells whether the array is in use.

    In NumPy, a view of a view refers to the original array and does not keep the view in between alive. But a view
    keeps an object alive that is not an array, such as an object of this class.

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
        """Returns a read-only view of the array. This object lives at least as long as the view."""
        # The interface has no names of dtypes such as bfloat16.
        return np.asarray(self).view(self.array.dtype)
