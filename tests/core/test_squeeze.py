"""Blocks in which agents skip steps: squeezed, and what connectors and replay make of them."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.connectors.learner import ComputeReturnsToGo
from jaxrl_stack.core import DEFAULT_MODULE_ID as MID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.frames import FRAMES_BEFORE
from jaxrl_stack.core.layouts import Layouts, layout_of
from jaxrl_stack.core.squeeze import squeezed
from jaxrl_stack.ops import masks
from jaxrl_stack.replay.episode_replay_buffer import EpisodeReplayBuffer
from jaxrl_stack.utils import counters

NUM_AGENTS, NUM_STEPS, NUM_BLOCKS, LENGTH = 200, 9, 3, 4
GAMMA, LAMBDA = 0.9, 0.8
STEP_COLUMNS = (Columns.OBS, Columns.FINAL_OBS, Columns.REWARDS, Columns.TERMINATEDS, Columns.TRUNCATEDS)


def test_rows_of_true_values_come_first_in_their_order():
    mask = jnp.array([[False, True, False], [True, True, False], [False, False, False], [True, False, False]])
    rows, is_valid = jax.jit(masks.valid_first)(mask)
    np.testing.assert_array_equal(rows, [[1, 0, 3], [3, 1, 3], [3, 3, 3], [3, 3, 3]])
    np.testing.assert_array_equal(is_valid, [[True, True, False], [True, True, False], [False] * 3, [False] * 3])


def test_every_column_of_a_block_moves_with_its_rows():
    rng, (num_steps, num_columns) = np.random.default_rng(0), (7, 5)
    shape = (num_steps, num_columns)
    mask = rng.random(shape) < 0.5
    mask[:, 1], mask[:, 2] = False, True
    columns = {
        Columns.OBS: {"image": rng.integers(0, 255, (*shape, 2, 2), np.uint8), "x": rng.normal(size=shape)},
        Columns.FINAL_OBS: rng.normal(size=(*shape, 3)).astype(np.float32),
        Columns.STATE_IN: (rng.normal(size=(*shape, 4)).astype(np.float32),),
        Columns.TERMINATEDS: rng.random(shape) < 0.5,
        Columns.RESETS: rng.random(shape) < 0.5,
        Columns.ACTIONS: rng.integers(0, 9, shape, np.int32),
        FRAMES_BEFORE: rng.random((1, num_columns, 3)).astype(np.float32),
        Columns.LOSS_MASK: mask,
    }
    out = jax.jit(squeezed)(columns)
    assert out.keys() == columns.keys()
    np.testing.assert_array_equal(out[FRAMES_BEFORE], columns[FRAMES_BEFORE])
    for before, after in zip(jax.tree.leaves(columns), jax.tree.leaves(out), strict=True):
        if len(before) == 1:
            continue
        assert before.shape == after.shape
        for b in range(num_columns):
            own = before[mask[:, b], b]
            expected = jnp.asarray(own) if before is not mask else np.ones(len(own), bool)
            np.testing.assert_array_equal(after[: len(own), b], expected)
    np.testing.assert_array_equal(out[Columns.LOSS_MASK].sum(axis=0), mask.sum(axis=0))


def test_a_block_without_masked_rows_stays_as_it_is():
    columns = {Columns.REWARDS: np.arange(6, dtype=np.float32).reshape(3, 2), Columns.LOSS_MASK: np.ones((3, 2), bool)}
    for name, own in squeezed(columns).items():
        np.testing.assert_array_equal(own, columns[name])


# --------------------------------------------------------------------------------------------- against a loop per agent


class Agent:
    """Steps of one agent: each completes in a row, later or sooner after the one before, or none does.

    Attributes:
        rows: The rows in which steps complete, of all blocks.
        steps: ``{column: value}`` of each; observations are numbers that no other step has.
    """

    def __init__(self, number: int):
        rng = np.random.default_rng(number)
        self.rows = np.flatnonzero(rng.random(NUM_BLOCKS * NUM_STEPS) < rng.choice([0.0, 0.1, 0.5, 0.9, 1.0]))
        self.steps = []
        obs, begins = rng.normal(), True
        for _ in self.rows:
            ends, after = rng.choice(["", "terminated", "truncated"], p=[0.7, 0.15, 0.15]), rng.normal()
            values = (obs, after, rng.normal(), ends == "terminated", ends == "truncated")
            self.steps.append(dict(zip(STEP_COLUMNS, values, strict=True)) | {Columns.RESETS: begins})
            obs, begins = (rng.normal(), True) if ends else (after, False)

    def of_block(self, block: int) -> list[dict]:
        """Its steps in a block."""
        first = block * NUM_STEPS
        return [step for row, step in zip(self.rows, self.steps, strict=True) if first <= row < first + NUM_STEPS]


AGENTS = [Agent(number) for number in range(NUM_AGENTS)]


def block_of(block: int, agents: list[Agent], **more) -> dict:
    """Columns ``[T, B, ...]`` of a block as it was sampled, zeros in rows where an agent completes no step."""
    first, shape = block * NUM_STEPS, (NUM_STEPS, len(agents))
    dtypes = dict(zip((*STEP_COLUMNS, Columns.RESETS), [np.float32] * 3 + [np.bool_] * 3, strict=True))
    out = {name: np.zeros(shape, dtype) for name, dtype in dtypes.items()}
    mask = np.zeros(shape, bool)
    for b, agent in enumerate(agents):
        for row, step in zip(agent.rows, agent.steps, strict=True):
            if first <= row < first + NUM_STEPS:
                mask[row - first, b] = True
                for name, own in out.items():
                    own[row - first, b] = step[name]
    out |= {name: out[name][..., None] for name in (Columns.OBS, Columns.FINAL_OBS)}
    return {**out, **more, Columns.LOSS_MASK: mask}


def learner_of(**model_config):
    return (
        PPOConfig()
        .environment(observation_space=gym.spaces.Box(-9.0, 9.0, (1,)), action_space=gym.spaces.Discrete(2))
        .rl_module(model_config={"fcnet_hiddens": [4], **model_config})
        .training(gamma=GAMMA, lambda_=LAMBDA)
        .learners(num_cpus_per_learner=1)
        .build_learner()
    )


def connected(learner, columns):
    """The block after the learner pipeline."""
    layouts = Layouts({MID: layout_of(learner.template[MID], NUM_STEPS, is_masked=True)})

    @jax.jit
    def connect(columns):
        settings = jax.tree.map(jnp.asarray, learner.settings())
        batch, state = {MID: columns}, learner.state
        return learner.pure_update.connect(state, batch, settings, counters.zero(), axis_name=None, layouts=layouts)[1]

    return jax.device_get(connect(columns)[MID])


def targets_of(steps, value_of, after_of) -> list[float]:
    """Value targets of consecutive steps of one agent, one by one from the last one."""
    targets, advantage, next_value = [], 0.0, None
    for step in reversed(steps):
        ends = step[Columns.TERMINATEDS] or step[Columns.TRUNCATEDS]
        if ends or next_value is None:
            advantage, next_value = 0.0, 0.0 if step[Columns.TERMINATEDS] else after_of(step)
        value = value_of(step)
        advantage = step[Columns.REWARDS] + GAMMA * next_value - value + GAMMA * LAMBDA * advantage
        targets.append(advantage + value)
        next_value = value
    return targets[::-1]


def test_advantages_are_those_of_a_loop_over_each_agents_steps():
    learner = learner_of()
    module: Any = learner.module[MID]
    numbers = np.array([[step[name] for name in STEP_COLUMNS[:2]] for own in AGENTS for step in own.steps])
    seen = module.compute_values({Columns.OBS: jnp.asarray(numbers.reshape(-1, 1), jnp.float32)})
    values = dict(zip(numbers.reshape(-1).tolist(), np.asarray(seen).tolist(), strict=True))
    for block in range(NUM_BLOCKS):
        columns = squeezed(block_of(block, AGENTS))
        out = connected(learner, columns)
        mask, expected = out[Columns.LOSS_MASK], np.zeros((NUM_STEPS, NUM_AGENTS))
        for b, agent in enumerate(AGENTS):
            steps = agent.of_block(block)
            assert mask[:, b].tolist() == [True] * len(steps) + [False] * (NUM_STEPS - len(steps))
            targets = targets_of(steps, lambda s: values[s[Columns.OBS]], lambda s: values[s[Columns.FINAL_OBS]])
            expected[: len(steps), b] = targets
        np.testing.assert_allclose(out[Columns.VALUE_TARGETS], expected, rtol=1e-4, atol=1e-5)
        own = np.vectorize(lambda obs: values.get(obs, 0.0))
        obs = [step[Columns.OBS] for agent in AGENTS for step in agent.of_block(block)]
        advantages = expected.T[mask.T] - own(obs)
        standardised = (advantages - advantages.mean()) / advantages.std()
        np.testing.assert_allclose(out[Columns.ADVANTAGES].T[mask.T], standardised, rtol=1e-3, atol=1e-4)


def test_returns_to_go_are_those_of_a_loop_over_each_agents_steps():
    apply = jax.jit(ComputeReturnsToGo(gamma=GAMMA).apply)
    for block in range(NUM_BLOCKS):
        out = apply((), {MID: squeezed(block_of(block, AGENTS))}, ConnectorContext())[1][MID]
        expected = np.zeros((NUM_STEPS, NUM_AGENTS))
        for b, agent in enumerate(AGENTS):
            after = 0.0
            for k, step in reversed(list(enumerate(agent.of_block(block)))):
                after = 0.0 if step[Columns.TERMINATEDS] or step[Columns.TRUNCATEDS] else after
                after = expected[k, b] = step[Columns.REWARDS] + GAMMA * after
        np.testing.assert_allclose(out[Columns.RETURNS_TO_GO], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("says_starts", [False, True])
def test_n_step_transitions_are_those_of_a_loop_over_each_agents_steps(says_starts):
    """Over all blocks: an agent's episode goes on after blocks in which it completes no step."""
    buffer = EpisodeReplayBuffer(NUM_AGENTS * NUM_BLOCKS * NUM_STEPS, seed=0)
    for block in range(NUM_BLOCKS):
        columns = jax.device_get(squeezed(block_of(block, AGENTS)))
        starts = columns[Columns.RESETS][0] if says_starts else None
        actions = np.zeros((NUM_STEPS, NUM_AGENTS), np.int32)
        buffer.add_block({**columns, Columns.ACTIONS: actions}, serial=block, starts=starts)
    expected = {}
    for agent in AGENTS:
        for first, step in enumerate(agent.steps):
            total, last, number = 0.0, step, 0
            for k, last in enumerate(agent.steps[first : first + 3]):
                total, number = total + GAMMA**k * last[Columns.REWARDS], k + 1
                if last[Columns.TERMINATEDS] or last[Columns.TRUNCATEDS]:
                    break
            after = (total, last[Columns.FINAL_OBS], last[Columns.TERMINATEDS], number)
            expected[np.float32(step[Columns.OBS])] = after
    assert buffer.get_num_timesteps() == len(expected)
    drawn = buffer.sample_batch(4000, n_step=3, gamma=GAMMA)
    names = (Columns.REWARDS, Columns.NEXT_OBS, Columns.TERMINATEDS, "n_step")
    found = np.stack([np.asarray(drawn[name], np.float64).reshape(4000) for name in names], axis=1)
    np.testing.assert_allclose(found, [expected[obs] for obs in drawn[Columns.OBS][:, 0]], rtol=1e-5, atol=1e-5)


