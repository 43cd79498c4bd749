"""BC's default RLModule."""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.bc.bc_catalog import BCCatalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import masked_logits, split_action_mask
from jaxrl_stack.core.models.base import ENCODER_OUT, initial_state_of, state_out_of
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.rl_module import RLModule


class DefaultBCRLModule(RLModule):
    """Encoder and policy head, configured by `DefaultModelConfig`, without a value function.

    Attributes `encoder` and `pi`. With ``use_lstm`` its recurrent state is that of the encoder, and columns are
    sequences, ``[B, T, ...]``.

    Observations can have any space that `Catalog` has encoders for, or ``{"action_mask": [n], "observations": ...}``:
    actions with mask 0 then have probability 0.
    """

    rows_are_independent = True
    honours_action_mask = True
    handles_resets = True

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any):
        super().__init__(*args, catalog_class=catalog_class or BCCatalog, **kwargs)

    def setup(self) -> None:
        """Builds the encoder and the head with the catalog."""
        if type(self) is DefaultBCRLModule and self.catalog_class is BCCatalog:
            # Nothing else could read a setting that the default models do not have.
            check_model_config(self.model_config)
        self.encoder = self.catalog.build_encoder(self.framework, rngs=self.rngs)
        self.pi = self.catalog.build_pi_head(self.framework, rngs=self.rngs)

    def get_initial_state(self) -> Any:
        """Recurrent state of the encoder at the start of an episode; {} for stateless encoders."""
        # Subclasses may have an encoder of another kind, or none.
        return initial_state_of(vars(self).get("encoder"))

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the policy's outputs: `{OBS: [..., d]}` -> `{ACTION_DIST_INPUTS: [..., n]}`.

        Each row has d observation values and n inputs of the action distribution. If the encoder is recurrent, reads
        `STATE_IN` and also returns `STATE_OUT`.
        """
        batch, mask = split_action_mask(batch)
        encoded = self.encoder(batch)
        inputs = masked_logits(self.pi(encoded[ENCODER_OUT]), mask)
        return {Columns.ACTION_DIST_INPUTS: inputs, **state_out_of(encoded)}
