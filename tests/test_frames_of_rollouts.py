"""One frame kept per step of a rollout: updates have the bits of those from whole stacks of frames."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.env_to_module import FrameStacking
from jaxrl_stack.connectors.learner import (
    FrameStackingLearner,
    GeneralAdvantageEstimation,
    LearnerConnectorPipeline,
    NormalizeRewards,
    ScaleRewards,
)
from jaxrl_stack.core import DEFAULT_MODULE_ID, frames
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils import counters
from tests.core.test_learner_updates import Regression, config_of
from tests.replay.test_frames import BOX, DISCRETE, NUM_FRAMES, Stacks

NUM_STEPS, NUM_ENVS = 11, 2


class StacksItsWay(FrameStacking):
    """What it does is not known: what it puts out is recorded whole."""

    def apply(self, state, batch, ctx):
        return super().apply(state, batch, ctx)


# ------------------------------------------------------------------------------------------------------------- arrays


@pytest.fixture(scope="module")
def blocks():
    """Two blocks in a row, of whole stacks and where episodes begin in them: in the second one, some have begun."""
    source, ended, out = Stacks(NUM_ENVS, seed=1), np.ones((1, NUM_ENVS), bool), []
    for _ in range(2):
        columns = source.rollout(NUM_STEPS)
        before, ended = ended, columns["terminateds"] | columns["truncateds"]
        out.append((columns, np.concatenate([before[-1:], ended[:-1]])))
    assert not out[1][1][0].all() and out[1][1].any()
    return out


@pytest.mark.parametrize("xp", [np, jnp])
def test_a_block_of_frames_is_one_of_stacks(blocks, xp):
    for columns, resets in blocks:
        block = frames.as_frames(columns, resets, NUM_FRAMES)
        assert block[Columns.OBS].shape == block[Columns.FINAL_OBS].shape == (NUM_STEPS, NUM_ENVS, 2, 2)
        assert block[frames.FRAMES_BEFORE].shape == (1, NUM_ENVS, NUM_FRAMES - 1, 2, 2)
        whole = frames.stacked(jax.tree.map(xp.asarray, block))
        jax.tree.map(np.testing.assert_array_equal, whole, columns)


def test_rows_of_a_block_are_stacked_where_they_are_taken(blocks):
    columns, resets = blocks[1]
    rows = np.random.default_rng(0).permutation(NUM_STEPS * NUM_ENVS)[:9]
    for num_frames, block in ((1, columns), (NUM_FRAMES, frames.as_frames(columns, resets, NUM_FRAMES))):
        readers = frames.rows_of_block(jax.tree.map(jnp.asarray, block), num_frames, lambda obs: obs)
        for name, (items, function) in zip((Columns.OBS, Columns.FINAL_OBS), readers, strict=True):
            taken = function(jax.tree.map(lambda x: x[rows], items))
            np.testing.assert_array_equal(taken, columns[name].reshape(-1, 2, 2 * NUM_FRAMES)[rows])


# ----------------------------------------------------------------------------------------------------------- learners


class Sees(RLModule):
    """All outputs are ``obs * a``, summed."""

    rows_are_independent = True

    def setup(self):
        self.a = nnx.Param(jnp.linspace(-0.01, 0.01, BOX.shape[-1]))

    def _forward(self, batch):
        output = (batch[Columns.OBS].astype(jnp.float32) * self.a[...][None, None]).sum(axis=(1, 2))
        return {Columns.ACTION_DIST_INPUTS: jnp.stack([output] * int(DISCRETE.n), axis=-1)}


class LooksFirst(Regression):
    """A learner of the user's sees whole observations, and every minibatch of every learner has no others."""

    def pre_update(self, state, batch):
        assert batch[DEFAULT_MODULE_ID][Columns.OBS].shape == (NUM_STEPS, 4, *BOX.shape)
        assert not {frames.FRAMES_BEFORE, frames.NUM_BEFORE} & batch[DEFAULT_MODULE_ID].keys()
        return state


