"""What members of a population share, and what each has of its own."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.utils.members import map_members, member_axes, stacked


@struct.dataclass
class Ring:
    rows: jax.Array
    head: jax.Array
    size: int = struct.field(pytree_node=False)
    shared_by_members: ClassVar[tuple[str, ...]] = ("head",)


def state(seed):
    ring = Ring(jnp.full((2,), float(seed)), jnp.int32(7), 2)
    return {"ring": ring, "key": jax.random.key(seed), "nothing": None}


def test_a_state_says_what_is_shared_and_the_rest_is_stacked():
    axes = member_axes(state(0))
    assert (axes["ring"].rows, axes["ring"].head, axes["key"]) == (0, None, 0)
    both = stacked(axes, [state(0), state(1)])
    assert both["ring"].rows.shape == (2, 2) and both["ring"].head.shape == () and both["ring"].size == 2
    assert both["nothing"] is None and both["key"].shape == (2,)
    np.testing.assert_array_equal(jax.random.key_data(both["key"][1]), jax.random.key_data(jax.random.key(1)))


def test_functions_of_members_see_their_own_leaves_alone():
    axes = member_axes(state(0))
    both = stacked(axes, [state(0), state(1)])
    second = map_members(lambda x: x[1], axes, both)
    np.testing.assert_array_equal(second["ring"].rows, [1.0, 1.0])
    assert second["ring"].head == 7
    doubled = map_members(lambda x: x, axes, both, shared=lambda x: 2 * x)
    assert doubled["ring"].head == 14
    after = jax.vmap(lambda s: s, in_axes=(axes,), out_axes=axes)(both)
    assert after["ring"].head.shape == ()
