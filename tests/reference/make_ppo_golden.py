"""Write `ppo_golden.json`: PPO numbers that RLlib itself computes from fixed weights and fixed data.

Needs an environment of its own with `ray[rllib]==2.60.0` and torch (CPU); imports nothing of this project:

    python tests/reference/make_ppo_golden.py --out tests/reference/ppo_golden.json

Layout of the file. N = 96 rows; every float32 is written as the shortest decimal that reads back to the same
float32; kernels are [in, out]; `parameters` and `gradients` are always the tree

    {"actor_encoder": [{"kernel", "bias"}, {"kernel", "bias"}], "critic_encoder": [the same],
     "pi": [{"kernel", "bias"}], "vf": [{"kernel", "bias"}]}, plus "log_std": [A] where the log std is free.

meta            versions, command, and `ulp_drift`: how far the parameters of `five_updates` move when every
                initial weight moves by one float32 step (the scale of rounding noise)
model_config    settings of the default module
modules         discrete | box | box_free_log_std: each {action_dim, parameters (initial), batch, forward}
    batch       the train batch: obs [N, 4], actions, action_logp [N], action_dist_inputs [N, D] (these two
                from another, nearby policy: ratio != 1), rewards, terminateds, truncateds, advantages,
                value_targets, loss_mask (used only by the cases that say so)
    forward     action_dist_inputs, vf_preds, logp, entropy, kl (old || new), ratio, one entry per row
losses          name -> {module, settings, with_loss_mask, terms, gradients (some)}; vf_explained_var
                ignores the mask
clipping        value | norm | global_norm -> {grad_clip, gradients (after clipping), global_norm_before,
                logged_global_norm (with log_gradients=True), parameters_after_1, parameters_after_3} on
                "discrete"; "none" holds the unclipped run; `gradients` of losses/default are the unclipped
                ones. The updates are full-batch `Learner.update`s, so the KL coefficient adapts between them
                (first to 0.3)
five_updates    five full-batch `Learner.update`s on the same batch: settings, steps = [{timesteps, lr_used,
                lr_after, kl_coeff_used, kl_coeff_after, terms, parameters}]
minibatches     updates with num_epochs=2 and no shuffling, {wrap_free: minibatch_size 32, wrap_around: 40}:
                {settings, rows (row numbers per step), kl_per_step, terms (last step), kl_coeff_after
                (decided by the last step's KL), parameters}
row_order       [{rows, num_epochs, minibatch_size, num_updates, first_rows, last_rows}]; `indices` for
                138/2/64
gae             weights are those of `discrete`. episodes = [{t_started, observations [T+1, 4], actions,
                rewards, action_logp, action_dist_inputs, terminated, truncated}], `rows` = columns of the
                concatenated train batch, where ONE phantom row (loss_mask False) follows each chunk: obs,
                values, rewards, terminateds, truncateds, loss_mask; settings = [{gamma, lambda_, advantages
                (raw), value_targets, rllib_mean, rllib_std, rllib_standardized (phantom rows take part in
                mean and std), masked_mean, masked_std, masked_standardized (the same formula with mean and
                std of the real rows)}]; update = one full-batch update of the first setting with the masked
                advantages: {settings, terms (without vf_explained_var: RLlib counts phantom rows there),
                parameters}
distributions   name -> inputs, and logp / entropy / kl per row (kl is from `inputs` to `other_inputs`)
schedules       [{schedule, timesteps, values}]
initialization  per dense layer of a default module: fan_in, bound = 1/sqrt(fan_in), max |kernel|, |bias|

Standard deviations are population ones (ddof=0) with floor 1e-4.
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import math
import platform
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from ray.rllib.utils.minibatch_utils import MiniBatchCyclicIterator
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from ray.rllib.utils.schedules.scheduler import Scheduler

MODULE_ID = "default_policy"
NUM_ROWS = 96
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACES = {
    "discrete": gym.spaces.Discrete(2),
    "box": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
    "box_free_log_std": gym.spaces.Box(-1.0, 1.0, (3,), np.float32),
}
MODEL_CONFIG = {"fcnet_hiddens": [16, 16], "fcnet_activation": "tanh", "vf_share_layers": False}
DEFAULTS = {
    "clip_param": 0.3,
    "vf_clip_param": 10.0,
    "vf_loss_coeff": 1.0,
    "entropy_coeff": 0.0,
    "use_kl_loss": True,
    "kl_coeff": 0.2,
    "kl_target": 0.01,
    "use_critic": True,
    "lr": 5e-5,
}
LOSS_TERMS = ("policy_loss", "vf_loss", "vf_loss_unclipped", "vf_explained_var", "entropy", "mean_kl_loss")
# Torch's name of every parameter -> place in the tree of the output file.
LAYERS = {
    "encoder.actor_encoder.net.mlp.0": ("actor_encoder", 0),
    "encoder.actor_encoder.net.mlp.2": ("actor_encoder", 1),
    "encoder.critic_encoder.net.mlp.0": ("critic_encoder", 0),
    "encoder.critic_encoder.net.mlp.2": ("critic_encoder", 1),
    "pi.net.mlp.0": ("pi", 0),
    "vf.net.mlp.0": ("vf", 0),
}


class RecordingLearner(PPOTorchLearner):
    """RLlib's PPO learner; it also keeps the row numbers and the mean KL of every minibatch that it sees."""

    rows_seen: list[list[int]]
    kl_seen: list[float]

    def build(self) -> None:
        super().build()
        self.rows_seen, self.kl_seen = [], []

    def _update(self, batch: dict[str, Any], **kwargs: Any) -> Any:
        outputs = super()._update(batch, **kwargs)
        self.rows_seen.append(batch[MODULE_ID]["row"].tolist())
        self.kl_seen.append(as_float32(self.metrics.peek((MODULE_ID, "mean_kl_loss"))))
        return outputs


