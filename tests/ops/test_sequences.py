"""What losses do with drawn sequences, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.ops import q_learning, sequences

NAN = np.nan


def test_windows_bootstrap_where_they_end():
    values = jnp.arange(8.0).reshape(2, 4)
    n_step = jnp.array([[2.0, 2.0, 2.0, 1.0], [3.0, 2.0, 1.0, 0.0]])
    for leaf, of_leaf in ((values, np.asarray), (jnp.stack([values, -values], -1), lambda x: np.asarray(x)[..., 0])):
        found = of_leaf(jax.jit(sequences.at_window_ends)(leaf, n_step))
        np.testing.assert_array_equal(found[0], [1, 2, 3, 3])
        np.testing.assert_array_equal(found[1, :3], [6, 6, 6])


def test_priorities_mix_the_largest_error_with_the_mean_of_steps_that_count():
    errors = jnp.array([[9.0, -4.0, 2.0, NAN], [1.0, 1.0, 1.0, 1.0], [NAN, NAN, NAN, NAN]])
    mask = jnp.array([[False, True, True, False], [True] * 4, [False] * 4])
    np.testing.assert_allclose(sequences.sequence_priorities(errors, mask), [0.9 * 4 + 0.1 * 3, 1.0, 0.0], rtol=1e-6)
    np.testing.assert_allclose(sequences.sequence_priorities(errors, mask, eta=0.0), [3.0, 1.0, 0.0], rtol=1e-6)


def test_losses_take_sequences_as_they_take_transitions():
    transitions = {"weights": jnp.array([1.0, 0.5]), "loss_mask": jnp.array([True, True])}
    weights, at_ends, priorities = sequences.of_rows(transitions)
    assert weights is transitions["weights"] and at_ends(weights) is weights and priorities(weights) is weights

    mask = jnp.array([[True, True], [True, False]])
    drawn = {"weights": jnp.array([1.0, 0.5]), "loss_mask": mask, "n_step": jnp.array([[2.0, 1.0], [1.0, 0.0]])}
    weights, at_ends, priorities = sequences.of_rows(drawn)
    np.testing.assert_array_equal(weights, [[1.0], [0.5]])
    np.testing.assert_array_equal(at_ends(jnp.array([[1.0, 2.0], [3.0, 4.0]])), [[2.0, 2.0], [3.0, 3.0]])
    np.testing.assert_allclose(priorities(jnp.array([[1.0, 3.0], [2.0, NAN]])), [0.9 * 3 + 0.1 * 2, 2.0], rtol=1e-6)


def test_distributions_of_sequences_are_those_of_their_steps():
    rng = np.random.default_rng(0)
    atoms = q_learning.support(-2.0, 2.0, 5)
    probs = rng.dirichlet(np.ones(5), size=(2, 3)).astype(np.float32)
    columns = {
        "rewards": rng.normal(size=(2, 3)).astype(np.float32),
        "terminateds": np.array([[False, False, True], [False] * 3]),
        "n_step": np.float32([[2, 1, 1], [3, 2, 1]]),
    }
    logits, actions = rng.normal(size=(2, 3, 4, 5)).astype(np.float32), rng.integers(4, size=(2, 3))

    @jax.jit
    def rows_of(probs, logits, actions, columns):
        target = q_learning.categorical_targets(next_probs=probs, gamma=0.9, atoms=atoms, **columns)
        return q_learning.categorical_q_rows(logits=logits, actions=actions, target_probs=target, atoms=atoms)

    found = rows_of(probs, logits, actions, columns)
    steps = {name: column.reshape(-1) for name, column in columns.items()}
    expected = rows_of(probs.reshape(-1, 5), logits.reshape(-1, 4, 5), actions.reshape(-1), steps)
    for own, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(own.reshape(-1), other, rtol=1e-5)
