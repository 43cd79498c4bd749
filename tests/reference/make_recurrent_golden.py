"""Write `recurrent_golden.npz`: what RLlib's LSTM and GRU encoders compute, forwards and backwards.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_recurrent_golden.py --out tests/reference/recurrent_golden.npz

Inputs, states and weights are not stored: `draw` makes them again. Weights are drawn in the order of RLlib's
`named_parameters`, uniform in ±0.3, in PyTorch's shapes; observations and states of sequences of 5 steps by 3. Stored
are for every case

    <case>/names        the parameters' names, in that order
    <case>/output       [3, 5, hidden_dim]
    <case>/state_<name> the state after the last step, [3, layers, hidden_dim]
    <case>/input_grad   gradients of loss = sum(output * direction) + sum over the parts of the state of
    <case>/state_grad_<name>                                            sum(state after the last step * direction)
    <case>/grad_<i>     that for parameter i

and, of PPO's default module with `use_lstm=True` and a critic of its own, under `ppo/`, the weights, what
`forward_train` returns and the values. `CASES` is the same in the test.
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.models.configs import CNNEncoderConfig, MLPEncoderConfig, RecurrentEncoderConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

BATCH, STEPS = 3, 5
CASES: dict[str, dict[str, Any]] = {
    "lstm": {"input_dims": [4], "hidden_dim": 6, "num_layers": 1},
    "lstm_deep": {"input_dims": [4], "hidden_dim": 5, "num_layers": 2, "use_bias": False},
    "lstm_mlp": {"input_dims": [4], "hidden_dim": 6, "num_layers": 1, "tokenizer": "mlp"},
    "gru": {"input_dims": [4], "hidden_dim": 6, "num_layers": 2, "recurrent_layer_type": "gru"},
    "gru_cnn": {
        "input_dims": [6, 6, 2],
        "hidden_dim": 4,
        "num_layers": 1,
        "recurrent_layer_type": "gru",
        "tokenizer": "cnn",
    },
}


def draw(case: str, what: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 numbers in ±0.3 that depend on the arguments alone."""
    seed = np.random.SeedSequence([ord(letter) for letter in f"{case}/{what}"])
    return np.random.default_rng(seed).uniform(-0.3, 0.3, shape).astype(np.float32)


def build(settings: dict[str, Any]) -> Any:
    settings = dict(settings)
    tokenizer = settings.pop("tokenizer", None)
    if tokenizer == "mlp":
        tokenizer = MLPEncoderConfig(
            input_dims=settings["input_dims"], hidden_layer_dims=[], output_layer_dim=7, output_layer_activation="tanh"
        )
    elif tokenizer == "cnn":
        tokenizer = CNNEncoderConfig(input_dims=settings["input_dims"], cnn_filter_specifiers=[[3, 3, 2]])
    return RecurrentEncoderConfig(**settings, tokenizer_config=tokenizer).build("torch")


def of_encoders(stored: dict[str, np.ndarray]) -> None:
    for case, settings in CASES.items():
        net = build(settings)
        parameters = dict(net.named_parameters())
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(torch.tensor(draw(case, name, tuple(parameter.shape))))
        shape = (BATCH, STEPS, *settings["input_dims"])
        obs = torch.tensor(draw(case, "obs", shape), requires_grad=True)
        state = {
            name: torch.tensor(draw(case, f"state {name}", (BATCH, *zeros.shape)), requires_grad=True)
            for name, zeros in net.get_initial_state().items()
        }
        out = net({"obs": obs, "state_in": state})
        named = {"direction": out["encoder_out"], **{f"direction {n}": s for n, s in out["state_out"].items()}}
        sum((x * torch.tensor(draw(case, n, tuple(x.shape)))).sum() for n, x in named.items()).backward()
        stored[f"{case}/names"] = np.array(list(parameters))
        stored[f"{case}/output"] = out["encoder_out"].detach().numpy()
        stored[f"{case}/input_grad"] = obs.grad.numpy()
        for name, part in state.items():
            stored[f"{case}/state_{name}"] = out["state_out"][name].detach().numpy()
            stored[f"{case}/state_grad_{name}"] = part.grad.numpy()
        for i, parameter in enumerate(parameters.values()):
            stored[f"{case}/grad_{i}"] = parameter.grad.numpy()


def of_ppo(stored: dict[str, np.ndarray]) -> None:
    torch.manual_seed(0)
    module = DefaultPPOTorchRLModule(
        observation_space=gym.spaces.Box(-1.0, 1.0, (3,)),
        action_space=gym.spaces.Discrete(2),
        model_config=DefaultModelConfig(use_lstm=True, lstm_cell_size=4, fcnet_hiddens=[5], vf_share_layers=False),
    )
    for name, value in module.state_dict().items():
        stored[f"ppo/weights/{name}"] = value.numpy()
    state = {
        part: {name: torch.tensor(draw("ppo", f"state {part} {name}", (BATCH, 1, 4))) for name in ("h", "c")}
        for part in ("actor", "critic")
    }
    batch = {"obs": torch.tensor(draw("ppo", "obs", (BATCH, STEPS, 3))), "state_in": state}
    with torch.no_grad():
        out = module.forward_train(batch)
        stored["ppo/values"] = module.compute_values(batch).numpy()
    stored["ppo/action_dist_inputs"] = out["action_dist_inputs"].numpy()
    for part in state:
        for name in ("h", "c"):
            stored[f"ppo/state_out/{part}/{name}"] = out["state_out"][part][name].numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    stored: dict[str, np.ndarray] = {}
    of_encoders(stored)
    of_ppo(stored)
    np.savez_compressed(arguments.out, **stored)


if __name__ == "__main__":
    main()
