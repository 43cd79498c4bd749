"""Model settings, initial weights, activations, encoders, heads and catalogs."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jaxrl_stack
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.core.models import configs
from jaxrl_stack.core.models.activations import get_activation
from jaxrl_stack.core.models.base import ACTOR, CRITIC, ENCODER_OUT, Encoder
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import FreeLogStdMLPHeadConfig, MLPEncoderConfig, MLPHeadConfig
from jaxrl_stack.core.models.initializers import get_initializer, torch_default_bias, torch_default_kernel
from jaxrl_stack.core.rl_module.default_model_config import DefaultModelConfig, as_model_config_dict

OBS_SPACE = gym.spaces.Box(-1, 1, (3,))
ACTION_SPACE = gym.spaces.Discrete(2)
KEY = jax.random.key(0)


def rngs():
    return nnx.Rngs(0)


def test_model_config_has_rllibs_fields_and_defaults_and_three_more():
    fields = {field.name: getattr(DefaultModelConfig(), field.name) for field in dataclasses.fields(DefaultModelConfig)}
    assert len(fields) == 41
    named = {
        "fcnet_hiddens": [256, 256],
        "fcnet_activation": "tanh",
        "conv_activation": "relu",
        "head_fcnet_hiddens": [],
        "head_fcnet_activation": "relu",
        "log_std_clip_param": 20.0,
        "vf_share_layers": True,
        "max_seq_len": 20,
        "lstm_cell_size": 256,
        "fusionnet_hiddens": [256, 256],
        "fusionnet_activation": "tanh",
        "compute_dtype": "float32",
    }
    assert {"compute_dtype", "policy_obs_key", "value_obs_key"} <= fields.keys()  # RLlib has all but these
    assert named.items() <= fields.items()
    assert all(value in (None, False) for name, value in fields.items() if name not in named)
    first, second = DefaultModelConfig(), DefaultModelConfig()
    first.fcnet_hiddens.append(1)
    assert second.fcnet_hiddens == [256, 256]


def test_the_place_that_reads_a_setting_is_found_by_its_name():
    folder = pathlib.Path(inspect.getfile(jaxrl_stack)).parent
    reads = "".join(
        path.read_text()
        for path in sorted(folder.rglob("*.py"))
        if path.name not in ("default_model_config.py", "model_settings.py")
    )
    settings = {field.name for field in dataclasses.fields(DefaultModelConfig)}
    assert {name for name in settings if not re.search(rf"""["']{name}["']""", reads)} == set()
    source = inspect.getsource(configs)
    for config in vars(configs).values():
        if isinstance(config, type) and issubclass(config, configs.ModelConfig):
            for field in dataclasses.fields(config):
                assert f"self.{field.name}" in source or f'"{field.name}")' in source, (config, field.name)


def test_unknown_model_settings_raise_with_a_suggestion():
    with pytest.raises(TypeError, match="fcnet_hidens.*did you mean 'fcnet_hiddens'"):
        DefaultModelConfig(fcnet_hidens=[1])
    with pytest.raises(AttributeError, match="use_lstm"):
        DefaultModelConfig().use_lstmm = True
    with pytest.raises(TypeError, match="DefaultModelConfig, a dict or None"):
        as_model_config_dict(3)

    @dataclasses.dataclass
    class Mine(DefaultModelConfig):
        width: int = 3

    assert as_model_config_dict(Mine(width=4))["width"] == 4


def test_catalog_keeps_custom_settings_but_not_misspelt_ones():
    assert Catalog(OBS_SPACE, ACTION_SPACE, {"my_own": 1}).model_config_dict["my_own"] == 1
    assert Catalog(OBS_SPACE, ACTION_SPACE, None).model_config_dict["fcnet_hiddens"] == [256, 256]
    with pytest.raises(ValueError, match="fcnet_activations.*fcnet_activation"):
        Catalog(OBS_SPACE, ACTION_SPACE, {"fcnet_activations": "relu"})


def test_default_initialisation_is_torchs():
    kernel = np.asarray(torch_default_kernel()(KEY, (100, 400)))
    bias = np.asarray(torch_default_bias(100)(KEY, (400,)))
    for values in (kernel, bias):
        assert 0.098 < np.abs(values).max() <= 0.1
        assert abs(values.std() - 0.1 / np.sqrt(3)) < 0.005
    assert kernel.dtype == np.float32


def test_initialisation_is_the_same_eager_jitted_and_vmapped():
    init = get_initializer("orthogonal", None, "fcnet_kernel_initializer")
    keys = jax.random.split(KEY, 5)
    eager = np.stack([init(key, (4, 3)) for key in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(lambda key: init(key, (4, 3))))(keys), eager)
    assert np.abs(eager[0] - eager[1]).max() > 0.1


@pytest.mark.parametrize(
    ("name", "kwargs", "std"),
    [
        ("glorot_uniform", None, np.sqrt(2 / (60 + 200))),
        ("xavier_normal", None, np.sqrt(2 / (60 + 200))),
        ("he_normal", None, np.sqrt(2 / 60)),
        ("lecun_uniform", None, np.sqrt(1 / 60)),
        ("normal", {"stddev": 0.3}, 0.3),
        ("truncated_normal", {"stddev": 0.3}, 0.3 * 0.8796),
        ("variance_scaling", {"scale": 3.0, "mode": "fan_out", "distribution": "normal"}, np.sqrt(3 / 200)),
        ("xavier_uniform_", {"gain": 2.0}, 2 * np.sqrt(2 / 260)),
        ("kaiming_uniform_", {"nonlinearity": "relu"}, np.sqrt(2 / 60)),
        ("kaiming_normal_", {"a": np.sqrt(5)}, np.sqrt(2 / 6 / 60)),
        ("normal_", {"mean": 0.0, "std": 0.5}, 0.5),
        ("uniform_", {"a": -1.0, "b": 1.0}, np.sqrt(1 / 3)),
        ("trunc_normal_", {"std": 0.5, "a": -9.0, "b": 9.0}, 0.5),
        (jax.nn.initializers.glorot_normal, None, np.sqrt(2 / 260)),
        (lambda key, shape, dtype, scale: scale * jnp.ones(shape, dtype).at[0].set(-scale), {"scale": 1.0}, None),
    ],
)
def test_named_initializers(name, kwargs, std):
    values = np.asarray(get_initializer(name, kwargs, "fcnet_kernel_initializer")(KEY, (60, 200), jnp.float32))
    assert values.shape == (60, 200)
    if std is None:
        assert set(np.unique(values)) == {-1.0, 1.0}
    else:
        assert abs(values.std() / std - 1) < 0.03
        assert abs(values.mean()) < 5 * std / np.sqrt(values.size)


@pytest.mark.parametrize("name", ["orthogonal", "orthogonal_"])
@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_orthogonal(name, shape):
    kwargs = {"gain": 2.0} if name.endswith("_") else {"scale": 2.0}
    w = np.asarray(get_initializer(name, kwargs, "s")(KEY, shape), np.float64)
    gram = w.T @ w if shape[0] >= shape[1] else w @ w.T
    np.testing.assert_allclose(gram, 4 * np.eye(min(shape)), atol=1e-5)


def test_constants():
    assert not get_initializer("zeros", None, "s")(KEY, (3,)).any()
    assert (get_initializer("constant_", {"val": 2.0}, "s")(KEY, (3,)) == 2).all()


def test_initializer_errors_name_the_setting():
    with pytest.raises(ValueError, match="fcnet_kernel_initializer='xavier_unifrom_'.*xavier_uniform_"):
        get_initializer("xavier_unifrom_", None, "fcnet_kernel_initializer")
    with pytest.raises(ValueError, match="fcnet_kernel_initializer='orthogonal_' does not take.*gain"):
        get_initializer("orthogonal_", {"scale": 1.0}, "fcnet_kernel_initializer")
    with pytest.raises(ValueError, match="without fcnet_bias_initializer"):
        get_initializer(None, {"scale": 1.0}, "fcnet_bias_initializer")
    with pytest.raises(ValueError, match="for biases"):
        get_initializer("glorot_uniform", None, "fcnet_bias_initializer")(KEY, (3,))


def test_activations():
    x = jnp.array([-1.0, 0.5])
    for name, function in [
        ("linear", lambda x: x),
        (None, lambda x: x),
        ("relu", jax.nn.relu),
        ("tanh", jnp.tanh),
        ("Tanh", jnp.tanh),
        ("LeakyReLU", jax.nn.leaky_relu),
        ("leaky_relu", jax.nn.leaky_relu),
        ("swish", jax.nn.silu),
        ("SiLU", jax.nn.silu),
        ("elu", jax.nn.elu),
        ("softmax", jax.nn.softmax),
        ("gelu", lambda x: jax.nn.gelu(x, approximate=False)),
        ("sigmoid", jax.nn.sigmoid),
        (jnp.sin, jnp.sin),
    ]:
        np.testing.assert_allclose(get_activation(name)(x), function(x))
    with pytest.raises(ValueError, match="'rellu'.*'relu'"):
        get_activation("rellu")


def test_mlp_encoder_computes_what_it_says():
    config = MLPEncoderConfig(
        input_dims=[3], hidden_layer_dims=[5, 4], hidden_layer_activation="relu", hidden_layer_use_layernorm=True
    )
    encoder = config.build("jax", rngs=rngs())
    x = np.random.default_rng(0).normal(size=(2, 6, 3)).astype(np.float32)
    expected = x
    for i in range(2):
        dense = getattr(encoder, f"dense_{i}")
        expected = expected @ np.asarray(dense.kernel[...]) + np.asarray(dense.bias[...])
        mean, var = expected.mean(-1, keepdims=True), expected.var(-1, keepdims=True)
        # The activation follows the last layer too; layer normalisation precedes it.
        expected = np.maximum((expected - mean) / np.sqrt(var + 1e-3), 0)
    np.testing.assert_allclose(encoder({"obs": x})[ENCODER_OUT], expected, rtol=1e-4, atol=1e-5)
    assert config.output_dims == (4,)
    assert MLPEncoderConfig(input_dims=[3], hidden_layer_dims=[]).output_dims == (3,)
    empty = MLPEncoderConfig(input_dims=[3], hidden_layer_dims=[]).build(rngs=rngs())
    np.testing.assert_array_equal(empty({"obs": x})[ENCODER_OUT], x)


def test_heads_clamp_only_the_log_std():
    head = MLPHeadConfig(
        input_dims=[3],
        hidden_layer_dims=[],
        output_layer_dim=4,
        output_layer_bias_initializer="constant",
        output_layer_bias_initializer_config={"value": 7.0},
        output_layer_weights_initializer="zeros",
        clip_log_std=True,
        log_std_clip_param=2.0,
    ).build(rngs=rngs())
    np.testing.assert_array_equal(head(jnp.ones((1, 3))), [[7, 7, 2, 2]])
    free = FreeLogStdMLPHeadConfig(
        input_dims=[3], hidden_layer_dims=[4], output_layer_dim=4, clip_log_std=True, log_std_clip_param=2.0
    ).build(rngs=rngs())
    free.log_std[...] = jnp.array([-5.0, 1.0])
    out = free(jnp.ones((2, 1, 3)))
    assert out.shape == (2, 1, 4)
    np.testing.assert_array_equal(out[0, 0, 2:], [-2, 1])
    with pytest.raises(ValueError, match="needs an even number"):
        FreeLogStdMLPHeadConfig(input_dims=[3], output_layer_dim=3).build(rngs=rngs())


def test_model_config_errors():
    with pytest.raises(ValueError, match=r"expected the shape \[d\]"):
        MLPEncoderConfig(input_dims=[3, 3]).build(rngs=rngs())
    with pytest.raises(ValueError, match="framework='torch'"):
        MLPEncoderConfig(input_dims=[3]).build("torch", rngs=rngs())
    with pytest.raises(ValueError, match="Unknown activation 'rellu'"):
        MLPEncoderConfig(input_dims=[3], hidden_layer_activation="rellu").build(rngs=rngs())
    with pytest.raises(ValueError, match="at least 1"):
        MLPEncoderConfig(input_dims=[3], hidden_layer_dims=[0]).build(rngs=rngs())


def test_ppo_catalog_passes_every_setting_on():
    settings = DefaultModelConfig(
        fcnet_hiddens=[6],
        fcnet_activation="relu",
        fcnet_use_layernorm=True,
        fcnet_kernel_initializer="constant",
        fcnet_kernel_initializer_kwargs={"value": 0.1},
        fcnet_bias_initializer="ones",
        head_fcnet_hiddens=[5],
        head_fcnet_activation="elu",
        head_fcnet_use_layernorm=True,
        head_fcnet_kernel_initializer="constant_",
        head_fcnet_kernel_initializer_kwargs={"val": 0.2},
        head_fcnet_bias_initializer="zeros_",
        vf_share_layers=False,
    )
    catalog = PPOCatalog(OBS_SPACE, ACTION_SPACE, settings)
    encoder = catalog.build_actor_critic_encoder(rngs=rngs())
    assert encoder.critic is not encoder.actor
    assert (encoder.actor.dense_0.kernel[...] == np.float32(0.1)).all()
    assert (encoder.critic.dense_0.bias[...] == 1).all()
    assert encoder.actor.use_layernorm == (True,) and encoder.actor.activations == ("relu",)
    assert catalog.latent_dims == (6,)
    for head, width in [(catalog.build_pi_head(rngs=rngs()), 2), (catalog.build_vf_head(rngs=rngs()), 1)]:
        assert head.output_dim == width
        for layer in (head.dense_0, head.dense_1):
            assert (layer.kernel[...] == np.float32(0.2)).all() and not layer.bias[...].any()
        assert head.use_layernorm == (True, False) and head.activations == ("elu", "linear")
    latents = encoder({"obs": jnp.ones((2, 3))})[ENCODER_OUT]
    assert latents.keys() == {ACTOR, CRITIC}
    assert encoder({"obs": jnp.ones((2, 3))}, critic=False)[ENCODER_OUT].keys() == {ACTOR}
    catalog.latent_dims = (9,)
    assert catalog.build_vf_head(rngs=rngs()).dense_0.kernel.shape == (9, 5)


def test_gaussian_heads():
    box = gym.spaces.Box(-1, 1, (2,))
    bias = {"head_fcnet_kernel_initializer": "zeros", "head_fcnet_bias_initializer": "constant"}
    clamped = bias | {"head_fcnet_bias_initializer_kwargs": {"value": 9.0}, "log_std_clip_param": 3.0}
    head = PPOCatalog(OBS_SPACE, box, {"fcnet_hiddens": [4], **clamped}).build_pi_head(rngs=rngs())
    np.testing.assert_array_equal(head(jnp.ones((1, 4))), [[9, 9, 3, 3]])
    free = PPOCatalog(OBS_SPACE, box, {"fcnet_hiddens": [4], "free_log_std": True}).build_pi_head(rngs=rngs())
    assert free.log_std.shape == (2,)
    with pytest.raises(ValueError, match="free_log_std=True needs a Box"):
        PPOCatalog(OBS_SPACE, ACTION_SPACE, {"free_log_std": True}).build_pi_head(rngs=rngs())


def test_default_encoders_have_the_base_that_encoders_of_ones_own_get():
    encoder = PPOCatalog(OBS_SPACE, ACTION_SPACE, {"vf_share_layers": False}).build_actor_critic_encoder(rngs=rngs())
    assert isinstance(encoder, Encoder) and isinstance(encoder.actor, Encoder)

    class Unfinished(Encoder):
        pass

    with pytest.raises(NotImplementedError, match="Unfinished does not override __call__"):
        Unfinished()({})


@pytest.mark.parametrize(
    ("space", "settings", "message"),
    [
        (gym.spaces.Box(0, 255, (4, 84, 84)), {}, r"channels seem to come first.*\[84, 84, 4\]"),
        (gym.spaces.Box(0, 1, (4, 4)), {}, "FlattenObservations"),
        (gym.spaces.Discrete(4), {}, "FlattenObservations"),
    ],
)
def test_encoders_that_do_not_exist_are_refused(space, settings, message):
    with pytest.raises(ValueError, match=message):
        Catalog(space, ACTION_SPACE, settings).build_encoder(rngs=rngs())


@pytest.mark.parametrize("columns", [("obs",), ("obs", "actions")], ids="-".join)
@pytest.mark.parametrize("compute_dtype", ["float32", "bfloat16"])
def test_looking_numbers_up_is_the_layer_of_their_one_hot_vectors(columns, compute_dtype):
    n, width = 7, 7 if len(columns) == 1 else 9
    inputs = {"obs": jnp.array([[0, 6, 3], [3, 7, -1]]), "actions": jnp.linspace(-1, 1, 12).reshape(2, 3, 2)}
    # Out of range: all zeros, as in flattened observations.
    one_hot = {**inputs, "obs": jax.nn.one_hot(inputs["obs"], n)}
    config = MLPEncoderConfig(
        input_dims=(width,), hidden_layer_dims=[5, 4], columns=columns, compute_dtype=compute_dtype
    )
    plain = config.build(rngs=rngs())
    looked_up = dataclasses.replace(config, num_values={"obs": n}).build(rngs=rngs())

    def outputs_and_gradients(encoder, inputs):
        def loss(encoder):
            latent = encoder(inputs)["encoder_out"].astype(jnp.float32)
            return jnp.sum(jnp.sin(latent)), latent

        return nnx.jit(nnx.value_and_grad(loss, has_aux=True))(encoder)

    tolerance = 1e-6 if compute_dtype == "float32" else 0.05
    leaves = [jax.tree.leaves(outputs_and_gradients(*each)) for each in ((plain, one_hot), (looked_up, inputs))]
    assert len(leaves[0]) == len(leaves[1]) == 6
    for expected, got in zip(*leaves, strict=True):
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


def test_an_encoder_without_layers_puts_out_one_hot_vectors():
    encoder = MLPEncoderConfig(input_dims=(3,), hidden_layer_dims=[], num_values={"obs": 3}).build(rngs=rngs())
    np.testing.assert_array_equal(encoder({"obs": jnp.array([2, 0])})["encoder_out"], [[0, 0, 1], [1, 0, 0]])


def test_raw_frames_of_atari_get_a_network_and_a_hint_at_the_wrapper(caplog):
    config = Catalog(gym.spaces.Box(0, 255, (210, 160, 3), np.uint8), ACTION_SPACE).encoder_config
    assert config.output_dims == (4 * 5 * 256,)
    assert "wrap_atari_for_new_api_stack" in caplog.text


def test_heads_have_gains_of_their_own_as_the_ppo_page_shows():
    page = (pathlib.Path(__file__).parents[2] / "jaxrl_stack/algorithms/ppo/README.md").read_text()
    (example,) = re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    names: dict = {}
    exec(example, names)
    config = names["config"].training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1, grad_clip=0.5)
    algo = config.env_runners(num_envs_per_env_runner=2).build_algo()
    module = algo.get_module()
    for head, gain in ((module.pi, 0.01), (module.vf, 1.0)):
        (kernel,) = (leaf for leaf in jax.tree.leaves(nnx.state(head)) if leaf.ndim == 2)
        np.testing.assert_allclose(np.linalg.svd(kernel, compute_uv=False), gain, rtol=1e-4)
    result = algo.train()
    assert np.isfinite(result["learners"]["default_policy"]["total_loss"])
    # The metrics of the page's table are among the results.
    rows = re.findall(
        r"^\|[^|]*\|([^|]*)\|[^|]*\|$", page.partition("## When nothing is learned")[2], flags=re.MULTILINE
    )
    metrics = {name for cell in rows for name in re.findall(r"`([\w/]+)`", cell)} - {
        "vf_clip_param",
        "vf_loss_coeff",
        "grad_clip",
    }
    known = {*result["learners"]["default_policy"], *(f"env_runners/{name}" for name in result["env_runners"])}
    assert len(metrics) > 8 and metrics <= known
