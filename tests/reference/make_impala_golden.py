"""Write `impala_golden.json`: V-trace, and IMPALA's and APPO's losses, that RLlib itself computes from fixed data.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_impala_golden.py --out tests/reference/impala_golden.json

Layout of the file; every float32 is written as the shortest decimal that reads back to the same float32, and
parameters and gradients are trees as in `ppo_golden.json`.

meta      versions and command
vtrace    [{inputs, settings, targets, advantages}]: one call of RLlib's function each; arrays [T, B]
modules   discrete | box: {action_dim, parameters, old_parameters, batch}; encoder and policy head of old_parameters
          are APPO's target policy
    batch B = 5 columns of T = 8 steps, [B, T, ...]: obs, actions, action_logp, rewards, terminateds, and final_obs
          [B, 4], the observation after the last step
impala    name -> {module, settings, terms, gradients}
appo      name -> the same

To RLlib every column is a chunk of its own, whose phantom row (the final observation) is the first row of the next
column of T rows, all others of which are masked: in such batches it bootstraps every column from its own final
observation. Where a phantom row and steps are in one column, these lose their bootstrap value.
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from make_ppo_golden import LAYERS, as_float32, dump, make_weights, plain, tree_of
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.impala.torch.vtrace_torch_v2 import vtrace_torch
from ray.rllib.core.columns import Columns

MODULE_ID = "default_policy"
NUM_STEPS, NUM_COLUMNS = 8, 5
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACES = {"discrete": gym.spaces.Discrete(2), "box": gym.spaces.Box(-1.0, 1.0, (3,), np.float32)}
MODEL_CONFIG = {"fcnet_hiddens": [16, 16], "fcnet_activation": "tanh", "vf_share_layers": False}
CLIPS = {"vtrace_clip_rho_threshold": 0.9, "vtrace_clip_pg_rho_threshold": 1.2}
CASES = {
    "impala": {
        "default": ("discrete", {}),
        "clips": ("discrete", {**CLIPS, "gamma": 0.9, "vf_loss_coeff": 0.3, "entropy_coeff": 0.05}),
        "box": ("box", {}),
    },
    "appo": {
        "default": ("discrete", {}),
        "kl": ("discrete", {"use_kl_loss": True, "kl_coeff": 0.3, "clip_param": 0.1, **CLIPS}),
        "box": ("box", {"use_kl_loss": True}),
    },
}
TERMS = {
    "impala": ("pi_loss", "mean_pi_loss", "vf_loss", "mean_vf_loss", "entropy"),
    "appo": ("policy_loss", "vf_loss", "entropy", "mean_kl_loss", "mean_IS", "var_IS"),
}


def make_learner(algorithm: str, kind: str, **settings: Any) -> Any:
    config = (
        (IMPALAConfig if algorithm == "impala" else APPOConfig)()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACES[kind])
        .env_runners(rollout_fragment_length=NUM_STEPS)
        .learners(num_learners=0)
        .rl_module(model_config=MODEL_CONFIG)
        .training(**settings)
    )
    return config.build_learner(spaces={MODULE_ID: (OBS_SPACE, ACTION_SPACES[kind])})


def load(module: Any, weights: dict[str, np.ndarray], old_weights: dict[str, np.ndarray] | None = None) -> None:
    named = dict(weights)
    for name, array in (old_weights or {}).items():
        part, _, rest = name.partition(".")
        if part in ("encoder", "pi"):
            named[f"_old_{part}.{rest}"] = array
    state = module.state_dict()
    module.load_state_dict({**state, **{name: torch.tensor(array) for name, array in named.items()}})


def perturbed(weights: dict[str, np.ndarray], distance: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: np.round(array + distance * rng.standard_normal(array.shape), 4).astype(np.float32)
        for name, array in weights.items()
    }


def make_batch(kind: str, behaviour: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Steps of a policy, ``[B, T, ...]``."""
    module = make_learner("impala", kind).module[MODULE_ID]
    load(module, behaviour)
    shape = (NUM_COLUMNS, NUM_STEPS)
    obs = np.round(rng.standard_normal((*shape, 4)), 4).astype(np.float32)
    with torch.no_grad():
        inputs = module.forward_train({Columns.OBS: torch.tensor(obs)})[Columns.ACTION_DIST_INPUTS]
        dist = module.get_exploration_action_dist_cls().from_logits(inputs)
        if kind == "discrete":
            actions = (rng.random(shape) > torch.softmax(inputs, -1).numpy()[..., 0]).astype(np.int64)
        else:
            noise = rng.standard_normal((*shape, 3))
            actions = np.round(dist.loc.numpy() + dist._dist.scale.numpy() * noise, 4).astype(np.float32)
        logp = dist.logp(torch.tensor(actions)).numpy()
    return {
        "obs": obs,
        "actions": actions,
        "action_logp": logp,
        "rewards": np.round(rng.standard_normal(shape), 4).astype(np.float32),
        "terminateds": rng.random(shape) < 0.15,
        "final_obs": np.round(rng.standard_normal((NUM_COLUMNS, 4)), 4).astype(np.float32),
    }


