"""Write `dreamerv3_golden.json`: what parts of RLlib's DreamerV3 compute from fixed numbers.

Needs an environment of its own with `ray[rllib]==2.60.0`, torch (CPU) and Pillow; imports nothing of this project:

    python tests/reference/make_dreamerv3_golden.py --out tests/reference/dreamerv3_golden.json

symlog          numbers, their symlog, the inverse of others, and two-hot vectors: places and weights [N, 2]
divergences     logits [B, T, Z, K] of posterior and prior, L_dyn and L_rep [B, T], gradients of 0.5 L_dyn + 0.1 L_rep
returns         two batches of imagined rollouts one after the other, [H + 1, N]: targets and advantages [H, N], and
                the moving percentiles after each
representation  logits [N, Z, K] of a latent state and its probabilities
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from ray.rllib.algorithms.dreamerv3.torch.dreamerv3_torch_learner import DreamerV3TorchLearner
from ray.rllib.algorithms.dreamerv3.torch.models.components.representation_layer import RepresentationLayer
from ray.rllib.utils.torch_utils import inverse_symlog, symlog, two_hot

VALUES = [-1e9, -150.0, -3.0, -0.4, 0.0, 1e-3, 0.4, 1.0, 20.0, 1e5, 1e9]
SHAPE, NUM_CATEGORICALS, NUM_CLASSES = (4, 3), 4, 5


def lists(tree):
    """Nested lists of numbers."""
    if isinstance(tree, dict):
        return {name: lists(value) for name, value in tree.items()}
    return np.asarray(tree.detach() if isinstance(tree, torch.Tensor) else tree, np.float32).tolist()


def symlogs():
    """`symlog`, its inverse and two-hot vectors; the last ones as their two largest entries."""
    encoded = two_hot(symlog(torch.tensor(VALUES)))
    places = torch.sort(torch.topk(encoded, 2).indices).values
    return {
        "values": VALUES,
        "symlog": lists(symlog(torch.tensor(VALUES))),
        "inverse": lists(inverse_symlog(torch.tensor([-12.0, -0.5, 0.0, 2.0, 9.0]))),
        "places": places.tolist(),
        "weights": lists(torch.gather(encoded, 1, places)),
    }


def divergences(rng):
    """L_dyn and L_rep, and their gradients."""
    shape = (*SHAPE, NUM_CATEGORICALS, NUM_CLASSES)
    logits = {name: torch.tensor(rng.normal(size=shape), requires_grad=True) for name in ("posterior", "prior")}
    probs = {name: 0.99 * torch.softmax(x, -1) + 0.01 / NUM_CLASSES for name, x in logits.items()}
    config = SimpleNamespace(batch_size_B_per_learner=SHAPE[0], batch_length_T=SHAPE[1])
    outs = {f"z_{name}_probs_BxT": x.reshape(-1, NUM_CATEGORICALS, NUM_CLASSES) for name, x in probs.items()}
    dyn, rep = DreamerV3TorchLearner._compute_world_model_dynamics_and_representation_loss(
        None, config=config, fwd_out=outs
    )
    (0.5 * dyn + 0.1 * rep).sum().backward()
    return {
        **{name: lists(x) for name, x in logits.items()},
        "dynamics": lists(dyn),
        "representation": lists(rep),
        "gradients": {name: lists(x.grad) for name, x in logits.items()},
    }


def returns(rng):
    """Value targets of imagined rollouts, and the moving percentiles of two batches of them."""
    horizon, number = 6, 5
    config = SimpleNamespace(gamma=0.997, gae_lambda=0.95, return_normalization_decay=0.9)
    actor = SimpleNamespace(
        ema_value_target_pct5=torch.tensor(float("nan")), ema_value_target_pct95=torch.tensor(float("nan"))
    )
    learner = SimpleNamespace(module={"m": SimpleNamespace(unwrapped=lambda: SimpleNamespace(actor=actor))})
    out = []
    for _ in range(2):
        rewards, values = (torch.tensor(3 * rng.normal(size=(horizon + 1, number)), dtype=torch.float32) for _ in "rv")
        continues = torch.tensor(rng.random((horizon + 1, number)) < 0.8, dtype=torch.float32)
        targets = DreamerV3TorchLearner._compute_value_targets(
            None,
            config=config,
            rewards_t0_to_H_BxT=rewards,
            intrinsic_rewards_t1_to_H_BxT=None,
            continues_t0_to_H_BxT=continues,
            value_predictions_t0_to_H_BxT=values,
        )
        advantages = DreamerV3TorchLearner._compute_scaled_value_targets(
            learner,
            module_id="m",
            config=config,
            value_targets_t0_to_Hm1_BxT=targets,
            value_predictions_t0_to_Hm1_BxT=values[:-1],
        )
        out.append(
            {
                "rewards": lists(rewards),
                "values": lists(values),
                "continues": lists(continues),
                "targets": lists(targets),
                "advantages": lists(advantages),
                "low": lists(actor.ema_value_target_pct5),
                "high": lists(actor.ema_value_target_pct95),
            }
        )
    return out


def representation(rng):
    """Probabilities of a latent state, with RLlib's uniform share."""
    layer = RepresentationLayer(input_size=3, model_size="nano")
    x = torch.tensor(rng.normal(size=(2, 3)), dtype=torch.float32)
    logits = layer.z_generating_layer(x).reshape(2, 4, 4)
    _, probs = layer(x, return_z_probs=True)
    return {"logits": lists(logits), "probs": lists(probs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    golden = {
        "symlog": symlogs(),
        "divergences": divergences(rng),
        "returns": returns(rng),
        "representation": representation(rng),
    }
    out.write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
