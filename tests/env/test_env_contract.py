"""Environments that are right in their first step and wrong in a later one: every mistake is refused by name."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from jaxrl_stack import PPOConfig
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.env_context import EnvContext
from jaxrl_stack.env.multi_agent_env import MultiAgentEnv
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.observation_forms import form_check, misfit
from jaxrl_stack.env.observation_watch import ObservationWatch
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.vector.sub_env import CheckedEnv, make_checked_env
from jaxrl_stack.env.vector.sync_host_multi_agent_env import SyncHostMultiAgentEnv
from jaxrl_stack.env.vector.sync_vector_env import SyncHostVectorEnv
from jaxrl_stack.env.vector.vector_env_adapter import VectorEnvAdapter
from jaxrl_stack.policy.inputs import checked_observations
from jaxrl_stack.utils import notices
from jaxrl_stack.utils.error import MultiAgentEnvError
from jaxrl_stack.utils.spaces import check_space

F = np.float32
BOX, IMAGE, BYTES = Box(0, 1, (3,)), Box(0, 255, (4, 4, 3), np.uint8), Box(0, 255, (2,), np.uint8)
SMALL, BITS, LONG = Box(-128, 127, (2,), np.int8), MultiBinary(2), Box(-(2**62), 2**62, (2,), np.int64)
DICT, TUPLE = Dict(a=Box(0, 1, (2,)), b=Discrete(3)), Tuple([Box(0, 1, (2,)), Discrete(3)])
PAIR = {"a": np.zeros(2, F), "b": 1}

FORMS = [
    (BOX, np.zeros(1, F), "has shape (1,)", "Return that shape"),
    (BOX, np.zeros((1, 3), F), "has shape (1, 3)", "Return that shape"),
    (BOX, np.zeros((3, 1), F), "has shape (3, 1)", "Return that shape"),
    (BOX, 0.5, "has shape ()", "Return that shape"),
    (BOX, [0.1, 0.2], "has shape (2,)", "Return that shape"),
    (BOX, None, "is None", "Return numbers"),
    (BOX, "abc", "is 'abc'", "Return numbers"),
    (BOX, np.array(["a", "b", "c"]), "is array(['a', 'b', 'c']", "Return numbers"),
    (BOX, [[1, 2], [3]], "is [[1, 2], [3]]", "Return numbers"),
    (BOX, np.zeros(3, complex), "is array([0.+0.j", "Return numbers"),
    (BOX, {"a": 1}, "is {'a': 1}", "Return numbers"),
    (BOX, (np.zeros(3, F), {}), "is a tuple of 2", "Return only the observation"),
    (IMAGE, np.zeros((4, 4), np.uint8), "has shape (4, 4)", "Return that shape"),
    (IMAGE, np.zeros((4, 4, 3), F), "has dtype float32", "obs.astype(np.uint8)"),
    (BYTES, np.array([300, 0]), "has the value 300", "larger dtype"),
    (BYTES, [-1, 0], "has the value -1", "larger dtype"),
    (BYTES, np.array([0.3, 0.9]), "has dtype float64", "obs.astype(np.uint8)"),
    (SMALL, [200, 0], "has the value 200, and int8", "larger dtype"),
    (BITS, np.array([0.5, 1]), "of dtype float64", "Return a choice as an integer"),
    (LONG, [1, 2**63], "is [1, 9223372036854775808]", "give observation_space a float dtype"),
    (BOX, np.ma.masked_array(np.zeros(3, F), [0, 1, 0]), "is a masked array", "value.filled(number)"),
    (MultiDiscrete([2, 3]), np.array([0, 1, 1]), "has shape (3,)", "Return that shape"),
    (Discrete(3), 1.0, "is 1.0, of dtype float64", "Return a choice as an integer"),
    (Discrete(3), np.array([1]), "has shape (1,)", "Return that shape"),
    (Discrete(3), "1", "is '1'", "Return numbers"),
    (Discrete(3), 2**70, "is 1180591620717411303424", "Return numbers"),
    (DICT, {"a": np.zeros(2, F)}, "lacks ['b']", "keys ['a', 'b']"),
    (DICT, {**PAIR, "c": 2}, "has ['c'], which its space does not have", "keys ['a', 'b']"),
    (DICT, {"a": np.zeros(2, F), "x": 2}, "lacks ['b'] and has ['x']", "keys ['a', 'b']"),
    (DICT, [np.zeros(2, F), 1], "is [array", "Return a dict"),
    (DICT, {**PAIR, "a": np.zeros(1, F)}, "['a'] has shape (1,)", "Return that shape"),
    (TUPLE, (np.zeros(2, F),), "is a tuple of 1", "Return a tuple of 2"),
    (TUPLE, np.zeros(2, F), "is array", "Return a tuple of 2"),
    (TUPLE, (np.zeros(2, F), 0.5), "[1] is 0.5, of dtype float64", "Return a choice as an integer"),
]
FITTING = [
    (BOX, np.zeros(3)),
    (BOX, [0, 1, 0]),
    (BOX, (0.1, 0.2, 0.3)),
    (BITS, (1, 0)),
    (MultiDiscrete([2, 3]), (1, 1)),
    (BOX, np.zeros(3, np.int64)),
    (Box(0, 1, ()), 0.5),
    (BYTES, np.array([255, 0])),
    (BYTES, [1, 2]),
    (BITS, np.array([True, False])),
    (Discrete(3), np.array(2)),
    (Discrete(3), True),
    (Discrete(3), np.uint8(2)),
    (MultiDiscrete([2, 3]), np.array([0, 1], np.int32)),
    (DICT, PAIR),
    (TUPLE, [np.zeros(2, F), 1]),
    (Box(0, 1, (2,), bool), np.array([0, 1])),
]
SIGNALS = [
    ({"reward": None}, "the reward None", "Return one number"),
    ({"reward": "1"}, "the reward '1'", "Return one number"),
    ({"reward": np.ones(1)}, "the reward array([1.])", "Return one number"),
    ({"reward": 1j}, "the reward 1j", "Return one number"),
    ({"terminated": None}, "terminated=None", "Return True or False"),
    ({"terminated": "False"}, "terminated='False'", "Return True or False"),
    ({"truncated": np.zeros(2, bool)}, "truncated=array", "Return True or False"),
    ({"truncated": 0.0}, "truncated=0.0", "Return True or False"),
    ({"terminated": 2}, "terminated=2", "Return True or False"),
    ({"truncated": np.int64(-1)}, "truncated=", "Return True or False"),
    ({"info": None}, "the info None", "Return a dict"),
    ({"info": [1]}, "the info [1]", "Return a dict"),
]


class Scripted(gym.Env):
    """Returns one good observation after another, and in one step, or in its second reset, something else."""

    action_space = Discrete(2)

    def __init__(self, config):
        self.observation_space = config["space"]
        self.config, self.num_resets = config, 0

    def reset(self, *, seed=None, options=None):
        self.time, self.num_resets = 0, self.num_resets + 1
        outcome = self.config.get("reset")
        return (self.good(), {}) if outcome is None or self.num_resets == 1 else outcome

    def step(self, action):
        self.time += 1
        ends = self.time == self.config.get("ends", 4)
        parts = {"obs": self.good(), "reward": 1.0, "terminated": ends, "truncated": False, "info": {}}
        if self.time == 3:
            parts |= self.config.get("step", {})
        return parts["outcome"] if "outcome" in parts else tuple(parts.values())

    def good(self):
        if self.observation_space == LONG:
            return np.zeros(2, np.int64)
        self.observation_space.seed(self.time)
        return self.observation_space.sample()


def _vector(**config):
    config = {"space": BOX, **config}
    return SyncHostVectorEnv(
        [lambda: Scripted({"space": config["space"]}), lambda: Scripted(config)], "Scripted", True, 7
    )


def _steps(vector, count=9):
    vector.reset()
    for _ in range(count):
        vector.step(np.zeros(2, np.int32))


@pytest.mark.parametrize(("space", "obs", "problem", "remedy"), FORMS)
def test_observations_of_another_form_are_refused(space, obs, problem, remedy):
    for config, place in (
        ({"step": {"obs": obs}}, "step 3"),
        ({"step": {"obs": obs}, "ends": 3}, "step 3"),
        ({"reset": (obs, {})}, "reset"),
    ):
        with pytest.raises(ValueError, match=r"^environment\(") as raised:
            _steps(_vector(space=space, **config))
        message = str(raised.value)
        assert message.startswith(f"environment('Scripted'): the observation of {place} of copy 1 in EnvRunner 7")
        assert problem in message and remedy in message


@pytest.mark.parametrize(("space", "obs"), FITTING)
def test_observations_that_convert_are_taken(space, obs):
    assert form_check(space)(obs) and misfit(space, obs, "obs") is None
    _steps(_vector(space=space, step={"obs": obs}))


@pytest.mark.parametrize(("signals", "problem", "remedy"), SIGNALS)
def test_signals_of_another_form_are_refused(signals, problem, remedy):
    with pytest.raises(ValueError, match=r"^environment\(") as raised:
        _steps(_vector(step=signals))
    message = str(raised.value)
    assert message.startswith("environment('Scripted'): step 3 of copy 1 in EnvRunner 7 returned")
    assert problem in message and remedy in message


GOOD = np.zeros(3, F)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"step": {"outcome": None}}, "step 3 of copy 1 in EnvRunner 7 returned a NoneType. Return a tuple of the 5"),
        ({"step": {"outcome": (GOOD, 1.0, False, {})}}, "returned 4 values. Return a tuple of the 5"),
        ({"step": {"outcome": [GOOD, 1.0, False, False, {}]}}, "returned a list. Return a tuple of the 5"),
        ({"reset": GOOD}, "reset of copy 1 in EnvRunner 7 returned a ndarray. Return a tuple of the 2"),
        ({"reset": np.zeros(2, F)}, "reset of copy 1 in EnvRunner 7 returned a ndarray"),
        ({"reset": (GOOD, {}, 0)}, "returned 3 values"),
        ({"reset": (GOOD, None)}, "returned the info None. Return a dict"),
        ({"reset": ({}, GOOD)}, "the observation of reset of copy 1 in EnvRunner 7 is {}"),
    ],
)
def test_outcomes_of_another_form_are_refused(config, problem):
    with pytest.raises(ValueError, match=r"^environment\(") as raised:
        _steps(_vector(**config))
    assert problem in str(raised.value)


def test_a_failed_environment_is_checked_when_it_starts_again():
    vector = _vector(step={"obs": None}, reset=(None, {}))
    vector.reset()
    errors = []

    def recover(index, error):
        errors.append(error)
        if len(errors) > 1:
            raise error
        return vector.reset_one(index, 0)

    for _ in range(2):
        vector.step(np.zeros(2, np.int32), recover)
    with pytest.raises(ValueError, match="the observation of reset of copy 1"):
        vector.step(np.zeros(2, np.int32), recover)
    assert "the observation of step 3" in str(errors[0])


def test_processes_of_asynchronous_vectors_check_their_environment():
    context = EnvContext({"space": BOX, "step": {"obs": np.zeros(1, F)}}, worker_index=2, vector_index=5)
    env = make_checked_env("Scripted", Scripted, context)
    assert isinstance(env, CheckedEnv)
    env.reset()
    env.step(0)
    env.step(0)
    with pytest.raises(ValueError, match="the observation of step 3 of copy 5 in EnvRunner 2 has shape"):
        env.step(0)
    env = make_checked_env("Scripted", Scripted, EnvContext({"space": BOX, "reset": GOOD}, worker_index=0))
    env.reset()
    with pytest.raises(ValueError, match="reset of copy 0 in EnvRunner 0 returned a ndarray"):
        env.reset()


class Pool(gym.vector.VectorEnv):
    """A vector of two that returns something else in its third step."""

    def __init__(self, mode=AutoresetMode.NEXT_STEP, **parts):
        self.metadata, self.parts, self.num_envs = {"autoreset_mode": mode}, parts, 2
        self.single_observation_space, self.single_action_space = BOX, Discrete(2)
        self.observation_space, self.action_space = (batch_space(s, 2) for s in (BOX, Discrete(2)))

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return np.zeros((2, 3), F), {}

    def step(self, actions):
        self.time += 1
        parts = {"obs": np.zeros((2, 3), F), "rewards": np.ones(2), "terminateds": np.zeros(2, bool)}
        parts |= {"truncateds": np.zeros(2, bool), "infos": {}}
        return tuple((parts | self.parts if self.time == 3 else parts).values())


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        (
            {"obs": np.zeros((1, 3), F)},
            "the batch of observations of step 3 after reset in EnvRunner 4 has shape (1, 3)",
        ),
        ({"obs": np.zeros(3, F)}, "the batch of observations of step 3 after reset in EnvRunner 4 has shape (3,)"),
        ({"rewards": 1.0}, "step 3 after reset in EnvRunner 4 returned rewards=1.0. Return one number"),
        ({"rewards": [1.0, [1.0]]}, "returned rewards=[1.0, [1.0]]. Return one number for each copy"),
        ({"terminateds": np.array([2, 0])}, "returned terminateds=array([2, 0]). Return one bool for each copy"),
        ({"rewards": np.ones((2, 1))}, "returned rewards of shape (2, 1)"),
        ({"rewards": np.array([None, 1.0])}, "returned rewards of shape (2,) and dtype object"),
        ({"terminateds": False}, "returned terminateds=False"),
        ({"truncateds": np.zeros(2)}, "returned truncateds of shape (2,) and dtype float64"),
        ({"infos": [{}, {}]}, "returned infos=[{}, {}]. Return a dict"),
        ({"more": 1}, "returned 6 values. Return a tuple of the 5"),
        (
            {"terminateds": np.array([True, False]), "infos": {"final_obs": np.array([GOOD[:1], None], object)}},
            "infos['final_obs'][0] of step 3 after reset in EnvRunner 4 has shape (1,)",
        ),
    ],
)
def test_vectors_of_their_own_are_checked_in_every_step(parts, problem):
    mode = AutoresetMode.SAME_STEP if "final_obs" in str(parts) else AutoresetMode.NEXT_STEP
    vector = VectorEnvAdapter(Pool(mode, **parts), "Pool", 2, worker_index=4)
    with pytest.raises(ValueError, match=r"^environment\(") as raised:
        _steps(vector, 3)
    assert str(raised.value).startswith("environment('Pool'): ") and problem in str(raised.value)


def test_vectors_of_their_own_may_return_lists_of_observations():
    vector = VectorEnvAdapter(Pool(obs=[[0.1, 0.2, 0.3]] * 2), "Pool", 2)
    vector.reset()
    obs = [vector.step(np.zeros(2, np.int32)).obs for _ in range(3)]
    assert obs[-1].shape == (2, 3) and isinstance(obs[-1], np.ndarray)


class Several(MultiAgentEnv):
    """Agent b first observes in the third step; then something else is returned."""

    possible_agents = ("a", "b")

    def __init__(self, config):
        super().__init__()
        self.observation_spaces = dict.fromkeys("ab", config.get("space", BOX))
        self.action_spaces = dict.fromkeys("ab", Discrete(2))
        self.config = config

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return {"a": self.good()}, {}

    def step(self, actions):
        self.time += 1
        obs = {"a": self.good()}
        parts = {"obs": obs, "rewards": {"a": 1.0}, "terminateds": {}, "truncateds": {"__all__": self.time == 6}}
        parts |= {"infos": {}}
        if self.time == 3:
            for name, own in self.config["step"].items():
                parts[name] = {**parts[name], **own} if isinstance(own, dict) else own
        return tuple(parts.values())

    def good(self):
        space = self.observation_spaces["a"]
        space.seed(0)
        return space.sample()


def _several(**config):
    vector = SyncHostMultiAgentEnv([lambda: Several(config)], "Several", True, 7)
    obs, _ = vector.reset()
    for _ in range(4):
        obs = vector.step([dict.fromkeys(obs[0], 0)]).obs


@pytest.mark.parametrize(("space", "obs", "problem", "remedy"), FORMS)
@pytest.mark.parametrize("agent", ["a", "b"])
def test_observations_of_agents_are_checked_whenever_they_come(agent, space, obs, problem, remedy):
    with pytest.raises(MultiAgentEnvError) as raised:
        _several(space=space, step={"obs": {agent: obs}})
    message = str(raised.value)
    assert message.startswith("environment('Several'), copy 0 in EnvRunner 7, step 3: returned an observation")
    assert f"of agent {agent!r}" in message and problem in message and remedy in message


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({"rewards": {"a": None}}, "returned the reward None of agent 'a'"),
        ({"rewards": {"a": np.ones(1)}}, "returned the reward array([1.]) of agent 'a'"),
        ({"rewards": {"a": "1"}}, "returned the reward '1' of agent 'a'"),
        ({"terminateds": {"a": None}}, "returned terminated=None of agent 'a'"),
        ({"truncateds": {"a": np.zeros(2, bool)}}, "returned truncated=array"),
        ({"terminateds": {"__all__": "no"}}, "returned terminated='no' of agent '__all__'"),
        ({"infos": {"a": [1]}}, "returned the info [1] of agent 'a'"),
        ({"infos": 3}, "returned the infos 3. Return a dict by agent"),
        ({"terminateds": {"a": 2}}, "returned terminated=2 of agent 'a'"),
        ({"obs": {"__all__": GOOD}}, "returned observations of '__all__'. Return observations of agents only"),
        ({"rewards": {"__all__": 1.0}}, "returned rewards of '__all__'"),
    ],
)
def test_signals_of_agents_are_checked_in_every_step(step, problem):
    with pytest.raises(MultiAgentEnvError) as raised:
        _several(step=step)
    assert "step 3: " in str(raised.value) and problem in str(raised.value)


# ----------------------------------------------------------------------------------------------------------- values


def _config(env, **env_config):
    config = PPOConfig().environment(env, env_config=env_config).env_runners(num_env_runners=0)
    return config.rl_module(model_config={"fcnet_hiddens": [2]})


def test_infos_of_nobody_are_noticed(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    _several(step={"infos": {"a": {}, "__common__": {}, "__all__": {}}})
    assert not caplog.records
    _several(step={"infos": {"A": {}}})
    (message,) = [record.getMessage() for record in caplog.records]
    assert "step 3: infos of ['A'] belong to none of its possible_agents" in message


def _of_agents(env, **env_config):
    return _config(env, **env_config).multi_agent(
        policies={"p"}, policy_mapping_fn=lambda agent, episode, **kwargs: "p"
    )


CHOICES = Dict(one=Discrete(3, start=1), more=MultiDiscrete([2, 3]), bits=BITS)
CHOSEN = {"one": 1, "more": np.array([0, 1]), "bits": np.array([0, 1], np.int8)}


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"one": 4}, "obs['one'] = 4, outside of Discrete(3, start=1)"),
        ({"one": 0}, "obs['one'] = 0, outside of"),
        ({"more": np.array([0, 3])}, "obs['more'][1] = 3, outside of MultiDiscrete"),
        ({"bits": np.array([2, 0], np.int8)}, "obs['bits'][0] = 2, outside of MultiBinary(2)"),
    ],
)
def test_choices_that_do_not_exist_are_refused_by_step(wrong, problem):
    watch = ObservationWatch(CHOICES, 2, "Chooses", lambda row: f"copy {row}")
    good = {key: np.stack([CHOSEN[key]] * 2) for key in CHOSEN}
    watch.begin()
    for step in range(300):  # more than are kept
        watch.add(step, good)
    watch.add(300, {key: np.stack([CHOSEN[key], {**CHOSEN, **wrong}[key]]) for key in CHOSEN})
    watch.add(301, {key: np.stack([CHOSEN[key], {**CHOSEN, **wrong}[key]]) for key in CHOSEN}, np.array([True, False]))
    (found,) = watch.found()
    assert (found.step, found.row) == (300, 1) and found.what.startswith(problem)
    assert "as many choices" in found.remedy


def test_runners_name_environment_step_and_value():
    runner = SingleAgentEnvRunner(config=_config(Scripted, space=Discrete(3), step={"obs": 3}))
    with pytest.raises(
        ValueError, match=r"Environment 0 of EnvRunner 0 \(environment\('Scripted'\).* obs = 3, outside of D"
    ):
        runner.sample_block(num_steps=8)
    runner.stop()
    # The observation that ends an episode is acted on by nobody.
    runner = SingleAgentEnvRunner(config=_config(Scripted, space=Discrete(3), ends=3, step={"obs": 3}))
    with pytest.raises(ValueError, match=r"obs = 3, outside of Discrete\(3\), in step 2 of the 8"):
        runner.sample(num_timesteps=8)
    runner.stop()
    config = _of_agents(Several, space=Discrete(3), step={"obs": {"b": 7}})
    runner = MultiAgentEnvRunner(config=config)
    with pytest.raises(ValueError, match=r"EnvRunner 0 .* obs = 7, outside of Discrete\(3\), of agent 'b', in step 3"):
        runner.sample_block(num_steps=8)
    runner.stop()


def test_numbers_beyond_the_bounds_of_a_box_are_noticed_once(caplog, monkeypatch):
    monkeypatch.setattr(notices, "_given", set())
    space = Dict(position=Box(-1, 1, (2,)), open=Box(-np.inf, np.inf, (1,)))
    runner = SingleAgentEnvRunner(
        config=_config(Scripted, space=space, step={"obs": {"position": F([0, 5]), "open": F([9])}})
    )
    for _ in range(3):
        runner.sample_block(num_steps=4)
    runner.stop()
    said = [record.getMessage() for record in caplog.records if "outside of its space" in record.getMessage()]
    assert len(said) == 1
    assert "copy 0 in EnvRunner 0 returned obs['position'][1] = 5.0. Give observation_space the bounds" in said[0]


def test_nothing_is_looked_at_where_the_checks_are_switched_off():
    config = _config(Scripted, space=Discrete(3), step={"obs": 3}).environment(disable_env_checking=True)
    runner = SingleAgentEnvRunner(config=config)
    runner.sample_block(num_steps=8)
    runner.stop()


class Refills(MultiAgentEnv):
    """Returns the same array and the same info in every step, with other numbers."""

    possible_agents = agents = ["a"]
    observation_spaces, action_spaces = {"a": Box(0, 9, (2,))}, {"a": Discrete(2)}

    def __init__(self, config=None):
        super().__init__()
        self.obs, self.info = np.zeros(2, F), {"time": 0, "place": np.zeros(1)}

    def reset(self, *, seed=None, options=None):
        return self.filled(0)

    def step(self, actions):
        obs, infos = self.filled(self.info["time"] + 1)
        return obs, {"a": 1.0}, {"__all__": self.info["time"] == 5}, {}, infos

    def filled(self, time):
        self.obs[:], self.info["time"], self.info["place"][:] = time, time, time
        return {"a": self.obs}, {"a": self.info}


class RefillsAlone(gym.Env):
    """The same with one agent."""

    observation_space, action_space = Box(0, 9, (2,)), Discrete(2)

    def __init__(self, config=None):
        self.env = Refills()

    def reset(self, *, seed=None, options=None):
        obs, infos = self.env.reset()
        return obs["a"], infos["a"]

    def step(self, action):
        obs, rewards, terminateds, _, infos = self.env.step({"a": action})
        return obs["a"], rewards["a"], terminateds["__all__"], False, infos["a"]


def test_a_reset_changes_no_final_observation():
    vector = SyncHostMultiAgentEnv([Refills], "Refills", True, 0)
    obs, _ = vector.reset()
    for _ in range(5):
        step = vector.step([dict.fromkeys(obs[0], 0)])
    assert step.final_obs[0]["a"].tolist() == [5, 5] and step.obs[0]["a"].tolist() == [0, 0]
    assert step.infos[0]["a"]["time"] == 5


@pytest.mark.parametrize("has_callback", [False, True])
def test_episodes_own_what_environments_fill_again(has_callback):
    callbacks = {"on_episode_step": lambda **kwargs: None} if has_callback else {}
    runners = (
        SingleAgentEnvRunner(config=_config(RefillsAlone).callbacks(**callbacks)),
        MultiAgentEnvRunner(config=_of_agents(Refills).callbacks(**callbacks)),
    )
    for runner in runners:
        (episode,) = runner.sample(num_episodes=1)
        episode = getattr(episode, "agent_episodes", {"a": episode})["a"]
        times = list(range(6))
        assert [float(obs[0]) for obs in episode.get_observations()] == times
        assert [info["time"] for info in episode.get_infos()] == times
        assert [float(info["place"][0]) for info in episode.get_infos()] == times
        runner.stop()


# -------------------------------------------------------------------------------------------- integers of 64 bits

BIG = 1_795_000_000_000


def test_integers_beyond_int32_are_floats_where_the_module_gets_floats():
    for space, obs in ((LONG, np.array([BIG, 3])), (Dict(a=LONG, b=Discrete(3)), {"a": np.array([BIG, 3]), "b": 1})):
        runner = SingleAgentEnvRunner(config=_config(Scripted, space=space, step={"obs": obs}))
        (episode,) = runner.sample(num_episodes=1)
        np.testing.assert_array_equal(episode.get_observations(3)[:2], F([BIG, 3]))
        runner.stop()
    runner = MultiAgentEnvRunner(config=_of_agents(Several, space=LONG, step={"obs": {"b": np.array([BIG, 3])}}))
    (episode,) = runner.sample(num_episodes=1)
    np.testing.assert_array_equal(episode.agent_episodes["b"].get_observations(0), F([BIG, 3]))
    runner.stop()


class CountsInIntegers(RLModule):
    """Takes observations as they are."""

    def setup(self):
        pass

    def _forward(self, batch, **kwargs):
        obs = batch["obs"]
        assert obs.dtype == np.int32
        return {"action_dist_inputs": 0.0 * obs.astype(F)}


def test_integers_beyond_int32_are_refused_where_the_module_gets_integers():
    config = _config(Scripted, space=LONG, step={"obs": np.array([BIG, 3])})
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=CountsInIntegers))
    runner = SingleAgentEnvRunner(config=config)
    with pytest.raises(ValueError, match=rf"obs\[0\] = {BIG}, which int32, .* cannot hold, in step 3 .* np.float32"):
        runner.sample_block(num_steps=8)
    runner.stop()


@pytest.mark.parametrize("space", [Discrete(3, start=2**40), Discrete(2**33), MultiDiscrete([2, 2**33])])
def test_choices_beyond_int32_are_refused_when_the_space_is_looked_at(space):
    with pytest.raises(ValueError, match="compiled programs use int32"):
        check_space(space, "observation_space")


def test_served_observations_are_in_their_space():
    with pytest.raises(ValueError, match="has the value 300, which does not fit the dtype uint8"):
        checked_observations(BYTES, [300, 0], 0)
    with pytest.raises(ValueError, match=f"has the value {BIG}, which does not fit the dtype int32"):
        checked_observations(LONG, np.array([[BIG, 0]]), 1)
    with pytest.raises(ValueError, match=r"has the value 3, outside of Discrete\(3\)"):
        checked_observations(Discrete(3), np.array([1, 3]), 1)
    assert checked_observations(MultiDiscrete([2, 3]), np.array([[1, 2]]), 1).dtype == np.int32
