"""Consistency checks between the settings of a config.

`AlgorithmConfig.validate` calls `validate`; algorithms override that method and `_validate_for_device`.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax

from jaxrl_stack.algorithms.base_settings import BASE_SETTINGS, default_policy_mapping_fn
from jaxrl_stack.algorithms.config_store import KEY_TRANSLATIONS
from jaxrl_stack.algorithms.model_settings import problem_with_model_config
from jaxrl_stack.algorithms.observation_key_settings import check_observation_key_settings
from jaxrl_stack.algorithms.setting_values import as_dict, is_search_space, same
from jaxrl_stack.algorithms.settings import DATA
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.module_map import OPPONENTS
from jaxrl_stack.core.opponents import is_snapshot_name
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.env.param_ranges import shown
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.notices import notice_once

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig

_OF_THE_ALGORITHM = (
    "evaluation_interval",
    "evaluation_num_env_runners",
    "evaluation_parallel_to_training",
    "evaluation_error_after_n_consecutive_skips",
    "custom_evaluation_function",
    "evaluation_video_interval",
    "evaluation_video_dir",
)
"""Settings of evaluation that its runners do not read."""

_OF_SAMPLING = ("rollout_fragment_length", "batch_mode", "min_sample_timesteps_per_iteration")
"""Settings that only training reads, where it samples."""

_OF_TRAINING_ACTORS = (
    "num_env_runners",
    "create_local_env_runner",
    "create_env_on_local_worker",
    "sample_timeout_s",
    "merge_env_runner_states",
    "broadcast_env_runner_states",
    "replayable_episodes",
)
"""Settings of actors that only training's env runners read."""

_OF_EVALUATION_ACTORS = (
    "evaluation_num_env_runners",
    "evaluation_parallel_to_training",
    "evaluation_auto_duration_min_env_steps_per_sample",
    "evaluation_auto_duration_max_env_steps_per_sample",
    "evaluation_unhealthy_workers_timeout_s",
    "evaluation_error_after_n_consecutive_skips",
)
"""Settings of actors that only evaluation's env runners read."""

_OF_ASYNCHRONOUS_SAMPLING = {
    "env_runners": "use_env_runner_state_server",
    "learners": "num_aggregator_actors_per_learner",
}
"""Settings that only algorithms read which sample and learn at the same time, by the method that sets them."""

_OF_DATA = tuple(name for name, setting in BASE_SETTINGS.items() if setting.read_by == DATA)


def validate(config: AlgorithmConfig) -> None:
    """Checks all settings, individually and in combination; see `AlgorithmConfig.validate`."""
    if not config._validate_config:
        return
    _check_values(config)
    _validate_static_settings(config)
    _validate_modules(config)
    _validate_model_config(config)
    _validate_connectors(config)
    _validate_randomized_params(config)
    _validate_evaluation(config)
    _validate_asynchronous_sampling(config)
    _validate_output(config)
    _validate_replayable_episodes(config)
    if not config.in_evaluation:
        _validate_checkpoints(config)
    if jax.distributed.is_initialized():
        _validate_for_joined_processes(config)
    _validate_normalization(config)
    if config.samples_on_device:
        config._validate_for_device()
    _note_settings_without_effect(config)


def _validate_checkpoints(config: AlgorithmConfig) -> None:
    """Raises if the config stores checkpoints without `results_dir`, limits the number or size of regular checkpoints
    without `checkpoint_frequency`, or selects the best checkpoint by evaluations without `evaluation_interval`.
    """
    for name in ("keep_best", "checkpoint_frequency"):
        value = getattr(config, name)
        if value and not config.results_dir:
            config._value_error(
                f"reporting({name}={value!r}) needs a folder for the checkpoints. Set "
                f"reporting(results_dir='results/first')."
            )
    for name in ("num_to_keep", "checkpoint_max_bytes"):
        value = getattr(config, name)
        if value is not None and config.checkpoint_frequency is None:
            config._value_error(
                f"reporting({name}={value!r}) limits stored checkpoints, and the run stores none. Set "
                f"reporting(checkpoint_frequency=10)."
            )
    if str(config.keep_best).startswith("evaluation/") and not config.evaluation_interval:
        config._value_error(
            f"reporting(keep_best={config.keep_best!r}) needs evaluations. Set evaluation(evaluation_interval=10)."
        )


