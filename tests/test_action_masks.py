"""Masks of actions: the maths, the default modules, both drivers, evaluation, serving, and masks that allow nothing."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.dreamerv3 import DreamerV3Config
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import (
    EnvToModulePipeline,
    FlattenObservations,
    FrameStacking,
    MeanStdFilter,
    MultiAgentObservationPreprocessor,
    OneHotIntegers,
    PrevActionsPrevRewards,
    ResizeImages,
    SingleAgentObservationPreprocessor,
)
from jaxrl_stack.connectors.module_to_env import RandomActions
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.default_observations import masked_logits, sample_valid
from jaxrl_stack.core.distribution.jax_distribution import Categorical, MultiCategorical
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.agent_mapping import AgentSpaces
from jaxrl_stack.env.agent_preprocessing import agent_preprocessing
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.episodes.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.examples.envs.settings import ConfiguredEnv
from jaxrl_stack.examples.rl_modules.classes.random_rlm import RandomRLModule
from jaxrl_stack.policy.export import load_exported
from jaxrl_stack.utils import notices

SMALL = {"fcnet_hiddens": [8], "head_fcnet_hiddens": []}
NVEC = [3, 2]


class Legal(ConfiguredEnv):
    """An action that the mask of the observation does not allow pays -1000, any other one 1; after 5 steps it is over.

    In step t action t % 4 alone is not allowed (MultiDiscrete: t % 3 of the first component); from step
    `allows_nothing_from` on none is.
    """

    defaults = {"key": "action_mask", "is_multi": False, "image": False, "allows_nothing_from": 5}

    @property
    def action_space(self):
        return gym.spaces.MultiDiscrete(NVEC) if self.settings["is_multi"] else gym.spaces.Discrete(4)

    @property
    def observation_space(self):
        num_actions = sum(NVEC) if self.settings["is_multi"] else 4
        mask = gym.spaces.Box(0, 1, (num_actions,), np.int8)
        if self.settings["image"]:
            rest = gym.spaces.Dict(
                board=gym.spaces.Box(0, 255, (6, 6, 1), np.uint8), state=gym.spaces.Box(0, 9, (1,), np.float32)
            )
        else:
            rest = gym.spaces.Box(0, 9, (1,), np.float32)
        return gym.spaces.Dict({self.settings["key"]: mask, "observations": rest})

    def _obs(self, t):
        num_actions, turns = (sum(NVEC), NVEC[0]) if self.settings["is_multi"] else (4, 4)
        mask = (jnp.arange(num_actions) != t % turns) & (t < self.settings["allows_nothing_from"])
        rest = t[None].astype(jnp.float32)
        if self.settings["image"]:
            rest = {"board": jnp.full((6, 6, 1), t, jnp.uint8), "state": rest}
        return {self.settings["key"]: mask.astype(jnp.int8), "observations": rest}

    def reset_env(self, key, params):
        t = jnp.int32(0)
        return self._obs(t), t

    def step_env(self, key, state, action, params):
        first = action[0] if self.settings["is_multi"] else action
        is_valid = first != state % (NVEC[0] if self.settings["is_multi"] else 4)
        t = state + 1
        return self._obs(t), t, jnp.where(is_valid, 1.0, -1000.0), t >= 5, False, {}


register_env("legal", Legal)
register_env("legal-host", lambda config: GymnasiumFromJax(Legal(dict(config))))


def config_of(config_class, env, **settings):
    config = (
        config_class().environment(env, env_config=settings).env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    )
    config.rl_module(model_config={**SMALL, **({"conv_filters": [[2, 3, 3]]} if settings.get("image") else {})})
    if config_class is PPOConfig:
        return config.training(train_batch_size_per_learner=40, minibatch_size=20, num_epochs=2)
    config.training(train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=20)
    return config.reporting(min_sample_timesteps_per_iteration=40, min_time_s_per_iteration=0)


# ------------------------------------------------------------------------------------------------------------ maths


def test_a_masked_categorical_is_the_one_over_the_valid_actions():
    rng = np.random.default_rng(0)
    logits, other = rng.normal(size=(2, 6, 5)).astype(np.float32) * 3
    mask = np.array([[1, 0, 1, 1, 0]] * 6, bool)
    valid = np.flatnonzero(mask[0])

    @jax.jit
    def terms(p, q, actions):
        p, q = Categorical(p), Categorical(q)
        return p.probs, p.entropy(), p.kl(q), jax.vmap(p.logp)(actions)

    def each(actions):
        return np.repeat(np.asarray(actions, np.int32)[:, None], 6, axis=1)

    masked = jax.jit(masked_logits)
    probs, *others = terms(masked(logits, mask), masked(other, mask), each(valid))
    probs_valid, *others_valid = terms(logits[:, valid], other[:, valid], each(range(3)))
    assert (np.asarray(probs)[:, ~mask[0]] == 0).all()
    np.testing.assert_allclose(np.asarray(probs)[:, valid], probs_valid, rtol=1e-6)
    for ours, expected in zip(others, others_valid, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)

    # By hand: two of three actions, equally likely.
    @jax.jit
    def even():
        distribution = Categorical(masked_logits(jnp.zeros((1, 3)), jnp.array([[True, False, True]])))
        return distribution.entropy(), distribution.logp(jnp.array([2]))

    entropy, logp = even()
    np.testing.assert_allclose(entropy, [np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(logp, [-np.log(2)], rtol=1e-6)


def test_gradients_are_finite_and_reach_valid_actions_alone():
    mask = np.array([True, False, True])

    def loss(logits):
        p = Categorical(masked_logits(logits, mask))
        q = Categorical(masked_logits(logits * 2 + 1, mask))
        return p.entropy() + p.kl(q) + p.logp(jnp.int32(2)) + jnp.exp(5.0) * jnp.sum(p.probs * p.log_probs)

    gradient = np.asarray(jax.jit(jax.grad(loss))(np.array([0.3, 50.0, -0.2], np.float32)))
    assert np.isfinite(gradient).all() and gradient[1] == 0 and gradient[0] != 0


def test_components_of_multi_discrete_actions_are_masked_each():
    mask = np.array([[True, False, True, False, True]] * 200)
    space = gym.spaces.MultiDiscrete(NVEC)

    @jax.jit
    def run(key, other_key):
        distribution = MultiCategorical.from_logits(masked_logits(jnp.zeros((200, 5)), mask), input_lens=NVEC)
        draws = distribution.sample(key=key), sample_valid(other_key, space, mask)
        return distribution.entropy(), draws

    entropy, draws = run(jax.random.key(0), jax.random.key(1))
    np.testing.assert_allclose(entropy, np.full(200, np.log(2)), rtol=1e-5)
    for draw in map(np.asarray, draws):
        assert set(np.unique(draw[:, 0])) == {0, 2} and (draw[:, 1] == 1).all()


@pytest.mark.parametrize("config_class", [PPOConfig, SACConfig])
def test_modules_give_masked_actions_probability_zero(config_class):
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=gym.spaces.Box(-1, 1, (2,)))
    spaces = {DEFAULT_MODULE_ID: (space, gym.spaces.Discrete(3))}
    module = config_class().rl_module(model_config=SMALL).get_rl_module_spec(spaces=spaces).build(seed=0)
    mask = np.array([[1, 1, 0], [0, 1, 0], [1, 1, 1]], np.int8)
    obs = {"action_mask": mask, "observations": np.random.default_rng(0).normal(size=(3, 2)).astype(np.float32)}
    for forward in (module.forward_inference, module.forward_exploration):
        inputs = forward({Columns.OBS: obs})[Columns.ACTION_DIST_INPUTS]
        probs = np.asarray(Categorical(inputs).probs)
        assert (probs[mask == 0] == 0).all() and (probs[mask == 1] > 0).all()
    if config_class is SACConfig:
        outputs = module.forward_train({Columns.OBS: obs, Columns.NEXT_OBS: obs})
        assert (np.asarray(outputs["action_probs"])[mask == 0] == 0).all()
    else:
        unmasked = {**obs, "action_mask": np.ones_like(mask)}
        values = [module.compute_values({Columns.OBS: o}) for o in (obs, unmasked)]
        np.testing.assert_array_equal(*values)


# ---------------------------------------------------------------------------------------------------------- drivers


@pytest.mark.parametrize(
    ("config_class", "env", "settings", "num_devices"),
    [
        (PPOConfig, "legal", {}, 4),
        (PPOConfig, "legal", {"is_multi": True, "image": True}, 1),
        (PPOConfig, "legal-host", {"is_multi": True}, 1),
        (DQNConfig, "legal", {}, 4),
        (SACConfig, "legal", {}, 1),
    ],
)
def test_no_masked_action_is_ever_chosen(config_class, env, settings, num_devices):
    config = config_of(config_class, env, **settings).env_runners(num_envs_per_env_runner=4)
    config.evaluation(evaluation_interval=1, evaluation_duration=4, evaluation_config={"explore": False})
    if env == "legal":
        config.learners(num_cpus_per_learner=num_devices)
    algo = config.build_algo()
    for _ in range(2):
        result = algo.train()
    assert result["env_runners"]["episode_return_min"] == result["env_runners"]["episode_return_max"] == 5.0
    assert result["evaluation"]["env_runners"]["episode_return_min"] == 5.0
    learned = result["learners"][DEFAULT_MODULE_ID]
    assert learned["no_valid_action_share"] == 0.0 and np.isfinite(learned["total_loss"])
    if config_class is not PPOConfig:
        assert learned["num_module_steps_trained_lifetime"] == 8 * algo.driver.num_updates > 0
    algo.stop()


def test_four_devices_learn_with_masks_what_one_does():
    """From the same steps: a host samples alike, however many devices learn."""
    found = []
    for num_devices in (1, 4):
        config = config_of(DQNConfig, "legal-host").env_runners(num_envs_per_env_runner=4).debugging(seed=1)
        algo = config.learners(num_cpus_per_learner=num_devices, num_shuffle_shards=4).build_algo()
        assert len(algo.learner.devices) == num_devices
        first = algo.get_weights()
        result = algo.train()
        assert result["env_runners"]["episode_return_min"] == result["env_runners"]["episode_return_max"] == 5.0
        learned = result["learners"][DEFAULT_MODULE_ID]
        found.append((algo.get_weights(), {name: learned[name] for name in ("total_loss", "no_valid_action_share")}))
        algo.stop()
        assert any((a != b).any() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(found[-1][0]), strict=True))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *found)


def test_a_mask_of_another_name_and_served_policies(tmp_path):
    config = config_of(PPOConfig, "legal", key="legal").environment(action_mask_key="legal")
    algo = config.build_algo()
    assert algo.train()["env_runners"]["episode_return_min"] == 5.0
    policy = algo.get_policy()
    mask = np.eye(4, dtype=np.int8)
    obs = {"legal": mask, "observations": np.zeros((4, 1), np.float32)}
    exported = load_exported(policy.export(tmp_path / "policy"))
    for acting in (policy, exported):
        np.testing.assert_array_equal(acting.compute_actions(obs)[0], np.arange(4))
    np.testing.assert_array_equal(policy.compute_actions(obs, explore=True)[0], np.arange(4))
    algo.stop()


def test_a_mask_that_allows_nothing_raises_on_the_host_and_is_counted_on_the_device(caplog, monkeypatch):
    host = SingleAgentEnvRunner(config=config_of(PPOConfig, "legal-host", allows_nothing_from=3))
    message = r"Environment 0 of EnvRunner 0 .* returned an action mask that allows no action, in step 3 of the 20"
    with pytest.raises(ValueError, match=message):
        host.sample()
    host.stop()
    device = config_of(PPOConfig, "legal", allows_nothing_from=3).build_algo()
    monkeypatch.setattr(notices, "_given", set())
    share = device.train()["learners"][DEFAULT_MODULE_ID]["no_valid_action_share"]
    assert share == pytest.approx(0.4)  # of all rows
    assert "An action mask allows no action" in caplog.text
    caplog.clear()
    monkeypatch.setattr(notices, "_given", set())
    obs = {"action_mask": np.array([[1, 0, 0, 0], [0, 0, 0, 0]], np.int8), "observations": np.zeros((2, 1), np.float32)}
    policy = device.get_policy()
    policy.compute_actions(jax.tree.map(lambda x: x[:1], obs))
    assert not caplog.text
    for _ in range(2):
        policy.compute_actions(obs)
    assert caplog.text.count("An action mask allows no action") == 1
    device.stop()


# ------------------------------------------------------------------------------------------------ behind connectors


class Halved(SingleAgentObservationPreprocessor):
    sees_action_mask = False

    def preprocess(self, observation):
        return observation / 2


class HalvedOnHost(SingleAgentObservationPreprocessor):
    def preprocess(self, observation, episode):
        return {**observation, "observations": observation["observations"] / 2}


def every_connector():
    return [
        Halved(),
        PrevActionsPrevRewards(n_prev_actions=2),
        FlattenObservations(),
        FrameStacking(num_frames=2),
        MeanStdFilter(),
    ]


WAYS = {
    "flat": lambda: FlattenObservations(),
    "stacked": lambda: FrameStacking(num_frames=3),
    "previous": lambda: PrevActionsPrevRewards(),
    "filtered": lambda: MeanStdFilter(),
    "pipeline": lambda: EnvToModulePipeline(connectors=[FlattenObservations(), MeanStdFilter()]),
    "all": every_connector,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("key", ["action_mask", "legal"])
def test_masks_stay_as_they_are_behind_connectors(way, key):
    mask_space = gym.spaces.Box(0, 1, (4,), np.float32)
    space = gym.spaces.Dict({key: mask_space, "observations": gym.spaces.Box(0, 9, (2,), np.float32)})
    config = PPOConfig().environment(action_mask_key=key)
    config.env_runners(env_to_module_connector=lambda env, spaces, device: WAYS[way]())
    pipeline = config.build_env_to_module_connector(spaces={"__env_single__": (space, gym.spaces.Discrete(4))})
    assert pipeline.observation_space["action_mask"] == mask_space
    pure = pipeline.pure_part()
    state = pure.init(3)
    for t in range(3):
        mask = np.random.default_rng(t).integers(0, 2, (3, 4)).astype(np.float32)
        batch = {DEFAULT_MODULE_ID: {Columns.OBS: {key: mask, "observations": np.full((3, 2), t, np.float32)}}}
        state, made = pure.apply(state, batch, pipeline.blank_context([DEFAULT_MODULE_ID], 3))
        made = made[DEFAULT_MODULE_ID][Columns.OBS]
        np.testing.assert_array_equal(made["action_mask"], mask)
        assert pipeline.observation_space["observations"].shape == made["observations"].shape[1:]
    assert f"{DEFAULT_MODULE_ID}/obs/observations" in pipeline.describe(batch).split("1 ")[-1]


def test_integers_and_images_change_beside_a_mask():
    rest = gym.spaces.Dict(tiles=gym.spaces.Box(0, 4, (2, 2, 1), np.uint8), view=gym.spaces.Box(0, 1, (8, 8, 1)))
    space = gym.spaces.Dict(action_mask=gym.spaces.Box(0, 9, (4,), np.int8), observations=rest)
    config = PPOConfig().env_runners(
        env_to_module_connector=lambda env, spaces, device: [OneHotIntegers(), ResizeImages(height=4, width=4)]
    )
    pipeline = config.build_env_to_module_connector(spaces={"__env_single__": (space, gym.spaces.Discrete(4))})
    made = pipeline.observation_space
    assert made["action_mask"] == space["action_mask"]
    assert {key: part.shape for key, part in made["observations"].items()} == {"tiles": (4, 4, 5), "view": (4, 4, 1)}


def test_connectors_of_modules_that_do_not_honour_masks_see_all_of_the_observation():
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(4), observations=gym.spaces.Box(0, 9, (2,), np.float32))
    spaces = {"__env_single__": (space, gym.spaces.Discrete(4))}
    config = PPOConfig().env_runners(env_to_module_connector=lambda env, spaces, device: FlattenObservations())
    for own, shape in ((RLModule, (6,)), (DefaultPPORLModule, None)):
        config.rl_module(rl_module_spec=RLModuleSpec(module_class=own))
        assert config.build_env_to_module_connector(spaces=spaces).observation_space.shape == shape
    config.environment(action_mask_key="none").rl_module(rl_module_spec=RLModuleSpec())
    assert config.build_env_to_module_connector(spaces=spaces).observation_space.shape == (6,)
    # On its own a connector knows of no mask.
    assert FlattenObservations(space, gym.spaces.Discrete(4)).observation_space.shape == (6,)


@pytest.mark.parametrize(
    ("config_class", "env", "model"),
    [
        (PPOConfig, "legal", {"use_lstm": True}),
        (PPOConfig, "legal-host", {"use_lstm": True}),
        (DQNConfig, "legal-host", {}),
    ],
)
def test_no_masked_action_is_ever_chosen_behind_connectors(config_class, env, model):
    config = config_of(config_class, env).env_runners(
        env_to_module_connector=lambda env, spaces, device: every_connector()
    )
    if model:
        config.rl_module(model_config={"fcnet_hiddens": [8], "lstm_cell_size": 8, "max_seq_len": 5, **model})
    if config_class is DQNConfig:
        config.env_runners(module_to_env_connector=lambda env: RandomActions(epsilon=0.5))
    algo = config.evaluation(evaluation_interval=1, evaluation_duration=2).build_algo()
    result = algo.train()
    assert result["env_runners"]["episode_return_min"] == result["evaluation"]["env_runners"]["episode_return_min"] == 5
    assert result["learners"][DEFAULT_MODULE_ID]["no_valid_action_share"] == 0.0
    mask = np.eye(4, dtype=np.int8)
    obs = {"action_mask": mask, "observations": np.zeros((4, 1), np.float32)}
    np.testing.assert_array_equal(algo.get_policy().compute_actions(obs)[0], np.arange(4))
    algo.stop()


def test_host_connectors_and_masks():
    config = config_of(PPOConfig, "legal-host").env_runners(
        env_to_module_connector=lambda env, spaces, device: [HalvedOnHost(), FlattenObservations()]
    )
    runner = SingleAgentEnvRunner(config=config)
    for episode in runner.sample(num_episodes=2, explore=True):
        assert episode.get_return() == 5.0 and episode.get_observations(-1)["action_mask"].shape == (4,)
    runner.stop()


def test_modules_that_act_at_random_draw_from_the_valid_actions():
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=gym.spaces.Box(-1, 1, (1,)))
    module = RandomRLModule(observation_space=space, action_space=gym.spaces.Discrete(3), rngs=0)
    mask = np.repeat(np.array([[0, 1, 0], [1, 0, 1]], np.int8), 50, axis=0)
    obs = {"action_mask": mask, "observations": np.zeros((100, 1), np.float32)}
    actions = np.asarray(module.forward_exploration({Columns.OBS: obs})[Columns.ACTIONS])
    assert mask[np.arange(100), actions].all() and set(actions[50:]) == {0, 2}


# --------------------------------------------------------------------------------------------------------- refusals


class Flat(SingleAgentObservationPreprocessor):
    def preprocess(self, observation):
        return observation["observations"]

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return input_observation_space["observations"]


class FlatOnHost(Flat):
    def preprocess(self, observation, episode):
        return observation["observations"]


class FlatForAll(MultiAgentObservationPreprocessor):
    def preprocess(self, observations, episode):
        return {agent: own["observations"] for agent, own in observations.items()}

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Dict({agent: own["observations"] for agent, own in input_observation_space.items()})


@pytest.mark.parametrize(
    ("connectors", "message"),
    [
        (lambda: [MeanStdFilter(), Flat()], r"connector 'Flat' drops the action mask 'action_mask'.*sees_action_mask"),
        (lambda: FlatOnHost(), "connector 'FlatOnHost' drops the action mask"),
        (
            lambda: EnvToModulePipeline(connectors=[MeanStdFilter(), Flat()]),
            "'EnvToModulePipeline/Flat' drops the action mask",
        ),
        (lambda: FlattenObservations(keys_to_remove=["action_mask"]), r"keys_to_remove.*remove the action mask"),
    ],
)
def test_connectors_that_lose_the_mask_are_refused(connectors, message):
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=gym.spaces.Box(-1, 1, (2,)))
    spaces = {"__env_single__": (space, gym.spaces.Discrete(3))}
    config = PPOConfig().env_runners(env_to_module_connector=lambda env, spaces, device: connectors())
    with pytest.raises(ValueError, match=message):
        config.build_env_to_module_connector(spaces=spaces)
    config.environment(action_mask_key="none")
    assert config.build_env_to_module_connector(spaces=spaces).observation_space.shape is not None


def test_masks_that_do_not_reach_the_module_are_refused():
    space = gym.spaces.Dict(legal=gym.spaces.MultiBinary(3), observations=gym.spaces.Box(-1, 1, (2,)))
    spaces = {"__env_single__": (space, gym.spaces.Discrete(3))}
    config = PPOConfig().environment(action_mask_key="legal")
    config.env_runners(add_default_connectors_to_env_to_module_pipeline=False)
    with pytest.raises(
        ValueError, match=r"Add the env-to-module connector DefaultObservations\(action_mask_key='legal'"
    ):
        config.build_env_to_module_connector(spaces=spaces)
    with pytest.raises(ValueError, match=r"action mask under 'legal', which the networks of DreamerV3Config"):
        DreamerV3Config().environment(action_mask_key="legal").build_env_to_module_connector(spaces=spaces)
    spaces = AgentSpaces(dict.fromkeys("ab", space), dict.fromkeys("ab", gym.spaces.Discrete(3)))
    config.env_runners(env_to_module_connector=lambda env, spaces, device: FlatForAll())
    preprocessing = agent_preprocessing(config, spaces)
    preprocessing.check_masks(lambda agent, *own: None)
    with pytest.raises(ValueError, match=r"FlatForAll removes the action mask 'legal' of agent 'a'"):
        preprocessing.check_masks(lambda agent, *own: config.action_mask_key_of("default_policy", *own))


def test_learner_connectors_keep_masks():
    class Loses(ConnectorV2):
        def apply(self, state, batch, ctx):
            return state, {mid: {**own, "new_obs": own["new_obs"]["observations"]} for mid, own in batch.items()}

    class LosesOnHost(ConnectorV2):
        def __call__(self, *, episodes, batch, **kwargs):
            for episode in episodes:
                episode.set_observations(new_data=[own["observations"] for own in episode.get_observations()])
            return batch

    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=gym.spaces.Box(-1, 1, (2,)))
    observation = {"action_mask": np.ones(3, np.int8), "observations": np.zeros(2, np.float32)}
    obs = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (4, 2, *leaf.shape)), observation)
    batch = {DEFAULT_MODULE_ID: {Columns.OBS: obs, Columns.NEXT_OBS: obs}}

    def pipeline_of(connector):
        config = DQNConfig().learners(learner_connector=lambda *spaces: connector)
        config.learners(add_default_connectors_to_learner_pipeline=False)
        return config.build_learner_connector(space, gym.spaces.Discrete(3))

    flat = pipeline_of(FlattenObservations(as_learner_connector=True))(batch=batch)[DEFAULT_MODULE_ID]
    assert jax.tree.map(np.shape, flat[Columns.NEXT_OBS]) == {"action_mask": (4, 2, 3), "observations": (4, 2, 2)}
    with pytest.raises(ValueError, match="column 'new_obs' of module 'default_policy' without the action mask"):
        pipeline_of(Loses())(batch=batch)

    episode = SingleAgentEpisode(observations=[observation], observation_space=space)
    for _ in range(4):
        outputs = {Columns.ACTION_DIST_INPUTS: np.zeros(3, np.float32), Columns.ACTION_LOGP: np.float32(-1.0)}
        episode.add_env_step(observation, 0, 1.0, extra_model_outputs=outputs)
    config = PPOConfig().environment(observation_space=space, action_space=gym.spaces.Discrete(3))
    config.rl_module(model_config=SMALL).training(minibatch_size=4, num_epochs=1)
    learner = config.learners(learner_connector=lambda *spaces: LosesOnHost()).build_learner()
    with pytest.raises(ValueError, match=r"'obs' after the learner connectors \['LosesOnHost'\] has no 'action_mask'"):
        learner.update(episodes=[episode])


@pytest.mark.parametrize(
    ("config_class", "action_space", "mask", "message"),
    [
        (PPOConfig, gym.spaces.Box(-1, 1, (2,)), (2,), "need Discrete or MultiDiscrete actions"),
        (TQCConfig, gym.spaces.Box(-1, 1, (2,)), (2,), "need Discrete or MultiDiscrete actions"),
        (PPOConfig, gym.spaces.Discrete(3), (4,), r"shape \(4,\), but 3 actions need \(3,\)"),
        (PPOConfig, gym.spaces.MultiDiscrete(NVEC), (2,), r"shape \(2,\), but 5 actions need \(5,\)"),
    ],
)
def test_masks_that_do_not_fit_the_actions_are_refused(config_class, action_space, mask, message):
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(mask), observations=gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(ValueError, match=message):
        config_class().get_rl_module_spec(spaces={DEFAULT_MODULE_ID: (space, action_space)}).build(seed=0)


def test_a_mask_beside_other_keys_is_refused_and_another_key_makes_it_an_observation():
    space = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), board=gym.spaces.Box(-1, 1, (2,)))
    spaces = {"__env_single__": (space, gym.spaces.Discrete(3))}
    with pytest.raises(ValueError, match=r"and also \['board'\].*environment\(action_mask_key=...\)"):
        PPOConfig().build_env_to_module_connector(spaces=spaces)
    pipeline = PPOConfig().environment(action_mask_key="none").build_env_to_module_connector(spaces=spaces)
    assert pipeline.observation_space.shape == (5,)
