"""Moves of members between slots equal rows that NumPy picks, and compile their programs once."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from jaxrl_stack.execution.member_moves import Layout, MemberMoves
from jaxrl_stack.utils import devices
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.members import member_axes


@struct.dataclass
class State:
    weights: jax.Array
    flag: jax.Array
    frame: jax.Array
    env_key: jax.Array
    key: jax.Array
    head: jax.Array
    shared_by_members: ClassVar[tuple[str, ...]] = ("head",)


def state(i):
    key = jax.random.key(i)
    return State(jnp.full((3, 2), i, jnp.float32), jnp.asarray(i % 2 == 0), jnp.full(4, i, jnp.uint8), key, key, 7)


def read(blocks):
    """By name of a field, its rows of all slots; keys as bits."""
    fields = {}
    for name in ("weights", "flag", "frame", "env_key", "key"):
        parts = [devices.own_shards(getattr(block, name)) for block in blocks]
        rows = [np.asarray(jax.random.key_data(part)) if "key" in name else part for part in parts]
        fields[name] = np.concatenate([x.reshape(-1, *x.shape[2:]) for x in rows])
    return fields


@pytest.mark.parametrize(("num_devices", "at_once", "num_blocks"), [(2, 3, 2), (1, 4, 1)])
def test_moves_equal_picked_rows_and_compile_once(num_devices, at_once, num_blocks):
    """A typed key in an environment moves; the stream `key` stays, unless streams move, too."""
    used = jax.devices()[:num_devices]
    layout = Layout(tuple(used), at_once)

    def block(first):
        states = [state(first + i) for i in range(layout.block_size)]
        rows = jax.tree.map(lambda *xs: jnp.stack(xs).reshape(num_devices, at_once, *jnp.shape(xs[0])), *states)
        return devices.place_sharded(dataclasses.replace(rows, head=np.full(num_devices, 7)), used)

    blocks = [block(i * layout.block_size) for i in range(num_blocks)]
    streams = lambda tree, value: dataclasses.replace(tree, key=value)  # noqa: E731
    moves = MemberMoves(layout, "devices", member_axes(state(0)), streams, blocks[0])
    rng, number, clock = np.random.default_rng(0), num_blocks * layout.block_size, CompileClock()
    for call in range(8):
        before, count = read(blocks), int(rng.integers(1, number + 1))
        targets, sources = rng.permutation(number)[:count], rng.integers(0, number, count)
        with_streams = bool(call % 2)
        clock.reset()
        moves(blocks, list(zip(sources.tolist(), targets.tolist(), strict=True)), with_streams=with_streams)
        assert call == 0 or clock.compiles == 0
        index = np.arange(number)
        index[targets] = sources
        for name, values in read(blocks).items():
            stays = name == "key" and not with_streams
            np.testing.assert_array_equal(values, before[name] if stays else before[name][index], err_msg=name)
    assert all((devices.own_shards(one.head) == 7).all() for one in blocks)
