"""Whether the settings of a config fit together."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable
from typing import Any

import jax

from jaxrl_stack.algorithms.base_settings import BASE_SECTIONS, default_policy_mapping_fn
from jaxrl_stack.algorithms.config_store import KEY_TRANSLATIONS, ConfigStore
from jaxrl_stack.algorithms.model_settings import problem_with_model_config
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.setting_values import as_dict, is_search_space, same
from jaxrl_stack.algorithms.settings import DATA, Setting
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.core import DEFAULT_POLICY_ID
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.notices import notice_once

_OF_THE_ALGORITHM = (
    "evaluation_interval",
    "evaluation_num_env_runners",
    "evaluation_parallel_to_training",
    "evaluation_error_after_n_consecutive_skips",
    "custom_evaluation_function",
    "evaluation_video_interval",
    "evaluation_video_dir",
)
"""Settings of evaluation that its runners have nothing to do with."""

_OF_SAMPLING = ("rollout_fragment_length", "batch_mode", "min_sample_timesteps_per_iteration")
"""Settings that only training reads, where it samples."""

_OF_TRAINING_ACTORS = (
    "num_env_runners",
    "create_local_env_runner",
    "create_env_on_local_worker",
    "sample_timeout_s",
    "merge_env_runner_states",
    "broadcast_env_runner_states",
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

_BASE = {setting.name: setting for section in BASE_SECTIONS for setting in section.settings}
"""With defaults that no algorithm has changed: those of no actors."""
_OF_DATA = tuple(name for name, setting in _BASE.items() if setting.read_by == DATA)


class ConfigValidation(ConfigStore):
    """Checks of settings against each other."""

    def validate(self) -> None:
        """Checks all settings, alone and against each other. `build_algo` calls it.

        Subclasses add their checks after ``super().validate()`` and report with `_value_error`.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting asks for something that comes later.
        """
        if not self._validate_config:
            return
        self._check_values()
        self._validate_static_settings()
        self._validate_modules()
        self._validate_model_config()
        self._validate_connectors()
        self._validate_evaluation()
        self._validate_asynchronous_sampling()
        self._validate_output()
        if self.keep_best and not self.results_dir and not self.in_evaluation:
            self._value_error(
                f"reporting(keep_best={self.keep_best!r}) needs a directory to write to: "
                f"reporting(results_dir='results/first')."
            )
        if str(self.keep_best).startswith("evaluation/") and not (self.evaluation_interval or self.in_evaluation):
            self._value_error(
                f"reporting(keep_best={self.keep_best!r}) needs evaluations: evaluation(evaluation_interval=10)."
            )
        if jax.distributed.is_initialized():
            self._validate_for_joined_processes()
        self._validate_normalization()
        if self.samples_on_device:
            self._validate_for_device()
        self._note_settings_without_effect()

    def _check_values(self) -> None:
        """Every setting on its own."""
        for setting in self._declarations.by_name.values():
            value = vars(self)[setting.attribute]
            if setting.name != "env" and is_search_space(value):
                raise ValueError(
                    f"{self._declarations.call(setting, short(value))} is still a search space. Give the "
                    "config to a tuner (tune.Tuner('PPO', param_space=config)), or set one value."
                )
            self._check_value(setting, value)
            if setting.kind == "later" and setting.differs_from_default(value):
                raise NotImplementedError(
                    f"{self._declarations.call(setting, short(value))} comes later: {setting.instead} "
                    f"The default is {setting.default!r}."
                )

    def _validate_normalization(self) -> None:
        """Whether there are recorded steps alone to take statistics of."""
        asked = [name for name in ("normalize_observations", "normalize_rewards") if getattr(self, name)]
        if asked and self.is_online:
            self._value_error(
                f"offline_data({asked[0]}=True) is for algorithms that train on recorded steps alone, such as BC and "
                f"MARWIL, and {self.algo_class.__name__} samples. Use env_runners(env_to_module_connector=...) with "
                f"MeanStdFilter(), or learners(learner_connector=...) with NormalizeRewards() or ScaleRewards()."
            )

    def _validate_output(self) -> None:
        """Whether what samples can record it."""
        if not self.output:
            return
        called = f"offline_data(output={short(self.output)})"
        if self.is_multi_agent:
            self._value_error(
                f"{called} records environments of one agent, and {short(self.env)} has several. Leave it out."
            )
        runner_class, recording = self.env_runner_cls, self.get_default_env_runner_class()
        if runner_class is not None and not issubclass(runner_class, recording):
            self._value_error(
                f"{called} with env_runners(env_runner_cls={short(runner_class)}), which records nothing. Derive it "
                f"from {recording.__name__}, or leave one of them out."
            )
        joined = "distributed.initialize()" if jax.distributed.is_initialized() else ""
        if self.num_learners and self.is_online and self.samples_on_device:
            joined = f"learners(num_learners={self.num_learners})"
        if joined:
            self._value_error(
                f"{called} with {joined}: {short(self.env)} is stepped in several processes, of which none has all "
                f"steps. Leave {joined} out to record."
            )

    def _validate_asynchronous_sampling(self) -> None:
        if self.is_asynchronous:
            return
        for section, name in _OF_ASYNCHRONOUS_SAMPLING.items():
            value = getattr(self, name)
            if value != _BASE[name].default:
                algorithm = getattr(self.algo_class, "__name__", "This algorithm")
                self._value_error(
                    f"{section}({name}={value!r}): {algorithm} samples and learns in turns; IMPALA and APPO do both at "
                    f"the same time and have a use for it. Leave it out."
                )

    def _value_error(self, message: str) -> None:
        """Raises a ValueError; with ``experimental(_validate_config=False)`` only says so."""
        if self._validate_config:
            raise ValueError(message)
        notice_once(message)

    def _validate_static_settings(self) -> None:
        for name in self._static_settings:
            setting = self._declarations.by_name.get(name)
            if setting is None or setting.kind != "traced":
                known = sorted(s.name for s in self._declarations.by_name.values() if s.kind == "traced")
                self._value_error(
                    f"experimental(_static_settings={list(self._static_settings)!r}): {name!r} is no traced "
                    f"setting; these are: {', '.join(known)}."
                )
            elif schedules.is_schedule(vars(self)[setting.attribute]):
                self._value_error(
                    f"{name}={vars(self)[setting.attribute]!r} changes during training and cannot be baked "
                    f"in: take {name!r} out of experimental(_static_settings=...), or use a number."
                )

    def _validate_modules(self) -> None:
        ids = set(self._policy_ids())
        if self.is_multi_agent and not self.is_online:
            raise NotImplementedError(
                f"multi_agent(policies={sorted(ids)}) comes later for recorded data: several policies are trained in "
                f"environments of several agents, a MultiAgentEnv or a MultiAgentJaxEnv. Take one, or leave "
                f"multi_agent(policies=...) out."
            )
        if self.is_multi_agent:
            self._validate_several_agents()
        elif self.policy_mapping_fn is not default_policy_mapping_fn:
            notice_once(
                f"multi_agent(policy_mapping_fn={short(self.policy_mapping_fn)}) has no effect: there is one "
                f"policy, {DEFAULT_POLICY_ID!r}, and all agents use it."
            )
        self._validate_acting_modules(ids)
        # Modules that do not act can be trained, too, with settings of their own.
        ids |= self._given_specs().keys()
        if self.policies_to_train is not None and not callable(self.policies_to_train):
            if not self.policies_to_train:
                notice_once(
                    f"multi_agent(policies_to_train={self.policies_to_train!r}) trains nothing: iterations only "
                    f"sample. Name at least one of {sorted(ids)}, or use None for all."
                )
            unknown = sorted(set(self.policies_to_train) - ids)
            if unknown:
                self._value_error(
                    f"multi_agent(policies_to_train=...) names {unknown}, which are not among the modules "
                    f"{sorted(ids)}."
                )
        where = "rl_module(algorithm_config_overrides_per_module=...)"
        for module_id, overrides in self.algorithm_config_overrides_per_module.items():
            if module_id not in ids:
                self._value_error(f"{where} names the module {module_id!r}, which is not among {sorted(ids)}.")
            for key, value in overrides.items():
                problem = self._problem_with_override(key, value)
                if problem is not None:
                    self._value_error(f"{where}: module {module_id!r} overrides {problem}")

    def _validate_several_agents(self) -> None:
        """What several agents do not have yet."""
        called = f"multi_agent(policies={sorted(self._policy_ids())})"
        algo_class = get_algorithm_class(self.algo_class) if isinstance(self.algo_class, str) else self.algo_class
        step_class = getattr(algo_class, "training_step_class", None)
        if step_class is not None and not step_class.trains_several_agents:
            raise NotImplementedError(
                f"{called} with {algo_class.__name__} comes later: it learns from the steps of one agent. Use PPO, "
                "IMPALA, APPO, DQN, SAC or TQC."
            )
        if self.samples_on_device and self.num_learners:
            raise NotImplementedError(
                f"{called} with learners(num_learners={self.num_learners}) comes later for JAX environments: one "
                f"program trains on all devices of this process. Leave num_learners out, or take a MultiAgentEnv."
            )

    def _problem_with_override(self, key: str, value: Any) -> str | None:
        setting = self._declarations.find(KEY_TRANSLATIONS.get(str(key), str(key)))
        if setting is None:
            hint = self._declarations.suggestion(key)
            return None if key in self._own_names else f"{key!r}, which is no setting.{hint}"
        if not setting.per_module:
            able = sorted(s.name for s in self._declarations.by_name.values() if s.per_module)
            return (
                f"{setting.name!r}, which is the same for all modules and cannot be overridden. These can: "
                f"{', '.join(able)}."
            )
        problem = setting.problem_with(value)
        return None if problem is None else f"{setting.name}={short(value)}, which must be {problem}."

    def _validate_acting_modules(self, ids: Collection[str]) -> None:
        """The policies are both trained and acted with."""
        specs = self._given_specs()
        if specs and not ids & specs.keys():
            self._value_error(
                f"rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=...)) has the modules "
                f"{sorted(specs)}, none of which is a policy. Call it one of {sorted(ids)}."
            )
        self._note_specs_without_policy(ids)
        for module_id in sorted(ids & specs.keys()):
            for flag, other in (("inference_only", "trained"), ("learner_only", "acted with")):
                if getattr(specs[module_id], flag):
                    self._value_error(
                        f"rl_module(rl_module_spec=...): the module {module_id!r} has {flag}=True and could not be "
                        f"{other}. Leave {flag} out; runners and learners build it as they need it."
                    )

    def _note_specs_without_policy(self, ids: Collection[str]) -> None:
        """Gives a notice of specs that are no policy's, unless something else may use their modules."""
        multi = self._rl_module_spec
        has_own_code = getattr(multi, "multi_rl_module_class", None) not in (None, MultiRLModule) or self._learner_class
        for module_id, spec in self._given_specs().items():
            similar = difflib.get_close_matches(module_id, ids, n=1)
            if module_id in ids or spec.learner_only or (has_own_code and not similar):
                continue
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            notice_once(
                f"rl_module(rl_module_spec=...) has a spec of the module {module_id!r}, which acts for no agent: the "
                f"policies are {sorted(ids)}.{hint} If a Learner uses it, set RLModuleSpec(learner_only=True)."
            )

    def _validate_model_config(self) -> None:
        if not self._uses_default_module():
            return
        problem = problem_with_model_config(as_dict(self._model_config))
        if problem is not None:
            self._value_error(f"rl_module(model_config=...): {problem}.")
            return
        settings = as_dict(self._model_config)
        for key in ("lstm_use_prev_action", "lstm_use_prev_reward"):
            if settings.get(key):
                self._value_error(
                    f"rl_module(model_config=...): {key}=True is not what puts the last action or reward before the "
                    f"LSTM: leave it out, and add PrevActionsPrevRewards() to env_runners(env_to_module_connector=...)."
                )

    def _validate_connectors(self) -> None:
        if not (self.add_default_connectors_to_module_to_env_pipeline or self._module_to_env_connector):
            self._value_error(
                "env_runners(add_default_connectors_to_module_to_env_pipeline=False) leaves nothing that turns the "
                "module's outputs into actions. Give module_to_env_connector= with connectors that do, or leave it out."
            )

    def _validate_offline_evaluation(self) -> None:
        beside = self.offline_evaluation_parallel_to_training
        if self.offline_evaluation_duration == "auto" and not beside:
            self._value_error(
                "evaluation(offline_evaluation_duration='auto') needs offline_evaluation_parallel_to_training=True and "
                "num_offline_eval_runners > 0; give the number of runs instead."
            )
        if beside and not self.num_offline_eval_runners:
            self._value_error(
                "evaluation(offline_evaluation_parallel_to_training=True) needs actors: set num_offline_eval_runners "
                "to at least 1, or leave offline_evaluation_parallel_to_training out."
            )
        if self.offline_eval_rl_module_inference_only and self.offline_evaluation_type == "eval_loss":
            self._value_error(
                "evaluation(offline_eval_rl_module_inference_only=True): a loss needs whole modules, and "
                "offline_evaluation_type is 'eval_loss'. Leave it out, or estimate returns with 'is' or 'pdis'."
            )
        if self.offline_loss_for_module_fn is not None and self.offline_evaluation_type != "eval_loss":
            self._value_error(
                f"evaluation(offline_loss_for_module_fn=...) is for 'eval_loss', and offline_evaluation_type is "
                f"{self.offline_evaluation_type!r}. Leave one of them out."
            )
        if self.off_policy_estimation_methods and not self.offline_evaluation_interval and not self.in_evaluation:
            self._value_error(
                f"evaluation(off_policy_estimation_methods={short(self.off_policy_estimation_methods)}) estimates with "
                f"every offline evaluation, and there is none: set offline_evaluation_interval."
            )

    def _validate_evaluation(self) -> None:
        if self.evaluation_duration == "auto" and not self.evaluation_parallel_to_training:
            self._value_error(
                "evaluation(evaluation_duration='auto') needs evaluation_parallel_to_training=True and "
                "evaluation_num_env_runners > 0; give the number of episodes or timesteps instead."
            )
        self._validate_offline_evaluation()
        if self.evaluation_video_interval and not self.video_dir:
            self._value_error(
                f"evaluation(evaluation_video_interval={self.evaluation_video_interval}) needs a folder to write to: "
                "set evaluation_video_dir, or a folder for all results."
            )
        low = self.evaluation_auto_duration_min_env_steps_per_sample
        high = self.evaluation_auto_duration_max_env_steps_per_sample
        if low > high:
            self._value_error(
                f"evaluation(evaluation_auto_duration_min_env_steps_per_sample={low}) is above "
                f"evaluation_auto_duration_max_env_steps_per_sample={high}. Lower it, or raise the other."
            )
        if self.evaluation_config is not None and not self.in_evaluation:
            try:
                evaluation = self.get_evaluation_config_object()
                assert evaluation is not None
                evaluation._check_values()
                evaluation._validate_output()
                _ = evaluation.samples_on_device
            except (ValueError, TypeError, ImportError, NotImplementedError) as error:
                raise type(error)(f"evaluation(evaluation_config=...): {error}") from error
            self._validate_evaluation_overrides(evaluation)
        evaluation = self.get_evaluation_config_object() if self.evaluation_parallel_to_training else None
        if evaluation is not None and not evaluation.num_env_runners:
            self._value_error(
                "evaluation(evaluation_parallel_to_training=True) needs EnvRunner actors of its own: set "
                "evaluation_num_env_runners to at least 1, or leave evaluation_parallel_to_training out."
            )
        if self.evaluation_duration == "auto" and self._evaluation_source().samples_on_device:
            self._value_error(
                f"evaluation(evaluation_duration='auto') lasts as long as the training step beside it, and "
                f"{short(self._evaluation_source().env)}, a JAX environment, is evaluated in between: give the number "
                f"of episodes or timesteps."
            )

    def _evaluation_source(self) -> ConfigStore:
        """The config whose environment evaluation steps: evaluation's, or this one, where that changes nothing."""
        return (self.get_evaluation_config_object() if self.evaluation_config else None) or self

    def _validate_evaluation_overrides(self, evaluation: ConfigStore) -> None:
        """Nothing is overridden that evaluation's runners could not heed."""
        for name in _OF_THE_ALGORITHM:
            value = getattr(evaluation, name)
            if not same(value, getattr(self, name)):
                self._value_error(
                    f"evaluation(evaluation_config={{{name!r}: {short(value)}}}) has no effect: the algorithm reads "
                    f"it, not evaluation's runners. Set evaluation({name}=...)."
                )
        is_own_class = not same(evaluation.env_runner_cls, self.env_runner_cls)
        if evaluation.samples_on_device and evaluation.env_runner_cls is not None and is_own_class:
            self._value_error(
                f"evaluation(evaluation_config={{'env_runner_cls': {short(evaluation.env_runner_cls)}}}) needs a host "
                f"environment: {short(evaluation.env)} is stepped inside the compiled program. Leave it out."
            )

    def _validate_for_joined_processes(self) -> None:
        """What processes that `distributed.initialize` joined can run together."""
        if self.num_learners:
            self._value_error(
                f"learners(num_learners={self.num_learners}): this process was joined with others, which learn "
                "together. Leave num_learners out, or distributed.initialize(), and Ray starts the learners."
            )
        if self.is_online and not self.samples_on_device:
            self._value_error(
                f"environment({short(self.env)}) is a host environment, and joined processes step JAX environments "
                "only. Leave distributed.initialize() out, and let Ray start env runners and learners "
                "(num_env_runners, num_learners)."
            )
        evaluation = self._evaluation_source()
        if evaluation.env is not None and not evaluation.samples_on_device:
            self._value_error(
                f"evaluation(evaluation_config=...): env={short(evaluation.env)} is a host environment. "
                "Each of the joined processes would evaluate for itself, and not all of them would see the same. "
                "Evaluate in a JAX environment, or leave distributed.initialize() out."
            )

    def _validate_for_device(self) -> None:
        if self.batch_mode != "truncate_episodes":
            self._value_error(
                f"env_runners(batch_mode={self.batch_mode!r}) needs a host environment: on the device, every "
                "environment takes the same number of steps. Use batch_mode='truncate_episodes'."
            )
        if self.num_learners:
            self._validate_for_device_of_actors()
        if self.env_runner_cls is not None:
            self._value_error(
                f"env_runners(env_runner_cls={short(self.env_runner_cls)}) needs a host environment: "
                f"{short(self.env)} is stepped inside the compiled program. Leave it out."
            )

    def _note_settings_without_effect(self) -> None:
        """Say which settings would be read by env runner actors only, or by sampling, where there are none."""
        evaluation = self._evaluation_source()
        if not self.is_online:
            self._note_without_effect((*_OF_TRAINING_ACTORS, *_OF_SAMPLING), "training reads data, and samples nothing")
            if evaluation.env is None:
                self._note_without_effect(_OF_EVALUATION_ACTORS, "there is no environment to evaluate in")
        elif not self.reads_recorded_data:
            self._note_without_effect(_OF_DATA, "training samples an environment, and reads no recorded data")
        on_device = (self.is_online and self.samples_on_device, evaluation.samples_on_device)
        names = {(True, False): _OF_TRAINING_ACTORS, (False, True): _OF_EVALUATION_ACTORS}.get(on_device)
        for config in itertools.compress((self, evaluation), on_device):
            wanted = config.settings_without_effect_on_device()
            config._note_without_effect(
                [name for name in wanted if names is None or name in names],
                "the environment is stepped inside the compiled program, without actors",
            )

    def _note_without_effect(self, names: Iterable[str], reason: str) -> None:
        """Say that those of these settings that were set have no effect."""
        for name in names:
            setting = self._declarations.by_name[name]
            if self._was_changed(setting):
                value = vars(self)[setting.attribute]
                notice_once(f"{self._declarations.call(setting, short(value))} has no effect: {reason}.")

    def _was_changed(self, setting: Setting) -> bool:
        """Whether a setting was set to something else than the default.

        A setting that every algorithm has is compared with the default they share: an algorithm may ask for more.
        """
        default = _BASE.get(setting.name, setting)
        return setting.name in self._explicitly_set and default.differs_from_default(vars(self)[setting.attribute])

    def _validate_for_device_of_actors(self) -> None:
        """What needs the environments in this process, while learner actors step them."""
        where = f"with learners(num_learners={self.num_learners}), whose actors step {short(self.env)}"
        if self.disable_jit:
            self._value_error(
                f"debugging(disable_jit=True) runs operation by operation in this process, and not {where}. Set "
                "num_learners=0 to debug."
            )
        if self.custom_evaluation_function is not None and self._evaluation_source().samples_on_device:
            self._value_error(
                f"evaluation(custom_evaluation_function={short(self.custom_evaluation_function)}) is given the env "
                f"runners of this process, and there are none {where}. Set num_learners=0, or leave it out."
            )

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Checks that whole sampling rounds come close to the train batch size.

        Raises:
            ValueError: If they overshoot it by more than 10 %.
        """
        takes_any = self.rollout_fragment_length == "auto" or self.batch_mode == "complete_episodes"
        if takes_any or not self.is_online:
            return
        samplers, num_rounds = max(self.num_sampling_actors, 1), self.rounds_per_deal
        per_step = samplers * self.num_envs_per_env_runner * num_rounds
        round_size = per_step * self.rollout_fragment_length
        total = self.total_train_batch_size
        sampled = -(-total // round_size) * round_size
        if sampled > 1.1 * total:
            fitting = max(total // per_step, 1)
            dealt = f" that {self.num_learners} learners can share ({num_rounds} at a time)" if num_rounds > 1 else ""
            self._value_error(
                f"{samplers} sampler(s) * num_envs_per_env_runner={self.num_envs_per_env_runner} * "
                f"rollout_fragment_length={self.rollout_fragment_length} gives {sampled} steps in whole "
                f"rounds{dealt}, more than 10 % above the train batch of {total}. Use "
                f"rollout_fragment_length={fitting} or 'auto', or "
                f"train_batch_size_per_learner={sampled // max(self.num_learners, 1)}."
            )
