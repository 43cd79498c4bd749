"""Tables of docs/measured.md from the lines of ``bench/gpu.jsonl``, one pair of tables for each device."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gpu_parts import PARTS
from bench.journal import lines_of
from bench.score_page import table, with_section
from jaxrl_stack.runs.terminal import number_text

ROOT = Path(__file__).parents[1]
JOURNAL, PAGE = ROOT / "bench" / "gpu.jsonl", ROOT / "docs" / "measured.md"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"
SPEED = ["part", "size", "steps/s", "÷ plain loop", "busy", "compile s", "memory, measured / estimated", "commit"]
DETERMINISM = ["part", "size", "bits repeat", "with the flag", "cost of the flag", "commit"]

Line = Mapping[str, Any]
Rows = tuple[list[str], list[list[str]]]
"""Header and rows of a table."""


def newest(lines: Sequence[Line]) -> list[Line]:
    """Last line of each size that has numbers, in the order of the parts and of their sizes."""
    found: dict[tuple[str, str], Line] = {}
    for line in lines:
        if "measured" in line:
            found[line["run"]["part"], json.dumps(line["run"]["size"], sort_keys=True)] = line
    order = list(PARTS)

    def key(line: Line) -> tuple[Any, ...]:
        part, size = line["run"]["part"], line["run"]["size"]
        sizes = [dict(own) for own in PARTS[part].sizes] if part in PARTS else []
        place = sizes.index(size) if size in sizes else len(sizes)
        return order.index(part) if part in PARTS else len(order), place, size.get("num_envs", 0)

    return sorted(found.values(), key=key)


def speed_rows(lines: Sequence[Line]) -> Rows:
    """Table of the training runs."""
    own = [line for line in newest(lines) if "busy_share" in line["measured"]]
    return SPEED, [_speed_row(line) for line in own]


def _speed_row(line: Line) -> list[str]:
    run, measured = line["run"], line["measured"]
    busy, compile_s = measured["busy_share"], measured["compile_s"]
    unit = "" if measured["unit"] == "env steps" else f" {measured['unit']}"
    return [
        PARTS[run["part"]].title if run["part"] in PARTS else run["part"],
        size_text(run["size"], measured),
        number_text(measured["steps_per_s"]) + unit,
        "<br>".join(filter(None, (_ratio_text(name, loop) for name, loop in measured["loops"].items()))) or "–",
        "–" if busy is None else f"{100 * busy:.0f} %",
        "–" if compile_s is None else f"{compile_s:.1f}",
        memory_text(measured.get("memory")),
        commit_text(line["commit"]) + (", by hand" if "by_hand" in measured else ""),
    ]


def size_text(size: Mapping[str, Any], measured: Mapping[str, Any]) -> str:
    """``"1,024 envs"``, with the training steps of a call if there are several."""
    nouns = {"num_envs": "envs", "rows": "rows", "members": "members"}
    parts = [f"{size[name]:,} {noun}" for name, noun in nouns.items() if name in size]
    if not parts and "num_envs" in measured:
        parts.append(f"{measured['num_envs']:,} envs")
    parts += [str(size["model_size"])] if "model_size" in size else []
    together = measured.get("training_steps", 1)
    return ", ".join([*parts, *([f"{together} at once"] if together > 1 else [])]) or "–"


def _ratio_text(name: str, loop: Mapping[str, Any]) -> str:
    """``"1.2 (name)"`` or ``"name failed"``; empty for loops that are not comparable."""
    if "error" in loop:
        return f"{name} failed"
    return f"{loop['ratio']:.2f} ({name})" if "ratio" in loop else ""


def commit_text(commit: str | None) -> str:
    """``"8a8f21f0"``, ``"8a8f21f0-dirty"`` or ``"unknown"``."""
    if commit is None:
        return "unknown"
    return commit.removesuffix("-dirty")[:8] + ("-dirty" if commit.endswith("-dirty") else "")


def memory_text(memory: Mapping[str, Any] | None) -> str:
    """``"1.2 / 0.9 GB"``; dashes for what was not measured."""
    if not memory:
        return "–"
    measured, estimated = (memory.get(name) for name in ("measured_bytes", "estimated_bytes"))
    shown = [gigabytes(value) if value else "–" for value in (measured, estimated)]
    return f"{shown[0]} / {shown[1]} GB" + (" (arrays)" if memory.get("source") == "live arrays" else "")


def gigabytes(num_bytes: float) -> str:
    """Three digits of a number of bytes in GB, 1e9."""
    return f"{num_bytes / 1e9:.3g}"


def determinism_rows(lines: Sequence[Line]) -> Rows:
    """Table of the runs that were repeated."""
    own = [line for line in newest(lines) if "cost_of_flag" in line["measured"]]
    return DETERMINISM, [
        [
            PARTS[line["run"]["size"]["part"]].title,
            size_text(line["run"]["size"], {}),
            equal_text(line["measured"]["without_flag"]),
            equal_text(line["measured"]["with_flag"]),
            cost_text(line["measured"]["cost_of_flag"]),
            commit_text(line["commit"]),
        ]
        for line in own
    ]


def cost_text(cost: float | None) -> str:
    """``"25 % of the speed"``; a dash if the runs of a setting failed."""
    return "–" if cost is None else f"{100 * cost:.0f} % of the speed"


def equal_text(found: Mapping[str, Any]) -> str:
    """``"yes"``, ``"in a process"`` if other processes differ, ``"no"``, or ``"failed"``."""
    if "error" in found:
        return "failed"
    if found["equal_in_all"]:
        return "yes" if found["num_processes"] > 1 else "in a process"
    return "in a process" if found["equal_in_process"] else "no"


def section(lines: Sequence[Line]) -> str:
    """Tables of all devices, from the lines that are not of toy sizes."""
    real = [line for line in lines if not line["run"]["toy"]]
    text: list[str] = []
    for device in dict.fromkeys(line["run"]["device"] for line in real):
        own = [line for line in real if line["run"]["device"] == device]
        text += ["", f"**{device}**", ""]
        for header, rows in (speed_rows(own), determinism_rows(own)):
            text += [*table(header, rows), ""] if rows else []
        text += [f"* Versions: {each}." for each in dict.fromkeys(map(versions_text, newest(own)))]
        text += failed_text(own)
    return "\n".join(text).strip() or "No accelerator has been measured yet."


def versions_text(line: Line) -> str:
    """Packages and their versions."""
    machine = line.get("machine", {})
    versions = {"python": machine.get("python"), **machine.get("versions", {})}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version) or "unknown"


def failed_text(lines: Sequence[Line]) -> list[str]:
    """Sentence with the sizes whose last line is an error."""
    last: dict[str, Line] = {json.dumps(line["run"], sort_keys=True): line for line in lines}
    failed = [line for line in last.values() if "error" in line]
    names = [f"{line['run']['part']} {line['run']['size']}" for line in failed]
    return ["", f"Failed: {'; '.join(names)}."] if names else []


def write_page(*, check: bool) -> int:
    """Writes the tables.

    Args:
        check: Change nothing.

    Returns:
        1 with `check` if the page is out of date, else 0.
    """
    lines = lines_of(JOURNAL)
    page = PAGE.read_text()
    new = with_section(page, section(lines), begin=BEGIN, end=END)
    if check:
        return int(new != page)
    PAGE.write_text(new)
    return 0
