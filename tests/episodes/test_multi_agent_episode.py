"""MultiAgentEpisode: agents that skip, hang, come and end, over chunks and slices.

The cases are those of RLlib's episodes of several agents, with data of their own, but for defects of
RLlib, where what is asserted differs:

* `get_truncateds` of agents that are cut off with everybody: RLlib calls them terminated, too.
* `cut(0)`, which loses a hanging action there.
* `get_return(True)` of two chunks, which counts the rewards of a step that hangs between them twice there.
* `concat_episode`, after which the hanging steps of the left chunk stay there.
* `slice` without look-back, which loses a step that began before it there; here the slice that completes it has it.
* A slice of an agent that was cut off, which calls it terminated there.
* `return_list=True` after the first agent has ended, which leaves out the last steps there.
* `get_rewards` of several steps, which has empty lists for agents without an item there, unlike the other getters.
* Getters of all of an agent's own steps, which leave out its hanging action there; with an index they do not.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.env.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.utils.error import MultiAgentEnvError

RUNS: dict[str, bool] = {"__all__": False}


def step(episode, observations, actions, rewards, **more):
    episode.add_env_step(observations, actions, rewards, more.pop("infos", {}), **more)


def turns(**settings):
    """a and b take turns at first, then both observe; a's last action hangs.

    time       0    1    2    3    4
    a         10    .   12   13    .
    b          .   21    .   23   24
    """
    episode = MultiAgentEpisode("turns", **settings)
    episode.add_env_reset(observations={"a": 10}, infos={"a": {"first": True}})
    step(episode, {"b": 21}, {"a": 100}, {"a": 1.0, "b": 0.5})
    step(episode, {"a": 12}, {"b": 210}, {"a": 1.5, "b": 0.25})
    step(episode, {"a": 13, "b": 23}, {"a": 120}, {"a": 2.0, "b": 0.25}, extra_model_outputs={})
    step(episode, {"b": 24}, {"a": 130, "b": 230}, {"a": 4.0, "b": 5.0})
    return episode


def data_of(episode):
    return {
        agent: (one.get_observations(), one.get_actions(), one.get_rewards(), one.t_started, one.t)
        for agent, one in episode.agent_episodes.items()
    }


def times_of(episode):
    return {agent: times.data for agent, times in episode.env_t_to_agent_t.items()}


# -------------------------------------------------------------------------------------------------------- building


def test_an_empty_episode():
    episode = MultiAgentEpisode(env_t_started=3)
    assert len(episode) == 0 and episode.env_t == episode.env_t_started == 3 and not episode.is_reset
    assert not episode.is_done and not episode.is_numpy and episode.agent_ids == episode.get_agents_to_act() == set()
    assert len(episode.id_) == 32 and episode.get_return() == 0.0 and episode.get_observations() == {}
    for use in (episode.to_numpy, lambda: step(episode, {}, {}, {})):
        with pytest.raises(RuntimeError, match="call add_env_reset"):
            use()


def test_the_reset():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 1, 7: 2}, infos={7: {"x": 1}})
    assert episode.agent_ids == episode.get_agents_to_act() == {"a", 7} and times_of(episode) == {"a": [0], 7: [0]}
    assert episode.get_infos() == {"a": [{}], 7: [{"x": 1}]} and len(episode) == 0
    with pytest.raises(RuntimeError, match="was reset already"):
        episode.add_env_reset(observations={"a": 1})


def test_steps_complete_with_the_next_observation_and_have_the_rewards_since():
    episode = turns()
    assert data_of(episode) == {
        "a": ([10, 12, 13], [100, 120], [2.5, 2.0], 0, 2),
        "b": ([21, 23, 24], [210, 230], [0.5, 5.0], 0, 2),
    }
    assert times_of(episode) == {"a": [0, "S", 1, 2, "S"], "b": ["S", 0, "S", 1, 2]}
    assert episode.hanging["a"].action == 130 and set(episode.hanging) == {"a"}
    assert episode.get_agents_to_act() == episode.get_agents_that_stepped() == {"b"}
    assert episode.env_steps() == len(episode) == 4 and episode.agent_steps() == 4
    assert episode.env_t_started == 0 and episode.agent_t_started == {"a": 0, "b": 0}
    episode.validate()


def test_an_episode_of_given_data_is_look_back_or_begins_after_it():
    data = {
        "observations": [{"a": 10}, {"b": 21}, {"a": 12}, {"a": 13, "b": 23}, {"b": 24}],
        "actions": [{"a": 100}, {"b": 210}, {"a": 120}, {"a": 130, "b": 230}],
        "rewards": [{"a": 1.0, "b": 0.5}, {"a": 1.5, "b": 0.25}, {"a": 2.0, "b": 0.25}, {"a": 4.0, "b": 5.0}],
    }
    whole = MultiAgentEpisode(**data, len_lookback_buffer=0)
    assert data_of(whole) == data_of(turns()) and times_of(whole) == times_of(turns()) and len(whole) == 4
    later = MultiAgentEpisode(
        **data, len_lookback_buffer=2, env_t_started=7, agent_t_started={"a": 3}, agent_episode_ids={"a": "A"}
    )
    assert (later.env_t_started, later.env_t, len(later)) == (7, 9, 2)
    # b's step of time 1 completes at time 3: it is the chunk's own.
    assert data_of(later) == {"a": ([12, 13], [120], [2.0], 3, 4), "b": ([21, 23, 24], [210, 230], [0.5, 5.0], 0, 2)}
    assert times_of(later) == {"a": [2, "S", 3, 4, "S"], "b": ["S", 0, "S", 1, 2]}
    assert later.agent_episode_ids["a"] == "A" and later.hanging["a"].reward == 4.0
    later.validate()
    behind = MultiAgentEpisode(**data)
    assert (
        len(behind) == 0
        and behind.get_observations() == {"b": [24]}
        and behind.get_observations(-2) == {"a": 13, "b": 23}
    )
    step(behind, {"a": 15}, {"b": 240}, {"a": 1.0})
    assert behind.agent_episodes["a"].get_rewards() == [5.0]


def test_given_data_has_its_end_and_fits_together():
    data = {"observations": [{"a": 0}, {"a": 1}], "actions": [{"a": 0}], "rewards": [{"a": 1.0}]}
    ended = MultiAgentEpisode(**data, terminateds={"a": True}, len_lookback_buffer=0)
    assert ended.is_terminated and ended.get_terminateds() == {"a": True, "__all__": True}
    running = MultiAgentEpisode(**data, terminateds={"a": True, "__all__": False}, len_lookback_buffer=0)
    assert not running.is_done and running.get_terminateds() == {"a": True, "__all__": False}
    assert MultiAgentEpisode(**data, truncateds=True).is_truncated
    assert MultiAgentEpisode(observations=[{"a": 0}], terminateds=True).is_terminated
    with pytest.raises(ValueError, match="has rewards for 1 env steps, but observations for 0"):
        MultiAgentEpisode(**{**data, "observations": [{"a": 0}]})
    with pytest.raises(ValueError, match="len_lookback_buffer=-1 must be"):
        MultiAgentEpisode(**data, len_lookback_buffer=-1)


# ------------------------------------------------------------------------------------------------------------ ends


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "episode_flags", "agent_flags"),
    [
        ({}, {"a": True, "b": True, "__all__": True}, (False, True), {"a": (False, True), "b": (False, True)}),
        ({}, {"__all__": True}, (False, True), {"a": (False, True), "b": (False, True)}),
        ({"__all__": True}, {}, (True, False), {"a": (True, False), "b": (True, False)}),
        ({"a": True, "b": True}, {}, (True, False), {"a": (True, False), "b": (True, False)}),
        ({"a": True, "b": True}, RUNS, (False, False), {"a": (True, False), "b": (True, False)}),
        ({"a": True, **RUNS}, {"b": True}, (False, False), {"a": (True, False), "b": (False, True)}),
        ({"a": True}, {"b": True}, (False, True), {"a": (True, False), "b": (False, True)}),
        ({"a": True}, {}, (False, False), {"a": (True, False), "b": (False, False)}),
        ({"a": False}, {"a": True, "__all__": False}, (False, False), {"a": (False, True), "b": (False, False)}),
    ],
)
def test_flags_are_an_agents_own_or_those_of_everybody_of_the_same_kind(
    terminateds, truncateds, episode_flags, agent_flags
):
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    ends = {"terminateds": terminateds, "truncateds": truncateds}
    step(episode, {"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, **ends)
    assert (episode.is_terminated, episode.is_truncated) == episode_flags
    found = {agent: (one.is_terminated, one.is_truncated) for agent, one in episode.agent_episodes.items()}
    assert found == agent_flags
    assert episode.get_terminateds() == {"a": found["a"][0], "b": found["b"][0], "__all__": episode_flags[0]}
    assert episode.get_truncateds() == {"a": found["a"][1], "b": found["b"][1], "__all__": episode_flags[1]}
    assert episode.get_agents_that_stepped() == {"a", "b"}
    assert episode.get_agents_to_act() == {agent for agent in "ab" if not any(found[agent])}
    if episode.is_done:
        with pytest.raises(RuntimeError, match="is done at env step 1"):
            step(episode, {}, {}, {})
        with pytest.raises(RuntimeError, match=r"so cut\(\) cannot continue"):
            episode.cut()


def test_the_last_agent_ends_the_episode():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    both = {"a": 0, "b": 0}
    step(episode, both, both, {"a": 1.0, "b": 1.0}, truncateds={"a": True})
    assert not episode.is_done
    successor = episode.cut()
    for chunk in (episode, successor):
        step(chunk, {"b": 2}, {"b": 0}, {"b": 1.0}, terminateds={"b": True})
        # One of them was cut off, if in an earlier chunk.
        assert (chunk.is_terminated, chunk.is_truncated) == (False, True)


def test_an_episode_runs_on_without_agents():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={})
    assert episode.is_reset and MultiAgentEpisode.from_state(episode.get_state()).is_reset
    step(episode, {}, {}, {}, terminateds=RUNS)
    chunks = [episode, episode.cut(1)]
    step(chunks[1], {"a": 2}, {}, {}, terminateds=RUNS)
    step(chunks[1], {"a": 3}, {"a": 20}, {"a": 1.0}, terminateds={"a": True, **RUNS})
    chunks.append(chunks[1].cut(2))
    assert not chunks[2].agent_episodes and chunks[2].is_reset
    for terminateds in (RUNS, {"__all__": True}):
        step(chunks[2], {}, {}, {}, terminateds=terminateds)
    for chunk in chunks[1:]:
        episode.concat_episode(chunk)
    episode.validate()
    assert times_of(episode) == {"a": ["S", "S", 0, 1, "S", "S"]} and len(episode) == 5 and episode.is_terminated
    assert data_of(episode) == {"a": ([2, 3], [20], [1.0], 0, 1)}
    MultiAgentEpisode(observations=[{}]).print()


def test_an_agent_that_terminates_without_an_observation_has_its_last_one_again():
    episode = turns()
    step(episode, {}, {"b": 240}, {"b": 1.0, "a": 2.0}, terminateds={"__all__": True})
    assert data_of(episode) == {
        "a": ([10, 12, 13, 13], [100, 120, 130], [2.5, 2.0, 6.0], 0, 3),
        "b": ([21, 23, 24, 24], [210, 230, 240], [0.5, 5.0, 1.0], 0, 3),
    }
    assert not episode.hanging and all(one.is_terminated for one in episode.agent_episodes.values())
    episode.validate()


def test_an_agent_that_waits_is_cut_off_at_its_last_observation():
    episode = turns()
    step(episode, {"b": 25}, {"b": 240}, {"b": 1.0, "a": 2.0}, truncateds={"__all__": True})
    one = episode.agent_episodes["a"]
    assert one.get_observations() == [10, 12, 13, 13] and one.get_rewards(-1) == 6.0
    assert one.is_truncated and not one.is_terminated


def test_an_agent_that_is_first_seen_in_its_last_step_has_no_episode():
    episode = turns()
    step(episode, {"b": 25, "c": 0}, {"b": 240}, {"b": 1.0, "c": 3.0}, terminateds={"c": True})
    assert episode.agent_ids == {"a", "b"} and episode.get_return(True) - episode.get_return() == 4.0 + 0.5 + 3.0
    with pytest.raises(MultiAgentEnvError, match="agent 'c' has ended, but has an observation"):
        step(episode, {"c": 1}, {"b": 0}, {})


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (({"a": 1}, {"b": 0}, {}), "env step 2: agent 'a' has an observation, but did not act since"),
        (({}, {"a": 0}, {}), r"env step 2: agent 'a' acts without an observation; .*\['b'\]"),
        (({}, {"z": 0}, {}), "env step 2: agent 'z' acts without an observation"),
        (({"b": 1}, {"b": 0}, {}), "env step 2: agent 'b' acted and has an observation, but no reward"),
        (({"c": 1}, {"b": 0}, {}), "env step 2: agent 'c' has ended, but has an observation"),
        (({}, {"b": 0}, {"c": 1.0}), "env step 2: agent 'c' has ended, but has a reward"),
        (({}, {"c": 0}, {}), "env step 2: agent 'c' has ended, but has an action"),
    ],
)
def test_what_does_not_fit_is_refused_with_agent_and_step_and_changes_nothing(what, message):
    episode = MultiAgentEpisode("e")
    episode.add_env_reset(observations={"a": 0, "b": 0, "c": 0})
    rewards = {"b": 1.0, "c": 1.0}
    step(episode, {"b": 1, "c": 1}, {"b": 0, "c": 0}, rewards, terminateds={"c": True})
    before = episode.get_state()
    with pytest.raises(MultiAgentEnvError, match=f"^episode e, {message}"):
        step(episode, *what)
    assert str(episode.get_state()) == str(before)


def test_an_agent_that_is_cut_off_by_its_own_action_needs_an_observation():
    for truncateds in ({"__all__": True}, {"b": True}):
        with pytest.raises(MultiAgentEnvError, match="agent 'b' acted and is truncated, but has no final observation"):
            step(turns(), {}, {"b": 240}, {"b": 1.0}, truncateds=truncateds)


# --------------------------------------------------------------------------------------------------------- getters


def test_observations_by_environment_time():
    episode = turns()
    assert episode.get_observations() == {"a": [10, 12, 13], "b": [21, 23, 24]}
    assert episode.get_observations(0) == {"a": 10} and episode.get_observations(-1) == {"b": 24}
    assert episode.get_observations(-1, fill=0) == {"a": 0, "b": 24}
    assert episode.get_observations(slice(1, 3)) == {"a": [12], "b": [21]}
    assert episode.get_observations([0, 3], fill=-1) == {"a": [10, 13], "b": [-1, 23]}
    assert episode.get_observations(slice(3, 6), fill=-1) == {"a": [13, -1, -1], "b": [23, 24, -1]}
    assert episode.get_observations([2, 1], "a") == {"a": [12]}
    assert episode.get_observations(return_list=True, agent_ids=["b"]) == [{}, {"b": 21}, {}, {"b": 23}, {"b": 24}]
    assert episode.get_infos(0) == {"a": {"first": True}} and episode.get_infos(-1) == {"b": {}}
    assert episode.get_infos(0, fill={"no": 1})["b"] == {"no": 1}
    # Infos have no structure in common that a number could fill.
    assert episode.get_infos([0, 1], fill=-1) == {"a": [{"first": True}, -1], "b": [-1, {}]}
    assert episode.agent_episodes["a"].get_infos([0, 9], fill=-1) == [{"first": True}, -1]
    with pytest.raises(IndexError, match="index 7 is out of range"):
        episode.get_observations(7)
    with pytest.raises(KeyError, match="agent 'z' is not in this episode"):
        episode.get_observations(agent_ids="z")
    with pytest.raises(ValueError, match="return_list=True needs environment steps"):
        episode.get_observations(env_steps=False, return_list=True)


def test_actions_and_rewards_stand_where_the_action_was_hanging_ones_included():
    episode = turns()
    assert episode.get_actions() == {"a": [100, 120, 130], "b": [210, 230]}
    assert episode.get_rewards() == {"a": [2.5, 2.0, 4.0], "b": [0.5, 5.0]}
    assert episode.get_actions(-1) == {"a": 130, "b": 230} and episode.get_rewards(1) == {"b": 0.5}
    assert episode.get_actions(return_list=True) == [{"a": 100}, {"b": 210}, {"a": 120}, {"a": 130, "b": 230}]
    assert episode.get_rewards(slice(-2, None), fill=0.0) == {"a": [2.0, 4.0], "b": [0.0, 5.0]}
    with pytest.raises(IndexError):
        episode.get_actions(4)


def test_each_agents_own_time():
    episode = turns()
    assert episode.get_observations([0, 1], env_steps=False) == {"a": [10, 12], "b": [21, 23]}
    assert episode.get_observations(-1, env_steps=False) == {"a": 13, "b": 24}
    assert episode.get_actions(-1, env_steps=False) == {"a": 130, "b": 230}
    assert episode.get_rewards(slice(2, None), env_steps=False) == {"a": [4.0]}
    assert episode.get_rewards([2], env_steps=False, fill=0.0) == {"a": [4.0], "b": [0.0]}


def test_the_look_back_is_read_from_the_end_or_from_its_own_end():
    chunk = turns().cut(3)
    step(chunk, {"a": 15}, {"b": 240}, {"a": 1.0, "b": 2.0})
    assert chunk.get_observations() == {"a": [15], "b": [24]} and chunk.get_observations(0) == {"b": 24}
    assert chunk.get_observations([-1, -2], neg_index_as_lookback=True) == {"a": [13, 12], "b": [23]}
    assert chunk.get_observations(slice(-3, None)) == {"a": [13, 15], "b": [23, 24]}
    assert chunk.get_actions(-1) == {"b": 240} and chunk.get_actions(-1, neg_index_as_lookback=True) == {
        "a": 130,
        "b": 230,
    }
    assert chunk.get_rewards(-2) == {"a": 5.0, "b": 5.0}
    assert chunk.get_observations(-9, fill=0) == {"a": 0, "b": 0}


def test_model_outputs():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    outputs = {"a": {"logp": -1.0, "value": 3.0}, "b": {"logp": -2.0}}
    step(episode, {"a": 1}, {"a": 0, "b": 0}, {"a": 1.0}, extra_model_outputs=outputs)
    assert episode.get_extra_model_outputs("logp") == {"a": [-1.0], "b": [-2.0]}
    assert episode.get_extra_model_outputs("value", -1) == {"a": 3.0}
    assert episode.get_extra_model_outputs() == {"a": {"logp": [-1.0], "value": [3.0]}, "b": {"logp": [-2.0]}}
    assert episode.get_extra_model_outputs("logp", return_list=True) == [{"a": -1.0, "b": -2.0}]
    with pytest.raises(KeyError, match="no extra model output 'q'"):
        episode.get_extra_model_outputs("q")
    with pytest.raises(ValueError, match="needs the key"):
        episode.get_extra_model_outputs(return_list=True)


def test_other_model_outputs_than_before_are_refused_and_change_nothing():
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    both = {"a": 1, "b": 1}
    step(episode, both, both, both, extra_model_outputs={"a": {"x": 1}})
    before = str(episode.get_state())
    with pytest.raises(ValueError, match=r"has the keys \['y'\].*earlier steps.*\['x'\]"):
        step(episode, both, both, both, extra_model_outputs={"a": {"y": 1}})
    assert str(episode.get_state()) == before
    with pytest.raises(MultiAgentEnvError, match="agent 'z' acts without"):
        step(episode, both, {"z": 1}, both)


def test_arrays_have_a_time_axis_and_are_no_longer_added_to():
    spaces = {"a": Box(-1.0, 1.0, (2,), np.float32), "b": Discrete(3)}
    episode = MultiAgentEpisode(observation_space=spaces, action_space={"a": Discrete(4), "b": Discrete(4)})
    row = np.array([0.5, 0.25], np.float32)
    episode.add_env_reset(observations={"a": row, "b": 2})
    step(episode, {"a": row + 1}, {"a": 3, "b": 1}, {"a": 1.0})
    assert episode.get_actions(one_hot_discrete=True)["b"][0].tolist() == [0.0, 1.0, 0.0, 0.0]
    assert episode.to_numpy() is episode and episode.is_numpy
    assert episode.get_observations()["a"].shape == (2, 2) and episode.get_observations()["a"].dtype == np.float32
    assert episode.get_actions()["b"].tolist() == [1] and episode.get_actions(one_hot_discrete=True)["a"].shape == (
        1,
        4,
    )
    assert episode.get_observations([0, 1], fill=0)["b"].tolist() == [2, 0]
    assert episode.get_rewards(0) == {"a": 1.0, "b": 0.0}
    with pytest.raises(RuntimeError, match="no step can be added after to_numpy"):
        step(episode, {}, {"a": 0}, {})
    successor = episode.cut(1)
    step(successor, {"b": 1}, {"a": 0}, {"b": 2.0})
    assert successor.agent_episodes["b"].get_rewards() == [2.0]
    batch = episode.get_sample_batch()
    assert batch["a"]["obs"].shape == (1, 2) and batch["b"]["rewards"].shape == (0,)


def test_setters_go_by_agent():
    episode = turns()
    episode.set_observations(new_data={"a": [0, 1, 2]})
    episode.set_actions(new_data={"b": 7}, at_indices=-1)
    episode.set_rewards(new_data={"a": [9.0], "b": [8.0]}, at_indices=[0])
    episode.set_extra_model_outputs(key="x", new_data={"b": [1, 2]})
    assert episode.get_observations()["a"] == [0, 1, 2] and episode.agent_episodes["b"].get_actions() == [210, 7]
    assert episode.get_rewards(env_steps=False) == {"a": [9.0, 2.0, 4.0], "b": [8.0, 5.0]}
    assert episode.get_extra_model_outputs("x") == {"b": [1, 2]}
    with pytest.raises(KeyError, match="agent 'z'"):
        episode.set_rewards(new_data={"z": [1.0]})


# ---------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize("lookback", [0, 1, 2, 3, 10])
def test_a_chunk_has_the_hanging_steps_whatever_its_look_back(lookback):
    episode = turns()
    chunk = episode.cut(lookback)
    assert (len(chunk), chunk.env_t_started, chunk.env_t, chunk.id_) == (0, 4, 4, "turns")
    assert chunk.agent_t_started == {"a": 2, "b": 2} and chunk.get_agents_to_act() == {"b"}
    # a's last observation is one step before: no less than that.
    kept = min(max(lookback, 1), 4)
    assert {times.lookback for times in chunk.env_t_to_agent_t.values()} == {kept}
    chunk.validate()
    step(chunk, {"a": 15, "b": 25}, {"b": 240}, {"a": 1.0, "b": 2.0})
    assert data_of(chunk) == {"a": ([13, 15], [130], [5.0], 2, 3), "b": ([24, 25], [240], [2.0], 2, 3)}
    assert chunk.agent_episode_ids == episode.agent_episode_ids
    with pytest.raises(ValueError, match="len_lookback_buffer=-1"):
        episode.cut(-1)


def test_chunks_count_each_reward_once():
    episode = turns()
    # b has 0.5 before its first observation; 4.0 of a's hang.
    assert episode.get_return() == 10.0 and episode.get_return(True) == 14.5
    chunk = episode.cut()
    assert episode.get_return(True) == 10.5 and chunk.get_return() == 0.0 and chunk.get_return(True) == 4.0
    step(chunk, {"a": 15}, {"b": 240}, {"a": 1.0, "b": 2.0})
    assert chunk.get_return() == 5.0 and chunk.get_return(True) == 7.0
    episode.concat_episode(chunk)
    assert episode.get_return() == 15.0 and episode.get_return(True) == 17.5


def test_chunks_are_put_together_again():
    left = turns()
    left.custom_data.update(x=1, y=1)
    right = left.cut(1)
    right.custom_data["y"] = 2
    step(right, {"a": 15, "c": 35}, {"b": 240}, {"a": 1.0, "c": 9.0})
    step(right, {"b": 26, "c": 36}, {"a": 150, "c": 350}, {"c": 1.0}, terminateds={"a": True})
    left.concat_episode(right)
    assert data_of(left) == {
        "a": ([10, 12, 13, 15, 15], [100, 120, 130, 150], [2.5, 2.0, 5.0, 0.0], 0, 4),
        "b": ([21, 23, 24, 26], [210, 230, 240], [0.5, 5.0, 0.0], 0, 3),
        "c": ([35, 36], [350], [1.0], 0, 1),
    }
    assert not left.hanging and left.custom_data == {"x": 1, "y": 2} and len(left) == 6
    assert left.get_agents_to_act() == {"b", "c"} and left.agent_episodes["a"].is_terminated
    left.validate()
    for other, message in ((turns(), "other chunk starts at env step 0"), (MultiAgentEpisode("other"), "two episodes")):
        with pytest.raises(ValueError, match=message):
            left.concat_episode(other)


@pytest.mark.parametrize(
    ("part", "agents", "hanging"),
    [
        (slice(0, 2), {"a": ([10, 12], [100]), "b": ([21], [])}, {"b": 210}),
        (slice(2, 4), {"a": ([12, 13], [120]), "b": ([21, 23, 24], [210, 230])}, {"a": 130}),
        (slice(3, 4), {"a": ([13], []), "b": ([23, 24], [230])}, {"a": 130}),
        (slice(-1, None), {"a": ([13], []), "b": ([23, 24], [230])}, {"a": 130}),
        (slice(0, 0), {"a": ([10], [])}, {}),
    ],
)
def test_slices_have_the_steps_that_complete_in_them(part, agents, hanging):
    episode = turns()[part]
    found = {agent: (one.get_observations(), one.get_actions()) for agent, one in episode.agent_episodes.items()}
    assert found == agents and {agent: one.action for agent, one in episode.hanging.items()} == hanging
    start, stop, _ = part.indices(4)
    assert (episode.env_t_started, episode.env_t) == (start, stop) and not episode.is_done
    episode.validate()


def test_slices_keep_the_end_and_as_much_look_back_as_is_asked_for():
    episode = turns()
    step(episode, {"a": 15, "b": 25}, {"b": 240}, {"a": 1.0, "b": 2.0}, terminateds={"__all__": True})
    assert episode[3:].is_terminated and not episode[:4].is_done
    assert all(one.is_terminated for one in episode[4:].agent_episodes.values())
    part = episode.slice(slice(4, 5), len_lookback_buffer=2)
    assert part.get_observations(slice(-4, None)) == {"a": [12, 13, 15], "b": [23, 24, 25]}
    with pytest.raises(NotImplementedError, match="step 1"):
        episode[::2]
    with pytest.raises(TypeError, match="can be sliced"):
        episode[1]
    with pytest.raises(ValueError, match="len_lookback_buffer=-2"):
        episode.slice(slice(1), len_lookback_buffer=-2)


def test_an_agent_that_was_cut_off_is_so_in_slices_and_leaves_the_others_in_lists():
    episode = turns()
    step(episode, {"a": 15}, {"b": 240}, {"a": 1.0}, truncateds={"a": True})
    step(episode, {"b": 26}, {}, {"b": 3.0})
    part = episode[3:]
    assert part.agent_episodes["a"].is_truncated and not part.agent_episodes["a"].is_terminated
    assert part.get_truncateds() == {"a": True, "b": False, "__all__": False}
    assert part.get_terminateds() == {"a": False, "b": False, "__all__": False}
    assert part.get_observations(return_list=True) == [{"a": 13, "b": 23}, {"b": 24}, {"a": 15}, {"b": 26}]


@pytest.mark.parametrize(("more", "end"), [({}, 1), ({"a": 0.5}, 2)])
def test_an_agent_of_given_data_ends_with_the_last_thing_it_got(more, end):
    """An observation, or a reward after it; the episode goes on for the other one, and ends with everybody."""
    episode = MultiAgentEpisode(
        observations=[{"a": 0, "b": 0}, {"a": 1, "b": 1}, {"b": 2}, {"b": 3}],
        actions=[{"a": 0, "b": 0}, {"b": 1}, {"b": 2}],
        rewards=[{"a": 0.0, "b": 0.0}, {"b": 0.1, **more}, {"b": 0.2}],
        terminateds={"a": True, "__all__": True},
        len_lookback_buffer=0,
    )
    assert episode.is_terminated and not episode[:2].is_done
    for stop in (1, 2, 3):
        assert episode[:stop].get_terminateds() == {"a": stop >= end, "b": stop == 3, "__all__": stop == 3}
    assert "a" not in episode[end:].agent_episodes


def test_an_agent_whose_action_hangs_in_given_data_ends_with_everybody():
    given = {"observations": [{"a": 0, "b": 0}, {"b": 1}, {"b": 2}], "actions": [{"a": 5, "b": 0}, {"b": 1}]}
    episode = MultiAgentEpisode(
        **given, rewards=[{"a": 1.0, "b": 0.0}, {"b": 0.0}], truncateds={"a": True}, len_lookback_buffer=0
    )
    assert episode[:1].get_truncateds()["a"] is False and episode[:1].hanging["a"].action == 5
    assert episode.get_truncateds()["a"] is True and episode.get_actions(0, "a") == {"a": 5}


def test_the_state_makes_the_same_episode():
    episode = turns(observation_space={"a": Discrete(99)}).cut(2)
    step(episode, {"a": 15}, {"b": 240}, {"a": 1.0})
    again = MultiAgentEpisode.from_state(episode.get_state())
    assert data_of(again) == data_of(episode) and times_of(again) == times_of(episode)
    assert again.hanging == episode.hanging and str(again.get_state()) == str(episode.get_state())
    assert again.env_t_to_agent_t == episode.env_t_to_agent_t and len(again.env_t_to_agent_t["not seen"]) == 0
    for one in (episode, again):
        step(one, {"b": 26}, {"a": 150}, {"b": 1.0})
    assert data_of(again) == data_of(episode) and again.get_observations(one_hot_discrete=False) is not None


def test_modules_are_asked_for_once_per_agent():
    calls = []

    def mapping(agent_id, episode, **kwargs):
        calls.append((agent_id, episode.id_))
        return f"m_{agent_id}"

    episode = turns(agent_to_module_mapping_fn=mapping, agent_module_ids={"b": "given"})
    chunk = episode.cut()
    assert [chunk.module_for(agent) for agent in ("a", "b", "z", "a")] == ["m_a", "given", "m_z", "m_a"]
    assert calls == [("a", "turns"), ("z", "turns")]
    assert {agent: one.module_id for agent, one in chunk.agent_episodes.items()} == {"a": "m_a", "b": "given"}
    assert MultiAgentEpisode().module_for("a") == "default_policy"


def test_it_is_shown_as_a_table_of_observations(capsys):
    turns().print()
    assert capsys.readouterr().out.splitlines() == [
        "ts  0   1   2   3   4",
        "a   x       x   x",
        "b       x       x   x",
    ]
    assert "turns, env_t=0..4, returns={'a': 4.5, 'b': 5.5}, running" in repr(turns())
    with pytest.raises(ValueError, match="custom_data"):
        turns().add_temporary_timestep_data("x", 1)
    assert turns().get_duration_s() > 0.0


# -------------------------------------------------------------------------------------------------- random patterns


class Loop:
    """One agent's steps, written down as they come."""

    def __init__(self, obs):
        self.obs, self.actions, self.rewards, self.flags = [obs], [], [], (False, False)
        self.pending: list = []

    def complete(self, obs):
        action, reward = self.pending
        self.obs.append(obs)
        self.actions.append(action)
        self.rewards.append(reward)
        self.pending = []


