"""AlgorithmConfig: the settings of a run.

`Settings` (config_store.py) owns the values. config_validation.py checks them, config_building.py builds from them.
"""

# Functions take the class of the stub, which pyright distinguishes from the class of this file.
# pyright: reportArgumentType=false

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, ItemsView, Iterable, KeysView, Mapping, Sequence, ValuesView
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from jaxrl_stack.algorithms import config_building, config_validation
from jaxrl_stack.algorithms.action_mask_settings import honoured_mask_key
from jaxrl_stack.algorithms.base_settings import BASE_OLD_NAMES, BASE_SECTIONS, BASE_SETTINGS, default_policy_mapping_fn
from jaxrl_stack.algorithms.config_store import (
    KEY_TRANSLATIONS,
    NOT_IN_CHECKPOINTS,
    Settings,
    _ConfigMeta,
    check_trusted,
    warn_deprecated,
)
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

if TYPE_CHECKING:
    from typing import Self

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.population import Population
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.models.catalog import Catalog
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.env.env_runner import EnvRunner

__all__ = ["AlgorithmConfig", "NotProvided", "PolicySpec"]

__getattr__ = stand_ins(__name__)

_READ_BY_LEARNER_ACTORS = ("custom_resources_per_learner", "placement_strategy")
"""Settings of actors that learner actors read, with host and with JAX environments."""


