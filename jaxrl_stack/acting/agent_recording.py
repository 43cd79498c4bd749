"""Recording of agent steps on a host EnvRunner, for agents that do not act in every env step.

The arrays of each module contain complete agent steps. An agent step is complete once the agent's next observation or
the end of the agent's episode is known.

The policy's results are stored for all rows at once. A row is one agent in one environment; for each row, a list holds
the acts (recorded policy results) with which its complete steps began. After the block, one gather per column puts the
complete steps in order. A step that is incomplete at the end of a block is the first step of the next block.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_stack.acting.host_policy import PackedColumns
from jaxrl_stack.acting.recording import MASK_ALLOWS_NOTHING, OBSERVATION_NOT_FINITE, NotUsable
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import AgentTimes
from jaxrl_stack.utils.action_masks import ACTION_MASK

NO_ACT = -1
"""Index of the act where no step has begun."""


class HeldRows(NamedTuple):
    """State from which the recording of a module's steps continues in the next block.

    At the end of a recorded block of steps, the state contains incomplete agent steps, and whether each row's next
    complete step begins an episode. A row is one agent in one environment.

    Attributes:
        rows: Rows with an incomplete step, ``n`` of them.
        leaves: Recorded leaves of their acts, ``[n, ...]``.
        rewards: Sums of their rewards so far, ``n``.
        begins: Vector steps in which they began, ``n``; -1 is the last step before the next block.
        starts: For each of the ``R`` rows, whether its next complete step is the first of its agent's episode.
    """

    rows: list[int]
    leaves: tuple[np.ndarray, ...]
    rewards: list[float]
    begins: list[int]
    starts: list[bool]


class AgentRecording:
    """Recorder of the steps of one module's ``R`` rows, at most ``T`` steps per row; a row is one agent in one
    environment.

    The state of each row is kept in lists: reading or writing one number takes longer in an array, and there are few
    rows.

    Args:
        num_steps: ``T``.
        num_rows: ``R``.
        layout: Layout of the policy's packed results.
        obs: One observation of all rows, ``[R, ...]``, if the module receives the environments' observations unchanged;
            None if the policy's results contain the module's inputs.
        final_obs: The module's inputs of all rows, ``[R, ...]``; only shapes and dtypes are used.
        keeps_times: Whether `times` are recorded.

    Attributes:
        num_steps: ``T``.
        num_rows: ``R``.
        starts: For each row, whether its first complete step is the first one of its agent's episode; meaningless if
            no step is complete.
        held: For each row, the act that began its incomplete step; `NO_ACT` without one.
        pending: For each row, the sum of the rewards since that act.
    """

    def __init__(
        self,
        num_steps: int,
        num_rows: int,
        layout: PackedColumns,
        obs: Any,
        final_obs: Any,
        *,
        keeps_times: bool = False,
    ):
        self.num_steps, self.num_rows = num_steps, num_rows
        self._layout = layout
        # Act 0 belongs to the steps that were incomplete at the end of the block before.
        num_acts = num_steps + 1
        self._matrix = np.zeros((num_acts, num_rows, layout.width), np.uint32)
        self._loose = tuple(np.zeros((num_acts, *rest), dtype) for rest, dtype in layout.loose)
        self._obs = _stacked(num_acts, obs)
        self._obs_leaves = jax.tree.leaves(self._obs)
        self._acts = (self._matrix, *self._loose, *self._obs_leaves)
        self._final = _stacked(num_steps, final_obs)
        self._final_leaves = jax.tree.leaves(self._final)
        self._terminateds, self._truncateds = np.zeros((2, num_steps, num_rows), bool)
        self.held = [NO_ACT] * num_rows
        self.pending = [0.0] * num_rows
        # For each row: the acts with which its complete steps began, the rewards of these steps, and the number of
        # complete steps before its unfinished episode.
        self._steps: list[list[int]] = [[] for _ in range(num_rows)]
        self._rewards: list[list[float]] = [[] for _ in range(num_rows)]
        self._begins = [0] * num_rows
        # For each row: the number of vector steps after which each complete step was complete.
        self._seen: list[list[int]] | None = [[] for _ in range(num_rows)] if keeps_times else None
        self.starts = [True] * num_rows
        # Vector steps, before this block, in which the steps of act 0 began.
        self._held_begins: dict[int, int] = {}

    @property
    def keeps_times(self) -> bool:
        """Whether the recording stores, in `times`, the vector steps (steps of all environments) at which each agent
        step began and ended.
        """
        return self._seen is not None

    @property
    def counts(self) -> np.ndarray:
        """Number of complete agent steps of each row (one agent in one environment) so far, int64 ``[R]``."""
        return np.array([len(steps) for steps in self._steps])

    def held_steps(self) -> HeldRows:
        """Returns the incomplete agent steps and unfinished episodes, from which the recording of the next block
        continues; arrays are copies.
        """
        rows = [row for row, act in enumerate(self.held) if act != NO_ACT]
        acts = [self.held[row] for row in rows]
        return HeldRows(
            rows,
            tuple(leaf[acts, rows] for leaf in self._acts),
            [self.pending[row] for row in rows],
            [self._step_of(row, act) - self.num_steps for row, act in zip(rows, acts, strict=True)],
            [self._starts_next(row) for row in range(self.num_rows)],
        )

    def _step_of(self, row: int, act: int) -> int:
        """Returns the index of the vector step (step of all environments) in which an agent took a recorded action.

        `row` is one agent in one environment, and `act` the index of the action in the recording. Index 0 stores the
        action of an agent step that was incomplete at the end of the previous block: its vector step has a negative
        index.
        """
        return self._held_begins[row] if act == 0 else act - 1

    def _starts_next(self, row: int) -> bool:
        """Whether the next complete step of a row (one agent in one environment) is the first one of its agent's
        episode.
        """
        number = len(self._steps[row])
        if number == self._begins[row]:
            return number > 0 or self.starts[row]
        return bool(self._terminateds[number - 1, row] or self._truncateds[number - 1, row])

    def go_on_from(self, held: HeldRows) -> None:
        """Copies the incomplete agent steps and unfinished episodes of the previous block (a result of its
        `held_steps`) into this recording, which continues them.
        """
        for own, given in zip(self._acts, held.leaves, strict=True):
            own[0, held.rows] = given
        for row, reward in zip(held.rows, held.rewards, strict=True):
            self.held[row], self.pending[row] = 0, reward
        self._held_begins = dict(zip(held.rows, held.begins, strict=True))
        self.starts = list(held.starts)

    def begin(self, step: int, rows: Iterable[int], matrix: np.ndarray, loose: Sequence[np.ndarray], obs: Any) -> None:
        """Records the observations and actions of the agents that act in a vector step (a step of all environments).

        The agent step of a row (one agent in one environment) is incomplete until `complete` is called for the row.

        Args:
            step: Index of the vector step.
            rows: Rows that act; none of them has an incomplete step.
            matrix: The policy's packed results of all rows, uint32 ``[R, width]``.
            loose: Its other results, ``[R, ...]``.
            obs: The environments' observations of all rows; read only if the recording was made with `obs`.
        """
        act = step + 1
        self._matrix[act] = matrix
        given = (*loose, *(_leaves(obs) if self._obs_leaves else ()))
        for column, leaf in zip(self._acts[1:], given, strict=True):
            column[act] = leaf
        for row in rows:
            self.held[row] = act

    def complete(self, step: int, rows: Sequence[int]) -> list[float]:
        """Completes the incomplete agent steps of the given rows (one agent in one environment each) after a vector
        step; returns the rewards of these agent steps.
        """
        rewards = []
        if self._seen is not None:
            for row in rows:
                self._seen[row].append(step + 1)
        for row in rows:
            self._steps[row].append(self.held[row])
            self._rewards[row].append(self.pending[row])
            rewards.append(self.pending[row])
            self.held[row], self.pending[row] = NO_ACT, 0.0
        return rewards

    def end(self, row: int, *, terminated: bool) -> None:
        """Marks the last complete step of a row (one agent in one environment) as the end of its agent's episode."""
        (self._terminateds if terminated else self._truncateds)[len(self._steps[row]) - 1, row] = True

    def add_final(self, rows: Sequence[int], inputs: Any) -> None:
        """Stores the module's inputs that follow the last complete step of each of the given rows (one agent in one
        environment each).

        Args:
            rows: Rows with at least one complete step.
            inputs: The module's inputs of all rows, ``[R, ...]``.
        """
        at = [len(self._steps[row]) - 1 for row in rows]
        for column, leaf in zip(self._final_leaves, _leaves(inputs), strict=True):
            column[at, rows] = leaf[rows]

    def begin_episodes(self, rows: Iterable[int]) -> None:
        """Marks the next step of each of the given rows (one agent in one environment each) as the first one of an
        episode.
        """
        for row in rows:
            self._begins[row] = number = len(self._steps[row])
            if not number:
                self.starts[row] = True

    def drop_running(self, rows: Iterable[int]) -> None:
        """Discards the recorded steps of the unfinished episodes in the given rows (one agent in one environment
        each)."""
        for row in rows:
            begin = self._begins[row]
            del self._steps[row][begin:], self._rewards[row][begin:]
            if self._seen is not None:
                del self._seen[row][begin:]
            self._terminateds[begin:, row] = self._truncateds[begin:, row] = False
            self.held[row], self.pending[row] = NO_ACT, 0.0

    def finish(self) -> None:
        """Stores the observation after each agent's last complete step. Call this method after the last vector step
        (step of all environments).

        A row is one agent in one environment. The row's incomplete step contains the observation that follows the row's
        last complete step. Stores nothing for a row that lacks one of the two steps, or whose last complete step ended
        the agent's episode.
        """
        last = self.counts - 1
        rows = np.flatnonzero((np.array(self.held) != NO_ACT) & (last >= 0))
        rows = rows[~(self._terminateds | self._truncateds)[last[rows], rows]]
        obs = self._obs
        if not self._obs_leaves:
            obs = self._layout.read(Columns.OBS, self._matrix, self._loose)
        acts = np.array(self.held)[rows]
        for column, leaf in zip(self._final_leaves, _leaves(obs), strict=True):
            column[last[rows], rows] = leaf[acts, rows]

    @property
    def mask(self) -> np.ndarray:
        """Mask of the complete agent steps in the recorded columns, bool ``[T, R]``.

        In a row (one agent in one environment) with n complete steps, the first n entries are True.
        """
        return np.arange(self.num_steps)[:, None] < self.counts

    def columns(self) -> dict[str, Any]:
        """Returns the recorded columns of the module's complete agent steps, ``{column: pytree [T, R, ...]}``.

        An agent step is complete once the agent's next observation or the end of the agent's episode is known.

        Each of the R rows is one agent in one environment. Along axis T, a row has its complete agent steps first, then
        masked entries. Masked entries repeat a complete step, so that their values are as valid as recorded ones.
        """
        mask = self.mask
        matrix, *others = self._acts_of_steps()
        loose, obs = others[: len(self._loose)], others[len(self._loose) :]
        names = [name for name in self._layout.columns if name != Columns.ACTIONS_FOR_ENV]
        out = {name: self._layout.read(name, matrix, loose) for name in names}
        if Columns.OBS not in out:
            out[Columns.OBS] = jax.tree.unflatten(jax.tree.structure(self._obs), obs)
        return {
            **out,
            Columns.FINAL_OBS: self._final,
            Columns.REWARDS: self._rewards_of_steps(),
            Columns.TERMINATEDS: self._terminateds & mask,
            Columns.TRUNCATEDS: self._truncateds & mask,
            Columns.LOSS_MASK: mask,
        }

    def _acts_of_steps(self) -> list[np.ndarray]:
        """Returns the arrays that were recorded when each complete agent step began, ``[T, R, ...]``.

        The arrays contain observations, actions and outputs. If all agents acted in every step, the arrays are views of
        the recording, not copies.
        """
        flat = self._gathered()
        if np.array_equal(flat.reshape(-1), np.arange(self.num_rows, flat.size + self.num_rows)):
            return [leaf[1:] for leaf in self._acts]
        return [leaf.reshape(-1, *leaf.shape[2:])[flat] for leaf in self._acts]

    def _gathered(self) -> np.ndarray:
        """Returns the flat indices of the recorded policy results with which complete agent steps began, int64
        ``[T, R]``.

        The indices refer to the recorded acts (policy results) ``[T + 1, R]``, flattened to ``[(T + 1) * R]``. Each of
        the R rows is one agent in one environment. Act 0 of each row comes from the previous block.

        After a row's last complete step its act is repeated. A row without a complete step repeats the last act of the
        row with the most complete steps.
        """
        flat = np.zeros((self.num_steps, self.num_rows), np.int64)
        longest = max(range(self.num_rows), key=lambda row: len(self._steps[row]))
        for row, steps in enumerate(self._steps):
            own = row if steps else longest
            number = len(steps)
            flat[:number, row] = steps
            flat[number:, row] = self._steps[own][-1] if self._steps[own] else 0
            flat[:, row] = flat[:, row] * self.num_rows + own
        return flat

    def _rewards_of_steps(self) -> np.ndarray:
        """Returns the rewards of the complete agent steps, float32 ``[T, R]``; entries after a row's last complete step
        are 0.
        """
        rewards = np.zeros((self.num_steps, self.num_rows), np.float32)
        for row, own in enumerate(self._rewards):
            rewards[: len(own), row] = own
        return rewards

    def times(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of complete agent steps, counted in vector steps (steps of all environments), as
        ``(begins, seen)``.

        Both arrays are int32 ``[T, R]``; each of the R rows is one agent in one environment. `begins` contains the
        vector step in which each agent step began. `seen` contains the number of vector steps after which the agent
        step was complete. Along axis T, a row has its complete agent steps first, then zeros. See `AgentTimes`.
        """
        assert self._seen is not None
        begins, seen = np.zeros((2, self.num_steps, self.num_rows), np.int32)
        for row, (acts, own) in enumerate(zip(self._steps, self._seen, strict=True)):
            begins[: len(acts), row] = [self._step_of(row, act) for act in acts]
            seen[: len(own), row] = own
        return begins, seen

    def not_usable(self) -> list[tuple[int, int, str]]:
        """Returns the invalid values in the recorded agent steps: NaN or infinite observations and rewards, and action
        masks that allow no action.

        Also checks incomplete agent steps: the agent has acted, but neither its next observation nor the end of its
        episode is known yet.

        Returns:
            ``(step, row, description)`` of each invalid value, in the order of steps. `step` is the index of the agent
            step among the recorded steps of `row` (one agent in one environment).
        """
        usable = self._layout.usable.read(self._matrix, ())
        rewards = [[*own, self.pending[row]] for row, own in enumerate(self._rewards)]
        found = []
        for row, own in enumerate(rewards):
            infinite = np.flatnonzero(~np.isfinite(np.array(own, np.float32))).tolist()
            found += [(2 * t + 1, row, f"a reward ({own[t]}) that is not finite") for t in infinite]
        for row, steps in enumerate(self._steps):
            acts = [*steps, self.held[row]] if self.held[row] != NO_ACT else steps
            for t in np.flatnonzero(~usable[acts, row]).tolist() if acts else ():
                found.append((2 * t, row, self._problem_with(acts[t], row)))
        for leaf in self._final_leaves:
            if np.issubdtype(leaf.dtype, np.inexact) and not np.isfinite(leaf).all():
                finite = np.isfinite(leaf).reshape(self.num_steps, self.num_rows, -1).all(axis=-1)
                found += [(2 * t + 1, row, OBSERVATION_NOT_FINITE) for t, row in _where(~finite & self.mask)]
        return [(time // 2, row, what) for time, row, what in sorted(set(found))]

    def _problem_with(self, act: int, row: int) -> str:
        """Returns the error text for an invalid observation: its action mask allows no action, or the observation is
        not finite.

        `act` is the index, in this recording, of the action that row `row` (one agent in one environment) took on this
        observation.
        """
        obs = self._obs if self._obs_leaves else self._layout.read(Columns.OBS, self._matrix, self._loose)
        has_mask = isinstance(obs, Mapping) and ACTION_MASK in obs
        is_mask = has_mask and all(np.isfinite(leaf[act, row]).all() for leaf in _leaves(obs))
        return MASK_ALLOWS_NOTHING if is_mask else OBSERVATION_NOT_FINITE


@dataclasses.dataclass(eq=False)
class AgentRecordings:
    """Recordings of the steps of all modules in ``B`` multi-agent environments, whose agents may skip env steps;
    implements `RolloutRecording`.

    Attributes:
        of_modules: ``{module_id: AgentRecording}``.
        agents_of: ``{module_id: agents}``; row ``s * B + i`` of a module is its agent s in environment i.
        num_envs: ``B``.
        num_steps: Vector steps so far.
        env_steps: int64 ``[B]``, valid steps of each environment.
        num_failures: Number of failures of environments so far.
        resets: Always None, because rows belong to agents and not to environments.
    """

    of_modules: dict[str, AgentRecording]
    agents_of: Mapping[str, Sequence[Any]]
    num_envs: int
    num_steps: int = 0
    num_failures: int = 0
    resets: None = dataclasses.field(default=None, init=False)

    def __post_init__(self):
        self.env_steps = np.zeros(self.num_envs, np.int64)
        self._begins = np.zeros(self.num_envs, np.int64)
        # The vector step in which each environment's unfinished episode began; 0 if it began before the recording.
        self._first_steps = [0] * self.num_envs
        self._ends: list[tuple[int, int]] = []
        self._dropped: list[tuple[int, slice]] = []

    @property
    def num_env_steps(self) -> int:
        """Number of recorded environment steps, without steps that were discarded because an environment failed."""
        return int(self.env_steps.sum())

    @property
    def valid_envs(self) -> np.ndarray:
        """Indices of the environments with recorded steps that were not discarded after a failure."""
        return np.flatnonzero(self.env_steps)

    def end_episode(self, index: int) -> None:
        """Marks the last recorded step of an environment as the end of its episode."""
        self._ends.append((self.num_steps - 1, index))

    def begin_episode(self, index: int) -> None:
        """Marks the next step of an environment, in the recordings of all modules, as the first of an episode."""
        self._begins[index], self._first_steps[index] = self.env_steps[index], self.num_steps
        for recording in self.of_modules.values():
            recording.begin_episodes(self._rows_of(recording, index))

    def drop_running(self, index: int) -> None:
        """Discards the recorded steps of an environment's unfinished episode, because the environment failed in the
        last step.
        """
        for recording in self.of_modules.values():
            recording.drop_running(self._rows_of(recording, index))
        self.env_steps[index] = self._begins[index]
        self._dropped.append((index, slice(self._first_steps[index], self.num_steps)))
        self.num_failures += 1

    def _rows_of(self, recording: AgentRecording, index: int) -> Collection[int]:
        """Returns the row indices that belong to one environment in a module's recording, one index for each of the
        module's agents.
        """
        return range(index, recording.num_rows, self.num_envs)

    def columns(self) -> dict[str, dict[str, Any]]:
        """Returns the recorded columns of all modules' complete agent steps,
        ``{module_id: {column: pytree [T, R, ...]}}``.

        An agent step is complete once the agent's next observation or the end of the agent's episode is known. Each of
        a module's R rows is one agent in one environment. Along axis T, a row has its complete agent steps first, then
        masked entries.
        """
        return {mid: recording.columns() for mid, recording in self.of_modules.items()}

    def starts(self) -> dict[str, np.ndarray]:
        """Returns ``{module_id: bool [R]}``: whether each row's first complete step begins an episode. A row is one
        agent in one environment.

        R is the number of the module's rows. The episode is an episode of the row's agent. See `Part.starts`.
        """
        return {mid: np.array(recording.starts) for mid, recording in self.of_modules.items()}

    def times(self) -> AgentTimes | None:
        """Returns the vector steps (steps of all environments) in which agent steps began and ended, as `AgentTimes`;
        None if these times were not recorded.
        """
        if not all(recording.keeps_times for recording in self.of_modules.values()):
            return None
        of_modules = {mid: recording.times() for mid, recording in self.of_modules.items()}
        counts, ends = np.ones((self.num_steps, self.num_envs), bool), np.zeros((self.num_steps, self.num_envs), bool)
        for index, steps in self._dropped:
            counts[steps, index] = False
        for step, index in self._ends:
            ends[step, index] = True
        return AgentTimes(
            {mid: begins for mid, (begins, _) in of_modules.items()},
            {mid: seen for mid, (_, seen) in of_modules.items()},
            counts,
            ends,
            {mid: tuple(self.agents_of[mid]) for mid in of_modules},
        )

    def num_agent_steps(self) -> dict[Any, int]:
        """Returns the number of agent steps that each agent has completed in this recording, ``{agent: number}``."""
        numbers: dict[Any, int] = {}
        for mid, recording in self.of_modules.items():
            of_slots = recording.counts.reshape(-1, self.num_envs).sum(axis=1).tolist()
            for agent, number in zip(self.agents_of[mid], of_slots, strict=True):
                numbers[agent] = numbers.get(agent, 0) + number
        return numbers

    def num_module_steps(self) -> dict[str, int]:
        """Returns the number of agent steps that the agents of each module have completed in this recording,
        ``{module_id: number}``.
        """
        return {mid: int(recording.counts.sum()) for mid, recording in self.of_modules.items()}

    def not_usable(self) -> list[NotUsable]:
        """Finds NaN or infinite values, and action masks that allow no action, in the recorded steps.

        See `Recording.not_usable`. In the result, `NotUsable.step` counts the steps of one agent, not vector steps
        (steps of all environments).
        """
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