def run_pattern(rng, make_chunk):
    """A random episode of up to four agents, in chunks and as plain loops.

    Returns:
        ``(chunks, loops by agent, sum of all rewards)``.
    """
    clock = iter(range(10_000))
    agents = [f"a{i}" for i in range(rng.integers(1, 5))]
    first = {agent: next(clock) for agent in agents if rng.random() < 0.6} or {agents[0]: next(clock)}
    loops = {agent: Loop(obs) for agent, obs in first.items()}
    chunks, total, to_act, over = [MultiAgentEpisode("e")], 0.0, set(first), False
    chunks[0].add_env_reset(observations=first)
    for t in range(int(rng.integers(1, 14))):
        alive = [agent for agent in agents if agent not in loops or not any(loops[agent].flags)]
        actions = {agent: next(clock) for agent in to_act}
        may_observe = [agent for agent in alive if agent not in loops or loops[agent].pending or agent in actions]
        obs = {agent: next(clock) for agent in may_observe if rng.random() < 0.6}
        rewards = {a: float(rng.integers(1, 9)) for a in alive if rng.random() < 0.5 or (a in obs and a in actions)}
        terminateds, truncateds = {}, {}
        for agent in alive:
            if agent in loops and rng.random() < 0.1:
                if (agent in actions and agent not in obs) or rng.random() < 0.5:
                    terminateds[agent] = True
                else:
                    truncateds[agent] = True
        if rng.random() < 0.1:
            terminateds["__all__"] = True
        elif rng.random() < 0.1 and set(actions) <= set(obs):
            truncateds["__all__"] = True
        for agent, action in actions.items():
            loops[agent].pending = [action, 0.0]
        for agent, reward in rewards.items():
            total += reward
            if agent in loops and loops[agent].pending:
                loops[agent].pending[1] += reward
        by_all = "__all__" in terminateds, "__all__" in truncateds
        ends = set(alive) if any(by_all) else {*terminateds, *truncateds}
        for agent in alive:
            if agent not in loops:
                if agent in obs and agent not in ends:
                    loops[agent] = Loop(obs[agent])
                continue
            loop = loops[agent]
            if loop.pending and (agent in obs or agent in ends):
                loop.complete(obs.get(agent, loop.obs[-1]))
            if agent in ends:
                loop.flags = (agent in terminateds or by_all[0], agent in truncateds or by_all[1])
        step(chunks[-1], obs, actions, rewards, terminateds=terminateds, truncateds=truncateds)
        chunks[-1].validate()
        over = any(by_all) or all(any(loop.flags) for loop in loops.values())
        assert chunks[-1].is_done == over, t
        if over:
            break
        to_act = {agent for agent in obs if not any(loops[agent].flags)}
        assert chunks[-1].get_agents_to_act() == to_act
        if rng.random() < 0.3:
            chunks.append(make_chunk(chunks[-1], int(rng.integers(0, 4))))
    return chunks, loops, total


