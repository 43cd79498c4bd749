"""Groups of agents as agents, and the check of environments of several agents."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete, Tuple

from jaxrl_stack.env.multi_agent_env import GROUP_INFO, GROUP_REWARDS, MultiAgentEnv, make_multi_agent
from jaxrl_stack.env.wrappers.group_agents_wrapper import GroupAgentsWrapper
from jaxrl_stack.examples.envs.classes.multi_agent import GuessTheNumberGame, TwoStepGame, TwoStepGameWithGroupedAgents
from jaxrl_stack.examples.envs.classes.six_room_env import HierarchicalSixRoomEnv, SixRoomEnv
from jaxrl_stack.examples.envs.classes.windy_maze_env import HierarchicalWindyMazeEnv, WindyMazeEnv
from jaxrl_stack.utils.pre_checks.env import check_multiagent_environments


class Table(MultiAgentEnv):
    """Three agents; rewards are the actions, and agent 2 ends first where `early` says so."""

    def __init__(self, early=False):
        self.possible_agents = [0, 1, 2]
        super().__init__()
        self.observation_space, self.action_space, self.early = Discrete(5), Discrete(5), early

    def reset(self, *, seed=None, options=None):
        return {0: 1, 1: 2, 2: 3}, {0: {"of": 0}}

    def step(self, action_dict):
        ends = {0: True, 1: self.early, 2: False, "__all__": False}
        infos = {1: {"of": 1}}
        return {0: 1, 1: 2, 2: 3}, {a: float(x) for a, x in action_dict.items()}, ends, {"__all__": False}, infos


def test_members_observe_and_are_rewarded_together_and_others_stay_as_they_are():
    env = Table().with_agent_groups({"pair": [1, 0]})
    assert env.possible_agents == ["pair", 2]
    assert env.get_observation_space("pair") == Tuple([Discrete(5), Discrete(5)])
    assert env.get_action_space(2) == Discrete(5)
    assert env.reset() == ({"pair": [2, 1], 2: 3}, {"pair": {GROUP_INFO: [{}, {"of": 0}]}})
    obs, rewards, terminateds, truncateds, infos = env.step({"pair": (4, 3), 2: 2})
    assert (obs, rewards) == ({"pair": [2, 1], 2: 3}, {"pair": 7.0, 2: 2.0})
    assert terminateds == {"pair": False, 2: False, "__all__": False} and truncateds == {"__all__": False}
    assert infos == {"pair": {GROUP_INFO: [{"of": 1}, {}], GROUP_REWARDS: [4.0, 3.0]}}


def test_a_group_has_ended_when_all_of_its_members_have():
    env = Table(early=True).with_agent_groups({"pair": [0, 1]})
    env.reset()
    assert env.step({"pair": (0, 0), 2: 0})[2]["pair"]


def test_groups_of_copies_observe_lists():
    env = GroupAgentsWrapper(make_multi_agent("CartPole-v1")({"num_agents": 4}), {"group1": [0, 1], "group2": [2, 3]})
    obs, _ = env.reset(seed=0)
    assert list(obs) == ["group1", "group2"] and all(isinstance(own, list) and len(own) == 2 for own in obs.values())


def test_groups_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"agent 1 is in multiple groups"):
        Table().with_agent_groups({"a": [0, 1], "b": [1, 2]})
    env = Table().with_agent_groups({"pair": [0, 1]})
    with pytest.raises(ValueError, match=r"group 'pair' has the members \[0, 1\], and got 1 actions"):
        env.step({"pair": [1]})
    env.env.reset = lambda **kwargs: ({0: 1}, {})  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"Group 'pair' lacks an entry for its member 1 in "):
        env.reset()


@pytest.mark.parametrize(
    "env",
    [
        Table(),
        TwoStepGame({}),
        TwoStepGame({"one_hot_state_encoding": True, "separate_state_space": True}),
        TwoStepGameWithGroupedAgents({}),
        GuessTheNumberGame({}),
        HierarchicalWindyMazeEnv({}),
        HierarchicalSixRoomEnv({}),
    ],
    ids=lambda env: type(env).__name__,
)
def test_environments_pass_the_check(env):
    check_multiagent_environments(env)


def test_the_check_names_what_is_wrong():
    with pytest.raises(ValueError, match="is not a MultiAgentEnv"):
        check_multiagent_environments(SixRoomEnv({}))
    env = Table()
    env.step = lambda actions: ({7: 0}, {}, {}, {}, {})  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"step 1: returned observations of agent 7"):
        check_multiagent_environments(env)
    env.reset = lambda **kwargs: 1 / 0  # type: ignore[method-assign]
    with pytest.raises(ValueError, match=r"Table.reset\(\) raised ZeroDivisionError"):
        check_multiagent_environments(env)


@pytest.mark.parametrize(("actions", "reward"), [((0, 0), 7), ((1, 0), 7)])
def test_the_safe_branch_of_the_two_step_game(actions, reward):
    env = TwoStepGame({})
    assert env.reset()[0] == {0: 0, 1: 3}
    assert env.step({0: 0, 1: 1})[0] == {0: 1, 1: 4}
    _, rewards, terminateds, *_ = env.step(dict(enumerate(actions)))
    assert sum(rewards.values()) == reward and terminateds["__all__"]


@pytest.mark.parametrize(("actions", "reward"), [((0, 0), 0), ((0, 1), 1), ((1, 0), 1), ((1, 1), 8)])
def test_the_risky_branch_of_the_two_step_game(actions, reward):
    env = TwoStepGameWithGroupedAgents({})
    env.reset()
    env.step({"agents": (1, 0)})
    assert env.step({"agents": actions})[1] == {"agents": reward}


def test_a_number_is_found_or_its_owner_wins():
    env = GuessTheNumberGame({"max_steps": 2})
    env.reset()
    assert env.step({0: (0, 1)})[0] == {1: 0}
    assert env.step({1: (0, 2)})[1] == {0: 1.0, 1: 1.0}  # it is lower than 2
    obs, rewards, terminateds, truncateds, _ = env.step({1: (2, 0)})
    assert (rewards[0], terminateds["__all__"], truncateds["__all__"], set(obs)) == (100.0, False, True, {0, 1})
    env.reset()
    env.step({0: (0, 1)})
    assert env.step({1: (2, 1)})[1:3] == ({0: -100.0, 1: 100.0}, {"__all__": True})


def test_workers_of_the_maze_have_25_steps_and_a_reward_for_their_direction():
    env = HierarchicalWindyMazeEnv({})
    env.reset(seed=0)
    east = 1
    (worker,) = env.step({"high_level_agent": east})[0]
    assert worker == "low_level_1"
    for t in range(25):
        env.flat_env.wind_direction = east if t == 0 else 0
        obs, rewards, terminateds, _, _ = env.step({worker: 1})
        assert rewards[worker] == float(t == 0)  # then the wind blows into the wall
        assert ("high_level_agent" in obs) == terminateds.get(worker, False) == (t == 24)
    assert list(env.step({"high_level_agent": east})[0]) == ["low_level_2"]


def test_the_maze_ends_at_its_goal_or_in_time():
    env = WindyMazeEnv({})
    env.reset(seed=0)
    env.pos, env.wind_direction = (4, 1), 2  # a wall
    assert env.step(1)[2:4] == (False, False)
    env.pos, env.wind_direction = (env.end_pos[0], env.end_pos[1] + 1), 3
    assert env.step(1)[1:4] == (100.0, True, False)
    env.reset()
    env.num_steps = 199
    assert env.step(0)[2:4] == (False, True)


def test_six_rooms_give_control_back_at_the_target_and_in_time():
    env = HierarchicalSixRoomEnv({"max_steps_low_level": 2, "time_limit": 7})
    start = env.reset()[0]["high_level_agent"]
    down, left = 1, 2
    obs, rewards, *_ = env.step({"high_level_agent": (start + 13, 2)})
    assert obs == {"low_level_agent_2": (start, start + 13)}
    np.testing.assert_allclose(rewards["high_level_agent"], 1 / (9**2 + 13**2) ** 0.5 - 1)
    assert env.step({"low_level_agent_2": down})[:2] == (
        {"high_level_agent": start + 13},
        {"low_level_agent_2": 1.0, "high_level_agent": 1.0},
    )
    env.step({"high_level_agent": (start, 0)})
    assert env.step({"low_level_agent_0": left})[1] == {"low_level_agent_0": -0.01}
    assert env.step({"low_level_agent_0": left})[1] == {"low_level_agent_0": -0.01, "high_level_agent": -0.01}
    env.step({"high_level_agent": (start, 1)})
    obs, _, terminateds, truncateds, _ = env.step({"low_level_agent_1": left})
    assert set(obs) == {"high_level_agent", "low_level_agent_1"}
    assert (terminateds["__all__"], truncateds["__all__"]) == (False, True)
