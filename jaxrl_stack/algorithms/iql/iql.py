"""Implicit Q-learning: config and algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.iql.default_iql_rl_module import DefaultIQLRLModule
from jaxrl_stack.algorithms.iql.iql_learner import IQLLearner
from jaxrl_stack.algorithms.marwil.marwil import MARWIL, MARWILConfig
from jaxrl_stack.algorithms.sac.sac import check_settings_of_modules
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, per_module, static, traced
from jaxrl_stack.execution.offline_transitions import OfflineTransitions, refuse_recurrent_networks
from jaxrl_stack.utils.notices import notice_once

_OF_MARWIL = (
    "bc_logstd_coeff",
    "moving_average_sqd_adv_norm_update_rate",
    "moving_average_sqd_adv_norm_start",
    "vf_coeff",
    "lambda_",
    "burnin_len",
)
"""Settings of MARWIL that this loss does not read."""


class IQLConfig(MARWILConfig):
    """Settings of IQL (Kostrikov et al., 2021, arXiv:2110.06169).

    ::

        config = IQLConfig().environment("Pendulum-v1").offline_data(input_=["data/pendulum"])
        algo = config.training(beta=0.1, expectile=0.8, tau=0.005).build_algo()
    """

    # fmt: off
    _sections = (
        Section("training", "Sets how the policy is trained.", (
            static("twin_q", True, boolean, "Train two critics and use the minimum of their values.", LEARNER),
            traced("expectile", 0.8, number(above=0, below=1),
                "Expectile of the recorded actions' values that the value function learns; near 1 the best of them."),
            traced("actor_lr", 3e-4, amount_or_schedule, "Learning rate of the policy.", check_when_set=False),
            traced("critic_lr", 3e-4, amount_or_schedule, "Learning rate of the critics.", check_when_set=False),
            traced("value_lr", 3e-4, amount_or_schedule, "Learning rate of the value function.", check_when_set=False),
            per_module("target_network_update_freq", 0, integer(0),
                "Trained rows between updates of the target networks; 0 updates them with every update."),
            traced("tau", 1.0, number(0, 1),
                "Weight of the networks in an update of the target networks: 1 copies them."),
        )),
    )
    # fmt: on
    _defaults: Mapping[str, Any] = {"beta": 0.1, "lr": None, "max_advantage_weight": 100.0}
    _checks = {"beta": number(above=0, finite=True)}

    _algorithm = "IQL"
    _default_learner_class = IQLLearner
    _default_module_class = DefaultIQLRLModule
    _default_catalog_class = SACCatalog

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        return super()._model_config_auto_includes | {"twin_q": vars(self)["twin_q"]}

    def validate(self) -> None:
        """Checks all settings, individually and in combination.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        super().validate()
        refuse_recurrent_networks(self)
        if self.lr is not None:
            self._value_error(
                f"training(lr={self.lr!r}): policy, critics and value function have separate learning rates. Set "
                "actor_lr, critic_lr and value_lr, and leave lr at None."
            )
        check_settings_of_modules(self)
        for name in _OF_MARWIL:
            if name in self.explicitly_set:
                notice_once(f"training({name}={vars(self)[name]!r}) has no effect on IQL: it is a setting of MARWIL.")


class IQL(MARWIL):
    """Implicit Q-learning; see the README of this folder."""

    training_step_class = OfflineTransitions

    _default_config_class = IQLConfig
