"""Connectors where an environment has several agents: of all together, by module, and for some agents only."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import (
    FlattenObservations,
    FrameStackingEnvToModule,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    PrevActionsPrevRewards,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.env.multi_agent_env_runner import MultiAgentEnvRunner
from jaxrl_stack.env.preprocessed_jax_env import with_preprocessors
from jaxrl_stack.episodes.multi_agent_episode import MultiAgentEpisode
from jaxrl_stack.examples.connectors.classes.add_observations_of_all_agents import AddObservationsOfAllAgents
from jaxrl_stack.examples.connectors.classes.add_other_agents_row_index_to_xy_pos import AddOtherAgentsRowIndexToXYPos
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent.double_row_corridor_env import DoubleRowCorridorEnv
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.examples.rl_modules.classes.central_critic_rlm import CentralCriticRLModule
from jaxrl_stack.examples.rl_modules.classes.rock_paper_scissors_heuristic_rlm import (
    AlwaysSameHeuristicRLM,
    BeatLastHeuristicRLM,
)

CORRIDOR = {"agent_0": "p0", "agent_1": "p1"}


def config_of(*connectors, env=DoubleRowCorridorEnv, mapping=CORRIDOR.get, policies=("p0", "p1")):
    config = PPOConfig().environment(env, env_config={"length": 3} if env is DoubleRowCorridorEnv else {})
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=6)
    if connectors:
        config.env_runners(env_to_module_connector=lambda env, spaces, device: [make() for make in connectors])
    config.rl_module(model_config={"fcnet_hiddens": [4]})
    return config.multi_agent(policies=list(policies), policy_mapping_fn=lambda agent, episode: mapping(agent))


def first_flattened():
    return FlattenObservations(multi_agent=True, agent_ids=["agent_0"])


def test_an_observation_of_the_corridor_knows_of_the_other_agent():
    env, connector = DoubleRowCorridorEnv({"length": 3}), AddOtherAgentsRowIndexToXYPos()
    connector.input_observation_space = gym.spaces.Dict(env.observation_spaces)
    connector.input_action_space = gym.spaces.Dict(env.action_spaces)
    obs, _ = env.reset()
    changed = connector.preprocess(obs, None)
    assert changed["agent_0"] == {"agent": 0, "other_agent_row": 1}
    np.testing.assert_array_equal(changed["agent_1"], np.array([1, 2, 0], np.float32))
    obs, rewards, *_ = env.step({"agent_0": 3, "agent_1": 2})  # both to the middle column
    obs, met, *_ = env.step({"agent_0": 1, "agent_1": 1})
    assert rewards == {"agent_0": -0.1, "agent_1": -0.1} and met == {"agent_0": 4.9, "agent_1": 4.9}
    obs, _, terminateds, _, _ = env.step({"agent_0": 3, "agent_1": 2})
    assert terminateds == {"agent_0": True, "agent_1": False, "__all__": False}
    obs, last, terminateds, _, _ = env.step({"agent_1": 0})
    assert terminateds == {"agent_1": False, "__all__": False} or last["agent_1"] == 9.9
    np.testing.assert_array_equal(connector.preprocess(obs, None)["agent_1"][-1:], [2.0])


def test_a_runner_records_what_preprocessors_made_of_all_observations():
    runner = MultiAgentEnvRunner(config=config_of(AddOtherAgentsRowIndexToXYPos, first_flattened))
    p0, p1 = runner.module["p0"].observation_space, runner.module["p1"].observation_space
    assert p0 == gym.spaces.Box(0.0, 1.0, (9,)) and p1.shape == (3,)
    block = runner.sample_block(num_steps=6)
    obs = {mid: np.asarray(own[Columns.OBS])[0] for mid, own in block.part.modules.items()}
    # Both environments begin with agent_0 in field 0 of row 0, agent_1 in the last one of row 1.
    np.testing.assert_array_equal(obs["p0"], np.tile(np.eye(9)[0] + np.eye(9)[7], (2, 1)))
    np.testing.assert_array_equal(obs["p1"], np.tile([1.0, 2.0, 0.0], (2, 1)))
    (episode, *_) = runner.sample(num_timesteps=12)
    assert isinstance(episode, MultiAgentEpisode)
    assert all(own.shape == (3,) for own in np.asarray(episode.agent_episodes["agent_1"].get_observations()))
    runner.stop()


class Seen(MultiAgentObservationPreprocessor):
    """Doubles observations and keeps the steps of the episodes that it gets."""

    steps: list[int] = []

    def preprocess(self, observations, episode):
        self.steps.append(len(episode))
        return {agent: own * 2 for agent, own in observations.items()}


def test_a_preprocessor_gets_the_episode_before_its_observations():
    Seen.steps = []
    runner = MultiAgentEnvRunner(config=config_of(Seen).env_runners(num_envs_per_env_runner=1))
    runner.sample_block(num_steps=3)
    assert Seen.steps == [0, 0, 1, 2]
    runner.stop()


def test_episodes_by_hand_get_their_last_observations_changed():
    episode = MultiAgentEpisode(observations=[{"a": np.ones(1), "b": np.zeros(1)}], infos=[{}])
    assert Seen()(batch={"x": 1}, episodes=[episode]) == {"x": 1}
    assert episode.get_observations(-1) == {"a": 2.0, "b": 0.0}


class DropsOne(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        return dict(list(observations.items())[:1])


class Longer(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        return {agent: np.zeros(5, np.int32) for agent in observations}


class Forgets(Longer):
    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict({"agent_0": input_observation_space["agent_0"]})


@pytest.mark.parametrize(
    ("connectors", "message"),
    [
        ([DropsOne], r"DropsOne.preprocess returned observations of the agents \['agent_0'\], but received"),
        ([Longer], "Longer returned an observation for the agent 'agent_.'.*recompute_output_observation_space"),
        ([Forgets], r"Forgets.recompute_output_observation_space returns .*\['agent_0', 'agent_1'\]"),
        ([MeanStdFilter, Seen], r"\['MeanStdFilter', 'Seen'\].*Return it first"),
        (
            [lambda: FlattenObservations(multi_agent=True, agent_ids=["agent_2"])],
            r"agent_ids=\['agent_2'\]\): the environment's agents are \['agent_0', 'agent_1'\]",
        ),
    ],
)
def test_connectors_that_do_not_fit_are_refused(connectors, message):
    with pytest.raises(ValueError, match=message):
        MultiAgentEnvRunner(config=config_of(*connectors)).sample_block(num_steps=1)


def test_some_agents_of_one_module_cannot_be_flattened_alone():
    config = config_of(first_flattened, mapping=lambda agent: "p0", policies=["p0"])
    with pytest.raises(ValueError, match=r"the agents \['agent_0', 'agent_1'\] share one module"):
        MultiAgentEnvRunner(config=config)
    single = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=lambda *a: first_flattened())
    with pytest.raises(ValueError, match="agent_ids"):
        single.build_env_to_module_connector(
            spaces={"__env_single__": (gym.spaces.Box(-1.0, 1.0, (2,)), gym.spaces.Discrete(2))}
        )


def test_flattening_on_its_own_looks_for_ids_in_the_batch():
    box = gym.spaces.Box(-1.0, 1.0, (2, 2))
    spaces = gym.spaces.Dict({"a": box, "b": box})
    connector = FlattenObservations(spaces, multi_agent=True, agent_ids=["a"])
    assert {mid: own.shape for mid, own in connector.observation_space.items()} == {"a": (4,), "b": (2, 2)}
    batch = {mid: {Columns.OBS: np.ones((3, 2, 2), np.float32)} for mid in "ab"}
    _, out = connector.apply((), batch, ConnectorContext())
    assert {mid: own[Columns.OBS].shape for mid, own in out.items()} == {"a": (3, 4), "b": (3, 2, 2)}


def test_connectors_with_multi_agent_are_each_modules_own():
    makers = (
        lambda: PrevActionsPrevRewards(multi_agent=True),
        lambda: FlattenObservations(multi_agent=True),
        lambda: FrameStackingEnvToModule(num_frames=2, multi_agent=True),
        lambda: MeanStdFilter(multi_agent=True),
    )
    runner = MultiAgentEnvRunner(config=config_of(*makers))
    runner.sample_block(num_steps=6)
    states = runner.get_state()["env_to_module_connector"]
    means = {
        mid: np.asarray(own["MeanStdFilter"]["default_policy"]["delta"]["obs"]["mean"]) for mid, own in states.items()
    }
    assert means["p0"].shape == means["p1"].shape and (means["p0"] != means["p1"]).any()
    runner.stop()


def jax_config_of(*connectors, env=multi_agent.MultiAgentCartPole):
    config = config_of(*connectors, env=env, mapping=lambda agent: "all", policies=["all"])
    config.environment(env_config={"num_agents": 2} if env is multi_agent.MultiAgentCartPole else {})
    config.env_runners(num_envs_per_env_runner=2, rollout_fragment_length=4)
    return config.training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)


def test_preprocessors_are_traced_in_jax_environments():
    inner = multi_agent.MultiAgentCartPole({"num_agents": 2})
    env = with_preprocessors(jax_config_of(AddObservationsOfAllAgents), inner)
    host = AddObservationsOfAllAgents()
    host.input_observation_space = gym.spaces.Dict(dict(inner.observation_spaces))
    keys = jax.random.split(jax.random.key(0), 12)
    (obs, state), (own, own_state) = (jax.jit(one.reset)(keys[0], inner.params) for one in (env, inner))
    step, own_step = jax.jit(env.step), jax.jit(inner.step)
    assert env.observation_space.contains(jax.tree.map(np.asarray, obs))
    assert env.everybody_acts == inner.everybody_acts
    for key in keys[1:]:
        jax.tree.map(np.testing.assert_array_equal, obs, host.preprocess(jax.tree.map(np.asarray, own), None))
        actions = dict.fromkeys(inner.possible_agents, np.int32(1))
        after, own_after = step(key, state, actions, inner.params), own_step(key, own_state, actions, inner.params)
        obs, state, own, own_state = after.obs, after.state, own_after.obs, own_after.state
        jax.tree.map(np.testing.assert_array_equal, state, own_state)
        assert after.reward == own_after.reward


def test_a_central_critic_trains_in_one_program():
    config = jax_config_of(AddObservationsOfAllAgents)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=CentralCriticRLModule, model_config={"hidden_dim": 4}))
    algo = config.build_algo()
    result = algo.train()
    assert algo.driver.is_on_device and np.isfinite(result["learners"]["all"]["vf_loss"])
    assert algo.get_policy("all").observation_space["all_agents"].shape == (8,)
    algo.stop()


def test_preprocessors_that_look_at_episodes_need_an_environment_on_the_host():
    with pytest.raises(
        ValueError, match=r"reads len\(episode\), but MultiAgentCartPole is a JAX env.*as a MultiAgentEnv"
    ):
        jax_config_of(Seen).build_algo()


def test_modules_of_their_own_classes_observe_the_spaces_that_their_specs_name():
    def mapping(agent, episode):
        return "learned" if agent == "player1" else ("always_same", "beat_last")[hash(episode.id_) % 2]

    moves = {"observation_space": gym.spaces.Discrete(3), "action_space": gym.spaces.Discrete(3)}
    specs = {
        "always_same": RLModuleSpec(module_class=AlwaysSameHeuristicRLM, **moves),
        "beat_last": RLModuleSpec(module_class=BeatLastHeuristicRLM, **moves),
        "learned": RLModuleSpec(),
    }
    config = config_of(
        lambda: FlattenObservations(multi_agent=True, agent_ids={"player1"}), env=RockPaperScissors, policies=specs
    )
    config.multi_agent(policy_mapping_fn=mapping).rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    runner = MultiAgentEnvRunner(config=config)
    assert {mid: module.observation_space.shape for mid, module in runner.module.items()} == {
        "always_same": (),
        "beat_last": (),
        "learned": (3,),
    }
    for episode in runner.sample(num_episodes=4):
        policy, moves = episode.module_for("player2"), episode.agent_episodes["player2"].get_actions()
        seen = episode.agent_episodes["player2"].get_observations()[:-1]
        expected = (seen + 1) % 3 if policy == "beat_last" else np.full(10, moves[0])
        np.testing.assert_array_equal(moves, expected)
    runner.stop()
