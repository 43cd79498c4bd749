"""Module weights in the form that is sent to env runners: ``{"params": {name: array}, "rest": {name: array}}``, with
parameters under "params" and other module state under "rest".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core import COMPONENT_RL_MODULE
from jaxrl_stack.env.env_runner import EnvRunner

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.learner_group import LearnerGroup


def module_refs(runner: Any) -> frozenset[str]:
    """Returns the names of the weight arrays (parameters and other module state) in the modules of an env runner."""
    state = runner.get_state([COMPONENT_RL_MODULE])[COMPONENT_RL_MODULE]
    return frozenset([*state["params"], *state.get("rest", {})])


def weights_of(source: EnvRunner | LearnerGroup) -> tuple[Mapping[str, Any], int]:
    """Returns a runner's or learner's weights with their version: ``({"params": ..., "rest": ...}, number of
    updates)``.
    """
    if isinstance(source, EnvRunner):
        state = source.get_state([COMPONENT_RL_MODULE, "weights_seq_no"])
        return state[COMPONENT_RL_MODULE], int(state["weights_seq_no"])
    return source.weights_for_runners(), int(source.num_updates)


def only(weights: Mapping[str, Any], keeps: Callable[[str], bool]) -> dict[str, Any]:
    """Returns a copy of `weights` that contains only the arrays whose names satisfy the function `keeps`."""
    return {part: {ref: leaf for ref, leaf in leaves.items() if keeps(ref)} for part, leaves in weights.items()}
