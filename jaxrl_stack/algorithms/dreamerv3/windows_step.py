"""DreamerV3's training step: sample into a replay memory, then update on windows of consecutive items."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.dreamerv3.world_model import Latent
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.host_place import HostPlace
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.execution.replay_memories import DeviceMemory, HostMemory, Sequences
from jaxrl_stack.execution.training_step import Draws, Place, TrainState
from jaxrl_stack.replay import items
from jaxrl_stack.replay.arithmetic import IS_FIRST, IS_LAST
from jaxrl_stack.replay.device_replay import REMEDY
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.devices import map_over_devices, own_shards
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate

if TYPE_CHECKING:
    from jaxrl_stack.execution.driver import Driver
    from jaxrl_stack.execution.local_driver import LocalDriver


def _windows(driver: LocalDriver, config: Any) -> Sequences:
    """What is drawn: windows that start from the module's initial state, or from what replay has."""
    assert driver.acting_modules
    module = driver.acting_modules[driver.module_map.module_id]
    num_shares = config.num_learners if driver.learner is None else driver.learner.num_devices
    initial = None if config.replay_latents else jax.device_get(module.get_initial_state())
    return Sequences(int(config.batch_length_T), 0, initial, num_shares, jax.eval_shape(module.get_initial_state))


def _states_after(logged: Mapping[Any, Any], module_id: str) -> dict[str, Any]:
    """States ``[B, T - 1, ...]`` that an update has made of all items but the last ones: those before the next ones."""
    return {name: logged[module_id, name][:, :-1] for name in Latent._fields}


class HostWindows(HostMemory):
    """An `EpisodeReplayBuffer` that windows are drawn from."""

    remedy_for_states = "replay_latents=False keeps none of the model's states in the buffer."

    def __init__(self, driver: LocalDriver, config: Any, num_updates: int):
        self.windows = _windows(driver, config)
        super().__init__(driver, config, num_updates, self.windows)

    def sample(self, state: TrainState, place: Any) -> tuple[TrainState, Experience, Any]:
        """``(state, windows [B, T, ...], (items, which of them take the state that is made of the one before))``."""
        clip, windows, number = self._arguments.get("clip_rewards"), self.windows, self._batch_size
        columns, drawn = items.host_windows(
            state.kept, number, windows.length, clip_rewards=clip, extra_columns=windows.extra_columns
        )
        columns = windows.with_state(columns, number, np)
        return state, Experience.of_rows({self.module_id: columns}), (drawn, _go_on(columns))

    def look_at(self, number: int, length: int, seed: int) -> dict[str, Any]:
        """Windows ``[number, length, ...]`` to look at: nothing changes, random numbers included."""
        return self.windows.with_state(
            items.windows_to_look_at(self.as_component, number, length, seed, self.windows.extra_columns), number, np
        )

    def write_back(self, kept: Any, drawn: Any, logged: Mapping[Any, Any]) -> Any:
        """With the states that an update has made of the drawn items."""
        found, where = drawn
        with deferred_interrupt():
            items.put_on_host(kept, found[:, 1:], Columns.STATE_IN, _states_after(logged, self.module_id), where)
        return kept


class DeviceWindows(DeviceMemory):
    """A `DeviceReplay` of every device that windows are drawn from."""

    def __init__(self, driver: LocalDriver, config: Any, num_updates: int):
        self.windows = _windows(driver, config)
        super().__init__(driver, config, num_updates, self.windows)
        self.replay = dataclasses.replace(self.replay, keep_terminal_obs=True, n_step=1, length=1)
        self.draws = {"replay": Draws(num_updates, self.replay.random_numbers, self.replay.num_random_numbers)}
        devices, num_devices = self._driver.learner.devices, self._driver.learner.num_devices
        self.estimate = self.replay.memory_estimate(self._recorded).part("replay buffer", num_devices, 1)
        require_device_memory(devices, self.estimate, REMEDY)

    def sample(self, state: TrainState, place: Any) -> tuple[TrainState, Experience, Any]:
        """``(state, windows [B, T, ...], (items, which of them take the state that is made of the one before))``."""
        state, numbers = place.draw(state, "replay")
        columns, drawn = items.device_windows(self.replay, state.kept, numbers, self.windows.length)
        if self.windows.extra_columns:
            # All is read before states are written: XLA copies the ring otherwise.
            columns, kept = jax.lax.optimization_barrier((columns, state.kept))
            state = dataclasses.replace(state, kept=kept)
        columns = self.windows.with_state(columns, self.replay.batch_size, jnp)
        return state, Experience.of_rows({self.module_id: columns}), (drawn, _go_on(columns))

    def look_at(self, number: int, length: int, seed: int) -> dict[str, Any]:
        """Windows ``[number, length, ...]`` of the first device to look at: nothing changes."""
        replay, learner = dataclasses.replace(self.replay, batch_size=number), self._driver.learner

        def draw(kept: Any) -> tuple[dict[str, Any]]:
            return (items.device_windows(replay, kept, jax.random.key(seed), length)[0],)

        find = map_over_devices(
            draw, learner.devices, axis_name=learner.axis_name, in_axes=(0,), out_axes=(0,), donate_argnums=()
        )
        columns = jax.tree.map(lambda x: own_shards(x)[0], find(self._kept.value)[0])
        return self.windows.with_state(columns, number, np)

    def write_back(self, kept: Any, drawn: Any, logged: Mapping[Any, Any]) -> Any:
        """With the states that an update has made of the drawn items."""
        found, where = drawn
        found = jax.tree.map(lambda x: x[:, 1:], found)
        states = _states_after(logged, self.module_id)
        return items.put_on_device(self.replay, kept, found, Columns.STATE_IN, states, where)


