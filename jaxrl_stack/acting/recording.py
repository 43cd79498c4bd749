"""What a host runner writes down while it steps its environments: preallocated arrays, one row per vector step."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import PackedColumns
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Part, RecordingId
from jaxrl_stack.utils.action_masks import ACTION_MASK
from jaxrl_stack.utils.nested import take

if TYPE_CHECKING:
    from jaxrl_stack.core.module_map import ModuleMap


@dataclasses.dataclass
class EndedEpisodes:
    """Episodes that ended, in the order in which they did.

    Attributes:
        returns: float64 ``[n]``, sums of unclipped rewards.
        lengths: int64 ``[n]``, steps.
        durations: float64 ``[n]``, seconds from their reset to their end.
        agent_returns: ``[n]`` by agent, where there are several: parts of the returns; NaN if it took no part.
    """

    returns: np.ndarray
    lengths: np.ndarray
    durations: np.ndarray
    agent_returns: Mapping[Any, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, ended: Sequence[Sequence[float]], agents: Sequence[Any] = ()) -> EndedEpisodes:
        """From ``(return, length, duration)`` of each, and the returns of `agents`."""
        returns, lengths, durations, *own = zip(*ended, strict=True) if ended else [()] * (3 + len(agents))
        return cls(
            np.array(returns, np.float64),
            np.array(lengths, np.int64),
            np.array(durations, np.float64),
            {agent: np.array(numbers, np.float64) for agent, numbers in zip(agents, own, strict=True)},
        )

    def mean_returns(self, module_map: ModuleMap) -> dict[str, dict[str, float]]:
        """Mean returns of several agents and of modules, ``{"agent": {...}, "module": {...}}``; {} where there is one.

        Means are over the episodes that an agent, or one of a module's agents, took part in; NaN without any. Where
        episodes say which module acts for which agent, modules are left out.

        Args:
            module_map: Which module acts for which agent.
        """
        own = self.agent_returns
        if not own:
            return {}
        means = {"agent": {str(agent): _mean_of_known(returns) for agent, returns in own.items()}}
        if not module_map.slots:
            means["module"] = {
                mid: _mean_of_known(_sum_of_known([own[agent] for agent in agents]))
                for mid, agents in module_map.agents_of.items()
            }
        return means

    def rows(self) -> Iterator[tuple[float, ...]]:
        """``(return, length, duration)`` of each and the returns of the agents, as `of` takes them."""
        columns = (self.returns, self.lengths, self.durations, *self.agent_returns.values())
        return zip(*(column.tolist() for column in columns), strict=True)


def _mean_of_known(numbers: np.ndarray) -> float:
    known = numbers[~np.isnan(numbers)]
    return float(np.mean(known, dtype=np.float64)) if len(known) else math.nan


def _sum_of_known(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Sums ``[n]`` of what is no NaN; NaN where nothing is."""
    stacked = np.stack(parts)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0, dtype=np.float64))


class StepTimes(NamedTuple):
    """Duration of vector steps.

    Attributes:
        seconds: Of all of them.
        num_steps: How many.
    """

    seconds: float = 0.0
    num_steps: int = 0

    def plus(self, other: StepTimes) -> StepTimes:
        """Both together."""
        return StepTimes(self.seconds + other.seconds, self.num_steps + other.num_steps)


NO_STEP_TIMES = StepTimes()


@dataclasses.dataclass
class SampleReport:
    """What a runner says beside the steps that it sampled.

    Attributes:
        episodes: The episodes that ended.
        metrics: The runner's reduced metrics.
        connector_state: The env-to-module pipeline's state, for merging; None if it keeps nothing to merge.
        agent_steps: Completed steps of each of several agents; {} where there is one.
        step_times: Of environments that are stepped one after the other.
    """

    episodes: EndedEpisodes
    metrics: dict[str, Any]
    connector_state: dict[str, Any] | None = None
    agent_steps: dict[Any, int] = dataclasses.field(default_factory=dict)
    step_times: StepTimes = NO_STEP_TIMES


