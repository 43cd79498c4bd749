"""Adaptive KL coefficient (Schulman et al., 2017, arXiv:1707.06347, section 4)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.traced_metrics import MetricKey

KL_KEY = "mean_kl_loss"
"""Name of each module's metric that adapts the coefficient."""
CURR_KL_COEFF_KEY = "curr_kl_coeff"
"""Name of the coefficient, as a metric and in a learner's extra state."""


class AdaptiveKLCoefficient(Learner):
    """Mixin of a `Learner` with an adaptive KL coefficient: derive from this class and the Learner, in this order.

    The loss logs the mean divergence of each module as `KL_KEY`. If ``use_kl_loss`` is set, every update changes the
    coefficient by the divergence of the last minibatch: x1.5 above twice ``kl_target``, x0.5 below half of it (Schulman
    et al., 2017, section 4, with RLlib's factors). It starts at ``kl_coeff``. All three are settings of the config.
    """

    def initial_extra_state(self) -> dict[str, Any]:
        """Returns the extra state of the base class, and the initial KL coefficient (float32 scalar) of every module
        that the algorithm's loss trains.
        """
        ids = self._ids_with_loss_of_algorithm
        coefficients = {mid: jnp.float32(self.config_for(mid).kl_coeff) for mid in ids}
        return {**super().initial_extra_state(), CURR_KL_COEFF_KEY: coefficients}

    @property
    def curr_kl_coeffs_per_module(self) -> dict[str, Any]:
        """Current KL coefficient of every module that the algorithm's loss trains, ``{module_id: float32 scalar}``."""
        return self.extra[CURR_KL_COEFF_KEY]

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Adapts the KL coefficients after an update. Pure hook: returns a new state and new metrics, see
        `Learner.post_update`.
        """
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        coefficients = dict(state.extra[CURR_KL_COEFF_KEY])
        for mid, coefficient in coefficients.items():
            kl = metrics.get((mid, KL_KEY))
            if kl is not None and self.config_for(mid).use_kl_loss:
                target = settings[mid]["kl_target"]
                factor = jnp.where(kl > 2.0 * target, 1.5, jnp.where(kl < 0.5 * target, 0.5, 1.0))
                has_rows = self.has_rows(mid)
                moved = coefficient * factor
                coefficients[mid] = moved if has_rows is True else jnp.where(has_rows, moved, coefficient)
        metrics = {**metrics, **{(mid, CURR_KL_COEFF_KEY): own for mid, own in coefficients.items()}}
        return dataclasses.replace(state, extra={**state.extra, CURR_KL_COEFF_KEY: coefficients}), metrics
