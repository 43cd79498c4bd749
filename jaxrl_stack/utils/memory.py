"""Functions that estimate the memory for arrays of given shapes before allocation, and read how much memory is free.

Nothing is compiled or allocated; shapes may have any size.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from gymnasium.spaces import Space

from jaxrl_stack.utils import spaces

if TYPE_CHECKING:
    from jaxrl_stack.utils.devices import Device


class TooManyError(ValueError):
    """Raised before allocation if several objects, such as population members, together need more memory than is
    available, according to an estimate.

    Args:
        message: Problem and remedy.
        num_fitting: Largest number of objects that fits.
    """

    def __init__(self, message: str, *, num_fitting: int):
        super().__init__(message)
        self.num_fitting = num_fitting


# --------------------------------------------------------------------------------------------------------- estimates


@dataclasses.dataclass(frozen=True)
class MemoryEstimate:
    """Estimated bytes of arrays with the same number of rows, such as the columns of a rollout, which have a row for
    each step of each environment.

    Attributes:
        what: Name of the arrays, for messages.
        counts: ``{name: number}``, e.g. ``{"envs": 512, "steps": 128}``; their product is the number of rows.
        columns: ``{column: bytes}``, of all rows together.
        is_complete: False if further columns exist whose size is not known yet.
    """

    what: str
    counts: Mapping[str, int]
    columns: Mapping[str, int]
    is_complete: bool = True

    @classmethod
    def of_shapes(
        cls, what: str, counts: Mapping[str, int], columns: Mapping[str, Any], *, is_complete: bool = True
    ) -> MemoryEstimate:
        """Creates a memory estimate from arrays or their shapes.

        `columns` is ``{column: pytree of arrays or jax.ShapeDtypeStructs}``. The shapes must include all rows, whose
        number is the product of `counts`, such as envs times steps.
        """
        return cls(what, counts, {name: bytes_of_shapes(column) for name, column in columns.items()}, is_complete)

    @classmethod
    def of_rows(
        cls, what: str, counts: Mapping[str, int], columns: Mapping[str, int], *, is_complete: bool = True
    ) -> MemoryEstimate:
        """Creates a memory estimate from ``{column: bytes per row}``.

        Multiplies the bytes by the number of rows, which is the product of `counts`, such as envs times steps.
        """
        num_rows = math.prod(counts.values())
        return cls(what, counts, {name: size * num_rows for name, size in columns.items()}, is_complete)

    def part(self, what: str, number: int, of: int) -> MemoryEstimate:
        """Estimates the memory of `number` equal shards, if this estimate describes `of` such shards.

        For example, `of` is the number of all devices, and `number` the number of this process's devices. Multiplies
        the bytes of each column, and the first entry of `counts` (such as the number of envs), by ``number / of``, and
        rounds up.
        """
        (divided, total), *others = self.counts.items()
        counts = dict([(divided, -(-total * number // of)), *others])
        columns = {name: -(-size * number // of) for name, size in self.columns.items()}
        return dataclasses.replace(self, what=what, counts=counts, columns=columns)

    @classmethod
    def joined(cls, estimates: Sequence[MemoryEstimate]) -> MemoryEstimate:
        """Adds up several memory estimates to one estimate."""
        if len(estimates) == 1:
            return estimates[0]
        columns: collections.Counter[str] = collections.Counter()
        for estimate in estimates:
            columns.update(estimate.columns)
        rows, is_complete = sum(own.num_rows for own in estimates), all(own.is_complete for own in estimates)
        return cls(estimates[0].what, {"rows": rows}, dict(columns), is_complete)

    @property
    def num_rows(self) -> int:
        """Number of rows of the estimated arrays: the product of all `counts`, such as envs times steps."""
        return math.prod(self.counts.values())

    @property
    def bytes_per_row(self) -> int:
        """Bytes per row over all columns: total bytes divided by the number of rows, rounded up."""
        return -(-self.num_bytes // max(1, self.num_rows))

    @property
    def num_bytes(self) -> int:
        """Estimated bytes of all columns (arrays) together, with all rows."""
        return sum(self.columns.values())

    def to_dict(self) -> dict[str, Any]:
        """Converts the memory estimate to a dict.

        The keys are ``"num_bytes"``, ``"num_rows"``, ``"bytes_per_row"``, ``"counts"`` (factors of the number of rows,
        such as envs and steps) and ``"columns"`` (bytes of each column).
        """
        return {
            "num_bytes": self.num_bytes,
            "num_rows": self.num_rows,
            "bytes_per_row": self.bytes_per_row,
            "counts": dict(self.counts),
            "columns": dict(self.columns),
        }

    def __str__(self) -> str:
        counts = " x ".join(f"{number:,} {name}" for name, number in self.counts.items())
        largest_first = sorted(self.columns.items(), key=lambda item: -item[1])
        num_rows = max(1, self.num_rows)
        columns = ", ".join(
            f"{name} {format_bytes(size / num_rows)}" for name, size in largest_first if size >= num_rows
        )
        least = "" if self.is_complete else "at least "
        return (
            f"{self.what}: {least}{format_bytes(self.num_bytes)} = {counts} x {format_bytes(self.bytes_per_row)} "
            f"({columns})"
        )


def bytes_of_shapes(tree: Any) -> int:
    """Bytes of all arrays, or ``jax.ShapeDtypeStruct``s, of a pytree."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def space_bytes(space: Space) -> int:
    """Bytes of one element of `space`, stored as JAX arrays: int64 and float64 are stored with 32 bits.

    Raises:
        TypeError: `space` has no fixed shape.
    """
    return bytes_of_shapes(spaces.shape_dtype_struct(space))


