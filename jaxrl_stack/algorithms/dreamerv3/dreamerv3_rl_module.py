"""DreamerV3's RLModule."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, Policy, imagine, make_critic, width_of_actions
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.world_model import Latent, WorldModel, parts_of
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.apis.target_network_api import TargetNetworkAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.core.rl_module.target_networks import make_target_network
from jaxrl_stack.ops.world_models import ReturnRange
from jaxrl_stack.replay.arithmetic import IS_FIRST

OBSERVED, NORMALISED, ACTIONS_ONE_HOT = "observed", "normalised", "actions_one_hot"
"""Names of the outputs of `forward_train`: the result of `WorldModel.observe`, the normalised observations, and the
actions as inputs of the world model.
"""

MODULE_SETTINGS = ("model_size", "symlog_obs", "gru_blocks", "use_float16", "num_random_steps")
"""Names in the model config, all of which come from the algorithm's config."""


class ReturnStatistic(nnx.Variable):
    """Variable that stores one statistic of imagined returns. The losses scale advantages with these statistics.

    The variable is one entry of `ReturnRange`: the moving average of a percentile, or a flag that is True after the
    first returns. The computation of the losses also updates the variable.
    """


class DreamerV3RLModule(RLModule, InferenceOnlyAPI, TargetNetworkAPI):
    """DreamerV3's networks: a world model of the size ``model_config["model_size"]``, with an actor and a critic that
    read its latent states.

    The recurrent state has h and z of the model (z as classes of its variables), the last action a, and the flag fresh
    for states before the first step.
    """

    rows_are_independent = True
    handles_resets = True

    def setup(self) -> None:
        """Builds the world model, the actor and the critic."""
        settings = self.model_config
        if unknown := [name for name in settings if name not in MODULE_SETTINGS]:
            raise ValueError(
                f"rl_module(model_config={{{unknown[0]!r}: {settings[unknown[0]]!r}}}): unknown setting of DreamerV3's "
                f"networks. Set their size with training(model_size=...); model_config may contain only "
                f"{', '.join(map(repr, MODULE_SETTINGS))}."
            )
        parts_of(self.observation_space)
        self.size = MODEL_SIZES[settings.get("model_size", "XS")]
        self.num_random_steps = int(settings.get("num_random_steps", 0))
        self.num_actions = width_of_actions(self.action_space)
        dtype = jnp.bfloat16 if settings.get("use_float16") else None
        self.world_model = WorldModel(
            self.size,
            self.observation_space,
            self.num_actions,
            symlog_obs=settings.get("symlog_obs", "auto"),
            gru_blocks=settings.get("gru_blocks", 1),
            dtype=dtype,
            rngs=self.rngs,
        )
        num_features = self.size.gru_units + self.size.num_categoricals * self.size.num_classes
        self.actor = Actor(self.size, num_features, self.action_space, dtype=dtype, rngs=self.rngs)
        self.critic = make_critic(self.size, num_features, dtype=dtype, rngs=self.rngs)
        initial = ReturnRange.init()
        self.return_low, self.return_high = ReturnStatistic(initial.low), ReturnStatistic(initial.high)
        self.return_is_known = ReturnStatistic(initial.is_known)
        self.acting = self.rngs["exploration"].fork()
        self.noise = nnx.Rngs(self.rngs())

    # ------------------------------------------------------------------------------------------------- parts of it

    @property
    def is_discrete(self) -> bool:
        """Whether actions are discrete."""
        return isinstance(self.action_space, gym.spaces.Discrete)

    @property
    def returns(self) -> ReturnRange:
        """Moving averages of two percentiles of imagined returns. The losses scale advantages with these averages, and
        update the averages.
        """
        return ReturnRange(self.return_low[...], self.return_high[...], self.return_is_known[...])

    @returns.setter
    def returns(self, value: ReturnRange) -> None:
        self.return_low[...], self.return_high[...], self.return_is_known[...] = value

    def make_target_networks(self) -> None:
        self.slow_critic = make_target_network(self.critic)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(critic, slow critic)]``: the critic and its target network."""
        return [(self.critic, self.slow_critic)]

    def forward_target(self, batch: dict[str, Any], **kwargs: Any) -> jax.Array:
        """Computes logits ``[..., K]`` of the slow critic's distribution over K atoms. The column "features" of `batch`
        contains features ``[..., F]`` of latent states.
        """
        return self.slow_critic(batch["features"])

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: the critics, the percentiles of imagined returns, and the
        random stream of training.
        """
        return ["critic", "slow_critic", "return_low", "return_high", "return_is_known", "noise"]

    def get_initial_state(self) -> dict[str, Any]:
        """Recurrent state at the start of an episode: zeros, marked as fresh. At the first observation, the world model
        replaces it by its learned initial state.
        """
        size = self.size
        return {
            "h": jnp.zeros((size.gru_units,), jnp.float32),
            "z": jnp.zeros((size.num_categoricals,), jnp.uint8),
            "a": jnp.zeros((self.num_actions,), jnp.float32),
            "fresh": jnp.ones((), jnp.bool_),
        }

    # -------------------------------------------------------------------------------------------------- forward passes

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the most likely actions from the most likely latent states.

        `{OBS: [B, T, ...], STATE_IN}` -> `{ACTIONS: [B, T, ...], STATE_OUT}`. The recurrent state `STATE_IN` has a
        leading axis `[B]`.
        """
        return self._act(batch, lambda policy, noise, key: policy.sample(None), draws=False)

    def _forward_exploration(self, batch: dict[str, Any], t: Any = None, **kwargs: Any) -> dict[str, Any]:
        """Samples latent states and actions; at the beginning of the run, actions are uniformly random.

        `{OBS: [B, T, ...], STATE_IN}` -> `{ACTIONS: [B, T, ...], STATE_OUT}`. The recurrent state `STATE_IN` has a
        leading axis `[B]`. Actions are uniformly random in the first ``model_config["num_random_steps"]`` env steps of
        the run.
        """
        high, low = t if t is not None and jnp.ndim(t) else (0, 0 if t is None else t)
        is_random = jnp.logical_and(high == 0, low < self.num_random_steps)

        def choose(policy: Policy, noise: jax.Array, key: jax.Array) -> jax.Array:
            actions = policy.sample(noise)
            if self.is_discrete:
                classes = jax.random.randint(key, actions.shape[:-1], 0, actions.shape[-1])
                uniform = jax.nn.one_hot(classes, actions.shape[-1])
            else:
                uniform = jax.random.uniform(key, actions.shape, minval=-1.0, maxval=1.0)
            return jnp.where(is_random, uniform, actions)

        return self._act(batch, choose, draws=True)

    def _latent(self, state: dict[str, Any]) -> Latent:
        """Extracts the world model's latent state from the module's recurrent state ``[B, ...]``."""
        return Latent(state["h"], jax.nn.one_hot(state["z"], self.size.num_classes))

    def state_before(self, state: dict[str, Any]) -> tuple[Latent, jax.Array, jax.Array]:
        """Converts the module's recurrent state ``[B, ...]`` to the argument `before` of `WorldModel.observe`.

        The argument contains the latent state, the last action, and a flag for each row: True before the first step of
        the row's episode.
        """
        return self._latent(state), state["a"], state["fresh"]

    def actions_for_model(self, actions: jax.Array) -> jax.Array:
        """Converts actions to inputs of the world model: float32 ``[..., A]``, one-hot for a Discrete space of A
        actions, unchanged for a Box of A dimensions.
        """
        return jax.nn.one_hot(actions, self.num_actions) if self.is_discrete else actions

    def _act(self, batch: dict[str, Any], choose: Any, *, draws: bool) -> dict[str, Any]:
        normalised = self.world_model.normalised(batch[Columns.OBS])
        encoded = jnp.swapaxes(self.world_model.encode(normalised), 0, 1)
        lead = encoded.shape[:2]
        for_states, for_policy, for_random = jax.random.split(self.acting(), 3) if draws else (None, None, None)
        noise = (self.world_model.noise(for_states, lead), self.actor.noise(for_policy, lead))
        keys = None if for_random is None else jax.random.split(for_random, lead[0])
        resets = batch.get(Columns.RESETS)
        resets = jnp.zeros(lead, bool) if resets is None else jnp.swapaxes(resets, 0, 1)

        def step(carry: dict[str, Any], row: Any) -> tuple[dict[str, Any], jax.Array]:
            encoded, reset, (for_state, for_policy), key = row
            before = self._latent(carry)
            state, _ = self.world_model.observe_step(
                before, carry["a"], jnp.logical_or(carry["fresh"], reset), encoded, for_state
            )
            actions = choose(self.actor(state.features), for_policy, key)
            return {**state.stored(), "a": actions, "fresh": jnp.zeros_like(carry["fresh"])}, actions

        state, actions = jax.lax.scan(step, batch[Columns.STATE_IN], (encoded, resets, noise, keys))
        actions = jnp.swapaxes(actions, 0, 1)
        if self.is_discrete:
            actions = jnp.argmax(actions, axis=-1).astype(jnp.int32)
        return {Columns.ACTIONS: actions, Columns.STATE_OUT: state}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes latent states of the world model for windows ``[B, T, ...]`` (sequences of consecutive items).

        Items are steps, and the final observations of episodes. A window continues from its state in ``STATE_IN``
        ``[B, ...]``. If this state is marked as fresh (before the first step of an episode), or without ``STATE_IN``,
        the window starts from the initial state.
        """
        actions = self.actions_for_model(batch[Columns.ACTIONS])
        normalised = self.world_model.normalised(batch[Columns.OBS])
        # Rollouts have resets in the place of what windows of replay have.
        is_first = batch[IS_FIRST if IS_FIRST in batch else Columns.RESETS]
        before = self.state_before(batch[Columns.STATE_IN]) if Columns.STATE_IN in batch else None
        observed = self.world_model.observe(normalised, actions, is_first, self.noise(), before)
        return {OBSERVED: observed, NORMALISED: normalised, ACTIONS_ONE_HOT: actions}

    def imagine(self, start: Latent, horizon: int, *, differentiable: bool) -> Any:
        """Computes imagined rollouts of the world model with the actor's actions; see `actor_critic.imagine`."""
        key = self.noise()
        return imagine(self.world_model, self.actor, start, horizon, key, differentiable=differentiable)
