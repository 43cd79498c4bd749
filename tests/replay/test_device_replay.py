"""Replay on the device, filled with ids, against a reference in plain NumPy that keeps every step."""

from __future__ import annotations

import dataclasses
import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.replay import device_priorities
from jaxrl_stack.replay.device_replay import DeviceReplay, ReplayItems
from jaxrl_stack.utils.members import map_members, member_axes
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves

UNIFORM = DeviceReplay(capacity=40, num_envs=4, batch_size=8000)
PRIORITISED = DeviceReplay(capacity=40, num_envs=2, batch_size=20000, alpha=0.6)

# ---------------------------------------------------------------------------------------------------------- reference


class Source:
    """Environments whose observations say where they are: (environment, episode, step)."""

    def __init__(self, num_envs: int, p_terminated: float, p_truncated: float, seed: int):
        self.rng = np.random.default_rng(seed)
        self.p = p_terminated, p_truncated
        self.episode = np.zeros(num_envs, np.int32)
        self.t = np.zeros(num_envs, np.int32)
        self.rows: list[dict] = []

    def obs(self, t):
        ids = np.stack([np.arange(len(t)), self.episode, t], -1).astype(np.int32)
        return {"id": ids, "frame": ids[:, :2].astype(np.uint8) * 16 + (t[:, None] % 16).astype(np.uint8)}

    def row(self):
        num_envs = len(self.t)
        terminateds, truncateds = (self.rng.random(num_envs) < p for p in self.p)
        row = {
            "obs": self.obs(self.t),
            "actions": self.rng.integers(100, size=num_envs).astype(np.int32),
            "rewards": self.rng.normal(size=num_envs).astype(np.float32),
            "terminateds": terminateds,
            "truncateds": truncateds,
            "final_obs": self.obs(self.t + 1),
            "state_in": self.obs(self.t)["id"].astype(np.float32),
            "ignored": np.zeros(num_envs, np.float32),
        }
        ended = terminateds | truncateds
        self.t = np.where(ended, 0, self.t + 1).astype(np.int32)
        self.episode = self.episode + ended.astype(np.int32)
        self.rows.append(row)
        return row

    def rollout(self, num_steps: int):
        return stack([self.row() for _ in range(num_steps)])

    def num_drawable(self, num_rows: int, num_slots: int) -> int:
        """Rows after the newest one of which a final observation is gone."""
        kept = 0
        size = 0
        for row in reversed(self.rows[-num_rows:]):
            kept += int((row["truncateds"] & ~row["terminateds"]).sum())
            if kept > num_slots:
                break
            size += 1
        return size

    def step(self, row: int, env: int, name: str):
        return jax.tree.map(lambda x: x[env], self.rows[row][name])

    def ended(self, row: int, env: int) -> bool:
        return bool(self.step(row, env, "terminateds") or self.step(row, env, "truncateds"))

    def new_obs(self, row: int, env: int):
        return self.step(row, env, "obs" if self.step(row, env, "terminateds") else "final_obs")

    def window(self, row: int, env: int, n: int, gamma: float):
        """The transition that starts here, as a dict of columns."""
        last = row
        while last - row + 1 < n and last + 1 < len(self.rows) and not self.ended(last, env):
            last += 1
        rewards = [self.step(r, env, "rewards") for r in range(row, last + 1)]
        return {
            "obs": self.step(row, env, "obs"),
            "actions": self.step(row, env, "actions"),
            "state_in": self.step(row, env, "state_in"),
            "rewards": np.float32(sum(gamma**i * r for i, r in enumerate(rewards))),
            "new_obs": self.new_obs(last, env),
            "terminateds": self.step(last, env, "terminateds"),
            "truncateds": self.step(last, env, "truncateds"),
            "n_step": np.float32(last - row + 1),
        }

    def is_first(self, row: int, env: int) -> bool:
        return row == 0 or self.ended(row - 1, env)

    def sequence(self, row: int, env: int, length: int, burn_in: int, size: int):
        """Rows of the sequence around this step, and how many are burn-in."""
        first = row
        while row - first < burn_in and first > len(self.rows) - size and not self.ended(first - 1, env):
            first -= 1
        rows = list(range(first, row + 1))
        while len(rows) < row - first + length and rows[-1] + 1 < len(self.rows) and not self.ended(rows[-1], env):
            rows.append(rows[-1] + 1)
        return rows, row - first


