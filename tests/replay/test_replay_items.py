"""Windows of consecutive items, of both stores, against walks over episodes whose numbers say where they are from."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.replay import EpisodeReplayBuffer, endings
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.replay.items import device_windows, host_windows, put_on_device, put_on_host

NUM_ENVS, NUM_ROWS, LENGTH = 2, 9, 14


def rollout(num_steps: int, seed: int, num_envs: int = NUM_ENVS, num_frames: int = 1) -> dict[str, np.ndarray]:
    """Columns ``[T, B]``; an observation is (environment, episode, step), which a frame is of, too."""
    rng = np.random.default_rng(seed)
    episode, t, rows = np.zeros(num_envs, int), np.zeros(num_envs, int), []

    def frame(t):
        return np.stack([np.arange(num_envs), episode, t], -1).astype(np.uint8)

    def obs(t):
        frames = [np.where(t[:, None] >= back, frame(t - back) + 1, 0) for back in range(num_frames - 1, -1, -1)]
        return np.concatenate(frames, -1).astype(np.uint8)

    for _ in range(num_steps):
        kind = rng.choice(5, size=num_envs, p=(0.6, 0.1, 0.1, 0.1, 0.1))
        terminateds, truncateds = (kind == 1) | (kind == 3), (kind == 2) | (kind == 3)
        rows.append(
            {
                "obs": obs(t),
                "actions": (100 * episode + t).astype(np.int32),
                "rewards": rng.normal(size=num_envs).astype(np.float32),
                "terminateds": terminateds,
                "truncateds": truncateds,
                "final_obs": obs(t + 1),
                "latent": rng.normal(size=num_envs).astype(np.float32),
            }
        )
        ended = terminateds | truncateds
        episode, t = episode + ended, np.where(ended, 0, t + 1)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def items_of_env(columns: dict[str, np.ndarray], env: int, oldest: int) -> list[dict]:
    """All items of one environment from row `oldest` on, in time."""
    own = {name: column[:, env] for name, column in columns.items()}
    out, begins = [], True
    for row in range(oldest, len(own["rewards"])):
        ended = bool(own["terminateds"][row] or own["truncateds"][row])
        step = {name: own[name][row] for name in ("actions", "latent")} | {"row": row}
        flags = {"is_first": begins, "is_last": False, "is_terminated": False, "is_truncated": False}
        reward = np.float32(0) if begins else own["rewards"][row - 1]
        out.append({**step, **flags, "obs": own["obs"][row], "rewards": reward, "is_step": True})
        begins = ended
        if ended or row + 1 == len(own["rewards"]):
            terminated = bool(own["terminateds"][row])
            flags = {"is_terminated": terminated, "is_truncated": bool(own["truncateds"][row]) and not terminated}
            final = {"obs": own["final_obs"][row], "rewards": own["rewards"][row], "is_step": False}
            out.append({**step, **flags, **final, "is_first": False, "is_last": True})
    return out


def check_windows(batch: dict[str, np.ndarray], rows: np.ndarray, envs: np.ndarray, items: dict[int, list[dict]]):
    names = ("obs", "actions", "latent", "rewards", "is_first", "is_last", "is_terminated", "is_truncated")
    assert set(batch) == set(names)
    for k, env in enumerate(envs[:, 0].tolist()):
        own = items[env]
        place = next(i for i, item in enumerate(own) if item["row"] == rows[k, 0] and item["is_step"])
        window = [own[(place + t) % len(own)] for t in range(batch["rewards"].shape[1])]
        assert rows[k].tolist() == [item["row"] for item in window]
        for name in names:
            expected = np.stack([np.asarray(item[name], batch[name].dtype) for item in window])
            np.testing.assert_array_equal(batch[name][k], expected, err_msg=name)


@pytest.mark.parametrize(("slots", "num_frames"), [(None, 1), (8, 1), (2, 1), (None, 3), (8, 3)])
def test_windows_on_the_device_are_consecutive_items_over_ends_of_episodes(slots, num_frames):
    """With each way to keep final observations, also where more episodes end than there are slots."""
    replay = DeviceReplay(
        capacity=NUM_ENVS * NUM_ROWS,
        num_envs=NUM_ENVS,
        batch_size=150,
        num_final_obs=slots,
        num_frames=num_frames,
        extra_columns=("latent",),
        keep_terminal_obs=True,
    )
    columns = rollout(48, seed=3, num_frames=num_frames)
    add, state = jax.jit(replay.add), replay.init(columns)
    draw = jax.jit(lambda state, key: device_windows(replay, state, key, LENGTH))
    for i in range(12):
        state = add(state, {name: column[4 * i : 4 * i + 4] for name, column in columns.items()})
        known = {name: column[: 4 * i + 4] for name, column in columns.items()}
        oldest = 4 * i + 4 - int(state.size)
        batch, drawn = jax.tree.map(np.asarray, draw(state, jax.random.key(i)))
        assert batch["obs"].dtype == np.uint8
        starts = set(zip(drawn.envs[:, 0].tolist(), drawn.rows[:, 0].tolist(), strict=True))
        assert starts == {(env, row) for env in range(NUM_ENVS) for row in range(oldest, 4 * i + 4)}
        check_windows(batch, drawn.rows, drawn.envs, {env: items_of_env(known, env, oldest) for env in range(NUM_ENVS)})


def test_transitions_of_a_memory_with_terminal_observations_have_the_flags_of_one_without():
    columns = rollout(40, seed=1)
    batches = []
    for keeps in (False, True):
        replay = DeviceReplay(capacity=80, num_envs=NUM_ENVS, batch_size=200, num_final_obs=80, keep_terminal_obs=keeps)
        state = jax.jit(replay.add)(replay.init(columns), columns)
        batch, _ = jax.jit(replay.sample)(state, jax.random.key(0))
        batches.append(jax.tree.map(np.asarray, batch))
    without, kept = batches
    terminated = without["terminateds"]
    assert terminated.any() and (terminated & without["truncateds"]).any()
    for name, column in without.items():
        rows = ~terminated if name == "new_obs" else slice(None)
        np.testing.assert_array_equal(column[rows], kept[name][rows], err_msg=name)
    # The environment's own observation after the step, instead of the step's.
    np.testing.assert_array_equal(kept["new_obs"][terminated][:, 2], kept["obs"][terminated][:, 2] + 1)


def test_endings_round_trip():
    terminateds, truncateds = jnp.array([0, 1, 0, 1], bool), jnp.array([0, 0, 1, 1], bool)
    for number in (0, 1, 12345):
        ends = endings.of_steps(terminateds, truncateds)
        ends = jnp.where(ends == endings.GOES_ON, ends, endings.with_slots(ends, jnp.int32(number)))
        flags, (is_kept, slot) = endings.flags(ends), endings.slots(ends)
        np.testing.assert_array_equal(flags["terminateds"], terminateds)
        np.testing.assert_array_equal(flags["truncateds"], truncateds)
        np.testing.assert_array_equal(is_kept, [False, True, True, True])
        np.testing.assert_array_equal(slot[1:], [number] * 3)


def test_images_are_stored_once():
    columns = {name: jax.ShapeDtypeStruct((1, 4), np.float32) for name in ("rewards",)}
    columns |= {name: jax.ShapeDtypeStruct((1, 4, 64, 64, 3), np.uint8) for name in ("obs", "final_obs")}
    columns |= {name: jax.ShapeDtypeStruct((1, 4), np.bool_) for name in ("terminateds", "truncateds")}
    columns["actions"] = jax.ShapeDtypeStruct((1, 4), np.int32)
    replay = DeviceReplay(capacity=100_000, num_envs=4, batch_size=16, keep_terminal_obs=True)
    total = replay.memory_estimate(columns).num_bytes
    assert total < 1.08 * 100_000 * 64 * 64 * 3


def test_windows_on_the_host_are_consecutive_items_over_ends_of_episodes():
    """After the end of an episode, or its newest step, comes the beginning of any other one."""
    columns = rollout(60, seed=4)
    buffer = EpisodeReplayBuffer(capacity=50, seed=0)
    for i in range(12):
        buffer.add_block({name: x[5 * i : 5 * i + 5] for name, x in columns.items()}, stream=0, serial=i)
    number = 300
    batch, drawn = host_windows(buffer, number, LENGTH, extra_columns=["latent"])
    assert drawn.shape == (number, LENGTH)
    all_items = {}
    for env in range(NUM_ENVS):
        # What a buffer holds of an episode begins at any of its steps: they are looked up by their observations.
        for item in items_of_env(columns, env, 0):
            all_items[tuple(item["obs"].tolist())] = item
    first_steps = set()
    for k in range(number):
        previous = None
        for t in range(LENGTH):
            item = all_items[tuple(batch["obs"][k, t].tolist())]
            is_first = bool(batch["is_first"][k, t])
            for name in ("actions", "latent", "is_last", "is_terminated", "is_truncated"):
                assert batch[name][k, t] == item[name], name
            if is_first:
                assert batch["rewards"][k, t] == 0
                assert t == 0 or previous["is_last"]
                first_steps.add(tuple(batch["obs"][k, t].tolist()))
            else:
                assert batch["rewards"][k, t] == item["rewards"]
                assert t == 0 or (not previous["is_last"] and item["row"] - previous["row"] == item["is_step"])
            previous = item
    assert len(first_steps) == buffer.get_num_episodes()


def test_rows_of_rllib_are_the_same_windows():
    columns = rollout(30, seed=6)
    buffers = [EpisodeReplayBuffer(capacity=100, seed=7) for _ in range(2)]
    for buffer in buffers:
        buffer.add_block(columns, stream=0, serial=0)
    ours, _ = host_windows(buffers[0], 20, 6)
    rows = buffers[1].sample(20, batch_length_T=6)
    assert list(ours) == list(rows)
    for name, column in ours.items():
        inside = {"is_first": np.s_[:, 1:], "is_last": np.s_[:, :-1]}.get(name, np.s_[:])
        np.testing.assert_array_equal(column[inside], rows[name][inside], err_msg=name)
    assert rows["is_first"][:, 0].all() and rows["is_last"][:, -1].all()
    assert not ours["is_first"][:, 0].all()


def with_states(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Columns with a state that says which row of which environment it is of, and what is never written."""
    number = np.arange(columns["rewards"].size, dtype=np.int32).reshape(columns["rewards"].shape)
    return {**columns, "state_in": {"h": np.float32(number), "z": np.uint8(number % 100), "stays": number}}


