"""Settings of all algorithms, with RLlib's names, defaults and order of sections."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms import base_checks as checks
from jaxrl_stack.algorithms import data_checks
from jaxrl_stack.algorithms.setting_checks import (
    amount_or_schedule,
    amounts,
    anything,
    boolean,
    dictionary,
    function_of,
    functions,
    instance,
    integer,
    is_class,
    iterations,
    name_list,
    number,
    one_of,
    space,
    subclass_of,
    text,
    texts,
)
from jaxrl_stack.algorithms.settings import (
    ALGORITHM,
    DATA,
    EVALUATION,
    LEARNER,
    RUNNER,
    Section,
    Setting,
    actors,
    host,
    inert,
    per_module,
    static,
    traced,
)
from jaxrl_stack.callbacks.callbacks import HOOKS, RLlibCallback
from jaxrl_stack.compat.old_settings import OLD_SETTINGS, OldName
from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.opponents import Snapshots
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.env.env_runner import EnvRunner
from jaxrl_stack.offline.offline_evaluation_runner import OfflineEvaluationRunner
from jaxrl_stack.utils.class_paths import register_class
from jaxrl_stack.utils.metrics.metrics_logger import DEFAULT_STATS_CLS_LOOKUP
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.policy_spec import PolicySpec

MAX_SEED = 2**32 - 1
"""JAX makes keys of the lower 32 bits of a seed: larger ones would repeat smaller ones."""


@register_class
def default_policy_mapping_fn(aid: Any, episode: Any = None, worker: Any = None, **kwargs: Any) -> str:
    """Maps every agent to the module "default_policy"."""
    return DEFAULT_POLICY_ID


def _as_jax(value: str) -> str:
    if value == "torch":
        notice_once("framework('torch') is treated as 'jax': networks and learners of this package are JAX.")
    return "jax"


def callback(hook: str) -> Setting:
    """Declares the setting for one callback hook; the first line of the hook's docstring describes the setting."""
    when, _, _ = (inspect.getdoc(getattr(RLlibCallback, hook)) or "").partition("\n")
    doc = f"Function, or list of functions, {when[:1].lower()}{when[1:]}"
    return host(hook, None, functions, doc, ALGORITHM, attribute=f"callbacks_{hook}")


torch = functools.partial(inert, instead="programs are always compiled by XLA; leave it out.")

_cache_dir = instance(str, what="a path or 'auto'", also=(None, False), annotation="str | Literal[False] | None")
_runner_class = subclass_of(EnvRunner, "a subclass of EnvRunner, such as SingleAgentEnvRunner")
_offline_runner_class = subclass_of(
    OfflineEvaluationRunner, "a subclass of OfflineEvaluationRunner", "type[OfflineEvaluationRunner]"
)
_learner_class = subclass_of(Learner, "a subclass of Learner, such as PPOLearner", "type[Learner]")

