"""Algorithm: builds everything from a config, runs iterations, and reports."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import functools
import logging
import os
import tempfile
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.config_data import config_from_data, config_to_data
from jaxrl_stack.algorithms.registry import get_algorithm_class, get_algorithm_config_class
from jaxrl_stack.algorithms.settings import same
from jaxrl_stack.callbacks.utils import CallbackList, overrides_episode_hooks
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner, nest_metrics
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.env.device_env_runner import DeviceEnvRunner
from jaxrl_stack.env.device_rollout import DeviceRollout
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup
from jaxrl_stack.env.episode_replay import EpisodeReplay, in_time_order
from jaxrl_stack.env.episode_window import EpisodeWindow, last_episodes
from jaxrl_stack.env.registry import resolve_env
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.ops.reductions import ravel
from jaxrl_stack.utils import checkpoints, counters
from jaxrl_stack.utils.compile_clock import CompileClock
from jaxrl_stack.utils.devices import (
    all_shards,
    enable_compilation_cache,
    host_view,
    map_over_devices,
    place_replicated,
    place_sharded,
)
from jaxrl_stack.utils.interrupts import deferred_interrupt
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.results import empty_result

if TYPE_CHECKING:
    from jaxrl_stack.core.rl_module.rl_module import RLModule

logger = logging.getLogger(__name__)

_USE_MODULE = "Use algorithm.get_module(module_id), or algorithm.compute_single_action(observation)."
_USE_CHECKPOINTS = "Use algorithm.save_to_path(path) and Algorithm.from_checkpoint(path)."
OLD_MEMBERS = {
    "get_policy": _USE_MODULE,
    "policy_map": _USE_MODULE,
    "add_policy": "Use algorithm.learner.add_module(module_id=..., module_spec=...).",
    "remove_policy": "Use algorithm.learner.remove_module(module_id).",
    "workers": "Use algorithm.env_runner_group.",
    "evaluation_workers": "Use algorithm.eval_env_runner_group.",
    "restore_workers": "There is nothing to restore: environments on the device have no actors.",
    "export_policy_model": _USE_CHECKPOINTS,
    "export_policy_checkpoint": _USE_CHECKPOINTS,
    "import_policy_model_from_h5": _USE_CHECKPOINTS,
    "from_state": _USE_CHECKPOINTS,
}
"""Members of RLlib's old API stack, and what to use instead."""


@dataclasses.dataclass(frozen=True)
class _Progress:
    """How far a run was: what "since restore" counts from."""

    iteration: int = 0
    num_env_steps: int = 0
    time_total: float = 0.0