def written(shape: tuple[int, ...], is_last: np.ndarray, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Values that come once each, and which of them are written: half of those that are no last observations."""
    rng = np.random.default_rng(seed)
    values = np.arange(is_last.size).reshape(is_last.shape)
    return {"h": np.float32(-1 - values), "z": np.uint8(100 + values % 100)}, (rng.random(shape) < 0.5) & ~is_last


def test_values_are_written_to_drawn_items_on_the_device_that_are_still_there():
    replay = DeviceReplay(
        capacity=NUM_ENVS * NUM_ROWS,
        num_envs=NUM_ENVS,
        batch_size=6,
        extra_columns=("state_in",),
        keep_terminal_obs=True,
    )
    columns = with_states(rollout(16, seed=5))
    add = jax.jit(replay.add)
    old = add(replay.init(columns), jax.tree.map(lambda x: x[:NUM_ROWS], columns))
    batch, drawn = jax.jit(lambda state: device_windows(replay, state, jax.random.key(1), LENGTH))(old)
    assert batch["state_in"]["h"].shape == (6,)
    np.testing.assert_array_equal(batch["state_in"]["stays"], NUM_ENVS * drawn.rows[:, 0] + drawn.envs[:, 0])
    values, where = written((6, LENGTH), np.asarray(batch["is_last"]), seed=0)
    put = jax.jit(lambda state: put_on_device(replay, state, drawn, "state_in", values, where))
    rows, envs = np.asarray(drawn.rows), np.asarray(drawn.envs)
    for num_rows in (NUM_ROWS, NUM_ROWS + 4):
        state = old if num_rows == NUM_ROWS else add(old, jax.tree.map(lambda x: x[NUM_ROWS : NUM_ROWS + 4], columns))
        steps = state.layout.unpack(put(state).ring)
        before = state.layout.unpack(state.ring)
        expected = {name: np.array(before["columns"]["state_in"][name]) for name in ("h", "z")}
        for place in np.ndindex(rows.shape):
            if where[place] and rows[place] >= num_rows - NUM_ROWS:
                for name, value in values.items():
                    expected[name][envs[place], rows[place] % NUM_ROWS] = value[place]
        assert (expected["h"] < 0).any()
        before["columns"]["state_in"] |= expected
        jax.tree.map(np.testing.assert_array_equal, steps, before)


def test_values_are_written_to_drawn_items_on_the_host_that_are_still_there():
    columns = with_states(rollout(60, seed=4))
    buffer = EpisodeReplayBuffer(capacity=40, seed=0)
    for i in range(6):
        buffer.add_block(jax.tree.map(lambda x, i=i: x[5 * i : 5 * i + 5], columns), stream=0, serial=i)
    batch, drawn = host_windows(buffer, 20, LENGTH, extra_columns=["state_in"])
    first = {tuple(obs): number for obs, number in zip(columns["obs"].reshape(-1, 3).tolist(), range(120), strict=True)}
    assert batch["state_in"]["stays"].tolist() == [first[tuple(obs)] for obs in batch["obs"][:, 0].tolist()]
    values, where = written((20, LENGTH), batch["is_last"], seed=0)
    held = buffer.get_state()["data"]["store"]["parts"]
    kept = jax.tree.map(np.copy, held)
    buffer.add_block(jax.tree.map(lambda x: x[30:35], columns), stream=0, serial=6)
    put_on_host(buffer, drawn, "state_in", values, where)
    jax.tree.map(np.testing.assert_array_equal, held, kept)
    expected = {}
    for place in np.ndindex(drawn.shape):
        if where[place]:
            expected[first[tuple(batch["obs"][place].tolist())]] = values["h"][place], values["z"][place]
    store = buffer._store
    rows = store.steps()
    state = {name: store.extra("state_in")[name][rows] for name in ("h", "z", "stays")}
    is_new = state["h"] < 0
    assert 0 < is_new.sum() < len(expected)
    for number, h, z in zip(state["stays"].tolist(), state["h"], state["z"], strict=True):
        assert (h, z) == expected.get(number, (number, number % 100))


@pytest.mark.parametrize(
    ("changes", "length", "named"),
    [({"keep_terminal_obs": False}, 4, "keep_terminal_obs"), ({"alpha": 0.5}, 4, "alpha"), ({}, 0, "length=0")],
)
def test_memories_that_cannot_give_windows_refuse(changes, length, named):
    settings = {"capacity": 20, "num_envs": 2, "batch_size": 4, "keep_terminal_obs": True} | changes
    replay = DeviceReplay(**settings)
    state = replay.init(rollout(1, seed=0))
    with pytest.raises(ValueError, match=named):
        device_windows(replay, state, jax.random.key(0), length)


def test_rewards_are_clipped_where_items_get_them():
    columns = rollout(20, seed=2)
    columns["rewards"] *= 100
    replay = DeviceReplay(capacity=40, num_envs=2, batch_size=50, clip_rewards=True, keep_terminal_obs=True)
    state = jax.jit(replay.add)(replay.init(columns), columns)
    batch, _ = jax.jit(lambda state: device_windows(replay, state, jax.random.key(0), 5))(state)
    assert set(np.unique(batch["rewards"])) <= {-1.0, 0.0, 1.0}
