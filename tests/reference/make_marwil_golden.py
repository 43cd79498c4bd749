"""Write `marwil_golden.json`: MARWIL's and BC's losses that RLlib itself computes from fixed weights and fixed data.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_marwil_golden.py --out tests/reference/marwil_golden.json

Layout of the file; every float32 is written as the shortest decimal that reads back to the same float32, and
parameters and gradients are trees as in `ppo_golden.json`.

meta      versions and command
modules   discrete | box: {action_dim, parameters, batch}: PPO's module, and rows as in `ppo_golden.json`, of which
          the first two actions of `box` are at the bounds, -1 and 1
marwil    name -> {module, settings, with_loss_mask, terms, gradients, moving_averages}: the last ones are those of
          `moving_avg_sqd_adv_norm` in three calls of the loss on the same rows, of which terms and gradients are of
          the first one. vf_explained_variance ignores the mask
bc        name -> the same for beta 0; gradients of the value function are 0
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import platform
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from make_ppo_golden import (
    ACTION_SPACES,
    MODEL_CONFIG,
    OBS_SPACE,
    as_float32,
    dump,
    make_batch,
    make_weights,
    plain,
    tree_of,
)
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.core.columns import Columns

MODULE_ID = "default_policy"
MA_KEY = "moving_avg_sqd_adv_norm"
KINDS = ("discrete", "box")
COLUMNS = (Columns.OBS, Columns.ACTIONS, Columns.VALUE_TARGETS, Columns.LOSS_MASK)
FAST = {"moving_average_sqd_adv_norm_start": 2.0, "moving_average_sqd_adv_norm_update_rate": 0.1}
CASES = {
    "marwil": {
        "default": ("discrete", {}, False),
        "masked": ("discrete", {"beta": 0.5, "vf_coeff": 0.3, **FAST}, True),
        "box": ("box", FAST, False),
    },
    "bc": {"discrete": ("discrete", {"beta": 0.0}, False), "box": ("box", {"beta": 0.0}, True)},
}
TERMS = {"marwil": ("policy_loss", "vf_loss", "vf_explained_variance", MA_KEY), "bc": ("policy_loss",)}


def make_learner(kind: str, weights: dict[str, np.ndarray], settings: dict[str, Any]) -> Any:
    config = (
        MARWILConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACES[kind])
        .learners(num_learners=0)
        .rl_module(model_config=MODEL_CONFIG)
        .training(**settings)
    )
    learner = config.build_learner(spaces={MODULE_ID: (OBS_SPACE, ACTION_SPACES[kind])})
    module = learner.module[MODULE_ID]
    named = {name: torch.tensor(array) for name, array in weights.items()}
    module.load_state_dict({**module.state_dict(), **named})
    return learner


def loss_section(algorithm: str, made: dict[str, Any]) -> dict[str, Any]:
    section = {}
    for name, (kind, settings, with_loss_mask) in CASES[algorithm].items():
        learner = make_learner(kind, made[kind]["weights"], settings)
        module = learner.module[MODULE_ID]
        rows = {key: torch.tensor(array) for key, array in made[kind]["batch"].items()}
        if not with_loss_mask:
            del rows[Columns.LOSS_MASK]
        batch = {MODULE_ID: rows}
        losses = learner.compute_losses(fwd_out=learner.module.forward_train(batch), batch=batch)
        terms = {key: as_float32(learner.metrics.peek((MODULE_ID, key))) for key in TERMS[algorithm]}
        found = {id(p): own for p, own in learner.compute_gradients(losses).items() if own is not None}
        gradients = {key: found.get(id(p), torch.zeros_like(p)) for key, p in module.named_parameters()}
        averages = [terms.get(MA_KEY)]
        for _ in range(2 if algorithm == "marwil" else 0):
            learner.compute_losses(fwd_out=learner.module.forward_train(batch), batch=batch)
            averages.append(as_float32(learner.metrics.peek((MODULE_ID, MA_KEY))))
        section[name] = {
            "module": kind,
            "settings": settings,
            "with_loss_mask": with_loss_mask,
            "terms": plain({**terms, "total_loss": as_float32(losses[MODULE_ID])}),
            "gradients": tree_of(gradients),
            **({"moving_averages": plain(averages)} if algorithm == "marwil" else {}),
        }
    return section


def make_golden() -> dict[str, Any]:
    torch.set_num_threads(1)
    made, modules = {}, {}
    for seed, kind in enumerate(KINDS):
        rng = np.random.default_rng(seed)
        module = make_learner(kind, {}, {}).module[MODULE_ID]
        weights = make_weights({name: tuple(p.shape) for name, p in module.named_parameters()}, rng)
        batch = {name: own for name, own in make_batch(kind, weights, rng).items() if name in COLUMNS}
        if kind == "box":
            batch[Columns.ACTIONS][0], batch[Columns.ACTIONS][1] = -1.0, 1.0
        made[kind] = {"weights": weights, "batch": batch}
        modules[kind] = {
            "action_dim": 2 if kind == "discrete" else 3,
            "parameters": tree_of({name: torch.tensor(array) for name, array in weights.items()}),
            "batch": plain(batch),
        }
    return {
        "meta": {
            "library": "ray[rllib]",
            "ray_version": ray.__version__,
            "torch_version": torch.__version__,
            "machine": platform.machine(),
            "command": "python tests/reference/make_marwil_golden.py --out tests/reference/marwil_golden.json",
        },
        "model_config": MODEL_CONFIG,
        "modules": modules,
        **{algorithm: loss_section(algorithm, made) for algorithm in CASES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute MARWIL's and BC's reference numbers with RLlib.")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    arguments.out.write_text(dump(make_golden()) + "\n")


if __name__ == "__main__":
    main()
