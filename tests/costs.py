"""What each file of tests costs: the table of README.md beside this file.

    python tests/costs.py [PYTEST ARGUMENTS]

runs all tests, the slow ones included, takes their times from pytest's report and writes the table anew.
"""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).parent
PAGE = ROOT / "README.md"
COLUMNS = ("tests", "fast", "slow", "CPU s", "of it fast", "of it slow", "wall s", "of it slow (wall)")
HEAD = f"| file | {' | '.join(COLUMNS)} |\n|---|{'--:|' * len(COLUMNS)}\n"


def rows(report: pathlib.Path) -> dict[str, list[float]]:
    """File → numbers of `COLUMNS`."""
    files: dict[str, list[float]] = collections.defaultdict(lambda: [0.0] * len(COLUMNS))
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        if "cpu_s" not in properties:
            continue  # an error of the run itself
        is_fast, is_slow = (mark in properties["marks"].split() for mark in ("fast", "slow"))
        parts = case.get("classname", "").split(".")[1:]
        while not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            parts.pop()  # a class
        row = files["/".join(parts) + ".py"]
        cpu, wall = float(properties["cpu_s"]), float(case.get("time", 0))
        added = (1, is_fast, is_slow, cpu, cpu * is_fast, cpu * is_slow, wall, wall * is_slow)
        row[:] = [have + more for have, more in zip(row, added, strict=True)]
    return files


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
        PAGE.write_text(text[: text.index("| file |")] + table(rows(report)))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