class Algorithm:
    """Trains the modules of a config, one `train` call per iteration.

    Args:
        config: An `AlgorithmConfig`; a frozen, validated copy is kept.
        env: Overrides ``config.env``.

    Attributes:
        config: The frozen config.
        metrics: A `MetricsLogger` for callbacks and user code; what is logged appears in the next result.
        callbacks: Calls the hooks of ``config.callbacks``.
        learner: The local Learner.
    """

    def __init__(self, config: AlgorithmConfig, env: Any = None, **kwargs: Any):
        if kwargs:
            raise TypeError(f"{type(self).__name__}() got unknown arguments {sorted(kwargs)}; it takes config and env.")
        if isinstance(config, dict):
            config = self.get_default_config().update_from_dict(config)
        config = config.copy(copy_frozen=False)
        if env is not None:
            config.environment(env)
        config.validate()
        config.freeze()
        self.config = config
        self.metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        self.setup(config)

    @classmethod
    def get_default_config(cls) -> AlgorithmConfig:
        """The default config of this algorithm."""
        return AlgorithmConfig(algo_class=cls)

    pure_training_step: Callable[..., Any]
    """The algorithm's shape of a training step, a function of `execution`; both drivers run it."""

    # ------------------------------------------------------------------------------------------------------ setup

    def setup(self, config: AlgorithmConfig) -> None:
        """Build environment, modules, learner and the compiled iteration."""
        logging.getLogger("jaxrl_stack").setLevel(config.log_level)
        self._started = time.time()
        self._iteration = 0
        self._time_total = 0.0
        self._clock = CompileClock()
        self._evaluation_metrics: dict[str, Any] = {}
        self._is_stopped = False
        enable_compilation_cache(config.compilation_cache_dir or None)
        self.callbacks = CallbackList.from_config(config)
        self._watches_episodes = overrides_episode_hooks(self.callbacks)
        self._episode_metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        if self._watches_episodes:
            notice_once(
                "Callbacks on episodes are set: every iteration copies its trajectories to the host and replays them "
                "step by step there, which costs far more than the sampling itself."
            )
        with self._eager_if_asked():
            self._build_on_device(config)
        self.callbacks.on_algorithm_init(algorithm=self, metrics_logger=self.metrics)

    def _eager_if_asked(self):
        return jax.disable_jit(bool(self.config.disable_jit))

    def _build_on_device(self, config: AlgorithmConfig) -> None:
        # Before anything touches the backend: gymnax starts it on import, and the number of CPU devices is fixed then.
        learner_class = config.learner_class
        devices = learner_class.devices_of(config)
        resolved = resolve_env(config.env, config.env_config)
        if not resolved.is_jax:
            raise NotImplementedError(
                f"environment({config.env!r}) is a host environment, and the actor driver for those comes later. JAX "
                f"environments train on the device: environment('gymnax/CartPole-v1'), for example."
            )
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
        self.spaces = {
            "__env__": (env.observation_space, env.action_space),
            "__env_single__": (env.observation_space, env.action_space),
        }
        env_to_module = config.build_env_to_module_connector(env=env, spaces=self.spaces)
        module_to_env = config.build_module_to_env_connector(env=env, spaces=self.spaces)
        for pipeline in (env_to_module, module_to_env):
            pipeline.check_pure()
        module_spaces = (env_to_module.observation_space, env_to_module.action_space)
        self.spaces[DEFAULT_MODULE_ID] = module_spaces
        spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: module_spaces})
        self.learner: Learner = learner_class(config=config, module_spec=spec)
        self.learner.build()
        self.learner.check_connector_is_pure()
        self.learner_group = LearnerGroup(config=config, learner=self.learner)
        self._fragment_length, self._num_rounds = self._train_batch_shape(config)
        self._plan = self.learner.plan(
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        num_columns = self._num_envs * self._num_rounds
        if num_columns % self._plan.num_shards:
            raise ValueError(
                f"num_shuffle_shards={self._plan.num_shards} must divide the {num_columns} columns of a train batch "
                f"(num_envs_per_env_runner={self._num_envs} times {self._num_rounds} fragments), which it deals out. "
                f"Use fewer shards, or more environments."
            )
        self._rollout = DeviceRollout(
            env=env,
            module_id=DEFAULT_MODULE_ID,
            pure=self.learner.pure,
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            clip_rewards=config.clip_rewards,
            window_size=config.metrics_num_episodes_for_smoothing,
        )
        key = jax.random.fold_in(jax.random.key(self._seed), 2)
        per_device = self._num_envs // num_devices
        # One program for all devices' shards, on the host: vmapping over devices would trace the env once more.
        init = jax.jit(functools.partial(self._rollout.init, num_envs=per_device))
        shards = [init(jax.random.fold_in(key, d)) for d in range(num_devices)]
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *shards)
        self._runner_state: Any = place_sharded(stacked, self.learner.devices)
        self._timesteps = place_replicated(counters.zero(), self.learner.devices)
        self.env_runner = DeviceEnvRunner(
            config=config,
            rollout=self._rollout,
            learner=self.learner,
            connector_state=lambda: jax.tree.map(lambda x: x[0], host_view(self._runner_state.env_to_module)),
        )
        self.env_runner_group = EnvRunnerGroup(self.env_runner)
        self.eval_env_runner = self._make_evaluation_runner()
        self.eval_env_runner_group = EnvRunnerGroup(self.eval_env_runner)
        self._episode_replay = EpisodeReplay(self._call_episode_hook, *module_spaces)
        self.callbacks.on_environment_created(
            env_runner=self.env_runner,
            metrics_logger=self._episode_metrics,
            env=env,
            env_context=resolved.context,
        )
        self._iterate = map_over_devices(
            self._iteration_program,
            self.learner.devices,
            axis_name=self.learner.axis_name,
            in_axes=(None, 0, None, None),
            out_axes=(None, 0, None, None, 0, 0),
            donate_argnums=(0, 1, 2),
        )

    def _make_evaluation_runner(self) -> DeviceEnvRunner:
        """A runner with the evaluation config; it shares modules and pipelines with training."""
        config = self.config.get_evaluation_config_object()
        assert config is not None
        env = self._rollout.env
        if not same(
            (config.env, config.env_config), (self.config.env, self.config.env_config)
        ):
            env = resolve_env(config.env, config.env_config).make()
            for name in ("observation_space", "action_space"):
                if getattr(env, name) != getattr(self._rollout.env, name):
                    raise ValueError(
                        f"The evaluation environment's {name} is {getattr(env, name)}; in training it is "
                        f"{getattr(self._rollout.env, name)}. evaluation_config may change what happens in the "
                        f"environment, not its spaces."
                    )
        return DeviceEnvRunner(
            config=config,
            rollout=dataclasses.replace(self._rollout, env=env),
            learner=self.learner,
            connector_state=self.env_runner.connector_state,
        )

    def _call_episode_hook(self, hook: str, env_index: int, episode: Any) -> None:
        self.callbacks.call(
            hook,
            episode=episode,
            env_runner=self.env_runner,
            metrics_logger=self._episode_metrics,
            env=self.env_runner.env,
            env_index=env_index,
            rl_module=self.env_runner.module,
            **({"prev_episode_chunks": []} if hook == "on_episode_end" else {}),
        )

    @property
    def _seed(self) -> int:
        return 0 if self.config.seed is None else int(self.config.seed)

    def _train_batch_shape(self, config: AlgorithmConfig) -> tuple[int, int]:
        """``(T, R)``: a train batch is R fragments of T steps of every environment, R as small as covers it."""
        length = config.get_rollout_fragment_length()
        return length, max(1, -(-config.total_train_batch_size // (length * self._num_envs)))

    # ------------------------------------------------------------------------------------------ the compiled part

    def _iteration_program(self, learner, runner, timesteps, settings):
        """One training step on one device of the learner: sample, update, report. Traced once."""
        state = TrainState(learner=learner, runner=runner, replay=None, timesteps=timesteps)
        step = type(self).pure_training_step
        state, metrics = step(state, settings, sample_fn=self._sample_on_device, update_fn=self._update_on_device)
        sampled = metrics["env_runners"]
        # All numbers for the host in two vectors: fetching a dozen scalars takes longer than a small iteration.
        learned, self._unpack_learned = ravel(metrics["learners"])
        return state.learner, state.runner, state.timesteps, learned, sampled["window"], sampled["block"]

    def _sample_on_device(self, state: TrainState, settings: Any):
        values = self.learner.current_values(settings, state.learner.timesteps)["modules"]
        runner, columns, _ = self._rollout.sample(
            state.runner,
            state.learner.params,
            state.learner.rest,
            values,
            state.timesteps,
            fragment_length=self._fragment_length,
            num_rounds=self._num_rounds,
            explore=bool(self.config.explore),
            axis_name=self.learner.axis_name,
        )
        # Every vector step of a JAX environment is a step of every environment: nothing is masked.
        sampled = {"window": runner.window.packed(), "block": columns if self._watches_episodes else ()}
        return runner, {DEFAULT_MODULE_ID: columns}, self._steps_per_iteration, sampled

    def _update_on_device(self, learner, batch, settings, timesteps):
        axis_name = self.learner.axis_name
        return self.learner.pure_update(learner, batch, settings, timesteps, plan=self._plan, axis_name=axis_name)

    @property
    def _steps_per_iteration(self) -> int:
        return self._fragment_length * self._num_rounds * self._num_envs

    # --------------------------------------------------------------------------------------------------- training

    def training_step(self) -> None:
        """One training step: sample a train batch and update from it. Override it to change the order of things.

        An override logs into ``self.metrics`` and returns None.
        """
        learner = self.learner
        steps = {"num_env_steps_sampled_lifetime": self._num_env_steps + self._steps_per_iteration}
        if learner.has_host_hooks:
            learner.before_gradient_based_update(timesteps=steps)
        started = time.perf_counter()
        # Donated buffers are replaced in the statement that donates them: whatever interrupts what follows, the
        # algorithm stays usable.
        settings = learner.placed_settings()
        with deferred_interrupt():
            learner.state, self._runner_state, self._timesteps, learned, window, block = self._iterate(
                learner.state, self._runner_state, self._timesteps, settings
            )
            self._num_env_steps += self._steps_per_iteration
        self._last_learned = self._unpack_learned(np.asarray(host_view(learned)))
        self._last_window = EpisodeWindow.unpacked(np.asarray(window))
        self._device_seconds += time.perf_counter() - started
        learner.raise_if_not_finite(self._last_learned, iteration=self._iteration + 1)
        if learner.has_host_hooks:
            learner.after_gradient_based_update(timesteps=steps)
        if self._watches_episodes:
            columns = in_time_order(all_shards(block), len(learner.devices), self._num_rounds)
            episodes = self._episode_replay.replay(columns)
            self.callbacks.on_sample_end(
                env_runner=self.env_runner, metrics_logger=self._episode_metrics, samples=episodes
            )

    _restored_at = _Progress()
    _num_env_steps = 0
    _device_seconds = 0.0
    _last_learned: dict[Any, Any] = {}
    _last_window: Any = None

    def train(self) -> dict[str, Any]:
        """Run one iteration.

        Returns:
            RLlib's nested result dict; every key is there from the first iteration on, NaN until known.
            ``timers/{compile,device,host}_s`` split the iteration's wall time.
        """
        self._check_is_running()
        config = self.config
        started, steps_before = time.perf_counter(), self._num_env_steps
        updates_before = self.learner.num_updates
        episodes_before = self._episodes_lifetime()
        self._device_seconds = 0.0
        self._clock.reset()
        calls = 0
        with self._eager_if_asked():
            while calls == 0 or not self._iteration_is_long_enough(started, steps_before):
                out = self.training_step()
                if out is not None:
                    raise ValueError(
                        f"{type(self).__name__}.training_step() returned {type(out).__name__}; it must return None and "
                        f"log into self.metrics."
                    )
                calls += 1
        training_seconds = time.perf_counter() - started
        self._iteration += 1
        result = self._training_result(steps_before, updates_before, episodes_before, calls, training_seconds)
        interval = config.evaluation_interval
        if interval and self._iteration % interval == 0:
            _merge(result, {"evaluation": self.evaluate()})
        elapsed = time.perf_counter() - started
        self._time_total += elapsed
        compile_s = min(self._clock.seconds, elapsed)
        device_s = max(0.0, self._device_seconds - compile_s)
        result["env_runners"] |= self._episode_metrics.compile()
        result["timers"] |= {
            "training_iteration": elapsed,
            "training_step": training_seconds / calls,
            "compile_s": compile_s,
            "device_s": device_s,
            "host_s": max(0.0, elapsed - compile_s - device_s),
        }
        result |= {
            "time_this_iter_s": elapsed,
            "time_total_s": self._time_total,
            "time_since_restore": self._time_total - self._restored_at.time_total,
            "iterations_since_restore": self._iteration - self._restored_at.iteration,
        }
        _merge(result, self.metrics.compile())
        self.callbacks.on_train_result(algorithm=self, metrics_logger=self.metrics, result=result)
        return result

    def _iteration_is_long_enough(self, started: float, steps_before: int) -> bool:
        config = self.config
        sampled = self._num_env_steps - steps_before
        return (
            sampled >= (config.min_sample_timesteps_per_iteration or 0)
            and sampled >= (config.min_train_timesteps_per_iteration or 0)
            and time.perf_counter() - started >= (config.min_time_s_per_iteration or 0.0)
        )

    def _episodes_lifetime(self) -> int:
        return 0 if self._last_window is None else int(self._last_window.num_episodes.astype(np.int64).sum())

    def _empty_result(self) -> dict[str, Any]:
        module_ids = self.learner.module_ids
        if self._result_template is None or self._result_template[0] != module_ids:
            template = empty_result(module_ids, evaluation=bool(self.config.evaluation_interval))
            self._result_template = (module_ids, template)
        return _copied(self._result_template[1])

    _result_template: tuple[Any, dict[str, Any]] | None = None

    def _training_result(
        self, steps_before: int, updates_before: int, episodes_before: int, calls: int, seconds: float
    ) -> dict[str, Any]:
        result = self._empty_result()
        sampled = self._num_env_steps - steps_before
        window = self._last_window
        now = datetime.datetime.now()
        if window is not None:
            returns, lengths = last_episodes(window)
            seconds_per_step = seconds / max(1, sampled / self._num_envs)
            result["env_runners"] |= episode_statistics(returns, lengths, seconds_per_step)
        lifetime = self._episodes_lifetime()
        result["env_runners"] |= {
            "num_episodes": lifetime - episodes_before,
            "num_episodes_lifetime": lifetime,
            "num_env_steps_sampled": sampled,
            "num_env_steps_sampled_lifetime": self._num_env_steps,
            "num_env_steps_sampled_lifetime_throughput": {
                "throughput_since_last_reduce": sampled / seconds,
                "throughput_since_last_restore": (self._num_env_steps - self._restored_at.num_env_steps)
                / max(self._time_total + seconds - self._restored_at.time_total, 1e-9),
            },
            "weights_seq_no": self.learner.num_updates,
        }
        for kind in ("agent", "module"):
            member = "default_agent" if kind == "agent" else DEFAULT_MODULE_ID
            result["env_runners"][f"num_{kind}_steps_sampled"] = {member: sampled}
            result["env_runners"][f"num_{kind}_steps_sampled_lifetime"] = {member: self._num_env_steps}
            # RLlib names these in the singular for one agent and in the plural for several; scripts read both.
            for name in (f"{kind}_episode_return_mean", f"{kind}_episode_returns_mean"):
                result["env_runners"][name] = {member: result["env_runners"]["episode_return_mean"]}
        _merge(result["learners"], nest_metrics(self._last_learned))
        num_updates = self.learner.num_updates - updates_before
        _merge(result["learners"], self.learner.training_counts(self._plan, self._steps_per_iteration, num_updates))
        _merge(result["learners"], self.learner.metrics_logger.compile())
        result |= {
            "num_env_steps_sampled_lifetime": self._num_env_steps,
            "num_env_steps_sampled_lifetime_throughput": sampled / seconds,
            "num_training_step_calls_per_iteration": calls,
            "training_iteration": self._iteration,
            "timestamp": int(now.timestamp()),
            "date": now.strftime("%Y-%m-%d_%H-%M-%S"),
            "pid": os.getpid(),
            "hostname": self.learner.node,
            "done": False,
        }
        return result

    # ------------------------------------------------------------------------------------------------- evaluation

    def evaluate(self, parallel_train_future: Any = None) -> dict[str, Any]:
        """Evaluate the current weights on fresh environments.

        Exactly ``evaluation_duration`` episodes (or at least so many timesteps) are run, without favouring short
        ones; seeds follow from the config's seed and the iteration, and the training state is left as it is.

        Returns:
            What ``result["evaluation"]`` holds: ``{"env_runners": {...}}``.
        """
        self._check_is_running()
        if parallel_train_future is not None:
            raise NotImplementedError("evaluate(parallel_train_future=...): parallel evaluation comes later.")
        self.callbacks.on_evaluate_start(algorithm=self, metrics_logger=self.metrics)
        config = self.eval_env_runner.config
        if config.custom_evaluation_function is not None:
            metrics, num_steps, _ = config.custom_evaluation_function(self, self.eval_env_runner_group)
            metrics = {"env_runners": {**metrics, "num_env_steps_sampled": num_steps}}
        else:
            metrics = {"env_runners": self._evaluate_on_device(config)}
        self.callbacks.on_evaluate_end(
            algorithm=self, metrics_logger=self.metrics, evaluation_metrics=metrics
        )
        self._evaluation_metrics = metrics
        return metrics

    def _evaluate_on_device(self, config: AlgorithmConfig) -> dict[str, Any]:
        duration = int(config.evaluation_duration)
        in_episodes = config.evaluation_duration_unit == "episodes"
        seed = 0 if config.seed is None else int(config.seed)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 4), self._iteration)
        started = time.perf_counter()
        with self._eager_if_asked():
            num_envs = int(config.num_envs_per_env_runner)
            out = self.eval_env_runner.evaluate(
                num_envs=min(duration, num_envs),
                reset=bool(config.evaluation_force_reset_envs_before_iteration),
                key=key,
                explore=bool(config.explore),
                num_episodes=duration if in_episodes else None,
                num_timesteps=None if in_episodes else duration,
                timeout_s=config.evaluation_sample_timeout_s,
            )
        seconds = time.perf_counter() - started
        stats = episode_statistics(out["returns"], out["lengths"], seconds / max(1, out["num_env_steps"]))
        return {
            **stats,
            "num_episodes": len(out["returns"]),
            "num_env_steps_sampled": out["num_env_steps"],
            "num_env_steps_sampled_lifetime": out["num_env_steps"],
            "sample": seconds,
        }

    # ----------------------------------------------------------------------------------------------------- access

    @property
    def iteration(self) -> int:
        """Iterations done so far."""
        return self._iteration

    @property
    def training_iteration(self) -> int:
        """Iterations done so far."""
        return self._iteration

    def get_module(self, module_id: str = DEFAULT_MODULE_ID) -> RLModule:
        """The module with the current weights.

        Training does not touch it; it keeps these weights until the next call, which brings the same object up to
        date.

        Raises:
            KeyError: If there is no such module.
        """
        self._check_is_running()
        modules = self.learner.module
        if module_id not in modules:
            raise KeyError(f"No module {module_id!r}; there are {list(modules)}.")
        return modules[module_id]

    def get_weights(self, policies: Collection[str] | None = None) -> dict[str, Any]:
        """``{module_id: {name: array}}``: copies of the current weights of the named modules, or of all."""
        return self.learner_group.get_weights(policies)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Take over what `get_weights` returned; modules that it leaves out keep theirs."""
        self.learner_group.set_weights(weights)

    def compute_single_action(
        self,
        observation: Any,
        state: Any = None,
        *,
        explore: bool | None = None,
        policy_id: str = DEFAULT_MODULE_ID,
        full_fetch: bool = False,
    ) -> Any:
        """The action for one observation of the environment, through both connector pipelines.

        Connectors that keep a history per episode (frame stacks, previous actions) see the observation as the first
        of an episode.

        Args:
            observation: One observation, without batch axis, as the environment gives it.
            state: Must be None or empty: there are no recurrent modules yet.
            explore: Sample the action or take the greedy one; None for ``config.explore``.
            policy_id: Must be a module of this algorithm.
            full_fetch: Also return the recurrent state and the module's outputs.

        Returns:
            The action as the environment takes it (NumPy); with `full_fetch`, ``(action, state, outputs)``.

        Raises:
            ValueError: If the observation does not fit the observation space.
        """
        self._check_is_running()
        if policy_id not in self.learner.module_ids:
            raise KeyError(f"No module {policy_id!r}; there are {list(self.learner.module_ids)}.")
        if state:
            raise ValueError(f"compute_single_action(state={state!r}): module {policy_id!r} has no recurrent state.")
        explore = bool(self.config.explore) if explore is None else bool(explore)
        self._action_count += 1
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(self._seed), 5), self._action_count)
        outputs = self.env_runner.act(observation, explore=explore, key=key)
        action = outputs.pop(Columns.ACTIONS_FOR_ENV)
        return (action, {}, outputs) if full_fetch else action

    def compute_actions(self, observations: dict[Any, Any], **kwargs: Any) -> dict[Any, Any]:
        """`compute_single_action` for every observation of a dict."""
        return {name: self.compute_single_action(obs, **kwargs) for name, obs in observations.items()}

    _action_count = 0

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save_to_path(self, path: str | os.PathLike[str] | None = None) -> str:
        """Write the whole training state: weights, optimizers, filters, environments, PRNG keys, counters.

        Args:
            path: Directory; None makes a new one in the temporary folder.

        Returns:
            The directory's path.
        """
        self._check_is_running()
        if path is None:
            path = os.path.join(tempfile.mkdtemp(prefix=f"{type(self).__name__}_"), "checkpoint")
        settings, left_out = config_to_data(self.config)
        if left_out:
            notice_once(
                f"The checkpoint does not store these settings, which hold code or objects: {left_out}. Pass the "
                f"config to from_checkpoint(path, config=...) when loading it."
            )
        metadata = {
            "algorithm": self.config.algo_class if isinstance(self.config.algo_class, str) else type(self).__name__,
            "config": settings,
            "config_left_out": left_out,
            "iteration": self._iteration,
            "num_env_steps_sampled_lifetime": self._num_env_steps,
            "time_total_s": self._time_total,
            "num_devices": len(self.learner.devices),
        }
        return checkpoints.save(path, self._checkpoint_arrays(), metadata)

    def _checkpoint_arrays(self) -> dict[str, Any]:
        return {
            "learner": host_view(self.learner.state),
            "runner": all_shards(self._runner_state),
            "timesteps": host_view(self._timesteps),
        }

    def restore_from_path(self, path: str | os.PathLike[str]) -> None:
        """Take over a training state written by `save_to_path` of an algorithm with the same settings.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it does not fit; nothing is changed then.
        """
        self._check_is_running()
        metadata = checkpoints.load_metadata(path)
        saved_on, here = metadata["num_devices"], len(self.learner.devices)
        if saved_on != here:
            raise ValueError(
                f"The checkpoint at {path} was written on {saved_on} device(s), and this algorithm runs on {here}: its "
                f"environments are laid out for that number. Build it with learners(num_cpus_per_learner={saved_on}) "
                f"or as many accelerators, or move the weights alone with get_weights() and set_weights()."
            )
        arrays = checkpoints.load_arrays(path, self._checkpoint_arrays())
        self.learner.place(arrays["learner"])
        self._runner_state = place_sharded(arrays["runner"], self.learner.devices)
        self._timesteps = place_replicated(arrays["timesteps"], self.learner.devices)
        self._iteration = metadata["iteration"]
        self._num_env_steps = metadata["num_env_steps_sampled_lifetime"]
        self._time_total = metadata["time_total_s"]
        self._restored_at = _Progress(self._iteration, self._num_env_steps, self._time_total)
        self._last_window = all_shards(self._runner_state.window)
        self.callbacks.on_checkpoint_loaded(algorithm=self)

    @classmethod
    def from_checkpoint(cls, path: str | os.PathLike[str], config: AlgorithmConfig | None = None) -> Algorithm:
        """Build the algorithm of a checkpoint and restore its state.

        Args:
            path: A directory written by `save_to_path`.
            config: The config to build from; None for the one in the checkpoint. Needed if that one held functions
                or classes of your own, which a checkpoint does not store.

        Raises:
            ValueError: If the checkpoint is of another algorithm, or needs `config`.
        """
        metadata = checkpoints.load_metadata(path)
        if config is None:
            algorithm_class = get_algorithm_class(metadata["algorithm"])
            if not issubclass(algorithm_class, cls):
                raise ValueError(f"The checkpoint at {path} is of {algorithm_class.__name__}, not of {cls.__name__}.")
            if metadata["config_left_out"]:
                raise ValueError(
                    f"The checkpoint at {path} does not store the settings {metadata['config_left_out']}, which hold "
                    f"code or objects. Pass the config: from_checkpoint(path, config=...)."
                )
            config = config_from_data(get_algorithm_config_class(metadata["algorithm"]), metadata["config"])
        algorithm = config.build_algo()
        algorithm.restore_from_path(path)
        return algorithm

    def save(self, checkpoint_dir: str | os.PathLike[str] | None = None) -> str:
        """See `save_to_path`."""
        return self.save_to_path(checkpoint_dir)

    def restore(self, checkpoint_path: str | os.PathLike[str]) -> None:
        """See `restore_from_path`."""
        self.restore_from_path(checkpoint_path)

    # ------------------------------------------------------------------------------------------------------- life

    def __repr__(self) -> str:
        devices = f"{len(self.learner.devices)} {self.learner.device.platform} device(s)"
        return (
            f"{type(self).__name__}(env={self.env_runner.env.name}, iteration={self._iteration}, "
            f"num_env_steps_sampled_lifetime={self._num_env_steps:,}, {devices})"
        )

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name in OLD_MEMBERS:
                raise AttributeError(f"{type(self).__name__}.{name} is gone. {OLD_MEMBERS[name]}")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check_is_running(self) -> None:
        if self._is_stopped:
            raise RuntimeError(f"This {type(self).__name__} was stopped; build a new one from its config.")

    def stop(self) -> None:
        """Release devices and runners. The algorithm cannot train afterwards."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.cleanup()

    def cleanup(self) -> None:
        """Free what `setup` made."""
        self.env_runner.stop()
        self.learner.shutdown()
        self._runner_state = None


def episode_statistics(returns: np.ndarray, lengths: np.ndarray, seconds_per_step: float) -> dict[str, float]:
    """Mean, min and max of episodes; NaN where there are none.

    Args:
        returns: float ``[n]``.
        lengths: int ``[n]``.
        seconds_per_step: Wall time of one step of one environment, for the durations.
    """
    if len(returns) == 0:
        nan = float("nan")
        names = ("episode_return", "episode_len")
        return {f"{n}_{how}": nan for n in names for how in ("mean", "min", "max")} | {
            "episode_duration_sec_mean": nan
        }
    return {
        "episode_return_mean": float(np.mean(returns, dtype=np.float64)),
        "episode_return_min": float(np.min(returns)),
        "episode_return_max": float(np.max(returns)),
        "episode_len_mean": float(np.mean(lengths)),
        "episode_len_min": int(np.min(lengths)),
        "episode_len_max": int(np.max(lengths)),
        "episode_duration_sec_mean": float(np.mean(lengths)) * seconds_per_step,
    }


def _copied(tree: dict[str, Any]) -> dict[str, Any]:
    """Nested dicts copied, their values shared."""
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    """Merge nested dicts; values of `new` win."""
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = copy.copy(value)