def _check_values(config: AlgorithmConfig) -> None:
    """Checks each setting separately."""
    declarations, values = config._declarations, vars(config)
    for setting in declarations.by_name.values():
        value = values[setting.attribute]
        if setting.name != "env" and is_search_space(value):
            raise ValueError(
                f"{declarations.call(setting, short(value))} is still a search space. Give the "
                "config to a tuner (tune.Tuner('PPO', param_space=config)), or set one value."
            )
        declarations.check(setting, value)
        if setting.kind == "later" and setting.differs_from_default(value):
            raise NotImplementedError(
                f"{declarations.call(setting, short(value))} is not supported yet. {setting.instead} "
                f"Leave the setting at its default, {setting.default!r}."
            )


def _validate_normalization(config: AlgorithmConfig) -> None:
    """Raises if `normalize_observations` or `normalize_rewards` is set for an algorithm that samples.

    These settings normalize with statistics of recorded data, and therefore require an algorithm that only reads
    recorded data.
    """
    asked = [name for name in ("normalize_observations", "normalize_rewards") if getattr(config, name)]
    if asked and config.is_online:
        config._value_error(
            f"offline_data({asked[0]}=True) is for algorithms that only read recorded steps, such as BC and MARWIL; "
            f"{config.algo_class.__name__} samples. Use env_runners(env_to_module_connector=...) with MeanStdFilter(), "
            f"or learners(learner_connector=...) with NormalizeRewards() or ScaleRewards()."
        )


def _validate_output(config: AlgorithmConfig) -> None:
    """Checks that runners can write recorded steps to `output`."""
    if not config.output:
        return
    called = f"offline_data(output={short(config.output)})"
    if config.is_multi_agent:
        config._value_error(
            f"{called} records single-agent environments only, and {short(config.env)} has several agents. Leave it "
            f"out."
        )
    runner_class, recording = config.env_runner_cls, config.get_default_env_runner_class()
    if runner_class is not None and not issubclass(runner_class, recording):
        config._value_error(
            f"{called} has no effect with env_runners(env_runner_cls={short(runner_class)}), because this class does "
            f"not record. Derive it from {recording.__name__}, or leave output or env_runner_cls out."
        )
    joined = "distributed.initialize()" if jax.distributed.is_initialized() else ""
    if config.num_learners and config.is_online and config.samples_on_device:
        joined = f"learners(num_learners={config.num_learners})"
    if joined:
        config._value_error(
            f"{called} with {joined}: {short(config.env)} runs in several processes, and none of them has all steps. "
            f"Leave {joined} out to record."
        )


def _validate_replayable_episodes(config: AlgorithmConfig) -> None:
    """Raises for `replayable_episodes` if this process cannot reset and step each environment separately.

    This is impossible with EnvRunner actors, several agents, runner classes that are not derived from
    `SingleAgentEnvRunner`, or a `gym_env_vectorize_mode` other than "sync".
    """
    if not config.replayable_episodes or config.in_evaluation or not config.is_online or config.samples_on_device:
        return
    called = "env_runners(replayable_episodes=True)"
    mode = gym.VectorizeMode(config.gym_env_vectorize_mode).value
    if config.num_sampling_actors:
        config._value_error(
            f"{called} needs environments in this process, but num_env_runners={config.num_env_runners}. Set "
            f"env_runners(num_env_runners=0), or leave replayable_episodes out."
        )
    if config.is_multi_agent:
        config._value_error(
            f"{called} does not support several agents, and multi_agent(policies=...) was set. Set "
            f"env_runners(replayable_episodes=False)."
        )
    if config.env_runner_cls is not None:
        _require_single_agent_runner(config, config.env_runner_cls, called)
    if mode != "sync":
        config._value_error(
            f"{called} needs environments that are stepped one by one, but gym_env_vectorize_mode={mode!r}. Set "
            f"env_runners(gym_env_vectorize_mode='sync'), or leave replayable_episodes out."
        )


