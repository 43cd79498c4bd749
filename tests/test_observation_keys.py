"""`policy_obs_key` and `value_obs_key`: policy and value function see different keys of Dict observations."""

from __future__ import annotations

import importlib.machinery
import sys
import types

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gymnasium.spaces import Box, Dict, Discrete

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.bc.default_bc_rl_module import DefaultBCRLModule
from jaxrl_stack.algorithms.dqn.dqn_catalog import DQNCatalog
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.marwil import MARWILConfig
from jaxrl_stack.algorithms.observation_key_settings import check_observation_key_settings
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.registry import ALGORITHMS, get_algorithm_class
from jaxrl_stack.connectors.env_to_module import DefaultObservations, MeanStdFilter
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import ACTOR, CRITIC, batched_state
from jaxrl_stack.core.rl_module.rl_module import RLModule
from jaxrl_stack.datasets.checks import RecordedSpaces, checked
from jaxrl_stack.datasets.recorded_keys import key_problem, without_extra_keys
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.env.jax_env import AutoResetJaxEnv, GymnaxEnv
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import (
    ALL_AGENTS,
    OWN,
    AddObservationsOfAllAgents,
)
from jaxrl_stack.examples.envs.multi_agent import MultiAgentCartPole
from jaxrl_stack.examples.rl_modules.classes.intrinsic_curiosity_model_rlm import IntrinsicCuriosityModel
from jaxrl_stack.offline.offline_data import OfflineData
from jaxrl_stack.policy.export import load_exported
from tests import programs
from tests.policy import policy_cases

ACTIONS = Discrete(2)


def vector(size):
    return Box(-np.inf, np.inf, (size,), np.float32)


SPACES = {
    "state": vector(2),
    "privileged_state": vector(3),
    "goal": Discrete(3, start=1),
    "camera": Box(0, 255, (6, 6, 1), np.uint8),
}
KEYS = {"policy_obs_key": "state", "value_obs_key": ["state", "privileged_state"], "vf_share_layers": False}
SMALL = {"fcnet_hiddens": [4], "conv_filters": None}
LSTM = {"use_lstm": True, "lstm_cell_size": 3}


class Watched(AutoResetJaxEnv):
    """gymnax's CartPole: positions in "state", everything in "privileged_state", a constant in "goal"."""

    def __init__(self):
        self.env = GymnaxEnv("CartPole-v1")
        self.action_space = self.env.action_space
        self.observation_space = Dict(state=vector(2), privileged_state=vector(4), goal=SPACES["goal"])

    @property
    def params(self):
        return self.env.params

    def _shown(self, obs):
        return {"state": obs[::2], "privileged_state": obs, "goal": jnp.int32(1)}

    def reset_env(self, key, params):
        obs, state = self.env.reset_env(key, params)
        return self._shown(obs), state

    def step_env(self, key, state, action, params):
        obs, *outcome = self.env.step_env(key, state, action, params)
        return (self._shown(obs), *outcome)


register_env("watched", lambda context: Watched())
register_env("watched-host", lambda context: GymnasiumFromJax(Watched()))


def module(space, *, module_class=DefaultPPORLModule, inference_only=False, **model_config):
    return module_class(
        observation_space=space,
        action_space=ACTIONS,
        inference_only=inference_only,
        model_config={**SMALL, **model_config},
        rngs=0,
    )


def batch_of(own, observations):
    """Columns of two rows, or of two sequences of three steps for a module with a state."""
    state = own.get_initial_state()
    if not state:
        return {Columns.OBS: observations}
    sequences = jax.tree.map(lambda x: jnp.repeat(jnp.asarray(x)[:, None], 3, axis=1), observations)
    return {Columns.OBS: sequences, Columns.STATE_IN: batched_state(state, 2)}


def rows(space):
    space.seed(0)
    return jax.tree.map(lambda *xs: np.stack(xs), space.sample(), space.sample())


