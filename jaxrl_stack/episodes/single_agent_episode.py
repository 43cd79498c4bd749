"""Episode of one agent, or a chunk of an episode, on the host."""

from __future__ import annotations

import numbers
import time
import uuid
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, SupportsFloat

import numpy as np

from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.episodes.infinite_lookback_buffer import AsItem, Indices, InfiniteLookbackBuffer
from jaxrl_stack.utils.nested import equal

if TYPE_CHECKING:
    import gymnasium as gym

IDENTITY = ("id_", "agent_id", "module_id", "multi_agent_episode_id")
"""Names of the attributes and arguments that identify the episode of a chunk, and its agent."""
_COLUMNS = ("observations", "actions", "rewards", "infos")


OLD_MEMBERS = {
    "custom_metrics": "Use metrics_logger.log_value(name, value) in the callback.",
    "hist_data": "Use metrics_logger.log_value(name, value, reduce='item_series') in the callback.",
    "user_data": "Use episode.custom_data, a dict.",
    "length": "Use len(episode).",
    "total_reward": "Use episode.get_return().",
    "last_observation_for": "Use episode.get_observations(-1).",
    "last_reward_for": "Use episode.get_rewards(-1).",
    "last_action_for": "Use episode.get_actions(-1).",
    "last_info_for": "Use episode.get_infos(-1).",
}
"""Members of the episodes of RLlib's old API stack, and their replacements."""


