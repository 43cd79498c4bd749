"""Connector pipelines as RLlib's scripts use them: called by hand, extended by RLlib's class names, for curiosity."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from envs.counter import CounterEnv
from envs.gymnasium_versions import GymnasiumCounterEnv
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.connectors.common.add_observations_from_episodes_to_batch import AddObservationsFromEpisodesToBatch
from jaxrl_stack.connectors.common.numpy_to_tensor import NumpyToTensor
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.env_to_module import EnvToModulePipeline, FlattenObservations, MeanStdFilter
from jaxrl_stack.connectors.learner import AddOneTsToEpisodesAndTruncate, GeneralAdvantageEstimation
from jaxrl_stack.connectors.learner.add_next_observations_from_episodes_to_train_batch import (
    AddNextObservationsFromEpisodesToTrainBatch,
)
from jaxrl_stack.connectors.module_to_env import ListifyDataForVectorEnv, ModuleToEnvPipeline, UnBatchToIndividualItems
from jaxrl_stack.core import (
    COMPONENT_ENV_RUNNER,
    COMPONENT_ENV_TO_MODULE_CONNECTOR,
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_MODULE_TO_ENV_CONNECTOR,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module.apis import SelfSupervisedLossAPI
from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode


class Counting(gym.Env):
    """Shows how many steps there have been; an episode ends after three."""

    observation_space = gym.spaces.Box(0.0, 10.0, (2,), np.float32)

    def __init__(self, config=None):
        is_box = (config or {}).get("box_actions", False)
        self.action_space = gym.spaces.Box(-2.0, 2.0, (1,)) if is_box else gym.spaces.Discrete(3)
        self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0, 1.0], np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), repr(action)
        self.t += 1
        return np.array([self.t, 1.0], np.float32), 1.0, self.t == 3, False, {}


def small_ppo(**env_config):
    return (
        PPOConfig()
        .environment(Counting, env_config=env_config)
        .env_runners(num_env_runners=0)
        .training(train_batch_size_per_learner=12, minibatch_size=12, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [4]})
    )


@pytest.mark.parametrize(("box_actions", "explore"), [(False, False), (True, True)])
def test_the_inference_loop_steps_a_gymnasium_environment(box_actions, explore):
    env = Counting({"box_actions": box_actions})
    config = small_ppo().env_runners(env_to_module_connector=lambda env, spaces, device: MeanStdFilter())
    env_to_module = config.build_env_to_module_connector(env=env)
    module_to_env = config.build_module_to_env_connector(env=env)
    module = config.get_rl_module_spec(env=env).build()

    obs, _ = env.reset()
    episode = SingleAgentEpisode(
        observations=[obs], observation_space=env.observation_space, action_space=env.action_space
    )
    while not episode.is_done:
        shared_data = {}
        given = {"episodes": [episode], "rl_module": module, "explore": explore, "shared_data": shared_data}
        batch = env_to_module(**given)
        assert type(batch[Columns.OBS]) is np.ndarray
        to_env = module_to_env(
            batch=(module.forward_exploration if explore else module.forward_inference)(batch), **given
        )
        action = to_env.pop(Columns.ACTIONS)[0]
        for_env = to_env.pop(Columns.ACTIONS_FOR_ENV)[0]
        assert all(type(column) is np.ndarray and column.flags.writeable for column in to_env.values())
        obs, reward, terminated, truncated, _ = env.step(for_env)
        extra = {name: column[0] for name, column in to_env.items()}
        episode.add_env_step(obs, action, reward, terminated=terminated, truncated=truncated, extra_model_outputs=extra)
    assert len(episode) == 3 and (Columns.ACTION_LOGP in episode.extra_model_outputs) is explore


def test_the_documented_loop_over_a_checkpoint_carries_the_recurrent_state(tmp_path):
    model = {"fcnet_hiddens": [4], "use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
    algo = small_ppo().rl_module(model_config=model).build_algo()
    algo.save_to_path(tmp_path / "run")
    policy = algo.get_policy()
    algo.stop()
    runner = tmp_path / "run" / COMPONENT_ENV_RUNNER
    env_to_module = EnvToModulePipeline.from_checkpoint(runner / COMPONENT_ENV_TO_MODULE_CONNECTOR)
    module_to_env = ModuleToEnvPipeline.from_checkpoint(runner / COMPONENT_MODULE_TO_ENV_CONNECTOR)
    learner = tmp_path / "run" / COMPONENT_LEARNER_GROUP / COMPONENT_LEARNER
    module = RLModule.from_checkpoint(learner / COMPONENT_RL_MODULE / DEFAULT_MODULE_ID)

    env = Counting()
    for explore in (False, True):
        obs, _ = env.reset()
        episode = SingleAgentEpisode(
            observations=[obs], observation_space=env.observation_space, action_space=env.action_space
        )
        state = None
        while not episode.is_done:
            given = {"episodes": [episode], "rl_module": module, "explore": explore, "shared_data": {}}
            batch = env_to_module(batch={}, **given)
            forward = module.forward_exploration if explore else module.forward_inference
            to_env = module_to_env(batch=forward(batch), **given)
            expected, state, outputs = policy.compute_single_action(obs, state, explore=False)
            action = to_env.pop(Columns.ACTIONS)[0]
            assert explore or action == expected
            for own, other in zip(
                *map(jax.tree.leaves, (to_env[Columns.STATE_OUT][0], outputs[Columns.STATE_OUT])), strict=True
            ):
                np.testing.assert_allclose(own, other, atol=1e-6)
            obs, reward, terminated, truncated, _ = env.step(to_env.pop(Columns.ACTIONS_FOR_ENV)[0])
            extra = {name: column[0] for name, column in to_env.items()}
            episode.add_env_step(
                obs, action, reward, terminated=terminated, truncated=truncated, extra_model_outputs=extra
            )
        assert len(episode) == 3
    episode = SingleAgentEpisode(observations=[obs, obs], actions=[0], rewards=[1.0], len_lookback_buffer=0)
    with pytest.raises(
        ValueError, match=r"lacks the extra model output 'state_out'.*add_env_step\(.*extra_model_outputs"
    ):
        env_to_module(episodes=[episode], rl_module=module, explore=False)


class Shift(ConnectorV2):
    """Adds a number to the rewards."""

    def __init__(self, *args, by=1.0, **kwargs):
        super().__init__(*args, by=by, **kwargs)
        self.by = by

    def apply(self, state, batch, ctx):
        return state, self._with_columns(batch, lambda _, own: {Columns.REWARDS: own[Columns.REWARDS] + self.by})


class Second(Shift):
    pass


class OnEpisodes(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        assert all(len(episode) for episode in episodes)
        return batch


SPACES = {"__env_single__": (gym.spaces.Dict({"a": gym.spaces.Discrete(2)}), gym.spaces.Discrete(3))}


class OwnConfig(PPOConfig):
    def build_learner_connector(self, input_observation_space, input_action_space, device=None):
        pipeline = super().build_learner_connector(input_observation_space, input_action_space, device)
        pipeline.insert_after(NumpyToTensor, Second())
        return pipeline


def test_connectors_are_inserted_by_the_names_of_rllibs_default_ones():
    """After the user's connectors and before the algorithm's, in RLlib's order, whichever was inserted first."""
    config = OwnConfig().learners(learner_connector=lambda observation_space, action_space: Shift())
    learner = config.build_learner_connector(*SPACES["__env_single__"])
    learner.insert_after(AddObservationsFromEpisodesToBatch, Shift())
    assert learner.names == ["Shift", "Shift_1", "Second", "GeneralAdvantageEstimation"]
    learner.insert_before("AddObservationsFromEpisodesToBatch", OnEpisodes())
    assert learner.names[:2] == ["Shift", "OnEpisodes"]
    learner.remove(NumpyToTensor)
    assert len(learner) == 5 and isinstance(learner[-1], GeneralAdvantageEstimation)
    with pytest.raises(ValueError, match="No connector 'NumpyToTensor'"):
        learner.insert_after(NumpyToTensor, Second())

    env_to_module = config.build_env_to_module_connector(spaces=SPACES)
    env_to_module.insert_before(AddObservationsFromEpisodesToBatch, OnEpisodes())
    env_to_module.insert_after(NumpyToTensor, MeanStdFilter())
    assert env_to_module.names == ["OnEpisodes", "MeanStdFilter", "FlattenObservations"]
    env_to_module.remove("MeanStdFilter")
    assert env_to_module.pure_part().names == ["FlattenObservations"]
    env_to_module.insert_before(NumpyToTensor, Shift())
    assert env_to_module.pure_part().names == ["Shift", "FlattenObservations"]

    module_to_env = config.build_module_to_env_connector(spaces=SPACES)
    module_to_env.insert_after(UnBatchToIndividualItems, Shift())
    module_to_env.insert_after(ListifyDataForVectorEnv, Second())
    assert module_to_env.names == ["GetActions", "Shift", "NormalizeAndClipActions", "Second"]


