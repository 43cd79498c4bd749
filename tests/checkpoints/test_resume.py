"""Training on the device, interrupted and gone on with: bit for bit, and on other devices."""

from __future__ import annotations

import types

import gymnasium as gym
import numpy as np
import pytest
import resume_cases as cases

from jaxrl_stack.acting.episode_forms import SingleAgentForm
from jaxrl_stack.acting.episode_replay import EpisodeReplay
from jaxrl_stack.algorithms.ppo import PPO


@pytest.fixture(scope="module")
def other_process():
    process = cases.OtherProcess()
    yield process
    process.close()


# ------------------------------------------------------------------------------------------------------- bit for bit


@pytest.fixture(scope="module", params=["with_everything", "noisy"])
def run(request, tmp_path_factory, other_process):
    """Ten iterations at a stretch, and ten that were saved after each, with evaluations in between."""
    folder = tmp_path_factory.mktemp(request.param)
    config = getattr(cases, request.param)()
    saving = config.copy(copy_frozen=False).evaluation(evaluation_interval=2, evaluation_duration=3).build_algo()
    results = []
    for i in range(1, 11):
        results.append(cases.learned(saving.train()))
        saving.save_to_path(folder / f"{i}", blocking=i % 2 == 1)
        if i == 5:
            # The other process works beside this one.
            other_process.ask(folder / "5", 5, folder / "other", evaluation_interval=None)
    saving.stop()
    straight = config.build_algo()
    yield types.SimpleNamespace(
        folder=folder,
        algo=straight,
        results=[cases.learned(straight.train()) for _ in range(10)],
        state=straight.get_state(),
        results_of_saving=results,
        results_of_other=other_process.answer(),
    )
    straight.stop()


def without_evaluation(results):
    return [{key: value for key, value in r.items() if not key.startswith("evaluation")} for r in results]


def without_evaluations(state):
    """Their counts, their columns, and the component that only evaluation has, are all that they leave."""
    kept = {name: part for name, part in state.items() if name not in ("evaluation", "eval_env_runner")}
    columns = cases.columns_of(state["history"])
    return kept | {"history": {name: own for name, own in columns.items() if not name.startswith("evaluation/")}}


def test_another_process_goes_on_as_if_nothing_had_been(run):
    assert run.results_of_other == run.results[5:]
    assert len(run.results) == 10 and run.results[0] != run.results[5]
    cases.assert_same(without_evaluations(cases.stored(run.folder / "other")), without_evaluations(run.state))


def test_saves_and_evaluations_leave_no_trace(run):
    assert any("evaluation/env_runners/episode_return_mean" in result for result in run.results_of_saving)
    assert without_evaluation(run.results_of_saving) == without_evaluation(run.results)
    cases.assert_same(without_evaluations(cases.stored(run.folder / "10")), without_evaluations(run.state))


def test_an_algorithm_that_has_trained_elsewhere_takes_it_over(run):
    run.algo.restore_from_path(run.folder / "5")
    expected = cases.stored(run.folder / "5")
    assert expected["evaluation"]["num_episodes"] == run.algo.get_state()["evaluation"]["num_episodes"] == 6
    cases.assert_same(without_evaluations(run.algo.get_state()), without_evaluations(expected))
    result = [run.algo.train() for _ in range(5)]
    assert [r["timers"]["compile_s"] for r in result] == [0] * 5
    assert [r["iterations_since_restore"] for r in result] == [1, 2, 3, 4, 5]
    assert without_evaluation(map(cases.learned, result)) == without_evaluation(run.results[5:])
    cases.assert_same(without_evaluations(run.algo.get_state()), without_evaluations(run.state))


def test_the_state_has_all_of_it(run):
    """That nothing is compared which is not there."""
    paths = cases.leaves(run.state)
    wanted = [
        *("learner_group/learner/rl_module/default_policy", "learner_group/learner/optimizer", "training_iteration"),
        *("learner_group/learner/extra/curr_kl_coeff", "learner_group/learner/counters/key", "driver/timesteps"),
        *("driver/num_env_steps_sampled_lifetime", "env_runner/rollout/key", "env_runner/rollout/env_state"),
        *("env_runner/rollout/window/returns", "env_runner/env_to_module_connector/MeanStdFilter"),
    ]
    if run.state["driver"]["running_episodes"]:
        wanted += [
            "driver/running_episodes/custom_data/0/first",
            "env_runner/rollout/modules/default_policy/env_to_module/FrameStacking",
        ]
        loggers = (run.state["driver"]["episode_metrics"], run.state["metrics_logger"])
        logged = [stats["key"] for logger in loggers for stats in logger["stats"]]
        assert logged == [["seen"], ["first"], ["steps"], ["mine", "most"]]
    wanted += ["learner_group/learner/rl_module/default_policy/norm/mean"]
    for start in wanted:
        assert any(path.startswith(f"/{start}") for path in paths), start


