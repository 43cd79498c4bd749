"""What a host runner writes down of agents that each have a time of their own: columns without gaps, by module.

A step of an agent is complete with its next observation, or with its end. Every agent in an environment, a row of its
module, has a column with a counter: an act writes its results at the counter, rewards add up there, and what completes
the step moves the counter on. So complete steps lie one after the other, and a step that is not complete at the end of
a block is the first one of the next block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import Layout
from jaxrl_stack.acting.recording import MASK_ALLOWS_NOTHING, OBSERVATION_NOT_FINITE, NotUsable
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.utils.action_masks import ACTION_MASK


class HeldRows(NamedTuple):
    """Steps that are not complete at the end of a block.

    Attributes:
        rows: int ``[n]``, whose they are.
        leaves: What was recorded of their acts, and their rewards so far, ``[n, ...]``.
    """

    rows: np.ndarray
    leaves: tuple[np.ndarray, ...]


class AgentRecording:
    """Steps of the ``R`` rows of a module, up to ``T`` of each.

    Args:
        num_steps: ``T``.
        num_rows: ``R``.
        layout: How the policy packs its results.
        obs: One observation of all rows, if the environments' own are what the module gets; None if the policy's
            results hold the module's inputs.
        final_obs: One of the module's inputs of all rows, whose values mean nothing.

    Attributes:
        counts: int64 ``[R]``, complete steps so far.
        held: bool ``[R]``, whether a step has begun and is not complete.
        rewards: float32 ``[T, R]``, sums over the agents' steps.
        terminateds: bool ``[T, R]``.
        truncateds: bool ``[T, R]``.
    """

    def __init__(self, num_steps: int, num_rows: int, layout: Layout, obs: Any, final_obs: Any):
        shape = (num_steps, num_rows)
        self.num_steps = num_steps
        self._layout = layout
        self._matrix = np.zeros((*shape, layout.width), np.uint32)
        self._loose = tuple(np.zeros((num_steps, *rest), dtype) for rest, dtype in layout.loose)
        self._obs = _stacked(num_steps, obs)
        self._obs_rows = jax.tree.leaves(self._obs)
        self._final = _stacked(num_steps, final_obs)
        self._final_rows = jax.tree.leaves(self._final)
        # Views of what an act leaves, [T * R, ...].
        acts = (self._matrix, *self._loose, *self._obs_rows)
        self._flat = [leaf.reshape(num_steps * num_rows, *leaf.shape[2:]) for leaf in acts]
        self.counts = np.zeros(num_rows, np.int64)
        self.held = np.zeros(num_rows, bool)
        # Where the running episode of a row begins in its column, and whether that is in this block.
        self._begins = np.zeros(num_rows, np.int64)
        self.rewards = np.zeros(shape, np.float32)
        self.terminateds = np.zeros(shape, bool)
        self.truncateds = np.zeros(shape, bool)

    def held_steps(self) -> HeldRows:
        """Copies of the steps that are not complete."""
        rows = np.flatnonzero(self.held)
        at = self.counts[rows]
        return HeldRows(rows, tuple(leaf[at, rows] for leaf in self._leaves_of_acts))

    def go_on_from(self, held: HeldRows) -> None:
        """Take over the steps that were not complete at the end of the block before."""
        for own, given in zip(self._leaves_of_acts, held.leaves, strict=True):
            own[0, held.rows] = given
        self.held[held.rows] = True

    @property
    def _leaves_of_acts(self) -> tuple[np.ndarray, ...]:
        return (self._matrix, *self._loose, *self._obs_rows, self.rewards)

    def begin(self, rows: np.ndarray, matrix: np.ndarray, loose: Sequence[np.ndarray], obs: Any) -> None:
        """Steps that begin.

        Args:
            rows: int ``[n]``, who acts; none of them holds a step.
            matrix: The policy's packed results, of all rows.
            loose: Its other results.
            obs: The environments' observations of all rows, if it is these that are recorded.
        """
        # One index array takes half as long as one per axis.
        at = self.counts[rows] * len(self.counts) + rows
        given = (matrix, *loose, *(_leaves(obs) if self._obs_rows else ()))
        for column, leaf in zip(self._flat, given, strict=True):
            column[at] = leaf[rows]
        self.held[rows] = True

    def complete(self, rows: np.ndarray, terminateds: np.ndarray, truncateds: np.ndarray) -> np.ndarray:
        """Steps that are complete.

        Args:
            rows: int ``[n]``, whose they are.
            terminateds: bool ``[R]``, of all rows, whether the agent ended.
            truncateds: bool ``[R]``, likewise, whether it was cut off.

        Returns:
            int ``[n]``, where each of them lies in its column.
        """
        at = self.counts[rows]
        self.terminateds[at, rows] = terminateds[rows]
        self.truncateds[at, rows] = truncateds[rows]
        self.counts[rows] = at + 1
        self.held[rows] = False
        return at

    def add_final(self, at: np.ndarray, rows: np.ndarray, inputs: Any) -> None:
        """The module's inputs of all rows after steps, for those at `at` of `rows`."""
        for column, leaf in zip(self._final_rows, _leaves(inputs), strict=True):
            column[at, rows] = leaf[rows]

    def begin_episodes(self, rows: Any) -> None:
        """The next steps of these rows are of other episodes."""
        self._begins[rows] = self.counts[rows]

    def drop_running(self, rows: np.ndarray) -> None:
        """Leave out what there is of the running episodes of these rows."""
        for row in rows.tolist():
            self.rewards[self._begins[row] :, row] = 0.0
        self.counts[rows] = self._begins[rows]
        self.held[rows] = False

    def finish(self) -> None:
        """After the last step: the observation after each column's last step is that of the step that is held."""
        rows = np.flatnonzero(self.held & (self.counts > 0))
        last = self.counts[rows] - 1
        ended = self.terminateds[last, rows] | self.truncateds[last, rows]
        rows, last = rows[~ended], last[~ended]
        obs = self._obs
        if not self._obs_rows:
            obs = self._layout.read(Columns.OBS, self._matrix, self._loose)
        for column, leaf in zip(self._final_rows, _leaves(obs), strict=True):
            column[last, rows] = leaf[last + 1, rows]

    @property
    def mask(self) -> np.ndarray:
        """bool ``[T, R]``, which steps are complete."""
        return np.arange(self.num_steps)[:, None] < self.counts

    def columns(self) -> dict[str, Any]:
        """What is recorded, ``{column: pytree [T, R, ...]}``: complete steps first, masked ones after them.

        Masked rows repeat a complete step, so that nothing in them is less usable than what there was.
        """
        mask = self.mask
        if not mask.all() and self.counts.any():
            self._fill()
        names = [name for name in self._layout.columns if name != Columns.ACTIONS_FOR_ENV]
        out = {name: self._layout.read(name, self._matrix, self._loose) for name in names}
        if Columns.OBS not in out:
            out[Columns.OBS] = self._obs
        return {
            **out,
            Columns.FINAL_OBS: self._final,
            Columns.REWARDS: np.where(mask, self.rewards, np.float32(0.0)),
            Columns.TERMINATEDS: self.terminateds & mask,
            Columns.TRUNCATEDS: self.truncateds & mask,
            Columns.LOSS_MASK: mask,
        }

    def _fill(self) -> None:
        """Repeat the last complete step of each column after it; in a column without any, that of another one."""
        other = int(np.argmax(self.counts))
        counts = self.counts.tolist()
        for leaf in (self._matrix, *self._loose, *self._obs_rows):
            for row, count in enumerate(counts):
                if count < self.num_steps:
                    leaf[count:, row] = leaf[count - 1, row] if count else leaf[counts[other] - 1, other]

    def not_usable(self) -> list[tuple[int, int, str]]:
        """``(step of its column, row, what)`` of observations and rewards that are NaN or infinite, and masks that
        allow no action, of steps that have begun."""
        begun = np.arange(self.num_steps)[:, None] < self.counts + self.held
        unusable = ~self._layout.usable.read(self._matrix, ()) & begun
        infinite = ~np.isfinite(self.rewards) & begun
        if not unusable.any() and not infinite.any() and self._finals_are_finite():
            return []
        obs = self._obs if self._obs_rows else self._layout.read(Columns.OBS, self._matrix, self._loose)
        has_mask = isinstance(obs, Mapping) and ACTION_MASK in obs
        rewards = [(t, row, self.rewards[t, row]) for t, row in _where(infinite)]
        found = [(2 * t + 1, row, f"a reward ({reward}) that is not finite") for t, row, reward in rewards]
        for t, row in _where(unusable):
            is_mask = has_mask and all(np.isfinite(leaf[t, row]).all() for leaf in _leaves(obs))
            found.append((2 * t, row, MASK_ALLOWS_NOTHING if is_mask else OBSERVATION_NOT_FINITE))
        for leaf in self._final_rows:
            if np.issubdtype(leaf.dtype, np.inexact):
                rows = np.isfinite(leaf).reshape(*self.rewards.shape, -1).all(axis=-1)
                found += [(2 * t + 1, row, OBSERVATION_NOT_FINITE) for t, row in _where(~rows & self.mask)]
        return [(time // 2, row, what) for time, row, what in sorted(set(found))]

    def _finals_are_finite(self) -> bool:
        return all(bool(np.isfinite(leaf).all()) for leaf in self._final_rows if np.issubdtype(leaf.dtype, np.inexact))


@dataclasses.dataclass(eq=False)
class AgentRecordings:
    """Of all modules, for so many steps of ``B`` environments; see `Recording`.

    Attributes:
        of_modules: ``{module_id: AgentRecording}``.
        agents_of: ``{module_id: its agents}``; row ``s * B + i`` is agent s in environment i.
        num_envs: ``B``.
        num_steps: Vector steps so far.
        env_steps: int64 ``[B]``, steps of each environment that count.
        num_failures: Environments that failed in them.
    """

    of_modules: dict[str, AgentRecording]
    agents_of: Mapping[str, Sequence[Any]]
    num_envs: int
    num_steps: int = 0
    num_failures: int = 0

    def __post_init__(self):
        self.env_steps = np.zeros(self.num_envs, np.int64)
        self._begins = np.zeros(self.num_envs, np.int64)

    @property
    def num_env_steps(self) -> int:
        """Steps of environments that count."""
        return int(self.env_steps.sum())

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with steps that count."""
        return np.flatnonzero(self.env_steps)

    def begin_episode(self, index: int) -> None:
        """The next step of an environment is the first of an episode."""
        self._begins[index] = self.env_steps[index]
        for recording in self.of_modules.values():
            recording.begin_episodes(slice(index, None, self.num_envs))

    def drop_running(self, index: int) -> None:
        """Leave out what there is of the episode of an environment that failed in the last step."""
        for recording in self.of_modules.values():
            recording.drop_running(np.arange(index, len(recording.counts), self.num_envs))
        self.env_steps[index] = self._begins[index]
        self.num_failures += 1

    def num_agent_steps(self) -> dict[Any, int]:
        """Completed steps by agent."""
        numbers: dict[Any, int] = {}
        for mid, recording in self.of_modules.items():
            of_slots = recording.counts.reshape(-1, self.num_envs).sum(axis=1).tolist()
            for agent, number in zip(self.agents_of[mid], of_slots, strict=True):
                numbers[agent] = numbers.get(agent, 0) + number
        return numbers

    def num_module_steps(self) -> dict[str, int]:
        """Completed steps by module."""
        return {mid: int(recording.counts.sum()) for mid, recording in self.of_modules.items()}

    def not_usable(self) -> list[NotUsable]:
        """See `Recording.not_usable`; a step is one of the agent."""
        found = []
        for mid, recording in self.of_modules.items():
            for step, row, what in recording.not_usable():
                slot, env = divmod(row, self.num_envs)
                found.append(NotUsable(step, env, f"{what}, of agent {self.agents_of[mid][slot]!r}"))
        return sorted(found, key=lambda one: one[:2])


def _stacked(num_steps: int, obs: Any) -> Any:
    return jax.tree.map(lambda x: np.zeros((num_steps, *x.shape), jax.dtypes.canonicalize_dtype(x.dtype)), obs)


def _leaves(tree: Any) -> Sequence[Any]:
    return (tree,) if isinstance(tree, np.ndarray) else jax.tree.leaves(tree)


def _where(mask: np.ndarray) -> list[list[int]]:
    return np.argwhere(mask).tolist()
