"""Tables of other writers: every one is read as the episodes that it is of, or refused with the fix."""

from __future__ import annotations

import contextlib
import datetime
import decimal
import json
import logging
import pickle
import sys
import uuid

import gymnasium as gym
import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gymnasium.vector import AutoresetMode

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.summary import summary_of
from jaxrl_stack.policy.recorded_episodes import whole_episodes

LENGTHS, TERMINATES = (5, 3, 7, 4, 2, 6), (True, False, True, True, False, True)
OBS, ACTIONS = gym.spaces.Box(-10, 10, (3,)), gym.spaces.Discrete(2)
PAIR = gym.spaces.Dict(a=gym.spaces.Box(-10, 10, (2,)), b=gym.spaces.Box(-10, 10, (1,)))
IMAGE = gym.spaces.Box(0, 255, (4, 4, 3), np.uint8)


def episodes(
    observe=lambda rng, n: rng.normal(size=(n, 3)).astype(np.float32), act=lambda rng, n: rng.integers(0, 2, n)
):
    rng = np.random.default_rng(0)
    return [
        {"obs": observe(rng, n + 1), "actions": act(rng, n), "rewards": rng.normal(size=n).astype(np.float32)}
        for n in LENGTHS
    ]


EPISODES = episodes()


def rows(made=EPISODES, *, order="sorted", first=0):
    """A dict for each step; in turns of two environments, or shuffled."""
    found = []
    for number, (own, terminates) in enumerate(zip(made, TERMINATES[: len(made)], strict=True)):
        n = len(own["rewards"])
        for t in range(n):
            step = {name: own[name][t].tolist() for name in ("obs", "actions", "rewards")}
            ends = {"terminateds": t == n - 1 and terminates, "truncateds": t == n - 1 and not terminates}
            found.append({"eps_id": number, "t": t + first, **step, "new_obs": own["obs"][t + 1].tolist(), **ends})
    if order == "shuffled":
        return [found[i] for i in np.random.default_rng(1).permutation(len(found))]
    if order == "turns":
        envs = [[row for row in found if row["eps_id"] % 2 == env] for env in (0, 1)]
        longest = max(map(len, envs))
        return [dict(own[i], env=env) for i in range(longest) for env, own in enumerate(envs) if i < len(own)]
    return found


def table(found, *, drop=(), rename=None, **changes):
    rename, drop = rename or {}, {*drop, "env"} - set(changes)
    columns = {name: [row[name] for row in found] for name in found[0] if name not in drop} | changes
    return pa.table({rename.get(name, name): own for name, own in columns.items()})


def parquet(folder, *tables, **kwargs):
    for number, own in enumerate(tables):
        pq.write_table(own, folder / f"part{number}.parquet", **kwargs)
    return folder


def of(column, found=None):
    return [row[column] for row in (rows() if found is None else found)]


# Each writes a table into a folder; what is read are the steps of `EPISODES`, in whole episodes.


def in_turns(folder):
    return parquet(folder, table(rows(order="turns")))


def in_turns_without_step_numbers(folder):
    return parquet(folder, table(rows(order="turns"), drop=["t"]))


def in_turns_over_row_groups(folder):
    return parquet(folder, table(rows(order="turns")), row_group_size=5)


def in_turns_over_files(folder):
    found = rows(order="turns")
    return parquet(folder, *(table(found[i : i + 8]) for i in range(0, len(found), 8)))


def shuffled(folder):
    return parquet(folder, table(rows(order="shuffled")))


def shuffled_over_files(folder):
    found = rows(order="shuffled")
    return parquet(folder, *(table(found[i : i + 8]) for i in range(0, len(found), 8)))


def ids_of_each_file(folder, order="sorted", drop=()):
    made = [EPISODES[:3], EPISODES[3:]]
    tables = []
    for number, own in enumerate(made):
        flags = TERMINATES[3 * number :]
        found = [
            dict(row, terminateds=row["t"] == LENGTHS[3 * number + row["eps_id"]] - 1 and flags[row["eps_id"]])
            | {"truncateds": row["t"] == LENGTHS[3 * number + row["eps_id"]] - 1 and not flags[row["eps_id"]]}
            for row in rows(own, order=order)
        ]
        tables.append(table(found, drop=drop))
    return parquet(folder, *tables)


def ids_of_each_file_without_step_numbers(folder):
    return ids_of_each_file(folder, drop=["t"])


def ids_of_each_file_in_turns(folder):
    return ids_of_each_file(folder, order="turns")


def ids_of_each_file_shuffled(folder):
    return ids_of_each_file(folder, order="shuffled")


def ids_are_numbers_of_environments(folder):
    found = rows(order="turns")
    return parquet(folder, table(found, eps_id=of("env", found)))


def environments_without_ids(folder):
    found = rows(order="turns")
    return parquet(folder, table(found, drop=["eps_id", "t"], env_id=of("env", found)))