def stack(trees):
    return jax.tree.map(lambda *x: np.stack(x), *trees)


def assert_equal(actual, expected, what):
    def check(path, a, e):
        where = f"{what}{jax.tree_util.keystr(path)}"
        assert a.dtype == e.dtype, where
        if a.dtype == np.float32:
            np.testing.assert_allclose(a, e, rtol=2e-6, atol=2e-6, err_msg=where)
        else:
            np.testing.assert_array_equal(a, e, err_msg=where)

    jax.tree_util.tree_map_with_path(check, actual, expected)


@functools.cache
def functions(replay: DeviceReplay) -> SimpleNamespace:
    return SimpleNamespace(
        init=jax.jit(replay.init),
        add=jax.jit(replay.add, donate_argnums=0),
        sample=jax.jit(replay.sample),
        update=jax.jit(replay.update_priorities, donate_argnums=0),
    )


def empty(replay: DeviceReplay):
    return functions(replay).init(Source(replay.num_envs, 0, 0, 0).rollout(1))


def filled(replay: DeviceReplay, source: Source, num_adds: int, num_steps: int):
    add, state = functions(replay).add, empty(replay)
    for _ in range(num_adds):
        state = add(state, source.rollout(num_steps))
    return state


# -------------------------------------------------------------------------------------------------------- transitions

CASES = {
    # num_envs, rows, n_step, slots, alpha, steps per add, (p_terminated, p_truncated), longest window there is
    "one-step": (3, 11, 1, None, None, (1,), (0.1, 0.1), 1),
    "few-slots": (2, 13, 3, 3, None, (4,), (0.05, 0.3), 3),
    "more-ends-than-slots": (2, 10, (2, 5), 2, 0.7, (7, 2), (0.1, 0.5), 3),
    "prioritised": (3, 8, (1, 4), 4, 0.6, (5,), (0.2, 0.2), 3),
    "one-env-all-truncated": (1, 6, 2, 1, None, (2,), (0.0, 1.0), 1),
}


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transitions_equal_reference(case):
    num_envs, num_rows, n_step, slots, alpha, lengths, p, longest_possible = CASES[case]
    replay = DeviceReplay(
        capacity=num_rows * num_envs + num_envs - 1,
        num_envs=num_envs,
        batch_size=800,
        n_step=n_step,
        alpha=alpha,
        num_final_obs=slots,
        extra_columns=("state_in",),
    )
    source, run = Source(num_envs, *p, seed=len(case)), functions(replay)
    state = empty(replay)
    assert replay.num_steps(state) == 0
    # The numbers of rows wrap around on the way, as they do after 2^32 rows.
    state = dataclasses.replace(state, num_rows=jnp.uint32(2**32 - 9))
    rng = np.random.default_rng(0)
    num_adds = 3 * num_rows // sum(lengths) + 2
    longest = set()
    for i in range(num_adds):
        for length in lengths:
            state = run.add(state, source.rollout(length))
        size = source.num_drawable(num_rows, slots or num_rows * num_envs)
        assert int(replay.num_steps(state)) == size * num_envs
        assert replay.num_steps(state) > 0
        batch, items = jax.tree.map(np.asarray, run.sample(state, jax.random.key(i), beta=0.5, gamma=0.9))
        rows = (items.rows - np.uint32(2**32 - 9)).astype(int)
        drawn = set(zip(rows.tolist(), items.envs.tolist(), strict=True))
        oldest = len(source.rows) - size
        assert drawn == {(r, e) for r in range(oldest, len(source.rows)) for e in range(num_envs)}
        weights = batch.pop("weights")
        assert weights.dtype == np.float32 and (weights > 0).all() and (weights <= 1).all()
        ns = [n_step] if isinstance(n_step, int) else range(*n_step)
        choices = {(r, e): [source.window(r, e, n, 0.9) for n in ns] for r, e in drawn}
        expected = []
        for k, key in enumerate(zip(rows.tolist(), items.envs.tolist(), strict=True)):
            fits = [x for x in choices[key] if x["n_step"] == batch["n_step"][k]]
            assert fits, (key, batch["n_step"][k])
            expected.append(fits[0])
        assert_equal(batch, stack(expected), f"{case}, add {i}: ")
        longest |= set(batch["n_step"].tolist())
        if alpha is not None:
            state = run.update(state, items, rng.normal(size=800).astype(np.float32))
    assert longest == set(range(1, longest_possible + 1))