# ------------------------------------------------------------------------------------------- other devices and numbers


def envs_in_order(state):
    """The runner's state without what random numbers and the episode window are on each device."""
    rollout = state["env_runner"]["rollout"]
    of_module = ("reset", "prev_", "env_to_module/FrameStacking", "env_to_module/Prev")
    per_env = ("env_state", "obs", "episodes/", *(f"modules/default_policy/{name}" for name in of_module))
    return {
        name: np.reshape(leaf, (-1, *np.shape(leaf)[2:])) for name, leaf in rollout.items() if name.startswith(per_env)
    }


def rows(num_rows):
    """A batch of PPO, for updates without sampling."""
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(num_rows, 2)).astype(np.float32)
    return {
        "obs": rng.normal(size=(num_rows, 4)).astype(np.float32),
        "actions": rng.integers(0, 2, num_rows),
        "action_dist_inputs": logits,
        "action_logp": np.full(num_rows, np.log(0.5), np.float32),
        "advantages": rng.normal(size=num_rows).astype(np.float32),
        "value_targets": rng.normal(size=num_rows).astype(np.float32),
    }


@pytest.fixture(scope="module")
def few_devices(tmp_path_factory):
    """One device, saved after three iterations, and its next one."""
    path = tmp_path_factory.mktemp("few") / "checkpoint"
    algo = cases.on_device().learners(num_shuffle_shards=4).build_algo()
    for _ in range(3):
        algo.train()
    algo.save_to_path(path)
    yield types.SimpleNamespace(path=path, algo=algo, result=cases.learned(algo.train()))
    algo.stop()


def assert_goes_on_without_compiling(algo, iterations):
    results = [algo.train() for _ in range(3)]
    assert [r["timers"]["compile_s"] for r in results[1:]] == [0, 0]
    assert [r["training_iteration"] for r in results] == [iterations + 1, iterations + 2, iterations + 3]
    assert np.isfinite(results[-1]["learners"]["default_policy"]["total_loss"])
    assert results[-1]["num_env_steps_sampled_lifetime"] == 64 * (iterations + 3)
    return results