def _require_single_agent_runner(config: AlgorithmConfig, runner_class: type, called: str) -> None:
    # Most configs name no class of runners, and need no import of them.
    from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner

    name = runner_class.__name__
    if not issubclass(runner_class, SingleAgentEnvRunner):
        config._value_error(
            f"{called} needs a subclass of SingleAgentEnvRunner, but env_runner_cls={name}. Derive {name} from "
            f"SingleAgentEnvRunner, or leave replayable_episodes out."
        )


def _validate_asynchronous_sampling(config: AlgorithmConfig) -> None:
    if config.is_asynchronous:
        return
    for section, name in _OF_ASYNCHRONOUS_SAMPLING.items():
        value = getattr(config, name)
        if value != BASE_SETTINGS[name].default:
            algorithm = getattr(config.algo_class, "__name__", "This algorithm")
            config._value_error(
                f"{section}({name}={value!r}) is only for IMPALA and APPO, which sample and learn at the same time. "
                f"Leave it out for {algorithm}."
            )


def _validate_static_settings(config: AlgorithmConfig) -> None:
    for name in config._static_settings:
        setting = config._declarations.by_name.get(name)
        if setting is None or setting.kind != "traced":
            known = sorted(s.name for s in config._declarations.by_name.values() if s.kind == "traced")
            config._value_error(
                f"experimental(_static_settings={list(config._static_settings)!r}): {name!r} is not a traced "
                f"setting. Traced settings are {', '.join(known)}."
            )
        elif schedules.is_schedule(vars(config)[setting.attribute]):
            config._value_error(
                f"{name}={vars(config)[setting.attribute]!r} is a schedule, and static settings are constants. Remove "
                f"{name!r} from experimental(_static_settings=...), or use a number."
            )


def _validate_modules(config: AlgorithmConfig) -> None:
    ids = set(config._policy_ids())
    if config.is_multi_agent and not config.is_online:
        raise NotImplementedError(
            f"multi_agent(policies={sorted(ids)}) is not supported with recorded data. Use an environment "
            f"(MultiAgentEnv or MultiAgentJaxEnv), or leave multi_agent(policies=...) out."
        )
    _validate_opponents(config)
    if config.is_multi_agent:
        _validate_several_agents(config)
    elif config.policy_mapping_fn is not default_policy_mapping_fn:
        notice_once(
            f"multi_agent(policy_mapping_fn={short(config.policy_mapping_fn)}) has no effect: there is one "
            f"policy, {DEFAULT_POLICY_ID!r}, and all agents use it."
        )
    _validate_acting_modules(config, ids)
    # Modules that do not act can be trained, too, with settings of their own.
    ids |= config._given_specs().keys()
    if config.policies_to_train is not None and not callable(config.policies_to_train):
        if not config.policies_to_train:
            notice_once(
                f"multi_agent(policies_to_train={config.policies_to_train!r}) trains no policy: iterations only "
                f"sample. Name at least one of {sorted(ids)}, or use None for all."
            )
        unknown = sorted(set(config.policies_to_train) - ids)
        if unknown:
            config._value_error(
                f"multi_agent(policies_to_train=...) names unknown modules {unknown}. Use some of {sorted(ids)}."
            )
    where = "rl_module(algorithm_config_overrides_per_module=...)"
    for module_id, overrides in config.algorithm_config_overrides_per_module.items():
        if module_id not in ids:
            config._value_error(f"{where} names the unknown module {module_id!r}. Use some of {sorted(ids)}.")
        for key, value in overrides.items():
            problem = _problem_with_override(config, key, value)
            if problem is not None:
                config._value_error(f"{where}: module {module_id!r} overrides {problem}")


