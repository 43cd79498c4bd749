"""SAC's default networks: what they return, what inference leaves out, how they act."""

from __future__ import annotations

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.connectors.context import ConnectorContext, StandaloneModule
from jaxrl_stack.core.distribution.jax_distribution import Categorical, SquashedGaussian
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(np.float32([0.0, -3.0]), np.float32([1.0, 5.0]))
DISCRETE = gym.spaces.Discrete(4)
TINY = {"fcnet_hiddens": [5, 4], "fusionnet_hiddens": [6]}
NUM_ROWS = 7


def build(action_space, module_class=DefaultSACRLModule, inference_only=False, **model_config):
    spec = RLModuleSpec(
        module_class=module_class,
        observation_space=OBS,
        action_space=action_space,
        inference_only=inference_only,
        model_config={**TINY, **model_config},
    )
    return spec.build(rngs=0)


def batch_for(action_space):
    rng = np.random.default_rng(0)
    is_discrete = isinstance(action_space, gym.spaces.Discrete)
    actions = rng.integers(4, size=NUM_ROWS) if is_discrete else rng.uniform(-1, 1, (NUM_ROWS, 2))
    return {
        "obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        "new_obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        "actions": actions.astype(np.int32 if is_discrete else np.float32),
    }


@pytest.fixture(scope="module")
def box():
    return build(BOX)


def test_continuous_outputs_fit_together(box):
    batch = batch_for(BOX)
    out = box.forward_train(batch)
    rows = {"qf_preds", "qf_twin_preds", "q_target_next", "q_curr", "logp_resampled", "logp_next_resampled"}
    assert {name: value.shape for name, value in out.items()} == dict.fromkeys(rows, (NUM_ROWS,)) | dict.fromkeys(
        ("action_dist_inputs", "action_dist_inputs_next"), (NUM_ROWS, 4)
    )
    lower = np.minimum(out["qf_preds"], out["qf_twin_preds"])
    np.testing.assert_allclose(box.compute_q_values(batch), lower, rtol=1e-6)
    # The targets start as the critics are.
    np.testing.assert_allclose(box.forward_target(batch), lower, rtol=1e-6)
    next_inputs = box.forward_inference({"obs": batch["new_obs"]})["action_dist_inputs"]
    np.testing.assert_allclose(out["action_dist_inputs_next"], next_inputs, rtol=1e-5)
    # Every pass draws anew.
    assert not np.array_equal(box.forward_train(batch)["logp_resampled"], out["logp_resampled"])


def test_discrete_outputs_fit_together():
    module, batch = build(DISCRETE), batch_for(DISCRETE)
    out = module.forward_train(batch)
    assert {value.shape for value in out.values()} == {(NUM_ROWS, 4)}
    np.testing.assert_allclose(np.exp(out["action_log_probs"]), out["action_probs"], rtol=1e-6)
    np.testing.assert_allclose(np.sum(out["action_probs_next"], axis=-1), 1.0, rtol=1e-6)
    lower = np.minimum(out["qf_preds"], out["qf_twin_preds"])
    np.testing.assert_allclose(module.compute_q_values(batch), lower, rtol=1e-6)
    next_batch = {"obs": batch["new_obs"]}
    np.testing.assert_allclose(module.compute_q_values(next_batch), out["q_target_next"], rtol=1e-6)
    assert module.get_train_action_dist_cls() is Categorical


def test_a_single_critic(box):
    module, batch = build(BOX, twin_q=False), batch_for(BOX)
    out = module.forward_train(batch)
    assert "qf_twin_preds" not in out
    np.testing.assert_allclose(module.compute_q_values(batch), out["qf_preds"], rtol=1e-6)
    assert len(module.get_target_network_pairs()) == 2
    assert len(box.get_target_network_pairs()) == 4
    assert not any("twin" in name for name in module.get_state())


def test_the_networks_are_rllibs(box):
    """Embeddings beside the output of the layer before, in every fused layer but the first one."""
    kernels = {name: value.shape for name, value in box.get_state().items() if name.endswith("kernel")}
    own = {name.removeprefix("qf_encoder/"): shape for name, shape in kernels.items() if name.startswith("qf_encoder")}
    assert own == {
        "base_encoders/obs/dense_0/kernel": (3, 5),
        "base_encoders/obs/dense_1/kernel": (5, 4),
        "base_encoders/actions/dense_0/kernel": (2, 5),
        "base_encoders/actions/dense_1/kernel": (5, 4),
        "fusion_layers/0/kernel": (8, 6),
        "fusion_layers/1/kernel": (6 + 8, 4),
    }
    assert kernels["qf/dense_0/kernel"] == (4, 1)


