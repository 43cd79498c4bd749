"""Population-based training (Jaderberg et al., 2017): selects the members to replace by copies of better members, and
draws new settings for the copies.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxrl_stack.runs.curves import ITERATIONS
from jaxrl_stack.runs.search_space import finite_ends, is_sampled, sample


@dataclasses.dataclass(frozen=True)
class PBT:
    """Settings of population-based training, which replaces the worst members by copies of the best members with
    changed settings.

    The attributes correspond to the arguments of Ray Tune's ``PopulationBasedTraining``.

    Attributes:
        mutations: Name of a setting -> list of values, search space, or function without arguments that returns a
            value. ``"env_config/gravity"`` is an entry of ``env_config``.
        perturbation_interval: Time between perturbations, in units of `time_attr`.
        time_attr: Path of a number in results that grows with each iteration.
        metric: Path of the score in results; None for the mean return of the last evaluation, or of training without
            evaluations.
        mode: "max" if the highest score is best, "min" if the lowest is.
        burn_in_period: Time before the first perturbation.
        quantile_fraction: Share of the members that are replaced, and of those that replace them; at most 0.5.
        resample_probability: Probability of a new sample instead of a perturbed value.
        perturbation_factors: Factors of perturbed numbers, drawn with equal probability.
        custom_explore_fn: Function from a member's new settings to the settings to use.
    """

    mutations: Mapping[str, Any]
    perturbation_interval: float
    time_attr: str = ITERATIONS
    metric: str | None = None
    mode: Literal["max", "min"] = "max"
    burn_in_period: float = 0.0
    quantile_fraction: float = 0.25
    resample_probability: float = 0.25
    perturbation_factors: Sequence[float] = (1.2, 0.8)
    custom_explore_fn: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def is_due(self, time: float, last: float) -> bool:
        """Whether population-based training perturbs the population at `time`: after the burn-in period, if the
        interval since the last perturbation has passed.

        Args:
            time: Present time.
            last: Time of the last perturbation; 0 before the first.
        """
        return time >= self.burn_in_period and time - last >= self.perturbation_interval


class Quantiles(NamedTuple):
    """Indices of the worst members (`lower`) and of the best members (`upper`) of a population.

    Both lists are in ascending order of the scores; in `lower`, diverged members and then members without a score come
    first.
    """

    lower: list[int]
    upper: list[int]


def quantiles(scores: np.ndarray, fraction: float, diverged: Sequence[int] = ()) -> Quantiles:
    """Selects the population members to replace, and the members whose copies replace them.

    Diverged members and the members with the lowest scores are replaced; the members with the highest scores are
    copied. Returns the indices of both groups.

    Without diverged members these are the sets of Tune: ``ceil(M * fraction)`` members each, at most half.

    Args:
        scores: float ``[M]``, higher is better. Members with NaN are replaced first and replace none.
        fraction: Share of each set, from 0 to 0.5.
        diverged: Members that no longer train. All of them are replaced, before members with a score.
    """
    num_members = len(scores)
    size = min(math.ceil(num_members * fraction), num_members // 2)
    if not size:
        return Quantiles([], [])
    values = np.where(np.isnan(scores), -math.inf, scores)
    order = sorted(range(num_members), key=lambda i: (i not in diverged, not math.isnan(scores[i]), values[i]))
    lower = order[: max(size, len(diverged))]
    upper = [i for i in order[-size:] if i not in lower and not math.isnan(scores[i])]
    return Quantiles(lower, upper) if upper else Quantiles([], [])


class Explored(NamedTuple):
    """New settings of a member, and the operations that changed them.

    Attributes:
        settings: Name -> value.
        operations: Name -> change in words: "resample", "* 1.2", "shift left".
    """

    settings: dict[str, Any]
    operations: dict[str, str]


def explore(
    pbt: PBT, settings: Mapping[str, Any], rng: np.random.Generator, is_valid: Callable[[str, Any], bool]
) -> Explored:
    """Chooses the settings of a population member that becomes a copy of another member.

    Resamples or perturbs each setting in `PBT.mutations`. The new values have the same distribution as in the explore
    step of Ray Tune's ``PopulationBasedTraining``.

    Lists: a new draw with `PBT.resample_probability` or if the list lacks the value, else a shift to a neighbour.
    Others: a new draw with that probability, else the product with one of `PBT.perturbation_factors`. Integers are
    rounded; booleans only change by new draws. A product that the config does not accept is clipped to the bounds of
    the search space. If the config does not accept the clipped value, or without bounds, the old value remains.

    Args:
        pbt: The arguments.
        settings: Settings of the copied member.
        rng: Random stream of the draws. Functions in `PBT.mutations` have other sources.
        is_valid: Function of name and value that returns whether the setting takes it.

    Raises:
        ValueError: If ``custom_explore_fn`` does not return a dict with the same names.
    """
    new, operations = dict(settings), {}
    for name, space in pbt.mutations.items():
        value, resamples = settings[name], rng.random() < pbt.resample_probability
        if isinstance(space, list | tuple):
            new[name], operations[name] = _from_list(space, value, rng, resamples=resamples)
            continue
        if resamples:
            new[name], operations[name] = (sample(space, rng) if is_sampled(space) else space()), "resample"
        else:
            factor = pbt.perturbation_factors[int(rng.integers(len(pbt.perturbation_factors)))]
            new[name], operations[name] = _as_type(value, value * factor), f"* {factor}"
            if not is_valid(name, new[name]):
                nearest = _nearest(space, value, new[name])
                new[name] = nearest if is_valid(name, nearest) else value
                operations[name] = f"* {factor}, clipped"
        new[name] = _as_type(value, new[name])
    if pbt.custom_explore_fn is not None:
        changed = pbt.custom_explore_fn(dict(new))
        if not isinstance(changed, Mapping) or set(changed) != set(new):
            raise ValueError(
                f"custom_explore_fn returned {changed!r}: must be a dict with exactly the settings {', '.join(new)}. "
                "Change values in the dict that the function receives, and return that dict."
            )
        new = dict(changed)
    return Explored(new, operations)


def _from_list(values: Sequence[Any], value: Any, rng: np.random.Generator, *, resamples: bool) -> tuple[Any, str]:
    """Draws a new value from a list: a random one, or a neighbour of the old one. Returns the value and the change in
    words.
    """
    if resamples or value not in values:
        return values[int(rng.integers(len(values)))], "resample"
    shift = int(rng.integers(2)) * 2 - 1
    old = values.index(value)
    place = min(max(old + shift, 0), len(values) - 1)
    return values[place], f"shift {'left' if shift < 0 else 'right'}{' (noop)' if place == old else ''}"


def _as_type(old: Any, new: Any) -> Any:
    if isinstance(old, bool):
        return bool(new)
    return round(new) if isinstance(old, int) else new


def _nearest(space: Any, old: Any, new: Any) -> Any:
    """Replaces a setting's new value, which the config does not accept, by the nearest value in the search space.

    Clips the new value to the bounds of the search space. If the search space has no bounds, returns the old value.
    """
    ends = finite_ends(space)
    return min(max(new, ends[0]), ends[1]) if len(ends) == 2 else old
