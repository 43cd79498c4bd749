"""Profiling of an iteration: a trace of JAX's profiler, and the fraction of time that each part of a training step
takes.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import pathlib
import re
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from jaxrl_stack.execution.driver import Driver

SAMPLING, LEARNER_CONNECTOR, UPDATE, REPLAY, OTHER = "sampling", "learner_connector", "update", "replay", "other"
SCOPES = (SAMPLING, LEARNER_CONNECTOR, UPDATE, REPLAY)
"""Names of the parts of a program (`jax.named_scope`)."""

_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = .*? ([\w-]+)\(")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_CONTROL_FLOW = {"while", "conditional", "call"}
"""Instructions that contain other instructions. Their time is the time of the inner instructions."""

logger = logging.getLogger(__name__)


class Profiler:
    """Records traces of JAX's profiler in selected iterations of an algorithm.

    Args:
        iterations: Numbers of the iterations; an integer is one of them.
    """

    def __init__(self, iterations: int | Collection[int] | None):
        numbers = (iterations,) if isinstance(iterations, int) else iterations or ()
        self._iterations = frozenset(numbers)

    @contextlib.contextmanager
    def around(
        self, iteration: int, driver: Driver, directory: str | os.PathLike[str] | None
    ) -> Iterator[dict[str, Any]]:
        """Context manager around a training iteration: records a profiler trace if this iteration was selected.

        Args:
            iteration: Number of the iteration.
            driver: Tells the shares of time.
            directory: The run's, to write into ``profile/`` below it; None for a new folder among the temporary ones.

        Yields:
            A dict, which holds ``trace_dir`` and the share of each part afterwards; empty for other iterations.
        """
        found: dict[str, Any] = {}
        if iteration not in self._iterations:
            yield found
            return
        directory = directory or tempfile.mkdtemp(prefix="jaxrl_stack_")
        folder = pathlib.Path(directory, "profile", f"iteration_{iteration:06}")
        options = jax.profiler.ProfileOptions()
        # Python's frames would take longer than what they call.
        options.python_tracer_level = 0
        with jax.profiler.trace(str(folder), profiler_options=options):
            started = time.perf_counter()
            yield found
            seconds = time.perf_counter() - started
        shares = driver.time_shares(folder, seconds)
        listed = ", ".join(f"{name} {share:.1%}" for name, share in shares.items()) or "no program ran"
        logger.warning("Iteration %d: %s. Its trace is in %s (xprof, Perfetto).", iteration, listed, folder)
        found |= {"trace_dir": str(folder), **shares}


def shares_of_scopes(folder: pathlib.Path, program: str) -> dict[str, float]:
    """Computes the fraction of each named scope in the total time of a program, from a profiler trace, over all devices
    and threads.

    Args:
        folder: Folder of one trace.
        program: The program's compiled text.

    Returns:
        ``{scope: share}`` of the scopes that took time, and of operations outside of all scopes; {} if the program did
        not run.
    """
    scope_of = dict(_scopes(program))
    times: collections.Counter[str] = collections.Counter()
    for file in folder.rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(file)).planes:
            for line in plane.lines:
                for event in line.events:
                    scope = scope_of.get(event.name)
                    if scope is not None:
                        times[scope] += event.duration_ns
    return _as_shares({name: times[name] for name in (*SCOPES, OTHER) if times[name]})


def compiled_text(lowered: Any) -> str:
    """Compiles a program and returns the text of the compiled program.

    The text contains the `jax.named_scope` names of this program, even if JAX has cached the same program with other
    names.

    JAX's caches ignore these names, so a cached program may lack them. A compiler option without effect avoids JAX's
    cache in this process; a setting of JAX makes its cache on disk distinguish programs by these names.
    """
    option = "jax_compilation_cache_include_metadata_in_key"
    before = getattr(jax.config, option)
    jax.config.update(option, True)
    try:
        return lowered.compile(compiler_options={"xla_dump_large_constants": False}).as_text()
    finally:
        jax.config.update(option, before)


def shares_of_timers(timers: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Computes the fraction of an iteration's time for each timer, and for the time outside of all timers."""
    return _as_shares({**timers, OTHER: max(0.0, seconds - sum(timers.values()))})


def _scopes(program: str) -> Iterator[tuple[str, str]]:
    """Yields ``(instruction name, scope)`` for each instruction in the text of a compiled program.

    The scope is the instruction's innermost `jax.named_scope` that `SCOPES` lists, or "other" if `SCOPES` lists none.
    Omits control flow instructions, such as ``while``.
    """
    for line in program.splitlines():
        instruction, op_name = _INSTRUCTION.match(line), _OP_NAME.search(line)
        if instruction is None or instruction[2] in _CONTROL_FLOW:
            continue
        # The innermost one counts.
        parts = [part for part in re.split(r"[/()]", op_name[1]) if part in SCOPES] if op_name else []
        yield instruction[1], parts[-1] if parts else OTHER


def _as_shares(times: Mapping[str, float]) -> dict[str, float]:
    return {name: own / sum(times.values()) for name, own in times.items()}
