"""Convolutions of the default networks: against RLlib's numbers, by hand, and what is refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from pathlib import Path

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.core.models.base import ENCODER_OUT
from jaxrl_stack.core.models.catalog import Catalog
from jaxrl_stack.core.models.configs import (
    CNNEncoderConfig,
    CNNTransposeHeadConfig,
    MLPEncoderConfig,
    MultiStreamEncoderConfig,
)
from jaxrl_stack.core.models.filters import default_filters, parse_filters
from jaxrl_stack.models.utils import get_filter_config

GOLDEN = np.load(Path(__file__).parents[1] / "reference" / "cnn_golden.npz")
DISCRETE = gym.spaces.Discrete(2)
MAX_STORED = 2000
ODD = {
    "input_dims": [9, 7, 3],
    "cnn_filter_specifiers": [[4, 3, 2], [5, [3, 2], [2, 1], "valid"], [6, [2, 4], 1]],
    "cnn_activation": "tanh",
}
# As in make_cnn_golden.py.
ENCODERS = {
    "odd": ODD,
    "odd_layernorm": {**ODD, "cnn_use_layernorm": True, "cnn_use_bias": False},
    "cropped": {"input_dims": [10, 9, 2], "cnn_filter_specifiers": [[3, 1, 2], [4, 2, 3]]},
    "image": {**ODD, "flatten_at_end": False},
    **{
        f"default_{n}": {"input_dims": [n, n, 1], "cnn_filter_specifiers": default_filters([n, n, 1])}
        for n in (10, 42, 64, 84, 96)
    },
}
DECODERS = {
    "decoder": {
        "input_dims": [5],
        "initial_image_dims": [3, 3, 4],
        "cnn_transpose_filter_specifiers": [[4, 4, 2], [3, 3, 2], [2, 5, 3]],
        "cnn_transpose_activation": "silu",
    },
    "decoder_layernorm": {
        "input_dims": [5],
        "initial_image_dims": [2, 2, 4],
        "cnn_transpose_filter_specifiers": [[4, 4, 2], [2, 3, 2]],
        "cnn_transpose_use_layernorm": True,
        "cnn_transpose_use_bias": False,
    },
}


def rngs():
    return nnx.Rngs(0)


def build(case):
    if case in DECODERS:
        return CNNTransposeHeadConfig(**DECODERS[case]).build(rngs=rngs())
    if case == "streams":
        image = CNNEncoderConfig(input_dims=[6, 6, 2], cnn_filter_specifiers=[[3, 3, 2]])
        vector = MLPEncoderConfig(input_dims=[4], hidden_layer_dims=[5], hidden_layer_activation="tanh")
        streams = {"state": vector, "camera": image}
        return MultiStreamEncoderConfig(base_encoder_configs=streams, hidden_layer_dims=[]).build(rngs=rngs())
    return CNNEncoderConfig(**ENCODERS[case]).build(rngs=rngs())


def draw(case, what, shape):
    seed = np.random.SeedSequence([ord(letter) for letter in f"{case}/{what}"])
    return np.random.default_rng(seed).uniform(-0.3, 0.3, shape).astype(np.float32)


def thin(array):
    array = np.asarray(array)
    return array if array.size <= MAX_STORED else array.ravel()[:: array.size // 1000]


def ours_of(names):
    """``{PyTorch's name of a parameter: path of it in the network here}``."""
    convolutions = list(dict.fromkeys(name.rsplit(".", 1)[0] for name in names if "cnn" in name and "norm" not in name))
    nets = {"cnn_transpose_net": ("cnn_transpose_net",), "base_encoders": ("base_encoders", "camera")}
    paths, number = {}, 0
    for name in names:
        layer, kind = name.rsplit(".", 1)
        is_norm = layer.endswith("layer_norm")
        leaf = "bias" if kind == "bias" else "scale" if is_norm else "kernel"
        if "cnn" not in name:
            dense = ("base_encoders", "state", "dense_0") if "mlp" in name else ("initial_dense",)
            paths[name] = (*dense, leaf)
            continue
        # A layer normalisation follows its convolution.
        number = number if is_norm else convolutions.index(layer)
        paths[name] = (*nets.get(name.split(".")[0], ()), f"{'layernorm' if is_norm else 'conv'}_{number}", leaf)
    return paths


def to_ours(value, name):
    """PyTorch's layout as the one here: kernels ``[height, width, in, out]``, dense ones ``[in, out]``."""
    if value.ndim == 2:
        return value.T
    if value.ndim < 4:
        return value
    if "transpose" in name:  # [in, out, height, width], which PyTorch flips
        return np.transpose(value, (2, 3, 0, 1))[::-1, ::-1]
    return np.transpose(value, (2, 3, 1, 0))


def to_torchs(value, name):
    value = np.asarray(value)
    if value.ndim == 2:
        return value.T
    if value.ndim < 4:
        return value
    if "transpose" in name:
        return np.transpose(value[::-1, ::-1], (2, 3, 0, 1))
    return np.transpose(value, (3, 2, 0, 1))


@pytest.mark.parametrize("case", [*ENCODERS, *DECODERS, "streams"])
def test_outputs_and_gradients_are_rllibs(case):
    network = build(case)
    names = [str(name) for name in GOLDEN[f"{case}/names"]]
    paths = ours_of(names)
    graph, state = nnx.split(network)
    params = dict(nnx.to_flat_state(nnx.as_pure(state)))
    assert set(paths.values()) == params.keys()
    for name in names:
        shape = to_torchs(params[paths[name]], name).shape
        params[paths[name]] = jnp.asarray(np.ascontiguousarray(to_ours(draw(case, name, shape), name)))
    if case == "streams":
        shapes = {"state": (4,), "camera": (6, 6, 2)}
    else:
        shapes = {"obs": tuple({**ENCODERS, **DECODERS}[case]["input_dims"])}
    inputs = {name: draw(case, f"input {name}", (2, *shape)) for name, shape in shapes.items()}

    def forward(params, inputs):
        net = nnx.merge(graph, nnx.from_flat_state(list(params.items())))
        return net(inputs["obs"]) if case in DECODERS else net(inputs)[ENCODER_OUT]

    @jax.jit
    def both(params, inputs, direction):
        gradients = jax.grad(lambda p, x: jnp.sum(forward(p, x) * direction), argnums=(0, 1))(params, inputs)
        return forward(params, inputs), gradients

    shape = jax.eval_shape(forward, params, inputs).shape
    output, (gradients, input_gradients) = both(params, inputs, draw(case, "direction", shape))

    def agree(name, value):
        expected = GOLDEN[f"{case}/{name}"]
        atol = 1e-5 * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(thin(value), expected, rtol=1e-5, atol=atol, err_msg=name)

    agree("output", output)
    for name, value in input_gradients.items():
        agree(f"input_grad {name}", value)
    for i, name in enumerate(names):
        agree(f"grad_{i}", to_torchs(gradients[paths[name]], name))


def test_a_convolution_by_hand():
    config = CNNEncoderConfig(input_dims=[3, 3, 1], cnn_filter_specifiers=[[1, 2, 2]], cnn_activation="linear")
    encoder = config.build(rngs=rngs())
    encoder.conv_0.kernel[...] = jnp.array([[1.0, 10.0], [100.0, 1000.0]])[:, :, None, None]
    encoder.conv_0.bias[...] = jnp.array([0.5])
    image = jnp.arange(1.0, 10.0).reshape(1, 3, 3, 1)
    # The one row and column of zeros goes below and to the right.
    np.testing.assert_allclose(
        encoder({"obs": image})[ENCODER_OUT][0], [1 + 20 + 400 + 5000.5, 3 + 600.5, 7 + 80.5, 9.5]
    )


@pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
def test_any_number_of_batch_axes(leading):
    encoder = CNNEncoderConfig(input_dims=[5, 4, 2], cnn_filter_specifiers=[[3, 3, 2]]).build(rngs=rngs())
    images = np.random.default_rng(0).normal(size=(*leading, 5, 4, 2)).astype(np.float32)
    out = encoder({"obs": images})[ENCODER_OUT]
    assert out.shape == (*leading, 3 * 2 * 3)
    each = [encoder({"obs": images[i]})[ENCODER_OUT] for i in itertools.product(*map(range, leading))]
    np.testing.assert_allclose(out.reshape(-1, 18), np.stack(each), atol=1e-5)


def test_images_of_bytes_are_scaled_as_rllibs_atari_wrapper_does_and_planes_of_bits_are_not():
    settings = {"conv_filters": [[2, 1, 1]], "conv_activation": "linear"}
    values = np.array([[0, 128, 255]], np.uint8)[..., None]

    def latents(space, values):
        encoder = Catalog(space, DISCRETE, settings).build_encoder(rngs=rngs())
        return encoder({"obs": values})[ENCODER_OUT]

    raw, scaled = gym.spaces.Box(0, 255, (1, 3, 1), np.uint8), gym.spaces.Box(-1.0, 1.0, (1, 3, 1), np.float32)
    bits = gym.spaces.Box(0, 1, (1, 3, 1), np.uint8)
    np.testing.assert_allclose(latents(raw, values), latents(scaled, values.astype(np.float32) / 128 - 1), atol=1e-6)
    np.testing.assert_allclose(latents(bits, values // 128), latents(scaled, (values // 128).astype(np.float32)))


def test_initial_weights_have_pytorchs_scale():
    encoder = CNNEncoderConfig(input_dims=[8, 8, 10], cnn_filter_specifiers=[[100, 5, 1]]).build(rngs=rngs())
    for leaf in (encoder.conv_0.kernel[...], encoder.conv_0.bias[...]):
        bound = 1 / np.sqrt(10 * 25)
        assert 0.9 * bound < np.abs(leaf).max() <= bound
    config = CNNTransposeHeadConfig(input_dims=[4], cnn_transpose_filter_specifiers=[[100, 5, 1], [3, 4, 2]])
    decoder = config.build(rngs=rngs())
    assert 0.9 * 0.02 < np.abs(decoder.cnn_transpose_net.conv_0.kernel[...]).max() <= 0.02
    assert config.output_dims == (8, 8, 3)


def test_initializers_and_compute_dtype_reach_the_convolutions():
    settings = {
        "conv_filters": [[4, 3, 1]],
        "conv_kernel_initializer": "orthogonal_",
        "conv_kernel_initializer_kwargs": {"gain": 2.0},
        "conv_bias_initializer": "constant_",
        "conv_bias_initializer_kwargs": {"val": 3.0},
        "compute_dtype": "bfloat16",
    }
    space = gym.spaces.Box(0, 1, (5, 5, 2))
    encoder = Catalog(space, DISCRETE, settings).build_encoder(rngs=rngs())
    kernel = np.asarray(encoder.conv_0.kernel[...], np.float64).reshape(-1, 4)
    np.testing.assert_allclose(kernel.T @ kernel, 4 * np.eye(4), atol=1e-5)
    assert (encoder.conv_0.bias[...] == 3).all()
    assert encoder.conv_0.kernel.dtype == jnp.float32
    assert encoder({"obs": np.ones((1, 5, 5, 2), np.float32)})[ENCODER_OUT].dtype == jnp.bfloat16


def test_dict_observations_have_an_encoder_for_each_key():
    space = gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (6, 6, 3), np.uint8),
        inner=gym.spaces.Dict(second=gym.spaces.Box(0, 1, (6, 6, 1)), state=gym.spaces.Box(-1, 1, (4,))),
    )
    settings = {"conv_filters": [[2, 3, 3]], "fcnet_hiddens": [5]}
    catalog = Catalog(space, DISCRETE, settings)
    assert catalog.latent_dims == (8 + 8 + 5,)
    encoder = catalog.build_encoder(rngs=rngs())
    obs = jax.tree.map(lambda x: np.stack([x, x]), space.sample())
    out = encoder({"obs": obs})[ENCODER_OUT]
    inner = encoder.base_encoders["inner"].base_encoders
    parts = [
        encoder.base_encoders["camera"]({"obs": obs["camera"]}),
        inner["second"]({"obs": obs["inner"]["second"]}),
        inner["state"]({"obs": obs["inner"]["state"]}),
    ]
    np.testing.assert_array_equal(out, jnp.concatenate([part[ENCODER_OUT] for part in parts], axis=-1))


@pytest.mark.parametrize(
    ("shape", "filters", "output"),
    [
        ((96, 96, 3), [[16, [8, 8], 4], [32, [4, 4], 2], [256, [11, 11], 2]], (6, 6, 256)),  # RLlib's
        ((1, 1, 5), [[256, [1, 1], 1, "valid"]], (1, 1, 256)),
        ((1, 2, 1), [[256, [1, 2], 1, "valid"]], (1, 1, 256)),
        ((3, 3, 2), [[16, [3, 3], 1], [32, [3, 3], 1]], (3, 3, 32)),
        ((1, 8, 7), [[16, [1, 3], 1], [32, [1, 3], 1]], (1, 8, 32)),
        ((19, 20, 17), [[16, [3, 3], 1], [32, [3, 3], 1]], (19, 20, 32)),
        ((4, 3, 194), [[16, [3, 3], 1], [32, [3, 3], 1]], (4, 3, 32)),
        ((21, 2, 1), [[16, [4, 2], [2, 1]], [32, [4, 2], [2, 1]]], (6, 2, 32)),
        ((60, 80, 3), [[channels, [4, 4], [2, 2]] for channels in (16, 32, 64, 128)], (4, 5, 128)),
        ((1000, 1000, 1), [[min(16 * 2**i, 256), [4, 4], [2, 2]] for i in range(8)], (4, 4, 256)),
    ],
)
def test_filters_are_chosen_by_size(shape, filters, output):
    assert get_filter_config(shape) == filters
    config = Catalog(gym.spaces.Box(0, 255, shape, np.uint8), DISCRETE).encoder_config
    assert dataclasses.replace(config, flatten_at_end=False).output_dims == output  # type: ignore[type-var]
    images = jax.ShapeDtypeStruct((2, *shape), np.uint8)
    latents = jax.eval_shape(lambda x: config.build(rngs=rngs())({"obs": x})[ENCODER_OUT], images)
    assert latents.shape == (2, math.prod(output))


def test_filters_of_images_with_their_channels_first_are_those_of_the_image():
    assert get_filter_config((84, 84, 4)) == get_filter_config((4, 84, 84)) == get_filter_config([84, 84])


def test_the_table_of_the_page_is_what_filters_are():
    page = (Path(__file__).parents[2] / "docs" / "networks.md").read_text()
    example = re.search(r"So `(.*?)` gets `(.*?)`", page)
    assert example and str(get_filter_config(json.loads(example[1]))) == example[2]
    small = re.search(r"at most 20 x 20.*?`(.*?)`", page)
    assert small and str(get_filter_config((7, 7, 3))) == small[1]
    rllibs = re.search(r"square, ([\d, ]+) or (\d+) pixels", page)
    assert rllibs and [*map(int, rllibs[1].split(",")), int(rllibs[2])] == [10, 42, 64, 84, 96]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([[16, 4]], r"filter \[16, 4\]: expected \[channels, kernel, stride\]"),
        ([[16, 4, 0]], "at least 1"),
        ([[16, 4.5, 1]], "at least 1"),
        ([[16, [4, 4, 4], 1]], r"\[height, width\]"),
        ([[16, 4, 1, "full"]], '"same" or "valid"'),
        ([16, 4, 2], r"filter 16"),
        ([], "must be a list of filters"),
        ("ab", "must be a list of filters"),
    ],
)
def test_filters_that_are_none_are_refused(filters, message):
    with pytest.raises(ValueError, match=message):
        parse_filters(filters, "conv_filters")


