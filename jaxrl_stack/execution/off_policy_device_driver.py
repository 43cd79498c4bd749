"""The on-device driver of algorithms with replay: many training steps in one compiled, donating program."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.acting.device_rollout import RunnerState, StepKeys
from jaxrl_stack.checkpoints.checkpointable import Checkpointable
from jaxrl_stack.core import COMPONENT_ENV_RUNNER, COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.learner.traced_metrics import NOT_FINITE
from jaxrl_stack.execution.device_driver import DeviceDriver
from jaxrl_stack.execution.memory import require_device_memory
from jaxrl_stack.execution.off_policy import memory_estimates, td_errors
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.replay.device_replay import REMEDY, DeviceReplay
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.devices import all_shards, map_over_devices, place_sharded
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, require_memory
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig

logger = logging.getLogger(__name__)


@struct.dataclass
class Sampler:
    """The runner's state inside of a call, and what belongs to this call alone.

    Attributes:
        runner: The runner's state.
        step_keys: Those of all T vector steps of the call.
        draws: Random numbers of all its U updates, ``[U, ...]``; PRNG keys ``[U]`` if they take too much room.
        num_steps: int32, vector steps so far.
        num_draws: int32, draws so far.
        ended: uint32 ``[T, 2, B]``: return (its bits) and length of the episode that ended with a step; 0 without one.
        block: The recorded columns ``[T, B, ...]`` if callbacks watch episodes, else ().
    """

    runner: RunnerState
    step_keys: StepKeys
    draws: Any
    num_steps: jax.Array
    num_draws: jax.Array
    ended: jax.Array
    block: Any


class OffPolicyDeviceDriver(DeviceDriver):
    """Trains on a JAX environment with replay.

    One call of the program makes K training steps, as many as an iteration needs at least: first those before learning
    starts, then those with updates. How many of each is an argument, so there is one program for all of them, and the
    replay memory stays where it is.

    Args:
        resolved, algorithm, config, pure_training_step, callbacks: See `DeviceDriver`.

    Attributes:
        replay: What is fixed about the replay memory of one device.
    """

    config: OffPolicyConfig
    replay: DeviceReplay

    # ------------------------------------------------------------------------------------ the shape of a training step

    def _memory_estimates(self, *spaces: gym.Space | None) -> tuple[MemoryEstimate, MemoryEstimate]:
        return memory_estimates(self.config, *spaces)

    def _plan_training_step(self) -> None:
        config, learner, num_devices = self.config, self.learner, len(self.learner.devices)
        self._num_rounds = 1
        self._fragment_length = config.get_rollout_fragment_length()
        self._num_samples, self._num_draws = config.rounds_per_training_step
        self._steps_per_training_step = self._num_samples * self._fragment_length * self._num_envs
        wanted = config.min_sample_timesteps_per_iteration or 0
        self._num_training_steps = max(1, -(-wanted // self._steps_per_training_step))
        if learner.has_host_hooks and self._num_training_steps > 1:
            notice_once(
                f"{type(learner).__name__} overrides a hook that runs on the host around updates: every training "
                f"step returns to it, which costs far more than the step itself. pre_update() and post_update() "
                f"run inside the compiled program."
            )
            self._num_training_steps = 1
        self._plan = learner.plan(num_epochs=1, minibatch_size=None, shuffle_batch_per_epoch=False)
        self._check_divides("train_batch_size_per_learner", config.total_train_batch_size, num_devices)
        capacity = config.replay_capacity
        self._check_divides("replay_buffer_config={'capacity': ...}", capacity, num_devices)
        longest = max(self._fragment_length, config.max_n_step)
        if capacity < self._num_envs * longest:
            raise ValueError(
                f"training(replay_buffer_config={{'capacity': {capacity}}}) holds {capacity // self._num_envs} steps "
                f"of each of num_envs_per_env_runner={self._num_envs} environments, and needs {longest} "
                f"(n_step={config.n_step!r}, rollout_fragment_length={self._fragment_length}). Raise the capacity to "
                f"at least {self._num_envs * longest}, or use fewer environments."
            )
        self.replay = DeviceReplay(
            capacity=capacity // num_devices,
            num_envs=self._num_envs // num_devices,
            batch_size=config.total_train_batch_size // num_devices,
            n_step=config.n_step,
            alpha=config.replay_alpha if config.uses_priorities else None,
            clip_rewards=config.clip_rewards,
        )
        self._recorded = self._columns_of_step()
        self._estimate_replay()
        # Made where it stays: a copy of it on the way there may not fit.
        program = functools.partial(
            map_over_devices, devices=learner.devices, axis_name=learner.axis_name, in_axes=(0,), out_axes=(0,)
        )
        self._make_replay = program(lambda _: (self.replay.init(self._recorded),), donate_argnums=())
        self._cut = program(lambda replay: (self.replay.cut(replay),), donate_argnums=(0,))
        self.replay_buffer = StoredReplay(self)

    def _check_divides(self, name: str, number: int, num_devices: int) -> None:
        if number % num_devices:
            raise ValueError(
                f"training({name}) is {number}, which must divide by the {num_devices} devices of the learner: each "
                f"has an equal part. Use {-(-number // num_devices) * num_devices}, or fewer devices."
            )

    def _columns_of_step(self) -> dict[str, Any]:
        """Shapes of what one step of one device's environments records, ``[1, B, ...]``."""
        learner, num_envs = self.learner, self.replay.num_envs

        def one_step(key, params, rest, settings, timesteps):
            state = self.rollout.init(key, num_envs)
            values = learner.current_values(settings, timesteps)["modules"]
            keys = self.rollout.step_keys(key, 1, num_envs, rest)
            context = self.rollout.context(params, rest, values, timesteps, explore=bool(self.config.explore))
            return self.rollout.steps(state, keys, context)[1]

        state = learner.state
        settings = jax.tree.map(jnp.asarray, learner.settings())
        return jax.eval_shape(one_step, jax.random.key(0), state.params, state.rest, settings, state.timesteps)

    def _estimate_replay(self) -> None:
        """Report what the replay memory takes, and refuse one that the devices cannot hold."""
        share = self.replay.memory_estimate(self._recorded)
        self.replay_memory = dataclasses.replace(share, counts={**share.counts, "envs": self._num_envs})
        logger.info("%s.", self.replay_memory)
        require_device_memory(
            self.learner.devices,
            self.replay_memory,
            lambda memory, limit, where: require_memory(memory, limit, where=where, remedy=REMEDY),
        )

    @property
    def _steps_per_call(self) -> int:
        return self._num_training_steps * self._steps_per_training_step

    @property
    def _rows_per_update(self) -> int:
        return self.config.total_train_batch_size

    def _start(self) -> None:
        super()._start()
        self._empty_replay()

    def _empty_replay(self) -> None:
        self.replay_state = None
        (self.replay_state,) = self._make_replay(np.zeros(len(self.learner.devices), np.float32))

    # -------------------------------------------------------------------------------------------- the compiled part

    def _iteration_program(self, learner, runner, replay, timesteps, settings, num_warm_up):
        """K training steps, the first `num_warm_up` of them without updates."""
        sampler = self._sampler(runner, learner.rest)
        state = TrainState(learner=learner, runner=sampler, replay=replay, timesteps=timesteps)
        state, _ = repeat(self._training_step(settings, 0), state, 0, num_warm_up)
        with_updates = self._training_step(settings, self._num_draws)
        state, learned = repeat(with_updates, state, num_warm_up, self._num_training_steps, _combined)
        sampler = state.runner
        window = sampler.runner.window.extend(
            sampler.ended[:, 1] > 0,
            jax.lax.bitcast_convert_type(sampler.ended[:, 0], jnp.float32),
            sampler.ended[:, 1].astype(jnp.int32),
        )
        runner = dataclasses.replace(sampler.runner, window=window)
        return self._results_of_program(dataclasses.replace(state, runner=runner), learned, sampler.block)

    def _training_step(self, settings: Any, num_updates: int) -> Callable[[TrainState], tuple[TrainState, Any]]:
        def step(state: TrainState) -> tuple[TrainState, Any]:
            state, metrics = self.pure_training_step(
                state,
                settings,
                sample_fn=self._sample_on_device,
                store_fn=self.replay.add,
                sample_replay_fn=functools.partial(self._sample_replay_on_device, settings),
                update_fn=self._update_on_device,
                update_priorities_fn=self._update_priorities_on_device,
                num_samples=self._num_samples,
                num_updates=num_updates,
                repeat_fn=self._repeat_on_device,
            )
            return state, metrics["learners"]

        return step

    def _repeat_on_device(self, function: Any, state: TrainState, number: int) -> tuple[TrainState, Any]:
        # Sampling has no results: what it says about episodes is in the state.
        return function(state) if number == 1 else repeat(function, state, 0, number, _combined)

    def _sampler(self, runner: RunnerState, rest: Any) -> Sampler:
        """Everything that a call draws of random numbers, at once: in every step it would take longer."""
        num_updates = self._num_training_steps * self._num_draws
        num_steps = self._num_training_steps * self._num_samples * self._fragment_length
        num_envs = self.replay.num_envs
        key, step_key, draw_key = jax.random.split(runner.key, 3)
        draws: Any = jax.random.split(draw_key, num_updates)
        if num_updates * self.replay.num_random_numbers <= _MOST_RANDOM_NUMBERS:
            draws = jax.vmap(self.replay.random_numbers)(draws)
        block: Any = ()
        if self._watches_episodes:
            block = jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape[1:]), x.dtype), self._recorded)
        return Sampler(
            runner=dataclasses.replace(runner, key=key),
            step_keys=self.rollout.step_keys(step_key, num_steps, num_envs, rest),
            draws=draws,
            num_steps=jnp.int32(0),
            num_draws=jnp.int32(0),
            ended=jnp.zeros((num_steps, 2, num_envs), jnp.uint32),
            block=block,
        )

    def _sample_on_device(self, state: TrainState, settings: Any):
        sampler = state.runner
        start, length = sampler.num_steps, self._fragment_length
        # Schedules of exploration see the steps up to here; those of the learner move on with its updates.
        context = self._acting_context(state, settings, state.timesteps)
        keys = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, length), sampler.step_keys)
        runner, columns, statistics = self.rollout.steps(sampler.runner, keys, context)
        returns = jnp.where(statistics.ended, statistics.episode_return, 0.0)
        lengths = jnp.where(statistics.ended, statistics.episode_length, 0)
        ended = jnp.stack([jax.lax.bitcast_convert_type(x, jnp.uint32) for x in (returns, lengths)], axis=1)
        written = (sampler.ended, sampler.block)
        rows = (ended, columns if self._watches_episodes else ())
        ended, block = jax.tree.map(
            lambda all_steps, own: jax.lax.dynamic_update_slice_in_dim(all_steps, own, start, 0), written, rows
        )
        sampler = dataclasses.replace(
            sampler,
            runner=self.rollout.merged(runner, self.learner.reduction_axis),
            num_steps=start + length,
            ended=ended,
            block=block,
        )
        return sampler, columns, length * self._num_envs, {}

    def _sample_replay_on_device(self, settings: Any, state: TrainState):
        sampler = state.runner
        values = self.learner.current_values(settings, state.timesteps)["modules"]
        batch, items = self.replay.sample(
            state.replay,
            jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, sampler.num_draws, keepdims=False), sampler.draws),
            beta=self.config.replay_beta,
            gamma=values[self.module_id]["gamma"],
            axis_name=self.learner.reduction_axis,
        )
        sampler = dataclasses.replace(sampler, num_draws=sampler.num_draws + 1)
        return dataclasses.replace(state, runner=sampler), {self.module_id: batch}, items

    def _update_on_device(self, learner, batch, settings, timesteps):
        axis_name = self.learner.reduction_axis
        learner, learned, rows = self.learner.pure_update.step(learner, batch, settings, timesteps, axis_name=axis_name)
        # One vector passes through the loop, and to the host, faster than a dozen numbers.
        return learner, Flat.of(learned), rows

    def _update_priorities_on_device(self, replay: Any, items: Any, rows: dict[Any, jax.Array]) -> Any:
        if not self.config.uses_priorities:
            return replay
        errors = td_errors(rows, self.module_id, type(self.learner))
        return self.replay.update_priorities(replay, items, errors)

    # ----------------------------------------------------------------------------------------------------- training

    @property
    def _num_warm_up_steps(self) -> Any:
        """Training steps of the next call before the first update: that one ends with enough sampled steps."""
        missing = self.config.num_steps_sampled_before_learning_starts - self.num_env_steps
        return np.int32(min(max(0, -(-missing // self._steps_per_training_step) - 1), self._num_training_steps))

    @property
    def _learns_next(self) -> bool:
        return self._num_warm_up_steps < self._num_training_steps

    def _go_on_from(self, learner: Any, runner: Any, *, num_calls: int) -> str:
        """Likewise, with an empty replay memory: there is no second one."""
        held = min(self.num_env_steps, self.replay.num_rows * self._num_envs)
        super()._go_on_from(learner, runner, num_calls=num_calls)
        self._empty_replay()
        return f"; and the replay buffer (up to {held} steps), which is empty and fills again"

    @property
    def num_env_steps_trained(self) -> int:
        return self.num_updates * self._rows_per_update

    def results(self) -> dict[str, Any]:
        num_rows = int(all_shards(self.replay_state.size).sum())
        return {
            "replay_buffer": {
                names.NUM_ENV_STEPS_STORED: num_rows * self.replay.num_envs,
                names.NUM_ENV_STEPS_ADDED_LIFETIME: self.num_env_steps,
                "capacity": self.replay.num_rows * self._num_envs,
            }
        }

    # -------------------------------------------------------------------------------------------------------- state

    def set_replay_state(self, state: dict[str, Any]) -> None:
        is_runner_restored = "rollout" in state.get(COMPONENT_ENV_RUNNER, {})
        is_whole = "driver" in state
        if COMPONENT_REPLAY_BUFFER in state:
            self.replay_buffer.set_state(state[COMPONENT_REPLAY_BUFFER])
            if not is_runner_restored:
                self._cut_replay()
        elif is_runner_restored and not is_whole:
            self._cut_replay()
        elif is_whole:
            notice_once(
                "The state that is restored holds no replay buffer (store_buffer_in_checkpoints=False): it is empty, "
                "and updates are made from what is sampled from here on."
            )
            self._empty_replay()

    def _cut_replay(self) -> None:
        """What the environments do next is not what followed what the replay memory holds."""
        self._replace_replay(lambda: self._cut(self.replay_state)[0])

    def _replace_replay(self, make: Callable[[], Any]) -> None:
        """Replace the replay memory, whose buffers the new one may take over; if that fails, it is empty."""
        with deferred_interrupt():
            try:
                self.replay_state = make()
            except BaseException:
                self._empty_replay()
                raise


class StoredReplay(Checkpointable):
    """The replay memory of a driver as a part of checkpoints.

    Args:
        driver: Whose memory it is.
    """

    def __init__(self, driver: OffPolicyDeviceDriver):
        self._driver = driver

    def get_state(self, components: Any = None, *, not_components: Any = None, **kwargs: Any) -> dict[str, Any]:
        """What the memories hold, by name, leaves ``[D, ...]``."""
        return named_leaves(all_shards(self._driver.replay_state))

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
        num_devices = len(driver.learner.devices)
        saved = next((np.shape(leaf)[0] for leaf in state.values() if np.ndim(leaf)), num_devices)
        if saved != num_devices:
            raise ValueError(
                f"The replay buffer was saved on {saved} devices, and here are {num_devices}: every device has a part "
                f"of its own. Use {saved} devices, or save with store_buffer_in_checkpoints=False and start with an "
                f"empty buffer."
            )
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), driver.replay_state)
        restored = from_named_leaves(shapes, state, "the replay buffer")

        def placed() -> Any:
            driver.replay_state = None
            return place_sharded(restored, driver.learner.devices)

        driver._replace_replay(placed)

    def _state_to_go_back_to(self) -> dict[str, Any]:
        # `set_state` checks all before it changes anything, and a copy is as large as what is restored.
        return {}


def repeat(
    function: Callable[[Any], tuple[Any, Any]],
    state: Any,
    start: Any,
    stop: Any,
    combined: Callable[[Any, Any], Any] = lambda before, result: result,
) -> tuple[Any, Any]:
    """Call a function again and again, inside one loop of a compiled program.

    Args:
        function: ``state -> (state, result)``.
        state: Before the first call.
        start: Counts up from here, int32 or a number.
        stop: To here, this excluded.
        combined: ``(results so far, result) -> results``; by default the last one stays.

    Returns:
        ``(state, results)``; zeros without a call.
    """
    # Traced once: the loop finds the trace that told the shapes of the results.
    function = jax.jit(function, inline=True)
    shapes = jax.eval_shape(function, state)[1]

    def body(_: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
        state, results = carry
        state, result = function(state)
        return state, combined(results, result)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.fori_loop(start, stop, body, (state, zeros))


_MOST_RANDOM_NUMBERS = 2**24
"""Up to so many, the random numbers that a call draws rows with are made before its loop: 64 MiB."""


def _combined(before: Any, latest: Any) -> Any:
    """Metrics of one update more: of the last one, but of flags the highest so far."""
    if not jax.tree.leaves(latest):
        return latest
    highest, last = before.tree(), latest.tree()
    return Flat.of({path: jnp.maximum(highest[path], x) if path[0] == NOT_FINITE else x for path, x in last.items()})
