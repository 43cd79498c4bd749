"""Forms of replay samples: single transitions, sequences of steps, and windows that may cross episode boundaries.

A form is a small frozen object that draws from both stores, the buffer on the host and the ring on the device, and that
writes to the drawn items what a loss logs of each. A new form is one more class in this file.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.replay import items
from jaxrl_stack.replay.arithmetic import IS_FIRST, IS_LAST, N_STEP, WEIGHTS
from jaxrl_stack.replay.device_replay import DeviceReplay, RandomNumbers
from jaxrl_stack.replay.episode_replay_buffer import BATCH_INDEXES
from jaxrl_stack.utils.memory import MemoryEstimate

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.replay.device_replay_state import ReplayState
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
    from jaxrl_stack.replay.multi_agent_episode_buffer import MultiAgentEpisodeReplayBuffer

_OBSERVED = {Columns.OBS: Columns.OBS, Columns.NEXT_OBS: Columns.OBS, Columns.ACTIONS: Columns.ACTIONS}
"""``{column of what is drawn: the recorded column that it is taken from}``."""


class DrawForm(Protocol):
    """Interface of a form of replay samples: transitions, sequences or windows.

    A form draws samples from replay buffers, and writes values that the loss computes for the samples, such as new
    priorities, back to the buffers.

    Attributes:
        length: Number of steps of an item.
        writes: Names of the values that the loss logs per item and both `write_*` methods store; () if nothing is
            written back.
        declared: Columns of sampled steps that are stored, and drawn with the items; see `Learner.columns_from_acting`.
    """

    @property
    def length(self) -> int: ...

    @property
    def writes(self) -> tuple[str, ...]: ...

    @property
    def declared(self) -> tuple[str, ...]: ...

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns that the buffer must store with every step for this form of samples, in addition to a
        transition's columns.
        """
        ...

    @property
    def start(self) -> StartState | None:
        """Choice of the recurrent states with which drawn sequences or windows start: stored or initial states. None if
        samples are single transitions.
        """
        ...

    def num_items(self, num_steps: int, num_shares: int) -> int:
        """Number of items (transitions, sequences or windows) in a train batch of at least `num_steps` steps.

        The number is a multiple of `num_shares`, because the batch is split into `num_shares` equal parts.
        """
        ...

    def ring(self, **sizes: Any) -> DeviceReplay:
        """Creates a device replay buffer (`DeviceReplay`) that draws samples of this form. `sizes` are arguments of
        `DeviceReplay` that the form does not set, such as `capacity`.
        """
        ...

    def memory_estimate(self, number: int, recorded: Mapping[str, Any], *, is_on_device: bool) -> MemoryEstimate:
        """Estimates the memory, in bytes, of a train batch with `number` items.

        Args:
            number: Number of items of the batch.
            recorded: Shapes of the recorded columns, ``[T, B, ...]``.
            is_on_device: Whether the batch is drawn from a buffer on the device.
        """
        ...

    def draw_from_buffer(
        self, buffer: EpisodeReplayBuffer, number: int, *, gamma: float, beta: float
    ) -> tuple[dict[str, Any], Any]:
        """Draws items (transitions, sequences or windows) from a host buffer. Returns ``(columns [N, ...], drawn)``;
        `drawn` identifies the items for `write_to_buffer`.
        """
        ...

    def draw_from_ring(
        self,
        ring: DeviceReplay,
        state: ReplayState,
        numbers: jax.Array | RandomNumbers,
        *,
        gamma: Callable[[], Any],
        beta: float,
        axis_name: str | None,
    ) -> tuple[ReplayState, dict[str, Any], Any]:
        """Draws items (transitions, sequences or windows) from a device buffer. Returns ``(buffer state, columns [N,
        ...], drawn)``; `drawn` identifies the items for `write_to_ring`.

        Args:
            ring: Fixed settings of the buffer.
            state: State of the buffer on this device.
            numbers: A PRNG key, or a result of `DeviceReplay.random_numbers`.
            gamma: Reads the discount, which forms with returns do.
            beta: Exponent of importance weights.
            axis_name: Name of the axis of devices.
        """
        ...

    def draw_from_modules(
        self, buffer: MultiAgentEpisodeReplayBuffer, modules: Sequence[str], number: int, *, gamma: float, beta: float
    ) -> dict[str, tuple[dict[str, Any], Any]]:
        """Draws `number` items (transitions or sequences) for each module in `modules` from a multi-agent buffer.
        Returns ``{module_id: (columns, drawn)}``, see `draw_from_buffer`. Windows do not support multi-agent buffers.
        """
        ...

    def write_to_buffer(self, buffer: Any, drawn: Any, logged: Mapping[str, Any], **which: Any) -> None:
        """Writes the values that the loss logged for the drawn items, for example TD errors as new priorities, into the
        host buffer.

        Args:
            buffer: Buffer from which the items were drawn.
            drawn: The drawn items.
            logged: Logged values of the N drawn items, ``{name: [N, ...]}``, with all names in `writes`.
            **which: `module_id`, for a buffer of several modules.
        """
        ...

    def write_to_ring(
        self, ring: DeviceReplay, state: ReplayState, drawn: Any, logged: Mapping[str, Any]
    ) -> ReplayState:
        """Writes the values that the loss logged for the drawn items into the device buffer.

        For example, TD errors become new priorities. Returns the buffer's new state. For `drawn` and `logged`, see
        `write_to_buffer`.
        """
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class StartState:
    """Choice of the recurrent states with which drawn sequences or windows start: the stored states of their first
    steps, or the module's initial state.

    Attributes:
        shapes: Shapes of the state of one environment.
        initial: The module's initial state, with which every item starts; None: items start with the state that is
            stored with their first step.
        remedy: Advice on how to avoid stored states, for errors about memory.
    """

    shapes: Any
    initial: Any = None
    remedy: str = ""

    @classmethod
    def of(cls, module: RLModule, *, is_stored: bool, remedy: str) -> Self:
        """Selects how a module's drawn sequences start: with stored recurrent states if `is_stored`, else with the
        module's initial state.
        """
        initial = None if is_stored else jax.device_get(module.get_initial_state())
        return cls(jax.eval_shape(module.get_initial_state), initial, remedy)

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """Names of the columns that the buffer stores for the start of sequences.

        The name is ``state_in`` if sequences start with stored recurrent states. The result is empty if sequences start
        with the module's initial state.
        """
        return (Columns.STATE_IN,) if self.initial is None else ()

    def shapes_of(self, number: int) -> Any:
        """Shapes and dtypes of the recurrent states with which `number` drawn sequences start."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((number, *x.shape), x.dtype), self.shapes)

    def added_to(self, columns: dict[str, Any], number: int, xp: Any) -> dict[str, Any]:
        """Adds the module's initial recurrent state to `columns` as ``state_in``.

        The state is repeated for each of `number` drawn items. If samples start with stored recurrent states, returns
        `columns` unchanged. `xp` is numpy or jax.numpy.
        """
        if self.initial is None:
            return columns
        state = jax.tree.map(lambda x: xp.broadcast_to(x, (number, *x.shape)), self.initial)
        return {**columns, Columns.STATE_IN: state}


@dataclasses.dataclass(frozen=True)
class _WithPriorities(abc.ABC):
    """Base class of two sample forms with n-step returns: transitions and sequences. Samples are drawn uniformly or by
    priority.

    Attributes:
        n_step: Number of steps of the returns; a range ``(low, high)`` draws it, `high` excluded.
        clip_rewards: Clipping of rewards; see `ops.returns.clipped_rewards`.
        writes: Name of the values that the loss logs as priorities; () if draws are uniform.
        declared: See `DrawForm`.
    """

    n_step: int | tuple[int, int] = 1
    clip_rewards: bool | float | None = None
    writes: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    def _arguments(self, gamma: float, beta: float) -> dict[str, Any]:
        arguments: dict[str, Any] = {"n_step": self.n_step, "gamma": gamma, "beta": beta}
        if self.declared:
            arguments["extra_columns"] = self.declared
        if self.clip_rewards:
            # Left out otherwise: users' own buffers need not know of it.
            arguments["clip_rewards"] = self.clip_rewards
        return arguments

    def _estimate(
        self,
        counts: Mapping[str, int],
        recorded: Mapping[str, Any],
        of_steps: Mapping[str, Any],
        of_items: Mapping[str, Any],
    ) -> MemoryEstimate:
        """Estimates the memory, in bytes, of a train batch.

        The batch contains observations, actions, the columns named in the attribute `declared`, and further columns
        ``{name: dtype}``: `of_steps` with one value per step, and `of_items` with one value per drawn item.
        """
        lead = tuple(counts.values())
        sources = {**_OBSERVED, **{name: name for name in self.declared if name in recorded}}
        columns = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[2:]), x.dtype), recorded[source])
            for name, source in sources.items()
        }
        for own, axes in ((of_steps, lead), (of_items, lead[:1])):
            columns |= {name: jax.ShapeDtypeStruct(axes, dtype) for name, dtype in own.items()}
        return MemoryEstimate.of_shapes("train batch", counts, columns)

    @abc.abstractmethod
    def _sample(self, buffer: Any, number: int, gamma: float, beta: float, **which: Any) -> Any:
        """Draws `number` items from a host buffer and returns the items' columns.

        `which` contains further keyword arguments for the buffer's sampling method. If `which` contains
        ``modules_to_sample``, a list of module ids, draws `number` items for each module and returns ``{module_id:
        columns}``.
        """

    def _split(self, columns: dict[str, Any], number: int) -> tuple[dict[str, Any], Any]:
        """Removes the identifiers of the drawn items from the columns that `_sample` returned. Returns
        ``(columns, identifiers)``.
        """
        return columns, columns.pop(BATCH_INDEXES)

    def draw_from_buffer(
        self, buffer: EpisodeReplayBuffer, number: int, *, gamma: float, beta: float
    ) -> tuple[dict[str, Any], Any]:
        return self._split(self._sample(buffer, number, gamma, beta), number)

    def draw_from_modules(
        self, buffer: MultiAgentEpisodeReplayBuffer, modules: Sequence[str], number: int, *, gamma: float, beta: float
    ) -> dict[str, tuple[dict[str, Any], Any]]:
        columns = self._sample(buffer, number, gamma, beta, modules_to_sample=modules)
        return {module_id: self._split(own, number) for module_id, own in columns.items()}

    def write_to_buffer(self, buffer: Any, drawn: Any, logged: Mapping[str, Any], **which: Any) -> None:
        (name,) = self.writes
        buffer.update_priorities(logged[name], indices=drawn, **which)

    def write_to_ring(
        self, ring: DeviceReplay, state: ReplayState, drawn: Any, logged: Mapping[str, Any]
    ) -> ReplayState:
        (name,) = self.writes
        return ring.update_priorities(state, drawn, logged[name])


_STEP_DTYPES = {
    **dict.fromkeys((Columns.REWARDS, N_STEP), np.float32),
    **dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), np.bool_),
}


def _item_dtypes(is_on_device: bool) -> dict[str, Any]:
    return {WEIGHTS: np.float32, **({} if is_on_device else {BATCH_INDEXES: np.int64})}


@dataclasses.dataclass(frozen=True)
class Transitions(_WithPriorities):
    """Form of replay samples (`DrawForm`) that draws single steps with their n-step returns and the observations at the
    end of their n-step windows.
    """

    length = 1
    start = None

    @property
    def extra_columns(self) -> tuple[str, ...]:
        return self.declared

    def num_items(self, num_steps: int, num_shares: int) -> int:
        return num_steps

    def ring(self, **sizes: Any) -> DeviceReplay:
        return DeviceReplay(
            **sizes, n_step=self.n_step, clip_rewards=self.clip_rewards, extra_columns=self.extra_columns
        )

    def memory_estimate(self, number: int, recorded: Mapping[str, Any], *, is_on_device: bool) -> MemoryEstimate:
        return self._estimate({"rows": number}, recorded, _STEP_DTYPES, _item_dtypes(is_on_device))

    def _sample(self, buffer: Any, number: int, gamma: float, beta: float, **which: Any) -> Any:
        return buffer.sample_batch(number, **self._arguments(gamma, beta), **which)

    def draw_from_ring(
        self,
        ring: DeviceReplay,
        state: ReplayState,
        numbers: jax.Array | RandomNumbers,
        *,
        gamma: Any,
        **arguments: Any,
    ) -> tuple[ReplayState, dict[str, Any], Any]:
        columns, drawn = ring.sample(state, numbers, gamma=gamma(), **arguments)
        return state, columns, drawn


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Sequences(_WithPriorities):
    """Form of replay samples (`DrawForm`) for recurrent modules: draws sequences of consecutive steps of one episode.

    Attributes:
        length: Number of steps of a sequence, including burn-in.
        burn_in: Maximum number of steps before the steps that losses see.
        start: State with which sequences start.
    """

    length: int
    burn_in: int
    start: StartState

    @property
    def extra_columns(self) -> tuple[str, ...]:
        return (*self.start.extra_columns, *self.declared)

    @property
    def learned(self) -> int:
        """Maximum number of steps that the loss uses of each sequence: the sequence length minus the burn-in steps."""
        return self.length - self.burn_in

    def num_items(self, num_steps: int, num_shares: int) -> int:
        return _num_of_length(self.length, num_steps, num_shares)

    def ring(self, **sizes: Any) -> DeviceReplay:
        return DeviceReplay(
            **sizes,
            n_step=self.n_step,
            clip_rewards=self.clip_rewards,
            extra_columns=self.extra_columns,
            length=self.learned,
        )

    def memory_estimate(self, number: int, recorded: Mapping[str, Any], *, is_on_device: bool) -> MemoryEstimate:
        of_steps = {**_STEP_DTYPES, Columns.LOSS_MASK: np.bool_}
        of_items = {**_item_dtypes(is_on_device), Columns.SEQ_LENS: np.int32}
        estimate = self._estimate({"sequences": number, "steps": self.length}, recorded, of_steps, of_items)
        return _with_states(estimate, self.start, number)

    def _sample(self, buffer: Any, number: int, gamma: float, beta: float, **which: Any) -> Any:
        return buffer.sample_sequences(
            number,
            batch_length_T=self.learned,
            burn_in_len=self.burn_in,
            state_column=Columns.STATE_IN if self.start.extra_columns else None,
            **self._arguments(gamma, beta),
            **which,
        )

    def _split(self, columns: dict[str, Any], number: int) -> tuple[dict[str, Any], Any]:
        return super()._split(self.start.added_to(columns, number, np), number)

    def draw_from_ring(
        self,
        ring: DeviceReplay,
        state: ReplayState,
        numbers: jax.Array | RandomNumbers,
        *,
        gamma: Any,
        **arguments: Any,
    ) -> tuple[ReplayState, dict[str, Any], Any]:
        columns, drawn = ring.sample_sequences(state, numbers, burn_in=self.burn_in, gamma=gamma(), **arguments)
        return state, self.start.added_to(columns, ring.batch_size, jnp), drawn


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
    """Form of replay samples (`DrawForm`) for world models: draws windows of consecutive items, which may cross episode
    boundaries.

    An item is an observation with the action taken at it and the reward that led to it; see `replay.items`.

    Attributes:
        length: Number of items of a window.
        start: State with which windows start.
        clip_rewards: Clipping of rewards; see `ops.returns.clipped_rewards`.
        writes: Entries of the stored states that are replaced by states which the loss logs, ``[N, T, ...]``: the state
            after each item, which is the state before the next item; () if states are not stored.
        declared: See `DrawForm`.
    """

    length: int
    start: StartState
    clip_rewards: bool | float | None = None
    writes: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()

    @property
    def extra_columns(self) -> tuple[str, ...]:
        return (*self.start.extra_columns, *self.declared)

    def num_items(self, num_steps: int, num_shares: int) -> int:
        return _num_of_length(self.length, num_steps, num_shares)

    def ring(self, **sizes: Any) -> DeviceReplay:
        return DeviceReplay(
            **sizes, clip_rewards=self.clip_rewards, extra_columns=self.extra_columns, keep_terminal_obs=True
        )

    def memory_estimate(self, number: int, recorded: Mapping[str, Any], *, is_on_device: bool) -> MemoryEstimate:
        counts = {"windows": number, "items": self.length}
        lead = tuple(counts.values())
        columns = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[2:]), x.dtype), recorded[name])
            for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS, *self.declared)
            if name in recorded
        }
        return _with_states(MemoryEstimate.of_shapes("train batch", counts, columns), self.start, number)

    def draw_from_buffer(
        self, buffer: EpisodeReplayBuffer, number: int, *, gamma: float, beta: float
    ) -> tuple[dict[str, Any], Any]:
        columns, drawn = items.host_windows(
            buffer, number, self.length, clip_rewards=self.clip_rewards, extra_columns=self.extra_columns
        )
        return self.start.added_to(columns, number, np), (drawn, _continues(columns))

    def draw_from_ring(
        self, ring: DeviceReplay, state: ReplayState, numbers: jax.Array | RandomNumbers, **arguments: Any
    ) -> tuple[ReplayState, dict[str, Any], Any]:
        columns, drawn = items.device_windows(ring, state, numbers, self.length)
        if self.start.extra_columns:
            # All is read before states are written: XLA copies the ring otherwise.
            columns, state = jax.lax.optimization_barrier((columns, state))
        columns = self.start.added_to(columns, ring.batch_size, jnp)
        return state, columns, (drawn, _continues(columns))

    def draw_from_modules(self, buffer: MultiAgentEpisodeReplayBuffer, *args: Any, **more: Any) -> Any:
        raise NotImplementedError(
            "Windows of consecutive steps can only be drawn from a single-agent replay buffer (EpisodeReplayBuffer), "
            "but this buffer stores steps of several agents. Remove multi_agent(policies=...)."
        )

    def write_to_buffer(self, buffer: Any, drawn: Any, logged: Mapping[str, Any], **which: Any) -> None:
        found, where = drawn
        items.put_on_host(buffer, found[:, 1:], Columns.STATE_IN, self._before_next(logged), where)

    def write_to_ring(
        self, ring: DeviceReplay, state: ReplayState, drawn: Any, logged: Mapping[str, Any]
    ) -> ReplayState:
        found, where = drawn
        found = jax.tree.map(lambda x: x[:, 1:], found)
        return items.put_on_device(ring, state, found, Columns.STATE_IN, self._before_next(logged), where)

    def _before_next(self, logged: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the recurrent states before items 1 to T - 1 of each window of T items, ``{name: [N, T - 1, ...]}``.

        The loss has logged these states as the states after items 0 to T - 2.
        """
        return {name: logged[name][:, :-1] for name in self.writes}


def _num_of_length(length: int, num_steps: int, num_shares: int) -> int:
    return num_shares * -(-num_steps // (num_shares * length))


def _with_states(estimate: MemoryEstimate, start: StartState, number: int) -> MemoryEstimate:
    states = MemoryEstimate.of_shapes("states", estimate.counts, {Columns.STATE_IN: start.shapes_of(number)})
    return dataclasses.replace(estimate, columns={**estimate.columns, **states.columns})


def _continues(columns: Mapping[str, Any]) -> Any:
    """Mask of the items in N windows that are steps of the previous item's episode, bool ``[N, T - 1]``.

    The mask covers items 1 to T - 1 of each window. The last observation of an episode is an item, but not a step.
    """
    return ~(columns[IS_FIRST] | columns[IS_LAST])[:, 1:]