def copy_weights(keyed, plain, *prefixes):
    """Gives a module without keys the weights of some parts of a module with keys."""
    own = {name.replace("/encoder/", "/"): x for name, x in keyed.get_state().items()}
    plain.set_state({name: own[name] if name.startswith(prefixes) else x for name, x in plain.get_state().items()})


def logits(own, observations):
    return np.asarray(own.forward_inference(batch_of(own, observations))[Columns.ACTION_DIST_INPUTS])


@pytest.mark.parametrize("memory", [{}, LSTM], ids=["stateless", "lstm"])
@pytest.mark.parametrize(
    ("policy_key", "value_keys"), [("state", ["state", "privileged_state"]), ("camera", ["goal", "state"])]
)
def test_networks_are_those_of_an_environment_that_has_the_selected_keys_only(policy_key, value_keys, memory):
    space = Dict({name: SPACES[name] for name in {policy_key, *value_keys}})
    keyed = module(space, vf_share_layers=False, policy_obs_key=policy_key, value_obs_key=value_keys, **memory)
    seen = rows(space)
    parts = Dict({name: SPACES[name] for name in value_keys})
    of_policy, of_values = SPACES[policy_key], vector(gym.spaces.flatdim(parts))
    flat = np.stack([gym.spaces.flatten(parts, {key: seen[key][i] for key in value_keys}) for i in range(2)])
    policy, values = (module(own, vf_share_layers=False, **memory) for own in (of_policy, of_values))
    copy_weights(keyed, policy, "encoder/actor", "pi")
    copy_weights(keyed, values, "encoder/critic", "vf")
    np.testing.assert_array_equal(logits(keyed, seen), logits(policy, seen[policy_key]))
    expected = values.compute_values(batch_of(values, flat.astype(np.float32)))
    np.testing.assert_array_equal(keyed.compute_values(batch_of(keyed, seen)), expected)


def test_keys_of_both_may_be_equal_for_a_shared_encoder_in_any_order():
    space = Dict({name: SPACES[name] for name in ("state", "privileged_state", "goal")})
    settings = {"policy_obs_key": ["state", "goal"], "value_obs_key": ["goal", "state"]}
    for shared in (True, False):
        own = module(space, vf_share_layers=shared, **settings)
        assert own.catalog.critic_encoder_config is None
        some = {name: x for name, x in rows(space).items() if name != "privileged_state"}
        assert own.compute_values({Columns.OBS: some}).shape == (2,)


def test_a_setting_that_is_none_selects_all_keys():
    space = Dict({name: SPACES[name] for name in ("state", "privileged_state")})
    catalog = PPOCatalog(space, ACTIONS, {"policy_obs_key": "state", "vf_share_layers": False})
    assert catalog.observed_keys == {"policy_obs_key": ("state",), "value_obs_key": ("privileged_state", "state")}
    assert PPOCatalog(space, ACTIONS, {}).observed_keys is None


@pytest.mark.parametrize("memory", [{}, LSTM], ids=["stateless", "lstm"])
def test_acting_needs_the_keys_of_the_policy_only(memory):
    space = Dict({name: SPACES[name] for name in ("state", "privileged_state")})
    own = module(space, inference_only=True, **KEYS, **memory)
    seen = rows(space)
    some = {"state": seen["state"]}
    np.testing.assert_array_equal(logits(own, seen), logits(own, some))
    if memory:
        before = jax.tree.map(lambda x: x + 1.0, batched_state(own.get_initial_state(), 2))
        after = own.forward_inference({**batch_of(own, some), Columns.STATE_IN: before})[Columns.STATE_OUT]
        jax.tree.map(np.testing.assert_array_equal, after[CRITIC], before[CRITIC])
        assert not np.array_equal(after[ACTOR]["h"], before[ACTOR]["h"])
    with pytest.raises(ValueError, match="Observations have no key 'privileged_state', which this network reads"):
        module(space, **KEYS, **memory).compute_values(batch_of(own, some))


