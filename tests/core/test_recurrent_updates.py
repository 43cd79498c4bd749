"""Sequences of modules with a recurrent state: chunks, values, and modules that see no start of an episode in them."""

from __future__ import annotations

import functools

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from envs.counter import CounterEnv
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.ppo.default_ppo_rl_module import DefaultPPORLModule
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.block import Block
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.layouts import Layout
from jaxrl_stack.core.rl_module.rl_module import RLModuleSpec
from jaxrl_stack.core.rl_module.row_independence import handles_resets
from jaxrl_stack.core.rl_module.sequences import step_by_step
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.env.single_agent_episode import SingleAgentEpisode
from jaxrl_stack.utils import counters

OBS_SPACE, ACTION_SPACE = gym.spaces.Box(0.0, np.inf, (1,)), gym.spaces.Discrete(2)
NUM_ENVS, NUM_STEPS, LENGTH = 2, 9, 4
GAMMA, LAMBDA = 0.9, 0.8
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "fcnet_hiddens": [3], "max_seq_len": LENGTH, "vf_share_layers": False}
NUMPY = functools.partial(jax.tree.map, np.asarray)


class Unaware(DefaultPPORLModule):
    """The same networks, by methods that were written without a thought of starts of episodes within sequences."""

    def _forward(self, batch, **kwargs):
        return super()._forward({name: batch[name] for name in (Columns.OBS, Columns.STATE_IN)})

    def _forward_train(self, batch, **kwargs):
        outputs = super()._forward_train({name: batch[name] for name in (Columns.OBS, Columns.STATE_IN)})
        return {name: own for name, own in outputs.items() if name != Columns.STATE_OUT}

    def compute_values(self, batch, embeddings=None):
        own = {name: batch[name] for name in (Columns.OBS, Columns.STATE_IN)}
        return super().compute_values(own, embeddings)


def config_of(module_class=None, **networks):
    config = (
        PPOConfig()
        .environment("counter_with_a_time_limit", observation_space=OBS_SPACE, action_space=ACTION_SPACE)
        .env_runners(
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=NUM_STEPS,
            env_to_module_connector=lambda env, spaces, device: MeanStdFilter(),
        )
        .training(
            train_batch_size_per_learner=NUM_ENVS * NUM_STEPS,
            minibatch_size=None,
            gamma=GAMMA,
            lambda_=LAMBDA,
            lr=0.01,
            vf_clip_param=1e6,
        )
        .learners(num_cpus_per_learner=1)
        .debugging(seed=3)
    )
    if module_class is None:
        return config.rl_module(model_config={**LSTM, **networks})
    return config.rl_module(rl_module_spec=RLModuleSpec(module_class=module_class, model_config={**LSTM, **networks}))


@pytest.fixture(scope="module")
def block():
    """What a runner of gymnasium environments samples, which ends in the middle of an episode, its second block."""
    register_env(
        "counter_with_a_time_limit",
        lambda context: GymnasiumFromJax(CounterEnv, {"terminate_at": None, "truncate_at": 5}),
    )
    runner = SingleAgentEnvRunner(config=config_of())
    runner.sample_block(num_steps=7)
    columns = runner.sample_block(num_steps=NUM_STEPS).experience.modules[DEFAULT_MODULE_ID]
    runner.stop()
    return columns


def connected(learner, columns):
    """The block after the learner pipeline: with advantages and value targets."""

    @jax.jit
    def connect(state, columns):
        settings = jax.tree.map(jnp.asarray, learner.settings())
        return learner.pure_update.connect(
            state, {DEFAULT_MODULE_ID: columns}, settings, counters.zero(), axis_name=None
        )[1]

    return NUMPY(connect(learner.state, columns)[DEFAULT_MODULE_ID])


