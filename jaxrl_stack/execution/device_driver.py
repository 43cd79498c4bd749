"""On-device driver: runs training steps in one compiled program over the learner's devices, with donated buffers."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import pathlib
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack import core
from jaxrl_stack.acting.device_rollout import DeviceRollout
from jaxrl_stack.acting.episode_forms import episodes_of_rollout
from jaxrl_stack.acting.episode_replay import EpisodeReplay, joined_states, side_by_side
from jaxrl_stack.acting.recorded_step import RecordedStep
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.callbacks.utils import CallbackList, overrides_episode_hooks
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.learner.traced_metrics import nest_metrics, raise_if_not_finite
from jaxrl_stack.core.learner.update_program import fetched
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.core.rl_module.row_independence import shared_observations
from jaxrl_stack.env.agent_mapping import module_map_of, steps_counted_per_env_step
from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.jax_env import JaxEnv
from jaxrl_stack.env.module_pipelines import ModulePipelines, make_rollout, pure_pipelines
from jaxrl_stack.env.preprocessed_jax_env import with_preprocessors
from jaxrl_stack.env.randomized_jax_env import with_randomized_params
from jaxrl_stack.env.registry import ResolvedEnv
from jaxrl_stack.env.step_output import NO_OUTPUT, NoOutput
from jaxrl_stack.env.training_shards import TrainingShards
from jaxrl_stack.execution.device_program import DeviceProgram, UpdateRecorder, record_of_step
from jaxrl_stack.execution.facts import DeviceFacts
from jaxrl_stack.execution.finite_check import FiniteCheck
from jaxrl_stack.execution.iteration_record import ColumnOrder, Drawings, IterationRecord
from jaxrl_stack.execution.league import League
from jaxrl_stack.execution.local_driver import LocalDriver
from jaxrl_stack.execution.make_evaluation import make_data_evaluation, make_evaluation
from jaxrl_stack.execution.memory import (
    batch_remedy,
    free_device_memory,
    least_memory,
    opponents_memory,
    require_device_memory,
)
from jaxrl_stack.execution.plans import plan_of
from jaxrl_stack.offline.module_inputs import spaces_without_env
from jaxrl_stack.utils import counters, devices
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.members import split_fixed, with_fixed
from jaxrl_stack.utils.nested import has_equal_bits
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.profiling import compiled_text, shares_of_scopes
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.snapshots import Snapshots, is_lost, reraise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jaxrl_stack.acting.device_rollout import StepRecord
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.minibatch_records import Recorder
    from jaxrl_stack.core.learner.update_plan import UpdatePlan
    from jaxrl_stack.core.opponents import Snapshots as OpponentSnapshots
    from jaxrl_stack.core.rl_module.rl_module import RLModule

_MOST_STATE_BYTES = 1 << 26
"""Largest size of the recorded states of environments in one call of the program, on one device."""


class DeviceDriver(LocalDriver):
    """Trains in one compiled program, on a JAX environment or on recorded data that is stored on the devices.

    Args:
        resolved: The environment; None for a training step without one.
        algorithm, config, step, callbacks: See `Driver`.

    Attributes:
        rollout: The static parts of sampling; None without an environment.
        program: The compiled program.
        shards: The environments of the program.
        timesteps: uint32[2], lifetime env steps; replicated.
    """

    kind = "device"
    is_on_device = True
    learner: Learner
    rollout: DeviceRollout | None = None
    env_runner: DeviceEnvRunner | None = None
    _output: NoOutput = NO_OUTPUT

    def __init__(self, resolved: ResolvedEnv | None, *args: Any):
        super().__init__(*args)
        config = self.config
        self._watches_episodes = overrides_episode_hooks(self.callbacks)
        self.env_context = None if resolved is None else resolved.context
        if self._watches_episodes:
            notice_once(
                "Episode callbacks are slow: every iteration copies its steps to the host and replays them there, "
                "which costs far more than sampling. Use on_train_result if it is enough."
            )
        if config.output and self.step.needs_env:
            notice_once(
                "offline_data(output=...) is slow: every iteration copies its steps to the host and writes files, "
                "which costs more than sampling."
            )
        # Before anything touches the backend: gymnax starts it on import, and the number of CPU devices is fixed then.
        used_devices = config.learner_class.devices_of(config)
        # By counts alone; what is sampled and learned from is known when the step has made its plan.
        require_device_memory(used_devices, least_memory(config), batch_remedy(config))
        made = None if resolved is None else resolved.make(check=not config.disable_env_checking)
        env = with_preprocessors(config, made)
        env = self.jax_env = None if env is None else with_randomized_params(config, env)
        self.module_map = module_map_of(config, env)
        self.counted_per_env_step = steps_counted_per_env_step(config, env)
        self._check_devices(len(devices.joined_devices(used_devices)))
        pipelines = self._make_pipelines(env)
        self.learner = self._make_learner()
        self.acting_modules = {mid: self.learner.template[mid] for mid in self.module_map.agents_of}
        if env is not None:
            window_size = config.metrics_num_episodes_for_smoothing
            rollout = make_rollout(config, env, pipelines, self.learner.pure, window_size=window_size)
            self.rollout = dataclasses.replace(rollout, declared=self.learner.declared_columns)
        sampled = self.rollout if self.step.needs_env else None
        if sampled is not None and self.module_map.is_multi_agent and self._watches_episodes:
            sampled = dataclasses.replace(sampled, shows_agents=True)
        if sampled is not None and config.opponents is not None:
            sampled = self._with_opponents(sampled, config.opponents)
        self._records_block = self._watches_episodes or bool(sampled is not None and config.output)
        self.shards = TrainingShards(sampled, pipelines, self._num_envs, used_devices)
        record = None if sampled is None else self._record_of_step(sampled)
        update_of_rows = self.learner.plan()
        rollout = self.rollout if sampled is None else sampled
        self.facts = self._make_facts(rollout, {} if record is None else record.columns)
        self.plan = plan_of(self.step, self.facts)
        self.num_training_steps_per_call = self._planned_training_steps()
        self._update_sizes = self._planned_counts(update_of_rows)
        self.program = self._make_program(sampled, record)
        self._estimate_memory()
        # Of a module with a recurrent state a rollout is the larger one: it has the states of all steps.
        largest = max(self.train_batch_memory, self.rollout_memory, key=lambda estimate: estimate.num_bytes)
        require_device_memory(used_devices, largest, batch_remedy(config))
        if config.opponents is not None:
            self.opponents_memory = opponents_memory(self.shards.shapes(), len(devices.joined_devices(used_devices)))
            remedy = f"Lower Snapshots(size={config.opponents.size}), or use smaller networks."
            require_device_memory(used_devices, self.opponents_memory, remedy)
        self._snapshots = Snapshots(config.learner_snapshot_interval)
        self.league = None if config.opponents is None else League(self, config.opponents)
        self.env_runner_group = self._make_group(pipelines)
        self.evaluation, self.data_evaluation = make_evaluation(self), make_data_evaluation(self)
        self._on_stop.callback(self.evaluation.stop)
        self._on_stop.callback(self.env_runner_group.stop)
        self._start()
        self._call = self.mapped(self.program, donates=True)
        self._recording_call: Callable[..., Any] | None = None

    # -------------------------------------------------------------------------------------------------- building

    def _check_devices(self, num_devices: int) -> None:
        """Raises ValueError if the number of environments is no multiple of the number of devices, or if
        ``disable_jit`` is set with several devices.
        """
        if self.config.disable_jit and num_devices > 1:
            raise ValueError(
                f"debugging(disable_jit=True) needs a single device, and this config uses {num_devices}. Set "
                f"learners(num_cpus_per_learner=1, num_gpus_per_learner=0) to debug."
            )
        self._num_envs = int(self.config.num_envs_per_env_runner)
        if self.step.needs_env and self._num_envs % num_devices:
            raise ValueError(
                f"num_envs_per_env_runner={self._num_envs} must be a multiple of the learner's {num_devices} devices. "
                f"Use {-(-self._num_envs // num_devices) * num_devices}, or fewer devices."
            )

    def _make_pipelines(self, env: JaxEnv | None) -> ModulePipelines:
        """Creates the connector pipelines of all modules, and stores the observation and action spaces in
        ``self.spaces``.

        If `env` is None, the spaces come from the config, and the returned `ModulePipelines` is empty.
        """
        if env is not None:
            pipelines = pure_pipelines(self.config, env, self.module_map)
            single = (env.observation_space, env.action_space)
            self.spaces = {"__env__": single, "__env_single__": single, **pipelines.spaces}
        else:
            pipelines = ModulePipelines(self.module_map, {})
            self.spaces = {self.module_map.module_id: spaces_without_env(self.config)}
        return pipelines

    def _with_opponents(self, rollout: DeviceRollout, settings: OpponentSnapshots) -> DeviceRollout:
        """Returns a copy of the training rollout in which snapshots (earlier weights) of the policy `settings.of` are
        opponents.

        In a fraction `settings.share_of_self_play` of the environments, the policy controls all agents. In the other
        environments, the policy controls the first agent, and snapshots control all other agents.
        """
        if shared_observations(self.acting_modules[settings.of]):
            raise NotImplementedError(
                f"multi_agent(opponents=Snapshots(of={settings.of!r})): the module {settings.of!r} declares keys of "
                "observations that are equal for all agents (shared_observations), so it must control all agents, but "
                "snapshots (earlier weights of the module) control some of them. Use a module without "
                "shared_observations."
            )
        num_devices = self.learner.num_devices
        num_self_play, _ = settings.sizes(self._num_envs, num_devices)
        return rollout.with_snapshots(
            settings.of, num_envs=self._num_envs // num_devices, num_self_play=num_self_play, num_blocks=settings.size
        )

    def _free_memory(self) -> int | None:
        return free_device_memory(self.learner.devices)

    def _make_learner(self) -> Learner:
        config = self.config
        spec = config.get_multi_rl_module_spec(spaces=self.module_spaces)
        learner = config.learner_class(config=config, module_spec=spec)
        learner.build()
        learner.check_connector_is_pure()
        self.learner_group = LearnerGroup(config=config, learner=learner)
        return learner

    def _make_facts(self, rollout: DeviceRollout | None, recorded: Mapping[str, Any]) -> DeviceFacts:
        """Collects the inputs of `TrainingStep.plan`, which computes the sizes of samples and updates.

        The inputs are the driver's spaces, learner and rollout, and the shapes of the columns that sampling records.

        Args:
            rollout, recorded: See `DeviceFacts`.
        """
        return DeviceFacts.of(
            self,
            env_runner_group=None,
            recorded={mid: RecordedStep.of_block(own) for mid, own in recorded.items() if mid != OPPONENTS},
            num_envs=self._num_envs,
            rollout=rollout,
            recorded_shapes=recorded,
            records_block=self._records_block,
        )

    def _record_of_step(self, rollout: DeviceRollout) -> StepRecord:
        num_envs = self._num_envs // self.learner.num_devices
        explore = bool(self.config.explore)
        return record_of_step(rollout, self.learner, self.shards.shapes(), num_envs=num_envs, explore=explore)

    def _make_program(self, rollout: DeviceRollout | None, record: StepRecord | None) -> DeviceProgram:
        """Creates the compiled program that runs a fixed number of training steps per call.

        `record` contains the shapes of the columns that sampling records in one step of a device's environments; None
        if training does not sample.
        """
        learner, num_devices = self.learner, self.learner.num_devices
        return DeviceProgram(
            step=self.step,
            plan=self.plan,
            learner=learner,
            rollout=rollout,
            axis_name=learner.reduction_axis,
            num_envs=self._num_envs // num_devices,
            num_devices=num_devices,
            is_joined=num_devices > len(learner.devices),
            explore=bool(self.config.explore),
            num_training_steps=self.num_training_steps_per_call,
            recorded=None if record is None else record.columns,
            shown=() if record is None else record.seen,
            records_block=self._records_block,
        )

    def _planned_training_steps(self) -> int:
        """Computes the number of training steps per call of the compiled program.

        The number is 1 if control returns to the host after every training step; otherwise it follows from the config's
        minimum number of steps per iteration.
        """
        config, plan = self.config, self.plan
        wanted, each = config.min_sample_timesteps_per_iteration, plan.num_env_steps * self.counted_per_env_step
        if not self.step.needs_env:
            wanted = config.min_train_timesteps_per_iteration
            each = plan.rows_per_update * max(1, plan.num_updates)
        number = max(1, -(-(wanted or 0) // each))
        return 1 if number > 1 and self._returns_to_host() else number

    def _planned_counts(self, update_of_rows: UpdatePlan) -> dict[str, Any]:
        """Returns the sizes of one update, from which trained env steps and module steps are counted.

        The sizes (minibatches, time steps, batch size of each module) are keyword arguments of
        `Learner.training_counts` and `Learner.count_updates`, which count these steps.

        Args:
            update_of_rows: Plan of an update on rows of a replay buffer or a data set; used if the training step makes
                no updates on samples.
        """
        learner, update = self.learner, self.plan.update
        num_columns = 1 if update is None else self._num_envs * update.samples.num_shares
        # From replay each module gets the same number of rows.
        rows = {} if self.step.uses_replay else self.facts.num_rows(num_columns)
        return {
            "plan": update_of_rows if update is None else update.sizes,
            "num_steps": self.plan.rows_per_update // num_columns,
            "num_columns": {mid: rows.get(mid, num_columns) for mid in learner.template},
            "forms": {} if update is None else learner.forms_of_blocks(update.samples.num_steps),
        }

    def _returns_to_host(self) -> bool:
        """Whether control returns to the host after every training step.

        True if a user's class overrides ``Algorithm.training_step``, or a learner hook that runs on the host before or
        after updates (`Learner.has_host_hooks`). If True, logs a warning that this costs time.
        """
        if self.step.one_per_call:
            notice_once(
                f"{self.config.algo_class.__name__} overrides training_step(), so every training step returns to the "
                "host, which can cost more than the step."
            )
            return True
        if self.learner.has_host_hooks:
            notice_once(
                f"{type(self.learner).__name__} overrides a hook that runs on the host around updates, which costs far "
                "more than the update. Use pre_update() and post_update(), which run inside of the compiled program."
            )
        return self.learner.has_host_hooks

    def _make_group(self, pipelines: ModulePipelines) -> EnvRunnerGroup:
        """Creates the `EnvRunnerGroup` of training, with one on-device EnvRunner in this process; the group is empty
        without an environment.
        """
        rollout = self.rollout
        if rollout is None:
            return EnvRunnerGroup(False, config=self.config, num_env_runners=0)
        has_envs = self.step.needs_env
        if not has_envs:
            pipelines.set_statistics(self.step.env_to_module_state())
        self.env_runner = DeviceEnvRunner(
            config=self.config,
            rollout=rollout,
            pipelines=pipelines,
            learner=self.learner,
            connector_state=self.shards.connector_state if has_envs else lambda: pipelines.env_to_module_states,
            timesteps=lambda: devices.host_view(self.timesteps),
        )
        if has_envs:
            self._output = self.env_runner.output
        return EnvRunnerGroup(self.env_runner, config=self.config, num_env_runners=0)

    def _start(self) -> None:
        """Resets the training environments and the driver's counters; discards unfinished episodes."""
        self.shards.start(self.config.root_seed)
        if self.league is not None:
            self.league.start()
        self.timesteps = devices.place_replicated(counters.zero(), self.learner.devices)
        self.num_env_steps = 0
        self._learned: dict[Any, Any] = {}
        # Of the iteration that runs, or ran last, where rows are masked.
        self._running_iteration, self._steps_trained = 0, collections.Counter[str]()
        self._finite_check = FiniteCheck(self)
        self.step.kept.start(self.step.init_kept)
        self._output.restart(self.shards.lengths)
        # Callbacks see the environments of this process.
        first_env = devices.device_numbers(self.learner.devices).start * (self._num_envs // self.learner.num_devices)
        call = self.callbacks.call_for_episode
        call = functools.partial(call, env_runner=self.env_runner, metrics_logger=self.episode_metrics)
        self._episode_replay = EpisodeReplay(call, episodes_of_rollout(self.module_map, self.module_spaces), first_env)
        if self.rollout is not None:
            self.callbacks.on_environment_created(
                env_runner=self.env_runner,
                metrics_logger=self.episode_metrics,
                env=self.rollout.env,
                env_context=self.env_context,
            )

    # --------------------------------------------------------------------------------------------------- training

    @property
    def _steps_per_call(self) -> int:
        """Number of env steps that one call of the compiled program samples."""
        return self.num_training_steps_per_call * self.plan.num_env_steps

    def num_warm_up_steps(self, num_env_steps: int) -> Any:
        """Returns the number (int32) of warm-up steps in the program's next call: training steps that sample, but make
        no updates.

        A training step makes no updates if fewer than `learning_starts` env steps have been sampled in total when it
        ends. Returns None if every training step makes updates.
        """
        if self.step.learning_starts is None:
            return None
        missing = -(-(self.step.learning_starts - num_env_steps) // self.plan.num_env_steps) - 1
        return np.int32(min(max(0, missing), self.num_training_steps_per_call))

    def _donated_state(self) -> tuple[Any, ...]:
        """State that each call of the compiled program receives, donates (the results reuse its memory) and returns:
        learner, runner, stored data and step counters.
        """
        return self.learner.state, self.shards.state, self.kept, self.timesteps

    def mapped(self, program: DeviceProgram, *, donates: bool) -> Any:
        """Returns a function that runs `program` on each of the learner's devices. The first call of this function
        compiles the program.

        Args:
            program: Program that takes the same arguments as the driver's attribute `program`.
            donates: Whether the mapped function donates its state arguments (the results reuse their memory).
        """
        return devices.map_over_devices(
            program,
            self.learner.devices,
            axis_name=self.learner.axis_name,
            in_axes=(None, 0, 0, None, None, None),
            out_axes=(None, 0, 0, None, None, 0, 0),
            donate_argnums=(0, 1, 2, 3) if donates else (),
        )

    def sampled_again(self, settings: Any, before: tuple[Any, Any] | None) -> Any:
        """Repeats the last call of the compiled training program, and returns the columns that it sampled; used to
        locate NaNs for error messages.

        Args:
            settings: The learner's traced settings in that call.
            before: ``(learner, runner)`` state before that call; None for the last snapshot.

        Returns:
            Columns by module, ``[D, T, B, ...]``; None without a state to start from, or if the training step keeps
            data, which snapshots do not contain.
        """
        num_calls, changes = 1, []
        if before is None and self._snapshots.state is not None:
            before, num_calls = jax.tree.map(jnp.copy, self._snapshots.state), self._snapshots.num_calls
            changes = self._snapshots.changes
        if before is None or jax.tree.leaves(self.kept) or self.program.rollout is None:
            return None
        num_env_steps = self.num_env_steps - num_calls * self._steps_per_call
        timesteps = devices.place_replicated(counters.from_int(num_env_steps), self.learner.devices)
        state: tuple[Any, ...] = (*before, self.kept, timesteps)
        for number in range(num_calls):
            if number:
                state = self._call(*state, settings, self.num_warm_up_steps(self.num_env_steps))[:4]
            for change in [change for at, change in changes if at == number]:
                learner, runner, *rest = state
                state = (learner, change(learner, runner), *rest)
        program = dataclasses.replace(self.program, records_block=True)
        *_, block = self.mapped(program, donates=False)(*state, settings, self.num_warm_up_steps(self.num_env_steps))
        return block

    @contextlib.contextmanager
    def recording(self, recorder: Recorder) -> Iterator[IterationRecord]:
        """Context that records the updates and episodes of each call of the training program.

        In this context, a second compiled program makes the records; training continues from the results of the
        training program.

        The second program runs before the training program, from the same state. The new training state comes from the
        training program, so that its bits do not depend on the recording.

        Args:
            recorder: Sizes of the records.

        Yields:
            The record, which grows with each call.
        """
        mapped: Any = None
        shapes = UpdateRecorder(recorder, self._num_watched())
        recorded, rollout = IterationRecord(self._order_of_columns()), self.program.rollout
        if rollout is not None:
            recorded.agents = rollout.agents
            if shapes.num_watched:
                recorded.drawings = Drawings(rollout.env, self.shards.state.env_state)
        program = dataclasses.replace(self.program, recorder=shapes)

        def call(*arguments: Any) -> Any:
            nonlocal mapped
            if mapped is None:
                first = dataclasses.replace(program)
                jax.eval_shape(self.mapped(first, donates=False), *arguments)
                shapes.end_first_trace()
                mapped = self.mapped(program, donates=False)
            learner, *_, record = mapped(*arguments)
            # Fetched before the next program, which may need the memory.
            recorded.add_call(devices.own_shards(record), program.num_training_steps)
            results = self._call(*arguments)
            recorded.is_exact &= has_equal_bits(*map(devices.host_view, (learner.params, results[0].params)))
            return results

        # Not in place of the program: `sampled_again` repeats earlier calls, which are not to be recorded.
        self._recording_call = call
        try:
            yield recorded
        finally:
            self._recording_call = None

    def _num_watched(self) -> int:
        """Number of environments per device whose states are recorded, to render frames of their episodes."""
        rollout = self.program.rollout
        if rollout is None or type(rollout.env).render is JaxEnv.render:
            return 0
        leaves = jax.tree.leaves(self.shards.state.env_state)
        num_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) // self._num_envs
        steps_per_call = self._steps_per_call // self._num_envs
        return min(self._num_envs // self.learner.num_devices, _MOST_STATE_BYTES // max(1, num_bytes * steps_per_call))

    def _order_of_columns(self) -> ColumnOrder | None:
        """Returns the layout of the batch axis of the columns that a device samples.

        The layout is the order of sampling rounds, agents and environments. Returns None if updates use other data,
        such as a replay buffer.
        """
        update = self.plan.update
        if update is None or self.rollout is None:
            return None
        num_slots = {mid: self.module_map.num_slots.get(mid, 1) for mid in self.acting_modules}
        layouts = {mid: update.samples.layouts.get(mid) for mid in num_slots}
        is_by_agent = {mid: own is not None and own.num_agents > 1 for mid, own in layouts.items()}
        num_envs = self._num_envs // self.learner.num_devices
        samples = update.samples
        return ColumnOrder(num_envs, samples.num_steps, samples.num_shares, num_slots, is_by_agent)

    def trace_program(self) -> jax.stages.Traced:
        """Traces the program that the next `training_step` runs, and returns the traced program (`jax.stages.Traced`)
        without compiling it.

        ``trace_program().lower(lowering_platforms=("cuda",))`` works without a GPU.

        Raises:
            ValueError: With ``disable_jit=True``, which runs no program.
        """
        if self.learner.axis_name is None:
            raise ValueError(
                "trace_program() needs a compiled program, but debugging(disable_jit=True) compiles none. Set "
                "debugging(disable_jit=False)."
            )
        settings: Any = self.learner.placed_settings()
        call: Any = self._call
        return call.trace(*self._donated_state(), settings, self.num_warm_up_steps(self.num_env_steps))

    def time_shares(self, folder: pathlib.Path, seconds: float) -> dict[str, float]:
        if self.learner.axis_name is None:
            return {}
        return shares_of_scopes(folder, compiled_text(self.trace_program().lower()))

    def training_step(self, iteration: int) -> None:
        learner, num_warm_up = self.learner, self.num_warm_up_steps(self.num_env_steps)
        steps = {"num_env_steps_sampled_lifetime": self.num_env_steps + self._steps_per_call}
        learns = num_warm_up is None or num_warm_up < self.num_training_steps_per_call
        calls_hooks = learner.has_host_hooks and learns
        if calls_hooks:
            learner.before_gradient_based_update(timesteps=steps)
        started = time.perf_counter()
        settings = learner.placed_settings()
        if iteration != self._running_iteration:
            self._running_iteration, self._steps_trained = iteration, collections.Counter[str]()
        self._episode_replay.pass_over_missed(lambda: self.shards.lengths)
        before = shown = None
        updates_before = learner.num_updates if self.step.may_skip_updates else None
        with deferred_interrupt(), self._recovering():
            if learner.axis_name is not None:
                is_copied = self._snapshots.before_call(learner.state, self.shards.state)
                if self.league is not None and is_copied:
                    self._league_of_snapshot = self.league.get_state()
            else:  # Eager runs donate nothing.
                before = learner.state, self.shards.state
            # Donated buffers are replaced in the statement that donates them: whatever interrupts what follows, the
            # algorithm stays usable.
            call = self._recording_call or self._call
            learner.state, self.shards.state, self.step.kept.value, self.timesteps, learned, window, block = call(
                *self._donated_state(), settings, num_warm_up
            )
            if self._watches_episodes:
                self._episode_replay.expect(self._steps_per_call * len(learner.devices) // learner.num_devices)
            # Reading them waits: what the program raises is raised here, if not by its call.
            learned, window = fetched(learned), np.asarray(window)
            self._snapshots.after_call(learner.state, self.shards.state)
            # Before Ctrl-C is heard: steps and episodes that were sampled count.
            self.num_env_steps += self._steps_per_call
            self.shards.take_window(window)
            if learns and learned and (updates_before is None or learner.num_updates != updates_before):
                self._learned = learned
                made = {"num_updates": self.num_training_steps_per_call, "learned": learned}
                self._steps_trained.update(learner.count_updates(**self._update_sizes, **made))
            if self.program.records_block:
                shown = side_by_side(devices.own_shards(block))
                if not self.module_map.is_multi_agent:
                    (shown,) = shown.values()
                self._output.add_block(shown)
            if self.league is not None:
                self.league.after_training_step(iteration)
        self.device_seconds += time.perf_counter() - started
        self._finite_check.after_call(iteration, settings, self._learned, block, before)
        raise_if_not_finite(self._learned, iteration=iteration)
        if calls_hooks:
            learner.after_gradient_based_update(timesteps=steps)
        if self._watches_episodes:
            seen = self._episode_replay.replay(shown)
            self.callbacks.on_sample_end(env_runner=self.env_runner, metrics_logger=self.episode_metrics, samples=seen)

    def count_env_steps(self, num_env_steps: int) -> None:
        super().count_env_steps(num_env_steps)
        self.timesteps = devices.place_replicated(counters.from_int(self.num_env_steps), self.learner.devices)

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Context around a call of the compiled program: if the call fails, restores the last snapshot of the training
        state, so that training can continue.

        Raises:
            RuntimeError: Instead of the program's error, if the training state was lost.
        """
        try:
            yield
        except BaseException as error:
            snapshots = self._snapshots
            if snapshots.state is None or not is_lost(*self._donated_state()):
                raise
            also_lost = self._go_on_from(*snapshots.state, num_calls=snapshots.num_calls)
            steps = (snapshots.num_calls + 1) * self._steps_per_call
            interval = self.config.learner_snapshot_interval
            reraise(
                error,
                f"A training step failed while it ran, and the training state was lost. The run continues from its "
                f"last snapshot; lost: this call of the compiled program and {snapshots.num_calls} before it, which "
                f"are {steps} env steps (learner_snapshot_interval={interval}){also_lost}.",
            )

    def _go_on_from(self, learner: Any, runner: Any, *, num_calls: int) -> str:
        """Restores the learner and the environments from the snapshot that was taken `num_calls` program calls ago.

        Snapshots do not contain replay buffers or positions in data sets: replay buffers start again with their initial
        contents (empty, or recorded steps), and a new pass over a data set begins. Returns a description of this lost
        data, to be appended to the error message; "" if no such data was lost.
        """
        also_lost = self.step.drop_kept(self)
        self.learner.place(learner)
        self.shards.place(devices.all_shards(runner))
        self.num_env_steps -= num_calls * self._steps_per_call
        self.timesteps = devices.place_replicated(counters.from_int(self.num_env_steps), self.learner.devices)
        self._episode_replay.set_state({}, self.shards.lengths)
        self._output.restart(self.shards.lengths)
        if self.league is not None:
            self.league.set_state(self._league_of_snapshot)
        return also_lost

    def change_runner(self, change: Callable[[Any, Any], Any]) -> None:
        """Applies a function to the training environments' state, between two calls of the compiled program.

        Args:
            change: ``(learner's state, runner's state) -> runner's state``. It may donate the runner's state, and is
                called again where calls since the last snapshot are repeated.
        """
        before = self.shards.state
        self.shards.state = change(self.learner.state, before)
        self._snapshots.changed(before, self.shards.state, change)

    def go_on_as(self, learner: Any, runner: Any, kept: Any, *, num_env_steps: int) -> None:
        """Continues a training run of another driver on one device, such as the training of a population member.

        Copies the states of learner and runner, and stored data such as a replay buffer, all given as host arrays, to
        the device of this driver.

        Args:
            learner, runner, kept: See `TrainState`; of one device, without the device axis. If `kept` is None, the
                training step starts with new kept data, such as an empty replay buffer.
            num_env_steps: Lifetime env steps.
        """
        self.learner.place(learner)
        self.shards.place(jax.tree.map(lambda x: x[None], runner))
        if kept is None:
            self.step.drop_kept(self)
        else:
            kept = devices.place_sharded(jax.tree.map(lambda x: x[None], kept), self.learner.devices)
            self.step.kept.value = with_fixed(kept, split_fixed(self.kept)[1])
        self.num_env_steps = num_env_steps
        self.timesteps = devices.place_replicated(counters.from_int(num_env_steps), self.learner.devices)
        self._episode_replay.set_state({}, self.shards.lengths)
        self._output.restart(self.shards.lengths)

    @property
    def num_episodes(self) -> int:
        return self.shards.num_episodes

    @property
    def num_agent_steps(self) -> dict[Any, int] | None:
        agents = () if self.rollout is None else self.rollout.agents
        return {**dict.fromkeys(agents, 0), **self.shards.num_agent_steps} if agents else None

    @property
    def num_opponent_steps(self) -> int:
        return 0 if self.league is None else self.league.num_steps

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        return self.shards.episode_statistics(seconds_per_step)

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        results = nest_metrics(self._learned)
        merge_nested(results, self.training_counts(num_updates))
        merge_nested(results, self.learner.metrics_logger.compile())
        return results

    def training_counts(self, num_updates: int) -> dict[str, Any]:
        """Returns the learner's counters, such as trained steps, after `num_updates` updates in this iteration."""
        more = {"learned": self._learned, "steps": self._steps_trained}
        return self.learner.training_counts(**self._update_sizes, **more, num_updates=num_updates)

    # ----------------------------------------------------------------------------------------------------- access

    def modules(self) -> dict[str, RLModule]:
        return dict(self.learner.module.items())

    def acting_parts(self, module_id: str) -> tuple[Any, Any, Any]:
        if self.env_runner is None:
            return self.evaluation.acting_parts(module_id)
        env_to_module, module_to_env = self.env_runner.pipelines.acting_for(module_id)
        return self.learner.module, env_to_module, module_to_env

    def env_to_module_state(self) -> dict[str, Any]:
        if self.env_runner is None:
            return self.step.env_to_module_state()
        return self.env_runner.get_state(core.COMPONENT_ENV_TO_MODULE_CONNECTOR)[core.COMPONENT_ENV_TO_MODULE_CONNECTOR]

    def act(self, observation: Any, **kwargs: Any) -> dict[str, Any]:
        return (self.env_runner or self.evaluation).act(observation, **kwargs)

    @property
    def description(self) -> str:
        return f"{self.learner.num_devices} {self.learner.device.platform} device(s)"

    # ------------------------------------------------------------------------------------------------------ state

    def _sampling_state(self) -> dict[str, Any]:
        own = [core.COMPONENT_ENV_TO_MODULE_CONNECTOR, core.COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        state: dict[str, Any] = {core.COMPONENT_ENV_RUNNER: {"rollout": self.shards.get_state()}}
        if self.env_runner is not None:
            state[core.COMPONENT_ENV_RUNNER] |= self.env_runner.get_state(own)
        return state

    def _described_env_runner(self) -> Any:
        return self.env_runner

    def _own_state(self) -> dict[str, Any]:
        # Each process has watched the environments of its own.
        watched = devices.gathered_values(self._episode_replay.get_state()) if self._watches_episodes else ()
        return {
            "timesteps": counters.to_int(np.asarray(devices.host_view(self.timesteps))),
            "running_episodes": joined_states(watched),
            **({} if self.league is None else {"league": self.league.get_state()}),
        }

    def _set_sampling_state(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        are_replaced = self.shards.set_state(state.get(core.COMPONENT_ENV_RUNNER, {}))
        if are_replaced and self.league is not None:
            self.league.set_state({} if own is None else own.get("league", {}))
        if are_replaced:
            self._output.restart(self.shards.lengths)
            self._episode_replay.set_state({} if own is None else own["running_episodes"], self.shards.lengths)
        if own is not None:
            self.timesteps = devices.place_replicated(counters.from_int(own["timesteps"]), self.learner.devices)

    def reset(self, config: AlgorithmConfig, callbacks: CallbackList) -> bool:
        # What is recorded for callbacks is a part of the program.
        return overrides_episode_hooks(callbacks) == self._watches_episodes and super().reset(config, callbacks)

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            self.learner.shutdown()
            self._snapshots.forget()
            self.shards.state = self.step.kept.value = None