def test_behaviour_cloning_selects_the_keys_of_its_policy():
    space = Dict({name: SPACES[name] for name in ("state", "goal")})
    keyed = module(space, module_class=DefaultBCRLModule, policy_obs_key="state")
    plain = module(SPACES["state"], module_class=DefaultBCRLModule)
    seen = rows(space)
    np.testing.assert_array_equal(logits(keyed, seen), logits(plain, seen["state"]))


def test_a_mask_of_actions_stands_next_to_the_keys():
    inner = Dict({name: SPACES[name] for name in ("state", "privileged_state", "goal")})
    space = Dict(legal=Box(0, 1, (2,), np.float32), observations=inner)
    connector = DefaultObservations(space, ACTIONS, action_mask_key="legal", keys=["goal", "state"])
    assert connector.observation_space == Dict(
        action_mask=space["legal"], observations=Dict(goal=Box(0, 1, (3,), np.float32), state=SPACES["state"])
    )
    own = module(connector.observation_space, vf_share_layers=False, policy_obs_key="state", value_obs_key="goal")
    obs = {"action_mask": np.array([[0.0, 1.0]] * 2), "observations": rows(connector.observation_space["observations"])}
    assert (logits(own, obs)[:, 0] < -1e8).all()
    assert own.compute_values({Columns.OBS: obs}).shape == (2,)


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (Dict(SPACES), {"policy_obs_key": "stat"}, "policy_obs_key='stat': observations have no key 'stat'.*'state'"),
        (SPACES["state"], {"value_obs_key": "state"}, "value_obs_key='state' needs Dict observations, .* is Box"),
        (
            Dict(SPACES),
            {"policy_obs_key": "state", "vf_share_layers": True},
            "policy_obs_key='state', value_obs_key=None: with vf_share_layers=True .*'vf_share_layers': False",
        ),
    ],
)
def test_keys_that_cannot_be_selected_are_refused_by_name(space, settings, message):
    with pytest.raises(ValueError, match=message):
        PPOCatalog(space, ACTIONS, {"vf_share_layers": False, **settings})


def test_networks_that_do_not_select_keys_refuse_them():
    with pytest.raises(ValueError, match="policy_obs_key='state': the networks of DQNCatalog do not read this setting"):
        DQNCatalog(Dict(SPACES), ACTIONS, {"policy_obs_key": "state"})
    with pytest.raises(ValueError, match="value_obs_key='state': the networks of BCCatalog do not read"):
        module(Dict(SPACES), module_class=DefaultBCRLModule, value_obs_key="state")


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_each_algorithm_reads_a_key_for_its_policy_or_refuses_it(name):
    config = get_algorithm_class(name).get_default_config()
    config.rl_module(model_config={"policy_obs_key": "state", "vf_share_layers": False})
    if name in ("PPO", "IMPALA", "APPO", "MARWIL", "BC"):
        spec = config.environment(observation_space=Dict(SPACES), action_space=ACTIONS).get_rl_module_spec()
        assert set(spec.observation_space.spaces) == ({"state"} if name == "BC" else set(SPACES))
    else:
        with pytest.raises(ValueError, match=f"policy_obs_key='state': the networks of {name}Config do not read"):
            config.validate()


def test_a_policy_with_a_privileged_critic_is_trained_and_served_without_the_privileged_key(tmp_path):
    config = programs.ppo("watched", **KEYS)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    algo = config.build_algo()
    assert np.isfinite(algo.train()["learners"]["default_policy"]["vf_loss"])
    own = algo.get_module()
    assert set(own.observation_space.spaces) == {"state", "privileged_state"}
    policy = algo.get_policy()
    statistics = jax.tree.leaves_with_path(policy.get_state("env_to_module_connector"))
    paths = [jax.tree_util.keystr(path) for path, _ in statistics]
    for key in ("obs/state", "obs/privileged_state"):
        assert any(f"'{key}'" in path for path in paths)
    exported = load_exported(policy.export(tmp_path / "exported"))
    whole = {"state": [[0.1, 0.2]], "privileged_state": [[0.1, 0.0, 0.2, 0.0]], "goal": [1]}
    expected = policy.compute_actions(whole)[2][Columns.ACTION_DIST_INPUTS]
    for acting in (policy, exported):
        assert acting.unread_observations == ["goal", "privileged_state"]
        found = acting.compute_actions({"state": [[0.1, 0.2]]})[2][Columns.ACTION_DIST_INPUTS]
        np.testing.assert_array_equal(found, expected)
        single = acting.compute_single_action({"state": [0.1, 0.2]})[2][Columns.ACTION_DIST_INPUTS]
        np.testing.assert_array_equal(single, expected[0])
        with pytest.raises(ValueError, match=r"no key 'state', which the policy reads. Add it; only \['goal', 'privi"):
            acting.compute_actions({"privileged_state": whole["privileged_state"]})
    algo.stop()


