"""Sample, then update on what was sampled: PPO and its relatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.utils import counters

SampleFn = Callable[[TrainState, Any], tuple[Any, dict[str, Any], Any, dict[str, jax.Array]]]
"""``(state, settings) -> (runner state, {module_id: columns}, number of env steps, metrics)``."""
UpdateFn = Callable[..., tuple[Any, dict[Any, jax.Array]]]
"""``(learner state, batch, settings, timesteps) -> (learner state, metrics)``."""


def training_step(
    state: TrainState, settings: Any, *, sample_fn: SampleFn, update_fn: UpdateFn
) -> tuple[TrainState, dict[str, Any]]:
    """One on-policy training step. Pure if its two functions are; the drivers differ in `sample_fn` alone.

    Args:
        state: State before the step.
        settings: The learner's traced settings.
        sample_fn: Collects a train batch with the current weights.
        update_fn: Makes one update from it.

    Returns:
        ``(state, {"env_runners": ..., "learners": {(module_id, name): value}})``.
    """
    runner, batch, num_env_steps, sampled = sample_fn(state, settings)
    timesteps = counters.add(state.timesteps, num_env_steps)
    learner, learned = update_fn(state.learner, batch, settings, timesteps)
    state = dataclasses.replace(state, learner=learner, runner=runner, timesteps=timesteps)
    return state, {"env_runners": sampled, "learners": learned}
