"""DQN's default module: outputs, networks, exploration, action masks."""

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.dqn.noisy import NoisyDense, draw_noise
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI, QNetAPI, TargetNetworkAPI

BOX = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
MASKED = gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), observations=BOX)
SMALL = {"fcnet_hiddens": [8], "head_fcnet_hiddens": [6]}
ROWS = 5
OBS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
NEXT = np.random.default_rng(1).normal(size=(ROWS, 4)).astype(np.float32)
MASK = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 1], [1, 1, 1]], np.int8)


def make(observation_space=BOX, action_space=DISCRETE, inference_only=False, **model_config):
    return DefaultDQNRLModule(
        observation_space=observation_space,
        action_space=action_space,
        inference_only=inference_only,
        model_config={**SMALL, **model_config},
        rngs=3,
    )


@pytest.fixture(scope="module")
def plain():
    return make()


def shapes(outputs):
    return {name: value.shape for name, value in outputs.items()}


def weights(module, part):
    return {k.removeprefix(f"{part}/"): v for k, v in module.get_state().items() if k.startswith(f"{part}/")}


def dense(x, layer, part, activation=lambda x: x):
    return activation(x @ part[f"dense_{layer}/kernel"] + part[f"dense_{layer}/bias"])


def by_hand(module, obs, prefix=""):
    """Latent, and what the two heads make of it."""
    latent = dense(obs, 0, weights(module, f"{prefix}encoder"), np.tanh)
    out = []
    for head in ("af", "vf"):
        part = weights(module, f"{prefix}{head}")
        out.append(dense(dense(latent, 0, part, lambda x: np.maximum(x, 0)), 1, part) if part else None)
    return out


def test_it_has_rllibs_apis_and_networks(plain):
    for api in (InferenceOnlyAPI, TargetNetworkAPI, QNetAPI):
        assert isinstance(plain, api)
    names = {ref.split("/")[0] for ref in plain.get_state()}
    assert names == {"encoder", "af", "vf", "_target_encoder", "_target_af", "_target_vf"}
    assert not plain.is_stateful()
    assert [main is target for main, target in plain.get_target_network_pairs()] == [False] * 3
    without = make(dueling=False)
    assert len(without.get_target_network_pairs()) == 2 and not hasattr(without, "vf")


def test_q_values_by_hand(plain):
    advantages, values = by_hand(plain, OBS)
    expected = values + advantages - advantages.mean(axis=-1, keepdims=True)
    np.testing.assert_allclose(plain.compute_q_values({"obs": OBS})["qf_preds"], expected, rtol=1e-5, atol=1e-6)
    out = plain.forward_train({"obs": OBS, "new_obs": NEXT})
    assert shapes(out) == dict.fromkeys(["qf_preds", "qf_next_preds", "qf_target_next_preds"], (ROWS, 3))
    np.testing.assert_allclose(out["qf_preds"], expected, rtol=1e-5, atol=1e-6)
    # The target networks begin as copies.
    np.testing.assert_allclose(out["qf_target_next_preds"], out["qf_next_preds"], rtol=1e-5)
    np.testing.assert_array_equal(plain.forward_inference({"obs": OBS})["actions"], expected.argmax(axis=-1))


