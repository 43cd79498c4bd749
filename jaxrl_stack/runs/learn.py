"""Training loop of `Algorithm.learn` and ``jaxrl train``. It trains until a stop criterion is reached or Ctrl-C is
pressed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from jaxrl_stack.runs.best import Best
from jaxrl_stack.runs.result import Result
from jaxrl_stack.runs.statistics import RunStatistics, counted, duration, returns_text
from jaxrl_stack.runs.stop import StopCriteria, StopReason
from jaxrl_stack.utils.devices import of_first_process

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.runs.progress import Silence

CTRL_C = "Ctrl-C"
"""Reason why a run ended, if Ctrl-C ended it."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """End of a run: its last result, its totals (such as steps and seconds), and the reason why it ended.

    Attributes:
        result: The last result.
        statistics: Sums over the run.
        reason: The criterion that ended it, in words, or "Ctrl-C".
        best: The best state with its checkpoint; None if none is kept.
        checkpoint: Stored checkpoint of the last iteration; None if there is none.
    """

    result: Result
    statistics: RunStatistics
    reason: str
    best: Best | None = None
    checkpoint: Path | None = None

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C ended the run."""
        return self.reason == CTRL_C

    def lines(self, directory: str | os.PathLike[str] | None = None) -> list[str]:
        """Lines of text about the end of the run, to print.

        Args:
            directory: Folder of the run's files; None without files.
        """
        done, files = self.statistics, []
        if directory is not None:
            show = shlex.join(["tensorboard", "--logdir", str(directory)])
            files = [f"Results:    {directory}", f"Curves:     {show}"]
        return [
            f"Stopped:    {self.reason}",
            f"Trained:    {done.steps:,} steps in {counted(done.iteration, 'iteration')}, "
            f"return {returns_text(done)}; {duration(done.steady_seconds)} at "
            f"{done.steps_per_second_overall:,.0f} steps/s, and {duration(done.compile_seconds)} of compiling",
            *files,
            *([f"Best:       {self.best}"] if self.best is not None and self.best.path is not None else []),
            *([] if self.checkpoint is None else [f"Checkpoint: {self.checkpoint}"]),
        ]


def learn(
    algo: Algorithm,
    criteria: StopCriteria,
    display: Silence,
    task: str = "compiling the training program",
    after_iteration: Callable[[str], object] | None = None,
    *,
    checkpoint_at_end: bool | None = None,
) -> Outcome:
    """Trains until a criterion is reached, or until Ctrl-C, which ends training after the running iteration.

    Joined processes all call this, and stop together, by the decision of the first process.

    Args:
        algo: The algorithm; it can continue to train afterwards.
        criteria: Stop criteria.
        display: Display of the run.
        task: Description of the slow work in the first iteration.
        after_iteration: Called with the reason to stop, in words, which is empty while training continues.
        checkpoint_at_end: Whether to save a checkpoint of the last iteration in the run's folder: True always, False
            only after Ctrl-C, None only in runs that save checkpoints.

    Raises:
        StopError: After the first iteration, if a criterion names a number that results do not have.
        KeyboardInterrupt: At the second Ctrl-C.
    """
    counts = {
        "training_iteration": algo.iteration,
        "num_env_steps_sampled_lifetime": algo.num_env_steps_sampled_lifetime,
    }
    statistics = RunStatistics({**algo.history.last, **counts})
    display.begin(algo.history, task)
    algo.stop_criteria, interruption = criteria, Interruption()
    try:
        with interruption.caught(display.stopping):
            while True:
                result = algo.train()
                statistics.update(result)
                reason = of_first_process(functools.partial(_reason_to_stop, algo.stop_reason, result, interruption))
                if after_iteration is not None:
                    after_iteration(reason)
                checkpoint = _last_checkpoint(algo, reason, checkpoint_at_end) if reason else None
                display.iteration(result, statistics, is_last=bool(reason))
                if reason:
                    outcome = Outcome(result, statistics, reason, algo.best, checkpoint)
                    why = algo.stop_reason or StopReason(reason, is_goal=False)
                    algo.output.note_end(why, "\n".join(outcome.lines()))
                    return outcome
    except BaseException as error:
        algo.output.log("".join(traceback.format_exception(error)))
        raise
    finally:
        algo.stop_criteria = None


def _last_checkpoint(algo: Algorithm, reason: str, at_end: bool | None) -> Path | None:
    """Saves a checkpoint of a run's last iteration, depending on `at_end`, and returns the path of the checkpoint.

    If `at_end` is True, always saves the checkpoint; if False, only after Ctrl-C; if None, only in runs that save
    checkpoints. Also returns the path if this iteration's checkpoint was saved earlier. Returns None if this iteration
    has no checkpoint.
    """
    stored, directory = algo.stored_checkpoints, algo.output.directory
    is_wanted = stored.frequency is not None if at_end is None else at_end or reason == CTRL_C
    if is_wanted:
        return stored.save_last(directory, algo.iteration)
    stored.close()
    return stored.find(algo.iteration)


def _reason_to_stop(reached: str | None, result: Result, interruption: Interruption) -> str:
    """Text with the reason to stop training; empty if training continues."""
    by_callback = "a callback has set result['done']" if result.get("done") else ""
    return reached or by_callback or CTRL_C * interruption.is_asked_for


class Interruption:
    """Treats Ctrl-C as a request to stop: the first one is recorded, the second one raises KeyboardInterrupt.

    Attributes:
        is_asked_for: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.is_asked_for = False

    @contextlib.contextmanager
    def caught(self, notify: Callable[[], None]) -> Iterator[None]:
        """Context manager in which Ctrl-C is recorded instead of raised. It works only in the main thread, because
        other threads receive no signals.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def handle(number: int, frame: FrameType | None) -> None:
            if self.is_asked_for:
                raise KeyboardInterrupt
            self.is_asked_for = True
            notify()

        previous = signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)
