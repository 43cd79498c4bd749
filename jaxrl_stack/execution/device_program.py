"""Compiled program of the on-device driver. The program samples, makes updates, and reads and writes replay buffers (or
reads data sets).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete

from jaxrl_stack.acting.device_rollout import DeviceRollout, StepKeys, StepRecord
from jaxrl_stack.core.experience import Experience, Part, Versions
from jaxrl_stack.core.learner.traced_metrics import NOT_FINITE, sum_of_counters
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.execution.training_step import Place, Sampled, TrainingStep, TrainState
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.ops.scans import scan_ahead
from jaxrl_stack.utils import counters, schedules
from jaxrl_stack.utils import streams as random_streams
from jaxrl_stack.utils.integers import choices_of
from jaxrl_stack.utils.metrics import NUM_MODULE_STEPS_TRAINED
from jaxrl_stack.utils.named_leaves import is_key
from jaxrl_stack.utils.profiling import REPLAY, SAMPLING, UPDATE
from jaxrl_stack.utils.spaces import map_parts

if TYPE_CHECKING:
    from jaxrl_stack.connectors.context import ConnectorContext
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.minibatch_records import Recorder
    from jaxrl_stack.core.learner.update_plan import UpdatePlan
    from jaxrl_stack.execution.plans import Plan, SampledUpdate, SamplePlan

MODULE_STREAMS = "module/"
"""Prefix of the names of modules' random streams in multi-agent training. The random numbers of such a stream depend on
its name.
"""
_MOST_RANDOM_NUMBERS = 2**24
"""Maximum number of a stream's random numbers that are drawn before the loop of a call: 64 MiB. For larger streams,
only PRNG keys are made before the loop.
"""


@struct.dataclass
class Sampler:
    """State of sampling during one call of the compiled program.

    The state contains the runner's state (environments, connectors), the call's random numbers, and counters of the
    steps made and random numbers used so far.

    Attributes:
        runner: The runner's state; None without environments.
        step_keys: PRNG keys of all T vector steps of the call.
        draws: Random numbers of the training step by stream, ``[U, ...]``; PRNG keys ``[U]`` if these are too large.
        num_steps: int32, vector steps so far.
        num_draws: int32, draws so far by stream.
        ended: uint32 ``[T, 2 + A, B]``: return (its bits) and length of the episode that ended with a step, and the
            parts of the return of A agents, if there are several; 0 if no episode ended.
        num_agent_steps: int32 by agent, if there are several: completed steps so far.
        unclaimed: bool by agent, if there are several: whether it got a reward that belongs to none of its steps.
        block: Recorded columns by module, ``[T, B, ...]``, if callbacks watch episodes, else ().
        num_recorded: int32, updates in `records` so far; () without a recorder.
        records: Records of the minibatches of all updates of the call, ``[U, ...]``; () without a recorder.
        states: States of the watched environments before each step, ``[T, W, ...]``; () without any.
    """

    runner: Any
    step_keys: StepKeys | None
    draws: dict[str, Any]
    num_steps: Any
    num_draws: dict[str, Any]
    ended: Any
    num_agent_steps: dict[Any, Any]
    unclaimed: dict[Any, Any]
    block: Any
    num_recorded: Any = ()
    records: Any = ()
    states: Any = ()


@struct.dataclass
class CallRecord:
    """Recorded updates, ended episodes and environment states of one call of the program.

    Attributes:
        num_updates: int32, number of recorded updates.
        updates: `Record` of every update (leaves ``[U, minibatches, ...]``); None without an update.
        ended: See `Sampler.ended`.
        states: See `Sampler.states`; bits of PRNG keys.
    """

    num_updates: Any
    updates: Any
    ended: Any
    states: Any = ()


class UpdateRecorder:
    """Settings and array shapes of the debugging records that a program makes for `inspect()`, one record for each
    update.

    The shapes are known after a first trace of the program; see `DeviceDriver.recording`.

    Args:
        sizes: Settings of the record of a minibatch.
        num_watched: ``W``, number of environments of each device whose states are recorded: the first ones.

    Attributes:
        sizes, num_watched: See above.
        shapes: `jax.ShapeDtypeStruct`s of one update's `Record`; None if unknown.
    """

    def __init__(self, sizes: Recorder, num_watched: int = 0):
        self.sizes, self.num_watched = sizes, num_watched
        self.shapes, self._found = None, None

    def fit(self, record: Any) -> Any:
        """Checks that the records of all updates have the same array shapes, and returns these shapes.

        `record` is the record of one update, and is compared with the records of earlier updates. Returns None during
        the first trace of the program, because this trace only determines the shapes.

        Raises:
            ValueError: If the updates of a training step have different shapes.
        """
        own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), record)
        if self._found not in (None, own):
            raise ValueError(
                "inspect() records only updates of one batch size, but this training step makes updates of different "
                "sizes. In TrainingStep.__call__(state, place), pass the same plan to all calls of "
                "place.update(state, experience, plan), and the same number of rows to all calls of "
                "place.update_rows(state, rows)."
            )
        self._found = own
        return self.shapes

    def end_first_trace(self) -> None:
        """Stores the array shapes that the first trace of the program found for the records of updates.

        Must be called after this trace; later traces use the stored shapes.
        """
        self.shapes = self._found


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DeviceProgram(Place):
    """Compiled program that runs K training steps per call. It implements the interface `Place`, through which a
    training step samples, draws batches and makes updates.

    The number of steps before learning starts is an argument, so that one program serves all calls and kept data stays
    in place. The program reduces over an axis of devices, or over none: with vmap, it trains the members of a
    population.

    Attributes:
        step: The training step.
        plan: Its plan.
        learner: Learner whose update is traced.
        rollout: The static parts of sampling; None without environments.
        axis_name: Name of the axis of devices, or None.
        num_envs: Environments of one device.
        num_devices: Devices of the axis.
        is_joined: Whether some of them belong to other processes.
        explore: Whether sampling explores.
        num_training_steps: K.
        recorded: Shapes of the columns of one vector step, ``{module_id: [1, B, ...]}``; None without environments.
        shown: Shapes of its `ShownStep`, if the rollout shows agents.
        records_block: Whether a call returns everything that it sampled.
        recorder: Recorder of updates; a call then returns a `CallRecord` instead of the block. None records nothing.
        settings: The learner's traced settings, inside of a call.
        is_warm: Whether learning has started, inside of a call.
    """

    step: TrainingStep
    plan: Plan
    learner: Learner
    rollout: DeviceRollout | None
    axis_name: str | None
    num_envs: int
    num_devices: int
    is_joined: bool = False
    explore: bool = True
    num_training_steps: int = 1
    recorded: Any = None
    shown: Any = ()
    records_block: bool = False
    recorder: UpdateRecorder | None = None
    settings: Any = None
    is_warm: bool = True

    def __call__(self, learner, runner, kept, timesteps, settings, num_warm_up) -> tuple[Any, ...]:
        """Runs the training steps of one program call on one of the learner's devices. Python executes this method only
        once, for tracing.

        Args:
            learner, runner, kept, timesteps: See `TrainState`; `runner` and `kept` are of this device.
            settings: The learner's traced settings.
            num_warm_up: int32, training steps before learning starts; None for a training step that always learns.

        Returns:
            ``(learner, runner, kept, timesteps, metrics as one vector, window, block)``. The window has the packed
            episodes, and whether the samples are usable (see `_is_usable`). If callbacks watch episodes, the block has
            the recorded columns by module, ``[T, B, ...]``, or a `ShownStep` for several agents.
        """
        place = dataclasses.replace(self, settings=settings)
        state = TrainState(learner, place.started(runner, learner), kept, timesteps)
        if num_warm_up is not None:
            before = functools.partial(self.step, place=dataclasses.replace(place, is_warm=False))
            state, _ = repeat(before, state, 0, num_warm_up)
            step, steps = functools.partial(self.step, place=place), (num_warm_up, self.num_training_steps)
            if self.step.may_skip_updates:
                state, (_, learned) = repeat(place._noting_updates(step), state, *steps, _combined_if_made)
            else:
                state, learned = repeat(step, state, *steps, _combined)
        elif self.num_training_steps == 1:
            state, learned = self.step(state, place)
        else:
            state, learned = place.repeat(functools.partial(self.step, place=place), state, self.num_training_steps)
        sampler = state.runner
        runner, block = place.ended(sampler)
        # What the host reads comes in two vectors: fetching a dozen scalars takes longer than a small iteration.
        window = ()
        if self.rollout is not None:
            axis_name = self.axis_name if self.is_joined else None
            unclaimed = [sampler.unclaimed[agent] for agent in self.rollout.agents]
            window = runner.window.packed(_is_usable(sampler, self.rollout), axis_name, unclaimed)
        if self.recorder is not None:
            block = CallRecord(sampler.num_recorded, sampler.records, sampler.ended, sampler.states)
        return state.learner, runner, state.kept, state.timesteps, learned, window, block

    def _noting_updates(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a training step function: the wrapper returns ``(state, (is_made, metrics))``, where `is_made` is True
        if the step made an update.
        """

        def noting(state: TrainState) -> tuple[TrainState, Any]:
            after, learned = step(state)
            return after, (self.num_updates(after) != self.num_updates(state), learned)

        return noting

    # ------------------------------------------------------------------------------------- around the training steps

    def started(self, runner: Any, learner: Any) -> Sampler:
        """Creates the `Sampler` state for one call of the program.

        Draws all random numbers (or their PRNG keys) of the call in advance, because drawing them separately in each
        step would be slower.

        Args:
            runner: The runner's state; without environments a PRNG key.
            learner: The learner's state.
        """
        streams = self.plan.draws
        key = runner if self.rollout is None else runner.key
        names = [name for name in streams if not name.startswith(MODULE_STREAMS)]
        of_modules = [name for name in streams if name.startswith(MODULE_STREAMS)]
        key, step_key, *keys = jax.random.split(key, 2 + len(names) + bool(of_modules))
        of_streams = dict(zip(names, keys, strict=False))
        # A module changes nothing about the numbers of another one.
        of_streams |= {name: random_streams.named(keys[-1], name) for name in of_modules}
        draws = {}
        for name, stream in streams.items():
            own = of_streams[name]
            number = self.num_training_steps * stream.number
            draws[name] = jax.random.split(own, number)
            if number * stream.size <= _MOST_RANDOM_NUMBERS:
                draws[name] = jax.vmap(stream.make)(draws[name])
        num_draws = dict.fromkeys(streams, jnp.int32(0))
        sampler = Sampler(key, None, draws, jnp.int32(0), num_draws, (), {}, {}, ())
        if self.recorder is not None:
            most = self.num_training_steps * max(1, self.plan.num_updates)
            records = jax.tree.map(lambda x: jnp.zeros((most, *x.shape), x.dtype), self.recorder.shapes)
            sampler = dataclasses.replace(sampler, num_recorded=jnp.int32(0), records=records)
        if self.rollout is None:
            return sampler
        num_steps, block = self.steps_per_call, self._block_of(self.recorded, self.shown)
        runner = dataclasses.replace(runner, key=key)
        if self.rollout.opponents is not None:
            runner = dataclasses.replace(runner, opponents=runner.opponents.at_start_of_call())
        return dataclasses.replace(
            sampler,
            runner=runner,
            step_keys=self.rollout.step_keys(step_key, num_steps, self.num_envs, learner.rest),
            ended=jnp.zeros((num_steps, 2 + len(self.rollout.agents), self.num_envs), jnp.uint32),
            num_agent_steps=dict.fromkeys(self.rollout.agents, jnp.int32(0)),
            unclaimed=dict.fromkeys(self.rollout.agents, jnp.bool_(False)),
            block=jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape[1:]), x.dtype), block),
            states=jax.tree.map(lambda x: jnp.zeros((num_steps, *x.shape), x.dtype), self._watched(runner)),
        )

    def _watched(self, runner: Any) -> Any:
        """Returns the environment states that the program records, so that episodes can be rendered later.

        These are the states of the device's first W environments, as arrays ``[W, ...]``; W is
        `UpdateRecorder.num_watched`. Returns () if W is 0, or if the program records no updates.
        """
        number = 0 if self.recorder is None else self.recorder.num_watched
        if not number:
            return ()
        return jax.tree.map(lambda x: jax.random.key_data(x[:number]) if is_key(x) else x[:number], runner.env_state)

    def _block_of(self, columns: Any, shown: Any) -> Any:
        """Returns the sampled columns that the host needs for callbacks, files and the search for NaNs.

        If the rollout records columns by agent, the result is `shown`, the columns by agent; otherwise it is `columns`,
        the columns by module. If the host needs no columns, the result is ().
        """
        if not self.records_block:
            return ()
        return shown if self.rollout is not None and self.rollout.shows_agents else columns

    @property
    def steps_per_call(self) -> int:
        """Number of vector steps (steps of all environments) in one call of the program."""
        return self.num_training_steps * self.plan.num_env_steps // (self.num_envs * self.num_devices)

    def ended(self, sampler: Sampler) -> tuple[Any, Any]:
        """Adds the episodes that ended in a call of the program to the runner's statistics of the last episodes
        (`EpisodeWindow`).

        Returns ``(runner state, columns)`` at the end of the call: `columns` are the sampled columns for the host, or
        () if the host needs no columns.
        """
        if self.rollout is None:
            return sampler.runner, ()
        returns, lengths, *of_agents = jnp.moveaxis(sampler.ended, 1, 0)

        def as_float(bits: jax.Array) -> jax.Array:
            return jax.lax.bitcast_convert_type(bits, jnp.float32)

        agents = {
            agent: (as_float(own), sampler.num_agent_steps[agent])
            for agent, own in zip(self.rollout.agents, of_agents, strict=True)
        }
        window = sampler.runner.window.extend(lengths > 0, as_float(returns), lengths.astype(jnp.int32), agents)
        return dataclasses.replace(sampler.runner, window=window), sampler.block

    # ----------------------------------------------------------------------------------------------------------- verbs

    @jax.named_scope(SAMPLING)
    def sample(self, state: TrainState, plan: SamplePlan) -> Sampled:
        """Steps the environments for all sampling rounds of `plan`, and returns the samples.

        Each round has T steps; see `Place.sample`. Unfinished episodes are cut at the end of every round, as if each
        round were a separate ``EnvRunner.sample()`` call.
        """
        # Every vector step of a JAX environment is a step of every environment.
        assert self.rollout is not None
        sampler, length = state.runner, plan.num_steps * plan.num_shares
        keys = sampler.step_keys
        if length != self.steps_per_call:
            keys = jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, sampler.num_steps, length), keys)
        in_frames = plan.layouts.in_frames
        acting = self.rollout.with_opponents(sampler.runner)
        step_envs = functools.partial(acting.step_envs, context=self._acting_context(state), in_frames=in_frames)

        def step(runner: Any, keys: Any) -> tuple[Any, Any]:
            states = self._watched(runner)
            runner, rows = step_envs(runner, keys)
            return runner, (rows, states)

        earlier = sampler.runner.env_to_module
        if length == 1:
            # A loop of its own inside another one is not inlined.
            runner, rows = step(sampler.runner, jax.tree.map(lambda x: x[0], keys))
            record, states = jax.tree.map(lambda x: x[None], rows)
        else:
            runner, (record, states) = scan_ahead(step, sampler.runner, keys)
        runner, of_steps = self.rollout.count_episodes(runner, record)
        numbers = (of_steps.returns, of_steps.lengths, *(of_steps.agent_returns[a] for a in self.rollout.agents))
        of_ended = [jnp.where(record.ended, x, 0) for x in numbers]
        ended = jnp.stack([jax.lax.bitcast_convert_type(x, jnp.uint32) for x in of_ended], axis=1)
        agent_steps = self.rollout.num_agent_steps(record)
        block = self._block_of(record.columns, record.seen)
        written = (sampler.ended, sampler.block, sampler.states), (ended, block, states)
        if length != self.steps_per_call:
            ended, block, states = jax.tree.map(
                lambda rows, own: jax.lax.dynamic_update_slice_in_dim(rows, own, sampler.num_steps, 0), *written
            )
        sampler = dataclasses.replace(
            sampler,
            runner=self.rollout.merged(runner, self.axis_name),
            num_steps=sampler.num_steps + length,
            ended=ended,
            num_agent_steps={agent: n + agent_steps[agent] for agent, n in sampler.num_agent_steps.items()},
            unclaimed=jax.tree.map(jnp.logical_or, sampler.unclaimed, self.rollout.unclaimed_rewards(record)),
            block=block,
            states=states,
        )
        num_env_steps = length * self.num_envs
        timesteps = counters.add(state.timesteps, num_env_steps * self.num_devices)
        blocks = {
            mid: self.rollout.block(
                mid, own, plan.num_shares, plan.layouts[mid], earlier=earlier[mid] if mid in in_frames else None
            )
            for mid, own in record.columns.items()
            if mid != OPPONENTS
        }
        version = self.num_updates(state)
        part = Part(
            blocks,
            num_agent_steps=sum(agent_steps.values()) if agent_steps else jnp.int32(num_env_steps),
            versions=Versions(version, version),
            num_env_steps=num_env_steps,
        )
        return Sampled(dataclasses.replace(state, runner=sampler, timesteps=timesteps), Experience((part,)))

    def collect(self, state: TrainState, plan: SamplePlan, *, timeout_seconds: float) -> Sampled:
        """Steps the environments for one sampling round, ``T = plan.num_steps`` steps, and returns the samples. Ignores
        `timeout_seconds`; see `Place.collect`.
        """
        return self.sample(state, dataclasses.replace(plan, num_shares=1))

    def num_updates(self, state: TrainState) -> jax.Array:
        """Number of updates so far, uint32."""
        return state.learner.num_updates

    def num_env_steps(self, state: TrainState) -> jax.Array:
        return jnp.asarray(state.timesteps)[..., 1]

    def count_env_steps(self, state: TrainState, number: int) -> TrainState:
        return dataclasses.replace(state, timesteps=counters.add(state.timesteps, number))

    def _acting_context(self, state: TrainState) -> ConnectorContext:
        """Returns the connector context for rollout steps: weights, values of traced settings, and the lifetime number
        of env steps.

        Exploration schedules compute their present values from this number.
        """
        assert self.rollout is not None
        of_state = (state.learner.params, state.learner.rest, self.values(state), state.timesteps)
        return self.rollout.context(*of_state, explore=self.explore, axis_name=self.axis_name)

    def values(self, state: TrainState) -> dict[str, Any]:
        """Present values of traced settings (hyperparameters that are arguments of the compiled program), ``{module_id:
        {setting: value}}``.
        """
        return self.learner.current_values(self.settings, state.timesteps)["modules"]

    @jax.named_scope(UPDATE)
    def update(
        self, state: TrainState, experience: Experience, plan: SampledUpdate[UpdatePlan]
    ) -> tuple[TrainState, Flat]:
        Experience.check(experience, is_rows=False)
        if self.learner.pure_update.trains_nothing:
            return state, Flat.of({})
        # A step may have made an experience of its own from the columns that were sampled.
        layouts, update = plan.samples.layouts, self.learner.pure_update
        blocks = {mid: own.as_planned(layouts.get(mid)) for mid, own in experience.blocks.items()}
        arguments = (state.learner, blocks, self.settings, state.timesteps)
        sizes: dict[str, Any] = {"plan": plan.sizes, "axis_name": self.axis_name}
        if self.recorder is None:
            learner, learned = update(*arguments, **sizes)
        else:
            learner, learned, record = update.recorded(*arguments, **sizes, recorder=self.recorder.sizes)
            state = self._with_record(state, record)
        # One vector passes through loops, and to the host, faster than a dozen numbers.
        return dataclasses.replace(state, learner=learner), Flat.of(learned)

    @jax.named_scope(UPDATE)
    def update_rows(self, state: TrainState, rows: Experience) -> tuple[TrainState, Flat, dict[Any, Any]]:
        if self.learner.pure_update.trains_nothing:
            return state, Flat.of({}), {}
        update, arguments = self.learner.pure_update, (state.learner, rows.modules, self.settings, state.timesteps)
        if self.recorder is None:
            learner, learned, logged = update.step(*arguments, axis_name=self.axis_name)
        else:
            (learner, learned, logged), record = update.recorded_step(
                *arguments, axis_name=self.axis_name, recorder=self.recorder.sizes
            )
            state = self._with_record(state, record)
        return dataclasses.replace(state, learner=learner), Flat.of(learned), logged

    def _with_record(self, state: TrainState, record: Any) -> TrainState:
        """Writes `record`, the record of one update, into the array of update records in the training state, and
        returns the new state.
        """
        assert self.recorder is not None
        sampler, shapes = state.runner, self.recorder.fit(record)
        if shapes is None:  # the trace only finds the shapes
            return state
        records = jax.tree.map(lambda every, own: every.at[sampler.num_recorded].set(own), sampler.records, record)
        sampler = dataclasses.replace(sampler, num_recorded=sampler.num_recorded + 1, records=records)
        return dataclasses.replace(state, runner=sampler)

    def repeat(self, function: Any, state: TrainState, times: Any) -> tuple[TrainState, Any]:
        return (
            function(state) if isinstance(times, int) and times == 1 else repeat(function, state, 0, times, _combined)
        )

    def draw(self, state: TrainState, stream: str) -> tuple[TrainState, Any]:
        sampler = state.runner
        at = sampler.num_draws[stream]
        numbers = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, at, keepdims=False), sampler.draws[stream])
        sampler = dataclasses.replace(sampler, num_draws={**sampler.num_draws, stream: at + 1})
        return dataclasses.replace(state, runner=sampler), numbers

    def has_sampled(self, num_steps: int) -> bool:
        """Whether the number of steps sampled since the start of training has reached `learning_starts`.

        If so, the training step makes updates. The program runs training steps before this point in one loop, and later
        training steps in a second loop. Therefore the result is a constant Python bool in each loop, not a traced
        value.
        """
        assert num_steps == self.step.learning_starts
        return self.is_warm

    def timed(self, timer: str, function: Callable[..., Any], *args: Any) -> Any:
        """Calls ``function(*args)`` in a named scope, and returns the result. Ignores `timer`, because only a profiler
        can measure parts of a compiled program.
        """
        # Replay memories have timers, and nothing else.
        with jax.named_scope(REPLAY):
            return function(*args)


