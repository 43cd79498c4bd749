"""Training on a Ray cluster of several nodes, one of which is killed."""

from __future__ import annotations

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]


def test_training_survives_a_lost_node_and_uses_a_new_one():
    """PPO, in a cluster of four nodes on this machine. Placement and the account of env steps are checked, too."""
    command = [sys.executable, "-m", "bench.cluster", "--algorithms", "PPO", "--seconds", "1", "--no-journal"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "the new node was used" in done.stdout and "MISSED" not in done.stdout
