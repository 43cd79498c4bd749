"""CQL's default RLModule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxrl_stack.algorithms.sac.default_sac_rl_module import (
    ACTION_DIST_INPUTS_NEXT,
    QF_PREDS,
    QF_TWIN_PREDS,
    DefaultSACRLModule,
)
from jaxrl_stack.algorithms.sac.sac_catalog import SACCatalog
from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.columns import Columns

Q_REPEAT, Q_TWIN_REPEAT, LOGPS_REPEAT, ACTIONS_REPEAT = "q_repeat", "q_twin_repeat", "logps_repeat", "actions_repeat"
"""Columns that `forward_train` returns in addition to SAC's. Each column has entries for random actions, then for
actions of the policy at the next observation, then for actions of the policy at this observation.
"""


class DefaultCQLRLModule(DefaultSACRLModule):
    """SAC's networks for continuous actions; the critics also evaluate actions that are not in the data.

    With ``model_config["lagrangian"]`` it has `log_alpha_prime`, float32 `[]`, the logarithm of the multiplier of the
    conservative term, which the learner trains from 0 on.

    ``forward_train`` returns SAC's columns, and columns for ``K = model_config["num_actions"]`` actions of each of
    three sources, in this order: random actions in [-1, 1], the policy at the next observation, and the policy at this
    one. `ACTIONS_REPEAT` float32 `[N, 3K, n]` are the actions, `LOGPS_REPEAT` `[N, 3K]` the logarithms of their
    sampling densities, and `Q_REPEAT` (`Q_TWIN_REPEAT`) `[N, 3K]` their values at this observation. Gradients of these
    values only reach the critics.
    """

    rows_are_independent = True
    default_catalog = SACCatalog
    own_settings = (*DefaultSACRLModule.own_settings, "num_actions", "lagrangian")

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if self.model_config.get("lagrangian", False):
            self.log_alpha_prime = nnx.Param(jnp.float32(0.0))

    def setup(self) -> None:
        """Builds encoders and heads with the catalog.

        Raises:
            ValueError: For discrete actions.
        """
        super().setup()
        if not self.catalog.is_continuous:
            raise ValueError(
                f"CQL supports action spaces Box(shape=(n,), dtype=float32), not {self.action_space}. For discrete "
                f"actions use IQL or MARWIL."
            )
        self.num_actions = int(self.model_config.get("num_actions", 10))

    def get_non_inference_attributes(self) -> list[str]:
        """Names of attributes that acting does not need: everything except the policy."""
        return [
            *super().get_non_inference_attributes(),
            *(name for name in ("log_alpha_prime",) if hasattr(self, name)),
        ]

    def _forward_train_continuous(self, batch: dict[str, Any]) -> dict[str, Any]:
        out = super()._forward_train_continuous(batch)
        actions, logps = self._repeated_actions(out)
        # One observation beside its actions, all of them in one pass of each critic.
        obs = jax.tree.map(lambda x: x[:, None], batch[Columns.OBS])
        values = self._critics({Columns.OBS: obs, Columns.ACTIONS: actions})
        out |= {ACTIONS_REPEAT: actions, LOGPS_REPEAT: logps, Q_REPEAT: values[QF_PREDS]}
        return out | ({Q_TWIN_REPEAT: values[QF_TWIN_PREDS]} if self.twin_q else {})

    def _repeated_actions(self, out: dict[str, Any]) -> tuple[jax.Array, jax.Array]:
        """Draws random actions and actions of the policy for each batch row, and computes their log-probabilities,
        without gradients.

        Returns the columns `ACTIONS_REPEAT` (actions, ``[N, 3 * num_actions, A]`` for N batch rows and A action
        dimensions) and `LOGPS_REPEAT` (the actions' log-probabilities, ``[N, 3 * num_actions]``). The first
        `num_actions` actions of a row are uniformly random in [-1, 1]. The next `num_actions` are actions of the policy
        at the next observation, and the last `num_actions` are actions of the policy at the current observation.
        """
        dist_cls = self.get_train_action_dist_cls()

        def drawn(inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
            each = jnp.broadcast_to(inputs[:, None], (len(inputs), self.num_actions, inputs.shape[-1]))
            return dist_cls.from_logits(each).sample_and_logp(key=self.noise())

        inputs, next_inputs = jax.lax.stop_gradient((out[Columns.ACTION_DIST_INPUTS], out[ACTION_DIST_INPUTS_NEXT]))
        shape = (len(inputs), self.num_actions, inputs.shape[-1] // 2)
        random = jax.random.uniform(self.noise(), shape, minval=-1.0, maxval=1.0)
        random_logps = jnp.full(shape[:2], shape[-1] * jnp.log(0.5))
        (current, current_logps), (following, following_logps) = drawn(inputs), drawn(next_inputs)
        return (
            jnp.concatenate([random, following, current], axis=1),
            jnp.concatenate([random_logps, following_logps, current_logps], axis=1),
        )


_ABSENT = {"DefaultCQLTorchRLModule": "`DefaultCQLRLModule`"}
__getattr__ = absent_or_renamed(__name__, absent=_ABSENT)
