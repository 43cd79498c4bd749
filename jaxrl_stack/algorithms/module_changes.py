"""Adds and removes modules of an Algorithm during training: checks the change, and creates the changed config.

State is data: programs are built again for the changed modules, and continue with the whole state. Learners change
first, because their optimizers and schedules are stored by module. Other state names its module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import operator
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
    """Checked change of an algorithm's modules or its policy mapping, not yet applied.

    Attributes:
        config: Frozen config of the algorithm after the change.
        change_learners: Changes the modules of a LearnerGroup; returns the spec of all modules.
    """

    config: AlgorithmConfig
    change_learners: Callable[[LearnerGroup], MultiRLModuleSpec]


def check_is_everywhere(called: str, everywhere: Mapping[str, bool]) -> None:
    """Raises a ValueError if an argument of `add_module` or `remove_module`, such as ``add_to_learners``, is False:
    learners and EnvRunners must have the same modules.

    Args:
        called: Name of the called method.
        everywhere: ``{argument: value}``.
    """
    left_out = [name for name, is_there in everywhere.items() if not is_there]
    if left_out:
        raise ValueError(
            f"{called}({left_out[0]}=False): learners and EnvRunners must have the same modules. Leave {left_out[0]} "
            f"out. new_should_module_be_updated= chooses the modules that learn, and new_agent_to_module_mapping_fn= "
            f"the modules that act."
        )


def changed_modules(
    driver: Driver,
    config: AlgorithmConfig,
    called: str,
    *,
    added: Mapping[str, RLModuleSpec] | None = None,
    removed: Collection[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    mapping: Callable[..., str] | None = None,
    should_update: Any = None,
) -> ModuleChange:
    """Checks a change of the modules, of the policy mapping, or of the trained policies.

    Returns a `ModuleChange` with the changed config; the algorithm does not change yet.

    Args:
        driver: Driver of the algorithm.
        config: Config of the algorithm.
        called: Call that makes the change, for messages.
        added: Specs of new modules, by id.
        removed: Ids of modules to remove.
        overrides: Settings of new modules, by id.
        mapping: New ``policy_mapping_fn``; None keeps it.
        should_update: New ``policies_to_train``; None keeps it, without removed modules.

    Raises:
        RuntimeError: If the only policy is "default_policy", or training or an evaluation is running.
        NotImplementedError: If the driver cannot change its modules.
        ValueError: If a new id exists or is invalid, a removed module does not exist, is the only one or is still used
            by an agent, or an argument does not fit.
    """
    added, overrides, present = added or {}, overrides or {}, list(driver.module_ids)
    _check_may_change(driver, called)
    for module_id, spec in added.items():
        if module_id in present:
            raise ValueError(
                f"{called}: this module exists already; the modules are {present}. Call remove_module({module_id!r}) "
                f"first, or set_weights({{{module_id!r}: ...}}) to change its weights."
            )
        if not isinstance(spec, RLModuleSpec):
            raise ValueError(
                f"add_module(module_spec={short(spec)}): must be an RLModuleSpec, such as "
                f"RLModuleSpec.from_module(algorithm.get_module({present[0]!r}))."
            )
    if not set(removed) < {*present, *added}:
        what = (
            "the only module. Add another module first: add_module(...)"
            if set(removed) <= set(present)
            else f"an unknown module. Name one of {present}"
        )
        raise ValueError(f"{called}: this is {what}.")
    # What modules are loaded from is in their state from then on.
    specs = {mid: dataclasses.replace(copy_value(spec), load_state_path=None) for mid, spec in added.items()}
    specs = {mid: _with_known_spaces(spec, driver.module_spaces) for mid, spec in specs.items()}
    other = _config_with(config, driver.module_spaces, specs, removed, overrides, keeps_mapping=mapping is None)
    trained = other.policies_to_train
    if should_update is None and trained is not None and not callable(trained) and not set(removed).isdisjoint(trained):
        should_update = [mid for mid in trained if mid not in removed]
    if mapping is not None:
        other.multi_agent(policy_mapping_fn=mapping)
    if should_update is not None:
        other.multi_agent(policies_to_train=should_update)
    other.validate()
    other.freeze()
    check_mapping(driver, other)
    # With everything that the config fills in, and the checkpoints to load.
    new: dict[str, Any] = {mid: (spec.observation_space, spec.action_space) for mid, spec in specs.items()}
    complete = other.get_multi_rl_module_spec(spaces=driver.spaces | new) if added else {}
    for module_id, spec in added.items():
        complete[module_id].load_state_path = spec.load_state_path
    change = operator.methodcaller(
        "change_modules",
        added={module_id: complete[module_id] for module_id in added},
        removed=tuple(removed),
        config_overrides={module_id: dict(own) for module_id, own in overrides.items()},
        new_should_module_be_updated=should_update,
    )
    return ModuleChange(other, change)


def _check_may_change(driver: Driver, called: str) -> None:
    """Raises if the modules of an algorithm cannot be changed at present.

    The modules cannot be changed if the config has no named policies, if an iteration or evaluation is running, or if
    learner actors step JAX environments. For the errors, see `changed_modules`.
    """
    if not driver.config.is_multi_agent:
        raise RuntimeError(
            f"{called} needs named policies, and this config has only {DEFAULT_MODULE_ID!r}. Name at "
            f"least one: multi_agent(policies={{'main'}}, policy_mapping_fn=...)."
        )
    driver.at_work.check_is_idle(called)
    if not driver.can_change_modules:
        raise NotImplementedError(
            f"{called} is not supported for learner actors that step JAX environments. Set "
            f"learners(num_learners=0) to train on all devices of this process."
        )


def _config_with(
    config: AlgorithmConfig,
    spaces: Mapping[str, tuple[gym.Space, gym.Space]],
    added: Mapping[str, RLModuleSpec],
    removed: Collection[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    keeps_mapping: bool = True,
) -> AlgorithmConfig:
    """Returns an unfrozen copy of a config with new policies and without removed ones.

    Args:
        config: The config.
        spaces: Spaces of the acting policies, by id.
        added: Specs of new policies, by id.
        removed: Ids of policies to remove.
        overrides: Settings of new policies, by id.
        keeps_mapping: Whether the agents keep their policies. If False, or if policies change, the copy contains the
            spaces of all policies, because a policy without agents cannot derive its spaces.
    """
    other = config.copy(copy_frozen=False)
    keeps_policies = not added and not removed
    if keeps_policies and keeps_mapping:
        return other
    if not keeps_policies:
        policies = other.policies
        names = [*(policy_id for policy_id in policies if policy_id not in removed), *added]
        own = {name: policies.get(name) for name in names} if isinstance(policies, Mapping) else names
        other.multi_agent(policies=own)
    other.rl_module(rl_module_spec=_specs_with(other, spaces, added, removed))
    before = other.algorithm_config_overrides_per_module
    after = {mid: own for mid, own in before.items() if mid not in removed}
    after |= {mid: dict(own) for mid, own in (overrides or {}).items()}
    if after != before:
        other.rl_module(algorithm_config_overrides_per_module=after)
    return other


@contextlib.contextmanager
def stored_modules_added(algorithm: Algorithm, path: Any, component: str | None, filesystem: Any) -> Iterator[None]:
    """Context manager for restoring a checkpoint: first adds to an algorithm the policies that only the checkpoint has.

    If the ``with`` block raises an error, removes the added policies again.

    Args:
        algorithm: Algorithm that gets the policies.
        path, component, filesystem: See `Checkpointable.restore_from_path`.
    """
    added: list[str] = []
    if component is None and algorithm.config.is_multi_agent:
        with opened(path, filesystem) as stored:
            added = _add_stored_modules(algorithm, stored)
    try:
        yield
    except BaseException:
        if added:
            algorithm._change_modules("restore_from_path()", removed=added)
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
            f"The checkpoint at {stored.path} has only the modules {list(modules.parts)}, but this run also has "
            f"{missing}. Call algo.remove_module({missing[0]!r}, new_agent_to_module_mapping_fn=...) first."
        )
    written_here = stored.code_written_here()
    loader = ClassLoader(own=type(algorithm), named=code_named_by(algorithm.config), written_here=written_here)
    state_of = lambda module_id: read_state(modules.part(module_id), is_weights=True)  # noqa: E731
    specs, overrides = _stored_modules(stored, modules, loader, present, state_of)
    if specs:
        algorithm._change_modules(f"restore_from_path({str(stored.path)!r})", added=specs, overrides=overrides)
        notice_once(
            f"restore_from_path({str(stored.path)!r}) has added the stored run's modules {list(specs)}. "
            "multi_agent(policy_mapping_fn=...) and policies_to_train are still this run's."
        )
    return list(specs)


def _stored_modules(
    stored: Stored,
    modules: Stored,
    loader: ClassLoader,
    present: Collection[str],
    state_of: Callable[[str], Mapping[str, Any]],
) -> tuple[dict[str, RLModuleSpec], dict[str, Any]]:
    """Reads from a checkpoint the policies whose ids are not in `present`.

    Returns two dicts by policy id: the policies' module specs, and the settings that override the algorithm's settings
    for a policy.

    Args:
        stored: Checkpoint of an algorithm.
        modules: Its modules.
        loader: Imports the modules' classes.
        present: Ids to leave out.
        state_of: Returns the state of a module.
    """
    if set(modules.parts) <= set(present):
        return {}, {}
    names = ("policies", "algorithm_config_overrides_per_module")
    policies, overrides = (own or {} for own in stored_settings(stored, loader, names))
    # Others are parts that learners alone have.
    added = [module_id for module_id in modules.parts if module_id in policies and module_id not in present]
    specs = {module_id: stored_module_spec(modules.part(module_id), loader, state_of(module_id)) for module_id in added}
    return specs, {module_id: overrides[module_id] for module_id in added if module_id in overrides}


def with_stored_modules(
    config: AlgorithmConfig, stored: Stored, modules: Stored, loader: ClassLoader, states: Mapping[str, Any]
) -> AlgorithmConfig:
    """Returns a config for continuing a stored run: `config`, and the policies that only the stored run has.

    All other settings of `config` stay unchanged, including `policy_mapping_fn` and `policies_to_train`.

    Args:
        config: Config for the checkpoint of an algorithm.
        stored: The checkpoint.
        modules: Its modules.
        loader: Imports the modules' classes.
        states: States of the modules, by id.

    Returns:
        The new config, or `config` itself if it has all policies of the stored run.
    """
    if not config.is_multi_agent:
        return config
    specs, overrides = _stored_modules(stored, modules, loader, config.policies, states.__getitem__)
    if not specs:
        return config
    return _config_with(config, {}, specs, (), overrides | config.algorithm_config_overrides_per_module)


def match_modules(
    group: LearnerGroup, present: Collection[str], modules: Stored, loader: ClassLoader, states: Mapping[str, Any]
) -> None:
    """Adds and removes modules of the learners, so that the learners have the same modules as a checkpoint.

    Learners and checkpoint have different modules if the stored run has added or removed modules.

    Args:
        group: Learners of a new algorithm.
        present: Ids of the learners' modules.
        modules: Stored modules.
        loader: Imports the modules' classes.
        states: States of the stored modules, by id.
    """
    missing = [module_id for module_id in modules.parts if module_id not in present]
    added = {mid: stored_module_spec(modules.part(mid), loader, states[mid]) for mid in missing}
    removed = [module_id for module_id in present if module_id not in modules.parts]
    if added or removed:
        group.change_modules(added=added, removed=removed)


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
    """Sets missing spaces in a new module's spec to the spaces that all policies with agents have in common.

    The spaces are the observation space and the action space. Raises a ValueError if a missing space cannot be
    determined, because these policies have different spaces or no policy has agents.
    """
    for i, name in enumerate(("observation_space", "action_space")):
        own = [pair[i] for pair in spaces.values()]
        if getattr(spec, name) is None:
            if not own or any(difference(one, own[0]) is not None for one in own):
                reason = f"the policies have different {name}s: {own}" if own else "no policy has agents"
                raise ValueError(
                    f"add_module(module_spec=RLModuleSpec({name}=None)): {name} is required, because {reason}. Set "
                    f"{name}, or use RLModuleSpec.from_module(another module)."
                )
            setattr(spec, name, own[0])
    return spec


def _specs_with(
    config: AlgorithmConfig,
    spaces: Mapping[str, tuple[gym.Space, gym.Space]],
    added: Mapping[str, RLModuleSpec],
    removed: Collection[str],
) -> MultiRLModuleSpec:
    """Returns a MultiRLModuleSpec for a config after a change of its modules: the config's module specs and the added
    ones, without removed modules.

    Args:
        config: A config with the policies after the change.
        spaces: Spaces of the currently acting policies, because a policy that loses its agents could not derive its
            spaces.
        added: Specs to add.
        removed: Modules to leave out.
    """
    given = copy_value(config._rl_module_spec)
    policies = [policy_id for policy_id in config._policy_ids() if policy_id not in added]
    if isinstance(given, MultiRLModuleSpec):
        specs = dict.fromkeys(policies) | (given.rl_module_specs or {})
    else:
        specs, given = {policy_id: copy_value(given) for policy_id in policies}, MultiRLModuleSpec()
    complete = {}
    for module_id, own in specs.items():
        if module_id not in removed:
            # Modules that are there have their state already.
            own = dataclasses.replace(own or RLModuleSpec(), load_state_path=None)
            seen = spaces.get(module_id, (None, None))
            own.observation_space, own.action_space = own.observation_space or seen[0], own.action_space or seen[1]
            complete[module_id] = own
    return dataclasses.replace(given, rl_module_specs={**complete, **added}, load_state_path=None, modules_to_load=None)