@pytest.mark.parametrize("learner_class", [Regression, LooksFirst])
def test_learners_make_the_same_update_of_frames(learner_class):
    columns = Stacks(4, seed=5).rollout(NUM_STEPS)
    ended = columns["terminateds"] | columns["truncateds"]
    resets = np.concatenate([np.zeros((1, 4), bool), ended[:-1]])
    weights = []
    for block in (columns, frames.as_frames(columns, resets, NUM_FRAMES)):
        spec = RLModuleSpec(module_class=Sees, observation_space=BOX, action_space=DISCRETE)
        learner = learner_class(config=config_of(learner_class, num_shuffle_shards=2), module_spec=spec)
        learner.build()
        experience = Experience.of_steps({DEFAULT_MODULE_ID: block})
        learner.update_block(experience, num_epochs=2, minibatch_size=8, shuffle_batch_per_epoch=True)
        weights.append(learner.get_weights())
    jax.tree.map(np.testing.assert_array_equal, *weights)


def test_connectors_of_the_users_get_whole_observations():
    class Mine(ScaleRewards):
        pass

    own = {"input_observation_space": BOX, "input_action_space": DISCRETE}
    ours = [
        ScaleRewards(factor=2.0),
        NormalizeRewards(),
        FrameStackingLearner(num_frames=3),
        GeneralAdvantageEstimation(),
    ]
    assert LearnerConnectorPipeline(connectors=ours, **own).pure_part().takes_frames
    with_mine = LearnerConnectorPipeline(connectors=[Mine(factor=2.0), *ours], **own)
    assert not with_mine.pure_part().takes_frames


# ------------------------------------------------------------------------------------------------------------ drivers


class Film(gym.Env):
    """Images that only the last ones explain; every other episode is cut, sooner than a stack is full."""

    observation_space = gym.spaces.Box(0, 255, (6, 6, 1), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.length, self.is_cut = 0, int(self.np_random.integers(1, 7)), bool(self.np_random.integers(2))
        return self._image(), {}

    def _image(self):
        return self.np_random.integers(1, 256, (6, 6, 1), dtype=np.uint8)

    def step(self, action):
        self.t += 1
        ended = self.t == self.length
        return self._image(), float(action), ended and not self.is_cut, ended and self.is_cut, {}


def films_that_reset_in_a_step_of_their_own(config):
    return gym.vector.SyncVectorEnv([Film] * config["num_envs"], autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)


def config(connector_class, env, **training):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(
            num_env_runners=0,
            num_envs_per_env_runner=NUM_ENVS,
            env_to_module_connector=lambda env, spaces, device: connector_class(num_frames=NUM_FRAMES),
        )
        .training(
            train_batch_size_per_learner=NUM_STEPS * NUM_ENVS, **{"minibatch_size": 8, "num_epochs": 2} | training
        )
        .debugging(seed=3)
    )


def test_updates_from_frames_are_those_from_stacks():
    register_env("films", films_that_reset_in_a_step_of_their_own)
    networks = {"conv_filters": [[2, 6, 1]], "head_fcnet_hiddens": []}
    algos = [
        config(cls, "films")
        .env_runners(gym_env_vectorize_mode="vector_entry_point")
        .rl_module(model_config=networks)
        .build_algo()
        for cls in (FrameStacking, StacksItsWay)
    ]
    for _ in range(2):
        results = [algo.train()["learners"][DEFAULT_MODULE_ID]["vf_loss"] for algo in algos]
        assert results[0] == pytest.approx(results[1], rel=1e-5)
    jax.tree.map(np.testing.assert_array_equal, *[algo.get_weights() for algo in algos])

    sampled = [algo.driver.place.sample(TrainState(), algo.driver.plan_samples(8, in_frames=True))[1] for algo in algos]
    ours, whole = (own.modules[DEFAULT_MODULE_ID] for own in sampled)
    assert not whole[Columns.LOSS_MASK].all()
    np.testing.assert_array_equal(frames.stacked(ours)[Columns.OBS], whole[Columns.OBS])
    needed = whole[Columns.TRUNCATEDS] | (np.arange(8) == 7)[:, None]
    finals = [columns[Columns.FINAL_OBS][needed] for columns in (frames.stacked(ours), whole)]
    np.testing.assert_array_equal(*finals)
    images = (Columns.OBS, Columns.FINAL_OBS, frames.FRAMES_BEFORE)
    sizes = [sum(own[name].nbytes for name in images if name in own) for own in (ours, whole)]
    assert sizes == [(8 + 8 + 2) * NUM_ENVS * 36, 2 * 8 * 3 * NUM_ENVS * 36]
    # Of what it holds while it learns: in every row, two frames and a number, and those before the first row.
    estimates = [algo.memory_estimate()["train_batch"]["columns"] for algo in algos]
    rows = NUM_STEPS * NUM_ENVS
    assert [(own["obs"], own["final_obs"]) for own in estimates] == [(rows * 36,) * 2, (rows * 3 * 36,) * 2]
    assert (estimates[0][frames.FRAMES_BEFORE], estimates[0][frames.NUM_BEFORE]) == (NUM_ENVS * 2 * 36, rows * 4)
    # A runner on the host records whole ones, and sends frames.
    assert {algo.memory_estimate()["rollout"]["columns"]["obs"] for algo in algos} == {rows * 3 * 36}
    for algo in algos:
        algo.stop()


