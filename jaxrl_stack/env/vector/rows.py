"""Functions that write observations into arrays row by row, and split batches of actions and infos by environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

from jaxrl_stack.utils.spaces import map_parts
from jaxrl_stack.utils.spaces.boxes import member_maker


def row_writer(space: gym.Space, buffers: Any) -> Callable[[int, Any], None]:
    """Returns a function ``write(i, element)`` that copies an element of `space` into row ``i`` of the arrays in
    `buffers`.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`, `Tuple`.
        buffers: Pytree ``[B, ...]`` that mirrors `space`.
    """
    match space:
        case Dict():
            parts = [(key, row_writer(child, buffers[key])) for key, child in space.spaces.items()]
        case Tuple():
            parts = [(k, row_writer(child, buffers[k])) for k, child in enumerate(space.spaces)]
        case _:
            return buffers.__setitem__

    def write(i: int, element: Any) -> None:
        for key, write_part in parts:
            write_part(i, element[key])

    return write


def row_splitter(space: gym.Space) -> Callable[[Any], Sequence[Any]]:
    """Returns a function that splits a batch ``[B, ...]`` into a list of ``B`` elements of `space`.

    Elements of `Discrete` spaces are Python integers, those of other leaves arrays of the space's dtype, copied: an
    environment may change its action in place. Those of a `Box` are members of it, see `member_maker`.

    Args:
        space: Any nesting of `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, `Dict`, `Tuple`.
    """
    match space:
        case Discrete():
            return lambda batch: batch.tolist()
        case Dict():
            children = {key: row_splitter(child) for key, child in space.spaces.items()}

            def split_dict(batch: Any) -> list[Any]:
                columns = [split(batch[key]) for key, split in children.items()]
                return [dict(zip(children, row, strict=True)) for row in zip(*columns, strict=True)]

            return split_dict
        case Tuple():
            splits = [row_splitter(child) for child in space.spaces]
            return lambda batch: list(
                zip(*(split(column) for split, column in zip(splits, batch, strict=True)), strict=True)
            )
        case Box():
            members = member_maker(space)
            if space.shape == ():
                # Not the scalars that an array of numbers is made of: those are no elements of the space.
                return lambda batch: [np.asarray(number) for number in members(batch)]
            return lambda batch: list(members(batch))
        case _:
            dtype = space.dtype
            return lambda batch: list(np.array(batch, dtype))


def batch_converter(space: gym.Space) -> Callable[[Any], Any]:
    """Returns a function that converts a batch of actions to the dtypes of `space`, the space of the whole batch.

    Parts of a `Box` are members of it, see `member_maker`.
    """
    makers = map_parts(_maker, space)
    return lambda batch: map_parts(lambda _, make, value: make(value), space, makers, batch)


def _maker(part: Any) -> Callable[[Any], np.ndarray]:
    return member_maker(part) if isinstance(part, Box) else lambda value: np.asarray(value, part.dtype)


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class InfoRows(Sequence):
    """Infos of a vector environment as a sequence with one dict per environment; a dict is built only when it is read.

    ``infos["x"][i]`` is the value of environment i if ``infos["_x"]`` is absent, or True for environment i; dicts may
    be nested. A value without one entry per environment belongs to all environments.

    Attributes:
        infos: ``{name: array [B]}``, as gymnasium's, envpool's and ALE's vector environments give it.
        num_envs: ``B``.
        rows: bool ``[B]``, the environments that have `infos`; None: all. The others have the infos in `otherwise`.
        otherwise: Infos for the environments not in `rows`.
    """

    infos: dict[str, Any]
    num_envs: int
    rows: np.ndarray | None = None
    otherwise: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return self.num_envs

    def __getitem__(self, index: Any) -> Any:
        numbers = range(self.num_envs)[index]
        return self._row(numbers) if isinstance(numbers, int) else [self._row(i) for i in numbers]

    def _row(self, i: int) -> dict[str, Any]:
        chosen = self.rows is None or self.rows[i]
        return _info_row(self.infos if chosen else self.otherwise, i, self.num_envs)


def _info_row(infos: dict[str, Any], i: int, num_envs: int) -> dict[str, Any]:
    row = {}
    for name, value in infos.items():
        if name[:1] == "_" and name[1:] in infos:
            continue
        mask = infos.get(f"_{name}")
        if mask is not None and not mask[i]:
            continue
        if isinstance(value, dict):
            value = _info_row(value, i, num_envs)
        elif isinstance(value, np.ndarray) and value.shape[:1] == (num_envs,):
            value = value[i]
        row[name] = value
    return row
