"""Lookup of environment names by patterns such as ``"gymnax/*-MinAtar"``."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

import gymnasium as gym

from jaxrl_stack.env.jax_env import GYMNAX_PREFIX
from jaxrl_stack.env.registry import GYMNAX_IDS
from jaxrl_stack.env.suites import all_suites

_WILDCARDS = frozenset("*?[")


def matching_tasks(patterns: Sequence[str], where: str) -> list[str]:
    """Returns the environment names that match the patterns, in the order of the patterns and without repetition.

    Args:
        patterns: Names, which need not be registered, and patterns with ``*``, ``?`` or ``[abc]``. Patterns are
            compared with gymnax's names (``gymnax/...``), the names of the installed suite with the pattern's prefix
            (``brax/*``), and gymnasium's registered names.
        where: Setting that contains the patterns, for messages.

    Raises:
        ValueError: There are no patterns, a pattern is no str, or nothing matches a pattern.
        ImportError: The suite of a pattern is not installed.
    """
    if not patterns:
        raise ValueError(f"{where}={list(patterns)!r}: must name at least one environment, such as 'gymnax/*-MinAtar'.")
    found: dict[str, None] = {}
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise ValueError(
                f"{where}: {pattern!r} must be a name or a pattern (str). Give classes and instances a name: "
                f"register_env('mine', lambda config: ...)."
            )
        if not _WILDCARDS & set(pattern):
            found[pattern] = None
            continue
        matching = fnmatch.filter(_known_names(pattern), pattern)
        if not matching:
            raise ValueError(f"{where}={pattern!r}: no environment matches. `jaxrl list envs` shows names and suites.")
        found.update(dict.fromkeys(matching))
    return list(found)


def _known_names(pattern: str) -> list[str]:
    """Returns all environment names that a pattern can match.

    These are gymnax's names, gymnasium's ids and, if the pattern begins with a suite's prefix and a slash, the names of
    this suite.
    """
    prefix, slash, _ = pattern.partition("/")
    names = [GYMNAX_PREFIX + name for name in GYMNAX_IDS]
    suite = all_suites().get(prefix) if slash else None
    if suite is not None:
        names += [f"{prefix}/{name}" for name in suite.load().ids()]
    return [*names, *sorted(gym.registry)]
