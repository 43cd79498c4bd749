"""Spec checks of forward passes: every mistake is named with its remedy, before anything runs."""

from __future__ import annotations

import gymnasium as gym
import jax.numpy as jnp
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.distribution import Deterministic
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModule, RLModuleSpec
from jaxrl_stack.core.rl_module.apis import ValueFunctionAPI
from jaxrl_stack.core.rl_module.checks import check_module_outputs

OBS_SPACE, ACTION_SPACE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


class Mine(RLModule):
    def setup(self):
        self.pi = nnx.Linear(3, 2, rngs=self.rngs)

    def _forward(self, batch, **kwargs):
        return {Columns.ACTION_DIST_INPUTS: self.pi(batch[Columns.OBS])}


def check(cls, observation_space=OBS_SPACE, action_space=ACTION_SPACE, **kwargs):
    module = cls(observation_space=observation_space, action_space=action_space, rngs=0)
    check_module_outputs(module, **kwargs)


@pytest.mark.parametrize(
    "action_space",
    [
        gym.spaces.Discrete(3),
        gym.spaces.MultiDiscrete([2, 3]),
        gym.spaces.Box(-1, 1, (2,)),
        gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (1,))}),
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_default_modules_pass(action_space, shared):
    spec = RLModuleSpec(
        DefaultPPORLModule, OBS_SPACE, action_space, model_config={"fcnet_hiddens": [4], "vf_share_layers": shared}
    )
    check_module_outputs(spec.build(seed=0), train_keys=(Columns.ACTION_DIST_INPUTS,))
    check_module_outputs(MultiRLModuleSpec(rl_module_specs={"a": spec, "b": spec}).build(seed=0))
    spec.inference_only = True
    check_module_outputs(spec.build(seed=0))


def test_custom_modules_pass():
    check(Mine)

    class Actor(Mine):
        def _forward(self, batch, **kwargs):
            return {Columns.ACTIONS: jnp.zeros(len(batch["obs"]), jnp.int32)}

    check(Actor)

    class LearnerOnly(Mine):
        def _forward_train(self, batch):
            return {"anything": batch["obs"]}

        def _forward(self, batch):
            raise AssertionError("must not be traced")

    check_module_outputs(LearnerOnly(observation_space=OBS_SPACE, learner_only=True, rngs=0))

    class Nested(Mine):
        def _forward(self, batch, **kwargs):
            return {Columns.ACTION_DIST_INPUTS: self.pi(batch["obs"]["x"]) + batch["obs"]["k"][..., None]}

    check(Nested, observation_space=gym.spaces.Dict({"x": OBS_SPACE, "k": gym.spaces.Discrete(3)}))

    class Teacher(Mine):
        def _forward_train(self, batch, **kwargs):
            first, second = batch[Columns.ACTIONS]
            return {Columns.ACTION_DIST_INPUTS: self.pi(batch["obs"]) + (first + second)[:, None]}

    check(Teacher, action_space=gym.spaces.Tuple([gym.spaces.Discrete(1), gym.spaces.Discrete(1)]))


def test_ppo_refuses_a_module_whose_actions_have_no_log_probabilities():
    class Actor(Mine, ValueFunctionAPI):
        def compute_values(self, batch, embeddings=None):
            return jnp.zeros(len(batch["obs"]))

        def _forward_exploration(self, batch, **kwargs):
            return {Columns.ACTIONS: jnp.zeros(len(batch["obs"]), jnp.int32)}

    class Complete(Actor):
        def _forward_exploration(self, batch, **kwargs):
            more = {Columns.ACTION_LOGP: jnp.zeros(len(batch["obs"]))}
            return super()._forward_exploration(batch) | self._forward(batch) | more

    spaces = {"default_policy": (OBS_SPACE, ACTION_SPACE)}
    config = PPOConfig().rl_module(rl_module_spec=RLModuleSpec(module_class=Actor))
    expected = r"Actor .*\._forward_exploration\(\) .*\['action_logp', 'action_dist_inputs'\] in addition to.*only"
    with pytest.raises(ValueError, match=expected):
        config.build_learner(spaces=spaces)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=Complete)).build_learner(spaces=spaces)


