"""TD3's default RLModule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule, of_critic
from jaxrl_stack.algorithms.td3.td3_catalog import TD3Catalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ENCODER_OUT, state_out_of
from jaxrl_stack.core.rl_module.target_networks import make_target_network
from jaxrl_stack.core.rl_module.timeline import Timeline, states_of
from jaxrl_stack.utils import counters


class DefaultTD3RLModule(DefaultSACRLModule):
    """Deterministic policy and one or two critics, all with target networks.

    It has the attributes of `DefaultSACRLModule` except the temperature, and `target_pi_encoder` and `target_pi`.
    Actions are in [-1, 1], ``tanh`` of the policy head's outputs.

    With ``use_lstm`` the policy's encoder has a recurrent state, and columns are sequences, ``[B, T, ...]``.
    """

    rows_are_independent = True
    default_catalog = TD3Catalog
    own_settings = ("twin_q",)
    has_temperature = False
    exploration_settings = ("exploration_noise", "random_timesteps")

    def _make_random_streams(self) -> None:
        """Creates the random streams of exploration and of the noise on the target policy's actions. The constructor
        calls this method after `setup`.
        """
        self.exploration_stream = self.rngs["exploration"].fork()
        super()._make_random_streams()

    def make_target_networks(self) -> None:
        """Creates the target networks as copies of the policy and the critics."""
        super().make_target_networks()
        self.target_pi_encoder = make_target_network(self.pi_encoder)
        self.target_pi = make_target_network(self.pi)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(encoder or head of the policy or of a critic, its target network)]``."""
        policy = [(self.pi_encoder, self.target_pi_encoder), (self.pi, self.target_pi)]
        return [*super().get_target_network_pairs(), *policy]

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: the critics, all target networks, and the random stream of the
        noise on the target policy's actions.
        """
        return [*super().get_non_inference_attributes(), "target_pi_encoder", "target_pi"]

    # ------------------------------------------------------------------------------------------------------ acting

    def compute_actions(self, batch: dict[str, Any], prefix: str = "") -> tuple[jax.Array, dict[str, Any]]:
        """Computes the policy's actions.

        Args:
            batch: `{OBS: [..., d]}`; with a recurrent state also `STATE_IN`.
            prefix: "target_" for the target policy.

        Returns:
            ``(actions float [..., n] in [-1, 1], {STATE_OUT: state} or {})``.
        """
        encoded = getattr(self, f"{prefix}pi_encoder")(batch)
        return jnp.tanh(getattr(self, f"{prefix}pi")(encoded[ENCODER_OUT])), state_out_of(encoded)

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the policy's actions, without noise: `{OBS: [..., d]}` -> `{ACTIONS: float [..., n]}`."""
        actions, state_out = self.compute_actions(batch)
        return {Columns.ACTIONS: actions, **state_out}

    def _forward_exploration(
        self,
        batch: dict[str, Any],
        t: Any = None,
        exploration_noise: Any = 0.1,
        random_timesteps: Any = 0,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Computes the policy's actions and adds Gaussian noise for exploration.

        Converts `{OBS: [..., d]}` to `{ACTIONS: float [..., n]}`. The noisy actions are clipped to [-1, 1]. In the
        first `random_timesteps` env steps, the actions are uniformly random instead.

        Args:
            batch: The columns.
            t: Env steps so far, a scalar or `uint32[2]`; None is 0.
            exploration_noise: Standard deviation of the noise.
            random_timesteps: Number of env steps at the start with uniformly random actions.
        """
        actions, state_out = self.compute_actions(batch)
        noise_key, uniform_key = jax.random.split(self.exploration_stream())
        noisy = jnp.clip(actions + exploration_noise * jax.random.normal(noise_key, actions.shape), -1.0, 1.0)
        uniform = jax.random.uniform(uniform_key, actions.shape, minval=-1.0, maxval=1.0)
        is_random = counters.difference(counters.of_steps(t), counters.zero()) < random_timesteps
        return {Columns.ACTIONS: jnp.where(is_random, uniform, noisy), **state_out}

    # ---------------------------------------------------------------------------------------------------- training

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the critics' Q-values of the batch's actions.

        The loss calls `compute_target_values`, and in updates of the policy `compute_policy_values`.

        Args:
            batch: `OBS` and `NEXT_OBS` float `[N, d]`, `ACTIONS` float `[N, n]` in [-1, 1].

        Returns:
            `QF_PREDS` and, with two critics, `QF_TWIN_PREDS`, float `[N]`. With a recurrent state, `[N, J]` of
            sequences from replay: see `Timeline`.
        """
        if Columns.STATE_IN not in batch:
            return self._critics({name: batch[name] for name in (Columns.OBS, Columns.ACTIONS)})
        timeline = Timeline(batch, self.burn_in_len)
        columns = {Columns.OBS: timeline.obs, Columns.ACTIONS: timeline.steps(batch[Columns.ACTIONS])}
        return timeline.now(self._critics({**columns, Columns.STATE_IN: self._critic_states(timeline)}))

    def compute_target_values(
        self, batch: dict[str, Any], target_noise: Any = None, target_noise_clip: Any = None
    ) -> jax.Array:
        """Q-values of the target policy's actions at the next observations: the minimum over the target critics.

        Args:
            batch: The columns of ``forward_train``.
            target_noise: Standard deviation of the noise on the actions; None adds none.
            target_noise_clip: Bound of the noise.

        Returns:
            Float `[N]`, of sequences `[N, J]`, without a gradient.
        """
        if Columns.STATE_IN not in batch:
            columns = {Columns.OBS: batch[Columns.NEXT_OBS]}
            actions, _ = self.compute_actions(columns, "target_")
            columns[Columns.ACTIONS] = self._smoothed(actions, target_noise, target_noise_clip)
            return jax.lax.stop_gradient(self.forward_target(columns))
        timeline = Timeline(batch, self.burn_in_len)
        actions, _ = self.compute_actions(timeline.columns(states_of(self.target_pi_encoder)), "target_")
        columns = {Columns.OBS: timeline.obs, Columns.STATE_IN: self._critic_states(timeline, "target_")}
        columns[Columns.ACTIONS] = self._smoothed(actions, target_noise, target_noise_clip)
        return jax.lax.stop_gradient(timeline.after(self.forward_target(columns)))

    def _smoothed(self, actions: jax.Array, target_noise: Any, target_noise_clip: Any) -> jax.Array:
        if target_noise is None:
            return actions
        draws = jax.random.normal(self.noise(), actions.shape)
        return smoothed_actions(actions, draws, target_noise, target_noise_clip)

    def compute_policy_values(self, batch: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Computes the policy's actions, and their Q-values by the first critic.

        Args:
            batch: The columns of ``forward_train``.

        Returns:
            ``(actions float [N, n], values float [N])``, of sequences `[N, J, ...]`. The gradient of the values reaches
            the policy through the actions, but not the critic's parameters.
        """
        critics = self._with_constant_parameters()
        if Columns.STATE_IN not in batch:
            columns = {Columns.OBS: batch[Columns.OBS]}
            actions, _ = self.compute_actions(columns)
            return actions, _first_values(critics, {**columns, Columns.ACTIONS: actions})
        timeline = Timeline(batch, self.burn_in_len)
        actions, _ = self.compute_actions(timeline.columns(states_of(self.pi_encoder)))
        columns = {Columns.OBS: timeline.obs, Columns.ACTIONS: actions}
        values = _first_values(critics, {**columns, Columns.STATE_IN: critics._critic_states(timeline)})
        return timeline.now((actions, values))


def smoothed_actions(actions: jax.Array, draws: jax.Array, target_noise: Any, target_noise_clip: Any) -> jax.Array:
    """Adds clipped Gaussian noise to the target policy's actions.

    Computes ``clip(a + clip(sigma * draws, -c, c), -1, 1)`` (Fujimoto et al., 2018, arXiv:1802.09477, equation 14).

    Args:
        actions: Float ``[..., n]`` in [-1, 1], actions ``a`` of the target policy.
        draws: Float ``[..., n]``, from the standard normal distribution.
        target_noise: Standard deviation ``sigma`` of the noise.
        target_noise_clip: Bound ``c`` of the noise.

    Returns:
        Float ``[..., n]`` in [-1, 1].
    """
    noise = jnp.clip(target_noise * draws, -target_noise_clip, target_noise_clip)
    return jnp.clip(actions + noise, -1.0, 1.0)


def _first_values(module: Any, columns: dict[str, Any]) -> jax.Array:
    """Q-values of the first critic, float `[...]`."""
    encoded = module.qf_encoder(of_critic(columns, module.qf_encoder, 0))
    return module.qf(encoded[ENCODER_OUT])[..., 0]
