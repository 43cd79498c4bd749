"""Returns and lengths of the episodes that are running, from the rewards and ends of a rollout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.ops.reductions import compensated_add


@struct.dataclass
class StepStatistics:
    """What one step says about episodes: ``[B]`` per step, ``[T, B]`` over a rollout.

    Attributes:
        ended: bool, whether an episode ended with this step.
        episode_return: float32, its return; unclipped rewards. Valid where `ended`.
        episode_length: int32, its length. Valid where `ended`.
    """

    ended: jax.Array
    episode_return: jax.Array
    episode_length: jax.Array


@struct.dataclass
class RunningEpisodes:
    """Sums over the episodes that are running, one of every environment.

    Attributes:
        episode_return: float32 ``[B]``, sum of their rewards so far.
        return_error: float32 ``[B]``, what rounding has added to it; see `compensated_add`.
        episode_length: int32 ``[B]``, their steps so far.
    """

    episode_return: jax.Array
    return_error: jax.Array
    episode_length: jax.Array

    @classmethod
    def empty(cls, num_envs: int) -> RunningEpisodes:
        """Episodes without a step.

        Args:
            num_envs: ``B``.
        """
        zeros = jnp.zeros((num_envs,), jnp.float32)
        return cls(zeros, zeros, jnp.zeros((num_envs,), jnp.int32))

    def extend(self, rewards: jax.Array, ended: jax.Array) -> tuple[RunningEpisodes, StepStatistics]:
        """Take in a rollout: after the loop, whose every carried array would cost it.

        Args:
            rewards: float32 ``[T, B]``.
            ended: bool ``[T, B]``.

        Returns:
            ``(the episodes running after it, statistics [T, B])``.
        """
        num_steps = ended.shape[0]
        # Of the last `reach` steps that belong to a step's episode: their rewards, and how many there are before it.
        # What holds for half as many steps at every step gives both; log2 T times, for all steps at once.
        returns, since_start = rewards.astype(jnp.float32), jnp.logical_not(_shifted(ended, 1, False)).astype(jnp.int32)
        reach = 1
        while reach < num_steps:
            begun = since_start < reach
            returns += jnp.where(begun, 0.0, _shifted(returns, reach, 0.0))
            since_start = jnp.where(begun, since_start, reach + _shifted(since_start, reach, reach))
            reach *= 2
        begun = since_start < reach  # in this rollout
        total, error = compensated_add(self.episode_return, self.return_error, returns)
        steps = jnp.arange(1, num_steps + 1, dtype=jnp.int32)[:, None]
        statistics = StepStatistics(
            ended=ended,
            episode_return=jnp.where(begun, returns, total),
            episode_length=jnp.where(begun, since_start + 1, steps + self.episode_length),
        )
        over = ended[-1]
        running = RunningEpisodes(
            episode_return=jnp.where(over, 0.0, statistics.episode_return[-1]),
            return_error=jnp.where(jnp.logical_or(over, begun[-1]), 0.0, error[-1]),
            episode_length=jnp.where(over, 0, statistics.episode_length[-1]),
        )
        return running, statistics


def _shifted(x: jax.Array, num_steps: int, first: float) -> jax.Array:
    """``[T, B]``: what stood so many steps before, `first` where nothing did."""
    return jnp.concatenate([jnp.full_like(x[:num_steps], first), x[:-num_steps]])