def test_settings_that_do_not_fit_together_are_refused():
    with pytest.raises(ValueError, match=r"filter 1, \[9, 9\], does not fit into its input image of 5 x 5"):
        CNNEncoderConfig(input_dims=[10, 10, 1], cnn_filter_specifiers=[[2, 2, 2], [3, 9, 1, "valid"]]).build(
            rngs=rngs()
        )
    with pytest.raises(ValueError, match=r"input_dims=\[10, 10\]\): expected the shape \[height, width, channels\]"):
        CNNEncoderConfig(input_dims=[10, 10]).build(rngs=rngs())
    with pytest.raises(ValueError, match=r"initial_image_dims=\[4\]"):
        CNNTransposeHeadConfig(input_dims=[4], initial_image_dims=[4]).build(rngs=rngs())
    with pytest.raises(ValueError, match=r"input_dims=\[4, 4\]\): expected the shape \[d\]"):
        CNNTransposeHeadConfig(input_dims=[4, 4]).build(rngs=rngs())
    with pytest.raises(ValueError, match="framework='torch'"):
        CNNEncoderConfig(input_dims=[10, 10, 1]).build("torch", rngs=rngs())


def test_filters_without_an_image_have_no_effect_and_say_so(caplog):
    Catalog(gym.spaces.Box(-1, 1, (3,)), DISCRETE, {"conv_filters": [[3, 2, 1]]})
    assert "conv_filters=[[3, 2, 1]] has no effect" in caplog.text


def test_hidden_layers_of_vectors_have_no_effect_on_images_and_say_so(caplog):
    image, vector = gym.spaces.Box(-1, 1, (6, 6, 3)), gym.spaces.Box(-1, 1, (3,))
    Catalog(image, DISCRETE, {"head_fcnet_hiddens": [37]})
    Catalog(gym.spaces.Dict(image=image, vector=vector), DISCRETE, {"fcnet_hiddens": [37]})
    assert "no effect" not in caplog.text
    Catalog(image, DISCRETE, {"fcnet_hiddens": [37]})
    assert "fcnet_hiddens=[37] has no effect" in caplog.text and "Set head_fcnet_hiddens" in caplog.text
