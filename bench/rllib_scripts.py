"""Do RLlib's example scripts learn here? Migrates scripts and trains several seeds of each until its own criterion.

    python -m bench.rllib_scripts RAY/rllib/examples/algorithms/dqn/multi_agent_cartpole_dqn.py --seeds 5
    python -m bench.rllib_scripts SCRIPT ... --json bench/rllib_scripts.jsonl --checkpoints DIR

A script comes from a checkout of RLlib's repository and is not changed: `jaxrl migrate` rewrites a copy of it. The
copy has to have a `config` and a dict `stop` with ``num_env_steps_sampled_lifetime`` and the mean return
``env_runners/episode_return_mean``. A seed passes if it reaches this mean return within these env steps.

Option ``--json FILE`` appends each finished run to FILE, with its commit; runs that FILE contains are not repeated.
Option ``--checkpoints DIR`` keeps the files of runs in DIR; the same command then continues after a kill. The command
exits with 1 if more than one of five seeds fails.
"""

from __future__ import annotations

import argparse
import contextlib
import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import harness
from bench.journal import Journal
from bench.learning import STEPS, Criterion, ray_for, run_folder
from jaxrl_stack.migration import migrate
from jaxrl_stack.runs.curves import RETURN


@contextlib.contextmanager
def command_line(*arguments: str) -> Iterator[None]:
    """``sys.argv`` with the given entries while the context lasts."""
    before, sys.argv = sys.argv, list(arguments)
    try:
        yield
    finally:
        sys.argv = before


def migrated(script: Path, options: Sequence[str] = ()) -> tuple[Any, Mapping[str, float]]:
    """Config and stop criteria of a script for RLlib, after `jaxrl migrate`.

    Args:
        script: The file for RLlib.
        options: Its command line.

    Raises:
        SystemExit: The migration leaves something to do by hand.
    """
    result = migrate(script.read_text(), str(script))
    if result.to_do:
        raise SystemExit(f"{script}: `jaxrl migrate` leaves {len(result.to_do)} things to do by hand.")
    with tempfile.TemporaryDirectory() as folder, command_line(str(script), *options):
        copy = Path(folder) / script.name
        copy.write_text(result.after)
        names = runpy.run_path(str(copy), run_name=script.stem)
    return names["config"], names["stop"]


def run_script(
    script: Path, seeds: Sequence[int], options: Sequence[str], journal: Journal, checkpoints: Path | None
) -> bool:
    """Trains all seeds of a script that the journal does not contain.

    Args:
        script: The file for RLlib.
        seeds: The seeds.
        options: Command line of the script.
        journal: Journal of the runs.
        checkpoints: Folder of all runs. None keeps no files.

    Returns:
        Whether enough of them pass.
    """
    config, stop = migrated(script, options)
    goal = Criterion(stop[RETURN], int(stop[STEPS]))
    identity = {
        "script": script.stem,
        "options": list(options),
        "algorithm": config.algo_class.__name__,
        "env": script.stem,
        "target": stop[RETURN],
        "within": stop[STEPS],
    }

    def measure(chosen: list[int]) -> list[dict[str, Any]]:
        own = [seeds[i] for i in chosen]
        return goal.train(config, own, run_folder(checkpoints, config.algo_class.__name__, script.stem, seeds=own))

    with ray_for({"num_env_runners": config.num_env_runners}):
        runs = [{**identity, "seed": seed} for seed in seeds]
        lines = journal.once_each(runs, measure, together=config.why_no_population() is None)
    passed = [line for line in lines if line["reached"]]
    reached = ", ".join(f"{line['env_steps']:,}" for line in passed)
    print(
        f"{script.stem}: {len(passed)} of {len(seeds)} seeds reach {stop[RETURN]:g} after {reached or 'no'} env steps"
    )
    return len(passed) >= len(seeds) - len(seeds) // 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="+", type=Path, metavar="SCRIPT", help="a file of RLlib's repository")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--options", default="", help="command line of the scripts, such as --num-agents=3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append every run to FILE; skip those that it has")
    parser.add_argument("--checkpoints", type=Path, metavar="DIR", help="keep files of runs in DIR")
    args = parser.parse_args(arguments)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    journal = Journal(args.json, harness.commit())
    results = [run_script(path, seeds, args.options.split(), journal, args.checkpoints) for path in args.scripts]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
