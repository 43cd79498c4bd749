"""PPO with one optimizer for the policy and one for the value function."""

from __future__ import annotations

from typing import Any

import optax

from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner


class PPOLearnerWithSeparateVfOptimizer(PPOLearner):
    """PPO learner with two optimizers: the policy's with ``lr``, the value function's with
    ``learner_config_dict["lr_vf"]`` (default ``lr``).

    Raises:
        ValueError: Policy and value function share layers.
    """

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        config = config or self.config_for(module_id)
        module: Any = self.template[module_id]
        if module.model_config.get("vf_share_layers"):
            raise ValueError(
                "rl_module(model_config={'vf_share_layers': True}): two optimizers need two networks; set it to False."
            )
        encoder = module.encoder
        parts = {
            "optim_for_pi": ((encoder.actor_encoder, module.pi), config.lr),
            "optim_for_vf": ((encoder.critic_encoder, module.vf), config.learner_config_dict.get("lr_vf", config.lr)),
        }
        for name, (networks, lr) in parts.items():
            self.register_optimizer(
                module_id=module_id,
                optimizer_name=name,
                optimizer=optax.adam,
                params=[parameter for network in networks for parameter in self.get_parameters(network)],
                lr_or_lr_schedule=lr,
            )
