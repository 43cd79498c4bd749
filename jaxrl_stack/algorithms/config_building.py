"""Builds spaces, module specs, connector pipelines, learners and the algorithm from a config.

The methods of `AlgorithmConfig` with the same names call these functions, and document arguments and errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.algorithms.action_mask_settings import any_module_honours_masks, check_mask_is_kept
from jaxrl_stack.algorithms.connector_functions import connectors_for_agents, num_positional_arguments
from jaxrl_stack.algorithms.model_settings import settings_of_module
from jaxrl_stack.algorithms.policy_spaces import SpacesById, spaces_without_agent, with_policies_of
from jaxrl_stack.algorithms.setting_values import copy_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.checkpoints.plain_data import Encoder
from jaxrl_stack.connectors import markers
from jaxrl_stack.connectors.checks import check_connectors, check_env_to_module
from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, RecordedMeanStdFilter
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ActionNoise, ModuleToEnvPipeline
from jaxrl_stack.connectors.stored_connectors import StoredConnectors
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.created_envs import creators_called_once
from jaxrl_stack.utils.action_masks import ACTION_MASK
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.signatures import call_users
from jaxrl_stack.utils.spaces import check_space, difference

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.algorithms.population import Population
    from jaxrl_stack.core.learner.learner import Learner

_Config = TypeVar("_Config", bound="AlgorithmConfig")


# ------------------------------------------------------------------------------------------------ policies, spaces


def get_multi_agent_setup(
    config: AlgorithmConfig,
    policies: Mapping[str, Any] | None,
    env: Any,
    spaces: SpacesById | None,
    default_policy_class: Any,
) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
    """Returns PolicySpecs with complete spaces, and the function that selects the policies to train."""
    if default_policy_class is not None:
        raise ValueError(
            f"default_policy_class={default_policy_class!r} is from the old API stack. Leave it out, and use "
            f"rl_module(rl_module_spec=...)."
        )
    specs, spaces = _policy_specs(config, policies), with_policies_of(config, env, spaces)
    for policy_id, spec in specs.items():
        spec.observation_space, spec.action_space = _module_spaces(
            config, policy_id, spec.observation_space, spec.action_space, env, spaces
        )
        spec.config = spec.config or {}
    return specs, functools.partial(_is_trained, config.policies_to_train)


def _policy_specs(config: AlgorithmConfig, policies: Mapping[str, Any] | None = None) -> dict[str, PolicySpec]:
    """Converts `policies` (by default the config's policies) to ``{policy id: new PolicySpec}``.

    `policies` contains only ids, or for each id a PolicySpec, a tuple of its arguments, or None.
    """
    given = config.policies if policies is None else policies
    given = given if isinstance(given, Mapping) else dict.fromkeys(given)
    return {
        policy_id: PolicySpec(*entry) if isinstance(entry, tuple) else copy_value(entry) or PolicySpec()
        for policy_id, entry in given.items()
    }


def _module_spaces(
    config: AlgorithmConfig,
    module_id: str,
    observation_space: gym.Space | None,
    action_space: gym.Space | None,
    env: Any,
    spaces: SpacesById | None,
) -> tuple[gym.Space, gym.Space]:
    """Returns the spaces of one module: the spaces passed as arguments, else ``spaces[module_id]``, else the
    environment's spaces after the env-to-module pipeline.
    """
    if spaces and module_id in spaces:
        known = spaces[module_id]
    elif observation_space is not None and action_space is not None:
        known = (observation_space, action_space)
    elif module_id not in config._policy_ids() and (seen := _spaces_of_policy(config, spaces)):
        known = seen  # a part that does not act works on what the policy sees
    elif config.is_multi_agent and (seen := _spaces_of_policy(config, spaces)):
        known = spaces_without_agent(config, module_id, (observation_space, action_space), spaces or {})
    else:
        raw = _env_spaces(config, env, spaces)
        if raw[0] is None or raw[1] is None:
            kind = "observation_space" if raw[0] is None else "action_space"
            raise ValueError(
                f"The {kind} of module {module_id!r} is unknown. Set environment({kind}=...), or pass env= or "
                f"spaces={{{module_id!r}: (observation_space, action_space)}} to the called method of the config, such "
                "as get_multi_rl_module_spec()."
            )
        pipeline = config.build_env_to_module_connector(env=env, spaces=spaces)
        known = (pipeline.observation_space, pipeline.action_space)
    for kind, given, own in (("observation", observation_space, known[0]), ("action", action_space, known[1])):
        problem = None if given is None or own is None else difference(given, own)
        if problem is not None:
            raise ValueError(
                f"RLModuleSpec({kind}_space={given}) of module {module_id!r} does not fit {own}, the {kind} space "
                f"after the env-to-module connectors: {problem}. Leave {kind}_space out, or override "
                f"recompute_output_{kind}_space() in the connector that changes the space."
            )
    return observation_space or known[0], action_space or known[1]


def _spaces_of_policy(config: AlgorithmConfig, spaces: SpacesById | None) -> tuple[gym.Space, gym.Space] | None:
    return next((spaces[policy_id] for policy_id in config._policy_ids() if spaces and policy_id in spaces), None)


def _env_spaces(
    config: AlgorithmConfig, env: Any, spaces: SpacesById | None
) -> tuple[gym.Space | None, gym.Space | None]:
    """Spaces of one environment: the spaces set in the config, else the spaces in the dict `spaces`, else the
    environment's own spaces.

    Raises:
        ValueError: If the config's spaces have another form than the environment's.
    """
    known = spaces or {}
    if "__env_single__" in known or "__env__" in known:
        found = known["__env_single__" if "__env_single__" in known else "__env__"]
    elif isinstance(env, gym.vector.VectorEnv):
        found = (env.single_observation_space, env.single_action_space)
    else:
        found = (None, None) if env is None else (env.observation_space, env.action_space)
    if env is not None and (config.observation_space is not None or config.action_space is not None):
        _check_given_spaces(config, env)
    return config.observation_space or found[0], config.action_space or found[1]


def _check_given_spaces(config: AlgorithmConfig, env: Any) -> None:
    """Raises if an observation or action space in the config does not fit the environment's space.

    The spaces must have the same structure, type, shape, kind of dtype (bool, integer or float), and choices of
    discrete spaces (their number and first value). Bounds and precision of Box spaces may differ.
    """
    prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
    for name in ("observation_space", "action_space"):
        given = vars(config)[name]
        problem = None if given is None else difference(given, getattr(env, prefix + name))
        if problem is not None:
            raise ValueError(
                f"environment({name}={given}) does not fit the environment's {name}: {problem}. Only the "
                f"bounds and the precision of Box spaces may differ. Leave {name} out. To change observations, use "
                f"env_runners(env_to_module_connector=...)."
            )


# --------------------------------------------------------------------------------------------------------- modules


def get_multi_rl_module_spec(
    config: AlgorithmConfig,
    *,
    env: Any,
    spaces: SpacesById | None,
    inference_only: bool,
    policy_dict: Mapping[str, PolicySpec] | None,
    single_agent_rl_module_spec: RLModuleSpec | None,
) -> MultiRLModuleSpec:
    """Returns a MultiRLModuleSpec with one complete spec per module, spaces and model settings included. If
    `inference_only` is True, leaves out modules that are ``learner_only``.
    """
    given = single_agent_rl_module_spec or config.rl_module_spec
    policies, spaces = _policy_specs(config, policy_dict), with_policies_of(config, env, spaces)
    if isinstance(given, MultiRLModuleSpec):
        multi = copy_value(given)
        # Modules of the spec that are no policies are shared parts, such as an encoder.
        own_specs = dict.fromkeys(policies) | (multi.rl_module_specs or {})
    else:
        multi = MultiRLModuleSpec()
        own_specs = {policy_id: copy_value(given) for policy_id in policies}
    modules = {}
    for module_id, own in own_specs.items():
        if inference_only and own is not None and own.learner_only:
            continue
        spec = _complete_spec(config, module_id, own, policies.get(module_id, PolicySpec()), env, spaces)
        spec.inference_only = spec.inference_only or inference_only
        modules[module_id] = spec
    multi.rl_module_specs = modules
    multi.inference_only = inference_only if multi.inference_only is None else multi.inference_only
    return multi


def _complete_spec(
    config: AlgorithmConfig, module_id: str, own: RLModuleSpec | None, policy: PolicySpec, env: Any, spaces: Any
) -> RLModuleSpec:
    """A module's spec with all missing values filled in."""
    spec = with_default_class(config, own or RLModuleSpec()) if own is None or own.module_class is None else own
    spec.observation_space, spec.action_space = _module_spaces(
        config,
        module_id,
        spec.observation_space or policy.observation_space,
        spec.action_space or policy.action_space,
        env,
        spaces,
    )
    spec.model_config = settings_of_module(config, module_id, spec)
    return spec


def with_default_class(config: AlgorithmConfig, spec: RLModuleSpec) -> RLModuleSpec:
    """Completes a module spec that names no module class: copies the algorithm's default spec and overrides it with the
    values of the given spec.
    """
    default = config.get_default_rl_module_spec()
    if not isinstance(default, RLModuleSpec):
        raise ValueError(
            f"{spec}: module_class is missing, and {type(config).__name__}.get_default_rl_module_spec() returned a "
            f"{type(default).__name__}, not an RLModuleSpec. Set RLModuleSpec(module_class=...)."
        )
    default.update(spec)
    return default


# ------------------------------------------------------------------------------------------------------- pipelines


def build_env_to_module_connector(
    config: AlgorithmConfig,
    env: Any,
    spaces: SpacesById | None,
    device: Any,
    *,
    module_id: str | None,
    agents: Collection[Any] | None,
    known_agents: Collection[Any],
) -> EnvToModulePipeline:
    """Builds the env-to-module pipeline: the user's connectors, then the default ones."""
    observation_space, action_space = _env_spaces(config, env, spaces)
    if observation_space is None:
        observation_space, action_space = _spaces_of_policy(config, spaces) or (None, action_space)
    if observation_space is None:
        raise ValueError(
            "The observation space for the env-to-module pipeline is unknown. Set environment(observation_space=...), "
            "or pass env= or spaces={'__env_single__': (observation_space, action_space)} to the called method of the "
            "config, such as build_env_to_module_connector()."
        )
    own = config.user_connectors(EnvToModulePipeline.setting, (env, spaces, device))
    acting_for = (agents or ()) if config.is_multi_agent else None
    mask_key = config.action_mask_key_of(module_id, observation_space, action_space)
    pipeline = EnvToModulePipeline(
        observation_space,
        action_space,
        connectors=connectors_for_agents(own, acting_for, known_agents),
        action_mask_key=mask_key,
    )
    pipeline.of_setting = own
    if config._env_to_module_connector is not None and isinstance(observation_space, gym.Space):
        where = f"the observation_space after the env-to-module connectors {pipeline.names}"
        check_space(pipeline.observation_space, where)
    if config.add_default_connectors_to_env_to_module_pipeline:
        defaults = config._default_env_to_module_connectors(pipeline.observation_space, module_id)
        for connector in [*(marker() for marker in markers.ENV_TO_MODULE), *defaults]:
            pipeline.append(connector)
    if config.normalize_observations:
        pipeline.append(RecordedMeanStdFilter())
    if mask_key is not None:
        check_mask_is_kept(pipeline, mask_key)
    if config._env_to_module_connector is not None:
        check_connectors(pipeline)
        is_pure = not pipeline.host_connectors and not pipeline.is_host_connector
        if is_pure and isinstance(observation_space, gym.Space):
            settings = {setting.name: jax.ShapeDtypeStruct((), np.float32) for setting in config._traced_settings()}
            fixed = {name: config.static_value(name) for name in config._static_settings}
            check_env_to_module(pipeline, {next(iter(config._policy_ids())): settings | fixed})
    return pipeline


def build_module_to_env_connector(config: AlgorithmConfig, env: Any, spaces: SpacesById | None) -> ModuleToEnvPipeline:
    """Builds the module-to-env pipeline: the default connectors, with the user's connectors inserted before the last
    one.
    """
    observation_space, action_space = _env_spaces(config, env, spaces)
    add_defaults = config.add_default_connectors_to_module_to_env_pipeline
    defaults = config._default_module_to_env_connectors() if add_defaults else []
    chosen = markers.AFTER_ACTIONS_ARE_CHOSEN if add_defaults else ()
    own = config.user_connectors(ModuleToEnvPipeline.setting, (env, spaces))
    pipeline = ModuleToEnvPipeline(
        input_observation_space=observation_space,
        input_action_space=action_space,
        connectors=[
            *defaults[:-1],
            *(marker() for marker in chosen),
            *own,
            *defaults[-1:],
            *([markers.ListifyDataForVectorEnv()] if add_defaults else []),
        ],
    )
    pipeline.of_setting = own
    check_connectors(pipeline)
    for name, connector in pipeline._flat_members():
        if isinstance(connector, ActionNoise):
            config._check_action_noise(name, connector)
    return pipeline


def build_learner_connector(
    config: AlgorithmConfig, input_observation_space: gym.Space | None, input_action_space: gym.Space | None
) -> LearnerConnectorPipeline:
    """Builds the learner pipeline: the user's learner connectors, then the algorithm's default connectors. If
    `add_default_connectors_to_learner_pipeline` is False, leaves the default connectors out.
    """
    defaults: list[ConnectorV2] = []
    if config.add_default_connectors_to_learner_pipeline:
        defaults = [*(marker() for marker in markers.LEARNER), *config._default_learner_connectors()]
    own = config.user_connectors(LearnerConnectorPipeline.setting, (input_observation_space, input_action_space))
    pipeline = LearnerConnectorPipeline(
        input_observation_space=input_observation_space,
        input_action_space=input_action_space,
        connectors=[*own, *defaults],
        action_mask_key=ACTION_MASK if any_module_honours_masks(config, config._given_specs()) else None,
    )
    pipeline.of_setting = own
    check_connectors(pipeline)
    _check_sampled_steps(config, [name for name, own in pipeline._flat_members() if own.needs_sampled_steps])
    return pipeline


def _check_sampled_steps(config: AlgorithmConfig, names: list[str]) -> None:
    """Raises a ValueError if learner connectors that need every step once, in sampled order, cannot work.

    Such connectors cannot work if the algorithm learns from replay, or if `clip_rewards` changes the rewards before
    these connectors run. `names` contains the names of these connectors. If `names` is empty, raises nothing.
    """
    algo_class = config.algo_class if names else None
    if algo_class is not None and algo_class.training_step_class.uses_replay:
        raise ValueError(
            f"Learner connector(s) {names} need every step once, in the sampled order, but {algo_class.__name__} "
            f"learns from random steps of a replay buffer. Use ScaleRewards(factor=...) to multiply rewards by a "
            f"constant, or train with PPO."
        )
    if names and config.clip_rewards:
        raise ValueError(
            f"environment(clip_rewards={config.clip_rewards!r}) clips rewards, but learner connector(s) {names} need "
            f"unclipped rewards. Set clip_rewards=None, and clip the output with the connector's clip_by_value."
        )


def user_connectors(config: AlgorithmConfig, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
    """Calls the user's connector function and returns its connectors as a list."""
    setting = config._declarations.by_name[name]
    function = vars(config)[setting.attribute]
    if function is None:
        return []
    call = config._declarations.call(setting)
    count = num_positional_arguments(function, arguments, call)
    made = call_users(function, call, *arguments[:count])
    connectors = list(made) if isinstance(made, (list, tuple)) else [made]
    for connector in connectors:
        if not isinstance(connector, ConnectorV2):
            raise ValueError(
                f"{call}: the function returned {short(connector)}. It must return a ConnectorV2 or a list of them."
            )
    return connectors


def for_checkpoints(config: _Config, pipelines: Iterable[ConnectorPipelineV2]) -> _Config:
    """Returns the config to store in a checkpoint, with connectors in place of the functions that created them.

    A user's function is replaced only if two conditions hold: the function cannot be imported by name, and its
    connectors contain no arrays. Returns a copy, or `config` itself if no function is replaced.
    """
    stored: dict[str, StoredConnectors] = {}
    for pipeline in pipelines:
        attribute = config._declarations.by_name[pipeline.setting].attribute
        function, returned = Encoder(leave_out=True), Encoder(leave_out=True)
        function.encode(vars(config)[attribute], pipeline.setting)
        if not function.left_out:
            continue
        connectors = StoredConnectors(pipeline.of_setting)
        returned.encode(connectors)
        # Arguments are JSON; an array among them is told of as the function is.
        if not returned.arrays:
            stored[attribute] = connectors
    if not stored:
        return config
    copy = config.copy()
    vars(copy).update(stored)
    return copy


# -------------------------------------------------------------------------------------------------------- building


def build_algo(config: AlgorithmConfig, env: Any, use_copy: bool) -> Algorithm:
    """Builds the algorithm from a validated copy of the config; with ``use_copy=False`` from the config itself."""
    algo_class = config.algo_class
    if algo_class is None:
        raise ValueError(
            f"{type(config).__name__}() has no algorithm to build. Use an algorithm's config, such as PPOConfig(), or "
            f"pass {type(config).__name__}(algo_class=...)."
        )
    own = config.copy() if use_copy else config
    if env is not None:
        own.environment(env)
    with creators_called_once():
        own.validate()
        return algo_class(config=own)


def build_learner(config: AlgorithmConfig, *, env: Any, spaces: SpacesById | None) -> Learner:
    """Creates a Learner and calls its method `build`."""
    learner = config.learner_class(config=config, module_spec=config.get_multi_rl_module_spec(env=env, spaces=spaces))
    learner.build()
    return learner


def build_learner_group(
    config: AlgorithmConfig,
    *,
    env: Any,
    spaces: SpacesById | None,
    rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None,
    placement_group: Any,
) -> LearnerGroup:
    """Builds a LearnerGroup from a copy of the config."""
    own = config.copy()
    spec = rl_module_spec or config.get_multi_rl_module_spec(env=env, spaces=spaces)
    return LearnerGroup(config=own, module_spec=spec, placement_group=placement_group)


def build_population(
    config: AlgorithmConfig,
    seeds: int | Iterable[int] | None,
    *,
    num_samples: int,
    members: Sequence[Any] | None,
    on_divergence: Literal["freeze", "raise"],
    members_at_once: int | None,
) -> Population:
    """Builds a population (several runs in one compiled program) from listed members or from search spaces.

    `members` lists each member's seed and settings. Without `members`, the population has one member for each pair of a
    seed and a combination of values from the config's search spaces.
    """
    from jaxrl_stack.algorithms.members import listed_members  # which needs what trains
    from jaxrl_stack.algorithms.population import Population

    if members is None:
        config, members = listed_members(config, seeds, num_samples)
    elif seeds is not None or num_samples != 1:
        raise ValueError(
            "build_population(members=...) already contains the seeds and settings. Leave seeds and num_samples out."
        )
    return Population(config, members, on_divergence=on_divergence, members_at_once=members_at_once)


def _is_trained(policies_to_train: Any, module_id: str, batch: Any = None) -> bool:
    if policies_to_train is None:
        return True
    return bool(policies_to_train(module_id, batch)) if callable(policies_to_train) else module_id in policies_to_train
