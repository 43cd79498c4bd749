"""Array functions for n-step returns, sequences and priorities, shared by replay buffers on host and device: `xp` is
``numpy`` or ``jax.numpy``.

A store says which steps follow on which; what n-step windows, sequences and weights make of that is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl_stack.core.columns import Columns

N_STEP, WEIGHTS = "n_step", "weights"
IS_FIRST, IS_LAST, IS_TERMINATED, IS_TRUNCATED = "is_first", "is_last", "is_terminated", "is_truncated"

_SMALLEST = 1e-12
"""Priorities are at least this, so that every item can be drawn again."""


def is_int(value: Any) -> bool:
    """Whether a value is an int of Python or NumPy; False for a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def n_step_range(n_step: Any) -> tuple[int, int]:
    """Converts the setting `n_step` to the lowest and the highest number of steps of an n-step window, both included.

    Args:
        n_step: A number of steps, or ``(low, high)``, of which high is excluded.

    Raises:
        ValueError: If it is neither, or out of range.
    """
    low, high = (n_step, n_step + 1) if is_int(n_step) else (0, 0)
    if isinstance(n_step, tuple | list) and len(n_step) == 2 and all(map(is_int, n_step)):
        low, high = n_step
    if 1 <= low < high:
        return int(low), int(high) - 1
    raise ValueError(
        f"n_step={n_step!r} must be a number of steps (>= 1), or a range (low, high) with 1 <= low < high, high "
        "excluded: (2, 5) draws 2, 3 or 4."
    )


def first(xp: Any, mask: Any) -> Any:
    """Index of the first True in each row of a mask ``[N, J]``, int32 ``[N]``; J for rows without a True."""
    length = mask.shape[1]
    return xp.min(xp.where(mask, xp.arange(length, dtype=xp.int32), length), axis=1, initial=length)


def until_end(xp: Any, is_end: Any) -> Any:
    """Marks the steps of each row up to and including the first step that ends an episode.

    The input has N rows of J consecutive steps. Returns bool ``[N, J]``; all True in a row without such a step.
    """
    return xp.arange(is_end.shape[1]) <= first(xp, is_end)[:, None]


def window(xp: Any, rewards: Any, discounts: Any, is_in: Any) -> tuple[Any, Any]:
    """Sums discounted rewards over n-step windows, and counts the steps of each window.

    Args:
        xp: Namespace of the arrays; also below.
        rewards: float32 ``[N, J]``, of consecutive steps.
        discounts: float32 ``[J]``, ``gamma ** j``.
        is_in: bool ``[N, J]``, whether a step is in the window; the steps of the window come first.

    Returns:
        ``(discounted sums, float32 [N], summed in the widest float that xp has by default; steps, int32 [N])``.
    """
    sums = xp.sum(xp.where(is_in, rewards * discounts, 0.0), axis=1, dtype=xp.result_type(float))
    return sums.astype(xp.float32), xp.sum(is_in, axis=1, dtype=xp.int32)


def sequence(xp: Any, is_there: Any, num_before: Any) -> dict[str, Any]:
    """Builds the loss mask of drawn sequences, which excludes burn-in steps and padding, and the lengths of the
    sequences, which include burn-in steps.

    Args:
        xp: Namespace of the arrays.
        is_there: bool ``[N, J]``, whether a step exists; existing steps come first.
        num_before: int ``[N]``, number of burn-in steps among them.

    Returns:
        loss_mask, bool ``[N, J]``: True in steps that are neither burn-in nor padding; seq_lens, int32 ``[N]``.
    """
    is_learned = is_there & (xp.arange(is_there.shape[1], dtype=xp.int32) >= num_before[:, None])
    return {Columns.LOSS_MASK: is_learned, Columns.SEQ_LENS: xp.sum(is_there, axis=1, dtype=xp.int32)}


def num_starts(xp: Any, is_first: Any, length: int) -> Any:
    """Computes how often each step should start a drawn sequence, relative to other steps, so that losses see all steps
    of an episode equally often.

    A sequence of `length` steps may start up to ``length - 1`` steps before its episode; it then contains only the
    steps from the first one of the episode on. So each step is in `length` sequences: `length` of them begin at the
    first step, and one at every other step.

    Args:
        xp: Namespace of the arrays.
        is_first: bool, any shape: whether a step is the first of its episode.
        length: Maximum number of steps of a sequence that losses see.
    """
    return xp.where(is_first, length, 1)


