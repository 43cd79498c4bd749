"""Which inputs of a pure function matter, read off its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxpr_as_fun


def inputs_that_matter(function: Callable[..., Any], *args: Any) -> list[bool]:
    """Per leaf of the arguments whether something that a function returns, or does, can depend on it.

    Args:
        function: Pure function of `args`; is traced.
        args: Pytrees of arrays or `jax.ShapeDtypeStruct`s.
    """
    return jax.tree.leaves(traced_once(function, *args).matters)


class Once(NamedTuple):
    """A function that was traced.

    Attributes:
        call: Does what the function does without calling it again. In eager runs (``jax.disable_jit``) it is the
            function itself: what that looks at has values then.
        matters: Pytree of bools like the arguments, see `inputs_that_matter`.
        out: What it returns, as `jax.ShapeDtypeStruct`s.
    """

    call: Callable[..., Any]
    matters: Any
    out: Any


def traced_once(function: Callable[..., Any], *args: Any) -> Once:
    """Trace a function for all that is to be known of it.

    Args:
        function: As for `inputs_that_matter`.
        args: As there; what is called later has their structure, shapes and dtypes.
    """
    program, out = jax.make_jaxpr(function, return_shape=True)(*args)
    needed = {id(variable) for variable in program.jaxpr.outvars}
    for equation in reversed(program.jaxpr.eqns):
        if equation.effects or any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    replay, treedef = jaxpr_as_fun(program), jax.tree.structure(out)

    def again(*args: Any) -> Any:
        return jax.tree.unflatten(treedef, replay(*jax.tree.leaves(args)))

    matters = [id(variable) in needed for variable in program.jaxpr.invars]
    call = function if jax.config.jax_disable_jit else again  # pyright: ignore[reportAttributeAccessIssue]
    return Once(call, jax.tree.unflatten(jax.tree.structure(args), matters), out)