@pytest.mark.parametrize("config_class", [IMPALAConfig, APPOConfig])
def test_impala_and_appo_train_with_different_keys(config_class):
    config = config_class().environment("watched").rl_module(model_config={"fcnet_hiddens": [4], **KEYS})
    config.env_runners(num_envs_per_env_runner=4, rollout_fragment_length=8).learners(num_cpus_per_learner=1)
    config.training(train_batch_size_per_learner=32).reporting(min_time_s_per_iteration=None)
    algo = config.build_algo()
    before = algo.get_module().get_state()
    algo.train()
    after = algo.get_module().get_state()
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {"encoder/actor/encoder/dense_0/kernel", "encoder/critic/encoder/dense_0/kernel"} <= changed
    algo.stop()


def test_a_value_function_sees_all_agents_and_policies_see_their_own_observations():
    config = programs.ppo(MultiAgentCartPole, policy_obs_key=OWN, value_obs_key=ALL_AGENTS)
    config.environment(env_config={"num_agents": 2})
    config.env_runners(env_to_module_connector=lambda env, spaces, device: AddObservationsOfAllAgents())
    config.multi_agent(policies={"all"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "all")
    algo = config.build_algo()
    assert np.isfinite(algo.train()["learners"]["all"]["vf_loss"])
    assert algo.get_policy("all").compute_single_action({OWN: np.zeros(6)})[0] in (0, 1)
    algo.stop()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """A PPO with an LSTM on "watched-host", whose networks see "state" and "privileged_state", and its recording."""
    folder = str(tmp_path_factory.mktemp("recording"))
    algo = programs.ppo("watched-host", **KEYS, **LSTM, max_seq_len=4).offline_data(output=folder).build_algo()
    results = [algo.train() for _ in range(6)]
    policy = algo.get_policy()
    algo.stop()
    return types.SimpleNamespace(policy=policy, results=results, folder=folder)


@pytest.fixture
def recording(teacher):
    return teacher.folder


def test_an_lstm_trains_on_a_host_environment_with_different_keys(teacher):
    assert np.isfinite(teacher.results[0]["learners"]["default_policy"]["vf_loss"])
    policy = teacher.policy
    state, whole = None, {"state": [0.1, 0.2], "privileged_state": [0.1, 0.0, 0.2, 0.0], "goal": 1}
    full, some = [], []
    for outputs, observation in ((full, whole), (some, {"state": [0.1, 0.2]})):
        state = None
        for _ in range(2):
            _, state, columns = policy.compute_single_action(observation, state)
            outputs.append(columns[Columns.ACTION_DIST_INPUTS])
    np.testing.assert_array_equal(full, some)
    assert not np.array_equal(full[0], full[1])


def student(recording, config_class=BCConfig, *, env="watched-host", **model):
    config = config_class().environment(env).learners(num_cpus_per_learner=1).offline_data(input_=recording)
    return config.training(train_batch_size_per_learner=8).rl_module(model_config={"fcnet_hiddens": [4], **model})


def test_a_recorded_teacher_with_a_privileged_critic_trains_a_student_of_the_policy_key(recording):
    config = student(recording, policy_obs_key="state").offline_data(normalize_observations=True)
    algo = config.build_algo()
    assert np.isfinite(algo.train()["learners"]["default_policy"]["policy_loss"])
    policy = algo.get_policy()
    assert policy.unread_observations == ["goal", "privileged_state"]
    assert np.isfinite(policy.estimate(recording, ["is"])["is"].value)
    algo.stop()


@pytest.mark.parametrize("env", ["watched-host", None])
def test_students_read_their_keys_of_a_recording_only(recording, env):
    config = student(recording, MARWILConfig, env=env, policy_obs_key="state", value_obs_key=["state"])
    config.environment(observation_space=Watched().observation_space, action_space=ACTIONS)
    data = OfflineData(config)
    spaces = Dict(state=vector(2)), ACTIONS
    data.adapt(spaces)
    (piece, *_) = data._pieces().pieces
    assert data.read(piece, ["obs"], spaces).columns["obs"].keys() == {"state"}
    with pytest.raises(
        ValueError, match=r"the keys \['privileged_state', 'state'\], .* also takes \['goal'\]. Set policy"
    ):
        OfflineData(config).read(piece, ["obs"], (Dict(state=vector(2), goal=vector(3)), ACTIONS))
    with pytest.raises(ValueError, match=r"have the keys \['privileged_state', 'state'\].*'policy_obs_key': \['priv"):
        OfflineData(config).read(piece, ["obs"], (vector(9), ACTIONS))


def test_keys_are_left_out_of_recorded_observations_next_to_a_mask_and_of_rows():
    mask, inner = Box(0, 1, (2,), np.int8), Dict(state=vector(2))
    masked = {"action_mask": 0, "observations": {"state": 1, "goal": 2}}
    space = Dict(action_mask=mask, observations=inner)
    assert without_extra_keys(masked, space) == {"action_mask": 0, "observations": {"state": 1}}
    assert without_extra_keys(Dict(SPACES), inner) == inner
    assert "no keys" in key_problem({"action_mask": 0, "observations": 1}, space)
    rows = {"state": np.zeros((3, 2)), "privileged_state": np.zeros((3, 3))}
    steps = Steps({"obs": rows}, np.array([False, False, True]), np.zeros(3, np.int32), np.arange(3), ["a"])
    inputs = types.SimpleNamespace(space=inner, env_space=Dict(SPACES))
    found = checked(steps, RecordedSpaces(inputs=inputs), lambda row: ("file", row)).columns["obs"]
    assert found.keys() == {"state"}
    inputs.space = Dict(camera=SPACES["camera"], state=vector(2))
    with pytest.raises(ValueError, match=r"file: Recorded observations have the keys .* also takes \['camera'\]"):
        checked(steps, RecordedSpaces(inputs=inputs), lambda row: ("file", row))


class ActsGreedily(RLModule):
    """Acts on "state" and does not explore."""

    def setup(self):
        self.layer = nnx.Linear(2, 2, rngs=self.rngs)

    def _forward_inference(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.layer(batch[Columns.OBS]["state"])}

    def _forward_exploration(self, batch, **kwargs):
        raise NotImplementedError("this module does not explore")


def greedy_policy(*connectors):
    space = Dict(state=vector(2), goal=SPACES["goal"])
    return policy_cases.policy(ActsGreedily, ACTIONS, list(connectors), space)


def test_a_policy_that_cannot_explore_acts_without_unread_keys_and_is_exported(tmp_path):
    policy = greedy_policy()
    exported = load_exported(policy.export(tmp_path / "exported"))
    for acting in (policy, exported):
        assert acting.unread_observations == ["goal"]
        assert acting.compute_single_action({"state": [0.1, 0.2]})[0] in (0, 1)
    with pytest.raises(NotImplementedError, match="does not explore"):
        policy.export(tmp_path / "exploring", explore=True)


def test_an_error_about_a_missing_key_names_host_connectors():
    policy = greedy_policy(policy_cases.CountingHostConnector())
    assert policy.unread_observations == []
    with pytest.raises(ValueError, match=r"no key 'goal'. Add it: the host connectors \['CountingHostConnector'\]"):
        policy.compute_single_action({"state": [0.1, 0.2]})


def test_settings_of_a_module_are_checked_with_its_overrides():
    config = programs.ppo("watched", vf_share_layers=False, policy_obs_key="state")
    config.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "a")

    def overridden(**model):
        overrides = {"b": PPOConfig.overrides(model_config={**config.model_config, **model})}
        return config.copy().rl_module(algorithm_config_overrides_per_module=overrides)

    check_observation_key_settings(overridden(policy_obs_key=None, vf_share_layers=True))
    with pytest.raises(ValueError, match=r"overrides_per_module\['b'\]: .*with vf_share_layers=True"):
        check_observation_key_settings(overridden(vf_share_layers=True))


