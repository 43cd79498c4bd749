"""Search for the checkpoints in a run's directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from jaxrl_stack.checkpoints.names import ALGORITHM_METADATA_FILE

_NAME = re.compile(r"checkpoint_(\d+)")


def name_of(iteration: int) -> str:
    """Name of the folder of an iteration's checkpoint in a run's directory."""
    return f"checkpoint_{iteration:06d}"


def iteration_of(name: str) -> int | None:
    """Iteration in the name of a checkpoint's folder, the inverse of `name_of`; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def checkpoints_in(
    directory: str | os.PathLike[str], *, metadata_file: str = ALGORITHM_METADATA_FILE
) -> dict[int, Path]:
    """Returns the complete checkpoints in a run's directory, ``{number in the folder's name: path}``, the oldest first;
    {} if the directory does not exist.

    Args:
        directory: Folder of a run of ``jaxrl train`` or of ``reporting(results_dir=...)``, or of a trial of Tune.
        metadata_file: File that each of them contains: `ALGORITHM_METADATA_FILE`, or `METADATA_FILE` for populations.
    """
    folder = Path(directory)
    found = {
        number: path
        for path in (folder.iterdir() if folder.is_dir() else ())
        if (number := iteration_of(path.name)) is not None and (path / metadata_file).exists()
    }
    return dict(sorted(found.items()))


def newest_checkpoint(path: str) -> str:
    """Finds the newest complete checkpoint of an algorithm in the directory of a run.

    Args:
        path: Folder of a run of ``jaxrl train``, of a trial of Tune, or any other path.

    Returns:
        The ``checkpoint_<number>`` in it with the highest number. Without one, `path` itself, which may be a
        checkpoint, a path in an object store, or a missing path.
    """
    if Path(path, ALGORITHM_METADATA_FILE).exists():
        return path
    return str([path, *checkpoints_in(path).values()][-1])


def run_and_iteration(path: str) -> tuple[Path, int] | None:
    """Splits a path such as ``results/RUN@35`` into run and iteration.

    Args:
        path: Any path.

    Returns:
        ``(folder of the run, iteration)``; None for a path that exists, or without an iteration.
    """
    folder, sign, number = path.rpartition("@")
    if not (folder and sign and number.isdecimal()) or Path(path).exists():
        return None
    return Path(folder), int(number)


def stored_iteration(path: str | os.PathLike[str]) -> Path:
    """Converts ``RUN@35`` to the path of the checkpoint of iteration 35 in the folder of the run; returns other paths
    unchanged.

    Raises:
        FileNotFoundError: If the iteration is not stored.
    """
    found = run_and_iteration(os.fspath(path))
    if found is None or not found[0].is_dir():
        return Path(path)
    folder, iteration = found
    checkpoint = folder / name_of(iteration)
    if not checkpoint.is_dir():
        raise FileNotFoundError(
            f"{path}: iteration {iteration} is not stored. Recompute it: jaxrl rewind {folder} --to {iteration}."
        )
    return checkpoint
