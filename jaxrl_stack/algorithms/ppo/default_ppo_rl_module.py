"""PPO's default RLModule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import masked_logits, split_action_mask
from jaxrl_stack.core.models.base import ACTOR, CRITIC, ENCODER_OUT, initial_state_of, state_out_of
from jaxrl_stack.core.rl_module.apis.inference_only_api import InferenceOnlyAPI
from jaxrl_stack.core.rl_module.apis.value_function_api import ValueFunctionAPI
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.rl_module import RLModule

if TYPE_CHECKING:
    import jax


class DefaultPPORLModule(RLModule, InferenceOnlyAPI, ValueFunctionAPI):
    """Encoder, policy head and value head, configured by `DefaultModelConfig`.

    Attributes are `encoder` (with `shared`, or with `actor` and `critic`), `pi` and `vf`. Acting computes no values.
    With ``use_lstm`` the encoder has a recurrent state, and columns are sequences, ``[B, T, ...]``.

    Observations can have any space that `Catalog` has encoders for, or ``{"action_mask": [n], "observations": ...}``:
    actions with mask 0 then have probability 0.
    """

    rows_are_independent = True
    honours_action_mask = True
    handles_resets = True

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any):
        super().__init__(*args, catalog_class=catalog_class or PPOCatalog, **kwargs)

    def setup(self) -> None:
        """Builds the encoder and the heads with the catalog."""
        if type(self) is DefaultPPORLModule and self.catalog_class is PPOCatalog:
            # Nothing else could read a setting that the default models do not have.
            check_model_config(self.model_config)
        self.encoder = self.catalog.build_actor_critic_encoder(self.framework, rngs=self.rngs)
        self.pi = self.catalog.build_pi_head(self.framework, rngs=self.rngs)
        self.vf = self.catalog.build_vf_head(self.framework, rngs=self.rngs)

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need.

        These are the value head and, unless the encoders are recurrent, a separate critic encoder. Acting must update
        the state of a recurrent critic encoder in every step.
        """
        needs_critic = self.catalog.model_config_dict["vf_share_layers"] or self.is_stateful()
        return ["vf"] if needs_critic else ["vf", "encoder.critic"]

    def get_initial_state(self) -> Any:
        """Recurrent state of the encoder at the start of an episode; {} for stateless encoders."""
        # Subclasses may have an encoder of another kind, or none.
        return initial_state_of(vars(self).get("encoder"))

    def _hint_for_misfit(self, state: Mapping[str, Any]) -> str:
        # Subclasses may have an encoder of another kind, or none.
        shares = getattr(vars(self).get("encoder"), "is_shared", None)
        stored_shares = any(name.startswith("encoder/shared/") for name in state)
        if shares in (None, stored_shares):
            return ""
        return (
            f" It was saved with vf_share_layers={stored_shares}, and this module has {shares}. A module that "
            "is built alone shares layers if its model config does not say, one of a PPOConfig does not: put "
            "vf_share_layers into the model_config of both specs."
        )

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the policy's outputs: `{OBS: [..., d]}` -> `{ACTION_DIST_INPUTS: [..., n]}`. If the encoder is
        recurrent, reads `STATE_IN` and also returns `STATE_OUT`.
        """
        batch, mask = split_action_mask(batch)
        encoded = self.encoder(batch, critic=False)
        return {
            Columns.ACTION_DIST_INPUTS: masked_logits(self.pi(encoded[ENCODER_OUT][ACTOR]), mask),
            **state_out_of(encoded),
        }

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the outputs of `_forward`, and adds the latents of the value function as `EMBEDDINGS`, which
        `compute_values` reads.
        """
        batch, mask = split_action_mask(batch)
        encoded = self.encoder(batch)
        latents = encoded[ENCODER_OUT]
        inputs = masked_logits(self.pi(latents[ACTOR]), mask)
        return {Columns.ACTION_DIST_INPUTS: inputs, Columns.EMBEDDINGS: latents[CRITIC], **state_out_of(encoded)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> jax.Array:
        """State values, float `[...]` (leading axes of `OBS`)."""
        if embeddings is None:
            embeddings = self.encoder.critic_latent(split_action_mask(batch)[0])
        return self.vf(embeddings)[..., 0]


_ABSENT = {
    name: "`DefaultPPORLModule`"
    for name in ("PPORLModule", "PPOTorchRLModule", "PPOTfRLModule", "DefaultPPOTorchRLModule")
}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
