"""Memory of replay buffers: observations and steps of many episodes in preallocated arrays, each episode a linked list
of rows.
"""

from __future__ import annotations

import dataclasses
import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops.returns import clipped_rewards
from jaxrl_stack.replay import arithmetic
from jaxrl_stack.replay.read_only_views import LentArray
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, available_host_bytes, require_memory
from jaxrl_stack.utils.nested import batch_size, cast_lossless, take, tree_leaves, tree_map

_DTYPES = {Columns.REWARDS: np.float32, Columns.TERMINATEDS: np.bool_, Columns.TRUNCATEDS: np.bool_}
_LINKS = {"next": np.int32, "prev": np.int32, "t": np.int32, "owner": np.int64, "generation": np.int32}
LINK_BYTES = sum(np.dtype(dtype).itemsize for dtype in _LINKS.values()) + np.dtype(np.int32).itemsize
"""Bytes per row besides the data."""
_PART_BYTES = 36 * 2**20
"""Of the largest array in a part of a state; what is larger than 32 MiB goes back to the system when it is freed."""
REMEDY = (
    "Lower the buffer's capacity, store smaller observations (uint8 frames instead of floats), or keep fewer of the "
    "module's outputs (extra_columns=())."
)
"""Advice for the error about a buffer that does not fit into memory."""


@dataclasses.dataclass(slots=True)
class NStepWindows:
    """N n-step windows of stored steps: their discounted reward sums, their lengths, and the rows at which they end.

    Attributes:
        rewards: float32 ``[N]``, discounted sums.
        last: int32 ``[N]``, rows of the last steps.
        new: int32 ``[N]``, rows of the frames after the last steps.
        lengths: int32 ``[N]``, numbers of steps.
    """

    rewards: np.ndarray
    last: np.ndarray
    new: np.ndarray
    lengths: np.ndarray


