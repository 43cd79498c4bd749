"""RLModule, MultiRLModule, their specs, and PPO's default module."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.algorithms.ppo.ppo_catalog import PPOCatalog
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution import Categorical, DiagGaussian, MultiCategorical
from jaxrl_stack.core.rl_module import DefaultModelConfig, MultiRLModule, MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import InferenceOnlyAPI, TargetNetworkAPI, ValueFunctionAPI
from jaxrl_stack.core.rl_module.target_networks import make_target_network

OBS_SPACE = gym.spaces.Box(-1, 1, (3,))
ACTION_SPACE = gym.spaces.Discrete(2)
OBS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
SMALL = DefaultModelConfig(fcnet_hiddens=[4])


def ppo_spec(**kwargs):
    defaults = {
        "module_class": DefaultPPORLModule,
        "observation_space": OBS_SPACE,
        "action_space": ACTION_SPACE,
        "model_config": SMALL,
        "catalog_class": PPOCatalog,
    }
    return RLModuleSpec(**(defaults | kwargs))


class Linear(RLModule):
    """A user's module with everything that is not a parameter, too."""

    def setup(self):
        self.scale = np.array([1.0, 2.0, 3.0])
        self.offset = jnp.zeros(())
        self.names = ["a", "b"]
        self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))
        self.pi = nnx.Linear(3, self.model_config.get("outputs", 2), rngs=self.rngs)
        self.traces = Traces()

    def _forward(self, batch):
        self.traces.count += 1
        assert isinstance(self.scale, np.ndarray)
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS] * self.scale)}

    def _forward_train(self, batch):
        self.calls[...] += 1
        return self._forward(batch)


class Traces:
    count = 0


class TimeDependent(Linear):
    def _forward_exploration(self, batch, t=0, double=False):
        outputs = self._forward(batch)
        return {**outputs, "t": jnp.asarray(t) * (2 if double else 1)}


def build(cls=Linear, seed=0, **kwargs):
    return cls(observation_space=OBS_SPACE, action_space=ACTION_SPACE, rngs=seed, **kwargs)


@pytest.fixture(scope="module")
def linear():
    return build()


def test_forward_passes_compute_and_compile_once(linear):
    kernel, bias = np.asarray(linear.pi.kernel[...]), np.asarray(linear.pi.bias[...])
    expected = (OBS * linear.scale) @ kernel + bias
    for forward in (linear.forward_inference, linear.forward_exploration, linear.forward_train):
        np.testing.assert_allclose(forward({"obs": OBS})["action_dist_inputs"], expected, rtol=1e-5)
    before = linear.traces.count
    linear.forward_inference({"obs": OBS + 1})
    assert linear.traces.count == before
    # New weights and a new shape of the batch: any leading axes work.
    linear.pi.bias[...] = jnp.array([100.0, 0.0])
    assert linear.forward_inference({"obs": OBS})["action_dist_inputs"].min() < 50
    assert linear.forward_inference({"obs": OBS})["action_dist_inputs"][:, 0].min() > 50
    assert linear.traces.count == before
    assert linear.forward_inference({"obs": OBS[None, :4]})["action_dist_inputs"].shape == (1, 4, 2)
    assert linear.forward_inference({"obs": OBS[0]})["action_dist_inputs"].shape == (2,)


def test_untrained_state_changes_in_forward_train(linear):
    before = int(linear.calls[...])
    linear.forward_train({"obs": OBS})
    linear.forward_inference({"obs": OBS})
    assert int(linear.calls[...]) == before + 1


def test_changed_attributes_are_never_stale():
    module = build()
    first = module.forward_inference({"obs": OBS})["action_dist_inputs"]
    module.scale = np.zeros(3)
    changed = module.forward_inference({"obs": OBS})["action_dist_inputs"]
    np.testing.assert_array_equal(changed, np.broadcast_to(module.pi.bias[...], (5, 2)))
    assert np.abs(first - changed).max() > 0


