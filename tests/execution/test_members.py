"""A population: the program of the on-device driver under vmap, with its members' states stacked."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.replay.device_replay import ReplayState
from jaxrl_stack.utils.devices import all_shards, host_view

NUM_MEMBERS = 4


def common(config):
    return (
        config.environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=4)
        .rl_module(model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [4]})
        .learners(num_cpus_per_learner=1)
    )


def ppo():
    return common(PPOConfig()).training(train_batch_size_per_learner=64, minibatch_size=32, num_epochs=2)


def dqn():
    settings = {"train_batch_size_per_learner": 8, "num_steps_sampled_before_learning_starts": 20, "n_step": (1, 3)}
    replay = {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 200}
    made = common(DQNConfig()).training(**settings, target_network_update_freq=16, replay_buffer_config=replay)
    return made.reporting(min_sample_timesteps_per_iteration=80)


def host_copy(tree):
    """Keys as such, everything else as NumPy arrays, which donation leaves alone."""
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: x if is_key(x) else np.array(x), tree)


def copied_keys(tree):
    is_key = lambda x: jnp.issubdtype(x.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda x: jax.random.clone(x) if is_key(x) else x, tree)


def states_of(algo):
    """``(learner, runner, kept, timesteps, settings)`` of one device, before an iteration."""
    driver, first = algo.driver, lambda tree: jax.tree.map(lambda x: x[0], tree)
    kept = None if driver.kept is None else first(all_shards(driver.kept))
    parts = (host_view(driver.learner.state), first(host_view(driver.shards.state)), kept, host_view(driver.timesteps))
    return copied_keys(host_copy((*parts, driver.learner.settings())))


def member_axes(kept):
    """Which parts of what is kept members have of their own: not where the ring is, nor how full it is."""
    if kept is None:
        return None
    axes = jax.tree.map(lambda _: 0, kept)
    assert isinstance(axes, ReplayState)
    return dataclasses.replace(axes, head=None, num_rows=None, size=None)


def stacked(trees, axes):
    """Members side by side; what they share is the first one's."""
    return jax.tree.map(
        lambda axis, *leaves: leaves[0] if axis is None else jnp.stack(leaves),
        axes,
        *trees,
        is_leaf=lambda x: x is None,
    )


@pytest.mark.parametrize("make", [ppo, dqn])
def test_members_of_one_program_are_the_runs_that_they_would_be_alone(make):
    rates = (1e-3, 2e-3, 5e-3, 1e-2)
    algos = [make().training(lr=lr).debugging(seed=seed).build_algo() for seed, lr in enumerate(rates)]
    states = [states_of(algo) for algo in algos]
    program = dataclasses.replace(algos[0].driver.program, axis_name=None)
    learner, runner, kept, timesteps, settings = zip(*states, strict=True)
    axes = member_axes(kept[0])
    together = (
        jax.tree.map(lambda *x: jnp.stack(x), *learner),
        jax.tree.map(lambda *x: jnp.stack(x), *runner),
        None if axes is None else stacked(kept, axes),
        timesteps[0],
        jax.tree.map(lambda *x: jnp.stack(x), *settings),
    )
    step = program.step
    num_warm_up = None if axes is None else np.int32(-(-step.learning_starts // step.num_env_steps) - 1)
    # An axis of None for a result fails where something is batched after all.
    members = jax.vmap(program, in_axes=(0, 0, axes, None, 0, None), out_axes=(0, 0, axes, None, 0, 0, 0))
    devices = jax.local_devices()[:1]
    over_devices = jax.pmap(members, in_axes=(0, 0, None, None, 0, None), out_axes=0, devices=devices)
    own_axis = [jax.tree.map(lambda x: jnp.asarray(x)[None], part) for part in together]
    new = over_devices(own_axis[0], own_axis[1], together[2], together[3], own_axis[4], num_warm_up)
    for i, algo in enumerate(algos):
        algo.train()
        alone = (algo.learner.state.params, algo.learner.state.optimizers)
        ours = jax.tree.map(lambda x, i=i: x[0, i], (new[0].params, new[0].optimizers))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), host_view(alone), ours)
        window = jax.tree.map(lambda x, i=i: x[0, i], new[1].window.returns)
        np.testing.assert_array_equal(window, all_shards(algo.driver.shards.state.window.returns)[0])
    weights = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(algo.get_weights())]) for algo in algos]
    assert all(np.abs(weights[0] - other).max() > 1e-3 for other in weights[1:])
    assert algos[0].driver.num_updates > 0
    for algo in algos:
        algo.stop()
