"""DQN's default RLModule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.dqn.dqn_catalog import DQN_MODEL_CONFIG, DQNCatalog, num_discrete_actions
from jaxrl_stack.algorithms.dqn.noisy import draw_noise
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import mask_of, split_action_mask
from jaxrl_stack.core.models.base import ENCODER_OUT, initial_state_of, state_out_of
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI, QNetAPI, TargetNetworkAPI
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.core.rl_module.target_networks import make_target_network
from jaxrl_stack.core.rl_module.timeline import Timeline, states_of
from jaxrl_stack.ops import q_learning
from jaxrl_stack.utils import counters, schedules
from jaxrl_stack.utils.spaces import shape_dtype_struct

ATOMS = "atoms"
QF_LOGITS = "qf_logits"
QF_NEXT_PREDS = "qf_next_preds"
QF_PREDS = "qf_preds"
QF_PROBS = "qf_probs"
QF_TARGET_NEXT_PREDS = "qf_target_next_preds"
QF_TARGET_NEXT_PROBS = "qf_target_next_probs"
"""Names of the outputs of the forward passes."""


class DefaultDQNRLModule(RLModule, InferenceOnlyAPI, TargetNetworkAPI, QNetAPI):
    """Encoder, Q-value head and target networks, configured by `DefaultModelConfig` and `DQN_MODEL_CONFIG`.

    Attributes are `encoder`, `af` (Q-values, or advantages with dueling) and, with dueling, `vf`; their target networks
    are `_target_encoder`, `_target_af` and `_target_vf`.

    Observations can have any space that `Catalog` has encoders for, or ``{"action_mask": [A], "observations": ...}``:
    actions with mask 0 are then never chosen.

    With ``use_lstm`` the encoder has a recurrent state, and columns are sequences, ``[B, T, ...]``.
    """

    rows_are_independent = True
    honours_action_mask = True
    exploration_settings = ("epsilon",)

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any):
        super().__init__(*args, catalog_class=catalog_class or DQNCatalog, **kwargs)

    def setup(self) -> None:
        """Builds the encoder and the heads with the catalog."""
        if type(self) is DefaultDQNRLModule and self.catalog_class is DQNCatalog:
            # Nothing else could read a setting that the default models do not have.
            own = (*DQN_MODEL_CONFIG, "burn_in_len")
            check_model_config({k: v for k, v in self.model_config.items() if k not in own})
        settings = {**DQN_MODEL_CONFIG, **self.model_config}
        self.num_actions = num_discrete_actions(self.action_space)
        self.uses_double_q = bool(settings["double_q"])
        self.uses_dueling = bool(settings["dueling"])
        self.uses_noise = bool(settings["noisy"])
        self.num_atoms = int(settings["num_atoms"])
        self.burn_in_len = int(settings.get("burn_in_len", 0))
        self.v_min, self.v_max = float(settings["v_min"]), float(settings["v_max"])
        schedules.validate_schedule(settings["epsilon"], "epsilon")
        self.encoder = self.catalog.build_encoder(self.framework, rngs=self.rngs)
        self.af = self.catalog.build_af_head(self.framework, rngs=self.rngs)
        if self.uses_dueling:
            self.vf = self.catalog.build_vf_head(self.framework, rngs=self.rngs)
        self.random_stream = self.rngs["exploration"].fork()

    def get_initial_state(self) -> Any:
        """Recurrent state of the encoder at the start of an episode; {} for stateless encoders."""
        # Subclasses may have an encoder of another kind, or none.
        return initial_state_of(vars(self).get("encoder"))

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: the target networks."""
        return ["_target_encoder", "_target_af", *(["_target_vf"] if self.uses_dueling else [])]

    def make_target_networks(self) -> None:
        """Creates the target networks as copies of the encoder and the heads."""
        self._target_encoder = make_target_network(self.encoder)
        self._target_af = make_target_network(self.af)
        if self.uses_dueling:
            self._target_vf = make_target_network(self.vf)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(network, its target network)]`` for the encoder and the heads."""
        pairs = [(self.encoder, self._target_encoder), (self.af, self._target_af)]
        return [*pairs, (self.vf, self._target_vf)] if self.uses_dueling else pairs

    # ------------------------------------------------------------------------------------------------------ acting

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes actions with the highest Q-values, without noise: `{OBS: [..., d]}` -> `{ACTIONS: int32 [...]}`. If
        the observations contain an action mask, chooses only valid actions.
        """
        outputs = self.compute_q_values(batch)
        actions = q_learning.greedy_actions(outputs[QF_PREDS], mask_of(batch[Columns.OBS]))
        return {Columns.ACTIONS: actions, **state_out_of(outputs)}

    def _forward_exploration(
        self, batch: dict[str, Any], t: Any = None, epsilon: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Computes epsilon-greedy actions: `{OBS: [..., d]}` -> `{ACTIONS: int32 [...]}`.

        If the observations contain an action mask, chooses only valid actions. If the networks have noisy weights,
        draws separate noise for each row.

        Args:
            batch: The columns.
            t: Env steps so far, a scalar or `uint32[2]`; None is 0. Read only without `epsilon`.
            epsilon: Probability of a random action; None uses the schedule in the model config.
        """
        key = self.random_stream()
        if epsilon is None:
            schedule = schedules.encode(self.model_config.get("epsilon", DQN_MODEL_CONFIG["epsilon"]))
            epsilon = schedules.value_at(schedule, counters.of_steps(t))
        noise = None
        if self.uses_noise:
            key, noise_key = jax.random.split(key)
            noise = draw_noise(noise_key, (*self._leading_axes(batch[Columns.OBS]), self._noise_dim()))
        outputs = self._with_noise(self.compute_q_values, batch, noise)
        actions = q_learning.epsilon_greedy(key, outputs[QF_PREDS], epsilon, mask_of(batch[Columns.OBS]))
        return {Columns.ACTIONS: actions, **state_out_of(outputs)}

    # ---------------------------------------------------------------------------------------------------- training

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the network outputs that the loss needs, from the observations and next observations of N steps:
        `{OBS: [N, d], NEXT_OBS: [N, d]}`.

        Returns:
            `QF_PREDS`, `QF_TARGET_NEXT_PREDS` and, with double Q-learning, `QF_NEXT_PREDS`, float `[N, A]`; with atoms
            also `ATOMS` `[K]`, `QF_LOGITS`, `QF_PROBS` and `QF_TARGET_NEXT_PROBS` `[N, A, K]`. Gradients only flow
            through the predictions of `OBS`. With a recurrent state, `[N, J, ...]` of sequences from replay: see
            `Timeline`.
        """
        noise: Any = (None, None, None)
        if self.uses_noise:
            # One draw for each of the three, all rows alike (section 3.2 of the paper).
            noise = draw_noise(self.random_stream(), (3, self._noise_dim()))
        if Columns.STATE_IN in batch:
            return self._forward_train_sequences(batch, noise)
        next_batch = {Columns.OBS: batch[Columns.NEXT_OBS]}
        now = self._with_noise(self.compute_q_values, batch, noise[0])
        target = self._with_noise(self.forward_target, next_batch, noise[1])
        outputs = {**now, QF_TARGET_NEXT_PREDS: target[QF_PREDS]}
        if self.uses_double_q:
            # A pass of its own: a common one would compute the gradient for these rows, too.
            online = self._with_noise(self.compute_q_values, next_batch, noise[2])
            outputs[QF_NEXT_PREDS] = jax.lax.stop_gradient(online[QF_PREDS])
        if self.num_atoms > 1:
            outputs[QF_TARGET_NEXT_PROBS] = target[QF_PROBS]
        return outputs

    def _forward_train_sequences(self, batch: dict[str, Any], noise: Any) -> dict[str, Any]:
        """Computes the outputs of `_forward_train` for sequences from replay.

        A sequence is extended by the observation after its last step, so that each network (online and target)
        evaluates observations and next observations in one pass.
        """
        timeline = Timeline(batch, self.burn_in_len)
        online = self._with_noise(self.compute_q_values, timeline.columns(states_of(self.encoder)), noise[0])
        target = self._with_noise(self.forward_target, timeline.columns(states_of(self._target_encoder)), noise[1])
        per_step = {name: online[name] for name in (QF_PREDS, QF_LOGITS, QF_PROBS) if name in online}
        outputs = {**timeline.now(per_step), QF_TARGET_NEXT_PREDS: timeline.after(target[QF_PREDS])}
        if self.uses_double_q:
            outputs[QF_NEXT_PREDS] = jax.lax.stop_gradient(timeline.after(online[QF_PREDS]))
        if self.num_atoms > 1:
            outputs |= {ATOMS: online[ATOMS], QF_TARGET_NEXT_PROBS: timeline.after(target[QF_PROBS])}
        return outputs

    def compute_q_values(self, batch: dict[str, Any], noise: jax.Array | None = None) -> dict[str, Any]:
        """Computes the Q-values of all actions, float `[..., A]`, with the online networks.

        Args:
            batch: `{OBS: [..., d]}`.
            noise: Noise of a noisy network, `[..., noise_dim]`; None uses mean weights.

        Returns:
            `{QF_PREDS: float [..., A]}`; with atoms also `ATOMS` `[K]`, `QF_LOGITS` and `QF_PROBS` `[..., A, K]`; with
            a recurrent state also `STATE_OUT`.
        """
        heads = {"af": self.af, "vf": self.vf} if self.uses_dueling else self.af
        return self._qf_forward_helper(batch, self.encoder, heads, noise)

    def forward_target(self, batch: dict[str, Any], noise: jax.Array | None = None) -> dict[str, Any]:
        """Computes the Q-values of all actions, float `[..., A]`, with the target networks. Arguments and results have
        the form that `compute_q_values` describes.
        """
        heads = {"af": self._target_af, "vf": self._target_vf} if self.uses_dueling else self._target_af
        return self._qf_forward_helper(batch, self._target_encoder, heads, noise)

    def compute_advantage_distribution(self, batch: Any) -> dict[str, Any]:
        """Converts logits of all actions and atoms to one categorical distribution of the return per action (C51).

        With dueling, the logits already combine the outputs of the advantage head and the state value head.

        Args:
            batch: Logits, float `[..., A * K]`, for A actions and K atoms.

        Returns:
            `ATOMS` `[K]`, and `"logits"` and `"probs"` `[..., A, K]`.
        """
        logits = batch.reshape(*batch.shape[:-1], self.num_actions, self.num_atoms)
        atoms = q_learning.support(self.v_min, self.v_max, self.num_atoms)
        return {ATOMS: atoms, "logits": logits, "probs": jax.nn.softmax(logits, axis=-1)}

    def _qf_forward_helper(
        self, batch: dict[str, Any], encoder: Any, head: Any, noise: jax.Array | None = None
    ) -> dict[str, Any]:
        """Computes Q-values of all actions with the given encoder and head; see `compute_q_values` for inputs and
        outputs.

        With dueling, `head` is a dict of two heads: advantages ("af") and state values ("vf").
        """
        batch, mask = split_action_mask(batch)
        encoded = encoder(batch)
        latent, state_out = encoded[ENCODER_OUT], state_out_of(encoded)
        if not self.uses_dueling:
            outputs = self._with_noise(head, latent, noise)
        else:
            split = None if noise is None else self.af.noise_dim
            advantages = self._with_noise(head["af"], latent, None if noise is None else noise[..., :split])
            values = self._with_noise(head["vf"], latent, None if noise is None else noise[..., split:])
            if self.num_atoms == 1:
                return {QF_PREDS: q_learning.dueling(values, advantages, mask), **state_out}
            by_action = advantages.reshape(*advantages.shape[:-1], self.num_actions, self.num_atoms)
            outputs = q_learning.dueling_atoms(values, by_action, mask).reshape(advantages.shape)
        if self.num_atoms == 1:
            return {QF_PREDS: outputs, **state_out}
        found = self.compute_advantage_distribution(outputs)
        q_values = jnp.sum(found["probs"] * found[ATOMS], axis=-1)
        return {
            QF_PREDS: q_values,
            ATOMS: found[ATOMS],
            QF_LOGITS: found["logits"],
            QF_PROBS: found["probs"],
            **state_out,
        }

    def _leading_axes(self, observations: Any) -> tuple[int, ...]:
        assert self.observation_space is not None
        first, one = (jax.tree.leaves(x)[0] for x in (observations, shape_dtype_struct(self.observation_space)))
        return first.shape[: first.ndim - len(one.shape)]

    def _noise_dim(self) -> int:
        return self.af.noise_dim + (self.vf.noise_dim if self.uses_dueling else 0)

    @staticmethod
    def _with_noise(function: Any, inputs: Any, noise: jax.Array | None) -> Any:
        """Calls a network function with `inputs` and, if `noise` is not None, with ``noise=noise``. Networks without
        noisy layers need no argument ``noise``.
        """
        return function(inputs) if noise is None else function(inputs, noise=noise)


_ABSENT = {
    name: "`DefaultDQNRLModule`"
    for name in ("DQNRainbowRLModule", "DQNRainbowTorchRLModule", "DefaultDQNTorchRLModule")
}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
