"""Multi-agent environments: the base class, a wrapper that groups agents, and environments in which each agent acts in
a separate copy of a single-agent environment.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.env.env_context import EnvContext, copied
from jaxrl_stack.utils.closing import close_env
from jaxrl_stack.utils.multi_agent import ALL

ENV_STATE = "state"
"""Key of a global state in observations of several agents."""
GROUP_REWARDS = "_group_rewards"
"""Key in a group's infos: the list of its members' rewards."""
GROUP_INFO = "_group_info"
"""Key in a group's infos: the list of its members' infos."""


class MultiAgentEnv(gym.Env):
    """Environment with several agents; observations, actions, rewards and flags are dicts by agent.

    The agents in the newest observation dict act next, all others wait. An agent whose flag is set has ended: it takes
    no further part in that episode. ``"__all__"`` in the flags ends the episode for everybody. ``"__all__": False``
    continues it, although no agent may be present: then `step` gets ``{}``. Without ``"__all__"`` in either dict of
    flags an episode ends with the last agent. Rewards count from an agent's first action to its end.

    Subclasses set `possible_agents` and the spaces, and define `reset` and `step`.

    Attributes:
        agents: Ids of the agents that take part now; any hashables.
        possible_agents: Ids of all agents that may ever take part.
        observation_spaces: Space of one observation by agent.
        action_spaces: Space of one action by agent.
        observation_space: One space for all agents, or a `gymnasium.spaces.Dict` by agent; where
            `observation_spaces` is None or lacks an agent.
        action_space: One space for all agents, or a `gymnasium.spaces.Dict` by agent, as for observations.
    """

    observation_spaces: Any = None
    action_spaces: Any = None
    observation_space: Any = None
    action_space: Any = None
    agents: Any = ()
    possible_agents: Any = ()

    if not TYPE_CHECKING:
        __getattr__ = old_members(
            {"get_agent_ids": "Use possible_agents, a list.", "to_base_env": "Runners need none."}
        )

    def __init__(self):
        ids = list(getattr(self, "_agent_ids", ()))
        self.agents = list(self.agents) or ids
        self.possible_agents = list(self.possible_agents) or list(self.agents)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Starts an episode. This base method only seeds the random number generator `np_random`.

        Args:
            seed: Seed of the environment's random numbers; None: they continue.
            options: Options of the environment.

        Returns:
            ``(observations, infos)``: by agent; infos may lack agents.
        """
        return super().reset(seed=seed, options=options)

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        """Steps the environment with the actions of the acting agents; returns dicts by agent, ``(observations,
        rewards, terminateds, truncateds, infos)``.

        Args:
            action_dict: ``{agent: action}`` for exactly the agents that were in the newest observations and have not
                ended.

        Returns:
            ``(observations, rewards, terminateds, truncateds, infos)``: by agent, any of which may be missing. Agents
            that are cut off (truncated) need their last observation. The flags may have a key ``"__all__"``.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define step(action_dict). Write this method.")

    def render(self) -> Any:
        """Returns a frame, uint8 ``[H, W, 3]``; None if the environment does not render."""
        return None

    def get_observation_space(self, agent_id: Hashable) -> gym.Space:
        """Returns the space of one observation of an agent.

        Raises:
            ValueError: The environment has no space for it.
        """
        return self._space_of(agent_id, "observation_space")

    def get_action_space(self, agent_id: Hashable) -> gym.Space:
        """Returns the space of one action of an agent.

        Raises:
            ValueError: The environment has no space for it.
        """
        return self._space_of(agent_id, "action_space")

    @property
    def num_agents(self) -> int:
        """Number of agents that take part in the episode now, the length of `agents`."""
        return len(self.agents)

    @property
    def max_num_agents(self) -> int:
        """Number of possible agents."""
        return len(self.possible_agents)

    def with_agent_groups(
        self,
        groups: Mapping[str, Sequence[Hashable]],
        obs_space: gym.Space | None = None,
        act_space: gym.Space | None = None,
    ) -> GroupAgentsWrapper:
        """Wraps this environment in a `GroupAgentsWrapper`, so that each group of agents acts as one agent, and returns
        the wrapper.

        Args:
            groups: Ids of the members by id of the group. Agents in no group stay as they are.
            obs_space: `gymnasium.spaces.Tuple` of what a group observes; None: of its members' spaces.
            act_space: `gymnasium.spaces.Tuple` of a group's actions; None: of its members' spaces.

        Raises:
            ValueError: An agent is in two groups.
        """
        return GroupAgentsWrapper(self, groups, obs_space, act_space)

    def _space_of(self, agent_id: Hashable, kind: str) -> gym.Space:
        by_agent, single = getattr(self, f"{kind}s"), getattr(self, kind)
        for spaces in (by_agent, dict(single) if isinstance(single, gym.spaces.Dict) else None):
            if spaces is not None and agent_id in spaces:
                return spaces[agent_id]
        if single is None:
            known = [] if by_agent is None else list(by_agent)
            raise ValueError(
                f"{type(self).__name__} has no {kind} for agent {agent_id!r}: {kind}s has {known}, and {kind} is None. "
                f"Set self.{kind}s to a dict with an entry for each agent in possible_agents."
            )
        return single


class GroupAgentsWrapper(MultiAgentEnv):
    """Wrapper that turns each group of agents into one agent, whose observations and actions are lists with one entry
    per group member.

    A group is rewarded with the sum of its members' rewards. It has ended when all of its members have.

    Args:
        env: The environment.
        groups: Ids of the members by id of the group. Agents in no group stay as they are.
        obs_space: Observation space of a group, a `gymnasium.spaces.Tuple`; None: a Tuple of its members' spaces.
        act_space: Action space of a group, a `gymnasium.spaces.Tuple`; None: a Tuple of its members' spaces.

    Raises:
        ValueError: An agent is in two groups; or `reset` or `step` returns values for only some members of a group.
    """

    def __init__(
        self,
        env: MultiAgentEnv,
        groups: Mapping[Any, Sequence[Hashable]],
        obs_space: gym.Space | None = None,
        act_space: gym.Space | None = None,
    ):
        self.env = env
        self.groups = {group: list(members) for group, members in groups.items()}
        self.agent_id_to_group: dict[Hashable, Hashable] = {}
        for group, members in self.groups.items():
            for agent in members:
                if agent in self.agent_id_to_group:
                    raise ValueError(
                        f"groups={self.groups}: agent {agent!r} is in multiple groups. Name it in only one group."
                    )
                self.agent_id_to_group[agent] = group
        alone = [agent for agent in env.possible_agents if agent not in self.agent_id_to_group]
        self.possible_agents = [*self.groups, *alone]
        self.agents = list(self.possible_agents)
        super().__init__()
        self.observation_spaces = self._spaces(env.get_observation_space, obs_space)
        self.action_spaces = self._spaces(env.get_action_space, act_space)
        self.observation_space = obs_space
        self.action_space = act_space
        self.render_mode = env.render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self.env.reset(seed=seed, options=options)
        return self._grouped(obs, list), self._infos(infos)

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        obs, rewards, terminateds, truncateds, infos = self.env.step(self._ungrouped(action_dict))
        parts = self._grouped(rewards, list)
        grouped_infos = self._infos(infos)
        for group in self.groups:
            if group in parts:
                grouped_infos.setdefault(group, {})[GROUP_REWARDS] = parts[group]
                parts[group] = sum(parts[group])
        return (
            self._grouped(obs, list),
            parts,
            self._grouped(terminateds, all),
            self._grouped(truncateds, all),
            (grouped_infos),
        )

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _spaces(self, own: Callable[[Hashable], gym.Space], of_group: gym.Space | None) -> dict[Hashable, gym.Space]:
        spaces: dict[Hashable, gym.Space] = {}
        for agent in self.possible_agents:
            if agent not in self.groups:
                spaces[agent] = own(agent)
            else:
                members = self.groups[agent]
                spaces[agent] = of_group or gym.spaces.Tuple([own(member) for member in members])
        return spaces

    def _ungrouped(self, actions: Mapping[Any, Any]) -> dict[Any, Any]:
        by_agent = {}
        for agent, action in actions.items():
            members = self.groups.get(agent)
            if members is None:
                by_agent[agent] = action
                continue
            if len(action) != len(members):
                raise ValueError(
                    f"group {agent!r} has the members {members}, and got {len(action)} actions: {action!r}. Give one "
                    "action per member."
                )
            by_agent.update(zip(members, action, strict=True))
        return by_agent

    def _grouped(self, items: Mapping[Any, Any], join: Callable[[Any], Any]) -> dict[Any, Any]:
        """Converts a dict by agent to a dict by group of agents.

        The function `join` combines the values of a group's members to one value. Values of agents without a group do
        not change.
        """
        grouped: dict[Any, Any] = {}
        for agent, item in items.items():
            group = self.agent_id_to_group.get(agent, agent) if agent != ALL else ALL
            if group not in self.groups:
                grouped[agent] = item
            elif group not in grouped:
                missing = [member for member in self.groups[group] if member not in items]
                if missing:
                    raise ValueError(
                        f"Group {group!r} lacks an entry for its member {missing[0]!r} in {dict(items)}. Return "
                        "observations, rewards and flags of all members of a group in the same step."
                    )
                grouped[group] = join([items[member] for member in self.groups[group]])
        return grouped

    def _infos(self, infos: Mapping[Any, Any]) -> dict[Any, Any]:
        grouped: dict[Any, Any] = {}
        for agent, info in infos.items():
            group = self.agent_id_to_group.get(agent)
            if group is None:
                grouped[agent] = info
            else:
                grouped[group] = {GROUP_INFO: [infos.get(member, {}) for member in self.groups[group]]}
        return grouped


def make_multi_agent(env_name_or_creator: str | Callable[[EnvContext], gym.Env]) -> type[MultiAgentEnv]:
    """Creates an environment class in which each agent acts in a separate copy of a single-agent environment.

    The config item ``num_agents`` (default 1) is the number of agents; their ids are 0, 1, ... The rest of the config
    goes to the copies. If the environment is reset with a seed, each copy gets a different seed. A copy that has ended
    waits for the others. The episode ends when all copies have ended: it is terminated if every copy terminated, else
    truncated.

    Args:
        env_name_or_creator: An id of gymnasium, or a function of an `EnvContext` that makes a copy.

    Returns:
        A subclass of `MultiAgentEnv` whose objects are made with a config; its `envs` are the copies.
    """

    def create(context: EnvContext) -> gym.Env:
        if isinstance(env_name_or_creator, str):
            return gym.make(env_name_or_creator, **context)
        return env_name_or_creator(context)

    class MultiEnv(_Copies):
        def __init__(self, config: Mapping[str, Any] | None = None):
            super().__init__(create, config)

    return MultiEnv


class _Copies(MultiAgentEnv):
    """Base class of the environments that `make_multi_agent` creates: one copy of a single-agent environment
    per agent.
    """

    def __init__(self, create: Callable[[EnvContext], gym.Env], config: Mapping[str, Any] | None):
        super().__init__()
        context = copied(config) if isinstance(config, EnvContext) else EnvContext(config or {}, worker_index=0)
        num_agents = context.pop("num_agents", 1)
        if isinstance(num_agents, bool) or not isinstance(num_agents, int | np.integer) or num_agents < 1:
            raise ValueError(
                f"env_config={{'num_agents': {num_agents!r}}}: num_agents must be an integer of at least 1."
            )
        self.envs = [create(copied(context)) for _ in range(num_agents)]
        self.agents = list(range(num_agents))
        self.possible_agents = list(self.agents)
        self.observation_spaces = {i: env.observation_space for i, env in enumerate(self.envs)}
        self.action_spaces = {i: env.action_space for i, env in enumerate(self.envs)}
        self.metadata = self.envs[0].metadata
        self.terminateds: set[int] = set()
        self.truncateds: set[int] = set()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.terminateds, self.truncateds = set(), set()
        # Not seed + i, which is the seed of another environment of a vector.
        seeds = [None] * len(self.envs)
        if seed is not None:
            seeds = [int(own) for own in np.random.SeedSequence(seed).generate_state(len(self.envs))]
        resets = [env.reset(seed=own, options=options) for env, own in zip(self.envs, seeds, strict=True)]
        return {i: obs for i, (obs, _) in enumerate(resets)}, {i: info for i, (_, info) in enumerate(resets)}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        done = self.terminateds | self.truncateds
        wrong = [i for i in action_dict if i in done or i not in self.action_spaces]
        if wrong or not action_dict:
            raise ValueError(
                f"step() got actions of the agents {list(action_dict)}, but the acting agents are "
                f"{[i for i in self.agents if i not in done]}. Pass actions of these agents only, or call reset()."
            )
        columns: tuple[dict[Any, Any], ...] = ({}, {}, {}, {}, {})
        for i, action in action_dict.items():
            for column, value in zip(columns, self.envs[i].step(action), strict=True):
                column[i] = value
        obs, rewards, terminateds, truncateds, infos = columns
        self.terminateds |= {i for i, flag in terminateds.items() if flag}
        self.truncateds |= {i for i, flag in truncateds.items() if flag}
        ended = len(self.terminateds | self.truncateds) == len(self.envs)
        terminateds[ALL] = len(self.terminateds) == len(self.envs)
        truncateds[ALL] = ended and not terminateds[ALL]
        return obs, rewards, terminateds, truncateds, infos

    @property
    def render_mode(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Render mode of the agents' single-agent environments; an assignment sets the mode of all of them."""
        return self.envs[0].render_mode

    @render_mode.setter
    def render_mode(self, mode: str | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        for env in self.envs:
            env.unwrapped.render_mode = mode

    def render(self) -> Any:
        """Returns the frames of all agents' environments, side by side in one image. If the frames are no arrays,
        returns only the first agent's frame.
        """
        frames: list[Any] = [env.render() for env in self.envs]
        return np.concatenate(frames, axis=1) if isinstance(frames[0], np.ndarray) else frames[0]

    def close(self) -> None:
        for env in self.envs:
            close_env(env)


def policies_missing(name: str, agents: Any) -> str:
    """Returns the error message for a config that has no policies for the agents of a multi-agent environment."""
    return (
        f"{name} has the agents {list(agents)}, but the config has no policies for them. Name policies and map agents "
        "to them: multi_agent(policies={'shared'}, policy_mapping_fn=lambda agent_id, episode, **kwargs: 'shared')."
    )


def spaces_by_agent(env: MultiAgentEnv, kind: str) -> gym.spaces.Dict:
    """Returns the spaces of all possible agents as a `Dict` space; `kind` is "observation_space" or "action_space"."""
    # gymnasium takes ids other than texts, too.
    own: Any = {agent: getattr(env, f"get_{kind}")(agent) for agent in env.possible_agents}
    return gym.spaces.Dict(own)


__all__ = ["ENV_STATE", "GROUP_INFO", "GROUP_REWARDS", "GroupAgentsWrapper", "MultiAgentEnv", "make_multi_agent"]