# --------------------------------------------------------------------------------------------- encoding
def plain(value: Any) -> Any:
    """Arrays and tensors as lists; a float32 as the shortest decimal that reads back to it."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value] if value.ndim else plain(value[()])
    if isinstance(value, np.floating) and value.dtype == np.float32:
        short = float(str(value))
        if np.float32(short) != value:
            raise ValueError(f"{value!r} does not survive its shortest decimal")
        return short
    return value.item() if isinstance(value, np.generic) else value


def dump(value: Any, indent: int = 0) -> str:
    """JSON with one line per array of numbers, so that a diff stays readable."""
    pad = " " * (indent + 1)
    if isinstance(value, dict):
        inner = ",\n".join(f"{pad}{json.dumps(key)}: {dump(item, indent + 1)}" for key, item in value.items())
        return "{\n" + inner + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "[\n" + ",\n".join(pad + dump(item, indent + 1) for item in value) + "\n" + " " * indent + "]"
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def tree_of(named: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Torch's flat {name: tensor} as the documented parameter tree."""
    tree: dict[str, Any] = {"actor_encoder": [{}, {}], "critic_encoder": [{}, {}], "pi": [{}], "vf": [{}]}
    for name, tensor in named.items():
        if name == "pi.log_std":
            tree["log_std"] = plain(tensor)
            continue
        layer, kind = name.rsplit(".", 1)
        part, index = LAYERS[layer]
        if kind == "weight":
            tree[part][index]["kernel"] = plain(tensor.detach().T)
        else:
            tree[part][index]["bias"] = plain(tensor)
    return tree


# ------------------------------------------------------------------------------------ learners and data
def make_weights(shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Uniform weights of about twice PyTorch's default scale, on a grid of 1e-4 so that they print short."""
    weights = {}
    for name, shape in shapes.items():
        if name == "pi.log_std":
            weights[name] = np.array([-0.5, 0.0, 0.25], np.float32)
            continue
        fan_in = shape[1] if len(shape) == 2 else 16
        weights[name] = np.round(rng.uniform(-2, 2, shape) / math.sqrt(fan_in), 4).astype(np.float32)
    return weights


def make_learner(kind: str, weights: dict[str, np.ndarray] | None = None, **settings: Any) -> RecordingLearner:
    """A built local learner with the given weights."""
    config = (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACES[kind])
        .learners(num_learners=0, learner_class=RecordingLearner)
        .rl_module(model_config={**MODEL_CONFIG, "free_log_std": kind == "box_free_log_std"})
    )
    reporting = {key: settings.pop(key) for key in ("log_gradients",) if key in settings}
    config.training(**{**DEFAULTS, **settings}).reporting(**reporting)
    learner = config.build_learner(spaces={MODULE_ID: (OBS_SPACE, ACTION_SPACES[kind])})
    if weights is not None:
        learner.module[MODULE_ID].load_state_dict(
            {**learner.module[MODULE_ID].state_dict(), **{name: torch.tensor(array) for name, array in weights.items()}}
        )
    return learner


