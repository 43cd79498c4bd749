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
import os
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, cast
import gymnasium as gym
from flax import nnx
from jaxrl_stack.algorithms.dreamerv3.actor_critic import width_of_actions
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_learner import DreamerV3Learner
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import MODULE_SETTINGS, DreamerV3RLModule
from jaxrl_stack.algorithms.dreamerv3.imagined_video import Comparison, compare, longest_in_an_episode, write_comparison
from jaxrl_stack.algorithms.dreamerv3.networks import IMAGE_SIZE
from jaxrl_stack.algorithms.dreamerv3.networks_memory import networks_memory
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.windows_step import WindowsStep
from jaxrl_stack.algorithms.dreamerv3.world_model import has_size, is_image, parts_of
from jaxrl_stack.algorithms.off_policy import OffPolicyAlgorithm, OffPolicyConfig
from jaxrl_stack.algorithms.setting_checks import amount_or_schedule, boolean, integer, number, one_of
from jaxrl_stack.algorithms.settings import LEARNER, Section, inert, later, static, traced
from jaxrl_stack.connectors.env_to_module import ResizeImages
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.default_observations import is_vector
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.utils.memory import MemoryEstimate
from jaxrl_stack.videos.video import Video
_CURIOSITY: Any
_NO_DREAMS: Any
_OF_OTHERS: Any
_LAST_FORM: dict[str, Any]
class DreamerV3Config(OffPolicyConfig):
    model_size: str
    training_ratio: float
    batch_size_B: int
    batch_length_T: int
    horizon_H: int
    gae_lambda: float
    entropy_scale: float
    return_normalization_decay: float
    world_model_lr: float | list[list[float]] | list[tuple[int, float]]
    actor_lr: float | list[list[float]] | list[tuple[int, float]]
    critic_lr: float | list[list[float]] | list[tuple[int, float]]
    world_model_grad_clip_by_global_norm: float | None
    actor_grad_clip_by_global_norm: float | None
    critic_grad_clip_by_global_norm: float | None
    train_actor: bool
    train_critic: bool
    symlog_obs: str | bool
    use_float16: bool
    gru_blocks: int
    optimizer: str
    replay_latents: bool
    actor_gradient: str
    intrinsic_rewards_scale: float
    use_curiosity: bool
    report_individual_batch_item_stats: bool
    report_dream_data: bool
    report_images_and_videos: bool
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
        replay_buffer_config: dict[str, Any] | type[NotProvided] = ...,
        num_steps_sampled_before_learning_starts: int | type[NotProvided] = ...,
        burn_in_len: int | type[NotProvided] = ...,
        n_step: int | tuple[int, int] | type[NotProvided] = ...,
        training_intensity: float | None | type[NotProvided] = ...,
        recorded_share: float | None | type[NotProvided] = ...,
        target_network_update_freq: int | type[NotProvided] = ...,
        tau: float | type[NotProvided] = ...,
        store_buffer_in_checkpoints: bool | type[NotProvided] = ...,
        model_size: str | type[NotProvided] = ...,
        training_ratio: float | type[NotProvided] = ...,
        batch_size_B: int | type[NotProvided] = ...,
        batch_length_T: int | type[NotProvided] = ...,
        horizon_H: int | type[NotProvided] = ...,
        gae_lambda: float | type[NotProvided] = ...,
        entropy_scale: float | type[NotProvided] = ...,
        return_normalization_decay: float | type[NotProvided] = ...,
        world_model_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        actor_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        critic_lr: float | list[list[float]] | list[tuple[int, float]] | type[NotProvided] = ...,
        world_model_grad_clip_by_global_norm: float | None | type[NotProvided] = ...,
        actor_grad_clip_by_global_norm: float | None | type[NotProvided] = ...,
        critic_grad_clip_by_global_norm: float | None | type[NotProvided] = ...,
        train_actor: bool | type[NotProvided] = ...,
        train_critic: bool | type[NotProvided] = ...,
        symlog_obs: str | bool | type[NotProvided] = ...,
        use_float16: bool | type[NotProvided] = ...,
        gru_blocks: int | type[NotProvided] = ...,
        optimizer: str | type[NotProvided] = ...,
        replay_latents: bool | type[NotProvided] = ...,
        actor_gradient: str | type[NotProvided] = ...,
        intrinsic_rewards_scale: float | type[NotProvided] = ...,
        use_curiosity: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def reporting(
        self: _Config,
        *,
        metrics_num_episodes_for_smoothing: int | type[NotProvided] = ...,
        min_time_s_per_iteration: float | None | type[NotProvided] = ...,
        min_train_timesteps_per_iteration: int | None | type[NotProvided] = ...,
        min_sample_timesteps_per_iteration: int | None | type[NotProvided] = ...,
        results_dir: str | os.PathLike[str] | None | type[NotProvided] = ...,
        keep_best: bool | str | type[NotProvided] = ...,
        checkpoint_frequency: int | None | type[NotProvided] = ...,
        num_to_keep: int | Literal["sparse"] | None | type[NotProvided] = ...,
        checkpoint_max_bytes: int | str | None | type[NotProvided] = ...,
        loggers: Collection[str] | dict[str, dict[str, Any]] | None | type[NotProvided] = ...,
        log_gradients: bool | type[NotProvided] = ...,
        custom_stats_cls_lookup: dict[str, type[StatsBase]] | type[NotProvided] = ...,
        report_individual_batch_item_stats: bool | type[NotProvided] = ...,
        report_dream_data: bool | type[NotProvided] = ...,
        report_images_and_videos: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def __getattr__(self, name: Never) -> Never: ...  # type: ignore
    def __setattr__(self, name: Never, value: Never) -> None: ...  # type: ignore
    def get_default_rl_module_spec(self) -> RLModuleSpec: ...
    _sections: Any
    _defaults: Mapping[str, Any]
    _algorithm: Any
    _default_learner_class: Any
    _default_module_class: Any
    def paper(self) -> DreamerV3Config:
        ...
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    @property
    def items_per_update(self) -> int:
        ...
    @property
    def train_batch_size_per_learner(self) -> int:
        ...
    @train_batch_size_per_learner.setter
    def train_batch_size_per_learner(self, value: int | None) -> None: ...
    @property
    def num_prefilled_steps(self) -> int:
        ...
    @property
    def updates_per_env_step(self) -> Fraction:
        ...
    def sampling_hints(self) -> list[str]:
        ...
    def _default_env_to_module_connectors(self, observation_space: gym.Space, module_id: Any) -> list[ConnectorV2]:
        ...
    def networks_memory(self, observation_space: gym.Space, action_space: gym.Space) -> MemoryEstimate:
        ...
    def differentiates_dreams(self, action_space: gym.Space | None) -> bool:
        ...
    def validate(self) -> None:
        ...
    def _validate_spaces(self) -> None:
        ...
    def _validate_sampling(self) -> None:
        ...
    def _validate_replay(self) -> None:
        ...
class DreamerV3(OffPolicyAlgorithm):
    @classmethod
    def get_default_config(cls) -> DreamerV3Config: ...
    training_step_class: Any
    _default_config_class: Any
    def imagine_video(self, path: str | os.PathLike[str], *, given: int=5, imagined: int=15, windows: int=4, seed: int=0, fps: float=5.0) -> Video:
        ...
    def compare_with_replay(self, *, given: int=5, imagined: int=15, windows: int=4, seed: int=0) -> Comparison:
        ...
    def _compared(self, given: int, imagined: int, windows: int, seed: int) -> tuple[Comparison, gym.Space | None]:
        ...
