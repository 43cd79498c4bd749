"""Layouts of blocks: readers follow the layout, whatever columns exist."""

from __future__ import annotations

import dataclasses
import functools
import pickle

import gymnasium as gym
import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.core import DEFAULT_MODULE_ID, frames
from jaxrl_stack.core.block import Block, DrawnRows
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Part
from jaxrl_stack.core.layouts import Layout, Layouts, layout_for_replay, layout_of
from jaxrl_stack.core.learner.items import ChunkForm, RowForm, SequenceForm, form_of_block, forms_of_batch
from jaxrl_stack.core.learner.row_blocks import lay_out_rows
from jaxrl_stack.core.rl_module import MultiRLModuleSpec, RLModuleSpec
from jaxrl_stack.replay.device_replay import DeviceReplay
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view
from tests.core.test_learner_updates import ACTION_SPACE, Linear, Regression, config_of
from tests.core.test_losses_over_time import Smooth
from tests.replay.test_frames import BOX, DISCRETE, NUM_FRAMES, Stacks
from tests.test_frames_of_rollouts import Sees

MID, ROWS = DEFAULT_MODULE_ID, Layout()
NUM_STEPS, NUM_ENVS, LENGTH = 6, 4, 3
OBS_SPACE = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [3], "max_seq_len": LENGTH}


class Masks(ConnectorV2):
    """Leaves the last column out."""

    def apply(self, state, batch, ctx):
        mask = np.broadcast_to(np.arange(NUM_ENVS) < NUM_ENVS - 1, (NUM_STEPS, NUM_ENVS))
        assert not ctx.layouts[MID].is_masked
        return state, {MID: {**batch[MID], Columns.LOSS_MASK: jax.numpy.asarray(mask)}}


