"""Probe environments of two agents: each isolates one link between agents and learning, and has a known answer.

The agents are "first" and "second"; observations are float32 ``[1]`` in [-1, 1], there are two actions. If an algorithm
fails one, the docstring names the fault. The values hold for agents with discount ``gamma`` that take the actions of
`optimal_actions`; if it returns None, every policy has the same value. `HostProbe` steps any of them on the host.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv

FIRST, SECOND = "first", "second"


class MultiAgentProbe(MultiAgentJaxEnv):
    """Base of the probes: two agents with one feature and two actions each, and a known solution."""

    possible_agents = (FIRST, SECOND)
    observation_spaces = dict.fromkeys(possible_agents, Box(-1.0, 1.0, (1,), np.float32))
    action_spaces = dict.fromkeys(possible_agents, Discrete(2))

    @abc.abstractmethod
    def expected_values(self, gamma: float) -> dict[str, dict[float, float]]:
        """Exact value of every observation on which an agent acts, ``{agent: {observation: value}}``."""

    def optimal_actions(self) -> dict[str, dict[float, int]] | None:
        """Best action for each observation of `expected_values`, ``{agent: {observation: action}}``; None if all
        actions are equally good.
        """
        return None


class OwnRewardProbe(MultiAgentProbe):
    """Probe of the rewards' agents: one step, in which the first agent gets 1 and the second one -1.

    The first agent observes -1, the second one 1. V(-1) = 1, V(1) = -1, with one policy for both or one for each. Fails
    if rewards or observations go to the wrong agent.
    """

    def reset_env(self, key, params):
        return _seen(-1.0, 1.0), jnp.int32(0)

    def step_env(self, key, state, action, params):
        return _seen(-1.0, 1.0), state, {FIRST: 1.0, SECOND: -1.0}, {"__all__": True}, {}, {}

    def expected_values(self, gamma):
        return {FIRST: {-1.0: 1.0}, SECOND: {1.0: -1.0}}


class OwnActionProbe(MultiAgentProbe):
    """Probe of the actions' agents: one step; the first agent gets 1 for action 1, the second one for action 0, else
    -1.

    The first agent observes -1, the second one 1. Fails if actions or advantages go to the wrong agent, because an
    agent's reward does not depend on the other agent's action.
    """

    def reset_env(self, key, params):
        return _seen(-1.0, 1.0), jnp.int32(0)

    def step_env(self, key, state, action, params):
        rewards = {FIRST: 2.0 * action[FIRST] - 1.0, SECOND: 1.0 - 2.0 * action[SECOND]}
        return _seen(-1.0, 1.0), state, rewards, {"__all__": True}, {}, {}

    def expected_values(self, gamma):
        return {FIRST: {-1.0: 1.0}, SECOND: {1.0: 1.0}}

    def optimal_actions(self):
        return {FIRST: {-1.0: 1}, SECOND: {1.0: 0}}


class OneIsCutOffProbe(MultiAgentProbe):
    """Probe of bootstrap values: the first agent is truncated after the first step, the second one is terminated after
    the second step.

    The first agent observes 0 or 1, drawn at the reset, and after its step the other one of the two; it gets what it
    observes: V(1) = 1 / (1 - gamma^2), V(0) = gamma V(1), exactly if the value after its step is that of its last
    observation. The second agent observes the time, 0 and 1, and gets 1 with its second step: V(1) = 1, V(0) = gamma.
    Fails if a truncation counts as a termination, for the other agent, too, or if the value of another observation or
    another agent is bootstrapped.
    """

    def reset_env(self, key, params):
        begins = jax.random.randint(key, (), 0, 2)
        return _seen(begins, 0.0), (jnp.int32(0), begins)

    def acts(self, state):
        return {FIRST: state[0] == 0, SECOND: state[0] < 2}

    def step_env(self, key, state, action, params):
        t, begins = state
        rewards = {FIRST: jnp.where(t == 0, begins, 0.0), SECOND: jnp.where(t == 1, 1.0, 0.0)}
        obs = _seen(1 - begins, jnp.minimum(t + 1, 1))
        return obs, (t + 1, begins), rewards, {SECOND: t == 1, "__all__": t == 1}, {FIRST: t == 0}, {}

    def expected_values(self, gamma):
        value = 1.0 / (1.0 - gamma**2)
        return {FIRST: {0.0: gamma * value, 1.0: value}, SECOND: {0.0: gamma, 1.0: 1.0}}


class TurnsProbe(MultiAgentProbe):
    """Probe of the agents' own time steps: the agents act in turns, twice each; then the episode terminates.

    An agent observes whether it acts for the second time. By the act, the first agent gets 0, 1, 0, 2; the second one
    gets 5, 0, 3, 1. A reward while an agent waits belongs to its last act, one before its first act to none, and a
    discount counts its own acts. So for the first agent V(1) = 2, V(0) = 1 + 2 gamma; for the second one V(1) = 1,
    V(0) = 3 + gamma. Fails if one of these does not hold.
    """

    def reset_env(self, key, params):
        return _seen(0.0, 0.0), jnp.int32(0)

    def acts(self, state):
        return {FIRST: (state == 0) | (state == 2), SECOND: (state == 1) | (state == 3)}

    def step_env(self, key, state, action, params):
        rewards = {FIRST: jnp.array([0.0, 1.0, 0.0, 2.0])[state], SECOND: jnp.array([5.0, 0.0, 3.0, 1.0])[state]}
        after = state + 1
        return _seen(after > 1, after > 2), after, rewards, {"__all__": after > 3}, {}, {}

    def expected_values(self, gamma):
        return {FIRST: {0.0: 1.0 + 2.0 * gamma, 1.0: 2.0}, SECOND: {0.0: 3.0 + gamma, 1.0: 1.0}}


class PaidLaterProbe(MultiAgentProbe):
    """Probe of delayed rewards: the first agent acts, then the second one; then both get a reward, and the episode
    terminates.

    The first agent gets 1 for action 1, the second one for action 0, else -1; both observe 0. Fails if the action, or
    its probability, that a reward is for is not that of the act which it completes.
    """

    def reset_env(self, key, params):
        return _seen(0.0, 0.0), (jnp.int32(0), jnp.int32(0))

    def acts(self, state):
        return {FIRST: state[0] == 0, SECOND: state[0] == 1}

    def step_env(self, key, state, action, params):
        t, chosen = state
        is_last = t == 1
        rewards = {
            FIRST: jnp.where(is_last, 2.0 * chosen - 1.0, 0.0),
            SECOND: jnp.where(is_last, 1.0 - 2.0 * action[SECOND], 0.0),
        }
        after = (t + 1, jnp.asarray(action[FIRST], jnp.int32))
        return _seen(0.0, 0.0), after, rewards, {"__all__": is_last}, {}, {}

    def expected_values(self, gamma):
        return {FIRST: {0.0: 1.0}, SECOND: {0.0: 1.0}}

    def optimal_actions(self):
        return {FIRST: {0.0: 1}, SECOND: {0.0: 0}}


class ArrivalProbe(MultiAgentProbe):
    """Probe of arrivals: the second agent arrives at time 0, 1, 2 or not at all, stays for two steps and terminates.

    Both get 1 in every step that they are there. The first agent is there from the beginning, always observes 0, and is
    cut off with the episode after 4 steps: V(0) = 1 / (1 - gamma). The second one observes 0, then 1: V(1) = 1,
    V(0) = 1 + gamma. Fails if an agent that comes late, or leaves early, changes what the other one learns from, or
    rows in which it is not there are learned from.
    """

    length = 4

    def reset_env(self, key, params):
        return _seen(0.0, 0.0), (jnp.int32(0), jax.random.randint(key, (), 0, self.length))

    def acts(self, state):
        t, comes = state
        return {FIRST: t < self.length, SECOND: self._is_there(t, comes)}

    def _is_there(self, t, comes):
        return (comes < self.length - 1) & (comes <= t) & (t < comes + 2)

    def step_env(self, key, state, action, params):
        t, comes = state
        is_there = self._is_there(t, comes)
        rewards = {FIRST: 1.0, SECOND: jnp.where(is_there, 1.0, 0.0)}
        ends = {SECOND: is_there & (t == comes + 1)}
        after = t + 1
        obs = _seen(0.0, after > comes)
        return obs, (after, comes), rewards, ends, {"__all__": after >= self.length}, {}

    def expected_values(self, gamma):
        return {FIRST: {0.0: 1.0 / (1.0 - gamma)}, SECOND: {0.0: 1.0 + gamma, 1.0: 1.0}}


class _ToldApart(MultiAgentProbe):
    """Mixin of a probe for one policy of both agents, which must distinguish them: the second agent observes
    -(1 + x) / 2 instead of x.
    """

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return self._told_apart(obs), state

    def step_env(self, key, state, action, params):
        obs, *others = super().step_env(key, state, action, params)
        return (self._told_apart(obs), *others)

    def _told_apart(self, obs):
        return {**obs, SECOND: -(1.0 + obs[SECOND]) / 2.0}

    def expected_values(self, gamma):
        values = super().expected_values(gamma)
        return {**values, SECOND: {-(1.0 + x) / 2.0: value for x, value in values[SECOND].items()}}


class OneIsCutOffToldApartProbe(_ToldApart, OneIsCutOffProbe):
    """`OneIsCutOffProbe` for one policy of both agents: the second agent observes -(1 + time) / 2."""


class TurnsToldApartProbe(_ToldApart, TurnsProbe):
    """`TurnsProbe` for one policy of both agents: the second agent observes -0.5, then -1."""


class PaidLaterByNumberProbe(PaidLaterProbe):
    """`PaidLaterProbe` with continuous actions in [-1, 3].

    Rewards are minus the squared distance of the first agent's action from 0, and of the second agent's from 2. The
    best policies have V = 0. Fails, too, if an action reaches the environment or the replay with the wrong scale.
    """

    action_spaces = dict.fromkeys((FIRST, SECOND), Box(-1.0, 3.0, (1,), np.float32))
    best_numbers = {FIRST: 0.0, SECOND: 2.0}
    """Best action of each agent."""

    def reset_env(self, key, params):
        return _seen(0.0, 0.0), (jnp.int32(0), jnp.float32(0.0))

    def step_env(self, key, state, action, params):
        t, chosen = state
        is_last = t == 1
        numbers = {FIRST: chosen, SECOND: action[SECOND][0]}
        rewards = {
            agent: jnp.where(is_last, -jnp.square(numbers[agent] - best), 0.0)
            for agent, best in self.best_numbers.items()
        }
        return _seen(0.0, 0.0), (t + 1, action[FIRST][0]), rewards, {"__all__": is_last}, {}, {}

    def expected_values(self, gamma):
        return {FIRST: {0.0: 0.0}, SECOND: {0.0: 0.0}}

    def optimal_actions(self):
        return None


def _seen(first: Any, second: Any) -> dict[str, jax.Array]:
    return {agent: jnp.asarray(x, jnp.float32).reshape(1) for agent, x in ((FIRST, first), (SECOND, second))}


PROBES: tuple[type[MultiAgentProbe], ...] = (
    OwnRewardProbe,
    OwnActionProbe,
    OneIsCutOffProbe,
    TurnsProbe,
    PaidLaterProbe,
    ArrivalProbe,
)


class HostProbe(MultiAgentEnv):
    """Host environment that steps a probe, one compiled call per step; observations contain only agents that act next.

    Settings: `probe`, one of `PROBES`.
    """

    def __init__(self, config: Mapping[str, Any]):
        self.probe, self._begin, self._next = _compiled(config["probe"])
        self.agents = self.possible_agents = list(self.probe.possible_agents)
        self.observation_spaces, self.action_spaces = self.probe.observation_spaces, self.probe.action_spaces
        self._none = {agent: np.zeros(space.shape or ()) for agent, space in self.action_spaces.items()}
        super().__init__()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        obs, self._state, acts = self._begin(jax.random.key(int(self.np_random.integers(2**31))))
        self._alive = {agent for agent, own in acts.items() if own}
        self._gone: set[str] = set()
        return {agent: np.asarray(obs[agent]) for agent in self.possible_agents if acts[agent]}, {}

    def step(self, action_dict: Mapping[Any, Any]) -> Any:
        actions = {agent: action_dict.get(agent, none) for agent, none in self._none.items()}
        actions = {agent: np.asarray(own, self.action_spaces[agent].dtype) for agent, own in actions.items()}
        step = self._next(self._state, actions)
        self._state = step.state
        after = jax.device_get(step._replace(state=()))
        self._alive |= {agent for agent, own in after.acts.items() if own}
        there = [agent for agent in self.possible_agents if agent in self._alive - self._gone]
        flags = [{agent: bool(own[agent]) for agent in there} for own in (after.terminateds, after.truncateds)]
        ended = {agent for own in flags for agent, flag in own.items() if flag}
        obs = {agent: after.final_obs[agent] for agent in there if after.acts[agent] or agent in ended}
        rewards = {agent: float(own) for agent, own in after.reward.items() if agent not in self._gone}
        self._gone |= ended
        for own, of_all in zip(flags, (after.terminated, after.truncated), strict=True):
            own["__all__"] = bool(of_all)
        return obs, rewards, *flags, {}


@functools.cache
def _compiled(probe: type[MultiAgentProbe]) -> tuple[MultiAgentProbe, Any, Any]:
    """Returns ``(environment, compiled reset of a key, compiled step of state and actions)`` of a probe; steps draw no
    random numbers.
    """
    env = probe()

    def begin(key: jax.Array) -> Any:
        obs, state = env.reset(key, None)
        return obs, state, env.who_acts(state)

    def step(state: Any, actions: Any) -> Any:
        return env.step(jax.random.key(0), state, actions, None)

    return env, jax.jit(begin), jax.jit(step)