def returns(**columns):
    """A module whose forward passes return these columns; callables get the module and the batch."""

    class Returns(Mine, ValueFunctionAPI):
        def _forward(self, batch, **kwargs):
            return {name: value(self, batch) for name, value in columns.items()}

        def compute_values(self, batch, embeddings=None):
            return batch["obs"].sum(-1)

    return Returns


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (
            returns(action_dist_inputs=lambda m, b: jnp.zeros((len(b["obs"]), 3))),
            r"Returns._forward_inference\(\) returned action_dist_inputs: expected the width 2 that Categorical needs "
            r"for the action space Discrete\(2\), got 3 .*Give the last layer 2 outputs",
        ),
        (returns(action_dist_inputs=lambda m, b: m.pi(b["obs"]) > 0), "float dtype, got bool"),
        (returns(action_dist_inputs=lambda m, b: m.pi(b["obs"][:3])), r"batch axes \(7,\).*got the shape \(3, 2\)"),
        (returns(action_dist_inputs=lambda m, b: {"a": m.pi(b["obs"])}), "expected one array, got a dict"),
        (returns(logits=lambda m, b: m.pi(b["obs"])), r"\['logits'\]: expected 'action_dist_inputs' or 'actions'"),
        (
            returns(action_dist_inputs=lambda m, b: m.pi(b["obs"]), vf_preds=lambda m, b: m.pi(b["obs"])[..., :1]),
            r"vf_preds: expected the shape \(7,\), got \(7, 1\). Drop the last axis",
        ),
        (
            returns(action_dist_inputs=lambda m, b: m.pi(b["prev_actions"])),
            r"looks up the key 'prev_actions'.*columns \['obs'\]",
        ),
        (
            returns(action_dist_inputs=lambda m, b: m.pi(b["obs"][..., :2])),
            r"failed on a test batch made from the module's observation space Box.*TypeError",
        ),
        (
            returns(action_dist_inputs=lambda m, b: m.pi(b["obs"]), state_out=lambda m, b: b["obs"]),
            "expected no recurrent state, got one.*get_initial_state",
        ),
    ],
)
def test_mistakes_are_named(cls, message):
    with pytest.raises(ValueError, match=message):
        check(cls)


def test_more_mistakes():
    class NoDict(Mine):
        def _forward(self, batch):
            return self.pi(batch["obs"])

    with pytest.raises(ValueError, match="expected a dict"):
        check(NoDict)

    class Values(returns(action_dist_inputs=lambda m, b: m.pi(b["obs"]))):
        def compute_values(self, batch, embeddings=None):
            return self.pi(batch["obs"])[..., :1]

    with pytest.raises(ValueError, match=r"Values.compute_values\(\) returned the values.*Drop the last axis"):
        check(Values)
    with pytest.raises(ValueError, match=r"also \['embeddings'\], which the loss needs"):
        check(Mine, train_keys=("embeddings",))
    with pytest.raises(ValueError, match=r"Mine \(module 'p'\)._forward_inference.*the width 4 that DiagGaussian"):
        check(Mine, action_space=gym.spaces.Box(-1, 1, (2,)), module_id="p")
    with pytest.raises(ValueError, match="no observation_space"):
        check(Mine, observation_space=None)

    class Greedy(Mine):
        """Acts by its mean; only the train pass is read as a Gaussian, and is too narrow for one."""

        def get_inference_action_dist_cls(self):
            return Deterministic

        get_exploration_action_dist_cls = get_inference_action_dist_cls

    with pytest.raises(ValueError, match="_forward_train.*the width 4 that DiagGaussian"):
        check(Greedy, action_space=gym.spaces.Box(-1, 1, (2,)))
    with pytest.raises(NotImplementedError, match="Override _forward"):
        check(RLModule)


class Counter(RLModule):
    """Stateful: train batches are [B, T, ...], the state is [B, ...]."""

    keep_state = True

    def setup(self):
        self.pi = nnx.Linear(3, 2, rngs=self.rngs)

    def get_initial_state(self):
        return {"h": jnp.zeros(4, jnp.float32)}

    def _forward(self, batch, **kwargs):
        assert batch["obs"].ndim == 3 and batch["state_in"]["h"].shape == (batch["obs"].shape[0], 4)
        state = {"h": batch["state_in"]["h"] + 1}
        outputs = {Columns.ACTION_DIST_INPUTS: self.pi(batch["obs"])}
        return outputs | ({Columns.STATE_OUT: state} if self.keep_state else {})


def test_stateful_modules():
    check(Counter)

    class Forgets(Counter):
        keep_state = False

    with pytest.raises(ValueError, match="also 'state_out', because get_initial_state"):
        check(Forgets)

    class Changes(Counter):
        def _forward(self, batch, **kwargs):
            return super()._forward(batch) | {Columns.STATE_OUT: {"h": batch["state_in"]["h"][:, :2]}}

    with pytest.raises(ValueError, match="Keep structure, shapes and dtypes of STATE_IN"):
        check(Changes)
