"""Detection of impure functions, which JAX must not trace, by a comparison of two traces: the traces of an impure
function differ.

Code that JAX traces runs once for all calls of the program. NumPy's and Python's random numbers, and attributes that a
call changes, silently become constants. They differ from one trace to the next.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sized
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

Attributes = Mapping[str, tuple[Any, ...]]
"""Name of an attribute -> the objects that it held; see `attributes_of`."""


def impurity(function: Callable[..., Any], *args: Any, program: Any = None, thorough: bool = False) -> str | None:
    """Compares two traces of a function. Describes a difference, which shows that the function is impure; None if they
    are equal.

    Args:
        function: Function of `args`.
        args: Pytrees of arrays or `jax.ShapeDtypeStruct`s.
        program: Result of ``jax.make_jaxpr(function)(*args)``, if it was traced before.
        thorough: Whether to trace inner jitted functions again, too. This takes longer, because JAX caches their
            traces, including those of its own library.

    Returns:
        The difference, for a message such as "it differs when it is traced again: DIFFERENCE".
    """
    # JAX knows a function that it has traced by its identity.
    before = program if program is not None else jax.make_jaxpr(lambda *args: function(*args))(*args)
    with _fresh_caches() if thorough else contextlib.nullcontext():
        after = jax.make_jaxpr(lambda *args: function(*args))(*args)
    values = [list(_constants(traced)) for traced in (before, after)]
    if len(values[0]) != len(values[1]):
        return "it does other operations"
    for old, new in zip(*values, strict=True):
        if not _is_same(old, new):
            return f"a constant was {_shown(old)}, and is {_shown(new)}"
    return None


def _fresh_caches() -> contextlib.AbstractContextManager[None]:
    return _trace_number()(1)


@functools.cache
def _trace_number() -> Any:
    """Returns a factory of context managers that prevent the reuse of JAX's cached traces.

    Inside of ``with _trace_number()(1):``, JAX does not reuse traces of jitted functions that it cached outside of such
    contexts. The first call creates the factory with ``jax.make_user_context``; later calls return the same factory, so
    that JAX's caches do not grow.
    """
    return jax.make_user_context(0)


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants (arrays and numbers) and the names of the operations in a traced program, and in its inner
    programs.
    """
    yield from getattr(program, "consts", ())
    inner = getattr(program, "jaxpr", program)
    for equation in inner.eqns:
        yield equation.primitive.name
        yield from (variable.val for variable in equation.invars if hasattr(variable, "val"))
        for name in sorted(equation.params):
            for part in jax.tree.leaves(equation.params[name], is_leaf=_is_program):
                if _is_program(part):
                    yield from _constants(part)
    yield from (variable.val for variable in inner.outvars if hasattr(variable, "val"))


def _is_program(part: Any) -> bool:
    return hasattr(part, "eqns") or hasattr(part, "jaxpr")


def _is_same(old: Any, new: Any) -> bool:
    if old is new or isinstance(old, str):
        return old is new or old == new
    old, new = (_as_numpy(value) for value in (old, new))
    return old.shape == new.shape and old.dtype == new.dtype and old.tobytes() == new.tobytes()


def _as_numpy(value: Any) -> np.ndarray:
    is_key = isinstance(value, jax.Array) and jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if is_key else value)


def _shown(value: Any) -> str:
    array = None if isinstance(value, str) else _as_numpy(value)
    if array is None:
        return repr(value)
    return str(array) if array.size <= 1 else f"{array.dtype}{list(array.shape)} starting with {array.flat[0]}"


def attributes_of(thing: Any) -> Attributes:
    """Takes a snapshot of an object's attributes and of the items in its lists, dicts and tuples, to find later
    changes.
    """
    return {
        name: (value, *((leaf, None if hasattr(leaf, "shape") else _length(leaf)) for leaf in _leaves(value)))
        for name, value in vars(thing).items()
    }


def _leaves(value: Any) -> list[Any]:
    try:
        return jax.tree.leaves(value)
    except (TypeError, ValueError):  # a dict whose keys have no order
        return list(value.values()) if isinstance(value, dict) else []


def _length(leaf: Any) -> int | None:
    return len(leaf) if isinstance(leaf, Sized) else None


def changed_attributes(before: Attributes, after: Attributes) -> list[str]:
    """Names of an object's attributes that were changed, added or removed since a snapshot by `attributes_of`."""
    return [
        name
        for name in {**before, **after}
        if name not in before or name not in after or not _are_same(before[name], after[name])
    ]


def _are_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    if len(before) != len(after) or before[0] is not after[0]:
        return False
    return all(a[0] is b[0] and a[1] == b[1] for a, b in zip(before[1:], after[1:], strict=True))


def leaked_attributes(thing: Any) -> list[str]:
    """Names of an object's attributes that hold a traced array of a finished trace, which is an error in JAX."""
    return [name for name, value in vars(thing).items() if any(isinstance(leaf, Tracer) for leaf in _leaves(value))]
