"""Buffer for one column of an episode chunk, such as rewards.

The buffer contains one item per step, preceded by lookback items, which are the last items of the previous chunk.
"""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.utils import nested
from jaxrl_stack.utils.nested import tree_map
from jaxrl_stack.utils.spaces import space_from_dict, space_to_dict

if TYPE_CHECKING:
    import gymnasium as gym

Indices = int | np.integer | slice | list[int] | np.ndarray | None


@dataclasses.dataclass(frozen=True, slots=True)
class AsItem:
    """Marks a `fill` value as one whole item of the buffer, even if the value is a number.

    A `fill` value is the result for indices out of range. Used for columns whose items differ in structure, such as
    infos.

    Attributes:
        item: The item.
    """

    item: Any


class InfiniteLookbackBuffer:
    """Sequence of items (a list, or arrays) that begins with `lookback` items from before time step 0.

    Items are first collected in a list; `finalize()` converts them to arrays `[n, ...]` (nested like one item).

    Indices `>= 0` count from the first own item and never reach the look-back. Negative indices count from the
    end and may reach the look-back; with `neg_index_as_lookback=True` they count backwards from the first own
    item instead, so that -1 is the last look-back item.

    Args:
        data: list of items, or a finalized structure of arrays with a common leading axis (kept without a
            copy; the first write makes one).
        lookback: number of items at the front that are look-back; limited to the number of items.
        space: gymnasium space of one item; required for one-hot encoding, and for the fill of an empty buffer.

    Attributes:
        space: Gymnasium space of one item, or None; may be set.

    Raises:
        ValueError: if `lookback` is negative or the arrays have no common leading axis.
    """

    __slots__ = ("_shared", "data", "finalized", "lookback", "space")

    def __init__(self, data: Any = None, lookback: int = 0, space: gym.Space | None = None):
        if lookback < 0:
            raise ValueError(f"lookback={lookback} must be 0 or positive")
        self.finalized = not (data is None or isinstance(data, list))
        # Arrays that others may hold are copied before the first write.
        self._shared = self.finalized
        self.data: Any = tree_map(np.asarray, data) if self.finalized else list(data or ())
        self.lookback = min(lookback, nested.batch_size(self.data) if self.finalized else len(self.data))
        self.space = space

    @property
    def space_struct(self) -> Any:
        """Spaces of the leaves of `space`, nested in the same dicts and tuples; None if the buffer has no space."""
        return None if self.space is None else nested.space_struct(self.space)

    def __len__(self) -> int:
        """Number of items without the lookback."""
        return self.len_incl_lookback() - self.lookback

    def len_incl_lookback(self) -> int:
        """Returns the number of all items, with the look-back."""
        return nested.batch_size(self.data) if self.finalized else len(self.data)

    def append(self, item: Any) -> None:
        """Adds one item at the end; raises a RuntimeError after `finalize()`."""
        self._require_list("append")
        self.data.append(item)

    def extend(self, items: Sequence[Any]) -> None:
        """Adds a sequence of items at the end; raises a RuntimeError after `finalize()`."""
        self._require_list("extend")
        self.data.extend(items)

    def pop(self, index: int = -1) -> None:
        """Removes one item (index rules as in `get`).

        Raises:
            IndexError: if the item does not exist.
            RuntimeError: after `finalize()`.
        """
        self._require_list("pop")
        position = self._absolute(index, neg_index_as_lookback=False)
        if not self._holds(position):
            raise IndexError(self._range_error(index))
        del self.data[position]
        self.lookback -= position < self.lookback

    def concat(self, other: InfiniteLookbackBuffer) -> None:
        """Appends the items of `other`, without its lookback. The data of this buffer remains a list, or arrays, as
        before.

        Raises:
            ValueError: if both hold arrays whose structures or item shapes differ.
        """
        if not len(other):
            return
        items = other.get()
        if not self.finalized:
            self.data.extend(nested.unbatch(items) if other.finalized else items)
            return
        rows = items if other.finalized else nested.batch(items)
        # The placeholder in an empty, finalized buffer may have a different structure.
        self.data = (
            tree_map(lambda *parts: np.concatenate(parts), self.data, rows)
            if self.len_incl_lookback()
            else tree_map(np.array, rows)
        )
        self._shared = False

    def finalize(self) -> None:
        """Converts the list of n items to arrays ``[n, ...]``; does nothing if the data are arrays already.

        An empty list becomes an empty batch with the item shape of `space`, or of shape `[0]` without a space.

        Raises:
            ValueError: if the items differ in structure or shape.
        """
        if self.finalized:
            return
        if self.data:
            self.data = nested.batch(self.data)
        elif self.space is not None:
            self.data = nested.take(nested.batch([nested.blank_item(self.space_struct)]), slice(0))
        else:
            self.data = np.zeros((0,))
        self.finalized = True

    def get(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Returns one item if `indices` is an int, else k items: as a list before `finalize()`, as arrays ``[k, ...]``
        after it.

        Args:
            indices: an int for one item; a slice or a list of ints for several; None for all own items.
            neg_index_as_lookback: whether negative indices count backwards from the first own item, instead of
                from the end.
            fill: replacement of items outside the buffer. A number fills every leaf of an item of the usual
                structure and shape; other values, and the item in an `AsItem`, are used as the item. None: indices
                outside the buffer raise an error, slices are cut at the ends (as in Python).
            one_hot_discrete: whether to one-hot encode `Discrete` and `MultiDiscrete` leaves (float32); filled
                items are not encoded, all their entries are `fill`.

        Raises:
            IndexError: for an index outside the buffer without `fill`.
            TypeError: for indices of a different type.
            ValueError: for `one_hot_discrete` without a space.
        """
        if one_hot_discrete and self.space is None:
            raise ValueError("one_hot_discrete=True needs the space of the items; set the buffer's `space`")
        positions = self._positions(indices, neg_index_as_lookback, cuts=fill is None)
        is_inside = self._holds(positions)
        if not is_inside and fill is None:
            raise IndexError(self._range_error(indices))
        if isinstance(positions, int):
            return self._get_item(positions, one_hot_discrete) if is_inside else self._fill_item(fill, one_hot_discrete)
        if not is_inside:
            return self._get_filled(positions, fill, one_hot_discrete)
        if self.finalized:
            return self._encode(nested.take(self.data, _as_rows(positions)), one_hot_discrete)
        return [self._encode(self.data[position], one_hot_discrete) for position in positions]

    def set(self, new_data: Any, *, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites the items of the buffer at the given indices, in place.

        Args:
            new_data: one item for an int index; else one item per index, as a list of items or as a structure of
                arrays `[k, ...]`. After `finalize()`, items must have the stored shapes and dtypes, unless they
                replace all the data, look-back included.
            at_indices: index rules as in `get`, None for all own items.
            neg_index_as_lookback: as in `get`.

        Raises:
            IndexError: for an index outside the buffer, or a wrong number of items.
            ValueError: if structure, shape or dtype do not match; nothing is written then.
        """
        positions = self._positions(at_indices, neg_index_as_lookback, cuts=True)
        if not self._holds(positions):
            raise IndexError(self._range_error(at_indices))
        if isinstance(positions, int):
            if self.finalized:
                self._assign(positions, new_data)
            else:
                self.data[positions] = new_data
            return
        size = len(new_data) if isinstance(new_data, list) else nested.batch_size(new_data)
        if size != len(positions):
            raise IndexError(
                f"at_indices={at_indices} selects {len(positions)} items, but new_data has {size}: pass one item per "
                "index"
            )
        if not size:
            return
        if not self.finalized:
            items = new_data if isinstance(new_data, list) else nested.unbatch(new_data)
            for position, item in zip(positions, items, strict=True):
                self.data[position] = item
            return
        rows = nested.batch(new_data) if isinstance(new_data, list) else tree_map(np.asarray, new_data)
        if positions == range(self.len_incl_lookback()):
            self.data, self._shared = rows, True
        else:
            self._assign(_as_rows(positions), rows)

    def sub_buffer(self, start: int, stop: int, lookback: int) -> InfiniteLookbackBuffer:
        """Returns the items `[start, stop)`, with up to `lookback` preceding items as lookback.

        Args:
            start: first own item, in `[0, len(self)]`.
            stop: end of the range, not before `start`.
            lookback: maximum number of items before `start` to keep.
        """
        first = max(self.lookback + start - lookback, 0)
        rows = slice(first, self.lookback + stop)
        if self.finalized:
            self._shared = True
        data = nested.take(self.data, rows) if self.finalized else self.data[rows]
        return InfiniteLookbackBuffer(data, self.lookback + start - first, self.space)

    def unfinalize(self) -> None:
        """Converts arrays back to a list of items, so that more items can be appended."""
        if self.finalized:
            self.data = nested.unbatch(self.data)
            self.finalized = self._shared = False

    def get_state(self) -> dict[str, Any]:
        """Returns the content as plain data: items or arrays, numbers, and a description of the space."""
        if self.finalized:
            self._shared = True
        return {
            "data": self.data if self.finalized else list(self.data),
            "lookback": self.lookback,
            "finalized": self.finalized,
            "space": space_to_dict(self.space),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> InfiniteLookbackBuffer:
        """Builds the buffer from a result of `get_state()`."""
        buffer = InfiniteLookbackBuffer(state["data"], state["lookback"], space_from_dict(state["space"]))
        if buffer.finalized != state["finalized"]:
            raise ValueError(
                f"the saved buffer is damaged: it has finalized={state['finalized']}, but data of type "
                f"{type(state['data']).__name__}. Load another state or checkpoint"
            )
        return buffer

    def __getitem__(self, item: Indices) -> Any:
        return self.get(item)

    def __setitem__(self, key: Indices, value: Any) -> None:
        self.set(value, at_indices=key)

    def __iter__(self) -> Iterator[Any]:
        return (self._get_item(position) for position in range(self.lookback, self.len_incl_lookback()))

    def __add__(self, other: Any) -> InfiniteLookbackBuffer:
        """Returns a new buffer with a number added to every item, or with the items of `other` appended.

        `other` is the number, or a list or a buffer with the items to append. The lookback of `other` is not appended.
        """
        if isinstance(other, numbers.Number):
            added = tree_map(lambda leaf: leaf + other, self.data)
            return InfiniteLookbackBuffer(added, self.lookback, self.space)
        if isinstance(other, list):
            other = InfiniteLookbackBuffer(other)
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        result = self.sub_buffer(0, len(self), self.lookback)
        result.concat(other)
        return result

    def __eq__(self, other: object) -> bool:
        """Whether both buffers have the same items, form (list or arrays), lookback and space."""
        if not isinstance(other, InfiniteLookbackBuffer):
            return NotImplemented
        sizes = [(buffer.finalized, buffer.lookback, buffer.len_incl_lookback()) for buffer in (self, other)]
        if sizes[0] != sizes[1] or self.space != other.space:
            return False
        try:
            return nested.equal(self.data, other.data)
        except ValueError:  # their items have different structures
            return False

    __hash__ = None  # pyright: ignore[reportAssignmentType] - items change

    def __repr__(self) -> str:
        space = "" if self.space is None else f", space={self.space}"
        return f"InfiniteLookbackBuffer({self.data!r}, lookback={self.lookback}{space})"

    def _require_list(self, method: str) -> None:
        if self.finalized:
            raise RuntimeError(
                f"{method}() needs a list, but this buffer is finalized (has arrays): call unfinalize() first. To "
                "append to arrays, call concat()"
            )

    def _absolute(self, index: int, neg_index_as_lookback: bool) -> int:
        from_start = index >= 0 or neg_index_as_lookback
        return index + (self.lookback if from_start else self.len_incl_lookback())

    def _positions(self, indices: Any, neg_index_as_lookback: bool, *, cuts: bool) -> int | range | list[int]:
        """Converts a user's indices to positions in the buffer's `data`, which begins with the lookback; positions may
        be out of range.

        If `cuts`, slices are cut at the ends, as in Python. Open ends of slices exclude the look-back.
        """
        if isinstance(indices, numbers.Integral):
            return self._absolute(int(indices), neg_index_as_lookback)
        if isinstance(indices, np.ndarray) and indices.dtype.kind in "iu" and indices.ndim == 1:
            indices = indices.tolist()
        if isinstance(indices, list) and all(isinstance(index, numbers.Integral) for index in indices):
            return [self._absolute(index, neg_index_as_lookback) for index in indices]
        if not (indices is None or isinstance(indices, slice)):
            raise TypeError(f"indices must be an int, a slice, a list of ints or None, got {indices!r}")
        indices = indices or slice(None)
        step = 1 if indices.step is None else indices.step
        if step == 0:
            raise ValueError("the step of a slice must not be 0: leave it out, or use another number")
        size = self.len_incl_lookback()
        start, stop = (self.lookback, size) if step > 0 else (size - 1, self.lookback - 1)
        if indices.start is not None:
            start = self._absolute(indices.start, neg_index_as_lookback)
        if indices.stop is not None:
            stop = self._absolute(indices.stop, neg_index_as_lookback)
        if cuts:
            low, high = (0, size) if step > 0 else (-1, size - 1)
            start, stop = (min(max(end, low), high) for end in (start, stop))
        return range(start, stop, step)

    def _holds(self, positions: int | range | list[int]) -> bool:
        """Whether all positions are within the buffer's data, lookback included."""
        size = self.len_incl_lookback()
        if isinstance(positions, int):
            return 0 <= positions < size
        ends = positions if isinstance(positions, list) else [*positions[:1], *positions[-1:]]
        return all(0 <= position < size for position in ends)

    def _get_filled(self, positions: range | list[int], fill: Any, one_hot_discrete: bool) -> Any:
        """Returns the buffer's items at the given positions in `data`. For a position out of range, the result contains
        an item that is made from `fill`.
        """
        filler, size = self._fill_item(fill, one_hot_discrete), self.len_incl_lookback()
        if not self.finalized:
            return [self._get_item(i, one_hot_discrete) if 0 <= i < size else filler for i in positions]
        if not size:
            return nested.batch([filler] * len(positions))
        where = np.array(positions, np.int64)
        is_inside = (where >= 0) & (where < size)
        rows = self._encode(nested.take(self.data, where[is_inside]), one_hot_discrete)
        order = np.where(is_inside, np.cumsum(is_inside) - 1, is_inside.sum())
        return tree_map(lambda item, leaf: np.concatenate([leaf, np.asarray(item)[None]])[order], filler, rows)

    def _fill_item(self, fill: Any, one_hot_discrete: bool) -> Any:
        if isinstance(fill, AsItem):
            return fill.item
        if not isinstance(fill, numbers.Number | np.bool_):
            return tree_map(np.asarray, fill) if self.finalized else fill
        if self.len_incl_lookback():
            reference = self._get_item(0)
        elif self.space is not None:
            reference = nested.blank_item(self.space_struct)
        else:
            return fill
        return nested.full_like_item(self._encode(reference, one_hot_discrete), fill)

    def _get_item(self, position: int, one_hot_discrete: bool = False) -> Any:
        item = nested.take(self.data, position) if self.finalized else self.data[position]
        return self._encode(item, one_hot_discrete)

    def _encode(self, data: Any, one_hot_discrete: bool) -> Any:
        return nested.one_hot(data, self.space_struct) if one_hot_discrete else data

    def _assign(self, where: Any, rows: Any) -> None:
        def fit(leaf: np.ndarray, new: Any) -> np.ndarray:
            new = np.asarray(new)
            if new.shape != leaf[where].shape:
                raise ValueError(
                    f"new_data has a leaf of shape {new.shape}, but the items to replace have shape "
                    f"{leaf[where].shape}: pass data of this shape"
                )
            cast = nested.cast_lossless(new, leaf.dtype)
            if cast is None:
                raise ValueError(
                    f"new_data has a leaf of dtype {new.dtype} with values that the stored dtype {leaf.dtype} cannot "
                    "represent: replace the whole column, including the lookback, or set the data before finalize()"
                )
            return cast

        fitted = tree_map(fit, self.data, rows)
        if self._shared:
            self.data, self._shared = tree_map(np.array, self.data), False
        tree_map(lambda leaf, new: leaf.__setitem__(where, new), self.data, fitted)

    def _range_error(self, index: Any) -> str:
        return (
            f"index {index} is out of range: the buffer has {len(self)} items and {self.lookback} look-back "
            "items before them; use an index in this range, or pass `fill` to read past the ends"
        )


def _as_rows(positions: range | list[int]) -> slice | list[int]:
    """Converts item positions to an index of the buffer's arrays, if possible a slice, because slices give views."""
    if isinstance(positions, list):
        return positions
    stop = positions.stop if positions.stop >= 0 else None
    return slice(positions.start, stop, positions.step) if len(positions) else slice(0, 0)
