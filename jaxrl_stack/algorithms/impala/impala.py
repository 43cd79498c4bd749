"""IMPALA (importance-weighted actor-learner): config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.impala.impala_learner import LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY, IMPALALearner
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number
from jaxrl_stack.algorithms.setting_values import DefaultNumber
from jaxrl_stack.algorithms.settings import Section, actors, host, inert, traced
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.execution.learner_queue import FirstInFirstOut, LearnerQueue
from jaxrl_stack.execution.sample_reuse import SampleReuseStep

if TYPE_CHECKING:
    from jaxrl_stack.connectors.module_to_env import ActionNoise

__all__ = ["IMPALA", "LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY", "IMPALAConfig"]

_OPTIMIZER = "Learner.configure_optimizers_for_module()"
_OLD = (
    OldName("num_multi_gpu_tower_stacks", "learners(num_learners=..., num_gpus_per_learner=...)", neutral=1),
    OldName("minibatch_buffer_size", "training(num_epochs=...)", neutral=1),
    OldName("replay_proportion", "APPO, training(circular_buffer_num_batches=...)", neutral=0.0),
    OldName("replay_buffer_num_slots", "APPO, training(circular_buffer_num_batches=...)", neutral=0),
    OldName("learner_queue_timeout", "training(learner_queue_size=...)", neutral=300),
    OldName("timeout_s_aggregator_manager", "training(timeout_s_sampler_manager=...)", neutral=0.0),
    OldName("opt_type", _OPTIMIZER, neutral="adam"),
    OldName("decay", _OPTIMIZER, neutral=0.99),
    OldName("momentum", _OPTIMIZER, neutral=0.0),
    OldName("epsilon", _OPTIMIZER, neutral=0.1),
    OldName("_separate_vf_optimizer", _OPTIMIZER, neutral=False),
    OldName("_lr_vf", _OPTIMIZER, neutral=0.0005),
)


class IMPALAConfig(AlgorithmConfig):
    """Settings of IMPALA (Espeholt et al., 2018, arXiv:1802.01561).

    ::

        algo = IMPALAConfig().environment("gymnax/CartPole-v1").training(lr=0.0003).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            host("vtrace", True, boolean, "V-trace, the only supported estimator."),
            traced("vtrace_clip_rho_threshold", 1.0, number(0, also=(None,)),
                "Upper bound of the importance ratios in the errors of value targets; None for none."),
            traced("vtrace_clip_pg_rho_threshold", 1.0, number(0, also=(None,)),
                "Upper bound of the importance ratios in the policy's gradient; None for none."),
            actors("learner_queue_size", 3, integer(1),
                "Maximum number of train batches that wait for a Learner; if it is reached, runners wait."),
            actors("broadcast_interval", 1, integer(1), "Updates between two transfers of weights to the runners."),
            actors("timeout_s_sampler_manager", 0.0, number(0),
                "Timeout of a training step for the first samples, in seconds; 0 means 1."),
            inert("num_gpu_loader_threads", 8, integer(0), "Threads of a Learner that load batches onto its GPU.",
                instead="batches go to the devices of a Learner by themselves; leave it out."),
            traced("vf_loss_coeff", 0.5, number(0, finite=True), "Weight of the value loss."),
            traced("entropy_coeff", 0.01, amount_or_schedule, "Weight of the entropy bonus.", check_when_set=False),
        )),
        Section("debugging", "", (
            actors("_env_runners_only", False, boolean,
                "Sample and drop the samples, to measure the speed of EnvRunner actors."),
            actors("_skip_learners", False, boolean,
                "Build and drop train batches, to measure the speed of sampling and aggregation without learning."),
        )),
    )
    # fmt: on
    _old_names = _OLD
    is_asynchronous = True
    _defaults: Mapping[str, Any] = {
        "num_env_runners": DefaultNumber(2),
        "rollout_fragment_length": 50,
        "lr": 5e-4,
        "grad_clip": 40.0,
        "train_batch_size": 500,
        "min_time_s_per_iteration": 10,
    }

    _algorithm = "IMPALA"
    _default_learner_class = IMPALALearner
    _default_module_class = DefaultPPORLModule
    _default_catalog_class = PPOCatalog

    @property
    def updates_per_train_batch(self) -> int:
        """Number of updates on each train batch in runs without EnvRunner actors, in which sampling and learning
        alternate.
        """
        return 1

    def make_learner_queue(self) -> LearnerQueue:
        """Creates the queue of train batches between sampling and learning.

        The queue is a first-in-first-out queue of at most `learner_queue_size` batches. It is used only if learners
        learn while EnvRunner actors sample.
        """
        return FirstInFirstOut(self.learner_queue_size)

    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        raise ValueError(
            f"env_runners(module_to_env_connector=...): connector {name!r} changes actions after their "
            f"log-probabilities are computed, so {self.algo_class.__name__}'s importance ratios would be wrong. Leave "
            "the connector out, and raise training(entropy_coeff=...) to explore more; or use SAC."
        )

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if not self.vtrace:
            self._value_error(
                f"training(vtrace=False): {self.algo_class.__name__} has no other estimator. Leave vtrace out, or use "
                "PPO with generalised advantages."
            )
        self._check_parts_left_out()
        length, size, total = self.get_rollout_fragment_length(), self.minibatch_size, self.total_train_batch_size
        if size is not None and (size % length or size > total):
            self._value_error(
                f"training(minibatch_size={size}) must be a multiple of rollout_fragment_length={length}, and at most "
                f"the train batch of {total} steps. Use minibatch_size={max(min(size, total) // length, 1) * length}, "
                "or None for the whole batch."
            )

    def _check_parts_left_out(self) -> None:
        """Raises if a run that measures sampling without updates (`_env_runners_only`, `_skip_learners`) cannot work.

        The run must have EnvRunner actors. Its iterations must not wait for updates
        (`min_train_timesteps_per_iteration`), because they could then never end.
        """
        for name in ("_env_runners_only", "_skip_learners"):
            if self.in_evaluation or not getattr(self, name):
                continue
            if not self.num_sampling_actors:
                self._value_error(
                    f"debugging({name}=True) needs EnvRunner actors, and there are none. Use a host environment with "
                    "env_runners(num_env_runners=...) of 1 or more."
                )
            if self.min_train_timesteps_per_iteration:
                self._value_error(
                    f"debugging({name}=True) makes no updates, so no iteration reaches reporting("
                    f"min_train_timesteps_per_iteration={self.min_train_timesteps_per_iteration}). Use "
                    "min_sample_timesteps_per_iteration or min_time_s_per_iteration."
                )


class IMPALA(Algorithm):
    """IMPALA (importance-weighted actor-learner); see the README of this folder."""

    training_step_class = SampleReuseStep

    _default_config_class = IMPALAConfig


__getattr__ = absent_or_renamed(__name__, renamed={"Impala": IMPALA, "ImpalaConfig": IMPALAConfig})
