"""From files to a policy that acts: recorded steps are written, opened by their path, and trained on."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.ppo import PPO, PPOConfig
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.learner.learner import Learner
from jaxrl_stack.datasets.dataset_info import DatasetInfo
from jaxrl_stack.datasets.step_writer import StepWriter
from jaxrl_stack.datasets.steps import Steps
from jaxrl_stack.execution.offline_step import OfflineStep


class Cloning(Learner):
    def compute_loss_for_module(self, *, module_id, config, batch, fwd_out):
        logp = self.module[module_id].get_train_action_dist_cls().from_logits(fwd_out[Columns.ACTION_DIST_INPUTS])
        return -logp.logp(batch[Columns.ACTIONS]).mean()


class CloningAlgorithm(PPO):
    training_step_class = OfflineStep


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of steps in which the pole of CartPole is followed, of 400 steps each."""
    found = []
    for number in range(2):
        is_final = np.arange(408) % 51 == 50
        obs = np.random.default_rng(number).normal(size=(408, 4)).astype(np.float32) * 0.5
        columns = {
            Columns.OBS: obs,
            Columns.ACTIONS: ((obs[:, 2] + obs[:, 3] > 0) & ~is_final).astype(np.int32),
            Columns.REWARDS: (~is_final).astype(np.float32),
            Columns.TERMINATEDS: np.roll(is_final, -1),
            Columns.TRUNCATEDS: np.zeros(408, bool),
        }
        numbers = np.arange(408)
        ids = [f"{number}-{i}" for i in range(8)]
        steps = Steps(columns, is_final, (numbers // 51).astype(np.int32), (numbers % 51).astype(np.int32), ids)
        folder = tmp_path_factory.mktemp(f"data{number}")
        with StepWriter(folder, "run", about=DatasetInfo(), max_rows_per_file=102) as writer:
            writer.add(steps)
        found.append(str(folder))
    return found


def config(input_, **data):
    return (
        PPOConfig(algo_class=CloningAlgorithm)
        .environment("CartPole-v1")
        .learners(learner_class=Cloning, add_default_connectors_to_learner_pipeline=False)
        .training(train_batch_size_per_learner=64, minibatch_size=None, num_epochs=1, lr=0.02)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .evaluation(evaluation_duration=5, evaluation_config={"explore": False})
        .offline_data(input_=input_, **data)
        .debugging(seed=1)
    )


@pytest.mark.parametrize("budget", [None, 8_000], ids=["resident", "streamed"])
def test_what_is_in_files_is_learned(folders, budget, tmp_path, caplog):
    asked = config(folders, max_resident_bytes=budget)
    algo = asked.debugging(log_level="INFO").build_algo()
    path = "resident" if budget is None else "streamed"
    assert f"is {path}: max_resident_bytes is {budget or ''}" in caplog.text
    for _ in range(12):
        result = algo.train()
    # 800 steps are 13 minibatches of 64, of which the last one begins the next pass.
    assert algo.driver.num_updates in range(150, 157)
    assert result["num_env_steps_sampled_lifetime"] == 64 * algo.driver.num_updates
    assert algo.evaluate()["env_runners"]["episode_return_mean"] > 100
    assert algo.get_policy().compute_single_action(np.array([0, 0, 0.5, 0.5], np.float32))[0] == 1
    memory = algo.memory_estimate()
    assert memory["train_batch"]["num_rows"] == 64 and ("replay" in memory) == (budget is None)
    restored = CloningAlgorithm.from_checkpoint(algo.save_to_path(tmp_path / "saved"), config=asked)
    for own in (algo, restored):
        own.train()
    jax.tree.map(np.testing.assert_array_equal, restored.get_weights(), algo.get_weights())
    for own in (algo, restored):
        own.stop()


def test_inputs_with_weights(folders):
    algo = config(dict(zip(folders, (0.2, 0.8), strict=True))).build_algo()
    algo.train()
    passes = np.asarray(algo.driver.step.kept.value.passes[0])
    assert passes[1] >= 1 and passes[0] == 0  # 832 rows: about 166 and 666 of 400 each
    algo.stop()
