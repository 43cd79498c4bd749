"""Returns and lengths of the episodes that are running, from the rewards and ends of a rollout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.ops.reductions import compensated_add


@struct.dataclass
class RunningEpisodes:
    """Sums over the episodes that are running, one of every environment: ``[B]``, or ``[T, B]`` after each step.

    Attributes:
        episode_return: float32, sum of their unclipped rewards so far.
        return_error: float32, what rounding has added to it; see `compensated_add`.
        episode_length: int32, their steps so far; of an agent that skips some those that it has completed.
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

    def extend(
        self, rewards: jax.Array, ended: jax.Array, steps: jax.Array | None = None
    ) -> tuple[RunningEpisodes, RunningEpisodes]:
        """Take in a rollout: after the loop, whose every carried array would cost it.

        Args:
            rewards: float32 ``[T, B]``.
            ended: bool ``[T, B]``.
            steps: bool ``[T, B]``, which steps count as such; None for all.

        Returns:
            ``(the episodes running after it, those of each step [T, B], before new ones begin)``.
        """
        num_steps = ended.shape[0]
        # Of the last `reach` steps that belong to a step's episode: their rewards, and how many there are before it.
        # What holds for half as many steps at every step gives both; log2 T times, for all steps at once.
        returns, since_start = rewards.astype(jnp.float32), jnp.logical_not(_shifted(ended, 1, False)).astype(jnp.int32)
        reach, lengths = 1, None if steps is None else steps.astype(jnp.int32)
        while reach < num_steps:
            begun = since_start < reach
            returns += jnp.where(begun, 0.0, _shifted(returns, reach, 0.0))
            if lengths is not None:
                lengths += jnp.where(begun, 0, _shifted(lengths, reach, 0))
            since_start = jnp.where(begun, since_start, reach + _shifted(since_start, reach, reach))
            reach *= 2
        begun = since_start < reach  # in this rollout
        total, error = compensated_add(self.episode_return, self.return_error, returns)
        if lengths is None:
            numbers = jnp.arange(1, num_steps + 1, dtype=jnp.int32)[:, None]
            lengths = jnp.where(begun, since_start + 1, numbers + self.episode_length)
        else:
            lengths = jnp.where(begun, lengths, lengths + self.episode_length)
        after_steps = RunningEpisodes(
            episode_return=jnp.where(begun, returns, total),
            return_error=jnp.where(begun, 0.0, error),
            episode_length=lengths,
        )
        return jax.tree.map(lambda x: jnp.where(ended[-1], 0, x[-1]), after_steps), after_steps


def _shifted(x: jax.Array, num_steps: int, first: float) -> jax.Array:
    """``[T, B]``: what stood so many steps before, `first` where nothing did."""
    return jnp.concatenate([jnp.full_like(x[:num_steps], first), x[:-num_steps]])
