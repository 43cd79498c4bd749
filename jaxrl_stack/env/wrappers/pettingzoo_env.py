"""Adapters for PettingZoo's environments, which the user creates; the package itself is not imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.utils.multi_agent import ALL


class _PettingZoo(MultiAgentEnv):
    """Common base of the wrappers of PettingZoo's turn-based and parallel environments.

    Args:
        env: PettingZoo's environment.

    Attributes:
        observation_space: `gymnasium.spaces.Dict` by agent.
        action_space: Likewise.
    """

    def __init__(self, env: Any):
        self._suite_env = env
        self.possible_agents = list(env.possible_agents)
        self.agents = list(self.possible_agents)
        super().__init__()
        self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
        self.observation_space = _dict(self.observation_spaces)
        self.action_space = _dict(self.action_spaces)
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env, "render_mode", None)

    def render(self) -> Any:
        """Returns the frame of the PettingZoo environment; None if that environment was created without render_mode."""
        return None if self._suite_env.unwrapped.render_mode is None else self._suite_env.render()

    def close(self) -> None:
        self._suite_env.close()

    @property
    def get_sub_environments(self) -> Any:
        """Returns PettingZoo's environment inside of this adapter, without PettingZoo's wrappers."""
        return self._suite_env.unwrapped

    @staticmethod
    def _with_all(terminateds: dict[Any, Any], truncateds: dict[Any, Any], is_over: bool) -> tuple[Any, Any]:
        """Returns copies of `terminateds` and `truncateds` with a value for "__all__".

        If `is_over`, the value is True in one of the copies: in `terminateds` if all its flags are True, else in
        `truncateds`. Otherwise, both values are False.
        """
        terminated = is_over and all(map(bool, terminateds.values()))
        return {**terminateds, ALL: terminated}, {**truncateds, ALL: is_over and not terminated}


class PettingZooEnv(_PettingZoo):
    """Wrapper that makes a PettingZoo `AECEnv` a `MultiAgentEnv`: agents act one after the other.

    The agent whose turn it is observes, and gets the sum of its rewards since its last turn. Agents that have ended get
    their last observation and reward in the step in which their turn would come.

    Args:
        env: The environment, such as ``pettingzoo.classic.connect_four_v3.env()``.
    """

    def __init__(self, env: Any):
        self.env = env
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        agent = self.env.agent_selection
        return {agent: self.env.observe(agent)}, {agent: self.env.infos[agent]}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        env = self.env
        if env.agent_selection not in action_dict:
            raise ValueError(
                f"It is the turn of {env.agent_selection!r}, but step() got actions of {[*action_dict]}. Pass only "
                f"the action of {env.agent_selection!r}."
            )
        env.step(action_dict[env.agent_selection])
        columns: tuple[dict[Any, Any], ...] = ({}, {}, {}, {}, {})
        while env.agents:
            agent = env.agent_selection
            outcome = env.last()
            for column, value in zip(columns, outcome, strict=True):
                column[agent] = value
            if not (outcome[2] or outcome[3]):
                break
            env.step(None)
        self.agents = list(env.agents)
        obs, rewards, terminateds, truncateds, infos = columns
        return obs, rewards, *self._with_all(terminateds, truncateds, not env.agents), infos


class ParallelPettingZooEnv(_PettingZoo):
    """Wrapper that makes a PettingZoo `ParallelEnv` a `MultiAgentEnv`: all agents act at once.

    Args:
        env: The environment, such as ``pettingzoo.classic.rps_v2.parallel_env()``.
    """

    def __init__(self, env: Any):
        self.par_env = env
        super().__init__(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        obs, infos = self.par_env.reset(seed=seed, options=options)
        self.agents = list(self.par_env.agents)
        return dict(obs), dict(infos or {})

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        obs, rewards, terminateds, truncateds, infos = self.par_env.step(dict(action_dict))
        # Some leave an agent in the list that has ended.
        is_over = all(terminateds[agent] or truncateds[agent] for agent in terminateds)
        self.agents = list(self.par_env.agents)
        return dict(obs), dict(rewards), *self._with_all(dict(terminateds), dict(truncateds), is_over), dict(infos)


def _dict(by_agent: Mapping[Any, gym.Space]) -> gym.spaces.Dict:
    own: Any = dict(by_agent)
    return gym.spaces.Dict(own)


__all__ = ["ParallelPettingZooEnv", "PettingZooEnv"]
