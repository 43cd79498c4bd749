"""The trajectories of several agents in one environment, or a chunk of them, as host data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn

from jaxrl_stack.episodes.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.episodes.multi_agent_chunks import agent_range, first_moment, joined_times, last_steps
from jaxrl_stack.episodes.multi_agent_columns import SKIPPED, HangingStep, TimesByAgent
from jaxrl_stack.episodes.multi_agent_recording import Flags, MultiAgentRecording
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.multi_agent import ALL


class MultiAgentEpisode(MultiAgentRecording):
    """Several agents' observations, actions, rewards, infos and model outputs, each in a `SingleAgentEpisode`.

    Agents need not observe in every environment step: exactly those in the newest observations act. An action whose
    next observation has not come is *hanging*: the rewards since add up, and the agent's step is complete with its next
    observation, or its end. It belongs to the chunk in which it completes.

    An agent ends by its own flag or by ``"__all__"`` of the same kind. One that terminates without an observation gets
    its last one again. One that is first seen in the step that ends it has no episode here.

    Args:
        id_: Identifies the episode, over all its chunks; random if None.
        observations: Dicts by agent: of the reset, and of each environment step.
        observation_space: Space of one observation, by agent.
        infos: Dicts by agent, as many as observations.
        actions: Dicts by agent, one for each environment step.
        action_space: Space of one action, by agent.
        rewards: Dicts by agent, one for each environment step.
        terminateds: Whether agents are terminated at the end of the given data, and with ``"__all__"`` the episode;
            True is for ``"__all__"``.
        truncateds: Whether they are cut off there; likewise.
        extra_model_outputs: Dicts by agent of outputs by name, one for each environment step.
        env_t_started: Environment step, counted from the reset, at which this chunk starts; 0 if None.
        agent_t_started: The agents' own steps at which it starts for them; 0 where there is none.
        len_lookback_buffer: Number of environment steps at the front of the given data that are look-back, as far as
            there are any; "auto": all.
        agent_episode_ids: Ids of the agents' episodes, by agent; random where there is none.
        agent_module_ids: Ids of the RLModules that act for agents.
        agent_to_module_mapping_fn: Called as ``fn(agent_id, episode)``, once per agent, for those without such an id.
            None: all have "default_policy".

    Attributes:
        id_: Identifies the episode.
        agent_episodes: The agents' episodes, by agent, completed steps only.
        env_t: Environment steps since the reset.
        env_t_started: Steps before this chunk.
        agent_t_started: Likewise in the agents' own steps.
        is_reset: Whether the observations of a reset were added, although they may be none.
        is_terminated: Whether the episode reached an end of its own.
        is_truncated: Whether it was cut off.
        custom_data: A dict for the user's own data; chunks and slices inherit a shallow copy of it.

    Raises:
        MultiAgentEnvError: The data breaks a rule of `add_env_step`.
        ValueError: Another number of observations than there are rewards, plus 1.
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
        super().__init__(
            id_,
            observation_space=observation_space,
            action_space=action_space,
            env_t_started=env_t_started or 0,
            agent_episode_ids=agent_episode_ids,
            agent_module_ids=agent_module_ids,
            agent_to_module_mapping_fn=agent_to_module_mapping_fn,
        )
        if observations:
            flags = _as_flags(terminateds), _as_flags(truncateds)
            self._replay(observations, actions or (), rewards or (), infos, extra_model_outputs, flags)
            self._begin_own_steps(len_lookback_buffer, agent_t_started or {})
            self._last_step_time, self._duration_s = None, 0.0

    @property
    def agent_ids(self) -> set[Any]:
        """Ids of the agents that have an episode here."""
        return set(self.agent_episodes)

    @property
    def agent_episode_ids(self) -> dict[Any, str]:
        """Ids of the agents' episodes."""
        return {agent: episode.id_ for agent, episode in self.agent_episodes.items()}

    def validate(self) -> None:
        """Check that the agents' episodes and their maps of times fit together.

        Raises:
            ValueError: Naming the agent and what does not fit.
        """
        moments = len(self) + 1
        for agent, episode in self.agent_episodes.items():
            episode.validate()
            times = self.env_t_to_agent_t[agent]
            if (len(times), times.lookback) != (moments, self._len_lookback):
                raise ValueError(
                    f"episode {self.id_}: the map of times of agent {agent!r} has {len(times)} items after "
                    f"{times.lookback} look-back items; {moments} after {self._len_lookback} fit env steps "
                    f"{self.env_t_started} to {self.env_t}"
                )
            seen = [t for t in times.data if t != SKIPPED]
            if seen != list(range(seen[0] if seen else 0, episode.t + 1)):
                raise ValueError(f"episode {self.id_}: agent {agent!r} stands at its step {episode.t}, but saw {seen}")

    def to_numpy(self) -> MultiAgentEpisode:
        """Turn the agents' data into arrays with a leading time axis, in place; returns the episode.

        No step can be added afterwards (`cut()` still gives a successor that can be continued).

        Raises:
            RuntimeError: The episode has no observation yet.
        """
        if not self.is_reset:
            raise RuntimeError(f"episode {self.id_} has no data to convert: call add_env_reset() before to_numpy()")
        for episode in self.agent_episodes.values():
            episode.to_numpy()
        return self

    def cut(self, len_lookback_buffer: int = 0) -> MultiAgentEpisode:
        """Return the chunk of length 0 that continues this one, with its hanging steps.

        It has the agents that have not ended.

        Args:
            len_lookback_buffer: Number of environment steps to keep as look-back, as far as there are any. There are
                more where an agent that has not ended needs them to have its last observation.

        Raises:
            RuntimeError: The episode is done.
            ValueError: `len_lookback_buffer` is negative.
        """
        if self.is_done:
            raise RuntimeError(
                f"episode {self.id_} is done at env step {self.env_t}: there is nothing to continue after a cut()"
            )
        successor = self._chunk(len(self), len(self), len_lookback_buffer)
        for agent, episode in successor.agent_episodes.items():
            successor.agent_episodes[agent] = episode.cut(episode.rewards.lookback)
        successor._last_step_time, self._goes_on = self._last_step_time, True
        return successor

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> MultiAgentEpisode:
        """Return the environment steps of `slice_` as an episode of its own.

        It is done only if it contains this episode's last step. Steps that complete later hang at its end, with all of
        their rewards.

        Args:
            slice_: Range of own environment steps, as for a Python list, with step 1.
            len_lookback_buffer: Number of environment steps before the slice to keep as look-back, as in `cut`; as many
                as this episode has if None.

        Raises:
            TypeError: `slice_` is no slice.
            NotImplementedError: The step of the slice is not 1.
            ValueError: `len_lookback_buffer` is negative.
        """
        if not isinstance(slice_, slice):
            raise TypeError(f"an episode can be sliced, episode[a:b], but not indexed with {slice_!r}; use get_*()")
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise NotImplementedError(f"an episode slice must have step 1, got {slice_}")
        stop = max(start, stop)
        part = self._chunk(start, stop, self._len_lookback if len_lookback_buffer is None else len_lookback_buffer)
        part._goes_on = True
        if stop == len(self):
            part.is_terminated, part.is_truncated, part._goes_on = self.is_terminated, self.is_truncated, self._goes_on
        # With an agent's first observation, so that slices one after the other have them once.
        for agent, reward in self._early_rewards.items():
            times = self.env_t_to_agent_t.get(agent)
            arrival = len(self) if times is None else first_moment(times)
            if start < arrival <= stop or start == arrival == 0:
                part._early_rewards[agent] = reward
        return part

    def __getitem__(self, item: slice) -> MultiAgentEpisode:
        return self.slice(item)

    def concat_episode(self, other: MultiAgentEpisode) -> None:
        """Append the following chunk of the same episode, in place; its look-back is left out.

        This episode takes the hanging steps and end flags of `other`, and the union of both `custom_data`, where
        `other` wins.

        Raises:
            ValueError: The ids differ, this chunk is done, or `other` does not start where this chunk ends.
        """
        if other.id_ != self.id_:
            raise ValueError(f"cannot concatenate chunks of two episodes: {self.id_} and {other.id_}")
        if self.is_done:
            raise ValueError(f"cannot concatenate to episode {self.id_}: it is done at env step {self.env_t}")
        if other.env_t_started != self.env_t:
            raise ValueError(
                f"cannot concatenate: this chunk ends at env step {self.env_t}, the other one starts at "
                f"{other.env_t_started}"
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

    def get_terminateds(self) -> dict[Any, bool]:
        """Whether each agent is terminated, and with ``"__all__"`` the episode."""
        flags = {agent: episode.is_terminated for agent, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_terminated}

    def get_truncateds(self) -> dict[Any, bool]:
        """Whether each agent is cut off, and with ``"__all__"`` the episode."""
        flags = {agent: episode.is_truncated for agent, episode in self.agent_episodes.items()}
        return {**flags, ALL: self.is_truncated}

    def get_return(self, include_hanging_rewards: bool = False) -> float:
        """Sum of all agents' rewards of own, completed steps, undiscounted.

        Args:
            include_hanging_rewards: Add rewards of steps that are not complete, if no other chunk completes them, and
                rewards of agents before their first observation: all rewards, over all chunks, each once.
        """
        completed = sum(episode.get_return() for episode in self.agent_episodes.values())
        if not include_hanging_rewards:
            return float(completed)
        hanging = 0.0 if self._goes_on else sum(step.reward for step in self.hanging.values())
        return float(completed + hanging + sum(self._early_rewards.values()))

    def get_duration_s(self) -> float:
        """Seconds spent between the first and the last observations that were added to this chunk."""
        return self._duration_s

    def env_steps(self) -> int:
        """Number of own environment steps."""
        return len(self)

    def agent_steps(self) -> int:
        """Number of all agents' own, completed steps."""
        return sum(len(episode) for episode in self.agent_episodes.values())

    def get_sample_batch(self) -> dict[Any, dict[str, Any]]:
        """Columns of arrays by agent, of own, completed steps; see `SingleAgentEpisode.get_sample_batch`."""
        return {agent: episode.get_sample_batch() for agent, episode in self.agent_episodes.items()}

    def print(self) -> None:
        """Print which agent has an observation at which environment step."""
        first = self.env_t_started - self._len_lookback
        width = max([4, *(len(str(agent)) + 2 for agent in self.env_t_to_agent_t)])
        marks = {
            agent: ["" if t == SKIPPED else "x" for t in times.data] for agent, times in self.env_t_to_agent_t.items()
        }
        for name, cells in [("ts", range(first, self.env_t + 1)), *marks.items()]:
            print((str(name).ljust(width) + "".join(str(cell).ljust(4) for cell in cells)).rstrip())

    def get_state(self) -> dict[str, Any]:
        """Return the episode's content; plain data but for `agent_to_module_mapping_fn`, ids and `custom_data`.

        Raises:
            TypeError: For a space that has no plain description.
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
        """Build the episode that `get_state()` described.

        Raises:
            ValueError: The state contradicts itself.
        """
        episode = MultiAgentEpisode(observation_space=state["observation_space"], action_space=state["action_space"])
        # States of earlier versions have agents if there was a reset.
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
        """Removed; raises ValueError with the replacement, `custom_data`."""
        raise ValueError("add_temporary_timestep_data() was removed: use episode.custom_data[key] = value")

    def get_temporary_timestep_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Removed; raises ValueError with the replacement, `custom_data`."""
        raise ValueError("get_temporary_timestep_data() was removed: use episode.custom_data[key]")

    def __repr__(self) -> str:
        end = [name for name, flag in (("terminated", self.is_terminated), ("truncated", self.is_truncated)) if flag]
        returns = {agent: episode.get_return() for agent, episode in self.agent_episodes.items()}
        return (
            f"MultiAgentEpisode({self.id_}, env_t={self.env_t_started}..{self.env_t}, returns={returns}, "
            f"{' and '.join(end) or 'running'})"
        )

    def _replay(
        self, observations: Any, actions: Any, rewards: Any, infos: Any, outputs: Any, flags: tuple[Flags, Flags]
    ) -> None:
        """Add the given data step by step; an agent's flags belong to its last one, those of everybody to the last."""
        steps = len(rewards)
        infos = [{}] * (steps + 1) if infos is None else infos
        outputs = [{}] * steps if outputs is None else outputs
        lengths = {"observations": len(observations) - 1, "infos": len(infos) - 1, "actions": len(actions)}
        for name, length in {**lengths, "extra_model_outputs": len(outputs)}.items():
            if length != steps:
                raise ValueError(f"episode {self.id_} has {steps} rewards, but {name} for {length} env steps")
        self.add_env_reset(observations=observations[0], infos=infos[0])
        last = last_steps(observations, actions, rewards)
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
        """Make the first environment steps look-back."""
        lookback = len(self)
        if len_lookback_buffer != "auto":
            if not isinstance(len_lookback_buffer, int) or len_lookback_buffer < 0:
                raise ValueError(
                    f'len_lookback_buffer={len_lookback_buffer!r} must be "auto" or the number (>= 0) of env steps at '
                    "the front of the data that are look-back"
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

    def _chunk(self, start: int, stop: int, lookback: int) -> MultiAgentEpisode:
        """Own environment steps ``[start, stop)`` with `lookback` before them, or as many as agents need; not done."""
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
        """Give a chunk an agent's steps, and the one that hangs at its end."""
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


def episodes_of_agents(episodes: Iterable[SingleAgentEpisode | MultiAgentEpisode]) -> list[SingleAgentEpisode]:
    """Episodes of one agent as they are; of several agents those of each agent in their place."""
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
    # The default, False, says nothing.
    return {ALL: True} if flags else {}
