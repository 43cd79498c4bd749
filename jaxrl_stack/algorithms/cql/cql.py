"""Conservative Q-learning: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.cql.cql_learner import CQLLearner
from jaxrl_stack.algorithms.cql.default_cql_rl_module import DefaultCQLRLModule
from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
from jaxrl_stack.algorithms.setting_checks import boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, static, traced
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.execution.offline_transitions import OfflineTransitions, refuse_recurrent_networks
from jaxrl_stack.utils.notices import notice_once

_OF_SAMPLING = (
    "replay_buffer_config",
    "num_steps_sampled_before_learning_starts",
    "training_intensity",
    "store_buffer_in_checkpoints",
)
"""Settings of SAC that say how an environment is sampled into a replay buffer."""


class CQLConfig(SACConfig):
    """Settings of CQL (Kumar et al., 2020, arXiv:2006.04779): SAC's settings and settings of the conservative term.

    ::

        config = CQLConfig().environment("Pendulum-v1").offline_data(input_=["data/pendulum"])
        algo = config.training(bc_iters=0, min_q_weight=5.0).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            traced("bc_iters", 20000, integer(0),
                "Number of updates at the start in which the actor clones the recorded actions."),
            traced("temperature", 1.0, number(above=0, finite=True),
                "Temperature of the soft maximum over actions in the conservative term."),
            static("num_actions", 10, integer(1),
                "Actions per row and source (random, policy at this and at the next observation).", LEARNER),
            static("lagrangian", False, boolean,
                "Whether a trained multiplier weighs the conservative term.", LEARNER),
            traced("lagrangian_thresh", 5.0, number(finite=True),
                "Threshold of min_q_weight times the conservative term above which the multiplier grows."),
            traced("min_q_weight", 5.0, number(0, finite=True), "Weight of the conservative term."),
            static("deterministic_backup", True, boolean,
                "Whether the policy's entropy is left out of the critics' targets.", LEARNER),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {
        "actor_lr": 1e-4,
        "critic_lr": 1e-3,
        "alpha_lr": 1e-3,
        "td_error_loss_fn": "mse",
        "min_sample_timesteps_per_iteration": 0,
        "min_train_timesteps_per_iteration": 100,
    }
    _old_names = (OldName("timesteps_per_iteration", "reporting(min_train_timesteps_per_iteration=...)"),)
    _algorithm = "CQL"
    _default_learner_class = CQLLearner
    _default_module_class = DefaultCQLRLModule

    def __init__(self, algo_class: type | str | None = None):
        super().__init__(algo_class=algo_class)
        self._is_online = False

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        refuse_recurrent_networks(self)
        if self.n_step != 1:
            self._value_error(f"training(n_step={self.n_step!r}): CQL has one-step targets. Leave n_step at 1.")
        for name in _OF_SAMPLING:
            if name in self.explicitly_set:
                notice_once(f"training({name}=...) has no effect: CQL reads recorded data, and has no replay buffer.")


class CQL(SAC):
    """Conservative Q-learning; see the README of this folder."""

    training_step_class = OfflineTransitions

    _default_config_class = CQLConfig