class AlgorithmConfig(Plain, metaclass=_ConfigMeta):
    """Settings of an algorithm. Set them with one method for each section, such as `training`, then call `build_algo`.

    ::

        config = PPOConfig().environment("gymnax/CartPole-v1").training(lr=0.0003)
        algo = config.build_algo()

    Every section is a method that takes its settings as keywords and returns the config. A subclass declares
    settings of its own in `_sections` (they get signature, documentation and checks), changes defaults in
    `_defaults`, or does both in its ``__init__`` by plain assignment.

    Args:
        algo_class: The Algorithm class that `build_algo` makes, or its name in the registry, which is replaced by the
            class.
    """

    # Values of settings are in the __dict__.
    __slots__ = ("_configs_of_modules", "_resolved_envs", "_settings")

    _settings: Settings
    _resolved_envs: list[tuple[Any, bool]]
    _configs_of_modules: dict[str, Self]

    algo_class: Any
    in_evaluation: bool

    _sections: tuple[Section, ...] = BASE_SECTIONS
    _defaults: Mapping[str, Any] = {}
    _checks: Mapping[str, Check] = {}
    _old_names: tuple[OldName, ...] = BASE_OLD_NAMES
    _declarations: ClassVar[Declarations]

    _algorithm: ClassVar[str] = ""
    """Name of the algorithm in the registry, which `build_algo` makes without `algo_class`."""
    _default_learner_class: ClassVar[type[Learner] | None] = None
    _default_module_class: ClassVar[type[RLModule] | None] = None
    _default_catalog_class: ClassVar[type[Catalog] | None] = None

    def __init__(self, algo_class: type | str | None = None):
        self._hold(Settings(type(self), vars(self)))
        self._settings.set_defaults()
        self.algo_class = algo_class or self._algorithm or None

    def _hold(self, settings: Settings) -> None:
        """Stores the settings in this new config object, and creates two empty caches: for results of
        `samples_on_device`, and for configs of modules.
        """
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_resolved_envs", [])
        object.__setattr__(self, "_configs_of_modules", {})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._declare()

    @classmethod
    def _declare(cls) -> None:
        """Registers the settings that this config class declares, and creates or extends the config methods (sections,
        such as `training`) that set these settings.
        """
        own = vars(cls)
        parent = next((b._declarations for b in cls.__mro__[1:] if "_declarations" in vars(b)), None)
        sections = own.get("_sections", ())
        cls._declarations = Declarations(
            parent,
            sections,
            own.get("_defaults"),
            own.get("_old_names", ()),
            owner=cls.__name__,
            checks=own.get("_checks"),
        )
        for section in sections:
            names = [setting.name for setting in section.settings]
            if section.name not in own:
                setattr(cls, section.name, fluent_method(cls, cls._declarations, section.name, names))

    @classmethod
    def tuned(cls, env: str) -> Self:
        """Returns a config with tuned settings for an environment.

        The algorithm is known to learn in the environment with these settings; ``jaxrl train`` uses the settings by
        default.

        Args:
            env: An id, such as ``"gymnax/CartPole-v1"``.

        Raises:
            ValueError: If the algorithm has no tuned settings for it; names the environments that have them.
        """
        config = cls()
        known = config._tuned_settings()
        if env not in known:
            raise ValueError(
                f"{cls.__name__}.tuned({env!r}): no tuned settings; {cls.__name__} has them for "
                f"{', '.join(map(repr, sorted(known)))}. Start from the defaults: "
                f"{cls.__name__}().environment({env!r})."
            )
        return config.environment(env).update_from_dict(known[env])

    def _tuned_settings(self) -> dict[str, dict[str, Any]]:
        """Tuned settings of the algorithm, ``{environment: {setting: value}}``; {} if the algorithm has none."""
        classes = self.algo_class.__mro__ if isinstance(self.algo_class, type) else ()
        base = next((one for one in classes if one.__name__ in ALGORITHMS), None)
        return {} if base is None else tuned_settings(base.__name__)

    # ------------------------------------------------------------------------------------------ setting, reading values

    def _set_in_section(self, section: str, values: Mapping[str, Any]) -> None:
        self._settings.set_in_section(section, values)

    def __setattr__(self, name: str, value: Any) -> None:
        self._settings.set_attribute(name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_settings":
            raise AttributeError(name)
        return self._settings.read(name)

    @property
    def explicitly_set(self) -> frozenset[str]:
        """Names of the settings that were set on this config, including settings set to their default value."""
        return frozenset(self._settings.explicitly_set)

    def suggestion(self, name: str) -> str:
        """Returns a hint to append to an error about an unknown setting, such as a similar name; empty if there is
        none.
        """
        return self._settings.suggestion(name)

    def stored_value(self, name: str) -> Any:
        """Value of the setting `name` as the user gave it, or the setting's default.

        If the attribute `name` of the config is a property, the attribute can return another value.
        """
        return vars(self)[self._settings.attribute_of(name)]

    def stored_settings(self) -> list[tuple[Setting, Any]]:
        """``[(setting, value)]`` of all settings, with the value that the user gave, or else the default."""
        return [(setting, vars(self)[setting.attribute]) for setting in self._declarations.by_name.values()]

    def setting(self, name: str) -> Setting | None:
        """Returns the declaration (name, default, checks) of a setting, or None if no setting has this name.

        `name` can be the setting's keyword, attribute or key of `to_dict`, or an old name that the setting replaces.
        """
        return self._settings.find(name)

    def setting_name(self, name: str) -> str:
        """Converts a setting's attribute, key of `to_dict` or old name to the setting's keyword. Returns keywords and
        unknown names unchanged.
        """
        found = self.setting(name)
        return name if found is None else found.name

    def _was_changed(self, setting: Setting) -> bool:
        """Whether a setting differs from its default.

        A setting that all algorithms have is compared with the shared default, which an algorithm may change.
        """
        default = BASE_SETTINGS.get(setting.name, setting)
        return setting.name in self._settings.explicitly_set and default.differs_from_default(
            vars(self)[setting.attribute]
        )

    # ------------------------------------------------------------------------------------------------------- as a dict

    def to_dict(self) -> dict[str, Any]:
        """All settings, ``{attribute name: value}``. Instead of the attribute name, a few settings have RLlib's
        key, such as "lambda". Containers are copies.
        """
        return self._settings.to_dict()

    def update_from_dict(self, config_dict: Mapping[str, Any]) -> Self:
        """Sets settings from a dict ``{name: value}``. A name is a setting's keyword, attribute or key of `to_dict`.

        Args:
            config_dict: Name → value. Nested dicts such as env_config are merged as in the methods.

        Returns:
            This config.

        Raises:
            ValueError: If a name is unknown (with a suggestion) or old, or a value is invalid.
            AttributeError: If the config is frozen.
        """
        self._settings.check_not_frozen("by update_from_dict()", config_dict)
        for key, value in config_dict.items():
            if key == "multiagent":
                self.multi_agent(**value)
            else:
                self._settings.set_key(key, value)
        return self

    @classmethod
    def from_dict(cls, config_dict: Mapping[str, Any]) -> Self:
        """Creates a config with the settings of a dict, such as a result of `to_dict`."""
        config = cls()
        changed = {}
        for key, value in config_dict.items():
            # What is at its default was not set.
            attribute = config._settings.known_attribute(key)
            if attribute is None or not same(vars(config)[attribute], value):
                changed[key] = value
        return config.update_from_dict(changed)

    def get_state(self) -> dict[str, Any]:
        """State for `from_state`: the result of `to_dict`, the class, and the names of the settings that were set."""
        return {
            **self.to_dict(),
            "class": type(self),
            "algo_class": self.algo_class,
            "_explicitly_set": sorted(self._settings.explicitly_set),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> AlgorithmConfig:
        """Creates a config from a result of `get_state`. The config has the class that `state` contains, or this class
        if `state` contains none.
        """
        state = dict(state)
        config_class: type[AlgorithmConfig] = state.pop("class", cls)
        explicitly_set = state.pop("_explicitly_set", ())
        restored = config_class.from_dict(state)
        restored._settings.explicitly_set.update(explicitly_set)
        return restored

    def to_plain(self) -> dict[str, Any]:
        """Settings that were set on this config, ``{name: value}``, for checkpoints; omits settings that only concern
        this machine.
        """
        data = {name: self.stored_value(name) for name in sorted(self.explicitly_set - NOT_IN_CHECKPOINTS)}
        if self.in_evaluation:
            data["in_evaluation"] = True
        if self.algo_class != type(self)().algo_class:
            data["algo_class"] = self.algo_class
        return data

    @classmethod
    def from_plain(cls, data: dict[str, Any], loader: ClassLoader) -> Self:
        """Creates a config from a result of `to_plain`.

        Raises:
            ValueError: If this class does not know a setting, or a setting would import code or read executables that
                the caller has not named.
        """
        check_trusted(data, loader)
        return cls().update_from_dict(data)

    def serialize(self) -> dict[str, Any]:
        """Settings as in `to_dict`, for files that people read: values that JSON cannot express become text."""
        return {key: _plain(value) for key, value in self.to_dict().items()}

    @classmethod
    def overrides(cls, **kwargs: Any) -> dict[str, Any]:
        """Converts keyword arguments to a dict of settings, for `evaluation_config` or
        `algorithm_config_overrides_per_module`.

        Args:
            **kwargs: Settings of any section.

        Returns:
            Attribute name → value.

        Raises:
            KeyError: If a name is not a setting of this class.
        """
        config = cls()
        return {config._settings.attribute_of(name): value for name, value in kwargs.items()}

    def __getitem__(self, item: str) -> Any:
        name = KEY_TRANSLATIONS.get(item, item)
        # `model_config`, `learner_class` and such are properties that resolve the stored value.
        if isinstance(getattr(type(self), name, None), property):
            return getattr(self, name)
        return self._settings.read_key(item)

    def __setitem__(self, key: str, value: Any) -> None:
        self.update_from_dict({key: value})

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str) and self.get(item, NotProvided) is not NotProvided

    def get(self, key: str, default: Any = None) -> Any:
        """``config[key]``, or `default` if there is no such setting."""
        try:
            return self[key]
        except KeyError:
            return default

    def pop(self, key: str, default: Any = None) -> Any:
        """Returns a setting's value, as `get` does. Unlike `dict.pop`, removes nothing: settings cannot be removed."""
        return self.get(key, default)

    def keys(self) -> KeysView[str]:
        """Keys of `to_dict`."""
        return self.to_dict().keys()

    def values(self) -> ValuesView[Any]:
        """Values of `to_dict`."""
        return self.to_dict().values()

    def items(self) -> ItemsView[str, Any]:
        """Items of `to_dict`."""
        return self.to_dict().items()

    # ------------------------------------------------------------------------------------------------ copies, freezing

    def copy(self, copy_frozen: bool | None = None) -> Self:
        """Copies the config. Changes of the copy do not affect this config.

        Args:
            copy_frozen: Whether the copy is frozen; None copies the state of this config.
        """
        new = object.__new__(type(self))
        new._hold(Settings(type(self), vars(new)))
        self._settings.copy_into(new._settings)
        if copy_frozen is not None:
            new._settings.is_frozen = copy_frozen
        evaluation = self.evaluation_config
        if isinstance(evaluation, AlgorithmConfig):
            vars(new)["evaluation_config"] = evaluation.copy(copy_frozen)
        return new

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.copy()

    def __getstate__(self) -> dict[str, Any]:
        # Names of environments mean something in the process that registered them: an actor gets the creator, too.
        evaluation = self.evaluation_config or {}
        names = {self.env, evaluation.get("env") if isinstance(evaluation, dict) else evaluation.env}
        creators = {name: get_env_creator(name) for name in names if isinstance(name, str)}
        made = {name: creator for name, creator in creators.items() if creator is not None}
        return {**self._settings.get_state(), "_env_creators": made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        creators = state.pop("_env_creators")
        self._hold(Settings(type(self), vars(self)))
        self._settings.set_state(state)
        for name, creator in creators.items():
            note_env(name, creator, replaces=False)

    def freeze(self) -> None:
        """Makes every later change raise an AttributeError."""
        self._settings.is_frozen = True
        if isinstance(self.evaluation_config, AlgorithmConfig):
            self.evaluation_config.freeze()

    @property
    def is_frozen(self) -> bool:
        """Whether the config is frozen: changes then raise an error."""
        return self._settings.is_frozen

    @property
    def _is_frozen(self) -> bool:
        """Same as `is_frozen`, under RLlib's name."""
        return self._settings.is_frozen

    def __repr__(self) -> str:
        return config_text(self)

    def _repr_html_(self) -> str:
        """HTML for notebooks: settings that differ from the defaults, with all others folded away."""
        return config_html(self)

    # ------------------------------------------------------------------------------------------------------ properties

    @property
    def is_multi_agent(self) -> bool:
        """Whether the config has several policies, or one with a name other than "default_policy"."""
        return set(self._policy_ids()) != {DEFAULT_POLICY_ID}

    @property
    def is_online(self) -> bool:
        """Whether training samples from an environment."""
        # `algo_class` may be any object that builds from a config.
        step_class = getattr(self.algo_class, "training_step_class", None)
        return self._is_online and (step_class is None or step_class.needs_env)

    @property
    def is_offline(self) -> bool:
        """Whether training reads recorded data instead of sampling from an environment."""
        return not self.is_online

    @property
    def reads_recorded_data(self) -> bool:
        """Whether training uses recorded data, ``offline_data(input_=...)``, directly or as content of the replay
        buffer.
        """
        return self.is_offline

    @property
    def is_atari(self) -> bool:
        """Whether the environment is an Atari game. The setting `is_atari` decides; if it is None, the environment's
        name decides.
        """
        if self._is_atari is not None:
            return bool(self._is_atari)
        return isinstance(self.env, str) and self.env.startswith(("ALE/", "ale_py:ALE/"))

    @property
    def root_seed(self) -> int:
        """Seed of all random numbers of a run: `seed`, or 0 if that is None."""
        return 0 if self.seed is None else int(self.seed)

    @property
    def samples_on_device(self) -> bool:
        """Whether the environment is a JAX environment; the compiled program then steps it."""
        if self.env is None or is_search_space(self.env):
            return False
        # Resolving calls registered creators: once per environment is enough.
        asked = (self.env, self.env_config)
        for env, is_jax in self._resolved_envs:
            if same(env, asked):
                return is_jax
        self._resolved_envs.append((copy_value(asked), self._resolve_env().is_jax))
        return self._resolved_envs[-1][1]

    def _share_resolved_envs(self, other: AlgorithmConfig) -> None:
        """Replaces this config's cache for results of `samples_on_device` by the cache of `other`, which both configs
        then use. Creators of registered environments are then not called again.
        """
        object.__setattr__(self, "_resolved_envs", other._resolved_envs)

    def _resolve_env(self) -> ResolvedEnv:
        """Finds the environment that the setting `env` names, and returns a `ResolvedEnv`.

        The setting is an instance, class, registered name or id. If `env` is a registered name, the registered creator
        gets an `EnvContext` with ``worker_index=0``.
        """
        num_workers = 0 if isinstance(self.num_env_runners, DefaultNumber) else self.num_env_runners
        context = EnvContext(self.env_config, worker_index=0, num_workers=num_workers)
        makes_all = self.gym_env_vectorize_mode == "vector_entry_point"
        resolved = resolve_env(self.env, context, num_envs=self.num_envs_per_env_runner if makes_all else None)
        return resolved if self.opponents is None else with_seats(resolved)

    @property
    def num_sampling_actors(self) -> int:
        """Number of EnvRunner actors that sample host environments: `num_env_runners` if it was set explicitly, else 0.

        It is 0 if the environment runs inside of the compiled program or training samples nothing. If no number was
        set, it is also 0, because RLlib's default of 2 (PPO) would start Ray for two processes.
        """
        is_asked_for = not isinstance(self.num_env_runners, DefaultNumber)
        samples = (self.is_online or self.in_evaluation) and not self.samples_on_device
        return self.num_env_runners if is_asked_for and samples else 0

    is_asynchronous: ClassVar[bool] = False
    """Whether the algorithm samples and learns at the same time where it has EnvRunner actors."""

    @property
    def num_evaluation_actors(self) -> int:
        """Number of EnvRunner actors for evaluation; 0 for a JAX environment or without an environment."""
        may_have_any = self.evaluation_num_env_runners or self.evaluation_config
        evaluation = self.get_evaluation_config_object() if may_have_any else None
        return 0 if evaluation is None or evaluation.env is None else evaluation.num_sampling_actors

    @property
    def num_prefilled_steps(self) -> int:
        """Minimum number of env steps that the first iteration samples. DreamerV3 begins its updates after these steps;
        for other algorithms the number is 0.
        """
        return 0

    @property
    def train_batch_size_per_learner(self) -> int:
        """Env steps per update on each learner: the setting ``train_batch_size_per_learner`` if it is set, else
        `train_batch_size` divided by the number of learners.
        """
        if self._train_batch_size_per_learner is not None:
            return self._train_batch_size_per_learner
        return self.train_batch_size // (self.num_learners or 1)

    @property
    def total_train_batch_size(self) -> int:
        """Number of env steps in one update, summed over all learners."""
        return self.train_batch_size_per_learner * (self.num_learners or 1)

    @property
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """Model settings that the algorithm sets; a user's model config overrides them."""
        return {}

    @property
    def model_config(self) -> dict[str, Any]:
        """Settings of the networks: the algorithm's settings, overridden by the user's settings."""
        return self._model_config_auto_includes | given_settings(self._model_config)

    @property
    def learner_class(self) -> type[Learner]:
        """The Learner class that the user has set, or else the algorithm's default."""
        return self._learner_class or self.get_default_learner_class()

    @property
    def rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The module spec that the user has set, or else the algorithm's default.

        If the user's `RLModuleSpec` names no module class, the default spec is returned, updated with the user's
        values.
        """
        given = copy_value(self._rl_module_spec)
        if given is None:
            return self.get_default_rl_module_spec()
        if isinstance(given, RLModuleSpec) and given.module_class is None:
            return config_building.with_default_class(self, given)
        return given

    # -------------------------------------------------------------------------------------------------- derived values

    def get_rollout_fragment_length(self, worker_index: int = 0) -> int:
        """Number of steps that each environment takes in one sampling round.

        Args:
            worker_index: Index of the EnvRunner, from 1; 0 is the local one. With "auto", the first runners take one
                more step if the train batch does not divide evenly.
        """
        if self.rollout_fragment_length != "auto":
            return self.rollout_fragment_length
        per_step = max(self.num_sampling_actors, 1) * self.num_envs_per_env_runner
        length, rest = divmod(self.total_train_batch_size, per_step)
        has_one_more = (worker_index - 1) * self.num_envs_per_env_runner < rest
        return max(length + (1 if rest and has_one_more else 0), 1)

    @property
    def rounds_per_deal(self) -> int:
        """Smallest number of sampling rounds whose rollout fragments divide evenly among all learners. In one round,
        each environment samples one fragment.
        """
        num_fragments = max(self.num_sampling_actors, 1) * self.num_envs_per_env_runner
        num_learners = max(self.num_learners, 1)
        return num_learners // math.gcd(num_fragments, num_learners)

    def train_batch_blocks(self, counted_per_env_step: int = 1) -> tuple[int, int]:
        """Returns ``(n, T)`` for an on-policy train batch, which consists of n rollouts (blocks) ``[T, B]``: T steps in
        B environments.

        Every runner contributes the same number of blocks: the smallest number that covers the batch and divides evenly
        between the learners. If the environments of all runners do not divide evenly among the learners, each runner
        contributes several short blocks in sequence.

        Args:
            counted_per_env_step: Counted steps per step of an environment; see `LocalDriver.counted_per_env_step`.
        """
        num_blocks = max(self.num_sampling_actors, 1) * self.rounds_per_deal
        per_step = num_blocks * self.num_envs_per_env_runner * counted_per_env_step
        total, asked = self.total_train_batch_size, self.rollout_fragment_length
        length = -(-total // per_step) if asked == "auto" else -(-int(asked) // counted_per_env_step)
        return num_blocks * max(1, -(-total // (per_step * length))), length

    @property
    def video_dir(self) -> str | None:
        """Folder for the videos of evaluations: `evaluation_video_dir`, else the folder "videos" in `results_dir`; None
        if neither is set.
        """
        results_dir = self.results_dir
        return self.evaluation_video_dir or (os.path.join(results_dir, "videos") if results_dir else None)

    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """The frozen config of evaluation, with `evaluation_config` applied; None if this config is itself the config
        of an evaluation.

        Its number of runners is `evaluation_num_env_runners`, or `num_env_runners` of `evaluation_config` if that was
        not set. If training has no environment, `observation_space` and `action_space` describe the recorded data, and
        evaluation's environment has its own spaces.
        """
        if self.in_evaluation:
            return None
        config = self.copy(copy_frozen=False)
        overrides = self.evaluation_config or {}
        if isinstance(overrides, AlgorithmConfig):
            overrides = {name: overrides.stored_value(name) for name in overrides.explicitly_set}
        number = self.evaluation_num_env_runners
        vars(config).update(in_evaluation=True, evaluation_config=None, num_env_runners=number)
        if self.env is None:
            vars(config)["observation_space"] = vars(config)["action_space"] = None
        vars(config)["randomized_params"] = None
        config.update_from_dict(overrides)
        other = vars(config)["num_env_runners"]
        if other != number and "evaluation_num_env_runners" in self.explicitly_set:
            notice_once(
                f"evaluation(evaluation_config={{'num_env_runners': {other}}}) has no effect: "
                f"evaluation_num_env_runners={number} was set, too."
            )
            vars(config)["num_env_runners"] = number
        config._share_resolved_envs(self)
        config.freeze()
        return config

    def get_config_for_module(self, module_id: str) -> Self:
        """The config with a module's overrides applied; this config if the module has none."""
        overrides = self.algorithm_config_overrides_per_module.get(module_id)
        if not overrides:
            return self
        known = self._configs_of_modules.get(module_id) if self.is_frozen else None
        if known is not None:
            return known
        config = self.copy(copy_frozen=False)
        vars(config)["algorithm_config_overrides_per_module"] = {}
        config.update_from_dict(overrides)
        if self.is_frozen:
            config.freeze()
            self._configs_of_modules[module_id] = config
        return config

    def traced_values(self) -> dict[str, np.ndarray | schedules.ScheduleArrays]:
        """Values of the traced settings, which compiled programs take as arguments.

        Returns:
            Name → ``float32[]``, or arrays of a schedule for every setting that may be a schedule. Settings that are
            switched off (such as ``grad_clip=None``) and settings in ``_static_settings`` are left out.
        """
        return {s.name: traced_value(s, vars(self)[s.attribute]) for s in self._traced_settings()}

    def static_value(self, name: str) -> float | None:
        """Value of the setting `name` if compiled programs contain the value as a constant, not as an argument;
        otherwise None.

        ``experimental(_static_settings=...)`` contains the names of these settings.
        """
        return getattr(self, name) if name in self._static_settings else None

    def _traced_settings(self) -> list[Setting]:
        return [s for s in self._declarations.by_name.values() if s.kind == "traced" and self._is_traced(s)]

    def _is_traced(self, setting: Setting) -> bool:
        value = vars(self)[setting.attribute]
        is_off = any(value is off or (off is not None and same(value, off)) for off in setting.off)
        return not is_off and setting.name not in self._static_settings

    def _what_programs_are_made_of(self) -> list[Any]:
        """Values of this config on which its compiled programs depend.

        If one of these values changes, other programs are needed. All constants of the programs are included. For a
        traced setting (an argument of the programs), only two facts are included: whether the setting is switched off
        and, if the setting is a schedule, the number of its points.
        """
        parts = [
            type(self),
            self.algo_class,
            self.in_evaluation,
            {name: vars(self)[name] for name in self._settings.own_names},
        ]
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
        """Whether this config and `other` can use the same compiled programs."""
        return same(self._what_programs_are_made_of(), other._what_programs_are_made_of(), in_programs=True)

    def is_same(self, other: AlgorithmConfig, *names: str) -> bool:
        """Whether this config and `other` have equal values of the attributes `names`."""
        return all(same(getattr(self, name), getattr(other, name)) for name in names)

    def differs_in_traced_settings_only(self, other: AlgorithmConfig, *, but_for: Collection[str] = ()) -> bool:
        """Whether this config equals the config `other` except for traced settings, which compiled programs take as
        arguments.

        If True, objects and compiled programs that were built from `other` also work for this config.

        Args:
            other: A config of the same algorithm.
            but_for: Names of settings that may also differ and are neither static nor traced.
        """
        if not self.shares_programs_with(other):
            return False
        compared = [s for s in self._declarations.by_name.values() if s.kind not in ("static", "traced")]
        return all(same(vars(self)[s.attribute], vars(other)[s.attribute]) for s in compared if s.name not in but_for)

    def sampling_hints(self) -> list[str]:
        """Hints for the user about faster sampling; [] if no hint applies.

        With host environments, the hint is about the number of actors; with JAX environments, about the number of
        environments. The result contains a hint only if this number was not set, and is RLlib's default.
        """
        if not self.is_online:
            return []
        if not self.samples_on_device:
            return [self._hint_of_no_actors()] if self.num_env_runners and not self.num_sampling_actors else []
        was_set = "num_envs_per_env_runner" in self._settings.explicitly_set or self.num_envs_per_env_runner > 1
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
        """Names of changed settings that have no effect if the compiled program steps the environment.

        Only actors read these settings, and the user changed their values from the defaults. If the config has learner
        actors, settings that learner actors read are left out.
        """
        return [
            s.name
            for s in self._declarations.by_name.values()
            if s.read_by == "actors"
            and self._was_changed(s)
            and not (self.num_learners and s.name in _READ_BY_LEARNER_ACTORS)
        ]

    # --------------------------------------------------------------------------------------------- algorithm's defaults

    def get_default_rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The spec of the algorithm's default module. Subclasses override this method."""
        if self._default_module_class is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no default module. Use an algorithm's config, such as PPOConfig, or "
                "rl_module(rl_module_spec=RLModuleSpec(module_class=...))."
            )
        return RLModuleSpec(module_class=self._default_module_class, catalog_class=self._default_catalog_class)

    def get_default_learner_class(self) -> type[Learner]:
        """The algorithm's Learner class. Subclasses override this method."""
        learner_class = self._default_learner_class
        if learner_class is None:
            raise NotImplementedError(
                f"{type(self).__name__} has no default Learner. Use an algorithm's config, such as PPOConfig, or "
                "learners(learner_class=...)."
            )
        return learner_class

    def get_default_env_runner_class(self) -> type[EnvRunner]:
        """The default EnvRunner class for host environments: one class for several agents, another class for a single
        agent.

        If `output` is set, the class for a single agent also writes the sampled steps to files.
        """
        from jaxrl_stack.offline.offline_env_runner import host_runner_class

        return host_runner_class(is_multi_agent=self.is_multi_agent, records=bool(self.output))

    def _default_env_to_module_connectors(self, observation_space: gym.Space, module_id: Any) -> list[ConnectorV2]:
        """The default env-to-module connectors, which run after the user's connectors. Algorithms override this method.

        Args:
            observation_space: Space of the observations that the user's connectors return.
            module_id: Id of the module. A module with a custom class and this space in its spec gets unchanged
                observations.
        """
        own = self._given_specs().get(module_id, RLModuleSpec())
        takes_it = own.module_class is not None and own.observation_space == observation_space
        if takes_it or not self._uses_default_module():
            return []
        keys = kept_observation_keys(self, module_id, observation_space)
        if is_vector(observation_space):
            return []
        arguments: dict[str, Any] = {"action_mask_key": self.action_mask_key} | ({"keys": keys} if keys else {})
        connector = DefaultObservations(observation_space, **arguments)
        if connector.observation_space == observation_space:
            return []
        # Of observations without a mask and images a plain vector is left.
        return [FlattenObservations() if is_vector(connector.observation_space) else DefaultObservations(**arguments)]

    def _default_module_to_env_connectors(self) -> list[ConnectorV2]:
        """The default module-to-env connectors. The user's connectors run before the last default connector. Algorithms
        override this method.
        """
        return [
            GetActions(),
            NormalizeAndClipActions(normalize_actions=self.normalize_actions, clip_actions=self.clip_actions),
        ]

    def _default_learner_connectors(self) -> list[ConnectorV2]:
        """The default learner connectors, which run after the user's connectors. Algorithms override this method."""
        return []

    # ------------------------------------------------------------------------------------------------------ validation

    def validate(self) -> None:
        """Checks all settings, individually and in combination. `build_algo` calls it.

        Subclasses add checks after ``super().validate()`` and report problems with `_value_error`.

        Raises:
            ValueError: Names the setting, its value and the remedy.
            NotImplementedError: If a setting is not supported.
        """
        config_validation.validate(self)

    def _validate_for_device(self) -> None:
        """Checks the settings of a config whose environment runs inside the compiled program."""
        config_validation.validate_for_device(self)

    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        """Raises if `connector`, which adds noise to actions, and the config have different values of
        `normalize_actions`.

        Algorithms that cannot learn from noisy actions override this method to refuse any such connector.
        """
        clips_for = connector.normalize_actions
        if clips_for != self.normalize_actions:
            raise ValueError(
                f"Connector {name!r} has normalize_actions={clips_for}, but the config has "
                f"environment(normalize_actions={self.normalize_actions}). "
                f"Create {name} with normalize_actions={self.normalize_actions}."
            )

    def validate_train_batch_size_vs_rollout_fragment_length(self) -> None:
        """Checks that sampling in whole rounds (one rollout fragment per environment) collects at most 10 % more steps
        than one train batch contains.

        Raises:
            ValueError: If sampling would collect more steps.
        """
        config_validation.validate_train_batch_size_vs_rollout_fragment_length(self)

    def _validate_minibatch_size(self) -> None:
        """Checks that a minibatch is at most the whole train batch of a learner."""
        if self.minibatch_size is not None and self.minibatch_size > self.train_batch_size_per_learner:
            self._value_error(
                f"training(minibatch_size={self.minibatch_size}) is larger than the train batch of "
                f"{self.train_batch_size_per_learner} steps per learner. Lower it, raise "
                "train_batch_size_per_learner, or use minibatch_size=None for the whole batch."
            )

    def _value_error(self, message: str) -> None:
        """Raises a ValueError; with ``experimental(_validate_config=False)`` only logs the message."""
        if self._validate_config:
            raise ValueError(message)
        notice_once(message)

    # ------------------------------------------------------------------------------------ policies, modules, connectors

    def _policy_ids(self) -> Collection[str]:
        return list(self.policies)

    @property
    def module_map(self) -> ModuleMap:
        """`ModuleMap` of this config: the assignment of agents to the modules that act for them."""
        return single_agent(self._policy_ids(), "multi_agent(policies=...) with one policy")

    def get_multi_agent_setup(
        self,
        *,
        policies: Mapping[str, Any] | None = None,
        env: Any = None,
        spaces: SpacesById | None = None,
        default_policy_class: Any = None,
    ) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
        """Returns the policies as `PolicySpec` objects with complete spaces, and the function that selects the policies
        to train.

        Args:
            policies: Overrides `policies` of this config.
            env: Environment to take missing spaces from.
            spaces: Module id (or "__env__", "__env_single__") → (observation space, action space).
            default_policy_class: Must be None; Policy classes are from the old API stack.

        Returns:
            (policy id → PolicySpec, ``f(module_id, batch) -> bool``).

        Raises:
            ValueError: If a space is unknown.
        """
        return config_building.get_multi_agent_setup(self, policies, env, spaces, default_policy_class)

    def _given_specs(self) -> dict[str, RLModuleSpec]:
        """The user's module specs by module id."""
        spec = self._rl_module_spec
        if isinstance(spec, MultiRLModuleSpec):
            return dict(spec.rl_module_specs or {})
        return {} if spec is None else {policy_id: spec for policy_id in self._policy_ids()}

    def _uses_default_module(self) -> bool:
        specs = self._given_specs()
        return not specs or any(spec.module_class is None for spec in specs.values())

    def get_rl_module_spec(
        self, env: Any = None, spaces: SpacesById | None = None, inference_only: bool | None = None
    ) -> RLModuleSpec:
        """Returns the complete module spec of a config with only one module, ready for ``.build()``.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Whether the module leaves out parts that only training needs; None is False.

        Raises:
            ValueError: If a space is unknown, or the config has several modules.
        """
        specs = self.get_multi_rl_module_spec(env=env, spaces=spaces, inference_only=bool(inference_only))
        modules = specs.rl_module_specs or {}
        if len(modules) != 1:
            raise ValueError(
                f"get_rl_module_spec() returns the spec of a single module, but the config has the modules "
                f"{sorted(modules)}. Call get_multi_rl_module_spec()."
            )
        return next(iter(modules.values()))

    def get_multi_rl_module_spec(
        self,
        *,
        env: Any = None,
        spaces: SpacesById | None = None,
        inference_only: bool = False,
        policy_dict: Mapping[str, PolicySpec] | None = None,
        single_agent_rl_module_spec: RLModuleSpec | None = None,
    ) -> MultiRLModuleSpec:
        """The complete specs of all modules, with missing spaces and model settings filled in.

        A module's settings take precedence over the config's. Spaces of an environment are taken after the
        env-to-module pipeline.

        Args:
            env: Environment to take missing spaces from.
            spaces: Module id → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Leave out parts that only training needs, and modules that only learners use.
            policy_dict: Overrides `policies`.
            single_agent_rl_module_spec: Overrides the spec of modules that have no spec in the config.

        Raises:
            ValueError: If a space is unknown.
        """
        return config_building.get_multi_rl_module_spec(
            self,
            env=env,
            spaces=spaces,
            inference_only=inference_only,
            policy_dict=policy_dict,
            single_agent_rl_module_spec=single_agent_rl_module_spec,
        )

    def action_mask_key_of(self, module_id: str | None, observation_space: Any, action_space: Any) -> str | None:
        """Key under which the environment's observations for the module `module_id` contain the action mask; None if
        they contain no mask, or the module ignores masks.

        Args:
            module_id: Id of the module; None for the only one.
            observation_space: Space of the environment's observations.
            action_space: Space of the actions.

        Raises:
            ValueError: If observations have a mask, and the algorithm's default module does not honour masks.
        """
        module_id = next(iter(self._policy_ids())) if module_id is None else module_id
        module_class = self._given_specs().get(module_id, RLModuleSpec()).module_class
        return honoured_mask_key(self, module_id, module_class, observation_space, action_space)

    def build_env_to_module_connector(
        self,
        env: Any = None,
        spaces: SpacesById | None = None,
        device: Any = None,
        *,
        module_id: str | None = None,
        agents: Collection[Any] | None = None,
        known_agents: Collection[Any] = (),
    ) -> EnvToModulePipeline:
        """Builds the pipeline from observations to the module's input: the user's connectors, then the default ones.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.
            device: Argument of the user's function.
            module_id: Id of the pipeline's module, if there are several agents.
            agents: Agents whose observations the pipeline gets, if there are several; None if unknown.
            known_agents: All agents.

        Raises:
            ValueError: If the user's function returns no connectors, the observation space is unknown, or the output of
                the connectors does not fit their declared space.
            TypeError: If a connector has the wrong form.
        """
        return config_building.build_env_to_module_connector(
            self, env, spaces, device, module_id=module_id, agents=agents, known_agents=known_agents
        )

    def build_module_to_env_connector(self, env: Any = None, spaces: SpacesById | None = None) -> ModuleToEnvPipeline:
        """Builds the pipeline from the module's outputs to the environment's actions.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.

        Raises:
            ValueError: If the user's function returns no connectors, or a connector does not fit these settings.
        """
        return config_building.build_module_to_env_connector(self, env, spaces)

    def build_learner_connector(
        self, input_observation_space: gym.Space | None, input_action_space: gym.Space | None, device: Any = None
    ) -> LearnerConnectorPipeline:
        """Builds the pipeline from recorded steps to the train batch: the user's connectors, then the algorithm's.

        Args:
            input_observation_space: Observation space of the module (after the env-to-module pipeline).
            input_action_space: Action space of the module.
            device: No effect; batches are on the device of the program.

        Raises:
            ValueError: If the user's function returns no connectors, or a connector does not fit these settings.
        """
        return config_building.build_learner_connector(self, input_observation_space, input_action_space)

    def agent_preprocessors(self, env: Any, spaces: SpacesById) -> list[MultiAgentObservationPreprocessor]:
        """The user's env-to-module connectors that process the observations of all agents jointly.

        Args:
            env: Argument of the user's function.
            spaces: "__env__" and "__env_single__" → spaces of all agents.
        """
        own = self.user_connectors(EnvToModulePipeline.setting, (env, spaces, None))
        return [connector for connector in own if isinstance(connector, MultiAgentObservationPreprocessor)]

    def user_connectors(self, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        """Connectors that the user's connector function returns, as a list."""
        return config_building.user_connectors(self, name, arguments)

    def for_checkpoints(self, *pipelines: ConnectorPipelineV2) -> Self:
        """Returns the config to store in a checkpoint, with connectors in place of the functions that created them.

        A user's function is replaced only if two conditions hold: the function cannot be imported by name, and its
        connectors contain no arrays.

        Args:
            *pipelines: Pipelines that were built with this config's connector settings.

        Returns:
            A copy, or this config if nothing is replaced.
        """
        return config_building.for_checkpoints(self, pipelines)

    # ------------------------------------------------------------------------------------------ algorithms and learners

    def build_algo(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """Builds the algorithm from a validated, frozen copy of this config.

        Args:
            env: Overrides `env`.
            use_copy: False uses this config itself, which is then frozen.

        Raises:
            ValueError: If settings are invalid or do not fit together, or the config has no algorithm.
        """
        return config_building.build_algo(self, env, use_copy)

    def build(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """Deprecated name of `build_algo`; issues a DeprecationWarning."""
        warn_deprecated("config.build() is now config.build_algo().")
        return self.build_algo(env, use_copy)

    def build_learner(self, *, env: Any = None, spaces: SpacesById | None = None) -> Learner:
        """Builds a Learner for use without an Algorithm.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
        """
        return config_building.build_learner(self, env=env, spaces=spaces)

    def build_learner_group(
        self,
        *,
        env: Any = None,
        spaces: SpacesById | None = None,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        placement_group: Any = None,
    ) -> LearnerGroup:
        """Builds a LearnerGroup; with ``num_learners=0`` it has one Learner, in this process.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            rl_module_spec: Overrides this config's spec.
            placement_group: Ray placement group whose last ``num_learners`` bundles are for the learners.

        Raises:
            ValueError: If a placement group is given and the learner is local.
        """
        return config_building.build_learner_group(
            self, env=env, spaces=spaces, rl_module_spec=rl_module_spec, placement_group=placement_group
        )

    # ---------------------------------------------------------------------------------------------------- populations

    def with_settings(self, settings: Mapping[str, Any]) -> AlgorithmConfig:
        """Returns an unfrozen copy with new values of some settings.

        Args:
            settings: By name; ``"env_config/gravity"`` is an entry of ``env_config``.
        """
        from jaxrl_stack.algorithms import members  # which needs what trains

        config: Any = members.with_settings(self, settings)
        return config

    def why_no_population(self) -> str | None:
        """Explains why this config cannot train as a population (several runs in one compiled program), as text without
        a final full stop; None if it can.
        """
        from jaxrl_stack.algorithms import members  # which needs what trains

        return members.why_not_together(self)

    def _known_result(self) -> dict[str, Any] | None:
        """Template of an iteration's result: all metrics that this config reports, set to NaN. Returns None if user
        code may report further metrics.
        """
        return known_result(self)

    def can_be_members(self, other: AlgorithmConfig) -> bool:
        """Whether one population (one compiled program for several runs) can train this config and another one."""
        from jaxrl_stack.algorithms import members  # which needs what trains

        return members.are_alike(self, other)

    def settings_between_populations(self, other: AlgorithmConfig) -> list[str]:
        """Names of settings whose different values prevent one population from training both this config and `other`.

        A population is several runs in one compiled program. ``env_config`` is never among the names.
        """
        from jaxrl_stack.algorithms import members  # which needs what trains

        return members.differing_settings(self, other)

    def build_population(
        self,
        seeds: int | Iterable[int] | None = None,
        *,
        num_samples: int = 1,
        members: Sequence[Any] | None = None,
        on_divergence: Literal["freeze", "raise"] = "freeze",
        members_at_once: int | None = None,
    ) -> Population:
        """Builds a population: several runs, with different seeds and values of settings, in one compiled program.

        Each combination of values of search spaces, such as ``training(lr=tune.grid_search([1e-4, 1e-3]))``, is trained
        with every seed.

        Args:
            seeds: Number of seeds, which are then 0, 1, 2, ...; or a list of seeds. None uses the config's seed.
            num_samples: Repetitions of each combination, with new samples of sampled values.
            members: List of all members, instead of the other arguments: ``[{"seed": 0, "settings": {"lr": 1e-3}},
                ...]``.
            on_divergence: Reaction to a member with non-finite numbers: "freeze" keeps its last finite state and
                continues to train the others, "raise" raises.
            members_at_once: Members that a device trains at the same time; None chooses by the platform.

        Raises:
            ValueError: If one program cannot serve all members, settings are invalid, or there are no members.
        """
        return config_building.build_population(
            self,
            seeds,
            num_samples=num_samples,
            members=members,
            on_divergence=on_divergence,
            members_at_once=members_at_once,
        )

    # ---------------------------------------------------------------------------------------------- RLlib's other names

    DEFAULT_POLICY_MAPPING_FN = staticmethod(default_policy_mapping_fn)

    @staticmethod
    def DEFAULT_AGENT_TO_MODULE_MAPPING_FN(agent_id: Any, episode: Any) -> str:
        """Maps every agent to "default_policy"."""
        return DEFAULT_MODULE_ID

    # ----------------------------------------------------------------------------------------------- names of the past

    def rollouts(self, *args: Any, **kwargs: Any) -> Self:
        """Always raises a ValueError that names the replacement: `env_runners`."""
        raise ValueError("config.rollouts(...) is gone. Use config.env_runners(...) instead.")

    def exploration(self, *args: Any, **kwargs: Any) -> Self:
        """Always raises a ValueError that names the replacements: `env_runners` and `RLModule._forward_exploration`."""
        raise ValueError(
            "config.exploration(...) is gone. Use env_runners(explore=...) and RLModule._forward_exploration() instead."
        )

    def get_marl_module_spec(self, *args: Any, **kwargs: Any) -> MultiRLModuleSpec:
        """Always raises a ValueError that names the replacement: `get_multi_rl_module_spec`."""
        raise ValueError("config.get_marl_module_spec() is gone. Use config.get_multi_rl_module_spec() instead.")


AlgorithmConfig._declare()


def _plain(value: Any) -> Any:
    """Converts a value of a setting to JSON types; values without a JSON type become text."""
    if isinstance(value, AlgorithmConfig):
        return value.serialize()
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if is_record(value):
        return {name: _plain(item) for name, item in as_dict(value).items()}
    return value if isinstance(value, float) else as_json(value)
