"""Asynchronous proximal policy optimisation: config and algorithm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.appo.appo_learner import (
    LEARNER_RESULTS_CURR_KL_COEFF_KEY,
    LEARNER_RESULTS_KL_KEY,
    LEARNER_RESULTS_MEAN_IS_KEY,
    LEARNER_RESULTS_VAR_IS_KEY,
    OLD_ACTION_DIST_KEY,
    APPOLearner,
)
from jaxrl_stack.algorithms.appo.default_appo_rl_module import DefaultAPPORLModule
from jaxrl_stack.algorithms.impala.impala import IMPALA, IMPALAConfig
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.setting_checks import boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, actors, inert, per_module, static, traced
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.execution.learner_queue import FirstInFirstOut, LearnerQueue, Ring
from jaxrl_stack.utils.seeds import derived_seed

__all__ = [
    "APPO",
    "LEARNER_RESULTS_CURR_KL_COEFF_KEY",
    "LEARNER_RESULTS_KL_KEY",
    "LEARNER_RESULTS_MEAN_IS_KEY",
    "LEARNER_RESULTS_VAR_IS_KEY",
    "OLD_ACTION_DIST_KEY",
    "APPOConfig",
]

_GAE = "advantages are V-trace's; PPO has generalised ones."


class APPOConfig(IMPALAConfig):
    """Settings of APPO: PPO's clipped surrogate on IMPALA's V-trace, in the form of IMPACT (Luo et al., 2020,
    arXiv:1912.00167).

    ::

        algo = APPOConfig().environment("gymnax/CartPole-v1").training(clip_param=0.2).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            inert("use_gae", True, boolean, "Generalised advantage estimation.", instead=_GAE),
            inert("lambda_", 1.0, number(0, 1), "Trace decay of generalised advantages.", instead=_GAE),
            traced("clip_param", 0.4, number(0), "Probability ratios are clipped to 1 ± this."),
            per_module("use_kl_loss", False, boolean, "Add the KL divergence from the target policy to the loss."),
            traced("kl_coeff", 1.0, number(0, finite=True), "Initial weight of that divergence; it then adapts.",
                is_initial=True),
            traced("kl_target", 0.01, number(0), "Target of the KL divergence, to which kl_coeff adapts."),
            per_module("target_network_update_freq", 2, number(0, finite=True),
                "Trained env steps between updates of the target networks, in units of circular_buffer_num_batches * "
                "circular_buffer_iterations_per_batch * train_batch_size_per_learner."),
            traced("tau", 1.0, number(0, 1),
                "Weight of the networks in an update of the target networks: 1 copies them."),
            inert("target_worker_clipping", 2.0, number(0),
                "Upper bound of the ratio of the acting and the target policy, in RLlib's old stack.",
                instead="the bound is 2."),
            static("use_circular_buffer", True, boolean,
                "Learn circular_buffer_iterations_per_batch times from every train batch; False learns once."),
            static("circular_buffer_num_batches", 8, integer(1),
                "Number of train batches from which the next one is drawn, if sampling and learning run at the same "
                "time; also a unit of target_network_update_freq.", LEARNER),
            static("circular_buffer_iterations_per_batch", 2, integer(1),
                "Maximum number of updates from a train batch.", LEARNER),
            actors("simple_queue_size", 32, integer(1),
                "Maximum number of train batches that wait for a Learner, without a circular buffer."),
        )),
    )
    # fmt: on
    _old_names = (
        OldName("target_update_frequency", "training(target_network_update_freq=...)"),
        OldName("use_critic", "PPO, training(use_critic=...): APPO always trains a value function,", neutral=True),
    )
    _defaults: Mapping[str, Any] = {"learner_queue_size": 16}

    _algorithm = "APPO"
    _default_learner_class = APPOLearner
    _default_module_class = DefaultAPPORLModule
    _default_catalog_class = PPOCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {"vf_share_layers": False}

    @property
    def updates_per_train_batch(self) -> int:
        """Number of updates on each train batch."""
        own: Any = self  # the stub of the class before knows none of its settings
        return own.circular_buffer_iterations_per_batch if own.use_circular_buffer else 1

    def make_learner_queue(self) -> LearnerQueue:
        """Creates the queue of train batches between sampling and learning: a circular buffer if `use_circular_buffer`
        is set, else a first-in-first-out queue of at most `simple_queue_size` batches.
        """
        own: Any = self
        if not own.use_circular_buffer:
            return FirstInFirstOut(own.simple_queue_size)
        sizes = (own.circular_buffer_num_batches, own.circular_buffer_iterations_per_batch)
        return Ring(*sizes, seed=derived_seed("circular buffer", self.root_seed))

    def env_steps_between_target_updates(self, target_network_update_freq: float) -> int:
        """Minimum number of sampled env steps between two updates of the target networks.

        Args:
            target_network_update_freq: Value of the setting for a module.
        """
        own: Any = self
        batches = own.circular_buffer_num_batches * own.circular_buffer_iterations_per_batch
        trained = target_network_update_freq * batches * self.train_batch_size_per_learner
        # Each sampled step is trained with as often as a batch is learned from.
        return math.ceil(trained / self.updates_per_train_batch)

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        if self.learner_queue_size != self._declarations.by_name["learner_queue_size"].default:
            self._value_error(
                f"training(learner_queue_size={self.learner_queue_size}) is a setting of IMPALA. APPO has a "
                "circular buffer: set circular_buffer_num_batches, or use_circular_buffer=False and simple_queue_size."
            )


class APPO(IMPALA):
    """Asynchronous proximal policy optimisation; see the README of this folder."""

    _default_config_class = APPOConfig
