"""Evaluation on recorded data: losses with the Learner's state, weighted returns, runners in process."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import jax
import numpy as np
import pytest
from offline_cases import ACTIONS, OBSERVATIONS, recorded, write

from jaxrl_stack.algorithms.bc import BCConfig
from jaxrl_stack.algorithms.marwil import MARWILConfig
from jaxrl_stack.algorithms.ppo import PPOConfig
from jaxrl_stack.callbacks.callbacks import RLlibCallback
from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.core.experience import Experience
from jaxrl_stack.core.rl_module.rl_module import MultiRLModule
from jaxrl_stack.offline.offline_evaluation_runner import TOTAL_EVAL_LOSS_KEY, OfflineEvaluationRunner
from jaxrl_stack.offline.offline_evaluation_runner_group import OfflineEvaluationRunnerGroup
from jaxrl_stack.offline.offline_policy_evaluation_runner import OfflinePolicyEvaluationRunner
from jaxrl_stack.policy.estimation import estimate


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Paths of recorded steps to train on, and of others."""
    return [write(tmp_path_factory.mktemp("data"), recorded(seed)) for seed in range(2)]


def config(folder, config_class=BCConfig, **evaluation):
    return (
        config_class()
        .environment(observation_space=OBSERVATIONS, action_space=ACTIONS)
        .offline_data(input_=[folder], dataset_num_iters_per_learner=2)
        .training(train_batch_size_per_learner=32, lr=0.01)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .evaluation(**{"offline_eval_batch_size_per_runner": 40, **evaluation})
        .debugging(seed=0)
    )


@pytest.fixture
def build():
    built = []

    def make(*args, **kwargs):
        built.append(config(*args, **kwargs).build_algo())
        return built[-1]

    yield make
    for algo in built:
        algo.stop()


class Told(RLlibCallback):
    events: list[str] = []

    def on_evaluate_offline_start(self, *, algorithm, metrics_logger=None, **kwargs):
        self.events.append("start")

    def on_evaluate_offline_end(self, *, algorithm, metrics_logger=None, evaluation_metrics, **kwargs):
        self.events.append("end")
        evaluation_metrics["mine"] = 5


def rows(folder, algo):
    """All 80 steps of the data, as MARWIL's loss takes them; the targets are returns of whole episodes."""
    steps = algo.offline_data.read(
        algo.offline_data.data.pieces[0], (Columns.OBS, Columns.ACTIONS, Columns.REWARDS), (OBSERVATIONS, ACTIONS)
    )
    is_step = ~steps.is_final
    gamma, targets = 0.99, np.zeros(steps.num_rows, np.float32)
    for row in range(steps.num_rows - 2, -1, -1):
        targets[row] = steps.columns[Columns.REWARDS][row] + gamma * (
            0 if steps.is_final[row + 1] else targets[row + 1]
        )
    columns = {name: steps.columns[name][is_step] for name in (Columns.OBS, Columns.ACTIONS)}
    return Experience.of_rows({DEFAULT_MODULE_ID: {**columns, Columns.VALUE_TARGETS: targets[is_step]}})


def test_marwils_loss_has_its_learners_state_and_value_targets(folders, build):
    algo = build(folders[0], MARWILConfig, offline_evaluation_interval=1, offline_eval_batch_size_per_runner=80)
    result = algo.train()
    found = result["evaluation"]["offline_eval_runners"]
    expected = algo.learner.evaluate_rows(rows(folders[0], algo))[DEFAULT_MODULE_ID]
    own = found[DEFAULT_MODULE_ID]
    for name in (TOTAL_EVAL_LOSS_KEY, "moving_avg_sqd_adv_norm", "policy_loss", "vf_loss"):
        assert own[name] == pytest.approx(expected[name], rel=1e-4)
    assert own["num_module_steps_sampled"] == 80 and own["weights_seq_no"] == 2
    assert found[ALL_MODULES]["dataset_num_iters_evaluated"] == 1
    assert found[ALL_MODULES]["num_env_steps_sampled"] == 80
    again = algo.train()["evaluation"]["offline_eval_runners"]
    assert again[ALL_MODULES]["num_env_steps_sampled_lifetime"] == 160
    # The targets of then follow from the weights of then.
    assert again[DEFAULT_MODULE_ID][TOTAL_EVAL_LOSS_KEY] == pytest.approx(
        algo.learner.evaluate_rows(rows(folders[0], algo))[DEFAULT_MODULE_ID][TOTAL_EVAL_LOSS_KEY], rel=1e-4
    )


