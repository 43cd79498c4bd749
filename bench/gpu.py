"""Measures training on the accelerator of this machine: speed, compile time, busy share, memory, determinism.

    python -m bench.gpu --json bench/gpu.jsonl
    python -m bench.gpu --only 'ppo_*,dqn' --seconds 30 --json bench/gpu.jsonl
    python -m bench.gpu --toy
    python -m bench.gpu page

Each size of a part runs in a new process, takes one to two minutes on an accelerator, and appends a JSON line to FILE
with commit, device and versions. Lines in FILE of the same commit and device are not measured again, unless the commit
is unknown or has uncommitted changes. If a size fails, its line contains the error, the next one runs, and the exit
code is 1. Parts whose packages are missing are skipped.

* Speed: steps per second, and the ratio to a plain loop that takes turns with the training run. PPO has the loops of
  `bench.throughput`; the other algorithms have hand-written loops with the same networks and batches.
* Compile time: seconds of the first iteration that trace and compile, without the compilation cache.
* Busy share: time of kernels, without copies, over wall time in a trace of JAX's profiler (`bench.device_busy`).
* Memory: peak of the device's allocator, which includes buffers of XLA's autotuning, against
  `Algorithm.memory_estimate`.
* Determinism: equality of the bits of equal runs, in a process and in several, with
  ``--xla_gpu_deterministic_ops=false`` and ``--xla_gpu_deterministic_ops=true``.

Training needs the packages that this project requires, but not Ray, gymnax or flashbax. ``page`` writes the tables of
docs/measured.md from bench/gpu.jsonl.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import importlib.util
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.gpu_parts import PARTS, Size, cases_of, determinism, measure, repeat, shortened, xla_flags
from bench.journal import append_line, lines_of
from bench.peers.protocol import Peer

PACKAGES = ("jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "ale-py")
"""Packages with a version in each line; missing ones are left out."""
TOY_WORKERS = 2
TOY_FIRST = ("dreamer", "determinism_ppo_mlp", "ppo_cnn", "two_agents", "ppo_lstm")
"""Parts that take longest at toy size, and so begin first."""
UNCACHED = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
QUICK = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "true", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""Environment variables of the workers: compile times need an empty cache; toy sizes compile quickly, and their workers
share the memory of a GPU."""


def facts() -> dict[str, Any]:
    """Returns device and versions of this machine."""
    import jax

    from jaxrl_stack.runs.origin import installed_versions

    device = jax.devices()[0]
    return {
        "device": device.device_kind,
        "num_devices": len(jax.devices()),
        "platform": f"{device.platform}, {device.client.platform_version}".replace("\n", " "),
        "versions": installed_versions(PACKAGES),
        **{name: value for name, value in harness.machine().items() if name in ("cores", "processor", "python")},
    }


def serve() -> None:
    """Main loop of a worker process: answers requests ``{"part", "size", "seconds", "toy"}``; see `Peer.ask`.

    Requests with ``"repeat": True`` ask for `repeat`.
    """
    # Libraries print to stdout; replies need a stream of their own.
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)
        print(json.dumps({"versions": {}}), file=replies)
        for request in map(json.loads, sys.stdin):
            try:
                if request["part"] == "facts":
                    measured = facts()
                elif request.get("repeat"):
                    measured = repeat(PARTS[request["part"]], request["size"], request["seconds"])
                else:
                    measured = measure(PARTS[request["part"]], request["size"], request["seconds"], request["toy"])
                reply = {"measured": measured}
            except Exception as error:
                reply = {"error": shortened(f"{type(error).__name__}: {error}")}
            print(json.dumps(reply), file=replies)


def worker(environ: Mapping[str, str], *, patience: float) -> Peer:
    """New worker process.

    Args:
        environ: Environment variables, besides the variables of this process.
        patience: Seconds to wait for a reply.
    """
    command = ["env", *(f"{name}={value}" for name, value in environ.items())]
    return Peer([*command, sys.executable, "-m", "bench.gpu", "--worker"], {}, patience)