@pytest.fixture(scope="module")
def on_device():
    """Algorithms that have built their programs and run none."""
    settings = {"model_config": {"fcnet_hiddens": [3]}}
    make = config(FrameStacking, "gymnax/CartPole-v1").environment(env_config={"max_steps_in_episode": 5})
    whole = make.copy().env_runners(env_to_module_connector=lambda *_: StacksItsWay(num_frames=NUM_FRAMES))
    algos = [own.rl_module(**settings).build_algo() for own in (make, whole)]
    yield algos
    for algo in algos:
        algo.stop()


def test_rollout_and_shuffled_rows_on_the_device_are_no_stacks(on_device):
    of_frames, of_whole = (str(algo.driver.trace_program().jaxpr) for algo in on_device)
    # Of CartPole's 4 numbers, `[T, B, ...]` and `[S, T * B, ...]`.
    for lead in (f"{NUM_STEPS},{NUM_ENVS}", f"1,{NUM_STEPS * NUM_ENVS}"):
        whole, frame = (f"f32[{lead},{4 * number}]" for number in (NUM_FRAMES, 1))
        assert whole in of_whole and whole not in of_frames and frame in of_frames
    rows = NUM_STEPS * NUM_ENVS
    for what in ("rollout", "train_batch"):
        ours, whole = (algo.memory_estimate()[what]["columns"] for algo in on_device)
        assert (ours["obs"], ours["final_obs"]) == (rows * 16, rows * 16)
        assert (ours[frames.FRAMES_BEFORE], ours[frames.NUM_BEFORE]) == (NUM_ENVS * 2 * 16, rows * 4)
        assert whole["obs"] == whole["final_obs"] == rows * 48


def test_fragments_that_begin_within_episodes_have_the_frames_before_them(on_device):
    rollout = on_device[0].driver.rollout
    pure, num_fragments = rollout.pure, 6

    @jax.jit
    def sample(state, key):
        context = rollout.context(pure.params, pure.rest, {DEFAULT_MODULE_ID: {}}, counters.zero(), explore=True)
        keys = rollout.step_keys(key, 2 * num_fragments, NUM_ENVS, pure.rest)
        step, mid = functools.partial(rollout.step_envs, context=context), DEFAULT_MODULE_ID
        new, record = jax.lax.scan(step, state, keys)
        _, in_frames = jax.lax.scan(functools.partial(step, in_frames={mid}), state, keys)
        earlier = state.env_to_module[mid]
        layout = Layout(num_frames=NUM_FRAMES)
        block = rollout.block(mid, in_frames.columns[mid], num_fragments, layout, earlier=earlier)
        whole = rollout.block(mid, record.columns[mid], num_fragments, Layout())
        return new, block.whole_observations(), whole

    state = rollout.init(jax.random.key(0), NUM_ENVS)
    for number in range(2):
        state, ours, whole = sample(state, jax.random.key(number))
        jax.tree.map(np.testing.assert_array_equal, ours, whole)
