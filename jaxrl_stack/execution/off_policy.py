"""Sample, store, then update on what is drawn from replay: DQN, SAC and their relatives."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.execution.train_state import TrainState
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.memory import MemoryEstimate, replay_memory, train_batch_memory
from jaxrl_stack.utils.metrics import TD_ERROR_KEY

if TYPE_CHECKING:
    import gymnasium as gym

    from jaxrl_stack.algorithms.off_policy import OffPolicyConfig

SampleFn = Callable[[TrainState, Any], tuple[Any, Any, Any, Any]]
"""``(state, settings) -> (runner state, rollout, number of env steps, metrics)``."""
StoreFn = Callable[[Any, Any], Any]
"""``(replay, rollout) -> replay``."""
SampleReplayFn = Callable[[TrainState], tuple[TrainState, dict[str, Any], Any]]
"""``state -> (state, {module_id: columns [N, ...]}, items)``: the items say which rows of the replay these are."""
UpdateFn = Callable[..., tuple[Any, Any, Any]]
"""``(learner state, batch, settings, timesteps) -> (learner state, metrics, metrics per row)``."""
UpdatePrioritiesFn = Callable[[Any, Any, Any], Any]
"""``(replay, items, metrics per row) -> replay``."""
RepeatFn = Callable[[Callable[[TrainState], tuple[TrainState, Any]], TrainState, int], tuple[TrainState, Any]]
"""``(function, state, n) -> (state, result)``: calls it n times, one after the other, and combines the results."""


def memory_estimates(
    config: OffPolicyConfig, observation_space: gym.Space | None, action_space: gym.Space | None, **extra: int
) -> tuple[MemoryEstimate, MemoryEstimate]:
    """What one EnvRunner records at a time, and the batch of one update.

    Args:
        config: Says how large they are.
        observation_space, action_space: The module's; None before they are known.
        **extra: ``{column: bytes per row}`` of what else the driver's drawn rows have.
    """
    rollout = train_batch_memory(
        observation_space,
        action_space,
        num_envs=int(config.num_envs_per_env_runner),
        num_steps=config.get_rollout_fragment_length(1),
        what="rollout",
    )
    extra = {"n_step": 4, "weights": 4, **extra}
    batch = MemoryEstimate("train batch", {"rows": int(config.total_train_batch_size)}, extra, is_complete=False)
    if observation_space is None or action_space is None:
        return rollout, batch
    rows = replay_memory(observation_space, action_space, capacity=batch.num_rows, extra=extra)
    return rollout, dataclasses.replace(rows, what=batch.what, counts=batch.counts)


def td_errors(rows: Mapping[tuple[str, ...], Any], module_id: str, learner_class: type) -> Any:
    """What an update says about the drawn rows, for a prioritised memory.

    Args:
        rows: Metrics per row, ``{(module_id, name): [N]}``.
        module_id: Whose rows they are.
        learner_class: Made the update.

    Returns:
        float32 ``[N]``.

    Raises:
        ValueError: If the loss logs none.
    """
    key = (module_id, TD_ERROR_KEY)
    if key not in rows:
        raise ValueError(
            f"A prioritised replay buffer needs a priority for every row, and the loss of {learner_class.__name__} "
            f"logs none. Log one: self.metrics.log_value((module_id, {TD_ERROR_KEY!r}), td_error, "
            f"reduce='item_series'). Or use replay_buffer_config={{'type': 'EpisodeReplayBuffer', ...}}."
        )
    return rows[key]


def training_step(
    state: TrainState,
    settings: Any,
    *,
    sample_fn: SampleFn,
    store_fn: StoreFn,
    sample_replay_fn: SampleReplayFn,
    update_fn: UpdateFn,
    update_priorities_fn: UpdatePrioritiesFn,
    num_samples: int,
    num_updates: int,
    repeat_fn: RepeatFn,
) -> tuple[TrainState, dict[str, Any]]:
    """One off-policy training step. Pure if its functions are; the drivers differ in these alone.

    Args:
        state: State before the step.
        settings: The learner's traced settings.
        sample_fn: Steps the environments with the current weights.
        store_fn: Puts what was sampled into the replay memory.
        sample_replay_fn: Draws a train batch from it.
        update_fn: Makes one update from that.
        update_priorities_fn: Tells the memory what the update says about the drawn rows.
        num_samples: Rounds of sampling.
        num_updates: Updates after them; 0 before learning starts.
        repeat_fn: How to do something several times.

    Returns:
        ``(state, {"env_runners": ..., "learners": ...})``; ``"learners"`` is None without an update.
    """

    def sample(state: TrainState) -> tuple[TrainState, Any]:
        runner, rollout, num_env_steps, sampled = sample_fn(state, settings)
        replay = store_fn(state.replay, rollout)
        timesteps = counters.add(state.timesteps, num_env_steps)
        return dataclasses.replace(state, runner=runner, replay=replay, timesteps=timesteps), sampled

    def update(state: TrainState) -> tuple[TrainState, Any]:
        state, batch, items = sample_replay_fn(state)
        learner, learned, rows = update_fn(state.learner, batch, settings, state.timesteps)
        replay = update_priorities_fn(state.replay, items, rows)
        return dataclasses.replace(state, learner=learner, replay=replay), learned

    state, sampled = repeat_fn(sample, state, num_samples)
    state, learned = repeat_fn(update, state, num_updates) if num_updates else (state, None)
    return state, {"env_runners": sampled, "learners": learned}
