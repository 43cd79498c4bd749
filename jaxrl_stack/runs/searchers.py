"""Searchers that suggest settings of a sweep: the interface of Ray Tune, and random search."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from jaxrl_stack.runs.search_space import check_space, combinations, is_sampled, sample
from jaxrl_stack.utils.results import flatten_result

FINISHED = "FINISHED"
"""Suggestion of a searcher that has no more settings, as in Ray Tune."""


class Searcher(Protocol):
    """Protocol of the searchers that sweeps use: the methods of Ray Tune's ``Searcher`` that a sweep calls."""

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any]) -> bool: ...
    def suggest(self, trial_id: str) -> Any: ...
    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None: ...
    def save(self, checkpoint_path: str) -> None: ...
    def restore(self, checkpoint_path: str) -> None: ...


class Objective(NamedTuple):
    """Metric that a searcher optimizes, and its direction.

    Attributes:
        metric: Path of the number in results.
        mode: "max" if the highest is best, "min" if the lowest is.
    """

    metric: str
    mode: Literal["max", "min"]


class RandomSearch:
    """Searcher that suggests all combinations of the lists in a search space, again and again, each time with new
    random values of sampled settings.

    Args:
        space: Search space, see `run_sweep`.
        where: Name of the caller, for messages.

    Raises:
        ValueError: If the space is invalid.
    """

    metric: str | None = None
    mode: str | None = None

    def __init__(self, space: Mapping[str, Any], where: str):
        first = combinations(space, 1, where)
        self._sampled = {name: values for name, values in space.items() if is_sampled(values)}
        self._grid = [{name: value for name, value in one.items() if name not in self._sampled} for one in first]
        self._names, self._position = list(space), 0
        self._rng = np.random.default_rng(0)

    def set_search_properties(self, metric: str | None, mode: str | None, config: dict[str, Any]) -> bool:
        """Returns True and does nothing, because this searcher got its search space when it was created."""
        return True

    def suggest(self, trial_id: str) -> Any:
        """Returns the next combination of settings. If no setting is sampled, returns `FINISHED` after the last
        combination of the grid.
        """
        if not self._sampled and self._position == len(self._grid):
            return FINISHED
        one = self._grid[self._position % len(self._grid)]
        self._position += 1
        drawn = {**one, **{name: sample(values, self._rng) for name, values in self._sampled.items()}}
        return {name: drawn[name] for name in self._names}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Ignores the results of a finished run: random search does not learn from them."""

    def save(self, checkpoint_path: str) -> None:
        """Writes the searcher's position in the grid of combinations, and its random generator's state, to a file."""
        Path(checkpoint_path).write_text(json.dumps([self._position, self._rng.bit_generator.state]), encoding="utf-8")

    def restore(self, checkpoint_path: str) -> None:
        """Restores the searcher's position in the grid of combinations, and the state of its random generator, from a
        file that `save` wrote.
        """
        self._position, self._rng.bit_generator.state = json.loads(Path(checkpoint_path).read_text(encoding="utf-8"))


def prepared(
    searcher: Any, space: Mapping[str, Any], default: str, where: str, other: Objective | None = None
) -> Objective:
    """Passes the search space, the metric and the mode ("max" or "min") to a searcher.

    If the searcher has no metric, uses the scheduler's metric and mode; without a scheduler, uses the metric `default`.
    Returns the metric and the mode as an `Objective`.

    Args:
        searcher: Object with Ray Tune's `Searcher` interface.
        space: Search space of the sweep; {} if the searcher has one.
        default: Metric of a searcher that has none.
        where: Name of the caller, for messages.
        other: Objective of the scheduler, for a searcher without a metric. None uses `default`.

    Raises:
        ValueError: If the searcher has another interface or several metrics, another mode than `other`, if it refuses
            the space, or if the space has no values to suggest.
    """
    missing = [name for name in ("suggest", "on_trial_complete") if not callable(getattr(searcher, name, None))]
    if missing:
        raise ValueError(
            f"{where}(search_alg={searcher!r}): has no {missing[0]}(). Pass a searcher of ray.tune.search, such as "
            f"OptunaSearch(), or an object with suggest(trial_id) and on_trial_complete(trial_id, result, error)."
        )
    metric, mode = getattr(searcher, "metric", None), getattr(searcher, "mode", None)
    if metric is None and other is not None:
        if mode not in (None, other.mode):
            raise ValueError(
                f"{where}: search_alg has mode={mode!r} and no metric, so it uses the scheduler's metric "
                f"{other.metric!r}, whose mode is {other.mode!r}. Set mode={other.mode!r} for search_alg, or give "
                "search_alg a metric."
            )
        metric, mode = other
    metric, mode = metric or default, mode or "max"
    if not isinstance(metric, str) or mode not in ("max", "min"):
        raise ValueError(
            f"{where}: search_alg has metric={metric!r}, mode={mode!r}, but must have one metric and the mode 'max' or "
            f"'min'. Set, for example, metric={default!r}, mode='max'."
        )
    for name, values in space.items():
        if not is_sampled(values):
            raise ValueError(
                f"{where}: {name}={values!r} is a list, and search_alg needs a domain. Use {name}=tune.choice([...])."
            )
        check_space(name, values, where)
    accepts = getattr(searcher, "set_search_properties", None)
    if accepts is not None and not accepts(metric, mode, _nested(space)) and space:
        raise ValueError(
            f"{where}: search_alg refuses the search space passed to {where}, usually because search_alg already has "
            f"a space. Pass space={{}}, or create search_alg without a space."
        )
    return Objective(metric, mode)  # pyright: ignore[reportArgumentType]


def _nested(space: Mapping[str, Any]) -> dict[str, Any]:
    """Nests settings whose names are paths, because Tune refuses slashes: ``{"env_config/gravity": ...}`` becomes
    ``{"env_config": {"gravity": ...}}``.
    """
    found: dict[str, Any] = {}
    for name, values in space.items():
        *parents, last = name.split("/")
        into = found
        for parent in parents:
            into = into.setdefault(parent, {})
        into[last] = values
    return found


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Flattens nested settings to paths, with Python values: ``{"env_config": {"gravity": 5.0}}`` becomes
    ``{"env_config/gravity": 5.0}``.
    """
    found = flatten_result(settings)
    return {path: value.item() if isinstance(value, np.generic) else value for path, value in found.items()}
