"""Share of time in which a device computes: from a profile of its kernels, or from the seconds in compiled programs."""

from __future__ import annotations

import pathlib
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

KERNELS, PROGRAMS = "kernels", "programs"
_KERNEL_LINE = re.compile(r"Stream|XLA Ops$")
"""Lines of a device's plane that contain kernels: streams of GPUs, operations of TPUs."""
_COPY = re.compile(r"memcpy", re.IGNORECASE)
"""Events of streams that copy memory. A stream may contain copies and kernels."""


class Busy(NamedTuple):
    """Share of the time in which a device computes.

    Attributes:
        share: Busy time over wall time; None if unknown.
        source: "kernels": from a trace of JAX's profiler, mean over the devices with kernels. "programs": from the
            timers of results, in which waiting for an accelerator counts as busy.
        problem: Reason why there is no share of kernels.
    """

    share: float | None
    source: str | None
    problem: str | None = None


def measure_busy(step: Callable[[], Mapping[str, Any]]) -> Busy:
    """Measures the busy share of the device in one iteration.

    On accelerators, the iteration is traced. The profiler slows down programs of many small kernels, so their share is
    a lower bound. CPUs have no kernels, and their traces have millions of events.

    Args:
        step: One iteration, already compiled; returns a result with ``timers``.
    """
    import jax

    on_cpu = jax.devices()[0].platform == "cpu"
    share, problem = (None, "CPUs have no kernels") if on_cpu else _share_of_kernels(step)
    if share is not None:
        return Busy(share, KERNELS)
    timers = step().get("timers", {})
    if not timers.get("training_iteration"):
        return Busy(None, None, problem)
    return Busy(min(1.0, timers["device_s"] / timers["training_iteration"]), PROGRAMS, problem)


def _share_of_kernels(step: Callable[[], Any]) -> tuple[float | None, str | None]:
    """Profiles an iteration; returns ``(share of its time in which kernels run, None)``, or ``(None, problem)``."""
    import jax

    options = jax.profiler.ProfileOptions()
    # Events of the host would take longer than what they record.
    options.python_tracer_level = options.host_tracer_level = 0
    with tempfile.TemporaryDirectory(prefix="device_busy_") as folder:
        try:
            with jax.profiler.trace(folder, profiler_options=options):
                started = time.perf_counter()
                step()
                seconds = time.perf_counter() - started
            files = pathlib.Path(folder).rglob("*.xplane.pb")
            data = [jax.profiler.ProfileData.from_file(str(file)) for file in files]
            busy = [own for each in data for own in busy_seconds(each.planes)]
        # A profiler that the machine does not allow must not cost the other numbers.
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"[:300]
    if not busy:
        return None, "the trace contains no kernels"
    return min(1.0, sum(busy) / len(busy) / seconds), None


def busy_seconds(planes: Iterable[Any]) -> Iterator[float]:
    """Seconds of kernels on each device that has some; overlapping kernels count once, and copies of memory do not.

    Args:
        planes: Planes of ``jax.profiler.ProfileData``.
    """
    for plane in planes:
        if plane.name.startswith("/device:"):
            lines = [line for line in plane.lines if _KERNEL_LINE.match(line.name)]
            events = [each for line in lines for each in line.events if not _COPY.match(each.name)]
            spans = [(each.start_ns, each.start_ns + each.duration_ns) for each in events]
            if spans:
                yield covered(spans) / 1e9


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals ``(start, end)``."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
