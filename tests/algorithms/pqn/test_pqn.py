"""PQN: lambda returns and loss against a loop, exploration, both drivers, exact resume, bad input."""

from __future__ import annotations

import types

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import QF_PREDS
from jaxrl_stack.algorithms.pqn import PQN, PQNConfig
from jaxrl_stack.algorithms.pqn.default_pqn_rl_module import DefaultPQNRLModule
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env

CARTPOLE, ON_THE_HOST = "gymnax/CartPole-v1", "cartpole_on_the_host"
OBS, ACTIONS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32), gym.spaces.Discrete(4)
CARTPOLE_OBS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
NUM_ENVS, NUM_STEPS = 4, 8


@pytest.fixture(autouse=True)
def cartpole_on_the_host():
    register_env(ON_THE_HOST, lambda context: GymnasiumFromJax(CARTPOLE, {"max_steps_in_episode": 6}))


def config(env=CARTPOLE, **training):
    asked = (
        PQNConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, minibatch_size=16, lr=0.01, gamma=0.9, **training)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )
    return asked.environment(env_config={"max_steps_in_episode": 6}) if env == CARTPOLE else asked


# ------------------------------------------------------------------------------------------------- targets and loss


def a_block(rng, shape=(7, 3)):
    """Random steps with ends of both kinds, and two masked rows."""
    terminateds = rng.random(shape) < 0.15
    truncateds = rng.random(shape) < 0.15
    mask = np.ones(shape, bool)
    mask[2, 1] = mask[-1, 2] = False
    return {
        "obs": rng.uniform(-1, 1, (*shape, 3)).astype(np.float32),
        "final_obs": rng.uniform(-1, 1, (*shape, 3)).astype(np.float32),
        "actions": rng.integers(0, 4, shape).astype(np.int32),
        "rewards": rng.normal(size=shape).astype(np.float32),
        "terminateds": terminateds,
        "truncateds": truncateds,
        "loss_mask": mask,
    }


def module_of(observations, actions=ACTIONS, **settings):
    settings = {"fcnet_hiddens": [4], **settings}
    return DefaultPQNRLModule(observation_space=observations, action_space=actions, model_config=settings, rngs=0)


def max_q(module, obs):
    return np.asarray(module.compute_q_values({"obs": jnp.asarray(obs)})[QF_PREDS]).max(axis=-1)


def lambda_returns(block, module, gamma, lambda_):
    """``G_t = r_t + gamma ((1 - lambda) max Q(s_{t+1}) + lambda G_{t+1})``, column by column from behind."""
    values, finals = max_q(module, block["obs"]), max_q(module, block["final_obs"])
    found = np.zeros_like(block["rewards"])
    for b in range(values.shape[1]):
        rows = np.flatnonzero(block["loss_mask"][:, b])
        for i in reversed(range(len(rows))):
            t = rows[i]
            is_end = block["terminateds"][t, b] or block["truncateds"][t, b]
            if block["terminateds"][t, b]:
                after = 0.0
            elif is_end or i + 1 == len(rows):
                after = finals[t, b]
            else:
                following = rows[i + 1]
                after = (1 - lambda_) * values[following, b] + lambda_ * found[following, b]
            found[t, b] = block["rewards"][t, b] + gamma * after
    return found


def test_loss_and_targets_are_those_of_a_loop_over_the_steps():
    gamma, lambda_ = 0.9, 0.65
    asked = PQNConfig().rl_module(model_config={"fcnet_hiddens": [5], "head_fcnet_hiddens": [4]})
    asked.training(gamma=gamma, lambda_=lambda_, lr=0.0).debugging(seed=1).learners(num_cpus_per_learner=1)
    learner = asked.build_learner(spaces={DEFAULT_MODULE_ID: (OBS, ACTIONS)})
    module, block = learner.module[DEFAULT_MODULE_ID], a_block(np.random.default_rng(0))
    # Ends of both kinds, also in rows before the last.
    assert block["terminateds"][:-1].any() and (block["truncateds"] & ~block["terminateds"])[:-1].any()
    expected = lambda_returns(block, module, gamma, lambda_)
    result = learner.update_block(
        Experience.of_steps({DEFAULT_MODULE_ID: block}), num_epochs=1, minibatch_size=None, timesteps={}
    )[DEFAULT_MODULE_ID]
    q_values = np.asarray(module.compute_q_values({"obs": block["obs"]})[QF_PREDS])
    chosen = np.take_along_axis(q_values, block["actions"][..., None], axis=-1)[..., 0]
    valid = block["loss_mask"]
    np.testing.assert_allclose(result["value_target_mean"], expected[valid].mean(), rtol=1e-5)
    np.testing.assert_allclose(result["td_error_mean"], np.abs(chosen - expected)[valid].mean(), rtol=1e-5)
    np.testing.assert_allclose(result["qf_loss"], 0.5 * np.square(chosen - expected)[valid].mean(), rtol=1e-5)
    np.testing.assert_allclose(result["qf_mean"], chosen[valid].mean(), rtol=1e-5)