def ids_count_for_each_environment(folder):
    found = rows(order="turns")
    ids = [row["eps_id"] // 2 for row in found]
    return parquet(folder, table(found, eps_id=ids, env_index=of("env", found)))


def ids_are_uuids(folder):
    return parquet(folder, table(rows(), eps_id=[uuid.UUID(int=own + 7).bytes for own in of("eps_id")]))


def ids_are_categories(folder):
    return parquet(folder, table(rows(), eps_id=pa.array([f"e{own}" for own in of("eps_id")]).dictionary_encode()))


def ids_are_folders(folder):
    pq.write_to_dataset(table(rows()), folder, partition_cols=["eps_id"])
    return folder


def steps_count_from_one(folder):
    return parquet(folder, table(rows(first=1)), row_group_size=5)


def steps_count_over_episodes(folder):
    return parquet(folder, table(rows(), t=list(range(sum(LENGTHS)))))


def steps_are_floats(folder):
    return parquet(folder, table(rows(), t=[float(t) for t in of("t")]))


def names_of_gymnasium(folder):
    names = {"obs": "observation", "actions": "action", "rewards": "reward", "terminateds": "terminated"}
    names |= {"truncateds": "truncated", "new_obs": "next_observation", "eps_id": "episode"}
    return parquet(folder, table(rows(), rename=names))


def done_beside_truncated(folder):
    done = [int(row["terminateds"] or row["truncateds"]) for row in rows()]
    return parquet(folder, table(rows(), rename={"terminateds": "done"}, terminateds=done))


def a_column_per_number(folder):
    spread = {f"{name}_{i}": [own[i] for own in of(name)] for name in ("obs", "new_obs") for i in range(3)}
    return parquet(folder, table(rows(), drop=["obs", "new_obs"], **spread))


def lists_of_other_types(folder):
    obs = pa.array([[x + 1e-9 for x in own] for own in of("obs")], pa.list_(pa.float64(), 3))
    return parquet(folder, table(rows(), obs=obs, rewards=[decimal.Decimal(f"{own:.6f}") for own in of("rewards")]))


def arrays_as_bytes(folder):
    packed = {name: [np.float32(own).tobytes() for own in of(name)] for name in ("obs", "new_obs")}
    return parquet(folder, table(rows(), **packed))


def columns_of_nothing(folder):
    nothing = pa.nulls(sum(LENGTHS))
    return parquet(folder, table(rows(), agent_id=nothing, infos=nothing, notes=nothing))


def no_next_observation_at_the_end(folder):
    after = [None if row["terminateds"] else row["new_obs"] for row in rows()]
    return parquet(folder, table(rows(), new_obs=after))


def actions_in_lists(folder):
    return parquet(folder, table(rows(), actions=[[float(own)] for own in of("actions")]))


def pandas_with_its_index(folder):
    pd.DataFrame(rows()).sample(frac=1, random_state=0).to_parquet(folder / "x.parquet")
    return folder


def an_empty_file_beside(folder):
    return parquet(folder, table(rows()).slice(0, 0), table(rows()))


def files_of_two_formats_and_names(folder):
    found, rest = rows(), rows()[sum(LENGTHS[:2]) :]
    parquet(folder, table(found[: sum(LENGTHS[:2])]))
    names = {"obs": "observations", "new_obs": "next_observations", "eps_id": "episode_id"}
    np.savez(folder / "rest.npz", **{names.get(name, name): np.array(of(name, rest)) for name in rest[0]})
    return folder


def stable_baselines_buffer_of_one_environment(folder):
    arrays = {name: np.array(of(name)) for name in rows()[0]}
    done = arrays["terminateds"] | arrays["truncateds"]
    np.savez(
        folder / "buffer.npz",
        observations=arrays["obs"][:, None],
        next_observations=arrays["new_obs"][:, None],
        actions=arrays["actions"][:, None, None],
        rewards=arrays["rewards"][:, None],
        dones=done[:, None].astype(np.float32),
        timeouts=arrays["truncateds"][:, None].astype(np.float32),
        pos=np.array(len(done)),
    )
    return folder


def rllib_json(folder):
    lines = []
    for number, (own, terminates) in enumerate(zip(EPISODES, TERMINATES, strict=True)):
        n = len(own["rewards"])
        for part in (slice(0, n // 2), slice(n // 2, n)):
            t = np.arange(n)[part]
            batch = {"eps_id": [number] * len(t), "obs": own["obs"][:-1][part], "new_obs": own["obs"][1:][part]}
            batch |= {name: own[name][part] for name in ("actions", "rewards")} | {"t": t, "infos": [{}] * len(t)}
            batch |= {"terminateds": (t == n - 1) & terminates, "truncateds": (t == n - 1) & (not terminates)}
            lines.append({"type": "SampleBatch", **{name: np.asarray(x).tolist() for name, x in batch.items()}})
    (folder / "out.json").write_text("\n".join(json.dumps(line) for line in lines if line["t"]))
    return folder


def own_recording_through_pandas(folder):
    """Metadata is gone then, and rows with the last observations are there."""
    is_final = [row["t"] < 0 for row in rows()]
    found = []
    for number, (own, terminates) in enumerate(zip(EPISODES, TERMINATES, strict=True)):
        steps = [row for row in rows() if row["eps_id"] == number]
        last = {**steps[-1], "t": len(steps), "obs": own["obs"][-1].tolist(), "actions": 0, "rewards": 0.0}
        found += [dict(row, is_final=False) for row in steps]
        found.append({**last, "terminateds": False, "truncateds": False, "is_final": True})
        assert terminates == steps[-1]["terminateds"]
    assert not any(is_final)
    return parquet(folder, table(found, drop=["new_obs"]))


READ = [
    *(in_turns, in_turns_without_step_numbers, in_turns_over_row_groups, in_turns_over_files, shuffled),
    *(shuffled_over_files, ids_of_each_file, ids_of_each_file_without_step_numbers, ids_of_each_file_in_turns),
    *(ids_of_each_file_shuffled, ids_are_numbers_of_environments, environments_without_ids),
    *(ids_count_for_each_environment, ids_are_uuids, ids_are_categories, ids_are_folders, steps_count_from_one),
    *(steps_count_over_episodes, steps_are_floats, names_of_gymnasium, done_beside_truncated, a_column_per_number),
    *(lists_of_other_types, arrays_as_bytes, columns_of_nothing, no_next_observation_at_the_end, actions_in_lists),
    *(pandas_with_its_index, an_empty_file_beside, files_of_two_formats_and_names),
    *(stable_baselines_buffer_of_one_environment, rllib_json, own_recording_through_pandas),
]


def transitions(obs, actions, rewards, after, terminated):
    """A set of steps, by their numbers."""
    parts = zip(obs, actions, rewards, after, terminated, strict=True)
    return sorted(
        (np.round(o, 3).tolist(), int(a), round(float(r), 3), None if d else np.round(n, 3).tolist(), bool(d))
        for o, a, r, n, d in parts
    )


def expected(made=EPISODES, *, gives_up=False):
    found = []
    for own, terminates in zip(made, TERMINATES, strict=True):
        n = len(own["rewards"]) - (gives_up and not terminates)
        ends = (np.arange(n) == len(own["rewards"]) - 1) & terminates
        found += transitions(own["obs"][:n], own["actions"][:n], own["rewards"][:n], own["obs"][1 : n + 1], ends)
    return sorted(found)


def read(folder, **options):
    spaces = {"observation_space": OBS, "action_space": ACTIONS}
    return open_dataset(str(folder), options=ReadOptions(**{**spaces, **options}))


def found_in(steps):
    at = np.flatnonzero(~steps.is_final)
    obs, columns = steps.columns["obs"], steps.columns
    return transitions(obs[at], columns["actions"][at], columns["rewards"][at], obs[at + 1], columns["terminateds"][at])


@pytest.mark.parametrize("write", READ, ids=lambda write: write.__name__)
def test_steps_and_episodes_are_those_that_were_recorded(tmp_path, write):
    data = read(write(tmp_path))
    steps = data.read_all()
    assert found_in(steps) == expected() and steps.num_pieces == len(EPISODES)
    returns = sorted(float(own["rewards"].sum()) for own in EPISODES)
    # Training, estimates and summaries see the same episodes, whether files are read at once or piece by piece.
    whole = whole_episodes(steps)
    assert (len(whole.rows), whole.num_left_out) == (len(EPISODES), 0)
    parts = (data.read_parts(), (data.read(piece) for piece in data.pieces))
    for found in (summary_of(own) for own in (parts if write not in (shuffled_over_files,) else parts[:1])):
        assert (found.num_episodes, found.num_cut) == (len(EPISODES), 0)
        np.testing.assert_allclose(sorted(found.returns), returns, atol=1e-4)


def test_a_plain_table_in_order_has_its_next_observations_in_the_next_rows(tmp_path):
    for number, drop in enumerate((["new_obs"], ["new_obs", "eps_id", "t"])):
        folder = tmp_path / str(number)
        folder.mkdir()
        steps = read(parquet(folder, table(rows(), drop=drop))).read_all()
        assert found_in(steps) == expected(gives_up=True)


def test_what_is_not_recorded_is_no_column(tmp_path):
    steps = read(parquet(tmp_path, table(rows(), drop=["rewards", "terminateds", "truncateds"]))).read_all()
    assert set(steps.columns) == {"obs", "actions", "truncateds"} and steps.num_pieces == len(EPISODES)
    found = summary_of([steps])
    assert np.isnan(found.returns).all() and found.as_json()["returns"] is None and found.lengths.sum() == sum(LENGTHS)
    with pytest.raises(ValueError, match=r"no \['rewards', 'terminateds'\].*input_read_schema=\{'rewards'"):
        whole_episodes(steps)


STRUCTS = {name: [{"a": own[:2], "b": own[2:]} for own in of(name)] for name in ("obs", "new_obs")}
NUMBERED = {name: [{"0": own[:2], "1": own[2:]} for own in of(name)] for name in ("obs", "new_obs")}
SPREAD = {f"{name}/{key}": [own[key] for own in STRUCTS[name]] for name in STRUCTS for key in "ab"}
PARTS = {f"{name}_{key}": [own[key] for own in NUMBERED[name]] for name in NUMBERED for key in "01"}


@pytest.mark.parametrize(
    ("columns", "space"),
    [
        (STRUCTS, PAIR),
        (SPREAD, PAIR),
        (NUMBERED, gym.spaces.Tuple(PAIR.spaces.values())),
        (PARTS, gym.spaces.Tuple(PAIR.spaces.values())),
    ],
    ids=["struct", "columns by key", "struct of numbers", "columns by number"],
)
def test_observations_are_structures(tmp_path, columns, space):
    steps = read(
        parquet(tmp_path, table(rows(), drop=["obs", "new_obs"], **columns)), observation_space=space
    ).read_all()
    obs = steps.columns["obs"]
    first, second = (obs["a"], obs["b"]) if isinstance(obs, dict) else obs
    whole = np.concatenate([first, second], axis=1)
    np.testing.assert_allclose(whole[steps.episode == 0], EPISODES[0]["obs"], rtol=1e-6)


@pytest.mark.parametrize("form", ["nested lists", "flat lists", "bytes"])
def test_images_are_in_lists_or_bytes(tmp_path, form):
    made = episodes(observe=lambda rng, n: rng.integers(0, 256, (n, 4, 4, 3)).astype(np.uint8))
    found = rows(made)
    as_form = {"nested lists": lambda x: x, "flat lists": np.ravel, "bytes": lambda x: np.uint8(x).tobytes()}[form]
    columns = {name: [as_form(own) for own in of(name, found)] for name in ("obs", "new_obs")}
    steps = read(parquet(tmp_path, table(found, **columns)), observation_space=IMAGE).read_all()
    np.testing.assert_array_equal(steps.columns["obs"][steps.episode == 2], made[2]["obs"])


def test_choices_of_environments_count_from_their_start(tmp_path):
    made = episodes(observe=lambda rng, n: rng.integers(1, 5, n))
    folder = parquet(tmp_path, table(rows(made)))
    assert read(folder, observation_space=gym.spaces.Discrete(4, start=1)).read_all().columns["obs"].max() == 4
    with pytest.raises(
        BadDataError, match=r"row \d+: The observation 4 is not in Discrete\(4\).*Set observation_space"
    ):
        read(folder, observation_space=gym.spaces.Discrete(4)).read_all()


BOX = gym.spaces.Box(-2, 2, (1,))


def continuous(scale):
    return episodes(act=lambda rng, n: rng.uniform(-scale, scale, (n, 1)).astype(np.float32))


@pytest.mark.parametrize(
    ("scale", "more", "message"),
    [
        (1, {}, None),
        (2, {}, r"outside of \[-1, 1\], the range of module outputs for Box.*normalize_actions=False"),
        (9, {}, r"outside of \[-1, 1\], the range of module outputs for Box.*or clip the actions"),
        (9, {"action_logp": [0.0] * sum(LENGTHS)}, None),
    ],
    ids=["a module's", "an environment's", "nobody's", "samples of a Gaussian"],
)
def test_actions_are_in_the_bounds_in_which_modules_act(tmp_path, scale, more, message):
    folder = parquet(tmp_path, table(rows(continuous(scale)), **more))
    if message is None:
        assert np.abs(read(folder, action_space=BOX).read_all().columns["actions"]).max() > 0.9 * scale
        return
    with pytest.raises(BadDataError, match=r"part0.parquet, row \d+: The action .*" + message):
        read(folder, action_space=BOX).read_all()
    if scale == 2:
        assert read(folder, action_space=BOX, normalize_actions=False).read_all().num_steps == sum(LENGTHS)


def masked(allowed):
    obs = [{"action_mask": allowed(row), "observations": row["obs"]} for row in rows()]
    return table(rows(), drop=["new_obs"], obs=obs)


def test_actions_that_their_mask_forbids_are_refused(tmp_path):
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(2), observations=OBS)
    parquet(tmp_path, masked(lambda row: [row["actions"] == 0, row["actions"] == 1]))
    assert read(tmp_path, observation_space=space).read_all().num_steps == sum(LENGTHS) - TERMINATES.count(False)
    parquet(tmp_path, masked(lambda row: [row["t"] != 1, row["t"] != 1]))
    assert read(tmp_path, observation_space=space).read_all().num_steps, "no action is allowed: all are equally likely"
    parquet(
        tmp_path, masked(lambda row: [row["actions"] == 0 or row["t"] != 2, row["actions"] == 1 or row["t"] != 2][::-1])
    )
    with pytest.raises(BadDataError, match="row 2: The action . is forbidden by the 'action_mask' of its observation"):
        read(tmp_path, observation_space=space).read_all()


def with_nan():
    obs = of("obs")
    obs[4] = [0.0, float("nan"), 0.0]
    return table(rows(), obs=obs, drop=["new_obs"])


def long():
    """Two episodes of 30 steps, shuffled."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(2, 31, 3)).round(3)
    found = [
        {
            "eps_id": e,
            "t": t,
            "obs": obs[e, t].tolist(),
            "actions": 0,
            "rewards": 0.0,
            "new_obs": obs[e, t + 1].tolist(),
        }
        | {"terminateds": t == 29, "truncateds": False}
        for e in range(2)
        for t in range(30)
    ]
    return [found[i] for i in rng.permutation(len(found))]


LONG = long()
TIMES = [datetime.datetime(2024, 1, 1) + datetime.timedelta(seconds=i) for i in range(sum(LENGTHS))]
TIME_MAJOR = {
    "obs": np.zeros((9, 4, 3)),
    "actions": np.zeros((9, 4)),
    "rewards": np.zeros((9, 4)),
    "dones": np.zeros((9, 4)),
}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (table(LONG, drop=["t"]), "new_obs of this row differs from obs of row .*write a column t.*'eps_id': ''"),
        (table(rows(), t=[4 * t for t in of("t")]), "After t=0 comes 4.*input_read_schema={'t': ''}"),
        (table(rows(order="turns"), drop=["eps_id", "new_obs"]), "After t=0 comes 0.*add a column eps_id"),
        (table(rows(order="shuffled"), eps_id=[own % 2 for own in of("eps_id", rows(order="shuffled"))]), "Several"),
        (table(rows(), t=TIMES), r"t cannot be read: the column's values are times.*write numbers"),
        (table(rows(), t=[t + 0.5 for t in of("t")]), "row 0: The column t counts steps, but has the value 0.5"),
        (table(rows(), actions=["left"] * sum(LENGTHS)), "actions holds texts: write numbers"),
        (table(rows(), obs=[json.dumps(own) for own in of("obs")], drop=["new_obs"]), r"texts of numbers.*json\.loads"),
        (
            table(rows(), actions=[own + 0.5 for own in of("actions")]),
            r"row 0: .*actions has the value .\.5.*whole numbers",
        ),
        (table(rows(), actions=[7] * sum(LENGTHS)), r"row 0: The action 7 is not in Discrete\(2\).*Set action_space"),
        (
            table(rows(), new_obs=[None] * 7 + of("new_obs")[7:]),
            "row 0: The step does not terminate, but has no new_obs",
        ),
        (table(rows(), obs=[b"\x89PNG" + bytes(8)] * sum(LENGTHS), drop=["new_obs"]), r"PNG files.*PIL\.Image\.open"),
        (table(rows(), drop=["obs", "new_obs"], obs_0=of("rewards"), obs_2=of("rewards")), "number 1 is missing"),
        (table(rows(), drop=["obs", "new_obs"], obs_2=of("rewards"), obs_3=of("rewards")), "number 1 is missing"),
        (table(rows(), agent_id=["a", "b"] * (sum(LENGTHS) // 2) + ["a"]), "steps of several agents.*to files"),
        (with_nan(), "row 4: The column obs has numbers that are not finite. Remove the episode"),
        (table(rows(), new_obs=[own[:2] for own in of("new_obs")]), "new_obs has the shapes.*'new_obs': ''"),
    ],
)
def test_a_table_that_cannot_be_read_is_refused_with_the_fix(tmp_path, content, message):
    with pytest.raises(BadDataError, match=message) as raised:
        read(parquet(tmp_path, content)).read_all()
    assert "part0.parquet" in str(raised.value)


def test_shuffled_steps_without_ids_are_steps_of_their_own_and_it_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        steps = read(parquet(tmp_path, table(rows(order="shuffled"), drop=["eps_id", "t"]))).read_all()
    assert found_in(steps) == expected() and "sequences, returns and lengths of episodes are unknown" in caplog.text
    schema = {"eps_id": "", "t": ""}
    assert found_in(read(parquet(tmp_path, table(rows(order="shuffled"))), schema=schema).read_all()) == expected()


def test_pieces_of_a_table_that_is_shuffled_over_row_groups_ask_for_order(tmp_path):
    data = read(parquet(tmp_path, table(LONG), row_group_size=10))
    assert data.read_all().num_pieces == 2 and data.read_all().num_steps == 60
    with pytest.raises(BadDataError, match="Sort the table by eps_id and t"):
        [data.read(piece) for piece in data.pieces]


def stepped(mode, max_steps, num_steps=60):
    """Rows of a vector environment of gymnasium's, and the returns of its episodes."""
    envs = gym.make_vec("CartPole-v1", 4, "sync", vector_kwargs={"autoreset_mode": mode}, max_episode_steps=max_steps)
    obs, _ = envs.reset(seed=0)
    rng, found, returns, now = np.random.default_rng(0), [], [], np.zeros(4)
    for _ in range(num_steps):
        actions = rng.integers(0, 2, 4)
        after, rewards, terminated, truncated, _ = envs.step(actions)
        now += rewards
        for i in range(4):
            row = {"env_id": i, "obs": obs[i].tolist(), "actions": int(actions[i]), "rewards": float(rewards[i])}
            ends = {"terminateds": bool(terminated[i]), "truncateds": bool(truncated[i])}
            found.append({**row, "new_obs": after[i].tolist(), **ends})
            if terminated[i] or truncated[i]:
                returns.append(float(now[i]))
                now[i] = 0
        obs = after
    envs.close()
    spaces = {"observation_space": envs.single_observation_space, "action_space": envs.single_action_space}
    return found, sorted(returns), spaces


@pytest.mark.parametrize("max_steps", [500, 11], ids=["terminated", "truncated"])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP], ids=lambda mode: mode.name)
def test_steps_in_which_a_vector_environment_only_reset_are_no_steps(tmp_path, mode, max_steps, caplog):
    found, returns, spaces = stepped(mode, max_steps)
    folder = parquet(tmp_path, table(found))
    if mode is AutoresetMode.SAME_STEP and max_steps == 11:
        with pytest.raises(BadDataError, match=r"its next observation is the first observation.*final_obs"):
            read(folder, **spaces).read_all()
        return
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        steps = read(folder, **spaces).read_all()
    summary = summary_of([steps])
    assert sorted(summary.returns) == sorted(summary.lengths) == returns
    assert ("are left out" in caplog.text) == (mode is AutoresetMode.NEXT_STEP)


