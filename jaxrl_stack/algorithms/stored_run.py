"""Contents of a run's checkpoint: its config and its modules."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.config_store import texts_that_import
from jaxrl_stack.checkpoints.checksums import checkpoint_checksum
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.checkpoints.needed_code import NeededCode
from jaxrl_stack.checkpoints.plain_data import DAMAGES, KIND, Decoder
from jaxrl_stack.checkpoints.saves import saves
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.module_map import ModuleMap, PolicyTable
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.env.registry import UnknownEnvironmentError
from jaxrl_stack.utils.class_paths import ClassLoader

_CONNECTOR_SETTINGS = (EnvToModulePipeline.setting, ModuleToEnvPipeline.setting, LearnerConnectorPipeline.setting)


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """Result of `Algorithm.save`: the path of a checkpoint, as ``result.path`` and, as with Ray Tune, also as
    ``result.checkpoint.path``.

    Attributes:
        path: Folder of the checkpoint.
    """

    path: str

    @property
    def checkpoint(self) -> SavedCheckpoint:
        """This object, so that ``algo.save(path).checkpoint.path`` works as with Ray Tune."""
        return self

    def __fspath__(self) -> str:
        return self.path


def config_to_store(config: AlgorithmConfig, module_map: ModuleMap) -> AlgorithmConfig:
    """Config that a run's checkpoint stores, if possible with a table instead of the user's policy mapping function.

    If each agent has the same policy in all episodes, a `PolicyTable`, which maps agent ids to policy ids, replaces the
    user's policy mapping function, because checkpoints contain no code.

    Returns `config` itself if the policies of agents differ between episodes, or if the user set no mapping function.
    Also returns `config` if the evaluation config may set another environment, whose agents the table may lack.

    Args:
        config: The config of a run.
        module_map: Policies of the run's agents.
    """
    overrides = config.evaluation_config or {}
    others = isinstance(overrides, AlgorithmConfig) or not overrides.keys().isdisjoint(("env", "env_config"))
    is_set = config.is_multi_agent and "policy_mapping_fn" in config.explicitly_set
    if not is_set or others or module_map.slots or not module_map.module_of:
        return config
    stored = config.copy(copy_frozen=False).multi_agent(policy_mapping_fn=PolicyTable(module_map.module_of))
    stored.freeze()
    return stored


def restored_checkpoint(path: Any, filesystem: Any) -> tuple[dict[str, Any], str | None]:
    """Describes a restored checkpoint for a run's command log (the calls that changed the training state).

    Returns two values: a dict with the path and checksum of the checkpoint, and the reason why the logged call cannot
    be repeated (None if it can).

    Args:
        path, filesystem: See `Checkpointable.restore_from_path`.
    """
    text = os.fspath(getattr(path, "path", path))
    if filesystem is not None or "://" in text:
        return {"path": text, "checksum": None}, f"the checkpoint {text!r} is on another file system"
    folder = pathlib.Path(text).absolute()
    saves.wait(os.path.realpath(folder))
    return {"path": str(folder), "checksum": checkpoint_checksum(folder) if folder.is_dir() else None}, None


def cannot_be_built(stored: Stored, config: AlgorithmConfig, error: Exception) -> ValueError:
    """Creates the error for a checkpoint whose config fails to build an algorithm."""
    remedy = ""
    if isinstance(error, UnknownEnvironmentError):
        remedy = f"\nRegister it first, register_env({config.env!r}, ...), or pass one: from_checkpoint(path, env=...)."
    return ValueError(
        f"The algorithm of the checkpoint at {stored.path} cannot be built: {error or repr(error)}{remedy}"
    )


def check_code(
    stored: Stored, loader: ClassLoader, algo_class: type, config: AlgorithmConfig | None, settings: Mapping[str, Any]
) -> None:
    """Raises a ValueError if a checkpoint needs code that the caller has not allowed, or settings that the caller has
    not passed.

    A single error lists all missing code and settings.

    Args:
        stored: The checkpoint.
        loader: Class loader with the allowed code.
        algo_class: Class whose `from_checkpoint` was called.
        config: Config that the caller passes in place of the stored one, or None.
        settings: Settings that the caller passes.

    Raises:
        ValueError: If code or a setting is missing.
    """
    component, needed = stored.component(), NeededCode(loader)
    if component.class_path is not None:
        needed.add_class(component.class_path, algo_class)
    values: Mapping[str, Any] = {}
    node = component.ctor["kwargs"].get("config")
    if config is None and isinstance(node, dict) and isinstance(node.get("value"), dict):
        left_out = _settings_left_out(component.left_out)
        given = {*settings, *left_out}
        values = {name: item for name, item in node["value"].items() if name not in given}
        needed.add_class(node.get("class"), AlgorithmConfig)
        for name, item in values.items():
            needed.add(item, name)
        needed.add_texts(text for _, text, _ in texts_that_import(values))
        needed.add_arguments({name: text for name, text in left_out.items() if name not in settings})
    policies = settings.get("policies", values.get("policies", [DEFAULT_MODULE_ID]))
    _add_modules(needed, stored, _names(policies) if config is None else config.policies)
    needed.check(stored.path, f"{algo_class.__name__}.from_checkpoint")


def _add_modules(needed: NeededCode, stored: Stored, policies: Collection[str]) -> None:
    """Adds the code of a checkpoint's modules to `needed`, the code that loading the checkpoint requires.

    Skips modules in `policies` (policy ids of the config), because loading builds these modules from the config.
    Loading builds all other modules from descriptions in the checkpoint.
    """
    if COMPONENT_LEARNER_GROUP not in stored:
        return  # it is none of an algorithm, as its class will show
    modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
    for module_id in modules.parts:
        if module_id not in policies:
            needed.add_component(modules.part(module_id).component(), RLModule)


def _names(node: Any) -> Collection[str]:
    """Returns the policy ids in a value of the setting ``policies``.

    The value is a list or dict that the caller passed, or a JSON value from a checkpoint. Returns [] if the value is
    damaged.
    """
    names = node["value"] if isinstance(node, dict) and KIND in node else node
    return [name for name in names if isinstance(name, str)] if isinstance(names, Iterable) else []


def _settings_left_out(left_out: Mapping[str, str]) -> dict[str, str]:
    """Settings that a checkpoint lacks because it cannot store their values: ``{setting: description}``."""
    return {where.partition("config/")[2].partition("/")[0]: text for where, text in left_out.items()}


def stored_config(
    stored: Stored, loader: ClassLoader, settings: Mapping[str, Any]
) -> tuple[AlgorithmConfig, dict[str, str]]:
    """Reads the config from an algorithm's checkpoint.

    Args:
        stored: The checkpoint.
        loader: Finds classes.
        settings: Settings that replace stored ones.

    Returns:
        ``(config, missing)``: an unfrozen AlgorithmConfig, and ``{setting: description}`` of settings that neither the
        checkpoint nor `settings` contains; these have their defaults.

    Raises:
        ValueError: If it is not the checkpoint of an algorithm, is damaged, or needs a class that is not allowed.
    """
    what = f"The checkpoint at {stored.path}"
    component = stored.component()
    node = component.ctor["kwargs"].get("config")
    if not isinstance(node, dict) or not isinstance(node.get("value"), dict) or node.get(KIND) != "plain":
        raise ValueError(
            f"{what} is not the checkpoint of an Algorithm: it has no config. Pass the folder that "
            f"Algorithm.save_to_path() wrote."
        )
    config_class = loader.load(node.get("class"), what=what, base=AlgorithmConfig)
    left_out = _settings_left_out(component.left_out)
    missing = {name: description for name, description in left_out.items() if name not in settings}
    decoder = Decoder(loader, what=what)
    wanted = {name: item for name, item in node["value"].items() if name not in {**settings, **missing}}
    connectors = {name: wanted.pop(name) for name in _CONNECTOR_SETTINGS if name in wanted}
    values = decoder.decode_items(wanted)
    for name, item in connectors.items():
        try:
            values[name] = decoder.decode(item, name)
        except ValueError as error:
            raise ValueError(f"{error} You can also pass the setting: from_checkpoint(path, {name}=...).") from error
    try:
        config = config_class.from_plain(values, loader)
    except (ValueError, *DAMAGES) as error:
        raise ValueError(
            f"{what} contains an invalid config. The checkpoint was changed, or another release saved it. Load an "
            f"unchanged copy with the release that saved it. {error}"
        ) from error
    return config.update_from_dict(settings), missing


def settings_left_out(stored: Stored) -> Collection[str]:
    """Names of the settings that an algorithm's checkpoint lacks, because their values contain code or objects that
    checkpoints cannot store, such as a lambda.
    """
    return _settings_left_out(stored.component().left_out)


def stored_settings(stored: Stored, loader: ClassLoader, names: Sequence[str]) -> list[Any]:
    """Reads the values of the settings `names` from an algorithm's checkpoint, in this order.

    The value is None for settings that the checkpoint does not contain, such as settings that the user did not set.

    Args:
        stored: The checkpoint.
        loader: Finds classes.
        names: Names of the settings.
    """
    node = stored.component().ctor["kwargs"].get("config")
    values = node.get("value") if isinstance(node, dict) else None
    decoder = Decoder(loader, what=f"The checkpoint at {stored.path}")
    return [decoder.decode(values[name], name) if values and name in values else None for name in names]


def stored_module_spec(stored: Stored, loader: ClassLoader, state: Mapping[str, Any]) -> RLModuleSpec:
    """Reads the spec of a module from its checkpoint.

    Args:
        stored: Checkpoint of the module.
        loader: Finds classes.
        state: State of the module.

    Raises:
        ValueError: If it is not the checkpoint of a module, does not fit the state, or needs a class that is not
            allowed.
    """
    what = f"The checkpoint at {stored.path}"
    component = stored.component()
    decoder = Decoder(loader, what=what)
    kwargs = decoder.decode_items(component.ctor["kwargs"])
    try:
        spec = RLModuleSpec(module_class=loader.load(component.class_path, what=what, base=RLModule), **kwargs)
        specs = spec.as_multi_rl_module_spec()
        check_fits_specs(specs, dict.fromkeys(specs.rl_module_specs, state))
    except DAMAGES as error:
        raise ValueError(
            f"{what} does not describe a valid RLModuleSpec: {error!r}. The checkpoint was changed, or another release "
            f"saved it. Load an unchanged copy with the release that saved it."
        ) from error
    return spec


def check_modules(
    config: AlgorithmConfig, modules: Stored, loader: ClassLoader, states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raises a ValueError if the states of modules in a checkpoint do not fit the config's modules.

    Builds no module. Checks nothing if the checkpoint lacks a policy of the config or the spaces of a module.

    Args:
        config: The config of an algorithm.
        modules: The stored MultiRLModule.
        loader: Finds classes.
        states: State of the modules, ``{module_id: state}``.
    """
    what = f"The checkpoint at {modules.path}"
    decoder = Decoder(loader, what=what)
    spaces = {}
    for module_id in modules.parts:
        kwargs = modules.part(module_id).component().ctor["kwargs"]
        spaces[module_id] = tuple(decoder.decode(kwargs.get(name)) for name in ("observation_space", "action_space"))
    # Modules can have come and gone since the config was made, and can do without spaces.
    is_known = set(config.policies) <= set(spaces)
    if not is_known or not all(isinstance(space, gym.Space) for pair in spaces.values() for space in pair):
        return
    try:
        check_fits_specs(config.get_multi_rl_module_spec(spaces=spaces), states)
    except (ValueError, *DAMAGES) as error:
        raise ValueError(
            f"{what} has weights that do not fit the modules of the config. Load an unchanged copy, or pass the run's "
            f"config: from_checkpoint(path, config=...). {error}"
        ) from error
