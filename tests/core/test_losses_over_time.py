"""A loss that takes steps in their order, over modules that have no recurrent state."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.ppo_learner import PPOLearner
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_MODULE_ID, frames
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.rl_module import RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view
from tests.core.test_learner_updates import Regression, config_of
from tests.replay.test_frames import BOX, DISCRETE, NUM_FRAMES, Stacks
from tests.test_frames_of_rollouts import Sees

NUM_STEPS, NUM_ENVS = 6, 4
SIZES = {"num_epochs": 2, "minibatch_size": 12, "shuffle_batch_per_epoch": True}


def changes(outputs, batch, xp=jnp):
    """Squared changes of the first output from step to step within episodes, of pairs whose steps both count."""
    ended = batch[Columns.TERMINATEDS] | batch[Columns.TRUNCATEDS]
    counts = batch[Columns.LOSS_MASK][:, 1:] & batch[Columns.LOSS_MASK][:, :-1] & ~ended[:, :-1]
    return xp.square(outputs[:, 1:, 0] - outputs[:, :-1, 0]), counts


class Smooth(Regression):
    """Its outputs shall follow the rewards, and change little."""

    loss_needs_time = True
    shapes: list[tuple[int, ...]] = []

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        outputs = fwd_out[Columns.ACTION_DIST_INPUTS]
        self.shapes.append(outputs.shape)
        assert batch[Columns.REWARDS].shape == batch[Columns.LOSS_MASK].shape == outputs.shape[:2]
        assert Columns.STATE_IN not in batch and Columns.RESETS not in batch
        squares, counts = changes(outputs, batch)
        error = self.masked_mean(jnp.square(outputs[..., 0] - batch[Columns.REWARDS]), batch)
        return error + self.masked_mean(squares, {Columns.LOSS_MASK: counts})


def block(seed=0, num_steps=NUM_STEPS, num_envs=NUM_ENVS):
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_envs)
    return {
        Columns.OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=shape).astype(np.float32),
        Columns.TERMINATEDS: rng.random(shape) < 0.2,
        Columns.TRUNCATEDS: rng.random(shape) < 0.1,
    }


def as_sequences(columns):
    """Columns ``[T, B, ...]`` as ``[B, T, ...]``."""
    return jax.tree.map(lambda x: np.swapaxes(x, 0, 1), columns)


@pytest.fixture
def learner():
    Smooth.shapes.clear()
    return config_of(Smooth).build_learner()


def test_the_first_loss_is_that_by_hand(learner):
    columns = block()
    weights = {ref: np.array(own) for ref, own in learner.get_weights().items()}
    (a,) = weights.values()
    batch = as_sequences(columns) | {Columns.LOSS_MASK: np.ones((NUM_ENVS, NUM_STEPS), bool)}
    outputs = np.stack([batch[Columns.OBS] @ a, -batch[Columns.OBS] @ a], axis=-1)
    squares, counts = changes(outputs, batch, np)
    expected = np.mean(np.square(outputs[..., 0] - batch[Columns.REWARDS])) + np.mean(squares[counts])
    assert 0 < counts.sum() < counts.size
    results = learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: columns}))
    np.testing.assert_allclose(results[DEFAULT_MODULE_ID]["total_loss"], expected, rtol=1e-6)
    assert set(Smooth.shapes) == {(NUM_ENVS, NUM_STEPS, 2)}
    # The same columns by the user.
    other = config_of(Smooth).build_learner()
    results = other.update(batch=as_sequences(columns))
    np.testing.assert_allclose(results[DEFAULT_MODULE_ID]["total_loss"], expected, rtol=1e-6)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), other.get_weights(), learner.get_weights())


def test_minibatches_are_chunks_and_their_size_counts_steps(learner):
    results = learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: block()}), **SIZES)
    assert set(Smooth.shapes) == {(12 // NUM_STEPS, NUM_STEPS, 2)}
    # Two epochs of two minibatches of two chunks.
    assert results[DEFAULT_MODULE_ID]["num_module_steps_trained"] == 2 * NUM_STEPS * NUM_ENVS


def test_the_device_makes_the_update_that_the_host_makes(learner):
    """`DeviceProgram.update` traces `pure_update`; a host's learner gets blocks."""
    columns = block(1)
    plan = learner.plan(**SIZES)
    update = jax.jit(functools.partial(learner.pure_update, plan=plan, axis_name=None))
    blocks = {DEFAULT_MODULE_ID: Block(columns, Layout())}
    state, _ = update(host_view(learner.state), blocks, learner.settings(), counters.from_int(0))
    learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: columns}), **SIZES)
    for ref, own in learner.get_weights().items():
        np.testing.assert_allclose(own, state.params[ref], rtol=1e-6)


