"""MARWIL's and BC's losses against numbers that RLlib itself computed; see make_marwil_golden.py."""

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.marwil import MARWILConfig, MARWILLearner
from jaxrl_stack.ops import returns
from tests.core.test_ppo_golden import OBS_SPACE, assert_trees_close, params_from, tree_of

REFERENCE = Path(__file__).parents[2] / "reference"
GOLDEN = json.loads((REFERENCE / "marwil_golden.json").read_text())
GAE = json.loads((REFERENCE / "ppo_golden.json").read_text())["gae"]
CASES = [(algorithm, name) for algorithm in ("marwil", "bc") for name in GOLDEN[algorithm]]
TOLERANCE: Any = {"rtol": 1e-5, "atol": 1e-5}


class GradientLearner(MARWILLearner):
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def configure_optimizers_for_module(self, module_id, config=None):
        parameters = self.get_parameters(self.module[module_id])
        self.register_optimizer(module_id=module_id, optimizer=optax.sgd, params=parameters, lr_or_lr_schedule=1.0)


def make_learner(kind, settings) -> Any:
    golden = GOLDEN["modules"][kind]
    box = gym.spaces.Box(-1.0, 1.0, (golden["action_dim"],))
    config = (
        MARWILConfig()
        .environment(observation_space=OBS_SPACE, action_space=gym.spaces.Discrete(2) if kind == "discrete" else box)
        .learners(learner_class=GradientLearner)
        .training(**settings)
        .rl_module(model_config=GOLDEN["model_config"])
    )
    learner = config.build_learner()
    learner.set_weights(params_from(golden["parameters"], learner.get_weights()))
    return learner


def batch_of(kind, with_loss_mask):
    dtypes = {"loss_mask": bool, "actions": np.int32 if kind == "discrete" else np.float32}
    batch = {k: np.asarray(v, dtypes.get(k, np.float32)) for k, v in GOLDEN["modules"][kind]["batch"].items()}
    if not with_loss_mask:
        del batch["loss_mask"]
    return {"default_policy": batch}


@pytest.mark.parametrize(("algorithm", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_terms_gradients_and_moving_averages(algorithm, name):
    golden = GOLDEN[algorithm][name]
    learner = make_learner(golden["module"], golden["settings"])
    batch, before = batch_of(golden["module"], golden["with_loss_mask"]), learner.get_weights()
    metrics = learner.update(batch=batch)["default_policy"]
    terms = dict(golden["terms"])
    if golden["with_loss_mask"]:  # RLlib's ignores the mask
        terms.pop("vf_explained_variance", None)
    for term, value in terms.items():
        np.testing.assert_allclose(float(metrics[term]), value, **TOLERANCE, err_msg=term)
    moved = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), before, learner.get_weights())
    assert_trees_close(tree_of(moved), golden["gradients"])


@pytest.mark.parametrize("name", GOLDEN["marwil"])
def test_moving_averages_follow_and_are_in_checkpoints(name, tmp_path):
    """RLlib's calls of the loss without steps between them: here the weights are put back."""
    golden = GOLDEN["marwil"][name]
    learner, other = (make_learner(golden["module"], golden["settings"]) for _ in range(2))
    batch = batch_of(golden["module"], golden["with_loss_mask"])
    weights = learner.get_weights()
    for i, average in enumerate(golden["moving_averages"]):
        if i:
            other.restore_from_path(learner.save_to_path(tmp_path / str(i)))
            learner, other = other, learner
            learner.set_weights(weights)
        learner.update(batch=batch)
        found = float(learner.moving_avg_sqd_adv_norms_per_module["default_policy"])
        np.testing.assert_allclose(found, average, **TOLERANCE)


@pytest.mark.parametrize("settings", GAE["settings"], ids=lambda own: f"{own['gamma']}-{own['lambda_']}")
def test_value_targets_of_rows(settings):
    """A phantom row of the file is a final row."""
    rows = GAE["rows"]
    is_final = ~np.asarray(rows["loss_mask"], bool)
    targets = returns.value_targets_of_rows(
        rewards=jnp.array(rows["rewards"], jnp.float32),
        terminateds=jnp.array(rows["terminateds"], bool),
        values=jnp.array(rows["values"], jnp.float32),
        is_final=jnp.asarray(is_final),
        gamma=settings["gamma"],
        lambda_=settings["lambda_"],
    )
    np.testing.assert_allclose(targets[~is_final], np.asarray(settings["value_targets"])[~is_final], **TOLERANCE)
    assert not np.any(targets[is_final])
