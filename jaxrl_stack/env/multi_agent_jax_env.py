"""Multi-agent environments that run inside compiled programs."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.env.jax_env import AutoResetJaxEnv
from jaxrl_stack.env.jax_env_outcomes import parts_of, strongly_typed, typed_signals
from jaxrl_stack.utils.multi_agent import ALL

PARTS = ("obs", "state", "rewards", "terminateds", "truncateds", "infos")


class MultiAgentJaxStep(NamedTuple):
    """Result of one step of one multi-agent environment, a pytree like `JaxStep`. Observations, rewards and the flags
    of agents are dicts, ``{agent: value}``.

    Attributes:
        obs: Observations by agent to act on next: the first of the next episode if this step ended one. They are
            undefined for agents that do not act next.
        state: Environment state to step next, after a reset if there was one.
        reward: float32 by agent.
        terminated: bool scalar, the episode has ended by itself for all agents.
        truncated: bool scalar, it was cut off for all agents. Ignored where `terminated` is set as well.
        final_obs: Observations by agent after this step, before any reset.
        info: Dict of further arrays.
        terminateds: bool by agent, this step was the agent's last one, and it has ended by itself.
        truncateds: bool by agent, the agent was cut off after this step: the value after it is that of its `final_obs`.
        acts: bool by agent, whether the agent acts on its `final_obs` if there is no reset.
    """

    obs: Any
    state: Any
    reward: dict[Any, jax.Array]
    terminated: jax.Array
    truncated: jax.Array
    final_obs: Any
    info: dict[str, Any]
    terminateds: dict[Any, jax.Array]
    truncateds: dict[Any, jax.Array]
    acts: dict[Any, jax.Array]


class MultiAgentJaxEnv(AutoResetJaxEnv):
    """Base class of multi-agent environments written as pure functions.

    Observations and actions are dicts with an entry for each agent in `possible_agents`; dicts of rewards and flags may
    omit agents.

    Subclasses set `possible_agents` and the spaces, and write `reset_env` and `step_env`, which are called for one
    environment; and `acts`, if not everybody acts in every step. Their return values follow `MultiAgentEnv`::

        def reset_env(self, key, params):
            return obs, state  # obs: {agent: observation}, of all possible agents

        def step_env(self, key, state, actions, params):
            return obs, state, rewards, terminateds, truncateds, infos

    `actions` has an entry for each agent; ignore the entry of an agent that does not act. Agents without a reward
    get none; agents without a flag continue. An agent's flag says that this step was its last one in the episode;
    ``"__all__"`` ends the episode for everybody; where it is False, the episode continues, although no agent may act.
    Without ``"__all__"`` in either dict of flags the episode ends with the last agent that may act. Rewards count from
    an agent's first action to its end.

    Args:
        config: The `env_config` of ``config.environment(MyEnv, env_config=...)``.

    Attributes:
        possible_agents: Ids of all agents that may appear: hashables that can be sorted.
        observation_spaces: Space of one observation by agent.
        action_spaces: Space of one action by agent.
    """

    step_type = MultiAgentJaxStep
    possible_agents: tuple[Hashable, ...]
    observation_spaces: Mapping[Any, gym.Space]
    action_spaces: Mapping[Any, gym.Space]

    @property
    def observation_space(self) -> gym.Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Observation spaces of all agents as one `gymnasium.spaces.Dict`, ``{agent: observation space}``."""
        return _by_agent(self.observation_spaces, self.possible_agents)

    @property
    def action_space(self) -> gym.Space:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Action spaces of all agents as one `gymnasium.spaces.Dict`, ``{agent: action space}``."""
        return _by_agent(self.action_spaces, self.possible_agents)

    @property
    def everybody_acts(self) -> bool:
        """Whether all agents act in every step. If True, compiled programs contain no code for agents that wait."""
        return type(self).acts is MultiAgentJaxEnv.acts

    def acts(self, state: Any) -> Mapping[Any, Any]:
        """Returns which agents act next, ``{agent: bool}``; by default, all agents. Subclasses whose agents take turns
        override this method.

        Args:
            state: State from `reset_env` or `step_env`.

        Returns:
            bool by agent: whether it acts on the observation that came with this state. By default, all agents act.
        """
        return dict.fromkeys(self.possible_agents, True)

    @abc.abstractmethod
    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        """Starts an episode of the environment; returns ``(obs, state)``, where `obs` is a dict with an observation of
        each agent, ``{agent: observation}``.
        """

    @abc.abstractmethod
    def step_env(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        """Steps without a reset: returns ``(obs, state, rewards, terminateds, truncateds, infos)``. Observations,
        rewards and flags are dicts, ``{agent: value}``.
        """

    def who_acts(self, state: Any) -> dict[Any, jax.Array]:
        """Returns which agents act next, ``{agent: scalar bool array}`` with an entry for every agent: False for agents
        that are missing from the result of `acts`.
        """
        return self._flags("acts", self.acts(state), default=False)

    @property
    def _step(self) -> Callable[..., Any]:
        return self._whole_step

    def _whole_step(self, key: jax.Array, state: Any, action: Any, params: Any) -> Any:
        """Steps the environment without a reset, and adds entries for the agents that dicts of rewards and flags omit.

        Calls `step_env`, which returns these dicts. Also computes whether the episode has ended and which agents act
        next. Returns ``(obs, state, rewards, terminated, truncated, infos, terminateds, truncateds, acts)``.
        """
        outcome = self.step_env(key, state, action, params)
        obs, state, rewards, terminateds, truncateds, infos = parts_of(f"{self.name}.step_env", outcome, PARTS)
        acts = self.who_acts(strongly_typed(state))
        terminateds, all_terminated = self._with_all("terminateds", terminateds)
        truncateds, all_truncated = self._with_all("truncateds", truncateds)
        if all_terminated is None and all_truncated is None:
            # Nothing is said of all of them: the episode ends with the last one.
            nobody = jnp.logical_not(functools.reduce(jnp.logical_or, self._goes_on(acts, terminateds, truncateds)))
            is_cut = functools.reduce(jnp.logical_or, truncateds.values())
            all_terminated, all_truncated = jnp.logical_and(nobody, ~is_cut), jnp.logical_and(nobody, is_cut)
            # It ends for agents that wait, too: their last steps are complete.
            ended = {agent: terminateds[agent] | truncateds[agent] for agent in self.possible_agents}
            terminateds = {agent: flag | (all_terminated & ~ended[agent]) for agent, flag in terminateds.items()}
            truncateds = {agent: flag | (all_truncated & ~ended[agent]) for agent, flag in truncateds.items()}
        terminated, truncated = (jnp.asarray(False if x is None else x) for x in (all_terminated, all_truncated))
        rewards = {agent: self._known("rewards", rewards).get(agent, 0.0) for agent in self.possible_agents}
        return obs, state, rewards, terminated, truncated, infos, terminateds, truncateds, acts

    def _goes_on(self, acts: Any, terminateds: Any, truncateds: Any) -> list[jax.Array]:
        """Returns one scalar bool array per agent: whether the agent can act in the next step.

        If all agents act in every step, an agent can act until it is terminated or truncated. If agents may wait, the
        result is the values of `acts`.
        """
        if not self.everybody_acts:
            return list(acts.values())
        return [~(terminateds[agent] | truncateds[agent]) for agent in self.possible_agents]

    def _with_all(self, name: str, flags: Any) -> tuple[dict[Any, jax.Array], Any]:
        """Splits the terminated or truncated flags of one step, `flags`, into ``({agent: flag}, flag of "__all__")``.

        Agents without an entry get False. If the flag of "__all__" is True, all agents get True; if this flag is
        missing, it is returned as None.
        """
        of_all = flags.get(ALL) if isinstance(flags, Mapping) else None
        own = self._flags(name, {agent: flag for agent, flag in dict(flags).items() if agent != ALL}, default=False)
        if of_all is None:
            return own, None
        return {agent: jnp.logical_or(flag, of_all) for agent, flag in own.items()}, of_all

    def _flags(self, name: str, flags: Any, *, default: bool) -> dict[Any, jax.Array]:
        known = self._known(name, flags)
        return {agent: jnp.asarray(known.get(agent, default), bool) for agent in self.possible_agents}

    def _known(self, name: str, of_agents: Any) -> Mapping[Any, Any]:
        """Returns the dict `of_agents` unchanged, after checking that all of its keys are in `possible_agents`.

        Raises:
            ValueError: It is no dict, or has unknown agents.
        """
        if not isinstance(of_agents, Mapping):
            raise ValueError(
                f"{self.name}: {name} is a {type(of_agents).__name__}, but has to be a dict {{agent: value}}."
            )
        if unknown := [agent for agent in of_agents if agent not in self.possible_agents]:
            raise ValueError(
                f"{self.name}: {name} has {unknown}, which are not among possible_agents={list(self.possible_agents)}. "
                f"Add them to possible_agents."
            )
        return of_agents

    def _stepped(self, outcome: Any) -> Any:
        obs, state, rewards, terminated, truncated, info, terminateds, truncateds, acts = outcome
        obs = self._conformed(obs)
        typed = {agent: typed_signals(self.name, own, terminated, truncated) for agent, own in rewards.items()}
        _, terminated, truncated = next(iter(typed.values()))
        return MultiAgentJaxStep(
            obs=obs,
            state=strongly_typed(state),
            reward={agent: own[0] for agent, own in typed.items()},
            terminated=terminated,
            truncated=truncated,
            final_obs=obs,
            info=strongly_typed(info),
            terminateds=terminateds,
            truncateds=truncateds,
            acts=acts,
        )


def _by_agent(of: Mapping[Any, gym.Space], agents: tuple[Hashable, ...]) -> gym.spaces.Dict:
    own: Any = {agent: of[agent] for agent in agents}  # gymnasium takes ids other than texts, too
    return gym.spaces.Dict(own)
