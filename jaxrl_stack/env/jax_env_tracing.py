"""Checks of a JAX environment's methods by tracing: wrong signatures, side effects, and Python code that needs the
concrete values of arrays.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import jax

from jaxrl_stack.utils.retracing import attributes_of, changed_attributes, impurity, leaked_attributes
from jaxrl_stack.utils.signatures import call_problem
from jaxrl_stack.utils.tracing_errors import NO_VALUES, remedy

if TYPE_CHECKING:
    from jaxrl_stack.env.jax_env import JaxEnv


def check_is_pure(env: JaxEnv, method: str, program: Any, *args: Any, thorough: bool) -> None:
    """Traces a method of a JAX environment a second time; raises if the traced program differs, or if the method
    changed attributes.

    Args:
        env: The environment.
        method: Name of the method.
        program: First trace of the method, from `traced`.
        *args: Arguments of that trace.
        thorough: Whether functions that the method jits are also traced again.

    Raises:
        TypeError: Names the method and the difference.
    """
    holders = _wrapped(env)
    before = [attributes_of(one) for one in holders]
    difference = impurity(getattr(env, method), *args, program=program, thorough=thorough)
    for one, held in zip(holders, before, strict=True):
        if changed := changed_attributes(held, attributes_of(one)):
            raise TypeError(_keeps_on_self(env, method, one, changed))
    if difference is not None:
        raise TypeError(
            f"{env.source}.{method} differs when it is traced again: {difference}. NumPy's and Python's random "
            "numbers are drawn only once, while JAX traces. Draw with jax.random from `key`, and store "
            "changing values in the environment's state."
        )


def _keeps_on_self(env: JaxEnv, method: str, holder: Any, names: list[str]) -> str:
    return (
        f"{env.source}.{method} changes the attribute(s) {names} of {type(holder).__name__}, but {method} runs only "
        f"once, while JAX traces it for all steps. Store changing values in the state that {method} returns."
    )


def _wrapped(env: Any) -> list[Any]:
    """Returns a list with the given environment and the environments that it wraps, directly or indirectly."""
    found = [env]
    for one in found:
        inner = [value for value in vars(one).values() if hasattr(value, "step") and hasattr(value, "reset")]
        found += [value for value in inner if hasattr(value, "__dict__") and not any(value is x for x in found)]
    return found


_SIGNATURES = {
    "reset": "self, key, params",
    "step": "self, key, state, action, params",
    "reset_env": "self, key, params",
    "step_env": "self, key, state, action, params",
}
"""Method of an environment -> its parameters."""


def check_signatures(env: JaxEnv) -> None:
    """Raises TypeError for methods of a JAX environment with wrong parameters, such as gymnasium's ``step(self,
    action)``.

    Raises:
        TypeError: Names the method and its parameters.
    """
    for method, parameters in _SIGNATURES.items():
        if not hasattr(env, method):
            continue
        function = getattr(env, method)
        problem = call_problem(function, *parameters.split(", ")[1:])
        if problem is not None:
            raise TypeError(
                f"{env.source}.{method}{inspect.signature(function)} cannot be called with "
                f"({parameters.removeprefix('self, ')}): {problem}. Write def {method}({parameters})."
            )


def traced(env: JaxEnv, method: str, *args: Any) -> tuple[Any, Any]:
    """Traces a method of a JAX environment without running it; returns ``(jaxpr, shapes and dtypes of the outputs)``.

    Args:
        env: The environment.
        method: Name of the method.
        *args: Shapes and dtypes of its arguments.

    Raises:
        TypeError: The method cannot be compiled, or keeps traced values on the environment. Other errors of its code
            are reraised with a note.
    """
    name, function = env.source, getattr(env, method)
    try:
        traced = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
    except jax.errors.JAXTypeError as error:
        for one in _wrapped(env):
            if leaked := leaked_attributes(one):
                raise TypeError(_keeps_on_self(env, method, one, leaked)) from error
        reason = str(error).split("\n", 1)[0]
        raise TypeError(f"{name}.{method} cannot be compiled: {type(error).__name__}: {reason} {NO_VALUES}") from error
    except Exception as error:
        error.add_note(
            f"Raised while {name}.{method} was traced with arrays of the environment's spaces. {remedy(error)}".rstrip()
        )
        raise
    for one in _wrapped(env):
        if leaked := leaked_attributes(one):
            raise TypeError(_keeps_on_self(env, method, one, leaked))
    return traced
