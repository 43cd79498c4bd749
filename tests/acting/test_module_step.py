"""The one step of acting, under a module with a recurrent state."""

from __future__ import annotations

import dataclasses
import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.counter import CounterEnv
from jaxrl_stack.acting.device_rollout import DeviceRollout
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience, Share
from jaxrl_stack.core.layouts import layout_of
from jaxrl_stack.core.rl_module.functional import PureModule
from jaxrl_stack.core.rl_module.rl_module import RLModule, RLModuleSpec
from jaxrl_stack.env.jax_to_gymnasium import GymnasiumFromJax
from jaxrl_stack.env.module_pipelines import pure_pipelines
from jaxrl_stack.env.registry import register_env
from jaxrl_stack.env.single_agent_env_runner import SingleAgentEnvRunner
from jaxrl_stack.utils import counters

NUM_ENVS, LENGTH = 2, 3


class Draws(RLModule):
    """Reports what it draws while it explores."""

    def setup(self):
        self.random_stream = self.rngs["exploration"].fork()

    def _forward(self, batch, **kwargs):
        drawn = jax.random.uniform(self.random_stream(), batch[Columns.OBS].shape[:-1])
        return {Columns.ACTION_DIST_INPUTS: jnp.zeros((*drawn.shape, 2)), "drawn": drawn}


class Sum(RLModule):
    """Remembers the sum of its observations, which begins with 0.5; the action does not matter."""

    def get_initial_state(self):
        return {"sum": np.full(1, 0.5, np.float32)}

    def _forward(self, batch, **kwargs):
        total = batch[Columns.STATE_IN]["sum"][:, None] + jnp.cumsum(batch[Columns.OBS], axis=1)
        return {
            Columns.ACTION_DIST_INPUTS: jnp.concatenate([total, -total], axis=-1),
            Columns.STATE_OUT: {"sum": total[:, -1]},
        }


@pytest.fixture(scope="module")
def runner():
    register_env("counter_on_the_host", lambda ctx: GymnasiumFromJax(CounterEnv, ctx))
    config = (
        PPOConfig()
        .environment("counter_on_the_host", env_config={"terminate_at": LENGTH})
        .env_runners(num_envs_per_env_runner=NUM_ENVS)
        .rl_module(rl_module_spec=RLModuleSpec(module_class=Sum, model_config={"max_seq_len": 2}))
    )
    runner = SingleAgentEnvRunner(config=config)
    yield runner
    runner.stop()


def on_host(runner: SingleAgentEnvRunner, *, random_actions: bool):
    episodes = runner.sample(num_episodes=4, random_actions=random_actions)
    columns = (Columns.STATE_IN, Columns.STATE_OUT) if not random_actions else (Columns.STATE_IN,)
    return [[np.ravel(e.get_extra_model_outputs(name)["sum"]) for name in columns] for e in episodes]


def rollout_of(runner: SingleAgentEnvRunner, module_class: type[RLModule], **model_config) -> DeviceRollout:
    config, spaces = runner.config, runner.get_spaces()
    spec = RLModuleSpec(module_class=module_class, model_config=model_config or None)
    spec = config.copy(copy_frozen=False).rl_module(rl_module_spec=spec)
    env = CounterEnv(terminate_at=LENGTH)
    pure = PureModule(spec.get_multi_rl_module_spec(spaces=spaces).build(seed=0).as_multi_rl_module())
    modules = pure_pipelines(config, env, config.module_map).steps(pure)
    return DeviceRollout(env=env, modules=modules, module_map=config.module_map)


def on_device(runner: SingleAgentEnvRunner):
    rollout = rollout_of(runner, Sum)
    pure = rollout.pure

    @jax.jit
    def sample(key):
        state = rollout.init(key, NUM_ENVS)
        context = rollout.context(pure.params, pure.rest, {DEFAULT_MODULE_ID: {}}, counters.zero(), explore=True)
        return rollout.unroll(state, context, num_steps=2 * LENGTH)[1].columns[DEFAULT_MODULE_ID]

    columns = sample(jax.random.key(0))
    return [columns[name]["sum"][..., 0] for name in (Columns.STATE_IN, Columns.STATE_OUT)]


