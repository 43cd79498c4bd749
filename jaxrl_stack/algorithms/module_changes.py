"""Modules that come and go while an Algorithm trains.

State is data: what a driver has compiled is built anew for the other modules, and goes on with all of the state. The
learners change first, where optimizers and schedules are by module; what is left of the state says of itself which
module it is of.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.offline_evaluated import OfflineEvaluated
from jaxrl_stack.algorithms.setting_values import copy_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.algorithms.stored_run import stored_module_spec, stored_settings
from jaxrl_stack.checkpoints.checkpointable import opened, read_state
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.core import (
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_REPLAY_BUFFER,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.created_envs import close_unused
from jaxrl_stack.execution.make_driver import make_driver
from jaxrl_stack.execution.other_modules import check_mapping, state_for_modules
from jaxrl_stack.execution.training_step import TrainingStep
from jaxrl_stack.utils.class_paths import ClassLoader
from jaxrl_stack.utils.notices import notice_once
from jaxrl_stack.utils.resources import start_ray_if_needed
from jaxrl_stack.utils.spaces import difference

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.execution.driver import Driver


class ModuleChanges(OfflineEvaluated):
    """The part of an Algorithm that builds its driver, and builds it anew for other modules."""

    training_step_class: type[TrainingStep]
    _reported_config: dict[str, Any]

    @classmethod
    def overrides_training_step(cls) -> bool:
        """Whether a subclass has a `training_step` of its own."""
        raise NotImplementedError

    def _make_driver(self, config: AlgorithmConfig) -> Driver:
        """A driver for a config, ready to train and to evaluate."""
        resolved = None
        if config.env is not None or self.training_step_class.needs_env:
            resolved = config._resolve_env()
            for hint in filter(None, (resolved.hint, *config.sampling_hints())):
                notice_once(hint)
        if config.num_sampling_actors and not config.create_env_on_local_worker:
            close_unused()
        with self._eager_if_asked():
            step = self.training_step_class.for_config(config)(config, one_per_call=self.overrides_training_step())
            return make_driver(resolved, self, config, step, self.callbacks)  # type: ignore[arg-type]

    def add_module(
        self,
        module_id: str,
        module_spec: RLModuleSpec,
        *,
        config_overrides: Mapping[str, Any] | None = None,
        new_agent_to_module_mapping_fn: Callable[..., str] | None = None,
        new_should_module_be_updated: Any = None,
        add_to_learners: bool = True,
        add_to_env_runners: bool = True,
        add_to_eval_env_runners: bool = True,
    ) -> MultiRLModuleSpec:
        """Add a policy to those that act and learn, between two iterations.

        All other modules keep their weights, optimizer states, statistics of connectors and random numbers bit for bit;
        counters and metrics go on. Programs are compiled once more, by the next `train`. Where the agents' policies
        change, and on the host in any case, the running episodes are given up, and new ones begin. Learners and
        EnvRunners are new objects then: ask the algorithm for them anew.

        Args:
            module_id: Its id, which no other module has.
            module_spec: What it is; ``RLModuleSpec.from_module(algorithm.get_module("main"))`` is one like another
                module. What it leaves open the config fills in, and spaces the other policies, if all have the same.
                ``load_state_path=`` is a checkpoint to take its weights from; `set_weights` gives it those of another
                module: ``algorithm.set_weights({module_id: algorithm.get_weights()["main"]})``.
            config_overrides: Settings of its own; see ``rl_module(algorithm_config_overrides_per_module=...)``.
            new_agent_to_module_mapping_fn: In place of ``multi_agent(policy_mapping_fn=...)``; None leaves that.
            new_should_module_be_updated: In place of ``multi_agent(policies_to_train=...)``; None leaves that.
            add_to_learners, add_to_env_runners, add_to_eval_env_runners: Must be True: modules are the same everywhere.

        Returns:
            The spec of all modules.

        Raises:
            RuntimeError: If there is one policy, "default_policy", or training or an evaluation runs at the moment.
            ValueError: If the id is taken or cannot be one, or something does not fit; nothing has changed then.
        """
        everywhere = {
            "add_to_learners": add_to_learners,
            "add_to_env_runners": add_to_env_runners,
            "add_to_eval_env_runners": add_to_eval_env_runners,
        }
        self._check_may_change("add_module", module_id, everywhere)
        self._check_added(module_id, module_spec)
        # What it is loaded from is in its state from then on.
        spec = dataclasses.replace(copy_value(module_spec), load_state_path=None)
        spec = _with_known_spaces(spec, self.driver.module_spaces)
        config = self._config_with(module_id, spec, config_overrides)
        _set_functions(config, new_agent_to_module_mapping_fn, new_should_module_be_updated)
        self._check_changed(config)
        complete = self._complete_spec(config, module_id, spec, module_spec.load_state_path)
        return self._change_modules(
            config,
            lambda group: group.add_module(
                module_id=module_id,
                module_spec=complete,
                config_overrides=dict(config_overrides) if config_overrides else None,
                new_should_module_be_updated=new_should_module_be_updated,
            ),
        )

    def remove_module(
        self,
        module_id: str,
        *,
        new_agent_to_module_mapping_fn: Callable[..., str] | None = None,
        new_should_module_be_updated: Any = None,
        remove_from_learners: bool = True,
        remove_from_env_runners: bool = True,
        remove_from_eval_env_runners: bool = True,
    ) -> MultiRLModuleSpec:
        """Remove a policy, between two iterations. All that `add_module` says of other modules holds here, too.

        Args:
            module_id: Its id.
            new_agent_to_module_mapping_fn: In place of ``multi_agent(policy_mapping_fn=...)``, which must not name it
                any more; None leaves that.
            new_should_module_be_updated: In place of ``multi_agent(policies_to_train=...)``; None leaves that, without
                this module.
            remove_from_learners, remove_from_env_runners, remove_from_eval_env_runners: Must be True.

        Returns:
            The spec of what is left.

        Raises:
            RuntimeError: If there is one policy, "default_policy", or training or an evaluation runs at the moment.
            ValueError: If there is no such module, or no other one, or an agent still has it; nothing has changed then.
        """
        everywhere = {
            "remove_from_learners": remove_from_learners,
            "remove_from_env_runners": remove_from_env_runners,
            "remove_from_eval_env_runners": remove_from_eval_env_runners,
        }
        self._check_may_change("remove_module", module_id, everywhere)
        left = [mid for mid in self.driver.module_ids if mid != module_id]
        if module_id not in self.driver.module_ids or not left:
            what = "is the only module" if not left else "is no module"
            raise ValueError(f"remove_module({module_id!r}): it {what}; there are {list(self.driver.module_ids)}.")
        config = self.config.copy(copy_frozen=False)
        policies = config.policies
        names = [policy_id for policy_id in policies if policy_id != module_id]
        config.multi_agent(policies={n: policies[n] for n in names} if isinstance(policies, Mapping) else names)
        config.rl_module(rl_module_spec=_specs_with(config, self.driver.module_spaces, {}, module_id))
        overrides = config.algorithm_config_overrides_per_module
        if module_id in overrides:
            kept = {mid: own for mid, own in overrides.items() if mid != module_id}
            config.rl_module(algorithm_config_overrides_per_module=kept)
        trained, should_update = config.policies_to_train, new_should_module_be_updated
        if should_update is None and trained is not None and not callable(trained) and module_id in trained:
            should_update = [mid for mid in trained if mid != module_id]
        _set_functions(config, new_agent_to_module_mapping_fn, should_update)
        self._check_changed(config)
        return self._change_modules(
            config, lambda group: group.remove_module(module_id, new_should_module_be_updated=should_update)
        )

    @contextlib.contextmanager
    def _stored_modules_added(self, path: Any, component: str | None, filesystem: Any) -> Iterator[None]:
        """Adds the policies that a checkpoint has besides; removes them again if what follows fails.

        Args:
            path, component, filesystem: See `Checkpointable.restore_from_path`.
        """
        added: list[str] = []
        try:
            if component is None and self.config.is_multi_agent:
                with opened(path, filesystem) as stored:
                    added = self._add_stored_modules(stored)
            yield
        except BaseException:
            for module_id in added:
                self.remove_module(module_id)
            raise

    def _add_stored_modules(self, stored: Stored) -> list[str]:
        """Add the policies that a checkpoint of such a run has, and this one has not.

        Args:
            stored: The checkpoint.

        Returns:
            Their ids. Settings of their own, which `add_module` was given, come with them; which agents they act for
            is for this run's config.

        Raises:
            ValueError: This run has a module that the stored one has not.
        """
        modules = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER).part(COMPONENT_RL_MODULE)
        present = self.driver.module_ids
        if missing := [module_id for module_id in present if module_id not in modules.parts]:
            raise ValueError(
                f"The checkpoint at {stored.path} has the modules {list(modules.parts)}, and this run has {missing}, "
                f"too. Call algo.remove_module({missing[0]!r}, new_agent_to_module_mapping_fn=...) first."
            )
        added = [module_id for module_id in modules.parts if module_id not in present]
        if not added:
            return []
        written_here = stored.code_written_here()
        loader = ClassLoader(own=type(self), named=code_named_by(self.config), written_here=written_here)
        names = ("policies", "algorithm_config_overrides_per_module")
        policies, overrides = (own or {} for own in stored_settings(stored, loader, names))
        # Others are parts that learners alone have.
        added = [module_id for module_id in added if module_id in policies]
        for module_id in added:
            part = modules.part(module_id)
            spec = stored_module_spec(part, loader, read_state(part, is_weights=True))
            self.add_module(module_id, spec, config_overrides=overrides.get(module_id))
        if added:
            notice_once(
                f"restore_from_path({str(stored.path)!r}) has added the modules {added}, which the stored run had. "
                "multi_agent(policy_mapping_fn=...) and policies_to_train stay those of this run's config."
            )
        return added

    def _config_with(self, module_id: str, spec: RLModuleSpec, overrides: Mapping[str, Any] | None) -> AlgorithmConfig:
        """A copy of the config that has one policy more."""
        config = self.config.copy(copy_frozen=False)
        policies = config.policies
        is_mapping = isinstance(policies, Mapping)
        config.multi_agent(policies={**policies, module_id: None} if is_mapping else [*policies, module_id])
        config.rl_module(rl_module_spec=_specs_with(config, self.driver.module_spaces, {module_id: spec}))
        if overrides:
            all_overrides = {**config.algorithm_config_overrides_per_module, module_id: dict(overrides)}
            config.rl_module(algorithm_config_overrides_per_module=all_overrides)
        return config

    def _check_added(self, module_id: str, spec: Any) -> None:
        """Raise a ValueError unless this can be one module more."""
        if module_id in self.driver.module_ids:
            raise ValueError(
                f"add_module({module_id!r}): there is such a module among {list(self.driver.module_ids)}. Call "
                f"remove_module({module_id!r}) first, or set_weights({{{module_id!r}: ...}}) to change its weights."
            )
        if not isinstance(spec, RLModuleSpec):
            raise ValueError(f"add_module(module_spec={short(spec)}): must be an RLModuleSpec.")

    def _complete_spec(
        self, config: AlgorithmConfig, module_id: str, spec: RLModuleSpec, load_state_path: str | None
    ) -> RLModuleSpec:
        """The spec of a new module with everything that its config fills in, and the checkpoint to load."""
        spaces = {**self.driver.spaces, module_id: (spec.observation_space, spec.action_space)}
        complete = config.get_multi_rl_module_spec(spaces=spaces)[module_id]
        complete.load_state_path = load_state_path
        return complete

    def _check_may_change(self, called: str, module_id: str, everywhere: Mapping[str, bool]) -> None:
        self._check_is_running()
        if not self.config.is_multi_agent:
            raise RuntimeError(
                f"{called}({module_id!r}) needs several policies, and there is one, {DEFAULT_MODULE_ID!r}. Name them "
                f"in multi_agent(policies=...); one is enough, if it is not called {DEFAULT_MODULE_ID!r}."
            )
        left_out = [name for name, is_there in everywhere.items() if not is_there]
        if left_out:
            raise ValueError(
                f"{called}({left_out[0]}=False): learners and EnvRunners have the same modules here. Leave it out; "
                f"new_should_module_be_updated= says which modules learn, new_agent_to_module_mapping_fn= which act."
            )
        self.driver.at_work.check_is_idle(f"{called}({module_id!r})")
        if not self.driver.can_change_modules:
            raise NotImplementedError(
                f"{called}({module_id!r}) comes later for learner actors that step JAX environments. With "
                f"learners(num_learners=0) this process trains on all of its devices."
            )

    def _check_changed(self, config: AlgorithmConfig) -> None:
        """Raise for another config before anything is changed, as far as it is known by then."""
        config.validate()
        config.freeze()
        check_mapping(self.driver, config)

    def _change_modules(self, config: AlgorithmConfig, change: Callable[[Any], MultiRLModuleSpec]) -> MultiRLModuleSpec:
        """Go on with another config, whose modules are those that `change` makes of a LearnerGroup's."""
        self._wait_for_evaluation()
        driver, before, module_map = self.driver, self.config, self.driver.module_map
        replay = {} if driver.replay_buffer is None else {COMPONENT_REPLAY_BUFFER: driver.replay_buffer.get_state()}
        state_before = driver.get_state() | replay
        spec = change(driver.learner_group)
        state = driver.get_state() | replay
        with self._keeping_ray(driver):
            self._offline_evaluation.stop()
            # Before there is another one: devices, actors and some environments have room for one alone.
            driver.stop()
            try:
                self._build_with(config, state, module_map)
            except BaseException:
                self._build_with(before, state_before, module_map)
                raise
        return spec

    def _build_with(self, config: AlgorithmConfig, state: dict[str, Any], module_map: Any) -> None:
        seconds = self.driver.device_seconds, self.driver.compile_seconds
        with contextlib.ExitStack() as on_failure:
            driver = self._make_driver(config)
            on_failure.callback(driver.stop)
            own = state_for_modules(state, module_map, driver.module_map, is_on_device=driver.is_on_device)
            driver.set_state(own)
            if COMPONENT_REPLAY_BUFFER in own:
                driver.set_replay_state(own)
            driver.device_seconds, driver.compile_seconds = seconds
            on_failure.pop_all()
        self.driver, self._config, self._served = driver, config, None
        self._reported_config = config.to_dict()
        self._start_offline_evaluation()

    @contextlib.contextmanager
    def _keeping_ray(self, driver: Driver) -> Iterator[None]:
        """A Ray that the driver has started lives on until there is another driver."""
        lease = start_ray_if_needed(self.config) if driver.placement_group is not None else None
        try:
            yield
        finally:
            if lease is not None:
                lease.release()


