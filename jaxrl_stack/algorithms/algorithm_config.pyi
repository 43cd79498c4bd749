# Made by `python -m jaxrl_stack.algorithms._stubs`; do not edit.
# ruff: noqa
from collections.abc import Callable, Collection
from typing import Any, Literal, Self
import gymnasium as gym
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.metrics.stats import StatsBase
from jaxrl_stack.utils.policy_spec import PolicySpec

import dataclasses
import functools
import html
import inspect
import sys
import warnings
from collections.abc import Callable, Collection, Hashable, ItemsView, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any
import gymnasium as gym
import jax
import numpy as np
from jaxrl_stack.algorithms.base_settings import BASE_SECTIONS, OLD_NAMES, default_policy_mapping_fn
from jaxrl_stack.algorithms.model_settings import problem_with_model_config
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.settings import Declarations, OldName, Section, Setting, as_dict, copy_value, fingerprint_of, fluent_method, is_search_space, same, short, traced_value
from jaxrl_stack.connectors.checks import check_env_to_module, check_pieces
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FlattenObservations
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ActionNoise, GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.core import DEFAULT_MODULE_ID, DEFAULT_POLICY_ID
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.registry import get_env_creator, register_env, resolve_env
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.plain_data import Plain
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.spaces import check_space, difference
from typing import Self
from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.env.env_runner import EnvRunner
__all__ = ['AlgorithmConfig', 'NotProvided', 'PolicySpec']
KEY_TRANSLATIONS: Any
ATTRIBUTE_TRANSLATIONS: Any
_INTERNAL_DEFAULTS: dict[str, Any]
NOT_IN_CHECKPOINTS: Any
_OF_THE_ALGORITHM: Any
_CACHES: Any
def _check_trusted(value: Any, loader: ClassLoader) -> None:
    """Refuse settings of a checkpoint that lead to code outside of it."""
    ...
