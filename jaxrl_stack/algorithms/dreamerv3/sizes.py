"""Sizes of DreamerV3's networks."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ModelSize:
    """Sizes of the networks (Hafner et al., 2023, arXiv:2301.04104, table B.1, and RLlib's smaller sizes).

    Attributes:
        cnn_multiplier: Channels of the first convolution; each of the next three has twice as many.
        dense_units: Width of hidden layers.
        gru_units: Width of the deterministic state.
        num_categoricals: Z, number of variables of the stochastic state.
        num_classes: K, number of classes of each variable.
        dense_layers: Hidden layers of encoder, decoder, heads, actor and critic.
    """

    cnn_multiplier: int
    dense_units: int
    gru_units: int
    num_categoricals: int
    num_classes: int
    dense_layers: int


MODEL_SIZES = {
    "nano": ModelSize(2, 16, 16, 4, 4, 1),
    "micro": ModelSize(4, 32, 32, 8, 8, 1),
    "mini": ModelSize(8, 64, 64, 16, 16, 1),
    "XXS": ModelSize(16, 128, 128, 32, 32, 1),
    "XS": ModelSize(24, 256, 256, 32, 32, 1),
    "S": ModelSize(32, 512, 512, 32, 32, 2),
    "M": ModelSize(48, 640, 1024, 32, 32, 3),
    "L": ModelSize(64, 768, 2048, 32, 32, 4),
    "XL": ModelSize(96, 1024, 4096, 32, 32, 5),
}
"""By name, as `training(model_size=...)` takes them."""