def test_episodes_of_all_lengths_are_filled_up_and_masked(learner):
    def episode(length):
        rng = np.random.default_rng(length)
        return SingleAgentEpisode.from_arrays(
            id_=f"of {length}",
            observations=rng.normal(size=(length + 1, 3)).astype(np.float32),
            actions=np.zeros(length, np.int32),
            rewards=rng.normal(size=length).astype(np.float32),
            terminated=True,
            truncated=False,
        )

    episodes = [episode(3), episode(5)]
    (a,) = (np.array(own) for own in learner.get_weights().values())
    outputs = [np.array(own.get_observations(slice(0, len(own)))) @ a for own in episodes]
    errors = np.concatenate([y - own.get_rewards() for y, own in zip(outputs, episodes, strict=True)])
    steps = np.concatenate([np.diff(y) for y in outputs])
    results = learner.update(episodes=episodes)
    expected = np.mean(np.square(errors)) + np.mean(np.square(steps))
    np.testing.assert_allclose(results[DEFAULT_MODULE_ID]["total_loss"], expected, rtol=1e-5)
    assert results[DEFAULT_MODULE_ID]["module_train_batch_size_mean"] == 8


def test_frames_are_whole_observations_in_chunks():
    columns = Stacks(NUM_ENVS, seed=5).rollout(NUM_STEPS)
    ended = columns["terminateds"] | columns["truncateds"]
    resets = np.concatenate([np.zeros((1, NUM_ENVS), bool), ended[:-1]])
    found = []
    for own in (columns, frames.as_frames(columns, resets, NUM_FRAMES)):
        spec = RLModuleSpec(module_class=Sees, observation_space=BOX, action_space=DISCRETE)
        learner = Smooth(config=config_of(Smooth), module_spec=spec)
        learner.build()
        learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: own}), num_epochs=2, minibatch_size=NUM_STEPS)
        found.append(learner.get_weights())
    jax.tree.map(np.testing.assert_array_equal, *found)


def test_rows_without_an_axis_of_steps_are_refused(learner):
    with pytest.raises(ValueError, match=r"loss_needs_time=True\) must have sequences.*'rewards': \(4,\)"):
        learner.update(batch=jax.tree.map(lambda x: x[0], block()))


class AddsOnePerSequence(ConnectorV2):
    """Adds a column with one entry per sequence, and takes the mask away if it is told to."""

    def __init__(self, drops_mask=False):
        super().__init__()
        self.drops_mask = drops_mask

    def apply(self, state, batch, ctx):
        (columns,) = batch.values()
        columns = columns | {"a_weight": jnp.full(columns[Columns.REWARDS].shape[:2], 2.0)}
        if self.drops_mask:
            del columns[Columns.LOSS_MASK]
        return state, {DEFAULT_MODULE_ID: columns}


@pytest.mark.parametrize("drops_mask", [False, True])
def test_connectors_add_columns_with_one_entry_per_sequence(drops_mask):
    columns = as_sequences(block())
    masked = columns | {Columns.LOSS_MASK: np.random.default_rng(7).random((NUM_ENVS, NUM_STEPS)) < 0.7}
    everything = columns | {Columns.LOSS_MASK: np.ones((NUM_ENVS, NUM_STEPS), bool)}
    changed = config_of(Smooth, learner_connector=lambda *_: [AddsOnePerSequence(drops_mask)]).build_learner()
    expected, found = [], []
    for learner, given, results in (
        (config_of(Smooth).build_learner(), everything if drops_mask else masked, expected),
        (changed, masked, found),
    ):
        results.append(learner.evaluate_rows(Experience.of_rows({DEFAULT_MODULE_ID: given})))
        learner.update_rows(Experience.of_rows({DEFAULT_MODULE_ID: given}))
        results.append(learner.get_weights())
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6), found, expected)


class SmoothPPO(PPOLearner):
    """PPO whose logits shall change little from step to step."""

    loss_needs_time = True

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        loss = super().compute_loss_for_module(module_id=module_id, config=config, batch=batch, fwd_out=fwd_out)
        squares, counts = changes(fwd_out[Columns.ACTION_DIST_INPUTS], batch)
        change = self.masked_mean(squares, {Columns.LOSS_MASK: counts})
        self.metrics.log_value((module_id, "change"), change)
        return loss + change


class Pictures(CounterEnv):
    """The number as the brightness of a picture."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (8, 8, 1), np.float32)

    def reset_env(self, key, params):
        obs, state = super().reset_env(key, params)
        return jnp.broadcast_to(obs, (8, 8, 1)), state

    def step_env(self, key, state, action, params):
        obs, *outcome = super().step_env(key, state, action, params)
        return jnp.broadcast_to(obs, (8, 8, 1)), *outcome


@pytest.mark.parametrize(("place", "convolutions"), [("device", True), ("host", False)])
def test_it_trains_on_both_places(place, convolutions):
    env = Pictures if convolutions else CounterEnv
    name = f"over_time_{convolutions}_{place}"
    register_env(name, env if place == "device" else lambda context: GymnasiumFromJax(env))
    model = {"conv_filters": [[4, 3, 2]], "head_fcnet_hiddens": [8]} if convolutions else {"fcnet_hiddens": [8]}
    algo = (
        PPOConfig()
        .environment(name)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=8)
        .rl_module(model_config=model)
        .training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)
        .learners(learner_class=SmoothPPO)
        .build_algo()
    )
    try:
        results = algo.train()["learners"][DEFAULT_MODULE_ID]
        assert np.isfinite(results["total_loss"]) and np.isfinite(results["change"])
        assert results["num_module_steps_trained"] == 2 * 64
    finally:
        algo.stop()
