"""Toy programs that the tests of many files share.

A session compiles a program once, and loads it from its cache from then on: a build and one `train()` take 0.5 CPU
seconds then, and 1.0 to 1.5 with another width, number of environments or batch size. So tests that need an algorithm,
and not certain numbers, start from one of these configs, and change what they are about. Traced settings (`lr`,
`gamma`, `clip_param`, seeds) make no other program; shapes, networks, environments and epochs do.

Each config is on the device by default; with the name of a gymnasium environment it is on the host.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.algorithms.sac import SACConfig
from jaxrl_stack.examples.envs.multi_agent import MultiAgentCartPole

CARTPOLE, PENDULUM = "gymnax/CartPole-v1", "gymnax/Pendulum-v1"
NUM_ENVS, NUM_STEPS, WIDTH = 4, 8, 4
BATCH = NUM_ENVS * NUM_STEPS


def _sampling(config: Any, env: Any, model: dict[str, Any]) -> Any:
    return (
        config.environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .rl_module(model_config=model)
        .learners(num_cpus_per_learner=1)
        .reporting(min_time_s_per_iteration=None)
        .debugging(seed=0)
    )


def ppo(env: Any = CARTPOLE, **model: Any) -> PPOConfig:
    """Two minibatches in each of two epochs, from 8 steps of 4 environments."""
    config = _sampling(PPOConfig(), env, {"fcnet_hiddens": [WIDTH], **model})
    return config.training(train_batch_size_per_learner=BATCH, minibatch_size=BATCH // 2, num_epochs=2)


def ppo_lstm(env: Any = CARTPOLE, **model: Any) -> PPOConfig:
    """`ppo` with a memory of 3 numbers, learned in sequences of 4 steps."""
    return ppo(env, use_lstm=True, lstm_cell_size=3, max_seq_len=4, **model)


def ppo_images(env: Any = "gymnax/Breakout-MinAtar", **model: Any) -> PPOConfig:
    """`ppo` with one layer of convolutions."""
    return ppo(env, conv_filters=[[2, 3, 2]], **model)


def ppo_odd(env: Any = CARTPOLE) -> PPOConfig:
    """Sizes of which none divides another one: 3 environments, 5 units, and 21 rows in minibatches of 8.

    Faults in padding, in remainders and in the order of axes show here, and hide behind powers of two.
    """
    config = _sampling(PPOConfig(), env, {"fcnet_hiddens": [5]})
    config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=7)
    return config.training(train_batch_size_per_learner=21, minibatch_size=8, num_epochs=2)


def impala(env: Any = CARTPOLE, **model: Any) -> IMPALAConfig:
    """One update from each 8 steps of 4 environments."""
    config = _sampling(IMPALAConfig(), env, {"fcnet_hiddens": [WIDTH], **model})
    return config.training(train_batch_size_per_learner=BATCH)


def appo(env: Any = CARTPOLE, **model: Any) -> APPOConfig:
    """Two updates from each 8 steps of 4 environments, with a target network."""
    config = _sampling(APPOConfig(), env, {"fcnet_hiddens": [WIDTH], **model})
    return config.training(train_batch_size_per_learner=BATCH, circular_buffer_iterations_per_batch=2, use_kl_loss=True)


def _replaying(config: Any, env: Any, model: dict[str, Any]) -> Any:
    config = _sampling(config, env, {"fcnet_hiddens": [WIDTH], "head_fcnet_hiddens": [WIDTH], **model})
    return config.training(
        train_batch_size_per_learner=8,
        num_steps_sampled_before_learning_starts=BATCH,
        training_intensity=2 * 8 / BATCH,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 200},
    ).reporting(min_sample_timesteps_per_iteration=2 * BATCH)


def dqn(env: Any = CARTPOLE, **model: Any) -> DQNConfig:
    """Two updates on 8 rows after each 8 steps of 4 environments, drawn uniformly from the last 200 steps."""
    return _replaying(DQNConfig(), env, model)


def sac(env: Any = PENDULUM, **model: Any) -> SACConfig:
    """As `dqn`, with continuous actions."""
    return _replaying(SACConfig(), env, model)


def by_number(agent_id: Any, *args: Any, **kwargs: Any) -> str:
    """``0 -> "p0"``, ``1 -> "p1"``."""
    return f"p{agent_id}"


def ppo_agents(env: Any = MultiAgentCartPole, **model: Any) -> PPOConfig:
    """`ppo` of two agents, each with a policy of its own, of which one ends before the other."""
    config = ppo(env, **model)
    config.environment(env_config={"num_agents": 2})
    config.multi_agent(policies={"p0", "p1"}, policy_mapping_fn=by_number)
    return config
