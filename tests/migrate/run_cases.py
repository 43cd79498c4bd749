"""Migrates RLlib's example scripts and runs them at toy size.

    python tests/migrate/run_cases.py RLLIB [--only PART] [--timeout SECONDS]

RLLIB is the folder ``rllib`` of a copy of Ray, with ``examples``; the scripts are not in this repository. Each case of
``cases.txt`` is copied into a folder of its own, rewritten there by ``jaxrl migrate --write``, and run. It has run if
its exit code is 0; it has stopped where it was told to if the traceback passes a line that the migration's report
names; all else is a failure. The exit code is 0 if at least 90 % of the cases that are there ran, and none failed.
A script is missing if that copy of Ray does not hold it, or if another package that it imports is not installed, or has
not the name that it imports.
MIGRATE_LOGS names a folder for reports and tracebacks of the others.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

CASES = pathlib.Path(__file__).with_name("cases.txt")
ROOT = pathlib.Path(__file__).parents[2]
TOY = "--no-tune --stop-iters=1 --num-env-runners=0"


class Case(NamedTuple):
    """A line of ``cases.txt``.

    Attributes:
        path: The script.
        arguments: Its arguments.
        absent: Why it cannot exist here; empty: it can.
        replaced: ``old=new`` of a name that stands for another one in the copy; empty: none.
    """

    path: str
    arguments: str
    absent: str
    replaced: str

    @property
    def name(self) -> str:
        """The script, and what is replaced in it."""
        return f"{self.path} ({self.replaced})" if self.replaced else self.path


def read_cases() -> list[Case]:
    """The cases, in their order."""
    found = []
    for line in CASES.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.startswith("#"):
            path, arguments, absent, replaced = ([part.strip() for part in line.split("|")] + ["", ""])[:4]
            found.append(Case(path, arguments.replace("TOY", TOY), absent, replaced))
    return found


def reported_lines(report: str) -> list[tuple[int, int]]:
    """First and last line, in the new script, of what a report names."""
    return [(int(first), int(last or first)) for first, last in re.findall(r"\(new: (\d+)(?:-(\d+))?\)", report)]


def outcome(case: Case, rllib: pathlib.Path, timeout: float) -> tuple[str, str]:
    """``ran``, ``stopped``, ``failed`` or ``missing``, and a line on it."""
    if not (rllib / case.path).exists():
        return "missing", "not in this copy of Ray"
    with tempfile.TemporaryDirectory() as folder:
        script = shutil.copy(rllib / case.path, folder)
        if case.replaced:
            old, _, new = case.replaced.partition("=")
            copy = pathlib.Path(script)
            copy.write_text(copy.read_text().replace(old, new))
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
        python = [sys.executable, "-W", "ignore"]
        migrated = subprocess.run(
            [*python, "-m", "jaxrl_stack.cli", "migrate", "--write", script],
            capture_output=True, text=True, env=environment, check=True,
        )  # fmt: skip
        command = [*python, script, *case.arguments.split()]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                cwd=folder,
                env=environment,
                timeout=timeout,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return "failed", f"ran for more than {timeout:.0f} s"
        if done.returncode == 0:
            return "ran", migrated.stdout.splitlines()[0].partition(": ")[2]
        lines = [int(line) for line in re.findall(rf'File "{re.escape(str(script))}", line (\d+)', done.stderr)]
        named = reported_lines(migrated.stdout)
        stopped = next((line for line in lines if any(first <= line <= last for first, last in named)), None)
        error = (done.stderr.strip().splitlines() or ["no message"])[-1]
        package = re.fullmatch(r"ModuleNotFoundError: No module named '(\w+)[\w.]*'", error)
        if package and package[1] != "jaxrl_stack":
            return "missing", f"needs {package[1]}, which is not installed"
        name = re.match(r"ImportError: cannot import name '(\w+)' from '([\w.]+)'", error)
        if name and name[2].partition(".")[0] not in ("jaxrl_stack", "ray"):
            return "missing", f"needs {name[1]} of {name[2]}, which this release of it has not"
        keep = os.environ.get("MIGRATE_LOGS")
        if keep:
            log = pathlib.Path(keep) / case.path.replace("/", "__")
            log.write_text(migrated.stdout + done.stdout[-3000:] + done.stderr[-6000:])
        if stopped is not None:
            return "stopped", f"at line {stopped}, which the report names: {error[:160]}"
        return "failed", f"line {lines[-1] if lines else '?'}: {error[:300]}"


def main() -> int:
    """Run the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rllib", type=pathlib.Path, help="folder rllib of a copy of Ray")
    parser.add_argument("--only", default="", help="cases whose path holds this")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each")
    arguments = parser.parse_args()
    counts: dict[str, int] = dict.fromkeys(("ran", "stopped", "failed", "missing", "absent"), 0)
    for case in read_cases():
        if not re.search(arguments.only, case.name):
            continue
        start = time.perf_counter()
        result, words = ("absent", case.absent) if case.absent else outcome(case, arguments.rllib, arguments.timeout)
        counts[result] += 1
        print(f"{result:8}{time.perf_counter() - start:5.0f} s  {case.name}: {words}", flush=True)
    tried = counts["ran"] + counts["stopped"] + counts["failed"]
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 0 if counts["failed"] == 0 and counts["ran"] >= 0.9 * tried else 1


if __name__ == "__main__":
    sys.exit(main())
