"""The actor driver of on-policy algorithms: sample a train batch, update from it, hand out weights."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from jaxrl_stack.acting.recording import newest_connector_states
from jaxrl_stack.core.experience import LostExperienceError
from jaxrl_stack.execution.actor_driver import ActorDriver, mean_results
from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.utils.actor_manager import original_error
from jaxrl_stack.utils.memory import MemoryEstimate, train_batch_memory

if TYPE_CHECKING:
    import gymnasium as gym

logger = logging.getLogger(__name__)


class OnPolicyActorDriver(ActorDriver):
    """Trains on what the current weights have just sampled.

    Args:
        algorithm, config, pure_training_step, callbacks: See `Driver`.
    """

    def _memory_estimates(self, *spaces: gym.Space | None) -> tuple[MemoryEstimate, MemoryEstimate]:
        num_envs = int(self.config.num_envs_per_env_runner)
        num_blocks, length = self.config.train_batch_blocks
        return (
            train_batch_memory(*spaces, num_envs=num_envs, num_steps=length, what="rollout"),
            train_batch_memory(*spaces, num_envs=num_envs * num_blocks, num_steps=length),
        )

    def _start(self) -> None:
        self._learned: list[dict[str, Any]] = []
        super()._start()

    def training_step(self, iteration: int) -> None:
        del iteration
        metrics = self._sampled_and_learned(self._train_state())
        self._learned = metrics["learners"]
        self._sync(metrics["env_runners"]["connector_states"])

    def _sampled_and_learned(self, state: TrainState) -> dict[str, Any]:
        """The metrics of a training step; blocks that are lost on their way to the learners are sampled anew."""
        sample_fn = self._sample_blocks if self._samples_blocks else self._sample_episodes
        num_failures, tolerance = 0, self.config.num_consecutive_env_runner_failures_tolerance
        while True:
            try:
                return self.pure_training_step(state, None, sample_fn=sample_fn, update_fn=self._update)[1]
            except LostExperienceError as error:
                num_failures += 1
                if num_failures > tolerance:
                    raise
                logger.warning("The train batch is sampled once more. %s", original_error(error))

    def _sample_blocks(self, state: TrainState, settings: Any) -> tuple[Any, Any, int, dict[str, Any]]:
        """A train batch: a fixed number of ``[T, B]`` blocks, however many runners answered."""
        del state, settings
        config = self.config
        started = time.perf_counter()
        num_blocks, num_steps = config.train_batch_blocks
        share = {"num_steps": num_steps, "keeps_all_final_obs": self.learner_group.needs_all_final_obs}
        blocks = self.env_runner_group.sample(
            "sample_block",
            [share] * num_blocks,
            keep_remote=self.learner_group.is_remote,
            timeout_seconds=config.sample_timeout_s,
        )
        num_env_steps = self._take_in(blocks, [block.episodes for block in blocks], started)
        return None, {"blocks": blocks}, num_env_steps, {"connector_states": newest_connector_states(blocks)}

    def _sample_episodes(self, state: TrainState, settings: Any) -> tuple[Any, Any, int, dict[str, Any]]:
        """A train batch of episodes: whole rounds over all runners until there are enough steps."""
        del state, settings
        episodes, num_env_steps, connector_states = self._sampled_episodes(self.config.total_train_batch_size)
        return None, {"episodes": episodes}, num_env_steps, {"connector_states": connector_states}

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
            results = self.learner_group.update_block([block.experience for block in batch["blocks"]], **arguments)
        else:
            results = self.learner_group.update(episodes=batch["episodes"], **arguments)
        self.device_seconds += self._clock("learner_update_timer", started) - started
        return None, results

    def learner_results(self, num_updates: int) -> dict[str, Any]:
        del num_updates
        return mean_results(self._learned)
