"""IMPALA and APPO on EnvRunner actors: learners learn while runners sample, and every step is accounted for."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxrl_stack.algorithms.appo import APPOConfig
from jaxrl_stack.algorithms.impala import IMPALAConfig
from jaxrl_stack.connectors.connector_v2 import ConnectorV2
from jaxrl_stack.connectors.env_to_module import MeanStdFilter
from jaxrl_stack.core import DEFAULT_MODULE_ID
from jaxrl_stack.examples.algorithms.classes.appo_w_shared_data_actor import APPOWithSharedDataActor
from jaxrl_stack.execution.asynchronous import AsynchronousStep
from jaxrl_stack.execution.sample_reuse import SampleReuseStep
from tests.interrupted import interrupted
from tests.pickled_by_value import pickled_by_value

NUM_STEPS, NUM_ENVS = 8, 4
BATCH = 2 * NUM_STEPS * NUM_ENVS


def config(config_class=IMPALAConfig, *, num_runners=2, **learners):
    return (
        config_class()
        .environment("CartPole-v1")
        .env_runners(
            num_env_runners=num_runners,
            num_envs_per_env_runner=NUM_ENVS,
            rollout_fragment_length=NUM_STEPS,
            num_cpus_per_env_runner=0.5,
        )
        .training(train_batch_size_per_learner=BATCH)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(**learners)
        .reporting(min_time_s_per_iteration=0.0, min_train_timesteps_per_iteration=4 * BATCH)
        .debugging(seed=1)
    )


def assert_all_steps_are_accounted_for(algo, result):
    fates = algo.driver.step.ledger.num_env_steps
    on_their_way = algo.driver.step.num_env_steps_on_their_way()
    assert result["num_env_steps_sampled_lifetime"] == sum(fates.values()) + on_their_way
    assert result["num_env_steps_in_flight"] == on_their_way
    assert result["num_env_steps_dropped_lifetime"] == fates["dropped"]
    assert result["num_env_steps_lost_lifetime"] == fates["lost"]


def weights_of(algo):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(algo.get_weights())])


def versions_of(algo):
    """Numbers of the weights that the runners act with."""
    return algo.env_runner_group.foreach_env_runner(lambda runner: runner.weights_seq_no, local_env_runner=False)


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize(
    ("config_class", "learners", "uses_server"),
    [(IMPALAConfig, {}, False), (IMPALAConfig, {"num_learners": 1, "num_aggregator_actors_per_learner": 1}, True)],
)
def test_runners_sample_while_learners_learn(config_class, learners, uses_server):
    asked = config(config_class, **learners).env_runners(use_env_runner_state_server=uses_server)
    algo = asked.env_runners(env_to_module_connector=lambda *_: MeanStdFilter()).build_algo()
    assert isinstance(algo.driver.step, AsynchronousStep)
    before = weights_of(algo)
    for _ in range(2):
        result = algo.train()
        assert_all_steps_are_accounted_for(algo, result)
    # Connectors count every observation once.
    (statistics,) = algo.driver.env_to_module_state()["MeanStdFilter"].values()
    assert int(statistics["base"]["obs"]["count"][1]) == result["num_env_steps_sampled_lifetime"]
    assert result["learners"][DEFAULT_MODULE_ID]["entropy"] > 0
    assert np.abs(weights_of(algo) - before).max() > 0
    assert algo.driver.num_updates >= 8
    assert result["num_weight_broadcasts"] > 0
    lag = result["learners"]["__all_modules__"]["sampler_policy_lag_mean"]
    assert 0 <= lag <= 10
    # The runners act with weights that the learner has made since.
    for _ in range(50):
        versions = versions_of(algo)
        if min(versions) > 0:
            break
        algo.train()
    assert 0 < min(versions) <= max(versions) <= algo.driver.num_updates
    if learners.get("num_aggregator_actors_per_learner"):
        assert result["aggregator_actors"]["num_env_steps_aggregated_lifetime"] >= 4 * BATCH
    algo.stop()


@pytest.mark.usefixtures("fake_ray")
@pytest.mark.parametrize("left_out", ["_env_runners_only", "_skip_learners"])
def test_parts_of_the_pipeline_run_by_themselves(left_out):
    asked = config(num_runners=1).debugging(**{left_out: True})
    asked.reporting(min_train_timesteps_per_iteration=0, min_sample_timesteps_per_iteration=4 * BATCH)
    algo = asked.build_algo()
    before = weights_of(algo)
    result = algo.train()
    assert_all_steps_are_accounted_for(algo, result)
    np.testing.assert_array_equal(weights_of(algo), before)
    aggregation = algo.driver.step.aggregation
    assert (aggregation.num_batches_in > 0) == (left_out == "_skip_learners")
    # Nothing piles up: runners are never held up by what waits.
    assert result["num_env_steps_dropped_lifetime"] >= 3 * BATCH
    algo.stop()


@pytest.fixture
def evaluated(fake_ray):
    """An algorithm that is evaluated beside training, with an actor for each."""
    asked = config(num_runners=1).evaluation(
        evaluation_interval=1, evaluation_parallel_to_training=True, evaluation_num_env_runners=1, evaluation_duration=2
    )
    algo = asked.build_algo()
    yield algo
    algo.stop()


def test_a_run_goes_on_from_a_checkpoint_without_what_was_on_its_way(evaluated, tmp_path):
    algo = evaluated
    result = algo.train()
    path = algo.save_to_path(tmp_path)
    saved = weights_of(algo)
    on_their_way = result["num_env_steps_in_flight"]
    algo.train()
    algo.restore_from_path(path)
    np.testing.assert_array_equal(weights_of(algo), saved)
    fates = algo.driver.step.ledger.num_env_steps
    assert sum(fates.values()) == result["num_env_steps_sampled_lifetime"] == algo.driver.num_env_steps
    assert fates["lost"] == on_their_way
    assert_all_steps_are_accounted_for(algo, algo.train())


@pytest.mark.parametrize("learners", [{}, {"num_learners": 1, "num_aggregator_actors_per_learner": 1}])
def test_training_survives_whoever_is_killed(learners, ray_session):
    asked = config(**learners).fault_tolerance(restart_failed_env_runners=True, env_runner_health_probe_timeout_s=30)
    algo = asked.env_runners(use_env_runner_state_server=bool(learners)).build_algo()
    algo.train()
    pids = algo.env_runner_group.foreach_env_runner(lambda _: os.getpid(), local_env_runner=False)
    os.kill(pids[0], signal.SIGKILL)
    for actor in algo.driver.step.aggregation.actors().values():
        ray_session.kill(actor, no_restart=False)
    if learners:
        algo.learner_group.foreach_learner(lambda _: os.kill(os.getpid(), signal.SIGKILL), timeout_seconds=0.0)
    until = time.monotonic() + 60
    while True:
        result = algo.train()
        assert_all_steps_are_accounted_for(algo, result)
        is_back = algo.env_runner_group.num_healthy_remote_env_runners() == 2
        if is_back and result["fault_tolerance"]["num_remote_worker_restarts"] >= 1 and min(versions_of(algo)) > 0:
            break
        assert time.monotonic() < until
    if learners:
        assert algo.learner_group.get_stats()["num_learner_restarts"] == 1
    algo.stop()


@pytest.mark.usefixtures("fake_ray")
def test_a_learner_at_work_is_not_asked_for_arrays_that_its_update_takes_over():
    asked = []

    class AtWork(IMPALAConfig().get_default_learner_class()):
        runs = False

        def update_block(self, *args, **kwargs):
            self.runs = True
            try:
                time.sleep(0.02)
                return super().update_block(*args, **kwargs)
            finally:
                self.runs = False

        @property
        def num_updates(self):
            if self.runs and threading.current_thread() is threading.main_thread():
                asked.append(self.runs)
            return super().num_updates

    algo = config(num_runners=1).learners(learner_class=AtWork).build_algo()
    for _ in range(2):
        result = algo.train()
    assert result["num_weight_broadcasts"] > 0 and not asked
    # Ctrl-C comes at other moments, and each step has a fate all the same.
    came = [interrupted(algo.train, "execution/asynchronous.py", number) for number in range(2, 34, 4)]
    assert all(came)
    assert_all_steps_are_accounted_for(algo, algo.train())
    algo.stop()


@pytest.mark.usefixtures("fake_ray")
def test_what_an_update_raises_ends_training():
    class Broken(IMPALAConfig().get_default_learner_class()):
        def after_gradient_based_update(self, *, timesteps):
            raise RuntimeError("this learner is broken")

    algo = config(num_runners=1).learners(learner_class=Broken).build_algo()
    with pytest.raises(RuntimeError, match="this learner is broken"):
        algo.train()
    algo.stop()


@pytest.mark.usefixtures("ray_session")
def test_the_page_runs_as_it_is_written():
    page = (Path(__file__).parents[2] / "docs/asynchronous.md").read_text()
    code = "\n".join(re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE))
    assert "min_time_s_per_iteration=3" in code
    shorter = "min_time_s_per_iteration=0, min_train_timesteps_per_iteration=1"
    names: dict = {}
    exec(compile(code.replace("min_time_s_per_iteration=3", shorter), "asynchronous.md", "exec"), names)
    assert names["result"]["num_env_steps_used_lifetime"] > 0
    names["config"].validate()


def test_without_actors_the_same_seed_gives_the_same_bits():
    runs = []
    for _ in range(2):
        algo = config(APPOConfig, num_runners=0).build_algo()
        assert isinstance(algo.driver.step, SampleReuseStep)
        algo.train()
        runs.append(weights_of(algo))
        algo.stop()
    np.testing.assert_array_equal(*runs)


def test_an_evaluation_beside_training_is_of_the_weights_before_it(evaluated):
    result = evaluated.train()
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert_all_steps_are_accounted_for(evaluated, result)


class FromActor(ConnectorV2):
    """Counts the episodes that it sees in the actor that all share."""

    def __call__(self, *, episodes, batch, **kwargs):
        self._shared_data_actor.put.remote("episodes", [len(episode) for episode in episodes])
        return batch


def test_runners_learners_and_their_connectors_share_an_actor_of_the_algorithm(ray_session):
    with pickled_by_value(ray_session, sys.modules[__name__]):
        asked = config(APPOConfig, learner_connector=lambda *_: FromActor(), num_aggregator_actors_per_learner=1)
        asked.algo_class = APPOWithSharedDataActor
        algo = asked.reporting(min_train_timesteps_per_iteration=1).build_algo()
        assert_all_steps_are_accounted_for(algo, algo.train())
        runners = algo.env_runner_group.foreach_env_runner(
            lambda runner: runner._shared_data_actor, local_env_runner=False
        )
        assert [runner._actor_id for runner in runners] == [algo.shared_data_actor._actor_id] * 2
        # Learner connectors on the host get whole chunks, joined by an aggregator.
        lengths = ray_session.get(algo.shared_data_actor.get.remote("episodes"))
        assert sum(lengths) >= BATCH
        assert algo.get_state()["shared_data_actor"] == {"episodes": lengths}
        algo.stop()
