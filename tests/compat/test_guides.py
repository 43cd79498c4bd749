"""What RLlib's guides show first, with this package's imports: configure, train, save, act; learners by hand."""

from __future__ import annotations

import pathlib

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.connectors.common.frame_stacking import FrameStacking
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import FlattenObservations
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import QNetAPI, TargetNetworkAPI, ValueFunctionAPI
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode

SMALL = {"train_batch_size_per_learner": 32, "minibatch_size": 16, "num_epochs": 1}


class Repeat(gym.Env):
    """Pays 1 for the action that equals the observation; 8 steps."""

    def __init__(self, config=None):
        self.observation_space = self.action_space = gym.spaces.Discrete((config or {}).get("n", 2))
        self._num_steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._num_steps = 0
        self._seen = int(self.np_random.integers(self.action_space.n))
        return self._seen, {}

    def step(self, action):
        reward = float(action == self._seen)
        self._num_steps += 1
        self._seen = int(self.np_random.integers(self.action_space.n))
        return self._seen, reward, self._num_steps >= 8, False, {}


class Linear(RLModule, ValueFunctionAPI):
    """A network of the user's, with a size from the config."""

    def setup(self):
        hidden, (size,) = self.model_config["hidden"], self.observation_space.shape
        self.body = nnx.Linear(size, hidden, rngs=self.rngs)
        self.head = nnx.Linear(hidden, self.action_space.n, rngs=self.rngs)
        self.value = nnx.Linear(hidden, 1, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.head(nnx.tanh(self.body(batch[Columns.OBS])))}

    def compute_values(self, batch, embeddings=None):
        return self.value(nnx.tanh(self.body(batch[Columns.OBS])))[..., 0]