def test_a_row_that_is_an_episode_asks_for_sample_batches(tmp_path):
    names = {"obs": "observations", "actions": "actions", "rewards": "rewards"}
    columns = {new: [own[name].tolist()[: len(own["rewards"])] for own in EPISODES] for name, new in names.items()}
    ends = [[False] * (len(own["rewards"]) - 1) + [True] for own in EPISODES]
    parquet(tmp_path, pa.table({**columns, "dones": ends}))
    with pytest.raises(BadDataError, match=r"rewards has lists .5 entries.*input_read_sample_batches=True"):
        read(tmp_path).read_all()
    steps = read(tmp_path, sample_batches=True).read_all()
    assert steps.num_pieces == len(EPISODES) and steps.num_steps == sum(LENGTHS)


def test_outputs_of_modules_have_other_names_too_and_texts_are_left_out(tmp_path):
    found = {name: np.array(of(name)) for name in rows()[0]}
    np.savez(tmp_path / "x.npz", **found, logp=np.zeros(sum(LENGTHS)), infos=np.array([{}] * sum(LENGTHS), object))
    steps = read(tmp_path, schema={"action_logp": "logp"}).read_all()
    assert "action_logp" in steps.columns and found_in(steps) == expected() and "infos" not in steps.columns
    pq.write_table(table(rows(), logp=[0.0] * sum(LENGTHS)), tmp_path / "y.pq")
    assert "action_logp" in read(tmp_path / "y.pq", schema={"action_logp": "logp"}).read_all().columns
    with pytest.raises(BadDataError, match=r"table\['obs'\] = table\[\['x', 'y'\]\]\.values\.tolist\(\)"):
        read(parquet(tmp_path, table(rows(), rename={"obs": "x"})))


