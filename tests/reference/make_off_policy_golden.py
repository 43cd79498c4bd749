"""Write `off_policy_golden.json`: DQN, SAC and TQC losses that RLlib itself computes from fixed weights and data.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_off_policy_golden.py --out tests/reference/off_policy_golden.json

Layout of the file. N = 16 rows; every float32 is written as the shortest decimal that reads back to the same
float32. Parameters and their gradients are {torch name: array}, with dense kernels as [in, out] under the name
that ends in "kernel".

meta        versions and command
dqn         name -> one call of the learner's loss:
    settings            double_q, dueling, num_atoms, v_min, v_max, td_error_loss_fn, gamma, with_loss_mask
    parameters          of the module, online and target networks
    batch               obs, new_obs [N, 4], actions, rewards, terminateds, truncateds, n_step, weights, and
                        loss_mask where the case uses it
    forward             what the module returned: qf_preds, qf_next_preds (double_q only), qf_target_next_preds
                        [N, A]; with atoms also atoms [K], qf_logits [N or 2N, A, K] (2N with double_q: the
                        rows of new_obs after those of obs), qf_target_next_probs [N, A, K]
    heads               outputs for obs of the online network: `af` [N, A * K]; with dueling `vf` [N, 1]
    loss                the loss; qf_mean, qf_min, qf_max, td_error_mean as logged
    td_error            [N]
    gradients           d loss / d qf_preds [N, A] (d qf_logits with atoms)
    parameter_gradients d loss / d parameters of the online network
sac         name -> the same for SAC: settings (twin_q, gamma, initial_alpha, action_space), target_entropy
    forward             Box: qf_preds, qf_twin_preds, q_curr, q_target_next, logp_resampled,
                        logp_next_resampled [N], action_dist_inputs, action_dist_inputs_next [N, 2 * 2], and the
                        actions before tanh that were drawn: raw_actions, raw_actions_next [N, 2]. Discrete:
                        qf_preds, qf_twin_preds, q_target_next, action_probs, action_log_probs,
                        action_probs_next, action_log_probs_next [N, A]
    losses              policy_loss, qf_loss, qf_twin_loss, alpha_loss; td_error [N]
    gradients           of the losses, by outputs of the module and by log alpha
    parameter_gradients of each parameter, by the loss whose optimizer owns it
tqc         name -> the same for TQC, but for `gradients`: settings (n_quantiles, n_critics,
            top_quantiles_to_drop_per_net, gamma, initial_alpha, action_space)
    forward             qf_preds, q_target_next, qf_curr [N, n_critics, n_quantiles], logp_curr, logp_next [N],
                        action_dist_inputs [N, 2 * 2], actions_curr, actions_next, raw_actions, raw_actions_next [N, 2]
    logged              qf_mean, qf_max, qf_min, logps, td_error_mean
soft_update {online, target, tau, result} of the target network update
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
from make_ppo_golden import as_float32, dump, plain
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from ray.rllib.core.learner.utils import update_target_network

MODULE_ID = "default_policy"
NUM_ROWS = 16
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
MODEL_CONFIG = {"fcnet_hiddens": [8], "fcnet_activation": "tanh", "head_fcnet_hiddens": [], "fusionnet_hiddens": [6, 5]}
GAMMA = 0.95

DQN_DEFAULTS = {"double_q": True, "dueling": True, "td_error_loss_fn": "huber", "num_atoms": 1}
C51 = {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0}
DQN_CASES = {
    "double_dueling_huber": {},
    "double_huber": {"dueling": False},
    "double_dueling_mse": {"td_error_loss_fn": "mse"},
    "single_dueling_huber": {"double_q": False},
    "single_mse": {"double_q": False, "dueling": False, "td_error_loss_fn": "mse"},
    "masked_huber": {"with_loss_mask": True},
    "c51_double": {"dueling": False, **C51},
    "c51_single": {"double_q": False, "dueling": False, **C51},
    "c51_double_dueling": dict(C51),
}
SAC_CASES = {
    "box_twin": (BOX, {"twin_q": True}),
    "box_one_critic": (BOX, {"twin_q": False}),
    "discrete_twin": (DISCRETE, {"twin_q": True}),
}
TQC_CASES = {
    "two_critics": {"n_quantiles": 5, "n_critics": 2, "top_quantiles_to_drop_per_net": 1},
    "three_critics": {"n_quantiles": 4, "n_critics": 3, "top_quantiles_to_drop_per_net": 2},
    "nothing_dropped": {"n_quantiles": 3, "n_critics": 1, "top_quantiles_to_drop_per_net": 0},
}


def weights_of(module: Any) -> dict[str, torch.Tensor]:
    return {name: t for name, t in module.state_dict().items() if name.rpartition(".")[2] in ("weight", "bias")}


def make_learner(config: Any, action_space: gym.Space, rng: np.random.Generator) -> Any:
    """A built local learner; its networks, target networks included, get weights on a grid of 1e-4."""
    config = (
        config.environment(observation_space=OBS_SPACE, action_space=action_space)
        .learners(num_learners=0)
        .rl_module(model_config=MODEL_CONFIG)
    )
    learner = config.build_learner(spaces={MODULE_ID: (OBS_SPACE, action_space)})
    module = learner.module[MODULE_ID]
    state = {
        name: torch.tensor(np.round(rng.uniform(-0.8, 0.8, tensor.shape), 4).astype(np.float32))
        for name, tensor in weights_of(module).items()
    }
    module.load_state_dict({**module.state_dict(), **state})
    return learner


def make_batch(action_space: gym.Space, rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = NUM_ROWS
    terminateds, truncateds = np.zeros(rows, bool), np.zeros(rows, bool)
    terminateds[[1, 7, 10]] = True
    truncateds[[3, 7]] = True
    rewards = np.round(rng.normal(size=rows) * 1.5, 2).astype(np.float32)
    # On an atom, between atoms, and beyond both ends of the support of C51.
    rewards[[1, 7, 10, 11, 12]] = [1.0, 0.5, 7.0, -9.0, 9.0]
    if isinstance(action_space, gym.spaces.Discrete):
        actions = rng.integers(action_space.n, size=rows)
    else:
        actions = np.round(rng.uniform(-1, 1, (rows, *action_space.shape)), 4).astype(np.float32)
    return {
        "obs": np.round(rng.normal(size=(rows, 4)), 2).astype(np.float32),
        "new_obs": np.round(rng.normal(size=(rows, 4)), 2).astype(np.float32),
        "actions": actions,
        "rewards": rewards,
        "terminateds": terminateds,
        "truncateds": truncateds,
        "n_step": rng.integers(1, 4, rows).astype(np.float32),
        "weights": np.round(rng.uniform(0.2, 1.0, rows), 3).astype(np.float32),
    }


def named(tensors: dict[str, torch.Tensor | None]) -> dict[str, Any]:
    """{torch name: array}, dense kernels transposed to [in, out]; what has no gradient is left out."""
    out = {}
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if name.endswith(".weight"):
            name, tensor = name.removesuffix("weight") + "kernel", tensor.detach().T
        out[name] = plain(tensor)
    return out


def gradients_by(loss: torch.Tensor, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """d loss / d tensor, of the tensors that the loss depends on."""
    tensors = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    found = torch.autograd.grad(loss, list(tensors.values()), retain_graph=True, allow_unused=True)
    return {name: g for name, g in zip(tensors, found, strict=True) if g is not None}


def logged(learner: Any, *names: str) -> dict[str, float]:
    return {name: as_float32(learner.metrics.peek((MODULE_ID, name))) for name in names}


def td_error_of(learner: Any) -> np.ndarray:
    value = learner.metrics.peek((MODULE_ID, "td_error"), compile=False)
    rows = [v.detach().numpy() if isinstance(v, torch.Tensor) else np.asarray(v) for v in value]
    return np.concatenate([np.atleast_1d(r) for r in rows]).astype(np.float32)


def dqn_case(settings: dict[str, Any]) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    settings = {**DQN_DEFAULTS, **settings, "gamma": GAMMA}
    with_mask = settings.pop("with_loss_mask", False)
    learner = make_learner(DQNConfig().training(**settings), DISCRETE, rng)
    module = learner.module[MODULE_ID]
    batch = make_batch(DISCRETE, rng)
    if with_mask:
        batch["loss_mask"] = rng.random(NUM_ROWS) > 0.3
    columns = {name: torch.tensor(array) for name, array in batch.items()}
    forward = module.forward_train(columns)
    loss = learner.compute_loss_for_module(
        module_id=MODULE_ID, config=learner.config.get_config_for_module(MODULE_ID), batch=columns, fwd_out=forward
    )
    by = {"qf_preds": forward["qf_preds"]} if settings["num_atoms"] == 1 else {"qf_logits": forward["qf_logits"]}
    with torch.no_grad():
        embedding = module.encoder({"obs": columns["obs"]})["encoder_out"]
        heads = {"af": module.af(embedding)}
        if settings["dueling"]:
            heads["vf"] = module.vf(embedding)
    online = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {
        "settings": {**settings, "with_loss_mask": with_mask},
        "parameters": named(weights_of(module)),
        "batch": plain(batch),
        "forward": plain({name: value for name, value in forward.items() if name != "qf_probs"}),
        "heads": plain(heads),
        "loss": {"loss": as_float32(loss), **logged(learner, "qf_mean", "qf_min", "qf_max", "td_error_mean")},
        "td_error": plain(td_error_of(learner)),
        "gradients": plain(gradients_by(loss, by)),
        "parameter_gradients": named(gradients_by(loss, online)),
    }


def tqc_case(settings: dict[str, Any]) -> dict[str, Any]:
    case, learner = actor_critic_case(TQCConfig(), BOX, settings)
    del case["gradients"]
    return {**case, "logged": logged(learner, "qf_mean", "qf_max", "qf_min", "logps", "td_error_mean")}


def sac_case(action_space: gym.Space, settings: dict[str, Any]) -> dict[str, Any]:
    return actor_critic_case(SACConfig(), action_space, settings)[0]


def actor_critic_case(config: Any, action_space: gym.Space, settings: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """What one call of the learner's loss gives, and the learner."""
    rng = np.random.default_rng(4)
    torch.manual_seed(4)
    settings = {**settings, "gamma": GAMMA, "initial_alpha": 0.2}
    learner = make_learner(config.training(**settings), action_space, rng)
    module = learner.module[MODULE_ID]
    batch = make_batch(action_space, rng)
    columns = {name: torch.tensor(array) for name, array in batch.items()}

    # Box: the draws of the forward pass, in the order of its calls (this observation's, then the next one's).
    raw, squashed_logp = [], TorchSquashedGaussian._squashed_logp

    def recording(self: Any, unsquashed: torch.Tensor) -> torch.Tensor:
        raw.append(unsquashed.detach())
        return squashed_logp(self, unsquashed)

    TorchSquashedGaussian._squashed_logp = recording
    try:
        forward = dict(module.forward_train(columns))
    finally:
        TorchSquashedGaussian._squashed_logp = squashed_logp
    learner.compute_loss_for_module(
        module_id=MODULE_ID, config=learner.config.get_config_for_module(MODULE_ID), batch=columns, fwd_out=forward
    )
    losses = {name: loss for (_, name), loss in learner._temp_losses.items()}
    by = {**forward, "log_alpha": learner.curr_log_alpha[MODULE_ID]}
    gradients = {name: plain(gradients_by(loss, by)) for name, loss in losses.items()}
    td_error = td_error_of(learner)
    target_entropy = float(np.asarray(learner.target_entropy[MODULE_ID]))
    by_parameter = learner.compute_gradients({MODULE_ID: None})
    names = {id(p): name for name, p in module.named_parameters()}
    names[id(learner.curr_log_alpha[MODULE_ID])] = "log_alpha"
    out = dict(forward)
    if raw:
        out["raw_actions"], out["raw_actions_next"] = raw
    case = {
        "settings": {**settings, "action_space": "box" if action_space is BOX else "discrete"},
        "target_entropy": target_entropy,
        "parameters": named(weights_of(module)),
        "batch": plain(batch),
        "forward": plain(out),
        "losses": {name: as_float32(loss) for name, loss in losses.items()},
        "td_error": plain(td_error),
        "gradients": gradients,
        "parameter_gradients": named({names[id(p)]: by_parameter[ref] for ref, p in learner._params.items()}),
    }
    return case, learner