def test_the_value_of_a_state_is_its_highest_valid_q_value():
    space = gym.spaces.Dict(action_mask=gym.spaces.Box(0.0, 1.0, (4,), np.float32), observations=OBS)
    module = module_of(space)
    observations = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    mask = np.eye(4, dtype=np.float32)[[0, 1, 2, 3, 0, 1]] + np.eye(4, dtype=np.float32)[[1, 2, 3, 0, 2, 3]]
    batch = {"obs": {"action_mask": mask, "observations": observations}}
    q_values = np.asarray(module.compute_q_values(batch)[QF_PREDS])
    expected = np.where(mask > 0, q_values, -np.inf).max(axis=-1)
    np.testing.assert_array_equal(module.compute_values(batch), expected)
    actions = np.asarray(module.forward_inference(batch)["actions"])
    np.testing.assert_array_equal(q_values[np.arange(6), actions], expected)
    explored = np.asarray(module.forward_exploration(batch, epsilon=1.0)["actions"])
    assert mask[np.arange(6), explored].all()


@pytest.mark.parametrize("layer_norm", [True, False])
def test_layer_normalisation_is_in_every_part_of_the_network(layer_norm):
    space = gym.spaces.Dict(image=gym.spaces.Box(0.0, 1.0, (6, 6, 2), np.float32), vector=OBS)
    names = module_of(space, conv_filters=[[2, 3, 2]], head_fcnet_hiddens=[4], layer_norm=layer_norm).get_state()
    parts = {name.rpartition("/layernorm_")[0] for name in names if "layernorm" in name}
    # One of the convolutions, one of the vector's encoder, one of the head.
    assert len(parts) == (3 if layer_norm else 0), parts


# ---------------------------------------------------------------------------------------------------- exploration


def explored(epsilon_per_env, num_rows):
    """Share of random actions in each row, of a module whose greedy action is always the same."""
    module = module_of(OBS, gym.spaces.Discrete(64), epsilon_per_env=epsilon_per_env)
    greedy = int(module.forward_inference({"obs": np.zeros((1, 3), np.float32)})["actions"][0])
    actions = [
        np.asarray(module.forward_exploration({"obs": np.zeros((num_rows, 3), np.float32)}, epsilon=1.0)["actions"])
        for _ in range(60)
    ]
    return (np.stack(actions) != greedy).mean(axis=0)


def test_each_environment_has_its_rate_of_random_actions():
    shares = explored((0.0, 1.0, 0.5), 6)
    np.testing.assert_array_equal(shares[[0, 3]], 0.0)
    assert (shares[[1, 4]] > 0.9).all()
    assert ((shares[[2, 5]] > 0.25) & (shares[[2, 5]] < 0.75)).all()


def test_environments_of_other_devices_have_the_rates_behind():
    rates = (0.0, 0.1, 0.2, 0.3)
    module = module_of(OBS, epsilon_per_env=rates)
    found = jax.vmap(lambda x: module._rates_of_rows(x.shape), axis_name="devices")(np.zeros((2, 2)))
    np.testing.assert_allclose(found.reshape(-1), rates)


def test_the_schedule_of_the_model_config_counts_env_steps():
    module = module_of(OBS, gym.spaces.Discrete(64), epsilon=[[0, 1.0], [100, 0.0]])
    batch = {"obs": np.zeros((32, 3), np.float32)}
    greedy = np.asarray(module.forward_inference(batch)["actions"])
    assert (np.asarray(module.forward_exploration(batch, t=0)["actions"]) != greedy).mean() > 0.8
    np.testing.assert_array_equal(module.forward_exploration(batch, t=100)["actions"], greedy)


# ---------------------------------------------------------------------------------------------------------- runs


SAMPLED: list = []


class RecordsSteps(ConnectorV2):
    """Hands every sampled block to the host."""

    def apply(self, state, batch, ctx):
        jax.debug.callback(lambda columns: SAMPLED.append(jax.tree.map(np.asarray, columns)), dict(batch))
        return state, batch


