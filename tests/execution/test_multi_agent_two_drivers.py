"""Several agents on two drivers: the steps that the device samples make the same update on the host."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from envs import multi_agent_host
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.examples.envs import multi_agent
from jaxrl_stack.examples.envs.classes.multi_agent.rock_paper_scissors import RockPaperScissors
from jaxrl_stack.execution.training_step import TrainState
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.devices import host_view

NUM_ENVS, NUM_STEPS = 4, 16
LSTM = {"use_lstm": True, "lstm_cell_size": 4, "max_seq_len": 4}
SIZES = {"num_epochs": 2, "minibatch_size": 16, "shuffle_batch_per_epoch": True}


def alternating(agent_id, episode, **kwargs):
    return f"p{int(str(agent_id)[-1]) % 2}"


def config_of(env, networks):
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .multi_agent(policies={"p0", "p1"}, policy_mapping_fn=alternating)
        .training(train_batch_size_per_learner=NUM_ENVS * NUM_STEPS, lr=[[0, 0.01], [500, 0.001]], gamma=0.9, **SIZES)
        .rl_module(
            model_config={"fcnet_hiddens": [8], "fcnet_activation": "tanh", **networks},
            algorithm_config_overrides_per_module={"p1": PPOConfig.overrides(lr=0.002, clip_param=0.1)},
        )
        .learners(num_cpus_per_learner=1)
        .debugging(seed=5)
    )


def first_block(algo):
    """What the first iteration on the device learns from, ``{module_id: {column: [T, B, ...]}}``."""
    learner = algo.learner
    place = dataclasses.replace(algo.driver.program, settings=learner.settings())
    runner = jax.tree.map(lambda x: x[0], host_view(algo.driver.shards.state))

    def sample(learner, runner):
        whole = TrainState(learner, place.started(runner, learner), timesteps=counters.zero())
        return place.sample(whole, algo.driver.plan_samples(NUM_STEPS))[1].modules

    return jax.device_get(jax.jit(sample)(host_view(learner.state), runner))


@pytest.mark.parametrize(
    ("env", "host_env", "networks", "some_wait"),
    [
        (multi_agent.RockPaperScissors, RockPaperScissors, {}, False),
        (multi_agent.ComeAndGo, multi_agent_host.ComeAndGo, LSTM, True),
    ],
)
def test_the_same_steps_make_the_same_update(env, host_env, networks, some_wait):
    device: Any
    host: Any
    device, host = config_of(env, networks).build_algo(), config_of(host_env, networks).build_algo()
    assert (device.driver.kind, host.driver.kind) == ("device", "actors")
    before = device.learner.get_weights()
    jax.tree.map(np.testing.assert_array_equal, host.learner.get_weights(), before)
    modules = first_block(device)
    for columns in modules.values():
        # An end is inside, and not only in the last row.
        assert (columns[Columns.TERMINATEDS] | columns[Columns.TRUNCATEDS])[:-1].any()
        assert some_wait == (Columns.LOSS_MASK in columns and not columns[Columns.LOSS_MASK].all())
    expected = device.train()["learners"]
    found = host.learner.update_block(
        Experience.of_steps(modules), timesteps={"num_env_steps_sampled_lifetime": NUM_ENVS * NUM_STEPS}, **SIZES
    )
    after, own = device.learner.get_weights(), host.learner.get_weights()
    for mid in ("p0", "p1"):
        assert max(np.abs(own[ref] - x).max() for ref, x in before.items() if ref.startswith(f"{mid}/")) > 1e-3
        for name in ("policy_loss", "vf_loss", "entropy", "mean_kl_loss", "num_module_steps_trained"):
            np.testing.assert_allclose(found[mid][name], expected[mid][name], rtol=1e-5, atol=1e-6, err_msg=name)
    for ref, value in after.items():
        np.testing.assert_allclose(own[ref], value, rtol=0.0, atol=1e-6, err_msg=ref)
    for algo in (device, host):
        algo.stop()
