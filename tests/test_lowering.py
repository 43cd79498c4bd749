"""The programs of all algorithms lower for accelerators, on a machine without one."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.algorithms.tqc import TQCConfig
from jaxrl_stack.connectors.env_to_module import FrameStacking, MeanStdFilter

PLATFORMS = ("cuda", "tpu")

PORTABLE = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "cu_threefry2x32_ffi", "mhlo.topk"}
"""What compilers for accelerators have of operations beside StableHLO's."""


def foreign_calls(traced: jax.stages.Traced) -> set[str]:
    """Operations in a program for all platforms that only some devices have, or that leave the device."""
    text = traced.lower(lowering_platforms=PLATFORMS).as_text()
    assert "stablehlo." in text
    calls = set(re.findall(r"custom_call @([\w.$]+)", text)) - PORTABLE
    return calls | set(re.findall(r"stablehlo\.(?:infeed|outfeed|send|recv)\b", text))


def test_what_is_not_portable_is_seen():
    x = jnp.eye(3)
    assert foreign_calls(jax.jit(lambda x: jnp.linalg.qr(x)[0]).trace(x))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    with pytest.raises(NotImplementedError, match="multi-platform lowering"):
        foreign_calls(jax.jit(lambda x: jax.pure_callback(np.asarray, shape, x)).trace(x))
    portable = jax.jit(lambda x: x @ x + jax.random.normal(jax.random.key(0))).trace(x)
    assert not foreign_calls(portable)


def connectors(env, spaces, device):
    return [FrameStacking(num_frames=2), MeanStdFilter()]


def ppo(env, num_devices=1, **settings):
    """Two fragments per train batch, whose last minibatch wraps around."""
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=5, env_to_module_connector=connectors)
        .training(train_batch_size_per_learner=40, minibatch_size=16, num_epochs=2, grad_clip=0.5, use_kl_loss=True)
        .rl_module(model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [4], **settings})
        .learners(num_cpus_per_learner=num_devices)
        .debugging(check_nans=True)
    )


def appo(env, num_devices=1, **settings):
    """Minibatches of whole fragments, with a divergence from the target policy."""
    return (
        APPOConfig()
        .environment(env)
        .env_runners(num_envs_per_env_runner=4, rollout_fragment_length=5, env_to_module_connector=connectors)
        .training(train_batch_size_per_learner=40, minibatch_size=20, use_kl_loss=True)
        .rl_module(model_config={"fcnet_hiddens": [8], **settings})
        .learners(num_cpus_per_learner=num_devices)
    )


def off_policy(config_class, env, num_devices=1, model_config=None, **training):
    return (
        config_class()
        .environment(env)
        .env_runners(num_envs_per_env_runner=2, env_to_module_connector=connectors)
        .training(
            train_batch_size_per_learner=8, num_steps_sampled_before_learning_starts=8, n_step=(1, 3), grad_clip=0.5
        )
        .training(**{"replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 64}} | training)
        .rl_module(model_config={"fcnet_hiddens": [8], "head_fcnet_hiddens": [4], **(model_config or {})})
        .reporting(min_sample_timesteps_per_iteration=16)
        .learners(num_cpus_per_learner=num_devices)
    )


CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
RAINBOW = {"num_atoms": 5, "noisy": True, "double_q": True, "dueling": True, "v_min": 0.0, "v_max": 20.0}
EVENLY = {"type": "EpisodeReplayBuffer", "capacity": 64}
BFLOAT16 = {"compute_dtype": "bfloat16"}
CASES = {
    "appo-2-devices": appo(CARTPOLE, 2, use_lstm=True, lstm_cell_size=4, max_seq_len=4),
    "ppo-2-devices": ppo(CARTPOLE, 2),
    "ppo-continuous": ppo(PENDULUM, vf_share_layers=False, free_log_std=True, fcnet_use_layernorm=True, **BFLOAT16),
    "dqn-rainbow": off_policy(DQNConfig, CARTPOLE, **RAINBOW),
    "sac-discrete": off_policy(SACConfig, CARTPOLE, n_step=1, replay_buffer_config=EVENLY),
    "tqc-2-devices": off_policy(TQCConfig, PENDULUM, 2, n_critics=3, model_config=BFLOAT16),
}


@pytest.mark.parametrize("case", CASES)
def test_programs_of_the_device_lower(case):
    """The program that trains, and that of the environments which evaluation runs."""
    algo = CASES[case].copy().build_algo()
    driver, learner = algo.driver, algo.learner

    def evaluation(key, params, rest, settings, timesteps):
        values = learner.current_values(settings, timesteps)["modules"]
        state = driver.rollout.init(key, 3)
        context = driver.rollout.context(params, rest, values, timesteps, explore=False, update_statistics=False)
        return driver.rollout.unroll(state, context, num_steps=2)

    weights = (learner.state.params, learner.state.rest, learner.placed_settings(), driver.timesteps)
    programs = [driver.trace_program(), jax.jit(evaluation).trace(jax.random.key(0), *weights)]
    for program in programs:
        assert not foreign_calls(program)
    algo.stop()


def test_an_eager_run_has_no_program():
    algo = ppo(CARTPOLE).debugging(disable_jit=True).build_algo()
    with pytest.raises(ValueError, match="disable_jit=True"):
        algo.driver.trace_program()
    algo.stop()
