"""From observations to actions: both pipelines and the module, as pure functions that both drivers trace."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.utils import streams
from jaxrl_stack.utils.spaces import zeros

if TYPE_CHECKING:
    from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline
    from jaxrl_stack.connectors.module_to_env import ModuleToEnvPipeline
    from jaxrl_stack.core.rl_module.functional import PureModule


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class PolicyStep:
    """What acts; fixed while the program runs. The methods are pure.

    Attributes:
        module_id: The module that acts.
        pure: The MultiRLModule, taken apart.
        env_to_module: Pipeline from observations to the module's batch.
        module_to_env: Pipeline from the module's output to the env's actions.
    """

    module_id: str
    pure: PureModule
    env_to_module: EnvToModulePipeline
    module_to_env: ModuleToEnvPipeline

    def context(self, params: Any, rest: Any, settings: Any, timesteps: Any, **static: Any) -> Any:
        """What is acted with, the same at every step of a rollout; `at_step` adds what varies.

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

    def at_step(self, context: Any, *, key: Any, reset: Any, prev_actions: Any, prev_rewards: Any) -> Any:
        """The context of one step: ``reset``, ``prev_actions`` and ``prev_rewards`` are ``[B, ...]``."""
        mid = self.module_id
        return dataclasses.replace(
            context, key=key, reset=reset, prev_actions={mid: prev_actions}, prev_rewards={mid: prev_rewards}
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

    def observe_final(self, env_to_module: Any, columns: dict[str, Any], context: Any) -> dict[str, Any]:
        """The module's batch for observations before a reset: history goes on, statistics stay.

        Args:
            env_to_module: State of that pipeline after the step's own observations.
            columns: ``{"obs": final observations [B, ...]}``.
            context: A `ConnectorContext` with the actions and rewards of the step.
        """
        context = dataclasses.replace(context, reset=jnp.zeros_like(context.reset), update_statistics=False)
        return self.observe(env_to_module, columns, context, stream="final_observation")[1]

    def act(self, module_to_env: Any, batch: dict[str, Any], context: Any) -> tuple[Any, dict[str, Any]]:
        """The module's forward pass and the module-to-env pipeline.

        Args:
            module_to_env: State of that pipeline.
            batch: What the env-to-module pipeline made.
            context: A `ConnectorContext`.

        Returns:
            ``(pipeline state, columns)``, the columns with actions and actions_for_env among them.
        """
        mid = self.module_id
        rest = self.pure.reseed(context.rest, streams.named(context.key, "module"))
        module = self.pure.bind(context.params, rest)[mid]
        if context.explore:
            settings = {name: context.settings[mid][name] for name in module.exploration_settings}
            outputs = module.forward_exploration(batch[mid], t=context.step, **settings)
        else:
            outputs = module.forward_inference(batch[mid])
        module_to_env, acted = self.module_to_env.apply(module_to_env, {mid: outputs}, context)
        return module_to_env, acted[mid]

    def act_once(self, columns: dict[str, Any], key: jax.Array, env_to_module: Any, context: Any) -> dict[str, Any]:
        """Actions for observations that are each the first of an episode, outside of any rollout.

        Args:
            columns: ``{"obs": observations [B, ...]}`` and what host connectors added.
            key: PRNG key.
            env_to_module: State of the pipeline whose statistics to use.
            context: What to act with; see `context`.

        Returns:
            The columns of `act`, ``[B, ...]``.
        """
        num_envs = jax.tree.leaves(columns)[0].shape[0]
        context = self.at_step(
            dataclasses.replace(context, update_statistics=False),
            key=key,
            reset=jnp.ones((num_envs,), bool),
            prev_actions=zeros(self.env_to_module.action_space, (num_envs,)),
            prev_rewards=jnp.zeros((num_envs,), jnp.float32),
        )
        state = self.env_to_module.rebatch(env_to_module, num_envs)
        _, batch = self.observe(state, columns, context)
        return self.act(self.module_to_env.init(num_envs), batch, context)[1]
