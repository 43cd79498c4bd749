"""A population: the program of the on-device driver under vmap, with its members' states stacked."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.members import program_of, side_by_side, state_of
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.utils.devices import all_shards, host_view


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


@pytest.mark.parametrize("make", [ppo, dqn])
def test_members_of_one_program_are_the_runs_that_they_would_be_alone(make):
    rates = (1e-3, 1e-2)
    algos = [make().training(lr=lr).debugging(seed=seed).build_algo() for seed, lr in enumerate(rates)]
    together = side_by_side([state_of(algo) for algo in algos])
    step, members = algos[0].driver.step, program_of(algos[0], members=True)
    num_warm_up = None
    if step.learning_starts is not None:
        num_warm_up = np.int32(-(-step.learning_starts // step.num_env_steps) - 1)
    own = [jax.tree.map(lambda x: jnp.asarray(x)[None], part) for part in (together[0], together[1], together[4])]
    over_devices = jax.pmap(members, in_axes=(0, 0, None, None, 0, None), out_axes=0, devices=jax.local_devices()[:1])
    new = over_devices(own[0], own[1], together[2], together[3], own[2], num_warm_up)
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
