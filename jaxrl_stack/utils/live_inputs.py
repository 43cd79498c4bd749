"""Which inputs of a pure function matter, read off its trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def inputs_that_matter(function: Callable[..., Any], *args: Any) -> list[bool]:
    """Per leaf of the arguments whether something that a function returns, or does, can depend on it.

    Args:
        function: Pure function of `args`; is traced.
        args: Pytrees of arrays or `jax.ShapeDtypeStruct`s.
    """
    program = jax.make_jaxpr(function)(*args).jaxpr
    needed = {id(variable) for variable in program.outvars}
    for equation in reversed(program.eqns):
        if equation.effects or any(id(variable) in needed for variable in equation.outvars):
            needed |= {id(variable) for variable in equation.invars}
    return [id(variable) in needed for variable in program.invars]
