"""CQL and IQL against numbers that RLlib computed; tests/reference/make_offline_golden.py has their layout."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import gymnasium as gym
import jax
import numpy as np
import optax
import pytest

from jaxrl_stack.algorithms.cql import CQLLearner
from jaxrl_stack.algorithms.cql.cql_learner import NUM_CQL_UPDATES
from jaxrl_stack.algorithms.cql.default_cql_rl_module import DefaultCQLRLModule
from jaxrl_stack.algorithms.iql import IQLLearner
from jaxrl_stack.algorithms.iql.default_iql_rl_module import DefaultIQLRLModule
from jaxrl_stack.algorithms.registry import get_algorithm_config_class
from jaxrl_stack.core.distribution.jax_distribution import SquashedGaussian
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.utils import counters

GOLDEN = json.loads((Path(__file__).parents[1] / "reference" / "offline_golden.json").read_text())
CASES = [(algorithm, name) for algorithm in ("cql", "iql") for name in GOLDEN[algorithm]]
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
OBS_SPACE = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTION_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
MODULE = "default_policy"


class PlainDescent:
    """One step of plain gradient descent with rate 1: the parameters move by exactly minus the gradient."""

    def register_optimizer(self, **kwargs):
        super().register_optimizer(**{**kwargs, "optimizer": optax.sgd, "lr_or_lr_schedule": 1.0})


class OfCQL(PlainDescent, CQLLearner):
    pass


class OfIQL(PlainDescent, IQLLearner):
    pass


class CQLModule(DefaultCQLRLModule):
    """Takes the draws of the file in the place of its own."""

    @functools.cached_property
    def draws(self):
        drawn = GOLDEN["cql"][self.model_config["draws_of"]]["draws"]
        return {name: np.asarray(own, np.float32) for name, own in drawn.items()}

    def get_train_action_dist_cls(self):
        draws = self.draws
        repeated = iter(("raw_actions_repeat", "raw_actions_next_repeat"))

        class Recorded(SquashedGaussian):
            def rsample_and_logp(self, *, key, sample_shape=()):
                # Checks of a module have batches of their own size. The draw is a function of mean and deviation.
                raw = draws["raw_actions"][: self.normal.loc.shape[0]]
                noise = jax.lax.stop_gradient((raw - self.normal.loc) / self.normal.scale)
                raw = self.normal.loc + self.normal.scale * noise
                return self._squash(raw), self._logp_of_raw(raw)

            def sample_and_logp(self, *, key, sample_shape=()):
                name = "raw_actions_next" if self.normal.loc.ndim == 2 else next(repeated)
                raw = draws[name][: self.normal.loc.shape[0]]
                return self._squash(raw), self._logp_of_raw(raw)

        return Recorded

    def _repeated_actions(self, out):
        actions, logps = super()._repeated_actions(out)
        return actions.at[:, : self.num_actions].set(self.draws["actions_random"][: len(actions)]), logps


def ref_of(torch_name: str) -> str:
    name = torch_name.replace(".net.mlp.0.", ".dense_0.").replace(".output_layer.", ".fusion_layers.2.")
    return f"{MODULE}/{name.replace('.', '/')}"


@functools.cache
def updated(algorithm: str, name: str):
    """A learner with the weights of the file, and its update."""
    case = GOLDEN[algorithm][name]
    learner_class, module_class = {"cql": (OfCQL, CQLModule), "iql": (OfIQL, DefaultIQLRLModule)}[algorithm]
    own = {"draws_of": name} if algorithm == "cql" else {}
    config = (
        get_algorithm_config_class(algorithm.upper())()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .training(**case["settings"])
        .learners(learner_class=learner_class)
        .rl_module(
            model_config={**GOLDEN["model_config"], **own}, rl_module_spec=RLModuleSpec(module_class=module_class)
        )
    )
    learner = config.build_learner()
    state = {ref_of(key).removeprefix(f"{MODULE}/"): value for key, value in case["parameters"].items()}
    shapes = {key: np.shape(value) for key, value in learner.module[MODULE].get_state().items()}
    state |= {"log_alpha": np.log(case["settings"].get("initial_alpha", 1.0))}
    assert set(state) == set(shapes)
    learner.set_weights({MODULE: {key: np.asarray(v, np.float32).reshape(shapes[key]) for key, v in state.items()}})
    before = jax.device_get(learner.state)
    if algorithm == "cql":
        # The counter there has counted the update that is under way.
        before.extra[NUM_CQL_UPDATES][MODULE] = np.uint32(case["updates_before"])
    dtypes = {"terminateds": bool}
    batch = {key: np.asarray(v, dtypes.get(key, np.float32)) for key, v in case["batch"].items()}
    update = jax.jit(functools.partial(learner.pure_update.step, axis_name=None))
    after, metrics, _ = update(before, {MODULE: batch}, learner.settings(), counters.from_int(10_000))
    return case, learner, batch, before, after, metrics


@pytest.mark.parametrize(("algorithm", "name"), CASES, ids=["-".join(case) for case in CASES])
def test_forward_pass_losses_and_gradients(algorithm, name):
    """One update of the training loop."""
    case, learner, batch, before, after, metrics = updated(algorithm, name)
    out = learner.module[MODULE].forward_train(batch)
    for key, value in case["forward"].items():
        np.testing.assert_allclose(out[key], np.asarray(value), **TOLERANCE, err_msg=key)
    for key, value in (case["losses"] | case.get("logged", {})).items():
        np.testing.assert_allclose(metrics[(MODULE, key)], value, **TOLERANCE, err_msg=key)
    trained = {ref_of(key) for key in case["parameter_gradients"]}
    assert trained == set(before.params) - ({f"{MODULE}/log_alpha"} if algorithm == "iql" else set())
    for key, gradient in case["parameter_gradients"].items():
        moved = before.params[ref_of(key)] - np.asarray(after.params[ref_of(key)])
        np.testing.assert_allclose(moved, np.asarray(gradient).reshape(moved.shape), rtol=1e-4, atol=2e-5, err_msg=key)
