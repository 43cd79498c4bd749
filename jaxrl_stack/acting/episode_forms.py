"""Conversion of recorded environment steps to episode objects, for one or several agents, step by step."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from jaxrl_stack.core.columns import NOT_MODEL_OUTPUTS, Columns
from jaxrl_stack.core.module_map import ModuleMap
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.multi_agent import ALL
from jaxrl_stack.utils.nested import batch, equal, take, unbatch

ACTS, OBSERVES = "acts", "observes"
"""Columns of `ShownStep.agents`: whether an agent acts in a step, and whether it is to act after the step."""


class EpisodeForm(Protocol):
    """Interface of a converter from recorded steps of one environment (pytrees without time and environment axes) to
    episode objects.
    """

    def new(self) -> Any:
        """Returns an empty episode object, without observations."""
        ...

    def reset(self, episode: Any, step: Any) -> None:
        """Adds the first observation, after an environment's reset, to a new episode; with several agents, one
        observation for each agent that acts in the first step.
        """
        ...

    def add(self, episode: Any, step: Any) -> None:
        """Appends a recorded step (actions, rewards, next observations) to an episode object."""
        ...

    def flags(self, block: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the flags ``(terminateds, truncateds)`` of a recorded block of steps, bool ``[T, B]`` each."""
        ...

    def stored(self, episodes: Sequence[Any]) -> dict[str, Any]:
        """Returns unfinished episodes as plain data for checkpoints.

        Returns:
            Lists with one entry per episode. For episodes of one agent also ``"columns"``, with the steps of all
            episodes one after the other.
        """
        ...

    def restored(self, state: Mapping[str, Any]) -> list[Any]:
        """Rebuilds unfinished episodes from plain data, a result of `stored`.

        Args:
            state: Result of `stored`, with the episodes' ``"lengths"``; other entries are ignored.
        """
        ...


