"""What each file of tests costs: the table of README.md beside this file.

    python tests/costs.py [PYTEST ARGUMENTS]

runs all tests, takes their times from pytest's report and writes the table anew.
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
HEAD = "| file | tests | fast | CPU s | of it fast | wall s |\n|---|--:|--:|--:|--:|--:|\n"


def rows(report: pathlib.Path) -> dict[str, list[float]]:
    """File → (tests, fast tests, CPU seconds, those of fast tests, wall seconds)."""
    files: dict[str, list[float]] = collections.defaultdict(lambda: [0, 0, 0.0, 0.0, 0.0])
    for case in xml.etree.ElementTree.parse(report).iter("testcase"):
        properties = {p.get("name"): p.get("value") for p in case.iter("property")}
        if "cpu_s" not in properties:
            continue  # an error of the run itself
        is_fast = "fast" in properties["marks"].split()
        parts = case.get("classname", "").split(".")[1:]
        while not (ROOT / "/".join(parts)).with_suffix(".py").is_file():
            parts.pop()  # a class
        row = files["/".join(parts) + ".py"]
        cpu = float(properties["cpu_s"])
        added = (1, is_fast, cpu, cpu * is_fast, float(case.get("time", 0)))
        row[:] = [have + more for have, more in zip(row, added, strict=True)]
    return files


def wall_seconds(page: str) -> dict[str, float]:
    """File → wall seconds that the table in a page gives for it."""
    found = re.findall(r"^\| (\S+\.py) \|(?: [\d.]+ \|){4} ([\d.]+) \|$", page, re.MULTILINE)
    return {file: float(wall) for file, wall in found}


def table(files: dict[str, list[float]]) -> str:
    """The rows, the dearest first, under their sum."""
    total = [sum(column) for column in zip(*files.values(), strict=True)]
    ordered = [("all", total), *sorted(files.items(), key=lambda item: -item[1][2])]
    return HEAD + "".join(
        f"| {name} | {tests:.0f} | {fast:.0f} | {cpu:.1f} | {fast_cpu:.1f} | {wall:.1f} |\n"
        for name, (tests, fast, cpu, fast_cpu, wall) in ordered
    )


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-n", "2", "--dist", "loadfile", f"--junitxml={report}", *arguments]
        status = subprocess.run(command, cwd=ROOT.parent, check=False).returncode
        text = PAGE.read_text()
        PAGE.write_text(text[: text.index("| file |")] + table(rows(report)))
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