@dataclasses.dataclass
class SampleBlock:
    """What one runner sampled in one go: NumPy arrays, which travel between processes without being copied.

    Attributes:
        part: Columns ``[T, B, ...]`` of the module: obs (its inputs, or frames of them: `core.frames`), actions,
            rewards (the environment's), terminateds, truncateds, final_obs (valid where truncated and in the last row)
            and its outputs, of its recurrent states those at chunk starts; loss_mask where an environment was only
            reset in some row, or failed, with its whole episode. Or whole episodes.
        report: What else there is to say.
    """

    part: Part
    report: SampleReport

    @property
    def experience(self) -> Experience:
        """The steps alone."""
        return Experience((self.part,))

    @property
    def num_env_steps(self) -> int:
        """Rows in which an environment was stepped, not only reset."""
        return self.part.num_env_steps

    def kept_at(self, reference: Any) -> SampleBlock:
        """Without the columns, which stay in Ray's object store; see `Part.kept_at`."""
        return dataclasses.replace(self, part=self.part.kept_at(reference))


def newest_connector_states(states: Sequence[tuple[RecordingId, dict[str, Any]]]) -> list[dict[str, Any]]:
    """One connector state per runner: a later one includes what an earlier one has counted.

    A restarted runner counts as another one: it knows nothing of what was counted before.
    """
    newest: dict[tuple[int | str, int], dict[str, Any]] = {}
    for source, state in sorted(states, key=operator.itemgetter(0)):
        newest[source.worker_index, source.num_restarts] = state
    return list(newest.values())


