"""Functions that call users' environment creators. The first call of a creator shows whether it makes a JAX
environment, a single environment or a vector environment.

While an algorithm is built, the environment of the first call is kept for the first env runner of this process that
asks for an environment with the same config.
"""

from __future__ import annotations

import contextlib
import contextvars
import copy
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.env.env_context import EnvContext, copied
from jaxrl_stack.env.jax_env import JaxEnv, as_jax_env
from jaxrl_stack.utils.closing import close_env

EnvCreator = Callable[[EnvContext], Any]
Kind = Literal["jax", "vector", "single"]

_MOST_CONFIGS = 16
"""Configs of a creator whose kind is remembered."""


class _Kept(NamedTuple):
    creator: EnvCreator
    context: EnvContext
    env: Any


_kept: contextvars.ContextVar[list[_Kept] | None] = contextvars.ContextVar("kept_environments", default=None)
_kinds: weakref.WeakKeyDictionary[EnvCreator, list[tuple[dict[str, Any], Kind]]] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def creators_called_once() -> Iterator[None]:
    """Context manager that avoids repeated calls of users' env creators.

    Environments that were created only to find their kind ("jax", "vector" or "single"), or to build connectors, are
    stored, and `create` returns them later. Environments that are still stored at the end of the ``with`` block are
    closed.
    """
    if _kept.get() is not None:
        yield
        return
    token = _kept.set([])
    try:
        yield
    finally:
        close_unused()
        _kept.reset(token)


def close_unused() -> None:
    """Closes the stored environments. These were created to find their kind ("jax", "vector" or "single") or to build
    connectors, and no env runner uses them.
    """
    kept = _kept.get() or []
    while kept:
        _close(kept.pop().env)


def create(creator: EnvCreator, context: EnvContext) -> Any:
    """Returns an environment for an env runner: a stored environment, or the result of a new call of the creator.

    A stored environment is returned if the same creator made it for an equal context.
    """
    kept = _kept.get() or []
    for index, one in enumerate(kept):
        if one.creator is creator and _is_same_context(one.context, context):
            return kept.pop(index).env
    config = dict(context)
    made = creator(context)
    if known_kind(creator, config) is None:
        _note(creator, config, made)
    return made


def known_kind(creator: EnvCreator, config: Mapping[str, Any]) -> Kind | None:
    """Returns the kind ("jax", "vector" or "single") of environment that a creator makes for a config; None if the
    creator was never called with this config.
    """
    return next((kind for own, kind in _kinds_of(creator) if is_same_config(own, config)), None)


def look_at(name: str, creator: EnvCreator, context: EnvContext) -> tuple[Kind, JaxEnv | None]:
    """Returns the kind of environment ("jax", "vector" or "single") that a user's creator makes; calls the creator if
    it was never called with this config.

    Args:
        name: The name that it is registered as, for messages.
        creator: The creator.
        context: Argument of the creator.

    Returns:
        ``(kind, environment)``; the latter is None unless it is a JAX environment that was made now and is not kept.

    Raises:
        TypeError: The creator makes no environment.
    """
    config = dict(context)
    kind = known_kind(creator, config)
    if kind is not None:
        return kind, None
    kept_context, made = _first(name, creator, context)
    kind = _note(creator, config, made)
    if kind is None:
        raise TypeError(
            f"the creator registered as {name!r} returned {made!r}, which is neither a JaxEnv, nor a gymnax "
            "environment, nor a gymnasium.Env, nor a gymnasium.vector.VectorEnv. Return one of these."
        )
    keep(creator, kept_context, made)
    return kind, None if _kept.get() is not None else as_jax_env(made)


def keep(creator: EnvCreator, context: EnvContext, env: Any) -> None:
    """Closes an unused environment. Inside a ``with creators_called_once():`` block, stores the environment instead, so
    that `create` can return it to an env runner.
    """
    kept = _kept.get()
    if kept is None:
        _close(env)
    else:
        kept.append(_Kept(creator, context, env))


def _note(creator: EnvCreator, config: dict[str, Any], made: Any) -> Kind | None:
    """Returns the kind ("jax", "vector" or "single") of the environment `made`, and caches the kind.

    The env creator `creator` returned this environment. The kind is cached for this creator and config. Returns None if
    `made` is no environment.
    """
    if as_jax_env(made) is not None:
        kind: Kind = "jax"
    elif isinstance(made, gym.Env | gym.vector.VectorEnv):
        kind = "vector" if isinstance(made, gym.vector.VectorEnv) else "single"
    else:
        return None
    known = _kinds_of(creator)
    known.append((config, kind))
    del known[:-_MOST_CONFIGS]
    return kind


def _first(name: str, creator: EnvCreator, context: EnvContext) -> tuple[EnvContext, Any]:
    """Calls a user's env creator with a copy of the context, and returns ``(context, environment)``.

    If the creator raises ``KeyError("num_envs")``, as a creator of vector environments may, calls it again with
    ``num_envs=1`` in the context.
    """
    try:
        return context, creator(copy.copy(context))
    except Exception as error:
        if not (isinstance(error, KeyError) and error.args == ("num_envs",)):
            error.add_note(f"Raised by the creator registered as {name!r}, called with env_config={dict(context)}.")
            raise
    # Written for all copies at once, it asks how many.
    context = copied(context, num_envs=1)
    return context, creator(copy.copy(context))


def _kinds_of(creator: EnvCreator) -> list[tuple[dict[str, Any], Kind]]:
    try:
        return _kinds.setdefault(creator, [])
    except TypeError:  # neither hashable nor referable
        return []


def _is_same_context(a: EnvContext, b: EnvContext) -> bool:
    """Whether two env contexts have equal ``env_config`` items and equal attributes, such as the worker index."""
    return is_same_config(a, b) and a._worker_info() == b._worker_info()


def is_same_config(a: Any, b: Any) -> bool:
    """Whether two configs have equal values of equal types; 1, 1.0 and True differ."""
    if a is b:
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same_config(a[key], b[key]) for key in a)
    if type(a) is not type(b):
        return False
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(is_same_config, a, b))
    if isinstance(a, np.ndarray | np.generic | jax.Array):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return bool(a == b)


def _close(env: Any) -> None:
    if isinstance(env, gym.Env | gym.vector.VectorEnv):
        close_env(env)


__all__ = ["close_unused", "create", "creators_called_once", "keep", "known_kind", "look_at"]