def as_rllib_rows(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Each column, then a column that begins with its phantom row: rows ``[B * 2 * T, ...]``."""
    rows = {}
    for name in ("obs", "actions", "action_logp", "rewards", "terminateds"):
        own = batch[name]
        padding = np.zeros_like(own)
        if name == "obs":
            padding[:, 0] = batch["final_obs"]
        rows[name] = np.stack([own, padding], axis=1).reshape(-1, *own.shape[2:])
    mask = np.zeros((NUM_COLUMNS, 2, NUM_STEPS), bool)
    mask[:, 0] = True
    return {name: torch.tensor(own) for name, own in {**rows, "loss_mask": mask.reshape(-1)}.items()}


def loss_section(algorithm: str, made: dict[str, Any]) -> dict[str, Any]:
    section = {}
    for name, (kind, settings) in CASES[algorithm].items():
        learner = make_learner(algorithm, kind, **settings)
        module = learner.module[MODULE_ID]
        load(module, made[kind]["weights"], made[kind]["old_weights"] if algorithm == "appo" else None)
        batch = {MODULE_ID: as_rllib_rows(made[kind]["batch"])}
        losses = learner.compute_losses(fwd_out=learner.module.forward_train(batch), batch=batch)
        terms = {key: as_float32(learner.metrics.peek((MODULE_ID, key))) for key in TERMS[algorithm]}
        gradients = learner.compute_gradients(losses)
        trained = {key: gradients[p] for key, p in module.named_parameters() if key.rsplit(".", 1)[0] in LAYERS}
        section[name] = {
            "module": kind,
            "settings": settings,
            "terms": {**terms, "total_loss": as_float32(losses[MODULE_ID])},
            "gradients": tree_of(trained),
        }
    return section


def vtrace_section(rng: np.random.Generator) -> list[dict[str, Any]]:
    section = []
    for settings in (
        {},
        {"clip_rho_threshold": 0.8, "clip_pg_rho_threshold": 1.3},
        {"clip_rho_threshold": None, "clip_pg_rho_threshold": None},
    ):
        shape = (NUM_STEPS, NUM_COLUMNS)
        inputs = {
            "log_rhos": np.round(0.6 * rng.standard_normal(shape), 4).astype(np.float32),
            "discounts": np.where(rng.random(shape) < 0.2, 0.0, 0.95).astype(np.float32),
            "rewards": np.round(rng.standard_normal(shape), 4).astype(np.float32),
            "values": np.round(rng.standard_normal(shape), 4).astype(np.float32),
            "bootstrap_value": np.round(rng.standard_normal(NUM_COLUMNS), 4).astype(np.float32),
        }
        tensors = {name: torch.tensor(array) for name, array in inputs.items()}
        targets, advantages = vtrace_torch(
            target_action_log_probs=tensors["log_rhos"],
            behaviour_action_log_probs=torch.zeros(shape),
            discounts=tensors["discounts"],
            rewards=tensors["rewards"],
            values=tensors["values"],
            bootstrap_values=tensors["bootstrap_value"],
            **settings,
        )
        section.append({"inputs": inputs, "settings": settings, "targets": targets, "advantages": advantages})
    return plain(section)


def make_golden() -> dict[str, Any]:
    torch.set_num_threads(1)
    made, modules = {}, {}
    for seed, kind in enumerate(ACTION_SPACES):
        rng = np.random.default_rng(seed)
        module = make_learner("impala", kind).module[MODULE_ID]
        weights = make_weights({name: tuple(p.shape) for name, p in module.named_parameters()}, rng)
        distance = 0.12 if kind == "discrete" else 0.04
        old_weights = perturbed(weights, distance, rng)
        batch = make_batch(kind, perturbed(old_weights, distance, rng), rng)
        made[kind] = {"weights": weights, "old_weights": old_weights, "batch": batch}
        modules[kind] = {
            "action_dim": 2 if kind == "discrete" else 3,
            "parameters": tree_of({name: torch.tensor(array) for name, array in weights.items()}),
            "old_parameters": tree_of({name: torch.tensor(array) for name, array in old_weights.items()}),
            "batch": plain(batch),
        }
    return {
        "meta": {
            "library": "ray[rllib]",
            "ray_version": ray.__version__,
            "torch_version": torch.__version__,
            "machine": platform.machine(),
            "command": "python tests/reference/make_impala_golden.py --out tests/reference/impala_golden.json",
        },
        "model_config": MODEL_CONFIG,
        "vtrace": vtrace_section(np.random.default_rng(11)),
        "modules": modules,
        "impala": loss_section("impala", made),
        "appo": loss_section("appo", made),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute IMPALA's and APPO's reference numbers with RLlib.")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    arguments.out.write_text(dump(make_golden()) + "\n")


if __name__ == "__main__":
    main()
