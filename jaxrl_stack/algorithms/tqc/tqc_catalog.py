"""Networks of TQC's default module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog, is_vector_of_floats

TQC_MODEL_CONFIG: Mapping[str, Any] = {"n_quantiles": 25, "n_critics": 2, "top_quantiles_to_drop_per_net": 2}
"""Settings of TQC's module besides SAC's settings, with their defaults; a TQCConfig sets its own values."""


class TQCCatalog(SACCatalog):
    """`SACCatalog` for continuous actions; critics have one output per quantile.

    Args:
        observation_space, action_space, model_config_dict: As in `Catalog`; ``model_config_dict["n_quantiles"]`` is the
            number of a critic's outputs.

    Raises:
        ValueError: For an action space that is not a Box of floats of rank 1.
    """

    rows_are_independent = True
    handles_resets = True

    @property
    def is_continuous(self) -> bool:
        """True, because actions must be vectors of floats; raises for all other action spaces.

        Raises:
            ValueError: If the action space is not a Box of floats of rank 1.
        """
        if not is_vector_of_floats(self.action_space):
            raise ValueError(
                f"TQC supports action spaces Box(shape=(n,), dtype=float32), not {self.action_space}. Flatten a Box of "
                "another rank in the environment, use SAC or DQN for discrete actions, or PPO for other spaces."
            )
        return True

    @property
    def qf_output_dim(self) -> int:
        """Number of outputs of a critic: one per quantile."""
        return int({**TQC_MODEL_CONFIG, **self.model_config_dict}["n_quantiles"])
