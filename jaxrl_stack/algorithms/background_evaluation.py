"""Evaluations that run while an iteration trains."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any


class BackgroundEvaluation:
    """Context manager that runs an evaluation in a thread while the body of the ``with`` statement trains.

    Args:
        begin: Called before the block, to pass on the present weights.
        evaluate: ``f(is_training) -> results``, called in the thread; ``is_training()`` is True while the block runs.
        name: Name of the thread.
    """

    def __init__(self, begin: Callable[[], None], evaluate: Callable[[Callable[[], bool]], Any], name: str):
        self._begin, self._evaluate = begin, evaluate
        self._trained = threading.Event()
        self._outcome: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        try:
            self._outcome.set_result(self._evaluate(lambda: not self._trained.is_set()))
        except BaseException as error:  # handed to the training thread, which raises it
            self._outcome.set_exception(error)

    def __enter__(self) -> None:
        # Before training changes them: this evaluation is of the weights that the iteration starts with.
        self._begin()
        self._thread.start()

    def __exit__(self, *exception: Any) -> None:
        self._trained.set()
        if exception[0] is None:
            self.join()

    def join(self) -> None:
        """Waits for the evaluation to end."""
        if self._thread.ident is not None:
            self._thread.join()

    def outcome(self) -> Any:
        """Returns the results of the evaluation. If the evaluation raised an exception, raises this exception."""
        return self._outcome.result()