def test_keyword_arguments_reach_a_forward_pass_that_takes_them():
    module = build(TimeDependent)
    assert module.forward_exploration({"obs": OBS}, t=3)["t"] == 3
    before = module.traces.count
    assert module.forward_exploration({"obs": OBS}, t=4)["t"] == 4
    assert module.traces.count == before
    assert module.forward_exploration({"obs": OBS}, t=4, double=True)["t"] == 8
    # This one has no use for t.
    build().forward_exploration({"obs": OBS}, t=4)
    with pytest.raises(TypeError, match="nonsense"):
        build().forward_exploration({"obs": OBS}, nonsense=4)


def test_forward_passes_inside_a_trace_and_without_gradients(linear):
    class Plain(Linear):
        _forward_train = RLModule._forward_train

    module = build(Plain)
    gradient = jax.grad(lambda obs: module.forward_train({"obs": obs})["action_dist_inputs"].sum())(OBS)
    np.testing.assert_allclose(gradient[0], (np.diag(module.scale) @ module.pi.kernel[...]).sum(-1), rtol=1e-5)
    for forward in (module.forward_inference, module.forward_exploration):
        assert not jax.grad(lambda obs, f=forward: f({"obs": obs})["action_dist_inputs"].sum())(OBS).any()
    with pytest.raises(RuntimeError, match=r"use pure.bind\(\) and pure.unbind\(\)"):
        jax.jit(linear.forward_train)({"obs": OBS})


def test_default_distributions_follow_the_action_space():
    assert build().get_train_action_dist_cls() is Categorical
    module = Linear(action_space=gym.spaces.MultiDiscrete([2, 3]), rngs=0)
    assert issubclass(module.get_exploration_action_dist_cls(), MultiCategorical)
    with pytest.raises(ValueError, match="no action_space"):
        Linear(rngs=0).get_inference_action_dist_cls()


def test_seeds_decide_the_weights():
    first, same, other = build(seed=1), build(seed=1), build(seed=2)
    np.testing.assert_array_equal(first.pi.kernel[...], same.pi.kernel[...])
    assert np.abs(first.pi.kernel[...] - other.pi.kernel[...]).max() > 0
    np.random.seed(4)
    unseeded = Linear()
    assert np.abs(Linear().pi.kernel[...] - unseeded.pi.kernel[...]).max() > 0
    np.random.seed(4)
    np.testing.assert_array_equal(Linear().pi.kernel[...], unseeded.pi.kernel[...])


def test_state_goes_out_and_in():
    module, other = build(), build(seed=1)
    state = module.get_state()
    assert state.keys() == {"pi/kernel", "pi/bias", "calls", "offset"}
    assert all(type(value) is np.ndarray for value in state.values())
    assert module.get_state("pi").keys() == {"pi/kernel", "pi/bias"}
    assert module.get_state(not_components=["pi", "offset"]).keys() == {"calls"}
    other.forward_inference({"obs": OBS})
    other.set_state(state)
    np.testing.assert_array_equal(
        other.forward_inference({"obs": OBS})["action_dist_inputs"],
        module.forward_inference({"obs": OBS})["action_dist_inputs"],
    )
    state["pi/kernel"][:] = 0
    assert np.abs(other.pi.kernel[...]).max() > 0
    other.set_state({"offset": 2.0})
    assert other.offset == 2.0
    with pytest.raises(ValueError, match=r"'pi/kernl'.*'pi/kernel'"):
        other.set_state({"pi/kernl": state["pi/kernel"]})
    with pytest.raises(ValueError, match=r"'pi/bias' of shape \(3,\).*\(2,\)"):
        other.set_state({"pi/bias": np.zeros(3)})


def test_modules_can_be_copied_and_pickled():
    module = ppo_spec().build(seed=0)
    expected = module.forward_inference({"obs": OBS})["action_dist_inputs"]
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        np.testing.assert_array_equal(other.forward_inference({"obs": OBS})["action_dist_inputs"], expected)
        other.pi.dense_0.bias[...] += 1
    np.testing.assert_array_equal(module.forward_inference({"obs": OBS})["action_dist_inputs"], expected)