def _with_known_spaces(spec: RLModuleSpec, spaces: Mapping[str, tuple[gym.Space, gym.Space]]) -> RLModuleSpec:
    """A spec with the spaces of the policies that act, if all have the same and it has none."""
    for i, name in enumerate(("observation_space", "action_space")):
        own = [pair[i] for pair in spaces.values()]
        if getattr(spec, name) is None:
            if not own or any(difference(one, own[0]) is not None for one in own):
                raise ValueError(
                    f"add_module(module_spec=RLModuleSpec({name}=None)): the {name} is not known: policies have "
                    f"several, {own}. Give it, or take RLModuleSpec.from_module(another module)."
                )
            setattr(spec, name, own[0])
    return spec


def _specs_with(
    config: AlgorithmConfig,
    spaces: Mapping[str, tuple[gym.Space, gym.Space]],
    added: Mapping[str, RLModuleSpec],
    without: str | None = None,
) -> MultiRLModuleSpec:
    """The config's specs by module, with others besides.

    Args:
        config: A config with the policies that there are to be.
        spaces: Of the policies that act at present: one that loses its agents would not know its own.
        added: Specs to add.
        without: A module to leave out.
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


def _set_functions(config: AlgorithmConfig, mapping: Callable[..., str] | None, should_update: Any) -> None:
    if mapping is not None:
        config.multi_agent(policy_mapping_fn=mapping)
    if should_update is not None:
        config.multi_agent(policies_to_train=should_update)
