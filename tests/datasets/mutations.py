"""Files of every format that are damaged at random: reading one gives rows, or one error that names it.

`test_hostile_data.py` reads some in its own process; all of them are read by

    PYTHONPATH=. python -m tests.datasets.mutations --count 2000

which says how each format fared, and how much memory it took.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import h5py
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jaxrl_stack.datasets.bad_data import BadDataError
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.rllib_writer import RLlibWriter
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from tests.datasets.recorded import INFO, recorded

FORMATS = ("own", "rows", "packed", "episodes", "batches", "npz", "d4rl", "minari")


def written(folder: Path, form: str, episodes: int = 12) -> Path:
    """A file of a format."""
    steps = recorded(np.arange(episodes) % 12 + 3)
    if form == "own":
        with StepWriter(folder, form, about=INFO) as writer:
            writer.add(steps)
        return Path(writer.files[0])
    columns = {name: own for name, own in steps.columns.items() if name != "mask"}
    columns["obs"] = columns["obs"]["position"]
    plain = Steps(columns, steps.is_final, steps.episode, steps.t, steps.episode_ids)
    if form in ("rows", "packed", "episodes"):
        packs = ["obs"] if form == "packed" else []
        about = DatasetInfo(INFO.observation_space["position"], INFO.action_space)
        with RLlibWriter(folder, form, about=about, episodes=form == "episodes", compress_columns=packs) as writer:
            writer.add(plain)
        return Path(writer.files[0])
    path = folder / f"{form}.{'npz' if form == 'npz' else 'parquet' if form == 'batches' else 'hdf5'}"
    if form == "batches":
        pieces = plain.piece_starts()
        cells = {name: [] for name in columns}
        for start, stop in itertools.pairwise(pieces):
            for name, cell in cells.items():
                cell.append(np.asarray(columns[name])[start : stop - 1].tolist())
        pq.write_table(pa.table(cells), path)
    elif form == "minari":
        with h5py.File(path, "w") as file:
            for number, (start, stop) in enumerate(
                zip(plain.piece_starts()[:-1], plain.piece_starts()[1:], strict=True)
            ):
                group = file.create_group(f"episode_{number}")
                group["observations"] = columns["obs"][start:stop]
                own = {"terminations": "terminateds", "truncations": "truncateds", "actions": "actions"}
                for name, source in {**own, "rewards": "rewards"}.items():
                    group.create_dataset(name, data=columns[source][start : stop - 1], compression="gzip")
    else:
        keep = ~plain.is_final
        arrays = {name: np.asarray(own)[keep] for name, own in columns.items()}
        names = {"obs": "observations", "terminateds": "terminals", "truncateds": "timeouts"}
        arrays = {names.get(name, name): own for name, own in arrays.items()}
        if form == "npz":
            np.savez_compressed(path, **arrays)
        else:
            with h5py.File(path, "w") as file:
                for name, own in arrays.items():
                    file[name] = own
    return path


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """A file with some bytes changed, cut off, doubled or overwritten."""
    data = bytearray(content)
    size = len(data)
    at = int(rng.integers(size))
    # Half of them near the end or the beginning, where formats say what they hold.
    if rng.random() < 0.5:
        at = int(size - 1 - rng.integers(min(size, 600))) if rng.random() < 0.5 else int(rng.integers(min(size, 600)))
    length = int(rng.integers(1, 64))
    match int(rng.integers(6)):
        case 0:
            del data[at:]
        case 1:
            del data[at : at + length]
        case 2:
            data[at:at] = data[at : at + length]
        case 3:
            data[at : at + length] = bytes([int(rng.integers(256))]) * len(data[at : at + length])
        case 4:
            data[at] ^= 1 << int(rng.integers(8))
        case _:
            for place in rng.integers(size, size=int(rng.integers(1, 9))).tolist():
                data[place] = int(rng.integers(256))
    return bytes(data)


def outcome(path: Path, form: str) -> str:
    """ "rows", or "error" if it is the one that names the file; raises any other one."""
    try:
        steps = open_dataset(str(path), options=ReadOptions(sample_batches=form == "batches")).read_all()
    except BadDataError as error:
        return "error" if path.name in str(error) else f"an error without the file: {error}"
    assert steps.is_final[-1]
    leaves = jax.tree.leaves(dict(steps.columns))
    assert all(len(own) == steps.num_rows for own in (steps.episode, steps.t, *leaves))
    return "rows"


def outcomes(form: str, folder: Path, count: int, seed: int = 0, episodes: int = 12) -> Iterator[str]:
    """What becomes of so many damaged files of a format."""
    path = written(folder, form, episodes)
    content = path.read_bytes()
    assert outcome(path, form) == "rows"
    rng = np.random.default_rng(seed)
    for _ in range(count):
        path.write_bytes(damaged(content, rng))
        yield outcome(path, form)


def peak() -> int:
    """Most bytes that this process had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="damaged files of all formats together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=FORMATS, help="one format, in this process")
    parser.add_argument("--episodes", type=int, default=12, help="of a file")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if args.form is not None:
            counts: collections.Counter[str] = collections.Counter()
            before = peak()
            for found in outcomes(args.form, Path(folder), args.count, args.seed, args.episodes):
                counts[found] += 1
                if counts.total() == 1:  # what was imported, and what an intact file took, counts as there
                    before = peak()
            size = sum(file.stat().st_size for file in Path(folder).iterdir())
            print(json.dumps({**counts, "more MiB": (peak() - before) / 2**20, "file MiB": size / 2**20}))
            return
    for form in FORMATS:
        command = [sys.executable, "-m", "tests.datasets.mutations", "--form", form, "--seed", str(args.seed)]
        command += ["--episodes", str(args.episodes)]
        own = subprocess.run([*command, "--count", str(-(-args.count // len(FORMATS)))], capture_output=True, text=True)
        print(form, own.stdout.strip() or f"died of {own.returncode}: {own.stderr[-2000:]}", flush=True)


if __name__ == "__main__":
    main()
