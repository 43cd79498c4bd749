"""Tables of the scores in ``bench/scores.jsonl``: on docs/benchmarks.md beside published ones, and one changed setting
at a time in PPO's README.

    python -m bench.score_page
    python -m bench.score_page --check

The first command rewrites the section of each page between two comments, the second one exits with 1 if that would
change a page.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench.journal import lines_of
from bench.scores import CELLS, FACTOR_TASKS, FACTORS, JOURNAL, Cell
from jaxrl_stack.runs.score_statistics import MIN_SEEDS_OF_IQM, iqm_score, mean_score, score_interval
from jaxrl_stack.runs.terminal import number_text

_ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- scores: begin -->", "<!-- scores: end -->"


class Published(NamedTuple):
    """Published final score of another implementation.

    Attributes:
        score: Mean return.
        spread: As published, behind "±".
        task: The version of the environment.
        steps: Env steps of the training.
        source: Name of the source in `SOURCES`.
    """

    score: float
    spread: float
    task: str
    steps: int
    source: str


SOURCES = {
    "CleanRL": "[CleanRL](https://github.com/vwxyzjn/cleanrl/tree/master/docs/benchmark), 3 seeds, returns in training",
    "CleanRL, DQN": "[CleanRL](https://docs.cleanrl.dev/rl-algorithms/dqn/), returns in training",
    "RL Zoo": "[RL Zoo](https://github.com/DLR-RM/rl-baselines3-zoo/blob/master/benchmark.md), one run, "
    "deterministic policy",
}
"""Name of a source -> link and kind of number."""
_M = 1_000_000
PUBLISHED: dict[tuple[str, str], tuple[Published, ...]] = {
    ("PPO", "HalfCheetah-v5"): (
        Published(1442.64, 46.03, "HalfCheetah-v4", _M, "CleanRL"),
        Published(5819.099, 663.53, "HalfCheetah-v3", _M, "RL Zoo"),
    ),
    ("PPO", "Hopper-v5"): (
        Published(2382.86, 271.74, "Hopper-v4", _M, "CleanRL"),
        Published(2410.435, 10.026, "Hopper-v3", _M, "RL Zoo"),
    ),
    ("PPO", "Walker2d-v5"): (
        Published(2287.95, 571.78, "Walker2d-v4", _M, "CleanRL"),
        Published(3478.798, 821.708, "Walker2d-v3", _M, "RL Zoo"),
    ),
    ("PPO", "InvertedPendulum-v5"): (Published(963.09, 22.20, "InvertedPendulum-v4", _M, "CleanRL"),),
    ("PPO", "Swimmer-v5"): (Published(281.561, 9.671, "Swimmer-v3", _M, "RL Zoo"),),
    ("PPO", "LunarLander-v3"): (Published(242.119, 31.823, "LunarLander-v2", _M, "RL Zoo"),),
    ("PPO", "BipedalWalker-v3"): (Published(213.299, 129.49, "BipedalWalker-v3", 5 * _M, "RL Zoo"),),
    ("DQN", "CartPole-v1"): (
        Published(500.0, 0.0, "CartPole-v1", 50_000, "RL Zoo"),
        Published(488.69, 16.11, "CartPole-v1", 500_000, "CleanRL, DQN"),
    ),
    ("DQN", "MountainCar-v0"): (
        Published(-100.849, 9.925, "MountainCar-v0", 120_000, "RL Zoo"),
        Published(-194.95, 8.48, "MountainCar-v0", 500_000, "CleanRL, DQN"),
    ),
    ("DQN", "LunarLander-v3"): (Published(154.382, 79.241, "LunarLander-v2", 100_000, "RL Zoo"),),
    ("SAC", "Pendulum-v1"): (Published(-156.995, 88.714, "Pendulum-v1", 20_000, "RL Zoo"),),
    ("SAC", "HalfCheetah-v5"): (Published(9634.89, 1423.73, "HalfCheetah-v4", _M, "CleanRL"),),
    ("SAC", "Hopper-v5"): (Published(2310.46, 342.82, "Hopper-v4", _M, "CleanRL"),),
    ("SAC", "Walker2d-v5"): (Published(3591.45, 911.33, "Walker2d-v4", _M, "CleanRL"),),
    ("SAC", "Ant-v5"): (Published(4615.791, 1354.111, "Ant-v3", _M, "RL Zoo"),),
    ("SAC", "LunarLanderContinuous-v3"): (Published(260.39, 65.467, "LunarLanderContinuous-v2", 500_000, "RL Zoo"),),
    ("SAC", "BipedalWalker-v3"): (Published(297.668, 33.06, "BipedalWalker-v3", 500_000, "RL Zoo"),),
    ("TQC", "HalfCheetah-v5"): (Published(12089.939, 127.44, "HalfCheetah-v3", _M, "RL Zoo"),),
    ("TQC", "BipedalWalker-v3"): (Published(329.808, 45.083, "BipedalWalker-v3", 500_000, "RL Zoo"),),
}
"""Algorithm and task -> published scores."""


def runs_of(cell: Cell, lines: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The finished runs of a cell with its own settings, ordered by seed."""
    key = {"algorithm": cell.algorithm, "env": cell.task, "steps": cell.steps}
    found = [line for line in lines if key.items() <= line["run"].items() and "changed" not in line["run"]]
    return sorted(found, key=lambda line: line["run"]["seed"])


def score_text(scores: Sequence[float]) -> str:
    """``"2150 [1980, 2310]"``: mean of fewer than 4 runs, else their interquartile mean, with its 95 % interval."""
    array = np.array(scores, np.float64)[:, None]
    statistic = iqm_score if len(scores) >= MIN_SEEDS_OF_IQM else mean_score
    value = number_text(float(statistic(array)))
    if len(scores) == 1:
        return value
    low, high = (number_text(float(end)) for end in score_interval(statistic, array))
    return f"{value} [{low}, {high}]"


