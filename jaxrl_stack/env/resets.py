"""Resets of several JAX environments after a batched step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.ops.masks import expand
from jaxrl_stack.ops.scans import is_computed_ahead
from jaxrl_stack.utils.memory import bytes_of_shapes

if TYPE_CHECKING:
    from jaxrl_stack.env.jax_env import JaxStep


def reset_only_ended(step: JaxStep, reset: Callable[[jax.Array], tuple[Any, Any]], keys: jax.Array) -> JaxStep:
    """Resets only the JAX environments whose episode ended in the last step.

    Used if a reset is expensive. A loop resets these environments in groups until all have new episodes. The group size
    is a sixteenth of all environments (at least one).

    Suited to resets that cost as much as many steps, such as generated worlds, or physics that must settle. Most
    steps need no reset.

    Args:
        step: Result of a step without reset (leaves ``[B, ...]``); `obs` and `state` precede the reset.
        reset: Function that returns ``(obs, state)`` of one reset environment from its key.
        keys: PRNG keys ``[B]`` of the resets.
    """
    ended = jnp.logical_or(step.terminated, step.truncated)
    batch = ended.shape[0]

    def reset_next(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        waiting, last = carry
        # Where fewer are waiting, the rest are rows beyond the last one: they are written nowhere.
        (rows,) = jnp.nonzero(waiting, size=max(batch // 16, 1), fill_value=batch)
        fresh = jax.vmap(reset)(keys[rows])
        last = jax.tree.map(lambda one, new: one.at[rows].set(new, mode="drop"), last, fresh)
        return waiting.at[rows].set(False, mode="drop"), last

    _, (obs, state) = jax.lax.while_loop(lambda carry: jnp.any(carry[0]), reset_next, (ended, (step.obs, step.state)))
    return step._replace(obs=obs, state=state)


_SMALL_RESET = 256
"""Bytes of an environment's first observation and state up to which they are made for every step of a rollout."""


def reset_where_ended(step: JaxStep, reset: Callable[[], tuple[Any, Any]]) -> JaxStep:
    """Resets each of ``B`` JAX environments whose episode ended in the last step. Returns `step` with the observations
    and states after the resets.

    If a rollout runs in `scan_ahead`, small resets (see `_SMALL_RESET`) are computed for all of its steps at once,
    before the loop over steps. On CPUs, other resets are computed only in steps that end an episode.

    Most steps end no episode, and a reset (mainly its PRNG keys) costs more than a step of a small environment. The
    condition covers all environments, because `jax.vmap` turns the condition of a single one into a selection, which
    computes both branches. On accelerators with thousands of environments, an episode ends in nearly every step, and
    branching on an array stalls the device; there, resets are computed in every step.

    Args:
        step: Result of a step without reset (leaves ``[B, ...]``); `obs` and `state` precede the reset.
        reset: Function that returns ``(obs, state)`` of reset environments (leaves ``[B, ...]``).
    """
    ended = jnp.logical_or(step.terminated, step.truncated)

    def select(obs: Any, state: Any) -> tuple[Any, Any]:
        def one(fresh: jax.Array, last: jax.Array) -> jax.Array:
            return jnp.where(expand(ended, last), fresh, last)

        return jax.tree.map(one, reset(), (obs, state))

    if is_computed_ahead() and bytes_of_shapes(jax.eval_shape(reset)) <= ended.size * _SMALL_RESET:
        # It follows from keys alone, and is made before the loop over steps.
        return step._replace(**dict(zip(("obs", "state"), select(step.obs, step.state), strict=True)))

    def only_if_needed(obs: Any, state: Any) -> tuple[Any, Any]:
        return jax.lax.cond(jnp.any(ended), select, lambda obs, state: (obs, state), obs, state)

    obs, state = jax.lax.platform_dependent(step.obs, step.state, cpu=only_if_needed, default=select)
    return step._replace(obs=obs, state=state)
