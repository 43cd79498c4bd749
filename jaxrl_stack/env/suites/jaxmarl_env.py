"""Adapter for JaxMARL's multi-agent environments, with JaxMARL's ids, such as "jaxmarl/MPE_simple_spread_v3"."""

# pyright: reportMissingImports=false
# The suite need not be installed where this is checked.

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxmarl.registration import make, registered_envs

from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.suites import jaxmarl_tables as tables
from jaxrl_stack.env.suites.suite_env import SuiteEnv
from jaxrl_stack.utils.multi_agent import ALL
from jaxrl_stack.utils.notices import notice_once


class JaxMarlState(NamedTuple):
    """State of a `JaxMarlEnv`.

    Attributes:
        own: State of the suite's environment.
        t: int32, number of steps.
        ended: bool ``[agents]``, which agents have ended; None if all agents end together.
    """

    own: Any
    t: jax.Array
    ended: jax.Array | None


class JaxMarlEnv(SuiteEnv, MultiAgentJaxEnv):
    """JaxMARL environment. Settings in `env_config` are constructor arguments of the JaxMARL class of this environment.

    The settings `scenario` of SMAX and `layout` of overcooked may be names. An episode that ends at its time limit
    (`TRUNCATES_AT`) is truncated; any other end terminates it. If the environment restricts actions, observations are
    ``{"action_mask": ..., "observations": ...}``. An agent that ends before the others gets no later rewards of its
    team.
    """

    prefix = "jaxmarl"

    @classmethod
    def ids(cls) -> Sequence[str]:
        return [name for name in registered_envs if name in {*tables.TRUNCATES_AT, *tables.WITHOUT_TIME_LIMIT}]

    def setup(self, env_id: str, config: dict[str, Any]) -> None:
        if config:
            self.refuse_unknown(config, tables.settings_of(env_id))
        self.env: Any = make(env_id, **tables.with_objects(self.name, env_id, config))
        self.reset_is_cheap = env_id.startswith(tables.CHEAP_RESETS)
        self.possible_agents = tuple(self.env.agents)
        limit, early = tables.TRUNCATES_AT.get(env_id), tables.ENDS_EARLY.get(env_id)
        self._limit = None if limit is None else limit(self.env)
        self._ends_early = early is not None and early(self.env)
        legal = tables.LEGAL_ACTIONS.get(env_id)
        self._legal = None if legal is None else getattr(self.env, legal)
        self.action_spaces = {a: tables.gymnasium_space(self.env.action_space(a)) for a in self.env.agents}
        self.observation_spaces = tables.observation_spaces(self.env, self._legal)
        if self._limit is None:
            notice_once(f"{self.name} has no known time limit: every end of an episode counts as terminated.")

    @property
    def everybody_acts(self) -> bool:
        return not self._ends_early

    def acts(self, state: JaxMarlState) -> Mapping[Any, Any]:
        if state.ended is None:
            return dict.fromkeys(self.possible_agents, True)
        return {agent: ~state.ended[i] for i, agent in enumerate(self.possible_agents)}

    def reset_env(self, key: jax.Array, params: Any) -> tuple[Any, Any]:
        obs, own = self.env.reset(jax.random.key_data(key))
        ended = jnp.zeros(len(self.possible_agents), bool) if self._ends_early else None
        return self._observed(obs, own), JaxMarlState(own, jnp.int32(0), ended)

    def step_env(self, key: jax.Array, state: JaxMarlState, action: Mapping[Any, Any], params: Any) -> Any:
        # Some take them in this order, by whatever name.
        actions = {agent: action[agent] for agent in self.possible_agents}
        obs, own, rewards, dones, infos = self.env.step_env(jax.random.key_data(key), state.own, actions)
        t, over = state.t + 1, dones[ALL]
        is_late = jnp.bool_(False) if self._limit is None else over & (t >= self._limit)
        rewards = {agent: rewards[agent] for agent in self.possible_agents}
        terminateds, ended = {}, state.ended
        if ended is not None:
            done = jnp.stack([dones[agent] for agent in self.possible_agents])
            # Where all flags are set in the last step, time has set them.
            ends = done & ~ended & ~(is_late & done.all())
            terminateds = {agent: ends[i] for i, agent in enumerate(self.possible_agents)}
            ended = ended | done | over
        terminateds = {**terminateds, ALL: over & ~is_late}
        return self._observed(obs, own), JaxMarlState(own, t, ended), rewards, terminateds, {ALL: is_late}, infos

    def _observed(self, obs: Mapping[Any, Any], own: Any) -> dict[Any, Any]:
        seen = {agent: obs[agent] for agent in self.possible_agents}
        if self._legal is None:
            return seen
        legal = self._legal(own)
        return {agent: {"action_mask": legal[agent], "observations": one} for agent, one in seen.items()}


__all__ = ["JaxMarlEnv", "JaxMarlState"]