@pytest.mark.parametrize("slots", [None, 3])
def test_a_cut_ends_running_episodes_as_a_truncation_does(slots):
    """What is added next is of other episodes: no window may reach into it."""
    replay = DeviceReplay(
        capacity=24, num_envs=2, batch_size=400, n_step=3, num_final_obs=slots, alpha=0.5, extra_columns=("state_in",)
    )
    source, run = Source(2, 0.1, 0.2, seed=5), functions(replay)
    cut, state = jax.jit(replay.cut), empty(replay)
    assert int(cut(state).size) == 0
    for i in range(6):
        state = run.add(state, source.rollout(4))
        last = source.rows[-1]
        running = ~(last["terminateds"] | last["truncateds"])
        last["truncateds"] = last["truncateds"] | running
        source.t, source.episode = np.where(running, 0, source.t), source.episode + running
        state = cut(state)
        assert int(state.size) == source.num_drawable(12, slots or 24)
        batch, items = jax.tree.map(np.asarray, run.sample(state, jax.random.key(i), gamma=0.9))
        assert len(set(zip(items.rows.tolist(), items.envs.tolist(), strict=True))) == 2 * int(state.size)
        batch.pop("weights")
        drawn = zip(items.rows.astype(int).tolist(), items.envs.tolist(), strict=True)
        assert_equal(batch, stack([source.window(r, e, 3, 0.9) for r, e in drawn]), f"cut {i}: ")


def test_random_window_lengths_are_uniform_and_gamma_is_an_argument():
    replay = DeviceReplay(capacity=64, num_envs=1, batch_size=600, n_step=(2, 5))
    source = Source(1, 0, 0, 0)
    state = filled(replay, source, 1, 64)
    batch, items = jax.jit(replay.sample)(state, jax.random.key(0), gamma=0.5)
    inside = np.asarray(items.rows) < 60
    counts = np.bincount(np.asarray(batch["n_step"], int)[inside], minlength=6)
    assert chi_square(counts[2:5], np.full(3, 1 / 3)) < 13.8  # p = 0.001, 2 degrees of freedom
    assert counts.sum() == counts[2:5].sum()
    first = [source.window(int(r), 0, int(n), 0.5)["rewards"] for r, n in zip(items.rows, batch["n_step"], strict=True)]
    np.testing.assert_allclose(batch["rewards"], first, rtol=1e-5, atol=1e-6)


def test_uniform_draws_are_uniform():
    state = filled(UNIFORM, Source(4, 0.1, 0.1, 0), 3, 7)
    _, items = functions(UNIFORM).sample(state, jax.random.key(1), beta=0.4)
    index = (np.asarray(items.rows, int) - 11) * 4 + np.asarray(items.envs)
    assert chi_square(np.bincount(index, minlength=40), np.full(40, 1 / 40)) < 72.1  # p = 0.001, 39


def chi_square(counts, probabilities) -> float:
    expected = counts.sum() * probabilities
    return float(((counts - expected) ** 2 / expected).sum())


# ---------------------------------------------------------------------------------------------------------- sequences