def test_recurrent_state_goes_from_step_to_step_and_starts_anew_with_every_episode(runner):
    # Observations are 0, 1, 2.
    before, after = [0.5, 0.5, 1.5], [0.5, 1.5, 3.5]
    for state_in, state_out in on_host(runner, random_actions=False):
        np.testing.assert_array_equal(state_in, before)
        np.testing.assert_array_equal(state_out, after)
    state_in, state_out = on_device(runner)
    np.testing.assert_array_equal(state_in, np.tile(before, (NUM_ENVS, 2)).T)
    np.testing.assert_array_equal(state_out, np.tile(after, (NUM_ENVS, 2)).T)


def states_of_fragments(runner: SingleAgentEnvRunner, **model_config):
    """``STATE_IN`` of two fragments of 5 steps, one after the other, of all environments: ``[chunks, 2 * B]``."""
    rollout = rollout_of(runner, Sum, **model_config)
    pure = rollout.pure

    @jax.jit
    def sample(key):
        state = rollout.init(key, NUM_ENVS)
        context = rollout.context(pure.params, pure.rest, {DEFAULT_MODULE_ID: {}}, counters.zero(), explore=True)
        layout = layout_of(pure.template[DEFAULT_MODULE_ID], 5)
        columns = rollout.unroll(state, context, num_steps=10)[1].columns[DEFAULT_MODULE_ID]
        return rollout.block(DEFAULT_MODULE_ID, columns, 2, layout).columns

    columns = sample(jax.random.key(0))
    assert columns[Columns.OBS].shape == (5, 2 * NUM_ENVS, 1) and Columns.STATE_OUT not in columns
    return columns[Columns.STATE_IN]["sum"][..., 0]


def test_what_is_learned_from_holds_recurrent_states_at_chunk_starts(runner):
    # Of the states 0.5, 0.5, 1.5 of every episode: at the steps 0, 2, 4, and 5, 7, 9.
    first, second = np.float32([[0.5, 1.5, 0.5], [1.5, 0.5, 0.5]])
    np.testing.assert_array_equal(
        states_of_fragments(runner, max_seq_len=2), np.stack([first] * NUM_ENVS + [second] * NUM_ENVS, axis=1)
    )
    np.testing.assert_array_equal(states_of_fragments(runner), [[0.5] * NUM_ENVS + [1.5] * NUM_ENVS])
    with pytest.raises(ValueError, match="'max_seq_len': 0.*int of 1 or more"):
        states_of_fragments(runner, max_seq_len=0)

    runner.sample(num_episodes=1)  # the next call resets
    for expected in (first, second):
        experience = runner.sample_block(num_steps=5).experience
        assert Columns.STATE_OUT not in experience.modules[DEFAULT_MODULE_ID]
        parts = experience.split(NUM_ENVS)
        parts = [*parts, Share(experience.parts, Fraction(1, NUM_ENVS), Fraction(1, NUM_ENVS)).fetched()]
        for part in parts:
            np.testing.assert_array_equal(part.modules[DEFAULT_MODULE_ID][Columns.STATE_IN]["sum"][:, 0, 0], expected)
        jax.tree.map(np.testing.assert_array_equal, Experience.merged(parts[:NUM_ENVS]).modules, experience.modules)


def test_actions_that_no_module_has_chosen_leave_its_state_alone(runner):
    for (state_in,) in on_host(runner, random_actions=True):
        np.testing.assert_array_equal(state_in, [0.5] * LENGTH)


def test_random_streams_of_all_steps_are_those_of_every_step_alone(runner):
    rollout = rollout_of(runner, Draws)
    pure = rollout.pure

    @jax.jit
    def sample(key):
        state = rollout.init(key, NUM_ENVS)
        context = rollout.context(pure.params, pure.rest, {DEFAULT_MODULE_ID: {}}, counters.zero(), explore=True)
        keys = rollout.step_keys(key, 4, NUM_ENVS, pure.rest)
        _, record = jax.lax.scan(functools.partial(rollout.step_envs, context=context), state, keys)
        together = record.columns[DEFAULT_MODULE_ID]["drawn"]
        alone = []
        for t in range(4):
            own = dataclasses.replace(jax.tree.map(lambda x, t=t: x[t], keys), modules=None)
            state, record = rollout.step_envs(state, own, context)
            alone.append(record.columns[DEFAULT_MODULE_ID]["drawn"])
        return together, jnp.stack(alone)

    together, alone = sample(jax.random.key(0))
    np.testing.assert_array_equal(together, alone)
    assert len(np.unique(together)) == together.size
