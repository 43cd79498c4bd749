"""RLModule whose actions have two parts; the second part is drawn given the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import gymnasium as gym
import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution.jax_distribution import get_action_dist_cls_for_space
from jaxrl_stack.core.models.configs import MLPHeadConfig
from jaxrl_stack.core.models.heads import MLPHead
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.rl_module import RLModule


class AutoregressiveActionsRLM(RLModule, ValueFunctionAPI):
    """Autoregressive policy ``p(first | obs) p(second | obs, first)`` for actions in ``Tuple(Discrete, any other
    space)``.

    Parts that are drawn independently cannot say "with this first action that second one". Here the inputs of the
    second distribution come from a network that sees the first action: while acting the one that was just chosen, in
    training the recorded one. Both are conditionals of the same policy, so that a ratio of their probabilities is
    exact; entropy and KL are those given the first actions that were taken.

    Observations are a Box of rank 1. Model config: ``"width"`` (64) of the hidden layer of each network.

    Raises:
        ValueError: For another action space.
    """

    rows_are_independent = True

    def setup(self) -> None:
        (num_obs,) = cast(gym.spaces.Box, self.observation_space).shape
        num_first, num_second = (
            cls.required_input_dim(space) for cls, space in zip(self._classes, self._parts, strict=True)
        )
        self.first = self._network(num_obs, num_first)
        self.second = self._network(num_obs + num_first, num_second)
        self.value = self._network(num_obs, 1)
        # What acting draws from. It is no state of the module: every step starts it from that step's key.
        self.random_stream = self.rngs["actions"].fork()

    @property
    def _parts(self) -> tuple[gym.Space, gym.Space]:
        space = self.action_space
        if not (isinstance(space, gym.spaces.Tuple) and len(space) == 2 and isinstance(space[0], gym.spaces.Discrete)):
            raise ValueError(
                f"{type(self).__name__} supports only the action space Tuple(Discrete, any other space), not {space}. "
                "For another space, write your own RLModule."
            )
        return space[0], space[1]

    @property
    def _classes(self) -> Any:
        return tuple(map(get_action_dist_cls_for_space, self._parts))

    def _network(self, num_inputs: int, num_outputs: int) -> MLPHead:
        config = MLPHeadConfig(
            input_dims=[num_inputs],
            hidden_layer_dims=[self.model_config.get("width", 64)],
            hidden_layer_activation="tanh",
            output_layer_dim=num_outputs,
        )
        return config.build(rngs=self.rngs)

    def _second_inputs(self, obs: jax.Array, first: jax.Array) -> jax.Array:
        return self.second(jnp.concatenate([obs, jax.nn.one_hot(first, self.first.output_dim)], axis=-1))

    def _act(self, obs: jax.Array, choose: Callable[[Any], Any]) -> dict[str, Any]:
        """Chooses the first part of the action, then the second part given the first.

        `choose` maps the distribution of a part to the chosen part. Returns ACTIONS and ACTION_DIST_INPUTS.
        """
        first_cls, second_cls = self._classes
        first_inputs = self.first(obs)
        first = choose(first_cls.from_logits(first_inputs))
        second_inputs = self._second_inputs(obs, first)
        second = choose(second_cls.from_logits(second_inputs))
        # The log-probability of ACTIONS follows from these inputs, and is added to them where it is recorded.
        inputs = jnp.concatenate([first_inputs, second_inputs], axis=-1)
        return {Columns.ACTIONS: (first, second), Columns.ACTION_DIST_INPUTS: inputs}

    def _forward_exploration(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch[Columns.OBS], lambda distribution: distribution.sample(key=self.random_stream()))

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return self._act(batch[Columns.OBS], lambda distribution: distribution.to_deterministic().sample())

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        obs, (first, _) = batch[Columns.OBS], batch[Columns.ACTIONS]
        inputs = jnp.concatenate([self.first(obs), self._second_inputs(obs, first)], axis=-1)
        return {Columns.ACTION_DIST_INPUTS: inputs}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> jax.Array:
        """Computes one value for each observation vector; returns float ``[...]`` for OBS ``[..., features]``."""
        return self.value(batch[Columns.OBS])[..., 0]