def test_states_that_repeat_are_no_resets(tmp_path):
    rng = np.random.default_rng(0)
    places = rng.integers(0, 3, (200, 2)).astype(float).tolist()  # few states, in which episodes begin and end
    columns = {"obs": places[:-1], "new_obs": places[1:], "actions": [0] * 199, "rewards": [0.0] * 199}
    ends = [i % 5 == 4 for i in range(199)]
    columns |= {"truncateds": ends, "terminateds": [False] * 199, "eps_id": [i // 5 for i in range(199)]}
    steps = read(parquet(tmp_path, pa.table(columns)), observation_space=gym.spaces.Box(0, 3, (2,))).read_all()
    assert steps.num_steps == 199


def test_an_entry_of_a_list_that_is_nothing_is_named_with_its_row(tmp_path):
    obs = of("obs")
    obs[6] = [0.0, None, 0.0]
    with pytest.raises(
        BadDataError, match="row 6: The column obs cannot be read: a list of this column contains a null entry"
    ):
        read(parquet(tmp_path, table(rows(), obs=obs, drop=["new_obs"]))).read_all()


def test_arrays_by_time_and_environment_are_refused(tmp_path):
    np.savez(tmp_path / "storage.npz", **TIME_MAJOR)
    with pytest.raises(BadDataError, match=r"rewards has the shape \(9, 4\).*x\.swapaxes\(0, 1\)"):
        read(tmp_path).read_all()


def test_numbers_that_a_dtype_cannot_hold_are_named(tmp_path):
    made = episodes(observe=lambda rng, n: rng.integers(200, 400, (n, 4, 4, 3)))
    folder = parquet(tmp_path, table(rows(made)))
    with pytest.raises(
        BadDataError, match=r"row 0: The column obs has the value .* are read as uint8, .* from 0 to 255\. Set the"
    ):
        read(folder, observation_space=IMAGE).read_all()
    wide = gym.spaces.Box(0, 1 << 60, (3,), np.int64)
    made = episodes(observe=lambda rng, n: rng.integers(1 << 40, 1 << 41, (n, 3)))
    with pytest.raises(BadDataError, match="read as int32, .*set a float32 Box"):
        read(parquet(tmp_path, table(rows(made))), observation_space=wide).read_all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("steps.csv", r"pandas\.read_csv\('.*steps\.csv'\)\.to_parquet"),
        ("steps.json", r"pandas\.read_json\('.*steps\.json', lines=True\)\.to_parquet"),
        ("steps.pkl", r"Loading a pickle runs its code.*numpy\.savez"),
    ],
)
def test_files_of_other_kinds_are_refused_with_their_conversion(tmp_path, name, message, caplog):
    path = tmp_path / name
    lines = {"orient": "records", "lines": True} if name.endswith("json") else {}
    getattr(pd.DataFrame(rows()), {"csv": "to_csv", "json": "to_json", "pkl": "to_pickle"}[path.suffix[1:]])(
        path, **lines
    )
    for named in (path, tmp_path):
        with pytest.raises(BadDataError, match=message):
            read(named)
    with caplog.at_level(logging.WARNING, "jaxrl_stack"):
        assert found_in(read(parquet(tmp_path, table(rows()))).read_all()) == expected()
    assert "1 files there are not read" in caplog.text


