"""SingleAgentEpisode: every chunk shows a window of one long trajectory."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
from gymnasium import spaces

from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer
from jaxrl_stack.utils.nested import batch, tree_leaves, tree_map

OBS_SPACE = spaces.Dict({"id": spaces.Discrete(1000), "pos": spaces.Box(-1000.0, 1000.0, (2,))})
ACT_SPACE = spaces.MultiDiscrete([7, 5])


def observation(t: int) -> dict:
    return {"id": t, "pos": np.array([t, -t], np.float32)}


def action(t: int) -> np.ndarray:
    return np.array([t % 7, t % 5])


def reward(t: int) -> float:
    return 0.5 * t


def outputs(t: int) -> dict:
    return {"logp": -float(t), "state_out": {"h": np.full(3, t, np.float32)}}


def step(episode: SingleAgentEpisode, **flags) -> None:
    t = episode.t
    episode.add_env_step(
        observation(t + 1), action(t), reward(t), {"t": t + 1}, extra_model_outputs=outputs(t), **flags
    )


def run(steps: int, **kwargs) -> SingleAgentEpisode:
    episode = SingleAgentEpisode(observation_space=OBS_SPACE, action_space=ACT_SPACE, **kwargs)
    episode.add_env_reset(observation(0), {"t": 0})
    for _ in range(steps):
        step(episode)
    return episode


def simple(steps: int = 5, lookback: int | str = 2, **kwargs) -> SingleAgentEpisode:
    """Observations 0, 1, ..; actions 10, 11, ..; rewards 0, 1, ..; outputs 20, 21, .., look-back included."""
    return SingleAgentEpisode(
        observations=list(range(steps + 1)),
        actions=list(range(10, 10 + steps)),
        rewards=list(range(steps)),
        extra_model_outputs={"logp": list(range(20, 20 + steps))},
        len_lookback_buffer=lookback,
        **kwargs,
    )


def same(left, right) -> bool:
    return all(tree_leaves(tree_map(np.array_equal, left, right)))


def assert_window(episode: SingleAgentEpisode, start: int, stop: int, lookback: int) -> None:
    """Check that an episode shows the steps `[start, stop)` of the trajectory, after `lookback` steps."""
    episode.validate()
    assert (episode.t_started, episode.t, len(episode)) == (start, stop, stop - start)
    assert episode.env_steps() == episode.agent_steps() == stop - start
    assert episode.get_return() == sum(reward(t) for t in range(start, stop))
    frames, steps = range(start - lookback, stop + 1), range(start - lookback, stop)
    columns = [
        (episode.get_observations, observation, frames),
        (episode.get_actions, action, steps),
        (episode.get_rewards, reward, steps),
        (lambda *a, **k: episode.get_extra_model_outputs("logp", *a, **k), lambda t: outputs(t)["logp"], steps),
        (
            lambda *a, **k: episode.get_extra_model_outputs("state_out", *a, **k),
            lambda t: outputs(t)["state_out"],
            steps,
        ),
    ]
    for get, item, times in columns:
        if times:
            everything = get(slice(-lookback, None), neg_index_as_lookback=True) if lookback else get()
            expected = [item(t) for t in times]
            assert same(everything, batch(expected) if episode.is_numpy else expected)
            assert same(get(-1), item(times[-1]))
            with pytest.raises(IndexError):
                get(-lookback - 1, neg_index_as_lookback=True)
    infos = episode.get_infos(slice(-lookback, None), neg_index_as_lookback=True) if lookback else episode.get_infos()
    assert infos == [{"t": t} for t in frames]


@pytest.mark.parametrize("seed", range(30))
def test_random_cuts_slices_and_concats_show_the_same_trajectory(seed):
    rng = np.random.default_rng(seed)
    chunk, start, lookback = run(0, id_="e"), 0, 0
    chunks = []
    for _ in range(int(rng.integers(3, 25))):
        match rng.integers(5):
            case 0 | 1 | 2:
                step(chunk)
            case 3:
                # A successor is the same whether its predecessor holds lists or arrays.
                if rng.integers(2):
                    chunk.to_numpy()
                keep = int(rng.integers(0, 6))
                chunks.append(chunk)
                lookback = min(keep, len(chunk) + lookback)
                chunk, start = chunk.cut(keep), chunk.t
                assert not chunk.is_numpy
            case 4:
                a, b = (int(i) for i in rng.integers(-8, 9, 2))
                given = [None, 0, 1, 9][rng.integers(4)]
                source = copy.deepcopy(chunk).to_numpy() if rng.integers(2) else chunk
                part = source.slice(slice(a, b), len_lookback_buffer=given)
                steps = range(len(chunk))[a:b]
                wanted = lookback if given is None else given
                assert part.is_numpy == source.is_numpy
                assert_window(
                    part, start + steps.start, start + max(steps.start, steps.stop), min(wanted, lookback + steps.start)
                )
        assert_window(chunk, start, chunk.t, lookback)
    step(chunk, terminated=True)
    end = chunk.t
    for previous in reversed(chunks):
        form, lookback = previous.is_numpy, chunk.rewards.lookback
        previous.concat_episode(chunk)
        assert previous.is_numpy == form and previous.is_terminated and not previous.is_truncated
        assert_window(chunk, chunk.t_started, end, lookback)
        chunk = previous
    assert_window(chunk, 0, end, 0)
    assert_window(chunk.to_numpy(), 0, end, 0)


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("flag", ["terminated", "truncated"])
def test_only_the_slice_with_the_last_step_is_done(flag, numpy):
    episode = run(4)
    step(episode, **{flag: True})
    if numpy:
        episode.to_numpy()
    for start in range(6):
        for stop in range(start, 6):
            part = episode[start:stop]
            assert part.is_done == (start < 5 and stop == 5)
            assert getattr(part, f"is_{flag}") == part.is_done
    assert episode[2:99].is_done and episode[-1:].is_done and not episode[:-1].is_done


def test_slices_by_hand():
    episode = simple(6, 2, t_started=10)
    part = episode[1:3]
    assert part.observations.data == [1, 2, 3, 4, 5] and part.get_observations() == [3, 4, 5]
    assert part.actions.data == [11, 12, 13, 14] and part.get_actions() == [13, 14]
    assert part.get_extra_model_outputs("logp") == [23, 24] and part.get_infos() == [{}, {}, {}]
    assert (part.t_started, part.t, part.rewards.lookback) == (11, 13, 2)
    assert episode.slice(slice(1, 3), len_lookback_buffer=99).observations.lookback == 3
    empty = episode[3:1]
    assert len(empty) == 0 and empty.get_observations() == [5] and empty.t_started == 13


def test_slices_and_cuts_keep_ids_spaces_and_custom_data():
    episode = run(3, id_="e", agent_id="a", module_id="m", multi_agent_episode_id="me")
    episode.custom_data["note"] = [1]
    for part in (episode[1:2], episode.cut(1)):
        assert (part.id_, part.agent_id, part.module_id, part.multi_agent_episode_id) == ("e", "a", "m", "me")
        assert part.observation_space is OBS_SPACE and part.action_space is ACT_SPACE
        assert part.custom_data == {"note": [1]}
        part.custom_data["own"] = True
    assert "own" not in episode.custom_data


@pytest.mark.parametrize("item", [1, None, (0, 1)])
def test_an_episode_cannot_be_indexed(item):
    with pytest.raises(TypeError, match="can be sliced"):
        simple()[item]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e[::2], "step 1"),
        (lambda e: e[::-1], "step 1"),
        (lambda e: e.slice(slice(0, 1), len_lookback_buffer=-1), "len_lookback_buffer=-1"),
        (lambda e: e.cut(-1), "len_lookback_buffer=-1"),
    ],
)
def test_slice_and_cut_refuse_bad_arguments(call, message):
    with pytest.raises(ValueError, match=message):
        call(simple())


def test_auto_lookback_takes_all_steps():
    episode = simple(3, "auto")
    assert len(episode) == 0 and episode.t == episode.t_started == 0 and episode.get_return() == 0.0
    assert episode.get_observations() == [3] and episode.get_actions() == []
    assert episode.get_actions(-1, neg_index_as_lookback=True) == episode.get_actions(-1) == 12
    only_reset = SingleAgentEpisode(observations=[7])
    assert only_reset.is_reset and only_reset.get_observations() == [7] and only_reset.get_infos() == [{}]


@pytest.mark.parametrize(("lookback", "expected"), [(0, 0), (2, 2), (5, 5), (9, 5), (np.int64(1), 1)])
def test_lookback_is_cut_to_the_data(lookback, expected):
    episode = simple(5, lookback, t_started=3)
    assert episode.observations.lookback == episode.infos.lookback == expected
    assert (len(episode), episode.t) == (5 - expected, 8 - expected)


@pytest.mark.parametrize("lookback", [-1, "all", 1.5, None])
def test_lookback_must_be_auto_or_a_count(lookback):
    with pytest.raises(ValueError, match="len_lookback_buffer="):
        simple(5, lookback)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"observations": [0, 1], "actions": [1, 2], "rewards": [1.0, 2.0]}, "observations have 2 .*need 3 items"),
        ({"observations": [0, 1], "actions": [1], "rewards": [1.0, 2.0]}, "observations"),
        ({"observations": [0, 1, 2], "actions": [1], "rewards": [1.0, 2.0]}, "actions have 1 .*need 2 items"),
        ({"observations": [0, 1], "infos": [{}], "actions": [1], "rewards": [1.0]}, "infos have 1 .*need 2 items"),
        ({"observations": [0, 1], "rewards": [1.0]}, "actions have 0 .*need 1 items"),
        ({"actions": [0], "rewards": [1.0]}, "no observations"),
        (
            {"observations": [0, 1], "actions": [1], "rewards": [1.0], "extra_model_outputs": {"a": [1, 2]}},
            "extra model output 'a' has 2 items",
        ),
    ],
)
def test_validate_names_the_column_that_does_not_fit(columns, message):
    with pytest.raises(ValueError, match=message):
        SingleAgentEpisode(**columns, len_lookback_buffer=0)


def test_validate_finds_later_damage():
    episode = simple()
    episode.actions.append(0)
    with pytest.raises(
        ValueError, match="actions have 4 items after 2 lookback items, .* need 3 items after 2 lookback"
    ):
        episode.validate()
    episode = simple()
    episode.t += 1
    with pytest.raises(ValueError, match=r"t=4 must be t_started \+ number of steps = 0 \+ 3"):
        episode.validate()
    columns = {"observations": [0, 1, 2], "actions": [0, 1], "rewards": [0.0, 1.0], "len_lookback_buffer": 0}
    with pytest.raises(ValueError, match="observations have 2 items after 1 lookback items, .* need 3 items after 0"):
        SingleAgentEpisode(**{**columns, "observations": InfiniteLookbackBuffer([0, 1, 2], 1)})
    with pytest.raises(
        ValueError, match="'vf' has 2 items after 1 lookback items, but 2 rewards after 0 lookback items need 2 items"
    ):
        SingleAgentEpisode(**columns, extra_model_outputs={"vf": InfiniteLookbackBuffer([0, 1, 2], 1)})


def test_lifecycle_errors():
    episode = SingleAgentEpisode(id_="e")
    assert not episode.is_reset and not episode.is_done and not episode.is_numpy and len(episode) == 0
    with pytest.raises(RuntimeError, match="add_env_reset"):
        episode.add_env_step(1, 1, 1.0)
    with pytest.raises(RuntimeError, match="add_env_reset"):
        episode.to_numpy()
    episode.add_env_reset(0)
    with pytest.raises(RuntimeError, match="was reset already"):
        episode.add_env_reset(0)
    episode.add_env_step(1, 1, 1.0, terminated=np.True_, truncated=np.False_)
    assert episode.is_terminated is True and episode.is_truncated is False and episode.is_done
    with pytest.raises(RuntimeError, match="done at t=1"):
        episode.add_env_step(1, 1, 1.0)
    with pytest.raises(RuntimeError, match="done at t=1"):
        episode.cut()
    numpyized = simple().to_numpy()
    with pytest.raises(RuntimeError, match="no step can be added after to_numpy"):
        numpyized.add_env_step(1, 1, 1.0)
    successor = numpyized.cut(1)
    successor.add_env_step(6, 15, 5.0, extra_model_outputs={"logp": 25})
    assert successor.actions.data == [14, 15]


def test_both_end_flags_can_be_set():
    episode = run(1)
    step(episode, terminated=True, truncated=True)
    assert episode.is_terminated and episode.is_truncated
    data = episode.get_data_dict()
    assert data["terminateds"] == data["truncateds"] == [False, True]


def test_extra_model_outputs_have_the_same_keys_within_a_chunk():
    episode = run(1)
    for wrong in ({"logp": 0.0}, {**outputs(1), "vf": 1.0}, None):
        with pytest.raises(ValueError, match="give the same keys at every step"):
            episode.add_env_step(observation(2), action(1), reward(1), extra_model_outputs=wrong)
    assert len(episode) == 1
    episode.validate()
    # The module of the next chunk may have other outputs; what both have keeps its look-back.
    successor = episode.cut(1)
    successor.add_env_step(observation(2), action(1), reward(1), extra_model_outputs={"logp": -1.0, "vf": 3.0})
    successor.validate()
    assert successor.get_extra_model_outputs("logp", [-2, -1]) == [0.0, -1.0]
    assert successor.get_extra_model_outputs("vf", slice(-2, None), fill=0.0) == [0.0, 3.0]
    assert successor[0:1].cut(5).extra_model_outputs["vf"].lookback == 1
    with pytest.raises(KeyError, match=r"'state_out'.*\['logp', 'vf'\]"):
        successor.get_extra_model_outputs("state_out")
    with pytest.raises(ValueError, match="give the same keys"):
        episode.concat_episode(successor)
    assert_window(episode, 0, 1, 0)


def test_concat_takes_flags_custom_data_and_leaves_the_other_alone():
    left = run(3, id_="e")
    right = left.cut(2)
    left.custom_data.update(a=1, b=1)
    step(right, truncated=True)
    right.custom_data["b"] = 2
    left.concat_episode(right)
    assert left.is_truncated and not left.is_terminated and left.custom_data == {"a": 1, "b": 2}
    assert_window(left, 0, 4, 0)
    assert_window(right, 3, 4, 2)


@pytest.mark.parametrize("numpy", [False, True])
def test_concat_with_an_empty_chunk(numpy):
    left = run(2, id_="e")
    empty = left.cut(1)
    if numpy:
        left.to_numpy()
    left.concat_episode(empty)
    assert_window(left, 0, 2, 0)
    start = run(0, id_="e")
    rest = copy.deepcopy(start)
    step(rest)
    if numpy:
        start.to_numpy()
    start.concat_episode(rest)
    assert start.is_numpy == numpy
    assert_window(start, 0, 1, 0)


def test_concat_errors():
    episode = simple(5, 0, id_="e")
    follow = {"observations": [5], "len_lookback_buffer": 0, "id_": "e", "t_started": 5}
    done = simple(5, 0, id_="e", terminated=True)
    for left, other, message in [
        (episode, {**follow, "id_": "f"}, "two episodes"),
        (episode, {**follow, "t_started": 4}, "ends at t=5, but the other chunk starts at t=4"),
        (episode, {**follow, "observations": [4]}, "last observation"),
        (episode, {**follow, "observations": None}, "no observation"),
        (done, follow, "is done at t=5"),
    ]:
        with pytest.raises(ValueError, match=message):
            left.concat_episode(SingleAgentEpisode(**other))
    damaged = SingleAgentEpisode(**follow)
    damaged.actions.append(0)
    with pytest.raises(ValueError, match="need 0 items"):
        episode.concat_episode(damaged)
    episode.concat_episode(SingleAgentEpisode(**follow))
    assert episode.actions.data == [10, 11, 12, 13, 14]


def test_a_failed_concat_changes_nothing():
    left = run(2, id_="e").to_numpy()
    right = left.cut()
    right.add_env_step(observation(3), np.zeros(9, int), 0.0, extra_model_outputs=outputs(2))
    with pytest.raises(ValueError, match="array dimensions .* must match exactly"):
        left.concat_episode(right)
    assert_window(left, 0, 2, 0)


def test_concat_accepts_nan_at_the_boundary():
    left = SingleAgentEpisode("e", observations=[np.array([np.nan, 1.0])])
    left.concat_episode(left.cut())
    assert len(left) == 0


def test_to_numpy_forms():
    episode = run(3, t_started=4)
    assert episode.to_numpy() is episode and episode.to_numpy().is_numpy
    assert episode.observations.data["pos"].shape == (4, 2) and episode.observations.data["id"].shape == (4,)
    assert episode.get_rewards().dtype == np.float64 and episode.get_actions().shape == (3, 2)
    assert episode.get_extra_model_outputs("state_out")["h"].shape == (3, 3)
    assert isinstance(episode.infos.data, list)
    fresh = run(0).to_numpy()
    assert fresh.get_actions().shape == (0, 2) and fresh.get_rewards().shape == (0,)


def test_rewards_are_python_floats_until_to_numpy():
    episode = SingleAgentEpisode(observations=[0, 1], actions=[0], rewards=[1], len_lookback_buffer=0)
    episode.add_env_step(2, 0, np.float32(0.5))
    episode.add_env_step(3, 0, np.array(2))
    assert [type(r) for r in episode.rewards] == [float] * 3 and episode.get_rewards() == [1.0, 0.5, 2.0]
    assert episode.get_return() == 3.5 and type(episode.to_numpy().get_return()) is float


def test_set_in_place():
    episode = simple()
    episode.set_observations(new_data=[50, 51], at_indices=slice(0, 2))
    episode.set_actions(new_data=[7, 8, 9])
    episode.set_rewards(new_data=-1.0, at_indices=-1, neg_index_as_lookback=True)
    episode.set_extra_model_outputs(key="logp", new_data=[1, 2], at_indices=[0, -1])
    assert episode.observations.data == [0, 1, 50, 51, 4, 5]
    assert episode.actions.data == [10, 11, 7, 8, 9]
    assert episode.rewards.data == [0.0, -1.0, 2.0, 3.0, 4.0]
    assert episode.extra_model_outputs["logp"].data == [20, 21, 1, 23, 2]
    episode.to_numpy().set_rewards(new_data=np.zeros(3))
    np.testing.assert_array_equal(episode.rewards.data, [0.0, -1.0, 0.0, 0.0, 0.0])


@pytest.mark.parametrize("numpy", [False, True])
def test_set_extra_model_outputs_adds_columns(numpy):
    episode = simple().to_numpy() if numpy else simple()
    episode.set_extra_model_outputs(key="adv", new_data=np.arange(3.0))
    episode.validate()
    assert episode.extra_model_outputs["adv"].finalized == numpy
    assert list(episode.get_extra_model_outputs("adv")) == [0.0, 1.0, 2.0]
    assert list(episode[1:].get_extra_model_outputs("adv")) == [1.0, 2.0]
    with pytest.raises(IndexError, match="2 items for 3 steps"):
        episode.set_extra_model_outputs(key="vf", new_data=[1, 2])
    with pytest.raises(KeyError, match="no extra model output 'vf'"):
        episode.set_extra_model_outputs(key="vf", new_data=1, at_indices=0)
    assert "vf" not in episode.extra_model_outputs


def test_getters_pass_on_fill_and_one_hot():
    episode = run(2)
    encoded = episode.get_actions(slice(-3, None), fill=0, one_hot_discrete=True)
    np.testing.assert_array_equal(np.argwhere(np.array(encoded)), [[1, 0], [1, 7], [2, 1], [2, 8]])
    assert episode.get_observations(0, one_hot_discrete=True)["id"].shape == (1000,)
    assert episode.get_infos(slice(1, 5), fill={}) == [{"t": 1}, {"t": 2}, {}, {}]
    assert episode.get_rewards([0, 9], fill=-1.0) == [0.0, -1.0]
    episode.observation_space = None
    with pytest.raises(ValueError, match="needs the space"):
        episode.get_observations(0, one_hot_discrete=True)


def test_data_dict_and_sample_batch():
    episode = simple(5, 2, t_started=7, truncated=True, id_="e")
    expected = {
        "obs": [2, 3, 4],
        "actions": [12, 13, 14],
        "rewards": [2.0, 3.0, 4.0],
        "terminateds": [False, False, False],
        "truncateds": [False, False, True],
        "infos": [{}, {}, {}],
        "t": [7, 8, 9],
        "eps_id": ["e", "e", "e"],
        "logp": [22, 23, 24],
    }
    assert episode.get_data_dict() == expected
    rows = episode.get_sample_batch()
    assert not episode.is_numpy
    for data in (rows, episode.to_numpy().get_data_dict()):
        assert data.keys() == expected.keys() and isinstance(data["infos"], list)
        assert all(isinstance(values, np.ndarray) for key, values in data.items() if key != "infos")
        assert {key: list(values) for key, values in data.items()} == expected
    assert {len(values) for values in run(0).get_data_dict().values()} == {0}


def test_from_arrays_copies_nothing_and_never_writes_to_its_input():
    trajectory = {"pos": np.arange(20.0, dtype=np.float32).reshape(10, 2)}
    actions, rewards = np.arange(9), np.arange(9, dtype=np.float32)
    actions.flags.writeable = rewards.flags.writeable = False
    episode = SingleAgentEpisode.from_arrays(
        observations=trajectory,
        actions=actions,
        rewards=rewards,
        terminated=False,
        truncated=np.True_,
        extra_model_outputs={"logp": -rewards, "state": {"h": np.zeros((9, 3))}},
        id_="e",
        action_space=spaces.Discrete(9),
        t_started=100,
        len_lookback_buffer=4,
    )
    assert episode.is_numpy and (len(episode), episode.t_started, episode.t) == (5, 100, 105)
    assert episode.is_truncated is True and episode.get_infos() == [{}] * 6
    assert np.shares_memory(episode.get_observations()["pos"], trajectory["pos"])
    assert np.shares_memory(episode.get_rewards(), rewards) and episode.get_rewards().dtype == np.float32
    assert np.shares_memory(episode[1:3].get_actions(), actions)
    before = trajectory["pos"].copy()
    episode.set_observations(new_data={"pos": np.zeros(2)}, at_indices=0)
    episode.set_rewards(new_data=np.zeros(5))
    np.testing.assert_array_equal(trajectory["pos"], before)
    assert episode.get_return() == 0.0 and not episode.get_observations(0)["pos"].any()
    assert episode.get_actions(-1, one_hot_discrete=True).argmax() == 8


def test_from_arrays_takes_a_list_for_a_structure_of_arrays():
    episode = SingleAgentEpisode.from_arrays(
        observations=[np.zeros((3, 2)), np.ones((3,))],
        actions=np.zeros(2),
        rewards=[0.0, 1.0],
        terminated=True,
        truncated=False,
    )
    assert len(episode) == 2 and episode.get_observations(0)[1] == 1.0


@pytest.mark.parametrize("short", ["observations", "actions", "rewards", "logp"])
def test_from_arrays_checks_lengths(short):
    arrays = {"observations": np.zeros((5, 2)), "actions": np.zeros(4), "rewards": np.zeros(4), "logp": np.zeros(4)}
    arrays[short] = arrays[short][:-1]
    with pytest.raises(ValueError, match="rewards"):
        SingleAgentEpisode.from_arrays(
            extra_model_outputs={"logp": arrays.pop("logp")}, terminated=False, truncated=False, **arrays
        )


def test_columns_given_as_arrays_make_all_columns_arrays():
    episode = SingleAgentEpisode(observations=np.zeros((3, 2)), actions=[1, 2], rewards=[1, 2])
    assert episode.is_numpy and isinstance(episode.actions.data, np.ndarray)


@pytest.mark.parametrize("numpy", [False, True])
@pytest.mark.parametrize("steps", [None, 0, 5])
def test_state_round_trip(steps, numpy):
    episode = SingleAgentEpisode() if steps is None else run(steps, agent_id="a", module_id="m")
    if steps:
        step(episode, truncated=True)
        episode = episode.slice(slice(2, None), len_lookback_buffer=1)
    if numpy and steps is not None:
        episode.to_numpy()
    episode.custom_data["k"] = 1
    state = pickle.loads(pickle.dumps(episode.get_state()))
    restored = SingleAgentEpisode.from_state(state)
    assert restored.get_state().keys() == state.keys()
    for name in ("id_", "agent_id", "module_id", "t", "t_started", "is_terminated", "is_truncated", "custom_data"):
        assert getattr(restored, name) == getattr(episode, name)
    assert restored.is_numpy == episode.is_numpy
    assert restored.observation_space == episode.observation_space
    assert restored.get_duration_s() == episode.get_duration_s()
    if steps:
        assert_window(restored, 2, 6, 1)


def test_state_is_plain_data():
    def plain(value) -> bool:
        if isinstance(value, dict):
            return all(isinstance(key, str) and plain(item) for key, item in value.items())
        if isinstance(value, (list, tuple)):
            return all(plain(item) for item in value)
        if isinstance(value, np.ndarray):
            return value.dtype.kind in "biufU"
        return value is None or isinstance(value, (str, bool, int, float))

    assert plain(run(3).get_state()) and plain(run(3).to_numpy().get_state())
    json.dumps(simple().get_state())


def test_state_is_a_snapshot():
    for episode in (run(3, id_="e"), run(3, id_="e").to_numpy()):
        state = episode.get_state()
        episode.set_rewards(new_data=[9.0, 9.0, 9.0])
        if not episode.is_numpy:
            step(episode)
        assert_window(SingleAgentEpisode.from_state(state), 0, 3, 0)


def test_state_that_contradicts_itself_is_refused():
    with pytest.raises(ValueError, match="t=9"):
        SingleAgentEpisode.from_state({**simple().get_state(), "t": 9})


def test_episodes_can_be_pickled_and_copied():
    for clone in (pickle.loads(pickle.dumps(run(4))), copy.deepcopy(run(4))):
        assert_window(clone, 0, 4, 0)
        step(clone)
        assert_window(clone, 0, 5, 0)


def test_durations_add_up_over_chunks():
    episode = run(0)
    assert episode.get_duration_s() == 0.0
    time.sleep(0.002)
    step(episode)
    first = episode.get_duration_s()
    assert first >= 0.002
    successor = episode.cut()
    assert successor.get_duration_s() == 0.0
    step(successor)
    assert successor.get_duration_s() == 0.0, "the time between two chunks belongs to none of them"
    time.sleep(0.002)
    step(successor)
    episode.concat_episode(successor)
    assert episode.get_duration_s() == first + successor.get_duration_s() >= 0.004


def test_ids_are_unique_hexadecimal_strings():
    ids = {SingleAgentEpisode().id_ for _ in range(20)}
    assert len(ids) == 20 and all(int(id_, 16) >= 0 for id_ in ids)


def test_repr_shows_where_the_episode_stands():
    assert repr(simple(5, 2, id_="e", t_started=3)) == "SingleAgentEpisode(e, t=3..6, return=9, running)"
    assert "terminated and truncated" in repr(simple(terminated=True, truncated=True))


def test_removed_methods_name_their_replacement():
    for call in (simple().add_temporary_timestep_data, simple().get_temporary_timestep_data):
        with pytest.raises(ValueError, match="custom_data"):
            call("key", 1)


def test_a_step_is_cheap():
    """A few list appends (about 1 us): no copy of the episode, no check against the spaces."""
    episode = run(0)

    def seconds_per_step():
        t0 = time.thread_time()
        for t in range(2000):
            episode.add_env_step(t, t, 0.0, extra_model_outputs={"logp": 0.0, "state_out": 0})
        return (time.thread_time() - t0) / 2000

    # The least of some: other processes may slow the core down in one of them, and a copy would cost in all.
    assert min(seconds_per_step() for _ in range(5)) < 50e-6


def test_the_module_starts_no_jax_backend_and_needs_no_ray():
    code = (
        "import sys; from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode as Episode\n"
        "episode = Episode(observations=[0]); episode.add_env_step(1, 0, 1.0)\n"
        "Episode.from_state(episode.to_numpy().cut(1).get_state())\n"
        "assert 'ray' not in sys.modules\n"
        "from jax._src import xla_bridge; assert not xla_bridge.backends_are_initialized()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
