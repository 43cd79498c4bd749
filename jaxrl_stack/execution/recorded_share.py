"""Train batches of which a share is drawn from recorded steps, beside a replay memory of sampled ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.recorded_start import RecordedStart
from jaxrl_stack.execution.replay_memories import DeviceMemory, HostMemory, filled_from
from jaxrl_stack.execution.training_step import Draws, Kept, Place, TrainState
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.replay.episode_replay_buffer import BATCH_INDEXES, EpisodeReplayBuffer
from jaxrl_stack.utils.seeds import derived_seed, generator_state, set_generator_state

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.execution.device_driver import DeviceDriver
    from jaxrl_stack.execution.local_driver import LocalDriver
    from jaxrl_stack.utils.memory import MemoryEstimate

REMEDY = "Name less data, offline_data(input_=...), or let the replay buffer begin with it: recorded_share=None."


@struct.dataclass
class MixedKept:
    """What `MixedMemory` keeps.

    Attributes:
        sampled: Of the memory of sampled steps.
        recorded: Of the memory of recorded steps, which training leaves as it is.
    """

    sampled: Any
    recorded: Any


class SampledPart(Kept):
    """What the memory of sampled steps keeps, in place within a `MixedKept`.

    Args:
        whole: Where both are kept.
    """

    def __init__(self, whole: Kept):
        self._whole = whole

    @property
    def value(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return None if self._whole.value is None else self._whole.value.sampled

    @value.setter
    def value(self, value: Any) -> None:
        self._whole.value = dataclasses.replace(self._whole.value, sampled=value)


def split_batch(config: OffPolicyConfig, num_devices: int) -> tuple[int, int]:
    """``(sampled rows, recorded rows)`` of an update, each a multiple of the devices.

    Raises:
        ValueError: If one of them would be empty.
    """
    assert config.recorded_share is not None, "there is a share to split off"
    total, share = int(config.total_train_batch_size), float(config.recorded_share)
    recorded = round(total * share / num_devices) * num_devices
    if not 0 < recorded < total:
        raise ValueError(
            f"training(recorded_share={share}) of train_batch_size_per_learner={config.train_batch_size_per_learner} "
            f"rows is {recorded} rows of {total}, as many for each of {num_devices} devices: raise the batch size, or "
            f"leave recorded_share out."
        )
    return total - recorded, recorded


class RecordedDeviceRows:
    """Recorded steps on the devices, each with a part of them, drawn uniformly.

    Args:
        driver: Whose they are.
        config: The algorithm's config.
        num_updates: Draws of one training step.
        batch_size: Rows of a draw, over all devices.
    """

    def __init__(self, driver: LocalDriver, config: OffPolicyConfig, num_updates: int, batch_size: int):
        self._driver: DeviceDriver = driver  # pyright: ignore[reportAttributeAccessIssue]
        self._module_id = driver.module_map.module_id
        self._start = RecordedStart(driver, config, None)
        self._num_devices = self._driver.learner.num_devices
        steps = self._start.num_steps
        # Columns of some hundred steps: a step at the end of a column is cut off from the next one.
        self._num_columns = self._num_devices * max(1, min(8, steps // (256 * self._num_devices)))
        self.replay = DeviceReplay(
            capacity=steps // self._num_columns * (self._num_columns // self._num_devices),
            num_envs=self._num_columns // self._num_devices,
            batch_size=batch_size // self._num_devices,
            n_step=config.n_step,
            clip_rewards=config.clip_rewards,
            num_frames=driver.num_stacked_frames()[self._module_id],
        )
        self.draws = {"recorded_replay": Draws(num_updates, self.replay.random_numbers, self.replay.num_random_numbers)}
        self._recorded = _with_columns(self._driver.program.recorded[self._module_id], self.replay.num_envs)
        self.estimate = self.replay.memory_estimate(self._recorded).part("recorded steps", self._num_devices, 1)
        require_device_memory(self._driver.learner.devices, self.estimate, REMEDY)

    def init(self) -> Any:
        """All steps, on the devices."""
        return filled_from(
            self.replay, self._recorded, self._start, self.replay.num_rows * self._num_columns, self._driver.learner
        )

    def change_settings(self, config: OffPolicyConfig) -> None:
        """Does nothing: values of traced settings are arguments of the program."""

    def sample(self, state: TrainState, kept: Any, place: Any) -> tuple[TrainState, dict[str, Any]]:
        """``(state, columns [N, ...])`` of this device."""
        state, numbers = place.draw(state, "recorded_replay")
        gamma = place.values(state)[self._module_id]["gamma"]
        rows, _ = self.replay.sample(kept, numbers, beta=0.0, gamma=gamma, axis_name=place.axis_name)
        return state, rows


class RecordedHostRows:
    """Recorded steps in this process, drawn uniformly; arguments as those of `RecordedDeviceRows`."""

    draws: Mapping[str, Draws] = {}

    def __init__(self, driver: LocalDriver, config: OffPolicyConfig, num_updates: int, batch_size: int):
        module_id = driver.module_map.module_id
        self._start = RecordedStart(driver, config, None)
        spaces = driver.spaces[module_id]
        self._buffer = EpisodeReplayBuffer(
            self._start.num_steps,
            observation_space=spaces[0],
            action_space=spaces[1],
            extra_columns=(),
            store_infos=False,
            num_frames=driver.num_stacked_frames()[module_id],
            seed=derived_seed("recorded replay", config.root_seed),
        )
        self._batch_size = batch_size
        self._module_id = module_id
        self.change_settings(config)
        self.estimate: MemoryEstimate | None = self._buffer.memory_estimate()

    def change_settings(self, config: OffPolicyConfig) -> None:
        """Continue with other values of traced settings."""
        gamma = config.get_config_for_module(self._module_id).gamma
        self._arguments = {"n_step": config.n_step, "gamma": gamma, "clip_rewards": config.clip_rewards}

    def init(self) -> EpisodeReplayBuffer:
        """All steps, in the buffer."""
        if not len(self._buffer):
            for number, block in enumerate(self._start.blocks(1, self._start.num_steps)):
                self._buffer.add_block(block, stream="recorded", serial=number)
        return self._buffer

    def sample(self, state: TrainState, kept: Any, place: Any) -> tuple[TrainState, dict[str, Any]]:
        """``(state, columns [N, ...])``."""
        columns = kept.sample_batch(self._batch_size, **self._arguments)
        del columns[BATCH_INDEXES]
        return state, columns

    def get_state(self) -> dict[str, Any]:
        """What changes: the random numbers."""
        return generator_state(self._buffer.rng)

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over what `get_state` returned."""
        set_generator_state(self._buffer.rng, state)


