"""DreamerV3's three losses and optimizers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, cast

import jax
import jax.numpy as jnp
import optax

from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import NORMALISED, OBSERVED
from jaxrl_stack.algorithms.dreamerv3.networks_memory import require_networks_fit
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.laprop import laprop
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.optimizer_losses import LossesByOptimizer
from jaxrl_stack.core.learner.optimizers import ParamDict
from jaxrl_stack.core.learner.target_networks import TargetNetworkUpdates
from jaxrl_stack.core.learner.traced_metrics import GLOBAL_NORM
from jaxrl_stack.core.rl_module.apis import TargetNetworkAPI
from jaxrl_stack.ops.world_models import update_range
from jaxrl_stack.replay.arithmetic import IS_TERMINATED

if TYPE_CHECKING:
    from jaxrl_stack.utils.traced_config import TracedConfigView

WORLD_MODEL, ACTOR, CRITIC = "world_model", "actor", "critic"

# One object each, so that an optimizer of all its parameters in one vector knows it.
_OF_MODEL, _OF_AGENT = (functools.partial(optax.adam, eps=eps) for eps in (1e-8, 1e-5))

_RESULTS = {
    "WORLD_MODEL_L_decoder": (WORLD_MODEL, "decoder"),
    "WORLD_MODEL_L_reward": (WORLD_MODEL, "reward"),
    "WORLD_MODEL_L_continue": (WORLD_MODEL, "continue"),
    "WORLD_MODEL_L_prediction": (WORLD_MODEL, "prediction"),
    "WORLD_MODEL_L_dynamics": (WORLD_MODEL, "dynamics"),
    "WORLD_MODEL_L_representation": (WORLD_MODEL, "representation"),
    "WORLD_MODEL_L_total": (WORLD_MODEL, "total"),
    "ACTOR_L_total": (ACTOR, "total"),
    "ACTOR_action_entropy": (ACTOR, "entropy"),
    "ACTOR_L_neglogp_reinforce_term": (ACTOR, "advantage"),
    "CRITIC_L_total": (CRITIC, "total"),
    "CRITIC_L_neg_logp_of_value_targets": (CRITIC, "targets"),
    "CRITIC_L_slow_critic_regularization": (CRITIC, "slow"),
}
"""``{name of RLlib's: (loss, term)}``."""
_OTHERS = (
    "WORLD_MODEL_learned_initial_h",
    "ACTOR_L_neg_entropy_term",
    "ACTOR_value_targets_pct95_ema",
    "ACTOR_value_targets_pct5_ema",
    *(f"{name.upper()}_gradients_global_norm" for name in (WORLD_MODEL, ACTOR, CRITIC)),
    *(f"{name.upper()}_gradients_maxabs_after_clipping" for name in (WORLD_MODEL, ACTOR, CRITIC)),
)


class DreamerV3Learner(TargetNetworkUpdates, Learner):
    """DreamerV3 (Hafner et al., 2023, arXiv:2301.04104): a world model, with an actor and a critic trained in
    imagination.

    Each of the three has an optimizer and a loss, computed with the parameters before the update. The slow critic is
    updated afterwards.
    """

    result_names = (*_RESULTS, *_OTHERS)
    learns_from_sequences = True
    optimizer_names = (WORLD_MODEL, ACTOR, CRITIC)

    def _make_module(self) -> Any:
        if self._module_given is None:
            spec = self._module_spec or self.config.get_multi_rl_module_spec()
            require_networks_fit(cast(Any, self.config), spec, self.devices)
        return super()._make_module()

    @classmethod
    def rl_module_required_apis(cls) -> list[type]:
        return [TargetNetworkAPI]

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Registers an optimizer for each of world model, actor and critic: Adam, or LaProp with adaptive clipping
        (``optimizer="laprop"``).
        """
        config = config or self.config_for(module_id)
        module: Any = self.template[module_id]
        for name, optimizer in ((WORLD_MODEL, _OF_MODEL), (ACTOR, _OF_AGENT), (CRITIC, _OF_AGENT)):
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=laprop if config.optimizer == "laprop" else optimizer,
                params=self.get_parameters(getattr(module, name)),
                lr_or_lr_schedule=getattr(config, f"{name}_lr"),
            )

    def compute_loss_for_module(
        self, *, module_id: str, config: TracedConfigView, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> Any:
        module, settings = cast(Any, self.module[module_id]), self.config_for(module_id)
        observed, is_terminated = fwd_out[OBSERVED], batch[IS_TERMINATED]
        of_model = losses.world_model_rows(
            module.world_model, observed, fwd_out[NORMALISED], batch[Columns.REWARDS], is_terminated
        )
        means = {WORLD_MODEL: jax.tree.map(jnp.mean, of_model)}
        fixed = jax.lax.stop_gradient
        differentiable = settings.differentiates_dreams(module.action_space)
        start = jax.tree.map(lambda x: fixed(x.reshape(-1, *x.shape[2:])), observed.states)
        imagined = module.imagine(start, settings.horizon_H, differentiable=differentiable)
        judged = losses.judged(
            module.world_model,
            module.critic,
            imagined,
            is_terminated.reshape(-1),
            gamma=config.gamma,
            lambda_=config.gae_lambda,
        )
        axis_name = self._running_trace("compute_loss_for_module").axis_name
        module.returns = returns = update_range(
            module.returns, judged.targets, config.return_normalization_decay, axis_name=axis_name
        )
        features = fixed(imagined.features)
        means[CRITIC] = losses.critic_means(module.critic, module.slow_critic, features, judged)
        means[ACTOR] = losses.actor_means(
            module.actor, features, imagined.actions, judged, returns, config.entropy_scale,
            differentiable=differentiable,
        )  # fmt: skip
        self._log(module_id, module, means, returns, config)
        if settings.replay_latents:
            for name, value in observed.states.stored().items():
                self.metrics.log_value((module_id, name), fixed(value), reduce="item_series")
        stays = {ACTOR: not settings.train_actor, CRITIC: not settings.train_critic}
        totals = {name: means[name]["total"] for name in self.optimizer_names}
        return LossesByOptimizer({name: fixed(x) if stays.get(name) else x for name, x in totals.items()})

    def _log(self, module_id: str, module: Any, means: Any, returns: Any, config: Any) -> None:
        metrics = {name: means[loss][term] for name, (loss, term) in _RESULTS.items()}
        metrics["ACTOR_L_neg_entropy_term"] = -config.entropy_scale * metrics["ACTOR_action_entropy"]
        metrics["WORLD_MODEL_learned_initial_h"] = jnp.mean(module.world_model.initial_h[...])
        metrics["ACTOR_value_targets_pct95_ema"] = returns.high
        metrics["ACTOR_value_targets_pct5_ema"] = returns.low
        self.metrics.log_dict(metrics, key=module_id, window=1)

    def postprocess_gradients_for_module(
        self, *, module_id: str, config: Any = None, module_gradients_dict: ParamDict
    ) -> ParamDict:
        """Clips the gradients of world model, actor and critic by their global norms, and logs gradient sizes.

        Logs the norms before clipping, and the largest absolute gradients after clipping. With LaProp, clips nothing
        and only logs, because LaProp clips gradients itself.
        """
        settings, out = self.config_for(module_id), dict(module_gradients_dict)
        for name, optimizer in self.get_optimizers_for_module(module_id):
            gradients = self.filter_param_dict_for_optimizer(module_gradients_dict, optimizer)
            limit = None if settings.optimizer == "laprop" else getattr(settings, f"{name}_grad_clip_by_global_norm")
            clipped, norm = self._get_clip_function()(gradients, limit, "global_norm")
            out |= clipped
            largest = jnp.max(jnp.stack([jnp.max(jnp.abs(g)) for g in clipped.values()]))
            self.metrics.log_dict(
                {
                    f"gradients_{name}_{GLOBAL_NORM}": norm,
                    f"{name.upper()}_gradients_global_norm": norm,
                    f"{name.upper()}_gradients_maxabs_after_clipping": largest,
                },
                key=module_id,
                window=1,
            )
        return out