def _validate_several_agents(config: AlgorithmConfig) -> None:
    """Checks a config with several agents. Raises if the algorithm does not support several agents, or if the config
    combines JAX environments with learner actors.
    """
    called = f"multi_agent(policies={sorted(config._policy_ids())})"
    algo_class = config.algo_class
    step_class = getattr(algo_class, "training_step_class", None)
    if step_class is not None and not step_class.trains_several_agents:
        raise NotImplementedError(
            f"{called}: {algo_class.__name__} does not support several policies. Use PPO, IMPALA, APPO, PQN, DQN, SAC, "
            f"TD3 or TQC."
        )
    if config.samples_on_device and config.num_learners:
        raise NotImplementedError(
            f"{called} with learners(num_learners={config.num_learners}) is not supported for JAX environments. Leave "
            f"num_learners out to train on all devices of this process, or use a MultiAgentEnv."
        )


def _validate_opponents(config: AlgorithmConfig) -> None:
    """Raises if the config uses snapshots of policies as opponents in a setup that does not support them."""
    opponents = config.opponents
    if opponents is None:
        return
    called, of = f"multi_agent(opponents=Snapshots(of={opponents.of!r}))", opponents.of
    policies, trained = set(config._policy_ids()), config.policies_to_train
    if policies != {of} or of in (DEFAULT_POLICY_ID, OPPONENTS):
        name = "main" if of in (DEFAULT_POLICY_ID, OPPONENTS) else of
        config._value_error(
            f"{called} with policies={sorted(policies)}: one policy plays all agents, and its name must not be "
            f"{DEFAULT_POLICY_ID!r} or {OPPONENTS!r}. Set policies={{{name!r}}} and Snapshots(of={name!r})."
        )
    if is_snapshot_name(of):
        config._value_error(
            f"{called}: snapshots have names such as {of!r}. Rename the policy: policies={{'main'}}, "
            f"opponents=Snapshots(of='main')."
        )
    if trained is not None and not callable(trained) and set(trained) != {of}:
        config._value_error(
            f"{called} with policies_to_train={sorted(map(str, trained))}: only {of!r} is trained, and snapshots never "
            f"are. Set policies_to_train=[{of!r}]."
        )
    if config.policy_mapping_fn is not default_policy_mapping_fn:
        config._value_error(
            f"{called} with policy_mapping_fn={short(config.policy_mapping_fn)}: all agents have the policy {of!r} or "
            f"one of its snapshots. Leave policy_mapping_fn out."
        )
    if config.env is not None and not is_search_space(config.env) and not config.samples_on_device:
        config._value_error(
            f"{called} needs a MultiAgentJaxEnv, and {short(config.env)} is a host environment. Use a JAX environment, "
            f"or callbacks(SelfPlayCallback)."
        )
    algo_class = config.algo_class
    step_class = getattr(algo_class, "training_step_class", None)
    if step_class is not None and step_class.uses_replay:
        config._value_error(f"{called}: {algo_class.__name__} learns from replay. Use PPO, IMPALA, APPO or PQN.")
    if config.count_steps_by != "env_steps":
        config._value_error(
            f"{called} with count_steps_by={config.count_steps_by!r}: no policy learns from the steps of snapshots. "
            f"Use count_steps_by='env_steps'."
        )
    if config.num_learners or jax.distributed.is_initialized():
        where = f"learners(num_learners={config.num_learners})" if config.num_learners else "distributed.initialize()"
        config._value_error(f"{called} trains in one process. Leave {where} out.")


def _problem_with_override(config: AlgorithmConfig, key: str, value: Any) -> str | None:
    setting = config._declarations.find(KEY_TRANSLATIONS.get(str(key), str(key)))
    if setting is None:
        hint = config._declarations.suggestion(key)
        return None if key in config._settings.own_names else f"{key!r}, which is not a setting.{hint}"
    if not setting.per_module:
        able = sorted(s.name for s in config._declarations.by_name.values() if s.per_module)
        return f"{setting.name!r}, which must be the same for all modules. Settings that can differ: {', '.join(able)}."
    problem = setting.problem_with(value)
    return None if problem is None else f"{setting.name}={short(value)}, which must be {problem}."


