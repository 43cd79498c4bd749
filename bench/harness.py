"""Timing helpers that all benchmarks share: interleaved contenders, peak memory, tables and JSON.

On a shared machine the clock of one moment says little. So contenders take turns in one process (A, B, C, C, B, A,
A, B, C, ...), and what is reported is the median over rounds: of each contender's rate, and of the ratio of two
contenders' rates within a round.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rich.console import Console
from rich.table import Table

Key = TypeVar("Key")


class Contender(Protocol):
    """Interface of a measured contender: `step` makes one training iteration and returns when it is finished."""

    @property
    def step(self) -> Callable[[], Mapping[str, Any]]: ...
    @property
    def steps_per_iteration(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Timing:
    """Measured rates of a contender, one per round.

    Args:
        rates: Environment steps per second, one entry per round.
        cores: CPU seconds used per wall second, one entry per round; fewer than the contender can use means that
            it had to share the machine.
        steps_per_iteration: Environment steps in one iteration.
    """

    rates: list[float]
    cores: list[float]
    steps_per_iteration: int

    @property
    def rate(self) -> float:
        """Median environment steps per second."""
        return statistics.median(self.rates)

    @property
    def rate_per_core(self) -> float:
        """Median environment steps per CPU second, which other processes on the machine do not slow down as much."""
        return statistics.median(rate / cores for rate, cores in zip(self.rates, self.cores, strict=True))

    @property
    def seconds_per_iteration(self) -> float:
        return self.steps_per_iteration / self.rate

    def ratio_to(self, other: Timing) -> float:
        """Median over rounds of this contender's rate divided by the other's in the same round."""
        return statistics.median(a / b for a, b in zip(self.rates, other.rates, strict=True))


def interleave(contenders: Mapping[Key, Contender], rounds: int, seconds: float, warmup: int = 2) -> dict[Key, Timing]:
    """Measures contenders in turns.

    Args:
        contenders: What to measure.
        rounds: Turns of each; every second round runs in reverse order, so that drift favours none.
        seconds: Least length of a turn; a turn is at least one iteration.
        warmup: Iterations of each before the first round.

    Raises:
        ValueError: Fewer than one round.
    """
    if rounds < 1:
        raise ValueError(f"rounds={rounds}: measure at least one round")
    iterations: dict[Key, int] = {}
    for key, contender in contenders.items():
        for _ in range(warmup):
            contender.step()
        started = time.perf_counter()
        contender.step()
        iterations[key] = max(1, round(seconds / (time.perf_counter() - started)))

    timings = {key: Timing([], [], contender.steps_per_iteration) for key, contender in contenders.items()}
    for index in range(rounds):
        for key in list(contenders) if index % 2 == 0 else reversed(list(contenders)):
            step = contenders[key].step
            cpu_started, started = time.process_time(), time.perf_counter()
            for _ in range(iterations[key]):
                step()
            elapsed = time.perf_counter() - started
            timings[key].rates.append(iterations[key] * contenders[key].steps_per_iteration / elapsed)
            timings[key].cores.append((time.process_time() - cpu_started) / elapsed)
    return timings


def peak_resident_bytes() -> int:
    """Peak resident memory of this process, in bytes."""
    # Linux lets a child's ru_maxrss begin at its parent's, so ask for the address space's own mark.
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # macOS counts in bytes, other systems in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def device_peak_bytes() -> int | None:
    """Peak memory in use on the first device, in bytes; None if the backend does not count it."""
    import jax

    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else None


def least_seconds(function: Callable[..., Any], *args: Any, tries: int) -> float:
    """Seconds of the fastest of some calls of a JAX function, after one that compiles it."""
    import jax

    jax.block_until_ready(function(*args))
    best = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        jax.block_until_ready(function(*args))
        best = min(best, time.perf_counter() - started)
    return best


def matrix_peak(size: int = 2048, tries: int = 9) -> float:
    """Floating point operations per second of a product of two square float32 matrices: the best of some tries."""
    import jax
    import jax.numpy as jnp

    matrix = jnp.ones((size, size), jnp.float32)
    return 2.0 * size**3 / least_seconds(jax.jit(jnp.matmul), matrix, matrix, tries=tries)


def machine() -> dict[str, Any]:
    """Returns processor, devices, versions and load of this machine."""
    import jax

    return {
        "cores": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "devices": [device.device_kind for device in jax.devices()],
        "load_average_1min": os.getloadavg()[0],
    }


RECORDED = ("bench/*.jsonl", "docs/measured.md")
"""Tracked files that benchmarks write. They do not make a checkout dirty."""


def commit() -> str | None:
    """Returns the commit that is measured, with "-dirty" if tracked files except `RECORDED` differ from it.

    Outside of a git checkout: None.
    """
    return _commit_of(Path(__file__).parents[1])


def _commit_of(root: Path) -> str | None:
    """Commit of the checkout at `root`; see `commit`."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=root, check=False)
        return done.stdout.strip()

    found = git("rev-parse", "--verify", "--short=12", "HEAD")
    excluded = [f":(top,exclude,glob){pattern}" for pattern in RECORDED]
    dirty = found and git("status", "--porcelain", "--untracked-files=no", "--", ":(top)", *excluded)
    return f"{found}-dirty" if dirty else found or None


def report_of(module: str, *arguments: str) -> dict[str, Any]:
    """Runs a benchmark in a separate process, so that its peak memory is measured separately; returns its JSON report.

    Args:
        module: Benchmark to run, as in `python -m`.
        arguments: Its command line; `--json -` is added.

    Raises:
        subprocess.CalledProcessError: The benchmark failed; its errors have been printed.
    """
    command = [sys.executable, "-m", module, *arguments, "--json", "-"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> None:
    """Prints rows under column names; None becomes a dash, floats three significant digits.

    A column without any value is left out.
    """

    def cell(value: Any) -> str:
        if value is None:
            return "–"
        if isinstance(value, float):
            return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return str(value)

    table = Table(title=title, caption=caption or None)
    shown = [index for index in range(len(columns)) if any(row[index] is not None for row in rows)]
    for index in shown:
        table.add_column(columns[index], justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row[index]) for index in shown))
    # Piped into a file, a table must not be folded at 80 columns.
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)


def write_json(path: str | None, payload: Mapping[str, Any]) -> None:
    """Writes a report as JSON to a file; "-" is stdout, None writes nothing."""
    if path is None:
        return
    text = json.dumps({"command": " ".join(["python", "-m", *_module_and_arguments()]), **payload}, indent=2)
    if path == "-":
        print(text)
    else:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text + "\n")


def _module_and_arguments() -> list[str]:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return [spec.name if spec else Path(sys.argv[0]).name, *sys.argv[1:]]
