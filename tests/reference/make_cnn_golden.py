"""Write `cnn_golden.npz`: what RLlib's convolutions compute, forwards and backwards.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_cnn_golden.py --out tests/reference/cnn_golden.npz

Inputs and weights are not stored: `draw` makes them again. Weights of a network are drawn in the order of RLlib's
`named_parameters`, uniform in ±0.3, in PyTorch's shapes. Stored are for every case

    <case>/names        the parameters' names, in that order
    <case>/output       of the inputs, [2, ...]
    <case>/input_grad   the gradient of loss = sum(output * direction), for a direction that is drawn, too
    <case>/grad_<i>     that for parameter i

each thinned by `thin`. `CASES` is the same in the test.
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ray.rllib.core.models.configs import (
    CNNEncoderConfig,
    CNNTransposeHeadConfig,
    MLPEncoderConfig,
    MultiStreamEncoderConfig,
)
from ray.rllib.models.utils import get_filter_config

MAX_STORED = 2000
ODD = {
    "input_dims": [9, 7, 3],
    "cnn_filter_specifiers": [[4, 3, 2], [5, [3, 2], [2, 1], "valid"], [6, [2, 4], 1]],
    "cnn_activation": "tanh",
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "odd": ("encoder", ODD),
    "odd_layernorm": ("encoder", {**ODD, "cnn_use_layernorm": True, "cnn_use_bias": False}),
    "cropped": ("encoder", {"input_dims": [10, 9, 2], "cnn_filter_specifiers": [[3, 1, 2], [4, 2, 3]]}),
    "image": ("encoder", {**ODD, "flatten_at_end": False}),
    **{f"default_{n}": ("encoder", {"input_dims": [n, n, 1], "defaults": True}) for n in (10, 42, 64, 84, 96)},
    "decoder": (
        "decoder",
        {
            "input_dims": [5],
            "initial_image_dims": [3, 3, 4],
            "cnn_transpose_filter_specifiers": [[4, 4, 2], [3, 3, 2], [2, 5, 3]],
            "cnn_transpose_activation": "silu",
        },
    ),
    "decoder_layernorm": (
        "decoder",
        {
            "input_dims": [5],
            "initial_image_dims": [2, 2, 4],
            "cnn_transpose_filter_specifiers": [[4, 4, 2], [2, 3, 2]],
            "cnn_transpose_use_layernorm": True,
            "cnn_transpose_use_bias": False,
        },
    ),
    "streams": ("streams", {}),
}


def draw(case: str, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers in ±0.3 that depend on the arguments alone."""
    seed = np.random.SeedSequence([ord(letter) for letter in f"{case}/{what}"])
    return np.random.default_rng(seed).uniform(-0.3, 0.3, shape).astype(np.float32)


def thin(array: np.ndarray) -> np.ndarray:
    """The array, or about a thousand of its entries."""
    return array if array.size <= MAX_STORED else array.ravel()[:: array.size // 1000]


def build(kind: str, settings: dict[str, Any]) -> Any:
    settings = dict(settings)
    if settings.pop("defaults", False):
        settings["cnn_filter_specifiers"] = get_filter_config(settings["input_dims"])
    if kind == "streams":
        image = CNNEncoderConfig(input_dims=[6, 6, 2], cnn_filter_specifiers=[[3, 3, 2]])
        vector = MLPEncoderConfig(
            input_dims=[4], hidden_layer_dims=[], output_layer_dim=5, output_layer_activation="tanh"
        )
        return MultiStreamEncoderConfig(
            input_dims=[1], base_encoder_configs={"state": vector, "camera": image}, hidden_layer_dims=[]
        ).build("torch")
    return (CNNEncoderConfig if kind == "encoder" else CNNTransposeHeadConfig)(**settings).build("torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stored: dict[str, np.ndarray] = {}
    for case, (kind, settings) in CASES.items():
        net = build(kind, settings)
        parameters = dict(net.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.tensor(draw(case, name, tuple(parameter.shape))))
        shapes = {"state": (4,), "camera": (6, 6, 2)} if kind == "streams" else {"obs": tuple(settings["input_dims"])}
        inputs = {
            name: torch.tensor(draw(case, f"input {name}", (2, *shape)), requires_grad=True)
            for name, shape in shapes.items()
        }
        output = net(inputs["obs"]) if kind == "decoder" else net(inputs)["encoder_out"]
        (output * torch.tensor(draw(case, "direction", tuple(output.shape)))).sum().backward()
        stored[f"{case}/names"] = np.array(list(parameters))
        stored[f"{case}/output"] = thin(output.detach().numpy())
        for name, value in inputs.items():
            stored[f"{case}/input_grad {name}"] = thin(value.grad.numpy())
        for i, parameter in enumerate(parameters.values()):
            stored[f"{case}/grad_{i}"] = thin(parameter.grad.numpy())
    np.savez_compressed(arguments.out, **stored)


if __name__ == "__main__":
    main()
