"""Adds and removes modules of an Algorithm during training: checks the change, and creates the changed config.

State is data: programs are built again for the changed modules, and continue with the whole state. Learners change
first, because their optimizers and schedules are stored by module. Other state names its module.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxrl_stack.algorithms.setting_values import copy_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.algorithms.stored_run import stored_module_spec, stored_settings
from jaxrl_stack.checkpoints.checkpointable import opened, read_state
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.core import COMPONENT_LEARNER, COMPONENT_LEARNER_GROUP, COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.execution.state_migration import check_mapping
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.resources import start_ray_if_needed
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.learner.learner_group import LearnerGroup
    from jaxrl_stack.execution.driver import Driver


class ModuleChange(NamedTuple):
    """Checked addition or removal of an algorithm's module, not yet applied.

    Attributes:
        config: Frozen config of the algorithm after the change.
        change_learners: Adds or removes the module in a LearnerGroup; returns the spec of all modules.
    """

    config: AlgorithmConfig
    change_learners: Callable[[LearnerGroup], MultiRLModuleSpec]


def check_may_change(driver: Driver, called: str, module_id: str, everywhere: Mapping[str, bool]) -> None:
    """Raises if the modules cannot be changed now, or not at all in this run.

    Args:
        driver: Driver of the algorithm.
        called: Name of the called method.
        module_id: Module to add or remove.
        everywhere: Arguments that must be True.

    Raises:
        RuntimeError: If the only policy is "default_policy", or training or an evaluation is running.
        ValueError: If one of `everywhere` is False.
        NotImplementedError: If the driver cannot change its modules.
    """
    if not driver.config.is_multi_agent:
        raise RuntimeError(
            f"{called}({module_id!r}) needs named policies, and this config has only {DEFAULT_MODULE_ID!r}. Name at "
            f"least one: multi_agent(policies={{'main'}}, policy_mapping_fn=...)."
        )
    left_out = [name for name, is_there in everywhere.items() if not is_there]
    if left_out:
        raise ValueError(
            f"{called}({left_out[0]}=False): learners and EnvRunners must have the same modules. Leave it out. To "
            f"choose the modules that learn, use new_should_module_be_updated=; to choose those that act, use "
            f"new_agent_to_module_mapping_fn=."
        )
    driver.at_work.check_is_idle(f"{called}({module_id!r})")
    if not driver.can_change_modules:
        raise NotImplementedError(
            f"{called}({module_id!r}) is not supported for learner actors that step JAX environments. Set "
            f"learners(num_learners=0) to train on all devices of this process."
        )


def added_module(
    driver: Driver,
    config: AlgorithmConfig,
    module_id: str,
    module_spec: RLModuleSpec,
    *,
    config_overrides: Mapping[str, Any] | None,
    mapping: Callable[..., str] | None,
    should_update: Any,
) -> ModuleChange:
    """Checks the addition of a module, and returns it as a `ModuleChange` with the changed config; does not change the
    algorithm yet.

    Args:
        driver: Driver of the algorithm.
        config: Config of the algorithm.
        module_id, module_spec, config_overrides: See `Algorithm.add_module`.
        mapping, should_update: Its `new_agent_to_module_mapping_fn` and `new_should_module_be_updated`.

    Raises:
        ValueError: If the id exists or is invalid, or an argument does not fit.
    """
    if module_id in driver.module_ids:
        raise ValueError(
            f"add_module({module_id!r}): this module exists already; the modules are {list(driver.module_ids)}. Call "
            f"remove_module({module_id!r}) first, or set_weights({{{module_id!r}: ...}}) to change its weights."
        )
    if not isinstance(module_spec, RLModuleSpec):
        raise ValueError(f"add_module(module_spec={short(module_spec)}): must be an RLModuleSpec.")
    # What it is loaded from is in its state from then on.
    spec = dataclasses.replace(copy_value(module_spec), load_state_path=None)
    spec = _with_known_spaces(spec, driver.module_spaces)
    other = config.copy(copy_frozen=False)
    policies = other.policies
    is_mapping = isinstance(policies, Mapping)
    other.multi_agent(policies={**policies, module_id: None} if is_mapping else [*policies, module_id])
    other.rl_module(rl_module_spec=_specs_with(other, driver.module_spaces, {module_id: spec}))
    if config_overrides:
        all_overrides = {**other.algorithm_config_overrides_per_module, module_id: dict(config_overrides)}
        other.rl_module(algorithm_config_overrides_per_module=all_overrides)
    _complete(other, driver, mapping, should_update)
    # With everything that the config fills in, and the checkpoint to load.
    spaces = {**driver.spaces, module_id: (spec.observation_space, spec.action_space)}
    complete = other.get_multi_rl_module_spec(spaces=spaces)[module_id]
    complete.load_state_path = module_spec.load_state_path
    return ModuleChange(
        other,
        lambda group: group.add_module(
            module_id=module_id,
            module_spec=complete,
            config_overrides=dict(config_overrides) if config_overrides else None,
            new_should_module_be_updated=should_update,
        ),
    )


def removed_module(
    driver: Driver, config: AlgorithmConfig, module_id: str, *, mapping: Callable[..., str] | None, should_update: Any
) -> ModuleChange:
    """Checks the removal of a module, and returns it as a `ModuleChange` with the changed config; does not change the
    algorithm yet.

    Args:
        driver: Driver of the algorithm.
        config: Config of the algorithm.
        module_id: See `Algorithm.remove_module`.
        mapping, should_update: Its `new_agent_to_module_mapping_fn` and `new_should_module_be_updated`.

    Raises:
        ValueError: If the module does not exist, is the only one, or an agent still has it.
    """
    left = [mid for mid in driver.module_ids if mid != module_id]
    if module_id not in driver.module_ids or not left:
        what = "the only module" if not left else "an unknown module"
        raise ValueError(
            f"remove_module({module_id!r}): this is {what}; the modules are {list(driver.module_ids)}. Name one of "
            f"these; to replace the only one, call add_module() first."
        )
    other = config.copy(copy_frozen=False)
    policies = other.policies
    names = [policy_id for policy_id in policies if policy_id != module_id]
    other.multi_agent(policies={n: policies[n] for n in names} if isinstance(policies, Mapping) else names)
    other.rl_module(rl_module_spec=_specs_with(other, driver.module_spaces, {}, module_id))
    overrides = other.algorithm_config_overrides_per_module
    if module_id in overrides:
        kept = {mid: own for mid, own in overrides.items() if mid != module_id}
        other.rl_module(algorithm_config_overrides_per_module=kept)
    trained = other.policies_to_train
    if should_update is None and trained is not None and not callable(trained) and module_id in trained:
        should_update = [mid for mid in trained if mid != module_id]
    _complete(other, driver, mapping, should_update)
    return ModuleChange(other, lambda group: group.remove_module(module_id, new_should_module_be_updated=should_update))


def _complete(config: AlgorithmConfig, driver: Driver, mapping: Callable[..., str] | None, should_update: Any) -> None:
    """Completes a config whose modules have changed: sets its policy mapping and trained policies, checks it and
    freezes it.
    """
    if mapping is not None:
        config.multi_agent(policy_mapping_fn=mapping)
    if should_update is not None:
        config.multi_agent(policies_to_train=should_update)
    config.validate()
    config.freeze()
    check_mapping(driver, config)


@contextlib.contextmanager
def stored_modules_added(algorithm: Algorithm, path: Any, component: str | None, filesystem: Any) -> Iterator[None]:
    """Context manager that adds to an algorithm the policies that a checkpoint has and the algorithm lacks. If the
    ``with`` block raises an error, it removes these policies again.

    Args:
        algorithm: Algorithm that gets the policies.
        path, component, filesystem: See `Checkpointable.restore_from_path`.
    """
    added: list[str] = []
    try:
        if component is None and algorithm.config.is_multi_agent:
            with opened(path, filesystem) as stored:
                added = _add_stored_modules(algorithm, stored)
        yield
    except BaseException:
        for module_id in added:
            algorithm.remove_module(module_id)
        raise


def _add_stored_modules(algorithm: Algorithm, stored: Stored) -> list[str]:
    """Adds to an algorithm the policies that a checkpoint has and the algorithm lacks.

    Args:
        algorithm: Algorithm of this run.
        stored: The checkpoint.

    Returns:
        Ids of the added policies. Settings that `add_module` got for them are restored; this run's config maps
        agents to them.

    Raises:
        ValueError: If this run has a module that the stored run lacks.
    """
    modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
    present = algorithm.driver.module_ids
    if missing := [module_id for module_id in present if module_id not in modules.parts]:
        raise ValueError(
            f"The checkpoint at {stored.path} has the modules {list(modules.parts)}, and this run also has {missing}. "
            f"Call algo.remove_module({missing[0]!r}, new_agent_to_module_mapping_fn=...) first."
        )
    added = [module_id for module_id in modules.parts if module_id not in present]
    if not added:
        return []
    written_here = stored.code_written_here()
    loader = ClassLoader(own=type(algorithm), named=code_named_by(algorithm.config), written_here=written_here)
    names = ("policies", "algorithm_config_overrides_per_module")
    policies, overrides = (own or {} for own in stored_settings(stored, loader, names))
    # Others are parts that learners alone have.
    added = [module_id for module_id in added if module_id in policies]
    for module_id in added:
        part = modules.part(module_id)
        spec = stored_module_spec(part, loader, read_state(part, is_weights=True))
        algorithm.add_module(module_id, spec, config_overrides=overrides.get(module_id))
    if added:
        notice_once(
            f"restore_from_path({str(stored.path)!r}) has added the stored run's modules {added}. "
            "multi_agent(policy_mapping_fn=...) and policies_to_train are still this run's."
        )
    return added


def with_stored_modules(
    config: AlgorithmConfig, stored: Stored, modules: Stored, loader: ClassLoader, states: Mapping[str, Any]
) -> AlgorithmConfig:
    """Returns a config for continuing a stored run: `config`, and the policies that only the stored run has. Other
    settings of `config` do not change, `policy_mapping_fn` and `policies_to_train` included.

    Args:
        config: Config for the checkpoint of an algorithm.
        stored: The checkpoint.
        modules: Its modules.
        loader: Imports the modules' classes.
        states: States of the modules, by id.

    Returns:
        The config itself, if it has all policies.
    """
    if not config.is_multi_agent or set(modules.parts) <= set(config.policies):
        return config
    names = ("policies", "algorithm_config_overrides_per_module")
    policies, overrides = (own or {} for own in stored_settings(stored, loader, names))
    # Others are parts that learners alone have.
    added = [module_id for module_id in modules.parts if module_id in policies and module_id not in config.policies]
    if not added:
        return config
    other = config.copy(copy_frozen=False)
    own = other.policies
    other.multi_agent(policies={**own, **dict.fromkeys(added)} if isinstance(own, Mapping) else [*own, *added])
    specs = {mid: stored_module_spec(modules.part(mid), loader, states[mid]) for mid in added}
    other.rl_module(rl_module_spec=_specs_with(other, {}, specs))
    new = {mid: overrides[mid] for mid in added if mid in overrides}
    if new:
        known = other.algorithm_config_overrides_per_module
        other.rl_module(algorithm_config_overrides_per_module={**new, **known})
    return other


def match_modules(
    group: LearnerGroup, present: Collection[str], modules: Stored, loader: ClassLoader, states: Mapping[str, Any]
) -> None:
    """Adds and removes modules of the learners to match a checkpoint, whose run may have changed its modules.

    Args:
        group: Learners of a new algorithm.
        present: Ids of their modules.
        modules: Stored modules.
        loader: Imports the modules' classes.
        states: States of the stored modules, by id.
    """
    for module_id in modules.parts:
        if module_id not in present:
            spec = stored_module_spec(modules.part(module_id), loader, states[module_id])
            group.add_module(module_id=module_id, module_spec=spec)
    for module_id in set(present) - set(modules.parts):
        group.remove_module(module_id)


@contextlib.contextmanager
def ray_kept(driver: Driver) -> Iterator[None]:
    """Context manager that keeps Ray running while an algorithm stops its actors and starts new ones."""
    lease = start_ray_if_needed(driver.config) if driver.placement.groups else None
    try:
        yield
    finally:
        if lease is not None:
            lease.release()


def _with_known_spaces(spec: RLModuleSpec, spaces: Mapping[str, tuple[gym.Space, gym.Space]]) -> RLModuleSpec:
    """Fills missing spaces of a new module's spec with the spaces of the acting policies; raises if the policies have
    different spaces.
    """
    for i, name in enumerate(("observation_space", "action_space")):
        own = [pair[i] for pair in spaces.values()]
        if getattr(spec, name) is None:
            if not own or any(difference(one, own[0]) is not None for one in own):
                raise ValueError(
                    f"add_module(module_spec=RLModuleSpec({name}=None)): {name} is required, because the policies have "
                    f"different spaces, {own}. Set it, or use RLModuleSpec.from_module(another module)."
                )
            setattr(spec, name, own[0])
    return spec


def _specs_with(
    config: AlgorithmConfig,
    spaces: Mapping[str, tuple[gym.Space, gym.Space]],
    added: Mapping[str, RLModuleSpec],
    without: str | None = None,
) -> MultiRLModuleSpec:
    """Returns a MultiRLModuleSpec for a config after a change of its modules: the config's module specs and the added
    ones, without the removed module.

    Args:
        config: A config with the policies after the change.
        spaces: Spaces of the presently acting policies, because a policy that loses its agents could not derive them.
        added: Specs to add.
        without: Module to leave out.
    """
    given = copy_value(config._rl_module_spec)
    policies = [policy_id for policy_id in config._policy_ids() if policy_id not in added]
    if isinstance(given, MultiRLModuleSpec):
        specs = dict.fromkeys(policies) | (given.rl_module_specs or {})
    else:
        specs, given = {policy_id: copy_value(given) for policy_id in policies}, MultiRLModuleSpec()
    complete = {}
    for module_id, own in specs.items():
        if module_id != without:
            # Modules that are there have their state already.
            own = dataclasses.replace(own or RLModuleSpec(), load_state_path=None)
            seen = spaces.get(module_id, (None, None))
            own.observation_space, own.action_space = own.observation_space or seen[0], own.action_space or seen[1]
            complete[module_id] = own
    return dataclasses.replace(given, rl_module_specs={**complete, **added}, load_state_path=None, modules_to_load=None)
