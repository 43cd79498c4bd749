"""Mapping of agents to modules, for JAX environments and for host environments, which are stepped in Python."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import gymnasium as gym

from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.env.multi_agent_env import policies_missing
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.signatures import call_users
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.env.jax_env import JaxEnv

_CALLS = 8
"""How often the mapping function is asked for each agent: one that draws random numbers gives itself away."""
_TRIED_EPISODES = 64
"""With how many episodes it is found out whether a function looks at them, on the host."""


class NoEpisode:
    """Placeholder for the episode argument of a policy mapping function in a compiled program; reading an attribute
    raises an error.
    """

    def __init__(self, refuse: Callable[[str], NoReturn]):
        object.__setattr__(self, "_refuse", refuse)

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        object.__getattribute__(self, "_refuse")(f"reads episode.{name}")

    def __len__(self) -> int:
        refuse: Callable[[str], NoReturn] = object.__getattribute__(self, "_refuse")
        refuse("reads len(episode)")


def module_map_of(config: AlgorithmConfig, env: JaxEnv | None) -> ModuleMap:
    """Builds the `ModuleMap` from agents to modules for a JAX environment, and checks the policy mapping function.

    Args:
        config: The algorithm's config.
        env: The environment; None for none.

    Raises:
        ValueError: The environment has several agents and the config has no policies for them, or the other way round;
            the policy of an agent is unknown, differs between calls, or depends on the episode.
    """
    if isinstance(env, MultiAgentJaxEnv):
        agents = list(env.possible_agents)
        if not config.is_multi_agent:
            raise ValueError(policies_missing(env.name, agents))
        hero = None if config.opponents is None else agents[0]
        return ModuleMap({agent: _policy_of(config, env, agent) for agent in agents}, is_multi_agent=True, hero=hero)
    if env is not None and config.is_multi_agent:
        raise ValueError(
            f"multi_agent(policies={sorted(config._policy_ids())}) is for environments of several agents, and "
            f"{env.name} has one. Leave multi_agent() out, or take a MultiAgentJaxEnv."
        )
    return config.module_map


def steps_counted_per_env_step(config: AlgorithmConfig, env: JaxEnv | None) -> int:
    """Returns the number of steps that one env step counts as: 1, or the number of agents.

    The train batch size, for example, counts steps like this. The number of agents is returned if `count_steps_by` is
    "agent_steps" and `env` is a multi-agent JAX environment.

    Args:
        config: The algorithm's config; only ``count_steps_by="agent_steps"`` makes a difference.
        env: The JAX environment; None for none.

    Raises:
        NotImplementedError: Agents' steps are to be counted, and agents of `env` may wait while others act.
    """
    if config.count_steps_by == "env_steps" or not isinstance(env, MultiAgentJaxEnv):
        return 1
    if not env.everybody_acts:
        raise NotImplementedError(
            f"multi_agent(count_steps_by={config.count_steps_by!r}) is not supported for {env.name}: agents may skip "
            "steps, because the environment overrides acts(), but a compiled program needs a fixed number of agent "
            "steps. Leave count_steps_by out, or write the environment as a MultiAgentEnv on the host."
        )
    return len(env.possible_agents)


def _policy_of(config: AlgorithmConfig, env: MultiAgentJaxEnv, agent: Hashable) -> str:
    """Returns the id of the policy that controls an agent of a JAX environment.

    With ``multi_agent(opponents=Snapshots(of=<policy>))``, every agent has the policy ``<policy>``, because opponents
    are stored copies of this policy. Otherwise, returns the checked result of the policy mapping function.
    """
    if config.opponents is not None:
        return config.opponents.of
    function = config.policy_mapping_fn
    called = _called(function)

    def refuse(what: str) -> NoReturn:
        raise ValueError(
            f"{called} cannot be used for the agent {agent!r} of {env.name}: the function {what}. In a JAX "
            "environment, policies are fixed when the program is compiled: choose them by agent id only, or write the "
            "environment as a MultiAgentEnv on the host."
        )

    found = [asked(function, agent, NoEpisode(refuse)) for _ in range(_CALLS)]
    if any(policy != found[0] for policy in found):
        refuse(f"returns another policy in other calls ({sorted(set(map(str, found)))})")
    return _known_policy(found[0], function, agent, env.name, config._policy_ids())


def asked(function: Any, agent: Hashable, episode: Any) -> Any:
    """Calls a user's policy mapping function for an agent and an episode; if the function raises, the error names the
    config setting and the agent.
    """
    return call_users(function, f"{_called(function)}, called with ({agent!r}, episode)", agent, episode)


def _called(function: Any) -> str:
    """Returns the text for a policy mapping function in error messages: ``multi_agent(policy_mapping_fn=<name>)``."""
    return f"multi_agent(policy_mapping_fn={getattr(function, '__qualname__', function)})"


def _known_policy(policy: Any, function: Any, agent: Hashable, env_name: str, known: Collection[str]) -> str:
    """Checks that the policy that a mapping function returned for an agent exists; returns the policy.

    Raises:
        ValueError: It is no policy of the config.
    """
    if not isinstance(policy, str) or policy not in known:
        raise ValueError(
            f"{_called(function)} returns {policy!r} for the agent {agent!r} of {env_name}; the policies are "
            f"{sorted(known)}. Return one of these, or add the policy to multi_agent(policies=...)."
        )
    return policy


class AgentSpaces(NamedTuple):
    """Observation spaces and action spaces of all possible agents of an environment, as two mappings by agent."""

    observation_spaces: Mapping[Any, gym.Space]
    action_spaces: Mapping[Any, gym.Space]


class HostMapping:
    """Mapping of agents to modules in multi-agent environments that are stepped in Python: calls the config's policy
    mapping function, once per agent and episode.

    Args:
        config: The algorithm's config.
        spaces: Spaces of all possible agents.
        name: Name of the environment in messages.

    Attributes:
        module_map: Map of agents to modules. If the module of an agent differs between episodes, the map lists all
            agents that each module may control.

    Raises:
        ValueError: `possible_agents` is empty, or the mapping function returns an unknown policy.
    """

    def __init__(self, config: AlgorithmConfig, spaces: AgentSpaces, name: str):
        self._function, self._known, self._name = config.policy_mapping_fn, set(config._policy_ids()), name
        agents = list(spaces.observation_spaces)
        if not agents:
            raise ValueError(
                f"environment({name!r}) has several agents, but its possible_agents is empty. In the "
                "environment's __init__, set self.possible_agents to the ids of all agents that may appear."
            )
        found: dict[Hashable, dict[str, None]] = {agent: {} for agent in agents}
        for _ in range(_TRIED_EPISODES):
            episode = MultiAgentEpisode()
            for agent in agents:
                found[agent][self.module_of(agent, episode)] = None
        slots, assigned = {}, {}
        if any(len(modules) > 1 for modules in found.values()):
            slots = _slots(spaces, found)
            assigned = {mid: tuple(agent for agent in agents if mid in found[agent]) for mid, agents in slots.items()}
        self.module_map = ModuleMap({agent: next(iter(own)) for agent, own in found.items()}, True, slots, assigned)

    def module_of(self, agent: Hashable, episode: MultiAgentEpisode) -> str:
        """Calls the policy mapping function for an agent in an episode, and returns the id of the module that acts for
        the agent.

        Raises:
            ValueError: The mapping function returns no policy of the config.
        """
        policy = asked(self._function, agent, episode)
        return _known_policy(policy, self._function, agent, self._name, self._known)

    def refuse(self, agent: Hashable, policy: str) -> NoReturn:
        """Raises an error for an agent that the module `policy` cannot control.

        Either the agent is not among the environment's `possible_agents`, or it is not among the agents that this
        module may control. `HostMapping` determined these agents from trial calls of the policy mapping function and
        from the agents' spaces.

        Raises:
            MultiAgentEnvError: Always.
        """
        if agent not in self.module_map.module_of:
            raise MultiAgentEnvError(
                f"environment({self._name!r}) returned the agent {agent!r}, which is not among its possible_agents="
                f"{list(self.module_map.module_of)}. Add it to possible_agents."
            )
        raise MultiAgentEnvError(
            f"{_called(self._function)} returns {policy!r} for the agent {agent!r} of {self._name}, but returned only "
            f"other policies for this agent in {_TRIED_EPISODES} trial episodes. When the EnvRunner is built, these "
            "trial episodes determine which agents each policy may control. Choose policies by episode.id_, which is "
            "different in each trial episode, so that the trial episodes show all choices. Give agents that share a "
            "policy equal spaces."
        )


def _slots(spaces: AgentSpaces, found: Mapping[Hashable, Mapping[str, None]]) -> dict[str, tuple[Hashable, ...]]:
    """Returns the agents that each module may control, ``{module_id: agents}``.

    A module may control each agent for which the policy mapping function returned the module in trial episodes. It may
    also control all agents whose spaces equal the spaces of the first such agent.
    """
    slots = {}
    for policy in dict.fromkeys(policy for own in found.values() for policy in own):
        first = next(agent for agent, own in found.items() if policy in own)
        slots[policy] = tuple(
            agent for agent in found if policy in found[agent] or _have_equal_spaces(spaces, agent, first)
        )
    return slots


def _have_equal_spaces(spaces: AgentSpaces, agent: Hashable, other: Hashable) -> bool:
    return all(difference(own[agent], own[other]) is None for own in spaces)
