"""Maze for offline learning: the shortest way must be combined from parts of recorded ways."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium.spaces import Box, Discrete

from jaxrl_stack.examples.envs.settings import ConfiguredEnv

LAYOUT = (
    "#########",
    "#S..#...#",
    "#.#.#.#.#",
    "#.#...#.#",
    "#.###.#.#",
    "#...#.#.#",
    "###.#.#.#",
    "#.....#G#",
    "#########",
)
"""9 x 9 cells: ``#`` is a wall, ``S`` the start, ``G`` the goal."""
MOVES = np.array([(-1, 0), (0, 1), (1, 0), (0, -1)], np.int32)
"""What actions 0 to 3 do: up, right, down, left, as (rows, columns)."""


def _is_free() -> np.ndarray:
    """Cells that are not walls, bool ``[9, 9]``."""
    return np.array([[cell != "#" for cell in row] for row in LAYOUT])


def _cell_of(letter: str) -> tuple[int, int]:
    row = next(i for i, own in enumerate(LAYOUT) if letter in own)
    return row, LAYOUT[row].index(letter)


IS_FREE, START, GOAL = _is_free(), _cell_of("S"), _cell_of("G")
CELLS = np.argwhere(IS_FREE).astype(np.int32)
"""The free cells, int32 ``[C, 2]``: ``(row, column)``."""


@functools.cache
def distances_to(goal: tuple[int, int]) -> np.ndarray:
    """Number of steps of the shortest way from each cell to the cell `goal`, int32 ``[9, 9]``; -1 in walls."""
    found, frontier = np.full(IS_FREE.shape, -1, np.int32), [goal]
    found[goal] = 0
    while frontier:
        cell = frontier.pop(0)
        for move in MOVES:
            near = (int(cell[0] + move[0]), int(cell[1] + move[1]))
            if IS_FREE[near] and found[near] < 0:
                found[near] = found[cell] + 1
                frontier.append(near)
    return found


class Maze(ConfiguredEnv):
    """Environment in which the agent walks from the start to the goal of a 9 x 9 maze (`LAYOUT`). The goal pays 1 and
    terminates the episode.

    Observation: the agent's cell of 81 cells, one-hot float32 ``[81]``. Actions: up, right, down, left; a move into a
    wall does nothing. An episode of `max_steps` is truncated.

    The shortest way has `shortest` steps, so an optimal policy returns 1. A policy that draws actions evenly reaches
    the goal within `max_steps` in fewer than one of ten episodes.

    Settings:
        max_steps (50): At least `shortest`.
        random_start (False): Whether episodes begin in any free cell.
    """

    defaults = {"max_steps": 50, "random_start": False}
    shortest = int(distances_to(GOAL)[START])
    observation_space = Box(0.0, 1.0, (IS_FREE.size,), np.float32)
    action_space = Discrete(len(MOVES))

    def __init__(self, config: Mapping[str, Any] | None = None, **settings: Any):
        super().__init__(config, **settings)
        self._require("max_steps", self.settings["max_steps"] >= self.shortest, f"at least {self.shortest}")

    def reset_env(self, key, params):
        cell = jnp.asarray(START, jnp.int32)
        if self.settings["random_start"]:
            cell = jnp.asarray(CELLS)[jax.random.randint(key, (), 0, len(CELLS))]
        return _one_hot(cell), (cell, jnp.int32(0))

    def step_env(self, key, state, action, params):
        cell, time = state
        wanted = cell + jnp.asarray(MOVES)[action]
        cell = jnp.where(jnp.asarray(IS_FREE)[wanted[0], wanted[1]], wanted, cell)
        is_there = jnp.all(cell == jnp.asarray(GOAL, jnp.int32))
        truncated = ~is_there & (time + 1 >= self.settings["max_steps"])
        return _one_hot(cell), (cell, time + 1), is_there.astype(jnp.float32), is_there, truncated, {}


def _one_hot(cell: jax.Array) -> jax.Array:
    return jax.nn.one_hot(cell[0] * IS_FREE.shape[1] + cell[1], IS_FREE.size)
