"""Restores, after an update, the state of modules for which the batch has no valid row (all rows are masked)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.core.learner.gradient_step import Carry
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.utils.typing import ModuleID

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner import Learner


def restore_unused_modules(
    learner: Learner, before: LearnerState, after: Carry, has_rows: Mapping[ModuleID, Any]
) -> Carry:
    """Restores modules for which the batch has no valid row to their values from before the gradient steps.

    All rows of such a module are masked. The restored values are the module's parameters, other state and optimizer
    states.

    Zero gradients are not enough: momentum and weight decay change parameters anyway. Leaves that several modules
    share, and optimizers of such leaves, are restored only if none of these modules has rows.

    Args:
        learner: The learner of the modules.
        before: State before the gradient steps.
        after: Arrays after the gradient steps.
        has_rows: For each module of the batch, whether it has a valid row: True for a module without masks, else a bool
            scalar.
    """
    if all(own is True for own in has_rows.values()):
        return after
    of_params, of_rest = (_has_rows_by_ref(learner, has_rows, kind) for kind in (nnx.Param, nnx.Variable))

    def chosen(flag: Any, new: Any, old: Any) -> Any:
        return new if flag is True else jax.tree.map(lambda n, o: jnp.where(flag, n, o), new, old)

    params = {ref: chosen(of_params.get(ref, True), new, before.params[ref]) for ref, new in after.params.items()}
    rest = {
        ref: new if ref in learner.pure.stream_refs else chosen(of_rest.get(ref, True), new, before.rest[ref])
        for ref, new in after.rest.items()
    }
    optimizers = {mid: dict(by_name) for mid, by_name in after.optimizers.items()}
    for mid, by_name in learner.optimizers.items():
        for name, optimizer in by_name.items():
            reached = [of_params[ref] for ref in optimizer.refs if ref in of_params]
            flag = _any(reached) if reached else True
            optimizers[mid][name] = chosen(flag, after.optimizers[mid][name], before.optimizers[mid][name])
    return Carry(params, rest, optimizers)


def _has_rows_by_ref(learner: Learner, has_rows: Mapping[ModuleID, Any], kind: type[nnx.Variable]) -> dict[str, Any]:
    """Returns, for each parameter or variable name (ref), whether any module that contains the variable has valid rows
    in the batch; several modules can share a variable.
    """
    flags: dict[str, list[Any]] = {}
    for mid, own in has_rows.items():
        for ref in learner.pure.refs_of(learner.template[mid], kind):
            flags.setdefault(ref, []).append(own)
    return {ref: _any(own) for ref, own in flags.items()}


def _any(flags: list[Any]) -> Any:
    """Returns the logical "or" of flags (True or bool scalars): True if one is the Python constant True, else a bool
    scalar.
    """
    if any(flag is True for flag in flags):
        return True
    return functools.reduce(jnp.logical_or, {id(flag): flag for flag in flags}.values())
