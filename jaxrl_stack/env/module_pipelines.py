"""Connector pipelines of all modules: their construction, their spaces, and their states in checkpoints."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from jaxrl_stack.acting.device_rollout import DeviceRollout
from jaxrl_stack.acting.module_step import ModuleStep
from jaxrl_stack.connectors.pipelines_by_module import PipelinesByModule
from jaxrl_stack.connectors.states import per_env_leaves
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR
from jaxrl_stack.core.module_map import ByModule, ModuleMap
from jaxrl_stack.env.acting_settings import traced_settings
from jaxrl_stack.env.agent_mapping import AgentSpaces, asked
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.connector_states import known_statistics, state_of
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv, spaces_by_agent
from jaxrl_stack.env.multi_agent_jax_env import MultiAgentJaxEnv
from jaxrl_stack.env.preprocessed_jax_env import PreprocessedJaxEnv
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils import counters, schedules
from jaxrl_stack.utils.spaces import difference
from jaxrl_stack.utils.traced_config import current_values

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.rl_module.functional import PureModule
    from jaxrl_stack.env.agent_preprocessing import AgentPreprocessing
    from jaxrl_stack.env.jax_env import JaxEnv


class Pipelines(NamedTuple):
    """The two connector pipelines of one module: env-to-module and module-to-env."""

    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline


class ModulePipelines(ByModule[Pipelines]):
    """Connector pipelines of the modules that control an agent, ``{module_id: Pipelines}``; each of these modules has
    separate pipelines, built for its spaces.

    With one agent, the saved state is the state of its pipeline, else states by module; see `ModuleMap.unwrapped`.

    Args:
        module_map: Map of agents to modules.
        of: The pipelines; empty without an environment.

    Attributes:
        module_map: The constructor argument.
    """

    def __init__(self, module_map: ModuleMap, of: Mapping[str, Pipelines]):
        self.module_map = module_map
        super().__init__(of)

    def acting_for(self, module_id: str) -> Pipelines:
        """Returns the env-to-module and the module-to-env pipeline for computing a module's actions.

        A module that controls no agent has no pipelines: for such a module, returns the pipelines of the first module
        that controls an agent.
        """
        return self[module_id] if module_id in self else next(iter(self.values()))

    @property
    def env_to_module(self) -> dict[str, EnvToModulePipeline]:
        """Env-to-module pipelines of all modules, ``{module_id: pipeline}``."""
        return {mid: own.env_to_module for mid, own in self.items()}

    @property
    def spaces(self) -> dict[str, tuple[Any, Any]]:
        """Spaces as modules see them, after the env-to-module pipeline: ``{module_id: (observation space, action
        space)}``.
        """
        return {mid: (own.env_to_module.observation_space, own.env_to_module.action_space) for mid, own in self.items()}

    def steps(self, pure: PureModule) -> dict[str, ModuleStep]:
        """Returns the functions that compute the modules' actions, ``{module_id: ModuleStep}``: env-to-module pipeline,
        forward pass, module-to-env pipeline.

        Args:
            pure: The MultiRLModule, taken apart.
        """
        return {
            mid: ModuleStep(
                module_id=mid,
                pure=pure,
                env_to_module=own.env_to_module.pure_part(),
                module_to_env=own.module_to_env.pure_part(),
            )
            for mid, own in self.items()
        }

    @property
    def env_to_module_states(self) -> dict[str, Any]:
        """Current states of the env-to-module pipelines, as ``{module_id: state}``."""
        return {mid: own.env_to_module.state for mid, own in self.items()}

    def stored_env_to_module(self, states: Mapping[str, Any]) -> dict[str, Any]:
        """Converts states of the env-to-module pipelines to the form that checkpoints store and `set_env_to_module`
        loads: ``{connector name: state}``, or ``{module_id: {connector name: state}}`` for several agents.
        """
        return self.module_map.unwrapped({mid: state_of(own.env_to_module, states[mid]) for mid, own in self.items()})

    def stored_module_to_env(self) -> dict[str, Any]:
        """Returns the states of the module-to-env pipelines in the form that checkpoints store: ``{connector name:
        state}``, or ``{module_id: {connector name: state}}`` for several agents.
        """
        return self.module_map.unwrapped({mid: own.module_to_env.get_state() for mid, own in self.items()})

    def set_env_to_module(self, stored: Mapping[str, Any]) -> None:
        """Loads saved states of the env-to-module pipelines, in the form that checkpoints store: ``{connector name:
        state}``, or ``{module_id: {connector name: state}}`` for several agents.
        """
        for mid, state in self.module_map.by_module(stored).items():
            self[mid].env_to_module.set_state(state)

    def set_statistics(self, stored: Mapping[str, Any]) -> None:
        """Loads the running statistics of another runner's env-to-module pipelines. `stored` is a result of the other
        runner's `stored_env_to_module`. Per-environment states do not change.
        """
        for mid, state in self.module_map.by_module(stored).items():
            pipeline = self[mid].env_to_module
            pipeline.set_state(known_statistics(pipeline.names, self._histories[mid], state))

    @functools.cached_property
    def _histories(self) -> dict[str, Any]:
        """Marks the arrays with an environment axis in the states of the env-to-module pipelines,
        ``{module_id: pytree of bools}``.

        The mark is True for such arrays, for example frame stacks, and False for all other arrays, for example running
        statistics. See `per_env_leaves`.
        """
        return {mid: per_env_leaves(own.env_to_module.init) for mid, own in self.items()}

    def parts(self) -> list[tuple[str, Any]]:
        """Returns the connector pipelines that checkpoints store, as two pairs ``(component name, pipeline)``.

        The first pair is env-to-module, the second is module-to-env. With several agents, each pipeline is a
        `PipelinesByModule`, which contains the pipelines of all modules. Returns [] for a single-agent runner without
        an environment.
        """
        both = zip(
            (COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR), Pipelines._fields, strict=True
        )
        of_modules = {name: {mid: getattr(own, field) for mid, own in self.items()} for name, field in both}
        if self.module_map.is_multi_agent:
            return [(name, PipelinesByModule(own)) for name, own in of_modules.items()]
        return [(name, own[self.module_map.module_id]) for name, own in of_modules.items() if own]

    def of_config(self) -> tuple[Any, ...]:
        """Returns ``(env-to-module pipeline, module-to-env pipeline)`` of the first module; () if there are no modules.

        The pipelines are passed to `AlgorithmConfig.for_checkpoints`, which can store their connectors in place of the
        user's functions that created the connectors. One module suffices, because all modules have the same connectors.
        """
        return tuple(next(iter(self.values()), ()))


def pure_pipelines(
    config: Any, env: Any, module_map: ModuleMap, preprocessing: AgentPreprocessing | None = None
) -> ModulePipelines:
    """Builds the env-to-module and the module-to-env pipeline of every module that controls an agent; raises if a
    connector cannot be compiled.

    Args:
        config: The config that declares the connectors.
        env: The environment.
        module_map: Map of agents to modules.
        preprocessing: Changes the observations of the environment's agents. None: the preprocessing of `env` if it is
            a `PreprocessedJaxEnv`, else no preprocessing.

    Raises:
        ValueError: Agents of one module have spaces that differ, or a connector loses an action mask.
    """
    if preprocessing is None and isinstance(env, PreprocessedJaxEnv):
        preprocessing = env.preprocessing
    if preprocessing is not None:
        module_of = module_map.module_of
        preprocessing.check_masks(
            lambda agent, *own: config.action_mask_key_of(module_of[agent], *own) if agent in module_of else None
        )

    def pipeline_for(build: Callable[..., Any], spaces: Any, **more: Any) -> Any:
        pipeline = build(env=env, spaces={"__env__": spaces, "__env_single__": spaces}, **more)
        pipeline.check_pure()
        return pipeline

    def named(module_id: str) -> dict[str, Any]:
        assigned = module_map.assigned or module_map.agents_of
        return {"module_id": module_id, "agents": assigned[module_id], "known_agents": list(module_map.module_of)}

    of_modules = {}
    for mid, spaces in spaces_of_modules(env if preprocessing is None else preprocessing.spaces, module_map).items():
        of_modules[mid] = Pipelines(
            pipeline_for(
                config.build_env_to_module_connector, spaces, **(named(mid) if module_map.is_multi_agent else {})
            ),
            pipeline_for(config.build_module_to_env_connector, spaces),
        )
    return ModulePipelines(module_map, of_modules)


def spaces_of_modules(env: Any, module_map: ModuleMap) -> dict[str, tuple[Any, Any]]:
    """Returns the environment's spaces for each acting module, ``{module_id: (observation space, action space)}``.

    Raises:
        ValueError: Agents of one module have spaces that differ.
    """
    if not module_map.is_multi_agent:
        return {module_map.module_id: (env.observation_space, env.action_space)}
    spaces = {}
    for mid, agents in module_map.agents_of.items():
        for agent in agents:
            own = (env.observation_spaces[agent], env.action_spaces[agent])
            first = spaces.setdefault(mid, own)
            for name, one, other in zip(("observation_space", "action_space"), own, first, strict=True):
                if difference(one, other) is not None:
                    raise ValueError(
                        f"policy_mapping_fn maps the agents {agents[0]!r} and {agent!r} to the module {mid!r}, but "
                        f"their {name}s are {other} and {one}. Map agents with different spaces to different modules."
                    )
    return spaces


def spaces_of_policies(config: Any, env: Any) -> dict[str, tuple[Any, Any]]:
    """Returns the spaces that policies see, after connectors, as ``{policy id: (observation space, action space)}``,
    for policies that act for an agent of `env`.

    Agents whose policy the config does not have are left out: a learner of one policy needs no others.

    Args:
        config: The config, of several agents.
        env: A `MultiAgentEnv`, a `MultiAgentJaxEnv`, or a vector of `MultiAgentEnv`s.

    Raises:
        ValueError: Agents of one policy have spaces that differ.
    """
    one: Any = env
    if not isinstance(env, MultiAgentJaxEnv):
        one = getattr(env, "unwrapped", env)
        one = one if isinstance(one, MultiAgentEnv) else getattr(one, "envs", [one])[0]
    if isinstance(one, MultiAgentJaxEnv):
        spaces = AgentSpaces(dict(one.observation_spaces), dict(one.action_spaces))
    elif isinstance(one, MultiAgentEnv):
        spaces = AgentSpaces(*(dict(spaces_by_agent(one, f"{kind}_space")) for kind in ("observation", "action")))
    else:
        return {}
    preprocessing = agent_preprocessing(config, spaces, env)
    episode, known = MultiAgentEpisode(), config._policy_ids()
    if config.opponents is not None:
        policies: dict[Any, Any] = dict.fromkeys(one.possible_agents, config.opponents.of)
    else:
        policies = {agent: asked(config.policy_mapping_fn, agent, episode) for agent in one.possible_agents}
    module_map = ModuleMap({agent: mid for agent, mid in policies.items() if mid in known}, is_multi_agent=True)
    return pure_pipelines(config, env, module_map, preprocessing).spaces


def make_rollout(
    config: Any, env: JaxEnv, pipelines: ModulePipelines, pure: PureModule, *, window_size: int
) -> DeviceRollout:
    """Creates the `DeviceRollout` (functions that sample inside a compiled program) for an environment and its modules.

    The functions are pure, and run the modules and their connector pipelines. States, such as weights and connector
    states, are arguments of these functions.

    Args:
        config: The config of the runners that sample.
        env: The environment.
        pipelines: Pipelines of its modules.
        pure: The MultiRLModule, taken apart.
        window_size: Number of finished episodes that the statistics cover.
    """
    steps, held = pipelines.steps(pure), {}
    if not env.everybody_acts:
        settings = {"modules": traced_settings(config, list(steps))}
        values = current_values(schedules.shapes_at(settings), counters.zero(), config.get_config_for_module)
        for mid, step in steps.items():
            columns = step.shapes(values["modules"], explore=bool(config.explore))
            held[mid] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), columns)
    return DeviceRollout(env=env, modules=steps, module_map=pipelines.module_map, window_size=window_size, held=held)