class FrameStore:
    """Memory of a replay buffer: rows with one observation each.

    An episode of n steps is a linked list of n + 1 rows, called a chain, so that every observation is stored once.

    A row whose `next` is >= 0 is a step: it has an action, a reward, both flags and maybe outputs of the module, and
    its next observation is that of row `next`. The last row of a chain holds an observation only.

    If observations are n frames side by side, a row stores only the newest frame; the others are the frames of the rows
    before it. If a chain does not begin at the start of its episode, the frames before the chain are stored separately.

    Args:
        capacity: Expected number of steps. Some more rows are allocated, and further rows when these are used up.
        num_frames: n.

    Attributes:
        num_frames: n; 1 if rows have whole observations.
        num_rows: Number of allocated rows; 0 before the first data.
        columns: ``{column: pytree [num_rows, ...]}``, the columns in `STEP_COLUMNS`.
        extras: ``{name: pytree [num_rows, ...]}``: further outputs of the module per step.
        next: int32 ``[num_rows]``, row of the next frame, -1 after the last one.
        prev: int32 ``[num_rows]``, row of the frame before, -1 before the first one.
        t: int32 ``[num_rows]``, steps since the episode's reset.
        owner: int64 ``[num_rows]``, number (>= 1) of the episode; 0 in rows that are free.
        generation: int32 ``[num_rows]``, number of times that a row was freed.
    """

    next: np.ndarray
    prev: np.ndarray
    t: np.ndarray
    owner: np.ndarray
    generation: np.ndarray

    def __init__(self, capacity: int, num_frames: int = 1):
        self.capacity = capacity
        self.num_frames = num_frames
        # By the first row of a chain, the frames before it, oldest first, where these are not all zeros.
        self._earlier: dict[int, Any] = {}
        self.columns: dict[str, Any] = {}
        self.extras: dict[str, Any] = {}
        self.num_rows = 0
        self._free = np.empty(0, np.int32)
        self._num_free = 0
        # Rows from here on were never used.
        self._num_used = 0
        # What states may read: as long as a loan is held, its array is not written to.
        self._loans: list[weakref.ref[LentArray]] = []
        for name, dtype in _LINKS.items():
            setattr(self, name, np.zeros(0, dtype))

    # -------------------------------------------------------------------------------------------------------- writing

    def fit(
        self, steps: Mapping[str, Any], tails: Any, extras: Mapping[str, Any], bookkeeping: Mapping[str, int]
    ) -> tuple[dict[str, Any], Any, dict[str, Any]]:
        """Converts new steps to the dtypes of the steps in the replay buffer.

        If no steps were ever stored, the new steps determine these dtypes, and the store allocates its memory.

        Args:
            steps: ``{column: pytree [S, ...]}``, `STEP_COLUMNS`.
            tails: Observations ``[K, ...]`` after chains.
            extras: ``{name: pytree [S, ...]}``.
            bookkeeping: ``{name: bytes per row}`` that the owner needs, for the estimate of memory.

        Raises:
            ValueError: If structures, shapes or dtypes differ from those of earlier data, or there is not enough
                memory.
        """
        size = len(steps[Columns.REWARDS])
        stored = self.columns
        if self.num_rows and self.num_frames > 1:
            stored = stored | {Columns.OBS: map_arrays(self._whole, stored[Columns.OBS])}
        steps = {name: _fitted(name, stored.get(name), value, size) for name, value in steps.items()}
        extras = {name: _fitted(name, self.extras.get(name), value, size) for name, value in extras.items()}
        if not self.num_rows:
            self._allocate(steps, extras, bookkeeping)
        for name in extras:
            if name not in self.extras:
                self.extras[name] = longer(take(extras[name], slice(0)), self.num_rows)
        return steps, _fitted(Columns.OBS, steps[Columns.OBS], tails), extras

    def _whole(self, frames: np.ndarray) -> np.ndarray:
        """Returns an empty array ``[0, ...]`` with the shape and dtype of whole stacked observations, given an array of
        their single frames.
        """
        *rest, width = frames.shape[1:]
        return np.empty((0, *rest, width * self.num_frames), frames.dtype)

    def _newest(self, obs: Any) -> Any:
        """Returns the newest frame of stacked observations, the part that rows store."""
        return map_arrays(lambda leaf: leaf[..., -(leaf.shape[-1] // self.num_frames) :], obs)

    def _keep_earlier(self, rows: np.ndarray, obs: Any) -> None:
        """Stores the older frames of `obs`, the stacked observations in `rows`.

        All these rows are first rows of stored episodes. A row itself contains only the newest frame. For later rows of
        an episode, the older frames are read from the rows before them and from the frames stored here. Older frames
        that are all 0 are not stored.
        """
        older = map_arrays(lambda leaf: leaf[..., : -(leaf.shape[-1] // self.num_frames)], obs)
        for place, row in enumerate(rows.tolist()):
            mine = map_arrays(lambda leaf, place=place: leaf[place].copy(), older)
            if any(leaf.any() for leaf in tree_leaves(mine)):
                self._earlier[row] = mine

    def insert(
        self,
        steps: Mapping[str, Any],
        tails: Any,
        extras: Mapping[str, Any],
        *,
        lengths: np.ndarray,
        heads: np.ndarray,
        first_t: np.ndarray,
        owners: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Writes the steps of K episodes to rows of the store (memory of a replay buffer).

        A new episode becomes a new linked list of rows; the steps of a stored episode extend its list.

        Args:
            steps: Result of `fit`, S = sum of `lengths`.
            tails: Result of `fit`, K observations after the episodes' steps.
            extras: Result of `fit`; steps without an output that other steps have get zeros.
            lengths: int ``[K]``, number of steps of each episode, >= 1.
            heads: int ``[K]``, last row of the chain to continue, which becomes the row of the first step; -1: a new
                chain.
            first_t: int ``[K]``, `t` of the first step.
            owners: int ``[K]``, numbers of the episodes.

        Returns:
            ``(rows of the steps [S], rows after the last steps [K])``.
        """
        stops = lengths.cumsum()
        starts, size = stops - lengths, int(stops[-1])
        is_new = heads < 0
        num_new = int(np.count_nonzero(is_new))
        after = self._rows(size + num_new)
        if num_new:
            # The first row of a new chain comes before those that its steps lead to.
            places = (starts + is_new.cumsum() - 1)[is_new]
            heads, firsts = heads.copy(), after[places]
            heads[is_new] = firsts
            self.prev[firsts], self.t[firsts], self.owner[firsts] = -1, first_t[is_new], owners[is_new]
            after = np.delete(after, places)
        rows = np.empty(size, np.int32)
        rows[1:] = after[:-1]
        rows[starts] = heads
        tail_rows = after[stops - 1]
        self.next[rows] = after
        self.next[tail_rows] = -1
        self.prev[after] = rows
        self.t[after] = np.arange(1, size + 1) + (first_t - starts).repeat(lengths)
        self.owner[after] = owners.repeat(lengths)
        if self.num_frames > 1:
            obs, tails = steps[Columns.OBS], self._newest(tails)
            self._keep_earlier(rows[starts[is_new]], take(obs, starts[is_new]))
            steps = {**steps, Columns.OBS: self._newest(obs)}
        for name, value in steps.items():
            _put(self.columns[name], rows, value)
        _put(self.columns[Columns.OBS], tail_rows, tails)
        for name, stored in self.extras.items():
            _put(stored, rows, extras.get(name))
        return rows, tail_rows

    def begin_at(self, row: int) -> None:
        """Removes the beginning of a stored episode (a linked list of rows), so that it begins at `row`. The caller
        then frees the earlier rows.
        """
        if self.num_frames > 1:
            rows = np.array([row])
            self._keep_earlier(rows, self.take(Columns.OBS, rows))
        self.prev[row] = -1

    def free(self, rows: np.ndarray) -> None:
        """Frees rows, so that new steps can use them."""
        if self._earlier:
            for row in rows.tolist():
                self._earlier.pop(row, None)
        self.owner[rows] = 0
        self.generation[rows] += 1
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)

    def walk(self, row: int, num_steps: int | None = None) -> tuple[np.ndarray, int]:
        """Follows a stored episode, a linked list of rows, from `row` for at most `num_steps` steps. Returns ``(rows of
        these steps, the row that follows them)``.
        """
        link = self.next.data  # Its items are Python's ints, without a detour.
        rows = []
        while num_steps is None or len(rows) < num_steps:
            following = link[row]
            if following < 0:
                break
            rows.append(row)
            row = following
        return np.array(rows, np.int32), row

    # -------------------------------------------------------------------------------------------------------- reading

    def take(self, name: str, rows: np.ndarray) -> Any:
        """Copies the values of a column, such as rewards, in the given rows of the store: ``[*rows.shape, ...]``."""
        if name == Columns.OBS and self.num_frames > 1:
            return self._stacks(rows)
        return map_arrays(lambda leaf: leaf[rows], self.columns[name])

    def _stacks(self, rows: np.ndarray) -> Any:
        """Rebuilds the stacked frames of the observations in the given rows; each row stores only its newest frame."""
        num_frames, flat = self.num_frames, rows.reshape(-1)
        frames, num_before = self.chain(flat, num_frames - 1, backwards=True)
        (short,) = (num_before < num_frames - 1).nonzero()
        first = frames[short, num_before[short]].tolist()
        kept = [(i, self._earlier[row]) for i, row in zip(short.tolist(), first, strict=True) if row in self._earlier]

        def of_leaf(leaf: np.ndarray, *earlier: np.ndarray) -> np.ndarray:
            *rest, width = leaf.shape[1:]
            out = np.empty((len(flat), *rest, num_frames, width), leaf.dtype)
            for back in range(num_frames):
                out[..., num_frames - 1 - back, :] = leaf[frames[:, back]]
            for i in short.tolist():
                out[i, ..., : num_frames - 1 - num_before[i], :] = 0
            out = out.reshape(len(flat), *rest, num_frames * width)
            for (i, _), older in zip(kept, earlier, strict=True):
                known = num_before[i] * width
                out[i, ..., : older.shape[-1] - known] = older[..., known:]
            return out.reshape(*rows.shape, *out.shape[1:])

        return map_arrays(of_leaf, self.columns[Columns.OBS], *(older for _, older in kept))

    def extra(self, name: str) -> Any:
        """Returns a stored module output, such as recurrent states: its values in all rows of the store, a pytree
        ``[num_rows, ...]``.

        Raises:
            ValueError: If no step has this output.
        """
        if name not in self.extras:
            raise ValueError(f"The replay buffer has no extra column {name!r}. Choose from {sorted(self.extras)}.")
        return self.extras[name]

    def steps(self) -> np.ndarray:
        """Returns the indices of the stored rows that contain steps, in ascending order. Rows with only the last
        observation of an episode are left out.
        """
        return np.flatnonzero((self.next >= 0) & (self.owner > 0))

    def has_steps(self, rows: np.ndarray, number: int) -> np.ndarray:
        """Whether at least `number` further steps of the same episode follow each step in `rows`, bool ``[N]``."""
        link = self.next
        has = np.ones(len(rows), bool)
        for _ in range(number):
            # After the end of an episode this reads any row, and `has` is False already.
            rows = link[rows]
            has &= link[rows] >= 0
        return has

    def windows(
        self,
        rows: np.ndarray,
        wanted: np.ndarray | None,
        largest: int,
        gamma: float,
        clip_rewards: bool | float | None = None,
    ) -> NStepWindows:
        """Computes the n-step windows that begin at the steps in `rows`.

        The result contains discounted reward sums, and the rows at which the windows end. Windows stop at the end of
        their episode.

        Args:
            rows: int ``[N]``, rows of the first steps.
            wanted: int ``[N]``, maximum number of steps of each window; None: `largest`.
            largest: Largest possible number of steps.
            gamma: Discount.
            clip_rewards: Clipping of every step's reward; see `jaxrl_stack.ops.returns.clipped_rewards`.
        """
        if largest == 1:
            rewards = clipped_rewards(self.columns[Columns.REWARDS][rows], clip_rewards)
            return NStepWindows(rewards, rows, self.next[rows], np.ones(len(rows), np.int32))
        frames, sizes = self.chain(rows, largest)
        limits = (sizes if wanted is None else np.minimum(sizes, wanted))[:, None]
        rewards = clipped_rewards(self.columns[Columns.REWARDS][frames[:, :-1]], clip_rewards)
        discounts = np.array([gamma**step for step in range(largest)], np.float32)
        sums, lengths = arithmetic.window(np, rewards, discounts, np.arange(largest) < limits)
        items = np.arange(len(rows))
        return NStepWindows(sums, frames[items, lengths - 1], frames[items, lengths], lengths)

    def chain(self, rows: np.ndarray, longest: int, *, backwards: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Finds, for each row in `rows`, up to `longest` later rows of the same stored episode (a linked list of rows).

        If `backwards` is True, finds up to `longest` earlier rows.

        Args:
            rows: ``[N]``, the rows to start from.
            longest: Maximum number of further rows.
            backwards: Whether to follow the links backwards in time.

        Returns:
            ``(rows [N, longest + 1], number of further rows [N])``; entries after these rows are arbitrary.
        """
        link = self.prev if backwards else self.next
        frames = np.empty((longest + 1, len(rows)), np.int32)
        frames[0] = rows
        for step in range(longest):
            # After the end, -1, this reads the link of another chain.
            np.take(link, frames[step], out=frames[step + 1], mode="wrap")
        frames = frames.T
        return frames, arithmetic.first(np, frames[:, 1:] < 0)

    # ---------------------------------------------------------------------------------------------------------- state

    def get_state(self) -> dict[str, Any]:
        """Returns the state of the store as arrays and numbers.

        To save memory, the large arrays are read-only views of the store, not copies. Before the next write, `own`
        copies the store's arrays, so that the returned views do not change.
        """

        def lent(leaf: np.ndarray) -> np.ndarray:
            loan = LentArray(leaf)
            loans.append(weakref.ref(loan))
            return loan.rows()[: self._num_used]

        widest = max((leaf.nbytes for leaf in tree_leaves([self.columns, self.extras])), default=0)
        size = max(1, _PART_BYTES * self.num_rows // max(1, widest))
        loans = [loan for loan in self._loans if loan() is not None]
        data = {"columns": map_arrays(lent, self.columns), "extras": map_arrays(lent, self.extras)}
        parts = [take(data, slice(start, start + size)) for start in range(0, self._num_used, size)]
        links = {name: lent(getattr(self, name)) for name in _LINKS}
        self._loans = loans
        state = {"num_rows": self.num_rows, "parts": parts, "links": links, "free": self._free[: self._num_free].copy()}
        if self.num_frames > 1:
            earlier = {"row": list(self._earlier), "frames": list(self._earlier.values())}
            state |= {"num_frames": self.num_frames, "earlier": earlier}
        return state

    def own(self) -> None:
        """Copies the arrays of the store that a result of `get_state` still uses.

        The copies replace these arrays in the store. Called before every write to the store, so that the write does not
        change that result.
        """
        if not self._loans:
            return
        held = [loan for loan in (reference() for reference in self._loans) if loan is not None]
        lent = {id(loan.array) for loan in held}

        def owned(leaf: np.ndarray) -> np.ndarray:
            return longer(leaf[: self._num_used], self.num_rows) if id(leaf) in lent else leaf

        with deferred_interrupt():
            for name in ("columns", "extras", *_LINKS):
                setattr(self, name, map_arrays(owned, getattr(self, name)))
            self._loans = []

    # ----------------------------------------------------------------------------------------------------------- rows

    def _allocate(self, columns: Mapping[str, Any], extras: Mapping[str, Any], bookkeeping: Mapping[str, int]) -> None:
        # Every chain needs a row more than it has steps.
        num_rows = self.capacity + max(64, self.capacity // 16)
        if self.num_frames > 1:
            for leaf in tree_leaves(columns[Columns.OBS]):
                if leaf.ndim < 2 or leaf.shape[-1] % self.num_frames:
                    raise ValueError(
                        f"num_frames={self.num_frames}: the last axis of observations must divide into "
                        f"{self.num_frames} frames of equal size, but observations have shape {leaf.shape[1:]}. Use "
                        "num_frames=1."
                    )
            columns = {**columns, Columns.OBS: self._newest(columns[Columns.OBS])}
        _require_memory(columns, extras, bookkeeping, num_rows)
        self.columns, self.extras = take(columns, slice(0)), take(extras, slice(0))
        self._grow(num_rows)

    def _rows(self, number: int) -> np.ndarray:
        """Allocates `number` rows of the store, freed ones first, and returns their indices."""
        recycled = min(number, self._num_free)
        fresh = number - recycled
        if self._num_used + fresh > self.num_rows:
            # Many short episodes: there are more last frames than were expected.
            self._grow(max(self._num_used + fresh, self.num_rows + self.num_rows // 4))
        rows = np.empty(number, np.int32)
        self._num_free -= recycled
        rows[:recycled] = self._free[self._num_free : self._num_free + recycled]
        if fresh:
            rows[recycled:] = np.arange(self._num_used, self._num_used + fresh)
        self._num_used += fresh
        return rows

    def _grow(self, num_rows: int) -> None:
        for name in ("columns", "extras", *_LINKS, "_free"):
            setattr(self, name, longer(getattr(self, name), num_rows))
        self.num_rows = num_rows


@dataclasses.dataclass
class StoredFrames:
    """Checked state of a `FrameStore`, for example from a checkpoint, whose arrays are not allocated yet.

    `opened` allocates the arrays part by part and releases each saved part, so that a large buffer is never in memory
    twice.

    Attributes:
        capacity: Expected number of steps.
        num_frames: As in `FrameStore`.
        num_rows: As in `FrameStore`.
        earlier: Frames before each chain, by the chain's first row.
        free: int32, freed rows.
        parts: ``{"columns": ..., "extras": ...}`` of runs of the rows that were ever used; `opened` takes them away.
        links: The links of these rows; likewise.
    """

    capacity: int
    num_frames: int
    num_rows: int
    earlier: dict[int, Any]
    free: np.ndarray
    parts: list[dict[str, Any]]
    links: dict[str, np.ndarray]

    @classmethod
    def from_state(cls, capacity: int, state: Mapping[str, Any], bookkeeping: Mapping[str, int]) -> StoredFrames:
        """Checks a state that `FrameStore.get_state` returned, and converts it to a `StoredFrames`. The memory of the
        `FrameStore` is allocated later, by `opened`.

        Args:
            capacity: Expected number of steps.
            state: Result of `FrameStore.get_state`.
            bookkeeping: See `FrameStore.fit`.

        Raises:
            ValueError: If the state contradicts itself, or there is not enough memory.
        """
        # A state without that number has whole observations, and so has the store then.
        num_frames, earlier = int(state.get("num_frames", 1)), {}
        if num_frames > 1:
            earlier = dict(zip(map(int, state["earlier"]["row"]), state["earlier"]["frames"], strict=True))
        num_rows, free, links = int(state["num_rows"]), np.asarray(state["free"], np.int32), _checked_links(state)
        kinds = ("columns", "extras")
        parts = [{kind: map_arrays(np.asarray, dict(part[kind])) for kind in kinds} for part in state["parts"]]
        num_used = len(links["owner"])
        if not num_used:
            return cls(capacity, num_frames, 0, earlier, free, [], links)
        sizes = [batch_size(part["columns"][Columns.REWARDS]) for part in parts]
        for part, size in zip(parts, sizes, strict=True):
            for name, value in (*part["columns"].items(), *part["extras"].items()):
                _check_columns(name, value, size)
        if sum(sizes) != num_used or any(_form(part) != _form(parts[0]) for part in parts):
            raise ValueError(
                "The saved replay buffer is damaged: it stores its rows in several parts, which differ in columns, "
                f"shapes or dtypes, or do not have {num_used} rows in total. Restore another checkpoint."
            )
        _require_memory(parts[0]["columns"], parts[0]["extras"], bookkeeping, num_rows - num_used)
        return cls(capacity, num_frames, num_rows, earlier, free, parts, links)

    def steps(self) -> np.ndarray:
        """Returns the indices of the stored rows that contain steps, in ascending order. Rows with only the last
        observation of an episode are left out.
        """
        return np.flatnonzero((self.links["next"] >= 0) & (self.links["owner"] > 0))

    def opened(self) -> FrameStore:
        """Allocates a `FrameStore` and moves the saved arrays into it. This empties the saved state, so call the method
        only once.
        """
        store = FrameStore(self.capacity, self.num_frames)
        store._earlier = self.earlier
        if not self.parts:
            return store
        num_rows, num_used, num_free = self.num_rows, len(self.links["owner"]), len(self.free)
        arrays = longer(take(self.parts[0], slice(0)), num_rows)
        start = 0
        while self.parts:
            part = self.parts.pop(0)
            rows = slice(start, start + batch_size(part["columns"][Columns.REWARDS]))
            _put(arrays, rows, part)
            start = rows.stop
        store.columns, store.extras = arrays["columns"], arrays["extras"]
        for link in _LINKS:
            setattr(store, link, longer(self.links.pop(link), num_rows))
        store._free = longer(self.free, num_rows)
        store.num_rows, store._num_free, store._num_used = num_rows, num_free, num_used
        return store


def map_arrays(fn: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Applies a function to all arrays of one or several pytrees, like `tree_map`. Faster than `tree_map` if the first
    pytree is a single array.
    """
    return fn(tree, *rest) if type(tree) is np.ndarray else tree_map(fn, tree, *rest)


def _put(stored: Any, rows: np.ndarray | slice, value: Any | None) -> None:
    """Writes `value` to the given rows of a stored column. If `value` is None, writes zeros."""
    if type(stored) is np.ndarray:
        stored[rows] = 0 if value is None else value
    elif value is None:
        tree_map(lambda leaf: leaf.__setitem__(rows, 0), stored)
    else:
        tree_map(lambda leaf, new: leaf.__setitem__(rows, new), stored, value)


def _checked_links(state: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Checks and returns the arrays that link the rows of a saved `FrameStore` (memory of a replay buffer), by name.

    Each array has one number per row that was ever used: the next row, the previous row, the steps since the episode's
    reset (`t`), the number of the episode (`owner`), or the number of times that the row was freed (`generation`).
    """
    num_rows, links = int(state["num_rows"]), {name: np.asarray(state["links"][name]) for name in _LINKS}
    num_used = len(links["owner"])
    if any(links[name].shape != (num_used,) or links[name].dtype != dtype for name, dtype in _LINKS.items()):
        raise ValueError(
            "The saved replay buffer is damaged: the arrays that link the steps of episodes have wrong shapes or "
            "dtypes. Restore another checkpoint."
        )
    is_taken = links["owner"] > 0
    if num_used > num_rows or not np.array_equal(np.sort(state["free"]), np.flatnonzero(~is_taken)):
        raise ValueError(
            f"The saved replay buffer is damaged: its lists of used and of free rows ({num_rows} rows in total) "
            "contradict each other. Restore another checkpoint."
        )
    for name in ("next", "prev"):
        linked = links[name][is_taken]
        linked = linked[linked != -1]
        if len(linked) and not (linked.min() >= 0 and linked.max() < num_used and is_taken[linked].all()):
            raise ValueError(
                f"The saved replay buffer is damaged: some links between steps ({name!r}) lead to empty rows. Restore "
                "another checkpoint."
            )
    return links


def _form(tree: Any) -> Any:
    return tree_map(lambda leaf: (leaf.shape[1:], leaf.dtype), tree)


def longer(tree: Any, num_rows: int) -> Any:
    """Copies arrays to longer arrays with `num_rows` rows; the added rows are zeros. The operating system allocates
    memory only for the pages that are written.
    """

    def of_leaf(leaf: np.ndarray) -> np.ndarray:
        rows = np.zeros((num_rows, *leaf.shape[1:]), leaf.dtype)
        rows[: len(leaf)] = leaf
        return rows

    return map_arrays(of_leaf, tree)


def _require_memory(
    columns: Mapping[str, Any], extras: Mapping[str, Any], bookkeeping: Mapping[str, int], num_rows: int
) -> None:
    sizes = {
        name: sum(math.prod(leaf.shape[1:]) * leaf.dtype.itemsize for leaf in tree_leaves(tree))
        for name, tree in (*columns.items(), *extras.items())
    }
    per_row = {**sizes, **bookkeeping, "links": LINK_BYTES}
    estimate = MemoryEstimate.of_rows("replay buffer", {"rows": num_rows}, per_row)
    require_memory(estimate, available_host_bytes(), where="are free on this machine", remedy=REMEDY)


def _check_columns(name: str, value: Any, size: int) -> None:
    for leaf in tree_leaves(value):
        if leaf.dtype.kind not in "biufc" and leaf.dtype.name != "bfloat16":
            raise ValueError(
                f"The column {name!r} has dtype {leaf.dtype}, but a replay buffer keeps only numbers. Leave it out "
                "(extra_columns=[...]) or convert it to numbers."
            )
        if leaf.ndim < 1 or len(leaf) != size or (name in _DTYPES and leaf.ndim != 1):
            wanted = f"({size},)" if name in _DTYPES else f"({size}, ...)"
            raise ValueError(
                f"The column {name!r} for the replay buffer must have the shape {wanted}, not {leaf.shape}. Correct "
                "the array of this column."
            )


def _fitted(name: str, stored: Any, value: Any, size: int | None = None) -> Any:
    """Checks new values of a column and converts these values to the dtypes of the stored column.

    If the column is not stored yet, only checks the values and converts them to arrays. If `size` is given, the values
    must have `size` rows.
    """
    if (
        type(value) is type(stored) is np.ndarray
        and value.dtype == stored.dtype
        and value.shape[1:] == stored.shape[1:]
        and (size is None or len(value) == size)
    ):
        return value
    value = map_arrays(lambda leaf: np.asarray(leaf, _DTYPES.get(name)), value)
    _check_columns(name, value, batch_size(value) if size is None else size)
    if stored is None:
        return value

    def fit(stored: np.ndarray, new: np.ndarray) -> np.ndarray:
        if not isinstance(new, np.ndarray):
            raise ValueError(
                f"The column {name!r} is an array in the replay buffer, but the new data is a {type(new).__name__}. "
                f"Add only data in which {name!r} is an array."
            )
        if new.shape[1:] != stored.shape[1:]:
            raise ValueError(
                f"The column {name!r} has items of shape {new.shape[1:]} in the new data, but of shape "
                f"{stored.shape[1:]} in the replay buffer. Add only items of shape {stored.shape[1:]}."
            )
        if new.dtype == stored.dtype:
            return new
        cast = cast_lossless(new, stored.dtype)
        if cast is None:
            raise ValueError(
                f"The column {name!r} has dtype {new.dtype} in the new data, but {stored.dtype} in the replay buffer, "
                f"and {stored.dtype} cannot represent all new values. Use one dtype for all data of the column."
            )
        return cast

    return map_arrays(fit, stored, value)
