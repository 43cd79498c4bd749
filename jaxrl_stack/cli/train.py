"""``jaxrl train``: one run, from options to a directory of results."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import pathlib
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

from jaxrl_stack.cli.common import CliError, wrong_input
from jaxrl_stack.cli.experiment import algo_name, env_name, experiment
from jaxrl_stack.cli.progress import RunStatistics, Silence, duration, make_display, return_text
from jaxrl_stack.cli.stop import StopCriteria
from jaxrl_stack.runs.origin import write_origin

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig
    from jaxrl_stack.runs.writers import ResultWriter


def run(arguments: argparse.Namespace) -> int:
    """Trains as the options say.

    Returns:
        0 if a stop criterion ended the run, 130 if Ctrl-C did.

    Raises:
        CliError: If an option, a setting or a file is wrong.
    """
    config, criteria, origin = experiment(arguments)
    directory = _results_directory(arguments, config)
    display = make_display(criteria, is_quiet=arguments.quiet, is_plain=arguments.no_progress)
    display.header(f"{algo_name(config)} in {env_name(config)}: {origin}")
    display.header(f"Until {criteria}. Results in {directory}.")
    interruption = _Interruption()
    with _made(directory, arguments.words, algo_name(config)), display:
        with wrong_input():
            algo = config.build_algo()
        try:
            if arguments.restore is not None:
                with wrong_input(f"--restore {arguments.restore}"):
                    algo.restore_from_path(arguments.restore)
            with interruption.caught(display.stopping):
                closing_lines = _train(algo, criteria, directory, display, interruption, arguments)
        finally:
            algo.stop()
    print("\n".join(closing_lines), flush=True)
    return 130 if interruption.is_asked_for else 0


def _results_directory(arguments: argparse.Namespace, config: AlgorithmConfig) -> pathlib.Path:
    """A directory that is not there yet, or is empty."""
    if arguments.results_dir is not None:
        directory = pathlib.Path(arguments.results_dir)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CliError(f"--results-dir {directory}: exists and is not empty. Name a new directory.")
        return directory
    name = re.sub(r"[^\w.-]+", "-", f"{algo_name(config)}_{env_name(config)}")
    stem = f"{name}_{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    directory, number = pathlib.Path("results", stem), 1
    while directory.exists():
        number += 1
        directory = pathlib.Path("results", f"{stem}_{number}")
    return directory


@contextlib.contextmanager
def _made(directory: pathlib.Path, command: Sequence[str], algorithm: str) -> Iterator[None]:
    """Makes the directory of a run, with where it comes from; what ends before a result leaves nothing behind."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    results = directory / "result.json"
    try:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_origin(directory, command, algorithm=algorithm)
        except OSError as error:
            raise CliError(
                f"--results-dir {directory}: cannot be written ({error}). Name another directory."
            ) from error
        yield
    finally:
        if directory.exists() and not (results.exists() and results.stat().st_size):
            for path in directory.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            for path in missing:
                with contextlib.suppress(OSError):  # another run has begun beside it
                    path.rmdir()


def _result_writer(directory: pathlib.Path, config: AlgorithmConfig) -> ResultWriter:
    from jaxrl_stack.runs.writers import ResultWriter

    try:
        return ResultWriter(directory, config.to_dict())
    except OSError as error:
        raise CliError(f"--results-dir {directory}: cannot be written ({error}). Name another directory.") from error


# ----------------------------------------------------------------------------------------------------------- the run


class _Interruption:
    """Ctrl-C as a request: the first one is noted, the second raises KeyboardInterrupt as usual.

    Attributes:
        is_asked_for: Whether Ctrl-C was pressed.
    """

    def __init__(self) -> None:
        self.is_asked_for = False

    @contextlib.contextmanager
    def caught(self, notify: Callable[[], None]) -> Iterator[None]:
        """Notes Ctrl-C while in the block. Signals belong to the main thread; elsewhere nothing changes."""
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


def _train(
    algo: Algorithm,
    criteria: StopCriteria,
    directory: pathlib.Path,
    display: Silence,
    interruption: _Interruption,
    arguments: argparse.Namespace,
) -> list[str]:
    """Iterations until a criterion or Ctrl-C ends them, then the checkpoint; returns the closing lines."""
    statistics = RunStatistics(algo.iteration, algo.num_env_steps_sampled_lifetime)
    frequency = arguments.checkpoint_freq
    with _result_writer(directory, algo.config) as writer:
        while True:
            result = algo.train()
            statistics.update(result)
            reached = criteria.reached(result)
            result["done"] = reached is not None
            checkpoint: str | None = None
            if frequency is not None and statistics.iteration % frequency == 0:
                checkpoint = _save(algo, directory)
            writer.write(result)
            is_last = reached is not None or interruption.is_asked_for
            display.iteration(result, statistics, is_last)
            if is_last:
                break
        if checkpoint is None and (arguments.checkpoint_at_end or interruption.is_asked_for):
            checkpoint = _save(algo, directory)
    lines = [
        f"Stopped:    {reached or 'Ctrl-C'}",
        f"Trained:    {statistics.steps:,} steps in {_counted(statistics.iteration, 'iteration')}, "
        f"return {return_text(statistics.episode_return)}; {duration(statistics.steady_seconds)} at "
        f"{statistics.steps_per_second_overall:,.0f} steps/s, and {duration(statistics.compile_seconds)} of compiling",
        f"Results:    {directory}",
    ]
    if checkpoint is not None:
        command = ["jaxrl", "evaluate", checkpoint]
        if arguments.config_file is not None and arguments.config_file.endswith(".py"):
            # Functions and classes that the file puts into the config are not in the checkpoint.
            command += ["--config-file", arguments.config_file]
        lines += [f"Checkpoint: {checkpoint}", f"Evaluate:   {shlex.join(command)}"]
    return lines


def _save(algo: Algorithm, directory: pathlib.Path) -> str:
    return str(algo.save_to_path(str(directory / f"checkpoint_{algo.iteration:06d}")))


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