class SingleAgentForm:
    """Converts recorded steps of a single agent to `SingleAgentEpisode` objects; each step is one row of the recorded
    columns.

    Args:
        observation_space: Space of the module's inputs.
        action_space: Space of the module's actions.
    """

    def __init__(self, observation_space: Any, action_space: Any):
        self._spaces = {"observation_space": observation_space, "action_space": action_space}

    def new(self) -> SingleAgentEpisode:
        """Returns an empty `SingleAgentEpisode`, without observations."""
        return SingleAgentEpisode(**self._spaces)

    def reset(self, episode: SingleAgentEpisode, step: Mapping[str, Any]) -> None:
        """Adds the first observation, after an environment's reset, to a new episode."""
        episode.add_env_reset(step[Columns.OBS])

    def add(self, episode: SingleAgentEpisode, step: Mapping[str, Any]) -> None:
        """Appends a recorded step (action, reward, next observation) to an episode object."""
        episode.add_env_step(
            step[Columns.FINAL_OBS],
            step[Columns.ACTIONS],
            float(step[Columns.REWARDS]),
            terminated=bool(step[Columns.TERMINATEDS]),
            truncated=bool(step[Columns.TRUNCATEDS]),
            extra_model_outputs={k: v for k, v in step.items() if k not in NOT_MODEL_OUTPUTS},
        )

    def flags(self, block: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """Returns the flags ``(terminateds, truncateds)`` of a recorded block of steps, bool ``[T, B]`` each."""
        return block[Columns.TERMINATEDS], block[Columns.TRUNCATEDS]

    def stored(self, episodes: Sequence[SingleAgentEpisode]) -> dict[str, Any]:
        """Returns unfinished episodes as plain data for checkpoints, see `EpisodeForm.stored`."""
        columns = [
            {
                **{name: column.get() for name, column in episode.extra_model_outputs.items()},
                Columns.OBS: episode.get_observations(),
                Columns.ACTIONS: episode.get_actions(),
                Columns.REWARDS: episode.get_rewards(),
            }
            for episode in episodes
        ]
        return {
            "ids": [episode.id_ for episode in episodes],
            "custom_data": [_data_in(episode.custom_data) for episode in episodes],
            "columns": {name: batch([row for own in columns for row in own[name]]) for name in columns[0]},
        }

    def restored(self, state: Mapping[str, Any]) -> list[SingleAgentEpisode]:
        """Rebuilds unfinished episodes from plain data, a result of `stored`, see `EpisodeForm.restored`."""
        episodes, start = [], 0
        members = (state["ids"], state["lengths"], state["custom_data"])
        for number, (id_, length, custom_data) in enumerate(zip(*members, strict=True)):
            # One observation more than steps, in every episode before this one.
            columns = _rows_of(state["columns"], slice(start, start + length), start + number)
            episode = SingleAgentEpisode(
                id_,
                observations=columns.pop(Columns.OBS),
                actions=columns.pop(Columns.ACTIONS),
                rewards=[float(reward) for reward in columns.pop(Columns.REWARDS)],
                extra_model_outputs=columns,
                len_lookback_buffer=0,
                **self._spaces,
            )
            episode.custom_data.update(_data_in(custom_data))
            episodes.append(episode)
            start += length
        return episodes


class MultiAgentForm:
    """Converts recorded steps of several agents (`ShownStep`) to `MultiAgentEpisode` objects.

    Observations are the modules' inputs.

    Args:
        module_of: ``{agent id: module id}``.
        spaces: ``(observation space, action space)`` of each module, by id.
    """

    def __init__(self, module_of: Mapping[Any, str], spaces: Mapping[str, tuple[Any, Any]]):
        self._module_of = dict(module_of)
        observation_spaces, action_spaces = ({a: spaces[m][i] for a, m in module_of.items()} for i in (0, 1))
        self._spaces: dict[str, Any] = {"observation_space": observation_spaces, "action_space": action_spaces}

    def new(self) -> MultiAgentEpisode:
        """Returns an empty `MultiAgentEpisode`, without observations."""
        return MultiAgentEpisode(agent_to_module_mapping_fn=self._asked_for, **self._spaces)

    def _asked_for(self, agent_id: Any, episode: MultiAgentEpisode, **kwargs: Any) -> str:
        return self._module_of[agent_id]

    def reset(self, episode: MultiAgentEpisode, step: Any) -> None:
        """Adds the first observations, after an environment's reset, to a new episode: one for each agent that acts in
        the first step.
        """
        episode.add_env_reset(observations={a: own[Columns.OBS] for a, own in step.agents.items() if own[ACTS]})

    def add(self, episode: MultiAgentEpisode, step: Any) -> None:
        """Appends a recorded step (actions, rewards, next observations by agent) to an episode object."""
        known = episode.agent_episodes
        running = {agent: step.agents[agent] for agent, own in known.items() if not own.is_done}
        coming = {agent: own for agent, own in step.agents.items() if agent not in known}
        acting = {agent: own for agent, own in running.items() if own[ACTS]}
        for agent, own in acting.items():
            # A filter's statistics may have changed since the agent's last step: keep the observation it acted on.
            if not equal(known[agent].get_observations(-1), own[Columns.OBS]):
                known[agent].set_observations(new_data=own[Columns.OBS], at_indices=-1)
        observing = [agent for agent, own in running.items() if own[OBSERVES] or _has_ended(own)]
        observing += [agent for agent, own in coming.items() if own[OBSERVES] and not _has_ended(own)]
        rewarded = [*running, *(agent for agent, own in coming.items() if own[Columns.REWARDS])]
        episode.add_env_step(
            {agent: step.agents[agent][Columns.FINAL_OBS] for agent in observing},
            {agent: own[Columns.ACTIONS] for agent, own in acting.items()},
            {agent: float(step.agents[agent][Columns.REWARDS]) for agent in rewarded},
            terminateds={
                **{agent: bool(own[Columns.TERMINATEDS]) for agent, own in running.items()},
                ALL: bool(step.terminateds),
            },
            truncateds={
                **{agent: bool(own[Columns.TRUNCATEDS]) for agent, own in running.items()},
                ALL: bool(step.truncateds) and not step.terminateds,
            },
            extra_model_outputs={agent: _outputs(own) for agent, own in acting.items()},
        )

    def flags(self, block: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the flags ``(terminateds, truncateds)`` of a recorded block of steps, bool ``[T, B]`` each."""
        return block.terminateds, block.truncateds

    def stored(self, episodes: Sequence[MultiAgentEpisode]) -> dict[str, Any]:
        """Returns unfinished episodes as plain data for checkpoints, see `EpisodeForm.stored`."""
        states = [_with_data_of_agents(episode.get_state()) for episode in episodes]
        return {"episodes": [{**state, "agent_to_module_mapping_fn": None} for state in states]}

    def restored(self, state: Mapping[str, Any]) -> list[MultiAgentEpisode]:
        """Rebuilds unfinished episodes from plain data, a result of `stored`, see `EpisodeForm.restored`."""
        episodes = [MultiAgentEpisode.from_state(_with_data_of_agents(own)) for own in state["episodes"]]
        for episode in episodes:
            episode.agent_to_module_mapping_fn = self._asked_for
        return episodes


def episodes_of_rollout(module_map: ModuleMap, spaces: Mapping[str, tuple[Any, Any]]) -> EpisodeForm:
    """Returns the converter from recorded steps to episode objects for a rollout on the device: a `MultiAgentForm` for
    several agents, else a `SingleAgentForm`.

    Args:
        module_map: Mapping from agents to modules.
        spaces: ``(observation space, action space)`` of each module, by id.
    """
    if module_map.is_multi_agent:
        return MultiAgentForm(module_map.module_of, spaces)
    return SingleAgentForm(*spaces[module_map.module_id])


def stored_episode(episode: SingleAgentEpisode) -> dict[str, Any]:
    """Converts an unfinished episode to plain data for checkpoints; `restored_episode` is the inverse function.

    Infos and `custom_data` are deep copies without the entries that a checkpoint cannot store.
    """
    return _with_data(episode.get_state())


def restored_episode(state: Mapping[str, Any]) -> SingleAgentEpisode:
    """Rebuilds an episode from a result of `stored_episode`, with deep copies of infos and `custom_data`."""
    return SingleAgentEpisode.from_state(_with_data(state))


def _with_data(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a single-agent episode's state. In the copy, infos and `custom_data` contain only data that
    checkpoints can store.
    """
    infos = [_data_in(info) if isinstance(info, Mapping) else {} for info in state["infos"]["data"]]
    return {**state, "infos": {**state["infos"], "data": infos}, "custom_data": _data_in(state["custom_data"])}


def _with_data_of_agents(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of a multi-agent episode's state. In the copy, infos and `custom_data` contain only data that
    checkpoints can store.
    """
    agents = {agent: _with_data(own) for agent, own in state["agent_episodes"].items()}
    return {**state, "agent_episodes": agents, "custom_data": _data_in(state["custom_data"])}


def _has_ended(columns: Mapping[str, Any]) -> bool:
    return bool(columns[Columns.TERMINATEDS] or columns[Columns.TRUNCATEDS])


def _outputs(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Selects the module's extra outputs, such as ``action_logp``, from the columns of a step."""
    return {name: own for name, own in columns.items() if name not in NOT_MODEL_OUTPUTS | {ACTS, OBSERVES}}


def _data_in(entries: Mapping[Any, Any]) -> dict[Any, Any]:
    """Returns a deep copy of an info dict or of `custom_data`, without the entries that a checkpoint cannot store."""
    return {key: copy.deepcopy(value) for key, value in entries.items() if _is_data(value)}


def _rows_of(columns: Mapping[str, Any], steps: slice, first_observation: int) -> dict[str, list[Any]]:
    """Selects the rows of one episode from `columns`, which contain the steps of several episodes one after the other
    (see `EpisodeForm.stored`). Returns ``{column: list of rows}``.
    """
    observations = slice(first_observation, first_observation + steps.stop - steps.start + 1)
    return {name: unbatch(take(c, observations if name == Columns.OBS else steps)) for name, c in columns.items()}


def _is_data(value: Any) -> bool:
    """Whether a checkpoint can store a value: numbers, text, arrays, and lists and dicts of these."""
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_data(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    if isinstance(value, np.ndarray | np.generic):
        return value.dtype.kind in "biufc"
    return value is None or isinstance(value, bool | int | float | str)