def record_of_step(
    rollout: DeviceRollout, learner: Learner, runner: Any, *, num_envs: int, explore: bool
) -> StepRecord:
    """Returns the shapes and dtypes of the columns that sampling records in one step of a device's B environments; the
    shapes are ``[1, B, ...]``.

    Args:
        rollout: The static parts of sampling.
        learner: Learner with the acting modules.
        runner: Shapes of one device's state.
        num_envs: Environments of one device.
        explore: Whether sampling explores.
    """

    def one_step(key: Any, runner: Any, state: Any, settings: Any, timesteps: Any) -> StepRecord:
        values = learner.current_values(settings, timesteps)["modules"]
        context = rollout.context(state.params, state.rest, values, timesteps, explore=explore, axis_name=None)
        keys = jax.tree.map(lambda x: x[0], rollout.step_keys(key, 1, num_envs, state.rest))
        _, record = rollout.with_opponents(runner).step_envs(runner, keys, context)
        return jax.tree.map(lambda x: x[None], record)

    settings = schedules.shapes_at(learner.settings())
    return jax.eval_shape(one_step, jax.random.key(0), runner, learner.state, settings, np.zeros(2, np.uint32))


def _is_usable(sampler: Sampler, rollout: DeviceRollout) -> jax.Array:
    """Returns whether the samples of a program call are usable, as a bool scalar.

    True if all episode returns and all last observations are finite. With one agent, discrete values in the last
    observations must also be elements of their spaces.

    The check uses existing values, once per call. It does not see a single NaN in the middle of a call, but such a NaN
    makes the loss non-finite.
    """
    returns = jax.lax.bitcast_convert_type(sampler.ended[:, 0], jnp.float32)
    leaves = [returns, sampler.runner.episodes.episode_return, *jax.tree.leaves(sampler.runner.obs)]
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]

    def check_choices(part: Any, value: Any) -> None:
        if isinstance(part, Discrete | MultiDiscrete | MultiBinary):
            first, last = choices_of(part)
            checks.append(jnp.all((value >= first) & (value <= last)))

    if not rollout.agents:  # observations of agents that do not act may be anything
        map_parts(check_choices, rollout.env.observation_space, sampler.runner.obs)
    return functools.reduce(jnp.logical_and, checks)