def targets_by_hand(module, columns, column):
    """Value targets of one column, step by step."""

    @jax.jit
    def value_and_state(obs, state):
        batch = jax.tree.map(lambda x: x[None], {Columns.OBS: obs[None], Columns.STATE_IN: state})
        state = jax.tree.map(lambda x: x[0], module.forward_train(batch)[Columns.STATE_OUT])
        return module.compute_values(batch)[0, 0], state

    def get(name, t):
        return jax.tree.map(lambda x: x[t, column], columns[name])

    state, values, after = get(Columns.STATE_IN, 0), [], []
    for t in range(NUM_STEPS):
        if columns[Columns.RESETS][t, column]:
            state = module.get_initial_state()
        if t % LENGTH == 0:
            recorded = get(Columns.STATE_IN, t // LENGTH)
            jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), state, recorded)
        value, state = value_and_state(get(Columns.OBS, t), state)
        values.append(value)
        ends = get(Columns.TRUNCATEDS, t) or t == NUM_STEPS - 1
        after.append(value_and_state(get(Columns.FINAL_OBS, t), state)[0] if ends else None)
    advantage, targets = 0.0, np.zeros(NUM_STEPS)
    for t in reversed(range(NUM_STEPS)):
        next_value = values[t + 1] if after[t] is None else after[t]
        advantage = 0.0 if after[t] is not None else advantage
        advantage = get(Columns.REWARDS, t) + GAMMA * next_value - values[t] + GAMMA * LAMBDA * advantage
        targets[t] = advantage + values[t]
    return targets


@pytest.mark.parametrize("module_class", [None, Unaware])
def test_a_time_limit_bootstraps_with_the_state_of_that_moment(block, module_class):
    learner = config_of(module_class).build_learner()
    # Ends within chunks, at the end of one, and a cut at the end of the block; a filter changes the observations.
    ends = np.argwhere(block[Columns.TRUNCATEDS])[:, 0]
    assert {2, 7} == set(ends) and not block[Columns.TRUNCATEDS][-1].any()
    assert len(np.unique(block[Columns.FINAL_OBS][ends])) > 1
    assert handles_resets(learner.module[DEFAULT_MODULE_ID]) == (module_class is None)
    found = connected(learner, block)[Columns.VALUE_TARGETS]
    reference = config_of().build_learner().module[DEFAULT_MODULE_ID]
    for column in range(NUM_ENVS):
        np.testing.assert_allclose(found[:, column], targets_by_hand(reference, block, column), rtol=2e-5, atol=2e-5)


def weights_after_update(learner, columns, **sizes):
    learner.update_block(Experience.of_steps({DEFAULT_MODULE_ID: columns}), num_epochs=2, **sizes)
    return learner.get_weights()


def test_a_module_that_knows_no_resets_learns_the_same(block):
    # The first program is the first one of the next test, too.
    learners = [config_of(each).learners(num_shuffle_shards=2).build_learner() for each in (None, Unaware)]
    before = learners[0].get_weights()
    one, other = (weights_after_update(learner, block, minibatch_size=8) for learner in learners)
    for ref, value in one.items():
        np.testing.assert_allclose(other[ref], value, atol=2e-6, err_msg=ref)
    assert min(np.abs(one[ref] - before[ref]).max() for ref in one) > 1e-3
    # Two chunks of 4 steps in a minibatch: of the 6, with 2 rows filled up, each is in one of 3 gradient steps.
    results = learners[0].row_results()[DEFAULT_MODULE_ID]
    assert results["num_module_steps_trained"] == round(2 * 3 * 2 * NUM_ENVS * NUM_STEPS / 6)


def test_two_devices_make_the_update_of_one(block):
    one, two = (
        weights_after_update(
            config_of().learners(num_cpus_per_learner=number, num_shuffle_shards=2).build_learner(),
            block,
            minibatch_size=8,
        )
        for number in (1, 2)
    )
    for ref, value in one.items():
        np.testing.assert_allclose(two[ref], value, atol=1e-5, err_msg=ref)


