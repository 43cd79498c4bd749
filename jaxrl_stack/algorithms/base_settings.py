"""The settings that every algorithm has: RLlib's names, defaults and order of sections."""

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
    """Setting of a function for one of the hooks, described by the first line of the hook's docstring."""
    when, _, _ = (inspect.getdoc(getattr(RLlibCallback, hook)) or "").partition("\n")
    doc = f"Function, or list of functions, called {when[:1].lower()}{when[1:]}"
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
            "Strategy of the Ray placement group."),
        host("compilation_cache_dir", "auto", _cache_dir,
            "Folder in which compiled programs outlive the process; 'auto' is one in the user's cache folder, None or "
            "False none.", ALGORITHM, convert=lambda value: None if value is False else value),
    )),
    Section("framework", "Sets the framework; there is one.", (
        host("framework", "jax", checks.framework,
            "'jax'. 'torch' is understood as 'jax', with a notice.",
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
        static("observation_space", None, space,
            "Observation space of one environment, if not the environment's own."),
        static("action_space", None, space, "Action space of one environment, if not the environment's own."),
        actors("render_env", False, boolean,
            "Show one environment of training in a window, the first of the first runner: a gymnasium id is made with "
            "render_mode='human' there. For videos: algorithm.record(path)."),
        static("clip_rewards", None, checks.clip_rewards,
            "Rewards that the learner sees: None or False as they are, True their sign, a number clips them to ± that "
            "number. Episodes, callbacks, replay buffers and statistics have the environment's.", LEARNER),
        static("normalize_actions", True, boolean,
            "The policy acts in [-1, 1]; a connector maps that to the bounds of Box action spaces, by dimension."),
        static("clip_actions", False, boolean,
            "Clip actions to the bounds of Box action spaces (if they are not normalized)."),
        host("disable_env_checking", False, boolean,
            "Skip the check of the environment's interface and, of a JAX environment, of what a trace shows.", RUNNER),
        static("is_atari", None, boolean,
            "Whether it is an Atari environment; None decides by its name.", attribute="_is_atari"),
        static("action_mask_key", "action_mask", text,
            "Key of the action mask in observations {key: mask, 'observations': all else}. Default modules of discrete "
            "actions never choose an action whose mask is 0."),
    )),
    Section("env_runners", "Sets how experience is sampled.", (
        host("env_runner_cls", None, _runner_class,
            "EnvRunner class; None takes the single- or multi-agent one.", RUNNER),
        actors("num_env_runners", 0, integer(0),
            "EnvRunner actors; 0 samples in the main process. Counts as 0 where the environment runs on the device, "
            "and where it was not set."),
        actors("create_local_env_runner", True, boolean, "Keep an EnvRunner in the main process beside the actors."),
        actors("create_env_on_local_worker", False, boolean, "Give that local EnvRunner environments, too."),
        static("num_envs_per_env_runner", 1, integer(1),
            "Environments that are stepped together. On the device driver: all of them, over all devices.", RUNNER),
        actors("gym_env_vectorize_mode", "sync", checks.vectorize_mode,
            "How gymnasium environments are stepped together: 'sync', 'async' or 'vector_entry_point'.",
            check_when_set=False),
        actors("num_cpus_per_env_runner", 1, number(0), "CPUs of each EnvRunner actor."),
        actors("num_gpus_per_env_runner", 0, number(0), "GPUs of each EnvRunner actor; above 0 its policy runs there."),
        actors("custom_resources_per_env_runner", {}, amounts, "Ray resources of each EnvRunner actor."),
        actors("validate_env_runners_after_construction", True, boolean,
            "Wait until all EnvRunner actors answer before training starts."),
        actors("sample_timeout_s", 60.0, number(0, also=(None,)),
            "Longest wait for the actors in one synchronous round of sampling, in seconds."),
        actors("max_requests_in_flight_per_env_runner", 1, integer(1),
            "Pending sample requests per actor (asynchronous algorithms)."),
        static("env_to_module_connector", None, checks.connector,
            "Function (env, spaces, device), or of the first two, one or none of these, that returns a connector "
            "or a list of them, which run before the default ones.", attribute="_env_to_module_connector"),
        static("module_to_env_connector", None, checks.connector,
            "Function (env, spaces), or of fewer, that returns a connector or a list of connectors; they run before "
            "actions are normalized and clipped.", attribute="_module_to_env_connector"),
        static("add_default_connectors_to_env_to_module_pipeline", True, boolean,
            "Append the default env-to-module connectors."),
        static("add_default_connectors_to_module_to_env_pipeline", True, boolean,
            "Add the default module-to-env connectors."),
        host("episode_lookback_horizon", 1, integer(0),
            "Steps of the previous chunk that a chunk of an episode keeps.", RUNNER),
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
    )),
    Section("learners", "Sets where and how the learner runs.", (
        static("num_learners", 0, integer(0),
            "Learner actors; 0 (or None) learns in the main process. Several update together, as one. They step JAX "
            "environments themselves.", LEARNER,
            convert=lambda value: value or 0, takes_none=True),
        host("learner_snapshot_interval", 10, integer(1),
            "Updates (calls of the compiled program, on JAX environments) between two copies of the training state: "
            "as many are lost at most when an update fails while it runs, or when a Learner actor dies; one that steps "
            "JAX environments is lost for good. In this process copies take 0.5 % of the time at most: fast "
            "updates are copied more seldom.", LEARNER),
        static("num_cpus_per_learner", "auto", number(0, also=("auto",)),
            "CPUs of a learner; on a machine without accelerator each whole one is a device, and a part of one, too. "
            "'auto' is one.", LEARNER),
        static("num_gpus_per_learner", 0, number(0),
            "Accelerators of a learner. Unless it is set, all local ones are used; an explicit 0 means the CPU.",
            LEARNER),
        actors("custom_resources_per_learner", {}, amounts, "Ray resources of each Learner actor."),
        actors("num_aggregator_actors_per_learner", 0, integer(0),
            "Actors that fetch the samples of a train batch and put them side by side (asynchronous algorithms)."),
        actors("max_requests_in_flight_per_aggregator_actor", 3, number(1),
            "Pending requests per aggregator actor (IMPALA, APPO)."),
        static("local_gpu_idx", 0, integer(0),
            "First accelerator that the learner of the main process takes.", LEARNER),
        actors("max_requests_in_flight_per_learner", 3, integer(1), "Pending updates per Learner (IMPALA, APPO)."),
        static("learner_class", None, _learner_class,
            "Learner class; None takes the algorithm's own.", LEARNER, attribute="_learner_class"),
        static("learner_connector", None, checks.connector,
            "Function (observation_space, action_space), or of fewer, that returns a connector or a list of "
            "connectors, which run before the default ones.", attribute="_learner_connector"),
        static("add_default_connectors_to_learner_pipeline", True, boolean,
            "Append the algorithm's own learner connectors (PPO: advantages and value targets)."),
        per_module("learner_config_dict", {}, dictionary,
            "Free settings for a Learner of your own. Merged into the present ones.", merge=True),
        static("num_shuffle_shards", None, integer(1),
            "Parts of a train batch that are shuffled on their own; None is one per device. Equal numbers of shards "
            "give equal updates on any number of devices.", LEARNER),
    )),
    Section("training", "Sets how the policy is trained.", (
        traced("gamma", 0.99, number(0, 1), "Discount factor of the returns."),
        traced("lr", 0.001, amount_or_schedule, "Learning rate.",
            check_when_set=False, type=f"{amount_or_schedule.type} | None"),
        traced("grad_clip", None, number(0),
            "Threshold of gradient clipping; None and 0 switch it off.", off=(None, 0)),
        per_module("grad_clip_by", "global_norm", one_of("value", "norm", "global_norm"),
            "What is clipped: 'value', 'norm' (of each tensor) or 'global_norm' (of each optimizer's gradients)."),
        static("train_batch_size", 32, integer(1),
            "Env steps per update over all learners, where train_batch_size_per_learner is None.", RUNNER,
            deprecated="training(train_batch_size_per_learner=...), the number of one learner"),
        static("train_batch_size_per_learner", None, integer(1),
            "Env steps per update and learner; None takes the algorithm's default.",
            RUNNER, attribute="_train_batch_size_per_learner"),
        static("num_epochs", 1, integer(1), "Passes over the train batch per update.", LEARNER),
        static("minibatch_size", None, integer(1, also=(None,)),
            "Rows per gradient step and learner; None takes the whole batch.", LEARNER),
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
            "Evaluate every that many iterations; None or 0 never.", EVALUATION),
        static("evaluation_duration", 10, integer(1, also=("auto",)),
            "How much one evaluation samples, in evaluation_duration_unit.", EVALUATION, check_when_set=False),
        static("evaluation_duration_unit", "episodes", one_of("episodes", "timesteps"),
            "'episodes' or 'timesteps'.", EVALUATION),
        actors("evaluation_auto_duration_min_env_steps_per_sample", 100, integer(1),
            "Fewest steps per round with evaluation_duration='auto'."),
        actors("evaluation_auto_duration_max_env_steps_per_sample", 2000, integer(1),
            "Most steps per round with evaluation_duration='auto'."),
        host("evaluation_sample_timeout_s", 120.0, number(0, also=(None,)),
            "Longest duration of one evaluation, in seconds.", EVALUATION),
        actors("evaluation_parallel_to_training", False, boolean,
            "Evaluate while training goes on, with the weights of before the iteration. Needs "
            "evaluation_num_env_runners > 0."),
        actors("evaluation_unhealthy_workers_timeout_s", 0.0, number(0),
            "Wait for a healthy evaluation actor before an evaluation is skipped, in seconds."),
        actors("evaluation_error_after_n_consecutive_skips", None, integer(0, also=(None,)),
            "Most evaluations that may be skipped in a row; one more raises. None: any number."),
        static("evaluation_force_reset_envs_before_iteration", True, boolean,
            "Reset all environments at the start of each evaluation.", EVALUATION),
        static("evaluation_config", None, checks.evaluation_config,
            "Settings that differ in evaluation, such as {'explore': False}. Merged into the present ones.",
            EVALUATION, merge=True),
        actors("evaluation_num_env_runners", 0, integer(0),
            "EnvRunner actors for evaluation; 0 evaluates in the main process."),
        host("custom_evaluation_function", None, function_of("algorithm", "eval_env_runner_group"),
            "f(algorithm, eval_env_runner_group) -> (results, env_steps, agent_steps) in place of the evaluation.",
            EVALUATION),
        host("evaluation_video_interval", None, integer(1, also=(None,)),
            "Record the first episode of an evaluation to a video, if it is after every that many iterations; None "
            "never.", EVALUATION),
        host("evaluation_video_dir", None, text,
            "Folder of those videos; None: videos/ in the folder of the results.", EVALUATION),
        host("offline_evaluation_interval", None, integer(1, also=(None,)),
            "Evaluate on recorded data after every that many iterations; None never.", EVALUATION),
        host("num_offline_eval_runners", 0, integer(0),
            "Actors that evaluate on recorded data, each on its part; 0 evaluates in the main process.", EVALUATION),
        host("offline_evaluation_type", "eval_loss", one_of("eval_loss", "is", "pdis"),
            "'eval_loss': the Learner's loss on rows; 'is', 'pdis': returns of episodes, weighted by ratios of "
            "probabilities of whole episodes or up to each reward.", EVALUATION),
        host("offline_eval_runner_class", None, _offline_runner_class,
            "OfflineEvaluationRunner subclass; None for that of offline_evaluation_type.", EVALUATION),
        host("offline_loss_for_module_fn", None,
            function_of("learner", keywords=("module_id", "config", "batch", "fwd_out")),
            "f(learner, *, module_id, config, batch, fwd_out) -> loss in place of the Learner's, for 'eval_loss'.",
            EVALUATION),
        host("offline_eval_batch_size_per_runner", 256, integer(1),
            "Rows of a batch of each runner; for 'is' and 'pdis' episodes.", EVALUATION),
        host("dataset_num_iters_per_offline_eval_runner", 1, integer(1),
            "Batches of a run of a runner.", EVALUATION, attribute="dataset_num_iters_per_eval_runner"),
        host("offline_eval_rl_module_inference_only", False, boolean,
            "Whether the modules of 'is' and 'pdis' have no more than what acting needs.", EVALUATION),
        host("num_cpus_per_offline_eval_runner", 1, number(0), "CPUs of each of these actors.", EVALUATION),
        host("num_gpus_per_offline_eval_runner", 0, number(0), "GPUs of each of these actors.", EVALUATION),
        host("custom_resources_per_offline_eval_runner", {}, amounts,
            "Ray resources of each of these actors.", EVALUATION),
        host("offline_evaluation_duration", 1, integer(1, also=("auto",)),
            "Runs of each runner; 'auto' as many as there are until training is done, beside which they run.",
            EVALUATION),
        host("offline_evaluation_parallel_to_training", False, boolean,
            "Evaluate while training goes on, with the weights of before the iteration. Needs "
            "num_offline_eval_runners > 0.", EVALUATION),
        host("offline_evaluation_timeout_s", 120.0, number(0),
            "Longest wait for a run of the actors, in seconds; the evaluation ends then with what came.", EVALUATION),
        host("max_requests_in_flight_per_offline_eval_runner", 1, integer(1),
            "Runs that an actor is asked for before it has answered.", EVALUATION),
        inert("broadcast_offline_eval_runner_states", False, boolean, "Send connector states to the actors.",
            instead="actors get the Learner's whole state with every evaluation; leave it out."),
        host("validate_offline_eval_runners_after_construction", True, boolean,
            "Wait for actors to be built, so that what fails is raised then.", EVALUATION),
        host("restart_failed_offline_eval_runners", True, boolean, "Start lost actors again.", EVALUATION),
        host("ignore_offline_eval_runner_failures", False, boolean, "Go on without lost actors.", EVALUATION),
        host("max_num_offline_eval_runner_restarts", 1000, integer(0), "Restarts of each actor, at most.", EVALUATION),
        host("offline_eval_runner_health_probe_timeout_s", 30.0, number(0),
            "Longest wait for a sign of life of lost actors, in seconds.", EVALUATION),
        host("offline_eval_runner_restore_timeout_s", 1800.0, number(0),
            "Longest wait for actors that are back to take over the state, in seconds.", EVALUATION),
        host("off_policy_estimation_methods", {}, checks.off_policy_estimation_methods,
            "Name of a result -> {'type': an OffPolicyEstimator or 'is', 'pdis', 'wis', 'dm', 'dr', and its "
            "arguments}: estimates of each offline evaluation, on all episodes of the data.", EVALUATION),
    )),
    Section("offline_data", "Sets reading and writing of recorded experience.", (
        host("input_", "sampler", data_checks.recorded_data,
            "Recorded data to train on: a path, a list of paths, or {path: weight}, of which the weights say how much "
            "of every minibatch comes from each on average; 'sampler' is none.", DATA),
        host("offline_data_class", None, is_class, "OfflineData subclass, which opens it.", DATA),
        host("input_read_method", "read_parquet", data_checks.reader,
            "Name of a reader of ray.data, or a function of paths that returns a Ray Dataset. 'read_parquet' stands "
            "for the readers of this package, which know files by their names: Parquet, npz, HDF5, Minari.", DATA),
        host("input_read_method_kwargs", {}, dictionary, "Arguments of a reader of ray.data.", DATA),
        host("input_read_schema", {}, texts, "Column → its name in the data.", DATA),
        host("input_read_episodes", False, boolean, "Rows are packed episodes.", DATA),
        host("input_read_sample_batches", False, boolean, "Rows are old sample batches.", DATA),
        host("input_read_batch_size", None, integer(1),
            "Rows that a prelearner_class gets at a time, in whole pieces of episodes; None for all of a file's row "
            "group.", DATA),
        host("input_filesystem", None, data_checks.file_system, "'gcs', 's3', 'abs' or a file system.", DATA),
        host("input_filesystem_kwargs", {}, dictionary, "Arguments of the file system.", DATA),
        host("input_compress_columns", ["obs", "new_obs"], name_list, "Columns that may be packed.", DATA),
        host("materialize_data", False, boolean,
            "Keep the data in memory as it is in its files, so that every pass but the first reads none.", DATA),
        host("materialize_mapped_data", True, boolean,
            "With a prelearner_class: keep what it makes of the data, where that fits. False: every pass maps it anew.",
            DATA),
        host("map_batches_kwargs", {}, dictionary, "Arguments of ray.data's map_batches, which is not used.",
            DATA),
        host("iter_batches_kwargs", {}, dictionary, "Arguments of ray.data's iter_batches, where that reads.",
            DATA),
        host("ignore_final_observation", False, boolean, "Zeros in place of next observations.", DATA),
        host("prelearner_class", None, is_class, "OfflinePreLearner subclass, which maps rows to episodes.", DATA),
        host("prelearner_buffer_class", None, is_class,
            "Buffer that a prelearner_class puts episodes into, and trains on what it draws.", DATA),
        host("prelearner_buffer_kwargs", {}, dictionary, "Arguments of that buffer.", DATA),
        static("prelearner_use_recorded_module_states", False, boolean,
            "Start sequences for recurrent networks from the states that were recorded, not as episodes do.",
            DATA),
        static("dataset_num_iters_per_learner", None, integer(1),
            "Updates of a training step; None for as many as a pass over the data has.", DATA),
        host("keep_resident", None, boolean,
            "Whether the data is kept on the learner's devices, and trained on inside of the compiled program; if not, "
            "it is streamed. None: where it fits max_resident_bytes.", DATA),
        host("max_resident_bytes", None, integer(0),
            "Bytes that recorded data may take in memory: what is larger is streamed, in windows that keep to it. "
            "None: a quarter of what is free, of the devices' memory and of the host's.", DATA),
        static("normalize_observations", False, boolean,
            "Normalise recorded observations by mean and standard deviation of all of them, and observations of "
            "environments likewise where the policy acts.", DATA),
        host("normalize_rewards", False, boolean,
            "Divide recorded rewards by the standard deviation of their discounted returns.", DATA),
        static("output", None, instance(str, os.PathLike, what="a path", annotation="str | os.PathLike[str]"),
            "Folder in which every sampled step is recorded, in files of each runner's own; None records nothing. In "
            "evaluation_config, what evaluation samples.", RUNNER, convert=lambda value: value and os.fspath(value)),
        static("output_format", "parquet", one_of("parquet", "rllib"),
            "Form of the files: 'parquet', which says what it is of, or 'rllib', which RLlib reads.", RUNNER),
        static("output_write_episodes", True, boolean,
            "Write episodes: a row per step and one with the last observation behind them, or as RLlib packs them. "
            "False: rows of steps alone, each with its next observation in a column 'new_obs', in both forms.", RUNNER),
        static("output_write_infos", False, boolean, "Record the environments' infos as well, as JSON.", RUNNER),
        static("output_max_rows_per_file", 100_000, integer(2), "Most rows of a file.", RUNNER),
        static("output_write_remaining_data", True, boolean,
            "When the algorithm stops, write the episodes that are running up to where they are. False leaves them "
            "out.", RUNNER),
        static("output_compress_columns", ["obs", "new_obs"], name_list,
            "Columns to compress, with LZ4; the others are not.", RUNNER),
        static("output_write_method", "write_parquet", one_of("write_parquet"), "Writer of files.", RUNNER),
        static("output_write_method_kwargs", {}, dictionary,
            "Arguments of pyarrow.parquet.ParquetWriter, such as {'compression': 'gzip'}.", RUNNER),
        static("output_filesystem", None, data_checks.file_system,
            "'gcs', 's3' or 'abs', or a pyarrow.fs.FileSystem that `output` is on; None: as the path says.", RUNNER),
        static("output_filesystem_kwargs", {}, dictionary, "Arguments of a file system that is named.", RUNNER),
    )),
    Section("multi_agent", "Sets which agents use which policies.", (
        static("policies", {DEFAULT_POLICY_ID: PolicySpec()}, checks.policies,
            "Policy (module) ids, or a dict from id to PolicySpec.", ALGORITHM),
        static("policy_mapping_fn", default_policy_mapping_fn,
            function_of("agent_id", "episode", annotation="Callable[..., str]"),
            "f(agent_id, episode, **kwargs) -> policy id.", RUNNER),
        static("policies_to_train", None, checks.policies_to_train,
            "Ids of the policies to update, or f(module_id, batch) -> bool; None updates all.", LEARNER),
        static("count_steps_by", "env_steps", one_of("env_steps", "agent_steps"),
            "Unit of batch sizes and counters: 'env_steps' or 'agent_steps'.", RUNNER),
    )),
    Section("reporting", "Sets what an iteration is and what its result holds.", (
        static("metrics_num_episodes_for_smoothing", 100, integer(1),
            "Last episodes over which episode statistics are taken.", RUNNER),
        host("min_time_s_per_iteration", None, number(0), "Least duration of an iteration, in seconds.", ALGORITHM),
        static("min_train_timesteps_per_iteration", 0, integer(0, also=(None,)),
            "Fewest trained env steps in an iteration.", ALGORITHM),
        static("min_sample_timesteps_per_iteration", 0, integer(0, also=(None,)),
            "Fewest sampled steps in an iteration: env steps, or steps of agents with count_steps_by='agent_steps'.",
            ALGORITHM),
        host("results_dir", None, instance(str, os.PathLike, what="a path", annotation="str | os.PathLike[str]"),
            "Directory that every iteration is written to: CSV, JSON, TensorBoard events and a log. If a run is there "
            "already, a number is added to its name. None writes nothing.", ALGORITHM,
            convert=lambda value: value and os.fspath(value)),
        host("keep_best", False, checks.kept,
            "Keep a checkpoint of the state with the highest mean return so far in `results_dir`, called 'best': the "
            "return of evaluations if there are any, else of training. With several agents that is their sum; the path "
            "of a number in results, such as 'env_runners/agent_episode_returns_mean/a', counts in its place.",
            ALGORITHM),
        host("loggers", None, checks.loggers,
            "Trackers that every iteration is sent to, by name ('wandb', 'mlflow', 'trackio'), or name → arguments of "
            "what starts a run there.", ALGORITHM, convert=checks.with_options),
        inert("log_gradients", False, boolean,
            "Report the norms of the gradients before clipping.", instead="they are always reported; leave it out."),
        host("custom_stats_cls_lookup", DEFAULT_STATS_CLS_LOOKUP, checks.stats_classes,
            "Name of a reduction → class of statistics that does it. Merged into the built-in ones.",
            ALGORITHM, attribute="stats_cls_lookup", merge=True),
    )),
    Section("checkpointing", "Takes no settings any more; checkpoints hold the whole state."),
    Section("debugging", "Sets seeds, logging and help with errors.", (
        host("log_level", "WARN", one_of("DEBUG", "INFO", "WARN", "WARNING", "ERROR", "CRITICAL"),
            "Level of the logger 'jaxrl_stack'.", ALGORITHM),
        host("seed", None, integer(0, maximum=MAX_SEED), "Seed of everything that is random; None is 0.", ALGORITHM),
        static("disable_jit", False, boolean,
            "Run the same code eagerly, operation by operation: slow, but print and debuggers work in it.", ALGORITHM),
        static("check_nans", None, boolean,
            "Whether NaN and infinity stop the run. None: those that environments return, naming column, environment "
            "and step. True: also the first loss or gradient, naming iteration, module and tensor. False: none; those "
            "of environments are said once.", LEARNER),
        host("profile_iterations", None, iterations,
            "Number of an iteration, or several, to trace with JAX's profiler; the result's `profile` says where the "
            "trace is and what the time went to.", ALGORITHM),
    )),
    Section("fault_tolerance", "Sets what happens when actors or environments fail.", (
        actors("restart_failed_env_runners", True, boolean,
            "Restart EnvRunner actors that are lost, or whose environments fail."),
        actors("ignore_env_runner_failures", False, boolean, "Go on without such actors where they are not restarted."),
        actors("max_num_env_runner_restarts", 1000, integer(0), "Restarts per actor."),
        actors("delay_between_env_runner_restarts_s", 60.0, number(0),
            "Least time between two restarts of an actor whose environments fail, in seconds. The first restart and "
            "those of lost processes are immediate."),
        actors("restart_failed_sub_environments", False, boolean,
            "Make an environment anew that raises, or returns NaN or infinity, and leave its episode out."),
        actors("num_consecutive_env_runner_failures_tolerance", 100, integer(0),
            "Failures of actors or environments in a row, without a successful sample, before an error is raised."),
        actors("env_runner_health_probe_timeout_s", 30.0, number(0),
            "Longest wait for an actor that is being restarted, in seconds, if no other one is healthy. Then the "
            "iteration ends without samples."),
        actors("env_runner_restore_timeout_s", 1800.0, number(0), "Longest wait for a restored state."),
    )),
    Section("rl_module", "Sets the networks.", (
        static("model_config", {}, checks.model_config,
            "Settings of the default networks: a DefaultModelConfig, or a dict that is free for RLModules of your own.",
            attribute="_model_config", per_module=True),
        static("rl_module_spec", None, checks.rl_module_spec,
            "RLModuleSpec or MultiRLModuleSpec; None takes the algorithm's default module.",
            attribute="_rl_module_spec"),
        static("algorithm_config_overrides_per_module", {}, checks.overrides_per_module,
            "Module id → settings that differ for that module; make them with overrides(...)."),
    )),
    Section("experimental", "Sets what may change without notice.", (
        host("_validate_config", True, boolean,
            "Whether validate() raises; a call of experimental() without it switches it on again.", when_omitted=True),
        inert("_use_msgpack_checkpoints", False, boolean,
            "Write state files as msgpack.", instead="states are stored as arrays; leave it out."),
        torch("_torch_grad_scaler_class", None, anything("type"),
            "Loss scaling for half precision.",
            instead="chain optax transformations in Learner.configure_optimizers_for_module()."),
        static("_torch_lr_scheduler_classes", None, checks.lr_schedules,
            "Optax schedules whose values, as of the updates so far, the learning rates are multiplied by: a list for "
            "all modules, or one per module id.", LEARNER, check_when_set=False),
        static("_static_settings", (), checks.static_names,
            "Traced settings to bake into the program as Python numbers, so that Python code can branch on them; each "
            "value then compiles its own program.", convert=tuple),
    )),
)
# fmt: on

BASE_SETTINGS: dict[str, Setting] = {setting.name: setting for section in BASE_SECTIONS for setting in section.settings}
"""Settings by name, with the defaults that all algorithms share: those of no actors."""


def _is_of_default_networks(model: Any) -> bool:
    """Whether all settings of an old "model" belong to today's default networks."""
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
