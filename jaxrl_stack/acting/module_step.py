"""From observations to actions: both pipelines and a module, as pure functions.

Rollouts on the device, the policy of a host runner, served policies and exported ones trace the same `ModuleStep.step`.
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
    """What acting remembers of the ``B`` rows of one module: an agent in a running episode each.

    Attributes:
        env_to_module: State of the env-to-module pipeline.
        module_to_env: State of the module-to-env pipeline.
        recurrent: Recurrent state of the module, ``[B, ...]``; ``{}`` for a module without one.
        prev_actions: The module's last actions, ``[B, ...]``; zeros after a reset.
        prev_rewards: float32 ``[B]``, the rewards that came with the next observations; zeros after a reset. None where
            they are given with every call.
        reset: bool ``[B]``, whether the next observation is the first of its episode.
    """

    env_to_module: Any
    module_to_env: Any
    recurrent: Any
    prev_actions: Any
    prev_rewards: Any
    reset: Any

    def after(self, rewards: jax.Array, reset: jax.Array) -> Self:
        """Once the environments have stepped: with what they gave, and zeros where an episode starts."""
        return dataclasses.replace(
            self,
            prev_actions=zero_where(reset, self.prev_actions),
            prev_rewards=zero_where(reset, rewards),
            reset=reset,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class ModuleStep:
    """How one module acts; fixed while the program runs. The methods are pure.

    ``B`` rows at a time: one of each environment, and of several agents with this module those of each.

    Attributes:
        module_id: The module that acts.
        pure: The MultiRLModule, taken apart.
        env_to_module: Pipeline from observations to the module's batch.
        module_to_env: Pipeline from the module's output to the env's actions.
        draws_actions: Whether actions are drawn from the action space, in place of the module's.
    """

    module_id: str
    pure: PureModule
    env_to_module: PurePipeline
    module_to_env: PurePipeline
    draws_actions: bool = False

    def of_module(self, module_id: str) -> Self:
        """The same step, in which another module acts.

        Raises:
            ValueError: If that module does not act, as it is for learners only.
        """
        modules = self.pure.template
        if module_id not in modules or modules[module_id].learner_only:
            acting = [mid for mid, module in modules.items() if not module.learner_only]
            raise ValueError(f"Module {module_id!r} is learner_only and does not act; those that do are {acting}.")
        return self if module_id == self.module_id else dataclasses.replace(self, module_id=module_id)

    def start(self, num_envs: Any, env_to_module: Any = None, module_to_env: Any = None) -> ModuleState:
        """Before the first observations.

        Args:
            num_envs: ``B``.
            env_to_module: State of that pipeline whose statistics to start from; None for none.
            module_to_env: Likewise.
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

    def where_rows(self, mask: jax.Array, yes: ModuleState, no: ModuleState) -> ModuleState:
        """A state with the rows of one or another, and the statistics of the first one.

        Args:
            mask: bool ``[B]``, which rows are those of `yes`.
            yes: After a step of all rows.
            no: Before it.
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

    def initial_recurrent(self, num_envs: Any) -> Any:
        """The module's recurrent state at the start of episodes, ``[B, ...]``; ``{}`` if it has none."""
        return batched_state(self.pure.template[self.module_id].get_initial_state(), num_envs)

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> Any:
        """What is acted with, the same at every step of a rollout; `step` adds what varies.

        Args:
            params: Parameters of the MultiRLModule.
            rest: Its other state.
            settings: ``{module_id: {name: current value}}`` of the traced settings.
            timesteps: uint32[2], lifetime env steps before this rollout.
            **static: ``explore``: sample actions (True) or take the greedy ones; ``update_statistics``: whether running
                statistics of connectors learn from the observations; ``axis_name``: device axis, for connectors.

        Returns:
            A `ConnectorContext`.
        """
        return self.env_to_module.make_context(
            params=params, rest=rest, settings=settings, step=timesteps, pure=self.pure, **static
        )

    def step(
        self, state: StateT, columns: dict[str, Any], context: Any, random_streams: dict[str, Any] | None = None
    ) -> tuple[StateT, dict[str, Any], dict[str, Any]]:
        """From observations to actions: connectors, module, connectors.

        Args:
            state: State before; fields that `ModuleState` does not have pass unchanged.
            columns: ``{"obs": observations [B, ...]}`` and what host connectors added. ``loss_mask``, bool ``[B]``,
                says of which rows statistics learn, and goes no further than the pipeline. ``state_in`` and ``resets``
                take the place of those of `state`.
            context: What to act with; see `context`. Its ``key`` is this step's.
            random_streams: What `random_streams` makes of that key, where it was made before.

        Returns:
            ``(state, the module's batch [B, ...], columns after the module-to-env pipeline [B, ...])``, actions and
            actions_for_env among the last ones. `ModuleState.after` adds what the environments answer.
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
        # With the dtypes of before: the next call, or turn of a loop, is the same program.
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
        """What `step` leaves of the first observations of `BATCH_SIZE` environments, as shapes; nothing is computed.

        Args:
            settings: ``{module_id: {name: current value}}``, or their shapes.
            explore: Sample actions (True) or take the greedy ones.

        Returns:
            ``{column: pytree of jax.ShapeDtypeStruct [BATCH_SIZE, ...]}``: the module's batch, and what came of it.
        """

        def one_step(params: Any, rest: Any, settings: Any, observations: Any) -> dict[str, Any]:
            static = {"explore": explore, "update_statistics": False}
            context = self.context(params, rest, settings, counters.zero(), **static)
            context = dataclasses.replace(context, key=jax.random.key(0))
            _, batch, acted = self.step(self.start(BATCH_SIZE), {Columns.OBS: observations}, context)
            return {**batch, **{name: own for name, own in acted.items() if name != Columns.ACTIONS_FOR_ENV}}

        # As many as the checks of modules take: parts that these have traced are known already.
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
        """The env-to-module pipeline.

        Args:
            env_to_module: State of that pipeline.
            columns: ``{"obs": observations [B, ...]}`` and what host connectors added.
            context: A `ConnectorContext`.
            stream: Name of the random numbers that are drawn; another one where a step observes twice.

        Returns:
            ``(pipeline state, the module's batch)``.
        """
        context = dataclasses.replace(context, key=streams.named(context.key, stream))
        return self.env_to_module.apply(env_to_module, {self.module_id: columns}, context)

    def observe_final(
        self, env_to_module: Any, final_obs: Any, context: Any, *, prev_actions: Any, prev_rewards: Any
    ) -> Any:
        """What the module would see of observations before a reset: history goes on, statistics stay.

        Args:
            env_to_module: State of that pipeline after the step's own observations.
            final_obs: Observations ``[B, ...]``.
            context: What to act with, with the step's ``key``.
            prev_actions: Actions of the step, ``[B, ...]``.
            prev_rewards: Its rewards, float32 ``[B]``.
        """
        context = dataclasses.replace(context, update_statistics=False)
        context = self._at(context, jnp.zeros(prev_rewards.shape, bool), prev_actions, prev_rewards)
        columns = {Columns.OBS: final_obs}
        return self.observe(env_to_module, columns, context, stream="final_observation")[1][self.module_id][Columns.OBS]

    def random_streams(self, rest: Any, key: jax.Array) -> dict[str, Any]:
        """The part of the module's other state `rest` that follows from the key of a step: its random streams."""
        return self.pure.random_streams(rest, streams.named(key, "module"), self.module_id)

    def act(
        self, module_to_env: Any, batch: dict[str, Any], context: Any, random_streams: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """The module's forward pass and the module-to-env pipeline.

        Args:
            module_to_env: State of that pipeline.
            batch: What the env-to-module pipeline made.
            context: A `ConnectorContext`.
            random_streams: What `random_streams` makes of its key, where it was made before.

        Returns:
            ``(pipeline state, columns)``, the columns with actions and actions_for_env among them.
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
            outputs = module.forward_exploration(inputs, t=context.step, **settings)
        else:
            outputs = module.forward_inference(inputs)
        if Columns.STATE_IN in inputs:
            outputs = of_steps(outputs, lambda x: x[:, 0])
        if mask is not None:
            context = dataclasses.replace(context, action_masks={mid: mask})
        module_to_env, acted = self.module_to_env.apply(module_to_env, {mid: outputs}, context)
        return module_to_env, acted[mid]

    def act_once(self, columns: dict[str, Any], key: jax.Array, env_to_module: Any, context: Any) -> dict[str, Any]:
        """Actions for observations outside of any rollout, which connectors see as the first ones of episodes.

        Args:
            columns: ``{"obs": observations [B, ...]}`` and what host connectors added; ``state_in`` for a recurrent
                state that is not that of the start of an episode.
            key: PRNG key.
            env_to_module: State of the pipeline whose statistics to use.
            context: What to act with; see `context`.

        Returns:
            The columns of `act`, ``[B, ...]``.
        """
        state = self.start(jax.tree.leaves(columns)[0].shape[0], env_to_module)
        if Columns.STATE_IN in columns:
            columns = {**columns, Columns.RESETS: jnp.zeros_like(state.reset)}
        return self.step(state, columns, dataclasses.replace(context, key=key, update_statistics=False))[2]

    def first_row(self, columns: dict[str, Any]) -> dict[str, Any]:
        """NumPy columns of `act_once` without batch axis; the action for the environment is a member of its space."""
        columns = jax.tree.map(lambda x: x[0], columns)
        space: Any = self.env_to_module.input_action_space
        return {**columns, Columns.ACTIONS_FOR_ENV: members_of(space)(columns[Columns.ACTIONS_FOR_ENV])}
