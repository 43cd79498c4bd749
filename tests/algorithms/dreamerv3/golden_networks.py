"""RLlib's DreamerV3 at "nano", and its weights in the networks here."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.actor_critic import Actor, make_critic, width_of_actions
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.world_model import WorldModel

PATH = Path(__file__).parents[2] / "reference" / "dreamerv3_golden.npz"
VECTOR = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
SPACES = {
    "discrete": (VECTOR, gym.spaces.Discrete(3)),
    "box": (VECTOR, gym.spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "image": (gym.spaces.Box(-1.0, 1.0, (64, 64, 3), np.float32), gym.spaces.Discrete(3)),
}
NANO = MODEL_SIZES["nano"]


@functools.cache
def golden(kind: str) -> dict[str, dict[str, np.ndarray]]:
    """``{part: {name: array}}`` of one kind of spaces."""
    out: dict[str, dict[str, np.ndarray]] = {}
    with np.load(PATH) as file:
        for key in file.files:
            own, part, name = key.split("/")
            if own == kind:
                out.setdefault(part, {})[name] = file[key]
    return out


def _linear(target: nnx.Linear, weights: dict[str, np.ndarray], name: str) -> dict:
    names = {id(target.kernel): f"{name}.weight"}
    target.kernel[...] = weights[f"{name}.weight"].T
    if target.bias is not None:
        target.bias[...] = weights[f"{name}.bias"]
        names[id(target.bias)] = f"{name}.bias"
    return names


def _norm(target: nnx.LayerNorm, weights: dict[str, np.ndarray], name: str) -> dict:
    target.scale[...], target.bias[...] = weights[f"{name}.weight"], weights[f"{name}.bias"]
    return {id(target.scale): f"{name}.weight", id(target.bias): f"{name}.bias"}


def _mlp(target, weights, name, out=None) -> dict:
    names = {}
    for i, (linear, norm) in enumerate(zip(target.linears, target.norms, strict=True)):
        names |= _linear(linear, weights, f"{name}._net.{3 * i}") | _norm(norm, weights, f"{name}._net.{3 * i + 1}")
    if target.out is not None:
        names |= _linear(target.out, weights, out or f"{name}._net.{3 * len(target.linears)}")
    return names


def _images(model, weights) -> dict:
    names = {}
    for i, (conv, norm) in enumerate(zip(model.image_encoder.convs, model.image_encoder.norms, strict=True)):
        name = f"encoder.cnn_stack.net.0.cnn.{4 * i + 1}.weight"
        conv.kernel[...] = weights[name].transpose(2, 3, 1, 0)
        names |= {id(conv.kernel): name}
        names |= _norm(norm, weights, f"encoder.cnn_stack.net.0.cnn.{4 * i + 2}.layer_norm")
    head, decoder = "decoder._transpose_2d_head", model.image_decoder
    names |= _linear(decoder.linear, weights, f"{head}.initial_dense")
    for i, conv in enumerate(decoder.convs):
        name = f"{head}.cnn_transpose_net.cnn_transpose.{(2, 7, 12, 17)[i]}"
        # A transposed convolution of PyTorch is the gradient of a convolution: its kernel lies the other way round.
        conv.kernel[...] = weights[f"{name}.weight"].transpose(2, 3, 0, 1)[::-1, ::-1]
        names |= {id(conv.kernel): f"{name}.weight"}
        if i == 3:
            conv.bias[...] = weights[f"{name}.bias"]
            names |= {id(conv.bias): f"{name}.bias"}
        else:
            norm = f"{head}.cnn_transpose_net.cnn_transpose.{(3, 8, 13)[i]}.layer_norm"
            names |= _norm(decoder.norms[i], weights, norm)
    return names


@functools.cache
def networks(kind: str) -> SimpleNamespace:
    """World model, actor, critic and slow critic with RLlib's weights; `names` of their variables there."""
    (obs_space, action_space), weights = SPACES[kind], golden(kind)["weights"]
    rngs = nnx.Rngs(0)
    model = WorldModel(NANO, obs_space, width_of_actions(action_space), rngs=rngs)
    width = NANO.gru_units + NANO.num_categoricals * NANO.num_classes
    actor = Actor(NANO, width, action_space, rngs=rngs)
    critic, slow = (make_critic(NANO, width, rngs=rngs) for _ in range(2))
    own = "world_model"
    model.initial_h[...] = weights[f"{own}.initial_h"]
    names = {id(model.initial_h): f"{own}.initial_h"}
    if kind == "image":
        names |= _images(model, weights)
    else:
        names |= _mlp(model.encoder, weights, "encoder") | _mlp(model.decoder, weights, "decoder.mlp")
    layer = "z_generating_layer"
    names |= _mlp(model.posterior, weights, f"{own}.posterior_mlp", f"{own}.posterior_representation_layer.{layer}")
    prior = f"{own}.dynamics_predictor"
    names |= _mlp(model.prior, weights, f"{prior}.mlp", f"{prior}.representation_layer.{layer}")
    names |= _mlp(model.before_gru, weights, f"{own}.sequence_model.pre_gru_layer")
    names |= _linear(model.gru.linear, weights, f"{own}.sequence_model.gru_unit.linear")
    names |= _norm(model.gru.norm, weights, f"{own}.sequence_model.gru_unit.layer_norm")
    reward = f"{own}.reward_predictor"
    names |= _mlp(model.reward, weights, f"{reward}.mlp", f"{reward}.reward_layer.reward_buckets_layer")
    names |= _mlp(model.goes_on, weights, f"{own}.continue_predictor.mlp")
    names |= _mlp(actor.mlp, weights, "actor.mlp")
    if actor.std_mlp is not None:
        names |= _mlp(actor.std_mlp, weights, "actor.std_mlp")
    names |= _mlp(critic, weights, "critic.mlp", "critic.return_layer.reward_buckets_layer")
    _mlp(slow, weights, "critic.mlp_ema", "critic.return_layer_ema.reward_buckets_layer")
    nets = {"model": model, "actor": actor, "critic": critic}
    by_path = {
        name: {path: names[id(x)] for path, x in nnx.iter_graph(net) if id(x) in names} for name, net in nets.items()
    }
    return SimpleNamespace(**nets, slow=slow, names=by_path)
