"""Every hook of a Learner, overridden with a call of `super()`: on the device, on the host, and in an actor."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from tests import programs

HOOKS = (
    "build",
    "configure_optimizers_for_module",
    "should_module_be_updated",
    "before_gradient_based_update",
    "pre_update",
    "compute_losses",
    "compute_loss_for_module",
    "compute_gradients",
    "postprocess_gradients",
    "postprocess_gradients_for_module",
    "apply_gradients",
    "post_update",
    "after_gradient_based_update",
)


def watched_learner():
    """PPO's learner that remembers which hooks were called. A local class, so that actors get it by value."""

    def overridden(name):
        def hook(self, *args, **kwargs):
            self.called = [*getattr(self, "called", ()), name]
            return getattr(super(Watched, self), name)(*args, **kwargs)

        return hook

    Watched = type("Watched", (PPOLearner,), {name: overridden(name) for name in HOOKS})
    return Watched


def run(env, learner_class, **learners):
    algo = programs.ppo(env).learners(learner_class=learner_class, **learners).build_algo()
    algo.train()
    (called,) = [result.get() for result in algo.learner_group.foreach_learner(lambda own: getattr(own, "called", ()))]
    weights = algo.get_weights()
    algo.stop()
    return called, weights


@pytest.fixture(scope="module")
def weights_of_ppo():
    return {env: run(env, PPOLearner)[1] for env in ("gymnax/CartPole-v1", "CartPole-v1")}


@pytest.mark.parametrize("env", ["gymnax/CartPole-v1", "CartPole-v1"])
def test_overridden_hooks_are_called_and_super_does_what_the_algorithm_does(env, weights_of_ppo):
    called, weights = run(env, watched_learner())
    assert set(called) == set(HOOKS)
    assert called.count("compute_loss_for_module") == 1  # one program, however many minibatches
    jax.tree.map(np.testing.assert_array_equal, weights, weights_of_ppo[env])


@pytest.mark.usefixtures("fake_ray")
def test_they_are_in_an_actor(weights_of_ppo):
    called, weights = run("CartPole-v1", watched_learner(), num_learners=1)
    assert set(called) == set(HOOKS)
    jax.tree.map(np.testing.assert_array_equal, weights, weights_of_ppo["CartPole-v1"])