def _validate_acting_modules(config: AlgorithmConfig, ids: Collection[str]) -> None:
    """Raises if no module spec belongs to a policy, or if a policy's module spec sets `inference_only` (prevents
    training) or `learner_only` (prevents acting).
    """
    specs = config._given_specs()
    if specs and not ids & specs.keys():
        config._value_error(
            f"rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=...)) has the modules "
            f"{sorted(specs)}, none of which is a policy. Rename one to one of {sorted(ids)}."
        )
    _note_specs_without_policy(config, ids)
    for module_id in sorted(ids & specs.keys()):
        for flag, other in (("inference_only", "trained"), ("learner_only", "used to act")):
            if getattr(specs[module_id], flag):
                config._value_error(
                    f"rl_module(rl_module_spec=...): module {module_id!r} has {flag}=True, but a policy must be "
                    f"{other}. Leave {flag} out: runners and learners set it themselves."
                )


def _note_specs_without_policy(config: AlgorithmConfig, ids: Collection[str]) -> None:
    """Prints a notice about each module spec whose id is not the id of a policy.

    Skips specs with `learner_only`. If a custom Learner or MultiRLModule class may use such modules, also skips ids
    that are not similar to a policy's id. Similar ids are probably misspelled.
    """
    multi = config._rl_module_spec
    has_own_code = getattr(multi, "multi_rl_module_class", None) not in (None, MultiRLModule) or config._learner_class
    for module_id, spec in config._given_specs().items():
        similar = difflib.get_close_matches(module_id, ids, n=1)
        if module_id in ids or spec.learner_only or (has_own_code and not similar):
            continue
        hint = f" Did you mean {similar[0]!r}?" if similar else ""
        notice_once(
            f"rl_module(rl_module_spec=...) has a spec for {module_id!r}, which is none of the policies "
            f"{sorted(ids)}.{hint} If only a Learner uses it, set RLModuleSpec(learner_only=True)."
        )


def _validate_model_config(config: AlgorithmConfig) -> None:
    if not config._uses_default_module():
        return
    problem = problem_with_model_config(as_dict(config._model_config))
    if problem is not None:
        config._value_error(f"rl_module(model_config=...): {problem}.")
        return
    check_observation_key_settings(config)
    settings = as_dict(config._model_config)
    for key in ("lstm_use_prev_action", "lstm_use_prev_reward"):
        if settings.get(key):
            config._value_error(
                f"rl_module(model_config={{{key!r}: True}}): a connector adds the last action and reward. Leave it "
                "out, and set env_runners(env_to_module_connector=lambda env: PrevActionsPrevRewards())."
            )


def _validate_randomized_params(config: AlgorithmConfig) -> None:
    """Raises if `randomized_params` or `privileged_params` does not fit the environment or other settings.

    Both settings need a JAX environment with a single agent. A randomized parameter must not be an entry of
    `env_config`. `privileged_params` adds parameters to observations, and needs ranges in `randomized_params` by which
    to scale the parameters.
    """
    given = config.randomized_params
    if given is None and not config.privileged_params:
        return
    called = f"environment(randomized_params={shown(given)})"
    if given is None:
        called = "environment(privileged_params=True)"
        if not config.in_evaluation:
            config._value_error(
                f"{called} needs parameters to observe. Set environment(randomized_params={{name: (low, high)}})."
            )
    elif config.privileged_params and callable(given):
        config._value_error(
            f"environment(privileged_params=True) needs ranges to scale by, and randomized_params={shown(given)} is a "
            "function. Use randomized_params={name: (low, high)}, or observe the parameters in the environment."
        )
    twice = sorted(set(config.env_config).intersection(() if given is None or callable(given) else given))
    if twice:
        config._value_error(
            f"{called}: env_config={{{twice[0]!r}: {short(config.env_config[twice[0]])}}} sets the same parameter. "
            "Leave one of them out."
        )
    if config.is_multi_agent:
        config._value_error(
            f"{called} does not support several agents. Leave it out, and draw the parameters in reset_env()."
        )
    if config.env is not None and not is_search_space(config.env) and not config.samples_on_device:
        fix = "Leave it out, and draw the parameters in reset()."
        if config.in_evaluation and given is None:
            fix = "Use a JAX environment for evaluation: evaluation_config={'env': ...}."
        config._value_error(f"{called} needs a JAX environment, and {short(config.env)} runs on the host. {fix}")


