"""Summary of recorded steps: counts, returns and actions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import gymnasium as gym
import jax
import numpy as np

from jaxrl_stack.core.columns import Columns
from jaxrl_stack.datasets.episode_pieces import episode_of_pieces
from jaxrl_stack.datasets.steps import Steps

_MOST_KEPT_ACTIONS = 100_000
_NUM_BINS = 40


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Histogram: the number of values in each bin, and the edges of the bins.

    If each bin contains only one distinct value, the bins have names instead of edges.

    Attributes:
        name: Name of the values.
        counts: int64 ``[n]``.
        edges: float64 ``[n + 1]``, ends of the bins; None where every bin is one value.
        labels: Names of the bins where every bin is one value.
    """

    name: str
    counts: np.ndarray
    edges: np.ndarray | None = None
    labels: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Moments:
    """Mean, standard deviation, minimum and maximum of one component of continuous actions, over all steps."""

    mean: float
    std: float
    min: float
    max: float


@dataclasses.dataclass(frozen=True)
class Summary:
    """Statistics of recorded steps: counts, returns, lengths and actions; created by `summary_of`.

    Attributes:
        num_rows: Steps and final rows.
        num_steps: Steps.
        num_episodes: Episodes, whole or not.
        num_terminated, num_truncated: Episodes that ended in one of these ways.
        num_cut: Episodes of which the beginning or the end is missing.
        returns: float64 ``[n]``, sums of rewards of the whole episodes; of all where none is whole; NaN where rewards
            were not recorded.
        lengths: int64 ``[n]``, their steps.
        columns: ``{column: its shape and dtype, as text}``.
        actions: Of discrete actions their counts, of continuous ones histograms by component.
        action_moments: By component; of continuous actions.
    """

    num_rows: int
    num_steps: int
    num_episodes: int
    num_terminated: int
    num_truncated: int
    num_cut: int
    returns: np.ndarray
    lengths: np.ndarray
    columns: dict[str, str]
    actions: list[Histogram]
    action_moments: list[Moments]

    def as_json(self) -> dict[str, Any]:
        """Converts the summary of recorded steps to JSON types. Episode returns (None if unknown) and episode lengths
        become mean, standard deviation, extremes and quartiles.
        """
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "returns": None if np.isnan(self.returns).any() else _distribution(self.returns),
            "lengths": _distribution(self.lengths),
            "columns": self.columns,
            "actions": [
                {"name": own.name, "counts": own.counts.tolist()}
                | ({"values": list(own.labels)} if own.edges is None else {"edges": own.edges.tolist()})
                for own in self.actions
            ],
            "action_moments": [dataclasses.asdict(own) for own in self.action_moments],
        }


_FLAGS = (Columns.TERMINATEDS, Columns.TRUNCATEDS)
_COUNTS = ("num_rows", "num_steps", "num_episodes", "num_terminated", "num_truncated", "num_cut")


def summary_of(parts: Iterable[Steps], action_space: gym.Space | None = None) -> Summary:
    """Computes the summary of recorded steps, which are given in parts; keeps only one part in memory at a time.

    Args:
        parts: Steps in order; an episode may go on in a later one.
        action_space: Names the values of discrete actions, also those that do not occur.

    Raises:
        ValueError: If there are no steps.
    """
    episodes = _Episodes()
    has_rewards = True
    actions: _Actions | None = None
    columns: dict[str, str] = {}
    num_rows = num_steps = 0
    for steps in parts:
        if not steps.num_steps:
            continue
        num_rows, num_steps = num_rows + steps.num_rows, num_steps + steps.num_steps
        episodes.add(steps)
        has_rewards &= Columns.REWARDS in steps.columns
        columns = columns or {str(name): _described(own) for name, own in steps.columns.items()}
        taken = _components(jax.tree.map(lambda x, of=steps: x[~of.is_final], steps.columns[Columns.ACTIONS]))
        actions = _Actions.of(taken, action_space) if actions is None else actions
        actions.add(taken)
    if actions is None:
        raise ValueError("The data set has no steps to summarise. Pass a data set with steps.")
    table = episodes.table()
    ended = table["terminated"] | table["truncated"]
    whole = ended & (table["begin"] == 0) & (table["num_steps"] == table["end"])
    shown = whole if whole.any() else np.ones_like(whole)
    return Summary(
        num_rows=num_rows,
        num_steps=num_steps,
        num_episodes=len(whole),
        num_terminated=int(table["terminated"].sum()),
        num_truncated=int(table["truncated"].sum()),
        num_cut=int((~whole).sum()),
        returns=table["return"][shown] if has_rewards else np.full(np.count_nonzero(shown), np.nan),
        lengths=table["num_steps"][shown],
        columns=columns,
        actions=actions.histograms(),
        action_moments=actions.moments(),
    )


