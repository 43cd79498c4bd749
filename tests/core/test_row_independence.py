"""Batches are split up and padded for modules that compute each row by itself, and for no others."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.learner.general_advantage_estimation import GeneralAdvantageEstimation
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner import gradient_step
from jaxrl_stack.core.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.rl_module import MultiRLModuleSpec
from jaxrl_stack.core.rl_module.row_independence import can_be_split, rows_are_independent
from jaxrl_stack.ops import chunking

BOX = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
DISCRETE = gym.spaces.Discrete(2)
SMALL = {"fcnet_hiddens": [4]}


class Attends(RLModule, ValueFunctionAPI):
    """Rows attend to each other, without any statistics of the batch in its state."""

    def setup(self):
        self.inner = nnx.Linear(3, 3, rngs=self.rngs)

    def _mixed(self, batch):
        keys = self.inner(batch[Columns.OBS])
        return jax.nn.softmax(keys @ keys.T, axis=-1) @ keys

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self._mixed(batch)[:, :2]}

    def compute_values(self, batch, embeddings=None):
        return self._mixed(batch)[:, 2]


class WithDropout(DefaultPPORLModule):
    rows_are_independent = True

    def setup(self):
        super().setup()
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)


def spec(module_class, model_config=SMALL, **kwargs):
    return RLModuleSpec(
        module_class=module_class, observation_space=BOX, action_space=DISCRETE, model_config=model_config, **kwargs
    )


def ppo_learner(module_class):
    return (
        PPOConfig()
        .environment(observation_space=BOX, action_space=DISCRETE)
        .rl_module(rl_module_spec=spec(module_class))
        .training(lr=0.1, kl_coeff=0.0)
        .build_learner()
    )


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(n, 3)).astype(np.float32),
        "actions": rng.integers(0, 2, n).astype(np.int32),
        "action_logp": np.full(n, np.log(0.5), np.float32),
        "action_dist_inputs": np.zeros((n, 2), np.float32),
        "advantages": rng.normal(size=n).astype(np.float32),
        "value_targets": rng.normal(size=n).astype(np.float32),
    }


class SameAgain(DefaultPPORLModule):
    pass


class Overrides(DefaultPPORLModule):
    def setup(self):
        super().setup()


class OverridesAndSaysSo(Overrides):
    rows_are_independent = True


class OwnCatalog(PPOCatalog):
    def build_pi_head(self, framework="jax", *, rngs):
        return super().build_pi_head(framework, rngs=rngs)


class OwnEncoder(PPOCatalog):
    @functools.cached_property
    def encoder_config(self):
        return self.get_tokenizer_config(self.observation_space, self.model_config_dict)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (spec(DefaultPPORLModule), True),
        (spec(SameAgain), True),
        (spec(OverridesAndSaysSo), True),
        (spec(DefaultPPORLModule, SMALL | {"fcnet_activation": jax.nn.relu}), True),
        (spec(Attends), False),
        (spec(Overrides), False),
        (spec(DefaultPPORLModule, catalog_class=OwnCatalog), False),
        (spec(DefaultPPORLModule, catalog_class=OwnEncoder), False),
        (spec(DefaultPPORLModule, SMALL | {"fcnet_activation": lambda x: jax.nn.softmax(x, axis=0)}), False),
    ],
)
def test_the_last_class_to_define_a_method_has_to_say_so(made, expected):
    assert rows_are_independent(made.build()) is expected


@pytest.mark.parametrize("config", [DQNConfig(), SACConfig(), TQCConfig()], ids=["DQN", "SAC", "TQC"])
def test_default_modules_say_so(config):
    made = spec(config.get_default_rl_module_spec().module_class)
    if isinstance(config, TQCConfig):
        made.action_space = BOX
    assert rows_are_independent(made.build())


def test_random_streams_are_drawn_from_once_per_batch():
    module = spec(WithDropout).build()
    assert rows_are_independent(module) and not can_be_split(module)


@pytest.mark.parametrize("n", [11, 16])
def test_rows_that_see_each_other_are_neither_split_nor_padded(n, monkeypatch):
    results = []
    for rows_per_microbatch in (None, 8):
        monkeypatch.setattr(gradient_step, "gradient_rows_per_microbatch", lambda devices, n=rows_per_microbatch: n)
        learner = ppo_learner(Attends)
        learner.update(batch=rows(n))
        results.append(learner.get_weights())
    learner = ppo_learner(Attends)
    before, batch = learner.get_weights(), rows(n)
    for ref, value in results[0].items():
        np.testing.assert_array_equal(results[1][ref], value, err_msg=ref)

    # The loss of all rows and nothing else, by hand.
    def loss(kernel):
        keys = batch["obs"] @ kernel + before["default_policy/inner/bias"]
        out = jax.nn.softmax(keys @ keys.T, axis=-1) @ keys
        logp = jax.nn.log_softmax(out[:, :2])[np.arange(n), batch["actions"]]
        ratio = jnp.exp(logp - batch["action_logp"])
        surrogate = jnp.minimum(ratio * batch["advantages"], jnp.clip(ratio, 0.7, 1.3) * batch["advantages"])
        return jnp.mean(jnp.square(out[:, 2] - batch["value_targets"])) - jnp.mean(surrogate)

    gradient = jax.grad(loss)(before["default_policy/inner/kernel"])
    step = results[0]["default_policy/inner/kernel"] - before["default_policy/inner/kernel"]
    # Adam's first step has the length of the learning rate, and the gradient's direction.
    np.testing.assert_allclose(step, -0.1 * np.sign(gradient), rtol=1e-3)


@pytest.mark.parametrize(("module_class", "is_split"), [(DefaultPPORLModule, True), (Attends, False)])
def test_values_of_a_block_are_those_of_one_forward_pass(module_class, is_split, monkeypatch):
    calls = []
    whole = chunking.map_rows
    monkeypatch.setattr(chunking, "ROWS_PER_CHUNK", 4)
    monkeypatch.setattr(chunking, "map_rows", lambda *args: calls.append(args) or whole(*args))
    pure = PureModule(MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: spec(module_class)}).build())
    rng = np.random.default_rng(0)
    flags = np.zeros((4, 4), bool)
    columns = {
        "obs": rng.normal(size=(4, 4, 3)).astype(np.float32),
        "final_obs": np.zeros((4, 4, 3), np.float32),
        "rewards": np.zeros((4, 4), np.float32),
        "terminateds": flags,
        "truncateds": flags,
    }
    # With gamma 0 and no rewards, advantages are minus the values, standardised.
    microbatch = GeneralAdvantageEstimation(gamma=0.0, lambda_=1.0)
    ctx = ConnectorContext(params=pure.params, rest=pure.rest, pure=pure)
    out = jax.jit(microbatch.apply)((), {DEFAULT_MODULE_ID: columns}, ctx)[1][DEFAULT_MODULE_ID]
    module = pure.bind(pure.params, pure.rest)[DEFAULT_MODULE_ID]
    values = np.asarray(module.compute_values({Columns.OBS: columns["obs"].reshape(-1, 3)})).reshape(4, 4)
    expected = -(values - values.mean()) / values.std()
    np.testing.assert_allclose(out["advantages"], expected, rtol=1e-4, atol=1e-5)
    assert bool(calls) is is_split
