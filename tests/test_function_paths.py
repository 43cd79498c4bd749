"""The functions between `Algorithm.train` and the environments' step, or the loss: few.

``python tests/test_function_paths.py`` prints them.
"""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import gymnasium as gym
import numpy as np
import pytest

import jaxrl_stack
from envs.counter import CounterEnv
from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
from jaxrl_stack.algorithms.dqn import DQNConfig
from jaxrl_stack.algorithms.ppo import PPOConfig

ROOM = pathlib.Path(jaxrl_stack.__file__).parent

Function = tuple[str, str, int]
"""``(file below the package, qualified name, first line)``."""
Path = tuple[Function, ...]


class Recorder:
    """The package's functions on the stack, from `Algorithm.train` on, when something is first called during it."""

    def __init__(self):
        self.paths: dict[str, Path] = {}

    def note(self, what: str) -> None:
        found: list[Function] = []
        frame = None if what in self.paths else sys._getframe(1)
        while frame is not None:
            file, name = pathlib.Path(frame.f_code.co_filename), frame.f_code.co_qualname
            # From Python 3.12 on, comprehensions have no frame of their own.
            if file.is_relative_to(ROOM) and not name.endswith(("comp>", "<genexpr>")):
                found.append((file.relative_to(ROOM).as_posix(), name, frame.f_code.co_firstlineno))
            if name == "Algorithm.train":
                self.paths[what] = tuple(reversed(found))
            frame = frame.f_back


def paths_of(config: AlgorithmConfig, is_on_device: bool) -> dict[str, Path]:
    """``{"env step": path, "loss": path}`` of the first training steps of an algorithm."""
    recorder = Recorder()

    class OnDevice(CounterEnv):
        def __init__(self, config=None):
            super().__init__()

        def step_env(self, *args):
            recorder.note("env step")
            return super().step_env(*args)

    class OnHost(gym.Env):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self, config=None):
            pass

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            recorder.note("env step")
            return np.zeros(2, np.float32), 1.0, False, False, {}

    class NotedLearner(config.learner_class):
        def compute_loss_for_module(self, **kwargs):
            recorder.note("loss")
            return super().compute_loss_for_module(**kwargs)

    config.environment(OnDevice if is_on_device else OnHost).env_runners(num_env_runners=0)
    config.learners(learner_class=NotedLearner).rl_module(model_config={"fcnet_hiddens": [4]})
    algo = config.build_algo()
    algo.train()
    algo.stop()
    return recorder.paths


CONFIGS = {
    "PPO": lambda: PPOConfig().training(train_batch_size_per_learner=8, minibatch_size=4, num_epochs=1),
    "DQN": lambda: (
        DQNConfig()
        .training(num_steps_sampled_before_learning_starts=4, train_batch_size_per_learner=4)
        .reporting(min_sample_timesteps_per_iteration=8)
    ),
}
COLUMNS = [(place, end) for place in ("device", "host") for end in ("env step", "loss")]
MOST = {
    "PPO": dict(zip(COLUMNS, (10, 10, 8, 12), strict=True)),
    "DQN": dict(zip(COLUMNS, (12, 15, 10, 16), strict=True)),
}
"""Functions on each of these ways. A loop over steps that draws random numbers before it is one of them, and one
of each way can record steps or minibatches for `jaxrl_stack.rewind.inspect`."""


def all_paths() -> dict[str, dict[tuple[str, str], Path]]:
    """``{algorithm: {(place, end): path}}``."""
    return {
        name: {
            (place, end): path
            for place in ("device", "host")
            for end, path in paths_of(make(), place == "device").items()
        }
        for name, make in CONFIGS.items()
    }


@pytest.fixture(scope="module")
def paths():
    return all_paths()


def table(paths: dict[tuple[str, str], Path]) -> Iterator[str]:
    """One row per function, with its number on each path, in the order in which the paths come to it."""
    yield "| function | " + " | ".join(f"{place}: {end}" for place, end in COLUMNS) + " |"
    yield "|---|" + "--:|" * len(COLUMNS)
    numbers = {column: {function: i for i, function in enumerate(paths[column], 1)} for column in COLUMNS}
    for function in dict.fromkeys(function for column in COLUMNS for function in paths[column]):
        file, name, _ = function
        cells = [str(numbers[column].get(function, "")) for column in COLUMNS]
        yield f"| [{file}]({file}) `{name}` | " + " | ".join(cells) + " |"


def test_the_ways_have_not_become_longer(paths):
    lengths = {name: {column: len(path) for column, path in own.items()} for name, own in paths.items()}
    assert {name: {c: n for c, n in own.items() if n > MOST[name][c]} for name, own in lengths.items()} == {
        name: {} for name in CONFIGS
    }


def test_the_ways_lead_through_the_loops_and_the_loss(paths):
    names = {name for own in paths.values() for path in own.values() for _, name, _ in path}
    assert {"Algorithm.train", "DeviceRollout.step_envs", "HostRollout.record", "Learner.compute_losses"} <= names


if __name__ == "__main__":
    for algorithm, ways in all_paths().items():
        print(f"\n### {algorithm}\n", *table(ways), sep="\n")
