"""SAC and TQC against numbers that RLlib itself computed; see tests/reference/make_off_policy_golden.py for their
layout."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.registry import get_algorithm_config_class
from jaxrl_stack.algorithms.sac import SACLearner
from jaxrl_stack.algorithms.sac.default_sac_rl_module import DefaultSACRLModule
from jaxrl_stack.algorithms.tqc import TQCLearner
from jaxrl_stack.algorithms.tqc.default_tqc_rl_module import DefaultTQCRLModule
from jaxrl_stack.core.distribution.jax_distribution import SquashedGaussian
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.utils import counters

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "off_policy_golden.json").read_text())
CASES = {f"{algorithm}-{name}": case for algorithm in ("sac", "tqc") for name, case in GOLDEN[algorithm].items()}
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACES = {"box": gym.spaces.Box(-1.0, 1.0, (2,), np.float32), "discrete": gym.spaces.Discrete(3)}
MODULE = "default_policy"
# Outputs of TQC's module at RLlib.
NAMED_HERE = {"logp_curr": "logp_resampled", "logp_next": "logp_next_resampled"}
NOT_RETURNED = ("raw_actions", "raw_actions_next", "actions_curr", "actions_next")
TEN_THOUSAND = counters.from_int(10_000)


class PlainDescent:
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def register_optimizer(self, **kwargs):
        super().register_optimizer(**{**kwargs, "optimizer": optax.sgd, "lr_or_lr_schedule": 1.0})


class OfSAC(PlainDescent, SACLearner):
    pass


class OfTQC(PlainDescent, TQCLearner):
    pass


class RLlibsDraws:
    """Takes the draws of the file in the place of its own."""

    def get_train_action_dist_cls(self):
        forward = CASES[self.model_config["draws_of"]]["forward"]
        if "raw_actions" not in forward:
            return super().get_train_action_dist_cls()

        class Recorded(SquashedGaussian):
            def drawn(self, name):
                # Checks of a module have batches of their own size.
                return np.asarray(forward[name], np.float32)[: self.normal.loc.shape[0]]

            def rsample_and_logp(self, *, key, sample_shape=()):
                raw = self.drawn("raw_actions")
                # The draw as a function of mean and deviation, so that its gradient reaches them.
                noise = jax.lax.stop_gradient((raw - self.normal.loc) / self.normal.scale)
                raw = self.normal.loc + self.normal.scale * noise
                return self._squash(raw), self._logp_of_raw(raw)

            def sample_and_logp(self, *, key, sample_shape=()):
                raw = self.drawn("raw_actions_next")
                return self._squash(raw), self._logp_of_raw(raw)

        return Recorded


class SACModule(RLlibsDraws, DefaultSACRLModule):
    pass


class TQCModule(RLlibsDraws, DefaultTQCRLModule):
    pass


def ref_of(torch_name: str) -> str:
    """Our ref for a name in the file: "qf.net.mlp.0.kernel" is "default_policy/qf/dense_0/kernel"."""
    if torch_name == "log_alpha":
        return f"{MODULE}/log_alpha"
    name = torch_name.replace(".net.mlp.0.", ".dense_0.").replace(".output_layer.", ".fusion_layers.2.")
    return f"{MODULE}/{name.replace('.', '/')}"


@functools.cache
def learner_of(case: str) -> SACLearner:
    settings = dict(CASES[case]["settings"])
    action_space = ACTION_SPACES[settings.pop("action_space")]
    algorithm = case.partition("-")[0].upper()
    learner_class, module_class = {"SAC": (OfSAC, SACModule), "TQC": (OfTQC, TQCModule)}[algorithm]
    config = (
        get_algorithm_config_class(algorithm)()
        .environment(observation_space=OBS_SPACE, action_space=action_space)
        .training(**settings)
        .learners(learner_class=learner_class)
        .rl_module(
            model_config={**GOLDEN["model_config"], "draws_of": case},
            rl_module_spec=RLModuleSpec(module_class=module_class),
        )
    )
    return config.build_learner()


@pytest.fixture(params=list(CASES))
def case(request):
    return request.param


@pytest.fixture
def learner(case):
    """With the weights of the file, in the module and in its targets."""
    learner = learner_of(case)
    state = {ref_of(name).removeprefix(f"{MODULE}/"): value for name, value in CASES[case]["parameters"].items()}
    shapes = {name: np.shape(value) for name, value in learner.module[MODULE].get_state().items()}
    state |= {"log_alpha": np.log(CASES[case]["settings"]["initial_alpha"])}
    assert set(state) == set(shapes)
    learner.set_weights({MODULE: {name: np.asarray(v, np.float32).reshape(shapes[name]) for name, v in state.items()}})
    return learner


def batch_of(case: str) -> dict[str, np.ndarray]:
    is_discrete = CASES[case]["settings"]["action_space"] == "discrete"
    dtypes = {"terminateds": bool, "truncateds": bool, "actions": np.int32 if is_discrete else np.float32}
    return {name: np.asarray(v, dtypes.get(name, np.float32)) for name, v in CASES[case]["batch"].items()}


def test_forward_train(case, learner):
    golden = {NAMED_HERE.get(name, name): value for name, value in CASES[case]["forward"].items()}
    out = learner.module[MODULE].forward_train(batch_of(case))
    for name in NOT_RETURNED:
        golden.pop(name, None)
    if "qf_curr" in golden:
        golden["q_curr"] = np.mean(golden.pop("qf_curr"), axis=(1, 2))
    assert golden.keys() <= out.keys()
    for name, value in golden.items():
        np.testing.assert_allclose(out[name], np.asarray(value), **TOLERANCE, err_msg=name)


def test_losses_gradients_and_td_errors(case, learner):
    """One update of the training loop."""
    golden, state = CASES[case], jax.device_get(learner.state)
    update = jax.jit(functools.partial(learner.pure_update.step, axis_name=None))
    new_state, metrics, rows = update(state, {MODULE: batch_of(case)}, learner.settings(), TEN_THOUSAND)
    for name, value in (golden["losses"] | golden.get("logged", {})).items():
        np.testing.assert_allclose(metrics[(MODULE, name)], value, **TOLERANCE, err_msg=name)
    np.testing.assert_allclose(metrics[(MODULE, "total_loss")], sum(golden["losses"].values()), **TOLERANCE)
    assert metrics[(MODULE, "target_entropy")] == golden["target_entropy"]
    np.testing.assert_allclose(rows[(MODULE, "td_error")], golden["td_error"], **TOLERANCE)
    np.testing.assert_allclose(metrics[(MODULE, "td_error_mean")], np.mean(golden["td_error"]), **TOLERANCE)
    assert {ref_of(name) for name in golden["parameter_gradients"]} == set(state.params)
    for name, gradient in golden["parameter_gradients"].items():
        moved = state.params[ref_of(name)] - np.asarray(new_state.params[ref_of(name)])
        np.testing.assert_allclose(moved, np.asarray(gradient).reshape(moved.shape), **TOLERANCE, err_msg=name)
    # The target networks follow the new weights, by tau.
    ref = f"{MODULE}/target_{'qf_heads/0' if case.startswith('tqc') else 'qf'}/dense_0/kernel"
    new = new_state.params[ref.replace("target_", "")]
    np.testing.assert_allclose(new_state.rest[ref], 0.995 * state.rest[ref] + 0.005 * new, rtol=1e-5, atol=1e-7)