def test_places_that_are_not_in_a_pipeline_are_named():
    learner = small_ppo().build_learner_connector(*SPACES["__env_single__"])
    with pytest.raises(ValueError, match=r"AddOneTsToEpisodesAndTruncate.*it has \['Gen.*the markers \['AddObs.*Numpy"):
        learner.insert_after(AddOneTsToEpisodesAndTruncate, Shift())
    for marker in (AddObservationsFromEpisodesToBatch, NumpyToTensor):
        learner.insert_after(marker, OnEpisodes())
        with pytest.raises(TypeError, match=r"OnEpisodes.__call__ reads `episodes`.*already columns.*prepend"):
            learner[0].apply({}, {}, ConnectorContext())
        learner.remove("OnEpisodes")
    assert learner.names == ["GeneralAdvantageEstimation"]
    learner.prepend(AddOneTsToEpisodesAndTruncate())
    learner.insert_after(AddOneTsToEpisodesAndTruncate, OnEpisodes())
    assert list(learner.host_connectors) == ["OnEpisodes"]


def test_default_connectors_that_are_listed_by_hand_do_nothing():
    config = small_ppo().env_runners(
        add_default_connectors_to_env_to_module_pipeline=False,
        env_to_module_connector=lambda env, spaces, device: [
            FlattenObservations(),
            AddObservationsFromEpisodesToBatch(),
            NumpyToTensor(device=device),
        ],
    )
    pipeline = config.build_env_to_module_connector(spaces=SPACES)
    assert pipeline.names == ["FlattenObservations"]
    assert pipeline(batch={Columns.OBS: {"a": np.array([1, 0])}})[Columns.OBS].tolist() == [[0.0, 1.0], [1.0, 0.0]]


