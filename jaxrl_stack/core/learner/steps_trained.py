"""How many steps a Learner was trained on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from jaxrl_stack.core import ALL_MODULES
from jaxrl_stack.utils import counters


@dataclasses.dataclass(frozen=True)
class TrainedOn:
    """What one update trains a module on.

    Attributes:
        batch_size: Valid rows of its batch.
        num_steps: Rows that gradient steps use.
    """

    batch_size: int
    num_steps: int


@dataclasses.dataclass
class StepsTrained:
    """Lifetime counters: rows used in gradient steps, up to some number of updates.

    Updates that an iteration on the device makes are all of one size and are not counted one by one: `lifetime` is
    told that size.

    Attributes:
        steps: ``{module id: number}``, and under ALL_MODULES that of the environment.
        num_updates: After so many updates.
    """

    steps: dict[str, int] = dataclasses.field(default_factory=dict)
    num_updates: int = 0

    def count(self, trained_on: Mapping[str, TrainedOn], num_updates: int) -> None:
        """Add the update that made `num_updates` of them."""
        for name in (*trained_on, ALL_MODULES):
            used = trained_on[name].num_steps if name in trained_on else env_steps(trained_on)
            self.steps[name] = self.lifetime(name, used, num_updates)
        self.num_updates = num_updates

    def lifetime(self, name: str, num_steps: int, num_updates: int) -> int:
        """Steps in `num_updates` updates: those that were counted, and `num_steps` in each one since.

        Args:
            name: A module, or ALL_MODULES for steps of the environment.
            num_steps: Steps of an update that was not counted.
            num_updates: Updates so far.
        """
        return self.steps.get(name, 0) + num_steps * (num_updates - self.num_updates)

    def get_state(self, module_ids: Iterable[str]) -> dict[str, Any]:
        """As arrays, for the given modules."""
        return {
            "steps": {name: counters.from_int(self.steps.get(name, 0)) for name in (*module_ids, ALL_MODULES)},
            "num_updates": np.array(self.num_updates, np.uint32),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StepsTrained:
        """What `get_state` returned, as an object again."""
        steps = {name: counters.to_int(counter) for name, counter in state["steps"].items()}
        return cls(steps, int(state["num_updates"]))


def env_steps(trained_on: Mapping[str, TrainedOn]) -> int:
    """Steps of the environment that the modules' rows come from: they all act in the same ones."""
    return max((own.num_steps for own in trained_on.values()), default=0)