def test_curiosity_takes_all_keys_as_one_vector():
    def model(**spaces):
        return IntrinsicCuriosityModel(
            observation_space=Dict(spaces), action_space=ACTIONS, model_config={"feature_dim": 2}, rngs=0
        )

    own, seen = (
        model(state=vector(2), privileged_state=vector(3)),
        rows(Dict(state=vector(2), privileged_state=vector(3))),
    )
    flat = np.concatenate([seen["privileged_state"], seen["state"]], axis=-1)
    rewards = own.forward_train({Columns.OBS: seen, Columns.NEXT_OBS: seen, Columns.ACTIONS: np.array([0, 1])})
    np.testing.assert_array_equal(own._as_vectors(seen), flat)
    assert rewards[Columns.INTRINSIC_REWARDS].shape == (2,)
    with pytest.raises(ValueError, match="takes vectors, or a Dict of vectors, .*camera.*policy_obs_key"):
        model(camera=SPACES["camera"])


def test_robots_of_playground_have_both_keys(monkeypatch):
    """The adapter with a registry of one robot in place of MuJoCo Playground, which downloads its robots."""

    class Config(types.SimpleNamespace):
        def __contains__(self, name):
            return hasattr(self, name)

        def to_dict(self):
            return dict(vars(self))

        def update_from_flattened_dict(self, changes):
            vars(self).update(changes)

    class Robot:
        observation_size = {"state": 2, "privileged_state": (3,)}
        action_size = 1

        def _at(self, x):
            obs = {"state": jnp.stack([x, x]), "privileged_state": jnp.stack([x, 2 * x, -x])}
            return obs

        def reset(self, key):
            return Physics(*(jnp.float32(0.0),) * 3, self._at(jnp.float32(0.1)), {})

        def step(self, physics, action):
            x = physics.x + action[0]
            return Physics(x, -jnp.abs(x), jnp.float32(0.0), self._at(x), {})

    @jax.tree_util.register_pytree_node_class
    class Physics:
        def __init__(self, x, reward, done, obs, metrics):
            self.x, self.reward, self.done, self.obs, self.metrics = x, reward, done, obs, metrics

        def tree_flatten(self):
            return (self.x, self.reward, self.done, self.obs, self.metrics), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

    registry = types.ModuleType("registry")
    registry.ALL_ENVS = ["Robot"]
    registry.get_default_config = lambda env_id: Config(episode_length=4, action_repeat=1)
    registry.load = lambda env_id, config: Robot()
    fakes = {"brax": types.ModuleType("brax"), "brax.envs": types.ModuleType("brax.envs")}
    fakes["brax"].envs = fakes["brax.envs"]
    fakes["mujoco_playground"] = types.ModuleType("mujoco_playground")
    fakes["mujoco_playground"].registry = registry
    for name in ("jaxrl_stack.env.suites.brax_env", "jaxrl_stack.env.suites.playground_env"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, fake in fakes.items():
        fake.__spec__ = importlib.machinery.ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, fake)
    algo = programs.ppo("playground/Robot", **KEYS).build_algo()
    assert algo.train()["env_runners"]["num_episodes"] == 8
    assert algo.get_policy().unread_observations == ["privileged_state"]
    algo.stop()