WORLD_MODEL = "_world_model"


class WorldModel(RLModule, SelfSupervisedLossAPI):
    """Predicts how observations change; what it gets wrong is a reward."""

    def setup(self):
        self.change = nnx.Linear(1, 1, rngs=self.rngs)

    def _forward_train(self, batch, **kwargs):
        error = batch[Columns.NEXT_OBS] - batch[Columns.OBS] - self.change(jnp.ones_like(batch[Columns.OBS]))
        return {Columns.INTRINSIC_REWARDS: jnp.sum(jnp.square(error), axis=-1)}

    def _forward(self, batch, **kwargs):
        raise NotImplementedError("for training only")

    def compute_self_supervised_loss(self, *, learner, module_id, config, batch, fwd_out):
        loss = config.learner_config_dict["weight"] * learner.masked_mean(fwd_out[Columns.INTRINSIC_REWARDS], batch)
        step = jnp.abs(batch[Columns.NEXT_OBS] - batch[Columns.OBS] - 1.0)
        learner.metrics.log_value((module_id, "largest_error_of_next_obs"), jnp.max(step), reduce="max")
        return loss


class AddIntrinsicRewards(ConnectorV2):
    def __init__(self, input_observation_space=None, input_action_space=None, *, coefficient, **kwargs):
        super().__init__(input_observation_space, input_action_space, coefficient=coefficient, **kwargs)
        self.coefficient = coefficient

    def apply(self, state, batch, ctx):
        columns = dict(batch[DEFAULT_MODULE_ID])
        surprise = ctx.module[WORLD_MODEL].forward_train(columns)[Columns.INTRINSIC_REWARDS]
        columns[Columns.REWARDS] = columns[Columns.REWARDS] + self.coefficient * surprise
        return state, {DEFAULT_MODULE_ID: columns, WORLD_MODEL: columns}


class CuriousLearner(PPOLearner):
    connector = AddIntrinsicRewards

    def build(self):
        super().build()
        pipeline = self._learner_connector
        pipeline.insert_after(NumpyToTensor, self.connector(coefficient=10.0))
        pipeline.insert_after(AddObservationsFromEpisodesToBatch, AddNextObservationsFromEpisodesToTrainBatch())

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        mean = self.masked_mean(batch[Columns.REWARDS], batch)
        self.metrics.log_value((module_id, "mean_reward"), mean, window=1)
        return super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)


