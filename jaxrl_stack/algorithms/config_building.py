"""What is built from a config: spaces, module specs, connector pipelines, learners, the algorithm."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.algorithms.action_mask_settings import any_module_honours_masks, check_mask_is_kept, honoured_mask_key
from jaxrl_stack.algorithms.config_store import ConfigStore, warn_deprecated
from jaxrl_stack.algorithms.connector_functions import connectors_for_agents, num_positional_arguments
from jaxrl_stack.algorithms.model_settings import given_settings
from jaxrl_stack.algorithms.policy_spaces import SpacesById, spaces_without_agent, with_policies_of
from jaxrl_stack.algorithms.registry import get_algorithm_class
from jaxrl_stack.algorithms.setting_values import copy_value
from jaxrl_stack.algorithms.settings_display import short
from jaxrl_stack.checkpoints.plain_data import Encoder
from jaxrl_stack.connectors import markers
from jaxrl_stack.connectors.checks import check_connectors, check_env_to_module
from jaxrl_stack.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import (
    DefaultObservations,
    EnvToModulePipeline,
    FlattenObservations,
    RecordedMeanStdFilter,
)
from jaxrl_stack.connectors.env_to_module.observation_preprocessor import MultiAgentObservationPreprocessor
from jaxrl_stack.connectors.learner import LearnerConnectorPipeline
from jaxrl_stack.connectors.module_to_env import ActionNoise, GetActions, ModuleToEnvPipeline, NormalizeAndClipActions
from jaxrl_stack.connectors.stored_connectors import StoredConnectors
from jaxrl_stack.core.default_observations import is_vector
from jaxrl_stack.core.learner.learner_group import LearnerGroup
from jaxrl_stack.core.module_map import ModuleMap, single_agent
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.created_envs import creators_called_once
from jaxrl_stack.utils.action_masks import ACTION_MASK
from jaxrl_stack.utils.policy_spec import PolicySpec
from jaxrl_stack.utils.signatures import call_users
from jaxrl_stack.utils.spaces import check_space, difference

if TYPE_CHECKING:
    from typing import Self

    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.env.env_runner import EnvRunner


class ConfigBuilding(ConfigStore):
    """What a config builds. Algorithms override the defaults."""

    # ------------------------------------------------------------------------------------------------ policies, spaces

    @property
    def module_map(self) -> ModuleMap:
        """Which module acts for which agent."""
        return single_agent(self._policy_ids(), "multi_agent(policies=...) with one policy")

    def get_multi_agent_setup(
        self,
        *,
        policies: Mapping[str, Any] | None = None,
        env: Any = None,
        spaces: SpacesById | None = None,
        default_policy_class: Any = None,
    ) -> tuple[dict[str, PolicySpec], Callable[..., bool]]:
        """The policies with their spaces filled in, and the function that says which are trained.

        Args:
            policies: Overrides `policies` of this config.
            env: Environment to take missing spaces from.
            spaces: Module id (or "__env__", "__env_single__") → (observation space, action space).
            default_policy_class: Must be None; there are no Policy classes.

        Returns:
            (policy id → PolicySpec, ``f(module_id, batch) -> bool``).

        Raises:
            ValueError: If a space is known from nowhere.
        """
        if default_policy_class is not None:
            raise ValueError(f"default_policy_class={default_policy_class!r}: there are no Policy classes here.")
        specs, spaces = self._policy_specs(policies), with_policies_of(self, env, spaces)
        for policy_id, spec in specs.items():
            spec.observation_space, spec.action_space = self._module_spaces(
                policy_id, spec.observation_space, spec.action_space, env, spaces
            )
            spec.config = spec.config or {}
        return specs, functools.partial(_is_trained, self.policies_to_train)

    def _policy_specs(self, policies: Mapping[str, Any] | None = None) -> dict[str, PolicySpec]:
        """The policies as PolicySpecs of their own, however they were given."""
        given = self.policies if policies is None else policies
        given = given if isinstance(given, Mapping) else dict.fromkeys(given)
        return {
            policy_id: PolicySpec(*entry) if isinstance(entry, tuple) else copy_value(entry) or PolicySpec()
            for policy_id, entry in given.items()
        }

    def _module_spaces(
        self,
        module_id: str,
        observation_space: gym.Space | None,
        action_space: gym.Space | None,
        env: Any,
        spaces: SpacesById | None,
    ) -> tuple[gym.Space, gym.Space]:
        """The spaces of one module: given ones, those in `spaces`, or what the pipeline makes of the env's."""
        if spaces and module_id in spaces:
            known = spaces[module_id]
        elif observation_space is not None and action_space is not None:
            known = (observation_space, action_space)
        elif module_id not in self._policy_ids() and (seen := self._spaces_of_policy(spaces)):
            known = seen  # a part that does not act works on what the policy sees
        elif self.is_multi_agent and (seen := self._spaces_of_policy(spaces)):
            known = spaces_without_agent(self, module_id, (observation_space, action_space), spaces or {})
        else:
            raw = self._env_spaces(env, spaces)
            if raw[0] is None or raw[1] is None:
                kind = "observation_space" if raw[0] is None else "action_space"
                raise ValueError(
                    f"The {kind} of module {module_id!r} is not known. Give it with environment({kind}=...), "
                    f"or pass env= or spaces={{'default_policy': (observation_space, action_space)}}."
                )
            pipeline = self.build_env_to_module_connector(env=env, spaces=spaces)
            known = (pipeline.observation_space, pipeline.action_space)
        for kind, given, own in (("observation", observation_space, known[0]), ("action", action_space, known[1])):
            problem = None if given is None or own is None else difference(given, own)
            if problem is not None:
                raise ValueError(
                    f"RLModuleSpec({kind}_space={given}) of module {module_id!r} does not fit the {kind} space "
                    f"{own} after the env-to-module connectors: {problem}. Leave it out, or let the connector that "
                    f"changes the space override recompute_output_{kind}_space()."
                )
        return observation_space or known[0], action_space or known[1]

    def _spaces_of_policy(self, spaces: SpacesById | None) -> tuple[gym.Space, gym.Space] | None:
        return next((spaces[policy_id] for policy_id in self._policy_ids() if spaces and policy_id in spaces), None)

    def _env_spaces(self, env: Any, spaces: SpacesById | None) -> tuple[gym.Space | None, gym.Space | None]:
        """Spaces of one environment: this config's own, else those in `spaces`, else the environment's.

        Raises:
            ValueError: If this config's own have another form than the environment's.
        """
        known = spaces or {}
        if "__env_single__" in known or "__env__" in known:
            found = known["__env_single__" if "__env_single__" in known else "__env__"]
        elif isinstance(env, gym.vector.VectorEnv):
            found = (env.single_observation_space, env.single_action_space)
        else:
            found = (None, None) if env is None else (env.observation_space, env.action_space)
        if env is not None and (self.observation_space is not None or self.action_space is not None):
            self._check_given_spaces(env)
        return self.observation_space or found[0], self.action_space or found[1]

    def _check_given_spaces(self, env: Any) -> None:
        """Only the bounds of spaces can be overridden."""
        prefix = "single_" if isinstance(env, gym.vector.VectorEnv) else ""
        for name in ("observation_space", "action_space"):
            given = vars(self)[name]
            problem = None if given is None else difference(given, getattr(env, prefix + name))
            if problem is not None:
                raise ValueError(
                    f"environment({name}={given}) does not fit the environment's own {name}: {problem}. Leave it out, "
                    f"or change no more than the bounds of Box spaces; connectors change observations."
                )

    # --------------------------------------------------------------------------------------------------------- modules

    def get_default_rl_module_spec(self) -> RLModuleSpec | MultiRLModuleSpec:
        """The spec of the algorithm's default module. Algorithms override it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no default module. Use an algorithm's config, such as PPOConfig, or "
            "rl_module(rl_module_spec=RLModuleSpec(module_class=...))."
        )

    def get_default_learner_class(self) -> type[Learner]:
        """The algorithm's Learner class. Algorithms override it."""
        raise NotImplementedError(
            f"{type(self).__name__} has no default Learner. Use an algorithm's config, such as PPOConfig, or "
            "learners(learner_class=...)."
        )

    def get_default_env_runner_class(self) -> type[EnvRunner]:
        """The EnvRunner class of host environments, of one agent or of several, which records if that is asked for."""
        from jaxrl_stack.offline.offline_env_runner import host_runner_class

        return host_runner_class(is_multi_agent=self.is_multi_agent, records=bool(self.output))

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
        """The spec of the only module, complete: ``get_rl_module_spec(...).build()`` works.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Whether the module leaves out what only training needs; None is no.

        Raises:
            ValueError: If a space is known from nowhere, or there are several modules.
        """
        specs = self.get_multi_rl_module_spec(env=env, spaces=spaces, inference_only=bool(inference_only))
        modules = specs.rl_module_specs or {}
        if len(modules) != 1:
            raise ValueError(
                f"get_rl_module_spec() is for one module; there are {sorted(modules)}. Use get_multi_rl_module_spec()."
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
        """The specs of all modules, complete: spaces and model settings are filled in where they were open.

        A module's own settings win over the config's. Spaces that come from an environment are those after
        the env-to-module pipeline.

        Args:
            env: Environment to take missing spaces from.
            spaces: Module id → the module's own spaces, or "__env_single__" → the environment's.
            inference_only: Leave out what only training needs, and modules that only learners use.
            policy_dict: Overrides `policies`.
            single_agent_rl_module_spec: Overrides the spec that modules without their own get.

        Raises:
            ValueError: If a space is known from nowhere.
        """
        given = single_agent_rl_module_spec or self.rl_module_spec
        policies, spaces = self._policy_specs(policy_dict), with_policies_of(self, env, spaces)
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
            spec = self._complete_spec(module_id, own, policies.get(module_id, PolicySpec()), env, spaces)
            spec.inference_only = spec.inference_only or inference_only
            modules[module_id] = spec
        multi.rl_module_specs = modules
        multi.inference_only = inference_only if multi.inference_only is None else multi.inference_only
        return multi

    def _complete_spec(
        self, module_id: str, own: RLModuleSpec | None, policy: PolicySpec, env: Any, spaces: Any
    ) -> RLModuleSpec:
        """A module's spec with everything that it leaves open filled in."""
        spec = self._with_default_class(own or RLModuleSpec()) if own is None or own.module_class is None else own
        spec.observation_space, spec.action_space = self._module_spaces(
            module_id,
            spec.observation_space or policy.observation_space,
            spec.action_space or policy.action_space,
            env,
            spaces,
        )
        own_config = given_settings(spec.model_config)
        spec.model_config = self.get_config_for_module(module_id).model_config | own_config
        return spec

    def _with_default_class(self, spec: RLModuleSpec) -> RLModuleSpec:
        """A spec that leaves its class open, on top of the algorithm's default spec."""
        default = self.get_default_rl_module_spec()
        if not isinstance(default, RLModuleSpec):
            raise ValueError(
                f"{spec}: give module_class=; {type(self).__name__} has no single default module to take it from."
            )
        default.update(spec)
        return default

    # ------------------------------------------------------------------------------------------------------- pipelines

    def _default_env_to_module_connectors(self, observation_space: gym.Space, module_id: Any) -> list[ConnectorV2]:
        """The connectors after the user's env-to-module connectors. Algorithms override it.

        Args:
            observation_space: What comes out of the user's connectors.
            module_id: Whose; one whose spec has a class and this very space gets observations as they are.
        """
        own, mask_key = self._given_specs().get(module_id, RLModuleSpec()), self.action_mask_key
        takes_it = own.module_class is not None and own.observation_space == observation_space
        if takes_it or is_vector(observation_space) or not self._uses_default_module():
            return []
        connector = DefaultObservations(observation_space, action_mask_key=mask_key)
        if connector.observation_space == observation_space:
            return []
        # Of observations without a mask and images a plain vector is left.
        is_flat = is_vector(connector.observation_space)
        return [FlattenObservations() if is_flat else DefaultObservations(action_mask_key=mask_key)]

    def action_mask_key_of(self, module_id: str | None, observation_space: Any, action_space: Any) -> str | None:
        """The key of the action mask in an environment's observations, for a module that honours it; else None.

        Args:
            module_id: Id of the module; None for the only one.
            observation_space: Space of the environment's observations.
            action_space: Space of the actions.

        Raises:
            ValueError: There is a mask, and the algorithm's own module does not honour masks.
        """
        module_id = next(iter(self._policy_ids())) if module_id is None else module_id
        module_class = self._given_specs().get(module_id, RLModuleSpec()).module_class
        return honoured_mask_key(self, module_id, module_class, observation_space, action_space)

    def _default_module_to_env_connectors(self) -> list[ConnectorV2]:
        """The module-to-env connectors; the user's run before the last one. Algorithms override it."""
        return [
            GetActions(),
            NormalizeAndClipActions(normalize_actions=self.normalize_actions, clip_actions=self.clip_actions),
        ]

    def _default_learner_connectors(self) -> list[ConnectorV2]:
        """The connectors after the user's learner connectors. Algorithms override it."""
        return []

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
        """The pipeline from observations to the module's input: the user's connectors, then the default ones.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.
            device: Goes to the user's function.
            module_id: With several agents the module that it is for.
            agents: With several agents those whose observations come in; None if that is not known.
            known_agents: All agents.

        Raises:
            ValueError: If the user's function returns no connectors, the observation space is not known, or what
                comes out of the connectors does not fit the space that they declare.
            TypeError: If a connector has the wrong form.
        """
        observation_space, action_space = self._env_spaces(env, spaces)
        if observation_space is None:
            observation_space, action_space = self._spaces_of_policy(spaces) or (None, action_space)
        if observation_space is None:
            raise ValueError(
                "The env-to-module pipeline needs to know the observation space: pass env= or "
                "spaces={'__env_single__': (observation_space, action_space)}, or set "
                "environment(observation_space=...)."
            )
        own = self.user_connectors(EnvToModulePipeline.setting, (env, spaces, device))
        acting_for = (agents or ()) if self.is_multi_agent else None
        mask_key = self.action_mask_key_of(module_id, observation_space, action_space)
        pipeline = EnvToModulePipeline(
            observation_space,
            action_space,
            connectors=connectors_for_agents(own, acting_for, known_agents),
            action_mask_key=mask_key,
        )
        pipeline.of_setting = own
        if self._env_to_module_connector is not None and isinstance(observation_space, gym.Space):
            where = f"the observation_space after the env-to-module connectors {pipeline.names}"
            check_space(pipeline.observation_space, where)
        if self.add_default_connectors_to_env_to_module_pipeline:
            defaults = self._default_env_to_module_connectors(pipeline.observation_space, module_id)
            for connector in [*(marker() for marker in markers.ENV_TO_MODULE), *defaults]:
                pipeline.append(connector)
        if self.normalize_observations:
            pipeline.append(RecordedMeanStdFilter())
        if mask_key is not None:
            check_mask_is_kept(pipeline, mask_key)
        if self._env_to_module_connector is not None:
            check_connectors(pipeline)
            is_pure = not pipeline.host_connectors and not pipeline.is_host_connector
            if is_pure and isinstance(observation_space, gym.Space):
                settings = {setting.name: jax.ShapeDtypeStruct((), np.float32) for setting in self._traced_settings()}
                fixed = {name: self.static_value(name) for name in self._static_settings}
                check_env_to_module(pipeline, {next(iter(self._policy_ids())): settings | fixed})
        return pipeline

    def build_module_to_env_connector(self, env: Any = None, spaces: SpacesById | None = None) -> ModuleToEnvPipeline:
        """The pipeline from the module's outputs to the environment's actions.

        Args:
            env: Environment; goes to the user's function, and gives the spaces if `spaces` does not.
            spaces: "__env_single__" (or "__env__") → spaces of one environment.

        Raises:
            ValueError: If the user's function returns no connectors, or a connector does not fit these settings.
        """
        observation_space, action_space = self._env_spaces(env, spaces)
        add_defaults = self.add_default_connectors_to_module_to_env_pipeline
        defaults = self._default_module_to_env_connectors() if add_defaults else []
        chosen = markers.AFTER_ACTIONS_ARE_CHOSEN if add_defaults else ()
        own = self.user_connectors(ModuleToEnvPipeline.setting, (env, spaces))
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
                self._check_action_noise(name, connector)
        return pipeline

    def _check_action_noise(self, name: str, connector: ActionNoise) -> None:
        """Refuses noise that does not fit these settings. Algorithms that cannot learn from it override it."""
        clips_for = connector.normalize_actions
        if clips_for != self.normalize_actions:
            raise ValueError(
                f"environment(normalize_actions={self.normalize_actions}) differs from connector {name!r}, which clips "
                f"for normalize_actions={clips_for}: give it normalize_actions={self.normalize_actions}."
            )

    def build_learner_connector(
        self, input_observation_space: gym.Space | None, input_action_space: gym.Space | None, device: Any = None
    ) -> LearnerConnectorPipeline:
        """The pipeline from recorded steps to the train batch: the user's connectors, then the algorithm's.

        Args:
            input_observation_space: Of the module (after the env-to-module pipeline).
            input_action_space: Of the module.
            device: Without effect; batches are where the program runs.

        Raises:
            ValueError: If the user's function returns no connectors, or a connector does not fit these settings.
        """
        defaults: list[ConnectorV2] = []
        if self.add_default_connectors_to_learner_pipeline:
            defaults = [*(marker() for marker in markers.LEARNER), *self._default_learner_connectors()]
        own = self.user_connectors(LearnerConnectorPipeline.setting, (input_observation_space, input_action_space))
        pipeline = LearnerConnectorPipeline(
            input_observation_space=input_observation_space,
            input_action_space=input_action_space,
            connectors=[*own, *defaults],
            action_mask_key=ACTION_MASK if any_module_honours_masks(self, self._given_specs()) else None,
        )
        pipeline.of_setting = own
        check_connectors(pipeline)
        self._check_sampled_steps([name for name, own in pipeline._flat_members() if own.needs_sampled_steps])
        return pipeline

    def _check_sampled_steps(self, names: list[str]) -> None:
        """Refuses learner connectors that need steps as they were sampled, where they would not get these."""
        algo_class = self.algo_class if names else None
        if isinstance(algo_class, str):
            algo_class = get_algorithm_class(algo_class)
        if algo_class is not None and algo_class.training_step_class.uses_replay:
            raise ValueError(
                f"Learner connector(s) {names} take statistics of steps in the order in which they were sampled, each "
                f"once, and {algo_class.__name__} learns from rows that are drawn from a replay buffer, some never "
                "and some often. Scale rewards by a constant instead, ScaleRewards(factor=...), or train with PPO."
            )
        if names and self.clip_rewards:
            raise ValueError(
                f"environment(clip_rewards={self.clip_rewards!r}) changes the rewards before learner connector(s) "
                f"{names} measure them. Set clip_rewards=None, and bound what comes out with the connector's own "
                "clip_by_value."
            )

    def agent_preprocessors(self, env: Any, spaces: SpacesById) -> list[MultiAgentObservationPreprocessor]:
        """The user's env-to-module connectors that see the observations of all agents together.

        Args:
            env: Goes to the user's function.
            spaces: "__env__" and "__env_single__" → spaces of all agents.

        """
        own = self.user_connectors(EnvToModulePipeline.setting, (env, spaces, None))
        return [connector for connector in own if isinstance(connector, MultiAgentObservationPreprocessor)]

    def user_connectors(self, name: str, arguments: tuple[Any, ...]) -> list[ConnectorV2]:
        """What the user's connector function returns, as a list."""
        setting = self._declarations.by_name[name]
        function = vars(self)[setting.attribute]
        if function is None:
            return []
        call = self._declarations.call(setting)
        count = num_positional_arguments(function, arguments, call)
        made = call_users(function, call, *arguments[:count])
        connectors = list(made) if isinstance(made, (list, tuple)) else [made]
        for connector in connectors:
            if not isinstance(connector, ConnectorV2):
                raise ValueError(
                    f"{call}: the function returned {short(connector)}. It must return a ConnectorV2 or a list of them."
                )
        return connectors

    def for_checkpoints(self, *pipelines: ConnectorPipelineV2) -> Self:
        """This config as a checkpoint can hold it: of connector functions that have no name, with what they returned.

        Args:
            *pipelines: What was built with this config's connector settings.

        Returns:
            A copy, or this config if nothing in it is another.
        """
        stored: dict[str, StoredConnectors] = {}
        for pipeline in pipelines:
            attribute = self._declarations.by_name[pipeline.setting].attribute
            function, returned = Encoder(leave_out=True), Encoder(leave_out=True)
            function.encode(vars(self)[attribute], pipeline.setting)
            if not function.left_out:
                continue
            connectors = StoredConnectors(pipeline.of_setting)
            returned.encode(connectors)
            # Arguments are JSON; an array among them is told of as the function is.
            if not returned.arrays:
                stored[attribute] = connectors
        if not stored:
            return self
        config = self.copy()
        vars(config).update(stored)
        return config

    # -------------------------------------------------------------------------------------------------------- building

    def build_algo(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """The algorithm: validates a copy of this config, freezes it and builds everything.

        Args:
            env: Overrides `env`.
            use_copy: False hands this very config over, which is then frozen.

        Raises:
            ValueError: If settings are wrong or do not fit together, or the config belongs to no algorithm.
        """
        algo_class = self.algo_class
        if isinstance(algo_class, str):
            algo_class = get_algorithm_class(algo_class)
        if algo_class is None:
            raise ValueError(
                f"{type(self).__name__}() belongs to no algorithm. Build an algorithm's config, such as "
                f"PPOConfig(), or pass {type(self).__name__}(algo_class=...)."
            )
        config: Any = self.copy() if use_copy else self
        if env is not None:
            config.environment(env)
        with creators_called_once():
            config.validate()
            return algo_class(config=config)

    def build(self, env: Any = None, use_copy: bool = True) -> Algorithm:
        """Old name of `build_algo`; warns."""
        warn_deprecated("config.build() is now config.build_algo().")
        return self.build_algo(env, use_copy)

    def build_learner(self, *, env: Any = None, spaces: SpacesById | None = None) -> Learner:
        """A built Learner, for use without an Algorithm.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
        """
        config: Any = self
        learner = self.learner_class(config=config, module_spec=self.get_multi_rl_module_spec(env=env, spaces=spaces))
        learner.build()
        return learner

    def build_learner_group(
        self,
        *,
        env: Any = None,
        spaces: SpacesById | None = None,
        rl_module_spec: RLModuleSpec | MultiRLModuleSpec | None = None,
        placement_group: Any = None,
    ) -> LearnerGroup:
        """A group of Learners; one, in this process, with ``num_learners=0``.

        Args:
            env: Environment to take missing spaces from.
            spaces: "default_policy" → the module's own spaces, or "__env_single__" → the environment's.
            rl_module_spec: Overrides this config's spec.
            placement_group: Ray placement group whose last ``num_learners`` bundles are the learners'.

        Raises:
            ValueError: If a placement group is given and the learner is local.
        """
        config: Any = self.copy()
        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return LearnerGroup(config=config, module_spec=spec, placement_group=placement_group)


def _is_trained(policies_to_train: Any, module_id: str, batch: Any = None) -> bool:
    if policies_to_train is None:
        return True
    return bool(policies_to_train(module_id, batch)) if callable(policies_to_train) else module_id in policies_to_train
