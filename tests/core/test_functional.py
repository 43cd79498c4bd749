"""Modules as pure functions of flat dicts: in grad, scan and vmap, with layers that draw random numbers."""

from __future__ import annotations

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from test_rl_module import shared_spec

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.rl_module import MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.functional import PureModule

SPACES = {"observation_space": gym.spaces.Box(-1, 1, (3,)), "action_space": gym.spaces.Discrete(2)}
OBS = jnp.asarray(np.random.default_rng(0).normal(size=(16, 3)), jnp.float32)


class Noisy(RLModule):
    """Dropout, batch normalisation, layers in a list, a key of its own and a NumPy constant."""

    def setup(self):
        self.layers = nnx.List([nnx.Linear(3, 8, rngs=self.rngs), nnx.Linear(8, 2, rngs=self.rngs)])
        self.norm = nnx.BatchNorm(8, rngs=self.rngs)
        self.dropout = nnx.Dropout(0.5, rngs=self.rngs)
        self.constant = np.ones(3, np.float32)

    def _forward_train(self, batch):
        x = jnp.tanh(self.norm(self.layers[0](batch[Columns.OBS] * self.constant)))
        return {Columns.ACTION_DIST_INPUTS: self.layers[1](self.dropout(x))}


class Linen(RLModule):
    """A wrapped linen module."""

    def setup(self):
        net = linen.Sequential([linen.Dense(8), linen.tanh, linen.Dense(2)])
        self.net = nnx.bridge.ToNNX(net, rngs=self.rngs)
        self.net.lazy_init(jnp.zeros((1, 3)))

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.net(batch[Columns.OBS])}


@pytest.fixture(scope="module")
def noisy():
    return PureModule(MultiRLModuleSpec(rl_module_specs={"p": RLModuleSpec(Noisy, **SPACES)}).build(seed=0))


@pytest.fixture(scope="module")
def linen_pure():
    return PureModule(MultiRLModuleSpec(rl_module_specs={"p": RLModuleSpec(Linen, **SPACES)}).build(seed=0))


def loss(pure, params, rest):
    module = pure.bind(params, rest)
    outputs = module["p"].forward_train({Columns.OBS: OBS})[Columns.ACTION_DIST_INPUTS]
    return jnp.mean(jnp.square(outputs - OBS[:, :2])), pure.unbind(module)[1]


def train(pure, steps=60):
    optimizer = optax.adam(3e-2)

    def step(carry, _):
        params, rest, opt = carry
        (value, rest), grads = jax.value_and_grad(lambda p: loss(pure, p, rest), has_aux=True)(params)
        updates, opt = optimizer.update(grads, opt)
        return (optax.apply_updates(params, updates), rest, opt), value

    carry = (pure.params, pure.rest, optimizer.init(pure.params))
    return jax.jit(lambda carry: jax.lax.scan(step, carry, None, length=steps))(carry)


def test_refs_are_paths_with_the_module_id(noisy):
    assert noisy.module_ids == ("p",)
    assert set(noisy.params) == {
        "p/layers/0/kernel",
        "p/layers/0/bias",
        "p/layers/1/kernel",
        "p/layers/1/bias",
        "p/norm/scale",
        "p/norm/bias",
    }
    assert set(noisy.rest) == {"p/norm/mean", "p/norm/var", "p/dropout/rngs/count", "p/dropout/rngs/key"}
    assert noisy.module_refs("p") == list(noisy.params)
    with pytest.raises(KeyError, match="No module 'q'"):
        noisy.module_refs("q")


def test_initial_values_are_copies(noisy):
    module = noisy.template
    kernel = module["p"].layers[0].kernel[...]
    ours = noisy.params["p/layers/0/kernel"]
    np.testing.assert_array_equal(kernel, ours)
    assert kernel.unsafe_buffer_pointer() != ours.unsafe_buffer_pointer()


def test_bind_and_unbind_are_inverse(noisy):
    params, rest = noisy.unbind(noisy.bind(noisy.params, noisy.rest))
    assert list(params) == list(noisy.params) and list(rest) == list(noisy.rest)
    assert all(params[ref] is noisy.params[ref] for ref in params)
    assert all(rest[ref] is noisy.rest[ref] for ref in rest)


def test_random_layers_train_inside_grad_and_scan(noisy):
    (params, rest, _), values = train(noisy)
    assert values[-10:].mean() < 0.6 * values[:5].mean()
    assert rest["p/dropout/rngs/count"] == 60
    np.testing.assert_array_equal(
        jax.random.key_data(rest["p/dropout/rngs/key"]), jax.random.key_data(noisy.rest["p/dropout/rngs/key"])
    )
    assert np.abs(rest["p/norm/mean"]).max() > 0
    # Another mask each step: same weights, different outputs.
    first, rest_after = loss(noisy, params, rest)
    second, _ = loss(noisy, params, rest_after)
    assert first != second