def test_other_numbers_of_devices_and_back(few_devices, tmp_path):
    num_devices = 4
    expected = cases.stored(few_devices.path)
    algo = PPO.from_checkpoint(few_devices.path, num_cpus_per_learner=num_devices)
    state = algo.get_state()
    assert np.shape(state["env_runner"]["rollout"]["modules/default_policy/reset"]) == (num_devices, 8 // num_devices)
    for name in ("learner_group", "metrics_logger", "driver", "training_iteration"):
        cases.assert_same(state[name], expected[name])
    cases.assert_same(state["env_runner"]["env_to_module_connector"], expected["env_runner"]["env_to_module_connector"])
    assert len(envs_in_order(state)) >= 8
    cases.assert_same(envs_in_order(state), envs_in_order(expected))
    window, num_episodes = algo.driver.episode_statistics(), algo.driver.num_episodes

    # Back on one device: nothing of it was lost on the way.
    algo.save_to_path(tmp_path / "back")
    back = few_devices.algo
    back.restore_from_path(tmp_path / "back")
    again = back.get_state()
    cases.assert_same(envs_in_order(again), envs_in_order(expected))
    same_window, same_number = back.driver.episode_statistics(), back.driver.num_episodes
    back.restore_from_path(few_devices.path)
    original = back.driver.episode_statistics()
    assert len(original.returns) > 5 and back.driver.num_episodes >= len(original.returns)
    assert num_episodes == same_number == back.driver.num_episodes
    for given in (window, same_window):
        np.testing.assert_array_equal(given.returns, original.returns)
        np.testing.assert_array_equal(given.lengths, original.lengths)

    # The same update from the same rows.
    results = [
        a.learner.update(batch=rows(64), minibatch_size=32, num_epochs=2, shuffle_batch_per_epoch=True)
        for a in (algo, back)
    ]
    assert results[0]["default_policy"]["total_loss"] == pytest.approx(results[1]["default_policy"]["total_loss"], 1e-4)
    before = expected["learner_group"]["learner"]["rl_module"]["default_policy"]
    weights = [a.get_weights()["default_policy"] for a in (algo, back)]
    for name, value in weights[0].items():
        assert np.abs(value - before[name]).max() > 1e-4, name
        np.testing.assert_allclose(value, weights[1][name], rtol=0, atol=1e-5, err_msg=name)
    assert_goes_on_without_compiling(algo, 3)
    algo.stop()


def test_the_run_itself_is_still_the_same_behind_all_that(few_devices):
    few_devices.algo.restore_from_path(few_devices.path)
    assert cases.learned(few_devices.algo.train()) == few_devices.result


def test_another_number_of_environments_keeps_what_was_learned(few_devices, caplog):
    expected = cases.stored(few_devices.path)
    with caplog.at_level("WARNING"):
        algo = PPO.from_checkpoint(few_devices.path, num_envs_per_env_runner=4)
        algo.restore_from_path(few_devices.path)
    told = [r.message for r in caplog.records if "start new episodes" in r.message]
    assert told == [
        "The checkpoint has 8 environments, this run has 4: all of them start new episodes. Statistics and "
        "everything that was learned are kept."
    ]
    state = algo.get_state()
    for name in ("learner_group", "metrics_logger", "driver", "training_iteration"):
        cases.assert_same(state[name], expected[name])
    cases.assert_same(state["env_runner"]["env_to_module_connector"], expected["env_runner"]["env_to_module_connector"])
    rollout = state["env_runner"]["rollout"]
    assert not rollout["episodes/episode_length"].any() and rollout["modules/default_policy/reset"].all()
    few_devices.algo.restore_from_path(few_devices.path)
    original = few_devices.algo.driver.episode_statistics()
    np.testing.assert_array_equal(algo.driver.episode_statistics().returns, original.returns)
    assert_goes_on_without_compiling(algo, 3)
    algo.stop()


def test_it_is_said_what_differs_elsewhere():
    text = PPO.restore_from_path.__doc__
    words = " ".join(text.split())
    for said in ("each device has its own random stream", "num_shuffle_shards", "start new episodes"):
        assert said in words, said


# ---------------------------------------------------------------------------------------- episodes that are watched


def test_watched_episodes_are_whole_wherever_the_run_was_interrupted():
    """Two environments with episodes of 3 steps; one block of 2, then one of 4."""
    spaces = (gym.spaces.Box(-9, 9, (1,)), gym.spaces.Discrete(2))

    def block(first, last):
        t = np.arange(first, last)[:, None] + np.array([0, 1])[None]
        return {
            "obs": np.float32(t % 3)[..., None],
            "final_obs": np.float32(t % 3 + 1)[..., None],
            "actions": t % 2,
            "rewards": np.float32(t),
            "terminateds": t % 3 == 2,
            "truncateds": np.zeros_like(t, bool),
            "action_logp": -np.float32(t),
        }

    def watch(log):
        def call(hook, index, episode):
            if hook == "on_episode_created":
                episode.custom_data.update(made_in=index, unknown=object())
            log.append(
                (
                    hook,
                    index,
                    episode.id_,
                    str(episode.get_observations()),
                    str(episode.get_rewards()),
                    str(episode.get_extra_model_outputs("action_logp")) if len(episode) else "",
                    episode.custom_data["made_in"],
                )
            )

        return EpisodeReplay(call, SingleAgentForm(*spaces))

    log, later, elsewhere, unseen = [], [], [], []
    straight = watch(log)
    straight.replay(block(0, 2))
    state = straight.get_state()
    assert state["env_indices"] == [0] and state["lengths"] == [2]  # the other one's has just ended
    straight._call = watch(later)._call
    straight.replay(block(2, 6))
    restored = watch(elsewhere)
    restored.replay(block(5, 6))
    elsewhere.clear()
    restored.set_state(state, np.array([2, 0]))
    restored.replay(block(2, 6))
    begun = {entry[2] for entry in log}

    def but_ids(entries):
        return [(*e[:2], e[2] in begun, *e[3:]) for e in entries]

    assert but_ids(elsewhere) == but_ids(later)
    # Nothing watched before: the episode whose beginning is not known is left out.
    without = watch(unseen)
    without.set_state({}, np.array([2, 0]))
    without.replay(block(2, 6))
    kept = [e for e in later if e[2] not in begun]
    assert [e[:2] + e[3:] for e in unseen] == [e[:2] + e[3:] for e in kept] and len(kept) < len(later)
    # Other environments than those of the state, which have just started.
    without.set_state(state, np.array([0]))
    assert without.get_state() == {}
