"""Result of `Algorithm.train`: RLlib's nested dict with a short representation of its most important numbers."""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from jaxrl_stack.utils.results import MODULE, ROOT, nested_leaves, no_key

MAX_LINES = 12
_MAX_OF_MODULES = 5
_LOSSES = ("policy_loss", "vf_loss", "vf_explained_var", "entropy", "mean_kl_loss")
_NOT_SHOWN = frozenset(MODULE) | {"num_module_steps_trained_lifetime_throughput", "total_loss"}


class ResultPart(dict[str, Any]):
    """Nested dict of a result, whose KeyErrors name similar keys.

    JAX treats it as a pytree like any dict; ``jax.tree.map`` returns a plain dict.

    Args:
        parent: Key of this dict in the result.
    """

    def __init__(self, parent: str):
        super().__init__()
        self.parent = parent

    def __missing__(self, key: Any) -> Any:
        raise KeyError(no_key(key, self, self.parent))

    def __reduce__(self) -> Any:
        # As a plain dict: what is stored or sent is read by others.
        return dict, (dict(self),)


def _flattened(part: ResultPart) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
    names = tuple(sorted(part))
    return [(jax.tree_util.DictKey(name), part[name]) for name in names], names


def _plain(names: tuple[str, ...], values: Iterable[Any]) -> Any:
    return dict(zip(names, values, strict=True))


# JAX takes classes that derive from dict as leaves.
jax.tree_util.register_pytree_with_keys(ResultPart, _flattened, _plain)


class Result(dict[str, Any]):
    """Result of an iteration or of an evaluation: a nested dict with a short representation.

    ``print(result)`` and notebooks show at most a dozen numbers; ``print(dict(result))`` shows all of them.
    """

    def __missing__(self, key: Any) -> Any:
        raise KeyError(no_key(key, self))

    def __repr__(self) -> str:
        lines = self._lines()
        paths = max((len(line.path) for line in lines), default=0)
        values = max((len(line.value) for line in lines), default=0)
        shown = [f"  {line.path:<{paths}}  {line.value:>{values}}  {line.note}".rstrip() for line in lines]
        return "\n".join([self._title(), *shown])

    def _repr_html_(self) -> str:
        """HTML table of the most important numbers of the result, for notebooks."""
        rows = "".join(
            f'<tr><td style="text-align:left"><code>{html.escape(line.path)}</code></td><td>{html.escape(line.value)}'
            f'</td><td style="text-align:left">{html.escape(line.note)}</td></tr>'
            for line in self._lines()
        )
        return f"<table><caption>{html.escape(self._title())}</caption>{rows}</table>"

    def _title(self) -> str:
        count = sum(1 for path, value in nested_leaves(self) if path[0] != "config" and _is_known(value))
        return f"Result with {count} numbers{' (dict(result) shows all)' if count > MAX_LINES else ''}:"

    def _lines(self) -> list[_Line]:
        lines = [*self._progress(), *self._returns(), *self._learners(), *self._own()]
        if not lines:
            known = ((path, value) for path, value in nested_leaves(self) if _is_known(value))
            lines = [_Line("/".join(path), _text(value)) for path, value in known]
        return lines[:MAX_LINES]

    def _at(self, path: str) -> Any:
        node: Any = self
        for part in path.split("/"):
            node = node.get(part) if isinstance(node, Mapping) else None
        return node

    def _line(self, path: str, note: str = "") -> Iterator[_Line]:
        if _is_known(value := self._at(path)):
            yield _Line(path, _text(value), note)

    def _progress(self) -> Iterator[_Line]:
        total, speed = self._at("time_total_s"), self._at("num_env_steps_sampled_lifetime_throughput")
        yield from self._line("training_iteration", f"after {total:,.1f} s" if _is_known(total) else "")
        yield from self._line("num_env_steps_sampled_lifetime", f"{speed:,.0f} per second" if _is_known(speed) else "")
        parts = {name: self._at(f"timers/{name}_s") for name in ("compile", "device", "host")}
        split = ", ".join(f"{name} {seconds:.3g}" for name, seconds in parts.items() if _is_known(seconds))
        yield from self._line("time_this_iter_s", split)

    def _returns(self) -> Iterator[_Line]:
        for where in ("env_runners", "evaluation/env_runners"):
            path = f"{where}/episode_return_mean"
            lowest, highest = (self._at(f"{where}/episode_return_{end}") for end in ("min", "max"))
            is_range = _is_known(lowest) and _is_known(highest)
            yield from self._line(path, f"{_text(lowest)} to {_text(highest)}" if is_range else "")
            if isinstance(self._at(path), float) and math.isnan(self._at(path)):
                yield _Line(path, "unknown", "no episode has ended yet")
        yield from self._line("env_runners/episode_len_mean")

    def _learners(self) -> Iterator[_Line]:
        learners = self._at("learners")
        modules = [mid for mid in learners if mid != "__all_modules__"] if isinstance(learners, Mapping) else []
        for module_id in modules[:_MAX_OF_MODULES]:
            module = learners[module_id]
            own = [name for name in module if name not in _NOT_SHOWN and "optimizer" not in name]
            names = dict.fromkeys([*(name for name in _LOSSES if name in module), *own, "total_loss"])
            known = [name for name in names if _is_known(module.get(name))]
            for name in known[: max(1, _MAX_OF_MODULES // len(modules))]:
                yield from self._line(f"learners/{module_id}/{name}")

    def _own(self) -> Iterator[_Line]:
        """Yields a display line for each top-level number of the result that is not a built-in metric, such as a metric
        that a callback has logged.
        """
        for name in self:
            if name not in ROOT:
                yield from self._line(name)


class _Line(NamedTuple):
    path: str
    value: str
    note: str = ""


def _is_known(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool) and not math.isnan(value)


def _text(value: Any) -> str:
    """Formats a number of a result for display: with thousands separators for integers and for floats from 1000 to 1e9
    in magnitude, otherwise with four significant digits.
    """
    if isinstance(value, numbers.Integral):
        return f"{value:,}"
    return f"{value:,.1f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"
