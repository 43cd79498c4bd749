"""IMPALA's actor-critic loss with V-trace targets, and the base class of all learners with V-trace."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from jaxrl_stack.compat.renamed import absent_or_renamed
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import rows_without_valid_action
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.traced_metrics import MetricKey, put_setting
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.block_values import values_of_block
from jaxrl_stack.core.rl_module.functional import ModuleDefinition
from jaxrl_stack.core.rl_module.row_independence import handles_resets
from jaxrl_stack.core.rl_module.sequences import step_by_step
from jaxrl_stack.ops.vtrace import VTrace, vtrace

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView

ENTROPY_KEY = "entropy"
LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY = "curr_entropy_coeff"
"""Names of IMPALA's results of each module, ``result["learners"][module_id][name]``."""


_READ_BY_VTRACE = (Columns.OBS, Columns.FINAL_OBS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


def _values_of_next(module: Any, columns: dict[str, Any], state: Any) -> jax.Array:
    """Bootstrap values float32 ``[N]`` of N chunks of L consecutive steps ``[L, N, ...]``: values of the observations
    after the last step of each chunk.

    Args:
        module: A module with a recurrent state.
        columns: Columns that include ``FINAL_OBS``.
        state: State before these observations, ``[N, ...]``.
    """
    batch = {
        Columns.OBS: jax.tree.map(lambda x: x[-1][:, None], columns[Columns.FINAL_OBS]),
        Columns.RESETS: jnp.zeros((columns[Columns.RESETS].shape[1], 1), bool),
        Columns.STATE_IN: state,
    }
    return module.compute_values(batch)[:, 0].astype(jnp.float32)


def _bound(threshold: Any) -> Any:
    """Clipping threshold of V-trace as a number: infinity (no clipping) for None."""
    return jnp.inf if threshold is None else threshold


class VTraceLearner(Learner):
    """Base class of learners with V-trace. The learners compute state values, V-trace targets and advantages for each
    chunk of consecutive steps in a minibatch.

    All three are computed with the current parameters in every minibatch. A minibatch consists of whole chunks. A chunk
    is one column of a rollout ``[T, B]`` (all T steps at one index of B), or ``max_seq_len`` steps for a module with a
    recurrent state.
    """

    learns_from_sequences = True
    loss_needs_time = True
    result_names = (ENTROPY_KEY, LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY)
    columns_from_forward_train = (Columns.ACTION_DIST_INPUTS,)

    @property
    def columns_from_acting(self) -> tuple[str, ...]:
        return (Columns.ACTION_LOGP,)

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [ValueFunctionAPI]

    def compute_values(self, module_id: str, batch: dict[str, Any], fwd_out: dict[str, Any]) -> jax.Array:
        """Computes the state values of all steps in N chunks of L consecutive steps, with gradients: float32
        ``[N, L]``.

        Args:
            module_id: Module with the value function.
            batch: Columns ``[N, L, ...]``.
            fwd_out: Outputs of `forward_train` for these steps; its ``EMBEDDINGS`` are used, if present.
        """
        # build() accepts no other module.
        module: Any = self.module[module_id]
        embeddings = fwd_out.get(Columns.EMBEDDINGS)
        if embeddings is None:
            values = module.compute_values(self.columns_to_forward(module_id, batch))
        else:
            values = module.compute_values(batch, embeddings=embeddings)
        return values.astype(jnp.float32).reshape(batch[Columns.LOSS_MASK].shape)

    def columns_to_forward(self, module_id: str, batch: dict[str, Any]) -> dict[str, Any]:
        """Converts N chunks of L consecutive steps to inputs of a module's forward passes.

        Args:
            module_id: The module.
            batch: Columns ``[N, L, ...]``.

        Returns:
            Without a recurrent state, columns ``[N * L, ...]``. With a recurrent state, the unchanged columns if the
            module handles resets within sequences, else columns ``[N * L, 1, ...]``, see `step_by_step`.
        """
        template = self.template[module_id]
        if not template.is_stateful():
            return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
        return batch if handles_resets(template) else step_by_step(self.module[module_id], batch)[0]

    def compute_vtrace(
        self,
        module_id: str,
        config: TracedConfigView,
        batch: dict[str, Any],
        values: jax.Array,
        log_rhos: jax.Array,
        state_out: Any = None,
    ) -> VTrace:
        """Computes V-trace targets and advantages of N chunks of L consecutive steps, without gradients. Bootstrap
        values are computed with the current parameters.

        Args:
            module_id: Module with the value function.
            config: The module's config view: gamma and the thresholds.
            batch: Columns ``[N, L, ...]``.
            values: float32 ``[N, L]``, state values of the steps.
            log_rhos: float32 ``[N, L]``, log-ratios of the learning and the acting policy.
            state_out: Recurrent state after each chunk, ``[N, ...]``, if `forward_train` returned it; it saves a pass
                over all steps.
        """
        template = self.template[module_id]
        block = Block.of_chunks(template, batch, _READ_BY_VTRACE, is_masked=self.may_be_masked(batch))
        definition, *state = ModuleDefinition.of(self.module[module_id])
        # Nothing of it is differentiated: a loop over truncated rows has no gradient.
        frozen = functools.partial(definition.merge, *jax.lax.stop_gradient(state))
        after = values_of_block(block, template, frozen)
        if state_out is not None and block.mask is None:
            after = after._replace(
                after_block=_values_of_next(frozen(), block.columns, jax.lax.stop_gradient(state_out))
            )
        found = vtrace(
            log_rhos=log_rhos.T,
            rewards=block.columns[Columns.REWARDS],
            values=values.T,
            terminateds=block.columns[Columns.TERMINATEDS],
            truncateds=block.columns[Columns.TRUNCATEDS],
            truncation_values=after.at_truncations(block),
            bootstrap_value=after.after_block,
            gamma=config.gamma,
            clip_rho_threshold=_bound(config.vtrace_clip_rho_threshold),
            clip_pg_rho_threshold=_bound(config.vtrace_clip_pg_rho_threshold),
            mask=block.mask,
        )
        return jax.tree.map(jnp.transpose, found)

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Adds the current entropy coefficient to the metrics of each module that trains with this learner's loss."""
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        metrics = dict(metrics)
        for mid in self._ids_with_loss_of_algorithm:
            put_setting(metrics, (mid, LEARNER_RESULTS_CURR_ENTROPY_COEFF_KEY), settings[mid]["entropy_coeff"])
        return state, metrics


class IMPALALearner(VTraceLearner):
    """Importance-weighted actor-learner (Espeholt et al., 2018, arXiv:1802.01561), as RLlib defines it.

    ``loss = -log pi(a | x) A + vf_loss_coeff (V - v)^2 / 2 - entropy_coeff H``, each term a mean over the valid rows;
    ``v`` and ``A`` are the V-trace targets and advantages.
    """

    loss_is_linear_in_means = True
    result_names = ("pi_loss", "mean_pi_loss", "vf_loss", "mean_vf_loss")

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module = self.module[module_id]
        distribution = module.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        logp = distribution.logp(batch[Columns.ACTIONS])
        values = self.compute_values(module_id, batch, fwd_out)
        log_rhos, state_out = logp - batch[Columns.ACTION_LOGP], fwd_out.get(Columns.STATE_OUT)
        traced = self.compute_vtrace(module_id, config, batch, values, log_rhos, state_out)
        rows: dict[str, jax.Array] = {
            "mean_pi_loss": -logp * traced.advantages,
            "mean_vf_loss": 0.5 * jnp.square(values - traced.targets),
            ENTROPY_KEY: distribution.entropy(),
        }
        means = self.masked_means(rows | rows_without_valid_action(module.action_space, batch), batch)
        self._log_no_valid_action_share(module_id, means)
        for name in ("pi_loss", "vf_loss"):
            total = jnp.sum(jnp.where(batch[Columns.LOSS_MASK], rows[f"mean_{name}"], 0.0))
            self.metrics.log_value((module_id, name), jax.lax.stop_gradient(total), reduce="sum")
        self.metrics.log_dict(means, key=module_id, window=1)
        return (
            means["mean_pi_loss"]
            + config.vf_loss_coeff * means["mean_vf_loss"]
            - config.entropy_coeff * means[ENTROPY_KEY]
        )


__getattr__ = absent_or_renamed(
    __name__,
    absent={"IMPALATorchLearner": "`IMPALALearner`", "ImpalaTorchLearner": "`IMPALALearner`"},
    renamed={"ImpalaLearner": IMPALALearner},
)