def test_values_of_a_recurrent_module_are_those_of_a_loop_over_each_agents_steps():
    learner = learner_of(use_lstm=True, lstm_cell_size=4, max_seq_len=LENGTH, vf_share_layers=False)
    agents: list[Agent] = [Agent(number) for number in (0, 1, 2, 5, 6, 9)]
    module: Any = learner.module[MID]
    initial = jax.device_get(module.get_initial_state())

    @jax.jit
    def value_and_state(obs, state):
        batch = {Columns.OBS: obs.reshape(1, 1, 1), Columns.STATE_IN: jax.tree.map(lambda x: x[None], state)}
        state = jax.tree.map(lambda x: x[0], module.forward_train(batch)[Columns.STATE_OUT])
        return module.compute_values(batch)[0, 0], state

    running = [initial] * len(agents)
    for block in range(NUM_BLOCKS):
        expected = np.zeros((NUM_STEPS, len(agents)))
        states = jax.tree.map(lambda x: np.full((NUM_STEPS, len(agents), *x.shape), 7.0, np.float32), initial)
        for b, agent in enumerate(agents):
            steps, values, after = agent.of_block(block), {}, {}
            in_block = [row - block * NUM_STEPS for row in agent.rows if row // NUM_STEPS == block]
            for row, step in zip(in_block, steps, strict=True):
                state = initial if step[Columns.RESETS] else running[b]
                jax.tree.map(lambda all_rows, own, at=(row, b): all_rows.__setitem__(at, own), states, running[b])
                values[step[Columns.OBS]], running[b] = value_and_state(np.float32(step[Columns.OBS]), state)
                after[step[Columns.OBS]] = value_and_state(np.float32(step[Columns.FINAL_OBS]), running[b])[0]
            value_of, after_of = (functools.partial(lambda own, s: own[s[Columns.OBS]], own) for own in (values, after))
            expected[: len(steps), b] = targets_of(steps, value_of, after_of)
        columns = squeezed(block_of(block, agents, **{Columns.STATE_IN: states}))
        layout = layout_of(learner.template[MID], NUM_STEPS, is_masked=True)
        out = connected(learner, Block.of_recording(columns, layout).columns)
        np.testing.assert_allclose(out[Columns.VALUE_TARGETS], expected, rtol=1e-4, atol=1e-5)