class Lines:
    """Lines of finished sizes, and the file that contains them.

    Args:
        path: The file; None keeps the lines in memory.
    """

    def __init__(self, path: Path | None):
        self._path, self._lock = path, threading.Lock()
        self.new: list[dict[str, Any]] = []
        self._old = lines_of(path) if path and path.exists() else []

    def is_finished(self, commit: str | None, run: Mapping[str, Any]) -> bool:
        """True if the file contains the numbers of a run at a commit. Unknown and dirty commits have no finished runs:
        their lines may be from other code.
        """
        if commit is None or commit.endswith("-dirty"):
            return False
        return any(line["commit"] == commit and line["run"] == run and "measured" in line for line in self._old)

    def append(self, line: dict[str, Any]) -> None:
        """Appends a line to the file."""
        with self._lock:
            self.new.append(line)
            if self._path:
                append_line(self._path, line)


def repeated(part: str, size: Size, args: Any) -> dict[str, Any]:
    """Numbers of a part that repeats a training run.

    Each setting of the flag has two processes with two runs each (one process with toy sizes). This process starts and
    ends them, so a run that takes too long does not keep the device.
    """
    started, own = time.perf_counter(), PARTS[part]
    request = {
        "part": own.repeats,
        "size": {name: value for name, value in size.items() if name != "part"},
        "seconds": args.seconds / 4,
        "toy": args.toy,
        "repeat": True,
    }

    def repeats(flag: bool) -> list[dict[str, Any]]:
        flags = {"XLA_FLAGS": xla_flags(os.environ.get("XLA_FLAGS", ""), deterministic=flag)}
        found = []
        for _ in range(1 if args.toy else 2):
            with worker({**_environ(args), **flags}, patience=args.patience) as peer:
                reply = peer.ask(request)
            if "error" in reply:
                raise RuntimeError(reply["error"])
            found.append(reply["measured"])
        return found

    return {"unit": own.unit, **determinism(repeats), "wall_s": time.perf_counter() - started}


def _environ(args: Any) -> dict[str, str]:
    return QUICK if args.toy else UNCACHED


