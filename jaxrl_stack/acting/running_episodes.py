"""Return and length of each unfinished episode, computed from the rewards and episode ends of a rollout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from jaxrl_stack.ops.reductions import compensated_add


@struct.dataclass
class RunningEpisodes:
    """Return and length so far of each environment's unfinished episode: arrays ``[B]``, or ``[T, B]`` with the values
    after each of T steps.

    Attributes:
        episode_return: float32, sum of the unclipped rewards so far.
        return_error: float32, rounding error that the sum contains; see `compensated_add`.
        episode_length: int32, number of steps so far; only completed ones of an agent that does not act in every step.
    """

    episode_return: jax.Array
    return_error: jax.Array
    episode_length: jax.Array

    @classmethod
    def empty(cls, num_envs: int) -> RunningEpisodes:
        """Creates the statistics (return and length) of B new episodes, which have no steps yet.

        Args:
            num_envs: ``B``.
        """
        zeros = jnp.zeros((num_envs,), jnp.float32)
        return cls(zeros, zeros, jnp.zeros((num_envs,), jnp.int32))

    def extend(
        self, rewards: jax.Array, ended: jax.Array, steps: jax.Array | None = None
    ) -> tuple[RunningEpisodes, RunningEpisodes]:
        """Adds the rewards and steps of a whole rollout to the unfinished episodes' returns and lengths.

        Call this method after the rollout's loop: as part of the loop's carry, the statistics would slow down every
        step.

        Args:
            rewards: float32 ``[T, B]``.
            ended: bool ``[T, B]``.
            steps: bool ``[T, B]``, steps that count for lengths; None: all steps.

        Returns:
            ``(unfinished episodes after the rollout [B], episodes after each step [T, B], before new ones begin)``.
        """
        num_steps = ended.shape[0]
        # For each step: the sum of rewards over the last `reach` steps of its episode, and the number of steps since
        # the episode's start, up to `reach`. Each turn doubles `reach` for all steps; log2 T turns are enough.
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
    """Shifts `x`, ``[T, B]``, by `num_steps` to later times; the first `num_steps` entries become `first`."""
    return jnp.concatenate([jnp.full_like(x[:num_steps], first), x[:-num_steps]])
