"""Sampling on the device: environments, pipelines and module in one scan. Pure functions over a `RunnerState`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.acting.episode_window import EpisodeWindow
from jaxrl_stack.acting.policy_step import PolicyState, PolicyStep
from jaxrl_stack.acting.running_episodes import RunningEpisodes
from jaxrl_stack.core import frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.layouts import Layout, at_chunk_starts
from jaxrl_stack.utils.named_leaves import with_named_leaves

if TYPE_CHECKING:
    from jaxrl_stack.env.jax_env import JaxEnv


@struct.dataclass
class RunnerState(PolicyState):
    """Everything of an on-device runner that changes; leaves have the env axis ``[B, ...]`` first where it says so.

    Attributes:
        env_state: State of the environments, ``[B, ...]``.
        obs: Their last observations, ``[B, ...]``, as the environment gave them.
        episodes: Returns and lengths of the running episodes so far, ``[B]``.
        window: The last finished episodes.
        key: PRNG key.
    """

    env_state: Any
    obs: Any
    episodes: RunningEpisodes
    window: EpisodeWindow
    key: jax.Array


Ended: TypeAlias = tuple[jax.Array, jax.Array, jax.Array]
"""``[T, B]``: whether an episode ended with a step, and, where it did, its return and its length."""
Stepped: TypeAlias = tuple[RunnerState, tuple[dict[str, Any], jax.Array]]
"""``(state, (columns [B, ...], bool [B] whether an episode ended))``."""


@struct.dataclass
class StepKeys:
    """Random numbers of T vector steps; see `DeviceRollout.step_keys`.

    Attributes:
        policy: PRNG keys ``[T]`` of pipelines and module.
        envs: What `JaxEnv.step_keys` makes of PRNG keys, leaves ``[T, B, ...]``.
        module: The module's random streams, leaves ``[T, ...]``; None derives them in every step.
    """

    policy: jax.Array
    envs: Any
    module: dict[str, Any] | None


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class DeviceRollout(PolicyStep):
    """The static parts of sampling; the methods are pure and are traced into larger programs.

    Attributes:
        env: The environment.
        window_size: How many finished episodes the statistics cover.
        env_params: Leaves of ``env.params``, by name, in place of the environment's own: those in which members of a
            population differ.
    """

    env: JaxEnv
    window_size: int = 100
    env_params: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def init(self, key: jax.Array, num_envs: int, env_to_module: Any = None) -> RunnerState:
        """Freshly reset environments.

        Args:
            key: PRNG key.
            num_envs: ``B``.
            env_to_module: State of the pipeline whose statistics to start from; None for none.
        """
        key, reset_key = jax.random.split(key)
        obs, env_state = jax.vmap(self.env.reset, in_axes=(0, None))(
            jax.random.split(reset_key, num_envs), self._env_params()
        )
        return RunnerState(
            **vars(self.start(num_envs, env_to_module)),
            env_state=env_state,
            obs=obs,
            episodes=RunningEpisodes.empty(num_envs),
            window=EpisodeWindow.empty(self.window_size),
            key=key,
        )

    def _env_params(self) -> Any:
        """The environment's parameters inside a trace: arrays are JAX arrays, which an action can index."""
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf) if np.ndim(leaf) else leaf, self.env.params)
        return with_named_leaves(own, self.env_params) if self.env_params else own

    def step_envs(self, state: RunnerState, keys: StepKeys, context: Any) -> Stepped:
        """One step of all environments, as the body of a scan.

        Args:
            state: State before the step; its `episodes`, `window` and `key` pass unchanged.
            keys: Those of this step, without their axis T.
            context: What to act with; see `PolicyStep.context`.
        """
        context = dataclasses.replace(context, key=keys.policy)
        state, batch, acted = self.step(state, {Columns.OBS: state.obs}, context, keys.module)
        after = self.env.step_batch(keys.envs, state.env_state, acted[Columns.ACTIONS_FOR_ENV], self._env_params())
        ended = jnp.logical_or(after.terminated, after.truncated)
        final_obs = self.observe_final(
            state.env_to_module,
            after.final_obs,
            context,
            prev_actions=acted[Columns.ACTIONS],
            prev_rewards=after.reward,
        )
        columns = {
            **batch,
            **{name: acted[name] for name in acted if name != Columns.ACTIONS_FOR_ENV},
            Columns.REWARDS: after.reward,
            Columns.TERMINATEDS: after.terminated,
            Columns.TRUNCATEDS: after.truncated,
            Columns.FINAL_OBS: final_obs,
        }
        state = dataclasses.replace(state.after(after.reward, ended), env_state=after.state, obs=after.obs)
        return state, (columns, ended)

    def step_frames(self, state: RunnerState, keys: StepKeys, context: Any) -> Stepped:
        """`step_envs`, of whose observations the columns have the newest frame, and ``RESETS``."""
        reset = state.reset
        state, (columns, ended) = self.step_envs(state, keys, context)
        columns = frames.newest(columns, self.env_to_module.num_stacked_frames)
        return state, ({**columns, Columns.RESETS: reset}, ended)

    def unroll(self, state: RunnerState, context: Any, *, num_steps: int) -> tuple[RunnerState, dict[str, Any], Ended]:
        """Steps of all environments with the state's own key.

        Args:
            state: State before the first one.
            context: What to act with; see `PolicyStep.context`.
            num_steps: ``T``.

        Returns:
            ``(state, columns [T, B, ...], what ended)``.
        """
        key, rollout_key = jax.random.split(state.key)
        keys = self.step_keys(rollout_key, num_steps, state.reset.shape[0], context.rest)
        state, (columns, ended) = jax.lax.scan(functools.partial(self.step_envs, context=context), state, keys)
        episodes, after_steps = state.episodes.extend(columns[Columns.REWARDS], ended)
        of_steps = (ended, after_steps.episode_return, after_steps.episode_length)
        return dataclasses.replace(state, episodes=episodes, key=key), columns, of_steps

    def step_keys(self, key: jax.Array, num_steps: int, num_envs: int, rest: Any) -> StepKeys:
        """Random numbers of all steps at once: derived in every step, they cost up to a tenth of the sampling.

        Args:
            key: PRNG key.
            num_steps: ``T``.
            num_envs: ``B``.
            rest: Other state of the MultiRLModule, for the shapes of its random streams.
        """
        keys = jax.random.split(key, (num_steps, 1 + num_envs))
        module = jax.vmap(lambda key: self.random_streams(rest, key))(keys[:, 0])
        return StepKeys(policy=keys[:, 0], envs=self.env.step_keys(keys[:, 1:]), module=module)

    def merged(self, state: RunnerState, axis_name: str | None) -> RunnerState:
        """`state` with the statistics of connectors merged over the devices."""
        return dataclasses.replace(
            state,
            env_to_module=self.env_to_module.merge(state.env_to_module, axis_name),
            module_to_env=self.module_to_env.merge(state.module_to_env, axis_name),
        )

    def side_by_side(
        self, columns: dict[str, Any], num_fragments: int, layout: Layout, *, earlier: Any = None
    ) -> dict[str, Any]:
        """What was sampled in one go as fragments, each with a cut at its end, as learners get them.

        Args:
            columns: ``[R * T, B, ...]``.
            num_fragments: ``R``.
            layout: How they are to lie.
            earlier: State of the env-to-module pipeline before the first of `step_frames`; None after `step_envs`.

        Returns:
            Columns ``[T, R * B, ...]``, of recurrent states those at chunk starts.
        """
        before = {}
        if earlier is not None:
            earlier = self.env_to_module.earlier_frames(earlier)
            columns, before = frames.of_rollout(columns, earlier, num_fragments, keeps_resets=layout.has_resets)
        if num_fragments > 1:
            columns = jax.tree.map(
                lambda x: jnp.moveaxis(x.reshape(num_fragments, -1, *x.shape[1:]), 0, 1).reshape(
                    x.shape[0] // num_fragments, -1, *x.shape[2:]
                ),
                columns,
            )
        return at_chunk_starts({**columns, **before}, layout)
