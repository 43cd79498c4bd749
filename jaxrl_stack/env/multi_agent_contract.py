"""Checks of a multi-agent environment: the results of every reset and step must follow the `MultiAgentEnv` interface.

Error messages name the environment, the index of its copy, the env runner, the agent and the step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any, NoReturn

import numpy as np

from jaxrl_stack.env.env_contract import is_inside
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.observation_forms import FLAGS, NUMBERS, form_check, is_flag, is_number, misfit, shown
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.multi_agent import ALL, agent_flags, episode_flags
from jaxrl_stack.utils.notices import notice_once

_STEP = ("observations", "rewards", "terminateds", "truncateds", "infos")
_DICTS = [dict] * len(_STEP)
_INFOS = frozenset([dict])
_COMMON = "__common__"
"""Key of infos that belong to all agents, as in RLlib."""
_LONG_ABSENCE = 100
"""Steps in a row without any observation, after which a notice says so."""


class AgentsOfEpisode:
    """Records which agents have appeared and ended in the unfinished episode of one multi-agent environment, and checks
    the return values of the environment's methods.

    Args:
        env: The environment.
        name: Name in messages.
        check: Whether to check that observations have the form of their spaces, rewards are numbers and flags bools.
        copy: Text that names the copy and its runner, for messages.

    Attributes:
        seen: Agents that have had an observation.
        done: Agents that have ended.
        step: Number of steps of the episode.
        newest_ends: Agents that the newest step terminated, and agents that it truncated; None if there are none.
    """

    def __init__(self, env: MultiAgentEnv, name: str, check: bool, copy: str = ""):
        self._env, self._name, self._copy = env, name, copy
        self._checks = check
        # Values of the first observations are looked at at once, those of later ones once per recording.
        self._is_first = True
        self._form_checks: dict[Hashable, Callable[[Any], bool]] = {}
        self.seen: set[Hashable] = set()
        self._terminated: set[Hashable] = set()
        self._truncated: set[Hashable] = set()
        self.step = 0
        self.done: set[Hashable] = set()
        self.newest_ends: tuple[set[Hashable], set[Hashable]] | None = None
        self._known: set[Hashable] = set()
        self._known_in_flags: set[Hashable] = set()
        self._known_in_infos: set[Hashable] = set()
        self._steps_without_agents = 0

    def reset(self, outcome: Any) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """Begins an episode: checks the return value of the environment's ``reset``, and returns its observations and
        infos.

        Returns:
            ``(observations, infos)``. Without observations, the environment is stepped with ``{}``.

        Raises:
            MultiAgentEnvError: These are not two dicts, or there is an observation of an unknown agent or outside of
                its space.
        """
        self.seen, self._terminated, self._truncated, self.step = set(), set(), set(), 0
        self.done, self.newest_ends, self._steps_without_agents = set(), None, 0
        possible = self._env.possible_agents
        self._known = set(possible)
        self._known_in_flags, self._known_in_infos = {*possible, ALL}, {*possible, ALL, _COMMON}
        obs, infos = self._dicts(outcome, ("observations", "infos"))
        self._require_known(obs, "observations")
        if self._checks:
            self._check_forms(obs, {}, {}, infos)
        self.seen.update(obs)
        return obs, infos

    def next(self, outcome: Any) -> tuple[tuple[Any, ...], bool]:
        """Checks the return value of the environment's ``step``, and records which agents have ended. Returns ``((obs,
        rewards, terminateds, truncateds, infos), whether the episode has ended)``.

        Returns:
            The five dicts, and whether the episode has ended: by a flag of ``"__all__"``, or with its last agent if
            neither of the flags has ``"__all__"``.

        Raises:
            MultiAgentEnvError: These are not five dicts; one has an unknown agent, or one that has ended; an
                observation or a reward is none.
        """
        self.step += 1
        # What is right in every step is found out in few calls.
        if type(outcome) is not tuple or list(map(type, outcome)) != _DICTS:
            outcome = self._dicts(outcome, _STEP)
        obs, rewards, terminateds, truncateds, infos = outcome
        known = self._known
        if not (obs.keys() <= known and rewards.keys() <= known) or not (
            terminateds.keys() <= self._known_in_flags and truncateds.keys() <= self._known_in_flags
        ):
            for what, values in zip(_STEP, outcome[:4], strict=False):
                self._require_known(values, what)
        if self.done:
            for what, values in (("an observation", obs), ("a reward", rewards)):
                for agent in self.done.intersection(values):
                    self._refuse(
                        f"returned {what} of agent {agent!r}, which has ended. Leave it out until the next reset."
                    )
        if self._checks and (
            self._is_first
            or not NUMBERS.issuperset(map(type, rewards.values()))
            or not FLAGS.issuperset(map(type, terminateds.values()))
            or not FLAGS.issuperset(map(type, truncateds.values()))
            or not _INFOS.issuperset(map(type, infos.values()))
            or not self._fit(obs)
        ):
            self._check_forms(obs, rewards, {"terminated": terminateds, "truncated": truncateds}, infos)
            self._is_first = False
        if not rewards.keys() <= self.seen:
            self._note_early_rewards(rewards)
        if infos and known and not infos.keys() <= self._known_in_infos:
            self._note_unknown_infos(infos)
        self.seen.update(obs)
        self.newest_ends = None
        # Without a flag nobody ends, and no episode whose agents are there.
        ended = False
        if any(terminateds.values()) or any(truncateds.values()) or (self.done and len(self.done) == len(self.seen)):
            ended = self._take_flags(terminateds, truncateds)
        if obs:
            self._steps_without_agents = 0
        elif not ended:
            self._note_absence()
        return outcome, ended

    def _take_flags(self, terminateds: Mapping[Any, Any], truncateds: Mapping[Any, Any]) -> bool:
        """Records agents as ended if their terminated or truncated flag, or the flag ``"__all__"``, is True. Returns
        True if the whole episode has ended.
        """
        alive = self.seen - self.done
        terminated, truncated = agent_flags(alive, terminateds), agent_flags(alive, truncateds)
        if terminated or truncated:
            # One that is both has reached an end of its own.
            self.newest_ends = (terminated, truncated - terminated)
        self._terminated |= terminated
        self._truncated |= truncated
        self.done = self._terminated | self._truncated
        return any(episode_flags(self.seen, self._terminated, self._truncated, terminateds, truncateds))

    def _note_early_rewards(self, rewards: Mapping[Any, Any]) -> None:
        """Prints a notice if agents got rewards before their first observation in this episode."""
        early = [agent for agent, reward in rewards.items() if agent not in self.seen and reward]
        if early:
            notice_unclaimed_rewards(self._name, early, f", step {self.step}")

    def _note_unknown_infos(self, infos: Mapping[Any, Any]) -> None:
        """Prints a notice, once per environment, about the unknown keys of `infos`: keys that are not in
        `possible_agents` and are neither "__all__" nor "__common__".
        """
        unknown = sorted(infos.keys() - self._known_in_infos, key=str)
        notice_once(
            f"environment({self._name!r}), step {self.step}: infos of {unknown} belong to none of its possible_agents. "
            f"Name an agent, or {_COMMON!r} for all.",
            f"environment({self._name!r}): unknown infos",
        )

    def _note_absence(self) -> None:
        """Counts consecutive env steps in which no agent has an observation; prints a notice when the count
        reaches `_LONG_ABSENCE`.
        """
        self._steps_without_agents += 1
        if self._steps_without_agents != _LONG_ABSENCE:
            return
        why = 'It is stepped with {} until an agent has one, or "__all__" is True.'
        if self.seen and len(self.done) == len(self.seen):
            why = 'All agents have ended, but "__all__" is False: return True with the end of the episode.'
        notice_once(
            f"environment({self._name!r}), step {self.step}: no agent has had an observation in {_LONG_ABSENCE} steps. "
            f"{why}",
            f"environment({self._name!r}): no observations",
        )

    def require_may_act(self, actions: Mapping[Any, Any], observed: Mapping[Any, Any]) -> None:
        """Raises an error for actions of agents that have ended or have no current observation.

        Args:
            actions: By agent that acts.
            observed: Observations of the newest step, by agent.

        Raises:
            MultiAgentEnvError: An agent acts without a current observation.
        """
        if actions.keys() <= observed.keys() and self.done.isdisjoint(actions):
            return
        may_act = [agent for agent in observed if agent not in self.done]
        for agent in actions:
            if agent not in may_act:
                self._refuse(
                    f"got an action of agent {agent!r}, which has ended or has no observation to act on. Give only the "
                    f"actions of agents that can act: {sorted(map(str, may_act))}.",
                    self.step + 1,
                )

    def _dicts(self, outcome: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        if not isinstance(outcome, tuple | list) or len(outcome) != len(names):
            self._refuse(f"returned {outcome!r}. Return ({', '.join(names)}).")
        for what, values in zip(names, outcome, strict=True):
            if not isinstance(values, Mapping):
                self._refuse(f"returned the {what} {values!r}. Return a dict by agent.")
        return tuple(outcome)

    def _require_known(self, values: Mapping[Any, Any], what: str) -> None:
        possible = self._env.possible_agents
        for agent in values:
            if agent == ALL and what in ("observations", "rewards"):
                self._refuse(f"returned {what} of {ALL!r}. Return {what} of agents only: {ALL!r} is a flag.")
            if possible and agent != ALL and agent not in possible and what != "infos":
                self._refuse(
                    f"returned {what} of agent {agent!r}, which is not among its possible_agents={list(possible)}. "
                    "Add it to possible_agents."
                )

    def _fit(self, obs: Mapping[Any, Any]) -> bool:
        """Whether each observation in `obs`, ``{agent: observation}``, has the structure, shape and type of the agent's
        observation space.

        This check is quick; if it returns False, `_check_forms` checks the values in detail.
        """
        checks = self._form_checks
        for agent, value in obs.items():
            fits = checks.get(agent)
            if fits is None:
                fits = checks[agent] = form_check(self._env.get_observation_space(agent))
            if not fits(value):
                return False
        return True

    def _check_forms(
        self,
        obs: Mapping[Any, Any],
        rewards: Mapping[Any, Any],
        flags: Mapping[str, Mapping[Any, Any]],
        infos: Mapping[Any, Any],
    ) -> None:
        """Checks the observation, reward, flags and info of each agent in detail.

        Raises an error if an observation does not fit the agent's space, a reward is not one number, a flag is neither
        True nor False (1 or 0), or an info is neither a dict nor None. The first check also raises an error for rewards
        that are not finite and observations that are out of bounds.
        """
        for agent, value in obs.items():
            self._check_observation(agent, value)
        for agent, value in rewards.items():
            if not is_number(value) or (self._is_first and not np.isfinite(value)):
                self._refuse(f"returned the reward {shown(value)} of agent {agent!r}. Return one finite number.")
        for name, by_agent in flags.items():
            for agent, value in by_agent.items():
                if not is_flag(value):
                    self._refuse(
                        f"returned {name}={shown(value)} of agent {agent!r}. Return True or False: bool({name})."
                    )
        for agent, value in infos.items():
            if value is not None and not isinstance(value, Mapping):
                self._refuse(f"returned the info {shown(value)} of agent {agent!r}. Return a dict, {{}} if empty.")

    def _check_observation(self, agent: Hashable, value: Any) -> None:
        """Raises an error if an agent's observation does not have the structure, shapes and types of the agent's space.

        The environment's first observations are also checked for values outside of the bounds of the space.
        """
        space = self._env.get_observation_space(agent)
        problem = misfit(space, value, f"the observation of agent {agent!r}")
        if problem is not None:
            self._refuse(f"returned an observation that does not fit: {problem}")
        if self._is_first and not is_inside(space, value):
            self._refuse(
                f"returned the observation {shown(value)} of agent {agent!r}, which is not in its space {space}. "
                "Correct one of the two."
            )

    def _refuse(self, sentence: str, step: int | None = None) -> NoReturn:
        step = self.step if step is None else step
        where = f"step {step}" if step else "reset"
        raise MultiAgentEnvError(f"environment({self._name!r}){self._copy}, {where}: {sentence}")


def notice_unclaimed_rewards(name: str, agents: Collection[Any], where: str = "") -> None:
    """Prints a notice about rewards that an agent got before its first action or after its end.

    The notice is printed once per environment and agent. Such rewards do not count in episode returns and losses.

    Args:
        name: Name of the environment.
        agents: Agents that got them.
        where: The step, if it is known.
    """
    for agent in sorted(agents, key=str):
        notice_once(
            f"environment({name!r}){where}: rewards of agent {agent!r} before its first action or after its end are "
            "ignored in returns and losses. Reward an agent between its first action and its end.",
            f"environment({name!r}): unclaimed rewards of {agent!r}",
        )