def config():
    config = PPOConfig()
    config.environment(Repeat, env_config={"n": 3})
    config.env_runners(num_env_runners=0, env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    config.training(gamma=0.9, lr=[[0, 0.01], [1000, 0.001]], kl_coeff=0.3, **SMALL)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Linear, model_config={"hidden": 5}))
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of one iteration, and where it was saved."""
    algorithm = config().build_algo()
    algorithm.train()
    yield algorithm, pathlib.Path(algorithm.save_to_path(tmp_path_factory.mktemp("guide") / "run"))
    algorithm.stop()


def test_an_environment_and_a_module_of_the_users_train_and_go_on_from_a_checkpoint(trained):
    algorithm, path = trained
    assert algorithm.get_module("default_policy").body.kernel[...].shape == (3, 5)
    again = Algorithm.from_checkpoint(path, config=config())
    assert again.iteration == 1 and isinstance(again, PPO)
    assert again.train()["num_env_steps_sampled_lifetime"] == 64
    again.stop()


def test_the_module_of_a_checkpoint_acts_without_its_algorithm(trained):
    algorithm, path = trained
    folder = path / "learner_group" / "learner" / "rl_module"
    alone = RLModule.from_checkpoint(folder / "default_policy", allow=[Linear])
    expected = algorithm.get_module().forward_inference({Columns.OBS: np.eye(3, dtype=np.float32)})
    env = Repeat({"n": 3})
    obs, _ = env.reset(seed=0)
    out = alone.forward_inference({Columns.OBS: np.eye(3, dtype=np.float32)[[obs]]})
    np.testing.assert_array_equal(out[Columns.ACTION_DIST_INPUTS][0], expected[Columns.ACTION_DIST_INPUTS][obs])
    greedy = int(np.argmax(out[Columns.ACTION_DIST_INPUTS][0]))
    distribution = alone.get_inference_action_dist_cls().from_logits(out[Columns.ACTION_DIST_INPUTS])
    assert int(distribution.to_deterministic().sample()[0]) == greedy
    assert env.step(greedy)[1] in (0.0, 1.0)


def test_a_part_of_a_checkpoint_goes_into_a_running_algorithm(trained):
    _, path = trained
    other = config().debugging(seed=7).build_algo()
    part = "learner_group/learner/rl_module/default_policy"
    before = other.get_weights()["default_policy"]
    other.restore_from_path(path / part, component=part)
    after = other.get_weights()["default_policy"]
    stored = RLModule.from_checkpoint(path / part, allow=[Linear]).get_state()
    assert not np.array_equal(before["body/kernel"], after["body/kernel"])
    jax.tree.map(np.testing.assert_array_equal, after, stored)
    other.stop()


def test_configs_are_copied_frozen_and_made_of_dicts():
    base = AlgorithmConfig().training(lr=0.0005).learners(num_learners=2)
    assert (base.lr, base.num_learners) == (0.0005, 2)
    frozen = config()
    thawed = frozen.copy(copy_frozen=False)
    frozen.freeze()
    with pytest.raises(AttributeError, match="frozen"):
        frozen.training(lr=1.0)
    thawed.training(lr=1.0)
    assert PPOConfig.from_dict({"lr": 0.1}).lr == 0.1 and PPOConfig().update_from_dict({"lambda": 0.2}).lambda_ == 0.2
    assert thawed.total_train_batch_size == 32 and not thawed.is_multi_agent and not thawed.is_atari


def test_modules_are_built_of_specs_alone_and_side_by_side(tmp_path):
    spec = RLModuleSpec(
        module_class=Linear,
        observation_space=gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
        action_space=gym.spaces.Discrete(2),
        model_config={"hidden": 4},
    )
    both = MultiRLModuleSpec(rl_module_specs={"a": spec}).build()
    both.add_module("b", spec.build())
    batch = {Columns.OBS: np.ones((2, 3), np.float32)}
    out = both.forward_inference({"a": batch, "b": batch})
    assert out["a"][Columns.ACTION_DIST_INPUTS].shape == out["b"][Columns.ACTION_DIST_INPUTS].shape == (2, 2)
    module = both["b"]
    module.save_to_path(tmp_path / "b")
    logits = module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]
    module.set_state({name: leaf * 0 for name, leaf in module.get_state().items()})
    assert not np.asarray(module.forward_train(batch)[Columns.ACTION_DIST_INPUTS]).any()
    module.restore_from_path(tmp_path / "b")
    np.testing.assert_array_equal(module.forward_train(batch)[Columns.ACTION_DIST_INPUTS], logits)
    both.remove_module("b")
    assert list(both.keys()) == ["a"] and not module.is_stateful()


def test_a_learner_group_by_hand_updates_from_episodes_and_hands_its_state_on(trained, tmp_path):
    algorithm, _ = trained
    group = config().build_learner_group(env=Repeat({"n": 3}))
    weights = group.get_weights()["default_policy"]
    episodes = algorithm.env_runner.sample(num_timesteps=32)
    (results,) = group.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 32})
    updated = group.get_weights()["default_policy"]
    assert "policy_loss" in results["default_policy"]
    assert not np.array_equal(weights["head/kernel"], updated["head/kernel"])
    other = config().build_learner_group(env=Repeat({"n": 3}))
    other.set_state(group.get_state(components="learner"))
    jax.tree.map(np.testing.assert_array_equal, other.get_weights()["default_policy"], updated)
    group.save_to_path(tmp_path / "group")
    other.foreach_learner(lambda learner: learner.module["default_policy"].is_stateful())
    assert jnp.isfinite(next(iter(jax.tree.leaves(updated)))).all()
    for one in (group, other):
        one.shutdown()


class Chooses(Linear):
    """Returns its actions and what they are drawn from, and leaves their log-probability to the pipeline."""

    def _forward_exploration(self, batch, **kwargs):
        out = self._forward(batch)
        return {**out, Columns.ACTIONS: jnp.argmin(out[Columns.ACTION_DIST_INPUTS], axis=-1)}


def test_actions_of_a_modules_own_have_the_log_probability_of_what_it_returns_beside_them():
    spec = RLModuleSpec(module_class=Chooses, model_config={"hidden": 4})
    algorithm = config().rl_module(rl_module_spec=spec).build_algo()
    (episode, *_) = algorithm.env_runner.sample(num_timesteps=8)
    logits = np.stack([episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS, t) for t in range(len(episode))])
    actions = np.asarray(episode.get_actions())
    np.testing.assert_array_equal(actions, logits.argmin(axis=-1))
    expected = np.log(np.exp(logits).min(axis=-1) / np.exp(logits).sum(axis=-1))
    np.testing.assert_allclose(episode.get_extra_model_outputs(Columns.ACTION_LOGP), expected, rtol=1e-5)
    algorithm.stop()


def test_frames_are_stacked_in_both_pipelines():
    stacking = config().env_runners(
        env_to_module_connector=lambda env, spaces, device: [FlattenObservations(), FrameStacking(num_frames=2)]
    )
    stacking.learners(
        learner_connector=lambda obs_space, act_space: FrameStacking(num_frames=2, as_learner_connector=True)
    )
    algorithm = stacking.build_algo()
    assert algorithm.get_module().body.kernel[...].shape == (6, 5)
    with pytest.raises(AttributeError, match="Use foreach_env_runner"):
        _ = algorithm.env_runner_group.foreach_worker
    assert algorithm.train()["learners"]["default_policy"]["num_module_steps_trained"] == 32
    algorithm.stop()


def test_callbacks_read_the_replay_buffer(looks_back):
    held = []
    settings = DQNConfig().environment(Repeat).rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[4]))
    settings.env_runners(num_env_runners=0, env_to_module_connector=lambda env: FlattenObservations())
    settings.training(replay_buffer_config={"type": "PrioritizedEpisodeReplayBuffer", "capacity": 50})
    settings.training(train_batch_size_per_learner=4, store_buffer_in_checkpoints=False)
    settings.reporting(min_sample_timesteps_per_iteration=10).callbacks(
        on_train_result=lambda algorithm, **kw: held.append(algorithm.local_replay_buffer.get_state())
    )
    algorithm = settings.build_algo()
    algorithm.train()
    assert algorithm.local_replay_buffer.get_num_timesteps() >= 10 and set(held[0]) == {"data", "rng"}
    # What msgpack's packers take, arrays included.
    for leaf in jax.tree.leaves(held[0], is_leaf=lambda node: node is None):
        assert isinstance(leaf, np.ndarray | str | float | bool | None) or -(2**63) <= leaf < 2**64
        assert not isinstance(leaf, np.ndarray) or (leaf.ndim and leaf.flags.c_contiguous)
    algorithm.stop()
    assert looks_back.local_replay_buffer is None


class LastThree(ConnectorV2):
    """Puts the last three observations of the unfinished episodes into the batch, and leaves the episodes alone."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-1.0, 2.0, (3,), np.float32)

    def __call__(self, *, rl_module, batch, episodes, **kwargs):
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            frames = np.asarray(episode.get_observations([-3, -2, -1], fill=-1), np.float32)
            self.add_batch_item(batch, Columns.OBS, item_to_add=frames, single_agent_episode=episode)
        return batch