def test_training_is_what_it_is_without(folders, build):
    evaluated, alone = build(folders[0], offline_evaluation_interval=1), build(folders[0])
    for algo in (evaluated, alone):
        algo.train()
    assert "evaluation" not in alone.train()
    evaluated.evaluate_offline()
    evaluated.train()
    jax.tree.map(np.testing.assert_array_equal, evaluated.get_weights(), alone.get_weights())


def constant(self, *, module_id, config, batch, fwd_out):
    self.metrics.log_value((module_id, "rows"), float(len(batch[Columns.ACTIONS])))
    return 0.0 * fwd_out[Columns.ACTION_DIST_INPUTS].sum() + 7.0


def test_a_loss_of_ones_own_takes_the_place_of_the_learners(folders, build):
    own = build(
        folders[0],
        offline_evaluation_interval=1,
        offline_loss_for_module_fn=constant,
        offline_evaluation_duration=3,
        dataset_num_iters_per_offline_eval_runner=2,
    ).train()["evaluation"]["offline_eval_runners"]
    assert own[DEFAULT_MODULE_ID][TOTAL_EVAL_LOSS_KEY] == 7.0
    assert own[DEFAULT_MODULE_ID]["rows"] == 40
    assert own[ALL_MODULES]["dataset_num_iters_evaluated"] == 6


def test_callbacks_are_told_and_may_edit(folders, build):
    Told.events.clear()
    algo = config(folders[0], offline_evaluation_interval=2).callbacks(Told).build_algo()
    assert "evaluation" not in algo.train()
    assert algo.train()["evaluation"]["mine"] == 5
    assert Told.events == ["start", "end"]
    # It stays until the next one.
    assert algo.train()["evaluation"]["mine"] == 5
    algo.stop()


@pytest.mark.parametrize("kind", ["is", "pdis"])
def test_weighted_returns_are_those_of_the_estimators(folders, build, kind):
    algo = build(
        folders[0],
        offline_evaluation_interval=1,
        offline_evaluation_type=kind,
        offline_eval_batch_size_per_runner=16,
        off_policy_estimation_methods={"mine": {"type": "wis", "num_resamples": 20}, "pdis": {"num_resamples": 20}},
        evaluation_config={"input_": [folders[1]]},
    )
    found = algo.train()["evaluation"]
    module = algo.get_module()
    expected = estimate(module, folders[1], methods=("is", "pdis", "wis"), gamma=0.99, num_resamples=20)
    own = found["offline_eval_runners"]
    assert own["episode_return_mean"] == pytest.approx(expected[kind].value, rel=1e-4)
    assert own["num_episodes"] == 16 and own["episode_len_mean"] == 5.0
    assert own["episode_return_min"] < own["episode_return_mean"] < own["episode_return_max"]
    assert found["off_policy_estimator"]["mine"]["v_target"] == pytest.approx(expected["wis"].value, rel=1e-4)
    assert found["off_policy_estimator"]["pdis"]["v_target"] == pytest.approx(expected["pdis"].value, rel=1e-4)
    assert isinstance(algo.offline_eval_runner_group.local_runner, OfflinePolicyEvaluationRunner)


def test_held_out_rows_are_normalised_as_training_ones(folders, build):
    algo = (
        config(folders[0], offline_loss_for_module_fn=mean_of_observations, offline_eval_batch_size_per_runner=80)
        .offline_data(normalize_observations=True)
        .evaluation(evaluation_config={"input_": [folders[1]]})
        .build_algo()
    )
    own = algo.evaluate_offline()["offline_eval_runners"][DEFAULT_MODULE_ID]["mean"]
    training, held_out = recorded(0), recorded(1)
    every = training.columns[Columns.OBS][:, 0]
    steps = held_out.columns[Columns.OBS][~held_out.is_final, 0]
    assert own == pytest.approx((steps.mean() - every.mean()) / every.std(), rel=0.02)
    algo.stop()


def mean_of_observations(self, *, module_id, config, batch, fwd_out):
    self.metrics.log_value((module_id, "mean"), batch[Columns.OBS][:, 0].mean())
    return 0.0 * fwd_out[Columns.ACTION_DIST_INPUTS].sum()


