"""Replay memories of training steps: a buffer on the host, or arrays in the compiled program."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable
from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import full_sequence_length
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.recorded_start import RecordedStart
from jaxrl_stack.execution.training_step import Draws, Kept, Place, TrainState
from jaxrl_stack.replay.arithmetic import N_STEP, WEIGHTS
from jaxrl_stack.replay.device_replay import REMEDY, DeviceReplay
from jaxrl_stack.replay.episode_replay_buffer import BATCH_INDEXES
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.devices import all_shards, map_over_devices, own_shards, place_sharded
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, available_host_bytes, bytes_of_shapes, require_memory
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.execution.device_driver import DeviceDriver
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer

_OBSERVED = {Columns.OBS: Columns.OBS, Columns.NEXT_OBS: Columns.OBS, Columns.ACTIONS: Columns.ACTIONS}
"""``{column of what is drawn: the recorded column that it is taken from}``."""


@dataclasses.dataclass(frozen=True)
class Sequences:
    """What is drawn for a module with a recurrent state.

    Attributes:
        length: Steps of a sequence, burn-in included: ``max_seq_len``.
        burn_in: Those of them, at most, that come before the ones that losses see.
        initial_state: The module's, which every sequence starts from; None: from the state that was sampled with.
        num_shares: Learners, or devices of one, that each get as many of them.
        state: Shapes of the recurrent state of one environment.
    """

    length: int
    burn_in: int
    initial_state: Any
    num_shares: int
    state: Any

    @classmethod
    def of(cls, driver: Driver, config: OffPolicyConfig) -> Sequences | None:
        """Those of the module that acts; None if it has no recurrent state, or is not there yet.

        Raises:
            ValueError: If they are not longer than their burn-in.
        """
        if not driver.acting_modules:
            return None
        module = driver.acting_modules[driver.module_map.module_id]
        if not module.is_stateful():
            if config.burn_in_len or config.replay_zero_init_states:
                notice_once(
                    f"training(burn_in_len={config.burn_in_len}, replay_buffer_config={{'zero_init_states': "
                    f"{config.replay_zero_init_states}}}) have no effect: they are for modules with a recurrent state, "
                    f"rl_module(model_config={{'use_lstm': True}})."
                )
            return None
        length = full_sequence_length(module) or DefaultModelConfig().max_seq_len
        if length <= config.burn_in_len:
            raise ValueError(
                f"training(burn_in_len={config.burn_in_len}) leaves nothing to learn from of sequences of "
                f"rl_module(model_config={{'max_seq_len': {length}}}) steps. Lower burn_in_len, or raise max_seq_len."
            )
        is_stored = not config.replay_zero_init_states
        initial_state = None if is_stored else jax.device_get(module.get_initial_state())
        num_shares = config.num_learners if driver.learner is None else driver.learner.num_devices
        return cls(length, config.burn_in_len, initial_state, num_shares, jax.eval_shape(module.get_initial_state))

    @property
    def extra_columns(self) -> tuple[str, ...]:
        """What is stored of every step beside a transition."""
        return (Columns.STATE_IN,) if self.initial_state is None else ()

    @property
    def learned(self) -> int:
        """Steps of a sequence that losses see, at most."""
        return self.length - self.burn_in

    def number(self, num_steps: int) -> int:
        """Sequences of an update from so many steps, as many for each of the shares."""
        return self.num_shares * -(-num_steps // (self.num_shares * self.length))

    def state_shapes(self, number: int) -> Any:
        """Shapes of the states of so many sequences."""
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((number, *x.shape), x.dtype), self.state)

    def with_state(self, columns: dict[str, Any], number: int, xp: Any) -> dict[str, Any]:
        """Columns of so many sequences with the states that these start from; `xp` is the arrays' namespace."""
        if self.initial_state is None:
            return columns
        state = jax.tree.map(lambda x: xp.broadcast_to(x, (number, *x.shape)), self.initial_state)
        return {**columns, Columns.STATE_IN: state}


