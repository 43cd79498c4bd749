"""How an episode of several agents grows by environment steps, and which steps fit."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NoReturn

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_columns import SKIPPED, HangingStep, MultiAgentColumns, TimesByAgent
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.multi_agent import agent_flags, episode_flags

Flags = Mapping[Any, bool]
DEFAULT_MODULE_ID = "default_policy"


class MultiAgentRecording(MultiAgentColumns):
    """The state of a `MultiAgentEpisode`, and the environment steps that are added to it.

    Arguments and attributes are those of `MultiAgentEpisode`.
    """

    def __init__(
        self,
        id_: str | None,
        *,
        observation_space: Mapping[Any, Any] | None,
        action_space: Mapping[Any, Any] | None,
        env_t_started: int,
        agent_episode_ids: Mapping[Any, str] | None,
        agent_module_ids: Mapping[Any, str] | None,
        agent_to_module_mapping_fn: Callable[..., str] | None,
    ):
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_to_module_mapping_fn = agent_to_module_mapping_fn
        self._module_ids: dict[Any, str] = dict(agent_module_ids or {})
        self._episode_ids = dict(agent_episode_ids or {})
        self.observation_space, self.action_space = observation_space or {}, action_space or {}
        self.env_t = self.env_t_started = env_t_started
        self.agent_t_started: dict[Any, int] = {}
        self.agent_episodes: dict[Any, SingleAgentEpisode] = {}
        self.env_t_to_agent_t = TimesByAgent()
        self.hanging: dict[Any, HangingStep] = {}
        # Rewards of agents before their first observation: of no step.
        self._early_rewards: dict[Any, float] = {}
        # (terminated, truncated) of agents that ended, and have no episode in this chunk.
        self._ended: dict[Any, tuple[bool, bool]] = {}
        # Environment step at which agents with an episode here ended.
        self._end_t: dict[Any, int] = {}
        # Another chunk completes the hanging steps, and counts their rewards.
        self._goes_on = False
        self._len_lookback = 0
        self.is_reset = self.is_terminated = self.is_truncated = False
        self.custom_data: dict[Any, Any] = {}
        self._duration_s = 0.0
        self._last_step_time: float | None = None

    @property
    def is_numpy(self) -> bool:
        """Whether the agents' episodes hold arrays."""
        return any(episode.is_numpy for episode in self.agent_episodes.values())

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated."""
        return self.is_terminated or self.is_truncated

    def add_env_reset(self, *, observations: Mapping[Any, Any], infos: Mapping[Any, Any] | None = None) -> None:
        """Add what the environment's ``reset`` returned; once, on a new episode.

        Args:
            observations: By agent; empty if no agent acts in the first step.
            infos: By agent; empty for those that are missing.

        Raises:
            RuntimeError: The episode was reset already.
        """
        if self.is_reset:
            raise RuntimeError(
                f"episode {self.id_} was reset already (it stands at env step {self.env_t}); make a new episode for "
                "the next reset, or cut() this one to continue it"
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
        """Add one environment step.

        Args:
            observations: After the step, by agent: these act next.
            actions: That were taken, by agent, of agents with an observation before the step.
            rewards: By agent; of those without an observation they add up until they have one.
            infos: By agent; those of agents without an observation are dropped.
            terminateds: Whether agents, or with ``"__all__"`` everybody, reached an end; missing ones have not.
            truncateds: Whether they were cut off; likewise.
            extra_model_outputs: Outputs of the modules for these actions, by name, by agent.

        Raises:
            RuntimeError: The episode is not reset yet, done, or numpy'ized.
            ValueError: An agent's `extra_model_outputs` have other keys than in its earlier steps of this chunk.
            MultiAgentEnvError: An agent that has ended gets something; one acts without an observation, or observes
                without an action or a reward; one is cut off right after its action and has no observation.
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
        """Id of the RLModule that acts for an agent: asked for once, and kept for the whole episode."""
        if agent_id not in self._module_ids:
            fn = self.agent_to_module_mapping_fn
            self._module_ids[agent_id] = DEFAULT_MODULE_ID if fn is None else fn(agent_id, self)
        return self._module_ids[agent_id]

    def get_agents_to_act(self) -> set[Any]:
        """The agents with an observation in the newest step that have not ended."""
        return {agent for agent in self.get_agents_that_stepped() if not self.agent_episodes[agent].is_done}

    def get_agents_that_stepped(self) -> set[Any]:
        """The agents with an observation in the newest step, those included that have just ended."""
        return {agent for agent, times in self.env_t_to_agent_t.items() if times.data[-1] != SKIPPED}

    def __len__(self) -> int:
        """Number of own environment steps, the look-back excluded."""
        return self.env_t - self.env_t_started

    def _begin(self, agent: Hashable, observation: Any, info: Any) -> None:
        """Add an agent with its first observation."""
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
            raise RuntimeError(f"episode {self.id_} is done at env step {self.env_t}: no step can be added")
        if self.is_numpy:
            raise RuntimeError(
                f"episode {self.id_} holds arrays: add steps before to_numpy(), or to its cut() successor"
            )

    def _check_step(
        self, observations: Mapping[Any, Any], actions: Mapping[Any, Any], rewards: Mapping[Any, Any], cut_off: set[Any]
    ) -> None:
        for what, values in (("an observation", observations), ("an action", actions), ("a reward", rewards)):
            for agent in values:
                if agent in self._ended or agent in self._end_t:
                    self._refuse(f"agent {agent!r} has ended, but there is {what} of it; leave it out until the reset")
        to_act = self.get_agents_to_act()
        for agent in actions:
            if agent not in to_act:
                self._refuse(
                    f"agent {agent!r} acts without an observation; only those in the newest observations act, here "
                    f"{sorted(map(str, to_act))}"
                )
            if agent in observations and agent not in rewards:
                self._refuse(f"agent {agent!r} acted and has an observation, but no reward; return one, 0.0 for none")
            if agent in cut_off and agent not in observations:
                self._refuse(
                    f"agent {agent!r} acted and is truncated, but has no last observation, from which values are "
                    "bootstrapped; return it"
                )
        for agent in observations:
            if agent in self.agent_episodes and agent not in actions and agent not in self.hanging:
                self._refuse(
                    f"agent {agent!r} has an observation, but did not act since its last one; give its action, or "
                    "return its observation when it is to act"
                )

    def _add_to(
        self, agent: Hashable, observations: Mapping[Any, Any], info: Any, terminated: bool, truncated: bool
    ) -> None:
        """Complete an agent's step if it observes or ends, and note its end."""
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
