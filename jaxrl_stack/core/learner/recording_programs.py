"""Compiled update programs that also record the minibatches of each update, for debugging."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_stack.core.learner.minibatch_records import Record, Recorder

if TYPE_CHECKING:
    from jaxrl_stack.core.block import Block
    from jaxrl_stack.core.learner.learner import Learner
    from jaxrl_stack.core.learner.learner_state import LearnerState
    from jaxrl_stack.core.learner.row_blocks import PaddedRows
    from jaxrl_stack.core.learner.update_plan import UpdatePlan
    from jaxrl_stack.core.learner.update_programs import UpdatePrograms
    from jaxrl_stack.utils.typing import ModuleID

Recorded = Callable[[dict[tuple[str, ...], np.ndarray], Any, Any], None]
"""Receives the record of an update (leaves ``[D, minibatches, ...]``) and the parameters after the recording and after
the training program."""


class RecordingPrograms:
    """Variant of `UpdatePrograms` that also records the minibatches of each update for debugging.

    Before the training program runs, another program makes the same update with a copy of the state and returns the
    record. The new state comes from the training program, so that its bits do not depend on the recording.

    Args:
        learner: The learner.
        programs: The programs of training; all other calls go to them.
        recorder: Sizes of the records.
        add: Receives each record.
    """

    def __init__(self, learner: Learner, programs: UpdatePrograms, recorder: Recorder, add: Recorded):
        self._learner, self._programs, self._recorder, self._add = learner, programs, recorder, add
        self._compiled: dict[tuple[int, int | None], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._programs, name)

    def of_blocks(self, plan: UpdatePlan, blocks: Mapping[ModuleID, Block]) -> Callable[..., Any]:
        """Returns a function that makes an update from sampled blocks and passes a debugging record of the update's
        minibatches to the callback `add`; see `UpdatePrograms.of_blocks`.
        """
        return self._recorded(self._programs.of_blocks(plan, blocks), self._whole(plan, self._recorder))

    def of_batch(self, batch: PaddedRows) -> Callable[..., Any]:
        """Returns a function that makes an update from padded rows and passes a debugging record of the update's
        minibatches to the callback `add`; see `UpdatePrograms.of_batch`.
        """
        most = max((int(np.max(counts.num_steps)) for counts in batch.row_counts), default=None)
        recorder = dataclasses.replace(self._recorder, most_minibatches=most)
        function = self._whole(batch.plan, recorder)
        return self._recorded(self._programs.of_batch(batch), function, most, num_mapped=len(batch.row_counts))

    def of_rows(self) -> Callable[..., Any]:
        """Returns a function that makes an update with one gradient step on all rows, and records the step for
        debugging.

        The function passes a debugging record of this step to the callback `add`; see `UpdatePrograms.of_rows`.
        """
        learner, recorder = self._learner, self._recorder

        def step(state: LearnerState, *arguments: Any) -> tuple[LearnerState, Any, Record]:
            axis_name = learner.reduction_axis
            (state, metrics, _), record = learner.pure_update.recorded_step(
                state, *arguments, axis_name=axis_name, recorder=recorder
            )
            return state, metrics, record

        return self._recorded(self._programs.of_rows(), step)

    def _whole(self, plan: UpdatePlan, recorder: Recorder) -> Callable[..., Any]:
        update, axis_name = self._learner.pure_update, self._learner.reduction_axis
        return functools.partial(update.recorded, plan=plan, axis_name=axis_name, recorder=recorder)

    def _recorded(
        self, training: Any, function: Callable[..., Any], most_minibatches: int | None = None, *, num_mapped: int = 0
    ) -> Callable[..., Any]:
        """Returns a function that makes an update twice: first to record the minibatches, then to train.

        First, another program makes the update on a copy of the state and records the minibatches for debugging. Then
        the training program makes the update on the state, and the function returns the results of this second run. The
        record is passed to the callback `add`.
        """
        key = (id(training), most_minibatches)
        if key not in self._compiled:
            # With the training program, whose id stays unique as long as it exists.
            self._compiled[key] = (self._programs.compiled(function, num_mapped=num_mapped), training)
        recording, _ = self._compiled[key]

        def call(state: LearnerState, batch: Any, *arguments: Any, **options: Any) -> Any:
            # Programs donate their state.
            copied, _, record = recording(jax.tree.map(jnp.copy, state), batch, *arguments, **options)
            num_devices = len(self._learner.devices)
            record = {path: leaf.reshape(num_devices, -1, *leaf.shape[1:]) for path, leaf in record.items()}
            results = training(state, batch, *arguments, **options)
            self._add(record, copied.params, results[0].params)
            return results

        return call