def drawn_memory(driver: LocalDriver, num_rows: int, sequences: Sequences | None) -> MemoryEstimate:
    """What is drawn from a memory for one update.

    Args:
        driver: Whose memory it is.
        num_rows: Rows of an update; of sequences all their steps.
        sequences: What is drawn for a module with a recurrent state; None for rows.
    """
    recorded, counts = driver.recorded[driver.module_map.module_id].columns, {"rows": num_rows}
    of_steps: dict[str, Any] = dict.fromkeys((Columns.REWARDS, N_STEP), np.float32)
    of_steps |= dict.fromkeys((Columns.TERMINATEDS, Columns.TRUNCATEDS), np.bool_)
    of_items = {WEIGHTS: np.float32, **({} if driver.is_on_device else {BATCH_INDEXES: np.int64})}
    if sequences is not None:
        counts = {"sequences": num_rows // sequences.length, "steps": sequences.length}
        of_steps[Columns.LOSS_MASK] = np.bool_
        of_items[Columns.SEQ_LENS] = np.int32
    lead = tuple(counts.values())
    columns = {
        name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[2:]), x.dtype), recorded[source])
        for name, source in _OBSERVED.items()
    }
    for own, axes in ((of_steps, lead), (of_items, lead[:1])):
        columns |= {name: jax.ShapeDtypeStruct(axes, dtype) for name, dtype in own.items()}
    if sequences is not None:
        columns[Columns.STATE_IN] = sequences.state_shapes(lead[0])
    return MemoryEstimate.of_shapes("train batch", counts, columns)


class HostMemory:
    """An `EpisodeReplayBuffer` in this process, which all EnvRunners fill; what is kept is the buffer itself.

    Blocks of steps go from the runners' arrays straight into the buffer's, without episodes in between; episodes, of
    runners that only give those (``batch_mode="complete_episodes"``, classes with a `sample` of their own), work, too.

    Args:
        driver: Whose it is.
        config: The algorithm's config.
        num_updates: Draws of one training step.
        sequences: What is drawn for a module with a recurrent state; None for one without.
        kept: Where it is kept; not used.
        batch_size: Steps of a draw; None: all of an update.

    Attributes:
        module_id: The module whose steps it has.
        metrics: What it counts.
    """

    draws: dict[str, Draws] = {}  # it has a generator of its own
    remedy_for_states = (
        "Sequences that start from the initial state need no states in the buffer: "
        "replay_buffer_config={'zero_init_states': True}."
    )

    def __init__(
        self,
        driver: LocalDriver,
        config: OffPolicyConfig,
        num_updates: int,
        sequences: Sequences | None,
        kept: Kept | None = None,
        batch_size: int | None = None,
    ):
        self.module_id = driver.module_map.module_id
        self._wanted_size = batch_size
        self._spaces = driver.spaces[self.module_id]
        self._stats_classes = config.stats_cls_lookup
        self._num_frames = driver.num_stacked_frames()[self.module_id]
        self._sequences = sequences
        self._buffer = None
        self.recorded_start: RecordedStart | None = None
        self.reset(config)
        self.estimate = self._buffer.memory_estimate()
        if sequences is not None and sequences.extra_columns and self.estimate is not None:
            # The buffer knows of the column, and not how large it is.
            states = self.estimate.num_rows * bytes_of_shapes(sequences.state)
            columns = {**self.estimate.columns, Columns.STATE_IN: states}
            self.estimate = dataclasses.replace(self.estimate, columns=columns)
            require_memory(
                self.estimate,
                available_host_bytes(),
                where="are free on this machine",
                remedy=f"{REMEDY} {self.remedy_for_states}",
            )

    def reset(self, config: OffPolicyConfig) -> None:
        """Take another config, and an empty buffer."""
        if self._buffer is not None:
            # Both together may not fit.
            self._buffer._forget()
        self._buffer: Any = self._make(config)
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=self._stats_classes)
        self.capacity, self.uses_priorities = config.replay_capacity, config.uses_priorities
        self._batch_size = int(self._wanted_size or config.total_train_batch_size)
        self.change_settings(config)
        if self._sequences is not None:
            self._batch_size = self._sequences.number(self._batch_size)

    def change_settings(self, config: OffPolicyConfig) -> None:
        """Continue with other values of traced settings."""
        # Gamma is that of the module, with which its loss discounts the bootstrap value after the window.
        gamma = config.get_config_for_module(self.module_id).gamma
        self._arguments = {"n_step": config.n_step, "gamma": gamma, "beta": config.replay_beta}
        if config.clip_rewards:
            # Left out otherwise: buffers of one's own need not know of it.
            self._arguments["clip_rewards"] = config.clip_rewards

    def _make(self, config: OffPolicyConfig) -> EpisodeReplayBuffer:
        buffer_class = config.replay_buffer_class
        observation_space, action_space = self._spaces
        own = {
            "observation_space": observation_space,
            "action_space": action_space,
            # Losses see what the module puts out now, not what it did then.
            "extra_columns": () if self._sequences is None else self._sequences.extra_columns,
            "store_infos": False,
            "num_frames": self._num_frames,
            "seed": derived_seed("replay", config.root_seed),
        }
        parameters = inspect.signature(buffer_class).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            own = {p.name: own[p.name] for p in parameters if p.name in own}
        buffer = buffer_class(**{**own, **config.replay_buffer_kwargs})
        buffer.observation_space, buffer.action_space = observation_space, action_space
        return buffer

    def init(self) -> EpisodeReplayBuffer:
        """The buffer, with the recorded steps that it begins with, if there are any."""
        if self.recorded_start is not None and not len(self._buffer):
            for number, block in enumerate(self.recorded_start.blocks(1, self.capacity)):
                self._buffer.add_block(block, stream="recorded", serial=number)
        return self._buffer

    @property
    def as_component(self) -> EpisodeReplayBuffer:
        """What checkpoints hold, and users see."""
        return self._buffer

    def empty(self) -> None:
        """Start as in the beginning."""
        self._buffer._forget()
        self.init()

    def cut(self) -> None:
        """Nothing to do: blocks and episodes tell where they go on."""

    def has_rows(self, kept: EpisodeReplayBuffer) -> bool:
        """Whether there is something to draw."""
        return len(kept) > 0

    def add(self, kept: EpisodeReplayBuffer, experience: Experience) -> EpisodeReplayBuffer:
        """With what `Place.sample` gave; Ctrl-C waits until the buffer is whole."""
        with deferred_interrupt():
            # A runner that did another one's work has several parts.
            blocks = [part for part in experience.parts if part.episodes is None]
            for part in sorted(blocks, key=lambda part: part.source):
                columns, source = part.modules[self.module_id], part.source
                if part.layouts[self.module_id].num_frames > 1:
                    columns = frames.stacked(columns)
                kept.add_block(columns, stream=source.worker_index, serial=source.serial, starts=part.starts)
            if experience.has_episodes:
                kept.add(experience.episodes)
        return kept

    def sample(self, state: TrainState, place: Place) -> tuple[TrainState, Experience, Any]:
        """``(state, rows [N, ...], items)``: the items say which rows of the memory these are.

        For a module with a recurrent state N sequences, ``[N, J, ...]``.
        """
        wanted = self._sequences
        if wanted is None:
            columns = state.kept.sample_batch(self._batch_size, **self._arguments)
        else:
            columns = state.kept.sample_sequences(
                self._batch_size,
                batch_length_T=wanted.learned,
                burn_in_len=wanted.burn_in,
                state_column=Columns.STATE_IN if wanted.extra_columns else None,
                **self._arguments,
            )
            columns = wanted.with_state(columns, self._batch_size, np)
        items = columns.pop(BATCH_INDEXES)
        return state, Experience.of_rows({self.module_id: columns}), items

    def update_priorities(self, kept: Any, items: Any, errors: Any) -> Any:
        """With new priorities of the rows that were drawn."""
        with deferred_interrupt():
            kept.update_priorities(errors, indices=items)
        return kept

    def results(self, driver: Driver) -> dict[str, Any]:
        """What is reported of it."""
        self.metrics.aggregate([self._buffer.get_metrics()])
        return self.metrics.compile()


