"""MultiAgentEnv, independent copies, and vectors of environments of several agents."""

from __future__ import annotations

import logging

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete

from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv, make_multi_agent
from jaxrl_stack.env.vector.registration import make_vec
from jaxrl_stack.env.vector.sync_host_multi_agent_env import SyncHostMultiAgentEnv
from jaxrl_stack.env.vector.sync_vector_multi_agent_env import SyncVectorMultiAgentEnv
from jaxrl_stack.examples.envs.classes import multi_agent
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.error import MultiAgentEnvError


class Lengths(gym.Env):
    """Ends after as many steps as it is told to, terminated or truncated; observes its seed's first number."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, config):
        self.length, self.truncates = config["ends"].pop(0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        self.t += 1
        done = self.t >= self.length
        return np.ones(1, np.float32), 1.0, done and not self.truncates, done and self.truncates, {"t": self.t}


def copies(*ends):
    """One agent per (length, truncates)."""
    plan = list(ends)

    def create(context):
        context["ends"] = plan
        return Lengths(context)

    return make_multi_agent(create)({"num_agents": len(ends)})


class Scripted(MultiAgentEnv):
    """Returns what it is told to: a list of what `reset` returns, then what each `step` does."""

    def __init__(self, outcomes, possible_agents=("a", "b")):
        self._agent_ids = possible_agents
        super().__init__()
        self.observation_space = Discrete(10)
        self.action_space = Discrete(2)
        self.outcomes, self.resets, self.seeds = list(outcomes), 0, []
        self._left: list = []

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        self.seeds.append(seed)
        self._left = list(self.outcomes)
        return self._left.pop(0)

    def step(self, action_dict):
        return self._left.pop(0)


def flags(**given):
    return {"__all__" if agent == "all" else agent: flag for agent, flag in given.items()}


def test_spaces_of_an_agent_come_from_the_first_place_that_has_it():
    env = MultiAgentEnv()
    env.observation_spaces = {"a": Discrete(3)}
    env.observation_space = Dict({"b": Discrete(4)})
    assert env.get_observation_space("a") == Discrete(3) and env.get_observation_space("b") == Discrete(4)
    env.action_space = Discrete(5)
    assert env.get_action_space("anybody") == Discrete(5)
    env.action_space, env.action_spaces = None, {"a": Discrete(2)}
    with pytest.raises(ValueError, match=r"no action_space for agent 'b': action_spaces has \['a'\].*possible_agents"):
        env.get_action_space("b")


def test_agents_are_those_that_the_subclass_names():
    env = Scripted([], possible_agents=["x", "y"])
    assert env.agents == env.possible_agents == ["x", "y"] and env.num_agents == env.max_num_agents == 2
    assert MultiAgentEnv().num_agents == 0 and env.render() is None
    with pytest.raises(AttributeError, match="get_agent_ids is gone. Use possible_agents"):
        env.get_agent_ids()
    with pytest.raises(NotImplementedError, match="MultiAgentEnv does not define step"):
        MultiAgentEnv().step({})


def test_copies_have_ids_spaces_and_seeds_of_their_own():
    env = multi_agent.MultiAgentCartPole({"num_agents": 3})
    assert env.agents == env.possible_agents == [0, 1, 2]
    assert env.get_action_space(2) == Discrete(2) and env.get_observation_space(0).shape == (4,)
    obs, infos = env.reset(seed=5)
    assert infos == {0: {}, 1: {}, 2: {}} and len({value.tobytes() for value in obs.values()}) == 3
    again, _ = env.reset(seed=5)
    assert all((obs[i] == again[i]).all() for i in obs)
    other, _ = env.reset(seed=6)
    # Not seed + i: agent 1 of one environment is not agent 0 of the next one of a vector.
    assert not any((obs[i] == other[j]).all() for i in obs for j in other)
    env.close()


@pytest.mark.parametrize("config", [{"num_agents": 0}, {"num_agents": "2"}, {"num_agents": True}])
def test_a_wrong_number_of_copies_is_refused(config):
    with pytest.raises(ValueError, match=r"env_config=\{'num_agents': .*at least 1"):
        multi_agent.MultiAgentCartPole(config)


def test_settings_and_place_go_to_the_copies():
    contexts = []
    create = make_multi_agent(lambda context: contexts.append(context) or gym.make("CartPole-v1"))
    create(EnvContext({"num_agents": 2, "x": 1}, worker_index=3, vector_index=4))
    assert [(dict(one), one.worker_index, one.vector_index) for one in contexts] == [({"x": 1}, 3, 4)] * 2
    assert multi_agent.MultiAgentPendulum({"g": 3.0}).envs[0].unwrapped.g == 3.0


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([(1, False), (1, False)], (True, False)),
        ([(1, True), (1, True)], (False, True)),
        ([(1, False), (1, True)], (False, True)),
        ([(1, False), (2, False)], (False, False)),
    ],
)
def test_a_time_limit_is_a_truncation_of_everybody_and_no_termination(ends, expected):
    env = copies(*ends)
    env.reset(seed=0)
    _, rewards, terminateds, truncateds, infos = env.step({0: 0, 1: 0})
    assert (terminateds["__all__"], truncateds["__all__"]) == expected
    assert rewards == {0: 1.0, 1: 1.0} and infos == {0: {"t": 1}, 1: {"t": 1}}


def test_copies_that_have_ended_wait_for_the_others():
    env = copies((1, False), (3, True))
    env.reset(seed=0)
    env.step({0: 0, 1: 0})
    for wrong in ({0: 0, 1: 0}, {}, {7: 0}):
        with pytest.raises(ValueError, match=r"the acting agents are \[1\]"):
            env.step(wrong)
    assert env.step({1: 0})[3] == {1: False, "__all__": False}
    assert env.step({1: 0})[2:4] == ({1: False, "__all__": False}, {1: True, "__all__": True})
    env.reset()
    assert set(env.step({0: 0, 1: 0})[0]) == {0, 1}


FIRST = ({"a": 0}, {})
GOES_ON = ({"b": 1}, {"a": 1.0}, flags(all=False), {}, {})
LAST = ({"a": 2, "b": 2}, {"a": 1.0, "b": 2.0}, flags(all=True), {}, {"a": {"last": 1}})


def test_the_vector_resets_in_the_step_that_ends_an_episode_and_keeps_its_last_observations():
    vector = SyncHostMultiAgentEnv([lambda: Scripted([FIRST, GOES_ON, LAST])] * 2, "Scripted")
    obs, infos = vector.reset(seed=7)
    assert obs == [{"a": 0}] * 2 and infos == [{}] * 2
    assert [env.seeds for env in vector.envs] == [[7], [8]]
    step = vector.step([{"a": 0}] * 2)
    assert step.obs == [{"b": 1}] * 2 and step.resets == [False] * 2 and step.final_obs == [None] * 2
    step = vector.step([{"b": 0}] * 2)
    assert step.resets == [True] * 2 and step.obs == [{"a": 0}] * 2 and step.final_obs == [{"a": 2, "b": 2}] * 2
    assert step.rewards[0] == {"a": 1.0, "b": 2.0} and step.infos[0] == {"a": {"last": 1}}
    assert [env.resets for env in vector.envs] == [2, 2]
    # It goes on in the new episode.
    assert vector.step([{"a": 0}] * 2).obs == [{"b": 1}] * 2
    vector.close()


def test_ended_environments_can_be_held_in_their_last_state():
    vector = SyncHostMultiAgentEnv([lambda: Scripted([FIRST, LAST])], "Scripted")
    vector.reset()
    step = vector.step([{"a": 0}], holds_ended=True)
    assert step.resets == [True] and vector.envs[0].resets == 1
    vector.reset_ended(step)
    assert step.obs == [{"a": 0}] and vector.envs[0].resets == 2
    assert vector.step([{"a": 0}]).resets == [True]


@pytest.mark.parametrize(
    ("terminateds", "truncateds", "ends"),
    [
        ({"a": True}, {}, True),  # Nobody is left, and "__all__" does not say so.
        ({}, {"a": True}, True),
        ({"a": True, "__all__": False}, {}, False),
        ({"a": True}, {"__all__": False}, False),
        ({}, {"__all__": True}, True),
        ({"__all__": False}, {}, False),
        ({}, {}, False),
    ],
)
def test_an_episode_ends_by_its_flag_or_with_its_last_agent(terminateds, truncateds, ends):
    outcomes = [FIRST, ({"a": 1}, {"a": 0.0}, terminateds, truncateds, {})]
    vector = SyncHostMultiAgentEnv([lambda: Scripted(outcomes)], "Scripted")
    vector.reset()
    assert vector.step([{"a": 0}]).resets == [ends]


@pytest.mark.parametrize(
    ("outcomes", "actions", "message"),
    [
        ([({"c": 0}, {})], [], r"reset: returned observations of agent 'c', which is not among.*\['a', 'b'\]"),
        ([({"a": 99}, {})], [], r"reset: returned the observation 99 of agent 'a', which is not in its space Discrete"),
        ([(None, {})], [], "reset: returned the observations None. Return a dict by agent"),
        ([FIRST, 3], [{"a": 0}], r"step 1: returned 3. Return \(observations, rewards"),
        ([FIRST, GOES_ON], [{"b": 0}], r"step 1: got an action of agent 'b', which has ended or has no.*act: \['a'\]"),
        (
            [FIRST, ({"a": 1, "b": 1}, {}, {"a": True}, {}, {}), GOES_ON],
            [{"a": 0}, {"a": 0}],
            r"step 2: got an action of agent 'a', which has ended .*act: \['b'\]",
        ),
        ([FIRST, ({"a": 1}, {"a": np.nan}, {}, {}, {})], [{"a": 0}], "step 1: returned the reward nan of agent 'a'"),
        ([FIRST, ({"a": 1}, {"a": 0.0}, {"c": True}, {}, {})], [{"a": 0}], "step 1: returned terminateds of agent 'c'"),
        (
            [FIRST, ({"a": 1, "b": 1}, {}, {"a": True}, {}, {}), ({"a": 2}, {}, {}, {}, {})],
            [{"a": 0}, {"b": 0}],
            "step 2: returned an observation of agent 'a', which has ended",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_environment_agent_and_step(outcomes, actions, message):
    vector = SyncHostMultiAgentEnv([lambda: Scripted(outcomes)], "Scripted")

    def run():
        vector.reset()
        for action in actions:
            vector.step([action])

    with pytest.raises(MultiAgentEnvError, match=message) as error:
        run()
    assert "environment('Scripted')" in str(error.value)


NOBODY = ({}, {}, flags(all=False), {}, {})
ENDS_ALONE = ({"a": 1}, {"a": 1.0}, flags(a=True, all=False), {}, {})
COMES = ({"b": 2}, {}, {}, {}, {})
LAST_OF_B = ({"b": 3}, {"b": 1.0}, flags(all=True), {}, {})


def test_an_episode_whose_flag_says_so_goes_on_without_agents():
    outcomes = [({}, {}), NOBODY, ({"a": 0}, {}, {}, {}, {}), ENDS_ALONE, NOBODY, COMES, LAST_OF_B]
    vector = SyncHostMultiAgentEnv([lambda: Scripted(outcomes)], "Scripted")
    assert vector.reset()[0] == [{}]
    acting = ({}, {}, {"a": 0}, {}, {}, {"b": 0})
    steps = [vector.step([own]) for own in acting]
    assert [step.obs[0] for step in steps[:-1]] == [{}, {"a": 0}, {"a": 1}, {}, {"b": 2}]
    assert [step.resets[0] for step in steps] == [False] * 5 + [True] and steps[-1].final_obs == [{"b": 3}]


def test_without_a_flag_an_episode_ends_as_soon_as_all_agents_have():
    outcomes = [FIRST, ENDS_ALONE, ({}, {}, {}, {}, {})]
    vector = SyncHostMultiAgentEnv([lambda: Scripted(outcomes)], "Scripted")
    vector.reset()
    assert [vector.step([own]).resets for own in ({"a": 0}, {})] == [[False], [True]]


def test_an_environment_without_agents_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    with caplog.at_level(logging.WARNING):
        for first in ([FIRST, ENDS_ALONE], [({}, {})]):
            vector = SyncHostMultiAgentEnv([lambda first=first: Scripted([*first, *[NOBODY] * 150])], f"{len(first)}")
            vector.reset()
            for own in [{"a": 0}] * (len(first) - 1) + [{}] * 150:
                vector.step([own])
    after_the_end, from_the_start = [record.getMessage() for record in caplog.records]
    assert "environment('2'), step 101: no agent has had an observation in 100 steps" in after_the_end
    assert 'All agents have ended, but "__all__" is False' in after_the_end
    assert "environment('1'), step 100" in from_the_start and "stepped with {}" in from_the_start


def test_rewards_before_an_agents_first_action_are_named_once(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    paid = ({"a": 1}, {"a": 1.0, "b": 0.0}, {}, {}, {})
    early = ({"a": 2, "b": 2}, {"a": 1.0, "b": 5.0}, {}, {}, {})
    vector = SyncHostMultiAgentEnv([lambda: Scripted([FIRST, paid, early, early, LAST])] * 2, "Scripted")
    vector.reset()
    with caplog.at_level(logging.WARNING):
        vector.step([{"a": 0}] * 2)
        assert not caplog.records
        for acts in ({"a": 0}, {"a": 0, "b": 0}, {"a": 0, "b": 0}):
            vector.step([acts] * 2)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "environment('Scripted'), step 2: rewards of agent 'b' before its first action" in message


def test_an_environment_that_fails_is_replaced_and_the_others_go_on():
    made = []

    def make():
        made.append(Scripted([FIRST, GOES_ON if made else 3, LAST]))
        return made[-1]

    vector = SyncHostMultiAgentEnv([make, make], "Scripted")
    vector.reset(seed=0)

    def recover(index, error):
        assert index == 0 and isinstance(error, MultiAgentEnvError) and vector.renew()
        return vector.reset_one(index, seed=9)

    step = vector.step([{"a": 0}] * 2, recover)
    assert step.failed == [0] and step.resets == [True, False] and step.obs == [{"a": 0}, {"b": 1}]
    assert len(made) == 3 and vector.envs[0] is made[2] and made[2].seeds == [9]
    with pytest.raises(TypeError, match="is no MultiAgentEnv"):
        SyncHostMultiAgentEnv([lambda: gym.make("CartPole-v1")], "CartPole")


def test_rllibs_vector_resets_in_the_next_step():
    vector = SyncVectorMultiAgentEnv([lambda: Scripted([FIRST, LAST])] * 2)
    assert vector.reset(seed=3) == ([{"a": 0}] * 2, [{}] * 2)
    assert [env.seeds for env in vector.envs] == [[3], [4]] and vector.get_attr("resets") == (1, 1)
    obs, rewards, terminateds, _, infos = vector.step([{"a": 0}] * 2)
    assert obs == [LAST[0]] * 2 and rewards == [LAST[1]] * 2 and infos == [LAST[4]] * 2
    obs, rewards, terminateds, truncateds, _ = vector.step([{"a": 0}] * 2)
    assert obs == [{"a": 0}] * 2 and rewards == [{"a": 0.0}] * 2
    assert terminateds == truncateds == [{"a": False, "__all__": False}] * 2
    assert vector.call("get_action_space", "a") == (Discrete(2),) * 2 and vector.unwrapped is vector
    assert vector.single_observation_space == Discrete(10) and vector.single_observation_spaces is None
    vector.close()
    assert vector.closed
    with pytest.raises(ValueError, match="autoreset_mode='same_step'.*SyncHostMultiAgentEnv"):
        SyncVectorMultiAgentEnv([MultiAgentEnv], autoreset_mode="same_step")


def test_a_vector_is_made_by_an_id_of_gymnasium():
    entry_point = "jaxrl_stack.examples.envs.classes.multi_agent:MultiAgentCartPole"
    gym.register("jaxrl_stack-two-poles-v0", entry_point, kwargs={"config": {"num_agents": 2}})
    gym.register("jaxrl_stack-two-poles-v1", entry_point, max_episode_steps=5)
    try:
        vector = make_vec("jaxrl_stack-two-poles-v0", num_envs=3)
        obs, _ = vector.reset(seed=0)
        assert [set(row) for row in obs] == [{0, 1}] * 3 and set(vector.single_action_spaces) == {0, 1}
        assert [row[0].tobytes() for row in obs] != [row[1].tobytes() for row in obs]
        vector.close()
        with pytest.raises(ValueError, match="vectorization_mode='async'.*only 'sync'"):
            make_vec("jaxrl_stack-two-poles-v0", vectorization_mode="async")
        with pytest.raises(ValueError, match="max_episode_steps=5 has no effect on several agents"):
            make_vec("jaxrl_stack-two-poles-v1")
    finally:
        for version in (0, 1):
            del gym.registry[f"jaxrl_stack-two-poles-v{version}"]
