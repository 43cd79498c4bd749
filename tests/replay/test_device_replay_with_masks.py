"""Replay on the device of rollouts with masks, against lists of the steps of each agent."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.replay import items as windows
from jaxrl_stack.replay.device_replay import DeviceReplay, ReplayItems
from jaxrl_stack.utils.members import map_members, member_axes
from jaxrl_stack.utils.named_leaves import from_named_leaves, named_leaves
from tests.replay.test_device_replay import Source, assert_equal, chi_square, functions, stack, training_step_of

# ---------------------------------------------------------------------------------------------------------- reference


class Agent(Source):
    """One agent in one environment; observations show the last `num_frames` steps of its episode."""

    def __init__(self, number: int, p: tuple[float, float], seed: int, num_frames: int = 1):
        super().__init__(1, *p, seed=seed * 1000 + number)
        self.number, self.num_frames = number, num_frames

    def obs(self, t):
        times = t[:, None] - np.arange(self.num_frames - 1, -1, -1)
        ids = np.stack([np.full_like(times, self.number + 1), self.episode[:, None] + 1 + 0 * times, times + 1], -1)
        ids = np.where(times[..., None] >= 0, ids, 0)
        return {
            "id": ids.reshape(len(t), -1).astype(np.int32),
            "frame": (ids % 256).reshape(len(t), -1).astype(np.uint8),
        }

    def cut(self):
        """The unfinished episode ends, truncated; whether there was one."""
        if not self.rows or self.ended(len(self.rows) - 1, 0):
            return False
        self.rows[-1] = self.rows[-1] | {"truncateds": np.ones(1, bool)}
        self.t, self.episode = np.zeros(1, np.int32), self.episode + 1
        return True


class Agents:
    """Agents of which some wait in each step, and the steps that a ring has of them.

    Attributes:
        agents: The steps of each, oldest first.
        rates: How often each has a step; they change with every rollout.
        first: The oldest step of each that can be drawn.
        finals: Which steps have a slot for their final observation, oldest first, as (agent, step).
        counts: What each step counts in draws by priority, by (agent, step).
    """

    def __init__(self, replay: DeviceReplay, p: tuple[float, float], seed: int):
        self.replay, self.rng = replay, np.random.default_rng(seed)
        self.agents = [Agent(i, p, seed, replay.num_frames) for i in range(replay.num_envs)]
        self.first = [0] * replay.num_envs
        self.since_cut = [0] * replay.num_envs
        self.finals: list[tuple[int, int]] = []
        self.counts: dict[tuple[int, int], float] = {}
        self.largest = 1.0

    def rollout(self, num_steps: int, rates=None):
        """Columns, of which masked rows are garbage."""
        if rates is None:
            rates = self.rng.choice([0.0, 0.2, 0.6, 1.0], size=len(self.agents))
        mask = self.rng.random((num_steps, len(self.agents))) < rates
        like = Agent(0, (0, 0), 0, self.replay.num_frames).row()
        garbage = jax.tree.map(lambda x: np.full_like(x, np.nan if x.dtype == np.float32 else 1), like)
        columns = stack(
            [
                jax.tree.map(
                    lambda *x: np.concatenate(x),
                    *[agent.row() if is_there else garbage for agent, is_there in zip(self.agents, row, strict=True)],
                )
                for row in mask
            ]
        )
        self._added(mask.sum(axis=0))
        return columns | {"loss_mask": mask}

    def _added(self, added):
        for k in range(max(added, default=0)):
            for i, agent in enumerate(self.agents):
                row = len(agent.rows) - added[i] + k
                if k < added[i]:
                    self.counts[i, row] = self.largest ** (self.replay.alpha or 0.0)
                    if agent.step(row, 0, "truncateds") and not agent.step(row, 0, "terminateds"):
                        self.finals.append((i, row))
        self._shorten()
        for i, number in enumerate(added):
            self.since_cut[i] = min(self.since_cut[i] + number, self.replay.num_rows)

    def _shorten(self):
        slots = self.replay.num_final_obs
        while slots is not None and len(self.finals) > slots:
            i, row = self.finals.pop(0)
            self.first[i] = max(self.first[i], row + 1)
        for i, agent in enumerate(self.agents):
            self.first[i] = max(self.first[i], len(agent.rows) - self.replay.num_rows)
        self.counts = {key: count for key, count in self.counts.items() if key[1] >= self.first[key[0]]}

    def cut(self):
        for i, agent in enumerate(self.agents):
            if self.size(i) and agent.cut():
                self.finals.append((i, len(agent.rows) - 1))
            if self.replay.num_frames > 1 and self.since_cut[i]:
                self.first[i] = max(self.first[i], len(agent.rows) - self.since_cut[i])
                self.since_cut[i] = 0
        self._shorten()

    def size(self, agent: int) -> int:
        return len(self.agents[agent].rows) - self.first[agent]

    def update(self, drawn, priorities):
        given: dict[tuple[int, int], float] = {}
        for key, priority in zip(drawn, np.abs(priorities), strict=True):
            if key in self.counts and np.isfinite(priority):
                given[key] = max(given.get(key, 0.0), float(priority))
        self.counts |= {key: max(priority, 1e-12) ** self.replay.alpha for key, priority in given.items()}
        self.largest = max([self.largest, *given.values()])

    def check_counts(self, state):
        """Sizes, and what each place counts in draws."""
        np.testing.assert_array_equal(state.size, [self.size(i) for i in range(len(self.agents))])
        assert int(self.replay.num_steps(state)) == len(self.counts)
        assert bool(self.replay.can_draw(state)) == bool(self.counts)
        if state.priorities is not None:
            num_rows, num_envs = self.replay.num_rows, self.replay.num_envs
            expected = np.zeros((num_envs, num_rows))
            for (i, row), count in self.counts.items():
                expected[i, row % num_rows] = count
            actual = np.asarray(state.priorities.items).reshape(-1)
            np.testing.assert_allclose(actual[: expected.size].reshape(expected.shape), expected, rtol=1e-5)
            assert not actual[expected.size :].any()

    def drawn(self, items):
        drawn = keys_of(items)
        assert set(drawn) <= self.counts.keys()
        return drawn

    def check_transitions(self, batch, items, gamma, beta):
        """Every transition has the bits of the one in the lists of steps."""
        drawn = self.drawn(items)
        n_steps = batch["n_step"].astype(int).tolist()
        low, high = self.replay._n_steps
        found, place, chosen = [], {}, []
        for (i, row), n in zip(drawn, n_steps, strict=True):
            if (i, row, n) not in place:
                place[i, row, n] = len(found)
                choices = [self.agents[i].window(row, 0, wanted, gamma) for wanted in range(low, high + 1)]
                found.append(next(x for x in choices if x["n_step"] == n))
            chosen.append(place[i, row, n])
        self.check_weights(batch.pop("weights"), drawn, beta)
        assert_equal(batch, jax.tree.map(lambda x: x[chosen], stack(found)), "")

    def check_weights(self, weights, drawn, beta):
        least = min(self.counts.values())
        np.testing.assert_allclose(weights, [(self.counts[key] / least) ** -beta for key in drawn], rtol=1e-4)

    def check_sequences(self, batch, items, gamma, beta, burn_in):
        """Every sequence has the bits of the one in the lists of steps, and zeros after it."""
        drawn, length = self.drawn(items), self.replay.length
        n_step, width = self.replay._n_steps[1], burn_in + length
        self.check_weights(batch["weights"], drawn, beta)
        steps, chosen = {}, []
        for k, (i, row) in enumerate(drawn):
            agent = self.agents[i]
            # Of the first step of an episode there may be fewer.
            wanted = int(batch["loss_mask"][k].sum()) if agent.is_first(row, 0) else length
            assert wanted >= 1
            rows, num_before = agent.sequence(row, 0, wanted, burn_in, self.size(i))
            assert batch["seq_lens"][k] == len(rows)
            mask = (np.arange(width) >= num_before) & (np.arange(width) < len(rows))
            np.testing.assert_array_equal(batch["loss_mask"][k], mask)
            np.testing.assert_array_equal(batch["state_in"][k], agent.step(rows[0], 0, "state_in"))
            for at, r in enumerate(rows):
                chosen.append(steps.setdefault((i, r, min(n_step, len(rows) - at)), len(steps)))
        expected = stack(
            [
                self.agents[i].window(r, 0, n, gamma)
                | {"new_obs": self.agents[i].new_obs(r, 0), "n_step": np.float32(n)}
                for i, r, n in steps
            ]
        )
        del expected["state_in"]
        is_step = np.arange(width) < batch["seq_lens"][:, None]
        actual = {name: batch[name] for name in expected}
        assert_equal(
            jax.tree.map(lambda x: x[is_step], actual), jax.tree.map(lambda x: x[chosen], expected), "sequences: "
        )
        assert not any(x[~is_step].any() for x in jax.tree.leaves(actual))


FIRST_ROW = 2**32 - 9
"""The numbers of rows wrap around on the way, as they do after 2^32 rows."""


def keys_of(items):
    """Items as (agent, step)."""
    rows = (np.asarray(items.rows) - np.uint32(FIRST_ROW)).astype(int)
    return list(zip(np.asarray(items.envs).tolist(), rows.tolist(), strict=True))


def begun(replay: DeviceReplay, model: Agents):
    """An empty state."""
    state = functions(replay).init(model.rollout(2, rates=0.0))
    return dataclasses.replace(state, num_rows=jnp.full_like(state.num_rows, FIRST_ROW))


CASES = {
    # DeviceReplay's arguments; steps per add; (p_terminated, p_truncated); burn-in
    "one-step": (dict(num_envs=5), (3, 1), (0.1, 0.1), 0),
    "n-steps-few-slots": (dict(num_envs=4, n_step=(2, 5), num_final_obs=4), (7, 2), (0.1, 0.3), 0),
    "priorities": (dict(num_envs=3, n_step=3, alpha=0.7, num_final_obs=3), (5, 8), (0.05, 0.3), 0),
    "sequences": (dict(num_envs=3, n_step=2, length=4, alpha=0.5), (4,), (0.08, 0.1), 3),
    "sequences-few-slots": (dict(num_envs=3, length=3, num_final_obs=5), (6, 1), (0.05, 0.2), 2),
    "frames": (dict(num_envs=3, n_step=(1, 4), num_frames=3, num_final_obs=4, alpha=0.5), (1, 6), (0.1, 0.15), 0),
    "frames-in-sequences": (dict(num_envs=2, num_frames=3, length=4), (5, 2), (0.1, 0.1), 2),
}
BATCH_SIZE, NUM_ROUNDS, GAMMA, BETA = 100, 10, 0.9, 0.5


def fuzz(case: str, seeds) -> int:
    """Fill rings with what agents do and compare all that is drawn; how many draws were compared."""
    settings, lengths, p, burn_in = CASES[case]
    replay = DeviceReplay(
        capacity=11 * settings["num_envs"], batch_size=BATCH_SIZE, extra_columns=("state_in",), **settings
    )
    run, cut = functions(replay), jax.jit(replay.cut)
    draw = run.sample
    if replay.length > 1:
        draw = jax.jit(functools.partial(replay.sample_sequences, burn_in=burn_in))
    num_draws = 0
    for seed in seeds:
        model = Agents(replay, p, seed)
        state, earlier = begun(replay, model), []
        for i in range(NUM_ROUNDS):
            for length in lengths:
                state = run.add(state, model.rollout(length))
                model.check_counts(state)
            if model.rng.random() < 0.3:
                state = cut(state)
                model.cut()
                model.check_counts(state)
            if not model.counts:
                continue
            batch, items = jax.tree.map(np.asarray, draw(state, jax.random.key(i), beta=BETA, gamma=GAMMA))
            num_draws += BATCH_SIZE
            if replay.length > 1:
                model.check_sequences(batch, items, GAMMA, BETA * (replay.alpha is not None), burn_in)
            else:
                model.check_transitions(batch, items, GAMMA, BETA * (replay.alpha is not None))
            if replay.alpha is not None:
                # Those of older draws, too, of which some steps are gone.
                earlier.append(items)
                given = earlier[int(model.rng.integers(len(earlier)))]
                priorities = model.rng.normal(size=BATCH_SIZE).astype(np.float32)
                priorities[::17] = np.nan
                state = run.update(state, given, priorities)
                model.update(keys_of(given), priorities)
                model.check_counts(state)
    return num_draws


@pytest.mark.parametrize("case", CASES, ids=str)
def test_draws_equal_lists_of_steps(case):
    assert fuzz(case, [0]) >= 800


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_100_000_draws_equal_lists_of_steps(case):
    assert fuzz(case, range(1, 17)) > 100_000 / len(CASES)


def test_every_step_is_drawn_equally_often_or_by_its_priority():
    """The agents have different numbers of steps."""
    uniform = DeviceReplay(capacity=60, num_envs=5, batch_size=30_000)
    prioritised = dataclasses.replace(uniform, alpha=0.6)
    for replay in (uniform, prioritised):
        run, model = functions(replay), Agents(replay, (0.1, 0.1), 1)
        state = begun(replay, model)
        for _ in range(3):
            state = run.add(state, model.rollout(6, rates=np.array([1.0, 0.0, 0.3, 0.8, 0.1])))
        keys = sorted(model.counts)
        if replay.alpha is not None:
            priorities = model.rng.uniform(0.1, 4.0, len(keys)).astype(np.float32)
            rows = np.array([row for _, row in keys]).astype(np.uint32) + np.uint32(FIRST_ROW)
            items = ReplayItems(rows=jnp.asarray(rows), envs=jnp.asarray([i for i, _ in keys], jnp.int32))
            state = run.update(state, items, priorities)
            model.update(keys, priorities)
        sizes = {model.size(i) for i in range(5)}
        assert len(sizes) > 3 and 0 in sizes
        place = {key: k for k, key in enumerate(keys)}
        drawn = [place[key] for key in keys_of(run.sample(state, jax.random.key(1))[1])]
        shares = np.array([model.counts[key] for key in keys])
        # 28 steps or fewer; p < 0.001
        assert len(keys) <= 29 and chi_square(np.bincount(drawn, minlength=len(keys)), shares / shares.sum()) < 57


def test_every_step_is_learned_from_equally_often_in_sequences():
    length = 4
    replay = DeviceReplay(capacity=45, num_envs=3, batch_size=30_000, length=length)
    model = Agents(replay, (0.15, 0.1), 0)
    state, add = begun(replay, model), functions(replay).add
    for rate in (1.0, 0.5, 0.3):
        state = add(state, model.rollout(5, rates=np.array([1.0, rate, 1.0 - rate])))
    assert not any(model.first)
    batch, _ = jax.tree.map(np.asarray, jax.jit(replay.sample_sequences)(state, jax.random.key(0)))
    ids = [tuple(agent.step(row, 0, "obs")["id"]) for agent in model.agents for row in range(len(agent.rows))]
    place = {one: k for k, one in enumerate(ids)}
    drawn = [place[tuple(one)] for one in batch["obs"]["id"][batch["loss_mask"]].tolist()]
    counts = np.bincount(drawn, minlength=len(ids))
    np.testing.assert_allclose(counts / counts.mean(), 1.0, atol=0.1)


@pytest.mark.parametrize(
    "settings",
    [dict(n_step=3, alpha=0.5), dict(num_frames=3, length=4, num_final_obs=9)],
    ids=["priorities", "frames-and-slots"],
)
def test_without_masked_rows_the_same_transitions_are_there(settings):
    """A ring that takes no masks has the same ones, and steps of a rollout that are shifted in time change nothing."""
    replay = DeviceReplay(capacity=33, num_envs=3, batch_size=700, **settings)
    model = Agents(replay, (0.1, 0.1), 2)
    run, cut = functions(replay), jax.jit(replay.cut)
    plain = masked = shifted = None
    for i in range(6):
        columns = model.rollout(4, rates=1.0)
        mask = np.ones((7, 3), bool)
        for env in range(3):
            mask[model.rng.choice(7, 3, replace=False), env] = False
        places = np.argsort(~mask, axis=0, kind="stable")[:4]
        late = jax.tree.map(lambda x: np.ones((7, *x.shape[1:]), x.dtype), columns) | {"loss_mask": mask}
        for leaf, to in zip(jax.tree.leaves(columns), jax.tree.leaves(late), strict=True):
            if to is not mask:
                to[places, np.arange(3)] = leaf
        unmasked = {name: column for name, column in columns.items() if name != "loss_mask"}
        if plain is None:
            plain, masked, shifted = run.init(unmasked), run.init(columns), run.init(columns)
        if i == 4:
            plain, masked, shifted = cut(plain), cut(masked), cut(shifted)
        plain, masked, shifted = run.add(plain, unmasked), run.add(masked, columns), run.add(shifted, late)
        jax.tree.map(np.testing.assert_array_equal, masked, shifted)
        jax.tree.map(np.testing.assert_array_equal, masked.ring, plain.ring)
        drawn = []
        for state in (plain, masked):
            batch, items = jax.tree.map(np.asarray, run.sample(state, jax.random.key(i)))
            rows = dict(zip(zip(items.envs.tolist(), items.rows.tolist(), strict=True), range(700), strict=True))
            keys = sorted(rows)
            drawn.append((keys, jax.tree.map(lambda x: x[[rows[key] for key in keys]], batch)))  # noqa: B023
        assert drawn[0][0] == drawn[1][0] and len(drawn[0][0]) == int(replay.num_steps(plain))
        assert_equal(drawn[1][1], drawn[0][1], "")


FEW_SLOTS = DeviceReplay(
    capacity=12, num_envs=2, batch_size=8, num_final_obs=2, alpha=0.5, num_frames=2, extra_columns=("state_in",)
)


def test_agents_without_a_step_keep_all_that_they_have():
    """Also the observation that the newest step led to, and an agent that ended in a rollout without other steps."""
    run, model = functions(FEW_SLOTS), Agents(FEW_SLOTS, (0.0, 0.0), 0)
    state = run.add(begun(FEW_SLOTS, model), model.rollout(3, rates=1.0))
    before = jax.device_get(state)
    state = run.add(state, model.rollout(3, rates=0.0))
    jax.tree.map(np.testing.assert_array_equal, state, before)
    state = run.add(state, model.rollout(2, rates=np.array([1.0, 0.0])))
    model.check_counts(state)
    batch, items = jax.tree.map(np.asarray, run.sample(state, jax.random.key(0)))
    assert (1, 2) in keys_of(items)
    model.check_transitions(batch, items, 0.99, 0.0)


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(alpha=0.5, num_final_obs=2, num_frames=2),
        dict(alpha=0.5, length=3),
        dict(length=3, num_final_obs=2, num_frames=2),
    ],
    ids=["uniform", "priorities", "sequences-by-priority", "sequences"],
)
def test_what_an_empty_state_gives_is_finite_and_counts_nowhere(settings):
    replay = DeviceReplay(capacity=24, num_envs=2, batch_size=8, **settings)
    model, run = Agents(replay, (0.1, 0.1), 0), functions(replay)
    state = run.add(begun(replay, model), model.rollout(2, rates=0.0))
    assert not replay.can_draw(state) and replay.num_steps(state) == 0
    draw = run.sample if replay.length == 1 else jax.jit(functools.partial(replay.sample_sequences, burn_in=2))
    batch, items = jax.tree.map(np.asarray, draw(state, jax.random.key(0), beta=0.4))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(batch))
    assert not batch["weights"].any() and not batch.get("loss_mask", np.zeros(1)).any()
    assert (items.envs >= 0).all() and (items.envs < 2).all()
    if replay.alpha is not None:
        # Priorities of what was drawn there belong to no step.
        after = run.update(state, items, np.ones(8, np.float32) * 3)
        model.check_counts(after)
        assert float(after.priorities.largest) == 1.0


def test_weights_are_finite_where_another_device_has_no_steps():
    replay = DeviceReplay(capacity=24, num_envs=2, batch_size=8, alpha=0.5)
    model = Agents(replay, (0.1, 0.1), 0)
    states = [begun(replay, model), functions(replay).add(begun(replay, model), model.rollout(5, rates=1.0))]
    draw = jax.vmap(functools.partial(replay.sample, beta=0.4, axis_name="devices"), axis_name="devices")
    both = jax.tree.map(lambda *x: np.stack(x), *jax.device_get(states))
    batch, _ = jax.jit(draw)(both, jax.random.split(jax.random.key(0), 2))
    np.testing.assert_allclose(batch["weights"], [[0.0] * 8, [1.0] * 8], rtol=1e-6)


def test_members_of_a_population_have_steps_of_their_own():
    replay = DeviceReplay(capacity=22, num_envs=2, batch_size=16, alpha=0.5, num_final_obs=2, num_frames=2)

    step = training_step_of(replay)
    models = [Agents(replay, (0.1, 0.2), seed) for seed in (0, 1)]
    members = [jax.device_get(begun(replay, model)) for model in models]
    axes = member_axes(members[0])
    assert len(jax.tree.leaves(axes)) == len(jax.tree.leaves(members[0]))  # nothing is shared
    together = map_members(lambda *x: np.stack(x), axes, *members)
    alone, vmapped = jax.jit(step), jax.jit(jax.vmap(step, in_axes=(axes, 0, 0), out_axes=(axes, 0)))
    for i in range(6):
        columns = [model.rollout(3, rates=None if i else 1.0) for model in models]
        keys = jax.random.split(jax.random.key(i), 2)
        members, batches = zip(*[alone(*each) for each in zip(members, columns, keys, strict=True)], strict=True)
        together, batch = vmapped(together, stack(columns), keys)
        assert_equal((together, batch), stack([*zip(members, batches, strict=True)]), f"step {i}: ")
        np.testing.assert_array_equal(together.size, [[model.size(0), model.size(1)] for model in models])


def test_not_finite_steps_are_found_with_the_newest_last():
    replay = DeviceReplay(capacity=10, num_envs=2, batch_size=4)
    model = Agents(replay, (0.0, 0.0), 0)
    state = begun(replay, model)
    state = dataclasses.replace(state, num_rows=jnp.zeros_like(state.num_rows))
    for bad, mask in ((0, [[1, 1]]), (9, [[1, 1], [0, 1], [1, 1]])):
        columns = model.rollout(len(mask), rates=1.0)
        columns["rewards"][bad % 2, 1] = np.nan
        state = functions(replay).add(state, columns | {"loss_mask": np.array(mask, bool)})
    found = replay.not_finite(state)
    np.testing.assert_array_equal(found["rewards"], [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0]])


def test_state_with_masks_goes_through_names_and_memory_is_estimated_exactly():
    model = Agents(FEW_SLOTS, (0.1, 0.3), 0)
    run, columns = functions(FEW_SLOTS), model.rollout(4)
    state = run.add(begun(FEW_SLOTS, model), columns)
    loaded = from_named_leaves(begun(FEW_SLOTS, model), named_leaves(state), "replay")
    jax.tree.map(np.testing.assert_array_equal, state, loaded)
    shapes = jax.eval_shape(FEW_SLOTS.init, columns)
    estimate = FEW_SLOTS.memory_estimate(columns)
    assert estimate.num_bytes == sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(shapes))
    assert "2 agents x 6 steps" in str(estimate)


def test_masks_are_refused_where_they_do_not_fit():
    replay = DeviceReplay(capacity=10, num_envs=2, batch_size=4, keep_terminal_obs=True)
    columns = Agents(replay, (0.0, 0.0), 0).rollout(1, rates=1.0)
    unmasked = {name: column for name, column in columns.items() if name != "loss_mask"}
    with pytest.raises(
        ValueError, match="has the column 'loss_mask', but the replay buffer's state was created for rollouts without"
    ):
        replay.add(replay.init(unmasked), columns)
    with pytest.raises(ValueError, match=r"lacks the columns \['loss_mask'\]"):
        replay.add(replay.init(columns), unmasked)
    with pytest.raises(ValueError, match=r"'loss_mask' has shape \(1, 3\), .* takes \[T, 2"):
        replay.init(columns | {"loss_mask": np.ones((1, 3), bool)})
    with pytest.raises(ValueError, match="Windows of consecutive steps need rollouts without loss_mask"):
        windows.device_windows(replay, replay.init(columns), jax.random.key(0), 3)
