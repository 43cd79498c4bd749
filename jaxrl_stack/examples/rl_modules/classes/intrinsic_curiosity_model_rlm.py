"""RLModule that predicts features of the next observation; its prediction errors serve as intrinsic rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.core.models.heads import MLPHead
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.utils.spaces import flatdim, flatten_observation


class IntrinsicCuriosityModel(RLModule, SelfSupervisedLossAPI):
    """Intrinsic curiosity module (Pathak et al., 2017, arXiv:1705.05363). Only learners use this module: set
    ``RLModuleSpec(learner_only=True)``.

    Three networks: features of an observation; the action between two observations, from the features of both; the
    features of the next observation, from those of the one before it and the action. How wrong the last one is,
    ``0.5 |predicted - actual|^2``, is the intrinsic reward. With ``w = learner_config_dict["forward_loss_weight"]`` the
    loss is ``w * mean of these - (1 - w) * mean log-probability of the actions`` (equations 3, 5 and 6 of the paper).

    Observations are a Box of rank 1, or a Dict of these, which is flattened. With ``policy_obs_key`` and
    ``value_obs_key`` the features are of all selected keys. Actions are of any space. Model config, with RLlib's names
    and defaults: ``feature_dim`` (288); ``feature_net_hiddens`` (256, 256), ``inverse_net_hiddens`` (256,),
    ``forward_net_hiddens`` (256,); and for each of the three an activation, such as ``feature_net_activation`` (None:
    linear).
    """

    rows_are_independent = True

    def setup(self) -> None:
        space = cast(gym.Space, self.observation_space)
        parts = space.spaces.values() if isinstance(space, gym.spaces.Dict) else [space]
        if not all(isinstance(part, gym.spaces.Box) and len(part.shape) == 1 for part in parts):
            raise ValueError(
                f"{type(self).__name__} takes vectors, or a Dict of vectors, but the observation space is {space}. Use "
                "FlattenObservations(), or select Dict keys of vectors in model_config: policy_obs_key, value_obs_key."
            )
        num_obs = flatdim(space)
        actions = cast(gym.Space, self.action_space)
        width = self.model_config.get("feature_dim", 288)
        num_inputs = self.get_train_action_dist_cls().required_input_dim(actions)
        settings = self.model_config
        self.feature_net = self._network(
            num_obs, settings.get("feature_net_hiddens", (256, 256)), settings.get("feature_net_activation"), width
        )
        self.inverse_net = self._network(
            2 * width, settings.get("inverse_net_hiddens", (256,)), settings.get("inverse_net_activation"), num_inputs
        )
        self.forward_net = self._network(
            width + flatdim(actions),
            settings.get("forward_net_hiddens", (256,)),
            settings.get("forward_net_activation"),
            width,
        )

    def _network(self, num_inputs: int, hiddens: Sequence[int], activation: Any, num_outputs: int) -> MLPHead:
        config = MLPHeadConfig(
            input_dims=[num_inputs],
            hidden_layer_dims=list(hiddens),
            hidden_layer_activation=activation or "linear",
            output_layer_dim=num_outputs,
        )
        return config.build(rngs=self.rngs)

    def _as_vectors(self, observations: Any) -> jax.Array:
        """Flattens each observation to one vector; keeps the batch axes."""
        if not isinstance(self.observation_space, gym.spaces.Dict):
            return observations
        return flatten_observation(self.observation_space, observations, jax.tree.leaves(observations)[0].ndim - 1)

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes intrinsic rewards, and the distribution inputs of the predicted actions.

        Returns INTRINSIC_REWARDS and ACTION_DIST_INPUTS. INTRINSIC_REWARDS are prediction errors for features of
        NEXT_OBS, computed from OBS, ACTIONS and NEXT_OBS. ACTION_DIST_INPUTS are the distribution inputs of the
        predicted action, computed from OBS and NEXT_OBS.
        """
        obs, next_obs = (self._as_vectors(batch[name]) for name in (Columns.OBS, Columns.NEXT_OBS))
        features, next_features = self.feature_net(obs), self.feature_net(next_obs)
        actions = flatten_observation(cast(gym.Space, self.action_space), batch[Columns.ACTIONS], obs.ndim - 1)
        predicted = self.forward_net(jnp.concatenate([features, actions], axis=-1))
        return {
            Columns.INTRINSIC_REWARDS: 0.5 * jnp.sum(jnp.square(predicted - next_features), axis=-1),
            Columns.ACTION_DIST_INPUTS: self.inverse_net(jnp.concatenate([features, next_features], axis=-1)),
        }

    def compute_self_supervised_loss(
        self, *, learner: Any, module_id: str, config: Any, batch: dict[str, Any], fwd_out: dict[str, Any]
    ) -> jax.Array:
        between = self.get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        forward_loss = learner.masked_mean(fwd_out[Columns.INTRINSIC_REWARDS], batch)
        inverse_loss = -learner.masked_mean(between.logp(batch[Columns.ACTIONS]), batch)
        metrics = {"forward_loss": forward_loss, "inverse_loss": inverse_loss, "mean_intrinsic_rewards": forward_loss}
        learner.metrics.log_dict(metrics, key=module_id, window=1)
        weight = config.learner_config_dict["forward_loss_weight"]
        return weight * forward_loss + (1.0 - weight) * inverse_loss