class DeviceMemory(Checkpointable):
    """A `DeviceReplay` of every device; what is kept is its state, leaves ``[D, ...]`` outside of the program.

    Args:
        driver: Whose it is.
        config: The algorithm's config.
        num_updates: Draws of one training step.
        sequences: What is drawn for a module with a recurrent state; None for one without.
        kept: Where its state is kept; None: what the training step keeps is its state.
        batch_size: Steps of a draw, over all devices; None: all of an update.

    Attributes:
        module_id: The module whose steps it has.
        replay: What is fixed about the memory of one device.
    """

    metrics = None

    def __init__(
        self,
        driver: LocalDriver,
        config: OffPolicyConfig,
        num_updates: int,
        sequences: Sequences | None,
        kept: Kept | None = None,
        batch_size: int | None = None,
    ):
        self._kept = driver.step.kept if kept is None else kept
        self._driver: DeviceDriver = driver  # pyright: ignore[reportAttributeAccessIssue]
        self.module_id = driver.module_map.module_id
        self._config = config
        devices, num_envs = self._driver.learner.devices, int(config.num_envs_per_env_runner)
        num_devices, capacity = self._driver.learner.num_devices, config.replay_capacity
        _check_divides("train_batch_size_per_learner", config.total_train_batch_size, num_devices)
        _check_divides("replay_buffer_config={'capacity': ...}", capacity, num_devices)
        length = config.get_rollout_fragment_length()
        longest = max(length, config.max_n_step)
        if capacity < num_envs * longest:
            raise ValueError(
                f"training(replay_buffer_config={{'capacity': {capacity}}}) holds {capacity // num_envs} steps "
                f"of each of num_envs_per_env_runner={num_envs} environments, and needs {longest} "
                f"(n_step={config.n_step!r}, rollout_fragment_length={length}). Raise the capacity to "
                f"at least {num_envs * longest}, or use fewer environments."
            )
        self.uses_priorities = config.uses_priorities
        self._sequences = sequences
        num_items = config.total_train_batch_size if batch_size is None else batch_size
        if sequences is not None:
            num_items = sequences.number(num_items)
        self.replay = DeviceReplay(
            capacity=capacity // num_devices,
            num_envs=num_envs // num_devices,
            batch_size=num_items // num_devices,
            extra_columns=() if sequences is None else sequences.extra_columns,
            n_step=config.n_step,
            alpha=config.replay_alpha if config.uses_priorities else None,
            clip_rewards=config.clip_rewards,
            num_frames=driver.num_stacked_frames()[self.module_id],
            length=1 if sequences is None else sequences.learned,
        )
        self.capacity = self.replay.num_rows * num_envs
        self.draws = {"replay": Draws(num_updates, self.replay.random_numbers, self.replay.num_random_numbers)}
        self._recorded: Any = self._driver.program.recorded[self.module_id]
        self.estimate = self.replay.memory_estimate(self._recorded).part("replay buffer", num_devices, 1)
        require_device_memory(devices, self.estimate, REMEDY)
        # Made where it stays: a copy of it on the way there may not fit.
        program = _over_devices(self._driver.learner)
        self.recorded_start: RecordedStart | None = None
        self._make = program(lambda _: (self.replay.init(self._recorded),), donate_argnums=())
        self._cut = program(lambda replay: (self.replay.cut(replay),), donate_argnums=(0,))

    def change_settings(self, config: OffPolicyConfig) -> None:
        """Continue with other values of traced settings."""
        self._config = config

    reset = change_settings

    @property
    def as_component(self) -> DeviceMemory:
        """What checkpoints hold, and users see."""
        return self

    def init(self) -> Any:
        """A memory that is empty, but for the recorded steps that it begins with."""
        learner = self._driver.learner
        if self.recorded_start is None:
            return self._make(np.zeros(len(learner.devices), np.float32))[0]
        return self._cut(filled_from(self.replay, self._recorded, self.recorded_start, self.capacity, learner))[0]

    def empty(self) -> None:
        """Start with nothing; there is room for one memory."""
        self._kept.start(self.init)

    def cut(self) -> None:
        """What the environments do next is not what followed what the memory holds."""
        self.replace(lambda: self._cut(self._kept.value)[0])

    def replace(self, make: Callable[[], Any]) -> None:
        """Replace the memory, whose buffers the new one may take over; if that fails, it is empty."""
        self._kept.replace(make, self.init)

    # -------------------------------------------------------------------------------------------- the compiled part

    def has_rows(self, kept: Any) -> bool:
        """Every call of the program samples before it draws."""
        return True

    def add(self, kept: Any, experience: Experience) -> Any:
        """With what `Place.sample` gave."""
        return self.replay.add(kept, experience.modules[self.module_id])

    def sample(self, state: TrainState, place: Any) -> tuple[TrainState, Experience, Any]:
        """``(state, rows [N, ...], items)``: the items say which rows of the memory these are.

        For a module with a recurrent state N sequences, ``[N, J, ...]``.
        """
        state, numbers = place.draw(state, "replay")
        arguments = {
            "beta": self._config.replay_beta,
            "gamma": place.values(state)[self.module_id]["gamma"],
            "axis_name": place.axis_name,
        }
        wanted = self._sequences
        if wanted is None:
            rows, items = self.replay.sample(state.kept, numbers, **arguments)
        else:
            rows, items = self.replay.sample_sequences(state.kept, numbers, burn_in=wanted.burn_in, **arguments)
            rows = wanted.with_state(rows, self.replay.batch_size, jnp)
        return state, Experience.of_rows({self.module_id: rows}), items

    def update_priorities(self, kept: Any, items: Any, errors: Any) -> Any:
        """With new priorities of the rows that were drawn."""
        return self.replay.update_priorities(kept, items, errors)

    # --------------------------------------------------------------------------------------------------------- results

    def results(self, driver: Driver) -> dict[str, Any]:
        """What is reported of it."""
        num_rows = int(all_shards(self._kept.value.size).sum())
        return {
            names.NUM_ENV_STEPS_STORED: num_rows * self.replay.num_envs,
            names.NUM_ENV_STEPS_ADDED_LIFETIME: driver.num_env_steps,
            "capacity": self.capacity,
        }

    def not_finite(self) -> dict[str, np.ndarray]:
        """`DeviceReplay.not_finite` over all devices, ``[D * B, L]``."""
        find = map_over_devices(
            lambda kept: (self.replay.not_finite(kept),),
            self._driver.learner.devices,
            axis_name=self._driver.learner.axis_name,
            in_axes=(0,),
            out_axes=(0,),
            donate_argnums=(),
        )
        return {name: own_shards(x).reshape(-1, x.shape[-1]) for name, x in find(self._kept.value)[0].items()}

    # ----------------------------------------------------------------------------------------------------- checkpoints

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """What the memories hold, by name, leaves ``[D, ...]``."""
        return named_leaves(all_shards(self._kept.value))

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned; nothing if it is empty.

        The memory that is there is let go of before the new one, which is as large, is made: both together may not
        fit. If that fails all the same, it is empty.

        Raises:
            ValueError: If it is of another capacity, of other environments, or of another number of devices; nothing
                has changed then.
        """
        if not state:
            return
        driver = self._driver
        num_devices = driver.learner.num_devices
        saved = next((np.shape(leaf)[0] for leaf in state.values() if np.ndim(leaf)), num_devices)
        if saved != num_devices:
            raise ValueError(
                f"The replay buffer was saved on {saved} devices, and here are {num_devices}: every device has a part "
                f"of its own. Use {saved} devices, or save with store_buffer_in_checkpoints=False and start with an "
                f"empty buffer."
            )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((num_devices, *x.shape[1:]), x.dtype), self._kept.value)
        restored = from_named_leaves(shapes, state, "the replay buffer")

        def placed() -> Any:
            self._kept.value = None
            return place_sharded(restored, driver.learner.devices)

        self.replace(placed)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # `set_state` checks all before it changes anything, and a copy is as large as what is restored.
        return {}


def filled_from(
    replay: DeviceReplay, recorded: Mapping[str, Any], start: RecordedStart, capacity: int, learner: Learner
) -> Any:
    """States of memories with recorded steps in them, leaves ``[D, ...]``.

    Args:
        replay: Of each device.
        recorded: What a rollout records: shapes and dtypes.
        start: The steps.
        capacity: Those of them, the last ones, that are put into the memories of all devices.
        learner: Has the devices.
    """
    devices, num_devices = learner.devices, learner.num_devices
    like = {**recorded, Columns.FINAL_OBS: recorded[Columns.OBS]}
    make = _over_devices(learner)(lambda _: (replay.init(recorded),), donate_argnums=())
    add = _over_devices(learner, in_axes=(0, 0))(lambda kept, block: (replay.add(kept, block),), donate_argnums=(0,))
    (kept,) = make(np.zeros(len(devices), np.float32))
    for block in start.blocks(replay.num_envs * num_devices, capacity):
        own = {
            name: jax.tree.map(lambda x, of: np.asarray(x, of.dtype), column, like[name])
            for name, column in block.items()
        }
        # Each device has its columns.
        shares = jax.tree.map(lambda x: np.stack(np.split(x, num_devices, axis=1)), own)
        (kept,) = add(kept, place_sharded(shares, devices))
    return kept


def _over_devices(learner: Learner, in_axes: tuple[int, ...] = (0,)) -> Callable[..., Any]:
    """`map_over_devices` of those of a learner, of functions of one result."""
    return functools.partial(
        map_over_devices, devices=learner.devices, axis_name=learner.axis_name, in_axes=in_axes, out_axes=(0,)
    )


def _check_divides(name: str, number: int, num_devices: int) -> None:
    if number % num_devices:
        raise ValueError(
            f"training({name}) is {number}, which must divide by the {num_devices} devices of the learner: each "
            f"has an equal part. Use {-(-number // num_devices) * num_devices}, or fewer devices."
        )
