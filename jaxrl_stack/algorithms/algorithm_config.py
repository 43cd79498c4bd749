"""AlgorithmConfig: the settings of a run, and what follows from them."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from jaxrl_stack.algorithms.base_settings import BASE_OLD_NAMES, BASE_SECTIONS, default_policy_mapping_fn
from jaxrl_stack.algorithms.config_building import ConfigBuilding
from jaxrl_stack.algorithms.config_population import ConfigPopulation
from jaxrl_stack.algorithms.config_validation import ConfigValidation
from jaxrl_stack.algorithms.model_settings import given_settings
from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_class, tuned_settings
from jaxrl_stack.algorithms.setting_values import DefaultNumber, copy_value, is_search_space, same
from jaxrl_stack.algorithms.settings import Setting, traced_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.compat.unsupported_names import stand_ins
from jaxrl_stack.core import DEFAULT_MODULE_ID, DEFAULT_POLICY_ID
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.registry import ResolvedEnv, resolve_env
from jaxrl_stack.utils import schedules
from jaxrl_stack.utils.from_config import NotProvided
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.policy_spec import PolicySpec

if TYPE_CHECKING:
    from typing import Self

    from jaxrl_stack.core.learner.learner import Learner

__all__ = ["AlgorithmConfig", "NotProvided", "PolicySpec"]

__getattr__ = stand_ins(__name__)

_READ_BY_LEARNER_ACTORS = ("custom_resources_per_learner", "placement_strategy")
"""Settings of actors that learner actors read, with host and with JAX environments."""


class AlgorithmConfig(ConfigValidation, ConfigBuilding, ConfigPopulation):
    """The settings of an algorithm: set them by section, then build.

    ::

        config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003)
        algo = config.build_algo()

    Every section is a method that takes its settings as keywords and returns the config. A subclass declares
    settings of its own in `_sections` (they get signature, documentation and checks), changes defaults in
    `_defaults`, or does both in its ``__init__`` by plain assignment.

    Args:
        algo_class: The Algorithm class that `build_algo` makes, or its name in the registry.
    """

    algo_class: Any
    in_evaluation: bool

    _sections = BASE_SECTIONS
    _old_names = BASE_OLD_NAMES

    @classmethod
    def tuned(cls, env: str) -> Self:
        """A config that is known to learn in an environment: what ``jaxrl train`` uses, unless it is told otherwise.

        Args:
            env: An id, such as ``"gymnax/CartPole-v1"``.

        Raises:
            ValueError: If the algorithm has no such settings for it; names the environments that it has them for.
        """
        config = cls()
        known = config._tuned_settings()
        if env not in known:
            raise ValueError(
                f"{cls.__name__}.tuned({env!r}): there are tuned settings for {', '.join(map(repr, sorted(known)))}. "
                f"For others start from the defaults: {cls.__name__}().environment({env!r})."
            )
        return config.environment(env).update_from_dict(known[env])

    def _tuned_settings(self) -> dict[str, dict[str, Any]]:
        """``{environment: settings}`` of the algorithm; {} for one that has none."""
        classes = self.algo_class.__mro__ if isinstance(self.algo_class, type) else ()
        base = next((one for one in classes if one.__name__ in ALGORITHMS), None)
        return {} if base is None else tuned_settings(base.__name__)

    # ------------------------------------------------------------------------------------------------------ properties

    @property
    def is_multi_agent(self) -> bool:
        """Whether there is more than one policy, or one that is not called "default_policy"."""
        return set(self._policy_ids()) != {DEFAULT_POLICY_ID}

    @property
    def is_online(self) -> bool:
        """Whether training samples from an environment: its training step needs one."""
        algo_class = get_algorithm_class(self.algo_class) if isinstance(self.algo_class, str) else self.algo_class
        # Whatever builds from a config may stand there.
        step_class = getattr(algo_class, "training_step_class", None)
        return self._is_online and (step_class is None or step_class.needs_env)

    @property
    def is_offline(self) -> bool:
        """Whether training reads recorded data."""
        return not self.is_online

    @property
    def reads_recorded_data(self) -> bool:
        """Whether `offline_data(input_=...)` is read: by training, or into what it begins with."""
        return self.is_offline

    @property
    def is_atari(self) -> bool:
        """Whether the environment is an Atari game: as set, else by its name."""
        if self._is_atari is not None:
            return bool(self._is_atari)
        return isinstance(self.env, str) and self.env.startswith(("ALE/", "ale_py:ALE/"))

    @property
    def root_seed(self) -> int:
        """The integer that a run's random numbers follow from: `seed`, or 0 without one."""
        return 0 if self.seed is None else int(self.seed)

    @property
    def samples_on_device(self) -> bool:
        """Whether the environment is a JAX one, stepped inside the compiled program."""
        if self.env is None or is_search_space(self.env):
            return False
        # Resolving calls registered creators: once per environment is enough.
        asked = (self.env, self.env_config)
        known: list[tuple[Any, bool]] = vars(self).setdefault("_resolved_envs", [])
        for env, is_jax in known:
            if same(env, asked):
                return is_jax
        known.append((copy_value(asked), self._resolve_env().is_jax))
        return known[-1][1]

    def _resolve_env(self) -> ResolvedEnv:
        """What `env` stands for, as the first environment of this process is made."""
        num_workers = 0 if isinstance(self.num_env_runners, DefaultNumber) else self.num_env_runners
        context = EnvContext(self.env_config, worker_index=0, num_workers=num_workers)
        makes_all = self.gym_env_vectorize_mode == "vector_entry_point"
        return resolve_env(self.env, context, num_envs=self.num_envs_per_env_runner if makes_all else None)

    @property
    def num_sampling_actors(self) -> int:
        """How many EnvRunner actors sample: `num_env_runners` where it was set.

        0 where the environment is stepped inside the compiled program, where training samples none, and where no
        number was set: RLlib's default of 2 (PPO) would start Ray for two processes.
        """
        is_asked_for = not isinstance(self.num_env_runners, DefaultNumber)
        samples = (self.is_online or self.in_evaluation) and not self.samples_on_device
        return self.num_env_runners if is_asked_for and samples else 0

    is_asynchronous: ClassVar[bool] = False
    """Whether the algorithm samples and learns at the same time where it has EnvRunner actors."""

    @property
    def num_evaluation_actors(self) -> int:
        """How many EnvRunner actors evaluate: 0 where evaluation's environment is a JAX one, or there is none."""
        may_have_any = self.evaluation_num_env_runners or self.evaluation_config
        evaluation = self.get_evaluation_config_object() if may_have_any else None
        return 0 if evaluation is None or evaluation.env is None else evaluation.num_sampling_actors

    @property
    def num_prefilled_steps(self) -> int:
        """Env steps that a run samples in its first iteration at least, as updates begin with the last of them."""
        return 0

    @property
    def train_batch_size_per_learner(self) -> int:
        """Env steps per update and learner: as set, else the algorithm's total over the learners."""
        if self._train_batch_size_per_learner is not None:
            return self._train_batch_size_per_learner
        return self.train_batch_size // (self.num_learners or 1)

    @property
    def total_train_batch_size(self) -> int:
        """Env steps per update over all learners."""
        return self.train_batch_size_per_learner * (self.num_learners or 1)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """Model settings that the algorithm changes; a user's model config overlays them."""
        return {}

    @property
    def model_config(self) -> dict[str, Any]:
        """Settings of the networks: the algorithm's, overlaid with the user's."""
        return self._model_config_auto_includes | given_settings(self._model_config)

    @property
    def learner_class(self) -> type[Learner]:
        """The Learner class: as set, else the algorithm's."""
        return self._learner_class or self.get_default_learner_class()

    @property
    def rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The module spec: the algorithm's default, updated with the user's."""
        given = copy_value(self._rl_module_spec)
        if given is None:
            return self.get_default_rl_module_spec()
        if isinstance(given, RLModuleSpec) and given.module_class is None:
            return self._with_default_class(given)
        return given

    # -------------------------------------------------------------------------------------------------- derived values

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Steps per environment and sampling round.

        Args:
            worker_index: EnvRunner (from 1; 0 is the local one). With "auto", the first ones take a step
                more if the train batch does not divide evenly.
        """
        if self.rollout_fragment_length != "auto":
            return self.rollout_fragment_length
        per_step = max(self.num_sampling_actors, 1) * self.num_envs_per_env_runner
        length, rest = divmod(self.total_train_batch_size, per_step)
        has_one_more = (worker_index - 1) * self.num_envs_per_env_runner < rest
        return max(length + (1 if rest and has_one_more else 0), 1)

    @property
    def rounds_per_deal(self) -> int:
        """Sampling rounds whose fragments, one per environment and round, can be dealt out to the learners evenly."""
        num_fragments = max(self.num_sampling_actors, 1) * self.num_envs_per_env_runner
        num_learners = max(self.num_learners, 1)
        return num_learners // math.gcd(num_fragments, num_learners)

    def train_batch_blocks(self, counted_per_env_step: int = 1) -> tuple[int, int]:
        """``(number, T)`` of the ``[T, B]`` blocks, of B environments each, that an on-policy train batch is made of.

        As many from every runner, and as few as cover the batch and can be dealt out to the learners: several short
        ones in a row where there are fewer environments than learners.

        Args:
            counted_per_env_step: Steps that one step of an environment counts as; see
                `LocalDriver.counted_per_env_step`.
        """
        num_blocks = max(self.num_sampling_actors, 1) * self.rounds_per_deal
        per_step = num_blocks * self.num_envs_per_env_runner * counted_per_env_step
        total, asked = self.total_train_batch_size, self.rollout_fragment_length
        length = -(-total // per_step) if asked == "auto" else -(-int(asked) // counted_per_env_step)
        return num_blocks * max(1, -(-total // (per_step * length))), length

    @property
    def video_dir(self) -> str | None:
        """Folder of evaluation's videos; None if nothing says where."""
        results_dir = self.results_dir
        return self.evaluation_video_dir or (os.path.join(results_dir, "videos") if results_dir else None)

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """The frozen config of evaluation, with `evaluation_config` on top; None on such a config itself.

        It has `evaluation_num_env_runners` runners; if that was not set, what `evaluation_config` has as
        `num_env_runners`. Without an environment to train on, `observation_space` and `action_space` describe the data
        that training reads. Evaluation's environment has its own.
        """
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        overrides = self.evaluation_config or {}
        if isinstance(overrides, AlgorithmConfig):
            overrides = {name: overrides.stored_value(name) for name in overrides.explicitly_set}
        vars(config)["in_evaluation"] = True
        vars(config)["evaluation_config"] = None
        vars(config)["num_env_runners"] = self.evaluation_num_env_runners
        if self.env is None:
            vars(config)["observation_space"] = vars(config)["action_space"] = None
        config.update_from_dict(overrides)
        number, other = self.evaluation_num_env_runners, vars(config)["num_env_runners"]
        if other != number and "evaluation_num_env_runners" in self.explicitly_set:
            notice_once(
                f"evaluation(evaluation_config={{'num_env_runners': {other}}}) has no effect: "
                f"evaluation_num_env_runners={number} was set, too."
            )
            vars(config)["num_env_runners"] = number
        # Each knows what the other one has found out.
        vars(config)["_resolved_envs"] = vars(self).setdefault("_resolved_envs", [])
        config.freeze()
        return config

    def get_config_for_module(self, module_id: str) -> Self:
        """The config with a module's overrides applied, else this config."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        cache = vars(self).setdefault("_configs_of_modules", {}) if self._is_frozen else {}
        if module_id not in cache:
            config = self.copy(copy_frozen=False)
            vars(config)["algorithm_config_overrides_per_module"] = {}
            config.update_from_dict(overrides)
            if self._is_frozen:
                config.freeze()
            cache[module_id] = config
        return cache[module_id]

    def traced_values(self) -> dict[str, np.ndarray | schedules.ScheduleArrays]:
        """The traced settings as what a compiled program takes.

        Returns:
            Name → ``float32[]``, or the arrays of a schedule for every setting that may be one. Settings
            that are switched off (such as ``grad_clip=None``) and those in ``_static_settings`` are left out.
        """
        return {s.name: traced_value(s, vars(self)[s.attribute]) for s in self._traced_settings()}

    def static_value(self, name: str) -> float | None:
        """The number of a traced setting that is baked in (``_static_settings``), else None."""
        return getattr(self, name) if name in self._static_settings else None

    def _traced_settings(self) -> list[Setting]:
        return [s for s in self._declarations.by_name.values() if s.kind == "traced" and self._is_traced(s)]

    def _is_traced(self, setting: Setting) -> bool:
        value = vars(self)[setting.attribute]
        is_off = any(value is off or (off is not None and same(value, off)) for off in setting.off)
        return not is_off and setting.name not in self._static_settings

    def _what_programs_are_made_of(self) -> list[Any]:
        """All static settings; of the traced ones which are switched on, and how many points a schedule has."""
        parts = [type(self), self.algo_class, self.in_evaluation, {name: vars(self)[name] for name in self._own_names}]
        for setting in self._declarations.by_name.values():
            value = vars(self)[setting.attribute]
            if setting.kind == "static" and isinstance(value, AlgorithmConfig):
                parts.append({name: value.stored_value(name) for name in value.explicitly_set})
            elif setting.kind == "static" and setting.name != "algorithm_config_overrides_per_module":
                parts.append(value)
            elif setting.kind == "traced" and self._is_traced(setting):
                arrays = traced_value(setting, value)
                parts.append(len(arrays.values) if isinstance(arrays, schedules.ScheduleArrays) else 1)
            elif setting.kind == "traced":
                parts.append(value if setting.name in self._static_settings else None)
        modules = self.algorithm_config_overrides_per_module
        return [*parts, {mid: self.get_config_for_module(mid)._what_programs_are_made_of() for mid in modules}]

    def shares_programs_with(self, other: AlgorithmConfig) -> bool:
        """Whether one compiled program serves both configs."""
        return same(self._what_programs_are_made_of(), other._what_programs_are_made_of(), in_programs=True)

    def is_same(self, other: AlgorithmConfig, *names: str) -> bool:
        """Whether the other config's attributes of these names are equal to this one's."""
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    def differs_in_traced_settings_only(self, other: AlgorithmConfig, *, but_for: Collection[str] = ()) -> bool:
        """Whether everything that is built from the other config serves this one, too, its programs included.

        Args:
            other: A config of the same algorithm.
            but_for: Names of settings that are neither static nor traced and may differ, too.
        """
        if not self.shares_programs_with(other):
            return False
        compared = [s for s in self._declarations.by_name.values() if s.kind not in ("static", "traced")]
        return all(same(vars(self)[s.attribute], vars(other)[s.attribute]) for s in compared if s.name not in but_for)

    def sampling_hints(self) -> list[str]:
        """Sentences on how much faster sampling could be, or is, where RLlib's default numbers were left alone."""
        if not self.is_online:
            return []
        if not self.samples_on_device:
            return [self._hint_of_no_actors()] if self.num_env_runners and not self.num_sampling_actors else []
        was_set = "num_envs_per_env_runner" in self._explicitly_set or self.num_envs_per_env_runner > 1
        return [] if was_set else [self._hint_of_one_env()]

    def _hint_of_no_actors(self) -> str:
        number = self.num_env_runners
        return (
            f"{short(self.env)} is sampled in this process, because env_runners(num_env_runners=...) was not set. "
            f"num_env_runners={number}, RLlib's default, starts Ray and {number} actors, which take seconds; "
            "num_env_runners=0 is how it runs now."
        )

    def _hint_of_one_env(self) -> str:
        tuned = self._tuned_settings() if isinstance(self.env, str) else {}
        whole = f", or start from {type(self).__name__}.tuned({self.env!r})" if self.env in tuned else ""
        return (
            f"{short(self.env)} runs in one copy, because env_runners(num_envs_per_env_runner=...) was not set. On the "
            "device 64 are stepped in little more time than one, for tens of times as many steps per second: set "
            f"num_envs_per_env_runner=64{whole}."
        )

    def settings_without_effect_on_device(self) -> list[str]:
        """Settings that were set here, to something else than no actors, and that only actors would read."""
        return [
            s.name
            for s in self._declarations.by_name.values()
            if s.read_by == "actors"
            and self._was_changed(s)
            and not (self.num_learners and s.name in _READ_BY_LEARNER_ACTORS)
        ]

    def _policy_ids(self) -> Collection[str]:
        return list(self.policies)

    DEFAULT_POLICY_MAPPING_FN = staticmethod(default_policy_mapping_fn)

    @staticmethod
    def DEFAULT_AGENT_TO_MODULE_MAPPING_FN(agent_id: Any, episode: Any) -> str:
        """Maps every agent to "default_policy"."""
        return DEFAULT_MODULE_ID

    # ----------------------------------------------------------------------------------------------- names of the past

    def rollouts(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        raise ValueError("config.rollouts(...) is gone. Use config.env_runners(...) instead.")

    def exploration(self, *args: Any, **kwargs: Any) -> Self:
        """Gone: `env_runners`."""
        raise ValueError(
            "config.exploration(...) is gone. Use env_runners(explore=...) and RLModule._forward_exploration() instead."
        )

    def get_marl_module_spec(self, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        """Gone: `get_multi_rl_module_spec`."""
        raise ValueError("config.get_marl_module_spec() is gone. Use config.get_multi_rl_module_spec() instead.")
