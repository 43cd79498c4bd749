"""Compiled programs that copy a population's members between slots (rows of stacked arrays), on and between devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import packing
from jaxrl_stack.utils import devices
from jaxrl_stack.utils.members import map_members
from jaxrl_stack.utils.named_leaves import is_key


class Layout(NamedTuple):
    """Arrangement of a population's members in blocks; one program call trains one block.

    A block has V members on each of D devices. Slot ``k``, the position of one member, is in block ``k // (V * D)``, on
    device ``(k // V) % D``, in row ``k % V``.

    Attributes:
        devices: The D devices.
        at_once: V, rows of a block on a device.
    """

    devices: tuple[devices.Device, ...]
    at_once: int

    @property
    def block_size(self) -> int:
        """Number of slots (positions of members) in a block, the group of members that one program call trains: V slots
        on each of D devices.
        """
        return self.at_once * len(self.devices)

    def place(self, slot: int) -> tuple[int, int, int]:
        """Returns the block, the device and the row of a slot (the position of one member).

        All three are indices. A block is a group of members that one program call trains; the row is on this device.
        """
        block, rest = divmod(slot, self.block_size)
        return (block, *divmod(rest, self.at_once))


class Round(NamedTuple):
    """Plan of one exchange of population members between D devices (`jax.lax.all_to_all`).

    The plan contains the rows that each device sends, and the rows that each device overwrites with received members. A
    row is one member in the arrays of a block, and a block is a group of members that one program call trains.

    Attributes:
        taken: Block -> int32 ``[D, R]``: row of the block to read into each of R rows of the exchange; V, the number of
            a device's rows in a block, for none.
        put: Block -> int32 ``[D, R]``: row of the block to write from each row after the exchange; V for none.
    """

    taken: dict[int, np.ndarray]
    put: dict[int, np.ndarray]


class MemberMoves:
    """Copies members of a population between slots in place; only the rows of copied members are read, sent and
    written.

    Members that move pass through an exchange buffer of fixed size, so the programs serve any moves of any number of
    blocks, and are compiled once. Moves that do not fit into one buffer take several rounds.

    Args:
        layout: Layout of the blocks.
        axis_name: Name of the device axis.
        axes: Leaves of the members' states that differ between members.
        streams: Function that replaces the random streams in a tree of a block's structure by a value.
        block: A block, for the structure of its leaves.
    """

    def __init__(
        self, layout: Layout, axis_name: str | None, axes: Any, streams: Callable[[Any, Any], Any], block: Any
    ):
        self._layout, self._num_devices = layout, len(layout.devices)
        kinds = map_members(lambda _: "own", axes, block, shared=lambda _: "shared")
        kinds = jax.tree.leaves(streams(kinds, "stream"))
        self._moved = [i for i, kind in enumerate(kinds) if kind != "shared"]
        self._is_stream = [kinds[i] == "stream" for i in self._moved]
        # Rows of the exchange buffer for each pair of devices. On an accelerator, whose block may have all members, a
        # quarter of a block passes at a time, to save memory; on a CPU a block at a time takes fewest calls.
        num_parts = self._num_devices * (1 if layout.devices[0].platform == "cpu" else 4)
        self._per_pair = -(-layout.at_once // num_parts)
        self.num_rows = self._num_devices * self._per_pair
        leaves = [_bits(x) for x in self._leaves(block)]
        shapes = [jax.ShapeDtypeStruct((self.num_rows, *x.shape[2:]), x.dtype) for x in leaves]
        self._slots = packing.slots_of(shapes)
        self._empty = jax.eval_shape(lambda xs: packing.pack(xs)[:2], shapes)
        mapped = functools.partial(devices.map_over_devices, devices=list(layout.devices), axis_name=axis_name)
        self._take = mapped(self._taking(), in_axes=(0, 0, 0), out_axes=(0,), donate_argnums=(1,))
        self._put = mapped(self._putting(), in_axes=(0, 0, 0, 0), out_axes=(0,), donate_argnums=(0,))
        self._exchange = mapped(self._exchanging(axis_name), in_axes=(0,), out_axes=(0,), donate_argnums=(0,))

    def _leaves(self, block: Any) -> list[Any]:
        leaves = jax.tree.leaves(block)
        return [leaves[i] for i in self._moved]

    def _taking(self) -> Callable[..., Any]:
        num_members = self._layout.at_once

        def take(leaves: list[Any], rows: Any, index: Any) -> tuple[Any]:
            """Copies members from the arrays of a block into the exchange buffer `rows`.

            Runs before the exchange between devices. A block contains members that one program call trains. `index`
            contains the source row in the block's arrays for each row of `rows`. A row with the source V, the number of
            a device's rows in a block, does not change.
            """
            new = packing.pack([_bits(x).at[index].get(mode="clip") for x in leaves])[:2]
            is_taken = index < num_members
            return (jax.tree.map(lambda x, y: jnp.where(is_taken.reshape(-1, *[1] * (x.ndim - 1)), x, y), new, rows),)

        return take

    def _putting(self) -> Callable[..., Any]:
        slots, is_stream = self._slots, self._is_stream

        def put(leaves: list[Any], rows: Any, index: Any, index_of_streams: Any) -> tuple[Any]:
            """Writes members from the exchange buffer `rows` into the arrays of a block.

            Runs after the exchange between devices. A block contains members that one program call trains. `index`
            contains the target row in the block's arrays for each row of `rows`, and `index_of_streams` the target row
            for the member's random streams. A row with the target V, the number of a device's rows in a block, is not
            written.
            """

            def written(leaf: Any, slot: packing.Slot, into: Any) -> Any:
                bits = _bits(leaf)
                bits = bits.at[into].set(slot.read(*rows), mode="drop")
                return jax.random.wrap_key_data(bits, impl=jax.random.key_impl(leaf)) if is_key(leaf) else bits

            of_leaves = zip(leaves, slots, is_stream, strict=True)
            return ([written(leaf, slot, index_of_streams if own else index) for leaf, slot, own in of_leaves],)

        return put

    def _exchanging(self, axis_name: str | None) -> Callable[..., Any]:
        """Creates the function that exchanges the members' packed arrays between devices (`all_to_all`).

        Each device sends one group of rows to every device, and receives one group of rows from every device.
        """

        def exchange(rows: Any) -> tuple[Any]:
            return (jax.tree.map(lambda x: jax.lax.all_to_all(x, axis_name, 0, 0, tiled=True), rows),)

        return exchange

    def __call__(self, blocks: list[Any], moves: Sequence[tuple[int, int]], *, with_streams: bool) -> None:
        """Copies members to other positions (slots) in the population's arrays, all at the same time.

        Args:
            blocks: All blocks; changed in place.
            moves: ``(source slot, target slot)``, each target once.
            with_streams: Whether random streams move, too; otherwise those of the targets remain.
        """
        moves = [(source, target) for source, target in moves if source != target]
        rounds = self._rounds(moves)
        taken: Iterator[Any] | list[Any] = (self._rows(blocks, one) for one in rounds)
        if {source for source, _ in moves} & {target for _, target in moves}:
            taken = list(taken)  # all sources are read before the first is overwritten
        for rows, one in zip(taken, rounds, strict=True):
            for i, index in one.put.items():
                of_streams = index if with_streams else np.full_like(index, self._layout.at_once)
                leaves, treedef = jax.tree.flatten(blocks[i])
                # The block is donated.
                (moved,) = self._put(self._leaves(blocks[i]), rows, index, of_streams)
                for place, leaf in zip(self._moved, moved, strict=True):
                    leaves[place] = leaf
                blocks[i] = jax.tree.unflatten(treedef, leaves)

    def _rows(self, blocks: Sequence[Any], one: Round) -> Any:
        """Runs the exchange `one`, which moves population members between devices, and returns the received arrays.

        Packs the arrays of these members (see `packing.pack`), and sends them to the other devices. With one device,
        returns the packed arrays.
        """
        list_of = list(self._layout.devices)
        rows = jax.tree.map(lambda x: np.zeros((self._num_devices, *x.shape), x.dtype), self._empty)
        rows = devices.place_sharded(rows, list_of)
        for i, index in one.taken.items():
            (rows,) = self._take(self._leaves(blocks[i]), rows, index)
        return self._exchange(rows)[0] if self._num_devices > 1 else rows

    def _rounds(self, moves: Sequence[tuple[int, int]]) -> list[Round]:
        rounds: list[Round] = []
        num_moves: dict[tuple[int, int], int] = {}
        for source, target in moves:
            block, device, row = self._layout.place(source)
            to_block, to_device, to_row = self._layout.place(target)
            number = num_moves.get((device, to_device), 0)
            num_moves[device, to_device] = number + 1
            which, place = divmod(number, self._per_pair)
            if which == len(rounds):
                rounds.append(Round({}, {}))
            for index, own, at, value in (
                (rounds[which].taken, block, (device, to_device), row),
                (rounds[which].put, to_block, (to_device, device), to_row),
            ):
                if own not in index:
                    index[own] = np.full((self._num_devices, self.num_rows), self._layout.at_once, np.int32)
                index[own][at[0], at[1] * self._per_pair + place] = value
        return rounds


def _bits(x: Any) -> Any:
    return jax.random.key_data(x) if is_key(x) else x
