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
        first = jnp.concatenate([jnp.zeros_like(ended[:1]), ended[:-1]])  # whether a step is the first of its episode
        begun, returns, lengths = jax.lax.associative_scan(
            _joined, (first, rewards.astype(jnp.float32), jnp.ones(ended.shape, jnp.int32))
        )
        total, error = compensated_add(self.episode_return, self.return_error, returns)
        statistics = StepStatistics(
            ended=ended,
            episode_return=jnp.where(begun, returns, total),
            episode_length=jnp.where(begun, lengths, lengths + self.episode_length),
        )
        over = ended[-1]
        running = RunningEpisodes(
            episode_return=jnp.where(over, 0.0, statistics.episode_return[-1]),
            return_error=jnp.where(jnp.logical_or(over, begun[-1]), 0.0, error[-1]),
            episode_length=jnp.where(over, 0, statistics.episode_length[-1]),
        )
        return running, statistics


def _joined(earlier, later):
    """Sums over two neighbouring stretches of steps, each ``(an episode begins in it, return, length)`` at its end."""
    (begun, *sums), (begins, *later_sums) = earlier, later
    sums = [jnp.where(begins, late, early + late) for early, late in zip(sums, later_sums, strict=True)]
    return jnp.logical_or(begun, begins), *sums
