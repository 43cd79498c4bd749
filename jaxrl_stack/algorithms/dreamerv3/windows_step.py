"""DreamerV3's training step: sample into a replay memory, then update on windows of consecutive items."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.host_place import HostPlace
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.execution.replay_memories import DeviceMemory, HostMemory
from jaxrl_stack.execution.training_step import Draws, Place, TrainState
from jaxrl_stack.replay import items
from jaxrl_stack.replay.device_replay import REMEDY
from jaxrl_stack.utils.memory import MemoryEstimate

if TYPE_CHECKING:
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.local_driver import LocalDriver


class _Windows:
    """What both memories of windows have: their length, and the state that these start from."""

    def __init__(self, driver: LocalDriver, config: Any, num_updates: int):
        super().__init__(driver, config, num_updates, None, batch_size=config.batch_size_B)  # pyright: ignore[reportCallIssue]
        assert driver.acting_modules
        self.length = int(config.batch_length_T)
        self._state_in = jax.device_get(driver.acting_modules[driver.module_map.module_id].get_initial_state())

    def _with_state(self, columns: dict[str, Any], number: int, xp: Any) -> dict[str, Any]:
        state = jax.tree.map(lambda x: xp.broadcast_to(x, (number, *x.shape)), self._state_in)
        return {**columns, Columns.STATE_IN: state}


class HostWindows(_Windows, HostMemory):
    """An `EpisodeReplayBuffer` that windows are drawn from."""

    def sample(self, state: TrainState, place: Any) -> tuple[TrainState, Experience, Any]:
        """``(state, windows [B, T, ...], items)``."""
        clip = self._arguments.get("clip_rewards")
        columns, drawn = items.host_windows(state.kept, self._batch_size, self.length, clip_rewards=clip)
        columns = self._with_state(columns, self._batch_size, np)
        return state, Experience.of_rows({self.module_id: columns}), drawn


class DeviceWindows(_Windows, DeviceMemory):
    """A `DeviceReplay` of every device that windows are drawn from."""

    def __init__(self, driver: LocalDriver, config: Any, num_updates: int):
        super().__init__(driver, config, num_updates)
        self.replay = dataclasses.replace(self.replay, keep_terminal_obs=True, n_step=1)
        self.draws = {"replay": Draws(num_updates, self.replay.random_numbers, self.replay.num_random_numbers)}
        devices, num_devices = self._driver.learner.devices, self._driver.learner.num_devices
        self.estimate = self.replay.memory_estimate(self._recorded).part("replay buffer", num_devices, 1)
        require_device_memory(devices, self.estimate, REMEDY)

    def sample(self, state: TrainState, place: Any) -> tuple[TrainState, Experience, Any]:
        """``(state, windows [B, T, ...], items)``."""
        state, numbers = place.draw(state, "replay")
        columns, drawn = items.device_windows(self.replay, state.kept, numbers, self.length)
        columns = self._with_state(columns, self.replay.batch_size, jnp)
        return state, Experience.of_rows({self.module_id: columns}), drawn


class WindowsStep(OffPolicyStep):
    """A round of sampling into a replay memory, then gradient steps on windows of consecutive items, as many as the
    training ratio asks for."""

    may_skip_updates = True

    def plan(self, driver: LocalDriver) -> None:
        config = self.config
        length = config.get_rollout_fragment_length()
        per_round = length * int(config.num_envs_per_env_runner)
        self._ratio = config.updates_per_env_step
        # At most so many updates are made of one round; of what is left, later.
        self.num_updates = math.ceil(self._ratio * per_round)
        plan = driver.plan_samples(length, for_replay=True)
        # An episode's last observation is an item, however it ended.
        self._samples = dataclasses.replace(plan, has_all_final_obs=True)
        driver.planned.samples[driver.planned.samples.index(plan)] = self._samples
        self.num_env_steps = per_round
        self.rows_per_update = config.items_per_update
        self.learning_starts = config.num_prefilled_steps
        memory_class = DeviceWindows if driver.is_on_device else HostWindows
        self.memory = memory_class(driver, config, self.num_updates)
        self.draws = self.memory.draws
        self.batch_memory = self._drawn_memory(driver)
        self.kept_memory = self.memory.estimate
        num_devices = driver.learner.num_devices if driver.learner is not None else 1
        if config.batch_size_B % num_devices:
            raise ValueError(
                f"training(batch_size_B={config.batch_size_B}) must be a multiple of the {num_devices} devices of the "
                f"learner: each gets as many windows."
            )

    def reset(self, config: Any) -> None:
        super().reset(config)
        self._ratio, self.learning_starts = config.updates_per_env_step, config.num_prefilled_steps

    def __call__(self, state: TrainState, place: Place) -> tuple[TrainState, Any]:
        learned = None
        state, _ = self._sample(place, state)
        # Only what was sampled tells whether learning starts after it.
        if place.has_sampled(self.learning_starts):
            update = functools.partial(self._update, place)
            state, learned = place.repeat(update, state, self._num_due(state, place))
        return place.publish(state), learned

    def _num_due(self, state: TrainState, place: Place) -> Any:
        """How many updates bring the ratio of replayed items and sampled env steps to what is wanted: both are lifetime
        counters, which checkpoints hold. On the device an int32 array."""
        if isinstance(place, HostPlace):
            sampled = place.timesteps["num_env_steps_sampled_lifetime"]
            return min(max(0, self._due_after(sampled) - place.num_updates(state)), self.num_updates)
        # Lower words: differences of them are right as long as they are below 2^31.
        sampled = jnp.asarray(state.timesteps)[..., 1]
        due = (self._due_after(sampled) - place.num_updates(state)).astype(jnp.int32)
        return jnp.clip(due, 0, self.num_updates)

    def _due_after(self, sampled: Any) -> Any:
        """Updates that so many env steps are worth, those before learning starts not counted."""
        number, of = self._ratio.numerator, self._ratio.denominator
        after = sampled - self.learning_starts + self.num_env_steps
        return after // of * number + after % of * number // of

    def _drawn_memory(self, driver: LocalDriver) -> MemoryEstimate:
        recorded = driver.recorded[driver.module_map.module_id].columns
        counts = {"windows": self.config.batch_size_B, "items": self.config.batch_length_T}
        lead = tuple(counts.values())
        columns = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[2:]), x.dtype), recorded[name])
            for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
        }
        return MemoryEstimate.of_shapes("train batch", counts, columns)

    def results(self, driver: Driver) -> dict[str, Any]:
        replayed = self.num_env_steps_trained(driver)
        return {**super().results(driver), "actual_training_ratio": replayed / max(1, driver.num_env_steps)}
