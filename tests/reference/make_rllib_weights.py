"""Write `rllib_weights/`: weights of RLlib's default modules, as RLlib gives them, and what the modules compute.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_rllib_weights.py --out tests/reference/rllib_weights

Layout of the folder. ``<case>.npz`` is `RLModule.get_state()` of one module, target networks included. ``outputs.npz``
has ``<case>/obs`` float32 [5, 4], of images [5, 10, 10, 2], ``<case>/action_dist_inputs`` (PPO, SAC) and

    PPO     values [5]; APPO also old_action_dist_inputs, of the target policy
    DQN     qf_preds, and target_qf_preds of the target networks [5, 3]
    SAC     actions of the batch [5, 2] (Box); qf, qf_twin, target_qf (the lower one of both) [5] or [5, 3]
    TQC     actions of the batch [5, 2]; qf, the mean of all quantiles, and target_qf, that of the truncated ones, [5]
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.algorithms.tqc import TQCConfig

MODULE_ID = "default_policy"
NUM_ROWS = 5
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
LAYERNORM = {"fcnet_use_layernorm": True, "vf_share_layers": True, "free_log_std": True}
IMAGE_SPACE = gym.spaces.Box(-1.0, 1.0, (10, 10, 2), np.float32)
CONVOLUTIONS = [[3, 4, 2], [4, [3, 2], 2, "valid"]]
CASES = {
    "ppo_separate": (PPOConfig, DISCRETE, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5]}),
    "ppo_shared": (PPOConfig, BOX, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5], **LAYERNORM}),
    "dqn_dueling": (DQNConfig, DISCRETE, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5]}),
    "sac_box": (SACConfig, BOX, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5], "fusionnet_hiddens": [7, 6]}),
    "sac_discrete": (SACConfig, DISCRETE, {"fcnet_hiddens": [8], "head_fcnet_hiddens": []}),
    "tqc_box": (TQCConfig, BOX, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5], "fusionnet_hiddens": [7, 6]}),
    "ppo_cnn": (PPOConfig, DISCRETE, {"conv_filters": CONVOLUTIONS, "head_fcnet_hiddens": [5]}),
    "dqn_cnn": (DQNConfig, DISCRETE, {"conv_filters": CONVOLUTIONS, "conv_activation": "tanh"}),
    "sac_box_cnn": (SACConfig, BOX, {"conv_filters": CONVOLUTIONS, "fcnet_hiddens": [4], "fusionnet_hiddens": [7]}),
    "sac_discrete_cnn": (SACConfig, DISCRETE, {"conv_filters": CONVOLUTIONS, "head_fcnet_hiddens": [5]}),
    "tqc_box_cnn": (TQCConfig, BOX, {"conv_filters": CONVOLUTIONS, "fcnet_hiddens": [4], "fusionnet_hiddens": [7]}),
    "appo": (APPOConfig, DISCRETE, {"fcnet_hiddens": [8, 6], "head_fcnet_hiddens": [5]}),
}


def obs_space_of(case: str) -> gym.Space:
    return IMAGE_SPACE if case.endswith("_cnn") else OBS_SPACE


def module_of(
    config_class: Any, obs_space: gym.Space, action_space: gym.Space, model_config: dict[str, Any], seed: int
) -> Any:
    """A module with random weights, other ones in its target networks."""
    config = (
        config_class()
        .environment(observation_space=obs_space, action_space=action_space)
        .learners(num_learners=0)
        .rl_module(model_config=model_config)
    )
    module = config.build_learner(spaces={MODULE_ID: (obs_space, action_space)}).module[MODULE_ID]
    draws = np.random.default_rng(seed)
    state = {
        name: tensor
        if name.endswith("_const")
        else torch.tensor(draws.uniform(-0.8, 0.8, tensor.shape).astype(np.float32))
        for name, tensor in module.state_dict().items()
    }
    module.load_state_dict(state)
    return module


def outputs_of(module: Any, case: str, obs: np.ndarray) -> dict[str, Any]:
    batch = {"obs": torch.tensor(obs)}
    if case.startswith("dqn"):
        online, target = module.compute_q_values(batch), module.forward_target(batch)
        return {"qf_preds": online["qf_preds"], "target_qf_preds": target["qf_preds"]}
    inputs = module.forward_inference(batch)["action_dist_inputs"]
    if case == "appo":
        old = module.forward_target(batch)["target_network_action_dist_inputs"]
        return {"action_dist_inputs": inputs, "values": module.compute_values(batch), "old_action_dist_inputs": old}
    if case.startswith("ppo"):
        return {"action_dist_inputs": inputs, "values": module.compute_values(batch)}
    actions = {}
    if "_box" in case:
        actions = {"actions": torch.linspace(-0.9, 0.9, NUM_ROWS * 2).reshape(NUM_ROWS, 2)}
    batch |= actions
    if case.startswith("tqc"):
        q_values = {"qf": module.compute_q_values(batch), "target_qf": module.forward_target(batch)}
        return {**actions, "action_dist_inputs": inputs, **q_values}
    squeeze = case.startswith("sac_box")
    return {
        **actions,
        "action_dist_inputs": inputs,
        "qf": module._qf_forward_train_helper(batch, module.qf_encoder, module.qf, squeeze=squeeze),
        "qf_twin": module._qf_forward_train_helper(batch, module.qf_twin_encoder, module.qf_twin, squeeze=squeeze),
        "target_qf": module.forward_target(batch, squeeze=squeeze),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    folder = parser.parse_args().out
    folder.mkdir(exist_ok=True)
    outputs = {}
    for seed, (case, (config_class, action_space, model_config)) in enumerate(CASES.items()):
        space = obs_space_of(case)
        module = module_of(config_class, space, action_space, model_config, seed)
        np.savez(folder / f"{case}.npz", **module.get_state())
        obs = np.random.default_rng(100 + seed).normal(size=(NUM_ROWS, *space.shape)).astype(np.float32)
        with torch.no_grad():
            found = outputs_of(module, case, obs)
        outputs[f"{case}/obs"] = obs
        outputs |= {f"{case}/{name}": np.asarray(value) for name, value in found.items()}
    np.savez(folder / "outputs.npz", **outputs)


if __name__ == "__main__":
    main()
    ray.shutdown()
