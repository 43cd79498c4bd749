"""TQC's default RLModule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.sac.default_sac_rl_module import QF_PREDS, DefaultSACRLModule, of_critic
from jaxrl_stack.algorithms.tqc.quantiles import truncated
from jaxrl_stack.algorithms.tqc.tqc_catalog import TQC_MODEL_CONFIG, TQCCatalog
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.models.base import ENCODER_OUT


class DefaultTQCRLModule(DefaultSACRLModule):
    """SAC's policy, and critics whose outputs are quantiles of the return.

    Attributes are `pi_encoder` and `pi`; `qf_encoders` and `qf_heads`, lists of ``n_critics``; the target networks
    `target_qf_encoders` and `target_qf_heads`; `log_alpha` as in `DefaultSACRLModule`; and the settings `n_quantiles`,
    `n_critics` and `top_quantiles_to_drop_per_net` of ``model_config``.

    ``forward_train`` returns SAC's columns for continuous actions, except that `QF_PREDS` and `QF_TARGET_NEXT` are all
    quantiles of all critics, float32 `[N, n_critics, n_quantiles]`.
    """

    target_qf_encoders: nnx.List
    target_qf_heads: nnx.List

    rows_are_independent = True
    default_catalog = TQCCatalog
    own_settings = (*DefaultSACRLModule.own_settings, *TQC_MODEL_CONFIG)

    def _build_critics(self) -> None:
        settings = {**TQC_MODEL_CONFIG, **self.model_config}
        self.n_quantiles, self.n_critics = int(settings["n_quantiles"]), int(settings["n_critics"])
        self.top_quantiles_to_drop_per_net = int(settings["top_quantiles_to_drop_per_net"])

        def one_each(build: Any) -> nnx.List:
            return nnx.List([build(self.framework, rngs=self.rngs) for _ in range(self.n_critics)])

        self.qf_encoders = one_each(self.catalog.build_qf_encoder)
        self.qf_heads = one_each(self.catalog.build_qf_head)

    @property
    def _critic_parts(self) -> list[str]:
        return ["qf_encoders", "qf_heads"]

    def _critic_encoders(self, prefix: str) -> list[Any]:
        return list(getattr(self, f"{prefix}qf_encoders"))

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(encoder or head of a critic, its target network)]``, encoders first."""
        return [pair for lists in super().get_target_network_pairs() for pair in zip(*lists, strict=True)]

    def compute_q_values(self, batch: dict[str, Any], squeeze: bool = True) -> jax.Array:
        """Mean of all quantiles of all critics; the policy maximises it.

        Args:
            batch: `OBS` float `[N, d]` and `ACTIONS` float `[N, n]` in [-1, 1].
            squeeze: No effect; for compatibility with SAC's module.

        Returns:
            Float `[N]`.
        """
        return jnp.mean(self._critics(batch)[QF_PREDS], axis=(-2, -1))

    def forward_target(self, batch: dict[str, Any], squeeze: bool = True) -> jax.Array:
        """Computes the target networks' Q-values: the mean over the pooled quantiles of all target critics, without the
        highest quantiles (see `truncated`).

        Args:
            batch, squeeze: See `compute_q_values`.

        Returns:
            Float `[N]`.
        """
        return jnp.mean(truncated(self._target_critics(batch), self.top_quantiles_to_drop_per_net), axis=-1)

    def _critics(self, batch: dict[str, Any], squeeze: bool = True) -> dict[str, jax.Array]:
        return {QF_PREDS: _quantiles(batch, self.qf_encoders, self.qf_heads)}

    def _target_critics(self, batch: dict[str, Any]) -> jax.Array:
        return _quantiles(batch, self.target_qf_encoders, self.target_qf_heads)


def _quantiles(batch: dict[str, Any], encoders: nnx.List, heads: nnx.List) -> jax.Array:
    """Quantiles of all critics, float `[N, n_critics, n_quantiles]`."""
    pairs = zip(encoders, heads, strict=True)
    each = [head(encoder(of_critic(batch, encoder, i))[ENCODER_OUT]) for i, (encoder, head) in enumerate(pairs)]
    return jnp.stack(each, axis=-2)


_ABSENT = {"DefaultTQCTorchRLModule": "`DefaultTQCRLModule`"}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