def num_learned(xp: Any, is_first: Any, start: Any, length: int) -> Any:
    """Returns, for each drawn sequence, the maximum number of steps that the loss uses, int ``[N]``.

    If the drawn step is the first step of its episode, the number is ``start + 1``, otherwise `length`. `start` is
    random, because such a draw also represents sequences that begin before the episode and contain fewer of its steps.

    Args:
        xp: Namespace of the arrays.
        is_first: bool ``[N]``, whether the drawn step is the first of its episode.
        start: int ``[N]`` in ``[0, length)``, random: selects one of the sequences that the first step represents.
        length: Maximum number of steps of a sequence that the loss uses.
    """
    return xp.where(is_first, start + 1, length)


def windows_in_sequences(
    xp: Any, rewards: Any, discounts: Any, is_there: Any, wanted: Any = None
) -> tuple[Any, Any, Any]:
    """Computes reward sums, lengths and last steps of the n-step windows that begin at each step of sequences. Windows
    stop at the end of their sequence.

    Args:
        xp: Namespace of the arrays.
        rewards: float32 ``[N, J]``.
        discounts: float32 ``[n]``, ``gamma ** k``, for windows of at most n steps.
        is_there: bool ``[N, J]``, whether a step exists; existing steps come first.
        wanted: int ``[N]``, maximum number of steps of the windows of each sequence; None: n.

    Returns:
        ``(discounted sums, float32; numbers of steps, int32; indices of the last steps, int32)`` of the windows, each
        ``[N, J]``, with zeros for steps that do not exist.
    """
    (number, width), longest = is_there.shape, discounts.shape[0]
    times, ahead = xp.arange(width, dtype=xp.int32), xp.arange(longest, dtype=xp.int32)
    after = times[:, None] + ahead
    inside = xp.minimum(after, width - 1)
    is_in = is_there[:, inside] & (after < width)
    if wanted is not None:
        is_in = is_in & (ahead < wanted[:, None, None])
    sums, lengths = window(xp, rewards[:, inside].reshape(-1, longest), discounts, is_in.reshape(-1, longest))
    lengths = lengths.reshape(number, width)
    last = xp.where(is_there, times + lengths - 1, 0).astype(xp.int32)
    return sums.reshape(number, width), lengths, last


def items(
    xp: Any, rewards: Any, reward_before: Any, is_final: Any, begins: Any, flags: Mapping[str, Any]
) -> dict[str, Any]:
    """Computes rewards and episode flags for world models, in windows of consecutive items (observations with action
    and reward); see `jaxrl_stack.replay.items`.

    Args:
        xp: Namespace of the arrays.
        rewards: float32 ``[N, T]``: reward of the action of each item; for a last observation, the reward that led to
            it.
        reward_before: float32 ``[N]``: reward that led to the first item of each window.
        is_final: bool ``[N, T]``, whether an item is a last observation.
        begins: bool ``[N]``, whether an episode begins with the first item.
        flags: terminateds and truncateds, bool ``[N, T]``, of the steps of `rewards`.

    Returns:
        Columns ``[N, T]``: rewards that led to the items; is_first, is_last, is_terminated, is_truncated.
    """
    is_first = xp.concatenate([begins[:, None], is_final[:, :-1]], axis=1)
    earlier = xp.concatenate([reward_before[:, None], rewards[:, :-1]], axis=1)
    terminated = is_final & flags[Columns.TERMINATEDS]
    return {
        Columns.REWARDS: xp.where(is_final, rewards, xp.where(is_first, xp.zeros_like(earlier), earlier)),
        IS_FIRST: is_first,
        IS_LAST: is_final,
        IS_TERMINATED: terminated,
        IS_TRUNCATED: is_final & flags[Columns.TRUNCATEDS] & ~terminated,
    }


def magnitudes(xp: Any, priorities: Any) -> Any:
    """Converts TD errors to priorities: absolute values, at least 1e-12."""
    return xp.maximum(xp.abs(priorities), _SMALLEST)


def importance_weights(xp: Any, shares: Any, least: Any, beta: Any) -> Any:
    """Importance weights of N drawn items, float32 ``[N]`` (Schaul et al., 2016, section 3.4).

    A weight is ``(M P(i)) ** -beta``, divided by the largest such weight of all items in the buffer. M is the number of
    items in the buffer, and P(i) the probability of drawing item i.

    Args:
        xp: Namespace of the arrays.
        shares: ``[N]``, scaled priorities of the drawn items. With several buffers, each priority is divided by the sum
            of its buffer; with one buffer, this sum cancels, as the number of items does.
        least: Smallest value of all items in the buffers, computed like `shares`.
        beta: Exponent.
    """
    return ((shares / least) ** -beta).astype(xp.float32)
