"""Acting, learning and imagining see the same states."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.dreamerv3.actor_critic import imagine
from jaxrl_stack.algorithms.dreamerv3.dreamerv3_rl_module import OBSERVED, DreamerV3RLModule
from jaxrl_stack.algorithms.dreamerv3.networks import MLP
from jaxrl_stack.algorithms.dreamerv3.sizes import MODEL_SIZES
from jaxrl_stack.algorithms.dreamerv3.world_model import Latent, WorldModel, parts_of
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.models.base import batched_state
from jaxrl_stack.ops.masks import where_rows

VECTOR = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (64, 64), np.uint8)
NUM_ROWS, NUM_STEPS = 2, 6


@functools.cache
def module() -> DreamerV3RLModule:
    return DreamerV3RLModule(
        observation_space=VECTOR,
        action_space=gym.spaces.Discrete(3),
        model_config={"model_size": "nano", "num_random_steps": 100},
        rngs=0,
    )


@functools.cache
def acted():
    """Observations and first steps of episodes, and what acting step by step makes of them, with the likeliest of
    everything."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(NUM_ROWS, NUM_STEPS, 4)).astype(np.float32)
    first = np.zeros((NUM_ROWS, NUM_STEPS), bool)
    first[:, 0], first[1, 3] = True, True
    graph, variables = nnx.split(module())

    @jax.jit
    def step(state, obs):
        own = nnx.merge(graph, variables)
        return own.forward_inference({Columns.OBS: obs[:, None], Columns.STATE_IN: state})

    start = batched_state(module().get_initial_state(), NUM_ROWS)
    state, actions, h = start, [], []
    for t in range(NUM_STEPS):
        # As acting does: a state of its own where an episode begins.
        state = where_rows(first[:, t], start, state)
        out = step(state, obs[:, t])
        state = out[Columns.STATE_OUT]
        actions.append(out[Columns.ACTIONS][:, 0])
        h.append(state["h"])
    return obs, first, np.stack(actions, 1), np.stack(h, 1)


def test_states_in_training_are_those_of_acting():
    """Actions belong to the step after them, and nothing from before an episode is remembered in it."""
    obs, first, actions, h = acted()
    own = module().world_model

    @nnx.jit
    def observe(model):
        return model.observe(model.normalised(obs), jax.nn.one_hot(actions, 3), first, None)

    np.testing.assert_allclose(observe(own).states.h, h, rtol=1e-4, atol=1e-5)


def test_an_episode_inside_of_a_window_is_as_one_on_its_own():
    obs, first, actions, _ = acted()

    @nnx.jit
    def observe(model, obs, actions, first):
        return model.observe(model.normalised(obs), jax.nn.one_hot(actions, 3), first, None).states.h

    whole = observe(module().world_model, obs, actions, first)[1, 3:]
    alone = observe(module().world_model, obs[1:, 3:], actions[1:, 3:], first[1:, 3:])[0]
    np.testing.assert_allclose(whole, alone, rtol=1e-5, atol=1e-6)