def run_all(cases: Sequence[tuple[str, Size]], lines: Lines, machine: Mapping[str, Any], args: Any) -> None:
    """Measures cases and writes a line for each.

    Each case has a new process, one after the other. Toy cases share `TOY_WORKERS` processes at the same time.
    """
    waiting: queue.SimpleQueue[tuple[str, Size]] = queue.SimpleQueue()
    for case in cases:
        waiting.put(case)

    def work() -> None:
        with contextlib.ExitStack() as stack:
            peer: Peer | None = None
            for part, size in _drained(waiting):
                started = time.perf_counter()
                request = {"part": part, "size": size, "seconds": args.seconds, "toy": args.toy}
                try:
                    if PARTS[part].repeats:
                        reply = {"measured": repeated(part, size, args)}
                    else:
                        if peer is None:
                            peer = stack.enter_context(worker(_environ(args), patience=args.patience))
                        reply = peer.ask(request)
                # An error of any kind costs one line, not the lines of the next cases.
                except Exception as error:
                    reply = {"error": shortened(f"{type(error).__name__}: {error}")}
                if not args.toy or "error" in reply:
                    stack.close()
                    peer = None
                run = {"part": part, "size": size, "device": machine["device"], "toy": args.toy}
                lines.append({"commit": args.commit, "run": run, "machine": machine, **reply})
                print(_progress(part, size, reply, time.perf_counter() - started), flush=True)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(TOY_WORKERS if args.toy else 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _drained(waiting: queue.SimpleQueue[tuple[str, Size]]) -> Iterator[tuple[str, Size]]:
    with contextlib.suppress(queue.Empty):
        while True:
            yield waiting.get_nowait()


def _progress(part: str, size: Size, reply: Mapping[str, Any], seconds: float) -> str:
    """Line of the output for a finished case."""
    name = " ".join([part, *(f"{key}={value}" for key, value in size.items())])
    if "error" in reply:
        return f"{name}: failed after {seconds:.0f} s: {reply['error'].splitlines()[0]}"
    measured = reply["measured"]
    ratios = [f"{own['ratio']:.2f} x {loop}" for loop, own in measured.get("loops", {}).items() if "ratio" in own]
    rate = measured["steps_per_s"]
    # Without a rate, the runs without the flag have failed.
    speed = "failed without the flag" if rate is None else f"{rate:,.0f} {measured['unit']}/s"
    return f"{name}: {speed} {', '.join(ratios)} ({seconds:.0f} s)"


def selected(text: str | None) -> list[str]:
    """Names of parts that match comma-separated names or patterns; all for None.

    Raises:
        argparse.ArgumentTypeError: A pattern matches no part.
    """
    patterns = [pattern for pattern in (text or "*").split(",") if pattern]
    for pattern in patterns:
        if not fnmatch.filter(PARTS, pattern):
            raise argparse.ArgumentTypeError(f"--only {pattern}: no such part. Use some of {', '.join(PARTS)}.")
    return [name for name in PARTS if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def missing_packages(name: str) -> list[str]:
    """Packages that a part needs and that are not installed."""
    return [package for package in PARTS[name].needs if importlib.util.find_spec(package) is None]


def _commit() -> str | None:
    try:
        return harness.commit()
    except OSError:  # git is not installed
        return None


def print_summary(lines: Sequence[Mapping[str, Any]], device: str) -> None:
    """Prints a table of the new results."""
    from bench.gpu_page import determinism_rows, speed_rows

    for title, (header, rows) in (("Training", speed_rows(lines)), ("Determinism", determinism_rows(lines))):
        if rows:
            harness.print_table(f"{title} on {device}", header, rows)


def parser() -> argparse.ArgumentParser:
    """Creates the parser of the command line."""
    out = argparse.ArgumentParser(
        prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    out.add_argument("command", nargs="?", choices=["run", "page"], default="run")
    out.add_argument("--only", type=selected, default=selected(None), metavar="PART,...", help=", ".join(PARTS))
    out.add_argument("--seconds", type=float, default=60.0, help="timed turns of each size, all contenders together")
    out.add_argument("--toy", action="store_true", help="tiny sizes, which take less than a minute on two CPU cores")
    out.add_argument("--json", type=Path, metavar="FILE", help="append lines to FILE; skip sizes that it contains")
    out.add_argument("--commit", default=None, help="commit in the lines; default: that of the checkout")
    out.add_argument("--check", action="store_true", help="page: change nothing; exit with 1 if it is out of date")
    out.add_argument("--worker", nargs=1, metavar="JSON", help=argparse.SUPPRESS)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    args = parser().parse_args(arguments)
    if args.worker:
        serve()
        return 0
    if args.command == "page":
        from bench.gpu_page import write_page

        return write_page(check=args.check)
    if args.toy:
        args.seconds = min(args.seconds, 0.1)
    # Compiling a large program, and a turn that takes longer than its share.
    args.patience = 600.0 + 4.0 * args.seconds
    args.commit = args.commit or _commit()
    with worker({}, patience=300.0) as peer:
        machine = peer.ask({"part": "facts"})["measured"]
    if args.json and (args.commit is None or args.commit.endswith("-dirty")):
        print(f"commit={args.commit}: measures all sizes again. Commit the changes, or pass --commit NAME.", flush=True)
    lines = Lines(args.json)
    names = []
    for name in args.only:
        if missing := missing_packages(name):
            print(f"{name}: skipped, {', '.join(missing)} is not installed", flush=True)
        else:
            names.append(name)
    cases = []
    names.sort(key=lambda name: args.toy and name not in TOY_FIRST)
    for part, size in cases_of(names, toy=args.toy):
        run = {"part": part, "size": dict(size), "device": machine["device"], "toy": args.toy}
        if not lines.is_finished(args.commit, run):
            cases.append((part, size))
    run_all(cases, lines, machine, args)
    print_summary(lines.new, machine["device"])
    return int(len(lines.new) < len(cases) or any("error" in line for line in lines.new))


if __name__ == "__main__":
    raise SystemExit(main())