@pytest.mark.parametrize(("slots", "burn_in", "alpha", "n_step"), [(None, 3, None, 1), (3, 0, 0.5, 3)])
def test_sequences_equal_reference(slots, burn_in, alpha, n_step):
    replay = DeviceReplay(
        capacity=24,
        num_envs=2,
        batch_size=300,
        n_step=n_step,
        num_final_obs=slots,
        alpha=alpha,
        extra_columns=("state_in",),
        length=4,
    )
    sample = jax.jit(functools.partial(replay.sample_sequences, burn_in=burn_in, gamma=0.5))
    source = Source(2, 0.08, 0.12, seed=3)
    add, state = functions(replay).add, empty(replay)
    for i in range(7):
        state = add(state, source.rollout(5))
        size = source.num_drawable(12, slots or 24)
        batch, items = jax.tree.map(np.asarray, sample(state, jax.random.key(i)))
        drawn = list(zip(items.rows.tolist(), items.envs.tolist(), strict=True))
        assert len(set(drawn)) == size * 2
        steps, chosen = {}, []  # steps of sequences, as (row, env, n); which of them are at all places
        for k, (row, env) in enumerate(drawn):
            # Of the first step of an episode there may be fewer.
            wanted = int(batch["loss_mask"][k].sum()) if source.is_first(row, env) else 4
            rows, num_before = source.sequence(row, env, wanted, burn_in, size)
            length = len(rows)
            assert batch["seq_lens"][k] == length
            mask = (np.arange(4 + burn_in) >= num_before) & (np.arange(4 + burn_in) < length)
            np.testing.assert_array_equal(batch["loss_mask"][k], mask)
            np.testing.assert_array_equal(batch["state_in"][k], source.step(rows[0], env, "state_in"))
            own = [(r, env, min(n_step, length - at)) for at, r in enumerate(rows)]
            chosen += [steps.setdefault(step, len(steps)) for step in own]
        expected = stack(
            [
                {
                    **{name: source.step(r, env, name) for name in ("obs", "actions")},
                    "rewards": np.float32(sum(0.5**j * source.step(r + j, env, "rewards") for j in range(n))),
                    "n_step": np.float32(n),
                    **{name: source.step(r + n - 1, env, name) for name in ("terminateds", "truncateds")},
                    "new_obs": source.new_obs(r, env),
                }
                for r, env, n in steps
            ]
        )
        actual = {name: batch[name] for name in expected}
        is_step = np.arange(4 + burn_in) < batch["seq_lens"][:, None]
        places = jax.tree.map(lambda x: x[chosen], expected)  # noqa: B023
        assert_equal(jax.tree.map(lambda x: x[is_step], actual), places, f"add {i}: ")  # noqa: B023
        assert not any(x[~is_step].any() for x in jax.tree.leaves(actual))
        np.testing.assert_array_equal(batch["weights"], np.ones(300, np.float32))


def learned(source: Source, row: int, env: int, length: int):
    """The rows that losses see of the sequences that start at a step: one each, as often as they come."""
    whole = source.sequence(row, env, length, 0, len(source.rows))[0]
    if not source.is_first(row, env):
        return [whole]
    return [whole[: start + 1] for start in range(length)]


@pytest.mark.parametrize(("alpha", "burn_in", "n_step"), [(None, 2, 1), (0.6, 0, 3)])
def test_every_step_is_learned_from_equally_often(alpha, burn_in, n_step):
    """In episodes that are shorter than a sequence, too; unless priorities say otherwise, which weights undo."""
    length, beta, num_rows = 4, 0.4, 30
    replay = DeviceReplay(capacity=80, num_envs=2, batch_size=20_000, n_step=n_step, alpha=alpha, length=length)
    source = Source(2, 0.15, 0.1, 0)
    state = filled(replay, source, 6, 5)
    draw = jax.jit(functools.partial(replay.sample_sequences, burn_in=burn_in, beta=beta))
    starts = [(row, env) for row in range(num_rows) for env in range(2)]
    assert sum(source.is_first(*start) for start in starts) > 8

    def check(seed, scaled):
        batch, items = jax.tree.map(np.asarray, draw(state, jax.random.key(seed)))
        index = items.rows.astype(int) * 2 + items.envs
        np.testing.assert_allclose(batch["weights"], (scaled / scaled.min())[index] ** -beta, rtol=1e-5)
        place = {tuple(source.step(row, env, "obs")["id"].tolist()): i for i, (row, env) in enumerate(starts)}
        counts = np.zeros(len(starts))
        for obs in batch["obs"]["id"][batch["loss_mask"]].tolist():
            counts[place[tuple(obs)]] += 1
        expected = np.zeros(len(starts))
        for (row, env), count in zip(starts, scaled, strict=True):
            for rows in learned(source, row, env, length):
                expected[[at * 2 + env for at in rows]] += count
        np.testing.assert_allclose(counts / counts.mean(), expected / expected.mean(), rtol=0.15)
        return expected

    expected = check(0, np.ones(len(starts)))
    # The newest steps are no exception: what starts before them ends there.
    np.testing.assert_array_equal(expected, length)
    if alpha is not None:
        priorities = np.random.default_rng(1).uniform(0.5, 4.0, len(starts)).astype(np.float32)
        rows, envs = np.array(starts).T
        items = ReplayItems(rows=jnp.asarray(rows, jnp.uint32), envs=jnp.asarray(envs, jnp.int32))
        state = functions(replay).update(state, items, priorities)
        assert np.ptp(check(1, priorities.astype(np.float64) ** alpha)) > length


# --------------------------------------------------------------------------------------------------------- priorities


