"""Recording of single-agent steps on a host EnvRunner: preallocated arrays with one row per vector step (a step of all
environments).
"""

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
    """Statistics of ended episodes (returns, lengths, durations), in the order of their ends.

    Attributes:
        returns: float64 ``[n]``, sums of unclipped rewards.
        lengths: int64 ``[n]``, numbers of steps.
        durations: float64 ``[n]``, seconds from reset to end.
        agent_returns: float64 ``[n]`` by agent if there are several: the agent's part of the returns; NaN for episodes
            in which it took no part.
    """

    returns: np.ndarray
    lengths: np.ndarray
    durations: np.ndarray
    agent_returns: Mapping[Any, np.ndarray] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, ended: Sequence[Sequence[float]], agents: Sequence[Any] = ()) -> EndedEpisodes:
        """Creates episode statistics from one tuple per episode, ``(return, length, duration, *returns of agents)``."""
        returns, lengths, durations, *own = zip(*ended, strict=True) if ended else [()] * (3 + len(agents))
        return cls(
            np.array(returns, np.float64),
            np.array(lengths, np.int64),
            np.array(durations, np.float64),
            {agent: np.array(numbers, np.float64) for agent, numbers in zip(agents, own, strict=True)},
        )

    def mean_returns(self, module_map: ModuleMap) -> dict[str, dict[str, float]]:
        """Computes the mean return of each agent and each module over these episodes, ``{"agent": {str(agent): mean},
        "module": {module_id: mean}}``; {} for a single agent.

        A mean covers the episodes in which the agent, or one of the module's agents, took part; NaN without any. If
        each episode assigns its agents to modules, ``"module"`` is missing. If the map has a hero, the return of its
        module is the return of the hero.

        Args:
            module_map: Mapping from agents to modules.
        """
        own = self.agent_returns
        if not own:
            return {}
        means = {"agent": {str(agent): _mean_of_known(returns) for agent, returns in own.items()}}
        if not module_map.slots:
            means["module"] = {
                mid: _mean_of_known(_sum_of_known([own[agent] for agent in agents if module_map.hero in (None, agent)]))
                for mid, agents in module_map.agents_of.items()
            }
        return means

    def rows(self) -> Iterator[tuple[float, ...]]:
        """Yields one tuple per episode, ``(return, length, duration, *returns of agents)``, the form that
        `EndedEpisodes.of` takes.
        """
        columns = (self.returns, self.lengths, self.durations, *self.agent_returns.values())
        return zip(*(column.tolist() for column in columns), strict=True)


def _mean_of_known(numbers: np.ndarray) -> float:
    known = numbers[~np.isnan(numbers)]
    return float(np.mean(known, dtype=np.float64)) if len(known) else math.nan


