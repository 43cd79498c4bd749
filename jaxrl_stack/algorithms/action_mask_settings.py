"""Checks which modules of a config use action masks, and whether connectors keep the masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.default_observations import has_action_mask
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.utils.action_masks import ACTION_MASK, OBSERVATIONS, mask_key_in, mask_length

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline


def honoured_mask_key(
    config: Any, module_id: str, module_class: type[RLModule] | None, observation_space: Any, action_space: Any
) -> str | None:
    """Returns the key under which a module's observations contain the action mask; None if there is no mask, or the
    module ignores it.

    Args:
        config: The AlgorithmConfig.
        module_id: Id of the module.
        module_class: The user's class of the module; None for the algorithm's default module.
        observation_space: Space of the environment's observations.
        action_space: Space of the actions.

    Raises:
        ValueError: There is a mask, and the algorithm's own module does not honour masks.
    """
    key = config.action_mask_key
    if mask_length(action_space) is None or (module_class is not None and not module_class.honours_action_mask):
        return None
    if not has_action_mask(observation_space, key):
        return None
    if module_class is None and not _default_module_honours_masks(config, module_id):
        config._value_error(
            f"Observations have an action mask under {key!r}, which the networks of {type(config).__name__} do not "
            f"support. Use PPO, DQN or SAC, or treat the mask as an observation: environment(action_mask_key='none')."
        )
    return key


def any_module_honours_masks(config: Any, specs: Mapping[str, RLModuleSpec]) -> bool:
    """Whether any module of the config masks its actions.

    Args:
        config: The AlgorithmConfig.
        specs: The specs that the user gave, by module id.
    """
    classes = {mid: specs.get(mid, RLModuleSpec()).module_class for mid in config._policy_ids()}
    return any(
        _default_module_honours_masks(config, mid) if own is None else own.honours_action_mask
        for mid, own in classes.items()
    )


def _default_module_honours_masks(config: Any, module_id: str) -> bool:
    try:
        spec = config.get_default_rl_module_spec()
    except NotImplementedError:
        return True  # actions are random then, and drawn from the valid ones
    if isinstance(spec, MultiRLModuleSpec):
        spec = (spec.rl_module_specs or {}).get(module_id, RLModuleSpec())
    return spec.module_class is None or spec.module_class.honours_action_mask


def check_mask_is_kept(pipeline: EnvToModulePipeline, key: str) -> None:
    """Raises ValueError if the env-to-module pipeline removes the action mask from observations.

    Args:
        pipeline: The whole pipeline, with known spaces.
        key: Key of the mask in the environment's observations.

    Raises:
        ValueError: Names the connector that loses the mask.
    """
    if mask_key_in(pipeline.observation_space, (ACTION_MASK,)) is not None:
        return
    if pipeline.mask_lost_by is None:
        raise ValueError(
            f"The module reads the action mask under {ACTION_MASK!r}, but observations have it under {key!r}. Add the "
            f"env-to-module connector DefaultObservations(action_mask_key={key!r})."
        )
    raise ValueError(
        f"Env-to-module connector {pipeline.mask_lost_by!r} drops the action mask {key!r}. Return "
        f"{{{key!r}: mask, {OBSERVATIONS!r}: ...}} from the connector, and a Dict space with these keys from "
        f"recompute_output_observation_space(). If the connector has apply(), you can set sees_action_mask = False in "
        f"its class instead: the pipeline then adds the mask to the connector's output. To train without a mask: "
        f"environment(action_mask_key='none')."
    )