def published_text(one: Published, cell: Cell) -> str:
    """``"2383 ± 271.7 (Hopper-v4, 1M steps, CleanRL)"``; names version and steps where they differ from the cell's."""
    differing = [one.task] if one.task != cell.task else []
    differing += [f"{number_text(one.steps)} steps"] if one.steps != cell.steps else []
    return f"{number_text(one.score)} ± {number_text(one.spread)} ({', '.join([*differing, one.source])})"


def row_of(cell: Cell, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the cells of a row of the table."""
    measured = [run["measured"] for run in runs]
    scores = [one["score"] for one in measured]
    kept = share_of_best([(one["end_of_curve"], one["best_of_curve"]) for one in measured])
    published = "<br>".join(published_text(one, cell) for one in PUBLISHED.get((cell.algorithm, cell.task), ()))
    minutes = sum(one["cpu_seconds"] for one in measured) / len(measured) / 60
    file = f"../jaxrl_stack/algorithms/{cell.algorithm.lower()}/tuned.py"
    return [
        cell.task,
        f"[{cell.algorithm}]({file})",
        score_text(scores),
        ", ".join(number_text(score) for score in scores),
        published or "–",
        number_text(cell.steps),
        kept,
        f"{minutes:.1f}",
        ", ".join(dict.fromkeys(str(run["commit"])[:8] for run in runs)),
    ]


def share_of_best(curves: Sequence[tuple[float, float]]) -> str:
    """``"93 %"``: end of a curve as a share of its highest point, least of all runs; ``"–"`` with returns below 0.

    Args:
        curves: Mean of the last tenth and highest point of each run's curve.
    """
    if min(best for _, best in curves) <= 0:
        return "–"
    return f"{100 * min(end / best for end, best in curves):.0f} %"


def table(header: Sequence[str], rows: Sequence[Sequence[str]], num_right: int = 0) -> list[str]:
    """Lines of a Markdown table, whose last `num_right` columns are aligned to the right."""
    alignment = ["---"] * (len(header) - num_right) + ["--:"] * num_right
    return ["| " + " | ".join(row) + " |" for row in (header, alignment, *rows)]


def cost_text(cell: Cell, runs: Sequence[Any]) -> str:
    """Formats the CPU minutes that the missing runs of a cell need."""
    return number_text(cell.minutes * (cell.seeds - len(runs)))


def section(lines: Sequence[Mapping[str, Any]]) -> str:
    """Formats the section of the page from the lines of the journal."""
    found = [(cell, runs_of(cell, lines)) for cell in CELLS]
    header = ["task", "algorithm", "score", "runs", "published", "steps", "kept", "CPU minutes", "commit"]
    rows = [row_of(cell, runs) for cell, runs in found if runs]
    open_rows = [
        [
            cell.task,
            cell.algorithm,
            cell.tier,
            f"{len(runs)} of {cell.seeds}",
            number_text(cell.steps),
            cost_text(cell, runs),
        ]
        for cell, runs in found
        if len(runs) < cell.seeds
    ]
    text = table(header, rows) if rows else []
    versions = defaultdict[str, set[str]](set)
    for line in lines:
        for name, version in line["measured"]["versions"].items():
            versions[name].add(version)
    named = (f"{name} {' and '.join(sorted(values))}" for name, values in sorted(versions.items()))
    text += ["", f"Versions: {', '.join(named)}."]
    sources = {one.source for cell, runs in found if runs for one in PUBLISHED.get((cell.algorithm, cell.task), ())}
    text += ["", *(f"* {name}: {source}" for name, source in SOURCES.items() if name in sources)]
    if open_rows:
        text += ["", "This table lists the missing runs, and the CPU time that they need:", ""]
        text += table(["task", "algorithm", "tier", "runs", "steps", "CPU minutes"], open_rows)
    return "\n".join(text)


def factor_section(lines: Sequence[Mapping[str, Any]]) -> str:
    """The table of PPO's settings for MuJoCo with one of them changed: scores of seed 0."""
    found = {
        (line["run"].get("changed"), line["run"]["env"]): number_text(line["measured"]["score"])
        for line in lines
        if line["run"]["algorithm"] == "PPO" and line["run"]["seed"] == 0
    }
    names: dict[str | None, str] = {None: "none", **{factor: factor for factor in FACTORS}}
    rows = [[name, *(found.get((factor, task), "–") for task in FACTOR_TASKS)] for factor, name in names.items()]
    return "\n".join(table(["changed setting", *FACTOR_TASKS], rows))


PAGES: dict[Path, Callable[[Sequence[Mapping[str, Any]]], str]] = {
    _ROOT / "docs" / "benchmarks.md": section,
    _ROOT / "jaxrl_stack" / "algorithms" / "ppo" / "README.md": factor_section,
}
"""Page -> its section, made of the lines of a journal."""


def with_section(page: str, text: str, *, begin: str = BEGIN, end: str = END) -> str:
    """Returns a page with the text between two comments replaced.

    Raises:
        ValueError: The page lacks them.
    """
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise ValueError(f"A page needs {begin} and {end}.")
    return f"{before}{begin}\n{text}\n{end}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the tables to the pages; with ``--check`` only compares, and returns 1 if a page is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is not up to date")
    args = parser.parse_args(arguments)
    lines = lines_of(JOURNAL)
    differing = False
    for path, make in PAGES.items():
        page = path.read_text()
        new = with_section(page, make(lines))
        differing |= new != page
        if not args.check:
            path.write_text(new)
    return int(args.check and differing)


if __name__ == "__main__":
    raise SystemExit(main())
