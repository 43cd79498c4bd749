"""Observation and action spaces of policies. The spaces come from the agents for which a policy acts.

If a policy acts for no agent, its spaces come from the other policies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.utils.spaces import difference

SpacesById = Mapping[str, tuple[gym.Space, gym.Space]]
"""Module id, or "__env__" (vectorised) and "__env_single__" → (observation space, action space)."""


def with_policies_of(config: Any, env: Any, spaces: SpacesById | None) -> SpacesById | None:
    """Returns `spaces`, extended by the spaces of all policies that act for agents of a multi-agent environment.

    The spaces are ``{policy id: (observation space, action space)}``. Returns `spaces` unchanged if `env` is None or
    the config is for a single agent.

    Args:
        config: The config.
        env: The environment, or None.
        spaces: Known spaces, which take precedence.
    """
    if env is None or not config.is_multi_agent:
        return spaces
    # Configs are made without it, too.
    from jaxrl_stack.env.module_pipelines import spaces_of_policies

    return {**spaces_of_policies(config, env), **(spaces or {})}


def spaces_without_agent(
    config: Any, policy_id: str, given: tuple[gym.Space | None, gym.Space | None], spaces: SpacesById
) -> tuple[gym.Space, gym.Space]:
    """Spaces of a policy that acts for no agent, from the policy's config. A space that the config lacks comes from the
    other policies.

    Args:
        config: The config.
        policy_id: The policy.
        given: ``(observation space, action space)`` from the config; None where it has none.
        spaces: Spaces of the other policies.

    Raises:
        ValueError: If the spaces of the other policies differ.
    """
    found = []
    for i, kind in enumerate(("observation_space", "action_space")):
        own = {other: spaces[other][i] for other in config._policy_ids() if other in spaces}
        first = next(iter(own.values()))
        if given[i] is None and any(difference(one, first) is not None for one in own.values()):
            raise ValueError(
                f"multi_agent(policies=...): no agent uses the policy {policy_id!r}, and the other policies have "
                f"different {kind}s: {own}. Set its {kind}: policies={{{policy_id!r}: PolicySpec({kind}=...), ...}}."
            )
        found.append(given[i] or first)
    return found[0], found[1]
