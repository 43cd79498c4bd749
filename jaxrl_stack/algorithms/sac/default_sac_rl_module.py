"""SAC's default RLModule."""

from __future__ import annotations

import functools
import math
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import masked_logits, split_action_mask
from jaxrl_stack.core.models.base import ENCODER_OUT, batched_state, initial_state_of, state_out_of
from jaxrl_stack.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.apis.q_net_api import QNetAPI
from jaxrl_stack.core.rl_module.apis.target_network_api import TargetNetworkAPI
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.core.rl_module.target_networks import make_target_network
from jaxrl_stack.core.rl_module.timeline import Timeline, states_of

QF_PREDS = "qf_preds"
QF_TWIN_PREDS = "qf_twin_preds"
QF_TARGET_NEXT = "q_target_next"
ACTION_DIST_INPUTS_NEXT = "action_dist_inputs_next"
ACTION_PROBS = "action_probs"
ACTION_PROBS_NEXT = "action_probs_next"
ACTION_LOG_PROBS = "action_log_probs"
ACTION_LOG_PROBS_NEXT = "action_log_probs_next"
"""Columns that `forward_train` returns; see `DefaultSACRLModule._forward_train`."""


class DefaultSACRLModule(RLModule, InferenceOnlyAPI, TargetNetworkAPI, QNetAPI):
    """Policy and one or two critics, each with an encoder and a head. `DefaultModelConfig` configures the encoders and
    the heads.

    Attributes are `pi_encoder` and `pi`; `qf_encoder` and `qf`; with ``model_config["twin_q"]`` also `qf_twin_encoder`
    and `qf_twin`; and target networks of the critics, with the prefix `target_`. Actions are in [-1, 1].

    Observations can have any space that `Catalog` has encoders for, or, with discrete actions, ``{"action_mask": [n],
    "observations": ...}``: actions with mask 0 then have probability 0.

    With ``use_lstm`` the policy's encoder has a recurrent state, and columns are sequences, ``[B, T, ...]``. States of
    critics depend on observations, not actions. They are not stored, because critics do not act: in training they start
    from initial states, which burn-in updates.

    `log_alpha`, float32 `[]`, is the logarithm of the temperature, which the learner trains; it starts from
    ``model_config["initial_alpha"]``.
    """

    rows_are_independent = True
    honours_action_mask = True
    default_catalog: type[SACCatalog] = SACCatalog
    """Catalog class that builds the networks, unless a spec names another catalog class. If a module class sets this
    attribute in its own body and uses this catalog, the module refuses unknown model settings.
    """
    own_settings: tuple[str, ...] = ("twin_q", "initial_alpha")
    """Names of the settings that the algorithm's config adds to the model config."""
    has_temperature = True
    """Whether the module has `log_alpha`. Subclasses for losses without entropy set it to False."""

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any):
        super().__init__(*args, catalog_class=catalog_class or self.default_catalog, **kwargs)
        # Not in setup(), which a module with networks of its own replaces.
        if self.has_temperature:
            self.log_alpha = nnx.Param(jnp.float32(math.log(self.model_config.get("initial_alpha", 1.0))))
        self._make_random_streams()

    def _make_random_streams(self) -> None:
        """Creates the random streams of the forward passes. The constructor calls this method after `setup`; a subclass
        that overrides `setup` thus has the streams, too.
        """
        self.noise = nnx.Rngs(self.rngs())

    def setup(self) -> None:
        """Builds encoders and heads with the catalog."""
        if "default_catalog" in vars(type(self)) and self.catalog_class is self.default_catalog:
            # Nothing else could read a setting that the default models do not have.
            own = (*self.own_settings, "burn_in_len")
            check_model_config({k: v for k, v in self.model_config.items() if k not in own})
        self.burn_in_len = int(self.model_config.get("burn_in_len", 0))
        self.pi_encoder = self.catalog.build_encoder(self.framework, rngs=self.rngs)
        self.pi = self.catalog.build_pi_head(self.framework, rngs=self.rngs)
        self._build_critics()

    def _build_critics(self) -> None:
        self.twin_q = bool(self.model_config.get("twin_q", True))
        for name in self._critic_names:
            setattr(self, f"{name}_encoder", self.catalog.build_qf_encoder(self.framework, rngs=self.rngs))
            setattr(self, name, self.catalog.build_qf_head(self.framework, rngs=self.rngs))

    @property
    def _critic_names(self) -> list[str]:
        return ["qf", "qf_twin"] if self.twin_q else ["qf"]

    @property
    def _critic_parts(self) -> list[str]:
        """Attribute names of the critics' encoders and heads, each of which has a target network."""
        return [part for name in self._critic_names for part in (f"{name}_encoder", name)]

    def make_target_networks(self) -> None:
        for name in self._critic_parts:
            setattr(self, f"target_{name}", make_target_network(getattr(self, name)))

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(encoder or head of a critic, its target network)]``."""
        return [(getattr(self, name), getattr(self, f"target_{name}")) for name in self._critic_parts]

    def get_initial_state(self) -> Any:
        """Recurrent state of the policy's encoder at the start of an episode; {} for stateless encoders."""
        # Subclasses may have an encoder of another kind, or none.
        return initial_state_of(vars(self).get("pi_encoder"))

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: everything except the policy."""
        critics = self._critic_parts
        temperature = ["log_alpha"] if self.has_temperature else []
        return [*critics, *(f"target_{name}" for name in critics), *temperature, "noise"]

    # ------------------------------------------------------------------------------------------------ forward passes

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the policy's outputs: `{OBS: [..., d]}` -> `{ACTION_DIST_INPUTS: [..., n]}`. If the encoder is
        recurrent, reads `STATE_IN` and also returns `STATE_OUT`.
        """
        inputs, state_out = self._policy(batch)
        return {Columns.ACTION_DIST_INPUTS: inputs, **state_out}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the columns that SAC's losses read, with the current parameters. No gradients flow through columns
        that are computed from `NEXT_OBS`.

        Args:
            batch: `OBS` and `NEXT_OBS` float `[N, d]`, `ACTIONS` float `[N, n]` in [-1, 1] or int `[N]`.

        Returns:
            `QF_PREDS` (`QF_TWIN_PREDS`): values of the critic (of the second critic), and `QF_TARGET_NEXT`: the minimum
            of the target networks' values at the next observation. `ACTION_DIST_INPUTS`, `ACTION_DIST_INPUTS_NEXT`:
            action distributions at both observations.

            Continuous actions: `QF_PREDS` `[N]` are values of the batch's actions. The policy samples an action at each
            of both observations, with log-probabilities ``logp_resampled`` and ``logp_next_resampled`` `[N]`.
            ``q_curr`` `[N]` is the minimum of the critics' values of the action at `OBS`. The gradient of ``q_curr``
            reaches the policy through the action, but not the critics' parameters. `QF_TARGET_NEXT` `[N]` is for the
            action at `NEXT_OBS`.

            Discrete actions: values are `[N, A]`, and the policy's `ACTION_PROBS`, `ACTION_LOG_PROBS`,
            `ACTION_PROBS_NEXT` and `ACTION_LOG_PROBS_NEXT` `[N, A]` replace sampled actions.

            With a recurrent state, `[N, J, ...]` of sequences from replay: see `Timeline`.
        """
        is_discrete = isinstance(self.action_space, gym.spaces.Discrete)
        if Columns.STATE_IN in batch:
            return self._forward_train_sequences(batch, is_discrete)
        return self._forward_train_discrete(batch) if is_discrete else self._forward_train_continuous(batch)

    def _forward_train_sequences(self, batch: dict[str, Any], is_discrete: bool) -> dict[str, Any]:
        """Computes the outputs of `_forward_train` for sequences from replay.

        Each sequence is extended by the observation after its last valid step (see `Timeline`), so that a network
        evaluates observations and next observations in one pass.
        """
        timeline = Timeline(batch, self.burn_in_len)
        inputs, _ = self._policy(timeline.columns(states_of(self.pi_encoder)))
        online = {Columns.OBS: timeline.obs, Columns.STATE_IN: self._critic_states(timeline)}
        target = {Columns.OBS: timeline.obs, Columns.STATE_IN: self._critic_states(timeline, "target_")}
        if is_discrete:
            log_probs = jax.nn.log_softmax(inputs, axis=-1)
            now = self._critics(online, squeeze=False)
            now |= {ACTION_PROBS: jnp.exp(log_probs), ACTION_LOG_PROBS: log_probs}
            after = {
                ACTION_PROBS_NEXT: jnp.exp(log_probs),
                ACTION_LOG_PROBS_NEXT: log_probs,
                QF_TARGET_NEXT: self.forward_target(target, squeeze=False),
            }
        else:
            # One draw for both: what the policy would do after a step is what it would do in the next one.
            actions, logp = self.get_train_action_dist_cls().from_logits(inputs).rsample_and_logp(key=self.noise())
            now = self._critics({**online, Columns.ACTIONS: timeline.steps(batch[Columns.ACTIONS])})
            q_curr = self._with_constant_parameters().compute_q_values({**online, Columns.ACTIONS: actions})
            now |= {"logp_resampled": logp, "q_curr": q_curr}
            after = {
                "logp_next_resampled": logp,
                QF_TARGET_NEXT: self._target_critics({**target, Columns.ACTIONS: jax.lax.stop_gradient(actions)}),
            }
        return timeline.now({**now, Columns.ACTION_DIST_INPUTS: inputs}) | jax.lax.stop_gradient(
            timeline.after({**after, ACTION_DIST_INPUTS_NEXT: inputs})
        )

    def _critic_states(self, timeline: Timeline, prefix: str = "") -> list[Any]:
        """List with one recurrent state `[N, ...]` per critic, after the burn-in steps. Without burn-in, the states are
        initial states. ``prefix="target_"`` selects the target networks.
        """
        number = jax.tree.leaves(timeline.obs)[0].shape[0]
        return [
            timeline.state_in(states_of(encoder), batched_initial_state(encoder, number))
            for encoder in self._critic_encoders(prefix)
        ]

    def _critic_encoders(self, prefix: str) -> list[Any]:
        return [getattr(self, f"{prefix}{name}_encoder") for name in self._critic_names]

    def _forward_train_continuous(self, batch: dict[str, Any]) -> dict[str, Any]:
        obs, next_obs = batch[Columns.OBS], batch[Columns.NEXT_OBS]
        outputs = self._critics({Columns.OBS: obs, Columns.ACTIONS: batch[Columns.ACTIONS]})
        # Two passes, not one over both: nothing flows back through the second one, which saves half the work of that.
        inputs, _ = self._policy({Columns.OBS: obs})
        next_inputs = jax.lax.stop_gradient(self._policy({Columns.OBS: next_obs})[0])
        dist_cls = self.get_train_action_dist_cls()
        actions, logp = dist_cls.from_logits(inputs).rsample_and_logp(key=self.noise())
        next_actions, next_logp = dist_cls.from_logits(next_inputs).sample_and_logp(key=self.noise())
        critics = self._with_constant_parameters()
        q_curr = critics.compute_q_values({Columns.OBS: obs, Columns.ACTIONS: actions})
        q_target_next = self._target_critics({Columns.OBS: next_obs, Columns.ACTIONS: next_actions})
        return outputs | {
            Columns.ACTION_DIST_INPUTS: inputs,
            ACTION_DIST_INPUTS_NEXT: next_inputs,
            "logp_resampled": logp,
            "logp_next_resampled": jax.lax.stop_gradient(next_logp),
            "q_curr": q_curr,
            QF_TARGET_NEXT: jax.lax.stop_gradient(q_target_next),
        }

    def _forward_train_discrete(self, batch: dict[str, Any]) -> dict[str, Any]:
        this_batch, next_batch = {Columns.OBS: batch[Columns.OBS]}, {Columns.OBS: batch[Columns.NEXT_OBS]}
        inputs, _ = self._policy(this_batch)
        next_inputs = jax.lax.stop_gradient(self._policy(next_batch)[0])
        log_probs, next_log_probs = (jax.nn.log_softmax(inputs, axis=-1), jax.nn.log_softmax(next_inputs, axis=-1))
        return self._critics(this_batch, squeeze=False) | {
            Columns.ACTION_DIST_INPUTS: inputs,
            ACTION_DIST_INPUTS_NEXT: next_inputs,
            ACTION_PROBS: jnp.exp(log_probs),
            ACTION_LOG_PROBS: log_probs,
            ACTION_PROBS_NEXT: jnp.exp(next_log_probs),
            ACTION_LOG_PROBS_NEXT: next_log_probs,
            QF_TARGET_NEXT: jax.lax.stop_gradient(self.forward_target(next_batch, squeeze=False)),
        }

    def compute_q_values(self, batch: dict[str, Any], squeeze: bool = True) -> Any:
        """Computes Q-values: the minimum of the critics' values, or the only critic's values.

        Args:
            batch: `OBS` float `[N, d]`, for continuous actions also `ACTIONS` float `[N, n]`. With a recurrent state
                sequences, `[N, T, ...]`; `STATE_IN` may be a list of each critic's state, which is the initial one by
                default.
            squeeze: Drop a last axis of length 1.

        Returns:
            Float `[N]`, for discrete actions `[N, A]`.
        """
        return functools.reduce(jnp.minimum, self._values(batch, squeeze))

    def forward_target(self, batch: dict[str, Any], squeeze: bool = True) -> Any:
        """Computes the target networks' Q-values: the minimum of the target critics' values, or the only target
        critic's values. For arguments and shapes, see `compute_q_values`.
        """
        return functools.reduce(jnp.minimum, self._values(batch, squeeze, "target_"))

    def _target_critics(self, batch: dict[str, Any]) -> jax.Array:
        """Computes the target networks' Q-values at the next observations (`QF_TARGET_NEXT`) for
        `_forward_train_continuous`.
        """
        return self.forward_target(batch)

    def _critics(self, batch: dict[str, Any], squeeze: bool = True) -> dict[str, jax.Array]:
        return dict(zip((QF_PREDS, QF_TWIN_PREDS), self._values(batch, squeeze), strict=False))

    def _values(self, batch: dict[str, Any], squeeze: bool, prefix: str = "") -> list[jax.Array]:
        """Computes one array of Q-values per critic: `[N]` for continuous actions, `[N, A]` for A discrete actions.

        `squeeze` drops a last axis of length 1; ``prefix="target_"`` selects the target networks.
        """
        values, batch = [], split_action_mask(batch)[0]
        for i, (name, encoder) in enumerate(zip(self._critic_names, self._critic_encoders(prefix), strict=True)):
            of_actions = getattr(self, f"{prefix}{name}")(encoder(of_critic(batch, encoder, i))[ENCODER_OUT])
            values.append(of_actions[..., 0] if squeeze and of_actions.shape[-1] == 1 else of_actions)
        return values

    def _policy(self, batch: dict[str, Any]) -> tuple[jax.Array, dict[str, Any]]:
        """Runs the policy; returns ``(action distribution inputs, {STATE_OUT: state} or {})``."""
        batch, mask = split_action_mask(batch)
        encoded = self.pi_encoder(batch)
        return masked_logits(self.pi(encoded[ENCODER_OUT]), mask), state_out_of(encoded)

    def _with_constant_parameters(self) -> DefaultSACRLModule:
        """Copy of the module. No gradients flow to the parameters through the copy."""
        graphdef, state = nnx.split(self)
        return nnx.merge(graphdef, jax.lax.stop_gradient(state))


def of_critic(batch: dict[str, Any], encoder: Any, index: int) -> dict[str, Any]:
    """Returns a batch whose `STATE_IN` is the recurrent state of critic `index`.

    Selects this state from the list of all critics' states in the batch's `STATE_IN`. If the batch has no `STATE_IN`,
    uses the initial state of the critic's encoder, or returns the batch unchanged if this encoder is stateless.
    """
    if Columns.STATE_IN in batch:
        return {**batch, Columns.STATE_IN: batch[Columns.STATE_IN][index]}
    state = batched_initial_state(encoder, jax.tree.leaves(batch[Columns.OBS])[0].shape[0])
    return {**batch, Columns.STATE_IN: state} if state else batch


def batched_initial_state(encoder: Any, number: int) -> Any:
    """Initial recurrent states of an encoder for `number` batch rows, `[number, ...]`; {} for stateless encoders."""
    return batched_state(initial_state_of(encoder), number)


_ABSENT = {name: "`DefaultSACRLModule`" for name in ("SACTorchRLModule", "SACRLModule", "DefaultSACTorchRLModule")}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