def test_one_head_and_one_pass_without_dueling_and_double_q():
    module = make(dueling=False, double_q=False)
    q_values, _ = by_hand(module, OBS)
    out = module.forward_train({"obs": OBS, "new_obs": NEXT})
    assert set(out) == {"qf_preds", "qf_target_next_preds"}
    np.testing.assert_allclose(out["qf_preds"], q_values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dueling", [True, False])
def test_distributions_by_hand(dueling):
    module = make(num_atoms=5, v_min=-2.0, v_max=4.0, dueling=dueling)
    out = module.forward_train({"obs": OBS, "new_obs": NEXT})
    np.testing.assert_allclose(out["atoms"], [-2.0, -0.5, 1.0, 2.5, 4.0])
    advantages, values = by_hand(module, OBS)
    logits = advantages.reshape(ROWS, 3, 5)
    if dueling:
        # One value for each atom.
        logits = values[:, None, :] + logits - logits.mean(axis=1, keepdims=True)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(out["qf_logits"], logits, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["qf_probs"], probs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(out["qf_preds"], (probs * np.asarray(out["atoms"])).sum(axis=-1), rtol=1e-4, atol=1e-5)
    assert out["qf_target_next_probs"].shape == (ROWS, 3, 5)
    found = module.compute_advantage_distribution(advantages)
    np.testing.assert_allclose(found["probs"].sum(axis=-1), 1.0, rtol=1e-5)
    assert found["logits"].shape == (ROWS, 3, 5)


# ---------------------------------------------------------------------------------------------------------- acting


def actions_of(module, obs, **kwargs):
    return np.asarray(module.forward_exploration({"obs": obs}, **kwargs)["actions"])


def test_exploration_is_epsilon_greedy(plain):
    many = np.tile(OBS[:1], (600, 1))
    greedy = int(plain.forward_inference({"obs": OBS[:1]})["actions"][0])
    assert (actions_of(plain, many, epsilon=0.0) == greedy).all()
    counts = np.bincount(actions_of(plain, many, epsilon=1.0), minlength=3)
    # 600 fair draws of 3: a standard deviation of 11.5.
    assert (np.abs(counts - 200) < 60).all()
    assert not np.array_equal(actions_of(plain, many, epsilon=1.0), actions_of(plain, many, epsilon=1.0))


def test_by_hand_the_schedule_of_the_model_config_counts():
    module = make(epsilon=[[0, 1.0], [100, 0.0]])
    many = np.tile(OBS[:1], (200, 1))
    greedy = int(module.forward_inference({"obs": OBS[:1]})["actions"][0])
    others = [(actions_of(module, many, **at) != greedy).mean() for at in ({}, {"t": 50}, {"t": 100})]
    assert others[0] > 0.5 and 0.15 < others[1] < 0.5 and others[2] == 0.0
    counter = np.array([0, 100], np.uint32)
    assert (actions_of(module, many, t=counter) == greedy).all()
    with pytest.raises(ValueError, match="epsilon"):
        make(epsilon=[[5, 1.0], [100, 0.0]])


def test_inference_only_modules_explore_without_target_networks():
    module = make(inference_only=True)
    assert actions_of(module, OBS).shape == (ROWS,)
    assert not any(ref.startswith("_target") for ref in module.get_state())
    full = make()
    module.set_state(full.get_state(inference_only=True))
    np.testing.assert_array_equal(
        module.forward_inference({"obs": OBS})["actions"], full.forward_inference({"obs": OBS})["actions"]
    )


# ----------------------------------------------------------------------------------------------------------- masks


@pytest.mark.parametrize("model_config", [{}, {"num_atoms": 5}, {"noisy": True, "dueling": False}])
def test_masked_actions_are_never_chosen(model_config):
    module = make(MASKED, **model_config)
    obs = {"action_mask": np.tile(MASK, (40, 1)), "observations": np.tile(OBS, (40, 1))}
    for actions in (
        module.forward_inference({"obs": obs})["actions"],
        actions_of(module, obs, epsilon=0.0),
        actions_of(module, obs, epsilon=1.0),
    ):
        assert obs["action_mask"][np.arange(len(actions)), np.asarray(actions)].all()
    assert set(actions_of(module, obs, epsilon=1.0)[4::5]) == {0, 1, 2}


def test_the_mean_of_advantages_is_over_valid_actions():
    module = make(MASKED)
    advantages, values = by_hand(module, OBS)
    mean = (advantages * MASK).sum(axis=-1, keepdims=True) / MASK.sum(axis=-1, keepdims=True)
    q_values = module.compute_q_values({"obs": {"action_mask": MASK, "observations": OBS}})["qf_preds"]
    np.testing.assert_allclose(q_values, values + advantages - mean, rtol=1e-5, atol=1e-6)


# ----------------------------------------------------------------------------------------------------------- noise


def test_noisy_layer_by_hand():
    layer = NoisyDense(3, 2, std_init=0.6, rngs=jax_rngs())
    np.testing.assert_allclose(layer.kernel_sigma[...], 0.6 / np.sqrt(3), rtol=1e-6)
    np.testing.assert_allclose(layer.bias_sigma[...], 0.6 / np.sqrt(3), rtol=1e-6)
    noise = np.array([1.0, -2.0, 0.5, 3.0, -1.0], np.float32)
    x = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]], np.float32)
    sigma = 0.6 / np.sqrt(3)
    kernel = np.asarray(layer.kernel[...]) + sigma * np.outer(noise[:3], noise[3:])
    bias = np.asarray(layer.bias[...]) + sigma * noise[3:]
    np.testing.assert_allclose(layer(x, noise=noise), x @ kernel + bias, rtol=1e-5, atol=1e-6)
    # Every row with weights of its own.
    both = layer(x, noise=np.stack([noise, 2 * noise]))
    np.testing.assert_allclose(both[0], layer(x, noise=noise)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(both[1], layer(x, noise=2 * noise)[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(layer(x), x @ layer.kernel[...] + layer.bias[...], rtol=1e-6)


def jax_rngs():
    from flax import nnx

    return nnx.Rngs(0)


def test_noise_is_the_signed_root_of_a_normal():
    noise = np.asarray(draw_noise(jax.random.key(0), (20_000,)))
    assert abs(noise.mean()) < 0.03
    # E f(e)^2 = E |e| = sqrt(2 / pi), E f(e)^4 = E e^2 = 1.
    np.testing.assert_allclose((noise**2).mean(), np.sqrt(2 / np.pi), atol=0.03)
    np.testing.assert_allclose((noise**4).mean(), 1.0, atol=0.06)


def test_noisy_networks_explore_by_themselves_and_exploit_without_noise():
    module = make(noisy=True, std_init=20.0)
    assert {ref for ref in module.get_state() if "sigma" in ref and not ref.startswith("_target")} == {
        f"{head}/dense_{i}/{leaf}_sigma" for head in ("af", "vf") for i in (0, 1) for leaf in ("kernel", "bias")
    }
    many = np.tile(OBS[:1], (60, 1))
    # Rows with the same observation act by weights of their own.
    assert len(set(actions_of(module, many, epsilon=0.0))) > 1
    greedy = np.asarray(module.forward_inference({"obs": many})["actions"])
    assert len(set(greedy)) == 1
    batch = {"obs": OBS, "new_obs": OBS}
    first, second = module.forward_train(batch), module.forward_train(batch)
    assert not np.allclose(first["qf_preds"], second["qf_preds"])
    # Three draws in a pass: for the states, for the targets, for choosing their actions.
    assert not np.allclose(first["qf_preds"], first["qf_next_preds"])
    assert not np.allclose(first["qf_next_preds"], first["qf_target_next_preds"])


# ---------------------------------------------------------------------------------------------------------- errors


def test_spaces_and_settings_that_do_not_fit():
    with pytest.raises(ValueError, match=r"DQN needs a Discrete action space, got Box"):
        make(action_space=BOX)
    with pytest.raises(ValueError, match=r"the shape \(4,\), but 3 actions need \(3,\)"):
        make(gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(4), observations=BOX))
    with pytest.raises(ValueError, match=r"Put everything except the mask under 'observations'"):
        make(gym.spaces.Dict(action_mask=gym.spaces.MultiBinary(3), board=BOX))
    with pytest.raises(ValueError, match="num_atom"):
        make(num_atom=3)


def test_the_pipeline_leaves_the_mask_alone():
    config = DQNConfig()
    flat = config.build_env_to_module_connector(spaces={"__env_single__": (MASKED, DISCRETE)})
    assert len(flat) == 0
    nested = gym.spaces.Dict(
        action_mask=gym.spaces.Box(0, 1, (3,), np.int8), observations=gym.spaces.Dict(a=BOX, b=DISCRETE)
    )
    pipeline = config.build_env_to_module_connector(spaces={"__env_single__": (nested, DISCRETE)})
    assert [type(connector).__name__ for connector in pipeline] == ["DefaultObservations"]
    assert pipeline.observation_space["observations"].shape == (7,)
    assert pipeline.observation_space["action_mask"] == nested["action_mask"]
    (connector,) = pipeline
    obs = {"action_mask": MASK, "observations": {"a": OBS, "b": np.arange(ROWS) % 3}}
    _, batch = connector.apply(None, {"default_policy": {"obs": obs}}, None)
    out = batch["default_policy"]["obs"]
    np.testing.assert_array_equal(out["action_mask"], MASK)
    np.testing.assert_allclose(out["observations"], np.concatenate([OBS, np.eye(3)[np.arange(ROWS) % 3]], axis=1))
    # A mask of another form is flattened like everything else, if it has another name.
    other = gym.spaces.Dict(valid=gym.spaces.MultiBinary(3), observations=BOX)
    pipeline = config.build_env_to_module_connector(spaces={"__env_single__": (other, DISCRETE)})
    assert pipeline.observation_space.shape == (7,)