def test_steps_of_the_device_make_the_same_update_on_the_host():
    fused = config().learners(learner_connector=lambda *_: RecordsSteps()).build_algo()
    hosted = config().build_learner(spaces={DEFAULT_MODULE_ID: (CARTPOLE_OBS, gym.spaces.Discrete(2))})
    before = hosted.get_weights()
    jax.tree.map(np.testing.assert_array_equal, before, fused.learner.get_weights())
    SAMPLED.clear()
    result = learned(fused.train())
    jax.effects_barrier()
    (block,) = SAMPLED
    assert block[DEFAULT_MODULE_ID]["truncateds"].any()
    found = hosted.update_block(
        Experience.of_steps(block),
        timesteps={"num_env_steps_sampled_lifetime": NUM_ENVS * NUM_STEPS},
        num_epochs=2,
        minibatch_size=16,
        shuffle_batch_per_epoch=True,
    )[DEFAULT_MODULE_ID]
    for ref, value in fused.learner.get_weights().items():
        assert (value != before[ref]).any()
        np.testing.assert_allclose(hosted.get_weights()[ref], value, atol=1e-6, err_msg=ref)
    for name in ("qf_loss", "td_error_mean", "value_target_mean"):
        np.testing.assert_allclose(found[name], result[name], rtol=1e-5, err_msg=name)
    fused.stop()


def learned(result):
    return {k: v for k, v in result["learners"][DEFAULT_MODULE_ID].items() if isinstance(v, float) and v == v}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two iterations, their checkpoint, and one more."""
    algo = config().build_algo()
    first = algo.train()
    algo.train()
    path = algo.save_to_path(tmp_path_factory.mktemp("pqn") / "checkpoint")
    after = learned(algo.train())
    yield types.SimpleNamespace(algo=algo, path=path, first=first, after=after, state=algo.learner.get_state())
    algo.stop()


def test_results_have_the_names_of_the_readme(run):
    result = run.first["learners"][DEFAULT_MODULE_ID]
    assert {"qf_loss", "qf_mean", "td_error_mean", "value_target_mean", "total_loss"} <= result.keys()
    assert result["num_module_steps_trained"] == 2 * NUM_ENVS * NUM_STEPS
    assert run.first["env_runners"]["episode_len_max"] <= 6


def test_a_run_continues_exactly(run):
    restored = PQN.from_checkpoint(run.path)
    assert learned(restored.train()) == run.after
    jax.tree.map(np.testing.assert_array_equal, run.state, restored.learner.get_state())
    restored.stop()


def test_a_policy_serves_the_greedy_actions(run):
    observations = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    q_values = run.algo.get_module().compute_q_values({"obs": observations})[QF_PREDS]
    served = run.algo.get_policy().compute_actions(observations, explore=False)[0]
    np.testing.assert_array_equal(served, np.asarray(q_values).argmax(axis=-1))


@pytest.mark.parametrize("model", [{}, {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}], ids=["mlp", "lstm"])
def test_it_trains_on_gymnasium_environments(model):
    algo = config(ON_THE_HOST).rl_module(model_config={"fcnet_hiddens": [4], **model}).build_algo()
    before = algo.learner.get_weights()
    result = algo.train()
    assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["qf_loss"])
    assert result["num_env_steps_sampled_lifetime"] == NUM_ENVS * NUM_STEPS
    assert all((value != before[ref]).any() for ref, value in algo.learner.get_weights().items())
    algo.stop()


# ----------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lambda_": 1.5}, r"lambda_=1.5.*at most 1"),
        ({"epsilon": 2.0}, r"epsilon=2.0.*at most 1"),
        ({"epsilon_per_env": [0.1, 2.0]}, r"epsilon_per_env=.*a probability for each environment"),
        ({"epsilon_per_env": [0.1, 0.2]}, r"has 2 rates for num_envs_per_env_runner=4"),
        ({"minibatch_size": 64}, r"minibatch_size=64.*larger than the train batch of 32"),
    ],
)
def test_wrong_settings_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        PQNConfig.validate(config().training(**settings))


def test_continuous_actions_are_refused_with_the_algorithms_for_them():
    with pytest.raises(ValueError, match=r"PQN needs a Discrete action space.*Use SAC"):
        PQNConfig().environment("gymnax/Pendulum-v1").env_runners(num_envs_per_env_runner=2).build_algo()


def test_rates_of_environments_need_one_agent():
    config = PQNConfig().env_runners(num_envs_per_env_runner=2).training(epsilon_per_env=[0.1, 0.2])
    config.multi_agent(policies={"left", "right"}, policy_mapping_fn=lambda agent, episode: agent)
    with pytest.raises(ValueError, match=r"epsilon_per_env=.*needs a single agent"):
        config.validate()
