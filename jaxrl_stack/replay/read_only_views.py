"""Read-only views of arrays; an array counts as in use until its last view is deleted."""

from __future__ import annotations

import numpy as np


class LentArray:
    """Wrapper of an array that `FrameStore.get_state` returns as read-only views.

    The views from `rows` keep the wrapper alive, so a weak reference to the wrapper tells whether a view is still in
    use.

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
        """Returns a read-only view of the wrapped array. The view refers to this wrapper, so that the wrapper exists at
        least as long as the view.
        """
        # The interface has no names of dtypes such as bfloat16.
        return np.asarray(self).view(self.array.dtype)