def test_a_runner_that_takes_the_place_of_another_starts_without_its_memory(block):
    first, second = (SingleAgentEnvRunner(config=config_of()) for _ in range(2))
    first.sample_block(num_steps=3)
    second.set_state(first.get_state())
    columns = second.sample_block(num_steps=NUM_STEPS).experience.modules[DEFAULT_MODULE_ID]
    assert columns[Columns.RESETS][0].all() and not block[Columns.RESETS][0].all()
    for new, old in zip(*(jax.tree.leaves(own[Columns.STATE_IN]) for own in (columns, block)), strict=True):
        assert not new[0].any() and old[0].any()
    for runner in (first, second):
        runner.stop()


def test_state_of_the_module_changes_as_in_the_steps():
    class Counts(Unaware):
        def setup(self):
            super().setup()
            self.count = nnx.Variable(jnp.float32(0.0))

        def _forward_train(self, batch, **kwargs):
            self.count[...] = self.count[...] + batch[Columns.OBS].shape[1]
            return super()._forward_train(batch)

    module = Counts(observation_space=OBS_SPACE, action_space=ACTION_SPACE, model_config=LSTM, rngs=nnx.Rngs(0))
    batch = {
        Columns.OBS: np.ones((3, LENGTH, 1), np.float32),
        Columns.RESETS: np.zeros((3, LENGTH), bool),
        Columns.STATE_IN: jax.tree.map(lambda x: jnp.ones((3, *x.shape)), module.get_initial_state()),
    }
    columns, outputs = step_by_step(module, batch)
    assert float(module.count[...]) == LENGTH
    assert columns[Columns.OBS].shape == (3 * LENGTH, 1, 1) and not columns[Columns.RESETS].any()
    whole = module.forward_train(batch)
    np.testing.assert_allclose(
        outputs[Columns.ACTION_DIST_INPUTS].reshape(3, LENGTH, 2), whole[Columns.ACTION_DIST_INPUTS], atol=1e-6
    )


def test_chunks_are_filled_up_and_masked():
    steps = np.arange(10.0).reshape(5, 2)
    columns = {Columns.REWARDS: steps, Columns.STATE_IN: {"h": np.zeros((2, 2, 3))}}
    chunks = Block(columns, Layout(3)).chunks(3)
    np.testing.assert_array_equal(chunks[Columns.REWARDS], [[[0, 2, 4], [1, 3, 5]], [[6, 8, 0], [7, 9, 0]]])
    np.testing.assert_array_equal(chunks[Columns.LOSS_MASK][1], [[True, True, False]] * 2)
    assert chunks[Columns.LOSS_MASK][0].all() and chunks[Columns.STATE_IN] is columns[Columns.STATE_IN]
    assert Columns.LOSS_MASK not in Block({**columns, Columns.REWARDS: steps[:4]}, Layout(2)).chunks(2)


def test_episodes_of_one_bucket_are_one_program_and_those_without_states_are_refused(block):
    learner = config_of().build_learner()

    def episode(length, **outputs):
        out = SingleAgentEpisode()
        out.add_env_reset(np.zeros(1, np.float32))
        for t in range(length):
            logits = {Columns.ACTION_DIST_INPUTS: np.zeros(2, np.float32), Columns.ACTION_LOGP: np.float32(-0.7)}
            out.add_env_step(np.full(1, t, np.float32), 0, 1.0, extra_model_outputs={**logits, **outputs})
        return out

    state = NUMPY(learner.module[DEFAULT_MODULE_ID].get_initial_state())
    sizes = []
    for lengths in ((9, 5), (11, 7, 6)):
        episodes = [episode(length, state_out=state) for length in lengths]
        sizes.append(learner.update(episodes=episodes)[DEFAULT_MODULE_ID]["module_train_batch_size_mean"])
    assert sizes == [14, 24]
    with pytest.raises(ValueError, match="no recurrent states.*'state_in'.*'state_out'"):
        learner.update(episodes=[episode(LENGTH + 1)])
