"""Recorded steps that are larger than memory: a thread reads pieces of the files into a window (chunk in memory), from
which minibatches are drawn.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.sources import Drawn
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.datasets.item_form import ItemForm
    from jaxrl_stack.execution.training_step import Draws, TrainState
    from jaxrl_stack.utils.memory import MemoryEstimate

WINDOWS_IN_BUDGET = 4
"""A window that is drawn from, the next one, that one's pieces before they are put together, and what reading takes."""


class Cursor(NamedTuple):
    """Position in the data set at which a window (chunk loaded into memory) starts.

    Attributes:
        passes: Number of whole passes before it.
        first: Index of its first piece in the order of the pass.
    """

    passes: int = 0
    first: int = 0


class Window(NamedTuple):
    """Chunk of a data set that is loaded into memory, with its position in the data set.

    Attributes:
        start: Position of its start.
        after: Position of the next window.
        steps: Steps of the window.
        items: Items of the window, in the order of draws.
    """

    start: Cursor
    after: Cursor
    steps: Steps
    items: np.ndarray


class StreamedInput:
    """Data set that a thread reads in pieces (parts of files), ahead of the minibatches.

    The thread reads one window (chunk in memory) ahead. The order of the pieces changes in every pass.

    Args:
        pieces: Arguments of `read`, each for a part of the input.
        read: Function that reads a piece.
        items: Form of the items of minibatches.
        window_bytes: Size of a window, which ends with the piece that reaches it.
        seed: Seed of the order.
        number: Index of the input.
        keeps_pieces: Whether pieces stay in memory after reading, if one window contains all of them.

    Attributes:
        window: The present window; None before the first minibatch.
        offset: Number of its items that have been drawn.
        prepared: ``{column: [R, ...]}``, columns that the algorithm prepared from its steps.
    """

    def __init__(
        self,
        pieces: Sequence[Any],
        read: Callable[[Any], Steps],
        items: ItemForm,
        window_bytes: int,
        seed: int,
        number: int,
        *,
        keeps_pieces: bool = True,
    ):
        self._pieces, self._read, self._items = list(pieces), read, items
        self._keeps_pieces = keeps_pieces
        self._kept: list[Steps] | None = None
        self._window_bytes, self.seed, self._number = window_bytes, seed, number
        self._thread: threading.Thread | None = None
        self.restart(Cursor())

    # ------------------------------------------------------------------------------------------------------- windows

    def _order(self, passes: int) -> np.ndarray:
        seed = derived_seed("order of the pieces", self.seed, self._number, passes)
        return np.random.default_rng(seed).permutation(len(self._pieces))

    def _made(self, cursor: Cursor, num_pieces: int | None = None) -> Window:
        """Reads the window (chunk of the data set in memory) that starts at a cursor.

        The window has `num_pieces` pieces of the data set. If `num_pieces` is None, adds pieces until the window has at
        least `window_bytes` bytes, or until the pass ends.
        """
        order, at, num_bytes = self._order(cursor.passes), cursor.first, 0
        last = len(order) if num_pieces is None else at + num_pieces
        parts: list[Steps] = []
        while at < last and not (parts and num_pieces is None and num_bytes >= self._window_bytes):
            number = int(order[at])
            parts.append(self._read(self._pieces[number]) if self._kept is None else self._kept[number])
            num_bytes += parts[-1].num_bytes
            at += 1
        if len(parts) == len(order) and num_bytes <= self._window_bytes and self._keeps_pieces:
            self._kept = [parts[i] for i in np.argsort(order)]
        steps = Steps.concatenated(parts)
        parts.clear()
        items = self._items.of(steps)
        seed = derived_seed("order of the items", self.seed, self._number, *cursor)
        items = items[np.random.default_rng(seed).permutation(len(items))]
        release_unused_memory()
        after = Cursor(cursor.passes, at) if at < len(order) else Cursor(cursor.passes + 1, 0)
        return Window(cursor, after, steps, items)

    def _produce(self, cursor: Cursor, ready: queue.Queue[Any], is_over: threading.Event) -> None:
        """Body of the reader thread: loads windows (chunks of the data set) one after the other.

        Puts each window into the queue `ready`, which has room for one.
        """
        try:
            num_empty = 0
            while not is_over.is_set():
                window = self._made(cursor)
                cursor = window.after
                num_empty = 0 if len(window.items) else num_empty + 1
                if num_empty > len(self._pieces):
                    raise ValueError("The data set has no steps. Use other data: offline_data(input_=...).")
                _put(ready, window, is_over)
                del window
        except BaseException as error:
            _put(ready, error, is_over)

    def prepare_anew(self) -> None:
        """Makes the next `draw` compute the additional columns of the window (chunk in memory), such as value targets,
        again with the present module.
        """
        self._is_prepared = False

    def restart(self, cursor: Cursor) -> None:
        """Continues reading at `cursor`, a position in the data set; the next draw loads the window (chunk in memory)
        that begins there.
        """
        self.stop()
        self._next = cursor
        self._leave_window()

    def _leave_window(self) -> None:
        self.window, self.offset, self.prepared, self._is_prepared = None, 0, {}, False

    def advance(self) -> Window:
        """Frees the current window (chunk of the data set in memory), waits for the next one and returns it."""
        # There is no room for three.
        self._leave_window()
        window = self._taken()
        if window.start != self._next:
            # Ctrl-C came when its predecessor had been taken from the queue and not been entered: read that again.
            self.stop()
            window = self._taken()
        return self._entered(window)

    def _taken(self) -> Window:
        """Waits until the reader thread has loaded the next window (chunk of the data set), and returns this window.

        Starts the thread if none is running. If the thread failed, raises the thread's exception.
        """
        if self._thread is None:
            self._start()
        window = self._ready.get()
        if isinstance(window, BaseException):
            self._thread = None
            raise window
        return window

    def _entered(self, window: Window) -> Window:
        with deferred_interrupt():
            self.window, self._next = window, window.after
        return window

    def _start(self) -> None:
        with deferred_interrupt():
            self._ready: queue.Queue[Any] = queue.Queue(1)
            self._is_over = threading.Event()
            arguments = (self._next, self._ready, self._is_over)
            self._thread = threading.Thread(target=self._produce, args=arguments, name="data set", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops the thread that reads the data set."""
        if (thread := self._thread) is not None:
            with deferred_interrupt():
                self._is_over.set()
                self._thread = None
            with contextlib.suppress(queue.Empty):  # It may wait for room.
                self._ready.get_nowait()
            thread.join()

    # ----------------------------------------------------------------------------------------------------- minibatches

    def draw(self, number: int, prepare: Callable[[Steps], dict[str, np.ndarray]]) -> Iterator[dict[str, Any]]:
        """Yields the columns of the next `number` items (steps or sequences) in parts, each from one window (chunk in
        memory).
        """
        while number:
            window = self.window
            if window is None or self.offset == len(window.items):
                window = self.advance()
            if not self._is_prepared:
                self.prepared = prepare(window.steps)
                self._is_prepared = True
            own = window.items[self.offset : self.offset + number]
            self.offset += len(own)
            number -= len(own)
            if len(own):
                yield self._items.take(window.steps.columns, self.prepared, own, np)

    @property
    def passes(self) -> int:
        """Number of complete passes over the data set."""
        if self.window is None:
            return self._next.passes
        return (self.window.after if self.offset == len(self.window.items) else self.window.start).passes

    def get_state(self) -> dict[str, Any]:
        """Returns the read position in the data set, and the columns, such as value targets, that the algorithm has
        computed.

        These columns were computed from the steps of the present window (chunk in memory).
        """
        window = self.window
        if window is None:
            return {"passes": self._next.passes, "first": self._next.first, "offset": 0}
        last = len(self._pieces) if window.after.passes > window.start.passes else window.after.first
        cursor = {"passes": window.start.passes, "first": window.start.first, "last": last}
        return {**cursor, "offset": self.offset, "prepared": dict(self.prepared)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores a read position from a result of `get_state`. If the position is inside a window (chunk in memory),
        loads this window again.

        Raises:
            ValueError: If the data has no such position.
        """
        cursor, offset = Cursor(int(state["passes"]), int(state["first"])), int(state["offset"])
        self.restart(cursor)
        if not offset:
            return
        last = int(state["last"])
        if last <= len(self._pieces):
            window = self._made(cursor, last - cursor.first)
            if offset <= len(window.items) and all(len(x) == window.steps.num_rows for x in state["prepared"].values()):
                self._entered(window)
                self.offset, self.prepared = offset, dict(state["prepared"])
                self._is_prepared = bool(self.prepared)
                return
        self.restart(Cursor())
        raise ValueError(
            f"The saved state continues after {cursor.first} parts of data files and {offset} more steps (or "
            "sequences) of a pass over the data, but offline_data(input_=...) has no such position. Use the data of "
            "the saved run, or restore only the learners: restore_from_path(path, component='learner_group')."
        )


class StreamedData:
    """`Source` of minibatches that mix items of several streamed data sets, in proportion to weights.

    The source's state (`kept`) is None, because this object stores the chunks that are in memory.

    Args:
        inputs: The inputs.
        weights: Average share of each input in minibatches.
        seed: Seed of the choice of inputs.
        batch_size: Items of a minibatch.
        prepare: ``(window's steps, state, place) -> columns`` that the algorithm prepares; see `Source.draw`.
    """

    draws: Mapping[str, Draws] = {}
    estimate: MemoryEstimate | None = None

    def __init__(
        self,
        inputs: Sequence[StreamedInput],
        weights: Sequence[float],
        seed: int,
        batch_size: int,
        prepare: Callable[[Steps, TrainState, Any], dict[str, np.ndarray]],
    ):
        self.inputs = inputs
        self._weights = np.asarray(weights, np.float64) / np.sum(weights)
        self.seed, self._batch_size, self._prepare = seed, batch_size, prepare
        self.num_draws = 0

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Does nothing: the order of the data depends on the seed only, not on hyperparameters that can change during
        training.
        """

    def reset(self, config: AlgorithmConfig) -> None:
        self.seed = config.root_seed

    def draw(self, kept: None, state: TrainState, place: Any) -> tuple[None, TrainState, Drawn]:
        """Draws the next minibatch from the data sets; see `Source.draw`."""
        number = self._batch_size
        counts = [number]
        if len(self.inputs) > 1:
            seed = derived_seed("inputs of a minibatch", self.seed, self.num_draws)
            counts = np.random.default_rng(seed).multinomial(number, self._weights)

        def prepare(steps: Steps) -> dict[str, np.ndarray]:
            return self._prepare(steps, state, place)

        parts = [part for own, n in zip(self.inputs, counts, strict=True) for part in own.draw(int(n), prepare)]
        self.num_draws += 1
        columns = parts[0] if len(parts) == 1 else jax.tree.map(lambda *xs: np.concatenate(xs), *parts)
        return kept, state, Drawn(columns)

    @property
    def passes(self) -> int:
        """Number of complete passes over the first data set. The number of passes over another data set can differ."""
        return self.inputs[0].passes

    def get_state(self, kept: None) -> dict[str, Any]:
        """Returns the read position in each data set, and the columns, such as value targets, that the algorithm has
        computed.

        The columns of a data set were computed for the data set's present window (chunk in memory). Also returns the
        number of drawn minibatches.
        """
        return {"num_draws": self.num_draws, "inputs": [own.get_state() for own in self.inputs]}

    def set_state(self, kept: None, state: Mapping[str, Any]) -> None:
        """Restores the read positions in the data sets from a result of `get_state`.

        Raises:
            ValueError: If the data has no such position.
        """
        if len(state["inputs"]) != len(self.inputs):
            raise ValueError(
                f"The saved state is from a run with {len(state['inputs'])} data sets, but offline_data(input_=...) "
                f"has {len(self.inputs)}. Set input_ as in that run (an input_ without weights counts as one data set)."
            )
        for own, saved in zip(self.inputs, state["inputs"], strict=True):
            own.set_state(saved)
        self.num_draws = int(state["num_draws"])

    def prepare_anew(self) -> None:
        """Makes the next `draw` compute additional columns, such as value targets, again with the present module."""
        for own in self.inputs:
            own.prepare_anew()

    def init(self) -> None:
        """Starts the first pass over the data sets; returns None, because this object stores the data."""
        for own in self.inputs:
            own.seed = self.seed
            own.restart(Cursor())
        self.num_draws = 0

    def stop(self) -> None:
        """Stops the threads that read the data sets."""
        for own in self.inputs:
            own.stop()


class OwnSamples:
    """`Source` of the batches that a user's `OfflineData.sample` returns. The read position in the data belongs to the
    user's object.

    Args:
        data: Object with the method `sample`.
        module_id: Module of the rows.
        batch_size: Rows of a minibatch.
    """

    draws: Mapping[str, Draws] = {}
    estimate: MemoryEstimate | None = None

    def __init__(self, data: Any, module_id: str, batch_size: int):
        self._data, self._module_id, self._batch_size = data, module_id, batch_size
        self.passes = 0

    def draw(self, kept: None, state: TrainState, place: Any) -> tuple[None, TrainState, Drawn]:
        """Returns the next minibatch of the user's `OfflineData.sample`; see `Source.draw`.

        Raises:
            TypeError: If it is none of the module.
        """
        number = self._batch_size
        batch = self._data.sample(number)
        self.passes += 1
        if not isinstance(batch, Mapping) or self._module_id not in batch:
            raise TypeError(
                f"{type(self._data).__name__}.sample() returned {type(batch).__name__}. Return "
                f"{{{self._module_id!r}: {{column: array [{number}, ...]}}}}."
            )
        return kept, state, Drawn(dict(batch[self._module_id]))

    def init(self) -> None:
        """Returns None, because the read position in the data belongs to the user's `OfflineData` object."""

    def change_settings(self, config: AlgorithmConfig) -> None:
        """Does nothing: the user's `OfflineData` object determines the samples."""

    def reset(self, config: AlgorithmConfig) -> None:
        """Does nothing: the user's `OfflineData` object determines the samples."""

    def get_state(self, kept: None) -> dict[str, Any]:
        """Returns an empty state, because the read position in the data belongs to the user's `OfflineData` object."""
        return {}

    def set_state(self, kept: None, state: Mapping[str, Any]) -> None:
        """Does nothing: the read position in the data belongs to the user's `OfflineData` object."""

    def prepare_anew(self) -> None:
        """Does nothing, because the minibatches of the user's `OfflineData` object already contain the additional
        columns, such as value targets.
        """

    def stop(self) -> None:
        """Does nothing: this source starts no thread to read the data."""


def release_unused_memory() -> None:
    """Returns freed memory of Arrow's pools to the operating system."""
    pyarrow = sys.modules.get("pyarrow")
    if pyarrow is not None:
        pyarrow.default_memory_pool().release_unused()


def _put(ready: queue.Queue[Any], value: Any, is_over: threading.Event) -> None:
    while not is_over.is_set():
        try:
            return ready.put(value, timeout=0.1)
        except queue.Full:
            continue