def test_without_a_fusion_net_a_critic_is_one_mlp():
    module, batch = build(BOX, fusionnet_hiddens=None, fcnet_activation="relu"), batch_for(BOX)
    state = module.get_state()
    x = np.concatenate([batch["obs"], batch["actions"]], axis=-1)
    for i in range(2):
        x = np.maximum(x @ state[f"qf_encoder/dense_{i}/kernel"] + state[f"qf_encoder/dense_{i}/bias"], 0.0)
    expected = (x @ state["qf/dense_0/kernel"] + state["qf/dense_0/bias"])[:, 0]
    np.testing.assert_allclose(module.forward_train(batch)["qf_preds"], expected, rtol=1e-5)


def test_settings_of_the_networks_reach_every_part():
    """Initializers and normalisation of all three groups."""
    module = build(
        BOX,
        fcnet_kernel_initializer="zeros",
        fcnet_use_layernorm=True,
        fusionnet_bias_initializer="ones",
        head_fcnet_hiddens=[3],
        head_fcnet_kernel_initializer="orthogonal_",
        head_fcnet_kernel_initializer_kwargs={"gain": 0.01},
    )
    state = module.get_state()
    for encoder in ("pi_encoder", "qf_encoder/base_encoders/obs", "qf_twin_encoder/base_encoders/actions"):
        assert not state[f"{encoder}/dense_1/kernel"].any()
        assert f"{encoder}/layernorm_1/scale" in state
    for layer in range(2):
        np.testing.assert_array_equal(state[f"qf_encoder/fusion_layers/{layer}/bias"], 1.0)
    for head in ("pi", "qf", "qf_twin"):
        assert np.linalg.norm(state[f"{head}/dense_1/kernel"], ord=2) == pytest.approx(0.01, rel=1e-4)


def test_the_clamp_of_the_log_deviation_is_heeded():
    module = build(BOX, head_fcnet_bias_initializer="ones", log_std_clip_param=0.25)
    inputs = module.forward_inference(batch_for(BOX))["action_dist_inputs"]
    assert np.abs(inputs[:, 2:]).max() <= 0.25 < np.abs(inputs[:, :2]).max()


def test_inference_leaves_out_everything_but_the_policy(box):
    acting = build(BOX, inference_only=True)
    assert {name.split("/")[0] for name in acting.get_state()} == {"pi_encoder", "pi"}
    assert set(box.get_state(inference_only=True)) == set(acting.get_state())
    acting.set_state(box.get_state(inference_only=True))
    batch = batch_for(BOX)
    ours, theirs = (m.forward_inference(batch)["action_dist_inputs"] for m in (acting, box))
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(AttributeError, match="inference_only"):
        _ = acting.target_qf


def test_greedy_actions_are_the_squashed_mean_within_asymmetric_bounds(box):
    config = SACConfig().environment("gymnax/Pendulum-v1", observation_space=OBS, action_space=BOX)
    pipeline = config.build_module_to_env_connector(spaces={"__env_single__": (OBS, BOX)})
    inputs = np.float32([[0.3, -0.7, 0.0, 0.0], [40.0, -40.0, 1.0, 1.0]])
    context = ConnectorContext(pure=StandaloneModule(box, ["default_policy"]), explore=False)
    _, acted = pipeline.apply(pipeline.init(2), {"default_policy": {"action_dist_inputs": inputs}}, context)
    columns = acted["default_policy"]
    np.testing.assert_allclose(columns["actions"], np.tanh(inputs[:, :2]), rtol=1e-5)
    expected = BOX.low + (np.tanh(inputs[:, :2]) + 1.0) * 0.5 * (BOX.high - BOX.low)
    np.testing.assert_allclose(columns["actions_for_env"], expected, rtol=1e-5, atol=1e-6)
    assert all(BOX.contains(np.asarray(action)) for action in columns["actions_for_env"])


def test_actions_next_to_the_bounds_have_finite_log_probabilities(box):
    key, inputs = jax.random.key(0), np.float32([[15.0, -15.0, -5.0, 2.0]])
    actions, logp = SquashedGaussian.from_logits(inputs).rsample_and_logp(key=key)
    assert np.abs(actions).max() <= 1.0 and np.isfinite(logp).all()
    assert box.get_train_action_dist_cls() is SquashedGaussian


def test_the_temperature_does_not_depend_on_setup():
    """A module with networks of its own replaces setup()."""

    class Own(DefaultSACRLModule):
        def setup(self):
            self.twin_q = False
            self.pi_encoder = self.catalog.build_encoder(rngs=self.rngs)
            self.pi = self.catalog.build_pi_head(rngs=self.rngs)
            self.qf_encoder = self.catalog.build_qf_encoder(rngs=self.rngs)
            self.qf = self.catalog.build_qf_head(rngs=self.rngs)

    module = build(BOX, Own, initial_alpha=0.5)
    assert module.get_state()["log_alpha"] == np.float32(np.log(0.5))
    assert np.isfinite(module.forward_train(batch_for(BOX))["q_curr"]).all()