def test_d3rlpy_writes_an_array_per_episode(tmp_path):
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["columns"], file["num_episodes"] = ["observations", "actions", "rewards", "terminated"], len(EPISODES)
        for number, own in enumerate(EPISODES):
            file[f"observations_{number}"] = own["obs"][:-1]
            file[f"actions_{number}"], file[f"rewards_{number}"] = own["actions"][:, None], own["rewards"][:, None]
            file[f"terminated_{number}"] = TERMINATES[number]
    data = read(tmp_path)
    assert found_in(data.read_all()) == expected(gives_up=True) and data.num_bytes(("obs",)) == sum(LENGTHS) * 12


def test_the_size_of_tables_is_known_before_they_are_read(tmp_path):
    found = rows()
    folders = [tmp_path / str(number) for number in range(3)]
    for folder in folders:
        folder.mkdir()
    parquet(folders[0], table(found))
    parquet(folders[1], table(found), row_group_size=4)
    parquet(folders[2], *(table(found[i : i + 4]) for i in range(0, len(found), 4)))
    for folder in folders:
        data = read(folder)
        actual = data.read_all().only(("obs", "actions")).num_bytes
        assert actual * 0.7 < data.num_bytes(("obs", "actions")) < actual * 1.3
        assert data.num_steps == sum(LENGTHS)


