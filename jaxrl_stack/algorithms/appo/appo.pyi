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

import math
from collections.abc import Mapping
from typing import Any
from jaxrl_stack.algorithms.appo.appo_learner import LEARNER_RESULTS_CURR_KL_COEFF_KEY, LEARNER_RESULTS_KL_KEY, LEARNER_RESULTS_MEAN_IS_KEY, LEARNER_RESULTS_VAR_IS_KEY, OLD_ACTION_DIST_KEY, APPOLearner
from jaxrl_stack.algorithms.appo.default_appo_rl_module import DefaultAPPORLModule
from jaxrl_stack.algorithms.impala.impala import IMPALA, IMPALAConfig
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.setting_checks import boolean, integer, number
from jaxrl_stack.algorithms.settings import LEARNER, Section, actors, inert, per_module, static, traced
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.execution.learner_queue import FirstInFirstOut, LearnerQueue, Ring
from jaxrl_stack.utils.seeds import derived_seed
__all__ = ['APPO', 'LEARNER_RESULTS_CURR_KL_COEFF_KEY', 'LEARNER_RESULTS_KL_KEY', 'LEARNER_RESULTS_MEAN_IS_KEY', 'LEARNER_RESULTS_VAR_IS_KEY', 'OLD_ACTION_DIST_KEY', 'APPOConfig']
_GAE: Any
class APPOConfig(IMPALAConfig):
    use_gae: bool
    lambda_: float
    clip_param: float
    use_kl_loss: bool
    kl_coeff: float
    kl_target: float
    target_network_update_freq: float
    tau: float
    target_worker_clipping: float
    use_circular_buffer: bool
    circular_buffer_num_batches: int
    circular_buffer_iterations_per_batch: int
    simple_queue_size: int
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
        use_gae: bool | type[NotProvided] = ...,
        lambda_: float | type[NotProvided] = ...,
        clip_param: float | type[NotProvided] = ...,
        use_kl_loss: bool | type[NotProvided] = ...,
        kl_coeff: float | type[NotProvided] = ...,
        kl_target: float | type[NotProvided] = ...,
        target_network_update_freq: float | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        target_worker_clipping: float | type[NotProvided] = ...,
        use_circular_buffer: bool | type[NotProvided] = ...,
        circular_buffer_num_batches: int | type[NotProvided] = ...,
        circular_buffer_iterations_per_batch: int | type[NotProvided] = ...,
        simple_queue_size: int | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _old_names: Any
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    @property
    def updates_per_train_batch(self) -> int:
        ...
    def make_learner_queue(self) -> LearnerQueue:
        ...
    def env_steps_between_target_updates(self, target_network_update_freq: float) -> int:
        ...
    def validate(self) -> None:
        ...
class APPO(IMPALA):
    @classmethod
    def get_default_config(cls) -> APPOConfig: ...
    _default_config_class: Any