def _validate_connectors(config: AlgorithmConfig) -> None:
    if not (config.add_default_connectors_to_module_to_env_pipeline or config._module_to_env_connector):
        config._value_error(
            "env_runners(add_default_connectors_to_module_to_env_pipeline=False) leaves no connector that turns module "
            "outputs into actions. Set module_to_env_connector=..., or leave it out."
        )


def _validate_offline_evaluation(config: AlgorithmConfig) -> None:
    beside = config.offline_evaluation_parallel_to_training
    if config.offline_evaluation_duration == "auto" and not beside:
        config._value_error(
            "evaluation(offline_evaluation_duration='auto') needs offline_evaluation_parallel_to_training=True and "
            "num_offline_eval_runners > 0. Set these, or use a number of runs."
        )
    if beside and not config.num_offline_eval_runners:
        config._value_error(
            "evaluation(offline_evaluation_parallel_to_training=True) needs actors: set num_offline_eval_runners "
            "to at least 1, or leave offline_evaluation_parallel_to_training out."
        )
    if config.offline_eval_rl_module_inference_only and config.offline_evaluation_type == "eval_loss":
        config._value_error(
            "evaluation(offline_eval_rl_module_inference_only=True): offline_evaluation_type='eval_loss' needs "
            "complete modules. Leave it out, or set offline_evaluation_type='is' or 'pdis'."
        )
    if config.offline_loss_for_module_fn is not None and config.offline_evaluation_type != "eval_loss":
        config._value_error(
            f"evaluation(offline_loss_for_module_fn=...) needs offline_evaluation_type='eval_loss', and it is "
            f"{config.offline_evaluation_type!r}. Leave one of them out."
        )
    if config.off_policy_estimation_methods and not config.offline_evaluation_interval and not config.in_evaluation:
        config._value_error(
            f"evaluation(off_policy_estimation_methods={short(config.off_policy_estimation_methods)}) needs offline "
            f"evaluations. Set evaluation(offline_evaluation_interval=1)."
        )


def _validate_evaluation(config: AlgorithmConfig) -> None:
    if config.evaluation_duration == "auto" and not config.evaluation_parallel_to_training:
        config._value_error(
            "evaluation(evaluation_duration='auto') needs evaluation_parallel_to_training=True and "
            "evaluation_num_env_runners > 0. Set these, or use a number of episodes or timesteps."
        )
    _validate_offline_evaluation(config)
    if config.evaluation_video_interval and not config.video_dir:
        config._value_error(
            f"evaluation(evaluation_video_interval={config.evaluation_video_interval}) needs a folder for videos. Set "
            "evaluation(evaluation_video_dir='videos'), or reporting(results_dir='results/first')."
        )
    low = config.evaluation_auto_duration_min_env_steps_per_sample
    high = config.evaluation_auto_duration_max_env_steps_per_sample
    if low > high:
        config._value_error(
            f"evaluation(evaluation_auto_duration_min_env_steps_per_sample={low}) is above "
            f"evaluation_auto_duration_max_env_steps_per_sample={high}. Lower the first, or raise the second."
        )
    if config.evaluation_config is not None and not config.in_evaluation:
        try:
            evaluation = config.get_evaluation_config_object()
            assert evaluation is not None
            _check_values(evaluation)
            _validate_output(evaluation)
            _validate_evaluated_params(config, evaluation)
            _validate_randomized_params(evaluation)
            _ = evaluation.samples_on_device
        except (ValueError, TypeError, ImportError, NotImplementedError) as error:
            raise type(error)(f"evaluation(evaluation_config=...): {error}") from error
        _validate_evaluation_overrides(config, evaluation)
    evaluation = config.get_evaluation_config_object() if config.evaluation_parallel_to_training else None
    if evaluation is not None and not evaluation.num_env_runners:
        config._value_error(
            "evaluation(evaluation_parallel_to_training=True) needs EnvRunner actors for evaluation. Set "
            "evaluation_num_env_runners to at least 1, or leave evaluation_parallel_to_training out."
        )
    if config.evaluation_duration == "auto" and _evaluation_source(config).samples_on_device:
        config._value_error(
            f"evaluation(evaluation_duration='auto') needs a host environment: JAX environments such as "
            f"{short(_evaluation_source(config).env)} are evaluated between training steps. Use a number of episodes "
            f"or timesteps."
        )


