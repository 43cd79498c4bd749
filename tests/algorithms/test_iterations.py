"""Iterations: counts since a restore, and numbers of training steps."""

from __future__ import annotations

import types
from typing import Any

from jaxrl_stack.algorithms.iterations import Iterations
from tests import programs


def driver(*, num_training_steps_per_call: int = 1) -> Any:
    """The counters of a driver that iterations read."""
    return types.SimpleNamespace(
        num_env_steps=100,
        num_env_steps_trained=100,
        num_updates=10,
        num_episodes=3,
        num_agent_steps=None,
        num_opponent_steps=0,
        num_training_steps_per_call=num_training_steps_per_call,
        lacks_env_runners=False,
        device_seconds=0.0,
        compile_seconds=0.0,
    )


def test_iterations_are_repeated_by_their_number_of_training_steps():
    config = programs.ppo().reporting(min_time_s_per_iteration=1000)
    steps = Iterations().begin().training_steps(driver(num_training_steps_per_call=2), config, number=6)
    assert len([*steps]) == 3


def test_a_state_that_is_restored_within_an_iteration_is_where_counts_since_restore_begin():
    """A callback of an evaluation may go back to the best state."""
    counts = driver()
    config = types.SimpleNamespace(
        min_time_s_per_iteration=None,
        min_sample_timesteps_per_iteration=0,
        min_train_timesteps_per_iteration=0,
        num_prefilled_steps=0,
        count_steps_by="env_steps",
        is_online=True,
    )
    iterations = Iterations()
    iterations.done, iterations.seconds = 9, 90.0
    iteration = iterations.begin()
    assert sum(1 for _ in iteration.training_steps(counts, config)) == 1
    iteration.end_training(counts)
    assert iterations.done == 10
    counts.num_env_steps = counts.num_env_steps_trained = 50
    iterations.go_on(5, 500.0, counts)
    result = {"learners": {"default_policy": {"num_module_steps_trained": 8}}}
    iteration.add_times(result, counts)
    iteration.add_rates(result)
    assert result["iterations_since_restore"] == 0 and 0.0 <= result["time_since_restore"] < 60.0
    assert 500.0 <= result["time_total_s"] < 560.0
