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

from jaxrl_stack.algorithms.sac.sac import SAC, SACConfig
from jaxrl_stack.algorithms.setting_checks import integer
from jaxrl_stack.algorithms.settings import LEARNER, Section, static
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.algorithms.tqc.tqc_catalog import TQC_MODEL_CONFIG, TQCCatalog
from jaxrl_stack.algorithms.tqc.tqc_learner import TQCLearner
from jaxrl_stack.utils.notices import notice_once
class TQCConfig(SACConfig):
    n_quantiles: int
    n_critics: int
    top_quantiles_to_drop_per_net: int
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
        n_quantiles: int | type[NotProvided] = ...,
        n_critics: int | type[NotProvided] = ...,
        top_quantiles_to_drop_per_net: int | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    _default_catalog_class: Any
    def validate(self) -> None:
        ...
class TQC(SAC):
    @classmethod
    def get_default_config(cls) -> TQCConfig: ...
    _default_config_class: Any
