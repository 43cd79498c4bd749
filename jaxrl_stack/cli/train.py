"""``jaxrl train``: trains according to options, and writes a directory of results."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import pathlib
import re
import shlex
import shutil
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from jaxrl_stack.algorithms.settings_display import env_name
from jaxrl_stack.cli.common import CliError, one_line, wrong_input
from jaxrl_stack.cli.experiment import algo_name, experiment
from jaxrl_stack.runs.displays import make_display
from jaxrl_stack.runs.history import RESULT_FILE
from jaxrl_stack.runs.learn import learn
from jaxrl_stack.runs.origin import write_origin
from jaxrl_stack.runs.progress import Silence
from jaxrl_stack.runs.stop import StopCriteria, StopError
from jaxrl_stack.utils.resources import num_actors

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm import Algorithm
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def run(arguments: argparse.Namespace) -> int:
    """Trains one run, or one run per seed, according to the options.

    Returns:
        0 if stop criteria ended the run or all seeds, 130 if Ctrl-C did.

    Raises:
        CliError: If an option, a setting or a file is invalid.
    """
    with joined_cluster(arguments.address):
        return _run_one(arguments) if arguments.seeds is None else _run_seeds(arguments)


@contextlib.contextmanager
def joined_cluster(address: str | None) -> Iterator[None]:
    """Context manager that connects this process to a running Ray cluster, and disconnects it at the end.

    Args:
        address: ``HOST:PORT`` of the head node; "auto" for the cluster of this machine or of ``RAY_ADDRESS``; None
            connects to nothing.

    Raises:
        CliError: If no cluster answers there.
    """
    if address is None:
        yield
        return
    import ray

    try:
        _require_server(address)
        ray.init(address=address, configure_logging=False)
    except ConnectionError as error:
        remedy = "Start a cluster with: ray start --head --port=6379, and pass --address HOST:6379."
        raise CliError(f"--address {address}: no Ray cluster answers ({_reason(error)}). {remedy}") from error
    except (OSError, RuntimeError, ValueError) as error:
        raise CliError(
            f"--address {address}: this process cannot join the Ray cluster ({_reason(error)}). Install the same "
            "versions of Python and Ray on all nodes, and pass the address of the head node, --address HOST:6379."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


CONNECT_TIMEOUT_S = 5.0
"""Longest wait for the port of a cluster. Ray itself tries for minutes."""


def _require_server(address: str) -> None:
    """Checks that a server answers at ``HOST:PORT``, by one connection; does nothing for other forms of addresses.

    Raises:
        ConnectionError: If nothing listens there.
        CliError: If the port is no number from 1 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if not colon or "://" in address:
        return
    if not (port.isdecimal() and 0 < int(port) < 2**16):
        raise CliError(f"--address {address}: {port!r} is no port. Pass --address HOST:6379.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConnectionError(error.strerror or str(error)) from error


def _reason(error: Exception) -> str:
    """First sentence of an error's message, without the final period."""
    return one_line(str(error)).partition(". ")[0].rstrip(".")


def _require_actors(config: AlgorithmConfig, address: str | None) -> None:
    """Raises CliError for ``--address`` (a Ray cluster) if the run starts no actors: such a run would not use the
    cluster.
    """
    if address is None or num_actors(config):
        return
    what = "num_env_runners=4" if config.num_learners or not config.samples_on_device else "num_learners=2"
    raise CliError(f"--address {address}: this run starts no actor, so it uses this machine only. Add --set {what}.")


def _run_one(arguments: argparse.Namespace) -> int:
    """Trains one run according to the options, and prints the summary of the run at the end."""
    config, criteria, origin = experiment(arguments, lambda config: _set_output(config, arguments))
    _require_actors(config, arguments.address)
    directory = pathlib.Path(str(config.results_dir))
    display = make_display(criteria, is_quiet=arguments.quiet, is_plain=arguments.no_progress)
    display.header(f"{algo_name(config)} in {env_name(config.env)}: {origin}")
    display.header(f"Until {criteria}. Results in {directory}.")
    with _made(directory, arguments.words, algo_name(config)), display:
        with wrong_input():
            algo = config.build_algo()
        try:
            if arguments.restore is not None:
                with wrong_input(f"--restore {arguments.restore}"):
                    algo.restore_from_path(arguments.restore)
            closing_lines, is_interrupted = _train(algo, criteria, directory, display, arguments)
        finally:
            algo.stop()
    print("\n".join(closing_lines), flush=True)
    return 130 if is_interrupted else 0


def _set_output(config: AlgorithmConfig, arguments: argparse.Namespace) -> None:
    """Sets the results directory and the checkpoint settings of a config from the options.

    Raises:
        CliError: If the directory is not empty, or ``--num-to-keep`` lacks checkpoints.
    """
    directory = results_directory(arguments, config)
    config.reporting(results_dir=str(directory), keep_best=arguments.keep_best or config.keep_best)
    if arguments.checkpoint_freq is not None:
        config.reporting(checkpoint_frequency=arguments.checkpoint_freq)
    if arguments.num_to_keep is not None:
        if config.checkpoint_frequency is None:
            missing = "limits checkpoints of --checkpoint-freq, which is missing. Add --checkpoint-freq 10."
            raise CliError(f"--num-to-keep {arguments.num_to_keep}: {missing}")
        config.reporting(num_to_keep=arguments.num_to_keep)


def results_directory(arguments: argparse.Namespace, config: AlgorithmConfig, prefix: str = "") -> pathlib.Path:
    """Returns the path of the results directory: the value of ``--results-dir`` if it is given, else a new path.

    The directory ``--results-dir`` must be new or empty. The name of a new path begins with `prefix`.
    """
    if arguments.results_dir is not None:
        directory = pathlib.Path(arguments.results_dir)
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CliError(f"--results-dir {directory}: exists and is not empty. Name a new directory.")
        return directory
    name = re.sub(r"[^\w.-]+", "-", f"{prefix}{algo_name(config)}_{env_name(config.env)}")
    stem = f"{name}_{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    directory, number = pathlib.Path("results", stem), 1
    while directory.exists():
        number += 1
        directory = pathlib.Path("results", f"{stem}_{number}")
    return directory


@contextlib.contextmanager
def _made(directory: pathlib.Path, command: Sequence[str], algorithm: str) -> Iterator[None]:
    """Context manager that creates a run's directory, and deletes the directory if the run ends without a result.

    Also records the origin of the run in the directory (command and versions).
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    results = directory / RESULT_FILE
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


# ----------------------------------------------------------------------------------------------------------- the run


def _train(
    algo: Algorithm, criteria: StopCriteria, directory: pathlib.Path, display: Silence, arguments: argparse.Namespace
) -> tuple[list[str], bool]:
    """Trains an algorithm until a stop criterion or Ctrl-C ends the run, then saves a checkpoint of the last iteration.

    With ``--no-checkpoint-at-end``, saves this checkpoint only after Ctrl-C.

    Returns:
        The closing lines, and whether Ctrl-C ended the run.
    """
    try:
        outcome = learn(algo, criteria, display, checkpoint_at_end=arguments.checkpoint_at_end)
    except StopError as error:
        raise CliError(str(error)) from error
    lines = outcome.lines(directory)
    if outcome.checkpoint is not None:
        command = ["jaxrl", "evaluate", str(outcome.checkpoint)]
        # Code that is not this package's is not in the checkpoint.
        if arguments.config_file is not None and arguments.config_file.endswith(".py"):
            command += ["--config-file", arguments.config_file]
        elif ":" in env_name(algo.config.env):
            command += ["--env", env_name(algo.config.env)]
        lines.append(f"Evaluate:   {shlex.join(command)}")
    return lines, outcome.is_interrupted


# ------------------------------------------------------------------------------------------------------ several seeds

_OF_ONE_RUN = {
    "seed": "sets one seed, but --seeds N trains the seeds 0 to N - 1",
    "plateau": "ends a run early, but seeds are compared over the same number of steps",
    "checkpoint_freq": "applies to a single run",
    "num_to_keep": "applies to a single run",
    "no_progress": "applies to a single run",
}
"""Option that `jaxrl train --seeds` refuses -> why."""


def _run_seeds(arguments: argparse.Namespace) -> int:
    """Trains one run per seed, each with a folder in the results directory."""
    from jaxrl_stack.runs.seeds import run_seeds

    for name, why in _OF_ONE_RUN.items():
        given = getattr(arguments, name)
        if given is not None and given is not False:
            raise CliError(f"--{name.replace('_', '-')}: {why}. Leave it out, or train one run, without --seeds.")
    config, criteria, origin = experiment(arguments, lambda config: _set_output(config, arguments))
    _require_actors(config, arguments.address)
    directory = pathlib.Path(str(config.results_dir))
    if not criteria.targets:
        raise CliError("--stop is missing. Say when the run of each seed ends: --stop '{\"training_iteration\": 100}'.")
    if not arguments.quiet:
        print(f"{algo_name(config)} in {env_name(config.env)}, {arguments.seeds} seeds: {origin}")
        print(f"Each until {criteria}. Results in {directory}.", flush=True)
    with wrong_input():
        quiet = arguments.quiet
        done = run_seeds(config, arguments.seeds, criteria.targets, progress=not quiet, restore=arguments.restore)
    finished = len(done.runs)
    print(f"Finished:   {finished} of {arguments.seeds} seeds\nResults:    {directory}")
    print(f"Curves:     jaxrl plot {directory}\nTable:      jaxrl compare {directory}", flush=True)
    return 0 if finished == arguments.seeds else 130
