"""Networks of BC's default module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.observation_keys import POLICY_OBS_KEY

if TYPE_CHECKING:
    from flax import nnx


class BCCatalog(Catalog):
    """Catalog of an encoder and a policy head; all `head_fcnet_*` settings apply to the head.

    Args:
        observation_space, action_space, model_config_dict: See `Catalog`.
    """

    rows_are_independent = True
    handles_resets = True
    observation_key_settings = (POLICY_OBS_KEY,)

    def build_pi_head(self, framework: str = "jax", *, rngs: nnx.Rngs) -> Any:
        """Builds the policy head `[..., latent]` -> action distribution inputs.

        Raises:
            ValueError: For `free_log_std=True` with an action space that is not a Box.
        """
        return self._policy_head(framework, rngs)
