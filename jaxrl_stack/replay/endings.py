"""Encoding of a step's end as one int32: terminated, truncated or neither, and the slot (storage index) of its final
observation.

Truncated steps whose final observation is in a slot have the code ``TRUNCATED + slot``. Terminated steps with a slot,
which exist only with `DeviceReplay.keep_terminal_obs`, have the code ``-1 - (2 slot + b)``, where b is 1 if the step
was also truncated, else 0.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns

GOES_ON, TERMINATED, BOTH, TRUNCATED = 0, 1, 2, 3


def of_steps(terminateds: jax.Array, truncateds: jax.Array) -> jax.Array:
    """Encodes the flags ``terminateds`` and ``truncateds`` of steps as int32 codes of the same shape, without slots
    (storage indices) of final observations.
    """
    truncated = jnp.where(truncateds, TRUNCATED, GOES_ON)
    return jnp.where(terminateds, jnp.where(truncateds, BOTH, TERMINATED), truncated)


def with_slots(ends: jax.Array, slots: jax.Array) -> jax.Array:
    """Adds the slots (storage indices) of final observations to the int32 codes that `of_steps` returned for ended
    steps.
    """
    terminal = -1 - (2 * slots + (ends == BOTH))
    return jnp.where(ends == TRUNCATED, TRUNCATED + slots, terminal)


def flags(ends: jax.Array) -> dict[str, jax.Array]:
    """Decodes the int32 codes of steps to their flags ``{"terminateds": bool, "truncateds": bool}``."""
    terminateds = (ends == TERMINATED) | (ends == BOTH) | (ends < 0)
    return {Columns.TERMINATEDS: terminateds, Columns.TRUNCATEDS: (ends >= BOTH) | ((ends < 0) & (ends % 2 == 0))}


def slots(ends: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Decodes the storage indices (slots) of final observations from int32 codes, which describe how steps end.

    Returns ``(has a slot: bool, slot: int32)``. A slot is the storage index of the final observation after an episode's
    last step. If a step has no slot, the returned index is arbitrary.
    """
    return (ends >= TRUNCATED) | (ends < 0), jnp.where(ends < 0, (-1 - ends) // 2, ends - TRUNCATED)