def curious(env, **settings):
    modules = {
        DEFAULT_MODULE_ID: RLModuleSpec(),
        WORLD_MODEL: RLModuleSpec(module_class=WorldModel, learner_only=True, model_config={}),
    }
    return (
        PPOConfig()
        .environment(env, env_config={"terminate_at": 3})
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2, **settings)
        .training(train_batch_size_per_learner=20, minibatch_size=20, num_epochs=10, lr=0.001)
        .learners(learner_class=CuriousLearner, learner_config_dict={"weight": 0.5})
        .rl_module(
            model_config={"fcnet_hiddens": [4]},
            rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules),
            algorithm_config_overrides_per_module={WORLD_MODEL: PPOConfig.overrides(lr=0.05)},
        )
    )


@pytest.mark.parametrize(
    ("env", "settings"),
    [(CounterEnv, {}), (GymnasiumCounterEnv, {}), (GymnasiumCounterEnv, {"batch_mode": "complete_episodes"})],
    ids=["device", "host", "episodes"],
)
def test_a_module_of_the_learner_alone_rewards_what_surprises_it(env, settings, tmp_path):
    """The counter's observation grows by 1 in every step, the last one of an episode included."""
    config = curious(env, **settings)
    algo = config.build_algo()
    results = [algo.train()["learners"] for _ in range(3)]

    learned = [result[WORLD_MODEL] for result in results]
    assert [result["largest_error_of_next_obs"] for result in learned] == [0.0, 0.0, 0.0]
    assert learned[0]["default_optimizer_learning_rate"] == pytest.approx(0.05)
    assert learned[0]["total_loss"] > learned[1]["total_loss"] > learned[2]["total_loss"]
    assert learned[0]["num_module_steps_trained"] == results[0][DEFAULT_MODULE_ID]["num_module_steps_trained"]
    rewards = [result[DEFAULT_MODULE_ID]["mean_reward"] for result in results]
    assert rewards[0] > rewards[2] > 1.0  # 1, 2, 3 without the surprise, which shrinks
    assert "curr_kl_coeff" in results[0][DEFAULT_MODULE_ID] and np.isnan(learned[0]["curr_kl_coeff"])
    assert not isinstance(algo.env_runner.module, WorldModel) and type(algo.get_module(WORLD_MODEL)) is WorldModel

    algo.save_to_path(tmp_path)
    restored = config.build_algo()
    restored.restore_from_path(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, restored.get_weights([WORLD_MODEL]), algo.get_weights([WORLD_MODEL]))
    algo.stop()
    restored.stop()


