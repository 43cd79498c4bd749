"""Services that track experiments, by name: ``reporting(loggers=["wandb"])``."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jaxrl_stack.runs.writers import CONFIG_FILE
from jaxrl_stack.utils.optional_packages import optional_import

PROJECT = "jaxrl"
"""What runs are filed under, unless options say otherwise."""


class Tracker(NamedTuple):
    """One run in an experiment tracker.

    Attributes:
        log: Function of the finite numbers of an iteration, by path, and the env steps sampled so far.
        close: Function that ends the run.
    """

    log: Callable[[dict[str, float], int], object]
    close: Callable[[], object]


class RunInfo(NamedTuple):
    """Name, settings and folder of a run, for experiment trackers.

    Attributes:
        name: Name of algorithm, environment and time.
        config: Settings, as JSON.
        directory: Folder of the run's files; None without files.
    """

    name: str
    config: Mapping[str, Any]
    directory: str | None


def _wandb(options: Mapping[str, Any], info: RunInfo) -> Tracker:
    defaults = {"project": PROJECT, "name": info.name, "config": info.config, "dir": info.directory}
    run = _package("wandb").init(**{**defaults, **options})
    return Tracker(lambda values, step: run.log(values, step=step), run.finish)


def _trackio(options: Mapping[str, Any], info: RunInfo) -> Tracker:
    run = _package("trackio").init(**{"project": PROJECT, "name": info.name, "config": info.config, **options})
    return Tracker(lambda values, step: run.log(values, step=step), run.finish)


def _mlflow(options: Mapping[str, Any], info: RunInfo) -> Tracker:
    """Creates a tracker with a separate MLflow client, so that several runs of a process do not share MLflow's stack of
    active runs.
    """
    mlflow = _package("mlflow")
    given = {"experiment_name": PROJECT, "run_name": info.name, **options}
    client = mlflow.MlflowClient(tracking_uri=given.pop("tracking_uri", None))
    experiment_name, run_name = given.pop("experiment_name"), given.pop("run_name")
    found = client.get_experiment_by_name(experiment_name)
    experiment = client.create_experiment(experiment_name) if found is None else found.experiment_id
    run_id = client.create_run(experiment, run_name=run_name, **given).info.run_id
    client.log_dict(run_id, dict(info.config), CONFIG_FILE)
    entities = importlib.import_module("mlflow.entities")

    def log(values: dict[str, float], step: int) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run_id, metrics=[entities.Metric(name, value, now, step) for name, value in values.items()])

    return Tracker(log, lambda: client.set_terminated(run_id))


TRACKERS: dict[str, Callable[[Mapping[str, Any], RunInfo], Tracker]] = {
    "mlflow": _mlflow,
    "trackio": _trackio,
    "wandb": _wandb,
}
"""By the name of their package. Options are arguments of what starts a run there."""


def _package(name: str) -> Any:
    return optional_import(name, purpose=f"reporting(loggers=[{name!r}])", install=name)


def check_installed(loggers: Mapping[str, Any]) -> None:
    """Raises ImportError if the package of an experiment tracker in `loggers` is not installed. Called when an
    algorithm is built, before its environments and modules are created.
    """
    for name in loggers:
        if importlib.util.find_spec(name) is None:
            _package(name)


def start_trackers(loggers: Mapping[str, Mapping[str, Any]], info: RunInfo) -> list[Tracker]:
    """Starts a run in each experiment tracker that `loggers` names, such as ``"wandb"``. Returns the started trackers.

    Args:
        loggers: Name -> options.
        info: Facts about the run.
    """
    return [TRACKERS[name](options, info) for name, options in loggers.items()]
