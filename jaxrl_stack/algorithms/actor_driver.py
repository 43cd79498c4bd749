"""The actor driver: environments on the host, in this process or in Ray actors; updates as compiled programs."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import jax
import numpy as np

from jaxrl_stack.algorithms.driver import Driver, EpisodeStatistics, episode_results
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, DEFAULT_MODULE_ID
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.env.env_runner import episode_quota
from jaxrl_stack.env.env_runner_group import EnvRunnerGroup, merges_env_runner_states
from jaxrl_stack.env.recording import EndedEpisodes, newest_connector_states
from jaxrl_stack.env.resources import (
    RayLease,
    bundle_index,
    check_resources,
    create_placement_group,
    remove_placement_group,
    start_ray_if_needed,
)
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.execution.rollout_ops import sample_rounds
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.actor_setup import prepare_host_process
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.results import merge_nested

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.rl_module.rl_module import RLModule

SEED_STRIDE = 100_003
"""Between the seeds of two evaluations; prime, and more than any number of environments."""


class ActorDriver(Driver):
    """Trains on gymnasium environments.

    Args:
        algorithm, config, pure_training_step, callbacks: See `Driver`.
    """

    learner: Learner | None
    env_runner: SingleAgentEnvRunner | None

    def __init__(self, *args: Any):
        super().__init__(*args)
        config = self.config
        uses_actors = config.num_env_runners or config.num_learners or config.evaluation_num_env_runners
        if not (config.num_env_runners and config.num_learners):
            prepare_host_process()
        self._lease: RayLease | None = None
        self._placement_group: Any = None
        self._eval_group: EnvRunnerGroup | None = None
        try:
            if uses_actors:
                self._lease = start_ray_if_needed(config)
                check_resources(config)
                self._placement_group = create_placement_group(config)
            self.env_runner_group = self._make_group(
                config,
                "env_runner",
                local_env_runner=config.create_local_env_runner or not config.num_env_runners,
            )
            self.env_runner = cast("SingleAgentEnvRunner | None", self.env_runner_group.local_env_runner)
            self.spaces = self.env_runner_group.get_spaces()
            spec = config.get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: self.spaces[DEFAULT_MODULE_ID]})
            self.learner_group = LearnerGroup(
                config=config,
                module_spec=spec,
                placement_group=self._placement_group if config.num_learners else None,
            )
            self.learner = self.learner_group.local_learner
            if config.evaluation_interval or config.evaluation_num_env_runners:
                self._make_eval_group()
        except BaseException:
            self.stop()
            raise
        self._samples_blocks = self._can_sample_blocks()
        self._start()

    def _start(self) -> None:
        """No steps, no episodes, the learners' weights everywhere."""
        self.num_env_steps = 0
        self._window: collections.deque[tuple[float, int, float]] = collections.deque(
            maxlen=self.config.metrics_num_episodes_for_smoothing
        )
        self._num_episodes = 0
        self._learned: list[dict[str, Any]] = []
        self._timers: dict[str, float] = {}
        self._runner_metrics = MetricsLogger(root=True, stats_cls_lookup=self.config.stats_cls_lookup)
        self._sync_weights()

    def _make_group(
        self, config: AlgorithmConfig, role: Literal["env_runner", "eval_env_runner"], *, local_env_runner: bool
    ) -> EnvRunnerGroup:
        return EnvRunnerGroup(
            config=config,
            local_env_runner=local_env_runner,
            placement_group=self._placement_group,
            pg_offset=bundle_index(self.config, role) if config.num_env_runners else 0,
            is_evaluation=role == "eval_env_runner",
            on_env_runners_recreated=self._on_recreated,
        )

    def _on_recreated(self, group: EnvRunnerGroup, indices: list[int]) -> None:
        self.callbacks.on_env_runners_recreated(
            algorithm=self.algorithm,
            env_runner_group=group,
            env_runner_indices=indices,
            is_evaluation=group.is_evaluation,
        )

    # -------------------------------------------------------------------------------------------------- training

    def _can_sample_blocks(self) -> bool:
        """Whether a train batch is made of arrays as recorded, without episodes in between."""
        runner_class = self.config.env_runner_cls or self.config.get_default_env_runner_class()
        return (
            self.config.batch_mode == "truncate_episodes"
            and issubclass(runner_class, SingleAgentEnvRunner)
            and runner_class.sample is SingleAgentEnvRunner.sample
            and not self.learner_group.has_host_pieces
        )

    def start_iteration(self) -> None:
        super().start_iteration()
        self._timers = {}
        started = time.perf_counter()
        if self.env_runner_group.num_remote_env_runners():
            self.env_runner_group.probe_unhealthy_env_runners(timeout_seconds=0.0)
        self._clock("restore_env_runners", started)

    def _clock(self, name: str, started: float) -> float:
        now = time.perf_counter()
        self._timers[name] = self._timers.get(name, 0.0) + now - started
        return now

    def training_step(self, iteration: int) -> None:
        del iteration
        state = TrainState(
            learner=None,  # pyright: ignore[reportArgumentType] - the learners keep theirs
            runner=None,
            replay=None,
            timesteps=counters.from_int(self.num_env_steps),  # pyright: ignore[reportArgumentType]
        )
        blocks, episodes = self._sample_blocks, self._sample_episodes
        state, metrics = self.pure_training_step(
            state, None, sample_fn=blocks if self._samples_blocks else episodes, update_fn=self._update
        )
        self._learned = metrics["learners"]
        self._sync(metrics["env_runners"]["connector_states"])

    def _sample_blocks(self, state: TrainState, settings: Any) -> tuple[Any, Any, int, dict[str, Any]]:
        """A train batch: a fixed number of ``[T, B]`` blocks, however many runners answered."""
        del state, settings
        config = self.config
        started = time.perf_counter()
        length = config.get_rollout_fragment_length(1)
        num_runners = max(1, config.num_env_runners)
        per_round = num_runners * config.num_envs_per_env_runner * length
        wanted = num_runners * max(1, -(-config.total_train_batch_size // per_round))
        blocks = self.env_runner_group.sample_blocks(
            wanted,
            num_steps=length,
            keep_remote=self.learner_group.is_remote,
            timeout_seconds=config.sample_timeout_s,
        )
        self._take_in([block.episodes for block in blocks], [block.metrics for block in blocks])
        num_env_steps = sum(block.num_env_steps for block in blocks)
        self.num_env_steps += num_env_steps
        self._clock("env_runner_sampling_timer", started)
        return None, {"blocks": blocks}, num_env_steps, {"connector_states": newest_connector_states(blocks)}

    def _sample_episodes(self, state: TrainState, settings: Any) -> tuple[Any, Any, int, dict[str, Any]]:
        """A train batch of episodes: whole rounds over all runners until there are enough steps."""
        del state, settings
        started = time.perf_counter()
        group = self.env_runner_group
        samples = sample_rounds(
            group, self.config.total_train_batch_size, timeout_seconds=self.config.sample_timeout_s
        )
        self._take_in([sampled.ended for sampled in samples], [sampled.metrics for sampled in samples])
        episodes = [episode for sampled in samples for episode in sampled.episodes]
        num_env_steps = sum(sampled.num_env_steps for sampled in samples)
        states: list[dict[str, Any]] = []
        if merges_env_runner_states(self.config):
            states = group.foreach_env_runner(
                _connector_state, local_env_runner=group.num_remote_env_runners() == 0
            )
        self.num_env_steps += num_env_steps
        self._clock("env_runner_sampling_timer", started)
        return None, {"episodes": episodes}, num_env_steps, {"connector_states": [s for s in states if s]}

    def _take_in(self, ended: Sequence[EndedEpisodes], metrics: Sequence[dict[str, Any]]) -> None:
        self._runner_metrics.aggregate(list(metrics))
        for episodes in ended:
            self._num_episodes += len(episodes.returns)
            self._window.extend(
                zip(
                    episodes.returns.tolist(), episodes.lengths.tolist(), episodes.durations.tolist(), strict=True
                )
            )

    def _update(self, learner: Any, batch: dict[str, Any], settings: Any, timesteps: Any) -> tuple[Any, Any]:
        del learner, settings, timesteps
        config = self.config
        started = time.perf_counter()
        arguments: dict[str, Any] = {
            "timesteps": {"num_env_steps_sampled_lifetime": self.num_env_steps},
            "num_epochs": config.num_epochs,
            "minibatch_size": config.minibatch_size,
            "shuffle_batch_per_epoch": config.shuffle_batch_per_epoch,
        }
        if "blocks" in batch:
            results = self.learner_group.update_block(batch["blocks"], **arguments)
        else:
            results = self.learner_group.update(episodes=batch["episodes"], **arguments)
        self.device_seconds += self._clock("learner_update_timer", started) - started
        return None, results

    def _sync(self, connector_states: list[dict[str, Any]]) -> None:
        """Hand new weights and merged connector states to all runners, in one object."""
        started = time.perf_counter()
        merged = None
        if connector_states and merges_env_runner_states(self.config):
            runner = self.env_runner
            if runner is not None and not self.config.num_env_runners:
                # Its statistics are all there are: nothing to add up.
                runner.merge_connector_deltas()
            else:
                merged = self.env_runner_group.merge_connector_states(connector_states)
                if not self.config.broadcast_env_runner_states:
                    if runner is not None:
                        runner.set_state({COMPONENT_ENV_TO_MODULE_CONNECTOR: merged})
                    merged = None
        started = self._clock("synch_env_connectors", started)
        self._sync_weights(merged)
        self._clock("synch_weights", started)

    def _sync_weights(self, connector_state: dict[str, Any] | None = None) -> None:
        more: dict[str, Any] = {"num_env_steps_sampled_lifetime": self.num_env_steps}
        if connector_state is not None:
            more[COMPONENT_ENV_TO_MODULE_CONNECTOR] = connector_state
        self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group, more_state=more)

    @property
    def num_updates(self) -> int:
        return self.learner_group.num_updates

    def episode_statistics(self) -> EpisodeStatistics | None:
        if not self.num_env_steps:
            return None
        ended = EndedEpisodes.of(list(self._window))
        return EpisodeStatistics(ended.returns, ended.lengths, ended.durations, self._num_episodes)

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        del num_updates
        return mean_results(self._learned)

    def results(self) -> dict[str, Any]:
        group = self.env_runner_group
        out: dict[str, Any] = {
            "env_runners": self._runner_metrics.compile(),
            "timers": dict(self._timers),
            "fault_tolerance": {
                "num_healthy_workers": group.num_healthy_remote_env_runners(),
                "num_remote_worker_restarts": group.num_remote_worker_restarts(),
                "num_env_runners_dropped_lifetime": group.num_env_runners_dropped_lifetime(),
            },
            "env_runner_group": {"actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs()},
        }
        return out

    # ------------------------------------------------------------------------------------------------ evaluation

    def _make_eval_group(self) -> EnvRunnerGroup:
        if self._eval_group is None:
            config = self.config.get_evaluation_config_object()
            assert config is not None
            self._eval_group = self._make_group(
                config, "eval_env_runner", local_env_runner=not config.num_env_runners
            )
        return self._eval_group

    @property
    def eval_env_runner(self) -> SingleAgentEnvRunner | None:
        return cast("SingleAgentEnvRunner | None", self._make_eval_group().local_env_runner)

    @property
    def eval_env_runner_group(self) -> EnvRunnerGroup:
        return self._make_eval_group()

    def sync_evaluation(self) -> None:
        """Hand the current weights and the training runners' connector states to the evaluation runners."""
        state: dict[str, Any] = {"num_env_steps_sampled_lifetime": self.num_env_steps}
        connector = self._training_connector_state()
        if connector:
            state[COMPONENT_ENV_TO_MODULE_CONNECTOR] = connector
        self._make_eval_group().sync_weights(
            from_worker_or_learner_group=self.learner_group, more_state=state
        )

    def _training_connector_state(self) -> dict[str, Any]:
        if self.env_runner is not None:
            return _connector_state(self.env_runner)
        states = self.env_runner_group.foreach_env_runner(_connector_state)
        return states[0] if states else {}

    def evaluate(self, iteration: int, is_training: Callable[[], bool] | None = None) -> dict[str, Any]:
        group = self._make_eval_group()
        config = group.config
        started = time.perf_counter()
        if is_training is None:
            self.sync_evaluation()
        seed = SingleAgentEnvRunner.seed_of(config) + SEED_STRIDE * iteration
        logger = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        ended: list[EndedEpisodes] = []
        num_env_steps = 0

        def one_round(amounts: list[tuple[int, dict[str, int]]], seed: int | None) -> None:
            nonlocal num_env_steps
            for steps, episodes, metrics in group.sample_evaluation(
                amounts, seed=seed, timeout_seconds=config.evaluation_sample_timeout_s
            ):
                num_env_steps += steps
                ended.append(episodes)
                logger.aggregate([metrics])

        reset_seed = seed if config.evaluation_force_reset_envs_before_iteration else None
        ids = group.sampling_ids()
        if config.evaluation_duration == "auto":
            assert is_training is not None
            one_round([(i, {"num_timesteps": config.evaluation_auto_duration_min_env_steps_per_sample}) for i in ids],
                      reset_seed)
            while is_training():
                rate = num_env_steps / max(time.perf_counter() - started, 1e-9) / len(ids)
                steps = int(
                    np.clip(
                        rate,
                        config.evaluation_auto_duration_min_env_steps_per_sample,
                        config.evaluation_auto_duration_max_env_steps_per_sample,
                    )
                )
                one_round([(i, {"num_timesteps": steps}) for i in ids], None)
        else:
            duration = int(config.evaluation_duration)
            if config.evaluation_duration_unit == "episodes":
                share = episode_quota(duration, len(ids))
                amounts = [(i, {"num_episodes": n}) for i, n in zip(ids, share, strict=True) if n]
            else:
                amounts = [(i, {"num_timesteps": -(-duration // len(ids))}) for i in ids]
            one_round(amounts, reset_seed)
        returns = np.concatenate([e.returns for e in ended]) if ended else np.zeros(0)
        lengths = np.concatenate([e.lengths for e in ended]) if ended else np.zeros(0, int)
        durations = np.concatenate([e.durations for e in ended]) if ended else np.zeros(0)
        results = logger.compile()
        merge_nested(
            results,
            {
                **episode_results(returns, lengths, durations=durations),
                "num_episodes": len(returns),
                "num_env_steps_sampled": num_env_steps,
                "sample": time.perf_counter() - started,
            },
        )
        return {
            "env_runners": results,
            "num_healthy_workers": group.num_healthy_remote_env_runners(),
            "num_remote_worker_restarts": group.num_remote_worker_restarts(),
            "num_env_runners_dropped_lifetime": group.num_env_runners_dropped_lifetime(),
            "actor_manager_num_outstanding_async_reqs": group.num_in_flight_async_reqs(),
        }

    # ---------------------------------------------------------------------------------------------------- access

    def _local_runner(self, what: str) -> SingleAgentEnvRunner:
        if self.env_runner is None:
            raise ValueError(
                f"{what} needs an EnvRunner in this process. Set env_runners(create_local_env_runner=True)."
            )
        return self.env_runner

    def modules(self) -> dict[str, RLModule]:
        if self.learner is not None:
            return dict(self.learner.module.items())
        return {DEFAULT_MODULE_ID: self._local_runner("get_module()").module}

    @property
    def module_ids(self) -> tuple[str, ...]:
        return (DEFAULT_MODULE_ID,) if self.learner is None else self.learner.module_ids

    def act(self, observation: Any, *, explore: bool, key: jax.Array) -> dict[str, Any]:
        return self._local_runner("compute_single_action()").act(observation, explore=explore, key=key)

    @property
    def description(self) -> str:
        runners = self.config.num_env_runners
        learners = self.config.num_learners
        return (
            f"{runners or 'local'} env runner{'s' if runners > 1 else ''}, "
            f"{learners or 'local'} learner{'s' if learners > 1 else ''}"
        )

    # ----------------------------------------------------------------------------------------------------- state

    @property
    def metadata(self) -> dict[str, Any]:
        return {"driver": "actors", "num_devices": None}

    def state(self) -> dict[str, Any]:
        return {
            "learner_group": self.learner_group.get_state(),
            "env_runner": {COMPONENT_ENV_TO_MODULE_CONNECTOR: self._training_connector_state()},
        }

    def set_state(self, state: dict[str, Any], num_env_steps: int) -> None:
        self.learner_group.set_state(state["learner_group"])
        self.num_env_steps = num_env_steps
        self._sync_weights(state["env_runner"][COMPONENT_ENV_TO_MODULE_CONNECTOR] or None)

    def set_weights(self, weights: dict[str, Any]) -> None:
        """Replace weights in learners and runners."""
        self.learner_group.set_weights(weights)
        self._sync_weights()

    def reset(self, config: AlgorithmConfig) -> bool:
        runner_class = config.env_runner_cls or config.get_default_env_runner_class()
        if self.learner is None or not issubclass(runner_class, SingleAgentEnvRunner):
            return False
        self.config = config
        self.learner.reset(config)
        self.learner_group.config = self.env_runner_group.config = config
        self.env_runner_group.foreach_env_runner("reset", kwargs={"config": config})
        if self._eval_group is not None:
            evaluation = config.get_evaluation_config_object()
            assert evaluation is not None
            self._eval_group.config = evaluation
            self._eval_group.foreach_env_runner("reset", kwargs={"config": evaluation})
        self._start()
        return True

    def stop(self) -> None:
        # Also behind a constructor that failed half-way.
        for name in ("env_runner_group", "_eval_group"):
            group = vars(self).get(name)
            if group is not None:
                group.stop()
        if "learner_group" in vars(self):
            self.learner_group.shutdown()
        if self._placement_group is not None:
            remove_placement_group(self._placement_group)
            self._placement_group = None
        if self._lease is not None:
            self._lease.release()


def _connector_state(runner: Any) -> dict[str, Any]:
    return runner.get_state(COMPONENT_ENV_TO_MODULE_CONNECTOR)[COMPONENT_ENV_TO_MODULE_CONNECTOR]


def mean_results(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Metrics of several learners as one nested dict: steps trained add up, all other numbers are averaged."""
    if len(results) == 1:
        return results[0]
    out: dict[str, Any] = {}
    for key in dict.fromkeys(name for result in results for name in result):
        values = [result[key] for result in results if key in result]
        if isinstance(values[0], dict):
            out[key] = mean_results(values)
        elif "steps_trained" in key:
            out[key] = sum(values)
        else:
            out[key] = float(np.mean(values))
    return out
