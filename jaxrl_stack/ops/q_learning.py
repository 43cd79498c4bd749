"""Q-learning on batches of transitions: greedy and exploring actions, targets, losses, target networks.

``N`` counts transitions, ``A`` discrete actions, ``K`` atoms of a value distribution. A shape that starts with ``...``
allows any leading axes; ``N`` may also be ``N, J``, sequences of steps. Action masks are separate arguments: Q-values
stay finite, so no masked action can turn a loss into NaN.

A transition spans ``n`` steps; ``n`` may differ between rows. ``rewards`` is ``sum_k gamma^k r_{t+k}`` over these
steps, and the state after them is discounted by ``gamma^n``. ``terminateds`` is True if the last of them terminated the
episode; a truncated transition bootstraps from its last state.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxrl_stack.ops import two_words, unrolled_threefry


class TDRows(NamedTuple):
    """Q-learning results per transition, not averaged: loss, TD error, and Q-value of the taken action.

    Attributes:
        loss: float32 ``[N]``, times the importance weight.
        td_error: float32 ``[N]``, at least 0, not weighted, no gradient: the basis of priorities. The distance
            from the target, or the cross-entropy where distributions are learned.
        q_selected: float32 ``[N]``, Q-value of the taken action, no gradient.
    """

    loss: jax.Array
    td_error: jax.Array
    q_selected: jax.Array


# ------------------------------------------------------------------------------------------------ actions
def select(q_values: jax.Array, actions: jax.Array) -> jax.Array:
    """Selects the Q-value of one action per row of the batch.

    Args:
        q_values: Float ``[..., A]``.
        actions: int ``[...]``.

    Returns:
        Float ``[...]``.
    """
    # A comparison instead of a gather, whose gradient would be a scatter.
    chosen = actions[..., None] == jnp.arange(q_values.shape[-1])
    return jnp.sum(jnp.where(chosen, q_values, 0.0), axis=-1)


def select_atoms(values: jax.Array, actions: jax.Array) -> jax.Array:
    """Selects the value distribution (logits or probabilities) of one action per row of the batch.

    Args:
        values: Float ``[..., A, K]``.
        actions: int ``[...]``.

    Returns:
        Float ``[..., K]``.
    """
    chosen = actions[..., None] == jnp.arange(values.shape[-2])
    return jnp.sum(jnp.where(chosen[..., None], values, 0.0), axis=-2)


def greedy_actions(q_values: jax.Array, action_mask: jax.Array | None = None) -> jax.Array:
    """Finds the valid action with the highest Q-value, per row of the batch. Among actions with equal Q-values, takes
    the first.

    Args:
        q_values: Float ``[..., A]``.
        action_mask: bool ``[..., A]``, True where an action is valid. None: all are. A row without a valid action
            (the observation after the end of an episode may be one) yields action 0.

    Returns:
        int32 ``[...]``.
    """
    if action_mask is not None:
        q_values = jnp.where(action_mask, q_values, -jnp.inf)
    return jnp.argmax(q_values, axis=-1).astype(jnp.int32)


def epsilon_greedy(
    key: jax.Array, q_values: jax.Array, epsilon: jax.Array | float, action_mask: jax.Array | None = None
) -> jax.Array:
    """Epsilon-greedy actions: with probability ``epsilon`` a uniformly drawn valid action, else the greedy one.

    Args:
        key: PRNG key; all randomness of the call comes from it.
        q_values: Float ``[..., A]``.
        epsilon: Scalar, or ``[...]`` for a rate per row.
        action_mask: bool ``[..., A]``, True where an action is valid; None: all are.

    Returns:
        int32 ``[...]``.
    """
    num_actions = q_values.shape[-1]
    explore, draw = jax.random.uniform(unrolled_threefry.unrolled(key), (2, *q_values.shape[:-1]), jnp.float32)
    if action_mask is None:
        random = jnp.minimum((draw * num_actions).astype(jnp.int32), num_actions - 1)
    else:
        # The draw is a rank among the valid actions, counted in integers: no rounding can reach a masked one.
        valid_so_far = jnp.cumsum(jnp.broadcast_to(action_mask, q_values.shape), axis=-1, dtype=jnp.int32)
        num_valid = valid_so_far[..., -1]
        rank = jnp.minimum((draw * num_valid).astype(jnp.int32), num_valid - 1)
        random = jnp.argmax(valid_so_far > rank[..., None], axis=-1).astype(jnp.int32)
    return jnp.where(explore < epsilon, random, greedy_actions(q_values, action_mask))


# -------------------------------------------------------------------------------------------------- heads
def dueling(values: jax.Array, advantages: jax.Array, action_mask: jax.Array | None = None) -> jax.Array:
    """Q-values from the two streams of a dueling network (Wang et al., 2016, equation 9).

    ``Q(s, a) = V(s) + A(s, a) - mean_a' A(s, a')``

    Args:
        values: Float ``[..., 1]``.
        advantages: Float ``[..., A]``.
        action_mask: bool ``[..., A]``; the mean is over the valid actions. None: over all.

    Returns:
        Float ``[..., A]``.
    """
    chex.assert_axis_dimension(values, -1, 1)
    return values + advantages - _mean_over_actions(advantages, action_mask, axis=-1)


def dueling_atoms(
    value_logits: jax.Array, advantage_logits: jax.Array, action_mask: jax.Array | None = None
) -> jax.Array:
    """Logits of value distributions from the two streams of a dueling network (Hessel et al., 2018, section "Dueling
    networks").

    ``logit_i(s, a) = V_i(s) + A_i(s, a) - mean_a' A_i(s, a')``, for each atom ``i``. The value stream has one output
    per atom: a single one, added to all atoms, would be lost in the softmax over them.

    Args:
        value_logits: Float ``[..., K]``.
        advantage_logits: Float ``[..., A, K]``.
        action_mask: bool ``[..., A]``; the mean is over the valid actions. None: over all.

    Returns:
        Float ``[..., A, K]``.
    """
    chex.assert_axis_dimension(value_logits, -1, advantage_logits.shape[-1])
    mask = None if action_mask is None else action_mask[..., None]
    return value_logits[..., None, :] + advantage_logits - _mean_over_actions(advantage_logits, mask, axis=-2)


def _mean_over_actions(advantages: jax.Array, mask: jax.Array | None, axis: int) -> jax.Array:
    if mask is None:
        return jnp.mean(advantages, axis=axis, keepdims=True)
    # A row without a valid action has the mean 0.
    count = jnp.sum(mask, axis=axis, keepdims=True, dtype=advantages.dtype)
    return jnp.sum(jnp.where(mask, advantages, 0.0), axis=axis, keepdims=True) / jnp.maximum(count, 1.0)


# ------------------------------------------------------------------------------------- targets and losses
def next_actions(
    target_q_next: jax.Array, online_q_next: jax.Array | None = None, action_mask: jax.Array | None = None
) -> jax.Array:
    """Greedy action in the next state of each transition, int32 ``[N]``. The bootstrap value is the target network's
    Q-value of this action.

    Args:
        target_q_next: Float ``[N, A]``, Q-values of the next state under the target network.
        online_q_next: The same under the online network: it selects, the target network evaluates (double
            Q-learning; van Hasselt et al., 2016, equation 4). None: the target network does both.
        action_mask: bool ``[N, A]`` of the next state, or None.

    Returns:
        int32 ``[N]``.
    """
    return greedy_actions(target_q_next if online_q_next is None else online_q_next, action_mask)


def n_step_targets(
    *,
    rewards: jax.Array,
    next_values: jax.Array,
    terminateds: jax.Array,
    n_step: jax.Array | int,
    gamma: jax.Array | float,
) -> jax.Array:
    """n-step targets ``sum_k gamma^k r_{t+k} + gamma^n (1 - terminated) V(s_{t+n})`` (Sutton and Barto, 2018, equation
    7.1).

    Args:
        rewards: float32 ``[N]``, the discounted sum over the steps of the transition.
        next_values: float32 ``[N]``, value of the state after them; not read where the episode terminated.
        terminateds: bool ``[N]``. Truncation is no argument: it does not stop the bootstrap.
        n_step: Number of steps, ``[N]`` or scalar, integers (of any number type).
        gamma: Discount of one step, scalar or ``[N]``.

    Returns:
        float32 ``[N]``, without a gradient.
    """
    discount = jnp.power(jnp.asarray(gamma, jnp.float32), jnp.asarray(n_step, jnp.float32))
    # where, not multiplication: 0 times the overflown value of a meaningless state would be NaN.
    bootstrap = jnp.where(terminateds, 0.0, discount * next_values)
    return jax.lax.stop_gradient(rewards + bootstrap)


def td_loss(prediction: jax.Array, target: jax.Array, td_error_loss_fn: str = "huber") -> jax.Array:
    """Distance between predictions and targets (Huber loss or squared error), per row of the batch.

    ``"huber"``: ``d^2 / 2`` up to ``|d| = 1``, ``|d| - 1/2`` beyond. ``"mse"``: ``d^2``, so its gradient is twice as
    large near the target.

    Args:
        prediction: float32 ``[N]``.
        target: float32 ``[N]``.
        td_error_loss_fn: ``"huber"`` or ``"mse"``.

    Raises:
        ValueError: If `td_error_loss_fn` is unknown.
    """
    difference = prediction - target
    if td_error_loss_fn == "mse":
        return jnp.square(difference)
    if td_error_loss_fn == "huber":
        distance = jnp.abs(difference)
        quadratic = jnp.minimum(distance, 1.0)
        return quadratic * (distance - 0.5 * quadratic)
    raise ValueError(f"td_error_loss_fn={td_error_loss_fn!r} is unknown: give 'huber' or 'mse'.")


def q_rows(
    *,
    q_values: jax.Array,
    actions: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    td_error_loss_fn: str = "huber",
) -> TDRows:
    """Q-learning loss of each transition, for networks that predict Q-values, not value distributions (Mnih et al.,
    2015; importance weights: Schaul et al., 2016, section 3.4).

    Args:
        q_values: float32 ``[N, A]``, of the states, under the online network.
        actions: int ``[N]``, the taken ones.
        targets: float32 ``[N]``, from `n_step_targets`; no gradient flows into them.
        weights: float32 ``[N]``, importance weights of the draw; None: 1.
        td_error_loss_fn: ``"huber"`` or ``"mse"``; see `td_loss`.
    """
    chex.assert_equal_shape([actions, targets])
    q_selected, targets = select(q_values, actions), jax.lax.stop_gradient(targets)
    loss = td_loss(q_selected, targets, td_error_loss_fn)
    td_error = jnp.abs(q_selected - targets)
    return TDRows(
        loss if weights is None else weights * loss, jax.lax.stop_gradient(td_error), jax.lax.stop_gradient(q_selected)
    )


# ------------------------------------------------------------------------------------ recorded data alone
def conservative_rows(
    *, q: jax.Array, q_repeat: jax.Array, logps: jax.Array, temperature: jax.Array | float
) -> jax.Array:
    """Penalty of conservative Q-learning, per row: soft maximum of the Q-values of K randomly drawn actions, minus the
    Q-value of the recorded action.

    ``temperature * logsumexp_k((Q_k - log density_k) / temperature) - Q(a)`` (Kumar et al., 2020, arXiv:2006.04779,
    equation 4 and appendix F). It is a sum over the drawn actions, not their mean.

    Args:
        q: float32 ``[N]``, of the recorded actions.
        q_repeat: float32 ``[N, K]``, of drawn actions at the same observations.
        logps: float32 ``[N, K]``, logarithms of the densities that these were drawn with; no gradient flows into them.
        temperature: Above 0, scalar.

    Returns:
        float32 ``[N]``.
    """
    chex.assert_equal_shape([q_repeat, logps])
    weighted = q_repeat - jax.lax.stop_gradient(logps)
    return temperature * jax.nn.logsumexp(weighted / temperature, axis=-1) - q


def expectile_rows(difference: jax.Array, expectile: jax.Array | float) -> jax.Array:
    """Expectile loss ``|expectile - 1(d < 0)| d^2`` of the difference d, target minus prediction (Kostrikov et al.,
    2021, arXiv:2110.06169, equation 5).

    Args:
        difference: float32 ``[N]``, target minus prediction.
        expectile: In (0, 1), scalar; 0.5 is half the squared error, near 1 the prediction is near the largest target.

    Returns:
        float32 ``[N]``.
    """
    return jnp.where(difference > 0, expectile, 1.0 - expectile) * jnp.square(difference)


# ------------------------------------------------------------------------------- distributions over atoms
def support(v_min: float, v_max: float, num_atoms: int) -> jax.Array:
    """Atoms of value distributions: ``num_atoms`` returns from ``v_min`` to ``v_max`` at equal distances, float32
    ``[num_atoms]``.

    Raises:
        ValueError: If they are fewer than two, or not ascending.
    """
    if num_atoms < 2:
        raise ValueError(f"A distribution over returns needs num_atoms of at least 2, got num_atoms={num_atoms}.")
    if not v_min < v_max:
        raise ValueError(f"v_min must lie below v_max, got v_min={v_min} and v_max={v_max}.")
    return v_min + jnp.arange(num_atoms, dtype=jnp.float32) * ((v_max - v_min) / (num_atoms - 1))


def expected_q(logits: jax.Array, atoms: jax.Array) -> jax.Array:
    """Q-values as means of the actions' value distributions: ``sum_i z_i p_i``.

    Args:
        logits: Float ``[..., A, K]``.
        atoms: float32 ``[K]``, from `support`.

    Returns:
        Float ``[..., A]``.
    """
    return jnp.sum(jax.nn.softmax(logits, axis=-1) * atoms, axis=-1)


def project_onto_support(returns: jax.Array, probs: jax.Array, atoms: jax.Array) -> jax.Array:
    """Projects distributions of returns onto fixed, equally spaced atoms: distributes the probability mass at each
    return over the two nearest atoms (Bellemare et al., 2017, equation 7).

    ``m_i = sum_j [1 - |clip(returns_j, v_min, v_max) - z_i| / dz]_0^1 p_j``. Mass beyond an end goes to that end;
    otherwise the mean stays the same.

    Args:
        returns: float32 ``[N, J]``, where the mass is.
        probs: float32 ``[N, J]``, how much.
        atoms: float32 ``[K]``, from `support`.

    Returns:
        float32 ``[N, K]``, without a gradient.
    """
    num_atoms = atoms.shape[0]
    distance = (atoms[-1] - atoms[0]) / (num_atoms - 1)
    # In units of the distance between atoms, counted from the first one.
    position = jnp.clip((returns - atoms[0]) / distance, 0.0, num_atoms - 1.0)
    share = jnp.clip(1.0 - jnp.abs(position[..., None, :] - jnp.arange(num_atoms)[:, None]), 0.0, 1.0)
    return jax.lax.stop_gradient(jnp.sum(share * probs[..., None, :], axis=-1))


def categorical_targets(
    *,
    rewards: jax.Array,
    next_probs: jax.Array,
    terminateds: jax.Array,
    n_step: jax.Array | int,
    gamma: jax.Array | float,
    atoms: jax.Array,
) -> jax.Array:
    """Target distributions of C51 (Bellemare et al., 2017, algorithm 1), with n-step returns (Hessel et al., 2018).

    Args:
        rewards: float32 ``[N]``, the discounted sum over the steps of the transition.
        next_probs: float32 ``[N, K]``, target distribution of the next state and its action.
        terminateds: bool ``[N]``.
        n_step: Number of steps, ``[N]`` or scalar.
        gamma: Discount of one step, ``[N]`` or scalar.
        atoms: float32 ``[K]``, from `support`.

    Returns:
        float32 ``[N, K]``, without a gradient.
    """
    returns = n_step_targets(
        rewards=rewards[..., None],
        next_values=atoms,
        terminateds=terminateds[..., None],
        n_step=jnp.broadcast_to(n_step, rewards.shape)[..., None],
        gamma=jnp.broadcast_to(gamma, rewards.shape)[..., None],
    )
    return project_onto_support(returns, next_probs, atoms)


def categorical_q_rows(
    *,
    logits: jax.Array,
    actions: jax.Array,
    target_probs: jax.Array,
    atoms: jax.Array,
    weights: jax.Array | None = None,
) -> TDRows:
    """Cross-entropy between target and predicted distributions (Bellemare et al., 2017, algorithm 1).

    Args:
        logits: float32 ``[N, A, K]``, of the states, under the online network.
        actions: int ``[N]``, the taken ones.
        target_probs: float32 ``[N, K]``, from `categorical_targets`; no gradient flows into them.
        atoms: float32 ``[K]``, from `support`.
        weights: float32 ``[N]``, importance weights of the draw; None: 1.

    Returns:
        Rows whose ``td_error`` is the cross-entropy.
    """
    chex.assert_shape(target_probs, (*logits.shape[:-2], logits.shape[-1]))
    selected = select_atoms(logits, actions)
    log_probs = jax.nn.log_softmax(selected, axis=-1)
    loss = -jnp.sum(jax.lax.stop_gradient(target_probs) * log_probs, axis=-1)
    return TDRows(
        loss if weights is None else weights * loss,
        jax.lax.stop_gradient(loss),
        jax.lax.stop_gradient(expected_q(selected, atoms)),
    )


# ---------------------------------------------------------------------------------------- target networks
def soft_update(online: Any, target: Any, tau: jax.Array | float) -> Any:
    """Soft update of target networks: ``tau * online + (1 - tau) * target``, leaf by leaf (Lillicrap et al., 2016,
    algorithm 1).

    Args:
        online: Pytree of arrays.
        target: Pytree of the same structure, shapes and dtypes.
        tau: Weight of ``online`` in [0, 1], scalar; 1 copies.

    Returns:
        The new target. Leaves that are not floats, such as counters, are copied from ``online``.
    """

    def update(new: jax.Array, old: jax.Array) -> jax.Array:
        if not jnp.issubdtype(jnp.result_type(old), jnp.floating):
            return new
        return (tau * new + (1.0 - tau) * old).astype(old.dtype)

    return jax.tree.map(update, online, target)


def target_update_due(num_steps: Any, last_update: Any, target_network_update_freq: jax.Array | int) -> jax.Array:
    """True if at least ``target_network_update_freq`` environment steps were sampled since the last update of the
    target networks.

    Exact at any age of a run: the counters are subtracted as integers.

    Args:
        num_steps: ``uint32[..., 2]`` (high word, low word), environment steps sampled so far.
        last_update: ``uint32[..., 2]``, the same at the last update, zero before the first; not above ``num_steps``.
        target_network_update_freq: Steps between updates, integer below 2**31; 0: always due.

    Returns:
        bool ``[...]``.
    """
    passed = two_words.subtract(jnp.asarray(num_steps), jnp.asarray(last_update))
    return (passed[..., 0] > 0) | (passed[..., 1] >= jnp.asarray(target_network_update_freq).astype(jnp.uint32))