@pytest.fixture
def no_ray_types():
    """The process as one that has not imported ``ray.data``, whose types refuse descriptions of older releases."""
    made = {}
    for name in ("arrow_tensor", "arrow_tensor_v2", "arrow_variable_shaped_tensor"):
        with contextlib.suppress(pa.ArrowKeyError):
            pa.unregister_extension_type(f"ray.data.{name}")
            made[name] = sys.modules["ray.data._internal.tensor_extensions.arrow"]
    yield
    for name, module in made.items():
        kind = {"arrow_tensor": "ArrowTensorType", "arrow_tensor_v2": "ArrowTensorTypeV2"}.get(name)
        number = (0,), pa.int64()
        pa.register_extension_type(
            module.ArrowVariableShapedTensorType(pa.int64(), 0) if kind is None else getattr(module, kind)(*number)
        )


def tensors(folder, described, name=b"ray.data.arrow_tensor_v2"):
    """A table with observations ``[4, 2]`` in the form of Ray Data."""
    metadata = {b"ARROW:extension:name": name, b"ARROW:extension:metadata": described}
    obs = pa.array([(np.arange(8.0) + i).tolist() for i in range(6)])
    field = pa.field("obs", obs.type, metadata=metadata)
    found = table([{"actions": 0, "rewards": 1.0, "terminateds": i == 5} for i in range(6)])
    return parquet(folder, found.add_column(0, field, obs))


