"""How much memory rollouts, train batches and replay buffers need, before any of it is allocated, and how much is left.

Sizes follow from spaces alone: nothing is traced, compiled or allocated, and numbers of any size can be asked for.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from gymnasium.spaces import Discrete, MultiBinary, MultiDiscrete, Space

from jaxrl_stack.utils import spaces

if TYPE_CHECKING:
    from jaxrl_stack.utils.devices import Device

HOST_ENV_BYTES = 1024
"""What one Python environment takes at the least: a `gymnasium.Env` with two tiny spaces and a generator has 2 KB."""

_FLOAT = np.dtype(np.float32).itemsize
_FLAG = np.dtype(np.bool_).itemsize
_STEP_COLUMNS = {"rewards": _FLOAT, "terminateds": _FLAG, "truncateds": _FLAG}


# --------------------------------------------------------------------------------------------------------- estimates


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Bytes of arrays with equally many rows.

    Attributes:
        what: What the arrays are, for messages.
        counts: ``{name: number}``, e.g. ``{"envs": 512, "steps": 128}``; their product is the number of rows.
        columns: ``{column: bytes per row}``.
        is_complete: False if there are columns of which nothing is known yet.
    """

    what: str
    counts: Mapping[str, int]
    columns: Mapping[str, int]
    is_complete: bool = True

    @property
    def num_rows(self) -> int:
        """Rows of every column."""
        return math.prod(self.counts.values())

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a row in all columns together."""
        return sum(self.columns.values())

    @property
    def num_bytes(self) -> int:
        """Bytes of all rows."""
        return self.num_rows * self.bytes_per_row

    def to_dict(self) -> dict[str, Any]:
        """As numbers: ``{"num_bytes", "num_rows", "bytes_per_row", "counts": {...}, "columns": {name: bytes}}``.

        Bytes of `columns` are those of all rows.
        """
        return {
            "num_bytes": self.num_bytes,
            "num_rows": self.num_rows,
            "bytes_per_row": self.bytes_per_row,
            "counts": dict(self.counts),
            "columns": {name: size * self.num_rows for name, size in self.columns.items()},
        }

    def __str__(self) -> str:
        counts = " x ".join(f"{number:,} {name}" for name, number in self.counts.items())
        largest_first = sorted(self.columns.items(), key=lambda item: -item[1])
        columns = ", ".join(f"{name} {format_bytes(size)}" for name, size in largest_first)
        least = "" if self.is_complete else "at least "
        return (
            f"{self.what}: {least}{format_bytes(self.num_bytes)} = {counts} x {format_bytes(self.bytes_per_row)} "
            f"({columns})"
        )


def train_batch_memory(
    observation_space: Space | None,
    action_space: Space | None,
    *,
    num_envs: int,
    num_steps: int,
    num_frames: int = 1,
    what: str = "train batch",
    extra: Mapping[str, int] | None = None,
) -> MemoryEstimate:
    """What a rollout or an on-policy train batch ``[num_steps, num_envs]`` takes while it is held once.

    These are the columns that both drivers record: observations and final observations, actions, the inputs of their
    distribution (one number per choice, two per entry of a Box), their log probabilities, rewards and both flags.
    What a module puts out besides is not known here, but for `extra`. Running an update takes about as much again.

    Args:
        observation_space: Space of the module's inputs; None if it is not known yet.
        action_space: Space of the module's actions; None likewise.
        num_envs: Columns of the batch; rollouts that lie side by side count each.
        num_steps: Rows of the batch.
        num_frames: Frames side by side in an observation, of which the newest one is held, and before the first row
            the others, too.
        what: What to call it.
        extra: ``{column: bytes per row}`` of what else is recorded, e.g. recurrent states.

    Raises:
        TypeError: A space has no fixed shape.
    """
    columns = {**_STEP_COLUMNS, **(extra or {})}
    if observation_space is not None:
        columns["obs"] = columns["final_obs"] = space_bytes(observation_space) // num_frames
        if num_frames > 1:
            # With them, how many frames before each of its own an episode knows.
            columns["obs"] += 4 + math.ceil((num_frames - 1) * columns["obs"] / num_steps)
    if action_space is not None:
        columns |= {
            "actions": space_bytes(action_space),
            "action_dist_inputs": _FLOAT * _num_dist_inputs(action_space),
            "action_logp": _FLOAT,
        }
    is_complete = observation_space is not None and action_space is not None
    return MemoryEstimate(what, {"envs": num_envs, "steps": num_steps}, columns, is_complete)


def replay_memory(
    observation_space: Space,
    action_space: Space,
    *,
    capacity: int,
    shares_next_obs: bool = False,
    num_frames: int = 1,
    extra: Mapping[str, int] | None = None,
) -> MemoryEstimate:
    """What a replay buffer takes when it is full: observations, next observations, actions, rewards and both flags.

    Args:
        observation_space: Space of the observations; entries keep their dtype, so a frame of uint8 takes one
            byte per pixel and channel, and one that a connector turned into floats four.
        action_space: Space of the stored actions.
        capacity: Transitions.
        shares_next_obs: Whether the next observation is found in the row of the next step, and stored only once.
        num_frames: Frames side by side in an observation, of which the newest one is stored.
        extra: ``{column: bytes per transition}`` of what else is stored, e.g. priorities.

    Raises:
        TypeError: A space has no fixed shape.
    """
    columns = {"obs": space_bytes(observation_space) // num_frames}
    if not shares_next_obs:
        columns["new_obs"] = columns["obs"]
    columns |= {"actions": space_bytes(action_space), **_STEP_COLUMNS, **(extra or {})}
    return MemoryEstimate("replay buffer", {"transitions": capacity}, columns)


def bytes_of_shapes(tree: Any) -> int:
    """Bytes of all arrays, or ``jax.ShapeDtypeStruct``s, of a pytree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def space_bytes(space: Space) -> int:
    """Bytes of one element of `space` in an array of its dtype; int64 and float64 count as JAX's 32 bits.

    Raises:
        TypeError: `space` has no fixed shape.
    """
    return bytes_of_shapes(spaces.shape_dtype_struct(space))


