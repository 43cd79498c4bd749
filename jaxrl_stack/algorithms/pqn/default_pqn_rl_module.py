"""PQN's default RLModule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from jaxrl_stack.algorithms.pqn.pqn_catalog import PQN_MODEL_CONFIG, PQNCatalog
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import mask_of, split_action_mask
from jaxrl_stack.core.learner.update_program import AXIS_NAME
from jaxrl_stack.core.models.base import ENCODER_OUT, initial_state_of, state_out_of
from jaxrl_stack.core.rl_module.apis import QNetAPI, ValueFunctionAPI
from jaxrl_stack.core.rl_module.default_model_config import check_model_config
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.ops import q_learning
from jaxrl_stack.utils import counters, schedules


class DefaultPQNRLModule(RLModule, QNetAPI, ValueFunctionAPI):
    """An encoder and a head of Q-values, without target networks.

    Attributes `encoder` and `qf`, which `PQNCatalog` builds from `DefaultModelConfig` and `PQN_MODEL_CONFIG`. With
    ``use_lstm`` the recurrent state is the encoder's, and columns are sequences, ``[B, T, ...]``.

    Observations can have any space that `Catalog` has encoders for, or ``{"action_mask": [A], "observations": ...}``:
    actions with mask 0 are never chosen, and do not count in the maximum of `compute_values`.
    """

    rows_are_independent = True
    honours_action_mask = True
    handles_resets = True
    exploration_settings = ("epsilon",)

    def __init__(self, *args: Any, catalog_class: Any = None, **kwargs: Any):
        super().__init__(*args, catalog_class=catalog_class or PQNCatalog, **kwargs)

    def setup(self) -> None:
        """Builds the encoder and the head with the catalog."""
        if type(self) is DefaultPQNRLModule and self.catalog_class is PQNCatalog:
            # Nothing else could read a setting that the default models do not have.
            check_model_config({k: v for k, v in self.model_config.items() if k not in PQN_MODEL_CONFIG})
        settings = {**PQN_MODEL_CONFIG, **self.model_config}
        schedules.validate_schedule(settings["epsilon"], "epsilon")
        rates = settings["epsilon_per_env"]
        self.epsilon_per_env = None if rates is None else tuple(map(float, rates))
        self.encoder = self.catalog.build_encoder(self.framework, rngs=self.rngs)
        self.qf = self.catalog.build_qf_head(self.framework, rngs=self.rngs)
        self.random_stream = self.rngs["exploration"].fork()

    def get_initial_state(self) -> Any:
        """Recurrent state of the encoder at the start of an episode; {} for stateless encoders."""
        # Subclasses may have an encoder of another kind, or none.
        return initial_state_of(vars(self).get("encoder"))

    def _forward_inference(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the action with the highest Q-value for each row: `{OBS: [..., d]}` -> `{ACTIONS: int32 [...]}`.

        If the observations contain an action mask, chooses only valid actions.
        """
        outputs = self.compute_q_values(batch)
        actions = q_learning.greedy_actions(outputs[QF_PREDS], mask_of(batch[Columns.OBS]))
        return {Columns.ACTIONS: actions, **state_out_of(outputs)}

    def _forward_exploration(
        self, batch: dict[str, Any], t: Any = None, epsilon: Any = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Computes epsilon-greedy actions: `{OBS: [..., d]}` -> `{ACTIONS: int32 [...]}`. If the observations contain
        an action mask, chooses only valid actions.

        Args:
            batch: The columns, a row for each environment.
            t: Env steps so far, a scalar or `uint32[2]`; None is 0. Read only without `epsilon`.
            epsilon: Probability of a random action; None takes it from the schedule in the model config. With
                ``epsilon_per_env``, row i has the rate of environment i instead.
        """
        outputs = self.compute_q_values(batch)
        q_values = outputs[QF_PREDS]
        if self.epsilon_per_env is not None:
            epsilon = self._rates_of_rows(q_values.shape[:-1])
        elif epsilon is None:
            schedule = schedules.encode(self.model_config.get("epsilon", PQN_MODEL_CONFIG["epsilon"]))
            epsilon = schedules.value_at(schedule, counters.of_steps(t))
        actions = q_learning.epsilon_greedy(self.random_stream(), q_values, epsilon, mask_of(batch[Columns.OBS]))
        return {Columns.ACTIONS: actions, **state_out_of(outputs)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Computes the Q-values of all actions: `{OBS: [..., d]}` -> `{QF_PREDS: float [..., A]}`."""
        return self.compute_q_values(batch)

    def compute_q_values(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Q-values of all actions: `{OBS: [..., d]}` -> `{QF_PREDS: float [..., A]}`. If the encoder is recurrent,
        reads `STATE_IN` and also returns `STATE_OUT`.
        """
        encoded = self.encoder(split_action_mask(batch)[0])
        return {QF_PREDS: self.qf(encoded[ENCODER_OUT]), **state_out_of(encoded)}

    def compute_values(self, batch: dict[str, Any], embeddings: Any | None = None) -> jax.Array:
        """State values, float `[...]` (the leading axes of `OBS`): the highest Q-value of a valid action.

        Args:
            batch: `{OBS: [..., d]}`.
            embeddings: Q-values float `[..., A]` of these rows; None computes them.
        """
        q_values = self.compute_q_values(batch)[QF_PREDS] if embeddings is None else embeddings
        mask = mask_of(batch[Columns.OBS])
        return q_learning.select(q_values, q_learning.greedy_actions(q_values, mask))

    def _rates_of_rows(self, shape: tuple[int, ...]) -> jax.Array:
        """Exploration epsilon of each batch row (one environment of this device), float32 ``[B, 1, ...]``.

        The result has as many axes as `shape`, so that it broadcasts over the other leading axes of the Q-values.

        Device d of a program has the environments from ``d * B`` on. `epsilon_per_env` repeats if there are more
        environments than rates.

        Args:
            shape: Leading axes of the Q-values, ``[B, ...]``.
        """
        rates = jnp.asarray(self.epsilon_per_env, jnp.float32)
        try:
            first = jax.lax.axis_index(AXIS_NAME) * shape[0]
        except NameError:  # outside of a program over devices
            first = 0
        return rates[(first + jnp.arange(shape[0])) % len(rates)].reshape(-1, *[1] * (len(shape) - 1))
