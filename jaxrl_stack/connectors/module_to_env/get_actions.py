"""Connector that computes actions from the distribution inputs of the module."""

from __future__ import annotations

from typing import Any

import jax

from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.context import ConnectorContext
from jaxrl_stack.core.columns import Columns


class GetActions(ConnectorV2):
    """Adds ACTIONS to the batch: sampled actions when exploring, else greedy actions.

    When exploring, samples actions from the module's exploration distribution and also adds their ACTION_LOGP.
    Otherwise, chooses greedy actions with the module's inference distribution, made deterministic.

    ACTIONS that the module returns do not change. If the module returns ACTIONS and ACTION_DIST_INPUTS but no
    ACTION_LOGP, exploring adds the log-probabilities of these actions in the exploration distribution as ACTION_LOGP.
    """

    draws_from_pipeline_key = True

    def apply(self, state: Any, batch: dict[str, Any], ctx: ConnectorContext) -> tuple[Any, dict[str, Any]]:
        """Reads ACTION_DIST_INPUTS ``[B, n]``, the n parameters of the action distribution. Adds ACTIONS ``[B, ...]``
        and, when exploring, ACTION_LOGP float32 ``[B]``.

        Raises:
            KeyError: A module put out neither ACTIONS nor ACTION_DIST_INPUTS.
            ValueError: Exploring without ``ctx.key``.
        """
        todo = [module_id for module_id, columns in batch.items() if Columns.ACTIONS not in columns]
        chosen = [mid for mid, columns in batch.items() if ctx.explore and mid not in todo and _lacks_logp(columns)]
        if not todo and not chosen:
            return state, batch
        modules = ctx.module
        batch = dict(batch)
        for module_id in chosen:
            columns = batch[module_id]
            cls = modules[module_id].get_exploration_action_dist_cls()
            logp = cls.from_logits(columns[Columns.ACTION_DIST_INPUTS]).logp(columns[Columns.ACTIONS])
            batch[module_id] = {**columns, Columns.ACTION_LOGP: logp}
        for module_id, key in zip(todo, self._keys(ctx, len(todo)), strict=True):
            batch[module_id] = self._with_actions(module_id, batch[module_id], modules[module_id], key, ctx.explore)
        return state, batch

    @staticmethod
    def _keys(ctx: ConnectorContext, count: int) -> list[jax.Array | None]:
        if not ctx.explore:
            return [None] * count
        if ctx.key is None:
            raise ValueError(
                "GetActions: ctx.key is None, but sampling actions needs a PRNG key. Create the context with "
                "ConnectorContext(key=jax.random.key(0), ...), or with explore=False."
            )
        # One module uses the key as it is: a split per step is measurable in a small rollout.
        return [ctx.key] if count == 1 else list(jax.random.split(ctx.key, count))

    @staticmethod
    def _with_actions(module_id: str, columns: dict[str, Any], module, key: jax.Array | None, explore: bool):
        if Columns.ACTION_DIST_INPUTS not in columns:
            raise KeyError(
                f"Module {module_id!r} returned neither {Columns.ACTIONS!r} nor {Columns.ACTION_DIST_INPUTS!r}, only "
                f"{sorted(columns)}. Return one of them from `_forward_{'exploration' if explore else 'inference'}`."
            )
        inputs = columns[Columns.ACTION_DIST_INPUTS]
        if not explore:
            greedy = module.get_inference_action_dist_cls().from_logits(inputs).to_deterministic()
            return {**columns, Columns.ACTIONS: greedy.sample(key=key)}
        distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
        actions, logp = distribution.sample_and_logp(key=key)
        return {**columns, Columns.ACTIONS: actions, Columns.ACTION_LOGP: logp}


def _lacks_logp(columns: dict[str, Any]) -> bool:
    return Columns.ACTION_DIST_INPUTS in columns and Columns.ACTION_LOGP not in columns
