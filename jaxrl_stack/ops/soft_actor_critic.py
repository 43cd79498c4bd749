"""Losses of soft actor-critic, for continuous and for discrete actions, per transition of a batch. The caller takes
means.

The temperature is given by its logarithm, and is a constant in all losses except `temperature_rows` and
`temperature_rows_discrete`. Twin critics are two arrays; the second one is None for a single critic.

``N`` counts transitions, ``A`` discrete actions. Targets are computed by `jaxrl_stack.ops.q_learning.n_step_targets`,
with the soft values of this module as ``next_values``.

Sources: Haarnoja et al., 2018, "Soft Actor-Critic Algorithms and Applications" (arXiv:1812.05905); Christodoulou, 2019,
"Soft Actor-Critic for Discrete Action Settings" (arXiv:1910.07207).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_stack.ops.q_learning import td_loss


class CriticRows(NamedTuple):
    """Critic losses and TD error of each transition.

    Attributes:
        loss: float32 ``[N]``, loss of the first critic, times the importance weight.
        twin_loss: float32 ``[N]``, loss of the second critic, weighted likewise; None for a single critic.
        td_error: float32 ``[N]``, distance from the target, mean over the critics, without weights and gradient; for
            priorities.
    """

    loss: jax.Array
    twin_loss: jax.Array | None
    td_error: jax.Array


def minimum(q: jax.Array, q_twin: jax.Array | None) -> jax.Array:
    """Returns the elementwise minimum of two critics' Q-values (Fujimoto et al., 2018, equation 10); with one critic
    (`q_twin` is None), its Q-values.
    """
    return q if q_twin is None else jnp.minimum(q, q_twin)


# ------------------------------------------------------------------------------------------------ critics
def soft_values(*, q: jax.Array, q_twin: jax.Array | None = None, logp: jax.Array, log_alpha: jax.Array) -> jax.Array:
    """Soft state values for continuous actions, ``min(Q_1, Q_2)(s, a) - alpha * log pi(a | s)`` of a drawn action
    (Haarnoja et al., 2018, equation 3).

    Args:
        q: float32 ``[N]``, of the drawn actions; for targets under the target network, at the next state.
        q_twin: float32 ``[N]``, the same under the second one, or None.
        logp: float32 ``[N]``, log-probabilities of the drawn actions.
        log_alpha: Logarithm of the temperature, one number.

    Returns:
        float32 ``[N]``, without a gradient.
    """
    return jax.lax.stop_gradient(minimum(q, q_twin) - _alpha(log_alpha) * logp)


def soft_values_discrete(
    *, q: jax.Array, q_twin: jax.Array | None = None, log_probs: jax.Array, log_alpha: jax.Array
) -> jax.Array:
    """Soft state values for discrete actions, ``sum_a pi(a | s) (min(Q_1, Q_2)(s, a) - alpha * log pi(a | s))``
    (Christodoulou, 2019, equation 10).

    Args:
        q: float32 ``[N, A]``; for targets under the target network, at the next state.
        q_twin: float32 ``[N, A]``, the same under the second one, or None.
        log_probs: float32 ``[N, A]``, normalised; an action of probability zero adds nothing.
        log_alpha: Logarithm of the temperature, one number.

    Returns:
        float32 ``[N]``, without a gradient.
    """
    values = _expectation(log_probs, lambda logp: minimum(q, q_twin) - _alpha(log_alpha) * logp)
    return jax.lax.stop_gradient(values)


def critic_rows(
    *,
    q: jax.Array,
    q_twin: jax.Array | None = None,
    targets: jax.Array,
    weights: jax.Array | None = None,
    td_error_loss_fn: str = "huber",
) -> CriticRows:
    """Critic losses per transition (Haarnoja et al., 2018, equation 5), by default with Huber loss in place of the
    squared error.

    Args:
        q: float32 ``[N]``, of the taken actions (Discrete: selected from ``[N, A]``).
        q_twin: float32 ``[N]``, the same of the second critic, or None.
        targets: float32 ``[N]``, from `n_step_targets`; no gradient flows into them.
        weights: float32 ``[N]``, importance weights of the draw; None: 1. They weigh the critics only.
        td_error_loss_fn: ``"huber"`` or ``"mse"``.
    """
    chex.assert_equal_shape([q, targets])
    targets = jax.lax.stop_gradient(targets)
    weights = jnp.ones_like(targets) if weights is None else weights
    distance = jnp.abs(q - targets)
    twin_loss = None
    if q_twin is not None:
        distance = 0.5 * (distance + jnp.abs(q_twin - targets))
        twin_loss = weights * td_loss(q_twin, targets, td_error_loss_fn)
    return CriticRows(weights * td_loss(q, targets, td_error_loss_fn), twin_loss, jax.lax.stop_gradient(distance))


# -------------------------------------------------------------------------------------------------- actor
def actor_rows(*, q: jax.Array, q_twin: jax.Array | None = None, logp: jax.Array, log_alpha: jax.Array) -> jax.Array:
    """Actor loss for continuous actions, ``alpha * log pi(a | s) - min(Q_1, Q_2)(s, a)`` (Haarnoja et al., 2018,
    equation 9); to be minimised.

    The gradient reaches the actor through the reparameterised action, that is through ``logp`` and through the
    critics' input: pass the critics' parameters through `jax.lax.stop_gradient`, not their values.

    Args:
        q: float32 ``[N]``, of actions drawn from the current actor at the current states.
        q_twin: float32 ``[N]``, the same of the second critic, or None.
        logp: float32 ``[N]``, log-probabilities of these actions.
        log_alpha: Logarithm of the temperature, one number.

    Returns:
        float32 ``[N]``.
    """
    return _alpha(log_alpha) * logp - minimum(q, q_twin)


def actor_rows_discrete(
    *, q: jax.Array, q_twin: jax.Array | None = None, log_probs: jax.Array, log_alpha: jax.Array
) -> jax.Array:
    """Actor loss for discrete actions, ``sum_a pi(a | s) (alpha * log pi(a | s) - min(Q_1, Q_2)(s, a))``
    (Christodoulou, 2019, equation 12).

    Args:
        q: float32 ``[N, A]``, at the current states; no gradient flows into it.
        q_twin: float32 ``[N, A]``, the same of the second critic, or None.
        log_probs: float32 ``[N, A]``, normalised; an action of probability zero adds nothing.
        log_alpha: Logarithm of the temperature, one number.

    Returns:
        float32 ``[N]``.
    """
    q_values = jax.lax.stop_gradient(minimum(q, q_twin))
    return _expectation(log_probs, lambda logp: _alpha(log_alpha) * logp - q_values)


# -------------------------------------------------------------------------------------------- temperature
def box_target_entropy(action_shape: tuple[int, ...]) -> float:
    """Target entropy for continuous actions, in nats: minus the number of an action's components (Haarnoja et al.,
    2018, appendix D).

    It is meant for log-probabilities of actions in [-1, 1]. In other bounds the entropy is larger by
    ``sum log((high - low) / 2)``.

    Args:
        action_shape: Shape of one action.
    """
    return -float(math.prod(action_shape))


def discrete_target_entropy(num_actions: int, ratio: float | None = None) -> float:
    """Target entropy of a categorical policy, in nats: `ratio` times the highest possible entropy ``log(num_actions)``;
    -1 if `ratio` is None.

    Args:
        num_actions: Number of actions.
        ratio: Part of the highest possible entropy, ``log(num_actions)``: Christodoulou (2019) has 0.98. None: -1,
            RLlib's number. No categorical policy has an entropy below 0, so the temperature then only ever falls.
    """
    return -1.0 if ratio is None else ratio * math.log(num_actions)


def temperature_rows(*, log_alpha: jax.Array, logp: jax.Array, target_entropy: jax.Array | float) -> jax.Array:
    """Temperature loss for continuous actions, ``-log alpha * (log pi(a | s) + target entropy)`` (Haarnoja et al.,
    2018, equation 18, in log alpha).

    The equation is multiplied by alpha. Its logarithm has a gradient of the same sign whose size does not shrink with
    alpha.

    Args:
        log_alpha: Logarithm of the temperature, one number, ``[]`` or ``[1]``; the only one to get a gradient.
        logp: float32 ``[N]``, log-probabilities of actions drawn from the current actor.
        target_entropy: Entropy to hold, in nats.

    Returns:
        float32 ``[N]``.
    """
    return -jnp.reshape(log_alpha, ()) * jax.lax.stop_gradient(logp + target_entropy)


def temperature_rows_discrete(
    *, log_alpha: jax.Array, log_probs: jax.Array, target_entropy: jax.Array | float
) -> jax.Array:
    """Temperature loss for discrete actions, ``-log alpha * (sum_a pi(a | s) log pi(a | s) + target entropy)``
    (Christodoulou, 2019, equation 11).

    In log alpha, like `temperature_rows`.

    Args:
        log_alpha: Logarithm of the temperature, one number, ``[]`` or ``[1]``; the only one to get a gradient.
        log_probs: float32 ``[N, A]``, normalised.
        target_entropy: Entropy to hold, in nats.

    Returns:
        float32 ``[N]``.
    """
    mean_logp = _expectation(log_probs, lambda logp: logp)
    return temperature_rows(log_alpha=log_alpha, logp=mean_logp, target_entropy=target_entropy)


def _alpha(log_alpha: jax.Array) -> jax.Array:
    return jnp.exp(jax.lax.stop_gradient(jnp.reshape(log_alpha, ())))


def _expectation(log_probs: jax.Array, values: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """Expectation over discrete actions, ``sum_a p_a * values(log p)_a``; `values` is a function of the
    log-probabilities. Actions with probability 0 contribute 0.
    """
    probs = jnp.exp(log_probs)
    impossible = probs == 0.0
    # Twice: 0 * inf would be NaN in the sum, and in the gradient even of a branch that where does not take.
    terms = probs * values(jnp.where(impossible, 0.0, log_probs))
    return jnp.sum(jnp.where(impossible, 0.0, terms), axis=-1)