def test_print_gives_a_parameter_table(capsys):
    print(ppo_spec().build(seed=0))
    table = capsys.readouterr().out
    assert "DefaultPPORLModule: Box(-1.0, 1.0, (3,), float32) -> Discrete(2)" in table
    row = next(line for line in table.splitlines() if line.startswith("encoder/shared/dense_0/kernel"))
    assert row.split() == ["encoder/shared/dense_0/kernel", "(3,", "4)", "float32", "12"]
    assert "total: 31 trained" in table


def test_constructor_mistakes_have_clear_errors():
    class NoSuper(RLModule):
        def __init__(self, **kwargs):
            self.x = 1

    with pytest.raises(TypeError, match=r"NoSuper.__init__\(\) does not call super"):
        NoSuper()

    class PlainList(RLModule):
        def setup(self):
            self.layers = [nnx.Linear(3, 2, rngs=self.rngs)]

    class InnerDict(RLModule):
        def setup(self):
            self.table = {"low": np.zeros(3)}

    for cls in (PlainList, InnerDict):
        with pytest.raises(ValueError, match=rf"{cls.__name__} has arrays.*nnx.List"):
            cls()
    with pytest.raises(ValueError, match="keyword arguments"):
        RLModule({"observation_space": OBS_SPACE})
    with pytest.raises(ValueError, match="inference_only=True and learner_only=True"):
        RLModule(inference_only=True, learner_only=True)
    with pytest.raises(TypeError, match="observation_spce"):
        RLModule(observation_spce=OBS_SPACE)
    with pytest.raises(NotImplementedError, match=r"Override _forward\(batch\)"):
        RLModule().forward_inference({"obs": OBS})
    with pytest.raises(AttributeError, match="Create layers in setup"):
        build().rngs  # noqa: B018

    class Bad(RLModule):
        def setup(self):
            raise ValueError("the user's own error")

    with pytest.raises(ValueError, match="^the user's own error$"):
        Bad()

    class Abstract(RLModule, ValueFunctionAPI):
        pass

    with pytest.raises(TypeError, match="compute_values"):
        Abstract()


def test_an_overridden_constructor_may_build_layers_after_super():
    class Late(RLModule):
        def __init__(self, width=4, **kwargs):
            super().__init__(**kwargs)
            self.pi = nnx.Linear(3, width, rngs=self.rngs)

    assert Late(width=5, rngs=0).pi.kernel.shape == (3, 5)


# PPO's default module.