def joined(chunks):
    """Every agent's own steps, over chunks."""
    columns: dict = {}
    for chunk in chunks:
        for agent, one in chunk.agent_episodes.items():
            obs, actions, rewards, started = columns.setdefault(agent, ([], [], [], one.t_started))
            assert one.t_started == started + len(actions)
            obs[len(actions) :] = list(one.get_observations())
            actions.extend(one.get_actions())
            rewards.extend(one.get_rewards())
    return {agent: column[:3] for agent, column in columns.items()}


@pytest.mark.parametrize("seed", range(200))
def test_random_patterns_agree_with_a_loop_per_agent(seed):
    rng = np.random.default_rng(seed)
    chunks, loops, total = run_pattern(rng, lambda chunk, lookback: chunk.cut(lookback))
    expected = {agent: (loop.obs, loop.actions, loop.rewards) for agent, loop in loops.items()}
    assert joined(chunks) == expected
    assert sum(chunk.get_return(True) for chunk in chunks) == pytest.approx(total)
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole.concat_episode(chunk)
    whole.validate()
    assert joined([whole]) == expected and whole.get_return(True) == pytest.approx(total)
    for agent, loop in loops.items():
        one = whole.agent_episodes[agent]
        assert (one.is_terminated, one.is_truncated) == loop.flags
        assert [action for action, _ in [loop.pending] if action] if loop.pending else agent not in whole.hanging
    bounds = sorted({0, len(whole), *rng.integers(0, len(whole) + 1, 2).tolist()})
    lookback = int(rng.integers(0, 3))
    parts = [whole.slice(slice(a, b), len_lookback_buffer=lookback) for a, b in itertools.pairwise(bounds)]
    for part in parts:
        part.validate()
    assert joined(parts) == expected and sum(part.agent_steps() for part in parts) == whole.agent_steps()
    assert sum(part.get_return() for part in parts) == pytest.approx(whole.get_return())
    assert sum(part.get_return(True) for part in parts) == pytest.approx(total)