@pytest.fixture(scope="module")
def looks_back():
    settings = config().env_runners(
        env_to_module_connector=lambda env, spaces, device: LastThree(), episode_lookback_horizon=3
    )
    algorithm = settings.build_algo()
    yield algorithm
    algorithm.stop()


def test_a_connector_that_makes_the_column_of_observations_looks_back_on_the_environments(looks_back):
    first, *others = looks_back.env_runner.sample(num_timesteps=5)
    rest, begun = looks_back.env_runner.sample(num_timesteps=5)
    assert (others, len(first), len(rest), len(begun)) == ([], 5, 3, 2) and rest.is_terminated
    seen = np.concatenate([first.get_observations(), rest.get_observations()[1:]])
    np.testing.assert_array_equal(seen[0][:2], [-1, -1])
    np.testing.assert_array_equal(seen[1:, :2], seen[:-1, 1:])
    # What stands before the second chunk is what the module saw in the first.
    np.testing.assert_array_equal(rest.get_observations([-4, -5, -6, -7]), seen[[5, 4, 3, 2]])
    np.testing.assert_array_equal(begun.get_observations()[0][:2], [-1, -1])


def test_such_a_connector_trains_and_is_told_off_in_the_learner_pipeline(looks_back):
    assert np.isfinite(looks_back.train()["learners"]["default_policy"]["policy_loss"])
    learner = (
        config()
        .learners(learner_connector=lambda obs_space, act_space: LastThree())
        .build_learner(spaces={"default_policy": (gym.spaces.Box(-1.0, 2.0, (3,), np.float32), gym.spaces.Discrete(3))})
    )
    learner.build()
    episodes = looks_back.env_runner.sample(num_timesteps=5)
    with pytest.raises(ValueError, match="do not repeat its connectors here"):
        learner.update(episodes=episodes, timesteps={"num_env_steps_sampled_lifetime": 5})


class Clones(Learner):
    """Behaviour cloning, as the guide to learners writes it."""

    def compute_loss_for_module(self, *, module_id, config=None, batch, fwd_out):
        cls = self._module[module_id].get_train_action_dist_cls()
        return -jnp.mean(cls.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS]))


def test_a_loss_from_scratch_updates_from_a_batch_and_its_weights_go_where_they_belong():
    learner = config().learners(learner_class=Clones).build_learner(env=Repeat({"n": 3}))
    learner.build()
    before = learner.get_state(components="rl_module")
    batch = {Columns.OBS: np.eye(3, dtype=np.float32), Columns.ACTIONS: np.array([0, 1, 2])}
    learner.update(batch={"default_policy": batch}, timesteps={"num_env_steps_sampled_lifetime": 3})
    after = learner.module["default_policy"].get_state()
    assert not np.array_equal(before["rl_module"]["default_policy"]["head/kernel"], after["head/kernel"])
    with pytest.raises(KeyError, match=r"Pass it to Learner.set_state\(\), or pass state\['rl_module'\]"):
        learner.module.set_state(before)
    learner.set_state(before)
    jax.tree.map(np.testing.assert_array_equal, learner.module.get_state(), before["rl_module"])


