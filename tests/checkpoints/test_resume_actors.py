"""Training on gymnasium environments, interrupted and gone on with: in this process, with actors, and with others."""

from __future__ import annotations

import types

import numpy as np
import pytest
import resume_cases as cases

from jaxrl_stack.algorithms.ppo import PPO
from jaxrl_stack.utils.nested import has_equal_bits
from tests import programs
from tests.fake_actors import in_place_of_ray

FILTER = ("env_to_module_connector", "MeanStdFilter")


def filter_of(state):
    for name in FILTER:
        state = state[name]
    return state


def filter_states(algo, **kwargs):
    """Of all runners, those in this process included."""
    states = algo.env_runner_group.foreach_env_runner("get_state", kwargs={"components": FILTER[0]}, **kwargs)
    return [filter_of(state) for state in states]


def counted(filter_state):
    """How many observations are in it."""
    return int(np.asarray(filter_state["default_policy"]["base"]["obs"]["count"])[-1])


# ------------------------------------------------------------------------------------------------------- bit for bit


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Six iterations at a stretch; three, saved, that another process goes on with."""
    folder = tmp_path_factory.mktemp("local")
    process = cases.OtherProcess()
    config = cases.on_host(env_to_module_connector=cases.connectors)
    saving = config.build_algo()
    results = [cases.learned(saving.train()) for _ in range(3)]
    saving.save_to_path(folder / "3")
    process.ask(folder / "3", 3, folder / "other")
    results += [cases.learned(saving.train()) for _ in range(3)]
    straight = config.build_algo()
    yield types.SimpleNamespace(
        path=folder / "3",
        saving=saving,
        results_of_saving=results,
        results=[cases.learned(straight.train()) for _ in range(6)],
        state=straight.get_state(),
        results_of_other=process.answer(),
        other=folder / "other",
    )
    process.close()
    saving.stop()
    straight.stop()


def test_another_process_goes_on_as_if_nothing_had_been(local):
    assert local.results_of_other == local.results[3:]
    cases.assert_same(cases.stored(local.other), local.state)
    last = local.results[-1]
    assert last["env_runners/num_episodes_lifetime"] == 6 * 4 and last["env_runners/steps"] == 6 * 32
    assert last["learners/default_policy/curr_entropy_coeff"] < 0.02


def test_a_save_leaves_no_trace(local):
    assert local.results_of_saving == local.results
    cases.assert_same(local.saving.get_state(), local.state)


def test_an_algorithm_that_has_trained_elsewhere_takes_it_over(local):
    local.saving.restore_from_path(local.path)
    cases.assert_same(local.saving.get_state(), cases.stored(local.path))
    results = [local.saving.train() for _ in range(3)]
    assert [r["timers"]["compile_s"] for r in results] == [0, 0, 0]
    assert list(map(cases.learned, results)) == local.results[3:]
    cases.assert_same(local.saving.get_state(), local.state)


def test_statistics_alone_leave_running_episodes_as_they_are(local):
    config = cases.on_host(
        num_envs_per_env_runner=2, rollout_fragment_length=6, env_to_module_connector=cases.connectors
    )
    algo = config.training(train_batch_size_per_learner=36, minibatch_size=None).build_algo()
    algo.train()
    before = algo.env_runner.get_state()["env_to_module_connector"]
    assert before["FrameStacking"]["default_policy"].any(), "in the middle of episodes"
    algo.restore_from_path(local.path, component="env_runner/env_to_module_connector")
    after = algo.env_runner.get_state()["env_to_module_connector"]
    cases.assert_same(after["MeanStdFilter"], filter_of(cases.stored(local.path)["env_runner"]))
    for name in ("FrameStacking", "PrevActionsPrevRewards"):
        cases.assert_same(after[name], before[name])
    result = algo.train()
    assert result["env_runners"]["episode_len_min"] == result["env_runners"]["episode_len_max"] == 8
    algo.stop()


def test_connectors_that_keep_something_themselves(tmp_path):
    """On the host, before the module; and after it."""
    config = cases.on_host(env_to_module_connector=cases.counting_calls, module_to_env_connector=cases.counting_steps)
    algo = config.build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    restored = PPO.from_checkpoint(path, allow=cases.ALLOWED)
    state = restored.get_state()["env_runner"]
    assert int(state["env_to_module_connector"]["CountsCalls"]["calls"]) >= 8
    assert int(state["module_to_env_connector"]["CountsSteps"]["steps"]) == 8
    cases.assert_same(state, cases.stored(path)["env_runner"])
    algo.train()
    restored.train()
    name = "module_to_env_connector"
    cases.assert_same(restored.env_runner.get_state(name), algo.env_runner.get_state(name))
    # It has seen the first observations of the new episodes, too.
    counts = [a.env_runner.get_state()["env_to_module_connector"]["CountsCalls"]["calls"] for a in (algo, restored)]
    assert counts[1] == counts[0] + 1
    algo.stop()
    restored.stop()


# ------------------------------------------------------------------------------ environments with a state of their own


def test_episodes_are_not_replayed(tmp_path):
    starts = cases.RecordedCartPole.starts
    starts.clear()
    algo = cases.on_host().environment(cases.RecordedCartPole, env_config={}).build_algo()
    for _ in range(3):
        algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    seen = list(starts)
    assert len(set(seen)) == len(seen) > 4
    firsts = []
    for _ in range(2):
        starts.clear()
        restored = PPO.from_checkpoint(path, allow=cases.RecordedCartPole)
        cases.assert_same(restored.get_state(), cases.stored(path))
        starts.clear()
        result = restored.train()
        firsts.append(starts[:4])
        assert len({*seen, *firsts[-1]}) == len(seen) + 4
        assert result["training_iteration"] == 4 and result["num_env_steps_sampled_lifetime"] == 4 * 32
        assert result["env_runners"]["num_episodes_lifetime"] >= len(seen) - 4
        restored.stop()
    assert firsts[0] == firsts[1], "the same checkpoint, the same new episodes"
    algo.stop()


# ------------------------------------------------------------------------------------------------------------- actors


@pytest.fixture(scope="module")
def fake():
    with in_place_of_ray() as fake:
        yield fake


@pytest.mark.usefixtures("fake")
def test_runners_whose_statistics_are_not_merged_keep_their_own(tmp_path):
    config = cases.on_host(
        num_env_runners=2,
        num_envs_per_env_runner=2,
        merge_env_runner_states=False,
        env_to_module_connector=cases.connectors,
    )
    algo = config.evaluation(evaluation_duration=1, evaluation_force_reset_envs_before_iteration=True).build_algo()
    algo.train()
    path = algo.save_to_path(tmp_path / "checkpoint")
    before = filter_states(algo, local_env_runner=False)
    algo.train()
    changed = filter_states(algo, local_env_runner=False)
    algo.restore_from_path(path)
    after = filter_states(algo, local_env_runner=False)
    for one, then, later in zip(before, after, changed, strict=True):
        cases.assert_same(then, one)
        with pytest.raises(AssertionError):
            cases.assert_same(later, one)
    with pytest.raises(AssertionError):
        cases.assert_same(before[0], before[1])
    # What has none of its own takes the first one's: evaluation, policies, and other numbers of runners.
    policy_state = filter_of(algo.get_policy().get_state())
    cases.assert_same(policy_state["default_policy"], before[0]["default_policy"])
    algo.evaluate()
    cases.assert_same(filter_of(algo.eval_env_runner.get_state())["default_policy"], before[0]["default_policy"])
    observation = np.float32([3.0, 1.0])
    policy_actions = algo.get_policy().compute_single_action(observation, explore=False)
    _, _, outputs = algo.compute_single_action(observation, explore=False, full_fetch=True)
    np.testing.assert_allclose(policy_actions[2]["action_dist_inputs"], outputs["action_dist_inputs"], atol=1e-6)
    algo.stop()
    alone = PPO.from_checkpoint(path, allow=cases.ALLOWED, num_env_runners=0, num_envs_per_env_runner=4)
    cases.assert_same(filter_states(alone)[0], before[0])
    alone.stop()


@pytest.fixture(scope="module")
def actors(tmp_path_factory, fake):
    """Two env runners and a learner in actors, where alone connectors are made; then others that go on with it."""
    path = tmp_path_factory.mktemp("actors") / "checkpoint"
    config = cases.on_host(
        num_env_runners=2,
        num_envs_per_env_runner=2,
        create_local_env_runner=False,
        env_to_module_connector=lambda *arguments: cases.connectors(*arguments),
        module_to_env_connector=lambda *arguments: [],
    )
    algo = config.learners(num_learners=1, learner_connector=lambda *spaces: cases.halved(*spaces)).build_algo()
    for _ in range(3):
        algo.train()
    algo.save_to_path(path)
    results = [cases.learned(algo.train()) for _ in range(3)]
    state = algo.get_state()
    algo.stop()
    restored = PPO.from_checkpoint(path, allow=cases.ALLOWED)
    yield types.SimpleNamespace(path=path, results=results, state=state, restored=restored)
    restored.stop()


def test_new_actors_go_on_as_if_nothing_had_been(actors):
    cases.assert_same(actors.restored.get_state(), cases.stored(actors.path))
    assert [cases.learned(actors.restored.train()) for _ in range(3)] == actors.results
    cases.assert_same(actors.restored.get_state(), actors.state)
    assert len(actors.state["driver"]["remote_env_runners"]) == 2


def test_no_runners_in_place_of_two(actors):
    saved = cases.stored(actors.path)
    algo = PPO.from_checkpoint(
        actors.path, allow=cases.ALLOWED, num_env_runners=0, num_envs_per_env_runner=4, num_learners=0
    )
    state = algo.get_state()
    cases.assert_same(state["learner_group"], saved["learner_group"])
    cases.assert_same({**state["driver"], "remote_env_runners": saved["driver"]["remote_env_runners"]}, saved["driver"])
    cases.assert_same(filter_of(state["env_runner"]), filter_of(saved["env_runner"]))
    assert counted(filter_of(state["env_runner"])) == 3 * 32
    result = algo.train()
    assert result["num_env_steps_sampled_lifetime"] == 4 * 32 and result["env_runners"]["num_episodes_lifetime"] == 16
    assert counted(filter_states(algo)[0]) == 4 * 32
    algo.stop()


def test_what_does_not_fit_actors_is_named(actors, local):
    with pytest.raises(ValueError, match="ScaleRewards"):
        actors.restored.restore_from_path(local.path)


def test_two_runners_in_place_of_none(actors, tmp_path):
    algo = actors.restored
    source = (
        cases.on_host(env_to_module_connector=cases.connectors).learners(learner_connector=cases.halved).build_algo()
    )
    for _ in range(2):
        source.train()
    path = source.save_to_path(tmp_path / "checkpoint")
    saved = cases.stored(path)
    algo.restore_from_path(path)
    for state in filter_states(algo):
        cases.assert_same(state, filter_of(saved["env_runner"]))
    keys = algo.env_runner_group.foreach_env_runner(
        lambda runner: runner.get_state("random")["random"]["key"].tolist(), local_env_runner=False
    )
    assert keys[0] != keys[1]
    cases.assert_same(algo.get_state()["learner_group"], saved["learner_group"])
    result = algo.train()
    assert result["training_iteration"] == 3 and result["num_env_steps_sampled_lifetime"] == 3 * 32
    assert result["env_runners"]["num_episodes_lifetime"] == 12
    assert {counted(state) for state in filter_states(algo)} == {3 * 32}
    source.stop()


# -------------------------------------------------------------------------------------------------------- other places


def test_a_learner_actor_is_saved_to_a_shared_folder_and_to_an_object_store(bucket, tmp_path):
    with in_place_of_ray():
        config = programs.ppo("CartPole-v1").env_runners(num_env_runners=1).learners(num_learners=1)
        algo = config.build_algo()
        algo.train()
        weights = algo.get_weights()
        shared = algo.save_to_path(tmp_path / "shared" / "checkpoint")
        stored = algo.save_to_path("runs/checkpoint", filesystem=bucket)
        algo.stop()
        for path, filesystem in ((shared, None), (stored, bucket)):
            other = PPO.from_checkpoint(path, filesystem)
            assert other.learner_group.is_remote and other.iteration == 1
            assert has_equal_bits(other.get_weights(), weights)
            other.stop()
