"""Scripts in RLlib's patterns: checkpoints and modules."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from ray import tune

from jaxrl_stack.algorithms.algorithm import Algorithm
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.utils.checkpoints import get_checkpoint_info


class Buttons(gym.Env):
    """Press the lit one of two buttons; an episode is four presses."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, config=None):
        self._presses = 0

    def _lit(self):
        self._light = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self._light]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._presses = 0
        return self._lit(), {}

    def step(self, action):
        reward = float(action == self._light)
        self._presses += 1
        return self._lit(), reward, self._presses == 4, False, {}


class Counting(RLlibCallback):
    def __init__(self):
        self.num_results = 0

    def on_train_result(self, *, result, **kwargs):
        self.num_results += 1


def tiny() -> PPOConfig:
    return (
        PPOConfig()
        .environment(Buttons)
        .training(train_batch_size_per_learner=32, minibatch_size=16, num_epochs=1)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=2)
        .rl_module(model_config={"fcnet_hiddens": [4]})
        .callbacks(Counting)
    )


def weights_of(algorithm) -> dict[str, np.ndarray]:
    return algorithm.get_module(DEFAULT_MODULE_ID).get_state()


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """``(algorithm, folder)`` of one that has trained an iteration; tests leave it as it is."""
    algorithm = tiny().build_algo()
    algorithm.train()
    path = tmp_path_factory.mktemp("trained") / "checkpoint"
    algorithm.save_to_path(path)
    yield algorithm, path
    algorithm.stop()


# --------------------------------------------------------------------------------------------------------- checkpoints


def test_rays_checkpoint_is_taken_wherever_a_path_is(trained):
    algorithm, path = trained
    checkpoint = tune.Checkpoint.from_directory(str(path))
    loaded = Algorithm.from_checkpoint(checkpoint, config=tiny())
    try:
        assert loaded.iteration == 1 and same(weights_of(loaded), weights_of(algorithm))
        loaded.train()
        assert not same(weights_of(loaded), weights_of(algorithm))
        loaded.restore(checkpoint)
        assert loaded.iteration == 1 and same(weights_of(loaded), weights_of(algorithm))
    finally:
        loaded.stop()
    assert get_checkpoint_info(checkpoint)["type"] == "Algorithm"


def test_the_first_callback_of_an_algorithm_is_at_index_0(trained):
    algorithm, _ = trained
    assert isinstance(algorithm.callbacks[0], Counting) and algorithm.callbacks[0].num_results == 1
    assert [type(callback) for callback in algorithm.callbacks] == [Counting]