def _go_on(columns: Mapping[str, Any]) -> Any:
    """bool ``[B, T - 1]``: which items but the first ones are steps that go on in their episode."""
    return ~(columns[IS_FIRST] | columns[IS_LAST])[:, 1:]


class WindowsStep(OffPolicyStep):
    """A round of sampling into a replay memory, then gradient steps on windows of consecutive items, as many as the
    training ratio asks for."""

    may_skip_updates = True
    memory: HostWindows | DeviceWindows

    def plan(self, driver: LocalDriver) -> None:
        config = self.config
        length = config.get_rollout_fragment_length()
        per_round = length * int(config.num_envs_per_env_runner)
        self._ratio = config.updates_per_env_step
        # At most so many updates are made of one round: a run that is behind makes up for it at twice the speed.
        self.num_updates = math.ceil(2 * self._ratio * per_round)
        plan = driver.plan_samples(length, for_replay=True)
        # An episode's last observation is an item, however it ended.
        self._samples = dataclasses.replace(plan, has_all_final_obs=True)
        driver.planned.samples[driver.planned.samples.index(plan)] = self._samples
        self.num_env_steps = per_round
        self.rows_per_update = config.items_per_update
        self.learning_starts = config.num_prefilled_steps
        num_devices = driver.learner.num_devices if driver.learner is not None else 1
        if config.batch_size_B % num_devices:
            raise ValueError(
                f"training(batch_size_B={config.batch_size_B}) must be a multiple of the {num_devices} devices of the "
                f"learner: each gets as many windows."
            )
        memory_class = DeviceWindows if driver.is_on_device else HostWindows
        self.memory = memory_class(driver, config, self.num_updates)
        self.draws = self.memory.draws
        self.batch_memory = self._drawn_memory(driver)
        self.kept_memory = self.memory.estimate

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

    def _tell_memory(self, place: Place, state: TrainState, items: Any, logged: Any) -> TrainState:
        """The state after the memory has taken the states that an update made of the drawn items."""
        if not self.config.replay_latents:
            return state
        write_back = self.memory.write_back
        kept = place.timed(names.REPLAY_BUFFER_UPDATE_PRIOS_TIMER, write_back, state.kept, items, logged)
        return dataclasses.replace(state, kept=kept)

    def _num_due(self, state: TrainState, place: Place) -> Any:
        """Number of updates that bring the ratio of replayed items and sampled env steps closer to `training_ratio`.
        Both are lifetime counters, which checkpoints hold. On the device an int32 array."""
        if isinstance(place, HostPlace):
            sampled = place.timesteps["num_env_steps_sampled_lifetime"]
            return min(max(0, self._due_after(sampled) - place.num_updates(state)), self.num_updates)
        # Lower words: differences of them are right as long as they are below 2^31.
        sampled = jnp.asarray(state.timesteps)[..., 1]
        due = (self._due_after(sampled) - place.num_updates(state)).astype(jnp.int32)
        return jnp.clip(due, 0, self.num_updates)

    def _due_after(self, sampled: Any) -> Any:
        """Updates that so many env steps are worth, rounded up: from the round on with which learning starts."""
        number, of = self._ratio.numerator, self._ratio.denominator
        after = sampled - max(0, self.learning_starts - self.num_env_steps)
        return after // of * number + (after % of * number + of - 1) // of

    def _drawn_memory(self, driver: LocalDriver) -> MemoryEstimate:
        recorded = driver.recorded[driver.module_map.module_id].columns
        counts = {"windows": self.config.batch_size_B, "items": self.config.batch_length_T}
        lead = tuple(counts.values())
        columns = {
            name: jax.tree.map(lambda x: jax.ShapeDtypeStruct((*lead, *x.shape[2:]), x.dtype), recorded[name])
            for name in (Columns.OBS, Columns.ACTIONS, Columns.REWARDS)
        }
        states = self.memory.windows.state_shapes(self.config.batch_size_B)
        return MemoryEstimate.of_shapes("train batch", counts, {**columns, Columns.STATE_IN: states})

    def results(self, driver: Driver) -> dict[str, Any]:
        replayed, num_env_steps = self.num_env_steps_trained(driver), driver.num_env_steps
        is_warm = num_env_steps >= self.learning_starts
        return {
            **super().results(driver),
            "actual_training_ratio": replayed / max(1, num_env_steps),
            names.NUM_GRAD_UPDATES_LIFETIME: driver.num_updates,
            "num_grad_updates_behind": max(0, self._due_after(num_env_steps) - driver.num_updates) if is_warm else 0,
        }
