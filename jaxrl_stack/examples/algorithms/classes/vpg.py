"""Vanilla policy gradient algorithm with a custom `training_step`."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.examples.learners.classes.vpg_learner import VPGLearner
from jaxrl_stack.examples.rl_modules.classes.vpg_rlm import VPGRLModule
from jaxrl_stack.utils.metrics import (
    ENV_RUNNER_RESULTS,
    ENV_RUNNER_SAMPLING_TIMER,
    LEARNER_RESULTS,
    LEARNER_UPDATE_TIMER,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    SYNCH_WORKER_WEIGHTS_TIMER,
    TIMERS,
)


class VPGConfig(AlgorithmConfig):
    """Config of `VPG`, with the additional setting ``training(num_episodes_per_train_batch=10)``."""

    def __init__(self, algo_class: Any = None):
        super().__init__(algo_class=algo_class or VPG)
        self.num_episodes_per_train_batch = 10
        self.report_mean_weights = True
        self.batch_mode = "complete_episodes"
        self.num_env_runners = 1

    def training(self, *, num_episodes_per_train_batch: int | None = None, **kwargs: Any) -> VPGConfig:  # type: ignore[override]
        """Sets hyperparameters of training.

        Args:
            num_episodes_per_train_batch: Whole episodes in a train batch, of all runners together.
            **kwargs: See `AlgorithmConfig.training`.
        """
        super().training(**kwargs)
        if num_episodes_per_train_batch is not None:
            self.num_episodes_per_train_batch = num_episodes_per_train_batch
        return self

    def validate(self) -> None:
        """Checks the settings.

        Raises:
            ValueError: If there are fewer episodes in a train batch than EnvRunners.
        """
        super().validate()
        if self.num_episodes_per_train_batch < (self.num_env_runners or 1):
            raise ValueError(
                f"num_episodes_per_train_batch={self.num_episodes_per_train_batch} is less than "
                f"num_env_runners={self.num_env_runners}. Let each EnvRunner sample at least one episode: set "
                f"training(num_episodes_per_train_batch={self.num_env_runners})."
            )

    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Returns the spec of a `VPGRLModule` with one hidden layer of 64 units."""
        return RLModuleSpec(module_class=VPGRLModule, model_config={"hidden_dim": 64})

    def get_default_learner_class(self) -> type[VPGLearner]:
        """Returns `VPGLearner`."""
        return VPGLearner


class VPG(Algorithm):
    """Vanilla policy gradients: samples whole episodes, makes one update, and sends the weights to the runners
    (Williams, 1992).
    """

    @classmethod
    def get_default_config(cls) -> VPGConfig:
        """Returns a `VPGConfig` with its defaults."""
        return VPGConfig()

    def training_step(self) -> None:
        """Samples episodes and makes one update."""
        with self.metrics.log_time((TIMERS, ENV_RUNNER_SAMPLING_TIMER)):
            episodes, results = self._sample_episodes()
        self.metrics.aggregate(results, key=ENV_RUNNER_RESULTS)
        num_steps = sum(map(len, episodes))
        self.metrics.log_value("episode_timesteps_sampled_mean_win100", num_steps, reduce="mean", window=100)
        self.metrics.log_value("episode_timesteps_sampled_ema", num_steps, ema_coeff=0.1)
        with self.metrics.log_time((TIMERS, LEARNER_UPDATE_TIMER)):
            sampled = self.metrics.peek((ENV_RUNNER_RESULTS, NUM_ENV_STEPS_SAMPLED_LIFETIME))
            learned = self.learner_group.update(episodes=episodes, timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: sampled})
        self.metrics.aggregate(learned, key=LEARNER_RESULTS)
        with self.metrics.log_time((TIMERS, SYNCH_WORKER_WEIGHTS_TIMER)):
            self.env_runner_group.sync_weights(from_worker_or_learner_group=self.learner_group, inference_only=True)

    def _sample_episodes(self) -> tuple[list[Any], list[Any]]:
        """Samples the same number of episodes with each env runner.

        All runners together sample at most `num_episodes_per_train_batch` episodes. Returns the episodes of all
        runners, and the metrics of each runner.
        """
        config: Any = self.config
        per_runner = config.num_episodes_per_train_batch // (config.num_env_runners or 1)
        sampled = self.env_runner_group.foreach_env_runner(
            lambda runner: (runner.sample(num_episodes=per_runner), runner.get_metrics()),
            local_env_runner=self.env_runner_group.num_remote_workers() <= 0,
        )
        return [episode for episodes, _ in sampled for episode in episodes], [metrics for _, metrics in sampled]