def test_draws_are_in_proportion_to_priorities_and_weights_follow_the_formula():
    alpha, beta = 0.6, 0.4
    run = functions(PRIORITISED)
    state = filled(PRIORITISED, Source(2, 0.1, 0.1, 0), 5, 5)  # rows 5 .. 24 are there
    rows, envs = (x.reshape(-1) for x in np.meshgrid(np.arange(5, 25), np.arange(2)))
    priorities = np.random.default_rng(0).uniform(0.1, 4.0, size=40).astype(np.float32)
    signs = np.where(np.arange(40) % 2, -1, 1).astype(np.float32)
    items = ReplayItems(rows=jnp.asarray(rows, jnp.uint32), envs=jnp.asarray(envs, jnp.int32))
    state = run.update(state, items, priorities * signs)
    scaled = priorities.astype(np.float64) ** alpha
    probabilities = scaled / scaled.sum()

    batch, drawn = run.sample(state, jax.random.key(7), beta=beta)
    index = np.asarray(drawn.envs) * 20 + np.asarray(drawn.rows, int) - 5
    assert chi_square(np.bincount(index, minlength=40), probabilities) < 72.1  # p = 0.001, 39 degrees of freedom
    raw = (40 * probabilities) ** -beta
    np.testing.assert_allclose(batch["weights"], (raw / raw.max())[index], rtol=1e-5)

    # New steps come with the largest priority so far, the oldest ones are gone.
    state = run.add(state, Source(2, 0.1, 0.1, 1).rollout(5))
    assert float(state.priorities.largest) == priorities.max()
    _, drawn = run.sample(state, jax.random.key(8), beta=beta)
    after = scaled.reshape(2, 20).copy()
    after[:, :15], after[:, 15:] = after[:, 5:], float(priorities.max()) ** alpha
    index = np.asarray(drawn.envs) * 20 + np.asarray(drawn.rows, int) - 10
    assert chi_square(np.bincount(index, minlength=40), (after / after.sum()).reshape(-1)) < 72.1


def test_weights_of_several_devices_are_of_one_scale():
    """Each draws its part of the batch from its own memory, and the largest weight is taken over all of them."""
    beta, num_devices = 0.7, 2
    states, counts = [], []
    rows, envs = (x.reshape(-1) for x in np.meshgrid(np.arange(5, 25), np.arange(2)))
    items = ReplayItems(rows=jnp.asarray(rows, jnp.uint32), envs=jnp.asarray(envs, jnp.int32))
    for d in range(num_devices):
        priorities = np.random.default_rng(d).uniform(0.1, 1.0, size=40).astype(np.float32) * 10.0**d
        state = filled(PRIORITISED, Source(2, 0.1, 0.1, d), 5, 5)
        states.append(functions(PRIORITISED).update(state, items, priorities))
        counts.append(priorities.astype(np.float64) ** 0.6)
    draw = jax.vmap(functools.partial(PRIORITISED.sample, beta=beta, axis_name="devices"), axis_name="devices")
    keys = jax.random.split(jax.random.key(3), num_devices)
    batch, drawn = jax.jit(draw)(jax.tree.map(lambda *x: np.stack(x), *jax.device_get(states)), keys)
    raw = [(num_devices * 40 * own / (num_devices * own.sum())) ** -beta for own in counts]
    largest = max(own.max() for own in raw)
    for d in range(num_devices):
        index = np.asarray(drawn.envs[d]) * 20 + np.asarray(drawn.rows[d], int) - 5
        np.testing.assert_allclose(batch["weights"][d], raw[d][index] / largest, rtol=1e-5)
    # A single device, with an axis or without.
    alone, _ = functions(PRIORITISED).sample(states[0], keys[0], beta=beta)
    mapped, _ = jax.jit(draw)(jax.tree.map(lambda x: x[None], jax.device_get(states[0])), keys[:1])
    np.testing.assert_allclose(mapped["weights"][0], alone["weights"], rtol=1e-5)