def test_a_window_that_goes_on_from_a_stored_state_is_the_end_of_a_longer_one():
    obs, first, actions, _ = acted()

    @nnx.jit
    def both(model):
        normalised, one_hot = model.normalised(obs), jax.nn.one_hot(actions, 3)
        whole = model.observe(normalised, one_hot, first, None).states
        stored = jax.tree.map(lambda x: x[:, 1], whole.stored())
        before = Latent(stored["h"], jax.nn.one_hot(stored["z"], model.size.num_classes))
        rest = {name: x[:, 2:] for name, x in normalised.items()}
        # Nothing is known of what came before the second row.
        ends = [
            model.observe(rest, one_hot[:, 2:], first[:, 2:], None, (before, one_hot[:, 1], np.array([False, unknown])))
            for unknown in (False, True)
        ]
        afresh = model.observe(rest, one_hot[:, 2:], first[:, 2:], None)
        return whole.h, *(x.states.h for x in (*ends, afresh))

    whole, going_on, half, afresh = both(module().world_model)
    np.testing.assert_allclose(going_on, whole[:, 2:], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(half, np.stack([going_on[0], afresh[1]]), rtol=1e-5, atol=1e-6)
    assert np.abs(going_on[0] - afresh[0]).max() > 1e-3


def test_an_imagined_state_follows_the_action_that_was_taken_before_it():
    """So its reward, and whether the episode goes on, are what that action led to."""
    obs, first, actions, _ = acted()

    @nnx.jit
    def run(own):
        model = own.world_model
        one_hot = jax.nn.one_hot(actions, 3)
        states = model.observe(model.normalised(obs), one_hot, first, None).states
        start = jax.tree.map(lambda x: x[:, 0], states)
        rollout = imagine(model, own.actor, start, 3, None, differentiable=False)
        return states.h[:, 1], model.next_h(start, one_hot[:, 0]), rollout

    recorded, after, rollout = run(module())
    np.testing.assert_allclose(recorded, after, rtol=1e-5, atol=1e-6)
    # The likeliest actions are those that were taken.
    np.testing.assert_array_equal(jnp.argmax(rollout.actions[0], -1), actions[:, 0])
    np.testing.assert_allclose(rollout.features[1, :, : after.shape[-1]], after, rtol=1e-5, atol=1e-6)
    assert rollout.features.shape[:2] == (3, NUM_ROWS) and rollout.last.h.shape == after.shape


def test_training_starts_each_row_afresh_and_draws():
    obs, first, actions, _ = acted()
    batch = {Columns.OBS: obs, Columns.ACTIONS: actions, "is_first": first, Columns.RESETS: first}
    observed = nnx.jit(lambda own: own.forward_train(batch)[OBSERVED])(module())
    assert set(np.unique(observed.states.z)) == {0.0, 1.0}
    np.testing.assert_allclose(jnp.sum(observed.posterior, -1), 1.0, rtol=1e-5)


def test_the_first_steps_are_random():
    obs = np.zeros((500, 1, 4), np.float32)
    batch = {Columns.OBS: obs, Columns.STATE_IN: batched_state(module().get_initial_state(), 500)}

    @nnx.jit
    def explore(own, t):
        return own.forward_exploration(batch, t=t)[Columns.ACTIONS]

    counts = np.bincount(np.asarray(explore(module(), jnp.array([0, 99], jnp.uint32)))[:, 0], minlength=3)
    # Five standard deviations.
    np.testing.assert_allclose(counts / 500, 1 / 3, atol=5 * np.sqrt(2 / 9 / 500))


def test_dicts_of_vectors_and_images():
    space = gym.spaces.Dict({"a": VECTOR, "picture": IMAGE, "b": gym.spaces.Box(-1, 1, (2,), np.float32)})
    model = WorldModel(MODEL_SIZES["nano"], space, 3, rngs=nnx.Rngs(0))
    obs = jax.tree.map(lambda x: jnp.asarray(x)[None, None], space.sample())

    @nnx.jit
    def run(model):
        normalised = model.normalised(obs)
        states = model.observe(normalised, jnp.zeros((1, 1, 3)), jnp.ones((1, 1), bool), None).states
        return normalised, model.decode(states.features)

    normalised, decoded = run(model)
    assert jax.tree.map(jnp.shape, normalised) == jax.tree.map(jnp.shape, decoded)
    assert float(jnp.max(jnp.abs(normalised["picture"]))) <= 1.0


@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(3), gym.spaces.Box(0, 255, (84, 84, 3), np.uint8), gym.spaces.Box(0, 1, (2, 3, 4, 5))]
)
def test_observations_that_cannot_be_modelled_are_refused(space):
    with pytest.raises(ValueError, match="64 x 64"):
        parts_of(space)


@pytest.mark.parametrize(("num_outputs", "width"), [(255, 256), (16, 16), (3, 8)])
def test_padded_logits_are_those_of_the_network_and_classes_without_probability(num_outputs, width):
    for dtype in (None, jnp.bfloat16):
        net = MLP(4, 8, 1, num_outputs, dtype=dtype, rngs=nnx.Rngs(0))
        x = jax.random.normal(jax.random.key(1), (5, 4))
        plain, padded = net(x), net.padded_logits(x)
        assert padded.shape == (5, width) and padded.dtype == jnp.float32
        np.testing.assert_allclose(padded[:, :num_outputs], plain, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(jax.nn.softmax(padded)[:, num_outputs:], 0.0)