def ppo_learner(model, **learners):
    return (
        PPOConfig()
        .environment(observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .rl_module(model_config=model)
        .training(lr=0.01)
        .learners(**learners)
        .debugging(seed=0)
        .build_learner()
    )


@pytest.fixture(scope="module")
def recurrent():
    return ppo_learner(LSTM)


@pytest.fixture(scope="module")
def stateless():
    return ppo_learner({"fcnet_hiddens": [3]})


def ppo_block(seed=0):
    """Of a module without a recurrent state."""
    rng, shape = np.random.default_rng(seed), (NUM_STEPS, NUM_ENVS)
    return {
        Columns.OBS: rng.uniform(-1, 1, (*shape, 2)).astype(np.float32),
        Columns.FINAL_OBS: rng.uniform(-1, 1, (*shape, 2)).astype(np.float32),
        Columns.ACTIONS: rng.integers(0, 2, shape),
        Columns.REWARDS: rng.normal(size=shape).astype(np.float32),
        Columns.TERMINATEDS: rng.random(shape) < 0.2,
        Columns.TRUNCATEDS: rng.random(shape) < 0.1,
        Columns.ACTION_LOGP: np.full(shape, np.log(0.5), np.float32),
        Columns.ACTION_DIST_INPUTS: np.zeros((*shape, 2), np.float32),
    }


def like_markers(shape):
    """Columns of a user's own, which are called as those that other layouts have."""
    rng = np.random.default_rng(9)
    return {name: rng.normal(size=shape).astype(np.float32) for name in (Columns.STATE_IN, frames.FRAMES_BEFORE)} | {
        Columns.RESETS: np.ones(shape, bool),
        frames.NUM_BEFORE: np.zeros(shape, np.int32),
    }


def updated(learner, columns, layout, **sizes):
    """Parameters after one update from a block, from this learner's state."""
    update = jax.jit(functools.partial(learner.pure_update, plan=learner.plan(**sizes), axis_name=None))
    blocks = {MID: Block(columns, layout)}
    state, _ = update(host_view(learner.state), blocks, learner.settings(), counters.zero())
    return jax.device_get(state.params)


def connected(learner, columns, layout):
    """A block after the learner's pipeline."""
    connect = jax.jit(functools.partial(learner.pure_update.connect, axis_name=None, layouts=Layouts({MID: layout})))
    return jax.device_get(connect(host_view(learner.state), {MID: columns}, learner.settings(), counters.zero())[1])[
        MID
    ]


def assert_equal(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found, expected)


# --------------------------------------------------------------------------------------------------------------- plans


def test_a_layout_says_how_columns_lie(recurrent, stateless):
    plain = layout_of(stateless.template[MID], NUM_STEPS)
    assert plain == ROWS and not plain.columns and plain == layout_of(stateless.template[MID], 2 * NUM_STEPS)
    planned = Layouts({MID: plain})
    assert hash(planned) == hash(pickle.loads(pickle.dumps(planned))) and planned == Layouts({MID: ROWS})

    framed = layout_of(stateless.template[MID], NUM_STEPS, num_frames=4, is_masked=True, num_agents=2)
    assert framed == Layout(num_frames=4, is_masked=True)
    assert set(framed.columns) == {frames.FRAMES_BEFORE, frames.NUM_BEFORE, Columns.LOSS_MASK}
    assert framed.num_rows(frames.FRAMES_BEFORE, NUM_STEPS) == 1 and Layouts({MID: framed}).in_frames == {MID}

    chunks = layout_of(recurrent.template[MID], NUM_STEPS)
    assert chunks == Layout(LENGTH) and set(chunks.columns) == {Columns.STATE_IN, Columns.RESETS}
    assert chunks.num_rows(Columns.STATE_IN, NUM_STEPS + 1) == 3 and chunks.without_states() == ROWS
    assert layout_of(recurrent.template[MID], 2) == Layout(2)
    assert layout_for_replay(recurrent.template[MID]) == chunks.with_states_of_all_steps() == Layout(1)

    form = functools.partial(form_of_block, stateless.template[MID], ROWS, NUM_STEPS)
    assert (form(needs_time=False), form(needs_time=True)) == (RowForm(), ChunkForm(NUM_STEPS))
    forms = recurrent.forms_of_blocks(NUM_STEPS)
    assert isinstance(forms[MID], SequenceForm) and forms[MID].rows_per_item == LENGTH
    assert forms[MID].num_items(NUM_STEPS + 1, NUM_ENVS) == 3 * NUM_ENVS
    over_time = config_of(Smooth).build_learner().forms_of_blocks(NUM_STEPS)[MID]
    assert over_time == ChunkForm(NUM_STEPS) and not over_time.is_masked


def test_an_unplanned_batch_is_what_its_columns_say(recurrent, stateless):
    of_rows = functools.partial(forms_of_batch, stateless.template, needs_time=False)
    rows = jax.tree.map(lambda x: x[0], ppo_block())
    assert of_rows({MID: rows})[MID] == of_rows({MID: rows | like_markers((NUM_ENVS,))})[MID] == RowForm()
    assert of_rows({MID: rows | {Columns.LOSS_MASK: np.ones(NUM_ENVS, bool)}})[MID] == RowForm(is_masked=True)
    states = {"h": np.zeros((NUM_STEPS, 1, 4), np.float32), "c": np.zeros((NUM_STEPS, 1, 4), np.float32)}
    own = ppo_block() | {Columns.STATE_IN: states}
    # Sequences of replay have no starts of episodes in them.
    found = forms_of_batch(recurrent.template, {MID: own}, needs_time=False)[MID]
    assert found == SequenceForm(NUM_ENVS)
    with pytest.raises(
        ValueError,
        match=r"column 'state_in' with the state before each sequence; this batch has only the columns \['action",
    ):
        recurrent.update(batch=ppo_block())

    masked = {Columns.LOSS_MASK: np.ones((NUM_STEPS, NUM_ENVS), bool)}
    assert Block(ppo_block() | masked).of_module(stateless.template[MID]).layout == Layout(is_masked=True)


def test_a_block_is_what_it_was_sampled_as(recurrent, stateless):
    def block_of(learner, **layout):
        return Block(like_markers((6, 4)), Layout(**layout)).of_module(learner.template[MID]).layout

    assert block_of(stateless) == ROWS and block_of(stateless, num_frames=3) == Layout(num_frames=3)
    assert block_of(recurrent, chunk_length=2, is_masked=True) == Layout(2, is_masked=True)
    recorded = Block.of_recording(recurrent_block(LENGTH * 2), Layout(LENGTH))
    assert recorded.columns[Columns.STATE_IN]["h"].shape[:2] == (2, NUM_ENVS) and recorded.shape == (6, NUM_ENVS)


def sampled(columns, layout):
    return Part({MID: Block(columns, layout)}, NUM_STEPS * NUM_ENVS, num_env_steps=NUM_STEPS * NUM_ENVS)


def layout_of_parts(experience):
    return experience.blocks[MID].layout


def test_parts_side_by_side_lie_as_their_plans_say():
    masked = Layout(is_masked=True)
    block = ppo_block()
    mask = {Columns.LOSS_MASK: np.zeros((NUM_STEPS, NUM_ENVS), bool)}
    both = Experience((sampled(block, ROWS), sampled(block | mask, masked)))
    assert layout_of_parts(both) == layout_of_parts(both.split(2)[0]) == masked
    assert both.modules[MID][Columns.LOSS_MASK].sum() == NUM_STEPS * NUM_ENVS
    assert not Experience().blocks and layout_of_parts(Experience(both.parts[:1])) == ROWS
    assert layout_of_parts(Experience((both.parts[0], sampled(block, None)))) is None


def test_layouts_with_the_same_meaning_are_equal_in_either_order_of_parts():
    together, masked = Layout(num_agents=2), Layout(is_masked=True)
    mask = {Columns.LOSS_MASK: np.ones((NUM_STEPS, NUM_ENVS), bool)}
    parts = (sampled(ppo_block(), together), sampled(ppo_block() | mask, masked))
    assert layout_of_parts(Experience(parts)) == layout_of_parts(Experience(parts[::-1])) == masked


def test_samples_with_other_nested_columns_are_named():
    parts = [sampled(ppo_block() | {"info": {key: np.zeros((NUM_STEPS, NUM_ENVS))}}, ROWS) for key in ("a", "b")]
    with pytest.raises(ValueError, match=r"differ in their columns: .*info\['a'\].* and .*info\['b'\]"):
        _ = Experience(tuple(parts)).modules


def test_env_steps_are_split_like_columns_where_modules_have_other_numbers_of_them():
    columns = {name: {"x": np.zeros((3, number))} for name, number in (("one", 4), ("two", 8))}
    assert [half.num_env_steps for half in Experience.of_steps(columns).split(2)] == [12, 12]


def test_the_layouts_of_columns_that_stay_remote_are_known():
    part = sampled(ppo_block(), Layout(num_frames=2)).kept_at("a reference")
    assert part.is_remote and part.blocks[MID].layout == Layout(num_frames=2) and part.modules == {MID: {}}


def test_rows_are_another_type_than_blocks():
    rows = {name: own[0] for name, own in ppo_block().items()}
    several = Experience.merged([Experience.of_rows({MID: rows})] * 2)
    assert several.is_rows and isinstance(several.blocks[MID], DrawnRows) and several.blocks[MID].size == 2 * NUM_ENVS
    halves = [own.modules[MID][Columns.REWARDS] for own in several.split(2)]
    np.testing.assert_array_equal(halves, [rows[Columns.REWARDS]] * 2)


# ------------------------------------------------------------------------------------------------------------- updates


def test_a_block_that_was_planned_has_columns_of_any_name(stateless):
    rng, shape = np.random.default_rng(0), (NUM_STEPS, NUM_ENVS)
    columns = {
        Columns.OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=shape).astype(np.float32),
    }
    learners = [config_of().build_learner() for _ in range(2)]
    planned = Experience((sampled(columns | like_markers(shape), ROWS),))
    learners[0].update_block(Experience.of_steps({MID: columns}), minibatch_size=8)
    learners[1].update_block(planned, minibatch_size=8)
    assert_equal(*(learner.get_weights() for learner in learners))
    with pytest.raises(ValueError, match="column state_in must contain no recurrent states"):
        learners[0].update_block(Experience.of_steps(planned.modules), minibatch_size=8)
    without_masks = Experience((sampled(ppo_block(), Layout(is_masked=True)),))
    with pytest.raises(ValueError, match=r"lack the columns \['loss_mask'\]"):
        stateless.update_block(without_masks, minibatch_size=8)


