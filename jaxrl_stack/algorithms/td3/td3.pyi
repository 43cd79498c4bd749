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
from typing import TYPE_CHECKING, Any
import numpy as np
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.sac.sac import check_settings_of_modules
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, RUNNER, Section, static, traced
from jaxrl_stack.algorithms.td3.default_td3_rl_module import DefaultTD3RLModule
from jaxrl_stack.algorithms.td3.td3_catalog import TD3Catalog
from jaxrl_stack.algorithms.td3.td3_learner import TD3BCLearner, TD3Learner
from jaxrl_stack.execution.off_policy import OffPolicyStep
from jaxrl_stack.execution.offline_transitions import OfflineTransitions, refuse_recurrent_networks
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.env.registry import ResolvedEnv
from jaxrl_stack.execution.training_step import TrainingStep
_OF_SAMPLING: Any
class TD3Config(OffPolicyConfig):
    twin_q: bool
    policy_delay: int
    smooth_target_policy: bool
    target_noise: float
    target_noise_clip: float
    exploration_noise: float | list[list[float]] | list[tuple[int, float]]
    random_timesteps: int
    bc_alpha: float | None
    actor_lr: float | list[list[float]] | list[tuple[int, float]]
    critic_lr: float | list[list[float]] | list[tuple[int, float]]
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
        policy_delay: int | type[NotProvided] = ...,
        smooth_target_policy: bool | type[NotProvided] = ...,
        target_noise: float | type[NotProvided] = ...,
        target_noise_clip: float | type[NotProvided] = ...,
        exploration_noise: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        random_timesteps: int | type[NotProvided] = ...,
        bc_alpha: float | None | type[NotProvided] = ...,
        actor_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        critic_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    @property
    def is_online(self) -> bool:
        ...
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    def get_default_learner_class(self) -> type[Learner]:
        ...
    def traced_values(self) -> dict[str, Any]:
        ...
    def static_value(self, name: str) -> float | None:
        ...
    def _resolve_env(self) -> ResolvedEnv:
        ...
    def validate(self) -> None:
        ...
    def _validate_recorded(self) -> None:
        ...
class TD3Step(OffPolicyStep):
    @classmethod
    def for_config(cls, config: AlgorithmConfig) -> type[TrainingStep]:
        ...
class TD3(OffPolicyAlgorithm):
    @classmethod
    def get_default_config(cls) -> TD3Config: ...
    training_step_class: Any
    _default_config_class: Any
