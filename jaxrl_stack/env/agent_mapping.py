"""Which module acts for which agent of an environment that is a part of a compiled program."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NoReturn

from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.jax_env import JaxEnv

_CALLS = 8
"""How often the mapping function is asked for each agent: one that draws random numbers gives itself away."""


class _NoEpisode:
    """Stands for an episode that a compiled program does not have."""

    def __init__(self, refuse: Callable[[str], NoReturn]):
        object.__setattr__(self, "_refuse", refuse)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        object.__getattribute__(self, "_refuse")(f"reads episode.{name}")


def module_map_of(config: AlgorithmConfig, env: JaxEnv | None) -> ModuleMap:
    """The map that holds in a JAX environment, whoever its agents are.

    Args:
        config: The algorithm's config.
        env: The environment; None for none.

    Raises:
        ValueError: The environment has several agents and the config has no policies for them, or the other way round;
            an agent's policy is not known, or is another one in each call, or depends on the episode.
    """
    if isinstance(env, MultiAgentJaxEnv):
        agents = list(env.possible_agents)
        if not config.is_multi_agent:
            raise ValueError(
                f"{env.name} has the agents {agents}, and the config has no policies for them. Say which there are, "
                f"and who uses which: multi_agent(policies={{'shared'}}, policy_mapping_fn=lambda agent_id, episode, "
                f"**kwargs: 'shared')."
            )
        return ModuleMap({agent: _policy_of(config, env, agent) for agent in agents}, is_multi_agent=True)
    if env is not None and config.is_multi_agent:
        raise ValueError(
            f"multi_agent(policies={sorted(config._policy_ids())}) is for environments of several agents, and "
            f"{env.name} has one. Leave multi_agent() out, or take a MultiAgentJaxEnv."
        )
    return config.module_map


def _policy_of(config: AlgorithmConfig, env: MultiAgentJaxEnv, agent: Hashable) -> str:
    """The policy of one agent, by the config's function."""
    function, known = config.policy_mapping_fn, sorted(config._policy_ids())
    called = f"multi_agent(policy_mapping_fn={getattr(function, '__qualname__', function)})"

    def refuse(what: str) -> NoReturn:
        raise ValueError(
            f"{called} {what}, for the agent {agent!r} of {env.name}. In a JAX environment who uses which policy is a "
            f"part of the compiled program: let it follow from the agent's id alone, or take the environment's twin on "
            f"the host, a MultiAgentEnv."
        )

    found = {function(agent, _NoEpisode(refuse)) for _ in range(_CALLS)}
    if len(found) > 1:
        refuse(f"returns another policy in other calls ({sorted(map(str, found))})")
    (policy,) = found
    if policy not in known:
        raise ValueError(
            f"{called} returns {policy!r} for the agent {agent!r} of {env.name}; the policies are {known}. Return one "
            f"of these, or name it in multi_agent(policies=...)."
        )
    return policy