def test_columns_called_as_markers_do_not_change_what_rows_are():
    learner = config_of().build_learner()
    rng = np.random.default_rng(0)
    columns = {
        Columns.OBS: rng.normal(size=(NUM_STEPS, NUM_ENVS, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=(NUM_STEPS, NUM_ENVS)).astype(np.float32),
    }
    sizes = {"minibatch_size": 8, "num_epochs": 2, "shuffle_batch_per_epoch": True}
    expected = updated(learner, columns, ROWS, **sizes)
    assert_equal(updated(learner, columns | like_markers((NUM_STEPS, NUM_ENVS)), ROWS, **sizes), expected)
    # Rows that are ready for the loss, and drawn ones.
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), columns)
    other, third = config_of().build_learner(), config_of().build_learner()
    of_plain, of_both = other.update(batch=rows), third.update(batch=rows | like_markers((NUM_STEPS * NUM_ENVS,)))
    assert of_plain[MID] == of_both[MID] and of_both[MID]["num_module_steps_trained"] == NUM_STEPS * NUM_ENVS
    assert_equal(third.get_weights(), other.get_weights())
    other.update_rows(Experience.of_rows({MID: rows}))
    third.update_rows(Experience.of_rows({MID: rows | like_markers((NUM_STEPS * NUM_ENVS,))}))
    assert_equal(third.get_weights(), other.get_weights())


