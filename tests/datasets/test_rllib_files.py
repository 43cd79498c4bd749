"""Files in RLlib's own form, which RLlib reads (`reference/check_rllib_reads.py`), and which are read back here."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow.parquet as pq
import pytest

from jaxrl_stack.datasets.opening import open_dataset
from jaxrl_stack.datasets.read_options import ReadOptions
from jaxrl_stack.datasets.rllib_writer import RLlibWriter
from jaxrl_stack.datasets.steps import Steps
from tests.datasets.recorded import INFO, assert_same, recorded

PLAIN = dataclasses.replace(INFO, observation_space=INFO.observation_space["position"])


def plain(lengths, **kwargs):
    """Steps without structures."""
    steps = recorded(lengths, **kwargs)
    columns = {name: own for name, own in steps.columns.items() if name != "mask"}
    columns["obs"] = columns["obs"]["position"]
    return Steps(columns, steps.is_final, steps.episode, steps.t, steps.episode_ids)


def write(folder, *parts, **kwargs):
    with RLlibWriter(folder, "run", about=PLAIN, **kwargs) as writer:
        for part in parts:
            writer.add(part)
    return writer.files


@pytest.mark.parametrize(
    "form", [{"episodes": True}, {"episodes": False}, {"episodes": False, "compress_columns": ["obs", "actions"]}]
)
def test_what_is_written_is_read(tmp_path, form):
    parts = [plain([4, 1, 9], first=3 * i, seed=i) for i in range(3)]
    write(tmp_path, *parts, **form)
    found = open_dataset(tmp_path, options=ReadOptions()).read_all()
    assert_same(found, Steps.concatenated(parts))


@pytest.mark.parametrize("episodes", [True, False])
def test_files_have_so_many_rows(tmp_path, episodes):
    files = write(tmp_path, *(plain([3] * 4, first=4 * i) for i in range(4)), episodes=episodes, max_rows_per_file=5)
    rows = [pq.read_metadata(file).num_rows for file in files]
    total = 16 if episodes else 48
    assert rows == [5] * (total // 5) + [total % 5] * (total % 5 > 0)
    assert len(list(tmp_path.iterdir())) == len(files)


def test_episodes_hold_structures_and_tables_do_not(tmp_path):
    steps = recorded([2])
    with RLlibWriter(tmp_path, "run", about=INFO) as writer:
        writer.add(steps.map_columns(lambda name, own: own[0] if name == "mask" else own))
    found = open_dataset(tmp_path, options=ReadOptions()).read_all()
    np.testing.assert_array_equal(found.columns["obs"]["pixels"], steps.columns["obs"]["pixels"])
    with pytest.raises(TypeError, match="obs is nested"):
        RLlibWriter(tmp_path, "run", about=INFO, episodes=False).add(steps)
