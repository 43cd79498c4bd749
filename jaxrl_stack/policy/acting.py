"""State of a policy for unfinished episodes, and the compiled programs that compute the policy's actions."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import jax
import numpy as np
from flax import struct

from jaxrl_stack.acting.module_step import ModuleState, ModuleStep
from jaxrl_stack.core import COMPONENT_ENV_TO_MODULE_CONNECTOR, COMPONENT_MODULE_TO_ENV_CONNECTOR
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils.live_inputs import read_inputs
from jaxrl_stack.utils.nested import row
from jaxrl_stack.utils.spaces import shape_dtype_struct


@struct.dataclass
class PolicyState(ModuleState):
    """Frozen pytree with the state of a policy for ``B`` unfinished episodes: connector states, recurrent state,
    previous actions and rewards.

    Connector statistics are the ones at the start of the episodes.

    Attributes:
        episodes: Episode objects for host connectors (RLlib's ``__call__``); None if the policy has none.
    """

    episodes: EpisodeTracker | None = struct.field(pytree_node=False, default=None)

    @property
    def num_envs(self) -> int:
        """Number of environments in this state, ``B``."""
        return self.reset.shape[0]


class PolicyArrays(NamedTuple):
    """All arrays of a policy (weights, settings, connector states), replaced together, so that calls in other threads
    see one consistent version.
    """

    params: Any
    rest: Any
    settings: Any
    timesteps: Any
    env_to_module: Any
    module_to_env: Any


FIELDS = {COMPONENT_ENV_TO_MODULE_CONNECTOR: "env_to_module", COMPONENT_MODULE_TO_ENV_CONNECTOR: "module_to_env"}
"""Component -> name of its pipeline, and of that one's state in `PolicyArrays`."""


class PolicyProgram:
    """Compiled functions of a policy, together with the policy's connector pipelines and the structure of its module.

    Policies that differ only in arrays, such as weights, can share one `PolicyProgram`, unless they have host
    connectors.

    Args:
        pure: The MultiRLModule, split into its structure and its arrays.
        env_to_module, module_to_env: The pipelines. Copies are stored, so later changes of them have no effect.
        module_id: Id of the module that acts.
        fixed: ``{module_id: {name: number}}`` of the settings that are constants of the program.

    Attributes:
        env_to_module: The whole pipeline.
        module_to_env: The pipeline.
        step: The part that is compiled.
        has_host_connectors: Whether `env_to_module` begins with connectors that run on episodes.
    """

    def __init__(self, pure: PureModule, env_to_module: Any, module_to_env: Any, module_id: str, fixed: Any):
        for pipeline in (env_to_module, module_to_env):
            if pipeline.input_observation_space is None or pipeline.input_action_space is None:
                raise ValueError(
                    f"{type(pipeline).__name__} has no spaces. Set its input_observation_space and "
                    f"input_action_space to the environment's spaces."
                )
        # Of pipelines it is the object that counts, and the connectors that are in it now.
        self._made_of = (env_to_module, env_to_module.names, module_to_env, module_to_env.names, module_id, fixed)
        self.env_to_module = copy.deepcopy(env_to_module)
        self.module_to_env = copy.deepcopy(module_to_env)
        self.module_to_env.check_pure()
        self.has_host_connectors = bool(self.env_to_module.checked_host_connectors())
        self.fixed = fixed
        self.step = ModuleStep(
            module_id=module_id,
            pure=pure,
            env_to_module=self.env_to_module.pure_part(),
            module_to_env=self.module_to_env.pure_part(),
        )
        self.act = jax.jit(self.traced, static_argnames="explore")
        self.initial_state = jax.jit(self._initial_state, static_argnames="num_envs")

    def serves(self, pure: PureModule, env_to_module: Any, module_to_env: Any, module_id: str, fixed: Any) -> bool:
        """Whether this compiled program also works for a policy with the given module, pipelines and settings."""
        made_of = (env_to_module, env_to_module.names, module_to_env, module_to_env.names, module_id, fixed)
        # Host connectors may carry state of their own: every policy has its own.
        return (
            not self.has_host_connectors
            and self._made_of == made_of
            and self.step.pure.definition.same_as(pure.definition)
        )

    def pipelines(self, arrays: PolicyArrays) -> list[tuple[str, Any, Any]]:
        """Returns ``(component name, pipeline, state)`` for the env-to-module and the module-to-env pipeline.

        The component name is RLlib's, such as "env_to_module_connector"; `state` is the state of the pipeline's
        compiled connectors.
        """
        return [(name, getattr(self, field), getattr(arrays, field)) for name, field in FIELDS.items()]

    def unread_observations(self, arrays: PolicyArrays, explore: bool | None = None) -> list[str]:
        """Returns the entries of Dict observations that do not influence actions, as paths such as
        ``"privileged_state"``, or ``"camera/depth"`` in a nested Dict.

        They are found in a trace of the program. Recurrent states and states of connectors count as read if a later
        action depends on them. Host connectors may read everything: the list is empty then.

        Args:
            arrays: Any arrays of the policy.
            explore: Value of `explore` of the actions; None for both. If the module cannot act with one of them, the
                other one counts.
        """
        if self.has_host_connectors or not isinstance(self.env_to_module.input_observation_space, gym.spaces.Dict):
            return []
        traces, failed = [], None
        for mode in (False, True) if explore is None else (explore,):
            try:
                traces.append(self._trace(arrays, mode, 1))
            except Exception as error:  # whatever a module raises that only acts greedily, or only explores
                failed = error
                try:
                    self._trace(arrays, mode, 2)
                except Exception:
                    continue
                raise  # It acts, and what it reads is not known.
        if not traces:
            assert failed is not None
            raise failed
        state, observations = self._arguments(arrays, 1)
        num_leaves = len(jax.tree.leaves(state))
        # A leaf of the state is read if a later action depends on it.
        read_state, found = None, [False] * num_leaves
        while found[:num_leaves] != read_state:
            read_state = found[:num_leaves]
            of_modes = [read_inputs(one, [True] * (len(one.outvars) - num_leaves) + read_state) for one in traces]
            found = [any(own) for own in zip(*of_modes, strict=True)]
        named = zip(jax.tree.leaves_with_path(observations), found[num_leaves:], strict=True)
        return [jax.tree_util.keystr(path, simple=True, separator="/") for (path, _), is_read in named if not is_read]

    def _arguments(self, arrays: PolicyArrays, num_envs: int) -> tuple[Any, Any]:
        """Returns the shapes and dtypes of the policy state and the observations with which a policy step is traced,
        for `num_envs` environments.
        """
        connectors = (arrays.env_to_module, arrays.module_to_env)
        state = jax.eval_shape(lambda: self._initial_state(connectors, num_envs=num_envs))
        return state, shape_dtype_struct(self.env_to_module.input_observation_space, (num_envs,))

    def _trace(self, arrays: PolicyArrays, explore: bool, num_envs: int) -> Any:
        """Traces one step of the policy (`_outcome`) for `num_envs` environments, and returns the program (jaxpr)."""
        outcome = functools.partial(self._outcome, arrays, explore)
        return jax.make_jaxpr(outcome)(*self._arguments(arrays, num_envs)).jaxpr

    # ---------------------------------------------------------------------------------------------------- traced

    def _outcome(self, arrays: PolicyArrays, explore: bool, state: PolicyState, observations: Any) -> tuple[Any, ...]:
        """Computes module outputs, actions and the next state of one policy step.

        A trace of this method shows which observations the step reads. Rewards are zero, no environment is reset, and
        the PRNG key is fixed.
        """
        number = state.num_envs
        given = (np.zeros(number, np.float32), np.zeros(number, bool), jax.random.key(0), np.uint32(0))
        actions, after, outputs, _ = self.traced(arrays, state, {Columns.OBS: observations}, *given, explore=explore)
        return {name: column for name, column in outputs.items() if name != Columns.STATE_OUT}, actions, after

    def _initial_state(self, connectors: tuple[Any, Any], *, num_envs: int) -> PolicyState:
        return PolicyState(**{**vars(self.step.start(num_envs, *connectors)), "prev_rewards": None})

    def traced(
        self, arrays: PolicyArrays, state: PolicyState, columns, prev_rewards, reset, key, count, *, explore: bool
    ):
        """Computes one step of the policy and returns ``(actions, state, outputs, inputs)``.

        `actions` are the actions for the environment. `outputs` are all other columns of the step's output, including
        the module's actions (``Columns.ACTIONS``). `inputs` are the observations that the module got; they are None
        unless the env-to-module pipeline has both host connectors and pure (compiled) connectors.
        """
        step = self.step
        values = {mid: {**own, **self.fixed.get(mid, {})} for mid, own in arrays.settings.items()}
        if explore:
            self._check_exploration_settings(values)
        context = step.context(
            arrays.params, arrays.rest, values, arrays.timesteps, explore=explore, update_statistics=False
        )
        state, batch, outputs = step.step(
            state.after(prev_rewards, state.reset | reset),
            columns,
            dataclasses.replace(context, key=jax.random.fold_in(key, count)),
        )
        state = dataclasses.replace(state, prev_rewards=None)
        actions = outputs[Columns.ACTIONS_FOR_ENV]
        outputs = {name: leaf for name, leaf in outputs.items() if name != Columns.ACTIONS_FOR_ENV}
        inputs = batch[Columns.OBS] if self.has_host_connectors and len(step.env_to_module) else None
        return actions, state, outputs, inputs

    def _check_exploration_settings(self, values: Mapping[str, Mapping[str, Any]]) -> None:
        """Raises ValueError if the policy's settings lack a value that the module needs to explore (see the module's
        `exploration_settings`).
        """
        mid, module = self.step.module_id, self.step.pure.template[self.step.module_id]
        missing = [name for name in module.exploration_settings if name not in values.get(mid, {})]
        if missing:
            given = ", ".join(f"{name!r}: 0.1" for name in missing)
            raise ValueError(
                f"explore=True: {type(module).__name__} needs the settings {missing}, which this policy was created "
                f"without.\nUse explore=False, or Policy.from_checkpoint(path, settings={{{mid!r}: {{{given}}}}})."
            )


class EpisodeTracker:
    """Stores the unfinished episodes of a policy with host connectors (RLlib connectors with ``__call__``).

    Host connectors may read and change the episodes. A policy step changes the episodes in place, so each
    `EpisodeTracker` is valid for one step only. The policy state that the step returns contains a new `EpisodeTracker`.

    Args:
        running: Unfinished episodes, one per environment.
        seen: Observations ``[B, ...]`` that the module acted on; they replace the last observations of the episodes.
            None leaves these unchanged.
        outputs: Outputs of the last actions, ``{column: [B, ...]}``; None before the first actions.
    """

    def __init__(self, running: list[SingleAgentEpisode], seen: Any = None, outputs: Any = None):
        self._running = running
        self._outputs = outputs
        self._is_used = False
        if seen is not None:
            for index, episode in enumerate(running):
                episode.set_observations(new_data=row(seen, index), at_indices=-1)

    def extended(self, observations: Any, rewards: np.ndarray, resets: np.ndarray) -> list[SingleAgentEpisode]:
        """Appends observations to the unfinished episodes, but starts a new episode in each environment where `resets`
        is True.

        If no actions were computed yet, starts a new episode in every environment.

        Raises:
            ValueError: If this object was extended before, because the call changes its episodes in place.
        """
        if self._is_used:
            raise ValueError(
                "This state was passed to an earlier call already. A state can be used only once, because the policy's "
                "host connectors (which override `__call__`) change the state's episodes in place. Pass the state that "
                "the last call returned."
            )
        self._is_used = True
        for index, reset in enumerate(resets.tolist()):
            observation = row(observations, index)
            if reset or self._outputs is None:
                self._running[index] = SingleAgentEpisode()
                self._running[index].add_env_reset(observation)
                continue
            extra = {name: row(leaf, index) for name, leaf in self._outputs.items() if name != Columns.ACTIONS}
            self._running[index].add_env_step(
                observation,
                row(self._outputs[Columns.ACTIONS], index),
                float(rewards[index]),
                extra_model_outputs=extra,
            )
        return self._running
