"""Memory of training on recorded data that is larger than its budget: 2 GiB of rows, 256 MiB, two passes.

Prints one JSON line with the resident set at the start and its peak, and counts how often every row came; a second run
begins in the middle of a pass, from a checkpoint. The bar: peak <= start + 2 x budget, every row once per pass.

    python bench/offline_streaming.py [--gib 2] [--budget-mib 256] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import threading
import time

import gymnasium as gym
import numpy as np

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.offline_step import OfflineStep
from jaxrl_stack.execution.streamed_data import StreamedData

OBS_SIZE, EPISODE = 128, 500
SPACES = gym.spaces.Box(-np.inf, np.inf, (OBS_SIZE,)), gym.spaces.Discrete(2)
BATCH = 8192


class Cloning(Learner):
    """Learner with the loss of behaviour cloning."""

    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        distribution = self.module[module_id].get_train_action_dist_cls()
        return -distribution.from_logits(fwd_out[Columns.ACTION_DIST_INPUTS]).logp(batch[Columns.ACTIONS]).mean()


class CountingStep(OfflineStep):
    """Training step that counts how often each row is in a minibatch; observations begin with the number of the row."""

    def plan(self, driver):
        super().plan(driver)
        assert isinstance(self.source, StreamedData)
        draw, self.counts = self.source.draw, np.zeros(0, np.uint8)

        def counted(kept, state, place):
            kept, state, drawn = draw(kept, state, place)
            numbers = drawn.columns[Columns.OBS][:, :2].astype(np.int64) @ np.array([1 << 16, 1])
            if numbers.max() >= len(self.counts):
                self.counts = np.concatenate([self.counts, np.zeros(numbers.max() + 1 - len(self.counts), np.uint8)])
            np.add.at(self.counts, numbers, 1)
            return kept, state, drawn

        self.source.draw = counted


class Clone(PPO):
    """Algorithm that clones the behaviour of recorded steps."""

    training_step_class = CountingStep


def write(folder: pathlib.Path, num_bytes: int) -> int:
    """Writes the data set; returns its number of steps."""
    rows_at_once = 40 * (EPISODE + 1)
    num_blocks = max(1, round(num_bytes / (4 * OBS_SIZE * rows_at_once)))
    generator = np.random.default_rng(0)
    spaces = dict(zip(("observation_space", "action_space"), SPACES, strict=True))
    number = 0
    with StepWriter(folder, "made", about=DatasetInfo(**spaces), compression="none") as writer:
        for block in range(num_blocks):
            is_final = np.arange(rows_at_once) % (EPISODE + 1) == EPISODE
            obs = generator.random((rows_at_once, OBS_SIZE), np.float32)
            numbers = number + np.cumsum(~is_final) - 1
            obs[:, 0], obs[:, 1] = numbers >> 16, numbers & 0xFFFF
            number += int((~is_final).sum())
            flags = np.zeros(rows_at_once, bool)
            columns = {
                Columns.OBS: obs,
                Columns.ACTIONS: np.zeros(rows_at_once, np.int32),
                Columns.REWARDS: np.zeros(rows_at_once, np.float32),
                Columns.TERMINATEDS: np.roll(is_final, -1),
                Columns.TRUNCATEDS: flags,
            }
            episode = (np.arange(rows_at_once) // (EPISODE + 1)).astype(np.int32)
            t = (np.arange(rows_at_once) % (EPISODE + 1)).astype(np.int32)
            writer.add(Steps(columns, is_final, episode, t, [f"{block}-{i}" for i in range(40)]))
    return number


def resident() -> int:
    """Resident memory of this process, in bytes."""
    fields = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


class Peak(threading.Thread):
    """Thread that records the peak of the resident memory."""

    def __init__(self):
        super().__init__(daemon=True)
        self.peak, self.is_over = 0, False

    def run(self):
        while not self.is_over:
            self.peak = max(self.peak, resident())
            time.sleep(0.02)


def config(folder: pathlib.Path, budget: int) -> PPOConfig:
    """Config of behaviour cloning with a memory budget in bytes."""
    return (
        PPOConfig(algo_class=Clone)
        .environment(observation_space=SPACES[0], action_space=SPACES[1])
        .learners(learner_class=Cloning, add_default_connectors_to_learner_pipeline=False)
        .training(train_batch_size_per_learner=BATCH, minibatch_size=None, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [32]})
        .offline_data(input_=[str(folder)], max_resident_bytes=budget, dataset_num_iters_per_learner=1)
    )


def measure(folder: pathlib.Path, num_steps: int, budget: int) -> dict[str, float]:
    """Trains for two passes over the data; the second one continues from a checkpoint in its middle."""
    algo = config(folder, budget).build_algo()
    step = algo.driver.step
    assert isinstance(step, CountingStep)
    algo.train()
    start = resident()
    watch = Peak()
    watch.start()
    started = time.perf_counter()
    while algo.driver.num_env_steps < num_steps * 3 // 2:
        algo.train()
    counts = step.counts.copy()
    with tempfile.TemporaryDirectory() as saved:
        algo.save_to_path(saved)
        while algo.driver.num_env_steps < num_steps * 7 // 4:
            algo.train()
        algo.restore_from_path(saved)
    step.counts[:] = counts
    while algo.driver.num_env_steps < 2 * num_steps:
        algo.train()
    seconds = time.perf_counter() - started
    watch.is_over = True
    surplus = int(algo.driver.num_env_steps - 2 * num_steps)
    algo.stop()
    of_steps = step.counts[:num_steps].astype(int)
    return {
        "num_steps": num_steps,
        "start_mib": start >> 20,
        "peak_mib": watch.peak >> 20,
        "above_start_in_budgets": (watch.peak - start) / budget,
        "twice": int((of_steps == 2).sum()),
        "other": int((of_steps != 2).sum()),
        "begun_third_pass": surplus,
        "rows_per_second": algo.driver.num_env_steps / seconds,
    }


def main() -> None:
    """Writes the data set, trains on it, and prints the measured numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--budget-mib", type=int, default=256)
    parser.add_argument("--folder", default=None)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        num_steps = write(pathlib.Path(folder), int(asked.gib * 2**30))
        found = measure(pathlib.Path(folder), num_steps, asked.budget_mib << 20)
    print(json.dumps({"bench": "offline_streaming", "gib": asked.gib, "budget_mib": asked.budget_mib, **found}))


if __name__ == "__main__":
    main()
