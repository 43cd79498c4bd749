"""The on-device driver: sampling and update in one compiled, donating program over the learner's devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxrl_stack.acting.device_rollout import DeviceRollout, RunnerState
from jaxrl_stack.acting.episode_replay import EpisodeReplay, in_time_order
from jaxrl_stack.acting.episode_window import EpisodeWindow, last_episodes, num_episodes
from jaxrl_stack.acting.recording import EndedEpisodes
from jaxrl_stack.callbacks.utils import CallbackList, overrides_episode_hooks
from jaxrl_stack.core import (
    COMPONENT_ENV_RUNNER,
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_EVAL_ENV_RUNNER,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
)
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.learner.traced_metrics import nest_metrics, raise_if_not_finite
from jaxrl_stack.core.learner.update_program import fetched
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.env.connector_states import histories, known_statistics
from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.registry import ResolvedEnv, resolve_env
from jaxrl_stack.env.runner_layout import restored_runner_state, stored_runner_state, with_connector_states
from jaxrl_stack.execution.driver import Driver
from jaxrl_stack.execution.evaluation import Amounts, Share, evaluation_results
from jaxrl_stack.execution.memory import free_device_memory, require_device_memory
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.ops.reductions import Flat
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import (
    all_shards,
    host_view,
    map_over_devices,
    place_replicated,
    place_sharded,
    place_shards,
)
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.memory import MemoryEstimate, train_batch_memory
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import merge_nested
from jaxrl_stack.utils.snapshots import Snapshots, is_lost, reraise
from jaxrl_stack.utils.spaces import difference
from jaxrl_stack.utils.streams import Stream, stream_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.connectors.connector_v2 import ConnectorContext
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.env.jax_env import JaxEnv
    from jaxrl_stack.utils.devices import Device


_RUNNING = "running_evaluation"
"""Part of an evaluation runner's state that matters where its environments are not reset."""


