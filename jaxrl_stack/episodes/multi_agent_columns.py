"""What an episode of several agents holds, read and overwritten by environment time or by each agent's own."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Collection, Hashable, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.episodes.infinite_lookback_buffer import AsItem, Indices, InfiniteLookbackBuffer
from jaxrl_stack.utils import nested

if TYPE_CHECKING:
    from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode

SKIPPED = "S"
"""Stands in an agent's map of times where it has no observation."""


@dataclasses.dataclass(slots=True)
class HangingStep:
    """An agent's step from its action on, until its next observation, or its end, completes it.

    Attributes:
        action: The action.
        extra_model_outputs: Outputs of the module for it, by name.
        reward: Sum of the rewards since.
    """

    action: Any
    extra_model_outputs: Mapping[str, Any]
    reward: float = 0.0


class TimesByAgent(dict[Any, InfiniteLookbackBuffer]):
    """Maps of times by agent; that of an agent that has not been seen is empty."""

    def __missing__(self, agent: Any) -> InfiniteLookbackBuffer:
        return InfiniteLookbackBuffer()


class MultiAgentColumns:
    """Getters and setters of `MultiAgentEpisode`.

    Attributes:
        agent_episodes: Completed steps, by agent.
        env_t_to_agent_t: Environment time -> the agent's own time if it has an observation there, else "S"; by agent.
            All have the same length: the look-back, the first moment, and one more for each environment step. Of an
            agent that was not seen yet it is empty.
        hanging: Steps that are not complete yet, by agent.
    """

    agent_episodes: dict[Any, SingleAgentEpisode]
    env_t_to_agent_t: TimesByAgent
    hanging: dict[Any, HangingStep]

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
        """Observations by agent.

        Args:
            indices: An int, a slice, a list of ints, or None for everything but the look-back.
            agent_ids: Whose; None: everybody's.
            env_steps: Indices are environment steps: an agent has an item for each of them in which it has an
                observation. False: indices are each agent's own steps.
            neg_index_as_lookback: -1 is the last moment of the look-back instead of the newest.
            fill: Stands where there is nothing: outside of the data and, with `env_steps`, where an agent skips.
            one_hot_discrete: One-hot encode `Discrete` and `MultiDiscrete` parts; needs the spaces.
            return_list: One dict by agent for each environment step, instead of one dict of several items each.

        Returns:
            ``{agent: item}`` for an int index, else ``{agent: items}``: lists, or arrays ``[k, ...]`` in a numpy'ized
            episode. Agents without an item are left out.

        Raises:
            IndexError: For an index outside the data without `fill`.
            ValueError: `return_list` without `env_steps`, or `one_hot_discrete` without a space.
            KeyError: There is no such agent.
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
        """Infos by agent; as `get_observations`, but `fill` stands as it is: infos have no structure in common."""
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
        """Actions by agent, hanging ones included; as `get_observations`. One stands where its observation does."""
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
        """Rewards by agent; as `get_actions`. One stands where its action does, a hanging one with its sum so far."""
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
        """Outputs of the modules by agent; as `get_actions`.

        Args:
            key: Name of the column; agents without it are left out. None: all columns, in a dict for each agent.
            indices: As in `get_observations`, like all that follow.
            agent_ids: Likewise.
            env_steps: Likewise.
            neg_index_as_lookback: Likewise.
            fill: Likewise.
            return_list: Likewise; needs a `key`.

        Raises:
            KeyError: No agent has such a column.
        """
        how = {"neg_index_as_lookback": neg_index_as_lookback, "fill": fill}
        if key is not None:
            return self._get(key, indices, agent_ids, env_steps, return_list, how, is_output=True)
        if return_list:
            raise ValueError("return_list=True: get_extra_model_outputs() needs the key of one column then.")
        found: dict[Any, dict[str, Any]] = {}
        for name in dict.fromkeys(name for agent in self._chosen(agent_ids) for name in self._output_names(agent)):
            for agent, items in self._get(name, indices, agent_ids, env_steps, False, how, is_output=True).items():
                found.setdefault(agent, {})[name] = items
        return found

    def set_observations(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite observations in place.

        Args:
            new_data: By agent: one item for an int index, else as many as are addressed.
            at_indices: In each agent's own time; as in `SingleAgentEpisode.set_observations`.
            neg_index_as_lookback: Likewise.

        Raises:
            KeyError: There is no such agent.
            IndexError: For an index outside the data, or another number of items than is addressed.
            ValueError: Structure, shape or dtype do not fit.
        """
        for episode, data in self._addressed(new_data):
            episode.set_observations(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite actions of completed steps in place; as `set_observations`."""
        for episode, data in self._addressed(new_data):
            episode.set_actions(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(
        self, *, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite rewards of completed steps in place; as `set_observations`."""
        for episode, data in self._addressed(new_data):
            episode.set_rewards(new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Mapping[Any, Any], at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrite outputs of completed steps in place, or add a column; as `set_observations`."""
        for episode, data in self._addressed(new_data):
            episode.set_extra_model_outputs(
                key=key, new_data=data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback
            )

    def _addressed(self, new_data: Mapping[Any, Any]) -> list[tuple[SingleAgentEpisode, Any]]:
        self._chosen(list(new_data))
        return [(self.agent_episodes[agent], data) for agent, data in new_data.items()]

    def _chosen(self, agent_ids: Collection[Hashable] | Hashable | None) -> list[Any]:
        if agent_ids is None:
            return list(self.agent_episodes)
        chosen = list(agent_ids) if isinstance(agent_ids, list | tuple | set | frozenset) else [agent_ids]
        for agent in chosen:
            if agent not in self.agent_episodes:
                raise KeyError(f"agent {agent!r} is not in this episode: there are {list(self.agent_episodes)}")
        return chosen

    def _output_names(self, agent: Hashable) -> list[str]:
        hanging = self.hanging.get(agent)
        return [*self.agent_episodes[agent].extra_model_outputs, *(hanging.extra_model_outputs if hanging else ())]

    def _column(self, agent: Hashable, name: str, is_output: bool) -> InfiniteLookbackBuffer | None:
        """The column of an agent with its hanging step at the end; None if it has no such output."""
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
            raise KeyError(f"no extra model output {name!r} in this episode")
        if return_list and not env_steps:
            raise ValueError("return_list=True goes by environment steps: leave env_steps=False out")
        is_one = isinstance(indices, numbers.Integral)
        if not env_steps:
            items = {agent: column.get(indices, **how) for agent, column in columns.items()}
            return items if is_one else {agent: some for agent, some in items.items() if _size(some)}
        has_last = name in ("observations", "infos") and not is_output
        moments = self._moments(indices, has_last, how["neg_index_as_lookback"], how["fill"] is not None)
        # From here on, negative indices are those of an agent's look-back.
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
        """Positions in the maps of times, -1 for those outside."""
        some = next(iter(self.env_t_to_agent_t.values()), InfiniteLookbackBuffer())
        numbers = list(range(some.len_incl_lookback()))
        moments = InfiniteLookbackBuffer(numbers if has_last else numbers[:-1], some.lookback)
        return moments.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=-1 if fills else None)

    def _row(self, agent: Hashable, column: InfiniteLookbackBuffer, moment: int, fill: Any) -> int | None:
        """Index in a column, negative ones of the look-back; one behind its end where `fill` stands; None: nothing."""
        agent_t = self.env_t_to_agent_t[agent].data[moment] if moment >= 0 else SKIPPED
        row = None if agent_t == SKIPPED else agent_t - self.agent_episodes[agent].t_started
        # An observation that was not acted on has no action; an output may have come up later than the look-back.
        if row is None or not -column.lookback <= row < len(column):
            return None if fill is None else len(column)
        return row

    def _at_one(self, columns: Mapping[Any, InfiniteLookbackBuffer], moment: int, how: Any) -> dict[Any, Any]:
        rows = {agent: self._row(agent, column, moment, how["fill"]) for agent, column in columns.items()}
        return {agent: columns[agent].get(row, **how) for agent, row in rows.items() if row is not None}


def _size(items: Any) -> int:
    return len(items) if isinstance(items, list) else nested.batch_size(items)
