"""Variant of `jax.lax.scan` that computes values which depend only on its inputs `xs`, such as random numbers, before
the loop.
"""

from __future__ import annotations

import contextvars
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.core
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

_CALLS = ("jit", "pjit", "closed_call")
"""Primitives that only call a program: looked into, for part of it may follow from what is known."""


_IS_AHEAD = contextvars.ContextVar("is traced for scan_ahead", default=False)


def is_computed_ahead() -> bool:
    """Whether JAX is tracing the body of a `scan_ahead`.

    In this body, values that depend only on the inputs `xs` can be computed before the loop, for all steps at once.
    """
    return _IS_AHEAD.get()


def scan_ahead(
    body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, *, max_bytes: int = 1 << 26
) -> tuple[Any, Any]:
    """Performs `jax.lax.scan`, but computes values that depend only on the inputs `xs`, not on the carry, for all steps
    at once before the loop.

    In a rollout these values are the random numbers. If they are drawn inside the loop, each step contains another loop
    over few numbers, which takes longer than the dynamics of a small environment.

    Args:
        body: ``(carry, x) -> (carry, y)``.
        carry: Carry before the first step.
        xs: Pytree of arrays ``[T, ...]``.
        max_bytes: Largest size of the values computed ahead; if they are larger, all of them are computed in the loop.

    Returns:
        ``(carry, ys)``, as of `jax.lax.scan`.
    """
    first = jax.eval_shape(lambda xs: jax.tree.map(lambda x: x[0], xs), xs)
    token = _IS_AHEAD.set(True)
    try:
        traced, shapes = jax.make_jaxpr(body, return_shape=True)(carry, first)
    finally:
        _IS_AHEAD.reset(token)
    program = _without_calls(traced)
    num_xs = len(jax.tree.leaves(xs))
    split = _Split.of(program.jaxpr, program.jaxpr.invars[-num_xs:])
    length = jax.tree.leaves(xs)[0].shape[0]
    if not split.ahead or length * split.num_bytes > max_bytes:
        return jax.lax.scan(body, carry, xs)
    jaxpr, num_carry = program.jaxpr, len(program.jaxpr.invars) - num_xs
    before = _part(jaxpr, jaxpr.invars[num_carry:], split.ahead, split.handed_over)
    in_loop = _part(
        jaxpr, [*jaxpr.constvars, *jaxpr.invars[:num_carry], *split.handed_over], split.in_loop, jaxpr.outvars
    )

    def step(carry: Any, handed_over: Sequence[Any]) -> tuple[Any, Any]:
        out = jax.core.eval_jaxpr(in_loop, (), *program.consts, *jax.tree.leaves(carry), *handed_over)
        return jax.tree.unflatten(jax.tree.structure(shapes), out)

    handed_over = jax.vmap(lambda *x: jax.core.eval_jaxpr(before, (), *x))(*jax.tree.leaves(xs))
    return jax.lax.scan(step, carry, handed_over, length=length)


class _Split(NamedTuple):
    """Equations of a scan's traced body in two parts: those computed before the loop, and those computed in each step.

    Attributes:
        ahead: Equations that depend only on known variables.
        in_loop: All other equations, which may read results of `ahead`.
        handed_over: Known variables and results of `ahead` that `in_loop` or the outputs read.
    """

    ahead: Sequence[Any]
    in_loop: Sequence[Any]
    handed_over: Sequence[Any]

    @classmethod
    def of(cls, program: Jaxpr, known: Sequence[Any]) -> _Split:
        # What follows from nothing, such as an array of zeros, is in both parts.
        is_known, is_constant, ahead, in_loop = set(known), set(), [], []
        for equation in program.eqns:
            variables = {x for x in equation.invars if not isinstance(x, Literal)}
            can_move = not equation.effects and variables <= is_known | is_constant
            if can_move and variables <= is_constant:
                is_constant.update(equation.outvars)
                ahead.append(equation)
                in_loop.append(equation)
            elif can_move:
                is_known.update(equation.outvars)
                ahead.append(equation)
            else:
                in_loop.append(equation)
        read = [x for equation in in_loop for x in equation.invars] + list(program.outvars)
        return cls(ahead, in_loop, list(dict.fromkeys(x for x in read if not isinstance(x, Literal) and x in is_known)))

    @property
    def num_bytes(self) -> int:
        """Size in bytes of the values that one step of the loop reads from arrays over all steps.

        These values (`handed_over`) are inputs of the scan (`xs`), and results computed before the loop.
        """
        avals: list[Any] = [x.aval for x in self.handed_over]
        return sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals)


def _part(program: Jaxpr, takes: Sequence[Any], equations: Sequence[Any], gives: Sequence[Any]) -> Jaxpr:
    """Builds a traced program (jaxpr) from some equations of `program`, with the inputs `takes` and the outputs
    `gives`.

    `scan_ahead` splits a loop body into two such programs: one for before the loop, one for each step.
    """
    return program.replace(constvars=[], invars=list(takes), eqns=list(equations), outvars=list(gives))


def _without_calls(program: ClosedJaxpr) -> ClosedJaxpr:
    """Inlines the calls of inner functions in a traced program (jaxpr)."""
    return jax.make_jaxpr(lambda *args: _inlined(program, *args))(*program.in_avals)


def _inlined(program: ClosedJaxpr, *args: Any) -> list[Any]:
    """Evaluates a traced program (jaxpr) equation by equation, including the inner functions that it calls."""
    jaxpr = program.jaxpr
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*program.consts, *args], strict=True))
    for equation in jaxpr.eqns:
        if equation.primitive.name in _CALLS:
            inner = equation.params["jaxpr" if "jaxpr" in equation.params else "call_jaxpr"]
            results = _inlined(inner, *(x.val if isinstance(x, Literal) else values[x] for x in equation.invars))
        else:
            takes = list(dict.fromkeys(x for x in equation.invars if not isinstance(x, Literal)))
            one = _part(jaxpr, takes, [equation], equation.outvars)
            results = jax.core.eval_jaxpr(one, (), *(values[x] for x in takes))
        values.update(zip(equation.outvars, results, strict=True))
    return [x.val if isinstance(x, Literal) else values[x] for x in jaxpr.outvars]
