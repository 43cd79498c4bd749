"""PPO on gymnasium CartPole-v1: this project, RLlib and Stable-Baselines3 with the same settings, measured in turns.

    python -m bench.host_throughput --rllib-python ENV/bin/python --sb3-python ENV/bin/python --json out.json
    python -m bench.host_throughput --rllib-python ENV/bin/python --wall-clock 2x1 --configs "" --no-update

Every contender is a process of its own (`bench.peers`), in a virtual environment of its own where one is given; the
others wait while one is measured. Tables: training, and the parts of an iteration; the Learner alone; seconds until
a mean return of 450 with RLlib's settings for this environment (``--wall-clock``).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bench import harness
from bench.peers.protocol import Peer

ENV, STEPS = "CartPole-v1", 4000
MODEL = {"fcnet_hiddens": [64, 64], "fcnet_activation": "tanh", "vf_share_layers": False}
TRAINING = {"train_batch_size_per_learner": STEPS, "num_epochs": 4, "lr": 3e-4}
# What RLlib's own example trains CartPole-v1 with; everything else is PPO's default.
SOLVING_MODEL = {"fcnet_hiddens": [32], "fcnet_activation": "linear", "vf_share_layers": True}
SOLVING_TRAINING = {"num_epochs": 6, "lr": 3e-4, "vf_loss_coeff": 0.01}
TARGET, WITHIN = 450.0, 300_000
# RLlib averages the episodes that finished in one iteration (nine of them near the target), this project the last so
# many: this makes both reach the target on the same evidence.
SOLVING_REPORTING = {"metrics_num_episodes_for_smoothing": 10}

OURS, RLLIB, SB3 = "jaxrl", "rllib", "sb3"
PARTS = ("sample", "env", "policy", "connectors", "update", "sync")


@dataclasses.dataclass(frozen=True)
class Size:
    """Numbers of EnvRunners, environments per EnvRunner and minibatch rows; as text ``RUNNERSxENVS`` or
    ``RUNNERSxENVS/ROWS``.
    """

    num_env_runners: int
    num_envs: int
    minibatch_size: int = 128

    @classmethod
    def parse(cls, text: str) -> Size:
        """Parses ``RUNNERSxENVS`` or ``RUNNERSxENVS/ROWS``; raises ValueError for other texts."""
        counts, _, rows = text.partition("/")
        runners, _, envs = counts.partition("x")
        return cls(int(runners), int(envs), *([int(rows)] if rows else []))

    def __str__(self) -> str:
        rows = "" if self.minibatch_size == type(self).minibatch_size else f"/{self.minibatch_size}"
        return f"{self.num_env_runners}x{self.num_envs}{rows}"


DEFAULT_SIZES = "0x1,0x8,0x32,1x8,2x8,2x32,0x8/1024"
# The least ratio of this project's rate to another's, where there is one to meet.
TRAINING_BARS: dict[tuple[str, str], float] = {
    (RLLIB, "0x1"): 10.0,
    (RLLIB, "0x8"): 10.0,
    (RLLIB, "0x32"): 10.0,
    (RLLIB, "2x8"): 6.0,
    (SB3, "0x8/1024"): 4.0,
}
UPDATE_BAR, WALL_CLOCK_BAR = 20.0, 8.0


@dataclasses.dataclass
class Row:
    """Measured numbers of one contender in one comparison.

    Args:
        table: "training", "update" or "wall clock".
        size: As `Size` is written.
        what: What is compared: the job of `bench.peers.new_stack`.
        contender: Its name.
        rate: Median over iterations: env steps/s, or samples/s of the Learner alone, or 1/s of a whole training.
        rate_min, rate_max: Of the rounds' medians.
        cores: CPU seconds of the contender's main process per second.
        ratio: Median over rounds of this project's rate divided by this contender's.
        ratio_per_core: The same of the rates per CPU second of the main processes: what the ratio would be if nothing
            else ran on the machine. None where the work is in other processes, too.
        bar: What `ratio` has to be at least.
        parts: Seconds per 4,000 env steps (of one training for "wall clock"), medians.
        results: What the contender says of each training, for "wall clock".
        versions: Of the packages that do the work.
    """

    table: str
    size: str
    what: str
    contender: str
    rate: float
    rate_min: float
    rate_max: float
    cores: float
    ratio: float | None
    ratio_per_core: float | None
    bar: float | None
    parts: dict[str, float]
    results: list[dict[str, Any]]
    versions: dict[str, str]

    @property
    def met(self) -> bool | None:
        """Whether the ratio reaches the bar; None without a bar or ratio."""
        return None if self.bar is None or self.ratio is None else self.ratio >= self.bar


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Properties of all rows of a table.

    Args:
        table: Its name.
        per: Rates count steps, and parts are given for so many of them; None: whole iterations count.
        bar_of: (contender, size) -> least ratio, or None.
    """

    table: str
    per: int | None
    bar_of: Callable[[str, str], float | None]