@pytest.mark.parametrize(
    "described", [b"[4, 2]", *(pickle.dumps((4, 2), protocol) for protocol in (2, 3, 4, 5))], ids=repr
)
def test_tensors_of_ray_have_their_shape(tmp_path, described, no_ray_types):
    obs = read(tensors(tmp_path, described), observation_space=None).read_all().columns["obs"]
    np.testing.assert_array_equal(obs[2], (np.arange(8.0) + 2).reshape(4, 2))


def test_tensors_of_arrow_have_their_shape(tmp_path):
    obs = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(48.0).reshape(6, 4, 2))
    found = table([{"actions": 0, "rewards": 1.0, "terminateds": i == 5} for i in range(6)])
    steps = read(parquet(tmp_path, found.append_column("obs", obs)), observation_space=None).read_all()
    np.testing.assert_array_equal(steps.columns["obs"][:6], np.arange(48.0).reshape(6, 4, 2))


@pytest.mark.parametrize(
    ("described", "message"),
    [
        (pickle.dumps(print), r"The column obs .*the pickle names builtins\.print, which is not allowed.*\.tolist\(\)"),
        (pickle.dumps(np.dtype("f4")), r"the pickle names numpy\.dtype, which is not allowed"),
        (pickle.dumps([4, 2]), "the pickled shape is not a tuple of whole numbers"),
        (pickle.dumps((4, 2))[:-3], "not a pickle of numbers"),
        (pickle.dumps((4, 3)), r"The column obs declares the shape \(4, 3\), but has 8 numbers"),
        (pickle.dumps((-4, -2)), r"it is \(-4, -2\)"),
        (b"{", "Expecting property name"),
        (b"3", "not iterable"),
    ],
)
def test_other_shapes_of_tensors_are_refused(tmp_path, described, message, no_ray_types):
    with pytest.raises(BadDataError, match=message):
        read(tensors(tmp_path, described), observation_space=None).read_all()
    with pytest.raises(BadDataError, match="its rows have several shapes"):
        read(tensors(tmp_path, b"2", b"ray.data.arrow_variable_shaped_tensor"), observation_space=None).read_all()


