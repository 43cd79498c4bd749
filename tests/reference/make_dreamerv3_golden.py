"""Write `dreamerv3_golden.json`: what parts of RLlib's DreamerV3 compute from fixed numbers.

Needs an environment of its own with `ray[rllib]==2.60.0`, torch (CPU) and Pillow; imports nothing of this project:

    python tests/reference/make_dreamerv3_golden.py --out tests/reference/dreamerv3_golden.json

symlog          numbers, their symlog, the inverse of others, and two-hot vectors: places and weights [N, 2]
divergences     logits [B, T, Z, K] of posterior and prior, L_dyn and L_rep [B, T], gradients of 0.5 L_dyn + 0.1 L_rep
returns         two batches of imagined rollouts one after the other, [H + 1, N]: targets and advantages [H, N], and
                the moving percentiles after each
representation  logits [N, Z, K] of a latent state and its probabilities

and `dreamerv3_golden.npz` beside it: for discrete | box | image, with the likeliest of every distribution in the place
of samples, so that nothing is drawn: `weights/` of all modules at "nano" by PyTorch's names, `batch/` [B, T, ...],
`forward/` what the world model makes of it, `dream/` rollouts [H + 1, B T], `losses/` all terms and `gradients/`, norms
of the gradient of each network's own loss by PyTorch's names
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.dreamerv3 import DreamerV3Config
from ray.rllib.algorithms.dreamerv3.torch.dreamerv3_torch_learner import DreamerV3TorchLearner
from ray.rllib.algorithms.dreamerv3.torch.models.components.representation_layer import RepresentationLayer
from ray.rllib.core.columns import Columns
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


SPACES = {
    "discrete": (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Discrete(3)),
    "box": (gym.spaces.Box(-np.inf, np.inf, (4,), np.float32), gym.spaces.Box(-1.0, 1.0, (2,), np.float32)),
    "image": (gym.spaces.Box(-1.0, 1.0, (64, 64, 3), np.float32), gym.spaces.Discrete(3)),
}
NUM_ROWS, NUM_STEPS, HORIZON = 3, 5, 4


def likeliest_of_everything() -> None:
    """Let no distribution draw."""
    torch.distributions.OneHotCategorical.sample = lambda self, shape=(): torch.nn.functional.one_hot(
        self.probs.argmax(-1), self.probs.shape[-1]
    ).float()
    torch.distributions.Normal.rsample = lambda self, shape=(): self.loc


def batch_of(kind, rng):
    """Items, with two episodes in the first row."""
    obs_space, action_space = SPACES[kind]
    shape = (NUM_ROWS, NUM_STEPS)
    if isinstance(action_space, gym.spaces.Discrete):
        actions = np.eye(action_space.n, dtype=np.float32)[rng.integers(action_space.n, size=shape)]
    else:
        actions = rng.uniform(-1, 1, (*shape, *action_space.shape)).astype(np.float32)
    is_first = np.zeros(shape, np.float32)
    is_first[:, 0], is_first[0, 3] = 1.0, 1.0
    is_terminated = np.zeros(shape, np.float32)
    is_terminated[0, 2], is_terminated[2, 4] = 1.0, 1.0
    if kind == "image":
        # Squares of one colour: the file stays small.
        obs = rng.uniform(-1, 1, (*shape, 8, 8, 3)).repeat(8, axis=2).repeat(8, axis=3)
    else:
        obs = 5 * rng.uniform(-1, 1, (*shape, *obs_space.shape))
    return {
        "obs": obs.astype(np.float32),
        "actions": actions,
        "rewards": (3 * rng.normal(size=shape)).astype(np.float32),
        "is_first": is_first,
        "is_terminated": is_terminated,
    }


def models(kind, rng):
    """Modules, forward passes, losses and gradients of one kind of spaces."""
    obs_space, action_space = SPACES[kind]
    config = (
        DreamerV3Config()
        .environment(observation_space=obs_space, action_space=action_space)
        .training(
            model_size="nano", batch_size_B=NUM_ROWS, batch_length_T=NUM_STEPS, horizon_H=HORIZON, entropy_scale=0.01
        )
        .learners(num_learners=0)
    )
    learner = config.build_learner(spaces={"default_policy": (obs_space, action_space)})
    module = learner.module["default_policy"].unwrapped()
    for name, parameter in module.named_parameters():
        # The output layers of zeros are not what a test is to see; and a scale of 1e-8 is not the paper's.
        if not name.startswith("dreamer_model") and "ema_value" not in name:
            wide = 0.3 if parameter.dim() < 2 else 1.0 / np.sqrt(parameter[0].numel())
            # Divergences above the free nats.
            wide *= 6.0 if "z_generating_layer" in name else 1.0
            noise = torch.tensor(rng.normal(scale=wide, size=tuple(parameter.shape)), dtype=torch.float32)
            parameter.data = (1.0 if name.endswith("weight") and parameter.dim() < 2 else 0.0) + noise
    data = batch_of(kind, rng)
    batch = {name: torch.tensor(x) for name, x in data.items()}
    forward = module._forward_train(batch)
    dream = module.dreamer_model.dream_trajectory(
        start_states={"h": forward["h_states_BxT"], "z": forward["z_posterior_states_BxT"]},
        start_is_terminated=batch["is_terminated"].reshape(-1),
        timesteps_H=HORIZON,
        gamma=config.gamma,
    )
    logged = {}
    learner.metrics = SimpleNamespace(
        log_dict=lambda values, **_: logged.update(values), log_value=lambda *_, **__: None
    )
    learner.compute_loss_for_module(
        module_id="default_policy", config=config, batch={**batch, Columns.REWARDS: batch["rewards"]}, fwd_out=forward
    )
    gradients = learner.compute_gradients({})
    names = {id(parameter): name for name, parameter in module.named_parameters(remove_duplicate=False)}
    by_name = {
        names[id(learner._params[ref])]: float(torch.linalg.norm(g)) for ref, g in gradients.items() if g is not None
    }
    keep_forward = (
        "obs_distribution_means_BxT", "reward_logits_BxT", "h_states_BxT", "z_posterior_probs_BxT", "z_prior_probs_BxT",
    )  # fmt: skip
    keep_dream = (
        "h_states_t0_to_H_BxT", "rewards_dreamed_t0_to_H_BxT", "continues_dreamed_t0_to_H_BxT",
        "actions_dreamed_t0_to_H_BxT", "values_dreamed_t0_to_H_BxT", "dream_loss_weights_t0_to_H_BxT",
    )  # fmt: skip
    # Only a mean of each image is needed to tell right from wrong.
    means = forward["obs_distribution_means_BxT"]
    forward["obs_distribution_means_BxT"] = means[:, ::97] if kind == "image" else means
    return {
        "weights": {n: p.detach().numpy() for n, p in module.named_parameters() if "ema_value" not in n},
        "batch": data,
        "forward": {name: forward[name].detach().numpy() for name in keep_forward},
        "dream": {name: dream[name].detach().numpy() for name in keep_dream},
        "losses": {name: np.float32(x.detach()) for name, x in logged.items()},
        "gradients": {name: np.float32(x) for name, x in by_name.items()},
    }


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
    likeliest_of_everything()
    arrays = {
        f"{kind}/{part}/{name}": x
        for kind in SPACES
        for part, values in models(kind, np.random.default_rng(1)).items()
        for name, x in values.items()
    }
    np.savez_compressed(out.with_suffix(".npz"), **arrays)


if __name__ == "__main__":
    main()
