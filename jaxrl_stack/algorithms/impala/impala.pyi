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
from jaxrl_stack.connectors.module_to_env import ActionNoise
__all__ = ['IMPALA', 'LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY', 'IMPALAConfig']
_OPTIMIZER: Any
_OLD: Any
class IMPALAConfig(AlgorithmConfig):
    vtrace: bool
    vtrace_clip_rho_threshold: float | None
    vtrace_clip_pg_rho_threshold: float | None
    learner_queue_size: int
    broadcast_interval: int
    timeout_s_sampler_manager: float
    num_gpu_loader_threads: int
    vf_loss_coeff: float
    entropy_coeff: float | list[list[float]] | list[tuple[int, float]]
    _env_runners_only: bool
    _skip_learners: bool
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
        vtrace: bool | type[NotProvided] = ...,
        vtrace_clip_rho_threshold: float | None | type[NotProvided] = ...,
        vtrace_clip_pg_rho_threshold: float | None | type[NotProvided] = ...,
        learner_queue_size: int | type[NotProvided] = ...,
        broadcast_interval: int | type[NotProvided] = ...,
        timeout_s_sampler_manager: float | type[NotProvided] = ...,
        num_gpu_loader_threads: int | type[NotProvided] = ...,
        vf_loss_coeff: float | type[NotProvided] = ...,
        entropy_coeff: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
    ) -> _Config: ...
    def debugging(
        self: _Config,
        *,
        log_level: str | type[NotProvided] = ...,
        seed: int | None | type[NotProvided] = ...,
        disable_jit: bool | type[NotProvided] = ...,
        check_nans: bool | None | type[NotProvided] = ...,
        profile_iterations: int | Collection[int] | None | type[NotProvided] = ...,
        _env_runners_only: bool | type[NotProvided] = ...,
        _skip_learners: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _old_names: Any
    is_asynchronous: Any
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    @property
    def updates_per_train_batch(self) -> int:
        ...
    def make_learner_queue(self) -> LearnerQueue:
        ...
    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        ...
    def validate(self) -> None:
        ...
    def _check_parts_left_out(self) -> None:
        ...
class IMPALA(Algorithm):
    @classmethod
    def get_default_config(cls) -> IMPALAConfig: ...
    training_step_class: Any
    _default_config_class: Any
