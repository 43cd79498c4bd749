"""Forks: runs that continue another run after one of its iterations."""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxrl_stack.checkpoints.newest import iteration_of, run_and_iteration
from jaxrl_stack.checkpoints.plain_data import code_named_by
from jaxrl_stack.runs.curves import Curve, x_axis
from jaxrl_stack.runs.history import TABLES, History
from jaxrl_stack.runs.origin import PARENT
from jaxrl_stack.runs.run import Run

if TYPE_CHECKING:
    from jaxrl_stack.algorithms.algorithm_config import AlgorithmConfig


def recomputed_iteration(path: Any, *, config: AlgorithmConfig | None = None, allow: Iterable[Any] = ()) -> Any:
    """Converts ``"RUN@35"`` to the path of a checkpoint: iteration 35 of the run in the folder ``RUN``.

    A missing checkpoint is recomputed and stored. Other paths, and paths whose folder does not exist, are returned
    unchanged.

    Args:
        path: Argument of `Algorithm.from_checkpoint`.
        config, allow: Code of the user; see `Run.at`. The config of a run with other code has no effect.

    Raises:
        FileNotFoundError: If the folder contains no run.
        ValueError: If the iteration cannot be recomputed.
    """
    # Ray's checkpoints are os.PathLike without a path.
    found = run_and_iteration(os.fspath(path)) if isinstance(path, str | Path) else None
    if found is None or "://" in os.fspath(path) or not found[0].is_dir():
        return path
    folder, iteration = found
    # By name: that package imports algorithms, which import this module.
    replay = importlib.import_module("jaxrl_stack.rewind.replay")
    return replay.rewind(Run.read(folder), iteration, allow=(*allow, *code_named_by(config)))[0]


def parent_of(path: str) -> dict[str, Any] | None:
    """Finds the run to which a checkpoint belongs: ``{"folder": path of the run, "iteration": number}``; None if the
    checkpoint is not in the folder of a run.

    Args:
        path: The checkpoint.
    """
    checkpoint = Path(path)
    iteration = iteration_of(checkpoint.name)
    if iteration is None or not any((checkpoint.parent / table).is_file() for table in TABLES):
        return None
    return {"folder": str(checkpoint.parent), "iteration": iteration}


def curve_from_parent(run: Run, key: str, x: str) -> Curve:
    """Curve of a run. If the run is a fork, the curve begins with its parent's point at the forked iteration.

    Args:
        run, key, x: See `History.curve`.

    Raises:
        KeyError: If the run has no such column.
    """
    curve, parent = run.history.curve(key, x), run.origin.get(PARENT)
    if not isinstance(parent, dict) or not len(curve.x):
        return curve
    try:
        before = History.read(Path(parent["folder"]))
        of_parent = before.curve(key, x)
        at = before[x_axis(x)][before["training_iteration"] == parent["iteration"]]
    except (OSError, ValueError, KeyError, TypeError):
        return curve  # the parent's folder was moved
    known = np.flatnonzero(np.isin(of_parent.x, at) & (of_parent.x < curve.x[0]))[-1:]
    return dataclasses.replace(
        curve, x=np.append(of_parent.x[known], curve.x), y=np.append(of_parent.y[known], curve.y)
    )