def _sum_of_known(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Sums arrays ``[n]`` elementwise and ignores NaN; NaN where all arrays are NaN."""
    stacked = np.stack(parts)
    return np.where(np.isnan(stacked).all(axis=0), np.nan, np.nansum(stacked, axis=0, dtype=np.float64))


class StepTimes(NamedTuple):
    """Total duration and number of vector steps (steps of all environments of a runner).

    Attributes:
        seconds: Duration of all steps, in seconds.
        num_steps: Number of steps.
    """

    seconds: float = 0.0
    num_steps: int = 0

    def plus(self, other: StepTimes) -> StepTimes:
        """Returns the sum of two `StepTimes`: durations and numbers of steps are added."""
        return StepTimes(self.seconds + other.seconds, self.num_steps + other.num_steps)


NO_STEP_TIMES = StepTimes()


@dataclasses.dataclass
class SampleReport:
    """Results of one `sample` call of an EnvRunner except the sampled steps: episode statistics, metrics, connector
    state.

    Attributes:
        episodes: Statistics of the episodes that ended.
        metrics: The runner's reduced metrics.
        connector_state: The env-to-module pipeline's state, for merging; None if it has nothing to merge.
        agent_steps: Number of completed steps of each agent if there are several; {} for one agent.
        step_times: Duration of vector steps of environments that are stepped one after the other.
    """

    episodes: EndedEpisodes
    metrics: dict[str, Any]
    connector_state: dict[str, Any] | None = None
    agent_steps: dict[Any, int] = dataclasses.field(default_factory=dict)
    step_times: StepTimes = NO_STEP_TIMES


@dataclasses.dataclass
class SampleBlock:
    """Sampled steps of one EnvRunner as NumPy arrays, which pass between processes without a copy.

    Attributes:
        part: Columns ``[T, B, ...]`` of the module, or whole episodes. Columns are obs (the module's inputs, or frames
            of them, see `core.frames`), actions, rewards (of the environment), terminateds, truncateds, final_obs
            (valid where truncated and in the last row) and the module's outputs; of recurrent states only those at the
            starts of chunks. loss_mask is present if a row was only a reset, or if an environment failed: then it is
            False for the whole unfinished episode.
        report: Statistics and state of the runner.
    """

    part: Part
    report: SampleReport

    @property
    def experience(self) -> Experience:
        """Sampled steps of this block in the form that a Learner takes (an `Experience`), without the report on
        episodes and metrics.
        """
        return Experience((self.part,))

    @property
    def num_env_steps(self) -> int:
        """Number of valid environment steps, without rows in which an environment was only reset."""
        return self.part.num_env_steps

    def kept_at(self, reference: Any) -> SampleBlock:
        """Returns a copy of the block that has `reference`, a Ray reference to the columns in Ray's object store,
        instead of the columns; see `Part.kept_at`.
        """
        return dataclasses.replace(self, part=self.part.kept_at(reference))


def newest_connector_states(states: Sequence[tuple[RecordingId, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Selects each EnvRunner's newest connector state from several samples. The newest state of a runner contains the
    statistics of its earlier states.

    A restarted runner counts as a different runner, since its statistics start from zero.
    """
    newest: dict[tuple[int | str, int], dict[str, Any]] = {}
    for source, state in sorted(states, key=operator.itemgetter(0)):
        newest[source.worker_index, source.num_restarts] = state
    return list(newest.values())


class Recording:
    """Recorder of up to ``T`` steps of ``B`` single-agent environments in dense arrays; implements `RolloutRecording`.

    Args:
        module_id: The module that acts.
        num_steps: ``T``.
        num_envs: ``B``.
        layout: Layout of the policy's packed results.
        obs: One observation of all environments, ``[B, ...]``, if the module receives the environments' observations
            unchanged; None if the policy's results contain the module's inputs.
        starts: bool ``[B]``, whether row 0 is the first of an episode; it is copied.

    Attributes:
        resets: bool ``[T + 1, B]``, whether a row is the first of an episode.
        num_steps: Rows so far.
        num_failures: Number of failures of environments so far.
        infos: Infos per step and environment, if they are kept for episodes.
        reset_infos: ``{(t, b): info}`` of the observations in row t with which an episode of environment b begins.
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
        """Records one vector step (a step of all environments): the policy's results, rewards and flags.

        Args:
            matrix: The policy's packed results, uint32 ``[B, width]``.
            loose: Its other results, ``[B, ...]``.
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
        """Marks the next recorded step as the first of an episode, in the environments of the mask `where`, bool
        ``[B]``.
        """
        self.resets[self.num_steps] = where

    def drop_running(self, index: int) -> None:
        """Discards the recorded steps of an environment's unfinished episode, because the environment failed in the
        last step.
        """
        end = self.num_steps
        if self._valid is None:
            self._valid = np.ones(self.rewards.shape, bool)
        ends = np.flatnonzero((self.terminateds | self.truncateds)[:end, index])
        self._valid[ends[-1] + 1 if len(ends) else 0 : end, index] = False
        self.num_failures += 1

    def add_obs(self, obs: Any) -> None:
        """Stores the environments' observations before the next step, on which the policy acts. Does nothing if the
        recording was created with ``obs=None``.
        """
        if not self._obs_rows:
            return
        leaves = (obs,) if isinstance(obs, np.ndarray) else jax.tree.leaves(obs)
        for row, leaf in zip(self._obs_rows, leaves, strict=True):
            row[self.num_steps] = leaf

    def add_final(self, where: np.ndarray, observations: Any) -> None:
        """Stores the module's inputs after the last step, for the environments in the mask `where`, bool ``[B]``."""
        self._finals.append((self.num_steps - 1, where, observations))

    def not_usable(self) -> list[NotUsable]:
        """Returns the invalid values in the recorded steps, in the order of steps: NaN or infinite observations and
        rewards, and action masks that allow no action.
        """
        end = self.num_steps
        obs_is_usable = self._layout.usable.read(self._matrix[:end], ())
        rewards_are_finite = np.isfinite(self.rewards[:end])
        if obs_is_usable.all() and rewards_are_finite.all() and all(map(_is_finite, self._finals)):
            return []
        # Observations before a step have time 2 t; its reward, and the observations after it if recorded, 2 t + 1.
        obs = self._columns()[Columns.OBS]
        found = [(2 * t + 1, i, _reward(self.rewards[t, i])) for t, i in np.argwhere(~rewards_are_finite).tolist()]
        # A filter may have made an infinite observation finite: only inputs with a mask can have a bad mask.
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
        """Environments' observations before each of the T steps recorded so far, ``[T, B, ...]``, as stored by
        `add_obs`.
        """
        return jax.tree.map(lambda x: x[: self.num_steps], self._obs)

    @property
    def num_env_steps(self) -> int:
        """Number of valid environment steps, without rows in which an environment was only reset."""
        size = self.num_steps * self.rewards.shape[1]
        return size if self._valid is None else int(self._valid[: self.num_steps].sum())

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with valid recorded steps; steps of resets and of failed episodes are invalid."""
        if self._valid is None:
            return np.arange(self.rewards.shape[1])
        return np.flatnonzero(self._valid[: self.num_steps].any(axis=0))

    def starts(self) -> dict[str, np.ndarray]:
        """Returns, for each environment, whether its first recorded step is the first of an episode, ``{module_id: bool
        [B]}``; see `Part.starts`.
        """
        return {self.module_id: self.resets[0]}

    def times(self) -> None:
        """Returns None: times of agent steps are only recorded for several agents, which may skip env steps."""

    def num_module_steps(self) -> dict[str, int]:
        """Returns the number of valid steps of the module in this recording, ``{module_id: number}``."""
        return {self.module_id: self.num_env_steps}

    def num_agent_steps(self) -> dict[Any, int]:
        """Returns {}: with a single agent there are no counts by agent."""
        return {}

    def columns(self) -> dict[str, dict[str, Any]]:
        """Returns all columns recorded so far, ``{module_id: {column: pytree [T, B, ...]}}``; views of the recording's
        arrays where possible.
        """
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
    """Invalid value that an environment returned: a NaN or infinite number, or an action mask that allows no action.

    Attributes:
        step: Vector step of the recording.
        env: Index of the environment.
        what: Description of the value, for messages.
    """

    step: int
    env: int
    what: str

    @property
    def is_of_first_step(self) -> bool:
        """Whether the environment returned the invalid value in the reset before the recording, or in the first
        recorded step.
        """
        return self.step < (1 if self.what.startswith(_REWARD) else 2)


_REWARD = "a reward"
MASK_ALLOWS_NOTHING = "an action mask that allows no action"
OBSERVATION_NOT_FINITE = "an observation that is not finite"
FINAL_OBSERVATION_NOT_FINITE = "a final observation that is not finite"
REWARD_NOT_FINITE = f"{_REWARD} that is not finite"
"""Descriptions of unusable values, for messages."""


def _reward(value: Any) -> str:
    return f"{_REWARD} ({value}) that is not finite"


def first_not_finite(columns: Mapping[str, Any]) -> NotUsable | None:
    """Finds the first NaN or infinite observation, reward or final observation of a rollout; None if all are finite.

    Args:
        columns: ``{column: pytree [T, B, ...]}``, NumPy: OBS, REWARDS, TERMINATEDS, TRUNCATEDS and FINAL_OBS, which
            contains the observation after every step.
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
    """Whether the observations in `final` are free of NaN and infinity.

    `final` is ``(step, environments, observations)``; observations are ``[B, ...]``. Only the selected environments are
    checked: `environments` is a mask, as `Recording.add_final` stores it, or an index.
    """
    _, where, observations = final
    leaves = [leaf for leaf in jax.tree.leaves(observations) if np.issubdtype(leaf.dtype, np.inexact)]
    return all(bool(np.isfinite(leaf[where]).all()) for leaf in leaves)
