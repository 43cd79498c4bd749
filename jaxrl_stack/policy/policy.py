"""`Policy`, a policy for serving: connector pipelines, module and the states of both in one object.

The class has the name of a class in RLlib's old API stack.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.checkpoints.checkpointable import Checkpointable, Parts, fitting, opened, selected
from jaxrl_stack.checkpoints.files import Stored
from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE
from jaxrl_stack.checkpoints.needed_code import NeededCode
from jaxrl_stack.checkpoints.plain_data import Decoder
from jaxrl_stack.compat.renamed import old_members
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, RecordedMeanStdFilter
from jaxrl_stack.connectors.host_connectors import run_host_connectors
from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
from jaxrl_stack.connectors.pipelines_by_module import PipelinesByModule
from jaxrl_stack.connectors.recorded_inputs import PipelineInputs
from jaxrl_stack.core import (
    COMPONENT_ENV_RUNNER,
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_EVAL_ENV_RUNNER,
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import PureModule, copy_array
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, RLModule
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.policy import export as exporting
from jaxrl_stack.policy.acting import FIELDS, EpisodeTracker, PolicyArrays, PolicyProgram, PolicyState
from jaxrl_stack.policy.estimation import Estimates, estimate, steps_of
from jaxrl_stack.policy.inputs import Acting, Given
from jaxrl_stack.policy.recorded_actions import ActingBy
from jaxrl_stack.utils import counters, schedules
from jaxrl_stack.utils.class_paths import ClassLoader, path_of
from jaxrl_stack.utils.policy_spec import PolicySpec

if TYPE_CHECKING:
    import gymnasium as gym

COMPONENTS = (COMPONENT_RL_MODULE, COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR, "settings")
"""Parts of what `Policy.get_state` returns."""

_TRAINING = "Use an Algorithm, whose Learner computes losses and gradients: a Policy only acts."
OLD_MEMBERS = {
    "model": "Use policy.module, an RLModule.",
    "dist_class": "Use policy.module.get_inference_action_dist_cls().",
    "get_initial_state": "Use policy.initial_state(num_envs).",
    "is_recurrent": "Use policy.module.is_stateful().",
    "compute_log_likelihoods": "Use the column Columns.ACTION_LOGP of what compute_actions(..., explore=True) returns.",
    "export_model": "Use policy.export(path).",
    "export_checkpoint": "Use policy.save_to_path(path).",
    "postprocess_trajectory": "Use a connector: config.learners(learner_connector=...).",
    "loss": _TRAINING,
    "learn_on_batch": _TRAINING,
    "compute_gradients": _TRAINING,
    "apply_gradients": _TRAINING,
}
"""Members of RLlib's old API stack -> what to use instead."""

_ACT = (
    "Use policy.compute_single_action(obs), or policy.compute_actions(obs_batch, state): both return (action, state)."
)
FOREIGN_MEMBERS = {
    "predict": _ACT,
    "act": _ACT,
    "get_action": _ACT,
    "forward": _ACT,
    "load": "Use Policy.from_checkpoint(path).",
    "save": "Use policy.save_to_path(path).",
}
"""Members of other packages' policies, and what to use here."""


