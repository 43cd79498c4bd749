"""`compute_dtype="bfloat16"`: what layers compute in; everything else stays float32."""

from __future__ import annotations

import pathlib
import pickle
import re

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.dqn.default_dqn_rl_module import DefaultDQNRLModule
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.models.configs import MLPEncoderConfig, MLPHeadConfig, MultiStreamEncoderConfig
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec

OBS_SPACE, BOX = gym.spaces.Box(-1, 1, (5,)), gym.spaces.Box(-1, 1, (2,))
DISCRETE = gym.spaces.Discrete(3)
NETS = {"fcnet_hiddens": [32, 32], "head_fcnet_hiddens": [32], "fusionnet_hiddens": [32]}
LAYERNORM = {"fcnet_use_layernorm": True, "head_fcnet_use_layernorm": True}
CASES = {
    "ppo": (DefaultPPORLModule, DISCRETE, {}),
    "ppo-separate": (DefaultPPORLModule, BOX, {"vf_share_layers": False, "free_log_std": True, **LAYERNORM}),
    "dqn": (DefaultDQNRLModule, DISCRETE, {"num_atoms": 5, "noisy": True}),
    "sac-discrete": (DefaultSACRLModule, DISCRETE, {}),
    "tqc": (DefaultTQCRLModule, BOX, {"n_critics": 3, "n_quantiles": 5, "fusionnet_hiddens": None}),
}


def pure_module(case, dtype):
    module_class, action_space, settings = CASES[case]
    spec = RLModuleSpec(
        module_class=module_class,
        observation_space=OBS_SPACE,
        action_space=action_space,
        model_config={**NETS, **settings, "compute_dtype": dtype},
    )
    return PureModule(spec.build(seed=0).as_multi_rl_module())


def batch_of(action_space):
    rng = np.random.default_rng(0)
    obs, next_obs = rng.uniform(-1, 1, (2, 16, 5)).astype(np.float32)
    actions = rng.integers(0, 3, 16) if action_space is DISCRETE else rng.uniform(-1, 1, (16, 2)).astype(np.float32)
    return {"obs": obs, "new_obs": next_obs, "actions": actions}


def results_of(case, dtype):
    """Parameters, outputs of a training pass (with values and Q-values) and the gradient of their squares."""
    pure = pure_module(case, dtype)
    batch = batch_of(CASES[case][1])

    def forward(params):
        module = pure.bind(params, pure.rest)[DEFAULT_MODULE_ID]
        outputs = dict(module.forward_train(batch))
        if hasattr(module, "compute_values"):
            outputs["values"] = module.compute_values(batch, outputs.pop("embeddings"))
        squares = [jnp.mean(jnp.square(x)) for x in outputs.values() if jnp.issubdtype(x.dtype, jnp.floating)]
        return sum(squares), outputs

    gradient, outputs = jax.jit(jax.grad(forward, has_aux=True))(pure.params)
    return pure, outputs, gradient


@pytest.fixture(scope="module", params=CASES)
def both(request):
    return request.param, results_of(request.param, "float32"), results_of(request.param, "bfloat16")


def test_parameters_are_the_same_float32_numbers(both):
    _, (exact, _, _), (rough, _, _) = both
    assert exact.params.keys() == rough.params.keys()
    for ref, value in rough.params.items():
        assert value.dtype == jnp.float32, ref
        np.testing.assert_array_equal(value, exact.params[ref], err_msg=ref)
    assert {ref: x.dtype for ref, x in rough.rest.items()} == {ref: x.dtype for ref, x in exact.rest.items()}


def test_outputs_are_float32_and_close(both):
    case, (_, exact, _), (_, rough, _) = both
    assert exact.keys() == rough.keys()
    differs = False
    for name, value in rough.items():
        assert value.dtype == exact[name].dtype, name
        if jnp.issubdtype(value.dtype, jnp.floating):
            assert value.dtype == jnp.float32, name
            # Sampled actions, and what is made of them, follow the rounding of their distribution.
            scale = np.abs(exact[name]).max() + 1.0
            np.testing.assert_allclose(value, exact[name], atol=0.05 * scale, err_msg=name)
            differs |= bool((np.asarray(value) != np.asarray(exact[name])).any())
    assert differs, f"{case} was not computed in bfloat16"


def test_gradients_are_float32_finite_and_close(both):
    _, (_, _, exact), (_, _, rough) = both
    for ref, value in rough.items():
        assert value.dtype == jnp.float32 and np.isfinite(value).all(), ref
    a, b = (np.concatenate([np.ravel(tree[ref]) for ref in exact]) for tree in (exact, rough))
    assert np.abs(a).max() > 0
    assert a @ b / (np.linalg.norm(a) * np.linalg.norm(b)) > 0.99