# -------------------------------------------------------------------------------------------- runners by themselves


def test_a_runner_alone_takes_rows_from_an_iterator(folders, build):
    algo = build(folders[0])
    runner = OfflineEvaluationRunner(config=algo.config)
    assert isinstance(runner.module, MultiRLModule) and callable(runner._loss_for_module_fn)
    (rows,) = algo.offline_data.sample(num_samples=40, return_iterator=True, num_shards=0)
    runner.set_dataset_iterator(iterator=rows)
    runner.set_state({"rl_module": algo.learner.module.get_state(), "weights_seq_no": 3})
    metrics = runner.run()
    assert metrics[DEFAULT_MODULE_ID][TOTAL_EVAL_LOSS_KEY].peek() > 0
    assert metrics["weights_seq_no"].peek() == 3
    with pytest.raises(ValueError, match=r"run\(explore=True, train=True\)"):
        runner.run(explore=True)


def test_a_group_in_this_process_has_one_runner(folders):
    own = config(folders[0])
    group = OfflineEvaluationRunnerGroup(own, local_runner=True)
    assert group.num_runners == group.num_remote_runners == 0
    (metrics,) = group.foreach_runner("run")
    assert metrics[ALL_MODULES]["num_env_steps_sampled"].peek() == 40
    group.stop()
    with pytest.raises(ValueError, match="set num_offline_eval_runners=0, or leave local_runner out"):
        OfflineEvaluationRunnerGroup(own.evaluation(num_offline_eval_runners=1), local_runner=True)


# ------------------------------------------------------------------------------------------------------------- refusals


class Other:
    pass


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"offline_evaluation_duration": "auto"}, "needs offline_evaluation_parallel_to_training=True"),
        ({"offline_evaluation_parallel_to_training": True}, "needs actors: set num_offline_eval_runners"),
        ({"offline_eval_rl_module_inference_only": True}, "offline_evaluation_type='eval_loss' needs complete modules"),
        (
            {"offline_evaluation_type": "is", "offline_loss_for_module_fn": constant},
            "needs offline_evaluation_type='eval_loss'",
        ),
        ({"off_policy_estimation_methods": {"is": {}}}, "needs offline evaluations. Set .*offline_evaluation_interval"),
        ({"off_policy_estimation_methods": {"mine": {}}}, "the type of 'mine' is one of"),
        ({"offline_eval_runner_class": Other}, "a subclass of OfflineEvaluationRunner"),
        ({"offline_evaluation_type": "loss"}, "'eval_loss', 'is'"),
    ],
)
def test_settings_that_do_not_fit_are_named(folders, settings, says):
    with pytest.raises(ValueError, match=says):
        config(folders[0], **settings).validate()


def test_states_are_sent_as_a_whole(folders, caplog):
    config(folders[0], broadcast_offline_eval_runner_states=True).validate()
    assert "actors get the Learner's whole state" in caplog.text


def test_algorithms_that_sample_have_no_loss_of_recorded_rows(folders):
    algo = (
        PPOConfig()
        .environment("gymnax/CartPole-v1")
        .env_runners(num_envs_per_env_runner=1)
        .training(train_batch_size_per_learner=8, minibatch_size=8, num_epochs=1)
        .rl_module(model_config={"fcnet_hiddens": [8]})
        .learners(num_cpus_per_learner=1)
        .evaluation(evaluation_config={"input_": [folders[0]]})
        .build_algo()
    )
    with pytest.raises(ValueError, match="PPO has no loss on recorded steps"):
        algo.evaluate_offline()
    algo.stop()


def test_greedy_continuous_policies_are_estimated_as_they_draw(tmp_path, caplog):
    steps = recorded(0)
    actions = np.random.default_rng(0).uniform(-1, 1, (steps.num_rows, 1)).astype(np.float32)
    folder = write(tmp_path, dataclasses.replace(steps, columns={**steps.columns, Columns.ACTIONS: actions}))
    own = config(folder, offline_evaluation_type="pdis", evaluation_config={"explore": False})
    own.environment(action_space=gym.spaces.Box(-1.0, 1.0, (1,), np.float32))
    algo = own.build_algo()
    assert np.isfinite(algo.evaluate_offline()["offline_eval_runners"]["episode_return_mean"])
    assert "evaluates the policy that draws its actions" in caplog.text
    algo.stop()