class Recording:
    """Rows of ``B`` environments, up to ``T`` of them: the `RolloutRecording` of one agent, as dense arrays.

    Args:
        module_id: The module that acts.
        num_steps: ``T``.
        num_envs: ``B``.
        layout: How the policy packs its results.
        obs: One observation of all environments, if the environment's own are what the module gets; None if the
            policy's results hold the module's inputs.
        starts: bool ``[B]``, whether row 0 is the first of an episode; it is copied.

    Attributes:
        resets: bool ``[T + 1, B]``, whether a row is the first of an episode.
        num_steps: Rows so far.
        num_failures: Environments that failed in them.
        infos: Infos per step and environment, if they are kept for episodes.
        reset_infos: ``{(t, b): info}`` of the observations that episodes of environments b begin with in row t.
    """

    def __init__(
        self, module_id: str, num_steps: int, num_envs: int, layout: PackedColumns, obs: Any, *, starts: np.ndarray
    ):
        shape = (num_steps, num_envs)
        self.module_id = module_id
        self.infos: list[Sequence[dict]] = []
        self.reset_infos: dict[tuple[int, int], dict] = {}
        self.resets = np.zeros((num_steps + 1, num_envs), bool)
        self.resets[0] = starts
        self._layout = layout
        self._matrix = np.empty((*shape, layout.width), np.uint32)
        self._loose = tuple(np.empty((num_steps, *rest), dtype) for rest, dtype in layout.loose)
        self._obs = jax.tree.map(lambda x: np.empty((num_steps, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype)), obs)
        self._obs_rows = jax.tree.leaves(self._obs)
        self.rewards = np.zeros(shape, np.float32)
        self.terminateds = np.zeros(shape, bool)
        self.truncateds = np.zeros(shape, bool)
        self._valid: np.ndarray | None = None
        self._finals: list[tuple[int, np.ndarray, Any]] = []
        self.num_steps = self.num_failures = 0

    def add(self, matrix: np.ndarray, loose: Any, step: Any) -> None:
        """One vector step.

        Args:
            matrix: The policy's packed results.
            loose: Its other results.
            step: The `VectorStep`.
        """
        t = self.num_steps
        self._matrix[t] = matrix
        for row, leaf in zip(self._loose, loose, strict=True):
            row[t] = leaf
        self.rewards[t] = step.rewards
        self.terminateds[t] = step.terminateds
        self.truncateds[t] = step.truncateds
        if step.valid is not None:
            if self._valid is None:
                self._valid = np.ones(self.rewards.shape, bool)
            self._valid[t] = step.valid
        self.num_steps = t + 1
        for index in step.failed:
            self.drop_running(index)

    def begin(self, where: np.ndarray) -> None:
        """The next row is the first of an episode, for the environments of a mask ``[B]``."""
        self.resets[self.num_steps] = where

    def drop_running(self, index: int) -> None:
        """Leave out what there is of the episode of an environment that failed in the last step."""
        end = self.num_steps
        if self._valid is None:
            self._valid = np.ones(self.rewards.shape, bool)
        ends = np.flatnonzero((self.terminateds | self.truncateds)[:end, index])
        self._valid[ends[-1] + 1 if len(ends) else 0 : end, index] = False
        self.num_failures += 1

    def add_obs(self, obs: Any) -> None:
        """The environments' observations before the next step, if it is these that are recorded."""
        if not self._obs_rows:
            return
        leaves = (obs,) if isinstance(obs, np.ndarray) else jax.tree.leaves(obs)
        for row, leaf in zip(self._obs_rows, leaves, strict=True):
            row[self.num_steps] = leaf

    def add_final(self, where: np.ndarray, observations: Any) -> None:
        """The module's inputs after the last step, for the environments of a mask ``[B]``."""
        self._finals.append((self.num_steps - 1, where, observations))

    def not_usable(self) -> list[NotUsable]:
        """Observations and rewards that are NaN or infinite, and masks that allow no action, the first one first."""
        end = self.num_steps
        obs_is_usable = self._layout.usable.read(self._matrix[:end], ())
        rewards_are_finite = np.isfinite(self.rewards[:end])
        if obs_is_usable.all() and rewards_are_finite.all() and all(map(_is_finite, self._finals)):
            return []
        # Observations before a step, its reward, the observations after it where they are looked at.
        obs = self._columns()[Columns.OBS]
        found = [(2 * t + 1, i, _reward(self.rewards[t, i])) for t, i in np.argwhere(~rewards_are_finite).tolist()]
        # A filter may have made a number of an infinite observation: only where there is a mask can it be the mask.
        has_mask = isinstance(obs, Mapping) and ACTION_MASK in obs
        for t, i in np.argwhere(~obs_is_usable).tolist():
            is_mask = has_mask and _is_finite((t, i, take(obs, t)))
            found.append((2 * t, i, MASK_ALLOWS_NOTHING if is_mask else OBSERVATION_NOT_FINITE))
        for t, where, observations in self._finals:
            for i in np.flatnonzero(where).tolist():
                if not _is_finite((t, i, observations)):
                    found.append((2 * t + 1, i, OBSERVATION_NOT_FINITE))
        return [NotUsable(time // 2, index, what) for time, index, what in sorted(found)]

    @property
    def obs_of_envs(self) -> Any:
        """Observations that `add_obs` has recorded so far, ``[T, B, ...]``."""
        return jax.tree.map(lambda x: x[: self.num_steps], self._obs)

    @property
    def num_env_steps(self) -> int:
        """Rows in which an environment was stepped, not only reset."""
        size = self.num_steps * self.rewards.shape[1]
        return size if self._valid is None else int(self._valid[: self.num_steps].sum())

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with valid rows."""
        if self._valid is None:
            return np.arange(self.rewards.shape[1])
        return np.flatnonzero(self._valid[: self.num_steps].any(axis=0))

    def starts(self) -> dict[str, np.ndarray]:
        """bool ``[B]`` by module, see `Part.starts`."""
        return {self.module_id: self.resets[0]}

    def times(self) -> None:
        """None: the agent acts in every step."""

    def num_module_steps(self) -> dict[str, int]:
        """Completed steps by module."""
        return {self.module_id: self.num_env_steps}

    def num_agent_steps(self) -> dict[Any, int]:
        """{}: there is one agent."""
        return {}

    def columns(self) -> dict[str, dict[str, Any]]:
        """Everything recorded so far, ``{module_id: {column: pytree [T, B, ...]}}``; views where possible."""
        return {self.module_id: self._columns()}

    def _columns(self) -> dict[str, Any]:
        end = self.num_steps
        matrix, loose = self._matrix[:end], tuple(leaf[:end] for leaf in self._loose)
        out = {
            name: self._layout.read(name, matrix, loose)
            for name in self._layout.columns
            if name != Columns.ACTIONS_FOR_ENV
        }
        if Columns.OBS not in out:
            out[Columns.OBS] = self.obs_of_envs
        final = jax.tree.map(np.zeros_like, out[Columns.OBS])
        rows = jax.tree.leaves(final)
        for t, where, observations in self._finals:
            for row, leaf in zip(rows, jax.tree.leaves(observations), strict=True):
                row[t][where] = leaf[where]
        out |= {
            Columns.FINAL_OBS: final,
            Columns.REWARDS: self.rewards[:end],
            Columns.TERMINATEDS: self.terminateds[:end],
            Columns.TRUNCATEDS: self.truncateds[:end],
        }
        if self._valid is not None:
            out[Columns.LOSS_MASK] = self._valid[:end]
        return out


class NotUsable(NamedTuple):
    """What an environment returned that cannot be learned from.

    Attributes:
        step: Vector step of the recording.
        env: Index of the environment.
        what: What it is, for messages.
    """

    step: int
    env: int
    what: str

    @property
    def is_of_first_step(self) -> bool:
        """Whether the reset before the recording or its first step has returned it."""
        return self.step < (1 if self.what.startswith(_REWARD) else 2)


_REWARD = "a reward"
MASK_ALLOWS_NOTHING = "an action mask that allows no action"
OBSERVATION_NOT_FINITE = "an observation that is not finite"
FINAL_OBSERVATION_NOT_FINITE = "a final observation that is not finite"
REWARD_NOT_FINITE = f"{_REWARD} that is not finite"
"""What environments return that cannot be learned from, for messages."""


def _reward(value: Any) -> str:
    return f"{_REWARD} ({value}) that is not finite"


def first_not_finite(columns: Mapping[str, Any]) -> NotUsable | None:
    """The first observation, reward or final observation of a rollout that is NaN or infinite; None without one.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, NumPy: OBS, REWARDS, TERMINATEDS, TRUNCATEDS and FINAL_OBS, which
            holds the observation that every step led to.
    """
    rewards = columns[Columns.REWARDS]
    ended = columns[Columns.TERMINATEDS] | columns[Columns.TRUNCATEDS]
    found = [(2 * t + 1, i, _reward(rewards[t, i])) for t, i in np.argwhere(~np.isfinite(rewards)).tolist()[:1]]
    for name, after in ((Columns.OBS, 0), (Columns.FINAL_OBS, 1)):
        for leaf in jax.tree.leaves(columns[name]):
            if not np.issubdtype(leaf.dtype, np.inexact):
                continue
            rows = np.isfinite(leaf).reshape(*rewards.shape, -1).all(axis=-1)
            for t, i in np.argwhere(~rows).tolist()[:1]:
                is_final = after and ended[t, i]
                found.append((2 * t + after, i, FINAL_OBSERVATION_NOT_FINITE if is_final else OBSERVATION_NOT_FINITE))
    if not found:
        return None
    time, env, what = min(found)
    return NotUsable(time // 2, env, what)


def _is_finite(final: tuple[int, Any, Any]) -> bool:
    """Whether observations that were added by `Recording.add_final` are numbers."""
    _, where, observations = final
    leaves = [leaf for leaf in jax.tree.leaves(observations) if np.issubdtype(leaf.dtype, np.inexact)]
    return all(bool(np.isfinite(leaf[where]).all()) for leaf in leaves)