def dtypes_of_products(case):
    """How many matrix products of a training pass have factors of which dtype."""
    pure = pure_module(case, "bfloat16")
    batch = batch_of(CASES[case][1])
    forward = lambda params: pure.bind(params, pure.rest)[DEFAULT_MODULE_ID].forward_train(batch)  # noqa: E731
    text = str(jax.make_jaxpr(forward)(pure.params))
    return [re.findall(r":(\w+)\[", line)[0] for line in text.splitlines() if "dot_general[" in line]


def test_only_the_last_layer_of_a_head_multiplies_in_float32():
    products = dtypes_of_products("ppo")
    # Two layers of the encoder, and the hidden layer of the policy head; then its last layer.
    assert sorted(products) == ["bf16"] * 3 + ["f32"]


def test_configs_of_encoders_and_heads():
    x = jnp.ones((2, 3))
    for config in (
        MLPEncoderConfig(input_dims=[3], compute_dtype="bfloat16"),
        MultiStreamEncoderConfig(
            base_encoder_configs={"obs": MLPEncoderConfig(input_dims=[3])}, compute_dtype="bfloat16"
        ),
    ):
        assert config.build(rngs=nnx.Rngs(0))({"obs": x})["encoder_out"].dtype == jnp.bfloat16
    head = MLPHeadConfig(input_dims=[3], output_layer_dim=2, compute_dtype="bfloat16")
    assert head.build(rngs=nnx.Rngs(0))(x).dtype == jnp.float32
    again = pickle.loads(pickle.dumps(pure_module("dqn", "bfloat16").template))
    assert again[DEFAULT_MODULE_ID].encoder.dense_0.dtype == jnp.bfloat16
    with pytest.raises(ValueError, match=r"compute_dtype='half': use one of \['float32', 'bfloat16'\]"):
        MLPHeadConfig(input_dims=[3], output_layer_dim=2, compute_dtype="half").build(rngs=nnx.Rngs(0))
    for value in ("half", jnp.bfloat16, None):
        with pytest.raises(ValueError, match="compute_dtype=.*must be one of 'float32', 'bfloat16'"):
            PPOConfig().environment("gymnax/CartPole-v1").rl_module(model_config={"compute_dtype": value}).validate()


def config_of(config_class, env):
    config = (
        config_class()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2)
        .training(train_batch_size_per_learner=8)
        .reporting(min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [4], "compute_dtype": "bfloat16"})
        .debugging(seed=1)
    )
    if config_class is PPOConfig:
        return config.training(minibatch_size=4, num_epochs=1)
    config.training(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 64})
    return config.training(num_steps_sampled_before_learning_starts=8).reporting(min_sample_timesteps_per_iteration=16)


def trained(config_class, env):
    """An algorithm whose first iteration has changed its weights, and has left all state in float32."""
    algo = config_of(config_class, env).build_algo()
    before = algo.get_weights()
    result = algo.train()
    learned = result["learners"][DEFAULT_MODULE_ID]
    assert all(np.isfinite(value) for value in learned.values() if isinstance(value, float)), learned
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, algo.get_weights())
    assert any(jax.tree.leaves(moved))
    for leaf in jax.tree.leaves(algo.learner.state):
        assert leaf.dtype != jnp.bfloat16
    return algo


def test_training_from_replay():
    trained(SACConfig, "gymnax/Pendulum-v1").stop()


def test_training_and_checkpoints(tmp_path):
    algo = trained(PPOConfig, "gymnax/CartPole-v1")
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = Algorithm.from_checkpoint(path)
    assert restored.get_module().model_config["compute_dtype"] == "bfloat16"
    for run in (algo, restored):
        run.train()
    jax.tree.map(np.testing.assert_array_equal, algo.get_weights(), restored.get_weights())
    algo.stop()
    restored.stop()


def test_training_on_the_host():
    algo = config_of(PPOConfig, "CartPole-v1").env_runners(num_env_runners=0).build_algo()
    assert np.isfinite(algo.train()["learners"][DEFAULT_MODULE_ID]["total_loss"])
    algo.stop()


def test_the_pages_example_runs():
    page = (pathlib.Path(__file__).parents[2] / "docs/accelerators.md").read_text()
    for original, toy in (("2048", "4"), ("65_536", "16"), ("16_384", "8"), ("[256, 256]", "[8]")):
        assert original in page
        page = page.replace(original, toy)
    names: dict = {}
    for example in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        exec(example, names)
    assert "stablehlo" in names["program"].lower(lowering_platforms=("tpu",)).as_text()
    names["algo"].stop()