def repeat(function, state, start, stop, combined=lambda before, result: result) -> tuple[Any, Any]:
    """Calls `function` ``stop - start`` times in one loop of a compiled program, each time with the state that the
    previous call returned.

    Args:
        function: ``state -> (state, result)``.
        state: State before the first call.
        start: First value of the counter, int32 or a number.
        stop: End of the counter, excluded.
        combined: ``(results so far, result) -> results``; by default the last result.

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


def _combined(before: Any, latest: Any) -> Any:
    """Combines the metrics of earlier updates (`before`) with the metrics of the latest update.

    Returns the maximum of each NaN flag, the sum of trained steps, and the latest value of every other metric.
    """
    if not jax.tree.leaves(latest):
        return latest
    so_far, last = before.tree(), latest.tree()

    def combine(path: tuple[str, ...], x: jax.Array) -> jax.Array:
        if path[0] == NOT_FINITE:
            return jnp.maximum(so_far[path], x)
        return sum_of_counters(so_far[path], x) if path[-1] == NUM_MODULE_STEPS_TRAINED else x

    return Flat.of({path: combine(path, x) for path, x in last.items()})


def _combined_if_made(before: Any, latest: Any) -> Any:
    """Combines the result of earlier training steps with the result of the next training step.

    Both results, `before` and `latest`, are ``(is_made, metrics)``. Returns the `is_made` of `latest`, which is True if
    the next training step made an update. If it is True, the returned metrics combine both results (see `_combined`);
    otherwise they are the metrics of `before`.
    """
    (_, so_far), (is_made, metrics) = before, latest
    kept = jax.tree.map(functools.partial(jnp.where, is_made), _combined(so_far, metrics), so_far)
    return is_made, kept
