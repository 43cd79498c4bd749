"""Statistics of the last W finished episodes, stored on the device."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from jaxrl_stack.ops import masks, packing
from jaxrl_stack.utils import counters

NOBODY: Mapping[Any, Any] = MappingProxyType({})
"""Empty mapping by agent, for environments with one agent."""


@struct.dataclass
class AgentWindow:
    """Statistics of one agent: its returns in the last W finished episodes, and the number of steps that it has
    completed in total.

    Attributes:
        returns: float32 ``[W]``, sums of the agent's rewards.
        num_steps: uint32[2], number of steps that the agent has completed so far; see `counters`.
    """

    returns: jax.Array
    num_steps: jax.Array


@struct.dataclass
class EpisodeWindow:
    """Statistics of the last W finished episodes of one device, oldest first: return and length of each.

    Attributes:
        returns: float32 ``[W]``.
        lengths: int32 ``[W]``.
        stamps: uint32 ``[W]``, the vector step in which each episode ended; orders episodes of several devices.
        count: int32, number of valid entries; they are the last ones.
        num_steps: uint32, vector steps so far.
        num_episodes: uint32[2], episodes finished so far; see `counters`.
        agents: Windows by agent if there are several; else {}.
    """

    returns: jax.Array
    lengths: jax.Array
    stamps: jax.Array
    count: jax.Array
    num_steps: jax.Array
    num_episodes: jax.Array
    agents: dict[Any, AgentWindow]

    @classmethod
    def empty(cls, size: int, agents: Collection[Hashable] = ()) -> EpisodeWindow:
        """Creates the statistics of the last W episodes, with no episodes yet.

        Args:
            size: ``W``, at least 1.
            agents: Ids of the agents if there are several.
        """
        no_steps = AgentWindow(jnp.zeros((size,), jnp.float32), jnp.zeros(2, jnp.uint32))
        return cls(
            returns=jnp.zeros((size,), jnp.float32),
            lengths=jnp.zeros((size,), jnp.int32),
            stamps=jnp.zeros((size,), jnp.uint32),
            count=jnp.int32(0),
            num_steps=jnp.uint32(0),
            num_episodes=jnp.zeros(2, jnp.uint32),
            agents=dict.fromkeys(agents, no_steps),
        )

    def extend(
        self,
        ended: jax.Array,
        returns: jax.Array,
        lengths: jax.Array,
        agents: Mapping[Any, tuple[jax.Array, jax.Array]] = NOBODY,
    ) -> EpisodeWindow:
        """Returns the statistics of the last W episodes after a rollout: adds the episodes that ended in the rollout,
        and removes the oldest ones.

        Args:
            ended: bool ``[T, B]``.
            returns: float32 ``[T, B]``, valid where `ended`.
            lengths: int32 ``[T, B]``, valid where `ended`.
            agents: ``{agent: (returns, number of completed steps)}``, float32 ``[T, B]`` and int32, if there are
                several agents.
        """
        size, (num_steps, num_envs) = self.returns.shape[0], ended.shape
        episodes = masks.TrueRows.of(ended.reshape(-1))
        total = episodes.total
        # Entry j of the new window is the (total - W + 1 + j)-th new episode; below 1 an old entry moves down.
        rank = total - size + 1 + jnp.arange(size, dtype=jnp.int32)
        row = episodes.rows(rank)
        is_new = rank >= 1
        kept = jnp.clip(rank + size - 1, 0, size - 1)

        def pick(new: jax.Array, old: jax.Array) -> jax.Array:
            return jnp.where(is_new, new.reshape(-1).at[row].get(mode="clip"), old[kept])

        stamps = self.num_steps + (row // num_envs).astype(jnp.uint32)
        return dataclasses.replace(
            self,
            returns=pick(returns, self.returns),
            lengths=pick(lengths, self.lengths),
            stamps=jnp.where(is_new, stamps, self.stamps[kept]),
            count=jnp.minimum(self.count + total, size),
            num_steps=self.num_steps + jnp.uint32(num_steps),
            num_episodes=counters.add(self.num_episodes, total),
            agents={
                agent: AgentWindow(pick(own, self.agents[agent].returns), counters.add(self.agents[agent].num_steps, n))
                for agent, (own, n) in agents.items()
            },
        )

    def packed(self, is_finite: Any = True, axis_name: str | None = None, unclaimed: Sequence[Any] = ()) -> jax.Array:
        """Packs all fields of this window into one uint32 vector ``[n]``, because a program returns one array faster
        than one array per field.

        Args:
            is_finite: bool scalar, packed with the fields; see `unpacked`.
            axis_name: The device axis; if given, the vectors of all D devices are returned, ``[D, n]``.
            unclaimed: bool scalars, one per agent if there are several, packed with the fields; empty: all False.
        """
        flags = [jnp.asarray(flag, jnp.uint32) for flag in (*(unclaimed or [False] * len(self.agents)), is_finite)]
        vector, _, _ = packing.pack([*jax.tree.leaves(self), *flags], lead=0)
        assert vector is not None
        return vector if axis_name is None else jax.lax.all_gather(vector, axis_name)

    @classmethod
    def unpacked(cls, vectors: np.ndarray, agents: tuple[Hashable, ...] = ()) -> Unpacked:
        """Restores the statistics of D devices from the vectors that `packed` returned, one vector per device.

        Returns an `EpisodeWindow` of NumPy arrays ``[D, ...]``, and the flags that were packed with the window.

        Args:
            vectors: uint32 ``[D, n]``, or ``[..., D, n]`` if several devices hold the vectors of all; the first copy is
                read.
            agents: Ids of the agents if there are several, in the order of the flags.
        """
        vectors = vectors.reshape(-1, *vectors.shape[-2:])[0]
        num_agents = len(agents)
        size = (vectors.shape[1] - 5 - 3 * num_agents) // (3 + num_agents)
        slots, treedef = _slots(size, agents)
        window = jax.tree.unflatten(treedef, [slot.read(vectors, ()) for slot in slots])
        flags = vectors[:, -1 - num_agents : -1]
        unclaimed = [agent for agent, own in zip(agents, flags.T, strict=True) if own.any()]
        return Unpacked(window, bool(vectors[:, -1].all()), unclaimed)


class Unpacked(NamedTuple):
    """Result of `EpisodeWindow.unpacked`: the `EpisodeWindow`, and the flags that were packed with the window.

    Attributes:
        window: Window with NumPy arrays ``[D, ...]`` of D devices.
        is_finite: Whether the flag `is_finite` was True on all devices.
        unclaimed: Agents whose flag `unclaimed` (the agent got a reward that belongs to none of its steps) was True on
            at least one device.
    """

    window: EpisodeWindow
    is_finite: bool
    unclaimed: list[Any]


@functools.cache
def _slots(size: int, agents: tuple[Hashable, ...]) -> tuple[list[packing.Slot], Any]:
    """Returns the position of each field of an `EpisodeWindow` in the vector that `EpisodeWindow.packed` returns, and
    the window's tree structure.
    """
    leaves, treedef = jax.tree.flatten(jax.eval_shape(functools.partial(EpisodeWindow.empty, size, agents)))
    return packing.slots_of(leaves, lead=0), treedef


class LastEpisodes(NamedTuple):
    """Statistics of the last episodes of all devices, oldest first.

    Attributes:
        returns: float32 ``[n]``.
        lengths: int32 ``[n]``.
        stamps: uint32 ``[n]``.
        agent_returns: float32 ``[n]`` by agent if there are several.
    """

    returns: np.ndarray
    lengths: np.ndarray
    stamps: np.ndarray
    agent_returns: dict[Any, np.ndarray]


def last_episodes(window: Any) -> LastEpisodes:
    """Returns the statistics of the last W episodes of all devices together; of fewer than W episodes if fewer have
    finished.

    Args:
        window: An `EpisodeWindow` of NumPy arrays with leading device axis ``[D, W]``.
    """
    size = window.returns.shape[1]
    valid = np.arange(size)[None] >= size - window.count[:, None]
    # Age in steps, so that the order is right after a wrap-around of the step counter.
    age = (window.num_steps[:, None] - window.stamps).astype(np.uint32)[valid]
    order = np.argsort(-age.astype(np.int64), kind="stable")[-size:]
    fields = (window.returns, window.lengths, window.stamps, {a: own.returns for a, own in window.agents.items()})
    return LastEpisodes(*jax.tree.map(lambda field: field[valid][order], fields))


def redistributed(window: Any, num_devices: int, size: int) -> Any:
    """Converts the episode statistics of D devices (an `EpisodeWindow` of arrays ``[D, ...]``) to another number of
    devices.

    The first device gets all episodes, and the counts of episodes and agents' steps; each one gets `num_steps`.

    Args:
        window: An `EpisodeWindow` of NumPy arrays ``[D, ...]``.
        num_devices: The new ``D``.
        size: The new ``W``.
    """

    def filled(values: np.ndarray) -> Any:
        out = np.zeros((num_devices, size), values.dtype)
        kept = values[-size:]
        out[0, size - len(kept) :] = kept
        return out

    def on_first(number: Any) -> Any:
        out = np.zeros((num_devices, *number.shape), number.dtype)
        out[0] = number
        return out

    returns, lengths, stamps, agent_returns = last_episodes(window)
    return EpisodeWindow(
        returns=filled(returns),
        lengths=filled(lengths),
        stamps=filled(stamps),
        count=on_first(np.int32(min(len(returns), size))),
        num_steps=window.num_steps[[0] * num_devices],
        num_episodes=on_first(counters.from_int(num_episodes(window))),
        agents={
            agent: AgentWindow(filled(agent_returns[agent]), on_first(counters.from_int(_over_devices(own.num_steps))))
            for agent, own in window.agents.items()
        },
    )


def without_episodes(agent: Any) -> Any:
    """Returns the statistics of an agent that took no part in the last episodes and has completed no steps.

    All returns are NaN, and the number of steps is 0.

    Args:
        agent: An `AgentWindow` of NumPy arrays ``[D, ...]``.
    """
    return AgentWindow(np.full_like(agent.returns, np.nan), np.zeros_like(agent.num_steps))


def num_agent_steps(window: Any) -> dict[Any, int]:
    """Returns the number of steps that each agent has completed so far on all devices; {} for one agent.

    Args:
        window: An `EpisodeWindow` of NumPy arrays ``[D, ...]``.
    """
    return {agent: _over_devices(own.num_steps) for agent, own in window.agents.items()}


def num_episodes(window: Any) -> int:
    """Returns the total number of episodes that have finished so far on all devices, including episodes that the window
    no longer contains.

    Args:
        window: An `EpisodeWindow` of NumPy arrays ``[D, ...]``.
    """
    return _over_devices(window.num_episodes)


def _over_devices(counts: np.ndarray) -> int:
    return sum(counters.to_int(counter) for counter in counts)
