"""Learner connector that adds intrinsic rewards, which another module of the learner computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.ops import running_statistics


class AddIntrinsicRewards(ConnectorV2):
    """Learner connector that adds the column INTRINSIC_REWARDS of a learner-only module, times a weight, to the
    policy's rewards.

    The module is one that is `learner_only` and has a loss of its own (`SelfSupervisedLossAPI`); it learns from the
    same steps. It reads NEXT_OBS: where rewards are of a rollout, put `AddNextObservationsFromEpisodesToTrainBatch`
    before this connector, and both before advantages are made. Only the learner sees these rewards: statistics of
    episodes, and replay, hold those of the environment.

    Args:
        input_observation_space: See ConnectorV2.
        input_action_space: See ConnectorV2.
        module_id: Id of that module.
        intrinsic_reward_coeff: Weight of the added rewards.
        normalize: Divide intrinsic rewards by the standard deviation of all that there were so far, these included.
    """

    def __init__(
        self,
        input_observation_space: Any = None,
        input_action_space: Any = None,
        *,
        module_id: str,
        intrinsic_reward_coeff: float,
        normalize: bool = False,
        **kwargs: Any,
    ):
        super().__init__(input_observation_space, input_action_space, **kwargs)
        self.module_id = module_id
        self.intrinsic_reward_coeff = intrinsic_reward_coeff
        self.normalize = normalize

    def init(self, num_envs: int) -> Any:
        """Returns empty statistics of intrinsic rewards: ``{"base": statistics merged over all devices, "delta":
        statistics of this device since the last merge}``; {} if `normalize` is False.
        """
        return {"base": running_statistics.init(()), "delta": running_statistics.init(())} if self.normalize else {}

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Adds intrinsic rewards to the column REWARDS ``[T, B]`` of the policy's batch.

        Also adds a train batch for the intrinsic module, with the columns from which this module computes rewards and
        learns.

        Raises:
            ValueError: There is no module of that id.
        """
        if self.module_id not in ctx.module:
            raise ValueError(
                f"{type(self).__name__} needs a module {self.module_id!r}, but the modules are {list(ctx.module)}. Add "
                f"it: rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={{{DEFAULT_MODULE_ID!r}: "
                f"RLModuleSpec(), {self.module_id!r}: RLModuleSpec(module_class=..., learner_only=True)}}))."
            )
        policy = batch[DEFAULT_MODULE_ID]
        names = (Columns.OBS, Columns.NEXT_OBS, Columns.ACTIONS, Columns.LOSS_MASK)
        columns = {name: policy[name] for name in names if name in policy}
        rewards = ctx.module[self.module_id].forward_train(columns)[Columns.INTRINSIC_REWARDS]
        if self.normalize:
            mask = ctx.loss_mask(DEFAULT_MODULE_ID, policy)
            delta = running_statistics.update(
                state["delta"], rewards.reshape(-1), None if mask is None else mask.reshape(-1)
            )
            state = {**state, "delta": delta}
            known = running_statistics.merge(state["base"], delta)
            rewards = rewards / jnp.maximum(running_statistics.standard_deviation(known), 1e-6)
        rewards = policy[Columns.REWARDS] + self.intrinsic_reward_coeff * rewards
        return state, {**batch, DEFAULT_MODULE_ID: {**policy, Columns.REWARDS: rewards}, self.module_id: columns}

    def merge(self, state: Any, axis_name: str | None) -> Any:
        """Adds every device's statistics since the last merge (``"delta"``) to the merged statistics (``"base"``) of
        intrinsic rewards, and empties ``"delta"``.
        """
        if not self.normalize:
            return state
        state = jax.tree.map(jnp.asarray, state)
        base = running_statistics.merge_over_axis(state["base"], state["delta"], axis_name)
        return {"base": base, "delta": running_statistics.init(())}
