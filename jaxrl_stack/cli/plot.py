"""``jaxrl plot`` and ``jaxrl compare``: draw curves of runs, and compare their final performance."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
from typing import Any

from jaxrl_stack.cli.common import CliError, json_object, wrong_input


def run(arguments: argparse.Namespace) -> int:
    """Prints curves of runs, or a table of their final performance; with ``--out`` also writes a figure.

    Raises:
        CliError: If the run does not exist, or lacks the number.
    """
    from jaxrl_stack.runs.axes import AxisOptions
    from jaxrl_stack.runs.curves import RETURN
    from jaxrl_stack.runs.plots import compare, plot_runs, runs_as_text

    if arguments.command == "compare" and _is_benchmark(arguments.runs):
        return _compare_benchmark(arguments)
    _refuse_options_of_benchmarks(arguments)
    what = {
        "runs": arguments.runs,
        "key": arguments.key or RETURN,
        "x": arguments.x or "steps",
        "aggregate": arguments.aggregate or "iqm",
    }
    band = 0.95 if arguments.band is None else arguments.band
    given = {name: getattr(arguments, name) for name in AxisOptions.__annotations__}
    options: Any = {name: value for name, value in given.items() if value is not None}
    if options and arguments.out is None:
        raise CliError(f"--{next(iter(options))}: applies to figures only. Also name the file: --out curves.png.")
    with wrong_input():
        if arguments.command == "compare":
            print(_comparison(compare(**what, band=band), what["x"], arguments.format))
        elif arguments.out is None:
            print(runs_as_text(**what))
        if arguments.out is not None:
            plot_runs(**what, out=arguments.out, band=band, **options)
            print(f"Figure: {arguments.out}")
    return 0


def _comparison(rows: list[Any], x: str, format: str) -> str:
    """Formats the result of `compare`, which compares the final performance of runs."""
    from jaxrl_stack.runs.plots import comparison_text
    from jaxrl_stack.runs.writers import as_json

    if format == "json":
        return json.dumps([as_json(dataclasses.asdict(row)) for row in rows], indent=2, ensure_ascii=False)
    return comparison_text(rows, x, format)


# ------------------------------------------------------------------------------------------------------- benchmarks


def _is_benchmark(paths: list[str]) -> bool:
    """Whether the command got a single path, the folder of a benchmark.

    Raises:
        CliError: If one of several paths is a benchmark.
    """
    from jaxrl_stack.runs.benchmark import BENCHMARK_FILE

    found = [path for path in paths if pathlib.Path(path, BENCHMARK_FILE).exists()]
    if found and len(paths) > 1:
        raise CliError(f"RUN {found[0]}: is a benchmark, which cannot be compared with other runs. Pass only this RUN.")
    return bool(found)


def _compare_benchmark(arguments: argparse.Namespace) -> int:
    """Prints the table of a benchmark's scores; with ``--out`` also writes the figure of its curves."""
    from jaxrl_stack.runs.benchmark import Benchmark
    from jaxrl_stack.runs.figures import checked_figure_path

    (path,) = arguments.runs
    for name in ("key", "x", "aggregate", "band", "ylim", "xscale", "yscale"):
        if getattr(arguments, name) is not None:
            raise CliError(
                f"--{name}: applies to curves, but `jaxrl compare` prints the scores of the benchmark {path}. Draw its "
                f"curves: jaxrl plot {path} --{name} ... --out curves.png"
            )
    references = None
    if arguments.references is not None:
        try:
            text = pathlib.Path(arguments.references).read_text(encoding="utf-8")
        except OSError as error:
            raise CliError(
                f"--references {arguments.references}: cannot be read ({error.strerror}). Name an existing JSON file."
            ) from error
        option, example = f"--references {arguments.references}", '{"CartPole-v1": [9, 475, "random, solved"]}'
        references = json_object(option, text, is_file=True, file_example=example)
    with wrong_input():
        if arguments.out is not None:
            checked_figure_path(arguments.out)
        done = Benchmark.read(path)
        print(done.table(arguments.format, baseline=arguments.baseline, references=references))
        if arguments.out is not None:
            done.plot(arguments.out)
            if arguments.format == "text":
                print(f"Figure: {arguments.out}")
    return 0


def _refuse_options_of_benchmarks(arguments: argparse.Namespace) -> None:
    """Raises CliError for options that apply only to benchmarks, because the path is not a benchmark."""
    for name in ("baseline", "references"):
        if getattr(arguments, name, None) is not None:
            raise CliError(
                f"--{name} {getattr(arguments, name)}: needs the folder of a benchmark, not {arguments.runs[0]}. Run "
                f"a benchmark: jaxrl benchmark PPO,IMPALA 'gymnax/*-MinAtar' --steps 5e6 --results-dir DIR."
            )
