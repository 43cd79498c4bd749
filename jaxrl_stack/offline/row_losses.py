"""Losses on batches of recorded steps, computed by a Learner without an update."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from jaxrl_stack.core.experience import Experience, num_rows_of
from jaxrl_stack.utils.results import NUM_STEPS_EVALUATED


class RowSource(Protocol):
    """Interface of objects that provide batches for evaluating a loss."""

    def draw(self) -> Experience:
        """Returns the next batch of recorded steps."""
        ...


class Evaluate(Protocol):
    """Type of a function that computes losses on a batch, such as `Learner.evaluate_rows`."""

    def __call__(self, rows: Experience, /, *, seed: int, timesteps: int) -> dict[str, Any]: ...


class RowLosses(NamedTuple):
    """Losses of each module, averaged over the steps of a recorded batch.

    Also contains the number of averaged steps of each module and the number of env steps in the batch.

    Attributes:
        values: ``{module_id: {name: number}}``: the loss of each module, and what the loss logs.
        num_steps: Steps of each module that `values` are means of. Modules that are not trained are left out.
        num_env_steps: Env steps of the rows.
    """

    values: dict[str, dict[str, Any]]
    num_steps: dict[str, int]
    num_env_steps: int


def row_losses(source: RowSource, evaluate: Evaluate, *, seed: int, timesteps: int) -> RowLosses:
    """Draws a batch of recorded steps and computes its losses, without an update.

    Args:
        source: Gives the rows.
        evaluate: Computes the losses.
        seed: Seed that random layers and connectors draw from.
        timesteps: Lifetime env steps, at which schedules are evaluated.
    """
    rows = source.draw()
    values = evaluate(rows, seed=seed, timesteps=timesteps)
    num_steps = {mid: int(own.pop(NUM_STEPS_EVALUATED)) for mid, own in values.items() if mid in rows.modules}
    return RowLosses(values, num_steps, rows.num_env_steps)


@dataclasses.dataclass(frozen=True)
class IteratedRows:
    """Provides batches of recorded steps from a user's iterator.

    If the number of a module's steps in a batch is not divisible by the number of devices, drops the remaining steps at
    the end.

    Attributes:
        iterator: Iterator of ``{module_id: {column: [N, ...]}}``.
        num_devices: Number of devices of the Learner.
    """

    iterator: Iterator[Mapping[str, Mapping[str, Any]]]
    num_devices: int

    def draw(self) -> Experience:
        """Returns the next batch of recorded steps from the user's iterator."""
        modules = {mid: dict(columns) for mid, columns in next(self.iterator).items()}
        return Experience.of_rows({mid: self._evenly(columns) for mid, columns in modules.items()})

    def _evenly(self, columns: dict[str, Any]) -> dict[str, Any]:
        number = num_rows_of(columns) // self.num_devices * self.num_devices
        return jax.tree.map(lambda x: x[:number], columns)