def soft_update(tau: float) -> dict[str, Any]:
    rng = np.random.default_rng(5)
    nets = [torch.nn.Linear(3, 2) for _ in range(2)]
    for net in nets:
        for parameter in net.parameters():
            parameter.data = torch.tensor(np.round(rng.normal(size=parameter.shape), 4).astype(np.float32))
    online, target = nets
    before = named(target.state_dict())
    update_target_network(main_net=online, target_net=target, tau=tau)
    result = named(target.state_dict())
    return {"online": named(online.state_dict()), "target": before, "tau": tau, "result": result}


def make_golden() -> dict[str, Any]:
    return {
        "meta": {
            "library": "ray[rllib]",
            "ray_version": ray.__version__,
            "torch_version": torch.__version__,
            "numpy_version": np.__version__,
            "machine": platform.machine(),
            "command": "python tests/reference/make_off_policy_golden.py --out tests/reference/off_policy_golden.json",
        },
        "model_config": MODEL_CONFIG,
        "dqn": {name: dqn_case(settings) for name, settings in DQN_CASES.items()},
        "sac": {name: sac_case(space, settings) for name, (space, settings) in SAC_CASES.items()},
        "tqc": {name: tqc_case(settings) for name, settings in TQC_CASES.items()},
        "soft_update": [soft_update(tau) for tau in (0.005, 1.0)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute DQN, SAC and TQC reference numbers with RLlib.")
    parser.add_argument("--out", type=Path, help="file to write; the default is standard output")
    arguments = parser.parse_args()
    text = dump(make_golden()) + "\n"
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