class CallWithIntrinsicRewards(ConnectorV2):
    """As `AddIntrinsicRewards`, by changes in place."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, coefficient, **kwargs):
        super().__init__(input_observation_space, input_action_space)
        self.coefficient = coefficient

    def __call__(self, *, rl_module, batch, episodes, explore=None, shared_data=None, **kwargs):
        assert WORLD_MODEL not in batch
        surprise = rl_module[WORLD_MODEL].forward_train(batch[DEFAULT_MODULE_ID])[Columns.INTRINSIC_REWARDS]
        batch[DEFAULT_MODULE_ID][Columns.REWARDS] += self.coefficient * surprise
        batch[WORLD_MODEL] = batch[DEFAULT_MODULE_ID]
        return batch


class CuriousByCalls(CuriousLearner):
    connector = CallWithIntrinsicRewards


@pytest.mark.parametrize("env", [CounterEnv, GymnasiumCounterEnv], ids=["device", "host"])
def test_a_call_that_reads_no_episodes_is_compiled_where_these_are_arrays(env):
    results = []
    for learner_class in (CuriousLearner, CuriousByCalls):
        algo = curious(env).learners(learner_class=learner_class).build_algo()
        results.append([algo.train()["learners"][DEFAULT_MODULE_ID]["mean_reward"] for _ in range(2)])
        algo.stop()
    assert results[0] == results[1]


class Counts(ConnectorV2):
    calls = 0

    def __call__(self, *, batch, episodes, **kwargs):
        self.calls += 1
        return batch


class Fills(Counts):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seen = []

    def __call__(self, *, batch, episodes, **kwargs):
        self.seen.append(batch[DEFAULT_MODULE_ID][Columns.REWARDS])
        return batch


class ForgetsToReturn(ConnectorV2):
    def __call__(self, *, batch, episodes, **kwargs):
        batch[DEFAULT_MODULE_ID][Columns.REWARDS] *= 2.0


@pytest.mark.parametrize(
    ("connector", "message"),
    [(Counts, "changes attributes.*def apply"), (Fills, "changes attributes"), (ForgetsToReturn, "`return batch`")],
)
def test_a_compiled_call_keeps_nothing_and_returns_the_batch(connector, message):
    pipeline = small_ppo().build_learner_connector(*SPACES["__env_single__"])
    pipeline.remove("GeneralAdvantageEstimation")
    pipeline.insert_after(NumpyToTensor, connector())
    assert not pipeline.host_connectors
    rewards = np.ones((2, 1), np.float32)
    with pytest.raises(TypeError, match=f"(?s){connector.__name__}.__call__ .*{message}"):
        pipeline(batch={Columns.REWARDS: rewards})
    assert rewards.tolist() == [[1.0], [1.0]]
    # Before that place it runs on the host, and may keep what it likes.
    pipeline.remove(connector.__name__)
    pipeline.prepend(connector())
    assert list(pipeline.host_connectors) == [connector.__name__]


def test_where_a_call_runs_follows_from_where_it_is_moved_to():
    connector, config = ForgetsToReturn(), small_ppo()
    learner = config.build_learner_connector(*SPACES["__env_single__"])
    learner.insert_after(NumpyToTensor, connector)
    assert not learner.host_connectors
    learner.remove("ForgetsToReturn")
    env_to_module = config.build_env_to_module_connector(spaces=SPACES)
    env_to_module.prepend(connector)
    assert list(env_to_module.host_connectors) == ["ForgetsToReturn"]


@pytest.mark.parametrize("config", [DQNConfig(), SACConfig()], ids=["DQN", "SAC"])
def test_off_policy_learners_optimize_modules_that_have_not_their_networks(config):
    modules = {DEFAULT_MODULE_ID: RLModuleSpec(), WORLD_MODEL: RLModuleSpec(module_class=WorldModel, learner_only=True)}
    config.rl_module(
        model_config={"fcnet_hiddens": [4], "head_fcnet_hiddens": []},
        rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules),
        algorithm_config_overrides_per_module={WORLD_MODEL: config.overrides(lr=0.05)},
    )
    spaces = {DEFAULT_MODULE_ID: (gym.spaces.Box(0.0, 1.0, (1,), np.float32), gym.spaces.Box(-1.0, 1.0, (1,)))}
    if isinstance(config, DQNConfig):
        spaces = {DEFAULT_MODULE_ID: (spaces[DEFAULT_MODULE_ID][0], gym.spaces.Discrete(2))}
    learner = config.build_learner(spaces=spaces)
    assert [name for name, _ in learner.get_optimizers_for_module(WORLD_MODEL)] == ["default_optimizer"]
    assert learner.module[WORLD_MODEL].observation_space == spaces[DEFAULT_MODULE_ID][0]
    assert WORLD_MODEL not in config.get_multi_rl_module_spec(spaces=spaces, inference_only=True).rl_module_specs


def test_next_observations_are_asked_for_before_they_are_used_up():
    pipeline = small_ppo().build_learner_connector(*SPACES["__env_single__"])
    pipeline.append(AddNextObservationsFromEpisodesToTrainBatch())
    flags = np.zeros((2, 1), bool)
    columns = {Columns.OBS: np.zeros((2, 1)), Columns.TERMINATEDS: flags, Columns.TRUNCATEDS: flags}
    with pytest.raises(ValueError, match="needs the column 'final_obs'.*insert_after"):
        pipeline[-1](batch=columns)
    columns[Columns.FINAL_OBS] = np.ones((2, 1))
    assert pipeline[-1](batch=columns)[Columns.NEXT_OBS].tolist() == [[0.0], [1.0]]


class HalfPrecision(ConnectorV2):
    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes):
            episode.set_observations(new_data=episode.get_observations(-1).astype(np.float16), at_indices=-1)
            if len(episode):
                episode.set_rewards(new_data=episode.get_rewards(-1).astype(np.float16) / 3, at_indices=-1)
        return batch


def test_a_connector_casts_what_the_environment_gave():
    config = small_ppo().environment(GymnasiumCounterEnv)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: HalfPrecision())
    runner = SingleAgentEnvRunner(config=config)
    (episode,) = runner.sample(num_timesteps=4)
    thirds = [float(np.float16(reward) / 3) for reward in (1.0, 2.0, 3.0)]
    assert episode.get_rewards()[:3].tolist() == thirds  # no pipeline has seen the last one yet
    runner.stop()
