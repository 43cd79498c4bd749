"""IMPALA's and APPO's losses against numbers that RLlib itself computed; see make_impala_golden.py."""

import json
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.appo import APPOConfig, APPOLearner
from jaxrl_stack.algorithms.impala import IMPALAConfig, IMPALALearner
from jaxrl_stack.algorithms.impala.impala_learner import VTraceLearner
from tests.core.test_ppo_golden import LAYERS, OBS_SPACE, assert_trees_close

GOLDEN = json.loads((Path(__file__).parents[2] / "reference" / "impala_golden.json").read_text())
CASES = [(algorithm, name) for algorithm in ("impala", "appo") for name in GOLDEN[algorithm]]
OLD = {"_old_encoder": "encoder", "_old_pi": "pi"}


class _Gradient(VTraceLearner):
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def configure_optimizers_for_module(self, module_id, config=None):
        parameters = self.get_parameters(self.module[module_id])
        self.register_optimizer(module_id=module_id, optimizer=optax.sgd, params=parameters, lr_or_lr_schedule=1.0)


class IMPALAGradient(_Gradient, IMPALALearner):
    pass


class APPOGradient(_Gradient, APPOLearner):
    pass


def leaf_of(golden, path):
    """The array of a parameter tree with the path of ours; of target networks in `old_parameters`."""
    first, _, rest = path.partition("/")
    tree = golden["old_parameters"] if first in OLD else golden["parameters"]
    layer, _, kind = f"{OLD.get(first, first)}/{rest}".rpartition("/")
    part, index = LAYERS[layer]
    return np.asarray(tree[part][index][kind], np.float32)


def make_learner(algorithm, golden, settings):
    config_class, learner_class = (
        (IMPALAConfig, IMPALAGradient) if algorithm == "impala" else (APPOConfig, APPOGradient)
    )
    is_discrete = golden["action_dim"] == 2
    action_space = gym.spaces.Discrete(2) if is_discrete else gym.spaces.Box(-1.0, 1.0, (golden["action_dim"],))
    learner = (
        config_class()
        .environment(observation_space=OBS_SPACE, action_space=action_space)
        .training(grad_clip=None, **settings)
        .rl_module(model_config=GOLDEN["model_config"])
        .learners(learner_class=learner_class)
        .build_learner()
    )
    state = learner.module["default_policy"].get_state()
    learner.set_weights({"default_policy": {path: leaf_of(golden, path) for path in state}})
    return learner


def batch_of(golden):
    """Chunks ``[B, T, ...]``; where no episode ends, only the last final observation is looked at."""
    batch = {name: np.asarray(own) for name, own in golden["batch"].items()}
    floats = ("obs", "action_logp", "rewards", "final_obs")
    batch |= {name: batch[name].astype(np.float32) for name in floats}
    final = np.full_like(batch["obs"], np.nan)
    final[:, -1] = batch["final_obs"]
    actions = batch["actions"].astype(np.int32 if golden["action_dim"] == 2 else np.float32)
    return batch | {"actions": actions, "final_obs": final, "truncateds": np.zeros_like(batch["terminateds"])}


@pytest.mark.parametrize(("algorithm", "case"), CASES)
def test_loss_terms_and_gradients(algorithm, case):
    own = GOLDEN[algorithm][case]
    golden = GOLDEN["modules"][own["module"]]
    learner = make_learner(algorithm, golden, own["settings"])
    before = learner.get_weights()
    results = learner.update(batch=batch_of(golden))["default_policy"]
    for name, value in own["terms"].items():
        np.testing.assert_allclose(results[name], value, rtol=2e-5, atol=1e-5, err_msg=name)
    after = learner.get_weights()
    gradients = {}
    for ref, weight in before.items():
        layer, _, kind = ref.removeprefix("default_policy/").rpartition("/")
        if layer in LAYERS:
            part, index = LAYERS[layer]
            gradients.setdefault(part, {}).setdefault(index, {})[kind] = weight - after[ref]
    ours = {part: [own[i] for i in sorted(own)] for part, own in gradients.items()}
    assert_trees_close(ours, own["gradients"], rtol=1e-4, atol=2e-5)
    assert jax.tree.leaves(ours)
