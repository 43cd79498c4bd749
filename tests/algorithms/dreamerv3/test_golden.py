"""World model, imagination, losses and gradients against RLlib's, with the same weights and nothing drawn."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3 import losses
from jaxrl_stack.algorithms.dreamerv3.actor_critic import imagine
from jaxrl_stack.algorithms.dreamerv3.world_model import Latent
from jaxrl_stack.ops.world_models import ReturnRange, update_range
from tests.algorithms.dreamerv3.golden_networks import SPACES, golden, networks

HORIZON, GAMMA = 4, 0.997
KINDS = list(SPACES)


def close(actual, expected, name, rtol=2e-4, atol=2e-5):
    np.testing.assert_allclose(np.asarray(actual), expected, rtol=rtol, atol=atol, err_msg=name)


def flat(x):
    return x.reshape(-1, *x.shape[2:])


def observed_rows(model, batch):
    normalised = model.normalised(batch["obs"])
    observed = model.observe(normalised, batch["actions"], batch["is_first"] > 0, None)
    rows = losses.world_model_rows(model, observed, normalised, batch["rewards"], batch["is_terminated"] > 0)
    return {name: jnp.mean(x) for name, x in rows.items()}, observed


def imagined_rows(model, actor, critic, slow, start, is_terminated, kind, scale=None):
    """Means of the actor's and the critic's terms; `scale` takes the place of the moving percentiles'."""
    differentiable = kind == "box"
    imagined = imagine(model, actor, start, HORIZON, None, differentiable=differentiable)
    judged = losses.judged(model, critic, imagined, is_terminated, gamma=GAMMA, lambda_=0.95)
    returns = update_range(ReturnRange.init(), judged.targets, 0.99)
    fixed = jax.lax.stop_gradient(imagined.features)
    of_critic = losses.critic_means(critic, slow, fixed, judged)
    used = returns if scale is None else ReturnRange(jnp.float32(0), jnp.float32(scale), jnp.bool_(True))
    of_actor = losses.actor_means(actor, fixed, imagined.actions, judged, used, 0.01, differentiable=differentiable)
    means = {"critic": of_critic, "actor": of_actor}
    return means, (imagined, judged, returns)


@functools.cache
def run(kind):
    """All of it, in one program."""
    nets, data = networks(kind), golden(kind)
    split = {name: nnx.split(getattr(nets, name)) for name in ("model", "actor", "critic", "slow")}

    def merged(states):
        return (nnx.merge(split[name][0], states[name]) for name in split)

    @jax.jit
    def program(states, batch):
        model, *_ = merged(states)

        def of_model(state):
            return (out := observed_rows(nnx.merge(split["model"][0], state), batch))[0]["total"], out

        (_, (means, observed)), model_gradient = jax.value_and_grad(of_model, has_aux=True)(states["model"])
        start = jax.tree.map(lambda x: flat(x), observed.states)

        def of_agent(own, part):
            model, actor, critic, slow = merged(states | own)
            means, out = imagined_rows(model, actor, critic, slow, start, flat(batch["is_terminated"]) > 0, kind)
            return means[part]["total"], (means, out)

        gradients = {"model": model_gradient}
        for part in ("actor", "critic"):
            (_, (agent_means, out)), own = jax.value_and_grad(of_agent, has_aux=True)({part: states[part]}, part)
            gradients[part] = own[part]
        decoded = model.decode(start.features)["obs"]
        reward_logits = model.reward(start.features)
        return means, observed, decoded, reward_logits, agent_means, out, gradients

    return program({name: own[1] for name, own in split.items()}, data["batch"])


@pytest.mark.parametrize("kind", KINDS)
def test_states_and_predictions_are_those_of_rllib(kind):
    _, observed, decoded, reward_logits, *_ = run(kind)
    expected = golden(kind)["forward"]
    close(flat(observed.states.h), expected["h_states_BxT"], "h")
    close(flat(observed.posterior), expected["z_posterior_probs_BxT"], "posterior")
    close(flat(observed.prior), expected["z_prior_probs_BxT"], "prior")
    close(reward_logits, expected["reward_logits_BxT"], "reward", rtol=1e-3, atol=1e-4)
    decoded = decoded.reshape(len(decoded), -1)
    decoded = decoded[:, ::97] if kind == "image" else decoded
    close(decoded, expected["obs_distribution_means_BxT"], "decoder", rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_the_world_model_are_those_of_rllib(kind):
    means, expected = run(kind)[0], golden(kind)["losses"]
    for name, value in means.items():
        close(value, expected[f"WORLD_MODEL_L_{name}"], name)
    assert means["dynamics"] > 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_of_the_model_are_those_of_rllib(kind):
    imagined, judged, _ = run(kind)[5]
    expected = golden(kind)["dream"]
    h = jnp.concatenate([imagined.features[..., : imagined.last.h.shape[-1]], imagined.last.h[None]])
    close(h, expected["h_states_t0_to_H_BxT"], "h")
    close(imagined.actions, expected["actions_dreamed_t0_to_H_BxT"][:-1], "actions")
    close(judged.values, expected["values_dreamed_t0_to_H_BxT"], "values", rtol=1e-3, atol=1e-4)
    close(judged.weights, expected["dream_loss_weights_t0_to_H_BxT"][:-1], "weights")


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_the_critic_are_those_of_rllib(kind):
    means, expected = run(kind)[4]["critic"], golden(kind)["losses"]
    close(means["total"], expected["CRITIC_L_total"], "total")
    close(means["targets"], expected["CRITIC_L_neg_logp_of_value_targets"], "targets")
    close(means["slow"], expected["CRITIC_L_slow_critic_regularization"], "slow")


@pytest.mark.parametrize("kind", KINDS)
def test_losses_of_the_actor_are_those_of_rllib_but_for_the_scale(kind):
    """The paper bounds it by 1, RLlib by 1e-8: its advantages are ours over its scale."""
    means, (_, _, returns), expected = run(kind)[4]["actor"], run(kind)[5], golden(kind)["losses"]
    close(returns.low, expected["ACTOR_value_targets_pct5_ema"], "low", rtol=1e-3)
    close(returns.high, expected["ACTOR_value_targets_pct95_ema"], "high", rtol=1e-3)
    close(means["entropy"], expected["ACTOR_action_entropy"], "entropy")
    theirs = expected["ACTOR_value_targets_pct95_ema"] - expected["ACTOR_value_targets_pct5_ema"]
    ratio = returns.scale / theirs
    close(means["advantage"] * ratio, expected["ACTOR_L_neglogp_reinforce_term"], "advantage", rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_rllib(kind):
    """Of the world model and the critic; of the actor in the test of its scale."""
    gradients, names, expected = run(kind)[6], networks(kind).names, golden(kind)["gradients"]
    compared = 0
    for part in ("model", "critic"):
        own = {tuple(path): x for path, x in nnx.to_flat_state(gradients[part])}
        for path, name in names[part].items():
            theirs = next((x for key, x in expected.items() if key.endswith(name)), None)
            if theirs is not None:
                close(jnp.linalg.norm(own[path][...]), theirs, name, rtol=5e-3, atol=1e-4)
                compared += 1
    assert compared > 30


def test_a_latent_state_has_features_side_by_side():
    features = Latent(jnp.zeros((2, 3)), jnp.ones((2, 4, 5))).features
    np.testing.assert_array_equal(features, np.concatenate([np.zeros((2, 3)), np.ones((2, 20))], axis=1))
