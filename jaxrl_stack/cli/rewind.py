"""``jaxrl rewind``, ``jaxrl verify`` and ``jaxrl diff``: recompute iterations of runs, and compare runs."""

from __future__ import annotations

import argparse
import pathlib
import shlex
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jaxrl_stack.checkpoints.newest import run_and_iteration
from jaxrl_stack.cli.common import CHECKPOINT_OPTIONS, CliError, wrong_input
from jaxrl_stack.cli.experiment import python_experiment

if TYPE_CHECKING:
    from jaxrl_stack.runs.run import Run


def run(arguments: argparse.Namespace) -> int:
    """Runs ``jaxrl rewind``, ``jaxrl verify`` or ``jaxrl diff``.

    Returns:
        0 done or equal, 1 different, 3 not comparable on this machine.

    Raises:
        CliError: If a run does not exist or cannot be recomputed.
    """
    command = {"rewind": _rewind, "verify": _verify, "diff": _diff}[arguments.command]
    return command(arguments)


def _read(path: str) -> Run:
    from jaxrl_stack.runs.run import Run

    if not pathlib.Path(path).is_dir():
        raise CliError(f"RUN {path}: is not the folder of a run. Name the folder that `jaxrl train` printed.")
    with wrong_input(f"RUN {path}"):
        return Run.read(path)


def code_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the user's code that repeating a run needs, as the arguments `config` and `allow` of `Run.at`.

    The result is ``{name: value}``. `config` is the config of a Python ``--config-file``, else None; `allow` is the
    code that ``--env`` names.
    """
    from jaxrl_stack.algorithms.games import code_of_env

    file, env = getattr(arguments, "config_file", None), getattr(arguments, "env", None)
    config = None
    # A JSON file has no code.
    if file is not None and file.endswith(".py"):
        config = python_experiment(pathlib.Path(file))[0]
    return {"config": config, "allow": code_of_env(env)}


def _run_or_population(path: str) -> Run | pathlib.Path:
    """Reads and returns the run at a path. If the path is the folder of a population, returns the path itself."""
    from jaxrl_stack.rewind.population_timeline import is_population

    return pathlib.Path(path) if is_population(pathlib.Path(path)) else _read(path)


def _rewind(arguments: argparse.Namespace) -> int:
    source = _run_or_population(arguments.run)
    path, number, seconds = rewound(source, arguments.to, code_of(arguments))
    if isinstance(source, pathlib.Path):
        continued = f"Population.from_checkpoint({str(path)!r})"
    else:
        continued = shlex.join(["jaxrl", "train", "--restore", f"{arguments.run}@{arguments.to}"])
    how = f"{number} recomputed, {seconds:.1f} s." if number else "It was stored already."
    print(f"Checkpoint: {path}\nIterations: {how}\nContinue:   {continued}", flush=True)
    return 0


def rewound(run: Run | pathlib.Path, iteration: int, code: Mapping[str, Any]) -> tuple[pathlib.Path, int, float]:
    """Ensures that the checkpoint of an iteration of a run or a population is stored.

    If this checkpoint is missing, repeats the training from the nearest earlier checkpoint, or from the start, up to
    this iteration, and saves the checkpoint. Returns the path of the checkpoint, the number of recomputed iterations
    and the seconds taken.

    Raises:
        CliError: If it cannot be recomputed.
    """
    from jaxrl_stack.rewind.replay import rewind

    started = time.perf_counter()
    with wrong_input():
        path, number = rewind(run, iteration, **code)
    return path, number, time.perf_counter() - started


def resolve_iterations(arguments: argparse.Namespace) -> None:
    """Replaces ``RUN@35`` in the options of a command by the path of the checkpoint of iteration 35.

    If this checkpoint is missing, first recomputes the iteration and saves the checkpoint (see `rewound`).

    Args:
        arguments: Options of any command; its ``checkpoint``, ``checkpoints`` or ``restore`` is replaced, and
            ``forked_at`` is added.
    """

    def resolved(text: str) -> str:
        # Iterations in an object store cannot be recomputed; the command names the path.
        found = None if "://" in text else run_and_iteration(text)
        if found is None:
            return text
        path, number, _ = rewound(_read(str(found[0])), found[1], code_of(arguments))
        if number:
            print(f"{text}: recomputed {number} iterations: {path}", file=sys.stderr)
        arguments.forked_at = found[1]
        return str(path)

    for name in CHECKPOINT_OPTIONS:
        given = getattr(arguments, name, None)
        if given is not None:
            setattr(arguments, name, [resolved(text) for text in given] if isinstance(given, list) else resolved(given))


def _verify(arguments: argparse.Namespace) -> int:
    from jaxrl_stack.rewind.verification import verify

    run = _run_or_population(arguments.run)
    with wrong_input():
        found = verify(run, getattr(arguments, "from"), arguments.to, **code_of(arguments))
    print(found, flush=True)
    return found.exit_code


def _diff(arguments: argparse.Namespace) -> int:
    from jaxrl_stack.rewind.verification import diff

    runs = [_read(path) for path in (arguments.run, arguments.other)]
    with wrong_input():
        found = diff(runs[0], runs[1], **code_of(arguments))
    print(found, flush=True)
    return found.exit_code
