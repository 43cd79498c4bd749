"""Settings in the model configs of an AlgorithmConfig that select keys of Dict observations: `policy_obs_key` and
`value_obs_key`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import gymnasium as gym

from jaxrl_stack.algorithms.model_settings import settings_of_module
from jaxrl_stack.core.observation_keys import OBSERVATION_KEYS, check_observation_keys, observed_keys
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.utils.action_masks import OBSERVATIONS, mask_key_in


def check_observation_key_settings(config: Any) -> None:
    """Checks `policy_obs_key` and `value_obs_key` of a config, before the observation space is known.

    Args:
        config: The AlgorithmConfig; it uses the algorithm's default module.

    Raises:
        ValueError: For a setting that the default module does not read, or keys that a shared encoder cannot see.
    """
    specs = config._given_specs() or {module_id: RLModuleSpec() for module_id in config._policy_ids()}
    for module_id, spec in specs.items():
        settings = settings_of_module(config, module_id, spec)
        if spec.module_class is not None or not _selects_keys(settings):
            continue
        try:
            check_observation_keys(settings, _supported(config, spec), type(config).__name__)
        except ValueError as error:
            overrides = config.algorithm_config_overrides_per_module.get(module_id)
            where = f"algorithm_config_overrides_per_module[{module_id!r}]" if overrides else "rl_module(...)"
            config._value_error(f"{where}: {error}")


def kept_observation_keys(config: Any, module_id: str | None, space: gym.Space) -> list[str] | None:
    """Observation keys that at least one of a module's networks reads; None if no setting selects keys.

    Args:
        config: The AlgorithmConfig.
        module_id: Id of the module; None for the only one.
        space: Space of the observations before the default connectors.

    Raises:
        ValueError: If observations are not a Dict, or lack a key.
    """
    module_id = next(iter(config._policy_ids())) if module_id is None else module_id
    spec = config._given_specs().get(module_id, RLModuleSpec())
    settings = settings_of_module(config, module_id, spec)
    if not _selects_keys(settings):
        return None
    if mask_key_in(space, (config.action_mask_key,)) is not None:
        assert isinstance(space, gym.spaces.Dict)
        space = space[OBSERVATIONS]
    keys = observed_keys(space, settings, _supported(config, spec))
    if keys is None:
        return None
    assert isinstance(space, gym.spaces.Dict)
    return [key for key in space.spaces if any(key in own for own in keys.values())]


def _selects_keys(settings: Mapping[str, Any]) -> bool:
    return any(settings.get(name) is not None for name in OBSERVATION_KEYS)


def _supported(config: Any, spec: RLModuleSpec) -> Collection[str]:
    """Names of the settings `policy_obs_key` and `value_obs_key` that a module class supports; a user's module class
    counts as supporting both.
    """
    if spec.module_class is not None:
        return getattr(spec.catalog_class, "observation_key_settings", OBSERVATION_KEYS)
    default = config.get_default_rl_module_spec()
    catalog_class = spec.catalog_class or (None if isinstance(default, MultiRLModuleSpec) else default.catalog_class)
    return () if catalog_class is None else catalog_class.observation_key_settings
