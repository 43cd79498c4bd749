"""The actor driver of off-policy algorithms: sample into a replay buffer, update from what is drawn from it."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxrl_stack.acting.recording import SampleBlock, newest_connector_states
from jaxrl_stack.core import COMPONENT_REPLAY_BUFFER
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.execution.actor_driver import ActorDriver, mean_results
from jaxrl_stack.execution.off_policy import memory_estimates, td_errors
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.replay.episode_replay_buffer import BATCH_INDEXES
from jaxrl_stack.replay.prioritized_episode_buffer import PrioritizedEpisodeReplayBuffer
from jaxrl_stack.utils import counters
from jaxrl_stack.utils import metrics as names
from jaxrl_stack.utils.metrics.metrics_logger import MetricsLogger
from jaxrl_stack.utils.seeds import derived_seed

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig
    from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
    from jaxrl_stack.utils.memory import MemoryEstimate

logger = logging.getLogger(__name__)


class OffPolicyActorDriver(ActorDriver):
    """Trains on a replay buffer in this process, which all EnvRunners fill.

    Blocks of steps go from the runners' arrays straight into the buffer's, without episodes in between; runners
    that only give episodes (``batch_mode="complete_episodes"``, classes with a `sample` of their own) work, too.

    Args:
        algorithm, config, pure_training_step, callbacks: See `Driver`.

    Attributes:
        replay_buffer: Holds what was sampled.
    """

    config: OffPolicyConfig
    replay_buffer: EpisodeReplayBuffer

    # -------------------------------------------------------------------------------------------------- building

    def _memory_estimates(self, *spaces: gym.Space | None) -> tuple[MemoryEstimate, MemoryEstimate]:
        return memory_estimates(self.config, *spaces, **{BATCH_INDEXES: 8})

    def _prepare_learning(self) -> None:
        self.replay_buffer = self._make_replay_buffer()
        self.replay_memory = self.replay_buffer.memory_estimate()
        logger.info("%s.", self.replay_memory)

    def _make_replay_buffer(self) -> EpisodeReplayBuffer:
        config = self.config
        buffer_class = config.replay_buffer_class
        observation_space, action_space = self.spaces[self.module_id]
        own = {
            "observation_space": observation_space,
            "action_space": action_space,
            # Losses see what the module puts out now, not what it did then.
            "extra_columns": (),
            "store_infos": False,
            "seed": derived_seed("replay", config.root_seed),
        }
        parameters = inspect.signature(buffer_class).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            own = {p.name: own[p.name] for p in parameters if p.name in own}
        buffer = buffer_class(**{**own, **config.replay_buffer_kwargs})
        buffer.observation_space, buffer.action_space = observation_space, action_space
        return buffer

    def _start(self) -> None:
        config = self.config
        self._check_learner_pipeline()
        self._num_env_steps_trained = 0
        self._blocks: list[SampleBlock] = []
        self._connector_states: list[dict[str, Any]] = []
        self._replay_metrics = MetricsLogger(root=True, stats_cls_lookup=config.stats_cls_lookup)
        # Worked out once: a training step may take less than a millisecond.
        self._rounds = config.rounds_per_training_step
        # That of the module, with which its loss discounts the bootstrap value after the window.
        gamma = config.get_config_for_module(self.module_id).gamma
        self._draw_arguments = {"n_step": config.n_step, "gamma": gamma, "beta": config.replay_beta}
        if config.clip_rewards:
            # Left out otherwise: buffers of one's own need not know of it.
            self._draw_arguments["clip_rewards"] = config.clip_rewards
        self._batch_size = int(config.total_train_batch_size)
        self._fragment_length = config.get_rollout_fragment_length(1)
        local = self._samples_blocks and not config.num_env_runners
        self._local_sampler = self.env_runner if local else None
        # With both in this process, parameters stay where they are: no copies for the runner.
        self._sharing_runner = None if self.learner is None else self._local_sampler
        super()._start()

    def _check_learner_pipeline(self) -> None:
        on_host = self.learner_group.host_connector_names
        if on_host:
            raise ValueError(
                f"The learner pipeline's {on_host} run on the host, on episodes, and {type(self.algorithm).__name__} "
                f"learns from rows that are drawn from a replay buffer. Write them as pure functions, "
                f"apply(self, state, batch, ctx), which see the rows as one time step [1, N, ...]."
            )

    def reset(self, config: Any) -> bool:
        if not super().reset(config):
            return False
        # Both together may not fit.
        self.replay_buffer._forget()
        self.replay_buffer = self._make_replay_buffer()
        return True

    # -------------------------------------------------------------------------------------------------- training

    @property
    def num_env_steps_trained(self) -> int:
        return self._num_env_steps_trained

    @property
    def _has_learning_started(self) -> bool:
        enough = self.num_env_steps >= self.config.num_steps_sampled_before_learning_starts
        return enough and len(self.replay_buffer) > 0

    def training_step(self, iteration: int) -> None:
        del iteration
        state = self._train_state(self.replay_buffer)
        num_samples, num_updates = self._rounds
        blocks = self._samples_blocks
        functions = {
            "sample_fn": self._sample_blocks if blocks else self._sample_episodes,
            "store_fn": self._store_blocks if blocks else self._store_episodes,
            "sample_replay_fn": self._sample_replay,
            "update_fn": self._update,
            "update_priorities_fn": self._update_priorities,
            "repeat_fn": _repeat,
        }
        updates_before = self.num_updates
        if self._has_learning_started:
            self.pure_training_step(state, None, **functions, num_samples=num_samples, num_updates=num_updates)
        else:
            # Only what was sampled tells whether learning starts after it.
            state, _ = self.pure_training_step(state, None, **functions, num_samples=num_samples, num_updates=0)
            if self._has_learning_started:
                self.pure_training_step(state, None, **functions, num_samples=0, num_updates=num_updates)
        connector_states = newest_connector_states(self._blocks) if self._blocks else self._connector_states
        self._blocks, self._connector_states = [], []
        if connector_states or self.num_updates != updates_before:
            self._sync(connector_states)

    def _sample_blocks(self, state: TrainState, settings: Any) -> tuple[Any, list[SampleBlock], int, None]:
        """One block of every runner, or as many of those that are well."""
        del state, settings
        config = self.config
        started = time.perf_counter()
        num_steps = self._fragment_length
        if self._local_sampler is not None:
            blocks = [self._local_sampler.sample_block(num_steps=num_steps, takes_metrics=False)]
        else:
            shares = [{"num_steps": num_steps}] * config.num_env_runners
            blocks = self.env_runner_group.sample("sample_block", shares, timeout_seconds=config.sample_timeout_s)
        num_env_steps = self._take_in(blocks, [block.episodes for block in blocks], started)
        self._blocks += [block for block in blocks if block.connector_state is not None]
        return None, blocks, num_env_steps, None

    def _store_blocks(self, replay: EpisodeReplayBuffer, blocks: list[SampleBlock]) -> EpisodeReplayBuffer:
        started = time.perf_counter()
        # A runner that did another one's work has several.
        if len(blocks) > 1:
            blocks = sorted(blocks, key=lambda block: (block.worker_index, block.num_restarts, block.serial))
        for block in blocks:
            columns = block.experience.modules[self.module_id]
            replay.add_block(columns, stream=block.worker_index, serial=block.serial, starts=block.starts)
        self._clock(names.REPLAY_BUFFER_ADD_DATA_TIMER, started)
        return replay

    def _sample_episodes(self, state: TrainState, settings: Any) -> tuple[Any, list[Any], int, None]:
        """One round over all runners."""
        del state, settings
        episodes, num_env_steps, connector_states = self._sampled_episodes(1)
        self._connector_states = connector_states
        return None, episodes, num_env_steps, None

    def _store_episodes(self, replay: EpisodeReplayBuffer, episodes: list[Any]) -> EpisodeReplayBuffer:
        started = time.perf_counter()
        replay.add(episodes)
        self._clock(names.REPLAY_BUFFER_ADD_DATA_TIMER, started)
        return replay

    def _sample_replay(self, state: TrainState) -> tuple[TrainState, Experience, Any]:
        started = time.perf_counter()
        columns = state.replay.sample_batch(self._batch_size, **self._draw_arguments)
        items = columns.pop(BATCH_INDEXES)
        self._clock(names.REPLAY_BUFFER_SAMPLE_TIMER, started)
        return state, Experience.of_rows({self.module_id: columns}), items

    def _update(self, learner: Any, experience: Experience, settings: Any, timesteps: Any) -> tuple[Any, Any, Any]:
        del learner, settings
        started = time.perf_counter()
        rows = self.learner_group.update_rows(experience, timesteps=counters.to_int(timesteps))
        self._num_env_steps_trained += experience.num_env_steps
        self.device_seconds += self._clock(names.LEARNER_UPDATE_TIMER, started) - started
        return None, None, rows

    def _update_priorities(self, replay: EpisodeReplayBuffer, items: Any, rows: Any) -> EpisodeReplayBuffer:
        if not isinstance(replay, PrioritizedEpisodeReplayBuffer):
            return replay
        started = time.perf_counter()
        errors = td_errors(rows, self.module_id, self.config.learner_class)
        replay.update_priorities(errors, indices=items)
        self._clock(names.REPLAY_BUFFER_UPDATE_PRIOS_TIMER, started)
        return replay

    def _sync_weights(self, connector_state: dict[str, Any] | None = None) -> None:
        if self._sharing_runner is None or self.learner is None or connector_state is not None:
            super()._sync_weights(connector_state)
        else:
            self._sharing_runner.share_weights(self.learner, num_env_steps_sampled_lifetime=self.num_env_steps)

    # --------------------------------------------------------------------------------------------------- results

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        return mean_results(self.learner_group.row_results(num_updates)) if self.num_updates else {}

    def results(self) -> dict[str, Any]:
        self._replay_metrics.aggregate([self.replay_buffer.get_metrics()])
        if self._local_sampler is not None:
            self._runner_metrics.aggregate([self._local_sampler.take_metrics()])
        return {**super().results(), names.REPLAY_BUFFER_RESULTS: self._replay_metrics.compile()}

    # ----------------------------------------------------------------------------------------------------- state

    def set_replay_state(self, state: dict[str, Any]) -> None:
        if COMPONENT_REPLAY_BUFFER in state:
            self.replay_buffer.set_state(state[COMPONENT_REPLAY_BUFFER])

    def _own_state(self) -> dict[str, Any]:
        return {
            **super()._own_state(),
            "num_env_steps_trained_lifetime": self._num_env_steps_trained,
            "replay_metrics": self._replay_metrics.get_state(),
        }

    def _set_sampling_state(self, state: dict[str, Any], own: dict[str, Any] | None) -> None:
        if own is not None:
            self._num_env_steps_trained = int(own["num_env_steps_trained_lifetime"])
            self._replay_metrics.set_state(own["replay_metrics"])
        super()._set_sampling_state(state, own)


def _repeat(function: Callable[[Any], tuple[Any, Any]], state: Any, times: int) -> tuple[Any, Any]:
    """Call ``function(state) -> (state, result)`` several times, one after the other; the result is the last one."""
    result = None
    for _ in range(times):
        state, result = function(state)
    return state, result
