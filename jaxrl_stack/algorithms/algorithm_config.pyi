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
from collections.abc import Callable, Collection, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, ClassVar, Literal
import gymnasium as gym
import numpy as np
from jaxrl_stack.algorithms import config_building, config_validation
from jaxrl_stack.algorithms.action_mask_settings import honoured_mask_key
from jaxrl_stack.algorithms.base_settings import BASE_OLD_NAMES, BASE_SECTIONS, BASE_SETTINGS, default_policy_mapping_fn
from jaxrl_stack.algorithms.config_store import KEY_TRANSLATIONS, NOT_IN_CHECKPOINTS, Settings, _ConfigMeta, check_trusted, warn_deprecated
from jaxrl_stack.algorithms.fluent_methods import fluent_method
from jaxrl_stack.algorithms.model_settings import given_settings
from jaxrl_stack.algorithms.observation_key_settings import kept_observation_keys
from jaxrl_stack.algorithms.policy_spaces import SpacesById
from jaxrl_stack.algorithms.registry import ALGORITHMS, tuned_settings
from jaxrl_stack.algorithms.result_names import known_result
from jaxrl_stack.algorithms.setting_checks import Check
from jaxrl_stack.algorithms.setting_values import DefaultNumber, as_dict, copy_value, is_record, is_search_space, same
from jaxrl_stack.algorithms.settings import Declarations, Section, Setting, traced_value
from jaxrl_stack.algorithms.settings_display import config_html, config_text, short
from jaxrl_stack.checkpoints.plain_data import Plain
from jaxrl_stack.compat.old_settings import OldName
from jaxrl_stack.compat.unsupported_names import stand_ins
from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import DefaultObservations, EnvToModulePipeline, FlattenObservations
from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ActionNoise, GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core import DEFAULT_MODULE_ID, DEFAULT_POLICY_ID
from jaxrl_stack.core.default_observations import is_vector
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.module_map import ModuleMap, single_agent
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.registry import ResolvedEnv, get_env_creator, note_env, resolve_env
from jaxrl_stack.env.self_play_env import with_seats
from jaxrl_stack.runs.writers import as_json
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.policy_spec import PolicySpec
from typing import Self
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.population import Population
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.env.env_runner import EnvRunner
__all__ = ['AlgorithmConfig', 'NotProvided', 'PolicySpec']
_READ_BY_LEARNER_ACTORS: Any
class AlgorithmConfig(Plain):
    extra_python_environs_for_driver: dict[str, str]
    extra_python_environs_for_worker: dict[str, str]
    num_cpus_for_main_process: int
    custom_resources_for_main_process: dict[str, float]
    placement_strategy: str
    compilation_cache_dir: str | Literal[False] | None
    framework_str: str
    torch_compile_learner: bool
    torch_compile_learner_what_to_compile: str
    torch_compile_learner_dynamo_mode: str | None
    torch_compile_learner_dynamo_backend: str
    torch_ddp_kwargs: dict[str, Any]
    torch_skip_nan_gradients: bool
    enable_rl_module_and_learner: bool
    enable_env_runner_and_connector_v2: bool
    env: str | Any | None
    env_config: dict[str, Any]
    randomized_params: dict[str, tuple[Any, ...] | list[Any]] | Callable[[Any, Any], Any] | None
    privileged_params: bool
    observation_space: gym.Space | None
    action_space: gym.Space | None
    render_env: bool
    clip_rewards: bool | float | None
    normalize_actions: bool
    clip_actions: bool
    disable_env_checking: bool
    _is_atari: bool | None
    action_mask_key: str
    env_runner_cls: type | None
    num_env_runners: int
    create_local_env_runner: bool
    create_env_on_local_worker: bool
    num_envs_per_env_runner: int
    gym_env_vectorize_mode: str | gym.VectorizeMode
    num_cpus_per_env_runner: float
    num_gpus_per_env_runner: float
    custom_resources_per_env_runner: dict[str, float]
    validate_env_runners_after_construction: bool
    sample_timeout_s: float | None
    max_requests_in_flight_per_env_runner: int
    _env_to_module_connector: Callable[..., Any] | None
    env_to_module_connector: Callable[..., Any] | None
    _module_to_env_connector: Callable[..., Any] | None
    module_to_env_connector: Callable[..., Any] | None
    add_default_connectors_to_env_to_module_pipeline: bool
    add_default_connectors_to_module_to_env_pipeline: bool
    episode_lookback_horizon: int
    merge_env_runner_states: bool | str
    broadcast_env_runner_states: bool
    use_env_runner_state_server: bool
    env_runner_state_server_max_concurrency: int
    rollout_fragment_length: int | str
    batch_mode: str
    explore: bool
    episodes_to_numpy: bool
    replayable_episodes: bool
    num_learners: int
    learner_snapshot_interval: int
    num_cpus_per_learner: float | str
    num_gpus_per_learner: float
    custom_resources_per_learner: dict[str, float]
    num_aggregator_actors_per_learner: int
    max_requests_in_flight_per_aggregator_actor: float
    local_gpu_idx: int
    max_requests_in_flight_per_learner: int
    _learner_class: type[Learner] | None
    _learner_connector: Callable[..., Any] | None
    learner_connector: Callable[..., Any] | None
    add_default_connectors_to_learner_pipeline: bool
    learner_config_dict: dict[str, Any]
    num_shuffle_shards: int | None
    gamma: float
    lr: float | list[list[float]] | list[tuple[int, float]] | None
    grad_clip: float | None
    grad_clip_by: str
    train_batch_size: int
    _train_batch_size_per_learner: int | None
    num_epochs: int
    minibatch_size: int | None
    shuffle_batch_per_epoch: bool
    callbacks_class: type[RLlibCallback] | list[type[RLlibCallback]] | None
    callbacks_on_algorithm_init: Callable[..., Any] | list[Callable[..., Any]] | None
    on_algorithm_init: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_train_result: Callable[..., Any] | list[Callable[..., Any]] | None
    on_train_result: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_start: Callable[..., Any] | list[Callable[..., Any]] | None
    on_evaluate_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_end: Callable[..., Any] | list[Callable[..., Any]] | None
    on_evaluate_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_offline_start: Callable[..., Any] | list[Callable[..., Any]] | None
    on_evaluate_offline_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_offline_end: Callable[..., Any] | list[Callable[..., Any]] | None
    on_evaluate_offline_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_env_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    on_env_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_offline_eval_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    on_offline_eval_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_checkpoint_loaded: Callable[..., Any] | list[Callable[..., Any]] | None
    on_checkpoint_loaded: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_environment_created: Callable[..., Any] | list[Callable[..., Any]] | None
    on_environment_created: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_created: Callable[..., Any] | list[Callable[..., Any]] | None
    on_episode_created: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_start: Callable[..., Any] | list[Callable[..., Any]] | None
    on_episode_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_step: Callable[..., Any] | list[Callable[..., Any]] | None
    on_episode_step: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_end: Callable[..., Any] | list[Callable[..., Any]] | None
    on_episode_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_sample_end: Callable[..., Any] | list[Callable[..., Any]] | None
    on_sample_end: Callable[..., Any] | list[Callable[..., Any]] | None
    evaluation_interval: int | None
    evaluation_duration: int | str
    evaluation_duration_unit: str
    evaluation_auto_duration_min_env_steps_per_sample: int
    evaluation_auto_duration_max_env_steps_per_sample: int
    evaluation_sample_timeout_s: float | None
    evaluation_parallel_to_training: bool
    evaluation_unhealthy_workers_timeout_s: float
    evaluation_error_after_n_consecutive_skips: int | None
    evaluation_force_reset_envs_before_iteration: bool
    evaluation_config: AlgorithmConfig | dict[str, Any] | None
    evaluation_num_env_runners: int
    custom_evaluation_function: Callable[..., Any] | None
    evaluation_video_interval: int | None
    evaluation_video_dir: str | None
    offline_evaluation_interval: int | None
    num_offline_eval_runners: int
    offline_evaluation_type: str
    offline_eval_runner_class: type[OfflineEvaluationRunner] | None
    offline_loss_for_module_fn: Callable[..., Any] | None
    offline_eval_batch_size_per_runner: int
    dataset_num_iters_per_eval_runner: int
    dataset_num_iters_per_offline_eval_runner: int
    offline_eval_rl_module_inference_only: bool
    num_cpus_per_offline_eval_runner: float
    num_gpus_per_offline_eval_runner: float
    custom_resources_per_offline_eval_runner: dict[str, float]
    offline_evaluation_duration: int | str
    offline_evaluation_parallel_to_training: bool
    offline_evaluation_timeout_s: float
    max_requests_in_flight_per_offline_eval_runner: int
    broadcast_offline_eval_runner_states: bool
    validate_offline_eval_runners_after_construction: bool
    restart_failed_offline_eval_runners: bool
    ignore_offline_eval_runner_failures: bool
    max_num_offline_eval_runner_restarts: int
    offline_eval_runner_health_probe_timeout_s: float
    offline_eval_runner_restore_timeout_s: float
    off_policy_estimation_methods: dict[str, dict[str, Any] | str | type[OffPolicyEstimator]]
    input_: str | list[str] | dict[str, float]
    offline_data_class: type | None
    input_read_method: str | Callable[..., Any]
    input_read_method_kwargs: dict[str, Any]
    input_read_schema: dict[str, str]
    input_read_episodes: bool
    input_read_sample_batches: bool
    input_read_batch_size: int | None
    input_filesystem: str | Any | None
    input_filesystem_kwargs: dict[str, Any]
    input_compress_columns: list[str]
    materialize_data: bool
    materialize_mapped_data: bool
    map_batches_kwargs: dict[str, Any]
    iter_batches_kwargs: dict[str, Any]
    ignore_final_observation: bool
    prelearner_class: type | None
    prelearner_buffer_class: type | None
    prelearner_buffer_kwargs: dict[str, Any]
    prelearner_use_recorded_module_states: bool
    dataset_num_iters_per_learner: int | None
    keep_resident: bool | None
    max_resident_bytes: int | None
    normalize_observations: bool
    normalize_rewards: bool
    output: str | os.PathLike[str] | None
    output_format: str
    output_write_episodes: bool
    output_write_infos: bool
    output_max_rows_per_file: int
    output_write_remaining_data: bool
    output_compress_columns: list[str]
    output_write_method: str
    output_write_method_kwargs: dict[str, Any]
    output_filesystem: str | Any | None
    output_filesystem_kwargs: dict[str, Any]
    policies: Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None]
    policy_mapping_fn: Callable[..., str]
    policies_to_train: Collection[str] | Callable[..., bool] | None
    count_steps_by: str
    opponents: Any | None
    metrics_num_episodes_for_smoothing: int
    min_time_s_per_iteration: float | None
    min_train_timesteps_per_iteration: int | None
    min_sample_timesteps_per_iteration: int | None
    results_dir: str | os.PathLike[str] | None
    keep_best: bool | str
    checkpoint_frequency: int | None
    num_to_keep: int | Literal["sparse"] | None
    checkpoint_max_bytes: int | str | None
    loggers: Collection[str] | dict[str, dict[str, Any]] | None
    log_gradients: bool
    stats_cls_lookup: dict[str, type[StatsBase]]
    custom_stats_cls_lookup: dict[str, type[StatsBase]]
    log_level: str
    seed: int | None
    disable_jit: bool
    check_nans: bool | None
    profile_iterations: int | Collection[int] | None
    restart_failed_env_runners: bool
    ignore_env_runner_failures: bool
    max_num_env_runner_restarts: int
    delay_between_env_runner_restarts_s: float
    restart_failed_sub_environments: bool
    num_consecutive_env_runner_failures_tolerance: int
    env_runner_health_probe_timeout_s: float
    env_runner_restore_timeout_s: float
    _model_config: dict[str, Any] | DefaultModelConfig
    _rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None
    algorithm_config_overrides_per_module: dict[str, dict[str, Any]]
    _validate_config: bool
    _use_msgpack_checkpoints: bool
    _torch_grad_scaler_class: type | None
    _torch_lr_scheduler_classes: list[Callable[[Any], Any]] | dict[str, list[Callable[[Any], Any]]] | None
    _static_settings: Collection[str]
    def python_environment(
        self: _Config,
        *,
        extra_python_environs_for_driver: dict[str, str] | type[NotProvided] = ...,
        extra_python_environs_for_worker: dict[str, str] | type[NotProvided] = ...,
    ) -> _Config: ...
    def resources(
        self: _Config,
        *,
        num_cpus_for_main_process: int | type[NotProvided] = ...,
        custom_resources_for_main_process: dict[str, float] | type[NotProvided] = ...,
        placement_strategy: str | type[NotProvided] = ...,
        compilation_cache_dir: str | Literal[False] | None | type[NotProvided] = ...,
    ) -> _Config: ...
    def framework(
        self: _Config,
        framework: str | type[NotProvided] = ...,
        *,
        torch_compile_learner: bool | type[NotProvided] = ...,
        torch_compile_learner_what_to_compile: str | type[NotProvided] = ...,
        torch_compile_learner_dynamo_mode: str | None | type[NotProvided] = ...,
        torch_compile_learner_dynamo_backend: str | type[NotProvided] = ...,
        torch_ddp_kwargs: dict[str, Any] | type[NotProvided] = ...,
        torch_skip_nan_gradients: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def api_stack(
        self: _Config,
        enable_rl_module_and_learner: bool | type[NotProvided] = ...,
        enable_env_runner_and_connector_v2: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def environment(
        self: _Config,
        env: str | Any | None | type[NotProvided] = ...,
        *,
        env_config: dict[str, Any] | type[NotProvided] = ...,
        randomized_params: dict[str, tuple[Any, ...] | list[Any]] | Callable[[Any, Any], Any] | None | type[NotProvided] = ...,
        privileged_params: bool | type[NotProvided] = ...,
        observation_space: gym.Space | None | type[NotProvided] = ...,
        action_space: gym.Space | None | type[NotProvided] = ...,
        render_env: bool | type[NotProvided] = ...,
        clip_rewards: bool | float | None | type[NotProvided] = ...,
        normalize_actions: bool | type[NotProvided] = ...,
        clip_actions: bool | type[NotProvided] = ...,
        disable_env_checking: bool | type[NotProvided] = ...,
        is_atari: bool | None | type[NotProvided] = ...,
        action_mask_key: str | type[NotProvided] = ...,
    ) -> _Config: ...
    def env_runners(
        self: _Config,
        *,
        env_runner_cls: type | None | type[NotProvided] = ...,
        num_env_runners: int | type[NotProvided] = ...,
        create_local_env_runner: bool | type[NotProvided] = ...,
        create_env_on_local_worker: bool | type[NotProvided] = ...,
        num_envs_per_env_runner: int | type[NotProvided] = ...,
        gym_env_vectorize_mode: str | gym.VectorizeMode | type[NotProvided] = ...,
        num_cpus_per_env_runner: float | type[NotProvided] = ...,
        num_gpus_per_env_runner: float | type[NotProvided] = ...,
        custom_resources_per_env_runner: dict[str, float] | type[NotProvided] = ...,
        validate_env_runners_after_construction: bool | type[NotProvided] = ...,
        sample_timeout_s: float | None | type[NotProvided] = ...,
        max_requests_in_flight_per_env_runner: int | type[NotProvided] = ...,
        env_to_module_connector: Callable[..., Any] | None | type[NotProvided] = ...,
        module_to_env_connector: Callable[..., Any] | None | type[NotProvided] = ...,
        add_default_connectors_to_env_to_module_pipeline: bool | type[NotProvided] = ...,
        add_default_connectors_to_module_to_env_pipeline: bool | type[NotProvided] = ...,
        episode_lookback_horizon: int | type[NotProvided] = ...,
        merge_env_runner_states: bool | str | type[NotProvided] = ...,
        broadcast_env_runner_states: bool | type[NotProvided] = ...,
        use_env_runner_state_server: bool | type[NotProvided] = ...,
        env_runner_state_server_max_concurrency: int | type[NotProvided] = ...,
        rollout_fragment_length: int | str | type[NotProvided] = ...,
        batch_mode: str | type[NotProvided] = ...,
        explore: bool | type[NotProvided] = ...,
        episodes_to_numpy: bool | type[NotProvided] = ...,
        replayable_episodes: bool | type[NotProvided] = ...,
    ) -> _Config: ...
    def learners(
        self: _Config,
        *,
        num_learners: int | type[NotProvided] = ...,
        learner_snapshot_interval: int | type[NotProvided] = ...,
        num_cpus_per_learner: float | str | type[NotProvided] = ...,
        num_gpus_per_learner: float | type[NotProvided] = ...,
        custom_resources_per_learner: dict[str, float] | type[NotProvided] = ...,
        num_aggregator_actors_per_learner: int | type[NotProvided] = ...,
        max_requests_in_flight_per_aggregator_actor: float | type[NotProvided] = ...,
        local_gpu_idx: int | type[NotProvided] = ...,
        max_requests_in_flight_per_learner: int | type[NotProvided] = ...,
        learner_class: type[Learner] | None | type[NotProvided] = ...,
        learner_connector: Callable[..., Any] | None | type[NotProvided] = ...,
        add_default_connectors_to_learner_pipeline: bool | type[NotProvided] = ...,
        learner_config_dict: dict[str, Any] | type[NotProvided] = ...,
        num_shuffle_shards: int | None | type[NotProvided] = ...,
    ) -> _Config: ...
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
    ) -> _Config: ...
    def callbacks(
        self: _Config,
        callbacks_class: type[RLlibCallback] | list[type[RLlibCallback]] | None | type[NotProvided] = ...,
        *,
        on_algorithm_init: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_train_result: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_evaluate_start: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_evaluate_end: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_evaluate_offline_start: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_evaluate_offline_end: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_env_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_offline_eval_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_checkpoint_loaded: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_environment_created: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_episode_created: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_episode_start: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_episode_step: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_episode_end: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
        on_sample_end: Callable[..., Any] | list[Callable[..., Any]] | None | type[NotProvided] = ...,
    ) -> _Config: ...
    def evaluation(
        self: _Config,
        *,
        evaluation_interval: int | None | type[NotProvided] = ...,
        evaluation_duration: int | str | type[NotProvided] = ...,
        evaluation_duration_unit: str | type[NotProvided] = ...,
        evaluation_auto_duration_min_env_steps_per_sample: int | type[NotProvided] = ...,
        evaluation_auto_duration_max_env_steps_per_sample: int | type[NotProvided] = ...,
        evaluation_sample_timeout_s: float | None | type[NotProvided] = ...,
        evaluation_parallel_to_training: bool | type[NotProvided] = ...,
        evaluation_unhealthy_workers_timeout_s: float | type[NotProvided] = ...,
        evaluation_error_after_n_consecutive_skips: int | None | type[NotProvided] = ...,
        evaluation_force_reset_envs_before_iteration: bool | type[NotProvided] = ...,
        evaluation_config: AlgorithmConfig | dict[str, Any] | None | type[NotProvided] = ...,
        evaluation_num_env_runners: int | type[NotProvided] = ...,
        custom_evaluation_function: Callable[..., Any] | None | type[NotProvided] = ...,
        evaluation_video_interval: int | None | type[NotProvided] = ...,
        evaluation_video_dir: str | None | type[NotProvided] = ...,
        offline_evaluation_interval: int | None | type[NotProvided] = ...,
        num_offline_eval_runners: int | type[NotProvided] = ...,
        offline_evaluation_type: str | type[NotProvided] = ...,
        offline_eval_runner_class: type[OfflineEvaluationRunner] | None | type[NotProvided] = ...,
        offline_loss_for_module_fn: Callable[..., Any] | None | type[NotProvided] = ...,
        offline_eval_batch_size_per_runner: int | type[NotProvided] = ...,
        dataset_num_iters_per_offline_eval_runner: int | type[NotProvided] = ...,
        offline_eval_rl_module_inference_only: bool | type[NotProvided] = ...,
        num_cpus_per_offline_eval_runner: float | type[NotProvided] = ...,
        num_gpus_per_offline_eval_runner: float | type[NotProvided] = ...,
        custom_resources_per_offline_eval_runner: dict[str, float] | type[NotProvided] = ...,
        offline_evaluation_duration: int | str | type[NotProvided] = ...,
        offline_evaluation_parallel_to_training: bool | type[NotProvided] = ...,
        offline_evaluation_timeout_s: float | type[NotProvided] = ...,
        max_requests_in_flight_per_offline_eval_runner: int | type[NotProvided] = ...,
        broadcast_offline_eval_runner_states: bool | type[NotProvided] = ...,
        validate_offline_eval_runners_after_construction: bool | type[NotProvided] = ...,
        restart_failed_offline_eval_runners: bool | type[NotProvided] = ...,
        ignore_offline_eval_runner_failures: bool | type[NotProvided] = ...,
        max_num_offline_eval_runner_restarts: int | type[NotProvided] = ...,
        offline_eval_runner_health_probe_timeout_s: float | type[NotProvided] = ...,
        offline_eval_runner_restore_timeout_s: float | type[NotProvided] = ...,
        off_policy_estimation_methods: dict[str, dict[str, Any] | str | type[OffPolicyEstimator]] | type[NotProvided] = ...,
    ) -> _Config: ...
    def offline_data(
        self: _Config,
        *,
        input_: str | list[str] | dict[str, float] | type[NotProvided] = ...,
        offline_data_class: type | None | type[NotProvided] = ...,
        input_read_method: str | Callable[..., Any] | type[NotProvided] = ...,
        input_read_method_kwargs: dict[str, Any] | type[NotProvided] = ...,
        input_read_schema: dict[str, str] | type[NotProvided] = ...,
        input_read_episodes: bool | type[NotProvided] = ...,
        input_read_sample_batches: bool | type[NotProvided] = ...,
        input_read_batch_size: int | None | type[NotProvided] = ...,
        input_filesystem: str | Any | None | type[NotProvided] = ...,
        input_filesystem_kwargs: dict[str, Any] | type[NotProvided] = ...,
        input_compress_columns: list[str] | type[NotProvided] = ...,
        materialize_data: bool | type[NotProvided] = ...,
        materialize_mapped_data: bool | type[NotProvided] = ...,
        map_batches_kwargs: dict[str, Any] | type[NotProvided] = ...,
        iter_batches_kwargs: dict[str, Any] | type[NotProvided] = ...,
        ignore_final_observation: bool | type[NotProvided] = ...,
        prelearner_class: type | None | type[NotProvided] = ...,
        prelearner_buffer_class: type | None | type[NotProvided] = ...,
        prelearner_buffer_kwargs: dict[str, Any] | type[NotProvided] = ...,
        prelearner_use_recorded_module_states: bool | type[NotProvided] = ...,
        dataset_num_iters_per_learner: int | None | type[NotProvided] = ...,
        keep_resident: bool | None | type[NotProvided] = ...,
        max_resident_bytes: int | None | type[NotProvided] = ...,
        normalize_observations: bool | type[NotProvided] = ...,
        normalize_rewards: bool | type[NotProvided] = ...,
        output: str | os.PathLike[str] | None | type[NotProvided] = ...,
        output_format: str | type[NotProvided] = ...,
        output_write_episodes: bool | type[NotProvided] = ...,
        output_write_infos: bool | type[NotProvided] = ...,
        output_max_rows_per_file: int | type[NotProvided] = ...,
        output_write_remaining_data: bool | type[NotProvided] = ...,
        output_compress_columns: list[str] | type[NotProvided] = ...,
        output_write_method: str | type[NotProvided] = ...,
        output_write_method_kwargs: dict[str, Any] | type[NotProvided] = ...,
        output_filesystem: str | Any | None | type[NotProvided] = ...,
        output_filesystem_kwargs: dict[str, Any] | type[NotProvided] = ...,
    ) -> _Config: ...
    def multi_agent(
        self: _Config,
        *,
        policies: Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None] | type[NotProvided] = ...,
        policy_mapping_fn: Callable[..., str] | type[NotProvided] = ...,
        policies_to_train: Collection[str] | Callable[..., bool] | None | type[NotProvided] = ...,
        count_steps_by: str | type[NotProvided] = ...,
        opponents: Any | None | type[NotProvided] = ...,
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
    ) -> _Config: ...
    def checkpointing(
        self: _Config,
    ) -> _Config: ...
    def debugging(
        self: _Config,
        *,
        log_level: str | type[NotProvided] = ...,
        seed: int | None | type[NotProvided] = ...,
        disable_jit: bool | type[NotProvided] = ...,
        check_nans: bool | None | type[NotProvided] = ...,
        profile_iterations: int | Collection[int] | None | type[NotProvided] = ...,
    ) -> _Config: ...
    def fault_tolerance(
        self: _Config,
        *,
        restart_failed_env_runners: bool | type[NotProvided] = ...,
        ignore_env_runner_failures: bool | type[NotProvided] = ...,
        max_num_env_runner_restarts: int | type[NotProvided] = ...,
        delay_between_env_runner_restarts_s: float | type[NotProvided] = ...,
        restart_failed_sub_environments: bool | type[NotProvided] = ...,
        num_consecutive_env_runner_failures_tolerance: int | type[NotProvided] = ...,
        env_runner_health_probe_timeout_s: float | type[NotProvided] = ...,
        env_runner_restore_timeout_s: float | type[NotProvided] = ...,
    ) -> _Config: ...
    def rl_module(
        self: _Config,
        *,
        model_config: dict[str, Any] | DefaultModelConfig | type[NotProvided] = ...,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None | type[NotProvided] = ...,
        algorithm_config_overrides_per_module: dict[str, dict[str, Any]] | type[NotProvided] = ...,
    ) -> _Config: ...
    def experimental(
        self: _Config,
        *,
        _validate_config: bool | type[NotProvided] = ...,
        _use_msgpack_checkpoints: bool | type[NotProvided] = ...,
        _torch_grad_scaler_class: type | None | type[NotProvided] = ...,
        _torch_lr_scheduler_classes: list[Callable[[Any], Any]] | dict[str, list[Callable[[Any], Any]]] | None | type[NotProvided] = ...,
        _static_settings: Collection[str] | type[NotProvided] = ...,
    ) -> _Config: ...
    __slots__: Any
    _settings: Settings
    _resolved_envs: list[tuple[Any, bool]]
    _configs_of_modules: dict[str, Self]
    algo_class: Any
    in_evaluation: bool
    _sections: tuple[Section, ...]
    _defaults: Mapping[str, Any]
    _checks: Mapping[str, Check]
    _old_names: tuple[OldName, ...]
    _declarations: ClassVar[Declarations]
    _algorithm: ClassVar[str]
    _default_learner_class: ClassVar[type[Learner] | None]
    _default_module_class: ClassVar[type[RLModule] | None]
    _default_catalog_class: ClassVar[type[Catalog] | None]
    def __init__(self, algo_class: type | str | None=None):
        ...
    def _hold(self, settings: Settings) -> None:
        ...
    def __init_subclass__(cls, **kwargs: Any) -> None:
        ...
    @classmethod
    def _declare(cls) -> None:
        ...
    @classmethod
    def tuned(cls, env: str) -> Self:
        ...
    def _tuned_settings(self) -> dict[str, dict[str, Any]]:
        ...
    def _set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        ...
    def __setattr__(self, name: str, value: Any) -> None:
        ...
    def __getattr__(self, name: str) -> Any:
        ...
    @property
    def explicitly_set(self) -> frozenset[str]:
        ...
    def suggestion(self, name: str) -> str:
        ...
    def stored_value(self, name: str) -> Any:
        ...
    def stored_settings(self) -> list[tuple[Setting, Any]]:
        ...
    def setting(self, name: str) -> Setting | None:
        ...
    def setting_name(self, name: str) -> str:
        ...
    def _was_changed(self, setting: Setting) -> bool:
        ...
    def to_dict(self) -> dict[str, Any]:
        ...
    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        ...
    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        ...
    def get_state(self) -> dict[str, Any]:
        ...
    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AlgorithmConfig:
        ...
    def to_plain(self) -> dict[str, Any]:
        ...
    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Self:
        ...
    def serialize(self) -> dict[str, Any]:
        ...
    @classmethod
    def overrides(cls, **kwargs: Any) -> dict[str, Any]:
        ...
    def __getitem__(self, item: str) -> Any:
        ...
    def __setitem__(self, key: str, value: Any) -> None:
        ...
    def __contains__(self, item: object) -> bool:
        ...
    def get(self, key: str, default: Any=None) -> Any:
        ...
    def pop(self, key: str, default: Any=None) -> Any:
        ...
    def keys(self) -> KeysView[str]:
        ...
    def values(self) -> ValuesView[Any]:
        ...
    def items(self) -> ItemsView[str, Any]:
        ...
    def copy(self, copy_frozen: bool | None=None) -> Self:
        ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        ...
    def __getstate__(self) -> dict[str, Any]:
        ...
    def __setstate__(self, state: dict[str, Any]) -> None:
        ...
    def freeze(self) -> None:
        ...
    @property
    def is_frozen(self) -> bool:
        ...
    @property
    def _is_frozen(self) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def _repr_html_(self) -> str:
        ...
    @property
    def is_multi_agent(self) -> bool:
        ...
    @property
    def is_online(self) -> bool:
        ...
    @property
    def is_offline(self) -> bool:
        ...
    @property
    def reads_recorded_data(self) -> bool:
        ...
    @property
    def is_atari(self) -> bool:
        ...
    @is_atari.setter
    def is_atari(self, value: bool | None) -> None: ...
    @property
    def root_seed(self) -> int:
        ...
    @property
    def samples_on_device(self) -> bool:
        ...
    def _share_resolved_envs(self, other: AlgorithmConfig) -> None:
        ...
    def _resolve_env(self) -> ResolvedEnv:
        ...
    @property
    def num_sampling_actors(self) -> int:
        ...
    is_asynchronous: ClassVar[bool]
    @property
    def num_evaluation_actors(self) -> int:
        ...
    @property
    def num_prefilled_steps(self) -> int:
        ...
    @property
    def train_batch_size_per_learner(self) -> int:
        ...
    @train_batch_size_per_learner.setter
    def train_batch_size_per_learner(self, value: int | None) -> None: ...
    @property
    def total_train_batch_size(self) -> int:
        ...
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        ...
    @property
    def model_config(self) -> dict[str, Any]:
        ...
    @model_config.setter
    def model_config(self, value: dict[str, Any] | DefaultModelConfig) -> None: ...
    @property
    def learner_class(self) -> type[Learner]:
        ...
    @learner_class.setter
    def learner_class(self, value: type[Learner] | None) -> None: ...
    @property
    def rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        ...
    @rl_module_spec.setter
    def rl_module_spec(self, value: RLModuleSpec | MultiRLModuleSpec | None) -> None: ...
    def get_rollout_fragment_length(self, worker_index: int=0) -> int:
        ...
    @property
    def rounds_per_deal(self) -> int:
        ...
    def train_batch_blocks(self, counted_per_env_step: int=1) -> tuple[int, int]:
        ...
    @property
    def video_dir(self) -> str | None:
        ...
    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        ...
    def get_config_for_module(self, module_id: str) -> Self:
        ...
    def traced_values(self) -> dict[str, np.ndarray | schedules.ScheduleArrays]:
        ...
    def static_value(self, name: str) -> float | None:
        ...
    def _traced_settings(self) -> list[Setting]:
        ...
    def _is_traced(self, setting: Setting) -> bool:
        ...
    def _what_programs_are_made_of(self) -> list[Any]:
        ...
    def shares_programs_with(self, other: AlgorithmConfig) -> bool:
        ...
    def is_same(self, other: AlgorithmConfig, *names: str) -> bool:
        ...
    def differs_in_traced_settings_only(self, other: AlgorithmConfig, *, but_for: Collection[str]=()) -> bool:
        ...
    def sampling_hints(self) -> list[str]:
        ...
    def _hint_of_no_actors(self) -> str:
        ...
    def _hint_of_one_env(self) -> str:
        ...
    def settings_without_effect_on_device(self) -> list[str]:
        ...
    def get_default_rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        ...
    def get_default_learner_class(self) -> type[Learner]:
        ...
    def get_default_env_runner_class(self) -> type[EnvRunner]:
        ...
    def _default_env_to_module_connectors(self, observation_space: gym.Space, module_id: Any) -> list[ConnectorV2]:
        ...
    def _default_module_to_env_connectors(self) -> list[ConnectorV2]:
        ...
    def _default_learner_connectors(self) -> list[ConnectorV2]:
        ...
    def validate(self) -> None:
        ...
    def _validate_for_device(self) -> None:
        ...
    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        ...
    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        ...
    def _validate_minibatch_size(self) -> None:
        ...
    def _value_error(self, message: str) -> None:
        ...
    def _policy_ids(self) -> Collection[str]:
        ...
    @property
    def module_map(self) -> ModuleMap:
        ...
    def get_multi_agent_setup(self, *, policies: Mapping[str, Any] | None=None, env: Any=None, spaces: SpacesById | None=None, default_policy_class: Any=None) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
        ...
    def _given_specs(self) -> dict[str, RLModuleSpec]:
        ...
    def _uses_default_module(self) -> bool:
        ...
    def get_rl_module_spec(self, env: Any=None, spaces: SpacesById | None=None, inference_only: bool | None=None) -> RLModuleSpec:
        ...
    def get_multi_rl_module_spec(self, *, env: Any=None, spaces: SpacesById | None=None, inference_only: bool=False, policy_dict: Mapping[str, PolicySpec] | None=None, single_agent_rl_module_spec: RLModuleSpec | None=None) -> MultiRLModuleSpec:
        ...
    def action_mask_key_of(self, module_id: str | None, observation_space: Any, action_space: Any) -> str | None:
        ...
    def build_env_to_module_connector(self, env: Any=None, spaces: SpacesById | None=None, device: Any=None, *, module_id: str | None=None, agents: Collection[Any] | None=None, known_agents: Collection[Any]=()) -> EnvToModulePipeline:
        ...
    def build_module_to_env_connector(self, env: Any=None, spaces: SpacesById | None=None) -> ModuleToEnvPipeline:
        ...
    def build_learner_connector(self, input_observation_space: gym.Space | None, input_action_space: gym.Space | None, device: Any=None) -> LearnerConnectorPipeline:
        ...
    def agent_preprocessors(self, env: Any, spaces: SpacesById) -> list[MultiAgentObservationPreprocessor]:
        ...
    def user_connectors(self, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        ...
    def for_checkpoints(self, *pipelines: ConnectorPipelineV2) -> Self:
        ...
    def build_algo(self, env: Any=None, use_copy: bool=True) -> Algorithm:
        ...
    def build(self, env: Any=None, use_copy: bool=True) -> Algorithm:
        ...
    def build_learner(self, *, env: Any=None, spaces: SpacesById | None=None) -> Learner:
        ...
    def build_learner_group(self, *, env: Any=None, spaces: SpacesById | None=None, rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None=None, placement_group: Any=None) -> LearnerGroup:
        ...
    def with_settings(self, settings: Mapping[str, Any]) -> AlgorithmConfig:
        ...
    def why_no_population(self) -> str | None:
        ...
    def _known_result(self) -> dict[str, Any] | None:
        ...
    def can_be_members(self, other: AlgorithmConfig) -> bool:
        ...
    def settings_between_populations(self, other: AlgorithmConfig) -> list[str]:
        ...
    def build_population(self, seeds: int | Iterable[int] | None=None, *, num_samples: int=1, members: Sequence[Any] | None=None, on_divergence: Literal['freeze', 'raise']='freeze', members_at_once: int | None=None) -> Population:
        ...
    DEFAULT_POLICY_MAPPING_FN: Any
    @staticmethod
    def DEFAULT_AGENT_TO_MODULE_MAPPING_FN(agent_id: Any, episode: Any) -> str:
        ...
    def rollouts(self, *args: Any, **kwargs: Any) -> Self:
        ...
    def exploration(self, *args: Any, **kwargs: Any) -> Self:
        ...
    def get_marl_module_spec(self, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        ...
def _plain(value: Any) -> Any:
    ...