def _num_dist_inputs(action_space: Space) -> int:
    def of_leaf(leaf: Space) -> int:
        if isinstance(leaf, (Discrete, MultiDiscrete, MultiBinary)):
            return spaces.flatdim(leaf)
        return 2 * spaces.flatdim(leaf)  # means and standard deviations

    return sum(jax.tree.leaves(spaces.map_leaves(of_leaf, action_space)))


def format_bytes(num_bytes: float) -> str:
    """Three digits and a binary unit: "54 B", "1.21 GiB"."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if abs(size) < 999.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if abs(size) < 999.5 else f"{size:,.0f} {unit}"


def require_memory(estimate: MemoryEstimate, limit: int | None, *, where: str, remedy: str) -> None:
    """Refuse what cannot fit.

    Args:
        estimate: What is wanted.
        limit: Bytes that there are; None if that is unknown, and then everything is allowed.
        where: What they are, for the message, e.g. "are free on this machine".
        remedy: What to change, a sentence.

    Raises:
        ValueError: If it needs more; with the numbers and the remedy.
    """
    if limit is not None and estimate.num_bytes > limit:
        raise ValueError(f"The {estimate} cannot fit: {format_bytes(limit)} {where}. {remedy}")


# --------------------------------------------------------------------------------------------------- what there is


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Memory of this machine, or of the container that this process runs in.

    Attributes:
        total: Bytes in all.
        available: Bytes that can be had without swapping; caches that give way count as free.
    """

    total: int
    available: int


def available_host_bytes() -> int | None:
    """Bytes that can still be allocated on this machine; None where that is unknown."""
    host = host_memory()
    return None if host is None else host.available


def available_memory(device: Device) -> int | None:
    """Bytes that can still be allocated on a JAX device.

    Args:
        device: An accelerator, which says so in its ``memory_stats()``, or a CPU device, which has the host's memory.

    Returns:
        None where that is unknown.
    """
    if device.platform == "cpu":
        return available_host_bytes()
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit", -1)
    return None if limit < 0 else max(0, limit - max(0, stats.get("bytes_in_use", 0)))


def host_memory(root: Path = Path("/")) -> HostMemory | None:
    """What ``/proc/meminfo`` says, or the control groups (version 1 or 2) of this process if they allow less.

    Args:
        root: Where ``proc`` and ``sys`` are.

    Returns:
        None where the system has no ``/proc/meminfo`` that says so.
    """
    meminfo = root / "proc/meminfo"
    if not meminfo.is_file():
        return None
    sizes = {name: int(rest.split()[0]) * 1024 for name, rest in _pairs(meminfo, ":")}
    if "MemAvailable" not in sizes:  # Linux before 3.14
        return None
    total, available = sizes["MemTotal"], sizes["MemAvailable"]
    for limit, in_use in _group_limits(root):
        total, available = min(total, limit), min(available, limit - in_use)
    return HostMemory(total, max(0, available))


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """``(limit, bytes in use)`` of the control groups of this process and of those around them, where limited."""
    groups = root / "proc/self/cgroup"
    if not groups.is_file():
        return
    for line in groups.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        limit_name, usage_name, cache_name = names
        # A container may see the path of outside and mount only its own part: look at every level that is there.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            folder = mount.joinpath(*parts[:depth])
            if not (folder / limit_name).is_file():
                continue
            limit = (folder / limit_name).read_text().strip()
            if limit == "max":
                continue
            caches = dict(_pairs(folder / "memory.stat", " "))
            in_use = int((folder / usage_name).read_text()) - int(caches.get(cache_name, 0))
            yield int(limit), max(0, in_use)


def _pairs(path: Path, separator: str) -> Iterator[tuple[str, str]]:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition(separator)
        yield name, rest.strip()
