"""One step of a policy, from observations to actions: both connector pipelines and the module, as pure functions.

Rollouts on the device, the policies of host runners, served policies and exported policies trace the same
`ModuleStep.step`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self, TypeVar

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import sample_valid, valid_actions
from jaxrl_stack.core.models.base import as_sequences, batched_state, of_steps
from jaxrl_stack.core.rl_module.checks import BATCH_SIZE
from jaxrl_stack.ops.masks import expand, where_rows, zero_where
from jaxrl_stack.utils import counters, spaces, streams
from jaxrl_stack.utils.spaces.boxes import members_of

if TYPE_CHECKING:
    from jaxrl_stack.connectors.pure_pipeline import PurePipeline
    from jaxrl_stack.core.rl_module.functional import PureModule

StateT = TypeVar("StateT", bound="ModuleState")


@struct.dataclass
class ModuleState:
    """State of a policy between steps, for ``B`` rows (one agent in one environment each) of one module: connectors,
    recurrent state, previous actions and rewards.

    Attributes:
        env_to_module: State of the env-to-module pipeline.
        module_to_env: State of the module-to-env pipeline.
        recurrent: Recurrent state of the module, ``[B, ...]``; ``{}`` for a module without one.
        prev_actions: The module's last actions, ``[B, ...]``; zeros after a reset.
        prev_rewards: float32 ``[B]``, rewards of the last actions; zeros after a reset. None if every call passes them.
        reset: bool ``[B]``, whether the next observation is the first of its episode.
    """

    env_to_module: Any
    module_to_env: Any
    recurrent: Any
    prev_actions: Any
    prev_rewards: Any
    reset: Any

    def after(self, rewards: jax.Array, reset: jax.Array) -> Self:
        """Returns the policy's state after an environment step.

        In rows (one agent in one environment each) whose next observation starts an episode, previous actions and
        rewards become zeros.

        Args:
            rewards: Rewards of the step, float32 ``[B]``.
            reset: bool ``[B]``, whether the next observation is the first of its episode.
        """
        return dataclasses.replace(
            self,
            prev_actions=zero_where(reset, self.prev_actions),
            prev_rewards=zero_where(reset, rewards),
            reset=reset,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ModuleStep:
    """Policy step of one module (env-to-module pipeline, forward pass, module-to-env pipeline): pure functions with the
    static parts that they need.

    The functions process ``B`` rows: one row per environment, and per agent if several agents share the module.

    Attributes:
        module_id: The module that acts.
        pure: The MultiRLModule as pure functions and arrays.
        env_to_module: Pipeline from observations to the module's batch.
        module_to_env: Pipeline from the module's outputs to the environment's actions.
        draws_actions: Whether actions are drawn from the action space instead of from the module.
    """

    module_id: str
    pure: PureModule
    env_to_module: PurePipeline
    module_to_env: PurePipeline
    draws_actions: bool = False

    def of_module(self, module_id: str) -> Self:
        """Returns the policy step of the module `module_id`, with the same connector pipelines as in this policy step.

        Raises:
            ValueError: If there is no such module, or it is ``learner_only``.
        """
        modules = self.pure.template
        if module_id not in modules or modules[module_id].learner_only:
            acting = [mid for mid, module in modules.items() if not module.learner_only]
            raise ValueError(f"Module {module_id!r} does not act: it is learner_only or unknown. Use one of {acting}.")
        return self if module_id == self.module_id else dataclasses.replace(self, module_id=module_id)

    def start(self, num_envs: Any, env_to_module: Any = None, module_to_env: Any = None) -> ModuleState:
        """Returns the policy's initial state (connectors, recurrent state), before the first observations of its rows
        (one agent in one environment each).

        Args:
            num_envs: Number of rows, ``B``.
            env_to_module: Pipeline state whose statistics to continue; None starts from the pipeline's initial state.
            module_to_env: The same for the other pipeline.
        """
        given = ((self.env_to_module, env_to_module), (self.module_to_env, module_to_env))
        first, second = (
            pipeline.init(num_envs) if state is None else pipeline.rebatch(state, num_envs) for pipeline, state in given
        )
        return ModuleState(
            env_to_module=first,
            module_to_env=second,
            recurrent=self.initial_recurrent(num_envs),
            prev_actions=spaces.zeros(self.env_to_module.action_space, (num_envs,)),
            prev_rewards=jnp.zeros((num_envs,), jnp.float32),
            reset=jnp.ones((num_envs,), bool),
        )

    def where_rows(self, mask: jax.Array, yes: StateT, no: StateT) -> StateT:
        """Selects the policy state of each row (one agent in one environment): from `yes` where `mask` is True, else
        from `no`. Connector statistics come from `yes`.

        Args:
            mask: bool ``[B]``.
            yes: State after a step of all rows.
            no: State before the step.
        """
        selected = {
            name: where_rows(mask, getattr(yes, name), getattr(no, name))
            for name in ("recurrent", "prev_actions", "prev_rewards", "reset")
        }
        return dataclasses.replace(
            yes,
            env_to_module=self.env_to_module.where_rows(mask, yes.env_to_module, no.env_to_module),
            module_to_env=self.module_to_env.where_rows(mask, yes.module_to_env, no.module_to_env),
            **selected,
        )

    def merged(self, state: ModuleState, axis_name: str | None) -> ModuleState:
        """Merges new connector statistics into the earlier statistics, and returns the policy's new state.

        New statistics have been collected since the last merge. Merges over all devices on the axis `axis_name`, or
        only on this device if `axis_name` is None.
        """
        return dataclasses.replace(
            state,
            env_to_module=self.env_to_module.merge(state.env_to_module, axis_name),
            module_to_env=self.module_to_env.merge(state.module_to_env, axis_name),
        )

    def initial_recurrent(self, num_envs: Any) -> Any:
        """Returns the module's recurrent state at the start of episodes, ``[B, ...]``; ``{}`` for a stateless
        module.
        """
        return batched_state(self.pure.template[self.module_id].get_initial_state(), num_envs)

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> Any:
        """Returns the values that connectors may read in every step of a rollout, such as weights and settings.

        The method `step` adds the values of a single step, such as the previous actions.

        Args:
            params: Parameters of the MultiRLModule.
            rest: Its other state.
            settings: ``{module_id: {name: current value}}`` of the traced settings.
            timesteps: uint32[2], lifetime env steps before this rollout.
            **static: ``explore``: whether to sample actions (True) or to take the greedy ones; ``update_statistics``:
                whether running statistics of connectors learn from the observations; ``axis_name``: device axis, for
                connectors.

        Returns:
            A `ConnectorContext`.
        """
        return self.env_to_module.make_context(
            params=params, rest=rest, settings=settings, step=timesteps, pure=self.pure, **static
        )

    def step(
        self, state: StateT, columns: dict[str, Any], context: Any, random_streams: dict[str, Any] | None = None
    ) -> tuple[StateT, dict[str, Any], dict[str, Any]]:
        """Computes actions from observations with the env-to-module pipeline, the module and the module-to-env
        pipeline.

        Args:
            state: State before the step; fields of subclasses of `ModuleState` pass unchanged.
            columns: ``{"obs": observations [B, ...]}`` and columns of host connectors. ``loss_mask``, bool ``[B]``,
                marks the rows from which statistics learn; the module does not receive it. ``state_in`` and ``resets``
                replace the values in `state`.
            context: Context of acting; see `context`. Its ``key`` belongs to this step.
            random_streams: Result of `random_streams` for that key; None computes it.

        Returns:
            ``(state, the module's batch [B, ...], columns after the module-to-env pipeline [B, ...])``; the last ones
            include actions and actions_for_env. `ModuleState.after` adds the results of the environments.
        """
        if jax.tree.leaves(state.recurrent):
            first = self.initial_recurrent(state.reset.shape[0])
            recurrent = jax.tree.map(
                lambda new, old: jnp.where(expand(state.reset, old), new, old), first, state.recurrent
            )
            columns = {Columns.STATE_IN: recurrent, Columns.RESETS: state.reset, **columns}
        mid = self.module_id
        context = self._at(context, state.reset, state.prev_actions, state.prev_rewards)
        env_to_module, batches = self.observe(state.env_to_module, columns, context)
        batch = {name: column for name, column in batches[mid].items() if name != Columns.LOSS_MASK}
        module_to_env, acted = self.act(state.module_to_env, {**batches, mid: batch}, context, random_streams)
        # Keep the dtypes, so that the next call or iteration of a loop is the same program.
        prev_actions = jax.tree.map(lambda old, new: new.astype(old.dtype), state.prev_actions, acted[Columns.ACTIONS])
        state = dataclasses.replace(
            state,
            env_to_module=env_to_module,
            module_to_env=module_to_env,
            recurrent=acted.get(Columns.STATE_OUT, state.recurrent),
            prev_actions=prev_actions,
            reset=jnp.zeros_like(state.reset),
        )
        return state, batch, acted

    def shapes(self, settings: Any, *, explore: bool) -> dict[str, Any]:
        """Returns shapes and dtypes of the columns that `step` would return for a small constant number of environments
        (`BATCH_SIZE`), without computing the columns.

        Args:
            settings: ``{module_id: {name: current value}}``, or their shapes.
            explore: Whether to sample actions (True) or to take the greedy ones.

        Returns:
            ``{column: pytree of jax.ShapeDtypeStruct [BATCH_SIZE, ...]}``: the module's batch and the columns after the
            module-to-env pipeline, except actions_for_env.
        """

        def one_step(params: Any, rest: Any, settings: Any, observations: Any) -> dict[str, Any]:
            static = {"explore": explore, "update_statistics": False}
            context = self.context(params, rest, settings, counters.zero(), **static)
            context = dataclasses.replace(context, key=jax.random.key(0))
            _, batch, acted = self.step(self.start(BATCH_SIZE), {Columns.OBS: observations}, context)
            return {**batch, **{name: own for name, own in acted.items() if name != Columns.ACTIONS_FOR_ENV}}

        # The batch size of the checks of modules: JAX reuses the parts that these have traced.
        space: Any = self.env_to_module.input_observation_space
        observations = spaces.shape_dtype_struct(space, (BATCH_SIZE,))
        return jax.eval_shape(one_step, self.pure.params, self.pure.rest, settings, observations)

    def _at(self, context: Any, reset: Any, prev_actions: Any, prev_rewards: Any) -> Any:
        mid = self.module_id
        return dataclasses.replace(
            context, reset=reset, prev_actions={mid: prev_actions}, prev_rewards={mid: prev_rewards}
        )

    def observe(
        self, env_to_module: Any, columns: dict[str, Any], context: Any, *, stream: str = "env_to_module"
    ) -> tuple[Any, dict[str, Any]]:
        """Applies the env-to-module pipeline to observations; returns the pipeline's new state and the module's inputs.

        Args:
            env_to_module: State of the pipeline.
            columns: ``{"obs": observations [B, ...]}`` and columns of host connectors.
            context: A `ConnectorContext`.
            stream: Name of the random stream; a second call in a step needs a different one.

        Returns:
            ``(pipeline state, {module_id: the module's batch})``.
        """
        context = dataclasses.replace(context, key=streams.named(context.key, stream))
        return self.env_to_module.apply(env_to_module, {self.module_id: columns}, context)

    def observe_final(
        self, env_to_module: Any, final_obs: Any, context: Any, *, prev_actions: Any, prev_rewards: Any
    ) -> Any:
        """Computes the module's inputs from the observations after a step and before any reset.

        The history continues; statistics do not change.

        Args:
            env_to_module: State of the pipeline after the observations on which the step acted.
            final_obs: Observations after the step, ``[B, ...]``.
            context: Context of acting, with the step's ``key``.
            prev_actions: Actions of the step, ``[B, ...]``.
            prev_rewards: Rewards of the step, float32 ``[B]``.
        """
        context = dataclasses.replace(context, update_statistics=False)
        context = self._at(context, jnp.zeros(prev_rewards.shape, bool), prev_actions, prev_rewards)
        columns = {Columns.OBS: final_obs}
        return self.observe(env_to_module, columns, context, stream="final_observation")[1][self.module_id][Columns.OBS]

    def random_streams(self, rest: Any, key: jax.Array) -> dict[str, Any]:
        """Returns the module's random streams (of dropout, for example), restarted from the PRNG key of a step."""
        return self.pure.random_streams(rest, streams.named(key, "module"), self.module_id)

    def act(
        self, module_to_env: Any, batch: dict[str, Any], context: Any, random_streams: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Applies the module's forward pass and the module-to-env pipeline to a batch.

        Args:
            module_to_env: State of the pipeline.
            batch: Result of the env-to-module pipeline, ``{module_id: {column: pytree [B, ...]}}``.
            context: A `ConnectorContext`.
            random_streams: Result of `random_streams` for the context's key; None computes it.

        Returns:
            ``(pipeline state, columns)``; the columns include actions and actions_for_env.
        """
        mid = self.module_id
        space: Any = self.env_to_module.input_action_space
        mask = valid_actions(batch[mid][Columns.OBS], space)
        if self.draws_actions:
            if mask is None:
                actions = spaces.sample(context.key, spaces.from_zero(space), context.reset.shape)
            else:
                actions = sample_valid(context.key, space, mask)
            for_env = spaces.map_parts(spaces.from_start, space, actions)
            return module_to_env, {Columns.ACTIONS: actions, Columns.ACTIONS_FOR_ENV: for_env}
        if random_streams is None:
            random_streams = self.random_streams(context.rest, context.key)
        module = self.pure.bind(context.params, {**context.rest, **random_streams})[mid]
        inputs = as_sequences(batch[mid])
        if context.explore:
            settings = {name: context.settings[mid][name] for name in module.exploration_settings}
            outputs = module.forward_exploration(inputs, t=counters.as_float(context.step), **settings)
        else:
            outputs = module.forward_inference(inputs)
        if Columns.STATE_IN in inputs:
            outputs = of_steps(outputs, lambda x: x[:, 0])
        if mask is not None:
            context = dataclasses.replace(context, action_masks={mid: mask})
        module_to_env, acted = self.module_to_env.apply(module_to_env, {mid: outputs}, context)
        return module_to_env, acted[mid]

    def act_once(self, columns: dict[str, Any], key: jax.Array, env_to_module: Any, context: Any) -> dict[str, Any]:
        """Computes actions for single observations outside of any rollout; connectors treat them as first observations
        of episodes.

        Args:
            columns: ``{"obs": observations [B, ...]}`` and columns of host connectors; ``state_in`` for a recurrent
                state other than the initial one.
            key: PRNG key.
            env_to_module: State of the env-to-module pipeline, whose statistics are used.
            context: Context of acting; see `context`.

        Returns:
            The columns of `act`, ``[B, ...]``.
        """
        state = self.start(jax.tree.leaves(columns)[0].shape[0], env_to_module)
        if Columns.STATE_IN in columns:
            columns = {**columns, Columns.RESETS: jnp.zeros_like(state.reset)}
        return self.step(state, columns, dataclasses.replace(context, key=key, update_statistics=False))[2]

    def first_row(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Returns row 0 of the columns that `act_once` computed, as NumPy arrays. Converts the action for the
        environment to an element of the action space.
        """
        columns = jax.tree.map(lambda x: x[0], columns)
        space: Any = self.env_to_module.input_action_space
        return {**columns, Columns.ACTIONS_FOR_ENV: members_of(space)(columns[Columns.ACTIONS_FOR_ENV])}