def test_update_priorities_passes_over_what_is_gone_and_what_is_not_finite():
    replay = DeviceReplay(capacity=8, num_envs=2, batch_size=4, alpha=1.0)
    state = filled(replay, Source(2, 0, 0, 0), 2, 3)  # rows 2 .. 5 are there
    values = jax.jit(device_priorities.values)

    def count(state, row, env):
        return float(np.asarray(values(state.priorities, np.array([env * 4 + row % 4])))[0])

    items = ReplayItems(rows=jnp.array([1, 2, 3, 3, 6, 4], jnp.uint32), envs=jnp.array([0, 1, 0, 0, 1, 1]))
    state = jax.jit(replay.update_priorities)(state, items, jnp.array([9.0, jnp.nan, 0.5, 2.0, 8.0, 0.0]))
    assert [count(state, r, e) for r, e in ((5, 0), (2, 1), (3, 0), (2, 0))] == [1.0, 1.0, 2.0, 1.0]
    assert count(state, 4, 1) == np.float32(1e-12)
    assert float(state.priorities.largest) == 2.0
    uniform = DeviceReplay(capacity=8, num_envs=2, batch_size=4)
    with pytest.raises(ValueError, match="needs a buffer with priorities: set alpha"):
        uniform.update_priorities(state, items, jnp.ones(6))


