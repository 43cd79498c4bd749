"""Checks of the arguments of `Algorithm.compute_single_action` and `Algorithm.compute_actions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.core import DEFAULT_MODULE_ID

if TYPE_CHECKING:
    from jaxrl_stack.core.module_map import ModuleMap
    from jaxrl_stack.core.rl_module.rl_module import RLModule


def checked_state(module_id: str, module: RLModule, state: Any) -> Any:
    """Checks the recurrent state that a user passes to `compute_single_action`, and converts it to arrays.

    Args:
        module_id: Id of the module.
        module: The module.
        state: The user's value.

    Raises:
        ValueError: If it is not a state of this module.
    """
    initial = module.get_initial_state()
    if not jax.tree.leaves(initial):
        raise ValueError(
            f"compute_single_action(state={state!r}): module {module_id!r} has no recurrent state. Leave state out."
        )
    given, needed = (jax.tree.map(np.shape, each) for each in (state, initial))
    if given != needed:
        raise ValueError(
            f"compute_single_action(state=...) has the shapes {given}, but module {module_id!r} needs {needed}. Pass "
            f"the second value that the last call returned, or None at the start of an episode."
        )
    return jax.tree.map(lambda x, like: np.asarray(x, like.dtype), state, initial)


def policy_of(module_map: ModuleMap, agent_id: Any) -> str:
    """Returns the id of the policy that acts for an agent in all episodes. Raises if the policy can change between
    episodes.

    Args:
        module_map: Map from agents to modules.
        agent_id: The agent.

    Raises:
        ValueError: If the agent is unknown, or its policy can change between episodes.
    """
    if not module_map.is_multi_agent:
        return DEFAULT_MODULE_ID
    if agent_id not in module_map.module_of:
        raise ValueError(
            f"compute_actions() got an observation of the unknown agent {agent_id!r}; the agents are "
            f"{list(module_map.module_of)}. Use one of these, or pass policy_id=."
        )
    if module_map.slots:
        raise ValueError(
            f"compute_actions() got an observation of agent {agent_id!r} without policy_id=, but policy_mapping_fn can "
            f"map this agent to another policy in each episode. Pass one of {list(module_map.slots)} as policy_id=."
        )
    return module_map.module_of[agent_id]
