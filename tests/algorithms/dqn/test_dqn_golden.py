"""DQN against numbers that RLlib itself computed; see tests/reference/make_off_policy_golden.py for their layout."""

import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig, DQNLearner
from jaxrl_stack.core.experience import Experience

GOLDEN = json.loads((Path(__file__).parents[2] / "reference" / "off_policy_golden.json").read_text())
# Where both are on, RLlib subtracts the mean of the advantages over atoms, not over actions, and adds one value to
# all of them: the softmax loses the one as the other, so there is no number to agree with.
CASES = {name: case for name, case in GOLDEN["dqn"].items() if name != "c51_double_dueling"}
CLOSE = {"rtol": 1e-5, "atol": 1e-5}
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
DISCRETE = gym.spaces.Discrete(3)
MID = "default_policy"


class GradientLearner(DQNLearner):
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def configure_optimizers_for_module(self, module_id, config=None):
        self.register_optimizer(
            module_id=module_id,
            optimizer=optax.sgd,
            params=self.get_parameters(self.module[module_id]),
            lr_or_lr_schedule=1.0,
        )


def by_our_names(values):
    """RLlib's parameters, or their gradients."""
    return {
        f"{name.split('.')[0]}/dense_0/{name.rpartition('.')[2]}": np.asarray(value, np.float32)
        for name, value in values.items()
    }


def make_learner(case, learner_class=GradientLearner, **settings):
    settings = {k: v for k, v in {**case["settings"], **settings}.items() if k != "with_loss_mask"}
    config = (
        DQNConfig()
        .environment(observation_space=OBS_SPACE, action_space=DISCRETE)
        .training(**{"grad_clip": None, "target_network_update_freq": 1_000_000, **settings})
        .learners(learner_class=learner_class)
        .rl_module(model_config={"fcnet_hiddens": [8], "fcnet_activation": "tanh", "head_fcnet_hiddens": []})
    )
    learner = config.build_learner()
    learner.set_state({"rl_module": {MID: by_our_names(case["parameters"])}})
    return learner


def batch_of(case):
    dtypes = {"terminateds": bool, "truncateds": bool, "loss_mask": bool, "actions": np.int32}
    return {name: np.asarray(value, dtypes.get(name, np.float32)) for name, value in case["batch"].items()}


@pytest.mark.parametrize("name", ["double_dueling_huber", "c51_double"])
def test_forward(name):
    case = CASES[name]
    forward = make_learner(case).module[MID].forward_train(batch_of(case))
    for key, value in case["forward"].items():
        theirs = np.asarray(value, np.float32)
        if key == "qf_logits":
            # RLlib's has the rows of next_obs after those of obs.
            theirs = theirs[: len(forward[key])]
        np.testing.assert_allclose(forward[key], theirs, **CLOSE, err_msg=key)


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients(name):
    case = CASES[name]
    learner = make_learner(case)
    before = learner.module[MID].get_state()
    rows = learner.update_rows(Experience.of_rows({MID: batch_of(case)}))
    result = learner.row_results()[MID]
    for key, value in case["loss"].items():
        ours = result["total_loss" if key == "loss" else key]
        np.testing.assert_allclose(ours, value, **CLOSE, err_msg=key)
    assert result["qf_loss"] == result["total_loss"]
    np.testing.assert_allclose(rows[(MID, "td_error")], np.asarray(case["td_error"]), **CLOSE)
    after = learner.module[MID].get_state()
    gradients = by_our_names(case["parameter_gradients"])
    assert gradients.keys() == {ref for ref in before if not ref.startswith("_target")}
    for ref, value in before.items():
        expected = gradients.get(ref, np.zeros_like(value))
        np.testing.assert_allclose(value - after[ref], expected, **CLOSE, err_msg=ref)
