"""Training steps on recorded transitions (single steps with their next observations), for algorithms with Q-learning
losses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.ops import returns

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.core.rl_module.rl_module import RLModule
    from jaxrl_stack.execution.training_step import TrainingStep


class OfflineTransitions(OfflineStep):
    """Trains on minibatches of recorded transitions: single steps with rewards, next observations and flags of
    terminated episodes.

    Truncated steps, and steps at which a recording was cut, have their recorded next observation, from which losses
    bootstrap.
    """

    columns: ClassVar[tuple[str, ...]] = (
        Columns.OBS,
        Columns.ACTIONS,
        Columns.REWARDS,
        Columns.NEXT_OBS,
        Columns.TERMINATEDS,
    )

    @classmethod
    def for_config(cls, config: AlgorithmConfig) -> type[TrainingStep]:
        """Returns the class of the training step for a config: this class, or `WithClippedRewards` if `clip_rewards` is
        set.
        """
        return WithClippedRewards if config.clip_rewards and cls is OfflineTransitions else cls


class WithClippedRewards(OfflineTransitions):
    """Trains on recorded transitions, with rewards clipped by the setting ``environment(clip_rewards=...)``."""

    columns = tuple(name for name in OfflineTransitions.columns if name != Columns.REWARDS)
    prepared_from = (Columns.REWARDS,)

    def prepare(
        self, module: RLModule, columns: dict[str, Any], is_final: jax.Array, values: Mapping[str, Any]
    ) -> dict[str, jax.Array]:
        rewards = columns[Columns.REWARDS].astype(jnp.float32)
        return {Columns.REWARDS: returns.clipped_rewards(rewards, self.config.clip_rewards)}


def refuse_recurrent_networks(config: AlgorithmConfig) -> None:
    """Raises ValueError for ``use_lstm=True``: transitions do not support recurrent modules.

    Raises:
        ValueError: Names the setting and the remedy.
    """
    if config.model_config.get("use_lstm"):
        config._value_error(
            f"rl_module(model_config={{'use_lstm': True}}): {config.algo_class.__name__} learns from single steps and "
            f"does not support recurrent modules. Leave it out, or use BC or MARWIL, which learn from sequences."
        )
