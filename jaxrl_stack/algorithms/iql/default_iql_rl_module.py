"""IQL's default RLModule."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.sac.default_sac_rl_module import QF_PREDS, QF_TWIN_PREDS, DefaultSACRLModule
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import split_action_mask
from jaxrl_stack.core.models.base import ENCODER_OUT
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.ops import q_learning

QF_TARGET_PREDS, VF_PREDS_NEXT = "qf_target_preds", "vf_preds_next"
"""Columns that `forward_train` returns; see `DefaultIQLRLModule`."""


class DefaultIQLRLModule(DefaultSACRLModule, ValueFunctionAPI):
    """SAC's policy and critics, and a state value function (`vf_encoder` and `vf`). Acting needs only the policy.

    ``forward_train`` takes `OBS`, `NEXT_OBS` and `ACTIONS`, and returns `ACTION_DIST_INPUTS`; `QF_PREDS` (and
    `QF_TWIN_PREDS`) float32 `[N]`, Q-values of the recorded actions; `QF_TARGET_PREDS` `[N]`, the minimum of the target
    networks' Q-values of the same actions; `VF_PREDS` and `VF_PREDS_NEXT` `[N]`, state values of `OBS` and `NEXT_OBS`.
    Gradients flow through all of these columns except `QF_TARGET_PREDS` and `VF_PREDS_NEXT`. No actions are sampled.
    """

    rows_are_independent = True
    default_catalog = SACCatalog
    own_settings = ("twin_q",)

    def setup(self) -> None:
        """Builds encoders and heads with the catalog."""
        super().setup()
        self.vf_encoder = self.catalog.build_encoder(self.framework, rngs=self.rngs)
        self.vf = self.catalog.build_vf_head(self.framework, rngs=self.rngs)

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: everything except the policy."""
        return [*super().get_non_inference_attributes(), "vf_encoder", "vf"]

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        obs = {Columns.OBS: batch[Columns.OBS]}
        inputs, _ = self._policy(obs)
        targets = self._of_recorded(batch, "target_")
        target = jnp.minimum(*targets) if self.twin_q else targets[0]
        return {
            Columns.ACTION_DIST_INPUTS: inputs,
            **dict(zip((QF_PREDS, QF_TWIN_PREDS), self._of_recorded(batch), strict=False)),
            QF_TARGET_PREDS: jax.lax.stop_gradient(target),
            Columns.VF_PREDS: self.compute_values(obs),
            VF_PREDS_NEXT: jax.lax.stop_gradient(self.compute_values({Columns.OBS: batch[Columns.NEXT_OBS]})),
        }

    def _of_recorded(self, batch: dict[str, Any], prefix: str = "") -> list[jax.Array]:
        """Computes the Q-values `[N]` of the recorded actions, one array for each critic. The prefix ``"target_"``
        selects the target networks, an empty `prefix` the online networks.
        """
        actions, own = batch[Columns.ACTIONS], {Columns.OBS: batch[Columns.OBS]}
        if isinstance(self.action_space, gym.spaces.Discrete):
            return [q_learning.select(values, actions) for values in self._values(own, False, prefix)]
        return self._values({**own, Columns.ACTIONS: actions}, True, prefix)

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> jax.Array:
        if embeddings is None:
            embeddings = self.vf_encoder(split_action_mask(batch)[0])[ENCODER_OUT]
        return self.vf(embeddings)[..., 0]
