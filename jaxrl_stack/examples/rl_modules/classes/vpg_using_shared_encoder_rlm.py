"""RLModules of policies that share an encoder, which is a separate module."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ENCODER_OUT
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule, RLModule

SHARED_ENCODER_ID = "shared_encoder"


class SharedEncoder(RLModule):
    """Shared encoder: a linear layer over Box observations of rank 1. Model config: ``"embedding_dim"``, size of the
    output.
    """

    rows_are_independent = True

    def setup(self) -> None:
        observations: Any = self.observation_space
        self.layer = nnx.Linear(observations.shape[0], self.model_config["embedding_dim"], rngs=self.rngs)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {ENCODER_OUT: self.layer(batch[Columns.OBS])}


class VPGPolicyAfterSharedEncoder(RLModule):
    """Policy that applies an encoder, then a network with one hidden layer. All policies of a
    `VPGMultiRLModuleWithSharedEncoder` share the encoder.

    Model config: ``"embedding_dim"``, that of the encoder; ``"hidden_dim"``, the width of the hidden layer.
    """

    rows_are_independent = True
    # Set by the MultiRLModule, whose module it is.
    encoder: nnx.Linear

    def setup(self) -> None:
        self.head = _Head(self)

    def _forward(self, batch: Any, **kwargs: Any) -> dict[str, Any]:
        return {Columns.ACTION_DIST_INPUTS: self.head(self.encoder(batch[Columns.OBS]))}


class VPGPolicyNoSharedEncoder(VPGPolicyAfterSharedEncoder):
    """`VPGPolicyAfterSharedEncoder` with a separate encoder for each policy, for comparison with a shared encoder."""

    def setup(self) -> None:
        super().setup()
        observations: Any = self.observation_space
        self.encoder = nnx.Linear(observations.shape[0], self.model_config["embedding_dim"], rngs=self.rngs)


class VPGMultiRLModuleWithSharedEncoder(MultiRLModule):
    """MultiRLModule that gives all policies the encoder layer of the module `SHARED_ENCODER_ID`.

    Its parameters follow the losses of all policies: register one optimizer for all modules, as
    `VPGLearnerSharedOptimizer` does.

    Raises:
        ValueError: There is no such module.
    """

    def setup(self) -> None:
        super().setup()
        if SHARED_ENCODER_ID not in self:
            raise ValueError(
                f"{type(self).__name__} has no shared encoder, only the modules {list(self)}. Add "
                f"RLModuleSpec(module_class=SharedEncoder, ...) as {SHARED_ENCODER_ID!r} to "
                "MultiRLModuleSpec(rl_module_specs=...)."
            )
        shared: Any = self[SHARED_ENCODER_ID]
        for module_id, module in self.items():
            if module_id != SHARED_ENCODER_ID:
                policy: Any = module
                policy.encoder = shared.layer


class _Head(nnx.Module):
    """Network from an embedding to the logits of Discrete actions."""

    def __init__(self, module: RLModule):
        actions: Any = module.action_space
        embedding, width = module.model_config["embedding_dim"], module.model_config["hidden_dim"]
        self.hidden = nnx.Linear(embedding, width, rngs=module.rngs)
        self.logits = nnx.Linear(width, int(actions.n), rngs=module.rngs)

    def __call__(self, embeddings: jax.Array) -> jax.Array:
        return self.logits(nnx.relu(self.hidden(embeddings)))
