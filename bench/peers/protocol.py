"""Protocol between a benchmark and a contender in another process: JSON lines over the standard streams.

The contender's process is ``PYTHON -m bench.peers.NAME SETTINGS``. It sends one line when it is ready, then answers
each line that it reads with one, and ends with its standard input. It sits idle in between, so that contenders can
take turns. This module needs the standard library only: a peer's environment may hold nothing else of ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
GRACE = 60.0
"""Seconds that a process has to end by itself."""


class Iteration(NamedTuple):
    """Result of one iteration.

    Args:
        steps: Environment steps, or samples trained on.
        parts: Seconds spent on parts of it, by name.
        result: Anything else that the benchmark wants to know.
    """

    steps: int
    parts: Mapping[str, float]
    result: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Work:
    """Contender that is ready to run.

    Args:
        iterate: One iteration; this is what is timed.
        prepare: Called before each iteration, untimed.
        close: Frees everything.
    """

    iterate: Callable[[], Iteration]
    prepare: Callable[[], None] = lambda: None
    close: Callable[[], None] = lambda: None


def measure(work: Work, seconds: float, iterations: int = 1) -> list[dict[str, Any]]:
    """Runs at least `iterations` iterations, and at least for `seconds` seconds.

    Returns:
        Of each iteration, its `Iteration` as a dict with ``seconds``, and ``cores``: CPU seconds of this process per
        second; fewer than it can use mean that it had to share the machine.
    """
    out: list[dict[str, Any]] = []
    while len(out) < iterations or sum(each["seconds"] for each in out) < seconds:
        work.prepare()
        cpu_started, started = time.process_time(), time.perf_counter()
        iteration = work.iterate()
        seconds_taken = time.perf_counter() - started
        cores = (time.process_time() - cpu_started) / seconds_taken
        out.append({"seconds": seconds_taken, "cores": cores, **iteration._asdict()})
    return out


def serve(make: Callable[[dict[str, Any]], Work], packages: Sequence[str]) -> None:
    """Main program of a contender's process: answers requests to measure.

    Args:
        make: The settings of the command line -> the contender. ``settings["warmup"]`` iterations come first.
        packages: Distributions whose versions are reported.
    """
    settings = json.loads(sys.argv[1])
    # Libraries print to stdout what they like; it must not get between the replies.
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)
        work = make(settings)
        try:
            measure(work, seconds=0.0, iterations=settings["warmup"])
            versions = {name: importlib.metadata.version(name) for name in packages}
            print(json.dumps({"versions": versions}), file=replies)
            for request in sys.stdin:
                print(json.dumps(measure(work, **json.loads(request))), file=replies)
        finally:
            work.close()


class Peer:
    """Context manager that starts a contender's process and sends it requests; the end of the block ends the process.

    Args:
        command: Interpreter and its arguments up to the settings, such as ``[python, "-m", "bench.peers.sb3_ppo"]``.
        settings: Sent as JSON.
        patience: Seconds to wait for a reply.
        folder: Where the process starts: the checkout whose code runs.

    Raises:
        RuntimeError: The process ended, or sent no reply in time; the message has the end of what it printed.
    """

    def __init__(
        self, command: Sequence[str], settings: Mapping[str, Any], patience: float = 900.0, folder: Path = ROOT
    ):
        self._command, self._settings, self._patience, self._folder = list(command), settings, patience, folder

    def __enter__(self) -> Peer:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [*self._command, json.dumps(self._settings)],
            cwd=self._folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            self.versions: dict[str, str] = self._reply()["versions"]
        except BaseException:
            self.__exit__()
            raise
        return self

    def measure(self, seconds: float, iterations: int = 1) -> list[dict[str, Any]]:
        """Runs `measure` in the contender's process."""
        return self.ask({"seconds": seconds, "iterations": iterations})

    def ask(self, request: Mapping[str, Any]) -> Any:
        """Sends a request, and returns the reply of the process."""
        assert self._process.stdin is not None
        # If the process has ended, the missing reply says so, with the reason.
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._reply()

    def _reply(self) -> Any:
        assert self._process.stdout is not None
        # A reply is one line, written at once: where there is something to read, all of it is there soon.
        readable, _, _ = select.select([self._process.stdout], [], [], self._patience)
        if not readable:
            raise self._failure(f"sent no reply within {self._patience:g} s")
        line = self._process.stdout.readline()
        if not line:
            # The stream closes before the process has printed what went wrong.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=GRACE)
            raise self._failure("ended early")
        return json.loads(line)

    def _failure(self, what: str) -> RuntimeError:
        self._log.seek(0)
        return RuntimeError(f"{' '.join(self._command)} {what}:\n{self._log.read()[-4000:]}")

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        # Closing flushes what a process that has ended already did not read.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