class _ConfigMeta(type):
    "Closes a config for new names once its whole constructor, subclasses' included, has run."
    @property
    def __signature__(cls) -> inspect.Signature:
        ...
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        ...
class AlgorithmConfig(Plain):
    'The settings of an algorithm: set them by section, then build.\n\n::\n\n    config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003)\n    algo = config.build_algo()\n\nEvery section is a method that takes its settings as keywords and returns the config. A subclass declares\nsettings of its own in `_sections` (they get signature, documentation and checks), changes defaults in\n`_defaults`, or does both in its ``__init__`` by plain assignment.\n\nArgs:\n    algo_class: The Algorithm class that `build_algo` makes, or its name in the registry.'
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
    num_cpus_per_env_runner: int | float
    num_gpus_per_env_runner: int | float
    custom_resources_per_env_runner: dict[str, float]
    validate_env_runners_after_construction: bool
    sample_timeout_s: float | None
    max_requests_in_flight_per_env_runner: int
    _env_to_module_connector: Callable[..., Any] | None
    _module_to_env_connector: Callable[..., Any] | None
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
    num_learners: int
    learner_snapshot_interval: int
    num_cpus_per_learner: str | int | float
    num_gpus_per_learner: int | float
    custom_resources_per_learner: dict[str, float]
    num_aggregator_actors_per_learner: int
    max_requests_in_flight_per_aggregator_actor: int | float
    local_gpu_idx: int
    max_requests_in_flight_per_learner: int
    _learner_class: type[Learner] | None
    _learner_connector: Callable[..., Any] | None
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
    callbacks_class: type[RLlibCallback] | list[type[RLlibCallback]]
    callbacks_on_algorithm_init: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_train_result: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_offline_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_evaluate_offline_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_env_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_offline_eval_runners_recreated: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_checkpoint_loaded: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_environment_created: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_created: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_start: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_step: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_episode_end: Callable[..., Any] | list[Callable[..., Any]] | None
    callbacks_on_sample_end: Callable[..., Any] | list[Callable[..., Any]] | None
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
    offline_evaluation_interval: int | None
    num_offline_eval_runners: int
    offline_evaluation_type: str
    offline_eval_runner_class: type | None
    offline_loss_for_module_fn: Callable[..., Any] | None
    offline_eval_batch_size_per_runner: int
    dataset_num_iters_per_eval_runner: int
    offline_eval_rl_module_inference_only: bool
    num_cpus_per_offline_eval_runner: int | float
    num_gpus_per_offline_eval_runner: int | float
    custom_resources_per_offline_eval_runner: dict
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
    input_: str | list[str]
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
    output: str | None
    output_compress_columns: list[str]
    output_max_rows_per_file: int | None
    output_write_remaining_data: bool
    output_write_method: str
    output_write_method_kwargs: dict[str, Any]
    output_filesystem: str | Any | None
    output_filesystem_kwargs: dict[str, Any]
    output_write_episodes: bool
    policies: Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None]
    policy_mapping_fn: Callable[..., str]
    policies_to_train: Collection[str] | Callable[..., bool] | None
    count_steps_by: str
    metrics_num_episodes_for_smoothing: int
    min_time_s_per_iteration: float | None
    min_train_timesteps_per_iteration: int | None
    min_sample_timesteps_per_iteration: int | None
    log_gradients: bool
    stats_cls_lookup: dict[str, type[StatsBase]]
    log_level: str
    seed: int | None
    disable_jit: bool
    check_nans: bool
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
    _torch_lr_scheduler_classes: list | dict | None
    _static_settings: Collection[str]
    def python_environment(
        self,
        *,
        extra_python_environs_for_driver: dict[str, str] | type[NotProvided] = ...,
        extra_python_environs_for_worker: dict[str, str] | type[NotProvided] = ...,
    ) -> Self:
        """Sets the Python environment of the processes.

        Args:
            extra_python_environs_for_driver: Environment variables of the main process. Default: {}. No effect here: set os.environ before jax is imported.
            extra_python_environs_for_worker: Environment variables of the actors. Default: {}. No effect here: use ray.init(runtime_env={'env_vars': ...}).

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def resources(
        self,
        *,
        num_cpus_for_main_process: int | type[NotProvided] = ...,
        custom_resources_for_main_process: dict[str, float] | type[NotProvided] = ...,
        placement_strategy: str | type[NotProvided] = ...,
        compilation_cache_dir: str | Literal[False] | None | type[NotProvided] = ...,
    ) -> Self:
        """Sets what the main process may use.

        Args:
            num_cpus_for_main_process: CPUs that a tuner reserves for the main process of a trial. Default: 1.
            custom_resources_for_main_process: Ray resources that a tuner reserves for the main process of a trial. Default: {}.
            placement_strategy: Strategy of the Ray placement group. Default: 'PACK'.
            compilation_cache_dir: Folder in which compiled programs outlive the process; 'auto' is one in the user's cache folder, None or False none. Default: 'auto'.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def framework(
        self,
        framework: str | type[NotProvided] = ...,
        *,
        torch_compile_learner: bool | type[NotProvided] = ...,
        torch_compile_learner_what_to_compile: str | type[NotProvided] = ...,
        torch_compile_learner_dynamo_mode: str | None | type[NotProvided] = ...,
        torch_compile_learner_dynamo_backend: str | type[NotProvided] = ...,
        torch_ddp_kwargs: dict[str, Any] | type[NotProvided] = ...,
        torch_skip_nan_gradients: bool | type[NotProvided] = ...,
    ) -> Self:
        """Sets the framework; there is one.

        Args:
            framework: 'jax'. 'torch' is understood as 'jax', with a notice. Default: 'jax'.
            torch_compile_learner: Compile in the Learner. Default: False. No effect here: programs are always compiled by XLA; leave it out.
            torch_compile_learner_what_to_compile: What to compile. Default: 'forward_train'. No effect here: programs are always compiled by XLA; leave it out.
            torch_compile_learner_dynamo_mode: Compiler mode. Default: None. No effect here: programs are always compiled by XLA; leave it out.
            torch_compile_learner_dynamo_backend: Compiler backend. Default: 'inductor'. No effect here: programs are always compiled by XLA; leave it out.
            torch_ddp_kwargs: Options of torch's data-parallel wrapper. Default: {}. No effect here: gradients are averaged over devices by XLA; leave it out.
            torch_skip_nan_gradients: Skip an optimizer step whose gradients are not all finite (False: non-finite entries become finite numbers). Default: False.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def api_stack(
        self,
        enable_rl_module_and_learner: bool | type[NotProvided] = ...,
        enable_env_runner_and_connector_v2: bool | type[NotProvided] = ...,
    ) -> Self:
        """Chooses the API stack; there is one.

        Args:
            enable_rl_module_and_learner: RLModules and Learners. Default: True.
            enable_env_runner_and_connector_v2: EnvRunners and ConnectorV2s. Default: True.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def environment(
        self,
        env: str | Any | None | type[NotProvided] = ...,
        *,
        env_config: dict[str, Any] | type[NotProvided] = ...,
        observation_space: gym.Space | None | type[NotProvided] = ...,
        action_space: gym.Space | None | type[NotProvided] = ...,
        render_env: bool | type[NotProvided] = ...,
        clip_rewards: bool | float | None | type[NotProvided] = ...,
        normalize_actions: bool | type[NotProvided] = ...,
        clip_actions: bool | type[NotProvided] = ...,
        disable_env_checking: bool | type[NotProvided] = ...,
        is_atari: bool | None | type[NotProvided] = ...,
        action_mask_key: str | type[NotProvided] = ...,
    ) -> Self:
        """Sets the environment.

        Args:
            env: Name ('gymnax/CartPole-v1', a gymnasium id, a registered name), class, or object. Default: None.
            env_config: Arguments of the environment. Merged into the present ones. Default: {}.
            observation_space: Observation space of one environment, if not the environment's own. Default: None.
            action_space: Action space of one environment, if not the environment's own. Default: None.
            render_env: Show the environments while training. Default: False. No effect here: render from an on_episode_step callback, or play the trained policy.
            clip_rewards: Rewards that the learner sees: None or False as they are, True their sign, a number clips them to ± that number. Episodes, callbacks, replay buffers and statistics have the environment's. Default: None.
            normalize_actions: The policy acts in [-1, 1]; a connector maps that to the bounds of Box action spaces. Default: True.
            clip_actions: Clip actions to the bounds of Box action spaces (if they are not normalized). Default: False.
            disable_env_checking: Skip the check of the environment's interface. Default: False.
            is_atari: Whether it is an Atari environment; None decides by its name. Default: None.
            action_mask_key: Key of the action mask in Dict observations. Default: 'action_mask'. No effect here: read the mask from batch['obs'] in an RLModule of your own.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def env_runners(
        self,
        *,
        env_runner_cls: type | None | type[NotProvided] = ...,
        num_env_runners: int | type[NotProvided] = ...,
        create_local_env_runner: bool | type[NotProvided] = ...,
        create_env_on_local_worker: bool | type[NotProvided] = ...,
        num_envs_per_env_runner: int | type[NotProvided] = ...,
        gym_env_vectorize_mode: str | gym.VectorizeMode | type[NotProvided] = ...,
        num_cpus_per_env_runner: int | float | type[NotProvided] = ...,
        num_gpus_per_env_runner: int | float | type[NotProvided] = ...,
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
    ) -> Self:
        """Sets how experience is sampled.

        Args:
            env_runner_cls: EnvRunner class; None takes the single- or multi-agent one. Default: None.
            num_env_runners: EnvRunner actors; 0 samples in the main process. Counts as 0 where the environment runs on the device. Default: 0.
            create_local_env_runner: Keep an EnvRunner in the main process beside the actors. Default: True.
            create_env_on_local_worker: Give that local EnvRunner environments, too. Default: False.
            num_envs_per_env_runner: Environments that are stepped together. On the device driver: all of them, over all devices. Default: 1.
            gym_env_vectorize_mode: How gymnasium environments are stepped together: 'sync', 'async' or 'vector_entry_point'. Default: 'sync'.
            num_cpus_per_env_runner: CPUs of each EnvRunner actor. Default: 1.
            num_gpus_per_env_runner: GPUs of each EnvRunner actor; above 0 its policy runs there. Default: 0.
            custom_resources_per_env_runner: Ray resources of each EnvRunner actor. Default: {}.
            validate_env_runners_after_construction: Wait until all EnvRunner actors answer before training starts. Default: True.
            sample_timeout_s: Longest wait for the actors in one synchronous round of sampling, in seconds. Default: 60.0.
            max_requests_in_flight_per_env_runner: Pending sample requests per actor (asynchronous algorithms). Default: 1.
            env_to_module_connector: Function (env, spaces, device), or of the first two, one or none of these, that returns a connector piece or a list of pieces to put in front of the default ones. Default: None.
            module_to_env_connector: Function (env, spaces), or of fewer, that returns a connector piece or a list of pieces; they run before actions are normalized and clipped. Default: None.
            add_default_connectors_to_env_to_module_pipeline: Append the default env-to-module pieces. Default: True.
            add_default_connectors_to_module_to_env_pipeline: Add the default module-to-env pieces. Default: True.
            episode_lookback_horizon: Steps of the previous chunk that a chunk of an episode keeps. Default: 1.
            merge_env_runner_states: Merge the connector states of the actors: True, False or 'training_only'. Default: 'training_only'.
            broadcast_env_runner_states: Send the merged states back to the actors. Default: True.
            use_env_runner_state_server: Let the actors pull states from one actor (asynchronous algorithms). Default: False. Other values come later; actors get new states with every update; leave it out.
            env_runner_state_server_max_concurrency: Requests that the state actor serves at a time. Default: 16. Other values come later; there is no state server; leave it out.
            rollout_fragment_length: Steps per environment and sampling round; 'auto' fits the train batch. Default: 200.
            batch_mode: 'truncate_episodes' samples fixed numbers of steps, 'complete_episodes' whole episodes (host environments only). Default: 'truncate_episodes'.
            explore: Sample actions (True) or take the greedy ones. Default: True.
            episodes_to_numpy: Turn the episodes that sample() returns into arrays. Default: True.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def learners(
        self,
        *,
        num_learners: int | type[NotProvided] = ...,
        learner_snapshot_interval: int | type[NotProvided] = ...,
        num_cpus_per_learner: str | int | float | type[NotProvided] = ...,
        num_gpus_per_learner: int | float | type[NotProvided] = ...,
        custom_resources_per_learner: dict[str, float] | type[NotProvided] = ...,
        num_aggregator_actors_per_learner: int | type[NotProvided] = ...,
        max_requests_in_flight_per_aggregator_actor: int | float | type[NotProvided] = ...,
        local_gpu_idx: int | type[NotProvided] = ...,
        max_requests_in_flight_per_learner: int | type[NotProvided] = ...,
        learner_class: type[Learner] | None | type[NotProvided] = ...,
        learner_connector: Callable[..., Any] | None | type[NotProvided] = ...,
        add_default_connectors_to_learner_pipeline: bool | type[NotProvided] = ...,
        learner_config_dict: dict[str, Any] | type[NotProvided] = ...,
        num_shuffle_shards: int | None | type[NotProvided] = ...,
    ) -> Self:
        """Sets where and how the learner runs.

        Args:
            num_learners: Learner actors; 0 learns in the main process. Several update together, as one. Default: 0.
            learner_snapshot_interval: Updates (calls of the compiled program, on JAX environments) between two copies of the training state: as many are lost at most when a Learner actor dies, or when an update fails while it runs. In this process copies take 1 % of the time at most: fast updates are copied more seldom. Default: 10.
            num_cpus_per_learner: CPU devices of a learner on a machine without accelerator; 'auto' is one. Default: 'auto'.
            num_gpus_per_learner: Accelerators of a learner. Unless it is set, all local ones are used; an explicit 0 means the CPU. Default: 0.
            custom_resources_per_learner: Ray resources of each Learner actor. Default: {}.
            num_aggregator_actors_per_learner: Actors that run the learner connector (IMPALA, APPO). Default: 0. Other values come later; learners run their connectors themselves; leave it out.
            max_requests_in_flight_per_aggregator_actor: Pending requests per aggregator actor (IMPALA, APPO). Default: 3.
            local_gpu_idx: First accelerator that the learner of the main process takes. Default: 0.
            max_requests_in_flight_per_learner: Pending updates per Learner (IMPALA, APPO). Default: 3.
            learner_class: Learner class; None takes the algorithm's own. Default: None.
            learner_connector: Function (observation_space, action_space), or of fewer, that returns a connector piece or a list of pieces to put in front of the default ones. Default: None.
            add_default_connectors_to_learner_pipeline: Append the algorithm's own learner pieces (PPO: advantages and value targets). Default: True.
            learner_config_dict: Free settings for a Learner of your own. Merged into the present ones. Default: {}.
            num_shuffle_shards: Parts of a train batch that are shuffled on their own; None is one per device. Equal numbers of shards give equal updates on any number of devices. Default: None.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def training(
        self,
        *,
        gamma: float | type[NotProvided] = ...,
        lr: float | list[list[float]] | list[tuple[int, float]] | None | type[NotProvided] = ...,
        grad_clip: float | None | type[NotProvided] = ...,
        grad_clip_by: str | type[NotProvided] = ...,
        train_batch_size_per_learner: int | None | type[NotProvided] = ...,
        num_epochs: int | type[NotProvided] = ...,
        minibatch_size: int | None | type[NotProvided] = ...,
        shuffle_batch_per_epoch: bool | type[NotProvided] = ...,
    ) -> Self:
        """Sets how the policy is trained.

        Args:
            gamma: Discount factor of the returns. Default: 0.99. Traced: other values do not recompile.
            lr: Learning rate. Default: 0.001. Number or schedule [[0, value], [timestep, value], ...]; traced.
            grad_clip: Threshold of gradient clipping; None and 0 switch it off. Default: None. Traced: other values do not recompile.
            grad_clip_by: What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients). Default: 'global_norm'.
            train_batch_size_per_learner: Env steps per update and learner; None takes the algorithm's default. Default: None.
            num_epochs: Passes over the train batch per update. Default: 1.
            minibatch_size: Rows per gradient step and learner; None takes the whole batch. Default: None.
            shuffle_batch_per_epoch: Shuffle the rows in every epoch (with more than one epoch). Default: False.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def callbacks(
        self,
        callbacks_class: type[RLlibCallback] | list[type[RLlibCallback]] | type[NotProvided] = ...,
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
    ) -> Self:
        """Sets what is called when something happens.

        Args:
            callbacks_class: Subclass of RLlibCallback, or a list of subclasses. Default: RLlibCallback.
            on_algorithm_init: Function, or list of functions, called once the algorithm is built. Default: None.
            on_train_result: Function, or list of functions, called after each iteration; it may edit the result. Default: None.
            on_evaluate_start: Function, or list of functions, called before each evaluation. Default: None.
            on_evaluate_end: Function, or list of functions, called after each evaluation. Default: None.
            on_evaluate_offline_start: Function, or list of functions, called before each offline evaluation. Default: None.
            on_evaluate_offline_end: Function, or list of functions, called after each offline evaluation. Default: None.
            on_env_runners_recreated: Function, or list of functions, called after EnvRunner actors were restarted. Default: None.
            on_offline_eval_runners_recreated: Function, or list of functions, called after offline evaluation actors were restarted. Default: None.
            on_checkpoint_loaded: Function, or list of functions, called after a checkpoint was loaded. Default: None.
            on_environment_created: Function, or list of functions, called when environments have been made. Default: None.
            on_episode_created: Function, or list of functions, called before an environment is reset. Default: None.
            on_episode_start: Function, or list of functions, called after an environment was reset. Default: None.
            on_episode_step: Function, or list of functions, called after each step. Default: None.
            on_episode_end: Function, or list of functions, called when an episode is over. Default: None.
            on_sample_end: Function, or list of functions, called at the end of sample(). Default: None.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def evaluation(
        self,
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
        offline_evaluation_interval: int | None | type[NotProvided] = ...,
        num_offline_eval_runners: int | type[NotProvided] = ...,
        offline_evaluation_type: str | type[NotProvided] = ...,
        offline_eval_runner_class: type | None | type[NotProvided] = ...,
        offline_loss_for_module_fn: Callable[..., Any] | None | type[NotProvided] = ...,
        offline_eval_batch_size_per_runner: int | type[NotProvided] = ...,
        dataset_num_iters_per_offline_eval_runner: int | type[NotProvided] = ...,
        offline_eval_rl_module_inference_only: bool | type[NotProvided] = ...,
        num_cpus_per_offline_eval_runner: int | float | type[NotProvided] = ...,
        num_gpus_per_offline_eval_runner: int | float | type[NotProvided] = ...,
        custom_resources_per_offline_eval_runner: dict | type[NotProvided] = ...,
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
    ) -> Self:
        """Sets how the policy is evaluated.

        Args:
            evaluation_interval: Evaluate every that many iterations; None or 0 never. Default: None.
            evaluation_duration: How much one evaluation samples, in evaluation_duration_unit. Default: 10.
            evaluation_duration_unit: 'episodes' or 'timesteps'. Default: 'episodes'.
            evaluation_auto_duration_min_env_steps_per_sample: Fewest steps per round with evaluation_duration='auto'. Default: 100.
            evaluation_auto_duration_max_env_steps_per_sample: Most steps per round with evaluation_duration='auto'. Default: 2000.
            evaluation_sample_timeout_s: Longest duration of one evaluation, in seconds. Default: 120.0.
            evaluation_parallel_to_training: Evaluate while training goes on, with the weights of before the iteration. Needs evaluation_num_env_runners > 0. Default: False.
            evaluation_unhealthy_workers_timeout_s: Wait for a healthy evaluation actor before an evaluation is skipped, in seconds. Default: 0.0.
            evaluation_error_after_n_consecutive_skips: Most evaluations that may be skipped in a row; one more raises. None: any number. Default: None.
            evaluation_force_reset_envs_before_iteration: Reset all environments at the start of each evaluation. Default: True.
            evaluation_config: Settings that differ in evaluation, such as {'explore': False}. Merged into the present ones. Default: None.
            evaluation_num_env_runners: EnvRunner actors for evaluation; 0 evaluates in the main process. Default: 0.
            custom_evaluation_function: f(algorithm, eval_env_runner_group) -> (results, env_steps, agent_steps) in place of the evaluation. Default: None.
            offline_evaluation_interval: Evaluate on recorded data every N iterations. Default: None. Other values come later; offline data is not supported yet, leave it out.
            num_offline_eval_runners: Actors for offline evaluation. Default: 0. Other values come later; offline data is not supported yet, leave it out.
            offline_evaluation_type: 'eval_loss', 'is' or 'pdis'. Default: 'eval_loss'. Other values come later; offline data is not supported yet, leave it out.
            offline_eval_runner_class: Runner class. Default: None. Other values come later; offline data is not supported yet, leave it out.
            offline_loss_for_module_fn: Loss for 'eval_loss'. Default: None. Other values come later; offline data is not supported yet, leave it out.
            offline_eval_batch_size_per_runner: Rows per batch. Default: 256. Other values come later; offline data is not supported yet, leave it out.
            dataset_num_iters_per_offline_eval_runner: Batches per call. Default: 1. Other values come later; offline data is not supported yet, leave it out.
            offline_eval_rl_module_inference_only: Inference-only module. Default: False. Other values come later; offline data is not supported yet, leave it out.
            num_cpus_per_offline_eval_runner: CPUs per actor. Default: 1. Other values come later; offline data is not supported yet, leave it out.
            num_gpus_per_offline_eval_runner: GPUs per actor. Default: 0. Other values come later; offline data is not supported yet, leave it out.
            custom_resources_per_offline_eval_runner: Ray resources per actor. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            offline_evaluation_duration: Batches, or 'auto'. Default: 1. Other values come later; offline data is not supported yet, leave it out.
            offline_evaluation_parallel_to_training: Beside training. Default: False. Other values come later; offline data is not supported yet, leave it out.
            offline_evaluation_timeout_s: Longest wait, in seconds. Default: 120.0. Other values come later; offline data is not supported yet, leave it out.
            max_requests_in_flight_per_offline_eval_runner: Pending requests. Default: 1. Other values come later; offline data is not supported yet, leave it out.
            broadcast_offline_eval_runner_states: Send states back. Default: False. Other values come later; offline data is not supported yet, leave it out.
            validate_offline_eval_runners_after_construction: Ping actors. Default: True. Other values come later; offline data is not supported yet, leave it out.
            restart_failed_offline_eval_runners: Restart lost actors. Default: True. Other values come later; offline data is not supported yet, leave it out.
            ignore_offline_eval_runner_failures: Go on without lost actors. Default: False. Other values come later; offline data is not supported yet, leave it out.
            max_num_offline_eval_runner_restarts: Restarts per actor. Default: 1000. Other values come later; offline data is not supported yet, leave it out.
            offline_eval_runner_health_probe_timeout_s: Ping timeout. Default: 30.0. Other values come later; offline data is not supported yet, leave it out.
            offline_eval_runner_restore_timeout_s: Restore timeout. Default: 1800.0. Other values come later; offline data is not supported yet, leave it out.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def offline_data(
        self,
        *,
        input_: str | list[str] | type[NotProvided] = ...,
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
        output: str | None | type[NotProvided] = ...,
        output_compress_columns: list[str] | type[NotProvided] = ...,
        output_max_rows_per_file: int | None | type[NotProvided] = ...,
        output_write_remaining_data: bool | type[NotProvided] = ...,
        output_write_method: str | type[NotProvided] = ...,
        output_write_method_kwargs: dict[str, Any] | type[NotProvided] = ...,
        output_filesystem: str | Any | None | type[NotProvided] = ...,
        output_filesystem_kwargs: dict[str, Any] | type[NotProvided] = ...,
        output_write_episodes: bool | type[NotProvided] = ...,
    ) -> Self:
        """Sets reading and writing of recorded experience.

        Args:
            input_: Path or list of paths of recorded data; 'sampler' is none. Default: 'sampler'. Other values come later; offline data is not supported yet, leave it out.
            offline_data_class: OfflineData subclass. Default: None. Other values come later; offline data is not supported yet, leave it out.
            input_read_method: Reader of ray.data. Default: 'read_parquet'. Other values come later; offline data is not supported yet, leave it out.
            input_read_method_kwargs: Arguments of the reader. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            input_read_schema: Column name → name in the data. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            input_read_episodes: Rows are packed episodes. Default: False. Other values come later; offline data is not supported yet, leave it out.
            input_read_sample_batches: Rows are old sample batches. Default: False. Other values come later; offline data is not supported yet, leave it out.
            input_read_batch_size: Rows per map call. Default: None. Other values come later; offline data is not supported yet, leave it out.
            input_filesystem: 'gcs', 's3', 'abs' or a file system. Default: None. Other values come later; offline data is not supported yet, leave it out.
            input_filesystem_kwargs: Arguments of the file system. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            input_compress_columns: Packed columns. Default: ['obs', 'new_obs']. Other values come later; offline data is not supported yet, leave it out.
            materialize_data: Keep the raw data in memory. Default: False. Other values come later; offline data is not supported yet, leave it out.
            materialize_mapped_data: Keep the prepared data in memory. Default: True. Other values come later; offline data is not supported yet, leave it out.
            map_batches_kwargs: Arguments of map_batches. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            iter_batches_kwargs: Arguments of iter_batches. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            ignore_final_observation: Zeros in place of next observations. Default: False. Other values come later; offline data is not supported yet, leave it out.
            prelearner_class: OfflinePreLearner subclass. Default: None. Other values come later; offline data is not supported yet, leave it out.
            prelearner_buffer_class: Buffer between data and learner. Default: None. Other values come later; offline data is not supported yet, leave it out.
            prelearner_buffer_kwargs: Arguments of that buffer. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            prelearner_use_recorded_module_states: Keep recorded states. Default: False. Other values come later; offline data is not supported yet, leave it out.
            dataset_num_iters_per_learner: Batches per training step. Default: None. Other values come later; offline data is not supported yet, leave it out.
            output: Folder to record experience in. Default: None. Other values come later; offline data is not supported yet, leave it out.
            output_compress_columns: Columns to pack. Default: ['obs', 'new_obs']. Other values come later; offline data is not supported yet, leave it out.
            output_max_rows_per_file: Rows per file. Default: None. Other values come later; offline data is not supported yet, leave it out.
            output_write_remaining_data: Write the rest at the end. Default: False. Other values come later; offline data is not supported yet, leave it out.
            output_write_method: Writer of ray.data. Default: 'write_parquet'. Other values come later; offline data is not supported yet, leave it out.
            output_write_method_kwargs: Arguments of the writer. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            output_filesystem: File system of the output. Default: None. Other values come later; offline data is not supported yet, leave it out.
            output_filesystem_kwargs: Arguments of that file system. Default: {}. Other values come later; offline data is not supported yet, leave it out.
            output_write_episodes: Record episodes, else one row per step. Default: True. Other values come later; offline data is not supported yet, leave it out.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def multi_agent(
        self,
        *,
        policies: Collection[str] | dict[str, PolicySpec | tuple[Any, ...] | None] | type[NotProvided] = ...,
        policy_mapping_fn: Callable[..., str] | type[NotProvided] = ...,
        policies_to_train: Collection[str] | Callable[..., bool] | None | type[NotProvided] = ...,
        count_steps_by: str | type[NotProvided] = ...,
    ) -> Self:
        """Sets which agents use which policies.

        Args:
            policies: Policy (module) ids, or a dict from id to PolicySpec. Default: {'default_policy': PolicySpec(policy_class=None, observatio….
            policy_mapping_fn: f(agent_id, episode, **kwargs) -> policy id. Default: default_policy_mapping_fn.
            policies_to_train: Ids of the policies to update, or f(module_id, batch) -> bool; None updates all. Default: None.
            count_steps_by: Unit of batch sizes and counters: 'env_steps' or 'agent_steps'. Default: 'env_steps'.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def reporting(
        self,
        *,
        metrics_num_episodes_for_smoothing: int | type[NotProvided] = ...,
        min_time_s_per_iteration: float | None | type[NotProvided] = ...,
        min_train_timesteps_per_iteration: int | None | type[NotProvided] = ...,
        min_sample_timesteps_per_iteration: int | None | type[NotProvided] = ...,
        log_gradients: bool | type[NotProvided] = ...,
        custom_stats_cls_lookup: dict[str, type[StatsBase]] | type[NotProvided] = ...,
    ) -> Self:
        """Sets what an iteration is and what its result holds.

        Args:
            metrics_num_episodes_for_smoothing: Last episodes over which episode statistics are taken. Default: 100.
            min_time_s_per_iteration: Least duration of an iteration, in seconds. Default: None.
            min_train_timesteps_per_iteration: Fewest trained env steps in an iteration. Default: 0.
            min_sample_timesteps_per_iteration: Fewest sampled env steps in an iteration. Default: 0.
            log_gradients: Report the norms of the gradients before clipping. Default: False. No effect here: they are always reported; leave it out.
            custom_stats_cls_lookup: Name of a reduction → class of statistics that does it. Merged into the built-in ones. Default: {'mean': <class 'jaxrl_stack.utils.metrics.stats.mean.MeanS….

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def checkpointing(
        self,
    ) -> Self:
        """Takes no settings any more; checkpoints hold the whole state.

        Args:

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def debugging(
        self,
        *,
        log_level: str | type[NotProvided] = ...,
        seed: int | None | type[NotProvided] = ...,
        disable_jit: bool | type[NotProvided] = ...,
        check_nans: bool | type[NotProvided] = ...,
    ) -> Self:
        """Sets seeds, logging and help with errors.

        Args:
            log_level: Level of the logger 'jaxrl_stack'. Default: 'WARN'.
            seed: Seed of everything that is random; None is 0. Default: None.
            disable_jit: Run the same code eagerly, operation by operation: slow, but print and debuggers work in it. Default: False.
            check_nans: Raise at the first loss or gradient that is not finite, naming iteration, module and tensor. Default: False.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def fault_tolerance(
        self,
        *,
        restart_failed_env_runners: bool | type[NotProvided] = ...,
        ignore_env_runner_failures: bool | type[NotProvided] = ...,
        max_num_env_runner_restarts: int | type[NotProvided] = ...,
        delay_between_env_runner_restarts_s: float | type[NotProvided] = ...,
        restart_failed_sub_environments: bool | type[NotProvided] = ...,
        num_consecutive_env_runner_failures_tolerance: int | type[NotProvided] = ...,
        env_runner_health_probe_timeout_s: float | type[NotProvided] = ...,
        env_runner_restore_timeout_s: float | type[NotProvided] = ...,
    ) -> Self:
        """Sets what happens when actors or environments fail.

        Args:
            restart_failed_env_runners: Restart EnvRunner actors that are lost, or whose environments fail. Default: True.
            ignore_env_runner_failures: Go on without such actors where they are not restarted. Default: False.
            max_num_env_runner_restarts: Restarts per actor. Default: 1000.
            delay_between_env_runner_restarts_s: Least time between two restarts of an actor whose environments fail, in seconds. The first restart and those of lost processes are immediate. Default: 60.0.
            restart_failed_sub_environments: Make an environment anew that raises, or returns NaN or infinity, and leave its episode out. Default: False.
            num_consecutive_env_runner_failures_tolerance: Failures of actors or environments in a row, without a successful sample, before an error is raised. Default: 100.
            env_runner_health_probe_timeout_s: Longest wait for a sign of life. Default: 30.0.
            env_runner_restore_timeout_s: Longest wait for a restored state. Default: 1800.0.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def rl_module(
        self,
        *,
        model_config: dict[str, Any] | DefaultModelConfig | type[NotProvided] = ...,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None | type[NotProvided] = ...,
        algorithm_config_overrides_per_module: dict[str, dict[str, Any]] | type[NotProvided] = ...,
    ) -> Self:
        """Sets the networks.

        Args:
            model_config: Settings of the default networks: a DefaultModelConfig, or a dict that is free for RLModules of your own. Default: {}.
            rl_module_spec: RLModuleSpec or MultiRLModuleSpec; None takes the algorithm's default module. Default: None.
            algorithm_config_overrides_per_module: Module id → settings that differ for that module; make them with overrides(...). Default: {}.

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    def experimental(
        self,
        *,
        _validate_config: bool | type[NotProvided] = ...,
        _use_msgpack_checkpoints: bool | type[NotProvided] = ...,
        _torch_grad_scaler_class: type | None | type[NotProvided] = ...,
        _torch_lr_scheduler_classes: list | dict | None | type[NotProvided] = ...,
        _static_settings: Collection[str] | type[NotProvided] = ...,
    ) -> Self:
        """Sets what may change without notice.

        Args:
            _validate_config: Whether validate() raises; a call of experimental() without it switches it on again. Default: True.
            _use_msgpack_checkpoints: Write state files as msgpack. Default: False. No effect here: states are stored as arrays; leave it out.
            _torch_grad_scaler_class: Loss scaling for half precision. Default: None. No effect here: chain optax transformations in Learner.configure_optimizers_for_module().
            _torch_lr_scheduler_classes: Learning rate schedulers. Default: None. No effect here: use lr=[[0, v0], [t1, v1], ...].
            _static_settings: Traced settings to bake into the program as Python numbers, so that Python code can branch on them; each value then compiles its own program. Default: ().

        Returns:
            This config, so that calls chain. What is not passed stays as it is.

        Raises:
            TypeError: If an argument is no setting of this section; names the setting that was probably meant.
            ValueError: If a value cannot be right, or a name has been replaced by another.
            AttributeError: If the config is frozen.
        """
        ...
    _sections: tuple[Section, ...]
    _defaults: Mapping[str, Any]
    _old_names: tuple[OldName, ...]
    _declarations: Declarations
    def __init__(self, algo_class: type | str | None=None):
        ...
    def __init_subclass__(cls, **kwargs: Any) -> None:
        ...
    @classmethod
    def _declare(cls) -> None:
        """Read this class's declarations and make the methods of the sections that it adds to."""
        ...
    def _set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        """Set what a call of a section's method passed: all of it or, if something is wrong, nothing."""
        ...
    def _mapped(self, old: OldName, where: str, is_key: bool) -> Setting:
        """The setting that an old name stands for, after a warning.

    Raises:
        ValueError: If nothing is mapped."""
        ...
    def _checked(self, setting: Setting, value: Any) -> Any:
        """The value to store.

    Raises:
        ValueError: If it cannot be right."""
        ...
    def _check_value(self, setting: Setting, value: Any) -> None:
        ...
    def _store(self, setting: Setting, value: Any, merge: bool) -> None:
        ...
    def _check_not_frozen(self, what: str) -> None:
        ...
    def __setattr__(self, name: str, value: Any) -> None:
        ...
    def __getattr__(self, name: str) -> Any:
        ...
    @property
    def explicitly_set(self) -> frozenset[str]:
        """Names of the settings that were set on this config, even if to their default."""
        ...
    def to_dict(self) -> dict[str, Any]:
        """All settings by attribute name (a few by RLlib's key, such as "lambda"); containers are copies."""
        ...
    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Sets what a dict holds: keyword or attribute names, or keys of `to_dict`.

    Args:
        config_dict: Name → value. Nested dicts such as env_config are merged as in the methods.

    Returns:
        This config.

    Raises:
        ValueError: If a name is unknown (with a suggestion) or old, or a value cannot be right.
        AttributeError: If the config is frozen."""
        ...
    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """A config with the settings of a dict, such as `to_dict` makes."""
        ...
    def get_state(self) -> dict[str, Any]:
        """What `from_state` needs: `to_dict`, the class, and which settings were set."""
        ...
    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AlgorithmConfig:
        """The config whose `get_state` returned `state`; of the class that is named there."""
        ...
    def to_plain(self) -> dict[str, Any]:
        """The settings that were set, for checkpoints; those of this machine alone are left out."""
        ...
    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Self:
        """The inverse of `to_plain`.

    Raises:
        ValueError: If there is a setting that this class does not know, or one that would import code or read
            executables which the caller has not named."""
        ...
    def stored_value(self, name: str) -> Any:
        """The value of a setting as it was given, where the attribute of that name resolves it further."""
        ...
    def serialize(self) -> dict[str, Any]:
        """`to_dict` with everything that is no JSON value as text: for files that people read."""
        ...
    @classmethod
    def overrides(cls, **kwargs: Any) -> dict[str, Any]:
        """A dict of settings for `evaluation_config` and `algorithm_config_overrides_per_module`.

    Args:
        **kwargs: Settings of any section.

    Returns:
        Attribute name → value.

    Raises:
        KeyError: If a name is no setting of this class."""
        ...
    def _attribute_of(self, key: str) -> str | None:
        ...
    def __getitem__(self, item: str) -> Any:
        ...
    def __setitem__(self, key: str, value: Any) -> None:
        ...
    def __contains__(self, item: object) -> bool:
        ...
    def get(self, key: str, default: Any=None) -> Any:
        """``config[key]``, or `default` if there is no such setting."""
        ...
    def pop(self, key: str, default: Any=None) -> Any:
        """The same as `get`: settings cannot be removed."""
        ...
    def keys(self) -> KeysView[str]:
        """Keys of `to_dict`."""
        ...
    def values(self) -> ValuesView[Any]:
        """Values of `to_dict`."""
        ...
    def items(self) -> ItemsView[str, Any]:
        """Items of `to_dict`."""
        ...
    def copy(self, copy_frozen: bool | None=None) -> Self:
        """A copy that can be changed without changing this one.

    Args:
        copy_frozen: True: the copy is frozen, False: it is not, None: like this one."""
        ...
    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        ...
    def __getstate__(self) -> dict[str, Any]:
        ...
    def __setstate__(self, state: dict[str, Any]) -> None:
        ...
    def freeze(self) -> None:
        """Makes every later change raise an AttributeError."""
        ...
    @property
    def is_frozen(self) -> bool:
        """Whether changes raise."""
        ...
    def validate(self) -> None:
        """Checks all settings, alone and against each other. `build_algo` calls it.

    Subclasses add their checks behind ``super().validate()`` and report with `_value_error`.

    Raises:
        ValueError: Names the setting, its value and the remedy.
        NotImplementedError: If a setting asks for something that comes later."""
        ...
    def _check_values(self) -> None:
        """Every setting on its own."""
        ...
    def _value_error(self, message: str) -> None:
        """Raises a ValueError; with ``experimental(_validate_config=False)`` only says so."""
        ...
    def _validate_static_settings(self) -> None:
        ...
    def _validate_modules(self) -> None:
        ...
    def _validate_acting_modules(self, ids: Collection[str]) -> None:
        """The policies are both trained and acted with."""
        ...
    def _validate_model_config(self) -> None:
        ...
    def _validate_connectors(self) -> None:
        ...
    def _validate_evaluation(self) -> None:
        ...
    def _validate_evaluation_overrides(self, evaluation: AlgorithmConfig) -> None:
        """Nothing is overridden that evaluation's runners could not heed."""
        ...
    def _validate_for_device(self) -> None:
        ...
    def settings_without_effect_on_device(self) -> list[str]:
        """Settings that were set here, to something else than no actors, and that only actors would read."""
        ...
    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Checks that whole sampling rounds come close to the train batch size.

    Raises:
        ValueError: If they overshoot it by more than 10 %."""
        ...
    @property
    def is_multi_agent(self) -> bool:
        """Whether there is more than one policy, or one that is not called "default_policy"."""
        ...
    @property
    def is_online(self) -> bool:
        """Whether training samples from an environment."""
        ...
    @property
    def is_offline(self) -> bool:
        """Whether training reads recorded data."""
        ...
    @property
    def is_atari(self) -> bool:
        """Whether the environment is an Atari game: as set, else by its name."""
        ...
    @property
    def samples_on_device(self) -> bool:
        """Whether the environment is a JAX one, stepped inside the compiled program."""
        ...
    def _num_sampling_actors(self) -> int:
        ...
    @property
    def train_batch_size_per_learner(self) -> int:
        """Env steps per update and learner: as set, else the algorithm's total over the learners."""
        ...
    @property
    def total_train_batch_size(self) -> int:
        """Env steps per update over all learners."""
        ...
    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """Model settings that the algorithm changes; a user's model config overlays them."""
        ...
    @property
    def model_config(self) -> dict[str, Any]:
        """Settings of the networks: the algorithm's, overlaid with the user's."""
        ...
    @property
    def learner_class(self) -> type[Learner]:
        """The Learner class: as set, else the algorithm's."""
        ...
    @property
    def rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The module spec: the algorithm's default, updated with the user's."""
        ...
    def _with_default_class(self, spec: RLModuleSpec) -> RLModuleSpec:
        """A spec that leaves its class open, on top of the algorithm's default spec."""
        ...
    def get_rollout_fragment_length(self, worker_index: int=0) -> int:
        """Steps per environment and sampling round.

    Args:
        worker_index: EnvRunner (from 1; 0 is the local one). With "auto", the first ones take a step
            more if the train batch does not divide evenly."""
        ...
    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """The frozen config of evaluation, with `evaluation_config` on top; None on such a config itself."""
        ...
    def get_config_for_module(self, module_id: str) -> Self:
        """The config with a module's overrides applied, else this config."""
        ...
    def traced_values(self, module_id: str | None=None) -> dict[str, np.ndarray | schedules.ScheduleArrays]:
        """The traced settings as what a compiled program takes.

    Args:
        module_id: Applies this module's overrides.

    Returns:
        Name → ``float32[]``, or the arrays of a schedule for every setting that may be one. Settings
        that are switched off (such as ``grad_clip=None``) and those in ``_static_settings`` are left out."""
        ...
    def static_value(self, name: str) -> float | None:
        """The number of a traced setting that is baked in (``_static_settings``), else None."""
        ...
    def _traced_settings(self) -> list[Setting]:
        ...
    def _is_traced(self, setting: Setting) -> bool:
        ...
    def static_fingerprint(self) -> Hashable:
        """A hashable value that is equal for two configs iff one compiled program serves both.

    Covers all static settings; of the traced ones only which are switched on and how many points a
    schedule has."""
        ...
    def differs_in_traced_settings_only(self, other: AlgorithmConfig) -> bool:
        """Whether everything that is built from the other config serves this one, too, its programs included."""
        ...
    DEFAULT_POLICY_MAPPING_FN: Any
    @staticmethod
    def DEFAULT_AGENT_TO_MODULE_MAPPING_FN(agent_id: Any, episode: Any) -> str:
        """Maps every agent to "default_policy"."""
        ...
    def _policy_ids(self) -> Collection[str]:
        ...
    def get_multi_agent_setup(self, *, policies: Mapping[str, Any] | None=None, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None, default_policy_class: Any=None) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
        """The policies with their spaces filled in, and the function that says which are trained.

    Args:
        policies: Overrides `policies` of this config.
        env: Environment to take missing spaces from.
        spaces: Module id (or "__env__", "__env_single__") → (observation space, action space).
        default_policy_class: Must be None; there are no Policy classes.

    Returns:
        (policy id → PolicySpec, ``f(module_id, batch) -> bool``).

    Raises:
        ValueError: If a space is known from nowhere."""
        ...
    def _policy_specs(self, policies: Mapping[str, Any] | None=None) -> dict[str, PolicySpec]:
        """The policies as PolicySpecs of their own, however they were given."""
        ...
    def _module_spaces(self, module_id: str, observation_space: gym.Space | None, action_space: gym.Space | None, env: Any, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None) -> tuple[gym.Space, gym.Space]:
        """The spaces of one module: given ones, those in `spaces`, or what the pipeline makes of the env's."""
        ...
    def _env_spaces(self, env: Any, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None) -> tuple[gym.Space | None, gym.Space | None]:
        """Spaces of one environment: this config's own, else those in `spaces`, else the environment's.

    Raises:
        ValueError: If this config's own have another form than the environment's."""
        ...
    def _check_given_spaces(self, env: Any) -> None:
        """Only the bounds of spaces can be overridden."""
        ...
    def get_default_rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The spec of the algorithm's default module. Algorithms override it."""
        ...
    def get_default_learner_class(self) -> type[Learner]:
        """The algorithm's Learner class. Algorithms override it."""
        ...
    def get_default_env_runner_class(self) -> type[EnvRunner]:
        """The EnvRunner class of host environments."""
        ...
    def _uses_default_module(self) -> bool:
        ...
    def get_rl_module_spec(self, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None, inference_only: bool | None=None) -> RLModuleSpec:
        """The spec of the only module, complete: ``get_rl_module_spec(...).build()`` works.

    Args:
        env: Environment to take missing spaces from.
        spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
        inference_only: Whether the module leaves out what only training needs; None is no.

    Raises:
        ValueError: If a space is known from nowhere, or there are several modules."""
        ...
    def get_multi_rl_module_spec(self, *, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None, inference_only: bool=False, policy_dict: Mapping[str, PolicySpec] | None=None, single_agent_rl_module_spec: RLModuleSpec | None=None) -> MultiRLModuleSpec:
        """The specs of all modules, complete: spaces and model settings are filled in where they were open.

    A module's own settings win over the config's. Spaces that come from an environment are those behind
    the env-to-module pipeline.

    Args:
        env: Environment to take missing spaces from.
        spaces: Module id → the module's own spaces, or "__env_single__" → the environment's.
        inference_only: Leave out what only training needs, and modules that only learners use.
        policy_dict: Overrides `policies`.
        single_agent_rl_module_spec: Overrides the spec that modules without their own get.

    Raises:
        ValueError: If a space is known from nowhere."""
        ...
    def _complete_spec(self, module_id: str, own: RLModuleSpec | None, policy: PolicySpec, env: Any, spaces: Any) -> RLModuleSpec:
        """A module's spec with everything that it leaves open filled in."""
        ...
    def _default_env_to_module_pieces(self, observation_space: gym.Space) -> list[ConnectorV2]:
        """The pieces behind the user's env-to-module pieces. Algorithms override it.

    Args:
        observation_space: What comes out of the user's pieces."""
        ...
    def _default_module_to_env_pieces(self) -> list[ConnectorV2]:
        """The module-to-env pieces; the user's run in front of the last one. Algorithms override it."""
        ...
    def _default_learner_pieces(self) -> list[ConnectorV2]:
        """The pieces behind the user's learner pieces. Algorithms override it."""
        ...
    def build_env_to_module_connector(self, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None, device: Any=None) -> EnvToModulePipeline:
        """The pipeline from observations to the module's input: the user's pieces, then the default ones.

    Args:
        env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
        spaces: "__env_single__" (or "__env__") → spaces of one environment.
        device: Goes to the user's function.

    Raises:
        ValueError: If the user's function returns no connectors, the observation space is not known, or what
            comes out of the pieces does not fit the space that they declare.
        TypeError: If a piece has the wrong form."""
        ...
    def build_module_to_env_connector(self, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None) -> ModuleToEnvPipeline:
        """The pipeline from the module's outputs to the environment's actions.

    Args:
        env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
        spaces: "__env_single__" (or "__env__") → spaces of one environment.

    Raises:
        ValueError: If the user's function returns no connectors, or a piece does not fit these settings."""
        ...
    def _check_action_noise(self, name: str, piece: ActionNoise) -> None:
        """Refuses noise that does not fit these settings. Algorithms that cannot learn from it override it."""
        ...
    def build_learner_connector(self, input_observation_space: gym.Space | None, input_action_space: gym.Space | None, device: Any=None) -> LearnerConnectorPipeline:
        """The pipeline from recorded steps to the train batch: the user's pieces, then the algorithm's.

    Args:
        input_observation_space: Of the module (behind the env-to-module pipeline).
        input_action_space: Of the module.
        device: Without effect; batches are where the program runs.

    Raises:
        ValueError: If the user's function returns no connectors."""
        ...
    def _pieces(self, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        """What the user's connector function returns, as a list."""
        ...
    def build_algo(self, env: Any=None, use_copy: bool=True) -> Algorithm:
        """The algorithm: validates a copy of this config, freezes it and builds everything.

    Args:
        env: Overrides `env`.
        use_copy: False hands this very config over, which is then frozen.

    Raises:
        ValueError: If settings are wrong or do not fit together, or the config belongs to no algorithm."""
        ...
    def build(self, env: Any=None, use_copy: bool=True) -> Algorithm:
        """Old name of `build_algo`; warns."""
        ...
    def build_learner(self, *, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None) -> Learner:
        """A built Learner, for use without an Algorithm.

    Args:
        env: Environment to take missing spaces from.
        spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's."""
        ...
    def build_learner_group(self, *, env: Any=None, spaces: Mapping[str, tuple[gym.Space, gym.Space]] | None=None, rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None=None, placement_group: Any=None) -> LearnerGroup:
        """A group of Learners; one, in this process, with ``num_learners=0``.

    Args:
        env: Environment to take missing spaces from.
        spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
        rl_module_spec: Overrides this config's spec.
        placement_group: Ray placement group whose last ``num_learners`` bundles are the learners'.

    Raises:
        ValueError: If a placement group is given and the learner is local."""
        ...
    def rollouts(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        ...
    def exploration(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        ...
    def get_marl_module_spec(self, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        """Gone: `get_multi_rl_module_spec`."""
        ...
    def _changed_settings(self) -> list[tuple[str, str, str, str]]:
        """(section, name, value, default) of what differs from the class's defaults."""
        ...
    def __repr__(self) -> str:
        ...
    def _repr_html_(self) -> str:
        """For notebooks: what differs from the defaults, and everything else folded away."""
        ...
def _given_settings(model_config: Any) -> dict[str, Any]:
    """What a user's model config says: the entries of a dict, the fields given to a DefaultModelConfig."""
    ...
def _searchable(value: Any) -> Any:
    """A model config that holds a search space as a dict: a tuner looks into dicts and lists only."""
    ...
def warn_deprecated(message: str) -> None:
    """A DeprecationWarning that points at the caller outside of this package's configs."""
    ...
def _is_trained(policies_to_train: Any, module_id: str, batch: Any=None) -> bool:
    ...
def _num_arguments(function: Callable[..., Any], arguments: tuple[Any, ...], call: str) -> int:
    """How many of (env, spaces, device) a user's connector function takes by position.

A parameter with a default and another name is the user's own (``n=n`` in a loop) and keeps its default."""
    ...
def _plain(value: Any) -> Any:
    """A JSON value: other objects become text."""
    ...
