"""Search spaces of sweeps: grids of values, and sampled values."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxrl_stack.runs.run import value_text

_ASK_FOR = "a list of values, tune.grid_search([...]), or something to sample from such as tune.loguniform(1e-4, 1e-2)"


def combinations(space: Mapping[str, Any], num_samples: int, where: str) -> list[dict[str, Any]]:
    """Lists combinations of settings from a search space: the full grid of its lists, `num_samples` times, each
    combination with new random values of the sampled settings.

    Args:
        space: Name of a setting -> a list of values, ``tune.grid_search([...])``, or something to sample from.
        num_samples: Repetitions of each combination of the lists, with new samples of sampled values.
        where: Name of the caller, for messages.

    Returns:
        Name -> value for each combination, in the order of the space.

    Raises:
        ValueError: If the space or `num_samples` is invalid.
    """
    if not isinstance(space, Mapping) or not space:
        raise ValueError(f"{where}(space={space!r}): must be a dict of setting → {_ASK_FOR}.")
    grids = {name: _grid(name, values, where) for name, values in space.items() if not is_sampled(values)}
    sampled = {name: values for name, values in space.items() if name not in grids}
    for name, values in sampled.items():
        check_space(name, values, where)
    check_num_samples(num_samples, where)
    if num_samples > 1 and not sampled:
        raise ValueError(
            f"{where}(num_samples={num_samples}): nothing in {', '.join(space)} is sampled, so all samples would be "
            f"equal. Leave out num_samples; for several runs of each combination pass seeds={num_samples}."
        )
    # The same sweep draws the same values.
    rng = np.random.default_rng(0)
    grid = [dict(zip(grids, values, strict=True)) for values in itertools.product(*grids.values())]
    drawn = [
        {**{name: sample(values, rng) for name, values in sampled.items()}, **one}
        for _ in range(num_samples)
        for one in grid
    ]
    return [{name: one[name] for name in space} for one in drawn]


def check_num_samples(num_samples: Any, where: str) -> None:
    """Raises ValueError unless `num_samples` is an int of at least 1.

    Raises:
        ValueError: If it is no integer of at least 1.
    """
    if isinstance(num_samples, bool) or not isinstance(num_samples, int) or num_samples < 1:
        raise ValueError(f"{where}(num_samples={num_samples!r}): must be an integer of at least 1.")


def is_sampled(values: Any) -> bool:
    """Whether an object has a ``sample()`` method, as Ray Tune's search spaces have."""
    return callable(getattr(type(values), "sample", None))


def _grid(name: str, values: Any, where: str) -> list[Any]:
    """Converts the values of a setting to a list. The values are a list, tuple, range, NumPy array or
    ``tune.grid_search([...])``.

    Raises:
        ValueError: If the values have another form, there are none, or one occurs twice; or if the setting is ``seed``.
    """
    if name == "seed":
        raise ValueError(
            f"{where}: 'seed' cannot be a setting of the search space. To train each combination of settings with "
            "several seeds, pass seeds=[0, 1, 2]."
        )
    listed = values.get("grid_search") if isinstance(values, Mapping) and set(values) == {"grid_search"} else values
    if isinstance(listed, np.ndarray):
        listed = listed.tolist()
    if not isinstance(listed, list | tuple | range):
        raise ValueError(
            f"{where}: {name}={values!r} must be {_ASK_FOR}. If all runs share this value, set it in the config."
        )
    if not listed:
        raise ValueError(f"{where}: {name}={values!r} has no values to try. List at least one.")
    texts = [value_text(value, None) for value in listed]
    twice = next((text for text in texts if texts.count(text) > 1), None)
    if twice is not None:
        raise ValueError(f"{where}: {name} has the value {twice} twice. List each value once.")
    return list(listed)


def check_space(name: str, space: Any, where: str) -> None:
    """Raises ValueError if the lower end of a search space is not below its upper end.

    Raises:
        ValueError: Names the setting and both ends.
    """
    low, high = getattr(space, "lower", None), getattr(space, "upper", None)
    if isinstance(low, int | float) and isinstance(high, int | float) and not low < high:
        raise ValueError(
            f"{where}: {name} has the lower end {low!r}, which must be below the upper end {high!r}. Set "
            f"{name}=tune.uniform(low, high) with low < high."
        )


def finite_ends(space: Any) -> list[Any]:
    """Finite bounds of a search space, lower one first; [] if the object has no finite bounds."""
    given = getattr(space, "lower", None), getattr(space, "upper", None)
    return [end for end in given if isinstance(end, int | float) and math.isfinite(end)]


def example_values(space: Any) -> list[Any]:
    """Values for validating a setting over its whole search space.

    These are all choices, or a value at or just inside each finite bound. [] if the space has neither choices nor
    finite bounds.
    """
    categories = getattr(space, "categories", None)
    if categories is not None:
        return list(categories)
    ends = finite_ends(space)
    if len(ends) < 2:
        return ends
    low, high = ends
    if type(space).__name__ == "Integer":
        return [low, max(low, high - 1)]
    # An end of a float domain is drawn with probability 0: lr=tune.uniform(0.0, 0.1) is valid.
    margin = 1e-6 * (high - low)
    return [low + margin, high - margin]


def sample(space: Any, rng: np.random.Generator) -> Any:
    """Draws a value from a search space.

    Args:
        space: An object for which `is_sampled` holds.
        rng: Random stream; objects that take none have another source.
    """
    # Ray Tune's domains take a generator; an object of one's own need not.
    takes_rng = "random_state" in inspect.signature(space.sample).parameters
    value = space.sample(random_state=rng) if takes_rng else space.sample()
    return value.item() if isinstance(value, np.generic) else value
