"""Updates of target networks inside a Learner's compiled update."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.core.learner.learner_state import LearnerState
from jaxrl_stack.core.learner.post_update import UpdateResult
from jaxrl_stack.core.learner.traced_metrics import MetricKey, put_counter
from jaxrl_stack.core.rl_module.apis import TargetNetworkAPI
from jaxrl_stack.core.rl_module.target_networks import follows
from jaxrl_stack.ops import q_learning
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.metrics import LAST_TARGET_UPDATE_TS, NUM_TARGET_UPDATES

LAST_TARGET_UPDATE = "last_target_update"
"""Name in a learner's extra state: ``{module_id: uint32[2]}``, sampled env steps at the last target update."""
TARGET_UPDATES = "target_updates"
"""Name in a learner's extra state: ``{module_id: uint32}``, number of target updates."""


class TargetNetworkUpdates(Learner):
    """Mixin of a `Learner` with target networks: derive from this class and the Learner, in this order.

    After an update, the target networks of each module that implements `TargetNetworkAPI` and has rows in the update
    become ``tau * main + (1 - tau) * target``, if at least ``target_network_update_freq`` env steps were sampled since
    the last target update (0: after every update). Both are settings of the config; `tau` is traced.
    """

    result_names: tuple[str, ...] = (NUM_TARGET_UPDATES, LAST_TARGET_UPDATE_TS)
    shared_extra: tuple[str, ...] = (LAST_TARGET_UPDATE, TARGET_UPDATES)

    def initial_extra_state(self) -> dict[str, Any]:
        """Returns the extra state of the base class, and two counters for every module with target networks.

        The counters are initially 0. They are the sampled env steps at the last target update, and the number of target
        updates.
        """
        return {
            **super().initial_extra_state(),
            LAST_TARGET_UPDATE: {mid: counters.zero() for mid in self._ids_with_targets()},
            TARGET_UPDATES: {mid: np.uint32(0) for mid in self._ids_with_targets()},
        }

    def discount_of_targets(self, config: Any, batch: dict[str, Any]) -> dict[str, Any]:
        """Returns the arguments `n_step` and `gamma` of `q_learning.n_step_targets`.

        The discount after n steps is ``gamma ** n``. If the batch contains the environment's discounts
        (`Columns.DISCOUNT`), the discount is ``gamma ** n`` times the product of the environment's discounts over the n
        steps.

        Args:
            config: The module's config inside a trace.
            batch: The module's rows: ``n_step`` ``[N]`` (without it, 1 step), and `Columns.N_STEP_DISCOUNT` ``[N]``.

        Raises:
            ValueError: The batch contains discounts, but not their product.
        """
        n_step = batch.get("n_step", 1)
        if Columns.DISCOUNT not in batch:
            return {"n_step": n_step, "gamma": config.gamma}
        if Columns.N_STEP_DISCOUNT not in batch:
            raise ValueError(
                f"{type(self).__name__} needs the product of the column {Columns.DISCOUNT!r} over n steps. Only the "
                f"replay buffer of JAX environments computes it, and only for modules without a recurrent state. Use "
                f"such an environment and module, or leave {Columns.DISCOUNT!r} out of columns_from_acting."
            )
        return {"n_step": 1, "gamma": config.gamma**n_step * batch[Columns.N_STEP_DISCOUNT]}

    def post_update(
        self, state: LearnerState, *, metrics: dict[MetricKey, Any], settings: dict[str, dict[str, Any]]
    ) -> UpdateResult:
        """Updates the target networks whose update is due. The method is a pure function: it returns the new learner
        state and the metrics; see `Learner.post_update`.
        """
        state, metrics = super().post_update(state, metrics=metrics, settings=settings)
        last, number = dict(state.extra[LAST_TARGET_UPDATE]), dict(state.extra[TARGET_UPDATES])
        rest, metrics = dict(state.rest), dict(metrics)
        for mid in last:
            sources = self._sources_of_targets(mid)
            due = self.target_update_is_due(state, mid)
            has_rows = self.has_rows(mid)
            due = due if has_rows is True else jnp.logical_and(due, has_rows)
            main = {ref: state.params[own] if own in state.params else rest[own] for ref, own in sources.items()}
            rest |= _moved(main, {ref: rest[ref] for ref in sources}, due, settings[mid]["tau"])
            last[mid] = jnp.where(due, state.timesteps, last[mid])
            number[mid] = number[mid] + due.astype(jnp.uint32)
            put_counter(metrics, (mid, NUM_TARGET_UPDATES), counters.add(counters.zero(), number[mid]))
            put_counter(metrics, (mid, LAST_TARGET_UPDATE_TS), last[mid])
        extra = {**state.extra, LAST_TARGET_UPDATE: last, TARGET_UPDATES: number}
        return dataclasses.replace(state, rest=rest, extra=extra), metrics

    def target_update_is_due(self, state: LearnerState, module_id: str) -> jax.Array:
        """Whether a module's target networks must be updated after the current update, as a bool scalar.

        Args:
            state: State after the update, as in `post_update`.
            module_id: Module with target networks.
        """
        last = state.extra[LAST_TARGET_UPDATE][module_id]
        return q_learning.target_update_due(state.timesteps, last, self.env_steps_between_target_updates(module_id))

    def env_steps_between_target_updates(self, module_id: str) -> int:
        """Returns the minimum number of sampled env steps between two updates of a module's target networks.

        If 0, the target networks are updated after every update of the learner.
        """
        return self.config_for(module_id).target_network_update_freq

    def _ids_with_targets(self) -> list[str]:
        return [mid for mid, module in self.template.items() if isinstance(module, TargetNetworkAPI)]

    def _sources_of_targets(self, module_id: str) -> dict[str, str]:
        """Returns, for each array of the target networks, the array of the main network that it follows, ``{target ref:
        main ref}`` (ref: name of an array).
        """
        sources: dict[str, str] = {}
        module = cast(TargetNetworkAPI, self.template[module_id])
        for main, target in module.get_target_network_pairs():
            own = self.pure.paths_of(main, nnx.Variable)
            for path, ref in self.pure.paths_of(target, nnx.Variable).items():
                if follows(self.pure.definition.variable_types[ref]):
                    sources[ref] = own[path]
        return sources


def _moved(
    main: dict[str, jax.Array], target: dict[str, jax.Array], due: jax.Array, tau: jax.Array | float
) -> dict[str, jax.Array]:
    """Returns a target network's arrays after a soft update towards the main network's arrays; unchanged if no target
    update is due.
    """
    return jax.lax.cond(due, lambda: q_learning.soft_update(main, target, tau), lambda: target)