def recurrent_block(num_states=NUM_STEPS // LENGTH):
    block = ppo_block() | {Columns.RESETS: np.zeros((NUM_STEPS, NUM_ENVS), bool)}
    rng = np.random.default_rng(1)
    shape = (num_states, NUM_ENVS, 1, 4)
    return block | {Columns.STATE_IN: {name: rng.normal(size=shape).astype(np.float32) for name in "ch"}}


@pytest.mark.parametrize("missing", [Columns.STATE_IN, Columns.RESETS])
def test_chunks_that_lack_what_is_planned_are_not_taken_for_rows(recurrent, missing):
    layout, columns = layout_of(recurrent.template[MID], NUM_STEPS), recurrent_block()
    updated(recurrent, columns, layout, minibatch_size=6)
    del columns[missing]
    with pytest.raises(ValueError, match=rf"lack the columns \['{missing}'\], which their Layout\(chunk_length=3"):
        updated(recurrent, columns, layout, minibatch_size=6)


def test_masks_are_planned(stateless):
    columns = ppo_block()
    masked = columns | {Columns.LOSS_MASK: np.ones((NUM_STEPS, NUM_ENVS), bool)}
    with_masks = Layout(is_masked=True)
    of_plain, of_masked = updated(stateless, columns, ROWS), updated(stateless, masked, with_masks)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), of_plain, of_masked)
    with pytest.raises(ValueError, match=r"lack the columns \['loss_mask'\]"):
        updated(stateless, columns, with_masks)
    with pytest.raises(ValueError, match="'loss_mask', but their layout has is_masked=False"):
        updated(stateless, masked, ROWS)


def test_frames_are_stacked_where_they_are_planned():
    columns = Stacks(NUM_ENVS, seed=5).rollout(NUM_STEPS)
    resets = np.zeros((NUM_STEPS, NUM_ENVS), bool)
    learner = Regression(
        config=config_of(), module_spec=RLModuleSpec(module_class=Sees, observation_space=BOX, action_space=DISCRETE)
    )
    learner.build()
    single = frames.as_frames(columns, resets, NUM_FRAMES)
    whole = frames.stacked(single)
    of_frames = Layout(num_frames=NUM_FRAMES)
    assert_equal(Block(single, of_frames).whole_observations().columns, whole)
    assert_equal(updated(learner, single, of_frames, minibatch_size=8), updated(learner, whole, ROWS, minibatch_size=8))
    with pytest.raises(ValueError, match=r"lack the columns \['frames_before', 'num_before'\].*num_frames=\d"):
        updated(learner, whole, of_frames, minibatch_size=8)


# ---------------------------------------------------------------------------------------------------------- connectors


def test_advantages_follow_the_layout(stateless, recurrent):
    columns = ppo_block()
    expected = connected(stateless, columns, ROWS)
    found = connected(stateless, columns | like_markers((NUM_STEPS, NUM_ENVS)), ROWS)
    for name in (Columns.ADVANTAGES, Columns.VALUE_TARGETS):
        np.testing.assert_array_equal(found[name], expected[name])
    # Chunks of the planned length, whatever max_seq_len is: a chunk goes on from its own state.
    block = recurrent_block()
    whole = jax.tree.map(lambda x: x[:1], block[Columns.STATE_IN])
    layout = layout_of(recurrent.template[MID], NUM_STEPS)
    short = connected(recurrent, block, layout)[Columns.VALUE_TARGETS]
    long = connected(recurrent, block | {Columns.STATE_IN: whole}, dataclasses.replace(layout, chunk_length=NUM_STEPS))[
        Columns.VALUE_TARGETS
    ]
    assert short.shape == long.shape and not np.allclose(short, long)