class Policy(Acting[PolicyState], Checkpointable):
    """Trained policy for serving: a module with its env-to-module and module-to-env connector pipelines. It takes
    observations of the environment and returns actions for the environment.

    It is a snapshot with copies of all weights and statistics: later changes of the objects that it was made from do
    not change it. Running statistics of connectors (MeanStdFilter) are used and not updated. Calls from several threads
    are safe.

    ``Algorithm.get_policy()`` makes one from a running algorithm, `from_checkpoint` from files.

    Args:
        module: The module with its weights, or a MultiRLModule that holds it.
        env_to_module: Pipeline from the environment's observations to the module's batch, with spaces and statistics.
        module_to_env: Pipeline from the module's outputs to the environment's actions.
        module_id: Id of the module that acts.
        settings: ``{module_id: {name: number or schedule}}``: the traced settings that connectors and modules may
            read. Python numbers are constants of the program.
        timesteps: Lifetime env steps, which schedules are evaluated at and exploring modules get.
        seed: Seed of the random numbers of calls without a key.
        device: Device of the policy; None for JAX's default device.
        like: A policy with the same module and pipelines, whose compiled programs are reused.

    Raises:
        ValueError: If a pipeline has no spaces, or there is no such module.
        TypeError: If a host connector (RLlib's ``__call__``) is at a position where only pure connectors are possible.

    Attributes:
        module_id: Id of the module that acts.
        observation_space: Space of the environment's observations.
        action_space: Space of the environment's actions.
    """

    def __init__(
        self,
        module: RLModule,
        env_to_module: EnvToModulePipeline,
        module_to_env: ModuleToEnvPipeline,
        *,
        module_id: str = DEFAULT_MODULE_ID,
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        timesteps: int = 0,
        seed: int = 0,
        device: Any = None,
        like: Policy | None = None,
    ):
        if isinstance(module, MultiRLModule):
            modules = module
        else:
            modules = MultiRLModule(inference_only=module.inference_only)
            modules.add_module(module_id, module)
        if module_id not in modules:
            raise ValueError(
                f"Policy(module_id={module_id!r}): there is no such module. Choose from {list(modules.keys())}."
            )
        pure = PureModule(modules)
        values = schedules.values_at(dict(settings or {}), counters.from_int(timesteps))
        fixed = {mid: {n: v for n, v in own.items() if isinstance(v, int | float)} for mid, own in values.items()}
        traced = {mid: {n: v for n, v in own.items() if n not in fixed[mid]} for mid, own in values.items()}
        program = None if like is None else like._program
        if program is None or not program.serves(pure, env_to_module, module_to_env, module_id, fixed):
            program = PolicyProgram(pure, env_to_module, module_to_env, module_id, fixed)
        self._program = program
        self.module_id = module_id
        self.observation_space: gym.Space = program.env_to_module.input_observation_space
        self.action_space: gym.Space = program.env_to_module.input_action_space
        self._timesteps = int(timesteps)
        self._seed = int(seed)
        self._device = device
        super().__init__(self._seed)
        self._key = self._to_device(self._key)
        self._arrays = PolicyArrays(
            params=self._to_device(pure.params),
            rest=self._to_device(pure.rest),
            settings=self._to_device(jax.tree.map(lambda x: np.asarray(x, np.float32), traced)),
            timesteps=self._to_device(counters.from_int(timesteps)),
            env_to_module=self._to_device(program.step.env_to_module.rebatch(env_to_module.state, 1)),
            module_to_env=self._to_device(program.step.module_to_env.rebatch(module_to_env.state, 1)),
        )
        self._bound: tuple[PolicyArrays, MultiRLModule] | None = None

    if not TYPE_CHECKING:
        __getattr__ = old_members(OLD_MEMBERS, FOREIGN_MEMBERS)

    def _to_device(self, tree: Any) -> Any:
        """Copies arrays to the policy's device."""
        copies = jax.tree.map(lambda leaf: copy_array(jnp.asarray(leaf)), tree)
        return copies if self._device is None else jax.device_put(copies, self._device)

    def __repr__(self) -> str:
        program = self._program
        return (
            f"{type(self).__name__}({type(self.module).__name__} {self.module_id!r}, {self.observation_space} -> "
            f"{self.action_space}, env_to_module={program.env_to_module.names}, "
            f"module_to_env={program.module_to_env.names})"
        )

    # ---------------------------------------------------------------------------------------------------- acting

    def _initial_state(self, num_envs: int) -> PolicyState:
        arrays = self._arrays
        state = self._program.initial_state((arrays.env_to_module, arrays.module_to_env), num_envs=num_envs)
        if self._program.has_host_connectors:
            episodes = EpisodeTracker([SingleAgentEpisode() for _ in range(num_envs)])
            state = dataclasses.replace(state, episodes=episodes)
        return state

    def where_rows(self, acts: Any, after: PolicyState, before: PolicyState) -> PolicyState:
        """Returns the policy's state after a call in which only some rows (agents) acted, as in a turn-based game.

        This is the state `after` for rows that acted, and the state `before` for other rows.

        Args:
            acts: bool ``[B]``, the rows that acted.
            after: State that `compute_actions` returned.
            before: State that it was called with.

        Raises:
            ValueError: If the policy has host connectors, because they change episodes in place.
        """
        if self._host_connectors:
            raise ValueError(
                "where_rows() cannot return the earlier state of batch rows that did not act, because the host "
                f"connectors {self._host_connectors} (which override `__call__`) change episodes in place. Write these "
                "connectors as pure functions (`init` and `apply`), or call compute_actions() with only the rows that "
                "act."
            )
        return self._program.step.where_rows(jnp.asarray(acts), after, before)

    def _act(self, state: PolicyState, given: Given, explore: bool | None) -> tuple[Any, PolicyState, dict[str, Any]]:
        explore = bool(explore)
        arrays, program = self._arrays, self._program
        columns, made = {Columns.OBS: given.observations}, set[str]()
        episodes = state.episodes
        if program.has_host_connectors:
            if episodes is None:
                raise ValueError(
                    "This state was not made by a policy with host connectors (which override `__call__`), so it "
                    "lacks the episodes that the host connectors of this policy need. Start with state=None or "
                    "policy.initial_state(num_envs)."
                )
            running = episodes.extended(given.observations, given.prev_rewards, given.reset)
            columns = run_host_connectors(
                program.env_to_module, episodes=running, made=made, rl_module=self.module, explore=explore
            )
        state = dataclasses.replace(state, episodes=None)
        actions, after, outputs, inputs = program.act(arrays, state, columns, *given[1:], explore=explore)
        actions, outputs = jax.device_get((actions, outputs))
        if program.has_host_connectors:
            seen = columns[Columns.OBS] if inputs is None else jax.device_get(inputs)
            # A connector that makes the column looks back on the observations that it made it of.
            seen = None if Columns.OBS in made else seen
            after = dataclasses.replace(after, episodes=EpisodeTracker(running, seen, outputs))
        return actions, after, outputs

    @functools.cached_property
    def unread_observations(self) -> list[str]:
        return self._program.unread_observations(self._arrays)

    @property
    def _host_connectors(self) -> list[str]:
        return list(self._program.env_to_module.host_connectors)

    # ------------------------------------------------------------------------------------------------ what it is worth

    def estimate(
        self,
        data: Any,
        methods: Sequence[str] | str | None = None,
        *,
        gamma: float = 0.99,
        explore: bool = True,
        epsilon_greedy: float = 0.0,
        confidence: float = 0.95,
        num_resamples: int = 1000,
        q_model_config: Mapping[str, Any] | None = None,
        seed: int = 0,
        data_options: Mapping[str, Any] | None = None,
    ) -> Estimates:
        """Estimates the value of the policy from episodes that another policy recorded, without acting.

        Observations and actions of the data are the module's inputs and outputs, as `offline_data` records and reads
        them. If the data contain the environment's observations, and its space differs, the policy's connectors convert
        them. Only complete episodes are used.

        =========  =============================================================================================
        ``is``     importance sampling: the product of an episode's ratios times its return (Precup et al., 2000)
        ``pdis``   per decision: rewards times the products of ratios up to them
        ``wis``    weighted: the mean of returns, weighted by products; biased, and varies much less
        ``dm``     direct method: values of the first states by fitted Q evaluation (Le et al., 2019); its interval
                   covers the first states and leaves out how wrong Q is
        ``dr``     doubly robust: Q, corrected by ratios (Jiang and Li, 2016)
        =========  =============================================================================================

        Args:
            data: Path, list of paths, what `open_dataset` or ``Dataset.read_all`` returned.
            methods: Some of the names above; None for all that the policy allows.
            gamma: Discount, from 0 to 1.
            explore: True: the policy that draws its actions; False: the greedy policy, for discrete actions.
            epsilon_greedy: Probability of a random action in place of the policy's, for Discrete actions.
            confidence: Confidence of the intervals (bootstrap over episodes), between 0 and 1.
            num_resamples: Number of bootstrap resamples of the episodes.
            q_model_config: Settings of fitted Q evaluation for "dm" and "dr"; see `FittedQConfig`.
            seed: Seed of the bootstraps, and of learning.
            data_options: Options for reading files, ``{setting of offline_data: value}``, such as
                ``{"input_read_schema": {"obs": "o"}}``.

        Returns:
            ``{method: Estimate}``, which prints as a table. A warning names unreliable estimates, such as those with an
            effective sample size below 10 episodes.

        Raises:
            ValueError: If the data has no log-probabilities of its actions (``action_logp``) or no whole episode, or
                the policy has none for its own actions.
        """
        return estimate(
            self.module,
            self._as_seen(steps_of(data, self._read_options(data_options or {}))),
            methods=methods,
            gamma=gamma,
            acting=ActingBy(explore, epsilon_greedy),
            confidence=confidence,
            num_resamples=num_resamples,
            q_model_config=q_model_config,
            seed=seed,
        )

    def _read_options(self, settings: Mapping[str, Any]) -> ReadOptions:
        """Returns the options for reading files of recorded steps for this policy: spaces, and the conversion to module
        inputs.
        """
        module, (_, pipeline, _) = self.module, self._program.pipelines(self._arrays)[0]
        env_to_module: Any = pipeline
        inputs = PipelineInputs(module.observation_space, lambda: env_to_module)  # pyright: ignore[reportArgumentType]
        return ReadOptions.from_settings(settings, known_only=True, inputs=inputs, action_space=module.action_space)

    def _as_seen(self, steps: Steps) -> Steps:
        """Normalises recorded observations with the statistics of the policy's training data; returns the steps
        unchanged if the policy has no `RecordedMeanStdFilter`.
        """
        component, pipeline, state = self._program.pipelines(self._arrays)[0]
        assert component == COMPONENT_ENV_TO_MODULE_CONNECTOR
        for connector in _with_state(pipeline, state).connectors:
            if isinstance(connector, RecordedMeanStdFilter):
                batch = {self.module_id: {Columns.OBS: steps.columns[Columns.OBS]}}
                normalize = jax.jit(functools.partial(connector.apply, ctx=ConnectorContext()))
                seen = jax.device_get(normalize(connector.state, batch)[1][self.module_id][Columns.OBS])
                steps = dataclasses.replace(steps, columns={**steps.columns, Columns.OBS: seen})
        return steps

    # ----------------------------------------------------------------------------------------------------- state

    @property
    def module(self) -> RLModule:
        """Module with the policy's weights; the same object until the weights change. Changes of this module do not
        affect the policy.
        """
        return self._modules[self.module_id]

    @property
    def _modules(self) -> MultiRLModule:
        arrays, bound = self._arrays, self._bound
        if bound is None or bound[0] is not arrays:
            bound = self._bound = (arrays, self._program.step.pure.bind(arrays.params, arrays.rest))
        return bound[1]

    def get_weights(self) -> dict[str, np.ndarray]:
        """Returns copies of the module's weights, ``{name: array}``."""
        return self.module.get_state()

    def set_weights(self, weights: Mapping[str, Any]) -> None:
        """Sets the module's weights to a result of `get_weights`, or to ``Algorithm.get_weights()[module_id]``.

        Raises:
            ValueError: For a name or shape that the module does not have.
        """
        self.set_state({COMPONENT_RL_MODULE: dict(weights)})

    def get_state(self, components: Parts = None, *, not_components: Parts = None, **kwargs: Any) -> dict[str, Any]:
        """Returns the policy's weights, connector statistics and settings as nested dicts of NumPy arrays.

        Args:
            components: Only these of `COMPONENTS`; None for all.
            not_components: Leave these out.
            **kwargs: None.

        Raises:
            ValueError: For unknown components.
        """
        wanted = selected(COMPONENTS, components, not_components, "a Policy")
        arrays, program = self._arrays, self._program
        state: dict[str, Any] = {}
        if COMPONENT_RL_MODULE in wanted:
            state[COMPONENT_RL_MODULE] = self.get_weights()
        for name, pipeline, own in program.pipelines(arrays):
            if name in wanted:
                state[name] = _with_state(pipeline, own).get_state()
        if "settings" in wanted:
            state["settings"] = jax.device_get(arrays.settings)
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores the components in `state`, a result of `get_state`. Unfinished episodes continue with their earlier
        connector statistics.

        Raises:
            ValueError: For unknown components, or parts that do not fit; nothing is changed then.
        """
        selected(COMPONENTS, list(state), None, "a Policy")
        arrays, program = self._arrays, self._program
        changed: dict[str, Any] = {}
        if COMPONENT_RL_MODULE in state:
            pure = program.step.pure
            modules = pure.bind(self._to_device(arrays.params), self._to_device(arrays.rest))
            modules[self.module_id].set_state(state[COMPONENT_RL_MODULE])
            params, rest = pure.unbind(modules)
            changed |= {"params": self._to_device(params), "rest": self._to_device(rest)}
        for name, pipeline, own in program.pipelines(arrays):
            if state.get(name):
                pipeline = _with_state(pipeline, own)
                pipeline.set_state(state[name])
                changed[FIELDS[name]] = self._to_device(pipeline.pure_part().rebatch(pipeline.state, 1))
        if "settings" in state:
            given = jax.tree.map(lambda x: np.asarray(x, np.float32), dict(state["settings"]))
            if jax.tree.structure(given) != jax.tree.structure(arrays.settings):
                raise ValueError(
                    f"set_state(): the keys of state['settings']={given} do not fit this policy, which has the "
                    f"settings {jax.device_get(arrays.settings)}. Pass {{module_id: {{name: value}}}} with the same "
                    "module ids and names."
                )
            changed["settings"] = self._to_device(given)
        if program.has_host_connectors and state.get(COMPONENT_ENV_TO_MODULE_CONNECTOR):
            # Those keep their states themselves.
            program.env_to_module.set_state(state[COMPONENT_ENV_TO_MODULE_CONNECTOR])
        self._arrays = arrays._replace(**changed)

    # ----------------------------------------------------------------------------------------------- checkpoints

    def get_ctor_args_and_kwargs(self) -> tuple[tuple, dict[str, Any]]:
        """Returns the constructor arguments that a checkpoint stores. The module and the pipelines are separate
        checkpoint components (see `get_checkpointable_components`); `get_state` returns the settings that are arrays.
        """
        return (), {
            "module_id": self.module_id,
            "settings": self._program.fixed,
            "timesteps": self._timesteps,
            "seed": self._seed,
        }

    def get_checkpointable_components(self) -> list[tuple[str, Any]]:
        """Returns module and pipelines by component name; a checkpoint stores each in a separate folder."""
        pipelines = self._program.pipelines(self._arrays)
        return [
            (COMPONENT_RL_MODULE, self.module),
            *((name, _with_state(pipeline, own)) for name, pipeline, own in pipelines),
        ]

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        module_id: str = DEFAULT_MODULE_ID,
        *,
        filesystem: Any = None,
        allow: Iterable[Any] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        device: Any = None,
    ) -> Self:
        """Loads a policy from a checkpoint, without building the algorithm.

        Args:
            path: Folder that `save_to_path` of an Algorithm or of a Policy wrote.
            module_id: Id of the module that acts; used only for the checkpoint of an Algorithm.
            filesystem: A ``pyarrow.fs.FileSystem`` that `path` is on.
            allow: Classes and functions of yours that modules and connectors are made of; names of this package are
                found without.
            settings: Traced settings; see `Policy`. An algorithm's checkpoint holds them with the config, which is not
                read here. DQN, PQN and TD3 need some to explore, and connectors or modules of your own can read some.
            device: Device of the policy; None for JAX's default device.

        Raises:
            FileNotFoundError: If there is no checkpoint.
            ValueError: If it is damaged or of another kind, needs a class that is not allowed, or lacks the module.
        """
        with opened(path, filesystem) as stored:
            what = f"The checkpoint at {stored.path}"
            about: dict[str, Any]
            if stored.metadata_file == ALGORITHM_METADATA_FILE:
                learner = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER)
                module = _of_module(learner.part(COMPONENT_RL_MODULE), module_id)
                runner = _runner_of(stored)
                if runner is None:
                    raise ValueError(
                        f"{what} has no connectors: its run had no environment. Load the run with an environment, and "
                        f"save its policy: Algorithm.from_checkpoint(path, env=...).get_policy({module_id!r})"
                        f".save_to_path(...)."
                    )
                num_env_steps = stored.metadata.get("num_env_steps_sampled_lifetime")
                about = {"module_id": module_id, "timesteps": num_env_steps}
            else:
                component, loader = stored.component(), ClassLoader()
                cls._stored_class(component, loader, what)
                module, runner = stored.part(COMPONENT_RL_MODULE), stored
                decoder = Decoder(loader, what=what)
                about = decoder.decode_items(component.ctor["kwargs"])
                about["settings"] = _merged(about.get("settings"), stored.state(loader).get("settings"), what)
            if settings is not None:
                about["settings"] = settings
            first, second = (
                _pipeline_of(runner.part(name), module_id)
                for name in (COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR)
            )
            needed = NeededCode(ClassLoader(allow, written_here=stored.code_written_here()))
            for part, part_class in ((module, RLModule), (first, EnvToModulePipeline), (second, ModuleToEnvPipeline)):
                needed.add_component(part.component(), part_class)
            more = [] if module_id == DEFAULT_MODULE_ID else [repr(module_id)]
            needed.check(stored.path, f"{cls.__name__}.from_checkpoint", *more)
            parts = (
                RLModule.from_checkpoint(module.path, allow=allow),
                EnvToModulePipeline.from_checkpoint(first.path, allow=allow),
                ModuleToEnvPipeline.from_checkpoint(second.path, allow=allow),
            )
            with fitting(what, "a Policy"):
                return cls(*parts, device=device, **about)

    # ---------------------------------------------------------------------------------------------------- export

    def export(
        self,
        path: str | os.PathLike[str],
        format: str = "stablehlo",
        *,
        explore: bool = False,
        platforms: Collection[str] = ("cpu", "cuda", "tpu"),
        batch_size: int | None = None,
    ) -> str:
        """Writes the policy as a compiled program that runs without its Python classes; see `load_exported`.

        Args:
            path: Folder; a former export there is replaced.
            format: ``"stablehlo"``.
            explore: Whether the program samples actions.
            platforms: Platforms that it can run on.
            batch_size: The only batch size that it takes; None for any.

        Returns:
            The folder's absolute path.

        Raises:
            ValueError: For another format, or a policy with host connectors, which are no part of a program.
        """
        if format not in exporting.FORMATS:
            raise ValueError(f"export(format={format!r}): unknown format. Choose from {list(exporting.FORMATS)}.")
        on_host = self._program.env_to_module.host_connectors
        if on_host:
            raise ValueError(
                f"The connectors {list(on_host)} override `__call__` with Python code that processes episodes, but an "
                "exported policy contains only compiled code. Write these connectors as pure functions (`init` and "
                "`apply`), or serve the policy without export."
            )
        arrays, program = self._arrays, self._program

        def act(weights, state, observations, rewards, resets, key, count):
            used = arrays._replace(params=weights["params"], rest={**arrays.rest, **weights["rest"]})
            key = jax.random.wrap_key_data(key, impl="threefry2x32")
            columns = {Columns.OBS: observations}
            return program.traced(used, state, columns, rewards, resets, key, count, explore=explore)[:3]

        streams = program.step.pure.stream_refs
        return exporting.write_stablehlo(
            path,
            self,
            act,
            weights={
                "params": arrays.params,
                "rest": {ref: leaf for ref, leaf in arrays.rest.items() if ref not in streams},
            },
            unread_observations=program.unread_observations(arrays, bool(explore)),
            explore=explore,
            platforms=tuple(platforms),
            batch_size=batch_size,
            seed=self._seed,
        )


def has_connectors(path: str | os.PathLike[str], *, filesystem: Any = None) -> bool:
    """Whether the checkpoint of an algorithm or policy contains connectors.

    The checkpoint of a run without an environment contains no connectors: only the module can be loaded, with
    `module_of_checkpoint`.

    Args:
        path, filesystem: See `Policy.from_checkpoint`.

    Raises:
        FileNotFoundError: If there is no checkpoint.
    """
    with opened(path, filesystem) as stored:
        return stored.metadata_file != ALGORITHM_METADATA_FILE or _runner_of(stored) is not None


def module_of_checkpoint(
    path: str | os.PathLike[str],
    module_id: str = DEFAULT_MODULE_ID,
    *,
    filesystem: Any = None,
    allow: Iterable[Any] = (),
) -> RLModule:
    """Loads the module from the checkpoint of an algorithm or policy, with its weights, but without connectors.

    Args:
        path, module_id, filesystem, allow: See `Policy.from_checkpoint`.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: As `Policy.from_checkpoint`.
    """
    with opened(path, filesystem) as stored:
        if stored.metadata_file == ALGORITHM_METADATA_FILE:
            learner = stored.part(COMPONENT_LEARNER_GROUP).part(COMPONENT_LEARNER)
            module = _of_module(learner.part(COMPONENT_RL_MODULE), module_id)
        else:
            module = stored.part(COMPONENT_RL_MODULE)
        return RLModule.from_checkpoint(module.path, allow=allow)


def _runner_of(stored: Stored) -> Stored | None:
    """Returns, from an algorithm's checkpoint, the component of the env runner, which contains the connectors; None if
    the run had no environment.

    Runs that sample nothing have the connectors of their evaluation only.
    """
    names = [name for name in (COMPONENT_ENV_RUNNER, COMPONENT_EVAL_ENV_RUNNER) if name in stored.parts]
    return stored.part(names[0]) if names else None


def _of_module(modules: Stored, module_id: str) -> Stored:
    """Returns the checkpoint component of the module with the given id. `modules` is the component that contains all
    modules.

    Raises:
        ValueError: If the checkpoint has no module with this id.
    """
    if module_id not in modules:
        raise ValueError(
            f"The checkpoint at {modules.path} has no module {module_id!r}: pass module_id=, one of "
            f"{sorted(modules.parts)}."
        )
    return modules.part(module_id)


def _pipeline_of(stored: Stored, module_id: str) -> Stored:
    """Returns the checkpoint component of a module's connector pipeline.

    If all modules share one pipeline, returns that pipeline. If modules have separate pipelines, but this module has
    none because it acts for no agent, returns the first pipeline.
    """
    if stored.component().class_path != path_of(PipelinesByModule):
        return stored
    return stored.part(module_id if module_id in stored else stored.parts[0])


def _merged(fixed: Any, traced: Any, what: str) -> dict[str, dict[str, Any]]:
    """Merges two kinds of settings from a policy's checkpoint into ``{module_id: {name: value}}``.

    `fixed` are the constants of the compiled program; `traced` are the arrays in the policy's state.
    """
    parts = (fixed, traced)
    if not all(isinstance(p, dict) and all(isinstance(own, dict) for own in p.values()) for p in parts):
        raise ValueError(
            f"{what} is damaged: its settings are not a dict {{module_id: {{name: value}}}}. Load another checkpoint."
        )
    return {mid: {**fixed.get(mid, {}), **traced.get(mid, {})} for mid in {**fixed, **traced}}


def _with_state(pipeline: Any, pure_state: Any) -> Any:
    """Returns a copy of a connector pipeline with the given state of its pure (compiled) connectors."""
    pipeline = copy.deepcopy(pipeline)
    pipeline.state = jax.device_get(pure_state)
    return pipeline


__all__ = ["Policy", "PolicySpec"]