def test_reseed(noisy, linen_pure):
    rest = noisy.reseed(noisy.rest | {"p/dropout/rngs/count": jnp.uint32(5)}, jax.random.key(9))
    assert rest.keys() == noisy.rest.keys() and rest["p/dropout/rngs/count"] == 0
    value = jax.jit(lambda rest: loss(noisy, noisy.params, rest)[0])
    one, two = noisy.reseed(rest, jax.random.key(9)), noisy.reseed(rest, jax.random.key(8))
    assert value(one) == value(rest)
    assert value(two) != value(one)
    assert jax.tree.structure(rest) == jax.tree.structure(noisy.rest)
    population = jax.vmap(lambda key: noisy.reseed(noisy.rest, key))(jax.random.split(jax.random.key(0), 3))
    values = jax.jit(jax.vmap(value))(population)
    assert len(set(np.asarray(values).tolist())) == 3
    pure = PureModule(shared_spec().build(seed=0))
    assert pure.reseed(pure.rest, jax.random.key(1)) == pure.rest == {}


def test_a_wrapped_linen_module_trains(linen_pure):
    assert len(linen_pure.params) == 4
    _, values = train(linen_pure)
    assert values[-1] < 0.2 * values[0]
    module = linen_pure.template["p"]
    assert module.forward_inference({"obs": np.asarray(OBS)})["action_dist_inputs"].shape == (16, 2)
    assert {name.split("/")[-1] for name in module.get_state()} == {"kernel", "bias"}


def test_the_public_forward_pass_draws_new_numbers_each_call():
    module = RLModuleSpec(Noisy, **SPACES).build(seed=0)
    first, second = (module.forward_train({"obs": OBS})["action_dist_inputs"] for _ in range(2))
    assert np.abs(first - second).max() > 0
    assert module.dropout.rngs.count[...] == 2


def test_a_shared_part_belongs_to_its_own_module_id():
    module = shared_spec().build(seed=0)
    pure = PureModule(module)
    assert list(pure.module_refs("shared_encoder")) == ["shared_encoder/encoder/bias", "shared_encoder/encoder/kernel"]
    assert pure.module_refs("a_first") == ["a_first/pi/bias", "a_first/pi/kernel"]
    assert len(pure.params) == 6
    assert set(pure.refs_of(module["z_last"])) == {*pure.module_refs("z_last"), *pure.module_refs("shared_encoder")}
    assert pure.refs_of(module["z_last"].encoder.kernel) == ["shared_encoder/encoder/kernel"]
    bound = pure.bind(pure.params, pure.rest)
    assert bound["a_first"].encoder is bound["z_last"].encoder

    def total(params):
        outputs = pure.bind(params, pure.rest).forward_train({"a_first": {"obs": OBS}, "z_last": {"obs": OBS}})
        return sum(out["action_dist_inputs"].sum() for out in outputs.values())

    gradient = jax.grad(total)(pure.params)
    assert np.abs(gradient["shared_encoder/encoder/kernel"]).max() > 0
    with pytest.raises(ValueError, match="that are not in the Learner's module"):
        pure.refs_of(shared_spec().build(seed=0)["z_last"])


def test_arrays_outside_of_the_modules_are_refused():
    class Loose(MultiRLModule):
        def setup(self):
            self.encoder = nnx.Linear(2, 2, rngs=self.rngs)
            super().setup()

    with pytest.raises(ValueError, match="Loose has the array 'encoder/bias' outside"):
        PureModule(Loose(rngs=0))


def test_variables_that_appear_in_a_forward_pass_are_named():
    class Grows(RLModule):
        def setup(self):
            self.pi = nnx.Linear(3, 2, rngs=self.rngs)

        def _forward(self, batch):
            self.noted = nnx.Intermediate(batch["obs"])
            if self.model_config.get("grow"):
                self.count = nnx.BatchStat(jnp.zeros(()))
            return {Columns.ACTION_DIST_INPUTS: self.pi(batch["obs"])}

    assert Grows(rngs=0).forward_train({"obs": OBS})["action_dist_inputs"].shape == (16, 2)
    with pytest.raises(ValueError, match=r"\['count'\] of Grows appeared"):
        Grows(rngs=0, model_config={"grow": True}).forward_train({"obs": OBS})
