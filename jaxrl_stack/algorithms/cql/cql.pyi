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
from jaxrl_stack.algorithms.cql.cql_learner import CQLLearner
from jaxrl_stack.algorithms.cql.default_cql_rl_module import DefaultCQLRLModule
from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
from jaxrl_stack.algorithms.setting_checks import boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, static, traced
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.execution.offline_transitions import OfflineTransitions, refuse_recurrent_networks
from jaxrl_stack.utils.notices import notice_once
_OF_SAMPLING: Any
class CQLConfig(SACConfig):
    bc_iters: int
    temperature: float
    num_actions: int
    lagrangian: bool
    lagrangian_thresh: float
    min_q_weight: float
    deterministic_backup: bool
    def training(
        self: _Config,
        *,
        clip_actions: bool | type[NotProvided] = ...,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size: int | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
        replay_buffer_config: dict[str, Any] | type[NotProvided] = ...,
        num_steps_sampled_before_learning_starts: int | type[NotProvided] = ...,
        burn_in_len: int | type[NotProvided] = ...,
        n_step: int | tuple[int, int] | type[NotProvided] = ...,
        training_intensity: float | None | type[NotProvided] = ...,
        recorded_share: float | None | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        store_buffer_in_checkpoints: bool | type[NotProvided] = ...,
        twin_q: bool | type[NotProvided] = ...,
        initial_alpha: float | type[NotProvided] = ...,
        target_entropy: float | Literal['auto'] | None | type[NotProvided] = ...,
        td_error_loss_fn: Literal["huber", "mse"] | type[NotProvided] = ...,
        actor_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        critic_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        alpha_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        q_model_config: dict[str, Any] | type[NotProvided] = ...,
        policy_model_config: dict[str, Any] | type[NotProvided] = ...,
        optimization_config: dict[str, Any] | type[NotProvided] = ...,
        _deterministic_loss: bool | type[NotProvided] = ...,
        _use_beta_distribution: bool | type[NotProvided] = ...,
        bc_iters: int | type[NotProvided] = ...,
        temperature: float | type[NotProvided] = ...,
        num_actions: int | type[NotProvided] = ...,
        lagrangian: bool | type[NotProvided] = ...,
        lagrangian_thresh: float | type[NotProvided] = ...,
        min_q_weight: float | type[NotProvided] = ...,
        deterministic_backup: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    _old_names: Any
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    def __init__(self, algo_class: type | str | None=None):
        ...
    def validate(self) -> None:
        ...
class CQL(SAC):
    @classmethod
    def get_default_config(cls) -> CQLConfig: ...
    training_step_class: Any
    _default_config_class: Any
