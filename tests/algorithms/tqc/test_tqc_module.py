"""TQC's default networks: what they return, what inference leaves out."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.core.distribution.jax_distribution import SquashedGaussian
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

OBS = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOX = gym.spaces.Box(np.float32([0.0, -3.0]), np.float32([1.0, 5.0]))
NUM_ROWS, NUM_CRITICS, NUM_QUANTILES, NUM_DROPPED = 7, 3, 4, 1
TINY = {"fcnet_hiddens": [5, 4], "fusionnet_hiddens": [6]}
QUANTILES = {"n_critics": NUM_CRITICS, "n_quantiles": NUM_QUANTILES, "top_quantiles_to_drop_per_net": NUM_DROPPED}


def build(inference_only=False, **model_config):
    spec = RLModuleSpec(
        module_class=DefaultTQCRLModule,
        observation_space=OBS,
        action_space=BOX,
        inference_only=inference_only,
        model_config={**TINY, **model_config},
    )
    return spec.build(rngs=0)


def a_batch():
    rng = np.random.default_rng(0)
    return {
        "obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        "new_obs": rng.normal(size=(NUM_ROWS, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (NUM_ROWS, 2)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def module():
    return build(**QUANTILES)


def test_outputs_fit_together(module):
    batch = a_batch()
    out = module.forward_train(batch)
    shape = (NUM_ROWS, NUM_CRITICS, NUM_QUANTILES)
    rows = dict.fromkeys(("q_curr", "logp_resampled", "logp_next_resampled"), (NUM_ROWS,))
    inputs = dict.fromkeys(("action_dist_inputs", "action_dist_inputs_next"), (NUM_ROWS, 4))
    quantiles = dict.fromkeys(("qf_preds", "q_target_next"), shape)
    assert {name: value.shape for name, value in out.items()} == rows | inputs | quantiles
    np.testing.assert_allclose(module.compute_q_values(batch), np.mean(out["qf_preds"], axis=(1, 2)), rtol=1e-5)
    # The targets start as the critics are.
    lowest = np.sort(np.reshape(out["qf_preds"], (NUM_ROWS, -1)))[:, : NUM_CRITICS * (NUM_QUANTILES - NUM_DROPPED)]
    np.testing.assert_allclose(module.forward_target(batch), lowest.mean(axis=-1), rtol=1e-5)
    # Every critic has weights of its own.
    assert len({float(out["qf_preds"][0, i, 0]) for i in range(NUM_CRITICS)}) == NUM_CRITICS
    assert module.get_train_action_dist_cls() is SquashedGaussian


def test_defaults_are_the_configs():
    module = build()
    assert (module.n_quantiles, module.n_critics, module.top_quantiles_to_drop_per_net) == (25, 2, 2)
    assert module.forward_train(a_batch())["qf_preds"].shape == (NUM_ROWS, 2, 25)


def test_without_a_fusion_net_a_critic_is_one_mlp():
    module, batch = build(fusionnet_hiddens=None, fcnet_activation="relu", **QUANTILES), a_batch()
    state = module.get_state()
    x = np.concatenate([batch["obs"], batch["actions"]], axis=-1)
    for i in range(2):
        x = np.maximum(x @ state[f"qf_encoders/1/dense_{i}/kernel"] + state[f"qf_encoders/1/dense_{i}/bias"], 0.0)
    expected = x @ state["qf_heads/1/dense_0/kernel"] + state["qf_heads/1/dense_0/bias"]
    np.testing.assert_allclose(module.forward_train(batch)["qf_preds"][:, 1], expected, rtol=1e-4, atol=1e-6)


def test_inference_leaves_out_everything_but_the_policy(module):
    acting = build(inference_only=True, **QUANTILES)
    assert {name.split("/")[0] for name in acting.get_state()} == {"pi_encoder", "pi"}
    assert set(module.get_state(inference_only=True)) == set(acting.get_state())
    acting.set_state(module.get_state(inference_only=True))
    ours, theirs = (m.forward_inference(a_batch())["action_dist_inputs"] for m in (acting, module))
    np.testing.assert_array_equal(ours, theirs)
    with pytest.raises(AttributeError, match="inference_only"):
        _ = acting.qf_heads


def test_every_part_of_every_critic_is_followed(module):
    pairs = module.get_target_network_pairs()
    assert len(pairs) == 2 * NUM_CRITICS
    assert {id(main) for main, _ in pairs} == {id(part) for part in (*module.qf_encoders, *module.qf_heads)}
    state = module.get_state()
    followed = [name for name in state if name.startswith("qf_")]
    assert followed and all(np.array_equal(state[name], state[f"target_{name}"]) for name in followed)