def histogram_of(name: str, values: np.ndarray) -> Histogram:
    """Computes the histogram of numbers ``[n]``, in bins of equal width."""
    counts, edges = np.histogram(values, bins=min(_NUM_BINS, max(1, len(np.unique(values)))))
    return Histogram(name, counts, edges)


class _Episodes:
    """Accumulates returns and lengths of recorded episodes; chunks of one episode may be in several parts
    of the data.
    """

    def __init__(self) -> None:
        self._ids: list[str] = []
        self._pieces: list[np.ndarray] = []

    def add(self, steps: Steps) -> None:
        starts = steps.piece_starts()
        first, last = starts[:-1], starts[1:] - 2  # The row before the final one; a piece may have no step.
        has_steps = last >= first
        first, last = first[has_steps], last[has_steps]
        zeros = np.zeros(steps.num_rows)
        rewards = np.where(steps.is_final, 0.0, np.asarray(steps.columns.get(Columns.REWARDS, zeros), np.float64))
        flags = [np.asarray(steps.columns.get(name, zeros))[last] for name in _FLAGS]
        total = np.add.reduceat(rewards, first)
        self._pieces.append(np.stack([total, last - first + 1, steps.t[first], steps.t[last] + 1, *flags]))
        self._ids += [str(steps.episode_ids[episode]) for episode in steps.episode[first].tolist()]

    def table(self) -> dict[str, np.ndarray]:
        total, length, begin, end, terminated, truncated = np.concatenate(self._pieces, axis=1)
        number = episode_of_pieces(self._ids, begin, end, (terminated > 0) | (truncated > 0))
        size = int(number.max()) + 1
        found = {"return": np.zeros(size), "num_steps": np.zeros(size, np.int64)}
        np.add.at(found["return"], number, total)
        np.add.at(found["num_steps"], number, length.astype(np.int64))
        for name, values in (("end", end), ("terminated", terminated), ("truncated", truncated)):
            found[name] = np.zeros(size, np.int64)
            np.maximum.at(found[name], number, values.astype(np.int64))
        found["begin"] = found["end"].copy()
        np.minimum.at(found["begin"], number, begin.astype(np.int64))
        return found | {name: found[name] > 0 for name in ("terminated", "truncated")}


