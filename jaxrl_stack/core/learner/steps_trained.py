"""Counters of the steps on which a Learner has trained its modules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.core.learner.items import Form, RowForm
from jaxrl_stack.utils import counters
from jaxrl_stack.utils.metrics import MODULE_TRAIN_BATCH_SIZE_MEAN, NUM_MODULE_STEPS_TRAINED

if TYPE_CHECKING:
    from jaxrl_stack.core.learner.update_plan import UpdatePlan
    from jaxrl_stack.core.rl_module.multi_rl_module import MultiRLModule

Timesteps = dict[str, Any] | int | None
"""Lifetime counters, ``{"num_env_steps_sampled_lifetime": n}`` or ``n``."""


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """Numbers of rows on which one update trains a module: per gradient step, and in total.

    Attributes:
        batch_size: Mean number of valid rows per gradient step (of a minibatch, or of the whole batch).
        num_steps: Number of valid rows that all gradient steps use; rows of several epochs count several times.
    """

    batch_size: float
    num_steps: int


class Amount(NamedTuple):
    """Amount of one module's data in an update: the number of steps, and the number of items.

    Items are the units that minibatches consist of: single steps, chunks (training sequences) or env steps.

    Attributes:
        num_rows: Number of steps.
        num_items: Number of items.
        rows_per_item: Number of steps of an item.
    """

    num_rows: int
    num_items: int
    rows_per_item: int = 1


def lifetime_env_steps(timesteps: Mapping[str, Any] | int | None) -> int:
    """Converts the argument `timesteps` of an update to a number of lifetime env steps. `timesteps` is a number, a dict
    ``{"num_env_steps_sampled_lifetime": n}``, or None for 0.

    Raises:
        TypeError: If `timesteps` has a different form.
    """
    steps = timesteps.get("num_env_steps_sampled_lifetime", 0) if isinstance(timesteps, Mapping) else timesteps
    if not (steps is None or isinstance(steps, int | np.integer)):
        raise TypeError(
            f"The argument timesteps={timesteps!r} of a Learner's update or evaluation must be a number of env steps, "
            "or {'num_env_steps_sampled_lifetime': number}."
        )
    return int(steps or 0)


def amount_of_block(form: Form, num_steps: int, num_columns: int) -> Amount:
    """Returns the amount of data in sampled steps ``[T, B, ...]``: the number of steps, and the number of items.

    Items are the units that minibatches consist of; `form` defines them as single steps, chunks (training sequences) or
    env steps.
    """
    return Amount(num_steps * num_columns, form.num_items(num_steps, num_columns), form.rows_per_item)


def trained_on(
    modules: MultiRLModule,
    plan: UpdatePlan,
    amounts: Mapping[str, Amount],
    masks: Mapping[str, Any],
    is_updated: Callable[[str], bool],
) -> dict[str, TrainedOn]:
    """Counts the valid rows (not masked) on which one update trains each module.

    The counts follow from batch sizes and masks in host memory. If masks are inside a compiled program, use
    `counted_by_program`.

    Args:
        modules: The learner's modules, by id.
        plan: Sizes of the update.
        amounts: Sizes of the data, by module.
        masks: ``LOSS_MASK`` of the modules that have one.
        is_updated: Function from a module id to whether the module is updated.
    """
    steps = max(plan.num_steps(-(-own.num_items // plan.local_shards), own.rows_per_item) for own in amounts.values())
    # Connectors give modules that do not act the rows of one that does.
    source, of_source = next(iter(amounts.items()))
    learner_only = [mid for mid, module in modules.items() if module.learner_only]
    out = {}
    for mid, own in {**dict.fromkeys(learner_only, Amount(*[of_source.num_rows] * 2)), **amounts}.items():
        if not is_updated(mid):
            continue
        valid, masked = own.num_rows, mid if mid in amounts else source
        if masked in masks:
            valid = int(np.count_nonzero(masks[masked]))
        # Epochs cover every row equally often, so the whole batch has the same share of valid rows.
        per_shard = plan.rows_per_shard_and_step(own.rows_per_item)
        items_per_step = per_shard * plan.local_shards if per_shard else own.num_items
        rows_per_step = items_per_step * valid / own.num_items
        out[mid] = TrainedOn(rows_per_step, round(steps * items_per_step * valid / own.num_items))
    return out


def trained_in_each(
    modules: MultiRLModule,
    plan: UpdatePlan,
    num_steps: int,
    num_columns: Mapping[str, int] | None,
    forms: Mapping[str, Form],
    is_updated: Callable[[str], bool],
) -> dict[str, TrainedOn]:
    """Returns the numbers of rows on which one update trains each module, ``{module id: TrainedOn}``.

    The numbers are per gradient step and in total. They follow from the batch size, which is equal in all updates; see
    `Learner.training_counts`.
    """
    columns = num_columns or dict.fromkeys(modules, 1)
    amounts = {mid: amount_of_block(forms.get(mid, RowForm()), num_steps, columns[mid]) for mid in modules}
    return trained_on(modules, plan, amounts, {}, is_updated)


def counted_by_program(learned: Mapping[tuple[str, ...], Any]) -> dict[str, TrainedOn]:
    """Reads from a compiled program's metrics the number of rows on which the program has trained each module, for
    modules whose masks exist only inside the program.

    Args:
        learned: Metrics of the program on the host: batch sizes of its last update, steps of all its updates.
    """
    module_ids = dict.fromkeys(path[0] for path in learned if path[1:] == (NUM_MODULE_STEPS_TRAINED,))
    return {
        mid: TrainedOn(
            float(learned[mid, MODULE_TRAIN_BATCH_SIZE_MEAN]),
            int(np.sum(learned[mid, NUM_MODULE_STEPS_TRAINED], dtype=np.float64)),
        )
        for mid in module_ids
    }


@dataclasses.dataclass
class StepsTrained:
    """Lifetime counters of a Learner, by module: the number of rows used in gradient steps.

    The updates of an iteration on the device have equal sizes and are not counted one by one: `lifetime` extrapolates
    from the size of one update.

    Attributes:
        steps: ``{module id: number}``, and the number of environment steps under ALL_MODULES.
        num_updates: Number of updates that are counted.
    """

    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    num_updates: int = 0

    def count(self, trained_on: Mapping[str, TrainedOn], num_updates: int) -> None:
        """Increases the lifetime counters by the numbers of rows on which one update has trained. `num_updates` is the
        learner's number of updates after this update.
        """
        for name in (*trained_on, ALL_MODULES):
            used = trained_on[name].num_steps if name in trained_on else env_steps(trained_on)
            self.steps[name] = self.lifetime(name, used, num_updates)
        self.num_updates = num_updates

    def add(self, steps: Mapping[str, int], num_updates: int) -> None:
        """Increases the lifetime counters by the numbers of rows on which several updates have trained.

        Args:
            steps: Numbers of steps on which these updates together have trained modules, by module.
            num_updates: Number of updates of the learner after them.
        """
        for name, number in {**steps, ALL_MODULES: max(steps.values(), default=0)}.items():
            self.steps[name] = self.steps.get(name, 0) + number
        self.num_updates = num_updates

    def lifetime(self, name: str, num_steps: int, num_updates: int) -> int:
        """Returns the lifetime number of trained steps after `num_updates` updates. The stored counter may not include
        the last updates yet; each of these updates adds `num_steps`.

        Args:
            name: Module id, or ALL_MODULES for steps of the environment.
            num_steps: Number of steps of each update that the counter does not include.
            num_updates: Number of updates so far.
        """
        return self.steps.get(name, 0) + num_steps * (num_updates - self.num_updates)

    def results(
        self,
        counts: Mapping[str, TrainedOn],
        num_updates: int,
        steps: Mapping[str, int],
        total: int,
        sizes: Mapping[str, Mapping[str, int]],
    ) -> dict[str, Any]:
        """Returns the counters of trained steps for a training result, such as ``num_module_steps_trained_lifetime``.

        Args:
            counts: Rows of each update, by module.
            num_updates: Number of updates of the result.
            steps: Numbers of steps of all these updates together, by module, if updates differ in size; else {}.
            total: Number of updates so far.
            sizes: Numbers of parameters, ``{module_id or ALL_MODULES: {name: number}}``.
        """
        own = {
            mid: {
                "num_module_steps_trained": steps.get(mid, count.num_steps * num_updates),
                "num_module_steps_trained_lifetime": self.lifetime(mid, count.num_steps, total),
                "module_train_batch_size_mean": count.batch_size,
                **sizes[mid],
                "weights_seq_no": total,
                "diff_num_grad_updates_vs_sampler_policy": 0.0,
            }
            for mid, count in counts.items()
        }
        of_env = env_steps(counts)
        return own | {
            ALL_MODULES: {
                "num_env_steps_trained": max(steps.values()) if steps else of_env * num_updates,
                "num_env_steps_trained_lifetime": self.lifetime(ALL_MODULES, of_env, total),
                "num_module_steps_trained": sum(m["num_module_steps_trained"] for m in own.values()),
                "num_module_steps_trained_lifetime": sum(m["num_module_steps_trained_lifetime"] for m in own.values()),
                **sizes[ALL_MODULES],
            }
        }

    def get_state(self, module_ids: Iterable[str]) -> dict[str, Any]:
        """Returns the lifetime counters of the given modules as arrays, for checkpoints."""
        return {
            "steps": {name: counters.from_int(self.steps.get(name, 0)) for name in (*module_ids, ALL_MODULES)},
            "num_updates": np.array(self.num_updates, np.uint32),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StepsTrained:
        """Creates `StepsTrained` counters from a result of `get_state`."""
        steps = {name: counters.to_int(counter) for name, counter in state["steps"].items()}
        return cls(steps, int(state["num_updates"]))


def env_steps(trained_on: Mapping[str, TrainedOn]) -> int:
    """Returns the number of environment steps on which modules were trained: the maximum over modules, because modules
    act in the same env steps.
    """
    return max((own.num_steps for own in trained_on.values()), default=0)