class MixedMemory:
    """A replay memory of sampled steps, and recorded ones beside it, of which every train batch has a share.

    Recorded steps are drawn uniformly, and are never evicted; priorities are those of sampled ones (Ball et al., 2023,
    "Efficient Online Reinforcement Learning with Offline Data", draws half of each).

    Args:
        driver: Whose it is.
        config: The algorithm's config, with `recorded_share`.
        num_updates: Draws of one training step.

    Attributes:
        sampled: The memory of sampled steps.
        recorded: The recorded steps.

    Raises:
        ValueError: If a share of the batch would be empty.
    """

    def __init__(self, driver: LocalDriver, config: OffPolicyConfig, num_updates: int):
        is_on_device = driver.is_on_device
        num_shares = driver.learner.num_devices if driver.learner is not None else max(1, config.num_learners)
        num_sampled, num_recorded = split_batch(config, num_shares)
        memory_class = DeviceMemory if is_on_device else HostMemory
        rows_class = RecordedDeviceRows if is_on_device else RecordedHostRows
        part = SampledPart(driver.step.kept)
        self.sampled = memory_class(driver, config, num_updates, None, kept=part, batch_size=num_sampled)
        self.recorded = rows_class(driver, config, num_updates, num_recorded)
        self._num_sampled = num_sampled // num_shares if is_on_device else num_sampled
        self._xp: Any = jnp if is_on_device else np
        self.draws = {**self.sampled.draws, **self.recorded.draws}
        self.estimate = self.sampled.estimate
        self.module_id, self.capacity = self.sampled.module_id, self.sampled.capacity
        self.uses_priorities, self.metrics = self.sampled.uses_priorities, self.sampled.metrics
        # What is reported, saved and cut off is of sampled steps.
        self.as_component, self.cut = self.sampled.as_component, self.sampled.cut
        self.reset, self.results, self._kept = self.sampled.reset, self.sampled.results, driver.step.kept

    def change_settings(self, config: OffPolicyConfig) -> None:
        """Continue with other values of traced settings."""
        self.sampled.change_settings(config)
        self.recorded.change_settings(config)

    def init(self) -> MixedKept:
        """An empty memory of sampled steps, and all recorded ones."""
        return MixedKept(sampled=self.sampled.init(), recorded=self.recorded.init())

    def empty(self) -> None:
        """Start with no sampled step."""
        self._kept.start(self.init)

    def has_rows(self, kept: MixedKept) -> bool:
        """Whether there is a sampled step to draw."""
        return self.sampled.has_rows(kept.sampled)

    def add(self, kept: MixedKept, experience: Experience) -> MixedKept:
        """With what `Place.sample` gave."""
        return dataclasses.replace(kept, sampled=self.sampled.add(kept.sampled, experience))

    def sample(self, state: TrainState, place: Place) -> tuple[TrainState, Experience, Any]:
        """``(state, rows [N, ...], items)``: sampled rows, then recorded ones; the items are of the sampled rows."""
        kept = state.kept
        of_sampled = dataclasses.replace(state, kept=kept.sampled)
        of_sampled, rows, items = self.sampled.sample(of_sampled, place)
        state = dataclasses.replace(of_sampled, kept=kept)
        state, recorded = self.recorded.sample(state, kept.recorded, place)
        sampled = rows.modules[self.module_id]
        both = {
            name: jax.tree.map(
                lambda a, b: self._xp.concatenate([a, self._xp.asarray(b, a.dtype)]), own, recorded[name]
            )
            for name, own in sampled.items()
        }
        return state, Experience.of_rows({self.module_id: both}), items

    def update_priorities(self, kept: MixedKept, items: Any, errors: Any) -> MixedKept:
        """With new priorities of the sampled rows that were drawn."""
        sampled = self.sampled.update_priorities(kept.sampled, items, errors[: self._num_sampled])
        return dataclasses.replace(kept, sampled=sampled)

    def not_finite(self) -> Any:
        """See `DeviceMemory.not_finite`; None on the host."""
        return self.sampled.not_finite() if isinstance(self.sampled, DeviceMemory) else None


def _with_columns(recorded: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Shapes ``[T, B, ...]`` with another B."""
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((x.shape[0], number, *x.shape[2:]), x.dtype), dict(recorded))