TRAINING_TABLE = Comparison("training", STEPS, lambda name, size: TRAINING_BARS.get((name, size)))
UPDATE_TABLE = Comparison("update", STEPS, lambda name, size: UPDATE_BAR if name == RLLIB else None)
WALL_CLOCK_TABLE = Comparison("wall clock", None, lambda name, size: WALL_CLOCK_BAR if name == RLLIB else None)


def settings_of(size: Size, job: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of a contender; see `bench.peers.new_stack`."""
    solving = job == "wall_clock"
    training = (
        {**SOLVING_TRAINING, "train_batch_size_per_learner": STEPS, "minibatch_size": size.minibatch_size}
        if solving
        else {**TRAINING, "minibatch_size": size.minibatch_size}
    )
    return {
        "job": job,
        "warmup": 0 if solving else args.warmup,
        "env": ENV,
        "env_runners": {"num_env_runners": size.num_env_runners, "num_envs_per_env_runner": size.num_envs},
        "training": training,
        "reporting": SOLVING_REPORTING if solving else {},
        "model": SOLVING_MODEL if solving else MODEL,
        "seed": seed,
        "torch_threads": args.torch_threads,
        "target": TARGET,
        "within": WITHIN,
    }


def compare(
    peers: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    size: str,
    comparison: Comparison,
    rounds: int,
    seconds: float,
    ours: str = OURS,
) -> list[Row]:
    """Starts the contenders, measures them in turns, and ends them.

    Args:
        peers: Name -> command of its process.
        settings: For every contender, or name -> settings.
        size: Names the row.
        comparison: The table that the rows are for.
        rounds: Turns of each; every second round runs in reverse order.
        seconds: Least length of a turn.
        ours: What the others are compared with.
    """
    of_each = settings if settings.keys() == peers.keys() else dict.fromkeys(peers, settings)
    turns: dict[str, list[list[dict[str, Any]]]] = {name: [] for name in peers}
    with contextlib.ExitStack() as stack:
        running = {name: stack.enter_context(Peer(command, of_each[name])) for name, command in peers.items()}
        for index in range(rounds):
            for name in list(peers) if index % 2 == 0 else reversed(list(peers)):
                turns[name].append(running[name].measure(seconds))
        versions = {name: peer.versions for name, peer in running.items()}

    timings = {name: timing_of(mine, comparison) for name, mine in turns.items()}
    rows = []
    for name, timing in timings.items():
        iterations = [each for turn in turns[name] for each in turn]
        is_compared = ours in timings and name != ours
        rows.append(
            Row(
                table=comparison.table,
                size=size,
                what=of_each[name]["job"],
                contender=name,
                rate=timing.rate,
                rate_min=min(timing.rates),
                rate_max=max(timing.rates),
                cores=statistics.median(timing.cores),
                ratio=timings[ours].ratio_to(timing) if is_compared else None,
                ratio_per_core=per_core(timings[ours]).ratio_to(per_core(timing))
                if is_compared and of_each[name]["env_runners"]["num_env_runners"] == 0
                else None,
                bar=comparison.bar_of(name, size),
                parts=median_parts(iterations, comparison.per),
                results=[each["result"] for each in iterations if each["result"] is not None],
                versions=versions[name],
            )
        )
    return rows


def timing_of(turns: Sequence[Sequence[Mapping[str, Any]]], comparison: Comparison) -> harness.Timing:
    """Converts turns to rates: the median over the iterations of a turn, of steps, or of whole iterations if `per` is
    None.
    """
    rates = [
        statistics.median((each["steps"] if comparison.per else 1) / each["seconds"] for each in turn) for turn in turns
    ]
    cores = [statistics.median(each["cores"] for each in turn) for turn in turns]
    return harness.Timing(rates, cores, STEPS)


def per_core(timing: harness.Timing) -> harness.Timing:
    """Converts rates per second to rates per CPU second."""
    rates = [rate / cores for rate, cores in zip(timing.rates, timing.cores, strict=True)]
    return dataclasses.replace(timing, rates=rates)


def median_parts(iterations: Sequence[Mapping[str, Any]], per: int | None) -> dict[str, float]:
    """Returns the median seconds of each part of an iteration, per `per` steps."""
    names = dict.fromkeys(name for each in iterations for name in each["parts"])
    return {
        name: statistics.median(
            each["parts"][name] * (per / each["steps"] if per else 1) for each in iterations if name in each["parts"]
        )
        for name in names
    }


def peer_commands(args: argparse.Namespace) -> dict[str, list[str]]:
    """Returns ``{contender: command of its process}`` for the contenders whose interpreter is given."""
    pythons = {OURS: args.python, RLLIB: args.rllib_python, SB3: args.sb3_python}
    return {name: [python, "-m", f"bench.peers.{name}_ppo"] for name, python in pythons.items() if python}


def measure(peers: Mapping[str, Sequence[str]], args: argparse.Namespace) -> list[Row]:
    """Measures all rows of the table that the command line selects."""
    rows = []
    for size in args.configs:
        # Stable-Baselines3 has no env runners.
        here = {name: peers[name] for name in peers if name != SB3 or size.num_env_runners == 0}
        settings = settings_of(size, "train", 0, args)
        rows += compare(here, settings, str(size), TRAINING_TABLE, args.rounds, args.seconds)
    new_stack = {name: peers[name] for name in peers if name != SB3}
    if args.update:
        for job in ("rows", "trajectories"):
            settings = settings_of(Size(0, 8), job, 0, args)
            rows += compare(new_stack, settings, "0x8", UPDATE_TABLE, args.rounds, args.seconds)
    for size in args.wall_clock:
        # A round is a whole training, the same seed for everyone, in a fresh process: it compiles anew.
        trainings: dict[str, list[Row]] = {name: [] for name in new_stack}
        for seed in range(args.rounds):
            settings = settings_of(size, "wall_clock", seed, args)
            for row in compare(new_stack, settings, str(size), WALL_CLOCK_TABLE, 1, 0.0):
                trainings[row.contender].append(row)
        rows += [over_seeds(of_seeds) for of_seeds in trainings.values()]
    return rows


def over_seeds(rows: Sequence[Row]) -> Row:
    """Combines the rows of trainings with different seeds to one row of medians."""
    rates = [row.rate for row in rows]
    ratios = [row.ratio for row in rows if row.ratio is not None]
    return dataclasses.replace(
        rows[0],
        rate=statistics.median(rates),
        rate_min=min(rates),
        rate_max=max(rates),
        cores=statistics.median(row.cores for row in rows),
        ratio=statistics.median(ratios) if ratios else None,
        parts={name: statistics.median(row.parts[name] for row in rows) for name in rows[0].parts},
        results=[result for row in rows for result in row.results],
    )


def print_rows(rows: Sequence[Row], args: argparse.Namespace) -> None:
    """Prints the tables."""

    def bar_cells(row: Row) -> list[Any]:
        verdict = {True: "met", False: "missed", None: None}[row.met]
        return [row.ratio, row.bar, verdict]

    head = ["contender", "per s", "min", "max", "cores", "÷ per core", "jaxrl ÷", "bar", "bar is"]

    def head_cells(row: Row) -> list[Any]:
        rates = [row.rate, row.rate_min, row.rate_max]
        return [row.contender, *rates, row.cores, row.ratio_per_core, *bar_cells(row)]

    caption = f"medians; {args.rounds} rounds in turns; torch on {args.torch_threads} thread(s)"
    by_table = {name: [row for row in rows if row.table == name] for name in ("training", "update", "wall clock")}
    if by_table["training"]:
        harness.print_table(
            f"PPO training, gymnasium {ENV}, batch {STEPS}, 4 epochs: env steps/s",
            ["size", *head],
            [[row.size, *head_cells(row)] for row in by_table["training"]],
            caption=caption,
        )
        harness.print_table(
            f"Seconds per {STEPS} steps",
            ["size", "contender", *PARTS],
            [[row.size, row.contender, *(row.parts.get(part) for part in PARTS)] for row in by_table["training"]],
            caption="env, policy and connectors are parts of sample; jaxrl's connectors are in policy",
        )
    if by_table["update"]:
        harness.print_table(
            f"Learner alone, {STEPS} rows, 4 epochs, minibatch 128: samples/s",
            ["batch", *head],
            [[row.what, *head_cells(row)] for row in by_table["update"]],
            caption=f"{caption}; trajectories: with advantages, rows: without",
        )
    if by_table["wall clock"]:
        harness.print_table(
            f"Seconds until a mean return of {TARGET:g} on {ENV}",
            ["size", "contender", "seconds", "reached", "jaxrl ÷", "bar", "bar is", "build", "first train"],
            [
                [
                    row.size,
                    row.contender,
                    row.parts["until_target"],
                    f"{sum(result['reached'] for result in row.results)} of {len(row.results)}",
                    *bar_cells(row),
                    row.parts["build"],
                    row.parts["first_train"],
                ]
                for row in by_table["wall clock"]
            ],
            caption=f"{caption}, one seed each; from build_algo() on, with compiling",
        )


def sizes(text: str) -> list[Size]:
    return [Size.parse(part) for part in text.split(",") if part]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.host_throughput", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--rllib-python", metavar="PATH", help="interpreter that has ray[rllib] and torch")
    parser.add_argument("--sb3-python", metavar="PATH", help="interpreter that has stable-baselines3")
    parser.add_argument("--python", metavar="PATH", default=sys.executable, help="interpreter for this project")
    parser.add_argument(
        "--configs",
        type=sizes,
        default=sizes(DEFAULT_SIZES),
        metavar="SIZES",
        help=f"comma-separated RUNNERSxENVS or RUNNERSxENVS/MINIBATCH (default: {DEFAULT_SIZES})",
    )
    parser.add_argument(
        "--update", action=argparse.BooleanOptionalAction, default=True, help="measure the Learner alone, too"
    )
    parser.add_argument(
        "--wall-clock",
        type=sizes,
        nargs="?",
        const=sizes("2x1"),
        default=[],
        metavar="SIZES",
        help=f"also train until a mean return of {TARGET:g} (default: 2x1, RLlib's)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender; seeds of --wall-clock")
    parser.add_argument("--seconds", type=float, default=3.0, help="least length of a turn")
    parser.add_argument("--warmup", type=int, default=3, help="iterations before the first turn")
    parser.add_argument(
        "--torch-threads", type=int, default=1, help="of the peers; more wait for each other on a busy machine"
    )
    parser.add_argument(
        "--json", metavar="PATH", help='where to write the report ("-": stdout, in place of the tables)'
    )
    args = parser.parse_args(arguments)
    for name in ("rounds", "warmup"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: at least 1")
    return args


def main() -> None:
    """Runs the benchmark with the options of the command line."""
    args = parse()
    rows = measure(peer_commands(args), args)
    if args.json != "-":
        print_rows(rows, args)
    harness.write_json(
        args.json,
        {"machine": harness.machine(), "results": [{**dataclasses.asdict(row), "met": row.met} for row in rows]},
    )


if __name__ == "__main__":
    main()