def _validate_evaluated_params(config: AlgorithmConfig, evaluation: AlgorithmConfig) -> None:
    """Raises if only one of training and evaluation has environment parameters in its observations
    (``privileged_params``).
    """
    own, trained = evaluation.privileged_params, config.privileged_params
    # Another environment may have the privileged parameters in its observations.
    if own == trained or (trained and not evaluation.is_same(config, "env")):
        return
    fix = "Set environment(privileged_params=True, randomized_params=...)"
    if trained:
        fix = "Leave it out of evaluation_config"
    config._value_error(
        f"privileged_params={own} differs from training's privileged_params={trained}, and networks need the same "
        f"observations. {fix}."
    )


def _evaluation_source(config: AlgorithmConfig) -> AlgorithmConfig:
    """Returns the config that defines the evaluation environment: the evaluation config, or `config` itself if
    `evaluation_config` has no overrides.
    """
    return (config.get_evaluation_config_object() if config.evaluation_config else None) or config


def _validate_evaluation_overrides(config: AlgorithmConfig, evaluation: AlgorithmConfig) -> None:
    """Raises for settings in `evaluation_config` that evaluation does not use."""
    for name in _OF_THE_ALGORITHM:
        value = getattr(evaluation, name)
        if not same(value, getattr(config, name)):
            config._value_error(
                f"evaluation(evaluation_config={{{name!r}: {short(value)}}}) has no effect: the runners of evaluation "
                f"do not read {name}. Set evaluation({name}=...)."
            )
    is_own_class = not same(evaluation.env_runner_cls, config.env_runner_cls)
    if evaluation.samples_on_device and evaluation.env_runner_cls is not None and is_own_class:
        config._value_error(
            f"evaluation(evaluation_config={{'env_runner_cls': {short(evaluation.env_runner_cls)}}}) needs a host "
            f"environment: {short(evaluation.env)} is stepped inside the compiled program. Leave it out."
        )


def _validate_for_joined_processes(config: AlgorithmConfig) -> None:
    """Raises for settings that do not work in processes joined by `distributed.initialize`."""
    if config.num_learners:
        config._value_error(
            f"learners(num_learners={config.num_learners}) with distributed.initialize(): the joined processes are the "
            "learners. Leave num_learners out; or leave distributed.initialize() out, and Ray starts the learners."
        )
    if config.is_online and not config.samples_on_device:
        config._value_error(
            f"environment({short(config.env)}) is a host environment, and processes joined by distributed.initialize() "
            f"support JAX environments only. Leave distributed.initialize() out, and set num_env_runners or "
            f"num_learners."
        )
    evaluation = _evaluation_source(config)
    if evaluation.env is not None and not evaluation.samples_on_device:
        config._value_error(
            f"evaluation(evaluation_config=...): env={short(evaluation.env)} is a host environment, which would give "
            f"each joined process other results. Use a JAX environment, or leave distributed.initialize() out."
        )


def validate_for_device(config: AlgorithmConfig) -> None:
    """Checks the settings of a config whose environment runs inside the compiled program."""
    if config.batch_mode != "truncate_episodes":
        config._value_error(
            f"env_runners(batch_mode={config.batch_mode!r}) needs a host environment, because JAX environments all "
            f"take the same number of steps. Use batch_mode='truncate_episodes'."
        )
    if config.num_learners:
        _validate_for_device_of_actors(config)
    if config.env_runner_cls is not None:
        config._value_error(
            f"env_runners(env_runner_cls={short(config.env_runner_cls)}) needs a host environment: "
            f"{short(config.env)} is stepped inside the compiled program. Leave it out."
        )


