"""Multi-agent episodes, and chunks of multi-agent episodes, on the host."""

from __future__ import annotations

import dataclasses
import numbers
import time
import uuid
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from jaxrl_stack.episodes.infinite_lookback_buffer import AsItem, Indices, InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_times import SKIPPED, TimesByAgent, agent_range, first_moment, joined_times
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils import nested
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.multi_agent import ALL, agent_flags, episode_flags

Flags = Mapping[Any, bool]
DEFAULT_MODULE_ID = "default_policy"


@dataclasses.dataclass(slots=True)
class HangingStep:
    """Incomplete step of an agent: the agent has acted, but has no next observation yet.

    The agent has not ended. The step contains the action, the module's outputs for the action, and the sum of the
    rewards since the action.

    Attributes:
        action: The action.
        extra_model_outputs: Outputs of the module for the action, by name.
        reward: Sum of the rewards since the action.
    """

    action: Any
    extra_model_outputs: Mapping[str, Any]
    reward: float = 0.0


class MultiAgentEpisode:
    """Episode of several agents, or a chunk of an episode, with a `SingleAgentEpisode` for each agent.

    Agents need not observe in every environment step: exactly the agents in the newest observations act. An action
    without a next observation is *hanging*: rewards are summed, and the agent's step is complete with its next
    observation, or its end. The step belongs to the chunk in which it is completed.

    An agent ends by its own flag or by ``"__all__"`` of the same kind. If it terminates without an observation, its
    last observation is repeated. An agent whose first observation comes with its end has no episode.

    Args:
        id_: Id of the episode, common to all its chunks; random if None.
        observations: Dicts by agent: of the reset, and of each environment step.
        observation_space: Space of one observation, by agent.
        infos: Dicts by agent, as many as observations.
        actions: Dicts by agent, one for each environment step.
        action_space: Space of one action, by agent.
        rewards: Dicts by agent, one for each environment step.
        terminateds: Whether agents are terminated at the end of the given data, and under ``"__all__"`` the episode;
            True means ``{"__all__": True}``.
        truncateds: Whether agents, or the episode, are truncated there, in the same form.
        extra_model_outputs: Dicts by agent of outputs by name, one for each environment step.
        env_t_started: Environment step, counted from the reset, at which this chunk starts; 0 if None.
        agent_t_started: The agents' own steps at which this chunk starts; 0 for missing agents.
        len_lookback_buffer: Maximum number of environment steps at the front of the given data that are look-back;
            "auto": all.
        agent_episode_ids: Ids of the agents' episodes, by agent; random for missing agents.
        agent_module_ids: Ids of the RLModules that act for agents.
        agent_to_module_mapping_fn: Called as ``fn(agent_id, episode)``, once for each agent without a module id. None:
            all agents have "default_policy".

    Attributes:
        id_: Id of the episode.
        agent_episodes: The agents' episodes, by agent, with completed steps only.
        env_t: Number of environment steps since the reset.
        env_t_started: Number of environment steps before this chunk.
        agent_t_started: Number of each agent's own steps before this chunk.
        is_reset: Whether the observations of a reset were added, which may be empty.
        is_terminated: Whether the episode terminated.
        is_truncated: Whether the episode was truncated.
        custom_data: Dict for data of the user; chunks and slices inherit a shallow copy of it.

    Raises:
        MultiAgentEnvError: If the data breaks a rule of `add_env_step`.
        ValueError: If the number of observations is not the number of rewards plus 1.
    """

    SKIP_ENV_TS_TAG = SKIPPED

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Sequence[Mapping[Any, Any]] | None = None,
        observation_space: Mapping[Any, Any] | None = None,
        infos: Sequence[Mapping[Any, Any]] | None = None,
        actions: Sequence[Mapping[Any, Any]] | None = None,
        action_space: Mapping[Any, Any] | None = None,
        rewards: Sequence[Mapping[Any, Any]] | None = None,
        terminateds: Flags | bool = False,
        truncateds: Flags | bool = False,
        extra_model_outputs: Sequence[Mapping[Any, Any]] | None = None,
        env_t_started: int | None = None,
        agent_t_started: Mapping[Any, int] | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_episode_ids: Mapping[Any, str] | None = None,
        agent_module_ids: Mapping[Any, str] | None = None,
        agent_to_module_mapping_fn: Callable[..., str] | None = None,
    ):
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._module_ids: dict[Any, str] = dict(agent_module_ids or {})
        self._episode_ids = dict(agent_episode_ids or {})
        self.observation_space, self.action_space = observation_space or {}, action_space or {}
        self.env_t = self.env_t_started = env_t_started or 0
        self.agent_t_started: dict[Any, int] = {}
        self.agent_episodes: dict[Any, SingleAgentEpisode] = {}
        self.env_t_to_agent_t = TimesByAgent()
        self.hanging: dict[Any, HangingStep] = {}
        # Rewards of agents before their first observation, which belong to no step.
        self._early_rewards: dict[Any, float] = {}
        # (terminated, truncated) of agents that ended, and have no episode in this chunk.
        self._ended: dict[Any, tuple[bool, bool]] = {}
        # Environment step at which agents with an episode in this chunk ended.
        self._end_t: dict[Any, int] = {}
        # Whether a later chunk completes the hanging steps, and counts their rewards.
        self._goes_on = False
        self._len_lookback = 0
        self.is_reset = self.is_terminated = self.is_truncated = False
        self.custom_data: dict[Any, Any] = {}
        self._duration_s = 0.0
        self._last_step_time: float | None = None
        if observations:
            flags = _as_flags(terminateds), _as_flags(truncateds)
            self._replay(observations, actions or (), rewards or (), infos, extra_model_outputs, flags)
            self._begin_own_steps(len_lookback_buffer, agent_t_started or {})
            self._last_step_time, self._duration_s = None, 0.0

    def _replay(
        self, observations: Any, actions: Any, rewards: Any, infos: Any, outputs: Any, flags: tuple[Flags, Flags]
    ) -> None:
        """Adds the constructor's data to the new episode, one env step at a time.

        The terminated and truncated flags of an agent apply to the agent's last step, the flags "__all__" to the last
        env step.
        """
        steps = len(rewards)
        infos = [{}] * (steps + 1) if infos is None else infos
        outputs = [{}] * steps if outputs is None else outputs
        lengths = {"observations": len(observations) - 1, "infos": len(infos) - 1, "actions": len(actions)}
        for name, length in {**lengths, "extra_model_outputs": len(outputs)}.items():
            if length != steps:
                raise ValueError(
                    f"episode {self.id_} has rewards for {steps} env steps, but {name} for {length}: for n env "
                    "steps, pass n rewards, actions and extra_model_outputs, but n + 1 observations and infos"
                )
        self.add_env_reset(observations=observations[0], infos=infos[0])
        last = _last_steps(observations, actions, rewards)
        for i in range(steps):
            terminateds, truncateds = (
                {agent: flag for agent, flag in own.items() if last.get(agent, steps - 1) == i} for own in flags
            )
            self.add_env_step(
                observations[i + 1],
                actions[i],
                rewards[i],
                infos[i + 1],
                terminateds=terminateds,
                truncateds=truncateds,
                extra_model_outputs=outputs[i],
            )
        if not steps:
            self._set_end(*flags)

    def _begin_own_steps(self, len_lookback_buffer: int | Literal["auto"], agent_t_started: Mapping[Any, int]) -> None:
        """Converts the first env steps of the constructor's data to lookback steps: at most `len_lookback_buffer`
        steps, or all steps if `len_lookback_buffer` is "auto".
        """
        lookback = len(self)
        if len_lookback_buffer != "auto":
            if not isinstance(len_lookback_buffer, int) or len_lookback_buffer < 0:
                raise ValueError(
                    f'len_lookback_buffer={len_lookback_buffer!r} must be "auto" or an int n >= 0: the first n '
                    "env steps of the data become the look-back"
                )
            lookback = min(lookback, len_lookback_buffer)
        for agent, episode in self.agent_episodes.items():
            times = self.env_t_to_agent_t[agent]
            own = agent_range(times, lookback, len(self), lookback)
            assert own is not None  # It has a first observation.
            part = episode.slice(slice(own.start, None), len_lookback_buffer=own.lookback)
            part.is_terminated, part.is_truncated = episode.is_terminated, episode.is_truncated
            self.agent_t_started[agent] = agent_t_started.get(agent, 0)
            shift = self.agent_t_started[agent] - own.start
            part.t_started, part.t = part.t_started + shift, part.t + shift
            shifted = [t if t == SKIPPED else t + shift for t in times.data]
            self.env_t_to_agent_t[agent] = InfiniteLookbackBuffer(shifted, lookback)
            self.agent_episodes[agent] = part
        self.env_t -= lookback
        self._end_t = {agent: t - lookback for agent, t in self._end_t.items()}
        self._len_lookback = lookback

    @property
    def agent_ids(self) -> set[Any]:
        """Ids of the agents whose `SingleAgentEpisode` belongs to this chunk."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[Any, str]:
        """Ids of the agents' single-agent episodes, ``{agent: episode id}``."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    @property
    def is_numpy(self) -> bool:
        """Whether the agents' data are arrays."""
        return any(episode.is_numpy for episode in self.agent_episodes.values())

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated."""
        return self.is_terminated or self.is_truncated

    def __len__(self) -> int:
        """Number of env steps, without the lookback."""
        return self.env_t - self.env_t_started

    def __repr__(self) -> str:
        end = [name for name, flag in (("terminated", self.is_terminated), ("truncated", self.is_truncated)) if flag]
        returns = {agent: episode.get_return() for agent, episode in self.agent_episodes.items()}
        return (
            f"MultiAgentEpisode({self.id_}, env_t={self.env_t_started}..{self.env_t}, returns={returns}, "
            f"{' and '.join(end) or 'running'})"
        )

    # ------------------------------------------------------------------------------------------------------ growing

    def add_env_reset(self, *, observations: Mapping[Any, Any], infos: Mapping[Any, Any] | None = None) -> None:
        """Adds the results of the environment's ``reset``; must be the first call on a new episode.

        Args:
            observations: Observations by agent; {} if no agent acts in the first step.
            infos: Infos by agent; {} for missing agents.

        Raises:
            RuntimeError: If the episode was reset already.
        """
        if self.is_reset:
            raise RuntimeError(
                f"episode {self.id_} was reset already (it is at env step {self.env_t}); make a new episode for the "
                "next reset, or cut() this one to continue it"
            )
        self.is_reset = True
        for agent, observation in observations.items():
            self._begin(agent, observation, (infos or {}).get(agent))
        self._last_step_time = time.perf_counter()

    def add_env_step(
        self,
        observations: Mapping[Any, Any],
        actions: Mapping[Any, Any],
        rewards: Mapping[Any, Any],
        infos: Mapping[Any, Any] | None = None,
        *,
        terminateds: Flags | None = None,
        truncateds: Flags | None = None,
        extra_model_outputs: Mapping[Any, Mapping[str, Any]] | None = None,
    ) -> None:
        """Adds one environment step: the agents' actions, and the results of these actions.

        Args:
            observations: Observations after the step, by agent: these agents act next.
            actions: Actions by agent, of agents with an observation before the step.
            rewards: Rewards by agent; an agent's rewards are summed until its next observation.
            infos: Infos by agent; infos of agents without an observation are dropped.
            terminateds: Whether agents, or under ``"__all__"`` all agents, terminated; missing agents have not.
            truncateds: Whether agents, or under ``"__all__"`` all agents, were truncated; missing agents were not.
            extra_model_outputs: Outputs of the modules for these actions, ``{agent: {name: output}}``.

        Raises:
            RuntimeError: If the episode is not reset yet, done, or numpy'ized.
            ValueError: If the keys of an agent's `extra_model_outputs` differ from its earlier steps in this chunk.
            MultiAgentEnvError: If an agent that has ended gets an observation, action or reward; an agent acts without
                an observation, or observes without an action or a reward; or an agent is truncated right after its
                action without an observation.
        """
        self._require_running()
        terminateds, truncateds, infos = terminateds or {}, truncateds or {}, infos or {}
        alive = [agent for agent, episode in self.agent_episodes.items() if not episode.is_done]
        new = [agent for agent in observations if agent not in self.agent_episodes and agent not in self._ended]
        terminated = agent_flags([*alive, *new], terminateds)
        truncated = agent_flags([*alive, *new], truncateds)
        outputs = {agent: (extra_model_outputs or {}).get(agent, {}) for agent in actions}
        self._check_step(observations, actions, rewards, truncated - terminated)
        for agent, own in outputs.items():
            self.agent_episodes[agent]._output_columns(own)  # Refuses other keys than before.
        self.env_t += 1
        for agent, action in actions.items():
            self.hanging[agent] = HangingStep(action, outputs[agent])
        for agent, reward in rewards.items():
            if agent in self.hanging:
                self.hanging[agent].reward += float(reward)
            else:
                self._early_rewards[agent] = self._early_rewards.get(agent, 0.0) + float(reward)
        for agent in alive:
            self._add_to(agent, observations, infos.get(agent), agent in terminated, agent in truncated)
        for agent in set(self.agent_episodes) - set(alive):
            self.env_t_to_agent_t[agent].append(SKIPPED)
        for agent in new:
            if agent in terminated or agent in truncated:
                self._ended[agent] = (agent in terminated, agent in truncated)
            else:
                self._begin(agent, observations[agent], infos.get(agent))
        self._set_end(terminateds, truncateds)
        now = time.perf_counter()
        if self._last_step_time is not None:
            self._duration_s += now - self._last_step_time
        self._last_step_time = now

    def module_for(self, agent_id: Hashable) -> str:
        """Returns the id of the RLModule that acts for an agent. The id does not change during the episode."""
        if agent_id not in self._module_ids:
            fn = self.agent_to_module_mapping_fn
            self._module_ids[agent_id] = DEFAULT_MODULE_ID if fn is None else fn(agent_id, self)
        return self._module_ids[agent_id]

    def get_agents_to_act(self) -> set[Any]:
        """Returns the agents with an observation in the newest step that have not ended."""
        return {agent for agent in self.get_agents_that_stepped() if not self.agent_episodes[agent].is_done}

    def get_agents_that_stepped(self) -> set[Any]:
        """Returns the agents with an observation in the newest step, including agents that have just ended."""
        return {agent for agent, times in self.env_t_to_agent_t.items() if times.data[-1] != SKIPPED}

    def _begin(self, agent: Hashable, observation: Any, info: Any) -> None:
        """Adds an agent to the multi-agent episode: a `SingleAgentEpisode` with the agent's first observation."""
        module_id = self.module_for(agent)
        self.agent_episodes[agent] = episode = SingleAgentEpisode(
            self._episode_ids.get(agent),
            observation_space=self.observation_space.get(agent),
            action_space=self.action_space.get(agent),
            agent_id=agent,
            module_id=module_id,
            multi_agent_episode_id=self.id_,
        )
        episode.add_env_reset(observation, info)
        self.agent_t_started[agent] = 0
        skipped = [SKIPPED] * (self._len_lookback + len(self))
        self.env_t_to_agent_t[agent] = InfiniteLookbackBuffer([*skipped, 0], self._len_lookback)

    def _require_running(self) -> None:
        if not self.is_reset:
            raise RuntimeError(f"episode {self.id_} was not reset: call add_env_reset() before add_env_step()")
        if self.is_done:
            raise RuntimeError(
                f"episode {self.id_} is done at env step {self.env_t}: add further steps to a new MultiAgentEpisode()"
            )
        if self.is_numpy:
            raise RuntimeError(
                f"episode {self.id_}: no step can be added after to_numpy(). Add steps before to_numpy(), or to the "
                "chunk that cut() returns"
            )

    def _check_step(
        self, observations: Mapping[Any, Any], actions: Mapping[Any, Any], rewards: Mapping[Any, Any], cut_off: set[Any]
    ) -> None:
        for what, values in (("an observation", observations), ("an action", actions), ("a reward", rewards)):
            for agent in values:
                if agent in self._ended or agent in self._end_t:
                    self._refuse(f"agent {agent!r} has ended, but has {what}; leave the agent out until the reset")
        to_act = self.get_agents_to_act()
        for agent in actions:
            if agent not in to_act:
                self._refuse(
                    f"agent {agent!r} acts without an observation; pass actions only for agents that have not ended "
                    f"and are in the newest observations: {sorted(map(str, to_act))}"
                )
            if agent in observations and agent not in rewards:
                self._refuse(
                    f"agent {agent!r} acted and has an observation, but no reward; return a reward (0.0 for no reward)"
                )
            if agent in cut_off and agent not in observations:
                self._refuse(
                    f"agent {agent!r} acted and is truncated, but has no final observation, which bootstrap values "
                    "need; return it"
                )
        for agent in observations:
            if agent in self.agent_episodes and agent not in actions and agent not in self.hanging:
                self._refuse(
                    f"agent {agent!r} has an observation, but did not act since its last observation; pass an action "
                    "of this agent, or return an observation only if the agent acts next"
                )

    def _add_to(
        self, agent: Hashable, observations: Mapping[Any, Any], info: Any, terminated: bool, truncated: bool
    ) -> None:
        """Completes an agent's incomplete step (an action without a next observation) if the agent gets an observation
        or ends; records whether the agent has ended.
        """
        episode, times = self.agent_episodes[agent], self.env_t_to_agent_t[agent]
        ends = terminated or truncated
        if agent in self.hanging and (agent in observations or ends):
            step = self.hanging.pop(agent)
            episode.add_env_step(
                observations[agent] if agent in observations else episode.get_observations(-1),
                step.action,
                step.reward,
                info,
                terminated=terminated,
                truncated=truncated,
                extra_model_outputs=step.extra_model_outputs,
            )
            times.append(episode.t)
        else:
            episode.is_terminated, episode.is_truncated = terminated, truncated
            times.append(SKIPPED)
        if ends:
            self._end_t[agent] = self.env_t

    def _set_end(self, terminateds: Flags, truncateds: Flags) -> None:
        flags = {agent: (one.is_terminated, one.is_truncated) for agent, one in self.agent_episodes.items()}
        flags.update(self._ended)
        terminated = {agent for agent, (flag, _) in flags.items() if flag}
        truncated = {agent for agent, (_, flag) in flags.items() if flag}
        self.is_terminated, self.is_truncated = episode_flags(flags, terminated, truncated, terminateds, truncateds)

    def _refuse(self, sentence: str) -> NoReturn:
        raise MultiAgentEnvError(f"episode {self.id_}, env step {self.env_t + self.is_reset}: {sentence}")

    # ------------------------------------------------------------------------------------------------------ reading

    def get_observations(
        self,
        indices: Indices = None,
        agent_ids: Collection[Hashable] | Hashable | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Returns observations by agent.

        Args:
            indices: An int, a slice, a list of ints, or None for all items without the look-back.
            agent_ids: Ids of the agents; None: all agents.
            env_steps: Whether indices are environment steps: an agent then has an item for each step in which it has an
                observation. False: indices are each agent's own steps.
            neg_index_as_lookback: Whether -1 is the last step of the look-back instead of the newest step.
            fill: Replacement of missing items: outside of the data and, with `env_steps`, in steps that an agent skips.
            one_hot_discrete: Whether to one-hot encode `Discrete` and `MultiDiscrete` parts; needs the spaces.
            return_list: Whether to return one dict by agent for each environment step, instead of one dict with several
                items per agent.

        Returns:
            ``{agent: item}`` for an int index, else ``{agent: items}``: lists, or arrays ``[k, ...]`` in a numpy'ized
            episode. Agents without an item are missing.

        Raises:
            IndexError: For an index outside the data without `fill`.
            ValueError: For `return_list` without `env_steps`, or `one_hot_discrete` without a space.
            KeyError: If an agent does not exist.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill, "one_hot_discrete": one_hot_discrete}
        return self._get("observations", indices, agent_ids, env_steps, return_list, how)

    def get_infos(
        self,
        indices: Indices = None,
        agent_ids: Collection[Hashable] | Hashable | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Returns infos by agent.

        See `get_observations` for the arguments. In this method, however, `fill` replaces a missing info dict as a
        whole, even if `fill` is a number, because info dicts have no common structure that a number could fill.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": None if fill is None else AsItem(fill)}
        return self._get("infos", indices, agent_ids, env_steps, return_list, how)

    def get_actions(
        self,
        indices: Indices = None,
        agent_ids: Collection[Hashable] | Hashable | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
        return_list: bool = False,
    ) -> Any:
        """Returns actions by agent, including the actions of incomplete steps, which have no next observation yet.

        With ``env_steps=True``, an action has the same index as the observation for which it was chosen. See
        `get_observations` for the arguments.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill, "one_hot_discrete": one_hot_discrete}
        return self._get("actions", indices, agent_ids, env_steps, return_list, how)

    def get_rewards(
        self,
        indices: Indices = None,
        agent_ids: Collection[Hashable] | Hashable | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: float | None = None,
        return_list: bool = False,
    ) -> Any:
        """Returns rewards by agent.

        With ``env_steps=True``, a reward has the same index as the rewarded action and as the observation for which
        this action was chosen. For an incomplete step (an action without a next observation yet), the reward is the sum
        of the agent's rewards since the action. See `get_observations` for the arguments.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill}
        return self._get("rewards", indices, agent_ids, env_steps, return_list, how)

    def get_extra_model_outputs(
        self,
        key: str | None = None,
        indices: Indices = None,
        agent_ids: Collection[Hashable] | Hashable | None = None,
        *,
        env_steps: bool = True,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        return_list: bool = False,
    ) -> Any:
        """Returns extra model outputs by agent, including the outputs of incomplete steps, which have no next
        observation yet.

        With ``env_steps=True``, an output has the same index as the observation for which the action was chosen.

        Args:
            key: Name of the column; agents without it are missing. None: all columns, in a dict for each agent.
            indices, agent_ids, env_steps, neg_index_as_lookback, fill: See `get_observations`.
            return_list: See `get_observations`; needs a `key`.

        Raises:
            KeyError: If no agent has the column.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill}
        if key is not None:
            return self._get(key, indices, agent_ids, env_steps, return_list, how, is_output=True)
        if return_list:
            raise ValueError("get_extra_model_outputs(return_list=True) needs the key of one column: pass key=...")
        found: dict[Any, dict[str, Any]] = {}
        for name in dict.fromkeys(name for agent in self._chosen(agent_ids) for name in self._output_names(agent)):
            for agent, items in self._get(name, indices, agent_ids, env_steps, False, how, is_output=True).items():
                found.setdefault(agent, {})[name] = items
        return found

    def get_terminateds(self) -> dict[Any, bool]:
        """Returns each agent's terminated flag, and the episode's under ``"__all__"``."""
        flags = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Returns each agent's truncated flag, and the episode's under ``"__all__"``."""
        flags = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_truncated}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Returns the undiscounted sum of all agents' rewards in complete steps of this chunk.

        By default, excludes rewards of incomplete steps (an action, but no next observation or end of the agent yet)
        and rewards of agents before their first observation.

        Args:
            include_hanging_rewards: Whether to add rewards of incomplete steps that no later chunk completes, and
                rewards of agents before their first observation. The sum over all chunks then has each reward once.
        """
        completed = sum(episode.get_return() for episode in self.agent_episodes.values())
        if not include_hanging_rewards:
            return float(completed)
        hanging = 0.0 if self._goes_on else sum(step.reward for step in self.hanging.values())
        return float(completed + hanging + sum(self._early_rewards.values()))

    def get_duration_s(self) -> float:
        """Returns the seconds between the first and the last observations added to this chunk."""
        return self._duration_s

    def env_steps(self) -> int:
        """Returns the number of env steps in this chunk, without the lookback."""
        return len(self)

    def agent_steps(self) -> int:
        """Returns the number of complete agent steps in this chunk, summed over agents, without the lookback."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    def get_sample_batch(self) -> dict[Any, dict[str, Any]]:
        """Returns the complete steps of this chunk as arrays by agent; see `SingleAgentEpisode.get_sample_batch`."""
        return {agent: episode.get_sample_batch() for agent, episode in self.agent_episodes.items()}

    def print(self) -> None:
        """Prints a table of the env steps at which each agent has an observation."""
        first = self.env_t_started - self._len_lookback
        width = max([4, *(len(str(agent)) + 2 for agent in self.env_t_to_agent_t)])
        marks = {
            agent: ["" if t == SKIPPED else "x" for t in times.data] for agent, times in self.env_t_to_agent_t.items()
        }
        for name, cells in [("ts", range(first, self.env_t + 1)), *marks.items()]:
            print((str(name).ljust(width) + "".join(str(cell).ljust(4) for cell in cells)).rstrip())

    def _chosen(self, agent_ids: Collection[Hashable] | Hashable | None) -> list[Any]:
        if agent_ids is None:
            return list(self.agent_episodes)
        chosen = list(agent_ids) if isinstance(agent_ids, list | tuple | set | frozenset) else [agent_ids]
        for agent in chosen:
            if agent not in self.agent_episodes:
                raise KeyError(
                    f"agent {agent!r} is not in this episode, which has the agents {list(self.agent_episodes)}; pass "
                    "only these agents"
                )
        return chosen

    def _output_names(self, agent: Hashable) -> list[str]:
        hanging = self.hanging.get(agent)
        return [*self.agent_episodes[agent].extra_model_outputs, *(hanging.extra_model_outputs if hanging else ())]

    def _column(self, agent: Hashable, name: str, is_output: bool) -> InfiniteLookbackBuffer | None:
        """Returns one column of an agent's episode, such as "actions", including the item of the agent's incomplete
        step.

        If `is_output`, `name` is a model output; returns None if the agent does not have this output.
        """
        episode, hanging = self.agent_episodes[agent], self.hanging.get(agent)
        if not is_output:
            column = getattr(episode, name)
            if hanging is None or name in ("observations", "infos"):
                return column
            return column + [hanging.action if name == "actions" else hanging.reward]  # noqa: RUF005 - a buffer
        if name not in self._output_names(agent):
            return None
        column = episode.extra_model_outputs.get(name, InfiniteLookbackBuffer())
        if hanging is None or name not in hanging.extra_model_outputs:
            return column
        return column + [hanging.extra_model_outputs[name]]  # noqa: RUF005 - a buffer

    def _get(
        self, name: str, indices: Any, agent_ids: Any, env_steps: bool, return_list: bool, how: Any, is_output=False
    ) -> Any:
        columns = {agent: self._column(agent, name, is_output) for agent in self._chosen(agent_ids)}
        columns = {agent: column for agent, column in columns.items() if column is not None}
        if is_output and not columns:
            raise KeyError(
                f"no extra model output {name!r} in this episode: pass a key of the agents' extra_model_outputs"
            )
        if return_list and not env_steps:
            raise ValueError("return_list=True needs environment steps: leave env_steps=False out")
        is_one = isinstance(indices, numbers.Integral)
        if not env_steps:
            items = {agent: column.get(indices, **how) for agent, column in columns.items()}
            return items if is_one else {agent: some for agent, some in items.items() if _size(some)}
        has_last = name in ("observations", "infos") and not is_output
        moments = self._moments(indices, has_last, how["neg_index_as_lookback"], how["fill"] is not None)
        # Below, negative indices refer to an agent's look-back.
        how = {**how, "neg_index_as_lookback": True}
        if return_list:
            return [self._at_one(columns, moment, how) for moment in ([moments] if is_one else moments)]
        if is_one:
            return self._at_one(columns, moments, how)
        found = {}
        for agent, column in columns.items():
            rows = [row for moment in moments if (row := self._row(agent, column, moment, how["fill"])) is not None]
            if rows:
                found[agent] = column.get(rows, **how)
        return found

    def _moments(self, indices: Any, has_last: bool, neg_index_as_lookback: bool, fills: bool) -> Any:
        """Converts indices of env steps to positions in `env_t_to_agent_t`, the maps from env steps to agent steps.

        If an index is out of range, returns the position -1 for it if `fills` is True, and raises IndexError if `fills`
        is False.
        """
        some = next(iter(self.env_t_to_agent_t.values()), InfiniteLookbackBuffer())
        numbers = list(range(some.len_incl_lookback()))
        moments = InfiniteLookbackBuffer(numbers if has_last else numbers[:-1], some.lookback)
        return moments.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=-1 if fills else None)

    def _row(self, agent: Hashable, column: InfiniteLookbackBuffer, moment: int, fill: Any) -> int | None:
        """Returns the index at which `column`, such as the agent's actions, contains the agent's item for one env step.

        Indices of lookback items are negative. `moment` is the position of the env step in `env_t_to_agent_t`, or -1 if
        the env step is out of range. If the agent has no item for this env step, returns None if `fill` is None, else
        the column's length, an index out of range for which `column.get` returns `fill`.
        """
        agent_t = self.env_t_to_agent_t[agent].data[moment] if moment >= 0 else SKIPPED
        row = None if agent_t == SKIPPED else agent_t - self.agent_episodes[agent].t_started
        # An observation without an act has no action; an output may be newer than the look-back.
        if row is None or not -column.lookback <= row < len(column):
            return None if fill is None else len(column)
        return row

    def _at_one(self, columns: Mapping[Any, InfiniteLookbackBuffer], moment: int, how: Any) -> dict[Any, Any]:
        rows = {agent: self._row(agent, column, moment, how["fill"]) for agent, column in columns.items()}
        return {agent: columns[agent].get(row, **how) for agent, row in rows.items() if row is not None}

    # -------------------------------------------------------------------------------------------------- overwriting

    def set_observations(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites the observations of the agents in `new_data` at the indices `at_indices`, in place.

        Args:
            new_data: By agent: one item for an int index, else one item per index.
            at_indices: Indices of each agent's own steps; see `SingleAgentEpisode.set_observations`.
            neg_index_as_lookback: See `SingleAgentEpisode.set_observations`.

        Raises:
            KeyError: If an agent does not exist.
            IndexError: For an index outside the data, or a wrong number of items.
            ValueError: If structure, shape or dtype do not match.
        """
        for episode, data in self._addressed(new_data):
            episode.set_observations(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites actions of completed steps at the indices `at_indices`, in place. Arguments and errors as in
        `set_observations`.
        """
        for episode, data in self._addressed(new_data):
            episode.set_actions(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites rewards of completed steps at the indices `at_indices`, in place. Arguments and errors as in
        `set_observations`.
        """
        for episode, data in self._addressed(new_data):
            episode.set_rewards(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites the extra model output `key` of completed steps in place, or adds it as a new column.

        `new_data` contains the data by agent. For each agent, the arguments and errors are as in
        `SingleAgentEpisode.set_extra_model_outputs`; also raises KeyError if an agent does not exist.
        """
        for episode, data in self._addressed(new_data):
            episode.set_extra_model_outputs(
                key=key, new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            )

    def _addressed(self, new_data: Mapping[Any, Any]) -> list[tuple[SingleAgentEpisode, Any]]:
        self._chosen(list(new_data))
        return [(self.agent_episodes[agent], data) for agent, data in new_data.items()]

    # ------------------------------------------------------------------------------------------------------- chunks

    def to_numpy(self) -> MultiAgentEpisode:
        """Converts the agents' data to arrays with a leading time axis, in place; returns the episode.

        No step can be added afterwards (`cut()` still returns a successor that can be continued).

        Raises:
            RuntimeError: If the episode has no observation yet.
        """
        if not self.is_reset:
            raise RuntimeError(f"episode {self.id_} has no data to convert: call add_env_reset() before to_numpy()")
        for episode in self.agent_episodes.values():
            episode.to_numpy()
        return self

    def cut(self, len_lookback_buffer: int = 0) -> MultiAgentEpisode:
        """Returns a chunk of length 0 that continues this episode, with copies of the agents' incomplete steps (an
        action without a next observation).

        It has the agents that have not ended.

        Args:
            len_lookback_buffer: Maximum number of environment steps to keep as look-back. More are kept if a running
                agent's last observation is older.

        Raises:
            RuntimeError: If the episode is done.
            ValueError: If `len_lookback_buffer` is negative.
        """
        if self.is_done:
            raise RuntimeError(
                f"episode {self.id_} is done at env step {self.env_t}, so cut() cannot continue the episode: call "
                "cut() only if is_done is False"
            )
        successor = self._chunk(len(self), len(self), len_lookback_buffer)
        for agent, episode in successor.agent_episodes.items():
            successor.agent_episodes[agent] = episode.cut(episode.rewards.lookback)
        successor._last_step_time, self._goes_on = self._last_step_time, True
        return successor

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Returns the env steps in the range `slice_`, a Python slice such as ``slice(10, 20)``, as a separate episode.

        It is done only if it contains this episode's last step. Steps that are completed later become hanging steps at
        its end, with all of their rewards.

        Args:
            slice_: Range of own environment steps, as for a Python list, with step 1.
            len_lookback_buffer: Number of environment steps before the slice to keep as look-back, see `cut`; None: the
                number of look-back steps of this episode.

        Raises:
            TypeError: If `slice_` is not a slice.
            NotImplementedError: If the step of the slice is not 1.
            ValueError: If `len_lookback_buffer` is negative.
        """
        if not isinstance(slice_, slice):
            raise TypeError(f"an episode can be sliced, episode[a:b], but not indexed with {slice_!r}; use get_*()")
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise NotImplementedError(f"an episode slice must have step 1, got {slice_}: use episode[start:stop]")
        stop = max(start, stop)
        part = self._chunk(start, stop, self._len_lookback if len_lookback_buffer is None else len_lookback_buffer)
        part._goes_on = True
        if stop == len(self):
            part.is_terminated, part.is_truncated, part._goes_on = self.is_terminated, self.is_truncated, self._goes_on
        # They belong to the slice with the agent's first observation, so that successive slices have them once.
        for agent, reward in self._early_rewards.items():
            times = self.env_t_to_agent_t.get(agent)
            arrival = len(self) if times is None else first_moment(times)
            if start < arrival <= stop or start == arrival == 0:
                part._early_rewards[agent] = reward
        return part

    def __getitem__(self, item: slice) -> MultiAgentEpisode:
        return self.slice(item)

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Appends the next chunk of the same episode, without its lookback, in place.

        This episode gets the hanging steps and end flags of `other`, and its `custom_data` is updated from `other`.

        Raises:
            ValueError: If the ids differ, this chunk is done, or `other` does not start where this chunk ends.
        """
        if other.id_ != self.id_:
            raise ValueError(
                f"cannot concatenate chunks of two episodes, {self.id_} and {other.id_}: pass a chunk with the same id_"
            )
        if self.is_done:
            raise ValueError(
                f"cannot concatenate to episode {self.id_}, which is done at env step {self.env_t}: call "
                "concat_episode() on the earlier chunk and pass the later one"
            )
        if other.env_t_started != self.env_t:
            raise ValueError(
                f"cannot concatenate: this chunk ends at env step {self.env_t}, but the other chunk starts at "
                f"env step {other.env_t_started}; pass the chunk that starts at env step {self.env_t}"
            )
        self.env_t_to_agent_t = joined_times(
            self.env_t_to_agent_t,
            other.env_t_to_agent_t,
            self._len_lookback + len(self),
            len(other),
            self._len_lookback,
        )
        for agent, episode in other.agent_episodes.items():
            if agent in self.agent_episodes:
                self.agent_episodes[agent].concat_episode(episode)
            else:
                self.agent_episodes[agent] = episode
                self.agent_t_started[agent] = other.agent_t_started[agent]
        for agent, reward in other._early_rewards.items():
            self._early_rewards[agent] = self._early_rewards.get(agent, 0.0) + reward
        self._ended.update((agent, flags) for agent, flags in other._ended.items() if agent not in self.agent_episodes)
        self._end_t.update(other._end_t)
        self._module_ids.update(other._module_ids)
        self.hanging, self._goes_on = dict(other.hanging), other._goes_on
        self.env_t, self.is_terminated, self.is_truncated = other.env_t, other.is_terminated, other.is_truncated
        self.custom_data.update(other.custom_data)
        self._duration_s += other._duration_s
        self._last_step_time = other._last_step_time

    def _chunk(self, start: int, stop: int, lookback: int) -> MultiAgentEpisode:
        """Returns the env steps ``[start, stop)`` of this multi-agent chunk as a new chunk of an episode that has not
        ended.

        It has `lookback` environment steps before them, or more if an agent's last observation is older.
        """
        if lookback < 0:
            raise ValueError(f"len_lookback_buffer={lookback} must be 0 or positive")
        chunk = MultiAgentEpisode(
            self.id_,
            observation_space=self.observation_space,
            action_space=self.action_space,
            env_t_started=self.env_t_started + start,
            agent_module_ids=self._module_ids,
            agent_episode_ids=self._episode_ids,
            agent_to_module_mapping_fn=self.agent_to_module_mapping_fn,
        )
        chunk.env_t, chunk.is_reset = self.env_t_started + stop, self.is_reset
        chunk.custom_data.update(self.custom_data)
        chunk._ended.update(self._ended)
        lookback = min(lookback, self._len_lookback + start)
        present = []
        for agent, episode in self.agent_episodes.items():
            own = agent_range(self.env_t_to_agent_t[agent], start, stop, lookback)
            if own is not None and self._end_t.get(agent, chunk.env_t + 1) <= chunk.env_t_started and len(self):
                chunk._ended[agent] = (episode.is_terminated, episode.is_truncated)
            elif own is not None:
                present.append(agent)
                lookback = max(lookback, self._len_lookback + start - own.began_at)
        chunk._len_lookback = lookback
        for agent in present:
            self._add_part(chunk, agent, start, stop)
        return chunk

    def _add_part(self, chunk: MultiAgentEpisode, agent: Hashable, start: int, stop: int) -> None:
        """Copies the steps of one agent in the env steps ``[start, stop)`` to a new chunk.

        If the agent's last step has no next observation in the chunk, it becomes an incomplete step of the chunk, even
        if it began before `start`.
        """
        episode, times = self.agent_episodes[agent], self.env_t_to_agent_t[agent]
        own = agent_range(times, start, stop, chunk._len_lookback)
        assert own is not None
        first, last = own.start - episode.t_started, own.stop - episode.t_started
        part = episode.slice(slice(first, last), len_lookback_buffer=own.lookback)
        part.is_terminated = part.is_truncated = False
        if self._end_t.get(agent, chunk.env_t + 1) <= chunk.env_t:
            part.is_terminated, part.is_truncated = episode.is_terminated, episode.is_truncated
            chunk._end_t[agent] = self._end_t[agent]
        chunk.agent_episodes[agent], chunk.agent_t_started[agent] = part, part.t_started
        chunk.env_t_to_agent_t[agent] = times.sub_buffer(start, stop + 1, chunk._len_lookback)
        if own.ended_at == times.lookback + stop:
            return
        if last < len(episode):
            outputs = {name: column.get(last) for name, column in episode.extra_model_outputs.items()}
            chunk.hanging[agent] = HangingStep(episode.get_actions(last), outputs, float(episode.get_rewards(last)))
        elif agent in self.hanging:
            chunk.hanging[agent] = dataclasses.replace(self.hanging[agent])

    # -------------------------------------------------------------------------------------------------------- state

    def validate(self) -> None:
        """Checks each agent's episode, and the agent's map from env steps to agent steps (`env_t_to_agent_t`).

        The map must have one item more than this chunk has env steps, and the same lookback. The agent steps in the map
        must be consecutive, and end with the agent's number of completed steps.

        Raises:
            ValueError: If a check fails; names the episode or agent, and the inconsistent values.
        """
        moments = len(self) + 1
        for agent, episode in self.agent_episodes.items():
            episode.validate()
            times = self.env_t_to_agent_t[agent]
            if (len(times), times.lookback) != (moments, self._len_lookback):
                raise ValueError(
                    f"episode {self.id_}: env_t_to_agent_t[{agent!r}] has {len(times)} items and a lookback of "
                    f"{times.lookback}, but env steps {self.env_t_started} to {self.env_t} need {moments} items and a "
                    f"lookback of {self._len_lookback}: add steps only with add_env_step() of this episode"
                )
            seen = [t for t in times.data if t != SKIPPED]
            if seen != list(range(seen[0] if seen else 0, episode.t + 1)):
                raise ValueError(
                    f"episode {self.id_}: env_t_to_agent_t[{agent!r}] has the agent steps {seen}, but they must be "
                    f"consecutive and end with {episode.t}, the agent's number of completed steps: add steps only with "
                    "add_env_step() of this episode"
                )

    def get_state(self) -> dict[str, Any]:
        """Returns the episode as a dict of plain data. Some values are returned without conversion:
        `agent_to_module_mapping_fn`, `custom_data`, infos, and the ids of episodes, agents and modules.

        Raises:
            TypeError: For a space that cannot be described as plain data.
        """
        return {
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: dict(getattr(self, name)) for name in _DICTS},
            "observation_space": dict(self.observation_space),
            "action_space": dict(self.action_space),
            "agent_episodes": {agent: episode.get_state() for agent, episode in self.agent_episodes.items()},
            "env_t_to_agent_t": {agent: times.get_state() for agent, times in self.env_t_to_agent_t.items()},
            "hanging": {
                agent: (step.action, dict(step.extra_model_outputs), step.reward)
                for agent, step in self.hanging.items()
            },
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> MultiAgentEpisode:
        """Builds the episode from a result of `get_state()`.

        Raises:
            ValueError: If the state is inconsistent.
        """
        episode = MultiAgentEpisode(observation_space=state["observation_space"], action_space=state["action_space"])
        # States of earlier versions lack "is_reset"; they have agents if the episode was reset.
        values = {"is_reset": bool(state["agent_episodes"]), **state}
        for name in _PLAIN:
            setattr(episode, name, values[name])
        for name in _DICTS:
            setattr(episode, name, dict(state[name]))
        buffer, single = InfiniteLookbackBuffer.from_state, SingleAgentEpisode.from_state
        episode.agent_episodes = {agent: single(values) for agent, values in state["agent_episodes"].items()}
        times = {agent: buffer(values) for agent, values in state["env_t_to_agent_t"].items()}
        episode.env_t_to_agent_t = TimesByAgent(times)
        episode.hanging = {agent: HangingStep(*values) for agent, values in state["hanging"].items()}
        episode.validate()
        return episode

    def add_temporary_timestep_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Removed; raises a ValueError that names the replacement, `custom_data`."""
        raise ValueError("add_temporary_timestep_data() was removed: use episode.custom_data[key] = value")

    def get_temporary_timestep_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Removed; raises a ValueError that names the replacement, `custom_data`."""
        raise ValueError("get_temporary_timestep_data() was removed: use episode.custom_data[key]")


def episodes_of_agents(episodes: Iterable[SingleAgentEpisode | MultiAgentEpisode]) -> list[SingleAgentEpisode]:
    """Returns a list of single-agent episodes, in which each multi-agent episode is replaced by the episodes of its
    agents.
    """
    found: list[SingleAgentEpisode] = []
    for episode in episodes:
        found += episode.agent_episodes.values() if isinstance(episode, MultiAgentEpisode) else [episode]
    return found


_PLAIN = (
    *("id_", "agent_to_module_mapping_fn", "env_t", "env_t_started", "is_reset", "is_terminated", "is_truncated"),
    *("_goes_on", "_len_lookback", "_duration_s"),
)
_DICTS = ("custom_data", "agent_t_started", "_module_ids", "_episode_ids", "_early_rewards", "_ended", "_end_t")


def _as_flags(flags: Flags | bool) -> Flags:
    if isinstance(flags, Mapping):
        return flags
    # False, the default, sets no flag.
    return {ALL: True} if flags else {}


def _size(items: Any) -> int:
    return len(items) if isinstance(items, list) else nested.batch_size(items)


def _last_steps(
    observations: Sequence[Mapping[Any, Any]],
    actions: Sequence[Mapping[Any, Any]],
    rewards: Sequence[Mapping[Any, Any]],
) -> dict[Any, int]:
    """Returns, for each agent, the last env step in which the agent gets an observation or a reward.

    Omits agents whose last action has no next observation yet.

    Args:
        observations: Observations by agent, one dict more than there are steps.
        actions: Actions by agent, of each step.
        rewards: Rewards by agent, of each step.
    """
    last: dict[Any, int] = {}
    hanging: set[Any] = set()
    for i, (acted, rewarded) in enumerate(zip(actions, rewards, strict=True)):
        last.update(dict.fromkeys([*observations[i + 1], *rewarded], i))
        hanging = (hanging | acted.keys()) - observations[i + 1].keys()
    return {agent: i for agent, i in last.items() if agent not in hanging}