def test_a_learners_class_names_what_its_modules_need():
    assert set(SACConfig().get_default_learner_class().rl_module_required_apis()) == {QNetAPI, TargetNetworkAPI}
    assert Learner.rl_module_required_apis() == []


def test_a_module_built_alone_that_shares_layers_does_not_go_into_an_algorithm_that_does_not(tmp_path):
    env = Repeat({"n": 3})
    sizes = {"fcnet_hiddens": [4]}
    spaces = {"observation_space": gym.spaces.Box(0, 1, (3,), np.float32), "action_space": env.action_space}
    part = "learner_group/learner/rl_module/default_policy"
    for shares in (None, False):
        model_config = sizes if shares is None else sizes | {"vf_share_layers": shares}
        DefaultPPORLModule(**spaces, model_config=model_config, rngs=1).save_to_path(tmp_path / str(shares))
    settings = PPOConfig().environment(Repeat, env_config={"n": 3}).rl_module(model_config=sizes)
    settings.env_runners(num_env_runners=0, env_to_module_connector=lambda env: FlattenObservations())
    algorithm = settings.training(**SMALL).build_algo()
    with pytest.raises(ValueError, match="put vf_share_layers into the model_config of both"):
        algorithm.restore_from_path(tmp_path / "None", component=part)
    algorithm.restore_from_path(tmp_path / "False", component=part)
    stored = RLModule.from_checkpoint(tmp_path / "False").get_state()
    jax.tree.map(np.testing.assert_array_equal, algorithm.get_weights()["default_policy"], stored)
    algorithm.stop()


def test_episodes_hold_names_in_place_of_values():
    episode = SingleAgentEpisode()
    episode.add_env_reset(observation="o0", infos="i0")
    for t in range(3):
        episode.add_env_step(observation=f"o{t + 1}", action=f"a{t}", reward=f"r{t}", infos=f"i{t + 1}")
    assert episode.get_rewards([0, -1]) == ["r0", "r2"] and episode.get_observations(slice(1, 3)) == ["o1", "o2"]
    part = episode[1:2]
    assert (list(part.observations), list(part.actions), list(part.rewards)) == (["o1", "o2"], ["a1"], ["r1"])
    given = SingleAgentEpisode(observations=["o0", "o1"], actions=["a0"], rewards=["r0"], len_lookback_buffer=1)
    assert len(given) == 0 and given.get_rewards(-1) == "r0"
    assert episode.cut().get_observations(-1) == "o3"


def test_settings_of_other_frameworks_and_of_the_past_with_rllibs_defaults_are_taken():
    old = PPOConfig().framework("torch", eager_tracing=True, eager_max_retraces=20, tf_session_args={})
    old.framework(local_tf_session_args={}).env_runners(enable_tf1_exec_eagerly=False, sampler_perf_stats_ema_coef=None)
    assert old.to_dict() == PPOConfig().to_dict()
    with pytest.raises(ValueError, match="'eager_max_retraces' is gone"):
        PPOConfig().framework(eager_max_retraces=3)


@pytest.mark.parametrize(
    ("statement", "instead"),
    [
        ("from jaxrl_stack.core import Columns, TorchRLModule", "Use `core.rl_module.RLModule`"),
        ("from jaxrl_stack.models import ModelCatalog", "core.models.catalog.Catalog"),
        (
            "from jaxrl_stack.algorithms.bc.torch.default_bc_torch_rl_module import DefaultBCTorchRLModule",
            "algorithms.bc.default_bc_rl_module.DefaultBCRLModule",
        ),
        ("from jaxrl_stack.utils.replay_buffers import ReplayBuffer, StorageUnit", "Use `EpisodeReplayBuffer`"),
        ("from jaxrl_stack.utils.replay_buffers.utils import validate_buffer_config", "replay_buffer_config="),
        ("from jaxrl_stack.evaluation.postprocessing import Postprocessing", "Columns.*GeneralAdvantageEstimation"),
    ],
)
def test_imports_of_the_guides_that_are_not_here_say_what_is(statement, instead):
    with pytest.raises(ImportError, match=instead):
        exec(statement, {})
