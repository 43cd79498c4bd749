"""Priorities: the tree, the probabilities, the weights, the updates."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from replay_cases import Blocks, Chunks, Truth, chunk

from jaxrl_stack.replay import PrioritizedEpisodeReplayBuffer
from jaxrl_stack.replay.priority_tree import PriorityTree


@pytest.mark.parametrize("size", [1, 64, 65, 300, 70_000])
def test_tree_against_sorted_sums(size):
    rng = np.random.default_rng(size)
    tree, plain = PriorityTree(size), np.zeros(size)
    for _ in range(6):
        where = rng.integers(size, size=min(size, 50))
        tree.set(where, values := rng.random(len(where)) + 1e-3)
        plain[where] = values  # NumPy, too, takes the last one of equal indices.
        gone = rng.integers(size, size=min(size, 20) // 2)
        tree.remove(gone)
        plain[gone] = 0.0
        present = np.flatnonzero(plain)
        np.testing.assert_array_equal(tree.get(np.arange(size)), plain)
        np.testing.assert_allclose(tree.total, plain.sum(), rtol=1e-12)
        assert tree.minimum == plain[present].min()
        masses = rng.random(400) * tree.total
        sums = np.cumsum(plain)
        np.testing.assert_array_equal(tree.find(masses), np.searchsorted(sums, masses, side="right"))
        # The very end, where roundings leave nothing: still one that is there.
        ends = np.array([tree.total, np.nextafter(tree.total, 0), tree.total * (1 + 1e-12)])
        assert set(tree.find(ends).tolist()) <= {int(present[-1])}
    longer = tree.resized(3 * size)
    np.testing.assert_array_equal(longer.get(np.arange(size)), plain)
    np.testing.assert_allclose(longer.total, tree.total, rtol=1e-12)


def test_equal_priorities_make_equal_trees():
    """Bit for bit, whatever came before: a restored buffer draws what the one that was saved would have drawn."""
    rng = np.random.default_rng(0)
    lived, fresh = PriorityTree(5000), PriorityTree(5000)
    for _ in range(200):
        lived.set(rng.integers(5000, size=32), rng.random(32) * 10 + 1e-6)
    values = lived.get(np.arange(5000))
    present = np.flatnonzero(values)
    fresh.set(present, values[present])
    for a, b in zip(lived._sums, fresh._sums, strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip(lived._minima, fresh._minima, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_large_update_recomputes_every_node_once():
    """Of equal indices the last one counts, and the tree is that of updates one by one, bit for bit."""
    rng = np.random.default_rng(3)
    indices, values = rng.integers(100_000, size=65_536), rng.random(65_536) + 1e-3
    tree, small_steps, plain = PriorityTree(100_000), PriorityTree(100_000), np.zeros(100_000)
    tracemalloc.start()
    try:
        tree.set(indices, values)
        (_, peak) = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    for part, new in zip(np.split(indices, 2048), np.split(values, 2048), strict=True):
        small_steps.set(part, new)
    plain[indices] = values
    np.testing.assert_array_equal(tree.get(np.arange(100_000)), plain)
    for a, b in zip(tree._sums + tree._minima, small_steps._sums + small_steps._minima, strict=True):
        np.testing.assert_array_equal(a, b)
    # The children of 1,563 nodes have 0.8 MB, and those of one node per index 34 MB.
    assert peak < 4e6


def filled(alpha=0.7, capacity=40, seed=0):
    source, buffer = Chunks(1), PrioritizedEpisodeReplayBuffer(capacity, alpha=alpha, seed=seed)
    for _ in range(15):
        buffer.add(source.next())
    return source, buffer


def prioritised(buffer, beta=0.0):
    """Give every item the priority (e % 5) + t + 0.5; returns ``{(e, t): priority}``."""
    batch = buffer.sample_batch(3000)
    e, t = batch["obs"].astype(int).T
    priorities = e % 5 + t + 0.5
    buffer.update_priorities(priorities, indices=batch["batch_indexes"])
    return {key: float(p) for key, p in zip(zip(e.tolist(), t.tolist(), strict=True), priorities, strict=True)}


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_draws_in_proportion_and_weights_by_the_formula(alpha):
    _, buffer = filled(alpha)
    priorities = prioritised(buffer)
    assert len(priorities) == len(buffer)
    scaled = {key: p**alpha for key, p in priorities.items()}
    total = sum(scaled.values())
    batch = buffer.sample_batch(40_000, beta=0.4)
    keys, inverse, counts = np.unique(batch["obs"].astype(int), axis=0, return_inverse=True, return_counts=True)
    keys = [tuple(key) for key in keys.tolist()]
    expected = np.array([scaled[key] / total * 40_000 for key in keys])
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert len(keys) == len(buffer)
    assert chi_square < len(keys) + 5 * np.sqrt(2 * len(keys))

    weights = {key: (len(buffer) * p / total) ** -0.4 for key, p in scaled.items()}
    largest = max(weights.values())
    formula = np.array([weights[keys[i]] / largest for i in inverse.ravel()])
    np.testing.assert_allclose(batch["weights"], formula, rtol=1e-6)
    assert batch["weights"].max() == pytest.approx(1.0)
    sample = buffer.sample(5, beta=0.4)
    for episode in sample:
        e, t = episode.get_observations(0).astype(int).tolist()
        assert episode.get_extra_model_outputs("weights", 0) == pytest.approx(weights[e, t] / largest)


def test_new_items_have_the_largest_priority_so_far():
    source, buffer = filled(alpha=0.5, capacity=400)
    prioritised(buffer)
    batch = buffer.sample_batch(64)
    buffer.update_priorities(np.where(np.arange(64) == 63, -100.0, 1e-3))  # The magnitude counts.
    new = source.next()
    buffer.add(new)
    tops = [buffer._tree.get(np.array([row]))[0] for row in np.flatnonzero(buffer._store.owner)]
    assert sum(p == 10.0 for p in tops) >= sum(map(len, new)) > 3
    buffer.update_priorities(np.full(64, 1.0), indices=batch["batch_indexes"])
    buffer.add(source.next(), weight=1e-4)
    assert buffer._tree.minimum == pytest.approx(1e-2)
    buffer.add_block(Blocks(0).next(2) | {"where": np.zeros((2, 3, 2), np.int32)}, weight=1e-6)
    assert buffer._tree.minimum == pytest.approx(1e-3)
    buffer.add(source.next())
    assert buffer._max_priority == 100.0


def test_a_priority_of_zero_can_be_drawn_again():
    _, buffer = filled(alpha=1.0)
    batch = buffer.sample_batch(500)
    buffer.update_priorities(np.zeros(500), indices=batch["batch_indexes"])
    assert buffer._tree.minimum == 1e-12
    assert np.isfinite(buffer.sample_batch(100, beta=1.0)["weights"]).all()


def test_updates_of_evicted_items_reach_no_others():
    source, buffer = filled(alpha=1.0, capacity=30)
    old = buffer.sample_batch(200)
    for _ in range(20):
        buffer.add(source.next())
    values = buffer._tree.get(np.arange(buffer._store.num_rows))
    buffer.update_priorities(np.full(200, 7.0), indices=old["batch_indexes"])
    np.testing.assert_array_equal(buffer._tree.get(np.arange(buffer._store.num_rows)), values)
    assert buffer._max_priority == 1.0
    # The last sample is remembered in the same way.
    buffer.sample_batch(50)
    for _ in range(20):
        buffer.add(source.next())
    buffer.update_priorities(np.full(50, 7.0))
    np.testing.assert_array_equal(np.unique(buffer._tree.get(np.arange(buffer._store.num_rows))), [0.0, 1.0])


def test_eviction_takes_items_out_of_the_tree():
    source, buffer = filled(capacity=30)
    for _ in range(30):
        buffer.add(source.next())
        present = np.flatnonzero(buffer._tree.get(np.arange(buffer._store.num_rows)))
        steps = np.flatnonzero((buffer._store.next >= 0) & (buffer._store.owner > 0))
        np.testing.assert_array_equal(present, steps)
        assert len(present) == len(buffer)


def test_sequences_are_drawn_by_the_priority_of_their_first_step():
    _, buffer = filled(alpha=1.0)
    batch = buffer.sample_batch(1000)
    at = batch["obs"][0]
    is_it = (batch["obs"] == at).all(axis=1)
    buffer.update_priorities(np.where(is_it, 1.0, 0.0), indices=batch["batch_indexes"])
    sequences = buffer.sample_sequences(20, batch_length_T=3, beta=0.5)
    assert (sequences["obs"][:, 0] == at).all()
    assert (sequences["weights"] < 1e-5).all()
    buffer.update_priorities(np.full(20, 2.0))
    assert (buffer.sample_batch(20)["obs"] == at).all()
    slices = buffer.sample(9, batch_length_T=3, beta=0.5)
    assert all((x.get_observations(0) == at).all() for x in slices)
    buffer.update_priorities(np.full(len(slices), 2.0))


def test_sequences_by_priority_and_their_weights():
    """The first step of an episode is as many starts, each as likely as its priority says."""
    length = 3
    _, buffer = filled(alpha=0.6)
    priorities = prioritised(buffer)
    scaled = {key: p**0.6 for key, p in priorities.items()}
    first = {e: min(t for other, t in scaled if other == e) for e, _ in scaled}
    expected = dict.fromkeys(scaled, 0.0)
    for (e, t), count in scaled.items():
        for size in range(1, length + 1) if t == first[e] else [length]:
            for step in range(t, t + size):
                if (e, step) in expected:
                    expected[e, step] += count
    batch = buffer.sample_sequences(20_000, batch_length_T=length, beta=0.4)
    keys, counts = np.unique(batch["obs"][batch["loss_mask"]].astype(int), axis=0, return_counts=True)
    shares = np.array([expected[tuple(key)] for key in keys.tolist()])
    assert len(keys) == len(buffer)
    np.testing.assert_allclose(counts / counts.mean(), shares / shares.mean(), rtol=0.15)
    least = min(scaled.values())
    weights = [(scaled[tuple(key)] / least) ** -0.4 for key in batch["obs"][:, 0].astype(int).tolist()]
    np.testing.assert_allclose(batch["weights"], weights, rtol=1e-6)
    # What is written or changed afterwards is drawn likewise, and transitions are drawn as ever.
    buffer.update_priorities(np.ones(20_000), indices=batch["batch_indexes"])
    buffer.add(Chunks(7).next())
    assert len(set(buffer._tree._sums[0].reshape(-1)[buffer._store.steps()])) > 1
    buffer.sample_batch(1)
    values = buffer._tree.get(np.arange(buffer._store.num_rows))
    assert buffer._tree.total == pytest.approx(values.sum())


def test_what_is_left_of_a_running_episode_begins_where_its_oldest_steps_were_evicted():
    truth, buffer = Truth([20], [True], [False], [0]), PrioritizedEpisodeReplayBuffer(10, alpha=1.0)
    buffer.add(chunk(truth, 0, 0, 8))
    buffer.sample_sequences(1, batch_length_T=3)
    # The first step stands for three starts of sequences, and every other one for one.
    assert buffer._tree.total == 8 + 2
    buffer.add(chunk(truth, 0, 8, 14))
    assert len(buffer) == 10 and buffer._tree.total == 10 + 2


def test_bad_priorities():
    with pytest.raises(ValueError, match="alpha=-0.1"):
        PrioritizedEpisodeReplayBuffer(alpha=-0.1)
    source, buffer = filled()
    with pytest.raises(ValueError, match="no items to update.*Sample first"):
        buffer.update_priorities(np.ones(3))
    batch = buffer.sample_batch(3)
    for call, message in (
        (lambda: buffer.update_priorities(np.ones(4)), r"shape \(4,\) for 3 items"),
        (lambda: buffer.update_priorities([1.0, np.nan, np.inf]), "2 priorities that are NaN or infinite"),
        (lambda: buffer.update_priorities(np.ones(3), indices=batch["weights"]), "batch_indexes .* unchanged"),
        (lambda: buffer.update_priorities(np.ones(1), indices=np.array([1 << 20])), "batch_indexes .* unchanged"),
        (lambda: buffer.sample_batch(3, beta=-1.0), "beta=-1.0"),
        (lambda: buffer.add(source.next(), weight=0.0), "weight=0.0"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    batch = buffer.sample_batch(3)
    buffer.update_priorities(np.ones(3))
    with pytest.raises(ValueError, match="no items to update"):
        buffer.update_priorities(np.ones(3))