def shapes_of(learner: RecordingLearner) -> dict[str, tuple[int, ...]]:
    return {name: tuple(p.shape) for name, p in learner.module[MODULE_ID].named_parameters()}


def parameters_of(learner: RecordingLearner) -> dict[str, Any]:
    return tree_of({name: p.detach().clone() for name, p in learner.module[MODULE_ID].named_parameters()})


def gradients_of(learner: RecordingLearner, gradients: dict[Any, torch.Tensor]) -> dict[str, Any]:
    return tree_of({name: gradients[p].clone() for name, p in learner.module[MODULE_ID].named_parameters()})


def make_batch(kind: str, weights: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A train batch whose behaviour policy is a perturbed copy of `weights`."""
    distance = 0.12 if kind == "discrete" else 0.04
    behaviour = {
        name: np.round(array + distance * rng.standard_normal(array.shape), 4).astype(np.float32)
        for name, array in weights.items()
    }
    module = make_learner(kind, behaviour).module[MODULE_ID]
    obs = np.round(rng.standard_normal((NUM_ROWS, 4)), 4).astype(np.float32)
    with torch.no_grad():
        inputs = module.forward_train({Columns.OBS: torch.tensor(obs)})[Columns.ACTION_DIST_INPUTS]
        values = module.compute_values({Columns.OBS: torch.tensor(obs)}).numpy()
        dist = module.get_exploration_action_dist_cls().from_logits(inputs)
        if kind == "discrete":
            probs = torch.softmax(inputs, -1).numpy()
            actions = (rng.random(NUM_ROWS) > probs[:, 0]).astype(np.int64)
        else:
            noise = rng.standard_normal((NUM_ROWS, 3))
            actions = np.round(dist.loc.numpy() + dist._dist.scale.numpy() * noise, 4).astype(np.float32)
        logp = dist.logp(torch.tensor(actions)).numpy()
    targets = values + rng.standard_normal(NUM_ROWS) * rng.choice([0.5, 4.0], NUM_ROWS, p=[0.75, 0.25])
    terminateds = np.zeros(NUM_ROWS, bool)
    truncateds = np.zeros(NUM_ROWS, bool)
    terminateds[[10, 47, 80]] = True
    truncateds[[30, 95]] = True
    return {
        Columns.OBS: obs,
        Columns.ACTIONS: actions,
        Columns.ACTION_LOGP: logp,
        Columns.ACTION_DIST_INPUTS: inputs.numpy(),
        Columns.REWARDS: np.round(rng.standard_normal(NUM_ROWS), 4).astype(np.float32),
        Columns.TERMINATEDS: terminateds,
        Columns.TRUNCATEDS: truncateds,
        Columns.ADVANTAGES: np.round(rng.standard_normal(NUM_ROWS), 4).astype(np.float32),
        Columns.VALUE_TARGETS: np.round(targets, 4).astype(np.float32),
        Columns.LOSS_MASK: rng.random(NUM_ROWS) > 0.2,
    }


def without_mask(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {column: array for column, array in batch.items() if column != Columns.LOSS_MASK}


def multi_agent(batch: dict[str, np.ndarray]) -> MultiAgentBatch:
    num_rows = len(batch[Columns.OBS])
    rows = {**batch, "row": np.arange(num_rows)}
    return MultiAgentBatch({MODULE_ID: SampleBatch(rows)}, env_steps=num_rows)


def tensors(batch: dict[str, np.ndarray]) -> dict[str, dict[str, torch.Tensor]]:
    return {MODULE_ID: {column: torch.tensor(array) for column, array in batch.items()}}


def loss_and_terms(learner: RecordingLearner, batch: dict[str, np.ndarray]) -> tuple[Any, dict[str, float]]:
    """One call of the learner's own loss: (loss per module, the logged terms)."""
    tensor_batch = tensors(batch)
    losses = learner.compute_losses(fwd_out=learner.module.forward_train(tensor_batch), batch=tensor_batch)
    terms = {key: as_float32(learner.metrics.peek((MODULE_ID, key))) for key in LOSS_TERMS}
    return losses, {**terms, "total_loss": as_float32(losses[MODULE_ID])}


def as_float32(value: Any) -> float:
    value = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    return plain(np.float32(value))


def terms_of(results: Any) -> dict[str, float]:
    """The loss terms in the metrics that `Learner.update` returned (values of the last minibatch)."""
    return {key: as_float32(results[MODULE_ID][key].peek()) for key in (*LOSS_TERMS, "total_loss")}


# --------------------------------------------------------------------------------------------- sections
def forward_section(kind: str, weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> dict[str, Any]:
    module = make_learner(kind, weights).module[MODULE_ID]
    columns = tensors(batch)[MODULE_ID]
    with torch.no_grad():
        out = module.forward_train(columns)
        inputs = out[Columns.ACTION_DIST_INPUTS]
        new = module.get_train_action_dist_cls().from_logits(inputs)
        old = module.get_exploration_action_dist_cls().from_logits(columns[Columns.ACTION_DIST_INPUTS])
        logp = new.logp(columns[Columns.ACTIONS])
        return plain(
            {
                "action_dist_inputs": inputs,
                "vf_preds": module.compute_values(columns, embeddings=out[Columns.EMBEDDINGS]),
                "logp": logp,
                "entropy": new.entropy(),
                "kl": old.kl(new),
                "ratio": torch.exp(logp - columns[Columns.ACTION_LOGP]),
            }
        )


def loss_section(weights: dict[str, Any], batches: dict[str, Any]) -> dict[str, Any]:
    mixed = {"clip_param": 0.2, "vf_clip_param": 2.0, "vf_loss_coeff": 0.5, "entropy_coeff": 0.01, "kl_coeff": 1.0}
    cases = {
        # name: (module, settings, with_loss_mask, with_gradients)
        "default": ("discrete", {}, False, True),
        "tight_clips": ("discrete", {"clip_param": 0.2, "vf_clip_param": 0.25}, False, False),
        "entropy": ("discrete", {"entropy_coeff": 0.01}, False, False),
        "no_kl": ("discrete", {"use_kl_loss": False}, False, False),
        "no_critic": ("discrete", {"use_critic": False}, False, False),
        "masked": ("discrete", {}, True, False),
        "masked_mixed": ("discrete", mixed, True, True),
        "box": ("box", mixed, False, True),
        "box_masked": ("box", mixed, True, False),
        "box_free_log_std": ("box_free_log_std", mixed, False, True),
    }
    section = {}
    for name, (kind, settings, masked, with_gradients) in cases.items():
        learner = make_learner(kind, weights[kind], **settings)
        batch = batches[kind] if masked else without_mask(batches[kind])
        losses, terms = loss_and_terms(learner, batch)
        section[name] = {"module": kind, "settings": {**DEFAULTS, **settings}, "with_loss_mask": masked, "terms": terms}
        if with_gradients:
            section[name]["gradients"] = gradients_of(learner, learner.compute_gradients(losses))
    return section


def clipping_section(weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> dict[str, Any]:
    settings = {**DEFAULTS, "lr": 0.01}
    section: dict[str, Any] = {"settings": settings}
    for mode, grad_clip in (("none", None), ("value", 0.05), ("norm", 0.15), ("global_norm", 0.5)):
        clip = {"grad_clip": grad_clip, **({} if grad_clip is None else {"grad_clip_by": mode})}
        learner = make_learner("discrete", weights, **settings, **clip, log_gradients=True)
        losses, _ = loss_and_terms(learner, batch)
        raw = learner.compute_gradients(losses)
        norm = torch.sqrt(sum((g.double() ** 2).sum() for g in raw.values())).float()
        clipped = learner.postprocess_gradients(raw)
        case: dict[str, Any] = {
            "grad_clip": grad_clip,
            "global_norm_before": plain(norm),
            "logged_global_norm": as_float32(
                learner.metrics.peek((MODULE_ID, "gradients_default_optimizer_global_norm"))
            ),
        }
        if grad_clip is not None:
            case["gradients"] = gradients_of(learner, clipped)
        learner = make_learner("discrete", weights, **settings, **clip)
        for step in range(3):
            learner.update(batch=multi_agent(batch), timesteps={})
            if step in (0, 2):
                case[f"parameters_after_{step + 1}"] = parameters_of(learner)
        section[mode] = case
    return section


FIVE_UPDATES = {
    "lr": [[0, 0.05], [3000, 0.005], [10000, 0.0]],
    "kl_coeff": 0.2,
    "kl_target": 0.075,
    "entropy_coeff": 0.01,
    "grad_clip": 0.5,
    "grad_clip_by": "global_norm",
}


def five_updates(weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    learner = make_learner("discrete", weights, **FIVE_UPDATES)
    optimizer = learner.get_optimizer(MODULE_ID)
    steps = []
    for index in range(5):
        # Before the first update the lr is a tensor that the scheduler changes in place: read it now.
        lr = float(optimizer.param_groups[0]["lr"])
        kl_coeff = learner.curr_kl_coeffs_per_module[MODULE_ID].item()
        timesteps = 1000 * (index + 1)
        results = learner.update(
            batch=multi_agent(batch), timesteps={"num_env_steps_sampled_lifetime": timesteps}, num_epochs=1
        )
        steps.append(
            {
                "timesteps": timesteps,
                "lr_used": lr,
                "lr_after": float(optimizer.param_groups[0]["lr"]),
                "kl_coeff_used": as_float32(kl_coeff),
                "kl_coeff_after": as_float32(results[MODULE_ID]["curr_kl_coeff"].peek()),
                "terms": terms_of(results),
                "parameters": parameters_of(learner),
            }
        )
    return steps


def leaves(tree: Any) -> np.ndarray:
    if isinstance(tree, dict):
        return np.concatenate([leaves(item) for item in tree.values()])
    if tree and isinstance(tree[0], dict):
        return np.concatenate([leaves(item) for item in tree])
    return np.ravel(np.asarray(tree, np.float64))


def minibatch_section(weights: dict[str, np.ndarray], batch: dict[str, np.ndarray]) -> dict[str, Any]:
    section = {}
    for name, size in (("wrap_free", 32), ("wrap_around", 40)):
        settings = {"lr": 0.005, "kl_target": 0.015, "entropy_coeff": 0.01}
        learner = make_learner("discrete", weights, **settings)
        results = learner.update(
            batch=multi_agent(batch), timesteps={}, num_epochs=2, minibatch_size=size, shuffle_batch_per_epoch=False
        )
        section[name] = {
            "settings": {**DEFAULTS, **settings, "num_epochs": 2, "minibatch_size": size},
            "rows": learner.rows_seen,
            "kl_per_step": learner.kl_seen,
            "terms": terms_of(results),
            "kl_coeff_after": as_float32(results[MODULE_ID]["curr_kl_coeff"].peek()),
            "parameters": parameters_of(learner),
        }
    return section


def row_order_section() -> list[dict[str, Any]]:
    section = []
    for rows, epochs, size in ((138, 2, 64), (96, 2, 32), (96, 2, 40), (10, 1, 64), (100, 3, 100), (100, 1, 30)):
        batch = MultiAgentBatch({MODULE_ID: SampleBatch({"row": np.arange(rows)})}, env_steps=rows)
        iterator = MiniBatchCyclicIterator(batch, num_epochs=epochs, minibatch_size=size, shuffle_batch_per_epoch=False)
        indices = [step.policy_batches[MODULE_ID]["row"].tolist() for step in iterator]
        entry: dict[str, Any] = {
            "rows": rows,
            "num_epochs": epochs,
            "minibatch_size": size,
            "num_updates": len(indices),
            "first_rows": [step[0] for step in indices],
            "last_rows": [step[-1] for step in indices],
        }
        if rows == 138:
            entry["indices"] = indices
        section.append(entry)
    return section


def make_episodes(rng: np.random.Generator) -> list[SingleAgentEpisode]:
    """Chunks of all kinds; the fourth continues the third with a look-back of one step."""

    def extend(episode: SingleAgentEpisode, length: int, terminated: bool, truncated: bool) -> None:
        for step in range(length):
            last = step == length - 1
            logits = np.round(rng.standard_normal(2), 4).astype(np.float32)
            action = int(rng.integers(2))
            episode.add_env_step(
                observation=np.round(rng.standard_normal(4), 4).astype(np.float32),
                action=action,
                reward=float(np.float32(np.round(rng.normal(0.3, 1.0), 4))),
                terminated=terminated and last,
                truncated=truncated and last,
                extra_model_outputs={
                    Columns.ACTION_DIST_INPUTS: logits,
                    Columns.ACTION_LOGP: np.float32(logits[action] - np.logaddexp(logits[0], logits[1])),
                },
            )

    kinds = [(5, True, False), (7, False, True), (6, False, False), None, (1, True, False), (1, False, True)]
    kinds += [(40, False, False), (9, True, False)]
    episodes: list[SingleAgentEpisode] = []
    for number, kind in enumerate(kinds):
        if kind is None:
            episode = episodes[-1].cut(len_lookback_buffer=1)
            extend(episode, 4, True, False)
        else:
            episode = SingleAgentEpisode(
                id_=f"episode_{number}", observation_space=OBS_SPACE, action_space=ACTION_SPACES["discrete"]
            )
            episode.add_env_reset(np.round(rng.standard_normal(4), 4).astype(np.float32))
            extend(episode, *kind)
        episodes.append(episode)
    return [episode.to_numpy() for episode in episodes]


def gae_section(weights: dict[str, np.ndarray], seed: int) -> dict[str, Any]:
    section: dict[str, Any] = {
        "episodes": [
            {
                "t_started": episode.t_started,
                "observations": plain(episode.get_observations()),
                "actions": plain(episode.get_actions()),
                "rewards": plain(episode.get_rewards().astype(np.float32)),
                "action_logp": plain(episode.get_extra_model_outputs(Columns.ACTION_LOGP)),
                "action_dist_inputs": plain(episode.get_extra_model_outputs(Columns.ACTION_DIST_INPUTS)),
                "terminated": episode.is_terminated,
                "truncated": episode.is_truncated,
            }
            for episode in make_episodes(np.random.default_rng(seed))
        ],
        "settings": [],
    }
    for gamma, lambda_ in ((0.99, 1.0), (0.95, 0.9)):
        settings = {"gamma": gamma, "lambda_": lambda_, "lr": 0.01, "entropy_coeff": 0.01}
        learner = make_learner("discrete", weights, **settings)
        # The pipeline appends a step to every chunk in place: fresh episodes for each setting.
        batch = learner._learner_connector(
            rl_module=learner.module,
            batch={},
            episodes=make_episodes(np.random.default_rng(seed)),
            shared_data={},
            metrics=learner.metrics,
        )[MODULE_ID]
        batch = {column: value.numpy() for column, value in batch.items()}
        with torch.no_grad():
            values = learner.module[MODULE_ID].compute_values({Columns.OBS: torch.tensor(batch[Columns.OBS])})
        values = values.numpy()
        targets = compute_value_targets(
            values=values,
            rewards=batch[Columns.REWARDS],
            terminateds=batch[Columns.TERMINATEDS],
            truncateds=batch[Columns.TRUNCATEDS],
            gamma=gamma,
            lambda_=lambda_,
        )
        np.testing.assert_array_equal(targets, batch[Columns.VALUE_TARGETS])
        mask = batch[Columns.LOSS_MASK]
        raw = targets - values
        masked = (raw - raw[mask].mean()) / max(1e-4, raw[mask].std())
        if not section["settings"]:
            section["rows"] = {
                "obs": plain(batch[Columns.OBS]),
                "values": plain(values),
                **{
                    column: plain(batch[column])
                    for column in (Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS, Columns.LOSS_MASK)
                },
            }
            results = learner.update(
                batch=multi_agent({**batch, Columns.ADVANTAGES: masked}), timesteps={}, num_epochs=1
            )
            terms = terms_of(results)
            del terms["vf_explained_var"]
            section["update"] = {
                "settings": {**DEFAULTS, **settings},
                "terms": terms,
                "parameters": parameters_of(learner),
            }
        section["settings"].append(
            {
                "gamma": gamma,
                "lambda_": lambda_,
                "advantages": plain(raw),
                "value_targets": plain(batch[Columns.VALUE_TARGETS]),
                "rllib_mean": plain(raw.mean()),
                "rllib_std": plain(raw.std()),
                "rllib_standardized": plain(batch[Columns.ADVANTAGES]),
                "masked_mean": plain(raw[mask].mean()),
                "masked_std": plain(raw[mask].std()),
                "masked_standardized": plain(masked),
            }
        )
    return section


def distribution_section(rng: np.random.Generator) -> dict[str, Any]:
    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.tensor(np.round(scale * rng.standard_normal(shape), 4).astype(np.float32))

    rows = 4
    section: dict[str, Any] = {}

    def add(name: str, first: Any, second: Any, actions: Any, **inputs: Any) -> None:
        section[name] = plain(
            {
                **inputs,
                "actions": actions,
                "logp": first.logp(actions),
                "entropy": first.entropy(),
                "kl": first.kl(second),
            }
        )

    a, b = draw(rows, 5, scale=1.5), draw(rows, 5)
    actions = torch.tensor(rng.integers(0, 5, rows))
    add(
        "categorical",
        TorchCategorical.from_logits(a),
        TorchCategorical.from_logits(b),
        actions,
        inputs=a,
        other_inputs=b,
    )

    a, b = draw(rows, 6, scale=0.7), draw(rows, 6, scale=0.7)
    add(
        "diag_gaussian",
        TorchDiagGaussian.from_logits(a),
        TorchDiagGaussian.from_logits(b),
        draw(rows, 3),
        inputs=a,
        other_inputs=b,
    )

    # Columns 2 and 3 are log stds; rows 0 and 1 lie beyond the clamp to [-5, 2]. RLlib's log probability
    # leaves out the constant log((high - low) / 2) per dimension: it is a density over tanh's own range.
    low, high = -2.0, 1.5
    a = draw(rows, 4, scale=0.5)
    a[0, 2], a[1, 3] = 3.0, -6.0
    squashed = TorchSquashedGaussian.from_logits(a, low=low, high=high)
    actions = torch.tensor(np.round(rng.uniform(low + 0.1, high - 0.1, (rows, 2)), 4).astype(np.float32))
    # With a std of exp(-5), an action far from the mean has a log probability that is all rounding error.
    actions[1, 1] = torch.round(squashed._squash(squashed.loc)[1, 1], decimals=3)
    section["squashed_gaussian"] = plain(
        {"inputs": a, "low": low, "high": high, "actions": actions, "logp": squashed.logp(actions)}
    )

    lens = [3, 2, 4]
    multi = TorchMultiCategorical.get_partial_dist_cls(space=gym.spaces.MultiDiscrete(lens), input_lens=lens)
    a, b = draw(rows, 9), draw(rows, 9)
    actions = torch.tensor(np.stack([rng.integers(0, n, rows) for n in lens], -1))
    add("multi_categorical", multi.from_logits(a), multi.from_logits(b), actions, nvec=lens, inputs=a, other_inputs=b)

    # The catalog picks the classes and the order of the inputs: keys sorted, so arm, grip, wheel.
    space = gym.spaces.Dict(
        {
            "wheel": gym.spaces.Discrete(3),
            "arm": gym.spaces.Box(-1.0, 1.0, (2,), np.float32),
            "grip": gym.spaces.MultiDiscrete([2, 3]),
        }
    )
    nested = PPOCatalog(
        observation_space=OBS_SPACE, action_space=space, model_config_dict=dict(MODEL_CONFIG)
    ).get_action_dist_cls("torch")
    a, b = draw(rows, 12, scale=0.8), draw(rows, 12, scale=0.8)
    actions = {
        "arm": draw(rows, 2),
        "grip": torch.tensor(np.stack([rng.integers(0, n, rows) for n in (2, 3)], -1)),
        "wheel": torch.tensor(rng.integers(0, 3, rows)),
    }
    add("multi_distribution", nested.from_logits(a), nested.from_logits(b), actions, inputs=a, other_inputs=b)
    layout = "arm [mean 2, log std 2], grip [2 logits, 3 logits], wheel [3 logits]"
    section["multi_distribution"]["layout"] = layout
    return section


def schedule_section() -> list[dict[str, Any]]:
    section = []
    for schedule, timesteps in (
        ([[0, 2.5e-3], [500_000, 0.0]], [0, 1, 8192, 250_000, 499_999, 500_000, 2_000_000]),
        ([[0, 1.0], [1000, 0.1], [4000, 0.4]], [0, 10, 500, 999, 1000, 2500, 3999, 4000, 10_000]),
    ):
        scheduler = Scheduler(fixed_value_or_schedule=schedule)
        values = [float(scheduler.update(timestep=timestep)) for timestep in timesteps]
        section.append({"schedule": schedule, "timesteps": timesteps, "values": values})
    return section


def initialization_section() -> list[dict[str, Any]]:
    torch.manual_seed(0)
    config = PPOConfig().environment(observation_space=OBS_SPACE, action_space=ACTION_SPACES["discrete"])
    learner = config.build_learner(spaces={MODULE_ID: (OBS_SPACE, ACTION_SPACES["discrete"])})
    named = dict(learner.module[MODULE_ID].named_parameters())
    section = []
    for layer, place in LAYERS.items():
        kernel, bias = named[f"{layer}.weight"], named[f"{layer}.bias"]
        section.append(
            {
                "layer": "/".join(map(str, place)),
                "fan_in": kernel.shape[1],
                "fan_out": kernel.shape[0],
                "bound": 1.0 / math.sqrt(kernel.shape[1]),
                "max_abs_kernel": as_float32(kernel.abs().max()),
                "max_abs_bias": as_float32(bias.abs().max()),
                "std_kernel": as_float32(kernel.std()),
            }
        )
    return section


# ----------------------------------------------------------------------------------------------- main
def make_golden() -> dict[str, Any]:
    torch.set_num_threads(1)
    weights, batches, modules = {}, {}, {}
    for seed, kind in enumerate(ACTION_SPACES):
        rng = np.random.default_rng(seed)
        weights[kind] = make_weights(shapes_of(make_learner(kind)), rng)
        batches[kind] = make_batch(kind, weights[kind], rng)
        modules[kind] = {
            "action_dim": 2 if kind == "discrete" else 3,
            "parameters": parameters_of(make_learner(kind, weights[kind])),
            "batch": plain(batches[kind]),
            "forward": forward_section(kind, weights[kind], batches[kind]),
        }
    discrete, batch = weights["discrete"], without_mask(batches["discrete"])
    steps = five_updates(discrete, batch)
    nudged = five_updates({name: np.nextafter(array, np.float32(np.inf)) for name, array in discrete.items()}, batch)
    drift = max(
        np.abs(leaves(one["parameters"]) - leaves(two["parameters"])).max()
        for one, two in zip(steps, nudged, strict=True)
    )
    return {
        "meta": {
            "library": "ray[rllib]",
            "ray_version": ray.__version__,
            "torch_version": torch.__version__,
            "numpy_version": np.__version__,
            "gymnasium_version": gym.__version__,
            "machine": platform.machine(),
            "command": "python tests/reference/make_ppo_golden.py --out tests/reference/ppo_golden.json",
            "classes": [PPOTorchLearner.__name__, "DefaultPPOTorchRLModule"],
            "adam": {"b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 0.0},
            "ulp_drift": float(drift),
        },
        "model_config": MODEL_CONFIG,
        "modules": modules,
        "losses": loss_section(weights, batches),
        "clipping": clipping_section(discrete, batch),
        "five_updates": {"settings": {**DEFAULTS, **FIVE_UPDATES}, "steps": steps},
        "minibatches": minibatch_section(discrete, batch),
        "row_order": row_order_section(),
        "gae": gae_section(discrete, seed=7),
        "distributions": distribution_section(np.random.default_rng(11)),
        "schedules": schedule_section(),
        "initialization": initialization_section(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute PPO reference numbers with RLlib.")
    parser.add_argument("--out", type=Path, help="file to write; the default is standard output")
    arguments = parser.parse_args()
    text = dump(make_golden()) + "\n"
    if arguments.out is None:
        print(text, end="")
    else:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
