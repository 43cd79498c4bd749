"""APPO's default RLModule."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.default_observations import masked_logits, split_action_mask
from jaxrl_stack.core.models.base import ACTOR, ENCODER_OUT
from jaxrl_stack.core.rl_module.apis.target_network_api import TARGET_NETWORK_ACTION_DIST_INPUTS, TargetNetworkAPI
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.target_networks import make_target_network


class DefaultAPPORLModule(DefaultPPORLModule, TargetNetworkAPI):
    """PPO's encoder and heads, with a target policy: copies of the encoder and the policy head."""

    rows_are_independent = True
    handles_resets = True

    def setup(self) -> None:
        """Builds the encoder and the heads with the catalog."""
        if type(self) is DefaultAPPORLModule and self.catalog_class is PPOCatalog:
            # Nothing else could read a setting that the default models do not have.
            check_model_config(self.model_config)
        super().setup()

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: the value head, a separate critic encoder (unless the encoders
        are recurrent), and the target networks.
        """
        return [*super().get_non_inference_attributes(), "_old_encoder", "_old_pi"]

    def make_target_networks(self) -> None:
        """Creates the target networks as copies of the encoder and the policy head."""
        self._old_encoder = make_target_network(self.encoder)
        self._old_pi = make_target_network(self.pi)

    def get_target_network_pairs(self) -> list[tuple[Any, Any]]:
        """``[(network, its target network)]`` for the encoder and the policy head."""
        return [(self.encoder, self._old_encoder), (self.pi, self._old_pi)]

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Computes the target policy's outputs: `{OBS: [..., d]}` -> `{TARGET_NETWORK_ACTION_DIST_INPUTS: [..., n]}`.

        Each row has d observation values and n inputs of the action distribution. If the encoder is recurrent, the
        target encoder starts from the main network's recurrent states, which the batch contains.
        """
        batch, mask = split_action_mask(batch)
        encoded = self._old_encoder(batch, critic=False)
        return {TARGET_NETWORK_ACTION_DIST_INPUTS: masked_logits(self._old_pi(encoded[ENCODER_OUT][ACTOR]), mask)}


_ABSENT = {name: "`DefaultAPPORLModule`" for name in ("APPOTorchRLModule", "DefaultAPPOTorchRLModule")}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
