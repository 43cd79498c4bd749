"""Recorded steps that tests of offline evaluation share."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps

OBSERVATIONS = gym.spaces.Box(-10.0, 10.0, (3,), np.float32)
ACTIONS = gym.spaces.Discrete(2)


def recorded(seed: int, num_episodes: int = 16, length: int = 5) -> Steps:
    """Episodes of random actions."""
    rng, n = np.random.default_rng(seed), num_episodes * (length + 1)
    t = np.tile(np.arange(length + 1), num_episodes).astype(np.int32)
    is_final = t == length
    columns = {
        Columns.OBS: (rng.normal(size=(n, 3)) * 2 + seed).astype(np.float32),
        Columns.ACTIONS: np.where(is_final, 0, rng.integers(0, 2, n)).astype(np.int32),
        Columns.REWARDS: np.where(is_final, 0, rng.normal(size=n) + 1).astype(np.float32),
        Columns.TERMINATEDS: t == length - 1,
        Columns.TRUNCATEDS: np.zeros(n, bool),
        Columns.ACTION_LOGP: np.where(is_final, 0, np.log(0.5)).astype(np.float32),
    }
    episode = np.repeat(np.arange(num_episodes), length + 1).astype(np.int32)
    return Steps(columns, is_final, episode, t, [f"{seed}-{i}" for i in range(num_episodes)])


def write(folder: object, steps: Steps) -> str:
    """A folder of files with these steps."""
    with StepWriter(str(folder), "run", about=DatasetInfo()) as writer:
        writer.add(steps)
    return str(folder)


def evaluated_by_two_actors(folder: str, **evaluation: object) -> BCConfig:
    """BC with a small network on recorded steps, whose offline evaluation has two actors."""
    return (
        BCConfig()
        .environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
        .offline_data(input_=[folder])
        .training(train_batch_size_per_learner=32)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .evaluation(
            num_offline_eval_runners=2,
            num_cpus_per_offline_eval_runner=0.5,
            offline_eval_batch_size_per_runner=40,
            **evaluation,
        )
    )
