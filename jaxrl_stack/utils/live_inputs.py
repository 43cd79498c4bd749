"""Analysis of traced pure functions: the inputs that results depend on, and the shapes and dtypes of outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Jaxpr, jaxpr_as_fun

_CALLS = ("jit", "pjit")
"""Primitives whose inputs and outputs are those of the program ``params["jaxpr"]``."""


class Once(NamedTuple):
    """Result of `traced_once`: the traced program, and facts about its inputs and outputs.

    Attributes:
        call: Runs the traced program, for arguments of the same structure, shapes and dtypes; calls the function for
            others. In eager runs (``jax.disable_jit``) it is the function itself, because arrays then have values.
        matters: Pytree of bools like the arguments: whether the function's results or effects can depend on each.
        out: Shapes and dtypes of the function's results, as `jax.ShapeDtypeStruct`s.
    """

    call: Callable[..., Any]
    matters: Any
    out: Any


def traced_once(function: Callable[..., Any], *args: Any) -> Once:
    """Traces a function once, to analyse the traced program, and to run it without tracing again.

    Returns a `Once`, which contains the program as a callable, a bool for each input (whether outputs or effects can
    depend on this input), and the shapes and dtypes of the outputs.

    Args:
        function: Pure function of `args`.
        args: Pytrees of arrays or `jax.ShapeDtypeStruct`s.
    """
    return once_of(function, args, *jax.make_jaxpr(function, return_shape=True)(*args))


def once_of(function: Callable[..., Any], args: tuple[Any, ...], program: Any, out: Any) -> Once:
    """Creates the result of `traced_once` from an existing trace of the function, without tracing again.

    The result contains the traced program as a callable, a bool for each input (whether outputs or effects can depend
    on this input), and the shapes and dtypes of the outputs.

    Args:
        function, args: See `traced_once`.
        program, out: Results of ``jax.make_jaxpr(function, return_shape=True)(*args)``.
    """
    matters = read_inputs(program.jaxpr, [True] * len(program.jaxpr.outvars))
    replay, treedef = jaxpr_as_fun(program), jax.tree.structure(out)
    traced = jax.tree.structure(args), [(aval.shape, aval.dtype) for aval in program.in_avals]

    def again(*args: Any) -> Any:
        leaves, structure = jax.tree.flatten(args)
        if (structure, [(jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves]) != traced:
            return function(*args)
        return jax.tree.unflatten(treedef, replay(*leaves))

    call = function if jax.config.jax_disable_jit else again  # pyright: ignore[reportAttributeAccessIssue]
    return Once(call, jax.tree.unflatten(traced[0], matters), out)


def read_inputs(program: Jaxpr, wanted: Sequence[bool]) -> list[bool]:
    """Finds the inputs of a traced program that can influence its effects or its wanted outputs.

    Returns one bool per input. Also analyses inner jitted functions.

    Args:
        program: The program.
        wanted: For each output, whether it is wanted.
    """
    needed = {id(variable) for variable, is_wanted in zip(program.outvars, wanted, strict=True) if is_wanted}
    for equation in reversed(program.eqns):
        results = [id(variable) in needed for variable in equation.outvars]
        if equation.primitive.name in _CALLS:
            inner = read_inputs(equation.params["jaxpr"].jaxpr, results)
            needed |= {id(variable) for variable, is_read in zip(equation.invars, inner, strict=True) if is_read}
        elif equation.effects or any(results):
            needed |= {id(variable) for variable in equation.invars}
    return [id(variable) in needed for variable in program.invars]
