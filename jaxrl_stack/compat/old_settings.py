"""Setting names of older RLlib versions, with their present names or replacements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class OldName:
    """Setting name of older RLlib versions, and its replacement if it has one.

    Attributes:
        name: The old name.
        instead: Present replacement; empty if there is none.
        maps_to: Setting that gets the value, with a warning. Empty if the name raises.
        sections: Methods in which it is an old argument (elsewhere it is a current name); empty for all.
        only_as_key: Whether it maps only as a key of `update_from_dict`, and raises everywhere else.
        takes: Whether a value can be mapped; others raise. None maps all values.
        neutral: Value without effect, which is accepted with a notice, as is None.
    """

    name: str
    instead: str = ""
    maps_to: str = ""
    sections: tuple[str, ...] = ()
    only_as_key: bool = False
    takes: Callable[[Any], bool] | None = None
    neutral: Any = None

    def message(self) -> str:
        """Sentence that tells the user what replaces this old setting."""
        if not self.instead:
            return f"{self.name!r} is gone and has no replacement. Leave it out."
        return f"{self.name!r} is gone. Use {self.instead} instead."


# fmt: off
_MOVED = (
    ("training", "learners",
        "learner_class learner_connector add_default_connectors_to_learner_pipeline learner_config_dict "
        "num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor"),
    ("resources", "learners", "local_gpu_idx"),
    ("multi_agent", "rl_module", "algorithm_config_overrides_per_module"),
)
"""Section of the past, section of today, names."""
_RENAMED = (
    ("num_workers", "env_runners", "num_env_runners", True),
    ("num_cpus_for_driver", "resources", "num_cpus_for_main_process", True),
    ("num_cpus_for_local_worker", "resources", "num_cpus_for_main_process", False),
    ("num_cpus_per_worker", "env_runners", "num_cpus_per_env_runner", False),
    ("num_gpus_per_worker", "env_runners", "num_gpus_per_env_runner", False),
    ("custom_resources_per_worker", "env_runners", "custom_resources_per_env_runner", False),
    ("num_learner_workers", "learners", "num_learners", False),
    ("num_cpus_per_learner_worker", "learners", "num_cpus_per_learner", False),
    ("num_gpus_per_learner_worker", "learners", "num_gpus_per_learner", False),
    ("evaluation_num_workers", "evaluation", "evaluation_num_env_runners", False),
    ("max_requests_in_flight_per_sampler_worker", "env_runners", "max_requests_in_flight_per_env_runner", False),
    ("num_sgd_iter", "training", "num_epochs", False),
    ("model_config_dict", "rl_module", "model_config", False),
)
"""Name of the past, section and name of today, and whether the old one is taken as a key of a dict only."""
_GONE = {
    "training(minibatch_size=...)": "sgd_minibatch_size",
    "training(lr=[[0, v0], [t1, v1], ...])": "lr_schedule _torch_lr_schedule_classes",
    "training(entropy_coeff=[[0, v0], [t1, v1], ...])": "entropy_coeff_schedule",
    "rl_module(model_config={'vf_share_layers': ...})": "vf_share_layers",
    "Learner.configure_optimizers_for_module() with optax": "optimizer opt_type decay momentum adam_epsilon",
    "training(grad_clip=...)": "grad_norm_clipping",
    "env_runners(num_env_runners=...)": "num_rollout_workers",
    "env_runners(num_envs_per_env_runner=...)": "num_envs_per_worker",
    "env_runners(validate_env_runners_after_construction=...)": "validate_workers_after_construction",
    "learners(num_learners=..., num_gpus_per_learner=...)": "num_gpus _fake_gpus",
    "evaluation(evaluation_duration=..., evaluation_duration_unit='episodes')": "evaluation_num_episodes",
    "result.get('evaluation'), which exists in iterations that evaluate,": "always_attach_evaluation_results",
    "evaluation(evaluation_parallel_to_training=...)": "enable_async_evaluation",
    "evaluation(custom_evaluation_function=...)": "custom_async_evaluation_function",
    "":
        "_run_training_always_in_thread _evaluation_parallel_to_training_wo_thread "
        "_disable_initialize_loss_from_dummy_batch compress_observations enable_connectors policy_map_capacity "
        "policy_states_are_swappable policy_map_cache _enable_rl_module_api _enable_learner_api _enable_new_api_stack "
        "uses_new_env_runners log_sys_usage fake_sampler checkpoint_trainable_policies_only "
        "ope_split_batch_by_episode prelearner_module_synch_period offline_sampling eager_tracing eager_max_retraces "
        "tf_session_args local_tf_session_args enable_tf1_exec_eagerly _eager_traced "
        "_tf_policy_handles_more_than_one_loss torch_compile_worker torch_compile_worker_dynamo_backend "
        "torch_compile_worker_dynamo_mode simple_optimizer _disable_execution_plan_api",
    "fault_tolerance(restart_failed_env_runners=...)": "recreate_failed_workers recreate_failed_env_runners",
    "fault_tolerance(ignore_env_runner_failures=...)": "ignore_worker_failures",
    "fault_tolerance(max_num_env_runner_restarts=...)": "max_num_worker_restarts",
    "fault_tolerance(delay_between_env_runner_restarts_s=...)": "delay_between_worker_restarts_s",
    "fault_tolerance(num_consecutive_env_runner_failures_tolerance=...)": "num_consecutive_worker_failures_tolerance",
    "fault_tolerance(env_runner_health_probe_timeout_s=...)": "worker_health_probe_timeout_s",
    "fault_tolerance(env_runner_restore_timeout_s=...)": "worker_restore_timeout_s",
    "learners(num_aggregator_actors_per_learner=...)": "num_aggregation_workers",
    "learners(max_requests_in_flight_per_aggregator_actor=...)": "max_requests_in_flight_per_aggregator_worker",
    "RLModule._forward_exploration() (DQN: training(epsilon=...))": "exploration_config",
    "env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())": "observation_filter",
    "connectors, env_runners(env_to_module_connector=...),":
        "preprocessor_pref _disable_preprocessor_api _disable_action_flattening observation_fn observation_function",
    "episodes (SingleAgentEpisode) and connectors": "sample_collector",
    "env_runners(broadcast_env_runner_states=...)": "use_worker_filter_stats",
    "env_runners(merge_env_runner_states=...)": "update_worker_filter_stats",
    "env_runners(merge_env_runner_states=..., broadcast_env_runner_states=...)":
        "synchronize_filter synchronize_filters",
    "env_runners(gym_env_vectorize_mode='async')": "remote_worker_envs remote_env_batch_wait_ms",
    "an on_train_result callback that calls env_runner_group.foreach_env_runner(...)": "env_task_fn",
    "a gymnasium environment": "auto_wrap_old_gym_envs",
    "training(replay_buffer_config={...})":
        "replay_mode buffer_size prioritized_replay prioritized_replay_alpha prioritized_replay_beta "
        "prioritized_replay_eps replay_batch_size",
    "training(num_steps_sampled_before_learning_starts=...)": "learning_starts",
    "tune.RunConfig(storage_path=..., name=...) or an on_train_result callback": "logger_creator logger_config",
    "RLModule.save_to_path()": "export_native_model_files",
    "metrics_logger.log_value() in a callback": "keep_per_episode_custom_metrics",
    "env_runners(sample_timeout_s=...)": "metrics_episode_collection_timeout_s collect_metrics_timeout",
    "metrics_logger.log_value(ema_coeff=...) in a callback": "sampler_perf_stats_ema_coef",
    "evaluation(offline_evaluation_type=...)": "input_evaluation",
    "offline_data(input_read_method_kwargs=...)": "input_config",
    "offline_data(map_batches_kwargs=..., iter_batches_kwargs=...)": "shuffle_buffer_size",
    "learners(learner_connector=...)": "actions_in_input_normalized postprocess_inputs",
    "offline_data(output_write_method_kwargs=...)": "output_config",
    "offline_data(output_max_rows_per_file=...)": "output_max_file_size",
    "reporting(min_sample_timesteps_per_iteration=...)": "timesteps_per_iteration min_sample_timesteps_per_reporting",
    "reporting(min_time_s_per_iteration=...)": "min_iter_time_s min_time_s_per_reporting",
    "reporting(min_train_timesteps_per_iteration=...)": "min_train_timesteps_per_reporting",
    "reporting(metrics_num_episodes_for_smoothing=...)": "metrics_smoothing_episodes",
    "env_runners(env_runner_cls=...)": "worker_cls",
    "gymnasium.wrappers.RecordVideo around the environment": "monitor",
}
"""What to write instead → the names that are gone."""
_NEUTRAL = {
    "num_gpus": 0, "_fake_gpus": False, "exploration_config": {}, "remote_worker_envs": False,
    "remote_env_batch_wait_ms": 0, "preprocessor_pref": "deepmind", "observation_filter": "NoFilter",
    "compress_observations": False, "optimizer": {}, "simple_optimizer": False,
    "enable_connectors": True, "_enable_rl_module_api": True, "_enable_learner_api": True,
    "_enable_new_api_stack": True, "log_sys_usage": True, "fake_sampler": False, "eager_tracing": True,
    "eager_max_retraces": 20, "tf_session_args": {}, "local_tf_session_args": {}, "enable_tf1_exec_eagerly": False,
}
"""What RLlib's defaults of names that are gone ask for, where it is so here anyway."""
# fmt: on


OLD_SETTINGS: tuple[OldName, ...] = (
    *(
        OldName(name, f"{now}({name}=...)", maps_to=name, sections=(before,))
        for before, now, names in _MOVED
        for name in names.split()
    ),
    *(
        OldName(name, f"{section}({today}=...)", maps_to=today, only_as_key=only_as_key)
        for name, section, today, only_as_key in _RENAMED
    ),
    *(OldName(name, instead, neutral=_NEUTRAL.get(name)) for instead, names in _GONE.items() for name in names.split()),
)