class _Actions:
    """Accumulates statistics of recorded actions over all steps, separately for each component (scalar) of an action.

    Args:
        names: Names of the components.
        discrete: For each the ``(first value, number of values)``, None where it is continuous.
    """

    def __init__(self, names: list[str], discrete: list[tuple[int, int] | None]):
        self._names, self._discrete = names, discrete
        self._counts: list[dict[int, int]] = [{} for _ in names]
        self._sums = np.zeros((5, len(names)))  # number, sum, sum of squares, min, max
        self._sums[3:] = np.array([[np.inf], [-np.inf]])
        self._kept: list[np.ndarray] = []

    @classmethod
    def of(cls, components: dict[str, np.ndarray], space: gym.Space | None) -> _Actions:
        known: list[tuple[int, int] | None] = []
        spaces = jax.tree.leaves(_discrete_values(space)) if space is not None else []
        for i, column in enumerate(components.values()):
            if column.dtype.kind == "f":
                known.append(None)
            elif 2 * len(components) == len(spaces):
                known.append((int(spaces[2 * i]), int(spaces[2 * i + 1])))
            else:
                known.append((0, 0))
        return cls(list(components), known)

    def add(self, components: dict[str, np.ndarray]) -> None:
        for i, column in enumerate(components.values()):
            if self._discrete[i] is not None:
                values, counts = np.unique(column, return_counts=True)
                for value, count in zip(values.tolist(), counts.tolist(), strict=True):
                    self._counts[i][int(value)] = self._counts[i].get(int(value), 0) + count
                continue
            numbers = column.astype(np.float64)
            self._sums[:3, i] += len(numbers), numbers.sum(), np.square(numbers).sum()
            self._sums[3, i] = min(self._sums[3, i], numbers.min())
            self._sums[4, i] = max(self._sums[4, i], numbers.max())
        if sum(map(len, self._kept)) < _MOST_KEPT_ACTIONS:
            self._kept.append(np.stack([own[:_MOST_KEPT_ACTIONS] for own in components.values()], axis=-1))

    def histograms(self) -> list[Histogram]:
        kept = np.concatenate(self._kept)
        return [
            histogram_of(name, kept[:, i].astype(np.float64)) if known is None else self._counted(i, *known)
            for i, (name, known) in enumerate(zip(self._names, self._discrete, strict=True))
        ]

    def _counted(self, i: int, first: int, number: int) -> Histogram:
        counts = self._counts[i]
        values = sorted(counts.keys() | set(range(first, first + number)))
        return Histogram(self._names[i], np.array([counts.get(v, 0) for v in values]), labels=tuple(map(str, values)))

    def moments(self) -> list[Moments]:
        out = []
        for i, known in enumerate(self._discrete):
            if known is None:
                number, total, squares, low, high = self._sums[:, i].tolist()
                mean = total / number
                out.append(Moments(mean, max(0.0, squares / number - mean**2) ** 0.5, low, high))
        return out


def _discrete_values(space: gym.Space) -> Any:
    """Returns ``[first value, number of values]`` of a discrete action space, or one such pair per component; [] for
    other spaces.

    The first value is always 0: recorded actions are numbered from 0, even if the space starts elsewhere.
    """
    if isinstance(space, gym.spaces.Discrete):
        return [0, int(space.n)]
    if isinstance(space, gym.spaces.MultiDiscrete):
        return [[0, int(n)] for n in space.nvec.ravel()]
    if isinstance(space, gym.spaces.MultiBinary):
        return [[0, 2]] * int(np.prod(space.shape))
    return []


def _components(actions: Any) -> dict[str, np.ndarray]:
    """Splits a pytree of recorded actions ``[N, ...]`` into scalar components, ``{name: array [N]}``."""
    out: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(actions):
        name = "actions" + jax.tree_util.keystr(path)
        flat = np.asarray(leaf).reshape(len(leaf), int(np.prod(np.shape(leaf)[1:])))
        if np.ndim(leaf) == 1:
            out[name] = flat[:, 0]
        else:
            out |= {f"{name}[{i}]": flat[:, i] for i in range(flat.shape[1])}
    return out


def _described(column: Any) -> str:
    def leaf(x: Any) -> str:
        x = np.asarray(x)
        return f"{x.dtype}{list(x.shape[1:])}" if x.ndim > 1 else str(x.dtype)

    leaves = jax.tree.leaves(jax.tree.map(leaf, column))
    return ", ".join(leaves)


def _distribution(values: np.ndarray) -> dict[str, float]:
    quartiles = np.percentile(values, [25, 50, 75]).tolist()
    names = ("q25", "median", "q75")
    return {
        "mean": float(np.mean(values)),
        "std": float(np.std(values)),
        "min": float(np.min(values)),
        "max": float(np.max(values)),
        **dict(zip(names, quartiles, strict=True)),
    }