def test_rows_without_ends_of_episodes_are_said_to_be_one(tmp_path, caplog):
    found = {name: of(name) for name in ("obs", "actions")}
    starts = [row["t"] == 0 for row in rows()]
    for flags, message in (
        ({}, "Write eps_id, if"),
        ({"is_first": starts}, r"table['eps_id'] = table['is_first'].cums"),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "jaxrl_stack"):
            assert read(parquet(tmp_path, pa.table(found | flags))).read_all().num_pieces == 1
        assert "no column that says where episodes end" in caplog.text and message in caplog.text
    caplog.clear()
    assert read(parquet(tmp_path, pa.table(found | {"eps_id": np.cumsum(starts)}))).read_all().num_pieces == len(
        LENGTHS
    )
    assert not caplog.text


@pytest.mark.parametrize("write", [parquet, lambda folder, own: np.savez(folder / "x.npz", **own)])
def test_rows_whose_id_is_not_a_number_have_no_id(tmp_path, write):
    found = {name: np.array(of(name)) for name in rows()[0]}
    found["eps_id"] = np.where(np.arange(sum(LENGTHS)) == 3, np.nan, found["eps_id"])
    write(tmp_path, pa.table({name: own.tolist() for name, own in found.items()}) if write is parquet else found)
    with pytest.raises(BadDataError, match="row 3: The row has no value in the column eps_id: write a value"):
        read(tmp_path).read_all()


def test_the_fix_is_named_for_values_that_are_no_numbers(tmp_path):
    words = table(rows()).drop_columns("actions").append_column("actions", [["left"] * sum(LENGTHS)])
    with pytest.raises(BadDataError, match=r"actions holds texts: .* table\['actions'\]\.map\(\{'left': 0, \.\.\.\}\)"):
        read(parquet(tmp_path, words)).read_all()
    odd = np.where(np.arange(sum(LENGTHS)) == 5, np.nan, np.array(of("actions")))
    with pytest.raises(BadDataError, match="row 5: The column actions has numbers that are not finite"):
        read(parquet(tmp_path, table(rows(), actions=odd))).read_all()
    np.savez(tmp_path / "x.npz", data=np.array({"obs": [1.0], "actions": [1]}, object))
    with pytest.raises(BadDataError, match=r"data is a pickled Python object.*allow_pickle=True\)\['data'\]\.item\(\)"):
        read(tmp_path / "x.npz")
    own = EPISODES[0]
    np.savez(tmp_path / "y.npz", **own)
    with pytest.raises(
        BadDataError, match=r"obs has 6 entries, but the data has 5 steps: write x\[:-1\] as obs, and x\[1:\]"
    ):
        read(tmp_path / "y.npz").read_all()