class SingleAgentEpisode:
    """Observations, actions, rewards, infos and model outputs of one agent, with lookback steps of an earlier chunk at
    the front.

    An episode (chunk) with n steps has n actions, rewards and extra model outputs, and n + 1 observations and
    infos: `actions[t]` was computed from `observations[t]` and led to `rewards[t]`, `observations[t + 1]`. Each
    column may start with look-back items from the chunk before, which lengths and returns exclude.

    Data is first collected in lists (`add_env_reset`, `add_env_step`); `to_numpy()` converts the columns to
    arrays with a leading time axis. Infos always remain a list of dicts.

    Args:
        id_: id of the episode, common to all its chunks; a random hexadecimal string if None.
        observations: look-back and own observations: a list of items, a structure of arrays `[T + 1, ...]`,
            or a buffer. If any column is given as arrays, all columns become arrays.
        observation_space: gymnasium space of one observation.
        infos: list of dicts, as many as observations; empty dicts if None.
        actions: as `observations`, `[T, ...]`.
        action_space: gymnasium space of one action.
        rewards: list of T numbers (kept as float64), or an array `[T]`.
        terminated: whether the episode ended in a terminal state after the last step.
        truncated: whether the episode was truncated after the last step, by a time limit for example.
        extra_model_outputs: further per-step columns by name, each as `actions`.
        t_started: time step, counted from the episode's reset, at which this chunk starts; 0 if None.
        len_lookback_buffer: number of steps at the front of the given data that are look-back; limited to the
            number of rewards. "auto": all of them.
        agent_id: the agent's id in a multi-agent environment.
        module_id: id of the RLModule that acts for the agent.
        multi_agent_episode_id: id of the multi-agent episode that this one belongs to.

    Raises:
        ValueError: if the columns are inconsistent (see `validate`) or `len_lookback_buffer` is neither "auto" nor
            an int >= 0.
    """

    __slots__ = (
        *IDENTITY,
        *_COLUMNS,
        "_custom_data",
        "_duration_s",
        "_last_step_time",
        "extra_model_outputs",
        "is_terminated",
        "is_truncated",
        "t",
        "t_started",
    )

    if not TYPE_CHECKING:
        __getattr__ = old_members(OLD_MEMBERS)

    def __init__(
        self,
        id_: str | None = None,
        *,
        observations: Any = None,
        observation_space: gym.Space | None = None,
        infos: list[dict] | InfiniteLookbackBuffer | None = None,
        actions: Any = None,
        action_space: gym.Space | None = None,
        rewards: Any = None,
        terminated: bool | np.bool_ = False,
        truncated: bool | np.bool_ = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
        t_started: int | None = None,
        len_lookback_buffer: int | Literal["auto"] = "auto",
        agent_id: Hashable | None = None,
        module_id: str | None = None,
        multi_agent_episode_id: str | None = None,
    ):
        self.id_ = uuid.uuid4().hex if id_ is None else id_
        self.agent_id = agent_id
        self.module_id = module_id
        self.multi_agent_episode_id = multi_agent_episode_id
        self.is_terminated = bool(terminated)
        self.is_truncated = bool(truncated)
        self._custom_data: dict[Any, Any] = {}
        # Durations are sums over steps, not differences of wall times, so that they stay right after cut(),
        # concat_episode() and in a different process.
        self._duration_s = 0.0
        self._last_step_time: float | None = None

        if isinstance(rewards, list):
            rewards = [_as_float(reward) for reward in rewards]
        reward_column = _column(rewards, 0)
        if len_lookback_buffer == "auto":
            ready = isinstance(rewards, InfiniteLookbackBuffer)
            lookback = rewards.lookback if ready else len(reward_column)
        elif isinstance(len_lookback_buffer, numbers.Integral) and len_lookback_buffer >= 0:
            lookback = min(int(len_lookback_buffer), reward_column.len_incl_lookback())
        else:
            raise ValueError(
                f'len_lookback_buffer={len_lookback_buffer!r} must be "auto" or an int n >= 0: the first n '
                "steps of the data become the look-back"
            )
        self.rewards = _column(rewards, lookback)
        self.actions = _column(actions, lookback, action_space)
        self.observations = _column(observations, lookback, observation_space)
        if infos is None:
            infos = [{} for _ in range(self.observations.len_incl_lookback())]
        self.infos = _column(infos, self.observations.lookback)
        self.extra_model_outputs = {
            key: _column(values, lookback) for key, values in (extra_model_outputs or {}).items()
        }
        self.t_started = t_started or 0
        self.t = self.t_started + len(self.rewards)
        self.validate()
        if any(column.finalized for column in self._array_columns()):
            self.to_numpy()

    @classmethod
    def from_arrays(
        cls,
        *,
        observations: Any,
        actions: Any,
        rewards: Any,
        extra_model_outputs: Mapping[str, Any] | None = None,
        len_lookback_buffer: int = 0,
        **more: Any,
    ) -> SingleAgentEpisode:
        """Creates a numpy'ized episode from arrays, without a copy or work per step.

        The arrays (views of a larger trajectory, for example) are only read: `set_*` copies a column before
        its first write.

        Args:
            observations: structure of arrays `[T + 1, ...]`, where T includes the look-back steps.
            actions: structure of arrays `[T, ...]`.
            rewards: array `[T]`.
            extra_model_outputs: structures of arrays `[T, ...]` by column name.
            len_lookback_buffer: number of look-back steps at the front of the arrays.
            **more: `terminated`, `truncated`, `infos` (T + 1 dicts), `id_`, `t_started` and the spaces, as in the
                constructor.

        Raises:
            ValueError: if the arrays are inconsistent.
        """
        # A list of arrays means a list of time steps, so a nested list becomes a tuple here.
        return cls(
            observations=_as_structure(observations),
            actions=_as_structure(actions),
            rewards=np.asarray(rewards),
            extra_model_outputs={key: _as_structure(values) for key, values in (extra_model_outputs or {}).items()},
            len_lookback_buffer=len_lookback_buffer,
            **more,
        )

    @property
    def observation_space(self) -> gym.Space | None:
        """Gymnasium space of one observation; None if the space is unknown."""
        return self.observations.space

    @observation_space.setter
    def observation_space(self, space: gym.Space | None) -> None:
        self.observations.space = space

    @property
    def action_space(self) -> gym.Space | None:
        """Gymnasium space of one action; None if the space is unknown."""
        return self.actions.space

    @action_space.setter
    def action_space(self, space: gym.Space | None) -> None:
        self.actions.space = space

    @property
    def custom_data(self) -> dict[Any, Any]:
        """Dict for the user's own data; chunks and slices get a shallow copy."""
        return self._custom_data

    @property
    def is_reset(self) -> bool:
        """Whether the episode has a first observation."""
        return self.observations.len_incl_lookback() > 0

    @property
    def is_numpy(self) -> bool:
        """Whether the columns are arrays."""
        return self.observations.finalized

    @property
    def is_done(self) -> bool:
        """Whether the episode has ended, terminated or truncated."""
        return self.is_terminated or self.is_truncated

    def add_env_reset(self, observation: Any, infos: dict | None = None) -> None:
        """Adds the environment's first observation and infos; must be the first call on a new episode.

        Raises:
            RuntimeError: if the episode already has observations.
        """
        if self.is_reset:
            raise RuntimeError(
                f"episode {self.id_} was reset already (it is at t={self.t}); make a new episode for the next reset, "
                "or cut() this one to continue it"
            )
        self.observations.append(observation)
        self.infos.append({} if infos is None else infos)
        self._last_step_time = time.perf_counter()

    def add_env_step(
        self,
        observation: Any,
        action: Any,
        reward: SupportsFloat | str,
        infos: dict | None = None,
        *,
        terminated: bool | np.bool_ = False,
        truncated: bool | np.bool_ = False,
        extra_model_outputs: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds one environment step: the agent's action, and the results of this action.

        Args:
            observation: the observation after the step.
            action: the action that was taken.
            reward: reward of the step, stored as a float; strings (names of rewards in examples) are not converted.
            infos: the step's info dict; an empty one if None.
            terminated: whether the step ended in a terminal state.
            truncated: whether the episode was truncated after the step.
            extra_model_outputs: further outputs of the module for this step. Keys may differ between chunks, not
                within a chunk; look-back of keys that the first step lacks is dropped.

        Raises:
            RuntimeError: if the episode is not reset yet, done, or numpy'ized.
            ValueError: if the keys of `extra_model_outputs` differ from the chunk's earlier steps.
        """
        if self.is_terminated or self.is_truncated:
            raise RuntimeError(
                f"episode {self.id_} is done at t={self.t}: add further steps to a new SingleAgentEpisode()"
            )
        if self.observations.finalized:
            raise RuntimeError(
                f"episode {self.id_}: no step can be added after to_numpy(). Add steps before to_numpy(), or to the "
                "chunk that cut() returns"
            )
        if not self.observations.data:
            raise RuntimeError(
                f"episode {self.id_} has no first observation: call add_env_reset() before add_env_step()"
            )
        outputs = extra_model_outputs or {}
        if outputs.keys() != self.extra_model_outputs.keys():
            self.extra_model_outputs = self._output_columns(outputs)
        self.observations.data.append(observation)
        self.actions.data.append(action)
        self.rewards.data.append(_as_float(reward))
        self.infos.data.append({} if infos is None else infos)
        for key, column in self.extra_model_outputs.items():
            column.data.append(outputs[key])
        self.is_terminated = bool(terminated)
        self.is_truncated = bool(truncated)
        self.t += 1

        now = time.perf_counter()
        if self._last_step_time is not None:
            self._duration_s += now - self._last_step_time
        self._last_step_time = now

    def validate(self) -> None:
        """Checks the lengths of the episode's columns: n rewards need n actions, n items of each model output, and
        n + 1 observations and infos.

        Raises:
            ValueError: if an episode with n rewards does not have n actions and extra model outputs and n + 1
                observations and infos, or if look-back lengths or `t` disagree; it names the column and both
                lengths.
        """
        steps, lookback = len(self.rewards), self.rewards.lookback
        frames = steps + 1 if self.is_reset else 0
        if not self.is_reset and (steps or lookback):
            raise ValueError(
                f"episode {self.id_} has {steps + lookback} rewards, but no observations: pass observations, one more "
                "than rewards"
            )
        for name, expected in (("observations", frames), ("infos", frames), ("actions", steps)):
            column = getattr(self, name)
            if (len(column), column.lookback) != (expected, lookback):
                raise ValueError(
                    f"episode {self.id_}: {name} have {len(column)} items after {column.lookback} lookback items, but "
                    f"{steps} rewards after {lookback} lookback items need {expected} items after {lookback} lookback "
                    f"items: pass {name} of this length and lookback"
                )
        for key, column in self.extra_model_outputs.items():
            # A key may be newer than the look-back, so that its look-back is shorter.
            if len(column) != steps or column.lookback > lookback:
                raise ValueError(
                    f"episode {self.id_}: extra model output {key!r} has {len(column)} items after {column.lookback} "
                    f"lookback items, but {steps} rewards after {lookback} lookback items need {steps} items after at "
                    f"most {lookback} lookback items: pass one item per reward, and no longer lookback"
                )
        if self.t != self.t_started + steps:
            raise ValueError(
                f"episode {self.id_}: t={self.t} must be t_started + number of steps = {self.t_started} + {steps}: "
                f"set episode.t = {self.t_started + steps}"
            )

    def to_numpy(self) -> SingleAgentEpisode:
        """Converts all columns except infos to arrays with a leading time axis, in place; returns the episode.

        No step can be added afterwards (`cut()` still returns a successor that can be continued).

        Raises:
            RuntimeError: if the episode has no observation yet.
        """
        if not self.is_reset:
            raise RuntimeError(f"episode {self.id_} has no data to convert: call add_env_reset() before to_numpy()")
        for column in self._array_columns():
            column.finalize()
        return self

    def get_observations(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Returns one observation if `indices` is an int, else k observations: as a list, or as arrays ``[k, ...]`` in
        a numpy'ized episode.

        Args:
            indices: an int, a slice, a list of ints, or None for all own items. `0` is the first own item,
                without the look-back. Negative indices count from the end and may reach the look-back.
            neg_index_as_lookback: whether -1 is the last look-back item, right before this chunk.
            fill: replacement of items outside the data. A number fills all leaves of an item of the usual
                structure.
            one_hot_discrete: whether to one-hot encode `Discrete` and `MultiDiscrete` parts; needs the space.

        Raises:
            IndexError: for an index outside the data without `fill`.
            TypeError: for indices of a different type.
            ValueError: for `one_hot_discrete` without a space.
        """
        return self.observations.get(
            indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, one_hot_discrete=one_hot_discrete
        )

    def get_infos(self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None) -> Any:
        """Returns one info dict or a list of info dicts.

        See `get_observations` for the arguments. In this method, however, `fill` replaces a missing info dict as a
        whole, even if `fill` is a number.
        """
        fill = None if fill is None else AsItem(fill)
        return self.infos.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_actions(
        self,
        indices: Indices = None,
        *,
        neg_index_as_lookback: bool = False,
        fill: Any = None,
        one_hot_discrete: bool = False,
    ) -> Any:
        """Returns one action or several. See `get_observations` for arguments, result and errors."""
        return self.actions.get(
            indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill, one_hot_discrete=one_hot_discrete
        )

    def get_rewards(
        self, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: float | None = None
    ) -> Any:
        """Returns one reward or several. See `get_observations` for arguments, result and errors."""
        return self.rewards.get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def get_extra_model_outputs(
        self, key: str, indices: Indices = None, *, neg_index_as_lookback: bool = False, fill: Any = None
    ) -> Any:
        """Returns one item of the extra model output `key`, or several. See `get_observations` for other arguments.

        Raises:
            KeyError: if the column does not exist.
        """
        if key not in self.extra_model_outputs:
            raise KeyError(
                f"no extra model output {key!r}: this episode has {sorted(self.extra_model_outputs)}; pass one of "
                "these keys"
            )
        return self.extra_model_outputs[key].get(indices, neg_index_as_lookback=neg_index_as_lookback, fill=fill)

    def set_observations(
        self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites the observations at the indices `at_indices` with `new_data`, in place.

        Args:
            new_data: one item for an int index, else one item per index: a list of items or a structure of arrays
                `[k, ...]`. In a numpy'ized episode they must have the stored shapes and dtypes, unless they
                replace the whole column, look-back included.
            at_indices: an int, a slice, a list of ints, or None for all own items; rules as in
                `get_observations`.
            neg_index_as_lookback: as in `get_observations`.

        Raises:
            IndexError: for an index outside the data, or a wrong number of items.
            ValueError: if structure, shape or dtype do not match.
        """
        self.observations.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_actions(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites the actions at the indices `at_indices` with `new_data`, in place. Arguments and errors as in
        `set_observations`.
        """
        self.actions.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_rewards(self, *, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False) -> None:
        """Overwrites the rewards at the indices `at_indices` with `new_data`, in place. Arguments and errors as in
        `set_observations`.
        """
        self.rewards.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)

    def set_extra_model_outputs(
        self, *, key: str, new_data: Any, at_indices: Indices = None, neg_index_as_lookback: bool = False
    ) -> None:
        """Overwrites the extra model output `key` in place, or adds it as a new column.

        Args:
            key: column name. A new one needs data for all own steps, with `at_indices=None`.
            new_data: as in `set_observations`.
            at_indices: as in `set_observations`.
            neg_index_as_lookback: as in `set_observations`.

        Raises:
            KeyError: if `key` is new and `at_indices` is given.
            IndexError: for an index outside the data, or a wrong number of items.
            ValueError: if structure, shape or dtype do not match.
        """
        column = self.extra_model_outputs.get(key)
        if column is not None:
            column.set(new_data, at_indices=at_indices, neg_index_as_lookback=neg_index_as_lookback)
            return
        if at_indices is not None:
            raise KeyError(
                f"no extra model output {key!r} to overwrite at {at_indices}: the episode has only "
                f"{sorted(self.extra_model_outputs)}. To add it, pass data for all steps and at_indices=None"
            )
        column = _column(new_data, 0)
        if len(column) != len(self):
            raise IndexError(
                f"the new extra model output {key!r} has {len(column)} items for {len(self)} steps: pass one item per "
                "step"
            )
        if self.is_numpy:
            column.finalize()
        else:
            column.unfinalize()
        self.extra_model_outputs[key] = column

    def cut(self, len_lookback_buffer: int = 0) -> SingleAgentEpisode:
        """Returns a chunk of length 0 that continues this episode.

        It has the same ids, spaces and `custom_data` (a shallow copy), starts at this chunk's `t` with its
        last observation and info, and keeps the last steps as look-back. Its columns are lists, so that steps
        can be added.

        Args:
            len_lookback_buffer: maximum number of steps to keep (this chunk's look-back included).

        Raises:
            RuntimeError: if the episode is done.
            ValueError: if `len_lookback_buffer` is negative.
        """
        if self.is_done:
            raise RuntimeError(
                f"episode {self.id_} is done at t={self.t}, so cut() cannot continue the episode: call cut() only if "
                "is_done is False"
            )
        successor = self._chunk(len(self), len(self), len_lookback_buffer)
        for column in successor._array_columns():
            column.unfinalize()
        return successor

    def slice(self, slice_: slice, *, len_lookback_buffer: int | None = None) -> SingleAgentEpisode:
        """Returns the steps in the range `slice_`, a Python slice such as ``slice(10, 20)``, as a separate episode.

        The new episode also contains the observation after the last of these steps.

        The new episode has the same ids, spaces and `custom_data` (a shallow copy). It is terminated or
        truncated only if it contains this episode's last step.

        Args:
            slice_: range of own steps, as for a Python list, with step 1.
            len_lookback_buffer: maximum number of steps before the slice to keep as look-back; None: the number of
                look-back steps of this episode.

        Raises:
            TypeError: if `slice_` is not a slice.
            ValueError: if the step of the slice is not 1, or `len_lookback_buffer` is negative.
        """
        if not isinstance(slice_, slice):
            raise TypeError(f"an episode can be sliced, episode[a:b], but not indexed with {slice_!r}; use get_*()")
        start, stop, step = slice_.indices(len(self))
        if step != 1:
            raise ValueError(f"an episode slice must have step 1, got {slice_}: use episode[start:stop]")
        stop = max(start, stop)
        lookback = self.rewards.lookback if len_lookback_buffer is None else len_lookback_buffer
        part = self._chunk(start, stop, lookback)
        # An episode without own steps may also have ended, at its only observation.
        if stop == len(self) and (start < stop or not len(self)):
            part.is_terminated, part.is_truncated = self.is_terminated, self.is_truncated
        return part

    def __getitem__(self, item: slice) -> SingleAgentEpisode:
        return self.slice(item)

    def concat_episode(self, other: SingleAgentEpisode) -> None:
        """Appends the next chunk of the same episode, without its lookback, in place.

        This episode keeps its form (lists or arrays), and gets the end flags of `other`. Its `custom_data` is updated
        from `other`.

        Raises:
            ValueError: if the ids differ, this chunk is done, `other` does not start at this chunk's `t` or
                with its last observation, or their extra model outputs have different keys.
        """
        if other.id_ != self.id_:
            raise ValueError(
                f"cannot concatenate chunks of two episodes, {self.id_} and {other.id_}: pass a chunk with the same id_"
            )
        if self.is_done:
            raise ValueError(
                f"cannot concatenate to episode {self.id_}, which is done at t={self.t}: call concat_episode() on the "
                "earlier chunk and pass the later one"
            )
        if other.t_started != self.t:
            raise ValueError(
                f"cannot concatenate: this chunk ends at t={self.t}, but the other chunk starts at "
                f"t={other.t_started}; pass the chunk that starts at t={self.t}"
            )
        if not self.is_reset or not other.is_reset:
            raise ValueError(
                "cannot concatenate: one of the chunks has no observation; first call add_env_reset() on the "
                "chunk without an observation"
            )
        if not equal(self.get_observations(-1), other.get_observations(0)):
            raise ValueError(
                "cannot concatenate: the last observation of this chunk differs from the first observation of the next "
                "chunk; create the next chunk with cut()"
            )
        self.validate()
        other.validate()
        outputs = self._output_columns(other.extra_model_outputs) if len(other) else self.extra_model_outputs
        # The boundary observation and info are in both chunks. The buffers are new, so that an error changes nothing.
        observations = self.observations + other.observations.sub_buffer(1, len(other) + 1, 0)
        infos = self.infos + other.infos.sub_buffer(1, len(other) + 1, 0)
        actions, rewards = self.actions + other.actions, self.rewards + other.rewards
        if len(other):
            outputs = {key: column + other.extra_model_outputs[key] for key, column in outputs.items()}
        self.observations, self.infos, self.actions, self.rewards = observations, infos, actions, rewards
        self.extra_model_outputs = outputs
        if self.is_numpy:
            self.to_numpy()
        self.t = other.t
        self.is_terminated, self.is_truncated = other.is_terminated, other.is_truncated
        self._custom_data.update(other.custom_data)
        self._duration_s += other._duration_s
        self._last_step_time = other._last_step_time

    def get_return(self) -> float:
        """Returns the undiscounted sum of this chunk's rewards, without the lookback."""
        return float(np.sum(self.rewards.get(), dtype=np.float64))

    def get_duration_s(self) -> float:
        """Returns the seconds between the first and the last observation added to this chunk."""
        return self._duration_s

    def env_steps(self) -> int:
        """Returns the number of env steps, without the lookback."""
        return len(self)

    def agent_steps(self) -> int:
        """Returns the number of agent steps, without the lookback; equals the number of env steps."""
        return len(self)

    def __len__(self) -> int:
        """Number of steps, without the lookback."""
        return self.t - self.t_started

    def get_data_dict(self) -> dict[str, Any]:
        """Returns the episode's steps, without the lookback, as a dict of columns: lists, or arrays in a numpy'ized
        episode.

        The keys are obs, actions, rewards, terminateds, truncateds, infos, t, eps_id, and the extra model
        outputs. The observations are those before each step, without the last one.
        """
        steps = len(self)
        terminateds, truncateds = np.zeros(steps, bool), np.zeros(steps, bool)
        if steps:
            terminateds[-1], truncateds[-1] = self.is_terminated, self.is_truncated
        per_step = {
            "terminateds": terminateds,
            "truncateds": truncateds,
            "t": np.arange(self.t_started, self.t),
            "eps_id": np.full(steps, self.id_),
        }
        if not self.is_numpy:
            per_step = {key: values.tolist() for key, values in per_step.items()}
        own_steps = slice(0, steps)
        return {
            "obs": self.get_observations(own_steps),
            "infos": self.get_infos(own_steps),
            "actions": self.get_actions(),
            "rewards": self.get_rewards(),
            **per_step,
            **{key: column.get() for key, column in self.extra_model_outputs.items()},
        }

    def get_sample_batch(self) -> dict[str, Any]:
        """Returns `get_data_dict()` with arrays in every column except infos; the episode is not changed."""
        return self.slice(slice(None), len_lookback_buffer=0).to_numpy().get_data_dict()

    def get_state(self) -> dict[str, Any]:
        """Returns the episode as plain data: arrays, numbers, strings, and descriptions of the spaces.

        Infos, ids and `custom_data` are not converted.

        Raises:
            TypeError: for a space that cannot be described as plain data.
        """
        return {
            **self._identity(),
            **{name: getattr(self, name).get_state() for name in _COLUMNS},
            "extra_model_outputs": {key: column.get_state() for key, column in self.extra_model_outputs.items()},
            "is_terminated": self.is_terminated,
            "is_truncated": self.is_truncated,
            "t_started": self.t_started,
            "t": self.t,
            "duration_s": self._duration_s,
            "custom_data": dict(self._custom_data),
        }

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> SingleAgentEpisode:
        """Builds the episode from a result of `get_state()`.

        Raises:
            ValueError: if the state is inconsistent.
        """
        column = InfiniteLookbackBuffer.from_state
        columns: dict[str, Any] = {name: column(state[name]) for name in _COLUMNS}
        episode = SingleAgentEpisode(
            **{name: state[name] for name in IDENTITY},
            **columns,
            extra_model_outputs={key: column(values) for key, values in state["extra_model_outputs"].items()},
            terminated=state["is_terminated"],
            truncated=state["is_truncated"],
            t_started=state["t_started"],
        )
        episode.t = state["t"]
        episode.validate()
        episode._duration_s = state["duration_s"]
        episode._custom_data.update(state["custom_data"])
        return episode

    def add_temporary_timestep_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Removed; raises a ValueError that names the replacement, `custom_data`."""
        raise ValueError("add_temporary_timestep_data() was removed: use episode.custom_data[key] = value")

    def get_temporary_timestep_data(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Removed; raises a ValueError that names the replacement, `custom_data`."""
        raise ValueError("get_temporary_timestep_data() was removed: use episode.custom_data[key]")

    def __repr__(self) -> str:
        end = [name for name, flag in (("terminated", self.is_terminated), ("truncated", self.is_truncated)) if flag]
        return (
            f"SingleAgentEpisode({self.id_}, t={self.t_started}..{self.t}, return={self.get_return():g}, "
            f"{' and '.join(end) or 'running'})"
        )

    def _identity(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in IDENTITY}

    def _array_columns(self) -> list[InfiniteLookbackBuffer]:
        """Returns a list of the buffers of all columns except infos, because infos cannot be arrays."""
        return [self.observations, self.actions, self.rewards, *self.extra_model_outputs.values()]

    def _output_columns(self, outputs: Mapping[str, Any]) -> dict[str, InfiniteLookbackBuffer]:
        """Returns the columns ``{key: buffer}`` to which the next step's model outputs are appended; raises ValueError
        if earlier steps have other keys.

        The acting module determines the keys, so that a chunk without own steps accepts any keys.
        """
        columns = self.extra_model_outputs
        if outputs.keys() == columns.keys():
            return columns
        if len(self):
            raise ValueError(
                f"extra_model_outputs has the keys {sorted(outputs)}, but the earlier steps of this chunk of "
                f"episode {self.id_} have {sorted(columns)}; give the same keys at every step"
            )
        return {key: columns.get(key, InfiniteLookbackBuffer()) for key in outputs}

    def _chunk(self, start: int, stop: int, lookback: int) -> SingleAgentEpisode:
        """Returns the steps `[start, stop)` as an unfinished episode, with up to `lookback` preceding steps as
        lookback."""
        if lookback < 0:
            raise ValueError(f"len_lookback_buffer={lookback} must be 0 or positive")
        chunk = SingleAgentEpisode(
            **self._identity(),
            observations=self.observations.sub_buffer(start, stop + 1, lookback),
            infos=self.infos.sub_buffer(start, stop + 1, lookback),
            actions=self.actions.sub_buffer(start, stop, lookback),
            rewards=self.rewards.sub_buffer(start, stop, lookback),
            extra_model_outputs={
                key: column.sub_buffer(start, stop, lookback) for key, column in self.extra_model_outputs.items()
            },
            t_started=self.t_started + start,
        )
        chunk._custom_data.update(self._custom_data)
        return chunk


def _as_float(reward: Any) -> Any:
    """Converts a reward to a Python float; Python floats, NumPy float64 and strings are returned unchanged."""
    return reward if isinstance(reward, float | str) else float(reward)


def _column(data: Any, lookback: int, space: gym.Space | None = None) -> InfiniteLookbackBuffer:
    if not isinstance(data, InfiniteLookbackBuffer):
        return InfiniteLookbackBuffer(data, lookback, space)
    if space is not None:
        data.space = space
    return data


def _as_structure(data: Any) -> Any:
    return tuple(data) if isinstance(data, list) else data
