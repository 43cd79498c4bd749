"""Write `rllib_data/`: files that RLlib records, in its three forms, and what is in them.

Needs an environment of its own with `ray[rllib]==2.60.0`, torch (CPU), lz4, msgpack and msgpack-numpy (which RLlib
imports without asking for it); imports nothing of this project:

    python tests/reference/make_rllib_data.py --out tests/reference/rllib_data

Folders are `rows` (a file per step of the shorter of two episodes), `packed` (the same with compressed observations)
and `episodes` (a file per episode). `expected.json` has, for each of them, the episodes by their ids.
"""
# RLlib and torch live in an environment of their own, without this project's dependencies.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.offline.offline_env_runner import OfflineSingleAgentEnvRunner

FORMS: dict[str, dict[str, Any]] = {
    "rows": {"output_write_episodes": False, "output_compress_columns": []},
    "packed": {"output_write_episodes": False, "output_compress_columns": ["obs", "actions"]},
    "episodes": {"output_write_episodes": True},
}


def record(form: str, folder: str) -> list[Any]:
    """One round of sampling; returns what was sampled."""
    config = (
        PPOConfig()
        .environment("CartPole-v1")
        .env_runners(num_env_runners=0, batch_mode="complete_episodes")
        .offline_data(output=folder, **FORMS[form])
        .debugging(seed=3)
    )
    runner = OfflineSingleAgentEnvRunner(config=config)
    samples = runner.sample(num_episodes=2)
    runner.stop()
    return samples


def described(episode: Any) -> dict[str, Any]:
    return {
        "observations": [obs.tolist() for obs in episode.get_observations()],
        "actions": [int(action) for action in episode.get_actions()],
        "rewards": [float(reward) for reward in episode.get_rewards()],
        "action_logp": [float(x) for x in episode.get_extra_model_outputs("action_logp")],
        "terminated": bool(episode.is_terminated),
        "truncated": bool(episode.is_truncated),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    ray.init(num_cpus=2, include_dashboard=False)
    expected = {}
    for form in FORMS:
        target = out / form
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as folder:
            samples = record(form, folder)
            # Names have a random part; the order of the rows is that of the numbers behind it.
            files = sorted(Path(folder).rglob("*.parquet"))
            if form != "episodes":
                samples = [min(samples, key=len)]
                files = [file for file in files if pq.read_table(file)["eps_id"][0].as_py() == samples[0].id_]
            for number, file in enumerate(files):
                shutil.copy(file, target / f"run_{number:06d}.parquet")
        expected[form] = {episode.id_: described(episode) for episode in samples}
    (out / "expected.json").write_text(json.dumps(expected) + "\n")
    ray.shutdown()


if __name__ == "__main__":
    main()
