"""Times the first hour of a user: all commands of a documentation page, in order, in a fresh copy and environment.

    python -m bench.first_hour                      # the README
    python -m bench.first_hour --venv ~/.venv       # what is installed already stays out
    python -m bench.first_hour --page docs/command_line.md

Lines of ``bash`` blocks run one after the other, parts between ``&&`` timed alone; ``python`` blocks go on from each
other in one process, statement by statement. Tests and other installations are left out. All caches are empty at first,
pip's and that of compiled programs included. ``results/RUN`` is the run that was made last.

Exits with 1 if something fails, if a milestone is on no line, or if all but the installation takes more than 90 s.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 90.0

INSTALL = "install"
MILESTONES = {
    INSTALL: r"\bpip install\b|-m venv\b",
    "first result": r"\bjaxrl train\b|\.(train|learn)\(",
    "first plot": r"\bjaxrl plot\b|\.plot\(",
    "first video": r"\bjaxrl video\b|\.record\(",
    "report": r"\bjaxrl report\b|\.report\(",
    "own environment": r"\bclass \w+\(.*Env\)",
}
"""Name → what the line that reaches it looks like; an environment of one's own has learned when its block has ended."""
_LEFT_OUT = re.compile(r"pytest|\[test|\[cuda|\[notebooks")

_STATEMENTS = """\
import ast, json, sys, time
blocks = json.load(open(sys.argv[1]))
names = vars(sys.modules["__main__"])
for number, block in blocks:
    for statement in ast.parse(block).body:
        start = time.perf_counter()
        code = compile(ast.Module([statement], []), "<page>", "exec")
        exec(code, names)
        source = ast.get_source_segment(block, statement)
        print("\\n@@", json.dumps([source, time.perf_counter() - start, number]), file=sys.stderr, flush=True)
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """Timed command or statement of a page.

    Attributes:
        source: The command or statement.
        seconds: How long it took.
        block: Number of its block in the page.
    """

    source: str
    seconds: float
    block: int


def blocks_of(page: str) -> list[tuple[str, str]]:
    """Returns ``(language, code)`` of the code blocks of a page."""
    return re.findall(r"^```(bash|python)\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)


def commands_of(block: str) -> Iterator[str]:
    """Yields the commands of a ``bash`` block, without comments and commands that are not run."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#") and not _LEFT_OUT.search(line):
            yield from (part.strip() for part in re.split(r"\s&&\s", line))


def reached(steps: Sequence[Step]) -> dict[str, float]:
    """Returns ``{milestone: seconds}`` of the commands that reach it; 0 if the package was installed before, NaN if no
    command reaches it.
    """
    seconds = {}
    for name, looks in MILESTONES.items():
        found = [step for step in steps if re.search(looks, step.source)]
        if name == "own environment" and found:
            found = [step for step in steps if step.block == found[0].block]
        elif name != INSTALL:
            found = found[:1]
        seconds[name] = sum(step.seconds for step in found) if found or name == INSTALL else float("nan")
    return seconds


def run_page(page: str, directory: Path, environment: dict[str, str], *, install: bool) -> list[Step]:
    """Runs the blocks of a page.

    Args:
        page: Its text.
        directory: Where.
        environment: Of the processes.
        install: Whether commands that install are run.

    Raises:
        RuntimeError: If one fails, with what it printed.
    """
    steps: list[Step] = []
    python: list[tuple[int, str]] = []
    for number, (language, code) in enumerate(blocks_of(page)):
        if language == "python":
            python.append((number, code))
            continue
        for command in commands_of(code):
            if re.search(MILESTONES[INSTALL], command) and not install:
                continue
            runs = sorted((directory / "results").glob("*/"), key=lambda path: path.stat().st_mtime)
            command = command.replace("results/RUN", f"results/{runs[-1].name}" if runs else "results/RUN")
            start = time.perf_counter()
            _run(["bash", "-c", command], directory, environment)
            steps.append(Step(command, time.perf_counter() - start, number))
    if python:
        (directory / "blocks.json").write_text(json.dumps(python))
        start = time.perf_counter()
        printed = _run(["python", "-c", _STATEMENTS, "blocks.json"], directory, environment)
        inside = [Step(*json.loads(line[3:])) for line in printed.splitlines() if line.startswith("@@ ")]
        # Starting Python belongs to the first statement.
        started = time.perf_counter() - start - sum(step.seconds for step in inside)
        steps += [dataclasses.replace(inside[0], seconds=inside[0].seconds + started), *inside[1:]]
    return steps


def _run(command: Sequence[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)[:400]}\nends with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stderr


def _copy(directory: Path) -> None:
    """Copies the tracked files of this checkout, in their present state, to a folder."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    archive = subprocess.run(
        ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, input=files, capture_output=True, check=True
    )
    subprocess.run(["tar", "--extract"], cwd=directory, input=archive.stdout, check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints a table of all steps and the milestones; see the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=ROOT / "README.md", help="what to run (default: the README)")
    parser.add_argument("--venv", type=Path, help="an environment to use in place of a fresh one")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="first_hour_") as name:
        directory = Path(name, "checkout")
        directory.mkdir()
        _copy(directory)
        venv = arguments.venv or directory / ".venv"
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith(("JAX_", "XLA_", "PYTHON"))
        }
        environment["XDG_CACHE_HOME"] = str(Path(name, "cache"))
        environment["PATH"] = f"{venv.absolute() / 'bin'}{os.pathsep}{environment['PATH']}"
        if arguments.venv is not None:
            environment["PYTHONPATH"] = str(directory)
        try:
            steps = run_page(arguments.page.read_text(), directory, environment, install=arguments.venv is None)
        except RuntimeError as error:
            print(error)
            return 1
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    for step in steps:
        print(f"{step.seconds:7.1f} s  {' '.join(step.source.split())[:100]}")
    milestones = reached(steps)
    total = sum(step.seconds for step in steps) - milestones[INSTALL]
    print()
    for name, seconds in milestones.items():
        print(f"{name:16} {seconds:7.1f} s")
    print(f"{'all but install':16} {total:7.1f} s (at most {LIMIT_SECONDS:.0f})")
    print(f"{'CPU, all':16} {used.ru_utime + used.ru_stime:7.1f} s")
    return int(not (total <= LIMIT_SECONDS and all(seconds == seconds for seconds in milestones.values())))


if __name__ == "__main__":
    sys.exit(main())