def test_tree_of_priorities_equals_numpy():
    num_items = 5000
    rng = np.random.default_rng(0)
    counts = np.zeros(num_items, np.float32)
    put = jax.jit(device_priorities.put, donate_argnums=0)
    levels = device_priorities.init(num_items)
    for _ in range(20):
        items = rng.integers(num_items, size=400).astype(np.int32)
        given = rng.exponential(size=400).astype(np.float32) * (rng.random(400) < 0.8)
        levels = put(levels, np.where(np.arange(400) % 7, items, device_priorities.NO_ITEM), given)
        items, given = items[np.arange(400) % 7 > 0], given[np.arange(400) % 7 > 0]
        counts[items] = 0
        np.maximum.at(counts, items, given)
    np.testing.assert_array_equal(jax.jit(device_priorities.values)(levels, np.arange(num_items)), counts)
    assert float(jax.jit(device_priorities.minimum)(levels)) == counts[counts > 0].min()
    np.testing.assert_allclose(np.asarray(levels.sums).sum(), counts.sum(), rtol=1e-6)
    bits = jax.random.bits(jax.random.key(0), (device_priorities.num_levels(num_items), 200_000))
    drawn = np.asarray(jax.jit(device_priorities.draw)(levels, bits))
    assert (counts[drawn] > 0).all()
    groups = np.add.reduceat(counts.astype(np.float64), np.arange(0, num_items, 50))
    observed = np.bincount(drawn // 50, minlength=100)
    assert chi_square(observed, groups / groups.sum()) < 148.2  # p = 0.001, 99 degrees of freedom


# ----------------------------------------------------------------------------------------- state, devices, populations


def training_step_of(replay):
    """``(state, columns, key) -> (state, batch)``: a rollout is added, a batch drawn, and its priorities are set."""

    def step(state, columns, key):
        state = replay.add(state, columns)
        batch, items = replay.sample(state, key, beta=0.4)
        return replay.update_priorities(state, items, batch["rewards"]), batch

    return step


def test_members_of_a_population_do_what_they_do_on_devices_of_their_own():
    replay = DeviceReplay(capacity=18, num_envs=2, batch_size=16, n_step=2, alpha=0.5, num_final_obs=2)

    step = training_step_of(replay)
    sources = [Source(2, 0.1, 0.3, seed) for seed in (0, 1)]

    def both(x):
        return np.stack([x, x])

    one = jax.device_get(empty(replay))
    axes, mapped = member_axes(one), jax.tree.map(both, one)
    members = map_members(both, axes, one)
    vmapped_step = jax.jit(jax.vmap(step, in_axes=(axes, 0, 0), out_axes=(axes, 0)))
    mapped_step = jax.pmap(step, devices=jax.devices()[:2])
    sizes = set()
    for i in range(8):
        columns = stack([source.rollout(3) for source in sources])
        keys = jax.random.split(jax.random.key(i), 2)
        members, batch = vmapped_step(members, columns, keys)
        mapped, mapped_batch = mapped_step(mapped, columns, keys)
        vmapped = map_members(lambda x: x, axes, members, shared=both)
        assert_equal((vmapped, batch), (mapped, mapped_batch), f"step {i}: ")
        expected = [source.num_drawable(9, 2) for source in sources]
        np.testing.assert_array_equal(vmapped.size, expected)
        sizes |= {tuple(expected)}
    assert any(one != other for one, other in sizes)


@pytest.mark.parametrize(("replay", "num_steps"), [(UNIFORM, 7), (PRIORITISED, 5)], ids=["uniform", "prioritised"])
def test_state_round_trip_continues_bit_for_bit(replay, num_steps):
    source, run = Source(replay.num_envs, 0.1, 0.1, 0), functions(replay)
    state = filled(replay, source, 4, num_steps)
    named = named_leaves(state)
    loaded = jax.tree.map(jnp.asarray, from_named_leaves(empty(replay), named, "replay"))
    columns = source.rollout(num_steps)
    states = [run.add(state, columns), run.add(loaded, columns)]
    samples = [run.sample(s, jax.random.key(3), beta=0.4) for s in states]
    jax.tree.map(np.testing.assert_array_equal, *map(jax.device_get, zip(states, samples, strict=True)))


def test_memory_is_estimated_exactly_and_refused_with_numbers():
    columns = {
        "obs": jax.ShapeDtypeStruct((1, 4, 84, 84, 4), jnp.uint8),
        "final_obs": jax.ShapeDtypeStruct((1, 4, 84, 84, 4), jnp.uint8),
        "actions": jax.ShapeDtypeStruct((1, 4), jnp.int32),
        "rewards": jax.ShapeDtypeStruct((1, 4), jnp.float32),
        "terminateds": jax.ShapeDtypeStruct((1, 4), jnp.bool_),
        "truncateds": jax.ShapeDtypeStruct((1, 4), jnp.bool_),
    }
    frame = 84 * 84 * 4
    for capacity, slots in ((1_000_000, 62_500), (6000, 594), (4000, None)):
        replay = DeviceReplay(capacity=capacity, num_envs=4, batch_size=32, alpha=0.6)
        shapes = jax.eval_shape(lambda replay=replay: replay.init(columns))
        if slots is None:
            assert shapes.finals is None
        else:
            assert shapes.finals.next_obs.shape == (slots + 4, 84, 84, 4)
        size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
        estimate = replay.memory_estimate(columns)
        assert estimate.num_bytes == size
    assert DeviceReplay(capacity=10**6, num_envs=4, batch_size=1).memory_estimate(columns).num_bytes < 1.07e6 * frame

    large = DeviceReplay(capacity=10**9, num_envs=4, batch_size=32)
    with pytest.raises(ValueError, match=r"2\d\.\d TiB = 4 envs x 250,000,000 steps .* free on .*Lower"):
        large.require_memory(columns, jax.devices()[0])
    DeviceReplay(capacity=100, num_envs=4, batch_size=32).require_memory(columns, jax.devices()[0])


BAD = {
    "capacity": (dict(capacity=0), "capacity=0 must be an int >= 1"),
    "n-step": (dict(n_step=(3, 3)), r"n_step=\(3, 3\) must be"),
    "n-step-zero": (dict(n_step=0), "n_step=0 must be"),
    "few-rows": (dict(n_step=6), "holds 5 steps of each of num_envs=2 .* n_step=6 needs 6"),
    "alpha": (dict(alpha=-0.1), "alpha=-0.1 must be a number >= 0"),
    "slots": (dict(num_final_obs=1), "num_final_obs=1 must be from num_envs=2"),
    "extra": (dict(extra_columns=("new_obs",)), r"reserved names \['new_obs'\]"),
    "length": (dict(length=0), "length=0 must be an int >= 1"),
    "large": (dict(capacity=2**31), "above the maximum of 2\\*\\*30"),
}


@pytest.mark.parametrize("case", BAD, ids=str)
def test_bad_settings_are_refused(case):
    settings, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        DeviceReplay(**{"capacity": 10, "num_envs": 2, "batch_size": 4, **settings})


def test_bad_rollouts_are_refused():
    replay = DeviceReplay(capacity=10, num_envs=2, batch_size=4)
    state = replay.init(Source(2, 0, 0, 0).rollout(1))
    with pytest.raises(
        ValueError, match="rollout of 6 steps cannot be added to a replay buffer that holds at most 5 steps"
    ):
        replay.add(state, Source(2, 0, 0, 0).rollout(6))
    with pytest.raises(ValueError, match=r"has shape \(1, 3.*num_envs=2 takes \[T, 2, ...\]"):
        replay.add(state, Source(3, 0, 0, 0).rollout(1))
    columns = Source(2, 0, 0, 0).rollout(1)
    with pytest.raises(ValueError, match=r"lacks the columns \['rewards'\]"):
        replay.init({name: value for name, value in columns.items() if name != "rewards"})
    with pytest.raises(ValueError, match="burn_in=-1 must be"):
        replay.sample_sequences(state, jax.random.key(0), burn_in=-1)
