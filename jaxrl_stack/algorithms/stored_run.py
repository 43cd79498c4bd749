"""What a checkpoint says of a run: its config, its modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym

from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.checkpoints.plain_data import DAMAGES, KIND, Decoder
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec, check_fits_specs
from jaxrl_stack.utils.class_paths import ClassLoader

_CONNECTOR_SETTINGS = (EnvToModulePipeline.setting, ModuleToEnvPipeline.setting, LearnerConnectorPipeline.setting)


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """What `Algorithm.save` returns, and its `checkpoint`: where a checkpoint is.

    Attributes:
        path: Its folder.
    """

    path: str

    @property
    def checkpoint(self) -> SavedCheckpoint:
        """This very object: ``algo.save(path).checkpoint.path``."""
        return self

    def __fspath__(self) -> str:
        return self.path


def stored_config(
    stored: Stored, loader: ClassLoader, settings: Mapping[str, Any]
) -> tuple[AlgorithmConfig, dict[str, str]]:
    """The config of an algorithm's checkpoint.

    Args:
        stored: The checkpoint.
        loader: Finds classes.
        settings: Settings in place of the stored ones.

    Returns:
        ``(config, missing)``: an AlgorithmConfig that is not frozen, and ``{setting: description}`` of those that the
        checkpoint does not hold and `settings` does not give; they have their defaults.

    Raises:
        ValueError: If it is no checkpoint of an algorithm, is damaged, or needs a class that is not allowed.
    """
    what = f"The checkpoint at {stored.path}"
    component = stored.component()
    node = component.ctor["kwargs"].get("config")
    if not isinstance(node, dict) or not isinstance(node.get("value"), dict) or node.get(KIND) != "plain":
        raise ValueError(f"{what} is none of an Algorithm: it has no config.")
    config_class = loader.load(node.get("class"), what=what, base=AlgorithmConfig)
    left_out = {where.partition("config/")[2].partition("/")[0]: text for where, text in component.left_out.items()}
    missing = {name: description for name, description in left_out.items() if name not in settings}
    decoder = Decoder(loader, what=what)
    wanted = {name: item for name, item in node["value"].items() if name not in {**settings, **missing}}
    connectors = {name: wanted.pop(name) for name in _CONNECTOR_SETTINGS if name in wanted}
    values = decoder.decode_items(wanted)
    for name, item in connectors.items():
        try:
            values[name] = decoder.decode(item, name)
        except ValueError as error:
            raise ValueError(f"{error} Or pass the setting again: from_checkpoint(path, {name}=...).") from error
    try:
        config = config_class.from_plain(values, loader)
    except (ValueError, *DAMAGES) as error:
        raise ValueError(f"{what} holds a config that cannot be: {error}") from error
    return config.update_from_dict(settings), missing


def stored_settings(stored: Stored, loader: ClassLoader, names: Sequence[str]) -> list[Any]:
    """Settings of an algorithm's checkpoint; None for those that were not set.

    Args:
        stored: The checkpoint.
        loader: Finds classes.
        names: Of the settings.
    """
    node = stored.component().ctor["kwargs"].get("config")
    values = node.get("value") if isinstance(node, dict) else None
    decoder = Decoder(loader, what=f"The checkpoint at {stored.path}")
    return [decoder.decode(values[name], name) if values and name in values else None for name in names]


def stored_module_spec(stored: Stored, loader: ClassLoader, state: Mapping[str, Any]) -> RLModuleSpec:
    """The spec that builds a stored module.

    Args:
        stored: The module's checkpoint.
        loader: Finds classes.
        state: Its state.

    Raises:
        ValueError: If it is no checkpoint of a module, builds one of another state, or needs a class that is not
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
        raise ValueError(f"{what} does not fit an RLModuleSpec: {error!r}.") from error
    return spec


def check_modules(
    config: AlgorithmConfig, modules: Stored, loader: ClassLoader, states: Mapping[str, Mapping[str, Any]]
) -> None:
    """Raise a ValueError unless a config's modules are of the stored sizes; nothing is built for it.

    Args:
        config: The config of an algorithm.
        modules: The stored MultiRLModule.
        loader: Finds classes.
        states: Its state, ``{module_id: state}``.
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
        raise ValueError(f"{what} does not fit its own config: {error}") from error