def test_masks_that_a_connector_adds_count_after_it():
    learner = ppo_learner({"fcnet_hiddens": [3]}, learner_connector=lambda obs, act: [Masks()])
    found = connected(learner, ppo_block(), ROWS)
    advantages = found[Columns.ADVANTAGES][:, :-1]
    np.testing.assert_allclose([advantages.mean(), advantages.std()], [0.0, 1.0], atol=1e-5)
    # The update leaves them out, too: what the last column's actions were makes no difference.
    columns = ppo_block()
    others = columns[Columns.ACTIONS].copy()
    others[:, -1] = 1 - others[:, -1]
    assert_equal(updated(learner, columns | {Columns.ACTIONS: others}, ROWS), updated(learner, columns, ROWS))


class AddsAModule(ConnectorV2):
    def apply(self, state, batch, ctx):
        return state, {**batch, "added": {name: batch[MID][name] for name in (Columns.OBS, Columns.REWARDS)}}


def test_modules_that_a_connector_adds_have_layouts():
    own = {"module_class": Linear, "observation_space": gym.spaces.Box(-1, 1, (3,)), "action_space": ACTION_SPACE}
    specs = {MID: RLModuleSpec(**own), "added": RLModuleSpec(**own, learner_only=True)}
    config = config_of(learner_connector=lambda obs, act: [AddsAModule()])
    learner = Regression(config=config, module_spec=MultiRLModuleSpec(rl_module_specs=specs))
    learner.build()
    rng = np.random.default_rng(0)
    block = {
        Columns.OBS: rng.normal(size=(NUM_STEPS, NUM_ENVS, 3)).astype(np.float32),
        Columns.REWARDS: rng.normal(size=(NUM_STEPS, NUM_ENVS)).astype(np.float32),
    }
    for results in (
        learner.update_block(Experience.of_steps({MID: block}), minibatch_size=8),
        learner.update_rows(Experience.of_rows({MID: jax.tree.map(lambda x: x[0], block)})) or learner.row_results(),
    ):
        assert results["added"]["total_loss"] == results[MID]["total_loss"]


# ---------------------------------------------------------------------------------------------------- blocks, replay


def test_rows_are_laid_out_by_their_form():
    sizes = {"num_devices": 1, "num_shards": 1, "size": 6, "mask": True}
    columns = {Columns.REWARDS: np.zeros((5, LENGTH), np.float32)}
    # Chunks without a state, and rows with a column that is called so.
    mask = lay_out_rows(columns, ChunkForm(LENGTH), **sizes).columns[Columns.LOSS_MASK]
    assert mask.shape == (1, 1, 6, LENGTH) and mask[0, 0, :5].all() and not mask[0, 0, 5].any()
    rows = {Columns.REWARDS: np.zeros(5, np.float32), Columns.STATE_IN: np.zeros((5, 2), np.float32)}
    mask = lay_out_rows(rows, RowForm(), **sizes).columns[Columns.LOSS_MASK]
    np.testing.assert_array_equal(mask, [[[1, 1, 1, 1, 1, 0]]])


def test_blocks_are_cut_by_their_layout():
    columns = {Columns.REWARDS: np.arange(10.0).reshape(5, 2), Columns.STATE_IN: np.arange(5.0)[:, None] + [[0, 1]]}
    chunks = Block(columns, ROWS).chunks(LENGTH)
    assert {name: own.shape for name, own in chunks.items()} == dict.fromkeys([*columns, Columns.LOSS_MASK], (2, 2, 3))


def test_replay_on_the_device_keeps_what_it_is_made_for():
    stored = {"capacity": 32, "num_envs": 2, "batch_size": 4, "length": 4}
    columns = {
        name: np.zeros((8, 2), bool if name in ("terminateds", "truncateds") else np.float32)
        for name in ("obs", "final_obs", "actions", "rewards", "terminateds", "truncateds", "state_in")
    }
    sampled = {}
    for extra in ((), ("state_in",)):
        replay = DeviceReplay(**stored, extra_columns=extra)

        @jax.jit
        def sample(key, replay=replay):
            return replay.sample_sequences(replay.add(replay.init(columns), columns), key)

        sampled[extra], _ = sample(jax.random.key(0))
    assert "state_in" not in sampled[()] and sampled["state_in",]["state_in"].shape == (4,)
    without = {name: own for name, own in columns.items() if name != "state_in"}
    with pytest.raises(ValueError, match=r"lacks the columns \['state_in'\]"):
        DeviceReplay(**stored, extra_columns=("state_in",)).init(without)