def format_bytes(num_bytes: float) -> str:
    """Formats a number of bytes with three digits and a binary unit: "54 B", "1.21 GiB"."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        if abs(size) < 999.5:
            break
        size, unit = size / 1024, larger
    return f"{size:.3g} {unit}" if abs(size) < 999.5 else f"{size:,.0f} {unit}"


_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)\s*([kmgt]?)(i?)b\s*", re.IGNORECASE)


def parse_bytes(text: str) -> int | None:
    """Parses a size with a unit, such as "20 GB" (powers of 1000) or "1.5 GiB" (powers of 1024), to bytes; None for
    other texts.
    """
    found = _SIZE.fullmatch(text)
    if found is None or (found[3] and not found[2]):
        return None
    return int(float(found[1]) * (1024 if found[3] else 1000) ** " kmgt".index(found[2].lower() or " "))


def require_memory(estimate: MemoryEstimate, limit: int | None, *, where: str, remedy: str) -> None:
    """Raises an error if a `MemoryEstimate` exceeds the available memory.

    Args:
        estimate: Memory that is needed.
        limit: Available bytes; None if unknown, which allows everything.
        where: Words for the message that follow the number of available bytes, e.g. "are free on this machine".
        remedy: Advice, a sentence.

    Raises:
        ValueError: If the estimate exceeds `limit`; the message has both numbers and the remedy.
    """
    if limit is not None and estimate.num_bytes > limit:
        raise ValueError(f"Not enough memory: {estimate} cannot fit, because {format_bytes(limit)} {where}. {remedy}")


# --------------------------------------------------------------------------------------------------- what there is


@dataclasses.dataclass(frozen=True)
class HostMemory:
    """Memory of this machine, or of the container of this process.

    Attributes:
        total: Bytes in all.
        available: Bytes that can be had without swapping; caches that give way count as free.
    """

    total: int
    available: int


def available_host_bytes() -> int | None:
    """Bytes that can still be allocated on this machine; None if unknown."""
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
    """Total and available memory of this machine, from ``/proc/meminfo``.

    If a control group of this process (cgroup v1 or v2) has less total or less available memory, the smaller number is
    returned.

    Args:
        root: Folder that contains ``proc`` and ``sys``.

    Returns:
        None if the system has no ``/proc/meminfo`` with these numbers.
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
    """Yields ``(limit, bytes in use)`` of each control group that has a limit: this process's own group and its
    ancestors.
    """
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
