"""Training of several series (runs with the same goal) in processes. Each process trains one run with one thread."""

from __future__ import annotations

import _thread
import functools
import importlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from jaxrl_stack.runs.series import Trial, train_one_by_one
from jaxrl_stack.runs.series_folder import SeriesFolder

_CALL = "import sys; from jaxrl_stack.runs.series_processes import run_call; run_call(*sys.argv[1:])"
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_LOOKS_AT_PARENT = 1.0


def train_in_processes(
    series: Sequence[tuple[Sequence[Trial], SeriesFolder]], until: Mapping[str, float], jobs: int, *, progress: bool
) -> None:
    """Trains all unfinished runs of several series (runs with the same goal) in processes, one run per process.

    Args:
        series: Trials and results folder of each series.
        until: Goal of each run.
        jobs: Number of processes at the same time.
        progress: Whether each process prints a line at its end.

    Raises:
        RuntimeError: If a process has failed, after the others have ended.
        KeyboardInterrupt: After Ctrl-C, once all processes have saved their runs.
    """
    calls = [
        functools.partial(_train_one, trials, place, until, folder, progress=progress)
        for trials, folder in series
        for place in range(len(trials))
        if place not in folder.finished()
    ]
    with tempfile.TemporaryDirectory() as scratch:
        codes = _run_all([_written(call, Path(scratch, f"{i}.pickle")) for i, call in enumerate(calls)], jobs)
    if any(code == _INTERRUPTED for code in codes):
        raise KeyboardInterrupt
    failed = [call for call, code in zip(calls, codes, strict=True) if code]
    if failed:
        _, place, _, folder = failed[0].args
        raise RuntimeError(
            f"{len(failed)} of {len(calls)} processes (one for each run) have failed. The first failed run is "
            f"{folder.run_folder(place)} (error above). Repeat the call to train the failed runs again; to debug them, "
            f"set jobs=1, which trains them in this process."
        )


_INTERRUPTED = 130


def _train_one(
    trials: Sequence[Trial], place: int, until: Mapping[str, float], folder: SeriesFolder, *, progress: bool
) -> None:
    """Trains one run in a separate process."""
    alone = [trial.without_folder() for trial in trials]
    try:
        done = train_one_by_one(alone, [place], until, folder, progress=progress)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    if place not in done.places:
        sys.exit(_INTERRUPTED)


def run_call(path: str, parent: str) -> None:
    """Loads a function call, which trains a run, from a file, and executes the call.

    `_written` wrote the file. If the parent process ends, for example by ``kill -9``, the training is interrupted as by
    Ctrl-C, and saves a checkpoint.

    Args:
        path: File of the call.
        parent: Id of the parent process.
    """
    threading.Thread(target=_interrupt_without, args=(int(parent),), daemon=True).start()
    pickle.loads(Path(path).read_bytes())()


def _interrupt_without(parent: int) -> None:
    """Waits until the parent process has ended, then interrupts the main thread, as Ctrl-C does.

    The training in the main thread then saves a checkpoint, and the process exits.
    """
    # Processes in the background ignore SIGINT, except while they train.
    while os.getppid() == parent or not callable(signal.getsignal(signal.SIGINT)):
        time.sleep(_SECONDS_BETWEEN_LOOKS_AT_PARENT)
    _thread.interrupt_main()


def _written(call: Callable[[], None], path: Path) -> Path:
    """Writes a function call to the file `path`, from which another process can load it. Returns `path`."""
    # Configs may hold functions of notebooks and scripts.
    path.write_bytes(importlib.import_module("ray.cloudpickle").dumps(call))
    return path


def _run_all(calls: Sequence[Path], jobs: int) -> list[int]:
    """Executes stored function calls: starts a separate process for each call, which loads the call from its file. At
    most `jobs` processes run at the same time.

    Returns:
        Exit code of each call. After Ctrl-C, calls that have not begun count as interrupted.
    """
    environment = {**os.environ, **_ONE_THREAD}
    environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_ONE_THREAD['XLA_FLAGS']}".strip()
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for call in calls:
            while sum(process.poll() is None for process in processes) >= jobs:
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            words = [sys.executable, "-c", _CALL, str(call), str(os.getpid())]
            processes.append(subprocess.Popen(words, env=environment))
        codes = [process.wait() for process in processes]
    except KeyboardInterrupt:
        # A terminal sends Ctrl-C to all of them: each ends after its iteration and saves.
        codes = [process.wait() for process in processes]
        codes += [_INTERRUPTED] * (len(calls) - len(codes))
        codes = codes if _INTERRUPTED in codes else [_INTERRUPTED, *codes[1:]]
    return codes
