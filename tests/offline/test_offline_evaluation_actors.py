"""Offline evaluation by actors: parts of the data, losses of actors, beside training."""

from __future__ import annotations

import pytest
from offline_cases import evaluated_by_two_actors, recorded, write

from jaxrl_stack.core import ALL_MODULES, DEFAULT_MODULE_ID
from jaxrl_stack.core.columns import Columns
from jaxrl_stack.offline.offline_evaluation_runner import TOTAL_EVAL_LOSS_KEY
from tests.fake_actors import in_place_of_ray

BACK: list[list[int]] = []
"""Ids of actors that came back."""


@pytest.fixture(scope="module")
def fake():
    with in_place_of_ray() as fake:
        yield fake


@pytest.fixture(scope="module")
def algo(fake, tmp_path_factory):
    def first_observations(self, *, module_id, config, batch, fwd_out):
        self.metrics.log_value((module_id, "first"), batch[Columns.OBS][:, 0].mean())
        return 0.0 * fwd_out[Columns.ACTION_DIST_INPUTS].sum() + 1.0

    folder = write(tmp_path_factory.mktemp("data"), recorded(0))
    config = evaluated_by_two_actors(
        folder,
        offline_evaluation_interval=1,
        offline_loss_for_module_fn=first_observations,
        offline_evaluation_parallel_to_training=True,
    )
    algo = (
        config.offline_data(dataset_num_iters_per_learner=2)
        .callbacks(on_offline_eval_runners_recreated=lambda **told: BACK.append(told["offline_eval_runner_indices"]))
        .build_algo()
    )
    yield algo
    algo.stop()


def test_each_actor_has_its_part_of_the_data_beside_training(algo):
    result = algo.train()["evaluation"]
    own = result["offline_eval_runners"]
    assert result["num_healthy_offline_eval_runners"] == 2
    assert own[ALL_MODULES]["num_env_steps_sampled"] == 80
    assert own[DEFAULT_MODULE_ID][TOTAL_EVAL_LOSS_KEY] == 1.0
    # Those of before the iteration.
    assert own[DEFAULT_MODULE_ID]["weights_seq_no"] == 0
    steps = recorded(0)
    mean = steps.columns[Columns.OBS][~steps.is_final, 0].mean()
    assert own[DEFAULT_MODULE_ID]["first"] == pytest.approx(mean, rel=1e-4)


def test_a_lost_actor_comes_back_with_the_weights(algo, fake):
    group = algo.offline_eval_runner_group
    fake.lose(fake.handles[0])
    results = []
    for _ in range(3):
        assert BACK == []
        results.append(algo.evaluate_offline())
        fake.sleep(fake.restart_s / 2)
    assert BACK == [[1]]
    # Meanwhile the other one ran in its place.
    assert all(own["offline_eval_runners"][ALL_MODULES]["dataset_num_iters_evaluated"] == 2 for own in results)
    assert algo.evaluate_offline()["num_remote_offline_eval_runners_restarts"] == 1
    assert (
        group.foreach_runner(lambda runner: runner.get_state()["weights_seq_no"])
        == [algo.learner_group.num_updates] * 2
    )


def num_runs(result):
    return result["offline_eval_runners"][ALL_MODULES]["dataset_num_iters_evaluated"]


def test_one_that_stalls_is_not_waited_for_and_one_that_dies_is_left_out(tmp_path, caplog):
    asked = evaluated_by_two_actors(
        write(tmp_path / "data", recorded(0)),
        offline_evaluation_timeout_s=4.0,
        restart_failed_offline_eval_runners=False,
        ignore_offline_eval_runner_failures=True,
    )
    with in_place_of_ray() as fake:
        algo = asked.build_algo()
        assert num_runs(algo.evaluate_offline()) == 2
        stalled, _ = fake.handles
        fake.stall(stalled, 30.0)
        # Neither when it is to take the state over, nor for its run.
        assert num_runs(algo.evaluate_offline()) == 1 and 8.0 <= fake.now() < 10.0
        assert "was stopped after 4.0 s without an answer of its actors" in caplog.text
        fake.sleep(30.0)
        assert num_runs(algo.evaluate_offline()) == 2
        fake.lose(stalled)
        result = algo.evaluate_offline()
        assert result["num_healthy_offline_eval_runners"] == 1
        assert "Offline evaluation actor 1 is lost; continuing without it." in caplog.text
        assert algo.offline_eval_runner_group.num_runners == 1 and num_runs(algo.evaluate_offline()) == 1
        assert result["num_remote_offline_eval_runners_restarts"] == 0
        algo.stop()
