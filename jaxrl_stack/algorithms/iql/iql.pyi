# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
import os
from collections.abc import Callable, Collection
from typing import Any, Literal, Never, TypeVar
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.offline.estimators.off_policy_estimator import OffPolicyEstimator
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec
_Config = TypeVar("_Config")

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
_OF_MARWIL: Any
class IQLConfig(MARWILConfig):
    twin_q: bool
    expectile: float
    actor_lr: float | list[list[float]] | list[tuple[int, float]]
    critic_lr: float | list[list[float]] | list[tuple[int, float]]
    value_lr: float | list[list[float]] | list[tuple[int, float]]
    target_network_update_freq: int
    tau: float
    def training(
        self: _Config,
        *,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size: int | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
        beta: float | type[NotProvided] = ...,
        bc_logstd_coeff: float | type[NotProvided] = ...,
        moving_average_sqd_adv_norm_update_rate: float | type[NotProvided] = ...,
        moving_average_sqd_adv_norm_start: float | type[NotProvided] = ...,
        vf_coeff: float | type[NotProvided] = ...,
        burnin_len: int | type[NotProvided] = ...,
        lambda_: float | type[NotProvided] = ...,
        max_advantage_weight: float | None | type[NotProvided] = ...,
        twin_q: bool | type[NotProvided] = ...,
        expectile: float | type[NotProvided] = ...,
        actor_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        critic_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        value_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    _checks: Any
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    def validate(self) -> None:
        ...
class IQL(MARWIL):
    @classmethod
    def get_default_config(cls) -> IQLConfig: ...
    training_step_class: Any
    _default_config_class: Any