def _note_settings_without_effect(config: AlgorithmConfig) -> None:
    """Prints a notice for each changed setting that has no effect because the config does not use actors, sampling or
    recorded data.
    """
    evaluation = _evaluation_source(config)
    if not config.is_online:
        _note_without_effect(config, (*_OF_TRAINING_ACTORS, *_OF_SAMPLING), "training reads data, and samples nothing")
        if evaluation.env is None:
            _note_without_effect(config, _OF_EVALUATION_ACTORS, "there is no environment to evaluate in")
    elif not config.reads_recorded_data:
        _note_without_effect(config, _OF_DATA, "training samples an environment, and reads no recorded data")
    on_device = (config.is_online and config.samples_on_device, evaluation.samples_on_device)
    names = {(True, False): _OF_TRAINING_ACTORS, (False, True): _OF_EVALUATION_ACTORS}.get(on_device)
    for own in itertools.compress((config, evaluation), on_device):
        wanted = own.settings_without_effect_on_device()
        _note_without_effect(
            own,
            [name for name in wanted if names is None or name in names],
            "the environment is stepped inside the compiled program, without actors",
        )


def _note_without_effect(config: AlgorithmConfig, names: Iterable[str], reason: str) -> None:
    """Prints a notice that a setting has no effect, with the reason, for each named setting that the user changed from
    its default.
    """
    for name in names:
        setting = config._declarations.by_name[name]
        if config._was_changed(setting):
            value = vars(config)[setting.attribute]
            notice_once(f"{config._declarations.call(setting, short(value))} has no effect: {reason}.")


def _validate_for_device_of_actors(config: AlgorithmConfig) -> None:
    """Checks a config whose learner actors step the environments. Raises for settings that need training or EnvRunners
    in this process.
    """
    where = f"with learners(num_learners={config.num_learners}), whose actors step {short(config.env)}"
    if config.disable_jit:
        config._value_error(
            f"debugging(disable_jit=True) needs training in this process, and does not work {where}. Set "
            "num_learners=0 to debug."
        )
    if config.custom_evaluation_function is not None and _evaluation_source(config).samples_on_device:
        config._value_error(
            f"evaluation(custom_evaluation_function={short(config.custom_evaluation_function)}) needs env runners in "
            f"this process, and does not work {where}. Set num_learners=0, or leave it out."
        )


def validate_train_batch_size_vs_rollout_fragment_length(config: AlgorithmConfig) -> None:
    """Checks that sampling in whole rounds (one rollout fragment per environment) collects at most 10 % more steps than
    one train batch contains.

    Raises:
        ValueError: If sampling would collect more steps.
    """
    takes_any = config.rollout_fragment_length == "auto" or config.batch_mode == "complete_episodes"
    if takes_any or not config.is_online:
        return
    samplers, num_rounds = max(config.num_sampling_actors, 1), config.rounds_per_deal
    per_step = samplers * config.num_envs_per_env_runner * num_rounds
    round_size = per_step * int(config.rollout_fragment_length)
    total = config.total_train_batch_size
    sampled = -(-total // round_size) * round_size
    if sampled > 1.1 * total:
        fitting = max(total // per_step, 1)
        dealt = f" that {config.num_learners} learners can share ({num_rounds} at a time)" if num_rounds > 1 else ""
        config._value_error(
            f"{samplers} sampler(s) * num_envs_per_env_runner={config.num_envs_per_env_runner} * "
            f"rollout_fragment_length={config.rollout_fragment_length} gives {sampled} steps in whole rounds{dealt}, "
            f"more than 10 % above the train batch of {total}. Use rollout_fragment_length={fitting} or 'auto', or "
            f"train_batch_size_per_learner={sampled // max(config.num_learners, 1)}."
        )
