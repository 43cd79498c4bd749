"""Toy configs that the tests of several files share.

A session compiles a program once, and loads it from its cache from then on: a build and one `train()` take 0.6 CPU
seconds then, and 1.7 with another width, number of environments or batch size. So tests that need an algorithm, and not
certain numbers, start from one of these, and change what they are about. Traced settings (`lr`, `gamma`, `clip_param`,
seeds) make no other program; shapes, networks, environments and epochs do.

Each config is on the device by default, and on the host with the name of a gymnasium environment.
"""

from __future__ import annotations

from typing import Any

from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig

CARTPOLE = "gymnax/CartPole-v1"
NUM_ENVS, NUM_STEPS, WIDTH = 4, 8, 4
BATCH = NUM_ENVS * NUM_STEPS


def _sampling(config: Any, env: Any) -> Any:
    return (
        config.environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=NUM_ENVS, rollout_fragment_length=NUM_STEPS)
        .learners(num_cpus_per_learner=1)
        .reporting(min_time_s_per_iteration=None)
        .debugging(seed=0)
    )


def ppo(env: Any = CARTPOLE, **model: Any) -> PPOConfig:
    """Two minibatches in each of two epochs, from 8 steps of 4 environments."""
    config = _sampling(PPOConfig(), env).rl_module(model_config={"fcnet_hiddens": [WIDTH], **model})
    return config.training(train_batch_size_per_learner=BATCH, minibatch_size=BATCH // 2, num_epochs=2)


def odd(env: Any = CARTPOLE, **model: Any) -> PPOConfig:
    """Sizes that do not divide: minibatches of 8 from 7 steps of 3 environments, and networks of width 5."""
    config = _sampling(PPOConfig(), env).rl_module(model_config={"fcnet_hiddens": [5], **model})
    config.env_runners(num_envs_per_env_runner=3, rollout_fragment_length=7)
    return config.training(train_batch_size_per_learner=21, minibatch_size=8, num_epochs=2)


RUN = {
    "num_envs_per_env_runner": 8,
    "train_batch_size_per_learner": 128,
    "minibatch_size": 64,
    "num_epochs": 1,
    "model_config": {"fcnet_hiddens": [8]},
}
"""Settings of `run`, as the command line and files give them."""


def run(**settings: Any) -> PPOConfig:
    """Series, sweeps, benchmarks and reports: episodes end in each iteration of 16 steps of 8 environments."""
    return PPOConfig().environment(CARTPOLE).update_from_dict({**RUN, **settings})


def dqn(env: Any = CARTPOLE, **model: Any) -> DQNConfig:
    """Two updates on 8 rows after each 8 steps of 4 environments, drawn uniformly from the last 200 steps."""
    model = {"fcnet_hiddens": [WIDTH], "head_fcnet_hiddens": [WIDTH], **model}
    config = _sampling(DQNConfig(), env).rl_module(model_config=model)
    return config.training(
        train_batch_size_per_learner=8,
        num_steps_sampled_before_learning_starts=BATCH,
        training_intensity=2 * 8 / BATCH,
        replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 200},
    ).reporting(min_sample_timesteps_per_iteration=2 * BATCH)