class DeviceDriver(Driver):
    """Trains on a JAX environment.

    Args:
        resolved: The environment.
        algorithm, config, pure_training_step, callbacks: See `Driver`.

    Attributes:
        rollout: The static parts of sampling.
        runner_state: The runner's part of the training state, leaves ``[D, ...]``.
        replay_state: What the replay memory holds, leaves ``[D, ...]``; None of an on-policy algorithm.
        timesteps: uint32[2], lifetime env steps; replicated.
    """

    learner: Learner
    replay_state: Any = None
    env_runner: DeviceEnvRunner
    eval_env_runner: DeviceEnvRunner

    def __init__(self, resolved: ResolvedEnv, *args: Any):
        super().__init__(*args)
        config = self.config
        self._watches_episodes = overrides_episode_hooks(self.callbacks)
        if self._watches_episodes:
            notice_once(
                "Callbacks on episodes are set: every iteration copies its trajectories to the host and replays them "
                "step by step there, which costs far more than the sampling itself."
            )
        # Before anything touches the backend: gymnax starts it on import, and the number of CPU devices is fixed then.
        learner_class = config.learner_class
        devices = learner_class.devices_of(config)
        env = resolved.make()
        num_devices = len(devices)
        if config.disable_jit and num_devices > 1:
            raise ValueError(
                f"debugging(disable_jit=True) runs on one device, and this config uses {num_devices}. Set "
                f"learners(num_cpus_per_learner=1, num_gpus_per_learner=0) to debug."
            )
        self._num_envs = int(config.num_envs_per_env_runner)
        if self._num_envs % num_devices:
            raise ValueError(
                f"num_envs_per_env_runner={self._num_envs} must divide by the {num_devices} devices of the learner. "
                f"Use {-(-self._num_envs // num_devices) * num_devices}, or fewer devices."
            )
        self.spaces, env_to_module, module_to_env = _pure_pipelines(config, env)
        module_spaces = (env_to_module.observation_space, env_to_module.action_space)
        self.spaces[self.module_id] = module_spaces
        self._estimate_memory(devices)
        spec = config.get_multi_rl_module_spec(spaces={self.module_id: module_spaces})
        self.learner = learner_class(config=config, module_spec=spec)
        self.learner.build()
        self.learner.check_connector_is_pure()
        self.learner_group = LearnerGroup(config=config, learner=self.learner)
        self.rollout = DeviceRollout(
            env=env,
            module_id=self.module_id,
            pure=self.learner.pure,
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            window_size=config.metrics_num_episodes_for_smoothing,
        )
        # One program for all devices' shards, on the host: vmapping over devices would trace the env once more.
        self._init = jax.jit(functools.partial(_first_shard, self.rollout, self._num_envs // num_devices))
        self._plan_training_step()
        self._snapshots = Snapshots(config.learner_snapshot_interval)
        self._start()
        self._make_env_runners(resolved)
        self._episode_replay = EpisodeReplay(self._call_episode_hook, *module_spaces)
        self.callbacks.on_environment_created(
            env_runner=self.env_runner, metrics_logger=self.episode_metrics, env=env, env_context=resolved.context
        )
        self._iterate = map_over_devices(
            self._iteration_program,
            devices,
            axis_name=self.learner.axis_name,
            in_axes=(None, 0, 0, None, None, None),
            out_axes=(None, 0, 0, None, None, 0, 0),
            donate_argnums=(0, 1, 2, 3),
        )

    def _make_env_runners(self, resolved: ResolvedEnv) -> None:
        """The runners of training and of evaluation, each alone in its group."""
        config = self.config
        self.env_runner = DeviceEnvRunner(
            config=config,
            rollout=self.rollout,
            learner=self.learner,
            connector_state=lambda: jax.tree.map(lambda x: x[0], host_view(self.runner_state.env_to_module)),
            timesteps=self._timesteps_on_host,
        )
        self.env_runner_group = EnvRunnerGroup(self.env_runner, config=config, num_env_runners=0)
        self._env_context = resolved.context
        self.eval_env_runner = self._make_evaluation_runner()
        self.eval_env_runner_group = EnvRunnerGroup(
            self.eval_env_runner, config=self.eval_env_runner.config, num_env_runners=0, is_evaluation=True
        )

    def _estimate_memory(self, devices: Sequence[Device]) -> None:
        """Report what a train batch takes, and refuse one that the devices cannot hold."""
        self.rollout_memory, self.train_batch_memory = self._memory_estimates(*self.spaces[self.module_id])
        self.available_memory = free_device_memory(devices)
        self._log_memory()
        require_device_memory(devices, self.train_batch_memory, self._require_memory_of_batch)

    def _start(self) -> None:
        """Fresh environments and counters."""
        key = stream_key(self.config.root_seed, Stream.ROLLOUT)
        shards = [self._init(jax.random.fold_in(key, d)) for d in range(len(self.learner.devices))]
        self.runner_state: Any = place_shards(shards, self.learner.devices)
        self.timesteps = place_replicated(counters.zero(), self.learner.devices)
        self.num_env_steps = 0
        self._learned: dict[Any, Any] = {}
        self._window: Any = None

    def _make_evaluation_runner(self) -> DeviceEnvRunner:
        """A runner with all of the evaluation config, as evaluation's runners on the host; it shares the weights."""
        config = self.config.get_evaluation_config_object()
        assert config is not None
        env, context = self.rollout.env, self._env_context
        if not config.is_same(self.config, "env", "env_config"):
            resolved = resolve_env(config.env, config.env_config)
            env, context = resolved.make(), resolved.context
        _, env_to_module, module_to_env = _pure_pipelines(config, env)
        for name, trained in zip(("observation_space", "action_space"), self.spaces[self.module_id], strict=True):
            if difference(getattr(env_to_module, name), trained) is not None:
                raise ValueError(
                    f"The evaluation environment's {name} is {getattr(env_to_module, name)} for the module; in "
                    f"training it is {trained}. evaluation_config may change what happens in the environment, not "
                    f"its spaces."
                )
        spec = self._evaluation_module_spec(config)
        is_history = histories(env_to_module)

        def connector_state() -> Any:
            env_to_module.set_state(known_statistics(env_to_module.names, is_history, self.env_to_module_state()))
            return env_to_module.state

        return DeviceEnvRunner(
            config=config,
            rollout=dataclasses.replace(
                self.rollout,
                env=env,
                pure=self.learner.pure if spec is None else PureModule(spec.build(seed=0).as_multi_rl_module()),
                env_to_module=env_to_module,
                module_to_env=module_to_env,
            ),
            learner=self.learner,
            connector_state=connector_state,
            timesteps=self._timesteps_on_host,
            callbacks=CallbackList.from_config(config),
            env_context=context,
        )

    def _timesteps_on_host(self) -> Any:
        return host_view(self.timesteps)

    def _call_episode_hook(self, hook: str, env_index: int, episode: Any) -> None:
        self.callbacks.call_for_episode(
            hook, env_index, episode, env_runner=self.env_runner, metrics_logger=self.episode_metrics
        )

    # ------------------------------------------------------------------------------- the shape of a training step
    #
    # On policy: a train batch is sampled, and updated from, in one call of the program. What follows up to the next
    # line is what drivers of other shapes have of their own.

    def _memory_estimates(self, *spaces: gym.Space | None) -> tuple[MemoryEstimate, MemoryEstimate]:
        num_envs = self._num_envs
        num_rounds, length = self.config.train_batch_blocks
        return (
            train_batch_memory(*spaces, num_envs=num_envs, num_steps=length * num_rounds, what="rollout"),
            train_batch_memory(*spaces, num_envs=num_envs * num_rounds, num_steps=length),
        )

    def _plan_training_step(self) -> None:
        """Work out the sizes that the program is made for."""
        config = self.config
        self._num_rounds, self._fragment_length = config.train_batch_blocks
        self._plan = self.learner.plan(
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        num_columns = self._num_envs * self._num_rounds
        if num_columns % self._plan.num_shards:
            raise ValueError(
                f"num_shuffle_shards={self._plan.num_shards} must divide the {num_columns} columns of a train batch "
                f"(num_envs_per_env_runner={self._num_envs} times {self._num_rounds} fragments), which it shards. "
                f"Use fewer shards, or more environments."
            )

    @property
    def _steps_per_call(self) -> int:
        """Env steps that a call of the program samples."""
        return self._fragment_length * self._num_rounds * self._num_envs

    @property
    def _rows_per_update(self) -> int:
        """Rows of a train batch."""
        return self._steps_per_call

    _num_warm_up_steps: Any = None  # int32, training steps of the next call before the first update; None: always 0
    _learns_next = True  # whether the next call makes updates

    def _donated_state(self) -> tuple[Any, ...]:
        """What the program takes and returns."""
        return self.learner.state, self.runner_state, self.replay_state, self.timesteps

    def _iteration_program(self, learner, runner, replay, timesteps, settings, num_warm_up):
        """What a call of `training_step` runs on one device of the learner: sample, update, report. Traced once."""
        del num_warm_up
        state, metrics = self.pure_training_step(
            TrainState(learner=learner, runner=runner, replay=replay, timesteps=timesteps),
            settings,
            sample_fn=self._sample_on_device,
            update_fn=self._update_on_device,
        )
        return self._results_of_program(state, metrics["learners"], metrics["env_runners"])

    def _results_of_program(self, state: TrainState, learned: jax.Array, block: Any) -> tuple[Any, ...]:
        """What the program returns.

        Args:
            state: After it; the parts of it are those of `_donated_state`.
            learned: Metrics of updates, as a vector.
            block: Recorded columns ``[T, R * B, ...]``, if callbacks watch episodes.
        """
        # What the host reads comes in two vectors: fetching a dozen scalars takes longer than a small iteration.
        window = state.runner.window.packed()
        return state.learner, state.runner, state.replay, state.timesteps, learned, window, block

    def _sample_on_device(self, state: TrainState, settings: Any):
        context = self._acting_context(state, settings, state.learner.timesteps)
        runner, columns, _ = self.rollout.sample(
            state.runner, context, fragment_length=self._fragment_length, num_rounds=self._num_rounds
        )
        # Every vector step of a JAX environment is a step of every environment: nothing is masked.
        block = columns if self._watches_episodes else ()
        return runner, {self.module_id: columns}, self._steps_per_call, block

    def _acting_context(self, state: TrainState, settings: Any, timesteps: Any) -> ConnectorContext:
        """What a rollout's steps see; schedules of exploration are those of `timesteps`."""
        return self.rollout.context(
            state.learner.params,
            state.learner.rest,
            self.learner.current_values(settings, timesteps)["modules"],
            state.timesteps,
            explore=bool(self.config.explore),
            axis_name=self.learner.reduction_axis,
        )

    def _update_on_device(self, learner, batch, settings, timesteps):
        axis_name = self.learner.reduction_axis
        learner, learned = self.learner.pure_update(
            learner, batch, settings, timesteps, plan=self._plan, axis_name=axis_name
        )
        return learner, Flat.of(learned)

    def trace_program(self) -> jax.stages.Traced:
        """The program that the next `training_step` runs, traced and not compiled.

        ``trace_program().lower(lowering_platforms=("cuda",))`` needs no such device.

        Raises:
            ValueError: With ``disable_jit=True``, which runs no program.
        """
        if self.learner.axis_name is None:
            raise ValueError("debugging(disable_jit=True) runs operations one by one: leave it out to see the program.")
        settings = self.learner.placed_settings()
        return self._iterate.trace(*self._donated_state(), settings, self._num_warm_up_steps)

    # --------------------------------------------------------------------------------------------------- training

    def training_step(self, iteration: int) -> None:
        learner = self.learner
        steps = {"num_env_steps_sampled_lifetime": self.num_env_steps + self._steps_per_call}
        learns = self._learns_next
        calls_hooks = learner.has_host_hooks and learns
        if calls_hooks:
            learner.before_gradient_based_update(timesteps=steps)
        started = time.perf_counter()
        settings = learner.placed_settings()
        with deferred_interrupt(), self._recovering():
            if learner.axis_name is not None:  # Eager runs donate nothing.
                self._snapshots.before_call(learner.state, self.runner_state)
            # Donated buffers are replaced in the statement that donates them: whatever interrupts what follows, the
            # algorithm stays usable.
            learner.state, self.runner_state, self.replay_state, self.timesteps, learned, window, block = self._iterate(
                *self._donated_state(), settings, self._num_warm_up_steps
            )
            # Reading them waits: what the program raises is raised here, if not by its call.
            learned, window = fetched(learned), np.asarray(window)
            self._snapshots.after_call(learner.state, self.runner_state)
            self.num_env_steps += self._steps_per_call
        if learns:
            self._learned = learned
        self._window = EpisodeWindow.unpacked(window)
        self.device_seconds += time.perf_counter() - started
        raise_if_not_finite(self._learned, iteration=iteration)
        if calls_hooks:
            learner.after_gradient_based_update(timesteps=steps)
        if self._watches_episodes:
            columns = in_time_order(all_shards(block), len(learner.devices), self._num_rounds)
            episodes = self._episode_replay.replay(columns)
            self.callbacks.on_sample_end(
                env_runner=self.env_runner, metrics_logger=self.episode_metrics, samples=episodes
            )

    def count_env_steps(self, num_env_steps: int) -> None:
        super().count_env_steps(num_env_steps)
        self.timesteps = place_replicated(counters.from_int(self.num_env_steps), self.learner.devices)

    @contextlib.contextmanager
    def _recovering(self) -> Iterator[None]:
        """Around the program: if it fails while it runs, go on from the last snapshot.

        Raises:
            RuntimeError: In place of the program's error, if the training state was lost.
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
                f"A training step failed while it ran, and took the training state with it. The run goes on from its "
                f"last snapshot; lost: this call of the compiled program and {snapshots.num_calls} before it, which "
                f"are {steps} env steps (learner_snapshot_interval={interval}){also_lost}.",
            )

    def _go_on_from(self, learner: Any, runner: Any, *, num_calls: int) -> str:
        """Take over the states of `num_calls` calls ago; what is lost besides, for the message."""
        devices = self.learner.devices
        self.learner.place(learner)
        self.runner_state = place_sharded(all_shards(runner), devices)
        self.num_env_steps -= num_calls * self._steps_per_call
        self.timesteps = place_replicated(counters.from_int(self.num_env_steps), devices)
        self._take_over_episodes({})
        return ""

    def _take_over_episodes(self, running: dict[str, Any]) -> None:
        """Statistics and running episodes, as far as they were watched, of a `runner_state` that has been replaced."""
        self._window = all_shards(self.runner_state.window)
        lengths = np.asarray(all_shards(self.runner_state.episodes.episode_length)).reshape(-1)
        self._episode_replay.set_state(running, lengths)

    @property
    def num_episodes(self) -> int:
        return 0 if self._window is None else num_episodes(self._window)

    def episode_statistics(self, seconds_per_step: float = 0.0) -> EndedEpisodes:
        if self._window is None:
            return EndedEpisodes.of(())
        returns, lengths = last_episodes(self._window)
        return EndedEpisodes(returns, lengths, durations=lengths * seconds_per_step)

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        results = nest_metrics(self._learned)
        merge_nested(results, self.learner.training_counts(self._plan, self._rows_per_update, num_updates))
        merge_nested(results, self.learner.metrics_logger.compile())
        return results

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, iteration: int, call: int = 0, is_training: Any = None) -> dict[str, Any]:
        del is_training  # evaluation programs run between training programs
        runner = self.eval_env_runner
        config = runner.config
        key = jax.random.fold_in(stream_key(config.root_seed, Stream.EVALUATION), iteration)
        key = jax.random.fold_in(key, call)

        def sample(amounts: Amounts, is_first: bool) -> Sequence[Share]:
            return [
                runner.evaluate(
                    reset=bool(is_first and config.evaluation_force_reset_envs_before_iteration), key=key, **amount
                )
                for _, amount in amounts
            ]

        return {"env_runners": evaluation_results(config, [0], sample)}

    # ----------------------------------------------------------------------------------------------------- access

    def modules(self) -> dict[str, RLModule]:
        return dict(self.learner.module.items())

    def acting_parts(self) -> tuple[Any, Any, Any]:
        return self.learner.module, self.rollout.env_to_module, self.rollout.module_to_env

    def env_to_module_state(self) -> dict[str, Any]:
        return self.env_runner.get_state(COMPONENT_ENV_TO_MODULE_CONNECTOR)[COMPONENT_ENV_TO_MODULE_CONNECTOR]

    def act(self, observation: Any, *, explore: bool, key: jax.Array) -> dict[str, Any]:
        return self.env_runner.act(observation, explore=explore, key=key)

    @property
    def description(self) -> str:
        return f"{len(self.learner.devices)} {self.learner.device.platform} device(s)"

    # ------------------------------------------------------------------------------------------------------ state

    kind = "device"

    def _sampling_state(self) -> dict[str, Any]:
        own = [COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR, "weights_seq_no"]
        rollout = stored_runner_state(all_shards(self.runner_state))
        state = {COMPONENT_ENV_RUNNER: {**self.env_runner.get_state(own), "rollout": rollout}}
        if self.config.evaluation_interval:
            resets = self.eval_env_runner.config.evaluation_force_reset_envs_before_iteration
            state[COMPONENT_EVAL_ENV_RUNNER] = self.eval_env_runner.get_state([*own, *([] if resets else [_RUNNING])])
        return state

    def _described_env_runners(self) -> tuple[Any, Any]:
        return self.env_runner, self.eval_env_runner if self.config.evaluation_interval else None

    def _own_state(self) -> dict[str, Any]:
        return {
            "timesteps": counters.to_int(np.asarray(host_view(self.timesteps))),
            "running_episodes": self._episode_replay.get_state(),
        }

    def _set_sampling_state(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        runner = state.get(COMPONENT_ENV_RUNNER, {})
        runner_state = None
        if "rollout" in runner:
            runner_state = restored_runner_state(
                runner["rollout"],
                self.rollout,
                num_devices=len(self.learner.devices),
                num_envs=self._num_envs,
                fresh=lambda *arguments: jax.device_get(self.rollout.init(*arguments)),
            )
        elif runner.get(COMPONENT_ENV_TO_MODULE_CONNECTOR):
            pipeline = self.rollout.env_to_module
            pipeline.set_state(runner[COMPONENT_ENV_TO_MODULE_CONNECTOR])
            runner_state = with_connector_states(all_shards(self.runner_state), self.rollout, pipeline.state)
        if runner_state is not None:
            self.runner_state = place_sharded(runner_state, self.learner.devices)
            self._window = all_shards(self.runner_state.window)
        if "rollout" in runner:
            self._take_over_episodes({} if own is None else own["running_episodes"])
        running = state.get(COMPONENT_EVAL_ENV_RUNNER, {}).get(_RUNNING)
        if running is not None:
            self.eval_env_runner.restore_evaluation(running)
        if own is not None:
            self.timesteps = place_replicated(counters.from_int(own["timesteps"]), self.learner.devices)

    def reset(self, config: AlgorithmConfig) -> bool:
        self.config = config
        self.learner.reset(config)
        self._start()
        evaluation = config.get_evaluation_config_object()
        assert evaluation is not None
        self.env_runner.reset(config)
        self.eval_env_runner.callbacks = CallbackList.from_config(evaluation)
        self.eval_env_runner.reset(evaluation)
        self.env_runner_group.config, self.eval_env_runner_group.config = config, evaluation
        self.learner_group.config = config
        self._episode_replay = EpisodeReplay(self._call_episode_hook, *self.spaces[self.module_id])
        self.episode_metrics.reset()
        return True

    def stop(self) -> None:
        self.env_runner.stop()
        self.learner.shutdown()
        self._snapshots.forget()
        self.runner_state = self.replay_state = None


def _pure_pipelines(
    config: AlgorithmConfig, env: JaxEnv
) -> tuple[dict[str, Any], EnvToModulePipeline, ModuleToEnvPipeline]:
    """The environment's spaces, and both pipelines, which can be compiled."""
    single = (env.observation_space, env.action_space)
    spaces: dict[str, Any] = {"__env__": single, "__env_single__": single}
    env_to_module = config.build_env_to_module_connector(env=env, spaces=spaces)
    module_to_env = config.build_module_to_env_connector(env=env, spaces=spaces)
    env_to_module.check_pure()
    module_to_env.check_pure()
    return spaces, env_to_module, module_to_env


def _first_shard(rollout: DeviceRollout, num_envs: int, key: jax.Array) -> RunnerState:
    """Freshly reset environments as one device's slice ``[1, ...]``."""
    return jax.tree.map(lambda x: x[None], rollout.init(key, num_envs))
