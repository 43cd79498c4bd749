"""Write `offline_golden.json`: CQL's and IQL's losses that RLlib itself computes from fixed weights and fixed data.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_offline_golden.py --out tests/reference/offline_golden.json

Layout of the file. N = 16 rows, and parameters, gradients and batches as in `off_policy_golden.json`.

meta        versions and command
cql         name -> one call of the learner's loss:
    settings            of the config; updates_before: how many updates RLlib's counter says that there were
    parameters, batch   of the module, online and target networks; obs, new_obs, actions, rewards, terminateds
    draws               what the forward pass drew: raw_actions, raw_actions_next [N, 2] before tanh, actions_random,
                        raw_actions_next_repeat, raw_actions_repeat [N, K, 2]
    forward             what the module returned of SAC's columns, and q_repeat, q_twin_repeat [N, 3K]: of random ones,
                        of the policy's at new_obs, of the policy's at obs
    losses              policy_loss, qf_loss, qf_twin_loss, alpha_loss
    logged              cql_loss, qf_mean, qf_max, qf_min, logps, td_error_mean
    parameter_gradients of each parameter, by the loss whose optimizer owns it
iql         name -> the same, without draws; losses: policy_loss, qf_loss, qf_twin_loss, value_loss
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
from make_off_policy_golden import (
    BOX,
    GAMMA,
    MODEL_CONFIG,
    MODULE_ID,
    logged,
    make_batch,
    make_learner,
    named,
    weights_of,
)
from make_ppo_golden import as_float32, dump, plain
from ray.rllib.algorithms.cql import CQLConfig
from ray.rllib.algorithms.iql import IQLConfig
from ray.rllib.core import ALL_MODULES
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian

NUM_ACTIONS = 3
SAC_COLUMNS = ("qf_preds", "qf_twin_preds", "q_curr", "q_target_next", "logp_resampled", "logp_next_resampled")
CQL_CASES = {
    "default": ({}, 20_000),
    "cloning": ({"bc_iters": 5}, 3),
    "one_critic": ({"twin_q": False, "min_q_weight": 2.0, "temperature": 0.5, "bc_iters": 0}, 1),
    "with_entropy": ({"deterministic_backup": False, "bc_iters": 0}, 1),
}
IQL_CASES = {
    "default": {},
    "one_critic": {"twin_q": False, "expectile": 0.6},
    "bounded": {"beta": 1.0, "expectile": 0.95},
}
CQL_LOGGED = ("cql_loss", "qf_mean", "qf_max", "qf_min", "logps", "td_error_mean")


def columns_of(rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch = make_batch(BOX, rng)
    return {name: batch[name] for name in ("obs", "new_obs", "actions", "rewards", "terminateds")}


def parameter_gradients(learner: Any) -> dict[str, Any]:
    module = learner.module[MODULE_ID]
    gradients = learner.compute_gradients({MODULE_ID: None})
    names = {id(p): name for name, p in module.named_parameters()}
    log_alphas = getattr(learner, "curr_log_alpha", {})
    names |= {id(own): "log_alpha" for own in dict(log_alphas).values()}
    return named({names[id(p)]: gradients[ref] for ref, p in learner._params.items() if ref in gradients})


def cql_case(settings: dict[str, Any], updates_before: int) -> dict[str, Any]:
    rng = np.random.default_rng(4)
    torch.manual_seed(4)
    settings = {**settings, "gamma": GAMMA, "initial_alpha": 0.2, "num_actions": NUM_ACTIONS}
    learner = make_learner(CQLConfig().training(lr=None, **settings), BOX, rng)
    module = learner.module[MODULE_ID]
    batch = columns_of(rng)
    columns = {name: torch.tensor(array) for name, array in batch.items()}
    raw, squashed_logp = [], TorchSquashedGaussian._squashed_logp

    def recording(self: Any, unsquashed: torch.Tensor) -> torch.Tensor:
        raw.append(unsquashed.detach())
        return squashed_logp(self, unsquashed)

    TorchSquashedGaussian._squashed_logp = recording
    try:
        forward = dict(module.forward_train(columns))
    finally:
        TorchSquashedGaussian._squashed_logp = squashed_logp
    # Values of the next observation's actions are taken at this one, as in Kumar et al. (2020), and not at the next.
    of_next = module._repeat_actions(columns["obs"], forward["actions_next_repeat"].detach())
    forward["q_next_repeat"] = of_next["qf_preds"]
    if settings.get("twin_q", True):
        forward["q_twin_next_repeat"] = of_next["qf_twin_preds"]
    # The loss itself counts one.
    if updates_before > 1:
        learner.metrics.log_value((ALL_MODULES, "training_iteration"), updates_before - 1, reduce="sum")
    learner.compute_loss_for_module(
        module_id=MODULE_ID, config=learner.config.get_config_for_module(MODULE_ID), batch=columns, fwd_out=forward
    )
    losses = {name: as_float32(loss) for (_, name), loss in learner._temp_losses.items()}
    shape = (len(batch["obs"]), NUM_ACTIONS, 2)
    draws = {
        "raw_actions": raw[0],
        "raw_actions_next": raw[1],
        "actions_random": forward["actions_rand_repeat"].view(shape),
        "raw_actions_repeat": raw[2].view(shape),
        "raw_actions_next_repeat": raw[3].view(shape),
    }
    out = {name: forward[name] for name in SAC_COLUMNS if name in forward}
    for name in ("q", "q_twin"):
        parts = [forward.get(f"{name}_{source}_repeat") for source in ("rand", "next", "curr")]
        if parts[0] is not None:
            out[f"{name}_repeat"] = torch.cat(parts, dim=1)[..., 0]
    return {
        "settings": settings,
        "updates_before": updates_before,
        "parameters": named(weights_of(module)),
        "batch": plain(batch),
        "draws": plain(draws),
        "forward": plain(out),
        "losses": losses,
        "logged": logged(learner, *CQL_LOGGED),
        "parameter_gradients": parameter_gradients(learner),
    }


def iql_case(settings: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    settings = {**settings, "gamma": GAMMA}
    learner = make_learner(IQLConfig().training(**settings), BOX, rng)
    module = learner.module[MODULE_ID]
    batch = columns_of(rng)
    columns = {name: torch.tensor(array) for name, array in batch.items()}
    forward = dict(module.forward_train(columns))
    learner.compute_loss_for_module(
        module_id=MODULE_ID, config=learner.config.get_config_for_module(MODULE_ID), batch=columns, fwd_out=forward
    )
    names = ("qf_preds", "qf_twin_preds", "qf_target_preds", "vf_preds", "vf_preds_next", "action_dist_inputs")
    return {
        "settings": settings,
        "parameters": named(weights_of(module)),
        "batch": plain(batch),
        "forward": plain({name: forward[name] for name in names if name in forward}),
        "losses": {name: as_float32(loss) for (_, name), loss in learner._temp_losses.items()},
        "parameter_gradients": parameter_gradients(learner),
    }


def make_golden() -> dict[str, Any]:
    torch.set_num_threads(1)
    return {
        "meta": {
            "library": "ray[rllib]",
            "ray_version": ray.__version__,
            "torch_version": torch.__version__,
            "machine": platform.machine(),
            "command": "python tests/reference/make_offline_golden.py --out tests/reference/offline_golden.json",
        },
        "model_config": MODEL_CONFIG,
        "cql": {name: cql_case(*case) for name, case in CQL_CASES.items()},
        "iql": {name: iql_case(settings) for name, settings in IQL_CASES.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute CQL's and IQL's reference numbers with RLlib.")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    arguments = parser.parse_args()
    arguments.out.write_text(dump(make_golden()) + "\n")


if __name__ == "__main__":
    main()