# fmt: off
BASE_SECTIONS: tuple[Section, ...] = (
    Section("python_environment", "Sets the Python environment of the processes.", (
        inert("extra_python_environs_for_driver", {}, texts,
            "Environment variables of the main process.", instead="set os.environ before jax is imported."),
        inert("extra_python_environs_for_worker", {}, texts,
            "Environment variables of the actors.", instead="use ray.init(runtime_env={'env_vars': ...})."),
    )),
    Section("resources", "Sets what the main process may use.", (
        actors("num_cpus_for_main_process", 1, integer(0),
            "CPUs that a tuner reserves for the main process of a trial."),
        actors("custom_resources_for_main_process", {}, amounts,
            "Ray resources that a tuner reserves for the main process of a trial."),
        actors("placement_strategy", "PACK", one_of("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"),
            "Nodes of the actors: 'PACK' packs learners and spreads EnvRunners; others apply to all actors."),
        host("compilation_cache_dir", "auto", _cache_dir,
            "Folder that keeps compiled programs for later processes; 'auto' uses the user's cache folder, None or "
            "False no folder.", ALGORITHM, convert=lambda value: None if value is False else value),
    )),
    Section("framework", "Sets the framework; there is one.", (
        host("framework", "jax", checks.framework,
            "'jax'. 'torch' is treated as 'jax', with a notice.",
            attribute="framework_str", convert=_as_jax, positional=True),
        torch("torch_compile_learner", False, anything("bool"), "Compile in the Learner."),
        torch("torch_compile_learner_what_to_compile", "forward_train", anything("str"), "What to compile."),
        torch("torch_compile_learner_dynamo_mode", None, anything("str"), "Compiler mode."),
        torch("torch_compile_learner_dynamo_backend", "inductor", anything("str"), "Compiler backend."),
        torch("torch_ddp_kwargs", {}, anything("dict[str, Any]"),
            "Options of torch's data-parallel wrapper.",
            instead="gradients are averaged over devices by XLA; leave it out."),
        static("torch_skip_nan_gradients", False, boolean,
            "Skip an optimizer step whose gradients are not all finite (False: non-finite entries become finite "
            "numbers).", LEARNER),
    )),
    Section("api_stack", "Chooses the API stack; there is one.", (
        host("enable_rl_module_and_learner", True, checks.on_only, "RLModules and Learners.", positional=True),
        host("enable_env_runner_and_connector_v2", True, checks.on_only,
            "EnvRunners and ConnectorV2s.", positional=True),
    )),
    Section("environment", "Sets the environment.", (
        static("env", None, anything("str | Any"),
            "Name ('gymnax/CartPole-v1', a gymnasium id, a registered name), class, or object.",
            RUNNER, positional=True),
        static("env_config", {}, dictionary,
            "Arguments of the environment. Merged into the present ones.", RUNNER, merge=True),
        static("randomized_params", None, checks.randomized_params,
            "Parameters of a JAX environment that each reset draws: {name: (low, high)}, with ('log', low, high) or "
            "[values] in place of a range, or a function of (key, params) that returns params. Evaluation draws only "
            "what evaluation_config sets.", RUNNER, convert=checks.stored_randomized_params),
        static("privileged_params", False, boolean,
            "Observations {'state': observation, 'privileged_state': randomized parameters scaled to [-1, 1]}.",
            RUNNER),
        static("observation_space", None, space,
            "Observation space of one environment; None uses the environment's."),
        static("action_space", None, space, "Action space of one environment; None uses the environment's."),
        actors("render_env", False, boolean,
            "Show the first training environment of the first runner in a window: a gymnasium id gets "
            "render_mode='human'. For videos use algorithm.record(path)."),
        static("clip_rewards", None, checks.clip_rewards,
            "Clipping of rewards for the learner: None or False keeps them, True takes their sign, a number clips them "
            "to ± that number. Episodes, callbacks, replay buffers and statistics have the original rewards.", LEARNER),
        static("normalize_actions", True, boolean,
            "The policy acts in [-1, 1], and a connector maps each dimension to the bounds of Box action spaces."),
        static("clip_actions", False, boolean,
            "Clip actions to the bounds of Box action spaces (if they are not normalized)."),
        host("disable_env_checking", False, boolean,
            "Skip the checks of the environment's interface and of a JAX environment's trace.", RUNNER),
        static("is_atari", None, boolean,
            "Whether it is an Atari environment; None decides by its name.", attribute="_is_atari"),
        static("action_mask_key", "action_mask", text,
            "Key of the action mask in observations {key: mask, 'observations': all else}. Default modules with "
            "discrete actions never choose an action with mask 0."),
    )),
    Section("env_runners", "Sets how experience is sampled.", (
        host("env_runner_cls", None, _runner_class,
            "EnvRunner class; None takes the single- or multi-agent one.", RUNNER),
        actors("num_env_runners", 0, integer(0),
            "Number of EnvRunner actors; 0 samples in the main process. It counts as 0 if the environment runs on the "
            "device, and if it was not set."),
        actors("create_local_env_runner", True, boolean,
            "Keep an EnvRunner in the main process in addition to the actors."),
        actors("create_env_on_local_worker", False, boolean, "Create environments for that local EnvRunner, too."),
        static("num_envs_per_env_runner", 1, integer(1),
            "Environments per EnvRunner, stepped together. For JAX environments: all of them, over all devices.",
            RUNNER),
        actors("gym_env_vectorize_mode", "sync", checks.vectorize_mode,
            "Vectorisation of gymnasium environments: 'sync', 'async' or 'vector_entry_point'.",
            check_when_set=False),
        actors("num_cpus_per_env_runner", 1, number(0), "CPUs of each EnvRunner actor."),
        actors("num_gpus_per_env_runner", 0, number(0),
            "GPUs of each EnvRunner actor; with more than 0 its policy runs on the GPU."),
        actors("custom_resources_per_env_runner", {}, amounts, "Ray resources of each EnvRunner actor."),
        actors("validate_env_runners_after_construction", True, boolean,
            "Wait until all EnvRunner actors answer before training starts."),
        actors("sample_timeout_s", 60.0, number(0, also=(None,)),
            "Timeout of the actors in one synchronous round of sampling, in seconds."),
        actors("max_requests_in_flight_per_env_runner", 1, integer(1),
            "Pending sample requests per actor (asynchronous algorithms)."),
        static("env_to_module_connector", None, checks.connector,
            "Function of (env, spaces, device), or of the first two, one or none of these, that returns a connector "
            "or a list of connectors, which run before the default ones.", attribute="_env_to_module_connector"),
        static("module_to_env_connector", None, checks.connector,
            "Function of (env, spaces), or of fewer arguments, that returns a connector or a list of connectors, which "
            "run before actions are normalized and clipped.", attribute="_module_to_env_connector"),
        static("add_default_connectors_to_env_to_module_pipeline", True, boolean,
            "Append the default env-to-module connectors."),
        static("add_default_connectors_to_module_to_env_pipeline", True, boolean,
            "Add the default module-to-env connectors."),
        host("episode_lookback_horizon", 1, integer(0),
            "Number of steps of the previous chunk that each chunk of an episode contains.", RUNNER),
        actors("merge_env_runner_states", "training_only", one_of(True, False, "training_only"),
            "Merge the connector states of the actors: True, False or 'training_only'."),
        actors("broadcast_env_runner_states", True, boolean, "Send the merged states back to the actors."),
        actors("use_env_runner_state_server", False, boolean,
            "Let the actors pull new weights from one actor before they sample (asynchronous algorithms)."),
        actors("env_runner_state_server_max_concurrency", 16, integer(1),
            "Requests that this actor serves at a time."),
        static("rollout_fragment_length", 200, integer(1, also=("auto",)),
            "Steps per environment and sampling round; 'auto' fits the train batch.", RUNNER),
        static("batch_mode", "truncate_episodes", one_of("truncate_episodes", "complete_episodes"),
            "'truncate_episodes' samples fixed numbers of steps, 'complete_episodes' whole episodes (host "
            "environments only).", RUNNER),
        static("explore", True, boolean, "Sample actions (True) or take the greedy ones.", RUNNER),
        host("episodes_to_numpy", True, boolean, "Turn the episodes that sample() returns into arrays.", RUNNER),
        actors("replayable_episodes", False, boolean,
            "Seed every reset of gymnasium environments and record actions, so that a restored run continues running "
            "episodes bit for bit (num_env_runners=0)."),
    )),
    Section("learners", "Sets where and how the learner runs.", (
        static("num_learners", 0, integer(0),
            "Number of learner actors; 0 (or None) learns in the main process. Several learners make joint updates. "
            "They step JAX environments themselves.", LEARNER,
            convert=lambda value: value or 0, takes_none=True),
        host("learner_snapshot_interval", 10, integer(1),
            "Updates (for JAX environments: calls of the compiled program) between two copies of the training state. A "
            "failed update or a dead Learner actor loses at most this number of updates; actors that step JAX "
            "environments are not restarted. In this process copies take at most 0.5 % of the time, so fast updates "
            "are copied less often.", LEARNER),
        static("num_cpus_per_learner", "auto", number(0, also=("auto",)),
            "CPUs of a learner. Without accelerators, each CPU is a device, and so is a fraction of one. 'auto' is 1.",
            LEARNER),
        static("num_gpus_per_learner", 0, number(0),
            "Accelerators of a learner. If not set, all local ones are used; an explicit 0 means the CPU.",
            LEARNER),
        actors("custom_resources_per_learner", {}, amounts, "Ray resources of each Learner actor."),
        actors("num_aggregator_actors_per_learner", 0, integer(0),
            "Actors that fetch and concatenate the samples of a train batch (asynchronous algorithms)."),
        actors("max_requests_in_flight_per_aggregator_actor", 3, number(1),
            "Pending requests per aggregator actor (IMPALA, APPO)."),
        static("local_gpu_idx", 0, integer(0),
            "Index of the first accelerator for the learner of the main process.", LEARNER),
        actors("max_requests_in_flight_per_learner", 3, integer(1), "Pending updates per Learner (IMPALA, APPO)."),
        static("learner_class", None, _learner_class,
            "Learner class; None uses the algorithm's.", LEARNER, attribute="_learner_class"),
        static("learner_connector", None, checks.connector,
            "Function of (observation_space, action_space), or of fewer arguments, that returns a connector or a list "
            "of connectors, which run before the default ones.", attribute="_learner_connector"),
        static("add_default_connectors_to_learner_pipeline", True, boolean,
            "Append the algorithm's learner connectors (PPO: advantages and value targets)."),
        per_module("learner_config_dict", {}, dictionary,
            "Your own settings for a Learner. Merged into the present ones.", merge=True),
        static("num_shuffle_shards", None, integer(1),
            "Number of separately shuffled parts of a train batch; None is one per device. Equal numbers of shards "
            "give equal updates on any number of devices.", LEARNER),
    )),
    Section("training", "Sets how the policy is trained.", (
        traced("gamma", 0.99, number(0, 1), "Discount factor of the returns."),
        traced("lr", 0.001, amount_or_schedule, "Learning rate.",
            check_when_set=False, type=f"{amount_or_schedule.type} | None"),
        traced("grad_clip", None, number(0),
            "Threshold of gradient clipping; None and 0 disable it.", off=(None, 0)),
        per_module("grad_clip_by", "global_norm", one_of("value", "norm", "global_norm"),
            "Kind of gradient clipping: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's "
            "gradients)."),
        static("train_batch_size", 32, integer(1),
            "Env steps per update over all learners, if train_batch_size_per_learner is None.", RUNNER,
            deprecated="training(train_batch_size_per_learner=...), the number of one learner"),
        static("train_batch_size_per_learner", None, integer(1),
            "Env steps per update and learner; None uses the algorithm's default.",
            RUNNER, attribute="_train_batch_size_per_learner"),
        static("num_epochs", 1, integer(1), "Passes over the train batch per update.", LEARNER),
        static("minibatch_size", None, integer(1, also=(None,)),
            "Rows per gradient step and learner; None uses the whole batch.", LEARNER),
        static("shuffle_batch_per_epoch", False, boolean,
            "Shuffle the rows in every epoch (with more than one epoch).", LEARNER),
    )),
    Section("callbacks", "Sets what is called when something happens.", (
        host("callbacks_class", RLlibCallback, checks.callback_class,
            "Subclass of RLlibCallback, or a list of subclasses; None is none.", ALGORITHM, positional=True,
            type="type[RLlibCallback] | list[type[RLlibCallback]] | None",
            convert=lambda value: value or RLlibCallback, takes_none=True),
        *map(callback, HOOKS),
    )),
    Section("evaluation", "Sets how the policy is evaluated.", (
        host("evaluation_interval", None, integer(0),
            "Iterations from one evaluation to the next; None or 0 never evaluates.", EVALUATION),
        static("evaluation_duration", 10, integer(1, also=("auto",)),
            "Length of one evaluation, in evaluation_duration_unit; 'auto' lasts as long as the training step.",
            EVALUATION, check_when_set=False),
        static("evaluation_duration_unit", "episodes", one_of("episodes", "timesteps"),
            "Unit of evaluation_duration: 'episodes' or 'timesteps'.", EVALUATION),
        actors("evaluation_auto_duration_min_env_steps_per_sample", 100, integer(1),
            "Minimum of steps per round with evaluation_duration='auto'."),
        actors("evaluation_auto_duration_max_env_steps_per_sample", 2000, integer(1),
            "Maximum of steps per round with evaluation_duration='auto'."),
        host("evaluation_sample_timeout_s", 120.0, number(0, also=(None,)),
            "Timeout of one evaluation, in seconds.", EVALUATION),
        actors("evaluation_parallel_to_training", False, boolean,
            "Evaluate during training, with the weights from before the iteration. Needs "
            "evaluation_num_env_runners > 0."),
        actors("evaluation_unhealthy_workers_timeout_s", 0.0, number(0),
            "Waiting time for a healthy evaluation actor before an evaluation is skipped, in seconds."),
        actors("evaluation_error_after_n_consecutive_skips", None, integer(0, also=(None,)),
            "Maximum of skipped evaluations in a row; one more raises. None means no limit."),
        static("evaluation_force_reset_envs_before_iteration", True, boolean,
            "Reset all environments at the start of each evaluation.", EVALUATION),
        static("evaluation_config", None, checks.evaluation_config,
            "Settings that differ in evaluation, such as {'explore': False}. Merged into the present ones.",
            EVALUATION, merge=True),
        actors("evaluation_num_env_runners", 0, integer(0),
            "EnvRunner actors for evaluation; 0 evaluates in the main process."),
        host("custom_evaluation_function", None, function_of("algorithm", "eval_env_runner_group"),
            "Function f(algorithm, eval_env_runner_group) -> (results, env_steps, agent_steps) that replaces the "
            "evaluation.",
            EVALUATION),
        host("evaluation_video_interval", None, integer(1, also=(None,)),
            "Record a video of an evaluation's first episode if the iteration is a multiple of this number; None "
            "records no videos.", EVALUATION),
        host("evaluation_video_dir", None, text,
            "Folder for these videos; None uses videos/ in the folder of the results.", EVALUATION),
        host("offline_evaluation_interval", None, integer(1, also=(None,)),
            "Iterations from one evaluation on recorded data to the next; None never evaluates.", EVALUATION),
        host("num_offline_eval_runners", 0, integer(0),
            "Number of actors that evaluate on parts of recorded data; 0 evaluates in the main process.", EVALUATION),
        host("offline_evaluation_type", "eval_loss", one_of("eval_loss", "is", "pdis"),
            "'eval_loss' is the Learner's loss on rows; 'is' and 'pdis' are returns of episodes, weighted by "
            "probability ratios of whole episodes or up to each reward.", EVALUATION),
        host("offline_eval_runner_class", None, _offline_runner_class,
            "Subclass of OfflineEvaluationRunner; None uses the one of offline_evaluation_type.", EVALUATION),
        host("offline_loss_for_module_fn", None,
            function_of("learner", keywords=("module_id", "config", "batch", "fwd_out")),
            "Function f(learner, *, module_id, config, batch, fwd_out) -> loss that replaces the Learner's, for "
            "'eval_loss'.",
            EVALUATION),
        host("offline_eval_batch_size_per_runner", 256, integer(1),
            "Rows per batch of each runner; for 'is' and 'pdis' episodes.", EVALUATION),
        host("dataset_num_iters_per_offline_eval_runner", 1, integer(1),
            "Batches per run of a runner.", EVALUATION, attribute="dataset_num_iters_per_eval_runner"),
        host("offline_eval_rl_module_inference_only", False, boolean,
            "Whether the modules of 'is' and 'pdis' only have the parts that acting needs.", EVALUATION),
        host("num_cpus_per_offline_eval_runner", 1, number(0), "CPUs of each of these actors.", EVALUATION),
        host("num_gpus_per_offline_eval_runner", 0, number(0), "GPUs of each of these actors.", EVALUATION),
        host("custom_resources_per_offline_eval_runner", {}, amounts,
            "Ray resources of each of these actors.", EVALUATION),
        host("offline_evaluation_duration", 1, integer(1, also=("auto",)),
            "Runs per runner; 'auto' repeats runs until concurrent training ends.",
            EVALUATION),
        host("offline_evaluation_parallel_to_training", False, boolean,
            "Evaluate during training, with the weights from before the iteration. Needs "
            "num_offline_eval_runners > 0.", EVALUATION),
        host("offline_evaluation_timeout_s", 120.0, number(0),
            "Timeout of a run of the actors, in seconds; the evaluation then ends with the results so far.",
            EVALUATION),
        host("max_requests_in_flight_per_offline_eval_runner", 1, integer(1),
            "Maximum of pending runs per actor.", EVALUATION),
        inert("broadcast_offline_eval_runner_states", False, boolean, "Send connector states to the actors.",
            instead="actors get the Learner's whole state with every evaluation; leave it out."),
        host("validate_offline_eval_runners_after_construction", True, boolean,
            "Wait until actors are built, so that their errors are raised immediately.", EVALUATION),
        host("restart_failed_offline_eval_runners", True, boolean, "Restart lost actors.", EVALUATION),
        host("ignore_offline_eval_runner_failures", False, boolean, "Continue without lost actors.", EVALUATION),
        host("max_num_offline_eval_runner_restarts", 1000, integer(0), "Maximum of restarts per actor.", EVALUATION),
        host("offline_eval_runner_health_probe_timeout_s", 30.0, number(0),
            "Timeout of health checks of lost actors, in seconds.", EVALUATION),
        host("offline_eval_runner_restore_timeout_s", 1800.0, number(0),
            "Timeout for restarted actors to restore their state, in seconds.", EVALUATION),
        host("off_policy_estimation_methods", {}, checks.off_policy_estimation_methods,
            "Estimators for each offline evaluation, on all episodes of the data: name of the result -> {'type': an "
            "OffPolicyEstimator or 'is', 'pdis', 'wis', 'dm' or 'dr', and its arguments}.", EVALUATION),
    )),
    Section("offline_data", "Sets reading and writing of recorded experience.", (
        host("input_", "sampler", data_checks.recorded_data,
            "Recorded data for training: a path, a list of paths, or {path: weight}, where a weight is the average "
            "share in minibatches; 'sampler' means no data.", DATA),
        host("offline_data_class", None, is_class, "Subclass of OfflineData that opens the data.", DATA),
        host("input_read_method", "read_parquet", data_checks.reader,
            "Name of a reader of ray.data, or a function of paths that returns a Ray Dataset. 'read_parquet' means the "
            "readers of this package, which recognise files by name: Parquet, npz, HDF5, Minari.", DATA),
        host("input_read_method_kwargs", {}, dictionary, "Arguments of a reader of ray.data.", DATA),
        host("input_read_schema", {}, texts, "Names of columns in the data: column → name.", DATA),
        host("input_read_episodes", False, boolean, "Whether rows are packed episodes.", DATA),
        host("input_read_sample_batches", False, boolean, "Whether rows are old sample batches.", DATA),
        host("input_read_batch_size", None, integer(1),
            "Rows per call of a prelearner_class, in whole pieces of episodes; None uses a file's row group.", DATA),
        host("input_filesystem", None, data_checks.file_system, "'gcs', 's3', 'abs' or a file system.", DATA),
        host("input_filesystem_kwargs", {}, dictionary, "Arguments of the file system.", DATA),
        host("input_compress_columns", ["obs", "new_obs"], name_list, "Columns that may be compressed.", DATA),
        host("materialize_data", False, boolean,
            "Keep the content of the files in memory, so that only the first pass reads files.", DATA),
        host("materialize_mapped_data", True, boolean,
            "Keep the output of a prelearner_class, if it fits into memory. False maps the data again in every pass.",
            DATA),
        host("map_batches_kwargs", {}, dictionary, "Arguments of ray.data's map_batches, which is not used.",
            DATA),
        host("iter_batches_kwargs", {}, dictionary, "Arguments of ray.data's iter_batches, if it reads the data.",
            DATA),
        host("ignore_final_observation", False, boolean, "Replace next observations by zeros.", DATA),
        host("prelearner_class", None, is_class, "Subclass of OfflinePreLearner that maps rows to episodes.", DATA),
        host("prelearner_buffer_class", None, is_class,
            "Buffer in which a prelearner_class stores episodes and from which it draws for training.", DATA),
        host("prelearner_buffer_kwargs", {}, dictionary, "Arguments of that buffer.", DATA),
        static("prelearner_use_recorded_module_states", False, boolean,
            "Start sequences for recurrent networks from recorded states instead of initial states.",
            DATA),
        static("dataset_num_iters_per_learner", None, integer(1),
            "Updates per training step; None makes a pass over the data.", DATA),
        host("keep_resident", None, boolean,
            "Whether to keep the data on the learner's devices, where the compiled program reads it, or to stream it. "
            "None keeps it if it fits max_resident_bytes.", DATA),
        host("max_resident_bytes", None, integer(0),
            "Maximum bytes of recorded data in memory. Larger data is streamed, in windows of at most this size. None "
            "is a quarter of the free memory, on the devices and on the host.", DATA),
        static("normalize_observations", False, boolean,
            "Normalise observations by mean and standard deviation of all recorded ones, in training and when the "
            "policy acts in environments.", DATA),
        host("normalize_rewards", False, boolean,
            "Divide recorded rewards by the standard deviation of their discounted returns.", DATA),
        static("output", None, instance(str, os.PathLike, what="a path", annotation="str | os.PathLike[str]"),
            "Folder for recording every sampled step, with separate files for each runner; None records nothing. In "
            "evaluation_config it records evaluation.", RUNNER, convert=lambda value: value and os.fspath(value)),
        static("output_format", "parquet", one_of("parquet", "rllib"),
            "Format of the files: 'parquet', with a description of the data, or 'rllib', which RLlib reads.", RUNNER),
        static("output_write_episodes", True, boolean,
            "Write episodes: a row per step and one for the final observation, or RLlib's packed episodes. False "
            "writes only rows of steps, each with its next observation in a column 'new_obs', in both formats.",
            RUNNER),
        static("output_write_infos", False, boolean, "Record the environments' infos as well, as JSON.", RUNNER),
        static("output_max_rows_per_file", 100_000, integer(2), "Maximum of rows per file.", RUNNER),
        static("output_write_remaining_data", True, boolean,
            "Whether to write unfinished episodes up to their present step when the algorithm stops.", RUNNER),
        static("output_compress_columns", ["obs", "new_obs"], name_list,
            "Columns to compress, with LZ4.", RUNNER),
        static("output_write_method", "write_parquet", one_of("write_parquet"), "Writer of files.", RUNNER),
        static("output_write_method_kwargs", {}, dictionary,
            "Arguments of pyarrow.parquet.ParquetWriter, such as {'compression': 'gzip'}.", RUNNER),
        static("output_filesystem", None, data_checks.file_system,
            "File system of `output`: 'gcs', 's3', 'abs' or a pyarrow.fs.FileSystem; None derives it from the path.",
            RUNNER),
        static("output_filesystem_kwargs", {}, dictionary, "Arguments of a file system given by name.", RUNNER),
    )),
    Section("multi_agent", "Sets which agents use which policies.", (
        static("policies", {DEFAULT_POLICY_ID: PolicySpec()}, checks.policies,
            "Policy (module) ids, or a dict from id to PolicySpec.", ALGORITHM),
        static("policy_mapping_fn", default_policy_mapping_fn,
            function_of("agent_id", "episode", annotation="Callable[..., str]"),
            "Function f(agent_id, episode, **kwargs) -> policy id.", RUNNER),
        static("policies_to_train", None, checks.policies_to_train,
            "Ids of the policies to update, or f(module_id, batch) -> bool; None updates all.", LEARNER),
        static("count_steps_by", "env_steps", one_of("env_steps", "agent_steps"),
            "Unit of batch sizes and counters: 'env_steps' or 'agent_steps'.", RUNNER),
        static("opponents", None, instance(Snapshots, what="a Snapshots, such as Snapshots(of='main')", also=(None,)),
            "Snapshots of the policy that play against it, in JAX environments of several agents; None for none.",
            RUNNER),
    )),
    Section("reporting", "Sets what an iteration is and what its result holds.", (
        static("metrics_num_episodes_for_smoothing", 100, integer(1),
            "Number of the last episodes in episode statistics.", RUNNER),
        host("min_time_s_per_iteration", None, number(0), "Minimum duration of an iteration, in seconds.", ALGORITHM),
        static("min_train_timesteps_per_iteration", 0, integer(0, also=(None,)),
            "Minimum of trained env steps in an iteration.", ALGORITHM),
        static("min_sample_timesteps_per_iteration", 0, integer(0, also=(None,)),
            "Minimum of sampled steps in an iteration: env steps, or agent steps with count_steps_by='agent_steps'.",
            ALGORITHM),
        host("results_dir", None, instance(str, os.PathLike, what="a path", annotation="str | os.PathLike[str]"),
            "Folder for the results of every iteration: CSV, JSON, TensorBoard events and a log. If it contains "
            "another run, its name gets a number. None writes nothing.", ALGORITHM,
            convert=lambda value: value and os.fspath(value)),
        host("keep_best", False, checks.kept,
            "Keep a checkpoint 'best' in `results_dir` with the state of the highest mean return so far: of "
            "evaluations if there are any, else of training, with the sum of several agents. A path such as "
            "'env_runners/agent_episode_returns_mean/a' selects another number of results.",
            ALGORITHM),
        host("checkpoint_frequency", None, integer(1),
            "Number of iterations from one checkpoint in `results_dir` to the next: 'checkpoint_000010', "
            "'checkpoint_000020', ... `learn` also stores the last iteration. None stores none.", ALGORITHM),
        host("num_to_keep", None, checks.number_to_keep,
            "Number of the newest checkpoints to keep. 'sparse' keeps the newest and, going back, checkpoints at "
            "distances that double; it also postpones checkpoints until saving takes at most 2 % of the time. None "
            "keeps all.", ALGORITHM),
        host("checkpoint_max_bytes", None, checks.bytes_to_keep,
            "Maximum size of all kept checkpoints together, replay buffers included: '20 GB', '500 MiB', or a number "
            "of bytes. The newest is always kept. None is no limit.", ALGORITHM, convert=checks.as_bytes),
        host("loggers", None, checks.loggers,
            "Trackers that get every iteration, by name ('wandb', 'mlflow', 'trackio'), or name → arguments of the "
            "tracker's start function.", ALGORITHM, convert=checks.with_options),
        inert("log_gradients", False, boolean,
            "Report the norms of the gradients before clipping.", instead="they are always reported; leave it out."),
        host("custom_stats_cls_lookup", DEFAULT_STATS_CLS_LOOKUP, checks.stats_classes,
            "Name of a reduction → its class of statistics. Merged into the built-in ones.",
            ALGORITHM, attribute="stats_cls_lookup", merge=True),
    )),
    Section("checkpointing", "Takes no settings any more; checkpoints hold the whole state."),
    Section("debugging", "Sets seeds, logging and help with errors.", (
        host("log_level", "WARN", one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"),
            "Level of the logger 'jaxrl_stack'.", ALGORITHM),
        host("seed", None, integer(0, maximum=MAX_SEED), "Seed of all random numbers; None is 0.", ALGORITHM),
        static("disable_jit", False, boolean,
            "Run the same code eagerly, operation by operation. It is slow, but print and debuggers work.", ALGORITHM),
        static("check_nans", None, boolean,
            "Whether NaN and infinity stop the run. None stops at those that environments return, and names column, "
            "environment and step. True also stops at the first such loss or gradient, and names iteration, module and "
            "tensor. False never stops, and warns once about those of environments.", LEARNER),
        host("profile_iterations", None, iterations,
            "Number of an iteration (from 1), or a list of them, to trace with JAX's profiler; the result's `profile` "
            "has the path of the trace and time shares.", ALGORITHM),
    )),
    Section("fault_tolerance", "Sets what happens when actors or environments fail.", (
        actors("restart_failed_env_runners", True, boolean,
            "Restart EnvRunner actors that are lost, or whose environments fail."),
        actors("ignore_env_runner_failures", False, boolean, "Continue without failed actors that are not restarted."),
        actors("max_num_env_runner_restarts", 1000, integer(0), "Maximum of restarts per actor."),
        actors("delay_between_env_runner_restarts_s", 60.0, number(0),
            "Minimum time between two restarts of an actor with failing environments, in seconds. The first restart "
            "and restarts of lost processes are immediate."),
        actors("restart_failed_sub_environments", False, boolean,
            "Restart an environment that raises, or returns NaN or infinity, and drop its episode."),
        actors("num_consecutive_env_runner_failures_tolerance", 100, integer(0),
            "Maximum of failures of actors or environments in a row, without a successful sample, before an error."),
        actors("env_runner_health_probe_timeout_s", 30.0, number(0),
            "Timeout for a restarting actor if no other one is healthy, in seconds. The iteration then ends without "
            "samples."),
        actors("env_runner_restore_timeout_s", 1800.0, number(0),
            "Timeout for restarted actors to restore their state, in seconds."),
    )),
    Section("rl_module", "Sets the networks.", (
        static("model_config", {}, checks.model_config,
            "Settings of the default networks: a DefaultModelConfig, or a dict, with any entries for your own "
            "RLModules.",
            attribute="_model_config", per_module=True),
        static("rl_module_spec", None, checks.rl_module_spec,
            "RLModuleSpec or MultiRLModuleSpec; None uses the algorithm's default module.",
            attribute="_rl_module_spec"),
        static("algorithm_config_overrides_per_module", {}, checks.overrides_per_module,
            "Module id → settings that differ for that module, from overrides(...)."),
    )),
    Section("experimental", "Sets what may change without notice.", (
        host("_validate_config", True, boolean,
            "Whether validate() raises; a call of experimental() without it enables it again.", when_omitted=True),
        inert("_use_msgpack_checkpoints", False, boolean,
            "Write state files as msgpack.", instead="states are stored as arrays; leave it out."),
        torch("_torch_grad_scaler_class", None, anything("type"),
            "Loss scaling for half precision.",
            instead="chain optax transformations in Learner.configure_optimizers_for_module()."),
        static("_torch_lr_scheduler_classes", None, checks.lr_schedules,
            "Optax schedules of factors of the learning rates, as functions of the number of updates: a list for all "
            "modules, or a list per module id.", LEARNER, check_when_set=False),
        static("_static_settings", (), checks.static_names,
            "Traced settings that the program contains as Python constants, so that Python code can branch on them; "
            "each value then needs its own program.", convert=tuple),
    )),
)
# fmt: on

BASE_SETTINGS: dict[str, Setting] = {setting.name: setting for section in BASE_SECTIONS for setting in section.settings}
"""Settings by name, with the defaults that all algorithms share: those of no actors."""


def _is_of_default_networks(model: Any) -> bool:
    """Whether the value of RLlib's old setting "model" contains only settings of `DefaultModelConfig`, and can
    therefore be used as `model_config`.
    """
    return isinstance(model, Mapping) and model.keys() <= DefaultModelConfig.__dataclass_fields__.keys()


BASE_OLD_NAMES: tuple[OldName, ...] = (
    OldName(
        "model",
        "rl_module(model_config=DefaultModelConfig(...)) or rl_module(rl_module_spec=RLModuleSpec(...))",
        maps_to="model_config",
        takes=_is_of_default_networks,
        neutral={},
    ),
    *OLD_SETTINGS,
)
"""Settings of RLlib's past that every config answers."""
