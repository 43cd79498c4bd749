"""What each file of tests costs: the table of README.md beside this file.

    python tests/costs.py [PYTEST ARGUMENTS]

runs all tests, including the slow ones, reads their times from pytest's report and writes the table. It also writes
long_tests.txt, the list of tests that would be fast but for their time. With names of files as arguments it measures
these files only, and keeps the rows of the others.
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent
PAGE = ROOT / "README.md"
LONG_TESTS = ROOT / "long_tests.txt"
OTHERS = {"ray", "process", "trains", "hostile", "soak", "slow"}
"""Marks of tests that are not fast, whatever they take."""
LONG, LONG_NO_MORE = 0.25, 0.1
"""CPU seconds above which a fast test is listed, and up to which a listed one is taken off: tests share programs, and
who pays for one depends on who is first."""
COLUMNS = ("tests", "fast", "slow", "CPU s", "of it fast", "of it slow", "wall s", "of it slow (wall)")
HEAD = f"| file | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}\n"


def cases(report: pathlib.Path) -> Iterator[tuple[str, str, set[str], float, float]]:
    """File, name, marks, CPU seconds and wall seconds of each test in a report."""
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        if "cpu_s" not in properties:
            continue  # an error of the run itself
        parts, name = case.get("classname", "").split(".")[1:], [case.get("name", "")]
        while not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            name.insert(0, parts.pop())  # a class
        marks = set(properties["marks"].split())
        if "slow" in marks:  # written at the test
            marks.discard("fast")
        yield "/".join(parts) + ".py", "::".join(name), marks, float(properties["cpu_s"]), float(case.get("time", 0))


def rows(report: pathlib.Path) -> dict[str, list[float]]:
    """File → numbers of `COLUMNS`."""
    files: dict[str, list[float]] = collections.defaultdict(lambda: [0.0] * len(COLUMNS))
    for file, _, marks, cpu, wall in cases(report):
        is_fast, is_slow = "fast" in marks, "slow" in marks
        added = (1, is_fast, is_slow, cpu, cpu * is_fast, cpu * is_slow, wall, wall * is_slow)
        files[file] = [have + more for have, more in zip(files[file], added, strict=True)]
    return files


def long_ones(report: pathlib.Path) -> list[str]:
    """``file::name`` of the tests that would be fast but for their time."""
    return sorted(
        f"{file}::{name}"
        for file, name, marks, cpu, _ in cases(report)
        if ("fast" in marks and cpu > LONG) or ("long" in marks and not marks & OTHERS and cpu > LONG_NO_MORE)
    )


def merged(page: str, measured: dict[str, list[float]]) -> dict[str, list[float]]:
    """Rows of the measured files, and rows of a page for the other files that still exist."""
    columns = [column(page, name) for name in COLUMNS]
    kept = {file: [numbers[file] for numbers in columns] for file in columns[0] if (ROOT / file).is_file()}
    return kept | measured


def merged_long_tests(listed: str, report: pathlib.Path) -> list[str]:
    """Long tests of a report, and listed ones of files that it does not contain."""
    measured = rows(report)
    kept = [name for name in listed.split("\n") if name and name.partition("::")[0] not in measured]
    return sorted([*kept, *long_ones(report)])


def wall_seconds(page: str) -> dict[str, float]:
    """File → wall seconds that the table in a page gives for it."""
    return column(page, "wall s")


def column(page: str, name: str) -> dict[str, float]:
    """File → what stands in a column of the table in a page."""
    (head,) = re.findall(r"^\| file \| (.*) \|$", page, re.MULTILINE)
    names = head.split(" | ")
    rows = re.findall(rf"^\| (\S+\.py) \|((?: [\d.]+ \|){{{len(names)}}})$", page, re.MULTILINE)
    return {file: float(numbers.split(" | ")[names.index(name)].strip(" |")) for file, numbers in rows}


def table(files: dict[str, list[float]]) -> str:
    """The rows, the dearest first, under their sum."""
    total = [sum(numbers) for numbers in zip(*files.values(), strict=True)]
    ordered = [("all", total), *sorted(files.items(), key=lambda item: -item[1][COLUMNS.index("CPU s")])]
    counts = 3
    return HEAD + "".join(
        f"| {name} | {' | '.join(f'{number:.{0 if i < counts else 1}f}' for i, number in enumerate(numbers))} |\n"
        for name, numbers in ordered
    )


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", "-m", "slow or not slow"]
        command += [f"--junitxml={report}", *arguments]
        status = subprocess.run(command, cwd=ROOT.parent, check=False).returncode
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index("| file |")] + table(merged(text, rows(report))))
        LONG_TESTS.write_text("".join(f"{name}\n" for name in merged_long_tests(LONG_TESTS.read_text(), report)))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