@pytest.mark.parametrize("shared", [True, False])
def test_default_ppo_module_computes_what_it_says(shared):
    module = ppo_spec(model_config={"fcnet_hiddens": [4], "vf_share_layers": shared}).build(seed=0)

    def dense(layer, x):
        return x @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])

    actor = module.encoder.shared if shared else module.encoder.actor
    critic = module.encoder.shared if shared else module.encoder.critic
    logits = dense(module.pi.dense_0, np.tanh(dense(actor.dense_0, OBS)))
    embeddings = np.tanh(dense(critic.dense_0, OBS))
    values = dense(module.vf.dense_0, embeddings)[:, 0]
    for forward in (module.forward_inference, module.forward_exploration):
        outputs = forward({"obs": OBS})
        assert outputs.keys() == {Columns.ACTION_DIST_INPUTS}
        np.testing.assert_allclose(outputs[Columns.ACTION_DIST_INPUTS], logits, rtol=1e-4, atol=1e-6)
    outputs = module.forward_train({"obs": OBS})
    np.testing.assert_allclose(outputs[Columns.ACTION_DIST_INPUTS], logits, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(outputs[Columns.EMBEDDINGS], embeddings, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(module.compute_values({"obs": OBS}), values, rtol=1e-4, atol=1e-6)
    by_embeddings = module.compute_values({}, embeddings=outputs[Columns.EMBEDDINGS])
    np.testing.assert_allclose(by_embeddings, values, rtol=1e-4, atol=1e-6)
    assert module.compute_values({"obs": OBS.reshape(1, 5, 3)}).shape == (1, 5)


@pytest.mark.parametrize("shared", [True, False])
def test_inference_only_leaves_out_what_only_training_needs(shared):
    config = {"fcnet_hiddens": [4], "vf_share_layers": shared}
    full = ppo_spec(model_config=config).build(seed=0)
    small = ppo_spec(model_config=config, inference_only=True).build(seed=0)
    assert small.get_state().keys() == full.get_state(inference_only=True).keys()
    assert full.get_state().keys() - small.get_state().keys() == {
        name for name in full.get_state() if name.startswith(("vf/", "encoder/critic/"))
    }
    np.testing.assert_array_equal(
        small.forward_inference({"obs": OBS})["action_dist_inputs"],
        full.forward_inference({"obs": OBS})["action_dist_inputs"],
    )
    other = ppo_spec(model_config=config).build(seed=5)
    small.set_state(other.get_state())
    np.testing.assert_array_equal(small.pi.dense_0.kernel[...], other.pi.dense_0.kernel[...])
    with pytest.raises(AttributeError, match="vf was left out because the module is inference_only"):
        small.compute_values({"obs": OBS}, embeddings=OBS[:, :4])


def test_gaussian_policies():
    box = gym.spaces.Box(-1, 1, (2,))
    for free in (False, True):
        module = ppo_spec(action_space=box, model_config={"fcnet_hiddens": [4], "free_log_std": free}).build(seed=0)
        assert module.get_train_action_dist_cls() is DiagGaussian
        outputs = module.forward_train({"obs": OBS})[Columns.ACTION_DIST_INPUTS]
        assert outputs.shape == (5, 4)
        assert bool((outputs[:, 2:] == outputs[:1, 2:]).all()) is free


def test_default_module_refuses_unknown_settings_and_missing_spaces():
    with pytest.raises(ValueError, match="'framestack'"):
        ppo_spec(model_config={"framestack": True}).build()
    with pytest.raises(ValueError, match="PPOCatalog got observation_space=None.*Pass both"):
        DefaultPPORLModule()

    class Mine(DefaultPPORLModule):
        def setup(self):
            super().setup()
            self.extra = self.model_config["extra"]

    mine = RLModuleSpec(Mine, OBS_SPACE, ACTION_SPACE, model_config={"fcnet_hiddens": [4], "extra": 7}).build(seed=0)
    assert mine.extra == 7


def test_torch_and_old_names():
    with pytest.raises(ImportError, match="DefaultPPORLModule"):
        from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import PPOTorchRLModule  # noqa: F401
    with pytest.raises(ImportError, match="Flax NNX"):
        from jaxrl_stack.core.rl_module.rl_module import TorchRLModule  # noqa: F401
    with pytest.warns(DeprecationWarning, match="old name. Use `RLModuleSpec`"):
        from jaxrl_stack.core.rl_module.rl_module import SingleAgentRLModuleSpec
    with pytest.warns(DeprecationWarning, match="old name. Use `MultiRLModuleSpec`"):
        from jaxrl_stack.core.rl_module.multi_rl_module import MultiAgentRLModuleSpec
    assert SingleAgentRLModuleSpec is RLModuleSpec and MultiAgentRLModuleSpec is MultiRLModuleSpec


# Specs.


def test_spec_round_trips():
    spec = ppo_spec(model_config=DefaultModelConfig(fcnet_hiddens=[4], fcnet_activation="relu"), learner_only=True)
    data = spec.to_dict()
    assert data["module_class"] == "jaxrl_stack.algorithms.ppo.default_ppo_rl_module:DefaultPPORLModule"
    again = RLModuleSpec.from_dict(data)
    assert again.module_class is DefaultPPORLModule and again.catalog_class is PPOCatalog
    assert again.observation_space == OBS_SPACE and again.action_space == ACTION_SPACE
    assert again.model_config["fcnet_activation"] == "relu" and again.learner_only
    module = spec.build(seed=0)
    from_module = RLModuleSpec.from_module(module)
    assert from_module.to_dict() == data
    assert RLModuleSpec.from_dict(RLModuleSpec().to_dict()) == RLModuleSpec()
    multi = MultiRLModuleSpec(rl_module_specs={"a": spec}, modules_to_load={"a"})
    again = MultiRLModuleSpec.from_dict(multi.to_dict())
    assert again.multi_rl_module_class is MultiRLModule and again.modules_to_load == {"a"}
    assert again["a"].to_dict() == data

    class Local(RLModule):
        pass

    with pytest.raises(ValueError, match="defined inside a function"):
        RLModuleSpec(Local).to_dict()


def test_spec_update():
    spec = RLModuleSpec(observation_space=OBS_SPACE, model_config={"a": 1})
    other = RLModuleSpec(Linear, action_space=ACTION_SPACE, model_config={"b": 1}, inference_only=True)
    filled = copy.copy(spec)
    filled.update(other, override=False)
    assert filled.module_class is Linear and filled.model_config == {"a": 1} and not filled.inference_only
    spec.update(other)
    assert spec.model_config == {"b": 1} and spec.inference_only and spec.observation_space == OBS_SPACE
    with pytest.raises(ValueError, match="needs an RLModuleSpec"):
        spec.update({"module_class": Linear})


def test_spec_errors():
    with pytest.raises(ValueError, match="needs a class"):
        RLModuleSpec().build()
    with pytest.raises(ValueError, match="Use model_config="):
        RLModuleSpec(model_config_dict={})
    with pytest.raises(ValueError, match="Use rl_module_specs="):
        MultiRLModuleSpec(module_specs={})
    with pytest.raises(TypeError, match="Use multi_rl_module_class="):
        MultiRLModuleSpec(marl_module_class=MultiRLModule)
    with pytest.raises(ValueError, match="must be a dict"):
        MultiRLModuleSpec(rl_module_specs={"a": Linear})
    with pytest.raises(ValueError, match="Use MultiRLModuleSpec.from_module"):
        RLModuleSpec.from_module(MultiRLModule())
    with pytest.raises(ValueError, match="Use RLModuleSpec.from_module"):
        MultiRLModuleSpec.from_module(build())
    with pytest.raises(KeyError, match="No spec for module 'b'"):
        MultiRLModuleSpec(rl_module_specs={"a": ppo_spec()})["b"]
    with pytest.raises(FileNotFoundError, match="No checkpoint at"):
        ppo_spec(load_state_path="x").build()


def test_multi_spec_edits():
    spec = ppo_spec().as_multi_rl_module_spec()
    assert spec.as_multi_rl_module_spec() is spec and DEFAULT_MODULE_ID in spec
    spec.add_modules({"a": RLModuleSpec(observation_space=OBS_SPACE), "b": ppo_spec()})
    spec.add_modules({"a": RLModuleSpec(Linear, action_space=ACTION_SPACE)}, override=False)
    assert spec["a"].module_class is Linear and spec["a"].observation_space == OBS_SPACE
    spec.remove_modules("b")
    spec.remove_modules([DEFAULT_MODULE_ID, "absent"])
    assert list(spec.rl_module_specs) == ["a"] and spec.module_specs is spec.rl_module_specs
    assert dataclasses.replace(spec, model_config={}).module_specs.keys() == {"a"}
    with pytest.raises(ValueError, match="Use rl_module_specs="):
        MultiRLModuleSpec(module_specs={})
    spec.update(RLModuleSpec(model_config={"outputs": 7}))
    assert spec["a"].model_config == {"outputs": 7}
    spec.update(MultiRLModuleSpec(rl_module_specs={"a": ppo_spec(), "c": ppo_spec()}, model_config={"x": 1}))
    assert spec["a"].module_class is Linear and "c" in spec and spec.model_config == {"x": 1}
    with pytest.raises(ValueError, match="needs a MultiRLModuleSpec or an RLModuleSpec"):
        spec.update({})


# Several modules.


class SharedEncoder(RLModule):
    def setup(self):
        self.encoder = nnx.Linear(3, 4, rngs=self.rngs)

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.encoder(batch[Columns.OBS])[..., :2]}


class UsesShared(RLModule):
    def setup(self):
        self.pi = nnx.Linear(4, 2, rngs=self.rngs)

    def _forward(self, batch):
        return {Columns.ACTION_DIST_INPUTS: self.pi(self.encoder(batch[Columns.OBS]))}


class WithSharedEncoder(MultiRLModule):
    def setup(self):
        super().setup()
        for module_id in ("a_first", "z_last"):
            self[module_id].encoder = self["shared_encoder"].encoder


def shared_spec():
    spaces = {"observation_space": OBS_SPACE, "action_space": ACTION_SPACE}
    return MultiRLModuleSpec(
        WithSharedEncoder,
        rl_module_specs={
            "a_first": RLModuleSpec(UsesShared, **spaces),
            "shared_encoder": RLModuleSpec(SharedEncoder, **spaces),
            "z_last": RLModuleSpec(UsesShared, **spaces),
        },
    )


def test_multi_module_is_dict_like():
    multi = MultiRLModuleSpec(rl_module_specs={"b": ppo_spec(), "a": ppo_spec()}).build(seed=0)
    assert list(multi) == list(multi.keys()) == ["b", "a"] and len(multi) == 2
    assert multi["a"] is multi._rl_modules["a"] is multi.get("a") and multi.get("c") is None
    assert "a" in multi and "c" not in multi and dict(multi.items())["b"] in multi.values()
    assert multi.foreach_module(lambda i, m, extra: i + extra, extra="!") == ["b!", "a!"]
    assert multi.foreach_module(lambda i, m: m, return_dict=True)["a"] is multi["a"]
    assert [name for name, _ in multi.get_checkpointable_components()] == ["b", "a"]
    assert multi.as_multi_rl_module() is multi and multi.unwrapped() is multi
    new = build()
    multi.add_module("c", new)
    assert multi["c"] is new
    with pytest.raises(ValueError, match="override=True"):
        multi.add_module("c", new)
    for bad in ("x/y", "", "items", 3):
        with pytest.raises(ValueError, match="is invalid"):
            multi.add_module(bad, new)
    multi.remove_module("c")
    with pytest.raises(KeyError, match=r"No module 'c'.*\['b', 'a'\]"):
        multi.remove_module("c")
    multi.remove_module("c", raise_err_if_not_found=False)
    with pytest.raises(KeyError, match="No module 'c'"):
        multi["c"]
    assert not MultiRLModule() or len(MultiRLModule()) == 0


def test_multi_module_forwards_what_the_batch_names():
    multi = MultiRLModuleSpec(rl_module_specs={"b": ppo_spec(), "a": ppo_spec()}).build(seed=0)
    outputs = multi.forward_train({"a": {"obs": OBS}})
    assert outputs.keys() == {"a"}
    expected = multi["a"].forward_train({"obs": OBS})
    np.testing.assert_array_equal(outputs["a"]["embeddings"], expected["embeddings"])
    assert multi.forward_exploration({"a": {"obs": OBS}, "b": {"obs": OBS[:2]}}, t=1)["b"][
        "action_dist_inputs"
    ].shape == (2, 2)
    with pytest.raises(KeyError, match="No module 'c'"):
        multi.forward_inference({"c": {"obs": OBS}})
    assert not multi.is_stateful()


def test_a_modules_weights_do_not_depend_on_the_others():
    pair = MultiRLModuleSpec(rl_module_specs={"b": ppo_spec(), "a": ppo_spec()})
    both, alone = pair.build(seed=3), MultiRLModuleSpec(rl_module_specs={"a": ppo_spec()}).build(seed=3)
    by_id = pair.build("a", seed=3)
    for module in (alone["a"], by_id):
        np.testing.assert_array_equal(module.pi.dense_0.kernel[...], both["a"].pi.dense_0.kernel[...])
    assert np.abs(both["a"].pi.dense_0.kernel[...] - both["b"].pi.dense_0.kernel[...]).max() > 0


def test_multi_state_by_module():
    spec = MultiRLModuleSpec(rl_module_specs={"a": ppo_spec(), "b": ppo_spec(learner_only=True)})
    multi, other = spec.build(seed=0), spec.build(seed=1)
    assert multi.get_state().keys() == {"a", "b"}
    assert multi.get_state("a").keys() == {"a"}
    assert multi.get_state(not_components="a").keys() == {"b"}
    assert multi.get_state(inference_only=True).keys() == {"a"}
    assert "vf/dense_0/bias" not in multi.get_state(inference_only=True)["a"]
    other.set_state({"a": multi.get_state()["a"]})
    np.testing.assert_array_equal(other["a"].pi.dense_0.kernel[...], multi["a"].pi.dense_0.kernel[...])
    assert np.abs(other["b"].pi.dense_0.kernel[...] - multi["b"].pi.dense_0.kernel[...]).max() > 0
    with pytest.raises(KeyError, match="No module 'absent'"):
        other.set_state({"absent": {}})


def test_inference_only_multi_module_leaves_learner_only_modules_out():
    specs = {"a": ppo_spec(), "b": ppo_spec(learner_only=True)}
    multi = MultiRLModuleSpec(inference_only=True, rl_module_specs=specs).build(seed=0)
    assert list(multi) == ["a"] and multi["a"].inference_only and multi.inference_only
    full = MultiRLModuleSpec(rl_module_specs=specs).build(seed=1)
    multi.set_state(full.get_state())
    np.testing.assert_array_equal(multi["a"].pi.dense_0.kernel[...], full["a"].pi.dense_0.kernel[...])
    with pytest.raises(KeyError, match="No module 'absent'"):
        multi.set_state({"absent": {}})


def test_as_multi_rl_module_holds_the_module_itself():
    module = ppo_spec().build(seed=0)
    multi = module.as_multi_rl_module()
    assert multi[DEFAULT_MODULE_ID] is module
    spec = MultiRLModuleSpec.from_module(multi)
    assert spec[DEFAULT_MODULE_ID].module_class is DefaultPPORLModule


def test_a_shared_part_is_in_each_modules_state_but_counts_once():
    multi = shared_spec().build(seed=0)
    assert str(multi).splitlines()[-1] == "total: 36 trained"
    assert multi["a_first"].get_state().keys() == {"encoder/kernel", "encoder/bias", "pi/kernel", "pi/bias"}
    multi["z_last"].set_state({"encoder/bias": np.full(4, 9.0)})
    np.testing.assert_array_equal(multi["a_first"].encoder.bias[...], 9.0)
    np.testing.assert_array_equal(multi["shared_encoder"].encoder.bias[...], 9.0)


def test_a_module_may_leave_out_itself_what_inference_does_not_need():
    class Frugal(RLModule, InferenceOnlyAPI, TargetNetworkAPI):
        def setup(self):
            self.pi = nnx.Linear(3, 2, rngs=self.rngs)
            if not self.inference_only:
                self.vf = nnx.Linear(3, 1, rngs=self.rngs)
                self.critics = nnx.Dict(first=nnx.Linear(3, 1, rngs=self.rngs))

        def get_non_inference_attributes(self):
            return ["vf", "critics.first", "old_vf"]

        def make_target_networks(self):
            self.old_vf = make_target_network(self.vf)

        def get_target_network_pairs(self):
            return [(self.vf, self.old_vf)]

        def forward_target(self, batch, **kwargs):
            return self.old_vf(batch[Columns.OBS])

    full, small = Frugal(rngs=0), Frugal(rngs=0, inference_only=True)
    assert {ref.split("/")[0] for ref in full.get_state()} == {"pi", "vf", "critics", "old_vf"}
    assert small.get_state().keys() == full.get_state(inference_only=True).keys() == {"pi/kernel", "pi/bias"}
    with pytest.raises(AttributeError, match="Frugal.vf was left out because the module is inference_only"):
        _ = small.vf

    class Misspelt(Frugal):
        def make_target_networks(self):
            self.old_vf = make_target_network(self.value_head)

    for inference_only in (False, True):
        with pytest.raises(AttributeError, match="no attribute 'value_head'"):
            Misspelt(rngs=0, inference_only=inference_only)
